//! One table's folder: the table log, and the incarnations that it names.
//!
//! ```text
//! Absent ─ create ─► Live ─ drop ─► Dropped ─ revive ─► Live (the same incarnation)
//!                      ▲               └ purge ─► Purged ─ create ─► Live (a new incarnation)
//!                      └──────────────────────────────────────────────┘
//! ```
//!
//! The newest entry of `table/` is the state; entries are never deleted, so a publisher that was overtaken by a drop
//! finds out. Memory: one entry. Never deletes anything that the table log does not name.

use std::fmt;
use std::sync::{Arc, Mutex};

use futures::TryStreamExt;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use super::incarnation::{Core, Incarnation};
use super::log::Log;
use super::objects::Objects;
use super::{lock, paths, probe};
use crate::env::{Env, Location, staged};
use crate::error::{Error, ErrorCode, Result};

/// How often a change of the table log is tried again after somebody else changed it.
const ROUNDS: usize = 16;
/// Objects deleted at once by a purge.
const PURGE_CHUNK: usize = 1000;

/// What the table log says of a live or dropped table.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableEntry {
    /// The incarnation's id, its folder below the location.
    pub incarnation: String,
    /// The table's name when it was created.
    pub name: String,
    /// The secret of the table's fingerprints: 64 hexadecimal digits.
    pub secret: String,
    /// When the entry was written, microseconds since 1970.
    pub at: i64,
}

impl fmt::Debug for TableEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { incarnation, name, secret: _, at } = self;
        f.debug_struct("TableEntry").field("incarnation", incarnation).field("name", name).field("secret", &"***").field("at", at).finish()
    }
}

/// Where a table stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableState {
    /// Never created.
    Absent,
    /// Created and not dropped.
    Live(TableEntry),
    /// Dropped; its data is kept.
    Dropped(TableEntry),
    /// Dropped, and its data is deleted.
    Purged(TableEntry),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Created,
    Revived,
    Dropped,
    Purged,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct TableRecord {
    action: Action,
    table: TableEntry,
}

impl From<TableRecord> for TableState {
    fn from(record: TableRecord) -> Self {
        match record.action {
            Action::Created | Action::Revived => Self::Live(record.table),
            Action::Dropped => Self::Dropped(record.table),
            Action::Purged => Self::Purged(record.table),
        }
    }
}

/// One table's folder. Cheap to clone.
#[derive(Clone)]
pub struct TableStore(Arc<Inner>);

struct Inner {
    location: Location,
    objects: Objects,
    log: Log,
    probed: OnceCell<()>,
    /// What the incarnation opened last remembers.
    opened: Mutex<Option<Arc<Core>>>,
}

impl fmt::Debug for TableStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TableStore").field(&self.0.location.display()).finish()
    }
}

impl TableStore {
    /// The folder at `location`. Reads and writes nothing yet.
    pub fn new(env: Env, location: Location) -> Self {
        let label = format!("table at {:?}", location.display()).into();
        let objects = Objects { env, store: Arc::clone(&location.store), label };
        let log = Log::guarded(objects.clone(), paths::below(&location.root, paths::TABLE_LOG));
        Self(Arc::new(Inner { location, objects, log, probed: OnceCell::new(), opened: Mutex::new(None) }))
    }

    /// Clock and ids.
    pub fn env(&self) -> &Env {
        &self.0.objects.env
    }

    /// The folder.
    pub fn location(&self) -> &Location {
        &self.0.location
    }

    /// Checks, once for this value and its clones, that the store keeps the create-only promise.
    ///
    /// # Errors
    /// `STORE_UNSAFE` when it does not, `STORE_FAILED` when it cannot be reached.
    pub async fn probe(&self) -> Result<()> {
        self.0.probed.get_or_try_init(|| probe::probe(&self.0.objects, &self.0.location.root)).await.map(|_| ())
    }

    /// The newest entry of the table log.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`, and `HISTORY_MISSING` when entries of the log are lost.
    pub async fn state(&self) -> Result<TableState> {
        self.numbered_state().await.map(|(_, state)| state)
    }

    async fn numbered_state(&self) -> Result<(u64, TableState)> {
        let newest = self.0.log.newest().await?;
        if newest == 0 {
            return Ok((0, TableState::Absent));
        }
        let (record, _) = self.0.log.entry::<TableRecord>(newest).await?;
        Ok((newest, record.into()))
    }

