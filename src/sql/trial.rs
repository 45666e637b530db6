//! `incremental_test`: an unsaved handler over all current rows, as a table.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;

use super::extension::Extension;
use super::functions::{project, session_state};
use crate::error::Result;
use crate::run::{Host, trial_plan};
use crate::table::TableHandle;

/// The rows that a query would give as the table's handler, contract checked. Leaves no trace.
#[derive(Debug)]
pub struct TrialTable {
    table: Arc<TableHandle>,
    text: String,
    schema: SchemaRef,
}

impl TrialTable {
    /// Judges the query; no row is read yet.
    ///
    /// # Errors
    /// Every refusal of the sandbox.
    pub async fn try_new(host: &Host, table: Arc<TableHandle>, text: String) -> Result<Self> {
        let schema = trial_plan(host, &table, &text).await?.schema();
        Ok(Self { table, text, schema })
    }
}

#[async_trait]
impl TableProvider for TrialTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let state = session_state(session)?;
        let host = Extension::of(&state)?.host(&state);
        let plan = trial_plan(&host, &self.table, &self.text).await?;
        project(plan, projection)
    }
}
