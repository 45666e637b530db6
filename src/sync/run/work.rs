//! One synchronisation as the run engine drives it.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_schema::Schema;
use async_trait::async_trait;

use super::capture::SyncCapture;
use super::decide::{Ask, Decision, Standing, Write, decide};
use super::shape::{self, Shape};
use crate::error::{Error, ErrorCode, Result};
use crate::run::{Attempt, OutsideCapture, OutsideRun};
use crate::spec::sync::{KnownColumn, SyncConfig, SyncKind, SyncReport, SyncState, SyncTrigger, SyncType};
use crate::spec::{Definition, Revision, check_same_types};
use crate::store::{DefinitionEntry, SavedConfig, SourceState, SyncLog};
use crate::sync::SyncContext;
use crate::sync::config::{candidates, typed_filters, validate_types};
use crate::sync::connector::{RowFilter, SourceSnapshot, SourceTable};

/// A run with its source open.
#[derive(Debug)]
pub(super) struct Opened {
    pub config: SavedConfig,
    pub rebuilds: u64,
    /// Where the newest version stands.
    pub state: Option<SyncState>,
    snapshot: Option<Arc<dyn SourceSnapshot>>,
    pub filters: Vec<RowFilter>,
    pub decision: Decision,
    pub missing: Vec<String>,
    pub hidden: Schema,
    /// Whether a load went on where an earlier run was interrupted.
    pub resumed: Arc<AtomicBool>,
}

impl Opened {
    pub fn snapshot(&self) -> Result<Arc<dyn SourceSnapshot>> {
        self.snapshot.clone().ok_or_else(|| Error::internal("the run reads no source"))
    }

    /// The files that the run reads, where the source is files.
    pub fn files(&self) -> SourceState {
        self.snapshot.as_ref().map_or_else(SourceState::default, |snapshot| snapshot.files())
    }

    /// The generation that the run makes, or goes on with.
    pub fn generation(&self) -> u64 {
        let before = self.state.as_ref().map_or(0, |state| state.generation);
        let is_complete = self.decision.write == Write::Replace
            || self.decision.sync_type == SyncType::FullRefresh && self.decision.kind != SyncKind::Reconcile;
        before + u64::from(is_complete)
    }

    /// The columns that the source has.
    pub fn source_columns(&self) -> Vec<KnownColumn> {
        match &self.snapshot {
            Some(snapshot) => snapshot.table().known_columns(),
            None => self.state.as_ref().map(|state| state.source_columns.clone()).unwrap_or_default(),
        }
    }

    /// The key that the source declares.
    pub fn source_key(&self) -> Vec<String> {
        match &self.snapshot {
            Some(snapshot) => snapshot.table().primary_key.clone(),
            None => self.state.as_ref().map(|state| state.source_key.clone()).unwrap_or_default(),
        }
    }

    /// What is known of the run before it has read anything.
    pub fn report(&self, trigger: SyncTrigger) -> SyncReport {
        let mark = self.state.as_ref().and_then(|state| state.mark.as_ref()).map(|mark| mark.value.to_string());
        SyncReport {
            kind: Some(self.decision.kind),
            sync_type: Some(self.decision.sync_type),
            config: Some(self.config.number),
            generation: Some(self.generation()),
            mark_before: mark,
            ..SyncReport::new(trigger)
        }
    }
}

/// What a run of a synced table needs, and what it has found out.
#[derive(Debug)]
pub(crate) struct SyncWork {
    context: SyncContext,
    ask: Ask,
    trigger: SyncTrigger,
    opened: Mutex<Option<Arc<Opened>>>,
    resumed: Arc<AtomicBool>,
}

impl SyncWork {
    /// A run that does what is asked for.
    pub fn new(context: SyncContext, ask: Ask, trigger: SyncTrigger) -> Self {
        Self { context, ask, trigger, opened: Mutex::default(), resumed: Arc::default() }
    }

    /// Whether the run went on with a load that an earlier one began: what changed since is still to be read.
    pub fn is_resumed(&self) -> bool {
        self.resumed.load(std::sync::atomic::Ordering::Acquire)
    }

