//! Reads of a session table as DataFusion plans.

use std::sync::Arc;

use datafusion::common::{Column, ScalarValue, TableReference};
use datafusion::datasource::provider_as_source;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::context::SessionState;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::functions_aggregate::expr_fn::{count, max};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, SortExpr, lit};
use datafusion::physical_plan::{collect, execute_stream};

use super::super::connector::{FilterOperator, ReadRequest, ReadScope, RowFilter};
use crate::plan::source::ResolvedSource;

fn relation() -> TableReference {
    TableReference::bare("source")
}

/// A column by structure, never by parsing its name.
fn column(name: &str) -> Expr {
    Expr::Column(Column::new(Some(relation()), name))
}

fn condition(filter: &RowFilter) -> Expr {
    let column = column(&filter.column);
    let values: Vec<Expr> = filter.values.iter().cloned().map(lit).collect();
    let value = || values.first().cloned().unwrap_or_else(|| lit(ScalarValue::Null));
    match filter.operator {
        FilterOperator::Eq => column.eq(value()),
        FilterOperator::NotEq => column.not_eq(value()),
        FilterOperator::Lt => column.lt(value()),
        FilterOperator::LtEq => column.lt_eq(value()),
        FilterOperator::Gt => column.gt(value()),
        FilterOperator::GtEq => column.gt_eq(value()),
        FilterOperator::In => column.in_list(values, false),
        FilterOperator::NotIn => column.in_list(values, true),
    }
}

fn scan(source: &ResolvedSource, conditions: Vec<Expr>) -> Result<LogicalPlanBuilder> {
    let mut plan = LogicalPlanBuilder::scan(relation(), provider_as_source(Arc::clone(&source.provider)), None)?;
    for condition in conditions {
        plan = plan.filter(condition)?;
    }
    Ok(plan)
}

/// The greatest value of a column, NaN above all others. The condition changes nothing and keeps statistics of files from
/// answering: they leave NaN out.
pub(super) fn greatest(source: &ResolvedSource, name: &str, filters: &[RowFilter]) -> Result<LogicalPlan> {
    let conditions = filters.iter().map(condition).chain([column(name).is_not_null()]).collect();
    scan(source, conditions)?.aggregate(Vec::<Expr>::new(), [max(column(name))])?.build()
}

/// How many rows are null in a column.
pub(super) fn nulls(source: &ResolvedSource, name: &str, filters: &[RowFilter]) -> Result<LogicalPlan> {
    let conditions = filters.iter().map(condition).chain([column(name).is_null()]).collect();
    scan(source, conditions)?.aggregate(Vec::<Expr>::new(), [count(lit(1_i64))])?.build()
}

/// The rows of a request.
pub(super) fn rows(source: &ResolvedSource, request: &ReadRequest) -> Result<LogicalPlan> {
    let mut conditions: Vec<Expr> = request.filters.iter().map(condition).collect();
    match &request.scope {
        ReadScope::All => {}
        ReadScope::Null { column: name } => conditions.push(column(name).is_null()),
        ReadScope::Range { column: name, lower, upper } => {
            conditions.push(column(name).is_not_null());
            conditions.extend(lower.clone().map(|value| column(name).gt_eq(lit(value))));
            conditions.extend(upper.clone().map(|value| column(name).lt_eq(lit(value))));
        }
    }
    conditions.extend(request.after.as_ref().and_then(|values| after(&request.order_by, values)));
    let mut plan = scan(source, conditions)?;
    if !request.order_by.is_empty() {
        plan = plan.sort(request.order_by.iter().map(|name| SortExpr::new(column(name), true, false)))?;
    }
    plan.project(request.columns.iter().map(|name| column(name)))?.build()
}

/// Strictly after `values` in the order of `columns`: `a > x OR (a = x AND (b > y OR …))`.
fn after(columns: &[String], values: &[ScalarValue]) -> Option<Expr> {
    columns.iter().zip(values).rev().fold(None, |rest, (name, value)| {
        let greater = column(name).gt(lit(value.clone()));
        Some(match rest {
            Some(rest) => greater.or(column(name).eq(lit(value.clone())).and(rest)),
            None => greater,
        })
    })
}

/// Executes a plan of rows as one stream.
pub(super) async fn stream(source: &ResolvedSource, context: &TaskContext, plan: LogicalPlan) -> Result<SendableRecordBatchStream> {
    execute_stream(source.physical(&plan).await?, task_context(&source.state, context))
}

/// The only value of a plan with one row and one column.
pub(super) async fn single_value(source: &ResolvedSource, context: &TaskContext, plan: LogicalPlan) -> Result<ScalarValue> {
    let batches = collect(source.physical(&plan).await?, task_context(&source.state, context)).await?;
    let array = batches.iter().find(|batch| batch.num_rows() > 0).and_then(|batch| batch.columns().first());
    let array = array.ok_or_else(|| DataFusionError::Internal("an aggregate returned no row".into()))?;
    ScalarValue::try_from_array(array, 0)
}

/// The derived session's context, with the memory of the run that asks.
fn task_context(state: &SessionState, context: &TaskContext) -> Arc<TaskContext> {
    let runtime = RuntimeEnv { memory_pool: Arc::clone(context.memory_pool()), ..state.runtime_env().as_ref().clone() };
    Arc::new(TaskContext::from(state).with_runtime(Arc::new(runtime)))
}
