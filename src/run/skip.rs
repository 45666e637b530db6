//! File skip: which source files a run need not read, because they provably did not change.
//!
//! ```text
//! file as listed ─ same as the accepted run saw it? ─ old enough then? ─ exact? ─► skipped: its rows are unchanged
//!                  └ path, size, tag, both times      └ 2 s              └ index rows = its rows
//! ```
//!
//! What a skip rests on: the accepted run read this very file (nothing can be written into a file, two seconds after its
//! last change, without moving its times), the same way (scan digest), and the index rows with its ordinal are exactly
//! its rows ([`Origins`]). Those rows are out of the diff: unchanged, never deleted, and a key of theirs in another file
//! is a duplicate. Memory: the file list. Never skips behind a view, in a run that handles all rows, or on a doubt.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;

use crate::error::Result;
use crate::exec::keyed_diff::Origins;
use crate::plan::source::{FileOrdinals, ResolvedSource, SourceFileSeen, SourceIdentity};
use crate::store::{SourceFile, SourceState};

use super::attempt::Attempt;
use super::hand_on::PinnedSource;

/// A file must have been left alone for so long when the accepted run listed it, in microseconds: file systems keep
/// times as coarse as two seconds.
const SETTLED_MICROS: i64 = 2_000_000;

/// Why a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Why {
    AllRows,
    Off,
    NoScan,
    Reading,
    New,
    Changed,
    Unsettled,
    Untold,
    Inexact,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllRows => "the run compares with no baseline, or handles all rows",
            Self::Off => "option file_skip is off",
            Self::NoScan => "the source is no plain scan of files, or the last run did not read it as one",
            Self::Reading => "columns, format or reader options are not those of the last run",
            Self::New => "not there in the last run",
            Self::Changed => "size, tag, or time of modification or change differs",
            Self::Unsettled => "written less than 2 seconds before the last run looked at it",
            Self::Untold => "its store tells neither a tag nor a time of change",
            Self::Inexact => "rows of it moved to or from another file, or were published before files were noted",
        })
    }
}

/// What a capture reads of the source's files, and what it leaves out.
#[derive(Debug)]
pub(super) struct FileChoice {
    /// The files as they are now, with their ordinals. Whether they are exact is known for those that are skipped only.
    files: Vec<SourceFile>,
    next_ordinal: u32,
    listed_at: i64,
    scan_digest: Option<String>,
    skipped: BTreeSet<i32>,
    why: BTreeMap<Why, (usize, String)>,
    /// The accepted state, when the source is the same to the last file and nothing is to be read.
    unchanged: Option<SourceState>,
}

/// What was seen of the source before a capture reads it.
pub(super) struct Seen<'a> {
    pub source: &'a ResolvedSource,
    pub columns: &'a [String],
    pub identity: &'a SourceIdentity,
    /// When the run began to look, microseconds since 1970.
    pub listed_at: i64,
    /// What the base's run saw of this source; absent when it read another one.
    pub previous: Option<&'a SourceState>,
}

impl FileChoice {
    /// Decides for each file. A file that the base knows keeps its ordinal, a new one gets one that was never used.
    pub async fn decide(attempt: &Attempt, seen: Seen<'_>) -> Result<Self> {
        // Ordinals go on from the base's, also where it read another source.
        let known = match (&attempt.base, seen.previous) {
            (_, Some(previous)) => previous.clone(),
            (Some(base), None) => attempt.incarnation.source_state(&base.manifest).await?,
            (None, None) => SourceState::default(),
        };
        let scan_digest = if attempt.definition().incremental { seen.source.scan_digest(seen.columns) } else { None };
        let mut choice = Self {
            files: Vec::with_capacity(seen.identity.files.len()),
            next_ordinal: known.next_ordinal,
            listed_at: seen.listed_at,
            scan_digest,
            skipped: BTreeSet::new(),
            why: BTreeMap::new(),
            unchanged: None,
        };
        let before: BTreeMap<&str, &SourceFile> = known.files.iter().map(|file| (file.path.as_str(), file)).collect();
        let none = choice.read_all(attempt, seen.previous);
        for file in &seen.identity.files {
            let recorded = before.get(file.path.as_str()).copied();
            let why = none.map_or_else(|| why(file, recorded, known.listed_at), Some);
            choice.add(file, recorded, why);
        }
        // Every row of the base is then one of a file that is skipped: all its files were exact, and all are still there.
        let is_same = none.is_none() && choice.why.is_empty() && choice.files.len() == known.files.len() && !choice.files.is_empty();
        choice.unchanged = (is_same && known.table_version.is_none()).then_some(known);
        Ok(choice)
    }

    /// Why all files are read, if they are.
    fn read_all(&self, attempt: &Attempt, previous: Option<&SourceState>) -> Option<Why> {
        let before = previous.filter(|_| attempt.extends_base()).map(|previous| previous.scan_digest.as_deref());
        match (before, self.scan_digest.as_deref()) {
            (None, _) => Some(Why::AllRows),
            _ if !attempt.options.file_skip => Some(Why::Off),
            (_, None) | (Some(None), _) => Some(Why::NoScan),
            (Some(Some(before)), Some(now)) => (before != now).then_some(Why::Reading),
        }
    }

