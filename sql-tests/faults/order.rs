//! The order in which a write becomes durable on the local disk, seen from outside: a library preloaded into the shell writes
//! down every write, sync, link and new folder, and the answer.
//!
//! ```text
//! write data#1 ─ sync data#1 ─ link data ─ sync its folder ─┐ (the same for every object)
//!                                                           ├─► link the slot ─ sync its folder ─► the answer
//! mkdir folder ─ sync its parent ─ link into it ────────────┘
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;

use super::shell::{Folder, assert_done};
use super::world::rows;

/// One call, in the order in which they returned.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Call {
    Write(PathBuf),
    Sync(PathBuf),
    Link(PathBuf, PathBuf),
    Folder(PathBuf),
    Answer,
}

fn parse(line: &str) -> Call {
    let parts: Vec<&str> = line.split('\t').collect();
    let path = PathBuf::from(parts[1]);
    match parts[0] {
        "write" => Call::Write(path),
        "sync" => Call::Sync(path),
        "link" => Call::Link(path, PathBuf::from(parts[2])),
        "mkdir" => Call::Folder(path),
        "answer" => Call::Answer,
        other => panic!("a create-only store does not {other}: {line}"),
    }
}

fn shim(folder: &Path) -> PathBuf {
    let (code, library) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("sql-tests/faults/order.c"), folder.join("order.so"));
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&code).output();
    let compiled = compiled.expect("a C compiler (cc) is installed");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    library
}

/// What the shell did below its root for `sql`.
fn calls(folder: &Folder, library: &Path, sql: &str) -> Vec<Call> {
    let log = folder.path().join("order.log");
    let _ = std::fs::remove_file(&log);
    let output = folder.shell(sql).env("LD_PRELOAD", library).env("ORDER_LOG", &log).output().expect("the shell runs");
    assert_done(&output);
    let below = |call: &Call| match call {
        Call::Write(path) | Call::Sync(path) | Call::Link(_, path) | Call::Folder(path) => path.starts_with(folder.warehouse()),
        Call::Answer => true,
    };
    std::fs::read_to_string(&log).expect("a log").lines().map(parse).filter(below).collect()
}

fn is_slot(path: &Path) -> bool {
    path.parent().is_some_and(|folder| folder.ends_with("versions"))
}

fn parent(path: &Path) -> &Path {
    path.parent().expect("a parent")
}

/// Whether `folder` is synced between the two places.
fn is_synced(calls: &[Call], folder: &Path, from: usize, to: usize) -> bool {
    calls[from..to].iter().any(|call| matches!(call, Call::Sync(path) if path == folder))
}

/// The slots that were linked, or what comes too late.
fn check(calls: &[Call]) -> Result<usize, String> {
    let answer = |from: usize| calls[from..].iter().position(|call| *call == Call::Answer).map(|at| from + at).ok_or("there is no answer");
    let mut slots = 0;
    for (at, call) in calls.iter().enumerate() {
        match call {
            Call::Link(staged, name) => {
                let written = calls[..at].iter().rposition(|call| matches!(call, Call::Write(path) if path == staged));
                let written = written.ok_or_else(|| format!("{staged:?} is linked, and nothing was written into it"))?;
                if !is_synced(calls, staged, written, at) {
                    return Err(format!("{name:?} has its name before its bytes are synced"));
                }
                let counts = if is_slot(name) { answer(at)? } else { next_slot(calls, at).map_or_else(|| answer(at), Ok)? };
                if !is_synced(calls, parent(name), at, counts) {
                    return Err(format!("the folder of {name:?} is not synced before it counts"));
                }
                slots += usize::from(is_slot(name));
            }
            Call::Folder(folder) => {
                let used = calls[at..].iter().position(|call| matches!(call, Call::Link(_, name) if parent(name) == folder));
                if let Some(used) = used
                    && !is_synced(calls, parent(folder), at, at + used)
                {
                    return Err(format!("the new folder {folder:?} is used before its parent is synced"));
                }
            }
            _ => {}
        }
    }
    Ok(slots)
}

fn next_slot(calls: &[Call], from: usize) -> Option<usize> {
    calls[from..].iter().position(|call| matches!(call, Call::Link(_, name) if is_slot(name))).map(|at| from + at)
}

/// The check itself finds every sync that is left out.
fn check_finds_what_is_missing(calls: &[Call]) {
    let links = calls.iter().filter_map(|call| match call {
        Call::Link(staged, name) => Some((staged, name)),
        _ => None,
    });
    for (staged, name) in links {
        for missing in [staged.as_path(), parent(name)] {
            let without: Vec<Call> = calls.iter().filter(|call| !matches!(call, Call::Sync(path) if path == missing)).cloned().collect();
            assert!(check(&without).is_err(), "without a sync of {missing:?}");
        }
    }
}

#[test]
fn order_of_durable_writes() {
    let tools = tempfile::tempdir().unwrap();
    let library = shim(tools.path());
    let mut syncs = 0;
    for definition in [
        "KEY (id) WITH (compaction = 'off') AS SELECT id, upper(v) AS o FROM input",
        "KEY (id) WITH (compaction = 'off', allow_volatile = true) AS SELECT id, concat(upper(v), substr(CAST(random() AS VARCHAR), 1, 0)) AS o FROM input",
    ] {
        let folder = Folder::with_table(&rows(&[(1, "a"), (2, "b"), (3, "c")]), definition);
        folder.set_source(&rows(&[(1, "a"), (2, "bb"), (4, "d")]));
        for sql in
            ["REFRESH t", "REFRESH t FULL", "CALL incremental.rollback('t', version => 1)", "REFRESH t", "CALL incremental.compact('t')"]
        {
            let calls = calls(&folder, &library, sql);
            assert_eq!(check(&calls), Ok(1), "{sql}: {calls:#?}");
            check_finds_what_is_missing(&calls);
            syncs += calls.iter().filter(|call| matches!(call, Call::Sync(_))).count();
        }
    }
    println!("10 publishes, {syncs} syncs in order");
}
