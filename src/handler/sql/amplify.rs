//! Functions that make much of little: a short query must not fill the memory while it is planned.
//!
//! ```text
//! repeat('x', 2000000000)     a literal beyond MAX_COUNT          ─► refused
//! repeat('x', 1000 * 1000)    neither a literal nor from a column ─► refused: the planner would compute it
//! repeat(v, n)                counts that come with the rows      ─► admitted; see SECURITY.md for what that leaves open
//! ```

use datafusion::logical_expr::Expr;
use datafusion::scalar::ScalarValue;

/// Functions whose result can be larger than their arguments together, times a small constant.
const AMPLIFIERS: &[&str] = &[
    "array_repeat",
    "array_resize",
    "generate_series",
    "list_repeat",
    "list_resize",
    "lpad",
    "range",
    "regexp_replace",
    "repeat",
    "replace",
    "rpad",
    "space",
];

/// The largest count, or difference of bounds.
const MAX_COUNT: u128 = 1_000_000;
/// The longest text that one of them may take as a constant.
const MAX_TEXT: usize = 64 * 1024;

/// Why a call of the function is refused, and the remedy.
pub(super) fn refusal(name: &str, args: &[Expr]) -> Option<(String, &'static str)> {
    if !AMPLIFIERS.contains(&name) {
        return None;
    }
    let (mut least, mut most) = (0_i128, 0_i128);
    for arg in args.iter().filter(|arg| arg.column_refs().is_empty()) {
        let Some(value) = literal(arg) else {
            return Some((
                format!("{name} with the constant {arg}, which planning would have to compute"),
                "write the value itself as a literal, or take it from a column",
            ));
        };
        if let Some(number) = number(&value) {
            (least, most) = (least.min(number), most.max(number));
        }
        if text_bytes(&value).is_some_and(|bytes| bytes > MAX_TEXT) {
            return Some((format!("{name} with a constant text of more than {MAX_TEXT} bytes"), "take the text from a column"));
        }
    }
    // Bounds of a range are as far apart as they are; everything else counts from 0.
    let numbers: Vec<i128> = args.iter().filter_map(literal).filter_map(|value| number(&value)).collect();
    let span = match (name, numbers.as_slice()) {
        ("range" | "generate_series", [from, to, ..]) => to.abs_diff(*from),
        // Of floating-point constants the ends of the type may be left.
        _ => most.abs_diff(least),
    };
    (span > MAX_COUNT).then(|| (format!("{name} over {span}"), "at most 1000000 is admitted; compute larger values in a source view"))
}

/// The literal under casts, signs and aliases.
fn literal(expr: &Expr) -> Option<ScalarValue> {
    match expr {
        Expr::Literal(value, _) => Some(value.clone()),
        Expr::Alias(alias) => literal(&alias.expr),
        Expr::Cast(cast) => literal(&cast.expr),
        Expr::TryCast(cast) => literal(&cast.expr),
        Expr::Negative(inner) => literal(inner)?.arithmetic_negate().ok(),
        _ => None,
    }
}

fn number(value: &ScalarValue) -> Option<i128> {
    match value {
        ScalarValue::UInt64(Some(n)) => Some(i128::from(*n)),
        ScalarValue::Decimal128(Some(n), _, _) => Some(*n),
        ScalarValue::Float64(Some(n)) => Some(*n as i128),
        ScalarValue::Float32(Some(n)) => Some(*n as i128),
        ScalarValue::Utf8(Some(text)) => text.trim().parse::<i128>().ok(),
        other => match other.cast_to(&arrow_schema::DataType::Int64) {
            Ok(ScalarValue::Int64(n)) if other.data_type().is_integer() => n.map(i128::from),
            _ => None,
        },
    }
}

fn text_bytes(value: &ScalarValue) -> Option<usize> {
    match value {
        ScalarValue::Utf8(text) | ScalarValue::LargeUtf8(text) | ScalarValue::Utf8View(text) => text.as_ref().map(String::len),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::{col, lit};

    use super::*;

    #[test]
    fn only_what_planning_could_blow_up_is_refused() {
        let refused = |name: &str, args: Vec<Expr>| refusal(name, &args).is_some();
        assert!(refused("repeat", vec![lit("x"), lit(2_000_000_000_i64)]));
        assert!(refused("repeat", vec![lit("x"), lit(1000_i64) * lit(1000_i64)]));
        assert!(refused("repeat", vec![col("v"), lit(1000_i64) * lit(1000_i64)]));
        assert!(refused("range", vec![lit(0_i64), lit(10_000_000_000_i64)]));
        assert!(refused("range", vec![lit(-1e300), lit(1e300)]));
        assert!(refused("repeat", vec![lit(-1e300), lit(1e300)]));
        assert!(!refused("range", vec![lit(1_700_000_000_i64), lit(1_700_000_010_i64)]));
        assert!(!refused("repeat", vec![col("v"), lit(3_i64)]));
        assert!(!refused("repeat", vec![col("v"), col("n") * lit(3_i64)]));
        assert!(!refused("lpad", vec![col("v"), lit(10_i64), lit("0")]));
        assert!(!refused("upper", vec![lit("x")]));
    }
}
