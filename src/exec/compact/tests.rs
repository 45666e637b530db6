use std::collections::BTreeMap;

use datafusion::physical_plan::collect;

use super::*;
use crate::error::ErrorCode;
use crate::exec::merge::MergeExec;
use crate::exec::merge::tests::{context, leaf, run};
use crate::store::dead::apply_dead;
use crate::store::files::test_support::*;

/// Versions 1 (rows 0..3000) and 2 (rows 3000..3100), then every third row of version 1 dead.
async fn files(inc: &Incarnation) -> Vec<DataFile> {
    let mut files = Vec::new();
    for (version, from, to) in [(1, 0, 3000), (2, 3000, 3100)] {
        let merge = MergeExec::new(leaf(&[vec![output_rows(from, to)]]), pair_spec(inc, version, config()));
        files.extend(run(Arc::new(merge), 1 << 22).await.unwrap());
    }
    let dead = BTreeMap::from([(0, (0..3000).filter(|row| row % 3 == 0).collect())]);
    apply_dead(inc, "data/r/3", &files, &dead).await.unwrap()
}

#[tokio::test]
async fn only_live_rows_come_through_with_their_own_versions() {
    let inc = incarnation().await;
    let live: i64 = 2000 + 100;
    for partitions in [1, 2, 9] {
        let scan = CompactExec::new(inc.clone(), files(&inc).await, output_schema()).with_partitions(partitions);
        let merge = MergeExec::new(Arc::new(scan), pair_spec(&inc, 4, config()));
        let compacted = run(Arc::new(merge), 1 << 22).await.unwrap();
        assert_eq!(compacted.len(), partitions.min(2));
        let mut seen = 0;
        for file in &compacted {
            assert_eq!((file.added_in, &file.deletions), (4, &None));
            let data = read(&inc, &file.data, &output_schema()).await;
            let index = read(&inc, &file.index, &pair_spec(&inc, 4, config()).index_schema().unwrap()).await;
            for row in 0..data.num_rows() {
                let id = int64(&data, "id").value(row);
                assert!(id >= 3000 || id % 3 != 0);
                assert_eq!(int64(&index, "id").value(row), id);
                assert_eq!(int64(&index, FP_LO).value(row), -id);
                assert_eq!(int64(&index, VERSION).value(row), if id < 3000 { 1 } else { 2 });
                seen += 1;
            }
        }
        assert_eq!(seen, live);
    }
}

#[tokio::test]
async fn files_that_do_not_belong_together_are_refused() {
    let inc = incarnation().await;
    let mut files = files(&inc).await;
    files[0].index = files[1].index.clone();
    let plan = Arc::new(CompactExec::new(inc, files, output_schema()));
    let error = collect(plan, context(1 << 20)).await.unwrap_err();
    assert_eq!(Error::find(&error).map(|e| e.code()), Some(ErrorCode::Corrupt));
}

#[tokio::test]
async fn files_in_key_order_are_read_as_one_sequence() {
    let inc = incarnation().await;
    let mut files = Vec::new();
    // Interleaved: the second file's keys lie among those of the first.
    let odd = filter(&output_rows(0, 3000), |id| id % 2 == 1);
    let even = filter(&output_rows(500, 700), |id| id % 2 == 0);
    for (version, rows) in [(1, odd), (2, even)] {
        files.extend(run(Arc::new(MergeExec::new(leaf(&[vec![rows]]), pair_spec(&inc, version, config()))), 1 << 22).await.unwrap());
    }
    let key = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true)]));
    assert!(are_in_key_order(&inc, &files, &key).await.unwrap());
    let plan = in_key_order(CompactExec::new(inc.clone(), files.clone(), output_schema()), &["id".to_string()]).unwrap();
    let merged = run(Arc::new(MergeExec::new(plan, pair_spec(&inc, 3, config()))), 1 << 22).await.unwrap();
    assert!(are_in_key_order(&inc, &merged, &key).await.unwrap());
    assert_eq!(merged.iter().map(|file| file.rows).sum::<u64>(), 1500 + 100);
    let index = read(&inc, &merged[0].index, &pair_spec(&inc, 3, config()).index_schema().unwrap()).await;
    for row in 0..index.num_rows() {
        let id = int64(&index, "id").value(row);
        assert_eq!(int64(&index, VERSION).value(row), if id % 2 == 1 { 1 } else { 2 });
        assert_eq!(int64(&index, FP_LO).value(row), -id);
    }
    // One after the other they are in no order.
    let appended = CompactExec::new(inc.clone(), files, output_schema());
    let appended = run(Arc::new(MergeExec::new(Arc::new(appended), pair_spec(&inc, 4, config()))), 1 << 22).await.unwrap();
    assert!(!are_in_key_order(&inc, &appended, &key).await.unwrap());
}

fn filter(rows: &RecordBatch, keep: impl Fn(i64) -> bool) -> RecordBatch {
    let mask: arrow::array::BooleanArray = int64(rows, "id").iter().map(|id| id.map(&keep)).collect();
    arrow::compute::filter_record_batch(rows, &mask).unwrap()
}
