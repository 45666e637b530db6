//! A handler written row by row, with exact 64-bit integers.
//!
//! ```text
//! input row ── Row ──► f ──► [Value, …] ──► columns of the declared output schema
//! ```
//!
//! Numbers never pass through a float: an integer that does not fit its declared column is `VALUE_OUT_OF_RANGE`,
//! a value of another type is `HANDLER_SCHEMA`. Nothing is rounded, parsed or coerced.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::common::ScalarValue;

use super::{Handler, HandlerCall, HandlerError, conform_batch};
use crate::error::{Error, ErrorCode, Result};
use crate::spec::{normalize_schema, same_type};

/// One value of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// No value.
    Null,
    /// A boolean.
    Boolean(bool),
    /// A signed integer of any width.
    Int(i64),
    /// An unsigned integer of any width.
    UInt(u64),
    /// A float.
    Float(f64),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A value of any other type: decimals, dates, times, lists, structs.
    Scalar(ScalarValue),
}

impl Value {
    fn of(scalar: ScalarValue) -> Self {
        match scalar {
            null if null.is_null() => Value::Null,
            ScalarValue::Boolean(Some(v)) => Value::Boolean(v),
            ScalarValue::Int8(Some(v)) => Value::Int(v.into()),
            ScalarValue::Int16(Some(v)) => Value::Int(v.into()),
            ScalarValue::Int32(Some(v)) => Value::Int(v.into()),
            ScalarValue::Int64(Some(v)) => Value::Int(v),
            ScalarValue::UInt8(Some(v)) => Value::UInt(v.into()),
            ScalarValue::UInt16(Some(v)) => Value::UInt(v.into()),
            ScalarValue::UInt32(Some(v)) => Value::UInt(v.into()),
            ScalarValue::UInt64(Some(v)) => Value::UInt(v),
            ScalarValue::Float16(Some(v)) => Value::Float(v.to_f64()),
            ScalarValue::Float32(Some(v)) => Value::Float(v.into()),
            ScalarValue::Float64(Some(v)) => Value::Float(v),
            ScalarValue::Utf8(Some(v)) | ScalarValue::LargeUtf8(Some(v)) | ScalarValue::Utf8View(Some(v)) => Value::Text(v),
            ScalarValue::Binary(Some(v)) | ScalarValue::LargeBinary(Some(v)) | ScalarValue::BinaryView(Some(v)) => Value::Bytes(v),
            ScalarValue::FixedSizeBinary(_, Some(v)) => Value::Bytes(v),
            ScalarValue::Dictionary(_, inner) => Value::of(*inner),
            other => Value::Scalar(other),
        }
    }

    fn kind(&self) -> String {
        match self {
            Value::Null => "null".into(),
            Value::Boolean(_) => "Boolean".into(),
            Value::Int(_) => "Int64".into(),
            Value::UInt(_) => "UInt64".into(),
            Value::Float(_) => "Float64".into(),
            Value::Text(_) => "Utf8".into(),
            Value::Bytes(_) => "Binary".into(),
            Value::Scalar(scalar) => scalar.data_type().to_string(),
        }
    }
}

macro_rules! value_from {
    ($($from:ty => |$v:ident| $value:expr),+ $(,)?) => {
        $(impl From<$from> for Value {
            fn from($v: $from) -> Self {
                $value
            }
        })+
    };
}

value_from! {
    bool => |v| Value::Boolean(v),
    i8 => |v| Value::Int(v.into()),
    i16 => |v| Value::Int(v.into()),
    i32 => |v| Value::Int(v.into()),
    i64 => |v| Value::Int(v),
    u8 => |v| Value::UInt(v.into()),
    u16 => |v| Value::UInt(v.into()),
    u32 => |v| Value::UInt(v.into()),
    u64 => |v| Value::UInt(v),
    f32 => |v| Value::Float(v.into()),
    f64 => |v| Value::Float(v),
    &str => |v| Value::Text(v.to_string()),
    String => |v| Value::Text(v),
    Vec<u8> => |v| Value::Bytes(v),
    ScalarValue => |v| Value::of(v),
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

/// One row of `input`.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    batch: &'a RecordBatch,
    index: usize,
}

