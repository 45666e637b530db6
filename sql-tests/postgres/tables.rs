//! Synced tables over PostgreSQL, from SQL: the three modes, what survives the process, what becomes of secrets and types.

use std::path::Path;

use datafusion_incremental::context::{IncrementalOptions, IncrementalSession};
use datafusion_incremental::{Error, ErrorCode};

use crate::Test;
use crate::server::PASSWORD;
use crate::world::{World, render};

pub const TESTS: &[Test] = &[
    ("the_three_modes_follow_the_source", the_three_modes_follow_the_source),
    ("discovery_and_candidates", discovery_and_candidates),
    ("late_rows_are_found_by_looking_back", late_rows_are_found_by_looking_back),
    ("null_cursors_are_read_each_time", null_cursors_are_read_each_time),
    ("filters_and_columns_reach_the_source", filters_and_columns_reach_the_source),
    ("a_measured_scale_stays_until_a_resync", a_measured_scale_stays_until_a_resync),
    ("a_number_without_rows_has_room_and_says_when_not", a_number_without_rows_has_room_and_says_when_not),
    ("an_open_number_can_be_the_cursor", an_open_number_can_be_the_cursor),
    ("the_next_process_finds_connection_and_table", the_next_process_finds_connection_and_table),
    ("secrets_are_nowhere", secrets_are_nowhere),
    ("a_dropped_cursor_column_is_named", a_dropped_cursor_column_is_named),
    ("infinity_fails_and_publishes_nothing", infinity_fails_and_publishes_nothing),
    ("a_large_load_goes_on_where_it_was_interrupted", a_large_load_goes_on_where_it_was_interrupted),
    ("the_example_runs_twice", the_example_runs_twice),
];

/// A folder with the address in a file, and a session on it that knows the connection `pg`.
pub struct Warehouse {
    pub folder: tempfile::TempDir,
    pub session: IncrementalSession,
}

