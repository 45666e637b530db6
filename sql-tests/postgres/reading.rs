//! Reads of one moment: scopes, filters, order, positions; and what others do meanwhile.

use datafusion::common::ScalarValue;
use datafusion_incremental::ErrorCode;
use datafusion_incremental::sync::connector::{FilterOperator, ReadRequest, ReadScope, RowFilter};
use futures::StreamExt;

use crate::Test;
use crate::world::{World, everything, render, values};

pub const TESTS: &[Test] = &[
    ("a_snapshot_does_not_move", a_snapshot_does_not_move),
    ("a_late_commit_is_seen_by_the_next_snapshot_only", a_late_commit_is_seen_by_the_next_snapshot_only),
    ("ranges_are_closed", ranges_are_closed),
    ("null_cursors_are_read_on_their_own", null_cursors_are_read_on_their_own),
    ("ceilings_of_every_type_with_an_order", ceilings_of_every_type_with_an_order),
    ("a_ceiling_beyond_all_numbers_is_refused", a_ceiling_beyond_all_numbers_is_refused),
    ("a_read_goes_on_after_a_position_among_equal_values", a_read_goes_on_after_a_position_among_equal_values),
    ("text_keys_are_ordered_by_bytes", text_keys_are_ordered_by_bytes),
    ("positions_of_every_key_type", positions_of_every_key_type),
    ("filters_are_typed_and_all_hold", filters_are_typed_and_all_hold),
    ("texts_are_equal_byte_by_byte", texts_are_equal_byte_by_byte),
    ("types_of_extensions_are_found_wherever_they_are", types_of_extensions_are_found_wherever_they_are),
    ("functions_behind_a_view_find_their_tables", functions_behind_a_view_find_their_tables),
    ("a_large_table_that_was_never_counted_is_read_in_order", a_large_table_that_was_never_counted_is_read_in_order),
    ("batches_are_limited", batches_are_limited),
    ("no_columns_still_count_rows", no_columns_still_count_rows),
    ("unknown_columns_name_the_nearest", unknown_columns_name_the_nearest),
];

fn range(column: &str, lower: Option<ScalarValue>, upper: Option<ScalarValue>) -> ReadScope {
    ReadScope::Range { column: column.into(), lower, upper }
}

fn filter(column: &str, operator: FilterOperator, values: &[ScalarValue]) -> RowFilter {
    RowFilter { column: column.into(), operator, values: values.to_vec() }
}

fn a_snapshot_does_not_move(world: &World) {
    world.sql("CREATE TABLE t (id int PRIMARY KEY, at int); INSERT INTO t SELECT i, i FROM generate_series(1, 100) i");
    let snapshot = world.snapshot("t");
    let ceiling = world.runtime.block_on(snapshot.ceiling("at", &[])).unwrap();
    assert_eq!(ceiling, Some(ScalarValue::Int32(Some(100))));
    // A writer commits between the ceiling and the read: a higher row, a row below the ceiling, an update, a delete.
    world.sql("INSERT INTO t VALUES (101, 101), (102, 50); UPDATE t SET at = 200 WHERE id = 7; DELETE FROM t WHERE id = 8");
    let request = ReadRequest { scope: range("at", None, ceiling), ..everything(&snapshot, &["at", "id"]) };
    let rows = world.rows(&snapshot, request);
    assert_eq!(rows.len(), 100);
    assert!(rows.contains(&"7|7".to_string()) && rows.contains(&"8|8".to_string()) && !rows.contains(&"102|50".to_string()));
    assert_eq!(world.rows(&snapshot, everything(&snapshot, &[])).len(), 100);
    world.runtime.block_on(snapshot.finish()).unwrap();
    drop(snapshot);
    assert_eq!(world.table("t", &[]).len(), 101);
}

