//! Capture: read the source once, diff it by key against the baseline, and seal what was found.
//!
//! ```text
//! identity ─► files to skip ─► KeyedDiff(index of the base, source) ─► identity again ─► base still newest? ─► seal
//! ```
//!
//! The seal pins base, revision, source identity, counts and files. Whoever seals first decides; a second attempt
//! of the same run adopts that seal. Nothing here ever touches what is published.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use futures::FutureExt;

use crate::error::{Error, ErrorCode, Result};
use crate::exec::handler::panic_text;
use crate::exec::index_scan::{IndexScanExec, KeyRanges, Scope};
use crate::exec::keyed_diff::{DiffOutcome, DiffReport, DiffSpec, KeyedDiffExec, SRC, change_schema};
use crate::plan::source::{ResolvedSource, SourceIdentity, check_identity, resolve, same_identity};
use crate::spec::{RunReason, check_same_types};
use crate::store::{Capture, DataFile, DeadRows, Seal, SealOutcome, SourceState, deletion_vector};
use crate::table::IncrementalTable;

use super::attempt::Attempt;
use super::flow::tables_behind;
use super::hand_on::{HandOn, PinnedSource, Totals};
use super::plans::with_empty_hidden;
use super::skip::{FileChoice, Seen};

/// Where the counts come from.
#[derive(Debug)]
enum Counts {
    /// The diff counts.
    Diff(Arc<DiffOutcome>),
    /// The diff counts the changes of the source; the rest is known.
    Changes(Arc<DiffOutcome>, Totals),
    /// A table that is recomputed whole is not diffed: every row that was read is handed on.
    Whole(OnceLock<DiffReport>),
}

/// A capture that is prepared: its plan has not been executed yet.
#[derive(Debug)]
pub(super) struct CaptureContext {
    pub attempt: Arc<Attempt>,
    pub source: ResolvedSource,
    pub before: SourceIdentity,
    /// The version of a source that is itself an incremental table.
    pub pinned: Option<PinnedSource>,
    /// How a source that is itself an incremental table is read.
    pub hand_on: HandOn,
    /// Which files of a source of files are read.
    pub choice: FileChoice,
    counts: Counts,
    pub started: Duration,
    /// Whether the diff has a baseline, so that counts are relative to it.
    pub against_base: bool,
}

/// Resolves and checks the source and plans the diff. A panic of a reader over a broken file is an error of the run.
pub(super) async fn prepare(attempt: &Arc<Attempt>) -> Result<(Arc<CaptureContext>, Arc<dyn ExecutionPlan>)> {
    AssertUnwindSafe(prepare_now(attempt)).catch_unwind().await.unwrap_or_else(|panic| {
        let message = format!(
            "table {:?}: the reader of the source's files panicked ({}). Remedy: look for a broken file and mend or remove it",
            attempt.name(),
            panic_text(panic.as_ref())
        );
        Err(Error::new(ErrorCode::CaptureFailed, message))
    })
}

async fn prepare_now(attempt: &Arc<Attempt>) -> Result<(Arc<CaptureContext>, Arc<dyn ExecutionPlan>)> {
    let (started, listed_at) = (attempt.elapsed(), attempt.now());
    let (source, pinned) = open_source(attempt).await?;
    let previous = previous_source(attempt).await?;
    let before = source.identity().await?;
    check_identity(attempt.name(), previous.as_ref(), &before)?;
    check_schema(attempt, &source)?;

    let definition = attempt.definition();
    let columns: Vec<String> = definition.input_schema.fields().iter().map(|field| field.name().clone()).collect();
    let seen = Seen { source: &source, columns: &columns, identity: &before, listed_at, previous: previous.as_ref() };
    let choice = FileChoice::decide(attempt, seen).await?;
    let hand_on = match &pinned {
        None if !tables_behind(source.provider.as_ref()).is_empty() => HandOn::behind_view(),
        pinned => HandOn::decide(attempt, pinned.as_ref(), previous.as_ref()).await,
    };
    let (counts, plan) = plan(attempt, &source, (&choice, &hand_on), &columns).await?;
    let (attempt, against_base) = (Arc::clone(attempt), definition.incremental && attempt.extends_base());
    Ok((Arc::new(CaptureContext { attempt, source, before, pinned, hand_on, choice, counts, started, against_base }), plan))
}

