//! Real processes on the local disk that die, that meet a limit on the size of files, or that are two.
//!
//! `KILLS` (200) is how many are killed, from the seed `KILL_SEED` (1). The longer run:
//!
//! ```text
//! KILLS=1000 cargo test --features cli --test faults kills:: -- --nocapture
//! ```

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use datafusion_incremental::ErrorCode;
use datafusion_incremental::env::{Clock, SystemClock};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::shell::{Folder, assert_done, told};
use super::world::{Rows, Seen, in_parallel, number, oracle};

const PROVEN: &str = "AS SELECT id, upper(v) AS o FROM input";
/// Not proven: its capture is sealed before it runs.
const SEALED: &str = "AS SELECT id, concat(upper(v), substr(CAST(random() AS VARCHAR), 1, 0)) AS o FROM input";

fn definition(number: u64) -> String {
    let compaction = if number.is_multiple_of(3) { "compaction_max_files = 2" } else { "compaction = 'off'" };
    let (more, handler) = if number.is_multiple_of(2) { ("", PROVEN) } else { (", allow_volatile = true", SEALED) };
    format!("KEY (id) WITH ({compaction}, target_file_rows = 40{more}) {handler}")
}

/// Runs a future with a deep stack, in real time.
fn block<T: Send>(future: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let run = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future);
        let thread = std::thread::Builder::new().stack_size(32 << 20).spawn_scoped(scope, run).expect("a thread");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn edit(rows: &mut Rows, rng: &mut SmallRng) {
    for _ in 0..rng.random_range(1..8) {
        let id = rng.random_range(0..150);
        if rng.random_bool(0.3) {
            rows.remove(&id);
        } else {
            rows.insert(id, format!("v{}", rng.random_range(0..1000)));
        }
    }
}

/// One table whose processes are killed again and again.
struct Victim {
    folder: Folder,
    rows: Rows,
    rng: SmallRng,
    /// How long a process lives that is left alone.
    lifetime: Duration,
}

#[derive(Debug, Default)]
struct Counts {
    killed: AtomicU64,
    interrupted: AtomicU64,
    answered: AtomicU64,
    published: AtomicU64,
    unnamed: AtomicU64,
}

impl Victim {
    fn new(number: u64, rng: SmallRng) -> Self {
        let rows: Rows = (0..100).map(|id| (id, format!("v{id}"))).collect();
        let folder = Folder::with_table(&rows, &definition(number));
        let mut this = Self { folder, rows, rng, lifetime: Duration::ZERO };
        edit(&mut this.rows, &mut this.rng);
        this.folder.set_source(&this.rows);
        let clock = SystemClock::default();
        assert_done(&this.folder.shell("REFRESH t").output().expect("the shell runs"));
        this.lifetime = clock.elapsed();
        this
    }

    fn act(&mut self, before: &Seen) -> String {
        match self.rng.random_range(0..10) {
            0 => "REFRESH t FULL".to_string(),
            1 => "CALL incremental.compact('t')".to_string(),
            2 => "CALL incremental.vacuum('t', dry_run => false, older_than => '0 s')".to_string(),
            3 => format!("CALL incremental.rollback('t', version => {})", self.rng.random_range(1..=before.newest())),
            _ => "REFRESH t".to_string(),
        }
    }

    /// Starts a process, and kills it at a random moment, or interrupts it.
    fn kill(&mut self, sql: &str, counts: &Counts) -> Output {
        let mut process = self.folder.shell(sql).spawn().expect("the shell runs");
        let most = u64::try_from(self.lifetime.as_micros()).unwrap_or(u64::MAX);
        std::thread::sleep(Duration::from_micros(self.rng.random_range(0..most * 11 / 10)));
        if self.rng.random_bool(0.25) {
            let asked = Command::new("kill").arg("-INT").arg(process.id().to_string()).status();
            // It may have ended by itself.
            counts.interrupted.fetch_add(u64::from(asked.is_ok_and(|status| status.success())), Ordering::SeqCst);
        } else {
            process.kill().expect("it is our process");
        }
        let output = process.wait_with_output().expect("its output");
        counts.killed.fetch_add(u64::from(output.status.signal() == Some(9)), Ordering::SeqCst);
        counts.answered.fetch_add(u64::from(output.status.success()), Ordering::SeqCst);
        output
    }

