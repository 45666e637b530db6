//! The raw plan of a SQL handler: which nodes and functions it holds, and where its keys come from.
//!
//! The optimizer is never asked: it folds `now()` into a constant and turns subqueries into joins.

use std::collections::BTreeSet;

use arrow_schema::Schema;
use datafusion::catalog::TableProvider;
use datafusion::catalog::cte_worktable::CteWorkTable;
use datafusion::common::ExprSchema;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::source_as_provider;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{Cast, Expr, LogicalPlan, TableScan, Volatility};

use super::amplify;
use super::input::InputTable;
use crate::error::{Error, Result};
use crate::handler::columns::refused;
use crate::spec::same_type;

/// How much is admitted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// Only projections of `input`, and only functions that depend on nothing but their arguments.
    pub strict: bool,
    /// Volatile and stable functions as well.
    pub allow_volatile: bool,
}

/// What the plan was found to hold.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Every scalar function by name.
    pub functions: BTreeSet<String>,
    /// A function that waits for something outside.
    pub asynchronous: bool,
    /// A function whose result depends on more than its arguments.
    pub volatile: bool,
}

/// Judges every node and expression of the raw plan.
///
/// # Errors
/// `HANDLER_REFUSED`, naming the node or function and the remedy.
pub(super) fn judge(table: &str, plan: &LogicalPlan, rules: Rules) -> Result<Findings> {
    let mut findings = Findings::default();
    plan.apply_with_subqueries(|node| {
        check_node(table, node, rules.strict)?;
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                check_expr(table, part, rules, &mut findings)?;
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })
    .map_err(|e| unwrap(table, e))?;
    Ok(findings)
}

fn unwrap(table: &str, error: DataFusionError) -> Error {
    Error::from_datafusion(error, crate::error::ErrorCode::HandlerRefused, format!("table {table:?}: the handler cannot be judged"))
}

fn check_node(table: &str, node: &LogicalPlan, strict: bool) -> Result<()> {
    let one_row = "compute each row from its own columns, or set incremental = false";
    let (name, remedy) = match node {
        LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => return Ok(()),
        LogicalPlan::TableScan(scan) if is_input(scan) => return Ok(()),
        // The rows that WITH RECURSIVE has so far; the walk below sees where they come from.
        LogicalPlan::TableScan(scan) if !strict && provider_is::<CteWorkTable>(scan) => return Ok(()),
        LogicalPlan::TableScan(scan) => (format!("the table {}", scan.table_name), "read only the relation input"),
        LogicalPlan::Dml(_) | LogicalPlan::Ddl(_) | LogicalPlan::Copy(_) | LogicalPlan::Statement(_) => {
            ("a statement that writes".into(), "write exactly one SELECT over input")
        }
        LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) | LogicalPlan::DescribeTable(_) | LogicalPlan::Extension(_) => {
            ("a statement that is not a SELECT".into(), "write exactly one SELECT over input")
        }
        _ if !strict => return Ok(()),
        LogicalPlan::Filter(_) => ("WHERE (Filter)".into(), "filter in a source view; a handler returns one row for every key"),
        LogicalPlan::Window(_) => ("a window function (Window)".into(), one_row),
        LogicalPlan::Aggregate(_) => ("an aggregate (Aggregate)".into(), one_row),
        LogicalPlan::Distinct(_) => ("DISTINCT (Distinct)".into(), "leave it out: keys are unique already"),
        LogicalPlan::Sort(_) => ("ORDER BY (Sort)".into(), "leave it out: sort when you read the table"),
        LogicalPlan::Limit(_) => ("LIMIT (Limit)".into(), "filter in a source view; a handler returns one row for every key"),
        LogicalPlan::Join(_) => ("a join (Join)".into(), "read only the relation input; join in a source view"),
        LogicalPlan::Union(_) => ("a set operation (Union)".into(), "combine the rows in a source view"),
        LogicalPlan::Subquery(_) => ("a subquery (Subquery)".into(), "read only the relation input; join in a source view"),
        LogicalPlan::Unnest(_) => ("UNNEST (Unnest)".into(), "unnest in a source view"),
        LogicalPlan::RecursiveQuery(_) => ("WITH RECURSIVE (RecursiveQuery)".into(), one_row),
        LogicalPlan::Values(_) | LogicalPlan::EmptyRelation(_) => ("rows of its own (Values)".into(), "write SELECT … FROM input"),
        LogicalPlan::Repartition(_) => ("DISTRIBUTE BY (Repartition)".into(), "leave it out"),
        #[allow(unreachable_patterns)] // nodes of later DataFusion versions are refused until they are known
        other => (format!("the plan node {}", other.display()), one_row),
    };
    Err(refused(table, &format!("the handler uses {name}"), remedy))
}

/// Whether the scan reads the relation `input`, by what it is and not by its name, which a common table expression can
/// have too.
pub(super) fn is_input(scan: &TableScan) -> bool {
    provider_is::<InputTable>(scan)
}

fn provider_is<T: TableProvider>(scan: &TableScan) -> bool {
    source_as_provider(&scan.source).is_ok_and(|provider| provider.downcast_ref::<T>().is_some())
}

