//! Builders that take a column's values as PostgreSQL sends them.
//!
//! ```text
//! ValueKind (what is sent) ──► ColumnBuilder ── append(bytes) / append_null ──► finish: an Arrow array
//! ```
//!
//! A value without a counterpart fails the append, and with it the read; PostgreSQL's special values are nulls where the
//! connection says so. Memory: the values of one batch, counted by the caller.

use std::sync::Arc;

use arrow::array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Decimal256Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
    Time64MicrosecondType, TimestampMicrosecondType, UInt32Type,
};
use arrow::array::{ArrayRef, BinaryArray, BooleanArray, BooleanBufferBuilder, ListArray, NullBufferBuilder, PrimitiveArray, StringArray};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::i256;
use arrow_schema::{DataType, Field, TimeUnit};

use super::frame::NULL_LENGTH;
use super::numeric::Decimal;
use super::value::{self, BadValue, exactly};
use crate::sync::postgres::options::OutOfRange;

/// What the server sends for a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sync::postgres) enum ValueKind {
    Bool,
    Int16,
    Int32,
    Int64,
    /// `oid`: unsigned.
    Oid,
    Float32,
    Float64,
    /// `numeric` as a decimal of this precision and scale.
    Decimal(u8, u8),
    /// Text as it is.
    Text,
    /// `jsonb`: a version, then text.
    Jsonb,
    Uuid,
    Bytes,
    Date,
    Time,
    Timestamp,
    TimestampUtc,
    /// An array of one dimension.
    List(Box<ValueKind>),
}

/// Values from here on get the room that they need: growing by halves would hold as much again for nothing.
const LARGE_VALUE: usize = 1 << 20;

/// The widest `numeric` that a 128-bit decimal holds.
const NARROW: u8 = 38;
/// The widest `numeric` that a decimal holds at all.
pub(in crate::sync::postgres) const WIDEST_DECIMAL: u8 = 76;

impl ValueKind {
    /// The Arrow type that the values arrive in.
    pub(in crate::sync::postgres) fn data_type(&self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::Int16 => DataType::Int16,
            Self::Int32 => DataType::Int32,
            Self::Int64 => DataType::Int64,
            Self::Oid => DataType::UInt32,
            Self::Float32 => DataType::Float32,
            Self::Float64 => DataType::Float64,
            Self::Decimal(precision, scale) if *precision <= NARROW => DataType::Decimal128(*precision, *scale as i8),
            Self::Decimal(precision, scale) => DataType::Decimal256(*precision, *scale as i8),
            Self::Text | Self::Jsonb | Self::Uuid => DataType::Utf8,
            Self::Bytes => DataType::Binary,
            Self::Date => DataType::Date32,
            Self::Time => DataType::Time64(TimeUnit::Microsecond),
            Self::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, None),
            Self::TimestampUtc => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Self::List(items) => DataType::List(item_field(items)),
        }
    }
}

fn item_field(items: &ValueKind) -> Arc<Field> {
    Arc::new(Field::new_list_field(items.data_type(), true))
}

/// A column of a batch in the making.
#[derive(Debug)]
pub(super) struct ColumnBuilder {
    kind: ValueKind,
    out_of_range: OutOfRange,
    nulls: NullBufferBuilder,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Bool(BooleanBufferBuilder),
    Int16(Vec<i16>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Oid(Vec<u32>),
    Float32(Vec<f32>),
    Float64(Vec<f64>),
    Decimal128(Decimal<i128>, Vec<i128>),
    Decimal256(Decimal<i256>, Vec<i256>),
    Text { offsets: Vec<i32>, text: String },
    Bytes { offsets: Vec<i32>, bytes: Vec<u8> },
    List { offsets: Vec<i32>, items: Box<ColumnBuilder> },
}

impl ColumnBuilder {
    pub(super) fn new(kind: &ValueKind, rows: usize, out_of_range: OutOfRange) -> Self {
        let values = Values::new(kind, rows, out_of_range);
        Self { kind: kind.clone(), out_of_range, nulls: NullBufferBuilder::new(rows), values }
    }

