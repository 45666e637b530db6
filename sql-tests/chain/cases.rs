//! What a random history does not meet: a restored source, and changes beyond the memory pool.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use datafusion::datasource::MemTable;
use datafusion_incremental::context::IncrementalSession;
use datafusion_incremental::run::{RefreshRequest, explain_refresh};
use datafusion_incremental::spec::RunSummary;

const MIB: usize = 1 << 20;

async fn session(root: &Path, pool: Option<usize>) -> IncrementalSession {
    let builder = IncrementalSession::builder().with_root(root.to_string_lossy());
    match pool {
        Some(bytes) => builder.with_memory_limit(bytes),
        None => builder,
    }
    .build()
    .await
    .unwrap()
}

/// `rows` rows with keys of at least `width` characters; `value` of those that `round` changed.
fn register(session: &IncrementalSession, rows: i64, width: usize, round: i64) {
    let batch = |start: i64| {
        let ids = start..(start + 4096).min(rows);
        let keys: StringArray = ids.clone().map(|id| Some(format!("{id:0width$}"))).collect();
        let values: Int64Array = ids.map(|id| if id % 2 == 0 { round } else { id }).collect();
        RecordBatch::try_from_iter([("id", Arc::new(keys) as ArrayRef), ("v", Arc::new(values) as ArrayRef)]).unwrap()
    };
    let batches: Vec<RecordBatch> = (0..rows).step_by(4096).map(batch).collect();
    let table = MemTable::try_new(batches[0].schema(), vec![batches]).unwrap();
    session.context().deregister_table("s").unwrap();
    session.context().register_table("s", Arc::new(table)).unwrap();
}

async fn refresh(session: &IncrementalSession, table: &str) -> RunSummary {
    session.refresh(table, RefreshRequest::default()).await.unwrap()
}

async fn decision(session: &IncrementalSession, table: &str) -> String {
    let handle = session.incremental_table(table).await.unwrap();
    let (_, decision) = explain_refresh(&session.host(), &handle).await.unwrap().remove(0);
    decision.lines().last().unwrap().to_string()
}

async fn sum(session: &IncrementalSession, table: &str) -> i64 {
    let batches = session.context().sql(&format!("SELECT sum(w) FROM {table}")).await.unwrap().collect().await.unwrap();
    batches[0].column(0).as_primitive::<Int64Type>().value(0)
}

const CHAIN: &str = "CREATE INCREMENTAL TABLE a FROM s KEY (id) WITH (compaction = 'off') AS SELECT id, v AS w FROM input; \
     CREATE INCREMENTAL TABLE b FROM a KEY (id) WITH (compaction = 'off') AS SELECT id, w FROM input; REFRESH a, b";

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        match from.is_dir() {
            true => copy(&from, &to),
            false => assert!(std::fs::copy(&from, &to).is_ok()),
        }
    }
}

/// A backup of the source comes back and goes another way: the same incarnation and numbers, other versions.
#[tokio::test]
async fn a_restored_source_is_read_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (root, backup) = (folder.path().join("w"), folder.path().join("backup"));
    {
        let session = session(&root, None).await;
        register(&session, 100, 1, 0);
        session.sql(CHAIN).await.unwrap();
        copy(&root.join("a"), &backup);
        register(&session, 100, 1, 1000);
        refresh(&session, "a").await;
        refresh(&session, "b").await;
    }
    std::fs::remove_dir_all(root.join("a")).unwrap();
    copy(&backup, &root.join("a"));
    let session = session(&root, None).await;
    register(&session, 90, 1, 0);
    refresh(&session, "a").await;
    register(&session, 91, 1, 0);
    refresh(&session, "a").await;
    let decision = decision(&session, "b").await;
    assert!(decision.ends_with("version 3 is read whole: the version 2 that was accepted is not in its history"), "{decision}");
    let run = refresh(&session, "b").await;
    assert_eq!((run.rows_deleted, run.rows_total), (Some(9), Some(91)));
    assert_eq!(sum(&session, "b").await, sum(&session, "a").await);
}

/// Changes whose keys do not fit are not handed on; keys that turn out too long make the run start over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_beyond_the_pool_are_read_whole() {
    for (rows, width, pool, is_tried) in [(200_000, 8, 32 * MIB, false), (60_000, 2_000, 64 * MIB, true)] {
        let folder = tempfile::tempdir().unwrap();
        let roomy = session(folder.path(), None).await;
        register(&roomy, rows, width, 0);
        roomy.sql(CHAIN).await.unwrap();
        register(&roomy, rows - 10, width, -1);
        refresh(&roomy, "a").await;
        let small = session(folder.path(), Some(pool)).await;
        let decision = decision(&small, "b").await;
        assert_eq!(decision.contains("hands on"), is_tried, "{decision}");
        assert!(is_tried || decision.contains("do not fit a quarter of the memory pool"), "{decision}");
        let run = refresh(&small, "b").await;
        let half = rows as u64 / 2;
        let counts = [run.rows_created, run.rows_updated, run.rows_deleted, run.rows_unchanged].map(Option::unwrap);
        assert_eq!(counts, [0, half - 5, 10, half - 5], "{run:?}");
        assert_eq!(sum(&small, "b").await, sum(&small, "a").await);
    }
}
