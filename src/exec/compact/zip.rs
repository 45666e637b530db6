//! Two streams of the same rows, put side by side, without the dead ones.
//!
//! ```text
//! data   ├──4──┼──2──┤          batches may be cut anywhere:
//! index  ├─3─┼──3────┤   ─►     ├─3─┼1┼─2─┤ ─ filter by position
//! ```
//!
//! Memory: one batch of each. Never pairs rows of different positions: streams of different lengths are an error.

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow_schema::SchemaRef;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use roaring::RoaringTreemap;

use crate::error::{Error, Result};

type Rows = BoxStream<'static, Result<RecordBatch>>;

struct Zip {
    data: Rows,
    index: Rows,
    left: Option<RecordBatch>,
    right: Option<RecordBatch>,
    position: u64,
    dead: RoaringTreemap,
    schema: SchemaRef,
}

/// The rows of `data` and `index` side by side as batches of `schema`, without the positions in `dead`.
pub(super) fn live_rows(data: Rows, index: Rows, dead: RoaringTreemap, schema: SchemaRef) -> Rows {
    let zip = Zip { data, index, left: None, right: None, position: 0, dead, schema };
    stream::try_unfold(zip, |mut zip| async move { Ok(zip.next().await?.map(|batch| (batch, zip))) }).boxed()
}

impl Zip {
    /// The next batch with live rows.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            fill(&mut self.data, &mut self.left).await?;
            fill(&mut self.index, &mut self.right).await?;
            let (left, right) = match (self.left.take(), self.right.take()) {
                (Some(left), Some(right)) => (left, right),
                (None, None) => return Ok(None),
                _ => return Err(Error::internal("a data file and its index file end at different rows")),
            };
            let rows = left.num_rows().min(right.num_rows());
            self.left = rest(&left, rows);
            self.right = rest(&right, rows);
            let live = self.live(rows);
            let columns: Vec<ArrayRef> = left.slice(0, rows).columns().iter().chain(right.slice(0, rows).columns()).cloned().collect();
            let batch = RecordBatch::try_new(SchemaRef::clone(&self.schema), columns).map_err(|e| unfit(&e))?;
            let batch = match live {
                None => batch,
                Some(live) => filter_record_batch(&batch, &live).map_err(|e| unfit(&e))?,
            };
            if batch.num_rows() > 0 {
                return Ok(Some(batch));
            }
        }
    }

    /// Which of the next rows are live; `None` when all are.
    fn live(&mut self, rows: usize) -> Option<BooleanArray> {
        let (start, end) = (self.position, self.position + rows as u64);
        self.position = end;
        if self.dead.range_cardinality(start..end) == 0 {
            return None;
        }
        Some((start..end).map(|row| Some(!self.dead.contains(row))).collect())
    }
}

async fn fill(rows: &mut Rows, pending: &mut Option<RecordBatch>) -> Result<()> {
    while pending.is_none() {
        match rows.try_next().await? {
            Some(batch) if batch.num_rows() == 0 => {}
            Some(batch) => *pending = Some(batch),
            None => return Ok(()),
        }
    }
    Ok(())
}

fn rest(batch: &RecordBatch, taken: usize) -> Option<RecordBatch> {
    (taken < batch.num_rows()).then(|| batch.slice(taken, batch.num_rows() - taken))
}

fn unfit(error: &arrow_schema::ArrowError) -> Error {
    Error::internal(format!("the rows of a data file and its index file do not fit together: {error}"))
}
