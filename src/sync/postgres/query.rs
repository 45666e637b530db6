//! The statements that read a table: what is selected, which rows, in which order.
//!
//! ```text
//! COPY (SELECT t."id", (t."span")::text FROM "public"."orders" AS t
//!       WHERE t."amount" = '10'::numeric                                         row filters
//!         AND t."updated_at" >= '…'::timestamptz AND t."updated_at" <= '…'::timestamptz   the scope
//!         AND (t."updated_at", t."id") > ('…'::timestamptz, '7'::int8)           where an earlier read stopped
//!       ORDER BY t."updated_at", t."id") TO STDOUT (FORMAT binary)
//! ```
//!
//! Pure: a statement follows from the request, the columns' types and the connection's options. Every operator is written with
//! its schema (`OPERATOR(pg_catalog.=)`), since these statements run in the role's own `search_path`, where somebody may have
//! put an operator that fits better. Text is compared and ordered byte by byte; where equality is asked for, the column's own
//! stands beside it, which admits no less and lets an index answer. Where special values are read as null, a special cursor
//! counts as a null one.

use super::copy::ValueKind;
use super::failure::Subject;
use super::literal::{identifier, literal};
use super::options::OutOfRange;
use super::relation::{Column, Relation};
use super::types::{ColumnType, Order, PG_CATALOG, Select};
use crate::error::{ErrorCode, Result};
use crate::sync::connector::{FilterOperator, ReadRequest, ReadScope, RowFilter};
use datafusion::common::ScalarValue;

/// Server versions from here on know an infinite `numeric`.
const INFINITE_NUMERIC: i32 = 140_000;

/// The condition that a `numeric` is a number. NaN is greater than infinity.
pub(super) fn finite_numeric(name: &str, version: i32) -> String {
    if version < INFINITE_NUMERIC {
        return format!("{name} OPERATOR(pg_catalog.<>) 'NaN'::pg_catalog.numeric");
    }
    let infinity = |sign: &str, operator: &str| format!("{name} OPERATOR(pg_catalog.{operator}) '{sign}Infinity'::pg_catalog.numeric");
    format!("{} AND {}", infinity("-", ">"), infinity("", "<"))
}

/// Builds the statements that read one relation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queries<'a> {
    pub relation: &'a Relation,
    pub subject: &'a Subject,
    pub out_of_range: OutOfRange,
    /// `server_version_num`.
    pub version: i32,
}

