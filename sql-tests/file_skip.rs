//! Source files that are left unread: each way in which that could be wrong.
//!
//! ```text
//! file unchanged, old enough, exact ─► not read: its rows stay, and its keys still count
//! anything else                     ─► read
//! ```

#[path = "file_skip/local.rs"]
mod local;
#[path = "file_skip/random.rs"]
mod random;
#[path = "file_skip/world.rs"]
mod world;

use std::sync::atomic::Ordering;

use datafusion_incremental::ErrorCode;
use datafusion_incremental::exec::equality::KeyHash;
use datafusion_incremental::run::RefreshRequest;
use datafusion_incremental::spec::{RunId, RunMode, RunReason};

use world::{HOUR, Shape, World, external, files_of, rows_of};

/// Both kinds of handler, both hashes.
fn shapes() -> Vec<Shape> {
    [(true, KeyHash::Xxh3), (false, KeyHash::Xxh3), (true, KeyHash::Constant)]
        .map(|(proven, hash)| Shape { proven, hash, ..Shape::default() })
        .to_vec()
}

/// Files a (1, 2), b (3, 4) and c (5), published.
async fn three_files(shape: Shape) -> World {
    let world = World::new(shape).await;
    world.write("a.csv", &[(1, "a"), (2, "b")]).await;
    world.write("b.csv", &[(3, "c"), (4, "d")]).await;
    world.write("c.csv", &[(5, "e")]).await;
    world.expect([3, 0], [5, 0, 0, 0]).await;
    world
}

#[tokio::test]
async fn unchanged_files_are_not_read_in_this_session_nor_in_the_next() {
    for shape in shapes() {
        let mut world = three_files(shape).await;
        for _ in 0..2 {
            world.expect([0, 3], [0, 0, 0, 5]).await;
        }
        world.write("b.csv", &[(3, "x"), (6, "f")]).await;
        world.expect([1, 2], [1, 1, 1, 3]).await;
        world.expect_rows(&[(1, "A"), (2, "B"), (3, "X"), (5, "E"), (6, "F")]).await;
        for is_registered in [true, false] {
            world.restart(is_registered).await;
            world.expect([0, 3], [0, 0, 0, 5]).await;
        }
        world.write("c.csv", &[(5, "y")]).await;
        world.expect([1, 2], [0, 1, 0, 4]).await;
        world.expect_rows(&[(1, "A"), (2, "B"), (3, "X"), (5, "Y"), (6, "F")]).await;
    }
}

#[tokio::test]
async fn nothing_is_read_when_nothing_changed() {
    for shape in shapes() {
        let world = three_files(shape).await;
        world.expect([0, 3], [0, 0, 0, 5]).await;
        world.source.take_reads();
        let summary = world.refresh().await.unwrap();
        assert_eq!(summary.reason, Some(RunReason::NoChange));
        assert_eq!((world.source.take_reads(), summary.handler_rows, summary.rows_total), (0, Some(0), Some(5)));
        let dry = world.sql("REFRESH t DRY RUN").await.unwrap();
        assert_eq!((world.source.take_reads(), dry[0].num_rows()), (0, 1));
        assert!(world.explain().await.contains("source files: 0 to read, 3 skipped"));
    }
}

#[tokio::test]
async fn files_come_and_go() {
    for shape in shapes() {
        let world = three_files(shape).await;
        world.write("d.csv", &[(7, "g")]).await;
        world.expect([1, 3], [1, 0, 0, 5]).await;
        world.remove("a.csv").await;
        world.expect([0, 3], [0, 0, 2, 4]).await;
        world.expect_rows(&[(3, "C"), (4, "D"), (5, "E"), (7, "G")]).await;
        world.write("a.csv", &[(1, "a"), (2, "b")]).await;
        world.expect([1, 3], [2, 0, 0, 4]).await;
        world.remove("b.csv").await;
        world.write("e.csv", &[(3, "c"), (4, "z")]).await;
        // Row 3 is unchanged under another file, so e is not exact; its old file is gone.
        world.expect([1, 3], [0, 1, 0, 5]).await;
        world.expect([1, 3], [0, 0, 0, 6]).await;
        world.expect_rows(&[(1, "A"), (2, "B"), (3, "C"), (4, "Z"), (5, "E"), (7, "G")]).await;
    }
}

