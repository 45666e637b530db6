//! Reads the live rows of a version's files, with everything that is stored about them.
//!
//! ```text
//! data file  ─ rows ─┐ side by side,    ┌ dead rows ┐
//! index file ─ rows ─┴ row for row ───► └ left out  ┘ ─► output columns, FP_HI, FP_LO, SRC, VERSION
//! ```
//!
//! Under a MergeExec this rewrites a table's files: the rows, fingerprints and versions stay. Memory: one row group of
//! the data and one of the index file per partition that runs, and one deletion vector. Never hands on rows of files
//! that were not verified, or that are not of the same length.

mod order;
mod zip;

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, ReplaceChildrenOptions,
};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

pub use self::order::{are_in_key_order, in_key_order};

use self::zip::live_rows;
use crate::error::{Error, Result};
use crate::store::dead::dead_rows;
use crate::store::files::{FP_HI, FP_LO, SRC, VERSION, open_rows, verify_object};
use crate::store::{DataFile, Incarnation};

/// Reads live rows with their index columns.
#[derive(Debug)]
pub struct CompactExec {
    incarnation: Incarnation,
    output_schema: SchemaRef,
    files: Arc<[DataFile]>,
    metrics: ExecutionPlanMetricsSet,
    properties: Arc<PlanProperties>,
}

impl CompactExec {
    /// Reads `files` of a version whose published columns are `output_schema`, in one partition.
    pub fn new(incarnation: Incarnation, files: Vec<DataFile>, output_schema: SchemaRef) -> Self {
        Self::with_files(incarnation, files.into(), output_schema, 1)
    }

    /// Reads the files in up to `partitions` partitions; each becomes at least one new file.
    pub fn with_partitions(self, partitions: usize) -> Self {
        let partitions = partitions.clamp(1, self.files.len().max(1));
        Self::with_files(self.incarnation, self.files, self.output_schema, partitions)
    }

    fn with_files(incarnation: Incarnation, files: Arc<[DataFile]>, output_schema: SchemaRef, partitions: usize) -> Self {
        let hidden = index_fields();
        let fields: Vec<_> = output_schema.fields().iter().cloned().chain(hidden.into_iter().map(Arc::new)).collect();
        let equivalence = EquivalenceProperties::new(Arc::new(Schema::new(fields)));
        let partitioning = Partitioning::UnknownPartitioning(partitions);
        let properties = PlanProperties::new(equivalence, partitioning, EmissionType::Incremental, Boundedness::Bounded);
        Self { incarnation, output_schema, files, metrics: ExecutionPlanMetricsSet::new(), properties: Arc::new(properties) }
    }
}

/// The columns that come from the index file.
fn index_fields() -> [Field; 4] {
    let int64 = |name: &str| Field::new(name, DataType::Int64, false);
    [int64(FP_HI), int64(FP_LO), Field::new(SRC, DataType::Int32, false), int64(VERSION)]
}

impl DisplayAs for CompactExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, files) = (self.incarnation.name(), self.files.len());
        let (live, physical) = self.files.iter().fold((0, 0), |(live, rows), file| (live + file.live_rows(), rows + file.rows));
        let dead = physical - live;
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "CompactExec: table={table}, files={files}, live_rows={live}, dead_rows={dead}")
            }
            DisplayFormatType::TreeRender => write!(f, "table={table}\nfiles={files}"),
        }
    }
}

impl ExecutionPlan for CompactExec {
    fn name(&self) -> &str {
        "CompactExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(&self, _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>) -> DfResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        _children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let partitions = self.properties.output_partitioning().partition_count();
        let (files, schema) = (Arc::clone(&self.files), Arc::clone(&self.output_schema));
        Ok(Arc::new(Self::with_files(self.incarnation.clone(), files, schema, partitions)))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> DfResult<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let partitions = self.properties.output_partitioning().partition_count();
        if partition >= partitions {
            return Err(Error::internal(format!("CompactExec has {partitions} partitions, not {partition}")).into());
        }
        let mine: Vec<DataFile> = self.files.iter().skip(partition).step_by(partitions).cloned().collect();
        let (schema, batch_rows) = (self.schema(), context.session_config().batch_size());
        let reader = FileReader {
            incarnation: self.incarnation.clone(),
            output_schema: Arc::clone(&self.output_schema),
            schema: Arc::clone(&schema),
            batch_rows,
        };
        let files = futures::stream::iter(mine).then(move |file| {
            let reader = reader.clone();
            async move { reader.open(file).await }
        });
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let rows = files
            .try_flatten()
            .map_err(DataFusionError::from)
            .inspect_ok(move |batch: &RecordBatch| metrics.record_output(batch.num_rows()));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows.boxed())))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// What opening one file needs.
#[derive(Debug, Clone)]
struct FileReader {
    incarnation: Incarnation,
    output_schema: SchemaRef,
    /// Output columns and index columns.
    schema: SchemaRef,
    batch_rows: usize,
}

impl FileReader {
    async fn open(self, file: DataFile) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let dead = dead_rows(&self.incarnation, &file).await?;
        verify_object(&self.incarnation, &file.data).await?;
        verify_object(&self.incarnation, &file.index).await?;
        let index_schema = Arc::new(Schema::new(index_fields().to_vec()));
        let data = open_rows(&self.incarnation, &file.data, &self.output_schema, self.batch_rows, Some(file.rows)).await?;
        let index = open_rows(&self.incarnation, &file.index, &index_schema, self.batch_rows, Some(file.rows)).await?;
        Ok(live_rows(data, index, dead, self.schema))
    }
}

#[cfg(test)]
mod tests;
