//! The keyed diff: a snapshot of the source against the baseline, created and updated rows out.
//!
//! ```text
//! KeyedDiffExec        created │ updated rows as the source streams; counts and dead rows at the end (DiffOutcome)
//!  ├ index             key, fingerprint, file, row of every live row of the base    loaded once, shared by all partitions
//!  ├ outside           keys of live rows that the index leaves out, because their source files are not read
//!  └ source plan       key + tracked columns, any encoding, any number of partitions; never shuffled
//! ```
//!
//! Memory, reserved in the pool: per baseline row its key (8 bytes, or its bytes and 8), 16 bytes of fingerprint, about 8 of
//! hash table and two bits; per new key the same without the fingerprint. Per partition one batch, or 32 MiB.
//! Never more than half of the pool: a baseline beyond that, and the source's rows, go to disk in buckets by key, which
//! are diffed one after another when the source has ended; of new keys beyond that, the keys alone go to disk, to find
//! duplicates among them. The results are the same.
//! It never decides by a key's hash, never emits a row of a source with null or duplicate keys once they are known, never
//! reads the source twice, and its output is worth nothing until the outcome is there.

mod ascending;
mod baseline;
mod bitmap;
mod columns;
mod diff;
mod emit;
mod findings;
mod load;
mod memory;
mod metrics;
mod ordered;
mod origin;
mod outcome;
mod outside;
#[cfg(test)]
mod outside_tests;
mod places;
mod position_table;
mod settle;
mod spill;
#[cfg(test)]
mod spill_tests;
mod state;
mod stream;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use arrow_schema::{Field, Schema};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties};

pub(crate) use columns::index_scan_schema;
pub use columns::{FILE, FP_HI, FP_LO, ROW, SRC, VERSION, change_schema, hidden_fields};
pub use origin::Origins;
pub use outcome::{DiffOutcome, DiffReport};

use crate::error::{Error, ErrorCode, Result};
use crate::exec::equality::{Fingerprinter, KeyHash, KeyReader};
use crate::exec::index_scan::KeyRanges;
use crate::spec::check_same_types;
use outside::{Outside, OutsidePlan};
use state::RunningDiff;

/// What is compared and how.
#[derive(Debug, Clone)]
pub struct DiffSpec {
    /// The incremental table's name, for messages.
    pub table: String,
    /// The key columns, with normalised types.
    pub key: Vec<Field>,
    /// The tracked columns that are not key columns, with normalised types, in the fingerprinter's order.
    pub tracked: Vec<Field>,
    /// Computes the fingerprints of the tracked columns.
    pub fingerprinter: Arc<Fingerprinter>,
    /// How keys are hashed.
    pub hash: KeyHash,
    /// The source's Int32 column with the ordinal of each row's file, if it has one.
    pub source_ordinals: Option<String>,
    /// Whether baseline rows that the source does not have stay: the source is a part of the whole (rows above a cursor's
    /// mark), so that a key it lacks means nothing.
    pub keeps_missing: bool,
}