impl Warehouse {
    pub fn new(world: &World, url: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("address"), url).unwrap();
        let session = open(world, folder.path());
        let warehouse = Self { folder, session };
        warehouse.sql(world, &warehouse.connection());
        warehouse
    }

    /// The statement that makes the connection.
    fn connection(&self) -> String {
        format!("CREATE CONNECTION pg TYPE postgres WITH (url = 'file:{}')", self.folder.path().join("address").display())
    }

    pub fn try_sql(&self, world: &World, sql: &str) -> Result<Vec<String>, Error> {
        world.runtime.block_on(self.session.sql(sql)).map(|results| results.last().map(|last| render(&last.batches)).unwrap_or_default())
    }

    /// The rows of a statement.
    pub fn sql(&self, world: &World, sql: &str) -> Vec<String> {
        self.try_sql(world, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    pub fn error(&self, world: &World, sql: &str) -> Error {
        self.try_sql(world, sql).err().unwrap_or_else(|| panic!("{sql} succeeds"))
    }
}

/// A session on a folder.
pub fn open(world: &World, folder: &Path) -> IncrementalSession {
    let options = IncrementalOptions::default().with_load_segments(1000);
    let root = folder.join("warehouse").display().to_string();
    world.runtime.block_on(IncrementalSession::builder().with_options(options).with_root(root).build()).unwrap()
}

const RUN: &str = "SELECT kind, status, rows_read, rows_inserted, rows_updated, rows_deleted, rows_total FROM sync_reload('t')";

fn the_three_modes_follow_the_source(world: &World) {
    world.sql(
        "CREATE TABLE s (tenant int, id int, v numeric(6,2), at timestamptz, PRIMARY KEY (tenant, id));
         INSERT INTO s SELECT i % 2, i, i / 4.0, timestamptz '2026-01-01' + i * interval '1 hour' FROM generate_series(1, 100) i",
    );
    let warehouse = Warehouse::new(world, &world.url());
    let both = |order: &str| (warehouse.sql(world, &format!("SELECT * FROM t ORDER BY {order}")), world.table("s", &["tenant", "id"]));
    // Full: everything each time, and what is gone goes.
    warehouse
        .sql(world, "CREATE SYNCED TABLE t FROM pg.public.s WITH (sync_type = 'full_refresh', primary_key_columns = ('tenant', 'id'))");
    assert_eq!(warehouse.sql(world, RUN), ["load|Completed|100|100|0|0|100"]);
    world.sql("UPDATE s SET v = 0 WHERE id = 7; DELETE FROM s WHERE id = 8; INSERT INTO s VALUES (0, 101, 1, '2026-03-01')");
    assert_eq!(warehouse.sql(world, RUN), ["continue|Completed|100|1|1|1|100"]);
    let (here, there) = both("tenant, id");
    assert_eq!(here, there);
    // Incremental: the first run reads all once, later ones from the mark.
    warehouse.sql(world, "ALTER SYNCED TABLE t SET (sync_type = 'incremental', incremental_field = 'at')");
    warehouse.sql(world, "CALL sync.reload('t')");
    world.sql(
        "UPDATE s SET v = 9, at = '2026-03-02' WHERE id = 9; INSERT INTO s VALUES (1, 102, 2, '2026-03-01'), (1, 103, 3, '2026-03-03')",
    );
    assert_eq!(warehouse.sql(world, RUN), ["continue|Completed|4|2|1|0|102"]);
    let (here, there) = both("tenant, id");
    assert_eq!(here, there);
    // Append: versions add up, and the rows at the mark are not repeated.
    warehouse.sql(world, "CREATE SYNCED TABLE log FROM pg.s WITH (sync_type = 'append', incremental_field = 'at')");
    for (change, rows) in
        [("SELECT 1", 102), ("SELECT 1", 102), ("INSERT INTO s VALUES (1, 104, 4, '2026-03-03'), (1, 105, 5, '2026-03-04')", 104)]
    {
        world.sql(change);
        warehouse.sql(world, "CALL sync.reload('log')");
        assert_eq!(warehouse.sql(world, "SELECT count(*) FROM log"), [rows.to_string()], "{change}");
    }
}

fn discovery_and_candidates(world: &World) {
    world.sql("CREATE TABLE s (id int PRIMARY KEY, at timestamptz NOT NULL, j jsonb, n int); CREATE INDEX ON s (at)");
    let warehouse = Warehouse::new(world, &world.url());
    let found = warehouse.sql(world, "SELECT * FROM sync_discover('pg')");
    assert!(found.iter().any(|row| row.contains("s") && row.contains("id")), "{found:?}");
    warehouse.sql(world, "CREATE SYNCED TABLE t FROM pg.public.s");
    let candidates = warehouse.sql(world, "SELECT * FROM sync_incremental_fields('t')").join("\n");
    assert!(candidates.contains("at") && candidates.contains("id"), "{candidates}");
    let error = warehouse
        .error(world, "ALTER SYNCED TABLE t SET (sync_type = 'incremental', incremental_field = 'att', primary_key_columns = ('id'))");
    assert_eq!(error.code(), ErrorCode::FieldNotFound);
    assert!(error.message().contains("\"at\"") || error.message().contains("at"), "{error}");
    let error = warehouse.error(world, "CREATE SYNCED TABLE u FROM pg.public.absent WITH (sync_type = 'full_refresh')");
    assert_eq!(error.code(), ErrorCode::SourceNotFound, "{error}");
}

fn late_rows_are_found_by_looking_back(world: &World) {
    world.sql("CREATE TABLE s (id int PRIMARY KEY, at timestamp); INSERT INTO s VALUES (1, '2026-01-01 12:00')");
    let warehouse = Warehouse::new(world, &world.url());
    warehouse.sql(world, "CREATE SYNCED TABLE t FROM pg.s WITH (sync_type = 'incremental', incremental_field = 'at')");
    warehouse.sql(world, "CALL sync.reload('t')");
    world.sql("INSERT INTO s VALUES (7, '2026-01-01 11:55')");
    warehouse.sql(world, "CALL sync.reload('t')");
    assert_eq!(warehouse.sql(world, "SELECT id FROM t ORDER BY id"), ["1"], "a documented limit");
    warehouse.sql(world, "ALTER SYNCED TABLE t SET (incremental_field_lookback_seconds = 600)");
    warehouse.sql(world, "CALL sync.reload('t')");
    assert_eq!(warehouse.sql(world, "SELECT id FROM t ORDER BY id"), ["1", "7"]);
    assert_eq!(warehouse.sql(world, "SELECT cursor_mark FROM sync_schema('t')"), ["2026-01-01T12:00:00"]);
}

fn null_cursors_are_read_each_time(world: &World) {
    world.sql("CREATE TABLE s (id int PRIMARY KEY, at timestamp); INSERT INTO s VALUES (1, NULL), (2, '2026-01-01 10:00')");
    let warehouse = Warehouse::new(world, &world.url());
    warehouse.sql(world, "CREATE SYNCED TABLE t FROM pg.s WITH (sync_type = 'incremental', incremental_field = 'at')");
    warehouse.sql(world, "CALL sync.reload('t')");
    world.sql("INSERT INTO s VALUES (4, NULL); UPDATE s SET at = '2026-01-01 11:00' WHERE id = 1");
    warehouse.sql(world, "CALL sync.reload('t')");
    assert_eq!(warehouse.sql(world, "SELECT * FROM t ORDER BY id"), ["1|2026-01-01T11:00:00", "2|2026-01-01T10:00:00", "4|NULL"]);
    warehouse.sql(world, "CREATE SYNCED TABLE log FROM pg.s WITH (sync_type = 'append', incremental_field = 'at')");
    let error = warehouse.error(world, "CALL sync.reload('log')");
    assert_eq!(error.code(), ErrorCode::NullCursor, "{error}");
}

fn filters_and_columns_reach_the_source(world: &World) {
    world.sql("CREATE TABLE s (id int PRIMARY KEY, status text, secret text, at date); INSERT INTO s VALUES (1, 'open', 'x', '2026-01-01'), (2, 'shut', 'y', '2026-01-02')");
    let warehouse = Warehouse::new(world, &world.url());
    warehouse.sql(
        world,
        "CREATE SYNCED TABLE t FROM pg.s WITH (sync_type = 'incremental', incremental_field = 'at', enabled_columns = ('id', 'status'),
         row_filters = '[{\"column\": \"status\", \"operator\": \"=\", \"value\": \"open\"}]')",
    );
    warehouse.sql(world, "CALL sync.reload('t')");
    assert_eq!(warehouse.sql(world, "SELECT id, status FROM t"), ["1|open"]);
    assert!(warehouse.try_sql(world, "SELECT secret FROM t").is_err());
}