#[tokio::test]
async fn rows_that_move_between_files_keep_both_from_being_skipped() {
    for shape in shapes() {
        let world = three_files(shape).await;
        // 2 moves from a to b.
        world.write("a.csv", &[(1, "a")]).await;
        world.write("b.csv", &[(2, "b"), (3, "c"), (4, "d")]).await;
        world.expect([2, 1], [0, 0, 0, 5]).await;
        world.expect([2, 1], [0, 0, 0, 5]).await;
        assert!(world.explain().await.contains("rows of it moved"));
        // It disappears from b only: a's index row must go.
        world.write("b.csv", &[(3, "c"), (4, "d")]).await;
        world.expect([2, 1], [0, 0, 1, 4]).await;
        world.expect([0, 3], [0, 0, 0, 4]).await;
        // And back: to b, then to a again.
        world.write("b.csv", &[(1, "a"), (3, "c"), (4, "d")]).await;
        world.write("a.csv", &[(9, "n")]).await;
        world.expect([2, 1], [1, 0, 0, 4]).await;
        world.write("b.csv", &[(3, "c"), (4, "d")]).await;
        world.write("a.csv", &[(1, "a"), (9, "n")]).await;
        world.expect([2, 1], [0, 0, 0, 5]).await;
        world.expect([0, 3], [0, 0, 0, 5]).await;
        // A row that moves and changes is written anew: nothing is in doubt.
        world.write("b.csv", &[(1, "new"), (3, "c"), (4, "d")]).await;
        world.write("a.csv", &[(9, "n")]).await;
        world.expect([2, 1], [0, 1, 0, 4]).await;
        world.expect([0, 3], [0, 0, 0, 5]).await;
        world.expect_rows(&[(1, "NEW"), (3, "C"), (4, "D"), (5, "E"), (9, "N")]).await;
    }
}

#[tokio::test]
async fn a_key_that_an_unread_file_still_holds_is_a_duplicate() {
    for shape in shapes() {
        let world = three_files(shape).await;
        world.write("b.csv", &[(3, "c"), (4, "d"), (1, "a")]).await;
        world.expect_error(ErrorCode::KeyDuplicate, "id=1 (count 2)").await;
        world.write("b.csv", &[(3, "c"), (5, "other"), (1, "a"), (5, "e")]).await;
        world.expect_error(ErrorCode::KeyDuplicate, "id=5 (count 3)").await;
        world.write("b.csv", &[(3, "c"), (4, "d")]).await;
        // A failed run accepts nothing: b is read again, since it was written again.
        world.expect([1, 2], [0, 0, 0, 5]).await;
        // The same for a row that moved: it is indexed under a and lies in b.
        world.write("a.csv", &[(1, "a")]).await;
        world.write("b.csv", &[(2, "b"), (3, "c"), (4, "d")]).await;
        world.expect([2, 1], [0, 0, 0, 5]).await;
        world.write("c.csv", &[(5, "e"), (2, "b")]).await;
        world.expect_error(ErrorCode::KeyDuplicate, "id=2 (count 2)").await;
        world.write("c.csv", &[(5, "e")]).await;
        world.write("new.csv", &[(3, "c")]).await;
        world.expect_error(ErrorCode::KeyDuplicate, "id=3 (count 2)").await;
        world.remove("new.csv").await;
        world.expect([3, 0], [0, 0, 0, 5]).await;
    }
}

#[tokio::test]
async fn a_young_file_is_read_once_more() {
    let world = World::new(Shape::default()).await;
    world.write("a.csv", &[(1, "a")]).await;
    world.clock.micros.store(0, Ordering::SeqCst);
    world.expect([1, 0], [1, 0, 0, 0]).await;
    // Old now, but not when it was read: a later write within the same tick of its store would not show.
    world.clock.micros.store(HOUR, Ordering::SeqCst);
    assert!(world.explain().await.contains("1 read: written less than 2 seconds before"));
    world.expect([1, 0], [0, 0, 0, 1]).await;
    world.expect([0, 1], [0, 0, 0, 1]).await;
    // A clock that goes back proves nothing about a file of the future.
    world.clock.micros.store(-HOUR, Ordering::SeqCst);
    world.write("b.csv", &[(2, "b")]).await;
    world.expect([1, 1], [1, 0, 0, 1]).await;
    world.expect([2, 0], [0, 0, 0, 2]).await;
}

