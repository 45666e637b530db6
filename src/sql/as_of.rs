//! Version clauses: `t [FOR] VERSION AS OF 3` and `t [FOR] TIMESTAMP AS OF '…'` become table functions.
//!
//! ```text
//! tokens   FROM s."T" FOR VERSION AS OF 3 a     ─rewrite_tokens───►  FROM <marker>() a
//! tree     Table { marker, args: [], alias: a } ─rewrite_statement─► incremental_at('s."T"', 3) a
//! ```
//!
//! The tokens tell the clause from the words: `version AS of` followed by no value is a column with an alias. The
//! tree tells whether it stands where a table can stand: each marker must be met exactly once. DataFusion's planner
//! would drop a clause that its parser accepts, so every clause that remains in the tree is refused.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::common::TableReference;
use datafusion::sql::parser::{CopyToSource, Statement as DataFusionStatement};
use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, Ident, ObjectName, Query, TableAlias, TableFactor, TableFunctionArgs, Value, VisitMut, VisitorMut,
};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Span, Token, TokenWithSpan, Whitespace, Word};

use super::names::{fold, fold_ident, is_reserved, quote_name, reference, single_part, too_many_parts};
use super::source_text::{is_significant, is_word, string_literal};
use super::verbs::find_function;
use crate::error::{Error, ErrorCode, Result};

const FORM: &str = "write the clause right after the table's name, before any alias: FROM t VERSION AS OF 3 a, or FROM t TIMESTAMP AS OF '2026-01-31T12:00:00Z' a";

/// Words after which a column or a table called `version` or `timestamp` can stand.
const BEFORE_A_NAME: &[Keyword] = &[
    Keyword::ALL,
    Keyword::AND,
    Keyword::BETWEEN,
    Keyword::BY,
    Keyword::CASE,
    Keyword::DISTINCT,
    Keyword::ELSE,
    Keyword::FROM,
    Keyword::HAVING,
    Keyword::IN,
    Keyword::INTO,
    Keyword::JOIN,
    Keyword::LATERAL,
    Keyword::LIKE,
    Keyword::NOT,
    Keyword::ON,
    Keyword::OR,
    Keyword::SELECT,
    Keyword::THEN,
    Keyword::USING,
    Keyword::WHEN,
    Keyword::WHERE,
];

/// Which state of a table is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionPoint {
    /// `VERSION AS OF n`.
    Number(u64),
    /// `TIMESTAMP AS OF '…'`, the text as written.
    Timestamp(String),
}

/// A table that a statement reads at a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionReference {
    /// The table, as the statement names it.
    pub name: TableReference,
    /// Which state.
    pub point: VersionPoint,
}

/// A clause that was taken out of the tokens.
pub(super) struct Clause {
    marker: String,
    reference: VersionReference,
    alias: Ident,
}

/// Tokens that DataFusion's parser reads, and what was taken out of them.
pub(super) struct Rewritten {
    pub(super) tokens: Vec<TokenWithSpan>,
    pub(super) clauses: Vec<Clause>,
}

/// Replaces each version clause, and the name before it, by a call of a marker function.
pub(super) fn rewrite_tokens(tokens: &[TokenWithSpan], normalize: bool) -> Result<Rewritten> {
    let scan = Scan {
        tokens,
        significant: (0..tokens.len()).filter(|n| tokens.get(*n).is_some_and(|t| is_significant(&t.token))).collect(),
        normalize,
    };
    let prefix = scan.marker_prefix();
    let (mut out, mut clauses, mut copied) = (Vec::new(), Vec::new(), 0);
    let mut at = 0;
    while at < scan.significant.len() {
        let Some(found) = scan.clause(at, || format!("{prefix}{}", clauses.len()))? else {
            at += 1;
            continue;
        };
        out.extend_from_slice(tokens.get(copied..found.start).unwrap_or(&[]));
        let span = tokens.get(found.start).map(|t| t.span).unwrap_or_else(Span::empty);
        out.extend(marker_tokens(&found.clause.marker, found.copied_whole).into_iter().map(|token| TokenWithSpan::new(token, span)));
        copied = found.end + 1;
        at = scan.significant.partition_point(|n| *n < copied);
        clauses.push(found.clause);
    }
    out.extend_from_slice(tokens.get(copied..).unwrap_or(&[]));
    Ok(Rewritten { tokens: out, clauses })
}

