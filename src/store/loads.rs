//! Loads that are not published yet: how far each got, so that the next run goes on from there.
//!
//! ```text
//! loads/1  generation 3 begun: up to key 1,000,000, files a b      same generation, configuration and revision:
//! loads/2  generation 3:       up to key 2,000,000, files a b c    the newest entry is where to go on
//! ```
//!
//! The files are those that the load's runs wrote; no version names them before the load is complete. Memory: one entry.
//! Never changes an entry, and never makes a row visible.

use serde::{Deserialize, Serialize};

use super::incarnation::Incarnation;
use super::manifest::DataFile;
use crate::error::Result;
use crate::spec::sync::TypedValue;

/// How far a load got.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadEntry {
    /// The generation that it makes.
    pub generation: u64,
    /// The configuration that it began with.
    pub config: u64,
    /// The version that it replaces; `None`: the first load.
    #[serde(default)]
    pub base: Option<u64>,
    /// How many rebuilds were asked for when it began.
    #[serde(default)]
    pub rebuilds: u64,
    /// The revision of the definition that its files follow.
    pub revision: u64,
    /// The columns that the source is read in order of.
    pub order: Vec<String>,
    /// The last row that is written, by these columns.
    pub position: Vec<TypedValue>,
    /// The greatest cursor value that the source had before the first row was read.
    pub ceiling: Option<TypedValue>,
    /// When the first row was read, microseconds since 1970.
    pub began_at: i64,
    /// Rows read so far.
    pub rows_read: u64,
    /// Every file that is written.
    pub files: Vec<DataFile>,
}

impl Incarnation {
    /// Where the newest load stands, if there was one.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`.
    pub async fn newest_load(&self) -> Result<Option<LoadEntry>> {
        let newest = self.core.loads.newest().await?;
        if newest == 0 {
            return Ok(None);
        }
        let (entry, _) = self.core.loads.entry::<LoadEntry>(newest).await?;
        self.check_files(&self.core.loads.path(newest), &entry.files)?;
        Ok(Some(entry))
    }

    /// Notes how far a load got. Whoever holds the table's lease writes; another writer's entry under the number means
    /// that the lease was lost.
    ///
    /// # Errors
    /// `STORE_FAILED`; `RUN_CONFLICT` when another run notes a load.
    pub async fn note_load(&self, entry: &LoadEntry) -> Result<()> {
        let number = self.core.loads.newest().await? + 1;
        let writer = self.objects().env.ids.id()?;
        match self.core.loads.append_known(number, &writer, entry).await? {
            None => Ok(()),
            Some(_) => Err(crate::error::Error::new(
                crate::error::ErrorCode::RunConflict,
                format!("table {:?}: another run loads it at the same time. Remedy: wait for that run, then start a new one", self.name()),
            )),
        }
    }

    /// Whether every file of `entry` is still there: a vacuum may have taken what no version names.
    ///
    /// # Errors
    /// `STORE_FAILED`.
    pub async fn has_files(&self, entry: &LoadEntry) -> Result<bool> {
        for object in entry.files.iter().flat_map(DataFile::objects) {
            if self.objects().modified(&self.path(&object.path)).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
