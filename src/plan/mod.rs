//! How the operators compose into plans.

pub mod published_scan;
