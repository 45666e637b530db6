//! Typed schemas: which types are the same type, and which cannot be used.
//!
//! ```text
//! Utf8View, LargeUtf8, Dictionary(_, Utf8), REE → Utf8      encodings of one logical type fold together
//! Timestamp(us, "Z"), "+00:00", "Etc/UTC"      → "UTC"
//! struct fields                                 by name, their order does not matter
//! Int32 ↔ Int64, Decimal(10,2) ↔ (12,3), zones  never fold: a changed type is a schema change, not a comparison
//! ```

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Fields, Schema};
use parquet::arrow::ArrowSchemaConverter;

/// The logical type: encodings folded away, at every depth.
pub fn normalize_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, value) => normalize_type(value),
        DataType::RunEndEncoded(_, values) => normalize_type(values.data_type()),
        DataType::List(item) | DataType::LargeList(item) | DataType::ListView(item) | DataType::LargeListView(item) => {
            DataType::List(normalize_item(item))
        }
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(normalize_item(item), *size),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(|f| normalize_field(f)).collect()),
        DataType::Map(entries, _) => normalize_map(entries),
        DataType::Timestamp(unit, Some(zone)) if is_utc(zone) => DataType::Timestamp(*unit, Some("UTC".into())),
        other => other.clone(),
    }
}

/// Every field with its logical type, nullable, without metadata.
pub fn normalize_schema(schema: &Schema) -> Schema {
    Schema::new(schema.fields().iter().map(|f| normalize_field(f)).collect::<Vec<_>>())
}

fn normalize_field(field: &Field) -> Field {
    Field::new(field.name(), normalize_type(field.data_type()), true)
}

fn normalize_item(item: &Field) -> FieldRef {
    Arc::new(Field::new("item", normalize_type(item.data_type()), true))
}

fn normalize_map(entries: &Field) -> DataType {
    let DataType::Struct(fields) = entries.data_type() else { return DataType::Map(Arc::new(entries.clone()), false) };
    let renamed: Fields = fields
        .iter()
        .zip([("key", false), ("value", true)])
        .map(|(f, (name, nullable))| Field::new(name, normalize_type(f.data_type()), nullable))
        .collect();
    DataType::Map(Arc::new(Field::new("entries", DataType::Struct(renamed), false)), false)
}

fn is_utc(zone: &str) -> bool {
    [
        "utc",
        "z",
        "+00:00",
        "-00:00",
        "+0000",
        "+00",
        "etc/utc",
        "gmt",
        "etc/gmt",
        "zulu",
        "etc/zulu",
        "uct",
        "etc/uct",
        "universal",
        "etc/universal",
    ]
    .contains(&zone.to_ascii_lowercase().as_str())
}

/// A column whose type is not what it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeDifference {
    /// The column.
    pub column: String,
    /// Its logical type in the revision; `None` when the revision does not have it.
    pub was: Option<DataType>,
    /// Its logical type now; `None` when it is gone.
    pub now: Option<DataType>,
}

impl std::fmt::Display for TypeDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.was, &self.now) {
            (Some(was), Some(now)) => write!(f, "column {:?} was {was} and is {now}", self.column),
            (Some(was), None) => write!(f, "column {:?} ({was}) is gone", self.column),
            (None, Some(now)) => write!(f, "column {:?} ({now}) is new", self.column),
            (None, None) => write!(f, "column {:?} does not exist", self.column),
        }
    }
}

/// The columns among `columns` whose logical types differ between two schemas; column order does not matter.
pub fn check_same_types(was: &Schema, now: &Schema, columns: &[String]) -> Vec<TypeDifference> {
    let type_of = |schema: &Schema, name: &str| schema.field_with_name(name).ok().map(|f| normalize_type(f.data_type()));
    let differs = |column: &String| {
        let (was, now) = (type_of(was, column), type_of(now, column));
        let same = matches!((&was, &now), (Some(a), Some(b)) if same_type(a, b));
        (!same).then(|| TypeDifference { column: column.clone(), was, now })
    };
    columns.iter().filter_map(differs).collect()
}

/// Whether two types are one logical type: encodings are ignored, struct fields are matched by name.
pub fn same_type(a: &DataType, b: &DataType) -> bool {
    fn same(a: &DataType, b: &DataType) -> bool {
        match (a, b) {
            (DataType::Struct(a), DataType::Struct(b)) => {
                a.len() == b.len() && a.iter().all(|f| b.find(f.name()).is_some_and(|(_, g)| same(f.data_type(), g.data_type())))
            }
            (DataType::List(a), DataType::List(b)) => same(a.data_type(), b.data_type()),
            (DataType::FixedSizeList(a, n), DataType::FixedSizeList(b, m)) => n == m && same(a.data_type(), b.data_type()),
            (DataType::Map(a, _), DataType::Map(b, _)) => same_entries(a, b),
            _ => a == b,
        }
    }
    fn same_entries(a: &Field, b: &Field) -> bool {
        match (a.data_type(), b.data_type()) {
            (DataType::Struct(a), DataType::Struct(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(x, y)| same(x.data_type(), y.data_type()))
            }
            _ => false,
        }
    }
    same(&normalize_type(a), &normalize_type(b))
}

/// Why a column of this type cannot be used (as a key column, or at all), or `None`.
pub fn unsupported_type(data_type: &DataType, as_key: bool) -> Option<String> {
    known_limit(data_type, as_key).or_else(|| {
        // Parquet's own word, for what is not listed: a first run must not be the one to find out.
        let schema = Schema::new(vec![Field::new("column", normalize_type(data_type), true)]);
        let refusal = ArrowSchemaConverter::new().convert(&schema).err()?;
        Some(format!("Parquet cannot hold it ({refusal}); cast the column to another type"))
    })
}

