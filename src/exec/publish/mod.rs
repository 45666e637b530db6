//! Publishes the files that were written: one task, one create-only slot, one row.
//!
//! ```text
//! MergeExec's file list ─ read to its end ─► PublishSink::publish ─► one row: the run's summary
//! ```
//!
//! Memory: the list of new files. Never publishes before every file is written.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, MetricCategory, MetricsSet, Time};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, InputDistributionRequirements, PlanProperties,
    ReplaceChildrenOptions,
};
use futures::StreamExt;

use super::acting::{Once, acting_properties, drive, one_batch, only_child};
use super::merge::decode_file_list;
use crate::error::Result;
use crate::spec::RunSummary;
use crate::store::DataFile;

/// Takes the new files and publishes the version.
#[async_trait]
pub trait PublishSink: fmt::Debug + Send + Sync {
    /// What is published, for EXPLAIN: table and version.
    fn describe(&self) -> String {
        String::new()
    }

    /// The plan that wrote the files, executed to its end: its metrics say what the work took.
    fn wrote(&self, _writer: &Arc<dyn ExecutionPlan>) {}

    /// Publishes; returns the run's summary.
    async fn publish(&self, files: Vec<DataFile>) -> Result<RunSummary>;
}

/// Publishes what its input wrote.
#[derive(Debug)]
pub struct PublishExec {
    input: Arc<dyn ExecutionPlan>,
    sink: Arc<dyn PublishSink>,
    once: Once,
    metrics: ExecutionPlanMetricsSet,
    properties: Arc<PlanProperties>,
}

impl PublishExec {
    /// Reads the file list of `input` to its end, then calls the sink.
    pub fn new(input: Arc<dyn ExecutionPlan>, sink: Arc<dyn PublishSink>) -> Self {
        let properties = acting_properties(RunSummary::schema());
        Self { input, sink, once: Once::default(), metrics: ExecutionPlanMetricsSet::new(), properties }
    }
}

impl DisplayAs for PublishExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => write!(f, "PublishExec: {}", self.sink.describe()),
            DisplayFormatType::TreeRender => Ok(()),
        }
    }
}

impl ExecutionPlan for PublishExec {
    fn name(&self) -> &str {
        "PublishExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![Distribution::SinglePartition])
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(&self, _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>) -> DfResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(only_child(self.name(), children)?, Arc::clone(&self.sink))))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> DfResult<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        self.once.begin(self.name(), partition)?;
        let (input, sink) = (Arc::clone(&self.input), Arc::clone(&self.sink));
        let files_published = MetricBuilder::new(&self.metrics).with_category(MetricCategory::Rows).counter("files_published", 0);
        let elapsed = MetricBuilder::new(&self.metrics).elapsed_compute(0);
        Ok(one_batch(self.schema(), publish(input, sink, context, (files_published, elapsed))))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

async fn publish(
    input: Arc<dyn ExecutionPlan>,
    sink: Arc<dyn PublishSink>,
    context: Arc<TaskContext>,
    (files_published, elapsed): (Count, Time),
) -> DfResult<arrow::array::RecordBatch> {
    let read = |_: usize, mut rows: SendableRecordBatchStream| async move {
        let mut files = Vec::new();
        while let Some(batch) = rows.next().await {
            files.extend(decode_file_list(&batch?)?);
        }
        Ok(files)
    };
    let files: Vec<DataFile> = drive(Arc::clone(&input), context, read).await?.into_iter().flatten().collect();
    files_published.add(files.len());
    let _timer = elapsed.timer();
    sink.wrote(&input);
    let summary = sink.publish(files).await?;
    Ok(RunSummary::to_batch(&[summary])?)
}

#[cfg(test)]
mod tests;
