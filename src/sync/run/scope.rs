//! Which rows a run reads: the bounds of the cursor, and what becomes of nulls in it.

use datafusion::common::ScalarValue;

use super::decide::{Decision, Write};
use crate::error::{Error, ErrorCode, Result};
use crate::spec::sync::{FieldType, NullPolicy, SyncConfig, TypedValue};
use crate::sync::connector::{ReadScope, RowFilter, SourceSnapshot};
use crate::table::TableHandle;

/// The rows of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RowScope {
    /// What is read, one after the other.
    pub reads: Vec<ReadScope>,
    /// The greatest cursor value in the snapshot.
    pub ceiling: Option<TypedValue>,
    /// Rows with a null cursor that are left out.
    pub excluded_nulls: Option<u64>,
}

impl RowScope {
    /// The closed lower bound of what is read.
    pub fn lower(&self) -> Option<ScalarValue> {
        self.reads.iter().find_map(|read| match read {
            ReadScope::Range { lower, .. } => lower.clone(),
            _ => None,
        })
    }

    /// Leaves out what is beyond `ceiling`.
    pub fn end_at(&mut self, ceiling: Option<&TypedValue>) {
        for read in &mut self.reads {
            if let ReadScope::Range { upper, .. } = read {
                *upper = ceiling.map(|ceiling| ceiling.value().clone());
            }
        }
    }
}

/// The scope of a run of `config`.
pub(super) async fn scope(
    table: &TableHandle,
    config: &SyncConfig,
    decision: &Decision,
    snapshot: &dyn SourceSnapshot,
    filters: &[RowFilter],
) -> Result<RowScope> {
    let cursor = config.incremental_field.as_ref().filter(|_| decision.sync_type.has_cursor());
    let Some(column) = cursor else { return Ok(RowScope { reads: vec![ReadScope::All], ceiling: None, excluded_nulls: None }) };
    let ceiling = snapshot.ceiling(column, filters).await?.and_then(TypedValue::new);
    if let Some(ceiling) = ceiling.as_ref().filter(|_| config.incremental_field_type == Some(FieldType::Objectid)) {
        check_object_id(table, column, ceiling)?;
    }
    let policy = config.null_policy();
    let may_be_null = snapshot.table().column(column).is_none_or(|column| column.is_nullable);
    let nulls = match policy {
        _ if !may_be_null => 0,
        NullPolicy::Include => 0,
        NullPolicy::Fail | NullPolicy::Exclude => snapshot.count_nulls(column, filters).await?,
    };
    if policy == NullPolicy::Fail && nulls > 0 {
        return Err(null_cursor(table, column, nulls));
    }
    let lower = match &decision.mark {
        Some(mark) => Some(lower_bound(table, config, mark, snapshot)?),
        None => None,
    };
    // Rows that a pass would remove because it does not find them are looked for above the ceiling too.
    let removes = decision.write == Write::Merge { removes: true };
    let upper = ceiling.as_ref().filter(|_| !removes).map(|ceiling| zero(ceiling.value().clone(), 0.0));
    let includes_nulls = policy == NullPolicy::Include && may_be_null;
    let reads = match (lower, includes_nulls) {
        (None, true) => vec![ReadScope::All],
        (lower, includes_nulls) => {
            let range = ReadScope::Range { column: column.clone(), lower, upper };
            let nulls = includes_nulls.then(|| ReadScope::Null { column: column.clone() });
            std::iter::once(range).chain(nulls).collect()
        }
    };
    Ok(RowScope { reads, ceiling, excluded_nulls: (policy == NullPolicy::Exclude).then_some(nulls) })
}

/// Object ids grow with time in the order of their text only where they are what they are called: one other text, or capital
/// letters among small ones, would be a mark that nothing comes after.
fn check_object_id(table: &TableHandle, column: &str, ceiling: &TypedValue) -> Result<()> {
    let text = match ceiling.value() {
        ScalarValue::Utf8(Some(text)) | ScalarValue::LargeUtf8(Some(text)) | ScalarValue::Utf8View(Some(text)) => text.as_str(),
        _ => return Ok(()),
    };
    if text.len() == 24 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)) {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::ValueOutOfRange,
        format!(
            "synced table {:?}: the greatest value of the cursor column {column:?} is {text:?}, which is no object id: 24 hexadecimal digits in \
             small letters. Nothing was published. Remedy: correct it, or ALTER SYNCED TABLE {} SET (row_filters = …) to leave such rows out",
            table.name(),
            table.sql_name()
        ),
    ))
}

