//! ALTER SYNCED TABLE: what a change costs, said before it is saved.

use std::sync::Arc;

use super::connection::source_table;
use crate::error::{Error, ErrorCode, Result};
use crate::spec::sync::{KnownColumn, SyncConfig, SyncPhase};
use crate::spec::{OPTIONS, OptionSpec, Options};
use crate::store::{DefinitionEntry, SavedConfig, SyncEntry, SyncLog};
use crate::sync::SyncContext;
use crate::sync::config::{
    ChangePlan, Changes, Effect, Facts, FieldEffect, apply, complete, plan_change, refused_by, strongest, validate, validate_schedule,
};
use crate::sync::status::active_run;
use crate::table::TableHandle;

/// A change of a synced table.
#[derive(Debug, Clone, Default)]
pub struct AlterRequest {
    /// The configuration that it must find.
    pub if_revision: Option<u64>,
    /// Whether a rebuild is confirmed.
    pub confirm: bool,
    /// The fields.
    pub changes: Changes,
    /// Options of the storage that are set, and those that go back to their defaults.
    pub options: (Options, Vec<String>),
}

/// What a change came to, or would come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Altered {
    /// The newest configuration's number.
    pub revision: u64,
    /// What becomes of the stored rows.
    pub effect: Effect,
    /// Whether the next run makes a new generation.
    pub resync_required: bool,
    /// Rows of the generation that is replaced.
    pub rows_at_stake: u64,
    /// Whether it is saved only when it is confirmed: it makes the next run replace rows that no earlier change gave up.
    pub needs_confirmation: bool,
    /// Field by field: what it costs the stored rows, and why.
    pub fields: Vec<FieldEffect>,
}

impl Altered {
    /// What changes, and why it costs what it costs.
    pub fn message(&self) -> String {
        ChangePlan::message(&self.fields)
    }
}

struct Judged {
    log: SyncLog,
    new: SyncConfig,
    columns: Vec<KnownColumn>,
    altered: Altered,
}

/// What `request` would do. Nothing is saved.
///
/// # Errors
/// The refusals of a configuration, `REVISION_CONFLICT`; that a run is active is part of the answer.
pub async fn explain_alter(context: &SyncContext, table: &TableHandle, request: &AlterRequest) -> Result<Altered> {
    Ok(judge(context, table, request).await?.altered)
}

/// Saves a change.
///
/// # Errors
/// The refusals of a configuration; `REVISION_CONFLICT`; `RUN_ACTIVE` for all but the schedule while a run is active;
/// `CONFIRM_REQUIRED` for a change that rebuilds. Nothing is saved then.
pub async fn alter(context: &SyncContext, table: &Arc<TableHandle>, request: &AlterRequest) -> Result<Altered> {
    let Judged { log, new, columns, mut altered } = judge(context, table, request).await?;
    if altered.effect == Effect::Refuse {
        return Err(Error::new(
            ErrorCode::RunActive,
            format!(
                "synced table {:?}: {}. Remedy: wait for the run, or CALL sync.cancel({}); the schedule can be changed meanwhile",
                table.name(),
                altered.message(),
                table.sql_literal()
            ),
        ));
    }
    if altered.needs_confirmation && !request.confirm {
        return Err(Error::new(
            ErrorCode::ConfirmRequired,
            format!(
                "synced table {:?}: {}. The next run would replace all {} rows; nothing was saved. Remedy: write CONFIRM at the end of the statement",
                table.name(),
                altered.message(),
                altered.rows_at_stake
            ),
        ));
    }
    if log.newest().is_none_or(|saved| saved.config != new) {
        let at = context.host.env.clock.now_micros();
        let entry = SyncEntry::Save { config: Box::new(new), columns, at };
        let expected = log.newest().map(|saved| saved.number);
        let log = append(table, log, entry, |now| now.newest().map(|saved| saved.number) == expected).await?;
        altered.revision = log.newest().map_or(altered.revision, |saved| saved.number);
    }
    save_options(table, request).await?;
    table.follow().await;
    Ok(altered)
}

/// Appends `entry` after `log`; again where something came between after which it `still_holds`: asking for a rebuild is no
/// change of the configuration.
pub(super) async fn append(table: &TableHandle, log: SyncLog, entry: SyncEntry, still_holds: impl Fn(&SyncLog) -> bool) -> Result<SyncLog> {
    let mut log = log;
    loop {
        match table.incarnation().append_sync(&log, entry.clone()).await {
            Err(error) if error.code() == ErrorCode::RevisionConflict => {
                log = table.incarnation().sync_log().await?;
                if !still_holds(&log) {
                    return Err(error);
                }
            }
            other => return other,
        }
    }
}

