//! Schedules by a clock that the test moves.

use std::sync::Arc;

use datafusion_incremental::context::{IncrementalOptions, IncrementalSession};
use datafusion_incremental::env::{Env, RandomIds};
use datafusion_incremental::sync::schedule::{Outcome, Ran, Scheduler, Tick};

use super::clock::{EPOCH, TestClock};
use super::outside::{Declared, Outside};

const MINUTE: i64 = 60_000_000;
const HOUR: i64 = 60 * MINUTE;

struct World {
    folder: tempfile::TempDir,
    clock: Arc<TestClock>,
    outside: Outside,
    session: IncrementalSession,
}

impl World {
    async fn new() -> Self {
        let (folder, clock, outside) = (tempfile::tempdir().unwrap(), TestClock::at(EPOCH), Outside::default());
        let session = Self::open(&folder, &clock, &outside).await;
        let world = Self { folder, clock, outside, session };
        world.sql("CREATE TABLE s (id BIGINT, at BIGINT) AS VALUES (1, 1), (2, 2)").await;
        world.outside.declare("s", Declared { key: vec!["id".into()], ..Declared::default() });
        world.sql("CREATE CONNECTION x TYPE outside WITH (token = 'env:PATH')").await;
        world
    }

    async fn open(folder: &tempfile::TempDir, clock: &Arc<TestClock>, outside: &Outside) -> IncrementalSession {
        let env = Env { clock: Arc::clone(clock) as _, ids: Arc::new(RandomIds) };
        let options = IncrementalOptions::default().with_connector(Arc::new(outside.clone())).with_env(env);
        let root = folder.path().display().to_string();
        IncrementalSession::builder().with_options(options).with_root(root).build().await.unwrap()
    }

    /// The next process, with the same outside system.
    async fn restart(&mut self) {
        self.session = Self::open(&self.folder, &self.clock, &self.outside).await;
        self.sql("CREATE TABLE s (id BIGINT, at BIGINT) AS VALUES (1, 1), (2, 2)").await;
    }

