//! Whether a configuration fits its source: the refusals, each with field, reason and remedy.

use arrow_schema::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use serde_json::Value;

use super::fields::{Changes, refuse};
use crate::error::{Error, ErrorCode, Result};
use crate::handler::RESERVED_PREFIX;
use crate::spec::sync::{FieldType, FilterSpec, Frequency, NullPolicy, SyncConfig, SyncType};
use crate::spec::unsupported_type;
use crate::sync::connector::{FilterOperator, RowFilter, SourceColumn, SourceTable};

/// A column that can be a cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The column.
    pub column: SourceColumn,
    /// What its values mean.
    pub field_type: FieldType,
}

/// What a column's values mean as a cursor, by its type; `None`: it cannot be one. Text can only when it is declared to hold
/// object ids.
pub fn cursor_type(data_type: &DataType) -> Option<FieldType> {
    match data_type {
        other if other.is_integer() => Some(FieldType::Integer),
        other if other.is_floating() || other.is_decimal() => Some(FieldType::Numeric),
        DataType::Timestamp(..) => Some(FieldType::Datetime),
        DataType::Date32 | DataType::Date64 => Some(FieldType::Date),
        _ => None,
    }
}

/// The columns of a source that can be a cursor, in its order.
pub fn candidates(source: &SourceTable) -> Vec<Candidate> {
    let usable = source.columns.iter().filter(|column| column.unsupported.is_none());
    usable.filter_map(|column| cursor_type(&column.data_type).map(|field_type| Candidate { column: column.clone(), field_type })).collect()
}

/// Fills in what the source decides: the kind of cursor values, and the key where none was named. `old`: what `changes` were
/// made to, none for a new table. A key that is empty because somebody said so stays empty.
pub fn complete(config: &mut SyncConfig, old: Option<&SyncConfig>, source: &SourceTable, changes: &Changes) {
    if let Some(field) = &config.incremental_field
        && !changes.sets("incremental_field_type")
        && (changes.names("incremental_field") || config.incremental_field_type.is_none())
    {
        config.incremental_field_type = source.column(field).and_then(|column| cursor_type(&column.data_type));
    }
    let key = "primary_key_columns";
    let wants_default = changes.names(key) && !changes.sets(key);
    let is_first_type = old.is_none_or(|old| old.sync_type.is_none() && config.sync_type.is_some());
    let needs_key = changes.sets("sync_type") && config.sync_type == Some(SyncType::Incremental);
    if config.primary_key_columns.is_empty() && (wants_default || !changes.names(key) && (is_first_type || needs_key)) {
        config.primary_key_columns.clone_from(&source.primary_key);
    }
}

/// Checks a configuration against its source. `changes` are what the statement names.
///
/// # Errors
/// `CONFIG_INVALID`, `FIELD_NOT_FOUND`, `KEY_REQUIRED`, `CURSOR_UNUSABLE`, `TYPE_UNSUPPORTED`.
pub fn validate(table: &str, config: &SyncConfig, source: &SourceTable, changes: &Changes) -> Result<()> {
    let check = Check { table, config, source };
    check.sync_type(changes)?;
    check.names()?;
    check.cursor()?;
    check.key()?;
    check.columns()?;
    validate_schedule(table, config)?;
    typed_filters(table, &config.row_filters, source).map(drop)
}

/// Checks what needs no source: keys are compared where rows are merged by one.
///
/// # Errors
/// `CONFIG_INVALID`.
pub fn validate_schedule(table: &str, config: &SyncConfig) -> Result<()> {
    if config.reconcile_frequency == Frequency::NEVER || config.sync_type.is_none() || !config.merge_key().is_empty() {
        return Ok(());
    }
    let what = "needs rows that are merged by a key, and these are not";
    Err(refuse(table, "reconcile_frequency", what, "leave it out or RESET it, or use sync_type 'incremental' with a key"))
}

/// Checks what a run needs of its source, where every column that is named exists: a column may have another type now.
///
/// # Errors
/// `CURSOR_UNUSABLE`, `TYPE_UNSUPPORTED`.
pub fn validate_types(table: &str, config: &SyncConfig, source: &SourceTable) -> Result<()> {
    let check = Check { table, config, source };
    check.cursor()?;
    check.key()
}

