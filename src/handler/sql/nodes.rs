//! The two ends of a planned SQL handler.
//!
//! ```text
//! HandlerOutputExec   exactly the revision's output columns (and hidden ones); errors of the query are HANDLER_FAILED
//!  └ … the query …
//!     └ HandlerInputExec   input's columns by name, in the revision's types; errors from below pass through unchanged
//!        └ the given plan
//! ```
//!
//! Memory: one batch per partition. Partitions and row order are the given plan's. Neither node acts; dropping
//! a stream drops the streams below it.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{internal_datafusion_err, plan_datafusion_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::StreamExt;

use crate::error::{Error, ErrorCode};
use crate::handler::conform_batch;

fn properties(schema: &SchemaRef, input: &Arc<dyn ExecutionPlan>) -> Arc<PlanProperties> {
    let partitions = input.output_partitioning().partition_count();
    Arc::new(PlanProperties::new(
        EquivalenceProperties::new(Arc::clone(schema)),
        datafusion::physical_plan::Partitioning::UnknownPartitioning(partitions),
        input.pipeline_behavior(),
        input.boundedness(),
    ))
}

/// The positions of `schema`'s columns in `input`.
fn positions(schema: &SchemaRef, input: &Arc<dyn ExecutionPlan>) -> Result<Vec<usize>> {
    let found = input.schema();
    let position = |name: &String| found.index_of(name).map_err(|_| plan_datafusion_err!("the handler's input has no column {name:?}"));
    schema.fields().iter().map(|field| position(field.name())).collect()
}

fn pick(batch: &RecordBatch, positions: &[usize], schema: &SchemaRef) -> Result<RecordBatch> {
    let columns: Vec<ArrayRef> = positions.iter().filter_map(|index| batch.columns().get(*index).cloned()).collect();
    Ok(conform_batch(schema, &columns, batch.num_rows())?)
}

/// An error that came from below `input`, not from the query.
#[derive(Debug, Clone)]
struct InputFault(Arc<DataFusionError>);

impl fmt::Display for InputFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for InputFault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.0.as_ref())
    }
}

/// The leaf of the query. While the query is planned it hides the given plan from the optimizer: that plan is
/// optimised already and may act.
#[derive(Debug)]
pub(super) struct HandlerInputExec {
    input: Arc<dyn ExecutionPlan>,
    positions: Vec<usize>,
    hidden: bool,
    properties: Arc<PlanProperties>,
}

impl HandlerInputExec {
    pub(super) fn try_new(input: Arc<dyn ExecutionPlan>, schema: SchemaRef) -> Result<Self> {
        let positions = positions(&schema, &input)?;
        Ok(Self { properties: properties(&schema, &input), input, positions, hidden: true })
    }

    /// The same node with its input in sight.
    pub(super) fn opened(&self) -> Result<Self> {
        Ok(Self { hidden: false, ..Self::try_new(Arc::clone(&self.input), self.schema())? })
    }
}

impl DisplayAs for HandlerInputExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandlerInputExec: columns=[{}]", names(&self.schema()))
    }
}

fn names(schema: &SchemaRef) -> String {
    schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ")
}

impl ExecutionPlan for HandlerInputExec {
    fn name(&self) -> &str {
        "HandlerInputExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        if self.hidden { Vec::new() } else { vec![&self.input] }
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.children().len()]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![false; self.children().len()]
    }

    fn apply_expressions(&self, _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match children.pop() {
            None => Ok(self),
            Some(input) => Ok(Arc::new(Self { hidden: self.hidden, ..Self::try_new(input, self.schema())? })),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let (schema, positions) = (self.schema(), self.positions.clone());
        let rows = self.input.execute(partition, context)?.map(move |batch| match batch {
            Ok(batch) => pick(&batch, &positions, &schema),
            Err(error) => Err(DataFusionError::External(Box::new(InputFault(Arc::new(error))))),
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

/// The root of the query.
#[derive(Debug)]
pub(super) struct HandlerOutputExec {
    table: String,
    input: Arc<dyn ExecutionPlan>,
    positions: Vec<usize>,
    properties: Arc<PlanProperties>,
}

impl HandlerOutputExec {
    pub(super) fn try_new(table: &str, input: Arc<dyn ExecutionPlan>, schema: SchemaRef) -> Result<Self> {
        let positions = positions(&schema, &input)?;
        Ok(Self { table: table.to_string(), properties: properties(&schema, &input), input, positions })
    }
}

impl DisplayAs for HandlerOutputExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandlerOutputExec: table={}, columns=[{}]", self.table, names(&self.schema()))
    }
}

impl ExecutionPlan for HandlerOutputExec {
    fn name(&self) -> &str {
        "HandlerOutputExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        // Its columns may be renamed or cast, so no order is claimed.
        vec![false]
    }

    fn apply_expressions(&self, _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let input = children.pop().ok_or_else(|| internal_datafusion_err!("HandlerOutputExec has one child"))?;
        Ok(Arc::new(Self::try_new(&self.table, input, self.schema())?))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let (schema, positions, table) = (self.schema(), self.positions.clone(), self.table.clone());
        let rows =
            self.input.execute(partition, context)?.map(move |batch| match batch.and_then(|batch| pick(&batch, &positions, &schema)) {
                Ok(batch) => Ok(batch),
                Err(error) => Err(blame(&table, error)),
            });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

/// Gives errors from below `input` back as they were; every other error is the query's.
fn blame(table: &str, error: DataFusionError) -> DataFusionError {
    if let Some(InputFault(inner)) = find_fault(&error) {
        drop(error); // it may hold the only other reference
        return Arc::try_unwrap(inner).unwrap_or_else(DataFusionError::Shared);
    }
    let context = format!("table {table:?}: the handler failed. Remedy: mend the handler or the values that it cannot take");
    Error::from_datafusion(error, ErrorCode::HandlerFailed, context).into()
}

fn find_fault(error: &DataFusionError) -> Option<InputFault> {
    match error {
        DataFusionError::External(inner) => match inner.downcast_ref::<InputFault>() {
            Some(fault) => Some(fault.clone()),
            None => inner.downcast_ref::<DataFusionError>().and_then(find_fault),
        },
        DataFusionError::Shared(inner) => find_fault(inner),
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => find_fault(inner),
        DataFusionError::ArrowError(inner, _) => match inner.as_ref() {
            arrow::error::ArrowError::ExternalError(inner) => inner.downcast_ref::<DataFusionError>().and_then(find_fault),
            _ => None,
        },
        DataFusionError::Collection(errors) => errors.iter().find_map(find_fault),
        _ => None,
    }
}
