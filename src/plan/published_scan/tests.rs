//! Dead rows stay away under every kind of query, files are pruned, and damage is named.

use std::sync::Arc;

use arrow::array::{Array, AsArray, DictionaryArray, Int64Array, RecordBatch, StringViewArray};
use arrow::datatypes::{Int32Type, Int64Type};
use arrow_schema::{DataType, Field, Schema};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};

use super::fixture::{Fixture, rows, schema};
use super::{ScanCache, ScanRequest, Snapshot, scan_snapshot};
use crate::error::{Error, ErrorCode};
use crate::store::DataFile;

#[derive(Debug)]
struct Fixed(Snapshot);

#[async_trait]
impl TableProvider for Fixed {
    fn schema(&self) -> arrow_schema::SchemaRef {
        Arc::clone(&self.0.output_schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(&self, s: &dyn Session, projection: Option<&Vec<usize>>, filters: &[Expr], limit: Option<usize>) -> Result<Arc<dyn ExecutionPlan>> {
        scan_snapshot(&self.0, s, ScanRequest { projection, filters, limit }).await
    }
}

fn session(fixture: &Fixture, files: Vec<DataFile>, verify: bool, settings: &[(&str, &str)]) -> SessionContext {
    let mut config = SessionConfig::new();
    for (name, value) in settings {
        config = config.set_str(name, value);
    }
    let ctx = SessionContext::new_with_config(config);
    let incarnation = fixture.incarnation.clone();
    let snapshot =
        Snapshot { incarnation, version: Some(7), key: vec!["id".into()], output_schema: schema(), files: Arc::new(files), verify, cache: ScanCache::default() };
    ctx.register_table("t", Arc::new(Fixed(snapshot))).unwrap();
    ctx
}

async fn ids(ctx: &SessionContext, sql: &str) -> Vec<i64> {
    let batches = ctx.sql(sql).await.unwrap().collect().await.unwrap();
    batches.iter().flat_map(|b| b.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
}

async fn explain(ctx: &SessionContext, sql: &str) -> String {
    let batches = ctx.sql(&format!("EXPLAIN {sql}")).await.unwrap().collect().await.unwrap();
    arrow::util::pretty::pretty_format_batches(&batches).unwrap().to_string()
}

async fn failure(ctx: &SessionContext, sql: &str) -> Option<ErrorCode> {
    let error = ctx.sql(sql).await.unwrap().collect().await.unwrap_err();
    Error::find(&error).map(|e| e.code())
}

const DEAD: [u64; 9] = [0, 3, 4, 5, 6, 7, 13, 18, 19];

async fn two_files(fixture: &Fixture) -> Vec<DataFile> {
    vec![fixture.file("a", &rows(0..20, "a"), &DEAD).await, fixture.file("b", &rows(100..110, "b"), &[]).await]
}

fn live() -> Vec<i64> {
    (0..20).filter(|id| !DEAD.contains(&(*id as u64))).chain(100..110).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_rows_never_come_back() {
    let fixture = Fixture::new().await;
    let files = two_files(&fixture).await;
    let live = live();
    let size = [("datafusion.optimizer.repartition_file_min_size", "1"), ("datafusion.execution.target_partitions", "3")];
    let pushed = [("datafusion.execution.parquet.pushdown_filters", "true"), ("datafusion.execution.target_partitions", "1")];
    let small = [("datafusion.execution.batch_size", "2"), ("datafusion.execution.collect_statistics", "false")];
    for settings in [&size[..], &pushed[..], &small[..], &[]] {
        let ctx = session(&fixture, files.clone(), false, settings);
        let mut all = ids(&ctx, "SELECT id FROM t").await;
        all.sort_unstable();
        assert_eq!(all, live, "{settings:?}");
        assert_eq!(ids(&ctx, "SELECT id FROM t ORDER BY id").await, live);
        assert_eq!(ids(&ctx, "SELECT id FROM t ORDER BY id DESC LIMIT 12").await, live.iter().rev().take(12).copied().collect::<Vec<_>>());
        assert_eq!(ids(&ctx, "SELECT id FROM t WHERE id >= 3 AND id < 9 ORDER BY id").await, [8]);
        assert_eq!(ids(&ctx, "SELECT id FROM t WHERE v IN ('a3', 'a8', 'b101') ORDER BY v").await, [8, 101]);
        assert_eq!(ids(&ctx, "SELECT id FROM t LIMIT 15").await.len(), 15);
        assert_eq!(ids(&ctx, "SELECT id FROM t LIMIT 100").await.len(), live.len());
        assert_eq!(ids(&ctx, "SELECT count(*) FROM t").await, [21]);
        assert_eq!(ids(&ctx, "SELECT count(*) FROM (SELECT id FROM t LIMIT 5)").await, [5]);
        assert_eq!(ids(&ctx, "SELECT count(v) FROM t").await, [21]);
        assert_eq!(ids(&ctx, "SELECT min(id) FROM t WHERE id < 50").await, [1]);
        assert_eq!(ids(&ctx, "SELECT max(id) FROM t WHERE id < 50").await, [17]);
        assert_eq!(ids(&ctx, "SELECT min(id) FROM t").await, [1]);
        assert_eq!(ids(&ctx, "SELECT count(*) FROM t AS a JOIN t AS b ON a.id = b.id").await, [21]);
    }
}

#[tokio::test]
async fn bounds_of_dead_rows_are_no_answers() {
    let fixture = Fixture::new().await;
    let files = vec![fixture.file("a", &rows(0..8, "a"), &[0, 7]).await];
    let ctx = session(&fixture, files, false, &[]);
    assert_eq!(ids(&ctx, "SELECT max(id) FROM t").await, [6]);
    assert_eq!(ids(&ctx, "SELECT count(*) FROM t").await, [6]);
    let plan = explain(&ctx, "SELECT count(*) FROM t").await;
    assert!(!plan.contains("DataSourceExec"), "count(*) reads data: {plan}");
    let plan = explain(&ctx, "SELECT max(id) FROM t").await;
    assert!(plan.contains("DataSourceExec"), "a dead maximum became an answer: {plan}");
}

#[tokio::test]
async fn files_are_pruned_and_explain_says_what_is_read() {
    let fixture = Fixture::new().await;
    let files = two_files(&fixture).await;
    let ctx = session(&fixture, files, false, &[]);
    let plan = explain(&ctx, "SELECT v FROM t WHERE id > 50").await;
    assert!(plan.contains("version=7, files=1 of 2, dropped_rows=0"), "{plan}");
    assert_eq!(plan.matches("predicate=id@0 > 50 AND").count(), 0, "the filter is there twice: {plan}");
    let plan = explain(&ctx, "SELECT v FROM t").await;
    assert!(plan.contains("version=7, files=2 of 2, dropped_rows=9"), "{plan}");
    assert!(ids(&ctx, "SELECT id FROM t WHERE id > 1000").await.is_empty());
    assert_eq!(ids(&ctx, "SELECT count(*) FROM t WHERE id > 1000").await, [0]);
}

#[tokio::test]
async fn the_manifest_schema_rules_over_encodings() {
    let fixture = Fixture::new().await;
    let ids_column = Arc::new(Int64Array::from(vec![1, 2]));
    let view = Schema::new(vec![Field::new("id", DataType::Int64, false), Field::new("v", DataType::Utf8View, true)]);
    let view = RecordBatch::try_new(Arc::new(view), vec![ids_column, Arc::new(StringViewArray::from(vec!["x", "y"]))]).unwrap();
    let dictionary: DictionaryArray<Int32Type> = vec!["p", "q"].into_iter().collect();
    // Another column order, too.
    let other = Schema::new(vec![Field::new("v", dictionary.data_type().clone(), true), Field::new("id", DataType::Int64, true)]);
    let other = RecordBatch::try_new(Arc::new(other), vec![Arc::new(dictionary), Arc::new(Int64Array::from(vec![3, 4]))]).unwrap();
    let files = vec![fixture.file("a", &view, &[0]).await, fixture.file("b", &other, &[]).await];
    let ctx = session(&fixture, files, false, &[]);
    let batches = ctx.sql("SELECT v, id FROM t ORDER BY id").await.unwrap().collect().await.unwrap();
    let texts: Vec<String> = batches.iter().flat_map(|b| b.column(0).as_string::<i32>().iter().flatten().map(String::from).collect::<Vec<_>>()).collect();
    assert_eq!(texts, ["y", "p", "q"]);
}

#[tokio::test]
async fn missing_and_damaged_files_have_codes() {
    let fixture = Fixture::new().await;
    let files = two_files(&fixture).await;
    let folder = fixture.dir.path().join(fixture.incarnation.id());
    let data = folder.join(&files[1].data.path);
    let good = std::fs::read(&data).unwrap();
    let fresh = |verify| session(&fixture, files.clone(), verify, &[]);

    assert_eq!(ids(&fresh(true), "SELECT id FROM t").await.len(), 21);
    let mut flipped = good.clone();
    flipped[10] ^= 0x40; // inside the first page
    std::fs::write(&data, &flipped).unwrap();
    assert_eq!(failure(&fresh(true), "SELECT * FROM t").await, Some(ErrorCode::Corrupt));
    std::fs::write(&data, &good[..good.len() / 2]).unwrap();
    assert_eq!(failure(&fresh(false), "SELECT * FROM t").await, Some(ErrorCode::Corrupt));
    std::fs::write(&data, vec![7; good.len()]).unwrap();
    assert_eq!(failure(&fresh(false), "SELECT * FROM t").await, Some(ErrorCode::Corrupt));
    std::fs::remove_file(&data).unwrap();
    assert_eq!(failure(&fresh(false), "SELECT * FROM t").await, Some(ErrorCode::HistoryMissing));
    assert_eq!(failure(&fresh(true), "SELECT * FROM t").await, Some(ErrorCode::HistoryMissing));
    std::fs::write(&data, &good).unwrap();

    let vector = folder.join(&files[0].deletions.as_ref().unwrap().object.path);
    std::fs::write(&vector, b"no bitmap").unwrap();
    assert_eq!(failure(&fresh(false), "SELECT * FROM t").await, Some(ErrorCode::Corrupt));
    std::fs::remove_file(&vector).unwrap();
    assert_eq!(failure(&fresh(false), "SELECT * FROM t").await, Some(ErrorCode::HistoryMissing));
}

#[tokio::test]
async fn a_vector_of_another_file_is_refused() {
    let fixture = Fixture::new().await;
    let mut file = fixture.file("a", &rows(0..4, "a"), &[9]).await;
    file.rows = 4;
    let ctx = session(&fixture, vec![file], false, &[]);
    assert_eq!(failure(&ctx, "SELECT * FROM t").await, Some(ErrorCode::Corrupt));
}
