//! What a diff found, told when every partition has ended well.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use roaring::RoaringTreemap;

use super::origin::Origins;

/// The counts of a diff and the base's rows that are no longer live.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DiffReport {
    /// Source rows whose key the baseline does not have.
    pub created: u64,
    /// Source rows whose key the baseline has with another fingerprint.
    pub updated: u64,
    /// Baseline rows whose key the source does not have.
    pub deleted: u64,
    /// Source rows that the baseline has.
    pub unchanged: u64,
    /// Source rows that were read.
    pub scanned: u64,
    /// Source rows that were not read, because they are known to be unchanged.
    pub skipped: u64,
    /// Replaced and deleted rows, by the position of their data file in the base's file list.
    pub dead: BTreeMap<u32, RoaringTreemap>,
    /// What was seen of the source files that the rows come from.
    pub origins: Origins,
    /// The most memory that was reserved at once.
    pub peak_memory_bytes: u64,
    /// Bytes that were written to disk to keep within memory.
    pub spilled_bytes: u64,
}

/// The side channel of a diff.
#[derive(Debug, Default)]
pub struct DiffOutcome(OnceLock<DiffReport>);

impl DiffOutcome {
    /// The report; `None` while not every partition has ended well.
    pub fn report(&self) -> Option<&DiffReport> {
        self.0.get()
    }

    /// Sets the report; whether it was the first.
    pub(crate) fn set(&self, report: DiffReport) -> bool {
        self.0.set(report).is_ok()
    }
}
