//! The files of a sealed capture: the change set's rows as plain Parquet.
//!
//! ```text
//! change rows ─► <dir>/<prefix>-00000.parquet, -00001, … ─► ObjectRef of each
//! ```
//!
//! Memory: see [`super`]. Never writes a file without rows.

use arrow::array::RecordBatch;
use arrow_schema::SchemaRef;
use datafusion::execution::memory_pool::MemoryReservation;

use super::WriterConfig;
use super::aligned::{Aligned, Budget};
use super::parquet_file::ParquetFile;
use crate::error::Result;
use crate::store::{Incarnation, ObjectRef};

/// Writes change rows.
pub struct ChangesWriter {
    incarnation: Incarnation,
    /// Folder and first part of every name.
    stem: String,
    schema: SchemaRef,
    config: WriterConfig,
    budget: Budget,
    open: Option<Aligned>,
    begun: usize,
    objects: Vec<ObjectRef>,
}

impl ChangesWriter {
    /// A writer of files whose names start with `stem` (a folder and a prefix that no other writer uses), relative to
    /// the incarnation's folder.
    pub fn new(incarnation: &Incarnation, stem: String, schema: SchemaRef, config: WriterConfig, reservation: MemoryReservation) -> Self {
        let budget = Budget::new(incarnation.name(), reservation);
        Self { incarnation: incarnation.clone(), stem, schema, config, budget, open: None, begun: 0, objects: Vec::new() }
    }

    /// Ends row groups early above this many bytes, so that writers of one pool leave room for each other.
    pub fn with_limit(mut self, bytes: usize) -> Self {
        self.budget.limit = bytes;
        self
    }

    /// The most bytes that were reserved at once.
    pub fn peak_memory(&self) -> usize {
        self.budget.peak
    }

    /// Writes rows of the schema.
    ///
    /// # Errors
    /// `RESOURCES_EXHAUSTED` when memory does not suffice for one row, `STORE_FAILED`, `TYPE_UNSUPPORTED`.
    pub async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut done = 0;
        while done < batch.num_rows() {
            let mut files = match self.open.take() {
                Some(files) => files,
                None => self.begin()?,
            };
            let room = self.config.target_file_rows.saturating_sub(files.rows()).max(1);
            let rows = room.min(batch.num_rows() - done);
            let outcome = files.write(&[batch.slice(done, rows)], &mut self.budget).await;
            // The file stays ours also after an error, so that `abort` finds it.
            let files = self.open.insert(files);
            done += outcome?;
            if files.rows() >= self.config.target_file_rows || files.is_full(&self.budget) {
                self.end().await?;
            }
        }
        Ok(())
    }

    /// Ends the last file; the files, in the order they were written.
    ///
    /// # Errors
    /// `STORE_FAILED`, `TYPE_UNSUPPORTED`.
    pub async fn finish(&mut self) -> Result<Vec<ObjectRef>> {
        self.end().await?;
        Ok(std::mem::take(&mut self.objects))
    }

    /// Forgets the file that is open. Files that ended stay until a vacuum.
    pub async fn abort(&mut self) {
        if let Some(mut files) = self.open.take() {
            files.abort().await;
        }
        self.budget.reservation.free();
    }

    fn begin(&mut self) -> Result<Aligned> {
        let name = format!("{}-{:05}.parquet", self.stem, self.begun);
        self.begun += 1;
        let file = ParquetFile::try_new(&self.incarnation, name, SchemaRef::clone(&self.schema), self.config.capture())?;
        Ok(Aligned::new(vec![file]))
    }

    async fn end(&mut self) -> Result<()> {
        let Some(mut files) = self.open.take() else { return Ok(()) };
        self.objects.extend(files.finish(&mut self.budget).await?.into_iter().map(|file| file.object));
        Ok(())
    }
}
