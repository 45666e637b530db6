//! What the store keeps of one run: each record is created once and never changed.
//!
//! ```text
//! runs/<run>/request.json            what was asked for
//!            <n>.attempt.json        attempt n started     <n>.end.json   … and ended, with its summary
//!            seal.json               what the run pinned: capture, base, revision, counts
//!            cancel.json             somebody asked for an end
//!            draft.json              a draft's complete output
//!            lease/<n>.json          a draft's own lease: it is at work
//! ```
//!
//! Whoever creates the seal first, every attempt of the run goes on from it. Memory: one record. Never deletes.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use arrow_schema::SchemaRef;
use object_store::path::Path;

use super::incarnation::Incarnation;
use super::log::Log;
use super::manifest::{DataFile, ObjectRef, SourceState};
use crate::error::{Error, Result};
use crate::spec::sync::{SyncReport, SyncState, SyncTrigger};
use crate::spec::{RunId, RunMode, RunReason, RunSummary};

/// What was asked for under a run id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRequest {
    /// The run.
    pub run: RunId,
    /// Its mode.
    pub mode: RunMode,
    /// Whether FULL was asked for.
    pub full: bool,
    /// Microseconds since 1970.
    pub requested_at: i64,
    /// Who asked, where a synced table is synced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<SyncTrigger>,
}

/// What a run pinned before its handler started. Attempts of the run go on from it and never read the source again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seal {
    /// The run.
    pub run: RunId,
    /// The attempt that sealed.
    pub attempt: String,
    /// The run's mode.
    pub mode: RunMode,
    /// The version that was diffed against; the run publishes the one after it.
    pub base: Option<u64>,
    /// The revision that the run publishes.
    pub revision: u64,
    /// Why the run does what it does.
    pub reason: RunReason,
    /// New rows.
    pub created: u64,
    /// Changed rows.
    pub updated: u64,
    /// Removed rows.
    pub deleted: u64,
    /// Rows that are as they were.
    pub unchanged: u64,
    /// Rows read from the source.
    pub scanned: u64,
    /// Source files read.
    pub files_read: u64,
    /// Source files skipped.
    pub files_skipped: u64,
    /// The source's identity.
    pub source: SourceState,
    /// When the source was read, microseconds since 1970.
    pub captured_at: i64,
    /// Milliseconds that the capture took.
    pub ms_capture: u64,
    /// The capture's peak of reserved memory.
    pub peak_memory_bytes: u64,
    /// What the capture spilled to disk.
    pub spilled_bytes: u64,
    /// The pinned rows.
    pub capture: Capture,
    /// What a run of a synced table came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<Box<SealedSync>>,
}

/// What a run of a synced table came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedSync {
    /// Where the table stands once the run is published.
    pub state: SyncState,
    /// What the run reports.
    pub report: SyncReport,
}

/// The rows that a run pinned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capture {
    /// The handler's input, still to be handled.
    Input {
        /// Parquet files of created and updated rows.
        changes: Vec<ObjectRef>,
        /// Rows of the base that are replaced or removed.
        dead: Vec<DeadRows>,
    },
    /// The output of a proven handler, ready to publish.
    Output {
        /// The new data files.
        files: Vec<DataFile>,
        /// Rows of the base that are replaced or removed.
        dead: Vec<DeadRows>,
        /// Milliseconds in the handler.
        ms_handle: u64,
        /// Milliseconds of writing.
        ms_write: u64,
    },
}

/// Rows of one of the base's data files that a run replaces or removes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadRows {
    /// The data file's path.
    pub data_path: String,
    /// A deletion vector with the newly dead rows alone.
    pub positions: ObjectRef,
    /// How many they are.
    pub rows: u64,
}

/// The complete output of a draft.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DraftOutput {
    /// The attempt that wrote it.
    pub attempt: String,
    /// The revision that it shows.
    pub revision: u64,
    /// The output's schema.
    pub output_schema: SchemaRef,
    /// The key columns.
    pub key: Vec<String>,
    /// The rows.
    pub files: Vec<DataFile>,
    /// The run's summary.
    pub summary: RunSummary,
}

/// One attempt of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRecord {
    /// Its id.
    pub attempt: String,
    /// When it started, microseconds since 1970.
    pub started_at: i64,
    /// Its summary, once it has ended.
    pub end: Option<RunSummary>,
}

/// What became of a record that is created once per run.
#[derive(Debug, Clone, PartialEq)]
pub enum Written<T> {
    /// It is ours.
    Won,
    /// This one was first, and it stands.
    Lost(T),
}

