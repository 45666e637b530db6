//! The counts of a diff as the plan's metrics.

use datafusion::physical_plan::metrics::{BaselineMetrics, Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder};

/// Metrics of one partition.
#[derive(Debug)]
pub(crate) struct DiffMetrics {
    pub(crate) baseline: BaselineMetrics,
    pub(crate) created: Count,
    pub(crate) updated: Count,
    pub(crate) unchanged: Count,
    pub(crate) scanned: Count,
    /// Rows that the prediction missed, so that they were hashed.
    pub(crate) lookups: Count,
    pub(crate) peak_memory: Gauge,
}

impl DiffMetrics {
    pub(crate) fn new(set: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        let counter = |name: &'static str| MetricBuilder::new(set).counter(name, partition);
        Self {
            baseline: BaselineMetrics::new(set, partition),
            created: counter("rows_created"),
            updated: counter("rows_updated"),
            unchanged: counter("rows_unchanged"),
            scanned: counter("rows_scanned"),
            lookups: counter("key_lookups"),
            peak_memory: MetricBuilder::new(set).gauge("peak_memory_bytes", partition),
        }
    }
}

/// Index rows outside of the diff that new keys were compared with.
pub(crate) fn compared_outside(set: &ExecutionPlanMetricsSet) -> Count {
    MetricBuilder::new(set).global_counter("rows_compared_outside")
}

/// Rows deleted are known once, at the end of the last partition.
pub(crate) fn deleted(set: &ExecutionPlanMetricsSet) -> Count {
    MetricBuilder::new(set).global_counter("rows_deleted")
}
