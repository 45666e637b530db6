//! The columns that a table is published with, as the source's move.
//!
//! ```text
//! column new in the source        added at the end, null in rows that are stored
//! column gone                     stays, null in rows read since, and is noted; the key or the cursor: the run fails
//! column of a narrower type       cast to the stored type, which holds every value
//! column of a wider type          stored rows are read back as the wider type; the key: a new generation
//! column of another type          the run fails, naming it
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, TimeUnit};

use crate::error::{Error, ErrorCode, Result};
use crate::handler::RESERVED_PREFIX;
use crate::spec::sync::{SyncConfig, SyncSource};
use crate::spec::{Definition, HandlerSpec, SemanticOptions, SourceSpec, normalize_type, same_type};
use crate::sync::connector::SourceTable;
use crate::table::TableHandle;

/// The columns of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shape {
    /// The published columns.
    pub schema: Schema,
    /// Columns that the source does not have any more.
    pub missing: Vec<String>,
    /// Columns that are left out and that stored rows hold.
    pub hidden: Schema,
    /// Whether a column of the key became wider, so that stored keys have to be written anew.
    pub has_wider_key: bool,
}

/// The columns of `config` in `source`, in the source's order.
pub(super) fn selected(config: &SyncConfig, source: &SourceTable) -> Vec<String> {
    let always = |name: &String| config.primary_key_columns.contains(name) || config.incremental_field.as_ref() == Some(name);
    let enabled = |name: &String| config.enabled_columns.as_ref().is_none_or(|enabled| enabled.contains(name));
    // One that cannot be read was named by nobody, or the configuration would have been refused: it came later.
    let readable = source.columns.iter().filter(|column| column.unsupported.is_none() && !column.name.starts_with(RESERVED_PREFIX));
    readable.map(|column| column.name.clone()).filter(|name| enabled(name) || always(name)).collect()
}

/// The columns of a new generation.
pub(super) fn fresh(config: &SyncConfig, source: &SourceTable) -> Shape {
    let fields: Vec<Field> = selected(config, source).iter().filter_map(|name| field(source, name)).collect();
    Shape { schema: Schema::new(fields), missing: vec![], hidden: Schema::empty(), has_wider_key: false }
}

fn field(source: &SourceTable, name: &str) -> Option<Field> {
    source.column(name).map(|column| Field::new(name, normalize_type(&column.data_type), true))
}

/// The columns of a version that goes on from `stored`, whose rows hold the `hidden` columns too.
pub(super) fn evolved(
    table: &TableHandle,
    config: &SyncConfig,
    source: &SourceTable,
    (stored, hidden): (&Schema, &Schema),
) -> Result<Shape> {
    let selected = selected(config, source);
    let mut shape = Shape { schema: Schema::empty(), missing: vec![], hidden: Schema::empty(), has_wider_key: false };
    let (mut fields, mut left_out): (Vec<Field>, Vec<Field>) = (vec![], vec![]);
    for old in stored.fields() {
        let Some(new) = field(source, old.name()) else {
            if config.enabled_columns.as_ref().is_none_or(|enabled| enabled.contains(old.name())) {
                shape.missing.push(old.name().clone());
                fields.push(old.as_ref().clone());
            } else {
                left_out.push(old.as_ref().clone());
            }
            continue;
        };
        if !selected.contains(old.name()) {
            left_out.push(old.as_ref().clone());
            continue;
        }
        match compare(old.data_type(), new.data_type()) {
            Change::Same | Change::Narrower => fields.push(old.as_ref().clone()),
            Change::Wider => {
                shape.has_wider_key |= config.merge_key().contains(old.name());
                fields.push(new);
            }
            Change::Other => return Err(other_type(table, old, &new, source)),
        }
    }
    let is_stored = |name: &String| stored.field_with_name(name).is_ok();
    for new in selected.iter().filter(|name| !is_stored(name)).filter_map(|name| field(source, name)) {
        // Rows of before it was left out are read under its type again.
        match hidden.field_with_name(new.name()).map(|old| (old, compare(old.data_type(), new.data_type()))) {
            Ok((old, Change::Narrower)) => fields.push(old.clone()),
            Ok((old, Change::Other)) => return Err(other_type(table, old, &new, source)),
            Ok((_, Change::Same | Change::Wider)) | Err(_) => fields.push(new),
        }
    }
    let is_shown = |name: &String| fields.iter().any(|field| field.name() == name);
    left_out.extend(hidden.fields().iter().filter(|old| !is_shown(old.name())).map(|old| old.as_ref().clone()));
    shape.hidden = Schema::new(left_out);
    shape.schema = Schema::new(fields);
    Ok(shape)
}

fn other_type(table: &TableHandle, old: &Field, new: &Field, source: &SourceTable) -> Error {
    Error::new(
        ErrorCode::SchemaChanged,
        format!(
            "synced table {:?}: column {:?} was {} and is {} in {:?}, which does not hold the stored values. Nothing was published. \
             Remedy: CALL sync.resync({}, confirm => true) reads everything in the new type; or cast the column in a view of the source",
            table.name(),
            old.name(),
            old.data_type(),
            new.data_type(),
            source.display_name(),
            table.sql_literal()
        ),
    )
}