/// `marker()`; for `COPY t VERSION AS OF 3 TO …`, which takes a bare name only, `(SELECT * FROM marker())`.
fn marker_tokens(marker: &str, copied_whole: bool) -> Vec<Token> {
    // Parsers peek at white space in places: keep the marker apart from its neighbours.
    let space = || Token::Whitespace(Whitespace::Space);
    let call = [Token::make_word(marker, None), Token::LParen, Token::RParen, space()];
    if copied_whole {
        let before = [Token::LParen, Token::make_keyword("SELECT"), space(), Token::Mul, space(), Token::make_keyword("FROM"), space()];
        before.into_iter().chain(call).chain([Token::RParen, space()]).collect()
    } else {
        call.into()
    }
}

struct Found {
    clause: Clause,
    /// The first and last token, as positions among all tokens.
    start: usize,
    end: usize,
    copied_whole: bool,
}

struct Scan<'a> {
    tokens: &'a [TokenWithSpan],
    significant: Vec<usize>,
    normalize: bool,
}

impl Scan<'_> {
    fn token(&self, at: usize) -> Option<&Token> {
        self.significant.get(at).and_then(|n| self.tokens.get(*n)).map(|t| &t.token)
    }

    fn before(&self, at: usize) -> Option<&Token> {
        at.checked_sub(1).and_then(|n| self.token(n))
    }

    fn word(&self, at: usize, word: &str) -> bool {
        is_word(self.token(at), word)
    }

    /// A name that no word of the statement starts with.
    fn marker_prefix(&self) -> String {
        let mut prefix = String::from("__incremental_clause_");
        while self.tokens.iter().any(|t| matches!(&t.token, Token::Word(w) if w.value.to_lowercase().starts_with(&prefix))) {
            prefix.push('_');
        }
        prefix
    }

    /// The clause whose first word after FOR stands at `at`.
    fn clause(&self, at: usize, marker: impl FnOnce() -> String) -> Result<Option<Found>> {
        let kind = ["VERSION", "TIMESTAMP", "SYSTEM_TIME", "SYSTEM_VERSION"].into_iter().find(|word| self.word(at, word));
        let Some(kind) = kind else { return Ok(None) };
        let with_for = at > 0 && self.word(at - 1, "FOR");
        let as_of = self.word(at + 1, "AS") && self.word(at + 2, "OF");
        if kind.starts_with("SYSTEM") {
            let remedy = "write TIMESTAMP AS OF '…', or VERSION AS OF n";
            return if with_for && as_of { Err(self.refuse(at, &format!("FOR {kind} AS OF is not known"), remedy)) } else { Ok(None) };
        }
        let Some(last_of_name) = at.checked_sub(if with_for { 2 } else { 1 }) else { return Ok(None) };
        if !as_of || !(with_for || (self.ends_a_table(last_of_name) && self.starts_a_value(at + 3))) {
            return Ok(None);
        }
        let (first_of_name, parts) = self
            .name(last_of_name)
            .ok_or_else(|| self.refuse(at, "a version clause follows something that is not a table's name", FORM))?;
        self.check_place(first_of_name, at)?;
        let (point, end) = if kind == "VERSION" { self.version(at + 3)? } else { self.timestamp(at + 3)? };
        let alias = parts.last().map(|word| Ident { value: word.value.clone(), quote_style: word.quote_style, span: Span::empty() });
        let folded = parts.iter().map(|w| fold(&w.value, w.quote_style.is_some(), self.normalize)).collect();
        let (Some(alias), Some(name)) = (alias, reference(folded)) else {
            return Err(too_many_parts(&parts.iter().map(|w| w.to_string()).collect::<Vec<_>>().join(".")));
        };
        let position = |n: usize| self.significant.get(n).copied().unwrap_or_default();
        Ok(Some(Found {
            clause: Clause { marker: marker(), reference: VersionReference { name, point }, alias },
            start: position(first_of_name),
            end: position(end),
            copied_whole: is_word(self.before(first_of_name), "COPY"),
        }))
    }

    /// Whether a table (or a call, a subquery, an alias) can end here: then `VERSION AS OF value` is no column.
    fn ends_a_table(&self, at: usize) -> bool {
        match self.token(at) {
            Some(Token::Word(word)) => {
                word.quote_style.is_some() || !BEFORE_A_NAME.contains(&word.keyword) || self.before(at) == Some(&Token::Period)
            }
            Some(Token::RParen) => true,
            _ => false,
        }
    }

    fn starts_a_value(&self, at: usize) -> bool {
        match self.token(at) {
            Some(Token::Number(..) | Token::Placeholder(_) | Token::Minus | Token::Plus) => true,
            Some(Token::Word(word)) if word.quote_style.is_none() => {
                let call = self.token(at + 1) == Some(&Token::LParen) && !is_reserved(word.keyword);
                let typed =
                    matches!(word.keyword, Keyword::TIMESTAMP | Keyword::DATE) && self.token(at + 1).and_then(string_literal).is_some();
                call || typed || matches!(word.keyword, Keyword::CAST | Keyword::CURRENT_TIMESTAMP | Keyword::CURRENT_DATE | Keyword::NULL)
            }
            Some(token) => string_literal(token).is_some(),
            None => false,
        }
    }

    /// The dotted name that ends at `at`: where it starts, and its words.
    fn name(&self, at: usize) -> Option<(usize, Vec<&Word>)> {
        let (mut first, mut parts) = (at, Vec::new());
        loop {
            match self.token(first) {
                Some(Token::Word(word)) => parts.push(word),
                _ => return None,
            }
            if self.before(first) != Some(&Token::Period) {
                break;
            }
            first = first.checked_sub(2)?;
        }
        parts.reverse();
        Some((first, parts))
    }

    /// Refuses the places before which no readable table's name can start.
    fn check_place(&self, first: usize, clause: usize) -> Result<()> {
        let written = ["INTO", "UPDATE", "TABLE", "TRUNCATE"].iter().any(|word| is_word(self.before(first), word));
        let deleted = first >= 2 && self.word(first - 1, "FROM") && self.word(first - 2, "DELETE");
        if written || deleted {
            return Err(self.refuse(clause, "a version clause follows a table that is not read by a query", "only queries read an old version: SELECT * FROM t VERSION AS OF 3; a table is rolled back with CALL incremental.rollback(t, n)"));
        }
        let alias = match self.before(first) {
            Some(Token::Word(word)) => word.quote_style.is_some() || matches!(word.keyword, Keyword::NoKeyword | Keyword::AS),
            Some(Token::RParen) => true,
            _ => false,
        };
        if alias { Err(self.refuse(clause, "a version clause follows an alias", FORM)) } else { Ok(()) }
    }

    fn version(&self, at: usize) -> Result<(VersionPoint, usize)> {
        match self.token(at) {
            Some(Token::Number(text, false)) => text.parse().ok().map(|n| (VersionPoint::Number(n), at)),
            _ => None,
        }
        .ok_or_else(|| self.not_a_literal(at, "a version is a whole number", "write VERSION AS OF 3, or TIMESTAMP AS OF '…' for a time"))
    }

    fn timestamp(&self, at: usize) -> Result<(VersionPoint, usize)> {
        let at = if self.word(at, "TIMESTAMP") || self.word(at, "DATE") { at + 1 } else { at };
        let text = self.token(at).and_then(string_literal);
        text.map(|text| (VersionPoint::Timestamp(text.to_string()), at)).ok_or_else(|| {
            self.not_a_literal(at, "a time is a text literal", "write TIMESTAMP AS OF '2026-01-31T12:00:00Z'; nothing is computed here")
        })
    }

    fn not_a_literal(&self, at: usize, what: &str, remedy: &str) -> Error {
        match self.token(at) {
            Some(Token::Placeholder(_)) => self.refuse(
                at,
                "a version clause has a placeholder",
                &format!("placeholders are not known before the statement is planned: {remedy}"),
            ),
            _ => self.refuse(at, what, remedy),
        }
    }

    fn refuse(&self, at: usize, what: &str, remedy: &str) -> Error {
        let place = self
            .significant
            .get(at)
            .and_then(|n| self.tokens.get(*n))
            .map(|t| format!(" at line {}, column {}", t.span.start.line, t.span.start.column));
        invalid(&format!("{what}{}", place.unwrap_or_default()), remedy)
    }
}

