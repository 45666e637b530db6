//! What the catalogue says of tables: columns, types, keys and what leads an index.
//!
//! ```text
//! pg_class, pg_attribute ─► tables and columns ─┐
//! pg_type, closed over bases and elements ──────┼─► Relation
//! pg_index ─► primary and unique keys, leaders ─┘
//! ```
//!
//! Keys come from `pg_index`: `information_schema` hides them from roles that may only SELECT, and mixes key columns with
//! foreign ones. A deferrable key counts: it may be broken within a transaction and never in what a snapshot sees. What the
//! server does not enforce is not believed: NOT NULL of foreign tables, and keys and NOT NULL of a table that others inherit
//! from, since reading it reads their rows too. A column that the role may not read is shown as unsupported, with the reason.
//!
//! No statement here locks a table of the user, so nobody who holds one keeps a listing from ending; a table that is dropped
//! meanwhile is left out. All of them need the empty `search_path` that a transaction here begins with: operators are then
//! PostgreSQL's own, and type names have their schema. Memory: the catalogue rows of the tables asked for.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow_schema::DataType;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};

use super::failure::Subject;
use super::relation::Relation;
use super::session::Session;
use super::types::{ColumnType, Order, PgType, Types, resolve};
use crate::error::{ErrorCode, Result};
use crate::sync::connector::{RelationKind, SourceColumn, SourceTable};

/// Tables that can be read, but for partitions: they are read as one, unless one is asked for by name. What was dropped since the
/// snapshot has no privileges any more, not even missing ones.
const FOUND: &str = "
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relpersistence <> 't'
  AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
  AND ($1::text IS NULL AND NOT c.relispartition OR n.nspname = $1 AND c.relname = $2)
  AND pg_catalog.has_table_privilege(c.oid, 'SELECT') IS NOT NULL
ORDER BY n.nspname COLLATE pg_catalog.\"C\", c.relname COLLATE pg_catalog.\"C\"";

/// What a table is. The last two columns: whether others inherit from it, which is more than partitions do, and whether it has
/// partitions on other servers.
const TABLE: &str = "
SELECT c.oid, n.nspname, c.relname, c.relkind::text, COALESCE(pg_catalog.has_schema_privilege(n.oid, 'USAGE'), false),
       c.relkind <> 'p' AND EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid),
       c.relkind = 'p' AND EXISTS (
         WITH RECURSIVE tree(oid) AS (
           SELECT i.inhrelid FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid
           UNION ALL SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid)
         SELECT FROM tree JOIN pg_catalog.pg_class leaf ON leaf.oid = tree.oid WHERE leaf.relkind = 'f')";

/// Since PostgreSQL 18 a NOT NULL may be declared without a look at the rows that are there.
const COLUMNS: &str = "
SELECT a.attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod, a.attndims::int4,
       a.attnotnull AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.conrelid = a.attrelid AND k.contype = 'n'
                                    AND NOT k.convalidated AND k.conkey[1] = a.attnum),
       pg_catalog.format_type(a.atttypid, a.atttypmod),
       COALESCE(pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT'), false),
       pg_catalog.has_table_privilege(a.attrelid, 'SELECT') IS NULL,
       a.attcollation, a.attcollation IN (SELECT bytes.oid FROM bytes)
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = ANY($1) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum";

/// The collations that compare byte by byte. The database's own stands there as `default`.
fn byte_collations(version: i32) -> String {
    let libc = if version >= DATABASE_PROVIDERS { "d.datlocprovider = 'c' AND " } else { "" };
    format!(
        "WITH bytes(oid) AS (
           SELECT co.oid FROM pg_catalog.pg_collation co WHERE co.collprovider = 'c' AND co.collcollate IN ('C', 'POSIX')
           UNION ALL SELECT co.oid FROM pg_catalog.pg_collation co, pg_catalog.pg_database d
           WHERE co.collprovider = 'd' AND d.datname = pg_catalog.current_database() AND {libc}d.datcollate IN ('C', 'POSIX'))"
    )
}

