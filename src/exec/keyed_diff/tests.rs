use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int32Array, Int32Builder, Int64Array, LargeStringArray, MapBuilder, RecordBatch,
    StringArray, StringBuilder, StringViewArray, UInt32Array, UInt64Array,
};
use arrow::datatypes::Int64Type;
use arrow_schema::{DataType, Field, Schema};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::{StreamExt, TryStreamExt};
use proptest::prelude::*;

use super::*;
use crate::exec::equality::normalize_array;
use crate::spec::{FingerprintKind, normalize_type};

/// A source: columns by name, all partitions in one batch until they are cut.
pub(super) type Source = Vec<(&'static str, ArrayRef)>;

pub(super) fn batch(source: &Source) -> RecordBatch {
    let fields: Vec<Field> = source.iter().map(|(name, a)| Field::new(*name, a.data_type().clone(), true)).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), source.iter().map(|(_, a)| Arc::clone(a)).collect()).unwrap()
}

/// The source's rows in batches of `rows`, dealt to `partitions`.
pub(super) fn plan(source: &RecordBatch, partitions: usize, rows: usize) -> Arc<dyn ExecutionPlan> {
    let mut parts = vec![Vec::new(); partitions];
    for (i, start) in (0..source.num_rows()).step_by(rows).enumerate() {
        parts[i % partitions].push(source.slice(start, rows.min(source.num_rows() - start)));
    }
    MemorySourceConfig::try_new_exec(&parts, source.schema(), None).unwrap()
}

pub(super) fn spec(source: &RecordBatch, key: &[&str], hash: KeyHash) -> DiffSpec {
    let field = |name: &str| {
        let field = source.schema_ref().field_with_name(name).unwrap();
        Field::new(name, normalize_type(field.data_type()), true)
    };
    let names: Vec<&String> = source.schema_ref().fields().iter().map(|f| f.name()).collect();
    let tracked: Vec<Field> = names.iter().filter(|n| !key.contains(&n.as_str())).map(|n| field(n)).collect();
    let fingerprinter = Arc::new(Fingerprinter::try_new(FingerprintKind::Xxh3, &[5; 32], &tracked).unwrap());
    DiffSpec {
        table: "t".into(),
        key: key.iter().map(|k| field(k)).collect(),
        tracked,
        fingerprinter,
        hash,
        source_ordinals: None,
        keeps_missing: false,
    }
}

/// What an index would hold after this source was published: every row in file `row % 2`, in source order.
pub(super) fn index(source: &RecordBatch, spec: &DiffSpec) -> Arc<dyn ExecutionPlan> {
    let column = |f: &Field| normalize_array(source.column_by_name(f.name()).unwrap(), f.data_type()).unwrap();
    let tracked: Vec<ArrayRef> = spec.tracked.iter().map(|f| Arc::clone(source.column_by_name(f.name()).unwrap())).collect();
    let mut fingerprints = Vec::new();
    spec.fingerprinter.fingerprint_rows(&tracked, source.num_rows(), &mut fingerprints).unwrap();
    let halves: (Vec<i64>, Vec<i64>) = fingerprints.iter().map(|f| columns::split_fingerprint(*f)).unzip();
    let mut arrays: Vec<ArrayRef> = spec.key.iter().map(column).collect();
    arrays.push(Arc::new(Int64Array::from(halves.0)));
    arrays.push(Arc::new(Int64Array::from(halves.1)));
    arrays.push(Arc::new(Int32Array::from(vec![-1; source.num_rows()])));
    arrays.push(Arc::new(UInt32Array::from_iter_values((0..source.num_rows()).map(|row| row as u32 % 2))));
    arrays.push(Arc::new(UInt64Array::from_iter_values((0..source.num_rows()).map(|row| row as u64 / 2))));
    let batch = RecordBatch::try_new(index_scan_schema(&spec.key), arrays).unwrap();
    plan(&batch, 2, 5)
}

pub(super) struct Found {
    pub(super) report: DiffReport,
    pub(super) rows: Vec<RecordBatch>,
}

impl Found {
    pub(super) fn counts(&self) -> [u64; 4] {
        [self.report.created, self.report.updated, self.report.deleted, self.report.unchanged]
    }

