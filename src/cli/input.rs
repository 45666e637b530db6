//! When an entry is complete: it ends with a `;` that stands outside of quotes and comments.

/// Whether the lines typed so far can be run.
pub fn is_complete(text: &str) -> bool {
    let trimmed = text.trim();
    if trimmed.is_empty() || trimmed.starts_with('\\') || is_exit(trimmed) {
        return true;
    }
    let mut ended = false;
    let mut rest = trimmed;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '\'' | '"' | '`' => match quoted(rest, c) {
                Some(length) => length,
                None => return false,
            },
            '-' if rest.starts_with("--") => {
                rest = rest.split_once('\n').map_or("", |(_, after)| after);
                continue;
            }
            '/' if rest.starts_with("/*") => match comment(rest) {
                Some(length) => {
                    rest = rest.get(length..).unwrap_or("");
                    continue;
                }
                None => return false,
            },
            '$' if rest.starts_with("$$") => match rest.get(2..).and_then(|after| after.find("$$")) {
                Some(at) => at + 4,
                None => return false,
            },
            _ => c.len_utf8(),
        };
        ended = if c.is_whitespace() { ended } else { c == ';' };
        rest = rest.get(length..).unwrap_or("");
    }
    ended
}

/// Whether the entry leaves the shell.
pub fn is_exit(text: &str) -> bool {
    let word = text.trim().trim_end_matches(';').trim_end();
    ["exit", "quit", "\\q", "\\quit"].iter().any(|exit| word.eq_ignore_ascii_case(exit))
}

/// The length of the quoted text at the start; a doubled quote is read as two texts, which comes to the same.
fn quoted(text: &str, quote: char) -> Option<usize> {
    text.get(1..)?.find(quote).map(|at| at + 2)
}

/// The length of the comment at the start; comments nest.
fn comment(text: &str) -> Option<usize> {
    let (mut depth, mut at) = (0_usize, 0);
    loop {
        let rest = text.get(at..)?;
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += rest.chars().next()?.len_utf8();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_semicolon_outside_of_quotes_and_comments_ends_an_entry() {
        for complete in [
            "",
            "SELECT 1;",
            "SELECT ';' ; -- end",
            "SELECT 1; /* a /* b */ */ ",
            "\\d",
            "exit",
            "QUIT;",
            "SELECT 'it''s';",
            "SELECT $$;$$;",
            "a;\nb;",
        ] {
            assert!(is_complete(complete), "{complete}");
        }
        for open in
            ["SELECT 1", "SELECT ';", "SELECT 1 -- ;", "SELECT 1 /* ;", "SELECT \";", "SELECT 1;\nSELECT 2", "SELECT $$;", "/* a /* b */ ;"]
        {
            assert!(!is_complete(open), "{open}");
        }
    }
}
