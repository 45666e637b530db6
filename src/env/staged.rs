//! Files on the local disk that were not given their name: a writer is at work on them, or it died.
//!
//! ```text
//! <folder>/data/r1/a/part-0.parquet#1    hidden from every listing of the store; only the file system shows it
//! ```
//!
//! Memory: one name per such file. Never follows a symbolic link, never touches a file that has its name.

use std::fs::{DirEntry, Metadata};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use datafusion::common::runtime::SpawnedTask;

/// Separates an object's name from the number of its writer.
pub(super) const MARK: char = '#';

/// A file without its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Staged {
    /// Below the folder that was searched, segments separated by `/`.
    pub relative: String,
    pub bytes: u64,
    /// Microseconds since 1970, by the file system.
    pub modified: i64,
}

/// Whether a path is of such a file; no object's name has that form on the local disk.
pub(crate) fn is_staged(path: &str) -> bool {
    let number = path.rsplit_once(MARK).map(|(name, number)| (!name.is_empty() && !name.ends_with('/'), number));
    number.is_some_and(|(named, number)| named && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Every such file below `folder`, in path order; none when there is no such folder.
pub(crate) async fn find(folder: PathBuf) -> io::Result<Vec<Staged>> {
    let search = move || {
        let mut found = vec![];
        search(&folder, "", &mut found)?;
        found.sort_by(|a: &Staged, b| a.relative.cmp(&b.relative));
        Ok(found)
    };
    SpawnedTask::spawn_blocking(search).await.map_err(io::Error::other)?
}

/// Removes files that [`find`] named; those that are gone are no error.
pub(crate) async fn remove(folder: PathBuf, relative: Vec<String>) -> io::Result<()> {
    let remove = move || {
        for path in relative.iter().filter(|path| is_staged(path)) {
            ignore_missing(std::fs::remove_file(folder.join(path)))?;
        }
        Ok(())
    };
    SpawnedTask::spawn_blocking(remove).await.map_err(io::Error::other)?
}

fn search(folder: &Path, below: &str, found: &mut Vec<Staged>) -> io::Result<()> {
    let Some(entries) = ignore_missing(std::fs::read_dir(folder))? else { return Ok(()) };
    for entry in entries {
        let Some((entry, metadata)) = seen(entry?)? else { continue };
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let relative = if below.is_empty() { name.to_string() } else { format!("{below}/{name}") };
        if metadata.is_dir() {
            search(&entry.path(), &relative, found)?;
        } else if metadata.is_file() && is_staged(&relative) {
            let modified = metadata.modified()?.duration_since(UNIX_EPOCH).map_or(0, |age| age.as_micros());
            found.push(Staged { relative, bytes: metadata.len(), modified: i64::try_from(modified).unwrap_or(i64::MAX) });
        }
    }
    Ok(())
}

/// The entry itself, not what it links to; `None` when it is gone by now.
fn seen(entry: DirEntry) -> io::Result<Option<(DirEntry, Metadata)>> {
    Ok(ignore_missing(entry.metadata())?.map(|metadata| (entry, metadata)))
}

fn ignore_missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_files_without_a_name_are_found_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("data/r#1");
        std::fs::create_dir_all(&deep).unwrap();
        let names = ["data/r#1/f.parquet", "data/r#1/f.parquet#1", "data/r#1/f.parquet#12", "data/r#1/f#x", "data/r#1/#1", "g.json#3"];
        for name in names {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let staged = ["data/r#1/f.parquet#1", "data/r#1/f.parquet#12", "g.json#3"];
        let found = find(folder.path().to_path_buf()).await.unwrap();
        assert_eq!(found.iter().map(|file| file.relative.as_str()).collect::<Vec<_>>(), staged);
        assert!(found.iter().all(|file| file.bytes == file.relative.len() as u64 && file.modified > 1_700_000_000_000_000));
        let named = names.iter().map(ToString::to_string).collect();
        remove(folder.path().to_path_buf(), named).await.unwrap();
        assert!(names.iter().all(|name| folder.path().join(name).exists() != staged.contains(name)));
        assert!(find(folder.path().join("nowhere")).await.unwrap().is_empty());
    }
}
