//! What the shell needs of a session; the one file of the shell that knows the library's session type.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion_incremental::context::IncrementalSession;
use datafusion_incremental::error::Result;
use datafusion_incremental::run::{Phase, Progress as Report};
use datafusion_incremental::sql::ParsedStatement;

/// The result of one statement.
pub struct Outcome {
    pub schema: SchemaRef,
    pub batches: Vec<RecordBatch>,
    /// A row of a REFRESH failed: the statement counts as failed, its rows are printed all the same.
    pub failed: bool,
}

/// Where a running refresh is.
pub struct Progress {
    pub table: String,
    pub phase: &'static str,
}

/// Parses and executes statements.
pub trait Engine {
    fn parse(&self, sql: &str) -> Result<Vec<ParsedStatement>>;
    async fn execute(&self, statement: ParsedStatement) -> Result<Outcome>;
    /// The tables that can be completed.
    fn tables(&self) -> Vec<String>;
    /// The refreshes that are running.
    fn progress(&self) -> Vec<Progress>;
}

/// The library's session, and what its runs last reported.
pub struct Session {
    session: IncrementalSession,
    reports: Reports,
}

#[derive(Clone, Default)]
struct Reports(Arc<Mutex<BTreeMap<String, Phase>>>);

impl Reports {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Phase>> {
        // A listener that panicked has at most lost one line of the screen.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, report: Report) {
        match report.phase {
            Phase::Done => self.lock().remove(&report.table),
            phase => self.lock().insert(report.table, phase),
        };
    }
}

impl Session {
    /// A session whose tables without a LOCATION live under `root`.
    pub async fn open(root: &Path, memory_limit: Option<usize>) -> Result<Self> {
        let reports = Reports::default();
        let listener = reports.clone();
        let mut builder =
            IncrementalSession::builder().with_root(root.to_string_lossy()).with_progress(Arc::new(move |report| listener.take(report)));
        if let Some(bytes) = memory_limit {
            builder = builder.with_memory_limit(bytes);
        }
        Ok(Self { session: builder.build().await?, reports })
    }

    /// The library's session.
    pub fn library(&self) -> &IncrementalSession {
        &self.session
    }

    /// What is wrong with the tables under the root that cannot be used.
    pub fn warnings(&self) -> Vec<String> {
        self.session.unavailable().iter().map(|(place, error)| format!("warning: the table at {place} is not available: {error}")).collect()
    }
}

impl Engine for Session {
    fn parse(&self, sql: &str) -> Result<Vec<ParsedStatement>> {
        self.session.parse(sql)
    }

    async fn execute(&self, statement: ParsedStatement) -> Result<Outcome> {
        // What a cancelled statement reported last is over.
        self.reports.lock().clear();
        let result = self.session.execute(statement).await?;
        Ok(Outcome { schema: result.schema, batches: result.batches, failed: result.failed })
    }

    fn tables(&self) -> Vec<String> {
        let context = self.session.context();
        let mut tables = Vec::new();
        for catalog in context.catalog_names().iter().filter_map(|name| context.catalog(name)) {
            for name in catalog.schema_names().iter().filter(|name| *name != "information_schema") {
                tables.extend(catalog.schema(name).into_iter().flat_map(|schema| schema.table_names()));
            }
        }
        tables
    }

    fn progress(&self) -> Vec<Progress> {
        let line = |(table, phase): (&String, &Phase)| Progress { table: table.clone(), phase: describe(phase) };
        self.reports.lock().iter().map(line).collect()
    }
}

fn describe(phase: &Phase) -> &'static str {
    match phase {
        Phase::Capture => "reading the source and comparing",
        Phase::Handle => "calling the handler and writing",
        Phase::Publish => "publishing",
        _ => "done",
    }
}