#[derive(Debug, PartialEq, Eq)]
enum Change {
    Same,
    Wider,
    Narrower,
    Other,
}

fn compare(old: &DataType, new: &DataType) -> Change {
    if same_type(old, new) {
        Change::Same
    } else if holds(new, old) {
        Change::Wider
    } else if holds(old, new) {
        Change::Narrower
    } else {
        Change::Other
    }
}

/// Whether every value of `narrow` is a value of `wide`, exactly.
fn holds(wide: &DataType, narrow: &DataType) -> bool {
    use DataType::{Decimal128, Decimal256, Float32, Float64, Timestamp};
    let bits = |data_type: &DataType| data_type.primitive_width().map(|bytes| bytes * 8);
    match (wide, narrow) {
        (Float64, Float32) => true,
        (wide, narrow) if wide.is_signed_integer() && narrow.is_signed_integer() => bits(wide) > bits(narrow),
        (wide, narrow) if wide.is_unsigned_integer() && narrow.is_unsigned_integer() => bits(wide) > bits(narrow),
        (wide, narrow) if wide.is_signed_integer() && narrow.is_unsigned_integer() => bits(wide) > bits(narrow),
        (Decimal128(p, s) | Decimal256(p, s), Decimal128(q, t) | Decimal256(q, t)) => {
            s >= t && i16::from(*p) - i16::from(*s) >= i16::from(*q) - i16::from(*t)
        }
        (Decimal128(p, s) | Decimal256(p, s), narrow) => {
            digits(narrow).is_some_and(|digits| *s >= 0 && i16::from(*p) - i16::from(*s) >= digits)
        }
        // Whole numbers of up to 53 and 24 bits are floats exactly.
        (Float64, narrow) => narrow.is_integer() && bits(narrow) <= Some(32),
        (Float32, narrow) => narrow.is_integer() && bits(narrow) <= Some(16),
        (Timestamp(TimeUnit::Microsecond, a), Timestamp(TimeUnit::Millisecond | TimeUnit::Second, b))
        | (Timestamp(TimeUnit::Millisecond, a), Timestamp(TimeUnit::Second, b)) => a == b,
        _ => false,
    }
}

/// The most decimal digits that a value of an integer type has.
fn digits(data_type: &DataType) -> Option<i16> {
    match data_type {
        DataType::Int8 | DataType::UInt8 => Some(3),
        DataType::Int16 | DataType::UInt16 => Some(5),
        DataType::Int32 | DataType::UInt32 => Some(10),
        DataType::Int64 => Some(19),
        DataType::UInt64 => Some(20),
        _ => None,
    }
}

/// The definition of a table that is not loaded yet: what readers see of it.
pub(crate) fn first_definition(config: &SyncConfig, source: &SourceTable) -> Definition {
    definition(&config.source, config.merge_key(), fresh(config, source).schema)
}

/// The definition of a synced table with these columns.
pub(super) fn definition(source: &SyncSource, key: &[String], schema: Schema) -> Definition {
    let schema = Arc::new(schema);
    let tracked = schema.fields().iter().map(|field| field.name().clone()).filter(|name| !key.contains(name)).collect();
    Definition {
        source: source_spec(source),
        key: key.to_vec(),
        tracked,
        tracked_declared: true,
        handler: HandlerSpec::Synced,
        incremental: true,
        options: SemanticOptions::default(),
        input_schema: Arc::clone(&schema),
        output_schema: schema,
        session: BTreeMap::new(),
        functions: vec![],
        fingerprint_version: Definition::FINGERPRINT_VERSION,
    }
}

/// The source's name for the parts of this crate that know sources of three parts; no catalog is called "".
fn source_spec(source: &SyncSource) -> SourceSpec {
    let outside =
        |connection: &String| SourceSpec { name: [String::new(), connection.clone(), source.table.join(".")], statements: vec![] };
    match (&source.session, &source.connection) {
        (Some(session), _) => session.clone(),
        (None, connection) => outside(connection.as_ref().unwrap_or(&String::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_hold_others_do_so_exactly() {
        use DataType::{Decimal128, Float64, Int16, Int32, Int64, UInt32, Utf8};
        for (old, new, expected) in [
            (Int32, Int64, Change::Wider),
            (Int64, Int16, Change::Narrower),
            (UInt32, Int64, Change::Wider),
            (Int64, Float64, Change::Other),
            (Int32, Float64, Change::Wider),
            (Int64, Decimal128(19, 0), Change::Wider),
            (Int64, Decimal128(20, 2), Change::Other),
            (Decimal128(38, 9), UInt32, Change::Narrower),
            (Int64, Utf8, Change::Other),
            (Decimal128(10, 2), Decimal128(12, 3), Change::Wider),
            (Decimal128(10, 2), Decimal128(10, 3), Change::Other),
            (Utf8, DataType::Utf8View, Change::Same),
        ] {
            assert_eq!(compare(&old, &new), expected, "{old} to {new}");
        }
    }
}
