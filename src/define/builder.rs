//! The Rust builder: the same table that `CREATE INCREMENTAL TABLE` defines.

use std::sync::Arc;

use datafusion::common::TableReference;

use crate::env::Location;
use crate::error::{Error, ErrorCode, Result};
use crate::run::Host;
use crate::spec::Options;
use crate::table::{TableHandle, shown_name};

use super::{Existing, HandlerChoice, TableSpec, create};

/// Builds an incremental table.
///
/// ```no_run
/// # async fn example(session: &datafusion_incremental::context::IncrementalSession) -> datafusion_incremental::Result<()> {
/// let table = session
///     .table("customers_enriched")
///     .source("customers")
///     .key(["id"])
///     .track(["name"])
///     .sql("SELECT id, upper(name) AS normalized_name FROM input")
///     .create()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct IncrementalTableBuilder {
    name: TableReference,
    source: Option<TableReference>,
    key: Vec<String>,
    track: Option<Vec<String>>,
    handler: Option<HandlerChoice>,
    options: Vec<(String, String)>,
    existing: Existing,
}

impl IncrementalTableBuilder {
    /// A table of this name; a dotted name is catalog, schema and table.
    pub fn new(name: impl Into<TableReference>) -> Self {
        Self { name: name.into(), source: None, key: vec![], track: None, handler: None, options: vec![], existing: Existing::Attach }
    }

    /// The table that the rows come from.
    pub fn source(mut self, source: impl Into<TableReference>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The key columns, by exact name.
    pub fn key<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.key = columns.into_iter().map(Into::into).collect();
        self
    }

    /// The tracked columns, by exact name. Without them a SQL handler tracks what it reads.
    pub fn track<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.track = Some(columns.into_iter().map(Into::into).collect());
        self
    }

    /// A query over `input` as the handler.
    pub fn sql(mut self, query: impl Into<String>) -> Self {
        self.handler = Some(HandlerChoice::Sql(query.into()));
        self
    }

    /// A registered Rust handler.
    pub fn handler(mut self, name: impl Into<String>) -> Self {
        self.handler = Some(HandlerChoice::Registered(name.into()));
        self
    }

    /// Sets an option, semantic or operational.
    pub fn option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.push((name.into(), value.into()));
        self
    }

    /// Saves a revision where an existing table's definition differs, instead of refusing.
    pub fn or_alter(mut self) -> Self {
        self.existing = Existing::Alter;
        self
    }

    /// Creates the table at `location`, or attaches to it, without registering it anywhere.
    ///
    /// # Errors
    /// As [`create`].
    pub async fn create_at(self, host: &Host, location: Location) -> Result<Arc<TableHandle>> {
        let name = shown_name(&self.name);
        let missing = |what: &str| Error::new(ErrorCode::DefinitionInvalid, format!("table {name:?} has no {what}. Remedy: name it"));
        let spec = TableSpec {
            source: self.source.ok_or_else(|| missing("source"))?,
            handler: self.handler.ok_or_else(|| missing("handler"))?,
            key: self.key,
            track: self.track,
            options: Options::parse(&name, self.options)?,
            name: self.name,
            columns: None,
        };
        create(host, &spec, location, self.existing).await.map(|created| created.handle)
    }

    /// The table's name.
    pub fn name(&self) -> &TableReference {
        &self.name
    }
}
