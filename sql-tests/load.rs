//! One table refreshed 500 times, with compactions and vacuums, while readers query without pause: no wrong or torn read,
//! no leaked memory or file handle.
//!
//! ```text
//! version n: every row of `s` holds n and a weight; all weights together are a known function of n
//! reader     sum, count and versions seen in one statement ─► must be those of one version, and never an older one again
//! ```
//!
//! `LOAD_REFRESHES` sets how many (CI: 500).

#![allow(clippy::disallowed_methods)] // times are measured, readers run beside each other

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use datafusion_incremental::ErrorCode;
use datafusion_incremental::context::IncrementalSession;
use futures::future::join_all;

const READERS: usize = 8;
const ROWS: i64 = 400;
/// Of each version, so many rows have another value than in the version before.
const CHANGED: i64 = 40;

/// The state of row `id` after step `n`: the last step that wrote it.
fn step_of(id: i64, n: i64) -> i64 {
    // Step k rewrites the rows k * CHANGED .. (k + 1) * CHANGED, modulo ROWS.
    let turn = ROWS / CHANGED;
    (0..turn).map(|back| n - back).find(|step| *step >= 1 && (id / CHANGED) == step.rem_euclid(turn)).unwrap_or(0)
}

fn source(n: i64) -> String {
    let turn = ROWS / CHANGED;
    // The newest step not above n that is congruent to the row's block.
    format!(
        "CREATE OR REPLACE VIEW s AS SELECT id, {n} AS version, \
         greatest(0, {n} - (({n} - id / {CHANGED}) % {turn} + {turn}) % {turn}) AS step \
         FROM (SELECT value AS id FROM generate_series(0, {last})) g",
        last = ROWS - 1
    )
}

fn expected(n: i64) -> i64 {
    (0..ROWS).map(|id| step_of(id, n) * 1000 + id).sum()
}

fn number(batch: &RecordBatch, column: usize) -> i64 {
    arrow::compute::cast(batch.column(column), &arrow_schema::DataType::Int64).unwrap().as_primitive::<Int64Type>().value(0)
}

async fn one(session: &IncrementalSession, sql: &str) -> Result<RecordBatch, datafusion_incremental::Error> {
    Ok(session.sql(sql).await?.pop().unwrap().batches.into_iter().find(|batch| batch.num_rows() > 0).unwrap())
}

#[derive(Debug, Clone, Copy)]
struct Usage {
    kib: u64,
    files: usize,
    threads: usize,
}

fn usage() -> Usage {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0);
    let files = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count());
    Usage { kib: field("VmRSS:"), files, threads: field("Threads:") as usize }
}

struct Shared {
    session: IncrementalSession,
    stop: AtomicBool,
    /// The newest step that is certainly published.
    published: AtomicU64,
}

/// Reads the newest version over and over; returns the latencies.
async fn read_newest(shared: Arc<Shared>) -> Vec<Duration> {
    let (mut latencies, mut seen) = (vec![], 0_i64);
    while !shared.stop.load(Ordering::SeqCst) {
        let least = shared.published.load(Ordering::SeqCst) as i64;
        let start = Instant::now();
        let batch = one(
            &shared.session,
            "SELECT count(*), sum(a.step * 1000 + a.id), max(a.step), sum(b.step * 1000 + b.id), count(DISTINCT a.id) FROM t a JOIN t b ON a.id = b.id",
        )
        .await
        .unwrap_or_else(|e| panic!("a reader failed: {e}"));
        latencies.push(start.elapsed());
        let (rows, sum, step, other) = (number(&batch, 0), number(&batch, 1), number(&batch, 2), number(&batch, 3));
        assert_eq!((rows, number(&batch, 4)), (ROWS, ROWS), "rows are lost or doubled at step {step}");
        assert_eq!(sum, other, "one statement saw two versions");
        assert_eq!(sum, expected(step), "a torn read at step {step}");
        assert!(step >= seen && step >= least, "a reader went back from {seen} (published: {least}) to {step}");
        seen = step;
    }
    latencies
}

