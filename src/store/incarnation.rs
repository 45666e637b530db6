//! One life of a table, from CREATE to PURGE: versions, manifests and immutable objects below its folder.
//!
//! ```text
//! newest_version ─► Slot ─ manifest ─► Manifest ─ files ─► all data files
//!   one look-up      (hash)            (checksums)   └──── source_state
//! ```
//!
//! Memory: the newest slot, the definitions, and a few manifests and file lists. Never returns what it could not
//! verify, never lists to find out what is true.

use std::fmt;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::definitions::DefinitionLog;
use super::lease::LeaseTiming;
use super::log::Log;
use super::manifest::{DataFile, Manifest, ObjectRef};
use super::objects::{Created, Objects};
use super::runs::RunStore;
use super::sync_log::SyncLog;
use super::table_store::{TableEntry, TableStore};
use super::{lock, paths};
use crate::error::{Error, ErrorCode, Result};
use crate::spec::RunId;

/// The newest storage format that this crate reads and writes.
pub const FORMAT: u32 = 1;
/// Manifests and file lists that are remembered.
const REMEMBERED: usize = 4;

/// An accepted version's slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Its number.
    pub version: u64,
    /// The run that won it.
    pub run: RunId,
    /// The attempt that won it.
    pub attempt: String,
    /// The manifest, relative to the incarnation's folder.
    pub manifest: String,
    /// BLAKE3 of the manifest's bytes.
    pub manifest_hash: String,
    /// The oldest storage format whose readers understand it.
    pub min_reader: u32,
    /// The oldest storage format whose writers may follow it.
    pub min_writer: u32,
}

/// One life of a table. Cheap to clone; clones share what they remember.
#[derive(Clone)]
pub struct Incarnation {
    store: TableStore,
    pub(super) core: Arc<Core>,
}

/// What the clones of an incarnation share.
pub(super) struct Core {
    pub(super) id: String,
    name: String,
    secret: [u8; 32],
    pub(super) root: Path,
    pub(super) objects: Objects,
    pub(super) versions: Log,
    pub(super) revisions: Log,
    pub(super) lease: Log,
    pub(super) syncs: Log,
    pub(super) loads: Log,
    pub(super) schedule: Log,
    pub(super) timing: Mutex<LeaseTiming>,
    pub(super) definitions: Mutex<DefinitionLog>,
    pub(super) sync_log: Mutex<SyncLog>,
    newest: Mutex<Option<Slot>>,
    manifests: Recent<String, Arc<Manifest>>,
    pub(super) file_lists: Recent<Vec<ObjectRef>, Arc<Vec<DataFile>>>,
}

impl Core {
    pub(super) fn new(store: &TableStore, entry: &TableEntry) -> Result<Self> {
        let root = store.folder(&entry.incarnation)?;
        let objects = Objects { label: format!("table {:?}", entry.name).into(), ..store.objects().clone() };
        let secret =
            unhex(&entry.secret).ok_or_else(|| objects.corrupt(&root, "the table log holds no secret of 64 hexadecimal digits for it"))?;
        let folder = |name: &str| paths::below(&root, name);
        Ok(Self {
            versions: Log::guarded(objects.clone(), folder("versions")),
            revisions: Log::guarded(objects.clone(), folder("revisions")),
            lease: Log::plain(objects.clone(), folder("lease"), ".json"),
            syncs: Log::guarded(objects.clone(), folder("sync")),
            loads: Log::plain(objects.clone(), folder("loads"), ".json"),
            schedule: Log::plain(objects.clone(), folder("schedule"), ".json"),
            timing: Mutex::default(),
            definitions: Mutex::default(),
            sync_log: Mutex::default(),
            newest: Mutex::default(),
            manifests: Recent::default(),
            file_lists: Recent::default(),
            id: entry.incarnation.clone(),
            name: entry.name.clone(),
            secret,
            root,
            objects,
        })
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incarnation").field("name", &self.core.name).field("id", &self.core.id).finish_non_exhaustive()
    }
}

impl Incarnation {
    pub(super) fn new(store: TableStore, core: Arc<Core>) -> Self {
        Self { store, core }
    }

    /// The incarnation's id.
    pub fn id(&self) -> &str {
        &self.core.id
    }

