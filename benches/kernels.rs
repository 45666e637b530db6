//! The kernels: fingerprints and the keyed diff. `cargo bench --bench kernels`.

use std::hint::black_box;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use datafusion_incremental::exec::equality::{Fingerprinter, KeyHash};
use datafusion_incremental::exec::keyed_diff::{DiffSpec, KeyedDiffExec};
use datafusion_incremental::spec::FingerprintKind;

const ROWS: usize = 1_000_000;
const BATCH: usize = 8_192;

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, true),
        Field::new("name", DataType::Utf8, true),
        Field::new("amount", DataType::Float64, true),
    ]))
}

fn batches() -> Vec<RecordBatch> {
    (0..ROWS.div_ceil(BATCH))
        .map(|batch| {
            let ids: Vec<i64> = (batch * BATCH..((batch + 1) * BATCH).min(ROWS)).map(|id| id as i64).collect();
            let names: StringArray = ids.iter().map(|id| Some(format!("name {}", id % 4_096))).collect();
            let amounts: Float64Array = ids.iter().map(|id| Some(*id as f64 / 7.0)).collect();
            let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(ids)), Arc::new(names), Arc::new(amounts)];
            RecordBatch::try_new(schema(), columns).expect("the columns fit the schema")
        })
        .collect()
}

fn tracked() -> Vec<Field> {
    schema().fields().iter().skip(1).map(|field| field.as_ref().clone()).collect()
}

fn fingerprints(c: &mut Criterion) {
    let batches = batches();
    let mut group = c.benchmark_group("fingerprint");
    group.throughput(Throughput::Elements(ROWS as u64)).sample_size(10);
    for kind in [FingerprintKind::Xxh3, FingerprintKind::Blake3] {
        let fingerprinter = Fingerprinter::try_new(kind, &[7; 32], &tracked()).expect("supported types");
        group.bench_function(format!("{kind:?}"), |b| {
            b.iter(|| {
                let mut out = Vec::with_capacity(BATCH);
                for batch in &batches {
                    out.clear();
                    fingerprinter.fingerprint(&batch.columns()[1..], &mut out).expect("supported values");
                    black_box(&out);
                }
            })
        });
    }
    group.finish();
}

/// A diff against an empty baseline: fingerprints, the key set, and the change rows.
fn first_diff(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let table = MemTable::try_new(schema(), vec![batches()]).expect("one partition");
    let ctx = SessionContext::new();
    let mut group = c.benchmark_group("keyed_diff");
    group.throughput(Throughput::Elements(ROWS as u64)).sample_size(10);
    group.bench_function("first run, one million rows", |b| {
        b.to_async(&runtime).iter(|| async {
            let state = ctx.state();
            let source = table.scan(&state, None, &[], None).await.expect("a scan");
            let spec = DiffSpec {
                table: "t".to_string(),
                key: vec![schema().field(0).clone()],
                tracked: tracked(),
                fingerprinter: Arc::new(Fingerprinter::try_new(FingerprintKind::Xxh3, &[7; 32], &tracked()).expect("supported types")),
                hash: KeyHash::default(),
                source_ordinals: None,
                keeps_missing: false,
            };
            let diff = KeyedDiffExec::try_new(None, source, spec).expect("a plan");
            let plan: Arc<dyn ExecutionPlan> = Arc::new(diff);
            black_box(collect(plan, state.task_ctx()).await.expect("no duplicate keys"))
        })
    });
    group.finish();
}

criterion_group!(kernels, fingerprints, first_diff);
criterion_main!(kernels);
