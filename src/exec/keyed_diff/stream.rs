//! One partition of the diff: reads the source, classifies each row, emits the changed ones.
//!
//! ```text
//! source batch ─┬─ baseline in memory ─► verdicts ─► emit changed rows, spill unsettled keys ─┐
//!               └─ in buckets ─► spill                                                        ├─ end of source
//! last partition to end: rows of bucket after bucket ─► verdicts ─► emit … ◄──────────────────┘
//! ```

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::Int64Type;
use arrow_schema::{Field, SchemaRef};
use datafusion::common::exec_datafusion_err;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{FutureExt, Stream, StreamExt, stream};

use super::DiffSpec;
use super::columns::{FP_HI, FP_LO, SRC, join_fingerprint};
use super::diff::{Differ, Probe, SourceValues, Verdict};
use super::emit::{Emitter, SourceRows, TooLarge, change_rows};
use super::load::{Mode, Shared};
use super::metrics::DiffMetrics;
use super::outside::Outside;
use super::settle::{Rows, Settle, Unsettled, key_schema};
use super::state::{Counts, Loaded, RunningDiff};
use crate::error::{Error, ErrorCode, Result};
use crate::exec::ahead::read_ahead;
use crate::exec::equality::{KeyReader, normalize_array, render_distinct_key, render_key};
use crate::exec::handler::panic_text;

/// Everything one partition needs.
pub(crate) struct Partition {
    pub(crate) spec: Arc<DiffSpec>,
    pub(crate) reader: Arc<KeyReader>,
    pub(crate) running: Arc<RunningDiff>,
    pub(crate) outside: Option<Arc<Outside>>,
    pub(crate) source: SendableRecordBatchStream,
    pub(crate) schema: SchemaRef,
    pub(crate) batch_rows: usize,
    pub(crate) number: usize,
    pub(crate) partitions: usize,
    pub(crate) metrics: DiffMetrics,
    pub(crate) set: ExecutionPlanMetricsSet,
    pub(crate) context: Arc<TaskContext>,
}

/// The stream of changed rows of one partition; nothing happens before it is polled.
pub(crate) fn stream_partition<F>(partition: Partition, loading: F) -> SendableRecordBatchStream
where
    F: Future<Output = Result<Arc<Loaded>>> + Send + 'static,
{
    let schema = Arc::clone(&partition.schema);
    let batches = stream::once(async move { Ok::<_, Error>(drive(partition, loading.await?)) });
    let batches = batches.flat_map(|driven| match driven {
        Ok(batches) => batches.boxed(),
        Err(error) => stream::once(async move { Err(DataFusionError::from(error)) }).boxed(),
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, batches))
}

fn drive(mut partition: Partition, loaded: Arc<Loaded>) -> impl Stream<Item = datafusion::error::Result<RecordBatch>> + Send {
    partition.source = read_ahead(partition.source, partition.partitions, &partition.context);
    let emitter = Emitter::new(Arc::clone(&partition.schema), partition.batch_rows);
    let stage = Stage::Reading(loaded);
    let probe = Probe::new(partition.number);
    let work = Work { partition, emitter, probe, counts: Counts::default(), ready: VecDeque::new() };
    stream::try_unfold((work, stage), |(mut work, mut stage)| async move {
        let batch = work.next(&mut stage).await?;
        Ok(batch.map(|batch| (batch, (work, stage))))
    })
}

/// Where a partition is.
enum Stage {
    Reading(Arc<Loaded>),
    /// The last partition, which settles what is left.
    Settling(Box<Settle>, Arc<Shared>),
    Ended,
}

struct Work {
    partition: Partition,
    emitter: Emitter,
    probe: Probe,
    counts: Counts,
    ready: VecDeque<RecordBatch>,
}

