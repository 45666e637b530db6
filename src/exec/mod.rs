//! Physical operators, one folder each.

pub(crate) mod acting;
pub(crate) mod ahead;
pub mod capture_scan;
pub mod compact;
pub mod contract;
pub mod equality;
pub mod handler;
pub mod index_scan;
pub mod key_filter;
pub mod key_scan;
pub mod keyed_diff;
pub mod merge;
pub mod publish;
pub mod seal;
pub mod unique_key;
