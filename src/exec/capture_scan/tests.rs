use datafusion::physical_plan::collect;
use object_store::ObjectStoreExt;

use super::*;
use crate::error::ErrorCode;
use crate::exec::merge::tests::context;
use crate::store::files::ChangesWriter;
use crate::store::files::test_support::*;

async fn written(incarnation: &Incarnation) -> Vec<ObjectRef> {
    let (_pool, reservation) = reservation(usize::MAX);
    let stem = "runs/r/1/capture/p".to_string();
    let config = crate::store::files::WriterConfig { target_file_rows: 1500, ..config() };
    let mut writer = ChangesWriter::new(incarnation, stem, output_rows(0, 0).schema(), config, reservation);
    writer.write(&output_rows(0, 2000)).await.unwrap();
    writer.write(&output_rows(2000, 4000)).await.unwrap();
    writer.finish().await.unwrap()
}

async fn scan_error(incarnation: &Incarnation, objects: &[ObjectRef]) -> Option<ErrorCode> {
    let plan = capture_scan(incarnation, objects, output_rows(0, 0).schema());
    Error::find(&collect(plan, context(1 << 20)).await.unwrap_err()).map(|e| e.code())
}

#[tokio::test]
async fn a_capture_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    for inc in [incarnation().await, local_incarnation(folder.path()).await] {
        let objects = written(&inc).await;
        assert_eq!(objects.len(), 3);
        let schema = output_rows(0, 0).schema();
        let mut rows = Vec::new();
        for object in &objects {
            let plan = capture_scan(&inc, std::slice::from_ref(object), Arc::clone(&schema));
            rows.extend(collect(plan, context(1 << 20)).await.unwrap());
        }
        assert_eq!(arrow::compute::concat_batches(&schema, &rows).unwrap(), output_rows(0, 4000));
        let none = capture_scan(&inc, &[], schema);
        assert_eq!(collect(none, context(1 << 20)).await.unwrap().iter().map(|b| b.num_rows()).sum::<usize>(), 0);
    }
}

#[tokio::test]
async fn a_damaged_capture_is_corrupt_and_a_lost_one_is_missing() {
    let inc = incarnation().await;
    let objects = written(&inc).await;
    let store = &inc.store().location().store;
    let path = inc.path(&objects[0].path);
    let mut bytes = store.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    store.put(&path, bytes.into()).await.unwrap();
    assert_eq!(scan_error(&inc, &objects).await, Some(ErrorCode::Corrupt));
    store.delete(&path).await.unwrap();
    assert_eq!(scan_error(&inc, &objects).await, Some(ErrorCode::HistoryMissing));
}
