//! The diff itself: keys and fingerprints in, verdicts out. No Arrow plans, no I/O.
//!
//! ```text
//! source row ─► is it the row after the last match, or after one in another file? ── yes ─► no hash, no look-up
//!                        │ no: by order, while look-ups are few? by hash?
//!      found ─► seen bit: set before? → Duplicate;  fingerprint equal? → Unchanged : Updated
//!      absent ─► next in order? → Created, compared with the other new keys in the end
//!                no ─► set of new keys:  had it? → Duplicate : room for it? → Created : Unsettled
//! ```
//!
//! Both the seen bits and the set of new keys are shared by all partitions, so a duplicate is found wherever its copies are.
//! Once the set has no room for a key, it takes no further ones: a key is in the set from its first row on, or never.
//! Keys that were kept in order then go to where the unsettled ones go.
//! Memory, granted: the baseline, two bits per row of it, and the new keys.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow::array::ArrayRef;
use arrow_schema::DataType;
use roaring::RoaringTreemap;

use super::ascending::{Ascending, Place, equal_keys};
use super::baseline::Baseline;
use super::bitmap::Bitmap;
use super::memory::Grant;
use super::origin::OriginNotes;
use super::places::Places;
use super::position_table::ABSENT;
use crate::error::Result;
use crate::exec::equality::{Hashing, KeyBatch, KeyHash, KeyStore, KeyTable, too_many_keys};

/// Rows tried before a look-up: the predicted one, and a few more to step over deleted rows.
const LOOK_AHEAD: usize = 4;
const SHARDS: usize = 64;
/// Partitions that keep new keys in order without sharing a place for them.
const SLOTS: usize = 64;
/// A shard with so many keys is given room for all that it may expect.
const WORTH_RESERVING: usize = 1024;
/// Keys that are made an array at once.
const LATE_KEYS: usize = 8192;

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
    partition: usize,
    places: Places,
    /// Whether the last batch came in another order than the baseline.
    is_random: bool,
    run: usize,
    pub(crate) origins: OriginNotes,
    pub(crate) lookups: u64,
}

impl Probe {
    /// The probe of partition `partition`.
    pub(crate) fn new(partition: usize) -> Self {
        Self { partition, ..Self::default() }
    }
}

/// The diff of one kind of key, behind the kind.
pub(crate) trait Differ: Send + Sync {
    /// One verdict per row.
    fn classify(&self, probe: &mut Probe, keys: &KeyBatch, rows: &SourceValues<'_>, verdicts: &mut Vec<Verdict>) -> Result<()>;
    /// Deleted rows (none when `keeps_missing`), and the dead rows (replaced or deleted) of each file. Meaningful when every
    /// partition has ended.
    fn dead(&self, keeps_missing: bool) -> (u64, BTreeMap<u32, RoaringTreemap>);
    /// Hands out the new keys in order that are equal to others, each as often as it is there too often: those in the
    /// set, and among themselves unless they are yet to be compared `elsewhere`. For when every partition has ended.
    fn late_duplicates(&self, elsewhere: bool, each: &mut dyn FnMut(ArrayRef)) -> Result<()>;
    /// Hands out the new keys that were kept in order, for a place where they are compared with unsettled ones.
    fn ordered_keys(&self, each: &mut dyn FnMut(ArrayRef) -> Result<()>) -> Result<()>;
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
    /// How many keys a shard of the above may expect.
    expected: usize,
    /// New keys in order, by partition.
    ordered: Vec<Mutex<Ascending<K>>>,
    /// The type of the key's column, where keys can be made an array again; else none is kept in order.
    key_type: Option<DataType>,
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
        // Keys are unique, so at least so many are new.
        let new = rows.saturating_sub(baseline.len());
        let diff = Self {
            baseline,
            seen,
            changed,
            new_keys: (0..SHARDS).map(|_| Mutex::new(KeyTable::new(hashing))).collect(),
            expected: new / SHARDS + new / SHARDS / 16,
            ordered: (0..SLOTS).map(|_| Mutex::new(Ascending::new())).collect(),
            key_type: None,
            hashing,
            room,
            is_full: AtomicBool::new(false),
        };
        // Room was asked for before it was taken; what was taken is known now.
        diff.room.grant.resize(diff.baseline.allocated() + diff.seen.allocated() + diff.changed.allocated())?;
        Ok(diff)
    }

    /// Keeps new keys in order where they come so: keys of one column of type `key_type`.
    pub(crate) fn with_ordered_keys(self, key_type: Option<DataType>) -> Self {
        Self { key_type, ..self }
    }

