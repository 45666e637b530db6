//! How the operators compose into plans.

pub mod source;
