//! No name, run id or stored path leads out of the table's folder.

use std::path::{Path, PathBuf};

use datafusion_incremental::ErrorCode;
use datafusion_incremental::context::IncrementalSession;

use super::world::{World, cells, panics, quoted, short, tree};

/// Names that mean something to a file system, a URL, SQL or a reader's eye.
fn odd_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "../outside",
        "..",
        ".",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "..\\outside",
        "C:\\x",
        "C:x",
        "CON",
        "nul",
        "%2e%2e",
        "%2F",
        "%00",
        "é",
        "e\u{301}",
        "Ab",
        "ab",
        "AB",
        " ",
        "  ",
        "\n",
        "\t",
        "a\0b",
        ".hidden",
        "a#1",
        "a*?[b]",
        "'; DROP TABLE s; --",
        "\"quoted\"",
        "\u{202e}abc",
        "😀",
        "table",
        "probe",
        "versions",
        "a=b",
        "=2e",
        "~",
        "$HOME",
        "${x}",
        "`id`",
        "a:b",
        "a|b",
        "-rf",
        "ａ",
        "ß",
        "SS",
        "ı",
        "İ",
        "\u{200b}",
        "\u{feff}x",
    ]
    .map(String::from)
    .into();
    names.push("x".repeat(3000));
    names.push("ä".repeat(1000));
    names.push(format!("{}1", "x".repeat(3000)));
    names
}

fn ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A file beside the warehouse that nothing may touch.
fn sentinel(world: &World) -> PathBuf {
    let folder = world.path().join("outside");
    std::fs::create_dir_all(folder.join("deep")).unwrap();
    for name in ["secret.parquet", "x", "deep/part.parquet", "deep/1.json"] {
        std::fs::write(folder.join(name), "do not touch").unwrap();
    }
    folder
}

#[tokio::test]
async fn odd_table_names_stay_apart_and_inside() {
    let world = World::new().await;
    let outside = sentinel(&world);
    let before = tree(&outside);
    world.ok("CREATE TABLE s (id BIGINT, v VARCHAR) AS VALUES (1, 'a')").await;
    let names = odd_names();
    for (number, name) in names.iter().enumerate() {
        let name = ident(name);
        world.ok(&format!("CREATE INCREMENTAL TABLE {name} FROM s KEY (id) AS SELECT id, {number} AS n FROM input; REFRESH {name}")).await;
    }
    let folders = std::fs::read_dir(world.warehouse()).unwrap().count();
    assert_eq!(folders, names.len(), "each table has a folder of its own");
    // Folded and normalised, as other file systems do it, they are still as many.
    let folded: std::collections::BTreeSet<String> =
        std::fs::read_dir(world.warehouse()).unwrap().map(|e| e.unwrap().file_name().to_str().unwrap().to_lowercase()).collect();
    assert_eq!(folded.len(), names.len());
    assert!(folded.iter().all(|name| name.is_ascii() && !name.starts_with('.') && name.len() < 200), "{folded:?}");
    // Another process finds each of them, with its own rows.
    let again = IncrementalSession::builder().with_root(world.warehouse().display().to_string()).build().await.unwrap();
    assert!(again.unavailable().is_empty(), "{:?}", again.unavailable());
    for (number, name) in names.iter().enumerate() {
        let rows = again.sql(&format!("SELECT n FROM {}", ident(name))).await.unwrap().pop().unwrap().batches;
        assert_eq!(cells(&rows), [number.to_string()], "{name:?}");
        let literal = quoted(&ident(name));
        let versions = again.sql(&format!("SELECT count(*) FROM incremental_versions({literal})")).await.unwrap().pop().unwrap().batches;
        assert_eq!(cells(&versions), ["1"], "{name:?}");
    }
    for name in &names {
        again.sql(&format!("DROP INCREMENTAL TABLE {} PURGE", ident(name))).await.unwrap_or_else(|e| panic!("{}: {e}", short(name)));
    }
    assert_eq!(tree(&outside), before);
    let left = tree(&world.warehouse());
    assert!(left.keys().all(|path| path.parent().is_some_and(|folder| folder.ends_with("table"))), "purged: only table logs are left");
    assert_eq!(world.refused("CREATE INCREMENTAL TABLE \"\" FROM s KEY (id) AS SELECT id FROM input").await.0, ErrorCode::StatementInvalid);
    println!("{} table names", names.len());
    assert_eq!(panics(), 0);
}

