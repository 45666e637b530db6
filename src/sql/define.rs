//! `CREATE`, `ALTER` and `DROP INCREMENTAL TABLE`. Clauses may come in any order, each once; `AS <query>` comes last.

use datafusion::common::TableReference;
use datafusion::sql::sqlparser::tokenizer::Token;

use super::as_of;
use super::ast::{AlterIncremental, CreateIncremental, HandlerText, IncrementalChange, Statement};
use super::cursor::Cursor;
use super::names::quote_name;
use super::parser::Settings;
use super::source_text::string_literal;
use crate::error::{Error, ErrorCode, Result};

const CREATE: &str = "write CREATE INCREMENTAL TABLE t FROM source KEY (column, …) [TRACK (column, …)] [LOCATION '…'] [WITH (option = value, …)] AS SELECT … (or HANDLER 'name')";
const ALTER: &str = "write ALTER INCREMENTAL TABLE t [IF REVISION n] followed by [DRAFT] [KEY (…)] [TRACK (…)] [SET (…)] [RESET (…)] [ACCEPT SCHEMA] [AS SELECT … | HANDLER '…'], or by ACTIVATE [REVISION n]";
const DROP: &str = "write DROP INCREMENTAL TABLE [IF EXISTS] t [PURGE]";

/// The clauses that CREATE and ALTER share.
#[derive(Default)]
struct Clauses {
    key: Option<Vec<String>>,
    track: Option<Vec<String>>,
    location: Option<String>,
    with: Option<Vec<(String, String)>>,
    set: Option<Vec<(String, String)>>,
    reset: Option<Vec<String>>,
    draft: bool,
    accept_schema: bool,
    handler: Option<HandlerText>,
}

pub(super) fn create(settings: &Settings, mut cursor: Cursor<'_>, or_alter: bool) -> Result<Statement> {
    cursor.expect_words(&["TABLE"], CREATE)?;
    let if_not_exists = cursor.words(&["IF", "NOT", "EXISTS"]);
    let name = cursor.name("the name of the new table")?;
    cursor.about(&name);
    if or_alter && if_not_exists {
        return Err(cursor.refuse(
            "OR ALTER and IF NOT EXISTS contradict each other",
            "OR ALTER changes an existing table, IF NOT EXISTS leaves it alone: keep one",
        ));
    }
    let source = source(&mut cursor)?;
    let found = clauses(settings, &mut cursor, &["KEY", "TRACK", "LOCATION", "WITH", "HANDLER", "AS"], CREATE)?;
    let Some(key) = found.key else { return Err(cursor.refuse("KEY is missing", "name the columns that identify a row: KEY (id)")) };
    let Some(handler) = found.handler else { return Err(cursor.expected("AS or HANDLER", CREATE)) };
    let options = found.with.unwrap_or_default();
    let location = found.location;
    Ok(Statement::CreateIncremental(Box::new(CreateIncremental {
        name,
        or_alter,
        if_not_exists,
        source,
        key,
        track: found.track,
        location,
        options,
        handler,
    })))
}

fn source(cursor: &mut Cursor<'_>) -> Result<TableReference> {
    cursor.expect_words(&["FROM"], CREATE)?;
    match cursor.peek() {
        Some(Token::LParen) => Err(cursor.refuse("the source is a query", "name it first: CREATE VIEW v AS SELECT …, then FROM v")),
        Some(token) if string_literal(token).is_some() => {
            Err(cursor.refuse("the source is a file", "name it first: CREATE EXTERNAL TABLE s STORED AS … LOCATION '…', then FROM s"))
        }
        _ => {
            let name = cursor.name("the name of the source")?;
            match cursor.peek() {
                Some(Token::LParen) => Err(cursor.refuse(
                    format!("the source {:?} is called like a function", quote_name(&name)),
                    "name it first: CREATE VIEW v AS SELECT * FROM …, then FROM v",
                )),
                _ if cursor.at_words(&["FOR"]) || cursor.at_words(&["VERSION", "AS"]) || cursor.at_words(&["TIMESTAMP", "AS"]) => {
                    Err(cursor.refuse("the source has a version clause", "a source is always read as it is now; leave the clause out"))
                }
                _ => Ok(name),
            }
        }
    }
}

