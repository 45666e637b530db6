//! Capture: read the source once, diff it by key against the baseline, and seal what was found.
//!
//! ```text
//! identity ─► KeyedDiff(index of the base, source) ─► identity again ─► base still newest? ─► seal (create-only)
//! ```
//!
//! The seal pins base, revision, source identity, counts and files. Whoever seals first decides; a second attempt
//! of the same run adopts that seal. Nothing here ever touches what is published.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use datafusion::physical_plan::ExecutionPlan;

use crate::error::{Error, ErrorCode, Result};
use crate::exec::index_scan::IndexScanExec;
use crate::exec::keyed_diff::{DiffOutcome, DiffReport, DiffSpec, KeyedDiffExec};
use crate::plan::source::{ResolvedSource, SourceIdentity, check_identity, resolve, same_identity};
use crate::spec::{RunReason, check_same_types};
use crate::store::{Capture, DeadRows, Seal, SealOutcome, SourceFile, SourceState, deletion_vector};
use crate::table::IncrementalTable;

use super::attempt::Attempt;
use super::flow::tables_behind;
use super::hand_on::{HandOn, PinnedSource, Totals};
use super::plans::with_empty_hidden;

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
    counts: Counts,
    pub started: Duration,
    /// Whether the diff has a baseline, so that counts are relative to it.
    pub against_base: bool,
}

/// Resolves and checks the source and plans the diff.
pub(super) async fn prepare(attempt: &Arc<Attempt>) -> Result<(Arc<CaptureContext>, Arc<dyn ExecutionPlan>)> {
    let started = attempt.elapsed();
    let (source, pinned) = open_source(attempt).await?;
    let previous = previous_source(attempt).await?;
    let before = source.identity().await?;
    check_identity(attempt.name(), previous.as_ref(), &before)?;
    check_schema(attempt, &source)?;

    let definition = attempt.definition();
    let columns: Vec<String> = definition.input_schema.fields().iter().map(|field| field.name().clone()).collect();
    source.check_headers(&columns).await?;
    let hand_on = match &pinned {
        None if !tables_behind(source.provider.as_ref()).is_empty() => HandOn::behind_view(),
        pinned => HandOn::decide(attempt, pinned.as_ref(), previous.as_ref()).await,
    };
    let scan = hand_on.scan(&source, &columns).await?;
    let (counts, plan, against_base) = if definition.incremental {
        diff(attempt, scan, &hand_on)?
    } else {
        (Counts::Whole(OnceLock::new()), with_empty_hidden(scan)?, false)
    };
    let attempt = Arc::clone(attempt);
    Ok((Arc::new(CaptureContext { attempt, source, before, pinned, hand_on, counts, started, against_base }), plan))
}

fn diff(attempt: &Attempt, scan: Arc<dyn ExecutionPlan>, hand_on: &HandOn) -> Result<(Counts, Arc<dyn ExecutionPlan>, bool)> {
    let definition = attempt.definition();
    let spec = DiffSpec {
        table: attempt.name().to_string(),
        key: definition.key_fields().into_iter().cloned().collect(),
        tracked: definition.tracked_fields().into_iter().cloned().collect(),
        fingerprinter: attempt.fingerprinter()?,
        hash: attempt.host.key_hash,
        source_ordinals: None,
    };
    let against_base = attempt.extends_base();
    let index = attempt.base.as_ref().filter(|_| against_base).map(|base| {
        let index = Arc::new(IndexScanExec::new(attempt.incarnation.clone(), Arc::clone(&base.files), &spec.key));
        hand_on.scope(attempt, index, &spec)
    });
    let diff = Arc::new(KeyedDiffExec::try_new(index.transpose()?, scan, spec)?);
    let counts = match hand_on.totals() {
        Some(totals) => Counts::Changes(diff.outcome(), totals),
        None => Counts::Diff(diff.outcome()),
    };
    Ok((counts, diff, against_base))
}

