//! Arrays in their logical type's own encoding: views, dictionaries, runs and large offsets folded away, at every depth.
//!
//! Values never change and nothing is coerced: between different logical types the cast is refused.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::types::{Int16Type, Int32Type, Int64Type};
use arrow::array::{Array, ArrayRef, AsArray, ListArray, MapArray, OffsetSizeTrait, StructArray, UInt64Array};
use arrow::array::{FixedSizeListArray, RunArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{CastOptions, cast_with_options, take};
use arrow::datatypes::{ArrowNativeType, RunEndIndexType};
use arrow_schema::{DataType, FieldRef, Fields};

use super::column::Column;
use crate::error::{Error, ErrorCode, Result};
use crate::spec::{normalize_type, same_type};

/// `array` as `target`, a type of [`normalize_type`]'s form that differs in encodings (and the order of struct fields) only.
/// The text and binary bytes of one array must stay below 2 GiB.
pub fn normalize_array(array: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    if array.data_type() == target {
        return Ok(Arc::clone(array));
    }
    if !same_type(array.data_type(), target) {
        return Err(Error::internal(format!("{} is not an encoding of {target}", array.data_type())));
    }
    convert(array, target)
}

fn convert(array: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    use DataType as T;
    if array.data_type() == target {
        return Ok(Arc::clone(array));
    }
    match (array.data_type(), target) {
        (T::Dictionary(..), _) => {
            let dictionary = array.as_any_dictionary();
            convert(&take(dictionary.values(), dictionary.keys(), None).map_err(failed)?, target)
        }
        (T::RunEndEncoded(ends, _), _) => {
            let values = match ends.data_type() {
                T::Int16 => expand(array.as_run::<Int16Type>())?,
                T::Int32 => expand(array.as_run::<Int32Type>())?,
                _ => expand(array.as_run::<Int64Type>())?,
            };
            convert(&values, target)
        }
        (T::Struct(from), T::Struct(to)) => structs(array, from, to),
        (T::List(_), T::List(item)) => {
            let list = array.as_list::<i32>();
            lists(item, list.offsets().clone(), list.values(), list.nulls())
        }
        (T::LargeList(_), T::List(item)) => {
            let list = array.as_list::<i64>();
            let offsets = list.value_offsets();
            let first = offsets.first().copied().unwrap_or_default();
            let lengths: Vec<usize> = offsets.windows(2).map(length).collect();
            let values = list.values().slice(first.as_usize(), lengths.iter().sum());
            lists(item, offsets_of(&lengths)?, &values, list.nulls())
        }
        (T::ListView(_), T::List(item)) => {
            let list = array.as_list_view::<i32>();
            list_views(item, list.value_offsets(), list.value_sizes(), list.values(), list.nulls())
        }
        (T::LargeListView(_), T::List(item)) => {
            let list = array.as_list_view::<i64>();
            list_views(item, list.value_offsets(), list.value_sizes(), list.values(), list.nulls())
        }
        (T::FixedSizeList(..), T::FixedSizeList(item, size)) => {
            let list = array.as_fixed_size_list();
            let values = convert(list.values(), item.data_type())?;
            let built = FixedSizeListArray::try_new_with_length(Arc::clone(item), *size, values, list.nulls().cloned(), list.len());
            Ok(Arc::new(built.map_err(failed)?))
        }
        (T::Map(..), T::Map(entries, sorted)) => maps(array.as_map(), entries, *sorted),
        _ => {
            let exact = CastOptions { safe: false, ..CastOptions::default() };
            cast_with_options(array, target, &exact).map_err(failed)
        }
    }
}

fn length<O: OffsetSizeTrait>(pair: &[O]) -> usize {
    match pair {
        [start, end] => end.as_usize().saturating_sub(start.as_usize()),
        _ => 0,
    }
}

fn expand<R: RunEndIndexType>(array: &RunArray<R>) -> Result<ArrayRef> {
    let indices: UInt64Array = (0..array.len()).map(|i| array.get_physical_index(i) as u64).collect();
    take(array.values(), &indices, None).map_err(failed)
}

fn structs(array: &ArrayRef, from: &Fields, to: &Fields) -> Result<ArrayRef> {
    let source = array.as_struct();
    let child = |field: &FieldRef| {
        let (at, _) = from.find(field.name()).ok_or_else(|| Error::internal(format!("struct field {:?} is missing", field.name())))?;
        convert(source.column(at), field.data_type())
    };
    let columns = to.iter().map(child).collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(StructArray::try_new_with_length(to.clone(), columns, source.nulls().cloned(), source.len()).map_err(failed)?))
}

