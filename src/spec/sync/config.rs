//! The configuration of a synced table.

use serde::{Deserialize, Serialize};

use super::schedule::{Frequency, TimeOfDay};
use crate::spec::SourceSpec;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant),+ }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word as it is stored and shown.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The value of a word, in any case.
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str().eq_ignore_ascii_case(text.trim()))
            }
        }
    };
}
pub(super) use words;

words! {
    /// How a table is kept in step with its source.
    SyncType {
        /// Every run reads everything.
        FullRefresh = "full_refresh",
        /// Rows at or above the cursor's mark, merged by key.
        Incremental = "incremental",
        /// Rows at or above the cursor's mark, added; every version of a row stays.
        Append = "append",
        /// From the source's own log of changes. Not available yet.
        Cdc = "cdc",
        /// Pushed by the source. Not available yet.
        Webhook = "webhook",
    }
}

impl SyncType {
    /// Whether this version can run it.
    pub fn is_available(self) -> bool {
        !matches!(self, Self::Cdc | Self::Webhook)
    }

    /// Whether it reads from a cursor's mark on.
    pub fn has_cursor(self) -> bool {
        matches!(self, Self::Incremental | Self::Append)
    }
}

words! {
    /// What the values of a cursor column mean.
    FieldType {
        /// Whole numbers.
        Integer = "integer",
        /// Decimals and floating-point numbers.
        Numeric = "numeric",
        /// Instants and date-times.
        Datetime = "datetime",
        /// Days.
        Date = "date",
        /// The same as `datetime`.
        Timestamp = "timestamp",
        /// Identifiers of 24 hexadecimal digits that grow with time, as text.
        Objectid = "objectid",
    }
}

words! {
    /// What becomes of rows whose cursor is null.
    NullPolicy {
        /// The run fails.
        Fail = "fail",
        /// They are read by every run.
        Include = "include",
        /// They are left out, and counted.
        Exclude = "exclude",
    }
}

/// Where a synced table's rows come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncSource {
    /// The connection; `None` for a table of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    /// The parts of the table's name in the connection; for a table of the session catalog, schema and table.
    pub table: Vec<String>,
    /// What brings a table of the session back in another process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SourceSpec>,
}

impl SyncSource {
    /// The name as messages and listings show it.
    pub fn display(&self) -> String {
        let parts = self.connection.iter().chain(&self.table);
        parts.cloned().collect::<Vec<_>>().join(".")
    }
}

/// One condition of `row_filters`, as it was written; values become the column's type when a run reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterSpec {
    /// The column.
    pub column: String,
    /// `>`, `>=`, `<`, `<=`, `=`, `!=`, `IN`, `NOT IN`.
    pub operator: String,
    /// A text, number or boolean; a list of them for `IN` and `NOT IN`.
    pub value: serde_json::Value,
}

/// One saved configuration of a synced table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncConfig {
    /// Where the rows come from; fixed for the table's life.
    pub source: SyncSource,
    /// Whether the schedule runs it; `None`: nobody said, so it does once a type is chosen.
    pub should_sync: Option<bool>,
    /// How it is kept in step; `None`: not chosen yet.
    pub sync_type: Option<SyncType>,
    /// The cursor column.
    pub incremental_field: Option<String>,
    /// What its values mean.
    pub incremental_field_type: Option<FieldType>,
    /// How far before its mark a run begins to read, 0 to 5,184,000.
    pub incremental_field_lookback_seconds: u32,
    /// What becomes of null cursors; `None`: include when incremental, fail when appending.
    pub incremental_field_null_policy: Option<NullPolicy>,
    /// The key; empty: none.
    pub primary_key_columns: Vec<String>,
    /// The columns that are synced; `None`: all. Key and cursor columns always are.
    pub enabled_columns: Option<Vec<String>>,
    /// Conditions that all must hold for a row to be synced.
    pub row_filters: Vec<FilterSpec>,
    /// How often the schedule runs it.
    pub sync_frequency: Frequency,
    /// Where in the day the schedule is anchored, UTC.
    pub sync_time_of_day: Option<TimeOfDay>,
    /// How often keys are compared to find rows that the source deleted.
    pub reconcile_frequency: Frequency,
    /// Free text.
    pub description: Option<String>,
}

impl SyncConfig {
    /// The configuration of a table that was only named.
    pub fn new(source: SyncSource) -> Self {
        Self {
            source,
            should_sync: None,
            sync_type: None,
            incremental_field: None,
            incremental_field_type: None,
            incremental_field_lookback_seconds: 0,
            incremental_field_null_policy: None,
            primary_key_columns: vec![],
            enabled_columns: None,
            row_filters: vec![],
            sync_frequency: Frequency::DEFAULT,
            sync_time_of_day: None,
            reconcile_frequency: Frequency::NEVER,
            description: None,
        }
    }

    /// Whether the schedule runs it, the default filled in.
    pub fn should_sync(&self) -> bool {
        self.should_sync.unwrap_or(self.sync_type.is_some())
    }

    /// The policy for null cursors, its default filled in.
    pub fn null_policy(&self) -> NullPolicy {
        self.incremental_field_null_policy.unwrap_or(match self.sync_type {
            Some(SyncType::Append) => NullPolicy::Fail,
            _ => NullPolicy::Include,
        })
    }

    /// The key that stored rows are unique by: none when appending, since versions of one row stand side by side.
    pub fn merge_key(&self) -> &[String] {
        match self.sync_type {
            Some(SyncType::Append) => &[],
            _ => &self.primary_key_columns,
        }
    }
}
