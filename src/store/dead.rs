//! Deletion vectors of a version's files: reading them, and adding rows to them.
//!
//! ```text
//! files of the base + newly dead positions ─► old ∪ new ─► a new .dv, or no file at all when no row is left
//! ```
//!
//! Memory: the bitmaps of a few files at a time. Never changes a deletion vector in place and never brings a row back.

use std::collections::BTreeMap;

use futures::stream::{self, StreamExt, TryStreamExt};
use roaring::RoaringTreemap;

use super::deletion_vector;
use super::{DataFile, DeletionVectorRef, Incarnation};
use crate::error::{Error, Result};

/// Files that are worked on at once.
const AT_ONCE: usize = 8;

/// The dead rows of a file, hash-verified.
///
/// # Errors
/// `HISTORY_MISSING` when the vector is gone, `CORRUPT` when it is damaged or does not fit the file.
pub async fn dead_rows(incarnation: &Incarnation, file: &DataFile) -> Result<RoaringTreemap> {
    let Some(deletions) = &file.deletions else { return Ok(RoaringTreemap::new()) };
    let rows = deletion_vector::decode(&incarnation.read_object(&deletions.object).await?)?;
    if rows.len() != deletions.rows || rows.max().is_some_and(|last| last >= file.rows) {
        let what = format!("it marks {} rows, the last is {:?}; recorded are {} of {}", rows.len(), rows.max(), deletions.rows, file.rows);
        return Err(incarnation.objects().corrupt(&incarnation.path(&deletions.object.path), what));
    }
    Ok(rows)
}

/// The files with more rows dead: `dead` has the positions of newly dead rows by place in `files`. New vectors are
/// written below `dir`; a file without a live row is left out, an untouched file stays as it is.
///
/// # Errors
/// `HISTORY_MISSING` and `CORRUPT` for old vectors, `STORE_FAILED`.
pub async fn apply_dead(
    incarnation: &Incarnation,
    dir: &str,
    files: &[DataFile],
    dead: &BTreeMap<u32, RoaringTreemap>,
) -> Result<Vec<DataFile>> {
    let known = u32::try_from(files.len()).unwrap_or(u32::MAX);
    if let Some(place) = dead.keys().copied().find(|place| *place >= known) {
        return Err(Error::internal(format!("table {:?}: rows of file {place} of {known} are to be dead", incarnation.name())));
    }
    let work: Vec<_> = (0_u32..).zip(files).map(|(place, file)| apply_to_file(incarnation, dir, file, dead.get(&place))).collect();
    let applied: Vec<Option<DataFile>> = stream::iter(work).buffered(AT_ONCE).try_collect().await?;
    Ok(applied.into_iter().flatten().collect())
}

async fn apply_to_file(incarnation: &Incarnation, dir: &str, file: &DataFile, newly: Option<&RoaringTreemap>) -> Result<Option<DataFile>> {
    let Some(newly) = newly.filter(|rows| !rows.is_empty()) else { return Ok(Some(file.clone())) };
    if newly.max().is_some_and(|last| last >= file.rows) {
        let table = incarnation.name();
        return Err(Error::internal(format!(
            "table {table:?}: row {:?} of {:?} is to be dead, it has {} rows",
            newly.max(),
            file.data.path,
            file.rows
        )));
    }
    let old = dead_rows(incarnation, file).await?;
    let before = old.len();
    let all = old | newly;
    if all.len() == before {
        return Ok(Some(file.clone()));
    }
    if all.len() >= file.rows {
        return Ok(None);
    }
    let id = incarnation.store().env().ids.id()?;
    let object = incarnation.write_object(&format!("{dir}/{id}.dv"), deletion_vector::encode(&all)?).await?;
    Ok(Some(DataFile { deletions: Some(DeletionVectorRef { object, rows: all.len() }), ..file.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ObjectRef;
    use crate::store::files::test_support::incarnation;

    fn file(name: &str, rows: u64) -> DataFile {
        let object = |suffix: &str| ObjectRef { path: format!("data/{name}{suffix}"), bytes: 1, hash: "0".repeat(64) };
        DataFile {
            data: object(".parquet"),
            index: object(".index.parquet"),
            rows,
            deletions: None,
            added_in: 1,
            bounds: BTreeMap::new(),
            sources: vec![],
        }
    }

    fn rows(positions: impl IntoIterator<Item = u64>) -> RoaringTreemap {
        positions.into_iter().collect()
    }

    #[tokio::test]
    async fn dead_rows_add_up_and_a_file_without_live_rows_goes() {
        let inc = incarnation().await;
        let base = vec![file("a", 10), file("b", 10), file("c", 3)];
        let first = apply_dead(&inc, "data/r/1", &base, &BTreeMap::from([(1, rows([2, 3]))])).await.unwrap();
        assert_eq!(first[0], base[0]);
        assert_eq!(first[1].live_rows(), 8);

        let more = BTreeMap::from([(1, rows([3, 9])), (2, rows(0..3))]);
        let second = apply_dead(&inc, "data/r/2", &first, &more).await.unwrap();
        assert_eq!(second.len(), 2);
        assert_eq!(dead_rows(&inc, &second[1]).await.unwrap(), rows([2, 3, 9]));
        assert_eq!(dead_rows(&inc, &first[1]).await.unwrap(), rows([2, 3]), "the old version keeps its own vector");

        let again = apply_dead(&inc, "data/r/3", &second, &BTreeMap::from([(1, rows([9])), (0, rows([]))])).await.unwrap();
        assert_eq!(again, second, "nothing new is written when nothing new is dead");
    }

    #[tokio::test]
    async fn positions_outside_a_file_are_refused() {
        let inc = incarnation().await;
        let base = vec![file("a", 10)];
        for dead in [BTreeMap::from([(0, rows([10]))]), BTreeMap::from([(1, rows([0]))])] {
            assert!(apply_dead(&inc, "data/r/1", &base, &dead).await.is_err());
        }
    }
}
