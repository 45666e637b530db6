//! The source of a table: which table it is, what brings it back, what is in it right now, and the plan that reads it.
//!
//! ```text
//! CREATE …  ─ describe ─► SourceSpec { name, statements }        kept with the revision, never a secret
//!                              │
//! a run     ─ resolve ──► ResolvedSource { state, provider, schema }
//!                              ├─ identity()   before ─┐
//!                              ├─ plan_files(columns)  ├─ same_identity: a source that moved fails the run
//!                              └─ identity()   after ──┘
//! ```
//!
//! Everything happens in a *derived* session: the session's catalogs, functions, stores, memory pool and disk, but
//! caches of its own that live for one capture. DataFusion's list cache never expires and its footer and statistics
//! caches trust size and modification time, so in the session's own state a second run would see nothing new.
//!
//! Memory: the list of the source's files, nothing of their rows. This module never writes, never registers anything
//! in the user's session, and reads rows only when the plan is executed.

mod batches;
mod claims;
mod describe;
mod factory;
mod footer;
mod header;
mod identity;
mod listing;
mod ordinals;
mod overlay;
mod refresh;
mod resolve;
mod session;
mod split;
mod statement;
mod transient;

pub use describe::describe;
pub use factory::record_definitions;
pub use identity::{SourceFileSeen, SourceIdentity, check_identity, same_identity};
pub use ordinals::FileOrdinals;
pub use resolve::{ResolvedSource, resolve};
pub use session::capture_state;
pub use transient::is_transient;

#[cfg(test)]
mod tests;
