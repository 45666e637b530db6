//! `IncrementalTable`: the table provider. Reads only.
//!
//! ```text
//! Newest      registered; every statement pins the newest version
//! Statement   a clone that PinRule made for one statement
//! Version     AS OF, or a draft's output: pinned by the user
//! ```

use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Constraint, Constraints, DFSchema, DFSchemaRef};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::dml::{InsertOp, MergeIntoClause};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableScan, TableType};
use datafusion::physical_plan::ExecutionPlan;

use super::pin::StatementPin;
use super::{Snapshot, TableHandle};
use crate::error::{Error, ErrorCode, Result};
use crate::plan::published_scan::{ScanRequest, scan_snapshot};
use crate::spec::check_same_types;

type PlanResult = Result<Arc<dyn ExecutionPlan>, DataFusionError>;

/// A published table as DataFusion sees it: always the complete rows of one version.
#[derive(Debug, Clone)]
pub struct IncrementalTable {
    handle: Arc<TableHandle>,
    view: View,
    key: Vec<String>,
    constraints: Option<Constraints>,
    definition: Option<String>,
}

#[derive(Debug, Clone)]
enum View {
    Newest,
    Statement { pin: Arc<StatementPin>, planned: SchemaRef },
    Version(Arc<Snapshot>),
}

impl IncrementalTable {
    /// The table as it is now, at every statement anew.
    pub fn new(handle: Arc<TableHandle>) -> Self {
        let (key, schema) = (handle.cached_key(), handle.cached_schema());
        let constraints = primary_key(&key, &schema);
        Self { handle, view: View::Newest, key, constraints, definition: None }
    }

    /// The table as it was: one version, or a draft's output.
    pub fn at(handle: Arc<TableHandle>, snapshot: Arc<Snapshot>) -> Self {
        let key = snapshot.key.clone();
        let constraints = primary_key(&key, &snapshot.output_schema);
        Self { handle, view: View::Version(snapshot), key, constraints, definition: None }
    }

    /// The same provider with the statement that SHOW CREATE TABLE prints.
    pub fn with_definition(mut self, definition: impl Into<String>) -> Self {
        self.definition = Some(definition.into());
        self
    }

    /// The table behind it.
    pub fn handle(&self) -> &Arc<TableHandle> {
        &self.handle
    }

    /// The snapshot that the user pinned (AS OF, or a draft's output).
    pub fn pinned_snapshot(&self) -> Option<&Arc<Snapshot>> {
        match &self.view {
            View::Version(snapshot) => Some(snapshot),
            View::Newest | View::Statement { .. } => None,
        }
    }

    /// A clone for one statement; `None` when the user pinned a version.
    ///
    /// # Errors
    /// `SCHEMA_CHANGED` when `scan` was planned over another schema than the table has now.
    pub(super) fn pinned(&self, pin: Arc<StatementPin>, scan: &TableScan) -> Result<Option<Self>> {
        let planned = match &self.view {
            View::Version(_) => return Ok(None),
            View::Statement { planned, .. } => Arc::clone(planned),
            View::Newest => {
                let schema = self.handle.cached_schema();
                let trusts_key = !scan.projected_schema.functional_dependencies().is_empty();
                if !is_projection(&scan.projected_schema, &schema, scan.projection.as_deref()) || trusts_key && self.constraints().is_none()
                {
                    return Err(self.schema_changed(scan.projected_schema.as_arrow(), &schema));
                }
                schema
            }
        };
        let constraints = self.constraints().cloned();
        Ok(Some(Self { view: View::Statement { pin, planned }, constraints, key: self.handle.cached_key(), ..self.clone() }))
    }

    #[cfg(test)]
    pub(super) fn pin(&self) -> Option<&Arc<StatementPin>> {
        match &self.view {
            View::Statement { pin, .. } => Some(pin),
            View::Newest | View::Version(_) => None,
        }
    }

    async fn snapshot(&self, session: &dyn Session) -> Result<Arc<Snapshot>> {
        let (planned, trusts_key) = (self.schema(), self.constraints().is_some());
        let snapshot = match &self.view {
            View::Version(snapshot) => return Ok(Arc::clone(snapshot)),
            View::Statement { pin, .. } => pin.snapshot(&self.handle).await?,
            View::Newest => self.handle.recent_pin(session).snapshot(&self.handle).await?,
        };
        let snapshot = snapshot.ok_or_else(|| self.handle.not_published())?;
        if !is_same(&planned, &snapshot.output_schema) || trusts_key && self.key != snapshot.key {
            return Err(self.schema_changed(&planned, &snapshot.output_schema));
        }
        Ok(snapshot)
    }

