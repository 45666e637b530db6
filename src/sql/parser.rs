//! Splits a script, tells our statements from DataFusion's, and parses each.

use datafusion::config::SqlParserOptions;
use datafusion::error::DataFusionError;
use datafusion::sql::parser::{CopyToSource, DFParser, DFParserBuilder, Statement as DataFusionStatement};
use datafusion::sql::sqlparser::dialect::{Dialect, dialect_from_str};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::as_of::{self, VersionReference};
use super::ast::{ParsedStatement, Statement};
use super::cursor::Cursor;
use super::source_text::{SourceText, split};
use super::sync::{self, SyncStatement};
use super::{call, define, refresh};
use crate::env::on_large_stack;
use crate::error::{Error, ErrorCode, Result};
use crate::handler::nesting;

const FORMS: &str = "this crate's statements are CREATE | ALTER | DROP INCREMENTAL TABLE, REFRESH, EXPLAIN REFRESH, CREATE | DROP CONNECTION, CREATE | ALTER | DROP SYNCED TABLE, SHOW CREATE TABLE, CALL incremental.<verb>(…) and CALL sync.<verb>(…)";

/// Deeper expressions are refused.
const MAX_DEPTH: usize = 2_000;

/// The session's parser settings.
pub(super) struct Settings {
    pub(super) dialect: Box<dyn Dialect>,
    pub(super) recursion_limit: usize,
    pub(super) normalize: bool,
}

/// Parses a script: statements separated by `;`, each ours or DataFusion's. `options` are the session's
/// (`state.config().options().sql_parser`). Nothing is planned.
///
/// # Errors
/// `STATEMENT_INVALID` when any statement cannot be understood; none is returned then.
pub fn parse(sql: &str, options: &SqlParserOptions) -> Result<Vec<ParsedStatement>> {
    // Every token has a character at least.
    if nesting::is_large(sql.len()) { on_large_stack(|| parse_here(sql, options))? } else { parse_here(sql, options) }
}

fn parse_here(sql: &str, options: &SqlParserOptions) -> Result<Vec<ParsedStatement>> {
    let settings = Settings::new(options)?;
    let source = SourceText::new(sql);
    let tokens = source.tokens(settings.dialect.as_ref())?;
    split(&tokens).map(|slice| settings.statement(&source, slice)).collect()
}

impl Settings {
    fn new(options: &SqlParserOptions) -> Result<Self> {
        let name = options.dialect.to_string();
        let dialect = dialect_from_str(&name).ok_or_else(|| {
            Error::new(
                ErrorCode::StatementInvalid,
                format!("the SQL dialect {name:?} is not known. Remedy: SET datafusion.sql_parser.dialect = 'generic'"),
            )
        })?;
        Ok(Self {
            dialect,
            recursion_limit: options.recursion_limit.get().min(nesting::MAX_RECURSION),
            normalize: options.enable_ident_normalization,
        })
    }

    fn statement(&self, source: &SourceText<'_>, tokens: &[TokenWithSpan]) -> Result<ParsedStatement> {
        let text = source.slice(tokens).to_string();
        if nesting::is_over_long(tokens.iter().map(|t| &t.token)) {
            return Err(over_deep());
        }
        let cursor = Cursor::new(source, tokens, self.normalize);
        if let Some(statement) = self.ours(cursor, tokens)? {
            return Ok(ParsedStatement { statement, text, versions: Vec::new() });
        }
        let (statement, versions) = self.delegate(tokens)?;
        Ok(ParsedStatement { statement: Statement::Other(Box::new(statement)), text, versions })
    }

