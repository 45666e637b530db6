//! The run protocol through the Rust surface: what a run id means when it comes again, who wins, what a failure leaves,
//! how often the source is read, and what a handler may do wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::{AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::runtime::SpawnedTask;
use datafusion::datasource::MemTable;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_incremental::context::{IncrementalOptions, IncrementalSession};
use datafusion_incremental::handler::{HandlerRegistry, closure_handler};
use datafusion_incremental::run::{self, RefreshRequest};
use datafusion_incremental::spec::{RunId, RunMode, RunReason, RunState};
use datafusion_incremental::{Error, ErrorCode};

/// A source whose rows a test replaces; it counts its scans and can fail or change under the reader.
#[derive(Debug)]
struct Source {
    rows: std::sync::Mutex<Vec<(i64, String)>>,
    after_scan: std::sync::Mutex<Option<Vec<(i64, String)>>>,
    scans: AtomicUsize,
    failures: AtomicUsize,
}

impl Source {
    fn new(rows: &[(i64, &str)]) -> Arc<Self> {
        let source =
            Self { rows: Default::default(), after_scan: Default::default(), scans: AtomicUsize::new(0), failures: AtomicUsize::new(0) };
        source.set(rows);
        Arc::new(source)
    }

    fn set(&self, rows: &[(i64, &str)]) {
        *self.rows.lock().unwrap() = rows.iter().map(|(id, v)| (*id, v.to_string())).collect();
    }

    fn set_after_scan(&self, rows: &[(i64, &str)]) {
        *self.after_scan.lock().unwrap() = Some(rows.iter().map(|(id, v)| (*id, v.to_string())).collect());
    }

    fn scans(&self) -> usize {
        self.scans.load(Ordering::SeqCst)
    }
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true), Field::new("v", DataType::Utf8, true)]))
}

#[async_trait]
impl TableProvider for Source {
    fn schema(&self) -> SchemaRef {
        schema()
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
        self.scans.fetch_add(1, Ordering::SeqCst);
        if self.failures.load(Ordering::SeqCst) > 0 {
            self.failures.fetch_sub(1, Ordering::SeqCst);
            return Err(DataFusionError::IoError(std::io::Error::new(std::io::ErrorKind::TimedOut, "the network is slow")));
        }
        let rows = self.rows.lock().unwrap().clone();
        if let Some(next) = self.after_scan.lock().unwrap().take() {
            *self.rows.lock().unwrap() = next;
        }
        let ids: Int64Array = rows.iter().map(|(id, _)| Some(*id)).collect();
        let values: StringArray = rows.iter().map(|(_, v)| Some(v.as_str())).collect();
        let batch = RecordBatch::try_new(schema(), vec![Arc::new(ids), Arc::new(values)])?;
        MemTable::try_new(schema(), vec![vec![batch]])?.scan(state, projection, filters, limit).await
    }
}

struct Fixture {
    session: IncrementalSession,
    source: Arc<Source>,
    calls: Arc<AtomicUsize>,
    fail: Arc<AtomicUsize>,
    _folder: tempfile::TempDir,
}

/// A table `t` over a [`Source`], with a Rust handler that counts its rows and fails, panics or sleeps on demand.
async fn fixture(rows: &[(i64, &str)]) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let (calls, fail) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handlers = HandlerRegistry::default();
    register(&handlers, "1", &calls, &fail);
    let options = IncrementalOptions::default().with_root(folder.path().to_string_lossy()).with_handlers(handlers);
    let session = IncrementalSession::builder().with_options(options).build().await.unwrap();
    let source = Source::new(rows);
    session.context().register_table("s", source.clone()).unwrap();
    session.table("t").source("s").key(["id"]).track(["v"]).handler("h").option("capture_backoff", "1 ms").create().await.unwrap();
    Fixture { session, source, calls, fail, _folder: folder }
}

const FAIL: usize = 1;
const PANIC: usize = 2;
const SLEEP: usize = 3;

