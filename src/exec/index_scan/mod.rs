//! The index scan: key, fingerprint, source ordinal, file and row of every live row of the base.
//!
//! ```text
//! base files  0  1  2  3  4          partition 0: 0, 2, 4      partition 1: 1, 3
//! base file   0                      partition 0: its first row groups      partition 1: the others
//!  per file   index.parquet + .dv ─ hash verified ─► decode ─ drop dead rows ─► + file, row
//! ```
//!
//! Memory, reserved in the pool: per partition one index file's bytes as stored, or about one row group's where that
//! is more than half of the pool (it is read twice then); and one batch of 65,536 rows. It never
//! reads a data file or an index file without wanted rows, never hands on a byte before the whole object's hash is right, and never writes.

mod file;
mod ranges;
mod scope;
#[cfg(test)]
mod scope_tests;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Weak};

use arrow::array::RecordBatch;
use arrow_schema::{Field, Schema, SchemaRef};
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Statistics, internal_err};
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::coop::cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, StatisticsArgs};
use futures::stream;
use tokio::sync::Mutex;

use crate::error::{Error, ErrorCode, Result};
use crate::exec::keyed_diff::{FP_HI, FP_LO, index_scan_schema};
use crate::store::{DataFile, Incarnation};
pub use ranges::KeyRanges;
pub use scope::Scope;

use file::{Extent, Fetched, IndexReader, Slice, Wanted, fetch, fetched_bytes};

/// Partitions that an index scan has at most, unless it is told otherwise.
const PARTITIONS: usize = 4;
/// Files of fewer rows are not divided among partitions: one row group's worth.
const SLICE_ROWS: u64 = 1 << 18;

/// The plan node.
#[derive(Debug)]
pub struct IndexScanExec {
    incarnation: Incarnation,
    files: Arc<Vec<DataFile>>,
    scope: Scope,
    /// Into how many parts each file is divided: more than one where there are fewer files than partitions.
    slices: usize,
    opened: Arc<Vec<Mutex<Opened>>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

/// A file that several partitions read: fetched once, and kept while one of them reads it.
#[derive(Debug, Default)]
struct Opened {
    /// Decided once: the slices of a file must agree.
    extent: Option<Extent>,
    fetched: Weak<Fetched>,
}

impl IndexScanExec {
    /// Scans the index of `files`, the base's file list; `key` are the revision's key fields. At most four partitions.
    pub fn new(incarnation: Incarnation, files: Arc<Vec<DataFile>>, key: &[Field]) -> Self {
        Self::with_partitions(incarnation, files, key, PARTITIONS)
    }

    /// [`Self::new`] with at most `partitions` partitions.
    pub fn with_partitions(incarnation: Incarnation, files: Arc<Vec<DataFile>>, key: &[Field], partitions: usize) -> Self {
        let equivalence = EquivalenceProperties::new(index_scan_schema(key));
        let is_large = files.iter().any(|file| file.rows > SLICE_ROWS);
        let slices = if is_large { (partitions / files.len().max(1)).max(1) } else { 1 };
        let partitioning = Partitioning::UnknownPartitioning((files.len() * slices).clamp(1, partitions.max(1)));
        let opened = Arc::new(files.iter().map(|_| Mutex::default()).collect());
        let properties = PlanProperties::new(equivalence, partitioning, EmissionType::Incremental, Boundedness::Bounded)
            .with_scheduling_type(SchedulingType::Cooperative);
        let (scope, properties, metrics) = (Scope::All, Arc::new(properties), ExecutionPlanMetricsSet::new());
        Self { incarnation, files, scope, slices, opened, properties, metrics }
    }

    /// The same scan of the rows in `scope` only. One of unread rows has no fingerprints.
    pub fn with_scope(mut self, scope: Scope) -> Self {
        if matches!(scope, Scope::Unread(..)) {
            let schema = self.schema();
            let fields = schema.fields().iter().filter(|field| field.name() != FP_HI && field.name() != FP_LO);
            let schema = Arc::new(Schema::new(fields.cloned().collect::<Vec<_>>()));
            let partitioning = self.properties.partitioning.clone();
            let equivalence = EquivalenceProperties::new(schema);
            let properties = PlanProperties::new(equivalence, partitioning, EmissionType::Incremental, Boundedness::Bounded)
                .with_scheduling_type(SchedulingType::Cooperative);
            self.properties = Arc::new(properties);
        }
        self.scope = scope;
        self
    }

    /// The files that may have wanted rows: how many, and how many rows they have at most.
    fn extent(&self) -> (usize, u64) {
        let files = self.files.iter().filter(|file| self.scope.wants_file(file));
        files.fold((0, 0), |(files, rows), file| (files + 1, rows + self.scope.rows_at_most(file)))
    }

    fn partitions(&self) -> usize {
        self.properties.partitioning.partition_count()
    }
}

impl DisplayAs for IndexScanExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.incarnation.name();
        if let Scope::Unread(sources, _) = &self.scope {
            let sources = sources.len();
            return match format {
                DisplayFormatType::TreeRender => write!(f, "table={table}\nunread_sources={sources}"),
                _ => write!(f, "IndexScanExec: table={table}, keys of {sources} unread source files, where new keys may lie"),
            };
        }
        let (files, rows) = self.extent();
        match format {
            DisplayFormatType::TreeRender => write!(f, "table={table}\nfiles={files}\nrows={rows}"),
            _ => write!(f, "IndexScanExec: table={table}, files={files}, rows={rows}"),
        }
    }
}

