//! What can be done with connections and synced tables, for SQL and for Rust.
//!
//! Each operation checks first and acts then; a refused one leaves nothing behind.

mod alter;
mod connection;
mod create;
mod run;
mod show;

pub use alter::{AlterRequest, Altered, alter, explain_alter};
pub use connection::{create_connection, discover, drop_connection, source_table};
pub use create::{CreateRequest, create};
pub use run::{SyncRequest, cancel, delete_data, reconcile, reload, resync};
pub use show::show_create;
