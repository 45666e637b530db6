//! What a table's schedule started and skipped last.
//!
//! ```text
//! schedule/1  { sync: 09:00 }
//! schedule/2  { sync: 10:00, skipped: [10:00, run x was at work] }     the newest entry says all of it
//! ```
//!
//! Written before a run starts: one that fails, or that leaves no trace, waits for its next turn, and of two schedulers one
//! starts it. A note that cannot be read counts as none, since all that it can cost is a run more. Memory: one entry.

use serde::{Deserialize, Serialize};

use super::incarnation::Incarnation;
use crate::error::{ErrorCode, Result};

/// Skipped runs that are remembered.
const SKIPS: usize = 100;

/// A run that was due and did not start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedRun {
    /// When it was due, microseconds since 1970.
    pub due_at: i64,
    /// When that was noted.
    pub at: i64,
    /// The run that was at work.
    pub active_run: String,
}

/// The newest firings that are answered, microseconds since 1970, and what was skipped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleNote {
    /// Of syncing.
    pub sync: Option<i64>,
    /// Of comparing keys.
    pub reconcile: Option<i64>,
    /// Of refreshing at an interval.
    pub refresh: Option<i64>,
    /// Of following a source: when the version that was followed was committed.
    pub follow: Option<i64>,
    /// The newest skipped runs, oldest first.
    pub skipped: Vec<SkippedRun>,
    /// How many were skipped in all.
    pub skips: u64,
}

impl ScheduleNote {
    /// The same with one more skipped run.
    pub fn with_skipped(mut self, skipped: SkippedRun) -> Self {
        if self.skipped.len() >= SKIPS {
            self.skipped.remove(0);
        }
        self.skipped.push(skipped);
        self.skips += 1;
        self
    }
}

impl Incarnation {
    /// The newest note with its number; 0 and nothing before the first one.
    ///
    /// # Errors
    /// `STORE_FAILED`.
    pub async fn schedule_note(&self) -> Result<(u64, ScheduleNote)> {
        let number = self.core.schedule.newest().await?;
        if number == 0 {
            return Ok((0, ScheduleNote::default()));
        }
        match self.core.schedule.entry::<ScheduleNote>(number).await {
            Ok((note, _)) => Ok((number, note)),
            Err(error) if matches!(error.code(), ErrorCode::Corrupt | ErrorCode::HistoryMissing) => {
                log::warn!("table {:?}: what its schedule did last cannot be read: {error}", self.name());
                Ok((number, ScheduleNote::default()))
            }
            Err(error) => Err(error),
        }
    }

    /// Writes `note` after note number `after`. False: somebody else wrote one, and decided.
    ///
    /// # Errors
    /// `STORE_FAILED`.
    pub async fn write_schedule_note(&self, after: u64, note: &ScheduleNote) -> Result<bool> {
        let writer = self.objects().env.ids.id()?;
        Ok(self.core.schedule.append_known(after + 1, &writer, note).await?.is_none())
    }
}
