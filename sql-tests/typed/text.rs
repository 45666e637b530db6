//! Text, binary and their encodings: bytes decide, encodings never do.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryViewArray, DictionaryArray, Int32Array, StringArray, StringViewArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::Int32Type;
use arrow_schema::DataType as T;

use super::arrays::*;
use super::{Form, Table, Via, counts, value_case};
use datafusion_incremental::exec::equality::KeyHash;

const LONG: &str = "a text of more than twelve bytes";

#[tokio::test]
async fn every_encoding_of_text() {
    let plain = texts(&[Some(""), None, Some(LONG), Some("x"), Some(LONG)]);
    let changed = texts(&[None, Some(""), Some(LONG), Some("x "), Some("A text of more than twelve bytes")]);
    let nested = T::Dictionary(Box::new(T::Int32), Box::new(T::Utf8View));
    for t in [T::Utf8, T::LargeUtf8, T::Utf8View, T::Dictionary(Box::new(T::Int8), Box::new(T::Utf8)), T::Dictionary(Box::new(T::UInt64), Box::new(T::LargeUtf8)), nested] {
        value_case(&format!("to {t}"), plain.clone(), to(&plain, t.clone()), "=====").await;
        value_case(&format!("changed to {t}"), plain.clone(), to(&changed, t.clone()), "UU=UU").await;
        value_case(&format!("changed from {t}"), to(&plain, t), sliced(&changed), "UU=UU").await;
    }
    let runs_of = |a: &ArrayRef| runs(&[1, 2, 3, 4, 5], a.clone());
    value_case("runs", plain.clone(), runs_of(&plain), "=====").await;
    value_case("from runs", sliced(&runs_of(&plain)), changed.clone(), "UU=UU").await;
    value_case("inside", boxed(singles(plain.clone())), boxed(singles(to(&plain, T::Utf8View))), "=====").await;
    let coded = dictionary(&[Some(4), None, Some(0), Some(3), Some(0)], words(&[LONG, "unused", LONG, "x", ""]));
    value_case("permuted codes", plain.clone(), coded, "=====").await;
    let null_value = dictionary(&[Some(1), Some(0), Some(2), Some(3), Some(2)], texts(&[None, Some(""), Some(LONG), Some("x")]));
    value_case("a code of null", plain, null_value, "=====").await;
}

#[tokio::test]
async fn every_encoding_of_binary() {
    let plain = bytes(&[Some(b""), None, Some(b"\0"), Some(b"\xff\0 and many more bytes")]);
    let changed = bytes(&[None, Some(b""), Some(b"\0\0"), Some(b"\xff\0 and many more bytes")]);
    for t in [T::Binary, T::LargeBinary, T::BinaryView, T::Dictionary(Box::new(T::Int16), Box::new(T::Binary))] {
        value_case(&format!("to {t}"), plain.clone(), to(&plain, t.clone()), "====").await;
        value_case(&format!("changed to {t}"), plain.clone(), to(&changed, t), "UUU=").await;
    }
    let old = fixed(&[Some(b"\0\0"), None, Some(b"ab")], 2);
    let new = fixed(&[None, Some(b"\0\0"), Some(b"ab")], 2);
    value_case("fixed", sliced(&old), new.clone(), "UU=").await;
    value_case("fixed in a list", singles(old), singles(new), "UU=").await;
}

#[tokio::test]
async fn text_is_compared_by_bytes() {
    let old = words(&["a", "a", "e\u{301}", "ß", "a\0b", "1", "{\"a\": 1}", "\u{feff}x", "a\r\n"]);
    let new = words(&["A", "a ", "\u{e9}", "ss", "a\0c", "01", "{\"a\":1}", "x", "a\n"]);
    value_case("bytewise", old, new, "UUUUUUUUU").await;
}

#[tokio::test]
async fn bytes_under_nulls_are_never_seen() {
    let hidden = |garbage: &str| -> ArrayRef {
        let values = StringArray::from(vec!["x", garbage, LONG]);
        let nulls = NullBuffer::from(vec![true, false, true]);
        Arc::new(StringArray::new(values.offsets().clone(), values.values().clone(), Some(nulls)))
    };
    value_case("text", hidden("one"), hidden("two, which is longer than twelve"), "===").await;
    value_case("text in struct", boxed(hidden("one")), sliced(&boxed(hidden("two"))), "===").await;
    let view = |garbage: &str| -> ArrayRef {
        let values = StringViewArray::from(vec!["x", garbage, LONG]);
        let (views, buffers, _) = values.into_parts();
        Arc::new(StringViewArray::new(views, buffers, Some(NullBuffer::from(vec![true, false, true]))))
    };
    value_case("views", view("a garbage of many many bytes"), view("g"), "===").await;
    let coded = |garbage: i32| -> ArrayRef {
        let keys = Int32Array::new(vec![0, garbage, 1].into(), Some(NullBuffer::from(vec![true, false, true])));
        // Safety of codes under nulls: Arrow only demands that valid ones are in range.
        Arc::new(DictionaryArray::<Int32Type>::new(keys, words(&["x", "y"])))
    };
    value_case("codes", coded(1), coded(7), "===").await;
    value_case("codes in list", singles(coded(0)), singles(coded(99)), "===").await;
    let none = dictionary(&[None, None], words(&[]));
    value_case("no values at all", none, texts(&[None, None]), "==").await;
}

#[tokio::test]
async fn views_that_share_buffers() {
    let base = StringViewArray::from(vec![LONG, "short", LONG, "another text of more than twelve bytes", "short"]);
    let picked: ArrayRef = Arc::new(base.slice(1, 4));
    value_case("shared", words(&["short", LONG, "another text of more than twelve bytes", "short"]), picked, "====").await;
    let base = BinaryViewArray::from_iter_values([LONG.as_bytes(), b"", LONG.as_bytes()]);
    let again: ArrayRef = Arc::new(base.slice(0, 2));
    value_case("binary views", bytes(&[Some(LONG.as_bytes()), Some(b"")]), again, "==").await;
}

/// From memory, then from Parquet, then from memory: where the rows come from is no change.
#[tokio::test]
async fn the_kind_of_source_is_no_change() {
    let rows = batch(&[
        ("id", ids(3)),
        ("v", texts(&[Some("a"), None, Some(LONG)])),
        ("n", boxed(texts(&[Some("a"), None, Some(LONG)]))),
        ("c", dictionary(&[Some(1), Some(0), None], words(&["p", "q"]))),
    ]);
    let large = batch(&[
        ("id", ids(3)),
        ("v", texts(&[Some("a"), None, Some(LONG)])),
        ("n", boxed(to(&texts(&[Some("a"), None, Some(LONG)]), T::LargeUtf8))),
        ("c", dictionary(&[Some(0), Some(1), None], words(&["q", "p"]))),
    ]);
    let table = Table::new(KeyHash::Xxh3).await;
    table.put(&rows, Form::Whole).await;
    table.define(Via::Sql, &["id"], &["*"]).await.unwrap();
    assert_eq!(counts(&table.run().await.unwrap()), [3, 0, 0, 0, 3]);
    for (batch, form) in [(&rows, Form::Parquet), (&large, Form::Parquet), (&large, Form::Scattered), (&rows, Form::Whole)] {
        table.put(batch, form).await;
        assert_eq!(counts(&table.run().await.unwrap()), [0, 0, 0, 3, 0], "{form:?}");
    }
}
