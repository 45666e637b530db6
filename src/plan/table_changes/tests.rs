//! Random histories of a table, and what changed between every two of its versions.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use roaring::RoaringTreemap;

use super::*;
use crate::spec::{RunId, RunMode, RunState, RunSummary};
use crate::store::dead::apply_dead;
use crate::store::files::PairWriter;
use crate::store::files::test_support::{config, incarnation, int64, output_rows, output_schema, pair_spec, reservation};
use crate::store::{CommitOutcome, Incarnation, Manifest, VersionDelta, VersionKind};

/// A row: id, and the version that wrote it.
type Row = (i64, u64);
/// Files with the rows that they hold.
type Files = Vec<(DataFile, Vec<Row>)>;

struct Table {
    inc: Incarnation,
    /// The newest version's files with the rows of each, dead ones too.
    files: Vec<(DataFile, Vec<Row>)>,
    /// The live rows of every version.
    versions: Vec<BTreeMap<i64, u64>>,
}

impl Table {
    async fn new() -> Self {
        let mut table = Self { inc: incarnation().await, files: vec![], versions: vec![BTreeMap::new()] };
        table.run(&(0..20).collect(), &BTreeSet::new()).await;
        table
    }

    fn next(&self) -> u64 {
        self.versions.len() as u64
    }

    fn live(&self) -> &BTreeMap<i64, u64> {
        self.versions.last().unwrap()
    }

    /// Rows with the versions that wrote them, as one file of the next version.
    async fn write(&self, rows: &[Row]) -> (DataFile, Vec<Row>) {
        let batches = rows.iter().map(|(id, _)| output_rows(*id, id + 1)).collect::<Vec<_>>();
        let plain = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
        let mut columns: Vec<(String, ArrayRef)> =
            plain.schema().fields().iter().map(|f| f.name().clone()).zip(plain.columns().iter().cloned()).collect();
        columns[1].1 = Arc::new(rows.iter().map(|(id, version)| Some(format!("{id} of {version}"))).collect::<StringArray>());
        columns.push((VERSION.to_string(), Arc::new(rows.iter().map(|(_, version)| *version as i64).collect::<Int64Array>())));
        let mut writer = PairWriter::new(pair_spec(&self.inc, self.next(), config()), "f".into(), reservation(64 << 20).1).unwrap();
        writer.write(&RecordBatch::try_from_iter(columns).unwrap()).await.unwrap();
        (writer.finish().await.unwrap().remove(0), rows.to_vec())
    }

    /// The files without the live rows of `ids`.
    async fn without(&self, ids: &BTreeSet<i64>) -> Vec<(DataFile, Vec<Row>)> {
        let live = self.live();
        let is_dead = |(id, version): &Row| ids.contains(id) && live.get(id) == Some(version);
        let positions = |rows: &[Row]| (0..).zip(rows).filter(|(_, row)| is_dead(row)).map(|(at, _)| at).collect::<RoaringTreemap>();
        let dead = (0..).zip(&self.files).map(|(at, (_, rows))| (at, positions(rows))).collect();
        let files: Vec<DataFile> = self.files.iter().map(|(file, _)| file.clone()).collect();
        let left = apply_dead(&self.inc, &format!("data/dead/{}", self.next()), &files, &dead).await.unwrap();
        let rows_of = |file: &DataFile| self.files.iter().find(|(known, _)| known.data.path == file.data.path).unwrap().1.clone();
        left.into_iter().map(|file| (file.clone(), rows_of(&file))).collect()
    }

    async fn publish(&mut self, kind: VersionKind, files: Vec<(DataFile, Vec<Row>)>, live: BTreeMap<i64, u64>) {
        self.publish_counted(kind, (files, live), None).await;
    }

    /// `counts`: updated and deleted rows, where the version says them.
    async fn publish_counted(&mut self, kind: VersionKind, (files, live): (Files, BTreeMap<i64, u64>), counts: Option<(u64, u64)>) {
        let version = self.next();
        let run = RunId::new(format!("r{version}")).unwrap();
        let list: Vec<DataFile> = files.iter().map(|(file, _)| file.clone()).collect();
        let manifest = Manifest {
            format: 1,
            incarnation: self.inc.id().into(),
            version,
            base: (version > 1).then_some(version - 1),
            kind,
            revision: 1,
            committed_at: version as i64,
            key: vec!["id".into()],
            output_schema: output_schema(),
            parts: self.inc.write_files(&[], &list).await.unwrap(),
            source: None,
            rows: live.len() as u64,
            floor: 0,
            delta: VersionDelta::default(),
            sync: None,
            summary: RunSummary {
                rows_updated: counts.map(|(updated, _)| updated),
                rows_deleted: counts.map(|(_, deleted)| deleted),
                ..RunSummary::new(run.as_str(), RunMode::Published, RunState::Published)
            },
        };
        assert_eq!(list.iter().map(DataFile::live_rows).sum::<u64>(), live.len() as u64);
        assert!(matches!(self.inc.commit(&manifest, &run, "a").await.unwrap(), CommitOutcome::Committed(_)));
        self.files = files;
        self.versions.push(live);
    }

