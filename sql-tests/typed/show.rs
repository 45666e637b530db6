//! Values as text, independent of their encoding and of the crate's own notion of equality.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_schema::DataType;

/// The row, exact: columns in name order.
pub fn row_of(batch: &RecordBatch, row: usize) -> String {
    let schema = batch.schema();
    let mut parts: Vec<String> =
        schema.fields().iter().zip(batch.columns()).map(|(f, column)| format!("{}={}", f.name(), show(column, row))).collect();
    parts.sort();
    parts.join(" ")
}

/// The key, with one zero.
pub fn key_of(batch: &RecordBatch, row: usize, key: &[&str]) -> String {
    let parts: Vec<String> = key.iter().map(|name| show(batch.column_by_name(name).unwrap(), row)).collect();
    parts.join("|").replace("<-0.0>", "<0.0>")
}

pub fn show(array: &ArrayRef, row: usize) -> String {
    use DataType as T;
    if array.is_null(row) {
        return "NULL".into();
    }
    match array.data_type() {
        T::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            show(dictionary.values(), dictionary.normalized_keys()[row])
        }
        T::RunEndEncoded(_, values) => show(&cast(&array.slice(row, 1), values.data_type()).unwrap(), 0),
        T::List(_) => items(&array.as_list::<i32>().value(row)),
        T::LargeList(_) => items(&array.as_list::<i64>().value(row)),
        T::ListView(_) => items(&array.as_list_view::<i32>().value(row)),
        T::LargeListView(_) => items(&array.as_list_view::<i64>().value(row)),
        T::FixedSizeList(..) => items(&array.as_fixed_size_list().value(row)),
        T::Struct(fields) => {
            let columns = fields.iter().zip(array.as_struct().columns());
            let mut parts: Vec<String> = columns.map(|(f, column)| format!("{}:{}", f.name(), show(column, row))).collect();
            parts.sort();
            format!("{{{}}}", parts.join(","))
        }
        T::Map(..) => {
            let entries = array.as_map().value(row);
            let mut parts: Vec<String> =
                (0..entries.len()).map(|i| format!("{}->{}", show(entries.column(0), i), show(entries.column(1), i))).collect();
            parts.sort();
            format!("({})", parts.join(","))
        }
        T::Utf8 => format!("{:?}", array.as_string::<i32>().value(row)),
        T::LargeUtf8 => format!("{:?}", array.as_string::<i64>().value(row)),
        T::Utf8View => format!("{:?}", array.as_string_view().value(row)),
        T::Float16 | T::Float32 | T::Float64 => format!("<{:?}>", cast(array, &T::Float64).unwrap().as_primitive::<arrow::datatypes::Float64Type>().value(row)),
        // The instant and the digits, whatever the zone.
        T::Timestamp(..) | T::Time32(_) | T::Time64(_) | T::Duration(_) | T::Date64 | T::Date32 => {
            let data = array.to_data();
            let width = array.data_type().primitive_width().unwrap();
            let bytes = &data.buffers()[0].as_slice()[(data.offset() + row) * width..][..width];
            format!("t{bytes:?}")
        }
        _ => {
            let options = FormatOptions::default();
            ArrayFormatter::try_new(array.as_ref(), &options).unwrap().value(row).to_string()
        }
    }
}

fn items(values: &ArrayRef) -> String {
    let parts: Vec<String> = (0..values.len()).map(|i| show(values, i)).collect();
    format!("[{}]", parts.join(","))
}
