//! Every type there and back: what the server holds arrives exactly, and what arrived finds its row again as a condition.

use datafusion::common::ScalarValue;
use datafusion_incremental::ErrorCode;
use datafusion_incremental::sync::connector::{FilterOperator, RowFilter};

use crate::Test;
use crate::world::{World, everything, render, values};

pub const TESTS: &[Test] = &[
    ("integers_and_booleans", integers_and_booleans),
    ("floats", floats),
    ("declared_numerics", declared_numerics),
    ("open_numerics_are_measured", open_numerics_are_measured),
    ("money", money),
    ("texts", texts),
    ("bytes_uuid_json", bytes_uuid_json),
    ("dates_and_times", dates_and_times),
    ("zones_do_not_move_instants", zones_do_not_move_instants),
    ("special_values_fail_or_are_null", special_values_fail_or_are_null),
    ("other_types_are_text", other_types_are_text),
    ("enums_and_domains", enums_and_domains),
    ("server_settings_do_not_change_values", server_settings_do_not_change_values),
];

/// Writes `values` (SQL texts) into a column of type `ty` and checks the Arrow type, the values as shown, and that each value
/// is found again by `=` where `finds` says that the type has an equality.
fn check(world: &World, ty: &str, arrow: &str, cells: &[(&str, &str)], finds: bool) {
    world.sql(&format!("DROP TABLE IF EXISTS t; CREATE TABLE t (id int PRIMARY KEY, v {ty})"));
    for (id, (sql, _)) in cells.iter().enumerate() {
        world.sql(&format!("INSERT INTO t VALUES ({id}, {sql})"));
    }
    let snapshot = world.snapshot("t");
    assert_eq!(snapshot.table().columns[1].data_type.to_string(), arrow, "{ty}");
    let batches = world.batches(&snapshot, everything(&snapshot, &["id"])).unwrap();
    let expected: Vec<String> = cells.iter().enumerate().map(|(id, (_, shown))| format!("{id}|{shown}")).collect();
    assert_eq!(render(&batches), expected, "{ty}");
    if !finds {
        return;
    }
    for (id, value) in values(&batches, 1).into_iter().enumerate().filter(|(_, value)| !value.is_null()) {
        let filters = vec![RowFilter { column: "v".into(), operator: FilterOperator::Eq, values: vec![value.clone()] }];
        let found =
            world.rows(&snapshot, datafusion_incremental::sync::connector::ReadRequest { filters, ..everything(&snapshot, &["id"]) });
        assert!(found.contains(&expected[id]), "{ty}: {value:?} does not find {:?}, but {found:?}", expected[id]);
    }
}

fn integers_and_booleans(world: &World) {
    check(world, "bool", "Boolean", &[("true", "true"), ("false", "false"), ("NULL", "NULL")], true);
    check(world, "int2", "Int16", &[("-32768", "-32768"), ("32767", "32767"), ("NULL", "NULL")], true);
    check(world, "int4", "Int32", &[("-2147483648", "-2147483648"), ("2147483647", "2147483647"), ("0", "0")], true);
    let wide = [("-9223372036854775808", "-9223372036854775808"), ("9223372036854775807", "9223372036854775807"), ("NULL", "NULL")];
    check(world, "int8", "Int64", &wide, true);
    check(world, "bigserial", "Int64", &[("9007199254740993", "9007199254740993")], true);
    check(world, "oid", "UInt32", &[("4294967295", "4294967295"), ("0", "0")], true);
}

fn floats(world: &World) {
    let cells = [
        ("'NaN'", "NaN"),
        ("'Infinity'", "inf"),
        ("'-Infinity'", "-inf"),
        ("'-0'", "-0.0"),
        ("0.1::float8 + 0.2::float8", "0.30000000000000004"),
        ("5e-324", "5e-324"),
        ("1.7976931348623157e308", "1.7976931348623157e308"),
        ("NULL", "NULL"),
    ];
    check(world, "float8", "Float64", &cells, true);
    let cells = [("'NaN'", "NaN"), ("'-0'", "-0.0"), ("0.1", "0.1"), ("3.4028235e38", "3.4028235e38"), ("1e-45", "1e-45")];
    check(world, "float4", "Float32", &cells, true);
    // The sign of a zero is a bit that no text above proves.
    let snapshot = world.snapshot("t");
    let read = values(&world.batches(&snapshot, everything(&snapshot, &["id"])).unwrap(), 1);
    assert!(matches!(read[1], ScalarValue::Float32(Some(zero)) if zero == 0.0 && zero.is_sign_negative()));
}

