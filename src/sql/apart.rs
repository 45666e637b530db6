//! Keeps two calls of a table function apart in one statement.
//!
//! ```text
//! incremental_at('t', 1) ─► TableScan "incremental_at()"  ─┐ equal to DataFusion: it compares names, not sources
//! incremental_at('t', 2) ─► TableScan "incremental_at()"  ─┘
//!                  ─► SubqueryAlias "incremental_at()" over TableScan "incremental_at() #1" │ "… #2"
//! ```
//!
//! DataFusion names every call of a table function alike and leaves out the arguments, and it plans equal scalar
//! subqueries once: the second call would be answered with the first one's rows, and a verb that acts would act once for
//! two tables. The alias keeps the columns' names. Memory: one name per call.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::TableReference;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::logical_plan::TableScanBuilder;
use datafusion::logical_expr::{LogicalPlan, SubqueryAlias, TableScan};
use datafusion::optimizer::AnalyzerRule;

use super::verbs::find_function;

/// Gives each call of our table functions a name of its own.
#[derive(Debug, Default, Clone, Copy)]
pub struct ApartRule;

impl AnalyzerRule for ApartRule {
    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        let mut taken = HashSet::new();
        plan.apply_with_subqueries(|node| {
            if let LogicalPlan::TableScan(scan) = node {
                taken.insert(scan.table_name.table().to_string());
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        let named = plan.transform_down_with_subqueries(|node| match node {
            LogicalPlan::TableScan(scan) if is_call(&scan) => {
                // The scan below the alias must not be visited again.
                Ok(Transformed::new(named(scan, &mut taken)?, true, TreeNodeRecursion::Jump))
            }
            other => Ok(Transformed::no(other)),
        })?;
        Ok(named.data)
    }

    fn name(&self) -> &str {
        "incremental_apart"
    }
}

/// Whether the scan is a call that has no name of its own yet.
fn is_call(scan: &TableScan) -> bool {
    scan.table_name.table().strip_suffix("()").and_then(find_function).is_some()
}

fn named(scan: TableScan, taken: &mut HashSet<String>) -> Result<LogicalPlan> {
    let alias = scan.table_name.clone();
    let mut number = 1_u64;
    let mut name = format!("{} #{number}", alias.table());
    while !taken.insert(name.clone()) {
        number += 1;
        name = format!("{} #{number}", alias.table());
    }
    let scan = TableScanBuilder::new(TableReference::bare(name), scan.source)
        .with_projection(scan.projection)
        .with_filters(scan.filters)
        .with_fetch(scan.fetch)
        .build()?;
    Ok(LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(LogicalPlan::TableScan(scan)), alias)?))
}
