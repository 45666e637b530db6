//! Rows that are left out of the diff, in every mode: new keys are compared with theirs, and moves between files are seen.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, UInt32Array, UInt64Array};
use arrow_schema::Field;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};
use datafusion::prelude::SessionContext;

use super::tests::{Source, batch, context, execute, ints, plan, pool_of, spec};
use super::*;

const ROWS: i64 = 40_000;
const FILES: i64 = 8;

/// Row `id` of file `id % FILES`.
fn file(id: i64) -> i32 {
    (id % FILES) as i32
}

fn rows(ids: &[i64], files: impl Fn(i64) -> i32) -> Source {
    let ordinals: Int32Array = ids.iter().map(|id| files(*id)).collect();
    vec![("id", ints(ids.iter().copied())), ("v", ints(ids.iter().map(|id| id * 3))), (SRC, Arc::new(ordinals))]
}

/// The index after these rows were published from their files.
fn index_of(source: &RecordBatch, spec: &DiffSpec) -> RecordBatch {
    let column = |name: &str| Arc::clone(source.column_by_name(name).unwrap());
    let mut fingerprints = Vec::new();
    spec.fingerprinter.fingerprint_rows(&[column("v")], source.num_rows(), &mut fingerprints).unwrap();
    let halves: (Vec<i64>, Vec<i64>) = fingerprints.iter().map(|f| columns::split_fingerprint(*f)).unzip();
    let arrays: Vec<ArrayRef> = vec![
        column("id"),
        Arc::new(Int64Array::from(halves.0)),
        Arc::new(Int64Array::from(halves.1)),
        column(SRC),
        Arc::new(UInt32Array::from_value(0, source.num_rows())),
        Arc::new(UInt64Array::from_iter_values(0..source.num_rows() as u64)),
    ];
    RecordBatch::try_new(index_scan_schema(&spec.key), arrays).unwrap()
}

/// The diff of `now` against rows 0..ROWS, whose files in `skipped` are left out.
async fn diff(session: &SessionContext, skipped: &[i32], now: &Source, (hash, partitions): (KeyHash, usize)) -> Result<DiffReport> {
    let before = |wanted: bool| {
        let ids: Vec<i64> = (0..ROWS).filter(|id| skipped.contains(&file(*id)) != wanted).collect();
        batch(&rows(&ids, file))
    };
    let now = batch(now);
    let mut spec = spec(&now.project(&[0, 1]).unwrap(), &["id"], hash);
    spec.source_ordinals = Some(SRC.to_string());
    let ranges = Arc::new(KeyRanges::new(&spec.key));
    let (inside, outside) = (plan(&index_of(&before(true), &spec), 2, 1000), plan(&index_of(&before(false), &spec), 3, 1000));
    let source: Arc<dyn ExecutionPlan> = plan(&now, partitions, 1000);
    let diff = KeyedDiffExec::try_new(Some(inside), source, spec)?;
    execute(diff.with_outside(outside, ranges), session).await.map(|found| found.report)
}

fn sessions() -> [(&'static str, SessionContext); 3] {
    [("in memory", context(8192)), ("in buckets", pool_of(500_000, 8192)), ("tight", pool_of(220_000, 8192))]
}

#[tokio::test]
async fn a_new_key_of_a_row_outside_is_a_duplicate_in_every_mode() {
    let skipped = [2, 5, 7];
    for (mode, session) in sessions() {
        for shape in [(KeyHash::Xxh3, 1), (KeyHash::Xxh3, 4)] {
            let stays: Vec<i64> = (0..ROWS).filter(|id| !skipped.contains(&file(*id)) && id % 4_000 != 0).collect();
            let now: Vec<i64> = stays.iter().copied().chain(ROWS..ROWS + 9_000).collect();
            let report = diff(&session, &skipped, &rows(&now, file), shape).await.unwrap();
            let counts = [report.created, report.updated, report.deleted, report.unchanged];
            assert_eq!(counts, [9_000, 0, 10, stays.len() as u64], "{mode}, {shape:?}");
            assert_eq!(report.origins, Origins::default(), "{mode}");
            // Rows of files 2 and 7 turn up elsewhere; one of them twice.
            let now: Vec<i64> = now.into_iter().chain([2, 79, 79, 39_999]).collect();
            let error = diff(&session, &skipped, &rows(&now, |_| 0), shape).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::KeyDuplicate, "{mode}");
            for part in ["3 keys occur", "id=2 (count 2)", "id=39999 (count 2)", "id=79 (count 3)"] {
                assert!(error.message().contains(part), "{mode}: {error}");
            }
            assert_eq!(session.runtime_env().memory_pool.reserved(), 0);
        }
    }
    let now: Vec<i64> = (0..2_000).filter(|id| !skipped.contains(&file(*id))).chain([5]).collect();
    let error = diff(&context(8192), &skipped, &rows(&now, |_| 0), (KeyHash::Constant, 2)).await.unwrap_err();
    assert!(error.message().contains("1 key occurs") && error.message().contains("id=5 (count 2)"), "{error}");
}

#[tokio::test]
async fn a_row_that_moves_makes_both_files_inexact_in_every_mode() {
    for (mode, session) in sessions() {
        let now: Vec<i64> = (0..ROWS).filter(|id| file(*id) != 6).collect();
        // An unchanged row of file 3 lies in file 4; a changed one of file 1 lies in file 0, and is written anew.
        let mut moved = rows(&now, |id| {
            if id == 3 {
                4
            } else if id == 9 {
                0
            } else {
                file(id)
            }
        });
        moved[1].1 = ints(now.iter().map(|id| if *id == 9 { -1 } else { id * 3 }));
        let report = diff(&session, &[6], &moved, (KeyHash::Xxh3, 4)).await.unwrap();
        let inexact = BTreeSet::from([3, 4]);
        assert_eq!((report.updated, report.origins), (1, Origins { inexact, unknown: false }), "{mode}");
        let report = diff(&session, &[6], &rows(&now, |id| if id == 3 { -1 } else { file(id) }), (KeyHash::Xxh3, 4)).await.unwrap();
        assert!(report.origins.unknown && !report.origins.is_exact(0), "{mode}");
    }
}

#[tokio::test]
async fn without_ordinals_no_file_is_exact() {
    let now = batch(&rows(&[1, 2], file)).project(&[0, 1]).unwrap();
    let diff = KeyedDiffExec::try_new(None, plan(&now, 1, 10), spec(&now, &["id"], KeyHash::Xxh3)).unwrap();
    let report = execute(diff, &context(8192)).await.unwrap().report;
    assert!(report.origins.unknown);
}

#[test]
fn children_are_replaced_with_the_rows_outside() {
    let now = batch(&rows(&[1, 2], file));
    let spec = spec(&now.project(&[0, 1]).unwrap(), &["id"], KeyHash::Xxh3);
    let index = || plan(&index_of(&now, &spec), 1, 10);
    let ranges = Arc::new(KeyRanges::new(&[Field::new("id", arrow_schema::DataType::Int64, true)]));
    let diff = KeyedDiffExec::try_new(Some(index()), plan(&now, 1, 10), spec.clone()).unwrap().with_outside(index(), ranges);
    let diff: Arc<dyn ExecutionPlan> = Arc::new(diff);
    let children: Vec<_> = diff.children().into_iter().cloned().collect();
    assert_eq!(children.len(), 3);
    let replace = |children| Arc::clone(&diff).replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute));
    let again = replace(children.clone()).unwrap();
    assert!(again.children().into_iter().zip(&children).all(|(a, b)| Arc::ptr_eq(a, b)));
    assert!(replace(children[1..].to_vec()).is_err());
}
