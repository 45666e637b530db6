//! Tests of the store at its surface, over memory and over a folder of the local disk.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow_schema::{DataType, Field, Schema};
use async_trait::async_trait;
use bytes::Bytes;
use datafusion::execution::object_store::ObjectStoreUrl;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use tempfile::TempDir;

use super::lease::LeaseTiming;
use super::*;
use crate::env::{DurableLocalStore, Env, Location};
use crate::error::{ErrorCode, Result};
use crate::spec::*;

const NOW: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(3600);

fn table_on(store: Arc<dyn ObjectStore>, root: Path) -> TableStore {
    TableStore::new(Env::default(), Location { store_url: ObjectStoreUrl::local_filesystem(), store, root })
}

pub(super) fn in_memory() -> TableStore {
    table_on(Arc::new(InMemory::new()), Path::from("w/t"))
}

fn on_disk(folder: &TempDir) -> TableStore {
    table_on(Arc::new(DurableLocalStore::new()), Path::from_absolute_path(folder.path()).unwrap().join("t"))
}

/// The same folder as another process sees it.
fn elsewhere(table: &TableStore) -> TableStore {
    TableStore::new(table.env().clone(), table.location().clone())
}

pub(super) fn run(id: &str) -> RunId {
    RunId::new(id).unwrap()
}

fn code<T>(result: Result<T>) -> Option<ErrorCode> {
    result.err().map(|e| e.code())
}

pub(super) fn summary(id: &str, mode: RunMode, state: RunState) -> RunSummary {
    RunSummary::new(id, mode, state)
}

fn manifest(inc: &Incarnation, version: u64, parts: Vec<ObjectRef>) -> Manifest {
    Manifest {
        format: FORMAT,
        incarnation: inc.id().to_string(),
        version,
        base: version.checked_sub(1).filter(|base| *base > 0),
        kind: VersionKind::Run,
        revision: 1,
        committed_at: version as i64,
        key: vec!["id".into()],
        output_schema: Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true)])),
        parts,
        source: None,
        rows: 0,
        delta: VersionDelta::default(),
        floor: 0,
        summary: summary("r", RunMode::Published, RunState::Published),
        sync: None,
    }
}

async fn data_file(inc: &Incarnation, dir: &str, name: &str) -> DataFile {
    let data = inc.write_object(&format!("{dir}/{name}.parquet"), Bytes::from(format!("data {name}"))).await.unwrap();
    let index = inc.write_object(&format!("{dir}/{name}.index.parquet"), Bytes::from(format!("index {name}"))).await.unwrap();
    DataFile { data, index, rows: 1, deletions: None, added_in: 1, bounds: BTreeMap::new(), sources: vec![] }
}

/// A version whose only file is new; `files` of the version before are dropped.
pub(super) async fn publish(inc: &Incarnation, version: u64) -> Slot {
    let id = run(&format!("run-{version}"));
    let file = data_file(inc, &format!("data/{id}/a{version}"), "f").await;
    let parts = inc.write_files(&[], &[file]).await.unwrap();
    request(inc, &id, RunMode::Published).await;
    match inc.commit(&manifest(inc, version, parts), &id, &format!("a{version}")).await.unwrap() {
        CommitOutcome::Committed(slot) => slot,
        CommitOutcome::Lost(slot) => panic!("lost to {slot:?}"),
    }
}

pub(super) async fn request(inc: &Incarnation, id: &RunId, mode: RunMode) {
    let request = RunRequest { run: id.clone(), mode, full: false, requested_at: 1, trigger: None };
    inc.run(id).write_request(&request).await.unwrap();
}

pub(super) fn seal(id: &RunId, attempt: &str, base: Option<u64>, changes: Vec<ObjectRef>) -> Seal {
    Seal {
        run: id.clone(),
        attempt: attempt.into(),
        mode: RunMode::Published,
        base,
        revision: 1,
        reason: RunReason::Incremental,
        created: 1,
        updated: 0,
        deleted: 0,
        unchanged: 0,
        scanned: 1,
        files_read: 1,
        files_skipped: 0,
        source: SourceState::default(),
        captured_at: 1,
        ms_capture: 1,
        peak_memory_bytes: 0,
        spilled_bytes: 0,
        capture: Capture::Input { changes, dead: vec![] },
        sync: None,
    }
}

