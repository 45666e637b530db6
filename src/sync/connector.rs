//! The one interface between synced tables and outside systems.
//!
//! ```text
//! ConnectorFactory ─ open ─► Connector ─ check
//!   (TYPE postgres)             ├ discover ─► SourceTable: columns, keys, what leads an index
//!                               └ snapshot ─► SourceSnapshot ─ ceiling, count_nulls, read*, finish
//!                                              one moment of one table, whatever happens to it meanwhile
//! ```
//!
//! A cursor run asks one snapshot for its ceiling and then for the rows up to it, so no row can slip in between. Values
//! travel typed (`ScalarValue`), never as text. Memory: what a stream buffers, reserved in the pool of its task context. A
//! connector never writes to the source, and never puts a secret into an error or a `Debug` text.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::common::ScalarValue;
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};

use crate::error::Result;
use crate::spec::sync::KnownColumn;
use crate::store::SourceState;

/// Makes the connectors of one `TYPE`.
#[async_trait]
pub trait ConnectorFactory: fmt::Debug + Send + Sync {
    /// The name after `TYPE`, in lower case.
    fn kind(&self) -> &'static str;

    /// Every option that a connection of this type knows.
    fn options(&self) -> &'static [ConnectionOption];

    /// Checks the options of a connection that is to be stored, as far as they are no secrets: those are references here.
    ///
    /// # Errors
    /// `CONFIG_INVALID`, naming the option and not its value, which may be a secret that went astray.
    fn check(&self, name: &str, options: &BTreeMap<String, String>) -> Result<()> {
        let _ = (name, options);
        Ok(())
    }

    /// A connector for a connection. It may connect at once or at its first use.
    ///
    /// # Errors
    /// `CONFIG_INVALID` for an option's value, `CONNECTION_FAILED` where it connects at once.
    async fn open(&self, settings: ConnectionSettings) -> Result<Arc<dyn Connector>>;
}

/// An option of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionOption {
    /// Its name.
    pub name: &'static str,
    /// Whether it may hold a secret: then only a reference is admitted and stored (`env:NAME`, `file:PATH`).
    pub is_secret: bool,
    /// Whether a connection must have it.
    pub is_required: bool,
    /// What it does, its default included.
    pub doc: &'static str,
}

/// What a connection needs of the session, with its options resolved: secrets are in the clear here and nowhere else.
#[derive(Clone)]
pub struct ConnectionSettings {
    /// The connection's name, for messages; empty for the tables of the session.
    pub name: String,
    /// Option values; references are resolved. Only options that the factory knows.
    pub options: BTreeMap<String, String>,
    /// The session that asks: what it can see, plan and run.
    pub state: SessionState,
}

impl fmt::Debug for ConnectionSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.options.keys().collect();
        f.debug_struct("ConnectionSettings").field("name", &self.name).field("options", &names).finish_non_exhaustive()
    }
}

/// One outside system.
#[async_trait]
pub trait Connector: fmt::Debug + Send + Sync {
    /// Tries the connection: reachable, admitted, able to read.
    ///
    /// # Errors
    /// `CONNECTION_FAILED`, with the cause and the remedy.
    async fn check(&self) -> Result<()>;

    /// The tables that can be synced, in name order: all, or the one called `only`, which has the parts of the name as they were
    /// written (without leading parts that the connector has a default for). An unknown name gives an empty list.
    ///
    /// # Errors
    /// `CONNECTION_FAILED`.
    async fn discover(&self, only: Option<&[String]>) -> Result<Vec<SourceTable>>;

    /// Opens one moment of a table. The snapshot ends when it and its streams are dropped. `known` are the columns that the table
    /// is stored with: where the source leaves a type open (a number without declared digits), the stored one is kept; without
    /// it the connector chooses.
    ///
    /// # Errors
    /// `SOURCE_NOT_FOUND` when there is no such table (any more), `CONNECTION_FAILED`.
    async fn snapshot(&self, table: &[String], known: Option<&Schema>, context: Arc<TaskContext>) -> Result<Arc<dyn SourceSnapshot>>;
}

/// What a relation of the source is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelationKind {
    /// An ordinary table, or a table provider of the session.
    Table,
    /// A table in partitions, read as one.
    PartitionedTable,
    /// A view.
    View,
    /// A materialised view.
    MaterializedView,
    /// A table of another system that the source shows.
    ForeignTable,
}

impl RelationKind {
    /// The kind as it is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::PartitionedTable => "partitioned table",
            Self::View => "view",
            Self::MaterializedView => "materialized view",
            Self::ForeignTable => "foreign table",
        }
    }
}

/// A table of the source, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceTable {
    /// The parts of its full name, the table's own last.
    pub name: Vec<String>,
    /// What it is.
    pub kind: RelationKind,
    /// Its columns, in order. Columns of types that cannot be read are here too, with `unsupported` set.
    pub columns: Vec<SourceColumn>,
    /// The primary key's columns, in key order; empty where there is none.
    pub primary_key: Vec<String>,
    /// Other keys that are unique and cannot be null, each in key order.
    pub unique_keys: Vec<Vec<String>>,
}

/// A column of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceColumn {
    /// Its name, as the source spells it.
    pub name: String,
    /// The type that its values arrive in.
    pub data_type: DataType,
    /// The type as the source calls it.
    pub source_type: String,
    /// Whether it may hold nulls, as far as the source declares it.
    pub is_nullable: bool,
    /// Whether it is the first column of an index, so that a range of it is not a scan of everything.
    pub leads_index: bool,
    /// Why it cannot be read, if it cannot.
    pub unsupported: Option<String>,
}

