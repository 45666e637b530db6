//! The manifest's column bounds: they prune files and become DataFusion statistics.
//!
//! ```text
//! DataFile.bounds {"v": nulls, min, max}  ──►  PruningPredicate over all files  ──►  keep / skip
//!                                         └──►  Statistics per file: exact only where no row is dead and the type says so
//! ```
//!
//! Bounds are physical: dead rows are included, so they may be too wide, never too narrow. Text and binary bounds may be
//! cut, and a float column that holds NaN has none.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, UInt64Array};
use arrow::ipc::reader::StreamReader;
use arrow_schema::{DataType, SchemaRef};
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::stats::Precision;
use datafusion::common::{Column, ColumnStatistics, ScalarValue, Statistics};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;

use crate::store::{ColumnBounds, DataFile};

/// What is known of one file, one entry per column of the published schema.
#[derive(Debug)]
pub(super) struct FileBounds {
    ranges: Vec<Option<(ScalarValue, ScalarValue)>>,
    nulls: Vec<Option<u64>>,
    rows: u64,
    /// For DataFusion's planner.
    pub(super) statistics: Arc<Statistics>,
}

impl FileBounds {
    /// Decodes the bounds of `file`; what cannot be decoded is unknown.
    pub(super) fn decode(schema: &SchemaRef, file: &DataFile) -> Self {
        let known = |name: &str| file.bounds.get(name);
        let range = |name: &str, data_type: &DataType| decode_range(known(name)?, data_type);
        let ranges: Vec<_> = schema.fields().iter().map(|f| range(f.name(), f.data_type())).collect();
        let nulls: Vec<_> = schema.fields().iter().map(|f| known(f.name()).and_then(|b| b.nulls)).collect();
        let whole = file.live_rows() == file.rows;
        let columns = schema.fields().iter().zip(&ranges).zip(&nulls);
        let column_statistics =
            columns.map(|((field, range), nulls)| column_statistics(range.as_ref(), *nulls, whole, is_exact(field.data_type()))).collect();
        let statistics = Statistics {
            num_rows: Precision::Exact(as_usize(file.live_rows())),
            total_byte_size: Precision::Inexact(as_usize(file.data.bytes)),
            column_statistics,
        };
        Self { ranges, nulls, rows: file.rows, statistics: Arc::new(statistics) }
    }
}

fn as_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// `whole`: no row is dead. `exact`: bounds of this type are values, not shortened ones.
fn column_statistics(range: Option<&(ScalarValue, ScalarValue)>, nulls: Option<u64>, whole: bool, exact: bool) -> ColumnStatistics {
    let value = |value: Option<&ScalarValue>| match value {
        Some(value) if value.is_null() => Precision::Absent,
        Some(value) if whole && exact => Precision::Exact(value.clone()),
        Some(value) => Precision::Inexact(value.clone()),
        None => Precision::Absent,
    };
    let null_count = match nulls {
        Some(nulls) if whole => Precision::Exact(as_usize(nulls)),
        Some(nulls) => Precision::Inexact(as_usize(nulls)),
        None => Precision::Absent,
    };
    ColumnStatistics {
        null_count,
        min_value: value(range.map(|r| &r.0)),
        max_value: value(range.map(|r| &r.1)),
        ..ColumnStatistics::new_unknown()
    }
}

/// Bounds of text and binary columns may be cut; those of floats do not tell 0.0 from -0.0.
fn is_exact(data_type: &DataType) -> bool {
    match data_type {
        DataType::Boolean | DataType::Date32 | DataType::Date64 => true,
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) => true,
        DataType::Time32(_) | DataType::Time64(_) | DataType::Timestamp(..) => true,
        other => other.is_integer(),
    }
}

/// The bounds as values of the published type.
fn decode_range(bounds: &ColumnBounds, data_type: &DataType) -> Option<(ScalarValue, ScalarValue)> {
    let bytes = decode_base64(bounds.range.as_deref()?)?;
    let batch = StreamReader::try_new(bytes.as_slice(), None).ok()?.next()?.ok()?;
    let value = |name: &str| {
        let value = ScalarValue::try_from_array(batch.column_by_name(name)?, 0).ok()?;
        if value.data_type() == *data_type { Some(value) } else { value.cast_to(data_type).ok() }
    };
    Some((value("min")?, value("max")?))
}

/// Base 64 with the standard alphabet, padded or not.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 3);
    let (mut bits, mut held) = (0_u32, 0_u32);
    for symbol in text.trim_end_matches('=').bytes() {
        let value = match symbol {
            b'A'..=b'Z' => symbol - b'A',
            b'a'..=b'z' => symbol - b'a' + 26,
            b'0'..=b'9' => symbol - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8); // the low eight bits are the byte
        }
    }
    Some(bytes)
}

/// Which files may hold a row for which `predicate` is true. Files whose bounds are unknown are kept.
pub(super) fn files_that_may_match(
    predicate: Option<&Arc<dyn PhysicalExpr>>,
    schema: &SchemaRef,
    files: &[DataFile],
    bounds: &[FileBounds],
) -> Vec<bool> {
    let all = || vec![true; files.len()];
    let Some(predicate) = predicate else { return all() };
    let builder = PruningPredicateBuilder::new().with_file_schema(Arc::clone(schema));
    let Some(pruning) = builder.build(Arc::clone(predicate)) else { return all() };
    match pruning.prune(&ManifestStatistics { schema, bounds }) {
        Ok(keep) if keep.len() == files.len() => keep,
        _ => all(), // a predicate that cannot be evaluated on bounds prunes nothing
    }
}

struct ManifestStatistics<'a> {
    schema: &'a SchemaRef,
    bounds: &'a [FileBounds],
}

impl ManifestStatistics<'_> {
    fn values(&self, column: &Column, pick: impl Fn(&(ScalarValue, ScalarValue)) -> &ScalarValue) -> Option<ArrayRef> {
        let index = self.schema.index_of(column.name()).ok()?;
        let data_type = self.schema.field(index).data_type();
        if data_type.is_nested() {
            return None;
        }
        let unknown = ScalarValue::try_from(data_type).ok()?;
        let range = |file: &FileBounds| file.ranges.get(index).and_then(Option::as_ref).map(|r| pick(r).clone());
        let values = self.bounds.iter().map(|file| range(file).unwrap_or_else(|| unknown.clone()));
        let values = ScalarValue::iter_to_array(values).ok()?;
        (values.null_count() < values.len()).then_some(values)
    }
}

impl PruningStatistics for ManifestStatistics<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.values(column, |range| &range.0)
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.values(column, |range| &range.1)
    }

    fn num_containers(&self) -> usize {
        self.bounds.len()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        let index = self.schema.index_of(column.name()).ok()?;
        let nulls: UInt64Array = self.bounds.iter().map(|file| file.nulls.get(index).copied().flatten()).collect();
        (nulls.null_count() < nulls.len()).then(|| Arc::new(nulls) as ArrayRef)
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        // Physical rows, like the physical null counts they are compared with.
        Some(Arc::new(self.bounds.iter().map(|file| Some(file.rows)).collect::<UInt64Array>()))
    }

    fn contained(&self, _column: &Column, _values: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_64_decodes_every_length() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg", "foob"), ("+/+/", "\u{fffd}")] {
            let decoded = decode_base64(text).unwrap();
            assert!(decoded == bytes.as_bytes() || text == "+/+/" && decoded == [0xfb, 0xff, 0xbf], "{text}");
        }
        assert_eq!(decode_base64("a*b"), None);
    }
}
