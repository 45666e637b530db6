//! Pairs of a data file and its row-aligned index file.
//!
//! ```text
//! output columns, FP_HI, FP_LO, SRC [, VERSION] ─┬─► data:  the output columns
//!                                                └─► index: key columns, FP_HI, FP_LO, SRC, VERSION
//! ```
//!
//! Memory: see [`super`]. Both files get the same pieces of rows in the same order, and their row counts are compared
//! when they end. Never opens a pair before it has a row for it.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::Int32Type;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use datafusion::execution::memory_pool::MemoryReservation;

use super::aligned::{Aligned, Budget};
use super::bounds::{FloatBounds, column_bounds};
use super::parquet_file::ParquetFile;
use super::repeats::distinct_columns;
use super::spans::SourceRows;
use super::{FP_HI, FP_LO, SRC, VERSION, WriterConfig};
use crate::error::{Error, Result};
use crate::spec::VersionNumber;
use crate::store::{DataFile, Incarnation};

/// The columns of an index file whose key columns are `key`.
pub fn index_schema(key: &[Field]) -> SchemaRef {
    let mut fields = key.to_vec();
    fields.push(Field::new(FP_HI, DataType::Int64, false));
    fields.push(Field::new(FP_LO, DataType::Int64, false));
    fields.push(Field::new(SRC, DataType::Int32, false));
    fields.push(Field::new(VERSION, DataType::Int64, false));
    Arc::new(Schema::new(fields))
}

/// What a run's new files have in common.
#[derive(Debug, Clone)]
pub struct PairSpec {
    /// Where they are written.
    pub incarnation: Incarnation,
    /// Their folder, `data/<run>/<attempt>`, relative to the incarnation's.
    pub dir: String,
    /// The published columns.
    pub output_schema: SchemaRef,
    /// The key columns, which are output columns.
    pub key: Vec<String>,
    /// The version that the files are written for.
    pub version: VersionNumber,
    /// Sizes and codec.
    pub config: WriterConfig,
}

impl PairSpec {
    /// The columns of an index file: key columns with their published types, then the hidden columns.
    ///
    /// # Errors
    /// `INTERNAL` when a key column is not an output column.
    pub fn index_schema(&self) -> Result<SchemaRef> {
        let mut fields = Vec::with_capacity(self.key.len() + 4);
        for name in &self.key {
            let field = self.output_schema.field_with_name(name).map_err(|_| self.lost(name))?;
            fields.push(Field::new(name, field.data_type().clone(), field.is_nullable()));
        }
        Ok(index_schema(&fields))
    }

    fn lost(&self, column: &str) -> Error {
        Error::internal(format!("table {:?}: the rows to write have no column {column:?}", self.incarnation.name()))
    }

    /// The columns of `schema` out of `batch`, by name, in the schema's types; VERSION is this version's where the rows
    /// do not carry their own.
    fn columns(&self, batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
        let column = |field: &Arc<Field>| -> Result<ArrayRef> {
            let Some(column) = batch.column_by_name(field.name()) else {
                return if field.name() == VERSION { self.versions(batch.num_rows()) } else { Err(self.lost(field.name())) };
            };
            if column.data_type() == field.data_type() {
                return Ok(Arc::clone(column));
            }
            cast(column, field.data_type()).map_err(|e| self.unfit(e))
        };
        let columns = schema.fields().iter().map(column).collect::<Result<Vec<_>>>()?;
        RecordBatch::try_new(Arc::clone(schema), columns).map_err(|e| self.unfit(e))
    }

    fn versions(&self, rows: usize) -> Result<ArrayRef> {
        let version = i64::try_from(self.version).map_err(|e| Error::internal(format!("version {}: {e}", self.version)))?;
        Ok(Arc::new(Int64Array::from_value(version, rows)))
    }

    fn unfit(&self, error: arrow_schema::ArrowError) -> Error {
        let table = self.incarnation.name();
        Error::internal(format!("table {table:?}: the rows to write do not have the published schema: {error}")).with_source(error)
    }
}

/// What is noted of the rows of a pair while they are written.
#[derive(Default)]
struct Noted {
    floats: FloatBounds,
    sources: SourceRows,
}

impl Noted {
    fn update(&mut self, data: &RecordBatch, index: &RecordBatch) {
        self.floats.update(data);
        if let Some(ordinals) = index.column_by_name(SRC).and_then(|column| column.as_primitive_opt::<Int32Type>()) {
            self.sources.update(ordinals);
        }
    }
}

