//! Corruption: objects with one other bit, or without their end.
//!
//! ```text
//! a table with four versions, deletion vectors, revisions, a draft, a cancelled and an unfinished run
//!   ├ metadata object ─ damaged ─► open, read, list, refresh        ─► the right rows, or CORRUPT / HISTORY_MISSING
//!   ├ index, vector   ─ damaged ─► read, refresh, compact           ─► the same
//!   └ data file       ─ damaged ─► read under verify = 'always'     ─► the same; under the default: counted
//! then REFRESH … FULL ─► the oracle, as the message says
//! ```
//!
//! `CORRUPTIONS` (2,000) damages for each of the three, from the seed `CORRUPT_SEED` (1).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion_incremental::env::{Clock, SeededIds};
use datafusion_incremental::{Error, ErrorCode};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::backing::Backing;
use super::case::On;
use super::clock::{EPOCH, TestClock, pass};
use super::world::{Process, ROOT, Rows, World, alone, in_parallel, number, oracle};

/// A healthy table that is damaged again and again.
struct Table {
    backing: Arc<Backing>,
    now: i64,
    source: Rows,
    /// The newest version's rows.
    shown: Rows,
    objects: Vec<(String, u64)>,
    /// Where the damaged copies are.
    on: On,
}

/// How an object is damaged.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Bit(u64),
    Cut(u64),
}

/// One damage of one object.
#[derive(Debug, Clone)]
struct Case {
    object: String,
    damage: Damage,
}

fn prepare(options: &str, handler: &str) -> Table {
    alone(|| async move {
        let clock = TestClock::at(EPOCH);
        let backing = Backing::memory(Arc::clone(&clock) as Arc<dyn Clock>);
        let world = World::new(Arc::clone(&backing), Arc::clone(&clock) as Arc<dyn Clock>, Arc::new(SeededIds::new(11)));
        let process = world.process().await;
        let source = |changed: i64| (0..24).filter(|id| *id != changed).map(|id| (id, format!("v{}", id * changed))).collect::<Rows>();
        world.source.set(source(1));
        let create = format!(
            "CREATE INCREMENTAL TABLE t FROM s KEY (id) TRACK (v) LOCATION '{ROOT}/t/' WITH (compaction = 'off', target_file_rows = 8, {options}) {handler}"
        );
        let script = [create.as_str(), "REFRESH t", "REFRESH t DRAFT RUN 'draft'"];
        for sql in script {
            process.sql(sql).await.unwrap();
        }
        let mut changed = source(1);
        for version in 2..=4 {
            changed.insert(version, format!("w{version}"));
            changed.insert(version + 8, format!("w{version}"));
            changed.remove(&(version + 16));
            world.source.set(changed.clone());
            process.sql("REFRESH t").await.unwrap();
        }
        world.service.fails.store(true, Ordering::SeqCst);
        changed.insert(5, "lost".to_string());
        world.source.set(changed.clone());
        let _ = process.sql("REFRESH t RUN 'sealed'").await; // a proven one publishes
        world.service.fails.store(false, Ordering::SeqCst);
        let _ = process.sql("CALL incremental.cancel('t', 'sealed')").await;
        let shown = process.select("SELECT id, o FROM t").await.unwrap();
        changed.insert(6, "next".to_string());
        changed.remove(&7);
        pass(std::time::Duration::from_secs(3600)).await;
        let objects = backing.listed().await.into_iter().collect();
        Table { backing, now: clock.now_micros(), source: changed, shown, objects, on: On::Memory }
    })
}

impl Table {
    /// The objects whose path one of `parts` is in, by kind, so that small kinds are damaged as often as large ones.
    fn cases(&self, count: u64, rng: &mut SmallRng, is: impl Fn(&str) -> bool) -> Vec<Case> {
        let objects: Vec<&(String, u64)> = self.objects.iter().filter(|(path, _)| is(path)).collect();
        assert!(!objects.is_empty());
        let cases = (0..count).map(|_| {
            let (object, bytes) = objects[rng.random_range(0..objects.len())];
            let damage =
                if rng.random_bool(0.75) { Damage::Bit(rng.random_range(0..bytes * 8)) } else { Damage::Cut(rng.random_range(0..*bytes)) };
            Case { object: object.clone(), damage }
        });
        cases.collect()
    }

    /// A process on the damaged table.
    async fn damaged(&self, case: &Case) -> World {
        let clock = TestClock::at(self.now);
        let backing = match self.on {
            On::Memory => self.backing.fork(Arc::clone(&clock) as Arc<dyn Clock>),
            On::Disk => self.backing.fork_to_disk(Arc::clone(&clock) as Arc<dyn Clock>).await,
        };
        let path = Path::from(case.object.as_str());
        let mut bytes = backing.store.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
        match case.damage {
            Damage::Bit(bit) => bytes[usize::try_from(bit / 8).unwrap()] ^= 1 << (bit % 8),
            Damage::Cut(end) => bytes.truncate(usize::try_from(end).unwrap()),
        }
        backing.store.put_opts(&path, bytes.into(), PutMode::Overwrite.into()).await.unwrap();
        let world = World::new(backing, clock as Arc<dyn Clock>, Arc::new(SeededIds::new(self.now.unsigned_abs())));
        world.source.set(self.source.clone());
        world
    }

