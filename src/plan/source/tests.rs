//! The source through its surface: describe, resolve, identity, plan.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::util::pretty::pretty_format_batches;
use datafusion::common::TableReference;
use datafusion::datasource::MemTable;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};
use tempfile::TempDir;

use super::statement::ExternalTable;
use super::*;
use crate::error::{Error, ErrorCode};
use crate::redact::is_secret_name;
use crate::spec::SourceSpec;
use crate::store::{SourceFile, SourceState};

fn session() -> SessionContext {
    SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2))
}

/// A session as our extension sets it up.
fn recording_session() -> SessionContext {
    let ctx = session();
    record_definitions(ctx.state_ref().write().table_factories_mut());
    ctx
}

async fn sql(ctx: &SessionContext, statement: &str) {
    ctx.sql(statement).await.unwrap().collect().await.unwrap();
}

fn write_parquet(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = fs::File::create(path).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn ids(values: &[i32]) -> Vec<(&'static str, ArrayRef)> {
    vec![("id", Arc::new(Int32Array::from(values.to_vec())))]
}

async fn described(ctx: &SessionContext, name: &str) -> SourceSpec {
    describe(&ctx.state(), &TableReference::parse_str(name)).await.unwrap()
}

async fn resolved(ctx: &SessionContext, spec: &SourceSpec) -> ResolvedSource {
    resolve(&ctx.state(), "t", spec).await.unwrap()
}

async fn rows(source: &ResolvedSource, columns: &[&str]) -> Vec<String> {
    let columns: Vec<String> = columns.iter().map(ToString::to_string).collect();
    let plan = source.plan(&columns).await.unwrap();
    let batches = collect(plan, source.state.task_ctx()).await.unwrap();
    let text = pretty_format_batches(&batches).unwrap().to_string();
    let cells = |line: &str| line.trim_matches('|').split('|').map(|c| c.trim().to_string()).collect::<Vec<_>>().join(",");
    let mut rows: Vec<String> = text.lines().filter(|l| l.starts_with('|')).skip(1).map(cells).collect();
    rows.sort();
    rows
}

fn state_of(identity: &SourceIdentity) -> SourceState {
    let file = |(i, f): (usize, &SourceFileSeen)| SourceFile {
        ordinal: u32::try_from(i).unwrap(),
        path: f.path.clone(),
        bytes: f.bytes,
        e_tag: f.e_tag.clone(),
        modified: f.modified,
        changed: f.changed,
        exact: false,
    };
    SourceState { files: identity.files.iter().enumerate().map(file).collect(), next_ordinal: 9, ..SourceState::default() }
}

fn code<T>(result: Result<T, Error>) -> Option<ErrorCode> {
    result.err().map(|e| e.code())
}

async fn parquet_folder(ctx: &SessionContext) -> (TempDir, String) {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("src");
    fs::create_dir(&folder).unwrap();
    write_parquet(&folder.join("a.parquet"), ids(&[1, 2]));
    let folder = folder.to_str().unwrap().to_string();
    sql(ctx, &format!("CREATE EXTERNAL TABLE s STORED AS PARQUET LOCATION '{folder}/'")).await;
    (dir, folder)
}

#[tokio::test]
async fn files_added_rewritten_and_removed_are_seen_in_the_same_session() {
    let ctx = session();
    let (_dir, folder) = parquet_folder(&ctx).await;
    let spec = described(&ctx, "s").await;
    let folder = Path::new(&folder);
    sql(&ctx, "SELECT * FROM s").await; // fills the session's caches
    let first = resolved(&ctx, &spec).await.identity().await.unwrap();

    write_parquet(&folder.join("b.parquet"), ids(&[3]));
    write_parquet(&folder.join("a.parquet"), ids(&[1, 7]));
    let source = resolved(&ctx, &spec).await;
    assert_eq!(rows(&source, &["id"]).await, ["1", "3", "7"]);
    let second = source.identity().await.unwrap();
    assert_eq!((second.files.len(), second.listings), (2, 1));
    let error = same_identity("t", &first, &second).unwrap_err();
    assert_eq!(error.code(), ErrorCode::SourceChanged);
    assert!(error.message().contains("a.parquet (rewritten)") && error.message().contains("b.parquet (new)"), "{error}");

    fs::remove_file(folder.join("a.parquet")).unwrap();
    let source = resolved(&ctx, &spec).await;
    assert_eq!(rows(&source, &["id"]).await, ["3"]);
    let third = source.identity().await.unwrap();
    assert!(same_identity("t", &second, &third).unwrap_err().message().contains("(gone)"));
    assert!(same_identity("t", &third, &source.identity().await.unwrap()).is_ok());
}

#[cfg(unix)]
#[tokio::test]
async fn a_rewrite_of_the_same_size_and_time_is_seen_on_local_disk() {
    let ctx = session();
    let (_dir, folder) = parquet_folder(&ctx).await;
    let spec = described(&ctx, "s").await;
    let file = Path::new(&folder).join("a.parquet");
    sql(&ctx, "SELECT * FROM s").await;
    let before = resolved(&ctx, &spec).await.identity().await.unwrap();
    let time = fs::metadata(&file).unwrap().modified().unwrap();
    write_parquet(&file, ids(&[8, 9]));
    fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
    let source = resolved(&ctx, &spec).await;
    let after = source.identity().await.unwrap();
    assert_eq!((before.files[0].bytes, before.files[0].modified), (after.files[0].bytes, after.files[0].modified));
    assert_eq!(code(same_identity("t", &before, &after)), Some(ErrorCode::SourceChanged));
    assert_eq!(rows(&source, &["id"]).await, ["8", "9"]);
}

#[tokio::test]
async fn a_zero_byte_file_and_a_vanished_source_are_errors() {
    let ctx = session();
    let (_dir, folder) = parquet_folder(&ctx).await;
    let spec = described(&ctx, "s").await;
    let last = state_of(&resolved(&ctx, &spec).await.identity().await.unwrap());

    fs::write(Path::new(&folder).join("z.parquet"), "").unwrap();
    let now = resolved(&ctx, &spec).await.identity().await.unwrap();
    let error = check_identity("t", None, &now).unwrap_err();
    assert_eq!(error.code(), ErrorCode::CaptureFailed);
    assert!(error.message().contains("z.parquet") && error.message().contains("Remedy"), "{error}");

    fs::remove_file(Path::new(&folder).join("z.parquet")).unwrap();
    fs::remove_file(Path::new(&folder).join("a.parquet")).unwrap();
    let now = resolved(&ctx, &spec).await.identity().await.unwrap();
    assert!(check_identity("t", None, &now).is_ok());
    assert_eq!(code(check_identity("t", Some(&last), &now)), Some(ErrorCode::CaptureFailed));

    fs::remove_dir(&folder).unwrap();
    assert_eq!(code(resolved(&ctx, &spec).await.identity().await), Some(ErrorCode::CaptureFailed));
}

#[tokio::test]
async fn one_vanished_folder_of_a_view_is_an_error() {
    let (dir, ctx) = (TempDir::new().unwrap(), session());
    for name in ["a", "b"] {
        fs::create_dir(dir.path().join(name)).unwrap();
        write_parquet(&dir.path().join(name).join("f.parquet"), ids(&[1]));
        sql(&ctx, &format!("CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{}/{name}/'", dir.path().display())).await;
    }
    sql(&ctx, "CREATE VIEW v AS SELECT a.id FROM a WHERE id IN (SELECT id FROM b)").await;
    let spec = described(&ctx, "v").await;
    let identity = resolved(&ctx, &spec).await.identity().await.unwrap();
    assert_eq!((identity.files.len(), identity.listings), (2, 2));
    fs::remove_file(dir.path().join("b/f.parquet")).unwrap();
    let now = resolved(&ctx, &spec).await.identity().await.unwrap();
    let error = check_identity("t", Some(&state_of(&identity)), &now).unwrap_err();
    assert!(error.message().contains("/b"), "{error}");
}

async fn csv_view(ctx: &SessionContext, dir: &Path) {
    fs::create_dir_all(dir.join("orders")).unwrap();
    fs::write(dir.join("people.csv"), "id;Full Name\n1;Ann\n2;Bo\n").unwrap();
    fs::write(dir.join("orders/1.csv"), "1,10.50\n2,3.25\n").unwrap();
    let people = "CREATE EXTERNAL TABLE people STORED AS CSV";
    sql(ctx, &format!("{people} LOCATION '{}/people.csv' OPTIONS ('format.delimiter' ';')", dir.display())).await;
    sql(
        ctx,
        &format!(
            "CREATE EXTERNAL TABLE orders (person BIGINT NOT NULL, amount DECIMAL(10, 2)) STORED AS CSV LOCATION '{}/orders/' \
             OPTIONS ('format.has_header' 'false')",
            dir.display()
        ),
    )
    .await;
    sql(ctx, "CREATE VIEW inner_view AS WITH o AS (SELECT * FROM orders) SELECT people.\"Full Name\" AS \"Who.Is It\", o.amount FROM people JOIN o ON people.id = o.person").await;
    sql(ctx, "CREATE VIEW v AS SELECT * FROM inner_view").await;
}

#[tokio::test]
async fn a_view_over_external_tables_survives_into_a_new_session() {
    for first in [session(), recording_session()] {
        let dir = TempDir::new().unwrap();
        csv_view(&first, dir.path()).await;
        let spec = described(&first, "v").await;
        assert_eq!(spec.statements.len(), 4, "{:#?}", spec.statements);
        assert!(spec.statements.iter().any(|s| s.contains("\"amount\" DECIMAL(10, 2)")), "{:#?}", spec.statements);

        let second = SessionContext::new_with_config(SessionConfig::new().with_default_catalog_and_schema("x", "y"));
        let source = resolved(&second, &spec).await;
        assert_eq!(rows(&source, &["amount", "Who.Is It"]).await, ["10.50,Ann", "3.25,Bo"]);
        assert_eq!(source.identity().await.unwrap().files.len(), 2);
        assert!(second.catalog("datafusion").is_none(), "nothing is registered in the user's session");
        assert_eq!(code(resolve(&second.state(), "t", &SourceSpec { statements: vec![], ..spec }).await), Some(ErrorCode::SourceNotFound));
    }
}

#[tokio::test]
async fn a_drifted_schema_is_seen_and_declared_columns_win() {
    for ctx in [session(), recording_session()] {
        let (dir, folder) = parquet_folder(&ctx).await;
        sql(&ctx, &format!("CREATE EXTERNAL TABLE d (id INT) STORED AS PARQUET LOCATION '{folder}/'")).await;
        sql(&ctx, "CREATE VIEW v AS SELECT * FROM s").await;
        let specs = [described(&ctx, "s").await, described(&ctx, "v").await, described(&ctx, "d").await];
        let columns: Vec<(&str, ArrayRef)> =
            vec![("id", Arc::new(Int64Array::from(vec![1]))), ("more", Arc::new(StringArray::from(vec!["x"])))];
        write_parquet(&Path::new(&folder).join("a.parquet"), columns);
        for (spec, expected) in specs.iter().zip(["Int64", "Int64", "Int32"]) {
            for ctx in [&ctx, &session()] {
                let source = resolved(ctx, spec).await;
                assert_eq!(source.schema.field_with_name("id").unwrap().data_type().to_string(), expected, "{spec:?}");
                assert_eq!(rows(&source, &["id"]).await, ["1"]);
            }
        }
        drop(dir);
    }
}

#[tokio::test]
async fn a_column_that_files_disagree_on_is_a_schema_change_where_it_is_read() {
    let ctx = session();
    let (_dir, folder) = parquet_folder(&ctx).await;
    let spec = described(&ctx, "s").await;
    let columns: Vec<(&str, ArrayRef)> =
        vec![("id", Arc::new(StringArray::from(vec!["x"]))), ("more", Arc::new(StringArray::from(vec!["y"])))];
    write_parquet(&Path::new(&folder).join("b.parquet"), columns);
    for ctx in [&ctx, &session()] {
        let source = resolved(ctx, &spec).await;
        assert_eq!(code(source.plan(&["id".to_string()]).await), Some(ErrorCode::SchemaChanged));
        assert_eq!(source.disagreements, ["\"id\" is Int32 and Utf8View"]);
        assert!(rows(&source, &["more"]).await.contains(&"y".to_string()));
    }
}

#[tokio::test]
async fn formats_globs_and_partitions_survive() {
    let (dir, ctx) = (TempDir::new().unwrap(), session());
    let root = dir.path().display();
    fs::create_dir_all(dir.path().join("hive/Day=1")).unwrap();
    fs::write(dir.path().join("hive/Day=1/x.json"), "{\"id\": 1}\n").unwrap();
    fs::write(dir.path().join("n.json"), "{\"id\": 1}\n").unwrap();
    fs::write(dir.path().join("skip.txt"), "no").unwrap();
    sql(&ctx, &format!("CREATE EXTERNAL TABLE hive STORED AS JSON LOCATION '{root}/hive/'")).await;
    sql(&ctx, &format!("CREATE EXTERNAL TABLE glob STORED AS JSON LOCATION '{root}/*.json'")).await;
    let arrow = dir.path().join("f.arrow");
    let batch = RecordBatch::try_from_iter(ids(&[5])).unwrap();
    let mut writer = arrow::ipc::writer::FileWriter::try_new(fs::File::create(&arrow).unwrap(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    sql(&ctx, &format!("CREATE EXTERNAL TABLE arrow STORED AS ARROW LOCATION '{}'", arrow.display())).await;
    for (name, columns, expected) in [("hive", vec!["Day", "id"], "1,1"), ("glob", vec!["id"], "1"), ("arrow", vec!["id"], "5")] {
        let spec = described(&ctx, name).await;
        assert_eq!(spec.statements.len(), 1, "{name}");
        for ctx in [&ctx, &session()] {
            assert_eq!(rows(&resolved(ctx, &spec).await, &columns).await, [expected], "{spec:?}");
        }
    }
}

#[tokio::test]
async fn secrets_are_never_in_a_statement() {
    for option in ["aws.access_key_id", "aws.SECRET_access_key", "azure.sas", "gcp.service_account_key", "db.password", "x.token"] {
        assert!(is_secret_name(option), "{option}");
    }
    assert!(!is_secret_name("format.delimiter") && !is_secret_name("format.has_header"));
    let table = ExternalTable {
        name: vec!["t".into()],
        columns: None,
        file_type: "CSV".into(),
        partitions: vec![],
        locations: vec!["https://me:hunter2@host/x.csv?sig=hunter2".into()],
        options: [("db.connection_string".to_string(), "hunter2".to_string()), ("format.quote".to_string(), "'".to_string())].into(),
        unbounded: false,
    };
    let sql = table.to_sql().unwrap();
    assert_eq!(sql, "CREATE EXTERNAL TABLE \"t\" STORED AS CSV LOCATION 'https://host/x.csv' OPTIONS ('format.quote' '''')");
}

#[tokio::test]
async fn columns_are_read_by_name_whatever_their_name() {
    let ctx = session();
    let names = ["a.b", "order", " sp ", "we\"ird", "UserId", "source"];
    let columns: Vec<(&str, ArrayRef)> = names.iter().map(|n| (*n, Arc::new(StringArray::from(vec![*n])) as ArrayRef)).collect();
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    ctx.register_table("m", Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]]).unwrap())).unwrap();
    sql(&ctx, "CREATE VIEW w AS SELECT * FROM m").await;
    for name in ["m", "w"] {
        let spec = described(&ctx, name).await;
        let source = resolved(&ctx, &spec).await;
        assert_eq!(rows(&source, &["UserId", "we\"ird", "a.b"]).await, ["UserId,we\"ird,a.b"]);
        assert_eq!(source.identity().await.unwrap(), SourceIdentity::default());
        assert_eq!(code(source.plan(&["userid".into()]).await), Some(ErrorCode::SchemaChanged));
    }
    assert!(described(&ctx, "m").await.statements.is_empty());
}

