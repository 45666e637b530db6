//! What the next run is to do. Pure: no I/O.

use crate::error::{Error, ErrorCode, Result};
use crate::spec::sync::{SyncConfig, SyncKind, SyncPhase, SyncState, SyncType, TypedValue};
use crate::sync::config::{Effect, Facts, plan_change};
use crate::table::TableHandle;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// To sync as the configuration says.
    Sync,
    /// To compare keys and remove what the source deleted.
    Reconcile,
    /// To remove all rows.
    Delete,
}

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    /// A new generation; the base's rows go in the same publish.
    Replace,
    /// Merged with the base by key; `removes`: rows that the source does not have go.
    Merge { removes: bool },
    /// Added to the base.
    Append,
}

/// What the next run does.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Decision {
    pub kind: SyncKind,
    pub sync_type: SyncType,
    pub write: Write,
    /// The mark that it goes on from; `None`: it reads everything.
    pub mark: Option<TypedValue>,
}

/// What a decision is made from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing<'a> {
    pub config: &'a SyncConfig,
    /// Where the newest version stands, and the configuration that it was made by.
    pub state: Option<(&'a SyncState, &'a SyncConfig)>,
    /// The key that the newest version's rows are unique by.
    pub base_key: &'a [String],
    /// How many rebuilds were asked for.
    pub rebuilds: u64,
}

/// Decides what a run does.
pub(super) fn decide(table: &TableHandle, ask: Ask, standing: Standing<'_>) -> Result<Decision> {
    let config = standing.config;
    let Some(sync_type) = config.sync_type else { return Err(no_type(table)) };
    let decision = |kind, write| Decision { kind, sync_type, write, mark: None };
    let loaded = standing.state.filter(|(state, _)| state.phase == SyncPhase::Loaded);
    if ask == Ask::Reconcile && (loaded.is_none() || standing.base_key.is_empty()) {
        return Err(Error::new(
            ErrorCode::SourceNotReady,
            format!(
                "synced table {:?}: no rows are stored that were merged by a key. Remedy: CALL sync.reload({}) first",
                table.name(),
                table.sql_literal()
            ),
        ));
    }
    let Some((state, made_by)) = loaded else { return Ok(decision(SyncKind::Load, Write::Replace)) };
    if ask == Ask::Reconcile {
        return Ok(decision(SyncKind::Reconcile, Write::Merge { removes: true }));
    }
    let plan = plan_change(made_by, config, &Facts { has_data: true, active_run: None });
    if standing.rebuilds > state.rebuilds || plan.effect >= Effect::Rebuild {
        return Ok(decision(SyncKind::Rebuild, Write::Replace));
    }
    let same_key = standing.base_key == config.merge_key();
    let mark = state.mark.as_ref().filter(|mark| Some(&mark.field) == config.incremental_field.as_ref()).map(|mark| mark.value.clone());
    Ok(match sync_type {
        SyncType::FullRefresh if same_key && !config.primary_key_columns.is_empty() => {
            decision(SyncKind::Continue, Write::Merge { removes: true })
        }
        SyncType::FullRefresh => decision(SyncKind::Continue, Write::Replace),
        // The same rows by another key: everything is read anyway, so the rows are written anew instead of merged.
        SyncType::Incremental if !same_key => decision(SyncKind::Reseed, Write::Replace),
        SyncType::Incremental if plan.effect == Effect::Reseed => decision(SyncKind::Reseed, Write::Merge { removes: plan.removes_rows }),
        SyncType::Incremental => Decision { mark, ..decision(SyncKind::Continue, Write::Merge { removes: false }) },
        SyncType::Append => Decision { mark, ..decision(SyncKind::Continue, Write::Append) },
        SyncType::Cdc | SyncType::Webhook => return Err(no_type(table)),
    })
}

fn no_type(table: &TableHandle) -> Error {
    Error::new(
        ErrorCode::ConfigInvalid,
        format!(
            "synced table {:?} has no sync_type yet. Remedy: ALTER SYNCED TABLE {} SET (sync_type = 'full_refresh')",
            table.name(),
            table.sql_name()
        ),
    )
}