fn register(handlers: &HandlerRegistry, version: &str, calls: &Arc<AtomicUsize>, fail: &Arc<AtomicUsize>) {
    let output = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true), Field::new("o", DataType::Utf8, true)]));
    let (calls, fail, schema) = (Arc::clone(calls), Arc::clone(fail), Arc::clone(&output));
    let handler = closure_handler(version, output, move |input: RecordBatch, _call| {
        let (calls, fail, schema) = (Arc::clone(&calls), Arc::clone(&fail), Arc::clone(&schema));
        async move {
            match fail.load(Ordering::SeqCst) {
                FAIL => return Err("the service is down".into()),
                PANIC => panic!("a defect in the handler"),
                SLEEP => tokio::time::sleep(Duration::from_secs(60)).await,
                _ => {}
            }
            calls.fetch_add(input.num_rows(), Ordering::SeqCst);
            Ok(vec![RecordBatch::try_new(schema, input.columns().to_vec())?])
        }
    });
    handlers.register("h", handler).unwrap();
}

impl Fixture {
    async fn refresh(&self, run: Option<&str>) -> Result<datafusion_incremental::spec::RunSummary, Error> {
        let run = run.map(|id| RunId::new(id).unwrap());
        self.session.refresh("t", RefreshRequest { run, ..RefreshRequest::default() }).await
    }

    async fn rows(&self) -> Vec<(i64, String)> {
        let batches = self.session.context().sql("SELECT id, o FROM t ORDER BY id").await.unwrap().collect().await.unwrap();
        let mut rows = vec![];
        for batch in batches {
            let ids = batch.column(0).as_primitive::<Int64Type>().clone();
            let values = arrow::compute::cast(batch.column(1), &DataType::Utf8).unwrap();
            rows.extend((0..batch.num_rows()).map(|i| (ids.value(i), values.as_string::<i32>().value(i).to_string())));
        }
        rows
    }

    async fn state_of(&self, run: &str) -> String {
        let sql = format!("SELECT state FROM incremental_runs('t') WHERE run_id = '{run}'");
        let batches = self.session.context().sql(&sql).await.unwrap().collect().await.unwrap();
        let batch = batches.iter().find(|batch| batch.num_rows() == 1).expect("one run");
        batch.column(0).as_string::<i32>().value(0).to_string()
    }
}

fn pairs(rows: &[(i64, &str)]) -> Vec<(i64, String)> {
    rows.iter().map(|(id, v)| (*id, v.to_string())).collect()
}

#[tokio::test]
async fn the_source_is_read_exactly_once_and_one_value_is_seen() {
    let f = fixture(&[(1, "A")]).await;
    f.source.set_after_scan(&[(1, "C")]);
    let before = f.source.scans();
    let summary = f.refresh(None).await.unwrap();
    assert_eq!(f.source.scans() - before, 1);
    assert_eq!((summary.rows_created, summary.reason), (Some(1), Some(RunReason::Initial)));
    assert_eq!(f.rows().await, pairs(&[(1, "A")]));
    let next = f.refresh(None).await.unwrap();
    assert_eq!((next.rows_updated, next.handler_rows), (Some(1), Some(1)));
    assert_eq!(f.rows().await, pairs(&[(1, "C")]));
}

#[tokio::test]
async fn a_published_run_id_gives_the_same_answer_again() {
    let f = fixture(&[(1, "a"), (2, "b")]).await;
    let first = f.refresh(Some("r1")).await.unwrap();
    f.source.set(&[(3, "c")]);
    let again = f.refresh(Some("r1")).await.unwrap();
    assert_eq!(first, again);
    assert_eq!(f.calls.load(Ordering::SeqCst), 2);
    assert_eq!(f.rows().await, pairs(&[(1, "a"), (2, "b")]));
}

#[tokio::test]
async fn a_retry_keeps_its_pinned_capture() {
    let f = fixture(&[(1, "a")]).await;
    f.refresh(None).await.unwrap();
    f.source.set(&[(1, "a"), (2, "pinned")]);
    f.fail.store(FAIL, Ordering::SeqCst);
    let error = f.refresh(Some("r7")).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::HandlerFailed);
    assert!(error.message().contains("the service is down"), "{error}");
    assert_eq!(f.state_of("r7").await, "failed");
    assert_eq!(f.rows().await, pairs(&[(1, "a")]));
    f.source.set(&[(1, "moved on")]);
    f.fail.store(0, Ordering::SeqCst);
    let summary = f.refresh(Some("r7")).await.unwrap();
    assert_eq!((summary.rows_created, summary.rows_unchanged), (Some(1), Some(1)));
    assert_eq!(f.rows().await, pairs(&[(1, "a"), (2, "pinned")]));
    let next = f.refresh(None).await.unwrap();
    assert_eq!((next.rows_updated, next.rows_deleted), (Some(1), Some(1)));
}

