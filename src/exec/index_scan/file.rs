//! One index file with its deletion vector, verified before a byte of it is believed, as batches of live rows.

use std::collections::VecDeque;
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
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use roaring::RoaringTreemap;

use crate::error::{Error, ErrorCode, Result};
use crate::exec::equality::normalize_array;
use crate::spec::same_type;
use crate::store::files::{Choose, open_groups, verify_object};
use crate::store::{DataFile, Incarnation, deletion_vector};

use super::scope::Scope;

/// Rows decoded at once: long stretches keep the diff's predictions going.
const BATCH_ROWS: usize = 1 << 16;

/// Rows of a row group, unless the table's options say otherwise: what a file read in parts holds of it.
const PART_ROWS: u64 = 1 << 18;

/// What a row's fingerprint takes in a file: it is stored as it is.
const FINGERPRINT_BYTES: u64 = 16;

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

/// Bytes that [`fetch`] and the reader hold in memory. Unread rows are read without their fingerprints.
pub(crate) fn fetched_bytes(file: &DataFile, extent: Extent, scope: &Scope) -> usize {
    let vector = file.deletions.as_ref().map_or(0, |vector| vector.object.bytes);
    let left_out = if matches!(scope, Scope::Unread(..)) { file.rows.saturating_mul(FINGERPRINT_BYTES) } else { 0 };
    let read = file.index.bytes.saturating_sub(left_out);
    let index = match extent {
        Extent::Whole => file.index.bytes,
        Extent::Parts => read.min((read / file.rows.max(1) + 1).saturating_mul(PART_ROWS)),
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
    wanted: Wanted,
    /// The physical rows that are still to come: those of the row groups that are decoded.
    rows: VecDeque<Range<u64>>,
    /// Rows that were decoded with others that lie apart from them.
    pending: Option<RecordBatch>,
}

/// What is read of a file.
pub(crate) struct Wanted {
    pub(crate) schema: SchemaRef,
    pub(crate) scope: Scope,
    pub(crate) slice: Slice,
}

enum Batches {
    Whole(ParquetRecordBatchReader),
    Parts(BoxStream<'static, Result<RecordBatch>>),
}

impl IndexReader {
    /// Reads what is wanted of the file. One that is read in parts anyway is no further divided: its first slice is all of it.
    pub(crate) async fn try_new(incarnation: &Incarnation, source: Arc<Fetched>, mut wanted: Wanted) -> Result<Self> {
        let stored: Vec<_> = wanted.schema.fields().iter().take(stored_fields(&wanted.schema)).cloned().collect();
        let (stored, is_first) = (Arc::new(Schema::new(stored)), wanted.slice.at == 0);
        if source.index.is_none() {
            wanted.slice = Slice { at: 0, of: 1 };
        }
        let mut rows = VecDeque::new();
        let mut choose = |found: &Schema, metadata: &ParquetMetaData| choose(&source.file, found, metadata, &wanted, &mut rows);
        let batches = match &source.index {
            Some(index) => Batches::Whole(open_whole(&source.file, index, &stored, &mut choose)?),
            None if !is_first => Batches::Parts(futures::stream::empty().boxed()),
            None => Batches::Parts(open_groups(incarnation, &source.file.index, &stored, BATCH_ROWS, &mut choose).await?),
        };
        Ok(Self { source, batches, wanted, rows, pending: None })
    }

    async fn next_stored(&mut self) -> Result<Option<RecordBatch>> {
        if let Some(pending) = self.pending.take() {
            return Ok(Some(pending));
        }
        match &mut self.batches {
            Batches::Parts(batches) => batches.next().await.transpose(),
            Batches::Whole(reader) => {
                let failed = |error| corrupt(&self.source.file.index.path, "it cannot be decoded").with_source(error);
                reader.next().transpose().map_err(failed)
            }
        }
    }

    /// The first rows of a batch, as far as they lie side by side, with the position of the first; the rest is pending.
    fn side_by_side(&mut self, batch: RecordBatch) -> Result<(RecordBatch, u64)> {
        let path = &self.source.file.index.path;
        let range = self.rows.front_mut().ok_or_else(|| corrupt(path, "it has more rows than its footer says"))?;
        let (first, rows) = (range.start, batch.num_rows().min(usize::try_from(range.end - range.start).unwrap_or(usize::MAX)));
        range.start += rows as u64;
        if range.is_empty() {
            self.rows.pop_front();
        }
        if rows < batch.num_rows() {
            self.pending = Some(batch.slice(rows, batch.num_rows() - rows));
        }
        Ok((batch.slice(0, rows), first))
    }

    /// The next batch of live rows; `None` at the end, when exactly the chosen rows were there.
    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        while let Some(batch) = self.next_stored().await? {
            let (batch, first) = self.side_by_side(batch)?;
            let complete = complete(&self.source, &self.wanted.schema, &batch, first)?;
            let live = self.source.dead.as_ref().and_then(|dead| live(dead, first, first + batch.num_rows() as u64));
            let live = self.keep(complete, live)?;
            let wanted = self.wanted.scope.rows(&live)?;
            let wanted = self.keep(live, wanted)?;
            if wanted.num_rows() > 0 {
                return Ok(Some(wanted));
            }
        }
        match self.rows.front() {
            Some(_) => Err(corrupt(&self.source.file.index.path, "it has fewer rows than its footer says")),
            None => Ok(None),
        }
    }

    /// The rows that `keep` has; `None`: all.
    fn keep(&self, batch: RecordBatch, keep: Option<BooleanArray>) -> Result<RecordBatch> {
        let failed = |error| corrupt(&self.source.file.index.path, "it cannot be filtered").with_source(error);
        match keep {
            Some(keep) => filter_record_batch(&batch, &keep).map_err(failed),
            None => Ok(batch),
        }
    }
}

/// The row groups of `wanted` that are decoded (`None`: all), and the positions of their rows.
fn choose(
    file: &DataFile,
    schema: &Schema,
    metadata: &ParquetMetaData,
    wanted: &Wanted,
    rows: &mut VecDeque<Range<u64>>,
) -> Result<Option<Vec<usize>>> {
    let of_group = |group: &RowGroupMetaData| u64::try_from(group.num_rows()).unwrap_or(0);
    let found = metadata.row_groups().iter().map(of_group).sum::<u64>();
    if found != file.rows {
        return Err(corrupt(&file.index.path, format_args!("it has {found} rows and must have {}", file.rows)));
    }
    let groups = wanted.scope.row_groups(schema, metadata).unwrap_or_else(|| (0..metadata.num_row_groups()).collect());
    let groups = groups.get(wanted.slice.of_groups(groups.len())).unwrap_or_default().to_vec();
    let mut first = 0;
    for (at, group) in metadata.row_groups().iter().enumerate() {
        let end = first + of_group(group);
        if first < end && groups.binary_search(&at).is_ok() {
            match rows.back_mut() {
                Some(before) if before.end == first => before.end = end,
                _ => rows.push_back(first..end),
            }
        }
        first = end;
    }
    Ok(Some(groups))
}

fn open_whole(file: &DataFile, index: &Bytes, stored: &Schema, choose: &mut Choose<'_>) -> Result<ParquetRecordBatchReader> {
    let failed = |error| corrupt(&file.index.path, "it is no readable Parquet file").with_source(error);
    let builder = ParquetRecordBatchReaderBuilder::try_new(index.clone()).map_err(failed)?;
    let columns = builder.schema().fields().iter().enumerate();
    let wanted: Vec<usize> = columns.filter(|(_, field)| stored.index_of(field.name()).is_ok()).map(|(at, _)| at).collect();
    let mask = ProjectionMask::roots(builder.parquet_schema(), wanted);
    let builder = match choose(builder.schema(), builder.metadata())? {
        Some(groups) => builder.with_row_groups(groups),
        None => builder,
    };
    builder.with_projection(mask).with_batch_size(BATCH_ROWS).build().map_err(failed)
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