    /// Appends a value.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), BadValue> {
        match self.values.append(&self.kind, bytes) {
            Ok(()) => {
                self.nulls.append_non_null();
                Ok(())
            }
            Err(BadValue::Special(_)) if self.out_of_range == OutOfRange::Null => {
                self.append_null();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn append_null(&mut self) {
        self.nulls.append_null();
        self.values.append_placeholder();
    }

    /// The array of everything appended; the builder is empty again.
    pub(super) fn finish(&mut self, rows: usize) -> ArrayRef {
        let nulls = self.nulls.finish();
        let empty = Values::new(&self.kind, rows, self.out_of_range);
        std::mem::replace(&mut self.values, empty).finish(&self.kind, nulls)
    }
}

impl Values {
    fn new(kind: &ValueKind, rows: usize, out_of_range: OutOfRange) -> Self {
        let offsets = || {
            let mut offsets = Vec::with_capacity(rows + 1);
            offsets.push(0);
            offsets
        };
        match kind {
            ValueKind::Bool => Self::Bool(BooleanBufferBuilder::new(rows)),
            ValueKind::Int16 => Self::Int16(Vec::with_capacity(rows)),
            ValueKind::Int32 | ValueKind::Date => Self::Int32(Vec::with_capacity(rows)),
            ValueKind::Int64 | ValueKind::Time | ValueKind::Timestamp | ValueKind::TimestampUtc => Self::Int64(Vec::with_capacity(rows)),
            ValueKind::Oid => Self::Oid(Vec::with_capacity(rows)),
            ValueKind::Float32 => Self::Float32(Vec::with_capacity(rows)),
            ValueKind::Float64 => Self::Float64(Vec::with_capacity(rows)),
            ValueKind::Decimal(precision, scale) if *precision <= NARROW => {
                Self::Decimal128(Decimal::new(*precision, *scale), Vec::with_capacity(rows))
            }
            ValueKind::Decimal(precision, scale) => Self::Decimal256(Decimal::new(*precision, *scale), Vec::with_capacity(rows)),
            ValueKind::Text | ValueKind::Jsonb | ValueKind::Uuid => Self::Text { offsets: offsets(), text: String::new() },
            ValueKind::Bytes => Self::Bytes { offsets: offsets(), bytes: vec![] },
            ValueKind::List(items) => Self::List { offsets: offsets(), items: Box::new(ColumnBuilder::new(items, rows, out_of_range)) },
        }
    }

    fn append(&mut self, kind: &ValueKind, bytes: &[u8]) -> Result<(), BadValue> {
        match self {
            Self::Bool(values) => values.append(exactly::<1>(bytes)?[0] != 0),
            Self::Int16(values) => values.push(i16::from_be_bytes(exactly(bytes)?)),
            Self::Int32(values) => values.push(match kind {
                ValueKind::Date => value::date(bytes)?,
                _ => i32::from_be_bytes(exactly(bytes)?),
            }),
            Self::Int64(values) => values.push(match kind {
                ValueKind::Timestamp | ValueKind::TimestampUtc => value::timestamp(bytes)?,
                ValueKind::Time => value::time(bytes)?,
                _ => i64::from_be_bytes(exactly(bytes)?),
            }),
            Self::Oid(values) => values.push(u32::from_be_bytes(exactly(bytes)?)),
            Self::Float32(values) => values.push(f32::from_be_bytes(exactly(bytes)?)),
            Self::Float64(values) => values.push(f64::from_be_bytes(exactly(bytes)?)),
            Self::Decimal128(decimal, values) => values.push(decimal.read(bytes)?),
            Self::Decimal256(decimal, values) => values.push(decimal.read(bytes)?),
            Self::Text { offsets, text } => {
                append_text(kind, bytes, text)?;
                offsets.push(offset(text.len())?);
            }
            Self::Bytes { offsets, bytes: all } => {
                let end = offset(all.len() + bytes.len())?;
                if bytes.len() >= LARGE_VALUE {
                    all.reserve_exact(bytes.len());
                }
                all.extend_from_slice(bytes);
                offsets.push(end);
            }
            Self::List { offsets, items } => {
                let count = append_items(bytes, items)?;
                offsets.push(offsets.last().copied().unwrap_or_default() + count);
            }
        }
        Ok(())
    }

    fn append_placeholder(&mut self) {
        match self {
            Self::Bool(values) => values.append(false),
            Self::Int16(values) => values.push(0),
            Self::Int32(values) => values.push(0),
            Self::Int64(values) => values.push(0),
            Self::Oid(values) => values.push(0),
            Self::Float32(values) => values.push(0.0),
            Self::Float64(values) => values.push(0.0),
            Self::Decimal128(_, values) => values.push(0),
            Self::Decimal256(_, values) => values.push(i256::ZERO),
            Self::Text { offsets, .. } | Self::Bytes { offsets, .. } | Self::List { offsets, .. } => {
                offsets.push(offsets.last().copied().unwrap_or_default());
            }
        }
    }

    fn finish(self, kind: &ValueKind, nulls: Option<NullBuffer>) -> ArrayRef {
        fn primitive<T: ArrowPrimitiveType>(kind: &ValueKind, values: Vec<T::Native>, nulls: Option<NullBuffer>) -> ArrayRef {
            Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::from(values), nulls).with_data_type(kind.data_type()))
        }
        match self {
            Self::Bool(mut values) => Arc::new(BooleanArray::new(values.finish(), nulls)),
            Self::Int16(values) => primitive::<Int16Type>(kind, values, nulls),
            Self::Int32(values) if *kind == ValueKind::Date => primitive::<Date32Type>(kind, values, nulls),
            Self::Int32(values) => primitive::<Int32Type>(kind, values, nulls),
            Self::Int64(values) => match kind {
                ValueKind::Timestamp | ValueKind::TimestampUtc => primitive::<TimestampMicrosecondType>(kind, values, nulls),
                ValueKind::Time => primitive::<Time64MicrosecondType>(kind, values, nulls),
                _ => primitive::<Int64Type>(kind, values, nulls),
            },
            Self::Oid(values) => primitive::<UInt32Type>(kind, values, nulls),
            Self::Float32(values) => primitive::<Float32Type>(kind, values, nulls),
            Self::Float64(values) => primitive::<Float64Type>(kind, values, nulls),
            Self::Decimal128(_, values) => primitive::<Decimal128Type>(kind, values, nulls),
            Self::Decimal256(_, values) => primitive::<Decimal256Type>(kind, values, nulls),
            Self::Text { offsets, mut text } => {
                text.shrink_to_fit();
                let (offsets, text) = (OffsetBuffer::new(offsets.into()), Buffer::from(text.into_bytes()));
                Arc::new(StringArray::new(offsets, text, nulls))
            }
            Self::Bytes { offsets, mut bytes } => {
                bytes.shrink_to_fit();
                Arc::new(BinaryArray::new(OffsetBuffer::new(offsets.into()), bytes.into(), nulls))
            }
            Self::List { offsets, mut items } => {
                let field = item_field(&items.kind);
                let items = items.finish(0);
                Arc::new(ListArray::new(field, OffsetBuffer::new(offsets.into()), items, nulls))
            }
        }
    }
}

fn append_text(kind: &ValueKind, bytes: &[u8], text: &mut String) -> Result<(), BadValue> {
    let bytes = match kind {
        ValueKind::Uuid => return value::uuid(bytes, text),
        ValueKind::Jsonb => match bytes.split_first() {
            Some((1, rest)) => rest,
            _ => return Err(BadValue::Protocol),
        },
        _ => bytes,
    };
    let added = std::str::from_utf8(bytes).map_err(|_| BadValue::DoesNotFit("a text that is not UTF-8".into()))?;
    offset(text.len() + added.len())?;
    if added.len() >= LARGE_VALUE {
        text.reserve_exact(added.len());
    }
    text.push_str(added);
    Ok(())
}

/// The batch is cut long before this; a single value of 2 GiB cannot be sent.
fn offset(length: usize) -> Result<i32, BadValue> {
    i32::try_from(length).map_err(|_| BadValue::DoesNotFit("a value of 2 GiB".into()))
}

/// Appends the elements of an array and tells how many. Lower bounds are left out: a list starts where it starts.
fn append_items(bytes: &[u8], items: &mut ColumnBuilder) -> Result<i32, BadValue> {
    let word = |at: usize| value::array(bytes, at).map(i32::from_be_bytes);
    match word(0)? {
        0 if bytes.len() == 12 => return Ok(0),
        1 => {}
        0 => return Err(BadValue::Protocol),
        dimensions => return Err(BadValue::DoesNotFit(format!("an array of {dimensions} dimensions"))),
    }
    let count = word(12)?;
    // Everything is looked at before anything is appended, so that a bad element leaves no half of the array behind.
    let mut ranges = Vec::with_capacity(usize::try_from(count).map_err(|_| BadValue::Protocol)?.min(bytes.len()));
    let mut at = 20;
    for _ in 0..count {
        let length = word(at)?;
        at += 4;
        if length == NULL_LENGTH {
            ranges.push(None);
            continue;
        }
        let length = usize::try_from(length).map_err(|_| BadValue::Protocol)?;
        ranges.push(Some(bytes.get(at..at + length).ok_or(BadValue::Protocol)?));
        at += length;
    }
    if at != bytes.len() {
        return Err(BadValue::Protocol);
    }
    for range in ranges {
        match range {
            Some(bytes) => items.append(bytes)?,
            None => items.append_null(),
        }
    }
    Ok(count)
}
