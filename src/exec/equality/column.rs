//! One column of one batch, bound for canonical encoding: whatever its physical encoding, a value gives the same bytes.
//!
//! ```text
//! null            00
//! fixed width     01 little-endian bytes            floats: one NaN, -0.0 = 0.0; decimals: the unscaled integer
//! text, binary    01 length(8) bytes
//! list            01 count(8) element…
//! struct          01 field…                         in the order of the field names
//! map             01 count(8) (key value)…          sorted by the key's bytes; an equal key twice is refused
//! dictionary, REE, views                            the value that they stand for
//! ```
//!
//! Every value's encoding says where it ends, so concatenated columns never run into each other. Bytes under null slots
//! are never read. Binding clones buffer handles only (dictionaries and runs: one index per row).

use arrow::array::types::{Int16Type, Int32Type, Int64Type};
use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, FixedSizeBinaryArray, GenericBinaryArray, GenericListArray,
    GenericListViewArray, LargeBinaryArray, MapArray, OffsetSizeTrait, RunArray,
};
use arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowNativeType, RunEndIndexType, i256};
use arrow_schema::DataType;

use super::render::render_value;
use super::sink::Sink;
use crate::error::{Error, ErrorCode, Result};

/// A map that holds an equal key twice; the key as people read it.
#[derive(Debug)]
pub(crate) struct RepeatedMapKey(pub(crate) String);

/// A column bound to one array.
#[derive(Debug)]
pub(crate) struct Column {
    pub(super) nulls: Option<NullBuffer>,
    pub(super) values: Values,
}

#[derive(Debug)]
pub(super) enum Values {
    Bool(BooleanBuffer),
    W1(ScalarBuffer<u8>),
    W2(ScalarBuffer<u16>),
    W4(ScalarBuffer<u32>),
    W8(ScalarBuffer<u64>),
    W16(ScalarBuffer<i128>),
    W32(ScalarBuffer<i256>),
    F16(ScalarBuffer<u16>),
    F32(ScalarBuffer<f32>),
    F64(ScalarBuffer<f64>),
    Bytes(BinaryArray),
    LargeBytes(LargeBinaryArray),
    Views(BinaryViewArray),
    FixedBytes(FixedSizeBinaryArray),
    /// Dictionaries and runs: the index of each row's value.
    Indexed {
        indices: Vec<usize>,
        values: Box<Column>,
    },
    /// Lists of every kind: start and length of each row's elements.
    List {
        ranges: Vec<(usize, usize)>,
        items: Box<Column>,
    },
    /// The children in the order of their names.
    Struct(Vec<Column>),
    Map {
        ranges: Vec<(usize, usize)>,
        keys: Box<Column>,
        values: Box<Column>,
        /// The keys once more, to name one in a message.
        shown: ArrayRef,
    },
}

