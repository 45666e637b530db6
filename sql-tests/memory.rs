//! Large tables in small memory pools: the same counts as without a limit, or an error that advances nothing.
//!
//! ```text
//! S1 (3,000,000 rows) ─► publish ─► for each pool and number of partitions: S2 (10 changes, 5 deletions) ─► S1 again
//! ```

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionConfig;
use datafusion_incremental::context::IncrementalSession;
use datafusion_incremental::run::RefreshRequest;
use datafusion_incremental::spec::RunSummary;
use datafusion_incremental::{Error, ErrorCode};

const ROWS: i64 = 3_000_000;
const MIB: usize = 1 << 20;

/// The rows of S1, or of S2: one row in 300,000 changed, one in 600,000 gone.
fn source(is_second: bool, partitions: i64) -> MemTable {
    let part = |part: i64| {
        let range = (ROWS * part / partitions)..(ROWS * (part + 1) / partitions);
        let starts = range.clone().step_by(8192);
        starts.map(|start| batch(is_second, start..(start + 8192).min(range.end))).collect::<Vec<_>>()
    };
    let parts: Vec<_> = (0..partitions).map(part).collect();
    MemTable::try_new(parts[0][0].schema(), parts).unwrap()
}

fn batch(is_second: bool, ids: std::ops::Range<i64>) -> RecordBatch {
    let is_there = |id: &i64| !is_second || id % 600_000 != 23;
    let value = |id: i64| if is_second && id % 300_000 == 17 { -1 } else { id * 3 };
    let ids: Int64Array = ids.filter(is_there).collect();
    let values: Int64Array = ids.values().iter().map(|id| value(*id)).collect();
    RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef), ("v", Arc::new(values) as ArrayRef)]).unwrap()
}

async fn session(root: &Path, pool: Option<usize>, partitions: usize) -> IncrementalSession {
    let config = SessionConfig::new().with_target_partitions(partitions);
    let builder = IncrementalSession::builder().with_root(root.to_string_lossy()).with_config(config);
    match pool {
        Some(bytes) => builder.with_memory_limit(bytes),
        None => builder,
    }
    .build()
    .await
    .unwrap()
}

async fn refresh(session: &IncrementalSession, is_second: bool, partitions: usize) -> Result<RunSummary, Error> {
    session.context().deregister_table("s").unwrap();
    session.context().register_table("s", Arc::new(source(is_second, partitions as i64))).unwrap();
    session.refresh("t", RefreshRequest::default()).await
}

/// Created, updated, deleted, unchanged.
fn counts(summary: &RunSummary) -> [i64; 4] {
    let counts = [summary.rows_created, summary.rows_updated, summary.rows_deleted, summary.rows_unchanged];
    counts.map(|count| i64::try_from(count.unwrap()).unwrap())
}

async fn count_and_sum(session: &IncrementalSession) -> [i64; 2] {
    let batches = session.context().sql("SELECT count(*), sum(v) FROM t").await.unwrap().collect().await.unwrap();
    let value = |column: usize| batches[0].column(column).as_primitive::<Int64Type>().value(0);
    [value(0), value(1)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_pool_changes_no_count() {
    let folder = tempfile::tempdir().unwrap();
    let sum = 3 * ROWS * (ROWS - 1) / 2;
    // The first run: every key is new, and keys in order take eight bytes each.
    let small = session(folder.path(), Some(64 * MIB), 16).await;
    small.context().register_table("s", Arc::new(source(false, 16))).unwrap();
    small.table("t").source("s").key(["id"]).sql("SELECT id, v FROM input").create().await.unwrap();
    let first = refresh(&small, false, 16).await.unwrap();
    assert_eq!(counts(&first), [ROWS, 0, 0, 0]);
    assert_eq!(first.spilled_bytes, Some(0));
    assert_eq!(count_and_sum(&small).await, [ROWS, sum]);

    for pool in [None, Some(256 * MIB), Some(64 * MIB)] {
        for partitions in [1, 16] {
            let session = session(folder.path(), pool, partitions).await;
            let second = refresh(&session, true, partitions).await.unwrap();
            assert_eq!(counts(&second), [0, 10, 5, ROWS - 15], "{pool:?}, {partitions} partitions");
            // Once each: 40 bytes of a row of the index and 36 of one of the source.
            let expected = if pool == Some(64 * MIB) { 76 * ROWS as u64..90 * ROWS as u64 } else { 0..1 };
            assert!(expected.contains(&second.spilled_bytes.unwrap()), "{pool:?}: {second:?}");
            assert!(pool.is_none_or(|pool| second.peak_memory_bytes.unwrap() <= pool as u64));
            let changed: i64 = (0..10).map(|i| 3 * (i * 300_000 + 17) + 1).sum();
            let gone: i64 = (0..5).map(|i| 3 * (i * 600_000 + 23)).sum();
            assert_eq!(count_and_sum(&session).await, [ROWS - 5, sum - changed - gone]);
            let back = refresh(&session, false, partitions).await.unwrap();
            assert_eq!(counts(&back), [5, 10, 0, ROWS - 15], "{pool:?}, {partitions} partitions");
        }
    }

    // Too small for anything: nothing is advanced.
    let tiny = session(folder.path(), Some(64 << 10), 4).await;
    let error = refresh(&tiny, true, 4).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ResourcesExhausted, "{error}");
    let roomy = session(folder.path(), None, 4).await;
    assert_eq!(count_and_sum(&roomy).await, [ROWS, sum]);
    assert_eq!(counts(&refresh(&roomy, false, 4).await.unwrap()), [0, 0, 0, ROWS]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_keys_in_no_order_are_compared_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path(), Some(24 * MIB), 4).await;
    let rows = 1_000_000;
    let scrambled = |part: i64, repeated: bool| {
        let ids = (rows * part / 4..rows * (part + 1) / 4).map(move |i| (i * 7_919) % rows);
        let ids: Int64Array = ids.chain((repeated && part == 3).then_some(7_919)).collect();
        let batch = RecordBatch::try_from_iter([("id", Arc::new(ids.clone()) as ArrayRef), ("v", Arc::new(ids) as ArrayRef)]).unwrap();
        (0..batch.num_rows()).step_by(8192).map(|at| batch.slice(at, 8192.min(batch.num_rows() - at))).collect::<Vec<_>>()
    };
    let register = |repeated: bool| {
        let parts: Vec<_> = (0..4).map(|part| scrambled(part, repeated)).collect();
        session.context().deregister_table("s").unwrap();
        session.context().register_table("s", Arc::new(MemTable::try_new(parts[0][0].schema(), parts).unwrap())).unwrap();
    };
    register(true);
    session.table("t").source("s").key(["id"]).sql("SELECT id, v FROM input").create().await.unwrap();
    let error = session.refresh("t", RefreshRequest::default()).await.unwrap_err();
    assert!(error.code() == ErrorCode::KeyDuplicate && error.message().contains("id=7919 (count 2)"), "{error}");
    register(false);
    let first = session.refresh("t", RefreshRequest::default()).await.unwrap();
    assert_eq!(counts(&first), [rows, 0, 0, 0]);
    assert!(first.spilled_bytes.unwrap() > 0, "{first:?}");
    assert_eq!(count_and_sum(&session).await, [rows, rows * (rows - 1) / 2]);
}
