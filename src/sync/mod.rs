//! Synced tables: outside sources as complete tables of this crate.
//!
//! ```text
//! connection ── connector ──► SourceSnapshot ── read ──► diff, merge, publish: the operators and the store of every table
//!  (secrets by reference)      one moment of the source    └ rows and cursor mark in one manifest
//!
//! config/    fields, validation, what a change costs     pure
//! run/       one synchronisation: decide, read, write
//! ops/       create, alter, reload, resync, cancel, …    what SQL and Rust callers use
//! schedule/  when runs are due, and running them
//! table/     the connector of the session's own tables
//! postgres/  the connector of PostgreSQL databases       feature `postgres`
//! ```
//!
//! Nothing here knows SQL. Nothing here stores, logs or shows a secret.

pub mod config;
pub mod connector;
mod context;
pub mod ops;
#[cfg(feature = "postgres")]
pub mod postgres;
mod registry;
mod run;
pub mod schedule;
mod secret;
pub mod status;
pub mod table;

pub use context::SyncContext;
pub use registry::ConnectorRegistry;
pub use run::BOUNDARY_ROWS;
