//! Drafts: a complete output for inspection that touches no version.

use std::sync::Arc;

use crate::error::Result;
use crate::spec::{RunState, RunSummary};
use crate::store::{DataFile, DraftOutput};

use super::attempt::Attempt;

/// Names a draft's output with one create-only object; a draft of the same run that was first keeps its place.
pub(super) async fn store(attempt: &Attempt, files: Vec<DataFile>, mut summary: RunSummary) -> Result<RunSummary> {
    summary.state = RunState::Completed;
    let definition = attempt.definition();
    let draft = DraftOutput {
        attempt: attempt.id.clone(),
        revision: attempt.revision.number,
        output_schema: Arc::clone(&definition.output_schema),
        key: definition.key.clone(),
        files,
        summary,
    };
    attempt.runs.write_draft(&draft).await?;
    Ok(attempt.runs.draft().await?.map_or(draft.summary, |stored| stored.summary))
}
