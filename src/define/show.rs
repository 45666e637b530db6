//! `SHOW CREATE TABLE`: the statement that defines the table as it is now. It holds no secrets: the source is a name.

use datafusion::common::TableReference;

use crate::error::{Error, Result};
use crate::spec::{FingerprintKind, HandlerSpec};
use crate::table::TableHandle;

/// The CREATE statement of the active (else the newest) revision, with the location and every option that is set.
///
/// # Errors
/// The store's errors.
pub async fn show_create(table: &TableHandle) -> Result<String> {
    let incarnation = table.incarnation();
    let log = incarnation.definitions().await?;
    let revision = log.active().or_else(|| log.newest()).ok_or_else(|| Error::internal("a table without revisions"))?;
    let definition = &revision.definition;
    let quoted = |names: &[String]| names.iter().map(|name| quote(name)).collect::<Vec<_>>().join(", ");
    let [catalog, schema, source] = &definition.source.name;
    let source = TableReference::full(catalog.as_str(), schema.as_str(), source.as_str()).to_quoted_string();
    let mut text = format!("CREATE INCREMENTAL TABLE {}\nFROM {source}\nKEY ({})", incarnation.name(), quoted(&definition.key));
    if definition.tracked_declared {
        text.push_str(&format!("\nTRACK ({})", quoted(&definition.tracked)));
    }
    text.push_str(&format!("\nLOCATION {}", literal(&incarnation.store().location().display())));
    let mut options: Vec<(String, String)> = log.options.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    if !definition.incremental {
        options.push(("incremental".into(), "false".into()));
    }
    if definition.options.allow_volatile {
        options.push(("allow_volatile".into(), "true".into()));
    }
    if definition.options.fingerprint == FingerprintKind::Blake3 {
        options.push(("fingerprint".into(), "blake3".into()));
    }
    if !options.is_empty() {
        let list: Vec<String> = options.iter().map(|(name, value)| format!("{name} = {}", literal(value))).collect();
        text.push_str(&format!("\nWITH ({})", list.join(", ")));
    }
    match &definition.handler {
        HandlerSpec::Sql { text: query } => text.push_str(&format!("\nAS {query}")),
        HandlerSpec::Registered { name, .. } => text.push_str(&format!("\nHANDLER {}", literal(name))),
        HandlerSpec::Synced => return Err(Error::internal("a synced table is shown by its configuration")),
    }
    Ok(text)
}

/// A name that SQL reads back exactly.
fn quote(name: &str) -> String {
    let plain = name.chars().next().is_some_and(|c| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if plain { name.to_string() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
