//! Names and values as PostgreSQL reads them back exactly. COPY takes no parameters, so everything that a statement needs
//! stands in its text; this is the only place that puts it there.
//!
//! ```text
//! we"ird  ──► "we""ird"            'x' = 1; --  ──► '''x'' = 1; --'::text        every value has its type behind it
//! ```
//!
//! The sessions here have `standard_conforming_strings` on, so only the quote itself is special within quotes, and UTF-8 as
//! their encoding, in which no other character holds its byte. PostgreSQL has no text with a zero byte, nor does a statement.

use std::fmt::Write;

use arrow::array::types::{Decimal128Type, Decimal256Type, DecimalType};
use datafusion::common::ScalarValue;

use super::copy::{ValueKind, date_text, time_text, timestamp_text};
use super::types::{ColumnType, Select};

/// A name in double quotes.
pub(super) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text in single quotes; `None` for one that no statement can hold.
pub(super) fn quoted(text: &str) -> Option<String> {
    (!text.contains('\0')).then(|| format!("'{}'", text.replace('\'', "''")))
}

/// A value of a column, typed as it; `None` for a value that is null, of another type, or that cannot be written.
pub(super) fn literal(value: &ScalarValue, column: &ColumnType) -> Option<String> {
    let text = quoted(&value_text(value, &column.kind)?)?;
    Some(match column.select {
        Select::Numeric => format!("{text}::pg_catalog.numeric::{}", column.cast_name),
        _ => format!("{text}::{}", column.cast_name),
    })
}

/// A value as its type's input function reads it.
fn value_text(value: &ScalarValue, kind: &ValueKind) -> Option<String> {
    use ScalarValue as V;
    Some(match (kind, value) {
        (ValueKind::Bool, V::Boolean(Some(value))) => value.to_string(),
        (ValueKind::Int16, V::Int16(Some(value))) => value.to_string(),
        (ValueKind::Int32, V::Int32(Some(value))) => value.to_string(),
        (ValueKind::Int64, V::Int64(Some(value))) => value.to_string(),
        (ValueKind::Oid, V::UInt32(Some(value))) => value.to_string(),
        // The shortest text that reads back as the same number.
        (ValueKind::Float32, V::Float32(Some(value))) => format!("{value:e}"),
        (ValueKind::Float64, V::Float64(Some(value))) => format!("{value:e}"),
        (ValueKind::Decimal(..), V::Decimal128(Some(value), precision, scale)) => {
            Decimal128Type::format_decimal(*value, *precision, *scale)
        }
        (ValueKind::Decimal(..), V::Decimal256(Some(value), precision, scale)) => {
            Decimal256Type::format_decimal(*value, *precision, *scale)
        }
        (
            ValueKind::Text | ValueKind::Jsonb | ValueKind::Uuid,
            V::Utf8(Some(value)) | V::Utf8View(Some(value)) | V::LargeUtf8(Some(value)),
        ) => value.clone(),
        (ValueKind::Bytes, V::Binary(Some(value)) | V::BinaryView(Some(value)) | V::LargeBinary(Some(value))) => hex(value),
        (ValueKind::Date, V::Date32(Some(days))) => date_text(i64::from(*days)),
        (ValueKind::Time, V::Time64Microsecond(Some(micros))) => time_text(*micros),
        (ValueKind::Timestamp, V::TimestampMicrosecond(Some(micros), None)) => timestamp_text(*micros, ""),
        (ValueKind::TimestampUtc, V::TimestampMicrosecond(Some(micros), Some(_))) => timestamp_text(*micros, "+00"),
        _ => return None,
    })
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("\\x");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}"); // a String takes every text
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::types::Order;
    use super::*;

    fn column(kind: ValueKind) -> ColumnType {
        ColumnType {
            kind,
            select: Select::Plain,
            order: Order::Own,
            cast_name: "t".into(),
            operators: "pg_catalog".into(),
            is_domain: false,
            is_open_numeric: false,
        }
    }

    #[test]
    fn quotes_cannot_be_left() {
        assert_eq!(identifier(r#"we"ird; DROP TABLE x --"#), r#""we""ird; DROP TABLE x --""#);
        let text = column(ValueKind::Text);
        assert_eq!(literal(&ScalarValue::from("'; DROP TABLE x; --\\"), &text).unwrap(), r"'''; DROP TABLE x; --\'::t");
        assert_eq!(literal(&ScalarValue::from("a\0b"), &text), None);
    }

    #[test]
    fn values_keep_every_digit() {
        let text = |value: ScalarValue, kind| literal(&value, &column(kind)).unwrap();
        assert_eq!(text(ScalarValue::Float64(Some(0.1 + 0.2)), ValueKind::Float64), "'3.0000000000000004e-1'::t");
        assert_eq!(text(ScalarValue::Float64(Some(-0.0)), ValueKind::Float64), "'-0e0'::t");
        assert_eq!(text(ScalarValue::Float32(Some(f32::NEG_INFINITY)), ValueKind::Float32), "'-inf'::t");
        assert_eq!(text(ScalarValue::Decimal128(Some(-5), 38, 3), ValueKind::Decimal(38, 3)), "'-0.005'::t");
        assert_eq!(text(ScalarValue::Binary(Some(vec![0, 0xff])), ValueKind::Bytes), r"'\x00ff'::t");
        let time = ScalarValue::TimestampMicrosecond(Some(1), Some("UTC".into()));
        assert_eq!(text(time, ValueKind::TimestampUtc), "'1970-01-01 00:00:00.000001+00'::t");
    }

    #[test]
    fn a_null_and_a_value_of_another_type_are_no_literals() {
        for value in [ScalarValue::Int64(None), ScalarValue::Int32(Some(1)), ScalarValue::TimestampMicrosecond(Some(1), None)] {
            assert_eq!(literal(&value, &column(ValueKind::Int64)), None);
            assert_eq!(literal(&value, &column(ValueKind::TimestampUtc)), None);
        }
    }
}
