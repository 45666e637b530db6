//! `COPY … TO STDOUT (FORMAT binary)` as a stream of record batches.
//!
//! ```text
//! pieces of the network ─ Frames ─► rows ─ BatchBuilder: one ColumnBuilder a column ─► batches of limited rows and bytes
//! ```
//!
//! Rows are decoded by a task of their own, two batches ahead of the reader. Memory: those batches and the one in the
//! making, each of at most [`BATCH_BYTES`] and one row; the one in the making is reserved in the pool. A stream that is
//! dropped cancels its statement; a stream that ends without an error was complete.

mod batch;
mod column;
mod frame;
mod numeric;
mod value;

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use futures::StreamExt;
use tokio::sync::mpsc::Sender;
use tokio_postgres::CopyOutStream;

pub(super) use batch::RowShape;
pub(super) use column::{ValueKind, WIDEST_DECIMAL};
pub(super) use value::{date_text, time_text, timestamp_text};

use batch::BatchBuilder;
use frame::{FrameError, Frames};

use super::failure::Subject;
use super::session::{Running, Session};
use crate::error::{Error, ErrorCode, Result};

/// A batch is handed on when its rows have taken this many bytes on the wire.
const BATCH_BYTES: usize = 8 << 20;
/// Batches that wait for their reader.
const AHEAD: usize = 2;
/// How much a batch in the making grows before its reservation does.
const RESERVE_STEP: usize = 256 << 10;

/// Runs a COPY. The statement has started when this returns.
///
/// # Errors
/// What the server says of the statement; also in the stream, with `VALUE_OUT_OF_RANGE` for values that have no counterpart.
pub(super) async fn copy_out(
    session: &Arc<Session>,
    sql: &str,
    shape: RowShape,
    (subject, context): (&Subject, &TaskContext),
) -> Result<SendableRecordBatchStream> {
    let mut running = Running::new(session);
    let pieces = match session.client(subject)?.copy_out(sql).await {
        Ok(pieces) => pieces,
        Err(error) => {
            running.ended();
            return Err(subject.statement_failed(&error));
        }
    };
    let reservation = MemoryConsumer::new("postgres read").register(context.memory_pool());
    let mut builder = RecordBatchReceiverStream::builder(Arc::clone(shape.schema()), AHEAD);
    let decoder = Decoder {
        frames: Frames::new(shape.schema().fields().len()),
        batch: BatchBuilder::new(shape),
        ready: VecDeque::new(),
        reservation,
        subject: subject.clone(),
    };
    let sender = builder.tx();
    builder.spawn(async move {
        match decode(decoder, pieces, &sender).await {
            Ok(()) => running.ended(),
            // Behind the batches that came before it: what the task itself returns would overtake them.
            Err(error) => drop(sender.send(Err(error.into())).await),
        }
        Ok(())
    });
    Ok(builder.build())
}

/// Reads to the end, or until nobody listens: then the statement is still running, and is cancelled by its guard.
async fn decode(mut decoder: Decoder, pieces: CopyOutStream, sender: &Sender<Result<RecordBatch, DataFusionError>>) -> Result<()> {
    let mut pieces = pin!(pieces);
    let outcome = loop {
        match pieces.next().await {
            Some(Ok(piece)) => decoder.take(&piece)?,
            Some(Err(error)) => break Err(decoder.subject.statement_failed(&error)),
            None => break decoder.check_complete(),
        }
        while let Some(batch) = decoder.ready.pop_front() {
            if sender.send(Ok(batch)).await.is_err() {
                return Err(decoder.subject.error(ErrorCode::Cancelled, "the reader is gone", "run again"));
            }
        }
    };
    // Whole rows that came before the connection was lost are handed on too: a load in order goes on behind them.
    if let Some(batch) = decoder.rest()? {
        // Nobody listens any more, and nothing is left to cancel.
        let _ = sender.send(Ok(batch)).await;
    }
    outcome
}

/// From pieces of the network to batches.
struct Decoder {
    frames: Frames,
    batch: BatchBuilder,
    ready: VecDeque<RecordBatch>,
    reservation: MemoryReservation,
    subject: Subject,
}

impl Decoder {
    fn take(&mut self, piece: &[u8]) -> Result<()> {
        let Self { frames, batch, ready, reservation, subject } = self;
        let result = frames.feed(piece, |row| {
            reserve(reservation, batch.bytes() + row.len(), subject)?;
            batch.append(row, subject)?;
            if batch.rows() >= batch.shape().batch_rows || batch.bytes() >= BATCH_BYTES {
                ready.push_back(batch.finish(subject)?);
                reservation.free();
            }
            Ok(())
        });
        match result {
            Ok(()) => reserve(reservation, batch.bytes() + frames.buffered(), subject),
            Err(FrameError::Row(error)) => Err(error),
            Err(FrameError::Protocol) => Err(unreadable(subject)),
        }
    }

    /// An end without the format's own mark is a stream that was cut.
    fn check_complete(&self) -> Result<()> {
        if self.frames.is_complete() {
            return Ok(());
        }
        let remedy = "see what the server's log says, then run again; nothing was published";
        Err(self.subject.error(ErrorCode::ConnectionFailed, "the rows ended early", remedy))
    }

    /// The rows that have filled no batch yet.
    fn rest(&mut self) -> Result<Option<RecordBatch>> {
        if self.batch.rows() == 0 { Ok(None) } else { self.batch.finish(&self.subject).map(Some) }
    }
}

/// Makes room for `held` bytes, in steps.
fn reserve(reservation: &mut MemoryReservation, held: usize, subject: &Subject) -> Result<()> {
    if held <= reservation.size() {
        return Ok(());
    }
    reservation.try_resize(held + RESERVE_STEP).map_err(|error| {
        Error::from_datafusion(error, ErrorCode::ResourcesExhausted, format!("{subject}: a batch of rows does not fit the memory pool"))
    })
}

fn unreadable(subject: &Subject) -> Error {
    subject.error(
        ErrorCode::CaptureFailed,
        "the server sent rows in an unknown form",
        "see that nothing between here and the server changes the protocol, then report it with the server's version",
    )
}