    /// One process, what is there afterwards, and sometimes the next one, which is left alone.
    async fn round(&mut self, counts: &Counts) -> Result<(), String> {
        let before = self.folder.look().await.map_err(|e| format!("before: {e}"))?;
        edit(&mut self.rows, &mut self.rng);
        self.folder.set_source(&self.rows);
        let sql = self.act(&before);
        let output = self.kill(&sql, counts);
        let after = self.folder.look().await.map_err(|e| format!("{sql} left a table that cannot be read: {e}"))?;
        self.check(&sql, &before, &after, &output)?;
        counts.published.fetch_add(after.newest() - before.newest(), Ordering::SeqCst);
        self.folder.age(60);
        if self.rng.random_bool(0.5) {
            let session = self.folder.session().await;
            session.sql("REFRESH t").await.map_err(|e| format!("after {sql}: {e}"))?;
            let shown = self.folder.look().await.map_err(|e| e.to_string())?;
            if shown.rows() != Some(&oracle(&self.rows)) {
                return Err(format!("after {sql} and a refresh: {:?}", shown.rows()));
            }
        }
        Ok(())
    }

    /// Old or new, never mixed; nothing was lost; what was acknowledged is there.
    fn check(&self, sql: &str, before: &Seen, after: &Seen, output: &Output) -> Result<(), String> {
        let target = sql.split("version => ").nth(1).and_then(|text| text.trim_end_matches(')').parse().ok());
        let target = target.and_then(|version: u64| before.versions.get(&version).cloned().flatten());
        let new = if sql.starts_with("REFRESH") { Some(oracle(&self.rows)) } else { target };
        let old = before.rows();
        for (version, rows) in &after.versions {
            let fits = match (before.versions.get(version), rows) {
                // A vacuum may have taken it.
                (Some(Some(_)), None) => sql.contains("vacuum"),
                (Some(known), rows) => known == rows,
                (None, Some(rows)) => Some(rows) == old || Some(rows) == new.as_ref(),
                (None, None) => false,
            };
            if !fits {
                return Err(format!("{sql}: version {version} shows {rows:?}, before {:?}, new {new:?}", before.versions.get(version)));
            }
        }
        if after.newest() < before.newest() {
            return Err(format!("{sql}: versions are lost: {before:?}, {after:?}"));
        }
        let is_told = output.status.success() && sql.starts_with("REFRESH");
        if is_told && after.rows() != new.as_ref() {
            return Err(format!("{sql} was acknowledged and is not there: {}", told(output)));
        }
        Ok(())
    }

    /// A last refresh, and a vacuum a day later: nothing is left over.
    async fn end(self, counts: &Counts) -> Result<(), String> {
        let failed = |e: datafusion_incremental::Error| format!("at the end: {e}");
        let session = self.folder.session().await;
        session.sql("REFRESH t").await.map_err(failed)?;
        counts.unnamed.fetch_add(self.folder.unnamed() as u64, Ordering::SeqCst);
        self.folder.age(26 * 3600);
        session.sql("CALL incremental.vacuum('t', dry_run => false, older_than => '0 s')").await.map_err(failed)?;
        let orphans = self.folder.orphans().await.map_err(failed)?;
        let shown = self.folder.look().await.map_err(failed)?;
        if !orphans.is_empty() || shown.rows() != Some(&oracle(&self.rows)) {
            return Err(format!("at the end: {orphans:?} are left over, and the table shows {:?}", shown.rows()));
        }
        Ok(())
    }
}

#[test]
fn kills_at_random_moments_tear_nothing() {
    const OF_ONE_TABLE: u64 = 25;
    let (kills, seed, counts) = (number("KILLS", 200), number("KILL_SEED", 1), Counts::default());
    let tables = (0..kills.div_ceil(OF_ONE_TABLE)).collect();
    let failures = in_parallel(tables, 3, |table| {
        let mut victim = Victim::new(*table, SmallRng::seed_from_u64(seed * 1_000_000 + table));
        let kills = OF_ONE_TABLE.min(kills - table * OF_ONE_TABLE);
        block(async {
            for round in 0..kills {
                victim.round(&counts).await.map_err(|e| format!("round {round}: {e}"))?;
            }
            victim.end(&counts).await
        })
    });
    println!("{kills} processes: {counts:?}");
    assert!(failures.is_empty(), "seed {seed}: {failures:#?}");
    assert!(counts.killed.into_inner() > kills / 4 && counts.published.into_inner() > kills / 20);
}

