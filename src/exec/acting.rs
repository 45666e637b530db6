//! What the nodes that act have in common: they run once, in one task, and answer with one batch.
//!
//! ```text
//! execute ─ Once ─► stream ─ first poll ─► drive: one task per input partition ─ all ended ─► one batch
//! ```
//!
//! Memory: what the tasks hold. Never acts before the stream is polled, never twice, and never takes a panic of a task
//! for its end.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::RecordBatch;
use arrow_schema::SchemaRef;
use datafusion::common::exec_datafusion_err;
use datafusion::common::runtime::JoinSet;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties};
use tokio::task::JoinError;

use super::ahead::read_ahead;
use crate::error::{Error, Result};

/// Lets a plan instance run once.
#[derive(Debug, Default)]
pub(crate) struct Once(AtomicBool);

impl Once {
    /// Takes the only leave to run `partition` of the node `name`.
    pub(crate) fn begin(&self, name: &str, partition: usize) -> DfResult<()> {
        if partition != 0 {
            return Err(Error::internal(format!("{name} has one partition, not {partition}")).into());
        }
        if self.0.swap(true, Ordering::AcqRel) {
            return Err(Error::internal(format!("{name} acts once and was executed again")).into());
        }
        Ok(())
    }
}

/// The properties of a node that emits in the end.
pub(crate) fn acting_properties(schema: SchemaRef) -> Arc<PlanProperties> {
    let equivalence = EquivalenceProperties::new(schema);
    Arc::new(PlanProperties::new(equivalence, Partitioning::UnknownPartitioning(1), EmissionType::Final, Boundedness::Bounded))
}

/// A stream that runs `work` at its first poll and emits the batch.
pub(crate) fn one_batch<F>(schema: SchemaRef, work: F) -> SendableRecordBatchStream
where
    F: Future<Output = DfResult<RecordBatch>> + Send + 'static,
{
    Box::pin(RecordBatchStreamAdapter::new(schema, futures::stream::once(work)))
}

/// The only child of a node with one.
pub(crate) fn only_child(name: &str, mut children: Vec<Arc<dyn ExecutionPlan>>) -> DfResult<Arc<dyn ExecutionPlan>> {
    match (children.pop(), children.is_empty()) {
        (Some(child), true) => Ok(child),
        _ => Err(Error::internal(format!("{name} has exactly one child")).into()),
    }
}

/// Runs `task` over every partition of `input` at the same time and gathers what they return, in partition order.
/// The first failure ends them all; so does dropping the future.
pub(crate) async fn drive<T, F, Fut>(input: Arc<dyn ExecutionPlan>, context: Arc<TaskContext>, task: F) -> DfResult<Vec<T>>
where
    T: Send + 'static,
    F: Fn(usize, SendableRecordBatchStream) -> Fut,
    Fut: Future<Output = DfResult<T>> + Send + 'static,
{
    let (mut tasks, partitions) = (JoinSet::new(), input.output_partitioning().partition_count());
    for partition in 0..partitions {
        let rows = input.execute(partition, Arc::clone(&context))?;
        let work = task(partition, read_ahead(rows, partitions, &context));
        tasks.spawn(async move { work.await.map(|result| (partition, result)) });
    }
    let mut results = Vec::new();
    while let Some(joined) = tasks.join_next().await {
        results.push(joined.map_err(panicked)??);
    }
    results.sort_by_key(|(partition, _)| *partition);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// A panic comes from what the plan evaluates (a source, a function of the handler): the run says whose fault it is.
fn panicked(error: JoinError) -> DataFusionError {
    match error.try_into_panic() {
        Ok(payload) => {
            let text = payload.downcast_ref::<&str>().map(ToString::to_string).or_else(|| payload.downcast_ref::<String>().cloned());
            exec_datafusion_err!("panic: {}", text.unwrap_or_default())
        }
        Err(error) => exec_datafusion_err!("a task ended without a result: {error}"),
    }
}

/// A unique first part for the names of one partition's files.
pub(crate) fn file_prefix(env: &crate::env::Env, partition: usize) -> Result<String> {
    Ok(format!("{}-{partition:04}", env.ids.id()?))
}
