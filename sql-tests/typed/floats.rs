//! Floats as values: every NaN is one, both zeros are one, everything else is exact, at every depth.

use arrow::array::ArrayRef;
use arrow_schema::DataType as T;

use super::arrays::*;
use super::{Form, Table, Via, scenario, value_case};
use datafusion_incremental::exec::equality::KeyHash;

/// NaN, zero and a value that changes in the last place, before and after, for each width.
fn pairs() -> Vec<(ArrayRef, ArrayRef)> {
    vec![
        (f64s(&[f64::NAN, 0.0, 0.1 + 0.2]), f64s(&[f64::from_bits(0xfff0_0000_0000_0001), -0.0, 0.3])),
        (f32s(&[f32::NAN, 0.0, 1.0]), f32s(&[f32::from_bits(0xff80_0001), -0.0, f32::from_bits(0x3f80_0001)])),
        (f16s(&[0x7e00, 0, 0x3c00]), f16s(&[0xfc01, 0x8000, 0x3c01])),
    ]
}

fn three(array: ArrayRef) -> ArrayRef {
    dictionary(&[Some(0), Some(1), Some(2)], array)
}

fn mapped(values: ArrayRef) -> ArrayRef {
    map(&[1, 1, 1], words(&["k", "k", "k"]), values, &[true; 3])
}

type Nest = fn(ArrayRef) -> ArrayRef;

#[tokio::test]
async fn at_every_depth() {
    for (old, new) in pairs() {
        let nests: Vec<(&str, Nest)> = vec![
            ("plain", |a| a),
            ("list", singles),
            ("struct", boxed),
            ("fixed list", |a| fixed_list(1, a, &[true; 3])),
            ("dictionary", three),
            ("runs", |a| runs(&[1, 2, 3], a)),
            ("map value", mapped),
            ("map key", |a| map(&[1, 1, 1], a, words(&["v", "v", "v"]), &[true; 3])),
            ("map of map", |a| mapped(mapped(a))),
            ("list of struct of dictionary", |a| singles(boxed(three(a)))),
            ("struct of list of map", |a| boxed(singles(mapped(a)))),
            ("dictionary of struct", |a| three(boxed(a))),
            ("view of list", |a| list_view(&[0, 1, 2], &[1, 1, 1], singles(a), &[true; 3])),
        ];
        for (how, nest) in nests {
            value_case(&format!("{how} of {}", old.data_type()), nest(old.clone()), sliced(&nest(new.clone())), "==U").await;
        }
    }
}

#[tokio::test]
async fn infinities_subnormals_and_extremes_are_exact() {
    let old = f64s(&[f64::INFINITY, f64::MIN_POSITIVE, f64::MAX, f64::from_bits(1), 1e15 + 0.25, f64::NAN]);
    let new = f64s(&[f64::NEG_INFINITY, f64::MIN_POSITIVE, f64::MAX, f64::from_bits(2), 1e15 + 0.375, f64::INFINITY]);
    value_case("extremes", old, new, "U==UUU").await;
    value_case("zero is not the smallest", f64s(&[0.0, -0.0]), f64s(&[f64::from_bits(1), -f64::from_bits(1)]), "UU").await;
}

#[tokio::test]
async fn each_column_counts() {
    let columns = |v: ArrayRef, s: ArrayRef, l: ArrayRef, d: ArrayRef| {
        batch(&[("id", ids(3)), ("v", v), ("s", boxed(s)), ("l", singles(l)), ("d", three(d))])
    };
    let (old, new) = pairs().remove(0);
    let o = || old.clone();
    let first = columns(o(), o(), o(), o());
    for second in [
        columns(new.clone(), o(), o(), o()),
        columns(o(), new.clone(), o(), o()),
        columns(o(), o(), new.clone(), o()),
        columns(o(), o(), o(), new.clone()),
    ] {
        scenario("one of four", &["id"], &[(&first, "CCC"), (&second, "==U")]).await;
    }
}

/// Pruning by bounds must not lose rows that the filter keeps.
#[tokio::test]
async fn published_zeros_and_nans_are_found_by_filters() {
    for t in [T::Float64, T::Float32, T::Float16] {
        for values in [vec![-0.0], vec![0.0], vec![-0.0, 1.0], vec![f64::NAN, 1.0], vec![f64::NAN], vec![-1.0, -0.0]] {
            let table = Table::new(KeyHash::Xxh3).await;
            let rows = batch(&[("id", ids(values.len())), ("v", to(&f64s(&values), t.clone()))]);
            table.put(&rows, Form::Whole).await;
            table.define(Via::Sql, &["id"], &["*"]).await.unwrap();
            table.run().await.unwrap();
            for filter in [
                "v = 0.0",
                "v >= 0.0",
                "v <= 0.0",
                "v > -1e-300",
                "v = -0.0",
                "v < 0.5",
                "v > 5",
                "v <> 1.0",
                "v IN (0.0)",
                "isnan(v)",
                "v BETWEEN 0.0 AND 0.5",
            ] {
                let mut found = vec![];
                for source in ["s", "t"] {
                    let sql = format!("SELECT id FROM {source} WHERE {filter} ORDER BY id");
                    let rows = table.session.context().sql(&sql).await.unwrap().collect().await.unwrap();
                    found.push(rows.iter().map(|b| b.num_rows()).sum::<usize>());
                }
                assert_eq!(found[0], found[1], "{t} {values:?} {filter}");
            }
        }
    }
}