pub(super) fn revision(number: u64) -> Box<Revision> {
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true)]));
    let definition = Definition {
        source: SourceSpec { name: ["c".into(), "s".into(), "t".into()], statements: vec![] },
        key: vec!["id".into()],
        tracked: vec![],
        tracked_declared: false,
        handler: HandlerSpec::Sql { text: format!("SELECT id FROM input -- {number}") },
        incremental: true,
        options: SemanticOptions::default(),
        input_schema: Arc::clone(&schema),
        output_schema: schema,
        session: BTreeMap::new(),
        functions: vec![],
        fingerprint_version: 1,
    };
    Box::new(Revision { number, digest: definition.digest(), saved_at: 1, definition })
}

/// What a double of a store does to create-only puts of objects whose path contains `of`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// Overwrites.
    IgnoresCreate,
    /// Applies the put and loses the answer.
    LosesAnswer,
    /// Says that a precondition failed, after applying.
    Precondition,
    /// Applies nothing and gives no answer.
    Silent,
}

#[derive(Debug)]
struct Faulty {
    inner: InMemory,
    fault: Fault,
    of: &'static str,
    puts: AtomicU64,
}

impl Faulty {
    fn table(fault: Fault, of: &'static str) -> TableStore {
        table_on(Arc::new(Self { inner: InMemory::new(), fault, of, puts: AtomicU64::new(0) }), Path::from("w/t"))
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, location: &Path, payload: PutPayload, mut opts: PutOptions) -> object_store::Result<PutResult> {
        let silent = || StoreError::Generic { store: "Faulty", source: "timed out".into() };
        if !location.as_ref().contains(self.of) {
            return self.inner.put_opts(location, payload, opts).await;
        }
        self.puts.fetch_add(1, Ordering::Relaxed);
        if self.fault == Fault::Silent {
            return Err(silent());
        }
        if self.fault == Fault::IgnoresCreate {
            opts.mode = PutMode::Overwrite;
            return self.inner.put_opts(location, payload, opts).await;
        }
        self.inner.put_opts(location, payload, opts).await?;
        match self.fault {
            Fault::Precondition => Err(StoreError::Precondition { path: location.to_string(), source: "412".into() }),
            _ => Err(silent()),
        }
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> object_store::Result<Vec<Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, object_store::Result<Path>>) -> BoxStream<'static, object_store::Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

async fn listed(table: &TableStore) -> HashSet<String> {
    let root = table.location().root.clone();
    table.location().store.list(Some(&root)).map(|object| object.unwrap().location.to_string()).collect().await
}

#[tokio::test]
async fn a_table_is_created_dropped_revived_and_purged() {
    let folder = tempfile::tempdir().unwrap();
    for table in [in_memory(), on_disk(&folder)] {
        assert_eq!(table.state().await.unwrap(), TableState::Absent);
        let first = table.create("t").await.unwrap();
        assert_eq!(code(table.create("t").await), Some(ErrorCode::TableExists));
        publish(&first, 1).await;
        table.drop_table(first.id()).await.unwrap();
        table.drop_table(first.id()).await.unwrap();
        assert!(table.open().await.unwrap().is_none());
        assert_eq!(code(table.create("t").await), Some(ErrorCode::TableExists));
        let revived = elsewhere(&table).revive().await.unwrap();
        assert_eq!((revived.id(), revived.secret()), (first.id(), first.secret()));
        assert_eq!(revived.newest_version().await.unwrap().map(|s| s.version), Some(1));
        assert_eq!(code(table.purge().await), Some(ErrorCode::TableInUse));
        table.drop_table(first.id()).await.unwrap();
        assert!(table.purge().await.unwrap() > 0);
        assert_eq!(table.purge().await.unwrap(), 0);
        assert!(listed(&table).await.iter().all(|path| path.contains("/table/")));
        let second = table.create("t").await.unwrap();
        assert_ne!(second.id(), first.id());
        assert_ne!(second.secret(), first.secret());
        assert_eq!(code(table.drop_table(first.id()).await), Some(ErrorCode::TableNotFound));
        assert!(!format!("{:?}", table.state().await.unwrap()).contains(&crate::env::hex(second.secret())));
    }
}

#[tokio::test]
async fn one_of_many_creators_wins() {
    let folder = tempfile::tempdir().unwrap();
    let table = on_disk(&folder);
    let creates = futures::future::join_all((0..8).map(|_| {
        let table = elsewhere(&table);
        async move { table.create("t").await }
    }))
    .await;
    assert_eq!(creates.iter().filter(|c| c.is_ok()).count(), 1);
    assert!(creates.into_iter().all(|c| c.is_ok() || code(c) == Some(ErrorCode::TableExists)));
}

#[tokio::test]
async fn two_runs_race_one_slot_and_exactly_one_wins() {
    let folder = tempfile::tempdir().unwrap();
    for table in [in_memory(), on_disk(&folder)] {
        let inc = table.create("t").await.unwrap();
        for version in 1..=5 {
            let other = elsewhere(&table).open().await.unwrap().unwrap();
            let (m, a, b) = (manifest(&inc, version, vec![]), run("a"), run("b"));
            let (one, two) = futures::join!(inc.commit(&m, &a, "1"), other.commit(&m, &b, "2"));
            let (one, two) = (one.unwrap(), two.unwrap());
            let winners = [&one, &two].into_iter().filter(|o| matches!(o, CommitOutcome::Committed(_))).count();
            assert_eq!(winners, 1);
            let (
                CommitOutcome::Committed(first) | CommitOutcome::Lost(first),
                CommitOutcome::Committed(second) | CommitOutcome::Lost(second),
            ) = (one, two);
            assert_eq!(first, second);
            assert_eq!(inc.newest_version().await.unwrap(), Some(first.clone()));
            assert_eq!(inc.manifest(&first).await.unwrap().version, version);
        }
    }
}

#[tokio::test]
async fn the_same_attempt_again_has_committed_and_a_gap_is_refused() {
    let inc = in_memory().create("t").await.unwrap();
    let m = manifest(&inc, 1, vec![]);
    let first = inc.commit(&m, &run("r"), "a").await.unwrap();
    assert!(matches!(first, CommitOutcome::Committed(_)));
    assert_eq!(inc.commit(&m, &run("r"), "a").await.unwrap(), first);
    assert!(matches!(inc.commit(&m, &run("r"), "b").await.unwrap(), CommitOutcome::Lost(_)));
    assert_eq!(code(inc.commit(&manifest(&inc, 3, vec![]), &run("r"), "a").await), Some(ErrorCode::Internal));
}

#[tokio::test]
async fn a_lost_answer_is_read_back_and_no_answer_is_unknown() {
    for fault in [Fault::LosesAnswer, Fault::Precondition] {
        let inc = Faulty::table(fault, "/versions/").create("t").await.unwrap();
        assert!(matches!(inc.commit(&manifest(&inc, 1, vec![]), &run("r"), "a").await.unwrap(), CommitOutcome::Committed(_)));
        assert!(matches!(inc.commit(&manifest(&inc, 1, vec![]), &run("s"), "b").await.unwrap(), CommitOutcome::Lost(_)));
    }
    let inc = Faulty::table(Fault::Silent, "/versions/").create("t").await.unwrap();
    let error = inc.commit(&manifest(&inc, 1, vec![]), &run("r"), "a").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::CommitUnknown);
    assert!(error.message().contains("\"t\""), "{error}");
    assert_eq!(inc.newest_version().await.unwrap(), None);
}

