//! An object store that fails on demand.
//!
//! ```text
//! session ─► FaultStore ─ records the operation ─ gate? ─ what does the plan say of operation k? ─┐
//!              one per "process"                                                                  │
//!     FailsBefore   an error, nothing happened          Hangs            nothing happened, never answers
//!     FailsAfter    an error, but it was applied        HangsAfter       applied, never answers
//!     Down          an error, and so from now on        DownAfter        applied, an error, and so from now on
//!     Short         the body lacks its end                                ▼
//!                                                              Backing: memory or local disk, timestamps of a test's clock
//! ```
//!
//! Operations count from 0. A read that is "applied" is a read that failed. Memory: one entry per operation while it records.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use datafusion_incremental::env::SystemClock;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use tokio::sync::Notify;

use super::backing::{Backing, lock};

/// What is asked of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Create,
    Overwrite,
    Begin,
    Part,
    Complete,
    Abort,
    Get,
    Head,
    Ranges,
    List,
    Delete,
    Copy,
}

impl Kind {
    /// Whether it changes what is stored.
    pub fn writes(self) -> bool {
        !matches!(self, Self::Get | Self::Head | Self::Ranges | Self::List)
    }
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    pub kind: Kind,
    pub path: String,
    /// Bytes written.
    pub bytes: u64,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} ({})", self.kind, self.path, self.bytes)
    }
}

/// What happens to one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    FailsBefore,
    FailsAfter,
    Hangs,
    HangsAfter,
    Down,
    DownAfter,
    Short,
    /// An error now; a create is applied so many seconds later all the same.
    Late(u64),
}

/// Lets operations pass one by one, or late.
#[async_trait]
pub trait Gate: fmt::Debug + Send + Sync {
    /// Returns when the operation may go on.
    async fn pass(&self, op: &Op);
}

/// One process's way to the objects. Clones are the same way.
#[derive(Debug, Clone)]
pub struct FaultStore {
    pub backing: Arc<Backing>,
    gate: Option<Arc<dyn Gate>>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    hung: Notify,
    is_hung: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    ops: Vec<Op>,
    count: usize,
    armed: bool,
    plan: BTreeMap<usize, Fault>,
    down: bool,
    /// What the disk still takes.
    room: Option<u64>,
    /// Whether every operation lets others go first.
    yields: bool,
}

impl State {
    /// Whether the disk does not take these bytes; nothing of them is stored then.
    fn is_full_for(&mut self, bytes: u64) -> bool {
        let Some(room) = &mut self.room else { return false };
        match room.checked_sub(bytes) {
            Some(left) => *room = left,
            // Like a disk: what is smaller may still fit, but a writer of records finds no room for the next either.
            None => *room = 0,
        }
        bytes > 0 && *room == 0
    }
}

/// What becomes of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Go,
    Fail,
    ApplyThenFail,
    ApplyThenHang,
    Short,
    Late(u64),
}

fn injected() -> Error {
    Error::Generic { store: "FaultStore", source: "injected: the connection was reset".into() }
}

impl fmt::Display for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultStore")
    }
}

impl FaultStore {
    pub fn new(backing: Arc<Backing>) -> Self {
        Self { backing, gate: None, shared: Arc::default() }
    }

    /// The way of a process that works elsewhere.
    pub fn nowhere() -> Self {
        Self::new(Backing::memory(Arc::new(SystemClock::default())))
    }

    /// Every operation waits at `gate` first.
    pub fn gated(backing: Arc<Backing>, gate: Arc<dyn Gate>) -> Self {
        Self { gate: Some(gate), ..Self::new(backing) }
    }

    /// From now on operations count from 0, are recorded, and meet `plan`.
    pub fn arm(&self, plan: impl IntoIterator<Item = (usize, Fault)>) {
        *lock(&self.shared.state) = State { armed: true, plan: plan.into_iter().collect(), ..State::default() };
        self.shared.is_hung.store(false, Ordering::SeqCst);
    }

    /// From now on the store takes so many bytes, and says that it is full.
    pub fn fill_after(&self, bytes: u64) {
        self.arm([]);
        lock(&self.shared.state).room = Some(bytes);
    }

