//! A whole refresh on local disk, published and synced: backfill, one per cent changed, nothing changed.
//! `cargo bench --bench refresh`.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use datafusion_incremental::context::IncrementalSession;
use datafusion_incremental::run::RefreshRequest;

const ROWS: u64 = 200_000;

fn snapshot(step: u64) -> String {
    format!(
        "CREATE OR REPLACE TABLE customers AS SELECT value AS id, 'name ' || (value % 4096 + CASE WHEN value % 100 = {step} % 100 THEN {step} ELSE 0 END) AS name, \
         value / 7.0 AS amount FROM generate_series(1, {ROWS})"
    )
}

async fn session(folder: &std::path::Path) -> IncrementalSession {
    let session = IncrementalSession::builder().with_root(folder.to_string_lossy()).build().await.expect("a session");
    session.sql(&snapshot(0)).await.expect("the source");
    session
        .sql("CREATE INCREMENTAL TABLE enriched FROM customers KEY (id) WITH (compaction = 'off') AS SELECT id, upper(name) AS name, round(amount * 1.2, 2) AS gross FROM input")
        .await
        .expect("the table");
    session
}

fn refreshes(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let mut group = c.benchmark_group("refresh");
    group.throughput(Throughput::Elements(ROWS)).sample_size(10);

    let folder = tempfile::tempdir().expect("a folder");
    let session = runtime.block_on(session(folder.path()));
    let refresh = |full| {
        let request = RefreshRequest { full, ..RefreshRequest::default() };
        let session = session.clone();
        async move { session.refresh("enriched", request).await.expect("a published run") }
    };
    runtime.block_on(refresh(false));
    group.bench_function("rebuild", |b| b.to_async(&runtime).iter(|| refresh(true)));
    group.bench_function("no change", |b| b.to_async(&runtime).iter(|| refresh(false)));
    let mut step = 0;
    group.bench_function("one per cent changed", |b| {
        b.iter_batched(
            || {
                step += 1;
                runtime.block_on(session.sql(&snapshot(step))).expect("the next snapshot");
            },
            |()| runtime.block_on(refresh(false)),
            criterion::BatchSize::PerIteration,
        )
    });
    group.finish();
}

criterion_group!(whole, refreshes);
criterion_main!(whole);
