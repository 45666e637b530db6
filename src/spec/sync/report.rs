//! What a run of a synced table reports beside the counts of every run.

use serde::{Deserialize, Serialize};

use super::config::{SyncType, words};

words! {
    /// What a run was for.
    SyncKind {
        /// The first rows of a table, or the first after its data was deleted.
        Load = "load",
        /// Goes on from the cursor's mark, or replaces what a full refresh finds changed.
        Continue = "continue",
        /// Reads everything once more and merges it, since the mark says nothing any more.
        Reseed = "reseed",
        /// Makes a new generation beside the old one and swaps it in.
        Rebuild = "rebuild",
        /// Compares keys and removes what the source deleted.
        Reconcile = "reconcile",
        /// Removes all rows, on request.
        Delete = "delete",
    }
}

words! {
    /// Who started a run.
    SyncTrigger {
        /// A statement or a call.
        Manual = "manual",
        /// The schedule.
        Schedule = "schedule",
    }
}

/// What a run of a synced table did, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncReport {
    /// Who started it.
    pub trigger: SyncTrigger,
    /// What it was for.
    pub kind: Option<SyncKind>,
    /// How it synced.
    pub sync_type: Option<SyncType>,
    /// The configuration that it had.
    pub config: Option<u64>,
    /// The generation that it made or went on with.
    pub generation: Option<u64>,
    /// The least cursor value that was asked for, look-back taken off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_from: Option<String>,
    /// The greatest cursor value of the source when the run looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<String>,
    /// Rows that came from the source.
    pub rows_read: Option<u64>,
    /// Rows whose cursor is null: read, or left out.
    pub null_cursor_rows: Option<u64>,
    /// The mark before, as text.
    pub mark_before: Option<String>,
    /// The mark after, as text.
    pub mark_after: Option<String>,
}

impl SyncReport {
    /// A run of which nothing else is known yet.
    pub fn new(trigger: SyncTrigger) -> Self {
        Self {
            trigger,
            kind: None,
            sync_type: None,
            config: None,
            generation: None,
            read_from: None,
            ceiling: None,
            rows_read: None,
            null_cursor_rows: None,
            mark_before: None,
            mark_after: None,
        }
    }
}
