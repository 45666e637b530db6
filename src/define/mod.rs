//! Defining tables: create, alter, activate, drop. SQL and the Rust builder both end here.
//!
//! ```text
//! TableSpec ── source described ── handler judged ──► Definition ──► revision 1 (active)
//! Alteration ── over the inherited revision ────────► Definition ──► revision n+1, only on a difference
//! ```
//!
//! Everything is checked before anything is written. No data is read and no handler is called here.

mod alter;
mod analyze;
mod builder;
mod create;
mod drop;
mod show;

pub use alter::{Alteration, activate, alter};
pub use analyze::HandlerChoice;
pub use builder::IncrementalTableBuilder;
pub use create::{Created, Existing, TableSpec, attach, check_columns, create};
pub use drop::drop_table;
pub use show::show_create;
