//! The tables under the session's root folder, also those that another process created since.
//!
//! ```text
//! <root>/<folder> ─ known location? ─ no ─► table log says live? ─ yes ─► registered under the name that it was created with
//! ```
//!
//! Memory: one handle per table. Never takes a name that the session uses for something else.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::TableReference;
use datafusion::execution::SessionState;
use object_store::ObjectStore;
use object_store::path::Path;

use super::extension::Extension;
use super::resolve::known_tables;
use crate::define::attach;
use crate::env::Location;
use crate::error::{Error, ErrorCode, Result};
use crate::store::{TableState, TableStore};
use crate::table::{IncrementalTable, TableHandle};

/// Registers every live table under the root folder that the session does not know yet.
///
/// # Errors
/// The store's errors. A damaged table fails only the look-up of `wanted`, or every look-up when that is `None`.
pub async fn follow_root(state: &SessionState, wanted: Option<&TableReference>) -> Result<()> {
    let Ok(extension) = Extension::of(state) else { return Ok(()) };
    let Some(root) = &extension.root else { return Ok(()) };
    let root = Location::resolve(root, state.runtime_env())?;
    let wanted = match wanted {
        Some(name) => Some(extension.location(name, None, state.runtime_env())?.root),
        None => None,
    };
    let known: BTreeSet<String> = known_tables(state).await?.iter().map(|(_, handle)| handle.store().location().display()).collect();
    for folder in folders(&root).await? {
        let location = Location { root: folder.clone(), ..root.clone() };
        if known.contains(&location.display()) {
            continue;
        }
        match register(state, &extension, location).await {
            Err(error) if wanted.as_ref().is_some_and(|wanted| *wanted != folder) => {
                log::warn!("the table in {folder} cannot be opened: {error}");
            }
            registered => registered?,
        }
    }
    Ok(())
}

/// Takes a table out of the session that another process dropped; one that was created anew in its place is registered
/// instead. Whether the session's table was gone.
///
/// # Errors
/// Those of opening the new table.
pub(super) async fn follow_drop(state: &SessionState, name: &TableReference, handle: &TableHandle) -> Result<bool> {
    let Ok(extension) = Extension::of(state) else { return Ok(false) };
    // A store that does not answer proves nothing.
    let Ok(now) = handle.store().state().await else { return Ok(false) };
    let location = handle.store().location().clone();
    let live = match &now {
        TableState::Live(entry) if entry.incarnation == handle.incarnation().id() => return Ok(false),
        other => matches!(other, TableState::Live(_)),
    };
    let failed = |e| Error::from_datafusion(e, ErrorCode::TableNotFound, format!("taking {name} out of the session"));
    let schema = state.schema_for_ref(name.clone()).map_err(failed)?;
    schema.deregister_table(name.table()).map_err(failed)?;
    if live {
        let anew = attach(&extension.host(state), handle.reference(), location).await?;
        schema.register_table(name.table().to_string(), Arc::new(IncrementalTable::new(anew))).map_err(failed)?;
    }
    Ok(true)
}

async fn register(state: &SessionState, extension: &Extension, location: Location) -> Result<()> {
    let store = TableStore::new(extension.env.clone(), location.clone());
    let TableState::Live(entry) = store.state().await? else { return Ok(()) };
    let name = TableReference::from(entry.name.as_str());
    let failed = |e| Error::from_datafusion(e, ErrorCode::DefinitionInvalid, format!("registering table {}", entry.name));
    let schema = state.schema_for_ref(name.clone()).map_err(failed)?;
    if schema.table_exist(name.table()) {
        return Ok(());
    }
    let handle = attach(&extension.host(state), &name, location).await?;
    schema.register_table(name.table().to_string(), Arc::new(IncrementalTable::new(handle))).map_err(failed)?;
    Ok(())
}

async fn folders(root: &Location) -> Result<Vec<Path>> {
    let store: &dyn ObjectStore = root.store.as_ref();
    match store.list_with_delimiter(Some(&root.root)).await {
        Ok(listed) => Ok(listed.common_prefixes),
        Err(object_store::Error::NotFound { .. }) => Ok(vec![]),
        Err(error) => Err(Error::new(
            ErrorCode::StoreFailed,
            format!("the root folder {} cannot be listed: {error}. Remedy: check the folder and its permissions", root.display()),
        )),
    }
}
