//! Physical operators, one folder each.

pub mod contract;
pub mod equality;
pub mod handler;
pub mod index_scan;
pub mod keyed_diff;
pub mod unique_key;