fn declared_numerics(world: &World) {
    let cells =
        [("0", "0.00"), ("-0.01", "-0.01"), ("99999999.99", "99999999.99"), ("1e-2", "0.01"), ("NULL", "NULL"), ("10000", "10000.00")];
    check(world, "numeric(10, 2)", "Decimal128(10, 2)", &cells, true);
    let most = "9".repeat(38);
    check(world, "numeric(38)", "Decimal128(38, 0)", &[(&most, &most), (&format!("-{most}"), &format!("-{most}"))], true);
    let (whole, fraction) = ("9".repeat(36), "1".repeat(40));
    let wide = format!("-{whole}.{fraction}");
    check(world, "numeric(76, 40)", "Decimal256(76, 40)", &[(&wide, &wide), ("0.5", &format!("0.5{}", "0".repeat(39)))], true);
    let cells = [("1234567", "1234600"), ("-50", "-100"), ("49", "0")];
    check(world, "numeric(6, -2)", "Decimal128(8, 0)", &cells, true);
    check(world, "numeric(3, 5)", "Decimal128(5, 5)", &[("0.00999", "0.00999"), ("-0.00001", "-0.00001")], true);
    // Wider than any decimal: the digits as they are.
    let huge = format!("{}.5", "8".repeat(99));
    check(world, "numeric(100, 1)", "Utf8", &[(&huge, &huge), ("1", "1.0"), ("'NaN'", "NaN")], true);
}

fn open_numerics_are_measured(world: &World) {
    let cells = [("1.5", "1.500"), ("-123456789.125", "-123456789.125"), ("NULL", "NULL"), ("7", "7.000")];
    check(world, "numeric", "Decimal128(38, 3)", &cells, true);
    let long = format!("{}.25", "7".repeat(50));
    check(world, "numeric", "Decimal256(76, 2)", &[(&long, &long), ("1", "1.00")], true);
    let longer = format!("{}.25", "7".repeat(80));
    check(world, "numeric", "Utf8", &[(&longer, &longer), ("1.10", "1.10")], true);
    let special = [("'NaN'", "NaN"), ("'Infinity'", "Infinity"), ("'-Infinity'", "-Infinity"), ("0.10", "0.10")];
    check(world, "numeric", "Utf8", &special, true);
    check(world, "numeric", "Decimal128(38, 9)", &[("NULL", "NULL")], true);
    check(world, "numeric", "Utf8", &[("'-Infinity'", "-Infinity"), ("1", "1")], true);
    // Where special values are read as null they say nothing of the type.
    world.sql(
        "DROP TABLE t; CREATE DOMAIN amount AS numeric; CREATE TABLE t (id int, n numeric, d amount, x numeric);
               INSERT INTO t VALUES (1, 'NaN', 'Infinity', '-Infinity'), (2, 1.25, -3.125, 'NaN')",
    );
    let connector = world.connector_with(&world.url(), &[("out_of_range", "null")]);
    let snapshot = world.try_snapshot(&connector, "t").unwrap();
    let types: Vec<String> = snapshot.table().columns[1..].iter().map(|column| column.data_type.to_string()).collect();
    assert_eq!(types, ["Decimal128(38, 2)", "Decimal128(38, 3)", "Decimal128(38, 9)"]);
    assert_eq!(world.rows(&snapshot, everything(&snapshot, &["id"])), ["1|NULL|NULL|NULL", "2|1.25|-3.125|NULL"]);
    drop(snapshot);
    check(
        world,
        "money[]",
        "List(Decimal128(21, 2))",
        &[("'{1.5,NULL,-92233720368547758.08}'", "[1.50, NULL, -92233720368547758.08]")],
        false,
    );
    check(world, "numeric[]", "List(Utf8)", &[("'{1.10,NaN,NULL}'", "[1.10, NaN, NULL]")], false);
    assert_eq!(world.discover("t").columns[1].source_type, "numeric[]");
}

fn money(world: &World) {
    let cells = [("'-92233720368547758.08'", "-92233720368547758.08"), ("12.34", "12.34"), ("NULL", "NULL")];
    check(world, "money", "Decimal128(21, 2)", &cells, true);
}

