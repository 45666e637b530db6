//! One attempt at a run: everything that is pinned when it opens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arrow_schema::{Field, Schema};
use datafusion::execution::TaskContext;
use datafusion::execution::runtime_env::RuntimeEnv;

use crate::env::WholeStores;
use crate::error::{Error, ErrorCode, Result};
use crate::exec::equality::Fingerprinter;
use crate::spec::{Definition, HandlerSpec, OperationalOptions, Revision, RunId, RunMode, RunReason, RunState, RunSummary, normalize_type};
use crate::store::{DataFile, DefinitionLog, FORMAT, Incarnation, Manifest, RunStore, Slot, VersionDelta, VersionKind};
use crate::table::TableHandle;

use super::outside::OutsideRun;
use super::pool::RunPool;
use super::{Host, RefreshRequest};

/// The accepted version that a run diffs against.
#[derive(Debug, Clone)]
pub(crate) struct Base {
    pub slot: Slot,
    pub manifest: Arc<Manifest>,
    pub files: Arc<Vec<DataFile>>,
}

impl Base {
    /// Whether nothing but its number is known: its description is damaged.
    fn is_lost(&self) -> bool {
        self.manifest.revision == 0
    }
}

/// Everything an attempt pinned at open. Shared by the sinks of its plans.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub host: Host,
    pub table: Arc<TableHandle>,
    pub incarnation: Incarnation,
    pub runs: RunStore,
    pub run: RunId,
    pub id: String,
    pub mode: RunMode,
    pub full: bool,
    pub allow_deletes: bool,
    pub options: OperationalOptions,
    pub definitions: Arc<DefinitionLog>,
    pub revision: Arc<Revision>,
    pub base: Option<Base>,
    pub requested_at: i64,
    pub started_at: i64,
    /// What the run reserves of the session's memory.
    pub pool: Arc<RunPool>,
    /// Raised when the keys of a source's changes could not be had: the source is read whole then.
    pub hand_on_refused: Arc<AtomicBool>,
    /// Where the rows of a synced table come from.
    pub outside: Option<Arc<dyn OutsideRun>>,
    committing: Arc<AtomicBool>,
    spilled: Arc<AtomicU64>,
}

impl Attempt {
    /// Pins the newest version, the options, and the revision that `request` runs.
    pub async fn open(host: &Host, table: &Arc<TableHandle>, request: &RefreshRequest, run: RunId) -> Result<Self> {
        let incarnation = table.incarnation().clone();
        let definitions = Arc::new(incarnation.definitions().await?);
        let base = match request.mode {
            RunMode::Published => newest_base_for(&incarnation, request.full).await?,
            RunMode::Draft => None,
        };
        let revision = match request.mode {
            RunMode::Published => definitions.active(),
            RunMode::Draft => definitions.newest(),
        };
        let revision = revision.cloned().ok_or_else(|| no_revision(table.name()))?;
        let options = definitions.options.operational(table.name())?;
        let now = host.env.clock.now_micros();
        let runs = incarnation.run(&run);
        Ok(Self {
            host: host.clone(),
            table: Arc::clone(table),
            runs,
            run,
            id: host.env.ids.id()?,
            mode: request.mode,
            full: request.full,
            allow_deletes: request.allow_deletes,
            options,
            definitions,
            revision: Arc::new(revision),
            base,
            incarnation,
            requested_at: now,
            started_at: now,
            pool: Arc::new(RunPool::new(Arc::clone(&host.state.runtime_env().memory_pool))),
            hand_on_refused: Arc::default(),
            outside: None,
            committing: Arc::default(),
            spilled: Arc::default(),
        })
    }

    /// The same attempt with rows from outside.
    pub fn with_outside(self, outside: Option<Arc<dyn OutsideRun>>) -> Self {
        Self { outside, ..self }
    }

    /// The same attempt, publishing under another revision.
    pub fn with_revision(&self, revision: Revision) -> Self {
        Self { revision: Arc::new(revision), ..self.clone() }
    }

    pub fn name(&self) -> &str {
        self.table.name()
    }

    pub fn definition(&self) -> &Definition {
        &self.revision.definition
    }

    /// The version that this attempt would publish.
    pub fn next_version(&self) -> u64 {
        self.base.as_ref().map_or(1, |base| base.slot.version + 1)
    }

    /// Where this attempt's data files go, relative to the incarnation.
    pub fn data_dir(&self) -> String {
        format!("data/{}/{}", self.run, self.id)
    }

    /// Where this attempt's capture goes, relative to the incarnation.
    pub fn capture_dir(&self) -> String {
        format!("runs/{}/{}/capture", self.run, self.id)
    }

    pub fn fingerprinter(&self) -> Result<Arc<Fingerprinter>> {
        let definition = self.definition();
        let tracked: Vec<_> = definition.tracked_fields().into_iter().cloned().collect();
        let secret = match definition.handler {
            HandlerSpec::Synced => columns_secret(self.incarnation.secret(), &tracked),
            _ => *self.incarnation.secret(),
        };
        Ok(Arc::new(Fingerprinter::try_new(definition.options.fingerprint, &secret, &tracked)?))
    }

    /// Why this run does what it does, as far as it is known before the diff.
    pub fn reason_before_diff(&self) -> RunReason {
        let definition = self.definition();
        match (&self.base, self.mode) {
            (_, RunMode::Draft) => RunReason::Draft,
            _ if !definition.incremental => RunReason::Full,
            (None, _) => RunReason::Initial,
            (Some(base), _) if base.manifest.revision != self.revision.number && !base.is_lost() => RunReason::RebuildRevision,
            _ if self.full => RunReason::RebuildRequested,
            _ => RunReason::Incremental,
        }
    }