fn invalid(what: &str, remedy: &str) -> Error {
    Error::new(ErrorCode::StatementInvalid, format!("{what}. Remedy: {remedy}"))
}

/// Puts the table functions where the markers stand, keeps or adds aliases, and refuses what cannot be meant.
pub(super) fn rewrite_statement(
    statement: &mut DataFusionStatement,
    clauses: Vec<Clause>,
    normalize: bool,
) -> Result<Vec<VersionReference>> {
    let total = clauses.len();
    let mut visitor = Visitor {
        clauses: clauses.into_iter().map(|c| (c.marker.clone(), c)).collect(),
        normalize,
        scopes: Vec::new(),
        bodies: HashMap::new(),
        found: Vec::new(),
    };
    if let ControlFlow::Break(error) = visitor.statement(statement) {
        return Err(error);
    }
    if visitor.found.len() == total {
        return Ok(visitor.found);
    }
    Err(invalid("a version clause stands where no table is read", FORM))
}

struct Visitor {
    clauses: HashMap<String, Clause>,
    normalize: bool,
    /// The CTE names in sight, innermost query last.
    scopes: Vec<Vec<String>>,
    /// The bodies of CTEs not yet visited, by address: a body sees the names before it, not its own.
    bodies: HashMap<usize, Vec<String>>,
    found: Vec<VersionReference>,
}

