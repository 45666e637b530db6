//! One moment of one table: a REPEATABLE READ transaction.
//!
//! ```text
//! what is it? ─ BEGIN REPEATABLE READ READ ONLY ─ SET LOCAL … ─ LOCK TABLE … ACCESS SHARE ─► catalogue, ceiling, counts, COPY …
//!  └ a transaction of its own                                    └ before the first query, which is what fixes the moment
//! ```
//!
//! The lock comes first because TRUNCATE and rewriting kinds of ALTER TABLE do not respect snapshots: one that committed
//! between the moment and the read would leave an empty table to read, and every row would look deleted. It conflicts with
//! nothing but such statements. A role that may read only some columns gets no lock, nor do materialised views: there the
//! files are compared when everything is read, and a table whose file is another one is SOURCE_CHANGED. What is behind a view
//! or a foreign table without a lock is not known here.
//!
//! The settings make text the same in every session (zone UTC, ISO dates, all digits of floats) and make the server refuse
//! what row-level security would filter in silence. The catalogue is read with an empty search path; the table then with the
//! role's own, since functions behind a view may need it.

use std::fmt;
use std::sync::Arc;

use arrow_schema::Schema;
use async_trait::async_trait;
use datafusion::common::ScalarValue;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use futures::TryStreamExt;

use super::catalog;
use super::copy::{RowShape, copy_out};
use super::failure::Subject;
use super::literal::identifier;
use super::measure;
use super::options::{PostgresOptions, RowSecurity};
use super::query::Queries;
use super::relation::Relation;
use super::session::Session;
use super::types::{Order, PG_CATALOG};
use crate::error::{Error, ErrorCode, Result};
use crate::sync::connector::{ReadRequest, RelationKind, RowFilter, SourceSnapshot, SourceTable};

/// What a transaction sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sight {
    /// The same moment in every statement.
    OneMoment,
    /// What is committed when a statement begins.
    Now,
}

/// What every transaction here begins with. The wait for a lock is limited: whoever waits for one makes others wait behind.
const SETTINGS: &str = "
SET LOCAL search_path = '';
SET LOCAL TimeZone = 'UTC';
SET LOCAL DateStyle = 'ISO, YMD';
SET LOCAL IntervalStyle = 'postgres';
SET LOCAL bytea_output = 'hex';
SET LOCAL extra_float_digits = 3;
SET LOCAL standard_conforming_strings = on;
SET LOCAL lock_timeout = '60s';";

/// Rows from which on a table is read in the order of its key, so that a load can go on where it was interrupted.
const LARGE_TABLE: f64 = 2e6;

/// Begins the transaction that everything is read in.
///
/// # Errors
/// As the statements fail.
pub(super) async fn begin(session: &Arc<Session>, options: &PostgresOptions, sight: Sight, subject: &Subject) -> Result<()> {
    let isolation = if sight == Sight::OneMoment { "REPEATABLE READ" } else { "READ COMMITTED" };
    let mut sql = format!("BEGIN ISOLATION LEVEL {isolation} READ ONLY;{SETTINGS}");
    if let Some(limit) = options.statement_timeout {
        sql.push_str(&format!("\nSET LOCAL statement_timeout = {};", limit.as_millis()));
    }
    if options.row_security == RowSecurity::Error {
        sql.push_str("\nSET LOCAL row_security = off;");
    }
    session.execute(&sql, subject).await
}

/// Describes one table, open types settled by what it holds.
///
/// # Errors
/// As the statements fail. A table that cannot be measured is described without.
pub(super) async fn describe(
    session: &Arc<Session>,
    options: &PostgresOptions,
    name: (&str, &str),
    subject: &Subject,
) -> Result<Option<Relation>> {
    let Some(mut relation) = catalog::read(session, Some(name), subject).await?.pop() else { return Ok(None) };
    session.execute(OWN_PATH, subject).await?;
    let described = relation.clone();
    match measure::settle(session, &mut relation, None, (options.out_of_range, subject)).await {
        Ok(()) => Ok(Some(relation)),
        Err(error) if error.code() == ErrorCode::ConnectionFailed => Err(error),
        Err(_) => Ok(Some(described)),
    }
}

