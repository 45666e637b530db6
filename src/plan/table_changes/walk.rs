//! Walks the versions between two and gathers which files have changes.
//!
//! ```text
//! run          files that it added; if it deleted rows, those that are live in its base's files and dead or dropped in its own
//! compaction   the same rows in other files: nothing
//! fence        the same files: nothing
//! rebuild, rollback, a version without its manifest: not known
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::{NotKnown, TableChanges};
use crate::error::{Error, ErrorCode};
use crate::exec::key_scan::{ChosenRows, KeyFile};
use crate::plan::published_scan::Snapshot;
use crate::spec::VersionNumber;
use crate::store::{DataFile, Incarnation, Manifest, VersionKind};

/// Reading more manifests than this costs more than it saves.
const MOST_VERSIONS: u64 = 1_000;

/// What the steps so far say.
#[derive(Default)]
struct Walk {
    /// The versions that runs and compactions made.
    runs: HashSet<VersionNumber>,
    compactions: HashSet<VersionNumber>,
    /// By data path: the file as it was before the first run that deleted rows of it, and as it is after the last one.
    died: BTreeMap<String, (DataFile, Option<DataFile>)>,
    keys: u64,
}

pub(super) async fn walk(from: VersionNumber, to: Arc<Snapshot>) -> Result<TableChanges, NotKnown> {
    let newest = to.version.ok_or_else(|| NotKnown("it is no published version".into()))?;
    if newest < from {
        return Err(NotKnown(format!("version {from} is not in its history any more")));
    }
    if newest - from > MOST_VERSIONS {
        return Err(NotKnown(format!("version {from} is more than {MOST_VERSIONS} versions ago")));
    }
    let incarnation = &to.incarnation;
    let (mut walk, mut before) = (Walk::default(), None);
    for version in from + 1..=newest {
        let manifest = read(incarnation, version).await?;
        match manifest.kind {
            _ if manifest.base != Some(version - 1) => {
                return Err(NotKnown(format!("version {version} does not follow from the one before")));
            }
            VersionKind::Run => {
                let base = match before.take() {
                    Some(files) => files,
                    None => {
                        let base = read(incarnation, version - 1).await?;
                        files_of(incarnation, &base).await?
                    }
                };
                let files = files_of(incarnation, &manifest).await?;
                walk.run(&manifest, &base, &files);
                before = Some(files);
            }
            VersionKind::Compaction => {
                walk.compactions.insert(version);
                before = None;
            }
            VersionKind::Fence => before = None,
            VersionKind::Rebuild => return Err(NotKnown(format!("version {version} rebuilt every row"))),
            VersionKind::Rollback => return Err(NotKnown(format!("version {version} is a rollback"))),
        }
    }
    walk.conclude(from, to)
}

async fn read(incarnation: &Incarnation, version: VersionNumber) -> Result<Arc<Manifest>, NotKnown> {
    let slot = incarnation.slot(version).await.map_err(|e| unreadable(version, &e))?;
    let slot = slot.ok_or_else(|| NotKnown(format!("version {version} is gone")))?;
    incarnation.manifest(&slot).await.map_err(|e| unreadable(version, &e))
}

async fn files_of(incarnation: &Incarnation, manifest: &Manifest) -> Result<Arc<Vec<DataFile>>, NotKnown> {
    incarnation.files(manifest).await.map_err(|e| unreadable(manifest.version, &e))
}

fn unreadable(version: VersionNumber, error: &Error) -> NotKnown {
    match error.code() {
        ErrorCode::HistoryMissing => NotKnown(format!("version {version} is not retained")),
        code => NotKnown(format!("version {version} cannot be read ({})", code.as_str())),
    }
}

impl Walk {
    /// A run made the version of `manifest`, with `files`, out of `base`.
    fn run(&mut self, manifest: &Manifest, base: &[DataFile], files: &[DataFile]) {
        self.runs.insert(manifest.version);
        let after: HashMap<&str, &DataFile> = files.iter().map(|file| (file.data.path.as_str(), file)).collect();
        let now = |file: &DataFile| after.get(file.data.path.as_str()).copied();
        let deaths = |file: &DataFile| file.live_rows().saturating_sub(now(file).map_or(0, DataFile::live_rows));
        let written: u64 = files.iter().filter(|file| file.added_in == manifest.version).map(DataFile::live_rows).sum();
        let died: u64 = base.iter().map(deaths).sum();
        let updated = manifest.summary.rows_updated.unwrap_or(0).min(written).min(died);
        self.keys += written + died - updated;
        // Rows that others replaced need no key of their own: those others have it.
        if manifest.summary.rows_deleted == Some(0) && updated == died {
            return;
        }
        for file in base.iter().filter(|file| now(file).is_none_or(|now| now.deletions != file.deletions)) {
            let (_, last) = self.died.entry(file.data.path.clone()).or_insert_with(|| (file.clone(), None));
            *last = now(file).cloned();
        }
    }

    fn conclude(self, from: VersionNumber, to: Arc<Snapshot>) -> Result<TableChanges, NotKnown> {
        let (mut added, mut compacted) = (vec![], vec![]);
        for file in to.files.iter().filter(|file| file.added_in > from && file.live_rows() > 0) {
            if self.runs.contains(&file.added_in) {
                added.push(file.clone());
            } else if self.compactions.contains(&file.added_in) {
                compacted.push(file.clone());
            } else {
                return Err(NotKnown(format!("a file says that version {} added it, which adds none", file.added_in)));
            }
        }
        let died = self.died.into_values().map(|(file, last)| KeyFile { file, rows: ChosenRows::DeadIn(last.map(Box::new)) }).collect();
        Ok(TableChanges { to, from, added, compacted, died, keys: self.keys })
    }
}