impl Column {
    /// Binds `array`; refuses the types that [`crate::spec::unsupported_type`] names.
    pub(crate) fn bind(array: &ArrayRef) -> Result<Self> {
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0).cloned();
        Ok(Self { nulls, values: Values::bind(array)? })
    }

    /// Whether row `row` is null, also through a dictionary or a run.
    pub(crate) fn is_null(&self, row: usize) -> bool {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return true;
        }
        match &self.values {
            Values::Indexed { indices, values } => indices.get(row).is_none_or(|i| values.is_null(*i)),
            _ => false,
        }
    }

    /// Whether no row can be null.
    pub(crate) fn has_no_nulls(&self) -> bool {
        self.nulls.is_none() && !matches!(&self.values, Values::Indexed { values, .. } if !values.has_no_nulls())
    }

    /// The bytes of a non-null text or binary value.
    pub(crate) fn bytes(&self, row: usize) -> Option<&[u8]> {
        match &self.values {
            Values::Bytes(a) => Some(a.value(row)),
            Values::LargeBytes(a) => Some(a.value(row)),
            Values::Views(a) => Some(a.value(row)),
            Values::FixedBytes(a) => Some(a.value(row)),
            Values::Indexed { indices, values } => values.bytes(*indices.get(row)?),
            _ => None,
        }
    }

    /// A non-null value of at most eight bytes as canonical bits: equal values, equal bits.
    pub(crate) fn small(&self, row: usize) -> Option<u64> {
        match &self.values {
            Values::Bool(v) => Some(u64::from(v.value(row))),
            Values::W1(v) => v.get(row).map(|v| u64::from(*v)),
            Values::W2(v) => v.get(row).map(|v| u64::from(*v)),
            Values::W4(v) => v.get(row).map(|v| u64::from(*v)),
            Values::W8(v) => v.get(row).copied(),
            Values::F16(v) => v.get(row).map(|v| u64::from(canonical_f16(*v))),
            Values::F32(v) => v.get(row).map(|v| u64::from(canonical_f32(*v))),
            Values::F64(v) => v.get(row).map(|v| canonical_f64(*v)),
            Values::Indexed { indices, values } => values.small(*indices.get(row)?),
            _ => None,
        }
    }

    /// Eight-byte values as they lie in memory, for columns whose bits are canonical already.
    pub(crate) fn words(&self) -> Option<&ScalarBuffer<u64>> {
        match &self.values {
            Values::W8(v) => Some(v),
            _ => None,
        }
    }

    /// Bytes of text and binary in row `row`, at every depth: what a copy of the value would hold.
    pub(crate) fn payload(&self, row: usize) -> u64 {
        if self.is_null(row) {
            return 0;
        }
        let sum = |column: &Column, (start, length): (usize, usize)| (start..start + length).map(|i| column.payload(i)).sum::<u64>();
        match &self.values {
            Values::Bytes(a) => a.value(row).len() as u64,
            Values::LargeBytes(a) => a.value(row).len() as u64,
            Values::Views(a) => a.value(row).len() as u64,
            Values::Indexed { indices, values } => indices.get(row).map_or(0, |i| values.payload(*i)),
            Values::List { ranges, items } if items.has_payload() => ranges.get(row).map_or(0, |r| sum(items, *r)),
            Values::Struct(children) => children.iter().map(|c| c.payload(row)).sum(),
            Values::Map { ranges, keys, values, .. } => ranges.get(row).map_or(0, |r| sum(keys, *r) + sum(values, *r)),
            _ => 0,
        }
    }

    /// Whether [`Self::payload`] can be anything but zero.
    pub(crate) fn has_payload(&self) -> bool {
        match &self.values {
            Values::Bytes(_) | Values::LargeBytes(_) | Values::Views(_) => true,
            Values::Indexed { values, .. } => values.has_payload(),
            Values::List { items, .. } => items.has_payload(),
            Values::Struct(children) => children.iter().any(Column::has_payload),
            Values::Map { keys, values, .. } => keys.has_payload() || values.has_payload(),
            _ => false,
        }
    }

    /// The most that the payloads of all rows can be, where that is known without looking at each.
    pub(super) fn most_payload(&self) -> Option<u64> {
        let between = |first: Option<u64>, last: Option<u64>| Some(last?.saturating_sub(first?));
        match &self.values {
            Values::Bytes(a) => between(a.value_offsets().first().map(|o| *o as u64), a.value_offsets().last().map(|o| *o as u64)),
            Values::LargeBytes(a) => between(a.value_offsets().first().map(|o| *o as u64), a.value_offsets().last().map(|o| *o as u64)),
            // The lower 32 bits of a view are its length.
            Values::Views(a) => Some(a.views().iter().map(|view| u64::from(*view as u32)).sum()),
            _ => None,
        }
    }

    /// Appends the canonical encoding of row `row`.
    #[inline]
    pub(crate) fn append<S: Sink>(&self, row: usize, out: &mut S) -> Result<(), RepeatedMapKey> {
        if self.is_null(row) {
            out.put(&[0]);
            return Ok(());
        }
        match &self.values {
            Values::Indexed { indices, values } => return indices.get(row).map_or(Ok(()), |i| values.append(*i, out)),
            Values::Bool(v) => fixed(out, &[u8::from(v.value(row))]),
            Values::W1(v) => fixed(out, &v.get(row).copied().unwrap_or_default().to_le_bytes()),
            Values::W2(v) => fixed(out, &v.get(row).copied().unwrap_or_default().to_le_bytes()),
            Values::W4(v) => fixed(out, &v.get(row).copied().unwrap_or_default().to_le_bytes()),
            Values::W8(v) => fixed(out, &v.get(row).copied().unwrap_or_default().to_le_bytes()),
            Values::W16(v) => fixed(out, &v.get(row).copied().unwrap_or_default().to_le_bytes()),
            Values::W32(v) => fixed(out, &v.get(row).copied().unwrap_or_default().to_le_bytes()),
            Values::F16(v) => fixed(out, &canonical_f16(v.get(row).copied().unwrap_or_default()).to_le_bytes()),
            Values::F32(v) => fixed(out, &canonical_f32(v.get(row).copied().unwrap_or_default()).to_le_bytes()),
            Values::F64(v) => fixed(out, &canonical_f64(v.get(row).copied().unwrap_or_default()).to_le_bytes()),
            Values::Bytes(a) => delimited(out, a.value(row)),
            Values::LargeBytes(a) => delimited(out, a.value(row)),
            Values::Views(a) => delimited(out, a.value(row)),
            Values::FixedBytes(a) => fixed(out, a.value(row)),
            Values::List { .. } | Values::Struct(_) | Values::Map { .. } => return self.append_nested(row, out),
        }
        Ok(())
    }

    fn append_nested<S: Sink>(&self, row: usize, out: &mut S) -> Result<(), RepeatedMapKey> {
        out.put(&[1]);
        match &self.values {
            Values::Struct(children) => children.iter().try_for_each(|child| child.append(row, out)),
            Values::List { ranges, items } => {
                let (start, length) = ranges.get(row).copied().unwrap_or_default();
                out.put(&(length as u64).to_le_bytes());
                (start..start + length).try_for_each(|i| items.append(i, out))
            }
            Values::Map { ranges, keys, values, shown } => append_entries(ranges.get(row).copied().unwrap_or_default(), keys, values, out)
                .map_err(|error| match error {
                    EntryError::Repeated(i) => RepeatedMapKey(render_value(shown, i)),
                    EntryError::Inside(error) => error,
                }),
            _ => Ok(()),
        }
    }
}