fn a_late_commit_is_seen_by_the_next_snapshot_only(world: &World) {
    world.sql("CREATE TABLE t (id int PRIMARY KEY, at int); INSERT INTO t VALUES (1, 10), (2, 20)");
    let late = world.client();
    world.runtime.block_on(late.batch_execute("BEGIN; INSERT INTO t VALUES (3, 15)")).unwrap();
    let snapshot = world.snapshot("t");
    world.runtime.block_on(late.batch_execute("COMMIT")).unwrap();
    assert_eq!(world.rows(&snapshot, everything(&snapshot, &["id"])), ["1|10", "2|20"]);
    drop(snapshot);
    let snapshot = world.snapshot("t");
    let lower = range("at", Some(ScalarValue::Int32(Some(12))), None);
    assert_eq!(world.rows(&snapshot, ReadRequest { scope: lower, ..everything(&snapshot, &["id"]) }), ["2|20", "3|15"]);
}

fn ranges_are_closed(world: &World) {
    world.sql("CREATE TABLE t (id int PRIMARY KEY, at timestamptz); INSERT INTO t SELECT i, to_timestamp(i) FROM generate_series(0, 9) i");
    let snapshot = world.snapshot("t");
    let at = |seconds: i64| Some(ScalarValue::TimestampMicrosecond(Some(seconds * 1_000_000), Some("UTC".into())));
    let ids = |lower, upper| {
        let request = ReadRequest { columns: vec!["id".into()], scope: range("at", lower, upper), ..everything(&snapshot, &["id"]) };
        world.rows(&snapshot, request).join("")
    };
    assert_eq!(ids(at(3), at(5)), "345");
    assert_eq!(ids(at(7), None), "789");
    assert_eq!(ids(None, at(0)), "0");
    assert_eq!(ids(None, None), "0123456789");
    assert_eq!(ids(at(5), at(4)), "");
}

fn null_cursors_are_read_on_their_own(world: &World) {
    world.sql("CREATE TABLE t (id int PRIMARY KEY, at date, v int); INSERT INTO t VALUES (1, NULL, 1), (2, '2024-01-01', 1), (3, NULL, 2)");
    let snapshot = world.snapshot("t");
    let read = |scope| world.rows(&snapshot, ReadRequest { columns: vec!["id".into()], scope, ..everything(&snapshot, &["id"]) });
    assert_eq!(read(ReadScope::Null { column: "at".into() }), ["1", "3"]);
    assert_eq!(read(range("at", None, None)), ["2"]);
    assert_eq!(world.runtime.block_on(snapshot.count_nulls("at", &[])).unwrap(), 2);
    let open = [filter("v", FilterOperator::Eq, &[ScalarValue::Int32(Some(1))])];
    assert_eq!(world.runtime.block_on(snapshot.count_nulls("at", &open)).unwrap(), 1);
    world.sql("DELETE FROM t WHERE id = 2");
    let snapshot = world.snapshot("t");
    assert_eq!(world.runtime.block_on(snapshot.ceiling("at", &[])).unwrap(), None);
}

fn ceilings_of_every_type_with_an_order(world: &World) {
    world.sql("CREATE EXTENSION IF NOT EXISTS citext; CREATE TYPE e AS ENUM ('z', 'a')");
    for (ty, values, greatest) in [
        ("int2", "(1),(3),(2),(NULL)", "3"),
        ("float8", "(1),(-0.5)", "1.0"),
        ("numeric(9,3)", "(1.25),(1.2)", "1.250"),
        ("numeric", "(10),(9.99)", "10.00"),
        ("date", "('2024-01-01'),('0001-01-01 BC')", "2024-01-01"),
        ("time", "('10:00'),('09:00')", "10:00:00"),
        ("timestamp", "('2024-01-01 00:00:00.000001'),('2024-01-01')", "2024-01-01T00:00:00.000001"),
        ("timestamptz", "('2024-01-01 00:00+02'),('2024-01-01 00:00+00')", "2024-01-01T00:00:00Z"),
        (
            "uuid",
            "('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'),('00000000-0000-0000-0000-000000000000')",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        ),
        ("text", "('b'),('B'),('é'),('z')", "é"),
        ("citext", "('b'),('C')", "b"),
        ("bool", "(false),(true)", "true"),
        ("bytea", "('\\x01'),('\\x0100')", "0100"),
        ("e", "('a'),('z')", "a"),
    ] {
        world.sql(&format!("DROP TABLE IF EXISTS t; CREATE TABLE t (v {ty}); INSERT INTO t VALUES {values}"));
        let snapshot = world.snapshot("t");
        let ceiling = world.runtime.block_on(snapshot.ceiling("v", &[])).unwrap().unwrap();
        // The ceiling bounds every row, and one row meets it.
        let all = world.rows(&snapshot, ReadRequest { scope: range("v", None, Some(ceiling.clone())), ..everything(&snapshot, &[]) });
        let top = world.rows(&snapshot, ReadRequest { scope: range("v", Some(ceiling), None), ..everything(&snapshot, &[]) });
        assert_eq!(
            (all.len(), top),
            (values.matches("),(").count() + 1 - values.matches("NULL").count(), vec![greatest.to_string()]),
            "{ty}"
        );
    }
}

