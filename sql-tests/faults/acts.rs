//! What a simulation chooses from: the acts with their statements, the failures that each may have, the faults, the gates.

use std::hash::{DefaultHasher, Hash};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use datafusion_incremental::env::Clock;
use datafusion_incremental::{Error, ErrorCode};
use rand::Rng;
use rand::rngs::SmallRng;

use super::clock::{EPOCH, TestClock};
use super::store::{Fault, FaultStore, Gate, Op};
use super::world::{Process, ROOT, Rows, World};

/// Delays operations as its seed has it, and keeps what came when.
#[derive(Debug)]
pub struct SimGate {
    who: usize,
    rng: Mutex<SmallRng>,
    pub calm: AtomicBool,
    clock: Arc<TestClock>,
    trace: Arc<Mutex<Trace>>,
}

#[derive(Debug, Default)]
pub struct Trace {
    pub hasher: DefaultHasher,
    pub ops: u64,
    pub verbose: bool,
}

#[async_trait]
impl Gate for SimGate {
    async fn pass(&self, op: &Op) {
        let ms = {
            let mut rng = self.rng.lock().unwrap();
            match rng.random_range(0..1000) {
                _ if self.calm.load(Ordering::SeqCst) => 0,
                0..2 => rng.random_range(35_000..90_000),
                2..10 => rng.random_range(1_000..6_000),
                _ => rng.random_range(0..12),
            }
        };
        if ms > 0 {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        let mut trace = self.trace.lock().unwrap();
        let at = self.clock.now_micros();
        // A summary holds the peak of memory, which is measured: the length of its record may differ.
        let bytes = if op.path.ends_with(".json") { 0 } else { op.bytes };
        (at, self.who, &op.path, bytes, format!("{:?}", op.kind)).hash(&mut trace.hasher);
        trace.ops += 1;
        if trace.verbose {
            println!("    {:>12.3} {} {op}", (at - EPOCH) as f64 / 1e6, self.who);
        }
    }
}

pub struct Actor {
    pub process: Process,
    pub gate: Arc<SimGate>,
    pub clock: Arc<TestClock>,
}

#[derive(Debug, Clone)]
pub enum Act {
    Refresh {
        run: String,
        full: bool,
    },
    Draft {
        run: String,
    },
    /// A refresh of the table on top.
    Chain {
        run: String,
    },
    Cancel {
        run: String,
    },
    Rollback {
        to: u64,
    },
    Compact,
    Vacuum {
        seconds: u64,
    },
}

impl Act {
    pub fn sql(&self) -> String {
        match self {
            Self::Refresh { run, full } => {
                // Statements, no table functions: those are planned on a thread of their own, in another time.
                format!("REFRESH t {} RUN '{run}'", if *full { "FULL" } else { "" })
            }
            Self::Draft { run } => format!("REFRESH t DRAFT RUN '{run}'"),
            Self::Chain { run } => format!("REFRESH u RUN '{run}'"),
            Self::Cancel { run } => format!("CALL incremental.cancel('t', '{run}')"),
            Self::Rollback { to } => format!("CALL incremental.rollback('t', version => {to})"),
            Self::Compact => "CALL incremental.compact('t')".to_string(),
            Self::Vacuum { seconds } => format!("CALL incremental.vacuum('t', dry_run => false, older_than => '{seconds} s')"),
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Refresh { full: false, .. } => "refresh",
            Self::Refresh { full: true, .. } => "full refresh",
            Self::Draft { .. } => "draft",
            Self::Chain { .. } => "chained refresh",
            Self::Cancel { .. } => "cancel",
            Self::Rollback { .. } => "rollback",
            Self::Compact => "compaction",
            Self::Vacuum { .. } => "vacuum",
        }
    }

