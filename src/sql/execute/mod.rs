//! Executing statements. SQL only translates: everything here ends in `define`, `run` or DataFusion.

mod cells;
mod listing;
mod statement;
mod verb;

pub(super) use cells::{Kind, Rows, schema};
pub use statement::{StatementResult, execute};
pub(super) use verb::drop_and_deregister;
pub use verb::{Action, Outcome, prepare_verb};
