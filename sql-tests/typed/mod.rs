//! What the tests share: a table whose handler returns its input, a model of what must be published, and builders.

mod arrays;
mod floats;
mod keys;
mod nested;
mod outputs;
mod schema;
mod shapes;
mod show;
mod text;
mod times;
mod values;

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow_schema::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::datasource::MemTable;
use datafusion::prelude::ParquetReadOptions;
use datafusion_incremental::context::{IncrementalOptions, IncrementalSession};
use datafusion_incremental::exec::equality::KeyHash;
use datafusion_incremental::handler::{Handler, HandlerCall, HandlerError, HandlerRegistry};
use datafusion_incremental::run::RefreshRequest;
use datafusion_incremental::spec::{RunSummary, normalize_type};
use datafusion_incremental::{Error, ErrorCode};
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;

use show::{key_of, row_of};

/// How the source gives its rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Form {
    /// One batch.
    Whole,
    /// One row per batch, empty batches between, three partitions.
    Scattered,
    /// A Parquet file.
    Parquet,
}

/// Who transforms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Via {
    /// `SELECT * FROM input`, which needs no check.
    Sql,
    /// A Rust handler that returns the rows in another order, in two batches.
    Rust,
}

pub const WAYS: [(Via, Form); 3] = [(Via::Sql, Form::Whole), (Via::Rust, Form::Scattered), (Via::Sql, Form::Parquet)];

/// Returns its input backwards.
#[derive(Debug)]
struct Backwards;

#[async_trait]
impl Handler for Backwards {
    fn version(&self) -> &str {
        "1"
    }

    fn output_schema(&self, input: &Schema) -> Result<SchemaRef, Error> {
        Ok(Arc::new(input.clone()))
    }

    async fn handle(&self, input: RecordBatch, _call: &HandlerCall) -> Result<Vec<RecordBatch>, HandlerError> {
        let rows: UInt32Array = (0..u32::try_from(input.num_rows())?).rev().collect();
        let back = take_record_batch(&input, &rows)?;
        let half = back.num_rows() / 2;
        Ok(vec![back.slice(0, half), back.slice(half, back.num_rows() - half)])
    }
}

/// A session with the source `s` and the table `t` over it.
pub struct Table {
    pub session: IncrementalSession,
    folder: tempfile::TempDir,
}

impl Table {
    pub async fn new(hash: KeyHash) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let handlers = HandlerRegistry::default();
        handlers.register("backwards", Arc::new(Backwards)).unwrap();
        let options = IncrementalOptions::default().with_root(folder.path().join("w").to_string_lossy()).with_handlers(handlers);
        let session = IncrementalSession::builder().with_options(options).with_key_hash(hash).build().await.unwrap();
        Self { session, folder }
    }

    /// Makes `batch` the source. False: Parquet cannot hold it in this form.
    pub async fn put(&self, batch: &RecordBatch, form: Form) -> bool {
        let context = self.session.context();
        context.deregister_table("s").unwrap();
        let schema = batch.schema();
        let partitions = match form {
            Form::Whole => vec![vec![batch.clone()]],
            Form::Scattered => {
                let mut partitions = vec![vec![], vec![], vec![]];
                for row in 0..batch.num_rows() {
                    partitions[row % 3].extend([batch.slice(row, 1), RecordBatch::new_empty(schema.clone())]);
                }
                partitions
            }
            Form::Parquet => {
                let Some(path) = self.write(batch) else { return false };
                context.register_parquet("s", &path, ParquetReadOptions::default()).await.unwrap();
                // Some dictionaries are written and cannot be read back.
                let read = context.table("s").await.unwrap().collect().await;
                if read.is_err() {
                    context.deregister_table("s").unwrap();
                }
                return read.is_ok();
            }
        };
        context.register_table("s", Arc::new(MemTable::try_new(schema, partitions).unwrap())).unwrap();
        true
    }

    fn write(&self, batch: &RecordBatch) -> Option<String> {
        let (file, path) = tempfile::Builder::new().suffix(".parquet").tempfile_in(self.folder.path()).unwrap().keep().unwrap();
        let write = |file: File| -> Result<(), ParquetError> {
            let mut writer = ArrowWriter::try_new(file, batch.schema(), None)?;
            writer.write(batch)?;
            writer.close().map(|_| ())
        };
        // Parquet's writer panics on dictionaries of views.
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| write(file))).unwrap_or(Err(ParquetError::General("panic".into()))) {
            Ok(()) => Some(path.to_string_lossy().into_owned()),
            Err(_) => {
                std::fs::remove_file(path).unwrap();
                None
            }
        }
    }

    pub async fn define(&self, via: Via, key: &[&str], track: &[&str]) -> Result<(), Error> {
        let table = self.session.table("t").source("s").key(key.iter().copied()).track(track.iter().copied());
        let table = match via {
            Via::Sql => table.sql("SELECT * FROM input"),
            Via::Rust => table.handler("backwards"),
        };
        table.create().await.map(|_| ())
    }

    pub async fn run(&self) -> Result<RunSummary, Error> {
        self.session.refresh("t", RefreshRequest::default()).await
    }

    pub async fn published(&self) -> RecordBatch {
        let rows = self.session.context().sql("SELECT * FROM t").await.unwrap();
        let schema: SchemaRef = Arc::new(rows.schema().as_arrow().clone());
        concat_batches(&schema, &rows.collect().await.unwrap()).unwrap()
    }
}

