//! Loads the baseline index, once for all partitions of the source.
//!
//! Memory: reserved in the pool as it grows; a refusal is `RESOURCES_EXHAUSTED` and the run changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};
use datafusion::common::stats::Precision;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::{ExecutionPlan, StatisticsArgs, StatisticsContext};
use futures::StreamExt;

use super::DiffSpec;
use super::baseline::{Baseline, IndexRows};
use super::columns::{FILE, FP_HI, FP_LO, ROW};
use super::diff::{Diff, Differ};
use crate::error::{Error, ErrorCode, Result};
use crate::exec::equality::{ByteKeys, Hashing, KeyReader, KeyShape, KeyStore, SmallKeys};

/// A loaded diff with the memory it holds.
pub(crate) struct Loaded {
    pub(crate) differ: Box<dyn Differ>,
    memory: Memory,
}

/// What one diff has reserved in the pool.
pub(crate) struct Memory {
    table: String,
    reservation: MemoryReservation,
    peak: AtomicUsize,
}

impl Memory {
    fn new(table: &str, context: &TaskContext) -> Self {
        let reservation = MemoryConsumer::new(format!("KeyedDiffExec[{table}]")).register(context.memory_pool());
        Self { table: table.to_string(), reservation, peak: AtomicUsize::new(0) }
    }

    fn grow(&self, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.reservation.try_grow(bytes).map_err(|error| self.refused(error))?;
        self.peak.fetch_max(self.reservation.size(), Ordering::Relaxed);
        Ok(())
    }

    fn resize(&self, bytes: usize) -> Result<()> {
        self.reservation.try_resize(bytes).map_err(|error| self.refused(error))?;
        self.peak.fetch_max(self.reservation.size(), Ordering::Relaxed);
        Ok(())
    }

    fn refused(&self, error: DataFusionError) -> Error {
        let context = format!("table {:?}: the keys and fingerprints of the diff do not fit the memory pool", self.table);
        Error::from_datafusion(error, ErrorCode::ResourcesExhausted, context)
    }
}

impl Loaded {
    /// Reserves what the set of new keys grew by.
    pub(crate) fn grow(&self, bytes: usize) -> Result<()> {
        self.memory.grow(bytes)
    }

    pub(crate) fn peak(&self) -> u64 {
        self.memory.peak.load(Ordering::Relaxed) as u64
    }
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

/// Reads the whole index into memory.
pub(crate) async fn load(spec: Arc<DiffSpec>, reader: Arc<KeyReader>, inputs: Inputs, context: Arc<TaskContext>) -> Result<Loaded> {
    let memory = Memory::new(&spec.table, &context);
    let hashing = Hashing { kind: spec.hash, seed: spec.fingerprinter.seed() };
    let differ = match reader.shape() {
        KeyShape::Small => load_keys::<SmallKeys>(&reader, inputs, context, (&memory, hashing)).await?,
        KeyShape::Text | KeyShape::Encoded => load_keys::<ByteKeys>(&reader, inputs, context, (&memory, hashing)).await?,
    };
    Ok(Loaded { differ, memory })
}

async fn load_keys<K: KeyStore>(
    reader: &KeyReader,
    inputs: Inputs,
    context: Arc<TaskContext>,
    (memory, hashing): (&Memory, Hashing),
) -> Result<Box<dyn Differ>> {
    let mut baseline = Baseline::<K>::new(hashing);
    if let Some(index) = inputs.index {
        let wrap = |error| Error::from_datafusion(error, ErrorCode::Corrupt, format!("table {:?}: its index cannot be read", memory.table));
        reserve(&mut baseline, index.as_ref(), memory)?;
        let single: Arc<dyn ExecutionPlan> = match index.properties().partitioning.partition_count() {
            1 => index,
            _ => Arc::new(CoalescePartitionsExec::new(index)),
        };
        let mut batches = single.execute(0, context).map_err(wrap)?;
        while let Some(batch) = batches.next().await {
            push(&mut baseline, reader, &batch.map_err(wrap)?)?;
            memory.resize(baseline.allocated())?;
        }
    }
    // Room for new keys is asked for before it is taken.
    let new = inputs.source_rows.saturating_sub(baseline.len());
    memory.resize(baseline.allocated() + new.saturating_mul(size_of::<u64>() + size_of::<u32>()))?;
    let diff = Diff::new(baseline, hashing, inputs.source_rows);
    memory.resize(diff.allocated())?;
    Ok(Box::new(diff))
}

/// Makes room for as many rows as the index says it has, so that loading does not grow step by step.
fn reserve<K: KeyStore>(baseline: &mut Baseline<K>, index: &dyn ExecutionPlan, memory: &Memory) -> Result<()> {
    let rows = exact_rows(index);
    memory.resize(rows.saturating_mul(size_of::<u128>() + size_of::<u64>()))?;
    baseline.reserve(rows);
    Ok(())
}

fn push<K: KeyStore>(baseline: &mut Baseline<K>, reader: &KeyReader, batch: &RecordBatch) -> Result<()> {
    let column = |name: &str| batch.column_by_name(name).ok_or_else(|| Error::internal(format!("the index scan has no column {name:?}")));
    let keys = reader.fields().iter().map(|f| column(f.name()).cloned()).collect::<Result<Vec<ArrayRef>>>()?;
    let mistyped = || Error::internal("a hidden column of the index scan has another type");
    let rows = IndexRows {
        high: column(FP_HI)?.as_primitive_opt::<Int64Type>().ok_or_else(mistyped)?.values(),
        low: column(FP_LO)?.as_primitive_opt::<Int64Type>().ok_or_else(mistyped)?.values(),
        file: column(FILE)?.as_primitive_opt::<UInt32Type>().ok_or_else(mistyped)?.values(),
        row: column(ROW)?.as_primitive_opt::<UInt64Type>().ok_or_else(mistyped)?.values(),
    };
    baseline.push(&reader.read(&keys)?, &rows)
}
