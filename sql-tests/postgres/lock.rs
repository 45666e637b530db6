//! Statements that snapshots do not protect from: they wait for a read, or the read waits for them and sees what they did.

use std::time::Duration;

use datafusion_incremental::ErrorCode;

use crate::Test;
use crate::world::{World, connect, everything, name};

pub const TESTS: &[Test] = &[
    ("a_truncate_waits_for_the_read", a_truncate_waits_for_the_read),
    ("a_rewrite_that_was_first_is_seen_whole", a_rewrite_that_was_first_is_seen_whole),
    ("a_view_locks_what_it_reads", a_view_locks_what_it_reads),
    ("a_role_that_may_read_some_columns_reads_without_the_lock", a_role_that_may_read_some_columns_reads_without_the_lock),
    ("a_truncate_that_no_lock_kept_away_is_found", a_truncate_that_no_lock_kept_away_is_found),
    ("a_materialised_view_that_is_refreshed_meanwhile_is_found", a_materialised_view_that_is_refreshed_meanwhile_is_found),
];

/// Whether some session waits for a lock on `table`.
fn somebody_waits(world: &World, table: &str) -> bool {
    let sql = format!("SELECT (count(*) > 0)::text FROM pg_locks WHERE NOT granted AND relation = '{table}'::regclass");
    (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        world.text(&sql) == "true"
    })
}

fn a_truncate_waits_for_the_read(world: &World) {
    world.sql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 1000)");
    let snapshot = world.snapshot("t");
    let url = world.url();
    let truncate = world.runtime.spawn(async move { connect(&url).await.batch_execute("TRUNCATE t").await });
    assert!(somebody_waits(world, "t"));
    assert_eq!(world.rows(&snapshot, everything(&snapshot, &[])).len(), 1000);
    drop(snapshot);
    world.runtime.block_on(truncate).unwrap().unwrap();
    assert_eq!(world.table("t", &[]).len(), 0);
}

fn a_rewrite_that_was_first_is_seen_whole(world: &World) {
    world.sql("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1), (2, 2)");
    let writer = world.client();
    world.runtime.block_on(writer.batch_execute("BEGIN; ALTER TABLE t ALTER v TYPE text USING 'v' || v")).unwrap();
    let connector = world.connector();
    let opening = world.runtime.spawn(async move {
        let context = std::sync::Arc::new(datafusion::execution::TaskContext::default());
        connector.snapshot(&name("t"), None, context).await
    });
    assert!(somebody_waits(world, "t"));
    world.runtime.block_on(writer.batch_execute("COMMIT")).unwrap();
    // Without the lock in front, the snapshot would be older than the rewritten rows, and see none.
    let snapshot = world.runtime.block_on(opening).unwrap().unwrap();
    assert_eq!(world.rows(&snapshot, everything(&snapshot, &["id"])), ["1|v1", "2|v2"]);
}

fn a_view_locks_what_it_reads(world: &World) {
    world.sql("CREATE TABLE base (id int); INSERT INTO base VALUES (1); CREATE VIEW v AS SELECT * FROM base");
    let snapshot = world.snapshot("v");
    let url = world.url();
    let truncate = world.runtime.spawn(async move { connect(&url).await.batch_execute("TRUNCATE base").await });
    assert!(somebody_waits(world, "base"));
    assert_eq!(world.rows(&snapshot, everything(&snapshot, &[])), ["1"]);
    drop(snapshot);
    world.runtime.block_on(truncate).unwrap().unwrap();
}

fn a_role_that_may_read_some_columns_reads_without_the_lock(world: &World) {
    let role = world.role("reader");
    world.sql(&format!("CREATE TABLE t (id int, secret text); GRANT SELECT (id) ON t TO {role}; INSERT INTO t VALUES (1, 'x')"));
    let connector = world.connector_with(&world.url_of(&role), &[]);
    let snapshot = world.try_snapshot(&connector, "t").unwrap();
    assert_eq!(world.rows(&snapshot, everything(&snapshot, &[])), ["1"]);
}

fn a_truncate_that_no_lock_kept_away_is_found(world: &World) {
    let role = world.role("reader");
    world.sql(&format!(
        "CREATE TABLE t (id int, secret text); INSERT INTO t VALUES (1, 'x');
         CREATE TABLE parts (id int, secret text) PARTITION BY LIST (id); CREATE TABLE parts_1 PARTITION OF parts DEFAULT;
         INSERT INTO parts VALUES (1, 'x'); GRANT SELECT (id) ON t, parts TO {role}"
    ));
    let connector = world.connector_with(&world.url_of(&role), &[]);
    for (table, part) in [("t", "t"), ("parts", "parts_1")] {
        let snapshot = world.try_snapshot(&connector, table).unwrap();
        assert_eq!(world.rows(&snapshot, everything(&snapshot, &[])), ["1"]);
        world.runtime.block_on(snapshot.finish()).unwrap();
        drop(snapshot);
        let snapshot = world.try_snapshot(&connector, table).unwrap();
        world.sql(&format!("TRUNCATE {part}"));
        // The snapshot is older than the empty file, and has no rows in it.
        assert_eq!(world.rows(&snapshot, everything(&snapshot, &[])).len(), 0);
        let error = world.runtime.block_on(snapshot.finish()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::SourceChanged, "{error}");
        assert!(error.message().contains(&format!("\"public.{part}\"")), "{error}");
    }
}

fn a_materialised_view_that_is_refreshed_meanwhile_is_found(world: &World) {
    world.sql("CREATE TABLE base (id int); INSERT INTO base VALUES (1); CREATE MATERIALIZED VIEW m AS SELECT * FROM base");
    let snapshot = world.snapshot("m");
    world.sql("REFRESH MATERIALIZED VIEW m");
    world.rows(&snapshot, everything(&snapshot, &[]));
    assert_eq!(world.runtime.block_on(snapshot.finish()).unwrap_err().code(), ErrorCode::SourceChanged);
    let snapshot = world.snapshot("m");
    assert_eq!(world.rows(&snapshot, everything(&snapshot, &[])), ["1"]);
    world.runtime.block_on(snapshot.finish()).unwrap();
}
