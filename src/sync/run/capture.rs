//! What a run reads, and what becomes of it when all is written.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow_schema::{Field, Schema};
use async_trait::async_trait;
use datafusion::physical_plan::ExecutionPlan;

use super::boundary::Boundary;
use super::decide::{Decision, Write};
use super::load::Load;
use super::reconcile;
use super::scope::{RowScope, scope};
use super::source::{self, Counted};
use super::work::Opened;
use crate::error::{Error, Result};
use crate::exec::index_scan::IndexScanExec;
use crate::exec::keyed_diff::{DiffOutcome, DiffReport, DiffSpec, KeyedDiffExec};
use crate::run::{Attempt, OutsideCapture, OutsideOutcome, with_empty_hidden};
use crate::spec::RunReason;
use crate::spec::sync::{CursorMark, SyncKind, SyncPhase, SyncReport, SyncState, SyncTrigger, SyncType, TypedValue};
use crate::store::{DataFile, LoadEntry, SealedSync};
use crate::sync::connector::{ReadRequest, ReadScope, SourceSnapshot};

/// Where the counts come from.
#[derive(Debug)]
enum Counts {
    Diff(Arc<DiffOutcome>),
    /// Keys were compared: what is new is not added.
    Keys(Arc<DiffOutcome>),
    /// Rows were written as they came.
    Plain(Arc<AtomicU64>),
    /// Every row is written already.
    Loaded,
    /// All rows are deleted on request.
    Nothing,
}

/// A capture of a synced table.
#[derive(Debug)]
pub(super) struct SyncCapture {
    attempt: Arc<Attempt>,
    opened: Arc<Opened>,
    trigger: SyncTrigger,
    plan: Mutex<Option<Arc<dyn ExecutionPlan>>>,
    counts: Counts,
    counted: Arc<Counted>,
    scope: RowScope,
    /// The ceiling that the mark comes to: that of the first snapshot of a load.
    ceiling: Option<TypedValue>,
    earlier: Vec<DataFile>,
    rows_before: u64,
    captured_at: i64,
    started: Duration,
}

/// How the diff of a run compares.
pub(super) fn diff_spec(attempt: &Attempt, keeps_missing: bool) -> Result<DiffSpec> {
    let definition = attempt.definition();
    Ok(DiffSpec {
        table: attempt.name().to_string(),
        key: definition.key_fields().into_iter().cloned().collect(),
        tracked: definition.tracked_fields().into_iter().cloned().collect::<Vec<Field>>(),
        fingerprinter: attempt.fingerprinter()?,
        hash: attempt.host.key_hash,
        source_ordinals: None,
        keeps_missing,
    })
}

/// The plan that writes the rows of `source` as a table's first: checked for duplicate keys where there is a key.
pub(super) fn written_plan(attempt: &Attempt, source: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    match attempt.definition().key.is_empty() {
        true => with_empty_hidden(source),
        false => Ok(Arc::new(KeyedDiffExec::try_new(None, source, diff_spec(attempt, false)?)?)),
    }
}

impl SyncCapture {
    /// Reads nothing and leaves nothing.
    pub fn delete(attempt: &Arc<Attempt>, opened: Arc<Opened>, trigger: SyncTrigger) -> Self {
        let scope = RowScope { reads: vec![], ceiling: None, excluded_nulls: None };
        Self::new(attempt, (opened, trigger), (Counts::Nothing, None), scope)
    }

    fn new(
        attempt: &Arc<Attempt>,
        (opened, trigger): (Arc<Opened>, SyncTrigger),
        (counts, plan): (Counts, Option<Arc<dyn ExecutionPlan>>),
        scope: RowScope,
    ) -> Self {
        Self {
            attempt: Arc::clone(attempt),
            opened,
            trigger,
            plan: Mutex::new(plan),
            counts,
            counted: Arc::default(),
            ceiling: scope.ceiling.clone(),
            scope,
            earlier: vec![],
            rows_before: 0,
            captured_at: attempt.now(),
            started: attempt.elapsed(),
        }
    }

