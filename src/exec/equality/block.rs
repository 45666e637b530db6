//! Canonical encodings of a block of rows, column by column.
//!
//! ```text
//! lengths   row 0: 9 + 14 + 23      row 1: 1 + 14 + 20 …        one loop per column, then ends are known
//! buffer    [row 0: c0│c1│c2][row 1: c0│c1│c2]…                 one loop per column: each row's next free byte
//! ```
//!
//! The same bytes as [`Column::append`], row by row; but what kind a column is gets decided once a block and not once a
//! value. Memory: the block's encodings. Knows no nested, dictionary or run-length columns: for those, whoever calls
//! appends row by row.

use std::ops::Range;

use super::column::{Column, Values, canonical_f16, canonical_f32, canonical_f64};
use super::sink::copy;

/// The encodings of a block of rows.
#[derive(Debug, Default)]
pub(super) struct Block {
    bytes: Vec<u8>,
    /// Where the next column of each row goes; in the end, where the row ends.
    cursors: Vec<usize>,
}

impl Block {
    /// Whether blocks of these columns can be encoded.
    pub(super) fn knows(columns: &[Column]) -> bool {
        columns.iter().all(Column::is_flat)
    }

    /// Encodes `rows` of columns that it [`Self::knows`].
    pub(super) fn encode(&mut self, columns: &[Column], rows: Range<usize>) {
        self.cursors.clear();
        self.cursors.resize(rows.len(), 0);
        for column in columns {
            column.add_lengths(rows.clone(), &mut self.cursors);
        }
        let mut end = 0;
        for cursor in &mut self.cursors {
            let length = std::mem::replace(cursor, end);
            end += length;
        }
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        for column in columns {
            column.write(rows.clone(), &mut self.bytes, &mut self.cursors);
        }
    }

    /// The encodings, in the order of the rows.
    pub(super) fn rows(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.cursors.iter().map(move |end| self.bytes.get(std::mem::replace(&mut start, *end)..*end).unwrap_or_default())
    }
}

impl Column {
    fn is_flat(&self) -> bool {
        !matches!(self.values, Values::Indexed { .. } | Values::List { .. } | Values::Struct(_) | Values::Map { .. })
    }

    /// Adds the length of each row's encoding to `lengths`.
    fn add_lengths(&self, rows: Range<usize>, lengths: &mut [usize]) {
        let text = 1 + size_of::<u64>();
        match &self.values {
            Values::Bytes(a) => self.add(rows, lengths, |row| text + a.value(row).len()),
            Values::LargeBytes(a) => self.add(rows, lengths, |row| text + a.value(row).len()),
            // The lower 32 bits of a view are its length.
            Values::Views(a) => self.add(rows, lengths, |row| text + a.views().get(row).map_or(0, |view| *view as u32 as usize)),
            Values::FixedBytes(a) => self.add(rows, lengths, |_| 1 + usize::try_from(a.value_length()).unwrap_or_default()),
            Values::Bool(_) | Values::W1(_) => self.add(rows, lengths, |_| 2),
            Values::W2(_) | Values::F16(_) => self.add(rows, lengths, |_| 3),
            Values::W4(_) | Values::F32(_) => self.add(rows, lengths, |_| 5),
            Values::W8(_) | Values::F64(_) => self.add(rows, lengths, |_| 9),
            Values::W16(_) => self.add(rows, lengths, |_| 17),
            Values::W32(_) => self.add(rows, lengths, |_| 33),
            Values::Indexed { .. } | Values::List { .. } | Values::Struct(_) | Values::Map { .. } => {}
        }
    }

    #[inline(always)]
    fn add(&self, rows: Range<usize>, lengths: &mut [usize], length: impl Fn(usize) -> usize) {
        match &self.nulls {
            None => lengths.iter_mut().zip(rows).for_each(|(sum, row)| *sum += length(row)),
            Some(nulls) => {
                let length = |row| if nulls.is_null(row) { 1 } else { length(row) };
                lengths.iter_mut().zip(rows).for_each(|(sum, row)| *sum += length(row));
            }
        }
    }