#[tokio::test]
async fn odd_run_ids_are_refused_everywhere() {
    let world = World::with_tables().await;
    let before = world.tree();
    let mut ids: Vec<String> =
        odd_names().into_iter().filter(|id| !id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))).collect();
    ids.extend([String::new(), "x".repeat(129), "a/../b".into(), "a.\0".into()]);
    for id in &ids {
        let id = quoted(id);
        for sql in [
            format!("REFRESH base RUN {id}"),
            format!("REFRESH base DRAFT RUN {id}"),
            format!("SELECT * FROM incremental_refresh('base', 'published', {id})"),
            format!("SELECT * FROM incremental_output('base', {id})"),
            format!("CALL incremental.cancel(base, {id})"),
        ] {
            let (code, message) = world.refused(&sql).await;
            assert_eq!(code, ErrorCode::StatementInvalid, "{}: {}", short(&sql), short(&message));
        }
    }
    assert_eq!(world.tree(), before);
    println!("{} run ids on 5 surfaces", ids.len());
}

/// What a stored object might name.
fn evil_paths() -> Vec<String> {
    let mut paths: Vec<String> = [
        "../../../outside/secret.parquet",
        "/etc/passwd",
        "data/../../../../outside/x",
        "..",
        ".",
        "",
        "/",
        "data//x",
        "%2e%2e/%2e%2e/x",
        "data/%2e%2e/x",
        "..\\\\..\\\\outside",
        "C:\\\\x",
        "a\\u0000b",
        "data/é",
        "~/x",
        "data/a#1",
        "file:///etc/passwd",
        "s3://bucket/x",
    ]
    .map(String::from)
    .into();
    paths.push("x/".repeat(3000));
    paths
}

/// The object's bytes with `edit` applied to what the checksum covers, and a checksum that matches.
fn forged(bytes: &[u8], edit: impl Fn(&str) -> String) -> Vec<u8> {
    let text = std::str::from_utf8(bytes).unwrap();
    let (_, rest) = text.split_at("{\"checksum\":\"".len() + 64 + "\",".len());
    let rest = edit(rest);
    format!("{{\"checksum\":\"{}\",{rest}", blake3::hash(rest.as_bytes()).to_hex()).into_bytes()
}

fn files(folder: &Path, ending: &str, within: &str) -> Vec<PathBuf> {
    tree(folder).into_keys().filter(|path| path.to_string_lossy().ends_with(ending) && path.to_string_lossy().contains(within)).collect()
}

/// The value of a JSON text's first field of this name.
fn value(text: &str, field: &str) -> String {
    let start = text.find(&format!("\"{field}\":\"")).map(|at| at + field.len() + 4).unwrap_or_else(|| panic!("no {field} in {text}"));
    text[start..].split('"').next().unwrap().to_string()
}

/// Every act that follows stored names, in a fresh session; none may succeed in touching what is outside.
async fn act_on(world: &World) -> Vec<ErrorCode> {
    let session = IncrementalSession::builder().with_root(world.warehouse().display().to_string()).build().await.unwrap();
    let mut codes: Vec<ErrorCode> = session.unavailable().iter().map(|(_, error)| error.code()).collect();
    let setup = "CREATE TABLE s (id BIGINT, v VARCHAR) AS VALUES (1, 'a'), (7, 'g')";
    for sql in [
        setup,
        "SELECT * FROM t",
        "REFRESH t RUN 'sealed'",
        "REFRESH t",
        "SELECT * FROM incremental_output('t', 'draft')",
        "SELECT * FROM incremental_row('t', 1)",
        "CALL incremental.rollback(t, 1)",
        "CALL incremental.compact(t)",
        "CALL incremental.vacuum(t, dry_run => false, older_than => '0 s')",
        "REFRESH t FULL",
        "DROP INCREMENTAL TABLE t PURGE",
    ] {
        if let Err(e) = session.sql(sql).await {
            assert_ne!(e.code(), ErrorCode::Internal, "{sql}: {e}");
            codes.push(e.code());
        }
    }
    codes
}

