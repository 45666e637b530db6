//! A position in one statement's tokens, and the pieces that our statements are made of.

use std::fmt::Display;

use datafusion::common::TableReference;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::names::{fold, quote_name, reference, too_many_parts};
use super::source_text::{SourceText, is_significant, is_word, string_literal};
use crate::error::{Error, ErrorCode, Result};

/// Reads the significant tokens of one statement from left to right.
pub(super) struct Cursor<'a> {
    source: &'a SourceText<'a>,
    tokens: &'a [TokenWithSpan],
    at: usize,
    normalize: bool,
    subject: String,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(source: &'a SourceText<'a>, tokens: &'a [TokenWithSpan], normalize: bool) -> Self {
        let mut cursor = Self { source, tokens, at: 0, normalize, subject: "the statement".into() };
        cursor.skip();
        cursor
    }

    fn skip(&mut self) {
        while self.tokens.get(self.at).is_some_and(|t| !is_significant(&t.token)) {
            self.at += 1;
        }
    }

    /// The next token.
    pub(super) fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.at).map(|t| &t.token)
    }

    /// The significant token `n` places after the next one.
    pub(super) fn peek_nth(&self, n: usize) -> Option<&'a Token> {
        let rest = self.tokens.get(self.at..).unwrap_or(&[]);
        rest.iter().map(|t| &t.token).filter(|t| is_significant(t)).nth(n)
    }

    pub(super) fn advance(&mut self) -> Option<&'a Token> {
        let token = self.peek();
        self.at += 1;
        self.skip();
        token
    }

    /// The tokens not yet read.
    pub(super) fn rest(&self) -> &'a [TokenWithSpan] {
        self.tokens.get(self.at..).unwrap_or(&[])
    }

    /// Their text, byte for byte.
    pub(super) fn rest_text(&self) -> &'a str {
        self.source.slice(self.rest())
    }

    /// Whether all words stand here, in this order; nothing is read.
    pub(super) fn at_words(&self, words: &[&str]) -> bool {
        words.iter().enumerate().all(|(n, word)| is_word(self.peek_nth(n), word))
    }

    /// Reads the words if all of them stand here.
    pub(super) fn words(&mut self, words: &[&str]) -> bool {
        let found = self.at_words(words);
        if found {
            words.iter().for_each(|_| {
                self.advance();
            });
        }
        found
    }

    pub(super) fn token(&mut self, token: &Token) -> bool {
        let found = self.peek() == Some(token);
        if found {
            self.advance();
        }
        found
    }

    pub(super) fn expect_words(&mut self, words: &[&str], remedy: &str) -> Result<()> {
        if self.words(words) { Ok(()) } else { Err(self.expected(&words.join(" "), remedy)) }
    }

    pub(super) fn expect_token(&mut self, token: &Token, remedy: &str) -> Result<()> {
        if self.token(token) { Ok(()) } else { Err(self.expected(&format!("{token}"), remedy)) }
    }

    /// What errors from here on are about.
    pub(super) fn about(&mut self, name: &TableReference) {
        self.subject = format!("table {:?}", quote_name(name));
    }

    /// A table's name of one to three parts.
    pub(super) fn name(&mut self, what: &str) -> Result<TableReference> {
        let start = self.at;
        let mut parts = vec![self.identifier(what)?];
        while self.token(&Token::Period) {
            parts.push(self.identifier(what)?);
        }
        let text = self.source.slice(self.tokens.get(start..self.at).unwrap_or(&[]));
        reference(parts).ok_or_else(|| too_many_parts(text))
    }

    /// One identifier, folded unless quoted.
    pub(super) fn identifier(&mut self, what: &str) -> Result<String> {
        match self.peek() {
            Some(Token::Word(word)) if !word.value.is_empty() => {
                let name = fold(&word.value, word.quote_style.is_some(), self.normalize);
                self.advance();
                Ok(name)
            }
            _ => Err(self.expected(what, "put a name with special characters in double quotes")),
        }
    }

    /// `(*)`, the one element `*`, or `(a, "B", …)`.
    pub(super) fn tracked(&mut self) -> Result<Vec<String>> {
        let all = [Token::LParen, Token::Mul, Token::RParen];
        if (0..all.len()).all(|n| self.peek_nth(n) == all.get(n)) {
            for _ in &all {
                self.advance();
            }
            return Ok(vec!["*".to_string()]);
        }
        self.columns("TRACK")
    }

    /// `(a, "B", …)`.
    pub(super) fn columns(&mut self, clause: &str) -> Result<Vec<String>> {
        let remedy = format!("write {clause} (column, …)");
        self.expect_token(&Token::LParen, &remedy)?;
        let mut columns = Vec::new();
        if self.token(&Token::RParen) {
            return Ok(columns);
        }
        loop {
            let column = self.identifier("a column")?;
            columns.push(column);
            if self.token(&Token::RParen) {
                return Ok(columns);
            }
            if !self.token(&Token::Comma) {
                return Err(self.expected("',' or ')'", &format!("{remedy}; a column is named, not computed")));
            }
        }
    }

    /// A string literal.
    pub(super) fn string(&mut self, clause: &str) -> Result<String> {
        match self.peek().and_then(string_literal) {
            Some(text) => {
                self.advance();
                Ok(text.to_string())
            }
            None => Err(self.expected("a text in single quotes", &format!("write {clause} '…'"))),
        }
    }

    /// A whole number from 1.
    pub(super) fn number(&mut self, clause: &str) -> Result<u64> {
        match self.peek() {
            Some(Token::Number(text, false)) if text.parse::<u64>().is_ok_and(|n| n > 0) => {
                self.advance();
                Ok(text.parse().unwrap_or_default())
            }
            _ => Err(self.expected("a whole number from 1", &format!("write {clause} 3"))),
        }
    }

    /// Nothing may follow.
    pub(super) fn end(&self, remedy: &str) -> Result<()> {
        if self.peek().is_none() { Ok(()) } else { Err(self.expected("the end of the statement", remedy)) }
    }

    /// An error at this place.
    pub(super) fn expected(&self, what: &str, remedy: &str) -> Error {
        let place = match self.tokens.get(self.at) {
            Some(t) if matches!(t.token, Token::Placeholder(_)) => {
                return self.refuse(
                    format!(
                        "the placeholder {} stands at line {}, column {}, where a literal is needed",
                        t.token, t.span.start.line, t.span.start.column
                    ),
                    "this statement cannot be prepared: write the value into its text",
                );
            }
            // A literal that stands where a secret's reference belongs may be the secret.
            Some(t) => {
                let shown = if self.names_connection() && string_literal(&t.token).is_some() {
                    "a text".into()
                } else {
                    format!("{:?}", t.token.to_string())
                };
                format!("found {shown} at line {}, column {}", t.span.start.line, t.span.start.column)
            }
            None => "the statement ends".into(),
        };
        self.refuse(format!("expected {what}, but {place}"), remedy)
    }

    fn names_connection(&self) -> bool {
        let is_word = |(at, wanted): (usize, &str)| match self.tokens.get(at).map(|t| &t.token) {
            Some(Token::Word(word)) => word.value.eq_ignore_ascii_case(wanted),
            _ => false,
        };
        is_word((0, "CREATE")) && is_word((1, "CONNECTION"))
    }

    /// An error about the statement's subject.
    pub(super) fn refuse(&self, what: impl Display, remedy: &str) -> Error {
        Error::new(ErrorCode::StatementInvalid, format!("{}: {what}. Remedy: {remedy}", self.subject))
    }
}