#[tokio::test]
async fn another_way_of_reading_reads_everything() {
    let world = three_files(Shape::default()).await;
    world.write("c.csv", &[(5, "|e|")]).await;
    world.expect([1, 2], [0, 1, 0, 4]).await;
    world.expect([0, 3], [0, 0, 0, 5]).await;
    world.sql("DROP TABLE s").await.unwrap();
    world.sql(&external("s", "", ", 'format.quote' '|'")).await.unwrap();
    assert!(world.explain().await.contains("3 read: columns, format or reader options"));
    world.expect([3, 0], [0, 1, 0, 4]).await;
    world.expect_rows(&[(1, "A"), (2, "B"), (3, "C"), (4, "D"), (5, "E")]).await;
    world.expect([0, 3], [0, 0, 0, 5]).await;
    // Columns by position, in another order.
    world.sql("DROP TABLE s").await.unwrap();
    world.sql(&external("s", "", "").replace("'true'", "'false'")).await.unwrap();
    assert!(world.refresh().await.is_err());
    world.sql("DROP TABLE s").await.unwrap();
    world.sql(&external("s", "", ", 'format.quote' '|'")).await.unwrap();
    world.expect([0, 3], [0, 0, 0, 5]).await;
    // A session option that reading depends on.
    world.sql("SET datafusion.execution.time_zone = '+05:00'").await.unwrap();
    world.expect([3, 0], [0, 0, 0, 5]).await;
}

#[tokio::test]
async fn a_source_that_is_made_anew_is_read() {
    for shape in shapes() {
        let world = three_files(shape).await;
        // Other files under the same name.
        world.sql("DROP TABLE s").await.unwrap();
        world.write("sub/a.csv", &[(1, "a"), (8, "h")]).await;
        world.sql(&external("s", "sub/", "")).await.unwrap();
        world.expect([1, 0], [1, 0, 4, 1]).await;
        world.sql("DROP TABLE s").await.unwrap();
        world.remove("sub/a.csv").await;
        world.sql(&external("s", "", "")).await.unwrap();
        world.expect([3, 0], [4, 0, 1, 1]).await;
        // Row 1 came back under its first file, so nothing is in doubt but what was indexed under the other one.
        world.expect([1, 2], [0, 0, 0, 5]).await;
        // A view in between: its rows come from no file that is known.
        world.sql("DROP TABLE s").await.unwrap();
        world.sql(&external("files", "", "")).await.unwrap();
        world.sql("CREATE VIEW s AS SELECT id, v || '!' AS v FROM files WHERE id <> 2").await.unwrap();
        world.expect([3, 0], [0, 4, 1, 0]).await;
        world.expect([3, 0], [0, 0, 0, 4]).await;
        world.sql("CREATE OR REPLACE VIEW s AS SELECT id, v || '?' AS v FROM files").await.unwrap();
        world.expect([3, 0], [1, 4, 0, 0]).await;
        world.sql("DROP VIEW s").await.unwrap();
        world.sql(&external("s", "", "")).await.unwrap();
        world.expect([3, 0], [0, 5, 0, 0]).await;
        world.expect([0, 3], [0, 0, 0, 5]).await;
        world.expect_rows(&[(1, "A"), (2, "B"), (3, "C"), (4, "D"), (5, "E")]).await;
    }
}

#[tokio::test]
async fn rows_that_were_published_before_files_were_noted_are_read_until_they_are_written_anew() {
    for shape in shapes() {
        let world = World::bare(shape).await;
        for (name, id) in [("a.csv", 1), ("b.csv", 2)] {
            world.write(name, &[(id, "x")]).await;
        }
        world.sql(&external("files", "", "")).await.unwrap();
        world.sql("CREATE VIEW s AS SELECT * FROM files").await.unwrap();
        world.create().await;
        world.expect([2, 0], [2, 0, 0, 0]).await;
        world.sql("DROP VIEW s").await.unwrap();
        world.sql(&external("s", "", "")).await.unwrap();
        for _ in 0..2 {
            world.expect([2, 0], [0, 0, 0, 2]).await;
        }
        world.write("b.csv", &[(2, "y")]).await;
        world.expect([2, 0], [0, 1, 0, 1]).await;
        world.expect([1, 1], [0, 0, 0, 2]).await;
        let full = world.session.refresh("t", RefreshRequest { full: true, ..RefreshRequest::default() }).await.unwrap();
        assert_eq!((files_of(&full), rows_of(&full)), ([2, 0], [2, 0, 0, 0]));
        world.expect([0, 2], [0, 0, 0, 2]).await;
    }
}