    fn slot(&self, partition: usize) -> Option<MutexGuard<'_, Ascending<K>>> {
        self.ordered.get(partition % SLOTS).map(lock)
    }

    #[inline]
    fn predict(&self, next: usize, key: K::Key<'_>) -> Option<usize> {
        (next..next + LOOK_AHEAD).find(|position| self.baseline.is(*position, key))
    }

    fn insert_new(&self, key: K::Key<'_>, hash: u64) -> Result<Verdict> {
        let Some(shard) = self.new_keys.get(shard_of(hash)) else { return Err(too_many_keys()) };
        let mut shard = lock(shard);
        // Read and set under the shard's lock only: no row may insert a key that another one left unsettled.
        if self.is_full.load(Ordering::Relaxed) {
            return Ok(if shard.find(key, hash).is_some() { Verdict::Duplicate } else { Verdict::Unsettled });
        }
        if shard.len() == WORTH_RESERVING {
            self.reserve(&mut shard);
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

    /// Makes room for all keys that a shard may expect: many have come already, in no order.
    fn reserve(&self, shard: &mut KeyTable<K>) {
        let more = self.expected.saturating_sub(shard.len());
        let bytes = more.saturating_mul(size_of::<u64>()).saturating_add(set_bytes(self.expected));
        if more > 0 && self.hashing.kind == KeyHash::Xxh3 && self.room.grant.grow(bytes).is_ok() {
            let before = shard.allocated();
            shard.reserve(more);
            self.room.grant.shrink(bytes.saturating_sub(shard.allocated().saturating_sub(before)));
        }
    }

    /// Keeps a new key in order, if it comes in order and there is room.
    #[inline]
    fn push_ordered(&self, ordered: &mut Ascending<K>, key: K::Key<'_>) -> bool {
        // Relaxed: a key more or less that is kept in order after the set is full is compared with the unsettled ones too.
        if self.key_type.is_none() || !ordered.takes(key) || self.is_full.load(Ordering::Relaxed) {
            return false;
        }
        let growth = ordered.growth(key);
        if growth > 0 && self.room.grant.grow(growth).is_err() {
            return false;
        }
        ordered.push(key);
        true
    }

    /// Calls `each` with the keys at `places`, a bounded number at a time.
    fn arrays(&self, lists: &[&Ascending<K>], places: &[Place], each: &mut dyn FnMut(ArrayRef)) -> Result<()> {
        let Some(key_type) = &self.key_type else { return Ok(()) };
        for (at, list) in lists.iter().enumerate() {
            let mut positions = places.iter().filter(|(of, _)| *of == at).map(|(_, position)| *position).peekable();
            if positions.peek().is_some() {
                each(list.keys().array(&mut positions, key_type)?);
            }
        }
        Ok(())
    }

    #[inline]
    fn known(&self, position: usize, is_equal: bool) -> Verdict {
        if !self.seen.set(position) {
            return Verdict::Duplicate;
        }
        if is_equal {
            return Verdict::Unchanged;
        }
        self.changed.set(position);
        Verdict::Updated
    }

    /// Where the first `rows` keys are in the baseline: one after another where they come in its order, which predicts
    /// most of them; else many at once.
    fn positions(&self, probe: &mut Probe, keys: &KeyBatch, rows: usize) -> Vec<usize> {
        if probe.is_random
            && let Some(positions) = self.baseline.find_all(keys, rows)
        {
            let in_order = positions.windows(2).filter(|pair| matches!(pair, [a, b] if a.wrapping_add(1) == *b)).count();
            probe.is_random = in_order < rows / 2;
            probe.lookups += rows as u64;
            positions.iter().rev().find(|position| **position != ABSENT).inspect(|position| probe.places.move_to(**position));
            return positions;
        }
        let (mut positions, before) = (Vec::with_capacity(rows), probe.lookups);
        probe.places.begin();
        for row in 0..rows {
            let key = K::key(keys, row);
            if let Some(position) = self.predict(probe.places.next(), key) {
                probe.places.move_to(position);
                positions.push(position);
                continue;
            }
            positions.push(self.look_up(probe, key));
        }
        probe.is_random = probe.lookups - before > rows as u64 / 2;
        positions
    }

    /// The position of a key that does not follow the last one: at a place that the partition left, or anywhere.
    fn look_up(&self, probe: &mut Probe, key: K::Key<'_>) -> usize {
        let hash = K::hash(key, self.hashing);
        let hash_at = |position| self.baseline.hash(position);
        if probe.places.is_worth_a_try()
            && let Some(position) = probe.places.return_to(hash, |position| self.baseline.is(position, key), hash_at)
        {
            return position;
        }
        probe.lookups += 1;
        let found = self.baseline.find(key, hash);
        found.inspect(|position| probe.places.jump(*position, hash_at)).unwrap_or(ABSENT)
    }

    /// Compares the files that unchanged rows come from with those that the index says.
    fn note_origins(&self, probe: &mut Probe, ordinals: &[i32], (positions, verdicts): (&[usize], &[Verdict])) {
        if probe.origins.has_all(self.baseline.sources(), ordinals) {
            return;
        }
        for ((position, verdict), ordinal) in positions.iter().zip(verdicts).zip(ordinals) {
            if *verdict == Verdict::Unchanged {
                probe.origins.unchanged(self.baseline.source(*position, &mut probe.run), *ordinal);
            }
        }
    }
}

impl<K: KeyStore> Differ for Diff<K> {
    fn classify(&self, probe: &mut Probe, keys: &KeyBatch, rows: &SourceValues<'_>, verdicts: &mut Vec<Verdict>) -> Result<()> {
        let positions = self.positions(probe, keys, rows.fingerprints.len());
        // A loop of its own: setting bits that are shared would have each of its loads wait for the one before.
        let is_equal = |(position, now): (&usize, &u128)| self.baseline.fingerprint(*position) == Some(*now);
        let equal: Vec<bool> = positions.iter().zip(rows.fingerprints).map(is_equal).collect();
        let (first, mut ordered) = (verdicts.len(), None);
        verdicts.reserve(positions.len());
        for (row, (position, is_equal)) in positions.iter().zip(equal).enumerate() {
            if *position != ABSENT {
                verdicts.push(self.known(*position, is_equal));
                continue;
            }
            let key = K::key(keys, row);
            let is_kept = ordered.get_or_insert_with(|| self.slot(probe.partition)).as_mut().is_some_and(|o| self.push_ordered(o, key));
            verdicts.push(if is_kept { Verdict::Created } else { self.insert_new(key, K::hash(key, self.hashing))? });
        }
        if let Some(ordinals) = rows.ordinals {
            self.note_origins(probe, ordinals, (&positions, verdicts.get(first..).unwrap_or_default()));
        }
        Ok(())
    }

    fn dead(&self, keeps_missing: bool) -> (u64, BTreeMap<u32, RoaringTreemap>) {
        self.baseline.dead(&self.seen, &self.changed, keeps_missing)
    }

    fn late_duplicates(&self, elsewhere: bool, each: &mut dyn FnMut(ArrayRef)) -> Result<()> {
        let lists: Vec<_> = self.ordered.iter().map(lock).collect();
        let lists: Vec<&Ascending<K>> = lists.iter().map(|list| &**list).collect();
        let tables: Vec<_> = self.new_keys.iter().map(lock).collect();
        let is_hashed = |key: K::Key<'_>| {
            let hash = K::hash(key, self.hashing);
            tables.get(shard_of(hash)).is_some_and(|table| table.find(key, hash).is_some())
        };
        let has_hashed = tables.iter().any(|table| table.len() > 0);
        let mut late = Late { places: Vec::new(), hand_out: &mut |places| self.arrays(&lists, places, each) };
        if !elsewhere {
            let mut repeated = Ok(());
            // A key that is in the set as well is reported for each of its places in order, below.
            equal_keys(&lists, |(list, position)| {
                let key = lists.get(list).map(|list| list.keys().get(position));
                if repeated.is_ok() && !(has_hashed && key.is_some_and(is_hashed)) {
                    repeated = late.found((list, position));
                }
            });
            repeated?;
        }
        for (at, list) in lists.iter().enumerate().filter(|_| has_hashed) {
            for position in (0..list.keys().len()).filter(|position| is_hashed(list.keys().get(*position))) {
                late.found((at, position))?;
            }
        }
        late.flush()
    }

    fn ordered_keys(&self, each: &mut dyn FnMut(ArrayRef) -> Result<()>) -> Result<()> {
        let Some(key_type) = &self.key_type else { return Ok(()) };
        for list in &self.ordered {
            let list = lock(list);
            for start in (0..list.keys().len()).step_by(LATE_KEYS) {
                each(list.keys().array(&mut (start..list.keys().len().min(start + LATE_KEYS)), key_type)?)?;
            }
        }
        Ok(())
    }

    fn has_new(&self) -> bool {
        self.new_keys.iter().any(|shard| lock(shard).len() > 0) || self.ordered.iter().any(|list| lock(list).keys().len() > 0)
    }

    fn find_new(&self, keys: &KeyBatch, rows: usize, found: &mut Vec<usize>) {
        let tables: Vec<_> = self.new_keys.iter().map(lock).collect();
        let lists: Vec<_> = self.ordered.iter().map(lock).filter(|list| list.keys().len() > 0).collect();
        found.extend((0..rows).filter(|row| {
            let key = K::key(keys, *row);
            let hash = K::hash(key, self.hashing);
            tables.get(shard_of(hash)).is_some_and(|table| table.find(key, hash).is_some()) || lists.iter().any(|list| list.has(key))
        }));
    }
}

/// Bytes of a set of keys, without the keys: a position and a byte per bucket, and what an empty one has.
fn set_bytes(keys: usize) -> usize {
    let buckets = keys.saturating_add(keys / 7 + 1).checked_next_power_of_two().unwrap_or(usize::MAX);
    buckets.saturating_mul(size_of::<u32>() + 1).saturating_add(64)
}

/// Duplicates that were found late, handed out a bounded number at a time.
struct Late<'a> {
    places: Vec<Place>,
    hand_out: &'a mut dyn FnMut(&[Place]) -> Result<()>,
}

impl Late<'_> {
    fn found(&mut self, place: Place) -> Result<()> {
        self.places.push(place);
        if self.places.len() < LATE_KEYS { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<()> {
        let places = std::mem::take(&mut self.places);
        (self.hand_out)(&places)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bits that hashbrown uses neither for the bucket nor for the tag of a shard of this size.
#[inline]
fn shard_of(hash: u64) -> usize {
    (hash >> 48) as usize % SHARDS
}
