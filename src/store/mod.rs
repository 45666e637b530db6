//! Durable state of one table on an object store.
//!
//! ```text
//! TableStore    <location>/table/            created, dropped, purged
//! Incarnation   <location>/<incarnation>/
//!   ├ revisions/  definitions                log
//!   ├ versions/   slots: one winner each     log ─► manifests/, sources/ ─► data/<run>/<attempt>/
//!   ├ sync/       a synced table's configuration   log      loads/   its loads that are not published yet   log
//!   ├ lease/      who is at work             log          schedule/  what its schedule started last          log
//!   └ runs/       request, seal, attempts    created once
//! ```
//!
//! Every object is written once, create-only, and read back when the answer is lost. Every metadata object carries its
//! checksum. Nothing here knows plans or SQL.

mod commit;
mod connections;
#[cfg(test)]
mod damage_tests;
pub mod dead;
mod definitions;
pub mod deletion_vector;
mod envelope;
pub mod files;
mod incarnation;
mod lease;
pub mod leftovers;
mod loads;
mod log;
mod manifest;
#[cfg(test)]
mod mutation_tests;
mod objects;
mod parts;
mod paths;
mod probe;
pub mod retention;
mod runs;
mod schedule;
mod sync_log;
mod table_store;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use commit::{CommitOutcome, StagedVersion};
pub use connections::{ConnectionEntry, ConnectionStore};
pub use definitions::{DefinitionEntry, DefinitionLog};
pub use incarnation::{FORMAT, Incarnation, Slot};
pub use lease::{Lease, LeaseHolder};
pub use loads::LoadEntry;
pub use manifest::*;
pub use retention::VacuumReport;
pub use runs::{AttemptRecord, Capture, DeadRows, DraftOutput, RunRequest, RunStore, Seal, SealOutcome, SealedSync, Written};
pub use schedule::{ScheduleNote, SkippedRun};
pub use sync_log::{SavedConfig, SyncEntry, SyncLog};
pub use table_store::{TableEntry, TableState, TableStore};

/// Locks; what is guarded here stays whole when a holder panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
