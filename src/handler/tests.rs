//! What the sandbox admits and refuses, and what a bound handler does.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray, UInt64Array};
use arrow::compute::concat_batches;
use arrow::datatypes::{Int64Type, UInt64Type};
use arrow_schema::{DataType, Field, IntervalUnit, Schema, SchemaRef};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};

use super::*;
use crate::error::{Error, ErrorCode};
use crate::spec::{Definition, HandlerSpec, SemanticOptions, SourceSpec};

fn source() -> Schema {
    Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("name", DataType::Utf8View, true),
        Field::new("v", DataType::Int64, true),
        Field::new("eMail", DataType::Utf8, true),
        Field::new("first name", DataType::Utf8, true),
        Field::new("a.b", DataType::Utf8, true),
        Field::new("order", DataType::Utf8, true),
        Field::new("tags", DataType::List(Arc::new(Field::new("item", DataType::Utf8, true))), true),
        Field::new("took", DataType::Interval(IntervalUnit::MonthDayNano), true),
    ])
}

struct Case<'a> {
    text: &'a str,
    key: &'a [&'a str],
    track: Option<&'a [&'a str]>,
    incremental: bool,
    allow_volatile: bool,
}

fn case(text: &str) -> Case<'_> {
    Case { text, key: &["id"], track: None, incremental: true, allow_volatile: false }
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

impl Case<'_> {
    async fn analyze_in(&self, ctx: &SessionContext) -> Result<AnalyzedHandler> {
        let (key, track) = (strings(self.key), self.track.map(strings));
        analyze_sql(SqlHandlerRequest {
            table: "t",
            text: self.text,
            source_schema: &source(),
            key: &key,
            track: track.as_deref(),
            incremental: self.incremental,
            allow_volatile: self.allow_volatile,
            state: &ctx.state(),
        })
        .await
    }

    async fn analyze(&self) -> Result<AnalyzedHandler> {
        self.analyze_in(&context().await).await
    }

    async fn define(&self, ctx: &SessionContext) -> Definition {
        let found = self.analyze_in(ctx).await.unwrap();
        Definition {
            source: SourceSpec { name: ["c".into(), "s".into(), "t".into()], statements: vec![] },
            key: strings(self.key),
            tracked: found.tracked,
            tracked_declared: self.track.is_some(),
            handler: HandlerSpec::Sql { text: self.text.into() },
            incremental: self.incremental,
            options: SemanticOptions { allow_volatile: self.allow_volatile, ..SemanticOptions::default() },
            input_schema: found.input_schema,
            output_schema: found.output_schema,
            session: found.session,
            functions: found.functions,
            fingerprint_version: 1,
        }
    }
}

/// A host session with another table: handlers must not see it.
async fn context() -> SessionContext {
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_information_schema(true));
    ctx.sql("CREATE TABLE other AS VALUES (1)").await.unwrap().collect().await.unwrap();
    ctx
}

