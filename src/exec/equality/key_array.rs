//! Stored keys of one column as an array again: to name them in a message, or to write them to disk.
//!
//! ```text
//! word 0x…ff ─► Int8 -1      word 0x…01 ─► Boolean true      bytes ─► Utf8, Binary, FixedSizeBinary
//! ```
//!
//! The inverse of reading a key, for the types that a key of one column stores as a word or as its own bytes; floats come
//! back in their canonical form. Memory: the array. Never used for keys of several columns.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, StringArray, make_array};
use arrow::buffer::Buffer;
use arrow_schema::DataType;

use crate::error::{Error, Result};

/// The values of `words` as an array of `data_type`, whose values have at most eight bytes.
pub(super) fn small_array(words: impl Iterator<Item = u64>, data_type: &DataType) -> Result<ArrayRef> {
    if data_type == &DataType::Boolean {
        return Ok(Arc::new(words.map(|word| Some(word != 0)).collect::<BooleanArray>()));
    }
    let width = data_type.primitive_width().filter(|width| *width <= size_of::<u64>()).ok_or_else(|| misfit(data_type))?;
    let mut bytes = Vec::new();
    for word in words {
        bytes.extend_from_slice(word.to_le_bytes().get(..width).unwrap_or_default());
    }
    let builder = arrow::array::ArrayData::builder(data_type.clone()).len(bytes.len() / width).add_buffer(Buffer::from(bytes.as_slice()));
    let data = builder.align_buffers(true).build().map_err(|error| misfit(data_type).with_source(error))?;
    Ok(make_array(data))
}

/// The values of `keys` as an array of `data_type`, which is text or binary.
pub(super) fn bytes_array<'a>(keys: impl Iterator<Item = &'a [u8]>, data_type: &DataType) -> Result<ArrayRef> {
    match data_type {
        DataType::Utf8 => {
            let text = |key: &'a [u8]| std::str::from_utf8(key).map_err(|error| misfit(data_type).with_source(error));
            Ok(Arc::new(StringArray::from_iter_values(keys.map(text).collect::<Result<Vec<_>>>()?)))
        }
        DataType::Binary => Ok(Arc::new(BinaryArray::from_iter_values(keys))),
        DataType::FixedSizeBinary(width) => {
            let array = FixedSizeBinaryArray::try_from_sparse_iter_with_size(keys.map(Some), *width);
            Ok(Arc::new(array.map_err(|error| misfit(data_type).with_source(error))?))
        }
        other => Err(misfit(other)),
    }
}

fn misfit(data_type: &DataType) -> Error {
    Error::internal(format!("stored keys are no values of type {data_type}"))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, Decimal64Array, Float32Array, Int8Array, TimestampMicrosecondArray};
    use arrow_schema::Field;

    use super::*;
    use crate::exec::equality::{ByteKeys, KeyReader, KeyStore, SmallKeys};

    fn round_trip<K: KeyStore>(array: ArrayRef) {
        let field = Field::new("id", array.data_type().clone(), true);
        let reader = KeyReader::try_new(&[field]).unwrap();
        let (mut store, keys) = (K::default(), reader.read(&[Arc::clone(&array)]).unwrap());
        store.extend(&keys, array.len());
        let back = store.array(&mut (0..array.len()), array.data_type()).unwrap();
        assert_eq!(back.as_ref(), array.as_ref());
    }

    #[test]
    fn what_was_read_comes_back() {
        round_trip::<SmallKeys>(Arc::new(Int8Array::from(vec![-128, -1, 0, 127])));
        round_trip::<SmallKeys>(Arc::new(BooleanArray::from(vec![true, false])));
        round_trip::<SmallKeys>(Arc::new(Float32Array::from(vec![1.5, -0.25])));
        round_trip::<SmallKeys>(Arc::new(TimestampMicrosecondArray::from(vec![-7, 1 << 60]).with_timezone("UTC")));
        round_trip::<SmallKeys>(Arc::new(Decimal64Array::from(vec![-7, 1 << 40]).with_precision_and_scale(15, 2).unwrap()));
        round_trip::<ByteKeys>(Arc::new(StringArray::from(vec!["", "ä", "a much longer text than others"])));
        round_trip::<ByteKeys>(Arc::new(BinaryArray::from_vec(vec![b"", b"\xff"])));
        round_trip::<ByteKeys>(Arc::new(FixedSizeBinaryArray::try_from_iter([b"ab", b"cd"].into_iter()).unwrap()));
    }
}