fn a_ceiling_beyond_all_numbers_is_refused(world: &World) {
    for (ty, value) in [("float8", "'NaN'"), ("float4", "'Infinity'"), ("timestamptz", "'infinity'"), ("numeric(5,1)", "'NaN'")] {
        world.sql(&format!("DROP TABLE IF EXISTS t; CREATE TABLE t (id int, v {ty}); INSERT INTO t VALUES (1, {value}), (2, NULL)"));
        let snapshot = world.snapshot("t");
        let error = world.runtime.block_on(snapshot.ceiling("v", &[])).unwrap_err();
        assert_eq!(error.code(), ErrorCode::ValueOutOfRange, "{ty}: {error}");
        assert!(error.message().contains("\"v\""), "{error}");
        // A filter keeps such rows away.
        let other = [filter("id", FilterOperator::NotEq, &[ScalarValue::Int32(Some(1))])];
        let snapshot = world.snapshot("t");
        assert_eq!(world.runtime.block_on(snapshot.ceiling("v", &other)).unwrap(), None);
    }
}

fn a_read_goes_on_after_a_position_among_equal_values(world: &World) {
    world.sql("CREATE TABLE t (a int, b text, at date, PRIMARY KEY (a, b)); INSERT INTO t SELECT i % 7, 'k' || i, date '2024-01-01' + i / 40 FROM generate_series(0, 199) i");
    let snapshot = world.snapshot("t");
    let request = ReadRequest { columns: ["at", "a", "b"].map(String::from).to_vec(), ..everything(&snapshot, &["at", "a", "b"]) };
    let all = world.rows(&snapshot, request.clone());
    assert_eq!(all.len(), 200);
    // Page by page, each from the last row of the page before, as after an interruption.
    for page in [1, 3, 64] {
        let (mut after, mut rows) = (None, vec![]);
        loop {
            let request = ReadRequest { after: after.clone(), ..request.clone() };
            let batches = world.batches(&snapshot, request).unwrap();
            let lines = render(&batches);
            if lines.is_empty() {
                break;
            }
            let taken = page.min(lines.len());
            rows.extend_from_slice(&lines[..taken]);
            after = Some((0..3).map(|column| values(&batches, column)[taken - 1].clone()).collect());
        }
        assert_eq!(rows, all, "pages of {page}");
    }
}

