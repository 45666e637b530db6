//! Handlers by name.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use super::Handler;
use crate::error::{Error, ErrorCode, Result};

/// The Rust handlers of a session, by name. Cheap to clone; clones share their handlers.
#[derive(Debug, Clone, Default)]
pub struct HandlerRegistry(Arc<RwLock<BTreeMap<String, Arc<dyn Handler>>>>);

impl HandlerRegistry {
    /// Registers `handler`; one of the same name is replaced.
    ///
    /// # Errors
    /// `DEFINITION_INVALID` when the name or the handler's version is empty: revisions pin both.
    pub fn register(&self, name: impl Into<String>, handler: Arc<dyn Handler>) -> Result<()> {
        let name = name.into();
        if name.is_empty() || handler.version().is_empty() {
            return Err(Error::new(
                ErrorCode::DefinitionInvalid,
                format!(
                    "handler {name:?} has no name or no version. Remedy: give both; change the version whenever the handler's results change"
                ),
            ));
        }
        self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(name, handler);
        Ok(())
    }

    /// The handler of this name.
    pub fn get(&self, name: &str) -> Option<Arc<dyn Handler>> {
        self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner()).get(name).cloned()
    }

    /// All names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner()).keys().cloned().collect()
    }
}
