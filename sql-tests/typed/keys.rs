//! Keys of every type: found again whatever the encoding, never merged, null and duplicate ones refused.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Decimal32Array, Decimal64Array, Decimal128Array, Decimal256Array, Int64Array, StringArray, UInt64Array,
};
use arrow::datatypes::i256;
use arrow_schema::{DataType as T, TimeUnit};
use datafusion_incremental::ErrorCode;
use datafusion_incremental::exec::equality::KeyHash;

use super::arrays::*;
use super::{Form, Model, Table, Via, counts, refused, scenario};

/// Three keys; the second row changes.
async fn found_again(label: &str, first: ArrayRef, second: ArrayRef) {
    let a = batch(&[("k", first), ("v", i64s(&[1, 2, 3]))]);
    let b = batch(&[("k", second), ("v", i64s(&[1, 9, 3]))]);
    scenario(label, &["k"], &[(&a, "CCC"), (&b, "=U=")]).await;
}

async fn same(label: &str, keys: ArrayRef) {
    found_again(label, keys.clone(), sliced(&keys)).await;
}

#[tokio::test]
async fn numbers() {
    for t in [T::Int8, T::Int16, T::Int32, T::UInt8, T::UInt16, T::UInt32, T::Float16, T::Date32, T::Date64] {
        same(&t.to_string(), to(&to(&i64s(&[0, 1, 100]), T::Int32), t.clone())).await;
    }
    same("i64 extremes", i64s(&[i64::MIN, -1, i64::MAX])).await;
    same("u64 above i64", Arc::new(UInt64Array::from(vec![u64::MAX, 1 << 63, 0]))).await;
    let two = batch(&[("k", bools(&[Some(false), Some(true)])), ("v", i64s(&[1, 2]))]);
    let changed = batch(&[("k", bools(&[Some(true), Some(false)])), ("v", i64s(&[7, 1]))]);
    scenario("booleans", &["k"], &[(&two, "CC"), (&changed, "U=")]).await;
}

#[tokio::test]
async fn decimals() {
    same("d32", Arc::new(Decimal32Array::from(vec![-1, 0, 999_999_999]).with_precision_and_scale(9, 2).unwrap())).await;
    same("d64", Arc::new(Decimal64Array::from(vec![-1, 0, 999_999_999_999_999_999]).with_precision_and_scale(18, 4).unwrap())).await;
    same("d128", Arc::new(Decimal128Array::from(vec![-1, 0, 10_i128.pow(38) - 1]).with_precision_and_scale(38, 10).unwrap())).await;
    let wide: Vec<i256> = vec![i256::MINUS_ONE, i256::ZERO, i256::from_string(&"9".repeat(76)).unwrap()];
    same("d256", Arc::new(Decimal256Array::from(wide).with_precision_and_scale(76, 0).unwrap())).await;
}

#[tokio::test]
async fn text_and_binary() {
    let keys = texts(&[Some(""), Some("a longer text than twelve bytes"), Some("a")]);
    for t in [T::LargeUtf8, T::Utf8View, T::Dictionary(Box::new(T::UInt8), Box::new(T::Utf8)), T::Dictionary(Box::new(T::Int64), Box::new(T::LargeUtf8))] {
        found_again(&format!("text as {t}"), keys.clone(), to(&keys, t.clone())).await;
        found_again(&format!("text from {t}"), to(&keys, t), keys.clone()).await;
    }
    found_again("text as runs", keys.clone(), runs(&[1, 2, 3], keys.clone())).await;
    let keys = bytes(&[Some(b""), Some(b"\0"), Some(b"\0\0 and more than twelve")]);
    for t in [T::LargeBinary, T::BinaryView, T::Dictionary(Box::new(T::Int8), Box::new(T::Binary))] {
        found_again(&format!("binary as {t}"), keys.clone(), to(&keys, t)).await;
    }
    let keys = fixed(&[Some(b"\0\0"), Some(b"\0a"), Some(b"a\0")], 2);
    same("fixed binary", keys.clone()).await;
    found_again("fixed binary as dictionary", keys.clone(), dictionary(&[Some(0), Some(1), Some(2)], keys)).await;
}

