//! Without the host's leave nothing acts, and nothing gives it; with it, planning still writes nothing.

use datafusion::execution::SessionStateBuilder;
use datafusion::physical_plan::displayable;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_incremental::context::{IncrementalExt, IncrementalOptions, IncrementalSqlExt};
use datafusion_incremental::sql::verbs::{ParamKind, VERBS, VerbSpec};
use datafusion_incremental::{Error, ErrorCode};

use super::world::{World, panics, short};

/// A session as a gateway has it: everything registered, `leave` or not, and `base` attached.
async fn gateway(world: &World, leave: bool) -> SessionContext {
    let options = IncrementalOptions::default().with_root(world.warehouse().display().to_string());
    let options = if leave { options.with_leave_to_act() } else { options };
    let config = SessionConfig::new().with_information_schema(true);
    let state = SessionStateBuilder::new().with_default_features().with_config(config).with_incremental(options).build();
    let ctx = SessionContext::new_with_state(state);
    ctx.incremental_sql("CREATE TABLE s (id BIGINT, v VARCHAR, n BIGINT, arr BIGINT[]) AS VALUES (1, 'changed', 1, [1]), (3, 'c', 3, [3])")
        .await
        .unwrap();
    ctx.incremental_sql("CREATE TABLE scratch (a VARCHAR)").await.unwrap();
    ctx.incremental_sql("SELECT * FROM base").await.unwrap();
    ctx
}

