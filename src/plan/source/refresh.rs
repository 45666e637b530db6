//! The session's tables as they are right now: with caches that belong to this capture, and with the files' current
//! schema where the columns were inferred.
//!
//! ```text
//! listing table, declared columns   same table, fresh caches
//! listing table, inferred columns   same table, fresh caches, columns inferred again
//! view over unchanged tables        its plan over the refreshed tables
//! view over changed tables          planned again from its definition
//! anything else                     as it is
//! ```
//!
//! A listing table keeps the schema that it had when it was created. Reading drifted files under it would cast
//! values without a word; with the current schema the drift is found as SCHEMA_CHANGED.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow_schema::{Field, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::Transformed;
use datafusion::datasource::listing::{ListingTable, ListingTableConfig};
use datafusion::datasource::{ViewTable, provider_as_source, source_as_provider};
use datafusion::error::DataFusionError;
use datafusion::execution::context::SessionState;
use datafusion::logical_expr::{LogicalPlan, TableScan};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::claims::{check_files, is_parquet};
use super::listing::{list, scans};
use super::overlay::{Overlay, TableName, find, full_name};
use super::statement::{INFERRED, build, created, parse};
use crate::error::{Error, ErrorCode, Result};

/// Refreshes tables for one capture.
#[derive(Debug)]
pub(super) struct Refresher<'a> {
    /// The derived state, over `overlay`.
    pub(super) state: &'a SessionState,
    pub(super) overlay: &'a Overlay,
    /// The incremental table, for messages.
    pub(super) table: &'a str,
    /// From the stored statements: whether each external table declares its columns.
    pub(super) declared: HashMap<TableName, bool>,
}

/// A refreshed table, and whether its schema moved.
pub(super) struct Refreshed {
    pub(super) provider: Arc<dyn TableProvider>,
    pub(super) changed: bool,
}

impl Refresher<'_> {
    pub(super) fn refresh(&self, name: TableName, provider: Arc<dyn TableProvider>) -> BoxFuture<'_, Result<Refreshed>> {
        async move {
            if let Some(listing) = provider.downcast_ref::<ListingTable>() {
                return self.listing(&name, listing).await;
            }
            match provider.get_logical_plan().map(|plan| plan.into_owned()) {
                Some(plan) => self.view(&provider, plan).await,
                None => Ok(Refreshed { provider, changed: false }),
            }
        }
        .boxed()
    }

    async fn listing(&self, name: &TableName, listing: &ListingTable) -> Result<Refreshed> {
        let cache = self.state.runtime_env().cache_manager.get_file_statistic_cache();
        let fresh = listing.clone().with_cache(cache.clone());
        let known = recorded(self.state, listing).or_else(|| self.declared.get(name).copied());
        // Without a word about it, columns count as declared: what a user wrote is never overruled.
        if known.unwrap_or(true) {
            return Ok(Refreshed { provider: Arc::new(fresh), changed: false });
        }
        let Some(now) = self.infer(listing).await? else {
            return Ok(Refreshed { provider: Arc::new(fresh), changed: false });
        };
        if same_columns(&file_schema(listing), &now) {
            return Ok(Refreshed { provider: Arc::new(fresh), changed: false });
        }
        let config = ListingTableConfig::new_with_multi_paths(listing.table_paths().clone())
            .with_listing_options(listing.options().clone())
            .with_schema(now);
        let definition = listing.get_table_definition().map(str::to_string);
        let rebuilt = ListingTable::try_new(config).map_err(|e| self.failed(e, "its files cannot be read as one table"))?;
        Ok(Refreshed { provider: Arc::new(rebuilt.with_cache(cache).with_definition(definition)), changed: true })
    }

    async fn infer(&self, listing: &ListingTable) -> Result<Option<SchemaRef>> {
        let failed = |e| self.failed(e, "the columns of the source's files cannot be inferred");
        let Some(inferred) = infer(self.state, listing).await.map_err(failed)? else { return Ok(None) };
        self.overlay.disagree(inferred.disagreements);
        Ok(Some(inferred.schema))
    }

    async fn view(&self, view: &Arc<dyn TableProvider>, plan: LogicalPlan) -> Result<Refreshed> {
        let failed = |e| self.failed(e, "the view that it reads cannot be planned");
        let mut refreshed = Vec::new();
        for scan in scans(&plan).map_err(failed)? {
            let Ok(provider) = source_as_provider(&scan.source) else { continue };
            let name = full_name(self.state, scan.table_name.clone());
            let now = self.refresh(name, Arc::clone(&provider)).await?;
            refreshed.push((provider, now));
        }
        if refreshed.iter().any(|(_, now)| now.changed) {
            let provider = self.replan(view.get_table_definition()).await?;
            let changed = !same_columns(&view.schema(), &provider.schema());
            return Ok(Refreshed { provider, changed });
        }
        let replace = |node| match node {
            LogicalPlan::TableScan(scan) => Ok(replace_source(scan, &refreshed)),
            other => Ok(Transformed::no(other)),
        };
        let plan = plan.transform_down_with_subqueries(replace).map_err(failed)?.data;
        let definition = view.get_table_definition().map(str::to_string);
        Ok(Refreshed { provider: Arc::new(ViewTable::new(plan, definition)), changed: false })
    }

    /// Plans a view's definition over the refreshed tables that it names.
    async fn replan(&self, definition: Option<&str>) -> Result<Arc<dyn TableProvider>> {
        let failed = |e| self.failed(e, "the view that it reads does not fit its tables any more");
        let unknown = || {
            Error::new(
                ErrorCode::SchemaChanged,
                format!(
                    "table \"{}\": the source is a view without a definition, and a table that it reads has other columns than \
                     when the view was made. Remedy: register the view again",
                    self.table
                ),
            )
        };
        let statement = parse(self.state, definition.ok_or_else(unknown)?).map_err(failed)?;
        let own = created(self.state, &statement).map(|(name, _)| name);
        for reference in self.state.resolve_table_references(&statement).map_err(failed)? {
            let name = full_name(self.state, reference);
            if Some(&name) == own.as_ref() || self.overlay.get(&name).is_some() {
                continue;
            }
            if let Some(table) = find(self.overlay.base(), &name).await.map_err(failed)? {
                let now = self.refresh(name.clone(), table).await?;
                self.overlay.insert(name, now.provider);
            }
        }
        build(self.state, statement).await.map_err(failed)
    }

    fn failed(&self, error: DataFusionError, what: &str) -> Error {
        let context = format!("table \"{}\": {what}. Remedy: mend the source, or create it again", self.table);
        Error::from_datafusion(error, ErrorCode::CaptureFailed, context)
    }
}

