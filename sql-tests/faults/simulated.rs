//! What a simulation does: the processes, their gates and faults, the steps, and the comparison with the model.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::UInt64Type;
use datafusion_incremental::env::{Clock, SeededIds};
use datafusion_incremental::{Error, ErrorCode};
use futures::future::join_all;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::acts::{Act, Actor, Trace, actor, chained, definition, fault, put_source, reader_may_fail};
use super::backing::Backing;
use super::case::{is_record, named_objects};
use super::clock::{EPOCH, TestClock, pass};
use super::model::{Found, Model, Totals};
use super::store::Fault;
use super::world::{Process, Rows, World, oracle};

const WRITERS: usize = 3;

type Outcome = Option<Result<u64, Error>>;

/// One seed's world.
pub struct Simulation {
    rng: SmallRng,
    world: World,
    clock: Arc<TestClock>,
    actors: Vec<Actor>,
    reader: Actor,
    judge: Process,
    model: Model,
    runs: u64,
    /// Runs that were not acknowledged, with whether they are FULL.
    open_runs: BTreeMap<String, bool>,
    trace: Arc<Mutex<Trace>>,
    log: Vec<String>,
    totals: Totals,
    verbose: bool,
    /// The source is files, which may be skipped.
    has_files: bool,
    /// A table `u` reads `t`, whose changes may be handed on.
    has_chain: bool,
}

