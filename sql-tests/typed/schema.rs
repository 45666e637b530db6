//! Which changes of the source's schema are changes, and which are none.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType as T, Field, Schema};
use datafusion_incremental::ErrorCode;
use datafusion_incremental::exec::equality::KeyHash;

use super::arrays::*;
use super::{Form, Table, Via, counts, refused, scenario};

#[tokio::test]
async fn types_never_coerce() {
    let number = i32s(&[Some(5)]);
    let types = [
        T::Int8, T::Int16, T::Int32, T::Int64, T::UInt8, T::UInt16, T::UInt32, T::UInt64, T::Float16, T::Float32, T::Float64, T::Utf8,
        T::Decimal32(9, 2), T::Decimal32(9, 3), T::Decimal64(10, 2), T::Decimal128(10, 2), T::Decimal128(12, 3), T::Decimal128(10, 3),
        T::Decimal256(10, 2), T::Boolean,
    ];
    let rows = |t: &T| batch(&[("id", ids(1)), ("v", to(&number, t.clone()))]);
    for (at, was) in types.iter().enumerate() {
        let now = &types[(at * 7 + 3) % types.len()];
        if was == now {
            continue;
        }
        for (was, now) in [(was, now), (now, was), (was, &types[(at + 1) % types.len()])] {
            let needles = ["\"v\"".to_string(), was.to_string(), now.to_string()];
            let needles: Vec<&str> = needles.iter().map(String::as_str).collect();
            refused(&format!("{was} → {now}"), &["id"], &rows(was), &rows(now), ErrorCode::SchemaChanged, &needles).await;
        }
    }
}

#[tokio::test]
async fn text_binary_and_sizes_are_types() {
    let text = words(&["ab"]);
    let binary = to(&text, T::Binary);
    let fixed2 = fixed(&[Some(b"ab")], 2);
    let fixed4 = fixed(&[Some(b"abcd")], 4);
    let two = || i32s(&[Some(1), Some(2)]);
    let lists = [list(&[2], two(), &[true]), fixed_list(2, two(), &[true]), fixed_list(1, i32s(&[Some(1)]), &[true]), list(&[2], to(&two(), T::Int64), &[true])];
    let mapped = |k: ArrayRef, v: ArrayRef| map(&[1], k, v, &[true]);
    let pairs: Vec<(ArrayRef, ArrayRef)> = vec![
        (text.clone(), binary.clone()),
        (binary.clone(), fixed2.clone()),
        (fixed2.clone(), fixed4),
        (to(&text, T::Utf8View), to(&binary, T::BinaryView)),
        (dictionary(&[Some(0)], text.clone()), dictionary(&[Some(0)], binary.clone())),
        (dictionary(&[Some(0)], i64s(&[1])), dictionary(&[Some(0)], i32s(&[Some(1)]))),
        (lists[0].clone(), lists[1].clone()),
        (lists[1].clone(), lists[2].clone()),
        (lists[0].clone(), lists[3].clone()),
        (mapped(text.clone(), i64s(&[1])), mapped(text.clone(), i32s(&[Some(1)]))),
        (mapped(text.clone(), i64s(&[1])), mapped(i64s(&[1]), i64s(&[1]))),
        (text.clone(), singles(text)),
    ];
    for (was, now) in pairs {
        let rows = |v: &ArrayRef| batch(&[("id", ids(1)), ("v", v.clone())]);
        for (a, b) in [(&was, &now), (&now, &was)] {
            refused("types", &["id"], &rows(a), &rows(b), ErrorCode::SchemaChanged, &["\"v\""]).await;
        }
    }
}

#[tokio::test]
async fn keys_keep_their_type() {
    let rows = |k: ArrayRef| batch(&[("k", k), ("v", ids(1))]);
    for (was, now) in [(T::Int64, T::Float64), (T::Int32, T::Int64), (T::Int64, T::UInt64), (T::Int64, T::Utf8), (T::Decimal128(10, 2), T::Decimal128(11, 2))] {
        let of = |t: &T| rows(to(&i64s(&[5]), t.clone()));
        let needles = ["\"k\"".to_string(), was.to_string(), now.to_string()];
        let needles: Vec<&str> = needles.iter().map(String::as_str).collect();
        refused(&format!("{was} → {now}"), &["k"], &of(&was), &of(&now), ErrorCode::SchemaChanged, &needles).await;
    }
}

