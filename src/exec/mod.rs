//! Physical operators, one folder each.

pub mod contract;
pub mod equality;
pub mod handler;
pub mod unique_key;
pub mod equality;
pub mod index_scan;
pub mod keyed_diff;
