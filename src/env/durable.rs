//! The local disk as an object store whose acknowledged writes survive a power failure.
//!
//! ```text
//! put     name#7 (new, hidden) ─ write ─ fsync ─ hard link to name ─ unlink name#7 ─ fsync folder ─ acknowledge
//!                                                 └ EEXIST → AlreadyExists: exactly one creator wins
//! folders that had to be made are synced from the top down, before anything is linked into them
//! ```
//!
//! `object_store`'s `LocalFileSystem` never syncs; it does the reading, listing (which hides names that end in `#` and
//! digits) and deleting. Memory: a put holds its payload, an upload nothing. Never renames over an object that was
//! created, never leaves a half-written name.

use std::collections::HashSet;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::ops::Range;
use std::path::{Path as FsPath, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::common::runtime::SpawnedTask;
use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
};

const STORE: &str = "DurableLocalStore";
/// Folders remembered as synced; beyond it the memory is dropped and they are synced once more.
const KNOWN_FOLDERS: usize = 4096;
/// Objects of a listing that are looked at together.
const LIST_CHUNK: usize = 256;

/// What a failed local write left behind, so that a create-only writer can tell "no" from "perhaps".
#[derive(Debug, thiserror::Error)]
pub(crate) enum LocalFailure {
    /// The name was not created by this call.
    #[error("{0}")]
    NotApplied(#[source] io::Error),
    /// The name exists but may not survive a power failure.
    #[error("the folder could not be synced: {0}")]
    NotDurable(#[source] io::Error),
}

impl LocalFailure {
    /// The local failure inside an error of the store, if it came from this store.
    pub(crate) fn of(error: &Error) -> Option<&Self> {
        match error {
            Error::Generic { source, .. } => source.downcast_ref(),
            _ => None,
        }
    }
}

fn not_applied(error: io::Error) -> Error {
    Error::Generic { store: STORE, source: Box::new(LocalFailure::NotApplied(error)) }
}

fn not_durable(error: io::Error) -> Error {
    Error::Generic { store: STORE, source: Box::new(LocalFailure::NotDurable(error)) }
}

/// The whole local disk; paths are absolute.
#[derive(Debug, Clone)]
pub struct DurableLocalStore {
    inner: Arc<LocalFileSystem>,
    folders: Arc<Folders>,
}

impl DurableLocalStore {
    /// The whole local disk.
    pub fn new() -> Self {
        Self { inner: Arc::new(LocalFileSystem::new()), folders: Arc::default() }
    }
}

impl Default for DurableLocalStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for DurableLocalStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(STORE)
    }
}