fn lists(item: &FieldRef, offsets: OffsetBuffer<i32>, values: &ArrayRef, nulls: Option<&NullBuffer>) -> Result<ArrayRef> {
    let values = convert(values, item.data_type())?;
    Ok(Arc::new(ListArray::try_new(Arc::clone(item), offsets, values, nulls.cloned()).map_err(failed)?))
}

fn list_views<O: OffsetSizeTrait>(
    item: &FieldRef,
    starts: &[O],
    sizes: &[O],
    values: &ArrayRef,
    nulls: Option<&NullBuffer>,
) -> Result<ArrayRef> {
    let is_valid = |row: usize| nulls.is_none_or(|nulls| nulls.is_valid(row));
    let rows = || {
        starts
            .iter()
            .zip(sizes)
            .enumerate()
            .map(|(row, (start, size))| if is_valid(row) { (start.as_usize(), size.as_usize()) } else { (0, 0) })
    };
    let indices: UInt64Array = rows().flat_map(|(start, size)| start as u64..(start + size) as u64).collect();
    let lengths: Vec<usize> = rows().map(|(_, size)| size).collect();
    lists(item, offsets_of(&lengths)?, &take(values, &indices, None).map_err(failed)?, nulls)
}

fn offsets_of(lengths: &[usize]) -> Result<OffsetBuffer<i32>> {
    if lengths.iter().sum::<usize>() > i32::MAX as usize {
        return Err(Error::new(
            ErrorCode::ValueTooLarge,
            "the lists of one batch hold more than 2,147,483,647 elements. Remedy: split the lists, or read the source in smaller batches",
        ));
    }
    Ok(OffsetBuffer::from_lengths(lengths.iter().copied()))
}

fn maps(map: &MapArray, entries: &FieldRef, sorted: bool) -> Result<ArrayRef> {
    let DataType::Struct(fields) = entries.data_type() else {
        return Err(Error::internal("a map type without entries"));
    };
    let parts = [map.keys(), map.values()];
    let columns = fields.iter().zip(parts).map(|(f, column)| convert(column, f.data_type())).collect::<Result<Vec<_>>>()?;
    let built = StructArray::try_new(fields.clone(), columns, None).map_err(failed)?;
    let map = MapArray::try_new(Arc::clone(entries), map.offsets().clone(), built, map.nulls().cloned(), sorted);
    Ok(Arc::new(map.map_err(failed)?))
}

fn failed(error: arrow::error::ArrowError) -> Error {
    Error::internal("an array could not be brought into its type's own encoding").with_source(error)
}

/// What part of a batch may be normalised at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Rows whose text and binary bytes fit one array.
    Rows(Range<usize>),
    /// A row with a single value that no array can hold: (row, column).
    TooLarge(usize, usize),
}

/// Cuts a batch so that no array of a piece holds more than `limit` bytes of text or binary.
pub(crate) fn pieces(columns: &[ArrayRef], rows: usize, limit: u64) -> Result<Vec<Piece>> {
    let fixed = |array: &ArrayRef| normalize_type(array.data_type()) == *array.data_type();
    let mut grown = Vec::new();
    for (at, array) in columns.iter().enumerate().filter(|(_, array)| !fixed(array)) {
        let column = Column::bind(array)?;
        if column.has_payload() {
            grown.push((at, column, 0_u64));
        }
    }
    if grown.iter().all(|(_, column, _)| column.most_payload().is_some_and(|bytes| bytes <= limit)) {
        return Ok(vec![Piece::Rows(0..rows)]);
    }
    let (mut out, mut start) = (Vec::new(), 0);
    for row in 0..rows {
        let sizes: Vec<u64> = grown.iter().map(|(_, column, _)| column.payload(row)).collect();
        if let Some(((at, ..), _)) = grown.iter().zip(&sizes).find(|(_, size)| **size > limit) {
            return Ok(vec![Piece::TooLarge(row, *at)]);
        }
        if grown.iter().zip(&sizes).any(|((_, _, sum), size)| sum + size > limit) {
            out.push(Piece::Rows(start..row));
            start = row;
            grown.iter_mut().for_each(|(_, _, sum)| *sum = 0);
        }
        grown.iter_mut().zip(&sizes).for_each(|((_, _, sum), size)| *sum += size);
    }
    out.push(Piece::Rows(start..rows));
    Ok(out)
}
