//! What is left when the source has been read to its end: buckets to diff, new keys to compare with one another, dead rows.
//!
//! ```text
//! whole baseline in memory ─► its dead rows ─► buckets of unsettled keys ─┐
//! buckets ─► load one ─► its source rows ─► its dead rows ─► unsettled keys ─┤
//!             └ refused: cut it smaller, by another hash                     └─► next bucket
//! ```
//!
//! Exactly the diff of the in-memory path, bucket by bucket: all rows of a key are in one bucket. One task does this, the
//! one that reads the last row of the source: a task that waited for the others would wait forever where partitions are
//! read one after another. Memory: two buckets, one of which is loaded while the rows of the other are classified, and what
//! goes to disk.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use roaring::RoaringTreemap;

use super::columns::{change_schema_of, index_scan_schema};
use super::diff::Differ;
use super::findings::Findings;
use super::load::{Load, Mode, Shared, empty, load_rows};
use super::outside::Outside;
use super::spill::{Buckets, Cut, Spilled, read_side, unread};
use super::state::Loaded;
use crate::error::{Error, ErrorCode, Result};
use crate::exec::equality::render_distinct_key;

/// Buckets that unsettled keys and a bucket that is too large are cut into.
const CUTS: usize = 16;
/// Beyond so many cuts of a bucket, memory does not suffice for a few rows.
const LEVELS: usize = 8;

/// Something that waits to be settled.
enum Work {
    /// A bucket of the baseline with its bucket of the source.
    Diff { index: Option<Spilled>, rows: Option<Spilled>, level: usize },
    /// New keys whose rows were emitted, to be compared with one another.
    Keys { keys: Spilled, level: usize },
}

/// A bucket that was opened, or for which there is no room.
enum Opened {
    Bucket(Current),
    Refused(Work, Error),
}

/// The bucket at hand.
struct Current {
    differ: Arc<dyn Differ>,
    rows: SendableRecordBatchStream,
    is_diff: bool,
    unsettled: Unsettled,
}

/// New keys for which there was no room, on their way to disk.
pub(crate) struct Unsettled(OnceLock<Buckets>, usize);

impl Unsettled {
    /// Of a bucket of `level`, or of the whole diff (level 0).
    pub(crate) fn new(level: usize) -> Self {
        Self(OnceLock::new(), level)
    }

    /// Adds keys: batches with the key columns, normalised.
    pub(crate) fn push(&self, shared: &Shared, keys: RecordBatch) -> Result<()> {
        self.0.get_or_init(|| shared.buckets(Cut::new(key_schema(shared), CUTS, self.1))).push(keys)
    }

    fn is_empty(&self) -> bool {
        self.0.get().is_none()
    }

    fn finish(&self) -> Result<Vec<Work>> {
        let files = self.0.get().map_or_else(|| Ok(Vec::new()), Buckets::finish)?;
        Ok(files.into_iter().flatten().map(|keys| Work::Keys { keys, level: self.1 + 1 }).collect())
    }
}

/// The key columns of the change set.
pub(crate) fn key_schema(shared: &Shared) -> SchemaRef {
    let fields = change_schema_of(&shared.spec.key, &[]).fields().iter().take(shared.spec.key.len()).cloned().collect::<Vec<_>>();
    Arc::new(Schema::new(fields))
}

/// Rows to be classified by `differ`.
pub(crate) struct Rows<'a> {
    pub(crate) batch: RecordBatch,
    pub(crate) differ: &'a dyn Differ,
    /// Rows of the source, to be counted and emitted; else keys of rows that were.
    pub(crate) is_diff: bool,
    pub(crate) unsettled: &'a Unsettled,
}

/// The work that is left, and what it has found.
pub(crate) struct Settle {
    shared: Arc<Shared>,
    outside: Option<Arc<Outside>>,
    /// Diffs that are done, whose new keys were not compared with the rows outside.
    done: Vec<Arc<dyn Differ>>,
    works: Vec<Work>,
    current: Option<Current>,
    /// The bucket after it, which is loaded meanwhile.
    ahead: Option<SpawnedTask<Result<Opened>>>,
    pub(crate) deleted: u64,
    pub(crate) dead: BTreeMap<u32, RoaringTreemap>,
    /// Duplicates among the keys that were kept in order.
    pub(crate) findings: Findings,
}

