//! Races for one version, without the lease: it looks expired to everybody, so only the version slots decide.
//!
//! ```text
//! 8, 16, 64 publishers ─ all at the slot of version 2 ─► one winner, the others RUN_CONFLICT
//!                      └ every operation late at random ─► acknowledged = versions, none lost
//! two publishers × 6 stations: all C(12, 6) = 924 orders
//! rollback, compaction, run or vacuum that sleeps for minutes while the others go on
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::UInt64Type;
use datafusion_incremental::env::{Clock, SeededIds};
use datafusion_incremental::store::{CommitOutcome, Incarnation};
use datafusion_incremental::{Error, ErrorCode};
use futures::future::join_all;

use super::backing::Backing;
use super::clock::{EPOCH, TestClock, pass};
use super::gate::{Barrier, Hold, Latency, Of, STATIONS, Schedule};
use super::store::{FaultStore, Gate};
use super::world::{Process, ROOT, Rows, Source, World, alone, in_parallel, oracle, rows};

/// A table `t` with version 1, and leases that look a minute old when they are written.
async fn table(options: &str) -> (World, Process) {
    let clock: Arc<dyn Clock> = TestClock::at(EPOCH);
    let backing = Backing::memory(Arc::clone(&clock)).aged("/lease/", 60_000_000);
    let world = World::new(backing, clock, Arc::new(SeededIds::new(3)));
    world.source.set(rows(&[(1, "a"), (2, "b")]));
    let process = world.process().await;
    let create =
        format!("CREATE INCREMENTAL TABLE t FROM s KEY (id) LOCATION '{ROOT}/t/' WITH ({options}) AS SELECT id, upper(v) AS o FROM input");
    process.sql(&create).await.unwrap();
    process.sql("REFRESH t").await.unwrap();
    (world, process)
}

const PLAIN: &str = "compaction = 'off'";

/// What publisher `who` sees of the source.
fn sees(who: usize) -> Rows {
    (0..3).map(|id| (id, format!("w{who}"))).collect()
}

/// A process with a source of its own and a gate.
async fn publisher(world: &World, who: usize, gate: Arc<dyn Gate>) -> Process {
    let own = World { source: Source::new(sees(who)), ..world.clone() };
    let process = own.process_over(FaultStore::gated(Arc::clone(&world.backing), gate)).await;
    process.attach("t").await.unwrap();
    process
}

/// The version that a refresh published.
async fn published(process: &Process) -> Result<u64, Error> {
    let batches = process.sql("SELECT version FROM incremental_refresh('t')").await?;
    Ok(batches.iter().find(|batch| batch.num_rows() == 1).map_or(0, |batch| batch.column(0).as_primitive::<UInt64Type>().value(0)))
}

/// The version that a refresh under this run id published.
async fn published_as(process: &Process, run: &str) -> Result<u64, Error> {
    let batches = process.sql(&format!("REFRESH t RUN '{run}'")).await?;
    let version = batches.first().and_then(|batch| batch.column_by_name("version")).expect("a summary");
    Ok(version.as_primitive::<UInt64Type>().value(0))
}

/// Every acknowledged version is there with its publisher's rows, and there are no others beyond version `base`.
async fn check_all_there(world: &World, base: u64, outcomes: Vec<Result<u64, Error>>) -> Result<usize, String> {
    let mut won = BTreeMap::new();
    for (who, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(version) if won.insert(version, who).is_some() => return Err(format!("version {version} has two winners")),
            Ok(_) => {}
            Err(error) if matches!(error.code(), ErrorCode::RunConflict | ErrorCode::RunActive) => {}
            Err(error) => return Err(format!("publisher {who}: {error}")),
        }
    }
    let reader = world.process().await;
    reader.attach("t").await.map_err(|e| e.to_string())?;
    let seen = reader.look("t").await.map_err(|e| e.to_string())?;
    let versions: BTreeSet<u64> = seen.versions.keys().copied().filter(|version| *version > base).collect();
    if versions != won.keys().copied().collect() {
        return Err(format!("versions {versions:?} are there, {won:?} were acknowledged"));
    }
    for (version, who) in &won {
        let found = seen.versions.get(version).and_then(Option::as_ref);
        if found != Some(&oracle(&sees(*who))) {
            return Err(format!("version {version} of publisher {who} holds {found:?}"));
        }
    }
    Ok(won.len())
}

