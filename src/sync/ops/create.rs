//! CREATE SYNCED TABLE: looks at the source, saves the first configuration, loads nothing.

use std::sync::Arc;

use datafusion::common::TableReference;

use crate::env::Location;
use crate::error::{Error, ErrorCode, Result};
use crate::plan::source::describe;
use crate::spec::sync::{SyncConfig, SyncSource};
use crate::spec::{Options, Revision};
use crate::store::{DefinitionEntry, Incarnation, SyncEntry, TableState, TableStore};
use crate::sync::SyncContext;
use crate::sync::config::{Changes, apply, complete, validate};
use crate::sync::connector::SourceTable;
use crate::sync::run;
use crate::table::{TableHandle, shown_name};

/// A synced table that is to be created.
#[derive(Debug, Clone)]
pub struct CreateRequest {
    /// Its name.
    pub name: TableReference,
    /// Where it is stored.
    pub location: Location,
    /// The parts of the source's name; the first may be a connection.
    pub source: Vec<String>,
    /// Its fields.
    pub changes: Changes,
    /// Options of the storage: retention, compaction, guard.
    pub options: Options,
}

/// Creates the table, or fails with nothing changed. A location that holds this synced table already, dropped or not, is
/// attached to: the source and every field that is named must be what they are there.
///
/// # Errors
/// `SOURCE_NOT_FOUND`, `TABLE_EXISTS`, `DEFINITION_MISMATCH`, and the refusals of a configuration.
pub async fn create(context: &SyncContext, request: CreateRequest) -> Result<Arc<TableHandle>> {
    let table = shown_name(&request.name);
    let (source, found) = find_source(context, &table, &request.source).await?;
    let store = TableStore::new(context.host.env.clone(), request.location.clone());
    let state = store.state().await?;
    let was_dropped = matches!(state, TableState::Dropped(_));
    let incarnation = match state {
        TableState::Live(_) => open(&store, &table).await?,
        TableState::Absent | TableState::Purged(_) => {
            let config = first_config(&table, source, &found, &request.changes)?;
            let incarnation = store.create(&request.name.to_quoted_string()).await?;
            save(context, &incarnation, config, (&found, request.options)).await?;
            return TableHandle::from_incarnation(incarnation, request.name).await;
        }
        TableState::Dropped(_) => store.revive().await?,
    };
    if incarnation.definitions().await?.newest().is_none() {
        // The process that created it died before its definition was saved.
        let config = first_config(&table, source, &found, &request.changes)?;
        save(context, &incarnation, config, (&found, request.options)).await?;
    } else if let Err(error) = check_attach(&incarnation, &table, &source, &request).await {
        if was_dropped {
            store.drop_table(incarnation.id()).await?;
        }
        return Err(error);
    }
    TableHandle::from_incarnation(incarnation, request.name).await
}

fn first_config(table: &str, source: SyncSource, found: &SourceTable, changes: &Changes) -> Result<SyncConfig> {
    let mut config = apply(table, &SyncConfig::new(source), changes)?;
    complete(&mut config, None, found, changes);
    validate(table, &config, found, changes)?;
    Ok(config)
}

async fn open(store: &TableStore, table: &str) -> Result<Incarnation> {
    store.open().await?.ok_or_else(|| exists(table, "was dropped at this moment", "repeat the statement"))
}

/// What is stored must be what is asked for.
async fn check_attach(incarnation: &Incarnation, table: &str, source: &SyncSource, request: &CreateRequest) -> Result<()> {
    let log = incarnation.sync_log().await?;
    let Some(saved) = log.newest() else { return Err(exists(table, "exists and is no synced table", "choose another name or location")) };
    let stored = &saved.config;
    let mismatch = |what: &str, remedy: &str| {
        let place = incarnation.store().location().display();
        Error::new(ErrorCode::DefinitionMismatch, format!("synced table {table:?}: {place} holds it with {what}. Remedy: {remedy}"))
    };
    if (&stored.source.connection, &stored.source.table) != (&source.connection, &source.table) {
        let what = format!("the source {:?}", stored.source.display());
        return Err(mismatch(&what, "name that source, choose another name or location, or DROP SYNCED TABLE … PURGE first"));
    }
    let has_options = !request.options.is_empty() && incarnation.definitions().await?.options != request.options;
    if has_options || apply(table, stored, &request.changes)? != *stored {
        return Err(mismatch("other settings", "leave the WITH clause out, then ALTER SYNCED TABLE"));
    }
    Ok(())
}

