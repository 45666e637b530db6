//! What every test here works with: a source whose rows a test replaces, processes on one store, and the oracle.
//!
//! ```text
//! Source (rows) ──► Process (session, its own way to the store) ──► Backing
//!      └──────────── upper(v) of every row = what the newest version must hold (the oracle)
//! ```

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::{Array, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::MemTable;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionConfig;
use datafusion_incremental::context::{IncrementalOptions, IncrementalSession};
use datafusion_incremental::env::{Clock, Env, Ids};
use datafusion_incremental::handler::{HandlerRegistry, closure_handler};
use datafusion_incremental::table::{IncrementalTable, TableHandle};
use datafusion_incremental::{Error, ErrorCode, Result};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::ArrowWriter;

use super::backing::Backing;
use super::store::FaultStore;

/// The rows of a source or of a table, by key.
pub type Rows = BTreeMap<i64, String>;

/// The folder of every test's tables.
pub const ROOT: &str = "memory://faults/w";

/// The folder of the source's files, in the store.
pub const FILES: &str = "w/files/";

pub fn rows(pairs: &[(i64, &str)]) -> Rows {
    pairs.iter().map(|(id, v)| (*id, (*v).to_string())).collect()
}

/// A full recompute: what both handlers of the tests make of the source.
pub fn oracle(source: &Rows) -> Rows {
    source.iter().map(|(id, v)| (*id, v.to_uppercase())).collect()
}

/// A source with the columns `id` and `v`.
#[derive(Debug, Default)]
pub struct Source {
    rows: Mutex<Rows>,
}

impl Source {
    pub fn new(rows: Rows) -> Arc<Self> {
        Arc::new(Self { rows: Mutex::new(rows) })
    }

    pub fn set(&self, rows: Rows) {
        *self.rows.lock().unwrap() = rows;
    }

    pub fn rows(&self) -> Rows {
        self.rows.lock().unwrap().clone()
    }
}

fn schema(value: &str) -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true), Field::new(value, DataType::Utf8, true)]))
}

fn batch(value: &str, rows: &Rows) -> RecordBatch {
    let ids: Int64Array = rows.keys().map(|id| Some(*id)).collect();
    let values: StringArray = rows.values().map(|v| Some(v.as_str())).collect();
    RecordBatch::try_new(schema(value), vec![Arc::new(ids), Arc::new(values)]).unwrap()
}

#[async_trait]
impl TableProvider for Source {
    fn schema(&self) -> SchemaRef {
        schema("v")
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let batch = batch("v", &self.rows());
        MemTable::try_new(schema("v"), vec![vec![batch]])?.scan(state, projection, filters, limit).await
    }
}

/// What the handler `up` does.
#[derive(Debug, Default)]
pub struct Service {
    /// Every call fails.
    pub fails: AtomicBool,
    /// Every call takes so many seconds.
    pub seconds: AtomicUsize,
}

/// One process: a session with its own way to the store.
pub struct Process {
    pub session: IncrementalSession,
    pub store: FaultStore,
}

/// What all processes of a test share.
#[derive(Debug, Clone)]
pub struct World {
    pub backing: Arc<Backing>,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    pub source: Arc<Source>,
    pub service: Arc<Service>,
    /// The rows of the source's files, when it is made of files.
    pub files: Arc<Mutex<BTreeMap<String, Rows>>>,
}

impl World {
    pub fn new(backing: Arc<Backing>, clock: Arc<dyn Clock>, ids: Arc<dyn Ids>) -> Self {
        Self { backing, clock, ids, source: Source::new(Rows::new()), service: Arc::default(), files: Arc::default() }
    }

    /// A Parquet file of the source, new or overwritten; [`Self::source`] is then the rows of all files.
    pub async fn put_file(&self, name: &str, rows: Rows) {
        let mut bytes = vec![];
        let mut writer = ArrowWriter::try_new(&mut bytes, schema("v"), None).unwrap();
        writer.write(&batch("v", &rows)).unwrap();
        writer.close().unwrap();
        let path = Path::from(format!("{FILES}{name}.parquet"));
        self.backing.store.put(&path, bytes.into()).await.unwrap();
        self.backing.stamp(&path);
        let mut files = self.files.lock().unwrap();
        files.insert(name.to_string(), rows);
        self.source.set(files.values().flatten().map(|(id, v)| (*id, v.clone())).collect());
    }

    /// A process that has seen nothing yet.
    pub async fn process(&self) -> Process {
        self.process_over(FaultStore::new(Arc::clone(&self.backing))).await
    }

    /// A process whose way to the objects is `store`.
    pub async fn process_over(&self, store: FaultStore) -> Process {
        let handlers = HandlerRegistry::default();
        let (service, clock) = (Arc::clone(&self.service), Arc::clone(&self.clock));
        let handler = closure_handler("1", schema("o"), move |input: RecordBatch, _call| {
            let (service, clock) = (Arc::clone(&service), Arc::clone(&clock));
            async move {
                clock.sleep(Duration::from_secs(service.seconds.load(Ordering::SeqCst) as u64)).await;
                if service.fails.load(Ordering::SeqCst) {
                    return Err("the service is down".into());
                }
                Ok(vec![batch("o", &oracle(&pairs(&input)))])
            }
        });
        handlers.register("up", handler).unwrap();
        let env = Env { clock: Arc::clone(&self.clock), ids: Arc::clone(&self.ids) };
        let options = IncrementalOptions::default().with_handlers(handlers).with_env(env);
        let config = SessionConfig::new().with_target_partitions(1);
        let session = IncrementalSession::builder().with_options(options).with_config(config).build().await.unwrap();
        let url = url::Url::parse("memory://faults").unwrap();
        session.context().register_object_store(&url, Arc::new(store.clone()) as Arc<dyn ObjectStore>);
        session.context().register_table("s", Arc::clone(&self.source) as Arc<dyn TableProvider>).unwrap();
        Process { session, store }
    }
}

