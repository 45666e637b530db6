//! Every decoder of stored objects under random mutations: an error or a value, never a panic, never more memory than the
//! object and its claims warrant.
//!
//! ```text
//! objects of a real table ─ mutate (seeded) ─ checksum made to match, mostly ─► the decoder of their kind
//! ```
//!
//! `MUTATIONS` sets how many (CI: 9,000,000), `MUTATION_SEED` where they begin; a failure names the seed to begin with.

use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::de::DeserializeOwned;

use super::lease::LeaseRecord;
use super::runs::{AttemptEnd, AttemptStart, CancelRequest};
use super::table_store::TableRecord;
use super::*;
use crate::context::IncrementalSession;

const MUTATIONS: u64 = 9_000_000;
/// No valid object of these tables comes near it; a decoder that follows a claim would.
const MEMORY_LIMIT_KIB: u64 = 2 * 1024 * 1024;

/// A table with every kind of object: versions, a draft, a failed run, deletions, drop and revival.
async fn objects() -> Vec<(PathBuf, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    let session = IncrementalSession::builder().with_root(folder.path().display().to_string()).build().await.unwrap();
    for sql in [
        "CREATE TABLE s AS SELECT value AS id, 'text ' || value AS v FROM generate_series(1, 200)",
        "CREATE INCREMENTAL TABLE t FROM s KEY (id) AS SELECT id, v FROM input; REFRESH t; REFRESH t DRAFT",
        "CREATE OR REPLACE TABLE s AS SELECT value AS id, 'other ' || value AS v FROM generate_series(20, 230)",
        "ALTER INCREMENTAL TABLE t SET (verify = 'always'); REFRESH t RUN 'second'; REFRESH t",
        "ALTER INCREMENTAL TABLE t AS SELECT id, upper(v) AS v, CAST(id AS DECIMAL(20, 3)) AS d, [v] AS l FROM input; REFRESH t",
        "CALL incremental.cancel(t, 'second'); CALL incremental.rollback(t, 1)",
        "DROP INCREMENTAL TABLE t",
    ] {
        // Cancelling a run that has ended, for one, is refused; what it leaves is what counts.
        for statement in sql.split("; ") {
            let _ = session.sql(statement).await;
        }
    }
    let mut found = vec![];
    let mut folders = vec![folder.path().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "json" || e == "dv") {
                let bytes = std::fs::read(&path).unwrap();
                found.push((path, bytes));
            }
        }
    }
    found.sort();
    found
}

fn body<T: DeserializeOwned>(bytes: &[u8]) -> bool {
    envelope::decode::<T>(bytes).is_ok()
}

/// Decodes as the object's reader does; whether it was understood.
fn decode(path: &Path, bytes: &[u8]) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let folder = path.parent().and_then(Path::file_name).and_then(|n| n.to_str()).unwrap_or_default();
    match (folder, name) {
        ("table", _) => body::<TableRecord>(bytes),
        ("versions", _) => body::<Slot>(bytes),
        ("revisions", _) => body::<DefinitionEntry>(bytes),
        ("lease", _) => body::<LeaseRecord>(bytes),
        ("manifests", _) => match envelope::decode::<FileList>(bytes) {
            Ok((_, list)) => list.files.iter().all(|file| file.live_rows() <= file.rows && file.objects().count() >= 2),
            Err(_) => body::<Manifest>(bytes),
        },
        ("sources", _) => body::<SourceState>(bytes),
        (_, "request.json") => body::<RunRequest>(bytes),
        (_, "seal.json") => body::<Seal>(bytes),
        (_, "draft.json") => body::<DraftOutput>(bytes),
        (_, "cancel.json") => body::<CancelRequest>(bytes),
        (_, name) if name.ends_with(".attempt.json") => body::<AttemptStart>(bytes),
        (_, name) if name.ends_with(".end.json") => body::<AttemptEnd>(bytes),
        (_, name) if name.ends_with(".dv") => deletion_vector::decode(bytes).is_ok_and(|rows| rows.len() < u64::MAX),
        _ => panic!("an object of an unknown kind: {}", path.display()),
    }
}