#[tokio::test]
async fn the_option_and_every_run_of_all_rows_read_everything() {
    for shape in shapes() {
        let world = three_files(shape).await;
        world.sql("ALTER INCREMENTAL TABLE t SET (file_skip = false)").await.unwrap();
        assert!(world.explain().await.contains("option file_skip is off"));
        world.expect([3, 0], [0, 0, 0, 5]).await;
        world.sql("ALTER INCREMENTAL TABLE t RESET (file_skip)").await.unwrap();
        world.expect([0, 3], [0, 0, 0, 5]).await;
        let draft = world.session.refresh("t", RefreshRequest { mode: RunMode::Draft, ..RefreshRequest::default() }).await.unwrap();
        assert_eq!((files_of(&draft), rows_of(&draft)), ([3, 0], [5, 0, 0, 0]));
        world.sql("ALTER INCREMENTAL TABLE t AS SELECT id, lower(v) AS o FROM input").await.unwrap();
        world.expect([3, 0], [5, 0, 0, 0]).await;
        world.expect([0, 3], [0, 0, 0, 5]).await;
        world.sql("ALTER INCREMENTAL TABLE t SET (incremental = false) AS SELECT id, lower(v) AS o FROM input").await.unwrap();
        for _ in 0..2 {
            assert_eq!(files_of(&world.refresh().await.unwrap()), [3, 0]);
        }
        world.sql("ALTER INCREMENTAL TABLE t SET (incremental = true) AS SELECT id, lower(v) AS o FROM input").await.unwrap();
        world.expect([3, 0], [5, 0, 0, 0]).await;
        world.expect([0, 3], [0, 0, 0, 5]).await;
    }
}

#[tokio::test]
async fn a_rollback_brings_back_what_was_known_then() {
    for shape in shapes() {
        let world = three_files(shape).await;
        world.write("b.csv", &[(3, "x"), (4, "d")]).await;
        world.remove("c.csv").await;
        world.expect([1, 1], [0, 1, 1, 3]).await;
        world.write("c.csv", &[(5, "e")]).await;
        world.expect([1, 2], [1, 0, 0, 4]).await;
        world.sql("CALL incremental.rollback('t', version => 1)").await.unwrap();
        world.expect_rows(&[(1, "A"), (2, "B"), (3, "C"), (4, "D"), (5, "E")]).await;
        world.expect([2, 1], [0, 1, 0, 4]).await;
        world.expect([0, 3], [0, 0, 0, 5]).await;
        world.write("d.csv", &[(6, "f")]).await;
        world.expect([1, 3], [1, 0, 0, 5]).await;
        world.sql("CALL incremental.rollback('t', version => 2)").await.unwrap();
        world.expect_rows(&[(1, "A"), (2, "B"), (3, "X"), (4, "D")]).await;
        world.expect([2, 2], [2, 0, 0, 4]).await;
        world.expect([0, 4], [0, 0, 0, 6]).await;
        world.expect_rows(&[(1, "A"), (2, "B"), (3, "X"), (4, "D"), (5, "E"), (6, "F")]).await;
    }
}

#[tokio::test]
async fn compaction_and_vacuum_keep_what_is_known() {
    for shape in shapes() {
        let world = three_files(shape).await;
        for (n, v) in ["p", "q", "r"].into_iter().enumerate() {
            world.write("b.csv", &[(3, v), (10 + n as i64, v)]).await;
            world.refresh().await.unwrap();
        }
        world.sql("CALL incremental.compact('t')").await.unwrap();
        world.expect([0, 3], [0, 0, 0, 5]).await;
        world.sql("CALL incremental.vacuum('t', dry_run => false, older_than => '0 s')").await.unwrap();
        world.expect([0, 3], [0, 0, 0, 5]).await;
        world.write("b.csv", &[(3, "s")]).await;
        world.expect([1, 2], [0, 1, 1, 3]).await;
        world.write("c.csv", &[(5, "e"), (3, "s")]).await;
        world.expect_error(ErrorCode::KeyDuplicate, "id=3 (count 2)").await;
        world.expect_rows(&[(1, "A"), (2, "B"), (3, "S"), (5, "E")]).await;
    }
}

#[tokio::test]
async fn a_sealed_run_publishes_what_it_captured_and_the_next_one_sees_the_rest() {
    let world = three_files(Shape { proven: false, ..Shape::default() }).await;
    world.write("b.csv", &[(3, "pinned"), (4, "d")]).await;
    world.failing.store(1, Ordering::SeqCst);
    let request = RefreshRequest { run: Some(RunId::new("r").unwrap()), ..RefreshRequest::default() };
    assert_eq!(world.session.refresh("t", request.clone()).await.unwrap_err().code(), ErrorCode::HandlerFailed);
    world.failing.store(0, Ordering::SeqCst);
    world.write("a.csv", &[(1, "later"), (2, "b")]).await;
    world.write("b.csv", &[(3, "later"), (4, "d")]).await;
    let summary = world.session.refresh("t", request).await.unwrap();
    assert_eq!((files_of(&summary), rows_of(&summary)), ([1, 2], [0, 1, 0, 4]));
    world.expect_rows(&[(1, "A"), (2, "B"), (3, "PINNED"), (4, "D"), (5, "E")]).await;
    world.expect([2, 1], [0, 2, 0, 3]).await;
    world.expect([0, 3], [0, 0, 0, 5]).await;
}

