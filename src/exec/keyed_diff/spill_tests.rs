//! The diff in pools that it does not fit.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, StringArray};
use datafusion::execution::disk_manager::DiskManagerBuilder;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::TryStreamExt;

use super::tests::{Source, batch, diff_on, execute, index, ints, plan, pool_of, spec, texts};
use super::*;

const ROWS: i64 = 50_000;

fn numbers(ids: impl Iterator<Item = i64> + Clone, value: impl Fn(i64) -> i64) -> Source {
    vec![("id", ints(ids.clone())), ("v", ints(ids.map(value)))]
}

/// The pool has everything back, and so has the disk.
fn is_clean(session: &SessionContext) -> bool {
    let runtime = session.runtime_env();
    runtime.memory_pool.reserved() == 0 && runtime.disk_manager.used_disk_space() == 0
}

#[tokio::test]
async fn a_baseline_beyond_half_the_pool_is_diffed_in_buckets() {
    let one = numbers(0..ROWS, |id| id);
    let two = numbers((0..ROWS + 7).filter(|id| id % 10_000 != 9_999), |id| if id % 5_000 == 0 { -1 } else { id });
    for hash in [KeyHash::Xxh3, KeyHash::Constant] {
        for partitions in [1, 16] {
            let session = pool_of(500_000, 8192);
            let found = diff_on(&session, (Some(&one), &two), &["id"], (hash, partitions, 8192)).await.unwrap();
            assert_eq!(found.report.created + found.report.updated + found.report.unchanged, found.report.scanned);
            assert_eq!((found.report.created, found.report.updated, found.report.deleted), (7, 10, 5));
            let changed = (0..10).map(|i| i * 5_000).chain(ROWS..ROWS + 7).collect();
            assert_eq!(found.ints("id"), changed);
            assert_eq!(found.dead().len(), 15);
            assert!(found.dead().contains(&(1, 4_999)), "row 9,999 of the base");
            assert!(
                found.report.spilled_bytes > 32 * ROWS as u64 && found.report.peak_memory_bytes <= 250_000,
                "{:?}",
                (found.report.spilled_bytes, found.report.peak_memory_bytes)
            );
            assert!(is_clean(&session));
        }
    }
    let session = pool_of(50_000_000, 8192);
    let found = diff_on(&session, (Some(&one), &two), &["id"], (KeyHash::Xxh3, 4, 8192)).await.unwrap();
    assert_eq!((found.counts(), found.report.spilled_bytes), ([7, 10, 5, ROWS as u64 - 15], 0));
}

#[tokio::test]
async fn new_keys_beyond_half_the_pool_are_compared_on_disk() {
    for partitions in [1, 16] {
        let session = pool_of(500_000, 8192);
        let now = numbers(0..ROWS, |id| id);
        let found = diff_on(&session, (None, &now), &["id"], (KeyHash::Xxh3, partitions, 1000)).await.unwrap();
        assert_eq!(found.counts(), [ROWS as u64, 0, 0, 0]);
        assert_eq!(found.ints("id").len(), ROWS as usize);
        assert!(found.report.spilled_bytes > 0 && found.report.peak_memory_bytes <= 250_000);
        assert!(is_clean(&session));
        // Twice before memory is short and once after; twice after; once on either side of it.
        let now = numbers([5, 5].into_iter().chain(0..ROWS).chain([ROWS - 1, 7]), |id| id);
        let error = diff_on(&session, (None, &now), &["id"], (KeyHash::Xxh3, partitions, 1000)).await.err().unwrap();
        assert_eq!(error.code(), ErrorCode::KeyDuplicate);
        for part in ["3 keys occur", "id=5 (count 3)", "id=7 (count 2)", "id=49999 (count 2)"] {
            assert!(error.message().contains(part), "{error}");
        }
        assert!(is_clean(&session));
    }
}

