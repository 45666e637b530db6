//! Secrets that texts of others may carry: what must not reach an error, a log, a record, or the shell's history.
//!
//! ```text
//! https://user:pass@host/a?sig=abc&part=1   ─ without_credentials ─►  https://***@host/a?sig=***&part=1
//! OPTIONS ('aws.secret_access_key' 'abc')   ─ holds_secret ─►         true: not kept in the history
//! ```
//!
//! Names decide, and the place in a URL; a secret under an innocent name is not recognised. Memory: one copy of the text,
//! and none where nothing is found.

use std::borrow::Cow;

/// Parts of names whose values may be secrets. Rather one too many: an option that is left out must be given again, a
/// secret that was stored is out.
const SECRETS: &[&str] = &[
    "key",
    "secret",
    "token",
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "credential",
    "connection",
    "signature",
    "sas",
    "auth",
    "private",
    "cookie",
    "dsn",
    "crypto",
    "encryption",
    "decryption",
    "session",
];

const HIDDEN: &str = "***";

/// Whether the value of an option of this name may be a secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRETS.iter().any(|part| name.contains(part))
}

/// The text with the user information of its URLs hidden, and those values of their queries whose names look like
/// secrets.
pub fn without_credentials(text: &str) -> Cow<'_, str> {
    if !text.contains("://") {
        return Cow::Borrowed(text);
    }
    let (mut out, mut rest, mut changed) = (String::with_capacity(text.len()), text, false);
    while let Some(at) = rest.find("://") {
        let (before, url) = rest.split_at(at + 3);
        out.push_str(before);
        let url_end = url.find(ends_a_url).unwrap_or(url.len());
        let (url, after) = url.split_at(url_end);
        changed |= write_url(&mut out, url);
        rest = after;
    }
    out.push_str(rest);
    if changed { Cow::Owned(out) } else { Cow::Borrowed(text) }
}

/// A location without the user information, the query and the fragment of its URL: each can carry credentials, and none
/// says where the location is.
pub fn location_without_credentials(location: &str) -> String {
    match url::Url::parse(location) {
        Ok(mut url) if url.has_host() => {
            // Both fail only for URLs that cannot have such parts.
            let _ = url.set_username("");
            let _ = url.set_password(None);
            url.set_query(None);
            url.set_fragment(None);
            url.to_string()
        }
        _ => location.to_string(),
    }
}

fn ends_a_url(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>' | '\\' | '|' | '(' | ')' | '[' | ']' | '{' | '}')
}

/// Writes what follows `://`; whether anything was hidden.
fn write_url(out: &mut String, url: &str) -> bool {
    let authority_end = url.find(['/', '?', '#']).unwrap_or(url.len());
    let (authority, rest) = url.split_at(authority_end);
    let host = match authority.rfind('@') {
        Some(at) if at > 0 => {
            out.push_str(HIDDEN);
            authority.get(at..).unwrap_or_default()
        }
        _ => authority,
    };
    out.push_str(host);
    let mut changed = host.len() != authority.len();
    let Some(query) = rest.find('?') else {
        out.push_str(rest);
        return changed;
    };
    let (path, query) = rest.split_at(query + 1);
    out.push_str(path);
    for (n, pair) in query.split('&').enumerate() {
        out.push_str(if n == 0 { "" } else { "&" });
        match pair.split_once('=') {
            Some((name, value)) if is_secret_parameter(name) && !value.is_empty() => {
                out.push_str(name);
                out.push('=');
                out.push_str(HIDDEN);
                changed = true;
            }
            _ => out.push_str(pair),
        }
    }
    changed
}

fn is_secret_parameter(name: &str) -> bool {
    name.eq_ignore_ascii_case("sig") || is_secret_name(name)
}

/// Whether a statement says a secret: a literal after an option whose name looks like one, or a URL with credentials.
pub fn holds_secret(statement: &str) -> bool {
    if matches!(without_credentials(statement), Cow::Owned(_)) {
        return true;
    }
    let mut words = statement.split_ascii_whitespace();
    let is_connection = ["CREATE", "CONNECTION"].iter().all(|wanted| words.next().is_some_and(|word| word.eq_ignore_ascii_case(wanted)));
    let literals = || statement.split('\'').skip(1).step_by(2);
    if is_connection && literals().any(|literal| !literal.starts_with("env:") && !literal.starts_with("file:")) {
        return true;
    }
    let mut literals = Vec::new();
    let mut rest = statement;
    while let Some(start) = rest.find('\'') {
        let (before, text) = rest.split_at(start);
        let text = text.get(1..).unwrap_or_default();
        let end = text.find('\'').unwrap_or(text.len());
        literals.push((before.trim(), text.get(..end).unwrap_or_default()));
        rest = text.get(end + 1..).unwrap_or_default();
    }
    let is_value = |between: &str| between.is_empty() || between == "=";
    let names_secret = |name: &str| !name.to_ascii_lowercase().starts_with("incremental.") && is_secret_name(name);
    let quoted = literals.windows(2).any(|pair| match pair {
        [(_, name), (between, value)] => names_secret(name) && is_value(between) && !value.is_empty(),
        _ => false,
    });
    // SET name = 'value', OPTIONS (name 'value').
    let bare = literals.iter().any(|(before, value)| {
        let name = before.trim_end_matches('=').trim_end().rsplit([' ', '(', ',', '\n', '\t']).next().unwrap_or_default();
        !value.is_empty() && name.contains('.') && names_secret(name)
    });
    quoted || bare
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_hidden_and_nothing_else() {
        for (text, hidden) in [
            ("no url", "no url"),
            ("s3://bucket/a?b=c", "s3://bucket/a?b=c"),
            ("GET https://user:pw@host:9000/a failed", "GET https://***@host:9000/a failed"),
            ("(https://h/a?X-Amz-Signature=abc&part=1)", "(https://h/a?X-Amz-Signature=***&part=1)"),
            ("'s3://k:s@b' and \"az://h?sig=x\"", "'s3://***@b' and \"az://h?sig=***\""),
            ("ü://ä:ö@é/?token=ß", "ü://***@é/?token=***"),
            ("://@://", "://@://"),
        ] {
            assert_eq!(without_credentials(text), hidden);
        }
    }

    #[test]
    fn statements_that_say_a_secret_are_known() {
        for secret in [
            "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 's3://b/' OPTIONS ('aws.secret_access_key' 'abc')",
            "OPTIONS ('a' 'b', 'gcp.service_account_key' = 'abc')",
            "SET my.password = 'abc'",
            "create  connection c TYPE http WITH (token = 'hunter2')",
            "CREATE CONNECTION c TYPE postgres WITH (url = 'host=h password=p')",
            "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 's3://key:abc@b/'",
        ] {
            assert!(holds_secret(secret), "{secret}");
        }
        for open in [
            "SELECT 'key', 'value'",
            "CREATE CONNECTION c TYPE postgres WITH (url = 'env:PG_URL')",
            "CREATE EXTERNAL TABLE t STORED AS INCREMENTAL LOCATION 'x' OPTIONS ('incremental.key' 'id')",
            "CREATE INCREMENTAL TABLE t FROM s KEY (id) AS SELECT id, 'x' AS o FROM input",
            "it's",
        ] {
            assert!(!holds_secret(open), "{open}");
        }
    }
}
