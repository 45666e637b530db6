//! The source's rows as the model knows them, how they change, and how they are written down as Arrow batches.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::{concat, take};
use arrow_schema::{Field, Schema, SchemaRef};
use datafusion::datasource::MemTable;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::values::{Ty, canon, encode};

/// A column.
#[derive(Debug, Clone)]
pub struct Column {
    pub name: String,
    pub ty: Ty,
}

/// One row: codes of the key columns, codes of the tracked columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub key: Vec<Option<u32>>,
    pub tracked: Vec<Option<u32>>,
}

/// What the model keeps of a row of one snapshot, as texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// One text per tracked column.
    pub tracked: Vec<String>,
}

/// A snapshot: its batches, and what the model reads in them.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub schema: SchemaRef,
    pub partitions: Vec<Vec<RecordBatch>>,
    /// The rows by the texts of their keys, joined.
    pub rows: BTreeMap<Vec<String>, Seen>,
    /// Rows in the batches; more than `rows` when keys repeat.
    pub count: usize,
}

impl Snapshot {
    pub fn table(&self) -> MemTable {
        MemTable::try_new(Arc::clone(&self.schema), self.partitions.clone()).unwrap()
    }
}

/// The source.
#[derive(Debug)]
pub struct Source {
    pub keys: Vec<Column>,
    pub tracked: Vec<Column>,
    pub rows: Vec<Row>,
    /// Rows that were there once, to come back.
    gone: Vec<Row>,
}

const NAMES: [&str; 6] = ["plain", "Mixed Case", "select", "a.b", "it's", "ünïcode \"q\""];

impl Source {
    /// Random columns and at least `rows` rows.
    pub fn random(rng: &mut SmallRng, rows: usize) -> Self {
        let column = |prefix: &str, number: usize, key: bool, rng: &mut SmallRng| {
            let odd = NAMES[rng.random_range(0..NAMES.len())];
            let name = if rng.random_bool(0.3) { format!("{prefix}{number} {odd}") } else { format!("{prefix}{number}") };
            Column { name, ty: Ty::random(rng, key, 0) }
        };
        let (key_count, tracked_count) = (rng.random_range(1..=2), rng.random_range(1..=4));
        let keys = (0..key_count).map(|number| column("k", number, true, rng)).collect();
        let tracked = (0..tracked_count).map(|number| column("v", number, false, rng)).collect();
        let mut source = Self { keys, tracked, rows: Vec::new(), gone: Vec::new() };
        // Narrow key types (Boolean, 8-bit) cannot have many keys: a few tries, then it is a small table.
        for _ in 0..rows {
            source.insert(rng);
        }
        source
    }

    fn key_text(&self, key: &[Option<u32>], rng: &mut SmallRng) -> Vec<String> {
        self.keys.iter().zip(key).map(|(column, code)| canon(&column.ty.build(&[*code], rng), 0)).collect()
    }