#[test]
fn races_at_one_slot_have_one_winner() {
    for (publishers, rounds) in [(8, 6), (16, 4), (64, 2)] {
        let outcome = alone(|| async move {
            let (world, _) = table(PLAIN).await;
            for round in 1..=rounds {
                let slot: Of = |op| op.kind.writes() && op.path.contains("/versions/");
                let gate = Barrier::of(slot, publishers);
                let all = join_all((0..publishers).map(|who| publisher(&world, who, gate.clone()))).await;
                let outcomes = join_all(all.iter().map(published)).await;
                let won = check_all_there(&world, round, outcomes).await?;
                if won != 1 {
                    return Err(format!("{won} winners"));
                }
            }
            Ok(())
        });
        outcome.unwrap_or_else(|e| panic!("{publishers} publishers: {e}"));
        println!("{publishers} publishers at one slot, {rounds} rounds: one winner each");
    }
}

#[test]
fn races_with_late_operations_lose_nothing() {
    let cases = [(8, 1), (8, 2), (8, 3), (8, 4), (16, 5), (16, 6), (64, 7), (64, 8)];
    let failures = in_parallel(cases.to_vec(), 5, |(publishers, seed)| {
        alone(|| async {
            let (world, _) = table(PLAIN).await;
            let gates = (0..*publishers).map(|who| Latency::new(seed * 1000 + who as u64, 40));
            let all = join_all(gates.enumerate().map(|(who, gate)| publisher(&world, who, gate))).await;
            let outcomes = join_all(all.iter().map(published)).await;
            let won = check_all_there(&world, 1, outcomes).await?;
            println!("{publishers} publishers, seed {seed}: {won} published, {} refused", publishers - won);
            if won == 0 { Err("nobody published".to_string()) } else { Ok(()) }
        })
    });
    assert!(failures.is_empty(), "{failures:?}");
}

/// The slots alone, on several threads: every version has one winner, every publisher's version is the one that it was told.
#[test]
fn races_of_commits_on_threads() {
    for (publishers, versions) in [(8, 100), (16, 60), (64, 20)] {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_stack_size(16 << 20).enable_all().build().unwrap();
        runtime.block_on(async {
            let (world, process) = table(PLAIN).await;
            let first = process.session.incremental_table("t").await.unwrap();
            let manifest = first.newest_manifest().await.unwrap().unwrap();
            let mut others = vec![];
            for _ in 0..publishers {
                let other = world.process().await;
                other.attach("t").await.unwrap();
                others.push(other.session.incremental_table("t").await.unwrap().incarnation().clone());
            }
            for version in 2..2 + versions {
                let manifest = datafusion_incremental::store::Manifest { version, base: Some(version - 1), ..manifest.as_ref().clone() };
                let commit = |who: usize, incarnation: Incarnation| {
                    let manifest = manifest.clone();
                    async move {
                        let run = datafusion_incremental::spec::RunId::new(format!("r{who}")).unwrap();
                        incarnation.commit(&manifest, &run, &format!("a{who}-{version}")).await.unwrap()
                    }
                };
                let commits = others.iter().cloned().enumerate();
                let tasks: Vec<_> = commits.map(|(who, inc)| datafusion::common::runtime::SpawnedTask::spawn(commit(who, inc))).collect();
                let outcomes: Vec<CommitOutcome> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
                let winners: Vec<_> = outcomes.iter().filter(|outcome| matches!(outcome, CommitOutcome::Committed(_))).collect();
                assert_eq!(winners.len(), 1, "version {version}");
                let slots: BTreeSet<String> = outcomes
                    .iter()
                    .map(|outcome| match outcome {
                        CommitOutcome::Committed(slot) | CommitOutcome::Lost(slot) => slot.attempt.clone(),
                    })
                    .collect();
                assert_eq!(slots.len(), 1, "all were told the same winner of version {version}");
            }
        });
        println!("{publishers} publishers, {versions} versions on 2 threads: one winner each");
    }
}