/// The plan of the rows that are handed on, and who counts them.
async fn plan(
    attempt: &Attempt,
    source: &ResolvedSource,
    (choice, hand_on): (&FileChoice, &HandOn),
    columns: &[String],
) -> Result<(Counts, Arc<dyn ExecutionPlan>)> {
    if choice.is_unchanged() {
        let nothing = EmptyExec::new(change_schema(attempt.definition()));
        return Ok((Counts::Whole(OnceLock::from(DiffReport::default())), Arc::new(nothing)));
    }
    source.check_claims(|path| choice.is_read(path)).await?;
    source.check_headers(columns, |path| choice.is_read(path)).await?;
    let (scan, has_ordinals) = match hand_on.scan(source, columns).await? {
        Some(changes) => (changes, false),
        None => choice.scan(source, columns).await?,
    };
    match attempt.definition().incremental {
        true => diff(attempt, (scan, has_ordinals), choice, hand_on),
        false => Ok((Counts::Whole(OnceLock::new()), with_empty_hidden(scan)?)),
    }
}

fn diff(
    attempt: &Attempt,
    (scan, has_ordinals): (Arc<dyn ExecutionPlan>, bool),
    choice: &FileChoice,
    hand_on: &HandOn,
) -> Result<(Counts, Arc<dyn ExecutionPlan>)> {
    let definition = attempt.definition();
    let spec = DiffSpec {
        table: attempt.name().to_string(),
        key: definition.key_fields().into_iter().cloned().collect(),
        tracked: definition.tracked_fields().into_iter().cloned().collect(),
        fingerprinter: attempt.fingerprinter()?,
        hash: attempt.host.key_hash,
        source_ordinals: has_ordinals.then(|| SRC.to_string()),
        keeps_missing: false,
    };
    let base = attempt.base.as_ref().filter(|_| attempt.extends_base());
    let index = |scope: Scope| {
        base.map(|base| {
            Arc::new(IndexScanExec::new(attempt.incarnation.clone(), Arc::clone(&base.files), &spec.key).with_scope(scope)) as _
        })
    };
    if choice.skipped().is_empty() {
        let index = index(Scope::All).map(|index| hand_on.scope(attempt, index, &spec)).transpose()?;
        let diff = Arc::new(KeyedDiffExec::try_new(index, scan, spec)?);
        let counts = match hand_on.totals() {
            Some(totals) => Counts::Changes(diff.outcome(), totals),
            None => Counts::Diff(diff.outcome()),
        };
        return Ok((counts, diff));
    }
    let (skipped, ranges) = (Arc::new(choice.skipped().clone()), Arc::new(KeyRanges::new(&spec.key)));
    let outside = index(Scope::Unread(Arc::clone(&skipped), Arc::clone(&ranges)));
    let outside = outside.ok_or_else(|| Error::internal("source files are skipped without a base"))?;
    let diff = KeyedDiffExec::try_new(index(Scope::Read(skipped)), scan, spec)?.with_outside(outside, ranges);
    Ok((Counts::Diff(diff.outcome()), Arc::new(diff)))
}