async fn save_options(table: &TableHandle, request: &AlterRequest) -> Result<()> {
    let (set, reset) = &request.options;
    if set.is_empty() && reset.is_empty() {
        return Ok(());
    }
    loop {
        let log = table.incarnation().definitions().await?;
        let options = log.options.merged(table.name(), set, reset)?;
        if options == log.options {
            return Ok(());
        }
        match table.incarnation().append_definition(&log, DefinitionEntry::SetOptions { options }).await {
            // The configuration is saved already: options are named one by one, so they go on top of whatever came between.
            Err(error) if error.code() == ErrorCode::RevisionConflict => {}
            other => return other.map(drop),
        }
    }
}

async fn judge(context: &SyncContext, table: &TableHandle, request: &AlterRequest) -> Result<Judged> {
    let log = table.incarnation().sync_log().await?;
    let current = log.newest().cloned().ok_or_else(|| Error::internal("a synced table without a configuration"))?;
    check_revision(table, request, &current)?;
    let mut new = apply(table.name(), &current.config, &request.changes)?;
    let active_run = active_run(table).await?.map(|run| run.to_string());
    // What only moves the schedule needs no source, which may be down.
    let schedule_only =
        plan_change(&current.config, &new, &Facts { has_data: true, active_run: Some("-".into()) }).effect != Effect::Refuse;
    validate_schedule(table.name(), &new)?;
    let mut columns = current.columns.clone();
    if !schedule_only || request.changes.names("should_sync") && new.sync_type.is_none() {
        let found = source_table(context, table, &new).await?;
        columns = found.known_columns();
        complete(&mut new, Some(&current.config), &found, &request.changes);
        validate(table.name(), &new, &found, &request.changes)?;
    }
    let manifest = table.newest_manifest().await?;
    let state = manifest.as_ref().and_then(|manifest| manifest.sync.as_ref()).filter(|state| state.phase == SyncPhase::Loaded);
    let made_by = state.and_then(|state| log.config(state.config)).map(|saved| &saved.config);
    let facts = Facts { has_data: made_by.is_some(), active_run };
    let change = plan_change(&current.config, &new, &facts);
    let made_by = made_by.unwrap_or(&current.config);
    let idle = Facts { active_run: None, ..facts.clone() };
    let (total, pending) = (plan_change(made_by, &new, &idle), plan_change(made_by, &current.config, &idle));
    // What a change costs is what it costs the rows that are stored.
    let mut fields = if change.effect == Effect::Refuse { change.fields } else { total.seen_from(&change, &pending) };
    fields.extend(option_effects(table, request, facts.active_run.as_deref()).await?);
    let (effect, resync_required) = (strongest(&fields), total.effect == Effect::Rebuild);
    let rows_at_stake = manifest.as_ref().filter(|_| resync_required).map_or(0, |manifest| manifest.rows);
    let needs_confirmation = resync_required && pending.effect != Effect::Rebuild;
    let altered = Altered { revision: current.number, effect, resync_required, rows_at_stake, needs_confirmation, fields };
    Ok(Judged { new, columns, altered, log })
}

/// What options of the storage change: never rows.
async fn option_effects(table: &TableHandle, request: &AlterRequest, active_run: Option<&str>) -> Result<Vec<FieldEffect>> {
    let (set, reset) = &request.options;
    if set.is_empty() && reset.is_empty() {
        return Ok(vec![]);
    }
    let before = table.incarnation().definitions().await?.options;
    let after = before.merged(table.name(), set, reset)?;
    let is_changed = |option: &&OptionSpec| before.get(option.name) != after.get(option.name);
    let effect = |option: &OptionSpec| match active_run {
        Some(run) => FieldEffect { field: option.name, effect: Effect::Refuse, reason: refused_by(run) },
        None => FieldEffect { field: option.name, effect: Effect::Keep, reason: "it counts from the next run on".into() },
    };
    Ok(OPTIONS.iter().filter(is_changed).map(effect).collect())
}

fn check_revision(table: &TableHandle, request: &AlterRequest, current: &SavedConfig) -> Result<()> {
    match request.if_revision {
        Some(wanted) if wanted != current.number => Err(Error::new(
            ErrorCode::RevisionConflict,
            format!(
                "synced table {:?}: its configuration has revision {}, not {wanted}. Remedy: look at sync_schema({}), then repeat the statement",
                table.name(),
                current.number,
                table.sql_literal()
            ),
        )),
        _ => Ok(()),
    }
}
