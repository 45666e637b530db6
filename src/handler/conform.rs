//! Values in the revision's exact types: encodings differ between producers, logical types never do here.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, DataType, SchemaRef};

/// `array` in the type `to`. The caller has checked that both are one logical type; then this changes only the
/// encoding: views, dictionaries, list item names, the order of struct fields, the text of a zone.
fn conform(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == to {
        return Ok(Arc::clone(array));
    }
    cast_with_options(array, to, &CastOptions { safe: false, ..CastOptions::default() })
}

/// A batch of exactly `schema` from `columns`, which stand in its order.
pub(crate) fn conform_batch(schema: &SchemaRef, columns: &[ArrayRef], rows: usize) -> Result<RecordBatch, ArrowError> {
    let columns =
        columns.iter().zip(schema.fields()).map(|(array, field)| conform(array, field.data_type())).collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &RecordBatchOptions::new().with_row_count(Some(rows)))
}