/// The source; one that is itself an incremental table is pinned at its newest version.
async fn open_source(attempt: &Attempt) -> Result<(ResolvedSource, Option<PinnedSource>)> {
    let mut source = resolve(&attempt.host.state, attempt.name(), &attempt.definition().source).await?;
    for handle in tables_behind(source.provider.as_ref()) {
        if handle.newest().await?.is_none() {
            let (table, source) = (attempt.name(), handle.name());
            return Err(Error::new(
                ErrorCode::SourceNotReady,
                format!("table {table:?}: its source {source:?} was never published. Remedy: {} first", handle.first_remedy()),
            ));
        }
    }
    let Some(table) = source.provider.downcast_ref::<IncrementalTable>() else { return Ok((source, None)) };
    let handle = Arc::clone(table.handle());
    let Some(snapshot) = handle.newest().await? else { return Ok((source, None)) };
    let version = snapshot.version.unwrap_or_default();
    let slot = handle.incarnation().slot(version).await?;
    let synced_at = match &slot {
        Some(slot) => handle.incarnation().manifest(slot).await?.sync.as_ref().and_then(|sync| sync.synced_at),
        None => None,
    };
    let manifest = slot.map(|slot| slot.manifest_hash);
    source.schema = Arc::clone(&snapshot.output_schema);
    source.provider = Arc::new(IncrementalTable::at(Arc::clone(&handle), Arc::clone(&snapshot)));
    Ok((source, Some(PinnedSource { handle, snapshot, version, manifest, synced_at })))
}

/// What the base's run saw of this source; nothing when it read another one.
async fn previous_source(attempt: &Attempt) -> Result<Option<SourceState>> {
    let Some(base) = &attempt.base else { return Ok(None) };
    let revision = attempt.definitions.revision(base.manifest.revision);
    if revision.is_none_or(|revision| revision.definition.source.name != attempt.definition().source.name) {
        return Ok(None);
    }
    attempt.incarnation.source_state(&base.manifest).await.map(Some)
}

fn check_schema(attempt: &Attempt, source: &ResolvedSource) -> Result<()> {
    let definition = attempt.definition();
    let columns: Vec<String> = definition.input_schema.fields().iter().map(|field| field.name().clone()).collect();
    let differences = check_same_types(&definition.input_schema, &source.schema, &columns);
    if differences.is_empty() {
        return Ok(());
    }
    let mut list: Vec<String> = differences.iter().map(ToString::to_string).collect();
    // A column that the files do not agree on is found as gone.
    let about = |text: &&String| differences.iter().any(|d| text.starts_with(&format!("{:?} is ", d.column)));
    list.extend(source.disagreements.iter().filter(about).map(|text| format!("its files do not agree: {text}")));
    Err(Error::new(
        ErrorCode::SchemaChanged,
        format!(
            "table {table:?}: the source's schema is not the one of revision {revision}: {list}. Remedy: if the change is meant, \
             ALTER INCREMENTAL TABLE {name} ACCEPT SCHEMA (all rows are rebuilt); for CSV and JSON sources declare the column types",
            table = attempt.name(),
            name = attempt.table.sql_name(),
            revision = attempt.revision.number,
            list = list.join("; "),
        ),
    ))
}

impl CaptureContext {
    /// The diff's counts; the capture's stream has ended.
    pub fn report(&self) -> Result<&DiffReport> {
        let report = match &self.counts {
            Counts::Diff(outcome) => outcome.report(),
            Counts::Changes(outcome, totals) => totals.of(outcome),
            Counts::Whole(report) => report.get(),
        };
        let report = report.ok_or_else(|| Error::internal("the diff ended without its counts"))?;
        if report.created + report.updated + report.unchanged != report.scanned + report.skipped {
            return Err(Error::internal(format!(
                "table {:?}: created {} + updated {} + unchanged {} is not the {} rows scanned + {} skipped",
                self.attempt.name(),
                report.created,
                report.updated,
                report.unchanged,
                report.scanned,
                report.skipped
            )));
        }
        Ok(report)
    }

    /// Tells a capture that is not diffed how many rows were read.
    pub fn counted(&self, rows: u64) {
        if let Counts::Whole(report) = &self.counts {
            report.get_or_init(|| DiffReport { created: rows, scanned: rows, ..DiffReport::default() });
        }
    }

    /// Checks that source and base stood still, and says what the seal of `capture` (which gets the dead rows) is.
    pub async fn pin(&self, capture: impl FnOnce(Vec<DeadRows>) -> Capture + Send) -> Result<Seal> {
        same_identity(self.attempt.name(), &self.before, &self.source.identity().await?)?;
        self.attempt.check_base_is_newest().await?;
        let dead = self.write_dead_rows().await?;
        self.describe(capture(dead))
    }