impl Visitor {
    fn statement(&mut self, statement: &mut DataFusionStatement) -> ControlFlow<Error> {
        match statement {
            DataFusionStatement::Statement(inner) => inner.visit(self),
            DataFusionStatement::Explain(explain) => self.statement(&mut explain.statement),
            DataFusionStatement::CopyTo(copy) => match &mut copy.source {
                CopyToSource::Query(query) => query.visit(self),
                CopyToSource::Relation(_) => ControlFlow::Continue(()),
            },
            DataFusionStatement::CreateExternalTable(_) | DataFusionStatement::Reset(_) => ControlFlow::Continue(()),
        }
    }

    fn table(&mut self, name: &mut ObjectName, alias: &mut Option<TableAlias>, args: &mut Option<TableFunctionArgs>) -> Result<()> {
        let Some(single) = single_part(name, self.normalize) else { return Ok(()) };
        let Some(clause) = self.clauses.remove(&single) else {
            return match args {
                Some(args) => self.function(name, &args.args),
                None => Ok(()),
            };
        };
        let reference = clause.reference;
        let cte = |names: &Vec<String>| matches!(&reference.name, TableReference::Bare { table } if names.iter().any(|n| n.as_str() == table.as_ref()));
        if self.scopes.last().is_some_and(cte) {
            return Err(invalid(
                &format!("{:?} is the name of a common table expression, which has no versions", quote_name(&reference.name)),
                "put the version clause on the table inside its WITH query",
            ));
        }
        let (function, argument) = match &reference.point {
            VersionPoint::Number(n) => ("incremental_at", Value::Number(n.to_string(), false)),
            VersionPoint::Timestamp(text) => ("incremental_at_timestamp", Value::SingleQuotedString(text.clone())),
        };
        *name = ObjectName::from(vec![Ident::new(function)]);
        let literals = [Value::SingleQuotedString(quote_name(&reference.name)), argument];
        let list = literals.into_iter().map(|value| FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(value.into())))).collect();
        *args = Some(TableFunctionArgs { args: list, settings: None });
        if alias.is_none() {
            *alias = Some(TableAlias { explicit: true, name: clause.alias, columns: Vec::new(), at: None });
        }
        self.found.push(reference);
        Ok(())
    }

    /// Makes `INCREMENTAL_RUNS(…)` the function of that name, and refuses arguments that DataFusion would drop.
    fn function(&self, name: &mut ObjectName, args: &[FunctionArg]) -> Result<()> {
        let Some(verb) = single_part(name, self.normalize).as_deref().and_then(find_function) else { return Ok(()) };
        *name = ObjectName::from(vec![Ident::new(verb.function())]);
        for arg in args {
            let remedy = match arg {
                FunctionArg::Named { .. } | FunctionArg::ExprNamed { .. } => "arguments by name",
                FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(value))) if matches!(value.value, Value::Placeholder(_)) => {
                    "placeholders"
                }
                FunctionArg::Unnamed(_) => continue,
            };
            return Err(invalid(
                &format!("the table function {} does not take {remedy}", verb.function()),
                &format!("write literals by position, as in {}, or CALL {}.{}", verb.signature(), verb.family.as_str(), verb.name),
            ));
        }
        Ok(())
    }
}

