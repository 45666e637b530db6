//! Runs that leave no trace: the dry run (counts only) and the trial of an unsaved handler.

use std::sync::Arc;

use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr, execute_stream};
use futures::TryStreamExt;

use crate::error::{Error, ErrorCode, Result};
use crate::handler::{BoundHandler, SqlHandlerRequest, analyze_sql};
use crate::plan::source::resolve;
use crate::spec::{Definition, HandlerSpec, Revision, RunId, RunMode, RunState, RunSummary};
use crate::store::Seal;
use crate::table::TableHandle;

use super::attempt::Attempt;
use super::outside::not_refreshed;
use super::{Host, RefreshRequest, capture, plans};

/// Captures and diffs, counts, and stores nothing. The handler is not called.
///
/// # Errors
/// Every error of a capture.
pub async fn dry_run(host: &Host, table: &Arc<TableHandle>, request: RefreshRequest) -> Result<RunSummary> {
    if table.is_synced() {
        return Err(not_refreshed(table));
    }
    let run = RunId::new(host.env.ids.id()?)?;
    let attempt = Arc::new(Attempt::open(host, table, &request, run).await?);
    let seal = match counted(&attempt).await {
        Err(_) if attempt.is_hand_on_refused() => counted(&attempt).await?,
        counted => counted?,
    };
    let mut summary = attempt.summary(RunState::Completed);
    summary.reason = Some(seal.reason);
    summary.rows_created = Some(seal.created);
    summary.rows_updated = Some(seal.updated);
    summary.rows_deleted = Some(seal.deleted);
    summary.rows_unchanged = Some(seal.unchanged);
    summary.rows_total = Some(seal.created + seal.updated + seal.unchanged);
    summary.handler_rows = Some(0);
    summary.files_read = Some(seal.files_read);
    summary.files_skipped = Some(seal.files_skipped);
    summary.bytes_written = Some(0);
    summary.peak_memory_bytes = Some(seal.peak_memory_bytes);
    summary.spilled_bytes = Some(seal.spilled_bytes);
    summary.captured_at = Some(seal.captured_at);
    summary.ended_at = Some(attempt.now());
    summary.ms_capture = Some(seal.ms_capture);
    Ok(summary)
}

/// What a seal would say; nothing is stored.
async fn counted(attempt: &Arc<Attempt>) -> Result<Seal> {
    let (context, diff) = capture::prepare(attempt).await?;
    let failed = |e| {
        let what = format!("table {:?}: reading the source failed. Remedy: mend the source and run again", attempt.name());
        context.hand_on.noted(attempt, Error::from_datafusion(e, ErrorCode::CaptureFailed, what))
    };
    let stream = execute_stream(diff, attempt.task_context()).map_err(failed)?;
    let rows = stream.try_fold(0, |rows, batch| std::future::ready(Ok(rows + batch.num_rows()))).await.map_err(failed)?;
    context.counted(u64::try_from(rows).unwrap_or(u64::MAX));
    context.unsealed().await
}

/// A plan that runs the query `text` as the table's handler over all current rows, contract check included.
///
/// # Errors
/// Every refusal of the sandbox, and the source's errors. Errors of the rows come when the plan runs.
pub async fn trial_plan(host: &Host, table: &Arc<TableHandle>, text: &str) -> Result<Arc<dyn ExecutionPlan>> {
    if table.is_synced() {
        return Err(not_refreshed(table));
    }
    let run = RunId::new(host.env.ids.id()?)?;
    let request = RefreshRequest { mode: RunMode::Draft, ..RefreshRequest::default() };
    let mut attempt = Attempt::open(host, table, &request, run).await?;
    let definition = trial_definition(host, &attempt, text).await?;
    attempt.revision = Arc::new(Revision { number: 0, digest: definition.digest(), saved_at: attempt.now(), definition });
    let attempt = Arc::new(attempt);
    let handler = BoundHandler::bind(attempt.name(), attempt.definition(), &host.handlers, &host.state)?;
    let (_, diff) = capture::prepare(&attempt).await?;
    visible(&attempt, plans::handled(&attempt, &handler, diff).await?)
}

async fn trial_definition(host: &Host, attempt: &Attempt, text: &str) -> Result<Definition> {
    let saved = attempt.definition();
    let source = resolve(&host.state, attempt.name(), &saved.source).await?;
    let request = SqlHandlerRequest {
        table: attempt.name(),
        text,
        source_schema: &source.schema,
        key: &saved.key,
        track: saved.tracked_declared.then_some(saved.tracked.as_slice()),
        incremental: saved.incremental,
        allow_volatile: saved.options.allow_volatile,
        state: &host.state,
    };
    let analyzed = analyze_sql(request).await?;
    Ok(Definition {
        tracked: analyzed.tracked,
        handler: HandlerSpec::Sql { text: text.to_string() },
        input_schema: analyzed.input_schema,
        output_schema: analyzed.output_schema,
        session: analyzed.session,
        functions: analyzed.functions,
        ..saved.clone()
    })
}

/// Only the output columns.
fn visible(attempt: &Attempt, rows: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let names = attempt.definition().output_schema.fields().iter().map(|field| field.name().clone());
    let internal = |e| Error::from_datafusion(e, ErrorCode::Internal, "output columns of a trial");
    let mut columns = vec![];
    for name in names {
        let column = Column::new_with_schema(&name, &rows.schema()).map_err(internal)?;
        columns.push((Arc::new(column) as Arc<dyn PhysicalExpr>, name));
    }
    Ok(Arc::new(ProjectionExec::try_new(columns, rows).map_err(internal)?))
}