/// The search path that the role or the database has.
const OWN_PATH: &str = "SET LOCAL search_path TO DEFAULT";

/// An open moment of a table.
pub(super) struct PostgresSnapshot {
    session: Arc<Session>,
    relation: Relation,
    /// About how many rows there are.
    rows: f64,
    /// Whether the table's rows can be replaced while it is read.
    is_unlocked: bool,
    options: Arc<PostgresOptions>,
    subject: Subject,
    context: Arc<TaskContext>,
}

impl fmt::Debug for PostgresSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresSnapshot").field("table", &self.relation.table.name).finish_non_exhaustive()
    }
}

impl PostgresSnapshot {
    /// Opens a moment of the table `schema`.`name`. `known` are the types that earlier loads settled on.
    ///
    /// # Errors
    /// `CONNECTION_FAILED`, `SOURCE_NOT_FOUND` with the nearest name, `CAPTURE_FAILED`.
    pub(super) async fn open(
        options: &Arc<PostgresOptions>,
        (schema, name): (&str, &str),
        known: Option<&Schema>,
        context: Arc<TaskContext>,
    ) -> Result<Self> {
        let session = Session::connect(options).await?;
        let subject = session.subject().table(&[schema.to_string(), name.to_string()]);
        begin(&session, options, Sight::Now, &subject).await?;
        let Some(kind) = catalog::kind(&session, (schema, name), &subject).await? else {
            return Err(not_found(&session, name, &subject).await?);
        };
        session.execute("COMMIT", &subject).await?;
        begin(&session, options, Sight::OneMoment, &subject).await?;
        let is_unlocked = match kind {
            RelationKind::Table | RelationKind::PartitionedTable | RelationKind::View => !lock(&session, (schema, name), &subject).await?,
            RelationKind::MaterializedView | RelationKind::ForeignTable => true,
        };
        let found = catalog::read(&session, Some((schema, name)), &subject).await?.pop();
        let Some(mut relation) = found else { return Err(not_found(&session, name, &subject).await?) };
        if relation.types.is_empty() {
            let remedy = "add a column to it, or sync a view that has one";
            return Err(subject.error(ErrorCode::TypeUnsupported, "the table has no columns, so there is nothing to sync", remedy));
        }
        let rows = catalog::rows(&session, &relation, &subject).await?;
        session.execute(OWN_PATH, &subject).await?;
        measure::settle(&session, &mut relation, known, (options.out_of_range, &subject)).await?;
        Ok(Self { session, relation, rows, is_unlocked, options: Arc::clone(options), subject, context })
    }

    fn queries(&self) -> Queries<'_> {
        Queries {
            relation: &self.relation,
            subject: &self.subject,
            out_of_range: self.options.out_of_range,
            version: self.session.version(),
        }
    }

    /// The rows of a COPY of these columns.
    async fn copy(&self, sql: &str, columns: &[String], batch_rows: usize) -> Result<SendableRecordBatchStream> {
        let mut kinds = vec![];
        for name in columns {
            let column = self.relation.column(name, &self.subject)?;
            kinds.push((name.clone(), column.ty.kind.clone()));
        }
        let key = self.relation.table.primary_key.iter().filter_map(|key| columns.iter().position(|column| column == key)).collect();
        let shape = RowShape::new(kinds, self.options.out_of_range).with_batches(key, batch_rows);
        copy_out(&self.session, sql, shape, (&self.subject, &self.context)).await
    }
}

/// Locks the table where the role may, and tells whether; a role with leave for some columns only cannot.
async fn lock(session: &Arc<Session>, (schema, name): (&str, &str), subject: &Subject) -> Result<bool> {
    let table = format!("{}.{}", identifier(schema), identifier(name));
    let sql = format!("SAVEPOINT before_lock; LOCK TABLE {table} IN ACCESS SHARE MODE; RELEASE SAVEPOINT before_lock");
    match session.try_execute(&sql, subject).await? {
        Err(error) if error.code() == Some(&tokio_postgres::error::SqlState::INSUFFICIENT_PRIVILEGE) => {
            session.execute("ROLLBACK TO SAVEPOINT before_lock", subject).await.map(|()| false)
        }
        Err(error) => Err(subject.statement_failed(&error)),
        Ok(()) => Ok(true),
    }
}

