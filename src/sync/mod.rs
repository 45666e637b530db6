//! Synced tables: outside sources as complete tables of this crate.
//!
//! ```text
//! connection ── connector ──► SourceSnapshot ── read ──► diff, merge, publish: the operators and the store of every table
//!  (secrets by reference)      one moment of the source    └ rows and cursor mark in one manifest
//! ```
//!
//! Nothing here knows SQL. Nothing here stores, logs or shows a secret.

pub mod connector;
#[cfg(feature = "postgres")]
pub mod postgres;
