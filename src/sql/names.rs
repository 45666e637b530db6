//! Names as text: splitting, quoting, and the rule for capitals.
//!
//! ```text
//! Cat.s."My.Table" ──parse_table_name──► [cat, s, My.Table] ──quote_name──► cat.s."My.Table"
//! ```

use datafusion::common::TableReference;
use datafusion::sql::sqlparser::ast::{Ident, ObjectName};
use datafusion::sql::sqlparser::keywords::{
    ALL_KEYWORDS, ALL_KEYWORDS_INDEX, Keyword, RESERVED_FOR_COLUMN_ALIAS, RESERVED_FOR_TABLE_ALIAS,
};

use crate::error::{Error, ErrorCode, Result};

/// Reserved in places that the parser's two alias lists do not cover.
const RESERVED: &[Keyword] = &[
    Keyword::ALL,
    Keyword::AND,
    Keyword::AS,
    Keyword::BETWEEN,
    Keyword::BY,
    Keyword::CASE,
    Keyword::CAST,
    Keyword::CREATE,
    Keyword::DISTINCT,
    Keyword::DROP,
    Keyword::ELSE,
    Keyword::EXISTS,
    Keyword::FALSE,
    Keyword::FOR,
    Keyword::FROM,
    Keyword::IN,
    Keyword::INSERT,
    Keyword::INTERVAL,
    Keyword::INTO,
    Keyword::IS,
    Keyword::LIKE,
    Keyword::NOT,
    Keyword::NULL,
    Keyword::OR,
    Keyword::SET,
    Keyword::TABLE,
    Keyword::THEN,
    Keyword::TRUE,
    Keyword::UNNEST,
    Keyword::VALUES,
    Keyword::WHEN,
];

/// Reads a name as SQL does: up to three parts, capitals folded unless quoted.
///
/// # Errors
/// `STATEMENT_INVALID` when the text is not a name; the message shows how to quote it.
pub fn parse_table_name(text: &str) -> Result<TableReference> {
    let mut parts = Vec::new();
    let mut rest = text.trim();
    loop {
        let (part, after) = next_part(rest).ok_or_else(|| not_a_name(text))?;
        parts.push(part);
        rest = after.trim_start();
        match rest.strip_prefix('.') {
            Some(after) => rest = after.trim_start(),
            None if rest.is_empty() => break,
            None => return Err(not_a_name(text)),
        }
    }
    reference(parts).ok_or_else(|| too_many_parts(text))
}

/// Reads a list of column names separated by commas, each as SQL does.
///
/// # Errors
/// `STATEMENT_INVALID` when a part is not a name.
pub fn parse_name_list(text: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut rest = text.trim();
    loop {
        let (part, after) = next_part(rest).ok_or_else(|| not_a_name(text))?;
        names.push(part);
        rest = after.trim_start();
        match rest.strip_prefix(',') {
            Some(after) => rest = after.trim_start(),
            None if rest.is_empty() => return Ok(names),
            None => return Err(not_a_name(text)),
        }
    }
}

fn next_part(text: &str) -> Option<(String, &str)> {
    let first = text.chars().next()?;
    if matches!(first, '"' | '`') {
        return quoted_part(text, first);
    }
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$')).unwrap_or(text.len());
    let legal = first.is_alphabetic() || first == '_';
    legal.then(|| (text[..end].to_ascii_lowercase(), &text[end..]))
}

fn quoted_part(text: &str, quote: char) -> Option<(String, &str)> {
    let mut part = String::new();
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if c != quote {
            part.push(c);
        } else if chars.peek().is_some_and(|(_, next)| *next == quote) {
            chars.next();
            part.push(quote);
        } else {
            return (!part.is_empty()).then(|| (part, &text[at + quote.len_utf8()..]));
        }
    }
    None
}

fn not_a_name(text: &str) -> Error {
    Error::new(
        ErrorCode::StatementInvalid,
        format!(
            "{text:?} is not the name of a table. Remedy: write it as in SQL, with capitals, spaces, dots and other characters in double quotes: {}",
            quote_literal(&quote_identifier(text))
        ),
    )
}

