//! The syntax tree of a SQL handler: exactly one SELECT over `input`, and nothing that planning would silently drop.
//!
//! ```text
//! text ── parse ──► one Query ── walk ──► every refusal names its node and the remedy
//!                                   strict (incremental): only projections of input
//!                                   any SELECT (incremental = false): only what reads elsewhere, or is ignored
//! ```

use std::ops::ControlFlow;

use datafusion::common::HashSet;
use datafusion::config::SqlParserOptions;
use datafusion::execution::SessionState;
use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::ast::{
    Distinct, Expr, Function, FunctionArguments, GroupByExpr, Ident, ObjectName, ObjectNamePart, Query, Select, SelectItem, SetExpr,
    Statement as SqlStatement, TableFactor, Visit, Visitor, visit_expressions,
};
use datafusion::sql::sqlparser::dialect::dialect_from_str;
use datafusion::sql::sqlparser::tokenizer::Tokenizer;

use super::expansion::Expansion;
use crate::env::on_large_stack;
use crate::error::{Error, Result};
use crate::handler::columns::refused;
use crate::handler::{INPUT, nesting};

const FILTER: &str = "filter in a source view; a handler returns one row for every key";
const ONE_ROW: &str = "compute each row from its own columns, or set incremental = false";
const ONE_SELECT: &str = "write exactly one SELECT over input";
const ONLY_INPUT: &str = "read only the relation input; join in a source view";

/// A longer query is refused unread.
const MAX_TEXT: usize = 1024 * 1024;
/// Deeper expressions are refused: everything behind the parser recurses, and planning takes time that grows with the
/// square of the depth.
const MAX_DEPTH: usize = 200;

/// Parses `text` in the session's dialect and judges its syntax tree.
///
/// # Errors
/// `HANDLER_REFUSED`, naming the node and the remedy.
pub(super) fn parse(table: &str, text: &str, state: &SessionState, strict: bool) -> Result<Statement> {
    if text.len() > MAX_TEXT {
        let what = format!("the handler has {} bytes, more than {MAX_TEXT}", text.len());
        return Err(refused(table, &what, "join with a source view that holds the values, or register a Rust handler"));
    }
    let reader = Reader { table, text, options: &state.config_options().sql_parser, strict };
    // Every token has a character at least.
    if nesting::is_large(text.len()) { on_large_stack(|| reader.read())? } else { reader.read() }
}

/// Functions that read a type out of a text, recursively, while the query is planned.
const TYPE_FUNCTIONS: &[&str] = &["arrow_cast", "arrow_try_cast"];
const MAX_TYPE_TEXT: usize = 256;
const MAX_TYPE_DIGITS: usize = 6;
/// Planning takes time that grows with the square of the width.
const MAX_COLUMNS: usize = 10_000;
/// Each may stand for as many columns as its table has.
const MAX_WILDCARDS: usize = 16;

struct Reader<'a> {
    table: &'a str,
    text: &'a str,
    options: &'a SqlParserOptions,
    strict: bool,
}

impl Reader<'_> {
    fn read(&self) -> Result<Statement> {
        let statement = self.statement()?;
        let Statement::Statement(inner) = &statement else { return Err(self.no_select(&statement)) };
        let SqlStatement::Query(query) = inner.as_ref() else { return Err(self.no_select(&statement)) };
        if nesting::is_deeper(query, MAX_DEPTH) {
            return Err(self.over_deep(&format!("an expression is nested more than {MAX_DEPTH} deep")));
        }
        let mut walk =
            Walk { table: self.table, strict: self.strict, normalize: self.options.enable_ident_normalization, names: HashSet::new() };
        if let ControlFlow::Break(error) = query.visit(&mut walk) {
            return Err(error);
        }
        match query.visit(&mut Expansion::default()) {
            ControlFlow::Continue(()) => Ok(statement),
            ControlFlow::Break(what) => {
                Err(refused(self.table, &format!("the handler uses {what}"), "compute it in steps, with a table for each"))
            }
        }
    }

    /// The one statement of the text.
    fn statement(&self) -> Result<Statement> {
        let dialect = dialect_from_str(self.options.dialect)
            .ok_or_else(|| refused(self.table, "the session's SQL dialect is not known", "set datafusion.sql_parser.dialect"))?;
        let unreadable = |what: String| {
            let remedy = "mend the query; names with capitals, spaces, dots or reserved words need double quotes";
            refused(self.table, &format!("the handler does not parse: {what}"), remedy)
        };
        let tokens = Tokenizer::new(dialect.as_ref(), self.text).tokenize_with_location().map_err(|e| unreadable(e.to_string()))?;
        if nesting::is_over_long(tokens.iter().map(|t| &t.token)) {
            return Err(self.over_deep("an expression, or a chain of operators, is too long to be read"));
        }
        let mut statements = DFParserBuilder::new(tokens)
            .with_dialect(dialect.as_ref())
            .with_recursion_limit(self.options.recursion_limit.get().min(nesting::MAX_RECURSION))
            .build()
            .and_then(|mut parser| parser.parse_statements())
            .map_err(|e| unreadable(e.strip_backtrace()))?;
        match (statements.pop_front(), statements.is_empty()) {
            (Some(statement), true) => Ok(statement),
            _ => Err(refused(self.table, "the handler is not one statement", ONE_SELECT)),
        }
    }

    fn no_select(&self, statement: &Statement) -> Error {
        refused(self.table, &format!("the handler is not a SELECT: {statement}"), ONE_SELECT)
    }

    fn over_deep(&self, what: &str) -> Error {
        refused(self.table, what, "compute it in steps, with common table expressions, or in a source view")
    }
}

