//! A saved SQL handler, ready to be planned over any input.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow_schema::{Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, internal_err};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::provider_as_source;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, SubqueryAlias, TableScanBuilder, TableSource};
use datafusion::physical_plan::{ExecutionPlan, collect};

use super::input::InputTable;
use super::judge::{self, Rules};
use super::nodes::{HandlerInputExec, HandlerOutputExec};
use super::{Analysis, Query};
use crate::error::{Error, ErrorCode, Result};
use crate::handler::{Handler, HandlerCall, HandlerError, INPUT};
use crate::spec::{Definition, normalize_schema};

/// The query's raw plan and the sandbox that it is planned in.
#[derive(Debug)]
pub(crate) struct SqlHandler {
    table: String,
    sandbox: SessionState,
    raw: LogicalPlan,
    /// What the raw plan scans: the revision's input, and columns that the query names without reading them.
    planned: SchemaRef,
    output_schema: SchemaRef,
    proven: bool,
}

impl SqlHandler {
    /// Plans the definition's query again, under its pinned settings.
    ///
    /// # Errors
    /// `HANDLER_VERSION` when the session lacks a function that the revision calls, `HANDLER_REFUSED` when the query
    /// is no longer admitted, for example because a function became volatile, `HANDLER_SCHEMA` when its types changed.
    pub(crate) fn bind(table: &str, definition: &Definition, text: &str, state: &SessionState) -> Result<Self> {
        check_functions(table, definition, state)?;
        let rules = Rules { strict: definition.incremental, allow_volatile: definition.options.allow_volatile };
        let input_schema = &definition.input_schema;
        let query = Query { table, text, state, session: &definition.session, rules };
        let analysis =
            if definition.tracked_declared { query.analyze(input_schema) } else { query.analyze_with_phantoms(input_schema, |_| true) };
        let Analysis { sandbox, planned, raw, optimized, findings } =
            analysis.map_err(|fault| fault.explain(table, input_schema, input_schema))?;
        if rules.strict {
            judge::check_keys(table, &raw, &definition.key)?;
        }
        let output = normalize_schema(optimized.schema().as_arrow());
        crate::handler::check_same_output(table, &definition.output_schema, &output)?;
        Ok(Self {
            table: table.to_string(),
            proven: rules.strict && !findings.asynchronous && !findings.volatile,
            sandbox,
            raw,
            planned,
            output_schema: Arc::clone(&definition.output_schema),
        })
    }

    pub(crate) fn proven(&self) -> bool {
        self.proven
    }

    /// The physical plan of the query over `input`. `hidden` columns of `input` are carried through every projection
    /// and stand behind the output columns; the query does not see them, not even as `*`.
    pub(crate) async fn plan_over(&self, input: Arc<dyn ExecutionPlan>, hidden: &[&str]) -> Result<Arc<dyn ExecutionPlan>> {
        let failed = |e| {
            let context = format!("table {:?}: the handler cannot be planned. Remedy: mend the handler", self.table);
            Error::from_datafusion(e, ErrorCode::HandlerFailed, context)
        };
        self.try_plan_over(input, hidden).await.map_err(failed)
    }

    async fn try_plan_over(&self, input: Arc<dyn ExecutionPlan>, hidden: &[&str]) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let found = input.schema();
        let carried: Vec<Field> = hidden.iter().map(|name| found.field_with_name(name).cloned()).collect::<std::result::Result<_, _>>()?;
        let extended = |schema: &Schema| {
            Arc::new(Schema::new(schema.fields().iter().map(|f| f.as_ref().clone()).chain(carried.clone()).collect::<Vec<_>>()))
        };
        let relation = InputTable::of_plan(extended(&self.planned), input);
        let source = provider_as_source(Arc::new(relation));
        let logical = if hidden.is_empty() { over(&self.raw, &source)? } else { carry(&self.raw, &source, hidden)? };
        let mut session = self.sandbox.clone();
        if self.proven {
            // The rows stay in the partitions that they come in.
            session.config_mut().options_mut().optimizer.enable_round_robin_repartition = false;
        }
        let physical = session.create_physical_plan(&logical).await?;
        let opened = physical.transform_up(|node| match node.downcast_ref::<HandlerInputExec>() {
            Some(leaf) => Ok(Transformed::yes(Arc::new(leaf.opened()?) as Arc<dyn ExecutionPlan>)),
            None => Ok(Transformed::no(node)),
        })?;
        Ok(Arc::new(HandlerOutputExec::try_new(&self.table, opened.data, extended(&self.output_schema))?))
    }
}

fn check_functions(table: &str, definition: &Definition, state: &SessionState) -> Result<()> {
    let known = |name: &str| state.scalar_functions().contains_key(name) || state.higher_order_functions().contains_key(name);
    match definition.functions.iter().find(|function| !known(&function.name)) {
        None => Ok(()),
        Some(missing) => Err(Error::new(
            ErrorCode::HandlerVersion,
            format!(
                "table {table:?}: the handler calls the function {:?}, which this session does not have. Remedy: register it before the run, or save a new revision",
                missing.name
            ),
        )),
    }
}

/// The plan with `input` read from `source`, which has the same columns.
fn over(plan: &LogicalPlan, source: &Arc<dyn TableSource>) -> DataFusionResult<LogicalPlan> {
    let replaced = plan.clone().transform_up_with_subqueries(|node| match node {
        LogicalPlan::TableScan(scan) if judge::is_input(&scan) => {
            let scan = TableScanBuilder::new(scan.table_name, Arc::clone(source)).build()?;
            Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(replaced.data)
}

/// The plan over `source`, with the `hidden` columns of `source` added behind every projection's own.
fn carry(plan: &LogicalPlan, source: &Arc<dyn TableSource>, hidden: &[&str]) -> DataFusionResult<LogicalPlan> {
    match plan {
        LogicalPlan::TableScan(_) => Ok(LogicalPlan::TableScan(TableScanBuilder::new(INPUT, Arc::clone(source)).build()?)),
        LogicalPlan::SubqueryAlias(alias) => {
            let input = carry(&alias.input, source, hidden)?;
            Ok(LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(input), alias.alias.clone())?))
        }
        LogicalPlan::Projection(projection) => {
            let input = carry(&projection.input, source, hidden)?;
            let mut expressions = projection.expr.clone();
            for name in hidden {
                expressions.push(Expr::Column(Column::from(input.schema().qualified_field_with_unqualified_name(name)?)));
            }
            Ok(LogicalPlan::Projection(Projection::try_new(expressions, Arc::new(input))?))
        }
        other => internal_err!("hidden columns cannot be carried through {}", other.display()),
    }
}

#[async_trait]
impl Handler for SqlHandler {
    fn version(&self) -> &str {
        "sql"
    }

    fn output_schema(&self, _input: &Schema) -> Result<SchemaRef> {
        Ok(Arc::clone(&self.output_schema))
    }

    async fn handle(&self, input: RecordBatch, _call: &HandlerCall) -> std::result::Result<Vec<RecordBatch>, HandlerError> {
        let schema = input.schema();
        let rows = MemorySourceConfig::try_new_exec(&[vec![input]], schema, None)?;
        let plan = self.plan_over(rows, &[]).await?;
        let batches: std::result::Result<_, DataFusionError> = collect(plan, self.sandbox.task_ctx()).await;
        Ok(batches?)
    }
}