enum EntryError {
    /// The key at this position is there twice.
    Repeated(usize),
    /// A map inside the map is at fault.
    Inside(RepeatedMapKey),
}

impl From<RepeatedMapKey> for EntryError {
    fn from(error: RepeatedMapKey) -> Self {
        Self::Inside(error)
    }
}

fn append_entries<S: Sink>((start, length): (usize, usize), keys: &Column, values: &Column, out: &mut S) -> Result<(), EntryError> {
    let mut entries = Vec::with_capacity(length);
    for i in start..start + length {
        let mut key = Vec::new();
        keys.append(i, &mut key)?;
        entries.push((key, i));
    }
    entries.sort_unstable();
    let equal = |pair: &[(Vec<u8>, usize)]| match pair {
        [a, b] if a.0 == b.0 => Some(a.1),
        _ => None,
    };
    if let Some(i) = entries.windows(2).find_map(equal) {
        return Err(EntryError::Repeated(i));
    }
    out.put(&(length as u64).to_le_bytes());
    for (key, i) in entries {
        out.put(&key);
        values.append(i, out)?;
    }
    Ok(())
}

#[inline(always)]
fn fixed(out: &mut impl Sink, bytes: &[u8]) {
    out.put(&[1]);
    out.put(bytes);
}

#[inline(always)]
fn delimited(out: &mut impl Sink, bytes: &[u8]) {
    out.put(&[1]);
    out.put(&(bytes.len() as u64).to_le_bytes());
    out.put(bytes);
}

pub(super) fn canonical_f16(bits: u16) -> u16 {
    match bits {
        0x8000 => 0,
        _ if bits & 0x7c00 == 0x7c00 && bits & 0x03ff != 0 => 0x7e00,
        _ => bits,
    }
}

pub(super) fn canonical_f32(value: f32) -> u32 {
    if value.is_nan() { f32::NAN.to_bits() & 0x7fff_ffff } else { (value + 0.0).to_bits() }
}

pub(super) fn canonical_f64(value: f64) -> u64 {
    if value.is_nan() { f64::NAN.to_bits() & (u64::MAX >> 1) } else { (value + 0.0).to_bits() }
}

impl Values {
    fn bind(array: &ArrayRef) -> Result<Self> {
        use DataType as T;
        Ok(match array.data_type() {
            T::Boolean => Self::Bool(array.as_boolean().values().clone()),
            T::Int8 | T::UInt8 => Self::W1(typed(array)?),
            T::Int16 | T::UInt16 => Self::W2(typed(array)?),
            T::Int32 | T::UInt32 | T::Date32 | T::Time32(_) | T::Decimal32(..) => Self::W4(typed(array)?),
            T::Int64 | T::UInt64 | T::Date64 | T::Time64(_) | T::Timestamp(..) | T::Duration(_) | T::Decimal64(..) => {
                Self::W8(typed(array)?)
            }
            T::Decimal128(..) => Self::W16(typed(array)?),
            T::Decimal256(..) => Self::W32(typed(array)?),
            T::Float16 => Self::F16(typed(array)?),
            T::Float32 => Self::F32(typed(array)?),
            T::Float64 => Self::F64(typed(array)?),
            T::Utf8 => Self::Bytes(array.as_string::<i32>().clone().into()),
            T::Binary => Self::Bytes(array.as_binary::<i32>().clone()),
            T::LargeUtf8 => Self::LargeBytes(GenericBinaryArray::from(array.as_string::<i64>().clone())),
            T::LargeBinary => Self::LargeBytes(array.as_binary::<i64>().clone()),
            T::Utf8View => Self::Views(array.as_string_view().clone().to_binary_view()),
            T::BinaryView => Self::Views(array.as_binary_view().clone()),
            T::FixedSizeBinary(_) => Self::FixedBytes(array.as_fixed_size_binary().clone()),
            _ => return Self::bind_nested(array),
        })
    }