#[tokio::test]
async fn refused_statements_name_the_node_and_the_remedy() {
    let refused = [
        ("SELECT count(*) AS id FROM input", "aggregate"),
        ("SELECT id, sum(v) AS s FROM input GROUP BY id", "GROUP BY"),
        ("SELECT id FROM input HAVING id > 1", "HAVING"),
        ("SELECT max(id) AS id FROM input", "aggregate"),
        ("SELECT id, row_number() OVER (ORDER BY v) AS n FROM input", "window function row_number"),
        ("SELECT id, sum(v) OVER w AS n FROM input WINDOW w AS (ORDER BY v)", "WINDOW"),
        ("SELECT DISTINCT id FROM input", "DISTINCT"),
        ("SELECT DISTINCT ON (v) id FROM input", "DISTINCT"),
        ("SELECT id FROM input ORDER BY id", "ORDER BY"),
        ("SELECT id FROM input LIMIT 1", "LIMIT"),
        ("SELECT id FROM input OFFSET 1", "OFFSET"),
        ("SELECT id FROM input FETCH FIRST 1 ROW ONLY", "FETCH"),
        ("SELECT a.id FROM input a JOIN input b ON a.id = b.id", "join"),
        ("SELECT a.id FROM input a, input b", "join"),
        ("SELECT a.id FROM input a CROSS JOIN input b", "join"),
        ("SELECT id FROM input UNION ALL SELECT id FROM input", "UNION"),
        ("SELECT id FROM input EXCEPT SELECT id FROM input", "EXCEPT"),
        ("SELECT id FROM input INTERSECT SELECT id FROM input", "INTERSECT"),
        ("SELECT id, (SELECT 1) AS one FROM input", "subquery"),
        ("SELECT id, EXISTS (SELECT 1 FROM input) AS e FROM input", "subquery"),
        ("SELECT id, v IN (SELECT v FROM input) AS e FROM input", "subquery"),
        ("SELECT id FROM input WHERE v > 1", "WHERE"),
        ("SELECT id, unnest(tags) AS tag FROM input", "UNNEST"),
        ("SELECT id FROM input, UNNEST(tags) AS u(tag)", "join"),
        ("SELECT 1 AS id FROM UNNEST([1, 2]) AS u(x)", "UNNEST"),
        ("SELECT i.id FROM input i, LATERAL (SELECT i.v) AS l", "join"),
        ("SELECT id FROM LATERAL (SELECT id FROM input) AS l", "LATERAL"),
        ("VALUES (1)", "VALUES"),
        ("SELECT 1 AS id", "without FROM"),
        ("SELECT id FROM (VALUES (1)) AS x(id)", "VALUES"),
        ("SELECT id FROM input TABLESAMPLE (10 PERCENT)", "TABLESAMPLE"),
        ("WITH RECURSIVE r AS (SELECT id FROM input UNION ALL SELECT id FROM r) SELECT id FROM r", "WITH RECURSIVE"),
        ("WITH c AS (SELECT id FROM input LIMIT 3) SELECT id FROM c", "LIMIT"),
        ("WITH unused AS (SELECT count(*) FROM input GROUP BY v) SELECT id FROM input", "GROUP BY"),
        ("SELECT id, random() AS o FROM input", "random, which is volatile"),
        ("SELECT id, uuid() AS o FROM input", "uuid, which is volatile"),
        ("SELECT id, now() AS o FROM input", "now, which is stable"),
        ("SELECT id, current_date AS o FROM input", "stable"),
        ("SELECT id, NULL AS o FROM input", "type Null"),
        ("SELECT id AS customer FROM input", "renamed to \"customer\""),
        ("SELECT id + 1 AS id FROM input", "\"id\" is computed"),
        ("SELECT coalesce(id, 0) AS id FROM input", "computed"),
        ("SELECT v AS id, id AS v FROM input", "holds the input column \"v\""),
        ("SELECT CAST(id AS INT) AS id FROM input", "computed"),
        ("SELECT name FROM input", "\"id\" is missing"),
        ("SELECT id, v, v FROM input", "v"),
        ("SELECT id, id AS __incremental_fp_hi FROM input", "reserved"),
        ("SELECT id FROM other", "table other"),
        ("SELECT id FROM datafusion.public.input", "table datafusion.public.input"),
        ("SELECT id FROM information_schema.tables", "information_schema"),
        ("SELECT id FROM 'data.parquet'", "data.parquet"),
        ("SELECT value AS id FROM generate_series(1, 3)", "table function generate_series"),
        ("SELECT id FROM input; SELECT id FROM input", "not one statement"),
        ("", "not one statement"),
        ("INSERT INTO input VALUES (1)", "not a SELECT"),
        ("COPY input TO 'x.parquet'", "not a SELECT"),
        ("CREATE TABLE x AS SELECT id FROM input", "not a SELECT"),
        ("EXPLAIN SELECT id FROM input", "not a SELECT"),
        ("SELECT id INTO x FROM input", "INTO"),
        ("SELECT id, $1 AS o FROM input", "$1"),
        ("SELECT id FROM input FOR UPDATE", "FOR UPDATE"),
        ("TABLE input", "TABLE"),
        ("SELECT id, no_such(v) AS o FROM input", "no_such"),
        ("SELECT id FROM", "parse"),
    ];
    let mut wrong = Vec::new();
    for (text, node) in refused {
        match case(text).analyze().await {
            Ok(_) => wrong.push(format!("{text}: admitted")),
            Err(e) if e.code() != ErrorCode::HandlerRefused || !e.message().contains(node) || !e.message().contains("Remedy: ") => {
                wrong.push(format!("{text}: {e}"));
            }
            Err(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn output_types_that_parquet_cannot_hold_are_refused() {
    let error = case("SELECT id, INTERVAL '1 day' AS o FROM input").analyze().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::TypeUnsupported);
    assert!(error.message().contains("Interval"), "{error}");
}

#[tokio::test]
async fn names_that_are_not_found_come_with_the_right_hint() {
    let hints = [
        ("SELECT id, eMail FROM input", "\"eMail\": names with capitals need double quotes"),
        ("SELECT id, first AS o FROM input", "\"first name\": names with spaces"),
        ("SELECT id, a.b FROM input", "\"a.b\": names with dots"),
        ("SELECT id, nmae FROM input", "nearest column is \"name\""),
        ("SELECT id, order FROM input", "reserved words need double quotes"),
    ];
    for (text, hint) in hints {
        let error = case(text).analyze().await.unwrap_err();
        assert!(error.code() == ErrorCode::HandlerRefused && error.message().contains(hint), "{text}: {error}");
    }
    let error = Case { track: Some(&["v"]), ..case("SELECT id, name FROM input") }.analyze().await.unwrap_err();
    assert!(error.message().contains("\"name\", which is not in TRACK"), "{error}");
}

#[tokio::test]
async fn key_and_track_are_checked() {
    let text = "SELECT * FROM input";
    let cases = [
        (Case { key: &["ID"], ..case(text) }, ErrorCode::DefinitionInvalid, "\"id\": names with capitals"),
        (Case { key: &["idd"], ..case(text) }, ErrorCode::DefinitionInvalid, "nearest column is \"id\""),
        (Case { key: &["id", "id"], ..case(text) }, ErrorCode::DefinitionInvalid, "twice"),
        (Case { key: &[], ..case(text) }, ErrorCode::DefinitionInvalid, "names no column"),
        (Case { track: Some(&["nmae"]), ..case(text) }, ErrorCode::DefinitionInvalid, "TRACK names column \"nmae\""),
        (Case { track: Some(&["v", "v"]), ..case(text) }, ErrorCode::DefinitionInvalid, "twice"),
        (Case { key: &["took"], ..case(text) }, ErrorCode::TypeUnsupported, "KEY column \"took\""),
        (Case { track: Some(&["took"]), ..case(text) }, ErrorCode::TypeUnsupported, "TRACK column \"took\""),
        (case(text), ErrorCode::TypeUnsupported, "TRACK column \"took\""),
    ];
    for (case, code, text) in cases {
        let error = case.analyze().await.unwrap_err();
        assert!(error.code() == code && error.message().contains(text), "{error}");
    }
}

#[tokio::test]
async fn admitted_statements_freeze_what_they_read() {
    let admitted: [(&str, &[&str]); 14] = [
        ("SELECT id, upper(name) AS n FROM input", &["name"]),
        ("SELECT i.id, i.v + 1 AS w FROM input AS i;", &["v"]),
        ("SELECT id FROM input -- nothing else", &[]),
        ("SELECT id, \"eMail\", \"first name\", \"a.b\" AS ab, \"order\" FROM input", &["eMail", "first name", "a.b", "order"]),
        ("WITH c AS (SELECT id, v * 2 AS w FROM input), d AS (SELECT * FROM c) SELECT id, w + 1 AS x FROM d", &["v"]),
        ("WITH c(k, w) AS (SELECT id, v FROM input) SELECT k AS id, w FROM c", &["v"]),
        ("SELECT id, w FROM (SELECT id, v AS w, name FROM input) AS s", &["v"]),
        ("SELECT id, w FROM (SELECT id, v AS w, upper(name) AS n, tags[1] AS t FROM input) AS s", &["v"]),
        ("SELECT id, w FROM (SELECT *, v + 1 AS w FROM input) AS s", &["v"]),
        ("SELECT id, CASE WHEN v > 1 THEN 'big' ELSE lower(name) END AS size FROM input", &["name", "v"]),
        ("SELECT CAST(id AS BIGINT) AS id, tags[1] AS tag FROM input", &["tags"]),
        ("SELECT id, CASE WHEN v IN (1, 2) THEN 'x' END AS kind FROM input", &["v"]),
        ("SELECT id, CAST(NULL AS VARCHAR) AS o FROM input", &[]),
        ("SELECT ALL * EXCEPT (took, tags) FROM input", &["name", "v", "eMail", "first name", "a.b", "order"]),
    ];
    for (text, tracked) in admitted {
        let found = case(text).analyze().await.unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!((found.tracked, found.proven), (strings(tracked), true), "{text}");
        assert!(found.output_schema.fields().iter().all(|f| *f.data_type() != DataType::Utf8View));
        let ctx = context().await;
        let definition = case(text).define(&ctx).await;
        let bound =
            BoundHandler::bind("t", &definition, &HandlerRegistry::default(), &ctx.state()).unwrap_or_else(|e| panic!("{text}: {e}"));
        let input = RecordBatch::new_empty(Arc::clone(&definition.input_schema));
        let input = MemorySourceConfig::try_new_exec(&[vec![input]], Arc::clone(&definition.input_schema), None).unwrap();
        assert_eq!(bound.plan_over(input, &[]).await.unwrap_or_else(|e| panic!("{text}: {e}")).schema(), definition.output_schema);
    }
    let volatile = Case { allow_volatile: true, ..case("SELECT id, random() AS o, now() AS at FROM input") }.analyze().await.unwrap();
    assert!(!volatile.proven);
    assert_eq!(volatile.functions.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(), ["now", "random"]);
    let declared = Case { track: Some(&["v", "id", "name"]), ..case("SELECT * FROM input") }.analyze().await.unwrap();
    assert_eq!(declared.tracked, ["v", "name"]);
    assert_eq!(declared.output_schema, declared.input_schema);
}

#[tokio::test]
async fn without_incremental_any_select_over_input_is_admitted() {
    let free = |text| Case { incremental: false, ..case(text) };
    for text in [
        "SELECT v AS id, count(*) AS n FROM input GROUP BY v ORDER BY 1",
        "SELECT id, (SELECT max(v) FROM input) AS m, random() AS r FROM input WHERE v > 1 LIMIT 10",
        "SELECT id FROM input UNION ALL SELECT v FROM input",
    ] {
        let found = free(text).analyze().await.unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(!found.proven && found.tracked == ["v"], "{text}");
    }
    let own_key =
        Case { key: &["size"], ..free("SELECT length(name) AS size, count(*) AS n FROM input GROUP BY 1") }.analyze().await.unwrap();
    assert_eq!(own_key.input_schema.fields().len(), 1);
    for (text, node) in [
        ("SELECT id FROM other", "table other"),
        ("SELECT id FROM input TABLESAMPLE (10 PERCENT)", "TABLESAMPLE"),
        ("SELECT value AS id FROM generate_series(1, 3)", "table function"),
        ("SELECT name FROM input", "missing"),
    ] {
        let error = free(text).analyze().await.unwrap_err();
        assert!(error.code() == ErrorCode::HandlerRefused && error.message().contains(node), "{text}: {error}");
    }
}

fn rows() -> Arc<dyn ExecutionPlan> {
    let columns: [(&str, ArrayRef); 4] = [
        ("__incremental_src", Arc::new(Int64Array::from(vec![70, 80, 90]))),
        ("name", Arc::new(StringArray::from(vec![Some("a"), None, Some("c")]))),
        ("id", Arc::new(Int64Array::from(vec![7, 8, 9]))),
        ("v", Arc::new(Int64Array::from(vec![1, 2, 3]))),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns.map(|(n, c)| (n, c, true))).unwrap();
    let schema = batch.schema();
    MemorySourceConfig::try_new_exec(&[vec![batch.slice(0, 2)], vec![batch.slice(2, 1)]], schema, None).unwrap()
}

async fn run(plan: Arc<dyn ExecutionPlan>) -> Result<RecordBatch> {
    let schema = plan.schema();
    match collect(plan, SessionContext::new().task_ctx()).await {
        Ok(batches) => Ok(concat_batches(&schema, &batches).unwrap()),
        Err(e) => Err(Error::find(&e).unwrap_or_else(|| panic!("not ours: {e}"))),
    }
}

#[tokio::test]
async fn hidden_columns_pass_through_every_projection_unseen() {
    let ctx = context().await;
    let statements = [
        "SELECT * FROM input",
        "WITH c AS (SELECT *, v + 1 AS w FROM input), d AS (SELECT * FROM c) SELECT x.* FROM (SELECT * FROM d) AS x",
        "SELECT id, concat(name, '!') AS n FROM input",
    ];
    for text in statements {
        let definition = Case { track: Some(&["name", "v"]), ..case(text) }.define(&ctx).await;
        let bound = BoundHandler::bind("t", &definition, &HandlerRegistry::default(), &ctx.state()).unwrap();
        assert!(bound.proven() && bound.is_sql());
        let plan = bound.plan_over(rows(), &["__incremental_src"]).await.unwrap();
        let text_of_plan = displayable(plan.as_ref()).indent(false).to_string();
        assert!(!text_of_plan.contains("Repartition") && text_of_plan.contains("DataSourceExec"), "{text_of_plan}");
        let found = run(plan).await.unwrap();
        let mut expected: Vec<Field> = definition.output_schema.fields().iter().map(|f| f.as_ref().clone()).collect();
        expected.push(Field::new("__incremental_src", DataType::Int64, true));
        assert_eq!(found.schema().as_ref(), &Schema::new(expected), "{text}");
        let (ids, src) = (found.column_by_name("id").unwrap(), found.column_by_name("__incremental_src").unwrap());
        let mut pairs: Vec<(i64, i64)> = ids
            .as_primitive::<Int64Type>()
            .values()
            .iter()
            .copied()
            .zip(src.as_primitive::<Int64Type>().values().iter().copied())
            .collect();
        pairs.sort_unstable();
        assert_eq!(pairs, [(7, 70), (8, 80), (9, 90)], "{text}");
    }
}

#[tokio::test]
async fn the_pinned_settings_hold_in_another_session() {
    let mut config = SessionConfig::new();
    config.options_mut().execution.time_zone = Some("+09:00".into());
    config.options_mut().sql_parser.parse_float_as_decimal = true;
    let saved = case("SELECT id, 1.5 AS d, CAST(to_timestamp(v) AS TIMESTAMP WITH TIME ZONE) AS at FROM input");
    let definition = saved.define(&SessionContext::new_with_config(config)).await;
    assert!(matches!(definition.output_schema.field(1).data_type(), DataType::Decimal128(2, 1)));
    let host = SessionContext::new();
    let bound = BoundHandler::bind("t", &definition, &HandlerRegistry::default(), &host.state()).unwrap();
    let found = run(bound.plan_over(rows(), &[]).await.unwrap()).await.unwrap();
    assert_eq!(found.schema(), definition.output_schema);
    assert_eq!(host.state().config_options().execution.time_zone, None, "the host's settings are not touched");
}

#[tokio::test]
async fn a_failing_query_is_the_handlers_fault_and_a_failing_input_is_not() {
    let ctx = context().await;
    let definition = Case { track: Some(&["name", "v"]), ..case("SELECT id, CAST(name AS BIGINT) AS n FROM input") }.define(&ctx).await;
    let bound = BoundHandler::bind("t", &definition, &HandlerRegistry::default(), &ctx.state()).unwrap();
    let error = run(bound.plan_over(rows(), &["__incremental_src"]).await.unwrap()).await.unwrap_err();
    assert!(error.code() == ErrorCode::HandlerFailed && error.message().contains("Remedy"), "{error}");

    let schema = rows().schema();
    let broken = StreamingTableExec::try_new(Arc::clone(&schema), vec![Arc::new(Broken(schema))], None, [], false, None).unwrap();
    let plan = bound.plan_over(Arc::new(broken), &["__incremental_src"]).await.unwrap();
    let error = collect(plan, ctx.task_ctx()).await.unwrap_err();
    assert!(matches!(error, DataFusionError::Execution(ref text) if text == "the disk is gone"), "{error:?}");
}

#[derive(Debug)]
struct Broken(SchemaRef);

impl PartitionStream for Broken {
    fn schema(&self) -> &SchemaRef {
        &self.0
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let error = futures::stream::once(async { Err(DataFusionError::Execution("the disk is gone".into())) });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.0), error))
    }
}

