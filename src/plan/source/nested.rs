//! How deep the files of a source nest. Readers of Parquet and JSON recurse over what a file says, and a stack that
//! overflows ends the process; so it is looked at first, without recursion.
//!
//! ```text
//! Parquet   the footer's list of schema elements: children still to come, level by level
//! JSON      the text: open brackets outside of strings
//!           deeper than MAX_DEPTH ─► CAPTURE_FAILED, naming the file
//! ```
//!
//! What cannot be understood here is left to the reader, which says what is wrong with it. Costs one small read for each
//! Parquet file that a run reads; JSON files are read twice. Memory: one footer's beginning, or one chunk.

use std::sync::Arc;

use bytes::Bytes;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingTable, ListingTableUrl};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::context::SessionState;
use futures::{StreamExt, TryStreamExt};
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};

use super::listing::{list, listing_tables, object_text};
use super::resolve::ResolvedSource;
use crate::error::{Error, ErrorCode, Result};

/// Deeper files are refused.
const MAX_DEPTH: usize = 200;
/// Read at first; most footers are smaller.
const FOOTER_GUESS: u64 = 32 * 1024;
/// The schema stands at the footer's beginning; more of it is not read.
const MAX_FOOTER: u64 = 64 * 1024 * 1024;

impl ResolvedSource {
    /// Checks that no file nests deeper than its reader can bear. `is_read` says which files (store and path) are looked at.
    ///
    /// # Errors
    /// `CAPTURE_FAILED`, naming the file; also when a place cannot be listed.
    pub async fn check_nesting(&self, is_read: impl Fn(&str) -> bool) -> Result<()> {
        let failed = |e| {
            let context = format!("table \"{}\": the source's files cannot be read. Remedy: mend or remove the file", self.table);
            Error::from_datafusion(e, ErrorCode::CaptureFailed, context)
        };
        for table in listing_tables(&self.provider).map_err(failed)? {
            for url in table.table_paths() {
                check_files(&self.state, &table, url, &is_read).await.map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// Whether the table's files are Parquet: their reader recurses before there is a plan.
pub(super) fn is_parquet(table: &ListingTable) -> bool {
    table.options().format.downcast_ref::<ParquetFormat>().is_some()
}

/// Checks the files of one place.
pub(super) async fn check_files(
    state: &SessionState,
    table: &ListingTable,
    url: &ListingTableUrl,
    is_read: impl Fn(&str) -> bool,
) -> DfResult<()> {
    let format = table.options().format.as_ref();
    let json = format.downcast_ref::<JsonFormat>().map(|json| FileCompressionType::from(json.options().compression));
    if json.is_none() && !is_parquet(table) {
        return Ok(());
    }
    let store = state.runtime_env().object_store(url)?;
    for (path, meta) in list(state, table, url).await? {
        let file = object_text(url, &path);
        if !is_read(&file) {
            continue;
        }
        let deep = match &json {
            Some(compression) => json_is_deep(&store, &meta, *compression).await,
            None => parquet_is_deep(&store, &meta).await,
        };
        // What cannot be read here is reported by the scan.
        if deep.unwrap_or(false) {
            return Err(DataFusionError::Execution(format!("{file} is nested more than {MAX_DEPTH} levels deep")));
        }
    }
    Ok(())
}

async fn parquet_is_deep(store: &Arc<dyn ObjectStore>, meta: &ObjectMeta) -> DfResult<bool> {
    let range = |range| GetOptions { range: Some(range), ..GetOptions::default() };
    let guess = FOOTER_GUESS.min(meta.size);
    let end = store.get_opts(&meta.location, range(GetRange::Bounded(meta.size - guess..meta.size))).await?.bytes().await?;
    let Some((_, tail)) = end.split_last_chunk::<8>() else { return Ok(false) };
    let [a, b, c, d, ..] = *tail;
    let length = u64::from(u32::from_le_bytes([a, b, c, d]));
    let Some(start) = (meta.size - 8).checked_sub(length) else { return Ok(false) };
    let footer = if length + 8 <= guess {
        end.slice(end.len() - 8 - usize::try_from(length).unwrap_or(0)..end.len() - 8)
    } else {
        let stop = (start + length).min(start + MAX_FOOTER);
        store.get_opts(&meta.location, range(GetRange::Bounded(start..stop))).await?.bytes().await?
    };
    Ok(schema_is_deep(&footer))
}

/// Whether the schema of a Parquet footer (thrift, compact) is too deep. False where the bytes end, or make no sense.
fn schema_is_deep(footer: &[u8]) -> bool {
    let mut thrift = Thrift { bytes: footer, deep: false };
    thrift.metadata();
    thrift.deep
}

/// Reads thrift's compact form, as far as it makes sense.
struct Thrift<'a> {
    bytes: &'a [u8],
    deep: bool,
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
        Some((length, head & 0x0f))
    }

    /// FileMetaData: its second field is the list of schema elements.
    fn metadata(&mut self) -> Option<()> {
        let mut last = 0;
        while let Some((number, kind)) = self.field(&mut last) {
            match (number, kind) {
                (2, LIST) => return self.schema(),
                (_, kind) => self.value(kind, 0)?,
            }
        }
        None
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
            self.deep |= open.len() > MAX_DEPTH;
            if self.deep {
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

async fn json_is_deep(store: &Arc<dyn ObjectStore>, meta: &ObjectMeta, compression: FileCompressionType) -> DfResult<bool> {
    let bytes = store.get(&meta.location).await?.into_stream().map_err(DataFusionError::from).boxed();
    let mut bytes = compression.convert_stream(bytes)?;
    let mut brackets = Brackets::default();
    while let Some(chunk) = bytes.next().await {
        if brackets.is_deep_after(&chunk?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The open brackets of a JSON text that comes in pieces.
#[derive(Default)]
struct Brackets {
    open: usize,
    in_text: bool,
    escaped: bool,
}

impl Brackets {
    fn is_deep_after(&mut self, chunk: &Bytes) -> bool {
        for byte in chunk {
            if self.in_text {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_text = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_text = true,
                b'[' | b'{' => self.open += 1,
                b']' | b'}' => self.open = self.open.saturating_sub(1),
                _ => {}
            }
            if self.open > MAX_DEPTH {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_are_counted_outside_of_texts_and_across_chunks() {
        let deep = |text: &str| {
            let mut brackets = Brackets::default();
            text.as_bytes().chunks(7).any(|chunk| brackets.is_deep_after(&Bytes::copy_from_slice(chunk)))
        };
        assert!(deep(&format!("{{\"a\":{}", "[".repeat(MAX_DEPTH))));
        assert!(!deep(&"{\"a\":[1]}\n".repeat(MAX_DEPTH * 2)));
        assert!(!deep(&format!("{{\"a\":\"\\\"{}\"}}", "[".repeat(MAX_DEPTH * 2))));
        assert!(!deep(&format!("\"\\\\\"{}", "[]".repeat(MAX_DEPTH * 2))));
    }

    #[test]
    fn any_bytes_can_be_a_footer() {
        let mut state = 7_u64;
        for length in 0..3_000 {
            let next = |_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as u8
            };
            schema_is_deep(&(0..length % 300).map(next).collect::<Vec<u8>>());
        }
        assert!(schema_is_deep(&[0x1c; 1000]), "structs in structs");
    }
}
