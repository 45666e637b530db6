//! Reading and create-only writing of single objects, with the store's errors translated.
//!
//! ```text
//! create ─► PutMode::Create ─ ok ──────────────────────────► Won
//!            ├ AlreadyExists, Precondition, no answer ─ read back ─ our bytes ► Won
//!            │                                        ├ others' ──────────────► Taken
//!            │                                        └ absent or unreadable ─► once more, at last Unknown
//!            └ certainly refused ─► STORE_FAILED
//! ```
//!
//! Bodies carry their writer's id, so equal bytes are the same writer's. Memory: one object. Never overwrites, never
//! takes a missing answer for a no.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error as StoreError, GetOptions, ObjectMeta, ObjectStore, PutMode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::envelope;
use crate::env::{Env, LocalFailure};
use crate::error::{Error, ErrorCode, Result};

/// A larger metadata object is refused before it is read.
pub(super) const METADATA_LIMIT: u64 = 1 << 30;
/// How often a create without an answer is sent.
const CREATE_ROUNDS: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// What helps when an entry of a log is damaged: nothing else says what it said.
const RESTORE_ENTRY: &str = "restore the object from a backup; without one, DROP … PURGE and create the table again";
const RESTORE: &str = "restore the object from a backup; where it belongs to a version's rows, REFRESH … FULL publishes them anew";

/// What a create-only write came to.
pub(super) enum Created {
    /// The object is ours.
    Won,
    /// Somebody else's object has the name; its bytes.
    Taken(Bytes),
    /// The store did not say, and reading back did not help.
    Unknown(StoreError),
}

/// An object that was read.
pub(super) struct Object {
    pub(super) bytes: Bytes,
    /// The store's timestamp, microseconds since 1970.
    pub(super) modified: i64,
}

/// A store and the words by which errors name the table.
#[derive(Clone)]
pub(super) struct Objects {
    pub(super) env: Env,
    pub(super) store: Arc<dyn ObjectStore>,
    /// For example `table "t"`.
    pub(super) label: Arc<str>,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

impl Objects {
    /// `STORE_FAILED`, naming the object.
    pub(super) fn failed(&self, doing: &str, path: &Path, error: StoreError) -> Error {
        let remedy = "check that the store is reachable, that access is granted and that there is free space, then repeat the statement";
        Error::new(
            ErrorCode::StoreFailed,
            format!("{}: {doing} {path:?} failed: {error}. Remedy: {remedy}", self.label, path = path.as_ref()),
        )
        .with_source(error)
    }

    /// `CORRUPT`, naming the object.
    pub(super) fn corrupt(&self, path: &Path, what: impl fmt::Display) -> Error {
        Error::new(ErrorCode::Corrupt, format!("{}: object {:?} is damaged: {what}. Remedy: {RESTORE}", self.label, path.as_ref()))
    }

    /// `CORRUPT` for an entry of a log.
    pub(super) fn corrupt_entry(&self, path: &Path, what: impl fmt::Display) -> Error {
        Error::new(ErrorCode::Corrupt, format!("{}: object {:?} is damaged: {what}. Remedy: {RESTORE_ENTRY}", self.label, path.as_ref()))
    }

    /// `HISTORY_MISSING`, naming the object.
    pub(super) fn missing(&self, path: &Path) -> Error {
        Error::new(
            ErrorCode::HistoryMissing,
            format!(
                "{}: object {:?} is gone. Remedy: restore the table's files; where vacuum removed an old version read a newer one, and where the \
                 newest version is incomplete REFRESH … FULL publishes all rows anew",
                self.label,
                path.as_ref()
            ),
        )
    }

    /// The object, or `None` when it does not exist. Larger than `limit` is `CORRUPT`.
    pub(super) async fn get_limited(&self, path: &Path, limit: u64) -> Result<Option<Object>> {
        let found = match self.store.get_opts(path, GetOptions::default()).await {
            Ok(found) => found,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(self.failed("reading", path, e)),
        };
        if found.meta.size > limit {
            return Err(self.corrupt(path, format_args!("it has {} bytes, more than the {limit} that are possible", found.meta.size)));
        }
        let modified = found.meta.last_modified.timestamp_micros();
        match found.bytes().await {
            Ok(bytes) => Ok(Some(Object { bytes, modified })),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(e) => Err(self.failed("reading", path, e)),
        }
    }

    /// A metadata object's body and timestamp, or `None` when it does not exist.
    pub(super) async fn load<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<(T, i64)>> {
        let Some(object) = self.get_limited(path, METADATA_LIMIT).await? else { return Ok(None) };
        Ok(Some((self.decode(path, &object.bytes)?, object.modified)))
    }

