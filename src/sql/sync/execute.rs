//! Executes the statements of synced tables: everything here ends in `sync::ops`.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::common::TableReference;
use datafusion::execution::SessionState;
use datafusion::prelude::SessionContext;

use super::ast::{AlterSynced, CreateConnection, CreateSynced, SyncStatement};
use super::rows;
use crate::env::Location;
use crate::error::{Error, ErrorCode, Result};
use crate::spec::{OPTIONS, OptionKind, Options};
use crate::sql::execute::{StatementResult, drop_and_deregister};
use crate::sql::extension::Extension;
use crate::sql::resolve::{Found, all_tables, check_schema, find, incremental_table};
use crate::store::ConnectionStore;
use crate::sync::SyncContext;
use crate::sync::config::{Changes, FieldValue};
use crate::sync::ops::{self, AlterRequest, CreateRequest};
use crate::table::{IncrementalTable, TableHandle};

/// The session's side of synced tables.
pub(crate) fn context(state: &SessionState) -> Result<SyncContext> {
    let extension = Extension::of(state)?;
    let root = extension.root.as_deref().map(|root| Location::resolve(root, state.runtime_env())).transpose()?;
    let connections = root.map(|root| ConnectionStore::new(extension.env.clone(), &root));
    let context = SyncContext::new(extension.host(state), extension.connectors.clone(), connections);
    Ok(SyncContext { segment_rows: extension.segment_rows.unwrap_or(context.segment_rows), ..context })
}

/// The synced table of this name.
pub(in crate::sql) async fn synced_table(state: &SessionState, name: &TableReference) -> Result<Arc<TableHandle>> {
    let table = incremental_table(state, name).await.map_err(|error| match error.code() {
        ErrorCode::TableNotFound => Error::new(
            ErrorCode::TableNotFound,
            format!("no synced table is called {:?}. Remedy: name one of sync_tables()", name.to_string()),
        ),
        _ => error,
    })?;
    if table.is_synced() {
        return Ok(table);
    }
    Err(Error::new(
        ErrorCode::TableNotFound,
        format!("table {:?} is an incremental table, not a synced one. Remedy: name one of sync_tables()", name.to_string()),
    ))
}

/// Executes one statement.
pub(in crate::sql) async fn execute(ctx: &SessionContext, state: &SessionState, statement: SyncStatement) -> Result<StatementResult> {
    let extension = Extension::of(state)?;
    let acts = |what: &str| extension.check_may_act(state, what);
    match statement {
        SyncStatement::CreateConnection(create) => {
            acts("CREATE CONNECTION")?;
            create_connection(state, create).await
        }
        SyncStatement::DropConnection { name, if_exists } => {
            acts("DROP CONNECTION")?;
            drop_connection(state, &name, if_exists).await
        }
        SyncStatement::CreateSynced(create) => {
            acts("CREATE SYNCED TABLE")?;
            new_synced(ctx, state, *create).await.map(|()| StatementResult::nothing())
        }
        SyncStatement::AlterSynced(alter) => {
            if !alter.explain {
                acts("ALTER SYNCED TABLE")?;
            }
            alter_synced(state, *alter).await
        }
        SyncStatement::DropSynced { name, if_exists, purge } => {
            acts("DROP SYNCED TABLE")?;
            drop_synced(state, &name, if_exists, purge).await
        }
    }
}

async fn create_connection(state: &SessionState, create: CreateConnection) -> Result<StatementResult> {
    let context = context(state)?;
    if create.if_not_exists && context.connections()?.get(&create.name).await?.is_some() {
        return Ok(StatementResult::nothing());
    }
    let mut options = BTreeMap::new();
    for (option, value) in create.options {
        let FieldValue::Text(value) = value else {
            return Err(Error::new(
                ErrorCode::ConfigInvalid,
                format!("connection {:?}: option {option:?} is one text. Remedy: write it in single quotes", create.name),
            ));
        };
        if options.insert(option.clone(), value).is_some() {
            return Err(Error::new(
                ErrorCode::ConfigInvalid,
                format!("connection {:?}: option {option:?} is named twice. Remedy: name each option once", create.name),
            ));
        }
    }
    ops::create_connection(&context, &create.name, &create.kind, options).await?;
    Ok(StatementResult::nothing())
}