struct Check<'a> {
    table: &'a str,
    config: &'a SyncConfig,
    source: &'a SourceTable,
}

impl Check<'_> {
    fn sync_type(&self, changes: &Changes) -> Result<()> {
        let config = self.config;
        let Some(sync_type) = config.sync_type else {
            if config.should_sync() {
                let remedy = "SET (sync_type = 'full_refresh') or another type in the same statement";
                return Err(refuse(self.table, "should_sync", "cannot be true without a sync_type", remedy));
            }
            return self.cursor_fields_alone(changes, "no sync_type");
        };
        if !sync_type.is_available() {
            let what = format!("cannot be {:?}: this version does not have it yet", sync_type.as_str());
            return Err(refuse(self.table, "sync_type", &what, "choose full_refresh, incremental or append"));
        }
        if sync_type.has_cursor() { Ok(()) } else { self.cursor_fields_alone(changes, "sync_type full_refresh") }
    }

    /// Fields that the type would ignore in silence.
    fn cursor_fields_alone(&self, changes: &Changes, with: &str) -> Result<()> {
        let fields = ["incremental_field", "incremental_field_type", "incremental_field_lookback_seconds", "incremental_field_null_policy"];
        match fields.into_iter().find(|field| changes.sets(field)) {
            None => Ok(()),
            Some(field) => {
                let what = format!("has no meaning with {with}");
                Err(refuse(self.table, field, &what, "set sync_type to 'incremental' or 'append' in the same statement"))
            }
        }
    }

    /// Every column that is named exists.
    fn names(&self) -> Result<()> {
        let config = self.config;
        let cursor = config.incremental_field.iter().filter(|_| config.sync_type.is_some_and(SyncType::has_cursor));
        self.exist("incremental_field", cursor, true)?;
        self.exist("primary_key_columns", config.primary_key_columns.iter(), false)?;
        self.exist("enabled_columns", config.enabled_columns.iter().flatten(), false)?;
        self.exist("row_filters", config.row_filters.iter().map(|filter| &filter.column), false)
    }

    fn exist<'b>(&self, field: &str, mut columns: impl Iterator<Item = &'b String>, is_cursor: bool) -> Result<()> {
        let Some(missing) = columns.find(|column| self.source.column(column).is_none()) else { return Ok(()) };
        let all: Vec<String> = match is_cursor {
            true => candidates(self.source).into_iter().map(|candidate| candidate.column.name).collect(),
            false => self.source.columns.iter().map(|column| column.name.clone()).collect(),
        };
        let near = all.iter().map(String::as_str).min_by_key(|name| strsim::damerau_levenshtein(name, missing));
        let remedy = match (near, all.is_empty()) {
            (_, true) => "no column of the source can be a cursor: use sync_type 'full_refresh'".to_string(),
            (Some(near), _) => format!("the nearest is {near:?}; possible are {}", all.join(", ")),
            (None, _) => "the source has no columns".to_string(),
        };
        Err(Error::new(
            ErrorCode::FieldNotFound,
            format!(
                "synced table {:?}: field {field:?} names {missing:?}, which {:?} does not have. Remedy: {remedy}",
                self.table,
                self.source.display_name()
            ),
        ))
    }

    fn cursor(&self) -> Result<()> {
        let config = self.config;
        let Some(sync_type) = config.sync_type.filter(|sync_type| sync_type.has_cursor()) else { return Ok(()) };
        let Some(field) = &config.incremental_field else {
            let names: Vec<String> = candidates(self.source).into_iter().map(|candidate| candidate.column.name).collect();
            let what = format!("is needed by sync_type {:?}", sync_type.as_str());
            let remedy = match names.is_empty() {
                true => "no column of the source can be a cursor: use sync_type 'full_refresh'".to_string(),
                false => format!("SET (incremental_field = '…') to one of {}", names.join(", ")),
            };
            return Err(refuse(self.table, "incremental_field", &what, &remedy));
        };
        let Some(column) = self.source.column(field) else { return Ok(()) };
        self.cursor_column(column)?;
        let is_time = matches!(column.data_type, DataType::Timestamp(..) | DataType::Date32 | DataType::Date64);
        if config.incremental_field_lookback_seconds > 0 && !(sync_type == SyncType::Incremental && is_time) {
            let what = "needs sync_type 'incremental' and a cursor of times or days: appended rows would be added once more";
            return Err(refuse(self.table, "incremental_field_lookback_seconds", what, "RESET (incremental_field_lookback_seconds)"));
        }
        if sync_type == SyncType::Append && config.null_policy() == NullPolicy::Include {
            let what = "cannot be 'include' with sync_type 'append': each run would add the rows again";
            return Err(refuse(self.table, "incremental_field_null_policy", what, "use 'exclude', which counts them, or 'fail'"));
        }
        Ok(())
    }

    fn cursor_column(&self, column: &SourceColumn) -> Result<()> {
        let declared = self.config.incremental_field_type;
        let natural = cursor_type(&column.data_type);
        let is_text = matches!(column.data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
        let fits = match (declared, natural) {
            (Some(FieldType::Objectid), None) => is_text,
            (None, None) | (Some(_), None) => false,
            (None, Some(_)) => true,
            (Some(FieldType::Integer | FieldType::Numeric), Some(natural)) => matches!(natural, FieldType::Integer | FieldType::Numeric),
            (Some(FieldType::Datetime | FieldType::Timestamp | FieldType::Date), Some(natural)) => {
                matches!(natural, FieldType::Datetime | FieldType::Date)
            }
            (Some(FieldType::Objectid), Some(_)) => false,
        };
        if fits && column.unsupported.is_none() {
            return Ok(());
        }
        let what = match declared.filter(|_| natural.is_some()) {
            Some(declared) => format!("of type {} does not hold values of kind {:?}", column.source_type, declared.as_str()),
            None if column.unsupported.is_some() => format!("cannot be read: {}", column.unsupported.as_deref().unwrap_or_default()),
            None if is_text => format!("of type {} is a cursor only with incremental_field_type = 'objectid'", column.source_type),
            None => format!("of type {} has no order that runs could go on from", column.source_type),
        };
        let names: Vec<String> = candidates(self.source).into_iter().map(|candidate| candidate.column.name).collect();
        let others = if names.is_empty() { "sync_type 'full_refresh'".to_string() } else { format!("one of {}", names.join(", ")) };
        Err(Error::new(
            ErrorCode::CursorUnusable,
            format!(
                "synced table {:?}: field \"incremental_field\": column {:?} {what}. Remedy: use {others}, or cast the column in a view of the source",
                self.table, column.name
            ),
        ))
    }

    fn key(&self) -> Result<()> {
        let config = self.config;
        if config.sync_type == Some(SyncType::Incremental) && config.primary_key_columns.is_empty() {
            let keys: Vec<String> = std::iter::once(&self.source.primary_key)
                .filter(|key| !key.is_empty())
                .chain(&self.source.unique_keys)
                .map(|key| format!("({})", key.join(", ")))
                .collect();
            let remedy = match keys.is_empty() {
                true => "SET (primary_key_columns = ('…')) to columns that identify a row, or use sync_type 'append' or 'full_refresh'"
                    .to_string(),
                false => format!("SET (primary_key_columns = (…)); the source has the unique keys {}", keys.join(", ")),
            };
            return Err(Error::new(
                ErrorCode::KeyRequired,
                format!(
                    "synced table {:?}: field \"primary_key_columns\": sync_type 'incremental' merges rows by key, and {} Remedy: {remedy}",
                    self.table,
                    if self.source.primary_key.is_empty() { "the source declares none." } else { "none is set." }
                ),
            ));
        }
        let unusable = config.primary_key_columns.iter().filter_map(|name| {
            let column = self.source.column(name)?;
            let unreadable = column.unsupported.as_ref().map(|why| format!("it cannot be read: {why}"));
            let reserved = name.starts_with(RESERVED_PREFIX).then(|| format!("names that start with {RESERVED_PREFIX} are reserved"));
            unreadable.or(reserved).or_else(|| unsupported_type(&column.data_type, true)).map(|why| (name, why))
        });
        match unusable.into_iter().next() {
            None => Ok(()),
            Some((name, why)) => Err(Error::new(
                ErrorCode::TypeUnsupported,
                format!(
                    "synced table {:?}: field \"primary_key_columns\": column {name:?} cannot be part of a key: {why}. Remedy: name other columns, \
                     or cast it in a view of the source",
                    self.table
                ),
            )),
        }
    }

    fn columns(&self) -> Result<()> {
        let is_enabled = |name: &String| self.config.enabled_columns.as_ref().is_none_or(|enabled| enabled.contains(name));
        let reserved = self.source.columns.iter().find(|column| column.name.starts_with(RESERVED_PREFIX) && is_enabled(&column.name));
        if let Some(column) = reserved {
            return Err(Error::new(
                ErrorCode::TypeUnsupported,
                format!(
                    "synced table {:?}: column {:?} cannot be synced: names that start with {RESERVED_PREFIX} are reserved. Remedy: name the other \
                     columns in enabled_columns, or rename it in a view of the source",
                    self.table, column.name
                ),
            ));
        }
        let unreadable = self.source.columns.iter().find(|column| column.unsupported.is_some() && is_enabled(&column.name));
        match unreadable.and_then(|column| Some((column, column.unsupported.as_ref()?))) {
            None => Ok(()),
            Some((column, why)) => Err(Error::new(
                ErrorCode::TypeUnsupported,
                format!(
                    "synced table {:?}: column {:?} of type {} cannot be synced: {why}. Remedy: name the other columns in enabled_columns, or cast it in a view of the source",
                    self.table, column.name, column.source_type
                ),
            )),
        }
    }
}

