//! The derived session of one capture: everything of the user's session but its caches.

use std::sync::Arc;

use datafusion::catalog::CatalogProviderList;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::cache::cache_manager::CacheManagerConfig;
use datafusion::execution::context::SessionState;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};

use crate::env::WholeStores;
use crate::error::{Error, ErrorCode, Result};

/// A state with the same catalogs, functions, factories, object stores, memory pool and disk as `state`, but without
/// an object-list cache and with empty caches for statistics and footers: nothing that an earlier query saw is trusted, nor a
/// body that is not whole.
///
/// # Errors
/// `RESOURCES_EXHAUSTED` when the runtime cannot be built.
pub fn capture_state(state: &SessionState) -> Result<SessionState> {
    with_catalogs(state, Arc::clone(state.catalog_list()))
}

/// [`capture_state`] over other catalogs.
pub(super) fn with_catalogs(state: &SessionState, catalogs: Arc<dyn CatalogProviderList>) -> Result<SessionState> {
    let runtime = fresh_runtime(state.runtime_env())?;
    let config = state.config().clone().with_create_default_catalog_and_schema(false);
    let mut derived = SessionStateBuilder::new_from_existing(state.clone())
        .with_runtime_env(runtime)
        .with_catalog_list(catalogs)
        // Else the builder would put a new, empty default catalog over the user's.
        .with_config(config)
        .build();
    // `now()` in a source view means the time of this capture, also when a host keeps one state for many runs.
    derived.mark_start_execution();
    Ok(derived)
}

fn fresh_runtime(runtime: &RuntimeEnv) -> Result<Arc<RuntimeEnv>> {
    let mut builder = RuntimeEnvBuilder::from_runtime_env(runtime);
    builder.object_store_registry = Arc::new(WholeStores(builder.object_store_registry));
    let limits = builder.cache_manager;
    builder.cache_manager = CacheManagerConfig {
        file_statistics_cache: None,
        list_files_cache: None,
        list_files_cache_limit: 0,
        file_metadata_cache: None,
        ..limits
    };
    builder.build_arc().map_err(|e| {
        let context = "the session of a capture cannot be built. Remedy: check the session's runtime settings";
        Error::from_datafusion(e, ErrorCode::ResourcesExhausted, context)
    })
}
