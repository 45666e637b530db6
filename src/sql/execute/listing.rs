//! The verbs that list: tables, runs, versions, revisions, files.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::TableReference;
use datafusion::execution::SessionState;

use super::cells::Kind::{self, Flag, Number, Text, Time};
use super::cells::{Rows, schema};
use super::verb::{Action, Outcome};
use crate::error::{Error, ErrorCode, Result};
use crate::run::all_summaries;
use crate::spec::{HandlerSpec, RunSummary};
use crate::sql::resolve::{all_tables, incremental_table};
use crate::table::TableHandle;

const TABLES: &[(&str, Kind)] = &[
    ("table_name", Text),
    ("source", Text),
    ("key_columns", Text),
    ("tracked_columns", Text),
    ("handler", Text),
    ("active_revision", Number),
    ("newest_revision", Number),
    ("version", Number),
    ("rows", Number),
    ("committed_at", Time),
    ("location", Text),
];
const VERSIONS: &[(&str, Kind)] = &[
    ("table_name", Text),
    ("version", Number),
    ("base", Number),
    ("kind", Text),
    ("run_id", Text),
    ("revision", Number),
    ("rows", Number),
    ("files_added", Number),
    ("files_removed", Number),
    ("committed_at", Time),
];
const REVISIONS: &[(&str, Kind)] = &[
    ("table_name", Text),
    ("revision", Number),
    ("active", Flag),
    ("saved_at", Time),
    ("digest", Text),
    ("source", Text),
    ("key_columns", Text),
    ("tracked_columns", Text),
    ("handler", Text),
];
const FILES: &[(&str, Kind)] = &[
    ("table_name", Text),
    ("path", Text),
    ("rows", Number),
    ("live_rows", Number),
    ("data_bytes", Number),
    ("index_bytes", Number),
    ("deletion_vector", Text),
    ("added_in", Number),
];

/// The action of one listing; without a table it lists all.
pub(super) fn prepare(verb: &'static str, table: Option<TableReference>) -> Outcome {
    let names = match verb {
        "tables" => TABLES,
        "versions" => VERSIONS,
        "revisions" => REVISIONS,
        "files" => FILES,
        _ => &[],
    };
    let schema = if names.is_empty() { RunSummary::schema() } else { schema(names) };
    Action::outcome(schema, move |state| {
        let table = table.clone();
        async move {
            let tables = chosen(&state, table).await?;
            if names.is_empty() {
                return runs(&tables).await;
            }
            let mut rows = Rows::new(names);
            for (name, table) in &tables {
                match verb {
                    "tables" => table_row(&mut rows, name, table).await?,
                    "versions" => version_rows(&mut rows, table).await?,
                    "revisions" => revision_rows(&mut rows, table).await?,
                    _ => file_rows(&mut rows, table).await?,
                }
            }
            rows.finish()
        }
    })
}

type Tables = Vec<(String, Arc<TableHandle>)>;

async fn chosen(state: &SessionState, table: Option<TableReference>) -> Result<Tables> {
    if let Some(name) = table {
        let handle = incremental_table(state, &name).await?;
        return Ok(vec![(handle.name().to_string(), handle)]);
    }
    // Synced tables have listings of their own; by name they are listed here too.
    let all = all_tables(state).await?.into_iter().filter(|(_, handle)| !handle.is_synced());
    Ok(all.map(|(_, handle)| (handle.name().to_string(), handle)).collect())
}

async fn runs(tables: &Tables) -> Result<Vec<RecordBatch>> {
    let mut rows = vec![];
    for (_, table) in tables {
        rows.extend(all_summaries(table).await?);
    }
    let batch = RunSummary::to_batch(&rows).map_err(|e| Error::from_datafusion(e.into(), ErrorCode::Internal, "the rows of runs"))?;
    Ok(vec![batch])
}

fn source_name(name: &[String; 3]) -> String {
    let [catalog, schema, table] = name;
    TableReference::full(catalog.as_str(), schema.as_str(), table.as_str()).to_quoted_string()
}

