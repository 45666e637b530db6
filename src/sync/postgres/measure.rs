//! The scale of a `numeric` that declares none: what the rows of one snapshot hold.
//!
//! ```text
//! numeric ─ one aggregate over the table ─► greatest scale, greatest and least value ─► Decimal128(38, s), Decimal256(76, s) or text
//!                                           no value at all ─► Decimal128(38, 9)
//! ```
//!
//! Done when one table is described and when it is first loaded; afterwards the type that was chosen stays, so that types do
//! not follow the data of the day. The whole width is used, so only a value with more fraction digits, or of enormous size,
//! fails later, and says that a resync measures anew. NaN and infinity make it text, unless they are read as null.

use std::sync::Arc;

use arrow_schema::{DataType, Schema};

use super::copy::ValueKind;
use super::failure::Subject;
use super::literal::identifier;
use super::options::OutOfRange;
use super::query::finite_numeric;
use super::relation::Relation;
use super::session::Session;
use super::types::{ColumnType, Select, decimal};
use crate::error::Result;

/// The type where no value says anything: room for what most numbers are.
const UNMEASURED: ValueKind = ValueKind::Decimal(38, 9);

/// Settles the type of every open `numeric`: as `known` says where it does, else as measured.
///
/// # Errors
/// As the aggregate fails.
pub(super) async fn settle(
    session: &Arc<Session>,
    relation: &mut Relation,
    known: Option<&Schema>,
    (out_of_range, subject): (OutOfRange, &Subject),
) -> Result<()> {
    let unknown = settle_known(relation, known);
    if unknown.is_empty() {
        return Ok(());
    }
    let rows = session.query(&aggregate(relation, &unknown, (out_of_range, session.version())), &[], subject).await?;
    for (place, &index) in unknown.iter().enumerate() {
        let number = |offset: usize| rows.first().and_then(|row| row.try_get::<_, Option<i32>>(place * 3 + offset).ok().flatten());
        let text = |offset: usize| rows.first().and_then(|row| row.try_get::<_, Option<String>>(place * 3 + offset).ok().flatten());
        set(relation, index, measured(number(0), text(1), text(2)));
    }
    Ok(())
}

/// Settles what `known` knows; the columns that are left.
fn settle_known(relation: &mut Relation, known: Option<&Schema>) -> Vec<usize> {
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
    unknown
}

/// Greatest scale, greatest and least value of each column; of its numbers alone where everything else is read as null.
fn aggregate(relation: &Relation, columns: &[usize], (out_of_range, version): (OutOfRange, i32)) -> String {
    let items: Vec<String> = columns
        .iter()
        .map(|&index| {
            let name = format!("(t.{})::pg_catalog.numeric", identifier(&relation.table.columns[index].name));
            let counted = match out_of_range {
                OutOfRange::Error => String::new(),
                OutOfRange::Null => format!(" FILTER (WHERE {})", finite_numeric(&name, version)),
            };
            format!(
                "pg_catalog.max(pg_catalog.scale({name})){counted}, (pg_catalog.max({name}){counted})::pg_catalog.text, \
                 (pg_catalog.min({name}){counted})::pg_catalog.text"
            )
        })
        .collect();
    format!("SELECT {} FROM {} AS t", items.join(", "), relation.sql_name())
}

/// The type for values of at most this scale between these two; `None` for text.
fn measured(scale: Option<i32>, greatest: Option<String>, least: Option<String>) -> Option<ValueKind> {
    let (Some(greatest), Some(least)) = (greatest, least) else { return Some(UNMEASURED) };
    // NaN sorts above everything, so a special value among others is one of the two.
    let digits = |text: &str| {
        let whole = text.trim_start_matches('-').split('.').next().unwrap_or_default();
        whole.bytes().all(|byte| byte.is_ascii_digit()).then(|| i64::try_from(whole.len()).unwrap_or(i64::MAX))
    };
    widest(digits(&greatest)?.max(digits(&least)?), i64::from(scale?))
}

/// The widest decimal of this scale among the narrower kinds that hold this many integer digits.
fn widest(digits: i64, scale: i64) -> Option<ValueKind> {
    [38, 76].into_iter().find(|width| digits.saturating_add(scale) <= *width).and_then(|width| decimal(width, scale))
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

    #[test]
    fn special_values_are_text_and_no_values_have_a_decimal() {
        let measured = |scale, greatest: &str, least: &str| measured(scale, Some(greatest.into()), Some(least.into()));
        assert_eq!(measured(Some(3), "7.125", "-123456.5"), Some(ValueKind::Decimal(38, 3)));
        assert_eq!(measured(Some(0), "NaN", "1"), None);
        assert_eq!(measured(None, "NaN", "NaN"), None);
        assert_eq!(measured(Some(1), "1.0", "-Infinity"), None);
        assert_eq!(super::measured(None, None, None), Some(UNMEASURED));
    }
}
