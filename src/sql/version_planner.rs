//! Version clauses in `ctx.sql` of dialects that parse them: rewritten to our table functions, never ignored.
//!
//! DataFusion's planner drops a version clause and reads the current rows. Dialects that know the clause (Snowflake,
//! Databricks, BigQuery, SQL Server) reach it without our parser, so this planner stands in front of it.

use datafusion::error::Result as DfResult;
use datafusion::logical_expr::planner::{RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::sql::sqlparser::ast::TableFactor;

use super::as_of::rewrite_relation;

/// Turns `t VERSION AS OF n` into `incremental_at('t', n)`, which refuses tables that are not ours.
#[derive(Debug, Default)]
pub struct VersionPlanner;

impl RelationPlanner for VersionPlanner {
    fn plan_relation(&self, mut relation: TableFactor, _context: &mut dyn RelationPlannerContext) -> DfResult<RelationPlanning> {
        rewrite_relation(&mut relation)?;
        Ok(RelationPlanning::Original(Box::new(relation)))
    }
}