/// Two publishers whose stations come in this order (a bit for each turn); what each was told.
async fn in_order(world: &World, order: u32, runs: [&str; 2]) -> Vec<Result<u64, Error>> {
    let schedule = Schedule::new((0..12).map(|place| usize::from(order >> place & 1 == 1)));
    let (a, b) = (publisher(world, 0, schedule.gate(0)).await, publisher(world, 1, schedule.gate(1)).await);
    let run = |who: usize, process: Process| {
        let schedule = Arc::clone(&schedule);
        async move {
            let outcome = published_as(&process, runs[who]).await;
            schedule.end(who);
            outcome
        }
    };
    let (left, right) = tokio::join!(run(0, a), run(1, b));
    vec![left, right]
}

fn orders() -> Vec<u32> {
    let orders: Vec<u32> = (0..1_u32 << 12).filter(|order| order.count_ones() == 6).collect();
    assert_eq!((orders.len(), STATIONS.len()), (924, 6));
    orders
}

/// Every order of two publishers' stations.
#[test]
fn races_of_two_in_every_order() {
    let failures = in_parallel(orders(), 5, |order| {
        alone(|| async {
            let (world, _) = table(PLAIN).await;
            let outcomes = in_order(&world, *order, ["one", "two"]).await;
            let won = check_all_there(&world, 1, outcomes).await?;
            if won == 0 { Err("nobody published".to_string()) } else { Ok(()) }
        })
    });
    println!("two publishers, 924 orders");
    assert!(failures.is_empty(), "{failures:?}");
}

/// Every order of two attempts at one run id, with sources that differ: one version, one answer.
#[test]
fn races_of_one_run_id_in_every_order() {
    let failures = in_parallel(orders(), 5, |order| {
        alone(|| async {
            let (world, _) = table(PLAIN).await;
            let outcomes = in_order(&world, *order, ["same", "same"]).await;
            let refused = |error: &Error| matches!(error.code(), ErrorCode::RunConflict | ErrorCode::RunStale | ErrorCode::RunActive);
            if let Some(error) = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).find(|error| !refused(error)) {
                return Err(format!("an attempt failed: {error}"));
            }
            let reader = world.process().await;
            reader.attach("t").await.map_err(|e| e.to_string())?;
            // Asked again, whatever was refused finds out.
            let again = published_as(&reader, "same").await.map_err(|e| format!("asked again: {e}"))?;
            let seen = reader.look("t").await.map_err(|e| e.to_string())?;
            let possible = [oracle(&sees(0)), oracle(&sees(1))];
            let whole = seen.rows().is_some_and(|rows| possible.contains(rows));
            if (again, seen.newest(), whole) != (2, 2, true) || outcomes.iter().flatten().any(|version| *version != 2) {
                return Err(format!("{outcomes:?}, again {again}, and the table shows {seen:?}"));
            }
            Ok(())
        })
    });
    println!("two attempts at one run id, 924 orders");
    assert!(failures.is_empty(), "{failures:?}");
}

/// Holds `sleeper` at its first operation of this kind, lets the others do `meanwhile` minutes later, and wakes it up.
async fn sleeps(world: &World, at: Of, sleeper: &str, meanwhile: &[&str]) -> Result<(Option<ErrorCode>, Vec<Option<ErrorCode>>), String> {
    let hold = Hold::at(at);
    let process = world.process_over(FaultStore::gated(Arc::clone(&world.backing), hold.clone())).await;
    process.attach("t").await.map_err(|e| e.to_string())?;
    hold.close();
    let compacts = sleeper.contains("compact");
    let (asleep, awake) = tokio::sync::oneshot::channel::<()>();
    let others = async {
        // Some never come to that operation.
        tokio::select! {
            () = hold.reached() => {}
            _ = awake => {}
        }
        // A compaction has no record that says that it is at work: only its files' age could tell. A run looks for its
        // cancellation twice a second, so its night is short.
        let seconds = if compacts { 26 * 3600 } else { 120 };
        pass(Duration::from_secs(seconds)).await;
        let other = world.process().await;
        other.attach("t").await.unwrap();
        let mut codes = vec![];
        for sql in meanwhile {
            codes.push(other.code(sql).await);
        }
        hold.open();
        codes
    };
    let sleeper = async {
        let outcome = process.code(sleeper).await;
        drop(asleep);
        outcome
    };
    let (outcome, codes) = tokio::join!(sleeper, others);
    let reader = world.process().await;
    reader.attach("t").await.map_err(|e| e.to_string())?;
    let seen = reader.look("t").await.map_err(|e| format!("the newest version is broken: {e}"))?;
    // Whatever it shows, it shows a whole state of the source.
    let possible = [rows(&[(1, "A"), (2, "B")]), rows(&[(1, "A"), (3, "C")])];
    if !seen.rows().is_some_and(|rows| possible.contains(rows)) {
        return Err(format!("the newest version holds {:?}", seen.rows()));
    }
    reader.sql("REFRESH t").await.map_err(|e| format!("the next refresh: {e}"))?;
    let shown = reader.look("t").await.map_err(|e| e.to_string())?;
    if shown.rows() != Some(&oracle(&world.source.rows())) {
        return Err(format!("after the next refresh: {:?}", shown.rows()));
    }
    Ok((outcome, codes))
}

