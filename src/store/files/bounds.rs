//! Bounds of a data file's columns, for pruning by the manifest.
//!
//! ```text
//! Parquet's bounds per row group ─ fold ─► min, max ─┐
//! floating point: own fold over the rows ────────────┴─► one-row Arrow IPC stream ─ base 64 ─► ColumnBounds.range
//! ```
//!
//! Strings and binaries may be cut: then the bounds are wider than the values. A floating-point column with NaN has no
//! bounds, because Parquet leaves NaN out and DataFusion orders it above every number. Memory: one value per row group.
//! Never guesses: where a row group has no bounds the file has none.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{ArrowPrimitiveType, Float16Type, Float32Type, Float64Type};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType, Schema};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use datafusion::common::ScalarValue;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::file::metadata::ParquetMetaData;

use crate::store::ColumnBounds;

/// A longer bound is left out; the manifest has one for every column of every file.
const LONGEST_VALUE: usize = 256;

/// The text of [`ColumnBounds::range`] for two values of one type.
///
/// # Errors
/// When Arrow cannot encode the type.
pub fn encode_range(min: &ScalarValue, max: &ScalarValue) -> Result<String, ArrowError> {
    let array = |value: &ScalarValue| value.to_array().map_err(|e| ArrowError::ExternalError(Box::new(e)));
    let batch = RecordBatch::try_from_iter([("min", array(min)?), ("max", array(max)?)])?;
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema())?;
    writer.write(&batch)?;
    Ok(STANDARD.encode(writer.into_inner()?))
}

/// The minimum and maximum in the text of [`ColumnBounds::range`]; `None` for a text that has none, which only means
/// that nothing is pruned by it.
pub fn decode_range(text: &str) -> Option<(ScalarValue, ScalarValue)> {
    let bytes = STANDARD.decode(text).ok()?;
    let batch = StreamReader::try_new(bytes.as_slice(), None).ok()?.next()?.ok()?;
    let value = |name: &str| {
        let column: &ArrayRef = batch.column_by_name(name)?;
        (column.len() == 1).then(|| ScalarValue::try_from_array(column, 0).ok()).flatten().filter(|value| !value.is_null())
    };
    Some((value("min")?, value("max")?))
}

/// The bounds of every column of a finished data file that can have some.
pub(super) fn column_bounds(schema: &Schema, metadata: &ParquetMetaData, floats: &FloatBounds) -> BTreeMap<String, ColumnBounds> {
    let bounds = |name: &String| floats.bounds(name).or_else(|| parquet_bounds(schema, name, metadata));
    schema.fields().iter().filter_map(|field| Some((field.name().clone(), bounds(field.name())?))).collect()
}

fn parquet_bounds(schema: &Schema, name: &str, metadata: &ParquetMetaData) -> Option<ColumnBounds> {
    let data_type = schema.field_with_name(name).ok()?.data_type();
    if data_type.is_nested() || data_type.is_floating() {
        return None;
    }
    let converter = StatisticsConverter::try_new(name, schema, metadata.file_metadata().schema_descr()).ok()?;
    let converter = converter.with_missing_null_counts_as_zero(false);
    let nulls = converter.row_group_null_counts(metadata.row_groups()).ok()?;
    let all_null: Vec<bool> = metadata
        .row_groups()
        .iter()
        .zip(nulls.iter())
        .map(|(group, nulls)| nulls.is_some_and(|n| i64::try_from(n) == Ok(group.num_rows())))
        .collect();
    let range = has_range(data_type).then(|| {
        let min = fold(&converter.row_group_mins(metadata.row_groups()).ok()?, &all_null, Ordering::Less)?;
        let max = fold(&converter.row_group_maxes(metadata.row_groups()).ok()?, &all_null, Ordering::Greater)?;
        encode_range(&min, &max).ok()
    });
    let nulls = (nulls.null_count() == 0).then(|| nulls.values().iter().sum());
    Some(ColumnBounds { nulls, range: range.flatten() })
}