/// The conditions with values of their columns' types.
///
/// # Errors
/// `CONFIG_INVALID` for an operator that does not exist, a value that is not of the column's type, or a missing value.
pub fn typed_filters(table: &str, filters: &[FilterSpec], source: &SourceTable) -> Result<Vec<RowFilter>> {
    filters.iter().map(|filter| typed_filter(table, filter, source)).collect()
}

fn typed_filter(table: &str, filter: &FilterSpec, source: &SourceTable) -> Result<RowFilter> {
    let refuse = |what: &str, remedy: &str| refuse(table, "row_filters", &format!("for column {:?} {what}", filter.column), remedy);
    let wanted = filter.operator.split_whitespace().collect::<Vec<_>>().join(" ").to_ascii_uppercase();
    let operator = FilterOperator::ALL.iter().find(|(_, text)| *text == wanted).map(|(operator, _)| *operator).ok_or_else(|| {
        let all = FilterOperator::ALL.map(|(_, text)| text).join(", ");
        refuse(&format!("has the operator {:?}", filter.operator), &format!("it is one of {all}"))
    })?;
    let column = source.column(&filter.column).ok_or_else(|| refuse("has no column in the source", "name a column that exists"))?;
    let is_list = matches!(operator, FilterOperator::In | FilterOperator::NotIn);
    let values: Vec<&Value> = match (&filter.value, is_list) {
        (Value::Array(values), true) if !values.is_empty() => values.iter().collect(),
        (Value::Array(_), _) => {
            return Err(refuse("has a list where one value belongs, or an empty one", "give one value, or IN with a list"));
        }
        (value, _) => vec![value],
    };
    let typed = |value: &Value| {
        let text = match value {
            Value::String(text) => ScalarValue::from(text.as_str()),
            Value::Bool(flag) => ScalarValue::from(*flag),
            Value::Number(number) => ScalarValue::from(number.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        };
        text.cast_to(&column.data_type).ok().filter(|value| !value.is_null() && is_exact(&text, value))
    };
    let values = values.into_iter().map(|value| {
        typed(value)
            .ok_or_else(|| refuse(&format!("has the value {value}, which is no exact {}", column.source_type), "give a value of that type"))
    });
    Ok(RowFilter { column: filter.column.clone(), operator, values: values.collect::<Result<_>>()? })
}
/// Whether `value` is what `text` says, not rounded or cut to its type: a condition that moved would let other rows pass.
fn is_exact(text: &ScalarValue, value: &ScalarValue) -> bool {
    let finest = match value.data_type() {
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..) => {
            DataType::Decimal256(76, 38)
        }
        DataType::Timestamp(unit, zone) if unit != TimeUnit::Nanosecond => DataType::Timestamp(TimeUnit::Nanosecond, zone),
        DataType::Date32 | DataType::Date64 => DataType::Timestamp(TimeUnit::Microsecond, None),
        _ => return true,
    };
    // What the finer type cannot hold is beyond it, not between two values.
    match (text.cast_to(&finest), value.cast_to(&finest)) {
        (Ok(said), Ok(kept)) => said == kept,
        _ => true,
    }
}
