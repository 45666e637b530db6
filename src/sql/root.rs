//! The tables under the session's root folder, also those that another process created since.
//!
//! ```text
//! <root>/<folder> ─ known location? ─ no ─► table log says live? ─ yes ─► registered under the name that it was created with
//! ```
//!
//! Memory: one handle per table. Never takes a name that the session uses for something else.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::catalog::{CatalogProvider, MemoryCatalogProvider, MemorySchemaProvider};
use datafusion::common::TableReference;
use datafusion::execution::SessionState;
use object_store::ObjectStore;
use object_store::path::Path;

use super::extension::Extension;
use super::resolve::known_tables;
use crate::define::attach;
use crate::env::Location;
use crate::error::{Error, ErrorCode, Result};
use crate::store::{ConnectionStore, TableState, TableStore};
use crate::table::{IncrementalTable, TableHandle};

/// Registers every live table under the root folder that the session does not know yet. Returns the places of those that
/// cannot be registered, and why: one damaged table must not take the others away.
///
/// # Errors
/// The store's errors, and those of opening the table `wanted`.
pub async fn follow_root(state: &SessionState, wanted: Option<&TableReference>) -> Result<Vec<(String, Error)>> {
    let mut unavailable = vec![];
    let Ok(extension) = Extension::of(state) else { return Ok(unavailable) };
    let Some(root) = &extension.root else { return Ok(unavailable) };
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
        match register(state, &extension, location.clone()).await {
            Ok(()) => {}
            Err(error) if wanted.as_ref() == Some(&folder) => return Err(error),
            Err(error) => unavailable.push((location.display(), error)),
        }
    }
    Ok(unavailable)
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
    let failed = |e| {
        let context = format!("table {name}: it cannot be registered. Remedy: create its schema, then attach it by its location");
        Error::from_datafusion(e, ErrorCode::DefinitionInvalid, context)
    };
    create_schema(state, &name).map_err(failed)?;
    let schema = state.schema_for_ref(name.clone()).map_err(failed)?;
    if schema.table_exist(name.table()) {
        return Ok(());
    }
    let handle = attach(&extension.host(state), &name, location).await?;
    schema.register_table(name.table().to_string(), Arc::new(IncrementalTable::new(handle))).map_err(failed)?;
    Ok(())
}

/// The schema of a stored table: schemas live in the session's memory, so the next process has only the default one.
fn create_schema(state: &SessionState, name: &TableReference) -> datafusion::error::Result<()> {
    let defaults = &state.config_options().catalog;
    let full = name.clone().resolve(&defaults.default_catalog, &defaults.default_schema);
    let catalog = match state.catalog_list().catalog(&full.catalog) {
        Some(catalog) => catalog,
        None => {
            let catalog: Arc<dyn CatalogProvider> = Arc::new(MemoryCatalogProvider::new());
            state.catalog_list().register_catalog(full.catalog.to_string(), Arc::clone(&catalog));
            catalog
        }
    };
    if catalog.schema(&full.schema).is_none() {
        catalog.register_schema(&full.schema, Arc::new(MemorySchemaProvider::new()))?;
    }
    Ok(())
}

async fn folders(root: &Location) -> Result<Vec<Path>> {
    let store: &dyn ObjectStore = root.store.as_ref();
    match store.list_with_delimiter(Some(&root.root)).await {
        Ok(listed) => Ok(listed.common_prefixes.into_iter().filter(|folder| !ConnectionStore::is_folder(folder)).collect()),
        Err(object_store::Error::NotFound { .. }) => Ok(vec![]),
        Err(error) => Err(Error::new(
            ErrorCode::StoreFailed,
            format!("the root folder {} cannot be listed: {error}. Remedy: check the folder and its permissions", root.display()),
        )),
    }
}