    fn insert(&mut self, rng: &mut SmallRng) {
        let taken: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.key.clone()).collect::<Vec<_>>().iter().map(|key| self.key_text(key, rng)).collect();
        for _ in 0..8 {
            let key: Vec<Option<u32>> = self.keys.iter().map(|_| Some(rng.random_range(0..200))).collect();
            if !taken.contains(&self.key_text(&key, rng)) {
                let tracked = self.tracked.iter().map(|_| cell(rng)).collect();
                self.rows.push(Row { key, tracked });
                return;
            }
        }
    }

    /// Inserts, updates, deletes and re-adds a few rows; sometimes all of them.
    pub fn change(&mut self, rng: &mut SmallRng) {
        if rng.random_bool(0.03) {
            self.gone.append(&mut self.rows);
            return;
        }
        let most = if rng.random_bool(0.2) { self.rows.len() } else { 5 };
        for _ in 0..rng.random_range(0..=most.min(self.rows.len())) {
            let row = rng.random_range(0..self.rows.len());
            let column = rng.random_range(0..self.tracked.len());
            self.rows[row].tracked[column] = cell(rng);
        }
        for _ in 0..rng.random_range(0..=4_usize.min(self.rows.len())) {
            let row = rng.random_range(0..self.rows.len());
            let row = self.rows.swap_remove(row);
            self.gone.push(row);
        }
        for _ in 0..rng.random_range(0..=5) {
            self.insert(rng);
        }
        if rng.random_bool(0.5) {
            self.bring_back(rng);
        }
        self.rows.shuffle(rng);
    }

    fn bring_back(&mut self, rng: &mut SmallRng) {
        let Some(row) = self.gone.pop() else { return };
        let text = self.key_text(&row.key, rng);
        let taken = self.rows.clone().iter().any(|other| self.key_text(&other.key, rng) == text);
        if !taken {
            self.rows.push(row);
        }
    }

    /// The rows as batches: a column order, encodings, partitions, slices and untracked columns of their own each time.
    pub fn snapshot(&self, rng: &mut SmallRng) -> Snapshot {
        self.snapshot_of(&self.rows, rng)
    }

    /// The same of other rows.
    pub fn snapshot_of(&self, rows: &[Row], rng: &mut SmallRng) -> Snapshot {
        let mut columns: Vec<(String, ArrayRef)> = Vec::new();
        for (place, column) in self.keys.iter().enumerate() {
            let codes: Vec<Option<u32>> = rows.iter().map(|row| row.key[place]).collect();
            columns.push((column.name.clone(), column.ty.build(&codes, rng)));
        }
        for (place, column) in self.tracked.iter().enumerate() {
            let codes: Vec<Option<u32>> = rows.iter().map(|row| row.tracked[place]).collect();
            columns.push((column.name.clone(), column.ty.build(&codes, rng)));
        }
        let texts: Vec<Vec<String>> = (0..rows.len()).map(|row| columns.iter().map(|(_, array)| canon(array, row)).collect()).collect();
        let seen = texts.into_iter().map(|mut key| {
            let tracked = key.split_off(self.keys.len());
            (key, Seen { tracked })
        });
        let rows_by_key = seen.collect();
        for (_, array) in &mut columns {
            *array = encode(array, rng);
        }
        if rng.random_bool(0.5) {
            let codes: Vec<Option<u32>> = rows.iter().map(|_| cell(rng)).collect();
            columns.push(("untracked".to_string(), Ty::random(rng, false, 0).build(&codes, rng)));
        }
        columns.shuffle(rng);
        let fields: Vec<Field> = columns.iter().map(|(name, array)| Field::new(name, array.data_type().clone(), true)).collect();
        let schema = Arc::new(Schema::new(fields));
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns.into_iter().map(|(_, array)| array).collect()).unwrap();
        let partitions = split(&batch, rng);
        Snapshot { schema, partitions, rows: rows_by_key, count: rows.len() }
    }

    /// A snapshot in which a key is null or repeated, and the code that a run of it must fail with.
    pub fn broken(&self, rng: &mut SmallRng) -> Option<(Snapshot, &'static str)> {
        let mut rows = self.rows.clone();
        let victim = rows.get(rng.random_range(0..rows.len().max(1)))?.clone();
        let code = if rng.random_bool(0.5) {
            let mut null = victim;
            let place = rng.random_range(0..null.key.len());
            null.key[place] = None;
            rows.push(null);
            "KEY_NULL"
        } else {
            let mut copy = victim;
            if rng.random_bool(0.5) {
                copy.tracked = self.tracked.iter().map(|_| cell(rng)).collect();
            }
            rows.push(copy);
            "KEY_DUPLICATE"
        };
        rows.shuffle(rng);
        Some((self.snapshot_of(&rows, rng), code))
    }
}

/// The code of a tracked cell: often null, mostly a small code, so that values meet again.
fn cell(rng: &mut SmallRng) -> Option<u32> {
    (!rng.random_bool(0.15)).then(|| if rng.random_bool(0.7) { rng.random_range(0..10) } else { rng.random_range(0..150) })
}

/// The batch in partitions of batches, some of them empty, some behind an offset.
fn split(batch: &RecordBatch, rng: &mut SmallRng) -> Vec<Vec<RecordBatch>> {
    let mut partitions = vec![Vec::new(); rng.random_range(1..=3)];
    let mut from = 0;
    while from < batch.num_rows() {
        let rows = rng.random_range(1..=20).min(batch.num_rows() - from);
        let part = batch.slice(from, rows);
        let target = rng.random_range(0..partitions.len());
        partitions[target].push(if rng.random_bool(0.5) { part } else { copied(&part) });
        from += rows;
    }
    if rng.random_bool(0.2) {
        partitions[0].push(batch.slice(0, 0));
    }
    partitions
}

/// The batch with buffers of its own.
fn copied(batch: &RecordBatch) -> RecordBatch {
    let rows: arrow::array::UInt32Array = (0..batch.num_rows() as u32).collect();
    let columns = batch.columns().iter().map(|column| match take(column, &rows, None) {
        Ok(column) => column,
        Err(_) => concat(&[column.as_ref()]).unwrap(),
    });
    RecordBatch::try_new(batch.schema(), columns.collect()).unwrap()
}
