//! What the crash matrix interrupts: each scenario's preparation on a healthy store, the act, and the act again.

use datafusion_incremental::ErrorCode;

use super::world::ROOT;

/// One step.
#[derive(Debug, Clone)]
pub enum Do {
    /// The source's rows from now on.
    Source(Vec<(i64, &'static str)>),
    /// The rows of a Parquet file beside the tables; the source is all such files.
    File(&'static str, Vec<(i64, &'static str)>),
    /// So many seconds pass.
    Wait(u64),
    /// A script that succeeds.
    Sql(String),
    /// The last of this query's rows show this text.
    Shows(String, &'static str),
    /// A script that fails with this code.
    Fails(String, ErrorCode),
    /// Whether every call of the handler `up` fails.
    ServiceFails(bool),
    /// A refresh whose process dies in the handler, half a minute before the next step.
    Abandoned(String),
    /// A refresh of `t` under this run id, whose handler takes 5 s, and a cancel by another process after one of them.
    CancelAtWork(&'static str),
}

/// One row of the matrix.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub name: &'static str,
    pub tables: &'static [&'static str],
    pub setup: Vec<Do>,
    pub act: Vec<Do>,
    /// What is done after the fault, on a healthy store.
    pub again: Vec<Do>,
    /// Whether one statement may publish more versions than its answer promises (automatic compaction).
    pub may_stop_short: bool,
}

fn sql(text: impl Into<String>) -> Do {
    Do::Sql(text.into())
}

fn create(table: &str, source: &str, options: &str, handler: &str) -> String {
    let track = if handler == UP { "TRACK (v)" } else { "" };
    let options = if options.is_empty() { "compaction = 'off'" } else { options };
    format!("CREATE INCREMENTAL TABLE {table} FROM {source} KEY (id) {track} LOCATION '{ROOT}/{table}/' WITH ({options}) {handler}")
}

/// A proven handler: capture, handler and write are one pass.
const UPPER: &str = "AS SELECT id, upper(v) AS o FROM input";
/// A registered handler: the capture is sealed before it is called.
const UP: &str = "HANDLER 'up'";

fn first() -> Do {
    Do::Source(vec![(1, "a"), (2, "b"), (3, "c"), (4, "d")])
}

fn second() -> Do {
    Do::Source(vec![(1, "a"), (2, "bb"), (4, "d"), (5, "e")])
}

fn fewer() -> Do {
    Do::Source(vec![(4, "d")])
}

/// A table with two versions, of the source's first and second rows.
fn two_versions(options: &str, handler: &str) -> Vec<Do> {
    vec![first(), sql(create("t", "s", options, handler)), sql("REFRESH t"), second(), sql("REFRESH t")]
}

fn scenario(name: &'static str, setup: Vec<Do>, act: Vec<Do>) -> Scenario {
    Scenario { name, tables: &["t"], setup, again: act.clone(), act, may_stop_short: false }
}

/// Every scenario.
pub fn all() -> Vec<Scenario> {
    let mut all = runs();
    all.extend(acts());
    all.extend(definitions());
    all
}

fn runs() -> Vec<Scenario> {
    let one = |options: &str, handler: &str, then: Do| vec![first(), sql(create("t", "s", options, handler)), sql("REFRESH t"), then];
    let run = || vec![sql("REFRESH t RUN 'r'")];
    let guarded = "guard_min_rows = 1, compaction = 'off'";
    let held = Do::Fails("REFRESH t RUN 'r'".into(), ErrorCode::DeleteGuard);
    let allow = sql("REFRESH t RUN 'r' ALLOW DELETES");
    let mut unready = one("", UP, second());
    unready.extend([Do::ServiceFails(true), Do::Fails("REFRESH t RUN 'r'".into(), ErrorCode::HandlerFailed), Do::ServiceFails(false)]);
    let failing = Do::Fails("REFRESH t RUN 'r'".into(), ErrorCode::HandlerFailed);
    vec![
        scenario("first run, proven", vec![first(), sql(create("t", "s", "", UPPER))], run()),
        scenario("first run, registered", vec![first(), sql(create("t", "s", "", UP))], run()),
        scenario("incremental, proven", one("", UPPER, second()), run()),
        scenario("incremental, registered", one("", UP, second()), run()),
        scenario("delete-only, proven", one("", UPPER, fewer()), run()),
        scenario("delete-only, registered", one("", UP, fewer()), run()),
        scenario("no change, proven", one("", UPPER, first()), run()),
        scenario("no change, registered", one("", UP, first()), run()),
        scenario("rebuild, proven", one("", UPPER, second()), vec![sql("REFRESH t FULL RUN 'r'")]),
        scenario("rebuild, registered", one("", UP, second()), vec![sql("REFRESH t FULL RUN 'r'")]),
        scenario("full recompute", one("incremental = false, compaction = 'off'", UPPER, second()), run()),
        scenario("retry of a run id", unready, run()),
        Scenario {
            again: [vec![Do::ServiceFails(false)], run()].concat(),
            ..scenario("a run whose handler fails", one("", UP, second()), vec![Do::ServiceFails(true), failing])
        },
        Scenario {
            again: vec![allow.clone()],
            ..scenario("guard, then allow", one(guarded, UP, fewer()), vec![held.clone(), allow.clone()])
        },
        scenario("allow, proven", [one(guarded, UPPER, fewer()), vec![held]].concat(), vec![allow]),
        draft("draft, proven", one("", UPPER, second())),
        draft("draft, registered", one("", UP, second())),
    ]
}

fn draft(name: &'static str, setup: Vec<Do>) -> Scenario {
    let draft = sql("REFRESH t DRAFT RUN 'd'");
    Scenario { again: vec![draft.clone(), sql("REFRESH t")], ..scenario(name, setup, vec![draft]) }
}

fn acts() -> Vec<Scenario> {
    let held = [
        vec![first(), sql(create("t", "s", "guard_min_rows = 1, compaction = 'off'", UP)), sql("REFRESH t"), fewer()],
        vec![Do::Fails("REFRESH t RUN 'r'".into(), ErrorCode::DeleteGuard)],
    ];
    let cancel = sql("CALL incremental.cancel('t', 'r')");
    let cancelled = Do::Fails("REFRESH t RUN 'r'".into(), ErrorCode::Cancelled);
    let compacting = "compaction_max_files = 1";
    let rollback = sql("CALL incremental.rollback('t', version => 1)");
    let vacuum = sql("CALL incremental.vacuum('t', dry_run => false, older_than => '0 s')");
    vec![
        Scenario {
            again: vec![cancel.clone(), cancelled.clone(), sql("REFRESH t ALLOW DELETES")],
            ..scenario("cancel", held.concat(), vec![cancel, cancelled])
        },
        Scenario {
            again: vec![sql("REFRESH t RUN 'other'")],
            ..scenario(
                "cancel of a run at work",
                vec![first(), sql(create("t", "s", "", UP)), sql("REFRESH t"), second()],
                vec![Do::CancelAtWork("r")],
            )
        },
        Scenario { again: vec![rollback.clone(), sql("REFRESH t")], ..scenario("rollback", two_versions("", UP), vec![rollback]) },
        Scenario {
            again: vec![sql("CALL incremental.compact('t')"), sql("REFRESH t")],
            ..scenario("compaction", two_versions("", UPPER), vec![sql("CALL incremental.compact('t')")])
        },
        Scenario {
            may_stop_short: true,
            ..scenario(
                "automatic compaction",
                vec![first(), sql(create("t", "s", compacting, UPPER)), sql("REFRESH t"), second()],
                vec![sql("REFRESH t RUN 'r'")],
            )
        },
        Scenario { again: vec![vacuum.clone(), sql("REFRESH t")], ..scenario("vacuum", two_versions("", UP), vec![vacuum.clone()]) },
        Scenario {
            again: vec![vacuum.clone(), sql("REFRESH t")],
            ..scenario(
                "vacuum with an unfinished run",
                [two_versions("", UP), vec![Do::Source(vec![(1, "x"), (5, "e")]), Do::Abandoned("REFRESH t RUN 'r'".into()), second()]]
                    .concat(),
                vec![vacuum],
            )
        },
        Scenario {
            tables: &["t", "u"],
            again: vec![sql("REFRESH t; REFRESH u")],
            ..scenario("chain of two", [chained(), vec![second()]].concat(), vec![sql("REFRESH u, t")])
        },
        Scenario {
            tables: &["t", "u"],
            again: vec![sql("REFRESH u RUN 'h'")],
            ..scenario(
                "hand-on",
                [chained(), vec![second(), sql("REFRESH t"), Do::Shows("EXPLAIN REFRESH u".into(), "hands on its changes")]].concat(),
                vec![sql("REFRESH u RUN 'h'")],
            )
        },
        scenario("file skip", file_skip(), vec![sql("REFRESH t RUN 'r'")]),
    ]
}

/// A table and one on top of it, refreshed once.
fn chained() -> Vec<Do> {
    vec![first(), sql(create("t", "s", "", UPPER)), sql(create("u", "t", "", CHAINED)), sql("REFRESH t, u")]
}

/// A table over three files, of which one changed: the others are not read.
fn file_skip() -> Vec<Do> {
    vec![
        Do::File("a", vec![(1, "a"), (2, "b")]),
        Do::File("b", vec![(3, "c"), (4, "d")]),
        Do::File("c", vec![(5, "e")]),
        Do::Wait(5),
        sql(format!("CREATE EXTERNAL TABLE f STORED AS PARQUET LOCATION '{ROOT}/files/'")),
        sql(create("t", "f", "", UPPER)),
        sql("REFRESH t"),
        Do::File("b", vec![(3, "cc"), (6, "f")]),
        Do::Wait(5),
        Do::Shows("EXPLAIN REFRESH t".into(), "source files: 1 to read, 2 skipped"),
    ]
}

/// The second table of the chain: the same rows again.
const CHAINED: &str = "AS SELECT id, o FROM input";

fn definitions() -> Vec<Scenario> {
    let alter = sql("ALTER INCREMENTAL TABLE t AS SELECT id, upper(concat(v, '')) AS o FROM input");
    let creation = sql(create("t", "s", "", UPPER));
    let recreation = sql(create("t", "s", "", UPPER).replace("CREATE INCREMENTAL", "CREATE OR ALTER INCREMENTAL"));
    let options = sql("ALTER INCREMENTAL TABLE t SET (verify = 'always')");
    let drop = sql("DROP INCREMENTAL TABLE IF EXISTS t");
    let purge = sql("DROP INCREMENTAL TABLE IF EXISTS t PURGE");
    let refresh = sql("REFRESH t");
    vec![
        Scenario { again: vec![recreation.clone(), refresh.clone()], ..scenario("create", vec![first()], vec![creation.clone()]) },
        scenario("alter", two_versions("", UPPER), vec![options, alter, refresh.clone()]),
        scenario("drop and attach", two_versions("", UPPER), vec![drop, creation.clone(), refresh.clone()]),
        scenario("drop and create", two_versions("", UPPER), vec![purge, creation, refresh]),
    ]
}