/// Reads pinned versions; one that vacuum removed says so. Returns how many were read, and how many were gone.
async fn read_pinned(shared: Arc<Shared>) -> (u64, u64) {
    let (mut read, mut gone, mut turn) = (0, 0, 0_u64);
    while !shared.stop.load(Ordering::SeqCst) {
        let newest = one(&shared.session, "SELECT max(version) FROM incremental_versions('t')").await.unwrap();
        let version = (number(&newest, 0) - (turn % 5) as i64).max(1);
        turn += 1;
        match one(&shared.session, &format!("SELECT count(*), sum(step * 1000 + id), max(step) FROM t VERSION AS OF {version}")).await {
            Ok(batch) => {
                assert_eq!((number(&batch, 0), number(&batch, 1)), (ROWS, expected(number(&batch, 2))), "version {version} is torn");
                read += 1;
            }
            Err(e) => {
                assert_eq!(e.code(), ErrorCode::HistoryMissing, "{e}");
                gone += 1;
            }
        }
    }
    (read, gone)
}

fn percentiles(what: &str, mut latencies: Vec<Duration>) {
    latencies.sort();
    let at = |part: f64| latencies.get(((latencies.len() as f64 - 1.0) * part) as usize).copied().unwrap_or_default();
    println!("{what}: {} in all, p50 {:?}, p99 {:?}, max {:?}", latencies.len(), at(0.5), at(0.99), at(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_whole_versions_while_the_table_is_refreshed() {
    let refreshes: i64 = std::env::var("LOAD_REFRESHES").ok().and_then(|text| text.parse().ok()).unwrap_or(500);
    let folder = tempfile::tempdir().unwrap();
    let session = IncrementalSession::builder().with_root(folder.path().display().to_string()).build().await.unwrap();
    session.sql(&source(1)).await.unwrap();
    session
        .sql("CREATE INCREMENTAL TABLE t FROM s KEY (id) TRACK (step) WITH (compaction_max_files = 12, older_than = '1 s') AS SELECT id, step FROM input; REFRESH t")
        .await
        .unwrap();
    let shared = Arc::new(Shared { session: session.clone(), stop: AtomicBool::new(false), published: AtomicU64::new(1) });
    let readers: Vec<_> = (0..READERS).map(|_| tokio::spawn(read_newest(Arc::clone(&shared)))).collect();
    let pinned = tokio::spawn(read_pinned(Arc::clone(&shared)));
    let (mut latencies, mut early, mut vacuums) = (vec![], None, 0);
    for n in 2..=refreshes {
        session.sql(&source(n)).await.unwrap();
        let start = Instant::now();
        session.sql("REFRESH t").await.unwrap_or_else(|e| panic!("refresh {n}: {e}"));
        latencies.push(start.elapsed());
        shared.published.store(n as u64, Ordering::SeqCst);
        if n % 25 == 0 {
            session.sql("CALL incremental.vacuum(t, dry_run => false)").await.unwrap_or_else(|e| panic!("vacuum at {n}: {e}"));
            vacuums += 1;
        }
        // Caches, pools and the allocator have their size by then.
        if n == refreshes / 4 {
            early = Some(usage());
        }
    }
    let late = usage();
    shared.stop.store(true, Ordering::SeqCst);
    let reads: Vec<Duration> = join_all(readers).await.into_iter().flat_map(|reader| reader.unwrap()).collect();
    let (old, gone) = pinned.await.unwrap();
    let compactions =
        one(&session, "SELECT count(*) FROM incremental_versions('t')").await.map(|batch| number(&batch, 0) - refreshes).unwrap();
    percentiles("refreshes", latencies);
    percentiles("reads", reads);
    println!(
        "{old} reads of pinned versions, {gone} of versions that vacuum had removed; {compactions} compactions and fences, {vacuums} vacuums"
    );
    let early = early.unwrap();
    println!("after a quarter {early:?}, at the end {late:?}");
    assert!(compactions > 0, "nothing was compacted");
    if early.kib > 0 {
        assert!(late.kib < early.kib + early.kib / 2 + 64 * 1024, "memory grew from {early:?} to {late:?}");
        assert!(late.files < early.files + 64, "file handles grew from {early:?} to {late:?}");
        assert!(late.threads < early.threads + 64, "threads grew from {early:?} to {late:?}");
    }
}
