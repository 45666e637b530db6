//! Runs statements one after another and prints what they return.

use std::future::Future;
use std::io::{self, IsTerminal};
use std::path::Path;

use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion_incremental::env::{Clock, SystemClock};
use datafusion_incremental::error::{Error, ErrorCode, Result};
use tokio::time::MissedTickBehavior;

use crate::engine::{Engine, Outcome};
use crate::output::{self, PrintOptions};
use crate::progress::{Bars, TICK};

/// A session and how its results are printed.
pub struct Shell<E> {
    pub engine: E,
    pub options: PrintOptions,
    clock: SystemClock,
}

impl<E: Engine> Shell<E> {
    pub fn new(engine: E, options: PrintOptions) -> Self {
        Self { engine, options, clock: SystemClock::default() }
    }

    /// Runs a file; whether every statement succeeded.
    pub async fn run_file(&mut self, file: &Path) -> Result<bool> {
        let text = std::fs::read_to_string(file).map_err(|e| {
            Error::new(
                ErrorCode::StatementInvalid,
                format!("file {}: {e}. Remedy: give the path of a UTF-8 text with SQL statements", file.display()),
            )
        })?;
        // The first line may name an interpreter.
        let text = if text.starts_with("#!") { text.split_once('\n').map_or("", |(_, after)| after) } else { &text };
        Ok(self.run(text).await)
    }

    /// Runs the statements up to the first that fails; whether every one succeeded.
    pub async fn run(&mut self, sql: &str) -> bool {
        let statements = match self.engine.parse(sql) {
            Ok(statements) => statements,
            Err(error) => return report(&error),
        };
        for statement in statements {
            let start = self.clock.elapsed();
            let outcome = match self.watch(self.engine.execute(statement)).await {
                Ok(outcome) => outcome,
                Err(error) => return report(&error),
            };
            let printed = output::print(&outcome, self.clock.elapsed().saturating_sub(start), &self.options);
            match printed {
                // Whoever read the output has seen enough.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return false,
                Err(error) => {
                    return report(&Error::new(
                        ErrorCode::StatementInvalid,
                        format!("the result cannot be printed: {error}. Remedy: choose another --format"),
                    ));
                }
                Ok(()) => {}
            }
            if outcome.failed {
                failures(&outcome).iter().for_each(|line| eprintln!("{line}"));
                return false;
            }
        }
        true
    }

    /// Waits for a statement. Ctrl-C drops it, which cancels all its work; progress is shown meanwhile.
    async fn watch(&self, statement: impl Future<Output = Result<Outcome>>) -> Result<Outcome> {
        let visible = !self.options.quiet && io::stderr().is_terminal();
        let mut bars = Bars::new();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::pin!(statement);
        let result = loop {
            tokio::select! {
                result = &mut statement => break result,
                Ok(()) = tokio::signal::ctrl_c() => {
                    let what = "the statement was cancelled by Ctrl-C. Remedy: run it again; what was published before stays";
                    break Err(Error::new(ErrorCode::Cancelled, what));
                }
                _ = ticks.tick(), if visible => bars.show(&self.engine.progress()),
            }
        };
        bars.clear();
        result
    }
}

/// Prints an error as `CODE: message`.
fn report(error: &Error) -> bool {
    eprintln!("{error}");
    false
}

/// `CODE: message` of each row that failed, from the columns of a run's summary.
fn failures(outcome: &Outcome) -> Vec<String> {
    outcome.batches.iter().flat_map(batch_failures).collect()
}

fn batch_failures(batch: &RecordBatch) -> Vec<String> {
    let texts = |name: &str| batch.column_by_name(name).and_then(|column| column.as_string_opt::<i32>().cloned());
    let (Some(codes), Some(messages)) = (texts("error_code"), texts("error_message")) else { return Vec::new() };
    let rows = (0..batch.num_rows()).filter(|row| codes.is_valid(*row));
    rows.map(|row| format!("{}: {}", codes.value(row), if messages.is_valid(row) { messages.value(row) } else { "" })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeEngine, quiet};

    async fn run(sql: &str) -> (bool, Vec<String>) {
        let mut shell = Shell::new(FakeEngine::default(), quiet());
        let succeeded = shell.run(sql).await;
        (succeeded, shell.engine.executed())
    }

    #[tokio::test]
    async fn a_script_stops_at_the_first_failing_statement() {
        assert_eq!(run("SELECT 1; SELECT 2").await, (true, vec!["SELECT 1".into(), "SELECT 2".into()]));
        assert_eq!(run("SELECT 1; SELECT fail; SELECT 2").await, (false, vec!["SELECT 1".into(), "SELECT fail".into()]));
        assert_eq!(run("REFRESH failing; SELECT 2").await, (false, vec!["REFRESH failing".into()]));
        assert_eq!(run("SELECT 1; SELEC 2").await, (false, vec![]));
        assert_eq!(run(" -- nothing").await, (true, vec![]));
    }

    #[tokio::test]
    async fn a_file_may_name_an_interpreter() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.sql");
        std::fs::write(&file, "#!/usr/bin/env incremental-cli -f\nSELECT 1;").unwrap();
        let mut shell = Shell::new(FakeEngine::default(), quiet());
        assert!(shell.run_file(&file).await.unwrap());
        assert_eq!(shell.engine.executed(), ["SELECT 1"]);
        assert!(shell.run_file(&folder.path().join("none.sql")).await.is_err());
    }

    #[tokio::test]
    async fn failing_rows_are_reported_with_their_codes() {
        assert_eq!(failures(&FakeEngine::failing()), ["KEY_NULL: table \"a\": null key"]);
    }
}