    pub(super) fn ints(&self, column: &str) -> BTreeSet<i64> {
        let values = self.rows.iter().flat_map(|b| b.column_by_name(column).unwrap().as_primitive::<Int64Type>().values().to_vec());
        values.collect()
    }

    pub(super) fn dead(&self) -> BTreeSet<(u32, u64)> {
        self.report.dead.iter().flat_map(|(file, rows)| rows.iter().map(|row| (*file, row))).collect()
    }
}

pub(super) fn context(batch_rows: usize) -> SessionContext {
    SessionContext::new_with_config(SessionConfig::new().with_batch_size(batch_rows))
}

/// A session with a pool of `bytes`.
pub(super) fn pool_of(bytes: usize, batch_rows: usize) -> SessionContext {
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(GreedyMemoryPool::new(bytes))).build_arc().unwrap();
    SessionContext::new_with_config_rt(SessionConfig::new().with_batch_size(batch_rows), runtime)
}

pub(super) async fn execute(diff: KeyedDiffExec, context: &SessionContext) -> Result<Found> {
    let outcome = diff.outcome();
    let diff: Arc<dyn ExecutionPlan> = Arc::new(diff);
    let streams = (0..diff.output_partitioning().partition_count()).map(|p| diff.execute(p, context.task_ctx()).unwrap());
    let rows: datafusion::error::Result<Vec<RecordBatch>> = futures::stream::select_all(streams).try_collect().await;
    let rows = rows.map_err(|error| Error::from_datafusion(error, ErrorCode::Internal, "test"))?;
    rows.iter().for_each(|batch| assert_eq!(batch.schema(), diff.schema()));
    let report = outcome.report().cloned().expect("a diff that ended well has a report");
    assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>() as u64, report.created + report.updated);
    Ok(Found { report, rows })
}

async fn diff_as(before: Option<&Source>, now: &Source, key: &[&str], shape: (KeyHash, usize, usize)) -> Result<Found> {
    diff_on(&context(shape.2), (before, now), key, shape).await
}

/// The diff on a session, for the number of partitions and the rows of a batch.
pub(super) async fn diff_on(
    context: &SessionContext,
    (before, now): (Option<&Source>, &Source),
    key: &[&str],
    (hash, partitions, rows): (KeyHash, usize, usize),
) -> Result<Found> {
    let now = batch(now);
    let spec = spec(&now, key, hash);
    let index = before.map(|before| index(&batch(before), &spec));
    execute(KeyedDiffExec::try_new(index, plan(&now, partitions, rows), spec)?, context).await
}

/// Runs the diff with 1 and 4 partitions, batches of 1, 3 and 8192 rows, both hashes, and in a pool so small that almost
/// everything goes to disk: always the same counts or error.
async fn diff(before: Option<&Source>, now: &Source, key: &[&str]) -> Result<Found> {
    let mut results = Vec::new();
    for hash in [KeyHash::Xxh3, KeyHash::Constant] {
        for partitions in [1, 4] {
            for rows in [1, 3, 8192] {
                results.push(diff_as(before, now, key, (hash, partitions, rows)).await);
                if !matches!((partitions, rows), (4, 3) | (1, 8192)) {
                    continue;
                }
                let tiny = pool_of(1024.max(now.first().map_or(0, |(_, column)| column.len()) * 8), rows);
                results.push(diff_on(&tiny, (before, now), key, (hash, partitions, rows)).await);
            }
        }
    }
    let said = |result: &Result<Found>| match result {
        Ok(found) => format!("{:?} {:?}", found.counts(), found.dead()),
        Err(error) => error.to_string(),
    };
    let first = said(&results[0]);
    results.iter().for_each(|result| assert_eq!(said(result), first));
    results.remove(0)
}

pub(super) fn ints(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

pub(super) fn texts<'a>(values: impl IntoIterator<Item = Option<&'a str>>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<StringArray>())
}

