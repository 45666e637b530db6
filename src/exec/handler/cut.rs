//! Cuts a stream into batches of an exact number of rows.

use std::collections::VecDeque;

use arrow::array::{Array, RecordBatch};
use arrow::compute::concat_batches;
use arrow_schema::SchemaRef;
use datafusion::error::Result;
use datafusion::execution::SendableRecordBatchStream;
use futures::{Stream, StreamExt, stream};

/// A batch is cut early when its rows reach this size: offsets of text columns are 32 bits wide.
const MAX_BYTES: usize = 256 << 20;

struct Cutter {
    rows: SendableRecordBatchStream,
    schema: SchemaRef,
    size: usize,
    pending: VecDeque<RecordBatch>,
    pending_rows: usize,
    pending_bytes: usize,
    ended: bool,
}

/// Batches of `size` rows, the last one shorter; none is empty.
pub(super) fn cut(rows: SendableRecordBatchStream, schema: SchemaRef, size: usize) -> impl Stream<Item = Result<RecordBatch>> {
    let cutter = Cutter { rows, schema, size: size.max(1), pending: VecDeque::new(), pending_rows: 0, pending_bytes: 0, ended: false };
    stream::try_unfold(cutter, |mut cutter| async move { Ok(cutter.next().await?.map(|batch| (batch, cutter))) })
}

impl Cutter {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        while !self.ended && self.pending_rows < self.size && self.pending_bytes < MAX_BYTES {
            match self.rows.next().await.transpose()? {
                None => self.ended = true,
                Some(batch) if batch.num_rows() == 0 => {}
                Some(batch) => {
                    self.pending_rows += batch.num_rows();
                    self.pending_bytes += bytes_of(&batch);
                    self.pending.push_back(batch);
                }
            }
        }
        self.take()
    }

    fn take(&mut self) -> Result<Option<RecordBatch>> {
        let mut pieces = Vec::new();
        let mut wanted = self.size;
        while wanted > 0 {
            let Some(batch) = self.pending.pop_front() else { break };
            if batch.num_rows() > wanted {
                self.pending.push_front(batch.slice(wanted, batch.num_rows() - wanted));
                pieces.push(batch.slice(0, wanted));
                break;
            }
            wanted -= batch.num_rows();
            pieces.push(batch);
        }
        let rows: usize = pieces.iter().map(RecordBatch::num_rows).sum();
        self.pending_rows -= rows;
        self.pending_bytes = if self.pending_rows < self.size { self.pending.iter().map(bytes_of).sum() } else { self.pending_bytes };
        match pieces.len() {
            0 => Ok(None),
            1 => Ok(pieces.pop()),
            _ => Ok(Some(concat_batches(&self.schema, &pieces)?)),
        }
    }
}

/// The bytes of the rows themselves, not of the buffers that a slice shares.
pub(super) fn bytes_of(batch: &RecordBatch) -> usize {
    let of = |array: &dyn Array| array.to_data().get_slice_memory_size().unwrap_or_else(|_| array.get_array_memory_size());
    batch.columns().iter().map(|array| of(array.as_ref())).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;
    use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
    use futures::TryStreamExt;

    use super::*;

    #[tokio::test]
    async fn batches_are_exact_and_rows_keep_their_order() {
        let batch = |from: i64, to: i64| {
            let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(from..to));
            RecordBatch::try_from_iter([("id", ids)]).unwrap()
        };
        let input = vec![batch(0, 2), batch(2, 2), batch(2, 11), batch(11, 12)];
        for (size, expected) in [(1, vec![1; 12]), (5, vec![5, 5, 2]), (100, vec![12])] {
            let schema = input[0].schema();
            let rows = Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&schema), stream::iter(input.clone().into_iter().map(Ok))));
            let found: Vec<RecordBatch> = cut(rows, schema, size).try_collect().await.unwrap();
            assert_eq!(found.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), expected);
            let ids: Vec<i64> = found.iter().flat_map(|b| b.column(0).as_primitive::<Int64Type>().values().to_vec()).collect();
            assert_eq!(ids, (0..12).collect::<Vec<_>>());
        }
    }
}
