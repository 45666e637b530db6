//! Loads pinned versions: slot → manifest → file list.

use std::sync::Arc;

pub use crate::plan::published_scan::Snapshot;

use crate::error::Result;
use crate::plan::published_scan::ScanCache;
use crate::store::{DraftOutput, Incarnation, Slot};

/// The accepted version in `slot`.
pub(super) async fn load(incarnation: &Incarnation, slot: &Slot, verify: bool) -> Result<Snapshot> {
    let manifest = incarnation.manifest(slot).await?;
    let files = incarnation.files(&manifest).await?;
    Ok(Snapshot {
        incarnation: incarnation.clone(),
        version: Some(slot.version),
        key: manifest.key.clone(),
        output_schema: Arc::clone(&manifest.output_schema),
        files,
        verify,
        cache: ScanCache::default(),
    })
}

/// The output of a draft.
pub(super) fn of_draft(incarnation: &Incarnation, draft: DraftOutput, verify: bool) -> Snapshot {
    Snapshot {
        incarnation: incarnation.clone(),
        version: None,
        key: draft.key,
        output_schema: draft.output_schema,
        files: Arc::new(draft.files),
        verify,
        cache: ScanCache::default(),
    }
}
