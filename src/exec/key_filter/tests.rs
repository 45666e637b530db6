use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{Int64Array, StringArray};
use arrow_schema::DataType;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};

use super::*;

fn batch(ids: &[i64]) -> RecordBatch {
    let names: StringArray = ids.iter().map(|id| Some(format!("k{id}"))).collect();
    let columns: [(&str, ArrayRef, bool); 2] = [("id", Arc::new(Int64Array::from(ids.to_vec())), true), ("name", Arc::new(names), true)];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

fn rows(partitions: &[&[i64]]) -> Arc<dyn ExecutionPlan> {
    let batches: Vec<Vec<RecordBatch>> = partitions.iter().map(|ids| vec![batch(ids)]).collect();
    MemorySourceConfig::try_new_exec(&batches, batches[0][0].schema(), None).unwrap()
}

fn spec(names: &[&str], hash: KeyHash) -> KeyFilterSpec {
    let ty = |name: &str| if name == "id" { DataType::Int64 } else { DataType::Utf8 };
    let key = names.iter().map(|name| Field::new(*name, ty(name), false)).collect();
    KeyFilterSpec { table: "t".into(), key, hash, seed: 7, refused: Arc::default() }
}

async fn ids(plan: Arc<dyn ExecutionPlan>, context: &SessionContext) -> Result<Vec<i64>> {
    let batches = collect(plan, context.task_ctx()).await.map_err(|e| Error::find(&e).unwrap())?;
    let ids = |batch: &RecordBatch| batch.column(0).as_any().downcast_ref::<Int64Array>().unwrap().values().to_vec();
    let mut ids: Vec<i64> = batches.iter().flat_map(ids).collect();
    ids.sort_unstable();
    Ok(ids)
}

#[tokio::test]
async fn only_rows_of_the_scope_pass() {
    let context = SessionContext::new();
    for hash in [KeyHash::Xxh3, KeyHash::Constant] {
        for key in [&["id"][..], &["name"], &["name", "id"]] {
            let plan = Arc::new(KeyFilterExec::new(rows(&[&[2, 9, 2], &[4, 77]]), rows(&[&[1, 2, 3], &[4, 5]]), spec(key, hash)));
            assert_eq!(ids(Arc::clone(&plan) as _, &context).await.unwrap(), [2, 4]);
            assert_eq!(ids(plan, &context).await.unwrap(), [2, 4], "once more");
        }
    }
}

#[derive(Debug)]
struct Untouched(Arc<dyn ExecutionPlan>, Arc<AtomicUsize>);

impl DisplayAs for Untouched {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Untouched")
    }
}

impl ExecutionPlan for Untouched {
    fn name(&self) -> &str {
        "Untouched"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.0.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(&self, _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>) -> DfResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.execute(partition, context)
    }
}

#[tokio::test]
async fn an_empty_scope_reads_no_index() {
    let touched = Arc::new(AtomicUsize::new(0));
    let index = Arc::new(Untouched(rows(&[&[1], &[2]]), Arc::clone(&touched)));
    let plan = KeyFilterExec::new(rows(&[&[]]), index, spec(&["id"], KeyHash::Xxh3));
    assert_eq!(ids(Arc::new(plan), &SessionContext::new()).await.unwrap(), [0; 0]);
    assert_eq!(touched.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn keys_beyond_the_pool_raise_the_flag() {
    let pool = Arc::new(GreedyMemoryPool::new(100_000));
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc().unwrap();
    let context = SessionContext::new_with_config_rt(SessionConfig::new(), runtime);
    let many: Vec<i64> = (0..100_000).collect();
    let spec = spec(&["id"], KeyHash::Xxh3);
    let refused = Arc::clone(&spec.refused);
    let error = ids(Arc::new(KeyFilterExec::new(rows(&[&many]), rows(&[&[1]]), spec)), &context).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ResourcesExhausted);
    assert!(refused.load(Ordering::SeqCst));
}