fn counts(run: &RunSummary) -> [u64; 5] {
    [run.rows_created, run.rows_updated, run.rows_deleted, run.rows_unchanged, run.handler_rows].map(Option::unwrap_or_default)
}

/// What must be published: key → row.
#[derive(Default, Clone)]
struct Model(BTreeMap<String, String>);

impl Model {
    /// Takes a snapshot over; `verdicts` has `C`, `U` or `=` for each row. The counts that the run must report.
    fn step(&mut self, batch: &RecordBatch, verdicts: &str, key: &[&str]) -> [u64; 5] {
        assert_eq!(verdicts.len(), batch.num_rows());
        let before = std::mem::take(&mut self.0);
        for (row, verdict) in verdicts.chars().enumerate() {
            let id = key_of(batch, row, key);
            let value = if verdict == '=' { before[&id].clone() } else { row_of(batch, row) };
            assert!(self.0.insert(id, value).is_none(), "the model has two rows of one key");
        }
        let count = |wanted: char| verdicts.chars().filter(|v| *v == wanted).count() as u64;
        let (created, updated, unchanged) = (count('C'), count('U'), count('='));
        [created, updated, before.len() as u64 - updated - unchanged, unchanged, created + updated]
    }

    fn check(&self, published: &RecordBatch, key: &[&str], label: &str) {
        let found: BTreeMap<String, String> =
            (0..published.num_rows()).map(|row| (key_of(published, row, key), row_of(published, row))).collect();
        assert_eq!(found.len(), published.num_rows(), "{label}: two published rows of one key");
        assert_eq!(found, self.0, "{label}: published rows");
    }
}

