//! `COPY … TO STDOUT (FORMAT binary)` as a stream of record batches.
//!
//! ```text
//! pieces of the network ─ Frames ─► rows ─ BatchBuilder: one ColumnBuilder a column ─► batches of limited rows and bytes
//! ```
//!
//! Rows are decoded by a task of their own, two batches ahead of the reader. Memory: those batches, the one in the making and
//! the one that the reader was given last, each of at most [`BATCH_BYTES`] or one row; every one is reserved in the pool until
//! the reader asks for the next (`flow`). Where the pool has no room, decoding waits for the reader; a batch over the usual size
//! is decoded alone. A stream that is dropped cancels its statement; a stream that ends without an error was complete.

mod batch;
mod column;
mod flow;
mod frame;
mod numeric;
mod value;

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;

use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use tokio_postgres::CopyOutStream;

pub(super) use batch::RowShape;
pub(super) use column::{ValueKind, WIDEST_DECIMAL};
pub(super) use value::{date_text, time_text, timestamp_text};

use batch::BatchBuilder;
use flow::{Outlet, Ready, flow};
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
    let schema = Arc::clone(shape.schema());
    let decoder = Decoder {
        frames: Frames::new(schema.fields().len()),
        batch: BatchBuilder::new(shape),
        ready: VecDeque::new(),
        reservation,
        subject: subject.clone(),
    };
    let (outlet, inlet) = flow(AHEAD);
    let task = SpawnedTask::spawn(async move {
        match decode(decoder, pieces, &outlet).await {
            Ok(()) => running.ended(),
            Err(error) => outlet.fail(error).await,
        }
    });
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, inlet.into_stream(task))))
}

/// Reads to the end, or until nobody listens: then the statement is still running, and is cancelled by its guard.
async fn decode(mut decoder: Decoder, pieces: CopyOutStream, outlet: &Outlet) -> Result<()> {
    let mut pieces = pin!(pieces);
    let outcome = loop {
        match pieces.next().await {
            Some(Ok(piece)) => {
                decoder.make_room(piece.len(), outlet).await?;
                decoder.take(&piece)?;
            }
            Some(Err(error)) => break Err(decoder.subject.statement_failed(&error)),
            None => break decoder.check_complete(),
        }
        while let Some(ready) = decoder.ready.pop_front() {
            let is_large = ready.bytes() > 2 * BATCH_BYTES;
            let has_reader = outlet.send(ready).await && (!is_large || outlet.drained().await);
            if !has_reader {
                return Err(decoder.subject.error(ErrorCode::Cancelled, "the reader is gone", "run again"));
            }
        }
    };
    // Whole rows that came before the connection was lost are handed on too: a load in order goes on behind them.
    if let Some(ready) = decoder.rest()? {
        // Nobody listens any more, and nothing is left to cancel.
        let _ = outlet.send(ready).await;
    }
    outcome
}

/// From pieces of the network to batches.
struct Decoder {
    frames: Frames,
    batch: BatchBuilder,
    ready: VecDeque<Ready>,
    reservation: MemoryReservation,
    subject: Subject,
}

impl Decoder {
    /// Reserves what a piece of this length needs beside its decoded rows; waits for the reader where the pool has no room.
    async fn make_room(&mut self, piece: usize, outlet: &Outlet) -> Result<()> {
        loop {
            let held = self.batch.bytes() + self.frames.buffered() + 2 * piece;
            match reserve(&self.reservation, held, &self.subject) {
                Ok(()) => return Ok(()),
                Err(error) if !outlet.given_back().await => return Err(error),
                Err(_) => {}
            }
        }
    }

    fn take(&mut self, piece: &[u8]) -> Result<()> {
        let Self { frames, batch, ready, reservation, subject } = self;
        let result = frames.feed(piece, |row| {
            batch.append(row, subject)?;
            if batch.rows() >= batch.shape().batch_rows || batch.bytes() >= BATCH_BYTES {
                ready.push_back(Ready::new(batch.finish(subject)?, reservation.take()));
            }
            Ok(())
        });
        match result {
            Ok(()) => Ok(()),
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
    fn rest(&mut self) -> Result<Option<Ready>> {
        if self.batch.rows() == 0 {
            return Ok(None);
        }
        Ok(Some(Ready::new(self.batch.finish(&self.subject)?, self.reservation.take())))
    }
}

/// Makes room for `held` bytes, in steps.
fn reserve(reservation: &MemoryReservation, held: usize, subject: &Subject) -> Result<()> {
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
