//! Cancelling: a request that any process can make; the version slot decides.

use std::time::Duration;

use crate::env::Env;
use crate::error::{Error, ErrorCode, Result};
use crate::spec::{RunId, RunSummary};
use crate::store::RunStore;
use crate::table::TableHandle;

use super::history;

/// How often an active run looks for a request.
const POLL: Duration = Duration::from_millis(500);

/// Asks the run to stop. A run that is published already stays published; the row says what became of it so far.
///
/// # Errors
/// `RUN_NOT_FOUND` when no run of the table has this id.
pub async fn cancel(table: &TableHandle, run: &RunId) -> Result<RunSummary> {
    let runs = table.incarnation().run(run);
    if runs.request().await?.is_none() {
        return Err(Error::new(
            ErrorCode::RunNotFound,
            format!(
                "table {:?} has no run {:?}. Remedy: SELECT run_id FROM incremental_runs({})",
                table.name(),
                run.as_str(),
                table.sql_literal()
            ),
        ));
    }
    let summary = history::summary_of(table, run).await?;
    if summary.state.is_final() {
        return Ok(summary);
    }
    runs.write_cancel().await?;
    history::summary_of(table, run).await
}

/// Ends when somebody asked the run to stop; never on a store error, which must not end a healthy run.
pub(super) async fn requested(runs: RunStore, env: Env) {
    loop {
        if matches!(runs.cancelled().await, Ok(Some(_))) {
            return;
        }
        env.clock.sleep(POLL).await;
    }
}