    /// Seals `capture`, or adopts the seal that another attempt of this run made first.
    pub async fn seal(&self, capture: impl FnOnce(Vec<DeadRows>) -> Capture + Send) -> Result<Seal> {
        let seal = self.pin(capture).await?;
        match self.attempt.runs.write_seal(&seal).await? {
            SealOutcome::Won => Ok(seal),
            SealOutcome::Lost(other) => Ok(other),
        }
    }

    /// What the seal would say, for a run that stores nothing.
    pub async fn unsealed(&self) -> Result<Seal> {
        same_identity(self.attempt.name(), &self.before, &self.source.identity().await?)?;
        self.describe(Capture::Input { changes: vec![], dead: vec![] })
    }

    async fn write_dead_rows(&self) -> Result<Vec<DeadRows>> {
        match self.attempt.base.as_ref().filter(|_| self.against_base) {
            Some(base) => write_dead_rows(&self.attempt, &base.files, self.report()?).await,
            None => Ok(vec![]),
        }
    }

    /// Rows of the base that are out of the diff, because their source files are skipped: all that it did not load.
    fn skipped_rows(&self) -> Result<u64> {
        let (report, rows) = (self.report()?, self.attempt.base.as_ref().map_or(0, |base| base.manifest.rows));
        if self.choice.skipped().is_empty() {
            return Ok(0);
        }
        let loaded = report.updated + report.unchanged + report.deleted;
        rows.checked_sub(loaded).ok_or_else(|| Error::internal(format!("the diff met {loaded} rows of a base of {rows}")))
    }

    fn describe(&self, capture: Capture) -> Result<Seal> {
        let (attempt, report) = (&self.attempt, self.report()?);
        let (files_read, files_skipped) = self.choice.counts();
        let origins = matches!(self.counts, Counts::Diff(_)).then_some(&report.origins);
        Ok(Seal {
            run: attempt.run.clone(),
            attempt: attempt.id.clone(),
            mode: attempt.mode,
            base: attempt.base.as_ref().map(|base| base.slot.version),
            revision: attempt.revision.number,
            reason: reason(attempt.reason_before_diff(), report),
            created: report.created,
            updated: report.updated,
            deleted: report.deleted,
            unchanged: report.unchanged + self.skipped_rows()?,
            scanned: report.scanned,
            files_read,
            files_skipped,
            source: self.choice.state(origins, self.pinned.as_ref()),
            captured_at: attempt.now(),
            ms_capture: attempt.ms_since(self.started),
            peak_memory_bytes: attempt.pool.peak().max(report.peak_memory_bytes),
            spilled_bytes: report.spilled_bytes,
            capture,
            sync: None,
        })
    }
}

/// Writes which rows of `files`, those of the base, the diff found replaced or removed.
pub(super) async fn write_dead_rows(attempt: &Attempt, files: &[DataFile], report: &DiffReport) -> Result<Vec<DeadRows>> {
    let mut dead = vec![];
    for (position, rows) in &report.dead {
        let file = usize::try_from(*position).ok().and_then(|p| files.get(p));
        let file = file.ok_or_else(|| Error::internal(format!("the diff names file {position}, which the base does not have")))?;
        let path = format!("{}/dead-{position}.dv", attempt.capture_dir());
        let positions = attempt.incarnation.write_object(&path, deletion_vector::encode(rows)?).await?;
        dead.push(DeadRows { data_path: file.data.path.clone(), positions, rows: rows.len() });
    }
    Ok(dead)
}

/// The reason once the counts are known.
pub(super) fn reason(before: RunReason, report: &DiffReport) -> RunReason {
    match before {
        RunReason::Incremental if report.created + report.updated > 0 => RunReason::Incremental,
        RunReason::Incremental if report.deleted > 0 => RunReason::DeleteOnly,
        RunReason::Incremental => RunReason::NoChange,
        other => other,
    }
}