#[tokio::test]
async fn a_store_that_ignores_create_only_is_refused() {
    let table = Faulty::table(Fault::IgnoresCreate, "");
    assert_eq!(code(table.create("t").await), Some(ErrorCode::StoreUnsafe));
    assert_eq!(table.state().await.unwrap(), TableState::Absent);
    assert!(listed(&table).await.is_empty());
    for fault in [Fault::LosesAnswer, Fault::Precondition] {
        let probed = Faulty::table(fault, "/probe/").probe().await;
        assert_eq!(code(probed), (fault == Fault::LosesAnswer).then_some(ErrorCode::StoreFailed));
    }
}

#[tokio::test]
async fn a_drop_during_a_run_is_a_conflict() {
    let table = in_memory();
    let inc = table.create("t").await.unwrap();
    table.drop_table(inc.id()).await.unwrap();
    let error = inc.commit(&manifest(&inc, 1, vec![]), &run("r"), "a").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::RunConflict);
    assert!(error.message().contains("dropped"), "{error}");
}

#[tokio::test]
async fn definitions_fold_and_conflict() {
    let table = in_memory();
    let inc = table.create("t").await.unwrap();
    let empty = inc.definitions().await.unwrap();
    let one = inc.append_definition(&empty, DefinitionEntry::Save { revision: revision(1), activate: true, options: None }).await.unwrap();
    let other = elsewhere(&table).open().await.unwrap().unwrap();
    assert_eq!(other.definitions().await.unwrap(), one);
    let draft = DefinitionEntry::Save { revision: revision(2), activate: false, options: None };
    let two = other.append_definition(&one, draft.clone()).await.unwrap();
    assert_eq!((two.newest().map(|r| r.number), two.active().map(|r| r.number)), (Some(2), Some(1)));
    assert_eq!(code(inc.append_definition(&one, draft).await), Some(ErrorCode::RevisionConflict));
    let options = Options::parse("t", [("verify", "always")]).unwrap();
    let three =
        inc.append_definition(&inc.definitions().await.unwrap(), DefinitionEntry::SetOptions { options: options.clone() }).await.unwrap();
    let four = inc.append_definition(&three, DefinitionEntry::Activate { number: 2 }).await.unwrap();
    assert_eq!((four.entries, four.active, four.activations.clone(), &four.options), (4, Some(2), vec![1, 2], &options));
    assert_eq!(other.definitions().await.unwrap(), four);
    assert_eq!(code(inc.append_definition(&four, DefinitionEntry::Activate { number: 9 }).await), Some(ErrorCode::DefinitionInvalid));
}