#[tokio::test]
async fn composite_keys_are_tuples_not_joined_text() {
    let of = |v| {
        vec![
            ("a", texts([Some("12-"), Some("12"), Some("\0"), Some("")])),
            ("b", texts([Some("3"), Some("-3"), Some(""), Some("\0")])),
            ("v", ints(v)),
        ]
    };
    let (one, two) = (of([1, 1, 1, 1]), of([1, 9, 1, 1]));
    assert_eq!(diff(None, &one, &["a", "b"]).await.unwrap().counts(), [4, 0, 0, 0]);
    let found = diff(Some(&one), &two, &["a", "b"]).await.unwrap();
    assert_eq!((found.counts(), found.ints("v")), ([0, 1, 0, 3], [9].into()));
    assert_eq!(found.dead(), [(1, 0)].into());
}

#[tokio::test]
async fn a_null_key_part_is_named_and_counted() {
    let one = vec![("a", texts([Some(""), Some("z"), None])), ("b", ints([1, 2, 1])), ("v", ints([1, 2, 3]))];
    let error = diff(None, &one, &["a", "b"]).await.err().unwrap();
    assert_eq!(error.code(), ErrorCode::KeyNull);
    assert!(error.message().contains("\"a\" is null in 1 source row,") && error.message().contains("(a=NULL, b=1)"), "{error}");
    let error = diff(None, &vec![("id", Arc::new(Int64Array::from(vec![None, Some(1), None])) as ArrayRef)], &["id"]).await.err().unwrap();
    assert!(error.message().contains("null in 2 source rows"), "{error}");
}

#[tokio::test]
async fn a_hash_decides_nothing() {
    let one = vec![("id", ints(1..=1000)), ("v", ints(1..=1000))];
    let ids: Vec<i64> = (1..=1001).filter(|id| *id != 500).collect();
    let two = vec![("id", ints(ids.clone())), ("v", ints(ids.iter().map(|id| if *id == 7 { 0 } else { *id })))];
    let found = diff(Some(&one), &two, &["id"]).await.unwrap();
    assert_eq!((found.counts(), found.ints("id")), ([1, 1, 1, 998], [7, 1001].into()));
    assert_eq!(found.dead(), [(0, 3), (1, 249)].into());
}

#[tokio::test]
async fn duplicates_are_found_whether_new_changed_or_unchanged() {
    let one = vec![("id", ints([1, 2])), ("v", texts([Some("a"), Some("b")]))];
    for last in ["b", "c"] {
        let two = vec![("id", ints([1, 2, 2])), ("v", texts([Some("a"), Some("b"), Some(last)]))];
        for before in [Some(&one), None] {
            let error = diff(before, &two, &["id"]).await.err().unwrap();
            assert_eq!(error.code(), ErrorCode::KeyDuplicate);
            assert!(error.message().contains("id=2 (count 2)") && error.message().contains("table \"t\""), "{error}");
        }
    }
    let many = vec![("id", ints((0..30).map(|id| id % 10)))];
    let error = diff(None, &many, &["id"]).await.err().unwrap();
    assert!(error.message().contains("10 keys occur more than once") && error.message().contains("id=4 (count 3)"), "{error}");
    assert!(!error.message().contains("id=5"), "five samples only: {error}");
}

#[tokio::test]
async fn duplicates_are_found_between_keys_in_order_and_keys_in_none() {
    // Runs, keys in no order, and repeats of both in both.
    let mixed = |i: i64| if i % 3 == 0 { (i * 7_919) % 10_007 + 100_000 } else { i };
    let ids = (0..3_000).map(mixed).chain([1, 4, mixed(300), mixed(300), mixed(2_997), 2_999]).collect::<Vec<_>>();
    let text: ArrayRef = Arc::new(ids.iter().map(|id| Some(format!("k{id}"))).collect::<StringArray>());
    for key in [ints(ids.iter().copied()), text] {
        let error = diff(None, &vec![("id", key), ("v", ints(ids.iter().copied()))], &["id"]).await.err().unwrap();
        assert!(error.message().contains("5 keys occur") && error.message().contains("(count 3)"), "{error}");
    }
}

#[tokio::test]
async fn text_keys_are_bytes() {
    let of =
        |second| vec![("k", texts(["a", "A", "a ", "e\u{301}", "\u{e9}", "ß", "SS"].map(Some))), ("v", ints([1, second, 1, 1, 1, 1, 1]))];
    assert_eq!(diff(None, &of(1), &["k"]).await.unwrap().counts(), [7, 0, 0, 0]);
    assert_eq!(diff(Some(&of(1)), &of(2), &["k"]).await.unwrap().counts(), [0, 1, 0, 6]);
}

