//! One typed value, stored so that it reads back exactly.

use std::cmp::Ordering;
use std::fmt;

use arrow::array::{Array, RecordBatch};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use datafusion::common::ScalarValue;
use serde::{Deserialize, Serialize};

/// A value of an Arrow type, never null. Stored with its text for people; only the bytes count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct TypedValue(ScalarValue);

#[derive(Clone, Serialize, Deserialize)]
struct Stored {
    text: String,
    /// A one-row Arrow IPC stream in base 64.
    ipc: String,
}

impl TypedValue {
    /// Takes a value; `None` for a null.
    pub fn new(value: ScalarValue) -> Option<Self> {
        (!value.is_null()).then_some(Self(value))
    }

    /// The value.
    pub fn value(&self) -> &ScalarValue {
        &self.0
    }

    /// The order of two values of one type; `None` for values of different types.
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        self.0.partial_cmp(&other.0)
    }
}

impl fmt::Display for TypedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arrow's own texts: dates and times as people write them.
        let text = self.0.to_array().ok().and_then(|array| arrow::util::display::array_value_to_string(&array, 0).ok());
        f.write_str(&text.unwrap_or_else(|| self.0.to_string()))
    }
}

impl From<TypedValue> for Stored {
    fn from(value: TypedValue) -> Self {
        let encode = || {
            let batch = RecordBatch::try_from_iter([("value", value.0.to_array().ok()?)]).ok()?;
            let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).ok()?;
            writer.write(&batch).ok()?;
            Some(STANDARD.encode(writer.into_inner().ok()?))
        };
        // A value that came out of an Arrow array goes into one; what cannot be written is refused when it is read.
        Self { text: value.to_string(), ipc: encode().unwrap_or_default() }
    }
}

impl TryFrom<Stored> for TypedValue {
    type Error = String;

    fn try_from(stored: Stored) -> Result<Self, String> {
        let decode = || {
            let bytes = STANDARD.decode(&stored.ipc).ok()?;
            let batch = StreamReader::try_new(bytes.as_slice(), None).ok()?.next()?.ok()?;
            let column = batch.columns().first().filter(|column| column.len() == 1)?;
            ScalarValue::try_from_array(column, 0).ok()
        };
        decode().and_then(Self::new).ok_or_else(|| format!("the value {:?} cannot be read back", stored.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_back_with_their_type() {
        for value in [
            ScalarValue::Int64(Some(0)),
            ScalarValue::TimestampMicrosecond(Some(-1), Some("UTC".into())),
            ScalarValue::Decimal128(Some(12_345_678_901_234_567_890), 38, 6),
            ScalarValue::Date32(Some(20_000)),
            ScalarValue::Utf8(Some("é".into())),
        ] {
            let typed = TypedValue::new(value.clone()).unwrap();
            let text = serde_json::to_string(&typed).unwrap();
            assert_eq!(serde_json::from_str::<TypedValue>(&text).unwrap().value(), &value);
        }
        assert_eq!(TypedValue::new(ScalarValue::Int64(None)), None);
        let day = TypedValue::new(ScalarValue::Date32(Some(0))).unwrap();
        assert_eq!(day.to_string(), "1970-01-01");
    }

    #[test]
    fn values_of_other_types_have_no_order() {
        let value = |value| TypedValue::new(value).unwrap();
        assert_eq!(value(ScalarValue::Int64(Some(1))).compare(&value(ScalarValue::Int32(Some(2)))), None);
    }
}
