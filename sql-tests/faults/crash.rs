//! The crash matrix: every scenario, every store operation, every way in which it can fail; full disks; dropped futures.
//!
//! `CRASH_ONLY` runs the scenarios whose name contains it. `CRASH_PAIRS` (2,000) is how many combinations of two faults
//! are sampled, from the seed `CRASH_SEED` (1).

use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::case::{On, Prepared, Trouble};
use super::scenarios::all;
use super::store::{Fault, Kind, Op};
use super::world::{alone, in_parallel, number};

/// The ways in which one operation can fail.
fn faults(op: &Op) -> Vec<Fault> {
    let mut faults = vec![Fault::FailsBefore, Fault::Hangs, Fault::Down];
    if matches!(op.kind, Kind::Get | Kind::Ranges) {
        faults.push(Fault::Short);
    }
    if op.kind.writes() {
        faults.extend([Fault::FailsAfter, Fault::HangsAfter, Fault::DownAfter]);
    }
    faults
}

fn enough() -> usize {
    usize::try_from(number("CRASH_FAILURES", 10)).unwrap_or(10)
}

fn prepared() -> Vec<Prepared> {
    let only = std::env::var("CRASH_ONLY").unwrap_or_default();
    all().into_iter().filter(|scenario| scenario.name.contains(&only)).map(Prepared::new).collect()
}

/// A scenario by its number, its trouble, and what went wrong.
type Failure = ((usize, Trouble), String);

fn report(failures: Vec<Failure>, prepared: &[Prepared]) {
    for ((at, trouble), failure) in &failures {
        let ready = &prepared[*at];
        let ops: Vec<String> = match trouble {
            Trouble::Ops(plan) => {
                plan.iter().map(|(k, fault)| format!("{k}: {} {fault:?}", ready.ops.get(*k).map_or("-".into(), Op::to_string))).collect()
            }
            other => vec![format!("{other:?}")],
        };
        println!("--- {}: {}\n{failure}\n", ready.scenario.name, ops.join(", "));
    }
    assert!(failures.is_empty(), "{} cases failed", failures.len());
}

fn run(prepared: &[Prepared], cases: Vec<(usize, Trouble)>, on: On) {
    let (total, ended) = (cases.len(), AtomicU64::new(0));
    let failures = in_parallel(cases, enough(), |(at, trouble)| {
        let is_whole = alone(|| prepared[*at].interrupted(trouble, on))?;
        ended.fetch_add(u64::from(is_whole), Ordering::SeqCst);
        Ok(())
    });
    println!("{total} cases; in {} of them the act had an answer", ended.into_inner());
    report(failures, prepared);
}

fn one(k: usize, fault: Fault) -> Trouble {
    Trouble::Ops(vec![(k, fault)])
}

#[test]
fn crash_matrix() {
    let prepared = prepared();
    let mut cases = vec![];
    for (at, ready) in prepared.iter().enumerate() {
        let before = cases.len();
        for (k, op) in ready.ops.iter().enumerate() {
            cases.extend(faults(op).into_iter().map(|fault| (at, one(k, fault))));
        }
        println!("{}: {} operations, {} cases", ready.scenario.name, ready.ops.len(), cases.len() - before);
    }
    run(&prepared, cases, On::Memory);
}

/// The same on the local disk, for some scenarios, each operation in one of the ways by turns.
#[test]
fn crash_on_disk() {
    let some = ["first run, proven", "incremental, registered", "vacuum", "drop and create"];
    let prepared: Vec<Prepared> = prepared().into_iter().filter(|ready| some.contains(&ready.scenario.name)).collect();
    let mut cases = vec![];
    for (at, ready) in prepared.iter().enumerate() {
        for (k, op) in ready.ops.iter().enumerate() {
            let faults = faults(op);
            cases.push((at, one(k, faults[k % faults.len()])));
        }
    }
    run(&prepared, cases, On::Disk);
}

#[test]
fn crash_pairs() {
    let prepared = prepared();
    let (pairs, seed) = (number("CRASH_PAIRS", 2000), number("CRASH_SEED", 1));
    let mut rng = SmallRng::seed_from_u64(seed);
    let cases = (0..pairs).map(|_| {
        let at = rng.random_range(0..prepared.len());
        let ops = &prepared[at].ops;
        let mut one = |from: usize| {
            // The first fault may add operations: retries and reads back.
            let k = rng.random_range(from..ops.len() + 4);
            let mut choices = vec![Fault::FailsBefore, Fault::FailsAfter, Fault::Hangs, Fault::HangsAfter, Fault::Down, Fault::DownAfter];
            // A record that is cut; cut data files are the corruption tests'.
            if from == 0 && ops.get(k).is_some_and(|op| !op.kind.writes() && op.path.ends_with(".json")) {
                choices.push(Fault::Short);
            }
            (k, choices[rng.random_range(0..choices.len())])
        };
        let first = one(0);
        (at, Trouble::Ops(vec![first, one(first.0.min(ops.len() - 1))]))
    });
    println!("two faults, of seed {seed}");
    run(&prepared, cases.collect(), On::Memory);
}

/// The disk is full after so many bytes: 200 points, spread over what each of some scenarios writes.
#[test]
fn crash_of_a_full_disk() {
    const POINTS: u64 = 200;
    let some = ["first run, proven", "incremental, registered", "compaction", "vacuum", "alter"];
    let prepared: Vec<Prepared> = prepared().into_iter().filter(|ready| some.contains(&ready.scenario.name)).collect();
    let share = POINTS / prepared.len().max(1) as u64;
    let cases = prepared.iter().enumerate().flat_map(|(at, ready)| {
        let bytes: u64 = ready.ops.iter().map(|op| op.bytes).sum();
        (0..share).map(move |point| (at, Trouble::Full(bytes * point / share)))
    });
    run(&prepared, cases.collect(), On::Memory);
}

/// The future is dropped at every one of its polls.
#[test]
fn crash_of_a_future_dropped_at_each_await() {
    let prepared = prepared();
    let (total, longest) = (AtomicU64::new(0), AtomicU64::new(0));
    let failures = in_parallel((0..prepared.len()).collect(), enough(), |at| {
        for polls in 1.. {
            total.fetch_add(1, Ordering::SeqCst);
            let trouble = Trouble::Dropped(polls);
            let whole = alone(|| prepared[*at].interrupted(&trouble, On::Memory));
            if whole.map_err(|e| format!("dropped at poll {polls}: {e}"))? {
                longest.fetch_max(polls, Ordering::SeqCst);
                return Ok(());
            }
        }
        Ok(())
    });
    println!("dropped at {} places, of at most {} in one scenario", total.into_inner(), longest.into_inner());
    assert!(failures.is_empty(), "{:#?}", failures.iter().map(|(at, e)| (prepared[*at].scenario.name, e)).collect::<Vec<_>>());
}
