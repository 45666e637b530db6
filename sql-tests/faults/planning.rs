//! Planning a table function while the store does not answer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use datafusion_incremental::ErrorCode;
use datafusion_incremental::env::{Clock, SeededIds};

use super::backing::Backing;
use super::clock::{EPOCH, TestClock};
use super::store::Fault;
use super::world::{ROOT, World, alone, rows};

/// A clock whose sleep is over soon: what waits for it is told that a minute went by.
#[derive(Debug)]
struct Hasty(Arc<TestClock>);

#[async_trait]
impl Clock for Hasty {
    fn now_micros(&self) -> i64 {
        self.0.now_micros()
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration.min(Duration::from_millis(200))).await;
    }
}

/// The planner's thread waits, so no caller can cancel it: it ends by itself, with an error that says what helps.
#[test]
fn a_store_that_hangs_while_a_function_is_planned_is_given_up() {
    alone(|| async {
        let clock = TestClock::at(EPOCH);
        let backing = Backing::memory(Arc::clone(&clock) as Arc<dyn Clock>);
        let world = World::new(backing, Arc::new(Hasty(clock)), Arc::new(SeededIds::new(5)));
        world.source.set(rows(&[(1, "a")]));
        let process = world.process().await;
        let create = format!("CREATE INCREMENTAL TABLE t FROM s KEY (id) LOCATION '{ROOT}/t/' AS SELECT id, upper(v) AS o FROM input");
        process.sql(&create).await.unwrap();
        process.sql("REFRESH t").await.unwrap();
        for function in ["incremental_refresh('t')", "incremental_at('t', 1)", "incremental_row('t', 1)"] {
            process.store.arm([(0, Fault::Hangs)]);
            let error = process.sql(&format!("SELECT * FROM {function}")).await.unwrap_err();
            process.store.disarm();
            assert_eq!(error.code(), ErrorCode::StoreFailed, "{function}: {error}");
            assert!(error.message().contains("Remedy: try again, or use CALL incremental."), "{error}");
            process.sql(&format!("SELECT * FROM {function}")).await.unwrap();
        }
    });
}