impl Work {
    async fn next(&mut self, stage: &mut Stage) -> Result<Option<RecordBatch>, DataFusionError> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                self.partition.metrics.baseline.output_rows().add(batch.num_rows());
                return Ok(Some(batch));
            }
            match stage {
                Stage::Ended => return Ok(None),
                Stage::Reading(loaded) => match self.read().await? {
                    Some(batch) => self.take(loaded, &batch.map_err(|error| self.partition.unreadable(error))?)?,
                    None => self.arrive(stage)?,
                },
                Stage::Settling(settle, shared) => match settle.next().await? {
                    Some(rows) => self.settle(shared, &rows)?,
                    None => self.conclude(stage)?,
                },
            }
        }
    }

    /// The source's next batch. A panic is caught here, below everything that is ours or the handler's: further up nobody
    /// could tell whose it was. The source is not polled again after it.
    async fn read(&mut self) -> Result<Option<datafusion::error::Result<RecordBatch>>, DataFusionError> {
        let read = AssertUnwindSafe(self.partition.source.next()).catch_unwind().await;
        read.map_err(|panic| self.partition.unreadable(exec_datafusion_err!("it panicked: {}", panic_text(panic.as_ref()))).into())
    }

    /// Takes a batch of the source.
    fn take(&mut self, loaded: &Loaded, batch: &RecordBatch) -> Result<()> {
        let elapsed = self.partition.metrics.baseline.elapsed_compute().clone();
        let _timer = elapsed.timer();
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let source = self.partition.columns(batch)?;
        self.counts.scanned += source.rows as u64;
        self.partition.metrics.scanned.add(source.rows);
        if self.partition.find_nulls(&source)? {
            return Ok(());
        }
        let fingerprints = self.partition.fingerprints(&source)?;
        match &loaded.mode {
            Mode::Memory(differ) => {
                let verdicts = self.classify(differ.as_ref(), &source, &fingerprints)?;
                self.probe.origins.read(source.ordinals()?);
                self.count(&source, &verdicts)?;
                self.spill_unsettled(&loaded.shared, &loaded.unsettled, (&source, &verdicts))?;
                self.emit(&source, &verdicts, &fingerprints)
            }
            Mode::Buckets { source: buckets, .. } => {
                let all = BooleanArray::from(vec![true; source.rows]);
                let rows = change_rows(&self.partition.schema, &source, &all, &fingerprints)?;
                rows.map_err(|large| self.partition.too_large(&large))?.into_iter().try_for_each(|rows| buckets.push(rows))
            }
        }
    }

    /// Takes rows that were left: source rows of a bucket, or keys of rows that were emitted.
    fn settle(&mut self, shared: &Shared, rows: &Rows<'_>) -> Result<()> {
        let elapsed = self.partition.metrics.baseline.elapsed_compute().clone();
        let _timer = elapsed.timer();
        let source = self.partition.spilled_columns(&rows.batch, rows.is_diff)?;
        let fingerprints = if rows.is_diff { stored_fingerprints(&rows.batch)? } else { vec![0; source.rows] };
        let verdicts = self.classify(rows.differ, &source, &fingerprints)?;
        self.spill_unsettled(shared, rows.unsettled, (&source, &verdicts))?;
        if rows.is_diff {
            self.probe.origins.read(source.ordinals()?);
            self.count(&source, &verdicts)?;
            return self.emit(&source, &verdicts, &fingerprints);
        }
        self.partition.find_duplicates(&source, &verdicts);
        Ok(())
    }

    fn classify(&mut self, differ: &dyn Differ, source: &SourceRows, fingerprints: &[u128]) -> Result<Vec<Verdict>> {
        let keys = self.partition.reader.read(source.key_columns())?;
        let (mut verdicts, before) = (Vec::new(), self.probe.lookups);
        let rows = SourceValues { fingerprints, ordinals: source.ordinals()? };
        differ.classify(&mut self.probe, &keys, &rows, &mut verdicts)?;
        self.partition.metrics.lookups.add((self.probe.lookups - before) as usize);
        Ok(verdicts)
    }

    /// Writes down the keys for which there was no room.
    fn spill_unsettled(&self, shared: &Shared, unsettled: &Unsettled, (source, verdicts): (&SourceRows, &[Verdict])) -> Result<()> {
        if !verdicts.contains(&Verdict::Unsettled) {
            return Ok(());
        }
        let failed =
            |error: arrow::error::ArrowError| Error::internal("the keys of a batch could not be taken out of it").with_source(error);
        let schema = key_schema(shared);
        let normalise = |(array, field): (&ArrayRef, &Arc<Field>)| normalize_array(array, field.data_type());
        let columns = source.key_columns().iter().zip(schema.fields()).map(normalise).collect::<Result<Vec<_>>>()?;
        let keys = RecordBatch::try_new(schema, columns).map_err(failed)?;
        let keep: BooleanArray = verdicts.iter().map(|verdict| Some(*verdict == Verdict::Unsettled)).collect();
        unsettled.push(shared, filter_record_batch(&keys, &keep).map_err(failed)?)
    }

    /// Emits the changed rows, unless keys are known to be at fault.
    fn emit(&mut self, source: &SourceRows, verdicts: &[Verdict], fingerprints: &[u128]) -> Result<()> {
        if self.partition.find_duplicates(source, verdicts) {
            return Ok(());
        }
        let mut out = Vec::new();
        let pushed = self.emitter.push(source, verdicts, fingerprints, &mut out)?;
        pushed.map_err(|large| self.partition.too_large(&large))?;
        self.ready.extend(out);
        Ok(())
    }

    fn count(&mut self, source: &SourceRows, verdicts: &[Verdict]) -> Result<()> {
        let count = |wanted: Verdict| verdicts.iter().filter(|v| **v == wanted).count();
        let (updated, unchanged) = (count(Verdict::Updated), count(Verdict::Unchanged));
        let created = count(Verdict::Created) + count(Verdict::Unsettled);
        self.counts.created += created as u64;
        self.counts.updated += updated as u64;
        self.counts.unchanged += unchanged as u64;
        let metrics = &self.partition.metrics;
        metrics.created.add(created);
        metrics.updated.add(updated);
        metrics.unchanged.add(unchanged);
        self.partition.outside.as_ref().map_or(Ok(()), |outside| outside.note(source, verdicts))
    }

    /// The source has ended: every partition is done, but the last one settles what is left.
    fn arrive(&mut self, stage: &mut Stage) -> Result<()> {
        let Stage::Reading(loaded) = std::mem::replace(stage, Stage::Ended) else { return Ok(()) };
        let (running, counts) = (Arc::clone(&self.partition.running), std::mem::take(&mut self.counts));
        running.note(self.probe.origins.take());
        let Some(loaded) = running.arrive(loaded, counts, self.partition.partitions) else { return self.flush() };
        if running.findings().has_nulls() {
            return running.findings().error(&self.partition.spec.table).map_or(Ok(()), Err);
        }
        let shared = Arc::clone(&loaded.shared);
        let settle = Settle::try_new(Arc::clone(&shared), &loaded, self.partition.outside.clone())?;
        *stage = Stage::Settling(Box::new(settle), shared);
        Ok(())
    }

    fn conclude(&mut self, stage: &mut Stage) -> Result<()> {
        let Stage::Settling(settle, shared) = std::mem::replace(stage, Stage::Ended) else { return Ok(()) };
        self.flush()?;
        self.partition.running.note(self.probe.origins.take());
        let Partition { running, set, metrics, .. } = &self.partition;
        metrics.peak_memory.set_max(usize::try_from(shared.memory.peak()).unwrap_or(usize::MAX));
        running.conclude(self.counts, *settle, &shared, set)
    }

    fn flush(&mut self) -> Result<()> {
        let mut out = Vec::new();
        if self.partition.running.findings().is_empty() {
            self.emitter.finish(&mut out)?;
        }
        self.ready.extend(out);
        Ok(())
    }
}