/// The plan node.
#[derive(Debug)]
pub struct KeyedDiffExec {
    index: Option<Arc<dyn ExecutionPlan>>,
    outside: Option<OutsidePlan>,
    source: Arc<dyn ExecutionPlan>,
    spec: Arc<DiffSpec>,
    reader: Arc<KeyReader>,
    running: Arc<RunningDiff>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl KeyedDiffExec {
    /// A diff of `source` against `index` (`None`: an empty baseline). `SCHEMA_CHANGED` when the source's columns do not
    /// have the types of `spec`, `TYPE_UNSUPPORTED` for keys that cannot be compared.
    pub fn try_new(index: Option<Arc<dyn ExecutionPlan>>, source: Arc<dyn ExecutionPlan>, spec: DiffSpec) -> Result<Self> {
        let reader = Arc::new(KeyReader::try_new(&spec.key)?);
        check_source(&spec, &source.schema())?;
        let spec = Arc::new(spec);
        let running = Arc::new(RunningDiff::new(Arc::clone(&spec)));
        let properties = properties(&spec, &source);
        Ok(Self { index, outside: None, source, spec, reader, running, properties, metrics: ExecutionPlanMetricsSet::new() })
    }

    /// The same diff where `index` reads the rows of the base that the baseline leaves out, because their source files are
    /// not read: a new key that is one of theirs is `KEY_DUPLICATE`. The diff tells `ranges` where new keys lie before it
    /// executes `index`.
    pub fn with_outside(mut self, index: Arc<dyn ExecutionPlan>, ranges: Arc<KeyRanges>) -> Self {
        self.outside = Some(OutsidePlan { index, ranges });
        self
    }

    /// The side channel that is filled when every partition has ended well.
    pub fn outcome(&self) -> Arc<DiffOutcome> {
        self.running.outcome()
    }

    fn replace(&self, mut children: Vec<Arc<dyn ExecutionPlan>>, running: Arc<RunningDiff>) -> Result<Self> {
        let expected = self.children().len();
        let (count, source) = (children.len(), children.pop());
        let Some(source) = source.filter(|_| count == expected) else {
            return Err(Error::internal("KeyedDiffExec has the index and the rows outside, if any, and the source as children"));
        };
        let outside = self.outside.as_ref().zip(self.outside.as_ref().and_then(|_| children.pop()));
        let outside = outside.map(|(plan, index)| OutsidePlan { index, ranges: Arc::clone(&plan.ranges) });
        let (spec, reader) = (Arc::clone(&self.spec), Arc::clone(&self.reader));
        let properties = properties(&spec, &source);
        Ok(Self { index: children.pop(), outside, source, spec, reader, running, properties, metrics: ExecutionPlanMetricsSet::new() })
    }
}

fn check_source(spec: &DiffSpec, source: &Schema) -> Result<()> {
    let fields: Vec<Field> = spec.key.iter().chain(&spec.tracked).cloned().collect();
    let names: Vec<String> = fields.iter().map(|f| f.name().clone()).collect();
    let differences = check_same_types(&Schema::new(fields), source, &names);
    if differences.is_empty() {
        return Ok(());
    }
    let differences: Vec<String> = differences.iter().map(ToString::to_string).collect();
    Err(Error::new(
        ErrorCode::SchemaChanged,
        format!(
            "table {table:?}: the source's schema changed: {what}. Remedy: ALTER INCREMENTAL TABLE {table} ACCEPT SCHEMA, or declare the column types of a CSV or JSON source",
            table = spec.table,
            what = differences.join("; ")
        ),
    ))
}

fn properties(spec: &DiffSpec, source: &Arc<dyn ExecutionPlan>) -> Arc<PlanProperties> {
    let equivalence = EquivalenceProperties::new(columns::change_schema_of(&spec.key, &spec.tracked));
    let partitioning = Partitioning::UnknownPartitioning(source.output_partitioning().partition_count());
    Arc::new(PlanProperties::new(equivalence, partitioning, EmissionType::Incremental, Boundedness::Bounded))
}

impl DisplayAs for KeyedDiffExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |fields: &[Field]| fields.iter().map(|f| f.name().as_str()).collect::<Vec<_>>().join(", ");
        let (key, tracked) = (names(&self.spec.key), names(&self.spec.tracked));
        let baseline = if self.index.is_some() { "index" } else { "empty" };
        match format {
            DisplayFormatType::TreeRender => write!(f, "key={key}\ntracked={tracked}\nbaseline={baseline}"),
            _ => write!(f, "KeyedDiffExec: table={}, key=[{key}], tracked=[{tracked}], baseline={baseline}", self.spec.table),
        }
    }
}

impl ExecutionPlan for KeyedDiffExec {
    fn name(&self) -> &str {
        "KeyedDiffExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.index.iter().chain(self.outside.as_ref().map(|outside| &outside.index)).chain([&self.source]).collect()
    }

    // Shuffling the source would undo the order that predictions live on.
    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.children().len()]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DataFusionResult<TreeNodeRecursion>,
    ) -> DataFusionResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        // The same execution over rewritten inputs: the outcome stays the one that was handed out.
        Ok(Arc::new(self.replace(children, Arc::clone(&self.running))?))
    }

    fn reset_state(self: Arc<Self>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let children = self.children().into_iter().cloned().collect();
        Ok(Arc::new(self.replace(children, Arc::new(RunningDiff::new(Arc::clone(&self.spec))))?))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let inputs = || load::Inputs { index: self.index.clone(), source_rows: load::exact_rows(self.source.as_ref()) };
        let shared = || {
            let (spec, reader) = (Arc::clone(&self.spec), Arc::clone(&self.reader));
            load::Shared::new(spec, reader, &context, &self.metrics, self.outside.is_some())
        };
        let loading = self.running.start(partition, inputs, shared, &context)?;
        let part = stream::Partition {
            spec: Arc::clone(&self.spec),
            reader: Arc::clone(&self.reader),
            running: Arc::clone(&self.running),
            outside: self.outside.clone().map(|plan| {
                let (spec, reader, running) = (Arc::clone(&self.spec), Arc::clone(&self.reader), Arc::clone(&self.running));
                let compared = metrics::compared_outside(&self.metrics);
                Arc::new(Outside { plan, spec, reader, running, context: Arc::clone(&context), compared })
            }),
            source: self.source.execute(partition, Arc::clone(&context))?,
            schema: self.schema(),
            batch_rows: context.session_config().batch_size(),
            number: partition,
            partitions: self.properties.partitioning.partition_count(),
            metrics: metrics::DiffMetrics::new(&self.metrics, partition),
            set: self.metrics.clone(),
            context,
        };
        Ok(stream::stream_partition(part, loading))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
