//! Keys at fault, counted over the whole source before the diff fails, so that the message is complete.
//!
//! Memory: at most 1,000 distinct duplicate keys are told apart; beyond that they are only counted.

use std::collections::BTreeMap;

use crate::error::{Error, ErrorCode};

const SAMPLES: usize = 5;
const DISTINCT: usize = 1_000;

/// Null and duplicate keys of all partitions.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// By column: how many rows, and the first few of them.
    nulls: BTreeMap<String, (u64, Vec<String>)>,
    /// By rendered key and what tells it from others that look alike: how often it occurs.
    duplicates: BTreeMap<(String, u64), u64>,
    /// Further rows with duplicate keys that are not told apart.
    more: u64,
}

impl Findings {
    pub(crate) fn is_empty(&self) -> bool {
        self.nulls.is_empty() && self.duplicates.is_empty()
    }

    pub(crate) fn has_nulls(&self) -> bool {
        !self.nulls.is_empty()
    }

    /// A row with a null in key column `column`.
    pub(crate) fn null(&mut self, column: &str, render: impl FnOnce() -> String) {
        let (count, samples) = self.nulls.entry(column.to_string()).or_default();
        *count += 1;
        if samples.len() < SAMPLES {
            samples.push(render());
        }
    }

    /// A row whose key was met before.
    pub(crate) fn duplicate(&mut self, key: (String, u64)) {
        if let Some(count) = self.duplicates.get_mut(&key) {
            *count += 1;
        } else if self.duplicates.len() < DISTINCT {
            self.duplicates.insert(key, 2);
        } else {
            self.more += 1;
        }
    }

    /// Adds duplicates that were counted apart: each count has the key's first row in it.
    pub(crate) fn add(&mut self, other: Self) {
        self.more += other.more;
        for (key, count) in other.duplicates {
            if let Some(known) = self.duplicates.get_mut(&key) {
                *known += count - 1;
            } else if self.duplicates.len() < DISTINCT {
                self.duplicates.insert(key, count);
            } else {
                self.more += count - 1;
            }
        }
    }

    /// The error for what was found, nulls first.
    pub(crate) fn error(&self, table: &str) -> Option<Error> {
        if let Some((column, (count, samples))) = self.nulls.iter().next() {
            let others: Vec<String> =
                self.nulls.iter().skip(1).map(|(column, (count, _))| format!("column {column:?} in {count}")).collect();
            let others = if others.is_empty() { String::new() } else { format!(" (and {})", others.join(", ")) };
            return Some(Error::new(
                ErrorCode::KeyNull,
                format!(
                    "table {table:?}: key column {column:?} is null in {count} source row{}{others}, for example {}. Remedy: fill or filter these rows in the source, or choose another key",
                    plural(*count),
                    samples.join("; ")
                ),
            ));
        }
        if self.duplicates.is_empty() {
            return None;
        }
        let samples: Vec<String> = self.duplicates.iter().take(SAMPLES).map(|((key, _), count)| format!("{key} (count {count})")).collect();
        let keys = self.duplicates.len() as u64;
        let more = if self.more > 0 { format!(", and {} more rows", self.more) } else { String::new() };
        Some(Error::new(
            ErrorCode::KeyDuplicate,
            format!(
                "table {table:?}: {keys} key{} occur{} more than once in the source: {}{more}. Remedy: make the key unique in the source, or add columns to KEY",
                plural(keys),
                if keys == 1 { "s" } else { "" },
                samples.join("; ")
            ),
        ))
    }
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}
