//! The statements of synced tables and connections.
//!
//! ```text
//! CREATE CONNECTION, CREATE/ALTER/DROP SYNCED TABLE, EXPLAIN ALTER SYNCED TABLE ─ parse ─► SyncStatement ─ execute ─► sync::ops
//! CALL sync.<verb>(…), sync_<verb>(…)                                            ─ verbs ─► prepare       ───────────► sync::ops
//! ```

mod ast;
mod execute;
mod first;
mod parse;
mod rows;
mod verb;
pub mod verbs;

pub use ast::{AlterSynced, CreateConnection, CreateSynced, SyncStatement};
pub(super) use execute::execute;
pub(crate) use execute::{context, new_synced};
pub use first::look;
pub(super) use first::{Synced, sync_first};
pub(super) use parse::{alter, create_connection, create_synced, drop_connection, drop_synced};
pub(super) use verb::prepare;
