//! Several sessions on one root folder, as processes are to each other; runs that are dropped, killed or cancelled; what a
//! vacuum leaves of the history; the figures of a run's row.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{DataType, Field, Schema};
use datafusion_incremental::ErrorCode;
use datafusion_incremental::context::{IncrementalOptions, IncrementalSession};
use datafusion_incremental::env::{Clock, SystemClock};
use datafusion_incremental::handler::{HandlerRegistry, closure_handler};
use datafusion_incremental::run::{self, RefreshRequest};
use datafusion_incremental::spec::{RunId, RunMode, RunState};
use tokio::sync::Semaphore;

/// A session on `root` with a handler `slow`, whose every call waits for `gate`, then for 60 ms.
async fn session(root: &Path, gate: &Arc<Semaphore>) -> IncrementalSession {
    let handlers = HandlerRegistry::default();
    let output = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true), Field::new("o", DataType::Utf8, true)]));
    let (gate, schema) = (Arc::clone(gate), Arc::clone(&output));
    let handler = closure_handler("1", output, move |input: RecordBatch, _call| {
        let (gate, schema) = (Arc::clone(&gate), Arc::clone(&schema));
        async move {
            drop(gate.acquire().await?);
            tokio::time::sleep(Duration::from_millis(60)).await;
            Ok(vec![RecordBatch::try_new(schema, input.columns().to_vec())?])
        }
    });
    handlers.register("slow", handler).unwrap();
    let options = IncrementalOptions::default().with_root(root.join("warehouse").to_string_lossy()).with_handlers(handlers);
    IncrementalSession::builder().with_options(options).build().await.unwrap()
}

fn open_gate() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(1000))
}

/// A Parquet source `s` of `rows` rows, in a file that every session on the folder reads.
async fn write_source(session: &IncrementalSession, root: &Path, rows: usize, value: &str) {
    let file = root.join("s.parquet");
    let _ = std::fs::remove_file(&file);
    let copy = format!(
        "COPY (SELECT value AS id, concat('{value}', CAST(value AS VARCHAR)) AS v FROM generate_series(1, {rows})) TO '{}' STORED AS PARQUET",
        file.display()
    );
    session.sql(&copy).await.unwrap();
}

fn source(root: &Path) -> String {
    format!("CREATE EXTERNAL TABLE IF NOT EXISTS s STORED AS PARQUET LOCATION '{}'", root.join("s.parquet").display())
}