    /// The rows, if reading them does not find the damage.
    fn check_rows(&self, read: Result<Rows, Error>, wanted: &Rows, what: &str) -> Result<bool, String> {
        match read {
            Ok(rows) if rows == *wanted => Ok(true),
            Ok(rows) => Err(format!("{what} gives wrong rows and says nothing: {rows:?}, not {wanted:?}")),
            Err(error) if is_found(&error) => Ok(false),
            Err(error) => Err(format!("{what} fails otherwise: {error}")),
        }
    }

    /// What the message says helps: everything anew.
    async fn mend(&self, world: &World, process: &Process, error: &Error) -> Result<(), String> {
        if !error.message().contains("FULL") {
            return Ok(());
        }
        let full = process.sql("REFRESH t FULL").await;
        full.map_err(|e| format!("the remedy of {error} does not help: {e}"))?;
        let rows = process.select("SELECT id, o FROM t").await.map_err(|e| format!("after the remedy: {e}"))?;
        if rows == oracle(&world.source.rows()) { Ok(()) } else { Err(format!("after the remedy: {rows:?}")) }
    }
}

fn is_found(error: &Error) -> bool {
    let named = error.message().contains("Remedy");
    named && matches!(error.code(), ErrorCode::Corrupt | ErrorCode::HistoryMissing | ErrorCode::DefinitionMismatch)
}

fn is_metadata(path: &str) -> bool {
    path.ends_with(".json")
}

/// The most memory that this process ever had, in bytes; what a damaged length asks for must not be reserved.
#[cfg(target_os = "linux")]
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the process has a status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).and_then(|text| text.split_whitespace().next());
    peak.and_then(|kilobytes| kilobytes.parse::<u64>().ok()).expect("a peak") << 10
}

#[cfg(not(target_os = "linux"))]
fn peak_memory() -> u64 {
    0
}

fn report(what: &str, total: usize, failures: &[(Case, String)]) {
    let peak = peak_memory() >> 20;
    println!("{what}: {total} damages, {} failures, peak memory {peak} MiB", failures.len());
    assert!(peak < 1024, "{peak} MiB");
    for (case, failure) in failures {
        println!("--- {case:?}: {failure}");
    }
    assert!(failures.is_empty(), "{} of {total} damages of {what}", failures.len());
}

const UPPER: &str = "AS SELECT id, upper(v) AS o FROM input";
const UP: &str = "HANDLER 'up'";

fn rng() -> SmallRng {
    SmallRng::seed_from_u64(number("CORRUPT_SEED", 1))
}

