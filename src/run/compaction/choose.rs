//! Which files a compaction rewrites.
//!
//! ```text
//! by hand    every file with dead rows, every small file
//! automatic  dead rows past their limit ─► the files that hold them
//!            small files past theirs    ─► the smallest, and each next one that is smaller than those before it together
//! ```
//!
//! So a row is rewritten automatically at most about log2(table / change) times while it lives, plus once each time that
//! the limit of dead rows is passed, and at most `compaction_max_files` small files remain. Never looks at the rows.

use crate::spec::OperationalOptions;
use crate::store::DataFile;

/// Below this many dead rows a table is too small for its dead rows to cost anything.
const MIN_DEAD_ROWS: u64 = 10_000;

/// For `CALL compact`; empty when there is nothing to gain.
pub(super) fn all(options: &OperationalOptions, files: &[DataFile]) -> Vec<DataFile> {
    let chosen: Vec<DataFile> = files.iter().filter(|file| file.deletions.is_some() || is_small(options, file)).cloned().collect();
    let gain = chosen.len() > 1 || chosen.iter().any(|file| file.deletions.is_some());
    if gain { chosen } else { vec![] }
}

/// After a run; empty while no limit is passed.
pub(super) fn due(options: &OperationalOptions, files: &[DataFile]) -> Vec<DataFile> {
    let is_crowded = files.iter().filter(|file| is_small(options, file)).count() > options.compaction_max_files;
    let (mut chosen, rest): (Vec<&DataFile>, Vec<&DataFile>) = match has_too_many_dead(options, files) {
        // A file at most half as full of dead rows as is allowed can stay: the rest of it would be copied for little.
        true => files.iter().partition(|file| dead_fraction([*file]) > options.compaction_max_dead_fraction / 2.0),
        false => (vec![], files.iter().collect()),
    };
    if is_crowded || !chosen.is_empty() {
        let small: Vec<&DataFile> = rest.into_iter().filter(|file| is_small(options, file)).collect();
        // Half the limit stays free, so that the next compaction is as many runs away.
        let keep = options.compaction_max_files / 2;
        chosen.extend(smallest(small, keep));
    }
    // In the order of the table, which is nearly the order of the source.
    files.iter().filter(|file| chosen.contains(file)).cloned().collect()
}

/// At least all but `keep` of the files, smallest first, if more than one.
fn smallest(mut files: Vec<&DataFile>, keep: usize) -> Vec<&DataFile> {
    files.sort_by_key(|file| file.live_rows());
    let needed = if files.len() > keep { files.len() - keep + 1 } else { 0 };
    let (mut taken, mut together) = (0, 0);
    for file in &files {
        if taken >= needed && (taken == 0 || file.live_rows() > together) {
            break;
        }
        taken += 1;
        together += file.live_rows();
    }
    files.truncate(taken);
    if files.len() > 1 { files } else { vec![] }
}

fn is_small(options: &OperationalOptions, file: &DataFile) -> bool {
    file.rows < u64::try_from(options.target_file_rows).unwrap_or(u64::MAX) / 2
}

fn has_too_many_dead(options: &OperationalOptions, files: &[DataFile]) -> bool {
    let dead: u64 = files.iter().map(|file| file.rows - file.live_rows()).sum();
    dead >= MIN_DEAD_ROWS && dead_fraction(files) > options.compaction_max_dead_fraction
}

#[allow(clippy::cast_precision_loss)] // a fraction of row counts below 2^53
fn dead_fraction<'a>(files: impl IntoIterator<Item = &'a DataFile>) -> f64 {
    let (rows, live) = files.into_iter().fold((0, 0), |(rows, live), file| (rows + file.rows, live + file.live_rows()));
    (rows - live) as f64 / rows.max(1) as f64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::spec::Options;
    use crate::store::{DeletionVectorRef, ObjectRef};

    fn object() -> ObjectRef {
        ObjectRef { path: String::new(), bytes: 0, hash: String::new() }
    }

    /// `number` tells files apart.
    fn file(number: u64, rows: u64, dead: u64) -> DataFile {
        let deletions = (dead > 0).then(|| DeletionVectorRef { object: object(), rows: dead });
        DataFile { data: object(), index: object(), rows, deletions, added_in: number, bounds: BTreeMap::new(), sources: Vec::new() }
    }

    fn options() -> OperationalOptions {
        Options::default().operational("t").unwrap()
    }

    /// Live rows of each file after the compaction that is due, and how many rows it rewrote.
    fn compacted(files: &[DataFile], number: u64) -> (Vec<DataFile>, u64) {
        let chosen = due(&options(), files);
        let rewritten = chosen.iter().map(DataFile::live_rows).sum();
        let mut after: Vec<DataFile> = files.iter().filter(|file| !chosen.contains(file)).cloned().collect();
        if rewritten > 0 {
            after.push(file(number, rewritten, 0));
        }
        (after, rewritten)
    }

    #[test]
    fn many_small_changes_are_rewritten_a_few_times_each_and_the_table_hardly() {
        let mut files = vec![file(0, 1_900_000, 0)];
        let (mut rewritten, runs, change) = (0, 10_000, 100);
        for run in 1..=runs {
            files.push(file(2 * run, change, 0));
            let (after, rows) = compacted(&files, 2 * run + 1);
            files = after;
            rewritten += rows;
            assert!(files.len() <= options().compaction_max_files, "{} files after run {run}", files.len());
        }
        assert!(rewritten < 8 * runs * change, "{rewritten} rows rewritten for {} written", runs * change);
    }

    #[test]
    fn a_table_of_many_large_files_is_left_alone() {
        let mut files: Vec<_> = (0..100).map(|i| file(i, 4_000_000, 1000)).collect();
        assert_eq!(due(&options(), &files), vec![]);
        files[7] = file(7, 4_000_000, 3_900_000);
        assert_eq!(due(&options(), &files), vec![], "1 % of all rows");
        assert_eq!(all(&options(), &files).len(), 100);
    }

    #[test]
    fn dead_rows_past_the_limit_are_dropped_where_they_are() {
        let files = vec![file(1, 4_000_000, 2_000_000), file(2, 4_000_000, 600_000), file(3, 10, 0), file(4, 1_000_000, 900_000)];
        assert_eq!(due(&options(), &files), vec![files[0].clone(), files[3].clone()]);
    }

    #[test]
    fn one_small_file_is_not_rewritten_alone() {
        assert_eq!(all(&options(), &[file(1, 10, 0)]), vec![]);
        assert_eq!(due(&options(), &[file(1, 10, 0)]), vec![]);
        assert_eq!(all(&options(), &[file(1, 10, 1)]).len(), 1);
    }
}
