//! The file list of a version, in parts that versions share.
//!
//! ```text
//! base parts   [64 files] [64 files] [7 files]
//!                  │ a file changed   │
//! new parts    reused ┘  [63 …          + 7 + added files]      small parts are folded in, so their number stays small
//! ```
//!
//! Bytes written follow the changed parts, not the table. Memory: one version's file list. Never changes a part.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::stream::{StreamExt, TryStreamExt};

use super::envelope;
use super::incarnation::Incarnation;
use super::manifest::{DataFile, FileList, Manifest, ObjectRef, SourceState};
use crate::error::{Error, Result};

/// Files in one part.
const PART_FILES: usize = 64;
/// A part with fewer files is written again together with what is new.
const KEPT_PART_FILES: usize = 32;
/// Parts that are read at once.
const READS: usize = 8;

impl Incarnation {
    /// Every data file of a version, in the order that positions in it refer to.
    ///
    /// # Errors
    /// `HISTORY_MISSING` when a part is gone, `CORRUPT` when it is damaged.
    pub async fn files(&self, manifest: &Manifest) -> Result<Arc<Vec<DataFile>>> {
        if let Some(known) = self.core.file_lists.get(&manifest.parts) {
            return Ok(known);
        }
        let files = Arc::new(self.read_parts(&manifest.parts).await?.concat());
        self.core.file_lists.put(manifest.parts.clone(), Arc::clone(&files));
        Ok(files)
    }

    async fn read_parts(&self, parts: &[ObjectRef]) -> Result<Vec<Vec<DataFile>>> {
        let reads = parts.iter().cloned().map(|part| async move { self.read_part(&part).await });
        futures::stream::iter(reads).buffered(READS).try_collect().await
    }

    pub(super) async fn read_part(&self, part: &ObjectRef) -> Result<Vec<DataFile>> {
        let bytes = self.read_object(part).await?;
        let path = self.path(&part.path);
        let list: FileList = self.objects().decode(&path, &bytes)?;
        self.check_files(&path, &list.files)?;
        Ok(list.files)
    }

    /// Every path that data files name must be safe.
    pub(super) fn check_files(&self, named_by: &object_store::path::Path, files: &[DataFile]) -> Result<()> {
        self.check_paths(named_by, files.iter().flat_map(DataFile::objects).map(|object| object.path.as_str()))
    }

    /// The identity of the source that a version saw.
    ///
    /// # Errors
    /// `HISTORY_MISSING` when it is gone, `CORRUPT` when it is damaged.
    pub async fn source_state(&self, manifest: &Manifest) -> Result<SourceState> {
        let Some(object) = &manifest.source else { return Ok(SourceState::default()) };
        let bytes = self.read_object(object).await?;
        self.objects().decode(&self.path(&object.path), &bytes)
    }

    /// Writes the identity of the source.
    ///
    /// # Errors
    /// `STORE_FAILED`.
    pub async fn write_source_state(&self, state: &SourceState) -> Result<ObjectRef> {
        let id = self.objects().env.ids.id()?;
        self.write_object(&format!("sources/{id}.json"), envelope::encode(&id, state)?).await
    }

    /// The parts of a version with these files: parts of the base whose files are all unchanged are named again, the
    /// rest is written. The files' order may change.
    ///
    /// # Errors
    /// `STORE_FAILED`, and `HISTORY_MISSING` or `CORRUPT` for the base's parts.
    pub async fn write_files(&self, base_parts: &[ObjectRef], files: &[DataFile]) -> Result<Vec<ObjectRef>> {
        let wanted: HashMap<&str, &DataFile> = files.iter().map(|file| (file.data.path.as_str(), file)).collect();
        if wanted.len() != files.len() {
            return Err(Error::internal(format!("table {:?}: a data file is listed twice", self.name())));
        }
        let base = self.read_parts(base_parts).await?;
        let unchanged = |file: &DataFile| wanted.get(file.data.path.as_str()).is_some_and(|wanted| *wanted == file);
        let whole: Vec<bool> = base.iter().map(|part| part.iter().all(unchanged)).collect();
        let same = whole.iter().all(|whole| *whole) && base.iter().map(Vec::len).sum::<usize>() == files.len();
        if same {
            return Ok(base_parts.to_vec());
        }
        let mut parts = Vec::new();
        let mut kept: HashSet<&str> = HashSet::new();
        for ((object, part), whole) in base_parts.iter().zip(&base).zip(whole) {
            if whole && part.len() >= KEPT_PART_FILES {
                parts.push(object.clone());
                kept.extend(part.iter().map(|file| file.data.path.as_str()));
            }
        }
        let rest: Vec<&DataFile> = files.iter().filter(|file| !kept.contains(file.data.path.as_str())).collect();
        for chunk in rest.chunks(PART_FILES) {
            let list = FileList { files: chunk.iter().map(|file| (*file).clone()).collect() };
            let id = self.objects().env.ids.id()?;
            parts.push(self.write_object(&format!("manifests/{id}.json"), envelope::encode(&id, &list)?).await?);
        }
        Ok(parts)
    }
}

impl DataFile {
    /// The objects that the file consists of.
    pub fn objects(&self) -> impl Iterator<Item = &ObjectRef> {
        [&self.data, &self.index].into_iter().chain(self.deletions.as_ref().map(|dv| &dv.object))
    }
}
