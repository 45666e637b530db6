//! Alter and activate: one new revision, or none where nothing differs.

use std::sync::Arc;

use datafusion::common::TableReference;

use crate::error::{Error, ErrorCode, Result};
use crate::plan::source::describe;
use crate::run::Host;
use crate::spec::{Definition, OptionKind, Options, Revision, SourceSpec};
use crate::store::{DefinitionEntry, DefinitionLog};
use crate::table::TableHandle;

use super::analyze::{HandlerChoice, Parts, definition};
use super::create::{check_schedule, follow_source, same_results};

/// What an ALTER changes; everything else is inherited.
#[derive(Debug, Clone, Default)]
pub struct Alteration {
    /// Fail unless the inherited revision has this number.
    pub if_revision: Option<u64>,
    /// Inherit from the newest saved revision and do not activate.
    pub draft: bool,
    /// New key columns.
    pub key: Option<Vec<String>>,
    /// New tracked columns.
    pub track: Option<Vec<String>>,
    /// Options to set.
    pub set: Options,
    /// Options to take back to their defaults.
    pub reset: Vec<String>,
    /// Take over the source's present column types.
    pub accept_schema: bool,
    /// A new transformation.
    pub handler: Option<HandlerChoice>,
}

impl Alteration {
    fn touches_definition(&self) -> bool {
        let semantic =
            |name: &String| crate::spec::OPTIONS.iter().any(|o| o.kind == OptionKind::Semantic && o.name.eq_ignore_ascii_case(name));
        self.key.is_some()
            || self.track.is_some()
            || self.handler.is_some()
            || self.accept_schema
            || !self.set.of_kind(OptionKind::Semantic).is_empty()
            || self.reset.iter().any(semantic)
    }
}

/// Saves what differs: the new revision's number, or `None` where no revision was needed.
///
/// # Errors
/// `REVISION_CONFLICT` when the inherited revision is another than asked for, or somebody saved meanwhile; every
/// refusal of the handler; `OPTION_UNKNOWN`.
pub async fn alter(host: &Host, table: &Arc<TableHandle>, alteration: &Alteration) -> Result<Option<u64>> {
    table.check_incremental("ALTER SYNCED TABLE changes it")?;
    let name = table.name();
    let log = table.incarnation().definitions().await?;
    let inherited = if alteration.draft { log.newest() } else { log.active().or_else(|| log.newest()) };
    let inherited = inherited.ok_or_else(|| Error::internal(format!("table {name:?} has no revision")))?.clone();
    check_revision(name, alteration.if_revision, inherited.number)?;

    let operational = log.options.merged(name, &alteration.set.of_kind(OptionKind::Operational), &alteration.reset)?;
    if alteration.set.get("schedule").is_some() {
        check_schedule(host, name, &inherited.definition.source, &operational).await?;
    }
    let options = (operational != log.options).then_some(operational);
    let wanted = if alteration.touches_definition() { Some(changed(host, name, &inherited, alteration).await?) } else { None };
    let (saved, log) = match wanted {
        Some(new) if same_results(&inherited.definition, &new) => {
            (None, follow_source(table.incarnation(), &log, Some(&inherited.definition.source), new.source).await?)
        }
        other => (other, log),
    };
    let entry = match (saved, options) {
        (None, None) => return Ok(None),
        (None, Some(options)) => DefinitionEntry::SetOptions { options },
        (Some(definition), options) => {
            let number = log.newest().map_or(1, |newest| newest.number + 1);
            let revision = Revision { number, digest: definition.digest(), saved_at: host.env.clock.now_micros(), definition };
            DefinitionEntry::Save { revision: Box::new(revision), activate: !alteration.draft, options }
        }
    };
    let number = match &entry {
        DefinitionEntry::Save { revision, .. } => Some(revision.number),
        _ => None,
    };
    append(table, &log, entry).await?;
    Ok(number)
}

async fn changed(host: &Host, name: &str, inherited: &Revision, alteration: &Alteration) -> Result<Definition> {
    let mut parts = Parts::of(&inherited.definition, name)?;
    parts.source = present_source(host, &parts.source).await?;
    if let Some(key) = &alteration.key {
        parts.key.clone_from(key);
    }
    if let Some(handler) = &alteration.handler {
        parts.handler = handler.clone();
    }
    if let Some(track) = &alteration.track {
        parts.track = Some(track.clone());
    }
    let semantic: Vec<String> = alteration.reset.clone();
    parts.options = parts.options.merged(name, &alteration.set.of_kind(OptionKind::Semantic), &semantic)?;
    definition(host, name, &parts).await
}

/// The source as this session has it, so that the columns that a new revision takes over are those that another process
/// brings back; as it is stored where the session does not have it.
async fn present_source(host: &Host, stored: &SourceSpec) -> Result<SourceSpec> {
    let [catalog, schema, table] = stored.name.clone();
    match describe(&host.state, &TableReference::full(catalog, schema, table)).await {
        Ok(now) => Ok(now),
        Err(error) if error.code() == ErrorCode::SourceNotFound => Ok(stored.clone()),
        Err(error) => Err(error),
    }
}

/// Makes a saved revision the active one: the number that is active now, and whether anything changed.
/// A revision that was active before is saved again under a new number, so that its rows are built anew.
///
/// # Errors
/// `REVISION_CONFLICT`; `DEFINITION_INVALID` when the revision does not exist.
pub async fn activate(host: &Host, table: &Arc<TableHandle>, if_revision: Option<u64>, revision: Option<u64>) -> Result<u64> {
    table.check_incremental("ALTER SYNCED TABLE changes it")?;
    let name = table.name();
    let log = table.incarnation().definitions().await?;
    let newest = log.newest().map_or(0, |newest| newest.number);
    check_revision(name, if_revision, newest)?;
    let number = revision.unwrap_or(newest);
    let Some(wanted) = log.revision(number) else {
        return Err(Error::new(
            ErrorCode::DefinitionInvalid,
            format!(
                "table {name:?} has no revision {number}; the newest is {newest}. Remedy: SELECT revision FROM incremental_revisions({})",
                table.sql_literal()
            ),
        ));
    };
    if log.active == Some(number) {
        return Ok(number);
    }
    if !log.activations.contains(&number) {
        append(table, &log, DefinitionEntry::Activate { number }).await?;
        return Ok(number);
    }
    let again = Revision { number: newest + 1, saved_at: host.env.clock.now_micros(), ..wanted.clone() };
    append(table, &log, DefinitionEntry::Save { revision: Box::new(again), activate: true, options: None }).await?;
    Ok(newest + 1)
}

async fn append(table: &Arc<TableHandle>, log: &DefinitionLog, entry: DefinitionEntry) -> Result<()> {
    table.incarnation().append_definition(log, entry).await?;
    table.follow().await;
    Ok(())
}

fn check_revision(table: &str, wanted: Option<u64>, found: u64) -> Result<()> {
    match wanted {
        Some(wanted) if wanted != found => Err(Error::new(
            ErrorCode::RevisionConflict,
            format!(
                "table {table:?}: the statement expects revision {wanted}, but it is {found}. Remedy: look at revision {found}, then try again"
            ),
        )),
        _ => Ok(()),
    }
}