#[tokio::test]
async fn a_sealed_run_is_stale_when_another_published() {
    let f = fixture(&[(1, "a")]).await;
    f.fail.store(FAIL, Ordering::SeqCst);
    f.refresh(Some("old")).await.unwrap_err();
    f.fail.store(0, Ordering::SeqCst);
    f.refresh(Some("new")).await.unwrap();
    let error = f.refresh(Some("old")).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::RunStale);
    assert!(error.message().contains("new"), "{error}");
}

#[tokio::test]
async fn another_mode_under_the_same_id_is_refused() {
    let f = fixture(&[(1, "a")]).await;
    f.refresh(Some("r1")).await.unwrap();
    let run = Some(RunId::new("r1").unwrap());
    for request in [
        RefreshRequest { mode: RunMode::Draft, run: run.clone(), ..RefreshRequest::default() },
        RefreshRequest { full: true, run, ..RefreshRequest::default() },
    ] {
        let error = f.session.refresh("t", request).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::RunMismatch);
    }
}

#[tokio::test]
async fn a_panic_in_a_handler_is_a_failed_run() {
    let f = fixture(&[(1, "a")]).await;
    f.fail.store(PANIC, Ordering::SeqCst);
    let error = f.refresh(Some("p")).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::HandlerFailed);
    assert!(error.message().contains("a defect in the handler"), "{error}");
    f.fail.store(0, Ordering::SeqCst);
    f.refresh(None).await.unwrap();
}

#[tokio::test]
async fn no_change_and_deletion_only_runs_skip_the_handler_and_publish() {
    let f = fixture(&[(1, "a"), (2, "b")]).await;
    f.refresh(None).await.unwrap();
    let calls = f.calls.load(Ordering::SeqCst);
    let none = f.refresh(None).await.unwrap();
    assert_eq!((none.reason, none.version, none.handler_rows), (Some(RunReason::NoChange), Some(2), Some(0)));
    f.source.set(&[(2, "b")]);
    let deletion = f.refresh(None).await.unwrap();
    assert_eq!((deletion.reason, deletion.rows_deleted), (Some(RunReason::DeleteOnly), Some(1)));
    assert_eq!(f.calls.load(Ordering::SeqCst), calls);
    assert_eq!(f.rows().await, pairs(&[(2, "b")]));
}

#[tokio::test]
async fn transient_capture_errors_are_retried_and_then_fail_the_run() {
    let f = fixture(&[(1, "a")]).await;
    f.source.failures.store(2, Ordering::SeqCst);
    f.refresh(None).await.unwrap();
    f.source.failures.store(10, Ordering::SeqCst);
    let before = f.source.scans();
    let error = f.refresh(Some("slow")).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::CaptureFailed);
    assert_eq!(f.source.scans() - before, 3, "one attempt and two retries");
    assert_eq!(f.state_of("slow").await, "failed");
}

#[tokio::test]
async fn a_second_run_fails_at_once_and_names_the_active_one() {
    let f = fixture(&[(1, "a")]).await;
    f.fail.store(SLEEP, Ordering::SeqCst);
    let table = f.session.incremental_table("t").await.unwrap();
    let host = f.session.host();
    let slow = {
        let (host, table) = (host.clone(), Arc::clone(&table));
        SpawnedTask::spawn(async move {
            let run = Some(RunId::new("slow").unwrap());
            run::refresh(&host, &table, RefreshRequest { run, ..RefreshRequest::default() }).await
        })
    };
    while table.incarnation().active_lease().await.unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let error = f.refresh(None).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::RunActive);
    assert!(error.message().contains("slow"), "{error}");
    assert_eq!(f.state_of("slow").await, "running");

    run::cancel(&table, &RunId::new("slow").unwrap()).await.unwrap();
    let result = tokio::time::timeout(Duration::from_secs(10), slow).await.expect("cancelled within seconds").unwrap();
    assert_eq!(result.summary.state, RunState::Cancelled);
    assert_eq!(result.error.unwrap().code(), ErrorCode::Cancelled);
    assert_eq!(f.state_of("slow").await, "cancelled");
    f.fail.store(0, Ordering::SeqCst);
    f.refresh(None).await.unwrap();
    let error = f.refresh(Some("slow")).await.unwrap_err();
    assert!(matches!(error.code(), ErrorCode::Cancelled | ErrorCode::RunStale), "{error}");
}

