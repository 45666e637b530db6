//! What the parser returns.

use datafusion::common::TableReference;
use datafusion::sql::parser::Statement as DataFusionStatement;

use super::as_of::VersionReference;
use super::sync::SyncStatement;
use super::verbs::{BoundArguments, VerbSpec};
use crate::spec::RunId;

/// One statement of a script.
#[derive(Debug, Clone)]
pub struct ParsedStatement {
    /// What it says.
    pub statement: Statement,
    /// Its own text, byte for byte, without the `;` and without white space and comments around it.
    pub text: String,
    /// The tables it reads at a version. The executor refuses those that are not incremental tables.
    pub versions: Vec<VersionReference>,
}

/// A statement.
#[derive(Debug, Clone)]
pub enum Statement {
    /// `CREATE INCREMENTAL TABLE`.
    CreateIncremental(Box<CreateIncremental>),
    /// `ALTER INCREMENTAL TABLE`.
    AlterIncremental(Box<AlterIncremental>),
    /// `DROP INCREMENTAL TABLE`.
    DropIncremental {
        /// The table.
        name: TableReference,
        /// `IF EXISTS`: a missing table is no error.
        if_exists: bool,
        /// `PURGE`: the stored data is deleted too.
        purge: bool,
    },
    /// `REFRESH`.
    Refresh(Refresh),
    /// `EXPLAIN REFRESH`.
    ExplainRefresh {
        /// The table.
        name: TableReference,
    },
    /// `SHOW CREATE TABLE`.
    ShowCreate {
        /// The table.
        name: TableReference,
        /// The same statement for DataFusion, when the table is not an incremental one.
        other: Box<DataFusionStatement>,
    },
    /// A statement of synced tables or connections.
    Sync(SyncStatement),
    /// `CALL incremental.<verb>(…)`, `CALL sync.<verb>(…)`.
    Call(Call),
    /// Any other statement, with its version clauses already rewritten.
    Other(Box<DataFusionStatement>),
}

/// The handler of a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandlerText {
    /// `AS SELECT …`: the query's text, byte for byte.
    Sql(String),
    /// `HANDLER 'name'`: a registered Rust handler.
    Registered(String),
}

/// `CREATE [OR ALTER] INCREMENTAL TABLE [IF NOT EXISTS] t FROM source KEY (…) … AS SELECT …`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateIncremental {
    /// The table.
    pub name: TableReference,
    /// `OR ALTER`: an existing table is altered to this definition.
    pub or_alter: bool,
    /// `IF NOT EXISTS`: an existing table is left alone.
    pub if_not_exists: bool,
    /// The source.
    pub source: TableReference,
    /// `KEY (…)`, at least one column.
    pub key: Vec<String>,
    /// `TRACK (…)`.
    pub track: Option<Vec<String>>,
    /// `LOCATION '…'`.
    pub location: Option<String>,
    /// `WITH (…)`: names as written and texts; `NULL`, `true` and `false` as those words.
    pub options: Vec<(String, String)>,
    /// The handler.
    pub handler: HandlerText,
}

/// `ALTER INCREMENTAL TABLE t [IF REVISION n] …`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlterIncremental {
    /// The table.
    pub name: TableReference,
    /// `IF REVISION n`: the revision that the statement must find.
    pub if_revision: Option<u64>,
    /// What to do.
    pub change: IncrementalChange,
}

/// What an `ALTER INCREMENTAL TABLE` does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IncrementalChange {
    /// `ACTIVATE [REVISION n]`; without a number the newest saved revision.
    Activate {
        /// The number.
        revision: Option<u64>,
    },
    /// One new revision, or options alone.
    Define {
        /// `DRAFT`: saved, not activated.
        draft: bool,
        /// `KEY (…)`.
        key: Option<Vec<String>>,
        /// `TRACK (…)`.
        track: Option<Vec<String>>,
        /// `SET (…)`.
        set: Vec<(String, String)>,
        /// `RESET (…)`.
        reset: Vec<String>,
        /// `ACCEPT SCHEMA`: take the source's present schema.
        accept_schema: bool,
        /// `AS SELECT …` or `HANDLER '…'`.
        handler: Option<HandlerText>,
    },
}

/// Which tables a `REFRESH` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefreshTarget {
    /// `ALL`.
    All,
    /// The tables, in the order written, none twice.
    Tables(Vec<TableReference>),
}

/// `REFRESH t, u | ALL [DRAFT] [FULL] [RUN 'id'] [ALLOW DELETES] [DRY RUN] [WITH SYNC]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refresh {
    /// Which tables.
    pub target: RefreshTarget,
    /// `DRAFT`: the newest saved revision over all rows, nothing is published.
    pub draft: bool,
    /// `FULL`: every row goes to the handler.
    pub full: bool,
    /// `RUN 'id'`: with one table only.
    pub run: Option<RunId>,
    /// `ALLOW DELETES`: the guard lets this run pass.
    pub allow_deletes: bool,
    /// `DRY RUN`: only the capture's counts.
    pub dry_run: bool,
    /// `WITH SYNC`: the synced tables that it reads are synced first.
    pub with_sync: bool,
}

/// `CALL incremental.<verb>(…)`, arguments bound to the verb's parameters.
#[derive(Debug, Clone)]
pub struct Call {
    /// The verb.
    pub verb: &'static VerbSpec,
    /// Its arguments.
    pub arguments: BoundArguments,
}