#[tokio::test]
async fn times() {
    for unit in [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond] {
        let keys = i64s(&[-1, 0, 86_399]);
        same(&format!("timestamp {unit:?}"), to(&keys, T::Timestamp(unit, None))).await;
        found_again(
            &format!("zoned {unit:?}"),
            to(&keys, T::Timestamp(unit, Some("UTC".into()))),
            to(&keys, T::Timestamp(unit, Some("+00:00".into()))),
        )
        .await;
        same(&format!("duration {unit:?}"), to(&keys, T::Duration(unit))).await;
    }
    let keys = i64s(&[0, 1, 86_399]);
    for t in [T::Time32(TimeUnit::Second), T::Time32(TimeUnit::Millisecond)] {
        same(&t.to_string(), to(&to(&keys, T::Int32), t.clone())).await;
    }
    for t in [T::Time64(TimeUnit::Microsecond), T::Time64(TimeUnit::Nanosecond)] {
        same(&t.to_string(), to(&keys, t.clone())).await;
    }
}

#[tokio::test]
async fn floats_have_one_nan_and_one_zero_at_every_depth() {
    let (a, b) = (f64s(&[f64::NAN, 0.0, 1.0]), f64s(&[f64::from_bits(0xfff8_0000_0000_1234), -0.0, 1.0]));
    let (c, d) = (f32s(&[f32::NAN, 0.0, 1.0]), f32s(&[f32::from_bits(0xffc0_0012), -0.0, 1.0]));
    let (e, f) = (f16s(&[0x7e00, 0, 0x3c00]), f16s(&[0xfe01, 0x8000, 0x3c00]));
    for (first, second) in [(a, b), (c, d), (e, f)] {
        let t = first.data_type().clone();
        found_again(&format!("{t}"), first.clone(), second.clone()).await;
        found_again(&format!("{t} back"), second.clone(), first.clone()).await;
        found_again(&format!("struct of {t}"), boxed(first.clone()), boxed(second.clone())).await;
        found_again(&format!("list of {t}"), singles(first.clone()), singles(second.clone())).await;
        found_again(&format!("fixed list of {t}"), fixed_list(1, first.clone(), &[true; 3]), fixed_list(1, second.clone(), &[true; 3])).await;
        let (x, y) = (dictionary(&[Some(0), Some(1), Some(2)], first.clone()), runs(&[1, 2, 3], second.clone()));
        found_again(&format!("dictionary and runs of {t}"), x.clone(), y).await;
        found_again(&format!("struct of dictionary of {t}"), boxed(x.clone()), boxed(second.clone())).await;
        found_again(&format!("list of struct of list of {t}"), singles(boxed(singles(x))), singles(boxed(singles(second.clone())))).await;
        for (how, nest) in [("plain", (|a| a) as fn(ArrayRef) -> ArrayRef), ("struct", boxed), ("list", singles)] {
            let good = batch(&[("k", nest(first.clone())), ("v", ids(3))]);
            let both = arrow::compute::concat(&[nest(first.clone()).as_ref(), nest(second.clone()).as_ref()]).unwrap();
            let bad = batch(&[("k", both), ("v", ids(6))]);
            refused(&format!("{how} {t} twice"), &["k"], &good, &bad, ErrorCode::KeyDuplicate, &["k="]).await;
        }
    }
}

#[tokio::test]
async fn nested_keys() {
    let ints = || i32s(&[Some(1), None, Some(1), Some(2), None]);
    let lists = list(&[2, 0, 3], ints(), &[true; 3]);
    same("lists", lists.clone()).await;
    found_again("large lists", lists.clone(), large_list(&[2, 0, 3], ints(), &[true; 3])).await;
    found_again("list views", lists, list_view(&[2, 5, 4], &[2, 0, 3], i32s(&[None, None, Some(1), None, Some(1), Some(2), None]), &[true; 3])).await;
    let parts = |a: &[&str], b: &[&str]| strukt(&[("a", words(a)), ("b", words(b))], &[true; 3]);
    let other_order = strukt(&[("b", words(&["c", "bc", ""])), ("a", to(&words(&["ab", "a", "abc"]), T::Utf8View))], &[true; 3]);
    found_again("struct in another order", parts(&["ab", "a", "abc"], &["c", "bc", ""]), other_order).await;
}

