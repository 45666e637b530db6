//! What handlers return: any encoding of the declared type is stored as the declared type, any other type is refused;
//! and what is stored survives compaction, rollback and full recomputation.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType as T, Field, Schema, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::prelude::{col, lit};
use datafusion_incremental::ErrorCode;
use datafusion_incremental::exec::equality::KeyHash;
use datafusion_incremental::handler::closure_handler;
use datafusion_incremental::spec::normalize_type;

use super::arrays::*;
use super::show::{row_of, show};
use super::{Form, Table, Via, counts};

/// A handler that declares the type of `declared` and returns `returned`, for two rows.
async fn returning(declared: &ArrayRef, returned: &ArrayRef) -> (Table, Result<(), ErrorCode>) {
    let table = Table::new(KeyHash::Xxh3).await;
    let field = |a: &ArrayRef| Arc::new(Schema::new(vec![Field::new("id", T::Int64, true), Field::new("o", a.data_type().clone(), true)]));
    let (schema, column) = (field(returned), returned.clone());
    let handler = closure_handler("1", field(declared), move |input: RecordBatch, _| {
        let (schema, column) = (schema.clone(), column.clone());
        async move { Ok(vec![RecordBatch::try_new(schema, vec![input.column(0).clone(), column])?]) }
    });
    table.session.handlers().register("h", handler).unwrap();
    table.put(&batch(&[("id", ids(2)), ("v", ids(2))]), Form::Whole).await;
    table.session.table("t").source("s").key(["id"]).track(["v"]).handler("h").create().await.unwrap();
    let outcome = table.run().await.map(|_| ()).map_err(|e| e.code());
    (table, outcome)
}

#[tokio::test]
async fn any_encoding_of_the_declared_type() {
    let zoned = |zone: &str| to(&i64s(&[5, 6]), T::Timestamp(TimeUnit::Microsecond, Some(zone.into())));
    let text = texts(&[Some("a text of more than twelve bytes"), None]);
    let ints = || i32s(&[Some(1), None, Some(3)]);
    let ab = |a: i32, b: i32| strukt(&[("a", i32s(&[Some(a), None])), ("b", i32s(&[Some(b), Some(b)]))], &[true, true]);
    let ba = |b: i32, a: i32| strukt(&[("b", i32s(&[Some(b), Some(b)])), ("a", i32s(&[Some(a), None]))], &[true, true]);
    let plain_map = map(&[2, 0], words(&["a", "b"]), i32s(&[Some(1), None]), &[true, false]);
    let other_map = named_map(["key_value", "keys", "values"], &[2, 0], to(&words(&["a", "b"]), T::Utf8View), dictionary(&[Some(0), None], i32s(&[Some(1)])), &[true, false]);
    let cases: Vec<(ArrayRef, ArrayRef)> = vec![
        (text.clone(), to(&text, T::Utf8View)),
        (text.clone(), to(&text, T::LargeUtf8)),
        (text.clone(), dictionary(&[Some(1), None], texts(&[None, Some("a text of more than twelve bytes")]))),
        (text.clone(), dictionary(&[Some(1), Some(0)], texts(&[None, Some("a text of more than twelve bytes")]))),
        (text.clone(), runs(&[1, 2], text.clone())),
        (text.clone(), runs(&[1, 2], dictionary(&[Some(1), Some(0)], texts(&[None, Some("a text of more than twelve bytes")])))),
        (to(&text, T::Utf8View), text.clone()),
        (to(&text, T::Binary), to(&text, T::BinaryView)),
        (zoned("UTC"), zoned("Z")),
        (zoned("Etc/UTC"), zoned("+00:00")),
        (singles(zoned("UTC")), singles(zoned("Z"))),
        (list(&[3, 0], ints(), &[true, false]), large_list(&[3, 0], ints(), &[true, false])),
        (list(&[3, 0], ints(), &[true, false]), list_view(&[0, 2], &[3, 1], ints(), &[true, false])),
        (list(&[3, 0], ints(), &[true, true]), large_list_view(&[0, 2], &[3, 0], ints(), &[true, true])),
        (list(&[1, 2], ints(), &[true, true]), list(&[1, 2], dictionary(&[Some(0), None, Some(1)], i32s(&[Some(1), Some(3)])), &[true, true])),
        (ab(1, 2), ba(2, 1)),
        (singles(ab(1, 2)), singles(ba(2, 1))),
        (fixed_list(1, ab(1, 2), &[true, false]), fixed_list(1, ba(2, 1), &[true, false])),
        (plain_map, other_map),
        (f64s(&[-0.0, f64::NAN]), dictionary(&[Some(1), Some(0)], f64s(&[f64::NAN, -0.0]))),
        (f16s(&[0x8000, 0x7e00]), runs(&[1, 2], f16s(&[0x8000, 0x7e00]))),
        (fixed(&[Some(b"\0a"), None], 2), dictionary(&[Some(0), None], fixed(&[Some(b"\0a")], 2))),
        (to(&i64s(&[1, 2]), T::Decimal256(50, 2)), dictionary(&[Some(0), Some(1)], to(&i64s(&[1, 2]), T::Decimal256(50, 2)))),
        (to(&i64s(&[1, 2]), T::Decimal32(9, 2)), runs(&[1, 2], to(&i64s(&[1, 2]), T::Decimal32(9, 2)))),
    ];
    for (declared, returned) in cases {
        for returned in [returned.clone(), sliced(&returned)] {
            let label = format!("{} returned as {}", declared.data_type(), returned.data_type());
            let (table, outcome) = returning(&declared, &returned).await;
            assert_eq!(outcome, Ok(()), "{label}");
            let published = table.published().await;
            let column = published.column_by_name("o").unwrap();
            assert_eq!(*column.data_type(), normalize_type(declared.data_type()), "{label}");
            for row in 0..2 {
                assert_eq!(show(column, row), show(&declared, row), "{label}");
            }
        }
    }
}