#[tokio::test]
async fn float_keys_have_one_nan_and_one_zero() {
    let of = |keys: Vec<f64>, v: [i64; 2]| vec![("f", Arc::new(Float64Array::from(keys)) as ArrayRef), ("v", ints(v))];
    let other_nan = f64::from_bits(f64::NAN.to_bits() | 1 << 63 | 5);
    let one = of(vec![f64::NAN, 0.0], [1, 2]);
    assert_eq!(diff(Some(&one), &of(vec![other_nan, -0.0], [1, 3]), &["f"]).await.unwrap().counts(), [0, 1, 0, 1]);
    let error = diff(Some(&one), &of(vec![0.0, -0.0], [1, 2]), &["f"]).await.err().unwrap();
    assert_eq!(error.code(), ErrorCode::KeyDuplicate);
}

#[tokio::test]
async fn nulls_compare_as_values() {
    let of = |v: [Option<&'static str>; 4]| vec![("id", ints(1..=4)), ("v", texts(v))];
    let (one, two) = (of([None, Some("x"), None, Some("y")]), of([Some("x"), None, None, Some("y")]));
    let found = diff(Some(&one), &two, &["id"]).await.unwrap();
    assert_eq!((found.counts(), found.ints("id")), ([0, 2, 0, 2], [1, 2].into()));
}

#[tokio::test]
async fn encodings_of_keys_and_values_may_change() {
    let values = ["b", "a", "a text longer than a view holds inline"].map(Some);
    let one = vec![("k", texts(values)), ("v", texts(values))];
    let dictionary =
        arrow::compute::cast(&texts(values), &DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8))).unwrap();
    let view: ArrayRef = Arc::new(StringViewArray::from_iter(values));
    let large: ArrayRef = Arc::new(LargeStringArray::from_iter(values));
    for other in [dictionary, view, large] {
        let two = vec![("v", Arc::clone(&other)), ("k", Arc::clone(&other))];
        assert_eq!(diff(Some(&one), &two, &["k"]).await.unwrap().counts(), [0, 0, 0, 3]);
        assert_eq!(diff(None, &two, &["k"]).await.unwrap().counts(), [3, 0, 0, 0]);
    }
}

#[tokio::test]
async fn maps_are_sets_and_a_repeated_map_key_is_named() {
    let of = |entries: [(&str, i32); 2]| {
        let mut builder = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
        for (key, value) in entries {
            builder.keys().append_value(key);
            builder.values().append_value(value);
        }
        builder.append(true).unwrap();
        vec![("id", ints([1])), ("v", Arc::new(builder.finish()) as ArrayRef)]
    };
    let one = of([("a", 1), ("b", 2)]);
    assert_eq!(diff(Some(&one), &of([("b", 2), ("a", 1)]), &["id"]).await.unwrap().counts(), [0, 0, 0, 1]);
    assert_eq!(diff(Some(&one), &of([("b", 3), ("a", 1)]), &["id"]).await.unwrap().counts(), [0, 1, 0, 0]);
    let error = diff(Some(&one), &of([("a", 1), ("a", 2)]), &["id"]).await.err().unwrap();
    assert_eq!(error.code(), ErrorCode::CaptureFailed);
    assert!(["key id=1", "column \"v\"", "the key \"a\""].iter().all(|part| error.message().contains(part)), "{error}");
}

#[tokio::test]
async fn a_changed_type_is_no_comparison() {
    let one = batch(&vec![("id", ints([1])), ("v", ints([1]))]);
    let two = batch(&vec![("id", ints([1])), ("v", texts([Some("1")]))]);
    let error = KeyedDiffExec::try_new(None, plan(&two, 1, 1), spec(&one, &["id"], KeyHash::Xxh3)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::SchemaChanged);
    assert!(error.message().contains("column \"v\" was Int64 and is Utf8"), "{error}");
}

#[tokio::test]
async fn only_key_columns_and_no_rows_work() {
    let one = vec![("id", ints([1, 2]))];
    assert_eq!(diff(Some(&one), &vec![("id", ints([2, 3]))], &["id"]).await.unwrap().counts(), [1, 0, 1, 1]);
    assert_eq!(diff(Some(&one), &vec![("id", ints([]))], &["id"]).await.unwrap().counts(), [0, 0, 2, 0]);
    assert_eq!(diff(None, &vec![("id", ints([]))], &["id"]).await.unwrap().counts(), [0, 0, 0, 0]);
}

