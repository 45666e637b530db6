//! The contract of a call, variant by variant, through both operators.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, Int64Array, RecordBatch, StringArray, StringViewArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{Int32Type, Int64Type};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;

use super::ContractExec;
use crate::error::{Error, ErrorCode};
use crate::exec::handler::{CallSpec, HandlerExec};
use crate::handler::{BoundHandler, Handler, HandlerCall, HandlerError, HandlerRegistry, closure_handler};
use crate::spec::{Definition, FingerprintKind, HandlerSpec, RunId, RunMode, SemanticOptions, SourceSpec};

fn schema(columns: &[(&str, DataType)]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(|(name, t)| Field::new(*name, t.clone(), true)).collect::<Vec<_>>()))
}

fn input_schema() -> SchemaRef {
    schema(&[("id", DataType::Int64), ("v", DataType::Int64)])
}

fn output_schema() -> SchemaRef {
    schema(&[("id", DataType::Int64), ("o", DataType::Utf8)])
}

/// Ids 1 to 737 with hidden columns that follow from the id, in two partitions of uneven batches.
fn changes() -> Arc<dyn ExecutionPlan> {
    let schema = schema(&[
        ("id", DataType::Int64),
        ("v", DataType::Int64),
        ("__incremental_fp_hi", DataType::Int64),
        ("__incremental_src", DataType::Int32),
    ]);
    let batch = |ids: std::ops::Range<i64>| {
        let of = |f: fn(i64) -> i64| Arc::new(Int64Array::from_iter_values(ids.clone().map(f))) as ArrayRef;
        let src = Arc::new(Int32Array::from_iter_values(ids.clone().map(|id| id as i32 % 7)));
        RecordBatch::try_new(Arc::clone(&schema), vec![of(|id| id), of(|id| id * 10), of(|id| -id), src]).unwrap()
    };
    let partitions = [vec![batch(1..2), batch(2..300)], vec![batch(300..300), batch(300..731), batch(731..738)]];
    MemorySourceConfig::try_new_exec(&partitions, Arc::clone(&schema), None).unwrap()
}

fn bound(handler: Arc<dyn Handler>) -> BoundHandler {
    let registry = HandlerRegistry::default();
    let version = handler.version().to_string();
    let output = handler.output_schema(&input_schema()).unwrap();
    registry.register("h", handler).unwrap();
    let definition = Definition {
        source: SourceSpec { name: ["c".into(), "s".into(), "t".into()], statements: vec![] },
        key: vec!["id".into()],
        tracked: vec!["v".into()],
        tracked_declared: true,
        handler: HandlerSpec::Registered { name: "h".into(), version },
        incremental: true,
        options: SemanticOptions { fingerprint: FingerprintKind::Xxh3, allow_volatile: false },
        input_schema: input_schema(),
        output_schema: output,
        session: Default::default(),
        functions: vec![],
        fingerprint_version: 1,
    };
    BoundHandler::bind("t", &definition, &registry, &SessionContext::new().state()).unwrap()
}

async fn run(handler: Arc<dyn Handler>, batch_rows: usize) -> Result<RecordBatch, Error> {
    let spec = CallSpec {
        call: HandlerCall { table: "t".into(), run: RunId::new("r").unwrap(), attempt: "a".into(), mode: RunMode::Published, call: 0 },
        batch_rows,
        concurrency: 3,
        input_schema: input_schema(),
        output_schema: handler.output_schema(&input_schema()).unwrap(),
        key: vec!["id".into()],
    };
    let plan = ContractExec::new(Arc::new(HandlerExec::new(changes(), bound(handler), spec)));
    let schema = plan.schema();
    match collect(Arc::new(plan), SessionContext::new().task_ctx()).await {
        Ok(batches) => Ok(concat_batches(&schema, &batches).unwrap()),
        Err(error) => Err(Error::find(&error).unwrap_or_else(|| panic!("not ours: {error}"))),
    }
}

type Change = fn(Vec<i64>) -> Result<Vec<RecordBatch>, HandlerError>;

fn good(ids: &[i64]) -> RecordBatch {
    let text: StringArray = ids.iter().map(|id| Some(format!("o{id}"))).collect();
    RecordBatch::try_new(output_schema(), vec![Arc::new(Int64Array::from(ids.to_vec())), Arc::new(text)]).unwrap()
}

