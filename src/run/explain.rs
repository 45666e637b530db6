//! `EXPLAIN REFRESH`: the plans of the next run, what it would read and why. Reads no source data, writes nothing.

use std::sync::Arc;

use datafusion::physical_plan::displayable;

use crate::error::Result;
use crate::handler::BoundHandler;
use crate::spec::{RunId, RunReason};
use crate::table::TableHandle;

use super::attempt::Attempt;
use super::capture::CaptureContext;
use super::outside::not_refreshed;
use super::publish::{Pinned, Publication};
use super::{Host, RefreshRequest, capture, engine, plans};

/// Pairs of (what, text): the decision, then the plans.
///
/// # Errors
/// The errors that a run would meet before it reads data.
pub async fn explain_refresh(host: &Host, table: &Arc<TableHandle>) -> Result<Vec<(String, String)>> {
    if table.is_synced() {
        return Err(not_refreshed(table));
    }
    let run = RunId::new("explain")?;
    let attempt = Arc::new(Attempt::open(host, table, &RefreshRequest::default(), run).await?);
    let handler = BoundHandler::bind(attempt.name(), attempt.definition(), &host.handlers, &host.state)?;
    let (context, diff) = capture::prepare(&attempt).await?;
    let mut rows = vec![("decision".to_string(), decision(&attempt, handler.proven(), &context))];
    if handler.proven() && attempt.definition().incremental {
        let publication = Publication::new(Arc::clone(&attempt), Pinned::OnePass(context));
        let plan = plans::one_pass_plan(&attempt, &handler, diff, publication).await?;
        rows.push(("refresh_plan".to_string(), displayable(plan.as_ref()).indent(false).to_string()));
        return Ok(rows);
    }
    let sink = Arc::new(engine::InputSeal::new(Arc::clone(&context)));
    let plan = plans::capture_plan(&attempt, diff, sink)?;
    rows.push(("capture_plan".to_string(), displayable(plan.as_ref()).indent(false).to_string()));
    let publication = Publication::new(Arc::clone(&attempt), Pinned::OnePass(context));
    let plan = plans::sealed_plan(&attempt, &handler, &[], publication).await?;
    rows.push(("publish_plan".to_string(), displayable(plan.as_ref()).indent(false).to_string()));
    Ok(rows)
}

fn decision(attempt: &Attempt, proven: bool, context: &CaptureContext) -> String {
    let why = match attempt.reason_before_diff() {
        RunReason::Initial => "initial: the table was never published, all rows are handled",
        RunReason::RebuildRevision => "rebuild_revision: the published version is of another revision, all rows are handled",
        RunReason::Full => "full: incremental = false, all rows are handled",
        _ => "incremental: only new and changed rows are handled",
    };
    let base =
        attempt.base.as_ref().map_or("none".to_string(), |base| format!("version {} ({} rows)", base.slot.version, base.manifest.rows));
    let pass = if proven { "proven, one pass" } else { "checked row by row after a sealed capture" };
    let source = context.hand_on.explain().map_or(String::new(), |line| format!("\n{line}"));
    let files = &context.choice;
    format!("{why}\nbase: {base}\nrevision: {}\nhandler: {pass}\n{files}{source}", attempt.revision.number)
}
