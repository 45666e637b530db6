//! Reads data files through the table's own store, and says what is wrong when that fails.
//!
//! ```text
//! footer ─► (verify = 'always': the whole file is hashed once per scan) ─► metadata, cached by the session
//! gone → HISTORY_MISSING     another size or digest, no Parquet → CORRUPT     the store fails → STORE_FAILED
//! ```
//!
//! Memory: one chunk of the store while hashing, 1 MiB of a local file.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::datasource::physical_plan::parquet::{CachedParquetFileReaderFactory, ParquetFileReaderFactory};
use datafusion::error::DataFusionError;
use datafusion::execution::cache::cache_manager::FileMetadataCache;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::future::BoxFuture;
use futures::{FutureExt, TryStreamExt};
use object_store::{GetResultPayload, ObjectMeta, ObjectStore, ObjectStoreExt};
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use tokio::sync::OnceCell;

use super::Snapshot;
use super::damage::corrupt;
use crate::error::{Error, ErrorCode, Result};
use crate::store::ObjectRef;

/// So much of a local file is hashed at once.
const LOCAL_PIECE: usize = 1 << 20;

/// What the manifest says about a data file; attached to its `PartitionedFile`.
#[derive(Debug, Clone)]
pub(super) struct FileIdentity {
    pub(super) object: ObjectRef,
    pub(super) rows: u64,
    pub(super) version: Option<u64>,
}

/// Files that this scan has hashed already, by path; a file may be opened once per byte range.
type Verified = Mutex<HashMap<String, Arc<OnceCell<()>>>>;

/// Makes readers over the table's own store.
#[derive(Debug)]
pub(super) struct PublishedReaderFactory {
    table: Arc<str>,
    store: Arc<dyn ObjectStore>,
    cache: Arc<FileMetadataCache>,
    inner: CachedParquetFileReaderFactory,
    verified: Option<Arc<Verified>>,
}

impl PublishedReaderFactory {
    pub(super) fn new(snapshot: &Snapshot, cache: Arc<FileMetadataCache>) -> Self {
        let store = Arc::clone(&snapshot.incarnation.store().location().store);
        let inner = CachedParquetFileReaderFactory::new(Arc::clone(&store), Arc::clone(&cache));
        Self { table: snapshot.table().into(), store, cache, inner, verified: snapshot.verify.then(Arc::default) }
    }
}

impl ParquetFileReaderFactory for PublishedReaderFactory {
    fn create_reader(
        &self,
        partition: usize,
        file: PartitionedFile,
        metadata_size_hint: Option<usize>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>, DataFusionError> {
        let Some(identity) = file.extension::<FileIdentity>().cloned() else {
            return Err(Error::internal(format!("table {:?}: a data file lost its identity", self.table)).into());
        };
        let checked =
            CheckedFile { table: Arc::clone(&self.table), store: Arc::clone(&self.store), meta: file.object_meta.clone(), identity };
        let inner = self.inner.create_reader(partition, file, metadata_size_hint, metrics)?;
        let access = Access { file: checked, cache: Arc::clone(&self.cache), metadata_size_hint, verified: self.verified.clone() };
        Ok(Box::new(PublishedReader { inner, access: Arc::new(access) }))
    }
}

/// One data file and where it is.
#[derive(Debug)]
struct CheckedFile {
    table: Arc<str>,
    store: Arc<dyn ObjectStore>,
    meta: ObjectMeta,
    identity: FileIdentity,
}

impl CheckedFile {
    fn path(&self) -> &str {
        &self.identity.object.path
    }

    fn missing(&self) -> Error {
        let version = self.identity.version.map_or_else(|| "of the draft".to_string(), |version| format!("of version {version}"));
        Error::new(
            ErrorCode::HistoryMissing,
            format!(
                "table {:?}: data file {:?} {version} is gone. Remedy: read a newer version, restore the file, or rebuild with REFRESH … FULL, which reads no old data file",
                self.table,
                self.path()
            ),
        )
    }

    /// Why the store failed: a cut file fails like an unreachable one, so its size is looked up.
    async fn store_failed(&self, error: object_store::Error) -> Error {
        if matches!(error, object_store::Error::NotFound { .. }) {
            return self.missing().with_source(error);
        }
        match self.store.head(&self.meta.location).await {
            Err(object_store::Error::NotFound { .. }) => self.missing().with_source(error),
            Ok(found) if found.size != self.meta.size => self.cut(found.size).with_source(error),
            _ => Error::new(
                ErrorCode::StoreFailed,
                format!(
                    "table {:?}: data file {:?} cannot be read: {error}. Remedy: check the object store and run the statement again",
                    self.table,
                    self.path()
                ),
            )
            .with_source(error),
        }
    }

