//! Whether files lie in key order, and reading such files as one sequence in key order.
//!
//! ```text
//! file 1  a c e g ─┐
//! file 2  b x     ─┼─ SortPreservingMergeExec ─► a b c d e g x
//! file 3  d       ─┘
//! ```
//!
//! Rows that later versions wrote go back between their neighbours: a look-up reads few pages, and the next diff finds the
//! baseline in the order of its source. Memory: two batches per file. Files in another order are never sorted: their order
//! is the source's, which is worth more.

use std::any::Any;
use std::cmp::Ordering;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, make_comparator};
use arrow::compute::SortOptions;
use arrow_schema::{Schema, SchemaRef};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use futures::{FutureExt, TryStreamExt};

use super::CompactExec;
use crate::error::{Error, Result};
use crate::exec::handler::panic_text;
use crate::store::files::open_rows;
use crate::store::{DataFile, Incarnation};

const BATCH_ROWS: usize = 1 << 14;

/// Whether the keys of every file ascend. Reads the key columns of the index files up to the first that does not.
/// Only a hint: nothing is verified here, so that damaged bytes may reach the decoder, which may panic.
///
/// # Errors
/// Those of reading.
pub async fn are_in_key_order(incarnation: &Incarnation, files: &[DataFile], key: &SchemaRef) -> Result<bool> {
    for file in files {
        let ascends = AssertUnwindSafe(is_in_key_order(incarnation, file, key)).catch_unwind().await;
        let panicked = |panic: Box<dyn Any + Send>| incarnation.damaged(&file.index.path, panic_text(panic.as_ref()));
        if !ascends.map_err(panicked)?? {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn is_in_key_order(incarnation: &Incarnation, file: &DataFile, key: &SchemaRef) -> Result<bool> {
    let mut rows = open_rows(incarnation, &file.index, key, BATCH_ROWS, Some(file.rows)).await?;
    let mut last: Option<RecordBatch> = None;
    while let Some(batch) = rows.try_next().await? {
        let Some(end) = batch.num_rows().checked_sub(1) else { continue };
        if !ascends(last.as_ref(), &batch).unwrap_or(false) {
            return Ok(false);
        }
        last = Some(batch.slice(end, 1));
    }
    Ok(true)
}

/// `before` is one row. An error: the key's types have no order.
fn ascends(before: Option<&RecordBatch>, batch: &RecordBatch) -> Result<bool, arrow_schema::ArrowError> {
    let comparators = |left: &RecordBatch| -> Result<Vec<_>, _> {
        let pair = |(left, right): (&ArrayRef, &ArrayRef)| make_comparator(left, right, SortOptions::default());
        left.columns().iter().zip(batch.columns()).map(pair).collect()
    };
    let is_before = |comparators: &[arrow::array::DynComparator], left: usize, right: usize| {
        comparators.iter().map(|compare| compare(left, right)).find(|order| order.is_ne()) == Some(Ordering::Less)
    };
    if let Some(before) = before
        && !is_before(&comparators(before)?, 0, 0)
    {
        return Ok(false);
    }
    let within = comparators(batch)?;
    Ok((1..batch.num_rows()).all(|row| is_before(&within, row - 1, row)))
}

/// The rows of `scan`, whose files are all in key order, in key order.
///
/// # Errors
/// `INTERNAL` when a key column is not an output column.
pub fn in_key_order(scan: CompactExec, key: &[String]) -> Result<Arc<dyn ExecutionPlan>> {
    let files = scan.files.len();
    let scan: Arc<dyn ExecutionPlan> = Arc::new(scan.with_partitions(files));
    let schema = scan.schema();
    let column = |name: &String| -> Result<PhysicalSortExpr> {
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(name, index_of(&schema, name)?));
        Ok(PhysicalSortExpr::new_default(column))
    };
    let order = key.iter().map(column).collect::<Result<Vec<_>>>()?;
    match LexOrdering::new(order) {
        Some(order) if files > 1 => Ok(Arc::new(SortPreservingMergeExec::new(order, scan))),
        _ => Ok(scan),
    }
}

fn index_of(schema: &Schema, name: &str) -> Result<usize> {
    schema.index_of(name).map_err(|_| Error::internal(format!("the rows to rewrite have no column {name:?}")))
}
