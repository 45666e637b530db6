//! Rows on disk, in buckets by their key.
//!
//! ```text
//! batch ─ hash of each key ─► pending ─ full, or the pool refuses ─► one batch per bucket ─► file 0 │ file 1 │ …
//! ```
//!
//! All rows of one key are in one bucket, nearly in the order in which they came. The hash here is a real one whatever
//! the hash of the diff is, and another on each level, so that a bucket that is too large can be cut again.
//! Memory, granted: the pending rows, at most a quarter of the diff's limit and 8 MiB. Never fails for want of memory:
//! without any, each batch goes to disk at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::interleave_record_batch;
use arrow_schema::SchemaRef;
use datafusion::common::config::SpillCompression;
use datafusion::error::DataFusionError;
use datafusion::execution::disk_manager::DiskManager;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::spill_file::SpillFile;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, SpillMetrics};
use datafusion::physical_plan::{EmptyRecordBatchStream, SpillManager};

use super::memory::{Grant, Memory};
use crate::error::{Error, ErrorCode, Result};
use crate::exec::equality::{ByteKeys, Hashing, KeyBatch, KeyHash, KeyReader, KeyShape, KeyStore, SmallKeys};

const PENDING_BYTES: usize = 8 << 20;
/// Files that are open at once, of one side.
const MOST_BUCKETS: usize = 64;
/// What differs between the seeds of two levels.
const LEVEL_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Writes and reads the spill files of one diff.
pub(crate) struct Spiller {
    table: String,
    env: Arc<RuntimeEnv>,
    metrics: SpillMetrics,
    compression: SpillCompression,
    seed: u64,
}

impl Spiller {
    pub(crate) fn new(table: &str, seed: u64, context: &TaskContext, set: &ExecutionPlanMetricsSet) -> Arc<Self> {
        let compression = match context.session_config().spill_compression() {
            SpillCompression::Uncompressed => SpillCompression::Uncompressed,
            _ => SpillCompression::Lz4Frame,
        };
        let (env, metrics) = (context.runtime_env(), SpillMetrics::new(set, 0));
        Arc::new(Self { table: table.to_string(), env, metrics, compression, seed })
    }

    pub(crate) fn can_spill(context: &TaskContext) -> bool {
        DiskManager::tmp_files_enabled(&context.runtime_env().disk_manager)
    }

    pub(crate) fn spilled_bytes(&self) -> u64 {
        self.metrics.spilled_bytes.value() as u64
    }

    fn manager(&self, schema: &SchemaRef) -> SpillManager {
        let manager = SpillManager::new(Arc::clone(&self.env), self.metrics.clone(), Arc::clone(schema));
        manager.with_compression_type(self.compression)
    }

    fn unwritten(&self, error: DataFusionError) -> Error {
        let what = format!(
            "table {:?}: the diff could not write its rows to disk. Remedy: free disk space, or raise the memory limit. Cause",
            self.table
        );
        Error::from_datafusion(error, ErrorCode::ResourcesExhausted, what)
    }

    /// What [`Buckets::push`] sorts rows by.
    fn hashing(&self, level: usize) -> Hashing {
        Hashing { kind: KeyHash::Xxh3, seed: self.seed.wrapping_add(LEVEL_SEED.wrapping_mul(level as u64 + 1)) }
    }
}

/// The rows of one bucket of one side.
#[derive(Clone)]
pub(crate) struct Spilled {
    file: Arc<dyn SpillFile>,
    schema: SchemaRef,
    pub(crate) rows: usize,
}

impl Spilled {
    /// The rows, nearly in the order in which they came.
    pub(crate) fn read(&self, spiller: &Spiller) -> Result<SendableRecordBatchStream> {
        // Decoded by a task of its own, so that two processors share what one task settles.
        let read = spiller.manager(&self.schema).read_spill_as_stream(Arc::clone(&self.file), None);
        read.map_err(|error| unread(&spiller.table, error))
    }
}

/// The rows of a bucket, if it has any.
pub(crate) fn read_side(side: Option<&Spilled>, schema: &SchemaRef, spiller: &Spiller) -> Result<SendableRecordBatchStream> {
    side.map_or_else(|| Ok(Box::pin(EmptyRecordBatchStream::new(Arc::clone(schema))) as _), |side| side.read(spiller))
}

/// The error for a spill file that cannot be read back.
pub(crate) fn unread(table: &str, error: DataFusionError) -> Error {
    let what = format!(
        "table {table:?}: the rows that the diff wrote to disk cannot be read back. Remedy: look after the disk of the session's temporary files and run again. Cause"
    );
    Error::from_datafusion(error, ErrorCode::CaptureFailed, what)
}

/// The shape of one side's buckets.
#[derive(Clone)]
pub(crate) struct Cut {
    pub(crate) schema: SchemaRef,
    pub(crate) buckets: usize,
    pub(crate) level: usize,
}

impl Cut {
    pub(crate) fn new(schema: SchemaRef, buckets: usize, level: usize) -> Self {
        Self { schema, buckets: buckets.clamp(2, MOST_BUCKETS), level }
    }
}

/// One side's rows, being written; several partitions push at once.
pub(crate) struct Buckets {
    spiller: Arc<Spiller>,
    reader: Arc<KeyReader>,
    hashing: Hashing,
    limit: usize,
    pub(crate) cut: Cut,
    manager: SpillManager,
    pending: Mutex<Pending>,
    /// Whoever flushes writes to each file in turn, so that several can.
    files: Vec<Mutex<Option<(File, usize)>>>,
}

/// Rows that are not written yet.
struct Pending {
    grant: Grant,
    batches: Vec<(RecordBatch, Vec<u32>)>,
    bytes: usize,
}

