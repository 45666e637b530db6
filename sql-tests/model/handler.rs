//! The registered handler of the model: passes every column on, rows in another order and in small batches, and fails
//! while a flag is up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow_schema::{Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion_incremental::handler::{Handler, HandlerCall, HandlerError};

/// The handler `pass`.
#[derive(Debug)]
pub struct Pass {
    /// How many of the first columns are keys.
    pub keys: usize,
    /// Fails while it is set.
    pub fails: Arc<AtomicBool>,
}

#[async_trait]
impl Handler for Pass {
    fn version(&self) -> &str {
        "1"
    }

    /// The keys as they are, the others as `o0`, `o1`, ….
    fn output_schema(&self, input: &Schema) -> datafusion_incremental::Result<SchemaRef> {
        let rename = |(place, field): (usize, &Arc<Field>)| match place.checked_sub(self.keys) {
            None => Arc::clone(field),
            Some(number) => Arc::new(field.as_ref().clone().with_name(format!("o{number}"))),
        };
        Ok(Arc::new(Schema::new(input.fields().iter().enumerate().map(rename).collect::<Vec<_>>())))
    }

    async fn handle(&self, input: RecordBatch, call: &HandlerCall) -> Result<Vec<RecordBatch>, HandlerError> {
        if self.fails.load(Ordering::SeqCst) {
            return Err("the flag is up".into());
        }
        let schema = self.output_schema(&input.schema())?;
        let output = RecordBatch::try_new(schema, input.columns().to_vec())?;
        // An order that differs from the input's in each call.
        let rows = output.num_rows() as u32;
        let order: UInt32Array = (0..rows).map(|row| (rows - 1 - row + call.call as u32 % rows.max(1)) % rows.max(1)).collect();
        let output = take_record_batch(&output, &order)?;
        let middle = output.num_rows() / 2;
        Ok(vec![output.slice(middle, output.num_rows() - middle), output.slice(0, 0), output.slice(0, middle)])
    }
}
