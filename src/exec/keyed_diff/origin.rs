//! Which source files are no longer what the index says of them.
//!
//! ```text
//! baseline row   written from file 3        unchanged row   read from file 3      as it should be
//! baseline row   written from file 3        unchanged row   read from file 5      3 and 5 are inexact: the row moved
//! ```
//!
//! A file is *exact* when the live index rows with its ordinal are exactly its rows: only then may a later run leave it
//! unread. Created and updated rows are written with the ordinal of their file; unchanged ones keep what they have.
//! Memory: one number per inexact file. Never counts a file whose rows were not seen.

use std::collections::BTreeSet;

/// What a diff saw of the files that its rows come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins {
    /// Ordinals of files that are inexact: an unchanged row was read from one of them and is indexed under another.
    pub inexact: BTreeSet<i32>,
    /// Whether the file of a row is not known, so that any file may be inexact.
    pub unknown: bool,
}

impl Origins {
    /// Whether the file is exact, if it was read or left out.
    pub fn is_exact(&self, ordinal: i32) -> bool {
        !self.unknown && !self.inexact.contains(&ordinal)
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.inexact.extend(other.inexact);
        self.unknown |= other.unknown;
    }
}

/// The origins that one partition noted.
#[derive(Debug, Default)]
pub(crate) struct OriginNotes {
    origins: Origins,
    /// The last move, which is mostly the next one too.
    last: Option<(i32, i32)>,
}

impl OriginNotes {
    /// An unchanged row that is indexed under file `was` and was read from file `is`.
    #[inline]
    pub(crate) fn unchanged(&mut self, was: i32, is: i32) {
        if was != is && self.last != Some((was, is)) {
            self.last = Some((was, is));
            self.origins.inexact.extend([was, is]);
        }
    }

    /// Whether rows of these files have nothing to tell: they are of one file, and that one and all of the `baseline` are
    /// known to be inexact.
    pub(crate) fn has_all(&self, baseline: &BTreeSet<i32>, ordinals: &[i32]) -> bool {
        let inexact = &self.origins.inexact;
        let one = ordinals.first().filter(|first| inexact.contains(first) && ordinals.iter().all(|ordinal| ordinal == *first));
        one.is_some() && baseline.is_subset(inexact)
    }

    /// Rows that were read from these files; `None`: from files that are not known.
    pub(crate) fn read(&mut self, ordinals: Option<&[i32]>) {
        self.origins.unknown |= ordinals.is_none_or(|ordinals| ordinals.iter().any(|ordinal| *ordinal < 0));
    }

    pub(crate) fn take(&mut self) -> Origins {
        std::mem::take(self).origins
    }
}
