//! The session under test as a database of sqllogictest.
//!
//! ```text
//! record ──► ${WORK_DIR} filled in ──► HARNESS …  ──► commands.rs
//!                                 └──► session.sql ──► rows as text, or `CODE: message`
//! ```
//!
//! A statement whose runs failed is an error with the first failed run's code and message, as the shell's exit status
//! has it; `HARNESS ROWS <statement>` shows its rows instead.

mod commands;
mod fixtures;
mod functions;
mod handlers;
mod host;
mod outside;
mod store;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion_incremental::Error;
use datafusion_sqllogictest::{DFColumnType, DFOutput, convert_batches, convert_schema_to_types};
use sqllogictest::DBOutput;
use tokio::sync::Mutex;

use host::{Answer, Host};
use store::FaultyStore;

/// What a failed record shows.
#[derive(Debug)]
pub struct HarnessError(pub String);

impl fmt::Display for HarnessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HarnessError {}

impl HarnessError {
    /// This crate's error wherever it is wrapped, else the text without a backtrace.
    pub fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        match Error::find(error) {
            Some(found) => Self(found.to_string()),
            None => Self(error.to_string()),
        }
    }

    fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl From<std::io::Error> for HarnessError {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

/// The outcome of one record.
pub type Outcome = Result<DFOutput, HarnessError>;

/// One test file's database; clones share it.
#[derive(Clone)]
pub struct Db {
    folder: PathBuf,
    state: Arc<Mutex<State>>,
}

struct State {
    host: Host,
    store: FaultyStore,
    /// Statements started with `HARNESS BACKGROUND`, by name.
    background: Vec<(String, tokio::task::JoinHandle<Outcome>)>,
}

impl Db {
    /// A session over `folder`, with the harness's handlers, functions and nothing else.
    pub async fn open(folder: &Path) -> Result<Self, HarnessError> {
        let store = FaultyStore::default();
        let host = Host::open(folder, &host::Settings::default(), &store).await?;
        Ok(Self { folder: folder.to_path_buf(), state: Arc::new(Mutex::new(State { host, store, background: Vec::new() })) })
    }

    /// Ends statements that are still in the background.
    pub async fn close(&self) {
        for (_, task) in self.state.lock().await.background.drain(..) {
            task.abort();
        }
    }

    fn fill_in(&self, sql: &str) -> String {
        sql.replace("${WORK_DIR}", &self.folder.display().to_string())
    }

    /// Scratch paths in results become `WORK_DIR`, so that results can be written down.
    fn hide_folder(&self, text: &str) -> String {
        let folder = self.folder.display().to_string();
        text.replace(&folder, "WORK_DIR").replace(folder.trim_start_matches('/'), "WORK_DIR")
    }

    fn hide(&self, outcome: Outcome) -> Outcome {
        match outcome {
            Ok(DBOutput::Rows { types, rows }) => {
                let rows = rows.into_iter().map(|row| row.iter().map(|cell| self.hide_folder(cell)).collect()).collect();
                Ok(DBOutput::Rows { types, rows })
            }
            Ok(other) => Ok(other),
            Err(error) => Err(HarnessError(self.hide_folder(&error.0))),
        }
    }
}

#[async_trait]
impl sqllogictest::AsyncDB for Db {
    type Error = HarnessError;
    type ColumnType = DFColumnType;

    async fn run(&mut self, sql: &str) -> Outcome {
        let sql = self.fill_in(sql);
        let outcome = match commands::parse(&sql) {
            Some(command) => command.run(self).await,
            None => {
                let host = self.state.lock().await.host.clone();
                query(&host, &sql, false).await
            }
        };
        self.hide(outcome)
    }

    async fn shutdown(&mut self) {}

    fn engine_name(&self) -> &str {
        "datafusion-incremental"
    }

    async fn sleep(duration: std::time::Duration) {
        tokio::time::sleep(duration).await;
    }
}

/// Runs `sql`; the last statement's rows are the answer. `rows`: also when runs failed.
async fn query(host: &Host, sql: &str, rows: bool) -> Outcome {
    let Answer { schema, batches, failed } = host.sql(sql).await?;
    if failed && !rows {
        return Err(HarnessError(first_failure(&batches)));
    }
    // The batches' own schema decides: a plan may promise nullability that its batches tighten.
    let schema = batches.first().map_or(schema, |batch| batch.schema());
    let types = convert_schema_to_types(schema.fields());
    if types.is_empty() {
        return Ok(DBOutput::StatementComplete(0));
    }
    let rows = convert_batches(&schema, batches, false).map_err(|e| HarnessError::new(e.to_string()))?;
    Ok(DBOutput::Rows { types, rows })
}

fn first_failure(batches: &[arrow::array::RecordBatch]) -> String {
    let cell = |batch: &arrow::array::RecordBatch, column: &str, row: usize| {
        let column = batch.column_by_name(column)?;
        if column.is_null(row) { None } else { arrow::util::display::array_value_to_string(column, row).ok() }
    };
    for batch in batches {
        for row in 0..batch.num_rows() {
            if let Some(code) = cell(batch, "error_code", row) {
                return format!("{code}: {}", cell(batch, "error_message", row).unwrap_or_default());
            }
        }
    }
    "the statement failed and no row names an error code".to_string()
}

/// Handlers and functions of the harness panic on purpose; their messages would drown the report.
pub fn silence_expected_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.to_string().contains("on purpose") {
            default(info);
        }
    }));
}
