//! A deep stack for recursive code that is handed text by strangers.
//!
//! ```text
//! caller's thread (2 MiB, or 8) ── waits ──► a thread of 64 MiB: parse, judge, take apart ── result ──► caller
//! ```
//!
//! Memory: what the work touches; the stack is reserved, not used. Never runs anything in the background: the caller
//! waits for the end.

use crate::error::{Error, ErrorCode, Result};

/// Enough for 10,000 levels of the parser's largest frames in a debug build.
const STACK: usize = 64 * 1024 * 1024;

/// Runs `work` to its end on a deep stack.
///
/// # Errors
/// `RESOURCES_EXHAUSTED` when no thread can be started, `INTERNAL` when the work panicked.
pub(crate) fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("incremental-parse".into()).stack_size(STACK).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| Error::new(ErrorCode::ResourcesExhausted, format!("no thread: {e}. Remedy: free resources")))?;
        thread.join().map_err(|_| Error::internal("parsing panicked"))
    })
}