#[tokio::test]
async fn a_lease_blocks_is_renewed_and_ends() {
    let table = in_memory();
    let inc = table.create("t").await.unwrap();
    *lock(&inc.core.timing) = LeaseTiming { lasts: Duration::from_millis(300), renew: Duration::from_millis(50) };
    let held = inc.take_lease(&run("one"), "a").await.unwrap();
    tokio::time::sleep(Duration::from_millis(600)).await; // longer than it lasts: renewals keep it
    let error = inc.take_lease(&run("two"), "b").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::RunActive);
    assert!(error.message().contains("run one is active, until 20"), "{error}");
    assert_eq!(inc.active_lease().await.unwrap().map(|h| h.attempt).as_deref(), Some("a"));
    held.release().await.unwrap();
    assert_eq!(inc.active_lease().await.unwrap(), None);

    let abandoned = inc.take_lease(&run("two"), "b").await.unwrap();
    assert!(!abandoned.lost());
    drop(abandoned);
    assert_eq!(code(inc.take_lease(&run("three"), "c").await), Some(ErrorCode::RunActive));
    tokio::time::sleep(Duration::from_millis(400)).await;
    inc.take_lease(&run("three"), "c").await.unwrap().release().await.unwrap();
    assert!(!listed(&table).await.iter().any(|path| path.contains("/clock/")));
}

