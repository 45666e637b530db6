use std::sync::Mutex;

use datafusion::physical_plan::collect;

use super::*;
use crate::exec::merge::MergeExec;
use crate::exec::merge::tests::{context, leaf};
use crate::spec::{RunMode, RunState};
use crate::store::files::test_support::*;

#[derive(Debug, Default)]
struct Published(Mutex<Vec<u64>>);

#[async_trait]
impl PublishSink for Published {
    async fn publish(&self, files: Vec<DataFile>) -> Result<RunSummary> {
        self.0.lock().unwrap().push(files.iter().map(|file| file.rows).sum());
        Ok(RunSummary::new("r", RunMode::Published, RunState::Published))
    }
}

#[tokio::test]
async fn the_files_are_published_once_as_one_row() {
    let inc = incarnation().await;
    let sink = Arc::new(Published::default());
    let merge = MergeExec::new(leaf(&[vec![output_rows(0, 10)], vec![output_rows(10, 25)]]), pair_spec(&inc, 1, config()));
    let plan: Arc<dyn ExecutionPlan> = Arc::new(PublishExec::new(Arc::new(merge), Arc::clone(&sink) as _));
    let batches = collect(Arc::clone(&plan), context(1 << 20)).await.unwrap();
    assert_eq!(batches.iter().map(|b| b.num_rows()).sum::<usize>(), 1);
    assert!(collect(plan, context(1 << 20)).await.is_err(), "a second execution");
    assert_eq!(*sink.0.lock().unwrap(), [25]);
}

#[tokio::test]
async fn nothing_is_published_when_writing_fails() {
    let inc = incarnation().await;
    let sink = Arc::new(Published::default());
    let merge = MergeExec::new(leaf(&[vec![output_rows(0, 10)]]), pair_spec(&inc, 1, config()));
    let plan = PublishExec::new(Arc::new(merge), Arc::clone(&sink) as _);
    assert!(collect(Arc::new(plan), context(4)).await.is_err());
    assert!(sink.0.lock().unwrap().is_empty());
}