/// Server versions from here on have databases with collations of another library than libc.
const DATABASE_PROVIDERS: i32 = 150_000;
/// The collation `pg_catalog."C"`.
const C_COLLATION: u32 = 950;

const TYPES: &str = "
WITH RECURSIVE used(oid) AS (
  SELECT DISTINCT atttypid FROM pg_catalog.pg_attribute WHERE attrelid = ANY($1) AND attnum > 0 AND NOT attisdropped
  UNION
  SELECT next.oid FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid,
         LATERAL (VALUES (t.typbasetype), (t.typelem)) AS next(oid) WHERE next.oid <> 0
)
SELECT t.oid, n.nspname, t.typname, t.typtype::text, t.typcategory = 'A' AND t.typelem <> 0, t.typelem, t.typbasetype,
       t.typtypmod, t.typndims, pg_catalog.format_type(t.oid, -1)
FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace";

/// Indexes of whole columns over all rows. Only a B-tree serves a range in order, and one for patterns has another order.
const INDEXES: &str = "
SELECT i.indrelid, i.indisprimary, i.indisunique AND i.indexprs IS NULL, i.indnkeyatts::int4, i.indkey::text,
       am.amname = 'btree' AND first.opcname NOT LIKE '%pattern\\_ops', i.indcollation[0]
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid JOIN pg_catalog.pg_am am ON am.oid = x.relam
JOIN pg_catalog.pg_opclass first ON first.oid = i.indclass[0]
WHERE i.indrelid = ANY($1) AND i.indisvalid AND i.indpred IS NULL
ORDER BY i.indrelid, x.relname COLLATE pg_catalog.\"C\"";

/// About how many rows a table and everything below it have, as far as the server has counted; what was never counted is
/// estimated by its size, at a hundred bytes a row.
const ROWS: &str = "
WITH RECURSIVE tree(oid) AS (
  SELECT $1::oid UNION SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid)
SELECT COALESCE(pg_catalog.sum(CASE WHEN c.reltuples < 0 OR c.reltuples = 0 AND c.relpages = 0
                                    THEN pg_catalog.pg_relation_size(c.oid)::float8 / 100 ELSE c.reltuples::float8 END), 0)
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid WHERE c.relkind IN ('r', 'm')";

/// A part of a table whose file is no longer the one that this snapshot knows: its rows were replaced by a statement that
/// snapshots do not protect from. `pg_relation_filenode` answers for now, the columns of `pg_class` for the snapshot.
const REPLACED: &str = "
WITH RECURSIVE tree(oid) AS (
  SELECT $1::oid UNION SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid)
SELECT n.nspname || '.' || c.relname
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'm') AND c.relfilenode <> COALESCE(pg_catalog.pg_relation_filenode(c.oid), 0)
LIMIT 1";

/// The tables of a database, or the one called `only`: its schema and name.
///
/// # Errors
/// As the statements fail.
pub(super) async fn read(session: &Arc<Session>, only: Option<(&str, &str)>, subject: &Subject) -> Result<Vec<Relation>> {
    let (schema, name) = only.unzip();
    let tables = session.query(&format!("{TABLE}{FOUND}"), &[(&schema, Type::TEXT), (&name, Type::TEXT)], subject).await?;
    let oids: Vec<u32> = tables.iter().map(|row| get(row, 0, subject)).collect::<Result<_>>()?;
    if oids.is_empty() {
        return Ok(vec![]);
    }
    let of_tables: [(&(dyn ToSql + Sync), Type); 1] = [(&oids, Type::OID_ARRAY)];
    let types = read_types(session.query(TYPES, &of_tables, subject).await?, subject)?;
    let columns = format!("{}{COLUMNS}", byte_collations(session.version()));
    let mut columns = by_table(session.query(&columns, &of_tables, subject).await?, subject)?;
    let mut indexes = by_table(session.query(INDEXES, &of_tables, subject).await?, subject)?;
    let mut relations = vec![];
    for (row, oid) in tables.iter().zip(&oids) {
        let (columns, indexes) = (columns.remove(oid).unwrap_or_default(), indexes.remove(oid).unwrap_or_default());
        relations.extend(read_relation(row, &columns, &indexes, (&types, subject))?);
    }
    Ok(relations)
}

