//! Vacuum: which objects nothing needs any more.
//!
//! ```text
//! every object of the incarnation, by kind
//!   log entry, run record, foreign ────────────────────────────────────────────► kept for ever
//!   named by a retained version, by a load that is under way, or by a finished draft that is young enough ──► kept
//!   written after the newest version, or by a sealed run that may still publish ► kept: its run's base is the newest
//!   of a draft at work ─────────────────────────────────────────────────────────► kept
//!   else ───────────────────────────────────────────────────────────────────────► garbage
//! ```
//!
//! A run reads its base before it writes, so a file older than the newest slot belongs to a run that can only lose. Files of
//! old versions could be named again by a rollback, however late it wakes up, or deleted by a vacuum that does; so they go
//! only below the *floor* of the newest version, which a [`plan`] raises by publishing a fence first, and which every later
//! version inherits. Ages are by the store's timestamps. Memory: one name per object. Never deletes a kind that is not
//! named here.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;

use super::incarnation::{Incarnation, Slot};
use super::lease::micros;
use super::manifest::Manifest;
use super::paths::{self, Kind};
use crate::error::{Error, ErrorCode, Result};
use crate::spec::{RunId, RunMode};

/// A draft without an end, or a writer that does not get on, is taken for dead no sooner.
pub(super) const DRAFT_PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);
/// A mark for the store's clock is used within moments.
pub(super) const MARK_PATIENCE: Duration = Duration::from_secs(300);
/// So many small objects of old versions are worth a fence.
const FENCE_WORTH: usize = 16;
const DELETE_CHUNK: usize = 1000;

/// What a vacuum found, or did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VacuumReport {
    /// The objects, relative to the incarnation's folder, and their sizes; at the end what was left beside them, by probes,
    /// earlier incarnations and writers on the local disk that died, relative to the table's folder.
    pub objects: Vec<(String, u64)>,
    /// Whether they are deleted; `false` for a dry run.
    pub deleted: bool,
}

/// What a vacuum has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VacuumPlan {
    /// The floor of the version that must be published before anything is deleted, if one must.
    pub fence: Option<u64>,
    /// What may be deleted then, with sizes, in path order.
    pub objects: Vec<(String, u64)>,
}

/// Every object that must stay: see the module's picture.
///
/// # Errors
/// `STORE_FAILED`, and `HISTORY_MISSING` or `CORRUPT` when the newest version is incomplete.
pub async fn reachable(inc: &Incarnation, older_than: Duration) -> Result<HashSet<String>> {
    let mut survey = Survey::new(inc, older_than).await?;
    let floor = survey.horizon().await?;
    let found = survey.garbage(floor, false).await?;
    let garbage: HashSet<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
    let listed = survey.objects.iter().map(|object| &object.relative).filter(|path| !garbage.contains(path.as_str()));
    Ok(listed.chain(&survey.referenced).cloned().collect())
}

/// Every object that nothing needs when versions are retained by their age, with its size, in path order.
///
/// # Errors
/// Those of [`reachable`].
pub async fn garbage(inc: &Incarnation, older_than: Duration) -> Result<Vec<(String, u64)>> {
    let mut survey = Survey::new(inc, older_than).await?;
    let floor = survey.horizon().await?;
    survey.garbage(floor, false).await
}

/// What [`garbage`] would be if a version were published now.
///
/// # Errors
/// Those of [`reachable`].
pub async fn preview(inc: &Incarnation, older_than: Duration) -> Result<Vec<(String, u64)>> {
    let mut survey = Survey::new(inc, older_than).await?;
    let floor = survey.horizon().await?;
    survey.garbage(floor, true).await
}