impl Queries<'_> {
    /// The rows of a request.
    pub(super) fn read(&self, request: &ReadRequest) -> Result<String> {
        let mut selected = vec![];
        for name in &request.columns {
            selected.push(select_item(self.relation.column(name, self.subject)?));
        }
        let mut conditions = self.filters(&request.filters)?;
        self.scope(&request.scope, &mut conditions)?;
        let mut order = vec![];
        for name in &request.order_by {
            order.push(ordered(self.relation.column(name, self.subject)?));
        }
        if let Some(after) = &request.after {
            conditions.push(self.after(&request.order_by, after)?);
        }
        let order = if order.is_empty() { String::new() } else { format!(" ORDER BY {}", order.join(", ")) };
        Ok(copy(&format!("SELECT {} {}{order}", selected.join(", "), self.relation_where(&conditions))))
    }

    /// The greatest value of a column: at most one row. An index that the column leads answers it at once; `max` is not known for
    /// every type that has an order.
    pub(super) fn ceiling(&self, column: &str, filters: &[RowFilter]) -> Result<String> {
        let column = self.relation.column(column, self.subject)?;
        let mut conditions = self.filters(filters)?;
        self.known(column, &mut conditions);
        let order = ordered(column);
        Ok(copy(&format!("SELECT {} {} ORDER BY {order} DESC LIMIT 1", select_item(column), self.relation_where(&conditions))))
    }

    /// How many rows are null in a column.
    pub(super) fn count_nulls(&self, column: &str, filters: &[RowFilter]) -> Result<String> {
        let mut conditions = self.filters(filters)?;
        self.scope(&ReadScope::Null { column: column.to_string() }, &mut conditions)?;
        Ok(format!("SELECT pg_catalog.count(*) {}", self.relation_where(&conditions)))
    }

    fn relation_where(&self, conditions: &[String]) -> String {
        let from = format!("FROM {} AS t", self.relation.sql_name());
        if conditions.is_empty() { from } else { format!("{from} WHERE {}", conditions.join(" AND ")) }
    }

    fn filters(&self, filters: &[RowFilter]) -> Result<Vec<String>> {
        filters.iter().map(|filter| self.filter(filter)).collect()
    }

    fn filter(&self, filter: &RowFilter) -> Result<String> {
        let column = self.relation.column(&filter.column, self.subject)?;
        let values: Vec<String> = filter.values.iter().map(|value| self.literal(column, value)).collect::<Result<_>>()?;
        let operator = filter.operator.as_str();
        match (filter.operator, values.as_slice()) {
            (FilterOperator::In, [_, ..]) | (FilterOperator::Eq, [_]) => Ok(one_of(column, &values)),
            (FilterOperator::NotIn, [_, ..]) | (FilterOperator::NotEq, [_]) => Ok(none_of(column, &values)),
            (FilterOperator::Lt | FilterOperator::LtEq | FilterOperator::Gt | FilterOperator::GtEq, [value]) => {
                Ok(compared(column, operator, value))
            }
            _ => Err(self.subject.error(
                ErrorCode::ConfigInvalid,
                format!("the row filter on {:?} has {} values for {operator}", filter.column, values.len()),
                "give one value, or a list for IN and NOT IN",
            )),
        }
    }

    fn scope(&self, scope: &ReadScope, conditions: &mut Vec<String>) -> Result<()> {
        match scope {
            ReadScope::All => {}
            ReadScope::Null { column } => {
                let column = self.relation.column(column, self.subject)?;
                let null = format!("{} IS NULL", plain(column));
                conditions.push(self.finite(column).map_or(null.clone(), |finite| format!("({null} OR NOT ({finite}))")));
            }
            ReadScope::Range { column, lower, upper } => {
                let column = self.relation.column(column, self.subject)?;
                self.known(column, conditions);
                for (bound, operator) in [(lower, ">="), (upper, "<=")] {
                    if let Some(bound) = bound {
                        conditions.push(compared(column, operator, &self.literal(column, bound)?));
                    }
                }
            }
        }
        Ok(())
    }

    /// The condition that a cursor has a value.
    fn known(&self, column: Column<'_>, conditions: &mut Vec<String>) {
        conditions.push(format!("{} IS NOT NULL", plain(column)));
        conditions.extend(self.finite(column));
    }

    /// The condition that a value is not one of those that are read as null, where there are such.
    fn finite(&self, column: Column<'_>) -> Option<String> {
        if self.out_of_range == OutOfRange::Error {
            return None;
        }
        let name = plain(column);
        let is = |operator: &str, value: &str| format!("{name} {} {value}", qualified(PG_CATALOG, operator));
        match column.ty.kind {
            ValueKind::Date | ValueKind::Timestamp | ValueKind::TimestampUtc => Some(format!("pg_catalog.isfinite({name})")),
            ValueKind::Time => Some(is("<", "'24:00'::pg_catalog.time")),
            ValueKind::Decimal(..) if column.ty.select != Select::Plain => None, // money is always finite
            ValueKind::Decimal(..) => Some(finite_numeric(&name, self.version)),
            _ => None,
        }
    }

    fn after(&self, names: &[String], values: &[ScalarValue]) -> Result<String> {
        if names.len() != values.len() || names.is_empty() {
            return Err(crate::Error::internal(format!(
                "{}: a position of {} values in an order of {}",
                self.subject,
                values.len(),
                names.len()
            )));
        }
        let mut columns = vec![];
        for (name, value) in names.iter().zip(values) {
            let column = self.relation.column(name, self.subject)?;
            columns.push((column, self.literal(column, value)?));
        }
        Ok(beyond(&columns))
    }

    fn literal(&self, column: Column<'_>, value: &ScalarValue) -> Result<String> {
        literal(value, column.ty).ok_or_else(|| {
            self.subject.error(
                ErrorCode::ConfigInvalid,
                format!("column {:?} cannot be compared with the value given for it", column.name),
                format!("give a value of {}, without zero bytes", column.ty.kind.data_type()),
            )
        })
    }
}

