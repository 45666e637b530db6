//! The model: what every version must hold, whatever the store did.
//!
//! ```text
//! new version, by its manifest ─┬─ run, rebuild   = a full recompute of a source state since its run was first asked for
//!                               ├─ compaction,    = its predecessor
//!                               │  fence
//!                               └─ rollback       = the version that somebody asked to roll back to
//! every known version           = what it was, or gone once a vacuum was asked for
//! acknowledged                  = published by that run, and only once
//! failed, but not "unknown"     = not published
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use datafusion_incremental::spec::{RunReason, RunSummary};
use datafusion_incremental::store::VersionKind;

use super::world::{Rows, oracle};

/// What was done, summed over seeds.
#[derive(Debug, Default, Clone)]
pub struct Totals(BTreeMap<String, u64>);

impl Totals {
    pub fn add(&mut self, other: &Self) {
        for (name, number) in &other.0 {
            *self.0.entry(name.clone()).or_default() += number;
        }
    }

    pub fn count(&mut self, name: impl Into<String>, number: u64) {
        *self.0.entry(name.into()).or_default() += number;
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(|(name, number)| format!("{number} {name}")).collect();
        f.write_str(&parts.join(", "))
    }
}

/// A version as a process that has seen nothing found it.
#[derive(Debug, Clone)]
pub struct Found {
    pub kind: VersionKind,
    pub summary: RunSummary,
    pub rows: Rows,
}

/// What is known.
#[derive(Debug, Default)]
pub struct Model {
    /// Every state that the source had; the last is what it has.
    pub states: Vec<Rows>,
    /// Which state the source had when a run id was first used.
    pub asked: BTreeMap<String, usize>,
    /// Targets of every rollback that was asked for in this step.
    pub rollbacks: BTreeSet<u64>,
    /// Versions below it may be gone.
    pub vacuumed: u64,
    pub versions: BTreeMap<u64, (VersionKind, String, Rows)>,
    /// Versions that were vacuumed before anybody could read them.
    pub unread: BTreeSet<u64>,
    /// What runs that were acknowledged said.
    pub answers: BTreeMap<String, u64>,
    /// Runs that failed, surely without publishing.
    pub failed: BTreeSet<String>,
}

impl Model {
    pub fn newest(&self) -> u64 {
        self.versions.keys().next_back().copied().unwrap_or(0)
    }

    pub fn source(&self) -> &Rows {
        self.states.last().expect("the source has a state")
    }

    /// A version that was vacuumed before anybody could read it.
    pub fn skip(&mut self, version: u64, run: &str) {
        self.unread.insert(version);
        self.versions.insert(version, (VersionKind::Run, run.to_string(), Rows::new()));
    }

    /// Whether the version is known to hold these rows, or nobody knows.
    pub fn is(&self, version: u64, rows: &Rows) -> bool {
        self.unread.contains(&version) || self.versions.get(&version).is_some_and(|(_, _, known)| known == rows)
    }

    /// A run is asked for, perhaps again.
    pub fn ask(&mut self, run: &str) {
        self.failed.remove(run);
        let now = self.states.len() - 1;
        self.asked.entry(run.to_string()).or_insert(now);
    }

    /// The next version that was found.
    pub fn accept(&mut self, version: u64, found: Found) -> Result<(), String> {
        if self.unread.contains(&(version - 1)) {
            // Whatever it follows is not known either.
            self.versions.insert(version, (found.kind, found.summary.run_id.clone(), found.rows));
            return Ok(());
        }
        let before = self.versions.get(&(version - 1)).map(|(_, _, rows)| rows.clone());
        let run = found.summary.run_id.clone();
        let what = format!("version {version} ({:?} of run {run})", found.kind);
        match found.kind {
            VersionKind::Run | VersionKind::Rebuild => {
                let since = *self.asked.get(&run).ok_or_else(|| format!("{what} is of a run that nobody asked for"))?;
                if !self.states[since..].iter().any(|state| oracle(state) == found.rows) {
                    return Err(format!("{what} holds no state of the source since state {since}: {:?}", found.rows));
                }
                check_counts(&what, &found, before.unwrap_or_default())?;
                if self.failed.contains(&run) {
                    return Err(format!("{what} is there, and its run said that nothing was published"));
                }
            }
            VersionKind::Compaction | VersionKind::Fence if before.as_ref() == Some(&found.rows) => {}
            VersionKind::Rollback => {
                let targets = self.rollbacks.iter().filter_map(|target| self.versions.get(target));
                if !targets.clone().any(|(_, _, rows)| *rows == found.rows) {
                    return Err(format!("{what} holds no version of {:?}", self.rollbacks));
                }
            }
            _ => return Err(format!("{what} changed rows: {:?}, before {before:?}", found.rows)),
        }
        if let Some((other, _)) = self.versions.iter().find(|(_, (_, known, _))| *known == run) {
            return Err(format!("{what}: the same run made version {other}"));
        }
        self.versions.insert(version, (found.kind, run, found.rows));
        Ok(())
    }

    /// Every acknowledged run has its version, and no other.
    pub fn check_answers(&self) -> Result<(), String> {
        for (run, version) in &self.answers {
            match self.versions.get(version) {
                Some((_, made_by, _)) if made_by == run => {}
                other => return Err(format!("run {run} was acknowledged with version {version}, which is {other:?}")),
            }
        }
        Ok(())
    }

    /// A reader saw `rows` while the newest version went from `from` to `to`.
    pub fn check_read(&self, rows: &Rows, from: u64, to: u64) -> Result<(), String> {
        let mut possible = (from..=to).filter_map(|version| self.versions.get(&version));
        if possible.any(|(_, _, known)| known == rows) || self.unread.iter().any(|version| (from..=to).contains(version)) {
            return Ok(());
        }
        Err(format!("a reader saw rows of no version from {from} to {to}: {rows:?}"))
    }
}

fn check_counts(what: &str, found: &Found, before: Rows) -> Result<(), String> {
    let created = found.rows.keys().filter(|key| !before.contains_key(*key)).count() as u64;
    let updated = found.rows.iter().filter(|(key, value)| before.get(*key).is_some_and(|old| old != *value)).count() as u64;
    let deleted = before.keys().filter(|key| !found.rows.contains_key(*key)).count() as u64;
    let rows = found.rows.len() as u64;
    let wanted = match found.summary.reason {
        Some(RunReason::Incremental | RunReason::NoChange | RunReason::DeleteOnly) => [created, updated, deleted, rows - created - updated],
        _ => [rows, 0, 0, 0],
    };
    let summary = &found.summary;
    let counts = [summary.rows_created, summary.rows_updated, summary.rows_deleted, summary.rows_unchanged].map(Option::unwrap_or_default);
    if counts == wanted && summary.rows_total == Some(rows) {
        return Ok(());
    }
    Err(format!("{what}: it counts {counts:?} of {:?} rows, the model {wanted:?} of {rows}", summary.rows_total))
}
