//! Gates: one that holds a process at an operation, and one that lets two processes pass in a given order.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::{Notify, watch};

use super::store::{Gate, Op};

/// Which operations a gate is about.
pub type Of = fn(&Op) -> bool;

/// Holds the operations that it is about from when it is closed until it is opened.
#[derive(Debug)]
pub struct Hold {
    of: Of,
    closed: AtomicBool,
    reached: watch::Sender<bool>,
    opened: watch::Sender<bool>,
}

impl Hold {
    pub fn at(of: Of) -> Arc<Self> {
        Arc::new(Self { of, closed: AtomicBool::new(false), reached: watch::Sender::new(false), opened: watch::Sender::new(false) })
    }

    /// Holds from now on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Returns when an operation waits.
    pub async fn reached(&self) {
        self.reached.subscribe().wait_for(|reached| *reached).await.expect("the gate is there");
    }

    /// Lets all go on.
    pub fn open(&self) {
        self.opened.send_replace(true);
    }
}

#[async_trait]
impl Gate for Hold {
    async fn pass(&self, op: &Op) {
        if self.closed.load(Ordering::SeqCst) && (self.of)(op) {
            self.reached.send_replace(true);
            self.opened.subscribe().wait_for(|opened| *opened).await.expect("the gate is there");
        }
    }
}

/// The operations at which a process of a schedule waits for its turn, in any order, each once.
pub const STATIONS: [Of; 6] = [
    |op| op.kind.writes() && op.path.ends_with("/request.json"),
    |op| op.kind.writes() && op.path.ends_with(".index.parquet"),
    |op| op.kind.writes() && op.path.ends_with("/seal.json"),
    |op| op.kind.writes() && op.path.contains("/manifests/"),
    |op| op.kind.writes() && op.path.contains("/sources/"),
    |op| op.kind.writes() && op.path.contains("/versions/"),
];

/// Two processes, their turns in a given order.
#[derive(Debug)]
pub struct Schedule {
    turns: Mutex<VecDeque<usize>>,
    ended: Mutex<[bool; 2]>,
    changed: Notify,
}

impl Schedule {
    pub fn new(turns: impl IntoIterator<Item = usize>) -> Arc<Self> {
        Arc::new(Self { turns: Mutex::new(turns.into_iter().collect()), ended: Mutex::default(), changed: Notify::new() })
    }

    /// The gate of process `who`.
    pub fn gate(self: &Arc<Self>, who: usize) -> Arc<dyn Gate> {
        Arc::new(Turn { who, schedule: Arc::clone(self), passed: Mutex::default() })
    }

    /// Process `who` will not come to its next stations.
    pub fn end(&self, who: usize) {
        self.ended.lock().unwrap()[who] = true;
        self.changed.notify_waiters();
    }

    async fn turn(&self, who: usize) {
        loop {
            let changed = self.changed.notified();
            {
                let (mut turns, ended) = (self.turns.lock().unwrap(), self.ended.lock().unwrap());
                while turns.front().is_some_and(|next| ended[*next]) {
                    turns.pop_front();
                }
                if turns.front().is_none_or(|next| *next == who) {
                    turns.pop_front();
                    self.changed.notify_waiters();
                    return;
                }
            }
            changed.await;
        }
    }
}

#[derive(Debug)]
struct Turn {
    who: usize,
    schedule: Arc<Schedule>,
    passed: Mutex<[bool; 6]>,
}

#[async_trait]
impl Gate for Turn {
    async fn pass(&self, op: &Op) {
        let station = STATIONS.iter().position(|of| of(op));
        let Some(station) = station else { return };
        if !std::mem::replace(&mut self.passed.lock().unwrap()[station], true) {
            self.schedule.turn(self.who).await;
        }
    }
}

/// Lets the operations that it is about pass only when so many processes have come to one.
#[derive(Debug)]
pub struct Barrier {
    of: Of,
    barrier: tokio::sync::Barrier,
}

impl Barrier {
    pub fn of(of: Of, processes: usize) -> Arc<Self> {
        Arc::new(Self { of, barrier: tokio::sync::Barrier::new(processes) })
    }
}

#[async_trait]
impl Gate for Barrier {
    async fn pass(&self, op: &Op) {
        if (self.of)(op) {
            self.barrier.wait().await;
        }
    }
}

/// Every operation takes a while, as the seed has it.
#[derive(Debug)]
pub struct Latency {
    rng: Mutex<SmallRng>,
    most_ms: u64,
}

impl Latency {
    pub fn new(seed: u64, most_ms: u64) -> Arc<Self> {
        Arc::new(Self { rng: Mutex::new(SmallRng::seed_from_u64(seed)), most_ms })
    }
}

#[async_trait]
impl Gate for Latency {
    async fn pass(&self, _op: &Op) {
        let ms = self.rng.lock().unwrap().random_range(0..=self.most_ms);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}