#[tokio::test]
async fn streams_and_unknown_names_are_refused() {
    let (dir, ctx) = (TempDir::new().unwrap(), session());
    let file = dir.path().join("s.csv");
    fs::write(&file, "1\n").unwrap();
    sql(&ctx, &format!("CREATE UNBOUNDED EXTERNAL TABLE stream (id INT) STORED AS CSV LOCATION '{}'", file.display())).await;
    let spec = described(&ctx, "stream").await;
    let source = resolved(&ctx, &spec).await;
    assert_eq!(code(source.plan(&["id".into()]).await), Some(ErrorCode::SourceUnbounded));
    let error = describe(&ctx.state(), &TableReference::bare("streams")).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::SourceNotFound);
    assert!(error.message().contains("datafusion.public.stream"), "{error}");
}

#[tokio::test]
async fn a_capture_shares_memory_and_disk_but_no_cache() {
    let ctx = session();
    let (own, derived) = (ctx.runtime_env(), capture_state(&ctx.state()).unwrap());
    let runtime = derived.runtime_env();
    assert!(Arc::ptr_eq(&own.memory_pool, &runtime.memory_pool) && Arc::ptr_eq(&own.disk_manager, &runtime.disk_manager));
    assert!(runtime.cache_manager.get_list_files_cache().is_none());
    assert!(!Arc::ptr_eq(&own.cache_manager.get_file_metadata_cache(), &runtime.cache_manager.get_file_metadata_cache()));
    assert!(own.cache_manager.get_list_files_cache().is_some(), "the user's own caches stay");
}
