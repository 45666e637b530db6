//! Version clauses in `ctx.sql` of dialects that parse them: rewritten to our table functions, never ignored.
//!
//! DataFusion's planner drops a version clause and reads the current rows. Dialects that know the clause (Snowflake,
//! Databricks, BigQuery, SQL Server) reach it without our parser, so this planner stands in front of it.

use datafusion::error::Result as DfResult;
use datafusion::logical_expr::planner::{RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, Ident, ObjectName, TableAlias, TableFactor, TableFunctionArgs, TableVersion, Value,
};

use super::names::quote_name;
use crate::error::{Error, ErrorCode};

/// Turns `t VERSION AS OF n` into `incremental_at('t', n)`, which refuses tables that are not ours.
#[derive(Debug, Default)]
pub struct VersionPlanner;

impl RelationPlanner for VersionPlanner {
    fn plan_relation(&self, mut relation: TableFactor, context: &mut dyn RelationPlannerContext) -> DfResult<RelationPlanning> {
        if let TableFactor::Table { name, alias, args, version, .. } = &mut relation
            && let Some(clause) = version.take()
        {
            let (function, point) = point(clause)?;
            let table = context.object_name_to_table_reference(name.clone())?;
            if alias.is_none() {
                let name = Ident::with_quote('"', table.table());
                *alias = Some(TableAlias { explicit: true, name, columns: Vec::new(), at: None });
            }
            let values = [Value::SingleQuotedString(quote_name(&table)), point];
            let list = values.into_iter().map(|value| FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(value.into()))));
            *name = ObjectName::from(vec![Ident::new(function)]);
            *args = Some(TableFunctionArgs { args: list.collect(), settings: None });
        }
        Ok(RelationPlanning::Original(Box::new(relation)))
    }
}

fn point(clause: TableVersion) -> DfResult<(&'static str, Value)> {
    let literal = |expr: Expr| match expr {
        Expr::Value(value) => Some(value.value),
        Expr::TypedString(typed) => Some(typed.value.value),
        _ => None,
    };
    let text = clause.to_string();
    let point = match clause {
        TableVersion::VersionAsOf(expr) => literal(expr).map(|value| ("incremental_at", value)),
        TableVersion::TimestampAsOf(expr) | TableVersion::ForSystemTimeAsOf(expr) => {
            literal(expr).map(|value| ("incremental_at_timestamp", value))
        }
        _ => None,
    };
    point.filter(|(_, value)| matches!(value, Value::Number(..) | Value::SingleQuotedString(_))).ok_or_else(|| {
        let message = format!("the version clause {text:?} is not known. Remedy: write VERSION AS OF n, or TIMESTAMP AS OF '…'");
        Error::new(ErrorCode::StatementInvalid, message).into()
    })
}
