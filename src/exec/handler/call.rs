//! One call of the handler, in its own task: it makes progress whoever is polled, and is aborted when dropped.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::metrics::{Count, Time};
use tokio::sync::Semaphore;

use super::CallSpec;
use super::cut::bytes_of;
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::exec::contract::sample_keys;
use crate::handler::{Handler, HandlerCall, HandlerError};

/// What one call was given and what it returned.
#[derive(Debug)]
pub(crate) struct CallResult {
    /// The rows, with their hidden columns.
    pub input: RecordBatch,
    /// What the handler returned.
    pub output: Vec<RecordBatch>,
    /// Holds the memory of both until the result is dropped.
    _reservation: MemoryReservation,
}

pub(super) struct Counters {
    pub rows: Count,
    pub calls: Count,
    pub time: Time,
}

/// What all calls of a partition share.
pub(super) struct Caller {
    pub handler: Arc<dyn Handler>,
    pub spec: Arc<CallSpec>,
    pub visible: Vec<usize>,
    pub permits: Arc<Semaphore>,
    pub calls: Arc<AtomicU64>,
    pub counters: Counters,
    pub reservation: MemoryReservation,
}

impl Caller {
    /// Calls the handler once with `input`.
    pub(super) async fn start(self: Arc<Self>, input: RecordBatch) -> Result<CallResult> {
        let reservation = self.reservation.new_empty();
        reservation.try_grow(bytes_of(&input))?;
        let call = HandlerCall { call: self.calls.fetch_add(1, Ordering::Relaxed), ..self.spec.call.clone() };
        let given = input.project(&self.visible)?.with_schema(Arc::clone(&self.spec.input_schema))?;
        let shared = Arc::clone(&self);
        let number = call.call;
        // Buffered calls are polled only while the stream is; a task of its own never holds a permit unpolled.
        let task = SpawnedTask::spawn(async move {
            let permit = shared.permits.acquire().await;
            let timer = shared.counters.time.timer();
            let output = shared.handler.handle(given, &call).await;
            drop((timer, permit));
            output
        });
        let output = match task.join().await {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => return Err(self.failed(number, &input, error).into()),
            Err(stopped) if stopped.is_panic() => {
                let text = panic_text(&*stopped.into_panic());
                return Err(self.failed(number, &input, format!("it panicked: {text}").into()).into());
            }
            Err(stopped) => return Err(self.failed(number, &input, Box::new(stopped)).into()),
        };
        reservation.try_grow(output.iter().map(bytes_of).sum())?;
        self.counters.calls.add(1);
        self.counters.rows.add(input.num_rows());
        Ok(CallResult { input, output, _reservation: reservation })
    }

    /// The error of one call, with the keys that it was given.
    fn failed(&self, number: u64, input: &RecordBatch, error: HandlerError) -> Error {
        let error = match error.downcast::<Error>() {
            // Our own verdicts on a handler keep their codes.
            Ok(own) if own.kind() == ErrorKind::Handler || own.code() == ErrorCode::ValueOutOfRange => return *own,
            Ok(own) => own as HandlerError,
            Err(error) => error,
        };
        let keys = sample_keys(input, &self.spec.key, 0..input.num_rows());
        let context = format!(
            "table {:?}: the handler failed in call {number} ({} rows, keys {keys}). Remedy: mend the handler or what it depends on, then run again",
            self.spec.call.table,
            input.num_rows()
        );
        match error.downcast::<DataFusionError>() {
            Ok(error) => Error::from_datafusion(*error, ErrorCode::HandlerFailed, context),
            Err(error) => Error::caused(ErrorCode::HandlerFailed, &context, &error.to_string()).with_source(error),
        }
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        return (*text).to_string();
    }
    payload.downcast_ref::<String>().cloned().unwrap_or_else(|| "without a text".to_string())
}
