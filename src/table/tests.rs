//! One statement, one version; the next statement, the newest.

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use arrow_schema::{DataType, Field, Schema};
use datafusion::catalog::TableProvider;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::SessionContext;

use super::{IncrementalTable, PinRule, TableHandle};
use crate::error::{Error, ErrorCode};
use crate::plan::published_scan::fixture::{Fixture, rows, schema};
use crate::spec::{Options, RunId};

async fn open(fixture: &Fixture) -> Arc<TableHandle> {
    TableHandle::from_incarnation(fixture.incarnation.clone(), Fixture::name()).await.unwrap()
}

async fn session(fixture: &Fixture, rule: bool) -> SessionContext {
    let mut builder = SessionStateBuilder::new().with_default_features();
    if rule {
        builder = builder.with_analyzer_rule(Arc::new(PinRule));
    }
    let ctx = SessionContext::new_with_state(builder.build());
    ctx.register_table("t", Arc::new(IncrementalTable::new(open(fixture).await))).unwrap();
    ctx
}

async fn count(ctx: &SessionContext, sql: &str) -> i64 {
    let batches = ctx.sql(sql).await.unwrap().collect().await.unwrap();
    batches[0].column(0).as_primitive::<Int64Type>().value(0)
}

async fn failure(ctx: &SessionContext, sql: &str) -> Error {
    let error = match ctx.sql(sql).await {
        Ok(frame) => frame.collect().await.unwrap_err(),
        Err(error) => error,
    };
    Error::find(&error).unwrap_or_else(|| panic!("{error}"))
}

async fn publish(fixture: &Fixture, name: &str, rows_: std::ops::Range<i64>) -> u64 {
    let file = fixture.file(name, &rows(rows_, name), &[]).await;
    fixture.publish(&[file], schema()).await
}

#[tokio::test]
async fn before_the_first_publish_planning_works_and_reading_says_so() {
    let fixture = Fixture::new().await;
    let ctx = session(&fixture, true).await;
    assert_eq!(ctx.table("t").await.unwrap().schema().fields().len(), 2);
    let error = failure(&ctx, "SELECT * FROM t").await;
    assert_eq!(error.code(), ErrorCode::NotPublished);
    assert!(error.message().contains("REFRESH t"), "{error}");
    publish(&fixture, "a", 0..3).await;
    assert_eq!(count(&ctx, "SELECT count(*) FROM t").await, 3);
}

#[tokio::test]
async fn every_statement_reads_the_newest_version() {
    for rule in [true, false] {
        let fixture = Fixture::new().await;
        publish(&fixture, "a", 0..3).await;
        let ctx = session(&fixture, rule).await;
        ctx.sql("PREPARE p AS SELECT count(*) FROM t WHERE id >= 0").await.unwrap().collect().await.unwrap();
        ctx.sql("CREATE VIEW w AS SELECT * FROM t").await.unwrap().collect().await.unwrap();
        for (name, rows) in [("b", 5), ("c", 7)] {
            publish(&fixture, name, 0..rows).await;
            assert_eq!(count(&ctx, "SELECT count(*) FROM t").await, rows);
            assert_eq!(count(&ctx, "EXECUTE p").await, rows);
            assert_eq!(count(&ctx, "SELECT count(*) FROM w").await, rows);
        }
    }
}

#[tokio::test]
async fn a_reused_session_state_is_never_stale_with_the_rule() {
    let fixture = Fixture::new().await;
    publish(&fixture, "a", 0..3).await;
    let ctx = session(&fixture, true).await;
    let state = ctx.state();
    let plan = state.create_logical_plan("SELECT id FROM t").await.unwrap();
    for (name, rows) in [("b", 5), ("c", 7)] {
        publish(&fixture, name, 0..rows).await;
        let physical = state.create_physical_plan(&plan).await.unwrap();
        let batches = datafusion::physical_plan::collect(physical, state.task_ctx()).await.unwrap();
        assert_eq!(batches.iter().map(|b| b.num_rows()).sum::<usize>() as i64, rows);
        // Also a plan that was analysed, and so pinned, before.
        let analysed = state.optimize(&plan).unwrap();
        publish(&fixture, &format!("{name}2"), 0..rows + 1).await;
        let physical = state.create_physical_plan(&analysed).await.unwrap();
        let batches = datafusion::physical_plan::collect(physical, state.task_ctx()).await.unwrap();
        assert_eq!(batches.iter().map(|b| b.num_rows()).sum::<usize>() as i64, rows + 1);
    }
}

