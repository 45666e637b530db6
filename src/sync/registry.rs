//! The connector types that a session knows.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::connector::{ConnectionSettings, Connector, ConnectorFactory};
use super::secret;
use crate::error::{Error, ErrorCode, Result};
use crate::store::ConnectionEntry;
use datafusion::execution::SessionState;

/// Connector types by name. Cheap to clone.
#[derive(Clone, Default)]
pub struct ConnectorRegistry {
    factories: BTreeMap<&'static str, Arc<dyn ConnectorFactory>>,
}

impl fmt::Debug for ConnectorRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.factories.keys()).finish()
    }
}

impl ConnectorRegistry {
    /// The types that this build brings.
    pub fn built_in() -> Self {
        let registry = Self::default();
        #[cfg(feature = "postgres")]
        let registry = registry.with(Arc::new(super::postgres::PostgresFactory));
        registry
    }

    /// The same types and one more; it replaces one of the same name.
    pub fn with(mut self, factory: Arc<dyn ConnectorFactory>) -> Self {
        self.factories.insert(factory.kind(), factory);
        self
    }

    fn factory(&self, kind: &str) -> Result<&Arc<dyn ConnectorFactory>> {
        self.factories.get(kind).ok_or_else(|| {
            let known = self.factories.keys().copied().collect::<Vec<_>>().join(", ");
            let remedy = match known.is_empty() {
                true => "build with a connector's feature, or register one with the session".to_string(),
                false => format!("this build has {known}"),
            };
            Error::new(ErrorCode::ConfigInvalid, format!("connection type {kind:?} is not known. Remedy: {remedy}"))
        })
    }

    /// Checks type and options of a connection that is to be stored: no unknown option, none missing, no secret in the clear.
    ///
    /// # Errors
    /// `CONFIG_INVALID`, `SECRET_MISSING` for a secret that is written where a reference belongs; its value is not shown.
    pub fn check(&self, entry: &ConnectionEntry) -> Result<()> {
        let options = self.factory(&entry.kind)?.options();
        let refuse = |option: &str, what: &str, remedy: &str| {
            Error::new(ErrorCode::ConfigInvalid, format!("connection {:?}: option {option:?} {what}. Remedy: {remedy}", entry.name))
        };
        for (name, value) in &entry.options {
            let Some(known) = options.iter().find(|option| option.name == name) else {
                let names: Vec<&str> = options.iter().map(|option| option.name).collect();
                let near = names.iter().min_by_key(|known| strsim::damerau_levenshtein(known, name)).copied().unwrap_or_default();
                return Err(refuse(name, "does not exist", &format!("the nearest is {near:?}; all are {}", names.join(", "))));
            };
            if known.is_secret && !secret::is_reference(value) {
                return Err(Error::new(
                    ErrorCode::SecretMissing,
                    format!(
                        "connection {:?}: option {name:?} may hold a secret, and secrets are not stored. Remedy: put the value where only this \
                         process reads it and write {name} = 'env:NAME' or 'file:PATH'",
                        entry.name
                    ),
                ));
            }
        }
        if let Some(missing) = options.iter().find(|option| option.is_required && !entry.options.contains_key(option.name)) {
            return Err(refuse(missing.name, "is missing", &format!("give it: {}", missing.doc)));
        }
        self.factory(&entry.kind)?.check(&entry.name, &entry.options)
    }

    /// A connector of a stored connection, with its secrets resolved.
    pub(super) async fn open(&self, entry: &ConnectionEntry, state: &SessionState) -> Result<Arc<dyn Connector>> {
        let factory = self.factory(&entry.kind)?;
        let mut options = BTreeMap::new();
        for (name, value) in &entry.options {
            let is_secret = factory.options().iter().any(|option| option.name == name && option.is_secret);
            let value = if is_secret { secret::resolve(&entry.name, name, value).await? } else { value.clone() };
            options.insert(name.clone(), value);
        }
        factory.open(ConnectionSettings { name: entry.name.clone(), options, state: state.clone() }).await
    }
}
