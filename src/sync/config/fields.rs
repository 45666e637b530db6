//! The fields of a configuration by name, and how their texts are read.

use crate::error::{Error, ErrorCode, Result};
use crate::spec::sync::{FieldType, FilterSpec, Frequency, NullPolicy, SyncConfig, SyncType, TimeOfDay};

/// A field of the configuration.
#[derive(Debug, Clone, Copy)]
pub struct FieldSpec {
    /// Its name.
    pub name: &'static str,
    /// Its value when it is not set.
    pub default: &'static str,
    /// What it does, one line.
    pub doc: &'static str,
}

const fn field(name: &'static str, default: &'static str, doc: &'static str) -> FieldSpec {
    FieldSpec { name, default, doc }
}

/// Every field that can be set.
pub const FIELDS: &[FieldSpec] = &[
    field("should_sync", "true with a sync_type", "whether the schedule runs the table"),
    field("sync_type", "NULL", "full_refresh, incremental or append; NULL: not chosen yet"),
    field("incremental_field", "NULL", "the cursor column of incremental and append"),
    field("incremental_field_type", "the column's", "integer, numeric, datetime, date, timestamp or objectid"),
    field("incremental_field_lookback_seconds", "0", "how far before its mark an incremental run begins to read, up to 5184000"),
    field(
        "incremental_field_null_policy",
        "include; append: fail",
        "rows with a null cursor: fail, include in each run, or exclude and count",
    ),
    field("primary_key_columns", "the source's key", "the columns that rows are merged by"),
    field("enabled_columns", "NULL", "the columns that are synced; NULL: all. Key and cursor columns always are"),
    field("row_filters", "NULL", r#"conditions that all must hold: [{"column": "amount", "operator": ">", "value": 10}, …]"#),
    field("sync_frequency", "6hour", "never, 5min, 15min, 30min, 1hour, 6hour, 12hour, 24hour, 7day or 30day"),
    field("sync_time_of_day", "NULL", "where in the day the schedule is anchored: HH:MM or HH:MM:SS, UTC"),
    field("reconcile_frequency", "never", "how often keys are compared to remove rows that the source deleted"),
    field("description", "NULL", "free text"),
];

/// A field's value as a statement has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldValue {
    /// `NULL`.
    Null,
    /// A text, a number, or a word.
    Text(String),
    /// A list of texts.
    List(Vec<String>),
}

/// What a statement changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Fields and their new values, by lower-case name.
    pub set: Vec<(String, FieldValue)>,
    /// Fields that go back to their defaults.
    pub reset: Vec<String>,
}

impl Changes {
    /// Whether a field is named.
    pub fn names(&self, field: &str) -> bool {
        self.sets(field) || self.reset.iter().any(|name| name == field)
    }

    /// Whether a field gets a value.
    pub fn sets(&self, field: &str) -> bool {
        self.set.iter().any(|(name, value)| name == field && *value != FieldValue::Null)
    }
}

/// `config` with `changes` made. Only the named fields differ.
///
/// # Errors
/// `CONFIG_INVALID` for a field that does not exist (naming the nearest) or is named twice, and for a value that it cannot
/// have.
pub fn apply(table: &str, config: &SyncConfig, changes: &Changes) -> Result<SyncConfig> {
    let mut new = config.clone();
    let mut seen: Vec<&str> = vec![];
    let named = changes.set.iter().map(|(name, _)| name).chain(&changes.reset);
    for name in named {
        if !FIELDS.iter().any(|field| field.name == name) {
            return Err(unknown(table, name));
        }
        if seen.contains(&name.as_str()) {
            return Err(refuse(table, name, "is named twice", "name each field once"));
        }
        seen.push(name);
    }
    for (name, value) in &changes.set {
        set(table, &mut new, name, value)?;
    }
    let defaults = SyncConfig::new(config.source.clone());
    for name in &changes.reset {
        reset(&mut new, &defaults, name);
    }
    Ok(new)
}

fn unknown(table: &str, name: &str) -> Error {
    let refused = |what: &str, remedy: &str| refuse(table, name, what, remedy);
    if name == "cdc_table_mode" {
        return refused("belongs to sync_type cdc, which this version does not have yet", "leave it out");
    }
    if name == "xmin" || name == "api_version" {
        return refused("is not part of this crate", "leave it out");
    }
    let near = FIELDS.iter().map(|field| field.name).min_by_key(|known| strsim::damerau_levenshtein(known, name)).unwrap_or_default();
    let all = FIELDS.iter().map(|field| field.name).collect::<Vec<_>>().join(", ");
    refused("does not exist", &format!("the nearest is {near:?}; all are {all}"))
}

pub(super) fn refuse(table: &str, field: &str, what: &str, remedy: &str) -> Error {
    Error::new(ErrorCode::ConfigInvalid, format!("synced table {table:?}: field {field:?} {what}. Remedy: {remedy}"))
}

