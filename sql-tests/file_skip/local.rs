//! Files on the local disk, whose times can be set back.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use datafusion_incremental::context::IncrementalSession;
use datafusion_incremental::run::RefreshRequest;

use super::world::{files_of, rows_of};

async fn session(folder: &Path) -> IncrementalSession {
    let session = IncrementalSession::builder().with_root(folder.join("tables").display().to_string()).build().await.unwrap();
    let place = folder.join("data");
    let sql = format!(
        "CREATE EXTERNAL TABLE s (id BIGINT, v VARCHAR) STORED AS CSV LOCATION '{}/' OPTIONS ('format.has_header' 'true')",
        place.display()
    );
    session.sql(&sql).await.unwrap();
    session
}

async fn expect(session: &IncrementalSession, files: [u64; 2], rows: [u64; 4]) {
    let summary = session.refresh("t", RefreshRequest::default()).await.unwrap();
    assert_eq!((files_of(&summary), rows_of(&summary)), (files, rows));
}

/// Waits until every file is older than two seconds.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(2100)).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_rewrite_with_the_same_size_and_time_of_modification_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("data/a.csv"), folder.path().join("data/b.csv"));
    fs::create_dir_all(folder.path().join("data")).unwrap();
    fs::write(&a, "id,v\n1,a\n").unwrap();
    fs::write(&b, "id,v\n2,b\n").unwrap();
    let session = session(folder.path()).await;
    session.table("t").source("s").key(["id"]).sql("SELECT id, v AS o FROM input").create().await.unwrap();
    settle().await;
    expect(&session, [2, 0], [2, 0, 0, 0]).await;
    expect(&session, [0, 2], [0, 0, 0, 2]).await;
    let before = fs::metadata(&a).unwrap().modified().unwrap();
    // In place, the same length, and the time of modification set back.
    fs::write(&a, "id,v\n1,x\n").unwrap();
    File::options().write(true).open(&a).unwrap().set_modified(before).unwrap();
    assert_eq!(fs::metadata(&a).unwrap().modified().unwrap(), before);
    expect(&session, [1, 1], [0, 1, 0, 1]).await;
    // It was young then.
    settle().await;
    expect(&session, [1, 1], [0, 0, 0, 2]).await;
    expect(&session, [0, 2], [0, 0, 0, 2]).await;
    // Another file moved into its place, of the same size and time of modification.
    let other = folder.path().join("other");
    fs::write(&other, "id,v\n1,y\n").unwrap();
    File::options().write(true).open(&other).unwrap().set_modified(before).unwrap();
    fs::rename(&other, &a).unwrap();
    expect(&session, [1, 1], [0, 1, 0, 1]).await;
    // A touch changes no row.
    File::options().write(true).open(&b).unwrap().set_modified(before).unwrap();
    settle().await;
    expect(&session, [2, 0], [0, 0, 0, 2]).await;
    expect(&session, [0, 2], [0, 0, 0, 2]).await;
}

/// Parquet with inferred columns: unread files are listed, and their rows are neither read nor lost.
#[tokio::test]
async fn parquet_files_with_inferred_columns_are_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("tables");
    let session = IncrementalSession::builder().with_root(root.display().to_string()).build().await.unwrap();
    let copy = |name: &str, query: &str| format!("COPY ({query}) TO '{}/p/{name}.parquet' STORED AS PARQUET", folder.path().display());
    session.sql(&copy("a", "SELECT value AS id, concat('v', value) AS v FROM generate_series(1, 1000)")).await.unwrap();
    session.sql(&copy("b", "SELECT value AS id, concat('v', value) AS v FROM generate_series(1001, 2000)")).await.unwrap();
    let place = folder.path().join("p");
    session.sql(&format!("CREATE EXTERNAL TABLE s STORED AS PARQUET LOCATION '{}/'", place.display())).await.unwrap();
    session.table("t").source("s").key(["id"]).sql("SELECT id, v AS o FROM input").create().await.unwrap();
    settle().await;
    expect(&session, [2, 0], [2000, 0, 0, 0]).await;
    expect(&session, [0, 2], [0, 0, 0, 2000]).await;
    session.sql(&copy("b", "SELECT value AS id, concat('v', value % 1999) AS v FROM generate_series(1002, 2100)")).await.unwrap();
    expect(&session, [1, 1], [100, 2, 1, 1997]).await;
    // A column that b alone has changes nothing of what is read of a.
    settle().await;
    session
        .sql(&copy("b", "SELECT value AS id, concat('v', value % 1999) AS v, 1 AS more FROM generate_series(1002, 2100)"))
        .await
        .unwrap();
    expect(&session, [1, 1], [0, 0, 0, 2099]).await;
}
