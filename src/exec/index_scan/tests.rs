use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{AsArray, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{UInt32Type, UInt64Type};
use arrow_schema::{DataType, Schema};
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::{StatisticsContext, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use parquet::arrow::ArrowWriter;
use roaring::RoaringTreemap;

use super::*;
use crate::env::{Env, Location};
use crate::exec::keyed_diff::{FILE, ROW, VERSION, hidden_fields};
use crate::store::{DeletionVectorRef, TableStore, deletion_vector};

fn key() -> [Field; 1] {
    [Field::new("k", DataType::Utf8, true)]
}

async fn incarnation() -> Incarnation {
    let location = Location { store_url: ObjectStoreUrl::local_filesystem(), store: Arc::new(InMemory::new()), root: "t".into() };
    TableStore::new(Env::default(), location).create("t").await.unwrap()
}

/// An index file with the keys `names`, of which the rows `dead` are dead.
async fn data_file(incarnation: &Incarnation, name: &str, names: &[&str], dead: &[u64]) -> DataFile {
    let rows = names.len();
    let mut fields = key().to_vec();
    fields.extend(hidden_fields());
    fields.push(Field::new(VERSION, DataType::Int64, false));
    let schema = Arc::new(Schema::new(fields));
    let batch = RecordBatch::try_new(
        Arc::clone(&schema),
        vec![
            Arc::new(StringArray::from(names.to_vec())),
            Arc::new(Int64Array::from_iter_values(0..rows as i64)),
            Arc::new(Int64Array::from_value(-1, rows)),
            Arc::new(Int32Array::from_value(7, rows)),
            Arc::new(Int64Array::from_value(1, rows)),
        ],
    );
    let mut writer = ArrowWriter::try_new(Vec::new(), schema, None).unwrap();
    writer.write(&batch.unwrap()).unwrap();
    let index = incarnation.write_object(&format!("{name}.index.parquet"), writer.into_inner().unwrap().into()).await.unwrap();
    let mut deletions = None;
    if !dead.is_empty() {
        let bytes = deletion_vector::encode(&dead.iter().copied().collect::<RoaringTreemap>()).unwrap();
        let object = incarnation.write_object(&format!("{name}.dv"), bytes).await.unwrap();
        deletions = Some(DeletionVectorRef { object, rows: dead.len() as u64 });
    }
    let added_in = serde_json::from_str("1").unwrap();
    DataFile { data: index.clone(), index, rows: rows as u64, deletions, added_in, bounds: BTreeMap::new(), sources: vec![] }
}

/// The rows, the same whether a file is read as a whole or, in a small pool, in parts.
async fn scan(incarnation: &Incarnation, files: Vec<DataFile>) -> Result<Vec<(String, u32, u64)>> {
    let small = files.iter().map(|file| fetched_bytes(file, Extent::Whole, &Scope::All)).min().unwrap_or(2) * 2 - 2;
    let pool = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(GreedyMemoryPool::new(small * files.len().max(1)))).build_arc().unwrap();
    let parts = scan_in(incarnation, files.clone(), SessionContext::new_with_config_rt(SessionConfig::new(), pool)).await;
    let whole = scan_in(incarnation, files, SessionContext::new()).await;
    assert_eq!(parts.as_ref().map_err(Error::code), whole.as_ref().map_err(Error::code));
    whole
}

async fn scan_in(incarnation: &Incarnation, files: Vec<DataFile>, context: SessionContext) -> Result<Vec<(String, u32, u64)>> {
    let plan = Arc::new(IndexScanExec::new(incarnation.clone(), Arc::new(files), &key()));
    let batches = collect(plan, context.task_ctx()).await;
    let batches = batches.map_err(|error| Error::from_datafusion(error, ErrorCode::Internal, "test"))?;
    let mut rows = Vec::new();
    for batch in &batches {
        let file = batch.column_by_name(FILE).unwrap().as_primitive::<UInt32Type>();
        let row = batch.column_by_name(ROW).unwrap().as_primitive::<UInt64Type>();
        let keys = batch.column(0).as_string::<i32>();
        rows.extend((0..batch.num_rows()).map(|i| (keys.value(i).to_string(), file.value(i), row.value(i))));
    }
    rows.sort();
    Ok(rows)
}

#[tokio::test]
async fn live_rows_come_with_file_and_physical_row() {
    let incarnation = incarnation().await;
    let files = vec![
        data_file(&incarnation, "a", &["p", "q", "r", "s"], &[0, 2]).await,
        data_file(&incarnation, "b", &["t"], &[0]).await,
        data_file(&incarnation, "c", &["u", "v"], &[]).await,
    ];
    let plan = IndexScanExec::new(incarnation.clone(), Arc::new(files.clone()), &key());
    let statistics = StatisticsContext::new().compute(&plan, &StatisticsArgs::new()).unwrap();
    assert_eq!(statistics.num_rows, Precision::Exact(4));
    let found = scan(&incarnation, files).await.unwrap();
    let expected = [("q", 0, 1), ("s", 0, 3), ("u", 2, 0), ("v", 2, 1)].map(|(key, file, row)| (key.to_string(), file, row));
    assert_eq!(found, expected);
    assert!(scan(&incarnation, Vec::new()).await.unwrap().is_empty());
}

#[tokio::test]
async fn damage_is_found_before_a_row_is_believed() {
    let incarnation = incarnation().await;
    let file = data_file(&incarnation, "a", &["p", "q"], &[1]).await;
    let code = |file: DataFile| {
        let incarnation = incarnation.clone();
        async move { scan(&incarnation, vec![file]).await.unwrap_err().code() }
    };
    assert_eq!(code(DataFile { rows: 3, ..file.clone() }).await, ErrorCode::Corrupt);
    let mut counted = file.clone();
    counted.deletions.iter_mut().for_each(|vector| vector.rows = 2);
    assert_eq!(code(counted).await, ErrorCode::Corrupt);
    let mut changed = file.clone();
    changed.index.hash = "0".repeat(64);
    assert_eq!(code(changed).await, ErrorCode::Corrupt);
    let store = &incarnation.store().location().store;
    store.delete(&incarnation.path(&file.index.path)).await.unwrap();
    assert_eq!(code(file).await, ErrorCode::HistoryMissing);
}