#[tokio::test]
async fn a_free_query_runs_over_all_partitions() {
    let ctx = context().await;
    let text = "SELECT id % 2 AS id, count(*) AS n, (SELECT max(v) FROM input) AS top FROM input GROUP BY 1";
    let definition = Case { incremental: false, ..case(text) }.define(&ctx).await;
    let bound = BoundHandler::bind("t", &definition, &HandlerRegistry::default(), &ctx.state()).unwrap();
    let found = run(bound.plan_over(rows(), &[]).await.unwrap()).await.unwrap();
    assert_eq!(found.schema(), definition.output_schema);
    let mut groups: Vec<(i64, i64, i64)> = (0..found.num_rows())
        .map(|row| {
            let at = |column: usize| found.column(column).as_primitive::<Int64Type>().value(row);
            (at(0), at(1), at(2))
        })
        .collect();
    groups.sort_unstable();
    assert_eq!(groups, [(0, 1, 3), (1, 2, 3)]);
}

#[tokio::test]
async fn versions_are_pinned() {
    let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
    let handler = |version: &str| closure_handler(version, Arc::clone(&schema), |input, _| async move { Ok(vec![input.project(&[0])?]) });
    let ctx = context().await;
    let registry = HandlerRegistry::default();
    assert_eq!(registry.register("h", handler("")).unwrap_err().code(), ErrorCode::DefinitionInvalid);
    let found = analyze_registered("t", handler("1").as_ref(), &source(), &strings(&["id"]), Some(&strings(&["v"]))).unwrap();
    assert!(!found.proven);
    let no_track = analyze_registered("t", handler("1").as_ref(), &source(), &strings(&["id"]), None).unwrap_err();
    assert_eq!(no_track.code(), ErrorCode::DefinitionInvalid);
    let mut definition = case("SELECT id FROM input").define(&ctx).await;
    definition.handler = HandlerSpec::Registered { name: "h".into(), version: "1".into() };
    let bind = || BoundHandler::bind("t", &definition, &registry, &ctx.state()).map_err(|e| e.code());
    assert_eq!(bind().err(), Some(ErrorCode::HandlerVersion), "not registered");
    registry.register("h", handler("2")).unwrap();
    assert_eq!(bind().err(), Some(ErrorCode::HandlerVersion), "another version");
    registry.register("h", handler("1")).unwrap();
    assert!(bind().is_ok_and(|bound| !bound.proven() && !bound.is_sql()));
    let wider: SchemaRef = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false), Field::new("o", DataType::Utf8, true)]));
    registry.register("h", closure_handler("1", wider, |_, _| async { Ok(vec![]) })).unwrap();
    assert_eq!(bind().err(), Some(ErrorCode::HandlerSchema), "another output");
}

