//! The only part of the harness that builds a session: everything else goes through [`Host`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow_schema::SchemaRef;
use datafusion::prelude::SessionContext;
use datafusion_incremental::context::{IncrementalOptions, IncrementalSession};

use super::functions::Probes;
use super::handlers::{self, Gate};
use super::outside::Outside;
use super::store::FaultyStore;
use super::{HarnessError, functions};

/// How a session is built.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The version of every registered handler.
    pub handler_version: String,
    /// Whether the session may act; without leave it only reads.
    pub read_only: bool,
    /// The outside system of synced tables.
    pub outside: Outside,
}

impl Default for Settings {
    fn default() -> Self {
        Self { handler_version: "1".to_string(), read_only: false, outside: Outside::default() }
    }
}

/// A session with the harness's handlers and functions. Cheap to clone.
#[derive(Clone)]
pub struct Host {
    session: Arc<IncrementalSession>,
    /// Holds back the handler `gate`.
    pub gate: Arc<Gate>,
    /// What functions and tables of the harness counted.
    pub probes: Arc<Probes>,
    /// The outside system of synced tables.
    pub outside: Outside,
}

/// The last statement's rows, and whether a run of it failed.
pub struct Answer {
    pub schema: SchemaRef,
    pub batches: Vec<RecordBatch>,
    pub failed: bool,
}

impl Host {
    /// A new session over `<folder>/warehouse`; it finds there what an earlier one left.
    pub async fn open(folder: &Path, settings: &Settings, store: &FaultyStore) -> Result<Self, HarnessError> {
        let root: PathBuf = folder.join("warehouse");
        // A load notes how far it got after every second row, so that small tables show it.
        let options = IncrementalOptions::default().with_connector(Arc::new(settings.outside.clone())).with_load_segments(2);
        let builder = IncrementalSession::builder().with_options(options).with_root(root.display().to_string());
        let session = builder.build().await.map_err(|e| HarnessError::of(&e))?;
        if settings.read_only {
            session.sql("SET incremental.read_only = true").await.map_err(|e| HarnessError::of(&e))?;
        }
        let gate = Arc::new(Gate::default());
        let probes = Arc::new(Probes::default());
        for (name, handler) in handlers::all(&settings.handler_version, folder, &gate) {
            session.handlers().register(name, handler).map_err(|e| HarnessError::of(&e))?;
        }
        let url = url::Url::parse("faulty://store").map_err(|e| HarnessError::of(&e))?;
        session.context().register_object_store(&url, Arc::new(store.clone()));
        functions::register(session.context(), &probes);
        Ok(Self { session: Arc::new(session), gate, probes, outside: settings.outside.clone() })
    }

    /// DataFusion's session.
    pub fn context(&self) -> &SessionContext {
        self.session.context()
    }

    /// Runs every statement of `sql`.
    pub async fn sql(&self, sql: &str) -> Result<Answer, HarnessError> {
        let mut results = self.session.sql(sql).await.map_err(|e| HarnessError::of(&e))?;
        let failed = results.iter().any(|result| result.failed);
        let last = results.pop().ok_or_else(|| HarnessError("no statement".to_string()))?;
        Ok(Answer { schema: last.schema, batches: last.batches, failed })
    }
}