#[tokio::test]
async fn a_lease_taken_by_another_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let table = on_disk(&folder);
    let inc = table.create("t").await.unwrap();
    *lock(&inc.core.timing) = LeaseTiming { lasts: LONG, renew: Duration::from_millis(200) };
    let held = inc.take_lease(&run("one"), "a").await.unwrap();
    let entry = folder.path().join(format!("t/{}/lease/{:020}.json", inc.id(), 1));
    let past = std::fs::metadata(&entry).unwrap().modified().unwrap() - Duration::from_secs(31);
    std::fs::File::options().append(true).open(&entry).unwrap().set_modified(past).unwrap();
    let other = elsewhere(&table).open().await.unwrap().unwrap();
    let taken = other.take_lease(&run("two"), "b").await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(held.lost());
    held.release().await.unwrap();
    assert_eq!(other.active_lease().await.unwrap().map(|h| h.attempt).as_deref(), Some("b"));
    taken.release().await.unwrap();
}

#[tokio::test]
async fn the_first_seal_stands_and_is_adopted() {
    let table = in_memory();
    let inc = table.create("t").await.unwrap();
    let id = run("r");
    let first = inc.run(&id);
    assert_eq!(first.start_attempt("a").await.unwrap(), 1);
    let ours = seal(&id, "a", None, vec![]);
    assert_eq!(first.write_seal(&ours).await.unwrap(), SealOutcome::Won);
    let second = elsewhere(&table).open().await.unwrap().unwrap().run(&id);
    assert_eq!(second.start_attempt("b").await.unwrap(), 2);
    assert_eq!(second.write_seal(&seal(&id, "b", None, vec![])).await.unwrap(), SealOutcome::Lost(ours.clone()));
    assert_eq!(second.seal().await.unwrap(), Some(ours));

    let end = summary("r", RunMode::Published, RunState::Failed);
    second.end_attempt("b", &end).await.unwrap();
    second.end_attempt("b", &summary("r", RunMode::Published, RunState::Published)).await.unwrap();
    let attempts = first.attempts().await.unwrap();
    assert_eq!(attempts.iter().map(|a| (a.attempt.as_str(), a.end.as_ref())).collect::<Vec<_>>(), [("a", None), ("b", Some(&end))]);
    assert_eq!(first.cancelled().await.unwrap(), None);
    first.write_cancel().await.unwrap();
    let at = first.cancelled().await.unwrap();
    second.write_cancel().await.unwrap();
    assert_eq!(second.cancelled().await.unwrap(), at);
    assert_eq!(inc.run_ids().await.unwrap(), [id]);
}

#[tokio::test]
async fn every_damaged_object_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let table = on_disk(&folder);
    let inc = table.create("t").await.unwrap();
    let slot = publish(&inc, 1).await;
    let fresh = || async { elsewhere(&table).open().await.unwrap().unwrap() };
    let parts = inc.manifest(&slot).await.unwrap().parts.clone();
    let data = inc.files(&inc.manifest(&slot).await.unwrap()).await.unwrap()[0].data.clone();
    for relative in ["versions/00000000000000000001.json", &slot.manifest, &parts[0].path, &data.path] {
        let path = folder.path().join("t").join(inc.id()).join(relative);
        let whole = std::fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        for (bytes, expected) in [(Some(flipped), ErrorCode::Corrupt), (None, ErrorCode::HistoryMissing)] {
            match bytes {
                Some(bytes) => std::fs::write(&path, bytes).unwrap(),
                None if relative.starts_with("versions/") => continue,
                None => std::fs::remove_file(&path).unwrap(),
            }
            let inc = fresh().await;
            let read = async {
                let slot = inc.newest_version().await?.unwrap();
                let manifest = inc.manifest(&slot).await?;
                let files = inc.files(&manifest).await?;
                inc.read_object(&files[0].data).await
            };
            let error = read.await.unwrap_err();
            assert_eq!(error.code(), expected, "{error}");
            assert!(
                error.message().contains(relative) && error.message().contains("\"t\"") && error.message().contains("Remedy"),
                "{error}"
            );
        }
        std::fs::write(&path, whole).unwrap();
    }
}