impl Simulation {
    pub async fn new(seed: u64, verbose: bool) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let clock = TestClock::at(EPOCH);
        let mut backing = Backing::memory(Arc::clone(&clock) as Arc<dyn Clock>);
        if rng.random_bool(0.4) {
            // Leases that look expired to everybody: only the slots decide.
            backing = backing.aged("/lease/", 60_000_000);
        }
        let world = World::new(backing, Arc::clone(&clock) as Arc<dyn Clock>, Arc::new(SeededIds::new(seed)));
        let source: Rows = (0..rng.random_range(3..12)).map(|id| (id, format!("v{}", rng.random_range(0..50)))).collect();
        let (has_files, has_chain) = (rng.random_bool(0.4), rng.random_bool(0.4));
        put_source(&world, has_files, &source).await;
        let judge = world.process().await;
        judge.sql(&definition(&mut rng, has_files)).await.expect("the table is created");
        if has_chain {
            judge.sql(&chained()).await.expect("the second table is created");
        }
        let trace = Arc::new(Mutex::new(Trace { verbose, ..Trace::default() }));
        let mut actors = vec![];
        for who in 0..=WRITERS {
            let gate = SmallRng::seed_from_u64(rng.random());
            actors.push(actor(&world, who, gate, &clock, &trace).await);
        }
        let reader = actors.pop().expect("one actor reads");
        let model = Model { states: vec![source], ..Model::default() };
        let (log, totals) = (vec![], Totals::default());
        Self {
            rng,
            world,
            clock,
            actors,
            reader,
            judge,
            model,
            runs: 0,
            open_runs: BTreeMap::new(),
            trace,
            log,
            totals,
            verbose,
            has_files,
            has_chain,
        }
    }

    /// All steps: what was done, and the trace's digest; or what went wrong, and the steps.
    pub async fn run(mut self, steps: u64) -> Result<(Totals, String), String> {
        for step in 0..steps {
            let outcome = self.step(step).await;
            outcome.map_err(|e| format!("step {step}: {e}\n  {}", self.log.join("\n  ")))?;
        }
        let last = self.last().await;
        last.map_err(|e| format!("at the end: {e}\n  {}", self.log.join("\n  ")))?;
        let trace = self.trace.lock().unwrap();
        self.totals.count("operations", trace.ops);
        Ok((self.totals.clone(), format!("{:016x} of {} operations", trace.hasher.finish(), trace.ops)))
    }

    fn note(&mut self, text: String) {
        if self.verbose {
            println!("{text}");
        }
        self.log.push(text);
    }

    async fn step(&mut self, step: u64) -> Result<(), String> {
        self.totals.count("steps", 1);
        if self.rng.random_bool(0.7) {
            self.edit().await;
        }
        if self.rng.random_bool(0.6) {
            // Long enough for the lease of a process that died.
            pass(Duration::from_secs(self.rng.random_range(5..60))).await;
        }
        self.disturb().await;
        let newest = self.model.newest();
        let acts = self.choose();
        let texts: Vec<String> = acts.iter().map(|(who, act)| format!("{who} {act:?}")).collect();
        self.note(format!("{step}: {}", texts.join(" | ")));
        for (_, act) in &acts {
            match act {
                Act::Refresh { run, .. } | Act::Draft { run } => self.model.ask(run),
                Act::Rollback { to } => drop(self.model.rollbacks.insert(*to)),
                _ => {}
            }
        }
        let (outcomes, reads) = self.act(&acts).await;
        self.calm(true);
        self.world.service.fails.store(false, Ordering::SeqCst);
        self.world.service.seconds.store(0, Ordering::SeqCst);
        self.judge_outcomes(&acts, outcomes)?;
        self.find_versions().await?;
        self.model.check_answers()?;
        self.check_chain(false).await?;
        for read in reads {
            match read {
                Ok(rows) => self.model.check_read(&rows, newest, self.model.newest())?,
                Err(error) if reader_may_fail(&error, newest, &acts) => {}
                Err(error) => return Err(format!("a reader failed: {error}")),
            }
        }
        if acts.iter().any(|(_, act)| matches!(act, Act::Vacuum { .. })) {
            self.model.vacuumed = self.model.newest();
        }
        self.check_history(step).await
    }

    fn calm(&self, calm: bool) {
        for actor in self.actors.iter().chain([&self.reader]) {
            actor.gate.calm.store(calm, Ordering::SeqCst);
            if calm {
                actor.process.store.disarm();
            }
        }
    }

    /// Random edits of the source; values are lower case, so that `upper` loses nothing.
    async fn edit(&mut self) {
        let mut rows = self.model.source().clone();
        for _ in 0..self.rng.random_range(1..4) {
            let id = self.rng.random_range(0..14);
            if self.rng.random_bool(0.3) {
                rows.remove(&id);
            } else {
                rows.insert(id, format!("v{}", self.rng.random_range(0..50)));
            }
        }
        if self.rng.random_bool(0.03) {
            rows.clear();
        }
        put_source(&self.world, self.has_files, &rows).await;
        self.model.states.push(rows);
    }

    /// Restarts, clocks that jump, a handler that fails or is slow, and which operations fail.
    async fn disturb(&mut self) {
        if self.rng.random_bool(0.15) {
            let who = self.rng.random_range(0..WRITERS);
            let gate = SmallRng::seed_from_u64(self.rng.random());
            self.actors[who] = actor(&self.world, who, gate, &self.clock, &self.trace).await;
            self.note(format!("restart of {who}"));
        }
        if self.rng.random_bool(0.1) {
            let (who, hours) = (self.rng.random_range(0..WRITERS), self.rng.random_range(-30..30_i64));
            self.actors[who].clock.jump(hours * 3_600_000_000);
            self.note(format!("the clock of {who} jumps by {hours} h"));
        }
        self.calm(false);
        let service = &self.world.service;
        service.fails.store(self.rng.random_bool(0.05), Ordering::SeqCst);
        service.seconds.store(if self.rng.random_bool(0.05) { self.rng.random_range(1..50) } else { 0 }, Ordering::SeqCst);
        let mut plans = vec![];
        for actor in &self.actors {
            let faults = [0, 0, 0, 1, 1, 2][self.rng.random_range(0..6)];
            let plan: Vec<(usize, Fault)> = (0..faults).map(|_| (self.rng.random_range(0..70), fault(&mut self.rng))).collect();
            actor.process.store.arm(plan.iter().copied());
            plans.push(plan);
        }
        if self.rng.random_bool(0.2) {
            let plan = (self.rng.random_range(0..12), fault(&mut self.rng));
            self.reader.process.store.arm([plan]);
        }
        self.note(format!("faults {plans:?}"));
    }

    fn choose(&mut self) -> Vec<(usize, Act)> {
        let count = [1, 1, 1, 2, 2, 3][self.rng.random_range(0..6)];
        (0..count).map(|who| (who, self.choose_one())).collect()
    }

    fn choose_one(&mut self) -> Act {
        let newest = self.model.newest();
        let open: Vec<String> = self.open_runs.keys().cloned().collect();
        match self.rng.random_range(0..100) {
            0..15 if self.has_chain => {
                self.runs += 1;
                Act::Chain { run: format!("c{}", self.runs) }
            }
            0..50 => self.new_run(false),
            50..55 => self.new_run(true),
            55..60 => {
                let Act::Refresh { run, .. } = self.new_run(false) else { return Act::Compact };
                self.open_runs.remove(&run);
                Act::Draft { run: format!("d-{run}") }
            }
            60..74 if !open.is_empty() => {
                let run = open.choose(&mut self.rng).cloned().unwrap_or_default();
                Act::Refresh { full: self.open_runs[&run], run }
            }
            74..78 if !open.is_empty() => Act::Cancel { run: open.choose(&mut self.rng).cloned().unwrap_or_default() },
            78..84 if newest > 1 => Act::Rollback { to: self.rng.random_range(1..newest) },
            84..91 => Act::Compact,
            91..97 => Act::Vacuum { seconds: 0 },
            97..100 => Act::Vacuum { seconds: 600 },
            _ => self.new_run(false),
        }
    }

    fn new_run(&mut self, full: bool) -> Act {
        self.runs += 1;
        let run = format!("r{}", self.runs);
        self.open_runs.insert(run.clone(), full);
        Act::Refresh { run, full }
    }

    /// All acts at once, each by its own process, and a reader beside them.
    async fn act(&mut self, acts: &[(usize, Act)]) -> (Vec<Outcome>, Vec<Result<Rows, Error>>) {
        let waits: Vec<u64> = (0..acts.len() + 2).map(|_| self.rng.random_range(0..300)).collect();
        let work = acts.iter().zip(&waits).map(|((who, act), wait)| {
            let process = &self.actors[*who].process;
            async move {
                pass(Duration::from_millis(*wait)).await;
                let work = async {
                    let batches = process.sql(&act.sql()).await?;
                    let version = batches.iter().find(|batch| batch.num_rows() == 1).map(|batch| match act {
                        Act::Refresh { .. } => batch.column_by_name("version").expect("a summary").as_primitive::<UInt64Type>().value(0),
                        _ => 0,
                    });
                    Ok(version.unwrap_or(0))
                };
                tokio::select! {
                    biased;
                    outcome = work => Some(outcome),
                    () = process.store.hung() => None,
                    () = pass(Duration::from_secs(900)) => None,
                }
            }
        });
        let reads = waits[acts.len()..].iter().map(|wait| {
            let process = &self.reader.process;
            async move {
                pass(Duration::from_millis(*wait)).await;
                let read = process.select("SELECT id, o FROM t");
                tokio::select! {
                    biased;
                    read = read => Some(read),
                    () = process.store.hung() => None,
                }
            }
        });
        let (outcomes, reads) = tokio::join!(join_all(work), join_all(reads));
        (outcomes, reads.into_iter().flatten().collect())
    }

    fn judge_outcomes(&mut self, acts: &[(usize, Act)], outcomes: Vec<Outcome>) -> Result<(), String> {
        for ((who, act), outcome) in acts.iter().zip(&outcomes) {
            let text = match outcome {
                None => "dropped".to_string(),
                Some(Ok(version)) => format!("ok {version}"),
                Some(Err(error)) => error.code().as_str().to_string(),
            };
            self.totals.count(format!("{} {}", act.name(), if text.starts_with("ok") { "ok" } else { &text }), 1);
            if let Some(Err(error)) = outcome
                && !act.may_fail_with(error)
            {
                return Err(format!("{who} {act:?} failed with {error}"));
            }
            self.note(format!("   {who} {}: {text}", act.name()));
            let Act::Refresh { run, .. } = act else { continue };
            let alone = acts.iter().filter(|(_, other)| matches!(other, Act::Refresh { run: other, .. } if other == run)).count() == 1;
            match outcome {
                Some(Ok(version)) => {
                    self.open_runs.remove(run);
                    if let Some(before) = self.model.answers.insert(run.clone(), *version)
                        && before != *version
                    {
                        return Err(format!("run {run} answers version {version}, before it was {before}"));
                    }
                }
                Some(Err(error)) if alone && error.code() != ErrorCode::CommitUnknown => drop(self.model.failed.insert(run.clone())),
                _ => {}
            }
        }
        Ok(())
    }

    /// Every new version, in order, as somebody sees it who has seen nothing.
    async fn find_versions(&mut self) -> Result<(), String> {
        let failed = |e: Error| format!("the table cannot be read: {e}");
        let handle = self.judge.session.incremental_table("t").await.map_err(failed)?;
        let incarnation = handle.incarnation();
        let newest = incarnation.newest_version().await.map_err(failed)?.map_or(0, |slot| slot.version);
        for version in self.model.newest() + 1..=newest {
            let slot = incarnation.slot(version).await.map_err(failed)?.ok_or_else(|| format!("no slot {version}"))?;
            let read = async {
                let manifest = incarnation.manifest(&slot).await?;
                let rows = self.judge.read_version(&handle, version).await?;
                Ok::<_, Error>(Found { kind: manifest.kind, summary: manifest.summary.clone(), rows })
            };
            match read.await {
                Ok(found) => self.model.accept(version, found)?,
                // Published and vacuumed in the same step: its rows are never known.
                Err(error) if error.code() == ErrorCode::HistoryMissing && version < newest => {
                    self.model.skip(version, slot.run.as_str());
                }
                Err(error) => return Err(format!("version {version}: {error}")),
            }
        }
        Ok(())
    }

    /// One older version is what it was, or gone after a vacuum; sometimes everything is looked at.
    async fn check_history(&mut self, step: u64) -> Result<(), String> {
        let newest = self.model.newest();
        if newest > 1 {
            let version = self.rng.random_range(1..newest);
            let handle = self.judge.session.incremental_table("t").await.map_err(|e| e.to_string())?;
            match self.judge.read_version(&handle, version).await {
                Ok(rows) if self.model.is(version, &rows) => {}
                Ok(rows) => return Err(format!("version {version} shows {rows:?}, it was {:?}", self.model.versions.get(&version))),
                Err(error) if error.code() == ErrorCode::HistoryMissing && version < self.model.vacuumed => {}
                Err(error) => return Err(format!("version {version}: {error}")),
            }
        }
        if step % 8 == 7 {
            self.judge = self.world.process().await;
            for table in ["t", "u"] {
                self.judge.attach(table).await.map_err(|e| format!("{table} cannot be opened: {e}"))?;
            }
            let lists = "SELECT count(*) FROM incremental_runs('t'); SELECT count(*) FROM incremental_versions('t')";
            self.judge.sql(lists).await.map_err(|e| format!("the history cannot be listed: {e}"))?;
        }
        Ok(())
    }

    /// The table on top holds one of the versions of `t`; at `last` the newest, once it is refreshed.
    async fn check_chain(&self, last: bool) -> Result<(), String> {
        if !self.has_chain {
            return Ok(());
        }
        if last {
            self.judge.sql("REFRESH u").await.map_err(|e| format!("the last refresh of u: {e}"))?;
        }
        let rows = match self.judge.select("SELECT id, o FROM u").await {
            Err(error) if error.code() == ErrorCode::NotPublished => return Ok(()),
            rows => rows.map_err(|e| format!("u cannot be read: {e}"))?,
        };
        let newest = self.model.newest();
        let fits = if last { self.model.is(newest, &rows) } else { (1..=newest).any(|version| self.model.is(version, &rows)) };
        if fits { Ok(()) } else { Err(format!("u holds no version of t: {rows:?}")) }
    }

    /// Healthy again: a refresh equals a full recompute, and a vacuum leaves nothing behind.
    async fn last(&mut self) -> Result<(), String> {
        pass(Duration::from_secs(400)).await;
        self.find_versions().await?;
        self.model.ask("last");
        self.judge.sql("REFRESH t RUN 'last'").await.map_err(|e| format!("the last refresh: {e}"))?;
        self.find_versions().await?;
        pass(Duration::from_secs(26 * 3600)).await;
        self.judge.sql("CALL incremental.vacuum('t', dry_run => false, older_than => '0 s')").await.map_err(|e| e.to_string())?;
        self.find_versions().await?;
        let rows = self.judge.select("SELECT id, o FROM t").await.map_err(|e| e.to_string())?;
        if rows != oracle(self.model.source()) {
            return Err(format!("the table shows {rows:?}, the source has {:?}", self.model.source()));
        }
        self.check_chain(true).await?;
        let handle = self.judge.session.incremental_table("t").await.map_err(|e| e.to_string())?;
        let named = named_objects(handle.incarnation()).await.map_err(|e| e.to_string())?;
        let roots = [handle.incarnation().path("").to_string()];
        let listed = self.world.backing.listed().await.into_keys().filter(|path| path.starts_with("w/t/"));
        let orphans: Vec<String> = listed.filter(|path| !named.contains(path) && !is_record(&roots, path)).collect();
        if orphans.is_empty() { Ok(()) } else { Err(format!("a vacuum does not find {orphans:?}")) }
    }
}