    /// The table's name when it was created; errors call it that.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// The secret of the table's fingerprints.
    pub fn secret(&self) -> &[u8; 32] {
        &self.core.secret
    }

    /// The table's folder.
    pub fn store(&self) -> &TableStore {
        &self.store
    }

    /// The object at `relative`, below the incarnation's folder whatever the text says.
    pub fn path(&self, relative: &str) -> Path {
        paths::below(&self.core.root, relative)
    }

    pub(super) fn objects(&self) -> &Objects {
        &self.core.objects
    }

    /// `CORRUPT` for the object at `relative`.
    pub(crate) fn damaged(&self, relative: &str, what: impl fmt::Display) -> Error {
        self.objects().corrupt(&self.path(relative), what)
    }

    /// `CORRUPT` unless every path leads to a place below the incarnation's folder.
    pub(super) fn check_paths<'a>(&self, named_by: &Path, paths: impl IntoIterator<Item = &'a str>) -> Result<()> {
        match paths.into_iter().find(|path| !paths::is_safe(path)) {
            None => Ok(()),
            Some(bad) => Err(self.objects().corrupt(named_by, format_args!("it names the path {bad:?}"))),
        }
    }

    /// The newest version's slot; `None` before the first one. One look-up when nothing changed.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`, and `HISTORY_MISSING` when a slot is lost.
    pub async fn newest_version(&self) -> Result<Option<Slot>> {
        let newest = self.core.versions.newest().await?;
        if newest == 0 {
            return Ok(None);
        }
        let known = lock(&self.core.newest).clone().filter(|slot| slot.version == newest);
        if known.is_some() {
            return Ok(known);
        }
        match self.slot(newest).await? {
            Some(slot) => {
                self.remember(&slot);
                Ok(Some(slot))
            }
            None => Err(self.objects().missing(&self.core.versions.path(newest))),
        }
    }

    pub(super) fn remember(&self, slot: &Slot) {
        let mut newest = lock(&self.core.newest);
        if newest.as_ref().is_none_or(|known| known.version < slot.version) {
            *newest = Some(slot.clone());
        }
    }

    /// The slot of one version; `None` when there is no such version.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`, and `DEFINITION_MISMATCH` for a version of a newer storage format.
    pub async fn slot(&self, version: u64) -> Result<Option<Slot>> {
        Ok(self.dated_slot(version).await?.map(|(slot, _)| slot))
    }

    /// A slot with the store's timestamp of it.
    pub(super) async fn dated_slot(&self, version: u64) -> Result<Option<(Slot, i64)>> {
        if version == 0 {
            return Ok(None);
        }
        let Some((slot, modified)) = self.core.versions.read::<Slot>(version).await? else { return Ok(None) };
        self.check_slot(version, &slot)?;
        Ok(Some((slot, modified)))
    }

    pub(super) fn check_slot(&self, version: u64, slot: &Slot) -> Result<()> {
        let path = self.core.versions.path(version);
        if slot.version != version {
            return Err(self.objects().corrupt(&path, format_args!("it is the slot of version {}", slot.version)));
        }
        self.check_format(slot.min_reader, version)?;
        self.check_paths(&path, [slot.manifest.as_str()])
    }

    pub(super) fn check_format(&self, needed: u32, version: u64) -> Result<()> {
        if needed <= FORMAT {
            return Ok(());
        }
        Err(Error::new(
            ErrorCode::DefinitionMismatch,
            format!(
                "table {:?}: version {version} needs storage format {needed}, this program has {FORMAT}. \
                 Remedy: use the version of datafusion-incremental that wrote it, or a later one",
                self.name()
            ),
        ))
    }

    /// The manifest that a slot names.
    ///
    /// # Errors
    /// `HISTORY_MISSING` when it is gone, `CORRUPT` when it is not the one that the slot names.
    pub async fn manifest(&self, slot: &Slot) -> Result<Arc<Manifest>> {
        if let Some(known) = self.core.manifests.get(&slot.manifest) {
            return Ok(known);
        }
        let path = self.path(&slot.manifest);
        let object = self.objects().get_limited(&path, MANIFEST_LIMIT).await?.ok_or_else(|| self.objects().missing(&path))?;
        if blake3::hash(&object.bytes).to_hex().as_str() != slot.manifest_hash {
            return Err(self.objects().corrupt(&path, "it is not the manifest that the version's slot names"));
        }
        let manifest: Manifest = self.objects().decode(&path, &object.bytes)?;
        self.check_format(manifest.format, slot.version)?;
        if manifest.version != slot.version || manifest.incarnation != self.id() {
            let what = format!("it describes version {} of incarnation {}", manifest.version, manifest.incarnation);
            return Err(self.objects().corrupt(&path, what));
        }
        self.check_paths(&path, manifest.parts.iter().chain(&manifest.source).map(|object| object.path.as_str()))?;
        let manifest = Arc::new(manifest);
        self.core.manifests.put(slot.manifest.clone(), Arc::clone(&manifest));
        Ok(manifest)
    }

    /// Creates an immutable object below the incarnation's folder. `relative` must be new: a name with a unique id.
    ///
    /// # Errors
    /// `STORE_FAILED` when the store refuses or does not answer.
    pub async fn write_object(&self, relative: &str, bytes: Bytes) -> Result<ObjectRef> {
        if !paths::is_safe(relative) {
            return Err(Error::internal(format!("table {:?}: {relative:?} is no name for an object", self.name())));
        }
        let path = self.path(relative);
        match self.objects().create(&path, &bytes).await? {
            Created::Won => {}
            Created::Taken(_) => return Err(Error::internal(format!("table {:?}: object {relative:?} exists", self.name()))),
            Created::Unknown(error) => return Err(self.objects().failed("writing", &path, error)),
        }
        Ok(ObjectRef { path: relative.to_string(), bytes: bytes.len() as u64, hash: blake3::hash(&bytes).to_hex().to_string() })
    }

    /// Reads an immutable object whole; size and hash are verified.
    ///
    /// # Errors
    /// `HISTORY_MISSING` when it is gone, `CORRUPT` when its bytes are others.
    pub async fn read_object(&self, object: &ObjectRef) -> Result<Bytes> {
        let path = self.path(&object.path);
        self.check_paths(&path, [object.path.as_str()])?;
        let found = self.objects().get_limited(&path, object.bytes).await?.ok_or_else(|| self.objects().missing(&path))?;
        if found.bytes.len() as u64 != object.bytes {
            let what = format!("it has {} bytes and should have {}", found.bytes.len(), object.bytes);
            return Err(self.objects().corrupt(&path, what));
        }
        if blake3::hash(&found.bytes).to_hex().as_str() != object.hash {
            return Err(self.objects().corrupt(&path, "its bytes do not match the hash that the manifest has for it"));
        }
        Ok(found.bytes)
    }

    /// What the store keeps of one run.
    pub fn run(&self, id: &RunId) -> RunStore {
        RunStore::new(self.clone(), id.clone())
    }

    /// Every run that left a record, in id order. A listing: for display, and for vacuum.
    ///
    /// # Errors
    /// `STORE_FAILED`.
    pub async fn run_ids(&self) -> Result<Vec<RunId>> {
        let runs = self.path("runs");
        let listed = self.objects().store.list_with_delimiter(Some(&runs)).await.map_err(|e| self.objects().failed("listing", &runs, e))?;
        let mut ids: Vec<RunId> =
            listed.common_prefixes.iter().filter_map(|p| p.parts().next_back().and_then(|name| RunId::new(name.as_ref()).ok())).collect();
        ids.sort();
        Ok(ids)
    }

    /// The store's clock, microseconds since 1970: what it stamps on an object written now.
    pub(super) async fn store_now(&self) -> Result<i64> {
        let mark = self.path(&format!("clock/{}.json", self.objects().env.ids.id()?));
        self.objects().store_now(&mark).await
    }
}

/// A larger manifest is refused before it is read.
const MANIFEST_LIMIT: u64 = 1 << 30;

/// The last few values by key, the newest at the end.
pub(super) struct Recent<K, V>(Mutex<Vec<(K, V)>>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: PartialEq, V: Clone> Recent<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<V> {
        lock(&self.0).iter().find(|(k, _)| k == key).map(|(_, value)| value.clone())
    }

    pub(super) fn put(&self, key: K, value: V) {
        let mut kept = lock(&self.0);
        kept.retain(|(k, _)| *k != key);
        if kept.len() >= REMEMBERED {
            kept.remove(0);
        }
        kept.push((key, value));
    }
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0_u8; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(bytes)
}
