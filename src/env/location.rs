//! Where a table's folder is: a store and a path in it.

use std::path::PathBuf;
use std::sync::Arc;

use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;

use super::DurableLocalStore;
use super::whole::WholeBodies;
use crate::error::{Error, ErrorCode, Result, plain_text};
use crate::redact::location_without_credentials;

/// A folder on an object store.
#[derive(Debug, Clone)]
pub struct Location {
    /// The store as DataFusion knows it; plans refer to it.
    pub store_url: ObjectStoreUrl,
    /// The store that reads and writes go through: durable on local disk.
    pub store: Arc<dyn ObjectStore>,
    /// The folder inside the store.
    pub root: Path,
}

impl Location {
    /// Resolves `location` (a URL, or a path of the local disk, absolute or relative to the working directory).
    /// Stores other than the local disk must be registered in `runtime`.
    ///
    /// # Errors
    /// `DEFINITION_INVALID` when the text is no location or its store is not registered.
    pub fn resolve(location: &str, runtime: &RuntimeEnv) -> Result<Self> {
        let invalid = |e: &dyn std::fmt::Display| {
            Error::new(
                ErrorCode::DefinitionInvalid,
                format!("location {location:?} cannot be used: {e}. Remedy: give a folder, or the URL of a registered object store"),
            )
        };
        if location.trim().is_empty() {
            return Err(invalid(&"it is empty"));
        }
        let location = location_without_credentials(location);
        let folder = if location.ends_with('/') { location } else { format!("{location}/") };
        let url = ListingTableUrl::parse(&folder).map_err(|e| invalid(&plain_text(&e)))?;
        let store_url = url.object_store();
        let store: Arc<dyn ObjectStore> = if url.scheme() == "file" {
            Arc::new(DurableLocalStore::new())
        } else {
            Arc::new(WholeBodies(runtime.object_store(&store_url).map_err(|e| invalid(&plain_text(&e)))?))
        };
        Ok(Self { store_url, store, root: url.prefix().clone() })
    }

    /// The location as a URL text, for SHOW and for records. It holds no credentials: the store has them.
    pub fn display(&self) -> String {
        format!("{}{}", self.store_url.as_str(), self.root)
    }

    /// The folder's path, when it is on the local disk.
    pub(crate) fn local_folder(&self) -> Option<PathBuf> {
        let is_local = self.store_url.as_str().starts_with("file:");
        is_local.then(|| LocalFileSystem::new().path_to_filesystem(&self.root).ok()).flatten()
    }
}
