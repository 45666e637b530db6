//! Attack statements against the handler sandbox, each on every surface that takes a handler.

use std::time::{Duration, Instant};

use datafusion_incremental::ErrorCode;

use super::world::{World, panics, peak_mib, quoted, short};

/// What may be answered: the text is not even understood, or understood and not admitted.
const REFUSALS: &[ErrorCode] = &[ErrorCode::HandlerRefused, ErrorCode::StatementInvalid, ErrorCode::TypeUnsupported];
/// On two slow cores, in a debug build.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Refused whatever the options say: they read elsewhere, write, or exhaust.
fn attacks_on_any_table() -> Vec<String> {
    let mut attacks: Vec<String> = READS_ELSEWHERE.iter().chain(WRITES).chain(DROPPED_CLAUSES).map(|text| text.to_string()).collect();
    attacks.extend(exhausting());
    attacks
}

const READS_ELSEWHERE: &[&str] = &[
    // other tables, by every road
    "SELECT * FROM other",
    "SELECT id, (SELECT max(w) FROM other) AS o FROM input",
    "SELECT id, id IN (SELECT id FROM other) AS o FROM input",
    "SELECT id, EXISTS (SELECT 1 FROM other) AS o FROM input",
    "SELECT input.id, o.w FROM input JOIN other o ON o.id = input.id",
    "SELECT id FROM input WHERE id = ANY (SELECT id FROM other)",
    "WITH input AS (SELECT * FROM other) SELECT * FROM s",
    "WITH other AS (SELECT id, w FROM other) SELECT id, w FROM other",
    "WITH RECURSIVE x AS (SELECT id FROM input UNION ALL SELECT id FROM other) SELECT id FROM x",
    "WITH unused AS (SELECT * FROM other) SELECT id, v FROM input",
    "SELECT id, v FROM input UNION ALL SELECT id, w FROM other",
    "SELECT id, v FROM input EXCEPT SELECT id, w FROM other",
    "SELECT id FROM (SELECT * FROM (SELECT id FROM \"other\") a) b",
    "SELECT id FROM base",
    "SELECT id FROM s",
    "SELECT id, v FROM input ORDER BY (SELECT max(id) FROM other)",
    "SELECT id, v FROM input LIMIT (SELECT max(id) FROM other)",
    "SELECT id, sum(n) OVER (ORDER BY (SELECT max(id) FROM other)) AS o FROM input",
    "SELECT id, CASE WHEN n = 1 THEN (SELECT w FROM other LIMIT 1) END AS o FROM input",
    "SELECT id, array_transform(arr, x -> (SELECT max(id) FROM other)) AS o FROM input",
    "TABLE other",
    // names that shadow, qualify or quote
    "SELECT id FROM \"Input\"",
    "SELECT id FROM INPUT.input",
    "SELECT id FROM public.input",
    "SELECT id FROM datafusion.public.input",
    "SELECT id FROM datafusion.public.s",
    "SELECT id FROM \"input\"\"\"",
    "SELECT id FROM \"input \"",
    "SELECT id FROM `other`",
    "SELECT id FROM \"public.other\"",
    // the system's tables
    "SELECT table_name FROM information_schema.tables",
    "SELECT * FROM information_schema.df_settings",
    "SELECT * FROM information_schema.columns",
    "SELECT * FROM datafusion.information_schema.views",
    "SELECT * FROM pg_catalog.pg_class",
    // files and URLs
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM \"/etc/passwd\"",
    "SELECT * FROM 'file:///etc/hostname'",
    "SELECT * FROM 'https://example.invalid/x.csv'",
    "SELECT * FROM \"s3://bucket/x.parquet\"",
    "SELECT * FROM \"../secret.parquet\"",
    "SELECT * FROM 'x.parquet'",
    // table functions
    "SELECT value AS id FROM generate_series(1, 1000000000)",
    "SELECT value AS id FROM range(1, 1000000000)",
    "SELECT i.id FROM input i, LATERAL generate_series(1, i.id) g",
    "SELECT * FROM read_parquet('x.parquet')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM parquet_metadata('x.parquet')",
    "SELECT * FROM incremental_refresh('base')",
    "SELECT * FROM INCREMENTAL_REFRESH('base')",
    "SELECT * FROM incremental_drop('base', true)",
    "SELECT * FROM incremental_vacuum('base', false)",
    "SELECT * FROM incremental_at('base', 1)",
    "SELECT * FROM incremental_test('base', 'SELECT id FROM input')",
    "SELECT id, (SELECT count(*) FROM incremental_tables()) AS o FROM input",
    "SELECT * FROM TABLE(generate_series(1, 2))",
    "SELECT * FROM input PIVOT (max(n) FOR v IN ('a', 'b'))",
    "SELECT * FROM MATCH_RECOGNIZE(input)",
    "SELECT * FROM JSON_TABLE('[1]', '$[*]' COLUMNS (id INT PATH '$')) x",
    "SELECT * FROM OPENJSON('[1]')",
    // the session and its variables
    "SELECT id, $1 AS o FROM input",
    "SELECT id, $name AS o FROM input",
    "SELECT id, ? AS o FROM input",
    "SELECT id, @@version AS o FROM input",
    "SELECT id, @secret AS o FROM input",
];

