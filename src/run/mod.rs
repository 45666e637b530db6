//! One refresh, from open to publish, and the other acts that publish a version.
//!
//! ```text
//! open ─► capture ─► seal ─► guard ─► handle + check + write ─► publish
//!  │        └ reads the source at most once, without files that did not change; after the seal it is never read again
//!  └ lease, base version, active revision; a known run id answers, adopts its seal, or is refused
//! ```
//!
//! Memory: the diff's index and what the operators reserve; rows stream. What a run never does: change anything
//! published before the version slot is won, read the source twice, or call the handler for unchanged rows.

mod attempt;
mod cancel;
mod capture;
mod commit;
mod compaction;
mod draft;
mod engine;
mod explain;
mod flow;
mod guard;
mod hand_on;
mod history;
mod host;
mod open;
mod outside;
mod plans;
mod pool;
mod publish;
mod request;
mod rollback;
mod row;
mod skip;
mod trial;
mod vacuum;

pub(crate) use attempt::Attempt;
pub use cancel::cancel;
pub use compaction::compact;
pub use engine::refresh;
pub(crate) use engine::run_outside;
pub use explain::explain_refresh;
pub use flow::{dependencies, everything_behind, in_order, refresh_in_order};
pub(crate) use flow::{skipped, tables_behind};
pub use history::{all_summaries, run_summaries};
pub use host::{Host, Phase, Progress};
pub(crate) use outside::{OutsideCapture, OutsideOutcome, OutsideRun, write_files};
pub(crate) use plans::with_empty_hidden;
pub use request::{RefreshRequest, RunResult};
pub use rollback::rollback;
pub use row::{explain_row, row_schema};
pub use trial::{dry_run, trial_plan};
pub use vacuum::{VacuumRequest, vacuum};