fn a_number_without_rows_has_room_and_says_when_not(world: &World) {
    world.sql("CREATE TABLE s (id int PRIMARY KEY, n numeric, at int); INSERT INTO s VALUES (1, NULL, 1)");
    let warehouse = Warehouse::new(world, &world.url());
    warehouse.sql(world, "CREATE SYNCED TABLE t FROM pg.s WITH (sync_type = 'incremental', incremental_field = 'at')");
    warehouse.sql(world, "CALL sync.reload('t')");
    world.sql("INSERT INTO s VALUES (2, 12345.678, 2)");
    warehouse.sql(world, "CALL sync.reload('t')");
    let typed = "SELECT arrow_typeof(n), n FROM t WHERE id = 2";
    assert_eq!(warehouse.sql(world, typed), ["Decimal128(38, 9)|12345.678000000"]);
    world.sql("INSERT INTO s VALUES (3, 0.0000000001, 3)");
    let error = warehouse.error(world, "CALL sync.reload('t')");
    assert_eq!(error.code(), ErrorCode::ValueOutOfRange, "{error}");
    for part in ["\"n\"", "id = 3", "resync"] {
        assert!(error.message().contains(part), "{part}: {error}");
    }
    warehouse.sql(world, "CALL sync.resync('t', confirm => true)");
    assert_eq!(warehouse.sql(world, typed), ["Decimal128(38, 10)|12345.6780000000"]);
}

fn an_open_number_can_be_the_cursor(world: &World) {
    world.sql("CREATE TABLE s (id int PRIMARY KEY, n numeric NOT NULL); CREATE INDEX ON s (n); INSERT INTO s VALUES (1, 1.5), (2, 2.25)");
    let warehouse = Warehouse::new(world, &world.url());
    warehouse.sql(world, "CREATE SYNCED TABLE t FROM pg.s WITH (sync_type = 'incremental', incremental_field = 'n')");
    assert_eq!(warehouse.sql(world, RUN), ["load|Completed|2|2|0|0|2"]);
    world.sql("INSERT INTO s VALUES (3, 10), (4, 1)");
    assert_eq!(warehouse.sql(world, RUN), ["continue|Completed|2|1|0|0|3"]);
    assert_eq!(warehouse.sql(world, "SELECT id, n FROM t ORDER BY n"), ["1|1.50", "2|2.25", "3|10.00"]);
}

