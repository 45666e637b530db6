//! The run's summary: the row that `REFRESH` returns and `incremental_runs` lists.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, UInt64Array};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use serde::{Deserialize, Serialize};

use super::sync::SyncReport;

macro_rules! text_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// The word as it is stored and shown.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }
        }
    };
}

text_enum! {
    /// What a run is for.
    RunMode {
        /// Runs the newest saved revision over all rows and publishes nothing.
        Draft = "draft",
        /// Runs the active revision and publishes.
        Published = "published",
    }
}

text_enum! {
    /// Where a run stands.
    RunState {
        /// At work.
        Running = "running",
        /// Its version is accepted.
        Published = "published",
        /// A draft that ended well.
        Completed = "completed",
        /// Ended with an error; nothing published changed.
        Failed = "failed",
        /// Stopped by the delete guard, sealed.
        Held = "held",
        /// Cancelled on request.
        Cancelled = "cancelled",
        /// Its process is gone.
        Abandoned = "abandoned",
        /// The store did not say whether the version was created.
        Unknown = "unknown",
        /// Not started: a table that it reads failed.
        Skipped = "skipped",
    }
}

impl RunState {
    /// Whether nothing can change it any more.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Published | Self::Completed | Self::Failed | Self::Cancelled | Self::Skipped)
    }
}

text_enum! {
    /// Why a run did what it did.
    RunReason {
        /// The first version: all rows.
        Initial = "initial",
        /// New, changed and removed rows.
        Incremental = "incremental",
        /// Nothing changed; the handler was not called.
        NoChange = "no_change",
        /// Rows were only removed; the handler was not called.
        DeleteOnly = "delete_only",
        /// Another revision than the last version's: all rows.
        RebuildRevision = "rebuild_revision",
        /// FULL was asked for: all rows.
        RebuildRequested = "rebuild_requested",
        /// The definition says `incremental = false`: all rows.
        Full = "full",
        /// A draft: all rows.
        Draft = "draft",
    }
}

/// What one run did. Times are microseconds since 1970 in UTC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the columns' meanings are listed in the README, one row each
pub struct RunSummary {
    pub run_id: String,
    pub version: Option<u64>,
    pub mode: RunMode,
    pub revision: Option<u64>,
    pub state: RunState,
    pub reason: Option<RunReason>,
    pub rows_created: Option<u64>,
    pub rows_updated: Option<u64>,
    pub rows_deleted: Option<u64>,
    pub rows_unchanged: Option<u64>,
    pub rows_total: Option<u64>,
    pub handler_rows: Option<u64>,
    pub files_read: Option<u64>,
    pub files_skipped: Option<u64>,
    pub bytes_written: Option<u64>,
    pub peak_memory_bytes: Option<u64>,
    pub spilled_bytes: Option<u64>,
    pub requested_at: Option<i64>,
    pub captured_at: Option<i64>,
    pub started_at: Option<i64>,
    pub ended_at: Option<i64>,
    pub ms_capture: Option<u64>,
    pub ms_handle: Option<u64>,
    pub ms_write: Option<u64>,
    pub ms_publish: Option<u64>,
    pub error_code: Option<String>,
    pub error_message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_synced_at: Option<i64>,
    /// What a run of a synced table reports besides; it is listed by `sync_runs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<Box<SyncReport>>,
}

impl RunSummary {
    /// A summary with nothing known yet.
    pub fn new(run_id: impl Into<String>, mode: RunMode, state: RunState) -> Self {
        Self {
            run_id: run_id.into(),
            version: None,
            mode,
            revision: None,
            state,
            reason: None,
            rows_created: None,
            rows_updated: None,
            rows_deleted: None,
            rows_unchanged: None,
            rows_total: None,
            handler_rows: None,
            files_read: None,
            files_skipped: None,
            bytes_written: None,
            peak_memory_bytes: None,
            spilled_bytes: None,
            requested_at: None,
            captured_at: None,
            started_at: None,
            ended_at: None,
            ms_capture: None,
            ms_handle: None,
            ms_write: None,
            ms_publish: None,
            error_code: None,
            error_message: None,
            source_synced_at: None,
            sync: None,
        }
    }

    /// The columns, in order.
    pub fn schema() -> SchemaRef {
        let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let text = |name: &str, nullable| Field::new(name, DataType::Utf8, nullable);
        let count = |name: &str| Field::new(name, DataType::UInt64, true);
        let at = |name: &str| Field::new(name, time.clone(), true);
        let fields = vec![
            text("run_id", false),
            count("version"),
            text("mode", false),
            count("revision"),
            text("state", false),
            text("reason", true),
            count("rows_created"),
            count("rows_updated"),
            count("rows_deleted"),
            count("rows_unchanged"),
            count("rows_total"),
            count("handler_rows"),
            count("files_read"),
            count("files_skipped"),
            count("bytes_written"),
            count("peak_memory_bytes"),
            count("spilled_bytes"),
            at("requested_at"),
            at("captured_at"),
            at("started_at"),
            at("ended_at"),
            count("ms_capture"),
            count("ms_handle"),
            count("ms_write"),
            count("ms_publish"),
            text("error_code", true),
            text("error_message", true),
            at("source_synced_at"),
        ];
        Arc::new(Schema::new(fields))
    }

    /// The rows as one batch of [`RunSummary::schema`].
    ///
    /// # Errors
    /// Never for rows of this type; Arrow's constructor is fallible.
    pub fn to_batch(rows: &[RunSummary]) -> Result<RecordBatch, ArrowError> {
        let text = |get: fn(&RunSummary) -> Option<&str>| Arc::new(rows.iter().map(get).collect::<StringArray>()) as ArrayRef;
        let count = |get: fn(&RunSummary) -> Option<u64>| Arc::new(rows.iter().map(get).collect::<UInt64Array>()) as ArrayRef;
        let at = |get: fn(&RunSummary) -> Option<i64>| {
            let values: Int64Array = rows.iter().map(get).collect();
            Arc::new(values.reinterpret_cast::<arrow::datatypes::TimestampMicrosecondType>().with_timezone("UTC")) as ArrayRef
        };
        let columns = vec![
            text(|r| Some(&r.run_id)),
            count(|r| r.version),
            text(|r| Some(r.mode.as_str())),
            count(|r| r.revision),
            text(|r| Some(r.state.as_str())),
            text(|r| r.reason.map(RunReason::as_str)),
            count(|r| r.rows_created),
            count(|r| r.rows_updated),
            count(|r| r.rows_deleted),
            count(|r| r.rows_unchanged),
            count(|r| r.rows_total),
            count(|r| r.handler_rows),
            count(|r| r.files_read),
            count(|r| r.files_skipped),
            count(|r| r.bytes_written),
            count(|r| r.peak_memory_bytes),
            count(|r| r.spilled_bytes),
            at(|r| r.requested_at),
            at(|r| r.captured_at),
            at(|r| r.started_at),
            at(|r| r.ended_at),
            count(|r| r.ms_capture),
            count(|r| r.ms_handle),
            count(|r| r.ms_write),
            count(|r| r.ms_publish),
            text(|r| r.error_code.as_deref()),
            text(|r| r.error_message.as_deref()),
            at(|r| r.source_synced_at),
        ];
        RecordBatch::try_new(Self::schema(), columns)
    }
}
