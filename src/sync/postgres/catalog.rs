//! What the catalogue says of tables: columns, types, keys and what leads an index.
//!
//! ```text
//! pg_class, pg_attribute ─► tables and columns ─┐
//! pg_type, closed over bases and elements ──────┼─► Relation
//! pg_index ─► primary and unique keys, leaders ─┘
//! ```
//!
//! Keys come from `pg_index`: `information_schema` hides them from roles that may only SELECT, and mixes key columns with
//! foreign ones. A deferrable key counts: it may be broken within a transaction and never in what a snapshot sees. A column
//! that the role may not read is shown as unsupported, with the reason. Memory: the catalogue rows of the tables asked for.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow_schema::DataType;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::failure::Subject;
use super::relation::Relation;
use super::session::Session;
use super::types::{PgType, Types, resolve};
use crate::error::{ErrorCode, Result};
use crate::sync::connector::{RelationKind, SourceColumn, SourceTable};

/// Tables that can be read, but for partitions: they are read as one, unless one is asked for by name. The last column is about
/// how many rows there are, as far as the server has counted.
const TABLES: &str = "
SELECT c.oid, n.nspname, c.relname, c.relkind::text,
       pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
       CASE c.relkind WHEN 'p' THEN (SELECT pg_catalog.sum(GREATEST(leaf.reltuples, 0)::float8) FROM pg_catalog.pg_partition_tree(c.oid) p
                                     JOIN pg_catalog.pg_class leaf ON leaf.oid = p.relid WHERE p.isleaf)
                      ELSE c.reltuples::float8 END
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relpersistence <> 't'
  AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
  AND ($1::text IS NULL AND NOT c.relispartition OR n.nspname = $1 AND c.relname = $2)
ORDER BY n.nspname COLLATE \"C\", c.relname COLLATE \"C\"";

const COLUMNS: &str = "
SELECT a.attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod, a.attndims::int4, a.attnotnull,
       pg_catalog.format_type(a.atttypid, a.atttypmod),
       pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT')
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = ANY($1) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum";

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

/// Indexes of whole columns over all rows. Only a B-tree serves a range in order.
const INDEXES: &str = "
SELECT i.indrelid, i.indisprimary, i.indisunique AND i.indexprs IS NULL, i.indnkeyatts::int4, i.indkey::text,
       am.amname = 'btree'
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid JOIN pg_catalog.pg_am am ON am.oid = x.relam
WHERE i.indrelid = ANY($1) AND i.indisvalid AND i.indpred IS NULL
ORDER BY i.indrelid, x.relname COLLATE \"C\"";

/// The tables of a database, or the one called `only`: its schema and name.
///
/// # Errors
/// As the statements fail.
pub(super) async fn read(session: &Arc<Session>, only: Option<(&str, &str)>, subject: &Subject) -> Result<Vec<Relation>> {
    let (schema, name) = only.unzip();
    let tables = session.query(TABLES, &[&schema, &name], subject).await?;
    let oids: Vec<u32> = tables.iter().map(|row| get(row, 0, subject)).collect::<Result<_>>()?;
    if oids.is_empty() {
        return Ok(vec![]);
    }
    let types = read_types(session.query(TYPES, &[&oids], subject).await?, subject)?;
    let mut columns = by_table(session.query(COLUMNS, &[&oids], subject).await?, subject)?;
    let mut indexes = by_table(session.query(INDEXES, &[&oids], subject).await?, subject)?;
    let relation = |(row, oid): (&Row, u32)| {
        let (columns, indexes) = (columns.remove(&oid).unwrap_or_default(), indexes.remove(&oid).unwrap_or_default());
        read_relation(row, &columns, &indexes, (&types, subject))
    };
    tables.iter().zip(oids).map(relation).collect()
}

/// What the table is; `None` when there is none.
///
/// # Errors
/// As the statement fails.
pub(super) async fn kind(session: &Arc<Session>, (schema, name): (&str, &str), subject: &Subject) -> Result<Option<RelationKind>> {
    let rows = session.query(TABLES, &[&Some(schema), &Some(name)], subject).await?;
    let kind = |row: &Row| get::<String>(row, 3, subject).map(|letter| relation_kind(&letter));
    rows.first().map(kind).transpose()
}

/// Schema and name of every table.
///
/// # Errors
/// As the statement fails.
pub(super) async fn names(session: &Arc<Session>, subject: &Subject) -> Result<Vec<[String; 2]>> {
    let rows = session.query(TABLES, &[&None::<&str>, &None::<&str>], subject).await?;
    rows.iter().map(|row| Ok([get(row, 1, subject)?, get(row, 2, subject)?])).collect()
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

fn read_relation(row: &Row, columns: &[Row], indexes: &[Row], (types, subject): (&Types, &Subject)) -> Result<Relation> {
    let kind: String = get(row, 3, subject)?;
    let may_use_schema: bool = get(row, 4, subject)?;
    let mut table = SourceTable {
        name: vec![get(row, 1, subject)?, get(row, 2, subject)?],
        kind: relation_kind(&kind),
        columns: vec![],
        primary_key: vec![],
        unique_keys: vec![],
    };
    let (mut resolved, mut by_number) = (vec![], BTreeMap::new());
    for row in columns {
        let may_read: bool = get(row, 8, subject)?;
        let ty = match may_use_schema && may_read {
            true => resolve(types, get(row, 3, subject)?, get(row, 4, subject)?, get(row, 5, subject)?),
            false => Err("the role of this connection may not read it (GRANT USAGE on the schema, SELECT on the table)".to_string()),
        };
        by_number.insert(get::<i16>(row, 1, subject)?, table.columns.len());
        table.columns.push(SourceColumn {
            name: get(row, 2, subject)?,
            data_type: ty.as_ref().map_or(DataType::Null, |ty| ty.kind.data_type()),
            source_type: get(row, 7, subject)?,
            is_nullable: !get::<bool>(row, 6, subject)?,
            leads_index: false,
            unsupported: ty.as_ref().err().cloned(),
        });
        resolved.push(ty);
    }
    for row in indexes {
        read_index(row, &mut table, &by_number, subject)?;
    }
    let rows: Option<f64> = get(row, 5, subject)?;
    Ok(Relation { table, types: resolved, rows: rows.unwrap_or_default() })
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

fn read_index(row: &Row, table: &mut SourceTable, by_number: &BTreeMap<i16, usize>, subject: &Subject) -> Result<()> {
    let (is_primary, is_key, count): (bool, bool, i32) = (get(row, 1, subject)?, get(row, 2, subject)?, get(row, 3, subject)?);
    let numbers: String = get(row, 4, subject)?;
    let count = usize::try_from(count).unwrap_or_default();
    // An expression has the number 0, which no column has.
    let columns: Vec<Option<usize>> =
        numbers.split(' ').take(count).map(|number| by_number.get(&number.parse().unwrap_or_default()).copied()).collect();
    if let (Some(Some(first)), true) = (columns.first(), get::<bool>(row, 5, subject)?) {
        table.columns[*first].leads_index = true;
    }
    let Some(columns) = columns.into_iter().collect::<Option<Vec<usize>>>().filter(|_| is_key) else { return Ok(()) };
    let names = columns.iter().map(|&index| table.columns[index].name.clone()).collect();
    if is_primary {
        table.primary_key = names;
    } else if columns.iter().all(|&index| !table.columns[index].is_nullable) {
        table.unique_keys.push(names);
    }
    Ok(())
}