    /// Appends what `next` decides on the newest state, once more when somebody else was first. `Err(entry)` of `next`
    /// means that nothing is to be appended.
    async fn change(&self, next: impl Fn(TableState) -> Result<std::result::Result<TableRecord, TableEntry>>) -> Result<TableEntry> {
        self.probe().await?;
        for _ in 0..ROUNDS {
            let (newest, state) = self.numbered_state().await?;
            let record = match next(state)? {
                Ok(record) => record,
                Err(entry) => return Ok(entry),
            };
            let writer = self.env().ids.id()?;
            if self.0.log.append_known(newest + 1, &writer, &record).await?.is_none() {
                return Ok(record.table);
            }
        }
        Err(Error::new(
            ErrorCode::RunConflict,
            format!("{}: others create and drop the table all the time. Remedy: repeat the statement", self.0.objects.label),
        ))
    }

    /// Creates the table: a new incarnation, with a new secret.
    ///
    /// # Errors
    /// `TABLE_EXISTS` when it is live, or dropped but not purged (see [`TableStore::revive`]); `STORE_UNSAFE`.
    pub async fn create(&self, name: &str) -> Result<Incarnation> {
        let mut secret = [0_u8; 32];
        self.env().ids.fill(&mut secret)?;
        let incarnation = self.env().ids.id()?;
        let entry = self
            .change(|state| {
                let (what, remedy) = match state {
                    TableState::Absent | TableState::Purged(_) => {
                        let (incarnation, name, secret) = (incarnation.clone(), name.to_string(), crate::env::hex(&secret));
                        let table = TableEntry { incarnation, name, secret, at: self.env().clock.now_micros() };
                        return Ok(Ok(TableRecord { action: Action::Created, table }));
                    }
                    TableState::Live(_) => ("exists", "use it, or choose another location"),
                    TableState::Dropped(_) => ("was dropped and its data is kept", "attach to it, or drop it with PURGE first"),
                };
                Err(Error::new(ErrorCode::TableExists, format!("{}: the table {what}. Remedy: {remedy}", self.0.objects.label)))
            })
            .await?;
        self.incarnation(entry)
    }

    /// Makes a dropped table live again: the same incarnation, with all its versions.
    ///
    /// # Errors
    /// `TABLE_NOT_FOUND` when there is nothing to revive, `TABLE_EXISTS` when it is live.
    pub async fn revive(&self) -> Result<Incarnation> {
        let entry = self
            .change(|state| match state {
                TableState::Dropped(table) => {
                    let table = TableEntry { at: self.env().clock.now_micros(), ..table };
                    Ok(Ok(TableRecord { action: Action::Revived, table }))
                }
                TableState::Live(_) => {
                    Err(Error::new(ErrorCode::TableExists, format!("{}: the table is live. Remedy: use it", self.0.objects.label)))
                }
                TableState::Absent | TableState::Purged(_) => Err(self.not_found()),
            })
            .await?;
        self.incarnation(entry)
    }

    /// The live incarnation, if the table is live.
    ///
    /// # Errors
    /// Those of [`TableStore::state`].
    pub async fn open(&self) -> Result<Option<Incarnation>> {
        match self.state().await? {
            TableState::Live(entry) => self.incarnation(entry).map(Some),
            _ => Ok(None),
        }
    }

    fn incarnation(&self, entry: TableEntry) -> Result<Incarnation> {
        let mut opened = lock(&self.0.opened);
        let core = match opened.as_ref().filter(|core| core.id == entry.incarnation) {
            Some(known) => Arc::clone(known),
            None => Arc::new(Core::new(self, &entry)?),
        };
        *opened = Some(Arc::clone(&core));
        Ok(Incarnation::new(self.clone(), core))
    }

    /// Drops the table and keeps its data. Dropping the same incarnation again does nothing.
    ///
    /// # Errors
    /// `TABLE_NOT_FOUND` when that incarnation is not the table's any more.
    pub async fn drop_table(&self, incarnation: &str) -> Result<()> {
        self.change(|state| match state {
            TableState::Live(table) if table.incarnation == incarnation => {
                let table = TableEntry { at: self.env().clock.now_micros(), ..table };
                Ok(Ok(TableRecord { action: Action::Dropped, table }))
            }
            TableState::Dropped(table) | TableState::Purged(table) if table.incarnation == incarnation => Ok(Err(table)),
            _ => Err(self.not_found()),
        })
        .await
        .map(|_| ())
    }

