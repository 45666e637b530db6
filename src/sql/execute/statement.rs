//! One statement, from its syntax tree to its rows.

use std::sync::Arc;

use arrow::array::{RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use datafusion::common::TableReference;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement as DataFusionStatement;

use super::verb::{Outcome, drop_and_deregister, prepare_verb};
use crate::define::{self, Alteration, Existing, HandlerChoice, TableSpec};
use crate::error::{Error, ErrorCode, Result};
use crate::run::{self, RefreshRequest, RunResult};
use crate::spec::{Options, RunMode, RunSummary};
use crate::sql::extension::Extension;
use crate::sql::resolve::{Found, all_tables, check_schema, find, incremental_table};
use crate::sql::root::follow_root;
use crate::sql::sync::{self, Synced};
use crate::sql::{
    AlterIncremental, Call, CreateIncremental, HandlerText, IncrementalChange, ParsedStatement, Refresh, RefreshTarget, Statement,
};
use crate::sync::ops;
use crate::table::{IncrementalTable, TableHandle};

/// The rows of a statement.
#[derive(Debug)]
pub struct StatementResult {
    /// Their schema; without columns for statements that have no rows.
    pub schema: SchemaRef,
    /// The rows.
    pub batches: Vec<RecordBatch>,
    /// Whether a table of a REFRESH failed: the shell ends with status 1.
    pub failed: bool,
}

impl StatementResult {
    pub(in crate::sql) fn rows(schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        Self { schema, batches, failed: false }
    }

    pub(in crate::sql) fn nothing() -> Self {
        Self::rows(Arc::new(Schema::empty()), vec![])
    }
}

/// Executes one statement to its end.
///
/// # Errors
/// The statement's own error; `QUERY_FAILED` wraps an error of DataFusion.
pub async fn execute(ctx: &SessionContext, parsed: ParsedStatement) -> Result<StatementResult> {
    let state = ctx.state();
    for version in &parsed.versions {
        incremental_table(&state, &version.name).await?;
    }
    match parsed.statement {
        Statement::CreateIncremental(statement) => create(ctx, &state, *statement).await,
        Statement::AlterIncremental(statement) => alter(&state, *statement).await,
        Statement::DropIncremental { name, if_exists, purge } => drop_table(&state, &name, if_exists, purge).await,
        Statement::Refresh(refresh) => self::refresh(&state, refresh).await,
        Statement::ExplainRefresh { name } => explain(&state, &name).await,
        Statement::ShowCreate { name, other } => show_create(ctx, &state, &name, *other).await,
        Statement::Sync(statement) => sync::execute(ctx, &state, statement).await,
        Statement::Call(call) => self::call(ctx, &state, call).await,
        Statement::Other(statement) => other(ctx, *statement).await,
    }
}

fn failed(error: datafusion::error::DataFusionError) -> Error {
    Error::from_datafusion(error, ErrorCode::QueryFailed, "the statement failed")
}

fn choice(text: HandlerText) -> HandlerChoice {
    match text {
        HandlerText::Sql(text) => HandlerChoice::Sql(text),
        HandlerText::Registered(name) => HandlerChoice::Registered(name),
    }
}

async fn create(ctx: &SessionContext, state: &SessionState, statement: CreateIncremental) -> Result<StatementResult> {
    let extension = Extension::of(state)?;
    extension.check_may_act(state, "CREATE INCREMENTAL TABLE")?;
    let name = &statement.name;
    let found = find(state, name).await?;
    match &found {
        Found::Nothing => {}
        Found::Incremental(_) if statement.if_not_exists => return Ok(StatementResult::nothing()),
        Found::Incremental(_) if statement.or_alter => {}
        Found::Other if statement.if_not_exists => return Ok(StatementResult::nothing()),
        _ => {
            return Err(Error::new(
                ErrorCode::TableExists,
                format!(
                    "table {:?} exists. Remedy: CREATE OR ALTER INCREMENTAL TABLE changes an incremental table; else take another name",
                    name.to_string()
                ),
            ));
        }
    }
    check_schema(state, name)?;
    let location = match (&found, &statement.location) {
        (Found::Incremental(handle), None) => handle.incarnation().store().location().clone(),
        (_, given) => extension.location(name, given.as_deref(), state.runtime_env())?,
    };
    let spec = TableSpec {
        name: statement.name.clone(),
        source: statement.source,
        key: statement.key,
        track: statement.track,
        handler: choice(statement.handler),
        options: Options::parse(&name.to_string(), statement.options)?,
        columns: None,
    };
    let existing = if statement.or_alter { Existing::Alter } else { Existing::Attach };
    let created = define::create(&extension.host(state), &spec, location, existing).await?;
    match found {
        Found::Incremental(handle) => handle.follow().await,
        _ => {
            ctx.register_table(statement.name, Arc::new(IncrementalTable::new(created.handle))).map_err(failed)?;
        }
    }
    Ok(StatementResult::nothing())
}

async fn alter(state: &SessionState, statement: AlterIncremental) -> Result<StatementResult> {
    let extension = Extension::of(state)?;
    extension.check_may_act(state, "ALTER INCREMENTAL TABLE")?;
    let table = incremental_table(state, &statement.name).await?;
    let host = extension.host(state);
    match statement.change {
        IncrementalChange::Activate { revision } => {
            define::activate(&host, &table, statement.if_revision, revision).await?;
        }
        IncrementalChange::Define { draft, key, track, set, reset, accept_schema, handler } => {
            let alteration = Alteration {
                if_revision: statement.if_revision,
                draft,
                key,
                track,
                set: Options::parse(&statement.name.to_string(), set)?,
                reset,
                accept_schema,
                handler: handler.map(choice),
            };
            define::alter(&host, &table, &alteration).await?;
        }
    }
    Ok(StatementResult::nothing())
}

async fn drop_table(state: &SessionState, name: &TableReference, if_exists: bool, purge: bool) -> Result<StatementResult> {
    let extension = Extension::of(state)?;
    extension.check_may_act(state, "DROP INCREMENTAL TABLE")?;
    if if_exists && matches!(find(state, name).await?, Found::Nothing) {
        return Ok(StatementResult::nothing());
    }
    let table = incremental_table(state, name).await?;
    table.check_incremental(&format!("DROP SYNCED TABLE {}", table.sql_name()))?;
    drop_and_deregister(state, &extension.host(state), &table, purge).await?;
    Ok(StatementResult::nothing())
}

/// One table: its error is the statement's. Several: their rows, with what became of each.
async fn refresh(state: &SessionState, refresh: Refresh) -> Result<StatementResult> {
    let extension = Extension::of(state)?;
    let host = extension.host(state);
    let mut tables: Vec<Arc<TableHandle>> = vec![];
    match &refresh.target {
        RefreshTarget::All => {
            let all = all_tables(state).await?.into_iter().map(|(_, handle)| handle);
            tables.extend(all.filter(|handle| !handle.is_synced()));
        }
        RefreshTarget::Tables(names) => {
            for name in names {
                tables.push(incremental_table(state, name).await?);
            }
        }
    }
    let mode = if refresh.draft { RunMode::Draft } else { RunMode::Published };
    let request = RefreshRequest { mode, full: refresh.full, run: refresh.run.clone(), allow_deletes: refresh.allow_deletes };
    if refresh.dry_run {
        let mut rows = vec![];
        for table in &tables {
            rows.push(run::dry_run(&host, table, request.clone()).await?);
        }
        return summary(&rows, false);
    }
    extension.check_may_act(state, "REFRESH")?;
    let synced = if refresh.with_sync { sync::sync_first(state, &tables).await? } else { Synced::default() };
    if let (RefreshTarget::Tables(_), [_], Some(error)) = (&refresh.target, tables.as_slice(), synced.first_error()) {
        return Err(error);
    }
    if let (RefreshTarget::Tables(_), [table]) = (&refresh.target, tables.as_slice()) {
        return summary(&[run::refresh(&host, table, request).await.into_result()?], false);
    }
    let results = run::refresh_in_order(&host, &tables, &request, &synced.blocked).await?;
    let results: Vec<RunResult> = synced.results.into_iter().chain(results).collect();
    let failed = results.iter().any(|result| result.error.is_some());
    let rows: Vec<RunSummary> = results.into_iter().map(|RunResult { summary, .. }| summary).collect();
    summary(&rows, failed)
}

fn summary(rows: &[RunSummary], failed: bool) -> Result<StatementResult> {
    let batch = RunSummary::to_batch(rows).map_err(|e| Error::from_datafusion(e.into(), ErrorCode::Internal, "the summary rows"))?;
    Ok(StatementResult { schema: RunSummary::schema(), batches: vec![batch], failed })
}

async fn explain(state: &SessionState, name: &TableReference) -> Result<StatementResult> {
    let table = incremental_table(state, name).await?;
    let rows = run::explain_refresh(&Extension::of(state)?.host(state), &table).await?;
    let (what, text): (Vec<String>, Vec<String>) = rows.into_iter().unzip();
    texts(&["plan_type", "plan"], vec![what, text])
}

fn texts(names: &[&str], columns: Vec<Vec<String>>) -> Result<StatementResult> {
    let schema = Arc::new(Schema::new(names.iter().map(|name| Field::new(*name, DataType::Utf8, false)).collect::<Vec<_>>()));
    let columns = columns.into_iter().map(|column| Arc::new(StringArray::from(column)) as _).collect();
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns);
    let batch = batch.map_err(|e| Error::from_datafusion(e.into(), ErrorCode::Internal, "text rows"))?;
    Ok(StatementResult::rows(schema, vec![batch]))
}

