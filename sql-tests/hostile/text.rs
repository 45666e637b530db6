//! The parser, the version clauses and the options under random mutations.
//!
//! `MUTATIONS` sets how many (CI: 1,000,000), `MUTATION_SEED` where they begin; a failure names the seed to begin with.

use datafusion::config::SqlParserOptions;
use datafusion_incremental::ErrorCode;
use datafusion_incremental::redact;
use datafusion_incremental::spec::{Options, RunId, encode_name};
use datafusion_incremental::sql::{parse, parse_table_name, quote_name};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::world::{count_panics, peak_mib, short};

const MUTATIONS: u64 = 1_000_000;

/// Every form of every statement of ours, version clauses in every place, and what surrounds them.
const STATEMENTS: &[&str] = &[
    "CREATE OR ALTER INCREMENTAL TABLE c.s.\"My T\" FROM \"S\" KEY (id, \"Two Words\") TRACK (*) LOCATION 's3://b/ö' WITH (verify = 'always', capture_retries = 3) AS SELECT id, upper(v) AS u FROM input",
    "CREATE INCREMENTAL TABLE IF NOT EXISTS t FROM s KEY (id) HANDLER 'it''s' TRACK ()",
    "ALTER INCREMENTAL TABLE t IF REVISION 3 DRAFT KEY (a) TRACK (c) SET (verify = always) RESET (compaction) ACCEPT SCHEMA AS SELECT a FROM input",
    "ALTER INCREMENTAL TABLE t IF REVISION 4 ACTIVATE REVISION 2",
    "DROP INCREMENTAL TABLE IF EXISTS t PURGE; SHOW CREATE TABLE t; EXPLAIN REFRESH t",
    "REFRESH t, u FULL RUN 'r-1' ALLOW DELETES; REFRESH ALL DRY RUN; REFRESH t DRAFT",
    "CALL incremental.vacuum(t, dry_run => FALSE, older_than => '7 days'); CALL incremental.row('t', -1, X'0aff', DATE '2026-01-31', NULL)",
    "SELECT a.*, b.id FROM t VERSION AS OF 3 a JOIN s.\"T\" FOR VERSION AS OF 4 AS b ON a.id = b.id WHERE a.id IN (SELECT id FROM t TIMESTAMP AS OF '2026-01-31T12:00:00Z')",
    "WITH x AS (SELECT * FROM t FOR TIMESTAMP AS OF '2026-01-31') SELECT version AS of, timestamp AS of FROM x UNION ALL SELECT 1, 2 FROM t VERSION AS OF 1",
    "COPY t VERSION AS OF 3 TO 'x.csv'; INSERT INTO u SELECT * FROM t VERSION AS OF 2; CREATE VIEW v AS SELECT * FROM t VERSION AS OF 1",
    "EXPLAIN ANALYZE SELECT * FROM incremental_at('t', 1), incremental_refresh('t') -- ; comment\n /* ; /* nested */ */; SET a.b = 'c'",
    "CREATE EXTERNAL TABLE t (id BIGINT) STORED AS INCREMENTAL LOCATION 'x/' OPTIONS ('incremental.source' 's', 'incremental.key' 'id', 'incremental.handler' 'SELECT id FROM input')",
    "SELECT $$ ; $$, E'\\n', N'x', U&'\\0041', b'x', 'a''b', \"q\"\"q\", `t`, [1, 2], {'a': 1}, a::int, -1e5, .5, 0x1f, $1, ?, @x",
];

const WORDS: &[&str] = &[
    "VERSION",
    "AS",
    "OF",
    "FOR",
    "TIMESTAMP",
    "SYSTEM_TIME",
    "INCREMENTAL",
    "TABLE",
    "REFRESH",
    "CALL",
    "KEY",
    "TRACK",
    "WITH",
    "(",
    ")",
    ",",
    ";",
    ".",
    "'",
    "\"",
    "`",
    "$$",
    "/*",
    "*/",
    "--",
    "\n",
    "\0",
    "ü",
    "😀",
    "\u{202e}",
    "=>",
    "=",
    "::",
    "[",
    "]",
    "{",
    "}",
    "*",
    "-",
    "18446744073709551616",
    "-1",
    "1e999",
    "NULL",
    "SELECT",
    "FROM",
    "(SELECT",
    "EXPLAIN",
    "NOT",
    "CASE",
    "END",
    "UNION",
    "E'",
    "U&'",
    "X'",
    "\\",
    "?",
    "$1",
    ":x",
    "@",
];

