//! The two plans of a run, composed from the operators.
//!
//! ```text
//! capture plan                         publish plan
//! SealExec                             PublishExec
//!  └ KeyedDiffExec                      └ MergeExec
//!     ├ IndexScanExec                      └ ContractExec └ HandlerExec   (or the proven query itself)
//!     └ source scan                           └ scan of the sealed change set (proven: the KeyedDiffExec)
//! ```

use std::sync::Arc;

use arrow_schema::DataType;
use datafusion::common::ScalarValue;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};

use crate::error::{Error, ErrorCode, Result};
use crate::exec::capture_scan::capture_scan;
use crate::exec::contract::ContractExec;
use crate::exec::handler::{CallSpec, HandlerExec};
use crate::exec::keyed_diff::{FP_HI, FP_LO, SRC, change_schema};
use crate::exec::merge::MergeExec;
use crate::exec::publish::{PublishExec, PublishSink};
use crate::exec::seal::{SealExec, SealSink};
use crate::exec::unique_key::UniqueKeyExec;
use crate::handler::{BoundHandler, HandlerCall};
use crate::spec::HandlerSpec;
use crate::store::ObjectRef;
use crate::store::files::{PairSpec, WriterConfig};

use super::attempt::Attempt;

const HIDDEN: [&str; 3] = [FP_HI, FP_LO, SRC];

/// Writes the changed rows and seals them.
pub(super) fn capture_plan(attempt: &Attempt, diff: Arc<dyn ExecutionPlan>, sink: Arc<dyn SealSink>) -> Result<Arc<dyn ExecutionPlan>> {
    let config = WriterConfig::from_options(&attempt.options)?;
    Ok(Arc::new(SealExec::new(diff, attempt.incarnation.clone(), attempt.capture_dir(), config, sink)))
}

/// Hands the sealed change set to the handler, checks, writes and publishes.
pub(super) async fn sealed_plan(
    attempt: &Attempt,
    handler: &BoundHandler,
    changes: &[ObjectRef],
    sink: Arc<dyn PublishSink>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let scan = capture_scan(&attempt.incarnation, changes, change_schema(attempt.definition()));
    let rows = handled(attempt, handler, scan).await?;
    publish_plan(attempt, rows, sink)
}

/// Diff, proven query and write in one pass.
pub(super) async fn one_pass_plan(
    attempt: &Attempt,
    handler: &BoundHandler,
    diff: Arc<dyn ExecutionPlan>,
    sink: Arc<dyn PublishSink>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let rows = handler.plan_over(diff, &HIDDEN).await?;
    publish_plan(attempt, rows, sink)
}

/// The output rows with their hidden columns, contract checked.
pub(super) async fn handled(attempt: &Attempt, handler: &BoundHandler, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let definition = attempt.definition();
    if !definition.incremental && matches!(definition.handler, HandlerSpec::Sql { .. }) {
        let rows = handler.plan_over(input, &[]).await?;
        let unique: Arc<dyn ExecutionPlan> = Arc::new(UniqueKeyExec::new(rows, definition.key.clone(), attempt.name().to_string()));
        return with_empty_hidden(unique);
    }
    if handler.proven() {
        return handler.plan_over(input, &HIDDEN).await;
    }
    let call = HandlerCall {
        table: attempt.name().to_string(),
        run: attempt.run.clone(),
        attempt: attempt.id.clone(),
        mode: attempt.mode,
        call: 0,
    };
    let spec = CallSpec {
        call,
        batch_rows: attempt.options.handler_batch_rows,
        concurrency: attempt.options.handler_concurrency,
        input_schema: Arc::clone(&definition.input_schema),
        output_schema: Arc::clone(&definition.output_schema),
        key: definition.key.clone(),
    };
    Ok(Arc::new(ContractExec::new(Arc::new(HandlerExec::new(input, handler.clone(), spec)))))
}

pub(super) fn publish_plan(attempt: &Attempt, rows: Arc<dyn ExecutionPlan>, sink: Arc<dyn PublishSink>) -> Result<Arc<dyn ExecutionPlan>> {
    Ok(Arc::new(PublishExec::new(written(attempt, rows)?, sink)))
}

/// Writes rows as files of the attempt; emits the list of them.
pub(super) fn written(attempt: &Attempt, rows: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let definition = attempt.definition();
    let pairs = PairSpec {
        incarnation: attempt.incarnation.clone(),
        dir: attempt.data_dir(),
        output_schema: Arc::clone(&definition.output_schema),
        key: definition.key.clone(),
        version: attempt.next_version(),
        config: WriterConfig::from_options(&attempt.options)?,
    };
    Ok(Arc::new(MergeExec::new(rows, Arc::new(pairs))))
}

/// Rows of a table that is recomputed whole are never diffed by value: their index holds no fingerprints.
pub(crate) fn with_empty_hidden(rows: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let mut columns: Vec<(Arc<dyn PhysicalExpr>, String)> = rows
        .schema()
        .fields()
        .iter()
        .enumerate()
        .map(|(i, field)| (Arc::new(Column::new(field.name(), i)) as Arc<dyn PhysicalExpr>, field.name().clone()))
        .collect();
    for (name, data_type) in [(FP_HI, DataType::Int64), (FP_LO, DataType::Int64), (SRC, DataType::Int32)] {
        let value = if data_type == DataType::Int64 { ScalarValue::Int64(Some(0)) } else { ScalarValue::Int32(Some(-1)) };
        columns.push((Arc::new(Literal::new(value)), name.to_string()));
    }
    let plan = ProjectionExec::try_new(columns, rows).map_err(|e| Error::from_datafusion(e, ErrorCode::Internal, "hidden columns"))?;
    Ok(Arc::new(plan))
}
