use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::catalog::memory::MemorySourceConfig;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};

use super::*;
use crate::error::ErrorCode;
use crate::store::files::test_support::*;

/// A leaf with these partitions.
pub(crate) fn leaf(partitions: &[Vec<RecordBatch>]) -> Arc<dyn ExecutionPlan> {
    MemorySourceConfig::try_new_exec(partitions, output_rows(0, 0).schema(), None).unwrap()
}

pub(crate) fn context(memory: usize) -> Arc<TaskContext> {
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(GreedyMemoryPool::new(memory))).build_arc().unwrap();
    SessionContext::new_with_config_rt(SessionConfig::new(), runtime).task_ctx()
}

pub(crate) async fn run(plan: Arc<dyn ExecutionPlan>, memory: usize) -> DfResult<Vec<DataFile>> {
    let batches = collect(plan, context(memory)).await?;
    Ok(batches.iter().flat_map(|batch| decode_file_list(batch).unwrap()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_partition_writes_and_empty_ones_do_not() {
    let inc = incarnation().await;
    let input = leaf(&[vec![output_rows(0, 100), output_rows(100, 5000)], vec![], vec![output_rows(5000, 9000)], vec![output_rows(0, 0)]]);
    let plan = Arc::new(MergeExec::new(input, pair_spec(&inc, 3, config())));
    // Two writers share little memory.
    let files = run(Arc::clone(&plan) as _, 1 << 20).await.unwrap();
    assert_eq!(files.iter().map(|f| f.rows).collect::<Vec<_>>(), [5000, 4000]);
    assert_eq!(listed(&inc, "data").await.len(), 4);
    let metric = |name: &str| plan.metrics().unwrap().sum_by_name(name).map(|m| m.as_usize());
    assert_eq!(metric("rows_written"), Some(9000));
    let bytes = files.iter().map(|f| usize::try_from(f.data.bytes + f.index.bytes).unwrap()).sum();
    assert_eq!(metric("bytes_written"), Some(bytes));
}

#[tokio::test]
async fn no_rows_make_no_files_and_nothing_happens_before_the_first_poll() {
    let inc = incarnation().await;
    let idle = Arc::new(MergeExec::new(leaf(&[vec![output_rows(0, 10)]]), pair_spec(&inc, 1, config())));
    drop(idle.execute(0, context(1 << 20)).unwrap());
    let empty = Arc::new(MergeExec::new(leaf(&[vec![], vec![]]), pair_spec(&inc, 1, config())));
    assert!(run(empty, 1 << 20).await.unwrap().is_empty());
    assert!(listed(&inc, "data").await.is_empty());
}

#[tokio::test]
async fn it_acts_once_and_reset_renews_it() {
    let inc = incarnation().await;
    let plan: Arc<dyn ExecutionPlan> = Arc::new(MergeExec::new(leaf(&[vec![output_rows(0, 10)]]), pair_spec(&inc, 1, config())));
    assert_eq!(run(Arc::clone(&plan), 1 << 20).await.unwrap().len(), 1);
    let error = run(Arc::clone(&plan), 1 << 20).await.unwrap_err();
    assert_eq!(Error::find(&error).map(|e| e.code()), Some(ErrorCode::Internal));
    let renewed = plan.reset_state().unwrap();
    assert_eq!(displayable(renewed.as_ref()).one_line().to_string().trim(), "MergeExec: table=t, version=1, dir=data/r/1, key=[id]");
    assert_eq!(run(renewed, 1 << 20).await.unwrap().len(), 1);
}

#[tokio::test]
async fn memory_that_does_not_suffice_for_a_row_is_exhausted() {
    let inc = incarnation().await;
    let plan = Arc::new(MergeExec::new(leaf(&[vec![output_rows(0, 10)]]), pair_spec(&inc, 1, config())));
    let error = run(plan, 4).await.unwrap_err();
    assert_eq!(Error::find(&error).map(|e| e.code()), Some(ErrorCode::ResourcesExhausted));
    assert!(listed(&inc, "data").await.is_empty());
}