const WORDS: &[&str] = &[
    "-1",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775808",
    "1e999",
    "-0",
    "null",
    "true",
    "{}",
    "[]",
    "\"\"",
    "\"../..\"",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "[[[[[[[[[[[[[[[[",
    "{\"a\":{\"a\":{\"a\":",
    "\"checksum\":",
    "\"body\":",
    ",",
    "}",
    "]",
];

/// One to four random changes.
fn mutate(rng: &mut SmallRng, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..rng.random_range(1..=4) {
        let at = rng.random_range(0..=bytes.len());
        let end = (at + rng.random_range(1..=16)).min(bytes.len());
        match rng.random_range(0..8) {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << rng.random_range(0..8)),
            1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = rng.random()),
            2 => drop(bytes.drain(at..end)),
            3 => drop(bytes.splice(at..at, bytes.get(at..end).unwrap_or_default().to_vec())),
            4 => drop(bytes.splice(at..end, WORDS.get(rng.random_range(0..WORDS.len())).unwrap_or(&"").bytes())),
            5 => {
                let from = rng.random_range(0..=other.len());
                let to = (from + rng.random_range(1..=64)).min(other.len());
                drop(bytes.splice(at..end, other.get(from..to).unwrap_or_default().iter().copied()));
            }
            6 => bytes.truncate(at),
            _ => {
                // A value by a value: most of a JSON object's structure is between its separators.
                let stop = bytes.iter().skip(at).position(|b| matches!(b, b',' | b'}' | b']')).map_or(bytes.len(), |n| at + n);
                drop(bytes.splice(at..stop, WORDS.get(rng.random_range(0..WORDS.len())).unwrap_or(&"").bytes()));
            }
        }
        if bytes.len() > 64 * 1024 {
            bytes.truncate(64 * 1024);
        }
    }
}

/// The bytes with a checksum that matches what follows it.
fn resealed(bytes: Vec<u8>) -> Vec<u8> {
    const PREFIX: usize = "{\"checksum\":\"".len() + 64 + "\",".len();
    let Some(rest) = bytes.get(PREFIX..) else { return bytes };
    let mut out = b"{\"checksum\":\"".to_vec();
    out.extend_from_slice(blake3::hash(rest).to_hex().as_bytes());
    out.extend_from_slice(b"\",");
    out.extend_from_slice(rest);
    out
}

fn round(seed: u64, samples: &[(PathBuf, Vec<u8>)]) -> bool {
    let mut rng = SmallRng::seed_from_u64(seed);
    let (path, sample) = &samples[rng.random_range(0..samples.len())];
    let (_, other) = &samples[rng.random_range(0..samples.len())];
    let mut bytes = sample.clone();
    mutate(&mut rng, &mut bytes, other);
    // One in eight as it is: the checksum must find it out.
    if path.extension().is_some_and(|e| e == "json") && rng.random_range(0..8) > 0 {
        bytes = resealed(bytes);
    }
    decode(path, &bytes)
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn decoders_survive_random_mutations() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut samples = runtime.block_on(objects());
    // One of each kind and size: the same kind again teaches nothing, and small objects are quick.
    samples.sort_by_key(|(path, bytes)| (path.parent().map(Path::to_path_buf), bytes.len()));
    assert!(samples.iter().all(|(path, bytes)| decode(path, bytes)), "an object that was written is not understood");
    let (count, first) = (setting("MUTATIONS", MUTATIONS), setting("MUTATION_SEED", 0));
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get() as u64);
    let understood = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                let samples = &samples;
                scope.spawn(move || {
                    let mut understood = 0_u64;
                    for seed in (first + worker..first + count).step_by(threads as usize) {
                        let outcome = std::panic::catch_unwind(|| round(seed, samples));
                        understood += u64::from(outcome.unwrap_or_else(|_| panic!("replay with MUTATION_SEED={seed} MUTATIONS=1")));
                    }
                    understood
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum::<u64>()
    });
    println!("{count} mutations of {} objects, {understood} still understood", samples.len());
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<u64>().ok());
    assert!(peak.is_none_or(|kib| kib < MEMORY_LIMIT_KIB), "{peak:?} KiB");
}
