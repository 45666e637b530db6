//! Scans of a part of the index: the rows are exactly the wanted ones, with the right positions, however they are read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int32Array, RecordBatch};
use arrow::datatypes::{Int32Type, Int64Type, UInt32Type, UInt64Type};
use arrow_schema::DataType;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};

use super::*;
use crate::exec::keyed_diff::{FILE, ROW, SRC};
use crate::exec::merge::MergeExec;
use crate::exec::merge::tests::{leaf, run};
use crate::store::dead::apply_dead;
use crate::store::files::WriterConfig;
use crate::store::files::test_support::{config, incarnation, output_rows, pair_spec};

/// The source file of a row: long stretches, a few rows apart, and rows without one.
fn source(id: i64) -> i32 {
    match id {
        id if id % 997 == 0 => 9,
        id if id < 2_500 => (id / 400) as i32,
        id if id < 2_600 => -1,
        id => (id / 700) as i32 + 10,
    }
}

fn rows(from: i64, to: i64) -> RecordBatch {
    let batch = output_rows(from, to);
    let mut columns: Vec<ArrayRef> = batch.columns().to_vec();
    let ordinals: Int32Array = (from..to).map(source).collect();
    *columns.last_mut().unwrap() = Arc::new(ordinals);
    RecordBatch::try_new(batch.schema(), columns).unwrap()
}

/// Files with rows 0..3000, 3000..6000 and 6000..6100 in row groups of 100, every seventh row of the first dead.
async fn files(incarnation: &Incarnation) -> Vec<DataFile> {
    let mut files = Vec::new();
    let config = WriterConfig { row_group_rows: 100, ..config() };
    for (version, from, to) in [(1, 0, 3000), (2, 3000, 6000), (3, 6000, 6100)] {
        let merge = MergeExec::new(leaf(&[vec![rows(from, to)]]), pair_spec(incarnation, version, config));
        files.extend(run(Arc::new(merge), 1 << 24).await.unwrap());
    }
    let dead = BTreeMap::from([(0, (0..3000).filter(|row| row % 7 == 0).collect())]);
    apply_dead(incarnation, "data/r/4", &files, &dead).await.unwrap()
}

/// Key, source, file and row of what a scan gives.
async fn scan(incarnation: &Incarnation, files: &[DataFile], scope: &Scope, pool: usize) -> BTreeSet<(i64, i32, u32, u64)> {
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(GreedyMemoryPool::new(pool))).build_arc().unwrap();
    let context = SessionContext::new_with_config_rt(SessionConfig::new(), runtime);
    let mut found = BTreeSet::new();
    // A small pool has room for one file at a time, in parts.
    for partitions in if pool < 1 << 20 { vec![1] } else { vec![1, 8] } {
        let key = [Field::new("id", DataType::Int64, true)];
        let plan = IndexScanExec::with_partitions(incarnation.clone(), Arc::new(files.to_vec()), &key, partitions);
        let plan: Arc<dyn ExecutionPlan> = Arc::new(plan.with_scope(scope.clone()));
        let batches = collect(Arc::clone(&plan), context.task_ctx()).await.unwrap();
        let mut rows = BTreeSet::new();
        for batch in &batches {
            assert_eq!(batch.schema(), plan.schema());
            let column = |name: &str| batch.column_by_name(name).unwrap();
            let (ids, sources) = (column("id").as_primitive::<Int64Type>(), column(SRC).as_primitive::<Int32Type>());
            let (files, places) = (column(FILE).as_primitive::<UInt32Type>(), column(ROW).as_primitive::<UInt64Type>());
            rows.extend((0..batch.num_rows()).map(|i| (ids.value(i), sources.value(i), files.value(i), places.value(i))));
        }
        assert_eq!(rows.len(), batches.iter().map(RecordBatch::num_rows).sum::<usize>(), "no row twice");
        assert!(partitions == 1 || rows == found);
        found = rows;
    }
    found
}

fn expected(wanted: impl Fn(i32) -> bool) -> BTreeSet<(i64, i32, u32, u64)> {
    let live = (0..6100_i64).filter(|id| *id >= 3000 || id % 7 != 0).filter(|id| wanted(source(*id)));
    live.map(|id| (id, source(id), (id / 3000) as u32, (id % 3000) as u64)).collect()
}

#[tokio::test]
async fn exactly_the_wanted_rows_come_with_their_positions() {
    let incarnation = incarnation().await;
    let files = files(&incarnation).await;
    let sets: [&[i32]; 5] = [&[], &[0, 1, 2, 4], &[9, 14], &[12, 13, 14, 15, 16, 17, 18], &[-1]];
    let everything = Arc::new(KeyRanges::new(&[Field::new("id", DataType::Float64, true)]));
    for pool in [1 << 24, 100_000] {
        for set in sets {
            let skipped: Arc<BTreeSet<i32>> = Arc::new(set.iter().copied().collect());
            let read = scan(&incarnation, &files, &Scope::Read(Arc::clone(&skipped)), pool).await;
            assert_eq!(read, expected(|source| !set.contains(&source)), "{set:?}");
            let unread = scan(&incarnation, &files, &Scope::Unread(skipped, Arc::clone(&everything)), pool).await;
            assert_eq!(unread, expected(|source| set.contains(&source)), "{set:?}");
        }
    }
}

#[tokio::test]
async fn what_surely_has_no_wanted_row_is_not_read() {
    let incarnation = incarnation().await;
    let files = files(&incarnation).await;
    assert_eq!(files[2].sources.iter().map(|span| (span.first, span.last, span.rows)).collect::<Vec<_>>(), [(18, 18, 100)]);
    let of = |set: &[i32]| Arc::new(set.iter().copied().collect::<BTreeSet<i32>>());
    let wants = |scope: &Scope| files.iter().map(|file| scope.wants_file(file)).collect::<Vec<_>>();
    assert_eq!(wants(&Scope::Read(of(&[18]))), [true, true, false]);
    assert_eq!(Scope::Read(of(&[18])).rows_at_most(&files[1]), 3000 - 399);
    let ranges = Arc::new(KeyRanges::new(&[Field::new("id", DataType::Int64, true)]));
    let unread = Scope::Unread(of(&[0, 14, 18]), Arc::clone(&ranges));
    assert_eq!(wants(&unread), [false; 3]);
    // A key beyond all files, then one of the second file: one row group of it may hold the key.
    ranges.add(&(Arc::new(arrow::array::Int64Array::from(vec![7000])) as ArrayRef)).unwrap();
    assert_eq!(wants(&unread), [false; 3]);
    ranges.add(&(Arc::new(arrow::array::Int64Array::from(vec![3333])) as ArrayRef)).unwrap();
    assert_eq!(wants(&unread), [false, true, false]);
    let found = scan(&incarnation, &files, &unread, 1 << 24).await;
    assert_eq!(found, expected(|source| source == 14).into_iter().filter(|(id, ..)| (3300..3400).contains(id)).collect());
}
