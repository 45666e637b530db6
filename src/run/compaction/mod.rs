//! Compaction: the same rows in fewer files, without the dead ones.
//!
//! ```text
//! files with dead rows, and small files ─► CompactExec (live rows, their own versions) ─► MergeExec ─► a row-neutral version
//!                                          in key order where every file is
//! ```
//!
//! Memory: one row group per file that is read, and what the writers reserve. The handler is never called.

mod choose;

use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use datafusion::physical_plan::{ExecutionPlan, collect};

use crate::error::{Error, ErrorCode, Result};
use crate::exec::compact::{CompactExec, are_in_key_order, in_key_order};
use crate::exec::merge::{MergeExec, decode_file_list};
use crate::spec::{OperationalOptions, RunId, RunState, RunSummary};
use crate::store::files::{PairSpec, WriterConfig};
use crate::store::{DataFile, VersionKind};
use crate::table::TableHandle;

use super::attempt::{Attempt, Base, newest_base};
use super::commit::{NewVersion, commit_version};
use super::{Host, RefreshRequest};

/// Compacts the table: `None` when there is nothing to gain.
///
/// # Errors
/// `NOT_PUBLISHED`, `RUN_ACTIVE`, `RUN_CONFLICT`, and the store's errors; the published rows are what they were.
pub async fn compact(host: &Host, table: &Arc<TableHandle>) -> Result<Option<RunSummary>> {
    let run = RunId::new(host.env.ids.id()?)?;
    let mut attempt = Attempt::open(host, table, &RefreshRequest::default(), run).await?;
    let lease = attempt.incarnation.take_lease(&attempt.run, &attempt.id).await?;
    let result = async {
        attempt.base = newest_base(&attempt.incarnation).await?;
        if attempt.base.is_none() { Err(table.not_published()) } else { rewrite(&attempt, choose::all).await }
    };
    let result = result.await;
    if let Err(error) = lease.release().await {
        log::warn!("a lease was not released and will expire: {error}");
    }
    table.follow().await;
    result
}

/// Whether [`after_run`] has something to do. A doubt counts as yes.
pub(super) async fn is_due(run: &Attempt) -> bool {
    match newest_base(&run.incarnation).await {
        Ok(Some(base)) => run.options.auto_compaction && !choose::due(&run.options, &base.files).is_empty(),
        Ok(None) => false,
        Err(_) => true,
    }
}

/// Automatic compaction, still under the run's lease. The run is published whatever becomes of it.
pub(super) async fn after_run(run: &Attempt) {
    let result = async {
        let Some(base) = newest_base(&run.incarnation).await? else { return Ok(None) };
        if !run.options.auto_compaction || choose::due(&run.options, &base.files).is_empty() {
            return Ok(None);
        }
        let mut attempt = run.clone();
        attempt.run = RunId::new(run.host.env.ids.id()?)?;
        attempt.runs = run.incarnation.run(&attempt.run);
        attempt.id = run.host.env.ids.id()?;
        attempt.base = Some(base);
        // The run may have saved the revision that it published.
        attempt.definitions = Arc::new(run.incarnation.definitions().await?);
        rewrite(&attempt, choose::due).await
    };
    if let Err(error) = Box::pin(result).await {
        log::warn!("table {:?}: automatic compaction failed and will be tried after the next run: {error}", run.name());
    }
}

/// Which of the files are rewritten.
type Choose = fn(&OperationalOptions, &[DataFile]) -> Vec<DataFile>;

async fn rewrite(attempt: &Attempt, choose: Choose) -> Result<Option<RunSummary>> {
    let started = attempt.elapsed();
    let Some(base) = &attempt.base else { return Ok(None) };
    let chosen = choose(&attempt.options, &base.files);
    if chosen.is_empty() {
        return Ok(None);
    }
    let revision = attempt.definitions.revision(base.manifest.revision);
    let revision = revision.ok_or_else(|| Error::internal("the newest version names an unknown revision"))?;
    let written = write_live_rows(attempt, base, &chosen).await?;
    let expected: u64 = chosen.iter().map(DataFile::live_rows).sum();
    let rows: u64 = written.iter().map(|file| file.rows).sum();
    if rows != expected {
        return Err(Error::internal(format!("compaction wrote {rows} rows where {expected} are live")));
    }
    let mut files: Vec<DataFile> = base.files.iter().filter(|file| !chosen.contains(file)).cloned().collect();
    files.extend(written.iter().cloned());
    let mut summary = attempt.summary(RunState::Published);
    summary.revision = Some(revision.number);
    summary.handler_rows = Some(0);
    summary.bytes_written = Some(written.iter().map(|file| file.data.bytes + file.index.bytes).sum());
    let source = attempt.incarnation.source_state(&base.manifest).await?;
    let sync = base.manifest.sync.clone();
    let new = NewVersion { kind: VersionKind::Compaction, revision, files, source, base: Some(base), floor: 0, sync };
    commit_version(attempt, new, summary, started).await.map(Some)
}

async fn write_live_rows(attempt: &Attempt, base: &Base, chosen: &[DataFile]) -> Result<Vec<DataFile>> {
    let manifest = &base.manifest;
    let pairs = PairSpec {
        incarnation: attempt.incarnation.clone(),
        dir: attempt.data_dir(),
        output_schema: Arc::clone(&manifest.output_schema),
        key: manifest.key.clone(),
        version: attempt.next_version(),
        config: WriterConfig::from_options(&attempt.options)?,
    };
    let pairs = Arc::new(pairs);
    let rows = || CompactExec::new(attempt.incarnation.clone(), chosen.to_vec(), Arc::clone(&manifest.output_schema));
    if !manifest.key.is_empty() && are_in_key_order(&attempt.incarnation, chosen, &key_schema(&pairs)?).await? {
        match write_rows(attempt, in_key_order(rows(), &manifest.key)?, &pairs).await {
            // Reading all files at once takes more memory than one after the other.
            Err(error) if error.code() == ErrorCode::ResourcesExhausted => {}
            outcome => return outcome,
        }
    }
    write_rows(attempt, Arc::new(rows()), &pairs).await
}

/// The key columns as an index file has them.
fn key_schema(pairs: &PairSpec) -> Result<SchemaRef> {
    let index = pairs.index_schema()?;
    let key = index.fields().iter().take(pairs.key.len()).cloned();
    Ok(Arc::new(Schema::new(key.collect::<Vec<_>>())))
}

async fn write_rows(attempt: &Attempt, rows: Arc<dyn ExecutionPlan>, pairs: &Arc<PairSpec>) -> Result<Vec<DataFile>> {
    let plan: Arc<dyn ExecutionPlan> = Arc::new(MergeExec::new(rows, Arc::clone(pairs)));
    let context = format!("table {:?}: compaction failed; the published rows are what they were", attempt.name());
    let batches = collect(plan, attempt.host.state.task_ctx()).await;
    let batches = batches.map_err(|e| Error::from_datafusion(e, ErrorCode::StoreFailed, context))?;
    let lists = batches.iter().map(decode_file_list).collect::<Result<Vec<_>>>()?;
    Ok(lists.into_iter().flatten().collect())
}
