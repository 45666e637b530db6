//! What a vacuum finds beside the objects of an incarnation: probes that were not removed, purges that did not finish, and
//! files that a writer on the local disk left without their name.
//!
//! ```text
//! <location>/probe/<id>.json      older than a few minutes ─► garbage
//! <location>/<incarnation>/…      the table log says purged ─► garbage: it never comes back
//! <location>/…/<object>#<number>  unchanged for a day       ─► garbage, on the local disk
//! ```
//!
//! Memory: one name per object. Never touches the live incarnation, a dropped one, or anything the table log does not name.

use futures::TryStreamExt;
use object_store::path::Path;

use super::incarnation::Incarnation;
use super::lease::micros;
use super::paths;
use super::retention::{DRAFT_PATIENCE, MARK_PATIENCE};
use crate::env::staged;
use crate::error::{Error, ErrorCode, Result};

const DELETE_CHUNK: usize = 1000;

/// The objects with their sizes, relative to the table's location, in path order.
///
/// # Errors
/// `STORE_FAILED`, `CORRUPT`, `HISTORY_MISSING`.
pub async fn find(inc: &Incarnation) -> Result<Vec<(String, u64)>> {
    let root = &inc.store().location().root;
    let mut found = vec![];
    let probes = listed(inc, &paths::below(root, paths::PROBE)).await?;
    let staged = unnamed(inc).await?;
    if !probes.is_empty() || !staged.is_empty() {
        let now = inc.store_now().await?;
        let is_old = |at: i64, patience| now.saturating_sub(at) >= micros(patience);
        found.extend(probes.into_iter().filter(|(_, _, at)| is_old(*at, MARK_PATIENCE)));
        // Its writer may be waiting for a handler.
        found.extend(staged.into_iter().filter(|(_, _, at)| is_old(*at, DRAFT_PATIENCE)));
    }
    for folder in inc.store().purged_folders().await? {
        found.extend(listed(inc, &folder).await?);
    }
    let mut found: Vec<(String, u64)> = found.into_iter().map(|(relative, bytes, _)| (relative, bytes)).collect();
    found.sort();
    Ok(found)
}

/// Whether the path is of an object that is none of a vacuum's business here.
fn is_kept(path: &str, own: &str) -> bool {
    (path.starts_with(own) || path.starts_with(paths::TABLE_LOG)) && !staged::is_staged(path)
}

/// Path relative to the location, size, timestamp.
async fn listed(inc: &Incarnation, folder: &Path) -> Result<Vec<(String, u64, i64)>> {
    let root = inc.store().location().root.clone();
    let objects = inc.objects().list(folder).try_filter_map(|object| {
        let relative = paths::relative_to(&root, &object.location);
        std::future::ready(Ok(relative.map(|relative| (relative, object.size, object.last_modified.timestamp_micros()))))
    });
    objects.try_collect().await
}

/// What writers on the local disk did not name yet, or never will, like [`listed`].
async fn unnamed(inc: &Incarnation) -> Result<Vec<(String, u64, i64)>> {
    let Some(folder) = inc.store().location().local_folder() else { return Ok(vec![]) };
    let found = staged::find(folder).await.map_err(|e| failed(inc, "listing", &e))?;
    Ok(found.into_iter().map(|file| (file.relative, file.bytes, file.modified)).collect())
}

fn failed(inc: &Incarnation, what: &str, error: &std::io::Error) -> Error {
    Error::new(
        ErrorCode::StoreFailed,
        format!("table {:?}: {what} half-written files failed: {error}. Remedy: see to the folder's disk and rights", inc.name()),
    )
}

/// Deletes what [`find`] returned. May be repeated.
///
/// # Errors
/// `STORE_FAILED`; part of the objects may be deleted then.
pub async fn delete(inc: &Incarnation, found: &[(String, u64)]) -> Result<()> {
    let root = &inc.store().location().root;
    let own = format!("{}/", inc.id());
    if let Some((path, _)) = found.iter().find(|(path, _)| is_kept(path, &own)) {
        return Err(Error::internal(format!("table {:?}: vacuum was to delete {path:?}", inc.name())));
    }
    let (unnamed, objects): (Vec<&String>, Vec<&String>) = found.iter().map(|(path, _)| path).partition(|path| staged::is_staged(path));
    for chunk in objects.chunks(DELETE_CHUNK) {
        inc.objects().delete(chunk.iter().map(|path| paths::below(root, path)).collect()).await?;
    }
    match inc.store().location().local_folder() {
        Some(folder) => staged::remove(folder, unnamed.into_iter().cloned().collect()).await.map_err(|e| failed(inc, "deleting", &e)),
        None => Ok(()),
    }
}
