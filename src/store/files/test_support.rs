//! Tables, rows and readers for tests.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::compute::concat_batches;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::execution::object_store::ObjectStoreUrl;
use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::path::Path;
use parquet::basic::{Compression, ZstdLevel};

use super::*;
use crate::env::{DurableLocalStore, Env, Location};
use crate::store::{Incarnation, ObjectRef, TableStore};

/// A new table in memory.
pub(crate) async fn incarnation() -> Incarnation {
    incarnation_on("memory://", Arc::new(InMemory::new()), Path::from("t")).await
}

/// A new table in a folder of the local disk.
pub(crate) async fn local_incarnation(folder: &std::path::Path) -> Incarnation {
    incarnation_on("file://", Arc::new(DurableLocalStore::new()), Path::from_absolute_path(folder).unwrap().join("t")).await
}

async fn incarnation_on(url: &str, store: Arc<dyn ObjectStore>, root: Path) -> Incarnation {
    let location = Location { store_url: ObjectStoreUrl::parse(url).unwrap(), store, root };
    TableStore::new(Env::default(), location).create("t").await.unwrap()
}

pub(crate) fn config() -> WriterConfig {
    WriterConfig { row_group_rows: 1000, target_file_rows: 1_000_000, compression: Compression::ZSTD(ZstdLevel::try_new(1).unwrap()) }
}

pub(crate) fn output_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true), Field::new("name", DataType::Utf8, true)]))
}

pub(crate) fn pair_spec(incarnation: &Incarnation, version: u64, config: WriterConfig) -> Arc<PairSpec> {
    let dir = format!("data/r/{version}");
    Arc::new(PairSpec { incarnation: incarnation.clone(), dir, output_schema: output_schema(), key: vec!["id".into()], version, config })
}

/// Rows `from..to`: id, name, and hidden columns that follow from the id.
pub(crate) fn output_rows(from: i64, to: i64) -> RecordBatch {
    let ids: Vec<i64> = (from..to).collect();
    let names: StringArray = ids.iter().map(|id| Some(format!("name {id}"))).collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from(ids.clone()))),
        ("name", Arc::new(names)),
        (FP_HI, Arc::new(ids.iter().map(|id| id.wrapping_mul(-7_046_029_254_386_353_131)).collect::<Int64Array>())),
        (FP_LO, Arc::new(ids.iter().map(|id| -id).collect::<Int64Array>())),
        (SRC, Arc::new(Int32Array::from_value(-1, ids.len()))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

pub(crate) fn reservation(bytes: usize) -> (Arc<dyn MemoryPool>, MemoryReservation) {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(bytes));
    let reservation = MemoryConsumer::new("test").register(&pool);
    (pool, reservation)
}

/// Every row of an object, verified.
pub(crate) async fn read(incarnation: &Incarnation, object: &ObjectRef, schema: &SchemaRef) -> RecordBatch {
    verify_object(incarnation, object).await.unwrap();
    let batches: Vec<RecordBatch> = open_rows(incarnation, object, schema, 777, None).await.unwrap().try_collect().await.unwrap();
    concat_batches(schema, &batches).unwrap()
}

/// The paths below the incarnation's folder `dir`.
pub(crate) async fn listed(incarnation: &Incarnation, dir: &str) -> Vec<String> {
    let store = &incarnation.store().location().store;
    let metas: Vec<_> = store.list(Some(&incarnation.path(dir))).try_collect().await.unwrap();
    metas.into_iter().map(|meta| meta.location.to_string()).collect()
}

pub(crate) fn int64<'a>(batch: &'a RecordBatch, name: &str) -> &'a Int64Array {
    batch.column_by_name(name).unwrap().as_any().downcast_ref().unwrap()
}