impl Settle {
    /// Everything that is left; the last partition of the source has ended, and nobody else has `loaded`.
    pub(crate) fn try_new(shared: Arc<Shared>, loaded: &Loaded, outside: Option<Arc<Outside>>) -> Result<Self> {
        let (works, done, findings) = (Vec::new(), Vec::new(), Findings::default());
        let mut settle = Self { shared, outside, done, works, current: None, ahead: None, deleted: 0, dead: BTreeMap::new(), findings };
        match &loaded.mode {
            Mode::Memory(differ) => {
                settle.take_dead(differ.as_ref());
                settle.take_ordered(differ.as_ref(), &loaded.unsettled)?;
                settle.done.extend(settle.outside.as_ref().map(|_| Arc::clone(differ)));
            }
            Mode::Buckets { index, source } => {
                let works = index.iter().cloned().zip(source.finish()?).map(|(index, rows)| Work::Diff { index, rows, level: 1 });
                settle.works = works.filter(|work| !matches!(work, Work::Diff { index: None, rows: None, .. })).collect();
            }
        }
        settle.works.extend(loaded.unsettled.finish()?);
        Ok(settle)
    }

    /// The next rows to classify; `None` when everything is settled.
    pub(crate) async fn next(&mut self) -> Result<Option<Rows<'_>>> {
        let batch = loop {
            while let Some(differ) = self.done.pop() {
                if let Some(outside) = &self.outside {
                    outside.check(differ.as_ref()).await?;
                }
            }
            if let Some(current) = &mut self.current {
                match current.rows.next().await {
                    Some(batch) => break batch.map_err(|error| unread(&self.shared.spec.table, error))?,
                    None => {
                        self.close()?;
                        continue;
                    }
                }
            }
            if !self.open().await? {
                return Ok(None);
            }
        };
        let current = self.current.as_ref().ok_or_else(|| Error::internal("rows of no bucket"))?;
        Ok(Some(Rows { batch, differ: current.differ.as_ref(), is_diff: current.is_diff, unsettled: &current.unsettled }))
    }

    fn close(&mut self) -> Result<()> {
        let Some(Current { differ, is_diff, unsettled, .. }) = self.current.take() else { return Ok(()) };
        if is_diff {
            self.take_dead(differ.as_ref());
        }
        self.take_ordered(differ.as_ref(), &unsettled)?;
        self.done.extend(self.outside.as_ref().map(|_| differ));
        self.works.extend(unsettled.finish()?);
        Ok(())
    }

    /// Compares the new keys that were kept in order with one another, and sends them after those that are not settled.
    fn take_ordered(&mut self, differ: &dyn Differ, unsettled: &Unsettled) -> Result<()> {
        let (key, findings) = (self.shared.spec.key.as_slice(), &mut self.findings);
        differ.late_duplicates(!unsettled.is_empty(), &mut |keys| {
            (0..keys.len()).for_each(|row| findings.duplicate(render_distinct_key(key, std::slice::from_ref(&keys), row)));
        })?;
        if unsettled.is_empty() {
            return Ok(());
        }
        let schema = key_schema(&self.shared);
        differ.ordered_keys(&mut |keys| {
            let batch = RecordBatch::try_new(Arc::clone(&schema), vec![keys]);
            let batch = batch.map_err(|error| Error::internal("stored keys make no batch").with_source(error))?;
            unsettled.push(&self.shared, batch)
        })
    }

    fn take_dead(&mut self, differ: &dyn Differ) {
        let (deleted, dead) = differ.dead(self.shared.spec.keeps_missing);
        self.deleted += deleted;
        for (file, rows) in dead {
            *self.dead.entry(file).or_default() |= rows;
        }
    }

    /// Opens the next bucket, or cuts it; `false` when there is none.
    async fn open(&mut self) -> Result<bool> {
        let work = match self.ahead.take() {
            Some(ahead) => match joined(ahead).await? {
                Opened::Bucket(bucket) => {
                    self.current = Some(bucket);
                    self.open_ahead();
                    return Ok(true);
                }
                // There may be room now that no other bucket is open.
                Opened::Refused(work, _) => work,
            },
            None => match self.works.pop() {
                Some(work) => work,
                None => return Ok(false),
            },
        };
        match open(&self.shared, work).await? {
            Opened::Bucket(bucket) => {
                self.current = Some(bucket);
                self.open_ahead();
            }
            Opened::Refused(Work::Diff { index, rows, level }, _) if level <= LEVELS => {
                self.cut(index.as_ref(), rows.as_ref(), level).await?
            }
            Opened::Refused(_, error) => return Err(error),
        }
        Ok(true)
    }

    /// Loads the next bucket while the rows of this one are classified.
    fn open_ahead(&mut self) {
        if let Some(work) = self.works.pop_if(|work| matches!(work, Work::Diff { .. })) {
            let shared = Arc::clone(&self.shared);
            self.ahead = Some(SpawnedTask::spawn(async move { open(&shared, work).await }));
        }
    }

    /// Cuts a bucket that is too large, both sides alike.
    async fn cut(&mut self, index: Option<&Spilled>, rows: Option<&Spilled>, level: usize) -> Result<()> {
        let mut sides = Vec::new();
        for (side, schema) in [(index, index_scan_schema(&self.shared.spec.key)), (rows, change_schema(&self.shared))] {
            let mut batches = read_side(side, &schema, &self.shared.spiller)?;
            let buckets = self.shared.buckets(Cut::new(schema, CUTS, level));
            while let Some(batch) = batches.next().await {
                buckets.push(batch.map_err(|error| unread(&self.shared.spec.table, error))?)?;
            }
            sides.push(buckets.finish()?);
        }
        let (rows, index) = (sides.pop().unwrap_or_default(), sides.pop().unwrap_or_default());
        for (index, rows) in index.into_iter().zip(rows).filter(|(index, rows)| index.is_some() || rows.is_some()) {
            self.works.push(Work::Diff { index, rows, level: level + 1 });
        }
        Ok(())
    }
}