    /// Whether this failure says no more than that the store, the handler or somebody else was in the way.
    pub fn may_fail_with(&self, error: &Error) -> bool {
        let injected = ["injected", "the service is down"].iter().any(|text| error.message().contains(text));
        match error.code() {
            ErrorCode::StoreFailed | ErrorCode::CommitUnknown | ErrorCode::RunActive | ErrorCode::RunConflict => true,
            ErrorCode::RunStale | ErrorCode::Cancelled => matches!(self, Self::Refresh { .. } | Self::Draft { .. }),
            ErrorCode::CaptureFailed | ErrorCode::HandlerFailed | ErrorCode::QueryFailed => injected,
            ErrorCode::HistoryMissing => !matches!(self, Self::Cancel { .. }),
            ErrorCode::RunNotFound => matches!(self, Self::Cancel { .. }),
            ErrorCode::NotPublished => matches!(self, Self::Compact),
            ErrorCode::SourceNotReady => matches!(self, Self::Chain { .. }),
            _ => false,
        }
    }
}

pub fn reader_may_fail(error: &Error, newest: u64, acts: &[(usize, Act)]) -> bool {
    let vacuums = || acts.iter().any(|(_, act)| matches!(act, Act::Vacuum { .. }));
    match error.code() {
        ErrorCode::StoreFailed => true,
        ErrorCode::QueryFailed => error.message().contains("injected"),
        ErrorCode::NotPublished => newest == 0,
        ErrorCode::HistoryMissing => vacuums(),
        _ => false,
    }
}

pub fn fault(rng: &mut SmallRng) -> Fault {
    let seconds = rng.random_range(1..120);
    let faults = [
        Fault::FailsBefore,
        Fault::FailsAfter,
        Fault::FailsAfter,
        Fault::Hangs,
        Fault::HangsAfter,
        Fault::Down,
        Fault::DownAfter,
        Fault::Late(seconds),
        Fault::Late(seconds),
    ];
    faults[rng.random_range(0..faults.len())]
}

/// The source's rows from now on, in three files or at once.
pub async fn put_source(world: &World, has_files: bool, rows: &Rows) {
    if !has_files {
        return world.source.set(rows.clone());
    }
    for part in 0..3 {
        let name = format!("part-{part}");
        let rows: Rows = rows.iter().filter(|(id, _)| *id % 3 == part).map(|(id, v)| (*id, v.clone())).collect();
        let before = world.files.lock().unwrap().get(&name).cloned();
        if before.as_ref() != Some(&rows) {
            world.put_file(&name, rows).await;
        }
    }
}

/// A table on top of the other.
pub fn chained() -> String {
    format!("CREATE INCREMENTAL TABLE u FROM t KEY (id) LOCATION '{ROOT}/u/' WITH (compaction = 'off') AS SELECT id, o FROM input")
}

pub fn definition(rng: &mut SmallRng, has_files: bool) -> String {
    let options = format!(
        "{}, target_file_rows = {}, row_group_rows = {}, handler_batch_rows = {}, verify = '{}'",
        ["compaction = 'off'", "compaction_max_files = 3"][rng.random_range(0..2)],
        rng.random_range(2..20),
        rng.random_range(2..20),
        rng.random_range(1..20),
        ["always", "metadata"][rng.random_range(0..2)],
    );
    let (track, handler) = [("", "AS SELECT id, upper(v) AS o FROM input"), ("TRACK (v)", "HANDLER 'up'")][rng.random_range(0..2)];
    let (files, source) = match has_files {
        true => (format!("CREATE EXTERNAL TABLE f STORED AS PARQUET LOCATION '{ROOT}/files/'; "), "f"),
        false => (String::new(), "s"),
    };
    format!("{files}CREATE INCREMENTAL TABLE t FROM {source} KEY (id) {track} LOCATION '{ROOT}/t/' WITH ({options}) {handler}")
}

pub async fn actor(world: &World, who: usize, rng: SmallRng, clock: &Arc<TestClock>, trace: &Arc<Mutex<Trace>>) -> Actor {
    let gate =
        Arc::new(SimGate { who, rng: Mutex::new(rng), calm: AtomicBool::new(true), clock: Arc::clone(clock), trace: Arc::clone(trace) });
    let own = TestClock::at(clock.now_micros());
    let world = World { clock: Arc::clone(&own) as Arc<dyn Clock>, ..world.clone() };
    let process = world.process_over(FaultStore::gated(Arc::clone(&world.backing), gate.clone())).await;
    for table in ["t", "u"] {
        process.attach(table).await.expect("the store is healthy");
    }
    Actor { process, gate, clock: own }
}
