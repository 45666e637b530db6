//! Running, cancelling, starting over, deleting.

use std::sync::Arc;
use std::time::Duration;

use super::alter::append;
use crate::error::{Error, ErrorCode, Result};
use crate::run::{self, RefreshRequest, RunResult, VacuumRequest, run_outside};
use crate::spec::RunId;
use crate::spec::sync::{SyncTrigger, SyncType};
use crate::store::SyncEntry;
use crate::sync::SyncContext;
use crate::sync::run::{Ask, SyncWork};
use crate::sync::status::active_run;
use crate::table::TableHandle;

/// How long a resync waits for a run that it cancelled.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);

/// One run as it is asked for.
#[derive(Debug, Clone)]
pub struct SyncRequest {
    /// The run's id; `None` mints one. The same id again gives the same answer.
    pub run: Option<RunId>,
    /// Publish although the delete guard would hold the run.
    pub allow_deletes: bool,
    /// Who asks.
    pub trigger: SyncTrigger,
}

impl Default for SyncRequest {
    fn default() -> Self {
        Self { run: None, allow_deletes: false, trigger: SyncTrigger::Manual }
    }
}

/// One run; `full`: it keeps nothing of the newest version, which may be damaged. A run that was asked for before is what it
/// was then, whichever verb names it now: a held resync goes on by the reload that its message names.
async fn go(context: &SyncContext, table: &Arc<TableHandle>, (ask, full): (Ask, bool), request: SyncRequest) -> (RunResult, bool) {
    let full = match &request.run {
        // A record that cannot be read is the admission's to report.
        Some(run) => table.incarnation().run(run).request().await.ok().flatten().map_or(full, |stored| stored.full),
        None => full,
    };
    let work = Arc::new(SyncWork::new(context.clone(), ask, request.trigger));
    let refresh = RefreshRequest { run: request.run, allow_deletes: request.allow_deletes, full, ..RefreshRequest::default() };
    let mut result = run_outside(&context.host, table, refresh, Arc::clone(&work) as _).await;
    result.error = result.error.map(|error| mended_by_resync(table, error));
    (result, work.is_resumed())
}

/// The store's remedy for damage is a refresh; a synced table has a resync instead.
fn mended_by_resync(table: &TableHandle, error: Error) -> Error {
    let resync = format!("CALL sync.resync({}, confirm => true)", table.sql_literal());
    match error.code() {
        ErrorCode::Corrupt | ErrorCode::HistoryMissing => {
            Error::new(error.code(), error.message().replace("REFRESH … FULL", &resync)).with_source(error)
        }
        _ => error,
    }
}

/// Syncs the table now, as it is configured, and waits for the end. A load that an earlier run began is completed, and what
/// changed in the source since then follows in a run of its own, whose row this is where the request names no run.
pub async fn reload(context: &SyncContext, table: &Arc<TableHandle>, request: SyncRequest) -> RunResult {
    sync(context, table, false, request).await
}

async fn sync(context: &SyncContext, table: &Arc<TableHandle>, full: bool, request: SyncRequest) -> RunResult {
    let (trigger, is_named) = (request.trigger, request.run.is_some());
    let (result, is_resumed) = go(context, table, (Ask::Sync, full), request).await;
    if result.error.is_some() || !is_resumed {
        return result;
    }
    let (rest, _) = go(context, table, (Ask::Sync, false), SyncRequest { trigger, ..SyncRequest::default() }).await;
    // Who named the run asks for its row, which is the one that a repetition answers.
    if is_named && rest.error.is_none() { result } else { rest }
}

/// Compares the keys of the complete source with the table's and removes what the source deleted.
///
/// # Errors
/// `CONFIG_INVALID` for a table without a key; the run's own error is in its result.
pub async fn reconcile(context: &SyncContext, table: &Arc<TableHandle>, request: SyncRequest) -> Result<RunResult> {
    let log = table.incarnation().sync_log().await?;
    let config = log.newest().map(|saved| &saved.config);
    if config.is_none_or(|config| config.merge_key().is_empty()) {
        let appends = config.is_some_and(|config| config.sync_type == Some(SyncType::Append));
        let (what, set) = match appends {
            true => ("it keeps every version of a row, whatever the source deletes", "sync_type = 'incremental'"),
            false => ("it merges by none", "primary_key_columns = (…)"),
        };
        return Err(Error::new(
            ErrorCode::ConfigInvalid,
            format!(
                "synced table {:?}: rows are compared by key, and {what}. Remedy: ALTER SYNCED TABLE {} SET ({set})",
                table.name(),
                table.sql_name()
            ),
        ));
    }
    Ok(go(context, table, (Ask::Reconcile, false), request).await.0)
}

