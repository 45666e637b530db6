//! `incremental_row`: why one row of the published table is as it is.
//!
//! ```text
//! published row ── index ──► version, run, revision, time that wrote it
//! source row    ── fingerprint compared ──► current │ source_changed │ last_run_failed │ revision_pending │ source_missing
//! ```
//!
//! Reads only row groups that can hold the key, and the source once. Writes nothing.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray, StructArray, TimestampMicrosecondArray, UInt64Array};
use arrow::compute::cast;
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::catalog::TableProvider;
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::Expr;
use datafusion::prelude::SessionContext;

use crate::error::{Error, ErrorCode, Result};
use crate::exec::keyed_diff::{FP_HI, FP_LO};
use crate::plan::source::resolve;
use crate::spec::{Definition, RunMode, RunState};
use crate::store::DataFile;
use crate::store::files::{VERSION, index_schema};
use crate::table::{IncrementalTable, Snapshot, TableHandle};

use super::attempt::Attempt;
use super::{Host, RefreshRequest, history};

/// The columns of `incremental_row`: `row`, `version`, `run_id`, `revision`, `written_at`, `source`, `verdict`.
pub fn row_schema(definition: &Definition) -> SchemaRef {
    let tracked: Vec<Field> = definition.tracked_fields().into_iter().map(|f| f.clone().with_nullable(true)).collect();
    let output: Vec<Field> = definition.output_schema.fields().iter().map(|f| f.as_ref().clone().with_nullable(true)).collect();
    Arc::new(Schema::new(vec![
        Field::new("row", DataType::Struct(output.into()), true),
        Field::new("version", DataType::UInt64, true),
        Field::new("run_id", DataType::Utf8, true),
        Field::new("revision", DataType::UInt64, true),
        Field::new("written_at", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
        Field::new("source", DataType::Struct(tracked.into()), true),
        Field::new("verdict", DataType::Utf8, false),
    ]))
}

/// What wrote the row.
#[derive(Debug, Default)]
struct Origin {
    version: Option<u64>,
    run: Option<String>,
    revision: Option<u64>,
    at: Option<i64>,
    fingerprint: Option<(i64, i64)>,
}

/// The one row of [`row_schema`] for the row with this key.
///
/// # Errors
/// `NOT_PUBLISHED`, `STATEMENT_INVALID` when the key has other parts than the table's, the errors of reading both sides.
pub async fn explain_row(host: &Host, table: &Arc<TableHandle>, key: &[ScalarValue]) -> Result<RecordBatch> {
    let run = crate::spec::RunId::new("row")?;
    let attempt = Attempt::open(host, table, &RefreshRequest::default(), run).await?;
    let snapshot = table.newest().await?.ok_or_else(|| table.not_published())?;
    let definition = attempt.definition();
    let predicate = key_predicate(&attempt, key)?;

    let published = IncrementalTable::at(Arc::clone(table), Arc::clone(&snapshot));
    let row = one_row(host, &attempt, Arc::new(published), &predicate).await?;
    let origin = match &row {
        Some(_) => origin(host, &attempt, &snapshot, &predicate).await?,
        None => Origin::default(),
    };
    let source = source_row(host, &attempt, &predicate).await?;
    let verdict = verdict(&attempt, row.is_some(), source.as_ref(), &origin).await?;
    to_batch(definition, row, source, &origin, verdict)
}

fn key_predicate(attempt: &Attempt, key: &[ScalarValue]) -> Result<Expr> {
    let fields = attempt.definition().key_fields();
    if fields.len() != key.len() {
        return Err(Error::new(
            ErrorCode::StatementInvalid,
            format!(
                "table {:?}: the key has {} columns {:?}, but {} values were given. Remedy: give one value for each",
                attempt.name(),
                fields.len(),
                attempt.definition().key,
                key.len()
            ),
        ));
    }
    let mut predicate: Option<Expr> = None;
    for (field, value) in fields.iter().zip(key) {
        let value = value.cast_to(field.data_type()).map_err(|e| {
            let what = format!("table {:?}: {value} is no value of key column {:?} ({})", attempt.name(), field.name(), field.data_type());
            Error::from_datafusion(e, ErrorCode::StatementInvalid, format!("{what}. Remedy: give a value of its type"))
        })?;
        let equals = Expr::Column(Column::new_unqualified(field.name())).eq(Expr::Literal(value, None));
        predicate = Some(match predicate {
            Some(all) => all.and(equals),
            None => equals,
        });
    }
    predicate.ok_or_else(|| Error::internal("a definition without key columns"))
}

async fn one_row(host: &Host, attempt: &Attempt, provider: Arc<dyn TableProvider>, predicate: &Expr) -> Result<Option<RecordBatch>> {
    let ctx = SessionContext::new_with_state(host.state.clone());
    let what = format!("table {:?}: looking the row up failed", attempt.name());
    let failed = |e| Error::from_datafusion(e, ErrorCode::CaptureFailed, &what);
    let rows = ctx.read_table(provider).and_then(|rows| rows.filter(predicate.clone())).map_err(failed)?;
    let batches = rows.collect().await.map_err(failed)?;
    Ok(batches.into_iter().find(|batch| batch.num_rows() > 0).map(|batch| batch.slice(0, 1)))
}

/// The row of the index: the index files are row-aligned with the data files, so the same vectors apply.
async fn origin(host: &Host, attempt: &Attempt, snapshot: &Snapshot, predicate: &Expr) -> Result<Origin> {
    let key_fields: Vec<Field> = attempt.definition().key_fields().into_iter().cloned().collect();
    let index = Snapshot {
        output_schema: index_schema(&key_fields),
        files: Arc::new(snapshot.files.iter().map(|file| DataFile { data: file.index.clone(), ..file.clone() }).collect()),
        cache: Default::default(),
        ..snapshot.clone()
    };
    let provider = IncrementalTable::at(Arc::clone(&attempt.table), Arc::new(index));
    let Some(row) = one_row(host, attempt, Arc::new(provider), predicate).await? else { return Ok(Origin::default()) };
    let number = |name: &str| row.column_by_name(name).and_then(|c| c.as_any().downcast_ref::<Int64Array>().map(|c| c.value(0)));
    let mut origin = Origin { fingerprint: number(FP_HI).zip(number(FP_LO)), ..Origin::default() };
    origin.version = number(VERSION).and_then(|v| u64::try_from(v).ok());
    if let Some(slot) = attempt.incarnation.slot(origin.version.unwrap_or_default()).await? {
        origin.run = Some(slot.run.as_str().to_string());
        let run = history::version_summary(&attempt.incarnation, &slot).await?;
        origin.revision = run.revision;
        origin.at = run.ended_at;
    }
    Ok(origin)
}

async fn source_row(host: &Host, attempt: &Attempt, predicate: &Expr) -> Result<Option<RecordBatch>> {
    let source = match resolve(&host.state, attempt.name(), &attempt.definition().source).await {
        Ok(source) => source,
        // A source that is gone is what the verdict says, not a reason to say nothing of the row.
        Err(error) if error.code() == ErrorCode::SourceNotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    one_row(host, attempt, source.provider, predicate).await
}

async fn verdict(attempt: &Attempt, published: bool, source: Option<&RecordBatch>, origin: &Origin) -> Result<&'static str> {
    let Some(source) = source else { return Ok("source_missing") };
    let active = attempt.definitions.active.unwrap_or_default();
    let holds = attempt.base.as_ref().map_or(0, |base| base.manifest.revision);
    if active != holds {
        return Ok("revision_pending");
    }
    if published && (!attempt.definition().incremental || same_values(attempt, source, origin)?) {
        return Ok("current");
    }
    let newest = attempt.base.as_ref().map_or(0, |base| base.manifest.committed_at);
    let failed = history::run_summaries(&attempt.table).await?.into_iter().find(|run| run.mode == RunMode::Published).is_some_and(|run| {
        let unwell = matches!(run.state, RunState::Failed | RunState::Held | RunState::Unknown | RunState::Abandoned);
        unwell && run.requested_at.unwrap_or_default() >= newest
    });
    Ok(if failed { "last_run_failed" } else { "source_changed" })
}

fn same_values(attempt: &Attempt, source: &RecordBatch, origin: &Origin) -> Result<bool> {
    let columns = tracked_columns(attempt.definition(), source)?;
    let mut fingerprints = vec![];
    attempt.fingerprinter()?.fingerprint(&columns, &mut fingerprints)?;
    let now = fingerprints.first().map(|print| split(*print));
    Ok(now.is_some() && now == origin.fingerprint)
}

/// The two halves as the index stores them.
fn split(print: u128) -> (i64, i64) {
    #[allow(clippy::cast_possible_truncation)] // the two halves of the 128 bits, bit for bit
    let halves = ((print >> 64) as u64, print as u64);
    (halves.0.cast_signed(), halves.1.cast_signed())
}

fn tracked_columns(definition: &Definition, source: &RecordBatch) -> Result<Vec<ArrayRef>> {
    let column = |field: &&Field| {
        let column = source.column_by_name(field.name()).ok_or_else(|| {
            Error::new(
                ErrorCode::SchemaChanged,
                format!("the source has no column {:?} any more. Remedy: ALTER INCREMENTAL TABLE … ACCEPT SCHEMA", field.name()),
            )
        })?;
        cast(column, field.data_type()).map_err(|e| Error::from_datafusion(e.into(), ErrorCode::SchemaChanged, "reading the source's row"))
    };
    definition.tracked_fields().iter().map(column).collect()
}

fn to_batch(
    definition: &Definition,
    row: Option<RecordBatch>,
    source: Option<RecordBatch>,
    origin: &Origin,
    verdict: &str,
) -> Result<RecordBatch> {
    let schema = row_schema(definition);
    let internal = |e: arrow_schema::ArrowError| Error::from_datafusion(e.into(), ErrorCode::Internal, "the row of incremental_row");
    let output = row.map(|row| row.columns().to_vec());
    let source = match source {
        Some(source) => Some(tracked_columns(definition, &source)?),
        None => None,
    };
    let columns: Vec<ArrayRef> = vec![
        structure(schema.field(0), output).map_err(internal)?,
        Arc::new(UInt64Array::from(vec![origin.version])),
        Arc::new(StringArray::from(vec![origin.run.clone()])),
        Arc::new(UInt64Array::from(vec![origin.revision])),
        Arc::new(TimestampMicrosecondArray::from(vec![origin.at]).with_timezone("UTC")),
        structure(schema.field(5), source).map_err(internal)?,
        Arc::new(StringArray::from(vec![verdict])),
    ];
    RecordBatch::try_new(schema, columns).map_err(internal)
}

fn structure(field: &Field, columns: Option<Vec<ArrayRef>>) -> Result<ArrayRef, arrow_schema::ArrowError> {
    let DataType::Struct(fields) = field.data_type() else { return Ok(arrow::array::new_null_array(field.data_type(), 1)) };
    match columns {
        Some(columns) if !fields.is_empty() => {
            let columns: Result<Vec<ArrayRef>, _> = columns.iter().zip(fields).map(|(c, f)| cast(c, f.data_type())).collect();
            Ok(Arc::new(StructArray::try_new(fields.clone(), columns?, None)?))
        }
        Some(_) => Ok(Arc::new(StructArray::new_empty_fields(1, None))),
        None => Ok(arrow::array::new_null_array(field.data_type(), 1)),
    }
}
