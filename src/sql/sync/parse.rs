//! Parses the statements of synced tables and connections.

use datafusion::sql::sqlparser::tokenizer::Token;

use super::ast::{AlterSynced, CreateConnection, CreateSynced, SyncStatement};
use crate::error::Result;
use crate::sql::cursor::Cursor;
use crate::sql::source_text::string_literal;
use crate::sync::config::{Changes, FieldValue};

const CONNECTION: &str = "write CREATE CONNECTION [IF NOT EXISTS] name TYPE type WITH (option = value, …)";
const CREATE: &str = "write CREATE SYNCED TABLE [IF NOT EXISTS] t FROM source [LOCATION '…'] [WITH (field = value, …)]";
const ALTER: &str = "write ALTER SYNCED TABLE t [IF REVISION n] [SET (field = value, …)] [RESET (field, …)] [CONFIRM]";
const DROP: &str = "write DROP SYNCED TABLE [IF EXISTS] t [PURGE]";

/// After `CREATE CONNECTION`.
pub(in crate::sql) fn create_connection(mut cursor: Cursor<'_>) -> Result<SyncStatement> {
    let if_not_exists = cursor.words(&["IF", "NOT", "EXISTS"]);
    let name = cursor.identifier("the name of the new connection")?;
    cursor.expect_words(&["TYPE"], CONNECTION)?;
    let kind = match cursor.peek().and_then(string_literal) {
        Some(_) => cursor.string("TYPE")?,
        None => cursor.identifier("the type of the connection")?,
    };
    let options = if cursor.words(&["WITH"]) { fields(&mut cursor, "WITH")? } else { vec![] };
    cursor.end(CONNECTION)?;
    Ok(SyncStatement::CreateConnection(CreateConnection { name, if_not_exists, kind, options }))
}

/// After `DROP CONNECTION`.
pub(in crate::sql) fn drop_connection(mut cursor: Cursor<'_>) -> Result<SyncStatement> {
    let if_exists = cursor.words(&["IF", "EXISTS"]);
    let name = cursor.identifier("the name of the connection")?;
    cursor.end("write DROP CONNECTION [IF EXISTS] name")?;
    Ok(SyncStatement::DropConnection { name, if_exists })
}

/// After `CREATE SYNCED TABLE`.
pub(in crate::sql) fn create_synced(mut cursor: Cursor<'_>) -> Result<SyncStatement> {
    let if_not_exists = cursor.words(&["IF", "NOT", "EXISTS"]);
    let name = cursor.name("the name of the new table")?;
    cursor.about(&name);
    cursor.expect_words(&["FROM"], CREATE)?;
    let mut source = vec![cursor.identifier("the name of the source")?];
    while cursor.token(&Token::Period) {
        source.push(cursor.identifier("the name of the source")?);
    }
    let (mut location, mut with) = (None, None);
    while cursor.peek().is_some() {
        let twice = if cursor.words(&["LOCATION"]) {
            location.replace(cursor.string("LOCATION")?).is_some()
        } else if cursor.words(&["WITH"]) {
            with.replace(fields(&mut cursor, "WITH")?).is_some()
        } else {
            return Err(cursor.expected("LOCATION or WITH", CREATE));
        };
        if twice {
            return Err(cursor.refuse("a clause is given twice", "give each clause once"));
        }
    }
    let fields = with.unwrap_or_default();
    Ok(SyncStatement::CreateSynced(Box::new(CreateSynced { name, if_not_exists, source, location, fields })))
}

/// After `ALTER SYNCED TABLE`.
pub(in crate::sql) fn alter(mut cursor: Cursor<'_>, explain: bool) -> Result<SyncStatement> {
    let name = cursor.name("the name of the table")?;
    cursor.about(&name);
    let (mut if_revision, mut set, mut reset, mut confirm) = (None, None, None, false);
    while cursor.peek().is_some() {
        let twice = if cursor.words(&["IF", "REVISION"]) {
            if_revision.replace(cursor.number("IF REVISION")?).is_some()
        } else if cursor.words(&["SET"]) {
            set.replace(fields(&mut cursor, "SET")?).is_some()
        } else if cursor.words(&["RESET"]) {
            reset.replace(names(&mut cursor)?).is_some()
        } else if cursor.words(&["CONFIRM"]) {
            std::mem::replace(&mut confirm, true)
        } else {
            return Err(cursor.expected("SET, RESET, IF REVISION or CONFIRM", ALTER));
        };
        if twice {
            return Err(cursor.refuse("a clause is given twice", "give each clause once"));
        }
    }
    let changes = Changes { set: set.unwrap_or_default(), reset: reset.unwrap_or_default() };
    if changes.set.is_empty() && changes.reset.is_empty() {
        return Err(cursor.refuse("nothing is changed", ALTER));
    }
    Ok(SyncStatement::AlterSynced(Box::new(AlterSynced { name, explain, if_revision, changes, confirm })))
}

