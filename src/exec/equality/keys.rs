//! Keys of a batch, and exact stores of keys in memory.
//!
//! ```text
//! one key column of ≤ 8 bytes   → u64 per key              (integers, dates, times, floats, small decimals, booleans)
//! one text or binary column     → its bytes in an arena
//! anything else                 → canonical bytes in an arena
//! ```
//!
//! Memory: 8 bytes per small key; the key's bytes and 8 more otherwise. A hash only pre-filters: equality decides.

use arrow::array::{Array, ArrayRef};
use arrow::buffer::ScalarBuffer;
use arrow_schema::{DataType, Field};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::column::Column;
use super::encoder::{CanonicalEncoder, EncodedRows, bind, check_types};
use crate::error::{Error, ErrorCode, Result};
use crate::spec::normalize_type;

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

/// Which store fits a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyShape {
    Small,
    Text,
    Encoded,
}

/// Reads keys out of batches.
#[derive(Debug, Clone)]
pub(crate) struct KeyReader {
    fields: Vec<Field>,
    shape: KeyShape,
    encoder: CanonicalEncoder,
}

/// A key value that is null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NullKey {
    pub(crate) row: usize,
    /// Position among the key columns.
    pub(crate) column: usize,
}

/// The keys of one batch.
#[derive(Debug)]
pub(crate) enum KeyBatch {
    Words(ScalarBuffer<u64>),
    Small(Vec<u64>),
    Text(Column),
    Encoded(EncodedRows),
}

impl KeyReader {
    /// A reader of keys with these fields; refuses maps and what Parquet cannot hold.
    pub(crate) fn try_new(fields: &[Field]) -> Result<Self> {
        check_types(fields, true)?;
        let shape = match fields {
            [] => return Err(Error::new(ErrorCode::DefinitionInvalid, "a key needs at least one column. Remedy: write KEY (column, …)")),
            [one] => shape_of(&normalize_type(one.data_type())),
            _ => KeyShape::Encoded,
        };
        Ok(Self { fields: fields.to_vec(), shape, encoder: CanonicalEncoder::try_new(fields)? })
    }

    pub(crate) fn shape(&self) -> KeyShape {
        self.shape
    }

    pub(crate) fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The keys of `columns`, in the order of the fields and in any encoding. Null keys have no defined value.
    pub(crate) fn read(&self, columns: &[ArrayRef]) -> Result<KeyBatch> {
        if self.shape == KeyShape::Encoded {
            return Ok(KeyBatch::Encoded(self.encoder.encode(columns)?));
        }
        let rows = columns.first().map_or(0, |c| c.len());
        let column = bind(&self.fields, columns)?.pop().ok_or_else(|| Error::internal("a key without columns"))?;
        Ok(match (self.shape, column.words()) {
            (KeyShape::Text, _) => KeyBatch::Text(column),
            (_, Some(words)) => KeyBatch::Words(words.clone()),
            (_, None) => KeyBatch::Small((0..rows).map(|row| column.small(row).unwrap_or_default()).collect()),
        })
    }

    /// Every row with a null key part, with the first column at fault.
    pub(crate) fn null_keys(&self, columns: &[ArrayRef]) -> Result<Vec<NullKey>> {
        let bound = bind(&self.fields, columns)?;
        if bound.iter().all(Column::has_no_nulls) {
            return Ok(Vec::new());
        }
        let rows = columns.first().map_or(0, |c| c.len());
        let null = |row| bound.iter().position(|c| c.is_null(row)).map(|column| NullKey { row, column });
        Ok((0..rows).filter_map(null).collect())
    }
}

fn shape_of(data_type: &DataType) -> KeyShape {
    use DataType as T;
    match data_type {
        T::Utf8 | T::Binary | T::FixedSizeBinary(_) => KeyShape::Text,
        T::Boolean | T::Float16 | T::Float32 | T::Float64 | T::Decimal32(..) | T::Decimal64(..) => KeyShape::Small,
        T::Decimal128(..) | T::Decimal256(..) | T::Interval(_) => KeyShape::Encoded,
        t if t.is_integer() || t.is_temporal() => KeyShape::Small,
        _ => KeyShape::Encoded,
    }
}

impl KeyBatch {
    fn word(&self, row: usize) -> u64 {
        match self {
            Self::Words(words) => words.get(row).copied().unwrap_or_default(),
            Self::Small(words) => words.get(row).copied().unwrap_or_default(),
            _ => 0,
        }
    }

    fn bytes(&self, row: usize) -> &[u8] {
        match self {
            Self::Text(column) => column.bytes(row).unwrap_or_default(),
            Self::Encoded(rows) => rows.row(row),
            _ => &[],
        }
    }
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
    fn reserve(&mut self, rows: usize);
    fn hash(key: Self::Key<'_>, hashing: Hashing) -> u64;
    /// Whether `a` comes before `b`, in any total order that agrees with equality.
    fn ascends(a: Self::Key<'_>, b: Self::Key<'_>) -> bool;
    /// Whether the key at `position` comes after `key`.
    fn is_after(&self, position: usize, key: Self::Key<'_>) -> bool;
    fn len(&self) -> usize;
    /// Bytes allocated.
    fn allocated(&self) -> usize;
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

    fn reserve(&mut self, rows: usize) {
        self.0.reserve(rows);
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
}

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

fn find_row<K: KeyStore>(table: &KeyTable<K>, keys: &KeyBatch, row: usize) -> Option<u32> {
    let key = K::key(keys, row);
    table.find(key, K::hash(key, table.hashing))
}

pub(crate) fn too_many_keys() -> Error {
    Error::new(ErrorCode::ResourcesExhausted, "more than 4,294,967,295 keys in one operator. Remedy: split the table by a coarser key")
}