#[tokio::test]
async fn folders_that_hold_values_are_skipped_with_their_values() {
    let world = World::bare(Shape::default()).await;
    for (year, id) in [(2020, 1), (2021, 2)] {
        world.write_text(&format!("year={year}/a.csv"), &format!("id\n{id}\n")).await;
    }
    let external = "CREATE EXTERNAL TABLE s (id BIGINT, year VARCHAR) STORED AS CSV PARTITIONED BY (year) \
                    LOCATION 'files://source/data/' OPTIONS ('format.has_header' 'true')";
    world.sql(external).await.unwrap();
    world
        .sql("CREATE INCREMENTAL TABLE t FROM s KEY (id) TRACK (year) LOCATION 'files://tables/t/' AS SELECT id, year AS o FROM input")
        .await
        .unwrap();
    world.expect([2, 0], [2, 0, 0, 0]).await;
    world.write_text("year=2022/a.csv", "id\n3\n").await;
    world.expect([1, 2], [1, 0, 0, 2]).await;
    world.remove("year=2020/a.csv").await;
    world.expect([0, 2], [0, 0, 1, 2]).await;
    world.expect([0, 2], [0, 0, 0, 2]).await;
    world.expect_rows(&[(2, "2021"), (3, "2022")]).await;
}

#[tokio::test]
async fn a_small_pool_finds_the_same() {
    let rows = |from: i64, to: i64| (from..to).map(|id| format!("{id},v{id}\n")).collect::<String>();
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape { memory: Some(6 << 20), location: folder.path().display().to_string(), ..Shape::default() };
    let world = World::new(shape).await;
    world.write_text("a.csv", &format!("id,v\n{}", rows(0, 200_000))).await;
    world.write_text("b.csv", &format!("id,v\n{}", rows(200_000, 400_000))).await;
    world.expect([2, 0], [400_000, 0, 0, 0]).await;
    // Half the baseline is loaded, and many keys are new.
    world.write_text("b.csv", &format!("id,v\n{}", rows(200_010, 600_000))).await;
    let summary = world.refresh().await.unwrap();
    assert_eq!((files_of(&summary), rows_of(&summary)), ([1, 1], [200_000, 0, 10, 399_990]));
    assert!(summary.spilled_bytes.unwrap() > 0, "{summary:?}");
    world.write_text("b.csv", &format!("id,v\n{}199999,x\n7,x\n", rows(200_020, 700_000))).await;
    let error = world.refresh().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::KeyDuplicate, "{error}");
    assert!(error.message().contains("id=199999 (count 2)") && error.message().contains("id=7 (count 2)"), "{error}");
}

/// The writes of a refresh that finds nothing: few, and at most five of them one after another.
#[tokio::test(start_paused = true)]
async fn a_refresh_without_changes_waits_for_five_writes() {
    for shape in shapes() {
        let world = three_files(shape).await;
        world.expect([0, 3], [0, 0, 0, 5]).await;
        world.tables.take_writes();
        // Each write takes a second of a clock that stands still otherwise.
        world.tables.write_millis.store(1000, Ordering::SeqCst);
        let start = tokio::time::Instant::now();
        let summary = world.refresh().await.unwrap();
        let writes = world.tables.take_writes();
        assert_eq!(summary.reason, Some(RunReason::NoChange));
        let kind = |path: &String| {
            let name = path.rsplit('/').next().unwrap_or_default().trim_start_matches(|c: char| c.is_ascii_digit());
            let folder = path.split('/').nth(2).unwrap_or_default();
            if folder == "runs" { name.trim_start_matches('.').to_string() } else { folder.to_string() }
        };
        let mut kinds: Vec<String> = writes.iter().map(kind).collect();
        kinds.sort();
        let expected =
            ["attempt.json", "end.json", "lease", "lease", "manifests", "request.json", "seal.json", "versions"].map(String::from).to_vec();
        assert_eq!(kinds, expected, "{writes:?}");
        assert_eq!(start.elapsed().as_secs(), 5, "{writes:?}");
        world.tables.write_millis.store(0, Ordering::SeqCst);
    }
}
