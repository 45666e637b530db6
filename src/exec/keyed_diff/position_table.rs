//! A hash table from keys to positions, made for looking up many keys at once.
//!
//! ```text
//! hash   [ upper bits: home slot │ … │ lower bits: tag ]          slot   [ tag │ position + 1 ]   0: empty
//! 64 keys at a time:   touch the home slots ─► walk to an equal tag ─► touch those keys ─► compare
//! ```
//!
//! In a large table each step is a cache miss, and a look-up that takes its steps one after another waits for each. Here
//! every step is a loop over many keys whose loads do not depend on one another, so that the processor waits for several
//! at once. Open addressing, at most two thirds full.
//! Memory: four bytes per slot, six to twelve per key. Never decides by a hash: keys are compared.

use std::hint::black_box;

use crate::exec::equality::{KeyBatch, KeyStore};

/// Keys that are looked up together.
const BLOCK: usize = 64;
/// The position of a key that is not there.
pub(crate) const ABSENT: usize = usize::MAX;

/// The table; immutable once it is built.
#[derive(Debug)]
pub(crate) struct PositionTable {
    slots: Vec<u32>,
    /// How far a hash is shifted to give its home slot.
    shift: u32,
    /// Bits of a slot that hold the position.
    bits: u32,
}

/// Slots of a table of `rows` keys, fewer than 2^32.
fn slots_for(rows: usize) -> usize {
    rows.saturating_add(rows / 2 + 1).checked_next_power_of_two().unwrap_or(usize::MAX)
}

/// Bytes of a table of `rows` keys.
pub(crate) fn table_bytes(rows: usize) -> usize {
    if rows == 0 { 0 } else { slots_for(rows).saturating_mul(size_of::<u32>()) }
}

impl PositionTable {
    /// The positions of `rows` distinct keys, fewer than 2^32.
    pub(crate) fn build(rows: usize, hash: impl Fn(usize) -> u64) -> Self {
        let slots = slots_for(rows);
        let (shift, bits) = (64 - slots.trailing_zeros(), usize::BITS - rows.leading_zeros());
        let mut table = Self { slots: vec![0; slots], shift: shift.min(63), bits };
        let mut hashes = Vec::with_capacity(BLOCK);
        for first in (0..rows).step_by(BLOCK) {
            hashes.clear();
            hashes.extend((first..rows.min(first + BLOCK)).map(&hash));
            table.touch(&hashes);
            for (at, hash) in hashes.iter().enumerate() {
                table.insert(*hash, first + at);
            }
        }
        table
    }

    fn insert(&mut self, hash: u64, position: usize) {
        let entry = self.tag(hash) | (position as u32 + 1);
        let mut slot = self.home(hash);
        while self.slots.get(slot).is_some_and(|taken| *taken != 0) {
            slot = self.next(slot);
        }
        if let Some(free) = self.slots.get_mut(slot) {
            *free = entry;
        }
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        (hash >> self.shift) as usize & (self.slots.len() - 1)
    }