#[tokio::test]
async fn another_type_is_refused() {
    let cases: Vec<(ArrayRef, ArrayRef)> = vec![
        (i64s(&[1, 1]), f64s(&[1.5, 1.0])),
        (i64s(&[1, 1]), i32s(&[Some(1), Some(1)])),
        (words(&["1", "1"]), i64s(&[1, 1])),
        (f64s(&[1.0, 1.0]), f32s(&[1.0, 1.0])),
        (boxed(i64s(&[1, 1])), strukt(&[("y", i64s(&[1, 1]))], &[true, true])),
        (singles(i64s(&[1, 1])), singles(i32s(&[Some(1), Some(1)]))),
        (to(&i64s(&[1, 1]), T::Decimal128(10, 2)), to(&i64s(&[1, 1]), T::Decimal128(10, 3))),
        (to(&i64s(&[1, 1]), T::Timestamp(TimeUnit::Second, None)), to(&i64s(&[1, 1]), T::Timestamp(TimeUnit::Second, Some("UTC".into())))),
        (words(&["1", "1"]), to(&words(&["1", "1"]), T::Binary)),
        (fixed_list(1, i64s(&[1, 1]), &[true, true]), singles(i64s(&[1, 1]))),
    ];
    for (declared, returned) in cases {
        let (_, outcome) = returning(&declared, &returned).await;
        assert_eq!(outcome, Err(ErrorCode::HandlerSchema), "{} returned as {}", declared.data_type(), returned.data_type());
    }
}