    /// Opens the reads of a run and plans what becomes of the rows.
    pub async fn open(attempt: &Arc<Attempt>, opened: Arc<Opened>, trigger: SyncTrigger, segment_rows: u64) -> Result<Self> {
        let snapshot = opened.snapshot()?;
        let (config, decision) = (&opened.config.config, &opened.decision);
        let (captured_at, started) = (attempt.now(), attempt.elapsed());
        let scope = match decision.kind {
            SyncKind::Reconcile => RowScope { reads: vec![ReadScope::All], ceiling: None, excluded_nulls: None },
            _ => scope(&attempt.table, config, decision, snapshot.as_ref(), &opened.filters).await?,
        };
        let mut capture = Self::new(attempt, (Arc::clone(&opened), trigger), (Counts::Loaded, None), scope);
        (capture.captured_at, capture.started) = (captured_at, started);
        match decision.write {
            _ if decision.kind == SyncKind::Reconcile => capture.compare_keys(&snapshot).await?,
            Write::Replace if decision.sync_type.has_cursor() && snapshot.reads_in_order() => {
                capture.load(&snapshot, segment_rows).await?;
            }
            Write::Replace => capture.replace(&snapshot).await?,
            Write::Merge { removes } => capture.merge(&snapshot, removes).await?,
            Write::Append => capture.append(&snapshot).await?,
        }
        Ok(capture)
    }

    fn decision(&self) -> &Decision {
        &self.opened.decision
    }

    /// The read of this run; ordered and from a position on where one is given.
    fn request(
        &self,
        snapshot: &dyn SourceSnapshot,
        order: Option<(&[String], Option<Vec<datafusion::common::ScalarValue>>)>,
    ) -> ReadRequest {
        let schema = &self.attempt.definition().output_schema;
        let (order_by, after) = order.map_or((vec![], None), |(order, after)| (order.to_vec(), after));
        ReadRequest {
            columns: source::columns_of(schema, |name| snapshot.table().column(name).is_some()),
            filters: self.opened.filters.clone(),
            scope: ReadScope::All,
            order_by,
            after,
            batch_rows: self.attempt.host.state.config().batch_size(),
        }
    }

    async fn rows(
        &self,
        snapshot: &Arc<dyn SourceSnapshot>,
        request: ReadRequest,
    ) -> Result<datafusion::execution::SendableRecordBatchStream> {
        let schema = Arc::clone(&self.attempt.definition().output_schema);
        let cursor = self.opened.config.config.incremental_field.clone().filter(|_| self.decision().sync_type.has_cursor());
        source::rows(Arc::clone(snapshot), request, self.scope.reads.clone(), schema, (Arc::clone(&self.counted), cursor)).await
    }

    fn set_plan(&mut self, plan: Arc<dyn ExecutionPlan>, counts: Counts) {
        self.plan = Mutex::new(Some(plan));
        self.counts = counts;
    }

    /// A new generation in one pass.
    async fn replace(&mut self, snapshot: &Arc<dyn SourceSnapshot>) -> Result<()> {
        let rows = self.rows(snapshot, self.request(snapshot.as_ref(), None)).await?;
        let source = source::plan(rows)?;
        if self.attempt.definition().key.is_empty() {
            self.set_plan(with_empty_hidden(source)?, Counts::Plain(Arc::default()));
            return Ok(());
        }
        let diff = Arc::new(KeyedDiffExec::try_new(None, source, diff_spec(&self.attempt, false)?)?);
        let outcome = diff.outcome();
        self.set_plan(diff, Counts::Diff(outcome));
        Ok(())
    }

    /// A new generation that goes on where an earlier run of it was interrupted.
    async fn load(&mut self, snapshot: &Arc<dyn SourceSnapshot>, segment_rows: u64) -> Result<()> {
        let config = &self.opened.config.config;
        let order = match self.attempt.definition().key.as_slice() {
            [] => config.incremental_field.iter().cloned().collect(),
            key => key.to_vec(),
        };
        let fresh = LoadEntry {
            generation: self.opened.generation(),
            config: self.opened.config.number,
            base: self.attempt.base.as_ref().map(|base| base.slot.version),
            rebuilds: self.opened.rebuilds,
            revision: self.attempt.revision.number,
            order: order.clone(),
            position: vec![],
            ceiling: self.scope.ceiling.clone(),
            began_at: self.captured_at,
            rows_read: 0,
            files: vec![],
        };
        let mut load = Load::open(&self.attempt, fresh.clone()).await?;
        if load.is_resumed && self.has_null_keys(snapshot.as_ref()).await? {
            // No row with a null in its key is behind any position: reading everything finds and names them.
            load = Load { entry: fresh, is_resumed: false };
        }
        if load.is_resumed {
            // Rows with a cursor beyond this snapshot's are none, and those beyond the first one's come again.
            self.ceiling.clone_from(&load.entry.ceiling);
            self.captured_at = load.entry.began_at;
            self.rows_before = load.entry.rows_read;
            self.opened.resumed.store(true, Ordering::Release);
            if self.decision().sync_type == SyncType::Append {
                // Nothing is merged there: what came since must come only once, with the next run.
                self.scope.end_at(self.ceiling.as_ref());
            }
        }
        let rows = self.rows(snapshot, self.request(snapshot.as_ref(), Some((&order, load.after())))).await?;
        self.earlier = load.write(&self.attempt, rows, segment_rows).await?;
        Ok(())
    }