    #[inline]
    fn next(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// The bits of a slot above those of the position. Truncation is meant: a position of 32 bits leaves none.
    #[inline]
    fn tag(&self, hash: u64) -> u32 {
        ((hash & 0xffff_ffff) << self.bits) as u32
    }

    #[inline]
    fn position(&self, entry: u32) -> usize {
        (u64::from(entry) & ((1_u64 << self.bits) - 1)) as usize - 1
    }

    /// The first entry from `slot` on that has the tag, and its slot.
    #[inline]
    fn walk(&self, mut slot: usize, tag: u32) -> Option<(usize, usize)> {
        loop {
            let entry = self.slots.get(slot).copied().unwrap_or_default();
            if entry == 0 {
                return None;
            }
            if u64::from(entry ^ tag) >> self.bits == 0 {
                return Some((slot, self.position(entry)));
            }
            slot = self.next(slot);
        }
    }

    /// Reads the home slots, so that what comes next finds them near.
    fn touch(&self, hashes: &[u64]) {
        black_box(hashes.iter().fold(0, |all, hash| all | self.slots.get(self.home(*hash)).copied().unwrap_or_default()));
    }

    /// The position of a key.
    pub(crate) fn find<K: KeyStore>(&self, keys: &K, key: K::Key<'_>, hash: u64) -> Option<usize> {
        self.find_from(self.home(hash), keys, (key, hash))
    }

    fn find_from<K: KeyStore>(&self, slot: usize, keys: &K, (key, hash): (K::Key<'_>, u64)) -> Option<usize> {
        let (tag, mut slot) = (self.tag(hash), slot);
        while let Some((found, position)) = self.walk(slot, tag) {
            if keys.is(position, key) {
                return Some(position);
            }
            slot = self.next(found);
        }
        None
    }

    /// Adds the position of each key of the batch, or [`ABSENT`], to `positions`; one hash per key.
    pub(crate) fn find_all<K: KeyStore>(&self, keys: &K, batch: &KeyBatch, hashes: &[u64], positions: &mut Vec<usize>) {
        let mut found: Vec<Option<(usize, usize)>> = Vec::with_capacity(BLOCK);
        for (block, hashes) in hashes.chunks(BLOCK).enumerate() {
            let first = block * BLOCK;
            self.touch(hashes);
            found.clear();
            found.extend(hashes.iter().map(|hash| self.walk(self.home(*hash), self.tag(*hash))));
            let is_key = |(at, found): (usize, &Option<(usize, usize)>)| {
                found.is_some_and(|(_, position)| keys.is(position, K::key(batch, first + at)))
            };
            let mut equal = [false; BLOCK];
            equal.iter_mut().zip(found.iter().enumerate()).for_each(|(equal, found)| *equal = is_key(found));
            for (at, ((found, equal), hash)) in found.iter().zip(equal).zip(hashes).enumerate() {
                positions.push(match found {
                    None => ABSENT,
                    Some((_, position)) if equal => *position,
                    // Another key with the same tag.
                    Some((slot, _)) => self.find_from(self.next(*slot), keys, (K::key(batch, first + at), *hash)).unwrap_or(ABSENT),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array};
    use arrow_schema::{DataType, Field};

    use super::*;
    use crate::exec::equality::{Hashing, KeyHash, KeyReader, SmallKeys};

    #[test]
    fn every_key_is_found_at_its_position_and_no_other() {
        let reader = KeyReader::try_new(&[Field::new("id", DataType::Int64, false)]).unwrap();
        let read = |ids: Vec<i64>| reader.read(&[Arc::new(Int64Array::from(ids)) as ArrayRef]).unwrap();
        for rows in [1_usize, 2, 3, 63, 64, 65, 1_000, 40_000] {
            for kind in [KeyHash::Xxh3, KeyHash::Constant] {
                if kind == KeyHash::Constant && rows > 1_000 {
                    continue;
                }
                let hashing = Hashing { kind, seed: 7 };
                let mut keys = SmallKeys::default();
                keys.extend(&read((0..rows as i64).map(|i| i * 3).collect()), rows);
                let table = PositionTable::build(rows, |position| SmallKeys::hash(keys.get(position), hashing));
                let wanted: Vec<i64> = (0..3 * rows as i64 + 2).rev().collect();
                let batch = read(wanted.clone());
                let hashes: Vec<u64> = (0..wanted.len()).map(|row| SmallKeys::hash(SmallKeys::key(&batch, row), hashing)).collect();
                let mut found = Vec::new();
                table.find_all(&keys, &batch, &hashes, &mut found);
                for ((id, position), hash) in wanted.iter().zip(found).zip(hashes) {
                    let expected = (id % 3 == 0 && *id < 3 * rows as i64).then_some((id / 3) as usize);
                    assert_eq!(position, expected.unwrap_or(ABSENT), "{id} of {rows}");
                    assert_eq!(table.find(&keys, *id as u64, hash), expected);
                }
            }
        }
    }
}