fn text_keys_are_ordered_by_bytes(world: &World) {
    world.sql(
        "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
         CREATE TABLE t (k text COLLATE \"en_US\" , n text COLLATE blind)"
            .replace("COLLATE \"en_US\" ", "")
            .as_str(),
    );
    world.sql("INSERT INTO t VALUES ('a', 'x'), ('B', 'X'), ('é', 'y'), ('Z', 'Y'), ('a ', 'z'), ('', 'Z')");
    let snapshot = world.snapshot("t");
    let keys = |column: &str| {
        let request = ReadRequest { columns: vec![column.into()], ..everything(&snapshot, &[column]) };
        world.rows(&snapshot, request)
    };
    assert_eq!(keys("k"), ["", "B", "Z", "a", "a ", "é"]);
    // A collation under which 'x' = 'X' would lose one of each pair at a position.
    assert_eq!(keys("n"), ["X", "Y", "Z", "x", "y", "z"]);
    let after = Some(vec![ScalarValue::from("X")]);
    let request = ReadRequest { columns: vec!["n".into()], after, ..everything(&snapshot, &["n"]) };
    assert_eq!(world.rows(&snapshot, request), ["Y", "Z", "x", "y", "z"]);
}

fn positions_of_every_key_type(world: &World) {
    world.sql("CREATE EXTENSION IF NOT EXISTS citext; CREATE TYPE e AS ENUM ('z', 'a', 'm')");
    for (ty, values_sql) in [
        ("bool", "(false),(true)"),
        ("int8", "(-9223372036854775808),(0),(9223372036854775807)"),
        ("float8", "('-Infinity'),(0),(0.1),('Infinity'),('NaN')"),
        ("numeric(20,5)", "(-1.00001),(0),(1)"),
        ("money", "(-1.5),(0),(2)"),
        ("text", "(''),('a'),('A'),('''x'),('é')"),
        ("bpchar(3)", "('a'),('b'),('aa')"),
        ("citext", "('a'),('b'),('C')"),
        ("name", "('a'),('b')"),
        ("e", "('z'),('a'),('m')"),
        ("uuid", "('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'),('00000000-0000-0000-0000-000000000000')"),
        ("bytea", "('\\x'),('\\x00'),('\\xff')"),
        ("date", "('4714-11-24 BC'),('2024-01-01'),('5874897-12-31')"),
        ("time", "('00:00'),('23:59:59.999999')"),
        ("timestamp", "('4714-11-24 BC'),('1969-12-31 23:59:59.999999'),('100000-01-01')"),
        ("timestamptz", "('4713-01-01 00:00+00 BC'),('2024-01-01 00:00+02')"),
        ("interval", "('1 day'),('-1 mon'),('25:00')"),
        ("inet", "('10.0.0.1'),('10.0.0.0/8')"),
        ("timetz", "('10:00+02'),('10:00-02')"),
        ("int4range", "('[1,2)'),('empty')"),
    ] {
        world.sql(&format!("DROP TABLE IF EXISTS t; CREATE TABLE t (k {ty} PRIMARY KEY); INSERT INTO t VALUES {values_sql}"));
        let snapshot = world.snapshot("t");
        let all = world.batches(&snapshot, everything(&snapshot, &["k"])).unwrap();
        let (lines, keys) = (values(&all, 0), values(&all, 0));
        assert_eq!(lines.len(), values_sql.matches("),(").count() + 1, "{ty}");
        for (position, key) in keys.into_iter().enumerate() {
            let rest = world.batches(&snapshot, ReadRequest { after: Some(vec![key]), ..everything(&snapshot, &["k"]) }).unwrap();
            assert_eq!(values(&rest, 0), lines[position + 1..], "{ty} after {position}");
        }
    }
}

fn filters_are_typed_and_all_hold(world: &World) {
    world.sql(
        "CREATE TABLE t (id int PRIMARY KEY, s text, n numeric(6,2), at timestamp);
         INSERT INTO t VALUES (1, 'a', 1.10, '2024-01-01'), (2, 'B', 1.1, '2024-01-02'), (3, NULL, 10, NULL), (4, '10', -1, '2024-01-03')",
    );
    let snapshot = world.snapshot("t");
    let ids = |filters: Vec<RowFilter>| {
        world.rows(&snapshot, ReadRequest { columns: vec!["id".into()], filters, ..everything(&snapshot, &["id"]) }).join("")
    };
    let text = |value: &str| ScalarValue::from(value);
    let number = |cents: i128| ScalarValue::Decimal128(Some(cents), 6, 2);
    use FilterOperator::{Eq, Gt, GtEq, In, Lt, LtEq, NotEq, NotIn};
    assert_eq!(ids(vec![filter("n", Eq, &[number(110)])]), "12");
    assert_eq!(ids(vec![filter("n", Gt, &[number(110)])]), "3");
    assert_eq!(ids(vec![filter("n", GtEq, &[number(110)]), filter("s", NotEq, &[text("a")])]), "2");
    assert_eq!(ids(vec![filter("s", In, &[text("a"), text("10")])]), "14");
    assert_eq!(ids(vec![filter("s", NotIn, &[text("a"), text("10")])]), "2");
    // Text by bytes: capitals before small letters, digits before both.
    assert_eq!(ids(vec![filter("s", Lt, &[text("a")])]), "24");
    assert_eq!(ids(vec![filter("at", LtEq, &[ScalarValue::TimestampMicrosecond(Some(1_704_153_600_000_000), None)])]), "12");
    for (values, part) in [
        (vec![], "0 values"),
        (vec![number(1), number(2)], "2 values"),
        (vec![ScalarValue::Int64(Some(1))], "\"n\" cannot be compared"),
        (vec![ScalarValue::Decimal128(None, 6, 2)], "\"n\" cannot be compared"),
    ] {
        let request = ReadRequest { filters: vec![filter("n", Eq, &values)], ..everything(&snapshot, &[]) };
        let error = world.batches(&snapshot, request).unwrap_err();
        assert_eq!(error.code(), ErrorCode::ConfigInvalid);
        assert!(error.message().contains(part), "{error}");
    }
}

fn texts_are_equal_byte_by_byte(world: &World) {
    world.sql(
        "CREATE EXTENSION citext; CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
         CREATE TABLE t (id int PRIMARY KEY, folded citext, own text COLLATE blind); CREATE INDEX ON t (own);
         INSERT INTO t VALUES (1, 'x', 'x'), (2, 'X', 'X'), (3, 'y', 'y'), (4, NULL, NULL)",
    );
    let snapshot = world.snapshot("t");
    use FilterOperator::{Eq, In, Lt, NotEq, NotIn};
    for column in ["folded", "own"] {
        for (operator, values, ids) in [
            (Eq, vec!["X"], "2"),
            (NotEq, vec!["X"], "13"),
            (In, vec!["x", "y"], "13"),
            (NotIn, vec!["x", "Y"], "23"),
            (Lt, vec!["x"], "2"),
        ] {
            let values: Vec<ScalarValue> = values.into_iter().map(ScalarValue::from).collect();
            let filters = vec![filter(column, operator, &values)];
            let request = ReadRequest { columns: vec!["id".into()], filters, ..everything(&snapshot, &["id"]) };
            assert_eq!(world.rows(&snapshot, request).join(""), ids, "{column} {operator:?}");
        }
    }
}

fn types_of_extensions_are_found_wherever_they_are(world: &World) {
    world.sql(
        "CREATE SCHEMA \"Ext\"; CREATE EXTENSION ltree SCHEMA \"Ext\"; CREATE EXTENSION citext SCHEMA \"Ext\";
         CREATE DOMAIN way AS \"Ext\".ltree; CREATE TABLE t (k \"Ext\".ltree, d way, c \"Ext\".citext, id int, PRIMARY KEY (k, id));
         INSERT INTO t VALUES ('a.b', 'a', 'x', 1), ('a', 'b', 'X', 2), ('b', 'c', 'y', 1); ALTER TABLE t SET (autovacuum_enabled = off);
         UPDATE pg_class SET reltuples = 5e6 WHERE relname = 't'",
    );
    let snapshot = world.snapshot("t");
    assert!(!snapshot.reads_in_order(), "the order of an extension's type is its own");
    let text = |value: &str| ScalarValue::from(value);
    let keys = |request: ReadRequest| world.rows(&snapshot, ReadRequest { columns: vec!["k".into()], ..request });
    for (column, value) in [("k", "a.b"), ("d", "a"), ("c", "x")] {
        let filters = vec![filter(column, FilterOperator::In, &[text(value), text("zz")])];
        assert_eq!(keys(ReadRequest { filters, ..everything(&snapshot, &[]) }), ["a.b"], "{column}");
    }
    let after = |values: Vec<ScalarValue>, order: &[&str]| keys(ReadRequest { after: Some(values), ..everything(&snapshot, order) });
    assert_eq!(after(vec![text("a")], &["k"]), ["a.b", "b"]);
    // Operators of two schemas in one order.
    assert_eq!(after(vec![text("a"), ScalarValue::Int32(Some(1))], &["k", "id"]), ["a", "a.b", "b"]);
    assert_eq!(after(vec![ScalarValue::Int32(Some(1)), text("a.b")], &["id", "k"]), ["b", "a"]);
    world.sql("CREATE TABLE plain (id int PRIMARY KEY); UPDATE pg_class SET reltuples = 5e6 WHERE relname = 'plain'");
    assert!(world.snapshot("plain").reads_in_order());
}

fn functions_behind_a_view_find_their_tables(world: &World) {
    world.sql(
        "CREATE SCHEMA app; CREATE TABLE app.base (id int); INSERT INTO app.base VALUES (1);
         CREATE FUNCTION app.counted() RETURNS numeric LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT count(*) FROM base); END';
         CREATE VIEW v AS SELECT app.counted() AS n",
    );
    world.sql(&format!("ALTER DATABASE {} SET search_path = app, public", world.database));
    assert_eq!(world.discover("v").columns[0].data_type.to_string(), "Decimal128(38, 0)");
    assert_eq!(world.table("v", &[]), ["1"]);
}