#[tokio::test]
async fn paths_that_leave_the_folder_are_refused() {
    let inc = in_memory().create("t").await.unwrap();
    let bad = ObjectRef { path: "../other/secret".into(), bytes: 1, hash: String::new() };
    assert_eq!(code(inc.read_object(&bad).await), Some(ErrorCode::Corrupt));
    assert_eq!(code(inc.write_object("a/../../b", Bytes::new()).await), Some(ErrorCode::Internal));
    let CommitOutcome::Committed(slot) = inc.commit(&manifest(&inc, 1, vec![bad]), &run("r"), "a").await.unwrap() else { panic!() };
    assert_eq!(code(inc.manifest(&slot).await), Some(ErrorCode::Corrupt));
    let good = data_file(&inc, "data/r/a", "f").await;
    let evil = DataFile { data: ObjectRef { path: "/etc/passwd".into(), ..good.data.clone() }, ..good };
    let parts = inc.write_files(&[], &[evil]).await.unwrap();
    assert_eq!(code(inc.files(&manifest(&inc, 1, parts)).await), Some(ErrorCode::Corrupt));
}

#[tokio::test]
async fn unchanged_parts_are_shared_and_small_ones_folded() {
    let inc = in_memory().create("t").await.unwrap();
    let object = |path: String| ObjectRef { path, bytes: 1, hash: "0".repeat(64) };
    let file = |n: usize| DataFile {
        data: object(format!("data/r/a/{n}.parquet")),
        index: object(format!("data/r/a/{n}.index.parquet")),
        rows: 1,
        deletions: None,
        added_in: 1,
        bounds: BTreeMap::new(),
        sources: vec![],
    };
    let mut files: Vec<DataFile> = (0..130).map(file).collect();
    let base = inc.write_files(&[], &files).await.unwrap();
    assert_eq!(base.len(), 3);
    assert_eq!(inc.write_files(&base, &files).await.unwrap(), base);
    files[70].rows = 2; // in the second part
    files.push(file(130));
    let next = inc.write_files(&base, &files).await.unwrap();
    assert_eq!((next.len(), &next[0]), (3, &base[0]));
    assert!(!next.contains(&base[1]) && !next.contains(&base[2]));
    let mut read = inc.files(&manifest(&inc, 2, next)).await.unwrap().to_vec();
    read.sort_by_key(|f| f.data.path.clone());
    files.sort_by_key(|f| f.data.path.clone());
    assert_eq!(read, files);
    files.push(files[0].clone());
    assert_eq!(code(inc.write_files(&base, &files).await), Some(ErrorCode::Internal));
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(5)).await; // so that timestamps differ
}

#[tokio::test]
async fn vacuum_keeps_what_retained_versions_need() {
    let folder = tempfile::tempdir().unwrap();
    for table in [in_memory(), on_disk(&folder)] {
        let inc = table.create("t").await.unwrap();
        let mut slots = vec![];
        for version in 1..=3 {
            slots.push(publish(&inc, version).await);
            pause().await;
        }
        assert_eq!(retention::garbage(&inc, LONG).await.unwrap(), []);
        let before = listed(&table).await;
        let garbage = retention::garbage(&inc, NOW).await.unwrap();
        let named = |text: &str| garbage.iter().filter(|(path, _)| path.contains(text)).count();
        // Versions 1 and 2: a manifest, a part, data and index each.
        assert_eq!((garbage.len(), named("manifests/"), named("data/run-1/"), named("data/run-2/"), named("data/run-3/")), (8, 4, 2, 2, 0));
        assert_eq!(listed(&table).await, before);
        assert!(retention::delete(&inc, &garbage).await.unwrap() > 0);
        assert_eq!(retention::garbage(&inc, NOW).await.unwrap(), []);
        assert_eq!(retention::garbage(&inc, LONG).await.unwrap(), []);

        let fresh = elsewhere(&table).open().await.unwrap().unwrap();
        let newest = fresh.newest_version().await.unwrap().unwrap();
        assert_eq!(newest.version, 3);
        let files = fresh.files(&fresh.manifest(&newest).await.unwrap()).await.unwrap();
        fresh.read_object(&files[0].data).await.unwrap();
        assert_eq!(code(fresh.manifest(&slots[0]).await), Some(ErrorCode::HistoryMissing));
        assert!(retention::reachable(&inc, NOW).await.unwrap().contains(&newest.manifest));
        assert!(fresh.run(&run("run-1")).request().await.unwrap().is_some());
        assert_eq!(code(retention::delete(&inc, &[("versions/00000000000000000003.json".into(), 1)]).await), Some(ErrorCode::Internal));
    }
}

