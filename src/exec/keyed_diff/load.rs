//! Loads a baseline: the whole index once for all partitions of the source, or one bucket of it.
//!
//! ```text
//! rows × bytes per row ≤ the diff's limit? ── yes ─► load ── loaded ─► Mode::Memory
//!                      │ no                           └ refused ┐
//!                      └────────────────────────────────────────┴─► index ─► buckets on disk ─► Mode::Buckets
//! ```
//!
//! The index is read again when loading it was refused; the source is not touched here.
//! Memory: granted as it grows; without a disk a refusal is `RESOURCES_EXHAUSTED` and the run changes nothing.

use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Int32Type, Int64Type, UInt32Type, UInt64Type};
use datafusion::common::exec_datafusion_err;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::stats::Precision;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::common::spawn_buffered;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{ExecutionPlan, StatisticsArgs, StatisticsContext};
use futures::{StreamExt, TryStreamExt, stream};

use super::DiffSpec;
use super::baseline::{Baseline, IndexRows, estimated_bytes};
use super::columns::{FILE, FP_HI, FP_LO, ROW, SRC, change_schema_of, index_scan_schema};
use super::diff::{Diff, Differ, Room};
use super::memory::{Grant, Memory};
use super::spill::{Buckets, Cut, Spilled, Spiller};
use crate::error::{Error, ErrorCode, Result};
use crate::exec::equality::{ByteKeys, Hashing, KeyReader, KeyShape, KeyStore, SmallKeys};
use crate::spec::normalize_type;

/// What every step of one diff works with.
pub(crate) struct Shared {
    pub(crate) spec: Arc<DiffSpec>,
    pub(crate) reader: Arc<KeyReader>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) spiller: Arc<Spiller>,
    hashing: Hashing,
    can_spill: bool,
    has_outside: bool,
}

impl Shared {
    /// `has_outside`: whether new keys are compared with rows that are not loaded.
    pub(crate) fn new(
        spec: Arc<DiffSpec>,
        reader: Arc<KeyReader>,
        context: &TaskContext,
        set: &ExecutionPlanMetricsSet,
        has_outside: bool,
    ) -> Arc<Self> {
        let can_spill = Spiller::can_spill(context);
        let hashing = Hashing { kind: spec.hash, seed: spec.fingerprinter.seed() };
        let (memory, spiller) = (Memory::new(&spec.table, context, can_spill), Spiller::new(&spec.table, hashing.seed, context, set));
        Arc::new(Self { spec, reader, memory, spiller, hashing, can_spill, has_outside })
    }

    pub(crate) fn buckets(&self, cut: Cut) -> Buckets {
        Buckets::new(&self.spiller, &self.reader, &self.memory, cut)
    }
}

/// How the diff is carried out.
pub(crate) enum Mode {
    /// The whole baseline is in memory.
    Memory(Arc<dyn Differ>),
    /// The baseline is on disk, by bucket; the source's rows go there too.
    Buckets { index: Vec<Option<Spilled>>, source: Box<Buckets> },
}

/// The inputs of a diff.
pub(crate) struct Inputs {
    /// The index of the base; `None`: an empty baseline.
    pub(crate) index: Option<Arc<dyn ExecutionPlan>>,
    /// The source's rows, when its plan knows them exactly.
    pub(crate) source_rows: usize,
}

/// The exact number of rows that `plan` gives, or 0.
pub(crate) fn exact_rows(plan: &dyn ExecutionPlan) -> usize {
    match StatisticsContext::new().compute(plan, &StatisticsArgs::new()).map(|statistics| statistics.num_rows) {
        Ok(Precision::Exact(rows)) => rows,
        _ => 0,
    }
}

/// The number of rows that `plan` gives, as far as it knows, or 0.
fn expected_rows(plan: &dyn ExecutionPlan) -> usize {
    let statistics = StatisticsContext::new().compute(plan, &StatisticsArgs::new());
    statistics.ok().and_then(|statistics| statistics.num_rows.get_value().copied()).unwrap_or(0)
}

