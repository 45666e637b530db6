//! A table over files, in a world whose clock and stores a test controls.
//!
//! ```text
//! files://source/…     the source's files, in memory; reads are counted
//! files://tables/t/    the table; writes are counted
//! clock                the machine's, an hour ahead: every file is old enough, unless a test sets it back
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow_schema::DataType;
use async_trait::async_trait;
use datafusion::prelude::SessionConfig;
use datafusion_incremental::context::IncrementalSession;
use datafusion_incremental::env::{Clock, Env, RandomIds, SystemClock};
use datafusion_incremental::exec::equality::KeyHash;
use datafusion_incremental::handler::{Handler, closure_handler};
use datafusion_incremental::run::RefreshRequest;
use datafusion_incremental::spec::RunSummary;
use datafusion_incremental::{Error, ErrorCode};
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result as StoreResult,
};

pub const HOUR: i64 = 3_600_000_000;

/// The machine's clock with an offset.
#[derive(Debug)]
pub struct ShiftedClock {
    clock: SystemClock,
    pub micros: AtomicI64,
}

#[async_trait]
impl Clock for ShiftedClock {
    fn now_micros(&self) -> i64 {
        self.clock.now_micros() + self.micros.load(Ordering::SeqCst)
    }

    fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// A store in memory that counts, and whose writes can take their time.
#[derive(Debug, Default)]
pub struct CountingStore {
    inner: InMemory,
    pub reads: AtomicUsize,
    pub writes: Mutex<Vec<String>>,
    pub write_millis: AtomicUsize,
}

impl CountingStore {
    async fn write(&self, location: &Path) {
        self.writes.lock().unwrap().push(location.to_string());
        let millis = self.write_millis.load(Ordering::SeqCst) as u64;
        if millis > 0 {
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
    }

    pub fn take_reads(&self) -> usize {
        self.reads.swap(0, Ordering::SeqCst)
    }

    pub fn take_writes(&self) -> Vec<String> {
        std::mem::take(&mut self.writes.lock().unwrap())
    }
}

impl fmt::Display for CountingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CountingStore")
    }
}

#[async_trait]
impl ObjectStore for CountingStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        self.write(location).await;
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(&self, location: &Path, options: PutMultipartOptions) -> StoreResult<Box<dyn MultipartUpload>> {
        self.write(location).await;
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> StoreResult<GetResult> {
        if !options.head {
            self.reads.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, StoreResult<Path>>) -> BoxStream<'static, StoreResult<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// How a world is made.
#[derive(Debug, Clone)]
pub struct Shape {
    pub hash: KeyHash,
    pub memory: Option<usize>,
    pub partitions: usize,
    /// The handler: a query that is proven, or a registered handler that is checked.
    pub proven: bool,
    pub location: String,
    pub options: String,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            hash: KeyHash::Xxh3,
            memory: None,
            partitions: 2,
            proven: true,
            location: "files://tables/t/".to_string(),
            options: "compaction = 'off'".to_string(),
        }
    }
}

/// Rows of one file: key and value.
pub type Rows = BTreeMap<i64, String>;

pub struct World {
    pub shape: Shape,
    pub clock: Arc<ShiftedClock>,
    pub source: Arc<CountingStore>,
    pub tables: Arc<CountingStore>,
    pub session: IncrementalSession,
    /// While it is not 0 the registered handler fails.
    pub failing: Arc<AtomicUsize>,
}

/// The columns of every test's source.
pub const COLUMNS: &str = "(id BIGINT, v VARCHAR)";

impl World {
    /// Files with columns id and v, read as CSV by table `s`, and the incremental table `t` over it.
    pub async fn new(shape: Shape) -> Self {
        let world = Self::bare(shape).await;
        world.sql(&external("s", "", "")).await.unwrap();
        world.create().await;
        world
    }

    /// The same without any table.
    pub async fn bare(shape: Shape) -> Self {
        let clock = Arc::new(ShiftedClock { clock: SystemClock::default(), micros: AtomicI64::new(HOUR) });
        let (source, tables, failing) = (Arc::default(), Arc::default(), Arc::default());
        let session = open(&shape, &clock, (&source, &tables), &failing).await;
        Self { shape, clock, source, tables, session, failing }
    }

    /// Table `t` over whatever `s` is.
    pub async fn create(&self) {
        let handler = if self.shape.proven { "AS SELECT id, upper(v) AS o FROM input" } else { "HANDLER 'upper'" };
        let Shape { options, location, .. } = &self.shape;
        let sql = format!("CREATE INCREMENTAL TABLE t FROM s KEY (id) TRACK (v) LOCATION '{location}' WITH ({options}) {handler}");
        self.sql(&sql).await.unwrap();
    }

    /// Another session over the same world, which has table `s` as an external table if `is_registered`.
    pub async fn restart(&mut self, is_registered: bool) {
        self.session = open(&self.shape, &self.clock, (&self.source, &self.tables), &self.failing).await;
        if is_registered {
            self.sql(&external("s", "", "")).await.unwrap();
        }
        self.sql("CREATE EXTERNAL TABLE t STORED AS INCREMENTAL LOCATION 'files://tables/t/'").await.unwrap();
    }

    pub async fn sql(&self, sql: &str) -> Result<Vec<RecordBatch>, Error> {
        let mut results = self.session.sql(sql).await?;
        Ok(results.pop().map(|result| result.batches).unwrap_or_default())
    }

