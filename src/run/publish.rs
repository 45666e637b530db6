//! Publish: what becomes of the files that the publish plan wrote.
//!
//! ```text
//! PublishExec ── files ──► Publication ── guard ── (one pass: seal │ manifest, side by side) ──► the version's slot
//!                                     └── draft: name the output, touch no version
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use roaring::RoaringTreemap;

use crate::error::{Error, ErrorCode, Result};
use crate::exec::keyed_diff::KeyedDiffExec;
use crate::exec::publish::PublishSink;
use crate::spec::{RunMode, RunReason, RunState, RunSummary};
use crate::store::dead::apply_dead;
use crate::store::{Capture, DataFile, DeadRows, Seal, SealOutcome, VersionKind, deletion_vector};

use super::Phase;
use super::attempt::Attempt;
use super::capture::CaptureContext;
use super::commit::{NewVersion, Staged, accept, stage};
use super::open::overtaken;
use super::outside::{self, OutsideCapture};
use super::{draft, guard};

/// Where the rows that are published come from.
#[derive(Debug)]
pub(super) enum Pinned {
    /// A sealed input capture, or a sealed output.
    Sealed(Box<Seal>),
    /// One pass: the rows being written are the capture, sealed here before the publish.
    OnePass(Arc<CaptureContext>),
    /// The same where the rows come from outside.
    Outside(Arc<dyn OutsideCapture>),
}

/// The sink of one run's publish plan.
#[derive(Debug)]
pub(super) struct Publication {
    pub attempt: Arc<Attempt>,
    pub pinned: Pinned,
    /// When handling began, on the clock's elapsed time.
    pub started: Duration,
    /// What writing took, once the files are written.
    work: OnceLock<Work>,
    /// The run's row, once it is published.
    pub result: OnceLock<RunSummary>,
}

impl Publication {
    pub fn new(attempt: Arc<Attempt>, pinned: Pinned) -> Arc<Self> {
        let started = attempt.elapsed();
        Arc::new(Self { attempt, pinned, started, work: OnceLock::new(), result: OnceLock::new() })
    }
}

/// What handling and writing took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Work {
    pub ms_handle: u64,
    pub ms_write: u64,
    pub spilled_bytes: u64,
}

impl Work {
    /// `writer` has been executed to its end.
    fn of(writer: &Arc<dyn ExecutionPlan>) -> Self {
        // The writers of all partitions work side by side and share one clock.
        let writers = writer.children().first().map_or(1, |input| input.output_partitioning().partition_count().max(1));
        let nanos = writer.metrics().and_then(|metrics| metrics.elapsed_compute()).unwrap_or_default() / writers;
        let ms_write = u64::try_from(nanos / 1_000_000).unwrap_or(u64::MAX);
        Self { ms_handle: 0, ms_write, spilled_bytes: spilled(writer) }
    }
}

/// What all nodes below spilled to disk, but for the diff: the seal has its bytes, also for an attempt that adopts it.
pub(super) fn spilled(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    let own = plan.metrics().filter(|_| !plan.is::<KeyedDiffExec>()).and_then(|metrics| metrics.spilled_bytes()).unwrap_or_default();
    u64::try_from(own).unwrap_or(u64::MAX) + plan.children().into_iter().map(spilled).sum::<u64>()
}

#[async_trait]
impl PublishSink for Publication {
    fn describe(&self) -> String {
        match self.attempt.mode {
            RunMode::Published => format!("table={}, version={}", self.attempt.name(), self.attempt.next_version()),
            RunMode::Draft => format!("table={}, draft", self.attempt.name()),
        }
    }

    fn wrote(&self, writer: &Arc<dyn ExecutionPlan>) {
        self.work.get_or_init(|| Work::of(writer));
    }