async fn show_create(
    ctx: &SessionContext,
    state: &SessionState,
    name: &TableReference,
    statement: DataFusionStatement,
) -> Result<StatementResult> {
    match find(state, name).await? {
        Found::Incremental(table) => {
            let text = match table.is_synced() {
                true => ops::show_create(&table).await?,
                false => define::show_create(&table).await?,
            };
            let catalog = &state.config_options().catalog;
            let full = name.clone().resolve(&catalog.default_catalog, &catalog.default_schema);
            let names = [full.catalog, full.schema, full.table].map(|part| vec![part.to_string()]);
            // The columns of DataFusion's own SHOW CREATE TABLE.
            let columns = names.into_iter().chain([vec![text]]).collect();
            texts(&["table_catalog", "table_schema", "table_name", "definition"], columns)
        }
        _ => other(ctx, statement).await,
    }
}

async fn call(ctx: &SessionContext, state: &SessionState, call: Call) -> Result<StatementResult> {
    match prepare_verb(state, call.verb, call.arguments).await? {
        Outcome::Table(provider) => {
            let rows = ctx.read_table(provider).map_err(failed)?;
            let schema = Arc::new(rows.schema().as_arrow().clone());
            Ok(StatementResult::rows(schema, rows.collect().await.map_err(failed)?))
        }
        Outcome::Action(action) => {
            let batches = action.run(state).await?;
            Ok(StatementResult::rows(action.schema, batches))
        }
    }
}

