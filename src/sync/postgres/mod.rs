//! The `postgres` connector: tables, views and partitioned tables of a PostgreSQL database, 12 or later.
//!
//! ```text
//! PostgresFactory ─ options, tls ─► PostgresConnector ─ connect, catalog ─► discover
//!                                         └ snapshot ─ session: one connection, one REPEATABLE READ transaction
//!                                               └ query ─► COPY (SELECT …) TO STDOUT (FORMAT binary) ─ copy ─► record batches
//! ```
//!
//! ```sql
//! CREATE CONNECTION pg TYPE postgres WITH (url = 'env:PG_URL', sslmode = 'verify-full');
//! CREATE SYNCED TABLE orders FROM pg.public.orders WITH (sync_type = 'incremental', incremental_field = 'updated_at');
//! ```
//!
//! Ceiling, counts and rows of a run come from one transaction, so no row can slip in between; types are read without loss
//! (`types`). Memory: what waits for the reader, at most two batches, the one in the making and the one that the reader has,
//! each of at most 8 MiB or one row, all of them reserved in the pool. The connector never writes to the source, retries
//! nothing but connecting (another connection would see another moment), leaves no statement running when its reader is gone,
//! and puts no part of the address into an error, a log or a `Debug` text; what the server itself says of a connection that it
//! refuses is repeated (`failure`).

mod catalog;
mod connect;
mod copy;
mod failure;
mod literal;
mod measure;
mod options;
mod query;
mod relation;
mod session;
mod snapshot;
mod tls;
mod types;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::Schema;
use async_trait::async_trait;
use datafusion::execution::TaskContext;

use crate::error::Result;
use crate::sync::connector::{ConnectionOption, ConnectionSettings, Connector, ConnectorFactory, SourceSnapshot, SourceTable};
use failure::Subject;
use options::PostgresOptions;
use session::Session;
use snapshot::{PostgresSnapshot, Sight};

/// Makes connectors of `TYPE postgres`.
#[derive(Debug, Clone, Copy, Default)]
pub struct PostgresFactory;

#[async_trait]
impl ConnectorFactory for PostgresFactory {
    fn kind(&self) -> &'static str {
        "postgres"
    }

    fn options(&self) -> &'static [ConnectionOption] {
        options::OPTIONS
    }

    fn check(&self, name: &str, options: &BTreeMap<String, String>) -> Result<()> {
        options::check(name, options)
    }

    async fn open(&self, settings: ConnectionSettings) -> Result<Arc<dyn Connector>> {
        Ok(Arc::new(PostgresConnector { options: Arc::new(PostgresOptions::parse(&settings.name, &settings.options)?) }))
    }
}

/// One database. Connects anew for every question: a connection that idles between runs would only age.
#[derive(Debug)]
struct PostgresConnector {
    options: Arc<PostgresOptions>,
}

impl PostgresConnector {
    /// Schema and name of a table as written; `None` for a name of another form.
    fn table_name<'a>(&'a self, parts: &'a [String]) -> Option<(&'a str, &'a str)> {
        match parts {
            [name] => Some((&self.options.schema, name)),
            [schema, name] => Some((schema, name)),
            _ => None,
        }
    }
}

#[async_trait]
impl Connector for PostgresConnector {
    async fn check(&self) -> Result<()> {
        Session::connect(&self.options).await.map(drop)
    }

    async fn discover(&self, only: Option<&[String]>) -> Result<Vec<SourceTable>> {
        let only = match only.map(|parts| self.table_name(parts)) {
            Some(None) => return Ok(vec![]),
            Some(Some(name)) => Some(name),
            None => None,
        };
        let session = Session::connect(&self.options).await?;
        let subject = match only {
            Some((schema, name)) => session.subject().table(&[schema.to_string(), name.to_string()]),
            None => session.subject().clone(),
        };
        snapshot::begin(&session, &self.options, Sight::OneMoment, &subject).await?;
        let relations = match only {
            Some(name) => snapshot::describe(&session, &self.options, name, &subject).await?.into_iter().collect(),
            None => catalog::read(&session, None, &subject).await?,
        };
        Ok(relations.into_iter().map(|relation| relation.table).collect())
    }

    async fn snapshot(&self, table: &[String], known: Option<&Schema>, context: Arc<TaskContext>) -> Result<Arc<dyn SourceSnapshot>> {
        let Some(name) = self.table_name(table) else {
            let subject = Subject::connection(&self.options.name).table(table);
            return Err(subject.error(
                crate::ErrorCode::SourceNotFound,
                "a table's name has one or two parts",
                "write connection.schema.table, or connection.table",
            ));
        };
        Ok(Arc::new(PostgresSnapshot::open(&self.options, name, known, context).await?))
    }
}