#[tokio::test]
async fn all_names_of_one_statement_share_one_pin() {
    for rule in [true, false] {
        let fixture = Fixture::new().await;
        publish(&fixture, "a", 0..3).await;
        let ctx = session(&fixture, rule).await;
        ctx.register_table("again", Arc::new(IncrementalTable::new(open(&fixture).await))).unwrap();
        let sql = "SELECT a.id FROM t a JOIN t b ON a.id = b.id WHERE a.id IN (SELECT id FROM t) AND a.id < (SELECT count(*) FROM t)";
        let frame = ctx.sql(sql).await.unwrap();
        let optimized = frame.clone().into_optimized_plan().unwrap();
        let mut pins = Vec::new();
        optimized
            .apply_with_subqueries(|node| {
                if let datafusion::logical_expr::LogicalPlan::TableScan(scan) = node {
                    let provider = datafusion::datasource::source_as_provider(&scan.source)?;
                    pins.push(provider.downcast_ref::<IncrementalTable>().unwrap().pin().map(Arc::as_ptr));
                }
                Ok(datafusion::common::tree_node::TreeNodeRecursion::Continue)
            })
            .unwrap();
        assert!(pins.len() >= 3, "{pins:?}");
        pins.dedup();
        assert_eq!(pins.len(), 1, "{pins:?}");
        assert_eq!(pins[0].is_some(), rule);
        assert_eq!(frame.collect().await.unwrap().iter().map(|b| b.num_rows()).sum::<usize>(), 3);
    }
}

#[tokio::test]
async fn versions_and_times_are_found() {
    let fixture = Fixture::new().await;
    for (name, rows) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        publish(&fixture, name, 0..rows).await;
    }
    let handle = open(&fixture).await;
    assert_eq!(handle.at_version(2).await.unwrap().rows(), 2);
    let error = handle.at_version(9).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::VersionNotFound);
    assert!(error.message().contains("1 to 4"), "{error}");
    for (micros, version) in [(1_000_000, 1), (1_999_999, 1), (2_000_000, 2), (3_500_000, 3), (i64::MAX, 4)] {
        assert_eq!(handle.at_timestamp(micros).await.unwrap().version, Some(version));
    }
    assert_eq!(handle.at_timestamp(999_999).await.unwrap_err().code(), ErrorCode::VersionNotFound);
    assert_eq!(handle.run_output(&RunId::new("nobody").unwrap()).await.unwrap_err().code(), ErrorCode::RunNotFound);

    let ctx = session(&fixture, true).await;
    let pinned = IncrementalTable::at(Arc::clone(&handle), handle.at_version(2).await.unwrap());
    ctx.register_table("old", Arc::new(pinned)).unwrap();
    assert_eq!(count(&ctx, "SELECT count(*) FROM old JOIN t ON old.id = t.id").await, 2);
}

#[tokio::test]
async fn a_moved_schema_is_an_error_once() {
    for rule in [true, false] {
        let fixture = Fixture::new().await;
        publish(&fixture, "a", 0..3).await;
        let ctx = session(&fixture, rule).await;
        ctx.sql("PREPARE p AS SELECT v FROM t").await.unwrap().collect().await.unwrap();
        let moved = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true), Field::new("w", DataType::Utf8, true)]));
        let batch = rows(0..4, "x");
        let batch = arrow::array::RecordBatch::try_new(Arc::clone(&moved), batch.columns().to_vec()).unwrap();
        let file = fixture.file("moved", &batch, &[]).await;
        fixture.publish(&[file], moved).await;
        let error = failure(&ctx, "SELECT v FROM t").await;
        assert_eq!(error.code(), ErrorCode::SchemaChanged);
        assert!(error.message().contains("\"v\"") && error.message().contains("\"w\""), "{error}");
        assert_eq!(count(&ctx, "SELECT count(w) FROM t").await, 4);
        if rule {
            assert_eq!(failure(&ctx, "EXECUTE p").await.code(), ErrorCode::SchemaChanged);
        }
    }
}

#[tokio::test]
async fn the_table_is_read_only_and_its_key_is_known() {
    let fixture = Fixture::new().await;
    publish(&fixture, "a", 0..3).await;
    let ctx = session(&fixture, true).await;
    for sql in ["INSERT INTO t VALUES (1, 'x')", "DELETE FROM t", "UPDATE t SET v = 'x'", "TRUNCATE TABLE t"] {
        let error = failure(&ctx, sql).await;
        assert_eq!(error.code(), ErrorCode::ReadOnly, "{sql}");
        assert!(error.message().contains("REFRESH t"), "{error}");
    }
    let table = IncrementalTable::new(open(&fixture).await).with_definition("CREATE INCREMENTAL TABLE t");
    assert!(table.constraints().is_some());
    assert_eq!(table.get_table_definition(), Some("CREATE INCREMENTAL TABLE t"));
}

#[tokio::test]
async fn options_are_followed_after_a_refresh_of_the_handle() {
    let fixture = Fixture::new().await;
    publish(&fixture, "a", 0..3).await;
    let handle = open(&fixture).await;
    assert!(!handle.newest().await.unwrap().unwrap().verify);
    fixture.save(schema(), Options::parse("t", [("verify", "always")]).unwrap()).await;
    handle.refresh().await.unwrap();
    assert!(handle.newest().await.unwrap().unwrap().verify);
}
