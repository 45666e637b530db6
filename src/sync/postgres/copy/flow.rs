//! Batches on their way to the reader, each with its reservation.
//!
//! ```text
//! decoder ─ Outlet ─► at most so many batches ─ Inlet ─► reader
//!             ▲                                  └ the batch before is given back when the next one is asked for
//!             └────────── given_back, drained ◄──┘
//! ```
//!
//! Whoever reads accounts for what it keeps once it asks for more; until then the batch is ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::RecordBatch;
use datafusion::common::DataFusionError;
use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::memory_pool::MemoryReservation;
use futures::Stream;
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::error::Error;

/// A batch with what is reserved for it.
pub(super) struct Ready {
    batch: RecordBatch,
    reservation: MemoryReservation,
}

impl Ready {
    /// The batch exists already, so its size is accounted for even where the pool would not admit it.
    pub(super) fn new(batch: RecordBatch, reservation: MemoryReservation) -> Self {
        reservation.resize(batch.get_array_memory_size());
        Self { batch, reservation }
    }

    pub(super) fn bytes(&self) -> usize {
        self.reservation.size()
    }
}

/// Two ends, with room for `ahead` batches between them.
pub(super) fn flow(ahead: usize) -> (Outlet, Inlet) {
    let (sender, receiver) = channel(ahead);
    let state = Arc::new(State { out: AtomicUsize::new(0), changed: Notify::new() });
    (Outlet { sender, ahead, state: Arc::clone(&state) }, Inlet { receiver, held: None, state })
}

struct State {
    /// Batches that were sent and not given back.
    out: AtomicUsize,
    changed: Notify,
}

/// The decoder's end.
pub(super) struct Outlet {
    sender: Sender<Result<Ready, DataFusionError>>,
    ahead: usize,
    state: Arc<State>,
}

impl Outlet {
    /// Sends a batch; whether somebody listens.
    pub(super) async fn send(&self, ready: Ready) -> bool {
        self.state.out.fetch_add(1, Ordering::SeqCst);
        self.sender.send(Ok(ready)).await.is_ok()
    }

    /// Sends an error behind the batches that came before it.
    pub(super) async fn fail(&self, error: Error) {
        // Without a reader nobody wants to know.
        let _ = self.sender.send(Err(error.into())).await;
    }

    /// Waits until the reader has taken every batch; whether somebody listens.
    pub(super) async fn drained(&self) -> bool {
        self.sender.reserve_many(self.ahead).await.is_ok()
    }

    /// Waits until the reader gives a batch back; false when there is none to wait for.
    pub(super) async fn given_back(&self) -> bool {
        if self.state.out.load(Ordering::SeqCst) == 0 {
            return false;
        }
        tokio::select! {
            () = self.state.changed.notified() => true,
            () = self.sender.closed() => false,
        }
    }
}

/// The reader's end.
pub(super) struct Inlet {
    receiver: Receiver<Result<Ready, DataFusionError>>,
    held: Option<MemoryReservation>,
    state: Arc<State>,
}

impl Inlet {
    /// The batches; the task that decodes them ends with the stream, and its failure is one of the stream.
    pub(super) fn into_stream(self, task: SpawnedTask<()>) -> impl Stream<Item = Result<RecordBatch, DataFusionError>> + Send {
        futures::stream::unfold((self, Some(task)), |(mut inlet, mut task)| async move {
            let item = match inlet.next().await {
                Some(item) => item,
                // A task that died has sent no error, and its end must not look like that of the rows.
                None => match task.take()?.await {
                    Ok(()) => return None,
                    Err(error) => Err(DataFusionError::External(Box::new(error))),
                },
            };
            Some((item, (inlet, task)))
        })
    }

    async fn next(&mut self) -> Option<Result<RecordBatch, DataFusionError>> {
        if self.held.take().is_some() {
            self.state.out.fetch_sub(1, Ordering::SeqCst);
            self.state.changed.notify_one();
        }
        let ready = self.receiver.recv().await?;
        Some(ready.map(|ready| {
            self.held = Some(ready.reservation);
            ready.batch
        }))
    }
}
