//! Physical operators, one folder each.

pub mod equality;
pub mod index_scan;
pub mod keyed_diff;
