//! Nulls, booleans, numbers and decimals as values.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Decimal32Array, Decimal64Array, Decimal128Array, Decimal256Array, UInt64Array,
};
use arrow::datatypes::i256;
use arrow_schema::DataType as T;
use datafusion_incremental::ErrorCode;

use super::arrays::*;
use super::{refused_at_create, scenario, value_case};

#[tokio::test]
async fn null_transitions_of_every_type() {
    let samples: Vec<ArrayRef> = vec![
        bools(&[Some(false)]),
        i32s(&[Some(0)]),
        to(&i32s(&[Some(0)]), T::UInt8),
        to(&i32s(&[Some(0)]), T::Int16),
        f64s(&[0.0]),
        f32s(&[f32::NAN]),
        f16s(&[0]),
        words(&[""]),
        to(&words(&[""]), T::Utf8View),
        bytes(&[Some(b"")]),
        fixed(&[Some(b"\0")], 1),
        to(&i32s(&[Some(0)]), T::Date32),
        to(&i64s(&[0]), T::Date64),
        to(&i64s(&[0]), T::Decimal32(9, 2)),
        to(&i64s(&[0]), T::Decimal64(18, 2)),
        to(&i64s(&[0]), T::Decimal128(38, 2)),
        to(&i64s(&[0]), T::Decimal256(76, 2)),
        list(&[0], i32s(&[]), &[true]),
        fixed_list(2, i32s(&[None, None]), &[true]),
        boxed(i32s(&[None])),
        map(&[0], words(&[]), i32s(&[]), &[true]),
        dictionary(&[Some(0)], words(&[""])),
        large_list(&[0], i32s(&[]), &[true]),
        list_view(&[0], &[0], i32s(&[]), &[true]),
        large_list_view(&[0], &[0], i32s(&[]), &[true]),
    ];
    for sample in samples {
        let null = arrow::array::new_null_array(sample.data_type(), 1);
        let mix = |order: [&ArrayRef; 4]| arrow::compute::concat(&order.map(|a| a.as_ref())).unwrap();
        let old = mix([&null, &sample, &null, &sample]);
        let new = mix([&sample, &null, &null, &sample]);
        value_case(&format!("nulls of {}", sample.data_type()), old, new, "UU==").await;
    }
}

#[tokio::test]
async fn values_that_move_to_the_next_column_are_seen() {
    let two = |a: ArrayRef, b: ArrayRef| batch(&[("id", ids(a.len())), ("a", a), ("b", b)]);
    let moves: Vec<(&str, [ArrayRef; 2], [ArrayRef; 2], &str)> = vec![
        ("nulls", [texts(&[None, Some("x")]), texts(&[Some("x"), None])], [texts(&[Some("x"), None]), texts(&[None, Some("x")])], "UU"),
        ("letters", [words(&["ab", ""]), words(&["c", "x"])], [words(&["a", "x"]), words(&["bc", ""])], "UU"),
        ("numbers", [i32s(&[Some(1), None]), i32s(&[None, Some(0)])], [i32s(&[None, Some(0)]), i32s(&[Some(1), None])], "UU"),
        ("booleans", [bools(&[None, Some(true)]), bools(&[Some(true), None])], [bools(&[Some(true), None]), bools(&[None, Some(true)])], "UU"),
        (
            "lists",
            [list(&[1], i32s(&[Some(1)]), &[true]), list(&[1], i32s(&[Some(2)]), &[true])],
            [list(&[2], i32s(&[Some(1), Some(2)]), &[true]), list(&[0], i32s(&[]), &[true])],
            "U",
        ),
        (
            "structs",
            [strukt(&[("x", i32s(&[None])), ("y", i32s(&[Some(1)]))], &[true]), bools(&[None])],
            [strukt(&[("x", i32s(&[Some(1)])), ("y", i32s(&[None]))], &[true]), bools(&[None])],
            "U",
        ),
        ("floats", [f64s(&[0.0]), f64s(&[f64::NAN])], [f64s(&[f64::NAN]), f64s(&[-0.0])], "U"),
    ];
    for (label, [a, b], [c, d], verdicts) in moves {
        let created = "C".repeat(verdicts.len());
        scenario(label, &["id"], &[(&two(a, b), &created), (&two(c, d), verdicts)]).await;
    }
}

#[tokio::test]
async fn booleans_one_of_many() {
    for changed in 0..5 {
        let rows = |flip: Option<usize>| {
            let names = ["p", "q", "r", "s", "u"];
            let mut columns: Vec<(&str, ArrayRef)> = vec![("id", ids(1))];
            columns.extend(names.iter().enumerate().map(|(i, n)| (*n, bools(&[Some(flip != Some(i))]))));
            batch(&columns)
        };
        scenario("one of five", &["id"], &[(&rows(None), "C"), (&rows(Some(changed)), "U")]).await;
    }
}