fn variant(change: Change) -> Arc<dyn Handler> {
    closure_handler("1", output_schema(), move |input, _| async move {
        assert!(input.num_rows() > 0, "no call without rows");
        assert_eq!(input.num_columns(), 2, "hidden columns are not handed on");
        change(input.column(0).as_primitive::<Int64Type>().values().to_vec())
    })
}

fn with_key(ids: &[i64], key: &str, column: ArrayRef) -> Result<Vec<RecordBatch>, HandlerError> {
    let schema = schema(&[(key, column.data_type().clone()), ("o", DataType::Utf8)]);
    Ok(vec![RecordBatch::try_new(schema, vec![column, Arc::clone(good(ids).column(1))])?])
}

#[tokio::test]
async fn every_breach_has_its_code_whatever_the_batch_size() {
    let (mut all, schema_code) = (Vec::<(&str, Change, ErrorCode, &str)>::new(), ErrorCode::HandlerSchema);
    all.push((
        "a",
        |ids| Ok(vec![good(&ids.into_iter().filter(|id| *id <= 245).collect::<Vec<_>>())]),
        ErrorCode::HandlerMissingKey,
        "id=",
    ));
    all.push(("b", |ids| Ok(vec![good(&ids), good(if ids.contains(&5) { &[5] } else { &[] })]), ErrorCode::HandlerDuplicateKey, "id=5"));
    all.push((
        "c",
        |ids| Ok(vec![good(&ids.iter().map(|id| if *id == 5 { 5000 } else { *id }).collect::<Vec<_>>())]),
        ErrorCode::HandlerAlteredKey,
        "id=5000",
    ));
    all.push((
        "d",
        |ids| Ok(vec![good(&ids), good(if ids.contains(&5) { &[9999] } else { &[] })]),
        ErrorCode::HandlerUnexpectedKey,
        "id=9999",
    ));
    all.push(("e", |ids| with_key(&ids, "other", Arc::new(Int64Array::from(ids.clone()))), schema_code, "\"id\""));
    all.push((
        "f",
        |ids| with_key(&ids, "id", Arc::new(StringArray::from_iter_values(ids.iter().map(i64::to_string)))),
        schema_code,
        "was Int64 and is Utf8",
    ));
    all.push((
        "g",
        |ids| with_key(&ids, "id", Arc::new(ids.iter().map(|id| (*id != 5).then_some(*id)).collect::<Int64Array>())),
        ErrorCode::HandlerNullKey,
        "NULL",
    ));
    all.push((
        "i",
        |ids| if ids.contains(&5) { Err("row 5 is bad".into()) } else { Ok(vec![good(&ids)]) },
        ErrorCode::HandlerFailed,
        "row 5 is bad",
    ));
    all.push((
        "j",
        |ids| Ok(vec![good(&ids), good(if ids.contains(&5) { &[738] } else { &[] })]),
        ErrorCode::HandlerUnexpectedKey,
        "id=738",
    ));
    all.push((
        "panic",
        |ids| if ids.contains(&5) { panic!("lost my way") } else { Ok(vec![good(&ids)]) },
        ErrorCode::HandlerFailed,
        "lost my way",
    ));
    for (name, change, code, text) in all {
        for batch_rows in [1, 3, 8192] {
            let error = run(variant(change), batch_rows).await.unwrap_err();
            assert_eq!(error.code(), code, "variant {name}, {batch_rows}: {error}");
            assert!(error.message().contains(text) && error.message().contains("Remedy"), "variant {name}, {batch_rows}: {error}");
            assert!(error.message().starts_with("table \"t\""), "{error}");
        }
    }
}

