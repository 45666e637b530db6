//! One partition of the diff: reads the source, classifies each row, emits the changed ones.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{Stream, StreamExt, stream};

use super::DiffSpec;
use super::diff::{Probe, Verdict};
use super::emit::{Emitter, SourceRows, TooLarge};
use super::load::Loaded;
use super::metrics::DiffMetrics;
use super::state::{Counts, RunningDiff};
use crate::error::{Error, ErrorCode, Result};
use crate::exec::equality::{KeyReader, render_distinct_key, render_key};

/// Everything one partition needs.
pub(crate) struct Partition {
    pub(crate) spec: Arc<DiffSpec>,
    pub(crate) reader: Arc<KeyReader>,
    pub(crate) running: Arc<RunningDiff>,
    pub(crate) source: SendableRecordBatchStream,
    pub(crate) schema: SchemaRef,
    pub(crate) batch_rows: usize,
    pub(crate) partitions: usize,
    pub(crate) metrics: DiffMetrics,
    pub(crate) set: ExecutionPlanMetricsSet,
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

fn drive(partition: Partition, loaded: Arc<Loaded>) -> impl Stream<Item = datafusion::error::Result<RecordBatch>> + Send {
    let emitter = Emitter::new(Arc::clone(&partition.schema), partition.batch_rows);
    let worker =
        Worker { partition, loaded, emitter, probe: Probe::default(), counts: Counts::default(), ready: VecDeque::new(), is_done: false };
    stream::try_unfold(worker, |mut worker| async move {
        let batch = worker.next().await?;
        Ok(batch.map(|batch| (batch, worker)))
    })
}

struct Worker {
    partition: Partition,
    loaded: Arc<Loaded>,
    emitter: Emitter,
    probe: Probe,
    counts: Counts,
    ready: VecDeque<RecordBatch>,
    is_done: bool,
}

impl Worker {
    async fn next(&mut self) -> Result<Option<RecordBatch>, DataFusionError> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                self.partition.metrics.baseline.output_rows().add(batch.num_rows());
                return Ok(Some(batch));
            }
            if self.is_done {
                return Ok(None);
            }
            match self.partition.source.next().await {
                Some(batch) => self.take(&batch.map_err(|error| self.partition.unreadable(error))?)?,
                None => self.finish()?,
            }
        }
    }

    fn take(&mut self, batch: &RecordBatch) -> Result<()> {
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
        let keys = self.partition.reader.read(source.key_columns())?;
        let (mut verdicts, before) = (Vec::new(), self.probe.lookups);
        let grown = self.loaded.differ.classify(&mut self.probe, &keys, &fingerprints, &mut verdicts)?;
        self.loaded.grow(grown)?;
        self.partition.metrics.lookups.add((self.probe.lookups - before) as usize);
        self.count(&verdicts);
        if self.partition.find_duplicates(&source, &verdicts) {
            return Ok(());
        }
        let mut out = Vec::new();
        let pushed = self.emitter.push(&source, &verdicts, &fingerprints, &mut out)?;
        pushed.map_err(|large| self.partition.too_large(&large))?;
        self.ready.extend(out);
        Ok(())
    }

    fn count(&mut self, verdicts: &[Verdict]) {
        let count = |wanted: Verdict| verdicts.iter().filter(|v| **v == wanted).count();
        let (created, updated, unchanged) = (count(Verdict::Created), count(Verdict::Updated), count(Verdict::Unchanged));
        self.counts.created += created as u64;
        self.counts.updated += updated as u64;
        self.counts.unchanged += unchanged as u64;
        let metrics = &self.partition.metrics;
        metrics.created.add(created);
        metrics.updated.add(updated);
        metrics.unchanged.add(unchanged);
    }

    fn finish(&mut self) -> Result<()> {
        self.is_done = true;
        let mut out = Vec::new();
        if self.partition.running.findings().is_empty() {
            self.emitter.finish(&mut out)?;
        }
        self.ready.extend(out);
        let Partition { running, partitions, set, metrics, .. } = &self.partition;
        running.end(self.counts, &self.loaded, *partitions, set)?;
        metrics.peak_memory.set_max(usize::try_from(self.loaded.peak()).unwrap_or(usize::MAX));
        Ok(())
    }
}

impl Partition {
    /// The columns of the diff, by name.
    fn columns(&self, batch: &RecordBatch) -> Result<SourceRows> {
        let column = |name: &str| {
            let missing = || Error::internal(format!("table {:?}: the source's plan does not return column {name:?}", self.spec.table));
            batch.column_by_name(name).cloned().ok_or_else(missing)
        };
        let fields = self.spec.key.iter().chain(&self.spec.tracked);
        let columns: Vec<ArrayRef> = fields.map(|field| column(field.name())).collect::<Result<_>>()?;
        let ordinals = self.spec.source_ordinals.as_deref().map(column).transpose()?;
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
        let what = format!(
            "table {:?}: reading the source failed; nothing was published. Remedy: mend the source and run again. Cause",
            self.spec.table
        );
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
