//! ALTER SYNCED TABLE: what a change costs, said before it is saved.

use std::sync::Arc;

use crate::error::{Error, ErrorCode, Result};
use crate::spec::Options;
use crate::spec::sync::{SyncConfig, SyncPhase};
use crate::store::{DefinitionEntry, SavedConfig, SyncEntry, SyncLog};
use crate::sync::SyncContext;
use crate::sync::config::{ChangePlan, Changes, Effect, Facts, apply, complete, plan_change, validate};
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
    /// What changes, and why it costs what it costs.
    pub message: String,
    /// Field by field.
    pub plan: ChangePlan,
}

struct Judged {
    log: SyncLog,
    new: SyncConfig,
    altered: Altered,
    needs_confirmation: bool,
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
    let Judged { log, new, mut altered, needs_confirmation } = judge(context, table, request).await?;
    if altered.effect == Effect::Refuse {
        return Err(Error::new(
            ErrorCode::RunActive,
            format!(
                "synced table {:?}: {}. Remedy: wait for the run, or CALL sync.cancel({}); the schedule can be changed meanwhile",
                table.name(),
                altered.message,
                table.sql_literal()
            ),
        ));
    }
    if needs_confirmation && !request.confirm {
        return Err(Error::new(
            ErrorCode::ConfirmRequired,
            format!(
                "synced table {:?}: {}. The next run would replace all {} rows; nothing was saved. Remedy: write CONFIRM at the end of the statement",
                table.name(),
                altered.message,
                altered.rows_at_stake
            ),
        ));
    }
    if log.newest().is_none_or(|saved| saved.config != new) {
        let at = context.host.env.clock.now_micros();
        let log = table.incarnation().append_sync(&log, SyncEntry::Save { config: Box::new(new), at }).await?;
        altered.revision = log.newest().map_or(altered.revision, |saved| saved.number);
    }
    save_options(table, request).await?;
    table.follow().await;
    Ok(altered)
}

async fn save_options(table: &TableHandle, request: &AlterRequest) -> Result<()> {
    let (set, reset) = &request.options;
    if set.is_empty() && reset.is_empty() {
        return Ok(());
    }
    let log = table.incarnation().definitions().await?;
    let options = log.options.merged(table.name(), set, reset)?;
    if options == log.options {
        return Ok(());
    }
    table.incarnation().append_definition(&log, DefinitionEntry::SetOptions { options }).await.map(drop)
}

async fn judge(context: &SyncContext, table: &TableHandle, request: &AlterRequest) -> Result<Judged> {
    let log = table.incarnation().sync_log().await?;
    let current = log.newest().cloned().ok_or_else(|| Error::internal("a synced table without a configuration"))?;
    check_revision(table, request, &current)?;
    let mut new = apply(table.name(), &current.config, &request.changes)?;
    if request.changes.sets("sync_type") && current.config.sync_type.is_none() && !request.changes.names("should_sync") {
        new.should_sync = true;
    }
    let active_run = active_run(table).await?.map(|run| run.to_string());
    // What only moves the schedule needs no source, which may be down.
    let schedule_only =
        plan_change(&current.config, &new, &Facts { has_data: true, active_run: Some("-".into()) }).effect != Effect::Refuse;
    if !schedule_only || request.changes.names("should_sync") && new.sync_type.is_none() {
        let connector = context.connector(&new.source).await?;
        let found = connector.discover(Some(&new.source.table)).await?.pop().ok_or_else(|| source_gone(table, &new))?;
        complete(&mut new, &found, &request.changes);
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
    // A change that undoes another one costs nothing; one that costs something costs what the stored rows say.
    let effect = match change.effect {
        Effect::Refuse | Effect::Keep => change.effect,
        Effect::Reseed | Effect::Rebuild => total.effect,
    };
    let resync_required = total.effect == Effect::Rebuild;
    let rows = manifest.as_ref().filter(|_| resync_required).map_or(0, |manifest| manifest.rows);
    let altered =
        Altered { revision: current.number, effect, resync_required, rows_at_stake: rows, message: change.message(), plan: change };
    let needs_confirmation = resync_required && pending.effect != Effect::Rebuild;
    Ok(Judged { new, altered, needs_confirmation, log })
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

fn source_gone(table: &TableHandle, config: &SyncConfig) -> Error {
    Error::new(
        ErrorCode::SourceNotFound,
        format!(
            "synced table {:?}: its source {:?} does not exist any more. Remedy: create it again",
            table.name(),
            config.source.display()
        ),
    )
}
