//! One index file with its deletion vector, verified before a byte of it is believed, as batches of live rows.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, UInt32Array, UInt64Array};
use arrow::compute::filter_record_batch;
use arrow_schema::{Schema, SchemaRef};
use bytes::Bytes;
use datafusion::execution::memory_pool::MemoryReservation;
use futures::StreamExt;
use futures::stream::BoxStream;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use roaring::RoaringTreemap;

use crate::error::{Error, ErrorCode, Result};
use crate::exec::equality::normalize_array;
use crate::exec::keyed_diff::VERSION;
use crate::spec::same_type;
use crate::store::files::{open_rows, verify_object};
use crate::store::{DataFile, Incarnation, deletion_vector};

/// Rows decoded at once: long stretches keep the diff's predictions going.
const BATCH_ROWS: usize = 1 << 16;

/// Rows of a row group, unless the table's options say otherwise: what a file read in parts holds of it.
const PART_ROWS: u64 = 1 << 18;

/// An index file and its deletion vector, both verified.
pub(crate) struct Fetched {
    ordinal: u32,
    file: DataFile,
    /// The file; `None`: it is read in parts.
    index: Option<Bytes>,
    dead: Option<RoaringTreemap>,
    /// What the bytes above hold of the pool.
    _reservation: MemoryReservation,
}

/// Which part of a file's row groups: part `at` of `of`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) at: usize,
    pub(crate) of: usize,
}

impl Slice {
    /// Its part of `row_groups` row groups.
    fn of_groups(self, row_groups: usize) -> Range<usize> {
        row_groups * self.at / self.of..row_groups * (self.at + 1) / self.of
    }
}

/// How much of an index file is in memory at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of it: it is read once.
    Whole,
    /// One row group: it is read twice, first to verify it.
    Parts,
}

/// Bytes that [`fetch`] and the reader hold in memory.
pub(crate) fn fetched_bytes(file: &DataFile, extent: Extent) -> usize {
    let vector = file.deletions.as_ref().map_or(0, |vector| vector.object.bytes);
    let index = match extent {
        Extent::Whole => file.index.bytes,
        Extent::Parts => file.index.bytes.min((file.index.bytes / file.rows.max(1) + 1).saturating_mul(PART_ROWS)),
    };
    usize::try_from(index.saturating_add(vector)).unwrap_or(usize::MAX)
}

/// Reads file `ordinal` of the base. `CORRUPT` or `HISTORY_MISSING` when its objects are not what the manifest says.
pub(crate) async fn fetch(
    incarnation: &Incarnation,
    (ordinal, file): (u32, &DataFile),
    extent: Extent,
    reservation: MemoryReservation,
) -> Result<Fetched> {
    let index = match extent {
        Extent::Whole => Some(incarnation.read_object(&file.index).await?),
        Extent::Parts => verify_object(incarnation, &file.index).await.map(|()| None)?,
    };
    let dead = match &file.deletions {
        Some(vector) => {
            let dead = deletion_vector::decode(&incarnation.read_object(&vector.object).await?)?;
            if dead.len() != vector.rows || dead.max().is_some_and(|last| last >= file.rows) {
                return Err(corrupt(&file.data.path, "its deletion vector does not hold the rows that the manifest says"));
            }
            Some(dead)
        }
        None => None,
    };
    Ok(Fetched { ordinal, file: file.clone(), index, dead, _reservation: reservation })
}

fn corrupt(path: &str, what: impl std::fmt::Display) -> Error {
    Error::new(
        ErrorCode::Corrupt,
        format!("data file {path:?}: {what}. Remedy: restore the table's files, or REFRESH … FULL, which reads no old data file"),
    )
}

/// Decodes an index file.
pub(crate) struct IndexReader {
    source: Arc<Fetched>,
    batches: Batches,
    schema: SchemaRef,
    /// The next physical row.
    row: u64,
    /// The physical row at which the part ends.
    end: u64,
}

enum Batches {
    Whole(ParquetRecordBatchReader),
    Parts(BoxStream<'static, Result<RecordBatch>>),
}

impl IndexReader {
    /// Reads part `slice` of the file. One that is read in parts anyway is no further divided: its first slice is all of it.
    pub(crate) async fn try_new(incarnation: &Incarnation, source: Arc<Fetched>, slice: Slice, schema: SchemaRef) -> Result<Self> {
        let rows = source.file.rows;
        let (batches, part) = match &source.index {
            Some(index) => open_whole(&source.file, index, slice)?,
            None if slice.at > 0 => (Batches::Parts(futures::stream::empty().boxed()), 0..0),
            None => {
                let stored: Vec<_> = schema.fields().iter().take(stored_fields(&schema)).cloned().collect();
                let stored = Arc::new(Schema::new(stored));
                (Batches::Parts(open_rows(incarnation, &source.file.index, &stored, BATCH_ROWS, Some(rows)).await?), 0..rows)
            }
        };
        Ok(Self { source, batches, schema, row: part.start, end: part.end })
    }

