//! Wall time, elapsed time and sleep.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

/// The source of time.
#[async_trait]
pub trait Clock: fmt::Debug + Send + Sync {
    /// Microseconds since 1970-01-01T00:00:00Z. May jump; orders nothing.
    fn now_micros(&self) -> i64;
    /// Time since an arbitrary start; never goes backwards.
    fn elapsed(&self) -> Duration;
    /// Waits.
    async fn sleep(&self, duration: Duration);
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock {
    start: std::time::Instant,
}

impl Default for SystemClock {
    #[allow(clippy::disallowed_methods)] // the one place that reads the machine's clock
    fn default() -> Self {
        Self { start: std::time::Instant::now() }
    }
}

#[async_trait]
impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods)] // the one place that reads the machine's clock
    fn now_micros(&self) -> i64 {
        chrono::DateTime::<chrono::Utc>::from(std::time::SystemTime::now()).timestamp_micros()
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}
