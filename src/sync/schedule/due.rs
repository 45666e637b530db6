//! What the schedule of one table says at a moment.
//!
//! ```text
//! configuration ─► timetable ─────────────────┐
//! what the schedule started last (a note) ────┼─► jobs that are due, and when to look again
//! when the newest version's source was read ──┘
//! ```
//!
//! Starts nothing and writes nothing. Reads no run's record, however many there are.

use std::sync::Arc;

use super::Timetable;
use crate::error::Result;
use crate::run::dependencies;
use crate::spec::sync::{Frequency, RefreshSchedule, SyncConfig, SyncPhase, TimeOfDay};
use crate::store::{Manifest, SavedConfig, ScheduleNote, SyncLog, VersionKind};
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

impl Due {
    /// `note` with this firing answered.
    pub(super) fn answer(self, mut note: ScheduleNote) -> ScheduleNote {
        let place = match self.job {
            Job::Sync => &mut note.sync,
            Job::Reconcile => &mut note.reconcile,
            Job::Refresh => &mut note.refresh,
            Job::Follow => &mut note.follow,
        };
        *place = Some(self.at);
        note
    }
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
fn newest<const N: usize>(moments: [Option<i64>; N], now: i64) -> Option<i64> {
    moments.into_iter().flatten().filter(|at| *at <= now).max()
}

/// When the run was asked for that made the newest version, unless it took the rows from older ones.
fn requested(manifest: Option<&Manifest>) -> Option<i64> {
    let made = manifest.filter(|manifest| matches!(manifest.kind, VersionKind::Run | VersionKind::Rebuild))?;
    made.summary.requested_at
}

async fn synced(context: &SyncContext, table: &TableHandle) -> Result<Judged> {
    let mut judged = Judged::default();
    let log = table.incarnation().sync_log().await?;
    let Some(saved) = log.newest() else { return Ok(judged) };
    let config = &saved.config;
    if !config.should_sync() || config.sync_type.is_none_or(|sync_type| !sync_type.is_available()) {
        return Ok(judged);
    }
    let (_, note) = table.incarnation().schedule_note().await?;
    let manifest = table.newest_manifest().await?;
    let state = manifest.as_ref().and_then(|manifest| manifest.sync.as_ref());
    let now = context.host.env.clock.now_micros();
    let set = newest([Some(since(&log, saved))], now).unwrap_or(0);
    let id = table.incarnation().id();
    if config.sync_frequency != Frequency::NEVER {
        // Who deleted the data does not want it back before the next firing.
        let emptied = manifest.as_ref().filter(|_| state.is_some_and(|state| state.phase == SyncPhase::Empty));
        let emptied = emptied.map(|manifest| manifest.committed_at);
        let answers = [note.sync, state.and_then(|state| state.synced_at), requested(manifest.as_deref()), emptied, Some(set)];
        let timetable = Timetable::new(config.sync_frequency, config.sync_time_of_day, (id, set));
        judged.add(Job::Sync, &timetable, (newest(answers, now).unwrap_or(set), now));
    }
    let is_merged = !config.merge_key().is_empty() && manifest.as_ref().is_some_and(|manifest| !manifest.key.is_empty());
    if config.reconcile_frequency != Frequency::NEVER && is_merged && state.is_some_and(|state| state.phase == SyncPhase::Loaded) {
        let answers = [note.reconcile, state.and_then(|state| state.reconciled_at), Some(set)];
        let timetable = Timetable::new(config.reconcile_frequency, None, (id, set));
        judged.add(Job::Reconcile, &timetable, (newest(answers, now).unwrap_or(set), now));
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
    let (_, note) = table.incarnation().schedule_note().await?;
    let looked = last_look(table).await?;
    let now = context.host.env.clock.now_micros();
    match schedule {
        RefreshSchedule::Every(frequency) => {
            let set = newest([definitions.revisions.first().map(|revision| revision.saved_at)], now).unwrap_or(0);
            let timetable = Timetable::new(frequency, None, (table.incarnation().id(), set));
            judged.add(Job::Refresh, &timetable, (newest([note.refresh, looked, Some(set)], now).unwrap_or(set), now));
        }
        RefreshSchedule::AfterSource => {
            let changed = source_changed(context, table, all).await?.filter(|at| Some(*at) > note.follow.max(looked));
            judged.due.extend(changed.map(|at| Due { job: Job::Follow, at }));
        }
    }
    Ok(judged)
}

/// When an incremental table's newest rows were looked for in its source. Somebody who rolled back wants the older ones.
async fn last_look(table: &TableHandle) -> Result<Option<i64>> {
    let Some(manifest) = table.newest_manifest().await? else { return Ok(None) };
    let listed = table.incarnation().source_state(&manifest).await?.listed_at;
    let rolled_back = (manifest.kind == VersionKind::Rollback).then_some(manifest.committed_at);
    Ok(rolled_back.max(Some(listed).filter(|at| *at > 0)).or(requested(Some(&manifest))))
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