/// What is to be done: `unfinished` says that a run may yet publish on the newest version as its base.
///
/// # Errors
/// Those of [`reachable`].
pub async fn plan(inc: &Incarnation, older_than: Duration, unfinished: bool) -> Result<VacuumPlan> {
    let mut survey = Survey::new(inc, older_than).await?;
    let (standing, mut floor) = (survey.standing_floor(), survey.horizon().await?);
    if older_than.is_zero() && survey.newest.is_some() {
        floor += 1; // the newest version itself, once the fence follows it
    }
    let is_file = |(path, _): &(String, u64)| matches!(Kind::of(path), Kind::RunFile(_));
    // A fence makes small objects of its own: it is published for files of rows, or for more than a few others.
    let worth = |garbage: &[(String, u64)]| garbage.len() >= FENCE_WORTH || garbage.iter().any(is_file);
    let raises = floor > standing && worth(&survey.garbage(floor, false).await?);
    if survey.newest.is_some() && (unfinished || raises) {
        let floor = floor.max(standing);
        return Ok(VacuumPlan { fence: Some(floor), objects: survey.garbage(floor, true).await? });
    }
    Ok(VacuumPlan { fence: None, objects: survey.garbage(standing, false).await? })
}

/// Every object that nothing needs below the floor of the newest version, which is the fence that [`plan`] asked for.
///
/// # Errors
/// Those of [`reachable`].
pub async fn below_floor(inc: &Incarnation, older_than: Duration) -> Result<Vec<(String, u64)>> {
    let mut survey = Survey::new(inc, older_than).await?;
    survey.garbage(survey.standing_floor(), false).await
}

/// Deletes what [`garbage`] returned; returns the bytes. May be repeated.
///
/// # Errors
/// `STORE_FAILED`; part of the objects may be deleted then.
pub async fn delete(inc: &Incarnation, garbage: &[(String, u64)]) -> Result<u64> {
    let mut freed = 0;
    for chunk in garbage.chunks(DELETE_CHUNK) {
        let deletable = |path: &str| paths::is_safe(path) && matches!(Kind::of(path), Kind::Part | Kind::RunFile(_) | Kind::ClockMark);
        if let Some((path, _)) = chunk.iter().find(|(path, _)| !deletable(path)) {
            return Err(Error::internal(format!("table {:?}: vacuum was to delete {path:?}", inc.name())));
        }
        inc.objects().delete(chunk.iter().map(|(path, _)| inc.path(path)).collect()).await?;
        freed += chunk.iter().map(|(_, bytes)| bytes).sum::<u64>();
    }
    Ok(freed)
}

struct Listed {
    relative: String,
    bytes: u64,
    modified: i64,
}

/// What the listing says of one run.
#[derive(Default)]
struct RunFacts {
    newest: i64,
    started: usize,
    ended: usize,
    drafted: Option<i64>,
}

struct Survey<'a> {
    inc: &'a Incarnation,
    older_than: i64,
    /// Whether a version is taken to be published now.
    fenced: bool,
    now: i64,
    /// The newest version with the store's timestamp of its slot.
    newest: Option<Newest>,
    referenced: HashSet<String>,
    objects: Vec<Listed>,
}

#[derive(Clone)]
struct Newest {
    slot: Slot,
    manifest: Arc<Manifest>,
    at: i64,
}

impl<'a> Survey<'a> {
    async fn new(inc: &'a Incarnation, older_than: Duration) -> Result<Self> {
        let now = inc.store_now().await?;
        let dated = match inc.newest_version().await? {
            Some(slot) => inc.dated_slot(slot.version).await?,
            None => None,
        };
        let newest = match dated {
            Some((slot, at)) => Some(Newest { manifest: inc.manifest(&slot).await?, slot, at }),
            None => None,
        };
        let (referenced, objects) = (HashSet::new(), Vec::new());
        let mut survey = Self { inc, older_than: micros(older_than), fenced: false, now, newest, referenced, objects };
        survey.list().await?;
        Ok(survey)
    }

    fn standing_floor(&self) -> u64 {
        self.newest.as_ref().map_or(1, |newest| newest.manifest.floor.max(1))
    }

