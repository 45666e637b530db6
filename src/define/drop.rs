//! Drop: marks the table dropped and keeps its data, unless it is purged.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Error, ErrorCode, Result};
use crate::run::{Host, dependencies};
use crate::table::TableHandle;

/// Drops the table; with `purge` its data too: the bytes that were freed.
///
/// # Errors
/// `TABLE_IN_USE` while one of `others` reads it, `RUN_ACTIVE` for a purge while a run is active; the store's errors, also
/// when it does not say what one of `others` reads.
pub async fn drop_table(host: &Host, table: &Arc<TableHandle>, others: &[Arc<TableHandle>], purge: bool) -> Result<u64> {
    let id = table.incarnation().id();
    let mut readers: BTreeMap<&str, ()> = BTreeMap::new();
    for other in others.iter().filter(|other| other.incarnation().id() != id) {
        if dependencies(host, other).await?.contains(id) {
            readers.insert(other.name(), ());
        }
    }
    if !readers.is_empty() {
        let readers: Vec<&str> = readers.into_keys().collect();
        return Err(Error::new(
            ErrorCode::TableInUse,
            format!("table {:?} is the source of {readers:?}. Remedy: drop or alter those first", table.name()),
        ));
    }
    // Without PURGE nothing is deleted, and a run that is active notices the drop when it publishes.
    if let Some(active) = if purge { table.incarnation().active_lease().await? } else { None } {
        return Err(Error::new(
            ErrorCode::RunActive,
            format!(
                "table {:?}: run {:?} is active. Remedy: wait for it, or cancel it, then drop the table",
                table.name(),
                active.run.as_str()
            ),
        ));
    }
    let store = table.incarnation().store();
    store.drop_table(id).await?;
    if purge { store.purge().await } else { Ok(0) }
}
