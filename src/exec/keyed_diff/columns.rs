//! The names of the hidden columns and the schema of the change set.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::spec::{Definition, normalize_type};

pub use crate::store::files::{FP_HI, FP_LO, SRC, VERSION};
/// Position of the row's data file in the base's file list, UInt32; in an index scan only.
pub const FILE: &str = "__incremental_file";
/// Position of the row in its data file, UInt64; in an index scan only.
pub const ROW: &str = "__incremental_row";

/// The schema of the change set: key columns, tracked columns, then fingerprint and source ordinal.
pub fn change_schema(definition: &Definition) -> SchemaRef {
    let owned = |fields: Vec<&Field>| fields.into_iter().cloned().collect::<Vec<_>>();
    change_schema_of(&owned(definition.key_fields()), &owned(definition.tracked_fields()))
}

/// [`change_schema`] of fields. Key columns are not null: the diff refuses null keys.
pub(crate) fn change_schema_of(key: &[Field], tracked: &[Field]) -> SchemaRef {
    let column = |field: &Field, nullable: bool| Field::new(field.name(), normalize_type(field.data_type()), nullable);
    let fields = key.iter().map(|f| column(f, false)).chain(tracked.iter().map(|f| column(f, true))).chain(hidden_fields());
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// The hidden columns that travel with a changed row.
pub fn hidden_fields() -> [Field; 3] {
    [Field::new(FP_HI, DataType::Int64, false), Field::new(FP_LO, DataType::Int64, false), Field::new(SRC, DataType::Int32, false)]
}

/// The schema of an index scan: key columns, fingerprint, source ordinal, file and row.
pub(crate) fn index_scan_schema(key: &[Field]) -> SchemaRef {
    let fields = key
        .iter()
        .map(|f| Field::new(f.name(), normalize_type(f.data_type()), true))
        .chain(hidden_fields())
        .chain([Field::new(FILE, DataType::UInt32, false), Field::new(ROW, DataType::UInt64, false)]);
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// The two stored halves of a fingerprint.
pub(crate) fn split_fingerprint(fingerprint: u128) -> (i64, i64) {
    // Truncation to 64 bits is meant in both casts.
    ((fingerprint >> 64) as i64, fingerprint as i64)
}

/// The fingerprint of two stored halves.
pub(crate) fn join_fingerprint(high: i64, low: i64) -> u128 {
    (u128::from(high as u64) << 64) | u128::from(low as u64)
}
