//! Connections: created, dropped, looked through.

use std::collections::BTreeMap;

use crate::error::{Error, ErrorCode, Result};
use crate::spec::sync::SyncConfig;
use crate::store::ConnectionEntry;
use crate::sync::SyncContext;
use crate::sync::connector::SourceTable;
use crate::table::TableHandle;

/// Stores a connection. It is not tried: a source that is down now may be up when it is needed.
///
/// # Errors
/// `CONFIG_INVALID` for its type or an option, `SECRET_MISSING` for a secret in the clear, `CONNECTION_IN_USE` for a name that
/// is taken.
pub async fn create_connection(context: &SyncContext, name: &str, kind: &str, options: BTreeMap<String, String>) -> Result<()> {
    let created_at = context.host.env.clock.now_micros();
    let entry = ConnectionEntry { name: name.to_string(), kind: kind.to_ascii_lowercase(), options, created_at };
    let store = context.connections()?;
    context.connectors.check(&entry)?;
    if context.host.state.catalog_list().catalog(name).is_some() {
        return Err(Error::new(
            ErrorCode::ConfigInvalid,
            format!("connection {name:?} would hide the catalog of that name. Remedy: choose another name"),
        ));
    }
    store.create(entry).await
}

/// Forgets a connection. `users` are the synced tables of the session that read through it.
///
/// # Errors
/// `CONNECTION_IN_USE` while there are any; `CONNECTION_NOT_FOUND`.
pub async fn drop_connection(context: &SyncContext, name: &str, users: &[String]) -> Result<()> {
    if !users.is_empty() {
        return Err(Error::new(
            ErrorCode::ConnectionInUse,
            format!("connection {name:?} is used by {}. Remedy: DROP SYNCED TABLE those first", users.join(", ")),
        ));
    }
    context.connection(name).await?;
    context.connections()?.drop_connection(name).await.map(drop)
}

/// The tables of a connection, or of the session where none is named.
///
/// # Errors
/// `CONNECTION_NOT_FOUND`, `SECRET_MISSING`, `CONNECTION_FAILED`.
pub async fn discover(context: &SyncContext, connection: Option<&str>) -> Result<Vec<SourceTable>> {
    let source = crate::spec::sync::SyncSource { connection: connection.map(str::to_string), table: vec![], session: None };
    context.connector(&source).await?.discover(None).await
}

/// The table that a synced table reads, as its source describes it now.
///
/// # Errors
/// `SOURCE_NOT_FOUND` when it is gone, and the errors of connecting.
pub async fn source_table(context: &SyncContext, table: &TableHandle, config: &SyncConfig) -> Result<SourceTable> {
    let found = context.connector(&config.source).await?.discover(Some(&config.source.table)).await?.pop();
    found.ok_or_else(|| {
        Error::new(
            ErrorCode::SourceNotFound,
            format!(
                "synced table {:?}: its source {:?} does not exist any more. Remedy: create it again",
                table.name(),
                config.source.display()
            ),
        )
    })
}