/// Reads the whole index: into memory when it fits, else into buckets on disk.
pub(crate) async fn load(shared: Arc<Shared>, inputs: Inputs, context: Arc<TaskContext>) -> Result<Mode> {
    let Some(index) = inputs.index else {
        return Ok(Mode::Memory(empty(&shared, inputs.source_rows)?));
    };
    let wrap = |error| unreadable(&shared, error);
    let rows = expected_rows(index.as_ref());
    let mut bytes = estimated_bytes(rows, true);
    if bytes <= shared.memory.limit() || !shared.can_spill {
        let single: Arc<dyn ExecutionPlan> = match index.properties().partitioning.partition_count() {
            1 => Arc::clone(&index),
            _ => Arc::new(CoalescePartitionsExec::new(Arc::clone(&index))),
        };
        let batches = single.execute(0, Arc::clone(&context)).map_err(wrap)?;
        match load_rows(&shared, batches, Load { rows, source_rows: inputs.source_rows, is_in_file_order: true }).await {
            Err(error) if error.code() == ErrorCode::ResourcesExhausted && shared.can_spill => {
                // Keys of unknown length: at least as much again.
                bytes = bytes.max(shared.memory.limit()).saturating_mul(2);
            }
            loaded => return Ok(Mode::Memory(loaded?)),
        }
    }
    spill_index(&shared, &index, &context, buckets_for(&shared, rows, inputs.source_rows, bytes)).await
}

/// As many buckets as keep each of them at a quarter of the diff's limit, if keys are as long as they are taken to be.
fn buckets_for(shared: &Shared, rows: usize, source_rows: usize, bytes: usize) -> usize {
    let new = estimated_bytes(source_rows.saturating_sub(rows), true) / 2;
    let total = bytes.max(estimated_bytes(rows, false)).saturating_add(new);
    total.div_ceil((shared.memory.limit() / 4).max(1))
}

/// What decoding a part of an index file may take.
const PARTITION_BYTES: usize = 48 << 20;

/// As many index partitions at once as the diff's limit has room for.
async fn spill_index(shared: &Arc<Shared>, index: &Arc<dyn ExecutionPlan>, context: &Arc<TaskContext>, buckets: usize) -> Result<Mode> {
    let spilled = Arc::new(shared.buckets(Cut::new(index_scan_schema(&shared.spec.key), buckets, 0)));
    let partitions = index.properties().partitioning.partition_count();
    let at_once = (shared.memory.limit() / PARTITION_BYTES).clamp(1, partitions.max(1));
    // Executed when its turn comes: a stream that waits holds nothing.
    let spill = |partition| {
        let (shared, spilled) = (Arc::clone(shared), Arc::clone(&spilled));
        let batches = index.execute(partition, Arc::clone(context));
        async move {
            let batches = batches.map_err(|error| unreadable(&shared, error))?;
            let joined = SpawnedTask::spawn(spill_partition(Arc::clone(&shared), batches, spilled)).join_unwind().await;
            joined.map_err(|error| unreadable(&shared, exec_datafusion_err!("{error}")))?
        }
    };
    stream::iter(0..partitions).map(spill).buffer_unordered(at_once).try_collect::<()>().await?;
    let source = shared.buckets(Cut { schema: change_schema_of(&shared.spec.key, &shared.spec.tracked), ..spilled.cut.clone() });
    Ok(Mode::Buckets { index: spilled.finish()?, source: Box::new(source) })
}

async fn spill_partition(shared: Arc<Shared>, batches: SendableRecordBatchStream, spilled: Arc<Buckets>) -> Result<()> {
    // Decoded by a task of its own, one batch ahead.
    let mut batches = spawn_buffered(batches, 1);
    while let Some(batch) = batches.next().await {
        spilled.push(batch.map_err(|error| unreadable(&shared, error))?)?;
    }
    Ok(())
}

fn unreadable(shared: &Shared, error: DataFusionError) -> Error {
    Error::from_datafusion(error, ErrorCode::Corrupt, format!("table {:?}: its index cannot be read", shared.spec.table))
}

