//! An outside system for synced tables: the session's own tables behind a connection, with keys that it declares, read in
//! order, and with failures on demand.
//!
//! `CREATE CONNECTION x TYPE outside WITH (token = 'env:HOME')`, then `HARNESS OUTSIDE <table> [KEY a,b] [FAIL n] [DOWN] [HOLD]`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_schema::Schema;
use async_trait::async_trait;
use datafusion::common::ScalarValue;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion_incremental::sync::connector::{
    ConnectionOption, ConnectionSettings, Connector, ConnectorFactory, ReadRequest, RowFilter, SourceSnapshot, SourceTable,
};
use datafusion_incremental::sync::table::TableConnector;
use datafusion_incremental::{Error, ErrorCode, Result};
use futures::StreamExt;

/// What a test says of one table.
#[derive(Debug, Clone, Default)]
pub struct Declared {
    /// The key that the source declares.
    pub key: Vec<String>,
    /// A read fails after so many rows.
    pub fail_after: Option<usize>,
    /// The source cannot be reached.
    pub is_down: bool,
    /// Reads wait until this is said no more.
    pub is_held: bool,
}

/// The tables of the outside system, by name.
#[derive(Debug, Clone, Default)]
pub struct Outside(Arc<Mutex<BTreeMap<String, Declared>>>, Arc<AtomicUsize>);

impl Outside {
    /// Says what a table is from now on.
    pub fn declare(&self, table: &str, declared: Declared) {
        self.0.lock().unwrap().insert(table.to_string(), declared);
    }

    /// Waits until a read is held back.
    pub async fn held(&self) -> bool {
        for _ in 0..1200 {
            if self.1.load(Ordering::SeqCst) > 0 {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        false
    }

    async fn pass(&self, table: &str) {
        self.1.fetch_add(1, Ordering::SeqCst);
        while self.get(table).is_held {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.1.fetch_sub(1, Ordering::SeqCst);
    }

    fn get(&self, table: &str) -> Declared {
        self.0.lock().unwrap().get(table).cloned().unwrap_or_default()
    }
}

#[async_trait]
impl ConnectorFactory for Outside {
    fn kind(&self) -> &'static str {
        "outside"
    }

    fn options(&self) -> &'static [ConnectionOption] {
        const TOKEN: ConnectionOption = ConnectionOption { name: "token", is_secret: true, is_required: true, doc: "a secret" };
        const REGION: ConnectionOption = ConnectionOption { name: "region", is_secret: false, is_required: false, doc: "a place" };
        &[TOKEN, REGION]
    }

    async fn open(&self, settings: ConnectionSettings) -> Result<Arc<dyn Connector>> {
        Ok(Arc::new(OutsideConnector { tables: TableConnector::new(settings.state, None), declared: self.clone() }))
    }
}

#[derive(Debug)]
struct OutsideConnector {
    tables: TableConnector,
    declared: Outside,
}

fn full(table: &[String]) -> Vec<String> {
    let name = table.last().cloned().unwrap_or_default();
    vec!["datafusion".into(), "public".into(), name]
}

fn down() -> Error {
    Error::new(ErrorCode::ConnectionFailed, "connection \"x\": the outside system is down. Remedy: bring it up")
}

impl OutsideConnector {
    fn describe(&self, mut table: SourceTable) -> SourceTable {
        let name = table.name.pop().unwrap_or_default();
        table.primary_key = self.declared.get(&name).key;
        table.name = vec!["public".into(), name];
        for column in &mut table.columns {
            column.leads_index = table.primary_key.first() == Some(&column.name);
            column.is_nullable = !table.primary_key.contains(&column.name);
        }
        table
    }
}

#[async_trait]
impl Connector for OutsideConnector {
    async fn check(&self) -> Result<()> {
        if self.declared.get("*").is_down { Err(down()) } else { Ok(()) }
    }

    async fn discover(&self, only: Option<&[String]>) -> Result<Vec<SourceTable>> {
        self.check().await?;
        let only = only.map(full);
        let found = self.tables.discover(only.as_deref()).await?;
        Ok(found.into_iter().map(|table| self.describe(table)).collect())
    }

    async fn snapshot(&self, table: &[String], known: Option<&Schema>, context: Arc<TaskContext>) -> Result<Arc<dyn SourceSnapshot>> {
        self.check().await?;
        let inner = self.tables.snapshot(&full(table), known, context).await?;
        let (described, declared) = (self.describe(inner.table().clone()), self.declared.get(table.last().map_or("", |name| name)));
        Ok(Arc::new(OutsideSnapshot { inner, table: described, declared, outside: self.declared.clone() }))
    }
}

#[derive(Debug)]
struct OutsideSnapshot {
    inner: Arc<dyn SourceSnapshot>,
    table: SourceTable,
    declared: Declared,
    outside: Outside,
}

#[async_trait]
impl SourceSnapshot for OutsideSnapshot {
    fn table(&self) -> &SourceTable {
        &self.table
    }

    fn reads_in_order(&self) -> bool {
        true
    }

    async fn ceiling(&self, column: &str, filters: &[RowFilter]) -> Result<Option<ScalarValue>> {
        self.inner.ceiling(column, filters).await
    }

    async fn count_nulls(&self, column: &str, filters: &[RowFilter]) -> Result<u64> {
        self.inner.count_nulls(column, filters).await
    }

    async fn read(&self, request: ReadRequest) -> Result<SendableRecordBatchStream> {
        if self.declared.is_held {
            self.outside.pass(self.table.name.last().map_or("", |name| name)).await;
        }
        let rows = self.inner.read(request).await?;
        let Some(limit) = self.declared.fail_after else { return Ok(rows) };
        let schema = rows.schema();
        // One row a batch, so that a failure can be anywhere.
        let single = rows.flat_map(|batch| {
            let rows: Vec<_> = match batch {
                Ok(batch) => (0..batch.num_rows()).map(|row| Ok(batch.slice(row, 1))).collect(),
                Err(error) => vec![Err(error)],
            };
            futures::stream::iter(rows)
        });
        let failing = single.take(limit).chain(futures::stream::once(async { Err(down().into()) }));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, failing)))
    }

    async fn finish(&self) -> Result<()> {
        self.inner.finish().await
    }
}
