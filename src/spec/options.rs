//! One table of every option: name, default, whether it decides results, and what it does.
//!
//! ```text
//! WITH (…) │ OPTIONS ('incremental.…' …) │ SET (…) │ builder
//!        └──► Options::parse ──► SemanticOptions      part of the revision
//!                            └─► OperationalOptions   changed without a revision, never rebuild
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::FingerprintKind;
use super::sync::RefreshSchedule;
use crate::error::{Error, ErrorCode, Result};

/// Whether an option decides results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionKind {
    /// Part of the definition: a change is a new revision.
    Semantic,
    /// Changed at any time, without a revision.
    Operational,
}

/// One option.
#[derive(Debug)]
pub struct OptionSpec {
    /// Its name, lower case.
    pub name: &'static str,
    /// Whether it decides results.
    pub kind: OptionKind,
    /// The value when it is not set.
    pub default: &'static str,
    /// What it does, one line.
    pub doc: &'static str,
}

const fn option(name: &'static str, kind: OptionKind, default: &'static str, doc: &'static str) -> OptionSpec {
    OptionSpec { name, kind, default, doc }
}

use OptionKind::{Operational, Semantic};

/// Every option.
pub const OPTIONS: &[OptionSpec] = &[
    option("incremental", Semantic, "true", "false: every run hands all rows to the handler, and any SELECT is admitted"),
    option(
        "allow_volatile",
        Semantic,
        "false",
        "true: the handler may call volatile and stable functions; unchanged rows keep their values",
    ),
    option("fingerprint", Semantic, "xxh3", "xxh3, or blake3 where an adversary controls the input"),
    option("max_deleted_fraction", Operational, "0.5", "a run that would delete a larger part of the table is held; NULL: no guard"),
    option("guard_min_rows", Operational, "1000", "the guard looks only at runs that would delete at least this many rows"),
    option("capture_retries", Operational, "2", "how often reading the source is tried again after a transient error"),
    option("capture_backoff", Operational, "1 s", "the wait before the first retry; doubled for each further one"),
    option(
        "hand_on",
        Operational,
        "true",
        "false: a source that is itself an incremental table is read whole, also where its changes are known",
    ),
    option("schedule", Operational, "never", "when run-schedules refreshes it: never, 5min … 30day, or after_source"),
    option("file_skip", Operational, "true", "false: every source file is read, also one that provably did not change"),
    option("handler_concurrency", Operational, "4", "how many handler calls run at once"),
    option("handler_batch_rows", Operational, "8192", "at most this many rows are handed to one handler call"),
    option("verify", Operational, "metadata", "always: data files are hash-verified before they are read"),
    option("older_than", Operational, "7 days", "how long a version that was replaced is kept by vacuum"),
    option("compaction", Operational, "auto", "auto: a published run compacts when a limit below is passed; off: only CALL compacts"),
    option("compaction_max_files", Operational, "32", "automatic compaction starts above this many data files"),
    option(
        "compaction_max_dead_fraction",
        Operational,
        "0.3",
        "automatic compaction starts above this part of dead rows, from 10,000 dead rows on",
    ),
    option("target_file_rows", Operational, "4000000", "a data file is closed at this many rows"),
    option("row_group_rows", Operational, "262144", "rows in one row group of a data file"),
    option("compression", Operational, "zstd(3)", "codec of data files: uncompressed, snappy, zstd(1) to zstd(19)"),
];

/// Options that decide results: part of the definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SemanticOptions {
    /// `fingerprint`.
    pub fingerprint: FingerprintKind,
    /// `allow_volatile`.
    pub allow_volatile: bool,
}

/// Options that never decide results, with their defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct OperationalOptions {
    /// `max_deleted_fraction`; `None` turns the guard off.
    pub max_deleted_fraction: Option<f64>,
    /// `guard_min_rows`.
    pub guard_min_rows: u64,
    /// `capture_retries`.
    pub capture_retries: u32,
    /// `capture_backoff`.
    pub capture_backoff: Duration,
    /// `hand_on`.
    pub hand_on: bool,
    /// `schedule`.
    pub schedule: RefreshSchedule,
    /// `file_skip`.
    pub file_skip: bool,
    /// `handler_concurrency`, at least 1.
    pub handler_concurrency: usize,
    /// `handler_batch_rows`, at least 1.
    pub handler_batch_rows: usize,
    /// `verify = 'always'`.
    pub verify_always: bool,
    /// `older_than`.
    pub older_than: Duration,
    /// `compaction = 'auto'`.
    pub auto_compaction: bool,
    /// `compaction_max_files`.
    pub compaction_max_files: usize,
    /// `compaction_max_dead_fraction`.
    pub compaction_max_dead_fraction: f64,
    /// `target_file_rows`, at least 1.
    pub target_file_rows: usize,
    /// `row_group_rows`, at least 1.
    pub row_group_rows: usize,
    /// `compression`.
    pub compression: String,
}