/// Opens a bucket: loads its side of the baseline.
async fn open(shared: &Arc<Shared>, work: Work) -> Result<Opened> {
    let (index, rows, level) = match work {
        Work::Keys { level, .. } if level > LEVELS => return Err(too_small(shared)),
        Work::Keys { keys, level } => {
            let (differ, rows) = (empty(shared, 0)?, keys.read(&shared.spiller)?);
            return Ok(Opened::Bucket(Current { differ, rows, is_diff: false, unsettled: Unsettled::new(level) }));
        }
        Work::Diff { index, rows, level } => (index, rows, level),
    };
    let load = Load {
        rows: index.as_ref().map_or(0, |index| index.rows),
        source_rows: rows.as_ref().map_or(0, |rows| rows.rows),
        is_in_file_order: false,
    };
    let batches = read_side(index.as_ref(), &index_scan_schema(&shared.spec.key), &shared.spiller)?;
    match load_rows(shared, batches, load).await {
        Err(error) if error.code() == ErrorCode::ResourcesExhausted => Ok(Opened::Refused(Work::Diff { index, rows, level }, error)),
        loaded => {
            let differ = loaded?;
            let rows = read_side(rows.as_ref(), &change_schema(shared), &shared.spiller)?;
            Ok(Opened::Bucket(Current { differ, rows, is_diff: true, unsettled: Unsettled::new(level) }))
        }
    }
}

async fn joined(task: SpawnedTask<Result<Opened>>) -> Result<Opened> {
    task.join_unwind().await.map_err(|error| Error::internal("a bucket's loading ended without a result").with_source(error))?
}

fn change_schema(shared: &Shared) -> SchemaRef {
    change_schema_of(&shared.spec.key, &shared.spec.tracked)
}

fn too_small(shared: &Shared) -> Error {
    Error::new(
        ErrorCode::ResourcesExhausted,
        format!(
            "table {:?}: the memory pool has no room for even a few keys of the diff. Remedy: raise the memory limit of the session",
            shared.spec.table
        ),
    )
}
