//! How the operators compose into plans.

pub mod source;
pub mod published_scan;
