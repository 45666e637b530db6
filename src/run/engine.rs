//! The run engine: admission, lease, attempt record, the steps in their order, and the end record.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use datafusion::error::DataFusionError;
use datafusion::physical_plan::{ExecutionPlan, collect};

use crate::error::{Error, ErrorCode, Result};
use crate::exec::publish::PublishSink;
use crate::exec::seal::SealSink;
use crate::handler::BoundHandler;
use crate::plan::source::is_transient;
use crate::spec::{RunId, RunMode, RunState, RunSummary};
use crate::store::{Capture, Lease, ObjectRef, RunRequest, Seal};
use crate::table::TableHandle;

use super::attempt::Attempt;
use super::capture::{self, CaptureContext};
use super::open::{Admission, admit, overtaken};
use super::outside::{self, OutsideRun};
use super::publish::{Pinned, Publication, Work, publish_output, spilled};
use super::{Host, Phase, RefreshRequest, RunResult, cancel, compaction, guard, history, plans};

/// Runs one refresh. The result has the run's row also when it failed; every run that was admitted keeps its record.
pub async fn refresh(host: &Host, table: &Arc<TableHandle>, request: RefreshRequest) -> RunResult {
    if table.is_synced() {
        return refused("", &request, outside::not_refreshed(table));
    }
    run(host, table, request, None).await
}

/// Runs one synchronisation of a synced table, with everything that a refresh has: lease, records, cancelling, seal.
pub(crate) async fn run_outside(host: &Host, table: &Arc<TableHandle>, request: RefreshRequest, work: Arc<dyn OutsideRun>) -> RunResult {
    run(host, table, request, Some(work)).await
}

async fn run(host: &Host, table: &Arc<TableHandle>, request: RefreshRequest, outside: Option<Arc<dyn OutsideRun>>) -> RunResult {
    let run = match request.run.clone().map_or_else(|| host.env.ids.id().and_then(RunId::new), Ok) {
        Ok(run) => run,
        Err(error) => return refused("", &request, error),
    };
    let result = Box::pin(admitted(host, table, (&request, outside), &run)).await;
    host.report(table.name(), Phase::Done);
    table.follow().await;
    result.unwrap_or_else(|error| refused(run.as_str(), &request, error))
}

/// The row of a run that was not admitted; nothing was recorded.
fn refused(run: &str, request: &RefreshRequest, error: Error) -> RunResult {
    let mut summary = RunSummary::new(run, request.mode, state_of(&error));
    summary.error_code = Some(error.code().as_str().to_string());
    summary.error_message = Some(error.message().to_string());
    RunResult { summary, error: Some(error) }
}

type Asked<'a> = (&'a RefreshRequest, Option<Arc<dyn OutsideRun>>);

async fn admitted(host: &Host, table: &Arc<TableHandle>, (request, outside): Asked<'_>, run: &RunId) -> Result<RunResult> {
    let incarnation = table.incarnation();
    let admission = admit(incarnation, table.name(), run, request, host.env.clock.now_micros()).await?;
    let (stored, known) = match admission {
        Admission::Answered(summary) => return Ok(RunResult { summary: *summary, error: None }),
        Admission::Go { request, known, .. } => (request, known),
    };
    let stored = RunRequest { trigger: stored.trigger.or(outside.as_ref().map(|outside| outside.trigger())), ..stored };
    let attempt = Attempt::open(host, table, request, run.clone()).await?.with_outside(outside);
    let lease = match request.mode {
        RunMode::Published => incarnation.take_lease(run, &attempt.id).await?,
        RunMode::Draft => incarnation.take_draft_lease(run, &attempt.id).await?,
    };
    let ended = match leased(attempt, request, stored, known).await {
        Ok(Ended::Answered(result)) => Ok(result),
        Ok(Ended::Worked(attempt, result)) => return Ok(end(&attempt, result, lease).await),
        Err(error) => Err(error),
    };
    release(lease).await;
    ended
}

/// What came of a run under its lease.
enum Ended {
    /// It had its answer already.
    Answered(RunResult),
    /// An attempt was made, whose end is not recorded yet.
    Worked(Arc<Attempt>, RunResult),
}

/// The part that runs under the lease.
async fn leased(mut attempt: Attempt, request: &RefreshRequest, stored: RunRequest, known: bool) -> Result<Ended> {
    // Another attempt may have got further between the first look and the lease: only now is the answer final.
    let seal = match admit(&attempt.incarnation, attempt.name(), &attempt.run, request, stored.requested_at).await? {
        Admission::Answered(summary) => return Ok(Ended::Answered(RunResult { summary: *summary, error: None })),
        Admission::Go { seal, .. } => seal,
    };
    attempt.requested_at = stored.requested_at;
    // Neither says anything without the other, so both are written at the same time.
    let ask = async { if known { Ok(()) } else { attempt.runs.write_request(&stored).await.map(drop) } };
    let (asked, begun) = futures::join!(ask, attempt.runs.start_attempt(&attempt.id));
    asked?;
    begun?;
    let (attempt, outcome) = match adopt(attempt.clone(), seal.as_deref()).await.map(Arc::new) {
        Ok(adopted) => {
            let outcome = cancellable(&adopted, seal).await;
            (adopted, outcome)
        }
        Err(error) => (Arc::new(attempt), Err(error)),
    };
    let result = describe(&attempt, outcome).await;
    Ok(Ended::Worked(attempt, result))
}

