//! A seeded simulation: several processes on a store that is slow, fails, hangs and loses answers; the model is the oracle
//! after each step.
//!
//! ```text
//! seed ─► table and handler ─► 40 steps: edit the source ─ up to three acts at once, a reader beside them ─ heal ─ check
//!           the source is rows, or files that may be skipped; sometimes a second table reads the first
//!           acts: refresh, FULL, draft, retry, cancel, rollback, compaction, vacuum, restart, a clock that jumps
//!           operations: late, seconds late, a minute late (the lease runs out), failed, applied but failed, never answered
//! ```
//!
//! One thread, paused time, seeded ids: the same seed gives the same operations at the same times. `SIM_SEEDS` (500) is
//! the number of seeds, from `SIM_FIRST` (0); `SIM_SEED` runs one alone and prints what it does; `SIM_STEPS` (40). The longer
//! run:
//!
//! ```text
//! SIM_SEEDS=20000 cargo test --features cli --test faults simulation::simulation -- --exact --nocapture
//! ```
//!
//! Acts are statements. Table functions are planned on a thread of their own, where time is not paused: an operation that
//! hangs there is `planning`'s test.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::model::Totals;
use super::simulated::Simulation;
use super::world::{alone, in_parallel, number};

fn one(seed: u64, steps: u64, verbose: bool) -> Result<(Totals, String), String> {
    alone(|| async move { Simulation::new(seed, verbose).await.run(steps).await })
}

#[test]
fn simulation() {
    let steps = number("SIM_STEPS", 40);
    let alone = std::env::var("SIM_SEED").ok().and_then(|seed| seed.parse().ok());
    let first = number("SIM_FIRST", 0);
    let seeds: Vec<u64> = match alone {
        Some(seed) => vec![seed],
        None => (first..first + number("SIM_SEEDS", 500)).collect(),
    };
    let (totals, done) = (Mutex::new(Totals::default()), AtomicU64::new(0));
    let failures = in_parallel(seeds, 5, |seed| {
        let (found, _) = one(*seed, steps, alone.is_some())?;
        totals.lock().unwrap().add(&found);
        done.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    println!("simulation: {} seeds of {steps} steps: {}", done.into_inner(), totals.into_inner().unwrap());
    for (seed, failure) in &failures {
        println!(
            "--- seed {seed} (SIM_SEED={seed} SIM_STEPS={steps} cargo test --features cli --test faults simulation::simulation -- --exact --nocapture)\n{failure}\n"
        );
    }
    assert!(failures.is_empty(), "{} seeds failed", failures.len());
}

#[test]
fn simulation_of_one_seed_is_the_same_again() {
    for seed in [1, 2, 3, 4, 5, 6] {
        let (left, right) = (one(seed, 30, false).unwrap(), one(seed, 30, false).unwrap());
        assert_eq!(left.1, right.1, "seed {seed}");
        assert_ne!(left.1, one(seed + 100, 30, false).unwrap().1);
    }
}
