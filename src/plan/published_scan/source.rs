//! A thin `FileSource` around DataFusion's `ParquetSource`.
//!
//! It reads exactly as the inner source does. It exists so that
//! - a plan encoder without our codec refuses the node: DataFusion's own encoder drops row selections, and dead rows
//!   would come back;
//! - EXPLAIN names the version, the files and the dropped rows;
//! - damage found while decoding is reported as `CORRUPT`.

use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileOpener, FileScanConfig, FileSource};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::Result;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr, PhysicalSortExpr, split_conjunction};
use datafusion::physical_plan::filter_pushdown::{FilterPushdownPropagation, PushedDown};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{DisplayFormatType, SortOrderPushdownResult};
use datafusion_datasource::morsel::Morselizer;
use object_store::ObjectStore;

use super::damage::CheckedMorselizer;

/// What EXPLAIN says about the scan.
#[derive(Debug, Clone)]
pub(super) struct ScanFacts {
    pub(super) table: Arc<str>,
    pub(super) version: Option<u64>,
    pub(super) files: usize,
    pub(super) all_files: usize,
    pub(super) dropped_rows: u64,
}

/// The source of a published scan.
#[derive(Clone)]
pub struct PublishedSource {
    inner: Arc<dyn FileSource>,
    facts: Arc<ScanFacts>,
}

impl PublishedSource {
    pub(super) fn new(inner: Arc<dyn FileSource>, facts: ScanFacts) -> Self {
        Self { inner, facts: Arc::new(facts) }
    }

    /// The version that is read; absent for a draft's output.
    pub fn version(&self) -> Option<u64> {
        self.facts.version
    }

    /// Files that are read, after pruning by the manifest's bounds.
    pub fn files(&self) -> usize {
        self.facts.files
    }

    fn around(&self, inner: Arc<dyn FileSource>) -> Arc<dyn FileSource> {
        Arc::new(Self { inner, facts: Arc::clone(&self.facts) })
    }
}

impl fmt::Debug for PublishedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishedSource").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl FileSource for PublishedSource {
    fn create_file_opener(&self, store: Arc<dyn ObjectStore>, config: &FileScanConfig, partition: usize) -> Result<Arc<dyn FileOpener>> {
        self.inner.create_file_opener(store, config, partition)
    }

    fn create_morselizer(&self, store: Arc<dyn ObjectStore>, config: &FileScanConfig, partition: usize) -> Result<Box<dyn Morselizer>> {
        let inner = self.inner.create_morselizer(store, config, partition)?;
        Ok(Box::new(CheckedMorselizer::new(inner, Arc::clone(&self.facts.table))))
    }

    fn table_schema(&self) -> &TableSchema {
        self.inner.table_schema()
    }

    fn with_batch_size(&self, batch_size: usize) -> Arc<dyn FileSource> {
        self.around(self.inner.with_batch_size(batch_size))
    }

    fn filter(&self) -> Option<Arc<dyn PhysicalExpr>> {
        self.inner.filter()
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        self.inner.projection()
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        self.inner.metrics()
    }

    fn file_type(&self) -> &str {
        self.inner.file_type()
    }

    fn fmt_extra(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts = &self.facts;
        let version = facts.version.map_or_else(|| "draft".to_string(), |version| version.to_string());
        match t {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, ", version={version}, files={} of {}, dropped_rows={}", facts.files, facts.all_files, facts.dropped_rows)?;
            }
            DisplayFormatType::TreeRender => {
                writeln!(f, "version={version}")?;
                writeln!(f, "dropped_rows={}", facts.dropped_rows)?;
            }
        }
        self.inner.fmt_extra(t, f)
    }

    fn supports_repartitioning(&self) -> bool {
        self.inner.supports_repartitioning()
    }

    fn try_pushdown_filters(
        &self,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn FileSource>>> {
        let mut pushed = if config.execution.parquet.pushdown_filters {
            self.inner.try_pushdown_filters(filters, config)?
        } else {
            // Filters only prune here. Those that the provider handed over when it planned the scan are there already.
            let present = self.inner.filter();
            let present = present.as_ref().map(split_conjunction).unwrap_or_default();
            let all = filters.len();
            let new: Vec<_> = filters.into_iter().filter(|filter| !present.contains(&filter)).collect();
            let mut pushed = self.inner.try_pushdown_filters(new, config)?;
            pushed.filters = vec![PushedDown::No; all];
            pushed
        };
        pushed.updated_node = pushed.updated_node.map(|inner| self.around(inner));
        Ok(pushed)
    }

    fn try_pushdown_sort(
        &self,
        order: &[PhysicalSortExpr],
        eq_properties: &EquivalenceProperties,
    ) -> Result<SortOrderPushdownResult<Arc<dyn FileSource>>> {
        Ok(match self.inner.try_pushdown_sort(order, eq_properties)? {
            SortOrderPushdownResult::Exact { inner } => SortOrderPushdownResult::Exact { inner: self.around(inner) },
            SortOrderPushdownResult::Inexact { inner } => SortOrderPushdownResult::Inexact { inner: self.around(inner) },
            SortOrderPushdownResult::Unsupported => SortOrderPushdownResult::Unsupported,
        })
    }

    fn reorder_files(&self, files: Vec<PartitionedFile>) -> Vec<PartitionedFile> {
        self.inner.reorder_files(files)
    }

    fn try_pushdown_projection(&self, projection: &ProjectionExprs) -> Result<Option<Arc<dyn FileSource>>> {
        Ok(self.inner.try_pushdown_projection(projection)?.map(|inner| self.around(inner)))
    }

    fn apply_expressions(&self, f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>) -> Result<TreeNodeRecursion> {
        self.inner.apply_expressions(f)
    }
}
