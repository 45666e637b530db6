//! The baseline in memory: every live key of the accepted version with its fingerprint and its position.
//!
//! ```text
//! position      0      1      2      3   …
//! key          [k0]   [k1]   [k2]   [k3]        8 bytes, or the key's bytes and 8 more
//! fingerprint  [f0]   [f1]   [f2]   [f3]        16 bytes
//! runs         file 0, rows 0.. ─┘  file 1, row 7.. ─┘     one entry per stretch without a gap
//! stretches    where keys ascend                a look-up by order, while look-ups are few
//! table        hash → position                  built when they are not; 6 to 12 bytes
//! ```
//!
//! A key that the index held twice would be matched once and its other row be reported as deleted: damage heals.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use roaring::RoaringTreemap;

use super::bitmap::Bitmap;
use super::ordered::{Layers, Stretches};
use super::position_table::{PositionTable, table_bytes};
use crate::error::Result;
use crate::exec::equality::{Hashing, KeyBatch, KeyStore, too_many_keys};

/// The columns of one batch of the index scan, beside the keys.
pub(crate) struct IndexRows<'a> {
    pub(crate) high: &'a [i64],
    pub(crate) low: &'a [i64],
    pub(crate) file: &'a [u32],
    pub(crate) row: &'a [u64],
    /// Ordinals of source files.
    pub(crate) source: &'a [i32],
}

/// A stretch of baseline rows that lie one after another in one file, and come from one source file.
#[derive(Debug, Clone, Copy)]
struct Run {
    start: usize,
    file: u32,
    source: i32,
    row: u64,
}

/// The baseline, immutable once it is loaded.
#[derive(Debug)]
pub(crate) struct Baseline<K> {
    keys: K,
    fingerprints: Vec<u128>,
    runs: Vec<Run>,
    /// The ordinals of source files in the runs.
    sources: BTreeSet<i32>,
    hashing: Hashing,
    stretches: Stretches,
    layers: OnceLock<Option<Layers>>,
    /// Look-ups by order so far.
    ordered: AtomicUsize,
    table: OnceLock<PositionTable>,
}

/// Bytes that a baseline of `rows` rows takes at least; in file order it has few runs, else one per row.
pub(crate) fn estimated_bytes(rows: usize, is_in_file_order: bool) -> usize {
    let run = if is_in_file_order { 0 } else { size_of::<Run>() };
    let row = size_of::<u64>() + size_of::<u128>() + run;
    rows.saturating_mul(row).saturating_add(rows / 4).saturating_add(table_bytes(rows))
}

/// Look-ups by order are given up when more than one in so many rows needed one (and layer).
const ORDERED_SHARE: usize = 8;

impl<K: KeyStore> Baseline<K> {
    pub(crate) fn new(hashing: Hashing) -> Self {
        Self {
            keys: K::default(),
            fingerprints: Vec::new(),
            runs: Vec::new(),
            sources: BTreeSet::new(),
            hashing,
            stretches: Stretches::new(),
            layers: OnceLock::new(),
            ordered: AtomicUsize::new(0),
            table: OnceLock::new(),
        }
    }

    /// Makes room for `rows` rows: in file order they are few runs, else each is its own.
    pub(crate) fn reserve(&mut self, rows: usize, is_in_file_order: bool) {
        if !is_in_file_order {
            self.runs.reserve(rows);
        }
        self.keys.reserve(rows);
        self.fingerprints.reserve(rows);
    }

    pub(crate) fn push(&mut self, keys: &KeyBatch, rows: &IndexRows<'_>) -> Result<()> {
        if u32::try_from(self.keys.len() + rows.row.len()).is_err() {
            return Err(too_many_keys());
        }
        let (first, count) = (self.keys.len(), rows.row.len());
        self.push_runs(first, rows);
        self.keys.extend(keys, count);
        if self.keys.ascend(first..first + count) {
            self.stretches.pushed(&self.keys, first, true);
        } else {
            (first..first + count).for_each(|position| self.stretches.pushed(&self.keys, position, position == first));
        }
        self.fingerprints.extend(rows.high.iter().zip(rows.low).map(|(high, low)| super::columns::join_fingerprint(*high, *low)));
        Ok(())
    }