/// A diff against nothing, of a source of at least `source_rows` rows.
pub(crate) fn empty(shared: &Arc<Shared>, source_rows: usize) -> Result<Arc<dyn Differ>> {
    fn of<K: KeyStore>(shared: &Shared, rows: usize) -> Result<Arc<dyn Differ>> {
        differ(shared, Baseline::<K>::new(shared.hashing), rows, shared.memory.grant())
    }
    match shared.reader.shape() {
        KeyShape::Small => of::<SmallKeys>(shared, source_rows),
        KeyShape::Text | KeyShape::Encoded => of::<ByteKeys>(shared, source_rows),
    }
}

/// What is known of the index rows that are loaded.
pub(crate) struct Load {
    pub(crate) rows: usize,
    pub(crate) source_rows: usize,
    pub(crate) is_in_file_order: bool,
}

/// A diff against the index rows of `batches`.
pub(crate) async fn load_rows(shared: &Arc<Shared>, batches: SendableRecordBatchStream, load: Load) -> Result<Arc<dyn Differ>> {
    match shared.reader.shape() {
        KeyShape::Small => load_keys::<SmallKeys>(shared, batches, load).await,
        KeyShape::Text | KeyShape::Encoded => load_keys::<ByteKeys>(shared, batches, load).await,
    }
}

async fn load_keys<K: KeyStore>(shared: &Arc<Shared>, mut batches: SendableRecordBatchStream, load: Load) -> Result<Arc<dyn Differ>> {
    let (grant, mut baseline) = (shared.memory.grant(), Baseline::<K>::new(shared.hashing));
    // Room is asked for before it is taken, and for all rows at once, so that loading does not grow step by step.
    grant.grow(estimated_bytes(load.rows, load.is_in_file_order))?;
    baseline.reserve(load.rows, load.is_in_file_order);
    while let Some(batch) = batches.next().await {
        push(&mut baseline, &shared.reader, &batch.map_err(|error| unreadable(shared, error))?)?;
        let allocated = baseline.allocated();
        if allocated > grant.held() {
            grant.resize(allocated)?;
        }
    }
    grant.resize(baseline.allocated())?;
    differ(shared, baseline, load.source_rows, grant)
}

fn differ<K: KeyStore>(shared: &Shared, baseline: Baseline<K>, source_rows: usize, grant: Grant) -> Result<Arc<dyn Differ>> {
    let diff = Diff::try_new(baseline, shared.hashing, source_rows, Room { grant, can_spill: shared.can_spill })?;
    // Keys of several columns are stored encoded, and cannot be made columns again.
    let key_type = match (shared.reader.shape(), shared.spec.key.as_slice()) {
        // The rows outside are looked up among the new keys, which takes a hash table.
        _ if shared.has_outside => None,
        (KeyShape::Small | KeyShape::Text, [key]) => Some(normalize_type(key.data_type())),
        _ => None,
    };
    Ok(Arc::new(diff.with_ordered_keys(key_type)))
}

fn push<K: KeyStore>(baseline: &mut Baseline<K>, reader: &KeyReader, batch: &RecordBatch) -> Result<()> {
    let column = |name: &str| batch.column_by_name(name).ok_or_else(|| Error::internal(format!("the index scan has no column {name:?}")));
    let mistyped = || Error::internal("a hidden column of the index scan has another type");
    let rows = IndexRows {
        high: column(FP_HI)?.as_primitive_opt::<Int64Type>().ok_or_else(mistyped)?.values(),
        low: column(FP_LO)?.as_primitive_opt::<Int64Type>().ok_or_else(mistyped)?.values(),
        file: column(FILE)?.as_primitive_opt::<UInt32Type>().ok_or_else(mistyped)?.values(),
        row: column(ROW)?.as_primitive_opt::<UInt64Type>().ok_or_else(mistyped)?.values(),
        source: column(SRC)?.as_primitive_opt::<Int32Type>().ok_or_else(mistyped)?.values(),
    };
    baseline.push(&reader.read_batch(batch)?, &rows)
}
