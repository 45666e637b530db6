//! Durable state of one table on an object store.

pub mod dead;
pub mod files;
mod manifest;

pub use manifest::*;
