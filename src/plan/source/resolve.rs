//! From a revision's source to a table that can be captured.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{FieldRef, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::common::{Column, TableReference};
use datafusion::datasource::provider_as_source;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::context::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::batches::bounded;
use super::describe::not_found;
use super::listing::listing_tables;
use super::overlay::{Overlay, TableName, display, find};
use super::refresh::Refresher;
use super::session::with_catalogs;
use super::split::share_row_groups;
use super::statement::{build_any, created, parse};
use crate::error::{Error, ErrorCode, Result};
use crate::spec::SourceSpec;

/// The source as it is right now, in a derived session of its own. Execute [`ResolvedSource::plan`] with this state's
/// task context.
#[derive(Debug)]
pub struct ResolvedSource {
    /// The derived session.
    pub state: SessionState,
    /// The table.
    pub provider: Arc<dyn TableProvider>,
    /// Its columns as the files have them now (declared columns win).
    pub schema: SchemaRef,
    /// Columns that are not in the schema because the files do not agree on their types, in words.
    pub disagreements: Vec<String>,
    /// The incremental table, for messages.
    pub(super) table: String,
}

/// Finds the source of `table`: the session's table of that name, else what the stored statements create, in the
/// derived session only.
///
/// # Errors
/// `SOURCE_NOT_FOUND`; `SCHEMA_CHANGED` and `CAPTURE_FAILED` when it cannot be read as one table.
pub async fn resolve(state: &SessionState, table: &str, spec: &SourceSpec) -> Result<ResolvedSource> {
    let overlay = Overlay::over(state.catalog_list());
    let mut derived = with_catalogs(state, Arc::new(overlay.clone()))?;
    let find_failed = |e| open_failed(e, table, &spec.name);
    let provider = match find(overlay.base(), &spec.name).await.map_err(find_failed)? {
        Some(provider) => {
            let declared = declared(&derived, spec);
            let refresher = Refresher { state: &derived, overlay: &overlay, table, declared };
            refresher.refresh(spec.name.clone(), provider).await?.provider
        }
        None => {
            let mut reviving = derived.clone();
            let [catalog, schema, _] = &spec.name;
            // Names that a statement leaves short mean the source's own catalog and schema.
            let defaults = &mut reviving.config_mut().options_mut().catalog;
            defaults.default_catalog.clone_from(catalog);
            defaults.default_schema.clone_from(schema);
            Reviver { base: state, table, overlay: &overlay, state: &reviving }.revive(spec).await?
        }
    };
    if has_floats_in_files(&provider).map_err(find_failed)? {
        derived.config_mut().options_mut().execution.collect_statistics = false;
    }
    let schema = provider.schema();
    let disagreements = overlay.disagreements();
    Ok(ResolvedSource { state: derived, provider, schema, disagreements, table: table.to_string() })
}

/// Whether files behind `provider` hold floating-point numbers. Statistics of Parquet files leave NaN out, and DataFusion takes
/// them for the values themselves: a column of one number and NaN is read as that number everywhere, and `max` is never NaN.
fn has_floats_in_files(provider: &Arc<dyn TableProvider>) -> DataFusionResult<bool> {
    let is_float = |field: &FieldRef| field.data_type().is_floating();
    Ok(listing_tables(provider)?.iter().any(|listing| listing.schema().fields().iter().any(is_float)))
}

/// Which of the stored statements declare their columns.
fn declared(state: &SessionState, spec: &SourceSpec) -> HashMap<TableName, bool> {
    spec.statements.iter().filter_map(|text| created(state, &parse(state, text).ok()?)).collect()
}

fn open_failed(error: DataFusionError, table: &str, source: &TableName) -> Error {
    let context = format!(
        "table \"{table}\": source \"{}\" cannot be opened. Remedy: check its files, or create the source in this session",
        display(source)
    );
    Error::from_datafusion(error, ErrorCode::CaptureFailed, context)
}

struct Reviver<'a> {
    base: &'a SessionState,
    table: &'a str,
    overlay: &'a Overlay,
    state: &'a SessionState,
}