fn every_kind(second: bool) -> RecordBatch {
    let b = |a: ArrayRef| if second { sliced(&a) } else { a };
    let n = |t: T| to(&to(&i64s(&[1, 0, 100]), T::Int32), t);
    let l = |t: T| to(&i64s(&[-1, 0, 86_399]), t);
    let floats = f64s(&[f64::NAN, -0.0, 0.1 + 0.2]);
    let halves = f16s(&[0xfe01, 0x8000, 0x3c01]);
    let changing = if second { "new" } else { "old" };
    batch(&[
        ("k1", b(to(&n(T::Int32), T::Decimal256(60, 3)))),
        ("k2", b(boxed(singles(halves.clone())))),
        ("c", words(&[changing, "same", "same"])),
        ("d32", b(n(T::Decimal32(9, 2)))),
        ("d64", b(n(T::Decimal64(18, 2)))),
        ("date64", b(l(T::Date64))),
        ("t32", b(n(T::Time32(TimeUnit::Second)))),
        ("t64", b(to(&i64s(&[0, 1, 86_399_999_999_999]), T::Time64(TimeUnit::Nanosecond)))),
        ("dur", b(l(T::Duration(TimeUnit::Second)))),
        ("ts", b(l(T::Timestamp(TimeUnit::Second, Some("Europe/Paris".into()))))),
        ("f", b(floats.clone())),
        ("h", b(halves)),
        ("fl", b(fixed_list(1, floats.clone(), &[true, false, true]))),
        ("m", b(map(&[1, 0, 2], words(&["a", "b", "c"]), floats.clone(), &[true, true, true]))),
        ("s", b(strukt(&[("x", floats), ("y", texts(&[None, Some(""), Some("z")]))], &[true, false, true]))),
        ("bin", b(fixed(&[Some(b"\0\0"), None, Some(b"ab")], 2))),
        ("v", b(to(&texts(&[Some(""), None, Some("a text of more than twelve bytes")]), T::Utf8View))),
        ("lv", b(list_view(&[0, 1, 0], &[1, 0, 1], bools(&[None]), &[true, true, false]))),
    ])
}

fn rows(batch: &RecordBatch) -> Vec<String> {
    let mut rows: Vec<String> = (0..batch.num_rows()).map(|row| row_of(batch, row)).collect();
    rows.sort();
    rows
}

#[tokio::test]
async fn compaction_rollback_and_copies_keep_every_kind() {
    for via in [Via::Sql, Via::Rust] {
        let table = Table::new(KeyHash::Xxh3).await;
        table.put(&every_kind(false), Form::Whole).await;
        table.define(via, &["k1", "k2"], &["*"]).await.unwrap();
        assert_eq!(counts(&table.run().await.unwrap()), [3, 0, 0, 0, 3]);
        let old = rows(&table.published().await);
        assert_eq!(old, rows(&every_kind(false)));
        table.put(&every_kind(true), Form::Scattered).await;
        assert_eq!(counts(&table.run().await.unwrap()), [0, 1, 0, 2, 1]);
        let new = rows(&table.published().await);
        assert_eq!(new, rows(&every_kind(true)));
        table.session.sql("CALL incremental.compact('t')").await.unwrap();
        assert_eq!(rows(&table.published().await), new);
        assert_eq!(counts(&table.run().await.unwrap()), [0, 0, 0, 3, 0]);
        table.session.sql("CALL incremental.rollback('t', version => 1)").await.unwrap();
        assert_eq!(rows(&table.published().await), old);
        assert_eq!(counts(&table.run().await.unwrap()), [0, 1, 0, 2, 1]);
        assert_eq!(rows(&table.published().await), new);
        let copy = tempfile::tempdir().unwrap();
        let path = copy.path().join("copy.parquet");
        table.session.context().sql(&format!("COPY t TO '{}'", path.display())).await.unwrap().collect().await.unwrap();
        table.session.context().deregister_table("s").unwrap();
        table.session.context().register_parquet("s", path.to_string_lossy(), Default::default()).await.unwrap();
        assert_eq!(counts(&table.run().await.unwrap()), [0, 0, 0, 3, 0]);
    }
}

#[tokio::test]
async fn full_recomputation_keeps_types_and_checks_keys() {
    for form in [Form::Whole, Form::Scattered] {
        let table = Table::new(KeyHash::Xxh3).await;
        table.put(&every_kind(false), form).await;
        table.session.table("t").source("s").key(["k1", "k2"]).track(["*"]).sql("SELECT * FROM input").option("incremental", "false").create().await.unwrap();
        table.run().await.unwrap();
        assert_eq!(rows(&table.published().await), rows(&every_kind(false)));
        table.put(&every_kind(true), form).await;
        table.run().await.unwrap();
        assert_eq!(rows(&table.published().await), rows(&every_kind(true)));
        let twice = arrow::compute::concat_batches(&every_kind(true).schema(), [&every_kind(true), &every_kind(true)]).unwrap();
        table.put(&twice, form).await;
        let error = table.run().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::HandlerDuplicateKey, "{error}");
        assert_eq!(rows(&table.published().await), rows(&every_kind(true)));
    }
}

