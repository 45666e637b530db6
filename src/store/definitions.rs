//! The log of definitions: revisions saved and activated, operational options set.
//!
//! ```text
//! revisions/1  save revision 1, activate     ┐
//! revisions/2  set options                   ├ fold ─► DefinitionLog { revisions, active, options }
//! revisions/3  save revision 2 (draft)       │           └ append entry 5, or REVISION_CONFLICT
//! revisions/4  set the source's statements   ┘
//! ```
//!
//! Memory: every saved revision. Never changes an entry.

use serde::{Deserialize, Serialize};

use super::incarnation::Incarnation;
use super::lock;
use crate::error::{Error, ErrorCode, Result};
use crate::spec::{Options, Revision, SourceSpec};

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DefinitionEntry {
    /// Saves the next revision.
    Save {
        /// The revision; its number follows the newest one's.
        revision: Box<Revision>,
        /// Whether published runs use it from now on.
        activate: bool,
        /// The operational options from now on, if they change.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        options: Option<Options>,
    },
    /// Lets published runs use a saved revision.
    Activate {
        /// The revision's number.
        number: u64,
    },
    /// Replaces the operational options.
    SetOptions {
        /// All of them.
        options: Options,
    },
    /// Replaces the statements that bring the source back in another process. They decide where rows come from in a
    /// process that does not have the source, not what becomes of them, so this is no revision.
    SetSource {
        /// The source's name and its statements.
        source: SourceSpec,
    },
}

/// What the log says, up to one entry.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DefinitionLog {
    /// Entries read; the next one has this number plus one.
    pub entries: u64,
    /// Every saved revision, by number.
    pub revisions: Vec<Revision>,
    /// The revision that published runs use.
    pub active: Option<u64>,
    /// Every activation, in order.
    pub activations: Vec<u64>,
    /// The operational options, as they were set.
    pub options: Options,
}

impl DefinitionLog {
    /// The newest saved revision.
    pub fn newest(&self) -> Option<&Revision> {
        self.revisions.last()
    }

    /// The revision of this number.
    pub fn revision(&self, number: u64) -> Option<&Revision> {
        self.revisions.iter().find(|revision| revision.number == number)
    }

    /// The revision that published runs use.
    pub fn active(&self) -> Option<&Revision> {
        self.active.and_then(|number| self.revision(number))
    }

    /// This log with one more entry, or what is wrong with the entry.
    fn with(mut self, entry: DefinitionEntry) -> std::result::Result<Self, String> {
        match entry {
            DefinitionEntry::Save { revision, activate, options } => {
                let number = self.revisions.len() as u64 + 1;
                if revision.number != number {
                    return Err(format!("it saves revision {} where revision {number} is next", revision.number));
                }
                self.revisions.push(*revision);
                if activate {
                    self.activate(number);
                }
                if let Some(options) = options {
                    self.options = options;
                }
            }
            DefinitionEntry::Activate { number } if self.revision(number).is_none() => {
                return Err(format!("it activates revision {number}, which does not exist"));
            }
            DefinitionEntry::Activate { number } => self.activate(number),
            DefinitionEntry::SetOptions { options } => self.options = options,
            DefinitionEntry::SetSource { source } => {
                for revision in self.revisions.iter_mut().filter(|revision| revision.definition.source.name == source.name) {
                    revision.definition.source = source.clone();
                }
            }
        }
        self.entries += 1;
        Ok(self)
    }

    fn activate(&mut self, number: u64) {
        self.active = Some(number);
        self.activations.push(number);
    }
}

impl Incarnation {
    /// Every saved definition. One look-up when nothing changed.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`, and `HISTORY_MISSING` when an entry is lost.
    pub async fn definitions(&self) -> Result<DefinitionLog> {
        let mut log = lock(&self.core.definitions).clone();
        let newest = self.core.revisions.newest().await?;
        let before = log.entries;
        while log.entries < newest {
            let number = log.entries + 1;
            let (entry, _) = self.core.revisions.entry::<DefinitionEntry>(number).await?;
            log = log.with(entry).map_err(|what| self.objects().corrupt(&self.core.revisions.path(number), what))?;
        }
        if log.entries > before {
            self.keep(&log);
        }
        Ok(log)
    }

    fn keep(&self, log: &DefinitionLog) {
        let mut kept = lock(&self.core.definitions);
        if kept.entries < log.entries {
            kept.clone_from(log);
        }
    }

    /// Appends `entry`, if `after` is still all that the log holds. Returns the log with it.
    ///
    /// # Errors
    /// `REVISION_CONFLICT` when somebody changed the definition since `after` was read; `DEFINITION_INVALID` when the
    /// entry does not follow from `after`.
    pub async fn append_definition(&self, after: &DefinitionLog, entry: DefinitionEntry) -> Result<DefinitionLog> {
        self.store().probe().await?;
        let log = after.clone().with(entry.clone()).map_err(|what| {
            Error::new(
                ErrorCode::DefinitionInvalid,
                format!("table {:?}: the change of the definition is not possible: {what}. Remedy: name a saved revision", self.name()),
            )
        })?;
        let writer = self.objects().env.ids.id()?;
        if self.core.revisions.append_known(log.entries, &writer, &entry).await?.is_some() {
            return Err(Error::new(
                ErrorCode::RevisionConflict,
                format!(
                    "table {:?}: somebody changed the definition meanwhile. Remedy: look at incremental_revisions({:?}), then repeat the statement",
                    self.name(),
                    self.name()
                ),
            ));
        }
        self.keep(&log);
        Ok(log)
    }
}
