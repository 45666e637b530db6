//! A first load, or a rebuild, that can go on where it was interrupted.
//!
//! ```text
//! one ordered stream ─ segment ─► files a b ─ note (position, ceiling) ─ segment ─► files c ─ note ─ … ─► publish all
//!                                              └ killed here: the next run goes on after the position, in a new snapshot
//! ```
//!
//! The mark is the ceiling that the first snapshot had: what changed since then is at or above it, and the next run reads
//! it. Segments end between different values of the order, so no row is read twice and none is left out. Memory: one
//! batch beside the writers'. Nothing of a load is visible before all of it is.

use std::sync::Arc;

use arrow::array::{DynComparator, RecordBatch, make_comparator};
use arrow::compute::SortOptions;
use arrow_schema::SchemaRef;
use datafusion::common::ScalarValue;
use datafusion::error::Result as DfResult;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use futures::stream;
use tokio::sync::Mutex;

use super::capture::written_plan;
use super::source;
use crate::error::{Error, ErrorCode, Result};
use crate::run::{Attempt, write_files};
use crate::spec::sync::TypedValue;
use crate::store::{DataFile, LoadEntry};
use crate::sync::config::reads_alike;

/// Rows after which a load notes how far it got.
pub(crate) const SEGMENT_ROWS: u64 = 1_000_000;

/// A load that is under way, or begins.
#[derive(Debug, Clone)]
pub(super) struct Load {
    /// Where it stands.
    pub entry: LoadEntry,
    /// Whether another run began it.
    pub is_resumed: bool,
}

impl Load {
    /// The load to go on with, if the newest one is of the same generation, base, revision, order and wish, its configuration
    /// reads the same rows, and its files are there; else `fresh`. A note that cannot be read is no reason to stop.
    pub async fn open(attempt: &Attempt, fresh: LoadEntry) -> Result<Self> {
        let log = attempt.incarnation.sync_log().await?;
        let alike = |number: u64| match (log.config(number), log.config(fresh.config)) {
            (Some(began_with), Some(now)) => reads_alike(&began_with.config, &now.config),
            _ => false,
        };
        let same = |entry: &LoadEntry| {
            let key = |entry: &LoadEntry| (entry.generation, entry.base, entry.rebuilds, entry.revision, entry.order.clone());
            key(entry) == key(&fresh) && alike(entry.config) && !entry.position.is_empty()
        };
        let newest = match attempt.incarnation.newest_load().await {
            Err(error) if matches!(error.code(), ErrorCode::Corrupt | ErrorCode::HistoryMissing) => {
                log::warn!("table {:?}: how far an interrupted load got cannot be read, so it starts over: {error}", attempt.name());
                None
            }
            newest => newest?,
        };
        match newest {
            Some(entry) if same(&entry) && attempt.incarnation.has_files(&entry).await? => Ok(Self { entry, is_resumed: true }),
            _ => Ok(Self { entry: fresh, is_resumed: false }),
        }
    }

    /// The values to go on after.
    pub fn after(&self) -> Option<Vec<ScalarValue>> {
        self.is_resumed.then(|| self.entry.position.iter().map(|value| value.value().clone()).collect())
    }

    /// Writes the rows in segments of at least `segment_rows` rows, noting how far it got between two of them. Returns every
    /// file of the load.
    pub async fn write(mut self, attempt: &Attempt, rows: SendableRecordBatchStream, segment_rows: u64) -> Result<Vec<DataFile>> {
        let schema = rows.schema();
        let segmenter =
            Segmenter { rows, order: positions(&schema, &self.entry.order)?, held: None, last: None, position: vec![], ended: false };
        let segmenter = Arc::new(Mutex::new(segmenter));
        loop {
            let segment = segment(Arc::clone(&segmenter), Arc::clone(&schema), segment_rows);
            let plan = written_plan(attempt, source::plan(segment)?)?;
            let files = write_files(attempt, plan).await?;
            let rows: u64 = files.iter().map(|file| file.rows).sum();
            self.entry.files.extend(files);
            self.entry.rows_read += rows;
            let reader = segmenter.lock().await;
            if reader.ended {
                return Ok(self.entry.files);
            }
            self.entry.position = reader.position.clone();
            attempt.incarnation.note_load(&self.entry).await?;
        }
    }
}