#[tokio::test]
async fn keys_at_fault_are_found_in_buckets_too() {
    let one = numbers(0..ROWS, |id| id);
    let session = pool_of(500_000, 8192);
    let two = numbers((0..ROWS).chain([3, ROWS + 1, 3, ROWS + 1]), |id| id);
    let error = diff_on(&session, (Some(&one), &two), &["id"], (KeyHash::Xxh3, 4, 8192)).await.err().unwrap();
    for part in ["KEY_DUPLICATE", "2 keys occur", "id=3 (count 3)", "id=50001 (count 2)"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let ids: Int64Array = (0..ROWS).map(|id| (id != 77).then_some(id)).collect();
    let two: Source = vec![("id", Arc::new(ids)), ("v", ints(0..ROWS))];
    let error = diff_on(&session, (Some(&one), &two), &["id"], (KeyHash::Xxh3, 4, 8192)).await.err().unwrap();
    assert!(error.to_string().contains("KEY_NULL") && error.message().contains("null in 1 source row,"), "{error}");
    assert!(is_clean(&session));
}

#[tokio::test]
async fn keys_longer_than_expected_are_cut_again() {
    let text = |i: i64| format!("{i:0>400}");
    let of = |ids: std::ops::Range<i64>, v: i64| -> Source {
        let keys: ArrayRef = Arc::new(ids.clone().map(|id| Some(text(id))).collect::<StringArray>());
        vec![("a", keys), ("b", ints(ids.clone())), ("v", ints(ids.map(|id| if id == 5 { v } else { 0 })))]
    };
    let (one, two) = (of(0..3_000, 1), of(10..3_010, 2));
    for key in [&["a"] as &[_], &["a", "b"]] {
        let session = pool_of(200_000, 8192);
        let found = diff_on(&session, (Some(&one), &two), key, (KeyHash::Xxh3, 4, 512)).await.unwrap();
        assert_eq!(found.counts(), [10, 0, 10, 2_990]);
        assert!(found.report.peak_memory_bytes <= 100_000, "{}", found.report.peak_memory_bytes);
        assert!(is_clean(&session));
    }
}

#[tokio::test]
async fn partitions_read_one_after_another_do_not_wait_for_each_other() {
    let (before, now) = (batch(&numbers(0..ROWS, |id| id)), batch(&numbers(1..=ROWS, |id| id)));
    let spec = spec(&now, &["id"], KeyHash::Xxh3);
    let diff = KeyedDiffExec::try_new(Some(index(&before, &spec)), plan(&now, 3, 8192), spec).unwrap();
    let session = pool_of(500_000, 8192);
    let mut rows = 0;
    for partition in 0..3 {
        let batches: Vec<_> = diff.execute(partition, session.task_ctx()).unwrap().try_collect().await.unwrap();
        rows += batches.iter().map(|batch| batch.num_rows()).sum::<usize>();
    }
    let report = diff.outcome().report().cloned().unwrap();
    assert_eq!((rows, report.created, report.deleted), (1, 1, 1));
    let spilled = diff.metrics().unwrap().spilled_bytes().unwrap();
    assert_eq!(report.spilled_bytes, spilled as u64);
}

#[tokio::test]
async fn a_full_disk_is_exhausted_resources() {
    let source = batch(&numbers(0..ROWS, |id| id));
    let disk = DiskManagerBuilder::default().with_max_temp_directory_size(100_000);
    let pool = Arc::new(GreedyMemoryPool::new(500_000));
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).with_disk_manager_builder(disk).build_arc().unwrap();
    let session = SessionContext::new_with_config_rt(SessionConfig::new(), runtime);
    let spec = spec(&source, &["id"], KeyHash::Xxh3);
    let diff = KeyedDiffExec::try_new(Some(index(&source, &spec)), plan(&source, 4, 8192), spec).unwrap();
    let error = execute(diff, &session).await.err().unwrap();
    assert_eq!(error.code(), ErrorCode::ResourcesExhausted, "{error}");
    assert!(is_clean(&session));
}

#[tokio::test]
async fn spilled_rows_keep_nulls_ordinals_and_nested_values() {
    let values = texts([Some("x"), None, Some("a value longer than a view holds inline"), Some("")]);
    let many: Vec<Option<&str>> = values.as_any().downcast_ref::<StringArray>().unwrap().iter().cycle().take(4_000).collect();
    let of = |shift: usize| -> Source {
        let views: ArrayRef =
            arrow::compute::cast(&texts(many.iter().copied().skip(shift).chain([None; 4]).take(4_000)), &arrow_schema::DataType::Utf8View)
                .unwrap();
        vec![("id", ints(0..4_000)), ("v", views)]
    };
    let session = pool_of(60_000, 1024);
    let found = diff_on(&session, (Some(&of(0)), &of(0)), &["id"], (KeyHash::Xxh3, 2, 1024)).await.unwrap();
    assert_eq!(found.counts(), [0, 0, 0, 4_000]);
    let found = diff_on(&session, (Some(&of(0)), &of(1)), &["id"], (KeyHash::Xxh3, 2, 1024)).await.unwrap();
    assert_eq!(found.counts()[1], 4_000);
    let nulls: usize = found.rows.iter().map(|rows| rows.column_by_name("v").unwrap().null_count()).sum();
    assert_eq!(nulls, 1_000 + 1, "one in four, and the last row");
}