    /// Writes each row's encoding at its cursor, and moves the cursor behind it.
    fn write(&self, rows: Range<usize>, out: &mut [u8], cursors: &mut [usize]) {
        match &self.values {
            Values::Bytes(a) => self.fill(rows, (out, cursors), |row, to| text(a.value(row), to)),
            Values::LargeBytes(a) => self.fill(rows, (out, cursors), |row, to| text(a.value(row), to)),
            Values::Views(a) => self.fill(rows, (out, cursors), |row, to| text(a.value(row), to)),
            Values::FixedBytes(a) => self.fill(rows, (out, cursors), |row, to| bytes(a.value(row), to)),
            Values::Bool(v) => self.fill(rows, (out, cursors), |row, to| fixed([u8::from(v.value(row))], to)),
            Values::W1(v) => self.fill(rows, (out, cursors), |row, to| fixed(at(v, row).to_le_bytes(), to)),
            Values::W2(v) => self.fill(rows, (out, cursors), |row, to| fixed(at(v, row).to_le_bytes(), to)),
            Values::W4(v) => self.fill(rows, (out, cursors), |row, to| fixed(at(v, row).to_le_bytes(), to)),
            Values::W8(v) => self.fill(rows, (out, cursors), |row, to| fixed(at(v, row).to_le_bytes(), to)),
            Values::W16(v) => self.fill(rows, (out, cursors), |row, to| fixed(at(v, row).to_le_bytes(), to)),
            Values::W32(v) => self.fill(rows, (out, cursors), |row, to| fixed(at(v, row).to_le_bytes(), to)),
            Values::F16(v) => self.fill(rows, (out, cursors), |row, to| fixed(canonical_f16(at(v, row)).to_le_bytes(), to)),
            Values::F32(v) => self.fill(rows, (out, cursors), |row, to| fixed(canonical_f32(at(v, row)).to_le_bytes(), to)),
            Values::F64(v) => self.fill(rows, (out, cursors), |row, to| fixed(canonical_f64(at(v, row)).to_le_bytes(), to)),
            Values::Indexed { .. } | Values::List { .. } | Values::Struct(_) | Values::Map { .. } => {}
        }
    }

    #[inline(always)]
    fn fill(&self, rows: Range<usize>, (out, cursors): (&mut [u8], &mut [usize]), value: impl Fn(usize, &mut [u8]) -> usize) {
        for (cursor, row) in cursors.iter_mut().zip(rows) {
            let Some(to) = out.get_mut(*cursor..) else { return };
            *cursor += match &self.nulls {
                Some(nulls) if nulls.is_null(row) => bytes_of([0], to),
                _ => value(row, to),
            };
        }
    }
}

#[inline(always)]
fn at<T: Copy + Default>(values: &[T], row: usize) -> T {
    values.get(row).copied().unwrap_or_default()
}

#[inline(always)]
fn bytes_of<const N: usize>(value: [u8; N], to: &mut [u8]) -> usize {
    if let Some(to) = to.first_chunk_mut::<N>() {
        *to = value;
    }
    N
}

#[inline(always)]
fn fixed<const N: usize>(value: [u8; N], to: &mut [u8]) -> usize {
    let first = bytes_of([1], to);
    first + to.get_mut(first..).map_or(0, |to| bytes_of(value, to))
}

#[inline(always)]
fn bytes(value: &[u8], to: &mut [u8]) -> usize {
    let first = bytes_of([1], to);
    let end = first + value.len();
    if let Some(to) = to.get_mut(first..end) {
        copy(value, to);
    }
    end
}

#[inline(always)]
fn text(value: &[u8], to: &mut [u8]) -> usize {
    let first = fixed((value.len() as u64).to_le_bytes(), to);
    let end = first + value.len();
    if let Some(to) = to.get_mut(first..end) {
        copy(value, to);
    }
    end
}
