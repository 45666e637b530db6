//! Names of a table's objects.
//!
//! ```text
//! <location>/table/…                 the table log
//! <location>/<incarnation>/…         everything else; `Kind::of` names every kind of object there
//! ```
//!
//! Pure text. Paths that were read from an object are untrusted and pass [`is_safe`] before they are used.

use object_store::path::{Path, PathPart};

/// The folder of the table log, under the location.
pub(super) const TABLE_LOG: &str = "table";
/// The folder of the start-up probe's objects, under the location.
pub(super) const PROBE: &str = "probe";

/// Whether `relative` is a path below the incarnation's folder that cannot lead out of it: non-empty segments of ASCII
/// letters, digits, `_`, `-`, `.` and `=`, none of them `.` or `..`.
pub(super) fn is_safe(relative: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '=');
    relative.len() <= 1024 && relative.split('/').all(|s| !s.is_empty() && s != "." && s != ".." && s.chars().all(legal))
}

/// `relative` below `root`. Characters that could lead out of it are percent-encoded.
pub(super) fn below(root: &Path, relative: &str) -> Path {
    root.parts().chain(relative.split('/').filter(|s| !s.is_empty()).map(PathPart::from)).collect()
}

/// `path` relative to `root`, if it is below it.
pub(super) fn relative_to(root: &Path, path: &Path) -> Option<String> {
    let parts: Vec<String> = path.prefix_match(root)?.map(|p| p.as_ref().to_string()).collect();
    Some(parts.join("/"))
}

/// The kinds of objects in an incarnation's folder. Retention decides by kind, so a new one must be named here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    /// An entry of a log (versions, revisions, lease, sync, loads, schedule): never deleted.
    LogEntry,
    /// A record of a run (request, seal, cancel, draft, attempts): never deleted.
    RunRecord,
    /// An immutable part of versions: manifests, source states, statistics.
    Part,
    /// A file that an attempt of this run wrote: capture, data, index, deletion vector.
    RunFile(&'a str),
    /// A mark whose only use is its timestamp.
    ClockMark,
    /// Nothing that this crate writes: never touched.
    Foreign,
}

impl<'a> Kind<'a> {
    /// The kind of the object at `relative`.
    pub(super) fn of(relative: &'a str) -> Self {
        let segments: Vec<&str> = relative.split('/').collect();
        match segments.as_slice() {
            ["versions" | "revisions" | "lease" | "sync" | "loads" | "schedule", _] => Self::LogEntry,
            ["manifests" | "sources" | "stats", _] => Self::Part,
            ["clock", _] => Self::ClockMark,
            ["runs", _, _] | ["runs", _, "lease", _] => Self::RunRecord,
            ["runs" | "data", run, _, _, ..] => Self::RunFile(run),
            _ => Self::Foreign,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_paths_are_told_apart() {
        for bad in ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "a/%2e%2e/b", "a\0", "é", "a#1", &"x".repeat(2000)] {
            assert!(!is_safe(bad), "{bad:?}");
        }
        assert!(is_safe("data/run-1/abc/part.index.parquet"));
    }

    #[test]
    fn paths_stay_below_their_root() {
        let root = Path::parse("w/t%20x").unwrap();
        assert_eq!(below(&root, "a/../../b").as_ref(), "w/t%20x/a/%2E%2E/%2E%2E/b");
        assert_eq!(relative_to(&root, &below(&root, "runs/r/seal.json")).as_deref(), Some("runs/r/seal.json"));
        assert_eq!(relative_to(&root, &Path::from("w/other")), None);
    }

    #[test]
    fn every_object_has_a_kind() {
        assert_eq!(Kind::of("data/r/a/x.dv"), Kind::RunFile("r"));
        assert_eq!(Kind::of("runs/r/a/capture/x.parquet"), Kind::RunFile("r"));
        assert_eq!(Kind::of("runs/r/seal.json"), Kind::RunRecord);
        assert_eq!(Kind::of("runs/r/lease/1.json"), Kind::RunRecord);
        assert_eq!(Kind::of("notes.txt"), Kind::Foreign);
    }
}