    /// The oldest version that is retained by age: the newest, or one whose successor is young.
    async fn horizon(&self) -> Result<u64> {
        let Some(newest) = &self.newest else { return Ok(1) };
        let (mut oldest, mut successor_at) = (newest.slot.version, newest.at);
        while oldest > 1 && self.now.saturating_sub(successor_at) < self.older_than {
            let Some((_, at)) = self.inc.dated_slot(oldest - 1).await? else { break };
            (oldest, successor_at) = (oldest - 1, at);
        }
        Ok(oldest)
    }

    /// What nothing needs when the versions from `floor` on are retained; `fenced`: once another version is published.
    async fn garbage(&mut self, floor: u64, fenced: bool) -> Result<Vec<(String, u64)>> {
        self.fenced = fenced;
        self.referenced.clear();
        self.mark_load().await?;
        self.mark_versions(floor).await?;
        self.judge().await
    }

    /// Marks the files of a synced table's load that is not complete yet: the next run goes on with them.
    async fn mark_load(&mut self) -> Result<()> {
        let published = self.newest.as_ref().and_then(|newest| newest.manifest.sync.as_ref()).map_or(0, |sync| sync.generation);
        let load = match self.inc.newest_load().await {
            // The next run starts over where the note cannot be read, and its files are waste.
            Err(error) if matches!(error.code(), ErrorCode::Corrupt | ErrorCode::HistoryMissing) => None,
            load => load?.filter(|load| load.generation > published),
        };
        let files = load.map(|load| load.files).unwrap_or_default();
        self.referenced.extend(files.iter().flat_map(|file| file.objects()).map(|object| object.path.clone()));
        Ok(())
    }

    /// Marks what the retained versions name. The newest version's files are in every version that can follow now.
    async fn mark_versions(&mut self, floor: u64) -> Result<()> {
        let Some(newest) = self.newest.clone() else { return Ok(()) };
        self.mark(&newest.slot, &newest.manifest).await?;
        if floor > newest.slot.version {
            self.referenced.remove(&newest.slot.manifest);
        }
        for version in (floor..newest.slot.version).rev() {
            let Some(slot) = self.inc.slot(version).await? else { break };
            let marked = match self.inc.manifest(&slot).await {
                Ok(manifest) => self.mark(&slot, &manifest).await,
                Err(e) => Err(e),
            };
            match marked {
                // Lost; what is left of it is no use.
                Err(e) if e.code() == ErrorCode::HistoryMissing => {}
                other => other?,
            }
        }
        Ok(())
    }

    async fn mark(&mut self, slot: &Slot, manifest: &Manifest) -> Result<()> {
        self.referenced.insert(slot.manifest.clone());
        self.referenced.extend(manifest.source.iter().map(|object| object.path.clone()));
        for part in &manifest.parts {
            if !self.referenced.contains(&part.path) {
                let files = self.inc.read_part(part).await?;
                self.referenced.extend(files.iter().flat_map(|file| file.objects()).map(|object| object.path.clone()));
                self.referenced.insert(part.path.clone());
            }
        }
        Ok(())
    }

    async fn list(&mut self) -> Result<()> {
        let mut listed = self.inc.objects().list(&self.inc.core.root);
        while let Some(object) = listed.try_next().await? {
            if let Some(relative) = paths::relative_to(&self.inc.core.root, &object.location) {
                self.objects.push(Listed { relative, bytes: object.size, modified: object.last_modified.timestamp_micros() });
            }
        }
        self.objects.sort_by(|a, b| a.relative.cmp(&b.relative));
        Ok(())
    }

    async fn judge(&mut self) -> Result<Vec<(String, u64)>> {
        let runs = self.judge_runs().await?;
        let young = |object: &Listed, patience: i64| self.now.saturating_sub(object.modified) < patience;
        let is_garbage = |object: &&Listed| match Kind::of(&object.relative) {
            Kind::LogEntry | Kind::RunRecord | Kind::Foreign => false,
            Kind::ClockMark => !young(object, micros(MARK_PATIENCE)),
            _ if self.referenced.contains(&object.relative) => false,
            Kind::Part => self.is_outrun(object.modified),
            Kind::RunFile(run) => match runs.get(run) {
                Some(Verdict::Keep) | None => false,
                Some(Verdict::Outrun) => self.is_outrun(object.modified),
                Some(Verdict::Delete) => true,
            },
        };
        Ok(self.objects.iter().filter(is_garbage).map(|object| (object.relative.clone(), object.bytes)).collect())
    }

