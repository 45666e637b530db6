//! Hand-made tables over a temporary folder, for tests of reading.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use datafusion::common::{ScalarValue, TableReference};
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::prelude::SessionContext;
use object_store::memory::InMemory;
use object_store::{ObjectStoreExt, PutPayload};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use roaring::RoaringTreemap;
use tempfile::TempDir;

use crate::env::{Env, Location};
use crate::spec::{Definition, HandlerSpec, Options, Revision, RunId, RunMode, RunState, RunSummary, SemanticOptions, SourceSpec};
use crate::store::files::encode_range;
use crate::store::{
    ColumnBounds, CommitOutcome, DataFile, DefinitionEntry, DeletionVectorRef, Incarnation, Manifest, ObjectRef, TableStore, VersionDelta,
    VersionKind, deletion_vector,
};

/// A table named `t` with the columns `id` (key) and `v`.
pub(crate) struct Fixture {
    pub(crate) dir: TempDir,
    pub(crate) incarnation: Incarnation,
}

/// `id` Int64, `v` Utf8.
pub(crate) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true), Field::new("v", DataType::Utf8, true)]))
}

/// One row per id; `v` is `<prefix><id>`.
pub(crate) fn rows(ids: std::ops::Range<i64>, prefix: &str) -> RecordBatch {
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(ids.clone().map(|id| format!("{prefix}{id}"))));
    RecordBatch::try_new(schema(), vec![Arc::new(arrow::array::PrimitiveArray::<Int64Type>::from_iter_values(ids)), texts]).unwrap()
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let location = Location::resolve(&dir.path().to_string_lossy(), &SessionContext::new().runtime_env()).unwrap();
        Self::at(dir, location).await
    }

    /// Over a store that no session knows.
    pub(crate) async fn in_memory() -> Self {
        let store_url = ObjectStoreUrl::parse("mem://somewhere").unwrap();
        let location = Location { store_url, store: Arc::new(InMemory::new()), root: "folder".into() };
        Self::at(tempfile::tempdir().unwrap(), location).await
    }

    async fn at(dir: TempDir, location: Location) -> Self {
        let incarnation = TableStore::new(Env::default(), location).create("t").await.unwrap();
        let fixture = Self { dir, incarnation };
        fixture.save(schema(), Options::default()).await;
        fixture
    }

    pub(crate) fn name() -> TableReference {
        TableReference::bare("t")
    }

    /// Saves and activates a revision with this published schema.
    pub(crate) async fn save(&self, output_schema: SchemaRef, options: Options) {
        let definition = Definition {
            source: SourceSpec { name: ["datafusion".into(), "public".into(), "s".into()], statements: vec![] },
            key: vec!["id".into()],
            tracked: vec!["v".into()],
            tracked_declared: true,
            handler: HandlerSpec::Sql { text: "SELECT id, v FROM input".into() },
            incremental: true,
            options: SemanticOptions::default(),
            input_schema: schema(),
            output_schema,
            session: BTreeMap::new(),
            functions: vec![],
            fingerprint_version: Definition::FINGERPRINT_VERSION,
        };
        let log = self.incarnation.definitions().await.unwrap();
        let revision = Revision { number: log.revisions.len() as u64 + 1, digest: definition.digest(), saved_at: 0, definition };
        let entry = DefinitionEntry::Save { revision: Box::new(revision), activate: true, options: Some(options) };
        self.incarnation.append_definition(&log, entry).await.unwrap();
    }

    /// Writes a data file of row groups of four rows.
    pub(crate) async fn file(&self, name: &str, batch: &RecordBatch, dead: &[u64]) -> DataFile {
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(4)).build();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
        writer.write(batch).unwrap();
        let bytes = Bytes::from(writer.into_inner().unwrap());
        let data = self.put(&format!("data/{name}.parquet"), bytes).await;
        let deletions = match dead {
            [] => None,
            dead => {
                let vector: RoaringTreemap = dead.iter().collect();
                let object = self.put(&format!("data/{name}.dv"), deletion_vector::encode(&vector).unwrap()).await;
                Some(DeletionVectorRef { object, rows: vector.len() })
            }
        };
        let index = ObjectRef { path: format!("data/{name}.index.parquet"), bytes: 0, hash: String::new() };
        DataFile { data, index, rows: batch.num_rows() as u64, deletions, added_in: 1, bounds: bounds(batch), sources: vec![] }
    }

    pub(crate) async fn put(&self, path: &str, bytes: Bytes) -> ObjectRef {
        let store = &self.incarnation.store().location().store;
        let hash = blake3::hash(&bytes).to_hex().to_string();
        let size = bytes.len() as u64;
        store.put(&self.incarnation.path(path), PutPayload::from_bytes(bytes)).await.unwrap();
        ObjectRef { path: path.into(), bytes: size, hash }
    }

    /// Publishes the next version, committed at `version` seconds after 1970.
    pub(crate) async fn publish(&self, files: &[DataFile], output_schema: SchemaRef) -> u64 {
        let base = self.incarnation.newest_version().await.unwrap().map(|slot| slot.version);
        let version = base.unwrap_or(0) + 1;
        let run = RunId::new(format!("r{version}")).unwrap();
        let manifest = Manifest {
            format: 1,
            incarnation: self.incarnation.id().into(),
            version,
            base,
            kind: VersionKind::Run,
            revision: 1,
            committed_at: version as i64 * 1_000_000,
            key: vec!["id".into()],
            output_schema,
            parts: self.incarnation.write_files(&[], files).await.unwrap(),
            source: None,
            rows: files.iter().map(DataFile::live_rows).sum(),
            delta: VersionDelta::default(),
            floor: 0,
            summary: RunSummary::new(run.as_str(), RunMode::Published, RunState::Published),
            sync: None,
        };
        match self.incarnation.commit(&manifest, &run, "a").await.unwrap() {
            CommitOutcome::Committed(slot) => slot.version,
            CommitOutcome::Lost(_) => panic!("the slot is taken"),
        }
    }
}

/// Bounds of columns that ascend; the fixture's integers do, its texts get their null count only.
fn bounds(batch: &RecordBatch) -> BTreeMap<String, ColumnBounds> {
    let value = |column: &ArrayRef, row: usize| ScalarValue::try_from_array(column, row).unwrap();
    let bounds = |column: &ArrayRef| {
        let range = || encode_range(&value(column, 0), &value(column, column.len() - 1)).unwrap();
        let range = column.data_type().is_integer().then(range);
        ColumnBounds { nulls: Some(column.null_count() as u64), range }
    };
    batch.schema().fields().iter().zip(batch.columns()).map(|(f, c)| (f.name().clone(), bounds(c))).collect()
}