/// Records the end and lets go of the lease. A published run compacts in between, where that is due; else nothing depends
/// on the order, since its version says that it has ended.
async fn end(attempt: &Attempt, result: RunResult, lease: Lease) -> RunResult {
    let is_published = result.error.is_none() && attempt.mode == RunMode::Published;
    if is_published && !compaction::is_due(attempt).await {
        futures::join!(record(attempt, &result), release(lease));
        return result;
    }
    record(attempt, &result).await;
    if is_published {
        compaction::after_run(attempt).await;
    }
    release(lease).await;
    result
}

async fn release(lease: Lease) {
    // The lease only saves work: one that cannot be released expires by itself.
    if let Err(error) = lease.release().await {
        log::warn!("a lease was not released and will expire: {error}");
    }
}

/// Re-reads what the lease made stable, and takes the sealed revision where there is a seal.
async fn adopt(mut attempt: Attempt, seal: Option<&Seal>) -> Result<Attempt> {
    if attempt.mode == RunMode::Published {
        attempt.base = super::attempt::newest_base_for(&attempt.incarnation, attempt.full).await?;
    }
    if let Some(seal) = seal {
        let revision = attempt.definitions.revision(seal.revision).cloned();
        let revision =
            revision.ok_or_else(|| Error::internal(format!("the seal names revision {}, which was never saved", seal.revision)))?;
        attempt.revision = Arc::new(revision);
    }
    Ok(attempt)
}

async fn cancellable(attempt: &Arc<Attempt>, seal: Option<Box<Seal>>) -> Result<RunSummary> {
    let asked = cancel::requested(attempt.runs.clone(), attempt.host.env.clone());
    let mut work = Box::pin(drive(attempt, seal));
    tokio::select! {
        biased; // so that a simulation's seed decides everything
        result = &mut work => return result,
        () = asked => {}
    }
    if attempt.is_committing() {
        // The slot may be on its way already: only its outcome can be told.
        return work.await;
    }
    drop(work);
    after_cancel(attempt).await
}

/// The slot decides: a run that had won it when it was cancelled is published.
async fn after_cancel(attempt: &Attempt) -> Result<RunSummary> {
    let slot = attempt.incarnation.slot(attempt.next_version()).await?;
    if let Some(slot) = slot.filter(|slot| slot.run == attempt.run) {
        return history::version_summary(&attempt.incarnation, &slot).await;
    }
    Err(Error::new(
        ErrorCode::Cancelled,
        format!("table {:?}: run {:?} was cancelled; nothing was published. Remedy: start a new run", attempt.name(), attempt.run.as_str()),
    ))
}

/// The run's row; a run keeps its error.
async fn describe(attempt: &Attempt, outcome: Result<RunSummary>) -> RunResult {
    match outcome {
        Ok(summary) => RunResult { summary, error: None },
        Err(error) => {
            let mut summary = attempt.summary(state_of(&error));
            if let Err(error) = history::fill_from_seal(&attempt.incarnation, &attempt.run, &mut summary).await {
                log::warn!("table {:?}: the seal of run {:?} cannot be read: {error}", attempt.name(), attempt.run.as_str());
            }
            summary.ended_at = Some(attempt.now());
            if let Some(outside) = &attempt.outside {
                // The seal of an earlier attempt knows more than a run that did not open its source.
                let report = outside.report().filter(|report| summary.sync.is_none() || report.generation.is_some());
                summary.sync = report.map(Box::new).or(summary.sync);
            }
            summary.error_code = Some(error.code().as_str().to_string());
            summary.error_message = Some(error.message().to_string());
            RunResult { summary, error: Some(error) }
        }
    }
}

/// Writes the end record.
async fn record(attempt: &Attempt, result: &RunResult) {
    if let Err(error) = attempt.runs.end_attempt(&attempt.id, &result.summary).await {
        // The version slot or the seal already says what counts; the record is for people.
        log::warn!("table {:?}: the end of run {:?} was not recorded: {error}", attempt.name(), attempt.run.as_str());
    }
}

fn state_of(error: &Error) -> RunState {
    match error.code() {
        ErrorCode::DeleteGuard => RunState::Held,
        ErrorCode::Cancelled => RunState::Cancelled,
        ErrorCode::CommitUnknown => RunState::Unknown,
        _ => RunState::Failed,
    }
}

