//! Synced tables as programs use them: by functions, and by the shell's `run-schedules`.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use datafusion_incremental::ErrorCode;
use datafusion_incremental::context::{IncrementalOptions, IncrementalSession};
use datafusion_incremental::sync::config::{Changes, Effect, FieldValue};
use datafusion_incremental::sync::ops::{self, AlterRequest, SyncRequest};

fn text(value: &str) -> FieldValue {
    FieldValue::Text(value.into())
}

#[tokio::test]
async fn every_operation_is_a_function() {
    let folder = tempfile::tempdir().unwrap();
    let options = IncrementalOptions::default().with_leave_to_act().with_root(folder.path().display().to_string());
    let session = IncrementalSession::builder().with_options(options).build().await.unwrap();
    session.sql("CREATE TABLE s (id BIGINT, at BIGINT) AS VALUES (1, 1), (2, 2)").await.unwrap();
    let fields = [
        ("sync_type", text("incremental")),
        ("incremental_field", text("at")),
        ("primary_key_columns", FieldValue::List(vec!["id".into()])),
    ];
    let table = session.create_synced_table("t", &["s"], &fields).await.unwrap();
    let again = session.create_synced_table("t", &["s"], &fields).await;
    assert_eq!(again.err().map(|error| error.code()), Some(ErrorCode::TableExists));
    let context = session.sync().unwrap();
    let run = ops::reload(&context, &table, SyncRequest::default()).await.into_result().unwrap();
    assert_eq!(run.rows_total, Some(2));
    let found = ops::discover(&context, None).await.unwrap();
    assert!(found.iter().any(|table| table.name.last().is_some_and(|name| name == "s")));

    let changes = Changes { set: vec![("sync_type".into(), text("append"))], reset: vec![] };
    let request = AlterRequest { changes, ..AlterRequest::default() };
    let plan = ops::explain_alter(&context, &table, &request).await.unwrap();
    assert_eq!((plan.effect, plan.needs_confirmation, plan.revision), (Effect::Keep, false, 1));
    assert_eq!(ops::alter(&context, &table, &request).await.unwrap().revision, 2);
    let refused = ops::resync(&context, &table, false, SyncRequest::default()).await;
    assert_eq!(refused.err().map(|error| error.code()), Some(ErrorCode::ConfirmRequired));
    let run = ops::resync(&context, &table, true, SyncRequest::default()).await.unwrap().into_result().unwrap();
    assert_eq!(run.rows_total, Some(2));
    assert_eq!(ops::reconcile(&context, &table, SyncRequest::default()).await.err().map(|e| e.code()), Some(ErrorCode::ConfigInvalid));
    assert_eq!(ops::cancel(&table).await.err().map(|error| error.code()), Some(ErrorCode::RunNotFound));
    assert!(ops::show_create(&table).await.unwrap().starts_with("CREATE SYNCED TABLE t FROM datafusion.public.s\n"));
    ops::delete_data(&context, &table, true).await.unwrap().into_result().unwrap();
    assert_eq!(session.sql("SELECT * FROM t").await.err().map(|error| error.code()), Some(ErrorCode::SourceNotReady));
}

/// Every file below a folder of this name.
fn below(folder: &Path, name: &str) -> Vec<std::path::PathBuf> {
    let entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let deeper = entries.iter().filter(|path| path.is_dir()).flat_map(|path| below(path, name));
    entries.iter().filter(|path| path.is_file() && folder.ends_with(name)).cloned().chain(deeper).collect()
}