    /// Writes a file, whatever was there.
    pub async fn write(&self, name: &str, rows: &[(i64, &str)]) {
        let lines: Vec<String> = rows.iter().map(|(id, v)| format!("{id},{v}\n")).collect();
        self.write_text(name, &format!("id,v\n{}", lines.concat())).await;
    }

    pub async fn write_text(&self, name: &str, text: &str) {
        self.source.put(&Path::from(format!("data/{name}")), text.to_string().into()).await.unwrap();
    }

    pub async fn remove(&self, name: &str) {
        self.source.delete(&Path::from(format!("data/{name}"))).await.unwrap();
    }

    pub async fn refresh(&self) -> Result<RunSummary, Error> {
        self.session.refresh("t", RefreshRequest::default()).await
    }

    /// A refresh that must publish these numbers: files read, files skipped; rows created, updated, deleted, unchanged.
    pub async fn expect(&self, files: [u64; 2], rows: [u64; 4]) {
        let summary = self.refresh().await.unwrap();
        assert_eq!((files_of(&summary), rows_of(&summary)), (files, rows), "{}", self.explain().await);
        assert_eq!(summary.rows_total, Some(rows[0] + rows[1] + rows[3]));
    }

    /// A refresh that must fail with this code, and says `text`.
    pub async fn expect_error(&self, code: ErrorCode, text: &str) {
        let before = self.rows("t").await;
        let error = self.refresh().await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(text), "{error}");
        assert_eq!(self.rows("t").await, before);
    }

    pub async fn explain(&self) -> String {
        let batches = self.sql("EXPLAIN REFRESH t").await.unwrap();
        let cell = |batch: &RecordBatch, row| arrow::util::display::array_value_to_string(batch.column(1), row).unwrap();
        batches
            .iter()
            .flat_map(|batch| (0..batch.num_rows()).map(|row| cell(batch, row)).collect::<Vec<_>>())
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// The rows of a table with columns id and something.
    pub async fn rows(&self, table: &str) -> Rows {
        let batches = self.sql(&format!("SELECT * FROM {table}")).await.unwrap();
        let mut rows = Rows::new();
        for batch in &batches {
            let ids = batch.column(0).as_primitive::<arrow::datatypes::Int64Type>();
            let values = arrow::compute::cast(batch.column(1), &DataType::Utf8).unwrap();
            for row in 0..batch.num_rows() {
                let value = values.as_string::<i32>();
                let value = if value.is_null(row) { String::new() } else { value.value(row).to_string() };
                assert_eq!(rows.insert(ids.value(row), value), None, "key {} is there twice", ids.value(row));
            }
        }
        rows
    }

    pub async fn expect_rows(&self, rows: &[(i64, &str)]) {
        assert_eq!(self.rows("t").await, rows.iter().map(|(id, v)| (*id, (*v).to_string())).collect());
    }
}

/// Files read, files skipped.
pub fn files_of(summary: &RunSummary) -> [u64; 2] {
    [summary.files_read, summary.files_skipped].map(Option::unwrap)
}

/// Rows created, updated, deleted, unchanged.
pub fn rows_of(summary: &RunSummary) -> [u64; 4] {
    [summary.rows_created, summary.rows_updated, summary.rows_deleted, summary.rows_unchanged].map(Option::unwrap)
}

/// The statement that reads the files below `data/<folder>` as CSV.
pub fn external(table: &str, folder: &str, options: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE {table} {COLUMNS} STORED AS CSV LOCATION 'files://source/data/{folder}' OPTIONS ('format.has_header' 'true' {options})"
    )
}

async fn open(
    shape: &Shape,
    clock: &Arc<ShiftedClock>,
    (source, tables): (&Arc<CountingStore>, &Arc<CountingStore>),
    failing: &Arc<AtomicUsize>,
) -> IncrementalSession {
    let env = Env { clock: Arc::clone(clock) as _, ids: Arc::new(RandomIds) };
    let config = SessionConfig::new().with_target_partitions(shape.partitions);
    let mut builder = IncrementalSession::builder().with_config(config).with_env(env).with_key_hash(shape.hash);
    if let Some(bytes) = shape.memory {
        builder = builder.with_memory_limit(bytes);
    }
    let session = builder.build().await.unwrap();
    for (host, store) in [("source", source), ("tables", tables)] {
        let url = url::Url::parse(&format!("files://{host}")).unwrap();
        session.context().register_object_store(&url, Arc::clone(store) as _);
    }
    session.handlers().register("upper", upper(failing)).unwrap();
    session
}

fn upper(failing: &Arc<AtomicUsize>) -> Arc<dyn Handler> {
    use arrow_schema::{Field, Schema};
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true), Field::new("o", DataType::Utf8, true)]));
    let (failing, output) = (Arc::clone(failing), Arc::clone(&schema));
    closure_handler("1", schema, move |input: RecordBatch, _call| {
        let (failing, output) = (Arc::clone(&failing), Arc::clone(&output));
        async move {
            if failing.load(Ordering::SeqCst) > 0 {
                return Err("the service is down".into());
            }
            let values = arrow::compute::cast(input.column(1), &DataType::Utf8)?;
            let upper: arrow::array::StringArray = values.as_string::<i32>().iter().map(|v| v.map(str::to_uppercase)).collect();
            let batch = RecordBatch::try_new(output, vec![Arc::clone(input.column(0)), Arc::new(upper)])?;
            // Another order than the input's.
            let rows = batch.num_rows() as u32;
            let order: arrow::array::UInt32Array = (0..rows).rev().collect();
            Ok(vec![arrow::compute::take_record_batch(&batch, &order)?])
        }
    })
}
