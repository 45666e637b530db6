//! Catalogs that lay tables over the session's own, so that a capture can see its refreshed or revived tables without
//! registering anything in the user's session.
//!
//! ```text
//! lookup(c, s, t) = overlay table, else the session's table
//! register        = overlay only
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, CatalogProviderList, SchemaProvider, TableProvider};
use datafusion::common::TableReference;
use datafusion::error::Result;
use datafusion::execution::context::SessionState;

/// Catalog, schema, table.
pub(super) type TableName = [String; 3];

type Tables = BTreeMap<TableName, Arc<dyn TableProvider>>;

/// The name with `state`'s default catalog and schema filled in.
pub(super) fn full_name(state: &SessionState, name: impl Into<TableReference>) -> TableName {
    let defaults = &state.config_options().catalog;
    let resolved = name.into().resolve(&defaults.default_catalog, &defaults.default_schema);
    [resolved.catalog.to_string(), resolved.schema.to_string(), resolved.table.to_string()]
}

/// A name as people write it.
pub(super) fn display(name: &TableName) -> String {
    name.join(".")
}

/// The table of that name, if there is one.
pub(super) async fn find(catalogs: &dyn CatalogProviderList, name: &TableName) -> Result<Option<Arc<dyn TableProvider>>> {
    let [catalog, schema, table] = name;
    match catalogs.catalog(catalog).and_then(|c| c.schema(schema)) {
        Some(schema) => schema.table(table).await,
        None => Ok(None),
    }
}

/// The session's catalogs with tables laid over them. Cheap to clone; clones share their tables.
#[derive(Debug, Clone)]
pub(super) struct Overlay {
    base: Arc<dyn CatalogProviderList>,
    tables: Arc<Mutex<Tables>>,
    /// Columns that the files behind the tables do not agree on.
    disagreements: Arc<Mutex<Vec<String>>>,
}

impl Overlay {
    pub(super) fn over(base: &Arc<dyn CatalogProviderList>) -> Self {
        Self { base: Arc::clone(base), tables: Arc::default(), disagreements: Arc::default() }
    }

    /// The catalogs below.
    pub(super) fn base(&self) -> &dyn CatalogProviderList {
        self.base.as_ref()
    }

    pub(super) fn insert(&self, name: TableName, table: Arc<dyn TableProvider>) {
        self.lock().insert(name, table);
    }

    pub(super) fn get(&self, name: &TableName) -> Option<Arc<dyn TableProvider>> {
        self.lock().get(name).cloned()
    }

    /// Notes columns whose types differ between files of one table.
    pub(super) fn disagree(&self, columns: Vec<String>) {
        self.disagreements.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).extend(columns);
    }

    /// All columns that were noted.
    pub(super) fn disagreements(&self) -> Vec<String> {
        self.disagreements.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        // A panic while the map was held cannot leave it half changed.
        self.tables.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn names(&self) -> Vec<TableName> {
        self.lock().keys().cloned().collect()
    }
}

impl CatalogProviderList for Overlay {
    fn register_catalog(&self, _name: String, _catalog: Arc<dyn CatalogProvider>) -> Option<Arc<dyn CatalogProvider>> {
        None // nothing may reach the user's session
    }

    fn catalog_names(&self) -> Vec<String> {
        let own = self.names().into_iter().map(|[catalog, _, _]| catalog);
        own.chain(self.base.catalog_names()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn catalog(&self, name: &str) -> Option<Arc<dyn CatalogProvider>> {
        let base = self.base.catalog(name);
        let known = base.is_some() || self.names().iter().any(|[catalog, _, _]| catalog == name);
        known.then(|| Arc::new(OverlayCatalog { overlay: self.clone(), name: name.to_string(), base }) as _)
    }
}

#[derive(Debug)]
struct OverlayCatalog {
    overlay: Overlay,
    name: String,
    base: Option<Arc<dyn CatalogProvider>>,
}

impl CatalogProvider for OverlayCatalog {
    fn schema_names(&self) -> Vec<String> {
        let own = self.overlay.names().into_iter().filter(|[c, _, _]| *c == self.name).map(|[_, schema, _]| schema);
        let base = self.base.iter().flat_map(|b| b.schema_names());
        own.chain(base).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        let base = self.base.as_ref().and_then(|b| b.schema(name));
        let known = base.is_some() || self.overlay.names().iter().any(|[c, s, _]| *c == self.name && s == name);
        let path = [self.name.clone(), name.to_string()];
        known.then(|| Arc::new(OverlaySchema { overlay: self.overlay.clone(), path, base }) as _)
    }
}

#[derive(Debug)]
struct OverlaySchema {
    overlay: Overlay,
    path: [String; 2],
    base: Option<Arc<dyn SchemaProvider>>,
}

impl OverlaySchema {
    fn full(&self, table: &str) -> TableName {
        let [catalog, schema] = self.path.clone();
        [catalog, schema, table.to_string()]
    }
}

#[async_trait]
impl SchemaProvider for OverlaySchema {
    fn table_names(&self) -> Vec<String> {
        let [catalog, schema] = &self.path;
        let own = self.overlay.names().into_iter().filter(|[c, s, _]| c == catalog && s == schema).map(|[_, _, table]| table);
        let base = self.base.iter().flat_map(|b| b.table_names());
        own.chain(base).collect::<BTreeSet<_>>().into_iter().collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        match (self.overlay.get(&self.full(name)), &self.base) {
            (Some(table), _) => Ok(Some(table)),
            (None, Some(base)) => base.table(name).await,
            (None, None) => Ok(None),
        }
    }

    fn register_table(&self, name: String, table: Arc<dyn TableProvider>) -> Result<Option<Arc<dyn TableProvider>>> {
        Ok(self.overlay.lock().insert(self.full(&name), table))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.overlay.get(&self.full(name)).is_some() || self.base.as_ref().is_some_and(|b| b.table_exist(name))
    }
}
