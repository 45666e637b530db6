use std::sync::Arc;

use arrow::array::types::{Float64Type, Int32Type};
use arrow::array::{
    Array, ArrayRef, AsArray, DictionaryArray, Float64Array, Int32Array, Int32Builder, Int64Array, LargeListArray, LargeStringArray,
    ListArray, ListViewArray, MapArray, MapBuilder, RunArray, StringArray, StringBuilder, StringViewArray, StructArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::cast;
use arrow_schema::{DataType, Field};

use super::*;
use crate::error::ErrorCode;
use crate::spec::{FingerprintKind, normalize_type};

fn field(array: &ArrayRef) -> Field {
    Field::new("v", normalize_type(array.data_type()), true)
}

fn encode(array: &ArrayRef) -> Vec<Vec<u8>> {
    let rows = CanonicalEncoder::try_new(&[field(array)]).unwrap().encode(&[Arc::clone(array)]).unwrap();
    (0..rows.len()).map(|row| rows.row(row).to_vec()).collect()
}

fn item() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Int32, true))
}

#[test]
fn floats_are_canonical_at_every_depth() {
    let other_nan = f64::from_bits(f64::NAN.to_bits() ^ 1 | 1 << 63);
    let of = |values: Vec<f64>| {
        let flat: ArrayRef = Arc::new(Float64Array::from(values.clone()));
        let in_struct: ArrayRef =
            Arc::new(StructArray::from(vec![(Arc::new(Field::new("x", DataType::Float64, true)), Arc::clone(&flat))]));
        let in_list: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(values.iter().map(|v| Some(vec![Some(*v)]))));
        let in_dictionary = cast(&flat, &DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Float64)));
        // Arrow casts no floats to dictionaries in every version: build the dictionary by hand.
        let keys = Int32Array::from_iter_values(0..values.len() as i32);
        let in_dictionary = in_dictionary.unwrap_or_else(|_| Arc::new(DictionaryArray::new(keys, Arc::clone(&flat))));
        [flat, in_struct, in_list, in_dictionary]
    };
    let (one, two) = (of(vec![f64::NAN, 0.0, 0.1 + 0.2]), of(vec![other_nan, -0.0, 0.3]));
    for (a, b) in one.iter().zip(&two) {
        let (a, b) = (encode(a), encode(b));
        assert_eq!((a[0] == b[0], a[1] == b[1], a[2] == b[2]), (true, true, false));
    }
    let half: ArrayRef = cast(&one[0], &DataType::Float16).unwrap();
    let other: ArrayRef = cast(&two[0], &DataType::Float16).unwrap();
    assert_eq!(encode(&half)[..2], encode(&other)[..2]);
}

#[test]
fn encodings_do_not_matter() {
    let values = vec![Some("a"), None, Some(""), Some("a text that is too long for a view"), Some("a")];
    let plain: ArrayRef = Arc::new(StringArray::from(values.clone()));
    let dictionary: DictionaryArray<Int32Type> = values.iter().copied().collect();
    let permuted = DictionaryArray::new(
        Int32Array::from(vec![Some(2), Some(3), Some(0), Some(1), Some(2)]),
        Arc::new(StringArray::from(vec![Some(""), Some("a text that is too long for a view"), Some("a"), None])),
    );
    let runs: RunArray<Int32Type> = values.iter().copied().collect();
    let padded: RunArray<Int32Type> = [Some("x"), Some("a")].into_iter().chain(values[1..].iter().copied()).collect();
    let others: Vec<ArrayRef> = vec![
        Arc::new(LargeStringArray::from(values.clone())),
        Arc::new(StringViewArray::from(values)),
        Arc::new(dictionary),
        Arc::new(permuted),
        Arc::new(runs),
        Arc::new(padded.slice(1, 5)),
    ];
    for other in others {
        assert_eq!(encode(&plain), encode(&other), "{}", other.data_type());
        assert_eq!(normalize_array(&other, &DataType::Utf8).unwrap().as_string::<i32>(), plain.as_string::<i32>(), "{}", other.data_type());
    }
    assert_ne!(encode(&plain)[1], encode(&plain)[2], "null is not the empty text");
}

