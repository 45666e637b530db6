//! Which index rows a scan is for: those of source files that are read, or those of files that are left unread.
//!
//! ```text
//! skipped = {0, 1, 2}     rows of 3, 4, -1 …        Scope::Read       the diff's baseline
//!                         rows of 0, 1, 2           Scope::Unread     looked at for duplicates of new keys
//! data file ─ spans in the manifest ─► row group ─ bounds of SRC (and of the key) ─► row ─ SRC
//! ```
//!
//! Each level only leaves out what surely has no wanted row: files and row groups without bounds are read. Memory: none
//! of its own. Never decides by bounds alone that a row is wanted.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, Int32Array, RecordBatch};
use arrow::datatypes::Int32Type;
use arrow_schema::Schema;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::file::metadata::ParquetMetaData;

use super::ranges::KeyRanges;
use crate::error::{Error, Result};
use crate::store::DataFile;
use crate::store::files::SRC;

/// The rows that an index scan is for.
#[derive(Debug, Clone, Default)]
pub enum Scope {
    /// All rows.
    #[default]
    All,
    /// Rows whose source file is not one of these.
    Read(Arc<BTreeSet<i32>>),
    /// Rows whose source file is one of these, where a key may lie in the ranges.
    Unread(Arc<BTreeSet<i32>>, Arc<KeyRanges>),
}

impl Scope {
    fn wants(&self, ordinal: i32) -> bool {
        match self {
            Self::All => true,
            Self::Read(skipped) => !skipped.contains(&ordinal),
            Self::Unread(skipped, _) => skipped.contains(&ordinal),
        }
    }

    /// Whether some ordinal from `first` to `last` is wanted.
    fn wants_some(&self, first: i32, last: i32) -> bool {
        let within = |skipped: &BTreeSet<i32>| skipped.range(first..=last.max(first)).count();
        match self {
            Self::All => true,
            Self::Read(skipped) => i64::try_from(within(skipped)).is_ok_and(|n| n < i64::from(last) - i64::from(first) + 1),
            Self::Unread(skipped, _) => within(skipped) > 0,
        }
    }

    /// Whether the file may have wanted rows, as far as the manifest tells.
    pub(super) fn wants_file(&self, file: &DataFile) -> bool {
        let by_source = file.sources.is_empty() || file.sources.iter().any(|span| self.wants_some(span.first, span.last));
        let by_key = match self {
            Self::Unread(_, ranges) => ranges.may_be_in_file(file),
            _ => true,
        };
        by_source && by_key
    }

    /// How many wanted rows the file has at most, as far as the manifest tells.
    pub(super) fn rows_at_most(&self, file: &DataFile) -> u64 {
        let spans = file.sources.iter().filter(|span| self.wants_some(span.first, span.last));
        match (self, file.sources.is_empty()) {
            (Self::All, _) | (_, true) => file.live_rows(),
            _ => spans.map(|span| span.rows).sum::<u64>().min(file.live_rows()),
        }
    }

    /// The row groups that may have wanted rows; `None`: all.
    pub(super) fn row_groups(&self, schema: &Schema, metadata: &ParquetMetaData) -> Option<Vec<usize>> {
        let ranges = match self {
            Self::All => return None,
            Self::Read(_) => None,
            Self::Unread(_, ranges) => Some(ranges),
        };
        let ordinals = bounds(schema, metadata);
        let wanted = |group: &usize| {
            let by_source = ordinals.as_ref().and_then(|(min, max)| {
                let is_known = min.is_valid(*group) && max.is_valid(*group);
                is_known.then(|| self.wants_some(min.value(*group), max.value(*group)))
            });
            by_source.unwrap_or(true)
        };
        let groups: Vec<usize> = (0..metadata.num_row_groups()).filter(wanted).collect();
        Some(match ranges {
            Some(ranges) => ranges.retain_groups(schema, metadata, groups),
            None => groups,
        })
    }

    /// Which rows of a batch are wanted; `None` when all are.
    pub(super) fn rows(&self, batch: &RecordBatch) -> Result<Option<BooleanArray>> {
        if matches!(self, Self::All) {
            return Ok(None);
        }
        let ordinals = batch.column_by_name(SRC).and_then(|column| column.as_primitive_opt::<Int32Type>());
        let ordinals = ordinals.ok_or_else(|| Error::internal("the index scan has no source ordinals"))?;
        // Rows of one source file lie together.
        let mut last = None;
        let wanted: BooleanArray = ordinals
            .values()
            .iter()
            .map(|ordinal| match last {
                Some((known, wanted)) if known == *ordinal => Some(wanted),
                _ => {
                    let wanted = self.wants(*ordinal);
                    last = Some((*ordinal, wanted));
                    Some(wanted)
                }
            })
            .collect();
        Ok((wanted.true_count() < wanted.len()).then_some(wanted))
    }
}

/// The smallest and largest ordinals of each row group; `None` where the file was written without them.
fn bounds(schema: &Schema, metadata: &ParquetMetaData) -> Option<(Int32Array, Int32Array)> {
    let converter = StatisticsConverter::try_new(SRC, schema, metadata.file_metadata().schema_descr()).ok()?;
    let min = converter.row_group_mins(metadata.row_groups()).ok()?;
    let max = converter.row_group_maxes(metadata.row_groups()).ok()?;
    Some((min.as_primitive_opt::<Int32Type>()?.clone(), max.as_primitive_opt::<Int32Type>()?.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_left_out_only_when_no_ordinal_in_them_can_be_wanted() {
        let skipped = Arc::new(BTreeSet::from([1, 2, 4]));
        let read = Scope::Read(Arc::clone(&skipped));
        assert!(!read.wants_some(1, 2) && !read.wants_some(4, 4));
        assert!(read.wants_some(1, 3) && read.wants_some(-1, -1) && read.wants_some(0, 1) && read.wants_some(i32::MIN, i32::MAX));
        let unread = Scope::Unread(skipped, Arc::default());
        assert!(unread.wants_some(0, 1) && unread.wants_some(4, 9) && !unread.wants_some(3, 3) && !unread.wants_some(5, 9));
    }
}
