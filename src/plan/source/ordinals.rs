//! A bare file scan that says of every row which source file it comes from, and that leaves files out.
//!
//! ```text
//! ListingTable.scan ─► DataSourceExec      file groups: a 1..9 │ b, c │ d
//!      with_ordinals ─► DataSourceExec      a 1..9 [src = 0] │ c [src = 2]      b and d are not read
//! ```
//!
//! The ordinal is a partition column with one value per file, so splitting files into byte ranges, reading them side by
//! side and work stealing stay DataFusion's own. When files are left out no statistics are collected: planning touches
//! no footer then. Memory: the file list. Never looks through a view, and never gives a file another one's ordinal: a
//! file without one has -1.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{ColumnStatistics, ScalarValue, Statistics, internal_datafusion_err};
use datafusion::datasource::file_format::arrow::ArrowFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingTable, PartitionedFile};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::context::SessionState;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;

use super::describe::format_options;
use super::listing::object_text;
use super::refresh::file_schema;
use super::resolve::ResolvedSource;
use crate::error::Result;
use crate::store::files::SRC;

/// Session options that change what a file's bytes mean, by their beginnings.
const READING: [&str; 5] = [
    "datafusion.catalog.has_header",
    "datafusion.catalog.newlines_in_values",
    "datafusion.execution.listing_table",
    "datafusion.execution.parquet.",
    "datafusion.execution.time_zone",
];

/// The files of a source by their ordinals.
#[derive(Debug, Clone, Default)]
pub struct FileOrdinals {
    /// Store and path, as an identity has them, to ordinal.
    pub known: BTreeMap<String, i32>,
    /// The ordinals of the files that are not read.
    pub skipped: BTreeSet<i32>,
}

impl ResolvedSource {
    /// A digest of how `columns` are read: columns, format and reader options. `None` when the source is no bare file
    /// scan, or one whose reading is not ours to describe.
    pub fn scan_digest(&self, columns: &[String]) -> Option<String> {
        let listing = self.bare_listing()?;
        let by_position = listing.options().format.downcast_ref::<CsvFormat>().is_some();
        let matters = |name: &String| by_position || columns.contains(name);
        let options = listing.options();
        let (format, format_options) = format_options(listing);
        let mut parts = vec![
            env!("CARGO_PKG_VERSION").to_string(),
            datafusion::DATAFUSION_VERSION.to_string(),
            format,
            format!("{:?}", options.format.compression_type()),
            options.file_extension.clone(),
            format!("{columns:?}"),
            format!("{:?}", options.table_partition_cols),
        ];
        parts.extend(format_options.into_iter().map(|(key, value)| format!("{key}={value}")));
        let fields = self.schema.fields().iter().filter(|field| matters(field.name()));
        parts.extend(fields.map(|field| format!("{:?} {:?}", field.name(), field.data_type())));
        if !options.table_partition_cols.is_empty() {
            // The folders below a place say what the values are.
            parts.extend(listing.table_paths().iter().map(|url| object_text(url, url.prefix())));
        }
        let entries = self.state.config_options().entries();
        let mut reading: Vec<String> = entries
            .into_iter()
            .filter(|entry| READING.iter().any(|beginning| entry.key.starts_with(beginning)))
            .map(|entry| format!("{}={:?}", entry.key, entry.value))
            .collect();
        reading.sort();
        parts.extend(reading);
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        Some(hasher.finalize().to_hex().to_string())
    }

    /// The listing table that the source is, unless something of its own stands between the files and the rows.
    fn bare_listing(&self) -> Option<&ListingTable> {
        let listing = self.provider.downcast_ref::<ListingTable>()?;
        let format = listing.options().format.as_ref();
        let is_known = format.downcast_ref::<ParquetFormat>().is_some()
            || format.downcast_ref::<CsvFormat>().is_some()
            || format.downcast_ref::<JsonFormat>().is_some()
            || format.downcast_ref::<ArrowFormat>().is_some();
        // A host's own adapter may do anything with the values. The table tells of it in its debug text only; a text
        // that says nothing counts as one.
        let is_adapted = || !format!("{listing:?}").contains("expr_adapter_factory: None");
        (is_known && listing.schema().index_of(SRC).is_err() && !is_adapted()).then_some(listing)
    }

    /// [`Self::plan`] with the files of `ordinals` only, and with a last column SRC: the ordinal of each row's file.
    ///
    /// # Errors
    /// Those of [`Self::plan`].
    pub async fn plan_files(&self, columns: &[String], ordinals: FileOrdinals) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(listing) = self.bare_listing() else { return self.plan(columns).await };
        let field = Arc::new(Field::new(SRC, DataType::Int32, false));
        let fields = listing.schema().fields().iter().cloned().chain([field]).collect::<Vec<_>>();
        let schema = Arc::new(Schema::new(fields));
        let provider = Arc::new(OrdinalTable { listing: listing.clone(), schema: Arc::clone(&schema), ordinals });
        let source =
            Self { state: self.state.clone(), provider, schema, disagreements: self.disagreements.clone(), table: self.table.clone() };
        let columns: Vec<String> = columns.iter().cloned().chain([SRC.to_string()]).collect();
        source.plan(&columns).await
    }
}