/// After `DROP SYNCED TABLE`.
pub(in crate::sql) fn drop_synced(mut cursor: Cursor<'_>) -> Result<SyncStatement> {
    let if_exists = cursor.words(&["IF", "EXISTS"]);
    let name = cursor.name("the name of the table")?;
    cursor.about(&name);
    let purge = cursor.words(&["PURGE"]);
    cursor.end(DROP)?;
    Ok(SyncStatement::DropSynced { name, if_exists, purge })
}

/// `(name = value, …)`.
fn fields(cursor: &mut Cursor<'_>, clause: &str) -> Result<Vec<(String, FieldValue)>> {
    let form = format!("write {clause} (name = value, …)");
    cursor.expect_token(&Token::LParen, &form)?;
    let mut fields = vec![];
    loop {
        let name = field_name(cursor)?;
        cursor.expect_token(&Token::Eq, &form)?;
        fields.push((name, value(cursor)?));
        if cursor.token(&Token::RParen) {
            return Ok(fields);
        }
        if !cursor.token(&Token::Comma) {
            return Err(cursor.expected("',' or ')'", &form));
        }
    }
}

fn names(cursor: &mut Cursor<'_>) -> Result<Vec<String>> {
    let form = "write RESET (field, …)";
    cursor.expect_token(&Token::LParen, form)?;
    let mut names = vec![];
    loop {
        names.push(field_name(cursor)?);
        if cursor.token(&Token::RParen) {
            return Ok(names);
        }
        cursor.expect_token(&Token::Comma, form)?;
    }
}

fn field_name(cursor: &mut Cursor<'_>) -> Result<String> {
    let name = match cursor.peek().and_then(string_literal) {
        Some(_) => cursor.string("a field")?,
        None => cursor.identifier("the name of a field")?,
    };
    Ok(name.to_ascii_lowercase())
}

/// A text, a number, a word, or a list of texts in parentheses. A name outside quotes is folded as a column is.
fn value(cursor: &mut Cursor<'_>) -> Result<FieldValue> {
    if !cursor.token(&Token::LParen) {
        return single(cursor);
    }
    let form = "write a list as ('a', 'b')";
    let mut list = vec![];
    if cursor.token(&Token::RParen) {
        return Ok(FieldValue::List(list));
    }
    loop {
        let text = match cursor.peek().and_then(string_literal) {
            Some(_) => cursor.string("a list")?,
            None => cursor.identifier("a text in single quotes")?,
        };
        list.push(text);
        if cursor.token(&Token::RParen) {
            return Ok(FieldValue::List(list));
        }
        cursor.expect_token(&Token::Comma, form)?;
    }
}

fn single(cursor: &mut Cursor<'_>) -> Result<FieldValue> {
    let sign = if cursor.token(&Token::Minus) { "-" } else { "" };
    let value = match cursor.peek() {
        Some(Token::Number(text, _)) if !sign.is_empty() => FieldValue::Text(format!("{sign}{text}")),
        _ if !sign.is_empty() => return Err(cursor.expected("a number behind '-'", "write -1, or a text in single quotes")),
        Some(Token::Word(word)) if word.quote_style.is_some() => FieldValue::Text(word.value.clone()),
        Some(Token::Number(text, _)) => FieldValue::Text(text.clone()),
        Some(Token::Word(word)) if word.quote_style.is_none() => match word.value.to_ascii_uppercase().as_str() {
            "NULL" => FieldValue::Null,
            "TRUE" => FieldValue::Text("true".into()),
            "FALSE" => FieldValue::Text("false".into()),
            _ => FieldValue::Text(word.value.to_lowercase()),
        },
        Some(token) if string_literal(token).is_some() => FieldValue::Text(string_literal(token).unwrap_or_default().to_string()),
        _ => return Err(cursor.expected("a value", "write a text in single quotes, a number, TRUE, FALSE, NULL or a list ('a', 'b')")),
    };
    cursor.advance();
    Ok(value)
}
