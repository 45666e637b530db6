//! Random histories of random tables against a naive model.
//!
//! ```text
//! seed ──► a schema of random types ──► ≥ 8 steps: change the rows, write them down in another way, act
//!                                           └─► the published table = the model's full recompute, the counts = the model's
//! ```
//!
//! `MODEL_HISTORIES` histories (1,000) run for each key hash; `MODEL_SEED` runs one alone and prints its steps.
//! Everything follows from the seed, so a failure names the command that repeats it.

#[path = "model/handler.rs"]
mod handler;
#[path = "model/history.rs"]
mod history;
#[path = "model/source.rs"]
mod source;
#[path = "model/values.rs"]
mod values;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion_incremental::exec::equality::KeyHash;

use history::{History, Totals};

#[test]
fn histories_equal_a_full_recompute() {
    run_all(KeyHash::Xxh3, "xxh3");
}

/// The same with one hash for every key: only exact comparison tells keys apart.
#[test]
fn histories_with_a_constant_key_hash_equal_a_full_recompute() {
    run_all(KeyHash::Constant, "constant");
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn run_all(hash: KeyHash, name: &str) {
    let seeds = match number("MODEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("MODEL_HISTORIES").unwrap_or(1000),
    };
    let verbose = number("MODEL_SEED").is_some();
    let (next, totals, failures) = (AtomicU64::new(seeds.start), Mutex::new(Totals::default()), Mutex::new(Vec::new()));
    let workers = std::thread::available_parallelism().map_or(2, usize::from).min(8);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    // A few failures are enough to see a pattern.
                    if seed >= seeds.end || failures.lock().unwrap().len() >= 5 {
                        break;
                    }
                    match run_one(seed, hash, verbose) {
                        Ok(done) => totals.lock().unwrap().add(&done),
                        Err(failure) => failures.lock().unwrap().push((seed, failure)),
                    }
                }
            });
        }
    });
    println!("key hash {name}: {}", totals.into_inner().unwrap());
    let failures = failures.into_inner().unwrap();
    for (seed, failure) in &failures {
        println!(
            "--- seed {seed} with key hash {name} (MODEL_SEED={seed} cargo test --features cli --test model -- --nocapture)\n{failure}\n"
        );
    }
    assert!(failures.is_empty(), "{} histories failed with key hash {name}", failures.len());
}

/// One history on a runtime of its own, with a deep stack for debug builds.
fn run_one(seed: u64, hash: KeyHash, verbose: bool) -> Result<Totals, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_stack_size(16 << 20).enable_all().build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    let history = runtime.spawn(async move { History::new(seed, hash, verbose).await?.run().await });
    match runtime.block_on(history) {
        Ok(outcome) => outcome,
        Err(panic) => Err(format!("the history panicked: {panic}")),
    }
}
