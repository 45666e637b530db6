//! What one diff holds of the memory pool.
//!
//! ```text
//! pool ─ half of it ─► Memory ─┬─► Grant   baseline and new keys of what is loaded
//!                              └─► Grant   rows on their way to disk
//! ```
//!
//! The other half is for whoever reads the diff: the writers need room for their row groups. Where nothing can be
//! written to disk there is no such limit, for a refusal ends the run. A grant gives back what it holds when it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::resources_datafusion_err;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryReservation};

use crate::error::{Error, ErrorCode, Result};

/// The reservation of one diff, with its most and its limit.
#[derive(Debug)]
pub(crate) struct Memory {
    table: String,
    reservation: MemoryReservation,
    peak: AtomicUsize,
    limit: usize,
}

impl Memory {
    pub(crate) fn new(table: &str, context: &TaskContext, can_spill: bool) -> Arc<Self> {
        let pool = context.memory_pool();
        let limit = match pool.memory_limit() {
            MemoryLimit::Finite(bytes) if can_spill => bytes / 2,
            _ => usize::MAX,
        };
        let reservation = MemoryConsumer::new(format!("KeyedDiffExec[{table}]")).register(pool);
        Arc::new(Self { table: table.to_string(), reservation, peak: AtomicUsize::new(0), limit })
    }

    /// The most bytes that a diff may hold.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// A grant of nothing, to be grown.
    pub(crate) fn grant(self: &Arc<Self>) -> Grant {
        Grant { memory: Arc::clone(self), bytes: AtomicUsize::new(0) }
    }

    /// The most bytes that were held at once.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed) as u64
    }

    fn take(&self, bytes: usize) -> DataFusionResult<()> {
        if self.reservation.size().saturating_add(bytes) > self.limit {
            return Err(resources_datafusion_err!("{} bytes more are above the diff's half of the pool, {} bytes", bytes, self.limit));
        }
        self.reservation.try_grow(bytes)?;
        self.peak.fetch_max(self.reservation.size(), Ordering::Relaxed);
        Ok(())
    }

    fn refused(&self, error: DataFusionError) -> Error {
        let context = format!("table {:?}: the keys and fingerprints of the diff do not fit the memory pool", self.table);
        Error::from_datafusion(error, ErrorCode::ResourcesExhausted, context)
    }
}

/// A part of what a diff holds; several partitions grow it at once.
#[derive(Debug)]
pub(crate) struct Grant {
    memory: Arc<Memory>,
    bytes: AtomicUsize,
}

impl Grant {
    /// Takes `bytes` more. `RESOURCES_EXHAUSTED` when the limit or the pool refuses.
    pub(crate) fn grow(&self, bytes: usize) -> Result<()> {
        if bytes > 0 {
            self.memory.take(bytes).map_err(|error| self.memory.refused(error))?;
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The bytes that are held.
    pub(crate) fn held(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Gives `bytes` back, which were taken before.
    pub(crate) fn shrink(&self, bytes: usize) {
        self.memory.reservation.shrink(bytes);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Holds exactly `bytes`; for one holder.
    pub(crate) fn resize(&self, bytes: usize) -> Result<()> {
        let held = self.held();
        match bytes.checked_sub(held) {
            Some(more) => self.grow(more),
            None => {
                self.shrink(held - bytes);
                Ok(())
            }
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.memory.reservation.shrink(*self.bytes.get_mut());
    }
}