    /// Notes where the rows lie, the first of which gets position `first`.
    fn push_runs(&mut self, first: usize, rows: &IndexRows<'_>) {
        // A batch of an index scan is one file's; without dead rows, and of one source file, it is one run.
        let is_file = |pair: &[u32]| pair.first() == pair.last();
        let is_next = |pair: &[u64]| matches!(pair, [before, after] if before + 1 == *after);
        let is_source = |pair: &[i32]| pair.first() == pair.last();
        let is_run = rows.file.windows(2).all(is_file) && rows.row.windows(2).all(is_next) && rows.source.windows(2).all(is_source);
        let count = if is_run { 1 } else { rows.row.len() };
        for (at, ((file, row), source)) in rows.file.iter().zip(rows.row).zip(rows.source).take(count).enumerate() {
            let position = first + at;
            let follows = |run: &Run| run.file == *file && run.source == *source && run.row + (position - run.start) as u64 == *row;
            if !self.runs.last().is_some_and(follows) {
                self.runs.push(Run { start: position, file: *file, source: *source, row: *row });
                self.sources.insert(*source);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Bytes allocated, and those that the hash table will take when it is built.
    pub(crate) fn allocated(&self) -> usize {
        let rows = self.keys.allocated() + self.fingerprints.capacity() * size_of::<u128>() + self.runs.capacity() * size_of::<Run>();
        rows + self.stretches.allocated() + table_bytes(self.len())
    }

    #[inline]
    pub(crate) fn is(&self, position: usize, key: K::Key<'_>) -> bool {
        self.keys.is(position, key)
    }

    #[inline]
    pub(crate) fn fingerprint(&self, position: usize) -> Option<u128> {
        self.fingerprints.get(position).copied()
    }

    /// The hash of the key at `position`.
    pub(crate) fn hash(&self, position: usize) -> Option<u64> {
        (position < self.len()).then(|| K::hash(self.keys.get(position), self.hashing))
    }

    /// The ordinals of the source files that rows come from.
    pub(crate) fn sources(&self) -> &BTreeSet<i32> {
        &self.sources
    }

    /// The ordinal of the source file that the row comes from. `hint` is where it was found last.
    #[inline]
    pub(crate) fn source(&self, position: usize, hint: &mut usize) -> i32 {
        let runs = &self.runs;
        let is_in =
            |at: usize| runs.get(at).is_some_and(|run| run.start <= position) && runs.get(at + 1).is_none_or(|next| position < next.start);
        if !is_in(*hint) {
            let next = *hint + 1;
            *hint = if is_in(next) { next } else { runs.partition_point(|run| run.start <= position).saturating_sub(1) };
        }
        runs.get(*hint).map_or(-1, |run| run.source)
    }

    /// The position of `key`: by order while that is cheap, else by hash.
    #[inline]
    pub(crate) fn find(&self, key: K::Key<'_>, hash: u64) -> Option<usize> {
        if self.len() == 0 {
            return None;
        }
        if let Some(table) = self.table.get() {
            return table.find(&self.keys, key, hash);
        }
        if let Some(layers) = self.layers.get_or_init(|| self.stretches.layers(&self.keys)) {
            // Relaxed: the count is an estimate of the work done.
            let done = self.ordered.fetch_add(layers.steps(&self.keys, key), Ordering::Relaxed);
            if done < self.len() / ORDERED_SHARE {
                return layers.find(&self.keys, key);
            }
        }
        self.table.get_or_init(|| self.build()).find(&self.keys, key, hash)
    }

    /// The positions of the first `rows` keys of a batch, or `None` while keys are found by order.
    pub(crate) fn find_all(&self, keys: &KeyBatch, rows: usize) -> Option<Vec<usize>> {
        let table = self.table.get()?;
        let hashes: Vec<u64> = (0..rows).map(|row| K::hash(K::key(keys, row), self.hashing)).collect();
        let mut positions = Vec::with_capacity(rows);
        table.find_all(&self.keys, keys, &hashes, &mut positions);
        Some(positions)
    }

    fn build(&self) -> PositionTable {
        // `push` keeps the number of rows below 2^32.
        PositionTable::build(self.len(), |position| K::hash(self.keys.get(position), self.hashing))
    }

    /// The rows that `seen` does not have, unless those stay, and those that `changed` has, as rows of their files; and how
    /// many go because they are not seen.
    pub(crate) fn dead(&self, seen: &Bitmap, changed: &Bitmap, keeps_missing: bool) -> (u64, BTreeMap<u32, RoaringTreemap>) {
        let (mut deleted, mut dead) = (0, BTreeMap::<u32, RoaringTreemap>::new());
        let ends = self.runs.iter().skip(1).map(|run| run.start).chain([self.len()]);
        for (run, end) in self.runs.iter().zip(ends) {
            let mut open: Option<usize> = None;
            for position in run.start..=end {
                let is_seen = position < end && (keeps_missing || seen.get(position));
                let is_dead = position < end && (!is_seen || changed.get(position));
                deleted += u64::from(position < end && !is_seen);
                match (open, is_dead) {
                    (None, true) => open = Some(position),
                    (Some(first), false) => {
                        let row = |position: usize| run.row + (position - run.start) as u64;
                        dead.entry(run.file).or_default().insert_range(row(first)..row(position));
                        open = None;
                    }
                    _ => {}
                }
            }
        }
        (deleted, dead)
    }
}
