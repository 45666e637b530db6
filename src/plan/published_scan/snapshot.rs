//! One version of a table, pinned: everything that a scan needs, and nothing that moves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use arrow_schema::SchemaRef;
use roaring::RoaringTreemap;

use super::bounds::FileBounds;
use crate::store::{DataFile, Incarnation};

/// One accepted version, or a draft's output.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The table.
    pub incarnation: Incarnation,
    /// The version; absent for a draft's output.
    pub version: Option<u64>,
    /// The key columns.
    pub key: Vec<String>,
    /// The published schema.
    pub output_schema: SchemaRef,
    /// Its data files.
    pub files: Arc<Vec<DataFile>>,
    /// Whether data files are hash-verified before they are read.
    pub verify: bool,
    /// What was derived of the files so far; starts as `Default::default()`.
    pub cache: ScanCache,
}

impl Snapshot {
    /// The table's name, for messages.
    pub fn table(&self) -> &str {
        self.incarnation.name()
    }

    /// Live rows.
    pub fn rows(&self) -> u64 {
        self.files.iter().map(DataFile::live_rows).sum()
    }

    /// The version as text, for EXPLAIN and messages.
    pub fn label(&self) -> String {
        self.version.map_or_else(|| "draft".to_string(), |version| version.to_string())
    }
}

/// Decoded column bounds and deletion vectors of one snapshot, shared by every scan of it.
/// Memory: the bounds of its columns and at most one bit per row.
#[derive(Debug, Clone, Default)]
pub struct ScanCache(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    bounds: OnceLock<Arc<Vec<FileBounds>>>,
    dead: Mutex<HashMap<String, Arc<RoaringTreemap>>>,
}

impl ScanCache {
    pub(super) fn bounds(&self, schema: &SchemaRef, files: &[DataFile]) -> Arc<Vec<FileBounds>> {
        let decode = || Arc::new(files.iter().map(|file| FileBounds::decode(schema, file)).collect());
        Arc::clone(self.0.bounds.get_or_init(decode))
    }

    pub(super) fn dead(&self, path: &str) -> Option<Arc<RoaringTreemap>> {
        self.0.dead.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get(path).cloned()
    }

    pub(super) fn keep_dead(&self, path: &str, dead: &Arc<RoaringTreemap>) {
        self.0.dead.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(path.to_string(), Arc::clone(dead));
    }
}
