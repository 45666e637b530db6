//! Pure data: definitions, revisions, typed schemas, ids, options and the run's summary. No I/O, no plans.
//!
//! ```text
//! Definition = source + key + tracked columns + handler + semantic options + schemas
//!      └─ Revision { number, digest, definition }     immutable, numbered
//! Options   one table of every option: name, default, semantic or operational
//! RunSummary one row per run, the columns of `incremental_runs`
//! sync       what is stored of a synced table
//! ```

mod definition;
mod ids;
mod options;
mod schema;
mod summary;
pub mod sync;

pub use definition::{Definition, FingerprintKind, HandlerSpec, HostFunction, Revision, SourceSpec};
pub use ids::{RunId, VersionNumber, encode_name};
pub use options::{OPTIONS, OperationalOptions, OptionKind, OptionSpec, Options, SemanticOptions, parse_duration};
pub use schema::{TypeDifference, check_same_types, normalize_schema, normalize_type, same_type, unsupported_type};
pub use summary::{RunMode, RunReason, RunState, RunSummary};
