//! What the partitions of one execution share: the loaded diff, the findings, the counts, the outcome.
//!
//! ```text
//! partition 0 ─┐                 ┌─ baseline, loaded by whoever is polled first
//! partition 1 ─┼─► RunningDiff ──┼─ findings: null and duplicate keys of all partitions
//! partition 2 ─┘                 └─ outcome: set by the last partition that ends well, when it has settled what is left
//! ```

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::future::{BoxFuture, FutureExt, Shared};

use super::findings::Findings;
use super::load::{Inputs, Mode, Shared as SharedWork, load};
use super::origin::Origins;
use super::outcome::{DiffOutcome, DiffReport};
use super::settle::{Settle, Unsettled};
use super::{DiffSpec, metrics};
use crate::error::{Error, Result};

type Loading = Shared<BoxFuture<'static, Result<Arc<Loaded>>>>;

/// The loaded diff, as the partitions share it. What it holds of the pool is free when the last of them lets go of it.
pub(crate) struct Loaded {
    pub(crate) shared: Arc<SharedWork>,
    pub(crate) mode: Mode,
    /// New keys that the whole diff had no room for.
    pub(crate) unsettled: Unsettled,
}

/// Rows of one partition, by verdict.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) created: u64,
    pub(crate) updated: u64,
    pub(crate) unchanged: u64,
    pub(crate) scanned: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.created += other.created;
        self.updated += other.updated;
        self.unchanged += other.unchanged;
        self.scanned += other.scanned;
    }
}

#[derive(Default)]
struct Progress {
    started: BTreeSet<usize>,
    ended: usize,
    counts: Counts,
    origins: Origins,
    loading: Option<Loading>,
}

/// One execution of the operator.
pub(crate) struct RunningDiff {
    spec: Arc<DiffSpec>,
    progress: Mutex<Progress>,
    findings: Mutex<Findings>,
    outcome: Arc<DiffOutcome>,
}

impl std::fmt::Debug for RunningDiff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningDiff").field("outcome", &self.outcome).finish_non_exhaustive()
    }
}

impl RunningDiff {
    pub(crate) fn new(spec: Arc<DiffSpec>) -> Self {
        Self { spec, progress: Mutex::default(), findings: Mutex::default(), outcome: Arc::default() }
    }

    pub(crate) fn outcome(&self) -> Arc<DiffOutcome> {
        Arc::clone(&self.outcome)
    }

    pub(crate) fn findings(&self) -> MutexGuard<'_, Findings> {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a partition once and gives it the loading of the baseline, which the first one starts.
    pub(crate) fn start(
        &self,
        partition: usize,
        inputs: impl FnOnce() -> Inputs,
        shared: impl FnOnce() -> Arc<SharedWork>,
        context: &Arc<TaskContext>,
    ) -> Result<Loading> {
        let mut progress = self.progress();
        if !progress.started.insert(partition) {
            return Err(Error::internal(format!("partition {partition} of the diff of table {:?} was executed twice", self.spec.table)));
        }
        let start = || {
            let shared = shared();
            let loading = load(Arc::clone(&shared), inputs(), Arc::clone(context));
            async move { Ok(Arc::new(Loaded { mode: loading.await?, shared, unsettled: Unsettled::new(0) })) }.boxed().shared()
        };
        Ok(progress.loading.get_or_insert_with(start).clone())
    }

    /// Notes what a partition saw of the rows' files.
    pub(crate) fn note(&self, origins: Origins) {
        self.progress().origins.add(origins);
    }

    /// Ends a partition's reading of the source. The last one gets the loaded diff back, which nobody else has then.
    pub(crate) fn arrive(&self, loaded: Arc<Loaded>, counts: Counts, partitions: usize) -> Option<Arc<Loaded>> {
        let mut progress = self.progress();
        progress.ended += 1;
        progress.counts.add(counts);
        if progress.ended < partitions {
            // Within the lock: the last one must not find it held.
            drop(loaded);
            return None;
        }
        progress.loading = None;
        Some(loaded)
    }

    /// Reports the keys at fault, or sets the outcome. `counts` are those of the rows that were settled.
    pub(crate) fn conclude(&self, counts: Counts, settle: Settle, shared: &SharedWork, set: &ExecutionPlanMetricsSet) -> Result<()> {
        let Settle { deleted, dead, findings, .. } = settle;
        self.findings().add(findings);
        if let Some(error) = self.findings().error(&self.spec.table) {
            return Err(error);
        }
        let (mut total, origins) = {
            let mut progress = self.progress();
            (progress.counts, std::mem::take(&mut progress.origins))
        };
        total.add(counts);
        if total.created + total.updated + total.unchanged != total.scanned {
            return Err(Error::internal(format!(
                "table {:?}: {} created, {} updated and {} unchanged rows do not add up to {} scanned ones",
                self.spec.table, total.created, total.updated, total.unchanged, total.scanned
            )));
        }
        // A count of rows: saturating on 32-bit machines changes a metric only.
        metrics::deleted(set).add(usize::try_from(deleted).unwrap_or(usize::MAX));
        let Counts { created, updated, unchanged, scanned } = total;
        let (peak_memory_bytes, spilled_bytes) = (shared.memory.peak(), shared.spiller.spilled_bytes());
        let report =
            DiffReport { created, updated, deleted, unchanged, scanned, skipped: 0, dead, origins, peak_memory_bytes, spilled_bytes };
        self.outcome.set(report);
        Ok(())
    }
}
