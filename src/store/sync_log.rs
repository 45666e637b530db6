//! The log of a synced table: configurations saved, rebuilds asked for.
//!
//! ```text
//! sync/1  save configuration 1          ┐
//! sync/2  save configuration 2          ├ fold ─► SyncLog { configs, rebuilds }
//! sync/3  ask for a rebuild             ┘           └ append entry 4, or REVISION_CONFLICT
//! ```
//!
//! How far a table got is not here: it is in the manifest of its newest version, with the rows. Memory: every saved
//! configuration. Never changes an entry.

use serde::{Deserialize, Serialize};

use super::incarnation::Incarnation;
use super::lock;
use crate::error::{Error, ErrorCode, Result};
use crate::spec::sync::{KnownColumn, SyncConfig};

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncEntry {
    /// Saves the next configuration.
    Save {
        /// All of it.
        config: Box<SyncConfig>,
        /// The source's columns, where it was looked at for the change.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        columns: Vec<KnownColumn>,
        /// Microseconds since 1970.
        at: i64,
    },
    /// Asks that the next run makes a new generation.
    Rebuild {
        /// Microseconds since 1970.
        at: i64,
    },
}

/// A saved configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedConfig {
    /// 1, 2, 3, …
    pub number: u64,
    /// Microseconds since 1970.
    pub saved_at: i64,
    /// What was saved.
    pub config: SyncConfig,
    /// The source's columns then; empty where the source was not looked at.
    pub columns: Vec<KnownColumn>,
}

/// What the log says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SyncLog {
    /// Entries read; the next one has this number plus one.
    pub entries: u64,
    /// Every saved configuration, by number.
    pub configs: Vec<SavedConfig>,
    /// How many rebuilds were asked for.
    pub rebuilds: u64,
}

impl SyncLog {
    /// The newest configuration.
    pub fn newest(&self) -> Option<&SavedConfig> {
        self.configs.last()
    }

    /// The configuration of this number.
    pub fn config(&self, number: u64) -> Option<&SavedConfig> {
        self.configs.iter().find(|saved| saved.number == number)
    }

    fn with(mut self, entry: SyncEntry) -> Self {
        match entry {
            SyncEntry::Save { config, columns, at } => {
                let number = self.configs.len() as u64 + 1;
                self.configs.push(SavedConfig { number, saved_at: at, config: *config, columns });
            }
            SyncEntry::Rebuild { .. } => self.rebuilds += 1,
        }
        self.entries += 1;
        self
    }
}

impl Incarnation {
    /// The log of a synced table; empty for a table that is none. One look-up when nothing changed.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`, and `HISTORY_MISSING` when an entry is lost.
    pub async fn sync_log(&self) -> Result<SyncLog> {
        let mut log = lock(&self.core.sync_log).clone();
        let newest = self.core.syncs.newest().await?;
        let before = log.entries;
        while log.entries < newest {
            let (entry, _) = self.core.syncs.entry::<SyncEntry>(log.entries + 1).await?;
            log = log.with(entry);
        }
        if log.entries > before {
            self.keep_sync_log(&log);
        }
        Ok(log)
    }

    fn keep_sync_log(&self, log: &SyncLog) {
        let mut kept = lock(&self.core.sync_log);
        if kept.entries < log.entries {
            kept.clone_from(log);
        }
    }

    /// Appends `entry`, if `after` is still all that the log holds. Returns the log with it.
    ///
    /// # Errors
    /// `REVISION_CONFLICT` when somebody changed the table's configuration since `after` was read.
    pub async fn append_sync(&self, after: &SyncLog, entry: SyncEntry) -> Result<SyncLog> {
        self.store().probe().await?;
        let log = after.clone().with(entry.clone());
        let writer = self.objects().env.ids.id()?;
        if self.core.syncs.append_known(log.entries, &writer, &entry).await?.is_some() {
            return Err(Error::new(
                ErrorCode::RevisionConflict,
                format!(
                    "table {:?}: somebody changed its configuration meanwhile. Remedy: look at sync_schema of it, then repeat the statement",
                    self.name()
                ),
            ));
        }
        self.keep_sync_log(&log);
        Ok(log)
    }
}