async fn not_found(session: &Arc<Session>, name: &str, subject: &Subject) -> Result<Error> {
    let known = catalog::names(session, subject).await?;
    let nearest = known.iter().min_by_key(|known| strsim::damerau_levenshtein(&known[1].to_lowercase(), &name.to_lowercase()));
    let hint = nearest.map_or("the database has no tables".into(), |known| format!("the nearest is {:?}", known.join(".")));
    Ok(subject.error(
        ErrorCode::SourceNotFound,
        format!("the source has no such table; {hint}"),
        "see sync_discover for the tables there are",
    ))
}

#[async_trait]
impl SourceSnapshot for PostgresSnapshot {
    fn table(&self) -> &SourceTable {
        &self.relation.table
    }

    /// An order costs the server a sort, or an index read all over the table. That is worth it where a load takes so long that it
    /// had better go on after an interruption; a smaller one is quicker done again. Types of extensions are left out: their order
    /// is theirs to change.
    fn reads_in_order(&self) -> bool {
        let is_ours = |name: &String| {
            self.relation.column(name, &self.subject).is_ok_and(|key| key.ty.operators == PG_CATALOG && key.ty.order != Order::CastToText)
        };
        self.rows >= LARGE_TABLE && self.relation.table.primary_key.iter().all(is_ours)
    }

    async fn ceiling(&self, column: &str, filters: &[RowFilter]) -> Result<Option<ScalarValue>> {
        let sql = self.queries().ceiling(column, filters)?;
        let batches: Vec<_> = self.copy(&sql, &[column.to_string()], 1).await?.try_collect().await.map_err(|error| {
            Error::from_datafusion(error, ErrorCode::CaptureFailed, format!("{}: the greatest {column:?} cannot be read", self.subject))
        })?;
        let Some(batch) = batches.first().filter(|batch| batch.num_rows() > 0) else { return Ok(None) };
        let value =
            ScalarValue::try_from_array(batch.column(0), 0).map_err(|error| Error::internal(format!("{}: {error}", self.subject)))?;
        let finite = match &value {
            ScalarValue::Float32(Some(value)) => value.is_finite(),
            ScalarValue::Float64(Some(value)) => value.is_finite(),
            _ => true,
        };
        if finite {
            return Ok(Some(value));
        }
        Err(self.subject.error(
            ErrorCode::ValueOutOfRange,
            format!("column {column:?} holds {value}, which a cursor cannot go beyond"),
            "correct the source, keep such rows out with row_filters, or choose another incremental_field",
        ))
    }

    async fn count_nulls(&self, column: &str, filters: &[RowFilter]) -> Result<u64> {
        let sql = self.queries().count_nulls(column, filters)?;
        let rows = self.session.query(&sql, &[], &self.subject).await?;
        let count: i64 = rows.first().and_then(|row| row.try_get(0).ok()).unwrap_or_default();
        Ok(count.unsigned_abs())
    }

    async fn read(&self, request: ReadRequest) -> Result<SendableRecordBatchStream> {
        let sql = self.queries().read(&request)?;
        self.copy(&sql, &request.columns, request.batch_rows).await
    }

    /// A transaction sees one moment or fails, but for statements that snapshots do not protect from and no lock kept away.
    async fn finish(&self) -> Result<()> {
        if !self.is_unlocked {
            return Ok(());
        }
        self.session.execute("SET LOCAL search_path = ''", &self.subject).await?;
        match catalog::replaced(&self.session, &self.relation, &self.subject).await? {
            None => Ok(()),
            Some(part) => Err(self.subject.error(
                ErrorCode::SourceChanged,
                format!("{part:?} was truncated or rewritten while it was read"),
                "run again; a role that may SELECT the whole table locks such statements out",
            )),
        }
    }
}