    /// Whether a run that wrote something then can only lose its slot.
    fn is_outrun(&self, written: i64) -> bool {
        match &self.newest {
            _ if self.fenced => written < self.now,
            Some(newest) => written < newest.at,
            None => false,
        }
    }

    /// A verdict on every run that has files which no retained version names.
    async fn judge_runs(&mut self) -> Result<BTreeMap<String, Verdict>> {
        let mut facts: BTreeMap<String, RunFacts> = BTreeMap::new();
        let mut asked: HashSet<String> = HashSet::new();
        for object in &self.objects {
            let mut segments = object.relative.split('/');
            let (Some("runs" | "data"), Some(run), Some(name)) = (segments.next(), segments.next(), segments.next()) else { continue };
            let fact = facts.entry(run.to_string()).or_default();
            fact.newest = fact.newest.max(object.modified);
            match Kind::of(&object.relative) {
                Kind::RunRecord if name == "draft.json" => fact.drafted = Some(object.modified),
                Kind::RunRecord if name.ends_with(".attempt.json") => fact.started += 1,
                Kind::RunRecord if name.ends_with(".end.json") => fact.ended += 1,
                Kind::RunFile(run) if !self.referenced.contains(&object.relative) => {
                    asked.insert(run.to_string());
                }
                _ => {}
            }
        }
        let mut verdicts = BTreeMap::new();
        for (run, fact) in facts.into_iter().filter(|(run, _)| asked.contains(run)) {
            let verdict = self.judge_run(&run, &fact).await?;
            verdicts.insert(run, verdict);
        }
        Ok(verdicts)
    }

    async fn judge_run(&mut self, run: &str, fact: &RunFacts) -> Result<Verdict> {
        let Ok(id) = RunId::new(run) else { return Ok(Verdict::Keep) };
        let store = self.inc.run(&id);
        let request = match store.request().await {
            Err(e) if e.code() == ErrorCode::Corrupt => return Ok(Verdict::Keep),
            request => request?,
        };
        // Compactions have no request, drafts always have one.
        let is_draft = fact.drafted.is_some() || request.is_some_and(|request| request.mode == RunMode::Draft);
        if !is_draft {
            let newest = self.newest.as_ref().map(|newest| newest.slot.version);
            let may_publish = !self.fenced
                && match store.seal().await {
                    Err(e) if e.code() == ErrorCode::Corrupt => true,
                    seal => seal?.is_some_and(|seal| seal.base == newest),
                };
            return Ok(if may_publish { Verdict::Keep } else { Verdict::Outrun });
        }
        if let Some(drafted) = fact.drafted {
            if self.now.saturating_sub(drafted) < self.older_than {
                let files = match store.draft().await {
                    Err(e) if e.code() == ErrorCode::Corrupt => return Ok(Verdict::Keep),
                    draft => draft?.map(|draft| draft.files).unwrap_or_default(),
                };
                self.referenced.extend(files.iter().flat_map(|file| file.objects()).map(|object| object.path.clone()));
            }
            return Ok(Verdict::Delete);
        }
        let patience =
            if fact.started > fact.ended || fact.started == 0 { self.older_than.max(micros(DRAFT_PATIENCE)) } else { self.older_than };
        Ok(if self.now.saturating_sub(fact.newest) < patience { Verdict::Keep } else { Verdict::Delete })
    }
}

/// What becomes of a run's files that no version names.
enum Verdict {
    Keep,
    /// Garbage where the newest version is younger.
    Outrun,
    Delete,
}
