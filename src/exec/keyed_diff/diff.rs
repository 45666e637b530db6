//! The diff itself: keys and fingerprints in, verdicts out. No Arrow plans, no I/O.
//!
//! ```text
//! source row ─► is it the row after the last match? ── yes ─► no hash, no look-up
//!                        │ no: one of the next few? by order, while look-ups are few? by hash?
//!      found ─► seen bit: set before? → Duplicate;  fingerprint equal? → Unchanged : Updated
//!      absent ─► set of new keys:  had it? → Duplicate : room for it? → Created : Unsettled
//! ```
//!
//! Both the seen bits and the set of new keys are shared by all partitions, so a duplicate is found wherever its copies are.
//! Once the set has no room for a key, it takes no further ones: a key is in the set from its first row on, or never.
//! Memory, granted: the baseline, two bits per row of it, and the new keys.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use roaring::RoaringTreemap;

use super::baseline::{Baseline, table_bytes};
use super::bitmap::Bitmap;
use super::memory::Grant;
use super::origin::OriginNotes;
use crate::error::Result;
use crate::exec::equality::{Hashing, KeyBatch, KeyHash, KeyStore, KeyTable, too_many_keys};

/// Rows tried before a look-up: the predicted one, and a few more to step over deleted rows.
const LOOK_AHEAD: usize = 4;
const SHARDS: usize = 64;
/// What an empty table's allocation has beside its buckets.
const TABLE_END: usize = 64;

/// What a source row is, compared with the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Verdict {
    Created,
    Updated,
    Unchanged,
    /// The key was met before.
    Duplicate,
    /// The baseline does not have the key, and neither had any row while the set of new keys had room; whether one had it
    /// since then is settled in the end.
    Unsettled,
}

impl Verdict {
    /// Whether the row is part of the change set.
    #[inline]
    pub(crate) fn is_changed(self) -> bool {
        matches!(self, Self::Created | Self::Updated | Self::Unsettled)
    }
}

/// Where one partition is in the baseline, what it cost, and what it saw of the rows' files.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    next: usize,
    run: usize,
    pub(crate) origins: OriginNotes,
    pub(crate) lookups: u64,
}

/// The diff of one kind of key, behind the kind.
pub(crate) trait Differ: Send + Sync {
    /// One verdict per row.
    fn classify(&self, probe: &mut Probe, keys: &KeyBatch, rows: &SourceValues<'_>, verdicts: &mut Vec<Verdict>) -> Result<()>;
    /// Deleted rows, and the dead rows (replaced or deleted) of each file. Meaningful when every partition has ended.
    fn dead(&self) -> (u64, BTreeMap<u32, RoaringTreemap>);
    /// Whether there is any key that the baseline does not have.
    fn has_new(&self) -> bool;
    /// Adds to `found` those of the first `rows` rows of `keys` whose key is new to the baseline.
    fn find_new(&self, keys: &KeyBatch, rows: usize, found: &mut Vec<usize>);
}

/// What is known of source rows beside their keys.
pub(crate) struct SourceValues<'a> {
    pub(crate) fingerprints: &'a [u128],
    /// The ordinals of their files; `None` for rows that were compared before.
    pub(crate) ordinals: Option<&'a [i32]>,
}

/// The shared state of one diff.
pub(crate) struct Diff<K> {
    baseline: Baseline<K>,
    seen: Bitmap,
    changed: Bitmap,
    new_keys: Vec<Mutex<KeyTable<K>>>,
    hashing: Hashing,
    room: Room,
    is_full: AtomicBool,
}

/// The memory of one diff, and what to do when it is refused.
pub(crate) struct Room {
    pub(crate) grant: Grant,
    /// Whether keys without room may stay unsettled; else they are `RESOURCES_EXHAUSTED`.
    pub(crate) can_spill: bool,
}

impl<K: KeyStore> Diff<K> {
    /// A diff against `baseline` of a source with at least `rows` rows. `room` holds what the baseline has allocated.
    pub(crate) fn try_new(baseline: Baseline<K>, hashing: Hashing, rows: usize, room: Room) -> Result<Self> {
        let bitmaps = baseline.len().div_ceil(64) * size_of::<u64>() * 2;
        room.grant.grow(bitmaps)?;
        let (seen, changed) = (Bitmap::new(baseline.len()), Bitmap::new(baseline.len()));
        // Keys are unique, so at least so many are new: room for them is never too much, and spares growing.
        let new = rows.saturating_sub(baseline.len());
        let of_shard = new / SHARDS + new / SHARDS / 16;
        let expected = (of_shard.saturating_mul(size_of::<u64>()) + table_bytes(of_shard) + TABLE_END).saturating_mul(SHARDS);
        let is_reserved = new > 0 && hashing.kind == KeyHash::Xxh3 && room.grant.grow(expected).is_ok();
        let table = || {
            let mut table = KeyTable::new(hashing);
            if is_reserved {
                table.reserve(of_shard);
            }
            Mutex::new(table)
        };
        let diff = Self {
            baseline,
            seen,
            changed,
            new_keys: (0..SHARDS).map(|_| table()).collect(),
            hashing,
            room,
            is_full: AtomicBool::new(false),
        };
        // Room was asked for before it was taken; what was taken is known now.
        diff.room.grant.resize(diff.allocated())?;
        Ok(diff)
    }

