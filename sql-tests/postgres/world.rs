//! What a test works with: a database of its own, SQL on it, and the connector.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::ScalarValue;
use datafusion::execution::TaskContext;
use datafusion::prelude::SessionContext;
use datafusion_incremental::Error;
use datafusion_incremental::sync::connector::{
    ConnectionSettings, Connector, ConnectorFactory, ReadRequest, ReadScope, SourceSnapshot, SourceTable,
};
use datafusion_incremental::sync::postgres::PostgresFactory;
use futures::TryStreamExt;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use crate::server::{PASSWORD, Server};

/// One test's world.
pub struct World<'a> {
    pub server: &'a Server,
    pub database: String,
    pub runtime: Runtime,
    client: Client,
}

static DATABASES: AtomicU32 = AtomicU32::new(0);

impl<'a> World<'a> {
    /// A fresh database on `server`.
    pub fn new(server: &'a Server) -> Self {
        let runtime = Runtime::new().unwrap();
        let database = format!("db{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        let admin = runtime.block_on(connect(&server.url("postgres", "")));
        runtime.block_on(admin.batch_execute(&format!("CREATE DATABASE {database}"))).unwrap();
        drop((admin, runtime));
        Self::on(server, database)
    }

    /// A database that is there.
    pub fn on(server: &'a Server, database: String) -> Self {
        let runtime = Runtime::new().unwrap();
        let client = runtime.block_on(connect(&server.url(&database, "")));
        Self { server, database, runtime, client }
    }

    /// Runs statements as the superuser.
    pub fn sql(&self, sql: &str) {
        self.runtime.block_on(self.client.batch_execute(sql)).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// One text of a query.
    pub fn text(&self, sql: &str) -> String {
        let row = self.runtime.block_on(self.client.query_one(sql, &[])).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        row.get::<_, Option<String>>(0).unwrap_or_else(|| "NULL".into())
    }

    /// Another session on the database.
    pub fn client(&self) -> Client {
        self.runtime.block_on(connect(&self.server.url(&self.database, "")))
    }

    /// A role with a password, which may connect and nothing else.
    pub fn role(&self, name: &str) -> String {
        let role = format!("{name}_{}", self.database);
        self.sql(&format!("CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'"));
        role
    }

    /// The address of this database for a role.
    pub fn url_of(&self, role: &str) -> String {
        format!("postgres://{role}:{PASSWORD}@127.0.0.1:{}/{}", self.server.port, self.database)
    }

    pub fn url(&self) -> String {
        self.server.url(&self.database, "")
    }

    /// The connector for this database.
    pub fn connector(&self) -> Arc<dyn Connector> {
        self.connector_with(&self.url(), &[])
    }

    /// A connector for an address, with options.
    pub fn connector_with(&self, url: &str, options: &[(&str, &str)]) -> Arc<dyn Connector> {
        self.runtime.block_on(PostgresFactory.open(settings(url, options))).unwrap()
    }

    /// An open snapshot of a table.
    pub fn snapshot(&self, table: &str) -> Arc<dyn SourceSnapshot> {
        self.try_snapshot(&self.connector(), table).unwrap()
    }

    pub fn try_snapshot(&self, connector: &Arc<dyn Connector>, table: &str) -> Result<Arc<dyn SourceSnapshot>, Error> {
        self.runtime.block_on(connector.snapshot(&name(table), None, Arc::new(TaskContext::default())))
    }

    /// The table as discovery describes it.
    pub fn discover(&self, table: &str) -> SourceTable {
        let found = self.runtime.block_on(self.connector().discover(Some(&name(table)))).unwrap();
        assert_eq!(found.len(), 1, "{table}");
        found.into_iter().next().unwrap()
    }

    /// What a read gives, in batches.
    pub fn batches(&self, snapshot: &Arc<dyn SourceSnapshot>, request: ReadRequest) -> Result<Vec<RecordBatch>, Error> {
        self.runtime.block_on(read_all(snapshot, request))
    }

    /// The rows of a read, cells separated by a bar.
    pub fn rows(&self, snapshot: &Arc<dyn SourceSnapshot>, request: ReadRequest) -> Vec<String> {
        render(&self.batches(snapshot, request).unwrap())
    }

    /// All rows of a table, ordered by `order`.
    pub fn table(&self, table: &str, order: &[&str]) -> Vec<String> {
        let snapshot = self.snapshot(table);
        self.rows(&snapshot, everything(&snapshot, order))
    }
}

pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client
}

pub fn settings(url: &str, options: &[(&str, &str)]) -> ConnectionSettings {
    let mut all = BTreeMap::from([("url".to_string(), url.to_string())]);
    all.extend(options.iter().map(|(name, value)| (name.to_string(), value.to_string())));
    ConnectionSettings { name: "pg".into(), options: all, state: SessionContext::new().state() }
}

/// The parts of a dotted name; `schema.table` or `table`.
pub fn name(table: &str) -> Vec<String> {
    table.split('.').map(String::from).collect()
}

pub async fn read_all(snapshot: &Arc<dyn SourceSnapshot>, request: ReadRequest) -> Result<Vec<RecordBatch>, Error> {
    let schema = snapshot.table().schema_of(&request.columns);
    let batches: Vec<RecordBatch> = snapshot
        .read(request)
        .await?
        .try_collect()
        .await
        .map_err(|error| Error::find(&error).unwrap_or_else(|| panic!("not one of ours: {error}")))?;
    // What a stream delivers is what the description promises.
    assert!(batches.iter().all(|batch| batch.schema() == schema));
    Ok(batches)
}

/// A request for every readable column of every row.
pub fn everything(snapshot: &Arc<dyn SourceSnapshot>, order: &[&str]) -> ReadRequest {
    let columns = snapshot.table().columns.iter().filter(|column| column.unsupported.is_none()).map(|column| column.name.clone());
    ReadRequest {
        columns: columns.collect(),
        filters: vec![],
        scope: ReadScope::All,
        order_by: order.iter().map(|name| name.to_string()).collect(),
        after: None,
        batch_rows: 8192,
    }
}

pub fn render(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let mut lines = vec![];
    for batch in batches {
        let columns: Vec<_> = batch.columns().iter().map(|c| ArrayFormatter::try_new(c.as_ref(), &options).unwrap()).collect();
        lines.extend((0..batch.num_rows()).map(|row| columns.iter().map(|c| c.value(row).to_string()).collect::<Vec<_>>().join("|")));
    }
    lines
}

/// The values of a column, typed.
pub fn values(batches: &[RecordBatch], column: usize) -> Vec<ScalarValue> {
    batches
        .iter()
        .flat_map(|batch| (0..batch.num_rows()).map(|row| ScalarValue::try_from_array(batch.column(column), row).unwrap()))
        .collect()
}