    /// From now on every operation, before it is done and after it, is a place where its future can be dropped.
    pub fn yields(&self) {
        self.arm([]);
        lock(&self.shared.state).yields = true;
    }

    /// Everything works again; the operations since [`Self::arm`].
    pub fn disarm(&self) -> Vec<Op> {
        std::mem::take(&mut *lock(&self.shared.state)).ops
    }

    /// Returns when an operation hangs that is planned to.
    pub async fn hung(&self) {
        while !self.shared.is_hung.load(Ordering::SeqCst) {
            self.shared.hung.notified().await;
        }
    }

    async fn enter(&self, kind: Kind, path: &Path, bytes: u64) -> Verdict {
        let op = Op { kind, path: path.to_string(), bytes };
        if let Some(gate) = &self.gate {
            gate.pass(&op).await;
        }
        if lock(&self.shared.state).yields {
            tokio::task::yield_now().await;
        }
        let fault = {
            let mut state = lock(&self.shared.state);
            if !state.armed {
                return Verdict::Go;
            }
            let number = state.count;
            state.count += 1;
            state.ops.push(op);
            if state.down || state.is_full_for(bytes) {
                return Verdict::Fail;
            }
            let fault = state.plan.get(&number).copied();
            state.down = matches!(fault, Some(Fault::Down | Fault::DownAfter));
            fault
        };
        match fault {
            None => Verdict::Go,
            Some(Fault::FailsBefore | Fault::Down) => Verdict::Fail,
            Some(Fault::FailsAfter | Fault::DownAfter) => Verdict::ApplyThenFail,
            Some(Fault::HangsAfter) => Verdict::ApplyThenHang,
            Some(Fault::Short) => Verdict::Short,
            Some(Fault::Late(seconds)) if kind == Kind::Create => Verdict::Late(seconds),
            Some(Fault::Late(_)) => Verdict::Fail,
            Some(Fault::Hangs) => {
                self.hang().await;
                Verdict::Fail
            }
        }
    }

    async fn hang(&self) {
        self.shared.is_hung.store(true, Ordering::SeqCst);
        self.shared.hung.notify_waiters();
        self.shared.hung.notify_one();
        std::future::pending::<()>().await;
    }

    /// What the caller hears of an operation that was applied with this result.
    async fn leave<T>(&self, verdict: Verdict, result: Result<T>) -> Result<T> {
        if lock(&self.shared.state).yields {
            tokio::task::yield_now().await;
        }
        match verdict {
            Verdict::ApplyThenFail | Verdict::Fail => Err(injected()),
            Verdict::ApplyThenHang => {
                self.hang().await;
                Err(injected())
            }
            Verdict::Go | Verdict::Short | Verdict::Late(_) => result,
        }
    }

    fn listing(
        &self,
        prefix: Option<Path>,
        inner: impl FnOnce(&Self) -> BoxStream<'static, Result<ObjectMeta>> + Send + 'static,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let this = self.clone();
        let started = async move {
            let verdict = this.enter(Kind::List, &prefix.unwrap_or_default(), 0).await;
            if verdict != Verdict::Go {
                return Err(injected());
            }
            let backing = Arc::clone(&this.backing);
            Ok(inner(&this).map_ok(move |meta| backing.dated(meta)))
        };
        stream::once(started).try_flatten().boxed()
    }
}

fn damaged(verdict: Verdict, bytes: Bytes) -> Bytes {
    match verdict {
        Verdict::Short => bytes.slice(..bytes.len() / 2),
        _ => bytes,
    }
}

