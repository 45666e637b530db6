//! What hand-on costs, against reading the source whole.
//!
//! `CHAIN_ROWS=1000000 cargo test --release --features cli --test chain measure -- --ignored --nocapture`

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::datasource::MemTable;
use datafusion_incremental::context::IncrementalSession;
use datafusion_incremental::run::RefreshRequest;

use super::number;

/// `rows` rows; in round r every thousandth row has another value than before.
fn source(rows: i64, round: i64) -> MemTable {
    let value = |id: i64| if id % 1000 == 17 { format!("value {id} of round {round}") } else { format!("value {id}") };
    let batch = |start: i64| {
        let ids = start..(start + 8192).min(rows);
        let values: StringArray = ids.clone().map(|id| Some(value(id))).collect();
        let columns: [(&str, ArrayRef); 2] = [("id", Arc::new(Int64Array::from_iter_values(ids))), ("v", Arc::new(values))];
        RecordBatch::try_from_iter(columns).unwrap()
    };
    let batches: Vec<RecordBatch> = (0..rows).step_by(8192).map(batch).collect();
    MemTable::try_new(batches[0].schema(), vec![batches]).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn measure() {
    let rows = i64::try_from(number("CHAIN_ROWS").unwrap_or(1_000_000)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let session = IncrementalSession::builder().with_root(folder.path().to_string_lossy()).build().await.unwrap();
    session.context().register_table("s", Arc::new(source(rows, 0))).unwrap();
    let create = "CREATE INCREMENTAL TABLE a FROM s KEY (id) WITH (compaction = 'off') AS SELECT id, v AS o FROM input; \
         CREATE INCREMENTAL TABLE b FROM a KEY (id) WITH (compaction = 'off') AS SELECT id, upper(o) AS p FROM input; \
         CREATE INCREMENTAL TABLE b0 FROM a KEY (id) WITH (compaction = 'off', hand_on = false) AS SELECT id, upper(o) AS p FROM input; \
         REFRESH a, b, b0";
    session.sql(create).await.unwrap();
    println!("round | table | ms | updated | unchanged | peak MiB");
    for round in 1..=6 {
        session.context().deregister_table("s").unwrap();
        session.context().register_table("s", Arc::new(source(rows, round))).unwrap();
        session.refresh("a", RefreshRequest::default()).await.unwrap();
        if round == 6 {
            session.sql("CALL incremental.compact('a')").await.unwrap();
        }
        for table in ["b", "b0"] {
            let run = session.refresh(table, RefreshRequest::default()).await.unwrap();
            let took = (run.ended_at.unwrap() - run.started_at.unwrap()) / 1000;
            let peak = run.peak_memory_bytes.unwrap() >> 20;
            let after = if round == 6 { "after a compaction of the source" } else { "" };
            println!("{round} | {table} | {took} | {} | {} | {peak} {after}", run.rows_updated.unwrap(), run.rows_unchanged.unwrap());
        }
    }
}