/// A call of the verb with every required argument.
fn arguments(verb: &VerbSpec) -> String {
    let required = verb.params.iter().filter(|param| param.required);
    let texts = required.map(|param| match param.kind {
        ParamKind::Table => "'base'".to_string(),
        ParamKind::Number => "1".to_string(),
        _ => "'some_run'".to_string(),
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// Every form in which a query can hold the call.
fn queries(call: &str) -> Vec<String> {
    vec![
        format!("SELECT * FROM {call}"),
        format!("SELECT count(*) FROM {call}"),
        format!("SELECT * FROM (SELECT * FROM {call}) x"),
        format!("WITH x AS (SELECT * FROM {call}) SELECT * FROM x"),
        format!("WITH RECURSIVE x AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM x, {call} WHERE a < 3) SELECT * FROM x"),
        format!("SELECT (SELECT count(*) FROM {call})"),
        format!("SELECT 1 WHERE EXISTS (SELECT * FROM {call})"),
        format!("SELECT 1 WHERE 1 IN (SELECT count(*) FROM {call})"),
        format!("SELECT * FROM base, {call}"),
        format!("SELECT 1 UNION ALL SELECT count(*) FROM {call}"),
        format!("SELECT id, (SELECT count(*) FROM {call}) AS n FROM base"),
    ]
}

/// Every statement that would execute one of the queries.
fn statements(query: &str) -> Vec<String> {
    let prepared = format!("p{}", blake3::hash(query.as_bytes()).to_hex());
    vec![
        query.to_string(),
        format!("EXPLAIN ANALYZE {query}"),
        format!("CREATE TABLE stolen AS {query}"),
        format!("COPY ({query}) TO '/nonexistent/x.csv'"),
        format!("CREATE OR REPLACE VIEW acting AS {query}; SELECT * FROM acting"),
        format!("PREPARE {prepared} AS {query}; EXECUTE {prepared}"),
    ]
}

/// Our own acting statements, and DML on the published table.
fn acting_statements() -> Vec<String> {
    let location = "LOCATION '/nonexistent/t/'";
    let options = "OPTIONS ('incremental.source' 's', 'incremental.key' 'id', 'incremental.handler' 'SELECT id FROM input')";
    let mut all: Vec<String> = [
        "CREATE INCREMENTAL TABLE t2 FROM s KEY (id) AS SELECT id FROM input",
        "CREATE INCREMENTAL TABLE IF NOT EXISTS t2 FROM s KEY (id) AS SELECT id FROM input",
        "CREATE INCREMENTAL TABLE IF NOT EXISTS base FROM s KEY (id) AS SELECT id FROM input",
        "CREATE OR ALTER INCREMENTAL TABLE base FROM s KEY (id) AS SELECT id FROM input",
        "ALTER INCREMENTAL TABLE base SET (verify = 'always')",
        "ALTER INCREMENTAL TABLE base RESET (verify)",
        "ALTER INCREMENTAL TABLE base ACCEPT SCHEMA",
        "ALTER INCREMENTAL TABLE base DRAFT AS SELECT id FROM input",
        "ALTER INCREMENTAL TABLE base AS SELECT id FROM input",
        "ALTER INCREMENTAL TABLE base ACTIVATE",
        "ALTER INCREMENTAL TABLE base ACTIVATE REVISION 1",
        "ALTER INCREMENTAL TABLE base SET (read_only = false)",
        "DROP INCREMENTAL TABLE base",
        "DROP INCREMENTAL TABLE IF EXISTS base PURGE",
        "REFRESH base",
        "REFRESH base, whole",
        "REFRESH ALL",
        "REFRESH base FULL",
        "REFRESH base DRAFT",
        "REFRESH base RUN 'some_run' ALLOW DELETES",
        "INSERT INTO base VALUES (9, 'x')",
        "INSERT OVERWRITE base VALUES (9, 'x')",
        "DELETE FROM base",
        "UPDATE base SET v = 'x'",
        "TRUNCATE TABLE base",
    ]
    .map(String::from)
    .into();
    all.push(format!("CREATE EXTERNAL TABLE t2 STORED AS INCREMENTAL {location} {options}"));
    all.push(format!("CREATE OR REPLACE EXTERNAL TABLE base STORED AS INCREMENTAL {location} {options}"));
    all.push(format!("CREATE EXTERNAL TABLE IF NOT EXISTS t2 STORED AS INCREMENTAL {location} {options}"));
    all.push(format!("CREATE EXTERNAL TABLE t2 STORED AS INCREMENTAL {location} OPTIONS ('incremental.read_only' 'false')"));
    for verb in VERBS.iter().filter(|verb| verb.acts) {
        let (arguments, name) = (arguments(verb), verb.name);
        all.push(format!("CALL incremental.{name}({arguments})"));
        let upper = verb.function().to_ascii_uppercase();
        all.push(format!("SELECT * FROM {upper}({arguments})"));
        all.push(format!("INSERT INTO scratch SELECT CAST(count(*) AS VARCHAR) FROM incremental_{name}({arguments})"));
        for query in queries(&format!("incremental_{name}({arguments})")) {
            all.extend(statements(&query));
        }
    }
    all
}

async fn code(ctx: &SessionContext, sql: &str) -> Result<(), Error> {
    ctx.incremental_sql(sql).await.map(|_| ())
}

/// Every acting statement is `READ_ONLY`, and the store stays as it is. Returns how many there were.
async fn nothing_acts(world: &World, ctx: &SessionContext) -> usize {
    let before = world.tree();
    let all = acting_statements();
    for sql in &all {
        let found = code(ctx, sql).await.map_err(|e| (e.code(), e.to_string()));
        assert!(matches!(found, Err((ErrorCode::ReadOnly, _))), "{}: {found:?}", short(sql));
        for name in ["acting", "stolen"] {
            let _ = ctx.deregister_table(name);
        }
        if let Some((_, prepared)) = sql.split_once("; EXECUTE ") {
            let _ = code(ctx, &format!("DEALLOCATE {prepared}")).await;
        }
    }
    assert_eq!(world.tree(), before, "the store changed");
    all.len()
}

/// Everything that somebody might take for the leave.
const GRANTS: &[&str] = &[
    "SET incremental.read_only = false",
    "SET incremental.read_only = 'FALSE'",
    "SET incremental.read_only TO 'false'",
    "SET incremental.may_act = true",
    "SET incremental.leave_to_act = true",
    "SET incremental.with_leave_to_act = true",
    "SET incremental = 'may_act'",
    "SET datafusion.incremental.read_only = false",
    "SET datafusion.extensions.incremental.may_act = true",
    "RESET incremental.read_only",
    "RESET incremental",
    "RESET ALL",
    "SET LOCAL incremental.read_only = false",
    "SET GLOBAL incremental.may_act = true",
    "SET SESSION AUTHORIZATION postgres",
    "SET ROLE admin",
    "BEGIN TRANSACTION READ WRITE",
    "CREATE EXTERNAL TABLE g STORED AS INCREMENTAL LOCATION '/nonexistent/g/' OPTIONS ('incremental.may_act' 'true')",
    "CREATE EXTERNAL TABLE g STORED AS CSV LOCATION '/nonexistent/g.csv' OPTIONS ('incremental.read_only' 'false')",
    "COPY (SELECT 1) TO '/nonexistent/x.csv' STORED AS CSV OPTIONS ('incremental.read_only' 'false')",
    "PREPARE g AS SELECT 1; EXECUTE g",
    "CREATE FUNCTION incremental_may_act() RETURNS BOOLEAN RETURN true",
    "INSERT INTO information_schema.df_settings VALUES ('incremental.read_only', 'false', '')",
    "UPDATE information_schema.df_settings SET value = 'false' WHERE name = 'incremental.read_only'",
];

#[tokio::test]
async fn a_gateway_without_leave_cannot_act_and_cannot_get_the_leave() {
    let world = World::with_tables().await;
    let ctx = gateway(&world, false).await;
    let mut statements = nothing_acts(&world, &ctx).await;
    for grant in GRANTS {
        // Whether it is refused or has no effect: what follows decides.
        let _ = code(&ctx, grant).await;
        for sql in ["REFRESH base", "SELECT * FROM incremental_refresh('base')", "CALL incremental.drop(base, true)"] {
            let found = code(&ctx, sql).await.map_err(|e| e.code());
            assert_eq!(found, Err(ErrorCode::ReadOnly), "{sql} after {grant}");
            statements += 1;
        }
    }
    statements += nothing_acts(&world, &ctx).await;
    println!("{statements} statements without leave, all READ_ONLY");
    assert_eq!(panics(), 0);
}

#[tokio::test]
async fn a_leave_that_was_taken_does_not_come_back() {
    let world = World::with_tables().await;
    let ctx = gateway(&world, true).await;
    code(&ctx, "SET incremental.read_only = TRUE").await.unwrap();
    let before = world.tree();
    for grant in GRANTS {
        let _ = code(&ctx, grant).await;
        assert_eq!(code(&ctx, "REFRESH base").await.map_err(|e| e.code()), Err(ErrorCode::ReadOnly), "after {grant}");
    }
    assert_eq!(code(&ctx, "SET incremental.read_only = false").await.map_err(|e| e.code()), Err(ErrorCode::ReadOnly));
    assert_eq!(world.tree(), before);
    nothing_acts(&world, &ctx).await;
}

/// A statement that was planned, or prepared, while the session might act does not act after the leave was taken.
#[tokio::test]
async fn what_was_planned_with_leave_does_not_act_without() {
    let world = World::with_tables().await;
    let ctx = gateway(&world, true).await;
    code(&ctx, "PREPARE p AS SELECT * FROM incremental_refresh('base')").await.unwrap();
    code(&ctx, "CREATE VIEW v AS SELECT * FROM incremental_refresh('base')").await.unwrap();
    let planned = ctx.sql("SELECT * FROM incremental_refresh('base')").await.unwrap();
    code(&ctx, "SET incremental.read_only = true").await.unwrap();
    let before = world.tree();
    for sql in ["EXECUTE p", "SELECT * FROM v"] {
        assert_eq!(code(&ctx, sql).await.map_err(|e| e.code()), Err(ErrorCode::ReadOnly), "{sql}");
    }
    // The data frame has the state that it was planned in: that is the host's own object, not a client's.
    drop(planned);
    assert_eq!(world.tree(), before);
}

/// The statements that plan a query, or define by it, and do not execute it.
fn planning(query: &str) -> Vec<String> {
    let name = format!("p{:x}", query.len());
    vec![
        format!("EXPLAIN {query}"),
        format!("EXPLAIN VERBOSE {query}"),
        format!("EXPLAIN FORMAT TREE {query}"),
        format!("PREPARE {name} AS {query}; DEALLOCATE {name}"),
        format!("CREATE OR REPLACE VIEW planned AS {query}; DESCRIBE planned"),
        format!("EXPLAIN INSERT INTO scratch SELECT CAST(count(*) AS VARCHAR) FROM ({query}) q"),
        format!("EXPLAIN COPY (SELECT count(*) AS n FROM ({query}) q) TO '/nonexistent/x.csv'"),
    ]
}

#[tokio::test]
async fn planning_leaves_the_store_byte_identical() {
    let world = World::with_tables().await;
    let ctx = gateway(&world, true).await;
    let before = world.tree();
    let mut statements = 0;
    for verb in VERBS.iter().filter(|verb| verb.acts) {
        for query in queries(&format!("{}({})", verb.function(), arguments(verb))) {
            for sql in planning(&query) {
                code(&ctx, &sql).await.unwrap_or_else(|e| panic!("{}: {e}", short(&sql)));
                statements += 1;
            }
            // Down to the physical plan, which is not executed.
            let plan = ctx.sql(&query).await.unwrap().create_physical_plan().await.unwrap();
            assert!(!displayable(plan.as_ref()).indent(false).to_string().is_empty());
        }
    }
    for sql in [
        "EXPLAIN REFRESH base",
        "REFRESH base DRY RUN",
        "REFRESH ALL DRY RUN",
        "SHOW CREATE TABLE base",
        "DESCRIBE base",
        "SHOW COLUMNS FROM base",
        "EXPLAIN SELECT * FROM base VERSION AS OF 1",
        "EXPLAIN ANALYZE SELECT * FROM base",
        "SELECT * FROM incremental_test('base', 'SELECT id, upper(v) AS u FROM input')",
        "SELECT * FROM incremental_explain_refresh('base')",
        "SELECT * FROM incremental_row('base', 1)",
        "SELECT * FROM incremental_tables()",
        "SELECT * FROM incremental_runs()",
        "SELECT * FROM incremental_versions('base')",
        "SELECT * FROM incremental_revisions('base')",
        "SELECT * FROM incremental_files('base')",
        "SELECT * FROM information_schema.tables",
        "EXPLAIN SELECT * FROM base GROUP BY id, v",
    ] {
        code(&ctx, sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        statements += 1;
    }
    assert_eq!(world.tree(), before, "planning wrote something");
    println!("{statements} planning and reading statements, {} files byte-identical", before.len());
    assert_eq!(panics(), 0);
}
