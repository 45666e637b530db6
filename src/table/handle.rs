//! One table as a session knows it: its name, its folder, and the newest version seen so far.
//!
//! ```text
//! newest()  one look-up of the slot after the cached one ──► same version: the cached snapshot
//!                                                        └─► another: manifest and file list, then the cache follows
//! ```
//!
//! Memory: one snapshot (the file list of one version and what scans derived of it). It never writes.

use std::sync::{Arc, Mutex, RwLock};

use arrow_schema::{Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::TableReference;

use super::Snapshot;
use super::pin::{RecentPins, StatementPin};
use super::snapshot;
use crate::env::{Env, Location};
use crate::error::{Error, ErrorCode, Result};
use crate::spec::sync::SyncPhase;
use crate::spec::{HandlerSpec, Revision, RunId, VersionNumber};
use crate::store::{Incarnation, Manifest, Slot, TableStore};

/// A table. Shared: cheap to clone as `Arc`.
#[derive(Debug)]
pub struct TableHandle {
    name: TableReference,
    shown: String,
    incarnation: Incarnation,
    cached: RwLock<Cached>,
    pub(super) recent: Mutex<RecentPins>,
}

/// What planning needs without asking the store.
#[derive(Debug, Clone)]
struct Cached {
    schema: SchemaRef,
    key: Vec<String>,
    verify: bool,
    is_synced: bool,
    newest: Option<(String, Arc<Snapshot>)>, // with the hash of its manifest
}

impl TableHandle {
    /// Opens the live table in `location`. `name` is what the session calls it.
    ///
    /// # Errors
    /// `TABLE_NOT_FOUND` when the location holds no live table.
    pub async fn open(env: Env, location: Location, name: TableReference) -> Result<Arc<Self>> {
        let shown = location.display();
        match TableStore::new(env, location).open().await? {
            Some(incarnation) => Self::from_incarnation(incarnation, name).await,
            None => Err(Error::new(
                ErrorCode::TableNotFound,
                format!(
                    "table {:?}: {shown:?} holds no incremental table. Remedy: CREATE INCREMENTAL TABLE, or give the location of one",
                    shown_name(&name)
                ),
            )),
        }
    }

    /// A handle on an incarnation that is open already.
    ///
    /// # Errors
    /// What reading the definition and the newest version's slot may fail with. A version whose description is damaged is
    /// no error here but for all who read it.
    pub async fn from_incarnation(incarnation: Incarnation, name: TableReference) -> Result<Arc<Self>> {
        let cached = Cached { schema: Arc::new(Schema::empty()), key: vec![], verify: false, is_synced: false, newest: None };
        let shown = shown_name(&name);
        let handle = Self { name, shown, incarnation, cached: RwLock::new(cached), recent: Mutex::default() };
        match handle.refresh().await {
            // Reading says so too; REFRESH … FULL mends it, which takes a table that is open.
            Err(error) if matches!(error.code(), ErrorCode::Corrupt | ErrorCode::HistoryMissing) => {
                let log = handle.incarnation.definitions().await?;
                handle.incarnation.newest_version().await?;
                log::warn!("{error}");
                handle.follow_revision(log.active().or_else(|| log.newest()));
            }
            refreshed => refreshed?,
        }
        Ok(Arc::new(handle))
    }

    /// What messages call the table: its name without the default catalog and schema.
    pub fn name(&self) -> &str {
        &self.shown
    }

    /// The name as a statement takes it: quoted where SQL would read another one.
    pub fn sql_name(&self) -> String {
        self.name.to_quoted_string()
    }

    /// The name as the first argument of a verb: [`Self::sql_name`] as a text literal.
    pub fn sql_literal(&self) -> String {
        format!("'{}'", self.sql_name().replace('\'', "''"))
    }

    /// What the session calls the table.
    pub fn reference(&self) -> &TableReference {
        &self.name
    }

    /// The table's folder.
    pub fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    /// The table's store.
    pub fn store(&self) -> &TableStore {
        self.incarnation.store()
    }

    /// The published schema as this process last saw it; before the first publish that of the active revision.
    pub fn cached_schema(&self) -> SchemaRef {
        self.cached().schema
    }

    /// The key columns as this process last saw them.
    pub fn cached_key(&self) -> Vec<String> {
        self.cached().key
    }

    /// Whether its rows are brought in from a source as they are.
    pub fn is_synced(&self) -> bool {
        self.cached().is_synced
    }

    /// The statement that publishes its first version.
    pub fn first_remedy(&self) -> String {
        match self.is_synced() {
            true => format!("CALL sync.reload({})", self.sql_literal()),
            false => format!("REFRESH {}", self.sql_name()),
        }
    }

    /// Refuses a synced table where only an incremental one makes sense; `instead` is what a synced one has.
    ///
    /// # Errors
    /// `DEFINITION_MISMATCH`.
    pub fn check_incremental(&self, instead: &str) -> Result<()> {
        if !self.is_synced() {
            return Ok(());
        }
        Err(Error::new(ErrorCode::DefinitionMismatch, format!("table {:?} is a synced table. Remedy: {instead}", self.name())))
    }

    /// Whether both handles mean the same incarnation of the same table.
    pub fn is_same_table(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }

    pub(super) fn identity(&self) -> String {
        format!("{}\n{}", self.store().location().display(), self.incarnation.id())
    }

    fn cached(&self) -> Cached {
        self.cached.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    fn update(&self, change: impl FnOnce(&mut Cached)) {
        change(&mut self.cached.write().unwrap_or_else(|poisoned| poisoned.into_inner()));
    }

    /// Reads definition, options and newest version again; call it after a statement that changed one of them.
    ///
    /// # Errors
    /// What reading them may fail with.
    pub async fn refresh(&self) -> Result<()> {
        self.recent.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clear();
        let log = self.incarnation.definitions().await?;
        let verify = log.options.operational(self.name())?.verify_always;
        self.update(|cached| {
            if cached.verify != verify {
                cached.newest = None;
            }
            cached.verify = verify;
            let newest = log.active().or_else(|| log.newest());
            cached.is_synced = newest.is_some_and(|revision| revision.definition.handler == HandlerSpec::Synced);
        });
        if self.newest().await?.is_none() {
            self.follow_revision(log.active().or_else(|| log.newest()));
        }
        Ok(())
    }

    /// The manifest of the newest version; `None` before the first publish.
    ///
    /// # Errors
    /// As [`Self::newest`].
    pub async fn newest_manifest(&self) -> Result<Option<Arc<Manifest>>> {
        match self.incarnation.newest_version().await? {
            Some(slot) => Ok(Some(self.incarnation.manifest(&slot).await?)),
            None => Ok(None),
        }
    }

    /// [`Self::refresh`] after something was changed: when it fails now, the next statement meets the error itself.
    pub async fn follow(&self) {
        if let Err(error) = self.refresh().await {
            log::warn!("table {:?}: its newest version could not be read: {error}", self.name());
        }
    }

    /// Before the first publish, planning goes by the revision that will publish.
    fn follow_revision(&self, revision: Option<&Revision>) {
        let Some(revision) = revision else { return };
        self.update(|cached| {
            if cached.newest.is_none() {
                cached.schema = Arc::clone(&revision.definition.output_schema);
                cached.key.clone_from(&revision.definition.key);
            }
        });
    }

    /// The newest accepted version; `None` before the first publish.
    ///
    /// # Errors
    /// `TABLE_NOT_FOUND` when the table was dropped and purged, `HISTORY_MISSING`, `CORRUPT`, `STORE_FAILED`.
    pub async fn newest(&self) -> Result<Option<Arc<Snapshot>>> {
        let Some(slot) = self.incarnation.newest_version().await? else {
            self.still_there().await?;
            return Ok(None);
        };
        let cached = self.cached();
        if let Some((hash, snapshot)) = &cached.newest
            && *hash == slot.manifest_hash
        {
            return Ok(Some(Arc::clone(snapshot)));
        }
        if self.is_emptied(&slot).await? {
            return Ok(None);
        }
        let log = self.incarnation.definitions().await?;
        let verify = log.options.operational(self.name())?.verify_always;
        let snapshot = Arc::new(snapshot::load(&self.incarnation, &slot, verify).await?);
        self.update(|cached| {
            let known = cached.newest.as_ref().and_then(|(_, known)| known.version);
            if known <= Some(slot.version) {
                cached.schema = Arc::clone(&snapshot.output_schema);
                cached.key.clone_from(&snapshot.key);
                cached.verify = verify;
                cached.newest = Some((slot.manifest_hash.clone(), Arc::clone(&snapshot)));
            }
        });
        Ok(Some(snapshot))
    }

    /// Whether the data of a synced table was deleted on request: then it is read as if it had never been published.
    async fn is_emptied(&self, slot: &Slot) -> Result<bool> {
        let manifest = self.incarnation.manifest(slot).await?;
        let is_empty = manifest.sync.as_ref().is_some_and(|sync| sync.phase == SyncPhase::Empty);
        if is_empty {
            self.update(|cached| {
                cached.newest = None;
                cached.schema = Arc::clone(&manifest.output_schema);
                cached.key.clone_from(&manifest.key);
            });
        }
        Ok(is_empty)
    }

    /// No version: never published, or purged by somebody else.
    async fn still_there(&self) -> Result<()> {
        match self.store().open().await? {
            Some(live) if live.id() == self.incarnation.id() => {
                let log = self.incarnation.definitions().await?;
                self.follow_revision(log.active().or_else(|| log.newest()));
                Ok(())
            }
            _ => Err(Error::new(
                ErrorCode::TableNotFound,
                format!("table {:?}: it was dropped since this session opened it. Remedy: open or create it again", self.name()),
            )),
        }
    }

    /// One accepted version.
    ///
    /// # Errors
    /// `VERSION_NOT_FOUND` when there is no such version; `HISTORY_MISSING` when its files were vacuumed.
    pub async fn at_version(&self, version: VersionNumber) -> Result<Arc<Snapshot>> {
        let cached = self.cached();
        match self.incarnation.slot(version).await? {
            Some(slot) => match &cached.newest {
                Some((hash, snapshot)) if *hash == slot.manifest_hash => Ok(Arc::clone(snapshot)),
                _ => self.load(&slot, cached.verify).await,
            },
            None => {
                let newest = self.newest_slot().await?.version;
                Err(self.no_version(&format!("version {version}"), &format!("name a version from 1 to {newest}")))
            }
        }
    }

    async fn load(&self, slot: &Slot, verify: bool) -> Result<Arc<Snapshot>> {
        if self.is_emptied(slot).await? {
            return Err(self.not_published());
        }
        Ok(Arc::new(snapshot::load(&self.incarnation, slot, verify).await?))
    }

    async fn newest_slot(&self) -> Result<Slot> {
        self.incarnation.newest_version().await?.ok_or_else(|| self.not_published())
    }

    fn no_version(&self, what: &str, remedy: &str) -> Error {
        Error::new(ErrorCode::VersionNotFound, format!("table {:?}: there is no {what}. Remedy: {remedy}", self.name()))
    }

    /// The error for reading a table that has no version yet.
    pub fn not_published(&self) -> Error {
        let (table, remedy) = (self.name(), self.first_remedy());
        if self.is_synced() {
            let what = "it was never loaded, or its data was deleted";
            return Error::new(ErrorCode::SourceNotReady, format!("table {table:?}: {what}. Remedy: run {remedy}"));
        }
        Error::new(ErrorCode::NotPublished, format!("table {table:?}: it has no published version yet. Remedy: run {remedy}"))
    }

    /// The newest version that was committed at or before `micros` (microseconds since 1970).
    ///
    /// # Errors
    /// `VERSION_NOT_FOUND` when the first version is younger; `HISTORY_MISSING` when the version was vacuumed.
    pub async fn at_timestamp(&self, micros: i64) -> Result<Arc<Snapshot>> {
        let newest = self.newest_slot().await?.version;
        // Invariant: version `low` (0: none) is not younger than `micros`, version `high + 1` is younger or does not exist.
        let (mut low, mut high) = (0, newest);
        while low < high {
            let middle = high - (high - low) / 2;
            if self.is_committed_by(middle, micros).await? {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        if low == 0 {
            return Err(self.no_version("version as old as that time", "name a later time; the first version was published after it"));
        }
        self.at_version(low).await
    }

    /// A vacuumed version counts as older: vacuum takes the oldest versions.
    async fn is_committed_by(&self, version: VersionNumber, micros: i64) -> Result<bool> {
        let Some(slot) = self.incarnation.slot(version).await? else { return Ok(true) };
        match self.incarnation.manifest(&slot).await {
            Ok(manifest) => Ok(manifest.committed_at <= micros),
            Err(error) if error.code() == ErrorCode::HistoryMissing => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The complete output of a draft.
    ///
    /// # Errors
    /// `RUN_NOT_FOUND` when no draft of this id completed.
    pub async fn draft_output(&self, run: &RunId) -> Result<Arc<Snapshot>> {
        let verify = self.cached().verify;
        match self.incarnation.run(run).draft().await? {
            Some(draft) => Ok(Arc::new(snapshot::of_draft(&self.incarnation, draft, verify))),
            None => Err(self.no_output(run)),
        }
    }

    /// The complete output of a run: a draft's, or the version that a published run made.
    ///
    /// # Errors
    /// `RUN_NOT_FOUND` when no run of this id completed; `HISTORY_MISSING` when its version was vacuumed.
    pub async fn run_output(&self, run: &RunId) -> Result<Arc<Snapshot>> {
        let records = self.incarnation.run(run);
        if let Some(draft) = records.draft().await? {
            return Ok(Arc::new(snapshot::of_draft(&self.incarnation, draft, self.cached().verify)));
        }
        // A published run takes the slot after its base, or none.
        let seal = records.seal().await?.ok_or_else(|| self.no_output(run))?;
        let version = seal.base.unwrap_or(0) + 1;
        match self.incarnation.slot(version).await? {
            Some(slot) if slot.run == *run => self.load(&slot, self.cached().verify).await,
            _ => Err(self.no_output(run)),
        }
    }

    fn no_output(&self, run: &RunId) -> Error {
        let (table, literal) = (self.name(), self.sql_literal());
        Error::new(
            ErrorCode::RunNotFound,
            format!(
                "table {table:?}: no run {run} has an output. Remedy: look at incremental_runs({literal}) for completed and published runs"
            ),
        )
    }

    /// The pin for a scan that no [`super::PinRule`] prepared: scans of one session whose statement started at the same
    /// moment share it for a short while.
    pub(super) fn recent_pin(&self, session: &dyn Session) -> Arc<StatementPin> {
        let Some(started) = session.execution_props().query_execution_start_time else { return Arc::default() };
        let now = self.store().env().clock.elapsed();
        self.recent.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pin(session.session_id(), started, now)
    }
}

/// A name as messages show it: without the default catalog and schema.
pub(crate) fn shown_name(name: &TableReference) -> String {
    match name {
        TableReference::Bare { table } => table.to_string(),
        other => other.to_string(),
    }
}