fn has_range(data_type: &DataType) -> bool {
    use DataType::*;
    data_type.is_integer()
        || data_type.is_decimal()
        || matches!(data_type, Boolean | Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..) | Utf8 | LargeUtf8 | Binary | LargeBinary)
}

/// The smallest or largest value; row groups of nulls have none, any other one must have its own.
fn fold(values: &ArrayRef, all_null: &[bool], wanted: Ordering) -> Option<ScalarValue> {
    let mut best: Option<ScalarValue> = None;
    for (row, skip) in all_null.iter().enumerate().take(values.len()) {
        if *skip {
            continue;
        }
        let value = ScalarValue::try_from_array(values, row).ok().filter(|value| !value.is_null() && !is_long(value))?;
        let better = match &best {
            Some(best) => value.partial_cmp(best)? == wanted,
            None => true,
        };
        if better {
            best = Some(value);
        }
    }
    best
}

fn is_long(value: &ScalarValue) -> bool {
    match value {
        ScalarValue::Utf8(Some(text)) | ScalarValue::LargeUtf8(Some(text)) => text.len() > LONGEST_VALUE,
        ScalarValue::Binary(Some(bytes)) | ScalarValue::LargeBinary(Some(bytes)) => bytes.len() > LONGEST_VALUE,
        _ => false,
    }
}

/// Nulls, minimum and maximum of the floating-point columns, folded while the rows are written.
#[derive(Debug, Default)]
pub(super) struct FloatBounds(BTreeMap<String, FloatColumn>);

#[derive(Debug, Default)]
struct FloatColumn {
    nulls: u64,
    nan: bool,
    range: Option<(ScalarValue, ScalarValue)>,
}

impl FloatBounds {
    /// Takes the rows of one batch into account.
    pub(super) fn update(&mut self, batch: &RecordBatch) {
        for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            if !field.data_type().is_floating() {
                continue;
            }
            let bounds = self.0.entry(field.name().clone()).or_default();
            match field.data_type() {
                DataType::Float16 => {
                    bounds.update::<Float16Type>(column, |v| v.is_nan(), |a, b| a.total_cmp(&b), |v| ScalarValue::Float16(Some(v)));
                }
                DataType::Float32 => {
                    bounds.update::<Float32Type>(column, f32::is_nan, |a, b| a.total_cmp(&b), |v| ScalarValue::Float32(Some(v)))
                }
                _ => bounds.update::<Float64Type>(column, f64::is_nan, |a, b| a.total_cmp(&b), |v| ScalarValue::Float64(Some(v))),
            }
        }
    }

    fn bounds(&self, name: &str) -> Option<ColumnBounds> {
        let column = self.0.get(name)?;
        let range = column.range.as_ref().filter(|_| !column.nan).and_then(|(min, max)| encode_range(min, max).ok());
        Some(ColumnBounds { nulls: Some(column.nulls), range })
    }
}

impl FloatColumn {
    fn update<T: ArrowPrimitiveType>(
        &mut self,
        column: &ArrayRef,
        is_nan: fn(T::Native) -> bool,
        compare: fn(T::Native, T::Native) -> Ordering,
        scalar: fn(T::Native) -> ScalarValue,
    ) {
        self.nulls += column.null_count() as u64;
        let mut range: Option<(T::Native, T::Native)> = None;
        for value in column.as_primitive::<T>().iter().flatten() {
            if is_nan(value) {
                self.nan = true;
                return;
            }
            range = Some(range.map_or((value, value), |(min, max)| {
                (if compare(value, min).is_lt() { value } else { min }, if compare(value, max).is_gt() { value } else { max })
            }));
        }
        let Some((min, max)) = range.map(|(min, max)| (scalar(min), scalar(max))) else { return };
        self.range = Some(match self.range.take() {
            Some((old_min, old_max)) => (if min < old_min { min } else { old_min }, if max > old_max { max } else { old_max }),
            None => (min, max),
        });
    }
}
