//! Fewer rows in a batch where rows are large.
//!
//! ```text
//! footers: 2.3 GiB in 20,000 rows ─► 120 KiB a row ─► 136 rows in a batch instead of 8,192
//! ```
//!
//! DataFusion counts rows, so a batch of large cells would hold gigabytes, in every partition. Memory: about
//! [`BATCH_BYTES`] in a batch. Only what the scan's statistics tell is used: a source that has none, and cells that a
//! Parquet dictionary stores once, keep the session's batches. Never changes rows or their order.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result as DfResult;
use datafusion::execution::context::SessionState;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions,
};

use crate::exec::acting::only_child;
use crate::store::files::BATCH_BYTES;

/// `plan` with batches of limited bytes, if its rows are so large that this matters.
pub(super) fn bounded(state: &SessionState, plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let usual = state.config().batch_size();
    let known = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new());
    match known.ok().as_deref().and_then(row_bytes) {
        Some(bytes) if bytes.saturating_mul(usual) > BATCH_BYTES => {
            Arc::new(BoundedBatchesExec { input: plan, rows: (BATCH_BYTES / bytes).max(1) })
        }
        _ => plan,
    }
}

/// The mean bytes of a row.
fn row_bytes(statistics: &Statistics) -> Option<usize> {
    let columns = statistics.column_statistics.iter().filter_map(|column| column.byte_size.get_value());
    let bytes = columns.fold(0_usize, |sum, bytes| sum.saturating_add(*bytes));
    bytes.checked_div(*statistics.num_rows.get_value()?)
}

/// Executes its input with another batch size than the session's.
#[derive(Debug)]
struct BoundedBatchesExec {
    input: Arc<dyn ExecutionPlan>,
    rows: usize,
}

impl DisplayAs for BoundedBatchesExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => write!(f, "BoundedBatchesExec: batch_rows={}", self.rows),
            DisplayFormatType::TreeRender => write!(f, "batch_rows={}", self.rows),
        }
    }
}

impl ExecutionPlan for BoundedBatchesExec {
    fn name(&self) -> &str {
        "BoundedBatchesExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(&self, _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>) -> DfResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self { input: only_child(self.name(), children)?, rows: self.rows }))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> DfResult<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let config = context.session_config().clone().with_batch_size(self.rows);
        let context = TaskContext::new(
            context.task_id(),
            context.session_id(),
            config,
            context.scalar_functions().clone(),
            context.higher_order_functions().clone(),
            context.aggregate_functions().clone(),
            context.window_functions().clone(),
            context.runtime_env(),
        );
        self.input.execute(partition, Arc::new(context))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        None
    }
}
