//! One verb, whether it comes as CALL or as a table function.
//!
//! ```text
//! prepare_verb (planning: names, schema; nothing acts) ──► Outcome::Table    a provider to scan
//!                                                     └──► Outcome::Action   .run(): reads or acts, once per execution
//! ```

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::common::TableReference;
use datafusion::execution::SessionState;
use futures::future::BoxFuture;

use super::listing;
use crate::define;
use crate::error::{Error, ErrorCode, Result};
use crate::run::{self, Host, RefreshRequest, VacuumRequest};
use crate::spec::{RunId, RunMode, RunSummary};
use crate::sql::extension::Extension;
use crate::sql::resolve::{all_tables, incremental_table};
use crate::sql::sync;
use crate::sql::trial::TrialTable;
use crate::sql::verbs::{BoundArguments, Family, VerbSpec};
use crate::table::{IncrementalTable, TableHandle};

/// What a verb turns out to be.
#[derive(Debug)]
pub enum Outcome {
    /// A table to read.
    Table(Arc<dyn TableProvider>),
    /// Rows that come when it runs.
    Action(Action),
}

type Work = dyn Fn(SessionState) -> BoxFuture<'static, Result<Vec<RecordBatch>>> + Send + Sync;

/// A verb with its arguments, ready to run.
pub struct Action {
    /// The schema of its rows.
    pub schema: SchemaRef,
    work: Box<Work>,
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Action").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Action {
    pub(in crate::sql) fn outcome<F, Fut>(schema: SchemaRef, work: F) -> Outcome
    where
        F: Fn(SessionState) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<RecordBatch>>> + Send + 'static,
    {
        Outcome::Action(Self { schema, work: Box::new(move |state| Box::pin(work(state))) })
    }

    /// Reads, or acts.
    ///
    /// # Errors
    /// The verb's own errors; `READ_ONLY` when it would act without leave.
    pub async fn run(&self, state: &SessionState) -> Result<Vec<RecordBatch>> {
        (self.work)(state.clone()).await
    }
}

/// Resolves names and schema. Nothing acts here.
///
/// # Errors
/// `TABLE_NOT_FOUND`, `STATEMENT_INVALID`, and for tables as of a version their own errors.
pub async fn prepare_verb(state: &SessionState, verb: &'static VerbSpec, args: BoundArguments) -> Result<Outcome> {
    if verb.family == Family::Sync {
        return sync::prepare(state, verb, args).await;
    }
    let table = match args.table()? {
        Some(name) => Some(incremental_table(state, &name).await?),
        None => None,
    };
    match verb.name {
        "at" | "at_timestamp" | "output" | "test" => table_verb(state, verb, required(table)?, &args).await,
        "tables" | "runs" | "versions" | "revisions" | "files" => Ok(listing::prepare(verb.name, args.table()?)),
        "row" => row(state, required(table)?, args).await,
        "explain_refresh" => Ok(explain(required(table)?)),
        _ => acting(verb, required(table)?, args),
    }
}

fn required(table: Option<Arc<TableHandle>>) -> Result<Arc<TableHandle>> {
    table.ok_or_else(|| Error::new(ErrorCode::StatementInvalid, "the verb needs a table. Remedy: name it as the first argument"))
}

async fn table_verb(state: &SessionState, verb: &VerbSpec, table: Arc<TableHandle>, args: &BoundArguments) -> Result<Outcome> {
    let snapshot = match verb.name {
        "at" => table.at_version(args.number("version").unwrap_or_default()).await?,
        "at_timestamp" => table.at_timestamp(micros(args.text("timestamp").unwrap_or_default())?).await?,
        "output" => table.run_output(&RunId::new(args.text("run").unwrap_or_default())?).await?,
        _ => {
            let host = Extension::of(state)?.host(state);
            let text = args.text("handler").unwrap_or_default().to_string();
            return Ok(Outcome::Table(Arc::new(TrialTable::try_new(&host, table, text).await?)));
        }
    };
    Ok(Outcome::Table(Arc::new(IncrementalTable::at(table, snapshot))))
}

