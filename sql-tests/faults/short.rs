//! Bodies that lack their end: the store's failure, neither damage nor the handler's.

use std::sync::Arc;

use datafusion_incremental::ErrorCode;
use datafusion_incremental::env::{Clock, SeededIds};

use super::backing::Backing;
use super::clock::{EPOCH, TestClock};
use super::store::{Fault, Kind, Op};
use super::world::{Process, ROOT, World, alone, rows};

/// A table of two versions whose next refresh changes, adds and removes rows.
async fn table(handler: &str, options: &str) -> Process {
    let clock: Arc<dyn Clock> = TestClock::at(EPOCH);
    let world = World::new(Backing::memory(Arc::clone(&clock)), clock, Arc::new(SeededIds::new(9)));
    let process = world.process().await;
    world.source.set(rows(&[(1, "a"), (2, "b"), (3, "c"), (4, "d")]));
    let create =
        format!("CREATE INCREMENTAL TABLE t FROM s KEY (id) TRACK (v) LOCATION '{ROOT}/t/' WITH (compaction = 'off', {options}) {handler}");
    process.sql(&create).await.unwrap();
    process.sql("REFRESH t").await.unwrap();
    world.source.set(rows(&[(1, "a"), (2, "bb"), (3, "c"), (5, "e")]));
    process.sql("REFRESH t").await.unwrap();
    world.source.set(rows(&[(1, "aa"), (3, "c"), (5, "e"), (6, "f")]));
    process
}

/// The operations of `sql` that read a part of a file, or all of it.
async fn reads(handler: &str, options: &str, sql: &str) -> Vec<(usize, Op)> {
    let process = table(handler, options).await;
    process.store.arm([]);
    process.sql(sql).await.unwrap();
    let ops = process.store.disarm().into_iter().enumerate();
    ops.filter(|(_, op)| matches!(op.kind, Kind::Get | Kind::Ranges) && !op.path.ends_with(".json")).collect()
}

#[test]
fn a_short_read_of_a_file_is_the_stores_failure() {
    let statements = ["SELECT id, o FROM t", "REFRESH t", "CALL incremental.compact('t')", "SELECT * FROM incremental_at('t', 1)"];
    let mut cases = 0;
    for handler in ["AS SELECT id, upper(v) AS o FROM input", "HANDLER 'up'"] {
        for options in ["verify = 'metadata'", "verify = 'always'"] {
            for sql in statements {
                let found = alone(|| reads(handler, options, sql));
                assert!(!found.is_empty(), "{sql} reads no file");
                for (k, op) in found {
                    let outcome = alone(|| async {
                        let process = table(handler, options).await;
                        process.store.arm([(k, Fault::Short)]);
                        let outcome = process.sql(sql).await.map(drop);
                        process.store.disarm();
                        // It was the transfer: the file is whole.
                        process.sql(sql).await.unwrap();
                        outcome
                    });
                    let error = outcome.expect_err("the body was not whole");
                    let what = format!("{handler}, {options}: {sql}, {op}: {error}");
                    assert_eq!(error.code(), ErrorCode::StoreFailed, "{what}");
                    assert!(!error.message().contains("Range length"), "{what}");
                    cases += 1;
                }
            }
        }
    }
    println!("{cases} short reads");
}
