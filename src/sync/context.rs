//! What operations on synced tables need of the session that asks.

use std::sync::Arc;

use super::connector::Connector;
use super::registry::ConnectorRegistry;
use super::run::SEGMENT_ROWS;
use super::table::TableConnector;
use crate::error::{Error, ErrorCode, Result};
use crate::run::Host;
use crate::spec::sync::SyncSource;
use crate::store::{ConnectionEntry, ConnectionStore};

/// The session's side of synced tables. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SyncContext {
    /// What runs need.
    pub host: Host,
    /// The connector types.
    pub connectors: ConnectorRegistry,
    /// The stored connections; `None` where the session has no root folder.
    pub connections: Option<ConnectionStore>,
    /// Rows after which a load notes how far it got.
    pub segment_rows: u64,
}

impl SyncContext {
    /// A context with the usual segments.
    pub fn new(host: Host, connectors: ConnectorRegistry, connections: Option<ConnectionStore>) -> Self {
        Self { host, connectors, connections, segment_rows: SEGMENT_ROWS }
    }

    /// The stored connections.
    ///
    /// # Errors
    /// `DEFINITION_INVALID` when the session has no root folder.
    pub fn connections(&self) -> Result<&ConnectionStore> {
        self.connections.as_ref().ok_or_else(|| {
            Error::new(
                ErrorCode::DefinitionInvalid,
                "connections are stored under the session's root folder, and this session has none. Remedy: give it a root (--root DIR)",
            )
        })
    }

    /// The connection of this name.
    ///
    /// # Errors
    /// `CONNECTION_NOT_FOUND`, naming the nearest.
    pub async fn connection(&self, name: &str) -> Result<ConnectionEntry> {
        let store = self.connections()?;
        if let Some(entry) = store.get(name).await? {
            return Ok(entry);
        }
        let known = store.list().await?;
        let near = known.iter().map(|entry| entry.name.as_str()).min_by_key(|known| strsim::damerau_levenshtein(known, name));
        let remedy = near.map_or_else(|| "CREATE CONNECTION first".to_string(), |near| format!("the nearest is {near:?}"));
        Err(Error::new(ErrorCode::ConnectionNotFound, format!("no connection is called {name:?}. Remedy: {remedy}")))
    }

    /// The connector of a source.
    ///
    /// # Errors
    /// `CONNECTION_NOT_FOUND`, `SECRET_MISSING`, `CONNECTION_FAILED`.
    pub async fn connector(&self, source: &SyncSource) -> Result<Arc<dyn Connector>> {
        match &source.connection {
            Some(name) => self.connectors.open(&self.connection(name).await?, &self.host.state).await,
            None => Ok(Arc::new(TableConnector::new(self.host.state.clone(), source.session.clone()))),
        }
    }
}
