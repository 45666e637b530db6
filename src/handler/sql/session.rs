//! The sandbox: a fresh session that holds `input`, the host's functions, and nothing else.
//!
//! ```text
//! host session ── functions, expression planners, memory pool, disk ──► sandbox
//!              ── semantic settings (pinned by the revision)        ──►
//!              ── tables, table functions, file formats, stores     ──✗
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use datafusion::common::TableReference;
use datafusion::common::{DataFusionError, exec_err};
use datafusion::execution::object_store::ObjectStoreRegistry;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement;
use futures::FutureExt;
use object_store::ObjectStore;
use url::Url;

use super::input::InputTable;
use crate::error::{Error, ErrorCode, Result};
use crate::handler::INPUT;

/// The settings that change the meaning of a query or the types of its output.
const PINNED: &[&str] = &[
    "datafusion.execution.enable_ansi_mode",
    "datafusion.execution.time_zone",
    "datafusion.sql_parser.default_null_ordering",
    "datafusion.sql_parser.dialect",
    "datafusion.sql_parser.enable_ident_normalization",
    "datafusion.sql_parser.map_string_types_to_utf8view",
    "datafusion.sql_parser.parse_float_as_decimal",
    "datafusion.sql_parser.support_varchar_with_length",
];

/// The host's values of the settings that a revision pins. A setting without a value is not in the map.
pub(super) fn pinned(state: &SessionState) -> BTreeMap<String, String> {
    let entries = state.config_options().entries();
    entries.into_iter().filter(|e| PINNED.contains(&e.key.as_str())).filter_map(|e| e.value.map(|value| (e.key, value))).collect()
}

/// A session of the host's functions under the pinned settings, in which only `input` exists.
///
/// # Errors
/// `DEFINITION_INVALID` when a pinned setting is not known to this version.
pub(super) fn sandbox(table: &str, state: &SessionState, pins: &BTreeMap<String, String>, input: SchemaRef) -> Result<SessionState> {
    let failed =
        |what: &str, e: DataFusionError| Error::from_datafusion(e, ErrorCode::DefinitionInvalid, format!("table {table:?}: {what}"));
    let mut config = state.config().clone().with_information_schema(false).with_create_default_catalog_and_schema(true);
    let options = config.options_mut();
    options.catalog = Default::default();
    options.execution.time_zone = None;
    for (name, value) in pins {
        options.set(name, value).map_err(|e| failed(&format!("the pinned setting {name} cannot be restored"), e))?;
    }
    let runtime = RuntimeEnvBuilder::from_runtime_env(state.runtime_env())
        .with_object_store_registry(Arc::new(NoStores))
        .build_arc()
        .map_err(|e| failed("the sandbox cannot be built", e))?;
    let mut sandbox = SessionStateBuilder::new()
        .with_config(config)
        .with_runtime_env(runtime)
        .with_expr_planners(state.expr_planners().to_vec())
        .with_scalar_functions(state.scalar_functions().values().cloned().collect())
        .with_higher_order_functions(state.higher_order_functions().values().cloned().collect())
        .with_aggregate_functions(state.aggregate_functions().values().cloned().collect())
        .with_window_functions(state.window_functions().values().cloned().collect())
        .build();
    // Stable functions such as now() have one value for everything this session plans.
    sandbox.mark_start_execution();
    sandbox
        .schema_for_ref(TableReference::bare(INPUT))
        .and_then(|schema| schema.register_table(INPUT.to_string(), Arc::new(InputTable::of_schema(input))))
        .map_err(|e| failed("the sandbox cannot be built", e))?;
    Ok(sandbox)
}

/// The raw plan: neither analysed nor optimised.
pub(super) fn raw_plan(sandbox: &SessionState, statement: Statement) -> datafusion::error::Result<LogicalPlan> {
    // Resolving names is the only asynchronous step, and the sandbox's catalog lives in memory.
    match sandbox.statement_to_plan(statement).now_or_never() {
        Some(plan) => plan,
        None => exec_err!("the sandbox waited for a table"),
    }
}

/// A registry without any store, not even the local disk.
#[derive(Debug)]
struct NoStores;

impl ObjectStoreRegistry for NoStores {
    fn register_store(&self, _url: &Url, _store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        None
    }

    fn get_store(&self, url: &Url) -> datafusion::error::Result<Arc<dyn ObjectStore>> {
        exec_err!("a handler cannot open {url}: it reads only the relation input")
    }
}