const WRITES: &[&str] = &[
    "SELECT id, v FROM input; DROP TABLE s",
    "SELECT id, v FROM input; SELECT 1",
    "SELECT id, v FROM input /* ; */; -- the end\n DELETE FROM other",
    "INSERT INTO other SELECT id, v FROM input",
    "UPDATE other SET w = 'y'",
    "DELETE FROM other",
    "TRUNCATE TABLE other",
    "MERGE INTO other USING input ON other.id = input.id WHEN MATCHED THEN DELETE",
    "CREATE TABLE stolen AS SELECT * FROM input",
    "CREATE VIEW stolen AS SELECT * FROM input",
    "CREATE EXTERNAL TABLE stolen STORED AS CSV LOCATION '/etc/passwd'",
    "CREATE FUNCTION f(BIGINT) RETURNS BIGINT RETURN $1",
    "DROP TABLE other",
    "ALTER TABLE other ADD COLUMN x INT",
    "COPY input TO '/tmp/stolen.csv'",
    "COPY (SELECT * FROM input) TO 's3://bucket/stolen.csv'",
    "SET incremental.read_only = true",
    "SET datafusion.execution.batch_size = 1",
    "RESET datafusion.execution.batch_size",
    "SHOW ALL TABLES",
    "DESCRIBE other",
    "PREPARE p AS SELECT 1",
    "EXECUTE p (1)",
    "DEALLOCATE p",
    "EXPLAIN SELECT id, v FROM input",
    "EXPLAIN ANALYZE SELECT id, v FROM input",
    "CALL incremental.refresh(base)",
    "REFRESH base",
    "BEGIN TRANSACTION READ WRITE",
    "WITH x AS (DELETE FROM other) SELECT id, v FROM input",
    "WITH x AS (INSERT INTO other VALUES (2, 'y')) SELECT id, v FROM input",
    "WITH x AS (UPDATE other SET w = 'y') SELECT id, v FROM input",
    "SELECT id, v INTO stolen FROM input",
    "SELECT id, v INTO OUTFILE '/tmp/stolen' FROM input",
    "(DELETE FROM other)",
];

