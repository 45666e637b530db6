//! Create, or attach to what a location already holds.

use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use datafusion::common::TableReference;

use crate::env::Location;
use crate::error::{Error, ErrorCode, Result};
use crate::plan::source::{describe, resolve};
use crate::run::{Host, tables_behind};
use crate::spec::sync::RefreshSchedule;
use crate::spec::{Definition, HandlerSpec, OptionKind, Options, Revision, SourceSpec, check_same_types};
use crate::store::{DefinitionEntry, DefinitionLog, Incarnation, TableState, TableStore};
use crate::table::{TableHandle, shown_name};

use super::analyze::{HandlerChoice, Parts, definition};

/// A table as the user defines it.
#[derive(Debug, Clone)]
pub struct TableSpec {
    /// The table's name.
    pub name: TableReference,
    /// The source's name.
    pub source: TableReference,
    /// The key columns.
    pub key: Vec<String>,
    /// The tracked columns; `None`: those that the handler reads.
    pub track: Option<Vec<String>>,
    /// The transformation.
    pub handler: HandlerChoice,
    /// Semantic and operational options.
    pub options: Options,
    /// Columns that the user declared; they must be the table's.
    pub columns: Option<SchemaRef>,
}

/// What to do when the location holds the table already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Attach; a definition that contradicts is `DEFINITION_MISMATCH`.
    Attach,
    /// Save a revision where the definition differs (CREATE OR ALTER).
    Alter,
}

/// The table, and whether it was there before.
#[derive(Debug)]
pub struct Created {
    /// The table.
    pub handle: Arc<TableHandle>,
    /// Whether the location held it already.
    pub attached: bool,
    /// The revision that was saved now.
    pub saved: Option<u64>,
}

/// Creates the table at `location`, or attaches to it. Nothing is written when anything is wrong.
///
/// # Errors
/// `SOURCE_NOT_FOUND`, every refusal of the handler, `DEFINITION_MISMATCH`, `STORE_UNSAFE`, and the store's errors.
pub async fn create(host: &Host, spec: &TableSpec, location: Location, existing: Existing) -> Result<Created> {
    let name = shown_name(&spec.name);
    if spec.name.resolved_eq(&spec.source) {
        return Err(Error::new(
            ErrorCode::DefinitionInvalid,
            format!("table {name:?} cannot be its own source. Remedy: name the table that the rows come from"),
        ));
    }
    let source = describe(&host.state, &spec.source).await?;
    let parts = Parts {
        source,
        key: spec.key.clone(),
        track: spec.track.clone(),
        handler: spec.handler.clone(),
        options: spec.options.of_kind(OptionKind::Semantic),
    };
    let definition = definition(host, &name, &parts).await?;
    if let Some(columns) = &spec.columns {
        check_columns(&name, columns, &definition.output_schema)?;
    }
    let operational = spec.options.of_kind(OptionKind::Operational);
    check_schedule(host, &name, &definition.source, &operational).await?;
    let store = TableStore::new(host.env.clone(), location);
    let stored_name = spec.name.to_quoted_string();
    let state = store.state().await?;
    let was_dropped = matches!(state, TableState::Dropped(_));
    let incarnation = match state {
        TableState::Absent | TableState::Purged(_) => {
            let incarnation = store.create(&stored_name).await?;
            return first_revision(host, incarnation, &spec.name, definition, operational).await;
        }
        TableState::Dropped(_) => store.revive().await?,
        TableState::Live(_) => open(&store, &name).await?,
    };
    let log = incarnation.definitions().await?;
    if log.newest().is_none() {
        // The process that created it died before its first revision.
        return first_revision(host, incarnation, &spec.name, definition, operational).await;
    }
    if log.newest().is_some_and(|newest| newest.definition.handler == HandlerSpec::Synced) {
        if was_dropped {
            store.drop_table(incarnation.id()).await?;
        }
        let place = incarnation.store().location().display();
        return Err(Error::new(
            ErrorCode::DefinitionMismatch,
            format!("table {name:?}: {place} holds a synced table. Remedy: another name or LOCATION, or DROP SYNCED TABLE … PURGE first"),
        ));
    }
    let saved = reconcile(host, &incarnation, log, (&name, definition, operational), existing).await?;
    let handle = TableHandle::from_incarnation(incarnation, spec.name.clone()).await?;
    Ok(Created { handle, attached: true, saved })
}

/// A table that follows its source needs one whose versions say when it changed.
///
/// # Errors
/// `OPTION_UNKNOWN` for `after_source` where no managed table is behind the source.
pub(super) async fn check_schedule(host: &Host, table: &str, source: &SourceSpec, options: &Options) -> Result<()> {
    let schedule = options.get("schedule").and_then(RefreshSchedule::parse);
    if schedule != Some(RefreshSchedule::AfterSource) {
        return Ok(());
    }
    let source = resolve(&host.state, table, source).await?;
    if tables_behind(source.provider.as_ref()).is_empty() {
        return Err(Error::new(
            ErrorCode::OptionUnknown,
            format!(
                "table {table:?}: option \"schedule\" cannot be 'after_source': its source is neither an incremental nor a synced table, so nothing \
                 says when it changed. Remedy: an interval, such as '1hour'"
            ),
        ));
    }
    Ok(())
}