    async fn has_null_keys(&self, snapshot: &dyn SourceSnapshot) -> Result<bool> {
        for name in &self.attempt.definition().key {
            let is_nullable = snapshot.table().column(name).is_none_or(|column| column.is_nullable);
            if is_nullable && snapshot.count_nulls(name, &self.opened.filters).await? > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn merge(&mut self, snapshot: &Arc<dyn SourceSnapshot>, removes: bool) -> Result<()> {
        let rows = self.rows(snapshot, self.request(snapshot.as_ref(), None)).await?;
        let spec = diff_spec(&self.attempt, !removes)?;
        let base = self.attempt.base.as_ref().ok_or_else(|| Error::internal("rows are merged without a base"))?;
        let index = IndexScanExec::new(self.attempt.incarnation.clone(), Arc::clone(&base.files), &spec.key);
        let diff = Arc::new(KeyedDiffExec::try_new(Some(Arc::new(index)), source::plan(rows)?, spec)?);
        let outcome = diff.outcome();
        self.set_plan(diff, Counts::Diff(outcome));
        Ok(())
    }

    async fn append(&mut self, snapshot: &Arc<dyn SourceSnapshot>) -> Result<()> {
        let mut rows = self.rows(snapshot, self.request(snapshot.as_ref(), None)).await?;
        let left = Arc::new(AtomicU64::new(0));
        let cursor = self.opened.config.config.incremental_field.clone();
        if let (Some(mark), Some(cursor)) = (&self.decision().mark, cursor) {
            let base = self.attempt.base.as_ref().ok_or_else(|| Error::internal("rows are appended without a base"))?;
            let stored = &base.manifest.output_schema;
            let both = |name: &str| snapshot.table().column(name).is_some() && stored.field_with_name(name).is_ok();
            let columns = source::columns_of(&self.attempt.definition().output_schema, both);
            let boundary = Boundary::read(&self.attempt, &cursor, mark, columns).await?;
            rows = boundary.filter(rows, Arc::clone(&left));
            self.set_plan(with_empty_hidden(source::plan(rows)?)?, Counts::Plain(left));
            return Ok(());
        }
        self.set_plan(with_empty_hidden(source::plan(rows)?)?, Counts::Plain(left));
        Ok(())
    }

    async fn compare_keys(&mut self, snapshot: &Arc<dyn SourceSnapshot>) -> Result<()> {
        let definition = self.attempt.definition();
        let request = ReadRequest { columns: definition.key.clone(), ..self.request(snapshot.as_ref(), None) };
        // Nullable: the diff counts null keys and names them.
        let schema = Arc::new(Schema::new(definition.key_fields().into_iter().cloned().collect::<Vec<_>>()));
        let keys = source::rows(Arc::clone(snapshot), request, self.scope.reads.clone(), schema, (Arc::clone(&self.counted), None)).await?;
        let (plan, outcome) = reconcile::plan(&self.attempt, source::plan(keys)?)?;
        self.set_plan(plan, Counts::Keys(outcome));
        Ok(())
    }

    fn report(&self) -> Result<DiffReport> {
        let ended = |outcome: &Arc<DiffOutcome>| {
            outcome.report().cloned().ok_or_else(|| Error::internal("the diff of a synced table ended without its counts"))
        };
        let rows = self.rows_before + self.counted.rows();
        Ok(match &self.counts {
            Counts::Diff(outcome) => ended(outcome)?,
            Counts::Keys(outcome) => DiffReport { created: 0, ..ended(outcome)? },
            Counts::Plain(left) => {
                // Without a mark nothing is left out.
                let created = if self.decision().mark.is_some() { left.load(Ordering::Acquire) } else { rows };
                DiffReport { created, unchanged: rows - created, scanned: rows, ..DiffReport::default() }
            }
            Counts::Loaded => {
                let created = self.earlier.iter().map(|file| file.rows).sum();
                DiffReport { created, scanned: rows, ..DiffReport::default() }
            }
            Counts::Nothing => {
                let deleted = self.attempt.base.as_ref().map_or(0, |base| base.manifest.rows);
                DiffReport { deleted, ..DiffReport::default() }
            }
        })
    }

    fn mark(&self) -> Option<CursorMark> {
        let (config, before) = (&self.opened.config.config, self.opened.state.as_ref().and_then(|state| state.mark.clone()));
        if matches!(self.counts, Counts::Nothing) {
            return None;
        }
        if self.decision().kind == SyncKind::Reconcile {
            return before;
        }
        let (field, field_type) = (config.incremental_field.clone()?, config.incremental_field_type?);
        if !self.decision().sync_type.has_cursor() {
            return None;
        }
        // A mark never goes back, also where the rows at its top are gone.
        let value = match (&self.decision().mark, &self.ceiling) {
            (Some(mark), Some(ceiling)) if mark.compare(ceiling) == Some(std::cmp::Ordering::Greater) => Some(mark),
            (_, Some(ceiling)) => Some(ceiling),
            (mark, None) => mark.as_ref(),
        };
        value.map(|value| CursorMark { field, field_type, value: value.clone() })
    }

    fn sealed(&self, report: &DiffReport) -> SealedSync {
        let (opened, decision) = (&self.opened, self.decision());
        let before = opened.state.as_ref();
        let (mark, is_reconcile) = (self.mark(), decision.kind == SyncKind::Reconcile);
        let text = |mark: Option<&CursorMark>| mark.map(|mark| mark.value.to_string());
        let is_deleted = matches!(self.counts, Counts::Nothing);
        let state = SyncState {
            generation: opened.generation(),
            phase: if is_deleted { SyncPhase::Empty } else { SyncPhase::Loaded },
            // Keys alone do not bring rows to a newer configuration.
            config: before.filter(|_| is_reconcile).map_or(opened.config.number, |state| state.config),
            sync_type: before.filter(|_| is_reconcile).map_or(decision.sync_type, |state| state.sync_type),
            mark: mark.clone(),
            source_key: opened.source_key(),
            missing_columns: opened.missing.clone(),
            // Comparing keys brings no row to other columns.
            hidden_columns: before.filter(|_| is_reconcile).map_or(opened.hidden.clone(), |state| state.hidden_columns.clone()),
            source_columns: opened.source_columns(),
            rebuilds: if decision.write == Write::Replace { opened.rebuilds } else { before.map_or(0, |state| state.rebuilds) },
            synced_at: match (is_deleted, is_reconcile) {
                (true, _) => None,
                (false, true) => before.and_then(|state| state.synced_at),
                (false, false) => Some(self.captured_at),
            },
            reconciled_at: match is_reconcile {
                true => Some(self.captured_at),
                false => before.and_then(|state| state.reconciled_at),
            },
        };
        let report = SyncReport {
            read_from: self.scope.lower().map(|value| TypedValue::new(value).map(|value| value.to_string())).unwrap_or_default(),
            ceiling: self.scope.ceiling.as_ref().map(ToString::to_string),
            rows_read: Some(report.scanned),
            null_cursor_rows: self.scope.excluded_nulls.or_else(|| decision.sync_type.has_cursor().then(|| self.counted.nulls())),
            mark_before: text(before.and_then(|state| state.mark.as_ref())),
            mark_after: text(mark.as_ref()),
            ..opened.report(self.trigger)
        };
        SealedSync { state, report }
    }
}

#[async_trait]
impl OutsideCapture for SyncCapture {
    fn rows(&self) -> Option<Arc<dyn ExecutionPlan>> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn outcome(&self) -> Result<OutsideOutcome> {
        if let Ok(snapshot) = self.opened.snapshot() {
            snapshot.finish().await?;
        }
        let report = self.report()?;
        let reason = match (self.decision().write, self.opened.state.as_ref().map(|state| state.phase)) {
            (Write::Replace, Some(SyncPhase::Loaded)) => RunReason::RebuildRequested,
            (Write::Replace, _) => RunReason::Initial,
            (Write::Merge { .. } | Write::Append, _) => RunReason::Incremental,
        };
        let sync = self.sealed(&report);
        let source = self.opened.files();
        let (earlier, captured_at, started) = (self.earlier.clone(), self.captured_at, self.started);
        Ok(OutsideOutcome { reason, report, earlier, source, sync, captured_at, started })
    }
}
