//! `ContractExec`: one output row for each key that a call was given, and nothing else.
//!
//! ```text
//!  given  id │ name │ fp_hi fp_lo src        returned  id │ upper
//!          1 │ a    │ …                                 2 │ B        any order, any number of batches
//!          2 │ b    │ …                                 1 │ A
//!             └──────────── rejoined by key ────────────┘
//!  out    id │ upper │ fp_hi fp_lo src       id from the given rows, types exactly the revision's
//!          2 │ B     │ …
//!          1 │ A     │ …
//! ```
//!
//! Checked per call: every returned batch with rows has the revision's columns (encodings may differ, order is free),
//! no key is null, missing, returned twice, or unknown to the call. The first fault fails the run; the messages name
//! up to five keys. Keys are compared by the one definition of equality, exactly, never by hash alone.
//!
//! Memory: one call at a time per partition: its rows, what it returned, and a set of its keys. It never changes,
//! drops or repairs a row.

mod check;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow_schema::{Field, Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{internal_datafusion_err, internal_err};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties};
use futures::{StreamExt, TryStreamExt};

pub(crate) use self::check::Contract;
use crate::exec::equality::render_key;
use crate::exec::handler::HandlerExec;

/// Up to five keys of `batch`, for messages.
pub(crate) fn sample_keys(batch: &RecordBatch, key: &[String], rows: impl IntoIterator<Item = usize>) -> String {
    let schema = batch.schema_ref();
    let (fields, columns): (Vec<Field>, Vec<ArrayRef>) = key
        .iter()
        .filter_map(|name| schema.index_of(name).ok())
        .filter_map(|index| Some((schema.fields().get(index)?.as_ref().clone(), batch.columns().get(index).cloned()?)))
        .unzip();
    let mut rows = rows.into_iter();
    let samples: Vec<String> = rows.by_ref().take(5).map(|row| render_key(&fields, &columns, row)).collect();
    let more = if rows.next().is_some() { ", …" } else { "" };
    format!("{}{more}", samples.join(", "))
}

/// The schema that a checked handler's rows have: the revision's output, then the hidden columns of the input.
pub(crate) fn checked_schema(output: &Schema, visible: &Schema, input: &Schema) -> SchemaRef {
    let hidden = input.fields().iter().filter(|field| visible.field_with_name(field.name()).is_err());
    Arc::new(Schema::new(output.fields().iter().chain(hidden).map(|field| field.as_ref().clone()).collect::<Vec<_>>()))
}

/// Checks what the handler returned; see the module's documentation.
#[derive(Debug)]
pub struct ContractExec {
    handler: Arc<HandlerExec>,
    child: Arc<dyn ExecutionPlan>,
    metrics: ExecutionPlanMetricsSet,
    properties: Arc<PlanProperties>,
}

impl ContractExec {
    /// Checks the calls of `handler`.
    pub fn new(handler: Arc<HandlerExec>) -> Self {
        let spec = handler.spec();
        let schema = checked_schema(&spec.output_schema, &spec.input_schema, &handler.input_schema());
        let child = Arc::clone(&handler) as Arc<dyn ExecutionPlan>;
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(child.output_partitioning().partition_count()),
            child.pipeline_behavior(),
            child.boundedness(),
        );
        Self { handler, child, metrics: ExecutionPlanMetricsSet::new(), properties: Arc::new(properties) }
    }
}

impl DisplayAs for ContractExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContractExec: key=[{}]", self.handler.spec().key.join(", "))
    }
}

impl ExecutionPlan for ContractExec {
    fn name(&self) -> &str {
        "ContractExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.child]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(&self, _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let child = children.pop().ok_or_else(|| internal_datafusion_err!("ContractExec has one child"))?;
        if !child.is::<HandlerExec>() {
            return internal_err!("ContractExec reads from HandlerExec only, not from {}", child.name());
        }
        match (child as Arc<dyn std::any::Any + Send + Sync>).downcast::<HandlerExec>() {
            Ok(handler) => Ok(Arc::new(Self::new(handler))),
            Err(_) => internal_err!("ContractExec reads from HandlerExec only"),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let contract = Arc::new(Contract::try_new(self.handler.spec(), &self.handler.input_schema())?);
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let calls = self.handler.calls(partition, context)?;
        let checked = calls.map(move |call| {
            let _timer = metrics.elapsed_compute().timer();
            let batches = contract.check(&call?)?;
            metrics.output_rows().add(batches.iter().map(RecordBatch::num_rows).sum());
            Ok::<_, datafusion::error::DataFusionError>(futures::stream::iter(batches.into_iter().map(Ok)))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), checked.try_flatten())))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
