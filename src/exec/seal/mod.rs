//! Writes the change set and seals it.
//!
//! ```text
//! input partition 0 ─ ChangesWriter ─┐
//! input partition 1 ─ ChangesWriter ─┼─ every partition has ended ─► SealSink::seal ─► one row: `rows` UInt64
//! …                                  ┘
//! ```
//!
//! Memory: one [`ChangesWriter`] per input partition. Never seals while a partition may still fail.

use std::fmt;
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result as DfResult;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, MetricCategory, MetricsSet, Time};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties, ReplaceChildrenOptions,
};
use futures::StreamExt;

use super::acting::{Once, acting_properties, drive, file_prefix, one_batch, only_child};
use crate::error::Result;
use crate::store::files::{ChangesWriter, WriterConfig, share_of};
use crate::store::{Incarnation, ObjectRef};

/// Takes the written change set and seals the run.
#[async_trait]
pub trait SealSink: fmt::Debug + Send + Sync {
    /// Seals `changes`, which hold `rows` rows; returns the number of rows that are handed on.
    async fn seal(&self, changes: Vec<ObjectRef>, rows: u64) -> Result<u64>;
}

/// Writes its input as capture files and seals them.
#[derive(Debug)]
pub struct SealExec {
    input: Arc<dyn ExecutionPlan>,
    incarnation: Incarnation,
    /// `runs/<run>/<attempt>/capture`.
    dir: String,
    config: WriterConfig,
    sink: Arc<dyn SealSink>,
    once: Once,
    metrics: ExecutionPlanMetricsSet,
    properties: Arc<PlanProperties>,
}

impl SealExec {
    /// Writes the rows of `input` below `dir`, then calls the sink.
    pub fn new(
        input: Arc<dyn ExecutionPlan>,
        incarnation: Incarnation,
        dir: String,
        config: WriterConfig,
        sink: Arc<dyn SealSink>,
    ) -> Self {
        let properties = acting_properties(Self::rows_schema());
        Self { input, incarnation, dir, config, sink, once: Once::default(), metrics: ExecutionPlanMetricsSet::new(), properties }
    }

    fn rows_schema() -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("rows", DataType::UInt64, false)]))
    }

    fn writer(&self) -> impl Fn(usize, &Arc<TaskContext>) -> Result<ChangesWriter> + Send + Sync + 'static {
        let (incarnation, dir, config, schema) = (self.incarnation.clone(), self.dir.clone(), self.config, self.input.schema());
        let writers = self.input.output_partitioning().partition_count();
        move |partition, context| {
            let consumer = MemoryConsumer::new(format!("SealExec[{partition}]")).with_can_spill(true);
            let stem = format!("{dir}/{}", file_prefix(incarnation.store().env(), partition)?);
            let pool = context.memory_pool();
            let writer = ChangesWriter::new(&incarnation, stem, Arc::clone(&schema), config, consumer.register(pool));
            Ok(writer.with_limit(share_of(pool.as_ref(), writers)))
        }
    }
}

impl DisplayAs for SealExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.incarnation.name();
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => write!(f, "SealExec: table={table}, dir={}", self.dir),
            DisplayFormatType::TreeRender => write!(f, "table={table}"),
        }
    }
}

impl ExecutionPlan for SealExec {
    fn name(&self) -> &str {
        "SealExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(&self, _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>) -> DfResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let input = only_child(self.name(), children)?;
        Ok(Arc::new(Self::new(input, self.incarnation.clone(), self.dir.clone(), self.config, Arc::clone(&self.sink))))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> DfResult<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        self.once.begin(self.name(), partition)?;
        let (input, sink, schema) = (Arc::clone(&self.input), Arc::clone(&self.sink), self.schema());
        let (writer, metrics) = (self.writer(), SealMetrics::new(&self.metrics));
        let written = metrics.rows.clone();
        Ok(one_batch(self.schema(), async move {
            let task_context = Arc::clone(&context);
            let write = |partition: usize, rows: SendableRecordBatchStream| {
                let (writer, metrics) = (writer(partition, &task_context), metrics.clone());
                async move { write_partition(writer?, rows, metrics).await }
            };
            let changes: Vec<ObjectRef> = drive(input, context, write).await?.into_iter().flatten().collect();
            let rows = sink.seal(changes, written.value() as u64).await?;
            Ok(RecordBatch::try_new(schema, vec![Arc::new(UInt64Array::from(vec![rows]))])?)
        }))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// Counters of all writers together.
#[derive(Debug, Clone)]
struct SealMetrics {
    rows: Count,
    bytes: Count,
    peak: Gauge,
    elapsed: Time,
}

impl SealMetrics {
    fn new(set: &ExecutionPlanMetricsSet) -> Self {
        Self {
            rows: MetricBuilder::new(set).with_category(MetricCategory::Rows).counter("rows_written", 0),
            bytes: MetricBuilder::new(set).with_category(MetricCategory::Bytes).counter("bytes_written", 0),
            peak: MetricBuilder::new(set).peak_memory_usage("peak_mem_used", 0),
            elapsed: MetricBuilder::new(set).elapsed_compute(0),
        }
    }
}

async fn write_partition(mut writer: ChangesWriter, mut rows: SendableRecordBatchStream, metrics: SealMetrics) -> DfResult<Vec<ObjectRef>> {
    let outcome = async {
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            let timer = metrics.elapsed.timer();
            writer.write(&batch).await?;
            timer.done();
            metrics.rows.add(batch.num_rows());
        }
        let _timer = metrics.elapsed.timer();
        Ok(writer.finish().await?)
    };
    let outcome: DfResult<Vec<ObjectRef>> = outcome.await;
    metrics.peak.add(writer.peak_memory());
    match &outcome {
        Ok(objects) => metrics.bytes.add(objects.iter().map(|object| usize::try_from(object.bytes).unwrap_or(usize::MAX)).sum()),
        Err(_) => writer.abort().await,
    }
    outcome
}

#[cfg(test)]
mod tests;