/// The source; one that is itself an incremental table is pinned at its newest version.
async fn open_source(attempt: &Attempt) -> Result<(ResolvedSource, Option<PinnedSource>)> {
    let mut source = resolve(&attempt.host.state, attempt.name(), &attempt.definition().source).await?;
    for handle in tables_behind(source.provider.as_ref()) {
        if handle.newest().await?.is_none() {
            let (table, source) = (attempt.name(), handle.name());
            return Err(Error::new(
                ErrorCode::SourceNotReady,
                format!("table {table:?}: its source {source:?} was never published. Remedy: REFRESH {source} first"),
            ));
        }
    }
    let Some(table) = source.provider.downcast_ref::<IncrementalTable>() else { return Ok((source, None)) };
    let handle = Arc::clone(table.handle());
    let Some(snapshot) = handle.newest().await? else { return Ok((source, None)) };
    let version = snapshot.version.unwrap_or_default();
    let manifest = handle.incarnation().slot(version).await?.map(|slot| slot.manifest_hash);
    source.schema = Arc::clone(&snapshot.output_schema);
    source.provider = Arc::new(IncrementalTable::at(Arc::clone(&handle), Arc::clone(&snapshot)));
    Ok((source, Some(PinnedSource { handle, snapshot, version, manifest })))
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

    /// Checks that source and base stood still, then seals `capture` (which gets the dead rows), or adopts the seal
    /// that another attempt of this run made first.
    pub async fn seal(&self, capture: impl FnOnce(Vec<DeadRows>) -> Capture + Send) -> Result<Seal> {
        same_identity(self.attempt.name(), &self.before, &self.source.identity().await?)?;
        self.attempt.check_base_is_newest().await?;
        let dead = self.write_dead_rows().await?;
        let seal = self.describe(capture(dead)).await?;
        match self.attempt.runs.write_seal(&seal).await? {
            SealOutcome::Won => Ok(seal),
            SealOutcome::Lost(other) => Ok(other),
        }
    }

    /// What the seal would say, for a run that stores nothing.
    pub async fn unsealed(&self) -> Result<Seal> {
        same_identity(self.attempt.name(), &self.before, &self.source.identity().await?)?;
        self.describe(Capture::Input { changes: vec![], dead: vec![] }).await
    }

    async fn write_dead_rows(&self) -> Result<Vec<DeadRows>> {
        let Some(base) = self.attempt.base.as_ref().filter(|_| self.against_base) else { return Ok(vec![]) };
        let mut dead = vec![];
        for (position, rows) in &self.report()?.dead {
            let file = usize::try_from(*position).ok().and_then(|p| base.files.get(p));
            let file = file.ok_or_else(|| Error::internal(format!("the diff names file {position}, which the base does not have")))?;
            let path = format!("{}/dead-{position}.dv", self.attempt.capture_dir());
            let positions = self.attempt.incarnation.write_object(&path, deletion_vector::encode(rows)?).await?;
            dead.push(DeadRows { data_path: file.data.path.clone(), positions, rows: rows.len() });
        }
        Ok(dead)
    }

    async fn describe(&self, capture: Capture) -> Result<Seal> {
        let (attempt, report) = (&self.attempt, self.report()?);
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
            unchanged: report.unchanged,
            scanned: report.scanned,
            files_read: u64::try_from(self.before.files.len()).unwrap_or(u64::MAX),
            files_skipped: 0,
            source: self.source_state().await?,
            captured_at: attempt.now(),
            ms_capture: attempt.ms_since(self.started),
            peak_memory_bytes: attempt.pool.peak().max(report.peak_memory_bytes),
            spilled_bytes: report.spilled_bytes,
            capture,
        })
    }

    /// The source's identity with ordinals: a file that the base knows keeps its ordinal, a new one gets an unused one.
    async fn source_state(&self) -> Result<SourceState> {
        let previous = match &self.attempt.base {
            Some(base) => self.attempt.incarnation.source_state(&base.manifest).await?,
            None => SourceState::default(),
        };
        let known: BTreeMap<&str, u32> = previous.files.iter().map(|f| (f.path.as_str(), f.ordinal)).collect();
        let mut next_ordinal = previous.next_ordinal;
        let mut files = Vec::with_capacity(self.before.files.len());
        for seen in &self.before.files {
            let ordinal = known.get(seen.path.as_str()).copied().unwrap_or_else(|| {
                next_ordinal += 1;
                next_ordinal - 1
            });
            files.push(SourceFile {
                ordinal,
                path: seen.path.clone(),
                bytes: seen.bytes,
                e_tag: seen.e_tag.clone(),
                modified: seen.modified,
                changed: seen.changed,
            });
        }
        let pinned = self.pinned.as_ref();
        let table_version = pinned.map(|pinned| (pinned.snapshot.incarnation.id().to_string(), pinned.version));
        let table_manifest = pinned.and_then(|pinned| pinned.manifest.clone());
        Ok(SourceState { files, table_version, table_manifest, next_ordinal })
    }
}

/// The reason once the counts are known.
fn reason(before: RunReason, report: &DiffReport) -> RunReason {
    match before {
        RunReason::Incremental if report.created + report.updated > 0 => RunReason::Incremental,
        RunReason::Incremental if report.deleted > 0 => RunReason::DeleteOnly,
        RunReason::Incremental => RunReason::NoChange,
        other => other,
    }
}