    fn opened(&self) -> Option<Arc<Opened>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn keep(&self, opened: Opened) {
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(opened));
    }

    /// Nothing is read and nothing is left.
    fn open_deletion(&self, config: SavedConfig, rebuilds: u64, state: Option<SyncState>) {
        let sync_type = state.as_ref().map_or(SyncType::FullRefresh, |state| state.sync_type);
        let decision = Decision { kind: SyncKind::Delete, sync_type, write: Write::Replace, mark: None };
        let resumed = Arc::clone(&self.resumed);
        self.keep(Opened {
            config,
            rebuilds,
            state,
            snapshot: None,
            filters: vec![],
            decision,
            missing: vec![],
            hidden: Schema::empty(),
            resumed,
        });
    }

    /// Opens the source, decides, and finds the columns.
    async fn open(&self, attempt: &Attempt, log: &SyncLog, config: SavedConfig) -> Result<(Decision, Shape)> {
        let base = attempt.base.as_ref().map(|base| &base.manifest);
        let state = base.and_then(|manifest| manifest.sync.clone());
        let made_by = state.as_ref().and_then(|state| log.config(state.config)).map(|saved| &saved.config);
        let standing = Standing {
            config: &config.config,
            state: state.as_ref().zip(made_by),
            base_key: base.map_or(&[], |manifest| manifest.key.as_slice()),
            rebuilds: log.rebuilds,
        };
        let mut decision = decide(&attempt.table, self.ask, standing)?;
        let connector = self.context.connector(&config.config.source).await?;
        // Only a new load and a rebuild forget what columns there were.
        let goes_on = decision.write != Write::Replace || decision.kind == SyncKind::Continue;
        let known = base.filter(|_| goes_on).map(|manifest| manifest.output_schema.as_ref());
        let snapshot = connector.snapshot(&config.config.source.table, known, attempt.task_context()).await?;
        if let Some(manifest) = base.filter(|_| goes_on) {
            snapshot.check_since(&attempt.incarnation.source_state(manifest).await?)?;
        }
        check_source(attempt, &config.config, snapshot.table())?;
        validate_types(attempt.name(), &config.config, snapshot.table())?;
        if decision.write != Write::Replace {
            check_key(attempt, &config.config, state.as_ref(), snapshot.table())?;
        }
        // Keys are compared under the conditions that the stored rows were read by: a newer configuration is still to be applied.
        let conditions = made_by.filter(|_| decision.kind == SyncKind::Reconcile).unwrap_or(&config.config);
        let filters = typed_filters(attempt.name(), &conditions.row_filters, snapshot.table())?;
        // Rows that are replaced hide nothing.
        let keeps_rows = decision.write != Write::Replace;
        let hidden = state.as_ref().filter(|_| keeps_rows).map_or_else(Schema::empty, |state| state.hidden_columns.clone());
        let shape = match base {
            Some(manifest) if goes_on => {
                let shape = shape::evolved(&attempt.table, &config.config, snapshot.table(), (&manifest.output_schema, &hidden))?;
                if shape.has_wider_key && decision.kind != SyncKind::Reconcile && matches!(decision.write, Write::Merge { .. }) {
                    decision = Decision { kind: SyncKind::Rebuild, write: Write::Replace, mark: None, ..decision };
                    shape::fresh(&config.config, snapshot.table())
                } else {
                    shape
                }
            }
            _ => shape::fresh(&config.config, snapshot.table()),
        };
        let hidden = if decision.write == Write::Replace { Schema::empty() } else { shape.hidden.clone() };
        let (missing, resumed) = (shape.missing.clone(), Arc::clone(&self.resumed));
        self.keep(Opened {
            config,
            rebuilds: log.rebuilds,
            state,
            snapshot: Some(snapshot),
            filters,
            decision: decision.clone(),
            missing,
            hidden,
            resumed,
        });
        Ok((decision, shape))
    }
}

#[async_trait]
impl OutsideRun for SyncWork {
    fn trigger(&self) -> SyncTrigger {
        self.trigger
    }

    fn report(&self) -> Option<SyncReport> {
        let unopened = || SyncReport {
            kind: match self.ask {
                Ask::Sync => None,
                Ask::Reconcile => Some(SyncKind::Reconcile),
                Ask::Delete => Some(SyncKind::Delete),
            },
            ..SyncReport::new(self.trigger)
        };
        Some(self.opened().map_or_else(unopened, |opened| opened.report(self.trigger)))
    }

    async fn revise(&self, attempt: &Attempt) -> Result<Revision> {
        let log = attempt.incarnation.sync_log().await?;
        let config = log.newest().cloned().ok_or_else(|| Error::internal("a synced table without a configuration"))?;
        let base = attempt.base.as_ref();
        if self.ask == Ask::Delete {
            self.open_deletion(config, log.rebuilds, base.and_then(|base| base.manifest.sync.clone()));
            return Ok(attempt.revision.as_ref().clone());
        }
        let (decision, shape) = self.open(attempt, &log, config.clone()).await?;
        if decision.kind == SyncKind::Reconcile {
            let number = base.map_or(attempt.revision.number, |base| base.manifest.revision);
            let revision = attempt.definitions.revision(number).cloned();
            return revision.ok_or_else(|| Error::internal(format!("the newest version names revision {number}, which was never saved")));
        }
        let definition = shape::definition(&config.config.source, config.config.merge_key(), shape.schema);
        save(attempt, definition).await
    }

    async fn capture(&self, attempt: &Arc<Attempt>) -> Result<Arc<dyn OutsideCapture>> {
        let opened = self.opened().ok_or_else(|| Error::internal("a run captured before it was opened"))?;
        if self.ask == Ask::Delete {
            return Ok(Arc::new(SyncCapture::delete(attempt, opened, self.trigger)));
        }
        Ok(Arc::new(SyncCapture::open(attempt, opened, self.trigger, self.context.segment_rows).await?))
    }