impl SourceTable {
    /// The column of this name.
    pub fn column(&self, name: &str) -> Option<&SourceColumn> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The columns as they are shown.
    pub fn known_columns(&self) -> Vec<KnownColumn> {
        let known = |column: &SourceColumn| KnownColumn {
            name: column.name.clone(),
            data_type: column.source_type.clone(),
            is_nullable: column.is_nullable,
        };
        self.columns.iter().map(known).collect()
    }

    /// The full name with dots, for messages.
    pub fn display_name(&self) -> String {
        self.name.join(".")
    }

    /// The schema of the readable columns among `columns`, in that order; all nullable.
    pub fn schema_of(&self, columns: &[String]) -> SchemaRef {
        let fields: Vec<Field> =
            columns.iter().filter_map(|name| self.column(name)).map(|c| Field::new(&c.name, c.data_type.clone(), true)).collect();
        Arc::new(Schema::new(fields))
    }
}

/// One moment of one table. Everything that is asked of it answers for the same moment; one stream is read at a time.
#[async_trait]
pub trait SourceSnapshot: fmt::Debug + Send + Sync {
    /// The table as this snapshot sees it.
    fn table(&self) -> &SourceTable;

    /// Whether [`ReadRequest::order_by`] costs little more than reading unordered. Loads of tables that say so can go on from where
    /// they were interrupted.
    fn reads_in_order(&self) -> bool;

    /// The greatest value of `column` among the rows that pass `filters`, typed as the column; `None` where every value is null or
    /// there is no row.
    ///
    /// # Errors
    /// `CAPTURE_FAILED`; `VALUE_OUT_OF_RANGE` for a greatest value that has no place in an order of finite values (an infinite
    /// timestamp, NaN).
    async fn ceiling(&self, column: &str, filters: &[RowFilter]) -> Result<Option<ScalarValue>>;

    /// How many rows that pass `filters` are null in `column`.
    ///
    /// # Errors
    /// `CAPTURE_FAILED`.
    async fn count_nulls(&self, column: &str, filters: &[RowFilter]) -> Result<u64>;

    /// Reads rows. The stream has exactly the columns of the request, with the types of [`SourceTable::schema_of`], and owns what it
    /// needs. It ends with an error when the source does, never early.
    ///
    /// # Errors
    /// `CAPTURE_FAILED`, `VALUE_OUT_OF_RANGE`, `CONNECTION_FAILED`; also in the stream.
    async fn read(&self, request: ReadRequest) -> Result<SendableRecordBatchStream>;

    /// The files that it reads, for sources that are files.
    fn files(&self) -> SourceState {
        SourceState::default()
    }

    /// Fails where the last accepted run read files, `previous`, in a place that has none now: more likely something went wrong
    /// there than that every row is gone.
    ///
    /// # Errors
    /// `CAPTURE_FAILED`.
    fn check_since(&self, previous: &SourceState) -> Result<()> {
        let _ = previous;
        Ok(())
    }

    /// Called when everything was read and before anything is published: fails where it turns out that the reads did not see one
    /// moment (files that were replaced meanwhile).
    ///
    /// # Errors
    /// `SOURCE_CHANGED`.
    async fn finish(&self) -> Result<()>;
}

/// What to read of a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadRequest {
    /// The columns, in the order of the stream's.
    pub columns: Vec<String>,
    /// Conditions that all must hold.
    pub filters: Vec<RowFilter>,
    /// Which rows, as far as the cursor decides it.
    pub scope: ReadScope,
    /// Ascending order by these columns, which hold no nulls in the scope; empty for any order. The source's own order counts, for text
    /// too: it must only be the same one that `after` is understood in.
    pub order_by: Vec<String>,
    /// With `order_by`: only rows that come strictly after these values, one for each column of it.
    pub after: Option<Vec<ScalarValue>>,
    /// At most this many rows in a batch.
    pub batch_rows: usize,
}

/// Which rows a read covers. Nulls of a cursor are read on their own, so no condition has to treat both.
#[derive(Debug, Clone, PartialEq)]
pub enum ReadScope {
    /// Every row.
    All,
    /// Rows whose cursor is not null, `lower <= cursor` and `cursor <= upper`; an absent bound does not bound.
    Range {
        /// The cursor column.
        column: String,
        /// The closed lower bound, typed as the column.
        lower: Option<ScalarValue>,
        /// The closed upper bound, typed as the column.
        upper: Option<ScalarValue>,
    },
    /// Rows whose cursor is null.
    Null {
        /// The cursor column.
        column: String,
    },
}

/// A condition on one column.
#[derive(Debug, Clone, PartialEq)]
pub struct RowFilter {
    /// The column.
    pub column: String,
    /// The comparison.
    pub operator: FilterOperator,
    /// What is compared with, typed as the column: exactly one value, or at least one for `IN` and `NOT IN`. Never null.
    pub values: Vec<ScalarValue>,
}

/// How a [`RowFilter`] compares. A null never passes, as in SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterOperator {
    /// `=`
    Eq,
    /// `!=`
    NotEq,
    /// `<`
    Lt,
    /// `<=`
    LtEq,
    /// `>`
    Gt,
    /// `>=`
    GtEq,
    /// `IN`
    In,
    /// `NOT IN`
    NotIn,
}

impl FilterOperator {
    /// Every operator with its text.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Eq, "="),
        (Self::NotEq, "!="),
        (Self::Lt, "<"),
        (Self::LtEq, "<="),
        (Self::Gt, ">"),
        (Self::GtEq, ">="),
        (Self::In, "IN"),
        (Self::NotIn, "NOT IN"),
    ];

    /// The operator as SQL writes it.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(operator, _)| *operator == self).map_or("=", |(_, text)| text)
    }
}