    fn cut(&self, found: u64) -> Error {
        corrupt(&self.table, self.path(), &format!("it has {found} bytes and should have {}", self.meta.size))
    }

    async fn explain(&self, error: ParquetError) -> ParquetError {
        let error = match error {
            ParquetError::External(cause) => match cause.downcast::<object_store::Error>() {
                Ok(cause) => self.store_failed(*cause).await,
                Err(cause) => return ParquetError::External(cause),
            },
            other => corrupt(&self.table, self.path(), &other).with_source(other),
        };
        ParquetError::External(Box::new(error))
    }

    async fn explain_datafusion(&self, error: DataFusionError) -> ParquetError {
        match error {
            DataFusionError::ObjectStore(cause) => ParquetError::External(Box::new(self.store_failed(*cause).await)),
            DataFusionError::ParquetError(cause) => self.explain(*cause).await,
            other => ParquetError::External(Box::new(other)),
        }
    }

    /// Reads the whole file through BLAKE3.
    async fn hash(&self, hasher: &mut blake3::Hasher) -> object_store::Result<()> {
        let found = self.store.get(&self.meta.location).await?;
        if matches!(found.payload, GetResultPayload::File(..)) {
            // The stream of a local file hands 8 KiB at a time from thread to thread, and never ends when the file shrinks.
            let size = found.meta.size;
            for start in (0..size).step_by(LOCAL_PIECE) {
                let end = size.min(start + LOCAL_PIECE as u64);
                hasher.update(&self.store.get_range(&self.meta.location, start..end).await?);
            }
            return Ok(());
        }
        let mut chunks = found.into_stream();
        while let Some(chunk) = chunks.try_next().await? {
            hasher.update(&chunk);
        }
        Ok(())
    }

    async fn verify(&self) -> Result<()> {
        let mut hasher = blake3::Hasher::new();
        let hashed = self.hash(&mut hasher);
        if let Err(error) = hashed.await {
            return Err(self.store_failed(error).await);
        }
        if hasher.finalize().to_hex().as_str() == self.identity.object.hash {
            Ok(())
        } else {
            Err(corrupt(&self.table, self.path(), &"its bytes do not have the recorded digest"))
        }
    }
}

/// How one file is opened.
struct Access {
    file: CheckedFile,
    cache: Arc<FileMetadataCache>,
    metadata_size_hint: Option<usize>,
    verified: Option<Arc<Verified>>,
}

impl Access {
    /// Hashes the file unless another reader of this scan did.
    async fn verify_once(&self) -> Result<()> {
        let Some(verified) = &self.verified else { return Ok(()) };
        let cell = {
            let mut cells = verified.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            Arc::clone(cells.entry(self.file.path().to_string()).or_default())
        };
        cell.get_or_try_init(|| self.file.verify()).await?;
        Ok(())
    }

    async fn metadata(&self, options: Option<&ArrowReaderOptions>) -> Result<Arc<ParquetMetaData>, ParquetError> {
        self.verify_once().await.map_err(|e| ParquetError::External(Box::new(e)))?;
        let metadata = DFParquetMetadata::new(&self.file.store, &self.file.meta)
            .with_file_metadata_cache(Some(Arc::clone(&self.cache)))
            .with_metadata_size_hint(self.metadata_size_hint)
            .with_page_index_policy(options.map(ArrowReaderOptions::column_index_policy))
            .fetch_metadata()
            .await;
        let metadata = match metadata {
            Ok(metadata) => metadata,
            Err(error) => return Err(self.file.explain_datafusion(error).await),
        };
        let rows = metadata.file_metadata().num_rows();
        if u64::try_from(rows) != Ok(self.file.identity.rows) {
            let what = format!("it has {rows} rows and should have {}", self.file.identity.rows);
            return Err(ParquetError::External(Box::new(corrupt(&self.file.table, self.file.path(), &what))));
        }
        Ok(metadata)
    }
}

struct PublishedReader {
    inner: Box<dyn AsyncFileReader + Send>,
    access: Arc<Access>,
}

impl AsyncFileReader for PublishedReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ParquetError>> {
        let access = Arc::clone(&self.access);
        let read = self.inner.get_bytes(range);
        async move {
            match read.await {
                Ok(bytes) => Ok(bytes),
                Err(error) => Err(access.file.explain(error).await),
            }
        }
        .boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>, ParquetError>> {
        let access = Arc::clone(&self.access);
        let read = self.inner.get_byte_ranges(ranges);
        async move {
            match read.await {
                Ok(bytes) => Ok(bytes),
                Err(error) => Err(access.file.explain(error).await),
            }
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>, ParquetError>> {
        let access = Arc::clone(&self.access);
        async move { access.metadata(options).await }.boxed()
    }
}
