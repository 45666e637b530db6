//! The one way to a new version: parts, source identity, manifest, slot.
//!
//! ```text
//! stage    parts of the file list │ source identity ─► manifest     what the base has already is named again; the seal may
//! accept   the version's slot                                       be written at the same time, the slot only after it
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use crate::error::{Error, ErrorCode, Result};
use crate::spec::sync::SyncState;
use crate::spec::{Revision, RunSummary};
use crate::store::{CommitOutcome, DataFile, FORMAT, Manifest, ObjectRef, SourceState, StagedVersion, VersionDelta, VersionKind};

use super::attempt::{Attempt, Base};
use super::history;

/// What a new version holds.
#[derive(Debug)]
pub(super) struct NewVersion<'a> {
    pub kind: VersionKind,
    pub revision: &'a Revision,
    pub files: Vec<DataFile>,
    pub source: SourceState,
    pub base: Option<&'a Base>,
    /// Versions below it may have lost files from now on; 0: as in the base.
    pub floor: u64,
    /// Where a synced table stands; a version that only rewrites the base's rows stands where it did.
    pub sync: Option<SyncState>,
}

/// A version that is written and not accepted.
#[derive(Debug)]
pub(super) struct Staged {
    version: StagedVersion,
    summary: RunSummary,
}

/// Writes the manifest and wins the version slot, or fails with `RUN_CONFLICT` and leaves nothing visible.
/// `summary` gets its version, totals and end; `started` is when publishing began.
pub(super) async fn commit_version(attempt: &Attempt, new: NewVersion<'_>, summary: RunSummary, started: Duration) -> Result<RunSummary> {
    accept(attempt, stage(attempt, new, summary, started).await?).await
}

/// Writes everything but the slot.
pub(super) async fn stage(attempt: &Attempt, new: NewVersion<'_>, mut summary: RunSummary, started: Duration) -> Result<Staged> {
    let incarnation = &attempt.incarnation;
    let version = attempt.next_version();
    let (base_files, base_parts) = match new.base {
        Some(base) => (base.files.as_slice(), base.manifest.parts.as_slice()),
        None => (&[][..], &[][..]),
    };
    let write_parts = async {
        let is_same = new.base.is_some_and(|base| *base.files == new.files);
        if is_same { Ok(base_parts.to_vec()) } else { incarnation.write_files(base_parts, &new.files).await }
    };
    let (parts, source) = futures::try_join!(write_parts, source_state(attempt, &new))?;
    let base_objects = base_parts.iter().chain(new.base.and_then(|base| base.manifest.source.as_ref())).collect::<Vec<_>>();
    let written = parts.iter().chain([&source]).filter(|object| !base_objects.contains(object));
    let metadata: u64 = written.map(|object| object.bytes).sum();
    let vectors: u64 = changed_vectors(base_files, &new.files);
    let rows = new.files.iter().map(DataFile::live_rows).sum();
    // Versions are ordered by their numbers; the time only has to move forward with them.
    let committed_at = attempt.now().max(new.base.map_or(0, |base| base.manifest.committed_at + 1));
    summary.version = Some(version);
    summary.rows_total = Some(rows);
    summary.bytes_written = Some(summary.bytes_written.unwrap_or(0) + metadata + vectors);
    summary.ended_at = Some(committed_at);
    summary.ms_publish = Some(attempt.ms_since(started));
    let definition = &new.revision.definition;
    let manifest = Manifest {
        format: FORMAT,
        incarnation: incarnation.id().to_string(),
        version,
        base: new.base.map(|base| base.slot.version),
        kind: new.kind,
        revision: new.revision.number,
        committed_at,
        key: definition.key.clone(),
        output_schema: std::sync::Arc::clone(&definition.output_schema),
        parts,
        source: Some(source),
        rows,
        delta: delta(base_files, &new.files),
        floor: new.floor.max(new.base.map_or(0, |base| base.manifest.floor)),
        summary,
        sync: new.sync,
    };
    let version = incarnation.stage(&manifest, &attempt.run, &attempt.id).await?;
    Ok(Staged { version, summary: manifest.summary })
}

/// The state of the source; one that is the base's to the last file is named again.
async fn source_state(attempt: &Attempt, new: &NewVersion<'_>) -> Result<ObjectRef> {
    let incarnation = &attempt.incarnation;
    if let Some((base, known)) = new.base.and_then(|base| Some((base, base.manifest.source.as_ref()?)))
        && incarnation.source_state(&base.manifest).await? == new.source
    {
        return Ok(known.clone());
    }
    incarnation.write_source_state(&new.source).await
}

/// Wins the version's slot, or fails with `RUN_CONFLICT` and leaves nothing visible.
pub(super) async fn accept(attempt: &Attempt, staged: Staged) -> Result<RunSummary> {
    let (incarnation, version) = (&attempt.incarnation, attempt.next_version());
    attempt.set_committing();
    match incarnation.accept(staged.version).await? {
        CommitOutcome::Committed(_) => Ok(staged.summary),
        // Another attempt of this very run was first: its version is this run's answer.
        CommitOutcome::Lost(winner) if winner.run == attempt.run => history::version_summary(incarnation, &winner).await,
        CommitOutcome::Lost(winner) => Err(Error::new(
            ErrorCode::RunConflict,
            format!(
                "table {:?}: run {:?} published version {version} first; nothing of run {:?} is visible. Remedy: start a new run",
                attempt.name(),
                winner.run.as_str(),
                attempt.run.as_str()
            ),
        )),
    }
}

fn changed_vectors(base: &[DataFile], files: &[DataFile]) -> u64 {
    let before: BTreeSet<&str> = base.iter().filter_map(|f| f.deletions.as_ref()).map(|dv| dv.object.path.as_str()).collect();
    files.iter().filter_map(|f| f.deletions.as_ref()).filter(|dv| !before.contains(dv.object.path.as_str())).map(|dv| dv.object.bytes).sum()
}

fn delta(base: &[DataFile], files: &[DataFile]) -> VersionDelta {
    let paths = |files: &[DataFile]| files.iter().map(|f| f.data.path.clone()).collect::<BTreeSet<_>>();
    let (before, after) = (paths(base), paths(files));
    let vector_of = |path: &str| base.iter().find(|f| f.data.path == path).map(|f| f.deletions.as_ref().map(|dv| dv.object.path.as_str()));
    VersionDelta {
        added: after.difference(&before).cloned().collect(),
        removed: before.difference(&after).cloned().collect(),
        deletions_changed: files
            .iter()
            .filter(|f| vector_of(&f.data.path).is_some_and(|was| was != f.deletions.as_ref().map(|dv| dv.object.path.as_str())))
            .map(|f| f.data.path.clone())
            .collect(),
    }
}