impl VisitorMut for Visitor {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let inherited = self.bodies.remove(&address(query));
        let mut names = inherited.unwrap_or_else(|| self.scopes.last().cloned().unwrap_or_default());
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            let name = fold_ident(&cte.alias.name, self.normalize);
            let mut body = names.clone();
            if query.with.as_ref().is_some_and(|with| with.recursive) {
                body.push(name.clone());
            }
            self.bodies.insert(address(&cte.query), body);
            names.push(name);
        }
        self.scopes.push(names);
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &mut Query) -> ControlFlow<Error> {
        self.scopes.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        let checked = match factor {
            TableFactor::Table { version: Some(version), name, .. } => Err(invalid(
                &format!("the clause {:?} of table {:?} is not known", version.to_string(), name.to_string()),
                "write VERSION AS OF n or TIMESTAMP AS OF '…', on an incremental table",
            )),
            TableFactor::Table { name, alias, args, .. } => self.table(name, alias, args),
            TableFactor::Function { name, args, .. } => self.function(name, args),
            _ => Ok(()),
        };
        match checked {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }
}

/// Queries do not move while they are visited, so the address tells them apart.
fn address(query: &Query) -> usize {
    std::ptr::from_ref(query).addr()
}

#[cfg(test)]
mod tests {
    use datafusion::config::SqlParserOptions;

    use super::super::{Statement, parse};
    use super::*;

    fn rewritten(sql: &str) -> (String, Vec<VersionReference>) {
        let mut parsed = parse(sql, &SqlParserOptions::default()).unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert_eq!(parsed.len(), 1, "{sql}");
        let parsed = parsed.remove(0);
        assert_eq!(parsed.text, sql.trim());
        let Statement::Other(statement) = parsed.statement else { panic!("{sql}") };
        (statement.to_string(), parsed.versions)
    }

    fn refused(sql: &str) -> String {
        let error = parse(sql, &SqlParserOptions::default()).map(|_| ()).expect_err(sql);
        assert_eq!(error.code(), ErrorCode::StatementInvalid, "{sql}");
        assert!(error.message().contains("Remedy: "), "{error}");
        error.message().to_string()
    }