    /// Deletes every object of the dropped incarnation, and of those purged before it, but not the table log. May be repeated
    /// after a failure. Returns the freed bytes.
    ///
    /// # Errors
    /// `TABLE_IN_USE` when the table is live.
    pub async fn purge(&self) -> Result<u64> {
        self.change(|state| match state {
            TableState::Dropped(table) => {
                let table = TableEntry { at: self.env().clock.now_micros(), ..table };
                Ok(Ok(TableRecord { action: Action::Purged, table }))
            }
            TableState::Purged(table) => Ok(Err(table)),
            TableState::Live(_) => Err(Error::new(
                ErrorCode::TableInUse,
                format!("{}: a live table is not purged. Remedy: DROP INCREMENTAL TABLE first", self.0.objects.label),
            )),
            TableState::Absent => Err(self.not_found()),
        })
        .await?;
        let mut freed = 0;
        for folder in self.purged_folders().await? {
            freed += self.delete_folder(&folder).await?;
        }
        Ok(freed)
    }

    /// The folders of the incarnations that the log calls purged: they never come back, and a table created meanwhile is
    /// another.
    pub(super) async fn purged_folders(&self) -> Result<Vec<Path>> {
        let mut folders = vec![];
        for number in 1..=self.0.log.newest().await? {
            let (record, _) = self.0.log.entry::<TableRecord>(number).await?;
            if record.action == Action::Purged {
                folders.push(self.folder(&record.table.incarnation)?);
            }
        }
        Ok(folders)
    }

    async fn delete_folder(&self, folder: &Path) -> Result<u64> {
        let mut freed = 0;
        let mut listed = self.0.objects.list(folder).try_chunks(PURGE_CHUNK);
        while let Some(chunk) = listed.try_next().await.map_err(|e| e.1)? {
            freed += chunk.iter().map(|object| object.size).sum::<u64>();
            self.0.objects.delete(chunk.into_iter().map(|object| object.location).collect()).await?;
        }
        Ok(freed + self.delete_unnamed(folder).await?)
    }

    /// Deletes what writers on the local disk left without a name: no listing of the store shows it.
    async fn delete_unnamed(&self, folder: &Path) -> Result<u64> {
        let location = Location { root: folder.clone(), ..self.0.location.clone() };
        let Some(local) = location.local_folder() else { return Ok(0) };
        let failed = |e: std::io::Error| {
            let remedy = "Remedy: see to the folder's disk and rights, then drop again";
            Error::new(ErrorCode::StoreFailed, format!("{}: deleting half-written files failed: {e}. {remedy}", self.0.objects.label))
        };
        let found = staged::find(local.clone()).await.map_err(failed)?;
        let freed = found.iter().map(|file| file.bytes).sum();
        staged::remove(local, found.into_iter().map(|file| file.relative).collect()).await.map_err(failed)?;
        Ok(freed)
    }

    pub(super) fn objects(&self) -> &Objects {
        &self.0.objects
    }

    /// The newest incarnation's id, if the table is live.
    pub(super) async fn live_incarnation(&self) -> Result<Option<String>> {
        match self.state().await? {
            TableState::Live(entry) => Ok(Some(entry.incarnation)),
            _ => Ok(None),
        }
    }

    /// The folder of an incarnation; its id came from an object.
    pub(super) fn folder(&self, incarnation: &str) -> Result<Path> {
        if incarnation.contains('/') || !paths::is_safe(incarnation) || incarnation.eq_ignore_ascii_case(paths::TABLE_LOG) {
            return Err(self.0.objects.corrupt(&self.0.log.path(0), format_args!("the table log names the incarnation {incarnation:?}")));
        }
        Ok(paths::below(&self.0.location.root, incarnation))
    }

    fn not_found(&self) -> Error {
        Error::new(ErrorCode::TableNotFound, format!("{}: there is no such table (any more). Remedy: create it", self.0.objects.label))
    }
}