fn call() -> HandlerCall {
    HandlerCall { table: "t".into(), run: RunId::new("r").unwrap(), attempt: "a".into(), mode: RunMode::Published, call: 0 }
}

#[tokio::test]
async fn the_row_form_is_exact() {
    let schema: SchemaRef = Arc::new(Schema::new(vec![
        Field::new("id", DataType::UInt64, false),
        Field::new("low", DataType::Int64, true),
        Field::new("text", DataType::Utf8, true),
    ]));
    let big = RecordBatch::try_from_iter([
        ("id", Arc::new(UInt64Array::from(vec![u64::MAX, 9_007_199_254_740_993])) as ArrayRef),
        ("low", Arc::new(Int64Array::from(vec![i64::MIN, 9_007_199_254_740_993]))),
    ])
    .unwrap();
    let exact = row_handler("1", Arc::clone(&schema), |row| {
        let (id, low) = (row.u64("id")?, row.i64("low")?);
        Ok(vec![id.into(), low.into(), format!("{id:?}/{low:?}").into()])
    });
    let found = exact.handle(big.clone(), &call()).await.unwrap().remove(0);
    assert_eq!(found.column(0).as_primitive::<UInt64Type>().values(), &[u64::MAX, 9_007_199_254_740_993]);
    assert_eq!(found.column(1).as_primitive::<Int64Type>().values(), &[i64::MIN, 9_007_199_254_740_993]);

    let code = |values: fn() -> Vec<Value>, column: DataType| {
        let schema = Arc::new(Schema::new(vec![Field::new("o", column, true)]));
        let input = big.slice(0, 1);
        async move {
            let handled = row_handler("1", schema, move |_| Ok(values())).handle(input, &call()).await;
            handled.err().map(|e| e.downcast::<Error>().unwrap().code())
        }
    };
    assert_eq!(code(|| vec![1.5.into()], DataType::Int64).await, Some(ErrorCode::HandlerSchema));
    assert_eq!(code(|| vec!["5".into()], DataType::Int64).await, Some(ErrorCode::HandlerSchema));
    assert_eq!(code(|| vec![300_i64.into()], DataType::Int8).await, Some(ErrorCode::ValueOutOfRange));
    assert_eq!(code(|| vec![u64::MAX.into()], DataType::Int64).await, Some(ErrorCode::ValueOutOfRange));
    assert_eq!(code(|| vec![i64::MAX.into()], DataType::Float64).await, Some(ErrorCode::ValueOutOfRange));
    assert_eq!(code(|| vec![0.1.into()], DataType::Float32).await, Some(ErrorCode::ValueOutOfRange));
    assert_eq!(code(|| vec![1_i64.into(), 2_i64.into()], DataType::Int64).await, Some(ErrorCode::HandlerSchema));
    assert_eq!(code(|| vec![Value::Null], DataType::Int64).await, None);
}

#[tokio::test]
async fn a_volatile_query_runs_batch_by_batch() {
    let ctx = context().await;
    let statement = Case { allow_volatile: true, track: Some(&["v"]), ..case("SELECT id, v + random() AS o FROM input") };
    let definition = statement.define(&ctx).await;
    let bound = BoundHandler::bind("t", &definition, &HandlerRegistry::default(), &ctx.state()).unwrap();
    assert!(!bound.proven());
    assert_eq!(bound.plan_over(rows(), &["__incremental_src"]).await.unwrap_err().code(), ErrorCode::Internal);
    let input = run(rows()).await.unwrap();
    let found = bound.handler().handle(input, &call()).await.unwrap();
    assert_eq!(found.iter().map(RecordBatch::num_rows).sum::<usize>(), 3);
    assert_eq!(found[0].schema(), definition.output_schema);
}