const DROPPED_CLAUSES: &[&str] = &[
    "SELECT id, v FROM input TABLESAMPLE (50 PERCENT)",
    "SELECT id, v FROM (SELECT * FROM input) x TABLESAMPLE SYSTEM (1)",
    "SELECT id, v FROM input VERSION AS OF 1",
    "SELECT id, v FROM input FOR VERSION AS OF 1",
    "SELECT id, v FROM input FOR TIMESTAMP AS OF '2026-01-01'",
    "SELECT id, v FROM input FOR SYSTEM_TIME AS OF '2026-01-01'",
    "SELECT id, v FROM input FOR UPDATE",
    "SELECT id, v FROM input SETTINGS x = 1",
    "SELECT id, v FROM input DISTRIBUTE BY id",
    "SELECT id, v FROM input |> WHERE id > 1",
    "SELECT TOP 1 id, v FROM input",
    "SELECT id, v FROM input WITH (NOLOCK)",
    "SELECT id, v FROM input PARTITION (p0)",
    "SELECT id, v FROM input LATERAL VIEW explode(arr) x AS y",
    "SELECT id, v FROM input START WITH id = 1 CONNECT BY PRIOR id = n",
];

/// Short texts that make much of little, and long ones.
fn exhausting() -> Vec<String> {
    let many = 12_000;
    let ctes = |first: &str, step: &str, last: &str| {
        let mut text = format!("WITH c0 AS ({first})");
        for n in 0..40 {
            text.push_str(&format!(", c{} AS ({})", n + 1, step.replace("#", &format!("c{n}"))));
        }
        format!("{text} {last}")
    };
    let select = |expr: String| format!("SELECT id, {expr} AS o FROM input");
    let mut attacks: Vec<String> = [
        "repeat('x', 2000000000)",
        "repeat('x', 1000 * 1000 * 1000)",
        "repeat(repeat('x', 60000), 60000)",
        "repeat(v, 1000 * 1000 * 1000)",
        "lpad('x', 2000000000, 'y')",
        "rpad(v, CAST('2000000000' AS BIGINT), 'y')",
        "array_repeat(1, 2000000000)",
        "list_repeat(list_repeat(1, 40000), 40000)",
        "range(0, 2000000000)",
        "generate_series(-2000000000, 0)",
        "array_resize([1], 2000000000, 0)",
        "replace(repeat('a', 60000), 'a', repeat('a', 60000))",
        "arrow_cast(NULL, 'FixedSizeBinary(2000000000)')",
    ]
    .into_iter()
    .map(|expr| select(expr.to_string()))
    .collect();
    attacks.extend([
        // deep
        select(vec!["n"; many].join(" + ")),
        select(vec!["n = 1"; many].join(" OR ")),
        select(vec!["v"; 1000].join(" || ")),
        select(format!("{}n{}", "(".repeat(many), ")".repeat(many))),
        select(format!("{}n{}", "abs(".repeat(many), ")".repeat(many))),
        select(format!("{}(n = 1)", "NOT ".repeat(many))),
        select(format!("{}n", "- ".repeat(many))),
        select(format!("n{}", "::bigint".repeat(many))),
        select(format!("(n = 1){}", " IS NULL".repeat(many))),
        select(format!("{}n{}", "CASE WHEN n = 1 THEN ".repeat(many), " END".repeat(many))),
        select(format!("arr{}", "[1]".repeat(many))),
        select(format!("CAST(NULL AS BIGINT{})", "[]".repeat(many))),
        select(format!("CAST(NULL AS BIGINT{})", "[]".repeat(100))),
        select(format!("CAST(NULL AS {}INT{})", "STRUCT<a ".repeat(many), ">".repeat(many))),
        select(format!("arrow_cast(NULL, '{}Int8{}')", "List(".repeat(many), ")".repeat(many))),
        select(format!("{}n{}", "struct(".repeat(many), ")".repeat(many))),
        select(format!("{}n{}", "[".repeat(many), "]".repeat(many))),
        format!("SELECT id, n FROM {}input{}", "(SELECT * FROM ".repeat(many), ")".repeat(many)),
        format!("SELECT id, n FROM {}input{}", "(".repeat(many), ")".repeat(many)),
        format!("SELECT id, {}1{} AS o FROM input", "(SELECT ".repeat(many), ")".repeat(many)),
        vec!["SELECT id, v FROM input"; 400].join(" UNION ALL "),
        vec!["SELECT id, v FROM input"; many].join(" UNION ALL "),
        format!("SELECT a0.id FROM input a0{}", (1..300).map(|n| format!(" JOIN input a{n} ON a{n}.id = a0.id")).collect::<String>()),
        format!("{}SELECT id, v FROM input", "EXPLAIN ".repeat(many)),
        // doubled by every line
        ctes("SELECT id, v AS x FROM input", "SELECT id, x || x AS x FROM #", "SELECT id, x FROM c40"),
        ctes("SELECT id, 'x' AS x FROM input", "SELECT id, x || x AS x FROM #", "SELECT id, x FROM c40"),
        ctes("SELECT id, n AS x FROM input", "SELECT id, struct(x, x) AS x FROM #", "SELECT id, x IS NULL AS o FROM c40"),
        ctes("SELECT id, n AS x FROM input", "SELECT id, [x, x] AS x FROM #", "SELECT id, x FROM c40"),
        ctes("SELECT id, n AS x FROM input", "SELECT id, x + x AS x FROM (SELECT * FROM #) q", "SELECT id, x FROM c40"),
        ctes("SELECT id FROM input", "SELECT a.id FROM # a JOIN # b ON a.id = b.id", "SELECT id FROM c40"),
        ctes("SELECT id FROM input", "SELECT id FROM # UNION ALL SELECT id FROM #", "SELECT id FROM c40"),
        // long
        select(format!("'{}'", "x".repeat(1_100_000))),
        select(format!("n IN ({})", vec!["1000000000"; 110_000].join(","))),
        format!("SELECT id{} FROM input", (0..12_000).map(|n| format!(", n AS c{n}")).collect::<String>()),
        format!("SELECT id, v FROM input {}", "/*".repeat(550_000)),
    ]);
    attacks
}