    /// The statement, if its first words are those of one of ours.
    fn ours(&self, mut cursor: Cursor<'_>, tokens: &[TokenWithSpan]) -> Result<Option<Statement>> {
        if cursor.words(&["CREATE", "INCREMENTAL"]) {
            return define::create(self, cursor, false).map(Some);
        }
        if cursor.words(&["CREATE", "OR", "ALTER", "INCREMENTAL"]) {
            return define::create(self, cursor, true).map(Some);
        }
        if cursor.at_words(&["CREATE", "OR", "REPLACE", "INCREMENTAL"]) {
            return Err(cursor.refuse(
                "an incremental table is not replaced",
                "write CREATE OR ALTER INCREMENTAL TABLE, which keeps the data and its history",
            ));
        }
        if cursor.words(&["ALTER", "INCREMENTAL"]) {
            return define::alter(self, cursor).map(Some);
        }
        if cursor.words(&["DROP", "INCREMENTAL"]) {
            return define::drop_table(cursor).map(Some);
        }
        // `refresh` is no statement of DataFusion's: nothing else can start with it.
        if cursor.words(&["REFRESH"]) {
            return refresh::refresh(cursor).map(Some);
        }
        if cursor.words(&["EXPLAIN", "ALTER", "SYNCED", "TABLE"]) {
            return sync::alter(cursor, true).map(|statement| Some(Statement::Sync(statement)));
        }
        if cursor.at_words(&["EXPLAIN"]) {
            return refresh::explain(cursor);
        }
        if cursor.words(&["SHOW", "CREATE", "TABLE"]) {
            let name = cursor.name("the name of a table")?;
            cursor.end("write SHOW CREATE TABLE t")?;
            return Ok(Some(Statement::ShowCreate { name, other: Box::new(self.delegate(tokens)?.0) }));
        }
        match call::family(&cursor) {
            Some(family) => call::call(cursor, family).map(Some),
            None => Ok(synced(cursor)?.map(Statement::Sync)),
        }
    }

    fn delegate(&self, tokens: &[TokenWithSpan]) -> Result<(DataFusionStatement, Vec<VersionReference>)> {
        let rewritten = as_of::rewrite_tokens(tokens, self.normalize)?;
        let mut parser = self.parser(rewritten.tokens.clone())?;
        let mut statement = parser.parse_statement().map_err(unreadable)?;
        if parser.parser.peek_token_ref().token != Token::EOF {
            let found = parser.parser.peek_token();
            let (line, column) = (found.span.start.line, found.span.start.column);
            return Err(Error::new(
                ErrorCode::StatementInvalid,
                format!(
                    "the statement ends before {:?} at line {line}, column {column}. Remedy: separate statements by ';'; {FORMS}",
                    found.token.to_string()
                ),
            ));
        }
        if is_over_deep(&statement) {
            return Err(over_deep());
        }
        let versions = as_of::rewrite_statement(&mut statement, rewritten.clauses, self.normalize)?;
        Ok((statement, versions))
    }

    /// Checks that the tokens are one query.
    pub(super) fn check_query(&self, tokens: &[TokenWithSpan]) -> Result<()> {
        let mut parser = self.parser(tokens.to_vec())?;
        parser.parser.parse_query().map_err(|e| unreadable(e.into()))?;
        parser.parser.expect_token(&Token::EOF).map(|_| ()).map_err(|e| unreadable(e.into()))
    }

    fn parser(&self, tokens: Vec<TokenWithSpan>) -> Result<DFParser<'_>> {
        DFParserBuilder::new(tokens)
            .with_dialect(self.dialect.as_ref())
            .with_recursion_limit(self.recursion_limit)
            .build()
            .map_err(unreadable)
    }
}

/// Whether the tree is deeper than the stacks of those that walk it, and take it apart, can be trusted with.
fn is_over_deep(statement: &DataFusionStatement) -> bool {
    match statement {
        DataFusionStatement::Statement(inner) => nesting::is_deeper(inner.as_ref(), MAX_DEPTH),
        DataFusionStatement::CopyTo(copy) => match &copy.source {
            CopyToSource::Query(query) => nesting::is_deeper(query.as_ref(), MAX_DEPTH),
            CopyToSource::Relation(_) => false,
        },
        DataFusionStatement::Explain(explain) => is_over_deep(&explain.statement),
        DataFusionStatement::CreateExternalTable(_) | DataFusionStatement::Reset(_) => false,
    }
}

fn over_deep() -> Error {
    Error::new(
        ErrorCode::StatementInvalid,
        format!(
            "the statement nests deeper than this parser goes: {MAX_DEPTH} expressions, or thousands of operators or set operations in one chain. \
             Remedy: write IN (…) for a chain of OR, split the query with views, or insert in several statements"
        ),
    )
}