#[tokio::test]
async fn a_damaged_version_is_mended_by_a_resync() {
    let folder = tempfile::tempdir().unwrap();
    let open = async || {
        let options = IncrementalOptions::default().with_leave_to_act().with_root(folder.path().display().to_string());
        let session = IncrementalSession::builder().with_options(options).build().await.unwrap();
        session.sql("CREATE TABLE s (id BIGINT) AS VALUES (1), (2)").await.unwrap();
        session
    };
    let session = open().await;
    session.sql("CREATE SYNCED TABLE t FROM s WITH (sync_type = 'full_refresh', primary_key_columns = ('id'))").await.unwrap();
    session.sql("CALL sync.reload('t')").await.unwrap();
    for manifest in below(folder.path(), "manifests") {
        std::fs::write(manifest, b"damage").unwrap();
    }
    let session = open().await;
    let error = session.sql("CALL sync.reload('t')").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Corrupt);
    assert!(error.message().contains("CALL sync.resync('t', confirm => true)"), "{error}");
    session.sql("CALL sync.resync('t', confirm => true)").await.unwrap();
    session.sql("CALL sync.reload('t')").await.unwrap();
    let rows = session.sql("SELECT id FROM t").await.unwrap();
    assert_eq!(rows.iter().flat_map(|result| &result.batches).map(arrow::array::RecordBatch::num_rows).sum::<usize>(), 2);
}

fn shell(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_incremental-cli"));
    command.arg("--root").arg(root).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn ended(root: &Path, arguments: &[&str]) -> Output {
    shell(root, arguments).output().unwrap()
}

/// A table of files that every run of the shell finds, due at every five minutes since 1970.
fn define(root: &Path, file: &Path) {
    std::fs::write(file, "id,at\n1,1\n2,2\n").unwrap();
    let sql = format!(
        "CREATE EXTERNAL TABLE s (id BIGINT, at BIGINT) STORED AS CSV LOCATION '{}' OPTIONS ('format.has_header' 'true');
         CREATE SYNCED TABLE t FROM s WITH (sync_type = 'full_refresh', primary_key_columns = ('id'), sync_frequency = '5min');
         CREATE INCREMENTAL TABLE e FROM t KEY (id) WITH (schedule = 'after_source') AS SELECT id, at + 1 AS next FROM input;
         CALL sync.reload('t')",
        file.display()
    );
    let out = ended(root, &["-q", "-c", &sql]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn the_shell_runs_what_is_due_once() {
    let folder = tempfile::tempdir().unwrap();
    let (root, file) = (folder.path().join("warehouse"), folder.path().join("s.csv"));
    define(&root, &file);
    let out = ended(&root, &["run-schedules", "--once"]);
    let (said, errors) = (String::from_utf8_lossy(&out.stdout).to_string(), String::from_utf8_lossy(&out.stderr).to_string());
    assert!(out.status.success(), "{said}{errors}");
    assert!(said.contains(" e: 2 new, 0 changed, 0 gone, 2 rows"), "{said}{errors}");

    // What fails makes the exit status 1, and names the table.
    let rows = ended(
        &root,
        &[
            "-q",
            "-c",
            "CREATE OR ALTER INCREMENTAL TABLE e FROM t KEY (id) WITH (schedule = 'after_source') AS SELECT id, 1 / (at - 3) AS next FROM input",
        ],
    );
    assert!(rows.status.success(), "{}", String::from_utf8_lossy(&rows.stderr));
    std::fs::write(&file, "id,at\n1,1\n2,3\n").unwrap();
    assert!(ended(&root, &["-q", "-c", "CALL sync.reload('t')"]).status.success());
    let out = ended(&root, &["run-schedules", "--once"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("e: "), "{}", String::from_utf8_lossy(&out.stderr));
}

#[cfg(unix)]
#[test]
fn the_shell_runs_schedules_until_it_is_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let (root, file) = (folder.path().join("warehouse"), folder.path().join("s.csv"));
    define(&root, &file);
    let mut running = shell(&root, &["run-schedules"]).spawn().unwrap();
    let mut looks = 0;
    // The table above it is due at once; nothing else is within minutes, so the shell waits.
    while !String::from_utf8_lossy(&ended(&root, &["-q", "--format", "csv", "-c", "SELECT count(*) AS n FROM e"]).stdout).contains('2') {
        looks += 1;
        assert!(running.try_wait().unwrap().is_none() && looks < 600);
    }
    assert!(running.try_wait().unwrap().is_none());
    let interrupted = Command::new("kill").args(["-INT", &running.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    let out = running.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(String::from_utf8_lossy(&out.stdout).contains(" e: 2 new"), "{}", String::from_utf8_lossy(&out.stdout));
}
