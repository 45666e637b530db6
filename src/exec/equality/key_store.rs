//! Exact stores of keys in memory, addressed by position.
//!
//! Memory: 8 bytes per small key; the key's bytes and 8 more otherwise. A hash only pre-filters: equality decides.

use std::ops::Range;

use arrow::array::ArrayRef;
use arrow_schema::DataType;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::key_array::{bytes_array, small_array};
use super::keys::KeyBatch;
use crate::error::Result;

/// How keys are hashed in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyHash {
    /// XXH3 under a secret seed.
    #[default]
    Xxh3,
    /// Every key has the same hash: shows in tests that hashes decide nothing.
    Constant,
}

/// A key hash with its seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hashing {
    pub(crate) kind: KeyHash,
    pub(crate) seed: u64,
}

/// An append-only, exact store of keys, addressed by position.
pub(crate) trait KeyStore: Default + Send + Sync + 'static {
    /// A borrowed key.
    type Key<'a>: Copy;
    /// Key `row` of a batch.
    fn key(batch: &KeyBatch, row: usize) -> Self::Key<'_>;
    /// Whether the key at `position` is `key`.
    fn is(&self, position: usize, key: Self::Key<'_>) -> bool;
    fn get(&self, position: usize) -> Self::Key<'_>;
    fn push(&mut self, key: Self::Key<'_>);
    /// Pushes the first `rows` keys of a batch.
    fn extend(&mut self, batch: &KeyBatch, rows: usize) {
        (0..rows).for_each(|row| self.push(Self::key(batch, row)));
    }
    /// Whether the keys at these positions ascend strictly.
    fn ascend(&self, positions: Range<usize>) -> bool {
        positions.clone().zip(positions.skip(1)).all(|(a, b)| Self::ascends(self.get(a), self.get(b)))
    }
    fn reserve(&mut self, rows: usize);
    /// The keys at these positions as an array of the key's only column, which has type `data_type`.
    fn array(&self, positions: &mut dyn Iterator<Item = usize>, data_type: &DataType) -> Result<ArrayRef>;
    fn hash(key: Self::Key<'_>, hashing: Hashing) -> u64;
    /// Whether `a` comes before `b`, in any total order that agrees with equality.
    fn ascends(a: Self::Key<'_>, b: Self::Key<'_>) -> bool;
    /// Whether the key at `position` comes after `key`.
    fn is_after(&self, position: usize, key: Self::Key<'_>) -> bool;
    fn len(&self) -> usize;
    /// Bytes allocated.
    fn allocated(&self) -> usize;
    /// The most bytes that pushing `key` allocates.
    fn growth(&self, key: Self::Key<'_>) -> usize;
}

/// The most bytes by which a vector of values of `width` bytes grows for `more` values.
#[inline]
fn vec_growth(length: usize, capacity: usize, more: usize, width: usize) -> usize {
    if length + more <= capacity { 0 } else { capacity.max(length + more - capacity).max(8) * width }
}

/// Keys of at most eight bytes.
#[derive(Debug, Default)]
pub(crate) struct SmallKeys(Vec<u64>);

impl KeyStore for SmallKeys {
    type Key<'a> = u64;

    #[inline]
    fn key(batch: &KeyBatch, row: usize) -> u64 {
        batch.word(row)
    }

    #[inline]
    fn is(&self, position: usize, key: u64) -> bool {
        self.0.get(position) == Some(&key)
    }

    fn get(&self, position: usize) -> u64 {
        self.0.get(position).copied().unwrap_or_default()
    }

    fn push(&mut self, key: u64) {
        self.0.push(key);
    }

    fn extend(&mut self, batch: &KeyBatch, rows: usize) {
        match batch.words().and_then(|words| words.get(..rows)) {
            Some(words) => self.0.extend_from_slice(words),
            None => self.0.extend((0..rows).map(|row| batch.word(row))),
        }
    }

    fn ascend(&self, positions: Range<usize>) -> bool {
        // A column of comparisons without an early end is what the compiler makes wide.
        let keys = self.0.get(positions).unwrap_or_default();
        keys.iter().zip(keys.iter().skip(1)).fold(true, |all, (a, b)| all & (a < b))
    }

    fn reserve(&mut self, rows: usize) {
        self.0.reserve(rows);
    }

    fn array(&self, positions: &mut dyn Iterator<Item = usize>, data_type: &DataType) -> Result<ArrayRef> {
        small_array(positions.map(|position| self.get(position)), data_type)
    }

    #[inline]
    fn hash(key: u64, hashing: Hashing) -> u64 {
        match hashing.kind {
            KeyHash::Xxh3 => xxh3_64_with_seed(&key.to_le_bytes(), hashing.seed),
            KeyHash::Constant => 0,
        }
    }

    #[inline]
    fn ascends(a: u64, b: u64) -> bool {
        a < b
    }

    #[inline]
    fn is_after(&self, position: usize, key: u64) -> bool {
        self.get(position) > key
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn allocated(&self) -> usize {
        self.0.capacity() * size_of::<u64>()
    }

    #[inline]
    fn growth(&self, _key: u64) -> usize {
        vec_growth(self.0.len(), self.0.capacity(), 1, size_of::<u64>())
    }
}

/// Keys of any length, in one arena.
#[derive(Debug, Default)]
pub(crate) struct ByteKeys {
    arena: Vec<u8>,
    ends: Vec<usize>,
}

impl KeyStore for ByteKeys {
    type Key<'a> = &'a [u8];

    #[inline]
    fn key(batch: &KeyBatch, row: usize) -> &[u8] {
        batch.bytes(row)
    }

    #[inline]
    fn is(&self, position: usize, key: &[u8]) -> bool {
        position < self.ends.len() && self.get(position) == key
    }

    #[inline]
    fn get(&self, position: usize) -> &[u8] {
        let start = position.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or_default();
        self.ends.get(position).and_then(|end| self.arena.get(start..*end)).unwrap_or_default()
    }

    fn push(&mut self, key: &[u8]) {
        self.arena.extend_from_slice(key);
        self.ends.push(self.arena.len());
    }

    fn reserve(&mut self, rows: usize) {
        self.ends.reserve(rows);
    }

    fn array(&self, positions: &mut dyn Iterator<Item = usize>, data_type: &DataType) -> Result<ArrayRef> {
        bytes_array(positions.map(|position| self.get(position)), data_type)
    }

    #[inline]
    fn hash(key: &[u8], hashing: Hashing) -> u64 {
        match hashing.kind {
            KeyHash::Xxh3 => xxh3_64_with_seed(key, hashing.seed),
            KeyHash::Constant => 0,
        }
    }

    #[inline]
    fn ascends(a: &[u8], b: &[u8]) -> bool {
        a < b
    }

    #[inline]
    fn is_after(&self, position: usize, key: &[u8]) -> bool {
        self.get(position) > key
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn allocated(&self) -> usize {
        self.arena.capacity() + self.ends.capacity() * size_of::<usize>()
    }

    #[inline]
    fn growth(&self, key: &[u8]) -> usize {
        let ends = vec_growth(self.ends.len(), self.ends.capacity(), 1, size_of::<usize>());
        ends + vec_growth(self.arena.len(), self.arena.capacity(), key.len(), 1)
    }
}