#[test]
fn lists_keep_order_nulls_and_length_and_ignore_hidden_bytes() {
    let list = |rows: Vec<Option<Vec<Option<i32>>>>| Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows)) as ArrayRef;
    let one = encode(&list(vec![
        Some(vec![Some(1), None]),
        Some(vec![]),
        Some(vec![None]),
        Some(vec![Some(1), Some(2)]),
        Some(vec![Some(1), None]),
    ]));
    // Another value under the null slot, and a child array that is cut out of a longer one.
    let child = Int32Array::new(
        ScalarBuffer::from(vec![9, 9, 1, 77, 2, 1, 1]),
        Some(NullBuffer::from(vec![true, true, true, false, true, true, true])),
    );
    let offsets = OffsetBuffer::new(ScalarBuffer::from(vec![2, 4, 4, 4, 6, 7]));
    let two: ArrayRef =
        Arc::new(ListArray::new(item(), offsets, Arc::new(child), Some(NullBuffer::from(vec![true, false, true, true, true]))));
    let two_rows = encode(&two);
    let same: Vec<bool> = one.iter().zip(&two_rows).map(|(a, b)| a == b).collect();
    assert_eq!(same, [true, false, false, false, false]);
    let distinct: std::collections::HashSet<_> = one.iter().take(4).chain(&two_rows[1..]).collect();
    assert_eq!(distinct.len(), 7, "[] differs from NULL and from [NULL]");
}

#[test]
fn list_encodings_do_not_matter() {
    let rows = vec![Some(vec![Some(1), None]), None, Some(vec![]), Some(vec![Some(3)])];
    let list: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows.clone()));
    let large: ArrayRef = Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>(rows));
    let view: ArrayRef = Arc::new(ListViewArray::new(
        item(),
        ScalarBuffer::from(vec![1, 0, 3, 0]),
        ScalarBuffer::from(vec![2, 3, 0, 1]),
        Arc::new(Int32Array::from(vec![Some(3), Some(1), None])),
        Some(NullBuffer::from(vec![true, false, true, true])),
    ));
    for other in [large.slice(0, 4), view] {
        assert_eq!(encode(&list), encode(&other));
        assert_eq!(normalize_array(&other, list.data_type()).unwrap().as_ref(), list.as_ref());
        assert_eq!(normalize_array(&other.slice(2, 2), list.data_type()).unwrap().as_ref(), list.slice(2, 2).as_ref());
    }
}

#[test]
fn structs_match_by_name_and_a_null_struct_is_not_a_struct_of_nulls() {
    let column = |name: &str, values: Vec<Option<i32>>| {
        (Arc::new(Field::new(name, DataType::Int32, true)), Arc::new(Int32Array::from(values)) as ArrayRef)
    };
    let nulls = NullBuffer::from(vec![true, false, true]);
    let (x, y) = (column("x", vec![Some(1), Some(8), None]), column("y", vec![Some(2), Some(9), None]));
    let of = |fields: [&(Arc<Field>, ArrayRef); 2]| {
        let (fields, columns): (Vec<_>, Vec<_>) = fields.into_iter().cloned().unzip();
        Arc::new(StructArray::new(fields.into(), columns, Some(nulls.clone()))) as ArrayRef
    };
    let (xy, yx) = (of([&x, &y]), of([&y, &x]));
    assert_eq!(encode(&xy), encode(&yx));
    assert_ne!(encode(&xy)[1], encode(&xy)[2]);
    assert_eq!(normalize_array(&yx, xy.data_type()).unwrap().as_ref(), xy.as_ref());
}

fn map(rows: &[&[(&str, i32)]]) -> MapArray {
    let mut builder = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    for row in rows {
        for (key, value) in *row {
            builder.keys().append_value(key);
            builder.values().append_value(*value);
        }
        builder.append(true).unwrap();
    }
    builder.finish()
}