/// Writes rows as pairs of files.
pub struct PairWriter {
    spec: Arc<PairSpec>,
    index_schema: SchemaRef,
    prefix: String,
    budget: Budget,
    open: Option<(Aligned, Noted)>,
    begun: usize,
    files: Vec<DataFile>,
}

impl PairWriter {
    /// A writer whose file names start with `prefix`, which no other writer may use in the same folder.
    ///
    /// # Errors
    /// `INTERNAL` when a key column is not an output column.
    pub fn new(spec: Arc<PairSpec>, prefix: String, reservation: MemoryReservation) -> Result<Self> {
        let index_schema = spec.index_schema()?;
        let budget = Budget::new(spec.incarnation.name(), reservation);
        Ok(Self { spec, index_schema, prefix, budget, open: None, begun: 0, files: Vec::new() })
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

    /// Writes rows: the output columns, FP_HI, FP_LO and SRC, by name; VERSION too when the rows keep their own.
    ///
    /// # Errors
    /// `RESOURCES_EXHAUSTED` when memory does not suffice for one row, `STORE_FAILED`, `TYPE_UNSUPPORTED`.
    pub async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let data = self.spec.columns(batch, &self.spec.output_schema)?;
        let index = self.spec.columns(batch, &self.index_schema)?;
        let mut done = 0;
        while done < data.num_rows() {
            let mut pair = match self.open.take() {
                Some(pair) => pair,
                None => self.begin(&data.slice(done, data.num_rows() - done))?,
            };
            let room = self.spec.config.target_file_rows.saturating_sub(pair.0.rows()).max(1);
            let rows = room.min(data.num_rows() - done);
            let outcome = pair.0.write(&[data.slice(done, rows), index.slice(done, rows)], &mut self.budget).await;
            // The pair stays ours also after an error, so that `abort` finds it.
            let (files, noted) = self.open.insert(pair);
            let written = outcome?;
            noted.update(&data.slice(done, written), &index.slice(done, written));
            done += written;
            if files.rows() >= self.spec.config.target_file_rows || files.is_full(&self.budget) {
                self.end().await?;
            }
        }
        Ok(())
    }

    /// Ends the last pair; the files, in the order they were written.
    ///
    /// # Errors
    /// `STORE_FAILED`, `TYPE_UNSUPPORTED`.
    pub async fn finish(&mut self) -> Result<Vec<DataFile>> {
        self.end().await?;
        Ok(std::mem::take(&mut self.files))
    }

    /// Forgets the pair that is open. Pairs that ended stay until a vacuum.
    pub async fn abort(&mut self) {
        if let Some((mut files, _)) = self.open.take() {
            files.abort().await;
        }
        self.budget.reservation.free();
    }

    /// Opens a pair whose first rows are `first`.
    fn begin(&mut self, first: &RecordBatch) -> Result<(Aligned, Noted)> {
        let spec = &self.spec;
        let name = format!("{}/{}-{:05}", spec.dir, self.prefix, self.begun);
        self.begun += 1;
        let properties = |made: std::result::Result<_, parquet::errors::ParquetError>| {
            made.map_err(|e| Error::internal(format!("table {:?}: {e}", spec.incarnation.name())))
        };
        let distinct = distinct_columns(first)?;
        let data = properties(spec.config.data(&spec.output_schema, &spec.key, &distinct))?;
        let index = properties(spec.config.index(&self.index_schema, &spec.key))?;
        let files = vec![
            ParquetFile::try_new(&spec.incarnation, format!("{name}.parquet"), Arc::clone(&spec.output_schema), data)?,
            ParquetFile::try_new(&spec.incarnation, format!("{name}.index.parquet"), Arc::clone(&self.index_schema), index)?,
        ];
        Ok((Aligned::new(files), Noted::default()))
    }

    async fn end(&mut self) -> Result<()> {
        let Some((mut files, noted)) = self.open.take() else { return Ok(()) };
        let rows = files.rows() as u64;
        let finished = files.finish(&mut self.budget).await?;
        let [data, index] = finished.as_slice() else { return Err(Error::internal("a pair of files did not end as a pair")) };
        self.files.push(DataFile {
            data: data.object.clone(),
            index: index.object.clone(),
            rows,
            deletions: None,
            added_in: self.spec.version,
            bounds: column_bounds(&self.spec.output_schema, &data.metadata, &noted.floats),
            sources: noted.sources.spans(),
        });
        Ok(())
    }
}
