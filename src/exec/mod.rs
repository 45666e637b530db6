//! Physical operators, one folder each.

pub mod equality;
pub mod keyed_diff;
pub(crate) mod acting;
pub mod capture_scan;
pub mod compact;
pub mod merge;
pub mod publish;
pub mod seal;