fn a_large_table_that_was_never_counted_is_read_in_order(world: &World) {
    world.sql(
        "CREATE TABLE t (id int PRIMARY KEY, v text) WITH (autovacuum_enabled = off); ALTER TABLE t ALTER v SET STORAGE PLAIN;
         INSERT INTO t SELECT i, repeat('x', 7500) FROM generate_series(1, 26000) i; CREATE TABLE small (id int PRIMARY KEY)",
    );
    assert!(world.snapshot("t").reads_in_order(), "about 200 MB");
    assert!(!world.snapshot("small").reads_in_order());
}

fn batches_are_limited(world: &World) {
    world.sql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, repeat('x', 3000) FROM generate_series(1, 10000) i");
    let snapshot = world.snapshot("t");
    let sizes = |batch_rows| -> Vec<usize> {
        let request = ReadRequest { batch_rows, ..everything(&snapshot, &["id"]) };
        world.batches(&snapshot, request).unwrap().iter().map(|batch| batch.num_rows()).collect()
    };
    assert_eq!(sizes(4000), [2778, 2778, 2778, 1666], "by bytes: 8 MiB of 3,000 characters each");
    assert_eq!(sizes(999), [vec![999; 10], vec![10]].concat());
    let mut request = everything(&snapshot, &["id"]);
    (request.columns, request.batch_rows) = (vec!["id".into()], 10_000);
    assert_eq!(world.batches(&snapshot, request).unwrap().len(), 1, "exactly full is one batch, and no empty one behind it");
}

fn no_columns_still_count_rows(world: &World) {
    world.sql("CREATE TABLE t (id int); INSERT INTO t VALUES (1), (2), (3)");
    let snapshot = world.snapshot("t");
    let request = ReadRequest { columns: vec![], ..everything(&snapshot, &[]) };
    assert_eq!(world.batches(&snapshot, request).unwrap().iter().map(|batch| batch.num_rows()).sum::<usize>(), 3);
}

fn unknown_columns_name_the_nearest(world: &World) {
    world.sql("CREATE TABLE t (id int, updated_at date)");
    let snapshot = world.snapshot("t");
    let error = world.runtime.block_on(snapshot.ceiling("updatet_at", &[])).unwrap_err();
    assert_eq!(error.code(), ErrorCode::FieldNotFound);
    assert!(error.message().contains("\"updated_at\""), "{error}");
    // The stream of an empty table ends without a batch.
    let stream = world.runtime.block_on(snapshot.read(everything(&snapshot, &[]))).unwrap();
    assert_eq!(world.runtime.block_on(stream.count()), 0);
}
