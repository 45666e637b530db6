//! What the partitions of one execution share: the loaded diff, the findings, the counts, the outcome.
//!
//! ```text
//! partition 0 ─┐                 ┌─ baseline, loaded by whoever is polled first
//! partition 1 ─┼─► RunningDiff ──┼─ findings: null and duplicate keys of all partitions
//! partition 2 ─┘                 └─ outcome: set by the last partition that ends well
//! ```

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::future::{BoxFuture, FutureExt, Shared};

use super::findings::Findings;
use super::load::{Inputs, Loaded, load};
use super::outcome::{DiffOutcome, DiffReport};
use super::{DiffSpec, metrics};
use crate::error::{Error, Result};
use crate::exec::equality::KeyReader;

type Loading = Shared<BoxFuture<'static, Result<Arc<Loaded>>>>;

/// Rows of one partition, by verdict.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) created: u64,
    pub(crate) updated: u64,
    pub(crate) unchanged: u64,
    pub(crate) scanned: u64,
}

#[derive(Default)]
struct Progress {
    started: BTreeSet<usize>,
    ended: usize,
    counts: Counts,
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
        reader: &Arc<KeyReader>,
        inputs: impl FnOnce() -> Inputs,
        context: &Arc<TaskContext>,
    ) -> Result<Loading> {
        let mut progress = self.progress();
        if !progress.started.insert(partition) {
            return Err(Error::internal(format!("partition {partition} of the diff of table {:?} was executed twice", self.spec.table)));
        }
        let start = || {
            let loading = load(Arc::clone(&self.spec), Arc::clone(reader), inputs(), Arc::clone(context));
            async move { loading.await.map(Arc::new) }.boxed().shared()
        };
        Ok(progress.loading.get_or_insert_with(start).clone())
    }

    /// Ends a partition. The last one reports the keys at fault, or sets the outcome.
    pub(crate) fn end(&self, counts: Counts, loaded: &Loaded, partitions: usize, set: &ExecutionPlanMetricsSet) -> Result<()> {
        let total = {
            let mut progress = self.progress();
            progress.ended += 1;
            let sum = &mut progress.counts;
            sum.created += counts.created;
            sum.updated += counts.updated;
            sum.unchanged += counts.unchanged;
            sum.scanned += counts.scanned;
            let total = *sum;
            if progress.ended < partitions {
                return Ok(());
            }
            progress.loading = None;
            total
        };
        if let Some(error) = self.findings().error(&self.spec.table) {
            return Err(error);
        }
        if total.created + total.updated + total.unchanged != total.scanned {
            return Err(Error::internal(format!(
                "table {:?}: {} created, {} updated and {} unchanged rows do not add up to {} scanned ones",
                self.spec.table, total.created, total.updated, total.unchanged, total.scanned
            )));
        }
        let (deleted, dead) = loaded.differ.dead();
        // A count of rows: saturating on 32-bit machines changes a metric only.
        metrics::deleted(set).add(usize::try_from(deleted).unwrap_or(usize::MAX));
        let Counts { created, updated, unchanged, scanned } = total;
        let (peak_memory_bytes, spilled_bytes) = (loaded.peak(), 0);
        self.outcome.set(DiffReport { created, updated, deleted, unchanged, scanned, dead, peak_memory_bytes, spilled_bytes });
        Ok(())
    }
}