    fn add(&mut self, seen: &SourceFileSeen, recorded: Option<&SourceFile>, why: Option<Why>) {
        let ordinal = recorded.map_or(self.next_ordinal, |file| file.ordinal);
        self.next_ordinal = self.next_ordinal.max(ordinal.saturating_add(1));
        match (why, i32::try_from(ordinal)) {
            (Some(why), _) => self.why.entry(why).or_insert_with(|| (0, seen.path.clone())).0 += 1,
            (None, Ok(ordinal)) => drop(self.skipped.insert(ordinal)),
            (None, Err(_)) => self.why.entry(Why::Inexact).or_insert_with(|| (0, seen.path.clone())).0 += 1,
        }
        self.files.push(SourceFile {
            ordinal,
            path: seen.path.clone(),
            bytes: seen.bytes,
            e_tag: seen.e_tag.clone(),
            modified: seen.modified,
            changed: seen.changed,
            exact: i32::try_from(ordinal).is_ok_and(|ordinal| self.skipped.contains(&ordinal)),
        });
    }

    /// Whether the source is what the base's run read, to the last file: there is nothing to read and nothing to compare.
    pub fn is_unchanged(&self) -> bool {
        self.unchanged.is_some()
    }

    /// The ordinals of the files that are not read.
    pub fn skipped(&self) -> &BTreeSet<i32> {
        &self.skipped
    }

    /// Files that are read, and files that are not.
    pub fn counts(&self) -> (u64, u64) {
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        (count(self.files.len() - self.skipped.len()), count(self.skipped.len()))
    }

    /// Whether the file (store and path) is read.
    pub fn is_read(&self, path: &str) -> bool {
        let ordinal = self.files.binary_search_by(|file| file.path.as_str().cmp(path)).ok().and_then(|at| self.files.get(at));
        ordinal.and_then(|file| i32::try_from(file.ordinal).ok()).is_none_or(|ordinal| !self.skipped.contains(&ordinal))
    }

    /// The plan that reads what is to be read, and whether it has the column of ordinals.
    pub async fn scan(&self, source: &ResolvedSource, columns: &[String]) -> Result<(Arc<dyn ExecutionPlan>, bool)> {
        if self.scan_digest.is_none() {
            return Ok((source.plan(columns).await?, false));
        }
        let known = self.files.iter().filter_map(|file| Some((file.path.clone(), i32::try_from(file.ordinal).ok()?))).collect();
        let plan = source.plan_files(columns, FileOrdinals { known, skipped: self.skipped.clone() }).await?;
        Ok((plan, true))
    }

    /// What the seal pins of the source, once the diff has seen the files that were read. Without a diff no file is exact.
    pub fn state(&self, origins: Option<&Origins>, pinned: Option<&PinnedSource>) -> SourceState {
        if let Some(unchanged) = &self.unchanged {
            return unchanged.clone();
        }
        let is_exact = |file: &SourceFile| {
            let seen = origins.zip(i32::try_from(file.ordinal).ok()).is_some_and(|(origins, ordinal)| origins.is_exact(ordinal));
            file.exact || (self.scan_digest.is_some() && seen)
        };
        let files = self.files.iter().map(|file| SourceFile { exact: is_exact(file), ..file.clone() }).collect();
        let (next_ordinal, listed_at, scan_digest) = (self.next_ordinal, self.listed_at, self.scan_digest.clone());
        let table_version = pinned.map(|pinned| (pinned.snapshot.incarnation.id().to_string(), pinned.version));
        let table_manifest = pinned.and_then(|pinned| pinned.manifest.clone());
        let table_synced_at = pinned.and_then(|pinned| pinned.synced_at);
        SourceState { files, table_version, table_manifest, table_synced_at, next_ordinal, listed_at, scan_digest }
    }
}

/// What is read and why, for EXPLAIN.
impl fmt::Display for FileChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (read, skipped) = self.counts();
        write!(f, "source files: {read} to read, {skipped} skipped")?;
        for (why, (files, sample)) in &self.why {
            write!(f, "\n  {files} read: {why}, for example {sample}")?;
        }
        Ok(())
    }
}

/// Why a file is read; `None`: it is skipped.
fn why(seen: &SourceFileSeen, recorded: Option<&SourceFile>, listed_at: i64) -> Option<Why> {
    let Some(recorded) = recorded else { return Some(Why::New) };
    if !seen.is_same_as(recorded) {
        return Some(Why::Changed);
    }
    // A local file's times of modification can be set back, its time of change cannot.
    let is_local = seen.path.starts_with("file:");
    if seen.changed.is_none() && (is_local || seen.e_tag.is_none()) {
        return Some(Why::Untold);
    }
    let changed = seen.changed.map_or(i64::MIN, |nanos| i64::try_from(nanos / 1000).unwrap_or(i64::MAX));
    if listed_at.saturating_sub(seen.modified.max(changed)) < SETTLED_MICROS {
        return Some(Why::Unsettled);
    }
    (!recorded.exact).then_some(Why::Inexact)
}