/// Options as they were set: name to text, unknown names and bad values already refused.
/// `NULL` is kept as the text `NULL`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Options(BTreeMap<String, String>);

impl Options {
    /// Checks names and values. `pairs` are names (any case, with or without the prefix `incremental.`) and texts.
    ///
    /// # Errors
    /// `OPTION_UNKNOWN` for a name that does not exist (the message names the nearest), a name given twice, or a
    /// value that is not admitted.
    pub fn parse<N: AsRef<str>, V: Into<String>>(table: &str, pairs: impl IntoIterator<Item = (N, V)>) -> Result<Self> {
        let mut options = BTreeMap::new();
        for (name, value) in pairs {
            let lower = name.as_ref().to_ascii_lowercase();
            let name = lower.strip_prefix("incremental.").unwrap_or(&lower).to_string();
            if spec(&name).is_none() {
                return Err(unknown(table, &name));
            }
            if options.insert(name.clone(), value.into()).is_some() {
                return Err(refused(table, &name, "is given twice", "give it once"));
            }
        }
        let options = Self(options);
        options.semantic(table)?;
        options.incremental(table)?;
        options.operational(table)?;
        Ok(options)
    }

    /// The names and texts, in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text of one option, if it is set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Only the options of one kind.
    pub fn of_kind(&self, kind: OptionKind) -> Self {
        Self(self.0.iter().filter(|(name, _)| spec(name).is_some_and(|s| s.kind == kind)).map(|(n, v)| (n.clone(), v.clone())).collect())
    }

    /// These options with `changes` set over them and `resets` removed.
    ///
    /// # Errors
    /// `OPTION_UNKNOWN` for a name in `resets` that does not exist.
    pub fn merged(&self, table: &str, changes: &Options, resets: &[String]) -> Result<Self> {
        let mut merged = self.0.clone();
        for name in resets {
            let name = name.to_ascii_lowercase();
            if spec(&name).is_none() {
                return Err(unknown(table, &name));
            }
            merged.remove(&name);
        }
        merged.extend(changes.0.iter().map(|(n, v)| (n.clone(), v.clone())));
        Ok(Self(merged))
    }

    /// The option `incremental`.
    ///
    /// # Errors
    /// `OPTION_UNKNOWN` when the value is not a boolean.
    pub fn incremental(&self, table: &str) -> Result<bool> {
        self.value(table, "incremental", parse_bool)
    }

    /// The options that decide results, defaults filled in.
    ///
    /// # Errors
    /// `OPTION_UNKNOWN` when a value is not admitted.
    pub fn semantic(&self, table: &str) -> Result<SemanticOptions> {
        let fingerprint = self.value(table, "fingerprint", |text| match text.to_ascii_lowercase().as_str() {
            "xxh3" => Some(FingerprintKind::Xxh3),
            "blake3" => Some(FingerprintKind::Blake3),
            _ => None,
        })?;
        Ok(SemanticOptions { fingerprint, allow_volatile: self.value(table, "allow_volatile", parse_bool)? })
    }

    /// The options that never decide results, defaults filled in.
    ///
    /// # Errors
    /// `OPTION_UNKNOWN` when a value is not admitted.
    pub fn operational(&self, table: &str) -> Result<OperationalOptions> {
        let count = |text: &str| text.parse::<usize>().ok().filter(|n| *n > 0);
        let fraction = |text: &str| text.parse::<f64>().ok().filter(|f| (0.0..=1.0).contains(f));
        Ok(OperationalOptions {
            max_deleted_fraction: self.value(table, "max_deleted_fraction", |text| {
                if text.eq_ignore_ascii_case("null") { Some(None) } else { fraction(text).map(Some) }
            })?,
            guard_min_rows: self.value(table, "guard_min_rows", |text| text.parse().ok())?,
            capture_retries: self.value(table, "capture_retries", |text| text.parse().ok().filter(|n| *n <= 20))?,
            capture_backoff: self.value(table, "capture_backoff", parse_duration)?,
            hand_on: self.value(table, "hand_on", parse_bool)?,
            schedule: self.value(table, "schedule", RefreshSchedule::parse)?,
            file_skip: self.value(table, "file_skip", parse_bool)?,
            handler_concurrency: self.value(table, "handler_concurrency", count)?,
            handler_batch_rows: self.value(table, "handler_batch_rows", count)?,
            verify_always: self.value(table, "verify", |text| match text.to_ascii_lowercase().as_str() {
                "metadata" => Some(false),
                "always" => Some(true),
                _ => None,
            })?,
            older_than: self.value(table, "older_than", parse_duration)?,
            auto_compaction: self.value(table, "compaction", |text| match text.to_ascii_lowercase().as_str() {
                "auto" => Some(true),
                "off" => Some(false),
                _ => None,
            })?,
            compaction_max_files: self.value(table, "compaction_max_files", count)?,
            compaction_max_dead_fraction: self.value(table, "compaction_max_dead_fraction", fraction)?,
            target_file_rows: self.value(table, "target_file_rows", count)?,
            row_group_rows: self.value(table, "row_group_rows", count)?,
            compression: self.value(table, "compression", parse_compression)?,
        })
    }

