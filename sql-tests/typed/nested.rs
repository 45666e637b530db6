//! Lists, structs and maps as values.

use arrow::array::{Array, ArrayRef};
use arrow_schema::DataType as T;
use datafusion_incremental::ErrorCode;

use super::arrays::*;
use super::{refused, value_case};

#[tokio::test]
async fn lists_null_empty_and_order() {
    let old = list(&[2, 0, 1, 2, 2, 1], i32s(&[Some(1), None, None, Some(1), Some(2), Some(1), None, Some(7)]), &[true; 6]);
    // The same first list behind a sliced child, with other bytes under its null.
    let child = i32s(&[Some(9), Some(1), None, Some(2), Some(1), Some(1), Some(7)]).slice(1, 6);
    let new = list(&[2, 0, 0, 2, 1, 1], child, &[true, false, true, true, true, true]);
    value_case("lists", old.clone(), new.clone(), "=UUUU=").await;
    value_case("sliced", sliced(&old), sliced(&new), "=UUUU=").await;
    value_case("inside a struct", boxed(old.clone()), boxed(new.clone()), "=UUUU=").await;
    value_case("inside a list", singles(old), singles(new), "=UUUU=").await;
}

#[tokio::test]
async fn list_encodings_are_one_type() {
    let values = || i32s(&[Some(1), None, Some(3)]);
    let plain = list(&[2, 0, 0, 1], values(), &[true, true, false, true]);
    let large = large_list(&[2, 0, 0, 1], values(), &[true, true, false, true]);
    let shuffled = i32s(&[Some(3), Some(8), Some(1), None, Some(3)]);
    let view = list_view(&[2, 5, 1, 4], &[2, 0, 3, 1], shuffled.clone(), &[true, true, false, true]);
    let large_view = large_list_view(&[2, 0, 0, 0], &[2, 0, 5, 1], shuffled, &[true, true, false, true]);
    let all = [plain, large, view, large_view];
    for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
        value_case(&format!("{} {}", a.data_type(), b.data_type()), a.clone(), sliced(b), "====").await;
        value_case(&format!("inside {} {}", a.data_type(), b.data_type()), boxed(a.clone()), boxed(b.clone()), "====").await;
    }
    let overlapping = list_view(&[0, 1, 0], &[2, 2, 3], values(), &[true; 3]);
    value_case("overlapping views", list(&[2, 2, 3], i32s(&[Some(1), None, None, Some(3), Some(1), None, Some(3)]), &[true; 3]), overlapping, "===").await;
}

#[tokio::test]
async fn garbage_in_null_rows_is_never_seen() {
    let of = |hidden: i32| list(&[1, 2, 1], i32s(&[Some(1), Some(hidden), Some(hidden), Some(3)]), &[true, false, true]);
    value_case("list", of(1), of(2), "===").await;
    value_case("list in list", singles(of(1)), singles(of(2)), "===").await;
    let of = |hidden: i32| fixed_list(2, i32s(&[Some(1), None, Some(hidden), Some(hidden), Some(5), Some(6)]), &[true, false, true]);
    value_case("fixed list", of(1), sliced(&of(2)), "===").await;
    value_case("fixed list in struct", boxed(of(1)), boxed(of(2)), "===").await;
    let of = |hidden: i32| strukt(&[("x", i32s(&[Some(1), Some(hidden), None])), ("y", words(&["a", &hidden.to_string(), "c"]))], &[true, false, true]);
    value_case("struct", of(1), of(2), "===").await;
    value_case("struct in struct", strukt(&[("o", of(1))], &[true, true, false]), strukt(&[("o", sliced(&of(2)))], &[true, true, false]), "===").await;
    let of = |hidden: &str| map(&[1, 2, 1], words(&["a", "b", hidden, "c"]), i32s(&[Some(1), Some(2), Some(3), None]), &[true, false, true]);
    value_case("map, with an equal key twice under a null", of("b"), of("x"), "===").await;
}

#[tokio::test]
async fn structs_by_name() {
    let (x, y) = (|| i32s(&[Some(1), None, None]), || texts(&[Some("a"), Some("b"), None]));
    let old = strukt(&[("x", x()), ("y", y())], &[true, true, true]);
    let swapped = strukt(&[("y", to(&y(), T::Utf8View)), ("x", x())], &[true, true, true]);
    value_case("order", old.clone(), swapped.clone(), "===").await;
    value_case("order in a list", singles(old.clone()), singles(swapped.clone()), "===").await;
    value_case("order in a map", map(&[1; 3], words(&["k"; 3]), old.clone(), &[true; 3]), map(&[1; 3], words(&["k"; 3]), swapped.clone(), &[true; 3]), "===").await;
    value_case("order in a fixed list", fixed_list(1, old.clone(), &[true; 3]), fixed_list(1, swapped, &[true; 3]), "===").await;
    value_case("null struct", old.clone(), strukt(&[("x", x()), ("y", y())], &[true, true, false]), "==U").await;
    let changed = strukt(&[("y", y()), ("x", i32s(&[Some(2), None, Some(0)]))], &[true, true, true]);
    value_case("order and a change", old, changed, "U=U").await;
    let same_types = |a: i32, b: i32| strukt(&[("a", i32s(&[Some(a)])), ("b", i32s(&[Some(b)]))], &[true]);
    let other_order = |b: i32, a: i32| strukt(&[("b", i32s(&[Some(b)])), ("a", i32s(&[Some(a)]))], &[true]);
    value_case("fields of one type", same_types(1, 2), other_order(2, 1), "=").await;
    value_case("fields of one type, swapped", same_types(1, 2), other_order(1, 2), "U").await;
}

