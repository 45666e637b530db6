//! Rollback: an older version's rows and baseline become a new version.

use std::sync::Arc;

use crate::error::{Error, ErrorCode, Result};
use crate::spec::sync::SyncState;
use crate::spec::{RunId, RunState, RunSummary};
use crate::store::VersionKind;
use crate::table::TableHandle;

use super::attempt::Attempt;
use super::commit::{NewVersion, commit_version};
use super::{Host, RefreshRequest};

/// Publishes the rows, the baseline and the revision of `version` as a new version. The source is not read.
///
/// # Errors
/// `VERSION_NOT_FOUND`, `HISTORY_MISSING` when the version's files are gone, `RUN_ACTIVE`, `RUN_CONFLICT`.
pub async fn rollback(host: &Host, table: &Arc<TableHandle>, version: u64) -> Result<RunSummary> {
    let run = RunId::new(host.env.ids.id()?)?;
    let attempt = Attempt::open(host, table, &RefreshRequest::default(), run).await?;
    let lease = attempt.incarnation.take_lease(&attempt.run, &attempt.id).await?;
    let result = leased(attempt, version).await;
    if let Err(error) = lease.release().await {
        log::warn!("a lease was not released and will expire: {error}");
    }
    table.follow().await;
    result
}

async fn leased(mut attempt: Attempt, version: u64) -> Result<RunSummary> {
    let started = attempt.elapsed();
    attempt.base = super::attempt::newest_base(&attempt.incarnation).await?;
    // Below the floor a vacuum may be deleting this very moment.
    if let Some(base) = attempt.base.as_ref().filter(|base| version < base.manifest.floor) {
        return Err(vacuumed(&attempt.table, version, base.manifest.floor));
    }
    let slot = attempt.incarnation.slot(version).await?.ok_or_else(|| not_found(&attempt.table, version))?;
    let manifest = attempt.incarnation.manifest(&slot).await?;
    let files = attempt.incarnation.files(&manifest).await?;
    attempt.table.at_version(version).await?;
    let revision = attempt.definitions.revision(manifest.revision).cloned();
    attempt.revision = Arc::new(revision.ok_or_else(|| Error::internal(format!("version {version} names an unknown revision")))?);
    let mut source = attempt.incarnation.source_state(&manifest).await?;
    if let Some(base) = &attempt.base {
        // Ordinals are never reused: the counter goes on from the newest version's.
        source.next_ordinal = source.next_ordinal.max(attempt.incarnation.source_state(&base.manifest).await?.next_ordinal);
    }
    let mut summary = attempt.summary(RunState::Published);
    summary.handler_rows = Some(0);
    let new = NewVersion {
        kind: VersionKind::Rollback,
        revision: &attempt.revision,
        files: files.as_ref().clone(),
        source,
        base: attempt.base.as_ref(),
        floor: 0,
        sync: manifest.sync.clone().map(|state| rolled_back(state, attempt.base.as_ref())),
    };
    commit_version(&attempt, new, summary, started).await
}

/// Rebuilds that were asked for before are not asked for again: the next run would undo the rollback.
fn rolled_back(state: SyncState, newest: Option<&super::attempt::Base>) -> SyncState {
    let rebuilds = newest.and_then(|base| base.manifest.sync.as_ref()).map_or(0, |newest| newest.rebuilds);
    SyncState { rebuilds: state.rebuilds.max(rebuilds), ..state }
}

fn vacuumed(table: &TableHandle, version: u64, floor: u64) -> Error {
    Error::new(
        ErrorCode::HistoryMissing,
        format!(
            "table {:?}: version {version} was vacuumed; versions from {floor} on are kept. Remedy: roll back to one of those, \
             and set a larger older_than",
            table.name()
        ),
    )
}

pub(super) fn not_found(table: &TableHandle, version: u64) -> Error {
    Error::new(
        ErrorCode::VersionNotFound,
        format!(
            "table {:?} has no version {version}. Remedy: SELECT version FROM incremental_versions({})",
            table.name(),
            table.sql_literal()
        ),
    )
}