#[tokio::test]
async fn composite_keys_never_run_into_each_other() {
    let pairs = |a: ArrayRef, b: ArrayRef, v: &[i64]| batch(&[("a", a), ("b", b), ("v", i64s(v))]);
    let a = || words(&["12-", "12", "a\0", "a", "", "x", "xy"]);
    let b = || words(&["3", "-3", "b", "\0b", "xy", "y", ""]);
    let (first, second) = (pairs(a(), b(), &[1, 2, 3, 4, 5, 6, 7]), pairs(a(), b(), &[1, 9, 3, 9, 5, 9, 7]));
    scenario("texts", &["a", "b"], &[(&first, "CCCCCCC"), (&second, "=U=U=U=")]).await;
    let (a, b) = (|| bytes(&[Some(b"\0"), Some(b""), Some(b"\x01\0")]), || words(&["", "\0", "\x01"]));
    let (first, second) = (pairs(a(), b(), &[1, 2, 3]), pairs(to(&a(), T::BinaryView), to(&b(), T::LargeUtf8), &[1, 2, 9]));
    scenario("binary and text", &["a", "b"], &[(&first, "CCC"), (&second, "==U")]).await;
    let (a, b) = (|| i32s(&[Some(1), Some(1), Some(2)]), || bools(&[Some(true), Some(false), Some(true)]));
    let (first, second) = (pairs(a(), b(), &[1, 2, 3]), pairs(a(), b(), &[1, 9, 3]));
    scenario("number and boolean", &["a", "b"], &[(&first, "CCC"), (&second, "=U=")]).await;
    let wide: Vec<(String, ArrayRef)> = (0..9).map(|i| (format!("k{i}"), f64s(&[f64::from(i), -0.0, f64::NAN]))).collect();
    let mut columns: Vec<(&str, ArrayRef)> = wide.iter().map(|(n, a)| (n.as_str(), a.clone())).collect();
    columns.push(("v", ids(3)));
    let key: Vec<&str> = wide.iter().map(|(n, _)| n.as_str()).collect();
    let first = batch(&columns);
    columns.pop();
    columns.push(("v", i64s(&[1, 2, 9])));
    scenario("nine floats", &key, &[(&first, "CCC"), (&batch(&columns), "==U")]).await;
}

#[tokio::test]
async fn keys_that_differ_only_for_people_are_different() {
    let keys = ["a", "A", "a ", "a\t", " a", "e\u{301}", "\u{e9}", "ß", "SS", "ss", "\u{212b}", "\u{c5}", "", " ", "\u{200d}", "\0", "İ", "i", "ﬁ", "fi"];
    let first = batch(&[("k", words(&keys)), ("v", i64s(&[1; 20]))]);
    let mut values = [1; 20];
    (values[1], values[13]) = (2, 2);
    let second = batch(&[("k", to(&words(&keys), T::Utf8View)), ("v", i64s(&values))]);
    scenario("bytewise", &["k"], &[(&first, &"C".repeat(20)), (&second, "=U===========U======")]).await;
}

