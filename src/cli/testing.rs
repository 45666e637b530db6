//! An engine for tests: it parses for real, and fails where the text says `fail`.

use std::sync::{Arc, Mutex};

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::config::SqlParserOptions;
use datafusion_incremental::error::{Error, ErrorCode, Result};
use datafusion_incremental::sql::{ParsedStatement, parse};

use crate::engine::{Engine, Outcome, Progress};
use crate::output::{Format, PrintOptions};

#[derive(Default)]
pub struct FakeEngine(Mutex<Vec<String>>);

impl FakeEngine {
    pub fn executed(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// A REFRESH of two tables, one of which failed.
    pub fn failing() -> Outcome {
        let codes: ArrayRef = Arc::new(StringArray::from(vec![None, Some("KEY_NULL")]));
        let messages: ArrayRef = Arc::new(StringArray::from(vec![None, Some("table \"a\": null key")]));
        let batch = RecordBatch::try_from_iter_with_nullable([("error_code", codes, true), ("error_message", messages, true)]).unwrap();
        Outcome { schema: batch.schema(), batches: vec![batch], failed: true }
    }
}

impl Engine for FakeEngine {
    fn parse(&self, sql: &str) -> Result<Vec<ParsedStatement>> {
        parse(sql, &SqlParserOptions::default())
    }

    async fn execute(&self, statement: ParsedStatement) -> Result<Outcome> {
        self.0.lock().unwrap().push(statement.text.clone());
        match statement.text.as_str() {
            "REFRESH failing" => Ok(Self::failing()),
            text if text.contains("fail") => Err(Error::new(ErrorCode::KeyNull, "m")),
            _ => Ok(Outcome { failed: false, ..Self::failing() }),
        }
    }

    fn tables(&self) -> Vec<String> {
        vec!["customers".into(), "My Table".into()]
    }

    fn progress(&self) -> Vec<Progress> {
        Vec::new()
    }
}

pub fn quiet() -> PrintOptions {
    PrintOptions { format: Format::NdJson, quiet: true, max_rows: None }
}
