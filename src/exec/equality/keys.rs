//! The keys of a batch, in the form that suits their columns.
//!
//! ```text
//! one key column of ≤ 8 bytes   → u64 per key              (integers, dates, times, floats, small decimals, booleans)
//! one text or binary column     → its bytes, where they lie
//! anything else                 → canonical bytes
//! ```
//!
//! Memory: nothing, 8 bytes per key, or the encoded keys of the batch.

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::buffer::ScalarBuffer;
use arrow_schema::{DataType, Field};

use super::column::Column;
use super::encoder::{CanonicalEncoder, EncodedRows, bind, check_types};
use crate::error::{Error, ErrorCode, Result};
use crate::spec::normalize_type;

/// Which store fits a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyShape {
    Small,
    Text,
    Encoded,
}

/// Reads keys out of batches.
#[derive(Debug, Clone)]
pub(crate) struct KeyReader {
    fields: Vec<Field>,
    shape: KeyShape,
    encoder: CanonicalEncoder,
}

/// A key value that is null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NullKey {
    pub(crate) row: usize,
    /// Position among the key columns.
    pub(crate) column: usize,
}

/// The keys of one batch.
#[derive(Debug)]
pub(crate) enum KeyBatch {
    Words(ScalarBuffer<u64>),
    Small(Vec<u64>),
    Text(Column),
    Encoded(EncodedRows),
}

impl KeyReader {
    /// A reader of keys with these fields; refuses maps and what Parquet cannot hold.
    pub(crate) fn try_new(fields: &[Field]) -> Result<Self> {
        check_types(fields, true)?;
        let shape = match fields {
            [] => return Err(Error::new(ErrorCode::DefinitionInvalid, "a key needs at least one column. Remedy: write KEY (column, …)")),
            [one] => shape_of(&normalize_type(one.data_type())),
            _ => KeyShape::Encoded,
        };
        Ok(Self { fields: fields.to_vec(), shape, encoder: CanonicalEncoder::try_new(fields)? })
    }

    pub(crate) fn shape(&self) -> KeyShape {
        self.shape
    }

    /// The keys of `columns`, in the order of the fields and in any encoding. Null keys have no defined value.
    pub(crate) fn read(&self, columns: &[ArrayRef]) -> Result<KeyBatch> {
        if self.shape == KeyShape::Encoded {
            return Ok(KeyBatch::Encoded(self.encoder.encode(columns)?));
        }
        let rows = columns.first().map_or(0, |c| c.len());
        let column = bind(&self.fields, columns)?.pop().ok_or_else(|| Error::internal("a key without columns"))?;
        Ok(match (self.shape, column.words()) {
            (KeyShape::Text, _) => KeyBatch::Text(column),
            (_, Some(words)) => KeyBatch::Words(words.clone()),
            (_, None) => KeyBatch::Small((0..rows).map(|row| column.small(row).unwrap_or_default()).collect()),
        })
    }

    /// [`Self::read`] of the key columns of `batch`, found by name.
    pub(crate) fn read_batch(&self, batch: &RecordBatch) -> Result<KeyBatch> {
        let column = |field: &Field| {
            let missing = || Error::internal(format!("a batch has no key column {:?}", field.name()));
            batch.column_by_name(field.name()).cloned().ok_or_else(missing)
        };
        self.read(&self.fields.iter().map(column).collect::<Result<Vec<ArrayRef>>>()?)
    }

    /// Every row with a null key part, with the first column at fault.
    pub(crate) fn null_keys(&self, columns: &[ArrayRef]) -> Result<Vec<NullKey>> {
        let bound = bind(&self.fields, columns)?;
        if bound.iter().all(Column::has_no_nulls) {
            return Ok(Vec::new());
        }
        let rows = columns.first().map_or(0, |c| c.len());
        let null = |row| bound.iter().position(|c| c.is_null(row)).map(|column| NullKey { row, column });
        Ok((0..rows).filter_map(null).collect())
    }
}

fn shape_of(data_type: &DataType) -> KeyShape {
    use DataType as T;
    match data_type {
        T::Utf8 | T::Binary | T::FixedSizeBinary(_) => KeyShape::Text,
        T::Boolean | T::Float16 | T::Float32 | T::Float64 | T::Decimal32(..) | T::Decimal64(..) => KeyShape::Small,
        T::Decimal128(..) | T::Decimal256(..) | T::Interval(_) => KeyShape::Encoded,
        t if t.is_integer() || t.is_temporal() => KeyShape::Small,
        _ => KeyShape::Encoded,
    }
}

impl KeyBatch {
    pub(super) fn word(&self, row: usize) -> u64 {
        match self {
            Self::Words(words) => words.get(row).copied().unwrap_or_default(),
            Self::Small(words) => words.get(row).copied().unwrap_or_default(),
            _ => 0,
        }
    }

    pub(super) fn words(&self) -> Option<&[u64]> {
        match self {
            Self::Words(words) => Some(words),
            Self::Small(words) => Some(words),
            _ => None,
        }
    }

    pub(super) fn bytes(&self, row: usize) -> &[u8] {
        match self {
            Self::Text(column) => column.bytes(row).unwrap_or_default(),
            Self::Encoded(rows) => rows.row(row),
            _ => &[],
        }
    }
}