    async fn sql(&self, sql: &str) -> String {
        let results = self.session.sql(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        let batches: Vec<_> = results.into_iter().flat_map(|result| result.batches).collect();
        arrow::util::pretty::pretty_format_batches(&batches).unwrap().to_string()
    }

    async fn tick(&self) -> Tick {
        self.session.run_due().await.unwrap()
    }

    /// The tables that ran, in order.
    async fn ran(&self) -> Vec<String> {
        let tick = self.tick().await;
        assert!(!tick.has_failed(), "{tick:?}");
        tick.ran.into_iter().map(|ran| ran.table).collect()
    }
}

#[tokio::test]
async fn what_is_due_runs_once_however_much_was_missed() {
    let mut world = World::new().await;
    let with = "sync_type = 'incremental', incremental_field = 'at', sync_frequency = '1hour', sync_time_of_day = '00:30'";
    world.sql(&format!("CREATE SYNCED TABLE t FROM x.public.s WITH ({with})")).await;
    let tick = world.tick().await;
    assert!(tick.ran.is_empty());
    assert_eq!(tick.next, Some(EPOCH + 30 * MINUTE));

    world.clock.jump(31 * MINUTE);
    assert_eq!(world.ran().await, ["t"]);
    assert!(world.ran().await.is_empty());
    assert!(world.sql("SELECT trigger, kind FROM sync_runs('t')").await.contains("schedule"));

    world.clock.jump(7 * HOUR);
    world.restart().await;
    let tick = world.tick().await;
    let due: Vec<i64> = tick.ran.iter().map(|ran| ran.due_at).collect();
    assert_eq!(due, [EPOCH + 7 * HOUR + 30 * MINUTE]);
    assert!(world.ran().await.is_empty());

    // A run by hand answers what is due, a paused table is left alone, and never is never.
    world.clock.jump(HOUR);
    world.sql("CALL sync.reload('t')").await;
    assert!(world.ran().await.is_empty());
    world.sql("ALTER SYNCED TABLE t SET (should_sync = false)").await;
    world.clock.jump(24 * HOUR);
    assert!(world.ran().await.is_empty());
    world.sql("ALTER SYNCED TABLE t SET (should_sync = true, sync_frequency = 'never')").await;
    world.clock.jump(24 * HOUR);
    assert!(world.ran().await.is_empty());

    // A schedule that is changed counts from then on.
    world.sql("ALTER SYNCED TABLE t SET (sync_frequency = '5min')").await;
    assert!(world.ran().await.is_empty());
    world.clock.jump(5 * MINUTE);
    assert_eq!(world.ran().await, ["t"]);
}

#[tokio::test]
async fn a_failed_run_waits_for_its_next_turn() {
    let world = World::new().await;
    let with = "sync_type = 'full_refresh', sync_frequency = '1hour', sync_time_of_day = '00:00', capture_retries = 0";
    world.sql(&format!("CREATE SYNCED TABLE t FROM x.public.s WITH ({with})")).await;
    world.outside.declare("*", Declared { is_down: true, ..Declared::default() });
    world.clock.jump(HOUR);
    let tick = world.tick().await;
    assert!(tick.has_failed() && tick.ran.len() == 1);
    assert!(world.tick().await.ran.is_empty());
    world.outside.declare("*", Declared::default());
    world.clock.jump(HOUR);
    assert_eq!(world.ran().await, ["t"]);
}

#[tokio::test]
async fn an_overlap_is_skipped_and_noted() {
    let world = World::new().await;
    let with = "sync_type = 'full_refresh', sync_frequency = '1hour', sync_time_of_day = '00:00'";
    world.sql(&format!("CREATE SYNCED TABLE t FROM x.public.s WITH ({with})")).await;
    world.outside.declare("s", Declared { key: vec!["id".into()], is_held: true, ..Declared::default() });
    let other = world.session.clone();
    let running = tokio::task::JoinSet::from_iter([async move { other.sql("CALL sync.reload('t', 'by-hand')").await.map(drop) }]);
    assert!(world.outside.held().await);
    world.clock.jump(HOUR);
    let tick = world.tick().await;
    assert!(
        matches!(tick.ran.as_slice(), [only] if matches!(&only.outcome, Outcome::Skipped(run) if run.as_str() == "by-hand")),
        "{tick:?}"
    );
    assert!(world.tick().await.ran.is_empty());
    assert!(world.sql("SELECT skipped_runs FROM sync_schema('t')").await.contains("| 1 "));
    world.outside.declare("s", Declared { key: vec!["id".into()], ..Declared::default() });
    for ended in running.join_all().await {
        ended.unwrap();
    }
    world.clock.jump(HOUR);
    assert_eq!(world.ran().await, ["t"]);
}

#[tokio::test]
async fn incremental_tables_follow_their_sources_upstream_first() {
    let world = World::new().await;
    let with = "sync_type = 'full_refresh', sync_frequency = '1hour', sync_time_of_day = '00:00'";
    world.sql(&format!("CREATE SYNCED TABLE t FROM x.public.s WITH ({with})")).await;
    let after = "WITH (schedule = 'after_source')";
    world.sql(&format!("CREATE INCREMENTAL TABLE b FROM t KEY (id) {after} AS SELECT id, at FROM input")).await;
    world.sql(&format!("CREATE INCREMENTAL TABLE a FROM b KEY (id) {after} AS SELECT id FROM input")).await;
    world.sql("CREATE INCREMENTAL TABLE c FROM b KEY (id) WITH (schedule = '24hour') AS SELECT id FROM input").await;
    assert!(world.ran().await.is_empty());
    world.clock.jump(HOUR);
    let ran = world.ran().await;
    assert_eq!(ran.iter().filter(|table| *table != "c").collect::<Vec<_>>(), ["t", "b", "a"], "{ran:?}");
    // Nothing newer: nothing to do, for those that follow their source.
    assert!(world.ran().await.iter().all(|table| table == "c"));
    world.clock.jump(24 * HOUR);
    assert_eq!(world.ran().await.len(), 4);
}

#[tokio::test]
async fn a_clock_that_was_ahead_stops_no_schedule() {
    let world = World::new().await;
    let with = "sync_type = 'full_refresh', sync_frequency = '1hour', sync_time_of_day = '00:00'";
    world.sql(&format!("CREATE SYNCED TABLE t FROM x.public.s WITH ({with})")).await;
    world.clock.jump(10_000 * HOUR);
    world.sql("CALL sync.reload('t')").await;
    world.clock.jump(-9_990 * HOUR);
    assert_eq!(world.ran().await, ["t"]);
    assert!(world.ran().await.is_empty());
}

#[tokio::test]
async fn a_clock_behind_its_source_follows_it_once() {
    let world = World::new().await;
    world.sql("CREATE SYNCED TABLE t FROM x.public.s WITH (sync_type = 'full_refresh', sync_frequency = 'never')").await;
    world.sql("CREATE INCREMENTAL TABLE e FROM t KEY (id) WITH (schedule = 'after_source') AS SELECT id FROM input").await;
    world.clock.jump(HOUR);
    world.sql("CALL sync.reload('t')").await;
    // A host whose clock is an hour behind.
    world.clock.jump(-HOUR);
    assert_eq!(world.ran().await, ["e"]);
    assert!(world.ran().await.is_empty());
}

#[tokio::test]
async fn keys_are_compared_by_the_clock_also_after_a_failure() {
    let world = World::new().await;
    let with = "sync_type = 'incremental', incremental_field = 'at', sync_frequency = 'never', reconcile_frequency = '24hour', capture_retries = 0";
    world.sql(&format!("CREATE SYNCED TABLE t FROM x.public.s WITH ({with})")).await;
    // Without rows there is nothing to compare.
    world.clock.jump(24 * HOUR);
    assert!(world.ran().await.is_empty());
    world.sql("CALL sync.reload('t')").await;
    world.outside.declare("*", Declared { is_down: true, ..Declared::default() });
    assert!(world.tick().await.has_failed());
    // It is not tried at each look, and what failed was a comparison.
    assert!(world.tick().await.ran.is_empty());
    assert!(world.sql("SELECT kind, status FROM sync_runs('t') LIMIT 1").await.contains("| reconcile | Failed"));
    world.outside.declare("*", Declared::default());
    world.clock.jump(24 * HOUR);
    assert_eq!(world.ran().await, ["t"]);
}

#[tokio::test]
async fn a_slow_table_holds_up_no_other() {
    let world = World::new().await;
    world.sql("CREATE TABLE q (id BIGINT, at BIGINT) AS VALUES (1, 1)").await;
    let with = "sync_type = 'full_refresh', sync_frequency = '1hour', sync_time_of_day = '00:00'";
    for (table, source) in [("slow", "s"), ("quick", "q")] {
        world.sql(&format!("CREATE SYNCED TABLE {table} FROM x.public.{source} WITH ({with})")).await;
    }
    let after = "WITH (schedule = 'after_source')";
    world.sql(&format!("CREATE INCREMENTAL TABLE on_slow FROM slow KEY (id) {after} AS SELECT id FROM input")).await;
    world.sql(&format!("CREATE INCREMENTAL TABLE on_quick FROM quick KEY (id) {after} AS SELECT id FROM input")).await;
    world.clock.jump(HOUR);
    world.outside.declare("s", Declared { is_held: true, ..Declared::default() });
    let mut scheduler = Scheduler::default();
    assert!(world.session.look(&mut scheduler).await.unwrap().ran.is_empty());
    let mut ended = vec![];
    for _ in 0..2 {
        let ran = scheduler.ended().await.unwrap();
        assert!(ran.outcome.error().is_none(), "{ran:?}");
        ended.push(ran.table);
        world.session.look(&mut scheduler).await.unwrap();
    }
    assert_eq!(ended, ["quick", "on_quick"]);
    // The slow one is due again while it is still at work: noted once, and the row of it says why.
    world.clock.jump(HOUR);
    let tick = world.session.look(&mut scheduler).await.unwrap();
    assert!(matches!(tick.ran.as_slice(), [Ran { table, outcome: Outcome::Skipped(_), .. }] if table == "slow"), "{tick:?}");
    assert!(world.session.look(&mut scheduler).await.unwrap().ran.is_empty());
    assert!(world.sql("SELECT status, error_message FROM sync_runs('slow')").await.contains("| Skipped | it was due while run "));
    world.outside.declare("s", Declared::default());
    while let Some(ran) = scheduler.ended().await {
        ended.push(ran.table);
        world.session.look(&mut scheduler).await.unwrap();
    }
    assert!(ended.contains(&"on_slow".to_string()), "{ended:?}");
}

#[tokio::test]
async fn a_table_that_cannot_be_looked_at_holds_up_no_other() {
    let world = World::new().await;
    let with = "sync_type = 'full_refresh', sync_frequency = '1hour', sync_time_of_day = '00:00'";
    for table in ["broken", "whole"] {
        world.sql(&format!("CREATE SYNCED TABLE {table} FROM x.public.s WITH ({with})")).await;
    }
    let log = walk(&world.folder.path().join("broken")).into_iter().find(|path| path.parent().is_some_and(|dir| dir.ends_with("sync")));
    std::fs::write(log.unwrap(), b"damage").unwrap();
    let mut world = world;
    world.restart().await;
    world.clock.jump(HOUR);
    let tick = world.tick().await;
    let outcomes: Vec<(&str, bool)> = tick.ran.iter().map(|ran| (ran.table.as_str(), ran.outcome.error().is_none())).collect();
    assert_eq!(outcomes, [("broken", false), ("whole", true)], "{tick:?}");
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}
