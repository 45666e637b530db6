//! Several tables in one call: sources first, dependents of a failure skipped, the others go on.
//!
//! ```text
//! a ─► b ─► d        a fails: b and d are skipped, c goes on
//! c                  running again does only what is left: what is accepted has no changes
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::LogicalPlan;

use crate::error::{Error, ErrorCode, Result};
use crate::plan::source::resolve;
use crate::spec::{RunState, RunSummary};
use crate::table::{IncrementalTable, TableHandle};

use super::{Host, RefreshRequest, RunResult, refresh};

/// Refreshes `tables` in dependency order, whatever their order in the list. Those whose incarnations are `blocked` are
/// skipped, since something that they read failed already.
///
/// # Errors
/// `DEFINITION_INVALID` when tables read each other in a circle; `STORE_FAILED` when the store does not say what a table
/// reads. Errors of runs are in their rows.
pub async fn refresh_in_order(
    host: &Host,
    tables: &[Arc<TableHandle>],
    request: &RefreshRequest,
    blocked: &BTreeSet<String>,
) -> Result<Vec<RunResult>> {
    let mut reads = BTreeMap::new();
    for table in tables {
        reads.insert(id(table), dependencies(host, table).await?);
    }
    let mut unusable: BTreeSet<String> = BTreeSet::new();
    let mut results = vec![];
    for table in order(tables, &reads)? {
        let failed = reads.get(&id(&table)).and_then(|reads| reads.iter().find(|read| unusable.contains(*read)));
        let result = match failed {
            Some(_) => skipped(&table, request),
            None if blocked.contains(&id(&table)) => skipped(&table, request),
            None => refresh(host, &table, request.clone()).await,
        };
        if result.error.is_some() {
            unusable.insert(id(&table));
        }
        results.push(result);
    }
    Ok(results)
}

/// `tables` with sources before dependents.
///
/// # Errors
/// Those of [`refresh_in_order`].
pub async fn in_order(host: &Host, tables: &[Arc<TableHandle>]) -> Result<Vec<Arc<TableHandle>>> {
    let mut reads = BTreeMap::new();
    for table in tables {
        reads.insert(id(table), dependencies(host, table).await?);
    }
    order(tables, &reads)
}

/// The incarnations of every table among `all` that `table` reads, however many tables lie between.
///
/// # Errors
/// Those of [`dependencies`].
pub async fn everything_behind(host: &Host, all: &[Arc<TableHandle>], table: &TableHandle) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut open = dependencies(host, table).await?;
    while let Some(next) = open.pop_first() {
        let Some(read) = all.iter().find(|known| id(known) == next) else { continue };
        if found.insert(next) {
            open.extend(dependencies(host, read).await?);
        }
    }
    Ok(found)
}

/// The incarnations of the incremental tables that `table` reads, directly or through views. A source that cannot be
/// resolved, and a definition that is damaged, have none: the run itself will say what is wrong.
///
/// # Errors
/// `STORE_FAILED`: a store that does not answer does not say that nothing is read.
pub async fn dependencies(host: &Host, table: &TableHandle) -> Result<BTreeSet<String>> {
    let definitions = match table.incarnation().definitions().await {
        Err(error) => return none_unless_unavailable(error),
        Ok(definitions) => definitions,
    };
    let Some(revision) = definitions.active() else { return Ok(BTreeSet::new()) };
    match resolve(&host.state, table.name(), &revision.definition.source).await {
        Err(error) => none_unless_unavailable(error),
        Ok(source) => Ok(tables_behind(source.provider.as_ref()).iter().map(|table| id(table)).collect()),
    }
}

fn none_unless_unavailable(error: Error) -> Result<BTreeSet<String>> {
    if error.code() == ErrorCode::StoreFailed { Err(error) } else { Ok(BTreeSet::new()) }
}

/// The incremental tables that reading `provider` reads: itself, or those behind views.
pub(crate) fn tables_behind(provider: &dyn TableProvider) -> Vec<Arc<TableHandle>> {
    let mut found = vec![];
    collect_tables(provider, &mut found);
    found
}

fn collect_tables(provider: &dyn TableProvider, found: &mut Vec<Arc<TableHandle>>) {
    if let Some(table) = provider.downcast_ref::<IncrementalTable>() {
        found.push(Arc::clone(table.handle()));
        return;
    }
    if let Some(plan) = provider.get_logical_plan() {
        // The walk itself cannot fail: the visitor never does.
        let _ = plan.apply_with_subqueries(|node| {
            if let LogicalPlan::TableScan(scan) = node
                && let Ok(provider) = source_as_provider(&scan.source)
            {
                collect_tables(provider.as_ref(), found);
            }
            Ok(TreeNodeRecursion::Continue)
        });
    }
}

fn id(table: &TableHandle) -> String {
    table.incarnation().id().to_string()
}

/// Sources before dependents; otherwise the order of the list.
fn order(tables: &[Arc<TableHandle>], reads: &BTreeMap<String, BTreeSet<String>>) -> Result<Vec<Arc<TableHandle>>> {
    let mut waiting: Vec<Arc<TableHandle>> = vec![];
    for table in tables {
        if !waiting.iter().any(|known| id(known) == id(table)) {
            waiting.push(Arc::clone(table));
        }
    }
    let mut ordered = vec![];
    while !waiting.is_empty() {
        let open: BTreeSet<String> = waiting.iter().map(|table| id(table)).collect();
        let ready = waiting.iter().position(|table| reads.get(&id(table)).is_none_or(|reads| reads.is_disjoint(&open)));
        let Some(ready) = ready else {
            let names: Vec<&str> = waiting.iter().map(|table| table.name()).collect();
            return Err(Error::new(
                ErrorCode::DefinitionInvalid,
                format!("the tables {names:?} read each other in a circle. Remedy: let one of them read another source"),
            ));
        };
        ordered.push(waiting.remove(ready));
    }
    Ok(ordered)
}

/// The row of a table that is left alone because one that it reads failed.
pub(crate) fn skipped(table: &TableHandle, request: &RefreshRequest) -> RunResult {
    let error = Error::new(
        ErrorCode::SourceNotReady,
        format!("table {:?}: skipped, because a table that it reads failed. Remedy: mend that one, then refresh both", table.name()),
    );
    let mut summary = RunSummary::new("", request.mode, RunState::Skipped);
    summary.error_code = Some(error.code().as_str().to_string());
    summary.error_message = Some(error.message().to_string());
    RunResult { summary, error: Some(error) }
}
