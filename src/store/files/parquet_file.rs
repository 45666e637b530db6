//! One Parquet file that is encoded and uploaded as rows arrive.
//!
//! ```text
//! write ─► ArrowWriter ─ row group full or ended early ─► Chunks ─► Upload
//! ```
//!
//! Memory: the row group in progress (encoded pages) and the upload's parts. Encoded bytes leave in chunks, so no
//! buffer is ever doubled. Never uploads anything before the first row group ends.

use std::io;

use arrow::array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::WriterProperties;

use super::upload::Upload;
use crate::error::{Error, ErrorCode, Result};
use crate::store::{Incarnation, ObjectRef};

const CHUNK_BYTES: usize = 256 << 10;
/// What the footer keeps in memory for one column of one finished row group.
const FOOTER_BYTES_PER_COLUMN: usize = 512;

/// A finished file.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) object: ObjectRef,
    pub(super) metadata: ParquetMetaData,
}

impl Finished {
    /// Rows in the file.
    pub(super) fn rows(&self) -> u64 {
        u64::try_from(self.metadata.file_metadata().num_rows()).unwrap_or(0)
    }
}

/// A file that has not ended.
pub(super) struct ParquetFile {
    incarnation: Incarnation,
    relative: String,
    writer: ArrowWriter<Chunks>,
    upload: Option<Upload>,
    columns: usize,
}

impl ParquetFile {
    /// A file that will be named `relative`.
    pub(super) fn try_new(incarnation: &Incarnation, relative: String, schema: SchemaRef, properties: WriterProperties) -> Result<Self> {
        let columns = schema.fields().len();
        let writer = ArrowWriter::try_new(Chunks::default(), schema, Some(properties)).map_err(|e| encoding(incarnation, &relative, e))?;
        Ok(Self { incarnation: incarnation.clone(), relative, writer, upload: None, columns })
    }

    /// Bytes that are held.
    pub(super) fn memory(&self) -> usize {
        self.in_progress() + self.footer() + self.upload.as_ref().map_or(0, Upload::memory)
    }

    /// Bytes of the row group in progress.
    pub(super) fn in_progress(&self) -> usize {
        self.writer.memory_size()
    }

    /// Bytes of what the footer will say.
    pub(super) fn footer(&self) -> usize {
        self.row_groups() * self.columns * FOOTER_BYTES_PER_COLUMN
    }

    /// Row groups that ended.
    pub(super) fn row_groups(&self) -> usize {
        self.writer.flushed_row_groups().len()
    }

    /// Encodes rows of the file's schema.
    pub(super) async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let before = self.row_groups();
        self.writer.write(batch).map_err(|e| encoding(&self.incarnation, &self.relative, e))?;
        if self.row_groups() == before { Ok(()) } else { self.send().await }
    }

    /// Ends the row group in progress.
    pub(super) async fn end_row_group(&mut self) -> Result<()> {
        self.writer.flush().map_err(|e| encoding(&self.incarnation, &self.relative, e))?;
        self.send().await
    }

    /// Gives back the upload's memory, as much as the store allows.
    pub(super) async fn drain(&mut self) -> Result<()> {
        match &mut self.upload {
            Some(upload) => upload.drain().await,
            None => Ok(()),
        }
    }

    /// Writes the footer and makes the file visible.
    pub(super) async fn finish(&mut self) -> Result<Finished> {
        let metadata = self.writer.finish().map_err(|e| encoding(&self.incarnation, &self.relative, e))?;
        self.send().await?;
        let Some(upload) = &mut self.upload else { return Err(Error::internal(format!("file {:?} has no bytes", self.relative))) };
        Ok(Finished { object: upload.finish().await?, metadata })
    }

    /// Forgets the file.
    pub(super) async fn abort(&mut self) {
        if let Some(upload) = &mut self.upload {
            upload.abort().await;
        }
    }

    async fn send(&mut self) -> Result<()> {
        let chunks = self.writer.inner_mut().take();
        let upload = match &mut self.upload {
            Some(upload) => upload,
            none => none.insert(Upload::begin(&self.incarnation, &self.relative).await?),
        };
        for chunk in chunks {
            upload.push(chunk).await?;
        }
        Ok(())
    }
}

fn encoding(incarnation: &Incarnation, relative: &str, error: ParquetError) -> Error {
    let remedy = "cast the column that the cause names to a type that Parquet holds";
    let message = format!("table {:?}: file {relative:?} cannot be encoded as Parquet: {error}. Remedy: {remedy}", incarnation.name());
    Error::new(ErrorCode::TypeUnsupported, message).with_source(error)
}

/// Encoded bytes in chunks of limited size.
#[derive(Debug, Default)]
struct Chunks {
    full: Vec<Bytes>,
    current: Vec<u8>,
}

impl Chunks {
    fn take(&mut self) -> Vec<Bytes> {
        let mut chunks = std::mem::take(&mut self.full);
        if !self.current.is_empty() {
            chunks.push(std::mem::take(&mut self.current).into());
        }
        chunks
    }
}

impl io::Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.current.extend_from_slice(bytes);
        if self.current.len() >= CHUNK_BYTES {
            self.full.push(std::mem::take(&mut self.current).into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