async fn drop_connection(state: &SessionState, name: &str, if_exists: bool) -> Result<StatementResult> {
    let context = context(state)?;
    if if_exists && context.connections()?.get(name).await?.is_none() {
        return Ok(StatementResult::nothing());
    }
    let mut users = vec![];
    for (_, table) in all_tables(state).await?.into_iter().filter(|(_, table)| table.is_synced()) {
        let log = table.incarnation().sync_log().await?;
        if log.newest().is_some_and(|saved| saved.config.source.connection.as_deref() == Some(name)) {
            users.push(table.name().to_string());
        }
    }
    ops::drop_connection(&context, name, &users).await?;
    Ok(StatementResult::nothing())
}

/// Creates the table and registers it.
pub(crate) async fn new_synced(ctx: &SessionContext, state: &SessionState, create: CreateSynced) -> Result<()> {
    let name = create.name.clone();
    match find(state, &name).await? {
        Found::Nothing => {}
        _ if create.if_not_exists => return Ok(()),
        _ => {
            let what =
                format!("table {:?} exists. Remedy: ALTER SYNCED TABLE changes a synced table; else take another name", name.to_string());
            return Err(Error::new(ErrorCode::TableExists, what));
        }
    }
    check_schema(state, &name)?;
    let location = Extension::of(state)?.location(&name, create.location.as_deref(), state.runtime_env())?;
    let (changes, (options, _)) = separate(&name.to_string(), Changes { set: create.fields, reset: vec![] })?;
    let request = CreateRequest { name: name.clone(), location, source: create.source, changes, options };
    let handle = ops::create(&context(state)?, request).await?;
    let registered = ctx.register_table(name, Arc::new(IncrementalTable::new(handle)));
    registered.map_err(|e| Error::from_datafusion(e, ErrorCode::QueryFailed, "registering the table"))?;
    Ok(())
}

/// Options of incremental tables that a synced one has no use for, and what it has instead.
const OTHERS: [(&str, &str); 5] = [
    ("schedule", "sync_frequency says when it is synced"),
    ("file_skip", "its source is read as sync_type says"),
    ("hand_on", "its source is read as sync_type says"),
    ("handler_concurrency", "it calls no handler"),
    ("handler_batch_rows", "it calls no handler"),
];

/// Fields of the synchronisation, and options of the storage.
fn separate(table: &str, changes: Changes) -> Result<(Changes, (Options, Vec<String>))> {
    let named = |name: &str| changes.set.iter().map(|(set, _)| set).chain(&changes.reset).any(|field| field == name);
    if let Some((name, instead)) = OTHERS.iter().find(|(name, _)| named(name)) {
        return Err(Error::new(
            ErrorCode::ConfigInvalid,
            format!("synced table {table:?}: option {name:?} is one of incremental tables. Remedy: leave it out; {instead}"),
        ));
    }
    let is_option = |name: &String| OPTIONS.iter().any(|option| option.name == name && option.kind == OptionKind::Operational);
    let (options, set): (Vec<_>, Vec<_>) = changes.set.into_iter().partition(|(name, _)| is_option(name));
    let (reset_options, reset): (Vec<_>, Vec<_>) = changes.reset.into_iter().partition(|name| is_option(name));
    let texts = options.into_iter().map(|(name, value)| {
        let text = match value {
            FieldValue::Null => "NULL".to_string(),
            FieldValue::Text(text) => text,
            FieldValue::List(list) => list.join(", "),
        };
        (name, text)
    });
    Ok((Changes { set, reset }, (Options::parse(table, texts)?, reset_options)))
}

async fn alter_synced(state: &SessionState, alter: AlterSynced) -> Result<StatementResult> {
    let table = synced_table(state, &alter.name).await?;
    let (changes, options) = separate(table.name(), alter.changes)?;
    let request = AlterRequest { if_revision: alter.if_revision, confirm: alter.confirm, changes, options };
    let context = context(state)?;
    if alter.explain {
        return rows::explained(&ops::explain_alter(&context, &table, &request).await?);
    }
    rows::altered(&ops::alter(&context, &table, &request).await?)
}

async fn drop_synced(state: &SessionState, name: &TableReference, if_exists: bool, purge: bool) -> Result<StatementResult> {
    if if_exists && matches!(find(state, name).await?, Found::Nothing) {
        return Ok(StatementResult::nothing());
    }
    let table = synced_table(state, name).await?;
    drop_and_deregister(state, &Extension::of(state)?.host(state), &table, purge).await?;
    Ok(StatementResult::nothing())
}
