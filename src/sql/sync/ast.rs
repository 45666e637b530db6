//! What the parser returns for statements of synced tables.

use datafusion::common::TableReference;

use crate::sync::config::{Changes, FieldValue};

/// A statement of synced tables or connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyncStatement {
    /// `CREATE CONNECTION`.
    CreateConnection(CreateConnection),
    /// `DROP CONNECTION`.
    DropConnection {
        /// The connection.
        name: String,
        /// `IF EXISTS`: a missing one is no error.
        if_exists: bool,
    },
    /// `CREATE SYNCED TABLE`.
    CreateSynced(Box<CreateSynced>),
    /// `[EXPLAIN] ALTER SYNCED TABLE`.
    AlterSynced(Box<AlterSynced>),
    /// `DROP SYNCED TABLE`.
    DropSynced {
        /// The table.
        name: TableReference,
        /// `IF EXISTS`: a missing one is no error.
        if_exists: bool,
        /// `PURGE`: the stored data is deleted too.
        purge: bool,
    },
}

/// `CREATE CONNECTION [IF NOT EXISTS] pg TYPE postgres WITH (url = 'env:PG_URL')`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateConnection {
    /// Its name.
    pub name: String,
    /// `IF NOT EXISTS`: an existing one is left alone.
    pub if_not_exists: bool,
    /// Its type.
    pub kind: String,
    /// `WITH (…)`.
    pub options: Vec<(String, FieldValue)>,
}

/// `CREATE SYNCED TABLE [IF NOT EXISTS] t FROM pg.public.orders [LOCATION '…'] [WITH (field = value, …)]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateSynced {
    /// The table.
    pub name: TableReference,
    /// `IF NOT EXISTS`: an existing one is left alone.
    pub if_not_exists: bool,
    /// The parts of the source's name.
    pub source: Vec<String>,
    /// `LOCATION '…'`.
    pub location: Option<String>,
    /// `WITH (…)`.
    pub fields: Vec<(String, FieldValue)>,
}

/// `[EXPLAIN] ALTER SYNCED TABLE t [IF REVISION n] [SET (…)] [RESET (…)] [IF REVISION n] [CONFIRM]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlterSynced {
    /// The table.
    pub name: TableReference,
    /// `EXPLAIN`: nothing is saved.
    pub explain: bool,
    /// `IF REVISION n`: the configuration that the statement must find.
    pub if_revision: Option<u64>,
    /// `SET` and `RESET`.
    pub changes: Changes,
    /// `CONFIRM`: a rebuild is meant.
    pub confirm: bool,
}
