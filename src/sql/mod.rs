//! The statements: a parser in front of DataFusion's, the version clauses, and the one table of verbs.
//!
//! ```text
//! text ─tokens─► one statement per `;` ─┬─ CREATE/ALTER/DROP INCREMENTAL, REFRESH, CALL … ─► Statement (ours)
//!                                       └─ anything else ─► version clauses → table functions ─► DataFusion's parser
//! ```
//!
//! Memory: a few times the text. Nothing here reads a table, a catalog or a store: parsing is pure, and what a
//! statement means is decided by the text and the session's parser settings alone.

mod apart;
mod as_of;
mod ast;
mod call;
mod cursor;
mod define;
mod execute;
mod extension;
mod factory;
mod functions;
mod names;
mod parser;
mod refresh;
mod resolve;
mod root;
mod source_text;
pub mod sync;
mod trial;
pub mod verbs;
mod version_planner;

pub use apart::ApartRule;
pub use as_of::{VersionPoint, VersionReference};
pub use ast::{
    AlterIncremental, Call, CreateIncremental, HandlerText, IncrementalChange, ParsedStatement, Refresh, RefreshTarget, Statement,
};
pub use names::{parse_table_name, quote_identifier, quote_literal, quote_name};
pub use parser::parse;

pub use execute::{StatementResult, execute};
pub use extension::{Extension, IncrementalConfig, ProgressListener};
pub use factory::IncrementalTableFactory;
pub use functions::VerbFunction;
pub use resolve::{Found, all_tables, check_schema, find, incremental_table};
pub use root::follow_root;
pub use sync::look as look_at_schedules;
pub(crate) use sync::{CreateSynced, context as sync_context, new_synced};
pub use version_planner::VersionPlanner;