/// Tables that another process created since are found by the statements that name them, and by those that list.
async fn follow_names(state: &SessionState, statement: &DataFusionStatement) -> Result<()> {
    // What cannot be resolved here fails in planning, with its own message.
    for name in state.resolve_table_references(statement).unwrap_or_default() {
        if name.schema() == Some("information_schema") {
            follow_root(state, None).await?;
        } else {
            if let Found::Incremental(table) = find(state, &name).await? {
                // Planning goes by the columns that are published now. An error of the store is the reading's to tell.
                let _ = table.newest().await;
            }
        }
    }
    Ok(())
}

async fn other(ctx: &SessionContext, statement: DataFusionStatement) -> Result<StatementResult> {
    follow_names(&ctx.state(), &statement).await?;
    let plan = ctx.state().statement_to_plan(statement).await.map_err(failed)?;
    if let LogicalPlan::Ddl(DdlStatement::DropTable(drop)) = &plan
        && let Found::Incremental(table) = find(&ctx.state(), &drop.name).await?
    {
        let (kind, drops) = if table.is_synced() { ("a synced", "SYNCED") } else { ("an incremental", "INCREMENTAL") };
        return Err(Error::new(
            ErrorCode::StatementInvalid,
            format!("{name} is {kind} table. Remedy: DROP {drops} TABLE {name}", name = drop.name),
        ));
    }
    let rows = ctx.execute_logical_plan(plan).await.map_err(failed)?;
    let schema = Arc::new(rows.schema().as_arrow().clone());
    Ok(StatementResult::rows(schema, rows.collect().await.map_err(failed)?))
}