    fn schema_changed(&self, planned: &Schema, now: &Schema) -> Error {
        let mut columns: Vec<String> = planned.fields().iter().map(|f| f.name().clone()).collect();
        columns.extend(now.fields().iter().map(|f| f.name().clone()).filter(|name| planned.index_of(name).is_err()));
        let differences: Vec<String> = check_same_types(planned, now, &columns).iter().take(5).map(ToString::to_string).collect();
        let what = if differences.is_empty() { "their order or the key".to_string() } else { differences.join("; ") };
        Error::new(
            ErrorCode::SchemaChanged,
            format!(
                "table {:?}: its published columns changed since the statement was planned: {what}. Remedy: run the statement again; prepare it again if it was prepared, and create a view over the table again",
                self.handle.name()
            ),
        )
    }

    fn read_only(&self, what: &str) -> DataFusionError {
        let (table, run) = (self.handle.name(), self.handle.first_remedy());
        Error::new(
            ErrorCode::ReadOnly,
            format!("table {table:?}: {what} is not possible, its rows follow from its source. Remedy: change the source, then run {run}"),
        )
        .into()
    }
}

/// The published key columns are unique and not null: every publish checks it.
fn primary_key(key: &[String], schema: &Schema) -> Option<Constraints> {
    let positions: Option<Vec<usize>> = key.iter().map(|name| schema.index_of(name).ok()).collect();
    positions
        .filter(|positions| !positions.is_empty())
        .map(|positions| Constraints::new_unverified(vec![Constraint::PrimaryKey(positions)]))
}

/// Same names and types in the same order.
fn is_same(a: &Schema, b: &Schema) -> bool {
    a.fields().len() == b.fields().len()
        && a.fields().iter().zip(b.fields()).all(|(a, b)| a.name() == b.name() && a.data_type() == b.data_type())
}

fn is_projection(projected: &DFSchema, schema: &Schema, projection: Option<&[usize]>) -> bool {
    match projection {
        None => is_same(projected.as_arrow(), schema),
        Some(projection) => schema.project(projection).is_ok_and(|schema| is_same(projected.as_arrow(), &schema)),
    }
}

#[async_trait]
impl TableProvider for IncrementalTable {
    fn schema(&self) -> SchemaRef {
        match &self.view {
            View::Newest => self.handle.cached_schema(),
            View::Statement { planned, .. } => Arc::clone(planned),
            View::Version(snapshot) => Arc::clone(&snapshot.output_schema),
        }
    }

    fn constraints(&self) -> Option<&Constraints> {
        // The planner trusts them, so they are withheld once another revision published another key or column order.
        let current = match &self.view {
            View::Newest => primary_key(&self.handle.cached_key(), &self.handle.cached_schema()) == self.constraints,
            View::Statement { .. } | View::Version(_) => true,
        };
        self.constraints.as_ref().filter(|_| current)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn get_table_definition(&self) -> Option<&str> {
        self.definition.as_deref()
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>, DataFusionError> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(&self, session: &dyn Session, projection: Option<&Vec<usize>>, filters: &[Expr], limit: Option<usize>) -> PlanResult {
        let snapshot = self.snapshot(session).await?;
        scan_snapshot(&snapshot, session, ScanRequest { projection, filters, limit }).await
    }

    async fn insert_into(&self, _: &dyn Session, _: Arc<dyn ExecutionPlan>, _: InsertOp) -> PlanResult {
        Err(self.read_only("INSERT"))
    }

    async fn delete_from(&self, _: &dyn Session, _: Vec<Expr>) -> PlanResult {
        Err(self.read_only("DELETE"))
    }

    async fn update(&self, _: &dyn Session, _: Vec<(String, Expr)>, _: Vec<Expr>) -> PlanResult {
        Err(self.read_only("UPDATE"))
    }

    async fn truncate(&self, _: &dyn Session) -> PlanResult {
        Err(self.read_only("TRUNCATE"))
    }

    async fn merge_into(&self, _: &dyn Session, _: Arc<dyn ExecutionPlan>, _: DFSchemaRef, _: Expr, _: Vec<MergeIntoClause>) -> PlanResult {
        Err(self.read_only("MERGE"))
    }
}