pub(super) fn alter(settings: &Settings, mut cursor: Cursor<'_>) -> Result<Statement> {
    cursor.expect_words(&["TABLE"], ALTER)?;
    let name = cursor.name("the name of the table")?;
    cursor.about(&name);
    let if_revision = if cursor.words(&["IF", "REVISION"]) { Some(cursor.number("IF REVISION")?) } else { None };
    let change = if cursor.words(&["ACTIVATE"]) { activate(&mut cursor)? } else { define(settings, &mut cursor)? };
    Ok(Statement::AlterIncremental(Box::new(AlterIncremental { name, if_revision, change })))
}

fn activate(cursor: &mut Cursor<'_>) -> Result<IncrementalChange> {
    let revision = if cursor.words(&["REVISION"]) { Some(cursor.number("ACTIVATE REVISION")?) } else { None };
    cursor.end("ACTIVATE [REVISION n] stands alone: change the definition in a statement of its own")?;
    Ok(IncrementalChange::Activate { revision })
}

fn define(settings: &Settings, cursor: &mut Cursor<'_>) -> Result<IncrementalChange> {
    for (clause, remedy) in [
        ("FROM", "the source of a table does not change: DROP INCREMENTAL TABLE, then create it anew"),
        ("LOCATION", "the location of a table does not change: create another table there"),
        ("WITH", "options of an existing table are changed with SET (option = value, …)"),
    ] {
        if cursor.at_words(&[clause]) {
            return Err(cursor.refuse(format!("ALTER has no {clause}"), remedy));
        }
    }
    if cursor.peek().is_none() {
        return Err(cursor.expected("what to change", ALTER));
    }
    let found = clauses(settings, cursor, &["DRAFT", "KEY", "TRACK", "SET", "RESET", "ACCEPT", "HANDLER", "AS"], ALTER)?;
    let (set, reset) = (found.set.unwrap_or_default(), found.reset.unwrap_or_default());
    if let Some((name, _)) = set.iter().find(|(name, _)| reset.iter().any(|r| r.eq_ignore_ascii_case(name))) {
        return Err(cursor.refuse(format!("option {name:?} is both SET and RESET"), "keep one of the two"));
    }
    let unchanged = found.key.is_none() && found.track.is_none() && found.handler.is_none() && set.is_empty() && reset.is_empty();
    if unchanged && !found.accept_schema {
        return Err(cursor.refuse("DRAFT alone changes nothing", ALTER));
    }
    Ok(IncrementalChange::Define {
        draft: found.draft,
        key: found.key,
        track: found.track,
        set,
        reset,
        accept_schema: found.accept_schema,
        handler: found.handler,
    })
}

pub(super) fn drop_table(mut cursor: Cursor<'_>) -> Result<Statement> {
    cursor.expect_words(&["TABLE"], DROP)?;
    let if_exists = cursor.words(&["IF", "EXISTS"]);
    let name = cursor.name("the name of the table")?;
    cursor.about(&name);
    if cursor.peek() == Some(&Token::Comma) {
        return Err(cursor.refuse("DROP names more than one table", "drop each in a statement of its own"));
    }
    if cursor.at_words(&["CASCADE"]) {
        return Err(cursor.refuse("DROP has no CASCADE", "drop the tables that read this one first"));
    }
    let purge = cursor.words(&["PURGE"]);
    cursor.end(DROP)?;
    Ok(Statement::DropIncremental { name, if_exists, purge })
}

/// Reads clauses until the statement ends. `allowed` are the first words of those that the statement has.
fn clauses(settings: &Settings, cursor: &mut Cursor<'_>, allowed: &[&'static str], form: &'static str) -> Result<Clauses> {
    let mut found = Clauses::default();
    let mut seen: Vec<&'static str> = Vec::new();
    while cursor.peek().is_some() {
        let Some(clause) = allowed.iter().copied().find(|word| cursor.at_words(&[word])) else {
            return Err(cursor.expected(&format!("one of {}", allowed.join(", ")), form));
        };
        if seen.contains(&clause) {
            return Err(cursor.refuse(format!("{clause} is given twice"), "give each clause once"));
        }
        if matches!(clause, "AS" | "HANDLER") && found.handler.is_some() {
            return Err(cursor.refuse("AS and HANDLER are both given", "a table has one handler: keep one of the two"));
        }
        seen.push(clause);
        cursor.advance();
        clause_body(settings, cursor, clause, &mut found)?;
    }
    Ok(found)
}

