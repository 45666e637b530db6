//! From names to incremental tables.

use std::sync::Arc;

use datafusion::common::TableReference;
use datafusion::execution::SessionState;

use super::root::{follow_drop, follow_root};
use crate::error::{Error, ErrorCode, Result};
use crate::table::{IncrementalTable, TableHandle};

/// The incremental table of this name.
///
/// # Errors
/// `TABLE_NOT_FOUND` when the session has no such table (the message names the nearest), or it is another kind.
pub async fn incremental_table(state: &SessionState, name: &TableReference) -> Result<Arc<TableHandle>> {
    match find(state, name).await? {
        Found::Incremental(handle) => Ok(handle),
        Found::Other => Err(Error::new(
            ErrorCode::TableNotFound,
            format!("table {:?} is not an incremental table. Remedy: name one of incremental_tables()", name.to_string()),
        )),
        Found::Nothing => {
            let known = known_tables(state).await?;
            let near = known
                .iter()
                .map(|(_, handle)| handle.name().to_string())
                .min_by_key(|known| strsim::damerau_levenshtein(known, name.table()))
                .map_or_else(|| "define it first".to_string(), |near| format!("the nearest is {near:?}"));
            Err(Error::new(ErrorCode::TableNotFound, format!("no incremental table is called {:?}. Remedy: {near}", name.to_string())))
        }
    }
}

/// What a name stands for in the session.
#[derive(Debug)]
pub enum Found {
    /// One of our tables.
    Incremental(Arc<TableHandle>),
    /// Another table or a view.
    Other,
    /// Nothing.
    Nothing,
}

/// Looks a name up; a table that another process created under the root folder is found too.
///
/// # Errors
/// The catalog's errors, and those of opening a table of that name under the root folder.
pub async fn find(state: &SessionState, name: &TableReference) -> Result<Found> {
    match find_known(state, name).await? {
        Found::Nothing => {}
        Found::Incremental(handle) if follow_drop(state, name, &handle).await? => {}
        found => return Ok(found),
    }
    follow_root(state, Some(name)).await?;
    find_known(state, name).await
}

/// Looks a name up among what the session knows already.
async fn find_known(state: &SessionState, name: &TableReference) -> Result<Found> {
    let resolved = state.config_options().catalog.clone();
    let resolved = name.clone().resolve(&resolved.default_catalog, &resolved.default_schema);
    let schema = state.catalog_list().catalog(&resolved.catalog).and_then(|catalog| catalog.schema(&resolved.schema));
    let Some(schema) = schema else { return Ok(Found::Nothing) };
    let provider = schema.table(&resolved.table).await;
    let provider = provider.map_err(|e| Error::from_datafusion(e, ErrorCode::TableNotFound, format!("looking up {name}")))?;
    Ok(match provider {
        None => Found::Nothing,
        Some(provider) => match provider.downcast_ref::<IncrementalTable>() {
            Some(table) => Found::Incremental(Arc::clone(table.handle())),
            None => Found::Other,
        },
    })
}

/// Fails unless the session has the schema that `name` would stand in. Asked before anything is written: a table that
/// cannot be registered would be left behind in its folder.
///
/// # Errors
/// `DEFINITION_INVALID`, with the remedy.
pub fn check_schema(state: &SessionState, name: &TableReference) -> Result<()> {
    let defaults = &state.config_options().catalog;
    let full = name.clone().resolve(&defaults.default_catalog, &defaults.default_schema);
    let catalog = state.catalog_list().catalog(&full.catalog);
    let (missing, remedy) = match &catalog {
        None => (format!("catalog {:?}", full.catalog), format!("CREATE DATABASE {}", full.catalog)),
        Some(catalog) if catalog.schema(&full.schema).is_none() => {
            (format!("schema {:?}", full.schema), format!("CREATE SCHEMA {}", name_of(&full.catalog, &full.schema)))
        }
        Some(_) => return Ok(()),
    };
    Err(Error::new(ErrorCode::DefinitionInvalid, format!("table {name}: {missing} does not exist. Remedy: {remedy} first")))
}

fn name_of(catalog: &str, schema: &str) -> String {
    TableReference::partial(catalog, schema).to_quoted_string()
}

/// Every incremental table of the session with its full name, in name order; also those that another process created.
///
/// # Errors
/// The catalog's errors, and those of opening the tables under the root folder.
pub async fn all_tables(state: &SessionState) -> Result<Vec<(TableReference, Arc<TableHandle>)>> {
    follow_root(state, None).await?;
    known_tables(state).await
}

/// Every incremental table that the session knows already.
pub(super) async fn known_tables(state: &SessionState) -> Result<Vec<(TableReference, Arc<TableHandle>)>> {
    let mut tables = vec![];
    for catalog_name in state.catalog_list().catalog_names() {
        let Some(catalog) = state.catalog_list().catalog(&catalog_name) else { continue };
        for schema_name in catalog.schema_names() {
            let Some(schema) = catalog.schema(&schema_name) else { continue };
            for table in schema.table_names() {
                let name = TableReference::full(catalog_name.as_str(), schema_name.as_str(), table.as_str());
                if let Found::Incremental(handle) = find_known(state, &name).await? {
                    tables.push((name, handle));
                }
            }
        }
    }
    tables.sort_by_key(|(name, _)| name.to_string());
    Ok(tables)
}