fn handler_text(handler: &HandlerSpec) -> String {
    match handler {
        HandlerSpec::Sql { text } => text.clone(),
        HandlerSpec::Registered { name, version } => format!("{name} (version {version})"),
        HandlerSpec::Synced => String::new(),
    }
}

async fn table_row(rows: &mut Rows, name: &str, table: &TableHandle) -> Result<()> {
    let log = table.incarnation().definitions().await?;
    let newest = table.newest_manifest().await?;
    let definition = log.active().or_else(|| log.newest()).map(|revision| &revision.definition);
    rows.text(Some(name.to_string()));
    rows.text(definition.map(|d| source_name(&d.source.name)));
    rows.text(definition.map(|d| d.key.join(", ")));
    rows.text(definition.map(|d| d.tracked.join(", ")));
    rows.text(definition.map(|d| handler_text(&d.handler)));
    rows.number(log.active);
    rows.number(log.newest().map(|revision| revision.number));
    rows.number(newest.as_ref().map(|manifest| manifest.version));
    rows.number(newest.as_ref().map(|manifest| manifest.rows));
    rows.time(newest.as_ref().map(|manifest| manifest.committed_at));
    rows.text(Some(table.incarnation().store().location().display()));
    rows.next();
    Ok(())
}

/// Newest first. A version whose manifest was vacuumed keeps its slot: number and run.
async fn version_rows(rows: &mut Rows, table: &TableHandle) -> Result<()> {
    let incarnation = table.incarnation();
    let newest = incarnation.newest_version().await?.map_or(0, |slot| slot.version);
    for version in (1..=newest).rev() {
        let Some(slot) = incarnation.slot(version).await? else { continue };
        let manifest = match incarnation.manifest(&slot).await {
            Ok(manifest) => Some(manifest),
            Err(error) if error.code() == ErrorCode::HistoryMissing => None,
            Err(error) => return Err(error),
        };
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        rows.text(Some(table.name().to_string()));
        rows.number(Some(version));
        rows.number(manifest.as_ref().and_then(|m| m.base));
        rows.text(manifest.as_ref().map(|m| format!("{:?}", m.kind).to_ascii_lowercase()));
        rows.text(Some(slot.run.as_str().to_string()));
        rows.number(manifest.as_ref().map(|m| m.revision));
        rows.number(manifest.as_ref().map(|m| m.rows));
        rows.number(manifest.as_ref().map(|m| count(m.delta.added.len())));
        rows.number(manifest.as_ref().map(|m| count(m.delta.removed.len())));
        rows.time(manifest.as_ref().map(|m| m.committed_at));
        rows.next();
    }
    Ok(())
}

async fn revision_rows(rows: &mut Rows, table: &TableHandle) -> Result<()> {
    let log = table.incarnation().definitions().await?;
    for revision in log.revisions.iter().rev() {
        let definition = &revision.definition;
        rows.text(Some(table.name().to_string()));
        rows.number(Some(revision.number));
        rows.flag(Some(log.active == Some(revision.number)));
        rows.time(Some(revision.saved_at));
        rows.text(Some(revision.digest.clone()));
        rows.text(Some(source_name(&definition.source.name)));
        rows.text(Some(definition.key.join(", ")));
        rows.text(Some(definition.tracked.join(", ")));
        rows.text(Some(handler_text(&definition.handler)));
        rows.next();
    }
    Ok(())
}

async fn file_rows(rows: &mut Rows, table: &TableHandle) -> Result<()> {
    let Some(snapshot) = table.newest().await? else { return Ok(()) };
    for file in snapshot.files.iter() {
        rows.text(Some(table.name().to_string()));
        rows.text(Some(file.data.path.clone()));
        rows.number(Some(file.rows));
        rows.number(Some(file.live_rows()));
        rows.number(Some(file.data.bytes));
        rows.number(Some(file.index.bytes));
        rows.text(file.deletions.as_ref().map(|dv| dv.object.path.clone()));
        rows.number(Some(file.added_in));
        rows.next();
    }
    Ok(())
}