impl Row<'_> {
    /// The columns that the row has: key columns, then tracked columns.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.batch.schema_ref().fields().iter().map(|field| field.name().as_str())
    }

    /// The value of `column`, exact.
    ///
    /// # Errors
    /// `HANDLER_FAILED` when `input` has no such column.
    pub fn value(&self, column: &str) -> Result<Value> {
        let array = self.batch.column_by_name(column).ok_or_else(|| {
            let names: Vec<&str> = self.columns().collect();
            Error::new(
                ErrorCode::HandlerFailed,
                format!("input has no column {column:?}. Remedy: use one of {names:?}, or add the column to TRACK"),
            )
        })?;
        let scalar = ScalarValue::try_from_array(array, self.index)
            .map_err(|e| Error::from_datafusion(e, ErrorCode::HandlerFailed, format!("column {column:?} cannot be read")))?;
        Ok(Value::of(scalar))
    }

    /// The value of an integer column; `None` for null.
    ///
    /// # Errors
    /// `HANDLER_FAILED` when it is no integer, `VALUE_OUT_OF_RANGE` when an unsigned value is above `i64::MAX`.
    pub fn i64(&self, column: &str) -> Result<Option<i64>> {
        match self.value(column)? {
            Value::Null => Ok(None),
            Value::Int(v) => Ok(Some(v)),
            Value::UInt(v) => i64::try_from(v).map(Some).map_err(|_| out_of_range(column, v.to_string(), &DataType::Int64)),
            other => Err(not_a(column, "an integer", &other)),
        }
    }

    /// The value of an integer column that is not negative; `None` for null.
    ///
    /// # Errors
    /// `HANDLER_FAILED` when it is no integer, `VALUE_OUT_OF_RANGE` when it is negative.
    pub fn u64(&self, column: &str) -> Result<Option<u64>> {
        match self.value(column)? {
            Value::Null => Ok(None),
            Value::UInt(v) => Ok(Some(v)),
            Value::Int(v) => u64::try_from(v).map(Some).map_err(|_| out_of_range(column, v.to_string(), &DataType::UInt64)),
            other => Err(not_a(column, "an integer", &other)),
        }
    }

    /// The value of a float column; `None` for null.
    ///
    /// # Errors
    /// `HANDLER_FAILED` when it is no float; integers are not converted.
    pub fn f64(&self, column: &str) -> Result<Option<f64>> {
        match self.value(column)? {
            Value::Null => Ok(None),
            Value::Float(v) => Ok(Some(v)),
            other => Err(not_a(column, "a float", &other)),
        }
    }

    /// The value of a text column; `None` for null.
    ///
    /// # Errors
    /// `HANDLER_FAILED` when it is no text.
    pub fn text(&self, column: &str) -> Result<Option<String>> {
        match self.value(column)? {
            Value::Null => Ok(None),
            Value::Text(v) => Ok(Some(v)),
            other => Err(not_a(column, "text", &other)),
        }
    }
}

fn not_a(column: &str, wanted: &str, value: &Value) -> Error {
    Error::new(ErrorCode::HandlerFailed, format!("column {column:?} is not {wanted} but {}. Remedy: read it with Row::value", value.kind()))
}

fn out_of_range(column: &str, value: String, to: &DataType) -> Error {
    Error::new(
        ErrorCode::ValueOutOfRange,
        format!("column {column:?}: the value {value} does not fit {to}. Remedy: declare a wider type, or return a value that fits"),
    )
}

/// A handler of this `version` that turns one input row into the values of one output row, in the order of
/// `output_schema`.
///
/// ```
/// use std::sync::Arc;
/// use arrow_schema::{DataType, Field, Schema};
/// use datafusion_incremental::handler::row_handler;
///
/// let schema = Arc::new(Schema::new(vec![
///     Field::new("id", DataType::Int64, false),
///     Field::new("shout", DataType::Utf8, true),
/// ]));
/// let handler = row_handler("1", schema, |row| {
///     Ok(vec![row.value("id")?, row.text("name")?.map(|name| name.to_uppercase()).into()])
/// });
/// assert_eq!(handler.version(), "1");
/// ```
pub fn row_handler<F>(version: impl Into<String>, output_schema: SchemaRef, f: F) -> Arc<dyn Handler>
where
    F: Fn(&Row<'_>) -> std::result::Result<Vec<Value>, HandlerError> + Send + Sync + 'static,
{
    Arc::new(RowHandler { version: version.into(), output_schema: Arc::new(normalize_schema(&output_schema)), f })
}

struct RowHandler<F> {
    version: String,
    output_schema: SchemaRef,
    f: F,
}

impl<F> fmt::Debug for RowHandler<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowHandler").field("version", &self.version).finish_non_exhaustive()
    }
}