    /// A run that writes the rows `written` and deletes `deleted`.
    async fn run(&mut self, written: &BTreeSet<i64>, deleted: &BTreeSet<i64>) {
        let version = self.next();
        let mut files = self.without(&written.union(deleted).copied().collect()).await;
        if !written.is_empty() {
            files.push(self.write(&written.iter().map(|id| (*id, version)).collect::<Vec<_>>()).await);
        }
        let mut live = self.live().clone();
        live.retain(|id, _| !deleted.contains(id));
        live.extend(written.iter().map(|id| (*id, version)));
        let of = |ids: &BTreeSet<i64>| ids.iter().filter(|id| self.live().contains_key(id)).count() as u64;
        let counts = (!version.is_multiple_of(4)).then_some((of(written), of(deleted)));
        self.publish_counted(VersionKind::Run, (files, live), counts).await;
    }

    /// Some of the files become one.
    async fn compact(&mut self, rng: &mut SmallRng) {
        let live = self.live().clone();
        let (chosen, mut kept): (Vec<_>, Vec<_>) = self.files.clone().into_iter().partition(|_| rng.random_bool(0.6));
        let rows: BTreeSet<Row> = chosen.into_iter().flat_map(|(_, rows)| rows).filter(|(id, v)| live.get(id) == Some(v)).collect();
        if !rows.is_empty() {
            kept.push(self.write(&rows.into_iter().collect::<Vec<_>>()).await);
        }
        self.publish(VersionKind::Compaction, kept, live).await;
    }

    async fn step(&mut self, rng: &mut SmallRng) {
        let ids = |rng: &mut SmallRng, most: usize| (0..rng.random_range(0..=most)).map(|_| rng.random_range(0..30)).collect();
        match rng.random_range(0..10) {
            0..7 => {
                let written: BTreeSet<i64> = ids(rng, 5);
                let deleted: BTreeSet<i64> = if rng.random_bool(0.5) { BTreeSet::new() } else { ids(rng, 5) };
                self.run(&written, &deleted.difference(&written).copied().collect()).await;
            }
            7 | 8 => self.compact(rng).await,
            _ => self.publish(VersionKind::Fence, self.files.clone(), self.live().clone()).await,
        }
    }

    async fn snapshot(&self, version: u64) -> Arc<Snapshot> {
        let slot = self.inc.slot(version).await.unwrap().unwrap();
        let files = self.inc.files(&self.inc.manifest(&slot).await.unwrap()).await.unwrap();
        let (incarnation, key, output_schema) = (self.inc.clone(), vec!["id".to_string()], output_schema());
        Arc::new(Snapshot { incarnation, version: Some(version), key, output_schema, files, verify: true, cache: Default::default() })
    }

    /// The rows and keys of the changes are exactly what the model says.
    async fn compare(&self, from: u64, to: u64) {
        let changes = TableChanges::between(from, self.snapshot(to).await).await.unwrap();
        let context = SessionContext::new();
        let columns = ["name".to_string(), "id".to_string()];
        let rows = changes.rows(&context.state(), &columns).await.unwrap();
        assert_eq!(rows.schema().field(0).name(), "name");
        let rows = collect(rows, context.task_ctx()).await.unwrap();
        let (before, after) = (&self.versions[from as usize], &self.versions[to as usize]);
        let wanted: BTreeSet<i64> = after.iter().filter(|(_, version)| **version > from).map(|(id, _)| *id).collect();
        let found: Vec<i64> = rows.iter().flat_map(|batch| int64(batch, "id").values().to_vec()).collect();
        assert_eq!(found.len(), wanted.len(), "{from}..{to}: no row twice");
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), wanted, "{from}..{to}");

        let keys = collect(changes.keys().unwrap(), context.task_ctx()).await.unwrap();
        let keys: BTreeSet<i64> = keys.iter().flat_map(|batch| int64(batch, "id").values().to_vec()).collect();
        assert!(keys.len() as u64 <= changes.keys_at_most(), "{from}..{to}: {} keys, at most {}", keys.len(), changes.keys_at_most());
        let gone: BTreeSet<i64> = before.keys().filter(|id| !after.contains_key(id)).copied().collect();
        assert!(keys.is_superset(&wanted) && keys.is_superset(&gone), "{from}..{to}: {keys:?}");
        let untouched = before.iter().filter(|(id, version)| after.get(id) == Some(version)).find(|(id, _)| keys.contains(id));
        assert_eq!(untouched, None, "{from}..{to}: an untouched row is in scope, and would count as deleted");
    }
}

#[tokio::test]
async fn the_changes_between_any_two_versions_are_exact() {
    for seed in 0..20 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut table = Table::new().await;
        for _ in 0..9 {
            table.step(&mut rng).await;
        }
        for from in 1..table.next() {
            for to in from..table.next() {
                table.compare(from, to).await;
            }
        }
    }
}

#[tokio::test]
async fn changes_across_a_rebuild_or_a_rollback_are_not_known() {
    for kind in [VersionKind::Rebuild, VersionKind::Rollback] {
        let mut table = Table::new().await;
        table.publish(kind, table.files.clone(), table.live().clone()).await;
        table.run(&BTreeSet::from([1]), &BTreeSet::new()).await;
        assert!(TableChanges::between(1, table.snapshot(3).await).await.is_err());
        table.compare(2, 3).await;
        let error = TableChanges::between(4, table.snapshot(3).await).await.unwrap_err();
        assert!(error.0.contains("version 4"), "{error}");
    }
}