/// What the table is; `None` when there is none.
///
/// # Errors
/// As the statement fails.
pub(super) async fn kind(session: &Arc<Session>, (schema, name): (&str, &str), subject: &Subject) -> Result<Option<RelationKind>> {
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&schema, Type::TEXT), (&name, Type::TEXT)];
    let rows = session.query(&format!("SELECT c.relkind::text{FOUND}"), &parameters, subject).await?;
    let kind = |row: &Row| get::<String>(row, 0, subject).map(|letter| relation_kind(&letter));
    rows.first().map(kind).transpose()
}

/// Schema and name of every table.
///
/// # Errors
/// As the statement fails.
pub(super) async fn names(session: &Arc<Session>, subject: &Subject) -> Result<Vec<[String; 2]>> {
    let all: Option<&str> = None;
    let rows = session.query(&format!("SELECT n.nspname, c.relname{FOUND}"), &[(&all, Type::TEXT), (&all, Type::TEXT)], subject).await?;
    rows.iter().map(|row| Ok([get(row, 0, subject)?, get(row, 1, subject)?])).collect()
}

/// About how many rows the table has; nothing is known of a view or a foreign table.
///
/// # Errors
/// As the statement fails.
pub(super) async fn rows(session: &Arc<Session>, relation: &Relation, subject: &Subject) -> Result<f64> {
    let rows = session.query(ROWS, &[(&relation.oid, Type::OID)], subject).await?;
    rows.first().map_or(Ok(0.0), |row| get(row, 0, subject))
}

/// The part of the table, or the table itself, whose rows were replaced since the snapshot.
///
/// # Errors
/// As the statement fails.
pub(super) async fn replaced(session: &Arc<Session>, relation: &Relation, subject: &Subject) -> Result<Option<String>> {
    let rows = session.query(REPLACED, &[(&relation.oid, Type::OID)], subject).await?;
    rows.first().map(|row| get(row, 0, subject)).transpose()
}

fn get<'a, T: FromSql<'a>>(row: &'a Row, index: usize, subject: &Subject) -> Result<T> {
    row.try_get(index).map_err(|error| {
        let what = format!("the catalogue answers in an unknown form (column {index}: {error})");
        subject.error(ErrorCode::CaptureFailed, what, "report this with the server's version")
    })
}

fn by_table(rows: Vec<Row>, subject: &Subject) -> Result<HashMap<u32, Vec<Row>>> {
    let mut tables: HashMap<u32, Vec<Row>> = HashMap::new();
    for row in rows {
        tables.entry(get(&row, 0, subject)?).or_default().push(row);
    }
    Ok(tables)
}

fn read_types(rows: Vec<Row>, subject: &Subject) -> Result<Types> {
    let mut types = Types::new();
    for row in &rows {
        let class: String = get(row, 3, subject)?;
        let found = PgType {
            schema: get(row, 1, subject)?,
            name: get(row, 2, subject)?,
            class: class.chars().next().unwrap_or('p'),
            is_array: get(row, 4, subject)?,
            element: get(row, 5, subject)?,
            base: get(row, 6, subject)?,
            modifier: get(row, 7, subject)?,
            dimensions: get(row, 8, subject)?,
            cast_name: get(row, 9, subject)?,
        };
        types.insert(get(row, 0, subject)?, found);
    }
    Ok(types)
}

