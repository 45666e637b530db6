//! Reading ahead: where a plan has fewer partitions than the machine has processors, its steps share the work instead.
//!
//! ```text
//! two partitions, two processors     scan ─ diff ─ write      scan ─ diff ─ write        each in one task
//! one partition, two processors      scan ─┤ diff ─┤ write    a task of its own at each ┤, one batch ahead
//! ```
//!
//! A changed file of one row group is one partition, however large it is.
//! Memory: one batch for each place. On a runtime of one thread it does nothing. Never starts before it is called, never
//! swallows a panic: it goes on in whoever polls.

use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::common::spawn_buffered;

/// `rows`, of one of `partitions` partitions, from a task of its own where that helps.
pub(crate) fn read_ahead(rows: SendableRecordBatchStream, partitions: usize, context: &TaskContext) -> SendableRecordBatchStream {
    if partitions < context.session_config().target_partitions() { spawn_buffered(rows, 1) } else { rows }
}
