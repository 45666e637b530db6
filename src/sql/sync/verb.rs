//! `CALL sync.<verb>(…)` and the table functions `sync_<verb>(…)`, over one implementation.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::execution::SessionState;

use super::execute::{context, synced_table};
use super::rows;
use crate::error::{Error, Result};
use crate::run::all_summaries;
use crate::spec::RunId;
use crate::spec::sync::{SyncPhase, SyncSource};
use crate::sql::execute::{Action, Kind, Outcome, Rows, schema};
use crate::sql::extension::Extension;
use crate::sql::resolve::all_tables;
use crate::sql::verbs::{BoundArguments, VerbSpec};
use crate::sync::SyncContext;
use crate::sync::config::{Effect, Facts, plan_change};
use crate::sync::ops::{self, SyncRequest};
use crate::sync::schedule::next_run;
use crate::sync::status::{Standing, standing, sync_runs};
use crate::table::TableHandle;

/// Resolves the names; nothing acts and no source is asked here.
pub(in crate::sql) async fn prepare(state: &SessionState, verb: &'static VerbSpec, args: BoundArguments) -> Result<Outcome> {
    let table = match args.table()? {
        Some(name) => Some(synced_table(state, &name).await?),
        None => None,
    };
    let columns = columns_of(verb.name);
    Ok(Action::outcome(schema(columns), move |state| {
        let (table, args) = (table.clone(), args.clone());
        async move {
            if verb.acts {
                Extension::of(&state)?.check_may_act(&state, &format!("sync.{}", verb.name))?;
            }
            let context = context(&state)?;
            match table {
                Some(table) => of_table(&context, verb, &table, &args).await,
                None => of_session(&state, &context, verb, &args).await,
            }
        }
    }))
}

fn columns_of(verb: &str) -> &'static [(&'static str, Kind)] {
    match verb {
        "connections" => rows::CONNECTIONS,
        "check" => rows::CHECK,
        "discover" => rows::DISCOVER,
        "tables" | "schema" => rows::SCHEMA,
        "incremental_fields" => rows::FIELDS,
        _ => rows::RUNS,
    }
}

async fn of_table(context: &SyncContext, verb: &VerbSpec, table: &Arc<TableHandle>, args: &BoundArguments) -> Result<Vec<RecordBatch>> {
    let confirm = args.boolean("confirm").unwrap_or(false);
    let run = args.text("run").map(RunId::new).transpose()?;
    let request = SyncRequest { run, allow_deletes: args.boolean("allow_deletes").unwrap_or(false), ..SyncRequest::default() };
    let result = match verb.name {
        "schema" => {
            let mut rows = Rows::new(rows::SCHEMA);
            schema_row(&mut rows, context, table).await?;
            return rows.finish();
        }
        "runs" => return rows::runs(table.name(), &all_summaries(table).await?),
        "incremental_fields" => return incremental_fields(context, table).await,
        "cancel" => {
            let run = ops::cancel(table).await?;
            let all = sync_runs(table).await?;
            let cancelled: Vec<_> = all.into_iter().filter(|row| row.run_id == run.as_str()).collect();
            return rows::runs(table.name(), &cancelled);
        }
        "reload" => ops::reload(context, table, request).await,
        "reconcile" => ops::reconcile(context, table, request).await?,
        "resync" => ops::resync(context, table, confirm, request).await?,
        "delete_data" => ops::delete_data(context, table, confirm).await?,
        other => return Err(Error::internal(format!("the verb {other:?} has no implementation"))),
    };
    rows::runs(table.name(), &[result.into_result()?])
}

async fn of_session(state: &SessionState, context: &SyncContext, verb: &VerbSpec, args: &BoundArguments) -> Result<Vec<RecordBatch>> {
    let connection = args.text("connection");
    match verb.name {
        "connections" => {
            let mut rows = Rows::new(rows::CONNECTIONS);
            for connection in context.connections()?.list().await? {
                rows::connection_row(&mut rows, &connection);
            }
            rows.finish()
        }
        "check" => check(context, connection.unwrap_or_default()).await,
        "discover" => rows::discovered(&ops::discover(context, connection).await?),
        "tables" => {
            let mut rows = Rows::new(rows::SCHEMA);
            for (_, table) in synced_tables(state).await? {
                schema_row(&mut rows, context, &table).await?;
            }
            rows.finish()
        }
        _ => {
            let mut rows = Rows::new(rows::RUNS);
            for (_, table) in synced_tables(state).await? {
                for run in all_summaries(&table).await? {
                    rows::run_row(&mut rows, table.name(), &run);
                }
            }
            rows.finish()
        }
    }
}

type Named = (datafusion::common::TableReference, Arc<TableHandle>);

async fn synced_tables(state: &SessionState) -> Result<Vec<Named>> {
    Ok(all_tables(state).await?.into_iter().filter(|(_, table)| table.is_synced()).collect())
}

async fn schema_row(rows: &mut Rows, context: &SyncContext, table: &TableHandle) -> Result<()> {
    let standing = standing(table).await?;
    let required = is_rebuild_pending(&standing);
    rows::schema_row(rows, table, &standing, (required, next_run(context, table).await?));
    Ok(())
}

/// Whether the next run makes a new generation beside the stored one.
fn is_rebuild_pending(standing: &Standing) -> bool {
    let Some(state) = standing.state.as_ref().filter(|state| state.phase == SyncPhase::Loaded) else { return false };
    let Some(made_by) = standing.log.config(state.config) else { return false };
    let facts = Facts { has_data: true, active_run: None };
    standing.log.rebuilds > state.rebuilds || plan_change(&made_by.config, &standing.config.config, &facts).effect >= Effect::Rebuild
}

async fn check(context: &SyncContext, connection: &str) -> Result<Vec<RecordBatch>> {
    let source = SyncSource { connection: Some(connection.to_string()), table: vec![], session: None };
    context.connection(connection).await?;
    let outcome = match context.connector(&source).await {
        Ok(connector) => connector.check().await,
        Err(error) => Err(error),
    };
    let mut rows = Rows::new(rows::CHECK);
    rows.text(Some(connection.into()));
    rows.flag(Some(outcome.is_ok()));
    rows.text(outcome.err().map(|error| error.to_string()));
    rows.next();
    rows.finish()
}

async fn incremental_fields(context: &SyncContext, table: &TableHandle) -> Result<Vec<RecordBatch>> {
    let standing = standing(table).await?;
    let config = &standing.config.config;
    let found = ops::source_table(context, table, config).await?;
    rows::fields(table.name(), config, &found)
}