    async fn next_stored(&mut self) -> Result<Option<RecordBatch>> {
        match &mut self.batches {
            Batches::Parts(batches) => batches.next().await.transpose(),
            Batches::Whole(reader) => {
                let failed = |error| corrupt(&self.source.file.index.path, "it cannot be decoded").with_source(error);
                reader.next().transpose().map_err(failed)
            }
        }
    }

    /// The next batch of live rows; `None` at the end, when exactly the manifest's rows were there.
    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        while let Some(batch) = self.next_stored().await? {
            let first = self.row;
            self.row += batch.num_rows() as u64;
            let complete = complete(&self.source, &self.schema, &batch, first)?;
            let path = || self.source.file.index.path.as_str();
            let live = match self.source.dead.as_ref().and_then(|dead| live(dead, first, self.row)) {
                Some(live) => {
                    filter_record_batch(&complete, &live).map_err(|error| corrupt(path(), "it cannot be filtered").with_source(error))?
                }
                None => complete,
            };
            if live.num_rows() > 0 {
                return Ok(Some(live));
            }
        }
        if self.row != self.end {
            let what = format_args!("it ends at row {} and must end at {}", self.row, self.end);
            return Err(corrupt(&self.source.file.index.path, what));
        }
        Ok(None)
    }
}

/// The row groups of `slice`, and the rows that they hold.
fn open_whole(file: &DataFile, index: &Bytes, slice: Slice) -> Result<(Batches, Range<u64>)> {
    let path = file.index.path.as_str();
    let failed = |error| corrupt(path, "it is no readable Parquet file").with_source(error);
    let builder = ParquetRecordBatchReaderBuilder::try_new(index.clone()).map_err(failed)?;
    let rows: Vec<u64> = builder.metadata().row_groups().iter().map(|group| u64::try_from(group.num_rows()).unwrap_or(0)).collect();
    if rows.iter().sum::<u64>() != file.rows {
        let what = format_args!("it has {} rows and must have {}", rows.iter().sum::<u64>(), file.rows);
        return Err(corrupt(path, what));
    }
    let groups = slice.of_groups(rows.len());
    let start = rows.iter().take(groups.start).sum::<u64>();
    let end = start + rows.iter().take(groups.end).skip(groups.start).sum::<u64>();
    let columns = builder.schema().fields().iter().enumerate();
    let wanted: Vec<usize> = columns.filter(|(_, field)| field.name() != VERSION).map(|(at, _)| at).collect();
    let mask = ProjectionMask::roots(builder.parquet_schema(), wanted);
    let reader = builder.with_projection(mask).with_row_groups(groups.collect()).with_batch_size(BATCH_ROWS).build().map_err(failed)?;
    Ok((Batches::Whole(reader), start..end))
}

/// How many of the scan's fields are in the file: all but file and row.
fn stored_fields(schema: &SchemaRef) -> usize {
    schema.fields().len().saturating_sub(2)
}

/// Which of the rows `first..end` are live; `None` when all are.
fn live(dead: &RoaringTreemap, first: u64, end: u64) -> Option<BooleanArray> {
    let mut is_live = vec![true; usize::try_from(end.saturating_sub(first)).ok()?];
    let mut rows = dead.iter();
    rows.advance_to(first);
    let mut any = false;
    for row in rows.take_while(|row| *row < end) {
        if let Some(slot) = usize::try_from(row - first).ok().and_then(|at| is_live.get_mut(at)) {
            (*slot, any) = (false, true);
        }
    }
    any.then(|| BooleanArray::from(is_live))
}

/// The batch with file and row, in the scan's schema.
fn complete(source: &Fetched, schema: &SchemaRef, batch: &RecordBatch, first: u64) -> Result<RecordBatch> {
    let rows = batch.num_rows();
    let file: ArrayRef = Arc::new(UInt32Array::from_value(source.ordinal, rows));
    let row: ArrayRef = Arc::new(UInt64Array::from_iter_values(first..first + rows as u64));
    let column = |field: &Arc<arrow_schema::Field>| {
        let found = batch.column_by_name(field.name()).filter(|array| same_type(array.data_type(), field.data_type()));
        let array = found.ok_or_else(|| {
            corrupt(&source.file.index.path, format_args!("it has no column {:?} of type {}", field.name(), field.data_type()))
        })?;
        normalize_array(array, field.data_type())
    };
    let mut columns = schema.fields().iter().take(stored_fields(schema)).map(column).collect::<Result<Vec<_>>>()?;
    columns.extend([file, row]);
    RecordBatch::try_new(Arc::clone(schema), columns)
        .map_err(|error| corrupt(&source.file.index.path, "its columns do not fit").with_source(error))
}
