//! The scan of a published version (or of a draft's output): data files minus deletion vectors.
//!
//! ```text
//! manifest bounds ──► files that may match ──► PartitionedFile + row selection (live rows) ──► ParquetSource
//!                                              statistics: rows exact, columns inexact beside a deletion vector
//! ```
//!
//! Memory: the cached deletion vectors of one version (at most one bit per row, in practice far less), its column
//! bounds, and what DataFusion's Parquet reader buffers. The scan writes nothing, takes no lock on the table, and never
//! reads another version than the one it was given.

mod bounds;
mod damage;
mod deletions;
mod reader;
mod snapshot;
mod source;
#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow_schema::SchemaRef;
use datafusion::catalog::Session;
use datafusion::common::DFSchema;
use datafusion::common::config::TableParquetOptions;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::ParquetRowSelection;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, FileSource, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::DataFusionError;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::{PhysicalExpr, conjunction};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion_datasource::compute_all_files_statistics;
use futures::{StreamExt, TryStreamExt};

pub use snapshot::{ScanCache, Snapshot};
pub use source::PublishedSource;

use reader::{FileIdentity, PublishedReaderFactory};
use source::ScanFacts;

use crate::store::DataFile;

/// Deletion vectors that are fetched at the same time.
const CONCURRENT_READS: usize = 16;

/// What a query wants of the scan.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScanRequest<'a> {
    /// Positions in the published schema; all columns when absent.
    pub projection: Option<&'a Vec<usize>>,
    /// Filters that the caller applies again: they only save reading.
    pub filters: &'a [Expr],
    /// No more rows than this are needed; ignored beside filters, which may drop rows afterwards.
    pub limit: Option<usize>,
}

/// Plans the scan of `snapshot`. Reads the deletion vectors of the files that may match, and no data.
///
/// # Errors
/// `HISTORY_MISSING` or `CORRUPT` when a deletion vector is gone or damaged. The data files themselves are read, and
/// found missing or damaged, when the plan runs.
pub async fn scan_snapshot(
    snapshot: &Snapshot,
    session: &dyn Session,
    request: ScanRequest<'_>,
) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
    let schema = &snapshot.output_schema;
    let predicate = scan_predicate(session, schema, request.filters);
    let (files, facts) = partitioned_files(snapshot, predicate.as_ref()).await?;
    if files.is_empty() {
        let schema = match request.projection {
            Some(projection) => Arc::new(schema.project(projection)?),
            None => Arc::clone(schema),
        };
        return Ok(Arc::new(EmptyExec::new(schema)));
    }
    let groups = FileGroup::new(files).split_files(session.config().target_partitions().max(1));
    let (groups, statistics) = compute_all_files_statistics(groups, Arc::clone(schema), true, false)?;
    let source = PublishedSource::new(parquet_source(snapshot, session, predicate), facts);
    let config = FileScanConfigBuilder::new(store_url(snapshot, session), Arc::new(source))
        .with_file_groups(groups)
        .with_statistics(statistics)
        .with_projection_indices(request.projection.cloned())?
        .with_limit(if request.filters.is_empty() { request.limit } else { None })
        .build();
    Ok(DataSourceExec::from_data_source(config))
}

/// The conjunction of the filters that can be expressed over the schema. Filters are only hints here, so one that
/// cannot be expressed is left to the caller, who applies all of them anyway.
fn scan_predicate(session: &dyn Session, schema: &SchemaRef, filters: &[Expr]) -> Option<Arc<dyn PhysicalExpr>> {
    let schema = DFSchema::try_from(Arc::clone(schema)).ok()?;
    let exprs: Vec<_> = filters.iter().filter_map(|filter| session.create_physical_expr(filter.clone(), &schema).ok()).collect();
    (!exprs.is_empty()).then(|| conjunction(exprs))
}

/// The files that may hold matching rows, with their live rows and statistics attached.
async fn partitioned_files(
    snapshot: &Snapshot,
    predicate: Option<&Arc<dyn PhysicalExpr>>,
) -> Result<(Vec<PartitionedFile>, ScanFacts), DataFusionError> {
    let known = snapshot.cache.bounds(&snapshot.output_schema, &snapshot.files);
    let keep = bounds::files_that_may_match(predicate, &snapshot.output_schema, &snapshot.files, &known);
    let mut facts =
        ScanFacts { version: snapshot.version, files: 0, all_files: snapshot.files.len(), dropped_rows: 0, table: snapshot.table().into() };
    let mut wanted = Vec::new();
    for ((file, bounds), keep) in snapshot.files.iter().zip(known.iter()).zip(keep) {
        if keep && file.live_rows() > 0 {
            facts.files += 1;
            facts.dropped_rows += file.rows - file.live_rows();
            wanted.push((file, bounds));
        }
    }
    let reads: Vec<_> = wanted.into_iter().map(|(file, bounds)| partitioned_file(snapshot, file, bounds)).collect();
    let files = futures::stream::iter(reads).buffered(CONCURRENT_READS).try_collect().await?;
    Ok((files, facts))
}

async fn partitioned_file(snapshot: &Snapshot, file: &DataFile, bounds: &bounds::FileBounds) -> Result<PartitionedFile, DataFusionError> {
    let path = snapshot.incarnation.path(&file.data.path);
    let partitioned = PartitionedFile::new(String::new(), file.data.bytes);
    let mut partitioned = partitioned
        .with_statistics(Arc::clone(&bounds.statistics))
        .with_extension(FileIdentity { object: file.data.clone(), rows: file.rows, version: snapshot.version });
    partitioned.object_meta.location = path; // set directly: PartitionedFile::new would encode the path's characters again
    if let Some(dead) = deletions::load(snapshot, file).await? {
        partitioned = partitioned.with_extension(ParquetRowSelection::new(deletions::live_rows(&dead, file.rows)));
    }
    Ok(partitioned)
}

/// DataFusion's Parquet source over the table's own store.
fn parquet_source(snapshot: &Snapshot, session: &dyn Session, predicate: Option<Arc<dyn PhysicalExpr>>) -> Arc<dyn FileSource> {
    let options = TableParquetOptions { global: session.config_options().execution.parquet.clone(), ..Default::default() };
    let pushes_filters = options.global.pushdown_filters;
    let factory = PublishedReaderFactory::new(snapshot, session.runtime_env().cache_manager.get_file_metadata_cache());
    let source = ParquetSource::new(Arc::clone(&snapshot.output_schema))
        .with_table_parquet_options(options)
        .with_parquet_file_reader_factory(Arc::new(factory));
    match predicate {
        // With row-level pushdown the optimizer hands the same filters over once more; twice would cost twice.
        Some(predicate) if !pushes_filters => Arc::new(source.with_predicate(predicate)),
        _ => Arc::new(source),
    }
}

/// All bytes are read through the table's own store, so the URL only has to be one that the session knows.
fn store_url(snapshot: &Snapshot, session: &dyn Session) -> ObjectStoreUrl {
    let own = &snapshot.incarnation.store().location().store_url;
    match session.runtime_env().object_store(own) {
        Ok(_) => own.clone(),
        Err(_) => ObjectStoreUrl::local_filesystem(),
    }
}