#[tokio::test]
async fn null_keys_are_refused_and_named() {
    let good = |k: ArrayRef| batch(&[("k", k.slice(0, 2)), ("v", ids(2))]);
    let bad = |k: ArrayRef| batch(&[("k", k), ("v", ids(3))]);
    let keys: Vec<(&str, ArrayRef)> = vec![
        ("text", texts(&[Some(""), Some("x"), None])),
        ("boolean", bools(&[Some(true), Some(false), None])),
        ("number", i32s(&[Some(0), Some(1), None])),
        ("fixed binary", fixed(&[Some(b"\0\0"), Some(b"ab"), None], 2)),
        ("dictionary key", dictionary(&[Some(0), Some(1), None], words(&["", "x"]))),
        ("dictionary value", dictionary(&[Some(1), Some(0), Some(2)], texts(&[Some("x"), Some(""), None]))),
        ("runs", runs(&[1, 2, 3], texts(&[Some(""), Some("x"), None]))),
        ("struct", strukt(&[("x", i32s(&[Some(1), None, None]))], &[true, true, false])),
        ("list", list(&[0, 1, 0], i32s(&[None]), &[true, true, false])),
        ("fixed list", fixed_list(1, i32s(&[Some(1), Some(2), Some(3)]), &[true, true, false])),
    ];
    for (label, k) in keys {
        refused(label, &["k"], &good(k.clone()), &bad(k), ErrorCode::KeyNull, &["\"k\"", "1"]).await;
    }
    let columns = |b: &[Option<i32>]| batch(&[("a", words(&vec!["z"; b.len()])), ("b", i32s(b)), ("v", i32s(&vec![Some(1); b.len()]))]);
    let (good, bad) = (columns(&[Some(1), Some(2)]), columns(&[Some(1), Some(2), None, None]));
    refused("second part", &["a", "b"], &good, &bad, ErrorCode::KeyNull, &["\"b\"", "2"]).await;
}

#[tokio::test]
async fn duplicate_keys_are_refused_with_samples() {
    let rows = |k: ArrayRef, v: &[i64]| batch(&[("k", k), ("v", i64s(v))]);
    let good = rows(i64s(&[1, 2, 3]), &[1, 2, 3]);
    let identical = rows(i64s(&[1, 2, 2, 3]), &[1, 2, 2, 3]);
    refused("identical copies", &["k"], &good, &identical, ErrorCode::KeyDuplicate, &["k=2", "2"]).await;
    let far = rows(i64s(&[9, 1, 8, 2, 3, 1]), &[1, 1, 1, 2, 3, 5]);
    refused("a known and a changed one", &["k"], &good, &far, ErrorCode::KeyDuplicate, &["k=1"]).await;
    let new = rows(i64s(&[1, 2, 3, 7, 7, 7]), &[1, 2, 3, 7, 7, 7]);
    refused("a new one", &["k"], &good, &new, ErrorCode::KeyDuplicate, &["k=7", "3"]).await;
    let good = rows(words(&["a", "b"]), &[1, 2]);
    let codes = dictionary(&[Some(0), Some(1), Some(2)], words(&["a", "b", "a"]));
    refused("two codes of one text", &["k"], &good, &rows(codes, &[1, 2, 3]), ErrorCode::KeyDuplicate, &["k=a"]).await;
    let many: Vec<i64> = (0..20).map(|i| i % 10).collect();
    let table = Table::new(KeyHash::Xxh3).await;
    table.put(&rows(i64s(&many), &many), Form::Scattered).await;
    table.define(Via::Sql, &["k"], &["*"]).await.unwrap();
    let error = table.run().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::KeyDuplicate);
    assert_eq!(error.message().matches("k=").count(), 5, "{error}");
}

#[tokio::test]
async fn equal_hashes_decide_nothing() {
    let values = |skip: i64| (1..=1001).filter(move |i| *i != skip);
    for key in [&["k"][..], &["k", "n"], &["n"]] {
        let rows = |skip: i64, changed: i64| {
            let names: StringArray = values(skip).map(|i| Some(format!("n{i}"))).collect();
            let v: Int64Array = values(skip).map(|i| if i == changed { -1 } else { i }).collect();
            batch(&[("k", Arc::new(Int64Array::from_iter_values(values(skip)))), ("n", Arc::new(names)), ("v", Arc::new(v))])
        };
        let table = Table::new(KeyHash::Constant).await;
        table.put(&rows(1001, 0), Form::Whole).await;
        table.define(Via::Rust, key, &["*"]).await.unwrap();
        let mut model = Model::default();
        assert_eq!(counts(&table.run().await.unwrap()), model.step(&rows(1001, 0), &"C".repeat(1000), key));
        table.put(&rows(500, 7), Form::Scattered).await;
        let verdicts: String = values(500).map(|i| if i == 7 { 'U' } else if i == 1001 { 'C' } else { '=' }).collect();
        assert_eq!(counts(&table.run().await.unwrap()), model.step(&rows(500, 7), &verdicts, key));
        model.check(&table.published().await, key, "constant hash");
    }
}
