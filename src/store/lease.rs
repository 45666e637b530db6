//! The lease: at most one published run, compaction or vacuum of a table works at a time.
//!
//! ```text
//! lease/1 taken ─ 2 renewed ─ 3 renewed ─ … ─ n released │ or no renewal for 30 s ─► the next may take it
//! ```
//!
//! It only saves work: correctness rests on the version slots. It ages by the store's own timestamps, so clocks that
//! differ between machines do not matter. Memory: one entry. Never makes anybody wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;
use serde::{Deserialize, Serialize};

use super::incarnation::Incarnation;
use super::lock;
use super::log::{Appended, Log};
use crate::error::{Error, ErrorCode, Result};
use crate::spec::RunId;

/// How often taking and releasing is tried again after another entry came between.
const ROUNDS: usize = 16;

/// How long a lease lasts without renewal, and how often it is renewed.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseTiming {
    pub(super) lasts: Duration,
    pub(super) renew: Duration,
}

impl Default for LeaseTiming {
    fn default() -> Self {
        Self { lasts: Duration::from_secs(30), renew: Duration::from_secs(10) }
    }
}

/// Where a lease is kept: drafts touch nothing that they share, so each has its own.
#[derive(Debug, Clone)]
enum Scope {
    Table,
    Draft(Arc<Log>),
}