fn check_expr(table: &str, expr: &Expr, rules: Rules, findings: &mut Findings) -> Result<()> {
    let refuse = |what: &str, remedy: &str| Err(refused(table, &format!("the handler uses {what}"), remedy));
    match expr {
        Expr::ScalarFunction(function) => {
            findings.functions.insert(function.func.name().to_string());
            findings.asynchronous |= function.func.as_async().is_some();
            if let Some((what, remedy)) = amplify::refusal(function.func.name(), &function.args) {
                return refuse(&what, remedy);
            }
            volatility(table, function.func.name(), function.func.signature().volatility, rules, findings)
        }
        Expr::HigherOrderFunction(function) => {
            findings.functions.insert(function.name().to_string());
            volatility(table, function.name(), function.func.signature().volatility, rules, findings)
        }
        Expr::Placeholder(placeholder) => refuse(&format!("the placeholder {}", placeholder.id), "write the value into the query"),
        Expr::ScalarVariable(_, names) => refuse(&format!("the variable {}", names.join(".")), "write the value into the query"),
        _ if !rules.strict => Ok(()),
        Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_) | Expr::OuterReferenceColumn(..) => {
            refuse("a subquery", "read only the relation input; join in a source view")
        }
        Expr::AggregateFunction(function) => {
            refuse(&format!("the aggregate {}", function.func.name()), "compute each row from its own columns, or set incremental = false")
        }
        Expr::WindowFunction(_) => refuse("a window function", "compute each row from its own columns, or set incremental = false"),
        Expr::Unnest(_) => refuse("UNNEST", "unnest in a source view"),
        _ => Ok(()),
    }
}

fn volatility(table: &str, name: &str, volatility: Volatility, rules: Rules, findings: &mut Findings) -> Result<()> {
    let kind = match volatility {
        Volatility::Immutable => return Ok(()),
        Volatility::Stable => "stable (its value depends on when it runs)",
        Volatility::Volatile => "volatile (its value differs from call to call)",
    };
    findings.volatile = true;
    if rules.strict && !rules.allow_volatile {
        let remedy = "compute the value in a source view, or set allow_volatile = true: unchanged rows then keep their values";
        return Err(refused(table, &format!("the handler calls the function {name}, which is {kind}"), remedy));
    }
    Ok(())
}

/// Checks that each key column is output as exactly the input column of the same name.
///
/// # Errors
/// `HANDLER_REFUSED` for keys that are renamed, missing or computed.
pub(super) fn check_keys(table: &str, plan: &LogicalPlan, key: &[String]) -> Result<()> {
    let names: Vec<&str> = plan.schema().fields().iter().map(|field| field.name().as_str()).collect();
    let origins: Vec<Option<String>> = (0..names.len()).map(|index| origin(plan, index)).collect();
    for column in key {
        let Some(position) = names.iter().position(|name| name == column) else {
            let renamed = origins.iter().position(|o| o.as_ref() == Some(column)).and_then(|index| names.get(index));
            let what = match renamed {
                Some(name) => format!("the key column {column:?} is renamed to {name:?}"),
                None => format!("the key column {column:?} is missing in the output"),
            };
            return Err(refused(table, &what, &format!("return {column:?} under its own name")));
        };
        match origins.get(position) {
            Some(Some(from)) if from == column => {}
            Some(Some(from)) => {
                let what = format!("the output column {column:?} is a key, but it holds the input column {from:?}");
                return Err(refused(table, &what, &format!("return {column:?} unchanged")));
            }
            _ => return Err(refused(table, &format!("the key column {column:?} is computed"), &format!("return {column:?} unchanged"))),
        }
    }
    Ok(())
}

/// The column of `input` that an output column passes through unaltered.
fn origin(plan: &LogicalPlan, index: usize) -> Option<String> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => origin(&alias.input, index),
        LogicalPlan::TableScan(scan) => scan.projected_schema.fields().get(index).map(|field| field.name().clone()),
        LogicalPlan::Projection(projection) => {
            let input = &projection.input;
            let Expr::Column(column) = passed_through(projection.expr.get(index)?, input)? else { return None };
            origin(input, input.schema().maybe_index_of_column(column)?)
        }
        _ => None,
    }
}

/// The expression under aliases and casts to the type that it has already.
fn passed_through<'a>(expr: &'a Expr, input: &LogicalPlan) -> Option<&'a Expr> {
    match expr {
        Expr::Alias(alias) => passed_through(&alias.expr, input),
        Expr::Cast(Cast { expr, field }) => {
            let inner = passed_through(expr, input)?;
            let Expr::Column(column) = inner else { return None };
            let from = input.schema().field_from_column(column).ok()?.data_type().clone();
            same_type(&from, field.data_type()).then_some(inner)
        }
        other => Some(other),
    }
}

/// The columns of `input` that the optimised plan reads, in the order of `input`.
///
/// # Errors
/// Those of walking the plan.
pub(super) fn columns_read(table: &str, optimized: &LogicalPlan, input: &Schema) -> Result<Vec<String>> {
    let mut read = BTreeSet::new();
    optimized
        .apply_with_subqueries(|node| {
            if let LogicalPlan::TableScan(scan) = node
                && is_input(scan)
            {
                read.extend(scan.projected_schema.fields().iter().map(|field| field.name().clone()));
                read.extend(scan.filters.iter().flat_map(|filter| filter.column_refs()).map(|column| column.name.clone()));
            }
            Ok(TreeNodeRecursion::Continue)
        })
        .map_err(|e| unwrap(table, e))?;
    Ok(input.fields().iter().map(|field| field.name().clone()).filter(|name| read.contains(name)).collect())
}