/// Forges one stored object of a fresh table after another, and acts.
#[tokio::test]
async fn names_inside_stored_objects_do_not_lead_outside() {
    let mut forgeries = 0;
    for (what, within, ending, field) in [
        ("the table log names an incarnation", "/table/", ".json", "incarnation"),
        ("a slot names a manifest", "/versions/", ".json", "manifest"),
        ("a draft names its files", "/runs/draft/", "draft.json", "path"),
        ("a seal names its capture", "/runs/sealed/", "seal.json", "path"),
        ("a part names data files", "/manifests/", ".json", "path"),
    ] {
        // Each kind of object takes a fifth of the names, the first ones and others.
        for evil in evil_paths().into_iter().enumerate().filter(|(n, _)| *n < 3 || n % 5 == within.len() % 5).map(|(_, evil)| evil) {
            let world = World::new().await;
            let outside = sentinel(&world);
            let before = tree(&outside);
            world.ok("CREATE TABLE s (id BIGINT, v VARCHAR) AS VALUES (1, 'a')").await;
            world.ok("CREATE INCREMENTAL TABLE t FROM s KEY (id) AS SELECT id, v FROM input; REFRESH t").await;
            world.ok("REFRESH t DRAFT RUN 'draft'").await;
            world.ok("INSERT INTO s VALUES (2, 'b')").await;
            world.ok("REFRESH t RUN 'sealed'").await;
            let found = files(&world.warehouse(), ending, within);
            assert!(!found.is_empty(), "{what}");
            let mut changed = 0;
            for file in &found {
                let bytes = std::fs::read(file).unwrap();
                let text = String::from_utf8(bytes.clone()).unwrap();
                let Some(_) = text.find(&format!("\"{field}\":\"")) else { continue };
                let old = value(&text, field);
                let new = forged(&bytes, |rest| rest.replace(&format!("\"{field}\":\"{old}\""), &format!("\"{field}\":\"{evil}\"")));
                refer(&world.warehouse(), &bytes, &new);
                std::fs::write(file, new).unwrap();
                changed += 1;
            }
            assert!(changed > 0, "{what}: nothing was forged");
            forgeries += changed;
            let codes = act_on(&world).await;
            assert_eq!(tree(&outside), before, "{what}: {}", short(&evil));
            assert!(codes.contains(&ErrorCode::Corrupt), "{what}: {}: {codes:?}", short(&evil));
            assert_eq!(panics(), 0);
        }
    }
    println!("{forgeries} forged objects, nothing outside touched");
}

/// Makes every object that names `old` by its digest and size name `new`.
fn refer(warehouse: &Path, old: &[u8], new: &[u8]) {
    let (old_hash, new_hash) = (blake3::hash(old).to_hex().to_string(), blake3::hash(new).to_hex().to_string());
    for file in tree(warehouse).into_keys().filter(|path| path.extension().is_some_and(|e| e == "json")) {
        let bytes = std::fs::read(&file).unwrap();
        if bytes != old && String::from_utf8_lossy(&bytes).contains(&old_hash) {
            let sizes =
                (format!("\"bytes\":{},\"hash\":\"{old_hash}\"", old.len()), format!("\"bytes\":{},\"hash\":\"{new_hash}\"", new.len()));
            let replaced = forged(&bytes, |rest| rest.replace(&sizes.0, &sizes.1).replace(&old_hash, &new_hash));
            refer(warehouse, &bytes, &replaced);
            std::fs::write(&file, replaced).unwrap();
        }
    }
}

/// Links that lead out of the table's folder: nothing behind them is listed, and nothing deleted.
#[cfg(unix)]
#[tokio::test]
async fn links_are_not_followed_by_vacuum_and_purge() {
    let world = World::new().await;
    let outside = sentinel(&world);
    let before = tree(&outside);
    world.ok("CREATE TABLE s (id BIGINT, v VARCHAR) AS VALUES (1, 'a')").await;
    world.ok("CREATE INCREMENTAL TABLE t FROM s KEY (id) AS SELECT id, v FROM input; REFRESH t RUN 'one'; REFRESH t FULL RUN 'two'").await;
    let data = files(&world.warehouse(), ".parquet", "/data/one/");
    let attempt = data.first().unwrap().parent().unwrap().to_path_buf();
    let incarnation = attempt.ancestors().nth(3).unwrap().to_path_buf();
    let link = |at: PathBuf| {
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&outside, at).unwrap();
    };
    link(attempt.join("link"));
    link(incarnation.join("manifests").join("deep"));
    link(incarnation.join("data").join("three"));
    link(incarnation.join("runs").join("one").join("attempt").join("capture"));
    link(incarnation.join("clock"));
    link(incarnation.parent().unwrap().join("probe").join("old"));
    std::os::unix::fs::symlink(outside.join("x"), attempt.join("file.parquet")).unwrap();
    let listed = world.sql("CALL incremental.vacuum(t, dry_run => true, older_than => '0 s')").await.map(|rows| cells(&rows));
    assert!(listed.as_ref().is_ok_and(|rows| rows.iter().all(|cell| !cell.contains("link") && !cell.contains("three"))), "{listed:?}");
    world.ok("CALL incremental.vacuum(t, dry_run => false, older_than => '0 s')").await;
    assert_eq!(tree(&outside), before, "vacuum followed a link");
    assert!(data.iter().all(|file| !file.exists()), "and still removes what is the table's own");
    world.ok("DROP INCREMENTAL TABLE t PURGE").await;
    assert_eq!(tree(&outside), before, "purge followed a link");
}
