//! The chosen rows of one index file, as batches of their keys.

use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::Int64Type;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use datafusion::execution::memory_pool::MemoryReservation;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use roaring::RoaringTreemap;

use super::{ChosenRows, KeyFile};
use crate::error::{Error, ErrorCode, Result};
use crate::store::dead::dead_rows;
use crate::store::files::{VERSION, open_rows, verify_object};
use crate::store::{DataFile, Incarnation};

/// Rows decoded at once.
const BATCH_ROWS: usize = 1 << 16;
/// Rows of a row group, unless the table's options say otherwise.
const PART_ROWS: u64 = 1 << 18;

/// One index file that is being read.
pub(super) struct KeyReading {
    batches: BoxStream<'static, Result<RecordBatch>>,
    chosen: Chosen,
    keys: SchemaRef,
    /// The position of the next row.
    next: u64,
    _reservation: MemoryReservation,
}

/// Which positions are chosen.
struct Chosen {
    /// Only these; all when absent.
    only: Option<RoaringTreemap>,
    /// None of these.
    not: RoaringTreemap,
    /// Only rows of a later version.
    after: Option<i64>,
}

impl KeyReading {
    /// Verifies the file and opens it. `CORRUPT` or `HISTORY_MISSING` when its objects are not what the manifest says.
    pub(super) async fn open(
        incarnation: &Incarnation,
        wanted: &KeyFile,
        keys: &SchemaRef,
        reservation: MemoryReservation,
    ) -> Result<Self> {
        let KeyFile { file, rows } = wanted;
        reservation.try_grow(held_bytes(wanted)).map_err(|error| {
            let context = format!("table {:?}: the keys of an index file do not fit the memory pool", incarnation.name());
            Error::from_datafusion(error, ErrorCode::ResourcesExhausted, context)
        })?;
        let chosen = chosen(incarnation, wanted).await?;
        verify_object(incarnation, &file.index).await?;
        let mut fields: Vec<_> = keys.fields().iter().cloned().collect();
        if matches!(rows, ChosenRows::WrittenAfter(_)) {
            fields.push(Arc::new(Field::new(VERSION, DataType::Int64, false)));
        }
        let stored = Arc::new(Schema::new(fields));
        let batches = open_rows(incarnation, &file.index, &stored, BATCH_ROWS, Some(file.rows)).await?;
        Ok(Self { batches, chosen, keys: Arc::clone(keys), next: 0, _reservation: reservation })
    }

    /// The keys.
    pub(super) fn into_stream(self) -> BoxStream<'static, Result<RecordBatch>> {
        stream::try_unfold(self, |mut reading| async move { Ok(reading.next().await?.map(|batch| (batch, reading))) }).boxed()
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        while let Some(batch) = self.batches.try_next().await? {
            let first = self.next;
            self.next += batch.num_rows() as u64;
            let mask = self.chosen.mask(first, &batch)?;
            if mask.true_count() == 0 {
                continue;
            }
            let unfit = |error| Error::internal("the keys of an index file could not be taken out of it").with_source(error);
            let columns = batch.columns().iter().take(self.keys.fields().len()).cloned().collect();
            let keys = RecordBatch::try_new(Arc::clone(&self.keys), columns).map_err(unfit)?;
            return filter_record_batch(&keys, &mask).map(Some).map_err(unfit);
        }
        Ok(None)
    }
}

/// The deletion vectors, and about a row group of the index.
fn held_bytes(wanted: &KeyFile) -> usize {
    let vector = |file: &DataFile| file.deletions.as_ref().map_or(0, |vector| vector.object.bytes);
    let later = match &wanted.rows {
        ChosenRows::DeadIn(Some(later)) => vector(later),
        _ => 0,
    };
    let file = &wanted.file;
    let part = file.index.bytes.min((file.index.bytes / file.rows.max(1) + 1).saturating_mul(PART_ROWS));
    usize::try_from(part.saturating_add(vector(file)).saturating_add(later)).unwrap_or(usize::MAX)
}

async fn chosen(incarnation: &Incarnation, wanted: &KeyFile) -> Result<Chosen> {
    let dead = dead_rows(incarnation, &wanted.file).await?;
    Ok(match &wanted.rows {
        ChosenRows::WrittenAfter(version) => {
            let after = i64::try_from(*version).map_err(|e| Error::internal(format!("version {version}: {e}")))?;
            Chosen { only: None, not: dead, after: Some(after) }
        }
        ChosenRows::DeadIn(None) => Chosen { only: None, not: dead, after: None },
        ChosenRows::DeadIn(Some(later)) => {
            let died = dead_rows(incarnation, later).await? - dead;
            Chosen { only: Some(died), not: RoaringTreemap::new(), after: None }
        }
    })
}

impl Chosen {
    /// Which rows of `batch`, the first of which is at position `first`, are chosen.
    fn mask(&self, first: u64, batch: &RecordBatch) -> Result<BooleanArray> {
        let mut mask = match self.after {
            Some(after) => {
                let versions = batch.column_by_name(VERSION).and_then(|column| column.as_primitive_opt::<Int64Type>());
                let versions = versions.ok_or_else(|| Error::internal("an index file has no versions"))?;
                versions.values().iter().map(|version| *version > after).collect()
            }
            None => vec![self.only.is_none(); batch.num_rows()],
        };
        if let Some(only) = &self.only {
            set(&mut mask, only, first, true);
        }
        set(&mut mask, &self.not, first, false);
        Ok(BooleanArray::from(mask))
    }
}

/// Sets the places of `positions` that lie in the mask, which begins at `first`.
fn set(mask: &mut [bool], positions: &RoaringTreemap, first: u64, value: bool) {
    let mut positions = positions.iter();
    positions.advance_to(first);
    for position in positions {
        match usize::try_from(position - first).ok().and_then(|place| mask.get_mut(place)) {
            Some(place) => *place = value,
            None => return,
        }
    }
}