impl ExecutionPlan for IndexScanExec {
    fn name(&self) -> &str {
        "IndexScanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DataFusionResult<TreeNodeRecursion>,
    ) -> DataFusionResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        if children.is_empty() { Ok(self) } else { internal_err!("IndexScanExec has no children") }
    }

    fn statistics_from_inputs(&self, _inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> DataFusionResult<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.schema());
        if let (None, Ok(rows)) = (args.partition(), usize::try_from(self.extent().1)) {
            let is_exact = matches!(self.scope, Scope::All);
            statistics.num_rows = if is_exact { Precision::Exact(rows) } else { Precision::Inexact(rows) };
        }
        Ok(Arc::new(statistics))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let consumer = MemoryConsumer::new(format!("IndexScanExec[{}, {partition}]", self.incarnation.name()));
        let scan = Scan {
            incarnation: self.incarnation.clone(),
            files: Arc::clone(&self.files),
            scope: self.scope.clone(),
            schema: self.schema(),
            opened: Arc::clone(&self.opened),
            next: partition / self.slices,
            step: self.partitions().div_ceil(self.slices),
            slice: Slice { at: partition % self.slices, of: self.slices },
            reader: None,
            reservation: consumer.register(context.memory_pool()),
            limit: match context.memory_pool().memory_limit() {
                MemoryLimit::Finite(bytes) => bytes / 2,
                _ => usize::MAX,
            },
            unread: MetricBuilder::new(&self.metrics).counter("files_unread", partition),
            metrics: BaselineMetrics::new(&self.metrics, partition),
        };
        let batches = Box::pin(stream::try_unfold(scan, |mut scan| async move {
            let batch = scan.next().await?;
            Ok(batch.map(|batch| (batch, scan)))
        }));
        Ok(Box::pin(cooperative(RecordBatchStreamAdapter::new(self.schema(), batches))))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// One partition's walk over its files.
struct Scan {
    incarnation: Incarnation,
    files: Arc<Vec<DataFile>>,
    scope: Scope,
    schema: SchemaRef,
    opened: Arc<Vec<Mutex<Opened>>>,
    next: usize,
    step: usize,
    slice: Slice,
    reader: Option<IndexReader>,
    /// Of nothing: what is fetched holds its own.
    reservation: MemoryReservation,
    /// The most bytes for a file as a whole: half of the pool, so that what it is read for has room.
    limit: usize,
    /// Index files without wanted rows.
    unread: Count,
    metrics: BaselineMetrics,
}

impl Scan {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(reader) = &mut self.reader {
                let _timer = self.metrics.elapsed_compute().timer();
                if let Some(batch) = reader.next().await? {
                    self.metrics.output_rows().add(batch.num_rows());
                    return Ok(Some(batch));
                }
                self.reader = None;
            }
            let Some(fetched) = self.open().await? else { return Ok(None) };
            let wanted = Wanted { schema: Arc::clone(&self.schema), scope: self.scope.clone(), slice: self.slice };
            self.reader = Some(IndexReader::try_new(&self.incarnation, fetched, wanted).await?);
            self.next += self.step;
        }
    }

    /// The next file with wanted rows, which another partition may have fetched already.
    async fn open(&mut self) -> Result<Option<Arc<Fetched>>> {
        while self.files.get(self.next).is_some_and(|file| !self.scope.wants_file(file)) {
            self.next += self.step;
            self.unread.add(usize::from(self.slice.at == 0));
        }
        let (Some(file), Some(opened)) = (self.files.get(self.next), self.opened.get(self.next)) else { return Ok(None) };
        let mut opened = opened.lock().await;
        if let Some(fetched) = opened.fetched.upgrade() {
            return Ok(Some(fetched));
        }
        let ordinal = u32::try_from(self.next).map_err(|_| Error::internal("more than 2^32 files"))?;
        let (extent, reservation) = self.reserve(file, opened.extent)?;
        opened.extent = Some(extent);
        let fetched = Arc::new(fetch(&self.incarnation, (ordinal, file), extent, reservation).await?);
        opened.fetched = Arc::downgrade(&fetched);
        Ok(Some(fetched))
    }

    /// Reserves memory for the whole file, or for parts of it.
    fn reserve(&self, file: &DataFile, decided: Option<Extent>) -> Result<(Extent, MemoryReservation)> {
        let (reservation, whole) = (self.reservation.new_empty(), fetched_bytes(file, Extent::Whole, &self.scope));
        // Of a file that is mostly left out, verifying in blocks and reading the rest costs less than holding it.
        let is_wanted = self.scope.rows_at_most(file).saturating_mul(2) >= file.rows;
        let is_small = is_wanted && whole.saturating_mul(self.slice.of) <= self.limit;
        if decided != Some(Extent::Parts) && is_small && reservation.try_grow(whole).is_ok() {
            return Ok((Extent::Whole, reservation));
        }
        let extent = decided.unwrap_or(Extent::Parts);
        reservation.try_grow(fetched_bytes(file, extent, &self.scope)).map_err(|error| {
            let context = format!("table {:?}: an index file does not fit the memory pool", self.incarnation.name());
            Error::from_datafusion(error, ErrorCode::ResourcesExhausted, context)
        })?;
        Ok((extent, reservation))
    }
}
