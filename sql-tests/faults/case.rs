//! One case of the crash matrix: a scenario that is interrupted, and everything that must hold afterwards.
//!
//! ```text
//! setup (healthy, once) ─ fork ─► act in trouble ─► reopen ─► check ─► 31 s later: again ─► oracle ─► vacuum ─► check
//!                                  operation k fails │ the disk is full after n bytes │ dropped at its n-th poll
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use datafusion_incremental::env::{Clock, SeededIds};
use datafusion_incremental::store::Incarnation;
use datafusion_incremental::{Error, ErrorCode};

use super::backing::Backing;
use super::clock::{EPOCH, TestClock, pass};
use super::scenarios::{Do, Scenario};
use super::store::{Fault, FaultStore, Op};
use super::world::{FILES, Process, Rows, Seen, World, alone, oracle, rows};

/// What befalls the act.
#[derive(Debug, Clone)]
pub enum Trouble {
    /// These operations fail in these ways.
    Ops(Vec<(usize, Fault)>),
    /// After so many bytes every write fails.
    Full(u64),
    /// The future is dropped at its n-th poll, and every operation is a place where that can be.
    Dropped(u64),
}

/// Drops `future` when it was polled `polls` times without an end: `None` then.
async fn at_most<T>(polls: u64, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

/// What a table shows: nothing when it does not exist.
type Shown = Option<Seen>;

/// A scenario that is ready to be interrupted.
pub struct Prepared {
    pub scenario: Scenario,
    backing: Arc<Backing>,
    now: i64,
    source: Rows,
    /// What every table shows before the act and after each of its steps.
    states: Vec<BTreeMap<&'static str, Shown>>,
    pub ops: Vec<Op>,
}

/// Where a case runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    Memory,
    Disk,
}

async fn world_at(backing: &Arc<Backing>, now: i64, source: &Rows, on: On) -> (World, Arc<TestClock>) {
    let clock = TestClock::at(now);
    let backing = match on {
        On::Memory => backing.fork(Arc::clone(&clock) as Arc<dyn Clock>),
        On::Disk => backing.fork_to_disk(Arc::clone(&clock) as Arc<dyn Clock>).await,
    };
    let world = World::new(backing, Arc::clone(&clock) as Arc<dyn Clock>, Arc::new(SeededIds::new(now.unsigned_abs())));
    world.source.set(source.clone());
    (world, clock)
}

/// One step by `process`.
async fn step(world: &World, process: &Process, step: &Do) -> Result<(), Error> {
    match step {
        Do::Source(pairs) => world.source.set(rows(pairs)),
        Do::ServiceFails(fails) => world.service.fails.store(*fails, Ordering::SeqCst),
        Do::File(name, pairs) => world.put_file(name, rows(pairs)).await,
        Do::Wait(seconds) => pass(Duration::from_secs(*seconds)).await,
        Do::Sql(sql) => drop(process.sql(sql).await?),
        Do::Shows(sql, text) => {
            let shown = arrow::util::pretty::pretty_format_batches(&process.sql(sql).await?).expect("a table").to_string();
            if !shown.contains(text) {
                return Err(Error::new(ErrorCode::Internal, format!("{sql} does not show {text:?}: {shown}")));
            }
        }
        Do::Fails(sql, code) => match process.sql(sql).await {
            Err(error) if error.code() == *code => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(Error::new(ErrorCode::Internal, format!("{sql} succeeds, it must fail with {code:?}"))),
        },
        Do::Abandoned(sql) => {
            world.service.seconds.store(5, Ordering::SeqCst);
            let died = tokio::time::timeout(Duration::from_secs(1), process.sql(sql)).await;
            world.service.seconds.store(0, Ordering::SeqCst);
            if died.is_ok() {
                return Err(Error::new(ErrorCode::Internal, format!("{sql} did not wait for its handler")));
            }
            pass(Duration::from_secs(31)).await;
        }
        Do::CancelAtWork(run) => {
            world.service.seconds.store(5, Ordering::SeqCst);
            let other = world.process().await;
            other.attach("t").await?;
            let refresh = format!("REFRESH t RUN '{run}'");
            let cancel = async {
                pass(Duration::from_secs(1)).await;
                // The run may have failed before it was known.
                let _ = other.sql(&format!("CALL incremental.cancel('t', '{run}')")).await;
            };
            let (outcome, ()) = tokio::join!(process.sql(&refresh), cancel);
            world.service.seconds.store(0, Ordering::SeqCst);
            match outcome {
                Err(error) if error.code() == ErrorCode::Cancelled => {}
                Err(error) => return Err(error),
                Ok(_) => return Err(Error::new(ErrorCode::Internal, "a cancelled run was published")),
            }
        }
    }
    Ok(())
}