#[tokio::test]
async fn one_row_per_file_and_row_group() {
    let table = Table::new(KeyHash::Xxh3).await;
    table.put(&every_kind(false), Form::Whole).await;
    let define = table.session.table("t").source("s").key(["k1", "k2"]).track(["*"]).sql("SELECT * FROM input");
    define.option("target_file_rows", "1").option("row_group_rows", "1").create().await.unwrap();
    table.run().await.unwrap();
    assert_eq!(rows(&table.published().await), rows(&every_kind(false)));
    table.put(&every_kind(true), Form::Scattered).await;
    assert_eq!(counts(&table.run().await.unwrap()), [0, 1, 0, 2, 1]);
    assert_eq!(rows(&table.published().await), rows(&every_kind(true)));
}

/// Every comparison with every value finds the same published rows as source rows, whatever the bounds say.
#[tokio::test]
async fn filters_find_the_same_rows_in_the_published_table() {
    let long = |last: char| format!("{}{last}", "\u{e9}".repeat(200));
    let (x, y) = (long('x'), long('y'));
    let d = |t: T| to(&to(&i64s(&[-5, 0, 7, 7]), T::Int32), t);
    let us = |zone: Option<&str>| to(&i64s(&[i64::MIN + 1, -1, 0, i64::MAX]), T::Timestamp(TimeUnit::Microsecond, zone.map(Into::into)));
    let columns: Vec<ArrayRef> = vec![
        i64s(&[i64::MIN, -1, 0, i64::MAX]),
        Arc::new(arrow::array::UInt64Array::from(vec![0, i64::MAX as u64, 1 << 63, u64::MAX])),
        words(&["", &x, &y, "\u{10ffff}"]),
        texts(&[Some("a"), None, Some("a "), Some("A")]),
        bytes(&[Some(b""), Some(b"\0"), Some(b"\xff\xff"), None]),
        to(&bytes(&[Some(x.as_bytes()), Some(y.as_bytes()), Some(&[0xff; 300]), None]), T::BinaryView),
        fixed(&[Some(b"\0\0"), Some(b"\x7f\0"), Some(b"\x80\0"), Some(b"\xff\xff")], 2),
        d(T::Decimal32(9, 2)),
        d(T::Decimal64(18, 2)),
        d(T::Decimal128(38, 2)),
        d(T::Decimal256(70, 2)),
        d(T::Date32),
        to(&i64s(&[-1, 0, 86_400_000, 1]), T::Date64),
        us(None),
        us(Some("UTC")),
        us(Some("+05:30")),
        bools(&[Some(false), None, Some(true), Some(false)]),
        f64s(&[-0.0, f64::NEG_INFINITY, f64::NAN, 1.5]),
        f32s(&[0.0, f32::INFINITY, -f32::NAN, 1.5]),
    ];
    for column in columns {
        for files in ["1", "1000"] {
            let table = Table::new(KeyHash::Xxh3).await;
            let source = batch(&[("id", ids(4)), ("v", column.clone())]);
            table.put(&source, Form::Whole).await;
            let define = table.session.table("t").source("s").key(["id"]).track(["*"]).sql("SELECT * FROM input");
            define.option("target_file_rows", files).create().await.unwrap();
            table.run().await.unwrap();
            for row in 0..4 {
                let value = lit(ScalarValue::try_from_array(&column, row).unwrap());
                let v = || col("v");
                let filters = [v().eq(value.clone()), v().not_eq(value.clone()), v().lt(value.clone()), v().lt_eq(value.clone()), v().gt(value.clone()), v().gt_eq(value.clone()), v().is_null(), v().in_list(vec![value.clone()], false), v().in_list(vec![value], true)];
                for filter in filters {
                    let mut found = vec![];
                    for name in ["s", "t"] {
                        let rows = table.session.context().table(name).await.unwrap().filter(filter.clone()).unwrap();
                        let rows = rows.select_columns(&["id"]).unwrap().sort_by(vec![col("id")]).unwrap().collect().await.unwrap();
                        found.push(rows.iter().flat_map(|b| (0..b.num_rows()).map(|i| row_of(b, i)).collect::<Vec<_>>()).collect::<Vec<_>>());
                    }
                    assert_eq!(found[0], found[1], "{} {filter} in files of {files}", column.data_type());
                }
            }
        }
    }
}
