//! `REFRESH` and `EXPLAIN REFRESH`.

use datafusion::sql::sqlparser::tokenizer::Token;

use super::ast::{Refresh, RefreshTarget, Statement};
use super::cursor::Cursor;
use super::names::quote_name;
use crate::error::{Error, ErrorCode, Result};
use crate::spec::RunId;

const REFRESH: &str = "write REFRESH t, u (or ALL) [DRAFT] [FULL] [RUN 'id'] [ALLOW DELETES] [DRY RUN] [WITH SYNC]";

pub(super) fn refresh(mut cursor: Cursor<'_>) -> Result<Statement> {
    let target = target(&mut cursor)?;
    let mut refresh = Refresh { target, draft: false, full: false, run: None, allow_deletes: false, dry_run: false, with_sync: false };
    while cursor.peek().is_some() {
        let twice = if cursor.words(&["DRAFT"]) {
            std::mem::replace(&mut refresh.draft, true)
        } else if cursor.words(&["FULL"]) {
            std::mem::replace(&mut refresh.full, true)
        } else if cursor.words(&["RUN"]) {
            let id = RunId::new(cursor.string("RUN")?).map_err(|e| Error::new(ErrorCode::StatementInvalid, e.message()))?;
            refresh.run.replace(id).is_some()
        } else if cursor.words(&["ALLOW", "DELETES"]) {
            std::mem::replace(&mut refresh.allow_deletes, true)
        } else if cursor.words(&["DRY", "RUN"]) {
            std::mem::replace(&mut refresh.dry_run, true)
        } else if cursor.words(&["WITH", "SYNC"]) {
            std::mem::replace(&mut refresh.with_sync, true)
        } else {
            return Err(cursor.expected("DRAFT, FULL, RUN, ALLOW DELETES, DRY RUN or WITH SYNC", REFRESH));
        };
        if twice {
            return Err(cursor.refuse("a clause is given twice", "give each clause once"));
        }
    }
    check(&cursor, &refresh)?;
    Ok(Statement::Refresh(refresh))
}

fn target(cursor: &mut Cursor<'_>) -> Result<RefreshTarget> {
    if cursor.words(&["ALL"]) {
        if cursor.peek() == Some(&Token::Comma) {
            return Err(cursor.refuse(
                "ALL stands beside other tables",
                "ALL means every table: write it alone, or put a table of that name in double quotes",
            ));
        }
        return Ok(RefreshTarget::All);
    }
    let mut tables = Vec::new();
    loop {
        let name = cursor.name("the name of a table, or ALL")?;
        if tables.contains(&name) {
            return Err(cursor.refuse(format!("table {:?} is named twice", quote_name(&name)), "name each table once"));
        }
        tables.push(name);
        if !cursor.token(&Token::Comma) {
            break;
        }
    }
    if let [only] = tables.as_slice() {
        cursor.about(only);
    }
    Ok(RefreshTarget::Tables(tables))
}

fn check(cursor: &Cursor<'_>, refresh: &Refresh) -> Result<()> {
    let one = matches!(&refresh.target, RefreshTarget::Tables(tables) if tables.len() == 1);
    let refused = if refresh.run.is_some() && !one {
        ("RUN is given for more than one table", "a run id belongs to one table: refresh each in a statement of its own")
    } else if refresh.draft && refresh.full {
        ("DRAFT and FULL are both given", "a draft takes all rows anyway: leave FULL out")
    } else if refresh.draft && refresh.allow_deletes {
        ("DRAFT and ALLOW DELETES are both given", "a draft deletes nothing: leave ALLOW DELETES out")
    } else if refresh.dry_run && refresh.run.is_some() {
        ("DRY RUN and RUN are both given", "a dry run stores nothing and has no id: leave one out")
    } else if refresh.dry_run && refresh.draft {
        ("DRY RUN and DRAFT are both given", "a dry run counts what a published run would change: leave one out")
    } else if refresh.dry_run && refresh.full {
        ("DRY RUN and FULL are both given", "a full run takes all rows of the source: leave one out")
    } else if refresh.dry_run && refresh.with_sync {
        ("DRY RUN and WITH SYNC are both given", "a dry run stores nothing, and syncing does: leave one out")
    } else if refresh.dry_run && refresh.allow_deletes {
        ("DRY RUN and ALLOW DELETES are both given", "a dry run deletes nothing: leave ALLOW DELETES out")
    } else {
        return Ok(());
    };
    Err(cursor.refuse(refused.0, refused.1))
}

/// `EXPLAIN REFRESH t`; `None` when the statement explains something that is not ours.
pub(super) fn explain(mut cursor: Cursor<'_>) -> Result<Option<Statement>> {
    cursor.advance();
    // `EXPLAIN refresh` alone cannot be a query, so the word is ours.
    if cursor.words(&["REFRESH"]) {
        let name = cursor.name("the name of a table")?;
        cursor.about(&name);
        cursor.end("write EXPLAIN REFRESH t, with one table and nothing else")?;
        return Ok(Some(Statement::ExplainRefresh { name }));
    }
    while cursor.at_words(&["ANALYZE"]) || cursor.at_words(&["VERBOSE"]) {
        cursor.advance();
    }
    let ours = [
        &["REFRESH"][..],
        &["CREATE", "INCREMENTAL"],
        &["ALTER", "INCREMENTAL"],
        &["DROP", "INCREMENTAL"],
        &["CREATE", "OR", "ALTER", "INCREMENTAL"],
    ];
    let call = cursor.at_words(&["CALL", "INCREMENTAL"]) && cursor.peek_nth(2) == Some(&Token::Period);
    if call || ours.iter().any(|words| cursor.at_words(words)) {
        return Err(cursor.refuse(
            "this statement cannot be explained in this way",
            "EXPLAIN REFRESH t shows a run's plans; the run itself reports its counts and times in its summary",
        ));
    }
    Ok(None)
}
