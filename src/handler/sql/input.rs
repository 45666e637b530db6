//! The relation `input`: a schema to plan against, or a given physical plan.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;

use super::nodes::HandlerInputExec;

#[derive(Debug)]
pub(super) struct InputTable {
    schema: SchemaRef,
    plan: Option<Arc<dyn ExecutionPlan>>,
}

impl InputTable {
    /// Planned against, never executed.
    pub(super) fn of_schema(schema: SchemaRef) -> Self {
        Self { schema, plan: None }
    }

    /// The rows of `plan`, its columns found by name, in the types of `schema`.
    pub(super) fn of_plan(schema: SchemaRef, plan: Arc<dyn ExecutionPlan>) -> Self {
        Self { schema, plan: Some(plan) }
    }
}

#[async_trait]
impl TableProvider for InputTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = match projection {
            Some(indices) => Arc::new(self.schema.project(indices)?),
            None => Arc::clone(&self.schema),
        };
        match &self.plan {
            Some(plan) => Ok(Arc::new(HandlerInputExec::try_new(Arc::clone(plan), schema)?)),
            None => Ok(Arc::new(EmptyExec::new(schema))),
        }
    }
}