fn texts(world: &World) {
    world.sql("CREATE EXTENSION IF NOT EXISTS citext");
    let cells = [
        ("''", ""),
        ("'O''Brien \\ \"x\" %s $1 {}'", "O'Brien \\ \"x\" %s $1 {}"),
        ("E'tab\\tline\\nback\\\\slash'", "tab\tline\nback\\slash"),
        ("'é ß 漢字 😀'", "é ß 漢字 😀"),
        ("E'e\\u0301'", "e\u{301}"),
        ("'\\N'", "\\N"),
        ("NULL", "NULL"),
        ("'NULL'", "NULL"),
    ];
    for ty in ["text", "varchar", "varchar(40)", "citext"] {
        check(world, ty, "Utf8", &cells, true);
    }
    check(world, "char(5)", "Utf8", &[("'ab'", "ab   "), ("''", "     "), ("'abcde'", "abcde")], true);
    check(world, "name", "Utf8", &[("'x'", "x")], true);
    check(world, "\"char\"", "Utf8", &[("'x'", "x")], true);
}

fn bytes_uuid_json(world: &World) {
    check(world, "bytea", "Binary", &[("'\\x00ff27225c'", "00ff27225c"), ("''", ""), ("NULL", "NULL")], true);
    let uuid = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
    let zero = "00000000-0000-0000-0000-000000000000";
    check(world, "uuid", "Utf8", &[(&format!("'{uuid}'"), uuid), (&format!("'{zero}'"), zero), ("NULL", "NULL")], true);
    // json keeps its text, jsonb PostgreSQL's normal form; numbers keep every digit.
    let text = r#"{"b" : 1e400,  "a": [9007199254740993, null], "a": "\u00e9"}"#;
    check(world, "json", "Utf8", &[(&format!("'{text}'"), text), ("'null'", "null"), ("NULL", "NULL")], false);
    let cells = [(r#"'{"b": 1, "a": [9007199254740993, null]}'"#, r#"{"a": [9007199254740993, null], "b": 1}"#), ("'null'", "null")];
    check(world, "jsonb", "Utf8", &cells, true);
    check(world, "xml", "Utf8", &[("'<a b=\"c\"/>'", "<a b=\"c\"/>")], false);
}

fn dates_and_times(world: &World) {
    let cells = [("'2024-02-29'", "2024-02-29"), ("'0001-01-01'", "0001-01-01"), ("'9999-12-31'", "9999-12-31"), ("NULL", "NULL")];
    check(world, "date", "Date32", &cells, true);
    let cells = [("'00:00'", "00:00:00"), ("'23:59:59.999999'", "23:59:59.999999"), ("NULL", "NULL")];
    check(world, "time", "Time64(µs)", &cells, true);
    let cells = [
        ("'2024-02-29 12:34:56.000001'", "2024-02-29T12:34:56.000001"),
        ("'1969-12-31 23:59:59.999999'", "1969-12-31T23:59:59.999999"),
        ("'0001-01-01 00:00:00'", "0001-01-01T00:00:00"),
        ("'9999-12-31 23:59:59.999999'", "9999-12-31T23:59:59.999999"),
        ("NULL", "NULL"),
    ];
    check(world, "timestamp", "Timestamp(µs)", &cells, true);
    check(world, "timetz", "Utf8", &[("'12:00:00.5+02'", "12:00:00.5+02")], true);
    // Beyond what chrono can show, the number proves it; the condition proves that it is written back.
    for (ty, sql, number) in [
        ("date", "'4714-11-24 BC'", -2_440_588_i64),
        ("date", "'0001-12-31 BC'", -719_163),
        ("date", "'5874897-12-31'", 2_145_042_905),
        ("timestamp", "'4714-11-24 00:00:00 BC'", -210_866_803_200_000_000),
        ("timestamp", "'0044-03-15 12:00:00.000001 BC'", -63_517_780_799_999_999),
        ("timestamptz", "'294246-12-31 23:59:59.999999+00'", 9_223_371_244_799_999_999),
    ] {
        world.sql(&format!("DROP TABLE IF EXISTS t; CREATE TABLE t (id int, v {ty}); INSERT INTO t VALUES (1, {sql})"));
        let snapshot = world.snapshot("t");
        let read = values(&world.batches(&snapshot, everything(&snapshot, &[])).unwrap(), 1);
        let found = match &read[0] {
            ScalarValue::Date32(Some(days)) => i64::from(*days),
            ScalarValue::TimestampMicrosecond(Some(micros), _) => *micros,
            other => panic!("{other:?}"),
        };
        let epoch = if ty == "date" { "v - '1970-01-01'".to_string() } else { "extract(epoch FROM v) * 1000000".to_string() };
        assert_eq!(found.to_string(), world.text(&format!("SELECT trunc({epoch})::text FROM t")), "{ty} {sql}");
        assert_eq!(found, number, "{ty} {sql}");
        let filters = vec![RowFilter { column: "v".into(), operator: FilterOperator::In, values: read }];
        let request = datafusion_incremental::sync::connector::ReadRequest { filters, ..everything(&snapshot, &[]) };
        assert_eq!(world.batches(&snapshot, request).unwrap()[0].num_rows(), 1, "{ty} {sql}");
    }
}

fn zones_do_not_move_instants(world: &World) {
    world.sql(&format!("ALTER DATABASE {} SET timezone = 'Asia/Kolkata'; SET timezone = 'America/New_York'", world.database));
    let cells = [
        ("'2024-07-01 12:00:00-04'", "2024-07-01T16:00:00Z"),
        ("'2024-11-03 01:30:00-05'", "2024-11-03T06:30:00Z"), // the second 01:30 of that night
        ("'2024-11-03 01:30:00-04'", "2024-11-03T05:30:00Z"),
        ("NULL", "NULL"),
    ];
    check(world, "timestamptz", "Timestamp(µs, \"UTC\")", &cells, true);
    world.sql("RESET timezone");
}

fn special_values_fail_or_are_null(world: &World) {
    for (ty, sql, shown) in [
        ("timestamp", "'infinity'", "infinity"),
        ("timestamptz", "'-infinity'", "-infinity"),
        ("date", "'infinity'", "infinity"),
        ("numeric(5, 1)", "'NaN'", "NaN"),
        ("time", "'24:00'", "24:00:00"),
    ] {
        world.sql(&format!(
            "DROP TABLE IF EXISTS t; CREATE TABLE t (id int PRIMARY KEY, v {ty}); INSERT INTO t VALUES (7, {sql}), (8, NULL)"
        ));
        let snapshot = world.snapshot("t");
        let error = world.batches(&snapshot, everything(&snapshot, &["id"])).unwrap_err();
        assert_eq!(error.code(), ErrorCode::ValueOutOfRange, "{error}");
        for part in ["public.t", "column \"v\" of the row with id = 7", shown, "out_of_range = 'null'"] {
            assert!(error.message().contains(part), "{part}: {error}");
        }
        let connector = world.connector_with(&world.url(), &[("out_of_range", "null")]);
        let snapshot = world.try_snapshot(&connector, "t").unwrap();
        assert_eq!(world.rows(&snapshot, everything(&snapshot, &["id"])), ["7|NULL", "8|NULL"], "{ty}");
        // As a cursor, such a value is then a null one.
        let null = datafusion_incremental::sync::connector::ReadScope::Null { column: "v".into() };
        let request = datafusion_incremental::sync::connector::ReadRequest { scope: null, ..everything(&snapshot, &["id"]) };
        assert_eq!(world.rows(&snapshot, request).len(), 2, "{ty}");
        assert_eq!(world.runtime.block_on(snapshot.count_nulls("v", &[])).unwrap(), 2, "{ty}");
        assert_eq!(world.runtime.block_on(snapshot.ceiling("v", &[])).unwrap(), None, "{ty}");
    }
    // A time that PostgreSQL holds and 64 bits of microseconds do not is no special value: it is never a null.
    world.sql("DROP TABLE t; CREATE TABLE t (id int, v timestamp); INSERT INTO t VALUES (1, '294276-12-31')");
    let connector = world.connector_with(&world.url(), &[("out_of_range", "null")]);
    let snapshot = world.try_snapshot(&connector, "t").unwrap();
    assert_eq!(world.batches(&snapshot, everything(&snapshot, &[])).unwrap_err().code(), ErrorCode::ValueOutOfRange);
}

fn other_types_are_text(world: &World) {
    world.sql("CREATE TYPE pair AS (a int, b text)");
    let interval = [
        ("'1 year 2 mons 3 days 04:05:06.7'", "1 year 2 mons 3 days 04:05:06.7"),
        ("'-1 mon +3 days -00:00:00.000001'", "-1 mons +3 days -00:00:00.000001"),
        ("'0'", "00:00:00"),
    ];
    check(world, "interval", "Utf8", &interval, true);
    check(world, "inet", "Utf8", &[("'192.168.0.1/24'", "192.168.0.1/24"), ("'::1'", "::1/128")], true);
    check(world, "cidr", "Utf8", &[("'10.0.0.0/8'", "10.0.0.0/8")], true);
    check(world, "macaddr", "Utf8", &[("'08:00:2b:01:02:03'", "08:00:2b:01:02:03")], true);
    check(world, "bit(4)", "Utf8", &[("B'0101'", "0101")], true);
    check(world, "varbit", "Utf8", &[("B'01'", "01"), ("B''", "")], true);
    check(world, "int4range", "Utf8", &[("'[1,5]'", "[1,6)"), ("'empty'", "empty")], true);
    check(world, "tstzrange", "Utf8", &[("'[2024-01-01 00:00+02,)'", "[\"2023-12-31 22:00:00+00\",)")], true);
    check(world, "int4multirange", "Utf8", &[("'{[1,2),[5,7)}'", "{[1,2),[5,7)}")], true);
    check(world, "pair", "Utf8", &[("ROW(1, 'x,\"y')", "(1,\"x,\"\"y\")"), ("NULL", "NULL")], true);
    check(world, "point", "Utf8", &[("'(1.5,-2)'", "(1.5,-2)")], false);
    check(world, "tsvector", "Utf8", &[("'a:1 b:2'", "'a':1 'b':2")], true);
    check(world, "pg_lsn", "Utf8", &[("'16/B374D848'", "16/B374D848")], true);
}

fn enums_and_domains(world: &World) {
    world.sql(
        "CREATE SCHEMA \"odd Schema\"; CREATE TYPE \"odd Schema\".\"Mood\" AS ENUM ('so so', 'Good', 'b''ad');
         CREATE DOMAIN price AS numeric(8, 3) CHECK (VALUE >= 0); CREATE DOMAIN price2 AS price; CREATE DOMAIN tags AS text[];
         CREATE DOMAIN moods AS \"odd Schema\".\"Mood\"",
    );
    let cells = [("'so so'", "so so"), ("'b''ad'", "b'ad"), ("NULL", "NULL")];
    check(world, "\"odd Schema\".\"Mood\"", "Utf8", &cells, true);
    check(world, "moods", "Utf8", &cells, true);
    check(world, "price2", "Decimal128(8, 3)", &[("1.5", "1.500")], true);
    check(world, "tags", "List(Utf8)", &[("'{a,NULL}'", "[a, NULL]")], false);
    check(world, "\"odd Schema\".\"Mood\"[]", "List(Utf8)", &[("'{Good,NULL,\"so so\"}'", "[Good, NULL, so so]")], false);
    // An enum has the order of its declaration.
    world.sql(
        "DROP TABLE t; CREATE TABLE t (id int, v \"odd Schema\".\"Mood\"); INSERT INTO t VALUES (1, 'so so'), (2, 'Good'), (3, 'b''ad')",
    );
    let snapshot = world.snapshot("t");
    let filters = vec![RowFilter { column: "v".into(), operator: FilterOperator::GtEq, values: vec![ScalarValue::from("Good")] }];
    let request = datafusion_incremental::sync::connector::ReadRequest { filters, ..everything(&snapshot, &["v"]) };
    assert_eq!(world.rows(&snapshot, request), ["2|Good", "3|b'ad"]);
}

fn server_settings_do_not_change_values(world: &World) {
    world.sql(&format!(
        "ALTER DATABASE {0} SET datestyle = 'German'; ALTER DATABASE {0} SET intervalstyle = 'sql_standard';
         ALTER DATABASE {0} SET bytea_output = 'escape'; ALTER DATABASE {0} SET extra_float_digits = -10;
         ALTER DATABASE {0} SET standard_conforming_strings = off; ALTER DATABASE {0} SET client_encoding = 'LATIN1'",
        world.database
    ));
    check(world, "tsrange", "Utf8", &[("'[2024-03-01,2024-03-02)'", "[\"2024-03-01 00:00:00\",\"2024-03-02 00:00:00\")")], true);
    check(world, "interval", "Utf8", &[("'1 day 01:00'", "1 day 01:00:00")], true);
    check(world, "text", "Utf8", &[("'a\\b''漢'", "a\\b'漢")], true);
    check(world, "bytea", "Binary", &[("'\\x005c27'", "005c27")], true);
    world.sql("CREATE TYPE wrapped AS (f float8, b bytea)");
    check(world, "wrapped", "Utf8", &[("ROW(0.1::float8 + 0.2, '\\x00')", "(0.30000000000000004,\"\\\\x00\")")], true);
}
