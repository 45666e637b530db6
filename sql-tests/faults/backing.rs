//! What is stored, shared by all who work on it: in memory or on the local disk, with the timestamps of a test's clock.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use datafusion::common::runtime::SpawnedTask;
use datafusion_incremental::env::{Clock, DurableLocalStore};
use futures::stream::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutOptions, PutPayload};
use tempfile::TempDir;

use super::clock::EPOCH;

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The store's own timestamps: each later than the one before, however fast a test is.
#[derive(Debug, Clone, Default)]
struct Stamps {
    of: HashMap<Path, i64>,
    last: i64,
}

/// What is stored, shared by all who work on it.
#[derive(Debug)]
pub struct Backing {
    pub store: Arc<dyn ObjectStore>,
    memory: Option<Arc<InMemory>>,
    clock: Option<Arc<dyn Clock>>,
    stamps: Mutex<Stamps>,
    /// Objects whose path contains this always look this many microseconds old.
    aged: Option<(&'static str, i64)>,
    late: Mutex<Vec<SpawnedTask<()>>>,
    /// Deleted with the last who works in it.
    #[allow(dead_code)]
    folder: Option<TempDir>,
}

impl Backing {
    /// Nothing, in memory, with timestamps of `clock`.
    pub fn memory(clock: Arc<dyn Clock>) -> Arc<Self> {
        let memory = Arc::new(InMemory::new());
        Arc::new(Self {
            store: memory.clone(),
            memory: Some(memory),
            clock: Some(clock),
            stamps: Mutex::default(),
            aged: None,
            late: Mutex::default(),
            folder: None,
        })
    }

    /// The same objects, apart from now on, with timestamps of `clock`. Only for memory.
    pub fn fork(&self, clock: Arc<dyn Clock>) -> Arc<Self> {
        let memory = Arc::new(self.memory.as_ref().expect("only memory can be forked").fork());
        let stamps = Mutex::new(lock(&self.stamps).clone());
        Arc::new(Self {
            store: memory.clone(),
            memory: Some(memory),
            clock: Some(clock),
            stamps,
            aged: self.aged,
            late: Mutex::default(),
            folder: None,
        })
    }

    /// The same objects in a new folder of the local disk, through the durable store, with timestamps of `clock`.
    pub async fn fork_to_disk(&self, clock: Arc<dyn Clock>) -> Arc<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for path in self.listed().await.into_keys() {
            let bytes = self.store.get(&Path::from(path.as_str())).await.expect("a listed object").bytes().await.expect("its bytes");
            let file = folder.path().join(&path);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("the folder is made");
            std::fs::write(file, bytes).expect("the file is written");
        }
        let root = Path::from_absolute_path(folder.path()).expect("a path");
        let store: Arc<dyn ObjectStore> = Arc::new(PrefixStore::new(DurableLocalStore::new(), root));
        let stamps = Mutex::new(lock(&self.stamps).clone());
        Arc::new(Self { store, memory: None, clock: Some(clock), stamps, aged: None, late: Mutex::default(), folder: Some(folder) })
    }

    /// Objects whose path contains `of` look `micros` old from the start: leases that have run out.
    pub fn aged(self: Arc<Self>, of: &'static str, micros: i64) -> Arc<Self> {
        let mut this = Arc::try_unwrap(self).expect("not shared yet");
        this.aged = Some((of, micros));
        Arc::new(this)
    }

    /// Every object's path and size.
    pub async fn listed(&self) -> BTreeMap<String, u64> {
        self.store.list(None).map_ok(|meta| (meta.location.to_string(), meta.size)).try_collect().await.expect("a healthy listing")
    }

    /// The write is applied so many seconds later.
    pub fn put_late(self: &Arc<Self>, seconds: u64, path: Path, payload: PutPayload, opts: PutOptions) {
        let this = Arc::clone(self);
        let task = SpawnedTask::spawn(async move {
            tokio::time::sleep(std::time::Duration::from_secs(seconds)).await;
            if this.store.put_opts(&path, payload, opts).await.is_ok() {
                this.stamp(&path);
            }
        });
        lock(&self.late).push(task);
    }

    /// The object was written now.
    pub fn stamp(&self, path: &Path) {
        if let Some(clock) = &self.clock {
            let age = self.aged.filter(|(of, _)| path.as_ref().contains(of)).map_or(0, |(_, age)| age);
            let mut stamps = lock(&self.stamps);
            stamps.last = (stamps.last + 1).max(clock.now_micros());
            let at = stamps.last - age;
            stamps.of.insert(path.clone(), at);
        }
    }

    /// With the time that [`Self::stamp`] gave it.
    pub fn dated(&self, mut meta: ObjectMeta) -> ObjectMeta {
        // A write whose caller is gone may end later; its time must not be the machine's.
        let at = lock(&self.stamps).of.get(&meta.location).copied();
        if let Some(at) = at.or(self.clock.is_some().then_some(EPOCH)) {
            meta.last_modified = DateTime::<Utc>::from_timestamp_micros(at).unwrap_or_default();
        }
        meta
    }
}