/// Whether our seal stands.
pub type SealOutcome = Written<Seal>;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct AttemptStart {
    attempt: String,
    started_at: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct AttemptEnd {
    attempt: String,
    summary: RunSummary,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct CancelRequest {
    requested_at: i64,
}

/// What the store keeps of one run.
#[derive(Debug, Clone)]
pub struct RunStore {
    incarnation: Incarnation,
    run: RunId,
    attempts: Arc<Log>,
}

impl RunStore {
    pub(super) fn new(incarnation: Incarnation, run: RunId) -> Self {
        let folder = incarnation.path(&format!("runs/{run}"));
        let attempts = Log::plain(incarnation.objects().clone(), folder, ".attempt.json");
        Self { incarnation, run, attempts: Arc::new(attempts) }
    }

    /// The run's id.
    pub fn id(&self) -> &RunId {
        &self.run
    }

    fn path(&self, name: &str) -> Path {
        self.incarnation.path(&format!("runs/{}/{name}", self.run))
    }

    async fn load<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        Ok(self.incarnation.objects().load(&self.path(name)).await?.map(|(body, _)| body))
    }

    async fn create<T: Serialize + DeserializeOwned>(&self, name: &str, body: &T) -> Result<Written<T>> {
        Ok(match self.incarnation.objects().create_record(&self.path(name), body).await? {
            None => Written::Won,
            Some(standing) => Written::Lost(standing),
        })
    }

    /// What was asked for, if the run is known.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`.
    pub async fn request(&self) -> Result<Option<RunRequest>> {
        self.load("request.json").await
    }

    /// Records what was asked for; an earlier request stands.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`.
    pub async fn write_request(&self, request: &RunRequest) -> Result<Written<RunRequest>> {
        self.create("request.json", request).await
    }

    /// What the run pinned, if it is sealed.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`.
    pub async fn seal(&self) -> Result<Option<Seal>> {
        let seal: Option<Seal> = self.load("seal.json").await?;
        if let Some(seal) = &seal {
            self.check_seal(seal)?;
        }
        Ok(seal)
    }

    fn check_seal(&self, seal: &Seal) -> Result<()> {
        let path = self.path("seal.json");
        let (objects, files, dead) = match &seal.capture {
            Capture::Input { changes, dead } => (changes.as_slice(), [].as_slice(), dead),
            Capture::Output { files, dead, .. } => ([].as_slice(), files.as_slice(), dead),
        };
        self.incarnation.check_files(&path, files)?;
        let dead = dead.iter().flat_map(|d| [d.data_path.as_str(), d.positions.path.as_str()]);
        self.incarnation.check_paths(&path, objects.iter().map(|object| object.path.as_str()).chain(dead))
    }

    /// Pins the capture. The first seal stands, whoever wrote it; a later attempt adopts it.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`.
    pub async fn write_seal(&self, seal: &Seal) -> Result<SealOutcome> {
        let outcome = self.create("seal.json", seal).await?;
        if let Written::Lost(standing) = &outcome {
            self.check_seal(standing)?;
        }
        Ok(outcome)
    }

    /// When somebody asked for the run's end, microseconds since 1970.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`.
    pub async fn cancelled(&self) -> Result<Option<i64>> {
        Ok(self.load::<CancelRequest>("cancel.json").await?.map(|cancel| cancel.requested_at))
    }

    /// Asks for the run's end. Asking again does nothing.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`.
    pub async fn write_cancel(&self) -> Result<()> {
        let requested_at = self.incarnation.objects().env.clock.now_micros();
        self.create("cancel.json", &CancelRequest { requested_at }).await.map(|_| ())
    }

    /// The draft's output, if it is complete.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`.
    pub async fn draft(&self) -> Result<Option<DraftOutput>> {
        let draft: Option<DraftOutput> = self.load("draft.json").await?;
        if let Some(draft) = &draft {
            self.incarnation.check_files(&self.path("draft.json"), &draft.files)?;
        }
        Ok(draft)
    }

    /// Names the draft's output. The first one stands.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`.
    pub async fn write_draft(&self, draft: &DraftOutput) -> Result<Written<DraftOutput>> {
        self.create("draft.json", draft).await
    }

    /// Records that an attempt starts. Returns its number.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`.
    pub async fn start_attempt(&self, attempt: &str) -> Result<u64> {
        let objects = self.incarnation.objects();
        let start = AttemptStart { attempt: attempt.to_string(), started_at: objects.env.clock.now_micros() };
        loop {
            let number = self.attempts.newest().await? + 1;
            if self.attempts.append_known(number, &objects.env.ids.id()?, &start).await?.is_none() {
                return Ok(number);
            }
        }
    }

    /// Records that an attempt has ended. The first record stands.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`.
    pub async fn end_attempt(&self, attempt: &str, summary: &RunSummary) -> Result<()> {
        for number in (1..=self.attempts.newest().await?).rev() {
            let (start, _) = self.attempts.entry::<AttemptStart>(number).await?;
            if start.attempt == attempt {
                let end = AttemptEnd { attempt: attempt.to_string(), summary: summary.clone() };
                return self.create(&end_name(number), &end).await.map(|_| ());
            }
        }
        Err(Error::internal(format!("table {:?}: attempt {attempt} of run {} ended without a start", self.incarnation.name(), self.run)))
    }

    /// Every attempt, oldest first.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`.
    pub async fn attempts(&self) -> Result<Vec<AttemptRecord>> {
        let mut attempts = Vec::new();
        for number in 1..=self.attempts.newest().await? {
            let (start, _) = self.attempts.entry::<AttemptStart>(number).await?;
            let end: Option<AttemptEnd> = self.load(&end_name(number)).await?;
            attempts.push(AttemptRecord { attempt: start.attempt, started_at: start.started_at, end: end.map(|end| end.summary) });
        }
        Ok(attempts)
    }
}

fn end_name(number: u64) -> String {
    format!("{number:020}.end.json")
}