#[tokio::test]
async fn another_version_of_the_handler_is_refused() {
    let f = fixture(&[(1, "a")]).await;
    register(f.session.handlers(), "2", &f.calls, &f.fail);
    let error = f.refresh(None).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::HandlerVersion);
    assert!(error.message().contains('1') && error.message().contains('2'), "{error}");
}

#[tokio::test]
async fn drafts_never_touch_the_versions_and_keep_their_output() {
    let f = fixture(&[(1, "a")]).await;
    let run = Some(RunId::new("d1").unwrap());
    let summary = f.session.refresh("t", RefreshRequest { mode: RunMode::Draft, run, ..RefreshRequest::default() }).await.unwrap();
    assert_eq!((summary.state, summary.version, summary.reason), (RunState::Completed, None, Some(RunReason::Draft)));
    let error = f.session.context().sql("SELECT * FROM t").await.unwrap().collect().await.unwrap_err();
    assert_eq!(Error::find(&error).unwrap().code(), ErrorCode::NotPublished);
    let sql = "SELECT id, o FROM incremental_output('t', 'd1')";
    let rows = f.session.context().sql(sql).await.unwrap().collect().await.unwrap();
    assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 1);
}

#[tokio::test]
async fn the_output_schema_of_an_empty_first_input_comes_from_the_plan() {
    let f = fixture(&[]).await;
    let summary = f.refresh(None).await.unwrap();
    assert_eq!((summary.rows_total, summary.handler_rows), (Some(0), Some(0)));
    assert_eq!(f.calls.load(Ordering::SeqCst), 0);
    let rows = f.session.context().sql("SELECT * FROM t").await.unwrap();
    assert_eq!(rows.schema().field_names(), vec!["t.id", "t.o"]);
    assert!(rows.collect().await.unwrap().iter().all(|batch| batch.num_rows() == 0));
}

#[tokio::test]
async fn a_session_without_leave_reads_and_does_not_write() {
    let f = fixture(&[(1, "a")]).await;
    f.refresh(None).await.unwrap();
    f.session.sql("SET incremental.read_only = true").await.unwrap();
    for sql in ["REFRESH t", "SELECT * FROM incremental_refresh('t')", "CALL incremental.rollback('t', 1)", "DROP INCREMENTAL TABLE t"] {
        assert_eq!(f.session.sql(sql).await.unwrap_err().code(), ErrorCode::ReadOnly, "{sql}");
    }
    assert_eq!(f.session.sql("SET incremental.read_only = false").await.unwrap_err().code(), ErrorCode::ReadOnly);
    assert_eq!(f.rows().await, pairs(&[(1, "a")]));
}

/// The names of a plan's nodes, indented as the plan is.
fn nodes(plan: &str) -> String {
    let name = |line: &str| {
        let depth = line.len() - line.trim_start().len();
        format!("{}{}", " ".repeat(depth), line.trim_start().split([':', ' ']).next().unwrap_or_default())
    };
    plan.lines().map(name).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_refresh_is_two_plans() {
    let f = fixture(&[(1, "a")]).await;
    f.refresh(None).await.unwrap();
    let table = f.session.incremental_table("t").await.unwrap();
    let scans = f.source.scans();
    let plans = run::explain_refresh(&f.session.host(), &table).await.unwrap();
    let plan = |what: &str| plans.iter().find(|(name, _)| name == what).map(|(_, text)| nodes(text)).unwrap_or_default();
    insta::assert_snapshot!(plan("capture_plan"), @r"
    SealExec
      KeyedDiffExec
        IndexScanExec
        DataSourceExec
    ");
    insta::assert_snapshot!(plan("publish_plan"), @r"
    PublishExec
      MergeExec
        ContractExec
          HandlerExec
            CaptureScanExec
    ");
    assert_eq!(f.source.scans() - scans, 1, "planned, not executed");
    assert_eq!(f.calls.load(Ordering::SeqCst), 1);
}
