//! `CALL incremental.<verb>(args, name => value)`: literals and names only, bound to the verb's parameters.

use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::tokenizer::{Token, Word};

use super::ast::{Call, Statement};
use super::cursor::Cursor;
use super::names::quote_name;
use super::source_text::string_literal;
use super::verbs::{Family, bind_arguments, find_verb};
use crate::error::Result;

const CALL: &str = "write CALL incremental.verb(value, …, name => value), or CALL sync.verb(…)";

/// The family whose verb is called, if the statement calls one.
pub(super) fn family(cursor: &Cursor<'_>) -> Option<Family> {
    let called = |family: &Family| cursor.at_words(&["CALL", &family.as_str().to_ascii_uppercase()]);
    Family::ALL.into_iter().find(called).filter(|_| cursor.peek_nth(2) == Some(&Token::Period))
}

pub(super) fn call(mut cursor: Cursor<'_>, family: Family) -> Result<Statement> {
    for _ in ["CALL", "the family", "."] {
        cursor.advance();
    }
    let verb = find_verb(family, &cursor.identifier("the name of a verb")?.to_lowercase())?;
    cursor.expect_token(&Token::LParen, CALL)?;
    let (mut positional, mut named) = (Vec::new(), Vec::new());
    let mut more = !cursor.token(&Token::RParen);
    while more {
        match parameter_name(&mut cursor)? {
            Some(name) => named.push((name, value(&mut cursor)?)),
            None if named.is_empty() => positional.push(value(&mut cursor)?),
            None => return Err(cursor.expected("name => value", "values without a name come before those with one")),
        }
        more = cursor.token(&Token::Comma);
        if !more && !cursor.token(&Token::RParen) {
            return Err(
                cursor.expected("',' or ')'", "write arguments as literals, names in double quotes where needed; nothing is computed")
            );
        }
    }
    cursor.end(CALL)?;
    Ok(Statement::Call(Call { verb, arguments: bind_arguments(verb, positional, named)? }))
}

fn parameter_name(cursor: &mut Cursor<'_>) -> Result<Option<String>> {
    let named = matches!(cursor.peek(), Some(Token::Word(_))) && matches!(cursor.peek_nth(1), Some(Token::RArrow | Token::Assignment));
    if !named {
        return Ok(None);
    }
    let name = cursor.identifier("the name of a parameter")?;
    cursor.advance();
    Ok(Some(name))
}

/// A literal, or a table's name, which becomes its text.
fn value(cursor: &mut Cursor<'_>) -> Result<ScalarValue> {
    let negative = cursor.token(&Token::Minus);
    if let Some(Token::Number(text, false)) = cursor.peek() {
        let text = format!("{}{text}", if negative { "-" } else { "" });
        let value = number(&text).ok_or_else(|| cursor.expected("a number of at most 38 digits", CALL))?;
        cursor.advance();
        return Ok(value);
    }
    let value = match cursor.peek() {
        _ if negative => None,
        Some(Token::HexStringLiteral(hex)) => {
            Some(ScalarValue::Binary(Some(bytes(hex).ok_or_else(|| cursor.expected("pairs of hexadecimal digits", CALL))?)))
        }
        Some(Token::Word(word)) if word.quote_style.is_none() => keyword_value(word, cursor),
        Some(token) => string_literal(token).map(ScalarValue::from),
        None => None,
    };
    if let Some(value) = value {
        cursor.advance();
        return Ok(value);
    }
    match cursor.peek() {
        Some(Token::Word(_)) if !negative => cursor.name("a value").map(|name| ScalarValue::from(quote_name(&name))),
        _ => Err(cursor.expected("a literal or a name", "write arguments as literals: 'text', 42, TRUE, NULL, DATE '2026-01-31'")),
    }
}

/// The value of `TRUE`, `NULL` and the like. Typed texts stay texts: whoever takes them casts them to its own type.
fn keyword_value(word: &Word, cursor: &mut Cursor<'_>) -> Option<ScalarValue> {
    let typed = |c: &Cursor<'_>| c.peek_nth(1).and_then(string_literal).map(ScalarValue::from);
    match word.value.to_ascii_uppercase().as_str() {
        "TRUE" => Some(ScalarValue::from(true)),
        "FALSE" => Some(ScalarValue::from(false)),
        "NULL" => Some(ScalarValue::Null),
        "DATE" | "TIME" | "TIMESTAMP" | "INTERVAL" => {
            let text = typed(cursor)?;
            cursor.advance();
            Some(text)
        }
        _ => None,
    }
}

/// Exact for whole and decimal numbers; a float only when written with an exponent.
fn number(text: &str) -> Option<ScalarValue> {
    if let Ok(n) = text.parse::<i64>() {
        return Some(ScalarValue::from(n));
    }
    if let Ok(n) = text.parse::<u64>() {
        return Some(ScalarValue::from(n));
    }
    if text.contains(['e', 'E']) {
        return text.parse::<f64>().ok().filter(|n| n.is_finite()).map(ScalarValue::from);
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = whole.trim_start_matches('-').len() + fraction.len();
    let scale = i8::try_from(fraction.len()).ok()?;
    let precision = u8::try_from(digits).ok().filter(|p| (1..=38).contains(p))?;
    format!("{whole}{fraction}").parse::<i128>().ok().map(|n| ScalarValue::Decimal128(Some(n), precision, scale))
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = hex.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
    let digits = digits.filter(|d| d.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}
