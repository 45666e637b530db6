//! The changed rows of source batches as batches of the change set.
//!
//! ```text
//! source batch ─ filter(created, updated) ─ cut to < 2 GiB per array ─ normalise encodings ─ + fingerprint, ordinal ─► collect
//! ```
//!
//! Memory: at most one batch of rows or 32 MiB, whichever is less, plus one source batch. Work follows the change: rows
//! that are unchanged are never copied or cast.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int32Array, Int64Array, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{FilterBuilder, concat_batches, filter};
use arrow::datatypes::Int32Type;
use arrow_schema::SchemaRef;
use datafusion::common::utils::memory::get_record_batch_memory_size;

use super::columns::split_fingerprint;
use super::diff::Verdict;
use crate::error::{Error, ErrorCode, Result};
use crate::exec::equality::{Piece, normalize_array, pieces};

const PENDING_BYTES: usize = 32 << 20;
const ARRAY_BYTES: u64 = i32::MAX as u64;

/// The columns of a source batch that the diff works on.
pub(crate) struct SourceRows {
    /// Key columns, then tracked columns, in the source's encodings.
    pub(crate) columns: Vec<ArrayRef>,
    /// How many of them are key columns.
    pub(crate) keys: usize,
    /// The ordinals of the rows' source files, when the source has them.
    pub(crate) ordinals: Option<ArrayRef>,
    pub(crate) rows: usize,
}

impl SourceRows {
    pub(crate) fn key_columns(&self) -> &[ArrayRef] {
        self.columns.get(..self.keys).unwrap_or_default()
    }

    /// The ordinals of the rows' source files, when the source has them.
    pub(crate) fn ordinals(&self) -> Result<Option<&[i32]>> {
        let Some(ordinals) = &self.ordinals else { return Ok(None) };
        let ordinals = ordinals.as_primitive_opt::<Int32Type>().filter(|ordinals| ordinals.null_count() == 0);
        ordinals
            .map(|ordinals| Some(ordinals.values().as_ref()))
            .ok_or_else(|| Error::internal("source ordinals must be Int32 and not null"))
    }

    pub(crate) fn tracked_columns(&self) -> &[ArrayRef] {
        self.columns.get(self.keys..).unwrap_or_default()
    }
}

/// A value that no array can hold: (row, position of the column).
pub(crate) struct TooLarge {
    pub(crate) row: usize,
    pub(crate) column: usize,
    pub(crate) columns: Vec<ArrayRef>,
}

/// The rows of `source` that `keep` has, in the change set's schema, cut so that every array can hold its part.
pub(crate) fn change_rows(
    schema: &SchemaRef,
    source: &SourceRows,
    keep: &BooleanArray,
    fingerprints: &[u128],
) -> Result<Result<Vec<RecordBatch>, TooLarge>> {
    let kept = keep.true_count();
    // One list of indices for all columns: few rows of a batch are changed.
    let predicate = FilterBuilder::new(keep).optimize().build();
    let filtered = |array: &ArrayRef| match kept == keep.len() {
        true => Ok(Arc::clone(array)),
        false => predicate.filter(array.as_ref()).map_err(failed),
    };
    let columns = source.columns.iter().map(filtered).collect::<Result<Vec<_>>>()?;
    let hidden = hidden(source, keep, fingerprints)?;
    let mut batches = Vec::new();
    for piece in pieces(&columns, kept, ARRAY_BYTES)? {
        match piece {
            Piece::Rows(range) if range.is_empty() => {}
            Piece::Rows(range) => {
                let cut = |array: &ArrayRef| array.slice(range.start, range.len());
                let normalise = |(array, field): (&ArrayRef, &Arc<arrow_schema::Field>)| normalize_array(&cut(array), field.data_type());
                let mut arrays = columns.iter().zip(schema.fields()).map(normalise).collect::<Result<Vec<_>>>()?;
                arrays.extend(hidden.iter().map(cut));
                batches.push(RecordBatch::try_new(Arc::clone(schema), arrays).map_err(failed)?);
            }
            Piece::TooLarge(row, column) => return Ok(Err(TooLarge { row, column, columns })),
        }
    }
    Ok(Ok(batches))
}

fn hidden(source: &SourceRows, keep: &BooleanArray, fingerprints: &[u128]) -> Result<[ArrayRef; 3]> {
    let kept = || keep.values().set_indices().filter_map(|row| fingerprints.get(row));
    let halves = || kept().map(|fingerprint| split_fingerprint(*fingerprint));
    let high: Int64Array = halves().map(|(high, _)| high).collect();
    let low: Int64Array = halves().map(|(_, low)| low).collect();
    let ordinals: ArrayRef = match &source.ordinals {
        Some(ordinals) => {
            let kept = filter(ordinals.as_ref(), keep).map_err(failed)?;
            source.ordinals()?;
            kept
        }
        None => Arc::new(Int32Array::from_value(-1, high.len())),
    };
    Ok([Arc::new(high), Arc::new(low), ordinals])
}

/// Collects changed rows into batches.
pub(crate) struct Emitter {
    schema: SchemaRef,
    batch_rows: usize,
    pending: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
}

impl Emitter {
    pub(crate) fn new(schema: SchemaRef, batch_rows: usize) -> Self {
        Self { schema, batch_rows: batch_rows.max(1), pending: Vec::new(), rows: 0, bytes: 0 }
    }

    /// Adds the changed rows of a batch; complete batches go to `out`.
    pub(crate) fn push(
        &mut self,
        source: &SourceRows,
        verdicts: &[Verdict],
        fingerprints: &[u128],
        out: &mut Vec<RecordBatch>,
    ) -> Result<Result<(), TooLarge>> {
        if !verdicts.iter().any(|verdict| verdict.is_changed()) {
            return Ok(Ok(()));
        }
        let is_changed = |row: usize| verdicts.get(row).is_some_and(|verdict| verdict.is_changed());
        let is_changed = BooleanArray::from(BooleanBuffer::collect_bool(verdicts.len(), is_changed));
        match change_rows(&self.schema, source, &is_changed, fingerprints)? {
            Ok(batches) => batches.into_iter().try_for_each(|batch| self.add(batch, out)).map(Ok),
            Err(large) => Ok(Err(large)),
        }
    }

    /// Hands out what is left.
    pub(crate) fn finish(&mut self, out: &mut Vec<RecordBatch>) -> Result<()> {
        if !self.pending.is_empty() {
            let pending = std::mem::take(&mut self.pending);
            out.push(
                if pending.len() == 1 { pending.into_iter().next() } else { Some(concat_batches(&self.schema, &pending).map_err(failed)?) }
                    .ok_or_else(|| Error::internal("no pending batch"))?,
            );
            (self.rows, self.bytes) = (0, 0);
        }
        Ok(())
    }

    fn add(&mut self, batch: RecordBatch, out: &mut Vec<RecordBatch>) -> Result<()> {
        let bytes = get_record_batch_memory_size(&batch);
        if self.rows > 0 && (self.rows + batch.num_rows() > self.batch_rows || self.bytes + bytes > PENDING_BYTES) {
            self.finish(out)?;
        }
        self.rows += batch.num_rows();
        self.bytes += bytes;
        self.pending.push(batch);
        if self.rows >= self.batch_rows || self.bytes >= PENDING_BYTES {
            self.finish(out)?;
        }
        Ok(())
    }
}

fn failed(error: arrow::error::ArrowError) -> Error {
    Error::new(ErrorCode::Internal, "the changed rows could not be put together. Remedy: please report this").with_source(error)
}