/// A statement of synced tables, if the first words are those of one.
fn synced(mut cursor: Cursor<'_>) -> Result<Option<SyncStatement>> {
    if cursor.words(&["CREATE", "CONNECTION"]) {
        return sync::create_connection(cursor).map(Some);
    }
    if cursor.words(&["DROP", "CONNECTION"]) {
        return sync::drop_connection(cursor).map(Some);
    }
    if cursor.words(&["CREATE", "SYNCED", "TABLE"]) {
        return sync::create_synced(cursor).map(Some);
    }
    if cursor.words(&["ALTER", "SYNCED", "TABLE"]) {
        return sync::alter(cursor, false).map(Some);
    }
    if cursor.words(&["DROP", "SYNCED", "TABLE"]) {
        return sync::drop_synced(cursor).map(Some);
    }
    Ok(None)
}

fn unreadable(error: DataFusionError) -> Error {
    let text = match error.find_root() {
        DataFusionError::SQL(error, _) => error.to_string(),
        other => other.strip_backtrace(),
    };
    Error::new(
        ErrorCode::StatementInvalid,
        format!("the statement cannot be understood: {}. Remedy: check the text near that place; {FORMS}", text.trim_end_matches('.')),
    )
}

#[cfg(test)]
mod tests {
    use datafusion::common::TableReference;
    use datafusion::scalar::ScalarValue;

    use super::super::ast::{AlterIncremental, CreateIncremental, HandlerText, IncrementalChange, Refresh, RefreshTarget};
    use super::*;