/// A listing table with the ordinals of its files as a last column.
#[derive(Debug)]
struct OrdinalTable {
    listing: ListingTable,
    schema: SchemaRef,
    ordinals: FileOrdinals,
}

#[async_trait]
impl TableProvider for OrdinalTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let lean = self.without_statistics(state);
        let state: &dyn Session = lean.as_ref().map_or(state, |lean| lean);
        let all = self.listing.scan(state, None, &[], None).await?;
        // Without files there is no scan of them: an empty plan of the same columns.
        if all.is::<EmptyExec>() {
            return self.empty(projection);
        }
        let config = all.downcast_ref::<DataSourceExec>().and_then(|exec| exec.data_source().downcast_ref::<FileScanConfig>());
        let config = config.ok_or_else(|| internal_datafusion_err!("a listing table is read by {}, not by a file scan", all.name()))?;
        let groups = self.groups(config, state.config().target_partitions());
        if groups.iter().all(FileGroup::is_empty) {
            return self.empty(projection);
        }
        let config = self.with_ordinals(config, groups).with_projection_indices(projection.cloned())?.build();
        self.listing.options().format.create_physical_plan(state, config).await
    }
}

impl OrdinalTable {
    /// A session that collects no statistics, when files are left out: they would come from the footers of all files.
    fn without_statistics(&self, state: &dyn Session) -> Option<SessionState> {
        if self.ordinals.skipped.is_empty() {
            return None;
        }
        let mut lean = state.as_any().downcast_ref::<SessionState>()?.clone();
        lean.config_mut().options_mut().execution.collect_statistics = false;
        Some(lean)
    }

    fn empty(&self, projection: Option<&Vec<usize>>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let schema = match projection {
            Some(columns) => Arc::new(self.schema.project(columns)?),
            None => Arc::clone(&self.schema),
        };
        Ok(Arc::new(EmptyExec::new(schema)))
    }

    fn ordinal(&self, file: &PartitionedFile) -> i32 {
        let text = self.listing.table_paths().first().map(|url| object_text(url, &file.object_meta.location));
        text.and_then(|text| self.ordinals.known.get(&text).copied()).unwrap_or(-1)
    }

    /// The files that are read, each with its ordinal as a last partition value.
    fn groups(&self, config: &FileScanConfig, partitions: usize) -> Vec<FileGroup> {
        let read = |group: &FileGroup| -> Vec<PartitionedFile> {
            let files = group.iter().map(|file| (self.ordinal(file), file));
            let files = files.filter(|(ordinal, _)| !self.ordinals.skipped.contains(ordinal));
            files.map(|(ordinal, file)| with_ordinal(file, ordinal)).collect()
        };
        let groups = config.file_groups.iter().map(read);
        if self.ordinals.skipped.is_empty() || config.output_partitioning.is_some() {
            return groups.map(FileGroup::new).collect();
        }
        FileGroup::new(groups.flatten().collect()).split_files(partitions)
    }

    /// The same scan of `groups`, with the column of ordinals.
    fn with_ordinals(&self, config: &FileScanConfig, groups: Vec<FileGroup>) -> FileScanConfigBuilder {
        let partition_columns = self.schema.fields().iter().skip(file_schema(&self.listing).fields().len()).cloned().collect::<Vec<_>>();
        let table = TableSchema::builder(file_schema(&self.listing)).with_table_partition_cols(partition_columns).build();
        let mut statistics = config.statistics();
        statistics.column_statistics.push(ColumnStatistics::new_unknown());
        if !self.ordinals.skipped.is_empty() {
            statistics = Statistics::new_unknown(&self.schema);
        }
        let source = self.listing.options().format.file_source(table);
        FileScanConfigBuilder::new(config.object_store_url.clone(), source)
            .with_file_groups(groups)
            .with_constraints(config.constraints.clone())
            .with_statistics(statistics)
            .with_output_ordering(config.output_ordering.clone())
            .with_output_partitioning(config.output_partitioning.clone())
            .with_expr_adapter(config.expr_adapter_factory.clone())
    }
}

fn with_ordinal(file: &PartitionedFile, ordinal: i32) -> PartitionedFile {
    let mut file = file.clone();
    file.partition_values.push(ScalarValue::Int32(Some(ordinal)));
    // Statistics of a file cover all columns of the table.
    file.statistics = file.statistics.map(|statistics| {
        let mut statistics = Arc::unwrap_or_clone(statistics);
        statistics.column_statistics.push(ColumnStatistics::new_unknown());
        Arc::new(statistics)
    });
    file
}
