//! A handler from an async closure.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use async_trait::async_trait;

use super::{Handler, HandlerCall, HandlerError};
use crate::error::Result;

/// A handler of this `version` that returns batches of `output_schema` from an async closure.
///
/// ```
/// use std::sync::Arc;
/// use arrow_schema::{DataType, Field, Schema};
/// use datafusion_incremental::handler::closure_handler;
///
/// let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
/// let keys_only = closure_handler("1", schema, |input, _call| async move { Ok(vec![input.project(&[0])?]) });
/// assert_eq!(keys_only.version(), "1");
/// ```
pub fn closure_handler<F, Fut>(version: impl Into<String>, output_schema: SchemaRef, f: F) -> Arc<dyn Handler>
where
    F: Fn(RecordBatch, HandlerCall) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = std::result::Result<Vec<RecordBatch>, HandlerError>> + Send + 'static,
{
    Arc::new(ClosureHandler { version: version.into(), output_schema, f })
}

struct ClosureHandler<F> {
    version: String,
    output_schema: SchemaRef,
    f: F,
}

impl<F> fmt::Debug for ClosureHandler<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClosureHandler").field("version", &self.version).finish_non_exhaustive()
    }
}

#[async_trait]
impl<F, Fut> Handler for ClosureHandler<F>
where
    F: Fn(RecordBatch, HandlerCall) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = std::result::Result<Vec<RecordBatch>, HandlerError>> + Send + 'static,
{
    fn version(&self) -> &str {
        &self.version
    }

    fn output_schema(&self, _input: &Schema) -> Result<SchemaRef> {
        Ok(Arc::clone(&self.output_schema))
    }

    async fn handle(&self, input: RecordBatch, call: &HandlerCall) -> std::result::Result<Vec<RecordBatch>, HandlerError> {
        (self.f)(input, call.clone()).await
    }
}
