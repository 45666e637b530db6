//! Unusual shapes of input: many columns, keys alone, no rows, many batches, odd names.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, RecordBatch};
use arrow_schema::DataType as T;
use datafusion::datasource::MemTable;
use datafusion_incremental::exec::equality::KeyHash;

use super::arrays::*;
use super::{Form, Model, Table, Via, counts, scenario};

#[tokio::test]
async fn two_thousand_columns() {
    let rows = |changed: bool| {
        let names: Vec<String> = (0..2000).map(|i| format!("c{i}")).collect();
        let value = |i: usize| i32s(&[Some(1), Some(if changed && i == 1999 { 2 } else { 1 })]);
        let mut columns: Vec<(&str, ArrayRef)> = vec![("id", ids(2))];
        columns.extend(names.iter().enumerate().map(|(i, n)| (n.as_str(), value(i))));
        batch(&columns)
    };
    for via in [Via::Sql, Via::Rust] {
        let table = Table::new(KeyHash::Xxh3).await;
        table.put(&rows(false), Form::Whole).await;
        table.define(via, &["id"], &["*"]).await.unwrap();
        let mut model = Model::default();
        assert_eq!(counts(&table.run().await.unwrap()), model.step(&rows(false), "CC", &["id"]));
        table.put(&rows(true), Form::Whole).await;
        assert_eq!(counts(&table.run().await.unwrap()), model.step(&rows(true), "=U", &["id"]));
        model.check(&table.published().await, &["id"], "wide");
    }
}

#[tokio::test]
async fn keys_alone() {
    let rows = |k: &[i64]| batch(&[("k", i64s(k))]);
    scenario("one key", &["k"], &[(&rows(&[1, 2, 3]), "CCC"), (&rows(&[3, 4]), "=C"), (&rows(&[4, 3]), "==")]).await;
    let rows = |a: &[i64], b: &[&str]| batch(&[("a", i64s(a)), ("b", words(b))]);
    scenario("two", &["b", "a"], &[(&rows(&[1, 1], &["x", "y"]), "CC"), (&rows(&[1, 2], &["y", "x"]), "=C")]).await;
}

#[tokio::test]
async fn no_rows_first_last_and_between() {
    let rows = |n: usize| batch(&[("id", ids(n)), ("v", singles(ids(n))), ("d", dictionary(&vec![Some(0); n], words(&["x"])))]);
    scenario("empty", &["id"], &[(&rows(0), ""), (&rows(2), "CC"), (&rows(2), "=="), (&rows(0), ""), (&rows(1), "C"), (&rows(0), "")])
        .await;
}

#[tokio::test]
async fn deletes_beside_changes() {
    let rows = |k: &[i64], v: &[i64]| batch(&[("id", i64s(k)), ("v", i64s(v))]);
    let first = rows(&[1, 2, 3, 4, 5], &[1; 5]);
    scenario(
        "holes",
        &["id"],
        &[(&first, "CCCCC"), (&rows(&[1, 2, 5], &[1, 2, 1]), "=U="), (&rows(&[5, 4, 1], &[1, 1, 1]), "=C="), (&first, "=CC==")],
    )
    .await;
    let floats = |k: &[f64], v: &[i64]| batch(&[("id", f64s(k)), ("v", i64s(v))]);
    scenario(
        "float keys",
        &["id"],
        &[(&floats(&[f64::NAN, 0.0, 1.0], &[1; 3]), "CCC"), (&floats(&[-0.0], &[1]), "="), (&floats(&[-f64::NAN, 0.0], &[1, 1]), "C=")],
    )
    .await;
}

#[tokio::test]
async fn many_batches_in_many_partitions() {
    let rows = |n: i32, changed: i32| -> Vec<Vec<RecordBatch>> {
        let one = |i: i32| {
            let v = Arc::new(Int32Array::from(vec![if i == changed { -1 } else { i }])) as ArrayRef;
            batch(&[("id", Arc::new(Int32Array::from(vec![i]))), ("v", v), ("s", dictionary(&[Some(0)], words(&[&format!("n{i}")])))])
        };
        (0..16).map(|p| (0..n).filter(|i| (i * 7) % 16 == p).map(one).collect()).collect()
    };
    let table = Table::new(KeyHash::Xxh3).await;
    let put = |partitions: Vec<Vec<RecordBatch>>| {
        let schema = partitions.iter().flatten().next().unwrap().schema();
        table.session.context().deregister_table("s").unwrap();
        table.session.context().register_table("s", Arc::new(MemTable::try_new(schema, partitions).unwrap())).unwrap();
    };
    put(rows(4000, -5));
    table.define(Via::Sql, &["id"], &["*"]).await.unwrap();
    assert_eq!(counts(&table.run().await.unwrap()), [4000, 0, 0, 0, 4000]);
    put(rows(3999, 2222));
    assert_eq!(counts(&table.run().await.unwrap()), [0, 1, 1, 3998, 1]);
    assert_eq!(table.published().await.num_rows(), 3999);
}

#[tokio::test]
async fn odd_names() {
    let names = [
        "ID",
        "id",
        "select",
        "a.b",
        "a",
        "with \"quotes\"",
        "with 'apostrophe'",
        "  spaces  ",
        "é",
        "e\u{301}",
        "new\nline",
        "数",
        "$1",
        "a/b",
        "a\\b",
        "file",
        "row",
        "input",
        "__fp_hi",
    ];
    let columns = |changed: usize| -> RecordBatch {
        let mut columns: Vec<(&str, ArrayRef)> =
            names.iter().enumerate().map(|(i, n)| (*n, i64s(&[i as i64, if i == changed { -1 } else { i as i64 }]))).collect();
        columns[4] = ("a", strukt(&[("b", i64s(&[7, 7]))], &[true, true]));
        columns.push(("Key.Of \"t\"", i64s(&[1, 2])));
        batch(&columns)
    };
    for changed in [0, 1, 3, 8, 9, 12] {
        scenario("names", &["Key.Of \"t\""], &[(&columns(99), "CC"), (&columns(changed), "=U")]).await;
    }
}

#[tokio::test]
async fn zoned_key_and_many_kinds_in_one_row() {
    let rows = |changed: bool| {
        batch(&[
            ("k", to(&i64s(&[1, 2]), T::Timestamp(arrow_schema::TimeUnit::Microsecond, Some("Z".into())))),
            ("m", map(&[1, 0], words(&["a"]), singles(boxed(f64s(&[0.5]))), &[true, true])),
            ("v", to(&words(&["a", "a text of more than twelve bytes"]), T::Utf8View)),
            ("f", fixed_list(2, to(&i64s(&[1, 2, 3, if changed { 5 } else { 4 }]), T::Decimal256(40, 1)), &[true, true])),
            ("r", runs(&[2], words(&["r"]))),
            ("l", large_list_view(&[0, 1], &[2, 1], bools(&[Some(true), None]), &[true, true])),
        ])
    };
    scenario("kinds", &["k"], &[(&rows(false), "CC"), (&rows(true), "=U"), (&rows(true), "==")]).await;
}