#[tokio::test]
async fn a_column_that_is_gone_is_named() {
    let good = batch(&[("id", ids(1)), ("v", ids(1)), ("w", ids(1))]);
    refused("gone", &["id"], &good, &batch(&[("id", ids(1)), ("w", ids(1))]), ErrorCode::SchemaChanged, &["\"v\"", "Int64"]).await;
    refused("other case", &["id"], &good, &batch(&[("id", ids(1)), ("V", ids(1)), ("w", ids(1))]), ErrorCode::SchemaChanged, &["\"v\""]).await;
    refused("no key", &["id"], &good, &batch(&[("ID", ids(1)), ("v", ids(1)), ("w", ids(1))]), ErrorCode::SchemaChanged, &["\"id\""]).await;
    refused("empty and gone", &["id"], &good, &batch(&[("id", ids(0)), ("w", ids(0))]), ErrorCode::SchemaChanged, &["\"v\""]).await;
}

#[tokio::test]
async fn order_flags_and_metadata_are_no_change() {
    let columns: Vec<(&str, ArrayRef)> = vec![("id", ids(2)), ("a", words(&["x", "y"])), ("b", i64s(&[1, 2])), ("l", singles(i64s(&[1, 2])))];
    let first = batch(&columns);
    let mut backwards = columns.clone();
    backwards.reverse();
    scenario("order", &["id"], &[(&first, "CC"), (&batch(&backwards), "==")]).await;

    let metadata = HashMap::from([("who".to_string(), "me".to_string()), ("ARROW:extension:name".to_string(), "x.y".to_string())]);
    let strict: Vec<Field> = first.schema().fields().iter().map(|f| f.as_ref().clone().with_nullable(false).with_metadata(metadata.clone())).collect();
    let schema = Schema::new(strict).with_metadata(metadata);
    let strict = RecordBatch::try_new(Arc::new(schema), first.columns().to_vec()).unwrap();
    scenario("flags", &["id"], &[(&first, "CC"), (&strict, "==")]).await;
    scenario("flags first", &["id"], &[(&strict, "CC"), (&first, "==")]).await;

    let element = Field::new("element", T::Int64, false);
    let renamed = arrow::array::ListArray::new(Arc::new(element), arrow::buffer::OffsetBuffer::from_lengths([1, 1]), i64s(&[1, 2]), None);
    let mut columns = columns;
    columns[3] = ("l", Arc::new(renamed));
    scenario("item name", &["id"], &[(&first, "CC"), (&batch(&columns), "==")]).await;
    scenario("item name first", &["id"], &[(&batch(&columns), "CC"), (&first, "==")]).await;
}

#[tokio::test]
async fn a_null_in_a_column_that_had_none_is_a_value() {
    let strict = Schema::new(vec![Field::new("id", T::Int64, false), Field::new("v", T::Int32, false)]);
    let first = RecordBatch::try_new(Arc::new(strict), vec![ids(2), i32s(&[Some(1), Some(2)])]).unwrap();
    let second = batch(&[("id", ids(2)), ("v", i32s(&[Some(1), None]))]);
    scenario("nullable later", &["id"], &[(&first, "CC"), (&second, "=U")]).await;
}

#[tokio::test]
async fn columns_that_are_not_tracked_may_do_as_they_like() {
    let table = Table::new(KeyHash::Xxh3).await;
    let interval = arrow::array::new_null_array(&T::Interval(arrow_schema::IntervalUnit::DayTime), 1);
    for (at, other) in [i64s(&[1]), words(&["x"]), interval, f64s(&[0.5])].into_iter().enumerate() {
        table.put(&batch(&[("other", other), ("id", ids(1)), ("v", ids(1))]), Form::Whole).await;
        if at == 0 {
            table.define(Via::Rust, &["id"], &["v"]).await.unwrap();
        }
        let run = table.run().await.unwrap();
        assert_eq!(counts(&run)[3], u64::from(at > 0));
    }
    table.put(&batch(&[("id", ids(1)), ("v", ids(1))]), Form::Whole).await;
    assert_eq!(counts(&table.run().await.unwrap()), [0, 0, 0, 1, 0]);
}

#[tokio::test]
async fn accepting_the_schema_rebuilds() {
    let table = Table::new(KeyHash::Xxh3).await;
    table.put(&batch(&[("id", ids(2)), ("v", i32s(&[Some(5), Some(6)]))]), Form::Whole).await;
    table.define(Via::Sql, &["id"], &["*"]).await.unwrap();
    table.run().await.unwrap();
    table.put(&batch(&[("id", ids(2)), ("v", i64s(&[5, 6]))]), Form::Whole).await;
    assert_eq!(table.run().await.unwrap_err().code(), ErrorCode::SchemaChanged);
    table.session.sql("ALTER INCREMENTAL TABLE t ACCEPT SCHEMA").await.unwrap();
    assert_eq!(counts(&table.run().await.unwrap()), [2, 0, 0, 0, 2]);
    assert_eq!(*table.published().await.column_by_name("v").unwrap().data_type(), T::Int64);
}
