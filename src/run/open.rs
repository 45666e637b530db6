//! Open: what a run id that was seen before means.
//!
//! ```text
//! published before ─► the same answer      sealed, slot free  ─► adopt the seal
//! draft completed  ─► the same answer      sealed, slot taken ─► RUN_STALE
//! cancelled        ─► CANCELLED            not sealed         ─► a fresh capture
//! other mode, FULL ─► RUN_MISMATCH
//! ```

use crate::error::{Error, ErrorCode, Result};
use crate::spec::{RunId, RunMode, RunSummary};
use crate::store::{Incarnation, RunRequest, Seal};

use super::attempt::Attempt;
use super::{RefreshRequest, history};

/// How to go on with a run id.
#[derive(Debug)]
pub(super) enum Admission {
    /// The run has its answer.
    Answered(Box<RunSummary>),
    /// Capture, unless a seal is there to adopt.
    Go { request: RunRequest, seal: Option<Box<Seal>>, known: bool },
}

/// Looks the run up.
pub(super) async fn admit(incarnation: &Incarnation, table: &str, run: &RunId, request: &RefreshRequest, now: i64) -> Result<Admission> {
    let runs = incarnation.run(run);
    let Some(stored) = runs.request().await? else {
        let request = RunRequest { run: run.clone(), mode: request.mode, full: request.full, requested_at: now, trigger: None };
        return Ok(Admission::Go { request, seal: None, known: false });
    };
    if stored.mode != request.mode || stored.full != request.full {
        return Err(mismatch(table, run, &stored));
    }
    if let Some(draft) = runs.draft().await? {
        return Ok(Admission::Answered(Box::new(draft.summary)));
    }
    let seal = runs.seal().await?;
    if let (Some(seal), RunMode::Published) = (&seal, request.mode) {
        let version = seal.base.unwrap_or(0) + 1;
        if let Some(slot) = incarnation.slot(version).await? {
            if slot.run == *run {
                return Ok(Admission::Answered(Box::new(history::version_summary(incarnation, &slot).await?)));
            }
            return Err(stale(table, run, version, &slot.run));
        }
    }
    if runs.cancelled().await?.is_some() {
        return Err(Error::new(
            ErrorCode::Cancelled,
            format!("table {table:?}: run {:?} was cancelled. Remedy: start a new run", run.as_str()),
        ));
    }
    Ok(Admission::Go { request: stored, seal: seal.map(Box::new), known: true })
}

/// A seal can be another attempt's, and that attempt may have seen another base: its change set must not be put on ours.
/// `None`: go on with it. Otherwise the run's answer, when that attempt published.
///
/// # Errors
/// `RUN_STALE` when another run has the version after the seal's base; `RUN_CONFLICT` when the seal fits a base or a
/// revision that this attempt did not open.
pub(super) async fn overtaken(attempt: &Attempt, seal: &Seal) -> Result<Option<RunSummary>> {
    let base = attempt.base.as_ref().map(|base| base.slot.version);
    if seal.base == base && seal.revision == attempt.revision.number {
        return Ok(None);
    }
    let version = seal.base.unwrap_or(0) + 1;
    let slot = match attempt.mode {
        RunMode::Published => attempt.incarnation.slot(version).await?,
        RunMode::Draft => None,
    };
    match slot {
        Some(slot) if slot.run == attempt.run => history::version_summary(&attempt.incarnation, &slot).await.map(Some),
        Some(slot) => Err(stale(attempt.name(), &attempt.run, version, &slot.run)),
        None => Err(Error::new(
            ErrorCode::RunConflict,
            format!(
                "table {table:?}: another attempt of run {run:?} sealed its capture first, of revision {} for version {version}. \
                 Remedy: ask for run {run:?} again, which goes on from that capture",
                seal.revision,
                table = attempt.name(),
                run = attempt.run.as_str(),
            ),
        )),
    }
}

fn mismatch(table: &str, run: &RunId, stored: &RunRequest) -> Error {
    let full = if stored.full { " FULL" } else { "" };
    Error::new(
        ErrorCode::RunMismatch,
        format!(
            "table {table:?}: run {:?} was requested as {}{full}. Remedy: ask for the same again, or start a new run",
            run.as_str(),
            stored.mode.as_str()
        ),
    )
}

fn stale(table: &str, run: &RunId, version: u64, winner: &RunId) -> Error {
    Error::new(
        ErrorCode::RunStale,
        format!(
            "table {table:?}: the capture of run {:?} was made before run {:?} published version {version}. Remedy: start a new run",
            run.as_str(),
            winner.as_str()
        ),
    )
}