    /// The body of a metadata object's bytes.
    pub(super) fn decode<T: DeserializeOwned>(&self, path: &Path, bytes: &[u8]) -> Result<T> {
        envelope::decode(bytes).map(|(_, body)| body).map_err(|what| self.corrupt(path, what))
    }

    /// The store's timestamp of the object, or `None` when it does not exist.
    pub(super) async fn modified(&self, path: &Path) -> Result<Option<i64>> {
        match self.store.get_opts(path, GetOptions { head: true, ..GetOptions::default() }).await {
            Ok(found) => Ok(Some(found.meta.last_modified.timestamp_micros())),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(e) => Err(self.failed("looking up", path, e)),
        }
    }

    /// Creates the object unless the name is taken. The same bytes under the name count as ours, so they must hold
    /// something that only this writer knows.
    pub(super) async fn create(&self, path: &Path, bytes: &Bytes) -> Result<Created> {
        let mut round = 0;
        loop {
            let error = match self.store.put_opts(path, bytes.clone().into(), PutMode::Create.into()).await {
                Ok(_) => return Ok(Created::Won),
                Err(error) => error,
            };
            if round == 0 && is_refused(&error) {
                return Err(self.failed("writing", path, error));
            }
            let not_durable = matches!(LocalFailure::of(&error), Some(LocalFailure::NotDurable(_)));
            match self.get_limited(path, METADATA_LIMIT).await {
                Ok(Some(found)) if found.bytes != *bytes => return Ok(Created::Taken(found.bytes)),
                Ok(Some(_)) if !not_durable => return Ok(Created::Won),
                // A definite conflict with nothing there happens on stores that answer 409 to racing writers.
                Ok(_) => {}
                Err(e) => log::debug!("reading back {path} failed: {e}"),
            }
            round += 1;
            if round == CREATE_ROUNDS {
                return Ok(Created::Unknown(error));
            }
            self.env.clock.sleep(FIRST_PAUSE * 2_u32.pow(round)).await;
        }
    }

    /// Creates a metadata object; `None` when it is ours, else the body of the one that has the name.
    pub(super) async fn create_record<T: Serialize + DeserializeOwned>(&self, path: &Path, body: &T) -> Result<Option<T>> {
        let bytes = envelope::encode(&self.env.ids.id()?, body)?;
        match self.create(path, &bytes).await? {
            Created::Won => Ok(None),
            Created::Taken(found) => self.decode(path, &found).map(Some),
            Created::Unknown(error) => Err(self.failed("writing", path, error)),
        }
    }

    /// Every object below `prefix`.
    pub(super) fn list(&self, prefix: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.clone());
        self.store.list(Some(&prefix)).map_err(move |e| this.failed("listing", &prefix, e)).boxed()
    }

    /// Deletes objects; one that is gone already counts as deleted.
    pub(super) async fn delete(&self, paths: Vec<Path>) -> Result<()> {
        let store = &self.store;
        let deletions = futures::stream::iter(paths).map(|path| async move {
            let one = futures::stream::iter([Ok(path.clone())]).boxed();
            match store.delete_stream(one).try_for_each(|_| std::future::ready(Ok(()))).await {
                Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
                Err(e) => Err(self.failed("deleting", &path, e)),
            }
        });
        deletions.buffer_unordered(16).try_collect().await
    }

    /// The store's clock: the timestamp of an object that was just written. The object is removed again.
    pub(super) async fn store_now(&self, mark: &Path) -> Result<i64> {
        self.store
            .put_opts(mark, Bytes::from_static(b"{}").into(), PutMode::Create.into())
            .await
            .map_err(|e| self.failed("writing", mark, e))?;
        let now = self.modified(mark).await?.ok_or_else(|| self.missing(mark))?;
        if let Err(e) = self.delete(vec![mark.clone()]).await {
            log::debug!("the mark {mark} stays until the next vacuum: {e}");
        }
        Ok(now)
    }
}

/// Whether the store certainly did not create the object.
fn is_refused(error: &StoreError) -> bool {
    match error {
        StoreError::NotSupported { .. }
        | StoreError::NotImplemented { .. }
        | StoreError::PermissionDenied { .. }
        | StoreError::Unauthenticated { .. }
        | StoreError::InvalidPath { .. }
        | StoreError::UnknownConfigurationKey { .. } => true,
        other => matches!(LocalFailure::of(other), Some(LocalFailure::NotApplied(_))),
    }
}
