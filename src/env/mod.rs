//! The injected world: clock, ids and the store.
//!
//! ```text
//! Env ── Clock   wall time, elapsed time, sleep     (SystemClock | a test's clock)
//!     ├─ Ids     unique ids, random secrets         (RandomIds   | seeded ids)
//!     └─ open_store(url) → the object store of a table's location, durable on local disk
//! ```
//!
//! Nothing outside this folder reads a clock or a random source; `.clippy.toml` enforces it.

mod clock;
mod durable;
mod ids;
mod location;
mod stack;
pub(crate) mod staged;
mod whole;

use std::sync::Arc;

pub use clock::{Clock, SystemClock};
pub use durable::DurableLocalStore;
pub(crate) use durable::LocalFailure;
pub(crate) use ids::hex;
pub use ids::{Ids, RandomIds, SeededIds};
pub use location::Location;
pub(crate) use stack::on_large_stack;
pub(crate) use whole::WholeStores;

/// Clock and ids, shared by everything that acts.
#[derive(Debug, Clone)]
pub struct Env {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Unique ids and secrets.
    pub ids: Arc<dyn Ids>,
}

impl Default for Env {
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock::default()), ids: Arc::new(RandomIds) }
    }
}
