//! Vacuum: deletes what no retained version and no active run needs. A dry run unless asked otherwise.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::spec::{RunId, RunMode, RunState};
use crate::store::{VacuumReport, VersionKind, leftovers, retention};
use crate::table::TableHandle;

use super::attempt::{Attempt, newest_base};
use super::commit::{NewVersion, commit_version};
use super::{Host, RefreshRequest, history};

/// How to vacuum.
#[derive(Debug, Clone, Copy)]
pub struct VacuumRequest {
    /// Only list what would be deleted.
    pub dry_run: bool,
    /// A version is kept while its successor is younger; `None`: the table's option `older_than`.
    pub older_than: Option<Duration>,
}

impl Default for VacuumRequest {
    fn default() -> Self {
        Self { dry_run: true, older_than: None }
    }
}

/// Lists, or deletes, unreachable objects.
///
/// # Errors
/// `RUN_ACTIVE` while a run is active (not for a dry run), and the store's errors.
pub async fn vacuum(host: &Host, table: &Arc<TableHandle>, request: VacuumRequest) -> Result<VacuumReport> {
    let run = RunId::new(host.env.ids.id()?)?;
    let attempt = Attempt::open(host, table, &RefreshRequest::default(), run).await?;
    let older_than = request.older_than.unwrap_or(attempt.options.older_than);
    if request.dry_run {
        let unfinished = unfinished_runs(&attempt).await?;
        let mut objects = retention::plan(&attempt.incarnation, older_than, unfinished).await?.objects;
        objects.extend(leftovers::find(&attempt.incarnation).await?);
        return Ok(VacuumReport { objects, deleted: false });
    }
    let lease = attempt.incarnation.take_lease(&attempt.run, &attempt.id).await?;
    let result = leased(attempt, older_than).await;
    if let Err(error) = lease.release().await {
        log::warn!("a lease was not released and will expire: {error}");
    }
    table.follow().await;
    result
}

async fn leased(mut attempt: Attempt, older_than: Duration) -> Result<VacuumReport> {
    attempt.base = newest_base(&attempt.incarnation).await?;
    let incarnation = &attempt.incarnation;
    let plan = retention::plan(incarnation, older_than, unfinished_runs(&attempt).await?).await?;
    let mut objects = match plan.fence {
        Some(floor) => {
            fence(&attempt, floor).await?;
            retention::below_floor(incarnation, older_than).await?
        }
        None => plan.objects,
    };
    retention::delete(incarnation, &objects).await?;
    let beside = leftovers::find(incarnation).await?;
    leftovers::delete(incarnation, &beside).await?;
    objects.extend(beside);
    Ok(VacuumReport { objects, deleted: true })
}

/// A run that sleeps through a vacuum must not publish deleted files: its base must be older than the newest version.
async fn unfinished_runs(attempt: &Attempt) -> Result<bool> {
    let runs = history::run_summaries(&attempt.table).await?;
    // A draft publishes nothing.
    let mut published = runs.iter().filter(|run| run.mode == RunMode::Published);
    Ok(published.any(|run| matches!(run.state, RunState::Running | RunState::Abandoned | RunState::Unknown | RunState::Held)))
}

/// Publishes a version that changes no row: no run can publish on the base any more, and no rollback below `floor`.
async fn fence(attempt: &Attempt, floor: u64) -> Result<()> {
    let Some(base) = &attempt.base else { return Ok(()) };
    let Some(revision) = attempt.definitions.revision(base.manifest.revision) else { return Ok(()) };
    let source = attempt.incarnation.source_state(&base.manifest).await?;
    let mut summary = attempt.summary(RunState::Published);
    summary.handler_rows = Some(0);
    let (files, sync) = (base.files.as_ref().clone(), base.manifest.sync.clone());
    let new = NewVersion { kind: VersionKind::Fence, revision, files, source, base: Some(base), floor, sync };
    commit_version(attempt, new, summary, attempt.elapsed()).await.map(drop)
}