    /// Whether the run keeps rows of the base.
    pub fn extends_base(&self) -> bool {
        self.reason_before_diff() == RunReason::Incremental
    }

    /// Fails when another version was accepted since this attempt opened.
    pub async fn check_base_is_newest(&self) -> Result<()> {
        let newest = self.incarnation.newest_version().await?.map(|slot| slot.version);
        let base = self.base.as_ref().map(|base| base.slot.version);
        if newest == base || self.mode == RunMode::Draft {
            return Ok(());
        }
        Err(Error::new(
            ErrorCode::RunConflict,
            format!(
                "table {:?}: version {} was accepted while run {:?} captured its source. Remedy: start a new run",
                self.name(),
                newest.unwrap_or_default(),
                self.run.as_str()
            ),
        ))
    }

    /// A summary with what is known at open.
    pub fn summary(&self, state: RunState) -> RunSummary {
        let mut summary = RunSummary::new(self.run.as_str(), self.mode, state);
        summary.revision = Some(self.revision.number);
        summary.requested_at = Some(self.requested_at);
        summary.started_at = Some(self.started_at);
        summary
    }

    /// Says that the version slot is about to be created: from here on only the slot tells what became of the run.
    pub fn set_committing(&self) {
        self.committing.store(true, Ordering::Release);
    }

    /// What a plan of this run spilled to disk.
    pub fn add_spilled(&self, bytes: u64) {
        self.spilled.fetch_add(bytes, Ordering::AcqRel);
    }

    pub fn spilled(&self) -> u64 {
        self.spilled.load(Ordering::Acquire)
    }

    pub fn is_hand_on_refused(&self) -> bool {
        self.hand_on_refused.load(Ordering::Acquire)
    }

    pub fn is_committing(&self) -> bool {
        self.committing.load(Ordering::Acquire)
    }

    /// The session's task context, with the memory of this run counted, and the bodies that its source's stores send.
    pub fn task_context(&self) -> Arc<TaskContext> {
        let own = self.host.state.runtime_env();
        let runtime = RuntimeEnv {
            memory_pool: Arc::clone(&self.pool) as _,
            object_store_registry: Arc::new(WholeStores(Arc::clone(&own.object_store_registry))),
            ..own.as_ref().clone()
        };
        Arc::new(TaskContext::from(&self.host.state).with_runtime(Arc::new(runtime)))
    }

    pub fn now(&self) -> i64 {
        self.host.env.clock.now_micros()
    }

    pub fn elapsed(&self) -> Duration {
        self.host.env.clock.elapsed()
    }

    pub fn ms_since(&self, start: Duration) -> u64 {
        u64::try_from(self.elapsed().saturating_sub(start).as_millis()).unwrap_or(u64::MAX)
    }
}

/// The newest accepted version with its manifest and files.
pub(super) async fn newest_base(incarnation: &Incarnation) -> Result<Option<Base>> {
    let Some(slot) = incarnation.newest_version().await? else { return Ok(None) };
    let manifest = incarnation.manifest(&slot).await?;
    let files = incarnation.files(&manifest).await?;
    Ok(Some(Base { slot, manifest, files }))
}

/// The base of a run; one that keeps nothing of it (`full`) goes on when its description is damaged or gone, and mends the
/// table that way.
///
/// # Errors
/// Those of [`newest_base`]; with `full` only where the version's slot cannot be read.
pub(super) async fn newest_base_for(incarnation: &Incarnation, full: bool) -> Result<Option<Base>> {
    let found = newest_base(incarnation).await;
    if !full {
        return found;
    }
    let damage = |error: &Error| matches!(error.code(), ErrorCode::Corrupt | ErrorCode::HistoryMissing);
    let error = match found {
        Ok(Some(base)) => match incarnation.source_state(&base.manifest).await {
            Err(error) if damage(&error) => error,
            _ => return Ok(Some(base)),
        },
        Err(error) if damage(&error) => error,
        other => return other,
    };
    let Some(slot) = incarnation.newest_version().await? else { return Err(error) };
    log::warn!("all rows are published anew, and no older version can be rolled back to: {error}");
    let manifest = Manifest {
        format: FORMAT,
        incarnation: incarnation.id().to_string(),
        version: slot.version,
        base: None,
        kind: VersionKind::Rebuild,
        revision: 0,
        committed_at: 0,
        key: vec![],
        output_schema: Arc::new(Schema::empty()),
        parts: vec![],
        source: None,
        rows: 0,
        delta: VersionDelta::default(),
        // What a vacuum may be deleting is not known any more.
        floor: slot.version + 1,
        sync: None,
        summary: RunSummary::new(slot.run.as_str(), RunMode::Published, RunState::Published),
    };
    Ok(Some(Base { slot, manifest: Arc::new(manifest), files: Arc::default() }))
}

fn no_revision(table: &str) -> Error {
    Error::new(
        ErrorCode::DefinitionInvalid,
        format!("table {table:?} has no active revision. Remedy: ALTER INCREMENTAL TABLE … ACTIVATE, or run a DRAFT"),
    )
}
/// A synced table's columns change from version to version without a rebuild, and a fingerprint holds values only: equal
/// values of other columns must not look like the same row.
fn columns_secret(secret: &[u8; 32], columns: &[Field]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    for column in columns {
        let data_type = normalize_type(column.data_type()).to_string();
        for part in [column.name().as_str(), data_type.as_str()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
    }
    *hasher.finalize().as_bytes()
}
