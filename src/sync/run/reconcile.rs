//! Reconciling: the keys of the complete source against those of the table; what the source lacks is removed.
//!
//! Nothing but keys is read, and no row is added or changed: the next run from the cursor's mark does that. Never decided
//! from a part of the source. Memory: the diff's.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};

use super::capture::diff_spec;
use crate::error::{Error, ErrorCode, Result};
use crate::exec::equality::Fingerprinter;
use crate::exec::index_scan::IndexScanExec;
use crate::exec::keyed_diff::{DiffOutcome, FP_HI, FP_LO, KeyedDiffExec};
use crate::run::Attempt;

/// The plan that compares keys: it emits no row, and its outcome has the rows that are gone.
pub(super) fn plan(attempt: &Attempt, keys: Arc<dyn ExecutionPlan>) -> Result<(Arc<dyn ExecutionPlan>, Arc<DiffOutcome>)> {
    let base = attempt.base.as_ref().ok_or_else(|| Error::internal("keys are compared without a base"))?;
    let mut spec = diff_spec(attempt, false)?;
    spec.tracked.clear();
    spec.fingerprinter = Arc::new(Fingerprinter::try_new(attempt.definition().options.fingerprint, attempt.incarnation.secret(), &[])?);
    let index: Arc<dyn ExecutionPlan> = Arc::new(IndexScanExec::new(attempt.incarnation.clone(), Arc::clone(&base.files), &spec.key));
    let index = same_values(index, &spec.fingerprinter)?;
    let diff = Arc::new(KeyedDiffExec::try_new(Some(index), keys, spec)?);
    let outcome = diff.outcome();
    let nothing: Arc<dyn PhysicalExpr> = Arc::new(Literal::new(ScalarValue::Boolean(Some(false))));
    let plan = FilterExec::try_new(nothing, diff).map_err(|e| Error::from_datafusion(e, ErrorCode::Internal, "the plan of keys"))?;
    Ok((Arc::new(plan), outcome))
}

/// The index as if every row had the values that keys alone have, so that no row counts as changed.
fn same_values(index: Arc<dyn ExecutionPlan>, fingerprinter: &Fingerprinter) -> Result<Arc<dyn ExecutionPlan>> {
    let mut constant = vec![];
    fingerprinter.fingerprint_rows(&[], 1, &mut constant)?;
    let constant = constant.first().copied().unwrap_or_default();
    // Truncation to 64 bits is meant in both casts.
    let half = |name: &str| match name {
        FP_HI => Some((constant >> 64) as i64),
        FP_LO => Some(constant as i64),
        _ => None,
    };
    let schema = index.schema();
    let column = |(at, field): (usize, &Arc<arrow_schema::Field>)| {
        let expr: Arc<dyn PhysicalExpr> = match half(field.name()) {
            Some(value) => Arc::new(Literal::new(ScalarValue::Int64(Some(value)))),
            None => Arc::new(Column::new(field.name(), at)),
        };
        (expr, field.name().clone())
    };
    let columns: Vec<_> = schema.fields().iter().enumerate().map(column).collect();
    let plan = ProjectionExec::try_new(columns, index).map_err(|e| Error::from_datafusion(e, ErrorCode::Internal, "the plan of keys"))?;
    Ok(Arc::new(plan))
}
