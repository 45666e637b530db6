//! The footer of a Parquet file, before its reader believes it.
//!
//! ```text
//! thrift    walked without recursion over the schema, and to a bound over everything else: depth, lengths of lists
//! metadata  decoded by Parquet's own decoder, then: places and sizes inside of the file, counts that fit
//! ```
//!
//! Memory: the decoded metadata of one file. Never reads a page.

use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

/// Deeper files are refused.
pub(super) const MAX_DEPTH: usize = 200;
/// More rows than any file holds; arithmetic with them still fits.
const MAX_ROWS: i64 = 1 << 40;
/// More bytes than any column of a row group holds.
const MAX_BYTES: i64 = 1 << 48;

/// What a file is said to be whose reader would recurse too deep.
pub(super) fn too_deep() -> String {
    format!("it is nested more than {MAX_DEPTH} levels deep")
}

/// What is absurd in the footer of a file of `size` bytes; `None` where nothing is, or it makes no sense at all: then the
/// reader says so.
pub(super) fn fault(footer: &[u8], size: u64) -> Option<String> {
    let mut thrift = Thrift { bytes: footer, deep: false, absurd: false };
    thrift.metadata();
    if thrift.deep {
        return Some(too_deep());
    }
    if thrift.absurd {
        return Some("a list, or a group, in its footer would have more members than the footer has room for".to_string());
    }
    // What is left is no danger to the decoder; a panic of it is its way to say that it does not understand.
    let decoded = std::panic::catch_unwind(|| ParquetMetaDataReader::decode_metadata(footer));
    metadata_fault(&decoded.ok()?.ok()?, size)
}

/// Sizes and places beyond the file, and counts that no arithmetic expects.
fn metadata_fault(metadata: &ParquetMetaData, size: u64) -> Option<String> {
    let outside = |value: i64| u64::try_from(value).map_or(true, |value| value > size);
    let mut rows = 0_i64;
    for (number, group) in metadata.row_groups().iter().enumerate() {
        rows = rows.saturating_add(group.num_rows());
        if group.num_rows() < 0 || rows > MAX_ROWS || group.total_byte_size() < 0 {
            return Some(format!("row group {number} would have {} rows and {} bytes", group.num_rows(), group.total_byte_size()));
        }
        for column in group.columns() {
            let start = column.dictionary_page_offset().unwrap_or(i64::MAX).min(column.data_page_offset());
            let end = start.saturating_add(column.compressed_size());
            let places = [start, column.data_page_offset(), column.compressed_size(), end];
            if places.into_iter().any(outside) {
                return Some(format!("column {:?} of row group {number} would lie outside of it", column.column_path().string()));
            }
            if !(0..=MAX_ROWS).contains(&column.num_values()) || !(0..=MAX_BYTES).contains(&column.uncompressed_size()) {
                let (values, bytes) = (column.num_values(), column.uncompressed_size());
                return Some(format!(
                    "column {:?} of row group {number} would have {values} values in {bytes} bytes",
                    column.column_path().string()
                ));
            }
        }
    }
    None
}

/// Reads thrift's compact form, as far as it makes sense.
struct Thrift<'a> {
    bytes: &'a [u8],
    deep: bool,
    /// A list is longer than the bytes that are left.
    absurd: bool,
}

/// Values inside of values; parquet's own have fewer levels.
const MAX_VALUES: usize = 32;
const BINARY: u8 = 8;
const LIST: u8 = 9;

impl Thrift<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    fn skip(&mut self, bytes: u64) -> Option<()> {
        self.bytes = self.bytes.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        let value = self.varint()?;
        i64::try_from(value >> 1).ok().map(|half| half ^ -i64::from(value & 1 == 1))
    }

    /// The next field's number and type; `None` at the end of the struct, too.
    fn field(&mut self, last: &mut i64) -> Option<(i64, u8)> {
        let head = self.byte()?;
        if head == 0 {
            return None;
        }
        *last = match head >> 4 {
            0 => self.signed()?,
            delta => last.checked_add(i64::from(delta))?,
        };
        Some((*last, head & 0x0f))
    }

    fn list(&mut self) -> Option<(u64, u8)> {
        let head = self.byte()?;
        let length = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        // An element takes a byte at least.
        self.absurd |= length > self.bytes.len() as u64;
        if self.absurd { None } else { Some((length, head & 0x0f)) }
    }

    /// FileMetaData: its second field is the list of schema elements.
    fn metadata(&mut self) -> Option<()> {
        let mut last = 0;
        while let Some((number, kind)) = self.field(&mut last) {
            match (number, kind) {
                (2, LIST) => self.schema()?,
                (_, kind) => self.value(kind, 0)?,
            }
        }
        Some(())
    }

    /// The elements, parents before their children.
    fn schema(&mut self) -> Option<()> {
        let (length, _) = self.list()?;
        let mut open: Vec<i64> = vec![];
        for _ in 0..length {
            if let Some(siblings) = open.last_mut() {
                *siblings -= 1;
            }
            let children = self.element()?;
            if children > 0 {
                open.push(children);
            }
            // Readers make room for the children that are claimed.
            self.absurd |= u64::try_from(children).map_or(true, |children| children > length);
            self.deep |= open.len() > MAX_DEPTH;
            if self.deep || self.absurd {
                return None;
            }
            while open.last().is_some_and(|left| *left <= 0) {
                open.pop();
            }
        }
        Some(())
    }

    /// One schema element; its number of children.
    fn element(&mut self) -> Option<i64> {
        let (mut last, mut children) = (0, 0);
        while let Some((number, kind)) = self.field(&mut last) {
            match number {
                5 => children = self.signed()?,
                _ => self.value(kind, 0)?,
            }
        }
        Some(children)
    }

    /// Skips a value.
    fn value(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > MAX_VALUES {
            self.deep = true;
            return None;
        }
        match kind {
            1 | 2 => Some(()),
            3 => self.skip(1),
            4..=6 => self.varint().map(|_| ()),
            7 => self.skip(8),
            BINARY => {
                let length = self.varint()?;
                self.skip(length)
            }
            LIST | 10 => {
                let (length, kind) = self.list()?;
                // Flags take a byte each in a list.
                (0..length).try_for_each(|_| self.value(if kind <= 2 { 3 } else { kind }, depth + 1))
            }
            12 => {
                let mut last = 0;
                while let Some((_, kind)) = self.field(&mut last) {
                    self.value(kind, depth + 1)?;
                }
                Some(())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_can_be_a_footer() {
        let mut state = 7_u64;
        for length in 0..3_000 {
            let next = |_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as u8
            };
            fault(&(0..length % 300).map(next).collect::<Vec<u8>>(), 1000);
        }
        assert_eq!(fault(&[0x1c; 1000], 2000), Some(too_deep()), "structs in structs");
        assert!(fault(&[0x15, 2, 0x19, 0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 7, 0], 100).is_some(), "two thousand million elements");
    }
}
