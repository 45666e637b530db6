//! A revision's handler, found again and ready to run.

use std::sync::Arc;

use arrow_schema::Schema;
use datafusion::execution::SessionState;
use datafusion::physical_plan::ExecutionPlan;

use super::sql::SqlHandler;
use super::{Handler, HandlerRegistry};
use crate::error::{Error, ErrorCode, Result};
use crate::spec::{Definition, HandlerSpec, TypeDifference, check_same_types, normalize_schema};

/// The handler of one revision in this session. Cheap to clone.
#[derive(Debug, Clone)]
pub struct BoundHandler(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Sql(Arc<SqlHandler>),
    Registered(Arc<dyn Handler>),
}

impl BoundHandler {
    /// Finds the definition's handler: the registered one, or its query planned in the sandbox under the pinned
    /// session settings.
    ///
    /// # Errors
    /// `HANDLER_VERSION` when the registered handler, or a function that the query calls, is missing or of another
    /// version; `HANDLER_SCHEMA` when its output differs from the revision's; `HANDLER_REFUSED`.
    pub fn bind(table: &str, definition: &Definition, registry: &HandlerRegistry, state: &SessionState) -> Result<Self> {
        match &definition.handler {
            HandlerSpec::Sql { text } => Ok(Self(Kind::Sql(Arc::new(SqlHandler::bind(table, definition, text, state)?)))),
            HandlerSpec::Registered { name, version } => {
                let handler = registry.get(name).ok_or_else(|| missing(table, name, registry))?;
                if handler.version() != version {
                    return Err(Error::new(
                        ErrorCode::HandlerVersion,
                        format!(
                            "table {table:?}: the revision pins handler {name:?} at version {version:?}, registered is version {:?}. \
                             Remedy: register version {version:?}, or save a new revision (all rows are then rebuilt)",
                            handler.version()
                        ),
                    ));
                }
                let output = normalize_schema(&*handler.output_schema(&definition.input_schema)?);
                check_same_output(table, &definition.output_schema, &output)?;
                Ok(Self(Kind::Registered(handler)))
            }
            HandlerSpec::Synced => Err(Error::internal(format!("table {table:?} is a synced table and has no handler"))),
        }
    }

    /// Whether the plan shows that the contract holds, so that no row needs a check.
    pub fn proven(&self) -> bool {
        match &self.0 {
            Kind::Sql(handler) => handler.proven(),
            Kind::Registered(_) => false,
        }
    }

    /// Whether this is a query, so that [`BoundHandler::plan_over`] has a plan.
    pub fn is_sql(&self) -> bool {
        matches!(self.0, Kind::Sql(_))
    }

    /// The query's physical plan over `input` (its columns by name, in any encoding): exactly the revision's output
    /// columns, then the `hidden` columns of `input`. A proven query keeps partitions and their rows together.
    /// Errors from below `input` come out as they are, every other one is `HANDLER_FAILED`.
    ///
    /// # Errors
    /// `INTERNAL` for a registered handler, and for hidden columns under a query that is not proven.
    pub async fn plan_over(&self, input: Arc<dyn ExecutionPlan>, hidden: &[&str]) -> Result<Arc<dyn ExecutionPlan>> {
        match &self.0 {
            Kind::Sql(handler) if hidden.is_empty() || handler.proven() => handler.plan_over(input, hidden).await,
            Kind::Sql(_) => Err(Error::internal("hidden columns were asked of a handler that is not proven")),
            Kind::Registered(_) => Err(Error::internal("a registered handler has no plan")),
        }
    }

    /// The handler, to be called batch by batch.
    pub(crate) fn handler(&self) -> Arc<dyn Handler> {
        match &self.0 {
            Kind::Sql(handler) => Arc::clone(handler) as Arc<dyn Handler>,
            Kind::Registered(handler) => Arc::clone(handler),
        }
    }
}

fn missing(table: &str, name: &str, registry: &HandlerRegistry) -> Error {
    let known = registry.names();
    Error::new(
        ErrorCode::HandlerVersion,
        format!(
            "table {table:?}: no handler {name:?} is registered in this session (registered: {known:?}). Remedy: register it before the run"
        ),
    )
}

/// Every column that differs between the revision's output and another one.
fn output_differences(was: &Schema, now: &Schema) -> Vec<TypeDifference> {
    let added = now.fields().iter().filter(|field| was.field_with_name(field.name()).is_err());
    let names: Vec<String> = was.fields().iter().chain(added).map(|field| field.name().clone()).collect();
    check_same_types(was, now, &names)
}

/// # Errors
/// `HANDLER_SCHEMA` naming every column that differs.
pub(crate) fn check_same_output(table: &str, was: &Schema, now: &Schema) -> Result<()> {
    let differences: Vec<String> = output_differences(was, now).iter().map(ToString::to_string).collect();
    if differences.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::HandlerSchema,
        format!(
            "table {table:?}: the handler's output is not the revision's: {}. Remedy: return the declared columns and types, or save a new revision",
            differences.join("; ")
        ),
    ))
}
