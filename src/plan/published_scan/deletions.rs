//! Deletion vectors as row selections.
//!
//! ```text
//! dead rows {2, 3, 7} of 10  ──►  select 2, skip 2, select 3, skip 1, select 2
//! ```

use std::sync::Arc;

use parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use roaring::RoaringTreemap;

use super::Snapshot;
use crate::error::{Error, ErrorCode, Result};
use crate::store::{DataFile, deletion_vector};

/// The dead rows of `file`, hash-verified; `None` when it has none.
///
/// # Errors
/// `HISTORY_MISSING` when the vector is gone, `CORRUPT` when it does not fit its digest or its data file.
pub(super) async fn load(snapshot: &Snapshot, file: &DataFile) -> Result<Option<Arc<RoaringTreemap>>> {
    let Some(vector) = &file.deletions else { return Ok(None) };
    if let Some(dead) = snapshot.cache.dead(&vector.object.path) {
        return Ok(Some(dead));
    }
    let bytes = snapshot.incarnation.read_object(&vector.object).await?;
    let dead = deletion_vector::decode(&bytes)?;
    if dead.len() != vector.rows || dead.max().is_some_and(|last| last >= file.rows) {
        return Err(Error::new(
            ErrorCode::Corrupt,
            format!(
                "table {:?}: deletion vector {:?} does not belong to its data file {:?}. Remedy: restore the table's folder, or rebuild with REFRESH … FULL",
                snapshot.table(),
                vector.object.path,
                file.data.path
            ),
        ));
    }
    let dead = Arc::new(dead);
    snapshot.cache.keep_dead(&vector.object.path, &dead);
    Ok(Some(dead))
}

/// The rows of a file of `rows` rows that are not in `dead`.
pub(super) fn live_rows(dead: &RoaringTreemap, rows: u64) -> RowSelection {
    let count = |rows: u64| usize::try_from(rows).unwrap_or(usize::MAX);
    let mut selectors = Vec::new();
    let mut covered = 0_u64;
    let mut positions = dead.iter().peekable();
    while let Some(start) = positions.next() {
        let mut end = start + 1;
        while positions.next_if_eq(&end).is_some() {
            end += 1;
        }
        selectors.push(RowSelector::select(count(start.saturating_sub(covered))));
        selectors.push(RowSelector::skip(count(end - start)));
        covered = end;
    }
    selectors.push(RowSelector::select(count(rows.saturating_sub(covered))));
    RowSelection::from(selectors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_covers_the_file_and_skips_exactly_the_dead() {
        for (dead, rows) in [(vec![], 5), (vec![0, 1], 2), (vec![2, 3, 7], 10), (vec![9], 10), (vec![0, 2, 4], 5)] {
            let dead: RoaringTreemap = dead.into_iter().collect();
            let selection = live_rows(&dead, rows);
            assert_eq!(selection.iter().map(|s| s.row_count as u64).sum::<u64>(), rows);
            assert_eq!(selection.row_count() as u64, rows - dead.len());
        }
    }
}