/// Capture (unless sealed), guard, handle, publish.
async fn drive(attempt: &Arc<Attempt>, seal: Option<Box<Seal>>) -> Result<RunSummary> {
    if let Some(outside) = &attempt.outside {
        return outside::drive(attempt, outside.as_ref(), seal).await;
    }
    let definition = attempt.definition();
    let handler = BoundHandler::bind(attempt.name(), definition, &attempt.host.handlers, &attempt.host.state)?;
    if let Some(seal) = seal {
        return finish(attempt, &handler, *seal).await;
    }
    let mut retries = 0;
    let mut wait = attempt.options.capture_backoff;
    loop {
        attempt.host.report(attempt.name(), Phase::Capture);
        let is_whole = attempt.is_hand_on_refused();
        let error = match capture_once(attempt, &handler).await {
            Ok(summary) => return Ok(summary),
            Err(error) => error,
        };
        if attempt.is_hand_on_refused() && !is_whole {
            log::warn!("table {:?}: run {:?} reads its source whole: {error}", attempt.name(), attempt.run.as_str());
            continue;
        }
        if retries >= attempt.options.capture_retries || !is_transient_capture(&error) {
            return Err(error);
        }
        retries += 1;
        log::warn!("table {:?}: capture of run {:?} is tried again ({retries}): {error}", attempt.name(), attempt.run.as_str());
        attempt.host.env.clock.sleep(wait).await;
        wait *= 2;
    }
}

pub(super) fn is_transient_capture(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<DataFusionError>());
    error.code() == ErrorCode::CaptureFailed && cause.is_some_and(is_transient)
}

async fn capture_once(attempt: &Arc<Attempt>, handler: &BoundHandler) -> Result<RunSummary> {
    let (context, diff) = capture::prepare(attempt).await?;
    if context.choice.is_unchanged() {
        // Nothing to read, nothing to compare, nothing to write: no plan at all.
        let publication = Publication::new(Arc::clone(attempt), Pinned::OnePass(context));
        return publication.publish(vec![]).await;
    }
    let noted = |error| context.hand_on.noted(attempt, error);
    if handler.proven() && attempt.definition().incremental {
        let publication = Publication::new(Arc::clone(attempt), Pinned::OnePass(Arc::clone(&context)));
        let plan = plans::one_pass_plan(attempt, handler, diff, publication.clone()).await?;
        return published(attempt, plan, &publication).await.map_err(noted);
    }
    let sink = Arc::new(InputSeal::new(Arc::clone(&context)));
    let plan = plans::capture_plan(attempt, diff, sink.clone())?;
    execute(attempt, Arc::clone(&plan), ErrorCode::CaptureFailed, "capturing the source failed").await.map_err(noted)?;
    attempt.add_spilled(spilled(&plan));
    let seal = sink.sealed.get().cloned().ok_or_else(|| Error::internal("the capture ended without a seal"))?;
    finish(attempt, handler, seal).await
}

/// Seals the change set when its last row is written.
#[derive(Debug)]
pub(super) struct InputSeal {
    context: Arc<CaptureContext>,
    sealed: OnceLock<Seal>,
}

impl InputSeal {
    pub fn new(context: Arc<CaptureContext>) -> Self {
        Self { context, sealed: OnceLock::new() }
    }
}

#[async_trait]
impl SealSink for InputSeal {
    async fn seal(&self, changes: Vec<ObjectRef>, rows: u64) -> Result<u64> {
        self.context.counted(rows);
        let seal = self.context.seal(|dead| Capture::Input { changes, dead }).await?;
        let rows = seal.created + seal.updated;
        self.sealed.get_or_init(|| seal);
        Ok(rows)
    }
}

/// Publishes a sealed run: the handler is called only when there are rows for it.
async fn finish(attempt: &Arc<Attempt>, handler: &BoundHandler, seal: Seal) -> Result<RunSummary> {
    if let Some(answer) = overtaken(attempt, &seal).await? {
        return Ok(answer);
    }
    let Capture::Input { changes, .. } = &seal.capture else { return publish_output(attempt, &seal, Work::default()).await };
    guard::check(attempt, &seal)?;
    attempt.host.report(attempt.name(), Phase::Handle);
    let changes = changes.clone();
    let publication = Publication::new(Arc::clone(attempt), Pinned::Sealed(Box::new(seal)));
    // A query over the whole input may have rows for no input (a count), so it runs also then.
    if changes.is_empty() && attempt.definition().incremental {
        return publication.publish(vec![]).await;
    }
    let plan = plans::sealed_plan(attempt, handler, &changes, publication.clone()).await?;
    published(attempt, plan, &publication).await
}

pub(super) async fn published(attempt: &Attempt, plan: Arc<dyn ExecutionPlan>, publication: &Publication) -> Result<RunSummary> {
    let (code, what) = match attempt.outside {
        Some(_) => (ErrorCode::CaptureFailed, "reading the source failed"),
        None => (ErrorCode::HandlerFailed, "the handler failed"),
    };
    execute(attempt, plan, code, what).await?;
    publication.result.get().cloned().ok_or_else(|| Error::internal("the publish plan ended without its row"))
}

async fn execute(attempt: &Attempt, plan: Arc<dyn ExecutionPlan>, code: ErrorCode, what: &str) -> Result<()> {
    let context = format!("table {:?}: {what}; nothing was published. Remedy: mend the cause and run again", attempt.name());
    collect(plan, attempt.task_context()).await.map(drop).map_err(|e| Error::from_datafusion(e, code, context))
}
