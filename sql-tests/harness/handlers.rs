//! Rust handlers of the test host: one that is right, and one for every way to be wrong.
//!
//! All read `input (id, v)` and declare `(id, o)` with the types of `id` and `v`. The wrong ones go wrong for the rows
//! whose `v` is `bad` and are right for all others, so that a file can show one good run and one bad run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, StringArray};
use arrow::compute::{cast, concat, concat_batches, filter_record_batch, not, take_record_batch};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion_incremental::handler::{Handler, HandlerCall, HandlerError, Value, closure_handler, row_handler};
use tokio::sync::watch;

/// Holds back the handler `gate` until a test file opens it.
#[derive(Debug)]
pub struct Gate {
    open: watch::Sender<bool>,
    calls: watch::Sender<u64>,
}

impl Default for Gate {
    fn default() -> Self {
        Self { open: watch::Sender::new(false), calls: watch::Sender::new(0) }
    }
}

impl Gate {
    /// Lets waiting and later calls go on.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// Holds later calls back.
    pub fn shut(&self) {
        self.open.send_replace(false);
        self.calls.send_replace(0);
    }

    /// Waits until the handler was called.
    pub async fn entered(&self) -> Result<(), String> {
        let mut calls = self.calls.subscribe();
        match tokio::time::timeout(Duration::from_secs(60), calls.wait_for(|calls| *calls > 0)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err("the handler gate was not called within 60 s".to_string()),
        }
    }

