//! Rows of the base that the diff does not load, because their source files are left unread: no new key may be one of
//! theirs.
//!
//! ```text
//! new keys of a diff (or of one bucket) ─ none ─► nothing is read
//!                                       └ some ─► index rows of unread files, where a new key may lie ─► found: KEY_DUPLICATE
//! ```
//!
//! A file that did not change still holds the key, so the source has it twice. Memory: one batch of index rows, and what
//! their scan reserves. Never reads an index row twice for one set of new keys, and never looks at rows that were loaded:
//! their keys are in the baseline.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray};
use arrow::compute::filter;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::metrics::Count;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;

use super::DiffSpec;
use super::diff::{Differ, Verdict};
use super::emit::SourceRows;
use super::state::RunningDiff;
use crate::error::{Error, ErrorCode, Result};
use crate::exec::equality::{KeyReader, render_distinct_key};
use crate::exec::index_scan::KeyRanges;

/// The plan that reads the rows outside of the diff: their key columns at least.
#[derive(Debug, Clone)]
pub(crate) struct OutsidePlan {
    pub(crate) index: Arc<dyn ExecutionPlan>,
    /// Where new keys lie; the plan heeds it when it is executed.
    pub(crate) ranges: Arc<KeyRanges>,
}

/// The rows outside, for one execution of a diff.
pub(crate) struct Outside {
    pub(crate) plan: OutsidePlan,
    pub(crate) spec: Arc<DiffSpec>,
    pub(crate) reader: Arc<KeyReader>,
    pub(crate) running: Arc<RunningDiff>,
    pub(crate) context: Arc<TaskContext>,
    /// Rows that were looked at.
    pub(crate) compared: Count,
}

impl Outside {
    /// Notes where the new keys among these rows lie.
    pub(crate) fn note(&self, source: &SourceRows, verdicts: &[Verdict]) -> Result<()> {
        let is_new = |verdict: &Verdict| matches!(verdict, Verdict::Created | Verdict::Unsettled);
        let Some(first) = source.key_columns().first().filter(|_| verdicts.iter().any(is_new)) else { return Ok(()) };
        let new: BooleanArray = verdicts.iter().map(|verdict| Some(is_new(verdict))).collect();
        let failed = |error| Error::internal("new keys cannot be taken out of a batch").with_source(error);
        self.plan.ranges.add(&filter(first.as_ref(), &new).map_err(failed)?)
    }

    /// Finds new keys of `differ`, which is done, among the rows outside.
    pub(crate) async fn check(&self, differ: &dyn Differ) -> Result<()> {
        if !differ.has_new() {
            return Ok(());
        }
        let table = &self.spec.table;
        let wrap = |error| Error::from_datafusion(error, ErrorCode::Corrupt, format!("table {table:?}: its index cannot be read"));
        let index = match self.plan.index.output_partitioning().partition_count() {
            1 => Arc::clone(&self.plan.index),
            _ => Arc::new(CoalescePartitionsExec::new(Arc::clone(&self.plan.index))),
        };
        let mut batches = index.execute(0, Arc::clone(&self.context)).map_err(wrap)?;
        while let Some(batch) = batches.next().await {
            let batch = batch.map_err(wrap)?;
            self.compared.add(batch.num_rows());
            let mut found = Vec::new();
            differ.find_new(&self.reader.read_batch(&batch)?, batch.num_rows(), &mut found);
            if found.is_empty() {
                continue;
            }
            let column = |name: &str| batch.column_by_name(name).cloned();
            let keys: Option<Vec<ArrayRef>> = self.spec.key.iter().map(|field| column(field.name())).collect();
            let keys = keys.ok_or_else(|| Error::internal("the index scan has no key columns"))?;
            let mut findings = self.running.findings();
            for row in found {
                findings.duplicate(render_distinct_key(&self.spec.key, &keys, row));
            }
        }
        Ok(())
    }
}
