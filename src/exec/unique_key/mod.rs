//! `UniqueKeyExec`: the keys of a full recomputation are non-null and unique.
//!
//! ```text
//! rows ─► (keys seen by all partitions) ─► the same rows
//!           a null key: HANDLER_NULL_KEY    a key seen before: HANDLER_DUPLICATE_KEY
//! ```
//!
//! For `incremental = false`, where a query makes its rows freely. Rows pass through as they come, partition by
//! partition, so the first fault ends the run before anything is published.
//!
//! Memory: every key of the output, once, reserved in the session's pool (`RESOURCES_EXHAUSTED` beyond it). It never
//! compares keys by hash alone and never changes a row. A second execution of a partition is an error: its own keys
//! would be found again.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::{ArrayRef, RecordBatch};
use arrow_schema::Field;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{exec_err, internal_datafusion_err};
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::StreamExt;

use crate::error::{Error, ErrorCode};
use crate::exec::contract::sample_keys;
use crate::exec::equality::{KeyHash, KeySet};

/// Passes rows through whose keys are non-null and unique; see the module's documentation.
#[derive(Debug)]
pub struct UniqueKeyExec {
    input: Arc<dyn ExecutionPlan>,
    key: Vec<String>,
    table: String,
    started: Vec<AtomicBool>,
    seen: Arc<Mutex<Option<Seen>>>,
    properties: Arc<PlanProperties>,
}

#[derive(Debug)]
struct Seen {
    keys: KeySet,
    reservation: MemoryReservation,
}

impl UniqueKeyExec {
    /// Checks the `key` columns of `input` for the incremental table `table`.
    pub fn new(input: Arc<dyn ExecutionPlan>, key: Vec<String>, table: impl Into<String>) -> Self {
        let partitions = input.output_partitioning().partition_count();
        Self {
            properties: Arc::clone(input.properties()),
            started: (0..partitions).map(|_| AtomicBool::new(false)).collect(),
            seen: Arc::default(),
            input,
            key,
            table: table.into(),
        }
    }
}

impl DisplayAs for UniqueKeyExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueKeyExec: table={}, key=[{}]", self.table, self.key.join(", "))
    }
}

impl ExecutionPlan for UniqueKeyExec {
    fn name(&self) -> &str {
        "UniqueKeyExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn apply_expressions(&self, _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let input = children.pop().ok_or_else(|| internal_datafusion_err!("UniqueKeyExec has one child"))?;
        Ok(Arc::new(Self::new(input, self.key.clone(), &self.table)))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(Arc::clone(&self.input), self.key.clone(), &self.table)))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if self.started.get(partition).is_none_or(|started| started.swap(true, Ordering::AcqRel)) {
            return exec_err!("UniqueKeyExec was executed twice, or has no partition {partition}");
        }
        let check = Check {
            seen: Arc::clone(&self.seen),
            key: self.key.clone(),
            table: self.table.clone(),
            reservation: MemoryConsumer::new("UniqueKeyExec").register(context.memory_pool()),
        };
        let rows = self.input.execute(partition, context)?.map(move |batch| {
            let batch = batch?;
            check.batch(&batch)?;
            Ok(batch)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

struct Check {
    seen: Arc<Mutex<Option<Seen>>>,
    key: Vec<String>,
    table: String,
    reservation: MemoryReservation,
}

impl Check {
    fn batch(&self, batch: &RecordBatch) -> Result<()> {
        let columns: Vec<ArrayRef> = self.key.iter().filter_map(|name| batch.column_by_name(name).cloned()).collect();
        let mut seen = self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if seen.is_none() {
            let schema = batch.schema_ref();
            let fields: Vec<Field> = self.key.iter().filter_map(|name| schema.field_with_name(name).ok().cloned()).collect();
            *seen = Some(Seen { keys: KeySet::try_new(&fields, KeyHash::Xxh3, 0)?, reservation: self.reservation.new_empty() });
        }
        let Some(Seen { keys, reservation }) = seen.as_mut() else { return Ok(()) };
        let nulls = keys.nulls(&columns)?;
        if let Some((_, column)) = nulls.first() {
            let name = self.key.get(*column).map_or("", String::as_str);
            let rows = nulls.iter().map(|(row, _)| *row);
            let what = format!("the handler returned {} rows with a null in a key column (column {name:?})", nulls.len());
            return Err(self.fault(ErrorCode::HandlerNullKey, &what, &sample_keys(batch, &self.key, rows)));
        }
        let inserted = keys.insert(&columns)?;
        reservation.try_resize(keys.allocated())?;
        let twice: Vec<usize> = inserted.iter().enumerate().filter(|(_, (_, new))| !new).map(|(row, _)| row).collect();
        if twice.is_empty() {
            return Ok(());
        }
        let what = format!("the handler returned at least {} keys more than once", twice.len());
        Err(self.fault(ErrorCode::HandlerDuplicateKey, &what, &sample_keys(batch, &self.key, twice)))
    }

    fn fault(&self, code: ErrorCode, what: &str, samples: &str) -> datafusion::error::DataFusionError {
        let table = &self.table;
        Error::new(code, format!("table {table:?}: {what}: {samples}. Remedy: return one row for each key, without nulls in it")).into()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use datafusion::datasource::memory::MemorySourceConfig;
    use datafusion::physical_plan::collect;
    use datafusion::prelude::SessionContext;

    use super::*;

    async fn check(partitions: &[&[Option<i64>]]) -> Result<usize, ErrorCode> {
        let batch = |ids: &[Option<i64>]| {
            let ids: ArrayRef = Arc::new(Int64Array::from(ids.to_vec()));
            vec![RecordBatch::try_from_iter_with_nullable([("id", ids, true)]).unwrap()]
        };
        let batches: Vec<Vec<RecordBatch>> = partitions.iter().map(|ids| batch(ids)).collect();
        let input = MemorySourceConfig::try_new_exec(&batches, batches[0][0].schema(), None).unwrap();
        let plan = UniqueKeyExec::new(input, vec!["id".into()], "t");
        let rows = collect(Arc::new(plan), SessionContext::new().task_ctx()).await;
        rows.map(|batches| batches.iter().map(RecordBatch::num_rows).sum()).map_err(|e| Error::find(&e).unwrap().code())
    }

    #[tokio::test]
    async fn keys_are_unique_over_all_partitions_and_not_null() {
        assert_eq!(check(&[&[Some(1), Some(2)], &[Some(3)]]).await, Ok(3));
        assert_eq!(check(&[&[Some(1), Some(2)], &[Some(2)]]).await, Err(ErrorCode::HandlerDuplicateKey));
        assert_eq!(check(&[&[Some(1), Some(1)]]).await, Err(ErrorCode::HandlerDuplicateKey));
        assert_eq!(check(&[&[Some(1)], &[None]]).await, Err(ErrorCode::HandlerNullKey));
    }
}
