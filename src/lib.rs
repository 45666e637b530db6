//! Enriched tables for Apache DataFusion.
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::todo, clippy::unimplemented))]

pub mod context;
pub mod define;
pub mod env;
pub mod error;
pub mod exec;
pub mod handler;
pub mod plan;
pub mod redact;
pub mod run;
pub mod spec;
pub mod sql;
pub mod store;
pub mod sync;
pub mod table;

pub use error::{Error, ErrorCode, ErrorKind, Result};
