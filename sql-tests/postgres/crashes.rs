//! Three ways of failing × three modes × five points of time: the next run completes, and nothing is lost or doubled.
//!
//! ```text
//! source ── proxy: lets a share of a run's bytes through, then holds ──► the first load, or a later run
//!             └ the network is cut │ the server is killed and started again │ the process is killed
//! ```
//!
//! The source goes on changing between a failure and the next run, as it would.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use datafusion_incremental::{Error, ErrorCode};

use crate::Test;
use crate::proxy::Proxy;
use crate::server::{PASSWORD, Server};
use crate::tables::{Warehouse, open};
use crate::world::World;

pub const TESTS: &[Test] = &[
    ("the_network_breaks_full_refresh", |world| network(world, MODES[0])),
    ("the_network_breaks_incremental", |world| network(world, MODES[1])),
    ("the_network_breaks_append", |world| network(world, MODES[2])),
    ("the_server_is_killed_full_refresh", |_| server_killed(MODES[0])),
    ("the_server_is_killed_incremental", |_| server_killed(MODES[1])),
    ("the_server_is_killed_append", |_| server_killed(MODES[2])),
    ("the_process_is_killed", processes_killed),
];

const MODES: [&str; 3] = ["full_refresh", "incremental", "append"];
/// Shares of a run's bytes, in hundredths: before the first, among the catalogue, among the rows, at the last rows, and at the
/// very end, which some runs have passed before they are caught.
const POINTS: [u64; 5] = [0, 2, 40, 90, 99];
/// Every run is caught up to here: what a run reads varies by a few rows.
const CERTAIN: u64 = 90;
const ROWS: i32 = 4000;

/// A table that grows: rows of 300 bytes, ten to a cursor value.
struct Source<'a> {
    world: &'a World<'a>,
    table: String,
    rows: i32,
}

impl<'a> Source<'a> {
    fn new(world: &'a World<'a>, table: &str) -> Self {
        world.sql(&format!("CREATE TABLE {table} (id int PRIMARY KEY, at int, v text)"));
        let mut source = Self { world, table: table.into(), rows: 0 };
        source.grow(ROWS);
        source
    }

    fn grow(&mut self, rows: i32) {
        let (table, from, to) = (&self.table, self.rows + 1, self.rows + rows);
        self.world.sql(&format!("INSERT INTO {table} SELECT i, i / 10, repeat(md5(i::text), 9) FROM generate_series({from}, {to}) i"));
        self.rows += rows;
    }

    /// Rows are added; where the mode sees it, some are changed and some deleted too.
    fn change(&mut self, mode: &str) {
        let (table, rows) = (self.table.clone(), self.rows);
        self.grow(205);
        if mode != "append" {
            self.world.sql(&format!("UPDATE {table} SET v = 'changed' || id, at = {0} WHERE id % 50 = {0} % 50", self.rows / 10));
        }
        if mode == "full_refresh" {
            self.world.sql(&format!("DELETE FROM {table} WHERE id % 40 = {}", rows % 40));
        }
    }

    fn check(&self, warehouse: &Warehouse, context: &str) {
        let there = self
            .world
            .text(&format!("SELECT concat_ws('|', count(*), count(DISTINCT id), sum(id), sum(at), sum(length(v))) FROM {}", self.table));
        let here = warehouse
            .sql(self.world, &format!("SELECT count(*), count(DISTINCT id), sum(id), sum(at), sum(length(v)) FROM {}", self.table));
        assert_eq!(here, [there], "{context}");
    }

    fn define(&self, mode: &str) -> String {
        let cursor = if mode == "full_refresh" { "" } else { ", incremental_field = 'at'" };
        format!(
            "CREATE SYNCED TABLE {0} FROM pg.{0} WITH (sync_type = '{mode}', primary_key_columns = ('id'){cursor}, capture_retries = 0)",
            self.table
        )
    }

    fn reload(&self) -> String {
        format!("CALL sync.reload('{}')", self.table)
    }
}

fn url(world: &World, proxy: &Proxy) -> String {
    format!("postgres://postgres:{PASSWORD}@127.0.0.1:{}/{}", proxy.port, world.database)
}

/// The bytes of a first load and of a later run that nobody disturbs.
fn undisturbed(world: &World, proxy: &Proxy, mode: &str) -> [u64; 2] {
    let mut source = Source::new(world, "undisturbed");
    let warehouse = Warehouse::new(world, &url(world, proxy));
    warehouse.sql(world, &source.define(mode));
    [(); 2].map(|()| {
        let before = proxy.delivered();
        warehouse.sql(world, &source.reload());
        source.check(&warehouse, "undisturbed");
        let bytes = proxy.delivered() - before;
        source.change(mode);
        bytes
    })
}