fn a_measured_scale_stays_until_a_resync(world: &World) {
    world.sql("CREATE TABLE s (id int PRIMARY KEY, n numeric, at int); INSERT INTO s VALUES (1, 1.25, 1), (2, 10, 2)");
    let warehouse = Warehouse::new(world, &world.url());
    warehouse.sql(world, "CREATE SYNCED TABLE t FROM pg.s WITH (sync_type = 'incremental', incremental_field = 'at')");
    warehouse.sql(world, "CALL sync.reload('t')");
    assert_eq!(warehouse.sql(world, "SELECT arrow_typeof(n), n FROM t ORDER BY id"), ["Decimal128(38, 2)|1.25", "Decimal128(38, 2)|10.00"]);
    // Fewer digits than before change nothing; more than there is room for fail, and say which row.
    world.sql("INSERT INTO s VALUES (3, 3, 3); DELETE FROM s WHERE id = 1");
    warehouse.sql(world, "CALL sync.reload('t')");
    world.sql("INSERT INTO s VALUES (4, 4.125, 4)");
    let error = warehouse.error(world, "CALL sync.reload('t')");
    assert_eq!(error.code(), ErrorCode::ValueOutOfRange, "{error}");
    assert!(error.message().contains("id = 4") && error.message().contains("\"n\""), "{error}");
    assert_eq!(warehouse.sql(world, "SELECT count(*) FROM t"), ["3"], "nothing was published");
    warehouse.sql(world, "CALL sync.resync('t', confirm => true)");
    assert_eq!(warehouse.sql(world, "SELECT arrow_typeof(n), n FROM t ORDER BY id DESC LIMIT 1"), ["Decimal128(38, 3)|4.125"]);
}

fn the_next_process_finds_connection_and_table(world: &World) {
    world.sql("CREATE TABLE s (id int PRIMARY KEY, at int); INSERT INTO s VALUES (1, 1)");
    let Warehouse { folder, session } = {
        let warehouse = Warehouse::new(world, &world.url());
        warehouse.sql(world, "CREATE SYNCED TABLE t FROM pg.s WITH (sync_type = 'incremental', incremental_field = 'at')");
        warehouse.sql(world, "CALL sync.reload('t')");
        warehouse
    };
    drop(session);
    world.sql("INSERT INTO s VALUES (2, 2)");
    let warehouse = Warehouse { session: open(world, folder.path()), folder };
    assert_eq!(warehouse.sql(world, "SELECT id FROM t"), ["1"]);
    assert_eq!(warehouse.sql(world, RUN), ["continue|Completed|2|1|0|0|2"]);
}

fn secrets_are_nowhere(world: &World) {
    world.sql("CREATE TABLE s (id int PRIMARY KEY)");
    let warehouse = Warehouse::new(world, &world.url());
    let refused = warehouse.error(world, &format!("CREATE CONNECTION open TYPE postgres WITH (url = '{}')", world.url()));
    assert_eq!(refused.code(), ErrorCode::SecretMissing);
    warehouse.sql(world, "CREATE SYNCED TABLE t FROM pg.s WITH (sync_type = 'full_refresh')");
    warehouse.sql(world, "CALL sync.reload('t')");
    // A run that fails, so that an error is stored and shown.
    std::fs::write(warehouse.folder.path().join("address"), world.url().replace(PASSWORD, "wr0ng-s3cret-p4ssword")).unwrap();
    let failed = warehouse.error(world, "CALL sync.reload('t')");
    assert_eq!(failed.code(), ErrorCode::ConnectionFailed);
    let mut texts = vec![refused.to_string(), format!("{refused:?}"), failed.to_string(), format!("{failed:?}")];
    for sql in [
        "SELECT * FROM sync_schema('t')",
        "SELECT * FROM sync_runs('t')",
        "SELECT * FROM sync_tables()",
        "SELECT * FROM incremental_runs('t')",
    ] {
        texts.extend(warehouse.sql(world, sql));
    }
    texts.extend(files(&warehouse.folder.path().join("warehouse")));
    for text in texts {
        assert!(!text.contains("s3cret") && !text.contains("@127.0.0.1"), "{text}");
    }
}

/// Everything that is stored, as far as it is text; anything else is looked through byte by byte.
fn files(folder: &Path) -> Vec<String> {
    let mut texts = vec![];
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => texts.extend(files(&path)),
            false => texts.push(String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned()),
        }
    }
    texts
}

