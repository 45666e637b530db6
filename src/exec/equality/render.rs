//! Keys as people read them, for error messages.

use arrow::array::ArrayRef;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{DataType, Field};
use xxhash_rust::xxh3::xxh3_64;

use crate::spec::normalize_type;

const LONGEST: usize = 80;

/// The key in row `row`: `id=2`, or `(a=x, b=3)` for several columns; long values are cut.
pub fn render_key(fields: &[Field], columns: &[ArrayRef], row: usize) -> String {
    render_distinct_key(fields, columns, row).0
}

/// [`render_key`] with a number that tells apart keys which look alike once they are cut.
pub(crate) fn render_distinct_key(fields: &[Field], columns: &[ArrayRef], row: usize) -> (String, u64) {
    let options = FormatOptions::default().with_null("NULL").with_display_error(true);
    let (mut parts, mut whole) = (Vec::new(), Vec::new());
    for (field, column) in fields.iter().zip(columns) {
        let value = match ArrayFormatter::try_new(column.as_ref(), &options) {
            Ok(formatter) if row < column.len() => formatter.value(row).to_string(),
            _ => "?".to_string(),
        };
        parts.push(format!("{}={}", field.name(), cut(&value)));
        whole.push(value);
    }
    let number = xxh3_64(whole.join("\0").as_bytes());
    match parts.as_slice() {
        [one] => (one.clone(), number),
        _ => (format!("({})", parts.join(", ")), number),
    }
}

/// One value: text in quotes, long values cut.
pub(super) fn render_value(array: &ArrayRef, row: usize) -> String {
    let options = FormatOptions::default().with_null("NULL").with_display_error(true);
    let value = match ArrayFormatter::try_new(array.as_ref(), &options) {
        Ok(formatter) if row < array.len() => cut(&formatter.value(row).to_string()),
        _ => "?".to_string(),
    };
    if normalize_type(array.data_type()) == DataType::Utf8 { format!("{value:?}") } else { value }
}

fn cut(value: &str) -> String {
    match value.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", value.get(..end).unwrap_or_default()),
        None => value.to_string(),
    }
}