/// Makes a new generation beside the old one and swaps it in; a run that is at work is cancelled. The wish is stored before
/// the run starts, so a run that fails leaves it to the next one.
///
/// # Errors
/// `CONFIRM_REQUIRED`; `RUN_ACTIVE` when the active run does not end; `CONFIG_INVALID` without a type.
pub async fn resync(context: &SyncContext, table: &Arc<TableHandle>, confirm: bool, request: SyncRequest) -> Result<RunResult> {
    confirmed(table, "resync", confirm, "replaces all its rows with what the source has now").await?;
    if let Some(run) = &request.run
        && table.incarnation().run(run).request().await?.is_some()
    {
        // The same id again: the wish is stored already.
        return Ok(sync(context, table, true, request).await);
    }
    stop(context, table).await?;
    let log = table.incarnation().sync_log().await?;
    if log.newest().is_none_or(|saved| saved.config.sync_type.is_some()) {
        let at = context.host.env.clock.now_micros();
        append(table, log, SyncEntry::Rebuild { at }, |_| true).await?;
    }
    Ok(sync(context, table, true, request).await)
}

/// Deletes all rows and forgets the mark; the configuration stays. Reading the table is `SOURCE_NOT_READY` until it is loaded
/// again, and its files are gone.
///
/// # Errors
/// `CONFIRM_REQUIRED`, `RUN_ACTIVE`.
pub async fn delete_data(context: &SyncContext, table: &Arc<TableHandle>, confirm: bool) -> Result<RunResult> {
    confirmed(table, "delete_data", confirm, "deletes all its rows").await?;
    let request = SyncRequest { allow_deletes: true, ..SyncRequest::default() };
    let (result, _) = go(context, table, (Ask::Delete, true), request).await;
    if result.error.is_none() {
        let request = VacuumRequest { dry_run: false, older_than: Some(Duration::ZERO) };
        run::vacuum(&context.host, table, request).await?;
    }
    Ok(result)
}

async fn confirmed(table: &TableHandle, verb: &str, confirm: bool, what: &str) -> Result<()> {
    if confirm {
        return Ok(());
    }
    let rows = table.newest_manifest().await?.map_or(0, |manifest| manifest.rows);
    Err(Error::new(
        ErrorCode::ConfirmRequired,
        format!(
            "synced table {:?}: sync.{verb} {what} ({rows} now). Remedy: CALL sync.{verb}({}, confirm => true)",
            table.name(),
            table.sql_literal()
        ),
    ))
}

/// Asks the active run to stop.
///
/// # Errors
/// `RUN_NOT_FOUND` when there is none.
pub async fn cancel(table: &TableHandle) -> Result<RunId> {
    let Some(run) = active_run(table).await? else {
        return Err(Error::new(
            ErrorCode::RunNotFound,
            format!("synced table {:?}: no run is active. Remedy: look at sync_runs({})", table.name(), table.sql_literal()),
        ));
    };
    run::cancel(table, &run).await?;
    Ok(run)
}

/// Cancels the active run, if there is one, and waits for its end.
async fn stop(context: &SyncContext, table: &TableHandle) -> Result<()> {
    let clock = &context.host.env.clock;
    let started = clock.elapsed();
    while let Some(run) = active_run(table).await? {
        run::cancel(table, &run).await?;
        if clock.elapsed().saturating_sub(started) > PATIENCE {
            return Err(Error::new(
                ErrorCode::RunActive,
                format!("synced table {:?}: run {run} was asked to stop and is still active. Remedy: try again later", table.name()),
            ));
        }
        clock.sleep(POLL).await;
    }
    Ok(())
}
