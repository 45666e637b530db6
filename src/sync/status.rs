//! Where a synced table stands, for people and for the schedule.
//!
//! ```text
//! a run at work ─► Running      never run, or data deleted ─► none      should_sync off ─► Paused
//! else the last run: published ─► Completed, anything else ─► Failed, with its error
//! ```

use crate::error::Result;
use crate::run::run_summaries;
use crate::spec::sync::{KnownColumn, SyncKind, SyncPhase, SyncState};
use crate::spec::{RunId, RunState, RunSummary};
use crate::store::{SavedConfig, SyncLog};
use crate::table::TableHandle;

/// The words of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncStatus {
    /// A run is at work.
    Running,
    /// Not at work, and the schedule leaves it alone.
    Paused,
    /// The last run failed, was cancelled, or was held.
    Failed,
    /// The last run ended well.
    Completed,
}

impl SyncStatus {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Paused => "Paused",
            Self::Failed => "Failed",
            Self::Completed => "Completed",
        }
    }
}

/// Where a table stands.
#[derive(Debug, Clone)]
pub struct Standing {
    /// The newest configuration.
    pub config: SavedConfig,
    /// The whole log.
    pub log: SyncLog,
    /// How many runs were skipped.
    pub skips: u64,
    /// The newest version's state.
    pub state: Option<SyncState>,
    /// The newest version's rows and number.
    pub version: Option<(u64, u64)>,
    /// `None`: never run.
    pub status: Option<SyncStatus>,
    /// The run that is at work.
    pub active_run: Option<RunId>,
    /// The last run that ended.
    pub last_run: Option<RunSummary>,
}

impl Standing {
    /// The source's columns when somebody last looked: a run, or a change of the configuration.
    pub fn source_columns(&self) -> &[KnownColumn] {
        let read = self.state.as_ref().filter(|state| !state.source_columns.is_empty());
        match read {
            Some(state) if self.config.columns.is_empty() || state.synced_at >= Some(self.config.saved_at) => &state.source_columns,
            _ => &self.config.columns,
        }
    }

    /// The last error, if the last run did not end well.
    pub fn latest_error(&self) -> Option<String> {
        let run = self.last_run.as_ref().filter(|run| run.state != RunState::Published && run.state != RunState::Running)?;
        match (&run.error_code, &run.error_message) {
            (Some(code), Some(message)) => Some(format!("{code}: {message}")),
            _ => {
                Some(format!("{}: the run left no word; its process is gone. Remedy: reload the table", run.state.as_str().to_uppercase()))
            }
        }
    }
}

/// The run of a synced table that is at work, if there is one.
///
/// # Errors
/// The store's errors.
pub async fn active_run(table: &TableHandle) -> Result<Option<RunId>> {
    let Some(holder) = table.incarnation().active_lease().await? else { return Ok(None) };
    // Compactions and vacuums hold the lease too; they leave no request.
    let request = table.incarnation().run(&holder.run).request().await?;
    Ok(request.map(|_| holder.run))
}

/// The synchronisations of a table, newest first.
///
/// # Errors
/// The store's errors, `CORRUPT` for a damaged record.
pub async fn sync_runs(table: &TableHandle) -> Result<Vec<RunSummary>> {
    run_summaries(table).await
}

/// Where a table stands.
///
/// # Errors
/// The store's errors.
pub async fn standing(table: &TableHandle) -> Result<Standing> {
    let log = table.incarnation().sync_log().await?;
    let config = log.newest().cloned().ok_or_else(|| crate::error::Error::internal("a synced table without a configuration"))?;
    let (_, note) = table.incarnation().schedule_note().await?;
    let skips = note.skips;
    let manifest = table.newest_manifest().await?;
    let state = manifest.as_ref().and_then(|manifest| manifest.sync.clone());
    let active = active_run(table).await?;
    let is_active = |run: &RunSummary| active.as_ref().is_some_and(|active| active.as_str() == run.run_id);
    let last_run = sync_runs(table).await?.into_iter().find(|run| !is_active(run));
    let status = status(&config, state.as_ref(), active.is_some(), last_run.as_ref());
    let version = manifest.map(|manifest| (manifest.version, manifest.rows));
    Ok(Standing { config, log, skips, state, version, status, active_run: active, last_run })
}

fn status(config: &SavedConfig, state: Option<&SyncState>, is_active: bool, last: Option<&RunSummary>) -> Option<SyncStatus> {
    if is_active {
        return Some(SyncStatus::Running);
    }
    let last = last?;
    let is_deletion = last.sync.as_ref().is_some_and(|report| report.kind == Some(SyncKind::Delete));
    if is_deletion && state.is_some_and(|state| state.phase == SyncPhase::Empty) {
        return None;
    }
    if !config.config.should_sync() {
        return Some(SyncStatus::Paused);
    }
    Some(if last.state == RunState::Published { SyncStatus::Completed } else { SyncStatus::Failed })
}