#[async_trait]
impl ObjectStore for DurableLocalStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        if matches!(opts.mode, PutMode::Update(_)) || !opts.attributes.is_empty() {
            return self.inner.put_opts(location, payload, opts).await; // refused there
        }
        let target = self.inner.path_to_filesystem(location)?;
        let folders = Arc::clone(&self.folders);
        let exclusive = matches!(opts.mode, PutMode::Create);
        blocking(move || {
            let (mut file, staged) = folders.stage(&target).map_err(not_applied)?;
            let written = payload.iter().try_for_each(|part| file.write_all(part)).and_then(|()| file.sync_all());
            drop(file);
            folders.finish(written, &staged, &target, exclusive)
        })
        .await?;
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        if !opts.attributes.is_empty() {
            return self.inner.put_multipart_opts(location, opts).await; // refused there
        }
        let target = self.inner.path_to_filesystem(location)?;
        let folders = Arc::clone(&self.folders);
        let stage = {
            let (folders, target) = (Arc::clone(&folders), target.clone());
            move || folders.stage(&target).map_err(not_applied)
        };
        let (file, staged) = blocking(stage).await?;
        Ok(Box::new(Upload { folders, target, staged: Some(staged), file: Arc::new(Mutex::new(Some(file))), offset: 0 }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    /// Only what is really there: a link that leads out of the folder is not part of it, and must not let a vacuum or a purge
    /// delete what it leads to.
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = self.inner.list(prefix);
        let folder = prefix.and_then(|prefix| self.inner.path_to_filesystem(prefix).ok());
        let Some(folder) = folder else { return listed };
        let inner = Arc::clone(&self.inner);
        listed
            .ready_chunks(LIST_CHUNK)
            .then(move |chunk| {
                let (inner, folder) = (Arc::clone(&inner), folder.clone());
                blocking(move || Ok(inside(&inner, &folder, chunk)))
            })
            .map_ok(futures::stream::iter)
            .try_flatten()
            .boxed()
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}

/// The objects that lie below `folder` when links are followed.
fn inside(store: &LocalFileSystem, folder: &FsPath, objects: Vec<Result<ObjectMeta>>) -> Vec<Result<ObjectMeta>> {
    let Ok(folder) = folder.canonicalize() else { return objects };
    let is_inside = |object: &Result<ObjectMeta>| match object {
        Ok(object) => match store.path_to_filesystem(&object.location).map(|path| path.canonicalize()) {
            Ok(Ok(path)) => path.starts_with(&folder),
            // Gone since it was listed.
            _ => true,
        },
        Err(_) => true,
    };
    objects.into_iter().filter(is_inside).collect()
}

/// Runs disk work off the async threads; a panic there is an error here.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    SpawnedTask::spawn_blocking(work).await.map_err(|source| Error::JoinError { source })?
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Makes and syncs folders, and stages files in them.
#[derive(Debug, Default)]
struct Folders {
    known: Mutex<HashSet<PathBuf>>,
}

impl Folders {
    /// A new hidden file beside `target`.
    fn stage(&self, target: &FsPath) -> io::Result<(File, PathBuf)> {
        let folder = target.parent().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "the root is no object"))?;
        let mut made = self.know(folder)?;
        for number in 1_u64.. {
            let mut name = target.as_os_str().to_os_string();
            name.push(format!("{}{number}", super::staged::MARK));
            let staged = PathBuf::from(name);
            match OpenOptions::new().write(true).create_new(true).open(&staged) {
                Ok(file) => return Ok((file, staged)),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {} // another writer's, or left by a crash
                Err(e) if e.kind() == ErrorKind::NotFound && !made => {
                    // The folder was removed since it was made.
                    lock(&self.known).clear();
                    self.know(folder)?;
                    made = true;
                }
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::new(ErrorKind::AlreadyExists, "no free temporary name"))
    }

    /// Makes `folder` and its parents and syncs the parents, unless it is known. True when there was something to do.
    fn know(&self, folder: &FsPath) -> io::Result<bool> {
        if lock(&self.known).contains(folder) {
            return Ok(false);
        }
        if let Some(parent) = folder.parent() {
            self.know(parent)?;
            let made = match std::fs::create_dir(folder) {
                Ok(()) => true,
                Err(_) if folder.is_dir() => false,
                Err(e) => return Err(e),
            };
            // A folder that exists may have been made by another process a moment ago: its entry is synced too, but
            // only where this process may, since parents far above are not ours.
            match sync_folder(parent) {
                Err(e) if made => return Err(e),
                _ => {}
            }
        }
        let mut known = lock(&self.known);
        if known.len() >= KNOWN_FOLDERS {
            known.clear();
        }
        known.insert(folder.to_path_buf());
        Ok(true)
    }

    /// Gives a written and synced file its name, and syncs the folder. The temporary name is gone afterwards.
    fn finish(&self, written: io::Result<()>, staged: &FsPath, target: &FsPath, exclusive: bool) -> Result<()> {
        let named = written.and_then(|()| if exclusive { std::fs::hard_link(staged, target) } else { std::fs::rename(staged, target) });
        if exclusive || named.is_err() {
            let _ = std::fs::remove_file(staged); // a vacuum finds leftovers
        }
        let synced = target.parent().map_or(Ok(()), sync_folder);
        match named {
            Ok(()) => synced.map_err(not_durable),
            Err(source) if source.kind() == ErrorKind::AlreadyExists => {
                Err(Error::AlreadyExists { path: target.display().to_string(), source: source.into() })
            }
            Err(e) => Err(not_applied(e)),
        }
    }
}

#[cfg(unix)]
fn sync_folder(folder: &FsPath) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Other systems cannot open a folder for syncing; their file systems order names with their data.
#[cfg(not(unix))]
fn sync_folder(_folder: &FsPath) -> io::Result<()> {
    Ok(())
}

/// A large object on its way: parts go to the staged file, in the order of their calls.
#[derive(Debug)]
struct Upload {
    folders: Arc<Folders>,
    target: PathBuf,
    staged: Option<PathBuf>,
    file: Arc<Mutex<Option<File>>>,
    offset: u64,
}