    fn bind_nested(array: &ArrayRef) -> Result<Self> {
        use DataType as T;
        match array.data_type() {
            T::Dictionary(..) => {
                let dictionary = array.as_any_dictionary();
                let indices = if dictionary.values().is_empty() { Vec::new() } else { dictionary.normalized_keys() };
                Ok(Self::Indexed { indices, values: Box::new(Column::bind(dictionary.values())?) })
            }
            T::RunEndEncoded(ends, _) => match ends.data_type() {
                T::Int16 => runs(array.as_run::<Int16Type>()),
                T::Int32 => runs(array.as_run::<Int32Type>()),
                _ => runs(array.as_run::<Int64Type>()),
            },
            T::List(_) => list(array.as_list::<i32>()),
            T::LargeList(_) => list(array.as_list::<i64>()),
            T::ListView(_) => list_view(array.as_list_view::<i32>()),
            T::LargeListView(_) => list_view(array.as_list_view::<i64>()),
            T::FixedSizeList(_, size) => {
                let (array, size) = (array.as_fixed_size_list(), usize::try_from(*size).unwrap_or_default());
                let ranges = (0..array.len()).map(|i| (array.value_offset(i).as_usize(), size)).collect();
                Ok(Self::List { ranges, items: Box::new(Column::bind(array.values())?) })
            }
            T::Struct(fields) => {
                let mut children: Vec<_> = fields.iter().map(|f| f.name()).zip(array.as_struct().columns()).collect();
                children.sort_by_key(|(name, _)| *name);
                Ok(Self::Struct(children.into_iter().map(|(_, child)| Column::bind(child)).collect::<Result<_>>()?))
            }
            T::Map(..) => map(array.as_map()),
            other => Err(Error::new(
                ErrorCode::TypeUnsupported,
                format!("values of type {other} have no canonical encoding. Remedy: cast the column to a type that Parquet can hold"),
            )),
        }
    }
}

/// The values of a fixed-width array as `T`, which has the same width and alignment.
fn typed<T: ArrowNativeType>(array: &ArrayRef) -> Result<ScalarBuffer<T>> {
    let data = array.to_data();
    let buffer = data.buffers().first().ok_or_else(|| Error::internal("a fixed-width array has no buffer"))?;
    Ok(ScalarBuffer::new(buffer.clone(), data.offset(), data.len()))
}

fn runs<R: RunEndIndexType>(array: &RunArray<R>) -> Result<Values> {
    let indices = (0..array.len()).map(|i| array.get_physical_index(i)).collect();
    Ok(Values::Indexed { indices, values: Box::new(Column::bind(array.values())?) })
}

fn list<O: OffsetSizeTrait>(array: &GenericListArray<O>) -> Result<Values> {
    Ok(Values::List { ranges: ranges(array.value_offsets()), items: Box::new(Column::bind(array.values())?) })
}

fn list_view<O: OffsetSizeTrait>(array: &GenericListViewArray<O>) -> Result<Values> {
    let ranges = array.value_offsets().iter().zip(array.value_sizes()).map(|(start, size)| (start.as_usize(), size.as_usize())).collect();
    Ok(Values::List { ranges, items: Box::new(Column::bind(array.values())?) })
}

fn map(array: &MapArray) -> Result<Values> {
    Ok(Values::Map {
        ranges: ranges(array.value_offsets()),
        keys: Box::new(Column::bind(array.keys())?),
        values: Box::new(Column::bind(array.values())?),
        shown: ArrayRef::clone(array.keys()),
    })
}

fn ranges<O: OffsetSizeTrait>(offsets: &[O]) -> Vec<(usize, usize)> {
    let range = |pair: &[O]| match pair {
        [start, end] => (start.as_usize(), end.as_usize().saturating_sub(start.as_usize())),
        _ => (0, 0),
    };
    offsets.windows(2).map(range).collect()
}
