//! An async handler that calls a slow service: batches of rows, a bounded number of calls at once, the run id as the
//! idempotency key.
//!
//! Run it with `cargo run --example slow_service`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::{RecordBatch, StringArray};
use arrow::util::pretty::print_batches;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion_incremental::Result;
use datafusion_incremental::context::{IncrementalOptions, IncrementalSession};
use datafusion_incremental::handler::{Handler, HandlerCall, HandlerError, HandlerRegistry};

/// Stands for a model or a geocoder behind a network: 50 ms a call, whatever the number of rows.
#[derive(Debug, Default)]
struct Service {
    running: AtomicUsize,
    most: AtomicUsize,
    calls: AtomicUsize,
}

impl Service {
    async fn label(&self, idempotency_key: &str, texts: Vec<String>) -> Vec<String> {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        self.calls.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        let _ = idempotency_key; // a real service would drop a repeated request with the same key
        texts.into_iter().map(|text| if text.len() > 8 { "long".to_string() } else { "short".to_string() }).collect()
    }
}

#[derive(Debug)]
struct Label {
    service: Arc<Service>,
    output: SchemaRef,
}

#[async_trait]
impl Handler for Label {
    fn version(&self) -> &str {
        "2026-11-29"
    }

    fn output_schema(&self, _input: &Schema) -> Result<SchemaRef> {
        Ok(Arc::clone(&self.output))
    }

    async fn handle(&self, input: RecordBatch, call: &HandlerCall) -> std::result::Result<Vec<RecordBatch>, HandlerError> {
        let texts = arrow::compute::cast(input.column(1), &DataType::Utf8)?;
        let texts = texts.as_any().downcast_ref::<StringArray>().ok_or("no text")?;
        let texts = texts.iter().map(|text| text.unwrap_or_default().to_string()).collect();
        // A run may be repeated after a failure: the same run and call are the same request.
        let labels = self.service.label(&format!("{}/{}", call.run, call.call), texts).await;
        let columns = vec![Arc::clone(input.column(0)), Arc::new(StringArray::from(labels)) as _];
        Ok(vec![RecordBatch::try_new(Arc::clone(&self.output), columns)?])
    }
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let folder = tempfile::tempdir()?;
    let service = Arc::new(Service::default());
    let handlers = HandlerRegistry::default();
    let output = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false), Field::new("label", DataType::Utf8, true)]));
    handlers.register("label", Arc::new(Label { service: Arc::clone(&service), output }))?;
    let options = IncrementalOptions::default().with_handlers(handlers).with_root(folder.path().to_string_lossy());
    let session = IncrementalSession::builder().with_options(options).build().await?;

    session.sql("CREATE TABLE messages AS SELECT value AS id, 'message ' || value AS body FROM generate_series(1, 1000)").await?;
    session
        .table("labelled")
        .source("messages")
        .key(["id"])
        .track(["body"])
        .handler("label")
        .option("handler_batch_rows", "50")
        .option("handler_concurrency", "8")
        .create()
        .await?;
    session.refresh("labelled", Default::default()).await?;
    println!("{} calls for 1,000 rows, at most {} at once", service.calls.load(Ordering::SeqCst), service.most.load(Ordering::SeqCst));

    session
        .sql("CREATE OR REPLACE TABLE messages AS SELECT value AS id, CASE WHEN value = 7 THEN 'hi' ELSE 'message ' || value END AS body FROM generate_series(1, 1000)")
        .await?;
    let summary = session.refresh("labelled", Default::default()).await?;
    println!("second run: {:?} rows for the handler, {} calls in all", summary.handler_rows, service.calls.load(Ordering::SeqCst));
    let rows =
        session.context().sql("SELECT label, count(*) AS messages FROM labelled GROUP BY label ORDER BY label").await?.collect().await?;
    print_batches(&rows)?;
    Ok(())
}
