//! The store `faulty://store/`: in memory, and it goes wrong on request.
//!
//! | `HARNESS FAULT …` | what the store does |
//! | --- | --- |
//! | `none` | all well |
//! | `ignores_create` | overwrites where create-only was asked for |
//! | `loses_answers` | stores version slots and answers with an error |
//! | `blackout` | the same, and then version slots cannot be read |
//! | `down` | refuses every write |

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result,
};
use tokio::sync::watch;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    IgnoresCreate,
    LosesAnswers,
    Blackout,
    Down,
}

impl Fault {
    /// The fault of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "none" => Self::None,
            "ignores_create" => Self::IgnoresCreate,
            "loses_answers" => Self::LosesAnswers,
            "blackout" => Self::Blackout,
            "down" => Self::Down,
            _ => return None,
        })
    }
}

/// The store; clones share it.
#[derive(Debug, Clone)]
pub struct FaultyStore {
    inner: Arc<InMemory>,
    fault: watch::Sender<Fault>,
    /// Whether a blackout has begun.
    dark: Arc<AtomicBool>,
}

impl Default for FaultyStore {
    fn default() -> Self {
        Self { inner: Arc::default(), fault: watch::Sender::new(Fault::None), dark: Arc::default() }
    }
}

impl FaultyStore {
    /// From now on `fault` happens.
    pub fn set(&self, fault: Fault) {
        self.dark.store(false, Ordering::SeqCst);
        self.fault.send_replace(fault);
    }

    fn fault(&self) -> Fault {
        *self.fault.borrow()
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyStore")
    }
}

fn failure(what: &str) -> Error {
    Error::Generic { store: "FaultyStore", source: what.into() }
}

fn is_slot(location: &Path) -> bool {
    location.as_ref().contains("/versions/")
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        match self.fault() {
            Fault::Down => return Err(failure("the store is down")),
            Fault::IgnoresCreate if matches!(options.mode, PutMode::Create) => options.mode = PutMode::Overwrite,
            _ => {}
        }
        let stored = self.inner.put_opts(location, payload, options).await?;
        match self.fault() {
            Fault::LosesAnswers if is_slot(location) => Err(failure("the answer was lost")),
            Fault::Blackout if is_slot(location) => {
                self.dark.store(true, Ordering::SeqCst);
                Err(failure("the answer was lost"))
            }
            _ => Ok(stored),
        }
    }

    async fn put_multipart_opts(&self, location: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        match self.fault() {
            Fault::Down => Err(failure("the store is down")),
            _ => self.inner.put_multipart_opts(location, options).await,
        }
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if is_slot(location) && self.dark.load(Ordering::SeqCst) {
            return Err(failure("the slot cannot be read"));
        }
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
