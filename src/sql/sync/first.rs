//! `REFRESH … WITH SYNC`: the synced tables behind the tables that are refreshed go first.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::execution::SessionState;

use super::execute::context;
use crate::error::{Error, Result};
use crate::run::{RefreshRequest, RunResult, everything_behind, in_order, skipped};
use crate::sql::extension::Extension;
use crate::sql::resolve::all_tables;
use crate::sync::ops::{self, SyncRequest};
use crate::sync::schedule::{Scheduler, Tick};
use crate::table::TableHandle;

/// What came of the synced tables.
#[derive(Debug, Default)]
pub(in crate::sql) struct Synced {
    /// Their runs, what is read before what reads it.
    pub results: Vec<RunResult>,
    /// The incarnations of the tables that read one that failed.
    pub blocked: BTreeSet<String>,
}

impl Synced {
    /// The error of the first run that failed.
    pub fn first_error(&self) -> Option<Error> {
        self.results.iter().find_map(|result| result.error.clone())
    }
}

/// Syncs what `tables` read, however many tables lie between; those with should_sync off keep what they have.
pub(in crate::sql) async fn sync_first(state: &SessionState, tables: &[Arc<TableHandle>]) -> Result<Synced> {
    let context = context(state)?;
    let all: Vec<Arc<TableHandle>> = all_tables(state).await?.into_iter().map(|(_, table)| table).collect();
    let mut behind = vec![];
    for table in tables {
        behind.push((table, everything_behind(&context.host, &all, table).await?));
    }
    let is_read = |table: &TableHandle| behind.iter().any(|(_, behind)| behind.contains(table.incarnation().id()));
    let (mut results, mut failed) = (vec![], BTreeSet::new());
    let read: Vec<Arc<TableHandle>> = all.iter().filter(|table| table.is_synced() && is_read(table)).cloned().collect();
    for table in &in_order(&context.host, &read).await? {
        let log = table.incarnation().sync_log().await?;
        if !log.newest().is_some_and(|saved| saved.config.should_sync()) {
            continue;
        }
        let result = match everything_behind(&context.host, &all, table).await?.is_disjoint(&failed) {
            true => ops::reload(&context, table, SyncRequest::default()).await,
            false => skipped(table, &RefreshRequest::default()),
        };
        if result.error.is_some() {
            failed.insert(table.incarnation().id().to_string());
        }
        results.push(result);
    }
    let blocked = behind.into_iter().filter(|(_, behind)| !behind.is_disjoint(&failed));
    let blocked = blocked.map(|(table, _)| table.incarnation().id().to_string()).collect();
    Ok(Synced { results, blocked })
}

/// Starts what the schedules of the session's tables say is due now.
pub async fn look(state: &SessionState, scheduler: &mut Scheduler) -> Result<Tick> {
    Extension::of(state)?.check_may_act(state, "running schedules")?;
    let all: Vec<Arc<TableHandle>> = all_tables(state).await?.into_iter().map(|(_, table)| table).collect();
    Ok(scheduler.look(&context(state)?, &all).await)
}