/// The rows of the last statement, cells separated by a space.
async fn rows(session: &IncrementalSession, sql: &str) -> Vec<String> {
    let results = session.sql(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let options = FormatOptions::default().with_null("NULL");
    let mut lines = vec![];
    for batch in results.last().unwrap().batches.iter() {
        let columns: Vec<_> = batch.columns().iter().map(|c| ArrayFormatter::try_new(c.as_ref(), &options).unwrap()).collect();
        lines.extend((0..batch.num_rows()).map(|row| columns.iter().map(|c| c.value(row).to_string()).collect::<Vec<_>>().join(" ")));
    }
    lines
}

async fn code(session: &IncrementalSession, sql: &str) -> ErrorCode {
    session.sql(sql).await.err().unwrap_or_else(|| panic!("{sql} succeeds")).code()
}

fn named(run: &str, mode: RunMode) -> RefreshRequest {
    RefreshRequest { run: Some(RunId::new(run).unwrap()), mode, ..RefreshRequest::default() }
}

#[tokio::test]
async fn what_another_process_does_to_a_table_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let (a, b) = (session(root, &open_gate()).await, session(root, &open_gate()).await);
    write_source(&a, root, 3, "v").await;
    for session in [&a, &b] {
        session.sql(&source(root)).await.unwrap();
    }
    b.sql("CREATE INCREMENTAL TABLE t FROM s KEY (id) AS SELECT id FROM input; REFRESH t").await.unwrap();
    // Each way to name or to list it finds it.
    assert_eq!(rows(&a, "SELECT count(*) FROM t").await, ["3"]);
    b.sql("CREATE INCREMENTAL TABLE \"T 2\" FROM s KEY (id) AS SELECT id FROM input").await.unwrap();
    assert_eq!(rows(&a, "SELECT table_name FROM incremental_tables()").await, ["T 2", "t"]);
    b.sql("CREATE INCREMENTAL TABLE t3 FROM s KEY (id) AS SELECT id FROM input").await.unwrap();
    assert!(rows(&a, "SHOW TABLES").await.iter().any(|line| line.contains("t3")));
    b.sql("CREATE INCREMENTAL TABLE t4 FROM s KEY (id) AS SELECT id FROM input").await.unwrap();
    assert_eq!(rows(&a, "SELECT count(*) FROM incremental_runs('t4')").await, ["0"]);
    b.sql("CREATE INCREMENTAL TABLE t5 FROM s KEY (id) AS SELECT id FROM input").await.unwrap();
    a.sql("REFRESH t5").await.unwrap();
    // Its new columns are planned with at once.
    b.sql("ALTER INCREMENTAL TABLE t AS SELECT id, upper(v) AS o FROM input; REFRESH t").await.unwrap();
    assert_eq!(rows(&a, "SELECT * FROM t WHERE id = 1").await, ["1 V1"]);
    // Dropped, it is gone; created anew, it is another table.
    b.sql("DROP INCREMENTAL TABLE t PURGE").await.unwrap();
    assert!(a.sql("SELECT * FROM t").await.is_err());
    assert_eq!(code(&a, "REFRESH t").await, ErrorCode::TableNotFound);
    b.sql("CREATE INCREMENTAL TABLE t FROM s KEY (id) AS SELECT id, v AS w FROM input; REFRESH t").await.unwrap();
    assert_eq!(rows(&a, "SELECT w FROM t WHERE id = 2").await, ["v2"]);
    b.sql("DROP INCREMENTAL TABLE t PURGE; CREATE INCREMENTAL TABLE t FROM s KEY (id) AS SELECT id FROM input; REFRESH t").await.unwrap();
    assert_eq!(rows(&a, "SELECT * FROM t WHERE id = 2").await, ["2"]);
    a.sql("REFRESH t; DROP INCREMENTAL TABLE t PURGE").await.unwrap();
    assert_eq!(code(&b, "REFRESH t").await, ErrorCode::TableNotFound);
    a.sql("CREATE INCREMENTAL TABLE t FROM s KEY (id) AS SELECT id FROM input").await.unwrap();
}

#[tokio::test]
async fn the_history_outlives_a_vacuum() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let a = session(root, &open_gate()).await;
    write_source(&a, root, 3, "v").await;
    a.sql(&source(root)).await.unwrap();
    a.sql("CREATE INCREMENTAL TABLE t FROM s KEY (id) AS SELECT id, upper(v) AS o FROM input").await.unwrap();
    let first = a.refresh("t", named("r1", RunMode::Published)).await.unwrap();
    a.sql("REFRESH t FULL RUN 'r2'; REFRESH t RUN 'r3'").await.unwrap();
    let history =
        "SELECT run_id, version, state, reason, rows_created, rows_total, bytes_written FROM incremental_runs('t') ORDER BY run_id";
    let before = rows(&a, history).await;
    a.sql("CALL incremental.vacuum('t', dry_run => false, older_than => '0 seconds')").await.unwrap();
    // A session that remembers nothing.
    let b = session(root, &open_gate()).await;
    assert_eq!(rows(&b, history).await, before);
    assert_eq!(b.refresh("t", named("r1", RunMode::Published)).await.unwrap(), first);
    assert_eq!(code(&b, "SELECT * FROM t VERSION AS OF 1").await, ErrorCode::HistoryMissing);
    assert_eq!(
        rows(&b, "SELECT version, run_id, revision, written_at IS NULL, verdict FROM incremental_row('t', 1)").await,
        ["2 r2 1 false current"]
    );
    b.sql("CALL incremental.vacuum('t', dry_run => false, older_than => '0 seconds')").await.unwrap();
    assert_eq!(rows(&b, "SELECT count(*) FROM t").await, ["3"]);
    // A process that dies between the publish and its last record leaves the seal.
    let records = std::fs::read_dir(root.join("warehouse/t")).unwrap().map(|entry| entry.unwrap().path().join("runs/r1"));
    for record in records.filter(|path| path.exists()) {
        std::fs::remove_file(record.join("00000000000000000001.end.json")).unwrap();
    }
    let c = session(root, &open_gate()).await;
    assert_eq!(
        rows(&c, "SELECT version, state, reason, rows_created, requested_at IS NULL FROM incremental_runs('t') WHERE run_id = 'r1'").await,
        ["1 published initial 3 false"]
    );
}

