//! A clock that a test moves: tokio's paused time, counted from a given moment.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use datafusion_incremental::env::Clock;
use tokio::time::Instant;

/// Where every test begins: 2026-01-01T00:00:00Z.
pub const EPOCH: i64 = 1_767_225_600_000_000;

/// Time that passes only while everything waits. Make it inside the runtime that it belongs to.
pub struct TestClock {
    start: Instant,
    at_start: i64,
    skew: AtomicI64,
}

impl TestClock {
    /// A clock that shows `micros` now.
    pub fn at(micros: i64) -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), at_start: micros, skew: AtomicI64::new(0) })
    }

    /// The wall time jumps, in either direction; elapsed time does not.
    pub fn jump(&self, micros: i64) {
        self.skew.fetch_add(micros, Ordering::SeqCst);
    }
}

impl fmt::Debug for TestClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestClock").finish_non_exhaustive()
    }
}

#[async_trait]
impl Clock for TestClock {
    fn now_micros(&self) -> i64 {
        self.at_start + i64::try_from(self.start.elapsed().as_micros()).unwrap_or(i64::MAX) + self.skew.load(Ordering::SeqCst)
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// Lets `duration` pass for all who wait.
#[allow(dead_code)] // not every test binary that takes this file waits
pub async fn pass(duration: Duration) {
    tokio::time::sleep(duration).await;
}