#[async_trait]
impl<F> Handler for RowHandler<F>
where
    F: Fn(&Row<'_>) -> std::result::Result<Vec<Value>, HandlerError> + Send + Sync + 'static,
{
    fn version(&self) -> &str {
        &self.version
    }

    fn output_schema(&self, _input: &Schema) -> Result<SchemaRef> {
        Ok(Arc::clone(&self.output_schema))
    }

    async fn handle(&self, input: RecordBatch, call: &HandlerCall) -> std::result::Result<Vec<RecordBatch>, HandlerError> {
        let fields = self.output_schema.fields();
        let mut columns: Vec<Vec<ScalarValue>> = fields.iter().map(|_| Vec::with_capacity(input.num_rows())).collect();
        for index in 0..input.num_rows() {
            let values = (self.f)(&Row { batch: &input, index })?;
            if values.len() != fields.len() {
                let what = format!("a row of {} values for {} declared columns", values.len(), fields.len());
                return Err(Box::new(in_table(call, &schema_error(&what))));
            }
            for ((column, field), value) in columns.iter_mut().zip(fields).zip(values) {
                column.push(to_scalar(field, value).map_err(|e| in_table(call, &e))?);
            }
        }
        let arrays = columns.into_iter().map(ScalarValue::iter_to_array).collect::<std::result::Result<Vec<_>, _>>()?;
        Ok(vec![conform_batch(&self.output_schema, &arrays, input.num_rows())?])
    }
}

fn in_table(call: &HandlerCall, error: &Error) -> Error {
    Error::new(error.code(), format!("table {:?}: {}", call.table, error.message()))
}

fn schema_error(what: &str) -> Error {
    Error::new(ErrorCode::HandlerSchema, format!("the handler returned {what}. Remedy: return the declared types, or save a new revision"))
}

/// The value as a scalar of the field's type, exactly or not at all.
fn to_scalar(field: &Field, value: Value) -> Result<ScalarValue> {
    let to = field.data_type();
    let other = |value: &Value| schema_error(&format!("column {:?} as {}; it is declared {to}", field.name(), value.kind()));
    match value {
        Value::Null => ScalarValue::try_new_null(to).map_err(|e| Error::internal(e.strip_backtrace())),
        Value::Int(v) => integer(field, v.into()).unwrap_or_else(|| Err(other(&Value::Int(v)))),
        Value::UInt(v) => integer(field, v.into()).unwrap_or_else(|| Err(other(&Value::UInt(v)))),
        Value::Float(v) => match to {
            DataType::Float64 => Ok(ScalarValue::Float64(Some(v))),
            DataType::Float32 => {
                #[allow(clippy::cast_possible_truncation)] // compared with the original just below
                let narrow = v as f32;
                let exact = v.is_nan() || f64::from(narrow).to_bits() == v.to_bits();
                if exact { Ok(ScalarValue::Float32(Some(narrow))) } else { Err(out_of_range(field.name(), v.to_string(), to)) }
            }
            DataType::Float16 => match ScalarValue::Float64(Some(v)).cast_to(to) {
                Ok(narrow) if narrow.cast_to(&DataType::Float64).is_ok_and(|back| back == ScalarValue::Float64(Some(v))) => Ok(narrow),
                _ => Err(out_of_range(field.name(), v.to_string(), to)),
            },
            _ => Err(other(&Value::Float(v))),
        },
        Value::Boolean(v) if *to == DataType::Boolean => Ok(ScalarValue::Boolean(Some(v))),
        Value::Text(v) if *to == DataType::Utf8 => Ok(ScalarValue::Utf8(Some(v))),
        Value::Bytes(v) if *to == DataType::Binary => Ok(ScalarValue::Binary(Some(v))),
        Value::Bytes(v) => match to {
            DataType::FixedSizeBinary(size) if usize::try_from(*size) == Ok(v.len()) => Ok(ScalarValue::FixedSizeBinary(*size, Some(v))),
            _ => Err(other(&Value::Bytes(v))),
        },
        Value::Scalar(v) if same_type(&v.data_type(), to) => {
            if v.data_type() == *to {
                Ok(v)
            } else {
                v.cast_to(to).map_err(|e| schema_error(&e.strip_backtrace()))
            }
        }
        value => Err(other(&value)),
    }
}

/// An integer in the field's integer type; `None` when the field is none. Floats take integers that they hold exactly.
fn integer(field: &Field, v: i128) -> Option<Result<ScalarValue>> {
    macro_rules! checked {
        ($variant:ident) => {
            v.try_into().ok().map(|narrow| ScalarValue::$variant(Some(narrow)))
        };
    }
    let scalar = match field.data_type() {
        DataType::Int8 => checked!(Int8),
        DataType::Int16 => checked!(Int16),
        DataType::Int32 => checked!(Int32),
        DataType::Int64 => checked!(Int64),
        DataType::UInt8 => checked!(UInt8),
        DataType::UInt16 => checked!(UInt16),
        DataType::UInt32 => checked!(UInt32),
        DataType::UInt64 => checked!(UInt64),
        #[allow(clippy::cast_precision_loss)] // every integer below 2^53 is exact
        DataType::Float64 => (v.unsigned_abs() <= 1 << 53).then_some(ScalarValue::Float64(Some(v as f64))),
        _ => return None,
    };
    Some(scalar.ok_or_else(|| out_of_range(field.name(), v.to_string(), field.data_type())))
}