/// Microseconds since 1970 of a timestamp's text; without a zone it is UTC.
fn micros(text: &str) -> Result<i64> {
    arrow::compute::kernels::cast_utils::string_to_datetime(&chrono::Utc, text).map(|time| time.timestamp_micros()).map_err(|e| {
        Error::new(ErrorCode::StatementInvalid, format!("{text:?} is no timestamp: {e}. Remedy: write one like '2026-01-31T12:00:00Z'"))
    })
}

async fn row(state: &SessionState, table: Arc<TableHandle>, args: BoundArguments) -> Result<Outcome> {
    table.check_incremental("its rows are its source's as they are: select from it; sync_runs says what wrote it")?;
    let log = table.incarnation().definitions().await?;
    let revision = log.active().ok_or_else(|| table.not_published())?;
    let schema = run::row_schema(&revision.definition);
    let key = args.values().to_vec();
    let extension = Extension::of(state)?;
    Ok(Action::outcome(schema, move |state| {
        let (host, table, key) = (extension.host(&state), Arc::clone(&table), key.clone());
        async move { Ok(vec![run::explain_row(&host, &table, &key).await?]) }
    }))
}

fn explain(table: Arc<TableHandle>) -> Outcome {
    let schema = text_schema(&["plan_type", "plan"]);
    let out = Arc::clone(&schema);
    Action::outcome(schema, move |state| {
        let (table, schema) = (Arc::clone(&table), Arc::clone(&out));
        async move {
            let host = Extension::of(&state)?.host(&state);
            let (what, text): (Vec<String>, Vec<String>) = run::explain_refresh(&host, &table).await?.into_iter().unzip();
            batch(schema, vec![Arc::new(StringArray::from(what)), Arc::new(StringArray::from(text))])
        }
    })
}

fn text_schema(names: &[&str]) -> SchemaRef {
    Arc::new(Schema::new(names.iter().map(|name| Field::new(*name, DataType::Utf8, false)).collect::<Vec<_>>()))
}

fn batch(schema: SchemaRef, columns: Vec<ArrayRef>) -> Result<Vec<RecordBatch>> {
    let batch = RecordBatch::try_new(schema, columns);
    Ok(vec![batch.map_err(|e| Error::from_datafusion(e.into(), ErrorCode::Internal, "the rows of a verb"))?])
}

fn summary_rows(rows: &[RunSummary]) -> Result<Vec<RecordBatch>> {
    Ok(vec![RunSummary::to_batch(rows).map_err(|e| Error::from_datafusion(e.into(), ErrorCode::Internal, "the summary row"))?])
}

fn acting_schema(verb: &VerbSpec) -> SchemaRef {
    let number = |name: &str| Field::new(name, DataType::UInt64, true);
    match verb.name {
        "vacuum" => Arc::new(Schema::new(vec![
            Field::new("path", DataType::Utf8, false),
            number("bytes"),
            Field::new("deleted", DataType::Boolean, false),
        ])),
        "activate" => Arc::new(Schema::new(vec![number("revision")])),
        "drop" => Arc::new(Schema::new(vec![number("freed_bytes")])),
        _ => RunSummary::schema(),
    }
}

fn acting(verb: &'static VerbSpec, table: Arc<TableHandle>, args: BoundArguments) -> Result<Outcome> {
    if verb.name == "refresh" {
        refresh_request(&args)?;
    }
    let schema = acting_schema(verb);
    let out = Arc::clone(&schema);
    Ok(Action::outcome(schema, move |state| {
        let (table, args, schema) = (Arc::clone(&table), args.clone(), Arc::clone(&out));
        async move {
            let extension = Extension::of(&state)?;
            extension.check_may_act(&state, &format!("incremental.{}", verb.name))?;
            let host = extension.host(&state);
            act(&state, &host, verb, (&table, &args), schema).await
        }
    }))
}

