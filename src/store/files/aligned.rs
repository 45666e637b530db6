//! Files that are written side by side, row for row, within one memory reservation.
//!
//! ```text
//! pieces of rows ─ reserve ─ write to every file ─ above the limit, or refused ─► end the row groups, wait for uploads
//! ```
//!
//! Memory: what [`MemoryReservation`] grants, at most [`Budget::limit`] for what can wait. Never writes rows to one file
//! and not to the others.

use arrow::array::{Array, RecordBatch};
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};

use super::parquet_file::{Finished, ParquetFile};
use crate::error::{Error, ErrorCode, Result};

/// Rows that are handed to the encoder at once.
const PIECE_ROWS: usize = 8192;
/// A smaller row group is not worth its footer.
const SMALLEST_LIMIT: usize = 64 << 10;
/// Row groups of one file: Parquet numbers them with 16 bits, and readers keep the footer in memory.
const MOST_ROW_GROUPS: usize = 1024;

/// What one writer may hold.
#[derive(Debug)]
pub(super) struct Budget {
    pub(super) table: String,
    pub(super) reservation: MemoryReservation,
    /// Above this many bytes row groups end early.
    pub(super) limit: usize,
    pub(super) peak: usize,
}

impl Budget {
    /// A budget without a limit of its own.
    pub(super) fn new(table: &str, reservation: MemoryReservation) -> Self {
        Self { table: table.to_string(), reservation, limit: usize::MAX, peak: 0 }
    }

    fn reserve(&mut self, bytes: usize) -> std::result::Result<(), DataFusionError> {
        self.reservation.try_resize(bytes)?;
        self.peak = self.peak.max(bytes);
        Ok(())
    }

    fn exhausted(&self, error: DataFusionError) -> Error {
        let context = format!("table {:?}: the pool has no memory to write even one row", self.table);
        Error::from_datafusion(error, ErrorCode::ResourcesExhausted, context)
    }
}

/// An even share of a limited pool for one of `writers` writers, a quarter of the pool for all of them.
pub(crate) fn share_of(pool: &dyn MemoryPool, writers: usize) -> usize {
    match pool.memory_limit() {
        MemoryLimit::Finite(bytes) => (bytes / 4 / writers.max(1)).max(SMALLEST_LIMIT),
        _ => usize::MAX,
    }
}

/// Open files with the same rows in the same order.
pub(super) struct Aligned {
    files: Vec<ParquetFile>,
    rows: usize,
}

impl Aligned {
    pub(super) fn new(files: Vec<ParquetFile>) -> Self {
        Self { files, rows: 0 }
    }

    /// Rows so far.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Whether the files should end because of their number of row groups.
    pub(super) fn is_full(&self, budget: &Budget) -> bool {
        let footers: usize = self.files.iter().map(ParquetFile::footer).sum();
        footers > budget.limit / 2 || self.files.iter().any(|file| file.row_groups() >= MOST_ROW_GROUPS)
    }

    fn memory(&self) -> usize {
        self.files.iter().map(ParquetFile::memory).sum()
    }

    /// Writes the first rows of `parts` (one batch per file, all of the same length) and says how many: as many as
    /// memory allows, at least one.
    pub(super) async fn write(&mut self, parts: &[RecordBatch], budget: &mut Budget) -> Result<usize> {
        let available = parts.iter().map(RecordBatch::num_rows).min().unwrap_or(0);
        let mut rows = available.min(PIECE_ROWS);
        let mut relief = 0;
        loop {
            let needed: usize = parts.iter().map(|part| slice_bytes(part, rows)).sum();
            if needed > budget.limit && rows > 1 {
                rows /= 2;
                continue;
            }
            match budget.reserve(self.memory().saturating_add(needed)) {
                Ok(()) => break,
                Err(_) if relief < 2 => {
                    relief += 1;
                    self.relieve(relief == 2).await?;
                }
                Err(_) if rows > 1 => rows /= 2,
                Err(error) => return Err(budget.exhausted(error)),
            }
        }
        for (file, part) in self.files.iter_mut().zip(parts) {
            file.write(&part.slice(0, rows)).await?;
        }
        self.rows += rows;
        self.settle(budget).await?;
        Ok(rows)
    }

    /// Makes the reservation what is held now, and holds less when that is too much.
    async fn settle(&mut self, budget: &mut Budget) -> Result<()> {
        if self.files.iter().map(ParquetFile::in_progress).sum::<usize>() > budget.limit {
            self.end_row_groups().await?;
        }
        for end_row_groups in [false, true] {
            if budget.reserve(self.memory()).is_ok() {
                return Ok(());
            }
            self.relieve(end_row_groups).await?;
        }
        budget.reserve(self.memory()).map_err(|error| budget.exhausted(error))
    }

    /// Gives memory back: first the uploads', then also the row groups'.
    async fn relieve(&mut self, end_row_groups: bool) -> Result<()> {
        if end_row_groups {
            self.end_row_groups().await?;
        }
        for file in &mut self.files {
            file.drain().await?;
        }
        Ok(())
    }

    /// Every file's row group ends at the same row.
    async fn end_row_groups(&mut self) -> Result<()> {
        for file in &mut self.files {
            file.end_row_group().await?;
        }
        Ok(())
    }

    /// Ends the files; they are visible then, and named by nothing.
    pub(super) async fn finish(&mut self, budget: &mut Budget) -> Result<Vec<Finished>> {
        let mut finished = Vec::with_capacity(self.files.len());
        for file in &mut self.files {
            finished.push(file.finish().await?);
        }
        budget.reservation.free();
        match finished.iter().find(|file| file.rows() != self.rows as u64) {
            Some(wrong) => Err(Error::internal(format!(
                "table {:?}: file {:?} has {} rows and should have {}",
                budget.table,
                wrong.object.path,
                wrong.rows(),
                self.rows
            ))),
            None => Ok(finished),
        }
    }

    /// Forgets the files.
    pub(super) async fn abort(&mut self) {
        for file in &mut self.files {
            file.abort().await;
        }
    }
}

/// The bytes of the first rows of a batch.
fn slice_bytes(batch: &RecordBatch, rows: usize) -> usize {
    let column_bytes = |column: &dyn Array| {
        let data = column.slice(0, rows.min(column.len())).to_data();
        data.get_slice_memory_size().unwrap_or_else(|_| data.get_array_memory_size())
    };
    batch.columns().iter().map(|column| column_bytes(column.as_ref())).sum()
}