impl Upload {
    fn gone() -> Error {
        not_applied(io::Error::other("the upload has ended"))
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (file, offset) = (Arc::clone(&self.file), self.offset);
        self.offset += data.content_length() as u64;
        Box::pin(blocking(move || {
            let mut guard = lock(&file);
            let file = guard.as_mut().ok_or_else(Upload::gone)?;
            io::Seek::seek(file, io::SeekFrom::Start(offset)).map_err(not_applied)?;
            data.iter().try_for_each(|part| file.write_all(part)).map_err(not_applied)
        }))
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let staged = self.staged.take().ok_or_else(Upload::gone)?;
        let (file, folders, target) = (Arc::clone(&self.file), Arc::clone(&self.folders), self.target.clone());
        let size = self.offset;
        blocking(move || {
            let file = lock(&file).take().ok_or_else(Upload::gone)?;
            let whole = file.metadata().and_then(|m| {
                // A part whose future was dropped leaves a hole or a short file.
                if m.len() == size { Ok(()) } else { Err(io::Error::other("a part of the upload was not written")) }
            });
            let written = whole.and_then(|()| file.sync_all());
            drop(file);
            folders.finish(written, &staged, &target, true)
        })
        .await?;
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn abort(&mut self) -> Result<()> {
        let Some(staged) = self.staged.take() else { return Ok(()) };
        lock(&self.file).take();
        blocking(move || std::fs::remove_file(staged).map_err(not_applied)).await
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(staged) = self.staged.take() {
            let _ = std::fs::remove_file(staged); // a vacuum finds leftovers
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt;

    use super::*;

    fn names(folder: &FsPath) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn at(folder: &FsPath, name: &str) -> Path {
        Path::from_absolute_path(folder).unwrap().join("new").join("deep").join(name)
    }

    #[tokio::test]
    async fn a_local_create_is_exclusive_and_leaves_no_temporary_files() {
        let folder = tempfile::tempdir().unwrap();
        let store = DurableLocalStore::new();
        let path = at(folder.path(), "o.json");
        let creates = (0..16_u8).map(|n| store.put_opts(&path, vec![n].into(), PutMode::Create.into()));
        let results = futures::future::join_all(creates).await;
        let winner = results.iter().position(|r| r.is_ok()).unwrap();
        assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 1);
        assert!(results.iter().all(|r| matches!(r, Ok(_) | Err(Error::AlreadyExists { .. }))));
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap().as_ref(), [winner as u8]);
        assert_eq!(names(&folder.path().join("new/deep")), ["o.json"]);
    }

    #[tokio::test]
    async fn an_upload_is_exclusive_ordered_and_cleans_up() {
        let folder = tempfile::tempdir().unwrap();
        let store = DurableLocalStore::new();
        let path = at(folder.path(), "o.parquet");
        let mut upload = store.put_multipart(&path).await.unwrap();
        let (first, second) = (upload.put_part("ab".into()), upload.put_part("cd".into()));
        second.await.unwrap();
        assert_eq!(store.list(Some(&Path::from_absolute_path(folder.path()).unwrap())).count().await, 0);
        first.await.unwrap();
        upload.complete().await.unwrap();
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap().as_ref(), b"abcd");

        let mut again = store.put_multipart(&path).await.unwrap();
        again.put_part("x".into()).await.unwrap();
        assert!(matches!(again.complete().await, Err(Error::AlreadyExists { .. })));
        let mut short = store.put_multipart(&at(folder.path(), "p")).await.unwrap();
        drop(short.put_part("x".into()));
        assert!(short.complete().await.is_err());
        drop(store.put_multipart(&at(folder.path(), "q")).await.unwrap());
        assert_eq!(names(&folder.path().join("new/deep")), ["o.parquet"]);
    }

    #[tokio::test]
    async fn a_folder_that_was_removed_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = DurableLocalStore::new();
        store.put(&at(folder.path(), "a"), "1".into()).await.unwrap();
        std::fs::remove_dir_all(folder.path().join("new")).unwrap();
        store.put(&at(folder.path(), "a"), "2".into()).await.unwrap();
        assert_eq!(names(&folder.path().join("new/deep")), ["a"]);
    }
}