/// The fingerprints of spilled rows.
fn stored_fingerprints(batch: &RecordBatch) -> Result<Vec<u128>> {
    let half = |name: &str| {
        let column = batch.column_by_name(name).and_then(|column| column.as_primitive_opt::<Int64Type>());
        column.ok_or_else(|| Error::internal(format!("a spilled batch has no Int64 column {name:?}")))
    };
    let halves = half(FP_HI)?.values().iter().zip(half(FP_LO)?.values());
    Ok(halves.map(|(high, low)| join_fingerprint(*high, *low)).collect())
}

impl Partition {
    /// The columns of the diff, by name.
    fn columns(&self, batch: &RecordBatch) -> Result<SourceRows> {
        self.columns_of(batch, &self.spec.tracked, self.spec.source_ordinals.as_deref())
    }

    /// [`Self::columns`] of rows that were spilled, or of their keys only.
    fn spilled_columns(&self, batch: &RecordBatch, is_row: bool) -> Result<SourceRows> {
        if is_row { self.columns_of(batch, &self.spec.tracked, Some(SRC)) } else { self.columns_of(batch, &[], None) }
    }

    fn columns_of(&self, batch: &RecordBatch, tracked: &[Field], ordinals: Option<&str>) -> Result<SourceRows> {
        let column = |name: &str| {
            let missing = || Error::internal(format!("table {:?}: the source's plan does not return column {name:?}", self.spec.table));
            batch.column_by_name(name).cloned().ok_or_else(missing)
        };
        let fields = self.spec.key.iter().chain(tracked);
        let columns: Vec<ArrayRef> = fields.map(|field| column(field.name())).collect::<Result<_>>()?;
        let ordinals = ordinals.map(column).transpose()?;
        Ok(SourceRows { columns, keys: self.spec.key.len(), ordinals, rows: batch.num_rows() })
    }