/// A spill file being written: a batch is appended, `None` ends it. (DataFusion does not name the type.)
type File = Box<dyn FnMut(Option<&RecordBatch>) -> Result<Option<Arc<dyn SpillFile>>, DataFusionError> + Send>;

fn create(manager: &SpillManager) -> Result<File, DataFusionError> {
    let mut file = manager.create_in_progress_file("KeyedDiffExec")?;
    Ok(Box::new(move |batch| match batch {
        Some(batch) => file.append_batch(batch).map(|_| None),
        None => file.finish(),
    }))
}

impl Buckets {
    /// Buckets for batches that have the key columns by name.
    pub(crate) fn new(spiller: &Arc<Spiller>, reader: &Arc<KeyReader>, memory: &Arc<Memory>, cut: Cut) -> Self {
        Self {
            spiller: Arc::clone(spiller),
            reader: Arc::clone(reader),
            hashing: spiller.hashing(cut.level),
            limit: (memory.limit() / 4).min(PENDING_BYTES),
            manager: spiller.manager(&cut.schema),
            pending: Mutex::new(Pending { grant: memory.grant(), batches: Vec::new(), bytes: 0 }),
            files: (0..cut.buckets).map(|_| Mutex::new(None)).collect(),
            cut,
        }
    }

    /// Adds the rows of `batch`, whose keys are not null.
    pub(crate) fn push(&self, batch: RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let keys = self.reader.read_batch(&batch)?;
        let buckets = bucket_of_rows(self.reader.shape(), &keys, batch.num_rows(), (self.hashing, self.cut.buckets as u64));
        let bytes = bytes_of(&batch) + buckets.len() * size_of::<u32>();
        let taken = {
            let mut pending = lock(&self.pending);
            // Room for a batch that is written at once would be given back at once.
            let is_kept = pending.bytes + bytes <= self.limit && pending.grant.grow(bytes).is_ok();
            pending.batches.push((batch, buckets));
            if is_kept {
                pending.bytes += bytes;
                return Ok(());
            }
            pending.take()
        };
        self.write(taken).map_err(|error| self.spiller.unwritten(error))
    }

    /// Ends the files; one entry per bucket, `None` for a bucket without rows.
    pub(crate) fn finish(&self) -> Result<Vec<Option<Spilled>>> {
        let taken = lock(&self.pending).take();
        let ended = self.write(taken).and_then(|()| {
            let end = |file: &Mutex<Option<(File, usize)>>| {
                let Some((mut file, rows)) = lock(file).take() else { return Ok(None) };
                let schema = Arc::clone(&self.cut.schema);
                Ok(file(None)?.map(|file| Spilled { file, schema, rows }))
            };
            self.files.iter().map(end).collect::<Result<Vec<_>, DataFusionError>>()
        });
        ended.map_err(|error| self.spiller.unwritten(error))
    }

    /// Writes rows, which are nobody else's now; what was granted for them is free when they are on disk.
    fn write(&self, (batches, granted): (Vec<(RecordBatch, Vec<u32>)>, usize)) -> Result<(), DataFusionError> {
        let written = self.write_rows(&batches);
        drop(batches);
        lock(&self.pending).grant.shrink(granted);
        written
    }

    fn write_rows(&self, batches: &[(RecordBatch, Vec<u32>)]) -> Result<(), DataFusionError> {
        let mut rows: Vec<Vec<(usize, usize)>> = vec![Vec::new(); self.files.len()];
        for (at, (_, buckets)) in batches.iter().enumerate() {
            for (row, bucket) in buckets.iter().enumerate() {
                if let Some(rows) = rows.get_mut(*bucket as usize) {
                    rows.push((at, row));
                }
            }
        }
        let batches: Vec<&RecordBatch> = batches.iter().map(|(batch, _)| batch).collect();
        for (file, rows) in self.files.iter().zip(&rows).filter(|(_, rows)| !rows.is_empty()) {
            let batch = interleave_record_batch(&batches, rows)?;
            let mut file = lock(file);
            if file.is_none() {
                *file = Some((create(&self.manager)?, 0));
            }
            if let Some((file, count)) = file.as_mut() {
                file(Some(&batch))?;
                *count += rows.len();
            }
        }
        Ok(())
    }
}

impl Pending {
    /// The rows, and how many bytes are granted for them.
    fn take(&mut self) -> (Vec<(RecordBatch, Vec<u32>)>, usize) {
        (std::mem::take(&mut self.batches), std::mem::take(&mut self.bytes))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bucket_of_rows(shape: KeyShape, keys: &KeyBatch, rows: usize, by: (Hashing, u64)) -> Vec<u32> {
    match shape {
        KeyShape::Small => buckets_of::<SmallKeys>(keys, rows, by),
        KeyShape::Text | KeyShape::Encoded => buckets_of::<ByteKeys>(keys, rows, by),
    }
}

fn buckets_of<K: KeyStore>(keys: &KeyBatch, rows: usize, (hashing, buckets): (Hashing, u64)) -> Vec<u32> {
    // The upper 64 bits of the product: below `buckets`, which is small.
    let bucket = |row| ((u128::from(K::hash(K::key(keys, row), hashing)) * u128::from(buckets)) >> 64) as u32;
    (0..rows).map(bucket).collect()
}

/// Bytes of the rows of `batch`, which may be a slice of larger buffers.
fn bytes_of(batch: &RecordBatch) -> usize {
    let size = |array: &ArrayRef| array.to_data().get_slice_memory_size().unwrap_or_else(|_| array.get_array_memory_size());
    batch.columns().iter().map(size).sum()
}
