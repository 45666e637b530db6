//! Writes new rows as data and index files.
//!
//! ```text
//! input partition 0 ─ PairWriter ─┐
//! input partition 1 ─ PairWriter ─┼─► one row per file: `file` Utf8, the DataFile as JSON
//! …                               ┘
//! ```
//!
//! The merge with the rows that stay is by position: the diff knows which rows of the base die, and deletion vectors say
//! so. Memory: one [`PairWriter`] per input partition. Never touches a file of the base, and writes nothing for no rows.

use std::fmt;
use std::sync::Arc;

use arrow::array::{RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
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
use crate::error::Error;
use crate::store::DataFile;
use crate::store::files::{PairSpec, PairWriter, share_of};

/// The column of the file list.
pub const FILE_COLUMN: &str = "file";

/// The schema of the file list.
pub fn file_list_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new(FILE_COLUMN, DataType::Utf8, false)]))
}

/// The data files in a batch of the file list.
///
/// # Errors
/// `INTERNAL` when the batch is no file list.
pub fn decode_file_list(batch: &RecordBatch) -> crate::error::Result<Vec<DataFile>> {
    let column = batch.column_by_name(FILE_COLUMN).and_then(|c| c.as_any().downcast_ref::<StringArray>());
    let column = column.ok_or_else(|| Error::internal("a file list has no column \"file\""))?;
    let parse = |text: Option<&str>| {
        let text = text.ok_or_else(|| Error::internal("a file list has an empty row"))?;
        serde_json::from_str(text).map_err(|e| Error::internal(format!("a file list has a row that is no file: {e}")))
    };
    column.iter().map(parse).collect()
}

fn encode_file_list(files: &[DataFile]) -> DfResult<RecordBatch> {
    let encode = |file: &DataFile| serde_json::to_string(file).map_err(|e| Error::internal(format!("a file cannot be listed: {e}")));
    let rows = files.iter().map(encode).collect::<crate::error::Result<Vec<_>>>()?;
    Ok(RecordBatch::try_new(file_list_schema(), vec![Arc::new(StringArray::from(rows))])?)
}

/// Writes its input as new files of a table.
#[derive(Debug)]
pub struct MergeExec {
    input: Arc<dyn ExecutionPlan>,
    spec: Arc<PairSpec>,
    once: Once,
    metrics: ExecutionPlanMetricsSet,
    properties: Arc<PlanProperties>,
}

impl MergeExec {
    /// Writes the rows of `input`: the output columns, FP_HI, FP_LO and SRC; VERSION where rows keep their own.
    pub fn new(input: Arc<dyn ExecutionPlan>, spec: Arc<PairSpec>) -> Self {
        let properties = acting_properties(file_list_schema());
        Self { input, spec, once: Once::default(), metrics: ExecutionPlanMetricsSet::new(), properties }
    }

    /// What the files have in common.
    pub fn spec(&self) -> &Arc<PairSpec> {
        &self.spec
    }
}

impl DisplayAs for MergeExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, spec) = (self.spec.incarnation.name(), &self.spec);
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "MergeExec: table={table}, version={}, dir={}, key=[{}]", spec.version, spec.dir, spec.key.join(", "))
            }
            DisplayFormatType::TreeRender => write!(f, "table={table}\nversion={}", spec.version),
        }
    }
}

impl ExecutionPlan for MergeExec {
    fn name(&self) -> &str {
        "MergeExec"
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
        Ok(Arc::new(Self::new(only_child(self.name(), children)?, Arc::clone(&self.spec))))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> DfResult<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        self.once.begin(self.name(), partition)?;
        let writers = self.input.output_partitioning().partition_count();
        let (input, spec, metrics) = (Arc::clone(&self.input), Arc::clone(&self.spec), MergeMetrics::new(&self.metrics));
        Ok(one_batch(self.schema(), async move {
            let pool = Arc::clone(context.memory_pool());
            let limit = share_of(pool.as_ref(), writers);
            let write = |partition: usize, rows: SendableRecordBatchStream| {
                let consumer = MemoryConsumer::new(format!("MergeExec[{partition}]")).with_can_spill(true);
                let prefix = file_prefix(spec.incarnation.store().env(), partition);
                let writer = prefix.and_then(|prefix| PairWriter::new(Arc::clone(&spec), prefix, consumer.register(&pool)));
                let metrics = metrics.clone();
                async move { write_partition(writer?.with_limit(limit), rows, metrics).await }
            };
            let files: Vec<DataFile> = drive(input, context, write).await?.into_iter().flatten().collect();
            encode_file_list(&files)
        }))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// Counters of all writers together.
#[derive(Debug, Clone)]
struct MergeMetrics {
    rows: Count,
    bytes: Count,
    files: Count,
    peak: Gauge,
    elapsed: Time,
}

impl MergeMetrics {
    fn new(set: &ExecutionPlanMetricsSet) -> Self {
        let count = |name: &'static str, category| MetricBuilder::new(set).with_category(category).counter(name, 0);
        Self {
            rows: count("rows_written", MetricCategory::Rows),
            bytes: count("bytes_written", MetricCategory::Bytes),
            files: count("files_written", MetricCategory::Rows),
            peak: MetricBuilder::new(set).peak_memory_usage("peak_mem_used", 0),
            elapsed: MetricBuilder::new(set).elapsed_compute(0),
        }
    }
}

async fn write_partition(mut writer: PairWriter, mut rows: SendableRecordBatchStream, metrics: MergeMetrics) -> DfResult<Vec<DataFile>> {
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
    let outcome: DfResult<Vec<DataFile>> = outcome.await;
    metrics.peak.add(writer.peak_memory());
    match &outcome {
        Ok(files) => {
            metrics.files.add(files.len());
            metrics.bytes.add(files.iter().map(|file| usize::try_from(file.data.bytes + file.index.bytes).unwrap_or(usize::MAX)).sum());
        }
        Err(_) => writer.abort().await,
    }
    outcome
}

#[cfg(test)]
pub(crate) mod tests;