    #[test]
    fn a_clause_becomes_a_table_function() {
        for (sql, expected) in [
            ("SELECT * FROM t VERSION AS OF 3", "SELECT * FROM incremental_at('t', 3) AS t"),
            ("SELECT * FROM t FOR VERSION AS OF 3 WHERE x = 1", "SELECT * FROM incremental_at('t', 3) AS t WHERE x = 1"),
            ("select * from T for version as of 3 as A", "SELECT * FROM incremental_at('t', 3) AS A"),
            ("SELECT * FROM s.t VERSION AS OF 3 a", "SELECT * FROM incremental_at('s.t', 3) a"),
            ("SELECT * FROM C.s.\"My.T\" VERSION AS OF 3", "SELECT * FROM incremental_at('c.s.\"My.T\"', 3) AS \"My.T\""),
            ("SELECT * FROM \"it's\" VERSION AS OF 3", "SELECT * FROM incremental_at('\"it''s\"', 3) AS \"it's\""),
            ("SELECT * FROM t TIMESTAMP AS OF '2026-01-01'", "SELECT * FROM incremental_at_timestamp('t', '2026-01-01') AS t"),
            ("SELECT * FROM t FOR TIMESTAMP AS OF TIMESTAMP '2026-01-01' x", "SELECT * FROM incremental_at_timestamp('t', '2026-01-01') x"),
            ("SELECT * FROM version VERSION AS OF 3", "SELECT * FROM incremental_at('version', 3) AS version"),
        ] {
            assert_eq!(rewritten(sql).0, expected);
        }
    }

    #[test]
    fn a_clause_stands_wherever_a_table_can() {
        for sql in [
            "SELECT * FROM a JOIN t VERSION AS OF 3 ON a.id = t.id",
            "SELECT * FROM a, t FOR VERSION AS OF 3, c",
            "WITH q AS (SELECT * FROM t VERSION AS OF 3) SELECT * FROM q",
            "WITH t AS (SELECT * FROM t VERSION AS OF 3) SELECT * FROM t",
            "SELECT * FROM (SELECT * FROM t VERSION AS OF 3) q",
            "SELECT (SELECT max(x) FROM t VERSION AS OF 3)",
            "SELECT 1 WHERE EXISTS (SELECT 1 FROM t VERSION AS OF 3)",
            "SELECT 1 WHERE 1 IN (SELECT id FROM t VERSION AS OF 3)",
            "SELECT * FROM a EXCEPT SELECT * FROM t VERSION AS OF 3",
            "CREATE VIEW v AS SELECT * FROM t VERSION AS OF 3",
            "PREPARE p AS SELECT * FROM t VERSION AS OF 3 WHERE id = $1",
            "CREATE TABLE c AS SELECT * FROM t VERSION AS OF 3",
            "COPY (SELECT * FROM t VERSION AS OF 3) TO 'x.parquet'",
            "COPY t VERSION AS OF 3 TO 'x.parquet'",
            "EXPLAIN SELECT * FROM t VERSION AS OF 3",
            "EXPLAIN ANALYZE VERBOSE SELECT * FROM t VERSION AS OF 3",
            "INSERT INTO other SELECT * FROM t VERSION AS OF 3",
            "DELETE FROM other WHERE id IN (SELECT id FROM t VERSION AS OF 3)",
            "SELECT * FROM (t VERSION AS OF 3 JOIN a ON true)",
            "SELECT 'ä😀;' /* VERSION AS OF 9 */ FROM t -- VERSION AS OF 8\n FOR /* ; */ VERSION AS OF 3",
        ] {
            let (text, versions) = rewritten(sql);
            assert!(text.contains("incremental_at('t', 3)"), "{sql}: {text}");
            assert_eq!(versions, [VersionReference { name: TableReference::bare("t"), point: VersionPoint::Number(3) }], "{sql}");
        }
    }

    #[test]
    fn a_self_join_names_both_versions() {
        let (text, versions) = rewritten("SELECT * FROM t VERSION AS OF 1 a FULL JOIN t VERSION AS OF 2 b USING (id) JOIN t ON true");
        assert!(text.contains("incremental_at('t', 1) a FULL JOIN incremental_at('t', 2) b USING(id) JOIN t ON true"), "{text}");
        assert_eq!(versions.len(), 2);
    }

