//! Random histories of a chain of tables: with hand-on, without it, and what a full recompute would publish.
//!
//! ```text
//! s ──► a ──► b ──► c          hand_on = true           after every step: rows as the model says, in all of them;
//!       └───► b0   └─► c0      hand_on = false          runs of b and b0, of c and c0: the same reason and counts
//! ```
//!
//! `CHAIN_HISTORIES` histories (60) run; `CHAIN_SEED` runs one alone and prints its steps.

#[path = "chain/cases.rs"]
mod cases;
#[path = "model/handler.rs"]
#[allow(dead_code)] // the model's own use of it differs
mod handler;
#[path = "chain/history.rs"]
mod history;

use history::{History, Totals};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_with_hand_on_equals_one_without() {
    let seeds = match number("CHAIN_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CHAIN_HISTORIES").unwrap_or(60),
    };
    let verbose = number("CHAIN_SEED").is_some();
    let mut totals = Totals::default();
    for seed in seeds.clone() {
        if let Err(failure) = History::new(seed, verbose).await.run(&mut totals).await {
            panic!("seed {seed} (CHAIN_SEED={seed} cargo test --features cli --test chain -- --nocapture)\n{failure}");
        }
    }
    println!("{totals:?}");
    // A test of hand-on in which nothing is handed on shows nothing.
    assert!(verbose || totals.handed_on * 3 > totals.runs, "{totals:?}");
}