fn replace_source(mut scan: TableScan, refreshed: &[(Arc<dyn TableProvider>, Refreshed)]) -> Transformed<LogicalPlan> {
    let found = source_as_provider(&scan.source)
        .ok()
        .and_then(|provider| refreshed.iter().find(|(old, _)| Arc::ptr_eq(old, &provider)).map(|(_, now)| &now.provider));
    match found {
        Some(now) => {
            scan.source = provider_as_source(Arc::clone(now));
            Transformed::yes(LogicalPlan::TableScan(scan))
        }
        None => Transformed::no(LogicalPlan::TableScan(scan)),
    }
}

/// Whether the table's own definition says that its columns are declared; `None` when it does not say.
pub(super) fn recorded(state: &SessionState, listing: &ListingTable) -> Option<bool> {
    let definition = listing.get_table_definition()?;
    if definition.starts_with(INFERRED) {
        return Some(false);
    }
    // DataFusion's own text never has columns, so their absence says nothing.
    let (_, declared) = created(state, &parse(state, definition).ok()?)?;
    declared.then_some(true)
}

/// The columns that are in the files, without the partition columns of the folders.
pub(super) fn file_schema(listing: &ListingTable) -> SchemaRef {
    let partitions = &listing.options().table_partition_cols;
    let schema = listing.schema();
    let keep = schema.fields().len().saturating_sub(partitions.len());
    Arc::new(Schema::new(schema.fields().iter().take(keep).cloned().collect::<Vec<_>>()))
}

/// What the files say of their columns.
pub(super) struct Inferred {
    /// The columns that all files agree on, or that not every file has.
    pub(super) schema: SchemaRef,
    /// Columns whose types differ between files, with both types. They cannot be read, and are not in the schema.
    pub(super) disagreements: Vec<String>,
}

/// The schema of the table's files as they are now; `None` without a file that has one.
pub(super) async fn infer(state: &SessionState, listing: &ListingTable) -> Result<Option<Inferred>, DataFusionError> {
    let mut found = Vec::new();
    for url in listing.table_paths() {
        let files = list(state, listing, url).await?;
        if !files.values().any(|meta| meta.size > 0) {
            continue;
        }
        if is_parquet(listing) {
            check_files(state, listing, url, &files).await?;
        }
        match listing.options().infer_schema(state, url).await {
            Ok(schema) => found.push(schema),
            Err(e) if is_disagreement(&e) => {
                let store = state.runtime_env().object_store(url)?;
                for meta in files.into_values().filter(|meta| meta.size > 0) {
                    found.push(listing.options().format.infer_schema(state, &store, &[meta]).await?);
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok((!found.is_empty()).then(|| merge(&found)))
}

/// Whether the files could be read, but not as one table.
pub(super) fn is_disagreement(error: &DataFusionError) -> bool {
    error.strip_backtrace().contains("merge schema")
}

/// The union of the columns, without those whose types differ: they may be columns that nobody tracks.
fn merge(schemas: &[SchemaRef]) -> Inferred {
    let mut fields: Vec<Field> = Vec::new();
    let mut differing: BTreeMap<String, String> = BTreeMap::new();
    for field in schemas.iter().flat_map(|schema| schema.fields()) {
        let Some(known) = fields.iter_mut().find(|known| known.name() == field.name()) else {
            // Metadata of writers differs from file to file and decides nothing.
            fields.push(field.as_ref().clone().with_metadata(HashMap::new()));
            continue;
        };
        let was = known.data_type().clone();
        if known.try_merge(&field.as_ref().clone().with_metadata(HashMap::new())).is_err() {
            differing.entry(field.name().clone()).or_insert_with(|| format!("{:?} is {was} and {}", field.name(), field.data_type()));
        }
    }
    fields.retain(|field| !differing.contains_key(field.name()));
    // A file without the column reads as nulls, whatever the others say of themselves.
    for field in &mut fields {
        let everywhere = schemas.iter().all(|schema| schema.field_with_name(field.name()).is_ok());
        field.set_nullable(field.is_nullable() || !everywhere);
    }
    Inferred { schema: Arc::new(Schema::new(fields)), disagreements: differing.into_values().collect() }
}

/// The same columns of the same types in the same order.
pub(super) fn same_columns(a: &Schema, b: &Schema) -> bool {
    let columns = |schema: &Schema| -> Vec<_> { schema.fields().iter().map(|f| (f.name().clone(), f.data_type().clone())).collect() };
    columns(a) == columns(b)
}
