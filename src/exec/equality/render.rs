//! Keys as people read them, for error messages.

use arrow::array::ArrayRef;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_schema::Field;

const LONGEST: usize = 80;

/// The key in row `row`: `id=2`, or `(a=x, b=3)` for several columns; long values are cut.
pub fn render_key(fields: &[Field], columns: &[ArrayRef], row: usize) -> String {
    let options = FormatOptions::default().with_null("NULL").with_display_error(true);
    let part = |(field, column): (&Field, &ArrayRef)| {
        let value = match ArrayFormatter::try_new(column.as_ref(), &options) {
            Ok(formatter) if row < column.len() => formatter.value(row).to_string(),
            _ => "?".to_string(),
        };
        format!("{}={}", field.name(), cut(value))
    };
    let parts: Vec<String> = fields.iter().zip(columns).map(part).collect();
    match parts.as_slice() {
        [one] => one.clone(),
        _ => format!("({})", parts.join(", ")),
    }
}

fn cut(value: String) -> String {
    if value.chars().count() <= LONGEST {
        return value;
    }
    let head: String = value.chars().take(LONGEST).collect();
    format!("{head}…")
}
