//! Reports what Parquet cannot decode as `CORRUPT`, naming the file.
//!
//! ```text
//! plan file ─► planner ─► (I/O) ─► planner ─► morsel ─► batches      every error on the way passes `Context::explain`,
//!                                                                     every panic becomes one
//! ```
//!
//! Decoders panic on some damaged bytes (a footer's Arrow schema, for one). Unless every file is verified before it is
//! read, such bytes reach them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow_schema::ArrowError;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::error::{DataFusionError, Result};
use datafusion_datasource::morsel::{Morsel, MorselPlan, MorselPlanner, Morselizer};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use parquet::errors::ParquetError;

use super::reader::FileIdentity;
use crate::error::{Error, ErrorCode};
use crate::exec::handler::panic_text;

/// The error for a data file whose bytes are not what was written.
pub(super) fn corrupt(table: &str, path: &str, what: &dyn std::fmt::Display) -> Error {
    Error::new(
        ErrorCode::Corrupt,
        format!(
            "table {table:?}: data file {path:?} is damaged: {what}. Remedy: restore the file, or rebuild with REFRESH … FULL, which reads no old data file"
        ),
    )
}

#[derive(Debug, Clone)]
struct Context {
    table: Arc<str>,
    path: Arc<str>,
}

impl Context {
    /// What a step of the reader gives; a panic in it is damage.
    fn guard<T>(&self, step: impl FnOnce() -> Result<T>) -> Result<T> {
        match catch_unwind(AssertUnwindSafe(step)) {
            Ok(result) => result.map_err(|e| self.explain(e)),
            Err(panic) => Err(self.panicked(panic.as_ref())),
        }
    }

    fn panicked(&self, panic: &(dyn Any + Send)) -> DataFusionError {
        corrupt(&self.table, &self.path, &format_args!("its decoder panicked: {}", panic_text(panic))).into()
    }

    fn explain(&self, error: DataFusionError) -> DataFusionError {
        if Error::find(&error).is_some() {
            return error;
        }
        match error.find_root() {
            DataFusionError::ParquetError(inner) if is_query_error(inner) => error,
            DataFusionError::ParquetError(inner) => corrupt(&self.table, &self.path, inner).with_source(error).into(),
            _ => error,
        }
    }
}

/// Evaluating a filter inside the reader fails with an Arrow error: the query is at fault, not the file.
fn is_query_error(error: &ParquetError) -> bool {
    match error {
        ParquetError::ArrowError(_) => true,
        ParquetError::External(cause) => cause.is::<ArrowError>() || cause.is::<DataFusionError>(),
        _ => false,
    }
}

/// Wraps the inner morselizer.
#[derive(Debug)]
pub(super) struct CheckedMorselizer {
    inner: Box<dyn Morselizer>,
    table: Arc<str>,
}

impl CheckedMorselizer {
    pub(super) fn new(inner: Box<dyn Morselizer>, table: Arc<str>) -> Self {
        Self { inner, table }
    }
}

impl Morselizer for CheckedMorselizer {
    fn plan_file(&self, file: PartitionedFile) -> Result<Box<dyn MorselPlanner>> {
        let path = file.extension::<FileIdentity>().map_or_else(|| file.path().as_ref(), |identity| identity.object.path.as_str()).into();
        let context = Context { table: Arc::clone(&self.table), path };
        let inner = context.guard(|| self.inner.plan_file(file))?;
        Ok(Box::new(CheckedPlanner { inner, context }))
    }
}

#[derive(Debug)]
struct CheckedPlanner {
    inner: Box<dyn MorselPlanner>,
    context: Context,
}

impl MorselPlanner for CheckedPlanner {
    fn plan(self: Box<Self>) -> Result<Option<MorselPlan>> {
        let Self { inner, context } = *self;
        let Some(mut plan) = context.guard(|| inner.plan())? else { return Ok(None) };
        let planner = |inner, context: &Context| Box::new(CheckedPlanner { inner, context: context.clone() }) as Box<dyn MorselPlanner>;
        let morsels = plan.take_morsels().into_iter();
        let planners = plan.take_ready_planners().into_iter();
        let mut checked = MorselPlan::new()
            .with_morsels(morsels.map(|inner| Box::new(CheckedMorsel { inner, context: context.clone() }) as _).collect())
            .with_planners(planners.map(|inner| planner(inner, &context)).collect());
        if let Some(pending) = plan.take_pending_planner() {
            checked.set_pending_planner(async move {
                match AssertUnwindSafe(pending).catch_unwind().await {
                    Ok(inner) => Ok(planner(inner.map_err(|e| context.explain(e))?, &context)),
                    Err(panic) => Err(context.panicked(panic.as_ref())),
                }
            });
        }
        Ok(Some(checked))
    }
}

#[derive(Debug)]
struct CheckedMorsel {
    inner: Box<dyn Morsel>,
    context: Context,
}

impl Morsel for CheckedMorsel {
    fn into_stream(self: Box<Self>) -> BoxStream<'static, Result<RecordBatch>> {
        let Self { inner, context } = *self;
        let batches = AssertUnwindSafe(inner.into_stream()).catch_unwind();
        let checked = batches.map(move |batch| match batch {
            Ok(batch) => batch.map_err(|e| context.explain(e)),
            Err(panic) => Err(context.panicked(panic.as_ref())),
        });
        checked.boxed()
    }
}