#[tokio::test]
async fn integers_are_exact() {
    let big: i64 = 9_007_199_254_740_993;
    value_case("i64", i64s(&[big, i64::MIN, i64::MAX]), i64s(&[big - 1, i64::MIN, i64::MAX - 1]), "U=U").await;
    let u64s = |v: [u64; 3]| Arc::new(UInt64Array::from(v.to_vec())) as ArrayRef;
    value_case("u64", u64s([u64::MAX, 1 << 63, 0]), u64s([u64::MAX - 1, 1 << 63, 1]), "U=U").await;
    for t in [T::Int8, T::Int16, T::Int32, T::UInt8, T::UInt16, T::UInt32] {
        value_case(&t.to_string(), to(&i64s(&[0, 127]), t.clone()), to(&i64s(&[0, 126]), t), "=U").await;
    }
}

#[tokio::test]
async fn decimals_compare_their_digits() {
    let d32 = |v: [i32; 3]| Arc::new(Decimal32Array::from(v.to_vec()).with_precision_and_scale(9, 2).unwrap()) as ArrayRef;
    value_case("d32", d32([100, -1, 999_999_999]), d32([100, 1, 999_999_998]), "=UU").await;
    let d64 = |v: [i64; 3]| Arc::new(Decimal64Array::from(v.to_vec()).with_precision_and_scale(18, 9).unwrap()) as ArrayRef;
    value_case("d64", d64([100, -1, 999_999_999_999_999_999]), d64([100, 1, 999_999_999_999_999_998]), "=UU").await;
    let top = 10_i128.pow(38) - 1;
    for (p, s) in [(38, 0), (38, 38)] {
        let d128 = |v: [i128; 3]| Arc::new(Decimal128Array::from(v.to_vec()).with_precision_and_scale(p, s).unwrap()) as ArrayRef;
        value_case(&format!("d128 {s}"), d128([100, -1, top]), d128([100, 1, top - 1]), "=UU").await;
    }
    let top = i256::from_string(&"9".repeat(76)).unwrap();
    let d256 = |v: [i256; 3]| Arc::new(Decimal256Array::from(v.to_vec()).with_precision_and_scale(76, 20).unwrap()) as ArrayRef;
    let (one, minus) = (i256::ONE, i256::MINUS_ONE);
    value_case("d256", d256([one, minus, top]), d256([one, one, top.wrapping_sub(one)]), "=UU").await;
    value_case("in a list", singles(d256([one, minus, top])), singles(d256([one, one, top])), "=U=").await;
    value_case("in a dictionary", dictionary(&[Some(0), Some(1), Some(2)], d32([1, 2, 3])), runs(&[1, 2, 3], d32([1, 2, 4])), "==U").await;
}

#[tokio::test]
async fn what_parquet_cannot_hold_is_refused_at_create() {
    use arrow_schema::IntervalUnit::{DayTime, MonthDayNano, YearMonth};
    let null_of = |t: &T| arrow::array::new_null_array(t, 1);
    for unit in [DayTime, MonthDayNano, YearMonth] {
        let t = T::Interval(unit);
        for (how, array) in [("plain", null_of(&t)), ("list", singles(null_of(&t))), ("struct", boxed(null_of(&t))), ("dictionary", dictionary(&[Some(0)], null_of(&t)))] {
            let rows = batch(&[("id", ids(1)), ("v", array)]);
            refused_at_create(&format!("{how} {t}"), &["id"], &rows, ErrorCode::TypeUnsupported, &["\"v\"", "Interval"]).await;
        }
    }
    let empty = T::Struct(arrow_schema::Fields::empty());
    let twice = T::Struct(vec![arrow_schema::Field::new("x", T::Int32, true), arrow_schema::Field::new("x", T::Int32, true)].into());
    let nothing = Arc::new(arrow_schema::Field::new("item", T::Int32, true));
    for t in [empty, twice, T::FixedSizeBinary(0), T::FixedSizeList(nothing, 0), T::Decimal128(10, -2), T::Decimal256(10, -2), T::Decimal32(5, -1), T::Decimal64(5, -1)] {
        for (how, array) in [("plain", null_of(&t)), ("list", singles(null_of(&t)))] {
            let rows = batch(&[("id", ids(1)), ("v", array)]);
            refused_at_create(&format!("{how} {t}"), &["id"], &rows, ErrorCode::TypeUnsupported, &["\"v\""]).await;
        }
    }
    let keyed = |key: ArrayRef| batch(&[("k", key), ("v", ids(1))]);
    let of_map = map(&[1], words(&["a"]), i32s(&[Some(1)]), &[true]);
    for key in [of_map.clone(), singles(of_map.clone()), boxed(of_map), null_of(&T::Interval(DayTime))] {
        refused_at_create("key", &["k"], &keyed(key), ErrorCode::TypeUnsupported, &["\"k\""]).await;
    }
}
