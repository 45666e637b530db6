//! One object, uploaded in parts while its digest is computed.
//!
//! ```text
//! push ─ BLAKE3 ─ pending ─ full part ─► put_part (at most two under way) ─ finish ─► complete ─► ObjectRef
//! ```
//!
//! Memory: one pending part and two parts under way. Never completes an upload of which a part failed.

use bytes::Bytes;
use datafusion::common::runtime::JoinSet;
use object_store::path::Path;
use object_store::{Error as StoreError, MultipartUpload, ObjectStoreExt, PutPayload};

use crate::error::{Error, Result};
use crate::store::{Incarnation, ObjectRef};

/// Object stores refuse smaller parts, except for the last.
const PART_BYTES: usize = 5 << 20;
/// The local disk and memory take parts of any size.
const LOCAL_PART_BYTES: usize = 1 << 20;
const PARTS_UNDER_WAY: usize = 2;

/// An upload that has not ended.
#[derive(Debug)]
pub(super) struct Upload {
    incarnation: Incarnation,
    relative: String,
    path: Path,
    multipart: Box<dyn MultipartUpload>,
    hasher: blake3::Hasher,
    bytes: u64,
    pending: Vec<Bytes>,
    pending_bytes: usize,
    under_way: JoinSet<(usize, Result<(), StoreError>)>,
    under_way_bytes: usize,
    part_bytes: usize,
    any_size: bool,
}

impl Upload {
    /// Begins the upload of `relative`; nothing is visible before [`Upload::finish`].
    pub(super) async fn begin(incarnation: &Incarnation, relative: &str) -> Result<Self> {
        let location = incarnation.store().location();
        let path = incarnation.path(relative);
        let multipart = location.store.put_multipart(&path).await.map_err(|e| incarnation.objects().failed("writing", &path, e))?;
        let url = location.store_url.as_str();
        let any_size = url.starts_with("file:") || url.starts_with("memory:");
        Ok(Self {
            incarnation: incarnation.clone(),
            relative: relative.to_string(),
            path,
            multipart,
            hasher: blake3::Hasher::new(),
            bytes: 0,
            pending: Vec::new(),
            pending_bytes: 0,
            under_way: JoinSet::new(),
            under_way_bytes: 0,
            part_bytes: if any_size { LOCAL_PART_BYTES } else { PART_BYTES },
            any_size,
        })
    }

    /// Bytes that are held.
    pub(super) fn memory(&self) -> usize {
        self.pending_bytes + self.under_way_bytes
    }

    /// Takes the next bytes; waits while too many parts are under way.
    pub(super) async fn push(&mut self, mut bytes: Bytes) -> Result<()> {
        self.hasher.update(&bytes);
        self.bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let taken = bytes.split_to(bytes.len().min(self.part_bytes - self.pending_bytes));
            self.pending_bytes += taken.len();
            self.pending.push(taken);
            if self.pending_bytes == self.part_bytes {
                self.send().await?;
            }
        }
        Ok(())
    }

    /// Gives back as much memory as the store allows: waits for every part under way, and sends a small one if it may.
    pub(super) async fn drain(&mut self) -> Result<()> {
        if self.any_size {
            self.send().await?;
        }
        self.wait_below(1).await
    }

    async fn send(&mut self) -> Result<()> {
        if self.pending_bytes == 0 {
            return Ok(());
        }
        self.wait_below(PARTS_UNDER_WAY).await?;
        let payload: PutPayload = self.pending.drain(..).collect();
        let size = std::mem::take(&mut self.pending_bytes);
        let part = self.multipart.put_part(payload);
        self.under_way_bytes += size;
        self.under_way.spawn(async move { (size, part.await) });
        Ok(())
    }

    async fn wait_below(&mut self, limit: usize) -> Result<()> {
        while self.under_way.len() >= limit {
            let Some(joined) = self.under_way.join_next().await else { return Ok(()) };
            let (size, outcome) = joined.map_err(|e| Error::internal(format!("an upload part ended without an answer: {e}")))?;
            self.under_way_bytes = self.under_way_bytes.saturating_sub(size);
            outcome.map_err(|e| self.failed(e))?;
        }
        Ok(())
    }

    /// Makes the object visible.
    pub(super) async fn finish(&mut self) -> Result<ObjectRef> {
        self.send().await?;
        self.wait_below(1).await?;
        self.multipart.complete().await.map_err(|e| self.failed(e))?;
        Ok(ObjectRef { path: self.relative.clone(), bytes: self.bytes, hash: self.hasher.finalize().to_hex().to_string() })
    }

    /// Asks the store to forget the parts; what it keeps nevertheless is the store's to expire.
    pub(super) async fn abort(&mut self) {
        self.under_way.shutdown().await;
        if let Err(e) = self.multipart.abort().await {
            log::debug!("the upload of {} could not be aborted: {}", self.path, crate::redact::without_credentials(&e.to_string()));
        }
    }

    fn failed(&self, error: StoreError) -> Error {
        self.incarnation.objects().failed("writing", &self.path, error)
    }
}