#[tokio::test]
async fn a_draft_at_work_is_running_and_excludes_only_its_own_attempts() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let gate = Arc::new(Semaphore::new(0));
    let (a, b) = (session(root, &gate).await, session(root, &gate).await);
    write_source(&a, root, 3, "v").await;
    a.sql(&source(root)).await.unwrap();
    a.sql("CREATE INCREMENTAL TABLE t FROM s KEY (id) TRACK (v) HANDLER 'slow'").await.unwrap();
    let state = "SELECT state FROM incremental_runs('t') WHERE run_id = 'd'";
    let look = async {
        while rows(&b, state).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(rows(&b, state).await, ["running"]);
        assert_eq!(code(&b, "REFRESH t DRAFT RUN 'd'").await, ErrorCode::RunActive);
        let (other, published) = tokio::join!(b.refresh("t", named("d2", RunMode::Draft)), async {
            gate.add_permits(1000);
            b.refresh("t", named("p", RunMode::Published)).await
        });
        (other.unwrap().state, published.unwrap().state)
    };
    let (draft, others) = tokio::join!(a.refresh("t", named("d", RunMode::Draft)), look);
    assert_eq!((draft.unwrap().state, others), (RunState::Completed, (RunState::Completed, RunState::Published)));
    assert_eq!(rows(&b, state).await, ["completed"]);
}

#[tokio::test]
async fn a_cancelled_run_says_so_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let gate = Arc::new(Semaphore::new(0));
    let (a, b) = (session(root, &gate).await, session(root, &gate).await);
    write_source(&a, root, 3, "v").await;
    a.sql(&source(root)).await.unwrap();
    a.sql("CREATE INCREMENTAL TABLE t FROM s KEY (id) TRACK (v) HANDLER 'slow'").await.unwrap();
    let cancel = async {
        while rows(&b, "SELECT state FROM incremental_runs('t')").await.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let table = b.incremental_table("t").await.unwrap();
        run::cancel(&table, &RunId::new("r").unwrap()).await.unwrap().state
    };
    let (result, asked) = tokio::join!(a.refresh("t", named("r", RunMode::Published)), cancel);
    assert_eq!((result.unwrap_err().code(), asked), (ErrorCode::Cancelled, RunState::Running));
    assert_eq!(rows(&b, "SELECT state, error_code FROM incremental_runs('t')").await, ["cancelled CANCELLED"]);
    gate.add_permits(1000);
    assert_eq!(b.refresh("t", named("r2", RunMode::Published)).await.unwrap().version, Some(1));
}

#[tokio::test]
async fn the_figures_of_a_run_are_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let a = session(root, &open_gate()).await;
    write_source(&a, root, 20_000, "v").await;
    a.sql(&source(root)).await.unwrap();
    a.sql("CREATE INCREMENTAL TABLE t FROM s KEY (id) TRACK (v) HANDLER 'slow'").await.unwrap();
    let clock = SystemClock::default();
    let started = clock.elapsed();
    let summary = a.refresh("t", RefreshRequest::default()).await.unwrap();
    let took = u64::try_from((clock.elapsed() - started).as_millis()).unwrap();
    let (handle, write) = (summary.ms_handle.unwrap(), summary.ms_write.unwrap());
    assert!(handle >= 55, "the handler slept 60 ms: {summary:?}");
    let all = summary.ms_capture.unwrap() + handle + write + summary.ms_publish.unwrap();
    assert!(all <= took + 4, "{all} ms of {took}: {summary:?}");
    let times = [summary.requested_at, summary.started_at, summary.captured_at, summary.ended_at].map(Option::unwrap);
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!((summary.handler_rows, summary.files_read, summary.files_skipped), (Some(20_000), Some(1), Some(0)));
    assert!(summary.peak_memory_bytes.unwrap() > 100_000, "the writers hold rows: {summary:?}");
    // All bytes but those of the records themselves: slot, manifest, seal, attempts, lease.
    let written: u64 = files(&root.join("warehouse")).iter().filter(|(name, _)| !name.ends_with(".json")).map(|(_, bytes)| bytes).sum();
    let records: u64 = files(&root.join("warehouse")).iter().map(|(_, bytes)| bytes).sum::<u64>() - written;
    let told = summary.bytes_written.unwrap();
    assert!(told >= written && told <= written + records, "{told} of {written} and {records}");
}

