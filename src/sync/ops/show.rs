//! SHOW CREATE TABLE: the statement that makes an equal table.

use datafusion::common::TableReference;

use crate::error::{Error, Result};
use crate::spec::sync::{Frequency, SyncConfig, SyncType};
use crate::table::TableHandle;

/// `CREATE SYNCED TABLE …` with every field that is not at its default.
///
/// # Errors
/// The store's errors.
pub async fn show_create(table: &TableHandle) -> Result<String> {
    let log = table.incarnation().sync_log().await?;
    let config = &log.newest().ok_or_else(|| Error::internal("a synced table without a configuration"))?.config;
    let parts = config.source.connection.iter().chain(&config.source.table);
    let source = parts.map(|part| TableReference::bare(part.as_str()).to_quoted_string()).collect::<Vec<_>>().join(".");
    let mut text = format!("CREATE SYNCED TABLE {} FROM {source}", table.sql_name());
    text.push_str(&format!("\nLOCATION {}", literal(&table.store().location().display())));
    let mut fields = fields(config);
    let options = table.incarnation().definitions().await?.options;
    fields.extend(options.iter().map(|(name, value)| (name.to_string(), literal(value))));
    if !fields.is_empty() {
        let list: Vec<String> = fields.into_iter().map(|(name, value)| format!("{name} = {value}")).collect();
        text.push_str(&format!("\nWITH ({})", list.join(", ")));
    }
    Ok(text)
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn list(names: &[String]) -> String {
    format!("({})", names.iter().map(|name| literal(name)).collect::<Vec<_>>().join(", "))
}

fn fields(config: &SyncConfig) -> Vec<(String, String)> {
    let mut fields: Vec<(&str, String)> = vec![];
    fields.extend(config.sync_type.map(|value| ("sync_type", literal(value.as_str()))));
    // What an earlier type used is kept, and refused beside a type that has no use for it.
    if config.sync_type.is_some_and(SyncType::has_cursor) {
        fields.extend(config.incremental_field.as_ref().map(|value| ("incremental_field", literal(value))));
        fields.extend(config.incremental_field_type.map(|value| ("incremental_field_type", literal(value.as_str()))));
        if config.incremental_field_lookback_seconds > 0 {
            fields.push(("incremental_field_lookback_seconds", config.incremental_field_lookback_seconds.to_string()));
        }
        fields.extend(config.incremental_field_null_policy.map(|value| ("incremental_field_null_policy", literal(value.as_str()))));
    }
    // No key is not the same as the source's key.
    fields.push(("primary_key_columns", list(&config.primary_key_columns)));
    fields.extend(config.enabled_columns.as_ref().map(|value| ("enabled_columns", list(value))));
    if !config.row_filters.is_empty() {
        fields.push(("row_filters", literal(&serde_json::to_string(&config.row_filters).unwrap_or_default())));
    }
    fields.extend(config.should_sync.map(|value| ("should_sync", value.to_string())));
    if config.sync_frequency != Frequency::DEFAULT {
        fields.push(("sync_frequency", literal(config.sync_frequency.as_str())));
    }
    fields.extend(config.sync_time_of_day.map(|value| ("sync_time_of_day", literal(&value.to_string()))));
    if config.reconcile_frequency != Frequency::NEVER {
        fields.push(("reconcile_frequency", literal(config.reconcile_frequency.as_str())));
    }
    fields.extend(config.description.as_ref().map(|value| ("description", literal(value))));
    fields.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}
