//! The rows of the statements and verbs of synced tables.

use arrow::array::RecordBatch;

use crate::error::Result;
use crate::spec::sync::{SyncConfig, SyncType};
use crate::spec::{RunState, RunSummary};
use crate::sql::execute::Kind::{self, Flag, List, Number, Text, Time};
use crate::sql::execute::{Rows, StatementResult, schema};
use crate::store::ConnectionEntry;
use crate::sync::config::{Changes, Effect};
use crate::sync::config::{candidates, validate};
use crate::sync::connector::SourceTable;
use crate::sync::ops::Altered;
use crate::sync::status::Standing;
use crate::table::TableHandle;

pub(super) const SCHEMA: &[(&str, Kind)] = &[
    ("id", Text),
    ("name", Text),
    ("source", Text),
    ("connection", Text),
    ("status", Text),
    ("should_sync", Flag),
    ("sync_type", Text),
    ("incremental", Flag),
    ("incremental_field", Text),
    ("incremental_field_type", Text),
    ("incremental_field_lookback_seconds", Number),
    ("incremental_field_null_policy", Text),
    ("primary_key_columns", List),
    ("enabled_columns", List),
    ("row_filters", Text),
    ("available_columns", Text),
    ("sync_frequency", Text),
    ("sync_time_of_day", Text),
    ("reconcile_frequency", Text),
    ("cdc_table_mode", Text),
    ("description", Text),
    ("last_synced_at", Time),
    ("latest_error", Text),
    ("revision", Number),
    ("resync_required", Flag),
    ("generation", Number),
    ("version", Number),
    ("rows", Number),
    ("cursor_mark", Text),
    ("missing_columns", List),
    ("last_reconciled_at", Time),
    ("active_run_id", Text),
    ("skipped_runs", Number),
    ("next_run_at", Time),
];

pub(super) const RUNS: &[(&str, Kind)] = &[
    ("run_id", Text),
    ("table_name", Text),
    ("kind", Text),
    ("sync_type", Text),
    ("trigger", Text),
    ("status", Text),
    ("state", Text),
    ("revision", Number),
    ("generation", Number),
    ("version", Number),
    ("rows_read", Number),
    ("rows_inserted", Number),
    ("rows_updated", Number),
    ("rows_deleted", Number),
    ("rows_unchanged", Number),
    ("rows_total", Number),
    ("null_cursor_rows", Number),
    ("read_from", Text),
    ("ceiling", Text),
    ("mark_before", Text),
    ("mark_after", Text),
    ("bytes_written", Number),
    ("peak_memory_bytes", Number),
    ("requested_at", Time),
    ("started_at", Time),
    ("captured_at", Time),
    ("ended_at", Time),
    ("error_code", Text),
    ("error_message", Text),
];

pub(super) const CONNECTIONS: &[(&str, Kind)] = &[("name", Text), ("type", Text), ("options", Text), ("created_at", Time)];

pub(super) const CHECK: &[(&str, Kind)] = &[("connection", Text), ("valid", Flag), ("error", Text)];

pub(super) const DISCOVER: &[(&str, Kind)] = &[
    ("table_name", Text),
    ("kind", Text),
    ("primary_key_columns", List),
    ("unique_keys", List),
    ("column_name", Text),
    ("data_type", Text),
    ("source_type", Text),
    ("is_nullable", Flag),
    ("is_indexed", Flag),
    ("cursor_type", Text),
    ("unsupported", Text),
];

pub(super) const FIELDS: &[(&str, Kind)] = &[
    ("kind", Text),
    ("name", Text),
    ("type", Text),
    ("data_type", Text),
    ("nullable", Flag),
    ("is_indexed", Flag),
    ("available", Flag),
    ("reason", Text),
];

const ALTERED: &[(&str, Kind)] =
    &[("revision", Number), ("effect", Text), ("resync_required", Flag), ("rows_at_stake", Number), ("message", Text)];
const EXPLAINED: &[(&str, Kind)] =
    &[("field", Text), ("effect", Text), ("reason", Text), ("confirm_required", Flag), ("rows_at_stake", Number)];

/// The answer of ALTER.
pub(super) fn altered(altered: &Altered) -> Result<StatementResult> {
    let mut rows = Rows::new(ALTERED);
    rows.number(Some(altered.revision));
    rows.text(Some(altered.effect.as_str().into()));
    rows.flag(Some(altered.resync_required));
    rows.number(Some(altered.rows_at_stake));
    rows.text(Some(altered.message()));
    Ok(StatementResult::rows(schema(ALTERED), rows.finish()?))
}

