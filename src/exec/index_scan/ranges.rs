//! Where keys lie: ranges of their first column, comparable with the bounds of files and row groups.
//!
//! ```text
//! batches of new keys   [3, 9]  [7, 12]  [900, 950]   ─► at most 256 ranges; row group 10..400 has none of them: not read
//! ```
//!
//! Memory: two encoded values for each range. Only types whose bounds are exact in order take part: floating point and
//! composite values never rule anything out. Never rules out a row group that may hold one of the keys.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use arrow::array::{Array, ArrayRef};
use arrow::row::{RowConverter, SortField};
use arrow_schema::{DataType, Field, Schema};
use datafusion::common::ScalarValue;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::file::metadata::ParquetMetaData;

use crate::error::{Error, Result};
use crate::exec::equality::normalize_array;
use crate::spec::{normalize_type, same_type};
use crate::store::DataFile;
use crate::store::files::decode_range;

const MOST_RANGES: usize = 256;

/// The first and the last key of a range, encoded so that they compare as bytes.
type Range = (Box<[u8]>, Box<[u8]>);

/// Ranges in which keys lie. Several tasks add to them at once.
#[derive(Default)]
pub struct KeyRanges {
    /// `None`: nothing is ever ruled out.
    order: Option<Order>,
    ranges: Mutex<Vec<Range>>,
}

struct Order {
    name: String,
    data_type: DataType,
    converter: RowConverter,
}

impl fmt::Debug for KeyRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRanges").field("column", &self.order.as_ref().map(|order| &order.name)).finish_non_exhaustive()
    }
}

impl KeyRanges {
    /// No ranges yet, for keys of these fields.
    pub fn new(key: &[Field]) -> Self {
        Self { order: key.first().and_then(Order::of), ranges: Mutex::default() }
    }

    /// Adds keys, given their first column.
    pub(crate) fn add(&self, column: &ArrayRef) -> Result<()> {
        let Some(order) = &self.order else { return Ok(()) };
        let failed = |error| Error::internal("keys cannot be compared").with_source(error);
        let rows = order.converter.convert_columns(&[normalize_array(column, &order.data_type)?]).map_err(failed)?;
        let (min, max) = (rows.iter().min(), rows.iter().max());
        let Some((min, max)) = min.zip(max) else { return Ok(()) };
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.push((min.as_ref().into(), max.as_ref().into()));
        if ranges.len() > MOST_RANGES {
            merge(&mut ranges);
        }
        Ok(())
    }

    /// Whether the file may hold one of the keys, by its bounds in the manifest.
    pub(super) fn may_be_in_file(&self, file: &DataFile) -> bool {
        let bounds = self.order.as_ref().and_then(|order| {
            let (min, max) = decode_range(file.bounds.get(&order.name)?.range.as_deref()?)?;
            let array = |value: ScalarValue| value.to_array().ok();
            Some((order.encode(&array(min)?)?, order.encode(&array(max)?)?))
        });
        bounds.is_none_or(|(min, max)| self.meet(min.first().map(AsRef::as_ref), max.first().map(AsRef::as_ref)))
    }

    /// Those of `groups` that may hold one of the keys, by the bounds in the file.
    pub(super) fn retain_groups(&self, schema: &Schema, metadata: &ParquetMetaData, groups: Vec<usize>) -> Vec<usize> {
        let bounds = self.order.as_ref().and_then(|order| {
            let converter = StatisticsConverter::try_new(&order.name, schema, metadata.file_metadata().schema_descr()).ok()?;
            let (min, max) =
                (converter.row_group_mins(metadata.row_groups()).ok()?, converter.row_group_maxes(metadata.row_groups()).ok()?);
            let known: Vec<bool> = (0..min.len()).map(|group| min.is_valid(group) && max.is_valid(group)).collect();
            Some((order.encode(&min)?, order.encode(&max)?, known))
        });
        let Some((min, max, known)) = bounds else { return groups };
        let may = |group: &usize| {
            let is_known = known.get(*group).copied().unwrap_or_default();
            !is_known || self.meet(min.get(*group).map(AsRef::as_ref), max.get(*group).map(AsRef::as_ref))
        };
        groups.into_iter().filter(may).collect()
    }

