//! Reads a sealed capture.
//!
//! ```text
//! object 0 ─ verify size and BLAKE3 ─ rows ─► partition 0
//! object 1 ─ verify size and BLAKE3 ─ rows ─► partition 1   …
//! ```
//!
//! Memory: one row group per partition that runs. Never hands on a row of an object that was not verified whole.

use std::fmt;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, EmptyRecordBatchStream, ExecutionPlan, Partitioning, PlanProperties,
    ReplaceChildrenOptions,
};
use futures::{StreamExt, TryStreamExt};

use crate::error::Error;
use crate::store::files::{open_rows, verify_object};
use crate::store::{Incarnation, ObjectRef};

/// A scan of capture files; one partition each, one empty partition when there are none.
pub fn capture_scan(incarnation: &Incarnation, objects: &[ObjectRef], schema: SchemaRef) -> Arc<dyn ExecutionPlan> {
    Arc::new(CaptureScanExec::new(incarnation.clone(), objects.into(), schema))
}

/// Scans capture files.
#[derive(Debug)]
pub struct CaptureScanExec {
    incarnation: Incarnation,
    objects: Arc<[ObjectRef]>,
    metrics: ExecutionPlanMetricsSet,
    properties: Arc<PlanProperties>,
}

impl CaptureScanExec {
    fn new(incarnation: Incarnation, objects: Arc<[ObjectRef]>, schema: SchemaRef) -> Self {
        let partitions = Partitioning::UnknownPartitioning(objects.len().max(1));
        let equivalence = EquivalenceProperties::new(schema);
        let properties = PlanProperties::new(equivalence, partitions, EmissionType::Incremental, Boundedness::Bounded);
        Self { incarnation, objects, metrics: ExecutionPlanMetricsSet::new(), properties: Arc::new(properties) }
    }
}

impl DisplayAs for CaptureScanExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, files) = (self.incarnation.name(), self.objects.len());
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => write!(f, "CaptureScanExec: table={table}, files={files}"),
            DisplayFormatType::TreeRender => write!(f, "table={table}\nfiles={files}"),
        }
    }
}

impl ExecutionPlan for CaptureScanExec {
    fn name(&self) -> &str {
        "CaptureScanExec"
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
        Ok(Arc::new(Self::new(self.incarnation.clone(), Arc::clone(&self.objects), self.schema())))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> DfResult<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let schema = self.schema();
        let Some(object) = self.objects.get(partition).cloned() else {
            if partition == 0 {
                return Ok(Box::pin(EmptyRecordBatchStream::new(schema)));
            }
            return Err(Error::internal(format!("CaptureScanExec has {} partitions, not {partition}", self.objects.len())).into());
        };
        let (incarnation, wanted) = (self.incarnation.clone(), Arc::clone(&schema));
        let (batch_rows, metrics) = (context.session_config().batch_size(), BaselineMetrics::new(&self.metrics, partition));
        let opened = async move {
            verify_object(&incarnation, &object).await?;
            open_rows(&incarnation, &object, &wanted, batch_rows, None).await
        };
        let rows = futures::stream::once(opened).try_flatten().map_err(DataFusionError::from);
        let counted = rows.inspect_ok(move |batch: &arrow::array::RecordBatch| metrics.record_output(batch.num_rows()));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, counted.boxed())))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

#[cfg(test)]
mod tests;
