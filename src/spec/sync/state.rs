//! Where a synced table stands: stored in the manifest of each of its versions.

use arrow_schema::Schema;
use serde::{Deserialize, Serialize};

use super::config::{FieldType, SyncType, words};
use super::value::TypedValue;

words! {
    /// What a version's rows are.
    SyncPhase {
        /// Deleted on request: there are no rows to read, and no mark.
        Empty = "empty",
        /// A complete generation.
        Loaded = "loaded",
    }
}

/// How far a cursor got. It only means something for the column and the kind of values that it was taken of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CursorMark {
    /// The cursor column.
    pub field: String,
    /// What its values mean.
    pub field_type: FieldType,
    /// The greatest value that is synced, typed as the column.
    pub value: TypedValue,
}

/// A column of a source, as it is shown to people who choose among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownColumn {
    /// Its name.
    pub name: String,
    /// Its type, as the source calls it.
    pub data_type: String,
    /// Whether it may hold nulls.
    pub is_nullable: bool,
}

/// The state of one version of a synced table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncState {
    /// Counts the complete loads that rows of this version go back to.
    pub generation: u64,
    /// What the rows are.
    pub phase: SyncPhase,
    /// The number of the configuration that the last run had.
    pub config: u64,
    /// How the last run synced.
    pub sync_type: SyncType,
    /// How far the cursor got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<CursorMark>,
    /// The key that the source declared when it was last read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_key: Vec<String>,
    /// Columns that the source does not have any more; rows read since hold nulls there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_columns: Vec<String>,
    /// Columns that are not synced any more and that older rows still hold: one that comes back must hold those values.
    #[serde(default = "Schema::empty", skip_serializing_if = "has_none")]
    pub hidden_columns: Schema,
    /// The source's columns when it was last read, those that are not synced included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_columns: Vec<KnownColumn>,
    /// How many requests for a rebuild are done.
    #[serde(default)]
    pub rebuilds: u64,
    /// When the last run that ended well looked at the source, microseconds since 1970.
    pub synced_at: Option<i64>,
    /// When keys were last compared, microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconciled_at: Option<i64>,
}

fn has_none(schema: &Schema) -> bool {
    schema.fields().is_empty()
}