const VACUUM: &str = "CALL incremental.vacuum('t', dry_run => false, older_than => '0 s')";
const ROLLBACK: &str = "CALL incremental.rollback('t', version => 1)";

/// Whoever sleeps through a vacuum, at whichever operation, publishes nothing that was deleted.
#[test]
fn sleepers_never_publish_what_a_vacuum_deleted() {
    let asleep: Vec<Of> = vec![
        |op| op.kind.writes() && op.path.contains("/versions/"),
        |op| op.kind.writes() && op.path.contains("/manifests/"),
        |op| op.kind.writes() && op.path.contains("/sources/"),
        |op| op.path.contains("/versions/") && op.path.ends_with("1.json"),
        |op| op.kind.writes() && op.path.contains("/data/"),
        |op| op.path.ends_with("/seal.json") && op.kind.writes(),
    ];
    let sleepers = [ROLLBACK, "CALL incremental.compact('t')", "REFRESH t", "REFRESH t FULL", VACUUM];
    let meanwhile: [&[&str]; 4] = [&[VACUUM], &[VACUUM, VACUUM], &["REFRESH t", VACUUM], &[ROLLBACK, VACUUM]];
    let mut cases = vec![];
    for (at, _) in asleep.iter().enumerate() {
        for sleeper in sleepers {
            cases.extend(meanwhile.iter().map(|meanwhile| (at, sleeper, *meanwhile)));
        }
    }
    let total = cases.len();
    let failures = in_parallel(cases, 20, |(at, sleeper, meanwhile)| {
        alone(|| async {
            let (world, process) = table(PLAIN).await;
            world.source.set(rows(&[(1, "a"), (3, "c")]));
            process.sql("REFRESH t FULL").await.map_err(|e| e.to_string())?;
            let slept = sleeps(&world, asleep[*at], sleeper, meanwhile);
            slept.await.map(drop)
        })
    });
    println!("{total} sleepers");
    assert!(failures.is_empty(), "{failures:#?}");
}

/// A vacuum that sleeps while it deletes finds nothing back in use when it wakes up.
#[test]
fn sleepers_that_vacuum_delete_nothing_in_use() {
    let deleting: Vec<Of> = vec![
        |op| op.kind == super::store::Kind::Delete && op.path.contains("/data/"),
        |op| op.kind == super::store::Kind::Delete && !op.path.contains("/clock/") && !op.path.contains("/probe/"),
        |op| op.kind == super::store::Kind::List && !op.path.contains("/versions") && !op.path.contains("/table"),
    ];
    let meanwhile: [&[&str]; 4] =
        [&[ROLLBACK], &[ROLLBACK, "REFRESH t"], &["REFRESH t FULL", ROLLBACK], &["CALL incremental.rollback('t', version => 2)", ROLLBACK]];
    let cases: Vec<_> = (0..deleting.len()).flat_map(|at| meanwhile.iter().map(move |meanwhile| (at, *meanwhile))).collect();
    let failures = in_parallel(cases, 20, |(at, meanwhile)| {
        alone(|| async {
            let (world, process) = table(PLAIN).await;
            world.source.set(rows(&[(1, "a"), (3, "c")]));
            process.sql("REFRESH t FULL").await.map_err(|e| e.to_string())?;
            let (_, codes) = sleeps(&world, deleting[*at], VACUUM, meanwhile).await?;
            let allowed = |code: &Option<ErrorCode>| code.is_none_or(|code| code == ErrorCode::HistoryMissing);
            if codes.iter().all(allowed) { Ok(()) } else { Err(format!("{codes:?}")) }
        })
    });
    assert!(failures.is_empty(), "{failures:#?}");
}
