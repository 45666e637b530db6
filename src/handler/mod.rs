//! The transformation: SQL in a sandbox, or Rust code.
//!
//! ```text
//! SQL text ── analyze_sql ──────────┐                       ┌─ proven    plan_over: projections around the input plan
//!                                   ├─► definition ─► bind ─┤
//! registered name ─ analyze_registered                      └─ otherwise one call per bounded batch (exec/handler)
//! ```
//!
//! A handler sees `input`: the key columns and the tracked columns of the new and changed rows. It returns one row
//! for each of its keys, key values unaltered, with the revision's output schema.
//!
//! Memory: a handler holds what it is given and what it returns; both are bounded by `handler_batch_rows`.
//! This module never reads a source, writes, or opens a store: what a SQL handler can reach is `input` and the
//! session's functions, nothing else.

mod bound;
mod columns;
mod conform;
mod function;
pub(crate) mod nesting;
mod registry;
mod row;
mod sql;
#[cfg(test)]
mod tests;

use std::fmt::Debug;

use arrow::array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use async_trait::async_trait;

pub use bound::BoundHandler;
pub(crate) use bound::check_same_output;
pub(crate) use columns::nearest;
pub(crate) use conform::conform_batch;
pub use function::closure_handler;
pub use registry::HandlerRegistry;
pub use row::{Row, Value, row_handler};
pub use sql::{AnalyzedHandler, SqlHandlerRequest, analyze_registered, analyze_sql};

use crate::error::Result;
use crate::spec::{RunId, RunMode};

/// What a handler's own code may fail with.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// Names of the columns that runs carry beside the user's start with this; no user column may.
pub(crate) const RESERVED_PREFIX: &str = "__incremental_";

/// The relation that a SQL handler reads.
pub(crate) const INPUT: &str = "input";

/// A transformation written in Rust.
///
/// ```
/// use std::sync::Arc;
/// use arrow::array::{AsArray, Int64Array, RecordBatch};
/// use arrow_schema::{DataType, Field, Schema, SchemaRef};
/// use async_trait::async_trait;
/// use datafusion_incremental::Result;
/// use datafusion_incremental::handler::{Handler, HandlerCall, HandlerError};
///
/// #[derive(Debug)]
/// struct NameLength;
///
/// #[async_trait]
/// impl Handler for NameLength {
///     fn version(&self) -> &str {
///         "1"
///     }
///
///     fn output_schema(&self, input: &Schema) -> Result<SchemaRef> {
///         let id = input.field(0).clone();
///         Ok(Arc::new(Schema::new(vec![id, Field::new("length", DataType::Int64, true)])))
///     }
///
///     async fn handle(&self, input: RecordBatch, _: &HandlerCall) -> Result<Vec<RecordBatch>, HandlerError> {
///         let lengths: Int64Array =
///             input.column(1).as_string::<i32>().iter().map(|name| name.map(|text| text.len() as i64)).collect();
///         let schema = self.output_schema(&input.schema())?;
///         Ok(vec![RecordBatch::try_new(schema, vec![Arc::clone(input.column(0)), Arc::new(lengths)])?])
///     }
/// }
/// ```
#[async_trait]
pub trait Handler: Debug + Send + Sync {
    /// The version of the logic. A revision pins it: a run with another version fails with `HANDLER_VERSION`.
    fn version(&self) -> &str;

    /// The schema of what [`Handler::handle`] returns for this `input`; it must hold every key column unchanged.
    fn output_schema(&self, input: &Schema) -> Result<SchemaRef>;

    /// Transforms one batch: exactly one row for each of its keys, in any order, in any number of batches.
    ///
    /// Never called without rows. May be called again for the same rows (a retry, a draft): effects outside
    /// should be idempotent, keyed by [`HandlerCall::run`] and the row's key.
    async fn handle(&self, input: RecordBatch, call: &HandlerCall) -> std::result::Result<Vec<RecordBatch>, HandlerError>;
}

/// What a handler is told about the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerCall {
    /// The incremental table.
    pub table: String,
    /// The run; the same for a retry of the same run.
    pub run: RunId,
    /// The attempt of the run.
    pub attempt: String,
    /// Draft or published.
    pub mode: RunMode,
    /// The number of the call within the attempt, from 0. The rows of a call differ between attempts.
    pub call: u64,
}
