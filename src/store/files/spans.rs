//! Which source files the rows of a data file come from, so that a run need not open an index file for nothing.
//!
//! ```text
//! SRC of each row   4 4 4 4 5 5 5 9 9    ─►  (4..4, 4 rows) (5..5, 3 rows) (9..9, 2 rows)
//! more than 64 files                     ─►  neighbours together: (4..5, 7 rows) …
//! ```
//!
//! Memory: one entry per source file, at most 4,096; beyond that nothing is known, which costs a read, never a row.

use std::collections::BTreeMap;

use arrow::array::{Array, Int32Array};

use crate::store::SourceSpan;

/// Source files that are told apart while rows are written.
const MOST_FILES: usize = 4096;
/// Spans in the manifest, which has them for every data file.
const MOST_SPANS: usize = 64;

/// Counts the rows of each source file.
#[derive(Debug, Default)]
pub(super) struct SourceRows {
    rows: BTreeMap<i32, u64>,
    is_unknown: bool,
}

impl SourceRows {
    /// Takes the ordinals of further rows into account.
    pub(super) fn update(&mut self, ordinals: &Int32Array) {
        if ordinals.null_count() > 0 {
            self.is_unknown = true;
        }
        let mut values = ordinals.values().iter().copied();
        let Some(mut current) = values.next() else { return };
        let mut rows = 1;
        for ordinal in values {
            if ordinal != current {
                self.add(current, rows);
                (current, rows) = (ordinal, 0);
            }
            rows += 1;
        }
        self.add(current, rows);
    }

    fn add(&mut self, ordinal: i32, rows: u64) {
        if self.is_unknown {
            return;
        }
        *self.rows.entry(ordinal).or_default() += rows;
        self.is_unknown = self.rows.len() > MOST_FILES;
    }

    /// The spans, in order; none when nothing is known.
    pub(super) fn spans(&self) -> Vec<SourceSpan> {
        if self.is_unknown {
            return vec![];
        }
        let files: Vec<(i32, u64)> = self.rows.iter().map(|(ordinal, rows)| (*ordinal, *rows)).collect();
        let span = |part: &[(i32, u64)]| {
            let (first, last) = (part.first()?.0, part.last()?.0);
            Some(SourceSpan { first, last, rows: part.iter().map(|(_, rows)| rows).sum() })
        };
        files.chunks(files.len().div_ceil(MOST_SPANS).max(1)).filter_map(span).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(ordinals: impl IntoIterator<Item = i32>) -> Vec<(i32, i32, u64)> {
        let mut rows = SourceRows::default();
        rows.update(&ordinals.into_iter().collect::<Vec<_>>().into());
        rows.spans().into_iter().map(|span| (span.first, span.last, span.rows)).collect()
    }

    #[test]
    fn rows_are_counted_by_file_and_neighbours_share_a_span_when_they_are_many() {
        assert_eq!(spans([4, 4, -1, 5, 4]), [(-1, -1, 1), (4, 4, 3), (5, 5, 1)]);
        let many = spans((0..130).map(|n| n * 2));
        assert_eq!((many.len(), many[0], many[43]), (44, (0, 4, 3), (258, 258, 1)));
        assert_eq!(spans(0..5000), []);
        assert_eq!(spans([]), []);
    }
}
