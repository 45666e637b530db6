//! `incremental-cli run-schedules [--once]`.
//!
//! ```text
//! look: start what is due ─► wait for an end, the next firing, or half a minute ─► look …          Ctrl-C ends it
//!                                  └► one line each
//! ```
//!
//! Tables that another process creates or changes meanwhile are found by the next look. A store that does not answer is
//! reported, and asked again.

use std::time::Duration;

use datafusion_incremental::ErrorCode;
use datafusion_incremental::context::IncrementalSession;
use datafusion_incremental::error::Result;
use datafusion_incremental::sync::schedule::{Outcome, Ran, Scheduler};

use crate::engine::Session;

/// Changes by other processes are seen no later.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// Runs what is due; `once`: now and no more. Whether every run ended well.
pub async fn run(session: &Session, once: bool, quiet: bool) -> Result<bool> {
    let session = session.library();
    if once {
        let tick = session.run_due().await?;
        tick.ran.iter().for_each(|ran| report(ran, quiet));
        return Ok(!tick.has_failed());
    }
    tokio::select! {
        // A run that is cut off is abandoned: its lease ends by itself and the next one goes on.
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted.is_ok()),
        ended = keep_on(session, quiet) => ended.map(|()| true),
    }
}

async fn keep_on(session: &IncrementalSession, quiet: bool) -> Result<()> {
    let clock = session.host().env.clock;
    let mut scheduler = Scheduler::default();
    loop {
        let next = match session.look(&mut scheduler).await {
            Ok(tick) => {
                tick.ran.iter().for_each(|ran| report(ran, quiet));
                tick.next
            }
            Err(error) if error.code() == ErrorCode::StoreFailed => {
                eprintln!("{error}");
                None
            }
            Err(error) => return Err(error),
        };
        let wait = next.map_or(i64::MAX, |next| next.saturating_sub(clock.now_micros())).max(0);
        tokio::select! {
            Some(ran) = scheduler.ended(), if scheduler.is_at_work() => report(&ran, quiet),
            () = clock.sleep(Duration::from_micros(wait.unsigned_abs()).min(LONGEST_SLEEP)) => {}
        }
    }
}

fn report(ran: &Ran, quiet: bool) {
    let due = time(ran.due_at);
    match &ran.outcome {
        Outcome::Failed(error) => eprintln!("{}: {error}", ran.table),
        Outcome::Skipped(run) => eprintln!("{due} {}: skipped, run {run} is active", ran.table),
        Outcome::Ended(result) => match &result.error {
            Some(error) => eprintln!("{due} {}: {error}", ran.table),
            None if quiet => {}
            None => {
                let run = &result.summary;
                let count = |count: Option<u64>| count.unwrap_or_default();
                println!(
                    "{due} {}: {} new, {} changed, {} gone, {} rows",
                    ran.table,
                    count(run.rows_created),
                    count(run.rows_updated),
                    count(run.rows_deleted),
                    count(run.rows_total)
                );
            }
        },
    }
}

/// A time as people read it, UTC.
fn time(micros: i64) -> String {
    let value = datafusion::common::ScalarValue::TimestampMicrosecond(Some(micros), Some("UTC".into()));
    let array = value.to_array();
    let text = array.ok().and_then(|array| datafusion::arrow::util::display::array_value_to_string(&array, 0).ok());
    text.unwrap_or_else(|| micros.to_string())
}