#[tokio::test]
async fn thousands_of_columns_are_no_trouble() {
    let of = |last: i32| {
        let mut source: Source = vec![("id", ints([1, 2]))];
        for i in 0..2000 {
            let name: &'static str = Box::leak(format!("c{i}").into_boxed_str());
            source.push((name, Arc::new(Int32Array::from(vec![0, if i == 1999 { last } else { i }])) as ArrayRef));
        }
        source
    };
    let found = diff_as(Some(&of(0)), &of(1), &["id"], (KeyHash::Xxh3, 1, 8192)).await.unwrap();
    assert_eq!(found.counts(), [0, 1, 0, 1]);
}

#[tokio::test]
async fn a_refused_reservation_is_exhausted_resources_where_there_is_no_disk() {
    let source = batch(&vec![("id", ints(0..50_000)), ("v", ints(0..50_000))]);
    for with_index in [true, false] {
        let spec = spec(&source, &["id"], KeyHash::Xxh3);
        let index = with_index.then(|| index(&source, &spec));
        let no_disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
        let pool = Arc::new(GreedyMemoryPool::new(500_000));
        let pool = RuntimeEnvBuilder::new().with_memory_pool(pool).with_disk_manager_builder(no_disk).build_arc().unwrap();
        let context = SessionContext::new_with_config_rt(SessionConfig::new(), pool);
        let error = execute(KeyedDiffExec::try_new(index, plan(&source, 2, 8192), spec).unwrap(), &context).await.err().unwrap();
        assert_eq!(error.code(), ErrorCode::ResourcesExhausted, "{error}");
        assert_eq!(context.runtime_env().memory_pool.reserved(), 0, "everything is given back");
    }
}

#[tokio::test]
async fn an_ordered_snapshot_is_hardly_hashed() {
    let source = batch(&vec![("id", ints(0..10_000)), ("v", ints(0..10_000))]);
    let spec = spec(&source, &["id"], KeyHash::Xxh3);
    let index = index(&source, &spec);
    let diff = Arc::new(KeyedDiffExec::try_new(Some(index), plan(&source, 1, 1000), spec).unwrap());
    let rows: Vec<_> = diff.execute(0, context(8192).task_ctx()).unwrap().collect().await;
    assert!(rows.is_empty());
    let metric = |name: &str| diff.metrics().unwrap().sum_by_name(name).unwrap().as_usize();
    assert_eq!((metric("rows_unchanged"), metric("rows_scanned")), (10_000, 10_000));
    assert!(metric("key_lookups") <= 4_000, "{}", metric("key_lookups"));
}

#[tokio::test]
async fn look_ups_by_order_and_by_hash_agree() {
    // Two files whose keys interleave, a source in another order, keys on both sides of zero.
    let one = vec![("id", ints((-300..300).map(|id| id * 2).chain((-100..100).map(|id| id * 6 + 1)))), ("v", ints(0..800))];
    for step in [1, 7, 211] {
        let ids: Vec<i64> = (0..800_i64).map(|i| (i * step) % 800 - 400).collect();
        let two = vec![("id", ints(ids.clone())), ("v", ints(ids.iter().map(|_| -1)))];
        let found = diff(Some(&one), &two, &["id"]).await.unwrap();
        // Even keys in -400..400 are there; of 6k+1 those in it.
        let odd = (-100..100).filter(|k| (-400..400).contains(&(k * 6 + 1))).count() as u64;
        assert_eq!(found.counts(), [400 - odd, 400 + odd, 800 - 400 - odd, 0]);
        let texts_of = |ids: &[i64]| Arc::new(ids.iter().map(|id| Some(id.to_string())).collect::<StringArray>()) as ArrayRef;
        let all: Vec<i64> = one[0].1.as_primitive::<Int64Type>().values().to_vec();
        let (one, two) = (vec![("id", texts_of(&all))], vec![("id", texts_of(&ids))]);
        assert_eq!(diff(Some(&one), &two, &["id"]).await.unwrap().counts(), [400 - odd, 0, 400 - odd, 400 + odd]);
    }
}