fn copy(query: &str) -> String {
    format!("COPY ({query}) TO STDOUT (FORMAT binary)")
}

/// The column in a condition.
fn plain(column: Column<'_>) -> String {
    let name = format!("t.{}", identifier(column.name));
    if column.ty.is_domain { format!("({name})::{}", column.ty.cast_name) } else { name }
}

fn select_item(column: Column<'_>) -> String {
    let name = format!("t.{}", identifier(column.name));
    match column.ty.select {
        Select::Plain => name,
        Select::Text => format!("({name})::pg_catalog.text"),
        Select::TextArray => format!("({name})::pg_catalog.text[]"),
        Select::Numeric => format!("({name})::pg_catalog.numeric"),
        Select::NumericArray => format!("({name})::pg_catalog.numeric[]"),
    }
}

/// The column where its order matters.
fn ordered(column: Column<'_>) -> String {
    let name = plain(column);
    match column.ty.order {
        Order::Own => name,
        Order::Bytes => format!("{name} COLLATE pg_catalog.\"C\""),
        Order::CastToText => format!("({name})::pg_catalog.text COLLATE pg_catalog.\"C\""),
    }
}

/// An operator of this schema, whatever the search path has.
fn qualified(schema: &str, operator: &str) -> String {
    let schema = if schema == PG_CATALOG { schema.to_string() } else { identifier(schema) };
    format!("OPERATOR({schema}.{})", if operator == "!=" { "<>" } else { operator })
}

/// The schema of the operators that order a column.
fn order_operators(ty: &ColumnType) -> &str {
    if ty.order == Order::CastToText { PG_CATALOG } else { &ty.operators }
}

/// A value as what [`ordered`] makes of its column.
fn ordered_value(column: Column<'_>, value: &str) -> String {
    if column.ty.order == Order::CastToText { format!("({value})::pg_catalog.text") } else { value.to_string() }
}

/// A comparison in the column's order.
fn compared(column: Column<'_>, operator: &str, value: &str) -> String {
    let operator = qualified(order_operators(column.ty), operator);
    format!("{} {operator} {}", ordered(column), ordered_value(column, value))
}

/// The condition that the column has one of these values.
fn one_of(column: Column<'_>, values: &[String]) -> String {
    let in_order = any(column, ("=", "ANY"), values);
    if column.ty.order == Order::Own {
        return in_order;
    }
    let own = format!("{} {} ANY (ARRAY[{}])", plain(column), qualified(&column.ty.operators, "="), values.join(", "));
    format!("{own} AND {in_order}")
}

/// The condition that the column has a value that is none of these.
fn none_of(column: Column<'_>, values: &[String]) -> String {
    any(column, ("<>", "ALL"), values)
}

fn any(column: Column<'_>, (operator, quantifier): (&str, &str), values: &[String]) -> String {
    let values: Vec<String> = values.iter().map(|value| ordered_value(column, value)).collect();
    let operator = qualified(order_operators(column.ty), operator);
    match values.as_slice() {
        [value] => format!("{} {operator} {value}", ordered(column)),
        _ => format!("{} {operator} {quantifier} (ARRAY[{}])", ordered(column), values.join(", ")),
    }
}

/// The condition that a row comes after these values, in the order of these columns.
fn beyond(columns: &[(Column<'_>, String)]) -> String {
    let [(column, value), rest @ ..] = columns else { return "false".to_string() };
    let after = compared(*column, ">", value);
    if rest.is_empty() {
        return after;
    }
    // One comparison of rows can be answered by an index; it has one operator for all columns.
    let schema = order_operators(column.ty);
    if rest.iter().all(|(column, _)| order_operators(column.ty) == schema) {
        let names: Vec<String> = columns.iter().map(|(column, _)| ordered(*column)).collect();
        let values: Vec<String> = columns.iter().map(|(column, value)| ordered_value(*column, value)).collect();
        return format!("({}) {} ({})", names.join(", "), qualified(schema, ">"), values.join(", "));
    }
    format!("({after} OR {} AND {})", compared(*column, "=", value), beyond(rest))
}
