//! The crash matrix of synced tables: three modes, first load and later run, every store operation, every fault.
//!
//! ```text
//! setup ─ fork ─► reload with operation k failing, or the process gone ─► 31 s later, another process: reload
//!                   └─► what is shown in between is a whole version          └─► the rows are those of an undisturbed run
//! ```
//!
//! Nothing is lost, nothing is doubled, and the cursor's mark never outruns the rows.

use std::sync::Arc;
use std::time::Duration;

use datafusion_incremental::Error;
use datafusion_incremental::env::{Clock, SeededIds};

use super::backing::Backing;
use super::clock::{EPOCH, TestClock, pass};
use super::store::{Fault, FaultStore, Op};
use super::world::{Process, ROOT, Rows, World, alone, in_parallel, rows};

const MODES: [(&str, &str); 4] = [
    ("full_refresh", "sync_type = 'full_refresh', primary_key_columns = ('id')"),
    ("full_refresh without a key", "sync_type = 'full_refresh'"),
    ("incremental", "sync_type = 'incremental', incremental_field = 'id', primary_key_columns = ('id')"),
    ("append", "sync_type = 'append', incremental_field = 'id'"),
];

/// A table of one mode, ready for the run that is disturbed.
struct Case {
    name: String,
    backing: Arc<Backing>,
    now: i64,
    source: Rows,
    before: Option<Rows>,
    after: Rows,
    ops: Vec<Op>,
}

fn first() -> Rows {
    rows(&[(1, "a"), (2, "b"), (3, "c")])
}

/// Ids only grow, as a cursor's values do; the row at the mark is read again.
fn second() -> Rows {
    rows(&[(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")])
}

async fn world_at(backing: &Arc<Backing>, now: i64, source: &Rows) -> World {
    let clock = TestClock::at(now);
    let backing = backing.fork(Arc::clone(&clock) as Arc<dyn Clock>);
    let world = World::new(backing, Arc::clone(&clock) as Arc<dyn Clock>, Arc::new(SeededIds::new(now.unsigned_abs())));
    world.source.set(source.clone());
    world
}

async fn reload(process: &Process) -> Result<(), Error> {
    process.sql("CALL sync.reload('t')").await.map(drop)
}

/// The rows, each as often as it is there; nothing for a table that was never loaded.
async fn shown(process: &Process) -> Result<Option<Rows>, String> {
    let handle = process.session.incremental_table("t").await.map_err(|e| e.to_string())?;
    match handle.newest().await.map_err(|e| e.to_string())? {
        None => Ok(None),
        // A key that comes twice is an error here, also where the table has none.
        Some(_) => process.select("SELECT id, v FROM t").await.map(Some).map_err(|e| e.to_string()),
    }
}

impl Case {
    fn new((mode, with): (&str, &str), is_first: bool) -> Self {
        let name = format!("{mode}, {}", if is_first { "first load" } else { "later run" });
        alone(|| async {
            let clock = TestClock::at(EPOCH);
            let backing = Backing::memory(Arc::clone(&clock) as Arc<dyn Clock>);
            let world = World::new(Arc::clone(&backing), Arc::clone(&clock) as Arc<dyn Clock>, Arc::new(SeededIds::new(11)));
            world.source.set(first());
            let process = world.process().await;
            let create = format!("CREATE SYNCED TABLE t FROM s LOCATION '{ROOT}/t/' WITH ({with}, compaction = 'off')");
            process.sql(&create).await.unwrap_or_else(|e| panic!("{name}: {e}"));
            if !is_first {
                reload(&process).await.unwrap_or_else(|e| panic!("{name}: {e}"));
            }
            let (source, before) = if is_first { (first(), None) } else { (second(), Some(first())) };
            let now = clock.now_micros() + 3_600_000_000;
            let mut case = Self { name, backing, now, after: source.clone(), source, before, ops: vec![] };
            case.record().await.unwrap_or_else(|e| panic!("{}: {e}", case.name));
            case
        })
    }

    async fn open(&self, world: &World) -> Result<Process, String> {
        let process = world.process_over(FaultStore::new(Arc::clone(&world.backing))).await;
        process.attach("t").await.map_err(|e| format!("attaching: {e}"))?;
        Ok(process)
    }

    async fn record(&mut self) -> Result<(), String> {
        let world = world_at(&self.backing, self.now, &self.source).await;
        let process = self.open(&world).await?;
        process.store.arm([]);
        reload(&process).await.map_err(|e| e.to_string())?;
        self.ops = process.store.disarm();
        let found = shown(&process).await?;
        if found.as_ref() == Some(&self.after) { Ok(()) } else { Err(format!("an undisturbed run shows {found:?}")) }
    }

    async fn disturbed(&self, (k, fault): (usize, Fault)) -> Result<(), String> {
        let world = world_at(&self.backing, self.now, &self.source).await;
        let process = self.open(&world).await?;
        process.store.arm([(k, fault)]);
        let outcome = tokio::select! {
            biased;
            outcome = reload(&process) => Some(outcome),
            () = process.store.hung() => None,
        };
        // Tasks of a dropped future end at their next turn.
        for _ in 0..16 {
            tokio::task::yield_now().await;
        }
        process.store.disarm();
        drop(process);
        let fresh = self.open(&world).await?;
        let found = shown(&fresh).await?;
        if found != self.before && found.as_ref() != Some(&self.after) {
            return Err(format!("after the fault the table shows {found:?}"));
        }
        if matches!(outcome, Some(Ok(()))) && found.as_ref() != Some(&self.after) {
            return Err(format!("a run that ended well left {found:?}"));
        }
        pass(Duration::from_secs(31)).await;
        reload(&fresh).await.map_err(|e| format!("the next run: {e}"))?;
        let found = shown(&fresh).await?;
        if found.as_ref() != Some(&self.after) {
            return Err(format!("after the next run the table shows {found:?}"));
        }
        // And once more: nothing is added by reading the boundary again.
        reload(&fresh).await.map_err(|e| format!("the run after that: {e}"))?;
        let found = shown(&fresh).await?;
        if found.as_ref() == Some(&self.after) { Ok(()) } else { Err(format!("after a further run the table shows {found:?}")) }
    }
}

fn faults(op: &Op) -> Vec<Fault> {
    let mut faults = vec![Fault::FailsBefore, Fault::Hangs, Fault::Down];
    if op.kind.writes() {
        faults.extend([Fault::FailsAfter, Fault::HangsAfter, Fault::DownAfter]);
    }
    faults
}

#[test]
fn a_sync_that_is_disturbed_anywhere_is_completed_by_the_next_one() {
    let cases: Vec<Case> = MODES.iter().flat_map(|mode| [true, false].map(|is_first| Case::new(*mode, is_first))).collect();
    let mut plans = vec![];
    for (at, case) in cases.iter().enumerate() {
        let before = plans.len();
        for (k, op) in case.ops.iter().enumerate() {
            plans.extend(faults(op).into_iter().map(|fault| (at, k, fault)));
        }
        println!("{}: {} operations, {} cases", case.name, case.ops.len(), plans.len() - before);
    }
    let failures = in_parallel(plans, 10, |(at, k, fault)| alone(|| cases[*at].disturbed((*k, *fault))));
    for ((at, k, fault), failure) in &failures {
        println!("--- {}: operation {k} ({}) {fault:?}\n{failure}\n", cases[*at].name, cases[*at].ops[*k]);
    }
    assert!(failures.is_empty(), "{} cases failed", failures.len());
}
