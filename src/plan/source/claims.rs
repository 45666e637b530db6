//! What the files of a source claim. Readers of Parquet and JSON recurse over it, and allocate what it says; a stack that
//! overflows, or an allocation that fails, ends the process. So it is looked at first.
//!
//! ```text
//! Parquet   the footer: nesting, lengths, places and sizes        (footer.rs)
//! JSON      the text: open brackets outside of strings
//!           absurd ─► CAPTURE_FAILED, naming the file
//! ```
//!
//! What cannot be understood here is left to the reader, which says what is wrong with it. Costs one small read for each
//! Parquet file that a run reads, several at once; JSON files are read twice. Memory: a footer, or a chunk, of each file that is
//! looked at.

use std::collections::BTreeMap;
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingTable, ListingTableUrl};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::context::SessionState;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};

use super::footer::{self, MAX_DEPTH};
use super::listing::{list, listing_tables, object_text};
use super::resolve::ResolvedSource;
use crate::error::{Error, ErrorCode, Result};

/// Read at first; most footers are smaller.
const FOOTER_GUESS: u64 = 32 * 1024;
/// A larger footer is refused.
const MAX_FOOTER: u64 = 256 * 1024 * 1024;

impl ResolvedSource {
    /// Checks that no file claims what its reader could not bear. `is_read` says which files (store and path) are looked at.
    ///
    /// # Errors
    /// `CAPTURE_FAILED`, naming the file; also when a place cannot be listed.
    pub async fn check_claims(&self, is_read: impl Fn(&str) -> bool) -> Result<()> {
        let failed = |e| {
            let context = format!("table \"{}\": the source's files cannot be read. Remedy: mend or remove the file", self.table);
            Error::from_datafusion(e, ErrorCode::CaptureFailed, context)
        };
        for table in listing_tables(&self.provider).map_err(failed)? {
            for url in table.table_paths() {
                let mut files = list(&self.state, &table, url).await.map_err(failed)?;
                files.retain(|path, _| is_read(&object_text(url, path)));
                check_files(&self.state, &table, url, &files).await.map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// Whether the table's files are Parquet: their reader recurses over a footer before there is a plan.
pub(super) fn is_parquet(table: &ListingTable) -> bool {
    table.options().format.downcast_ref::<ParquetFormat>().is_some()
}

/// Checks `files` of one place, as many at once as DataFusion reads footers; the first at fault, by path, is named.
pub(super) async fn check_files(
    state: &SessionState,
    table: &ListingTable,
    url: &ListingTableUrl,
    files: &BTreeMap<Path, ObjectMeta>,
) -> DfResult<()> {
    let format = table.options().format.as_ref();
    let json = format.downcast_ref::<JsonFormat>().map(|json| FileCompressionType::from(json.options().compression));
    if json.is_none() && !is_parquet(table) {
        return Ok(());
    }
    let store = state.runtime_env().object_store(url)?;
    let check = |meta: &ObjectMeta| {
        let (store, meta) = (Arc::clone(&store), meta.clone());
        async move {
            let fault = match json {
                Some(compression) => json_is_deep(&store, &meta, compression).await.map(|deep| deep.then(footer::too_deep)),
                None => parquet_fault(&store, &meta).await,
            };
            // What cannot be read here is reported by the scan.
            fault.unwrap_or(None).map(|fault| (meta.location, fault))
        }
    };
    let at_once: usize = state.config_options().execution.meta_fetch_concurrency.into();
    let mut faults = pin!(stream::iter(files.values().map(check)).buffered(at_once).filter_map(ready));
    match faults.next().await {
        Some((path, fault)) => Err(DataFusionError::Execution(format!("{} is broken: {fault}", object_text(url, &path)))),
        None => Ok(()),
    }
}

async fn parquet_fault(store: &Arc<dyn ObjectStore>, meta: &ObjectMeta) -> DfResult<Option<String>> {
    let range = |range| GetOptions { range: Some(range), ..GetOptions::default() };
    let guess = FOOTER_GUESS.min(meta.size);
    let end = store.get_opts(&meta.location, range(GetRange::Bounded(meta.size - guess..meta.size))).await?.bytes().await?;
    let Some((_, tail)) = end.split_last_chunk::<8>() else { return Ok(None) };
    let [a, b, c, d, ..] = *tail;
    let length = u64::from(u32::from_le_bytes([a, b, c, d]));
    let Some(start) = (meta.size - 8).checked_sub(length) else {
        return Ok(Some(format!("its footer would have {length} bytes, more than the file")));
    };
    let footer = if length + 8 <= guess {
        end.slice(end.len() - 8 - usize::try_from(length).unwrap_or(0)..end.len() - 8)
    } else {
        if length > MAX_FOOTER {
            return Ok(Some(format!("its footer has {length} bytes, more than {MAX_FOOTER}")));
        }
        let stop = start + length;
        store.get_opts(&meta.location, range(GetRange::Bounded(start..stop))).await?.bytes().await?
    };
    Ok(footer::fault(&footer, meta.size))
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
}