/// The answer of EXPLAIN ALTER: one row per field that changes.
pub(super) fn explained(altered: &Altered) -> Result<StatementResult> {
    let mut rows = Rows::new(EXPLAINED);
    for field in &altered.fields {
        let rebuilds = field.effect == Effect::Rebuild;
        rows.text(Some(field.field.into()));
        rows.text(Some(field.effect.as_str().into()));
        rows.text(Some(field.reason.clone()));
        rows.flag(Some(rebuilds && altered.needs_confirmation));
        rows.number(Some(if rebuilds { altered.rows_at_stake } else { 0 }));
        rows.next();
    }
    Ok(StatementResult::rows(schema(EXPLAINED), rows.finish()?))
}

/// One row of `sync_schema`.
pub(super) fn schema_row(rows: &mut Rows, table: &TableHandle, standing: &Standing, (resync_required, next_run): (bool, Option<i64>)) {
    let (config, state) = (&standing.config.config, standing.state.as_ref());
    rows.text(Some(table.incarnation().id().into()));
    rows.text(Some(table.name().into()));
    rows.text(Some(config.source.display()));
    rows.text(config.source.connection.clone());
    rows.text(standing.status.map(|status| status.as_str().into()));
    config_cells(rows, config, standing);
    rows.time(state.and_then(|state| state.synced_at));
    rows.text(standing.latest_error());
    rows.number(Some(standing.config.number));
    rows.flag(Some(resync_required));
    rows.number(state.map(|state| state.generation));
    rows.number(standing.version.map(|(version, _)| version));
    rows.number(standing.version.map(|(_, rows)| rows));
    // A mark of another column says nothing of this one: the next run begins without.
    let mark = state.and_then(|state| state.mark.as_ref()).filter(|mark| Some(&mark.field) == config.incremental_field.as_ref());
    rows.text(mark.map(|mark| mark.value.to_string()));
    rows.list(state.map(|state| state.missing_columns.clone()));
    rows.time(state.and_then(|state| state.reconciled_at));
    rows.text(standing.active_run.as_ref().map(|run| run.as_str().into()));
    rows.number(Some(standing.skips));
    rows.time(next_run);
    rows.next();
}

fn config_cells(rows: &mut Rows, config: &SyncConfig, standing: &Standing) {
    rows.flag(Some(config.should_sync()));
    rows.text(config.sync_type.map(|sync_type| sync_type.as_str().into()));
    rows.flag(Some(config.sync_type.is_some_and(SyncType::has_cursor)));
    rows.text(config.incremental_field.clone());
    rows.text(config.incremental_field_type.map(|field_type| field_type.as_str().into()));
    rows.number(Some(u64::from(config.incremental_field_lookback_seconds)));
    rows.text(config.sync_type.filter(|sync_type| sync_type.has_cursor()).map(|_| config.null_policy().as_str().into()));
    rows.list(Some(config.primary_key_columns.clone()));
    rows.list(config.enabled_columns.clone());
    rows.text((!config.row_filters.is_empty()).then(|| serde_json::to_string(&config.row_filters).unwrap_or_default()));
    rows.text(serde_json::to_string(standing.source_columns()).ok());
    rows.text(Some(config.sync_frequency.as_str().into()));
    rows.text(config.sync_time_of_day.map(|time| time.to_string()));
    rows.text(Some(config.reconcile_frequency.as_str().into()));
    // The place of cdc, which this version does not have.
    rows.text(None);
    rows.text(config.description.clone());
}

/// One row of `sync_runs`.
pub(super) fn run_row(rows: &mut Rows, table: &str, run: &RunSummary) {
    let report = run.sync.as_deref();
    let status = match run.state {
        RunState::Running => "Running",
        RunState::Published => "Completed",
        RunState::Skipped => "Skipped",
        _ => "Failed",
    };
    rows.text(Some(run.run_id.clone()));
    rows.text(Some(table.into()));
    rows.text(report.and_then(|report| report.kind).map(|kind| kind.as_str().into()));
    rows.text(report.and_then(|report| report.sync_type).map(|sync_type| sync_type.as_str().into()));
    rows.text(report.map(|report| report.trigger.as_str().into()));
    rows.text(Some(status.into()));
    rows.text(Some(run.state.as_str().into()));
    rows.number(report.and_then(|report| report.config));
    rows.number(report.and_then(|report| report.generation));
    rows.number(run.version);
    rows.number(report.and_then(|report| report.rows_read));
    rows.number(run.rows_created);
    rows.number(run.rows_updated);
    rows.number(run.rows_deleted);
    rows.number(run.rows_unchanged);
    rows.number(run.rows_total);
    rows.number(report.and_then(|report| report.null_cursor_rows));
    rows.text(report.and_then(|report| report.read_from.clone()));
    rows.text(report.and_then(|report| report.ceiling.clone()));
    rows.text(report.and_then(|report| report.mark_before.clone()));
    rows.text(report.and_then(|report| report.mark_after.clone()));
    rows.number(run.bytes_written);
    rows.number(run.peak_memory_bytes);
    rows.time(run.requested_at);
    rows.time(run.started_at);
    rows.time(run.captured_at);
    rows.time(run.ended_at);
    rows.text(run.error_code.clone());
    rows.text(run.error_message.clone());
    rows.next();
}

