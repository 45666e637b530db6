//! The rows of a snapshot as the source of a plan: one stream over several reads, with the published columns.
//!
//! Memory: the batch that is being handed on. A stream is handed out once.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{ArrayRef, RecordBatch, new_null_array};
use arrow::compute::cast;
use arrow_schema::{Schema, SchemaRef};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use futures::{StreamExt, TryStreamExt, stream};

use crate::error::{Error, ErrorCode, Result};
use crate::sync::connector::{ReadRequest, ReadScope, SourceSnapshot};

/// What was counted of a stream.
#[derive(Debug, Default)]
pub(super) struct Counted {
    rows: AtomicU64,
    nulls: AtomicU64,
}

impl Counted {
    /// Rows so far.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Acquire)
    }

    /// Rows with a null cursor so far.
    pub fn nulls(&self) -> u64 {
        self.nulls.load(Ordering::Acquire)
    }
}

/// Reads `scopes` one after the other as `request` says, with the columns of `schema`: those that the source does not have
/// are null. Counts rows, and nulls of `cursor`.
pub(super) async fn rows(
    snapshot: Arc<dyn SourceSnapshot>,
    request: ReadRequest,
    scopes: Vec<ReadScope>,
    schema: SchemaRef,
    (counted, cursor): (Arc<Counted>, Option<String>),
) -> Result<SendableRecordBatchStream> {
    // The first read fails here, where its error has a place to go.
    let mut scopes = scopes.into_iter();
    let first = match scopes.next() {
        Some(scope) => Some(snapshot.read(ReadRequest { scope, ..request.clone() }).await?),
        None => None,
    };
    let rest = stream::iter(scopes).then(move |scope| {
        let (snapshot, request) = (Arc::clone(&snapshot), ReadRequest { scope, ..request.clone() });
        async move { snapshot.read(request).await.map_err(DataFusionError::from) }
    });
    let all = stream::iter(first.map(Ok)).chain(rest).try_flatten();
    let out = Arc::clone(&schema);
    let conformed = all.map(move |batch| {
        let batch = conform(&batch?, &out)?;
        counted.rows.fetch_add(batch.num_rows() as u64, Ordering::AcqRel);
        if let Some(column) = cursor.as_ref().and_then(|name| batch.column_by_name(name)) {
            counted.nulls.fetch_add(column.logical_null_count() as u64, Ordering::AcqRel);
        }
        Ok(batch)
    });
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, conformed)))
}

/// The columns of `schema` out of `batch`, by name, in its types.
fn conform(batch: &RecordBatch, schema: &SchemaRef) -> DfResult<RecordBatch> {
    let column = |(name, data_type): (&str, &arrow_schema::DataType)| -> DfResult<ArrayRef> {
        match batch.column_by_name(name) {
            None => Ok(new_null_array(data_type, batch.num_rows())),
            Some(column) if column.data_type() == data_type => Ok(Arc::clone(column)),
            Some(column) => Ok(cast(column, data_type)?),
        }
    };
    let columns = schema.fields().iter().map(|field| column((field.name(), field.data_type()))).collect::<DfResult<Vec<_>>>()?;
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

/// A plan that hands out a stream once.
pub(super) fn plan(rows: SendableRecordBatchStream) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = rows.schema();
    let once: Arc<dyn PartitionStream> = Arc::new(OnceStream { schema: Arc::clone(&schema), rows: Mutex::new(Some(rows)) });
    let plan = StreamingTableExec::try_new(schema, vec![once], None, None, false, None);
    Ok(Arc::new(plan.map_err(|e| Error::from_datafusion(e, ErrorCode::Internal, "the plan of a source's rows"))?))
}

struct OnceStream {
    schema: SchemaRef,
    rows: Mutex<Option<SendableRecordBatchStream>>,
}

impl fmt::Debug for OnceStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceStream").finish_non_exhaustive()
    }
}

impl PartitionStream for OnceStream {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner).take();
        rows.unwrap_or_else(|| {
            let again = Error::internal("the rows of a source were read twice");
            Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), stream::once(async move { Err(again.into()) })))
        })
    }
}

/// The schema of some columns of `schema`, in its order.
pub(super) fn columns_of(schema: &Schema, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    schema.fields().iter().map(|field| field.name().clone()).filter(|name| is_wanted(name)).collect()
}
