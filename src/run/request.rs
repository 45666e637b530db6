//! What a caller asks for, and what it gets.

use crate::error::{Error, Result};
use crate::spec::{RunId, RunMode, RunSummary};

/// One refresh as it is asked for.
#[derive(Debug, Clone)]
pub struct RefreshRequest {
    /// Draft or published.
    pub mode: RunMode,
    /// Hand all rows to the handler, whatever the baseline says.
    pub full: bool,
    /// The run's id; `None` mints one.
    pub run: Option<RunId>,
    /// Publish although the delete guard would hold the run.
    pub allow_deletes: bool,
}

impl Default for RefreshRequest {
    fn default() -> Self {
        Self { mode: RunMode::Published, full: false, run: None, allow_deletes: false }
    }
}

/// How a refresh ended: the summary row always, and the error when it did not end well.
#[derive(Debug, Clone)]
pub struct RunResult {
    /// The run's row.
    pub summary: RunSummary,
    /// Why it failed, was held or cancelled.
    pub error: Option<Error>,
}

impl RunResult {
    /// The row of a run that ended well, else its error.
    ///
    /// # Errors
    /// The run's own error.
    pub fn into_result(self) -> Result<RunSummary> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.summary),
        }
    }
}