fn exists(table: &str, what: &str, remedy: &str) -> Error {
    Error::new(ErrorCode::TableExists, format!("table {table:?} {what}. Remedy: {remedy}"))
}

/// The configuration first: a table is a synced one once its definition says so.
async fn save(
    context: &SyncContext,
    incarnation: &Incarnation,
    config: SyncConfig,
    (found, options): (&SourceTable, Options),
) -> Result<()> {
    let at = context.host.env.clock.now_micros();
    let definition = run::first_definition(&config, found);
    let log = incarnation.sync_log().await?;
    incarnation.append_sync(&log, SyncEntry::Save { config: Box::new(config), columns: found.known_columns(), at }).await?;
    let revision = Revision { number: 1, digest: definition.digest(), saved_at: at, definition };
    let options = (!options.is_empty()).then_some(options);
    let log = incarnation.definitions().await?;
    incarnation.append_definition(&log, DefinitionEntry::Save { revision: Box::new(revision), activate: true, options }).await.map(drop)
}

/// The source that a name means: a table of a connection where its first part is one, else a table of the session.
///
/// # Errors
/// `SOURCE_NOT_FOUND`, naming the nearest tables.
async fn find_source(context: &SyncContext, table: &str, parts: &[String]) -> Result<(SyncSource, SourceTable)> {
    let connection = match (parts, &context.connections) {
        ([first, _, ..], Some(store)) => store.get(first).await?.map(|entry| entry.name),
        _ => None,
    };
    if let Some(connection) = connection {
        let mut source = SyncSource { connection: Some(connection), table: parts.get(1..).unwrap_or_default().to_vec(), session: None };
        let connector = context.connector(&source).await?;
        let found = only(connector.discover(Some(&source.table)).await?, table, parts)?;
        let Some(found) = found else {
            let known = connector.discover(None).await?;
            return Err(no_source(table, parts, &known));
        };
        source.table.clone_from(&found.name);
        return Ok((source, found));
    }
    // Three parts are a table of another catalog, unless there is none of that name: then a connection was meant.
    if let [first, _, _] = parts
        && context.host.state.catalog_list().catalog(first).is_none()
    {
        return Err(context.connection(first).await.err().unwrap_or_else(|| no_source(table, parts, &[])));
    }
    let full = crate::sync::table::full_name(&context.host.state, parts)?;
    let session = describe(&context.host.state, &crate::sync::table::reference(&full)).await?;
    let source = SyncSource { connection: None, table: full.clone(), session: Some(session) };
    let found = only(context.connector(&source).await?.discover(Some(&full)).await?, table, parts)?;
    found.map(|found| (source, found)).ok_or_else(|| no_source(table, parts, &[]))
}

fn only(mut found: Vec<SourceTable>, table: &str, parts: &[String]) -> Result<Option<SourceTable>> {
    if found.len() > 1 {
        let names: Vec<String> = found.iter().map(SourceTable::display_name).collect();
        return Err(Error::new(
            ErrorCode::SourceNotFound,
            format!("synced table {table:?}: {:?} may be {}. Remedy: write the full name", parts.join("."), names.join(" or ")),
        ));
    }
    Ok(found.pop())
}

fn no_source(table: &str, parts: &[String], known: &[SourceTable]) -> Error {
    let wanted = parts.get(1..).unwrap_or_default().join(".");
    let mut names: Vec<String> = known.iter().map(SourceTable::display_name).collect();
    names.sort_by_key(|name| strsim::damerau_levenshtein(name, &wanted));
    names.truncate(3);
    let remedy =
        if names.is_empty() { "create it in the source first".to_string() } else { format!("the nearest are {}", names.join(", ")) };
    Error::new(
        ErrorCode::SourceNotFound,
        format!("synced table {table:?}: the source {:?} does not exist. Remedy: {remedy}", parts.join(".")),
    )
}