#[tokio::test]
async fn shuffled_rows_in_many_batches_are_rejoined_with_their_hidden_columns() {
    let shuffled = variant(|ids| {
        let batches = ids.iter().rev().flat_map(|id| [good(&[*id]), RecordBatch::new_empty(Arc::new(Schema::empty()))]);
        Ok(batches.collect())
    });
    for batch_rows in [1, 3, 8192] {
        let rows = run(Arc::clone(&shuffled), batch_rows).await.unwrap();
        assert_eq!(rows.num_rows(), 737);
        let columns: Vec<&str> = rows.schema_ref().fields().iter().map(|f| f.name().as_str()).collect();
        assert_eq!(columns, ["id", "o", "__incremental_fp_hi", "__incremental_src"]);
        let (ids, hi) = (rows.column(0).as_primitive::<Int64Type>(), rows.column(2).as_primitive::<Int64Type>());
        let (text, src) = (rows.column(1).as_string::<i32>(), rows.column(3).as_primitive::<Int32Type>());
        for row in 0..rows.num_rows() {
            let id = ids.value(row);
            assert_eq!((hi.value(row), i64::from(src.value(row)), text.value(row)), (-id, id % 7, format!("o{id}").as_str()));
        }
    }
}

#[tokio::test]
async fn encodings_may_differ_and_types_may_not() {
    let views = variant(|ids| {
        let text = StringViewArray::from_iter_values(ids.iter().map(|id| format!("o{id}")));
        let schema = schema(&[("o", DataType::Utf8View), ("id", DataType::Int64)]);
        Ok(vec![RecordBatch::try_new(schema, vec![Arc::new(text), Arc::new(Int64Array::from(ids))])?])
    });
    let rows = run(views, 100).await.unwrap();
    assert_eq!(rows.schema().field(1).data_type(), &DataType::Utf8);
    let fractions = variant(|ids| {
        let schema = schema(&[("id", DataType::Int64), ("o", DataType::Float64)]);
        let values = arrow::array::Float64Array::from_iter_values(ids.iter().map(|_| 1.5));
        Ok(vec![RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(ids)), Arc::new(values)])?])
    });
    let error = run(fractions, 100).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::HandlerSchema);
    assert!(error.message().contains("column \"o\" was Utf8 and is Float64"), "{error}");
    for (column, text) in [("p", "column \"o\" (Utf8) is gone"), ("o", "")] {
        let renamed = closure_handler("1", output_schema(), move |input, _| async move {
            let ids = input.column(0).as_primitive::<Int64Type>().values().to_vec();
            let schema = schema(&[("id", DataType::Int64), (column, DataType::Utf8)]);
            Ok(vec![RecordBatch::try_new(schema, good(&ids).columns().to_vec())?])
        });
        let result = run(renamed, 100).await;
        assert_eq!(result.is_ok(), text.is_empty());
        assert!(result.err().is_none_or(|e| e.message().contains(text)), "{column}");
    }
}

#[tokio::test]
async fn calls_are_numbered_bounded_and_never_made_twice() {
    let (now, most, calls) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (n, m, c) = (Arc::clone(&now), Arc::clone(&most), Arc::clone(&calls));
    let handler = closure_handler("1", output_schema(), move |input, call| {
        let (n, m, c) = (Arc::clone(&n), Arc::clone(&m), Arc::clone(&c));
        async move {
            m.fetch_max(n.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            c.fetch_or(1 << call.call, Ordering::SeqCst);
            n.fetch_sub(1, Ordering::SeqCst);
            Ok(vec![good(input.column(0).as_primitive::<Int64Type>().values())])
        }
    });
    assert_eq!(run(handler, 50).await.unwrap().num_rows(), 737);
    assert!(most.load(Ordering::SeqCst) <= 3);
    assert_eq!(calls.load(Ordering::SeqCst), (1 << 15) - 1, "6 calls of the first partition, 9 of the second");

    let spec = CallSpec {
        call: HandlerCall { table: "t".into(), run: RunId::new("r").unwrap(), attempt: "a".into(), mode: RunMode::Published, call: 0 },
        batch_rows: 100,
        concurrency: 1,
        input_schema: input_schema(),
        output_schema: output_schema(),
        key: vec!["id".into()],
    };
    let plan: Arc<dyn ExecutionPlan> = Arc::new(HandlerExec::new(changes(), bound(variant(|ids| Ok(vec![good(&ids)]))), spec));
    let context = SessionContext::new().task_ctx();
    assert!(collect(Arc::clone(&plan), Arc::clone(&context)).await.is_ok());
    assert!(collect(Arc::clone(&plan), Arc::clone(&context)).await.is_err());
    assert!(collect(plan.reset_state().unwrap(), context).await.is_ok());
}
