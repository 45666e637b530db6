//! Which rows a run reads: the bounds of the cursor, and what becomes of nulls in it.

use datafusion::common::ScalarValue;

use super::decide::Decision;
use crate::error::{Error, ErrorCode, Result};
use crate::spec::sync::{NullPolicy, SyncConfig, TypedValue};
use crate::sync::connector::{ReadScope, RowFilter, SourceSnapshot};

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

/// The scope of a run of `config`.
pub(super) async fn scope(
    table: &str,
    config: &SyncConfig,
    decision: &Decision,
    snapshot: &dyn SourceSnapshot,
    filters: &[RowFilter],
) -> Result<RowScope> {
    let cursor = config.incremental_field.as_ref().filter(|_| decision.sync_type.has_cursor());
    let Some(column) = cursor else { return Ok(RowScope { reads: vec![ReadScope::All], ceiling: None, excluded_nulls: None }) };
    let ceiling = snapshot.ceiling(column, filters).await?.and_then(TypedValue::new);
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
    let upper = ceiling.as_ref().map(|ceiling| ceiling.value().clone());
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

/// The mark as a closed lower bound in the column's present type, less the look-back. The look-back is never stored.
fn lower_bound(table: &str, config: &SyncConfig, mark: &TypedValue, snapshot: &dyn SourceSnapshot) -> Result<ScalarValue> {
    let column = config.incremental_field.as_deref().and_then(|field| snapshot.table().column(field));
    let data_type = column.map_or_else(|| mark.value().data_type(), |column| column.data_type.clone());
    let value = match mark.value().data_type() == data_type {
        true => mark.value().clone(),
        false => mark.value().cast_to(&data_type).map_err(|e| {
            Error::new(
                ErrorCode::SchemaChanged,
                format!(
                    "synced table {table:?}: the mark {mark} is no {data_type}, which the cursor column is now. \
                     Remedy: CALL sync.resync('{table}', confirm => true)"
                ),
            )
            .with_source(e)
        })?,
    };
    Ok(earlier(value, config.incremental_field_lookback_seconds))
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

fn null_cursor(table: &str, column: &str, count: u64) -> Error {
    Error::new(
        ErrorCode::NullCursor,
        format!(
            "synced table {table:?}: the cursor column {column:?} is null in {count} rows. Nothing was published. Remedy: \
             ALTER SYNCED TABLE {table} SET (incremental_field_null_policy = 'exclude') leaves them out and counts them; or fill the column"
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