impl Scope {
    fn log<'a>(&'a self, incarnation: &'a Incarnation) -> &'a Log {
        match self {
            Self::Table => &incarnation.core.lease,
            Self::Draft(log) => log,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Taken,
    Renewed,
    Released,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LeaseRecord {
    action: Action,
    run: RunId,
    attempt: String,
}

/// Who holds the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseHolder {
    /// The run.
    pub run: RunId,
    /// Its attempt.
    pub attempt: String,
    /// When the lease ends unless it is renewed, microseconds since 1970 by the store's clock.
    pub until_micros: i64,
}

/// A lease that is held and renewed. Dropping it stops the renewal; it ends within 30 s then.
#[derive(Debug)]
pub struct Lease {
    incarnation: Incarnation,
    scope: Scope,
    record: LeaseRecord,
    shared: Arc<Shared>,
    renewal: SpawnedTask<()>,
}

#[derive(Debug)]
struct Shared {
    /// The number of the newest entry that is ours.
    number: AtomicU64,
    lost: AtomicBool,
}

impl Incarnation {
    /// Takes the lease and starts to renew it.
    ///
    /// # Errors
    /// `RUN_ACTIVE` when another attempt holds it: the message names the run and says until when.
    pub async fn take_lease(&self, run: &RunId, attempt: &str) -> Result<Lease> {
        self.take(Scope::Table, run, attempt).await
    }

    /// Takes the draft's own lease: others see that it is at work, and it excludes only attempts of the same run.
    ///
    /// # Errors
    /// `RUN_ACTIVE` when another attempt of this draft is at work.
    pub async fn take_draft_lease(&self, run: &RunId, attempt: &str) -> Result<Lease> {
        self.take(self.draft_scope(run), run, attempt).await
    }

    fn draft_scope(&self, run: &RunId) -> Scope {
        Scope::Draft(Arc::new(Log::plain(self.objects().clone(), self.path(&format!("runs/{run}/lease")), ".json")))
    }

    async fn take(&self, scope: Scope, run: &RunId, attempt: &str) -> Result<Lease> {
        self.store().probe().await?;
        let record = LeaseRecord { action: Action::Taken, run: run.clone(), attempt: attempt.to_string() };
        for _ in 0..ROUNDS {
            let newest = scope.log(self).newest().await?;
            if let Some(holder) = self.holder(&scope, newest, true).await?.filter(|holder| holder.attempt != attempt) {
                return Err(self.is_active(&holder));
            }
            let writer = self.objects().env.ids.id()?;
            if scope.log(self).append_known(newest + 1, &writer, &record).await?.is_none() {
                return Ok(self.hold(scope, record, newest + 1));
            }
        }
        Err(Error::new(
            ErrorCode::RunActive,
            format!("table {:?}: others take the lease all the time. Remedy: repeat the statement", self.name()),
        ))
    }

    fn hold(&self, scope: Scope, record: LeaseRecord, number: u64) -> Lease {
        let shared = Arc::new(Shared { number: AtomicU64::new(number), lost: AtomicBool::new(false) });
        let renewal = SpawnedTask::spawn(renew(self.clone(), scope.clone(), record.clone(), Arc::clone(&shared)));
        Lease { incarnation: self.clone(), scope, record, shared, renewal }
    }

    fn is_active(&self, holder: &LeaseHolder) -> Error {
        let until = chrono::DateTime::from_timestamp_micros(holder.until_micros)
            .map_or_else(|| "a time out of range".to_string(), |t| t.to_rfc3339_opts(chrono::SecondsFormat::Secs, true));
        Error::new(
            ErrorCode::RunActive,
            format!(
                "table {:?}: run {} is active, until {until} unless it goes on longer. \
                 Remedy: wait for it, or CALL incremental.cancel('{}', '{}') (of a synced table: CALL sync.cancel)",
                self.name(),
                holder.run,
                self.name().replace('\'', "''"),
                holder.run
            ),
        )
    }

    /// Who holds the lease now. Where nothing may be written, the age is judged by this machine's clock.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`.
    pub async fn active_lease(&self) -> Result<Option<LeaseHolder>> {
        self.active(&Scope::Table).await
    }

    /// Who is at work on this draft.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`.
    pub async fn active_draft_lease(&self, run: &RunId) -> Result<Option<LeaseHolder>> {
        self.active(&self.draft_scope(run)).await
    }

    async fn active(&self, scope: &Scope) -> Result<Option<LeaseHolder>> {
        let newest = scope.log(self).newest().await?;
        self.holder(scope, newest, false).await
    }

    async fn holder(&self, scope: &Scope, newest: u64, strict: bool) -> Result<Option<LeaseHolder>> {
        if newest == 0 {
            return Ok(None);
        }
        let (record, written) = match scope.log(self).entry::<LeaseRecord>(newest).await {
            // The lease only saves work: an entry that cannot be read holds nobody up.
            Err(error) if error.code() == ErrorCode::Corrupt => {
                log::warn!("an entry of the lease is passed over: {error}");
                return Ok(None);
            }
            entry => entry?,
        };
        if record.action == Action::Released {
            return Ok(None);
        }
        let now = match self.store_now().await {
            Err(_) if !strict => self.objects().env.clock.now_micros(),
            now => now?,
        };
        let until_micros = written.saturating_add(micros(lock(&self.core.timing).lasts));
        Ok((now < until_micros).then_some(LeaseHolder { run: record.run, attempt: record.attempt, until_micros }))
    }
}

impl Lease {
    /// Whether somebody else took the lease, or it could not be renewed for as long as it lasts.
    pub fn lost(&self) -> bool {
        self.shared.lost.load(Ordering::Acquire)
    }

    /// Ends the lease. Nothing happens when it was lost.
    ///
    /// # Errors
    /// `STORE_FAILED`; the lease ends by itself then.
    pub async fn release(self) -> Result<()> {
        let Self { incarnation, scope, record, shared, renewal } = self;
        drop(renewal);
        let record = LeaseRecord { action: Action::Released, ..record };
        let mut number = shared.number.load(Ordering::Acquire) + 1;
        for _ in 0..ROUNDS {
            let writer = incarnation.objects().env.ids.id()?;
            match scope.log(&incarnation).append_known(number, &writer, &record).await? {
                // A renewal that was under way when it was stopped.
                Some(other) if other.attempt == record.attempt => number += 1,
                _ => return Ok(()),
            }
        }
        Ok(())
    }
}

async fn renew(incarnation: Incarnation, scope: Scope, record: LeaseRecord, shared: Arc<Shared>) {
    let record = LeaseRecord { action: Action::Renewed, ..record };
    let timing = *lock(&incarnation.core.timing);
    let clock = Arc::clone(&incarnation.objects().env.clock);
    let mut confirmed = clock.elapsed();
    loop {
        clock.sleep(timing.renew).await;
        let sent = clock.elapsed();
        match renew_once(&incarnation, &scope, &record, &shared).await {
            Ok(true) => confirmed = sent,
            Ok(false) => break,
            Err(error) => log::warn!("table {:?}: the lease of run {} was not renewed: {error}", incarnation.name(), record.run),
        }
        if clock.elapsed().saturating_sub(confirmed) >= timing.lasts {
            break;
        }
    }
    shared.lost.store(true, Ordering::Release);
}

/// False when somebody else has the lease.
async fn renew_once(incarnation: &Incarnation, scope: &Scope, record: &LeaseRecord, shared: &Shared) -> Result<bool> {
    let number = shared.number.load(Ordering::Acquire) + 1;
    let writer = incarnation.objects().env.ids.id()?;
    match scope.log(incarnation).append(number, &writer, record).await? {
        Appended::Taken(other) if other.attempt != record.attempt => return Ok(false),
        Appended::Won | Appended::Taken(_) => shared.number.store(number, Ordering::Release),
        Appended::Unknown(error) => return Err(incarnation.objects().failed("writing", &scope.log(incarnation).path(number), error)),
    }
    Ok(true)
}

pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