    fn all(sql: &str) -> Vec<ParsedStatement> {
        parse(sql, &SqlParserOptions::default()).unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    fn one(sql: &str) -> Statement {
        let mut parsed = all(sql);
        assert_eq!(parsed.len(), 1, "{sql}");
        parsed.remove(0).statement
    }

    fn create(sql: &str) -> CreateIncremental {
        match one(sql) {
            Statement::CreateIncremental(create) => *create,
            other => panic!("{sql}: {other:?}"),
        }
    }

    fn alter(sql: &str) -> AlterIncremental {
        match one(sql) {
            Statement::AlterIncremental(alter) => *alter,
            other => panic!("{sql}: {other:?}"),
        }
    }

    fn refresh(sql: &str) -> Refresh {
        match one(sql) {
            Statement::Refresh(refresh) => refresh,
            other => panic!("{sql}: {other:?}"),
        }
    }

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| n.to_string()).collect()
    }

    #[test]
    fn create_with_every_clause() {
        let sql = "create or alter incremental table Cat.s.\"My.T\" from \"Source T\" key (ID, \"Two Words\") track (name, \"select\")
            location 's3://b/ö' with (max_deleted_fraction = NULL, verify = 'always', \"capture_retries\" = 3, incremental = FALSE, incremental.compaction = off)
            as SELECT id, ';' AS x /* ; AS */ FROM input -- tail";
        let parsed = create(sql);
        assert_eq!(parsed.name, TableReference::full("cat", "s", "My.T"));
        assert_eq!((parsed.or_alter, parsed.if_not_exists), (true, false));
        assert_eq!(parsed.source, TableReference::bare("Source T"));
        assert_eq!(parsed.key, strings(&["id", "Two Words"]));
        assert_eq!(parsed.track, Some(strings(&["name", "select"])));
        assert_eq!(parsed.location.as_deref(), Some("s3://b/ö"));
        let options = [
            ("max_deleted_fraction", "NULL"),
            ("verify", "always"),
            ("capture_retries", "3"),
            ("incremental", "false"),
            ("incremental.compaction", "off"),
        ];
        assert_eq!(parsed.options, options.map(|(n, v)| (n.to_string(), v.to_string())));
        assert_eq!(parsed.handler, HandlerText::Sql("SELECT id, ';' AS x /* ; AS */ FROM input".into()));
    }

    #[test]
    fn create_in_short() {
        let parsed = create("CREATE INCREMENTAL TABLE IF NOT EXISTS key FROM track KEY (refresh) HANDLER 'it''s' TRACK ()");
        assert_eq!(parsed.name, TableReference::bare("key"));
        assert!(parsed.if_not_exists);
        assert_eq!((parsed.handler, parsed.track), (HandlerText::Registered("it's".into()), Some(vec![])));
    }

    #[test]
    fn the_handler_is_recovered_byte_for_byte() {
        for handler in [
            "SELECT id FROM input",
            "WITH x AS (SELECT 1) SELECT * FROM x",
            "(SELECT id, \"Größe\"\r\n\t, '日本;語''', $$;$$ FROM input)",
            "SELECT /* ünï; */ id -- é ;\n  , 'a\nb' FROM input WHERE x = 1",
        ] {
            let sql =
                format!("/* ää */ SELECT 'ß';\n CREATE INCREMENTAL TABLE t FROM s /* 😀 */ KEY (id) AS {handler} -- end\n ; SELECT 2");
            let parsed = all(&sql);
            let Some(Statement::CreateIncremental(create)) = parsed.get(1).map(|s| s.statement.clone()) else { panic!("{sql}") };
            assert_eq!(create.handler, HandlerText::Sql(handler.to_string()));
        }
    }

    #[test]
    fn each_statement_has_its_own_text() {
        let parsed = all(";; SELECT ';' -- ;\n ;REFRESH t /* ; */ ;\n\nDROP INCREMENTAL TABLE t;");
        let texts: Vec<_> = parsed.iter().map(|s| s.text.as_str()).collect();
        assert_eq!(texts, ["SELECT ';'", "REFRESH t", "DROP INCREMENTAL TABLE t"]);
        assert!(all(" -- nothing\n ; ").is_empty());
    }

    #[test]
    fn alter_in_every_form() {
        let parsed = alter(
            "ALTER INCREMENTAL TABLE t IF REVISION 3 DRAFT KEY (a, b) TRACK (c) SET (verify = 'always') RESET (compaction, \"older_than\") ACCEPT SCHEMA AS SELECT a FROM input",
        );
        assert_eq!(parsed.if_revision, Some(3));
        let expected = IncrementalChange::Define {
            draft: true,
            key: Some(strings(&["a", "b"])),
            track: Some(strings(&["c"])),
            set: vec![("verify".into(), "always".into())],
            reset: strings(&["compaction", "older_than"]),
            accept_schema: true,
            handler: Some(HandlerText::Sql("SELECT a FROM input".into())),
        };
        assert_eq!(parsed.change, expected);
        let activate = |sql| alter(sql).change;
        assert_eq!(activate("ALTER INCREMENTAL TABLE t ACTIVATE"), IncrementalChange::Activate { revision: None });
        assert_eq!(
            activate("ALTER INCREMENTAL TABLE t IF REVISION 4 ACTIVATE REVISION 2"),
            IncrementalChange::Activate { revision: Some(2) }
        );
        assert!(matches!(activate("ALTER INCREMENTAL TABLE t ACCEPT SCHEMA"), IncrementalChange::Define { accept_schema: true, .. }));
    }

    #[test]
    fn refresh_in_every_form() {
        let plain = refresh("REFRESH s.\"T\", u, \"all\"");
        assert_eq!(
            plain.target,
            RefreshTarget::Tables(vec![TableReference::partial("s", "T"), TableReference::bare("u"), TableReference::bare("all")])
        );
        let run = refresh("refresh t full run 'r-1' allow deletes");
        assert_eq!((run.full, run.allow_deletes, run.run.as_ref().map(|r| r.as_str())), (true, true, Some("r-1")));
        assert!(refresh("REFRESH draft DRAFT").draft);
        assert!(refresh("REFRESH ALL DRY RUN").dry_run);
        assert!(matches!(one("EXPLAIN REFRESH s.t"), Statement::ExplainRefresh { name } if name == TableReference::partial("s", "t")));
    }

    #[test]
    fn drop_and_show() {
        assert!(matches!(one("DROP INCREMENTAL TABLE IF EXISTS t PURGE"), Statement::DropIncremental { if_exists: true, purge: true, .. }));
        assert!(matches!(one("DROP INCREMENTAL TABLE purge"), Statement::DropIncremental { if_exists: false, purge: false, .. }));
        assert!(matches!(one("SHOW CREATE TABLE \"A b\""), Statement::ShowCreate { name, .. } if name == TableReference::bare("A b")));
    }

    #[test]
    fn call_binds_names_and_literals() {
        let Statement::Call(call) = one("CALL incremental.rollback(S.\"T\", version => 2)") else { panic!() };
        assert_eq!(
            (call.verb.name, call.arguments.text("table"), call.arguments.number("version")),
            ("rollback", Some("s.\"T\""), Some(2))
        );
        let Statement::Call(call) =
            one("call INCREMENTAL.ROW('t', -1, 18446744073709551615, 1.50, X'0aff', DATE '2026-01-31', NULL, TRUE, 'ä''')")
        else {
            panic!()
        };
        let expected = [
            ScalarValue::from(-1_i64),
            ScalarValue::from(u64::MAX),
            ScalarValue::Decimal128(Some(150), 3, 2),
            ScalarValue::Binary(Some(vec![10, 255])),
            ScalarValue::from("2026-01-31"),
            ScalarValue::Null,
            ScalarValue::from(true),
            ScalarValue::from("ä'"),
        ];
        assert_eq!(call.arguments.values(), expected);
        assert!(matches!(one("CALL incremental.tables()"), Statement::Call(_)));
        assert!(matches!(one("CALL incremental(1)"), Statement::Other(_)));
    }

    #[test]
    fn the_words_stay_names_elsewhere() {
        for sql in [
            "CREATE TABLE incremental AS SELECT 1 AS key, 2 AS track, 3 AS refresh",
            "SELECT incremental.key, refresh.track FROM incremental, refresh",
            "DROP TABLE incremental",
            "EXPLAIN SELECT 1 AS refresh",
            "CREATE EXTERNAL TABLE t STORED AS INCREMENTAL LOCATION 'x' OPTIONS ('incremental.key' 'id')",
            "SET datafusion.execution.batch_size = 10",
            "SHOW TABLES",
        ] {
            assert!(matches!(one(sql), Statement::Other(_)), "{sql}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_remedy() {
        for (sql, part) in [
            ("CREATE OR ALTER INCREMENTAL TABLE IF NOT EXISTS t FROM s KEY (id) AS SELECT 1", "contradict"),
            ("CREATE OR REPLACE INCREMENTAL TABLE t FROM s KEY (id) AS SELECT 1", "OR ALTER"),
            ("CREATE INCREMENTAL TABLE t KEY (id) AS SELECT 1", "FROM"),
            ("CREATE INCREMENTAL TABLE t FROM (SELECT 1) KEY (id) AS SELECT 1", "CREATE VIEW"),
            ("CREATE INCREMENTAL TABLE t FROM 's.csv' KEY (id) AS SELECT 1", "CREATE EXTERNAL TABLE"),
            ("CREATE INCREMENTAL TABLE t FROM f(1) KEY (id) AS SELECT 1", "CREATE VIEW"),
            ("CREATE INCREMENTAL TABLE t FROM s FOR VERSION AS OF 3 KEY (id) AS SELECT 1", "version clause"),
            ("CREATE INCREMENTAL TABLE t FROM s AS SELECT 1", "KEY is missing"),
            ("CREATE INCREMENTAL TABLE t FROM s KEY () AS SELECT 1", "no column"),
            ("CREATE INCREMENTAL TABLE t FROM s KEY (lower(id)) AS SELECT 1", "not computed"),
            ("CREATE INCREMENTAL TABLE t FROM s KEY (id) KEY (id) AS SELECT 1", "twice"),
            ("CREATE INCREMENTAL TABLE t FROM s KEY (id)", "AS or HANDLER"),
            ("CREATE INCREMENTAL TABLE t FROM s KEY (id) AS", "query"),
            ("CREATE INCREMENTAL TABLE t FROM s KEY (id) AS SELEC 1", "SELECT"),
            ("CREATE INCREMENTAL TABLE t FROM s KEY (id) AS SELECT 1 FROM", "handler"),
            ("CREATE INCREMENTAL TABLE t FROM s KEY (id) AS DROP TABLE x", "handler"),
            ("CREATE INCREMENTAL TABLE t FROM s KEY (id) HANDLER 'h' AS SELECT 1", "both"),
            ("CREATE INCREMENTAL TABLE t FROM s KEY (id) WITH () AS SELECT 1", "option"),
            ("CREATE INCREMENTAL TABLE t FROM s KEY (id) WITH (older_than = 7 days) AS SELECT 1", "single quotes"),
            ("CREATE INCREMENTAL TABLE t FROM s KEY (id) LOCATION $1 AS SELECT 1", "placeholder"),
            ("CREATE INCREMENTAL TABLE a.b.c.d FROM s KEY (id) AS SELECT 1", "three parts"),
            ("CREATE INCREMENTAL VIEW t AS SELECT 1", "TABLE"),
            ("ALTER INCREMENTAL TABLE t", "what to change"),
            ("ALTER INCREMENTAL TABLE t DRAFT", "changes nothing"),
            ("ALTER INCREMENTAL TABLE t ACTIVATE REVISION 0", "whole number"),
            ("ALTER INCREMENTAL TABLE t ACTIVATE KEY (id)", "alone"),
            ("ALTER INCREMENTAL TABLE t FROM s", "does not change"),
            ("ALTER INCREMENTAL TABLE t LOCATION 'x'", "does not change"),
            ("ALTER INCREMENTAL TABLE t WITH (verify = 'always')", "SET"),
            ("ALTER INCREMENTAL TABLE t SET (verify = 'always') RESET (verify)", "both"),
            ("DROP INCREMENTAL TABLE a, b", "more than one"),
            ("DROP INCREMENTAL TABLE a CASCADE", "CASCADE"),
            ("DROP INCREMENTAL TABLE a PURGE now", "end of the statement"),
            ("REFRESH", "name of a table"),
            ("REFRESH t, t", "twice"),
            ("REFRESH ALL, t", "ALL"),
            ("REFRESH t, u RUN 'x'", "one table"),
            ("REFRESH ALL RUN 'x'", "one table"),
            ("REFRESH t RUN $1", "placeholder"),
            ("REFRESH t RUN '../x'", "run id"),
            ("REFRESH t DRAFT FULL", "DRAFT and FULL"),
            ("REFRESH t DRAFT DRAFT", "twice"),
            ("REFRESH t DRAFT ALLOW DELETES", "ALLOW DELETES"),
            ("REFRESH t DRY RUN RUN 'x'", "DRY RUN"),
            ("REFRESH t DRY RUN DRAFT", "DRY RUN"),
            ("REFRESH t DRY RUN FULL", "DRY RUN"),
            ("REFRESH MATERIALIZED VIEW t", "REFRESH t"),
            ("EXPLAIN REFRESH a, b", "one table"),
            ("EXPLAIN ANALYZE REFRESH a", "EXPLAIN REFRESH t"),
            ("EXPLAIN CALL incremental.refresh(t)", "EXPLAIN REFRESH t"),
            ("CALL incremental.refesh(t)", "\"refresh\""),
            ("CALL incremental.at(t, $1)", "placeholder"),
            ("CALL incremental.at(version => 3, t)", "name => value"),
            ("CALL incremental.at(t, 1 + 2)", "computed"),
            ("CALL incremental.compact(t", "')'"),
            ("SELECT 1 SELECT 2", "Remedy"),
            ("SELEC 1", "Remedy"),
            ("SELECT 'open", "quotes"),
        ] {
            let error = parse(sql, &SqlParserOptions::default()).map(|_| ()).expect_err(sql);
            assert_eq!(error.code(), ErrorCode::StatementInvalid, "{sql}");
            assert!(error.message().contains(part) && error.message().contains("Remedy: "), "{sql}: {error}");
        }
    }

    #[test]
    fn a_handler_with_a_version_clause_is_refused_as_a_handler() {
        let error =
            parse("CREATE INCREMENTAL TABLE t FROM s KEY (id) AS SELECT id FROM input VERSION AS OF 3", &SqlParserOptions::default())
                .map(|_| ());
        assert_eq!(error.map_err(|e| e.code()), Err(ErrorCode::HandlerRefused));
    }

    #[test]
    fn capitals_are_kept_when_the_session_keeps_them() {
        let options = SqlParserOptions { enable_ident_normalization: false, ..Default::default() };
        let parsed = parse("SELECT * FROM T VERSION AS OF 1", &options).unwrap();
        assert_eq!(parsed.first().and_then(|s| s.versions.first()).map(|v| v.name.clone()), Some(TableReference::bare("T")));
    }
}