#[tokio::test]
async fn a_second_execution_is_an_error_until_the_state_is_reset() {
    let source = batch(&vec![("id", ints([1])), ("v", ints([1]))]);
    let diff: Arc<dyn ExecutionPlan> =
        Arc::new(KeyedDiffExec::try_new(None, plan(&source, 1, 1), spec(&source, &["id"], KeyHash::Xxh3)).unwrap());
    let context = context(8192);
    let run = |plan: Arc<dyn ExecutionPlan>| plan.execute(0, context.task_ctx()).map(|stream| stream.try_collect::<Vec<_>>());
    assert_eq!(run(Arc::clone(&diff)).unwrap().await.unwrap().len(), 1);
    assert!(run(Arc::clone(&diff)).is_err());
    assert_eq!(run(diff.reset_state().unwrap()).unwrap().await.unwrap().len(), 1);
}

#[tokio::test]
async fn an_unfinished_diff_has_no_outcome() {
    let source = batch(&vec![("id", ints(0..10)), ("v", ints(0..10))]);
    let diff = KeyedDiffExec::try_new(None, plan(&source, 2, 1), spec(&source, &["id"], KeyHash::Xxh3)).unwrap();
    let stream = diff.execute(0, context(8192).task_ctx()).unwrap();
    assert_eq!(stream.try_collect::<Vec<_>>().await.unwrap().len(), 1);
    assert!(diff.outcome().report().is_none());
}

/// The naive model: (created, updated, deleted, unchanged), or the duplicate keys.
pub(super) fn model(before: &BTreeMap<i64, Option<bool>>, now: &[(i64, Option<bool>)]) -> std::result::Result<[u64; 4], usize> {
    let mut counts = BTreeMap::<i64, usize>::new();
    now.iter().for_each(|(id, _)| *counts.entry(*id).or_default() += 1);
    let duplicates = counts.values().filter(|count| **count > 1).count();
    if duplicates > 0 {
        return Err(duplicates);
    }
    let created = now.iter().filter(|(id, _)| !before.contains_key(id)).count();
    let unchanged = now.iter().filter(|(id, v)| before.get(id) == Some(v)).count();
    let deleted = before.keys().filter(|id| !counts.contains_key(id)).count();
    Ok([created, now.len() - created - unchanged, deleted, unchanged].map(|n| n as u64))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn the_diff_agrees_with_the_naive_model(
        before in proptest::collection::btree_map(-20..20_i64, proptest::option::of(any::<bool>()), 0..30),
        now in proptest::collection::vec((-20..20_i64, proptest::option::of(any::<bool>())), 0..12),
        as_text in any::<bool>(), partitions in 1..4_usize, rows in 1..4_usize, constant in any::<bool>(),
        pool in proptest::option::of(700..4000_usize),
    ) {
        let of = |rows: &[(i64, Option<bool>)]| {
            let key = if as_text { Arc::new(rows.iter().map(|(id, _)| Some(id.to_string())).collect::<StringArray>()) as ArrayRef } else { ints(rows.iter().map(|(id, _)| *id)) };
            vec![("id", key), ("v", Arc::new(rows.iter().map(|(_, v)| *v).collect::<BooleanArray>()) as ArrayRef)]
        };
        let old: Vec<_> = before.iter().map(|(id, v)| (*id, *v)).collect();
        let hash = if constant { KeyHash::Constant } else { KeyHash::Xxh3 };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let session = pool.map_or_else(|| context(rows), |bytes| pool_of(bytes, rows));
        let found = runtime.block_on(diff_on(&session, (Some(&of(&old)), &of(&now)), &["id"], (hash, partitions, rows)));
        match (model(&before, &now), found) {
            (Ok(counts), Ok(found)) => {
                prop_assert_eq!(found.counts(), counts);
                prop_assert_eq!(found.dead().len() as u64, counts[1] + counts[2]);
            }
            (Err(_), Err(error)) => prop_assert_eq!(error.code(), ErrorCode::KeyDuplicate),
            (expected, found) => prop_assert!(false, "{:?} against {:?}", expected, found.map(|f| f.counts())),
        }
    }
}
