//! Runs what is due, sources before the tables that read them.
//!
//! ```text
//! tick  synced tables: due? ─ another run at work ─► noted as skipped
//!       │                └──► sync, or compare keys
//!       incremental tables, upstream first: due by their interval, or since a table that they read has a newer version
//!       └─► what ran, and when to look again
//! ```
//!
//! One clock, the session's. Runs of one tick follow one another; a run that fails is not repeated before it is due again.
//! Memory: what the runs take.

use std::sync::Arc;

use super::Timetable;
use crate::error::{ErrorCode, Result};
use crate::run::{RefreshRequest, RunResult, dependencies, in_order, refresh, run_summaries};
use crate::spec::sync::{Frequency, RefreshSchedule, SyncConfig, SyncKind, SyncTrigger, TimeOfDay};
use crate::spec::{RunId, RunMode, RunSummary};
use crate::store::{SavedConfig, SkippedRun, SyncEntry, SyncLog};
use crate::sync::SyncContext;
use crate::sync::ops::{self, SyncRequest};
use crate::sync::status::{active_run, sync_runs};
use crate::table::TableHandle;

/// A run of the schedule.
#[derive(Debug, Clone)]
pub struct Ran {
    /// The table.
    pub table: String,
    /// When it was due, microseconds since 1970.
    pub due_at: i64,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a run that was due.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// It ran.
    Ended(Box<RunResult>),
    /// This run was at work: nothing was started.
    Skipped(RunId),
}

/// What a look at the schedules came to.
#[derive(Debug, Clone, Default)]
pub struct Tick {
    /// The runs, in their order.
    pub ran: Vec<Ran>,
    /// When something is due next, as far as it is known now.
    pub next: Option<i64>,
}

impl Tick {
    /// Whether a run failed.
    pub fn has_failed(&self) -> bool {
        self.ran.iter().any(|ran| matches!(&ran.outcome, Outcome::Ended(result) if result.error.is_some()))
    }

    fn expect(&mut self, next: Option<i64>) {
        self.next = match (self.next, next) {
            (Some(known), Some(next)) => Some(known.min(next)),
            (known, next) => known.or(next),
        };
    }
}

/// Runs what is due now.
///
/// # Errors
/// The store's errors, and those of ordering the tables; errors of runs are in their results.
pub async fn tick(context: &SyncContext, tables: &[Arc<TableHandle>]) -> Result<Tick> {
    let mut tick = Tick::default();
    for table in tables.iter().filter(|table| table.is_synced()) {
        synced(context, table, &mut tick).await?;
    }
    let incremental: Vec<Arc<TableHandle>> = tables.iter().filter(|table| !table.is_synced()).cloned().collect();
    for table in in_order(&context.host, &incremental).await? {
        refreshed(context, &table, tables, &mut tick).await?;
    }
    Ok(tick)
}

/// What of a configuration a schedule follows from.
fn schedule_of(config: &SyncConfig) -> (bool, Frequency, Option<TimeOfDay>, Frequency) {
    (config.should_sync, config.sync_frequency, config.sync_time_of_day, config.reconcile_frequency)
}

/// When the newest configuration's schedule was set.
fn since(log: &SyncLog, newest: &SavedConfig) -> i64 {
    let same = log.configs.iter().rev().take_while(|saved| schedule_of(&saved.config) == schedule_of(&newest.config));
    same.last().map_or(newest.saved_at, |saved| saved.saved_at)
}

fn requested<'a>(runs: impl Iterator<Item = &'a RunSummary>) -> Option<i64> {
    runs.filter_map(|run| run.requested_at.or(run.started_at)).max()
}

async fn synced(context: &SyncContext, table: &Arc<TableHandle>, tick: &mut Tick) -> Result<()> {
    let log = table.incarnation().sync_log().await?;
    let Some(newest) = log.newest() else { return Ok(()) };
    let config = &newest.config;
    if !config.should_sync || config.sync_type.is_none_or(|sync_type| !sync_type.is_available()) {
        return Ok(());
    }
    let set = since(&log, newest);
    let runs = sync_runs(table).await?;
    for (frequency, is_reconcile) in [(config.sync_frequency, false), (config.reconcile_frequency, true)] {
        if frequency == Frequency::NEVER || is_reconcile && config.merge_key().is_empty() {
            continue;
        }
        let of_kind = |run: &&RunSummary| run.sync.as_ref().is_some_and(|report| report.kind == SyncKind::Reconcile) == is_reconcile;
        let skipped = log.skipped.iter().map(|skipped| skipped.due_at).max();
        let answered = requested(runs.iter().filter(of_kind)).max(skipped).unwrap_or(set).max(set);
        let time = config.sync_time_of_day.filter(|_| !is_reconcile);
        let timetable = Timetable::new(frequency, time, (table.incarnation().id(), set));
        let now = context.host.env.clock.now_micros();
        if let Some(due_at) = timetable.due(answered, now) {
            let outcome = sync(context, table, is_reconcile, due_at).await?;
            tick.ran.push(Ran { table: table.name().to_string(), due_at, outcome });
        }
        tick.expect(timetable.next(context.host.env.clock.now_micros()));
    }
    Ok(())
}

async fn sync(context: &SyncContext, table: &Arc<TableHandle>, is_reconcile: bool, due_at: i64) -> Result<Outcome> {
    if let Some(run) = active_run(table).await? {
        let skipped = SkippedRun { due_at, at: context.host.env.clock.now_micros(), active_run: run.to_string() };
        let log = table.incarnation().sync_log().await?;
        match table.incarnation().append_sync(&log, SyncEntry::Skip(skipped)).await {
            // Somebody changed the configuration at this moment: the next look finds the run due again.
            Err(error) if error.code() == ErrorCode::RevisionConflict => {}
            other => drop(other?),
        }
        return Ok(Outcome::Skipped(run));
    }
    let request = SyncRequest { trigger: SyncTrigger::Schedule, ..SyncRequest::default() };
    let result = match is_reconcile {
        true => ops::reconcile(context, table, request).await?,
        false => ops::reload(context, table, request).await,
    };
    Ok(Outcome::Ended(Box::new(result)))
}

async fn refreshed(context: &SyncContext, table: &Arc<TableHandle>, all: &[Arc<TableHandle>], tick: &mut Tick) -> Result<()> {
    let definitions = table.incarnation().definitions().await?;
    let schedule = definitions.options.operational(table.name())?.schedule;
    if schedule == RefreshSchedule::Every(Frequency::NEVER) {
        return Ok(());
    }
    let set = definitions.revisions.first().map_or(0, |revision| revision.saved_at);
    let runs = run_summaries(table).await?;
    let last = requested(runs.iter().filter(|run| run.mode == RunMode::Published));
    let now = context.host.env.clock.now_micros();
    let due = match schedule {
        RefreshSchedule::Every(frequency) => {
            let timetable = Timetable::new(frequency, None, (table.incarnation().id(), set));
            tick.expect(timetable.next(now));
            timetable.due(last.unwrap_or(set).max(set), now)
        }
        RefreshSchedule::AfterSource => source_changed(context, table, all).await?.filter(|at| last.is_none_or(|last| *at > last)),
    };
    let Some(due_at) = due else { return Ok(()) };
    let outcome = match table.incarnation().active_lease().await? {
        Some(holder) => Outcome::Skipped(holder.run),
        None => Outcome::Ended(Box::new(refresh(&context.host, table, RefreshRequest::default()).await)),
    };
    tick.ran.push(Ran { table: table.name().to_string(), due_at, outcome });
    Ok(())
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