/// Types may be nested so deep: readers of Parquet, and much of Arrow, recurse.
const MAX_NESTING: usize = 64;
/// Values of a fixed width may be so wide: a null takes the width too.
const MAX_WIDTH: i32 = 1024 * 1024;

fn known_limit(data_type: &DataType, as_key: bool) -> Option<String> {
    limit_below(data_type, as_key, MAX_NESTING)
}

fn limit_below(data_type: &DataType, as_key: bool, depth: usize) -> Option<String> {
    let Some(depth) = depth.checked_sub(1) else {
        return Some(format!("types nest at most {MAX_NESTING} deep; keep inner parts as text or in columns of their own"));
    };
    let nested = |field: &Field| limit_below(field.data_type(), as_key, depth);
    match data_type {
        DataType::FixedSizeBinary(width) | DataType::FixedSizeList(_, width) if *width > MAX_WIDTH => {
            Some(format!("values of a fixed size hold at most {MAX_WIDTH} items, nulls too; use a type of variable size"))
        }
        DataType::Null => Some("the type Null has no values; cast the column to a concrete type".into()),
        DataType::Interval(_) => Some("intervals cannot be stored in Parquet; cast the column to text or to separate numbers".into()),
        DataType::Union(..) => Some("unions cannot be stored in Parquet; use one column per alternative".into()),
        DataType::Map(..) if as_key => Some("a map has no order and cannot be a key; extract the fields that identify the row".into()),
        DataType::Map(entries, _) => nested(entries),
        DataType::Dictionary(_, value) => limit_below(value, as_key, depth),
        DataType::RunEndEncoded(_, values) => nested(values),
        // Parquet's writer panics on the first; Arrow's kernels lose the row count of the second.
        DataType::FixedSizeBinary(0) => Some("binary values of width 0 cannot be stored in Parquet; leave the column out".into()),
        DataType::FixedSizeList(_, 0) => Some("lists of fixed size 0 cannot be stored in Parquet; leave the column out".into()),
        DataType::List(f) | DataType::LargeList(f) | DataType::ListView(f) | DataType::LargeListView(f) | DataType::FixedSizeList(f, _) => {
            nested(f)
        }
        DataType::Struct(fields) if fields.is_empty() => {
            Some("a struct without fields cannot be stored in Parquet; leave the column out".into())
        }
        DataType::Struct(fields) => {
            let repeated = fields.iter().enumerate().find(|(at, f)| fields.iter().take(*at).any(|earlier| earlier.name() == f.name()));
            match repeated {
                Some((_, field)) => Some(format!("a struct with two fields {:?} cannot be matched by name; rename one", field.name())),
                None => fields.iter().find_map(|f| nested(f)),
            }
        }
        DataType::Decimal32(_, scale) | DataType::Decimal64(_, scale) | DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale)
            if *scale < 0 =>
        {
            Some("decimals with a negative scale cannot be stored in Parquet; cast the column to scale 0".into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_fold_and_types_do_not() {
        let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::LargeUtf8));
        assert!(same_type(&dictionary, &DataType::Utf8View));
        assert!(!same_type(&DataType::Int32, &DataType::Int64));
        assert!(!same_type(&DataType::Utf8, &DataType::Binary));
        let time = |zone: &str| DataType::Timestamp(arrow_schema::TimeUnit::Microsecond, Some(zone.into()));
        assert!(same_type(&time("Z"), &time("+00:00")));
        assert!(!same_type(&time("UTC"), &time("+05:30")));
    }

    #[test]
    fn struct_fields_match_by_name() {
        let a = DataType::Struct(vec![Field::new("x", DataType::Utf8, true), Field::new("y", DataType::Int8, true)].into());
        let b = DataType::Struct(vec![Field::new("y", DataType::Int8, false), Field::new("x", DataType::Utf8View, true)].into());
        let c = DataType::Struct(vec![Field::new("y", DataType::Int8, false), Field::new("z", DataType::Utf8View, true)].into());
        assert!(same_type(&a, &b));
        assert!(!same_type(&a, &c));
    }

    #[test]
    fn a_difference_names_both_types() {
        let was = Schema::new(vec![Field::new("v", DataType::Int32, true)]);
        let now = Schema::new(vec![Field::new("v", DataType::Int64, true)]);
        let found = check_same_types(&was, &now, &["v".to_string()]);
        assert_eq!(found[0].to_string(), "column \"v\" was Int32 and is Int64");
    }

    #[test]
    fn types_that_parquet_cannot_hold_are_refused_at_every_depth() {
        let interval = DataType::Interval(arrow_schema::IntervalUnit::MonthDayNano);
        let list = DataType::List(Arc::new(Field::new("item", interval, true)));
        assert!(unsupported_type(&list, false).is_some());
        let x = || Field::new("x", DataType::Int32, true);
        let sized = |size| DataType::FixedSizeList(Arc::new(x()), size);
        let refused = [
            DataType::Struct(vec![x(), x()].into()),
            DataType::Decimal128(10, -1),
            DataType::FixedSizeBinary(0),
            sized(0),
            DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Decimal32(4, -1))),
        ];
        for t in refused {
            assert!(unsupported_type(&t, false).is_some(), "{t}");
            assert!(unsupported_type(&DataType::List(Arc::new(Field::new("item", t.clone(), true))), false).is_some(), "list of {t}");
        }
        for t in [sized(1), DataType::Decimal256(76, 76), DataType::FixedSizeBinary(1)] {
            assert!(unsupported_type(&t, true).is_none(), "{t}");
        }
        assert!(unsupported_type(&DataType::Int64, true).is_none());
    }
}