fn a_dropped_cursor_column_is_named(world: &World) {
    world.sql("CREATE TABLE s (id int PRIMARY KEY, at int, updated_at int); INSERT INTO s VALUES (1, 1, 1)");
    let warehouse = Warehouse::new(world, &world.url());
    warehouse.sql(world, "CREATE SYNCED TABLE t FROM pg.s WITH (sync_type = 'incremental', incremental_field = 'at')");
    warehouse.sql(world, "CALL sync.reload('t')");
    world.sql("ALTER TABLE s DROP COLUMN at; INSERT INTO s VALUES (2, 2)");
    let error = warehouse.error(world, "CALL sync.reload('t')");
    assert_eq!(error.code(), ErrorCode::FieldNotFound, "{error}");
    assert!(error.message().contains("\"at\""), "{error}");
    assert_eq!(warehouse.sql(world, "SELECT count(*) FROM t"), ["1"]);
    warehouse.sql(world, "ALTER SYNCED TABLE t SET (incremental_field = 'updated_at')");
    warehouse.sql(world, "CALL sync.reload('t')");
    assert_eq!(warehouse.sql(world, "SELECT id FROM t ORDER BY id"), ["1", "2"]);
}

fn infinity_fails_and_publishes_nothing(world: &World) {
    world.sql(
        "CREATE TABLE s (id int PRIMARY KEY, at timestamp); INSERT INTO s VALUES (1, '9999-12-31 23:59:59.999999'), (2, '0001-01-01')",
    );
    let warehouse = Warehouse::new(world, &world.url());
    warehouse.sql(world, "CREATE SYNCED TABLE t FROM pg.s WITH (sync_type = 'full_refresh')");
    warehouse.sql(world, "CALL sync.reload('t')");
    world.sql("INSERT INTO s VALUES (3, 'infinity'), (4, '-infinity')");
    let error = warehouse.error(world, "CALL sync.reload('t')");
    assert_eq!(error.code(), ErrorCode::ValueOutOfRange, "{error}");
    assert_eq!(warehouse.sql(world, "SELECT * FROM t ORDER BY id"), ["1|9999-12-31T23:59:59.999999", "2|0001-01-01T00:00:00"]);
}

fn a_large_load_goes_on_where_it_was_interrupted(world: &World) {
    world.sql(
        "CREATE TABLE s (a text, b int, at int NOT NULL, v text, PRIMARY KEY (a, b)) WITH (autovacuum_enabled = off);
         INSERT INTO s SELECT chr(65 + i % 50), i, i / 10, repeat('x', 300) FROM generate_series(1, 9000) i;
         UPDATE pg_class SET reltuples = 5e6 WHERE relname = 's'",
    );
    let proxy = crate::proxy::Proxy::start(&world.runtime, world.server.port);
    let url = format!("postgres://postgres:{PASSWORD}@127.0.0.1:{}/{}", proxy.port, world.database);
    let warehouse = Warehouse::new(world, &url);
    warehouse.sql(world, "CREATE SYNCED TABLE t FROM pg.s WITH (sync_type = 'incremental', incremental_field = 'at', capture_retries = 0)");
    proxy.cut_after(1_700_000);
    assert_eq!(warehouse.error(world, "CALL sync.reload('t')").code(), ErrorCode::ConnectionFailed);
    proxy.mend();
    world.sql("INSERT INTO s VALUES ('A', 0, 5000, 'before what was read'), ('zz', 1, 5000, 'behind'); UPDATE s SET v = 'changed', at = 5000 WHERE b <= 20");
    let before = proxy.delivered();
    warehouse.sql(world, "CALL sync.reload('t')");
    assert!(proxy.delivered() - before < 2_200_000, "only the rest was read: {}", proxy.delivered() - before);
    // What changed in the part that had been read is above the mark, and comes with the next run.
    warehouse.sql(world, "CALL sync.reload('t')");
    let digest = "count(*), sum(b), sum(at), sum(length(v))";
    assert_eq!(warehouse.sql(world, &format!("SELECT {digest} FROM t")), [world.text(&format!("SELECT concat_ws('|', {digest}) FROM s"))]);
}

fn the_example_runs_twice(world: &World) {
    world.sql(
        "CREATE TABLE orders (tenant_id int, id bigint, note text, amount numeric(12, 2), updated_at timestamptz NOT NULL, PRIMARY KEY (tenant_id, id));
         CREATE INDEX ON orders (updated_at);
         INSERT INTO orders SELECT i % 3, i, 'order ' || i, i / 4.0, now() - i * interval '1 minute' FROM generate_series(1, 1000) i",
    );
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_incremental-cli"))
            .arg("--root")
            .arg(folder.path())
            .args(["--format", "csv", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/examples/postgres_sync.sql")])
            .env("PG_URL", world.url())
            .output()
            .unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{text}");
        assert!(text.contains("Completed") && !text.contains(PASSWORD), "{text}");
        world.sql("UPDATE orders SET note = 'changed', updated_at = now() WHERE id <= 10; DELETE FROM orders WHERE id > 990");
    }
}
