//! Short ways to write arrays.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, DictionaryArray, FixedSizeBinaryArray, FixedSizeListArray,
    Float16Array, Float32Array, Float64Array, Int32Array, Int64Array, LargeListArray, LargeListViewArray, ListArray, ListViewArray, MapArray,
    RecordBatch, RunArray, StringArray, StructArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::cast;
use arrow::datatypes::{Float16Type, Int32Type};
use arrow_schema::{DataType, Field, Fields, Schema};

pub type F16 = <Float16Type as ArrowPrimitiveType>::Native;

pub fn batch(columns: &[(&str, ArrayRef)]) -> RecordBatch {
    let fields: Vec<Field> = columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.iter().map(|(_, array)| array.clone()).collect()).unwrap()
}

pub fn ids(rows: usize) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values((1..).take(rows)))
}

pub fn i64s(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

pub fn i32s(values: &[Option<i32>]) -> ArrayRef {
    Arc::new(Int32Array::from(values.to_vec()))
}

pub fn bools(values: &[Option<bool>]) -> ArrayRef {
    Arc::new(BooleanArray::from(values.to_vec()))
}

pub fn texts(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

pub fn words(values: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

pub fn bytes(values: &[Option<&[u8]>]) -> ArrayRef {
    Arc::new(BinaryArray::from(values.to_vec()))
}

pub fn fixed(values: &[Option<&[u8]>], width: i32) -> ArrayRef {
    Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(values.iter().copied(), width).unwrap())
}

pub fn f64s(values: &[f64]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

pub fn f32s(values: &[f32]) -> ArrayRef {
    Arc::new(Float32Array::from(values.to_vec()))
}

pub fn f16s(bits: &[u16]) -> ArrayRef {
    Arc::new(Float16Array::from(bits.iter().map(|b| F16::from_bits(*b)).collect::<Vec<_>>()))
}

pub fn to(array: &ArrayRef, data_type: DataType) -> ArrayRef {
    cast(array, &data_type).unwrap()
}

fn item(values: &ArrayRef) -> Arc<Field> {
    Arc::new(Field::new("item", values.data_type().clone(), true))
}

pub fn list(lengths: &[usize], values: ArrayRef, valid: &[bool]) -> ArrayRef {
    let offsets = OffsetBuffer::from_lengths(lengths.iter().copied());
    Arc::new(ListArray::new(item(&values), offsets, values, Some(NullBuffer::from(valid.to_vec()))))
}

/// Lists of one element each.
pub fn singles(values: ArrayRef) -> ArrayRef {
    let rows = values.len();
    list(&vec![1; rows], values, &vec![true; rows])
}

pub fn large_list(lengths: &[usize], values: ArrayRef, valid: &[bool]) -> ArrayRef {
    let offsets = OffsetBuffer::from_lengths(lengths.iter().copied());
    Arc::new(LargeListArray::new(item(&values), offsets, values, Some(NullBuffer::from(valid.to_vec()))))
}

pub fn list_view(starts: &[i32], sizes: &[i32], values: ArrayRef, valid: &[bool]) -> ArrayRef {
    let (starts, sizes) = (ScalarBuffer::from(starts.to_vec()), ScalarBuffer::from(sizes.to_vec()));
    Arc::new(ListViewArray::new(item(&values), starts, sizes, values, Some(NullBuffer::from(valid.to_vec()))))
}

pub fn large_list_view(starts: &[i64], sizes: &[i64], values: ArrayRef, valid: &[bool]) -> ArrayRef {
    let (starts, sizes) = (ScalarBuffer::from(starts.to_vec()), ScalarBuffer::from(sizes.to_vec()));
    Arc::new(LargeListViewArray::new(item(&values), starts, sizes, values, Some(NullBuffer::from(valid.to_vec()))))
}

pub fn fixed_list(size: i32, values: ArrayRef, valid: &[bool]) -> ArrayRef {
    Arc::new(FixedSizeListArray::new(item(&values), size, values, Some(NullBuffer::from(valid.to_vec()))))
}

pub fn strukt(children: &[(&str, ArrayRef)], valid: &[bool]) -> ArrayRef {
    let fields: Fields = children.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
    Arc::new(StructArray::new(fields, children.iter().map(|(_, a)| a.clone()).collect(), Some(NullBuffer::from(valid.to_vec()))))
}

/// Structs with one field `x`, none null.
pub fn boxed(values: ArrayRef) -> ArrayRef {
    let rows = values.len();
    strukt(&[("x", values)], &vec![true; rows])
}

pub fn map(lengths: &[usize], keys: ArrayRef, values: ArrayRef, valid: &[bool]) -> ArrayRef {
    named_map(["entries", "key", "value"], lengths, keys, values, valid)
}

pub fn named_map(names: [&str; 3], lengths: &[usize], keys: ArrayRef, values: ArrayRef, valid: &[bool]) -> ArrayRef {
    let fields: Fields = vec![
        Field::new(names[1], keys.data_type().clone(), false),
        Field::new(names[2], values.data_type().clone(), true),
    ]
    .into();
    let entries = StructArray::new(fields.clone(), vec![keys, values], None);
    let field = Arc::new(Field::new(names[0], DataType::Struct(fields), false));
    let offsets = OffsetBuffer::from_lengths(lengths.iter().copied());
    Arc::new(MapArray::new(field, offsets, entries, Some(NullBuffer::from(valid.to_vec())), false))
}

pub fn dictionary(keys: &[Option<i32>], values: ArrayRef) -> ArrayRef {
    Arc::new(DictionaryArray::<Int32Type>::new(Int32Array::from(keys.to_vec()), values))
}

pub fn runs(ends: &[i32], values: ArrayRef) -> ArrayRef {
    Arc::new(RunArray::<Int32Type>::try_new(&Int32Array::from(ends.to_vec()), values.as_ref()).unwrap())
}

/// The same array as a slice of a longer one, so that offsets are not zero.
pub fn sliced(array: &ArrayRef) -> ArrayRef {
    let longer = arrow::compute::concat(&[array.as_ref(), array.as_ref(), array.as_ref()]).unwrap();
    longer.slice(array.len(), array.len())
}