#[test]
fn maps_are_sets_of_entries() {
    let one: ArrayRef = Arc::new(map(&[&[("a", 1), ("b", 2)]]));
    let two: ArrayRef = Arc::new(map(&[&[("b", 2), ("a", 1)]]));
    let three: ArrayRef = Arc::new(map(&[&[("b", 3), ("a", 1)]]));
    assert_eq!(encode(&one), encode(&two));
    assert_ne!(encode(&one), encode(&three));
    let target = normalize_type(one.data_type());
    assert_eq!(encode(&normalize_array(&two, &target).unwrap()), encode(&one));
    let twice: ArrayRef = Arc::new(map(&[&[("c", 1)], &[("a", 1), ("a", 2)]]));
    let error = CanonicalEncoder::try_new(&[field(&twice)]).unwrap().encode(&[twice]).unwrap_err();
    assert_eq!(error.code(), ErrorCode::CaptureFailed);
    assert!(error.message().contains("\"v\"") && error.message().contains("row 1"), "{error}");
}

#[test]
fn columns_never_run_into_each_other() {
    let rows = [("12-", "3"), ("12", "-3"), ("", "xy"), ("x", "y"), ("xy", ""), ("\0", ""), ("", "\0"), ("\0\u{1}", "")];
    let (a, b): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
    let columns: [ArrayRef; 2] = [Arc::new(StringArray::from(a)), Arc::new(StringArray::from(b))];
    let fields = [Field::new("a", DataType::Utf8, true), Field::new("b", DataType::Utf8, true)];
    let encoded = CanonicalEncoder::try_new(&fields).unwrap().encode(&columns).unwrap();
    let distinct: std::collections::HashSet<_> = (0..encoded.len()).map(|row| encoded.row(row)).collect();
    assert_eq!(distinct.len(), rows.len());
}

#[test]
fn a_fingerprint_depends_on_secret_and_place_but_not_on_column_order() {
    let fields = [Field::new("q", DataType::Utf8, true), Field::new("p", DataType::Utf8, true)];
    let turned = [fields[1].clone(), fields[0].clone()];
    let q: ArrayRef = Arc::new(StringArray::from(vec![Some("x"), None]));
    let p: ArrayRef = Arc::new(StringArray::from(vec![None, Some("x")]));
    for kind in [FingerprintKind::Xxh3, FingerprintKind::Blake3] {
        let run = |fields: &[Field], secret: u8, columns: &[ArrayRef]| {
            let mut out = Vec::new();
            Fingerprinter::try_new(kind, &[secret; 32], fields).unwrap().fingerprint(columns, &mut out).unwrap();
            out
        };
        let one = run(&fields, 1, &[Arc::clone(&q), Arc::clone(&p)]);
        assert_ne!(one[0], one[1], "a value that moves between columns is a change");
        assert_eq!(one, run(&turned, 1, &[Arc::clone(&p), Arc::clone(&q)]));
        assert_ne!(one, run(&fields, 2, &[Arc::clone(&q), Arc::clone(&p)]));
    }
    assert!(!format!("{:?}", Fingerprinter::try_new(FingerprintKind::Blake3, &[7; 32], &fields).unwrap()).contains("7, 7"));
}

