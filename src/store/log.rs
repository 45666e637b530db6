//! An append-only log of create-only objects, numbered from 1 without gaps.
//!
//! ```text
//! 1  2  3  …  n │ n+1 free          newest = n: from a hint by doubled steps, then by halving; look-ups, no listing
//!               └ append: create n+1; taken → somebody else was first
//! ```
//!
//! Entries are never deleted. On the first look at a guarded log, a listing above n finds a hole (entries that were
//! lost), which would otherwise read as an older state. Memory: one number.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures::StreamExt;
use object_store::path::Path;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::envelope;
use super::objects::{Created, METADATA_LIMIT, Objects};
use crate::error::{Error, Result};

/// What an append came to.
pub(super) enum Appended<T> {
    /// The entry is ours.
    Won,
    /// Somebody else has the number.
    Taken(T),
    /// The store did not say.
    Unknown(object_store::Error),
}

/// A log in one folder.
#[derive(Debug)]
pub(super) struct Log {
    objects: Objects,
    folder: Path,
    suffix: &'static str,
    /// The highest number that is known to exist.
    hint: AtomicU64,
    /// Whether no hole is to be looked for (any more).
    checked: AtomicBool,
}

impl Log {
    /// A log that looks for holes once.
    pub(super) fn guarded(objects: Objects, folder: Path) -> Self {
        Self { objects, folder, suffix: ".json", hint: AtomicU64::new(0), checked: AtomicBool::new(false) }
    }

    /// A log whose loss decides nothing.
    pub(super) fn plain(objects: Objects, folder: Path, suffix: &'static str) -> Self {
        Self { objects, folder, suffix, hint: AtomicU64::new(0), checked: AtomicBool::new(true) }
    }

    /// The object of one entry.
    pub(super) fn path(&self, number: u64) -> Path {
        self.folder.clone().join(format!("{number:020}{}", self.suffix))
    }

    /// The newest entry's number; 0 for an empty log.
    pub(super) async fn newest(&self) -> Result<u64> {
        let mut newest = self.hint.load(Ordering::Acquire);
        loop {
            newest = self.search(newest).await?;
            self.hint.fetch_max(newest, Ordering::AcqRel);
            if self.checked.load(Ordering::Acquire) {
                return Ok(newest);
            }
            if !self.has_above(newest).await? {
                self.checked.store(true, Ordering::Release);
                return Ok(newest);
            }
            if !self.exists(newest + 1).await? {
                return Err(self.objects.missing(&self.path(newest + 1)));
            }
        }
    }

    /// The highest number that can be reached from `low`, which exists (or is 0).
    async fn search(&self, mut low: u64) -> Result<u64> {
        let mut step = 1_u64;
        let mut high = loop {
            let probe = low.saturating_add(step);
            if !self.exists(probe).await? {
                break probe;
            }
            low = probe;
            step = step.saturating_mul(2);
        };
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.exists(middle).await? {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    async fn exists(&self, number: u64) -> Result<bool> {
        Ok(self.objects.modified(&self.path(number)).await?.is_some())
    }

    async fn has_above(&self, number: u64) -> Result<bool> {
        let offset = self.path(number);
        let mut above = self.objects.store.list_with_offset(Some(&self.folder), &offset);
        while let Some(found) = above.next().await {
            let found = found.map_err(|e| self.objects.failed("listing", &self.folder, e))?;
            let name = found.location.filename().and_then(|name| name.strip_suffix(self.suffix));
            // Backends differ in whether the offset itself is left out.
            if name.and_then(|name| name.parse::<u64>().ok()).is_some_and(|n| n > number) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// An entry and the store's timestamp of it.
    pub(super) async fn read<T: DeserializeOwned>(&self, number: u64) -> Result<Option<(T, i64)>> {
        let path = self.path(number);
        let Some(object) = self.objects.get_limited(&path, METADATA_LIMIT).await? else { return Ok(None) };
        self.hint.fetch_max(number, Ordering::AcqRel);
        let (_, body) = envelope::decode(&object.bytes).map_err(|what| self.objects.corrupt_entry(&path, what))?;
        Ok(Some((body, object.modified)))
    }

    /// An entry that must exist.
    pub(super) async fn entry<T: DeserializeOwned>(&self, number: u64) -> Result<(T, i64)> {
        self.read(number).await?.ok_or_else(|| self.objects.missing(&self.path(number)))
    }

    /// Creates entry `number`; its predecessor must exist.
    pub(super) async fn append<T: Serialize + DeserializeOwned>(&self, number: u64, writer: &str, body: &T) -> Result<Appended<T>> {
        if number == 0 {
            return Err(Error::internal("log entries are numbered from 1"));
        }
        let path = self.path(number);
        let outcome = match self.objects.create(&path, &envelope::encode(writer, body)?).await? {
            Created::Won => Appended::Won,
            Created::Taken(found) => Appended::Taken(self.objects.decode(&path, &found)?),
            Created::Unknown(error) => return Ok(Appended::Unknown(error)),
        };
        self.hint.fetch_max(number, Ordering::AcqRel);
        Ok(outcome)
    }

    /// The same as [`Log::append`] where an unknown outcome is a failure of the store.
    pub(super) async fn append_known<T: Serialize + DeserializeOwned>(&self, number: u64, writer: &str, body: &T) -> Result<Option<T>> {
        match self.append(number, writer, body).await? {
            Appended::Won => Ok(None),
            Appended::Taken(other) => Ok(Some(other)),
            Appended::Unknown(error) => Err(self.objects.failed("writing", &self.path(number), error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use object_store::{ObjectStore, ObjectStoreExt};

    use super::*;
    use crate::env::Env;
    use crate::error::ErrorCode;

    fn log(store: &Arc<dyn ObjectStore>) -> Log {
        Log::guarded(Objects { env: Env::default(), store: Arc::clone(store), label: "table \"t\"".into() }, Path::from("t/versions"))
    }

    #[tokio::test]
    async fn the_newest_entry_is_found_from_any_hint() {
        for entries in [0_u64, 1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 100] {
            let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
            let warm = log(&store);
            for number in 1..=entries {
                assert!(matches!(warm.append(number, "w", &number).await.unwrap(), Appended::Won));
            }
            assert_eq!(warm.newest().await.unwrap(), entries);
            let cold = log(&store);
            assert_eq!(cold.newest().await.unwrap(), entries);
            assert!(matches!(warm.append(entries + 1, "w", &7).await.unwrap(), Appended::Won));
            assert_eq!(cold.newest().await.unwrap(), entries + 1);
        }
    }

    #[tokio::test]
    async fn a_lost_entry_is_not_an_older_state() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let warm = log(&store);
        for number in 1..=4_u64 {
            warm.append(number, "w", &number).await.unwrap();
        }
        store.delete(&warm.path(3)).await.unwrap();
        store.delete(&warm.path(4)).await.unwrap();
        assert_eq!(log(&store).newest().await.unwrap(), 2);
        warm.append(4, "w", &4_u64).await.unwrap();
        let error = log(&store).newest().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::HistoryMissing);
        assert!(error.message().contains("00000000000000000003.json"), "{error}");
    }
}