    async fn publish(&self, files: Vec<DataFile>) -> Result<RunSummary> {
        let summary = match &self.pinned {
            Pinned::Sealed(seal) => {
                let work = self.work.get().copied().unwrap_or_default();
                let ms_write = work.ms_write.min(self.attempt.ms_since(self.started));
                let ms_handle = self.attempt.ms_since(self.started) - ms_write;
                publish_sealed(&self.attempt, seal, files, Work { ms_handle, ms_write, ..work }).await?
            }
            Pinned::Outside(capture) => {
                let seal = outside::pin(&self.attempt, capture.as_ref(), files).await?;
                seal_and_publish(&self.attempt, &seal, self.work.get().copied().unwrap_or_default()).await?
            }
            Pinned::OnePass(capture) => {
                let seal = capture.pin(|dead| Capture::Output { files, dead, ms_handle: 0, ms_write: 0 }).await?;
                seal_and_publish(&self.attempt, &seal, self.work.get().copied().unwrap_or_default()).await?
            }
        };
        Ok(self.result.get_or_init(|| summary).clone())
    }
}

/// Seals a run whose capture is its output, and publishes it. The manifest names nothing that the seal could change, so
/// both are written at the same time; the slot waits for the seal.
async fn seal_and_publish(attempt: &Attempt, seal: &Seal, work: Work) -> Result<RunSummary> {
    let Capture::Output { files, .. } = &seal.capture else { return Err(Error::internal("a seal of one pass holds no output")) };
    let write = attempt.runs.write_seal(seal);
    if attempt.mode == RunMode::Draft || guard::check(attempt, seal).is_err() {
        return match write.await? {
            SealOutcome::Won => publish_output(attempt, seal, work).await,
            SealOutcome::Lost(first) => publish_output(attempt, &first, work).await,
        };
    }
    let started = attempt.elapsed();
    attempt.host.report(attempt.name(), Phase::Publish);
    let stage = stage_sealed(attempt, seal, files.clone(), (summarize(attempt, seal, files, work), started));
    // Both to their ends: a write that is dropped half-way has no known outcome.
    let (written, staged) = futures::join!(write, stage);
    match written? {
        SealOutcome::Won => accept(attempt, staged?).await,
        SealOutcome::Lost(first) => publish_output(attempt, &first, work).await,
    }
}

/// Publishes a seal whose capture is its output.
///
/// # Errors
/// `RUN_CONFLICT` when it is an input: another attempt read source files that this one could skip, all of them.
pub(super) async fn publish_output(attempt: &Attempt, seal: &Seal, work: Work) -> Result<RunSummary> {
    if let Some(answer) = overtaken(attempt, seal).await? {
        return Ok(answer);
    }
    let Capture::Output { files, ms_handle, ms_write, .. } = &seal.capture else { return Err(sealed_input(attempt)) };
    guard::check(attempt, seal)?;
    let work = Work { ms_handle: *ms_handle, ms_write: *ms_write, ..work };
    publish_sealed(attempt, seal, files.clone(), work).await
}

fn sealed_input(attempt: &Attempt) -> Error {
    let (table, run) = (attempt.name(), attempt.run.as_str());
    Error::new(
        ErrorCode::RunConflict,
        format!(
            "table {table:?}: another attempt of run {run:?} sealed its input first. Remedy: ask for run {run:?} again, which goes on \
             from that capture"
        ),
    )
}

async fn publish_sealed(attempt: &Attempt, seal: &Seal, files: Vec<DataFile>, work: Work) -> Result<RunSummary> {
    let started = attempt.elapsed();
    attempt.host.report(attempt.name(), Phase::Publish);
    let mut summary = summarize(attempt, seal, &files, work);
    if attempt.mode == RunMode::Draft {
        summary.rows_total = Some(files.iter().map(DataFile::live_rows).sum());
        summary.ended_at = Some(attempt.now());
        summary.ms_publish = Some(attempt.ms_since(started));
        return draft::store(attempt, files, summary).await;
    }
    accept(attempt, stage_sealed(attempt, seal, files, (summary, started)).await?).await
}