/// Refused where a handler may only look at its row.
const STRICT: &[&str] = &[
    "SELECT id, random() AS o FROM input",
    "SELECT id, CASE WHEN n = 1 THEN 1.0 ELSE random() END AS o FROM input",
    "SELECT id, upper(CAST(uuid() AS VARCHAR)) AS o FROM input",
    "SELECT id, coalesce(NULL, [struct(random())]) AS o FROM input",
    "WITH x AS (SELECT id, random() AS r FROM input) SELECT id, 1 AS o FROM x",
    "SELECT id, o FROM (SELECT id, now() AS o FROM input) x",
    "SELECT id, v IN (CAST(current_time AS VARCHAR)) AS o FROM input",
    "SELECT id, date_trunc('day', current_timestamp) AS o FROM input",
    "SELECT id, array_transform(arr, x -> x + CAST(random() AS BIGINT)) AS o FROM input",
    "SELECT id, (SELECT 1) AS o FROM input",
    "SELECT id, (SELECT i.n) AS o FROM input i",
    "SELECT id, n IN (SELECT n FROM input) AS o FROM input",
    "SELECT id, NOT EXISTS (SELECT 1 FROM input) AS o FROM input",
    "SELECT id, n = ALL (SELECT n FROM input) AS o FROM input",
    "SELECT id, ARRAY(SELECT n FROM input) AS o FROM input",
    "SELECT id, unnest(arr) AS o FROM input",
    "SELECT id, upper(unnest([v])) AS o FROM input",
    "SELECT id, x AS o FROM input, UNNEST(arr) u(x)",
    "SELECT id, x AS o FROM input CROSS JOIN LATERAL (SELECT input.n AS x) q",
    "SELECT id, v FROM (VALUES (1, 'a')) x(id, v)",
    "VALUES (1, 'a')",
    "SELECT 1 AS id, 'a' AS v",
    "SELECT id, v FROM input NATURAL JOIN input b",
    "SELECT id, v FROM input WHERE false",
    "SELECT id, v FROM input LIMIT 0",
    "SELECT id, v FROM input OFFSET 1",
    "SELECT id, v FROM input FETCH FIRST ROW ONLY",
    "SELECT DISTINCT id, v FROM input",
    "SELECT DISTINCT ON (id) id, v FROM input",
    "SELECT id, v FROM input GROUP BY ALL",
    "SELECT id, v FROM input GROUP BY GROUPING SETS ((id, v), ())",
    "SELECT id, max(v) AS v FROM input GROUP BY CUBE (id)",
    "SELECT id, v FROM input QUALIFY row_number() OVER (ORDER BY id) = 1",
    "SELECT id, count(*) OVER () AS o FROM input",
    "SELECT id, v FROM input ORDER BY random()",
    "SELECT * EXCLUDE (id) FROM input",
    "SELECT * EXCEPT (id) FROM input",
    "SELECT * REPLACE (n AS id) FROM input",
    "SELECT * RENAME (id AS key) FROM input",
    "SELECT *, * FROM input",
    "SELECT input.*, id + 1 AS id FROM input",
    "SELECT n AS id, v FROM input",
    "SELECT abs(id) AS id, v FROM input",
    "SELECT id, NULL AS o FROM input",
    "SELECT x.id, x.v FROM input AS x(v, id, n, arr)",
    "SELECT id AS \"ID\", v FROM input",
    "WITH RECURSIVE x AS (SELECT id, v FROM input UNION ALL SELECT id, v FROM x) SELECT id, v FROM x",
];