const OPTIONS: &[(&str, &str)] = &[
    ("verify", "always"),
    ("max_deleted_fraction", "0.5"),
    ("older_than", "7 days"),
    ("compression", "zstd(3)"),
    ("capture_backoff", "1 s"),
    ("incremental.fingerprint", "blake3"),
    ("capture_retries", "2"),
    ("target_file_rows", "4000000"),
    ("compaction", "auto"),
    ("file_skip", "TRUE"),
];

fn mutate(rng: &mut SmallRng, text: &str, words: &[&str]) -> String {
    let mut text: Vec<char> = text.chars().collect();
    for _ in 0..rng.random_range(1..=4) {
        let at = rng.random_range(0..=text.len());
        let end = (at + rng.random_range(1..=12)).min(text.len());
        match rng.random_range(0..6) {
            0 => drop(text.drain(at..end)),
            1 => drop(text.splice(at..at, text.get(at..end).unwrap_or_default().to_vec())),
            2 => drop(text.splice(at..end, words[rng.random_range(0..words.len())].chars())),
            3 => drop(text.splice(at..at, format!(" {} ", words[rng.random_range(0..words.len())]).chars())),
            4 => drop(text.splice(at..at, char::from_u32(rng.random_range(0..0x11_0000)))),
            _ => text.truncate(at),
        }
    }
    text.into_iter().collect()
}

/// One mutation, through everything that reads such a text. Whether it was understood.
fn round(seed: u64, settings: &[SqlParserOptions]) -> bool {
    let mut rng = SmallRng::seed_from_u64(seed);
    let settings = &settings[rng.random_range(0..settings.len())];
    match rng.random_range(0..8) {
        0 => {
            let mut pairs = vec![];
            for _ in 0..rng.random_range(1..3) {
                let (name, value) = OPTIONS[rng.random_range(0..OPTIONS.len())];
                let name = if rng.random_bool(0.1) { mutate(&mut rng, name, WORDS) } else { name.to_string() };
                pairs.push((name, mutate(&mut rng, value, WORDS)));
            }
            let options = Options::parse("t", pairs);
            options.is_ok_and(|options| options.operational("t").is_ok() && options.semantic("t").is_ok())
        }
        1 => {
            let name = mutate(&mut rng, "Cat.s.\"My.Table\"", WORDS);
            let encoded = encode_name(&name);
            assert!(encoded.len() < 200 && encoded.is_ascii() && !encoded.contains(['/', '\\', '%', '.', '\0']), "{encoded}");
            let _ = RunId::new(name.as_str());
            let _ = redact::without_credentials(&name);
            match parse_table_name(&name) {
                Ok(parsed) => {
                    assert_eq!(parse_table_name(&quote_name(&parsed)).ok(), Some(parsed));
                    true
                }
                Err(e) => e.code() != ErrorCode::StatementInvalid,
            }
        }
        _ => {
            let statement = STATEMENTS[rng.random_range(0..STATEMENTS.len())];
            let text = mutate(&mut rng, statement, WORDS);
            let _ = redact::holds_secret(&text);
            match parse(&text, settings) {
                Ok(_) => true,
                Err(e) => {
                    assert!(
                        matches!(e.code(), ErrorCode::StatementInvalid | ErrorCode::HandlerRefused | ErrorCode::OptionUnknown),
                        "{e}: {}",
                        short(&text)
                    );
                    false
                }
            }
        }
    }
}

fn settings() -> Vec<SqlParserOptions> {
    use datafusion::config::Dialect;
    let dialects = [
        Dialect::Generic,
        Dialect::PostgreSQL,
        Dialect::DuckDB,
        Dialect::MySQL,
        Dialect::Databricks,
        Dialect::BigQuery,
        Dialect::Snowflake,
    ];
    dialects.into_iter().map(|dialect| SqlParserOptions { dialect, ..SqlParserOptions::default() }).collect()
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn the_parser_survives_random_mutations() {
    count_panics();
    let (count, first) = (setting("MUTATIONS", MUTATIONS), setting("MUTATION_SEED", 0));
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get() as u64);
    let understood = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                scope.spawn(move || {
                    let settings = settings();
                    let mut understood = 0_u64;
                    for seed in (first + worker..first + count).step_by(threads as usize) {
                        let outcome = std::panic::catch_unwind(|| round(seed, &settings));
                        understood += u64::from(outcome.unwrap_or_else(|_| panic!("replay with MUTATION_SEED={seed} MUTATIONS=1")));
                    }
                    understood
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum::<u64>()
    });
    println!("{count} mutations of texts, {understood} still understood, peak {} MiB", peak_mib());
    assert!(peak_mib() < 2048);
}
