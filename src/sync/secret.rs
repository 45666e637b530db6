//! References to secrets: kept everywhere, resolved where a connector is opened.
//!
//! ```text
//! env:PG_URL          the variable of the process
//! file:/run/pg_url    the file's text, without white space around it
//! ```
//!
//! A resolved value is handed to the connector and to nobody else.

use std::path::Path;

use datafusion::common::runtime::SpawnedTask;

use crate::error::{Error, ErrorCode, Result};

/// Whether a text is a reference.
pub(super) fn is_reference(text: &str) -> bool {
    let named = |prefix: &str| text.strip_prefix(prefix).is_some_and(|name| !name.trim().is_empty());
    named("env:") || named("file:")
}

/// What a reference stands for.
pub(super) async fn resolve(connection: &str, option: &str, reference: &str) -> Result<String> {
    let missing = |why: String| {
        Error::new(
            ErrorCode::SecretMissing,
            format!(
                "connection {connection:?}: option {option:?} refers to {reference:?}, {why}. Remedy: provide it to this process, or create the \
                 connection again with another reference"
            ),
        )
    };
    if let Some(name) = reference.strip_prefix("env:") {
        return std::env::var(name.trim()).map_err(|_| missing("which the environment does not have (as text)".into()));
    }
    let path = reference.strip_prefix("file:").unwrap_or(reference).trim().to_string();
    let read = move || std::fs::read_to_string(Path::new(&path));
    // The error of a file says why, never what is in it.
    let text = match SpawnedTask::spawn_blocking(read).await {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => return Err(missing(format!("which cannot be read ({})", error.kind()))),
        Err(_) => return Err(missing("which cannot be read".into())),
    };
    match text.trim() {
        "" => Err(missing("which is empty".into())),
        text => Ok(text.to_string()),
    }
}