/// Every place that takes a handler.
fn surfaces(table: &str, text: &str) -> Vec<String> {
    let options = if table == "whole" { " WITH (incremental = false)" } else { "" };
    let incremental = if table == "whole" { ", 'incremental.incremental' 'false'" } else { "" };
    let in_statements = [
        format!("CREATE INCREMENTAL TABLE victim FROM s KEY (id) TRACK (v, n, arr){options} AS {text}"),
        format!("CREATE OR ALTER INCREMENTAL TABLE {table} FROM s KEY (id) TRACK (v, n, arr){options} AS {text}"),
        format!("ALTER INCREMENTAL TABLE {table} AS {text}"),
        format!("ALTER INCREMENTAL TABLE {table} DRAFT AS {text}"),
    ];
    let in_literals = [
        format!("SELECT * FROM incremental_test('{table}', {})", quoted(text)),
        format!("CALL incremental.test({table}, {})", quoted(text)),
        format!(
            "CREATE EXTERNAL TABLE victim STORED AS INCREMENTAL LOCATION 'LOCATION/' OPTIONS ('incremental.source' 's', \
             'incremental.key' 'id', 'incremental.track' 'v, n, arr', 'incremental.handler' {}{incremental})",
            quoted(text)
        ),
    ];
    // What follows a `;` there is the user's next statement, not the handler's.
    let split = text.contains(';');
    in_statements.into_iter().filter(|_| !split).chain(in_literals).collect()
}

/// Tries `attacks` on all surfaces of `table`; returns how many statements that were, and the slowest one.
async fn attack(world: &World, table: &str, attacks: &[String]) -> (usize, Duration) {
    let (mut statements, mut slowest) = (0, Duration::ZERO);
    let location = world.warehouse().join("by_location").display().to_string();
    let before = world.tree();
    for text in attacks {
        for surface in surfaces(table, text) {
            let start = Instant::now();
            let (code, message) = world.refused(&surface.replace("LOCATION/", &location)).await;
            let took = start.elapsed();
            assert!(REFUSALS.contains(&code), "{code} for {}: {}", short(&surface), short(&message));
            assert!(took < TIME_LIMIT, "{took:?} for {}", short(&surface));
            if took > Duration::from_secs(1) {
                println!("{took:?}: {}", short(&surface));
            }
            (statements, slowest) = (statements + 1, slowest.max(took));
        }
        assert_eq!(world.tree(), before, "something was written for {}", short(text));
    }
    (statements, slowest)
}