/// What a process that has seen nothing finds.
async fn reopen(world: &World, tables: &[&'static str]) -> Result<(Process, BTreeMap<&'static str, Shown>), String> {
    let process = world.process().await;
    let mut shown = BTreeMap::new();
    for table in tables {
        let seen = match process.attach(table).await {
            Ok(true) => Some(process.look(table).await.map_err(|e| format!("{table} cannot be read: {e}"))?),
            Ok(false) => None,
            Err(error) => return Err(format!("{table} cannot be opened: {error}")),
        };
        shown.insert(*table, seen);
    }
    Ok((process, shown))
}

impl Prepared {
    /// Prepares the scenario, and does its act without trouble.
    pub fn new(scenario: Scenario) -> Self {
        alone(|| async {
            let clock = TestClock::at(EPOCH);
            let backing = Backing::memory(Arc::clone(&clock) as Arc<dyn Clock>);
            let world = World::new(Arc::clone(&backing), Arc::clone(&clock) as Arc<dyn Clock>, Arc::new(SeededIds::new(7)));
            let process = world.process().await;
            for one in &scenario.setup {
                step(&world, &process, one).await.unwrap_or_else(|e| panic!("{}: {one:?}: {e}", scenario.name));
                pass(Duration::from_millis(10)).await;
            }
            let (source, now) = (world.source.rows(), clock.now_micros() + 3_600_000_000);
            let mut prepared = Self { scenario, backing, now, source, states: vec![], ops: vec![] };
            prepared.record().await;
            prepared
        })
    }

    /// The act without a fault.
    async fn record(&mut self) {
        let (world, _) = world_at(&self.backing, self.now, &self.source, On::Memory).await;
        let (name, tables) = (self.scenario.name, self.scenario.tables);
        let process = self.open(&world).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        let look = || async { reopen(&world, tables).await.unwrap_or_else(|e| panic!("{name}: {e}")).1 };
        self.states.push(look().await);
        process.store.arm([]);
        for one in &self.scenario.act {
            step(&world, &process, one).await.unwrap_or_else(|e| panic!("{name}: {one:?}: {e}"));
            self.states.push(look().await);
        }
        self.ops = process.store.disarm();
    }

    async fn open(&self, world: &World) -> Result<Process, String> {
        let process = world.process_over(FaultStore::new(Arc::clone(&world.backing))).await;
        for table in self.scenario.tables {
            process.attach(table).await.map_err(|e| format!("attaching {table}: {e}"))?;
        }
        Ok(process)
    }

    /// The act in trouble, and everything that must hold afterwards. Whether the act came to its end.
    pub async fn interrupted(&self, trouble: &Trouble, on: On) -> Result<bool, String> {
        let (world, _clock) = world_at(&self.backing, self.now, &self.source, on).await;
        let process = self.open(&world).await?;
        let polls = Self::arm(&process.store, trouble);
        let mut done = 0;
        let act = async {
            for one in &self.scenario.act {
                step(&world, &process, one).await?;
                done += 1;
            }
            Ok::<_, Error>(())
        };
        let outcome = tokio::select! {
            biased;
            outcome = at_most(polls, act) => outcome,
            () = process.store.hung() => None,
        };
        // Tasks of a dropped future end at their next turn.
        for _ in 0..16 {
            tokio::task::yield_now().await;
        }
        process.store.disarm();
        world.service.seconds.store(0, Ordering::SeqCst);
        let is_cut = matches!(trouble, Trouble::Ops(plan) if plan.iter().any(|(_, fault)| *fault == Fault::Short));
        let certain = self.check_outcome(done, outcome.as_ref(), is_cut)?;
        self.check_same_session(&process).await?;
        drop(process);
        let (fresh, shown) = reopen(&world, self.scenario.tables).await?;
        self.check_states(&shown, done, certain)?;
        self.check_run_lists(&fresh, &shown).await?;
        self.go_on(&world, fresh).await?;
        Ok(outcome.is_some())
    }

    /// The trouble; how often the act may be polled.
    fn arm(store: &FaultStore, trouble: &Trouble) -> u64 {
        match trouble {
            Trouble::Ops(plan) => store.arm(plan.iter().copied()),
            Trouble::Full(bytes) => store.fill_after(*bytes),
            Trouble::Dropped(polls) => {
                store.yields();
                return *polls;
            }
        }
        u64::MAX
    }

    /// Whether nothing more than `done` steps can have happened. An object whose end was not read (`is_cut`) looks damaged.
    fn check_outcome(&self, done: usize, outcome: Option<&Result<(), Error>>, is_cut: bool) -> Result<bool, String> {
        let Some(outcome) = outcome else { return Ok(false) };
        let Err(error) = outcome else { return Ok(true) };
        let fits = match error.code() {
            ErrorCode::StoreFailed | ErrorCode::CommitUnknown | ErrorCode::QueryFailed => true,
            ErrorCode::Corrupt | ErrorCode::StoreUnsafe => is_cut,
            // With the failed step undone the next one meets an older state.
            ErrorCode::CaptureFailed if is_cut && error.message().contains("bytes that were announced") => true,
            ErrorCode::HandlerFailed | ErrorCode::CaptureFailed => error.message().contains("injected"),
            _ => false,
        };
        if !fits {
            return Err(format!("step {done} failed with an error that does not say that the store failed: {error}"));
        }
        let refreshes = matches!(&self.scenario.act[done], Do::Sql(sql) | Do::Fails(sql, _) if sql.starts_with("REFRESH t"));
        Ok(refreshes && error.code() != ErrorCode::CommitUnknown)
    }

    /// The session that met the fault shows a whole version too.
    async fn check_same_session(&self, process: &Process) -> Result<(), String> {
        for table in self.scenario.tables {
            let seen = match process.look(table).await {
                Ok(seen) => seen,
                Err(error) if error.code() == ErrorCode::TableNotFound => continue,
                Err(error) => return Err(format!("the same session cannot read {table}: {error}")),
            };
            let known = self.states.iter().filter_map(|state| state[table].as_ref());
            if !known.clone().any(|known| known.rows() == seen.rows()) && seen.newest() > 0 {
                return Err(format!("the same session shows rows of no version: {seen:?}"));
            }
        }
        Ok(())
    }

    /// Old or new, never mixed; nothing before the act was lost; what was acknowledged is there.
    fn check_states(&self, shown: &BTreeMap<&'static str, Shown>, done: usize, certain: bool) -> Result<(), String> {
        for table in self.scenario.tables {
            let seen = &shown[table];
            let last = if certain { done } else { (done + 1).min(self.states.len() - 1) };
            let possible = self.states[done..=last].windows(2).map(|pair| (&pair[0][table], &pair[1][table]));
            let exact = std::iter::once((&self.states[done][table], &self.states[done][table]));
            let short = self.scenario.may_stop_short && done > 0 && newest(seen) > newest(&self.states[done - 1][table]);
            let short = short.then(|| (&self.states[done - 1][table], &self.states[done][table]));
            let fits = exact.chain(possible).chain(short).any(|(from, to)| between(from, seen, to));
            if !fits {
                let expected: Vec<_> = self.states[done..=last].iter().map(|state| &state[table]).collect();
                return Err(format!("after {done} steps (certain: {certain}) {table} shows {seen:?}, expected {expected:?}"));
            }
        }
        Ok(())
    }

    async fn check_run_lists(&self, process: &Process, shown: &BTreeMap<&'static str, Shown>) -> Result<(), String> {
        for (table, _) in shown.iter().filter(|(_, seen)| seen.is_some()) {
            let sql = format!("SELECT count(*) FROM incremental_runs('{table}'); SELECT count(*) FROM incremental_versions('{table}')");
            process.sql(&sql).await.map_err(|e| format!("{table}'s history cannot be listed: {e}"))?;
        }
        Ok(())
    }

    /// The act again, the oracle, and a vacuum.
    async fn go_on(&self, world: &World, process: Process) -> Result<(), String> {
        pass(Duration::from_secs(31)).await;
        for one in &self.scenario.again {
            step(world, &process, one).await.map_err(|e| format!("again: {one:?}: {e}"))?;
        }
        let wanted = oracle(&world.source.rows());
        self.check_answers(&process).await?;
        for round in ["again", "after a vacuum"] {
            let (_, shown) = reopen(world, self.scenario.tables).await?;
            for table in self.scenario.tables {
                let found = shown[table].as_ref().and_then(Seen::rows);
                if found != Some(&wanted) {
                    return Err(format!("{round}: {table} shows {found:?}, the oracle says {wanted:?}"));
                }
            }
            if round == "again" {
                pass(Duration::from_secs(25 * 3600)).await;
                for table in self.scenario.tables {
                    let vacuum = format!("CALL incremental.vacuum('{table}', dry_run => false, older_than => '0 s')");
                    process.sql(&vacuum).await.map_err(|e| format!("the last vacuum: {e}"))?;
                }
            }
        }
        self.check_no_orphans(world, &process).await
    }

    /// The same run id asked twice more gives one answer.
    async fn check_answers(&self, process: &Process) -> Result<(), String> {
        for one in &self.scenario.again {
            let Do::Sql(sql) = one else { continue };
            if !sql.starts_with("REFRESH t") || !sql.contains("RUN '") {
                continue;
            }
            let (left, right) = (process.sql(sql).await, process.sql(sql).await);
            match (left, right) {
                (Ok(left), Ok(right)) if left == right => {}
                (left, right) => return Err(format!("{sql} twice more: {left:?} and {right:?}")),
            }
        }
        Ok(())
    }

    /// After a vacuum only what a version names is left beside logs and records, and of the rows' files only the newest's.
    async fn check_no_orphans(&self, world: &World, process: &Process) -> Result<(), String> {
        let mut named = BTreeSet::new();
        let mut roots = vec![];
        for table in self.scenario.tables {
            let failed = |e: Error| format!("listing the files of {table}: {e}");
            let handle = process.session.incremental_table(*table).await.map_err(failed)?;
            named.extend(named_objects(handle.incarnation()).await.map_err(failed)?);
            roots.push(handle.incarnation().path("").to_string());
        }
        let is_orphan = |path: &String| !named.contains(path) && !is_record(&roots, path) && !path.starts_with(FILES);
        let orphans: Vec<String> = world.backing.listed().await.into_keys().filter(is_orphan).collect();
        if orphans.is_empty() { Ok(()) } else { Err(format!("a vacuum does not find {orphans:?}")) }
    }
}

/// Whether the object is an entry of a log or a record of a run of one of these incarnations, or of the table log.
pub fn is_record(roots: &[String], path: &str) -> bool {
    let relative = roots.iter().find_map(|root| path.strip_prefix(root.as_str())).map(|path| path.trim_start_matches('/'));
    let Some(relative) = relative else { return path.contains("/table/") };
    let parts: Vec<&str> = relative.split('/').collect();
    matches!(parts[..], ["versions" | "revisions" | "lease", _] | ["runs", _, _] | ["runs", _, "lease", _])
}

/// The newest version's objects, and the small ones of older versions, which wait for a fence.
pub async fn named_objects(incarnation: &Incarnation) -> Result<BTreeSet<String>, Error> {
    let mut named = BTreeSet::new();
    let newest = incarnation.newest_version().await?.map_or(0, |slot| slot.version);
    for version in 1..=newest {
        let Some(slot) = incarnation.slot(version).await? else { continue };
        named.insert(incarnation.path(&slot.manifest).to_string());
        let manifest = match incarnation.manifest(&slot).await {
            Err(error) if error.code() == ErrorCode::HistoryMissing && version < newest => continue,
            manifest => manifest?,
        };
        let mut objects: Vec<String> = manifest.parts.iter().chain(&manifest.source).map(|object| object.path.clone()).collect();
        if version == newest {
            let files = incarnation.files(&manifest).await?;
            objects.extend(files.iter().flat_map(|file| file.objects()).map(|object| object.path.clone()));
        }
        named.extend(objects.iter().map(|path| incarnation.path(path).to_string()));
    }
    Ok(named)
}

fn newest(shown: &Shown) -> u64 {
    shown.as_ref().map_or(0, Seen::newest)
}

/// Whether `seen` is `from`, `to`, or on the way: some of the versions that `to` has beyond `from`, in order.
fn between(from: &Shown, seen: &Shown, to: &Shown) -> bool {
    if seen == from || seen == to {
        return true;
    }
    let (Some(seen), Some(to)) = (seen, to) else {
        // Created or dropped on the way, without a version.
        return seen.as_ref().is_none_or(|seen| seen.versions.is_empty());
    };
    let kept = match from {
        Some(from) if from.incarnation == seen.incarnation => from.versions.len(),
        _ => 0,
    };
    let prefix = seen.versions.iter().all(|(version, rows)| {
        let before = from.as_ref().and_then(|from| from.versions.get(version));
        Some(rows) == before || to.versions.get(version).is_some_and(|to| to == rows)
    });
    prefix && seen.versions.len() >= kept && seen.versions.len() <= to.versions.len()
}
