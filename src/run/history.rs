//! What became of the runs: one row each, newest request first.

use crate::error::{ErrorCode, Result};
use crate::spec::sync::{SyncReport, SyncTrigger};
use crate::spec::{RunId, RunMode, RunState, RunSummary};
use crate::store::{AttemptRecord, Incarnation, SkippedRun, Slot};
use crate::table::TableHandle;

/// The rows of a table's runs, newest request first.
///
/// # Errors
/// The store's errors. A run with a damaged record is `unknown`, and says why.
pub async fn run_summaries(table: &TableHandle) -> Result<Vec<RunSummary>> {
    let mut rows = vec![];
    for run in table.incarnation().run_ids().await? {
        match known_summary(table, &run).await {
            Ok(summary) => rows.extend(summary),
            // A record is for people: one that is damaged takes no other run's row away.
            Err(error) if error.code() == ErrorCode::Corrupt => {
                let mut summary = RunSummary::new(run.as_str(), RunMode::Published, RunState::Unknown);
                summary.error_code = Some(error.code().as_str().to_string());
                summary.error_message = Some(error.message().to_string());
                rows.push(summary);
            }
            Err(error) => return Err(error),
        }
    }
    rows.sort_by(|a, b| b.requested_at.cmp(&a.requested_at).then_with(|| a.run_id.cmp(&b.run_id)));
    Ok(rows)
}

/// The rows of runs that a schedule did not start, because another one was at work.
async fn skipped_summaries(table: &TableHandle) -> Result<Vec<RunSummary>> {
    let (_, note) = table.incarnation().schedule_note().await?;
    let row = |skipped: &SkippedRun| {
        let mut summary = RunSummary::new("", RunMode::Published, RunState::Skipped);
        summary.sync = table.is_synced().then(|| Box::new(SyncReport::new(SyncTrigger::Schedule)));
        summary.requested_at = Some(skipped.due_at);
        summary.ended_at = Some(skipped.at);
        summary.error_code = Some(ErrorCode::RunActive.as_str().to_string());
        summary.error_message = Some(format!("it was due while run {} was at work", skipped.active_run));
        summary
    };
    Ok(note.skipped.iter().map(row).collect())
}

/// The rows of a table's runs and of those that were skipped, newest first.
///
/// # Errors
/// The store's errors.
pub async fn all_summaries(table: &TableHandle) -> Result<Vec<RunSummary>> {
    let mut rows = run_summaries(table).await?;
    rows.extend(skipped_summaries(table).await?);
    rows.sort_by(|a, b| b.requested_at.cmp(&a.requested_at).then_with(|| a.run_id.cmp(&b.run_id)));
    Ok(rows)
}

/// The row of a run that is known.
async fn known_summary(table: &TableHandle, run: &RunId) -> Result<Option<RunSummary>> {
    if table.incarnation().run(run).request().await?.is_none() {
        return Ok(None);
    }
    summary_of(table, run).await.map(Some)
}

/// One run's row. The version slot decides over what the attempts recorded.
pub(super) async fn summary_of(table: &TableHandle, run: &RunId) -> Result<RunSummary> {
    let incarnation = table.incarnation();
    let runs = incarnation.run(run);
    let request = runs.request().await?;
    let mode = request.as_ref().map_or(RunMode::Published, |request| request.mode);
    if let Some(draft) = runs.draft().await? {
        return Ok(draft.summary);
    }
    if let Some(published) = published(incarnation, run).await? {
        return Ok(published);
    }
    let attempts = runs.attempts().await?;
    let mut summary = match attempts.iter().rev().find_map(|attempt| attempt.end.clone()) {
        Some(end) if attempts.last().is_some_and(|last| last.end.is_some()) => end,
        _ => unfinished(incarnation, run, mode, &attempts, runs.cancelled().await?.is_some()).await?,
    };
    if summary.sync.is_none() {
        summary.sync = request.as_ref().and_then(|request| request.trigger).map(|trigger| Box::new(SyncReport::new(trigger)));
    }
    summary.requested_at = request.map(|request| request.requested_at);
    Ok(summary)
}

async fn published(incarnation: &Incarnation, run: &RunId) -> Result<Option<RunSummary>> {
    let Some(seal) = incarnation.run(run).seal().await? else { return Ok(None) };
    if seal.mode == RunMode::Draft {
        return Ok(None);
    }
    match incarnation.slot(seal.base.unwrap_or(0) + 1).await? {
        Some(slot) if slot.run == *run => version_summary(incarnation, &slot).await.map(Some),
        _ => Ok(None),
    }
}

/// The row of the run that made a version. A vacuum takes old manifests, but never what the run itself recorded.
pub(super) async fn version_summary(incarnation: &Incarnation, slot: &Slot) -> Result<RunSummary> {
    match incarnation.manifest(slot).await {
        Ok(manifest) => Ok(manifest.summary.clone()),
        Err(error) if error.code() == ErrorCode::HistoryMissing => recorded_summary(incarnation, slot).await,
        Err(error) => Err(error),
    }
}

/// What the records of a published run say: its end, or its seal when its process died right after the publish.
async fn recorded_summary(incarnation: &Incarnation, slot: &Slot) -> Result<RunSummary> {
    let runs = incarnation.run(&slot.run);
    let ends = runs.attempts().await?.into_iter().filter_map(|attempt| attempt.end);
    let mut summary = match ends.rev().find(|end| end.state == RunState::Published) {
        Some(end) => end,
        None => {
            let mut summary = RunSummary::new(slot.run.as_str(), RunMode::Published, RunState::Published);
            summary.requested_at = runs.request().await?.map(|request| request.requested_at);
            fill_from_seal(incarnation, &slot.run, &mut summary).await?;
            summary
        }
    };
    summary.version = Some(slot.version);
    Ok(summary)
}

/// The counts that a run sealed.
pub(super) async fn fill_from_seal(incarnation: &Incarnation, run: &RunId, summary: &mut RunSummary) -> Result<()> {
    let Some(seal) = incarnation.run(run).seal().await? else { return Ok(()) };
    summary.revision = Some(seal.revision);
    summary.reason = Some(seal.reason);
    summary.rows_created = Some(seal.created);
    summary.rows_updated = Some(seal.updated);
    summary.rows_deleted = Some(seal.deleted);
    summary.rows_unchanged = Some(seal.unchanged);
    summary.files_read = Some(seal.files_read);
    summary.files_skipped = Some(seal.files_skipped);
    summary.captured_at = Some(seal.captured_at);
    summary.ms_capture = Some(seal.ms_capture);
    Ok(())
}

/// A run without a final record: at work while its lease lives, else cancelled on request, else abandoned.
async fn unfinished(
    incarnation: &Incarnation,
    run: &RunId,
    mode: RunMode,
    attempts: &[AttemptRecord],
    cancelled: bool,
) -> Result<RunSummary> {
    let lease = match mode {
        RunMode::Published => incarnation.active_lease().await?,
        RunMode::Draft => incarnation.active_draft_lease(run).await?,
    };
    let leased = lease.is_some_and(|lease| lease.run == *run);
    let state = match (leased, cancelled) {
        (true, _) => RunState::Running,
        (false, true) => RunState::Cancelled,
        (false, false) => RunState::Abandoned,
    };
    let mut summary = RunSummary::new(run.as_str(), mode, state);
    summary.started_at = attempts.last().map(|attempt| attempt.started_at);
    fill_from_seal(incarnation, run, &mut summary).await?;
    Ok(summary)
}
