//! Physical operators, one folder each.

pub mod equality;
pub mod keyed_diff;
