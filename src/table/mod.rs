//! What DataFusion sees: the table provider.
//!
//! ```text
//! TableHandle ── newest / version n / at a time / a draft's output ──► Snapshot
//!      └── IncrementalTable (TableProvider, reads only) ── PinRule: one snapshot per statement and table
//! ```
//!
//! Nothing here writes.

mod handle;
mod pin;
mod provider;
mod snapshot;
#[cfg(test)]
mod tests;

pub use handle::TableHandle;
pub(crate) use handle::shown_name;
pub use pin::PinRule;
pub use provider::IncrementalTable;
pub use snapshot::Snapshot;