/// The files of a process may not grow beyond so many blocks of 512 bytes; it is told so, or it dies.
#[test]
fn kills_by_a_limit_on_files_tear_nothing() {
    let cases: Vec<(u64, bool)> = (0..24).flat_map(|blocks| [(blocks, true), (blocks, false)]).collect();
    let (total, failed) = (cases.len(), AtomicU64::new(0));
    let failures = in_parallel(cases, 3, |(blocks, told_so)| {
        let rows: Rows = (0..120).map(|id| (id, format!("v{id}"))).collect();
        let folder = Folder::with_table(&rows, &definition(blocks + 1));
        let new: Rows = (60..180).map(|id| (id, format!("w{id}"))).collect();
        folder.set_source(&new);
        let shell = folder.shell("REFRESH t");
        let trap = if *told_so { "trap '' XFSZ; " } else { "" };
        let mut limited = Command::new("sh");
        limited.arg("-c").arg(format!("ulimit -c 0; ulimit -f {blocks}; {trap}exec \"$@\"")).arg("sh");
        limited.arg(shell.get_program()).args(shell.get_args()).current_dir(folder.path());
        let output = limited.output().map_err(|e| e.to_string())?;
        let is_done = output.status.success();
        failed.fetch_add(u64::from(!is_done), Ordering::SeqCst);
        if *told_so && !is_done && !told(&output).contains(ErrorCode::StoreFailed.as_str()) {
            return Err(format!("the failure does not say that the store failed: {}", told(&output)));
        }
        block(async {
            let seen = folder.look().await.map_err(|e| e.to_string())?;
            let wanted = if is_done { vec![oracle(&new)] } else { vec![oracle(&rows), oracle(&new)] };
            if !seen.rows().is_some_and(|rows| wanted.contains(rows)) {
                return Err(format!("done: {is_done}, and the table shows {:?}", seen.rows()));
            }
            folder.age(26 * 3600);
            let again = "REFRESH t; CALL incremental.vacuum('t', dry_run => false, older_than => '0 s')";
            folder.session().await.sql(again).await.map_err(|e| format!("with room again: {e}"))?;
            let (seen, orphans) = (folder.look().await, folder.orphans().await);
            match (seen, orphans) {
                (Ok(seen), Ok(orphans)) if seen.rows() == Some(&oracle(&new)) && orphans.is_empty() => Ok(()),
                other => Err(format!("with room again: {other:?}")),
            }
        })
    });
    println!("{total} limits, {} of them were met", failed.load(Ordering::SeqCst));
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(failed.into_inner() > 10);
}

/// Two processes at once, with one run id or with one each.
#[test]
fn kills_none_of_two_processes_that_refresh_one_table() {
    let mut both = 0;
    for round in 0..16_u64 {
        let rows: Rows = (0..50).map(|id| (id, format!("v{id}"))).collect();
        let folder = Folder::with_table(&rows, &definition(round + 1).replace("compaction_max_files = 2", "compaction = 'off'"));
        let new: Rows = (10..60).map(|id| (id, format!("w{}", id + 1))).collect();
        folder.set_source(&new);
        let runs = if round % 2 == 0 { ["same", "same"] } else { ["one", "two"] };
        let start = |run: &str| folder.shell(&format!("REFRESH t RUN '{run}'")).spawn().expect("the shell runs");
        let first = start(runs[0]);
        // At once, and later and later.
        std::thread::sleep(Duration::from_millis(round / 2 * 40));
        let processes = [first, start(runs[1])];
        let outputs = processes.map(|process| process.wait_with_output().expect("its output"));
        let refused = [ErrorCode::RunActive, ErrorCode::RunConflict, ErrorCode::RunStale].map(ErrorCode::as_str);
        let done = outputs.iter().filter(|output| output.status.success()).count() as u64;
        for output in outputs.iter().filter(|output| !output.status.success()) {
            assert!(refused.iter().any(|code| told(output).contains(code)), "{}", told(output));
        }
        assert!(done > 0, "{}", outputs.iter().map(told).collect::<String>());
        both += u64::from(done == 2);
        let seen = block(folder.look()).unwrap();
        let versions = if runs[0] == runs[1] { 2 } else { 1 + done };
        assert_eq!((seen.newest(), seen.rows()), (versions, Some(&oracle(&new))), "{}", outputs.iter().map(told).collect::<String>());
        // Asked again, each run id has its answer.
        if runs[0] == runs[1] {
            assert_done(&folder.shell("REFRESH t RUN 'same'").output().unwrap());
            assert_eq!(block(folder.look()).unwrap().newest(), 2);
        }
    }
    println!("16 pairs of processes; in {both} of them both had an answer");
}
