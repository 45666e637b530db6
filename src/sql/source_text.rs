//! The text of a script, its tokens, and where they are in it.
//!
//! ```text
//! text ─tokenizer─► tokens (white space and comments kept) ─split at `;`─► one slice per statement
//!   ▲                    │ line and column, counted in characters
//!   └──── byte offsets ◄─┘      so that a statement's or a handler's text is recovered byte for byte
//! ```

use datafusion::sql::sqlparser::dialect::Dialect;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer};

use crate::error::{Error, ErrorCode, Result};

/// The text with the byte position of each line; the tokenizer counts lines by `\n` and columns by characters.
pub(super) struct SourceText<'a> {
    text: &'a str,
    lines: Vec<Line>,
}

struct Line {
    start: usize,
    /// Columns are bytes: a place is found without counting from the line's start, which a script of one line would pay for
    /// each statement.
    is_ascii: bool,
}

impl<'a> SourceText<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let (mut lines, mut start) = (Vec::new(), 0);
        for line in text.split_inclusive('\n') {
            lines.push(Line { start, is_ascii: line.is_ascii() });
            start += line.len();
        }
        Self { text, lines }
    }

    /// All tokens, with white space and comments.
    pub(super) fn tokens(&self, dialect: &dyn Dialect) -> Result<Vec<TokenWithSpan>> {
        Tokenizer::new(dialect, self.text).tokenize_with_location().map_err(|e| {
            Error::new(
                ErrorCode::StatementInvalid,
                format!("the statement cannot be read: {e}. Remedy: check quotes and comments near that place"),
            )
        })
    }

    /// The text from the first significant token of `tokens` to the last one; empty when there is none.
    pub(super) fn slice(&self, tokens: &[TokenWithSpan]) -> &'a str {
        let significant = |t: &&TokenWithSpan| is_significant(&t.token);
        let (Some(first), Some(last)) = (tokens.iter().find(significant), tokens.iter().rfind(significant)) else { return "" };
        let (start, end) = (self.offset(first.span.start), self.offset(last.span.end));
        self.text.get(start..end).unwrap_or("")
    }

    fn offset(&self, at: Location) -> usize {
        let line = usize::try_from(at.line).unwrap_or(usize::MAX).saturating_sub(1);
        let column = usize::try_from(at.column).unwrap_or(usize::MAX).saturating_sub(1);
        let Some(Line { start, is_ascii }) = self.lines.get(line) else { return self.text.len() };
        if *is_ascii {
            return (start + column).min(self.text.len());
        }
        let rest = self.text.get(*start..).unwrap_or("");
        start + rest.char_indices().nth(column).map_or(rest.len(), |(at, _)| at)
    }
}

/// Whether the token is more than white space or a comment.
pub(super) fn is_significant(token: &Token) -> bool {
    !matches!(token, Token::Whitespace(_) | Token::EOF)
}

/// The slices between semicolons that hold anything.
pub(super) fn split(tokens: &[TokenWithSpan]) -> impl Iterator<Item = &[TokenWithSpan]> {
    tokens.split(|t| t.token == Token::SemiColon).filter(|slice| slice.iter().any(|t| is_significant(&t.token)))
}

/// Whether `token` is this word, unquoted, in any case.
pub(super) fn is_word(token: Option<&Token>, word: &str) -> bool {
    matches!(token, Some(Token::Word(w)) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(word))
}

/// The text of a string literal.
pub(super) fn string_literal(token: &Token) -> Option<&str> {
    match token {
        Token::SingleQuotedString(text)
        | Token::DoubleQuotedString(text)
        | Token::EscapedStringLiteral(text)
        | Token::NationalStringLiteral(text)
        | Token::UnicodeStringLiteral(text)
        | Token::SingleQuotedRawStringLiteral(text)
        | Token::TripleSingleQuotedString(text) => Some(text),
        Token::DollarQuotedString(text) => Some(&text.value),
        _ => None,
    }
}
