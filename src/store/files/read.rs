//! Reading a table's Parquet files back, verified.
//!
//! ```text
//! ObjectRef ─ verify_object: size and BLAKE3, in blocks ─► open_rows ─► batches in the wanted schema
//! ```
//!
//! Memory: two blocks while verifying, one row group's wanted columns and a batch of limited bytes while reading. Never returns rows of a file whose
//! rows do not fit the schema.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, new_null_array};
use arrow::compute::{CastOptions, cast_with_options};
use arrow_schema::{Field, Schema, SchemaRef};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryFutureExt};
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt};
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::arrow::{ParquetRecordBatchStreamBuilder, ProjectionMask};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use super::BATCH_BYTES;
use crate::error::{Error, Result};
use crate::store::{Incarnation, ObjectRef};

const BLOCK_BYTES: u64 = 4 << 20;

/// Compares size and BLAKE3 digest of an object with what is recorded of it.
///
/// # Errors
/// `HISTORY_MISSING` when it is gone, `CORRUPT` when its bytes are others, `STORE_FAILED`.
pub async fn verify_object(incarnation: &Incarnation, object: &ObjectRef) -> Result<()> {
    let path = incarnation.path(&object.path);
    let store = &incarnation.store().location().store;
    let found = store.head(&path).await.map_err(|e| unreadable(incarnation, &path, e))?;
    if found.size != object.bytes {
        let what = format!("it has {} bytes and should have {}", found.size, object.bytes);
        return Err(incarnation.objects().corrupt(&path, what));
    }
    let mut hasher = blake3::Hasher::new();
    let begins = (0..object.bytes.div_ceil(BLOCK_BYTES)).map(|block| block * BLOCK_BYTES);
    // The next block is on its way while one is hashed.
    let blocks = futures::stream::iter(begins).map(|begin| store.get_range(&path, begin..object.bytes.min(begin + BLOCK_BYTES)));
    let mut blocks = std::pin::pin!(blocks.buffered(2));
    while let Some(block) = blocks.next().await {
        hasher.update(&block.map_err(|e| unreadable(incarnation, &path, e))?);
    }
    if hasher.finalize().to_hex().as_str() != object.hash {
        return Err(incarnation.objects().corrupt(&path, "its bytes do not match the hash that is recorded for it"));
    }
    Ok(())
}

/// Chooses row groups of a file by its schema and footer; `None`: all.
pub type Choose<'a> = dyn FnMut(&Schema, &ParquetMetaData) -> Result<Option<Vec<usize>>> + Send + 'a;

/// The rows of an object that was verified, as batches of `schema`: its columns by name, encodings cast. A column that may
/// be null and that the file does not have is null: a synced table's columns come and go.
///
/// # Errors
/// `HISTORY_MISSING`, `STORE_FAILED`, and `CORRUPT` when the object is no Parquet file with these columns or has not
/// `rows` rows (where a number is given).
pub async fn open_rows(
    incarnation: &Incarnation,
    object: &ObjectRef,
    schema: &SchemaRef,
    batch_rows: usize,
    rows: Option<u64>,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let path = incarnation.path(&object.path);
    let mut check = |_: &Schema, metadata: &ParquetMetaData| {
        let found = u64::try_from(metadata.file_metadata().num_rows()).unwrap_or(0);
        match rows.filter(|rows| *rows != found) {
            Some(rows) => Err(incarnation.objects().corrupt(&path, format!("it has {found} rows and should have {rows}"))),
            None => Ok(None),
        }
    };
    open_groups(incarnation, object, schema, batch_rows, &mut check).await
}