    fn fingerprints(&self, source: &SourceRows) -> Result<Vec<u128>> {
        let mut fingerprints = Vec::with_capacity(source.rows);
        let place = |row| format!("table {:?}, key {}", self.spec.table, render_key(&self.spec.key, source.key_columns(), row));
        let computed = self.spec.fingerprinter.try_fingerprint(source.tracked_columns(), source.rows, &mut fingerprints);
        computed.map_err(|error| error.into_error(place))?;
        Ok(fingerprints)
    }

    /// Notes null keys; whether the source is known to have any, so that nothing but counting them is left to do.
    fn find_nulls(&self, source: &SourceRows) -> Result<bool> {
        let nulls = self.reader.null_keys(source.key_columns())?;
        let mut findings = self.running.findings();
        for null in nulls {
            let name = self.spec.key.get(null.column).map_or("", |field| field.name());
            findings.null(name, || render_key(&self.spec.key, source.key_columns(), null.row));
        }
        Ok(findings.has_nulls())
    }

    /// Notes duplicate keys; whether the source is known to have any, so that nothing is emitted any more.
    fn find_duplicates(&self, source: &SourceRows, verdicts: &[Verdict]) -> bool {
        let mut findings = self.running.findings();
        for (row, _) in verdicts.iter().enumerate().filter(|(_, v)| **v == Verdict::Duplicate) {
            findings.duplicate(render_distinct_key(&self.spec.key, source.key_columns(), row));
        }
        !findings.is_empty()
    }

    /// The source's own error, with its cause kept: whether it is worth another try depends on that.
    fn unreadable(&self, error: DataFusionError) -> Error {
        let what =
            format!("table {:?}: reading the source failed; nothing was published. Remedy: mend the source and run again", self.spec.table);
        Error::from_datafusion(error, ErrorCode::CaptureFailed, what)
    }

    fn too_large(&self, large: &TooLarge) -> Error {
        let name = self.spec.key.iter().chain(&self.spec.tracked).nth(large.column).map_or("", |field| field.name());
        let keys = large.columns.get(..self.spec.key.len()).unwrap_or_default();
        Error::new(
            ErrorCode::ValueTooLarge,
            format!(
                "table {:?}: the value of column {name:?} with key {} is larger than 2,147,483,647 bytes. Remedy: split the value in the source",
                self.spec.table,
                render_key(&self.spec.key, keys, large.row)
            ),
        )
    }
}