/// The stored encoding must not drift: a change here makes every stored fingerprint worthless.
#[test]
fn the_encoding_is_pinned() {
    let columns: [ArrayRef; 3] =
        [Arc::new(Int64Array::from(vec![Some(-2)])), Arc::new(StringArray::from(vec![Some("ab")])), Arc::new(Int32Array::from(vec![None]))];
    let fields = [Field::new("a", DataType::Int64, true), Field::new("b", DataType::Utf8, true), Field::new("c", DataType::Int32, true)];
    let encoded = CanonicalEncoder::try_new(&fields).unwrap().encode(&columns).unwrap();
    assert_eq!(encoded.row(0), [1, 254, 255, 255, 255, 255, 255, 255, 255, 1, 2, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', 0]);
    let mut out = Vec::new();
    Fingerprinter::try_new(FingerprintKind::Xxh3, &[1; 32], &fields).unwrap().fingerprint(&columns, &mut out).unwrap();
    Fingerprinter::try_new(FingerprintKind::Blake3, &[1; 32], &fields).unwrap().fingerprint(&columns, &mut out).unwrap();
    assert_eq!(
        out.iter().map(|f| format!("{f:032x}")).collect::<Vec<_>>(),
        ["fc3fddc37f5ca0a4447d72e7e488b90b", "579e150c433254038d689ca9549bf480"]
    );
}

#[test]
fn a_key_set_is_exact_under_a_constant_hash() {
    for fields in
        [vec![Field::new("k", DataType::Utf8, true)], vec![Field::new("k", DataType::Utf8, true), Field::new("k2", DataType::Utf8, true)]]
    {
        let mut set = KeySet::try_new(&fields, KeyHash::Constant, 0).unwrap();
        let column: ArrayRef = Arc::new(StringViewArray::from(vec!["a", "A", "a ", "e\u{301}", "\u{e9}", "ß", "SS", "a"]));
        let columns = vec![column; fields.len()];
        let inserted = set.insert(&columns).unwrap();
        assert_eq!((set.len(), inserted[7]), (7, (0, false)));
        let absent: ArrayRef = Arc::new(StringArray::from(vec!["b"]));
        assert_eq!(set.find(&vec![absent; fields.len()]).unwrap(), [None]);
    }
}

#[test]
fn keys_of_types_without_an_order_are_refused() {
    let field = Field::new("k", map(&[]).data_type().clone(), true);
    assert_eq!(KeySet::try_new(&[field], KeyHash::Xxh3, 0).unwrap_err().code(), ErrorCode::TypeUnsupported);
}

#[test]
fn batches_are_cut_before_arrays_overflow() {
    let column: ArrayRef = Arc::new(StringViewArray::from(vec!["aaaa", "bb", "cccc", "d"]));
    assert_eq!(pieces(&[Arc::clone(&column)], 4, 6).unwrap(), [Piece::Rows(0..2), Piece::Rows(2..4)]);
    assert_eq!(pieces(&[column], 4, 3).unwrap(), [Piece::TooLarge(0, 0)]);
}

#[test]
fn blocks_of_rows_have_the_bytes_of_single_rows() {
    let rows = 700_usize;
    let some = |i: usize| !i.is_multiple_of(7);
    let text = |i: usize| "ä".repeat(i % 40);
    let columns: Vec<ArrayRef> = vec![
        Arc::new((0..rows).map(|i| some(i).then(|| text(i))).collect::<StringArray>()),
        Arc::new((0..rows).map(|i| some(i).then(|| text(i))).collect::<arrow::array::StringViewArray>()),
        Arc::new((0..rows).map(|i| Some(text(i))).collect::<arrow::array::LargeStringArray>()),
        Arc::new((0..rows).map(|i| some(i).then_some(i as i64)).collect::<Int64Array>()),
        Arc::new((0..rows).map(|i| some(i).then_some(i as i8)).collect::<arrow::array::Int8Array>()),
        Arc::new((0..rows).map(|i| some(i).then_some(i % 2 == 0)).collect::<arrow::array::BooleanArray>()),
        Arc::new((0..rows).map(|i| some(i).then_some(-(i as f64) * 0.0)).collect::<Float64Array>()),
        Arc::new((0..rows).map(|i| some(i).then_some(i as i128)).collect::<arrow::array::Decimal128Array>()),
    ];
    let fields: Vec<Field> = columns.iter().enumerate().map(|(i, c)| Field::new(format!("c{i}"), c.data_type().clone(), true)).collect();
    let secret = [7; 32];
    for cut in [0, 3] {
        let columns: Vec<ArrayRef> = columns.iter().map(|c| c.slice(cut, rows - cut)).collect();
        let fingerprinter = Fingerprinter::try_new(FingerprintKind::Xxh3, &secret, &fields).unwrap();
        let mut whole = Vec::new();
        fingerprinter.fingerprint(&columns, &mut whole).unwrap();
        // A dictionary is read row by row, and stands for the same values.
        let mut single = columns.clone();
        single[0] = arrow::compute::cast(&single[0], &DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))).unwrap();
        let mut row_by_row = Vec::new();
        fingerprinter.fingerprint(&single, &mut row_by_row).unwrap();
        assert_eq!(whole, row_by_row);
    }
}