/// Writes the version that a seal makes, all but its slot.
async fn stage_sealed(
    attempt: &Attempt,
    seal: &Seal,
    files: Vec<DataFile>,
    (mut summary, started): (RunSummary, Duration),
) -> Result<Staged> {
    let all = complete_files(attempt, seal, files).await?;
    let kind = if keeps_base(seal) { VersionKind::Run } else { VersionKind::Rebuild };
    let new = NewVersion {
        kind,
        revision: &attempt.revision,
        files: all,
        source: seal.source.clone(),
        base: attempt.base.as_ref(),
        floor: 0,
        sync: seal.sync.as_ref().map(|sealed| sealed.state.clone()),
    };
    summary.state = RunState::Published;
    stage(attempt, new, summary, started).await
}

fn keeps_base(seal: &Seal) -> bool {
    matches!(seal.reason, RunReason::Incremental | RunReason::NoChange | RunReason::DeleteOnly)
}

/// The base's files without what is dead now, and the new files.
async fn complete_files(attempt: &Attempt, seal: &Seal, new: Vec<DataFile>) -> Result<Vec<DataFile>> {
    let Some(base) = attempt.base.as_ref().filter(|_| keeps_base(seal)) else { return Ok(new) };
    let dead = match &seal.capture {
        Capture::Input { dead, .. } | Capture::Output { dead, .. } => read_dead(attempt, &base.files, dead).await?,
    };
    let mut files = apply_dead(&attempt.incarnation, &attempt.data_dir(), &base.files, &dead).await?;
    files.extend(new);
    Ok(files)
}

async fn read_dead(attempt: &Attempt, files: &[DataFile], dead: &[DeadRows]) -> Result<BTreeMap<u32, RoaringTreemap>> {
    let mut positions = BTreeMap::new();
    for rows in dead {
        let file = files.iter().position(|file| file.data.path == rows.data_path).and_then(|p| u32::try_from(p).ok());
        let file = file.ok_or_else(|| Error::internal(format!("the seal names {:?}, which the base does not have", rows.data_path)))?;
        let bytes = attempt.incarnation.read_object(&rows.positions).await?;
        positions.insert(file, deletion_vector::decode(&bytes)?);
    }
    Ok(positions)
}

fn summarize(attempt: &Attempt, seal: &Seal, files: &[DataFile], work: Work) -> RunSummary {
    let full = matches!(seal.reason, RunReason::Full);
    let written: u64 = files.iter().map(|f| f.data.bytes + f.index.bytes).sum();
    let captured: u64 = match &seal.capture {
        Capture::Input { changes, dead } => {
            changes.iter().map(|o| o.bytes).sum::<u64>() + dead.iter().map(|d| d.positions.bytes).sum::<u64>()
        }
        Capture::Output { dead, .. } => dead.iter().map(|d| d.positions.bytes).sum(),
    };
    let mut summary = attempt.summary(RunState::Completed);
    summary.revision = Some(seal.revision);
    summary.reason = Some(seal.reason);
    summary.rows_created = Some(if full { files.iter().map(|file| file.rows).sum() } else { seal.created });
    summary.rows_updated = Some(seal.updated);
    summary.rows_deleted = Some(seal.deleted);
    summary.rows_unchanged = Some(seal.unchanged);
    summary.handler_rows = Some(if full { seal.scanned } else { seal.created + seal.updated });
    summary.files_read = Some(seal.files_read);
    summary.files_skipped = Some(seal.files_skipped);
    summary.bytes_written = Some(written + captured);
    summary.peak_memory_bytes = Some(seal.peak_memory_bytes.max(attempt.pool.peak()));
    summary.spilled_bytes = Some(seal.spilled_bytes + attempt.spilled() + work.spilled_bytes);
    summary.captured_at = Some(seal.captured_at);
    summary.ms_capture = Some(seal.ms_capture);
    summary.ms_handle = Some(work.ms_handle);
    summary.ms_write = Some(work.ms_write);
    summary.source_synced_at = seal.source.table_synced_at;
    if let Some(sealed) = &seal.sync {
        summary.handler_rows = Some(0);
        summary.sync = Some(Box::new(sealed.report.clone()));
    }
    summary
}