/// Whether the call names a type that its reader, or a null of it, could not bear: a long text, or a width of many digits.
fn names_large_type(function: &Function) -> bool {
    let large = |text: &str| {
        let digits = text.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0);
        text.len() > MAX_TYPE_TEXT || digits > MAX_TYPE_DIGITS
    };
    let names_one = |expr: &Expr| match expr {
        Expr::Value(value) => value.value.clone().into_string().is_some_and(|text| large(&text)),
        _ => false,
    };
    TYPE_FUNCTIONS.contains(&function.name.to_string().to_ascii_lowercase().as_str())
        && visit_expressions(function, |expr| if names_one(expr) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }).is_break()
}

struct Walk<'a> {
    table: &'a str,
    strict: bool,
    normalize: bool,
    /// The names of all CTEs that were seen; scopes are the planner's business.
    names: HashSet<String>,
}

type Flow = ControlFlow<Error>;

impl Walk<'_> {
    fn refuse(&self, node: &str, remedy: &str) -> Flow {
        ControlFlow::Break(refused(self.table, &format!("the handler uses {node}"), remedy))
    }

    /// Refuses the first node of `checks` that is present.
    fn check(&self, checks: &[(bool, &str, &str)]) -> Flow {
        match checks.iter().find(|(present, ..)| *present) {
            Some((_, node, remedy)) => self.refuse(node, remedy),
            None => ControlFlow::Continue(()),
        }
    }

    fn ident(&self, ident: &Ident) -> String {
        if self.normalize && ident.quote_style.is_none() { ident.value.to_lowercase() } else { ident.value.clone() }
    }

    fn set_expr(&self, body: &SetExpr) -> Flow {
        let strict = self.strict;
        match body {
            SetExpr::Select(_) | SetExpr::Query(_) => ControlFlow::Continue(()),
            SetExpr::SetOperation { op, left, right, .. } => {
                if strict {
                    return self.refuse(&format!("the set operation {op}"), "combine the rows in a source view");
                }
                self.set_expr(left)?;
                self.set_expr(right)
            }
            SetExpr::Values(_) => self.check(&[(strict, "VALUES", ONLY_INPUT)]),
            SetExpr::Table(_) => self.refuse("TABLE", "write SELECT * FROM input"),
            SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) => {
                self.refuse("a statement that writes", "write exactly one SELECT over input")
            }
        }
    }

    fn select(&self, select: &Select) -> Flow {
        let grouped = match &select.group_by {
            GroupByExpr::All(_) => true,
            GroupByExpr::Expressions(expressions, modifiers) => !expressions.is_empty() || !modifiers.is_empty(),
        };
        let joined = select.from.len() > 1 || select.from.iter().any(|from| !from.joins.is_empty());
        let distinct = matches!(select.distinct, Some(Distinct::Distinct | Distinct::On(_)));
        let unknown = "write plain SQL";
        let wildcard = |item: &&SelectItem| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..));
        let (columns, wildcards) = (select.projection.len(), select.projection.iter().filter(wildcard).count());
        self.check(&[
            (columns > MAX_COLUMNS, "more columns than planning can bear", "return at most 10000; put more into a list or a struct"),
            (wildcards > MAX_WILDCARDS, "more wildcards than planning can bear", "name the columns"),
            (select.into.is_some(), "SELECT INTO", "leave INTO out; the table is the target"),
            (select.prewhere.is_some(), "PREWHERE", "use WHERE in a source view"),
            (!select.connect_by.is_empty(), "CONNECT BY", unknown),
            (!select.cluster_by.is_empty(), "CLUSTER BY", unknown),
            (!select.distribute_by.is_empty(), "DISTRIBUTE BY", unknown),
            (!select.sort_by.is_empty(), "SORT BY", unknown),
            (!select.lateral_views.is_empty(), "LATERAL VIEW", "unnest in a source view"),
            (select.exclude.is_some(), "EXCLUDE after the columns", "write it directly after the *"),
            (select.top.is_some(), "TOP", "a handler returns one row for every key; leave it out"),
            (select.select_modifiers.is_some() || select.value_table_mode.is_some(), "a modifier after SELECT", unknown),
        ])?;
        if !self.strict {
            return ControlFlow::Continue(());
        }
        self.check(&[
            (distinct, "DISTINCT", "leave it out: keys are unique already"),
            (select.selection.is_some(), "WHERE", FILTER),
            (grouped, "GROUP BY", ONE_ROW),
            (select.having.is_some(), "HAVING", ONE_ROW),
            (select.qualify.is_some(), "QUALIFY", FILTER),
            (!select.named_window.is_empty(), "WINDOW", ONE_ROW),
            (joined, "a join", ONLY_INPUT),
            (select.from.is_empty(), "a SELECT without FROM", "write SELECT … FROM input"),
        ])
    }

    fn named_table(&self, factor: &TableFactor) -> Flow {
        let TableFactor::Table { name, args, with_hints, version, with_ordinality, partitions, json_path, sample, index_hints, .. } =
            factor
        else {
            return ControlFlow::Continue(());
        };
        let hints = !with_hints.is_empty() || !partitions.is_empty() || json_path.is_some() || !index_hints.is_empty();
        self.check(&[
            (version.is_some(), "a version clause", "input is what the run captured; leave the clause out"),
            (sample.is_some(), "TABLESAMPLE", "sample in a source view"),
            (args.is_some() || *with_ordinality, &format!("the table function {name}"), ONLY_INPUT),
            (hints, "table hints, partitions or paths", "leave them out"),
        ])?;
        match name.0.as_slice() {
            [ObjectNamePart::Identifier(ident)] if self.is_known(ident) => ControlFlow::Continue(()),
            _ => self.refuse(&format!("the table {name}"), ONLY_INPUT),
        }
    }

    fn is_known(&self, ident: &Ident) -> bool {
        let name = self.ident(ident);
        name == INPUT || self.names.contains(&name)
    }
}