fn positions(schema: &SchemaRef, order: &[String]) -> Result<Vec<usize>> {
    let position =
        |name: &String| schema.index_of(name).map_err(|_| Error::internal(format!("a load in order of {name:?}, which is not read")));
    order.iter().map(position).collect()
}

/// Cuts a stream between different values of its order.
struct Segmenter {
    rows: SendableRecordBatchStream,
    /// The columns of the order.
    order: Vec<usize>,
    /// Rows of the next segment that are read already.
    held: Option<RecordBatch>,
    /// The last row that was handed out, and its values in the columns of the order.
    last: Option<RecordBatch>,
    position: Vec<TypedValue>,
    ended: bool,
}

impl Segmenter {
    async fn next(&mut self) -> Option<DfResult<RecordBatch>> {
        match self.held.take() {
            Some(batch) => Some(Ok(batch)),
            None => self.rows.next().await,
        }
    }

    /// Where `batch` is cut, if the segment may end in it: after a row whose values differ from the one behind it.
    fn cut(&self, batch: &RecordBatch, so_far: u64, at_least: u64) -> DfResult<Option<usize>> {
        if so_far >= at_least && so_far > 0 && self.differs_from_last(batch)? {
            return Ok(Some(0));
        }
        if so_far + (batch.num_rows() as u64) < at_least {
            return Ok(None);
        }
        let comparators = self.comparators(batch, batch)?;
        Ok((1..batch.num_rows()).rev().find(|row| comparators.iter().any(|compare| compare(row - 1, *row).is_ne())))
    }

    fn differs_from_last(&self, batch: &RecordBatch) -> DfResult<bool> {
        let Some(last) = self.last.as_ref().filter(|_| batch.num_rows() > 0) else { return Ok(false) };
        Ok(self.comparators(last, batch)?.iter().any(|compare| compare(0, 0).is_ne()))
    }

    fn comparators(&self, left: &RecordBatch, right: &RecordBatch) -> DfResult<Vec<DynComparator>> {
        let pairs = self.order.iter().filter_map(|at| Some((left.columns().get(*at)?, right.columns().get(*at)?)));
        Ok(pairs.map(|(left, right)| make_comparator(left, right, SortOptions::default())).collect::<Result<Vec<_>, _>>()?)
    }

    fn set_position(&mut self, batch: &RecordBatch) -> DfResult<()> {
        let Some(last) = batch.num_rows().checked_sub(1) else { return Ok(()) };
        let value = |at: &usize| -> DfResult<Option<TypedValue>> {
            let column = batch.columns().get(*at).ok_or_else(|| Error::internal("a column of the order is gone"))?;
            Ok(TypedValue::new(ScalarValue::try_from_array(column, last)?))
        };
        let values = self.order.iter().map(value).collect::<DfResult<Option<Vec<_>>>>()?;
        // A null in the order: such a row is refused further on, and the load never gets to note this.
        self.position = values.unwrap_or_default();
        self.last = Some(batch.slice(last, 1));
        Ok(())
    }
}

/// The rows of the next segment.
fn segment(segmenter: Arc<Mutex<Segmenter>>, schema: SchemaRef, at_least: u64) -> SendableRecordBatchStream {
    let rows = stream::try_unfold((segmenter, 0_u64), move |(segmenter, so_far)| async move {
        let mut reader = segmenter.lock().await;
        if so_far == u64::MAX {
            return Ok(None);
        }
        let Some(batch) = reader.next().await.transpose()? else {
            reader.ended = true;
            return Ok(None);
        };
        let (batch, so_far) = match reader.cut(&batch, so_far, at_least)? {
            Some(0) => {
                reader.held = Some(batch);
                return Ok(None);
            }
            Some(cut) => {
                reader.held = Some(batch.slice(cut, batch.num_rows() - cut));
                (batch.slice(0, cut), u64::MAX)
            }
            None => {
                let rows = batch.num_rows() as u64;
                (batch, so_far + rows)
            }
        };
        reader.set_position(&batch)?;
        drop(reader);
        Ok(Some((batch, (segmenter, so_far))))
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}
