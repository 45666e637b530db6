//! Arrays: elements, nulls, bounds and dimensions.

use datafusion_incremental::ErrorCode;

use crate::Test;
use crate::world::{World, everything};

pub const TESTS: &[Test] = &[
    ("elements_arrive_typed", elements_arrive_typed),
    ("two_dimensions_are_text_where_declared", two_dimensions_are_text_where_declared),
    ("two_dimensions_are_refused_where_not_declared", two_dimensions_are_refused_where_not_declared),
];

fn elements_arrive_typed(world: &World) {
    world.sql(
        "CREATE TABLE t (id int PRIMARY KEY, i int[], s text[], b bool[], f float8[], n numeric(6,2)[], u uuid[], d date[],
                         z timestamptz[], j jsonb[], v inet[]);
         INSERT INTO t VALUES
         (1, '{1,NULL,-3}', '{\"a,b\",NULL,\"\",\"NULL\",\"q\\\"\"}', '{t,f,NULL}', '{NaN,-0,Infinity}', '{1.5,NULL}',
             '{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}', '{2024-01-01,NULL}', '{2024-01-01 00:00+02}', '{\"{\\\"a\\\": 1}\",NULL}', '{10.0.0.1}'),
         (2, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}'),
         (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
         (4, '[5:6]={7,8}', '[0:0]={x}', '{t}', '{1}', '{2}', '{}', '{}', '{}', '{}', '{}')",
    );
    let snapshot = world.snapshot("t");
    let types: Vec<String> = snapshot.table().columns[1..].iter().map(|column| column.data_type.to_string()).collect();
    let expected = [
        "List(Int32)",
        "List(Utf8)",
        "List(Boolean)",
        "List(Float64)",
        "List(Decimal128(6, 2))",
        "List(Utf8)",
        "List(Date32)",
        "List(Timestamp(µs, \"UTC\"))",
        "List(Utf8)",
        "List(Utf8)",
    ];
    assert_eq!(types, expected);
    let rows = world.table("t", &["id"]);
    assert_eq!(
        rows[0],
        "1|[1, NULL, -3]|[a,b, NULL, , NULL, q\"]|[true, false, NULL]|[NaN, -0.0, inf]|[1.50, NULL]|[a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11]|\
         [2024-01-01, NULL]|[2023-12-31T22:00:00Z]|[{\"a\": 1}, NULL]|[10.0.0.1/32]"
    );
    assert_eq!(rows[1], "2|[]|[]|[]|[]|[]|[]|[]|[]|[]|[]");
    assert_eq!(rows[2], "3|NULL|NULL|NULL|NULL|NULL|NULL|NULL|NULL|NULL|NULL");
    // Where an array starts counting is not kept; what it holds is.
    assert!(rows[3].starts_with("4|[7, 8]|[x]|"), "{}", rows[3]);
}

fn two_dimensions_are_text_where_declared(world: &World) {
    world.sql(
        "CREATE TABLE t (id int PRIMARY KEY, m int[][]); INSERT INTO t VALUES (1, '{{1,2},{3,NULL}}'), (2, '{7}'), (3, '[0:1]={1,2}')",
    );
    assert_eq!(world.table("t", &["id"]), ["1|{{1,2},{3,NULL}}", "2|{7}", "3|[0:1]={1,2}"]);
}

fn two_dimensions_are_refused_where_not_declared(world: &World) {
    world.sql("CREATE TABLE t (id int PRIMARY KEY, m int[]); INSERT INTO t VALUES (1, '{1}'), (2, '{{1,2}}')");
    let snapshot = world.snapshot("t");
    let error = world.batches(&snapshot, everything(&snapshot, &["id"])).unwrap_err();
    assert_eq!(error.code(), ErrorCode::ValueOutOfRange);
    for part in ["column \"m\"", "id = 2", "an array of 2 dimensions", "enabled_columns"] {
        assert!(error.message().contains(part), "{part}: {error}");
    }
}