    /// Whether a range meets the bounds; unknown bounds meet all.
    fn meet(&self, min: Option<&[u8]>, max: Option<&[u8]>) -> bool {
        let (Some(min), Some(max)) = (min, max) else { return true };
        let ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.iter().any(|(first, last)| first.as_ref() <= max && min <= last.as_ref())
    }
}

impl Order {
    fn of(field: &Field) -> Option<Self> {
        use DataType as T;
        let data_type = normalize_type(field.data_type());
        let is_ordered = data_type.is_integer()
            || data_type.is_decimal()
            || matches!(
                data_type,
                T::Boolean | T::Date32 | T::Date64 | T::Time32(_) | T::Time64(_) | T::Timestamp(..) | T::Utf8 | T::Binary
            );
        let converter = RowConverter::new(vec![SortField::new(data_type.clone())]).ok().filter(|_| is_ordered)?;
        Some(Self { name: field.name().clone(), data_type, converter })
    }

    /// Bounds as bytes; `None` when they are of another type.
    fn encode(&self, values: &ArrayRef) -> Option<Vec<Box<[u8]>>> {
        let values = same_type(values.data_type(), &self.data_type).then(|| normalize_array(values, &self.data_type).ok()).flatten()?;
        let rows = self.converter.convert_columns(&[values]).ok()?;
        Some(rows.iter().map(|row| row.as_ref().into()).collect())
    }
}

/// Half as many ranges, each over two neighbours.
fn merge(ranges: &mut Vec<Range>) {
    ranges.sort_unstable();
    let merged = ranges.chunks(2).filter_map(|pair| {
        let first = pair.first()?.0.clone();
        let last = pair.iter().map(|(_, last)| last).max()?.clone();
        Some((first, last))
    });
    *ranges = merged.collect();
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float64Array, Int64Array};

    use super::*;

    fn meets(ranges: &KeyRanges, min: i64, max: i64) -> bool {
        let order = ranges.order.as_ref().unwrap();
        let bounds = order.encode(&(Arc::new(Int64Array::from(vec![min, max])) as ArrayRef)).unwrap();
        ranges.meet(Some(&bounds[0]), Some(&bounds[1]))
    }

    #[test]
    fn ranges_stay_few_and_never_lose_a_key() {
        let ranges = KeyRanges::new(&[Field::new("id", DataType::Int64, true)]);
        assert!(!meets(&ranges, i64::MIN, i64::MAX));
        for n in -2000..2000_i64 {
            ranges.add(&(Arc::new(Int64Array::from(vec![n * 10, n * 10 + 1])) as ArrayRef)).unwrap();
        }
        assert!(ranges.ranges.lock().unwrap().len() <= MOST_RANGES);
        for n in -2000..2000_i64 {
            assert!(meets(&ranges, n * 10 + 1, n * 10 + 5), "{n}");
        }
        assert!(!meets(&ranges, 19_992, i64::MAX) && !meets(&ranges, i64::MIN, -20_001));
    }

    #[test]
    fn floating_point_rules_nothing_out() {
        let ranges = KeyRanges::new(&[Field::new("id", DataType::Float64, true)]);
        ranges.add(&(Arc::new(Float64Array::from(vec![1.0])) as ArrayRef)).unwrap();
        assert_eq!(ranges.retain_groups(&Schema::empty(), &metadata(), vec![0, 3]), [0, 3]);
    }

    fn metadata() -> ParquetMetaData {
        let root = parquet::schema::types::Type::group_type_builder("schema").build().unwrap();
        let schema = Arc::new(parquet::schema::types::SchemaDescriptor::new(Arc::new(root)));
        ParquetMetaData::new(parquet::file::metadata::FileMetaData::new(1, 0, None, None, schema, None), vec![])
    }
}
