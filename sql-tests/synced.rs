//! Random histories of synced tables against a naive model of what each mode promises.
//!
//! ```text
//! seed ──► a source (rows with a cursor: ties, nulls, deletions) ──► steps: change it, sync, fail, reconcile, switch the mode
//!                     └─► after every run that ended well: the table = the model; after any other: the table = what it was
//! ```
//!
//! `SYNC_HISTORIES` histories (60) run; `SYNC_SEED` runs one alone and prints its steps.

#[path = "faults/clock.rs"]
mod clock;
#[path = "synced/history.rs"]
mod history;
#[path = "synced/model.rs"]
mod model;
#[path = "harness/outside.rs"]
mod outside;
#[path = "synced/schedules.rs"]
mod schedules;
#[path = "synced/surface.rs"]
mod surface;

#[test]
fn histories_equal_what_the_mode_promises() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("SYNC_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SYNC_HISTORIES").unwrap_or(60),
    };
    let verbose = number("SYNC_SEED").is_some();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_stack_size(16 << 20).enable_all().build().unwrap();
    let mut failures = vec![];
    for seed in seeds {
        let history = runtime.spawn(async move { history::History::new(seed, verbose).await.run().await });
        match runtime.block_on(history).unwrap() {
            Ok(()) => {}
            Err(failure) => failures.push(format!("SYNC_SEED={seed}: {failure}")),
        }
        if failures.len() >= 3 {
            break;
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
