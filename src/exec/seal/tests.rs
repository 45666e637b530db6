use std::sync::Mutex;

use datafusion::physical_plan::collect;

use super::*;
use crate::exec::merge::tests::{context, leaf};
use crate::store::files::test_support::*;

#[derive(Debug, Default)]
struct Sealed(Mutex<Vec<Vec<ObjectRef>>>);

#[async_trait]
impl SealSink for Sealed {
    async fn seal(&self, changes: Vec<ObjectRef>, _rows: u64) -> Result<u64> {
        self.0.lock().unwrap().push(changes);
        Ok(42)
    }
}

#[tokio::test]
async fn the_sink_gets_every_file_once() {
    let inc = incarnation().await;
    let sink = Arc::new(Sealed::default());
    let input = leaf(&[vec![output_rows(0, 10)], vec![], vec![output_rows(10, 3000)]]);
    let schema = input.schema();
    let plan = Arc::new(SealExec::new(input, inc.clone(), "runs/r/1/capture".into(), config(), Arc::clone(&sink) as _));
    let batches = collect(Arc::clone(&plan) as _, context(1 << 20)).await.unwrap();
    let rows = batches[0].column(0).as_any().downcast_ref::<UInt64Array>().unwrap();
    assert_eq!(rows.values().as_ref(), [42]);
    let calls = sink.0.lock().unwrap().clone();
    let [changes] = calls.as_slice() else { panic!("sealed {} times", calls.len()) };
    assert_eq!(changes.len(), 2);
    assert_eq!(read(&inc, &changes[1], &schema).await, output_rows(10, 3000));
    assert!(collect(plan, context(1 << 20)).await.is_err(), "a second execution");
}

#[tokio::test]
async fn a_failing_writer_seals_nothing() {
    let inc = incarnation().await;
    let sink = Arc::new(Sealed::default());
    let plan = SealExec::new(leaf(&[vec![output_rows(0, 10)]]), inc, "runs/r/1/capture".into(), config(), Arc::clone(&sink) as _);
    assert!(collect(Arc::new(plan), context(4)).await.is_err());
    assert!(sink.0.lock().unwrap().is_empty());
}
