//! The canonical encoding of whole rows: the columns' encodings one after another.

use arrow::array::{Array, ArrayRef};
use arrow_schema::{DataType, Field};

use super::column::{Column, RepeatedMapKey};
use super::sink::Sink;
use crate::error::{Error, ErrorCode, Result};
use crate::spec::{same_type, unsupported_type};

/// Why rows could not be encoded.
#[derive(Debug)]
pub(crate) enum EncodeError {
    /// A map holds an equal key twice.
    RepeatedMapKey {
        /// The column that holds the map.
        column: String,
        /// The row of the batch.
        row: usize,
        /// The map's key.
        key: String,
    },
    /// Anything else.
    Other(Error),
}

impl From<Error> for EncodeError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl EncodeError {
    /// The public error; `place` says where the row is (table and key).
    pub(crate) fn into_error(self, place: impl FnOnce(usize) -> String) -> Error {
        match self {
            Self::Other(error) => error,
            Self::RepeatedMapKey { column, row, key } => Error::new(
                ErrorCode::CaptureFailed,
                format!(
                    "{}: the map in column {column:?} holds the key {key} twice, so its value is ambiguous. Remedy: make the map's keys unique in the source",
                    place(row),
                ),
            ),
        }
    }
}

/// Binds `columns` to `fields`: as many, equally long, and of the same logical types (encodings are free).
pub(crate) fn bind(fields: &[Field], columns: &[ArrayRef]) -> Result<Vec<Column>> {
    let rows = columns.first().map_or(0, |c| c.len());
    if fields.len() != columns.len() || columns.iter().any(|c| c.len() != rows) {
        return Err(Error::internal("the columns to encode do not match their fields"));
    }
    let bind = |(field, column): (&Field, &ArrayRef)| {
        if field.data_type() != column.data_type() && !same_type(field.data_type(), column.data_type()) {
            return Err(Error::new(
                ErrorCode::SchemaChanged,
                format!(
                    "column {:?} has type {} and must have {}. Remedy: ALTER INCREMENTAL TABLE … ACCEPT SCHEMA, or cast it in the source",
                    field.name(),
                    column.data_type(),
                    field.data_type()
                ),
            ));
        }
        Column::bind(column)
    };
    fields.iter().zip(columns).map(bind).collect()
}

/// Refuses types without a canonical encoding.
pub(crate) fn check_types(fields: &[Field], as_key: bool) -> Result<()> {
    for field in fields {
        if let Some(reason) = unsupported_type(field.data_type(), as_key) {
            let role = if as_key { "key column" } else { "column" };
            return Err(Error::new(
                ErrorCode::TypeUnsupported,
                format!(
                    "{role} {:?} of type {}: {reason}. Remedy: cast or drop it in the source",
                    field.name(),
                    type_name(field.data_type())
                ),
            ));
        }
    }
    Ok(())
}

fn type_name(data_type: &DataType) -> String {
    data_type.to_string()
}

/// Encoded rows: equal rows have equal bytes, unequal rows unequal bytes.
#[derive(Debug, Default)]
pub struct EncodedRows {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl EncodedRows {
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of row `row`; empty past the end.
    pub fn row(&self, row: usize) -> &[u8] {
        let start = row.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or_default();
        self.ends.get(row).and_then(|end| self.bytes.get(start..*end)).unwrap_or_default()
    }
}

/// Encodes the rows of a list of columns, given in the order of the fields.
#[derive(Debug, Clone)]
pub struct CanonicalEncoder {
    fields: Vec<Field>,
}

impl CanonicalEncoder {
    /// An encoder for columns of these logical types. `TYPE_UNSUPPORTED` for types that Parquet cannot hold.
    pub fn try_new(fields: &[Field]) -> Result<Self> {
        check_types(fields, false)?;
        Ok(Self { fields: fields.to_vec() })
    }

    /// The encoded rows of `columns`, in any physical encoding.
    pub fn encode(&self, columns: &[ArrayRef]) -> Result<EncodedRows> {
        self.try_encode(columns).map_err(|error| error.into_error(|row| format!("row {row} of a batch")))
    }

    /// Like [`Self::encode`]; the caller says which row is at fault.
    pub(crate) fn try_encode(&self, columns: &[ArrayRef]) -> Result<EncodedRows, EncodeError> {
        let bound = bind(&self.fields, columns)?;
        let rows = columns.first().map_or(0, |c| c.len());
        let mut out = EncodedRows { bytes: Vec::with_capacity(rows * 16 * bound.len()), ends: Vec::with_capacity(rows) };
        for row in 0..rows {
            append_row(&bound, self.fields.iter(), row, &mut out.bytes)?;
            out.ends.push(out.bytes.len());
        }
        Ok(out)
    }
}

/// Appends one row's encoding.
#[inline]
pub(crate) fn append_row<'a>(
    columns: &[Column],
    fields: impl Iterator<Item = &'a Field>,
    row: usize,
    out: &mut impl Sink,
) -> Result<(), EncodeError> {
    for (column, field) in columns.iter().zip(fields) {
        if let Err(RepeatedMapKey(key)) = column.append(row, out) {
            return Err(EncodeError::RepeatedMapKey { column: field.name().clone(), row, key });
        }
    }
    Ok(())
}
