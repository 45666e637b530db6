//! Random edits of sources of several files, against a full recompute.
//!
//! ```text
//! seed ─► a world ─► 25 steps: edit, move, add, remove, rewrite, rename, break, roll back, compact, restart, …
//!                     └─► the published table = the files' rows, and the counts = a comparison with the rows before
//! ```
//!
//! `SKIP_HISTORIES` histories (60) per key hash; `SKIP_SEED` runs one alone.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use datafusion_incremental::ErrorCode;
use datafusion_incremental::exec::equality::KeyHash;
use datafusion_incremental::run::RefreshRequest;
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{Rng, SeedableRng};

use super::world::{HOUR, Rows, Shape, World, files_of, rows_of};

const STEPS: usize = 25;
const NAMES: [&str; 6] = ["a.csv", "b.csv", "c.csv", "d.csv", "e.csv", "f.csv"];

struct History {
    rng: SmallRng,
    world: World,
    files: BTreeMap<&'static str, Rows>,
    /// Versions that can be rolled back to, with their rows.
    versions: Vec<(u64, Rows)>,
    accepted: Option<Rows>,
    log: Vec<String>,
    skipped: u64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_of_files_equal_a_full_recompute() {
    run(KeyHash::Xxh3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_of_files_with_a_constant_key_hash_equal_a_full_recompute() {
    run(KeyHash::Constant).await;
}

async fn run(hash: KeyHash) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("SKIP_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SKIP_HISTORIES").unwrap_or(60),
    };
    let mut skipped = 0;
    for seed in seeds.clone() {
        let mut history = History::new(seed, hash).await;
        for _ in 0..STEPS {
            if let Err(what) = history.step().await {
                panic!(
                    "seed {seed} (SKIP_SEED={seed} cargo test --features cli --test file_skip random): {what}\n  {}",
                    history.log.join("\n  ")
                );
            }
        }
        skipped += history.skipped;
    }
    assert!(seeds.end - seeds.start < 10 || skipped > 10 * (seeds.end - seeds.start), "hardly any file was skipped: {skipped}");
}

impl History {
    async fn new(seed: u64, hash: KeyHash) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let options = format!(
            "compaction = '{}', row_group_rows = {}, target_file_rows = {}",
            ["auto", "off"][rng.random_range(0..2)],
            rng.random_range(2..12),
            rng.random_range(3..30)
        );
        let shape =
            Shape { hash, memory: None, partitions: rng.random_range(1..4), proven: rng.random_bool(0.6), options, ..Shape::default() };
        let log = vec![format!("{shape:?}")];
        let world = World::new(shape).await;
        let mut history = Self { rng, world, files: BTreeMap::new(), versions: vec![], accepted: None, log, skipped: 0 };
        for name in &NAMES[..3] {
            let rows = history.new_rows(4);
            history.put(name, rows).await;
        }
        history
    }

    fn note(&mut self, what: String) {
        self.log.push(what);
    }

    async fn put(&mut self, name: &'static str, rows: Rows) {
        self.note(format!("{name} = {rows:?}"));
        let lines: Vec<(i64, &str)> = rows.iter().map(|(id, v)| (*id, v.as_str())).collect();
        self.world.write(name, &lines).await;
        self.files.insert(name, rows);
    }

    async fn take(&mut self, name: &'static str) -> Rows {
        self.note(format!("remove {name}"));
        self.world.remove(name).await;
        self.files.remove(name).unwrap_or_default()
    }

    fn all(&self) -> Rows {
        self.files.values().flatten().map(|(id, v)| (*id, v.clone())).collect()
    }

    fn new_rows(&mut self, most: usize) -> Rows {
        let known = self.all();
        let ids: Vec<i64> = (0..self.rng.random_range(0..=most)).map(|_| self.rng.random_range(0..60)).collect();
        ids.into_iter().filter(|id| !known.contains_key(id)).map(|id| (id, self.value())).collect()
    }

    fn value(&mut self) -> String {
        ["x", "y", "z"][self.rng.random_range(0..3)].to_string()
    }

