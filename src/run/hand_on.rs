//! Hand-on: a source that is itself an incremental table hands on exactly its changes.
//!
//! ```text
//! accepted: version 3 of incarnation i ─┐ same incarnation, same version 3, same key,
//! source now: version 5 of i           ─┴ no rebuild or rollback in 4..=5, all retained ─► changes   else ─► whole, and why
//!
//! KeyedDiffExec
//!  ├ KeyFilterExec          only baseline rows whose key may have changed
//!  │  ├ KeyScanExec         keys of new, changed and gone rows
//!  │  └ IndexScanExec       the whole index of this table
//!  └ rows written since     of the source's own files
//! ```
//!
//! The published rows and the counts are those of a whole diff: rows outside of the changes are the same on both sides.
//! Memory: the keys that may have changed, within a quarter of the pool. When they cannot be had after all (memory, files
//! gone or damaged), or the rest of the capture has no room beside them, the run starts over and reads the source whole.
//! Never used by drafts and rebuilds.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool};
use datafusion::physical_plan::ExecutionPlan;

use crate::error::{Error, ErrorCode, Result};
use crate::exec::key_filter::{KeyFilterExec, KeyFilterSpec};
use crate::exec::keyed_diff::{DiffOutcome, DiffReport, DiffSpec};
use crate::plan::source::ResolvedSource;
use crate::plan::table_changes::TableChanges;
use crate::spec::VersionNumber;
use crate::store::SourceState;
use crate::table::{Snapshot, TableHandle};

use super::attempt::Attempt;

/// A key in memory, with its share of the hash table: what a small one takes, and a guess for others.
const KEY_BYTES: u64 = 32;
const LONG_KEY_BYTES: u64 = 96;

/// The version of a source table that a run pinned.
#[derive(Debug, Clone)]
pub(super) struct PinnedSource {
    pub handle: Arc<TableHandle>,
    pub snapshot: Arc<Snapshot>,
    pub version: VersionNumber,
    /// The hash of the version's manifest.
    pub manifest: Option<String>,
    /// When the table, a synced one, last looked at its own source.
    pub synced_at: Option<i64>,
}

/// How a run reads a source that may be an incremental table.
#[derive(Debug)]
pub(super) enum HandOn {
    /// No incremental table is behind it.
    NoTable,
    /// It is read whole: the name of the table, if there is one, and why.
    Whole { source: Option<(String, VersionNumber)>, why: String },
    /// Only its changes are read.
    Changes(Box<HandedOn>),
}

/// The changes of a source.
#[derive(Debug)]
pub(super) struct HandedOn {
    source: String,
    changes: TableChanges,
    base_rows: u64,
}

/// The counts of a diff of changes, made those of the whole.
#[derive(Debug)]
pub(super) struct Totals {
    base_rows: u64,
    source_rows: u64,
    whole: OnceLock<DiffReport>,
}

impl HandOn {
    /// Decides how the run reads its source. `accepted` is what the base's run saw of it.
    pub async fn decide(attempt: &Attempt, pinned: Option<&PinnedSource>, accepted: Option<&SourceState>) -> Self {
        let Some(pinned) = pinned else { return Self::NoTable };
        match changes(attempt, pinned, accepted).await {
            Ok(handed_on) => Self::Changes(Box::new(handed_on)),
            Err(why) => Self::Whole { source: Some((pinned.handle.name().to_string(), pinned.version)), why },
        }
    }

    /// A source that reads tables without being one.
    pub fn behind_view() -> Self {
        Self::Whole { source: None, why: "it is a view over incremental tables".to_string() }
    }

    /// The rows of the source that the diff reads; `None`: all of them.
    pub async fn scan(&self, source: &ResolvedSource, columns: &[String]) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Self::Changes(handed_on) = self else { return Ok(None) };
        let failed = |e| {
            let what = format!(
                "the changes of source {:?} cannot be read. Remedy: ALTER INCREMENTAL TABLE … SET (hand_on = false) reads it whole",
                handed_on.source
            );
            Error::from_datafusion(e, ErrorCode::CaptureFailed, what)
        };
        handed_on.changes.rows(&source.state, columns).await.map(|rows| Some(source.bounded(rows))).map_err(failed)
    }

    /// The rows of the base's index that the diff compares with.
    pub fn scope(&self, attempt: &Attempt, index: Arc<dyn ExecutionPlan>, diff: &DiffSpec) -> Result<Arc<dyn ExecutionPlan>> {
        let Self::Changes(handed_on) = self else { return Ok(index) };
        let spec = KeyFilterSpec {
            table: diff.table.clone(),
            key: diff.key.clone(),
            hash: diff.hash,
            seed: diff.fingerprinter.seed(),
            refused: Arc::clone(&attempt.hand_on_refused),
        };
        Ok(Arc::new(KeyFilterExec::new(handed_on.changes.keys()?, index, spec)))
    }

    /// What completes the counts; nothing where they are complete.
    pub fn totals(&self) -> Option<Totals> {
        let Self::Changes(handed_on) = self else { return None };
        let source_rows = handed_on.changes.to().rows();
        Some(Totals { base_rows: handed_on.base_rows, source_rows, whole: OnceLock::new() })
    }

    /// `error` of a capture. Where the keys of changes took the memory, reading the whole may do with less of it.
    pub fn noted(&self, attempt: &Attempt, error: Error) -> Error {
        if matches!(self, Self::Changes(_)) && error.code() == ErrorCode::ResourcesExhausted {
            attempt.hand_on_refused.store(true, Ordering::Release);
        }
        error
    }

    /// A line for EXPLAIN REFRESH.
    pub fn explain(&self) -> Option<String> {
        match self {
            Self::NoTable => None,
            Self::Whole { source: None, why } => Some(format!("source: read whole: {why}")),
            Self::Whole { source: Some((name, version)), why } => Some(format!("source: {name:?} version {version} is read whole: {why}")),
            Self::Changes(handed_on) => {
                let HandedOn { source, changes, .. } = handed_on.as_ref();
                let (from, to, keys) = (changes.from(), changes.to().label(), changes.keys_at_most());
                Some(format!("source: {source:?} hands on its changes from version {from} to {to}, at most {keys} keys"))
            }
        }
    }
}

