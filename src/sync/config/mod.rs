//! Configurations of synced tables: reading changes, judging them, and saying what they cost. Pure: no I/O.
//!
//! ```text
//! SET (…), RESET (…) ─ apply ─► new configuration ─ validate ─► fits the source, or why not
//!                                      └ plan_change(old, new, facts) ─► keep │ reseed │ rebuild │ refuse, and why
//! ```
//!
//! The plan is not stored. A run makes it anew between the configuration that its base was made by and the newest one, so
//! a change that is taken back before a run costs nothing.

mod change;
mod fields;
mod validate;

pub use change::{ChangePlan, Effect, Facts, FieldEffect, plan_change, reads_alike, refused_by, strongest};
pub use fields::{Changes, FIELDS, FieldSpec, FieldValue, apply};
pub use validate::{Candidate, candidates, complete, cursor_type, typed_filters, validate, validate_schedule, validate_types};
