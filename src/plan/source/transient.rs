//! Which failures of a source are worth another try.

use std::error::Error as StdError;
use std::io;

use datafusion::error::DataFusionError;

use crate::error::Error;

/// Parts of the messages of stores that are busy, throttle or lost the connection.
const BUSY: &[&str] = &[
    "timed out",
    "timeout",
    "time-out",
    "throttl",
    "slow down",
    "slowdown",
    "too many requests",
    "connection reset",
    "connection closed",
    "connection refused",
    "connection error",
    "broken pipe",
    "service unavailable",
    "bad gateway",
    "internal server error",
    "temporarily unavailable",
    "error sending request",
    "429",
    "500",
    "502",
    "503",
    "504",
];

/// Whether the same read may succeed a little later: time-outs, lost connections, throttling. Errors of this crate,
/// of the data (parsing, schema) and of permissions stay what they are however often one tries.
pub fn is_transient(error: &DataFusionError) -> bool {
    if Error::find(error).is_some() {
        return false;
    }
    let mut current: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(e) = current {
        if let Some(verdict) = judge(e) {
            return verdict;
        }
        current = e.source();
    }
    false
}

/// `None`: this error says nothing, its cause may.
fn judge(error: &(dyn StdError + 'static)) -> Option<bool> {
    if let Some(e) = error.downcast_ref::<io::Error>() {
        return Some(is_transient_io(e));
    }
    match error.downcast_ref::<object_store::Error>()? {
        object_store::Error::Generic { source, .. } => Some(is_busy(source.as_ref())),
        _ => Some(false),
    }
}

fn is_busy(error: &(dyn StdError + 'static)) -> bool {
    let mut current = Some(error);
    while let Some(e) = current {
        if let Some(io) = e.downcast_ref::<io::Error>() {
            return is_transient_io(io);
        }
        let text = e.to_string().to_ascii_lowercase();
        if BUSY.iter().any(|part| text.contains(part)) {
            return true;
        }
        current = e.source();
    }
    false
}

fn is_transient_io(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(
        error.kind(),
        K::TimedOut
            | K::ConnectionReset
            | K::ConnectionAborted
            | K::ConnectionRefused
            | K::NotConnected
            | K::BrokenPipe
            | K::Interrupted
            | K::WouldBlock
            | K::HostUnreachable
            | K::NetworkUnreachable
            | K::NetworkDown
            | K::ResourceBusy
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;
    use std::sync::Arc;

    fn store_error(text: &str) -> DataFusionError {
        DataFusionError::ObjectStore(Box::new(object_store::Error::Generic { store: "S3", source: text.to_string().into() }))
    }

    #[test]
    fn busy_stores_are_worth_a_retry() {
        assert!(is_transient(&store_error("Server returned 503 SlowDown after 3 retries")));
        assert!(is_transient(&DataFusionError::Shared(Arc::new(store_error("operation timed out"))).context("scan")));
        assert!(is_transient(&DataFusionError::IoError(io::Error::from(io::ErrorKind::ConnectionReset))));
    }

    #[test]
    fn data_errors_and_own_errors_are_not() {
        let missing = object_store::Error::NotFound { path: "timeout.csv".into(), source: "timeout".into() };
        assert!(!is_transient(&DataFusionError::ObjectStore(Box::new(missing))));
        assert!(!is_transient(&DataFusionError::from(arrow::error::ArrowError::ParseError("timeout".into()))));
        assert!(!is_transient(&Error::new(ErrorCode::StoreFailed, "timed out").into()));
        assert!(!is_transient(&DataFusionError::Execution("timed out".into())));
    }
}
