//! Times: the instant decides, units and zones are part of the type, the four spellings of UTC are one.

use arrow::array::ArrayRef;
use arrow_schema::{DataType as T, TimeUnit};
use datafusion_incremental::ErrorCode;

use super::arrays::*;
use super::{refused, scenario, value_case};

const UNITS: [TimeUnit; 4] = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];

fn instants(unit: TimeUnit, zone: Option<&str>, values: &[i64]) -> ArrayRef {
    to(&i64s(values), T::Timestamp(unit, zone.map(Into::into)))
}

#[tokio::test]
async fn instants_at_their_limits_are_exact() {
    for unit in UNITS {
        for zone in [None, Some("UTC"), Some("Europe/Paris"), Some("+05:30"), Some("America/New_York")] {
            let old = instants(unit, zone, &[i64::MIN, 0, i64::MAX, 1]);
            let new = instants(unit, zone, &[i64::MIN, 0, i64::MAX - 1, -1]);
            value_case(&format!("{unit:?} {zone:?}"), old, new, "==UU").await;
        }
    }
}

#[tokio::test]
async fn utc_has_several_names() {
    let names = ["UTC", "Z", "+00:00", "Etc/UTC"];
    for (at, a) in names.iter().enumerate() {
        for (b, unit) in names.iter().zip(UNITS.iter().cycle().skip(at)) {
            value_case(&format!("{unit:?} {a} {b}"), instants(*unit, Some(a), &[0, 1]), instants(*unit, Some(b), &[0, 2]), "=U").await;
        }
    }
    let (a, b) = (instants(UNITS[2], Some("Z"), &[0, 1]), instants(UNITS[2], Some("+00:00"), &[0, 1]));
    value_case("in a list", singles(a.clone()), singles(b.clone()), "==").await;
    value_case("in a map", map(&[1, 1], a.clone(), a.clone(), &[true; 2]), map(&[1, 1], b.clone(), b.clone(), &[true; 2]), "==").await;
    value_case("in a dictionary", dictionary(&[Some(0), Some(1)], a), dictionary(&[Some(1), Some(0)], instants(UNITS[2], Some("UTC"), &[1, 0])), "==").await;
}

#[tokio::test]
async fn zones_and_units_are_the_type() {
    let us = TimeUnit::Microsecond;
    let zoned = |zone: &str| T::Timestamp(us, Some(zone.into()));
    let changes = [
        (zoned("UTC"), zoned("+05:30")),
        (zoned("UTC"), T::Timestamp(us, None)),
        (T::Timestamp(us, None), zoned("UTC")),
        (zoned("Europe/Paris"), zoned("Europe/Berlin")),
        (zoned("Europe/London"), zoned("UTC")),
        (zoned("+01:00"), zoned("Europe/Paris")),
        (T::Timestamp(us, None), T::Timestamp(TimeUnit::Millisecond, None)),
        (zoned("UTC"), T::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))),
        (T::Duration(us), T::Duration(TimeUnit::Nanosecond)),
        (T::Duration(us), T::Int64),
        (T::Time64(us), T::Time64(TimeUnit::Nanosecond)),
        (T::Date64, T::Timestamp(TimeUnit::Millisecond, None)),
        (T::Int64, T::Timestamp(us, None)),
    ];
    for (at, (was, now)) in changes.into_iter().enumerate() {
        let rows = |t: &T, nest: fn(ArrayRef) -> ArrayRef| batch(&[("id", ids(2)), ("v", nest(to(&i64s(&[0, 0]), t.clone())))]);
        let needles = ["\"v\"".to_string(), was.to_string(), now.to_string()];
        let needles: Vec<&str> = needles.iter().map(String::as_str).collect();
        for nest in [(|a| a) as fn(ArrayRef) -> ArrayRef, if at % 2 == 0 { singles } else { boxed }] {
            refused(&format!("{was} → {now}"), &["id"], &rows(&was, nest), &rows(&now, nest), ErrorCode::SchemaChanged, &needles).await;
        }
    }
    let date = |t: T| batch(&[("id", ids(1)), ("v", to(&i32s(&[Some(0)]), t))]);
    refused("dates", &["id"], &date(T::Date32), &date(T::Date64), ErrorCode::SchemaChanged, &["\"v\"", "Date32", "Date64"]).await;
}

#[tokio::test]
async fn dates_times_and_durations_are_exact() {
    let cases: Vec<(T, Vec<i64>, Vec<i64>, &str)> = vec![
        (T::Date64, vec![0, 86_400_001, -1], vec![0, 86_400_000, -2], "=UU"),
        (T::Time64(TimeUnit::Nanosecond), vec![0, 86_399_999_999_999, 5], vec![0, 86_399_999_999_998, 5], "=U="),
        (T::Time64(TimeUnit::Microsecond), vec![0, 86_399_999_999, 5], vec![1, 86_399_999_999, 5], "U=="),
    ];
    for (t, old, new, verdicts) in cases {
        value_case(&t.to_string(), to(&i64s(&old), t.clone()), to(&i64s(&new), t), verdicts).await;
    }
    for unit in UNITS {
        let of = |v: &[i64]| to(&i64s(v), T::Duration(unit));
        value_case(&format!("duration {unit:?}"), of(&[i64::MIN, 0, i64::MAX]), of(&[i64::MIN, -1, i64::MAX]), "=U=").await;
    }
    let of = |t: T, v: &[i32]| to(&i32s(&v.iter().copied().map(Some).collect::<Vec<_>>()), t);
    for t in [T::Time32(TimeUnit::Second), T::Time32(TimeUnit::Millisecond)] {
        value_case(&t.to_string(), of(t.clone(), &[0, 86_399]), of(t, &[0, 86_398]), "=U").await;
    }
    value_case("date32", of(T::Date32, &[i32::MIN, 0, i32::MAX]), of(T::Date32, &[i32::MIN, 1, i32::MAX]), "=U=").await;
}

#[tokio::test]
async fn other_instants_of_a_key_are_other_keys() {
    let first = batch(&[("k", instants(TimeUnit::Nanosecond, Some("UTC"), &[1_000, 1_001])), ("v", ids(2))]);
    let second = batch(&[("k", instants(TimeUnit::Nanosecond, Some("Z"), &[1_001, 1_002])), ("v", i64s(&[2, 2]))]);
    scenario("nanoseconds", &["k"], &[(&first, "CC"), (&second, "=C")]).await;
}
