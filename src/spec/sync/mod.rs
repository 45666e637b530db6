//! What is stored of a synced table: its configuration, its state, and what its runs report.
//!
//! ```text
//! sync/<n>.json      SyncEntry: a configuration saved, a rebuild asked for
//! manifest.sync      SyncState: generation, cursor mark, what the version was made by        one commit with the rows
//! run summary.sync   SyncReport: what a run read, and between which marks
//! ```
//!
//! Pure data, no I/O. It holds references to secrets at most by the name of a connection, never a secret.

mod config;
mod report;
mod schedule;
mod state;
mod value;

pub use config::{FieldType, FilterSpec, NullPolicy, SyncConfig, SyncSource, SyncType};
pub use report::{SyncKind, SyncReport, SyncTrigger};
pub use schedule::{Frequency, RefreshSchedule, TimeOfDay};
pub use state::{CursorMark, KnownColumn, SyncPhase, SyncState};
pub use value::TypedValue;
