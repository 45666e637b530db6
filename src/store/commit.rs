//! Publishing: the manifest under a unique name, then the version's slot, which exactly one run wins.
//!
//! ```text
//! predecessor exists? ─► manifests/<id>.json ─► create versions/<n> ─ ours ─► is the table still this one? ─► Committed
//!                                                 ├ another run's ──────────────────────────────────────────► Lost
//!                                                 └ no answer ──────────────────────────────────────────────► COMMIT_UNKNOWN
//! ```
//!
//! Memory: one manifest. Never deletes what it wrote: after an unknown outcome the slot may yet name it.

use super::envelope;
use super::incarnation::{FORMAT, Incarnation, Slot};
use super::log::Appended;
use super::manifest::Manifest;
use crate::error::{Error, ErrorCode, Result};
use crate::spec::RunId;

/// What a commit came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitOutcome {
    /// The version is accepted; its slot.
    Committed(Slot),
    /// Another run has the slot; nothing of this one is visible.
    Lost(Slot),
}

/// A version whose manifest is written and whose slot is not.
#[derive(Debug)]
pub struct StagedVersion {
    slot: Slot,
}

impl Incarnation {
    /// Publishes `manifest` as version `manifest.version`. The same run and attempt again gives the same answer.
    ///
    /// # Errors
    /// `COMMIT_UNKNOWN` when the store does not say whether the slot was created; `RUN_CONFLICT` when the table was
    /// dropped meanwhile; `STORE_FAILED` when nothing was published.
    pub async fn commit(&self, manifest: &Manifest, run: &RunId, attempt: &str) -> Result<CommitOutcome> {
        self.accept(self.stage(manifest, run, attempt).await?).await
    }

    /// The first half of [`Incarnation::commit`]: writes the manifest, which nothing names yet.
    ///
    /// # Errors
    /// Those of `commit`; nothing was published.
    pub async fn stage(&self, manifest: &Manifest, run: &RunId, attempt: &str) -> Result<StagedVersion> {
        self.store().probe().await?;
        let version = manifest.version;
        if manifest.incarnation != self.id() || manifest.format != FORMAT || version == 0 {
            return Err(Error::internal(format!("table {:?}: a manifest of another table or format was to be published", self.name())));
        }
        self.check_predecessor(version).await?;
        self.check_known_drop(run).await?;
        let relative = format!("manifests/{}.json", self.objects().env.ids.id()?);
        let object = self.write_object(&relative, envelope::encode(attempt, manifest)?).await?;
        let slot = Slot {
            version,
            run: run.clone(),
            attempt: attempt.to_string(),
            manifest: object.path,
            manifest_hash: object.hash,
            min_reader: FORMAT,
            min_writer: FORMAT,
        };
        Ok(StagedVersion { slot })
    }

    /// The second half of [`Incarnation::commit`]: creates the version's slot.
    ///
    /// # Errors
    /// Those of `commit`.
    pub async fn accept(&self, StagedVersion { slot }: StagedVersion) -> Result<CommitOutcome> {
        let (version, run, attempt) = (slot.version, &slot.run.clone(), &slot.attempt.clone());
        self.check_known_drop(run).await?;
        let slot = match self.core.versions.append(version, attempt, &slot).await? {
            Appended::Won => slot,
            Appended::Taken(other) => {
                self.check_slot(version, &other)?;
                if other.run != *run || other.attempt != *attempt {
                    return Ok(CommitOutcome::Lost(other));
                }
                other
            }
            Appended::Unknown(error) => return Err(self.unknown(run, version).with_source(error)),
        };
        self.check_alive(run, version).await?;
        self.remember(&slot);
        Ok(CommitOutcome::Committed(slot))
    }

    /// A drop that is known already must not leave a version behind for whoever creates the table again.
    async fn check_known_drop(&self, run: &RunId) -> Result<()> {
        match self.store().live_incarnation().await?.as_deref() == Some(self.id()) {
            true => Ok(()),
            false => Err(self.dropped(run)),
        }
    }

    /// The version before must exist, and admit that this program follows it.
    async fn check_predecessor(&self, version: u64) -> Result<()> {
        if version == 1 {
            return Ok(());
        }
        match self.slot(version - 1).await? {
            Some(slot) => self.check_format(slot.min_writer, version - 1),
            None => Err(Error::internal(format!(
                "table {:?}: version {version} was to be published without version {}",
                self.name(),
                version - 1
            ))),
        }
    }

    /// A drop may have come between the run's start and its commit.
    async fn check_alive(&self, run: &RunId, version: u64) -> Result<()> {
        let live = self.store().live_incarnation().await.map_err(|error| self.unknown(run, version).with_source(error))?;
        if live.as_deref() == Some(self.id()) {
            return Ok(());
        }
        Err(self.dropped(run))
    }

    fn dropped(&self, run: &RunId) -> Error {
        Error::new(
            ErrorCode::RunConflict,
            format!(
                "table {:?}: the table was dropped while run {run} was at work; nothing of the run is visible. \
                 Remedy: create the table again, then REFRESH it",
                self.name()
            ),
        )
    }

    fn unknown(&self, run: &RunId, version: u64) -> Error {
        Error::new(
            ErrorCode::CommitUnknown,
            format!(
                "table {:?}: the store did not say whether run {run} published version {version}; the run's files are kept. \
                 Remedy: REFRESH with RUN '{run}' again, which finds out and goes on",
                self.name()
            ),
        )
    }
}