impl Reviver<'_> {
    /// Executes the stored statements in order; tables that the session has win.
    async fn revive(&self, spec: &SourceSpec) -> Result<Arc<dyn TableProvider>> {
        let declared = declared(self.state, spec);
        let refresher = Refresher { state: self.state, overlay: self.overlay, table: self.table, declared };
        for text in &spec.statements {
            let failed = |e| open_failed(e, self.table, &spec.name);
            let statement = parse(self.state, text).map_err(failed)?;
            let name = created(self.state, &statement).map(|(name, _)| name).ok_or_else(|| self.foreign(text))?;
            let provider = match find(self.overlay.base(), &name).await.map_err(failed)? {
                Some(provider) => refresher.refresh(name.clone(), provider).await?.provider,
                None => {
                    let (built, complete) = build_any(self.state, statement).await.map_err(failed)?;
                    if complete { built } else { refresher.refresh(name.clone(), built).await?.provider }
                }
            };
            self.overlay.insert(name, provider);
        }
        self.overlay.get(&spec.name).ok_or_else(|| {
            let error = not_found(self.base, &spec.name);
            Error::new(error.code(), format!("table \"{}\": {}", self.table, error.message()))
        })
    }

    fn foreign(&self, text: &str) -> Error {
        let start: String = text.chars().take(40).collect();
        Error::new(
            ErrorCode::Corrupt,
            format!(
                "table \"{}\": a stored source statement creates no table: {start:?}. Remedy: create the source in this session",
                self.table
            ),
        )
    }
}

impl ResolvedSource {
    /// A plan that reads exactly `columns`, in that order, with one scan of the source.
    ///
    /// # Errors
    /// `SCHEMA_CHANGED` for a column that is gone; `SOURCE_UNBOUNDED` for a source without an end; `CAPTURE_FAILED`
    /// when the source cannot be planned.
    pub async fn plan(&self, columns: &[String]) -> Result<Arc<dyn ExecutionPlan>> {
        let projection = columns.iter().map(|name| self.position(name)).collect::<Result<Vec<_>>>()?;
        let relation = TableReference::bare("source");
        // Columns by structure, never by parsing names: they may have capitals, spaces, dots and quotes.
        let exprs: Vec<Expr> = columns.iter().map(|name| Expr::Column(Column::new(Some(relation.clone()), name))).collect();
        let plan = LogicalPlanBuilder::scan(relation, provider_as_source(Arc::clone(&self.provider)), Some(projection))
            .and_then(|scan| scan.project(exprs))
            .and_then(|plan| plan.build())
            .map_err(|e| self.unreadable(e))?;
        self.physical(&plan).await
    }

    /// The physical plan of a query over the source's provider.
    ///
    /// # Errors
    /// `SOURCE_UNBOUNDED` for a source without an end; `CAPTURE_FAILED` when it cannot be planned.
    pub async fn physical(&self, plan: &LogicalPlan) -> Result<Arc<dyn ExecutionPlan>> {
        match self.state.create_physical_plan(plan).await {
            Ok(plan) if is_unbounded(&plan) => Err(self.unbounded()),
            // An aggregate or a sort over a stream is refused before there is a plan to look at.
            Err(e) if e.find_root().strip_backtrace().contains("pipeline breaking") => Err(self.unbounded()),
            planned => {
                let planned = planned.map_err(|e| self.unreadable(e))?;
                Ok(bounded(&self.state, share_row_groups(&self.state, planned).await))
            }
        }
    }

    fn unreadable(&self, error: DataFusionError) -> Error {
        let context = format!("table \"{}\": the source cannot be read. Remedy: check the source's files and definition", self.table);
        Error::from_datafusion(error, ErrorCode::CaptureFailed, context)
    }

    /// A plan of the source's rows that was made elsewhere, with batches of limited bytes.
    pub fn bounded(&self, plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        bounded(&self.state, plan)
    }

    fn unbounded(&self) -> Error {
        Error::new(
            ErrorCode::SourceUnbounded,
            format!(
                "table \"{}\": the source is a stream without an end and can never be captured whole. \
                 Remedy: read from a bounded table, for example what the stream has written so far",
                self.table
            ),
        )
    }

    fn position(&self, column: &str) -> Result<usize> {
        self.schema.index_of(column).map_err(|_| {
            let names: Vec<&str> = self.schema.fields().iter().map(|f| f.name().as_str()).collect();
            Error::new(
                ErrorCode::SchemaChanged,
                format!(
                    "table \"{}\": column {column:?} is not in the source, whose columns are {}. \
                     Remedy: restore the column, or ALTER INCREMENTAL TABLE with other KEY, TRACK or handler columns",
                    self.table,
                    names.join(", ")
                ),
            )
        })
    }
}

/// Any unbounded node: an operator above it may hide it, a capture would still wait for ever.
fn is_unbounded(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.boundedness().is_unbounded() || plan.children().into_iter().any(is_unbounded)
}
