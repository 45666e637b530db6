//! One synchronisation: what the next run of a table is to do, and doing it.
//!
//! ```text
//! configuration, state ─ decide ─► kind, write (replace │ merge │ append), from which mark
//! source now, columns  ─ shape ──► the definition that rows are published under
//!       one snapshot:  ceiling ─ rows ─► replace  KeyedDiff against nothing       ─► new generation
//!                                        merge    KeyedDiff against the base      ─► new files, dead rows
//!                                        append   without those known at the mark ─► new files
//! ```
//!
//! Everything else (lease, records, seal, publish) is what every run of this crate has. Memory: the diff's, bounded by the
//! pool; appending, the fingerprints of the stored rows at the mark, at most [`BOUNDARY_ROWS`]. Never moves a mark without
//! the rows below it.

mod boundary;
mod capture;
mod decide;
mod load;
mod reconcile;
mod scope;
mod shape;
mod source;
mod work;

pub use boundary::BOUNDARY_ROWS;
pub(crate) use decide::Ask;
pub(crate) use load::SEGMENT_ROWS;
pub(crate) use shape::first_definition;
pub(crate) use work::SyncWork;