    async fn pass(&self) -> Result<(), String> {
        self.calls.send_modify(|calls| *calls += 1);
        let mut open = self.open.subscribe();
        match tokio::time::timeout(Duration::from_secs(60), open.wait_for(|open| *open)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err("the gate stayed shut for 60 s".to_string()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Upper,
    Fails,
    FailsWhileFlagged,
    Panics,
    Drops,
    Duplicates,
    Alters,
    Adds(i64),
    NullKey,
    NoKey,
    TextKey,
    WrongType,
    Renames,
    AddsColumn,
    Shuffled,
    Gated,
    Sleeps,
    TellsRun,
    Nothing,
}

/// Every handler by name.
const KINDS: &[(&str, Kind)] = &[
    ("upper", Kind::Upper),
    ("fails", Kind::Fails),
    ("fails_while_flagged", Kind::FailsWhileFlagged),
    ("panics", Kind::Panics),
    ("drops", Kind::Drops),
    ("duplicates", Kind::Duplicates),
    ("alters", Kind::Alters),
    ("adds_unknown", Kind::Adds(9999)),
    ("adds_unchanged", Kind::Adds(738)),
    ("null_key", Kind::NullKey),
    ("no_key", Kind::NoKey),
    ("text_key", Kind::TextKey),
    ("wrong_type", Kind::WrongType),
    ("renames", Kind::Renames),
    ("adds_column", Kind::AddsColumn),
    ("shuffled", Kind::Shuffled),
    ("gate", Kind::Gated),
    ("sleeps", Kind::Sleeps),
    ("tells_run", Kind::TellsRun),
    ("nothing", Kind::Nothing),
];

/// The handlers, all of `version`. `fails_while_flagged` fails while the file `FAIL` is in `folder`.
pub fn all(version: &str, folder: &Path, gate: &Arc<Gate>) -> BTreeMap<&'static str, Arc<dyn Handler>> {
    let mut handlers: BTreeMap<&'static str, Arc<dyn Handler>> = KINDS
        .iter()
        .map(|(name, kind)| {
            let handler = Subject { kind: *kind, version: version.to_string(), flag: folder.join("FAIL"), gate: Arc::clone(gate) };
            (*name, Arc::new(handler) as Arc<dyn Handler>)
        })
        .collect();
    handlers.insert("rows", integers(version, DataType::Int64));
    handlers.insert("narrow", integers(version, DataType::Int32));
    handlers.insert("closure", closure(version));
    handlers
}

/// Row by row: `v` as an integer of type `o`; what does not fit is an error.
fn integers(version: &str, o: DataType) -> Arc<dyn Handler> {
    let schema = Schema::new(vec![Field::new("id", DataType::Int64, false), Field::new("o", o, true)]);
    row_handler(version, Arc::new(schema), |row| Ok(vec![row.value("id")?, row.i64("v")?.map_or(Value::Null, Value::Int)]))
}

/// An async closure over text: `v` followed by `?`.
fn closure(version: &str) -> Arc<dyn Handler> {
    let schema = Schema::new(vec![Field::new("id", DataType::Int64, false), Field::new("o", DataType::Utf8, true)]);
    closure_handler(version, Arc::new(schema), |input: RecordBatch, _call| async move {
        tokio::task::yield_now().await;
        let asked: StringArray =
            cast(input.column(1), &DataType::Utf8)?.as_string::<i32>().iter().map(|value| value.map(|value| format!("{value}?"))).collect();
        Ok(vec![batch(vec![("id", Arc::clone(input.column(0))), ("o", Arc::new(asked))])?])
    })
}

#[derive(Debug)]
struct Subject {
    kind: Kind,
    version: String,
    flag: PathBuf,
    gate: Arc<Gate>,
}

#[async_trait]
impl Handler for Subject {
    fn version(&self) -> &str {
        &self.version
    }

    fn output_schema(&self, input: &Schema) -> datafusion_incremental::Result<SchemaRef> {
        let field = |index: usize, name: &str| {
            let data_type = input.fields().get(index).map_or(DataType::Null, |field| field.data_type().clone());
            Field::new(name, data_type, true)
        };
        Ok(Arc::new(Schema::new(vec![field(0, "id").with_nullable(false), field(1, "o")])))
    }

    async fn handle(&self, input: RecordBatch, call: &HandlerCall) -> Result<Vec<RecordBatch>, HandlerError> {
        let bad = bad_rows(&input)?;
        match self.kind {
            Kind::Fails if bad.true_count() > 0 => return Err("the value is bad".into()),
            Kind::Panics if bad.true_count() > 0 => panic!("a handler of the harness panics on purpose"),
            Kind::FailsWhileFlagged if self.flag.exists() => return Err("the flag is up".into()),
            Kind::Gated => self.gate.pass().await?,
            Kind::Sleeps => tokio::time::sleep(Duration::from_millis(20)).await,
            _ => {}
        }
        let right = output(&input, self.kind, call)?;
        Ok(spoil(self.kind, right, &bad)?)
    }
}

fn bad_rows(input: &RecordBatch) -> Result<BooleanArray, ArrowError> {
    let values = cast(input.column(1), &DataType::Utf8)?;
    Ok(values.as_string::<i32>().iter().map(|value| Some(value == Some("bad"))).collect())
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> Result<RecordBatch, ArrowError> {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
}

/// The right answer: `upper(v)` for text, `v` for other types.
fn output(input: &RecordBatch, kind: Kind, call: &HandlerCall) -> Result<RecordBatch, ArrowError> {
    let values = input.column(1);
    let text = |f: &dyn Fn(&str) -> String| -> Result<ArrayRef, ArrowError> {
        let strings = cast(values, &DataType::Utf8)?;
        let mapped: StringArray = strings.as_string::<i32>().iter().map(|value| value.map(f)).collect();
        cast(&mapped, values.data_type())
    };
    let is_text = matches!(values.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let o = match kind {
        Kind::TellsRun => text(&|_| call.run.to_string())?,
        _ if is_text => text(&str::to_uppercase)?,
        _ => Arc::clone(values),
    };
    batch(vec![("id", Arc::clone(input.column(0))), ("o", o)])
}

/// `right`, wrong in the way of `kind` where `bad` says so.
fn spoil(kind: Kind, right: RecordBatch, bad: &BooleanArray) -> Result<Vec<RecordBatch>, ArrowError> {
    let (ids, o) = (Arc::clone(right.column(0)), Arc::clone(right.column(1)));
    if kind == Kind::Shuffled {
        return one_by_one(&right);
    }
    if bad.true_count() == 0 {
        return Ok(vec![right]);
    }
    let batches = match kind {
        Kind::Nothing => vec![],
        Kind::Drops => vec![filter_record_batch(&right, &not(bad)?)?],
        Kind::Duplicates => vec![right.clone(), filter_record_batch(&right, bad)?],
        Kind::Alters => vec![batch(vec![("id", change_keys(&ids, bad, |id| Some(id + 5000))?), ("o", o)])?],
        Kind::NullKey => vec![batch(vec![("id", change_keys(&ids, bad, |_| None)?), ("o", o)])?],
        Kind::Adds(id) => {
            let extra = cast(&Int64Array::from(vec![id]), ids.data_type())?;
            let row = batch(vec![("id", concat(&[&extra])?), ("o", o.slice(0, 1))])?;
            vec![concat_batches(&right.schema(), [&right, &row])?]
        }
        Kind::NoKey => vec![batch(vec![("o", o)])?],
        Kind::TextKey => vec![batch(vec![("id", cast(&ids, &DataType::Utf8)?), ("o", o)])?],
        Kind::WrongType => {
            let halves: ArrayRef = Arc::new(arrow::array::Float64Array::from(vec![1.5; ids.len()]));
            vec![batch(vec![("id", ids), ("o", halves)])?]
        }
        Kind::Renames => vec![batch(vec![("id", ids), ("renamed", o)])?],
        Kind::AddsColumn => vec![batch(vec![("id", ids), ("o", Arc::clone(&o)), ("more", o)])?],
        _ => vec![right],
    };
    Ok(batches)
}

fn change_keys(ids: &ArrayRef, bad: &BooleanArray, change: impl Fn(i64) -> Option<i64>) -> Result<ArrayRef, ArrowError> {
    let numbers = cast(ids, &DataType::Int64)?;
    let numbers = numbers.as_primitive::<arrow::datatypes::Int64Type>();
    let changed: Int64Array = numbers.iter().enumerate().map(|(row, id)| if bad.value(row) { id.and_then(&change) } else { id }).collect();
    cast(&changed, ids.data_type())
}

/// The rows in reverse order, each a batch of its own, with empty batches between.
fn one_by_one(right: &RecordBatch) -> Result<Vec<RecordBatch>, ArrowError> {
    let mut batches = vec![right.slice(0, 0)];
    for row in (0..right.num_rows()).rev() {
        batches.push(take_record_batch(right, &arrow::array::UInt64Array::from(vec![row as u64]))?);
        batches.push(right.slice(0, 0));
    }
    Ok(batches)
}