impl Visitor for Walk<'_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &Query) -> Flow {
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            self.names.insert(self.ident(&cte.alias.name));
        }
        let strict = self.strict;
        let recursive = query.with.as_ref().is_some_and(|with| with.recursive);
        let order = "leave it out: the published table has no order; sort when you read it";
        self.check(&[
            (!query.locks.is_empty(), "FOR UPDATE or FOR SHARE", "leave the lock out"),
            (query.for_clause.is_some(), "a FOR clause", "leave it out"),
            (query.settings.is_some(), "SETTINGS", "leave it out"),
            (query.format_clause.is_some(), "FORMAT", "leave it out"),
            (!query.pipe_operators.is_empty(), "a pipe operator", "write one SELECT"),
            (strict && recursive, "WITH RECURSIVE", ONE_ROW),
            (strict && query.order_by.is_some(), "ORDER BY", order),
            (strict && query.limit_clause.is_some(), "LIMIT or OFFSET", FILTER),
            (strict && query.fetch.is_some(), "FETCH", FILTER),
        ])?;
        self.set_expr(&query.body)
    }

    fn pre_visit_select(&mut self, select: &Select) -> Flow {
        self.select(select)
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> Flow {
        match factor {
            TableFactor::Table { .. } => self.named_table(factor),
            TableFactor::Derived { lateral, sample, .. } => self.check(&[
                (self.strict && *lateral, "LATERAL", "compute it with expressions, or in a source view"),
                (sample.is_some(), "TABLESAMPLE", "sample in a source view"),
            ]),
            TableFactor::UNNEST { .. } => self.check(&[(self.strict, "UNNEST", "unnest in a source view")]),
            TableFactor::NestedJoin { .. } => self.check(&[(self.strict, "a join", ONLY_INPUT)]),
            other => self.refuse(&format!("the table function or operator {other}"), ONLY_INPUT),
        }
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> Flow {
        match relation.0.as_slice() {
            [ObjectNamePart::Identifier(ident)] if self.is_known(ident) => ControlFlow::Continue(()),
            _ => self.refuse(&format!("the table {relation}"), ONLY_INPUT),
        }
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> Flow {
        let subquery = self.strict && matches!(expr, Expr::Subquery(_) | Expr::InSubquery { .. } | Expr::Exists { .. });
        if let Expr::Function(function) = expr {
            let over = function.over.is_some();
            let query = matches!(function.args, FunctionArguments::Subquery(_));
            let unnest = function.name.to_string().eq_ignore_ascii_case("unnest");
            let aggregate = function.filter.is_some() || !function.within_group.is_empty();
            return self.check(&[
                (
                    names_large_type(function),
                    &format!("{} with a type that is too large to be read", function.name),
                    "cast to a simpler type",
                ),
                (self.strict && over, &format!("the window function {}", function.name), ONE_ROW),
                (self.strict && query, "a subquery", ONLY_INPUT),
                (self.strict && unnest, "UNNEST", "unnest in a source view"),
                (self.strict && aggregate, &format!("the aggregate {}", function.name), ONE_ROW),
            ]);
        }
        self.check(&[(subquery, "a subquery", ONLY_INPUT)])
    }
}