    #[test]
    fn the_words_stay_names() {
        for sql in [
            "SELECT version AS of, timestamp AS of FROM t",
            "SELECT version AS of FROM t version",
            "SELECT at, before, changes, key, track, refresh, incremental FROM t at, u before, v AS changes, w version",
            "SELECT t.version AS of FROM version AS of",
            "SELECT max(version) AS of FROM timestamp AS of",
            "SELECT TIMESTAMP '2026-01-01' AS of",
            "SELECT 'VERSION AS OF 3'",
            "CREATE TABLE key (track INT, \"VERSION\" INT)",
        ] {
            assert_eq!(rewritten(sql).1, [], "{sql}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (sql, part) in [
            ("WITH q AS (SELECT 1) SELECT * FROM q VERSION AS OF 3", "common table expression"),
            ("WITH a AS (SELECT 1), b AS (SELECT * FROM a VERSION AS OF 3) SELECT * FROM b", "common table expression"),
            ("WITH RECURSIVE a AS (SELECT 1 UNION ALL SELECT * FROM a VERSION AS OF 3) SELECT * FROM a", "common table expression"),
            ("SELECT * FROM t AS x VERSION AS OF 3", "alias"),
            ("SELECT * FROM t x FOR VERSION AS OF 3", "alias"),
            ("SELECT * FROM (SELECT 1) VERSION AS OF 3", "not a table's name"),
            ("SELECT * FROM f(1) FOR VERSION AS OF 3", "not a table's name"),
            ("SELECT * FROM t VERSION AS OF $1", "placeholder"),
            ("SELECT * FROM t TIMESTAMP AS OF $1", "placeholder"),
            ("SELECT * FROM t VERSION AS OF '3'", "whole number"),
            ("SELECT * FROM t VERSION AS OF -1", "whole number"),
            ("SELECT * FROM t VERSION AS OF 1.5", "whole number"),
            ("SELECT * FROM t FOR VERSION AS OF", "whole number"),
            ("SELECT * FROM t TIMESTAMP AS OF now()", "text literal"),
            ("SELECT * FROM t FOR TIMESTAMP AS OF 3", "text literal"),
            ("SELECT * FROM t FOR SYSTEM_TIME AS OF '2026-01-01'", "TIMESTAMP AS OF"),
            ("SELECT * FROM a.b.c.d VERSION AS OF 3", "three parts"),
            ("SELECT a, t VERSION AS OF 3", "no table is read"),
            ("DELETE FROM t VERSION AS OF 3", "not read by a query"),
            ("UPDATE t VERSION AS OF 3 SET x = 1", "not read by a query"),
            ("INSERT INTO t VERSION AS OF 3 SELECT 1", "not read by a query"),
            ("SELECT * FROM incremental_refresh('t', mode => 'draft')", "by name"),
            ("SELECT * FROM a, LATERAL incremental_row('t', key => 1)", "by name"),
            ("SELECT * FROM incremental_at('t', $1)", "placeholders"),
        ] {
            let message = refused(sql);
            assert!(message.contains(part), "{sql}: {message}");
        }
    }

    #[test]
    fn clauses_that_a_dialect_reads_itself_are_refused_not_dropped() {
        let options = SqlParserOptions { dialect: datafusion::config::Dialect::Snowflake, ..Default::default() };
        let at = parse("SELECT * FROM t AT(TIMESTAMP => '2026-01-01')", &options).map(|_| ()).unwrap_err();
        assert!(at.message().contains("is not known"), "{at}");
        let ours = parse("SELECT * FROM t VERSION AS OF 3", &options).unwrap();
        assert_eq!(ours.first().map(|s| s.versions.len()), Some(1));
    }

    #[test]
    fn functions_of_verbs_are_found_in_any_case() {
        assert_eq!(rewritten("SELECT * FROM INCREMENTAL_RUNS('t')").0, "SELECT * FROM incremental_runs('t')");
    }
}
