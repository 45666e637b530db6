//! The scale of a `numeric` that declares none: what the rows of one snapshot hold.
//!
//! ```text
//! numeric ─ one aggregate over the table ─► greatest scale, integer digits, special values ─► Decimal128(38, s), Decimal256(76, s) or text
//! ```
//!
//! Done once, when a table is first loaded; afterwards the type that was chosen stays, so that types do not follow the data
//! of the day. The whole width is used, so only a value with more fraction digits, or of enormous size, fails later.

use std::sync::Arc;

use arrow_schema::{DataType, Schema};

use super::copy::ValueKind;
use super::failure::Subject;
use super::literal::identifier;
use super::relation::Relation;
use super::session::Session;
use super::types::{ColumnType, Select, decimal};
use crate::error::Result;

/// Settles the type of every open `numeric`: as `known` says where it does, else as measured.
///
/// # Errors
/// As the aggregate fails.
pub(super) async fn settle(session: &Arc<Session>, relation: &mut Relation, known: Option<&Schema>, subject: &Subject) -> Result<()> {
    let open = |ty: &Result<ColumnType, String>| ty.as_ref().is_ok_and(|ty| ty.is_open_numeric);
    let mut unknown = vec![];
    let open: Vec<usize> = (0..relation.types.len()).filter(|&index| open(&relation.types[index])).collect();
    for index in open {
        let field = known.and_then(|known| known.field_with_name(&relation.table.columns[index].name).ok());
        match field.map(|field| field.data_type()) {
            None => unknown.push(index),
            Some(DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale)) => {
                set(relation, index, decimal(i64::from(*precision), i64::from(*scale)));
            }
            Some(_) => {}
        }
    }
    if unknown.is_empty() {
        return Ok(());
    }
    let rows = session.query(&aggregate(relation, &unknown), &[], subject).await?;
    for (place, &index) in unknown.iter().enumerate() {
        let get = |offset: usize| rows.first().and_then(|row| row.try_get::<_, Option<i32>>(place * 2 + offset).ok().flatten());
        // A special value makes both null, as no value does: text in either case, unless there are no values at all.
        set(relation, index, get(0).zip(get(1)).and_then(|(scale, digits)| widest(i64::from(digits), i64::from(scale))));
    }
    Ok(())
}

/// Scale and integer digits of each column, both null where a value is special.
fn aggregate(relation: &Relation, columns: &[usize]) -> String {
    let items: Vec<String> = columns
        .iter()
        .map(|&index| {
            let name = format!("t.{}", identifier(&relation.table.columns[index].name));
            let special = format!("pg_catalog.bool_or({name}::pg_catalog.text IN ('NaN', 'Infinity', '-Infinity'))");
            let scale = format!("pg_catalog.max(pg_catalog.scale({name}))");
            let digits = format!("pg_catalog.max(pg_catalog.length(pg_catalog.trunc(pg_catalog.abs({name}))::pg_catalog.text))");
            format!("CASE WHEN {special} THEN NULL ELSE {scale} END, CASE WHEN {special} THEN NULL ELSE {digits} END")
        })
        .collect();
    format!("SELECT {} FROM {} AS t", items.join(", "), relation.sql_name())
}

/// The widest decimal of this scale among the narrower kinds that hold this many integer digits.
fn widest(digits: i64, scale: i64) -> Option<ValueKind> {
    [38, 76].into_iter().find(|width| digits + scale <= *width).and_then(|width| decimal(width, scale))
}

fn set(relation: &mut Relation, index: usize, kind: Option<ValueKind>) {
    let Some(kind) = kind else { return };
    relation.table.columns[index].data_type = kind.data_type();
    if let Ok(ty) = &mut relation.types[index] {
        (ty.kind, ty.select) = (kind, Select::Plain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_kind_that_holds_the_values_is_taken_whole() {
        assert_eq!(widest(5, 2), Some(ValueKind::Decimal(38, 2)));
        assert_eq!(widest(37, 1), Some(ValueKind::Decimal(38, 1)));
        assert_eq!(widest(38, 1), Some(ValueKind::Decimal(76, 1)));
        assert_eq!(widest(70, 7), None);
    }
}
