//! What is in the source right now: its files, listed afresh, and the comparisons that a capture makes with them.
//!
//! ```text
//! last capture ──check_identity──► before the scan ──same_identity──► after the scan
//!   a zero-byte file, or no file where there were some: CAPTURE_FAILED     any difference: SOURCE_CHANGED
//! ```
//!
//! DataFusion skips zero-byte files silently and plans a vanished folder as an empty table. Both would read as
//! deletions, so both are errors here.

use std::collections::BTreeMap;

use datafusion::common::runtime::SpawnedTask;
use datafusion::datasource::listing::{ListingTable, ListingTableUrl};
use datafusion::error::DataFusionError;
use object_store::ObjectMeta;
use object_store::local::LocalFileSystem;
use object_store::path::Path;

use super::listing::{list, listing_tables, object_text, url_text};
use super::resolve::ResolvedSource;
use crate::error::{Error, ErrorCode, Result};
use crate::store::{SourceFile, SourceState};

/// How many files a message names.
const NAMED: usize = 5;

/// One file of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFileSeen {
    /// Store and path.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// The store's entity tag, if it gives one.
    pub e_tag: Option<String>,
    /// Modification time, microseconds since 1970.
    pub modified: i64,
    /// Local disk: the inode's change time, nanoseconds since 1970.
    pub changed: Option<i128>,
}

impl SourceFileSeen {
    /// Whether this is the file that an earlier capture recorded, byte for byte as far as its store can tell.
    pub fn is_same_as(&self, recorded: &SourceFile) -> bool {
        self.path == recorded.path
            && self.bytes == recorded.bytes
            && self.e_tag == recorded.e_tag
            && self.modified == recorded.modified
            && self.changed == recorded.changed
    }
}

/// The files behind the source at one moment, views looked through.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceIdentity {
    /// The files, in path order, each once.
    pub files: Vec<SourceFileSeen>,
    /// How many listed places the source reads; 0 for sources that are not files.
    pub listings: usize,
    /// The listed places (store and path) that held no file.
    pub empty: Vec<String>,
}

impl ResolvedSource {
    /// Lists every file behind the source afresh.
    ///
    /// # Errors
    /// `CAPTURE_FAILED` when a place cannot be listed or does not exist.
    pub async fn identity(&self) -> Result<SourceIdentity> {
        let mut identity = SourceIdentity::default();
        let mut files = BTreeMap::new();
        for listing in listing_tables(&self.provider).map_err(|e| self.list_failed(e))? {
            for url in listing.table_paths() {
                identity.listings += 1;
                let found = self.list_place(&listing, url).await?;
                if found.is_empty() {
                    identity.empty.push(url_text(url));
                }
                files.extend(found.into_iter().map(|file| (file.path.clone(), file)));
            }
        }
        identity.files = files.into_values().collect();
        Ok(identity)
    }

    async fn list_place(&self, listing: &ListingTable, url: &ListingTableUrl) -> Result<Vec<SourceFileSeen>> {
        let found = list(&self.state, listing, url).await.map_err(|e| self.list_failed(e))?;
        if found.is_empty() && !exists(url).await {
            return Err(Error::new(
                ErrorCode::CaptureFailed,
                format!(
                    "table \"{}\": {} of the source does not exist. It would read as an empty table, and every row as deleted. \
                     Remedy: restore it, or correct the source's LOCATION",
                    self.table,
                    url_text(url)
                ),
            ));
        }
        let seen = |(path, meta): (Path, ObjectMeta)| SourceFileSeen {
            path: object_text(url, &path),
            bytes: meta.size,
            e_tag: meta.e_tag,
            modified: meta.last_modified.timestamp_micros(),
            changed: None,
        };
        let local = url.scheme() == "file";
        let paths: Vec<Path> = if local { found.keys().cloned().collect() } else { Vec::new() };
        let mut files: Vec<_> = found.into_iter().map(seen).collect();
        for (file, changed) in files.iter_mut().zip(change_times(paths).await) {
            file.changed = changed;
        }
        Ok(files)
    }

    fn list_failed(&self, error: DataFusionError) -> Error {
        let context = format!("table \"{}\": the files of the source cannot be listed. Remedy: check the store and its rights", self.table);
        Error::from_datafusion(error, ErrorCode::CaptureFailed, context)
    }
}

/// Whether a place without files exists at all. A prefix of an object store exists by having objects, so only local
/// folders can be empty and there; a single file without its file is gone anywhere.
async fn exists(url: &ListingTableUrl) -> bool {
    if !url.is_collection() {
        return false;
    }
    if url.scheme() != "file" {
        return true;
    }
    let Ok(folder) = LocalFileSystem::new().path_to_filesystem(url.prefix()) else { return true };
    tokio::fs::metadata(folder).await.is_ok_and(|m| m.is_dir())
}