/// `None` for a table that was dropped meanwhile.
fn read_relation(row: &Row, columns: &[Row], indexes: &[Row], (types, subject): (&Types, &Subject)) -> Result<Option<Relation>> {
    let kind: String = get(row, 3, subject)?;
    let may_use_schema: bool = get(row, 4, subject)?;
    let (is_parent, has_foreign_part): (bool, bool) = (get(row, 5, subject)?, get(row, 6, subject)?);
    let enforces_not_null = matches!(kind.as_str(), "r" | "p" | "m") && !is_parent && !has_foreign_part;
    let mut table = SourceTable {
        name: vec![get(row, 1, subject)?, get(row, 2, subject)?],
        kind: relation_kind(&kind),
        columns: vec![],
        primary_key: vec![],
        unique_keys: vec![],
    };
    let (mut resolved, mut by_number) = (vec![], BTreeMap::new());
    for row in columns {
        if get::<bool>(row, 9, subject)? {
            return Ok(None);
        }
        let may_read: bool = get(row, 8, subject)?;
        let ty = match may_use_schema && may_read {
            true => column_type(row, types, subject)?,
            false => Err("the role of this connection may not read it (GRANT USAGE on the schema, SELECT on the table)".to_string()),
        };
        let place = Place { index: table.columns.len(), collation: get(row, 10, subject)?, order: ty.as_ref().ok().map(|ty| ty.order) };
        by_number.insert(get::<i16>(row, 1, subject)?, place);
        table.columns.push(SourceColumn {
            name: get(row, 2, subject)?,
            data_type: ty.as_ref().map_or(DataType::Null, |ty| ty.kind.data_type()),
            source_type: get(row, 7, subject)?,
            is_nullable: !(enforces_not_null && get::<bool>(row, 6, subject)?),
            leads_index: false,
            unsupported: ty.as_ref().err().cloned(),
        });
        resolved.push(ty);
    }
    // The indexes of a table that others inherit from do not cover their rows.
    for row in indexes.iter().filter(|_| !is_parent) {
        read_index(row, &mut table, &by_number, subject)?;
    }
    Ok(Some(Relation { oid: get(row, 0, subject)?, table, types: resolved }))
}

fn column_type(row: &Row, types: &Types, subject: &Subject) -> Result<Result<ColumnType, String>> {
    let mut ty = resolve(types, get(row, 3, subject)?, get(row, 4, subject)?, get(row, 5, subject)?);
    let is_by_bytes: bool = get(row, 11, subject)?;
    if let Ok(ty) = &mut ty {
        // Where the column's own order is that of the bytes, its indexes serve it; another name for the same order would not.
        if is_by_bytes && ty.order == Order::Bytes && !ty.is_domain {
            ty.order = Order::Own;
        }
    }
    Ok(ty)
}

fn relation_kind(letter: &str) -> RelationKind {
    match letter {
        "p" => RelationKind::PartitionedTable,
        "v" => RelationKind::View,
        "m" => RelationKind::MaterializedView,
        "f" => RelationKind::ForeignTable,
        _ => RelationKind::Table,
    }
}

/// What an index column is matched with.
struct Place {
    index: usize,
    collation: u32,
    order: Option<Order>,
}

impl Place {
    /// Whether an index of this collation has the order that the column is read in.
    fn is_served_by(&self, collation: u32) -> bool {
        match self.order {
            Some(Order::Own) => collation == self.collation,
            Some(Order::Bytes) => collation == C_COLLATION,
            Some(Order::CastToText) | None => false,
        }
    }
}

fn read_index(row: &Row, table: &mut SourceTable, by_number: &BTreeMap<i16, Place>, subject: &Subject) -> Result<()> {
    let (is_primary, is_key, count): (bool, bool, i32) = (get(row, 1, subject)?, get(row, 2, subject)?, get(row, 3, subject)?);
    let (numbers, collation): (String, u32) = (get(row, 4, subject)?, get(row, 6, subject)?);
    let count = usize::try_from(count).unwrap_or_default();
    // An expression has the number 0, which no column has.
    let places: Vec<Option<&Place>> =
        numbers.split(' ').take(count).map(|number| by_number.get(&number.parse().unwrap_or_default())).collect();
    if let (Some(Some(first)), true) = (places.first(), get::<bool>(row, 5, subject)?) {
        table.columns[first.index].leads_index |= first.is_served_by(collation);
    }
    let Some(places) = places.into_iter().collect::<Option<Vec<&Place>>>().filter(|_| is_key) else { return Ok(()) };
    let names = places.iter().map(|place| table.columns[place.index].name.clone()).collect();
    if is_primary {
        table.primary_key = names;
    } else if places.iter().all(|place| !table.columns[place.index].is_nullable) {
        table.unique_keys.push(names);
    }
    Ok(())
}