fn clause_body(settings: &Settings, cursor: &mut Cursor<'_>, clause: &'static str, found: &mut Clauses) -> Result<()> {
    match clause {
        "KEY" => {
            let key = cursor.columns("KEY")?;
            if key.is_empty() {
                return Err(cursor.refuse("KEY names no column", "name the columns that identify a row: KEY (id)"));
            }
            found.key = Some(key);
        }
        "TRACK" => found.track = Some(cursor.tracked()?),
        "LOCATION" => found.location = Some(cursor.string("LOCATION")?),
        "WITH" => found.with = Some(options(cursor, "WITH")?),
        "SET" => found.set = Some(options(cursor, "SET")?),
        "RESET" => found.reset = Some(option_names(cursor)?),
        "DRAFT" => found.draft = true,
        "ACCEPT" => {
            cursor.expect_words(&["SCHEMA"], "write ACCEPT SCHEMA")?;
            found.accept_schema = true;
        }
        "HANDLER" => found.handler = Some(HandlerText::Registered(cursor.string("HANDLER")?)),
        _ => found.handler = Some(query(settings, cursor)?),
    }
    Ok(())
}

/// The rest of the statement as the handler's query.
fn query(settings: &Settings, cursor: &mut Cursor<'_>) -> Result<HandlerText> {
    if cursor.peek().is_none() {
        return Err(cursor.expected("a query", "write AS SELECT … FROM input"));
    }
    let (tokens, text) = (cursor.rest(), cursor.rest_text());
    let clauses = as_of::rewrite_tokens(tokens, false).map(|found| !found.clauses.is_empty());
    if clauses.unwrap_or(true) {
        return Err(Error::new(
            ErrorCode::HandlerRefused,
            cursor
                .refuse("the handler's query has a version clause", "a handler reads only the relation input, which has no versions")
                .message(),
        ));
    }
    settings.check_query(tokens).map_err(|e| {
        cursor.refuse(format!("the handler: {}", without_remedy(e.message())), "write AS SELECT … FROM input as the last clause")
    })?;
    while cursor.advance().is_some() {}
    Ok(HandlerText::Sql(text.to_string()))
}

fn without_remedy(message: &str) -> &str {
    message.split(". Remedy:").next().unwrap_or(message)
}

fn options(cursor: &mut Cursor<'_>, clause: &str) -> Result<Vec<(String, String)>> {
    let form = format!("write {clause} (option = value, …)");
    cursor.expect_token(&Token::LParen, &form)?;
    let mut options = Vec::new();
    loop {
        let name = option_name(cursor)?;
        cursor.expect_token(&Token::Eq, &form)?;
        options.push((name, option_value(cursor)?));
        if cursor.token(&Token::RParen) {
            return Ok(options);
        }
        if !cursor.token(&Token::Comma) {
            return Err(cursor.expected("',' or ')'", &format!("{form}, with values of more than one word in single quotes")));
        }
    }
}

fn option_names(cursor: &mut Cursor<'_>) -> Result<Vec<String>> {
    cursor.expect_token(&Token::LParen, "write RESET (option, …)")?;
    let mut names = Vec::new();
    loop {
        names.push(option_name(cursor)?);
        if cursor.token(&Token::RParen) {
            return Ok(names);
        }
        cursor.expect_token(&Token::Comma, "write RESET (option, …)")?;
    }
}

/// `name`, `incremental.name` or the same in quotes.
fn option_name(cursor: &mut Cursor<'_>) -> Result<String> {
    if let Some(text) = cursor.peek().and_then(string_literal) {
        cursor.advance();
        return Ok(text.to_string());
    }
    let mut name = cursor.identifier("the name of an option")?;
    while cursor.token(&Token::Period) {
        name = format!("{name}.{}", cursor.identifier("the name of an option")?);
    }
    Ok(name)
}

/// A text, a number with or without sign, or one word (`TRUE`, `FALSE`, `NULL`, `auto`).
fn option_value(cursor: &mut Cursor<'_>) -> Result<String> {
    let sign = if cursor.token(&Token::Minus) { "-" } else { "" };
    let value = match cursor.peek() {
        Some(Token::Number(text, _)) => format!("{sign}{text}"),
        Some(Token::Word(word)) if sign.is_empty() && word.quote_style.is_none() => match word.value.to_ascii_uppercase().as_str() {
            "NULL" => "NULL".to_string(),
            "TRUE" => "true".to_string(),
            "FALSE" => "false".to_string(),
            _ => word.value.clone(),
        },
        Some(token) if sign.is_empty() && string_literal(token).is_some() => string_literal(token).unwrap_or_default().to_string(),
        _ => return Err(cursor.expected("a value", "write a text in single quotes, a number, TRUE, FALSE or NULL")),
    };
    cursor.advance();
    Ok(value)
}