/// Change times of local files, which no program can set back; `None` where the platform or the file has none.
async fn change_times(paths: Vec<Path>) -> Vec<Option<i128>> {
    if paths.is_empty() {
        return Vec::new();
    }
    let read = move || {
        let disk = LocalFileSystem::new();
        paths.iter().map(|path| disk.path_to_filesystem(path).ok().and_then(|p| change_time(&p))).collect()
    };
    // Without change times the comparison is weaker, not wrong.
    SpawnedTask::spawn_blocking(read).await.unwrap_or_default()
}

#[cfg(unix)]
fn change_time(path: &std::path::Path) -> Option<i128> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).ok()?;
    Some(i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec()))
}

#[cfg(not(unix))]
fn change_time(_path: &std::path::Path) -> Option<i128> {
    None
}

/// Refuses what DataFusion would silently read as deleted rows.
///
/// # Errors
/// `CAPTURE_FAILED` for a zero-byte file, and for a place without files where the last capture had some.
pub fn check_identity(table: &str, previous: Option<&SourceState>, now: &SourceIdentity) -> Result<()> {
    let held_rows = |path: &str| previous.is_some_and(|p| p.files.iter().any(|f| f.path == path && f.bytes > 0));
    let missing = |f: &&SourceFileSeen| f.bytes == 0 && (!is_marker(&f.path) || held_rows(&f.path));
    let zero: Vec<&str> = now.files.iter().filter(missing).map(|f| f.path.as_str()).collect();
    if !zero.is_empty() {
        return Err(failed(format!(
            "table \"{table}\": {} of the source is empty (zero bytes), which no complete file is: {}. \
             Remedy: write the file again, or remove it if it holds no rows",
            count(zero.len()),
            name(&zero)
        )));
    }
    let Some(previous) = previous else { return Ok(()) };
    let had = |place: &str| previous.files.iter().any(|f| is_below(&f.path, place));
    let vanished: Vec<&str> = now.empty.iter().map(String::as_str).filter(|place| had(place)).collect();
    if !vanished.is_empty() {
        return Err(failed(format!(
            "table \"{table}\": the source has no file in {} where the last capture read some. \
             Remedy: restore the files; if the source has no rows any more, leave one file without rows there",
            name(&vanished)
        )));
    }
    Ok(())
}

/// Whether the file is a marker such as `_SUCCESS`, which writers leave empty beside their data files.
fn is_marker(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.starts_with(['_', '.']))
}

/// Refuses a source whose files differ between two moments.
///
/// # Errors
/// `SOURCE_CHANGED`, naming up to five files.
pub fn same_identity(table: &str, before: &SourceIdentity, after: &SourceIdentity) -> Result<()> {
    let by_path = |identity: &SourceIdentity| -> BTreeMap<String, SourceFileSeen> {
        identity.files.iter().map(|f| (f.path.clone(), f.clone())).collect()
    };
    let (old, new) = (by_path(before), by_path(after));
    let added = new.keys().filter(|path| !old.contains_key(*path)).map(|path| format!("{path} (new)"));
    let touched = old.iter().filter_map(|(path, file)| match new.get(path) {
        None => Some(format!("{path} (gone)")),
        Some(now) if now != file => Some(format!("{path} (rewritten)")),
        Some(_) => None,
    });
    let changes: Vec<String> = touched.chain(added).collect();
    if changes.is_empty() {
        return Ok(());
    }
    let changes: Vec<&str> = changes.iter().map(String::as_str).collect();
    Err(Error::new(
        ErrorCode::SourceChanged,
        format!(
            "table {table:?}: the source changed while it was read: {}. Nothing was published. \
             Remedy: run again when the source is at rest, or write new files beside it and move them into place",
            name(&changes)
        ),
    ))
}

fn failed(message: String) -> Error {
    Error::new(ErrorCode::CaptureFailed, message)
}

/// Whether `path` is `place` or lies in it.
fn is_below(path: &str, place: &str) -> bool {
    path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || place.ends_with('/'))
}

fn count(n: usize) -> String {
    if n == 1 { "a file".to_string() } else { format!("each of {n} files") }
}

fn name(items: &[&str]) -> String {
    let mut text = items.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    if items.len() > NAMED {
        text.push_str(&format!(" and {} more", items.len() - NAMED));
    }
    text
}