    fn some_file(&mut self) -> Option<&'static str> {
        self.files.keys().copied().choose(&mut self.rng)
    }

    /// Edits the files one to three times, then acts.
    async fn step(&mut self) -> Result<(), String> {
        for _ in 0..self.rng.random_range(0..=3) {
            self.edit().await;
        }
        // Sometimes files are too young to be skipped the next time.
        let ahead = if self.rng.random_bool(0.15) { 0 } else { HOUR };
        self.world.clock.micros.store(ahead, Ordering::SeqCst);
        match self.rng.random_range(0..12) {
            0 => self.duplicate().await?,
            1 => self.roll_back().await?,
            2 => drop(self.world.sql("CALL incremental.compact('t')").await),
            3 => {
                let is_registered = self.rng.random_bool(0.5);
                self.note(format!("restart, registered: {is_registered}"));
                self.world.restart(is_registered).await;
            }
            4 => {
                let skip = self.rng.random_bool(0.5);
                self.note(format!("file_skip = {skip}"));
                self.world.sql(&format!("ALTER INCREMENTAL TABLE t SET (file_skip = {skip})")).await.map_err(|e| e.to_string())?;
            }
            _ => {}
        }
        let full = self.accepted.is_some() && self.rng.random_bool(0.05);
        self.refresh(full).await?;
        self.world.sql("ALTER INCREMENTAL TABLE t RESET (file_skip)").await.map(drop).map_err(|e| e.to_string())
    }

    async fn edit(&mut self) {
        let Some(name) = self.some_file() else { return };
        let mut rows = self.files.get(name).cloned().unwrap_or_default();
        let key = rows.keys().copied().choose(&mut self.rng);
        match (self.rng.random_range(0..9), key) {
            (0 | 1, Some(key)) => drop(rows.insert(key, self.value())),
            (2, Some(key)) => drop(rows.remove(&key)),
            (3 | 4, Some(key)) => {
                // A row moves to another file, as it is or changed.
                let Some(other) = self.some_file().filter(|other| *other != name) else { return };
                let mut theirs = self.files.get(other).cloned().unwrap_or_default();
                let value = rows.remove(&key).unwrap_or_default();
                let value = if self.rng.random_bool(0.3) { self.value() } else { value };
                theirs.insert(key, value);
                self.put(other, theirs).await;
            }
            (5, _) => {
                // The file under another name.
                let free: Vec<&'static str> = NAMES.into_iter().filter(|name| !self.files.contains_key(name)).collect();
                let Some(other) = free.choose(&mut self.rng).copied() else { return };
                let rows = self.take(name).await;
                return self.put(other, rows).await;
            }
            (6, _) if self.files.len() > 1 => return drop(self.take(name).await),
            (7, _) => {
                let free: Vec<&'static str> = NAMES.into_iter().filter(|name| !self.files.contains_key(name)).collect();
                let Some(other) = free.choose(&mut self.rng).copied() else { return };
                let rows = self.new_rows(5);
                return self.put(other, rows).await;
            }
            // Also: the same rows, written again.
            _ => rows.extend(self.new_rows(3)),
        }
        self.put(name, rows).await;
    }

    /// A key in two files fails the run, whichever of them is read.
    async fn duplicate(&mut self) -> Result<(), String> {
        let (Some(name), Some(other)) = (self.some_file(), self.some_file()) else { return Ok(()) };
        let Some(key) = self.files[other].keys().copied().choose(&mut self.rng).filter(|_| name != other) else { return Ok(()) };
        let rows = self.files[name].clone();
        let mut broken = rows.clone();
        let value = if self.rng.random_bool(0.5) { self.files[other][&key].clone() } else { self.value() };
        broken.insert(key, value);
        self.put(name, broken).await;
        let error = match self.world.refresh().await {
            Ok(summary) => return Err(format!("key {key} is in {name} and in {other}, and the run ended as {summary:?}")),
            Err(error) => error,
        };
        self.put(name, rows).await;
        let is_named = error.code() == ErrorCode::KeyDuplicate && error.message().contains(&format!("id={key} (count 2)"));
        if is_named { Ok(()) } else { Err(format!("key {key} is in {name} and in {other}, and the run failed with {error}")) }
    }

    async fn roll_back(&mut self) -> Result<(), String> {
        let Some((version, rows)) = self.versions.choose(&mut self.rng).cloned() else { return Ok(()) };
        self.note(format!("rollback to {version}"));
        self.world.sql(&format!("CALL incremental.rollback('t', version => {version})")).await.map_err(|e| e.to_string())?;
        self.accepted = Some(rows);
        self.compare().await
    }

    async fn refresh(&mut self, full: bool) -> Result<(), String> {
        let now = self.all();
        let before = self.accepted.clone().filter(|_| !full).unwrap_or_default();
        let changed = |(id, v): &(&i64, &String)| before.get(*id).is_some_and(|was| was != *v);
        let created = now.keys().filter(|id| !before.contains_key(*id)).count() as u64;
        let updated = now.iter().filter(changed).count() as u64;
        let deleted = before.keys().filter(|id| !now.contains_key(*id)).count() as u64;
        let wanted = [created, updated, deleted, now.len() as u64 - created - updated];
        let summary = self.world.session.refresh("t", RefreshRequest { full, ..RefreshRequest::default() }).await;
        let summary = summary.map_err(|e| e.to_string())?;
        let files = files_of(&summary);
        self.note(format!("refresh, full: {full}: files {files:?}, rows {:?}", rows_of(&summary)));
        if rows_of(&summary) != wanted || files.iter().sum::<u64>() != self.files.len() as u64 {
            return Err(format!("the run says {files:?}, {:?}; the model says {wanted:?}", rows_of(&summary)));
        }
        self.skipped += files[1];
        self.versions.push((summary.version.unwrap_or_default(), now.clone()));
        self.accepted = Some(now);
        self.compare().await
    }

    async fn compare(&self) -> Result<(), String> {
        let wanted: Rows = self.accepted.iter().flatten().map(|(id, v)| (*id, v.to_uppercase())).collect();
        let found = self.world.rows("t").await;
        if found == wanted { Ok(()) } else { Err(format!("the table is {found:?}, the model says {wanted:?}")) }
    }
}