fn reset(config: &mut SyncConfig, defaults: &SyncConfig, name: &str) {
    let (to, from) = (config, defaults);
    match name {
        "should_sync" => to.should_sync = from.should_sync,
        "sync_type" => to.sync_type = from.sync_type,
        "incremental_field" => to.incremental_field.clone_from(&from.incremental_field),
        "incremental_field_type" => to.incremental_field_type = from.incremental_field_type,
        "incremental_field_lookback_seconds" => to.incremental_field_lookback_seconds = from.incremental_field_lookback_seconds,
        "incremental_field_null_policy" => to.incremental_field_null_policy = from.incremental_field_null_policy,
        "primary_key_columns" => to.primary_key_columns.clone_from(&from.primary_key_columns),
        "enabled_columns" => to.enabled_columns.clone_from(&from.enabled_columns),
        "row_filters" => to.row_filters.clone_from(&from.row_filters),
        "sync_frequency" => to.sync_frequency = from.sync_frequency,
        "sync_time_of_day" => to.sync_time_of_day = from.sync_time_of_day,
        "reconcile_frequency" => to.reconcile_frequency = from.reconcile_frequency,
        _ => to.description.clone_from(&from.description),
    }
}

fn set(table: &str, config: &mut SyncConfig, name: &str, value: &FieldValue) -> Result<()> {
    let read = Reader { table, name, value };
    match name {
        "should_sync" => config.should_sync = read.boolean()?,
        "sync_type" => {
            let available = SyncType::ALL.iter().filter(|sync_type| sync_type.is_available());
            config.sync_type = read.word(SyncType::parse, available.map(|value| value.as_str()))?;
        }
        "incremental_field" => config.incremental_field = read.text()?,
        "incremental_field_type" => {
            config.incremental_field_type = read.word(FieldType::parse, FieldType::ALL.iter().map(|value| value.as_str()))?;
        }
        "incremental_field_lookback_seconds" => config.incremental_field_lookback_seconds = read.lookback()?,
        "incremental_field_null_policy" => {
            config.incremental_field_null_policy = read.word(NullPolicy::parse, NullPolicy::ALL.iter().map(|value| value.as_str()))?;
        }
        "primary_key_columns" => config.primary_key_columns = read.list()?.unwrap_or_default(),
        "enabled_columns" => config.enabled_columns = read.list()?,
        "row_filters" => config.row_filters = read.filters()?,
        "sync_frequency" => config.sync_frequency = read.frequency()?,
        "sync_time_of_day" => {
            let parsed =
                read.text()?.map(|text| TimeOfDay::parse(&text).ok_or_else(|| read.no_value("a time of day: '03:00' or '03:00:00'")));
            config.sync_time_of_day = parsed.transpose()?;
        }
        "reconcile_frequency" => config.reconcile_frequency = read.frequency()?,
        _ => config.description = read.text()?,
    }
    Ok(())
}

/// Reads one value.
struct Reader<'a> {
    table: &'a str,
    name: &'a str,
    value: &'a FieldValue,
}

impl Reader<'_> {
    fn no_value(&self, wanted: &str) -> Error {
        let shown = match self.value {
            FieldValue::Null => "NULL".to_string(),
            FieldValue::Text(text) => format!("{text:?}"),
            FieldValue::List(list) => format!("{list:?}"),
        };
        refuse(self.table, self.name, &format!("cannot be {shown}"), &format!("it is {wanted}"))
    }

    fn text(&self) -> Result<Option<String>> {
        match self.value {
            FieldValue::Null => Ok(None),
            FieldValue::Text(text) => Ok(Some(text.clone())),
            FieldValue::List(_) => Err(self.no_value("one text")),
        }
    }

    fn boolean(&self) -> Result<Option<bool>> {
        let Some(text) = self.text()? else { return Ok(None) };
        match text.to_ascii_lowercase().as_str() {
            "true" | "on" => Ok(Some(true)),
            "false" | "off" => Ok(Some(false)),
            _ => Err(self.no_value("true or false")),
        }
    }

    fn word<T>(&self, parse: fn(&str) -> Option<T>, all: impl Iterator<Item = &'static str>) -> Result<Option<T>> {
        let Some(text) = self.text()? else { return Ok(None) };
        parse(&text).map(Some).ok_or_else(|| self.no_value(&all.collect::<Vec<_>>().join(", ")))
    }

    fn frequency(&self) -> Result<Frequency> {
        let words = || Frequency::ALL.map(|(_, word)| word).join(", ");
        self.text()?.as_deref().and_then(Frequency::parse).ok_or_else(|| self.no_value(&words()))
    }

    fn lookback(&self) -> Result<u32> {
        const MOST: u32 = 5_184_000;
        let text = self.text()?.unwrap_or_else(|| "0".into());
        text.trim().parse().ok().filter(|seconds| *seconds <= MOST).ok_or_else(|| self.no_value("a whole number from 0 to 5184000"))
    }

    fn list(&self) -> Result<Option<Vec<String>>> {
        let list = match self.value {
            FieldValue::Null => return Ok(None),
            FieldValue::List(list) => list.clone(),
            FieldValue::Text(text) => vec![text.clone()],
        };
        if let Some((at, name)) = list.iter().enumerate().find(|(at, name)| list.iter().take(*at).any(|earlier| earlier == *name)) {
            return Err(self.no_value(&format!("a list of different columns; {name:?} is its entry {} again", at + 1)));
        }
        if list.is_empty() && self.name == "enabled_columns" {
            return Err(self.no_value("at least one column, or NULL for all"));
        }
        Ok(Some(list))
    }

    fn filters(&self) -> Result<Vec<FilterSpec>> {
        let Some(text) = self.text()? else { return Ok(vec![]) };
        serde_json::from_str(&text)
            .map_err(|e| self.no_value(&format!(r#"a JSON text such as '[{{"column": "amount", "operator": ">", "value": 10}}]' ({e})"#)))
    }
}