async fn report(world: &World, table: &str, what: &str, attacks: Vec<String>) {
    let (statements, slowest) = attack(world, table, &attacks).await;
    println!("{what}: {} attacks in {statements} statements refused, slowest {slowest:?}, peak {} MiB", attacks.len(), peak_mib());
    assert!(peak_mib() < 2048, "{} MiB", peak_mib());
    assert_eq!(panics(), 0, "something panicked");
    assert_eq!(world.ok("SELECT count(*) FROM other").await.len(), 1, "the other table was touched");
}

#[tokio::test]
async fn a_handler_reads_nothing_else_and_writes_nothing() {
    let world = World::with_tables().await;
    report(&world, "base", "incremental", attacks_on_any_table()).await;
    report(&world, "whole", "incremental = false", attacks_on_any_table()).await;
}

#[tokio::test]
async fn an_incremental_handler_only_looks_at_its_row() {
    let world = World::with_tables().await;
    report(&world, "base", "row by row", STRICT.iter().map(|text| text.to_string()).collect()).await;
    world.ok("SET datafusion.sql_parser.dialect = 'duckdb'").await;
    let lambdas = STRICT.iter().filter(|text| text.contains("->")).map(|text| text.to_string()).collect();
    report(&world, "base", "row by row, duckdb", lambdas).await;
}

/// The parser's limit is a setting; raising it must not bring the stack into reach.
#[tokio::test]
async fn raising_the_parsers_limit_does_not_help() {
    let world = World::with_tables().await;
    world.ok("SET datafusion.sql_parser.recursion_limit = 1000000").await;
    report(&world, "base", "recursion limit raised", exhausting()).await;
    for sql in [
        format!("SELECT {}1{}", "(".repeat(50_000), ")".repeat(50_000)),
        format!("SELECT {}", vec!["1"; 200_000].join("+")),
        format!("SELECT * FROM {}other{}", "(SELECT * FROM ".repeat(20_000), ") x".repeat(20_000)),
        format!("CREATE VIEW deep AS SELECT {}1", "- ".repeat(100_000)),
        format!("COPY (SELECT {}) TO 'x.csv'", vec!["1"; 200_000].join("+")),
        format!("{}REFRESH base", "EXPLAIN ".repeat(100_000)),
    ] {
        assert_eq!(world.refused(&sql).await.0, ErrorCode::StatementInvalid, "{}", short(&sql));
    }
    assert_eq!(panics(), 0);
}

/// What the sandbox must not take from honest handlers.
#[tokio::test]
async fn honest_handlers_of_some_size_are_admitted() {
    let world = World::with_tables().await;
    let branches: String = (0..2000).map(|n| format!(" WHEN n = {n} THEN 'value {n}'")).collect();
    let steps: String = (1..60).map(|n| format!(", c{n} AS (SELECT id, upper(x) AS x FROM c{})", n - 1)).collect();
    for (name, text) in [
        ("sum", format!("SELECT id, {} AS o FROM input", vec!["n"; 150].join(" + "))),
        ("wide", format!("SELECT id{} FROM input", (0..500).map(|n| format!(", n + {n} AS c{n}")).collect::<String>())),
        ("cases", format!("SELECT id, CASE{branches} END AS o FROM input")),
        ("steps", format!("WITH c0 AS (SELECT id, v AS x FROM input){steps} SELECT id, x FROM c59")),
        ("list", format!("SELECT id, n IN ({}) AS o FROM input", (0..5000).map(|n| n.to_string()).collect::<Vec<_>>().join(", "))),
        ("pad", "SELECT id, lpad(v, 20, '0') AS a, repeat(v, n) AS b, range(0, 10) AS c, replace(v, 'a', 'b') AS d FROM input".into()),
    ] {
        world.ok(&format!("CREATE INCREMENTAL TABLE {name} FROM s KEY (id) TRACK (v, n) AS {text}; REFRESH {name}")).await;
        assert_eq!(world.ok(&format!("SELECT * FROM {name}")).await.iter().map(|b| b.num_rows()).sum::<usize>(), 2, "{name}");
    }
}