async fn act(
    state: &SessionState,
    host: &Host,
    verb: &VerbSpec,
    call: (&Arc<TableHandle>, &BoundArguments),
    schema: SchemaRef,
) -> Result<Vec<RecordBatch>> {
    let (table, args) = call;
    match verb.name {
        "refresh" => summary_rows(&[run::refresh(host, table, refresh_request(args)?).await.into_result()?]),
        "rollback" => summary_rows(&[run::rollback(host, table, args.number("version").unwrap_or_default()).await?]),
        "compact" => summary_rows(run::compact(host, table).await?.as_slice()),
        "cancel" => summary_rows(&[run::cancel(table, &RunId::new(args.text("run").unwrap_or_default())?).await?]),
        "activate" => {
            let number = define::activate(host, table, None, args.number("revision")).await?;
            batch(schema, vec![Arc::new(UInt64Array::from(vec![number]))])
        }
        "drop" => {
            table.check_incremental(&format!("DROP SYNCED TABLE {}", table.sql_name()))?;
            let freed = drop_and_deregister(state, host, table, args.boolean("purge").unwrap_or(false)).await?;
            batch(schema, vec![Arc::new(UInt64Array::from(vec![freed]))])
        }
        "vacuum" => {
            let older_than = args.text("older_than").and_then(crate::spec::parse_duration);
            let request = VacuumRequest { dry_run: args.boolean("dry_run").unwrap_or(true), older_than };
            let report = run::vacuum(host, table, request).await?;
            let paths: Vec<&str> = report.objects.iter().map(|(path, _)| path.as_str()).collect();
            let bytes: Vec<u64> = report.objects.iter().map(|(_, bytes)| *bytes).collect();
            let deleted = vec![report.deleted; paths.len()];
            batch(
                schema,
                vec![Arc::new(StringArray::from(paths)), Arc::new(UInt64Array::from(bytes)), Arc::new(BooleanArray::from(deleted))],
            )
        }
        other => Err(Error::internal(format!("the verb {other:?} has no implementation"))),
    }
}

/// `mode`: published (default), draft, or full.
fn refresh_request(args: &BoundArguments) -> Result<RefreshRequest> {
    let run = args.text("run").map(RunId::new).transpose()?;
    let request = RefreshRequest { run, ..RefreshRequest::default() };
    match args.text("mode").unwrap_or("published").to_ascii_lowercase().as_str() {
        "published" => Ok(request),
        "draft" => Ok(RefreshRequest { mode: RunMode::Draft, ..request }),
        "full" => Ok(RefreshRequest { full: true, ..request }),
        other => {
            Err(Error::new(ErrorCode::StatementInvalid, format!("refresh mode {other:?} does not exist. Remedy: published, draft or full")))
        }
    }
}

/// Drops the table and takes it out of the session.
pub(in crate::sql) async fn drop_and_deregister(state: &SessionState, host: &Host, table: &Arc<TableHandle>, purge: bool) -> Result<u64> {
    let all = all_tables(state).await?;
    let others: Vec<Arc<TableHandle>> = all.iter().map(|(_, handle)| Arc::clone(handle)).collect();
    let freed = define::drop_table(host, table, &others, purge).await?;
    for (name, handle) in all {
        if handle.incarnation().id() == table.incarnation().id() {
            deregister(state, &name)?;
        }
    }
    Ok(freed)
}

fn deregister(state: &SessionState, name: &TableReference) -> Result<()> {
    let failed = |e| Error::from_datafusion(e, ErrorCode::TableNotFound, format!("taking {name} out of the session"));
    let schema = state.schema_for_ref(name.clone()).map_err(failed)?;
    schema.deregister_table(name.table()).map_err(failed)?;
    Ok(())
}