/// The pairs of a batch's first two columns.
pub fn pairs(batch: &RecordBatch) -> Rows {
    let ids = batch.column(0).as_primitive::<Int64Type>();
    let values = arrow::compute::cast(batch.column(1), &DataType::Utf8).unwrap();
    let values = values.as_string::<i32>();
    (0..batch.num_rows()).map(|i| (ids.value(i), values.value(i).to_string())).collect()
}

/// The pairs of all batches; a key that comes twice is an error.
pub fn all_pairs(batches: &[RecordBatch]) -> Result<Rows, String> {
    let mut all = Rows::new();
    let mut count = 0;
    for batch in batches {
        if batch.column(0).null_count() > 0 {
            return Err("a key is null".to_string());
        }
        count += batch.num_rows();
        all.extend(pairs(batch));
    }
    if all.len() == count { Ok(all) } else { Err(format!("{count} rows have {} keys", all.len())) }
}

/// What a table shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub incarnation: String,
    /// Every version's rows; `None` where they are gone.
    pub versions: BTreeMap<u64, Option<Rows>>,
}

impl Seen {
    pub fn newest(&self) -> u64 {
        self.versions.keys().next_back().copied().unwrap_or(0)
    }

    /// The newest version's rows.
    pub fn rows(&self) -> Option<&Rows> {
        self.versions.values().next_back().and_then(Option::as_ref)
    }
}

impl Process {
    /// Executes a script; a run that failed is an error.
    pub async fn sql(&self, sql: &str) -> Result<Vec<RecordBatch>> {
        let mut results = self.session.sql(sql).await?;
        if results.iter().any(|result| result.failed) {
            return Err(Error::new(ErrorCode::StoreFailed, format!("one of the runs of {sql} failed")));
        }
        Ok(results.pop().map(|last| last.batches).unwrap_or_default())
    }

    /// The error's code, or `None` when the script succeeds.
    pub async fn code(&self, sql: &str) -> Option<ErrorCode> {
        self.sql(sql).await.err().map(|error| error.code())
    }

    /// The rows of a query over `id` and a text.
    pub async fn select(&self, sql: &str) -> Result<Rows> {
        let batches = self.sql(sql).await?;
        all_pairs(&batches).map_err(|what| Error::new(ErrorCode::Internal, format!("{sql}: {what}")))
    }

    /// Registers the table below [`ROOT`]; `false` when there is none.
    pub async fn attach(&self, table: &str) -> Result<bool> {
        match self.sql(&format!("CREATE EXTERNAL TABLE {table} STORED AS INCREMENTAL LOCATION '{ROOT}/{table}/'")).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == ErrorCode::TableNotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Every version of the table, read whole.
    pub async fn look(&self, table: &str) -> Result<Seen> {
        let handle = self.session.incremental_table(table).await?;
        let newest = handle.incarnation().newest_version().await?.map_or(0, |slot| slot.version);
        let mut versions = BTreeMap::new();
        for version in 1..=newest {
            let read = match self.read_version(&handle, version).await {
                Err(error) if error.code() == ErrorCode::HistoryMissing && version < newest => None,
                other => Some(other?),
            };
            versions.insert(version, read);
        }
        Ok(Seen { incarnation: handle.incarnation().id().to_string(), versions })
    }

    /// One version's rows.
    pub async fn read_version(&self, handle: &Arc<TableHandle>, version: u64) -> Result<Rows> {
        let snapshot = handle.at_version(version).await?;
        let provider = IncrementalTable::at(Arc::clone(handle), snapshot);
        let state = self.session.context().state();
        let read = async { collect(provider.scan(&state, None, &[], None).await?, state.task_ctx()).await };
        let batches = read.await.map_err(|e| Error::from_datafusion(e, ErrorCode::StoreFailed, format!("version {version}")))?;
        all_pairs(&batches).map_err(|what| Error::new(ErrorCode::Internal, format!("version {version}: {what}")))
    }
}

/// Runs `test` alone on this thread, in paused time, with a deep stack for debug builds.
pub fn alone<T: Send, Fut: Future<Output = T>>(test: impl FnOnce() -> Fut + Send) -> T {
    std::thread::scope(|scope| {
        let runtime = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(test())
        };
        let thread = std::thread::Builder::new().stack_size(32 << 20).spawn_scoped(scope, runtime).unwrap();
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `work` on every item, a few at a time, and collects the failures (at most `enough`).
pub fn in_parallel<I: Send>(items: Vec<I>, enough: usize, work: impl Fn(&I) -> Result<(), String> + Sync) -> Vec<(I, String)> {
    let (queue, failures) = (Mutex::new(items.into_iter()), Mutex::new(vec![]));
    let workers = std::thread::available_parallelism().map_or(2, usize::from).min(8);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    if failures.lock().unwrap().len() >= enough {
                        return;
                    }
                    let Some(item) = queue.lock().unwrap().next() else { return };
                    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&item)));
                    let outcome = outcome.unwrap_or_else(|panic| Err(format!("a panic: {}", panic_text(&panic))));
                    if let Err(failure) = outcome {
                        failures.lock().unwrap().push((item, failure));
                    }
                }
            });
        }
    });
    failures.into_inner().unwrap()
}

fn panic_text(panic: &Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_else(|| "without a text".to_string())
}

/// A number from the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
