//! Every verb as a table function: `SELECT * FROM incremental_<verb>(…)`.
//!
//! ```text
//! incremental_at, _at_timestamp, _output, _test   a table: the provider itself
//! every other verb                                one node that reads, or acts, when its stream is first polled
//! ```
//!
//! Nothing acts in planning: EXPLAIN, PREPARE, DESCRIBE and CREATE VIEW run no verb. The optimizer may drop a function
//! (`LIMIT 0`, `WHERE false`); naming it twice runs it twice. Planning looks a table up, in which DataFusion's planner cannot
//! be suspended: its thread waits, a minute at most. A runtime of one thread stands still meanwhile; CALL does not.

mod action;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::ScalarValue;
use datafusion::error::Result as DfResult;
use datafusion::execution::SessionState;
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use futures::future::{Either, select};

use crate::error::{Error, ErrorCode, Result};

pub use action::ActionProvider;

use super::execute::{self, Outcome};
use super::extension::Extension;
use super::verbs::{Family, VerbSpec, bind_arguments};

/// The table function of one verb.
#[derive(Debug)]
pub struct VerbFunction(pub &'static VerbSpec);

impl VerbFunction {
    /// The functions of all verbs under the names that SQL may use: DataFusion does not fold their case.
    pub fn all() -> impl Iterator<Item = (String, Arc<dyn TableFunctionImpl>)> {
        Family::ALL.into_iter().flat_map(Family::verbs).flat_map(|verb| {
            let name = verb.function();
            let function: Arc<dyn TableFunctionImpl> = Arc::new(VerbFunction(verb));
            [(name.to_ascii_uppercase(), Arc::clone(&function)), (name, function)]
        })
    }
}

impl TableFunctionImpl for VerbFunction {
    fn call_with_args(&self, args: TableFunctionArgs) -> DfResult<Arc<dyn TableProvider>> {
        let values = args.exprs().iter().map(|expr| literal(self.0, expr)).collect::<Result<Vec<ScalarValue>>>()?;
        let bound = bind_arguments(self.0, values, vec![])?;
        let state = session_state(args.session())?;
        let verb = self.0;
        let clock = Extension::of(&state)?.host(&state).env.clock;
        let outcome = on_helper_thread(async move {
            let planned = pin!(execute::prepare_verb(&state, verb, bound));
            match select(planned, clock.sleep(PATIENCE)).await {
                Either::Left((outcome, _)) => outcome,
                Either::Right(_) => Err(too_late(verb)),
            }
        })?;
        Ok(match outcome {
            Outcome::Table(provider) => provider,
            Outcome::Action(action) => Arc::new(ActionProvider::new(verb, action)),
        })
    }
}

/// Only the projected columns of `plan`, by index.
pub(crate) fn project(plan: Arc<dyn ExecutionPlan>, projection: Option<&Vec<usize>>) -> DfResult<Arc<dyn ExecutionPlan>> {
    let Some(projection) = projection else { return Ok(plan) };
    let schema = plan.schema();
    let columns = projection.iter().filter_map(|index| schema.fields().get(*index).map(|field| (*index, field)));
    let columns: Vec<(Arc<dyn PhysicalExpr>, String)> =
        columns.map(|(i, f)| (Arc::new(Column::new(f.name(), i)) as Arc<dyn PhysicalExpr>, f.name().clone())).collect();
    Ok(Arc::new(ProjectionExec::try_new(columns, plan)?))
}

/// DataFusion's own session; a foreign one (FFI) cannot plan for us.
pub(crate) fn session_state(session: &dyn datafusion::catalog::Session) -> Result<SessionState> {
    session.as_any().downcast_ref::<SessionState>().cloned().ok_or_else(|| {
        Error::new(
            ErrorCode::StatementInvalid,
            "this session is not DataFusion's own. Remedy: call the verb in the session that holds the table",
        )
    })
}

fn literal(verb: &VerbSpec, expr: &Expr) -> Result<ScalarValue> {
    match expr {
        Expr::Literal(value, _) => Ok(value.clone()),
        Expr::Negative(inner) => match inner.as_ref() {
            Expr::Literal(value, _) => {
                value.arithmetic_negate().map_err(|e| Error::from_datafusion(e, ErrorCode::StatementInvalid, "a negative argument"))
            }
            other => Err(not_literal(verb, other)),
        },
        Expr::Cast(cast) => match cast.expr.as_ref() {
            Expr::Literal(value, _) => value
                .cast_to(cast.field.data_type())
                .map_err(|e| Error::from_datafusion(e, ErrorCode::StatementInvalid, format!("an argument of {}", verb.function()))),
            other => Err(not_literal(verb, other)),
        },
        other => Err(not_literal(verb, other)),
    }
}

fn not_literal(verb: &VerbSpec, expr: &Expr) -> Error {
    let what = if matches!(expr, Expr::Placeholder(_)) { "a placeholder" } else { "an expression" };
    Error::new(
        ErrorCode::StatementInvalid,
        format!("{}: {what} ({expr}) cannot be an argument. Remedy: write literals; the form is {}", verb.function(), verb.signature()),
    )
}

/// How long planning waits for a store that does not answer: the planner's thread waits too, so that nobody can cancel it.
const PATIENCE: Duration = Duration::from_secs(60);

fn too_late(verb: &VerbSpec) -> Error {
    Error::new(
        ErrorCode::StoreFailed,
        format!(
            "{}: the store did not answer within {} s while the function was planned. Remedy: try again, or use CALL {}.{}, \
             which can be cancelled",
            verb.function(),
            PATIENCE.as_secs(),
            verb.family.as_str(),
            verb.name
        ),
    )
}

/// Runs `work` to its end on a thread of its own: table functions are called in the synchronous planner, which may
/// itself run inside a runtime.
fn on_helper_thread<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    let thread = std::thread::Builder::new().name("incremental-plan".into()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Error::new(ErrorCode::ResourcesExhausted, format!("no runtime: {e}. Remedy: free resources")))?;
        runtime.block_on(work)
    });
    let thread = thread.map_err(|e| Error::new(ErrorCode::ResourcesExhausted, format!("no thread: {e}. Remedy: free resources")))?;
    thread.join().map_err(|_| Error::internal("planning a table function panicked"))?
}
