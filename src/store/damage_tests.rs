//! Every flipped bit and every truncation of every kind of metadata object, at its decoder.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_schema::Schema;
use futures::TryStreamExt;
use object_store::ObjectStoreExt;

use super::paths::Kind;
use super::tests::{in_memory, publish, request, revision, run, seal, summary};
use super::*;
use crate::spec::*;

/// One object of each kind that the store writes, by a name for its kind.
async fn objects() -> BTreeMap<String, Vec<u8>> {
    let table = in_memory();
    let inc = table.create("t").await.unwrap();
    let save = DefinitionEntry::Save { revision: revision(1), activate: true, options: None };
    inc.append_definition(&inc.definitions().await.unwrap(), save).await.unwrap();
    let lease = inc.take_lease(&run("r"), "a").await.unwrap();
    publish(&inc, 1).await;
    let source =
        SourceFile { ordinal: 0, path: "s/f".into(), bytes: 9, e_tag: Some("e".into()), modified: 1, changed: Some(2), exact: true };
    inc.write_source_state(&SourceState { files: vec![source], ..SourceState::default() }).await.unwrap();
    let id = run("r");
    request(&inc, &id, RunMode::Draft).await;
    let records = inc.run(&id);
    records.start_attempt("a").await.unwrap();
    records.write_seal(&seal(&id, "a", Some(1), vec![])).await.unwrap();
    records.write_cancel().await.unwrap();
    let draft = DraftOutput {
        attempt: "a".into(),
        revision: 1,
        output_schema: Arc::new(Schema::empty()),
        key: vec!["id".into()],
        files: vec![],
        summary: summary("r", RunMode::Draft, RunState::Completed),
    };
    records.write_draft(&draft).await.unwrap();
    records.end_attempt("a", &draft.summary).await.unwrap();
    lease.release().await.unwrap();
    let store = &table.location().store;
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    let mut objects = BTreeMap::new();
    for meta in listed.into_iter().filter(|meta| meta.location.as_ref().ends_with(".json")) {
        let relative = meta.location.as_ref().replace(inc.id(), "incarnation");
        let bytes = store.get(&meta.location).await.unwrap().bytes().await.unwrap();
        objects.insert(relative, bytes.to_vec());
    }
    objects
}

#[tokio::test]
async fn every_flipped_bit_and_every_truncation_of_every_object_is_found() {
    let objects = objects().await;
    let kinds: BTreeSet<&str> = objects.keys().filter_map(|path| path.rsplit('/').next()).map(|name| &name[name.len().min(20)..]).collect();
    assert!(objects.len() >= 12, "{:?}", objects.keys());
    assert!([".attempt.json", ".end.json", ".json"].iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
    let mut cases = 0;
    for (path, bytes) in &objects {
        let found = |damaged: &[u8]| envelope::decode::<serde_json::Value>(damaged).is_err();
        assert!(!found(bytes), "{path}");
        let mut damaged = bytes.clone();
        for bit in 0..bytes.len() * 8 {
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(found(&damaged), "{path}: bit {bit}");
            damaged[bit / 8] ^= 1 << (bit % 8);
        }
        for end in 0..bytes.len() {
            assert!(found(&bytes[..end]), "{path}: cut at {end}");
        }
        cases += bytes.len() * 9;
    }
    println!("{} objects, {cases} damages", objects.len());
    assert!(cases > 20_000);
}

#[test]
fn no_damage_of_a_deletion_vector_panics() {
    let rows: roaring::RoaringTreemap = (0..40_u64).chain(70_000..70_010).chain([1 << 33]).collect();
    let bytes = deletion_vector::encode(&rows).unwrap().to_vec();
    assert_eq!(deletion_vector::decode(&bytes).unwrap(), rows);
    let mut damaged = bytes.clone();
    for bit in 0..bytes.len() * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        let _ = deletion_vector::decode(&damaged);
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
    for end in 0..bytes.len() {
        let _ = deletion_vector::decode(&bytes[..end]);
    }
}

/// A record of a run that cannot be read is listed as such, and does not stop a vacuum.
#[tokio::test]
async fn damaged_records_of_a_run_do_not_stop_a_vacuum() {
    for record in ["request.json", "seal.json"] {
        let table = in_memory();
        let inc = table.create("t").await.unwrap();
        publish(&inc, 1).await;
        let id = run("old");
        request(&inc, &id, RunMode::Published).await;
        inc.run(&id).write_seal(&seal(&id, "a", Some(1), vec![])).await.unwrap();
        let file = inc.write_object("data/old/a/x.parquet", bytes::Bytes::from_static(b"x")).await.unwrap();
        let path = inc.path(&format!("runs/old/{record}"));
        let mut damaged = table.location().store.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
        damaged[100] ^= 1;
        table.location().store.put(&path, damaged.into()).await.unwrap();
        let plan = retention::plan(&inc, std::time::Duration::ZERO, true).await.unwrap();
        assert!(plan.fence.is_some());
        publish(&inc, 2).await;
        let garbage = retention::below_floor(&inc, std::time::Duration::ZERO).await.unwrap();
        assert!(garbage.iter().all(|(path, _)| *path != file.path), "kept: nobody knows what it is for");
        assert_eq!(Kind::of(&file.path), Kind::RunFile("old"));
    }
}
