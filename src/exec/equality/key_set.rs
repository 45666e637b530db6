//! Sets of keys: a store with a hash table over its positions.
//!
//! Memory: the store, and five bytes per bucket of the table. Never decides by hash alone.

use arrow::array::{Array, ArrayRef};
use arrow_schema::Field;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::key_store::{ByteKeys, Hashing, KeyHash, KeyStore, SmallKeys};
use super::keys::{KeyBatch, KeyReader, KeyShape};
use crate::error::{Error, ErrorCode, Result};

/// Bytes of the smallest table.
const FIRST_TABLE: usize = 64;

/// Keys with a hash table over their positions.
#[derive(Debug)]
pub(crate) struct KeyTable<K> {
    keys: K,
    table: HashTable<u32>,
    hashing: Hashing,
}

impl<K: KeyStore> KeyTable<K> {
    pub(crate) fn new(hashing: Hashing) -> Self {
        Self { keys: K::default(), table: HashTable::new(), hashing }
    }

    /// The position of `key`, which is new if the flag says so. `None`: no more keys fit.
    #[inline]
    pub(crate) fn insert(&mut self, key: K::Key<'_>, hash: u64) -> Option<(u32, bool)> {
        let Self { keys, table, hashing } = self;
        let is_key = |position: &u32| keys.is(*position as usize, key);
        let rehash = |position: &u32| K::hash(keys.get(*position as usize), *hashing);
        let vacant = match table.entry(hash, is_key, rehash) {
            Entry::Occupied(found) => return Some((*found.get(), false)),
            Entry::Vacant(vacant) => vacant,
        };
        let position = u32::try_from(keys.len()).ok()?;
        vacant.insert(position);
        keys.push(key);
        Some((position, true))
    }

    /// Makes room for `keys` keys.
    pub(crate) fn reserve(&mut self, keys: usize) {
        let Self { keys: stored, table, hashing } = self;
        stored.reserve(keys);
        table.reserve(keys, |position| K::hash(stored.get(*position as usize), *hashing));
    }

    /// The most bytes that inserting `key` allocates; 0 while there is room.
    #[inline]
    pub(crate) fn growth(&self, key: K::Key<'_>) -> usize {
        // A table grows to twice its size.
        let table = if self.table.len() < self.table.capacity() { 0 } else { self.table.allocation_size().max(FIRST_TABLE) * 2 };
        table + self.keys.growth(key)
    }

    pub(crate) fn find(&self, key: K::Key<'_>, hash: u64) -> Option<u32> {
        self.table.find(hash, |position| self.keys.is(*position as usize, key)).copied()
    }

    pub(crate) fn allocated(&self) -> usize {
        self.keys.allocated() + self.table.allocation_size()
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }
}

/// An exact set of keys, in the order of their first insertion. Never decides by hash alone.
#[derive(Debug)]
pub struct KeySet {
    reader: KeyReader,
    tables: Tables,
}

#[derive(Debug)]
enum Tables {
    Small(KeyTable<SmallKeys>),
    Bytes(KeyTable<ByteKeys>),
}

impl KeySet {
    /// An empty set for keys of these fields. `seed` should be unknown to whoever chooses the keys.
    pub fn try_new(fields: &[Field], hash: KeyHash, seed: u64) -> Result<Self> {
        let (reader, hashing) = (KeyReader::try_new(fields)?, Hashing { kind: hash, seed });
        let tables = match reader.shape() {
            KeyShape::Small => Tables::Small(KeyTable::new(hashing)),
            KeyShape::Text | KeyShape::Encoded => Tables::Bytes(KeyTable::new(hashing)),
        };
        Ok(Self { reader, tables })
    }

    /// For each row: the position of its key in the set, and whether the row brought it.
    pub fn insert(&mut self, columns: &[ArrayRef]) -> Result<Vec<(u32, bool)>> {
        let (keys, rows) = (self.reader.read(columns)?, columns.first().map_or(0, |c| c.len()));
        let inserted: Option<Vec<_>> = match &mut self.tables {
            Tables::Small(table) => (0..rows).map(|row| insert_row(table, &keys, row)).collect(),
            Tables::Bytes(table) => (0..rows).map(|row| insert_row(table, &keys, row)).collect(),
        };
        inserted.ok_or_else(too_many_keys)
    }

    /// [`Self::insert`], asking `grant` for the bytes before they are allocated. What is not granted is not inserted.
    pub(crate) fn insert_granted(&mut self, columns: &[ArrayRef], mut grant: impl FnMut(usize) -> Result<()>) -> Result<()> {
        let (keys, rows) = (self.reader.read(columns)?, columns.first().map_or(0, |c| c.len()));
        match &mut self.tables {
            Tables::Small(table) => (0..rows).try_for_each(|row| insert_granted(table, &keys, row, &mut grant)),
            Tables::Bytes(table) => (0..rows).try_for_each(|row| insert_granted(table, &keys, row, &mut grant)),
        }
    }

    /// For each row: the position of its key in the set.
    pub fn find(&self, columns: &[ArrayRef]) -> Result<Vec<Option<u32>>> {
        let (keys, rows) = (self.reader.read(columns)?, columns.first().map_or(0, |c| c.len()));
        Ok(match &self.tables {
            Tables::Small(table) => (0..rows).map(|row| find_row(table, &keys, row)).collect(),
            Tables::Bytes(table) => (0..rows).map(|row| find_row(table, &keys, row)).collect(),
        })
    }

    /// The first column with a null in each row that has one: (row, position among the key columns).
    pub fn nulls(&self, columns: &[ArrayRef]) -> Result<Vec<(usize, usize)>> {
        Ok(self.reader.null_keys(columns)?.into_iter().map(|null| (null.row, null.column)).collect())
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        match &self.tables {
            Tables::Small(table) => table.len(),
            Tables::Bytes(table) => table.len(),
        }
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes allocated, to be reserved in the memory pool.
    pub fn allocated(&self) -> usize {
        match &self.tables {
            Tables::Small(table) => table.allocated(),
            Tables::Bytes(table) => table.allocated(),
        }
    }
}

fn insert_row<K: KeyStore>(table: &mut KeyTable<K>, keys: &KeyBatch, row: usize) -> Option<(u32, bool)> {
    let key = K::key(keys, row);
    let hash = K::hash(key, table.hashing);
    table.insert(key, hash)
}

fn insert_granted<K: KeyStore>(
    table: &mut KeyTable<K>,
    keys: &KeyBatch,
    row: usize,
    grant: &mut impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    let key = K::key(keys, row);
    let hash = K::hash(key, table.hashing);
    if table.find(key, hash).is_some() {
        return Ok(());
    }
    match table.growth(key) {
        0 => {}
        bytes => grant(bytes)?,
    }
    table.insert(key, hash).map(drop).ok_or_else(too_many_keys)
}

fn find_row<K: KeyStore>(table: &KeyTable<K>, keys: &KeyBatch, row: usize) -> Option<u32> {
    let key = K::key(keys, row);
    table.find(key, K::hash(key, table.hashing))
}

pub(crate) fn too_many_keys() -> Error {
    Error::new(ErrorCode::ResourcesExhausted, "more than 4,294,967,295 keys in one operator. Remedy: split the table by a coarser key")
}