    fn value<T>(&self, table: &str, name: &'static str, parse: impl Fn(&str) -> Option<T>) -> Result<T> {
        let spec = spec(name).ok_or_else(|| unknown(table, name))?;
        let text = self.get(name).unwrap_or(spec.default);
        parse(text.trim())
            .ok_or_else(|| refused(table, name, &format!("cannot be {text:?}"), &format!("{} (default {})", spec.doc, spec.default)))
    }
}

fn spec(name: &str) -> Option<&'static OptionSpec> {
    OPTIONS.iter().find(|spec| spec.name == name)
}

fn unknown(table: &str, name: &str) -> Error {
    let near = |known: &&str| strsim::damerau_levenshtein(known, name);
    let known = OPTIONS.iter().map(|spec| spec.name).chain(CLAUSES.iter().map(|(option, _)| *option));
    let nearest = known.min_by_key(near).unwrap_or_default();
    let remedy = match CLAUSES.iter().find(|(option, _)| *option == nearest) {
        Some((option, clause)) => {
            format!("the nearest is {option:?}, which is an option of CREATE EXTERNAL TABLE only; elsewhere write {clause}")
        }
        None => format!("the nearest option is {nearest:?}"),
    };
    refused(table, name, "does not exist", &remedy)
}

/// What CREATE EXTERNAL TABLE takes as options, and the clauses that say it elsewhere.
const CLAUSES: &[(&str, &str)] =
    &[("source", "FROM …"), ("key", "KEY (…)"), ("track", "TRACK (…)"), ("handler", "AS SELECT … or HANDLER '…'")];

fn refused(table: &str, name: &str, what: &str, remedy: &str) -> Error {
    Error::new(ErrorCode::OptionUnknown, format!("table {table:?}: option {name:?} {what}. Remedy: {remedy}"))
}

fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

fn parse_compression(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let level = text.strip_prefix("zstd(").and_then(|rest| rest.strip_suffix(')')).and_then(|n| n.parse::<u32>().ok());
    (matches!(text.as_str(), "uncompressed" | "snappy") || level.is_some_and(|n| (1..=19).contains(&n))).then_some(text)
}

/// A duration such as `30 s`, `10 minutes`, `7 days`, `0`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..split].parse().ok()?;
    let unit: u64 = match text[split..].trim().to_ascii_lowercase().as_str() {
        "ms" | "millisecond" | "milliseconds" => return Some(Duration::from_millis(number)),
        "s" | "sec" | "second" | "seconds" => 1,
        "m" | "min" | "minute" | "minutes" => 60,
        "h" | "hour" | "hours" => 3_600,
        "d" | "day" | "days" => 86_400,
        "w" | "week" | "weeks" => 604_800,
        _ => return None,
    };
    number.checked_mul(unit).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_admitted_and_every_option_is_read() {
        let all = Options::parse("t", OPTIONS.iter().map(|o| (o.name, o.default))).unwrap();
        assert_eq!(all.operational("t").unwrap(), Options::default().operational("t").unwrap());
        assert_eq!(all.semantic("t").unwrap(), SemanticOptions::default());
        for spec in OPTIONS {
            let error = Options::parse("t", [(spec.name, "no such value")]).unwrap_err();
            assert_eq!(error.code(), ErrorCode::OptionUnknown, "{}", spec.name);
        }
    }

    #[test]
    fn an_unknown_option_names_the_nearest() {
        let error = Options::parse("t", [("compresion", "snappy")]).unwrap_err();
        assert!(error.message().contains("\"compression\""), "{error}");
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("7 days"), Some(Duration::from_secs(604_800)));
        assert_eq!(parse_duration("30s"), Some(Duration::from_secs(30)));
        for bad in ["", "7", "days", "-1 s", "1 fortnight", "99999999999999999999 s"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