impl Totals {
    /// The counts of the whole; `None` while the diff has not ended.
    pub fn of(&self, outcome: &DiffOutcome) -> Option<&DiffReport> {
        let report = outcome.report()?;
        Some(self.whole.get_or_init(|| DiffReport {
            // What the diff did not look at is on both sides, unchanged; that it adds up is asserted with all counts.
            unchanged: self.base_rows.saturating_sub(report.updated + report.deleted),
            skipped: self.source_rows.saturating_sub(report.scanned),
            ..report.clone()
        }))
    }
}

/// The changes that are handed on, or why the source is read whole.
async fn changes(attempt: &Attempt, pinned: &PinnedSource, accepted: Option<&SourceState>) -> std::result::Result<HandedOn, String> {
    if !attempt.options.hand_on {
        return Err("hand_on = false".into());
    }
    if attempt.is_hand_on_refused() {
        return Err("the keys of its changes could not be read".into());
    }
    let base = attempt.base.as_ref().filter(|_| attempt.extends_base());
    let base = base.ok_or("this run handles all rows")?;
    let accepted = accepted.filter(|state| state.table_version.is_some()).ok_or("the accepted version was not made from a table")?;
    let from = same_history(pinned, accepted).await?;
    same_key(attempt, &pinned.snapshot)?;
    let changes = TableChanges::between(from, Arc::clone(&pinned.snapshot)).await.map_err(|why| why.to_string())?;
    fits(attempt, changes.keys_at_most())?;
    Ok(HandedOn { source: pinned.handle.name().to_string(), changes, base_rows: base.manifest.rows })
}

/// The accepted version, if it is one of the table that is the source now. A restored copy of a table has its
/// incarnation and may have other versions under the same numbers: the manifest tells.
async fn same_history(pinned: &PinnedSource, accepted: &SourceState) -> std::result::Result<VersionNumber, String> {
    let Some((incarnation, version)) = &accepted.table_version else { return Err("nothing was accepted".into()) };
    if incarnation != pinned.snapshot.incarnation.id() {
        return Err("it was created anew since the accepted version".into());
    }
    let slot = pinned.handle.incarnation().slot(*version).await;
    let slot = slot.map_err(|e| format!("version {version} cannot be read ({})", e.code().as_str()))?;
    match slot {
        Some(slot) if accepted.table_manifest.as_ref() == Some(&slot.manifest_hash) => Ok(*version),
        _ => Err(format!("the version {version} that was accepted is not in its history")),
    }
}

/// Changes by the source's key are changes by the table's only if both are the same columns.
fn same_key(attempt: &Attempt, source: &Snapshot) -> std::result::Result<(), String> {
    let sorted = |key: &[String]| {
        let mut key = key.to_vec();
        key.sort_unstable();
        key
    };
    let own = &attempt.definition().key;
    if sorted(own) == sorted(&source.key) {
        return Ok(());
    }
    Err(format!("its key ({}) is not this table's ({})", source.key.join(", "), own.join(", ")))
}

/// The keys may take a quarter of the pool; the diff and the writers need the rest.
fn fits(attempt: &Attempt, keys: u64) -> std::result::Result<(), String> {
    let MemoryLimit::Finite(limit) = attempt.pool.memory_limit() else { return Ok(()) };
    let key = attempt.definition().key_fields();
    let is_small = key.len() == 1 && key.iter().all(|field| field.data_type().primitive_width().is_some_and(|width| width <= 8));
    let bytes = keys.saturating_mul(if is_small { KEY_BYTES } else { LONG_KEY_BYTES });
    if bytes <= u64::try_from(limit / 4).unwrap_or(u64::MAX) {
        return Ok(());
    }
    Err(format!("its {keys} changed keys do not fit a quarter of the memory pool"))
}
