//! The manifest: the complete description of one accepted version.
//!
//! ```text
//! versions/…7.json ── names ──► manifests/<id>.json ── lists ──► parts: manifests/<id>.json  (data files)
//!                                                    └─────────► source: sources/<id>.json   (files of the source)
//! ```
//!
//! Parts are immutable and shared: a version that leaves a part's files alone names the same part again.
//! All paths are relative to the incarnation's folder.

use std::collections::BTreeMap;

use arrow_schema::SchemaRef;
use serde::{Deserialize, Serialize};

use crate::spec::sync::SyncState;
use crate::spec::{RunSummary, VersionNumber};

/// What made a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VersionKind {
    /// A published run that extends its base.
    Run,
    /// A published run that rebuilt every row: nothing of the base is kept.
    Rebuild,
    /// A rollback to an older version's rows and baseline.
    Rollback,
    /// The same rows in other files.
    Compaction,
    /// The same files: fences unfinished runs before a vacuum.
    Fence,
}

impl VersionKind {
    /// Whether the version has exactly its base's rows.
    pub fn is_row_neutral(self) -> bool {
        matches!(self, Self::Compaction | Self::Fence)
    }
}

/// An immutable object: where it is, how large, and the BLAKE3 digest of its bytes (64 hexadecimal digits).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRef {
    /// Relative to the incarnation's folder.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 of the bytes.
    pub hash: String,
}

/// A deletion vector and how many positions it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletionVectorRef {
    /// The object.
    pub object: ObjectRef,
    /// Dead rows.
    pub rows: u64,
}

/// Physical statistics of one column of one data file, dead rows included: bounds for pruning, never answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ColumnBounds {
    /// Nulls, if known.
    pub nulls: Option<u64>,
    /// A one-row Arrow IPC stream with the columns `min` and `max`, in base 64; absent when unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<String>,
}

/// One data file with its index file and its deletion vector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataFile {
    /// The Parquet file with exactly the output columns.
    pub data: ObjectRef,
    /// The row-aligned Parquet file with key, fingerprint, source ordinal and version.
    pub index: ObjectRef,
    /// Physical rows, dead ones included.
    pub rows: u64,
    /// Dead rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletions: Option<DeletionVectorRef>,
    /// The version that added the file (compaction: the version of the compaction).
    pub added_in: VersionNumber,
    /// Bounds per output column, by name.
    #[serde(default)]
    pub bounds: BTreeMap<String, ColumnBounds>,
    /// Which source files the rows come from, in the order of their ordinals, dead rows included; empty when unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceSpan>,
}

/// Rows of a data file that come from source files with ordinals in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceSpan {
    /// The smallest ordinal; -1 stands for rows whose file is not known.
    pub first: i32,
    /// The largest ordinal.
    pub last: i32,
    /// Physical rows.
    pub rows: u64,
}

impl DataFile {
    /// Rows that are not dead.
    pub fn live_rows(&self) -> u64 {
        self.rows - self.deletions.as_ref().map_or(0, |dv| dv.rows).min(self.rows)
    }
}

/// A part of the file list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileList {
    /// The files.
    pub files: Vec<DataFile>,
}

/// One file of the source as a run saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// The file's number in this table; never used again for another file.
    pub ordinal: u32,
    /// Store and path.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// The store's entity tag, if it gives one.
    pub e_tag: Option<String>,
    /// Modification time, microseconds since 1970.
    pub modified: i64,
    /// Local disk: the inode's change time, nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<i128>,
    /// Whether the version's live rows with this ordinal are exactly the rows of the file: nothing else may stand in for
    /// reading it.
    #[serde(default)]
    pub exact: bool,
}

/// What a run pinned of its source's identity.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SourceState {
    /// The files, in path order; empty for sources that are not files.
    pub files: Vec<SourceFile>,
    /// The version of a source that is itself an incremental table: (incarnation, version).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_version: Option<(String, VersionNumber)>,
    /// BLAKE3 of that version's manifest: a copy or a restored backup may have another version under the same number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_manifest: Option<String>,
    /// When that table, a synced one, last looked at its own source, microseconds since 1970: how fresh the rows are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_synced_at: Option<i64>,
    /// The next ordinal that was never used.
    pub next_ordinal: u32,
    /// When the run began to look at the source, microseconds since 1970: before it listed or read anything.
    #[serde(default)]
    pub listed_at: i64,
    /// A digest of how the files were read (columns, format, reader options); absent where they cannot be skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scan_digest: Option<String>,
}

/// What a version changed relative to its base, so that exact changes can be read between versions.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct VersionDelta {
    /// Data paths of files that the base does not have.
    pub added: Vec<String>,
    /// Data paths of files that the base has and this version does not.
    pub removed: Vec<String>,
    /// Data paths of files whose deletion vector differs from the base's.
    pub deletions_changed: Vec<String>,
}

/// The complete description of one version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Layout of this object; 1.
    pub format: u32,
    /// The incarnation it belongs to.
    pub incarnation: String,
    /// Its place in the accepted sequence.
    pub version: VersionNumber,
    /// The version that it was made from.
    pub base: Option<VersionNumber>,
    /// What made it.
    pub kind: VersionKind,
    /// The revision whose rows it holds.
    pub revision: u64,
    /// Microseconds since 1970; later than the base's.
    pub committed_at: i64,
    /// The key columns.
    pub key: Vec<String>,
    /// The published schema, normalised.
    pub output_schema: SchemaRef,
    /// The file list, in parts.
    pub parts: Vec<ObjectRef>,
    /// The source's identity, a [`SourceState`].
    pub source: Option<ObjectRef>,
    /// Live rows.
    pub rows: u64,
    /// What changed relative to the base.
    pub delta: VersionDelta,
    /// Files that only versions below this one name may be gone: vacuum raises it before it deletes, and every version has
    /// at least its base's.
    #[serde(default)]
    pub floor: VersionNumber,
    /// The summary of the run that made it.
    pub summary: RunSummary,
    /// Where a synced table stands: its cursor's mark is accepted together with the rows, or not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<SyncState>,
}
