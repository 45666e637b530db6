//! Shares the rows of few row groups among the partitions of a scan.
//!
//! ```text
//! one file, one row group     DataFusion: partition 0 reads it, the others read nothing
//!                             here:       partition 0 ├─ first half ─┤├─ second half ─┤ partition 1
//! ```
//!
//! DataFusion divides files between row groups, so a snapshot that was written as one row group keeps one processor
//! busy and the rest idle. A partition that begins inside a row group passes over the pages before its part by their
//! headers, without unpacking them.
//! Memory: the footers of the files, which the scan needs anyway and finds in the capture's cache. Never reads rows,
//! never changes which rows are read nor their order in a file, and leaves every scan alone that it does not know.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::ParquetAccessPlan;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::datasource::physical_plan::parquet::{ParquetRowSelection, RowGroupAccess};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::context::SessionState;
use datafusion::physical_plan::ExecutionPlan;
use object_store::path::Path;
use parquet::arrow::arrow_reader::{RowSelection, RowSelector};

/// With so many row groups for each partition the difference between partitions is small.
const ENOUGH_ROW_GROUPS: usize = 4;
/// Fewer rows are not worth a second reader.
const WORTH_ROWS: usize = 1 << 17;

/// The plan with its Parquet scan shared out evenly, if it is nothing but such a scan of few row groups.
pub(super) async fn share_row_groups(state: &SessionState, plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let Some((config, source)) = plan.downcast_ref::<DataSourceExec>().and_then(|scan| scan.downcast_to_file_source::<ParquetSource>())
    else {
        return plan;
    };
    let partitions = state.config().target_partitions();
    let files = distinct_files(config);
    let is_plain =
        |file: &PartitionedFile| file.extension::<ParquetAccessPlan>().is_none() && file.extension::<ParquetRowSelection>().is_none();
    let can_share = partitions > 1 && config.limit.is_none() && source.filter().is_none() && config.output_partitioning.is_none();
    if !can_share || files.is_empty() || files.len() >= ENOUGH_ROW_GROUPS * partitions || !files.iter().all(is_plain) {
        return plan;
    }
    let Some(row_groups) = row_groups(state, config, &files).await else { return plan };
    let (groups, rows) = (row_groups.iter().map(Vec::len).sum::<usize>(), row_groups.iter().flatten().sum::<usize>());
    if groups >= ENOUGH_ROW_GROUPS * partitions || rows < WORTH_ROWS {
        return plan;
    }
    let share = |part: usize| share_of(&files, &row_groups, rows * part / partitions..rows * (part + 1) / partitions);
    let shares: Vec<FileGroup> = (0..partitions).map(share).map(FileGroup::new).collect();
    DataSourceExec::from_data_source(FileScanConfigBuilder::from(config.clone()).with_file_groups(shares).build())
}

/// The files of the scan, each once and whole, in the order in which the scan has them.
fn distinct_files(config: &FileScanConfig) -> Vec<PartitionedFile> {
    let mut found: Vec<PartitionedFile> = Vec::new();
    let mut known: BTreeMap<&Path, ()> = BTreeMap::new();
    for file in config.file_groups.iter().flat_map(FileGroup::iter) {
        if known.insert(file.path(), ()).is_none() {
            // The statistics are those of the whole file: each part would count all of its rows.
            found.push(PartitionedFile { range: None, statistics: None, ..file.clone() });
        }
    }
    found
}

/// Rows of each row group of each file; `None` when a footer cannot be read, which the scan itself reports better.
async fn row_groups(state: &SessionState, config: &FileScanConfig, files: &[PartitionedFile]) -> Option<Vec<Vec<usize>>> {
    let store = state.runtime_env().object_store(&config.object_store_url).ok()?;
    let cache = state.runtime_env().cache_manager.get_file_metadata_cache();
    let mut found = Vec::with_capacity(files.len());
    for file in files {
        let footer = DFParquetMetadata::new(store.as_ref(), &file.object_meta)
            .with_metadata_size_hint(file.metadata_size_hint)
            .with_file_metadata_cache(Some(Arc::clone(&cache)));
        let footer = footer.fetch_metadata().await.ok()?;
        let rows = footer.row_groups().iter().map(|group| usize::try_from(group.num_rows()).ok());
        found.push(rows.collect::<Option<Vec<_>>>()?);
    }
    Some(found)
}

/// The rows `wanted` of all rows of the files, counted through.
fn share_of(files: &[PartitionedFile], row_groups: &[Vec<usize>], wanted: Range<usize>) -> Vec<PartitionedFile> {
    let (mut share, mut first) = (Vec::new(), 0);
    for (file, groups) in files.iter().zip(row_groups) {
        let mut accesses = Vec::with_capacity(groups.len());
        for rows in groups {
            let part = wanted.start.clamp(first, first + rows) - first..wanted.end.clamp(first, first + rows) - first;
            accesses.push(access(*rows, part));
            first += rows;
        }
        if accesses.iter().any(RowGroupAccess::should_scan) {
            share.push(file.clone().with_extension(ParquetAccessPlan::new(accesses)));
        }
    }
    share
}

fn access(rows: usize, part: Range<usize>) -> RowGroupAccess {
    match part {
        part if part.is_empty() => RowGroupAccess::Skip,
        part if part.len() == rows => RowGroupAccess::Scan,
        Range { start, end } => {
            let selectors = [RowSelector::skip(start), RowSelector::select(end - start), RowSelector::skip(rows - end)];
            RowGroupAccess::Selection(RowSelection::from(selectors.into_iter().filter(|s| s.row_count > 0).collect::<Vec<_>>()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_of(access: &RowGroupAccess, rows: usize) -> usize {
        match access {
            RowGroupAccess::Skip => 0,
            RowGroupAccess::Scan => rows,
            RowGroupAccess::Selection(selection) => selection.row_count(),
        }
    }

    #[test]
    fn shares_are_even_and_miss_nothing() {
        let files = vec![PartitionedFile::new("a", 1), PartitionedFile::new("b", 1), PartitionedFile::new("c", 1)];
        let row_groups = vec![vec![100, 1], vec![], vec![7, 92]];
        for partitions in 1..9 {
            let mut total = 0;
            for part in 0..partitions {
                let share = share_of(&files, &row_groups, 200 * part / partitions..200 * (part + 1) / partitions);
                let of_file = |file: &PartitionedFile| {
                    let groups = if file.path().as_ref() == "a" { &row_groups[0] } else { &row_groups[2] };
                    let plan = file.extension::<ParquetAccessPlan>().unwrap();
                    plan.inner().iter().zip(groups).map(|(access, rows)| rows_of(access, *rows)).sum::<usize>()
                };
                let rows: usize = share.iter().map(of_file).sum();
                assert!(rows.abs_diff(200 / partitions) <= 1, "{rows} of {partitions}");
                total += rows;
            }
            assert_eq!(total, 200);
        }
    }
}