/// Declared columns are optional; those that are written must be the table's.
///
/// # Errors
/// `DEFINITION_MISMATCH`, naming the first column that differs.
pub fn check_columns(table: &str, declared: &Schema, found: &Schema) -> Result<()> {
    let names: Vec<String> = declared.fields().iter().map(|field| field.name().clone()).collect();
    let Some(difference) = check_same_types(declared, found, &names).into_iter().next() else { return Ok(()) };
    let is = difference.now.map_or("the table does not have it".to_string(), |now| format!("it is {now}"));
    let column = difference.column;
    Err(Error::new(
        ErrorCode::DefinitionMismatch,
        format!(
            "table {table:?}: column {column:?} is not as it is declared: {is}. Remedy: correct the declared columns, or leave them out"
        ),
    ))
}

/// Attaches to the table that `location` holds.
///
/// # Errors
/// `TABLE_NOT_FOUND` when the location holds none.
pub async fn attach(host: &Host, name: &TableReference, location: Location) -> Result<Arc<TableHandle>> {
    let store = TableStore::new(host.env.clone(), location);
    let incarnation = open(&store, &shown_name(name)).await?;
    TableHandle::from_incarnation(incarnation, name.clone()).await
}

async fn open(store: &TableStore, name: &str) -> Result<Incarnation> {
    store.open().await?.ok_or_else(|| {
        Error::new(
            ErrorCode::TableNotFound,
            format!("no incremental table {name:?} is at {}. Remedy: check the location, or define the table", store.location().display()),
        )
    })
}

async fn first_revision(
    host: &Host,
    incarnation: Incarnation,
    name: &TableReference,
    definition: Definition,
    options: Options,
) -> Result<Created> {
    let log = incarnation.definitions().await?;
    let revision = Revision { number: 1, digest: definition.digest(), saved_at: host.env.clock.now_micros(), definition };
    let options = (!options.is_empty()).then_some(options);
    incarnation.append_definition(&log, DefinitionEntry::Save { revision: Box::new(revision), activate: true, options }).await?;
    let handle = TableHandle::from_incarnation(incarnation, name.clone()).await?;
    Ok(Created { handle, attached: false, saved: Some(1) })
}

/// Compares what is stored with what is asked for.
async fn reconcile(
    host: &Host,
    incarnation: &Incarnation,
    log: DefinitionLog,
    wanted: (&str, Definition, Options),
    existing: Existing,
) -> Result<Option<u64>> {
    let (name, definition, options) = wanted;
    let stored = log.active().or_else(|| log.newest());
    let same = stored.is_some_and(|stored| same_results(&stored.definition, &definition));
    let same_options = options.is_empty() || log.options == options;
    if same && same_options {
        if existing == Existing::Alter {
            follow_source(incarnation, &log, stored.map(|stored| &stored.definition.source), definition.source).await?;
        }
        return Ok(None);
    }
    if existing == Existing::Attach {
        let what = if same { "other options" } else { "another definition" };
        return Err(Error::new(
            ErrorCode::DefinitionMismatch,
            format!(
                "table {name:?}: {} holds the table with {what}. Remedy: CREATE OR ALTER to change it, or another LOCATION",
                incarnation.store().location().display()
            ),
        ));
    }
    let log = if same {
        follow_source(incarnation, &log, stored.map(|stored| &stored.definition.source), definition.source.clone()).await?
    } else {
        log
    };
    let options = (!same_options).then_some(options);
    let number = log.newest().map_or(1, |newest| newest.number + 1);
    let entry = match (same, options) {
        (true, Some(options)) => DefinitionEntry::SetOptions { options },
        (_, options) => {
            let digest = definition.digest();
            let revision = Revision { number, digest, saved_at: host.env.clock.now_micros(), definition };
            DefinitionEntry::Save { revision: Box::new(revision), activate: true, options }
        }
    };
    incarnation.append_definition(&log, entry).await?;
    Ok((!same).then_some(number))
}

/// Keeps the statements of the source as the session has it now, if they differ from those that are stored: else another
/// process would read the source where it was before. No rows change, so this is no revision.
pub(super) async fn follow_source(
    incarnation: &Incarnation,
    log: &DefinitionLog,
    stored: Option<&SourceSpec>,
    now: SourceSpec,
) -> Result<DefinitionLog> {
    let known = stored.is_some_and(|stored| stored.name != now.name || stored.statements == now.statements);
    if known {
        return Ok(log.clone());
    }
    incarnation.append_definition(log, DefinitionEntry::SetSource { source: now }).await
}

/// Whether two definitions decide the same results; how the source is brought back in another process does not count.
pub(super) fn same_results(a: &Definition, b: &Definition) -> bool {
    let columns: Vec<String> = a.key.iter().chain(&a.tracked).cloned().collect();
    let outputs: Vec<String> = a.output_schema.fields().iter().map(|f| f.name().clone()).collect();
    a.source.name == b.source.name
        && a.key == b.key
        && a.tracked == b.tracked
        && a.handler == b.handler
        && a.incremental == b.incremental
        && a.options == b.options
        && a.session == b.session
        && a.functions == b.functions
        && a.output_schema.fields().len() == b.output_schema.fields().len()
        && check_same_types(&a.input_schema, &b.input_schema, &columns).is_empty()
        && check_same_types(&a.output_schema, &b.output_schema, &outputs).is_empty()
}
