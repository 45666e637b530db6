//! The key scan: the keys of chosen rows of index files.
//!
//! ```text
//! index.parquet ─ hash verified ─► key columns (+ version) ─┬─ rows that a version after n wrote, still live
//! .dv, later .dv ─ hash verified ──────────────────────────┴─ rows that died between two states of the file
//! ```
//!
//! Memory, reserved in the pool: per partition the deletion vectors of one file and about one row group of its index.
//! It never reads a data file, never hands on a key before the whole object's hash is right, and never writes. It may be
//! executed again: it holds nothing.

mod rows;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use arrow_schema::{Field, Schema, SchemaRef};
use datafusion::common::internal_err;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::coop::cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};

use crate::spec::VersionNumber;
use crate::store::{DataFile, Incarnation};
use rows::KeyReading;

/// Files that are read at once.
const PARTITIONS: usize = 4;

/// Which rows of an index file are read.
#[derive(Debug, Clone, PartialEq)]
pub enum ChosenRows {
    /// The live rows that a version after this one wrote.
    WrittenAfter(VersionNumber),
    /// The rows that are live in the file and dead in this later state of it; `None`: all of them died.
    DeadIn(Option<Box<DataFile>>),
}

/// An index file and the rows of it that are read.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyFile {
    /// The file.
    pub file: DataFile,
    /// Its rows.
    pub rows: ChosenRows,
}

/// The plan node.
#[derive(Debug)]
pub struct KeyScanExec {
    incarnation: Incarnation,
    files: Arc<Vec<KeyFile>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl KeyScanExec {
    /// Reads the `key` columns, which have the published types of the table that `files` belong to.
    pub fn new(incarnation: Incarnation, files: Vec<KeyFile>, key: &[Field]) -> Self {
        let fields = key.iter().map(|field| field.clone().with_nullable(true)).collect::<Vec<_>>();
        let equivalence = EquivalenceProperties::new(Arc::new(Schema::new(fields)));
        let partitioning = Partitioning::UnknownPartitioning(files.len().clamp(1, PARTITIONS));
        let properties = PlanProperties::new(equivalence, partitioning, EmissionType::Incremental, Boundedness::Bounded)
            .with_scheduling_type(SchedulingType::Cooperative);
        Self { incarnation, files: Arc::new(files), properties: Arc::new(properties), metrics: ExecutionPlanMetricsSet::new() }
    }

    fn key_schema(&self) -> SchemaRef {
        Arc::clone(self.properties.eq_properties.schema())
    }
}

impl DisplayAs for KeyScanExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.incarnation.name();
        let written = self.files.iter().filter(|file| matches!(file.rows, ChosenRows::WrittenAfter(_))).count();
        let died = self.files.len() - written;
        match format {
            DisplayFormatType::TreeRender => write!(f, "table={table}\nnew_files={written}\nfiles_with_deaths={died}"),
            _ => write!(f, "KeyScanExec: table={table}, new_files={written}, files_with_deaths={died}"),
        }
    }
}

impl ExecutionPlan for KeyScanExec {
    fn name(&self) -> &str {
        "KeyScanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(&self, _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>) -> DfResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> DfResult<Arc<dyn ExecutionPlan>> {
        if children.is_empty() { Ok(self) } else { internal_err!("KeyScanExec has no children") }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let partitions = self.properties.partitioning.partition_count();
        let consumer = MemoryConsumer::new(format!("KeyScanExec[{}, {partition}]", self.incarnation.name()));
        let (incarnation, schema) = (self.incarnation.clone(), self.key_schema());
        let reservation = consumer.register(context.memory_pool());
        let mine: Vec<KeyFile> = self.files.iter().skip(partition).step_by(partitions).cloned().collect();
        let opened = stream::iter(mine).then(move |file| {
            let (incarnation, schema, reservation) = (incarnation.clone(), Arc::clone(&schema), reservation.new_empty());
            async move { KeyReading::open(&incarnation, &file, &schema, reservation).await.map(KeyReading::into_stream) }
        });
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let keys = opened.try_flatten().map_err(DataFusionError::from).inspect_ok(move |batch| metrics.record_output(batch.num_rows()));
        Ok(Box::pin(cooperative(RecordBatchStreamAdapter::new(self.key_schema(), keys.boxed()))))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
