//! What a run needs of the session that asked for it.

use std::fmt;
use std::sync::Arc;

use datafusion::execution::SessionState;

use crate::env::Env;
use crate::exec::equality::KeyHash;
use crate::handler::HandlerRegistry;

/// Where a run stands, for progress displays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Reading the source and comparing it with the baseline.
    Capture,
    /// Calling the handler and writing its rows.
    Handle,
    /// Writing the manifest and the version slot.
    Publish,
    /// Ended, well or not.
    Done,
}

/// One progress report.
#[derive(Debug, Clone)]
pub struct Progress {
    /// The table.
    pub table: String,
    /// What it does now.
    pub phase: Phase,
}

type Listener = Arc<dyn Fn(Progress) + Send + Sync>;

/// The session's side of a run: planning, handlers, time and ids.
#[derive(Clone)]
pub struct Host {
    /// Plans sources and SQL handlers; its memory pool and disk bound the run.
    pub state: SessionState,
    /// Rust handlers by name.
    pub handlers: HandlerRegistry,
    /// Clock and ids.
    pub env: Env,
    /// How keys are hashed; constant only in tests.
    pub key_hash: KeyHash,
    /// Told about each phase.
    pub progress: Option<Listener>,
}

impl Host {
    pub(crate) fn report(&self, table: &str, phase: Phase) {
        if let Some(listener) = &self.progress {
            listener(Progress { table: table.to_string(), phase });
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("session", &self.state.session_id()).finish_non_exhaustive()
    }
}
