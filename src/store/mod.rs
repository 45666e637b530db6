//! Durable state of one table on an object store.

mod manifest;

pub use manifest::*;
