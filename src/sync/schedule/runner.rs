//! Runs what is due: several tables at once, what is read before what reads it.
//!
//! ```text
//! look   every table: due? ─ a run of it is at work ─────────────────► skipped, and noted
//!        │                 ├ something that it reads is due or at work ─► waits for the next look
//!        │                 ├ [`PARALLEL_RUNS`] are at work ─────────────► waits for the next look
//!        │                 └──► started
//! ended  one run that ended; look again
//! ```
//!
//! One clock, the session's. A table that cannot be looked at is reported and holds up no other; a run that fails is not
//! repeated before it is due again. Memory: what the runs take. Dropping the scheduler abandons its runs, as a killed
//! process would.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use datafusion::common::runtime::JoinSet;
use tokio::task::Id;

use super::due::{Due, Job, earlier, judge};
use crate::error::{Error, ErrorCode, Result};
use crate::run::{RefreshRequest, RunResult, everything_behind, refresh};
use crate::spec::RunId;
use crate::spec::sync::SyncTrigger;
use crate::store::SkippedRun;
use crate::sync::SyncContext;
use crate::sync::ops::{self, SyncRequest};
use crate::sync::status::active_run;
use crate::table::TableHandle;

/// Tables that run at the same time.
pub const PARALLEL_RUNS: usize = 4;

/// A run of the schedule.
#[derive(Debug, Clone)]
pub struct Ran {
    /// The table.
    pub table: String,
    /// When it was due, microseconds since 1970; 0 where that is not known.
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
    /// What is due could not be found out, or the run did not start.
    Failed(Error),
}

impl Outcome {
    /// Why it did not end well.
    pub fn error(&self) -> Option<&Error> {
        match self {
            Self::Ended(result) => result.error.as_ref(),
            Self::Skipped(_) => None,
            Self::Failed(error) => Some(error),
        }
    }
}

/// What a look at the schedules came to.
#[derive(Debug, Clone, Default)]
pub struct Tick {
    /// What was skipped, what could not be looked at, and for a whole tick also the runs, in the order of their ends.
    pub ran: Vec<Ran>,
    /// When something is due next, as far as it is known now.
    pub next: Option<i64>,
}

impl Tick {
    /// Whether a run failed.
    pub fn has_failed(&self) -> bool {
        self.ran.iter().any(|ran| ran.outcome.error().is_some())
    }
}

/// The runs of schedules that are at work, and what was tried.
#[derive(Debug, Default)]
pub struct Scheduler {
    runs: JoinSet<Ran>,
    /// The tables that are at work, by the tasks that run them.
    at_work: HashMap<Id, Arc<TableHandle>>,
    /// What was said about tables that cannot be looked at.
    said: BTreeMap<String, String>,
}

impl Scheduler {
    /// Starts what is due now among `tables`, as far as there is room.
    pub async fn look(&mut self, context: &SyncContext, tables: &[Arc<TableHandle>]) -> Tick {
        let mut tick = Tick::default();
        let mut open: Vec<(&Arc<TableHandle>, Due)> = vec![];
        for table in tables {
            match self.open_jobs(context, table, tables, &mut tick).await {
                Ok(due) => open.extend(due.into_iter().map(|due| (table, due))),
                Err(error) => self.report(table, error, &mut tick),
            }
        }
        let at_work = self.at_work.values().chain(open.iter().map(|(table, _)| *table));
        let busy: BTreeSet<String> = at_work.map(|table| table.incarnation().id().to_string()).collect();
        for (table, due) in open {
            match self.may_start(context, table, tables, &busy).await {
                Ok(false) => {}
                Ok(true) => {
                    if let Err(error) = self.start(context, table, due).await {
                        self.report(table, error, &mut tick);
                    }
                }
                Err(error) => self.report(table, error, &mut tick),
            }
        }
        tick
    }

    /// Whether a run is at work.
    pub fn is_at_work(&self) -> bool {
        !self.at_work.is_empty()
    }

    /// Waits for the end of a run; `None` when none is at work.
    pub async fn ended(&mut self) -> Option<Ran> {
        match self.runs.join_next_with_id().await? {
            Ok((task, ran)) => {
                self.at_work.remove(&task);
                Some(ran)
            }
            Err(error) => {
                let table = self.at_work.remove(&error.id()).map(|table| table.name().to_string()).unwrap_or_default();
                let error = Error::internal(format!("table {table:?}: a run of the schedule ended without a result: {error}"));
                Some(Ran { table, due_at: 0, outcome: Outcome::Failed(error) })
            }
        }
    }

    fn runs(&self, id: &str) -> bool {
        self.at_work.values().any(|table| table.incarnation().id() == id)
    }

