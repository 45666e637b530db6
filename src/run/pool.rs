//! The session's memory pool, with one run's share of it counted.
//!
//! ```text
//! operators of the run ─► RunPool (counts, keeps the peak) ─► the session's pool (limits, says no)
//! ```
//!
//! Memory: two numbers. It never limits by itself.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};

/// Counts what one run reserves.
#[derive(Debug)]
pub(crate) struct RunPool {
    inner: Arc<dyn MemoryPool>,
    held: AtomicUsize,
    peak: AtomicUsize,
}

impl RunPool {
    pub fn new(inner: Arc<dyn MemoryPool>) -> Self {
        Self { inner, held: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    /// The most that was reserved at one time.
    pub fn peak(&self) -> u64 {
        u64::try_from(self.peak.load(Ordering::Acquire)).unwrap_or(u64::MAX)
    }

    fn grown(&self, additional: usize) {
        let held = self.held.fetch_add(additional, Ordering::AcqRel) + additional;
        self.peak.fetch_max(held, Ordering::AcqRel);
    }
}

impl fmt::Display for RunPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

impl MemoryPool for RunPool {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.inner.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.inner.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.inner.grow(reservation, additional);
        self.grown(additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.inner.shrink(reservation, shrink);
        self.held.fetch_sub(shrink, Ordering::AcqRel);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.inner.try_grow(reservation, additional)?;
        self.grown(additional);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.inner.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.inner.memory_limit()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::execution::memory_pool::GreedyMemoryPool;

    use super::*;

    #[test]
    fn the_peak_is_of_all_consumers_together_and_refusals_do_not_count() {
        let run = Arc::new(RunPool::new(Arc::new(GreedyMemoryPool::new(100))));
        let pool: Arc<dyn MemoryPool> = Arc::clone(&run) as _;
        let (a, b) = (MemoryConsumer::new("a").register(&pool), MemoryConsumer::new("b").register(&pool));
        a.try_grow(40).unwrap();
        b.try_grow(30).unwrap();
        assert!(b.try_grow(60).is_err());
        a.shrink(40);
        b.try_grow(5).unwrap();
        assert_eq!((run.peak(), pool.reserved()), (70, 35));
    }
}
