use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{Field, Schema};
use datafusion::common::ScalarValue;

use super::test_support::*;
use super::*;
use crate::error::ErrorCode;

async fn write_all(spec: &Arc<PairSpec>, batches: &[RecordBatch], memory: usize) -> crate::error::Result<Vec<crate::store::DataFile>> {
    let (pool, reservation) = reservation(memory);
    let mut writer = PairWriter::new(Arc::clone(spec), "p".into(), reservation)?.with_limit(share_of(pool.as_ref(), 1));
    for batch in batches {
        writer.write(batch).await?;
    }
    let files = writer.finish().await;
    assert_eq!(pool.reserved(), 0, "everything is given back");
    files
}

#[tokio::test]
async fn a_pair_has_the_same_rows_in_the_same_order() {
    let folder = tempfile::tempdir().unwrap();
    for inc in [incarnation().await, local_incarnation(folder.path()).await] {
        let spec = pair_spec(&inc, 7, WriterConfig { target_file_rows: 2500, ..config() });
        let files = write_all(&spec, &[output_rows(0, 1), output_rows(1, 9001)], usize::MAX).await.unwrap();
        assert_eq!(files.iter().map(|f| f.rows).collect::<Vec<_>>(), [2500, 2500, 2500, 1501]);
        let mut expected = 0..;
        for file in &files {
            let data = read(&inc, &file.data, &spec.output_schema).await;
            let index = read(&inc, &file.index, &spec.index_schema().unwrap()).await;
            assert_eq!(int64(&data, "id"), int64(&index, "id"));
            for row in 0..data.num_rows() {
                let id = expected.next().unwrap();
                assert_eq!(int64(&data, "id").value(row), id);
                assert_eq!(int64(&index, FP_LO).value(row), -id);
            }
            assert!(int64(&index, VERSION).iter().all(|v| v == Some(7)));
        }
        assert_eq!(listed(&inc, "data/r/7").await.len(), 8);
    }
}

#[tokio::test]
async fn a_tiny_pool_makes_small_row_groups_and_none_is_exhausted() {
    let inc = incarnation().await;
    let spec = pair_spec(&inc, 1, WriterConfig { row_group_rows: 1_000_000, ..config() });
    let files = write_all(&spec, &[output_rows(0, 60_000)], 300 << 10).await.unwrap();
    assert_eq!(files.iter().map(|f| f.rows).sum::<u64>(), 60_000);
    let error = write_all(&pair_spec(&inc, 2, config()), &[output_rows(0, 10)], 8).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ResourcesExhausted);
    assert!(listed(&inc, "data/r/2").await.is_empty());
}

#[tokio::test]
async fn no_rows_no_file() {
    let inc = incarnation().await;
    assert!(write_all(&pair_spec(&inc, 1, config()), &[output_rows(0, 0)], usize::MAX).await.unwrap().is_empty());
    assert!(listed(&inc, "data").await.is_empty());
}

#[tokio::test]
async fn bounds_hold_for_every_row() {
    let inc = incarnation().await;
    let id: ArrayRef = Arc::new(Int64Array::from(vec![3, -5, 9]));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::clone(&id)),
        ("nan", Arc::new(Float64Array::from(vec![1.0, f64::NAN, 2.0]))),
        ("float", Arc::new(Float64Array::from(vec![Some(1.5), None, Some(-0.0)]))),
        ("text", Arc::new(StringArray::from(vec![Some("b".repeat(100)), None, Some("ä".into())]))),
        ("flag", Arc::new(BooleanArray::from(vec![None, Some(true), Some(false)]))),
        ("money", Arc::new(Decimal128Array::from(vec![Some(-5), Some(12), None]).with_precision_and_scale(10, 2).unwrap())),
        ("empty", Arc::new(Int64Array::from(vec![None; 3]))),
    ];
    let data = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap();
    let hidden = output_rows(0, 3).project(&[2, 3, 4]).unwrap();
    let fields: Vec<_> = data.schema().fields().iter().chain(hidden.schema().fields()).cloned().collect();
    let all = data.columns().iter().chain(hidden.columns()).cloned().collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), all).unwrap();
    // One row in each row group: the bounds are folded.
    let config = WriterConfig { row_group_rows: 1, ..config() };
    let spec = PairSpec { output_schema: data.schema(), ..pair_spec(&inc, 1, config).as_ref().clone() };
    let files = write_all(&Arc::new(spec), &[batch], usize::MAX).await.unwrap();

    let bounds = |name: &str| files[0].bounds.get(name).unwrap();
    let range = |name: &str| decode_range(bounds(name).range.as_ref().unwrap()).unwrap();
    assert_eq!(range("id"), (ScalarValue::from(-5_i64), ScalarValue::from(9_i64)));
    assert_eq!(bounds("nan").range, None, "NaN is above every number");
    assert_eq!(range("float"), (ScalarValue::from(-0.0_f64), ScalarValue::from(1.5_f64)));
    assert_eq!(range("flag"), (ScalarValue::from(false), ScalarValue::from(true)));
    assert_eq!(range("money"), (ScalarValue::Decimal128(Some(-5), 10, 2), ScalarValue::Decimal128(Some(12), 10, 2)));
    let (min, max) = range("text");
    assert!(min <= ScalarValue::from("b".repeat(100)) && max >= ScalarValue::from("ä"));
    assert_eq!(bounds("empty").range, None);
    let nulls = |name: &str| bounds(name).nulls;
    assert_eq!([nulls("id"), nulls("nan"), nulls("float"), nulls("text"), nulls("empty")], [Some(0), Some(0), Some(1), Some(1), Some(3)]);
}

#[tokio::test]
async fn floating_point_columns_have_no_bounds_in_the_file() {
    let schema = Schema::new(vec![
        Field::new("id", arrow_schema::DataType::Int64, true),
        Field::new("x", arrow_schema::DataType::Float64, true),
        Field::new("h", arrow_schema::DataType::Float16, true),
    ]);
    let properties = config().data(&schema, &["id".into()], &[]).unwrap();
    let enabled = |name: &str| properties.statistics_enabled(&parquet::schema::types::ColumnPath::from(name));
    use parquet::file::properties::EnabledStatistics::{None, Page};
    assert_eq!([enabled("id"), enabled("x"), enabled("h")], [Page, None, None]);
}

#[tokio::test]
async fn nested_keys_and_columns_are_written() {
    let inc = incarnation().await;
    let inner: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let nested = arrow::array::StructArray::from(vec![(Arc::new(Field::new("a", arrow_schema::DataType::Int64, true)), inner)]);
    let data = RecordBatch::try_from_iter_with_nullable([("k", Arc::new(nested) as ArrayRef, true)]).unwrap();
    let hidden = output_rows(0, 2).project(&[2, 3, 4]).unwrap();
    let fields: Vec<_> = data.schema().fields().iter().chain(hidden.schema().fields()).cloned().collect();
    let batch =
        RecordBatch::try_new(Arc::new(Schema::new(fields)), data.columns().iter().chain(hidden.columns()).cloned().collect()).unwrap();
    let spec = PairSpec { output_schema: data.schema(), key: vec!["k".into()], ..pair_spec(&inc, 1, config()).as_ref().clone() };
    let files = write_all(&Arc::new(spec), &[batch], usize::MAX).await.unwrap();
    assert_eq!(read(&inc, &files[0].data, &data.schema()).await, data);
    assert!(files[0].bounds.is_empty());
}