    fn explain(&self, attempt: &Attempt, error: Error) -> Error {
        let name = attempt.table.sql_name();
        let remedy = match error.code() {
            ErrorCode::KeyDuplicate => format!(
                "make the key unique in the source, or ALTER SYNCED TABLE {name} SET (primary_key_columns = (…)) CONFIRM with columns that identify a row"
            ),
            ErrorCode::KeyNull => format!(
                "fill the column in the source, or ALTER SYNCED TABLE {name} SET (primary_key_columns = (…)) CONFIRM with columns that are never null"
            ),
            _ => return error,
        };
        let what = error.message().split(" Remedy: ").next().unwrap_or_default().to_string();
        Error::new(error.code(), format!("{what} Remedy: {remedy}")).with_source(error)
    }
}

/// The revision of `definition`: the active one where that is the same, else a new one.
async fn save(attempt: &Attempt, definition: Definition) -> Result<Revision> {
    let log = attempt.incarnation.definitions().await?;
    if let Some(active) = log.active().filter(|active| is_same(&active.definition, &definition)) {
        return Ok(active.clone());
    }
    let number = log.newest().map_or(1, |newest| newest.number + 1);
    let revision = Revision { number, digest: definition.digest(), saved_at: attempt.now(), definition };
    let entry = DefinitionEntry::Save { revision: Box::new(revision.clone()), activate: true, options: None };
    attempt.incarnation.append_definition(&log, entry).await?;
    Ok(revision)
}

fn is_same(a: &Definition, b: &Definition) -> bool {
    let names = |definition: &Definition| definition.output_schema.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>();
    a.key == b.key && names(a) == names(b) && check_same_types(&a.output_schema, &b.output_schema, &names(a)).is_empty()
}

/// The cursor and the key must be there; what else is gone is a question of columns.
fn check_source(attempt: &Attempt, config: &SyncConfig, source: &SourceTable) -> Result<()> {
    let name = attempt.table.sql_name();
    let gone = |what: &str, column: &str, remedy: String| {
        Error::new(
            ErrorCode::FieldNotFound,
            format!(
                "synced table {:?}: {what} {column:?} is not in {:?} any more. Nothing was published. Remedy: {remedy}",
                attempt.name(),
                source.display_name()
            ),
        )
    };
    if let Some(cursor) = config.incremental_field.as_ref().filter(|_| config.sync_type.is_some_and(SyncType::has_cursor))
        && source.column(cursor).is_none()
    {
        let others: Vec<String> = candidates(source).into_iter().map(|candidate| candidate.column.name).collect();
        // Appended rows cannot be merged, so any other choice replaces them.
        let confirm = if config.sync_type == Some(SyncType::Append) { " CONFIRM" } else { "" };
        let best = others.iter().find(|other| !config.primary_key_columns.contains(other)).or(others.first());
        let remedy = match best {
            Some(best) => format!(
                "ALTER SYNCED TABLE {name} SET (incremental_field = '{best}'){confirm}; possible are {}. Or SET (sync_type = 'full_refresh'){confirm}",
                others.join(", ")
            ),
            None => format!("ALTER SYNCED TABLE {name} SET (sync_type = 'full_refresh'){confirm}: no column of the source can be a cursor"),
        };
        return Err(gone("the cursor column", cursor, remedy));
    }
    if let Some(column) = config.merge_key().iter().find(|column| source.column(column).is_none()) {
        let key = if source.primary_key.is_empty() { "…".to_string() } else { format!("'{}'", source.primary_key.join("', '")) };
        return Err(gone("the key column", column, format!("ALTER SYNCED TABLE {name} SET (primary_key_columns = ({key})) CONFIRM")));
    }
    if let Some(filter) = config.row_filters.iter().find(|filter| source.column(&filter.column).is_none()) {
        return Err(gone("the column of a row filter", &filter.column, format!("ALTER SYNCED TABLE {name} SET (row_filters = …)")));
    }
    Ok(())
}

/// A source whose own key is another one now may hold rows that the stored key does not tell apart.
fn check_key(attempt: &Attempt, config: &SyncConfig, state: Option<&SyncState>, source: &SourceTable) -> Result<()> {
    let Some(state) = state.filter(|_| config.sync_type == Some(SyncType::Incremental)) else { return Ok(()) };
    let follows = config.primary_key_columns == state.source_key && !state.source_key.is_empty();
    if !follows || state.source_key == source.primary_key {
        return Ok(());
    }
    let name = attempt.table.sql_name();
    let remedy = match source.primary_key.is_empty() {
        true => format!(
            "if ({}) still identifies a row, CALL sync.resync({}, confirm => true)",
            state.source_key.join(", "),
            attempt.table.sql_literal()
        ),
        false => format!(
            "ALTER SYNCED TABLE {name} SET (primary_key_columns = ('{}')) CONFIRM; the next run rebuilds the table. If ({}) still identifies \
             a row: CALL sync.resync({}, confirm => true)",
            source.primary_key.join("', '"),
            state.source_key.join(", "),
            attempt.table.sql_literal()
        ),
    };
    Err(Error::new(
        ErrorCode::PkChanged,
        format!(
            "synced table {:?}: the key of {:?} was ({}) and is ({}). Nothing was published. Remedy: {remedy}",
            attempt.name(),
            source.display_name(),
            state.source_key.join(", "),
            source.primary_key.join(", ")
        ),
    ))
}