/// A run that was caught fails, and one that was not is complete.
fn check_outcome(outcome: &Result<Vec<String>, Error>, is_caught: bool, point: u64, context: &str) {
    assert!(is_caught || point > CERTAIN, "{context}");
    match outcome {
        Err(error) => assert!(is_caught && error.code() == ErrorCode::ConnectionFailed, "{context}"),
        // All rows were there, and the farewell was cut.
        Ok(_) => assert!(point > CERTAIN, "{context}"),
    }
}

fn network(world: &World, mode: &str) {
    let proxy = Proxy::start(&world.runtime, world.server.port);
    let bytes = undisturbed(world, &proxy, mode);
    for point in POINTS {
        let mut source = Source::new(world, &format!("s{point}"));
        let warehouse = Warehouse::new(world, &url(world, &proxy));
        warehouse.sql(world, &source.define(mode));
        for (run, bytes) in bytes.into_iter().enumerate() {
            proxy.cut_after(bytes * point / 100);
            let outcome = warehouse.try_sql(world, &source.reload());
            let is_caught = proxy.reached();
            proxy.mend();
            let context = format!("{mode}, run {run}, cut at {point} % of {bytes} bytes: {outcome:?}");
            check_outcome(&outcome, is_caught, point, &context);
            source.change(mode);
            warehouse.sql(world, &source.reload());
            source.check(&warehouse, &context);
            source.change(mode);
        }
    }
}

fn server_killed(mode: &str) {
    let server = Server::start(&[]);
    let mut world = World::new(&server);
    let proxy = Proxy::start(&world.runtime, server.port);
    let bytes = undisturbed(&world, &proxy, mode);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let proxy = Proxy::start(&runtime, server.port);
    for point in POINTS {
        let rows = Source::new(&world, &format!("s{point}")).rows;
        let warehouse = Warehouse::new(&world, &url(&world, &proxy));
        warehouse.sql(&world, &Source { world: &world, table: format!("s{point}"), rows }.define(mode));
        let mut rows = rows;
        for (run, bytes) in bytes.into_iter().enumerate() {
            proxy.hold_after(bytes * point / 100);
            let is_over = AtomicBool::new(false);
            let outcome = std::thread::scope(|scope| {
                scope.spawn(|| {
                    proxy.wait_until_held(|| is_over.load(Ordering::SeqCst));
                    server.kill();
                    proxy.mend();
                });
                let outcome = warehouse.try_sql(&world, &format!("CALL sync.reload('s{point}')"));
                is_over.store(true, Ordering::SeqCst);
                outcome
            });
            let context = format!("{mode}, run {run}, killed at {point} % of {bytes} bytes: {outcome:?}");
            check_outcome(&outcome, proxy.reached(), point, &context);
            server.launch();
            world = World::on(&server, world.database);
            let mut source = Source { world: &world, table: format!("s{point}"), rows };
            source.change(mode);
            warehouse.sql(&world, &source.reload());
            source.check(&warehouse, &context);
            source.change(mode);
            rows = source.rows;
        }
    }
}

/// A shell that reloads a table, with its output thrown away.
fn shell(warehouse: &Warehouse, source: &Source) -> Child {
    Command::new(env!("CARGO_BIN_EXE_incremental-cli"))
        .arg("--root")
        .arg(warehouse.folder.path().join("warehouse"))
        .args(["-q", "-c", &source.reload()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the shell starts")
}

/// A killed process leaves its lease behind, which lasts thirty seconds: all of them are killed first, and wait together.
fn processes_killed(world: &World) {
    struct Place<'a> {
        mode: &'a str,
        point: u64,
        bytes: [u64; 2],
        source: Source<'a>,
        warehouse: Warehouse,
    }
    let proxy = Proxy::start(&world.runtime, world.server.port);
    let mut places = vec![];
    for mode in MODES {
        let bytes = undisturbed(world, &proxy, mode);
        world.sql("DROP TABLE undisturbed");
        for point in POINTS {
            let source = Source::new(world, &format!("{mode}_{point}"));
            let warehouse = Warehouse::new(world, &url(world, &proxy));
            warehouse.sql(world, &source.define(mode));
            places.push(Place { mode, point, bytes, source, warehouse });
        }
    }
    for run in 0..2 {
        for place in &mut places {
            proxy.hold_after(place.bytes[run] * place.point / 100);
            let mut process = shell(&place.warehouse, &place.source);
            let is_caught = proxy.wait_until_held(|| process.try_wait().unwrap().is_some());
            assert!(is_caught || place.point > CERTAIN, "{}, run {run} was over before {} %", place.mode, place.point);
            process.kill().unwrap();
            process.wait().unwrap();
            proxy.mend();
            place.source.change(place.mode);
        }
        std::thread::sleep(Duration::from_secs(31));
        for place in &mut places {
            // Another process, as it would be.
            place.warehouse.session = open(world, place.warehouse.folder.path());
            place.warehouse.sql(world, &place.source.reload());
            place.source.check(&place.warehouse, &format!("{}, run {run}, killed at {} %", place.mode, place.point));
            place.source.change(place.mode);
        }
    }
}