    /// What is due of `table` and may start; what is skipped is noted.
    async fn open_jobs(
        &mut self,
        context: &SyncContext,
        table: &Arc<TableHandle>,
        all: &[Arc<TableHandle>],
        tick: &mut Tick,
    ) -> Result<Vec<Due>> {
        let id = table.incarnation().id();
        let judged = judge(context, table, all).await?;
        self.said.remove(id);
        tick.next = earlier(tick.next, judged.next);
        let mut open = judged.due;
        if open.is_empty() {
            return Ok(open);
        }
        if table.incarnation().active_lease().await?.is_none() {
            return Ok(open);
        }
        // Compactions and vacuums hold the lease too; they end soon.
        let Some(active) = active_run(table).await? else { return Ok(vec![]) };
        for due in std::mem::take(&mut open) {
            // Comparing keys, and following a source, wait for their turn: nothing is due again while they do.
            if matches!(due.job, Job::Sync | Job::Refresh) && skip(context, table, due, &active).await? {
                tick.ran.push(Ran { table: table.name().to_string(), due_at: due.at, outcome: Outcome::Skipped(active.clone()) });
            }
        }
        Ok(open)
    }

    /// Whether there is room, and nothing that `table` reads is `busy`.
    async fn may_start(
        &self,
        context: &SyncContext,
        table: &TableHandle,
        all: &[Arc<TableHandle>],
        busy: &BTreeSet<String>,
    ) -> Result<bool> {
        let id = table.incarnation().id();
        if self.at_work.len() >= PARALLEL_RUNS || self.runs(id) {
            return Ok(false);
        }
        let behind = everything_behind(&context.host, all, table).await?;
        // Tables that read each other in a circle would wait for ever: their runs say what is wrong.
        Ok(behind.contains(id) || behind.is_disjoint(busy))
    }

    /// Notes the firing, and starts the run if nobody else did.
    async fn start(&mut self, context: &SyncContext, table: &Arc<TableHandle>, due: Due) -> Result<()> {
        let (number, note) = table.incarnation().schedule_note().await?;
        if !table.incarnation().write_schedule_note(number, &due.answer(note)).await? {
            return Ok(());
        }
        let (context, running) = (context.clone(), Arc::clone(table));
        let task = self.runs.spawn(async move {
            let outcome = match run(&context, &running, due.job).await {
                Ok(result) => overtaken(&context, &running, due, result).await,
                Err(error) => Outcome::Failed(error),
            };
            Ran { table: running.name().to_string(), due_at: due.at, outcome }
        });
        self.at_work.insert(task.id(), Arc::clone(table));
        Ok(())
    }

    /// Reports what keeps a table from being looked at, once.
    fn report(&mut self, table: &TableHandle, error: Error, tick: &mut Tick) {
        let said = self.said.insert(table.incarnation().id().to_string(), error.to_string());
        if said.as_deref() != Some(&error.to_string()) {
            tick.ran.push(Ran { table: table.name().to_string(), due_at: 0, outcome: Outcome::Failed(error) });
        }
    }
}

async fn run(context: &SyncContext, table: &Arc<TableHandle>, job: Job) -> Result<RunResult> {
    let request = SyncRequest { trigger: SyncTrigger::Schedule, ..SyncRequest::default() };
    Ok(match job {
        Job::Sync => ops::reload(context, table, request).await,
        Job::Reconcile => ops::reconcile(context, table, request).await?,
        Job::Refresh | Job::Follow => refresh(&context.host, table, RefreshRequest::default()).await,
    })
}

/// What came of a run: another process that started one in the same moment makes it a skipped one.
async fn overtaken(context: &SyncContext, table: &TableHandle, due: Due, result: RunResult) -> Outcome {
    if result.error.as_ref().is_none_or(|error| error.code() != ErrorCode::RunActive) {
        return Outcome::Ended(Box::new(result));
    }
    match active_run(table).await {
        Ok(Some(active)) if skip(context, table, due, &active).await.is_ok() => Outcome::Skipped(active),
        _ => Outcome::Ended(Box::new(result)),
    }
}

/// Notes that a run was due while another one was at work. False: somebody else noted something in this moment.
async fn skip(context: &SyncContext, table: &TableHandle, due: Due, active: &RunId) -> Result<bool> {
    let skipped = SkippedRun { due_at: due.at, at: context.host.env.clock.now_micros(), active_run: active.to_string() };
    let (number, note) = table.incarnation().schedule_note().await?;
    table.incarnation().write_schedule_note(number, &due.answer(note).with_skipped(skipped)).await
}
