//! What a vacuum finds beside the table's own folder: probes that were not removed, and purges that did not finish.
//!
//! ```text
//! <location>/probe/<id>.json      older than a few minutes ─► garbage
//! <location>/<incarnation>/…      the table log says purged ─► garbage: it never comes back
//! ```
//!
//! Memory: one name per object. Never touches the live incarnation, a dropped one, or anything the table log does not name.

use futures::TryStreamExt;
use object_store::path::Path;

use super::incarnation::Incarnation;
use super::lease::micros;
use super::paths;
use super::retention::MARK_PATIENCE;
use crate::error::{Error, Result};

const DELETE_CHUNK: usize = 1000;

/// The objects with their sizes, relative to the table's location, in path order.
///
/// # Errors
/// `STORE_FAILED`, `CORRUPT`, `HISTORY_MISSING`.
pub async fn find(inc: &Incarnation) -> Result<Vec<(String, u64)>> {
    let root = &inc.store().location().root;
    let mut found = vec![];
    let probes = listed(inc, &paths::below(root, paths::PROBE)).await?;
    if !probes.is_empty() {
        let now = inc.store_now().await?;
        found.extend(probes.into_iter().filter(|(_, _, at)| now.saturating_sub(*at) >= micros(MARK_PATIENCE)));
    }
    for folder in inc.store().purged_folders().await? {
        found.extend(listed(inc, &folder).await?);
    }
    let mut found: Vec<(String, u64)> = found.into_iter().map(|(relative, bytes, _)| (relative, bytes)).collect();
    found.sort();
    Ok(found)
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

/// Deletes what [`find`] returned. May be repeated.
///
/// # Errors
/// `STORE_FAILED`; part of the objects may be deleted then.
pub async fn delete(inc: &Incarnation, found: &[(String, u64)]) -> Result<()> {
    let root = &inc.store().location().root;
    let own = format!("{}/", inc.id());
    if let Some((path, _)) = found.iter().find(|(path, _)| path.starts_with(&own) || path.starts_with(paths::TABLE_LOG)) {
        return Err(Error::internal(format!("table {:?}: vacuum was to delete {path:?}", inc.name())));
    }
    for chunk in found.chunks(DELETE_CHUNK) {
        inc.objects().delete(chunk.iter().map(|(path, _)| paths::below(root, path)).collect()).await?;
    }
    Ok(())
}