/// Opens, reads, lists and refreshes a table with a damaged metadata object.
async fn open_and_use(table: &Table, case: &Case, found: &AtomicU64) -> Result<(), String> {
    let world = table.damaged(case).await;
    let process = world.process().await;
    match process.attach("t").await {
        Ok(true) => {}
        Ok(false) => return Err("the table is gone and nothing is said".to_string()),
        Err(error) if is_found(&error) => {
            found.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
        Err(error) => return Err(format!("opening fails otherwise: {error}")),
    }
    table.check_rows(process.select("SELECT id, o FROM t").await, &table.shown, "reading")?;
    for list in ["runs", "versions", "revisions", "files"] {
        match process.sql(&format!("SELECT * FROM incremental_{list}('t')")).await {
            Ok(_) => {}
            Err(error) if is_found(&error) => drop(found.fetch_add(1, Ordering::SeqCst)),
            Err(error) => return Err(format!("listing {list} fails otherwise: {error}")),
        }
    }
    let Err(error) = process.sql("REFRESH t").await else {
        let read = process.select("SELECT id, o FROM t").await.map_err(|e| format!("after a refresh: {e}"))?;
        return if read == oracle(&table.source) { Ok(()) } else { Err(format!("after a refresh: {read:?}")) };
    };
    if !is_found(&error) {
        return Err(format!("a refresh fails otherwise: {error}"));
    }
    found.fetch_add(1, Ordering::SeqCst);
    table.mend(&world, &process, &error).await
}

#[test]
fn corruption_of_metadata_is_found_or_harmless() {
    let tables = [prepare("verify = 'metadata'", UP), prepare("verify = 'metadata'", UPPER)];
    let (mut rng, found) = (rng(), AtomicU64::new(0));
    let mut cases = vec![];
    for (at, table) in tables.iter().enumerate() {
        let all = table.cases(number("CORRUPTIONS", 2000) / 2, &mut rng, is_metadata);
        cases.extend(all.into_iter().map(|case| (at, case)));
    }
    let total = cases.len();
    let failures = in_parallel(cases, 10, |(at, case)| alone(|| open_and_use(&tables[*at], case, &found)));
    println!("metadata: {} statements met the damage", found.into_inner());
    report("metadata", total, &failures.into_iter().map(|((_, case), failure)| (case, failure)).collect::<Vec<_>>());
}

/// Whether the path is of the newest version's index files or deletion vectors, or of an older one's.
fn is_index_or_vector(path: &str) -> bool {
    path.ends_with(".index.parquet") || path.ends_with(".dv")
}

fn is_data(path: &str) -> bool {
    path.contains("/data/") && path.ends_with(".parquet") && !path.ends_with(".index.parquet")
}

/// Reads, refreshes and compacts a table with a damaged file.
async fn use_all(table: &Table, case: &Case, found: &AtomicU64) -> Result<(), String> {
    let world = table.damaged(case).await;
    let process = world.process().await;
    process.attach("t").await.map_err(|e| format!("opening: {e}"))?;
    if !table.check_rows(process.select("SELECT id, o FROM t").await, &table.shown, "reading")? {
        found.fetch_add(1, Ordering::SeqCst);
    }
    let error = match process.sql("CALL incremental.compact('t')").await {
        Ok(_) => process.sql("REFRESH t").await.err(),
        Err(error) => Some(error),
    };
    let Some(error) = error else {
        let read = process.select("SELECT id, o FROM t").await;
        return match table.check_rows(read, &oracle(&table.source), "reading after a refresh")? {
            true => Ok(()),
            false => Err("a refresh publishes what cannot be read".to_string()),
        };
    };
    if !is_found(&error) {
        return Err(format!("compaction or refresh fails otherwise: {error}"));
    }
    found.fetch_add(1, Ordering::SeqCst);
    // Compaction may have failed where a refresh does not look.
    match process.sql("REFRESH t").await {
        Err(error) if is_found(&error) => table.mend(&world, &process, &error).await,
        Err(error) => Err(format!("a refresh fails otherwise: {error}")),
        Ok(_) => table.check_rows(process.select("SELECT id, o FROM t").await, &oracle(&table.source), "reading at last").map(drop),
    }
}

#[test]
fn corruption_of_indexes_and_vectors_is_found_or_harmless() {
    let (mut rng, found) = (rng(), AtomicU64::new(0));
    let tables = [prepare("verify = 'metadata'", UP), prepare("verify = 'metadata'", UPPER)];
    let mut cases = vec![];
    for (at, table) in tables.iter().enumerate() {
        cases.extend(table.cases(number("CORRUPTIONS", 2000) / 2, &mut rng, is_index_or_vector).into_iter().map(|case| (at, case)));
    }
    let total = cases.len();
    let failures = in_parallel(cases, 10, |(at, case)| alone(|| use_all(&tables[*at], case, &found)));
    println!("indexes and vectors: {} statements met the damage", found.into_inner());
    report("indexes and vectors", total, &failures.into_iter().map(|((_, case), failure)| (case, failure)).collect::<Vec<_>>());
}

#[test]
fn corruption_of_data_is_found_or_harmless_when_always_verified() {
    let (mut rng, found) = (rng(), AtomicU64::new(0));
    let table = prepare("verify = 'always'", UPPER);
    let cases = table.cases(number("CORRUPTIONS", 2000), &mut rng, is_data);
    let total = cases.len();
    let failures = in_parallel(cases, 10, |case| alone(|| use_all(&table, case, &found)));
    println!("data, always verified: {} statements met the damage", found.into_inner());
    report("data, always verified", total, &failures);
}

/// The local disk reads in other ways than a store in memory does.
#[test]
fn corruption_on_the_local_disk_is_found_or_harmless() {
    let (mut rng, found) = (rng(), AtomicU64::new(0));
    let table = Table { on: On::Disk, ..prepare("verify = 'always'", UPPER) };
    let count = number("CORRUPTIONS", 2000) / 20;
    let files = table.cases(count, &mut rng, |path| is_data(path) || is_index_or_vector(path));
    let records = table.cases(count, &mut rng, is_metadata);
    let total = files.len() + records.len();
    let mut failures = in_parallel(files, 10, |case| alone(|| use_all(&table, case, &found)));
    failures.extend(in_parallel(records, 10, |case| alone(|| open_and_use(&table, case, &found))));
    println!("on the local disk: {} statements met the damage", found.into_inner());
    report("on the local disk", total, &failures);
}

/// What the default leaves unchecked: no panic, and the count of answers that were wrong without a word.
#[test]
fn corruption_of_data_by_default_is_counted() {
    let (mut rng, wrong, found) = (rng(), AtomicU64::new(0), AtomicU64::new(0));
    let table = prepare("verify = 'metadata'", UPPER);
    let cases = table.cases(number("CORRUPTIONS", 2000) / 4, &mut rng, is_data);
    let total = cases.len();
    let failures = in_parallel(cases, 10, |case| {
        alone(|| async {
            let world = table.damaged(case).await;
            let process = world.process().await;
            process.attach("t").await.map_err(|e| format!("opening: {e}"))?;
            match process.select("SELECT id, o FROM t").await {
                Ok(rows) if rows == table.shown => {}
                Ok(_) => drop(wrong.fetch_add(1, Ordering::SeqCst)),
                Err(_) => drop(found.fetch_add(1, Ordering::SeqCst)),
            }
            Ok(())
        })
    });
    println!("data by default: {} errors, {} wrong answers", found.into_inner(), wrong.into_inner());
    report("data by default", total, &failures);
}