/// Rows of `sync_runs` as one batch.
pub(super) fn runs(table: &str, runs: &[RunSummary]) -> Result<Vec<RecordBatch>> {
    let mut rows = Rows::new(RUNS);
    runs.iter().for_each(|run| run_row(&mut rows, table, run));
    rows.finish()
}

/// One row of `sync_connections`.
pub(super) fn connection_row(rows: &mut Rows, connection: &ConnectionEntry) {
    rows.text(Some(connection.name.clone()));
    rows.text(Some(connection.kind.clone()));
    // What may be secret is stored as a reference only.
    rows.text(Some(serde_json::to_string(&connection.options).unwrap_or_default()));
    rows.time(Some(connection.created_at));
    rows.next();
}

/// The rows of `sync_discover`: one per column.
pub(super) fn discovered(tables: &[SourceTable]) -> Result<Vec<RecordBatch>> {
    let mut rows = Rows::new(DISCOVER);
    for table in tables {
        let usable = candidates(table);
        for column in &table.columns {
            let cursor = usable.iter().find(|candidate| candidate.column.name == column.name);
            rows.text(Some(table.display_name()));
            rows.text(Some(table.kind.as_str().into()));
            rows.list(Some(table.primary_key.clone()));
            rows.list(Some(table.unique_keys.iter().map(|key| key.join(", ")).collect()));
            rows.text(Some(column.name.clone()));
            rows.text(Some(column.data_type.to_string()));
            rows.text(Some(column.source_type.clone()));
            rows.flag(Some(column.is_nullable));
            rows.flag(Some(column.leads_index));
            rows.text(cursor.map(|candidate| candidate.field_type.as_str().into()));
            rows.text(column.unsupported.clone());
            rows.next();
        }
    }
    rows.finish()
}

/// The rows of `sync_incremental_fields`: cursor candidates, sync types, detected keys, columns.
pub(super) fn fields(table: &str, config: &SyncConfig, source: &SourceTable) -> Result<Vec<RecordBatch>> {
    let mut rows = Rows::new(FIELDS);
    let mut row = |kind: &str,
                   name: &str,
                   types: (Option<&str>, Option<String>),
                   flags: (Option<bool>, Option<bool>),
                   why: (Option<bool>, Option<String>)| {
        rows.text(Some(kind.into()));
        rows.text(Some(name.into()));
        rows.text(types.0.map(str::to_string));
        rows.text(types.1);
        rows.flag(flags.0);
        rows.flag(flags.1);
        rows.flag(why.0);
        rows.text(why.1);
        rows.next();
    };
    for candidate in candidates(source) {
        let (column, field_type) = (&candidate.column, candidate.field_type.as_str());
        let types = (Some(field_type), Some(column.source_type.clone()));
        let warning = (!column.leads_index).then(|| "it leads no index: each run looks through the whole table".to_string());
        row("incremental_field", &column.name, types, (Some(column.is_nullable), Some(column.leads_index)), (Some(true), warning));
    }
    for sync_type in SyncType::ALL {
        let reason = unavailable(table, config, *sync_type, source);
        row("sync_type", sync_type.as_str(), (None, None), (None, None), (Some(reason.is_none()), reason));
    }
    for name in &source.primary_key {
        let data_type = source.column(name).map(|column| column.source_type.clone());
        row("primary_key", name, (None, data_type), (Some(false), None), (Some(true), None));
    }
    for column in &source.columns {
        let types = (None, Some(column.source_type.clone()));
        let flags = (Some(column.is_nullable), Some(column.leads_index));
        row("column", &column.name, types, flags, (Some(column.unsupported.is_none()), column.unsupported.clone()));
    }
    rows.finish()
}

/// Why a type is not available for this source, with the table's key and, where it has one, its cursor.
fn unavailable(table: &str, config: &SyncConfig, sync_type: SyncType, source: &SourceTable) -> Option<String> {
    let mut wanted = SyncConfig { sync_type: Some(sync_type), ..SyncConfig::new(config.source.clone()) };
    wanted.primary_key_columns.clone_from(&config.primary_key_columns);
    if wanted.primary_key_columns.is_empty() {
        wanted.primary_key_columns.clone_from(&source.primary_key);
    }
    wanted.enabled_columns.clone_from(&config.enabled_columns);
    if sync_type.has_cursor() && config.incremental_field.is_some() {
        wanted.incremental_field.clone_from(&config.incremental_field);
        wanted.incremental_field_type = config.incremental_field_type;
    } else if sync_type.has_cursor() {
        let first = candidates(source).into_iter().next();
        wanted.incremental_field = first.as_ref().map(|candidate| candidate.column.name.clone());
        wanted.incremental_field_type = first.map(|candidate| candidate.field_type);
    }
    validate(table, &wanted, source, &Changes::default()).err().map(|error| error.message().to_string())
}
