//! What the schedule of one table says at a moment.
//!
//! ```text
//! configuration ─► timetable ┐
//! runs of the table ─────────┼─► jobs that are due, and when to look again
//! runs that were skipped ────┘
//! ```
//!
//! Starts nothing and writes nothing.

use std::sync::Arc;

use super::Timetable;
use crate::error::Result;
use crate::run::{dependencies, run_summaries};
use crate::spec::sync::{Frequency, RefreshSchedule, SyncConfig, SyncKind, TimeOfDay};
use crate::spec::{RunMode, RunSummary};
use crate::store::{SavedConfig, SyncLog};
use crate::sync::SyncContext;
use crate::table::TableHandle;

/// What is to be done with a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Job {
    /// A synced table follows its source.
    Sync,
    /// A synced table's keys are compared with its source's.
    Reconcile,
    /// An incremental table is refreshed at its interval.
    Refresh,
    /// An incremental table follows a newer version of what it reads.
    Follow,
}

/// A job that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Due {
    pub job: Job,
    /// Since when, microseconds since 1970.
    pub at: i64,
}

/// What is due, and what comes next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Judged {
    pub due: Vec<Due>,
    /// The first firing that is still to come.
    pub next: Option<i64>,
}

impl Judged {
    fn add(&mut self, job: Job, timetable: &Timetable, (answered, now): (i64, i64)) {
        self.due.extend(timetable.due(answered, now).map(|at| Due { job, at }));
        self.next = earlier(self.next, timetable.next(now));
    }
}

/// The earlier of two moments that may not come.
pub(super) fn earlier(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// When the schedule of a synced table runs it next; a moment that is past: now. Microseconds since 1970.
///
/// # Errors
/// The store's errors.
pub async fn next_run(context: &SyncContext, table: &TableHandle) -> Result<Option<i64>> {
    let judged = synced(context, table).await?;
    Ok(judged.due.iter().map(|due| due.at).min().or(judged.next))
}

/// What is due of `table`, one of `all`.
pub(super) async fn judge(context: &SyncContext, table: &TableHandle, all: &[Arc<TableHandle>]) -> Result<Judged> {
    if table.is_synced() { synced(context, table).await } else { incremental(context, table, all).await }
}

/// What of a configuration a schedule follows from.
fn schedule_of(config: &SyncConfig) -> (bool, Frequency, Option<TimeOfDay>, Frequency) {
    (config.should_sync(), config.sync_frequency, config.sync_time_of_day, config.reconcile_frequency)
}

/// When the newest configuration's schedule was set.
fn since(log: &SyncLog, newest: &SavedConfig) -> i64 {
    let same = log.configs.iter().rev().take_while(|saved| schedule_of(&saved.config) == schedule_of(&newest.config));
    same.last().map_or(newest.saved_at, |saved| saved.saved_at)
}

/// The newest of `moments` that is not to come: a clock that once was ahead stops no schedule.
fn newest(moments: impl Iterator<Item = i64>, now: i64) -> Option<i64> {
    moments.filter(|at| *at <= now).max()
}

fn requested<'a>(runs: impl Iterator<Item = &'a RunSummary>, now: i64) -> Option<i64> {
    newest(runs.filter_map(|run| run.requested_at.or(run.started_at)), now)
}

async fn synced(context: &SyncContext, table: &TableHandle) -> Result<Judged> {
    let mut judged = Judged::default();
    let log = table.incarnation().sync_log().await?;
    let Some(saved) = log.newest() else { return Ok(judged) };
    let config = &saved.config;
    if !config.should_sync() || config.sync_type.is_none_or(|sync_type| !sync_type.is_available()) {
        return Ok(judged);
    }
    let runs = run_summaries(table).await?;
    let now = context.host.env.clock.now_micros();
    let set = newest(std::iter::once(since(&log, saved)), now).unwrap_or(0);
    let skipped = newest(log.skipped.iter().map(|skipped| skipped.due_at), now);
    let is_reconcile = |run: &&RunSummary| run.sync.as_ref().is_some_and(|report| report.kind == Some(SyncKind::Reconcile));
    let id = table.incarnation().id();
    if config.sync_frequency != Frequency::NEVER {
        let answered = requested(runs.iter().filter(|run| !is_reconcile(run)), now).max(skipped).max(Some(set)).unwrap_or(set);
        let timetable = Timetable::new(config.sync_frequency, config.sync_time_of_day, (id, set));
        judged.add(Job::Sync, &timetable, (answered, now));
    }
    if config.reconcile_frequency != Frequency::NEVER && !config.merge_key().is_empty() {
        let answered = requested(runs.iter().filter(is_reconcile), now).max(Some(set)).unwrap_or(set);
        let timetable = Timetable::new(config.reconcile_frequency, None, (id, set));
        judged.add(Job::Reconcile, &timetable, (answered, now));
    }
    Ok(judged)
}

async fn incremental(context: &SyncContext, table: &TableHandle, all: &[Arc<TableHandle>]) -> Result<Judged> {
    let mut judged = Judged::default();
    let definitions = table.incarnation().definitions().await?;
    let schedule = definitions.options.operational(table.name())?.schedule;
    if schedule == RefreshSchedule::Every(Frequency::NEVER) {
        return Ok(judged);
    }
    let runs = run_summaries(table).await?;
    let now = context.host.env.clock.now_micros();
    let last = requested(runs.iter().filter(|run| run.mode == RunMode::Published), now);
    match schedule {
        RefreshSchedule::Every(frequency) => {
            let set = newest(definitions.revisions.first().map(|revision| revision.saved_at).into_iter(), now).unwrap_or(0);
            let skipped = newest(table.incarnation().sync_log().await?.skipped.iter().map(|skipped| skipped.due_at), now);
            let timetable = Timetable::new(frequency, None, (table.incarnation().id(), set));
            judged.add(Job::Refresh, &timetable, (last.max(skipped).max(Some(set)).unwrap_or(set), now));
        }
        RefreshSchedule::AfterSource => {
            let changed = source_changed(context, table, all).await?.filter(|at| last.is_none_or(|last| *at > last));
            judged.due.extend(changed.map(|at| Due { job: Job::Follow, at }));
        }
    }
    Ok(judged)
}

/// When a table that `table` reads was last published.
async fn source_changed(context: &SyncContext, table: &TableHandle, all: &[Arc<TableHandle>]) -> Result<Option<i64>> {
    let reads = dependencies(&context.host, table).await?;
    let mut newest = None;
    for source in all.iter().filter(|source| reads.contains(source.incarnation().id())) {
        newest = newest.max(source.newest_manifest().await?.map(|manifest| manifest.committed_at));
    }
    Ok(newest)
}