/// The mark as a closed lower bound in the column's present type, less the look-back. The look-back is never stored.
fn lower_bound(table: &TableHandle, config: &SyncConfig, mark: &TypedValue, snapshot: &dyn SourceSnapshot) -> Result<ScalarValue> {
    let column = config.incremental_field.as_deref().and_then(|field| snapshot.table().column(field));
    let data_type = column.map_or_else(|| mark.value().data_type(), |column| column.data_type.clone());
    let value = match mark.value().data_type() == data_type {
        true => mark.value().clone(),
        false => mark.value().cast_to(&data_type).map_err(|e| {
            Error::new(
                ErrorCode::SchemaChanged,
                format!(
                    "synced table {:?}: the mark {mark} is no {data_type}, which the cursor column is now. \
                     Remedy: CALL sync.resync({}, confirm => true)",
                    table.name(),
                    table.sql_literal()
                ),
            )
            .with_source(e)
        })?,
    };
    Ok(zero(earlier(value, config.incremental_field_lookback_seconds), -0.0))
}

/// A bound of zero as the zero that includes the other one, where zeros have signs and the order tells them apart.
fn zero(bound: ScalarValue, sign: f32) -> ScalarValue {
    match bound {
        ScalarValue::Float64(Some(0.0)) => ScalarValue::Float64(Some(f64::from(sign))),
        ScalarValue::Float32(Some(0.0)) => ScalarValue::Float32(Some(sign)),
        other => other,
    }
}

/// The value that is `seconds` earlier; days are taken whole. A bound beyond the type is its own smallest value.
fn earlier(value: ScalarValue, seconds: u32) -> ScalarValue {
    let seconds = i64::from(seconds);
    let days = seconds.div_euclid(86_400) + i64::from(seconds % 86_400 > 0);
    match value {
        ScalarValue::TimestampSecond(Some(v), zone) => ScalarValue::TimestampSecond(Some(v.saturating_sub(seconds)), zone),
        ScalarValue::TimestampMillisecond(Some(v), zone) => {
            ScalarValue::TimestampMillisecond(Some(v.saturating_sub(seconds * 1_000)), zone)
        }
        ScalarValue::TimestampMicrosecond(Some(v), zone) => {
            ScalarValue::TimestampMicrosecond(Some(v.saturating_sub(seconds * 1_000_000)), zone)
        }
        ScalarValue::TimestampNanosecond(Some(v), zone) => {
            ScalarValue::TimestampNanosecond(Some(v.saturating_sub(seconds.saturating_mul(1_000_000_000))), zone)
        }
        ScalarValue::Date32(Some(v)) => ScalarValue::Date32(Some(v.saturating_sub(i32::try_from(days).unwrap_or(i32::MAX)))),
        ScalarValue::Date64(Some(v)) => ScalarValue::Date64(Some(v.saturating_sub(days * 86_400_000))),
        other => other,
    }
}

fn null_cursor(table: &TableHandle, column: &str, count: u64) -> Error {
    let rows = if count == 1 { "row" } else { "rows" };
    Error::new(
        ErrorCode::NullCursor,
        format!(
            "synced table {:?}: the cursor column {column:?} is null in {count} {rows}. Nothing was published. Remedy: \
             ALTER SYNCED TABLE {} SET (incremental_field_null_policy = 'exclude') leaves them out and counts them; or fill the column",
            table.name(),
            table.sql_name()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_back_of_part_of_a_day_takes_the_whole_day() {
        let day = |day| ScalarValue::Date32(Some(day));
        assert_eq!(earlier(day(10), 0), day(10));
        assert_eq!(earlier(day(10), 1), day(9));
        assert_eq!(earlier(day(10), 86_400), day(9));
        assert_eq!(earlier(day(10), 86_401), day(8));
        assert_eq!(earlier(day(i32::MIN), 86_400), day(i32::MIN));
    }

    #[test]
    fn a_look_back_keeps_unit_and_zone() {
        let micros = |v| ScalarValue::TimestampMicrosecond(Some(v), Some("UTC".into()));
        assert_eq!(earlier(micros(600_000_000), 600), micros(0));
        assert_eq!(earlier(micros(0), 1), micros(-1_000_000));
        assert_eq!(earlier(ScalarValue::Int64(Some(5)), 600), ScalarValue::Int64(Some(5)));
    }
}
