//! Executing statements. SQL only translates: everything here ends in `define`, `run` or DataFusion.

mod listing;
mod statement;
mod verb;

pub use statement::{StatementResult, execute};
pub use verb::{Action, Outcome, prepare_verb};