/// [`open_rows`] of the row groups that are chosen.
///
/// # Errors
/// Those of [`open_rows`] and of `choose`.
pub async fn open_groups(
    incarnation: &Incarnation,
    object: &ObjectRef,
    schema: &SchemaRef,
    batch_rows: usize,
    choose: &mut Choose<'_>,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let path = incarnation.path(&object.path);
    let store = Arc::clone(&incarnation.store().location().store);
    let reader = StoreReader { store, path: path.clone(), bytes: object.bytes };
    let wrong = |e: ParquetError| from_parquet(incarnation, &path, e);
    let builder = ParquetRecordBatchStreamBuilder::new(reader).await.map_err(wrong)?;
    let groups = choose(builder.schema(), builder.metadata())?;
    let roots =
        roots(builder.schema(), schema).map_err(|name| incarnation.objects().corrupt(&path, format!("it has no column {name:?}")))?;
    let mask = ProjectionMask::roots(builder.parquet_schema(), roots);
    let batch_rows = batch_rows.min(rows_in_a_batch(builder.metadata(), &mask)).max(1);
    let builder = builder.with_projection(mask).with_batch_size(batch_rows);
    let stream = match groups {
        Some(groups) => builder.with_row_groups(groups),
        None => builder,
    };
    let stream = stream.build().map_err(wrong)?;
    let (incarnation, schema) = (incarnation.clone(), Arc::clone(schema));
    let fit = move |batch: std::result::Result<RecordBatch, ParquetError>| {
        let batch = batch.map_err(|e| from_parquet(&incarnation, &path, e))?;
        fit_schema(&batch, &schema).map_err(|e| incarnation.objects().corrupt(&path, e))
    };
    Ok(stream.map(fit).boxed())
}

/// How many rows of the wanted columns make a batch of [`BATCH_BYTES`].
fn rows_in_a_batch(metadata: &ParquetMetaData, mask: &ProjectionMask) -> usize {
    let row_bytes = metadata.row_groups().iter().map(|group| {
        let wanted = group.columns().iter().enumerate().filter(|(leaf, _)| mask.leaf_included(*leaf));
        let bytes: i64 = wanted.map(|(_, column)| column.uncompressed_size()).sum();
        usize::try_from(bytes / group.num_rows().max(1)).unwrap_or(0)
    });
    BATCH_BYTES.checked_div(row_bytes.max().unwrap_or(0)).unwrap_or(usize::MAX)
}

fn roots(found: &Schema, wanted: &Schema) -> std::result::Result<Vec<usize>, String> {
    let position = |field: &Arc<Field>| match found.index_of(field.name()) {
        Ok(at) => Some(Ok(at)),
        Err(_) if field.is_nullable() => None,
        Err(_) => Some(Err(field.name().clone())),
    };
    wanted.fields().iter().filter_map(position).collect()
}

fn fit_schema(batch: &RecordBatch, schema: &SchemaRef) -> std::result::Result<RecordBatch, arrow_schema::ArrowError> {
    let column = |name: &str, wanted: &arrow_schema::DataType| -> std::result::Result<ArrayRef, arrow_schema::ArrowError> {
        match batch.column_by_name(name) {
            None => Ok(new_null_array(wanted, batch.num_rows())),
            Some(column) if column.data_type() == wanted => Ok(Arc::clone(column)),
            // Never a null for a value that does not fit.
            Some(column) => cast_with_options(column, wanted, &CastOptions { safe: false, ..CastOptions::default() }),
        }
    };
    let columns =
        schema.fields().iter().map(|field| column(field.name(), field.data_type())).collect::<std::result::Result<Vec<_>, _>>()?;
    RecordBatch::try_new(Arc::clone(schema), columns)
}

fn unreadable(incarnation: &Incarnation, path: &Path, error: StoreError) -> Error {
    match error {
        StoreError::NotFound { .. } => incarnation.objects().missing(path),
        other => incarnation.objects().failed("reading", path, other),
    }
}

fn from_parquet(incarnation: &Incarnation, path: &Path, error: ParquetError) -> Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<StoreError>() {
            Ok(error) => unreadable(incarnation, path, *error),
            Err(other) => incarnation.objects().corrupt(path, other),
        },
        other => incarnation.objects().corrupt(path, other),
    }
}

/// An object as Parquet's reader wants it.
struct StoreReader {
    store: Arc<dyn ObjectStore>,
    path: Path,
    bytes: u64,
}

fn external(error: StoreError) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl AsyncFileReader for StoreReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ParquetError>> {
        self.store.get_range(&self.path, range).map_err(external).boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>, ParquetError>> {
        async move { self.store.get_ranges(&self.path, &ranges).await.map_err(external) }.boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>, ParquetError>> {
        async move {
            let bytes = self.bytes;
            let reader = ParquetMetaDataReader::new().with_arrow_reader_options(options).with_prefetch_hint(Some(64 << 10));
            Ok(Arc::new(reader.load_and_finish(self, bytes).await?))
        }
        .boxed()
    }
}