#[tokio::test]
async fn vacuum_keeps_unfinished_runs_until_a_version_fences_them() {
    let inc = in_memory().create("t").await.unwrap();
    let (sealed, unsealed) = (run("sealed"), run("unsealed"));
    for id in [&sealed, &unsealed] {
        request(&inc, id, RunMode::Published).await;
    }
    inc.write_object("runs/unsealed/a/capture/x.parquet", Bytes::from_static(b"x")).await.unwrap();
    pause().await;
    assert_eq!(retention::garbage(&inc, NOW).await.unwrap(), [], "no version yet: both may publish the first");
    publish(&inc, 1).await;
    pause().await;
    let captured = inc.write_object("runs/sealed/a/capture/x.parquet", Bytes::from_static(b"x")).await.unwrap();
    inc.run(&sealed).write_seal(&seal(&sealed, "a", Some(1), vec![captured.clone()])).await.unwrap();
    data_file(&inc, "data/sealed/a", "f").await;
    let paths = |garbage: Vec<(String, u64)>| garbage.into_iter().map(|(path, _)| path).collect::<Vec<_>>();
    assert_eq!(paths(retention::garbage(&inc, NOW).await.unwrap()), ["runs/unsealed/a/capture/x.parquet"]);
    pause().await;
    let fenced = ["data/sealed/a/f.index.parquet", "data/sealed/a/f.parquet", &captured.path, "runs/unsealed/a/capture/x.parquet"];
    assert_eq!(paths(retention::preview(&inc, LONG).await.unwrap()), fenced);
    publish(&inc, 2).await;
    assert_eq!(paths(retention::garbage(&inc, LONG).await.unwrap()), fenced);
    assert!(inc.run(&sealed).seal().await.unwrap().is_some());
}

#[tokio::test]
async fn vacuum_keeps_drafts_at_work_and_young_outputs() {
    let inc = in_memory().create("t").await.unwrap();
    publish(&inc, 1).await;
    let (done, working, failed) = (run("done"), run("working"), run("failed"));
    let mut files = vec![];
    for id in [&done, &working, &failed] {
        request(&inc, id, RunMode::Draft).await;
        inc.run(id).start_attempt("a").await.unwrap();
        files.push(data_file(&inc, &format!("data/{id}/a"), "f").await);
    }
    let end = summary("failed", RunMode::Draft, RunState::Failed);
    inc.run(&failed).end_attempt("a", &end).await.unwrap();
    let output = DraftOutput {
        attempt: "a".into(),
        revision: 1,
        output_schema: Arc::new(Schema::empty()),
        key: vec![],
        files: vec![files[0].clone()],
        summary: summary("done", RunMode::Draft, RunState::Completed),
    };
    assert_eq!(inc.run(&done).write_draft(&output).await.unwrap(), Written::Won);
    pause().await;
    publish(&inc, 2).await;
    assert_eq!(retention::garbage(&inc, LONG).await.unwrap(), []);
    let now: Vec<String> = retention::garbage(&inc, NOW).await.unwrap().into_iter().map(|(path, _)| path).collect();
    assert!(now.iter().any(|path| path.starts_with("data/done/")));
    assert!(now.iter().any(|path| path.starts_with("data/failed/")));
    assert!(!now.iter().any(|path| path.starts_with("data/working/")));
    assert_eq!(inc.run(&done).draft().await.unwrap(), Some(output));
}

#[tokio::test]
async fn the_local_disk_keeps_no_temporary_files() {
    let folder = tempfile::tempdir().unwrap();
    let inc = on_disk(&folder).create("t").await.unwrap();
    publish(&inc, 1).await;
    let mut folders = vec![folder.path().to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap().map(|e| e.unwrap()) {
            assert!(!entry.file_name().to_string_lossy().contains('#'), "{:?}", entry.path());
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            }
        }
    }
}