#[async_trait]
impl ObjectStore for FaultStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let kind = if matches!(opts.mode, PutMode::Create) { Kind::Create } else { Kind::Overwrite };
        let verdict = self.enter(kind, location, payload.content_length() as u64).await;
        if verdict == Verdict::Fail {
            return Err(injected());
        }
        if let Verdict::Late(seconds) = verdict {
            self.backing.put_late(seconds, location.clone(), payload, opts);
            return Err(injected());
        }
        let result = self.backing.store.put_opts(location, payload, opts).await;
        if result.is_ok() {
            self.backing.stamp(location);
        }
        self.leave(verdict, result).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let verdict = self.enter(Kind::Begin, location, 0).await;
        if verdict == Verdict::Fail {
            return Err(injected());
        }
        let inner = self.leave(verdict, self.backing.store.put_multipart_opts(location, opts).await).await?;
        Ok(Box::new(Upload { store: self.clone(), path: location.clone(), inner }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let verdict = self.enter(if options.head { Kind::Head } else { Kind::Get }, location, 0).await;
        if verdict == Verdict::Fail {
            return Err(injected());
        }
        let head = options.head;
        let mut found = self.leave(verdict, self.backing.store.get_opts(location, options).await).await?;
        found.meta.location = location.clone(); // some stores tell the path below
        found.meta = self.backing.dated(found.meta);
        if head || !matches!(verdict, Verdict::Short) {
            return Ok(found);
        }
        let (meta, range, attributes) = (found.meta.clone(), found.range.clone(), found.attributes.clone());
        let bytes = damaged(verdict, found.bytes().await?);
        let payload = GetResultPayload::Stream(stream::once(std::future::ready(Ok(bytes))).boxed());
        Ok(GetResult { payload, meta, range, attributes })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let verdict = self.enter(Kind::Ranges, location, 0).await;
        if verdict == Verdict::Fail {
            return Err(injected());
        }
        let mut parts = self.leave(verdict, self.backing.store.get_ranges(location, ranges).await).await?;
        if let Some(last) = parts.last_mut() {
            *last = damaged(verdict, last.clone());
        }
        Ok(parts)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let delete = move |location: Result<Path>| {
            let this = this.clone();
            async move {
                let location = location?;
                let verdict = this.enter(Kind::Delete, &location, 0).await;
                if verdict == Verdict::Fail {
                    return Err(injected());
                }
                let one = stream::iter([Ok(location.clone())]).boxed();
                let result = this.backing.store.delete_stream(one).try_for_each(|_| std::future::ready(Ok(()))).await;
                this.leave(verdict, result.map(|()| location)).await
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listing = prefix.cloned();
        self.listing(listing.clone(), move |this| this.backing.store.list(listing.as_ref()))
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        let (listing, offset) = (prefix.cloned(), offset.clone());
        self.listing(listing.clone(), move |this| this.backing.store.list_with_offset(listing.as_ref(), &offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let verdict = self.enter(Kind::List, prefix.unwrap_or(&Path::default()), 0).await;
        if verdict == Verdict::Fail {
            return Err(injected());
        }
        let mut found = self.leave(verdict, self.backing.store.list_with_delimiter(prefix).await).await?;
        found.objects = found.objects.into_iter().map(|meta| self.backing.dated(meta)).collect();
        Ok(found)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let verdict = self.enter(Kind::Copy, to, 0).await;
        if verdict == Verdict::Fail {
            return Err(injected());
        }
        let result = self.backing.store.copy_opts(from, to, options).await;
        self.backing.stamp(to);
        self.leave(verdict, result).await
    }
}

/// A large object on its way.
#[derive(Debug)]
struct Upload {
    store: FaultStore,
    path: Path,
    inner: Box<dyn MultipartUpload>,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (store, path, bytes) = (self.store.clone(), self.path.clone(), data.content_length() as u64);
        let part = self.inner.put_part(data);
        Box::pin(async move {
            let verdict = store.enter(Kind::Part, &path, bytes).await;
            if verdict == Verdict::Fail {
                return Err(injected());
            }
            store.leave(verdict, part.await).await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let verdict = self.store.enter(Kind::Complete, &self.path, 0).await;
        if verdict == Verdict::Fail {
            return Err(injected());
        }
        let result = self.inner.complete().await;
        if result.is_ok() {
            self.store.backing.stamp(&self.path);
        }
        self.store.leave(verdict, result).await
    }

    async fn abort(&mut self) -> Result<()> {
        let verdict = self.store.enter(Kind::Abort, &self.path, 0).await;
        if verdict == Verdict::Fail {
            return Err(injected());
        }
        let result = self.inner.abort().await;
        self.store.leave(verdict, result).await
    }
}