    /// Bytes of everything that is allocated at the start.
    fn allocated(&self) -> usize {
        let shard = |shard: &Mutex<KeyTable<K>>| shard.lock().unwrap_or_else(PoisonError::into_inner).allocated();
        self.baseline.allocated() + self.seen.allocated() + self.changed.allocated() + self.new_keys.iter().map(shard).sum::<usize>()
    }

    #[inline]
    fn predict(&self, next: usize, key: K::Key<'_>) -> Option<usize> {
        (next..next + LOOK_AHEAD).find(|position| self.baseline.is(*position, key))
    }

    fn shard(&self, hash: u64) -> Option<MutexGuard<'_, KeyTable<K>>> {
        // Bits that hashbrown uses neither for the bucket nor for the tag of a shard of this size.
        let shard = self.new_keys.get((hash >> 48) as usize % SHARDS)?;
        Some(shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn insert_new(&self, key: K::Key<'_>, hash: u64) -> Result<Verdict> {
        let Some(mut shard) = self.shard(hash) else { return Err(too_many_keys()) };
        // Read and set under the shard's lock only: no row may insert a key that another one left unsettled.
        if self.is_full.load(Ordering::Relaxed) {
            return Ok(if shard.find(key, hash).is_some() { Verdict::Duplicate } else { Verdict::Unsettled });
        }
        let growth = shard.growth(key);
        if growth > 0 {
            if shard.find(key, hash).is_some() {
                return Ok(Verdict::Duplicate);
            }
            match self.room.grant.grow(growth) {
                Ok(()) => {}
                Err(_) if self.room.can_spill => {
                    self.is_full.store(true, Ordering::Relaxed);
                    return Ok(Verdict::Unsettled);
                }
                Err(error) => return Err(error),
            }
        }
        let before = shard.allocated();
        let (_, is_new) = shard.insert(key, hash).ok_or_else(too_many_keys)?;
        if growth > 0 {
            self.room.grant.shrink(growth.saturating_sub(shard.allocated() - before));
        }
        Ok(if is_new { Verdict::Created } else { Verdict::Duplicate })
    }

    fn known(&self, position: usize, row: usize, (probe, rows): (&mut Probe, &SourceValues<'_>)) -> Verdict {
        probe.next = position + 1;
        if !self.seen.set(position) {
            return Verdict::Duplicate;
        }
        if self.baseline.fingerprint(position).as_ref() == rows.fingerprints.get(row) {
            if let Some(ordinal) = rows.ordinals.and_then(|ordinals| ordinals.get(row)) {
                probe.origins.unchanged(self.baseline.source(position, &mut probe.run), *ordinal);
            }
            return Verdict::Unchanged;
        }
        self.changed.set(position);
        Verdict::Updated
    }
}

impl<K: KeyStore> Differ for Diff<K> {
    fn classify(&self, probe: &mut Probe, keys: &KeyBatch, rows: &SourceValues<'_>, verdicts: &mut Vec<Verdict>) -> Result<()> {
        verdicts.reserve(rows.fingerprints.len());
        for row in 0..rows.fingerprints.len() {
            let key = K::key(keys, row);
            if let Some(position) = self.predict(probe.next, key) {
                verdicts.push(self.known(position, row, (probe, rows)));
                continue;
            }
            let hash = K::hash(key, self.hashing);
            probe.lookups += 1;
            verdicts.push(match self.baseline.find(key, hash) {
                Some(position) => self.known(position, row, (probe, rows)),
                None => self.insert_new(key, hash)?,
            });
        }
        Ok(())
    }

    fn dead(&self) -> (u64, BTreeMap<u32, RoaringTreemap>) {
        self.baseline.dead(&self.seen, &self.changed)
    }

    fn has_new(&self) -> bool {
        self.new_keys.iter().any(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len() > 0)
    }

    fn find_new(&self, keys: &KeyBatch, rows: usize, found: &mut Vec<usize>) {
        found.extend((0..rows).filter(|row| {
            let key = K::key(keys, *row);
            let hash = K::hash(key, self.hashing);
            self.shard(hash).is_some_and(|shard| shard.find(key, hash).is_some())
        }));
    }
}
