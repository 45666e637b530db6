//! The key filter: rows of an index scan whose keys are in a scope.
//!
//! ```text
//! KeyFilterExec      only rows with a key of the scope
//!  ├ keys            the scope's keys, in any order, as often as they like; read first, by whoever is polled first
//!  └ index           streams past; not read at all when the scope is empty
//! ```
//!
//! Memory, reserved in the pool: the distinct keys of the scope (at most 32 bytes for a small key), until the plan is
//! dropped, and one batch per partition. It never decides by a key's hash alone. Keys that cannot be had (no memory, files
//! gone or damaged) raise a flag beside the error, for whoever can do without the scope. It may be executed again.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow_schema::Field;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::future::{BoxFuture, FutureExt, Shared};
use futures::{StreamExt, TryStreamExt, future, stream};

use crate::error::{Error, ErrorCode, Result};
use crate::exec::equality::{KeyHash, KeySet};

type Loading = Shared<BoxFuture<'static, Result<Arc<Scope>>>>;

/// What the keys are.
#[derive(Debug, Clone)]
pub struct KeyFilterSpec {
    /// The incremental table's name, for messages.
    pub table: String,
    /// The key columns, found by name on both sides, in any encoding of these types.
    pub key: Vec<Field>,
    /// How keys are hashed.
    pub hash: KeyHash,
    /// The hash's seed.
    pub seed: u64,
    /// Set when the keys cannot be had.
    pub refused: Arc<AtomicBool>,
}

/// The plan node.
#[derive(Debug)]
pub struct KeyFilterExec {
    keys: Arc<dyn ExecutionPlan>,
    index: Arc<dyn ExecutionPlan>,
    spec: Arc<KeyFilterSpec>,
    loading: Mutex<Option<Loading>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

/// The keys, and the memory that they hold.
struct Scope {
    keys: KeySet,
    _reservation: MemoryReservation,
}

impl KeyFilterExec {
    /// Passes the rows of `index` whose key one row of `keys` has.
    pub fn new(keys: Arc<dyn ExecutionPlan>, index: Arc<dyn ExecutionPlan>, spec: KeyFilterSpec) -> Self {
        Self::with_spec(keys, index, Arc::new(spec))
    }

    fn with_spec(keys: Arc<dyn ExecutionPlan>, index: Arc<dyn ExecutionPlan>, spec: Arc<KeyFilterSpec>) -> Self {
        let equivalence = EquivalenceProperties::new(index.schema());
        let partitioning = index.output_partitioning().clone();
        let properties = PlanProperties::new(equivalence, partitioning, EmissionType::Incremental, Boundedness::Bounded);
        Self { keys, index, spec, loading: Mutex::default(), properties: Arc::new(properties), metrics: ExecutionPlanMetricsSet::new() }
    }

    fn loading(&self, context: &Arc<TaskContext>) -> Loading {
        let mut loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let start = || load(Arc::clone(&self.keys), Arc::clone(&self.spec), Arc::clone(context)).boxed().shared();
        loading.get_or_insert_with(start).clone()
    }
}

impl DisplayAs for KeyFilterExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.spec.key.iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ");
        match format {
            DisplayFormatType::TreeRender => write!(f, "key={key}"),
            _ => write!(f, "KeyFilterExec: table={}, key=[{key}]", self.spec.table),
        }
    }
}

impl ExecutionPlan for KeyFilterExec {
    fn name(&self) -> &str {
        "KeyFilterExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.keys, &self.index]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; 2]
    }

    fn apply_expressions(&self, _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>) -> DfResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> DfResult<Arc<dyn ExecutionPlan>> {
        match (children.len(), children.pop(), children.pop()) {
            (2, Some(index), Some(keys)) => Ok(Arc::new(Self::with_spec(keys, index, Arc::clone(&self.spec)))),
            _ => Err(Error::internal("KeyFilterExec has the keys and the index as children").into()),
        }
    }

    fn reset_state(self: Arc<Self>) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::with_spec(Arc::clone(&self.keys), Arc::clone(&self.index), Arc::clone(&self.spec))))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let (loading, index, spec) = (self.loading(&context), Arc::clone(&self.index), Arc::clone(&self.spec));
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let filtered = async move {
            let scope = loading.await.map_err(DataFusionError::from)?;
            if scope.keys.is_empty() {
                return Ok(stream::empty().boxed());
            }
            let rows = index.execute(partition, context)?;
            let rows = rows.map(move |batch| filter(&scope, &spec, &batch?, &metrics));
            Ok::<_, DataFusionError>(rows.try_filter(|batch| future::ready(batch.num_rows() > 0)).boxed())
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), stream::once(filtered).try_flatten())))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

fn filter(scope: &Scope, spec: &KeyFilterSpec, batch: &RecordBatch, metrics: &BaselineMetrics) -> DfResult<RecordBatch> {
    let _timer = metrics.elapsed_compute().timer();
    let found = scope.keys.find(&key_columns(spec, batch)?)?;
    let mask: BooleanArray = found.iter().map(|place| Some(place.is_some())).collect();
    let rows = filter_record_batch(batch, &mask)?;
    metrics.record_output(rows.num_rows());
    Ok(rows)
}

fn key_columns(spec: &KeyFilterSpec, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
    let column = |field: &Field| {
        let missing = || Error::internal(format!("table {:?}: a batch has no key column {:?}", spec.table, field.name()));
        batch.column_by_name(field.name()).cloned().ok_or_else(missing)
    };
    spec.key.iter().map(column).collect()
}

/// Reads every key. Whatever keeps them from being had raises the flag.
async fn load(keys: Arc<dyn ExecutionPlan>, spec: Arc<KeyFilterSpec>, context: Arc<TaskContext>) -> Result<Arc<Scope>> {
    let loaded = read_keys(keys, &spec, &context).await;
    if let Err(error) = &loaded {
        let code = error.code();
        let is_lack =
            matches!(code, ErrorCode::ResourcesExhausted | ErrorCode::HistoryMissing | ErrorCode::Corrupt | ErrorCode::StoreFailed);
        spec.refused.fetch_or(is_lack, Ordering::AcqRel);
    }
    loaded.map(Arc::new)
}

async fn read_keys(keys: Arc<dyn ExecutionPlan>, spec: &KeyFilterSpec, context: &Arc<TaskContext>) -> Result<Scope> {
    let unreadable = |error: DataFusionError| {
        Error::from_datafusion(error, ErrorCode::StoreFailed, format!("table {:?}: the keys of the changes cannot be read", spec.table))
    };
    let reservation = MemoryConsumer::new(format!("KeyFilterExec[{}]", spec.table)).register(context.memory_pool());
    let mut scope = KeySet::try_new(&spec.key, spec.hash, spec.seed)?;
    let single: Arc<dyn ExecutionPlan> = match keys.output_partitioning().partition_count() {
        1 => keys,
        _ => Arc::new(CoalescePartitionsExec::new(keys)),
    };
    let mut batches = single.execute(0, Arc::clone(context)).map_err(unreadable)?;
    while let Some(batch) = batches.try_next().await.map_err(unreadable)? {
        let columns = key_columns(spec, &batch)?;
        scope.insert_granted(&columns, |bytes| reservation.try_grow(bytes).map_err(unreadable))?;
        // What was asked for is the most that growing took.
        reservation.try_resize(scope.allocated()).map_err(unreadable)?;
    }
    Ok(Scope { keys: scope, _reservation: reservation })
}