pub(super) fn too_many_parts(text: &str) -> Error {
    Error::new(
        ErrorCode::StatementInvalid,
        format!(
            "the name {text} has more than three parts. Remedy: write catalog.schema.table, and put a part that has a dot in double quotes"
        ),
    )
}

/// The name of one to three parts; `None` for any other number.
pub(super) fn reference(parts: Vec<String>) -> Option<TableReference> {
    let mut parts = parts.into_iter();
    let name = match (parts.next(), parts.next(), parts.next()) {
        (Some(table), None, None) => TableReference::bare(table),
        (Some(schema), Some(table), None) => TableReference::partial(schema, table),
        (Some(catalog), Some(schema), Some(table)) => TableReference::full(catalog, schema, table),
        _ => return None,
    };
    parts.next().is_none().then_some(name)
}

/// A word as a name: folded unless quoted, when the session folds names at all.
pub(super) fn fold(value: &str, quoted: bool, normalize: bool) -> String {
    if quoted || !normalize { value.to_string() } else { value.to_ascii_lowercase() }
}

/// The single unquoted or quoted part of `name`, folded; `None` when it has more parts.
pub(super) fn single_part(name: &ObjectName, normalize: bool) -> Option<String> {
    match name.0.as_slice() {
        [part] => part.as_ident().map(|ident| fold_ident(ident, normalize)),
        _ => None,
    }
}

pub(super) fn fold_ident(ident: &Ident, normalize: bool) -> String {
    fold(&ident.value, ident.quote_style.is_some(), normalize)
}

/// The identifier in double quotes, unless it reads back as itself without.
pub fn quote_identifier(name: &str) -> String {
    if needs_quotes(name) { format!("\"{}\"", name.replace('"', "\"\"")) } else { name.to_string() }
}

pub(super) fn needs_quotes(name: &str) -> bool {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    !plain || keyword(name).is_some_and(is_reserved)
}

fn keyword(word: &str) -> Option<Keyword> {
    let at = ALL_KEYWORDS.binary_search(&word.to_ascii_uppercase().as_str()).ok()?;
    ALL_KEYWORDS_INDEX.get(at).copied()
}

pub(super) fn is_reserved(keyword: Keyword) -> bool {
    RESERVED.contains(&keyword) || RESERVED_FOR_TABLE_ALIAS.contains(&keyword) || RESERVED_FOR_COLUMN_ALIAS.contains(&keyword)
}

/// The dotted name that [`parse_table_name`] and SQL read back, quoted only where needed.
pub fn quote_name(name: &TableReference) -> String {
    let parts = [name.catalog(), name.schema(), Some(name.table())];
    parts.into_iter().flatten().map(quote_identifier).collect::<Vec<_>>().join(".")
}

/// The text as an SQL string literal.
pub fn quote_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let parts = ["t", "My Table", "a.b", "select", "quo\"te", "ä", "from", "1st", "o'clock", "back`tick", " sp "];
        for a in parts {
            for b in parts {
                let name = TableReference::partial(a, b);
                assert_eq!(parse_table_name(&quote_name(&name)).unwrap(), name, "{a:?} {b:?}");
            }
        }
        assert_eq!(quote_name(&TableReference::full("c", "S", "t_1")), "c.\"S\".t_1");
    }

    #[test]
    fn unquoted_names_are_folded() {
        assert_eq!(parse_table_name(" Cat . S.\"T\" ").unwrap(), TableReference::full("cat", "s", "T"));
    }

    #[test]
    fn what_is_no_name_is_refused_with_the_quoted_form() {
        for bad in ["", " ", "a b", "a-b", "1a", "a.", ".a", "\"a", "\"\"", "a.b.c.d", "a;b"] {
            assert_eq!(parse_table_name(bad).map_err(|e| e.code()), Err(ErrorCode::StatementInvalid), "{bad}");
        }
        assert!(parse_table_name("a b").unwrap_err().message().contains("'\"a b\"'"));
    }
}