fn files(folder: &Path) -> Vec<(String, u64)> {
    let mut found = vec![];
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push((path.display().to_string(), path.metadata().unwrap().len()));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_that_refresh_at_once_never_tear_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let (a, b) = (session(root, &open_gate()).await, session(root, &open_gate()).await);
    write_source(&a, root, 500, "v").await;
    a.sql(&source(root)).await.unwrap();
    a.sql("CREATE INCREMENTAL TABLE t FROM s KEY (id) AS SELECT id, upper(v) AS o FROM input").await.unwrap();
    let mut won = 0;
    for round in 0..12 {
        write_source(&a, root, 500 + round, if round % 2 == 0 { "v" } else { "w" }).await;
        let (left, right) = tokio::join!(a.refresh("t", RefreshRequest::default()), b.refresh("t", RefreshRequest::default()));
        for result in [left, right] {
            match result {
                Ok(_) => won += 1,
                Err(error) => assert!(matches!(error.code(), ErrorCode::RunActive | ErrorCode::RunConflict), "{error}"),
            }
        }
        let difference = "SELECT count(*) FROM (SELECT id, upper(v) AS o FROM s EXCEPT SELECT id, o FROM t)";
        assert_eq!(rows(&a, difference).await, ["0"]);
        assert_eq!(rows(&a, "SELECT count(*) FROM t").await, [(500 + round).to_string()]);
    }
    assert_eq!(rows(&b, "SELECT max(version) FROM incremental_versions('t')").await, [won.to_string()]);
    let left_over = "SELECT count(*) FROM incremental_runs('t') WHERE state NOT IN ('published', 'failed')";
    assert_eq!(rows(&b, left_over).await, ["0"]);
}

/// A refresh that is dropped at any moment leaves a whole table, and the next one goes on once the lease has run out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refresh_dropped_at_any_moment_leaves_a_whole_table() {
    const TABLES: u64 = 16;
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let a = session(root, &open_gate()).await;
    write_source(&a, root, 2_000, "v").await;
    a.sql(&source(root)).await.unwrap();
    for table in 0..TABLES {
        let handler = if table % 2 == 0 { "AS SELECT id, v AS o FROM input" } else { "HANDLER 'slow'" };
        a.sql(&format!("CREATE INCREMENTAL TABLE t{table} FROM s KEY (id) TRACK (v) {handler}; REFRESH t{table} RUN 'first'"))
            .await
            .unwrap();
    }
    write_source(&a, root, 1_900, "w").await;
    let mut dropped = 0;
    for table in 0..TABLES {
        let refresh = a.refresh(format!("t{table}"), named("second", RunMode::Published));
        dropped += u32::from(tokio::time::timeout(Duration::from_millis(4 + table * 9), refresh).await.is_err());
    }
    assert!(dropped > 4, "only {dropped} were dropped");
    let b = session(root, &open_gate()).await;
    b.sql(&source(root)).await.unwrap();
    let mut states = std::collections::BTreeSet::new();
    for table in 0..TABLES {
        let whole = rows(&b, &format!("SELECT count(*), min(substr(o, 1, 1)), max(substr(o, 1, 1)) FROM t{table}")).await;
        assert!(whole == ["2000 v v"] || whole == ["1900 w w"], "t{table}: {whole:?}");
        let state = rows(&b, &format!("SELECT state FROM incremental_runs('t{table}') WHERE run_id = 'second'")).await;
        states.extend(state);
    }
    assert!(states.iter().all(|state| ["running", "published"].contains(&state.as_str())), "{states:?}");
    tokio::time::sleep(Duration::from_secs(31)).await;
    for table in 0..TABLES {
        let state = rows(&b, &format!("SELECT state FROM incremental_runs('t{table}') WHERE run_id = 'second'")).await;
        assert!(state.iter().all(|state| ["abandoned", "published"].contains(&state.as_str())), "t{table}: {state:?}");
        // Half of them go on under their id, the others with a new run.
        let run = if table % 4 < 2 { "second" } else { "third" };
        let summary = b.refresh(format!("t{table}"), named(run, RunMode::Published)).await.unwrap();
        assert_eq!(summary.state, RunState::Published);
        let rest = format!("SELECT count(*) FROM (SELECT id, v AS o FROM s EXCEPT SELECT id, o FROM t{table})");
        assert_eq!(rows(&b, &rest).await, ["0"], "t{table}");
        assert_eq!(rows(&b, &format!("SELECT count(*) FROM t{table}")).await, ["1900"]);
    }
}
