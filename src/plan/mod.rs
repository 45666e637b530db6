//! How the operators compose into plans.

pub mod published_scan;
pub mod source;
pub mod table_changes;