#[tokio::test]
async fn struct_fields_are_the_type() {
    let rows = |v: ArrayRef| batch(&[("id", ids(1)), ("v", v)]);
    let x = || i32s(&[Some(1)]);
    let good = boxed(x());
    let bad: Vec<(&str, ArrayRef)> = vec![
        ("added", strukt(&[("x", x()), ("y", x())], &[true])),
        ("renamed", strukt(&[("X", x())], &[true])),
        ("retyped", boxed(to(&x(), T::Int64))),
        ("a plain value", x()),
    ];
    for (label, changed) in bad {
        for nest in [(|a| a) as fn(ArrayRef) -> ArrayRef, singles, |a| map(&[1], words(&["k"]), a, &[true]), |a| fixed_list(1, a, &[true]), boxed] {
            refused(label, &["id"], &rows(nest(good.clone())), &rows(nest(changed.clone())), ErrorCode::SchemaChanged, &["\"v\""]).await;
            refused(label, &["id"], &rows(nest(changed.clone())), &rows(nest(good.clone())), ErrorCode::SchemaChanged, &["\"v\""]).await;
        }
    }
}

#[tokio::test]
async fn maps_are_sets_of_entries() {
    let of = |keys: &[&str], values: &[Option<i32>]| map(&[keys.len()], words(keys), i32s(values), &[true]);
    let old = of(&["a", "b", "c"], &[Some(1), Some(2), None]);
    value_case("order", old.clone(), of(&["c", "a", "b"], &[None, Some(1), Some(2)]), "=").await;
    value_case("value", old.clone(), of(&["a", "b", "c"], &[Some(1), Some(3), None]), "U").await;
    value_case("null value", old.clone(), of(&["a", "b", "c"], &[Some(1), Some(2), Some(0)]), "U").await;
    value_case("entry gone", old.clone(), of(&["a", "b"], &[Some(1), Some(2)]), "U").await;
    value_case("values swapped", of(&["a", "b"], &[Some(1), Some(2)]), of(&["a", "b"], &[Some(2), Some(1)]), "U").await;
    value_case("letters between key and value", map(&[1], words(&["ab"]), words(&["c"]), &[true]), map(&[1], words(&["a"]), words(&["bc"]), &[true]), "U").await;
    value_case("in a list", singles(old.clone()), singles(of(&["b", "a", "c"], &[Some(2), Some(1), None])), "=").await;
    let names = named_map(["key_value", "keys", "values"], &[3], to(&words(&["a", "b", "c"]), T::LargeUtf8), i32s(&[Some(1), Some(2), None]), &[true]);
    value_case("names of the parts, encoding of the keys", old.clone(), names, "=").await;
    let coded = map(&[3], dictionary(&[Some(1), Some(0), Some(2)], words(&["b", "a", "c"])), i32s(&[Some(1), Some(2), None]), &[true]);
    value_case("coded keys", old, coded, "=").await;
    let deep = |x: &[&str], y: &[i32]| {
        let inner = map(&[2], words(x), i32s(&y.iter().copied().map(Some).collect::<Vec<_>>()), &[true]);
        map(&[1], words(&["k"]), boxed(inner), &[true])
    };
    value_case("order of an inner map", deep(&["a", "b"], &[1, 2]), deep(&["b", "a"], &[2, 1]), "=").await;
}

#[tokio::test]
async fn repeated_map_keys_are_refused_and_named() {
    let rows = |v: ArrayRef| batch(&[("id", i64s(&[77])), ("v", v)]);
    let v = |n: usize| i32s(&vec![Some(1); n]);
    let cases: Vec<(&str, ArrayRef, ArrayRef, &str)> = vec![
        ("text", words(&["a", "b"]), words(&["a", "a"]), "\"a\""),
        ("number", i64s(&[1, 2]), i64s(&[42, 42]), "42"),
        ("zeros", f64s(&[1.0, 2.0]), f64s(&[0.0, -0.0]), "0.0"),
        ("nans", f64s(&[1.0, 2.0]), f64s(&[f64::NAN, -f64::NAN]), "NaN"),
        ("binary", bytes(&[Some(b"a"), Some(b"b")]), bytes(&[Some(b"\xff"), Some(b"\xff")]), "ff"),
        ("codes", dictionary(&[Some(0), Some(1)], words(&["a", "b"])), dictionary(&[Some(0), Some(1)], words(&["q", "q"])), "\"q\""),
        ("structs", boxed(i64s(&[1, 2])), boxed(i64s(&[5, 5])), "5"),
    ];
    for (label, good, bad, key) in cases {
        for nest in [(|a| a) as fn(ArrayRef) -> ArrayRef, singles, boxed] {
            let of = |keys: &ArrayRef| rows(nest(map(&[keys.len()], keys.clone(), v(keys.len()), &[true])));
            refused(label, &["id"], &of(&good), &of(&bad), ErrorCode::CaptureFailed, &["\"v\"", "id=77", key]).await;
        }
    }
}