/// Runs the snapshots in every way; each has the verdicts of its rows. At the end the published rows, written to
/// Parquet and read back, must be equal to themselves.
pub async fn scenario(label: &str, key: &[&str], steps: &[(&RecordBatch, &str)]) {
    for (via, form) in WAYS {
        let label = format!("{label} ({via:?}, {form:?})");
        let table = Table::new(KeyHash::Xxh3).await;
        let mut model = Model::default();
        for (at, (batch, verdicts)) in steps.iter().enumerate() {
            if !table.put(batch, form).await {
                table.put(batch, Form::Whole).await;
            }
            if at == 0 {
                table.define(via, key, &["*"]).await.unwrap_or_else(|e| panic!("{label}: {e}"));
            }
            let run = table.run().await.unwrap_or_else(|e| panic!("{label}, step {at}: {e:?}"));
            assert_eq!(counts(&run), model.step(batch, verdicts, key), "{label}, step {at}: C U X = H");
            let published = table.published().await;
            model.check(&published, key, &format!("{label}, step {at}"));
            for field in published.schema().fields() {
                let declared = steps[0].0.schema().field_with_name(field.name()).unwrap().data_type().clone();
                assert_eq!(*field.data_type(), normalize_type(&declared), "{label}: type of {}", field.name());
            }
        }
        let published = table.published().await;
        assert!(table.put(&published, Form::Parquet).await, "{label}: published rows fit Parquet");
        let run = table.run().await.unwrap_or_else(|e| panic!("{label}, round trip: {e}"));
        assert_eq!(counts(&run), [0, 0, 0, published.num_rows() as u64, 0], "{label}: round trip");
    }
}

/// One value column `v` beside the key `id`.
pub async fn value_case(label: &str, old: arrow::array::ArrayRef, new: arrow::array::ArrayRef, verdicts: &str) {
    let (rows, created) = (old.len(), "C".repeat(old.len()));
    let first = arrays::batch(&[("id", arrays::ids(rows)), ("v", old)]);
    let second = arrays::batch(&[("id", arrays::ids(rows)), ("v", new)]);
    scenario(label, &["id"], &[(&first, &created), (&second, verdicts)]).await;
}

/// `bad` after `good` fails with `code`, names what it must, and changes nothing.
#[allow(clippy::too_many_arguments)] // a table of cases reads best with one value a column
pub async fn refused(label: &str, key: &[&str], good: &RecordBatch, bad: &RecordBatch, code: ErrorCode, needles: &[&str]) {
    for (via, form) in WAYS {
        let label = format!("{label} ({via:?}, {form:?})");
        let table = Table::new(KeyHash::Xxh3).await;
        if !table.put(good, form).await {
            table.put(good, Form::Whole).await;
        }
        table.define(via, key, &["*"]).await.unwrap_or_else(|e| panic!("{label}: {e}"));
        table.run().await.unwrap_or_else(|e| panic!("{label}: {e:?}"));
        let mut model = Model::default();
        model.step(good, &"C".repeat(good.num_rows()), key);
        if !table.put(bad, form).await {
            table.put(bad, Form::Whole).await;
        }
        let error = match table.run().await {
            Ok(run) => panic!("{label}: accepted with {:?}", counts(&run)),
            Err(error) => error,
        };
        assert_eq!(error.code(), code, "{label}: {error}");
        for needle in needles.iter().chain(&["\"t\"", "Remedy"]) {
            assert!(error.message().contains(needle), "{label}: {needle:?} is not in: {error}");
        }
        model.check(&table.published().await, key, &label);
        if !table.put(good, form).await {
            table.put(good, Form::Whole).await;
        }
        let run = table.run().await.unwrap_or_else(|e| panic!("{label}: {e:?}"));
        assert_eq!(counts(&run), [0, 0, 0, good.num_rows() as u64, 0], "{label}: advanced");
    }
}

/// A definition over `batch` is refused with `code`.
pub async fn refused_at_create(label: &str, key: &[&str], batch: &RecordBatch, code: ErrorCode, needles: &[&str]) {
    for via in [Via::Sql, Via::Rust] {
        let table = Table::new(KeyHash::Xxh3).await;
        table.put(batch, Form::Whole).await;
        let error = match table.define(via, key, &["*"]).await {
            Ok(()) => panic!("{label} ({via:?}): accepted; its run: {:?}", table.run().await),
            Err(error) => error,
        };
        assert_eq!(error.code(), code, "{label} ({via:?}): {error}");
        for needle in needles.iter().chain(&["\"t\"", "Remedy"]) {
            assert!(error.message().contains(needle), "{label} ({via:?}): {needle:?} is not in: {error}");
        }
    }
}
