//! A run whose rows come from outside: a synced table's. Everything else is a refresh's.
//!
//! ```text
//! refresh     resolve source ─ KeyedDiff ─ handler ─┐
//! outside     OutsideRun::revise, ::capture ────────┴─► write ─► seal ─► guard ─► manifest (with SyncState) ─► slot
//! ```
//!
//! The capture says what is written and, when all of it is written, what the version is to be. A sealed run is published
//! from its seal; the source is not asked again. Memory: that of the capture's plan and of the writers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use datafusion::physical_plan::{ExecutionPlan, collect};

use crate::error::{Error, ErrorCode, Result};
use crate::exec::keyed_diff::DiffReport;
use crate::exec::merge::decode_file_list;
use crate::exec::publish::PublishSink;
use crate::spec::sync::{SyncReport, SyncTrigger};
use crate::spec::{Revision, RunReason, RunSummary};
use crate::store::{Capture, DataFile, Seal, SealedSync, SourceState};
use crate::table::TableHandle;

use super::Phase;
use super::attempt::Attempt;
use super::capture::{reason, write_dead_rows};
use super::engine::{is_transient_capture, published};
use super::plans::{publish_plan, written};
use super::publish::{Pinned, Publication, Work, publish_output};

/// Where the rows of a run come from, and what it is for.
#[async_trait]
pub(crate) trait OutsideRun: fmt::Debug + Send + Sync {
    /// Who asked.
    fn trigger(&self) -> SyncTrigger;

    /// What is known of the run so far, for its record when it fails.
    fn report(&self) -> Option<SyncReport>;

    /// Opens the source; the revision that the rows are published under, saved where it is new.
    async fn revise(&self, attempt: &Attempt) -> Result<Revision>;

    /// Plans the reading. `attempt` has the revision that [`Self::revise`] returned.
    async fn capture(&self, attempt: &Arc<Attempt>) -> Result<Arc<dyn OutsideCapture>>;

    /// The same error with the remedy that fits this kind of table.
    fn explain(&self, attempt: &Attempt, error: Error) -> Error;
}

/// Rows on their way into a table.
#[async_trait]
pub(crate) trait OutsideCapture: fmt::Debug + Send + Sync {
    /// The rows to write: the published columns and the hidden ones. `None`: everything is written already.
    fn rows(&self) -> Option<Arc<dyn ExecutionPlan>>;

    /// What it came to; all rows are written. Fails where the source did not stand still.
    async fn outcome(&self) -> Result<OutsideOutcome>;
}

/// What a capture came to.
#[derive(Debug)]
pub(crate) struct OutsideOutcome {
    /// Why the run did what it did, before its counts are known. `Incremental` keeps the base's rows, others replace them.
    pub reason: RunReason,
    /// The counts, and the base's rows that are replaced or removed.
    pub report: DiffReport,
    /// The files that were written before [`OutsideCapture::rows`] ran.
    pub earlier: Vec<DataFile>,
    /// The files that were read, for sources that are files.
    pub source: SourceState,
    /// Where the table stands then, and what the run reports.
    pub sync: SealedSync,
    /// When the source was looked at, microseconds since 1970.
    pub captured_at: i64,
    /// When the capture began, on the clock's elapsed time.
    pub started: Duration,
}

/// Opens, reads, writes and publishes; a sealed run is published from its seal.
pub(super) async fn drive(attempt: &Arc<Attempt>, run: &dyn OutsideRun, seal: Option<Box<Seal>>) -> Result<RunSummary> {
    if let Some(seal) = seal {
        return publish_output(attempt, &seal, Work::default()).await;
    }
    let (mut retries, mut wait) = (0, attempt.options.capture_backoff);
    loop {
        let error = match once(attempt, run).await {
            Ok(summary) => return Ok(summary),
            Err(error) => run.explain(attempt, error),
        };
        let is_transient = error.code() == ErrorCode::ConnectionFailed || is_transient_capture(&error);
        if retries >= attempt.options.capture_retries || !is_transient {
            return Err(error);
        }
        retries += 1;
        log::warn!("table {:?}: reading the source in run {:?} is tried again ({retries}): {error}", attempt.name(), attempt.run.as_str());
        attempt.host.env.clock.sleep(wait).await;
        wait *= 2;
    }
}

async fn once(attempt: &Arc<Attempt>, run: &dyn OutsideRun) -> Result<RunSummary> {
    attempt.host.report(attempt.name(), Phase::Capture);
    let attempt = Arc::new(attempt.with_revision(run.revise(attempt).await?));
    let capture = run.capture(&attempt).await?;
    let rows = capture.rows();
    let publication = Publication::new(Arc::clone(&attempt), Pinned::Outside(capture));
    match rows {
        Some(rows) => published(&attempt, publish_plan(&attempt, rows, publication.clone())?, &publication).await,
        None => publication.publish(vec![]).await,
    }
}

/// What the seal of a capture says, whose rows are in `files` now.
pub(super) async fn pin(attempt: &Attempt, capture: &dyn OutsideCapture, files: Vec<DataFile>) -> Result<Seal> {
    let outcome = capture.outcome().await?;
    attempt.check_base_is_newest().await?;
    let reason = reason(outcome.reason, &outcome.report);
    let dead = match attempt.base.as_ref().filter(|_| outcome.reason == RunReason::Incremental) {
        Some(base) => write_dead_rows(attempt, &base.files, &outcome.report).await?,
        None => vec![],
    };
    let files = outcome.earlier.into_iter().chain(files).collect();
    Ok(Seal {
        run: attempt.run.clone(),
        attempt: attempt.id.clone(),
        mode: attempt.mode,
        base: attempt.base.as_ref().map(|base| base.slot.version),
        revision: attempt.revision.number,
        reason,
        created: outcome.report.created,
        updated: outcome.report.updated,
        deleted: outcome.report.deleted,
        unchanged: outcome.report.unchanged,
        scanned: outcome.report.scanned,
        files_read: 0,
        files_skipped: 0,
        source: outcome.source,
        captured_at: outcome.captured_at,
        ms_capture: attempt.ms_since(outcome.started),
        peak_memory_bytes: attempt.pool.peak().max(outcome.report.peak_memory_bytes),
        spilled_bytes: outcome.report.spilled_bytes,
        capture: Capture::Output { files, dead, ms_handle: 0, ms_write: 0 },
        sync: Some(Box::new(outcome.sync)),
    })
}

/// Writes rows as files of the run that no version names yet.
pub(crate) async fn write_files(attempt: &Attempt, rows: Arc<dyn ExecutionPlan>) -> Result<Vec<DataFile>> {
    let plan = written(attempt, rows)?;
    let batches = collect(plan, attempt.task_context()).await;
    let context =
        format!("table {:?}: reading the source failed; nothing was published. Remedy: mend the cause and run again", attempt.name());
    let batches = batches.map_err(|e| Error::from_datafusion(e, ErrorCode::CaptureFailed, context))?;
    let lists = batches.iter().map(decode_file_list).collect::<Result<Vec<_>>>()?;
    Ok(lists.into_iter().flatten().collect())
}

/// The answer to REFRESH of a synced table.
pub(super) fn not_refreshed(table: &TableHandle) -> Error {
    Error::new(
        ErrorCode::StatementInvalid,
        format!(
            "table {:?} is a synced table: its rows come from its source as they are. Remedy: CALL sync.reload({})",
            table.name(),
            table.sql_literal()
        ),
    )
}
