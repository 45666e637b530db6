//! `incremental-cli run-schedules [--once]`.
//!
//! ```text
//! tick: run what is due ─► one line each ─► sleep until the next firing, at most half a minute ─► tick …   Ctrl-C ends it
//! ```
//!
//! Tables that another process creates or changes meanwhile are found by the next tick.

use std::time::Duration;

use datafusion_incremental::context::IncrementalSession;
use datafusion_incremental::error::Result;
use datafusion_incremental::sync::schedule::{Outcome, Ran};

use crate::engine::Session;

/// Changes by other processes are seen no later.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// Runs what is due; `once`: now and no more. Whether every run ended well.
pub async fn run(session: &Session, once: bool, quiet: bool) -> Result<bool> {
    let session = session.library();
    let mut good = true;
    loop {
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => {
                // A run that is cut off is abandoned: its lease ends by itself and the next one goes on.
                return Ok(interrupted.is_ok());
            }
            ticked = tick(session, once, quiet) => good &= ticked?,
        }
        if once {
            return Ok(good);
        }
    }
}

/// One look, and the wait for the next one.
async fn tick(session: &IncrementalSession, once: bool, quiet: bool) -> Result<bool> {
    let tick = session.run_due().await?;
    for ran in &tick.ran {
        report(ran, quiet);
    }
    let clock = session.host().env.clock;
    if !once {
        let wait = tick.next.map_or(i64::MAX, |next| next.saturating_sub(clock.now_micros())).max(0);
        clock.sleep(Duration::from_micros(wait.unsigned_abs()).min(LONGEST_SLEEP)).await;
    }
    Ok(!tick.has_failed())
}

fn report(ran: &Ran, quiet: bool) {
    let due = time(ran.due_at);
    match &ran.outcome {
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
