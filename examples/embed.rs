//! Embedding: a DataFusion session with the extension, a Rust handler, two snapshots, a query.
//!
//! Run it with `cargo run --example embed`.

use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use arrow::util::pretty::print_batches;
use arrow_schema::{DataType, Field, Schema};
use datafusion::datasource::MemTable;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::SessionContext;
use datafusion_incremental::context::{IncrementalExt, IncrementalOptions, IncrementalSqlExt};
use datafusion_incremental::handler::{HandlerRegistry, closure_handler};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let folder = tempfile::tempdir()?;
    let handlers = HandlerRegistry::default();
    let output = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false), Field::new("words", DataType::Int64, true)]));
    let schema = Arc::clone(&output);
    // One row out for each row in: the key unchanged, and what was computed from the tracked columns.
    handlers.register(
        "count_words",
        closure_handler("1", output, move |input: RecordBatch, _call| {
            let schema = Arc::clone(&schema);
            async move {
                println!("the handler gets {} rows", input.num_rows());
                let texts = arrow::compute::cast(input.column(1), &DataType::Utf8)?;
                let texts = texts.as_any().downcast_ref::<StringArray>().ok_or("no text")?;
                let words: Int64Array = texts.iter().map(|text| text.map(|t| t.split_whitespace().count() as i64)).collect();
                Ok(vec![RecordBatch::try_new(schema, vec![Arc::clone(input.column(0)), Arc::new(words)])?])
            }
        }),
    )?;

    let options = IncrementalOptions::default().with_leave_to_act().with_root(folder.path().to_string_lossy()).with_handlers(handlers);
    let state = SessionStateBuilder::new().with_default_features().with_incremental(options).build();
    let ctx = SessionContext::new_with_state(state);

    ctx.register_table("notes", notes(&[(1, "one word"), (2, "now three words")])?)?;
    ctx.incremental_sql("CREATE INCREMENTAL TABLE note_words FROM notes KEY (id) TRACK (body) HANDLER 'count_words'").await?;
    ctx.incremental_sql("REFRESH note_words").await?;

    // The next snapshot: one row changed, one new, one gone. The handler sees two rows.
    ctx.deregister_table("notes")?;
    ctx.register_table("notes", notes(&[(2, "two words"), (3, "a new note")])?)?;
    ctx.incremental_sql("REFRESH note_words").await?;

    let rows = ctx.sql("SELECT * FROM note_words ORDER BY id").await?.collect().await?;
    print_batches(&rows)?;
    Ok(())
}

fn notes(rows: &[(i64, &str)]) -> Result<Arc<MemTable>, AnyError> {
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false), Field::new("body", DataType::Utf8, true)]));
    let ids: Int64Array = rows.iter().map(|(id, _)| Some(*id)).collect();
    let bodies: StringArray = rows.iter().map(|(_, body)| Some(*body)).collect();
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(ids), Arc::new(bodies)])?;
    Ok(Arc::new(MemTable::try_new(schema, vec![vec![batch]])?))
}
