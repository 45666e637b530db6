//! Names and values that try to leave their place in a statement, and secrets that try to leave theirs.

use datafusion::common::ScalarValue;
use datafusion_incremental::sync::connector::{ConnectorFactory, FilterOperator, ReadRequest, ReadScope, RowFilter};
use datafusion_incremental::sync::postgres::PostgresFactory;

use crate::Test;
use crate::server::PASSWORD;
use crate::world::{World, everything, settings, values};

pub const TESTS: &[Test] = &[
    ("names_stay_names", names_stay_names),
    ("values_stay_values", values_stay_values),
    ("operators_of_others_are_not_used", operators_of_others_are_not_used),
    ("a_transaction_cannot_write", a_transaction_cannot_write),
    ("only_the_address_is_a_secret", only_the_address_is_a_secret),
    ("a_debug_text_shows_nothing", a_debug_text_shows_nothing),
];

const NAMES: [&str; 12] =
    ["order", "select", "we\"ird", " sp ", "a.b", "t", "CamelCase", "x\"; DROP TABLE victim; --", "x' OR '1'='1", "$1", "\\", "naïve 漢字"];

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn names_stay_names(world: &World) {
    world.sql("CREATE TABLE victim (id int); INSERT INTO victim VALUES (1)");
    for name in NAMES {
        let (schema, table) = (quoted(&format!("s{name}")), quoted(name));
        let columns: Vec<String> = NAMES.iter().map(|column| format!("{} int", quoted(column))).collect();
        world.sql(&format!(
            "CREATE SCHEMA {schema}; CREATE TABLE {schema}.{table} ({}, \"key part\" int, n numeric, PRIMARY KEY ({table}, \"key part\"))",
            columns.join(", ")
        ));
        let numbers: Vec<String> = (0..NAMES.len()).map(|i| i.to_string()).collect();
        world.sql(&format!("INSERT INTO {schema}.{table} VALUES ({}, 99, 1.5)", numbers.join(", ")));
        let parts = vec![format!("s{name}"), name.to_string()];
        let connector = world.connector();
        let found = world.runtime.block_on(connector.discover(Some(&parts))).unwrap();
        assert_eq!(found[0].primary_key, [name, "key part"]);
        let context = std::sync::Arc::new(datafusion::execution::TaskContext::default());
        let snapshot = world.runtime.block_on(connector.snapshot(&parts, None, context)).unwrap();
        // Every name in every place where a statement has one: selected, filtered, bounded, ordered, after.
        let cursor =
            ReadScope::Range { column: name.into(), lower: Some(ScalarValue::Int32(Some(0))), upper: Some(ScalarValue::Int32(Some(99))) };
        let request = ReadRequest {
            filters: vec![RowFilter { column: name.into(), operator: FilterOperator::NotIn, values: vec![ScalarValue::Int32(Some(-1))] }],
            scope: cursor,
            after: Some(vec![ScalarValue::Int32(Some(-1)), ScalarValue::Int32(Some(0))]),
            ..everything(&snapshot, &[name, "key part"])
        };
        assert_eq!(world.rows(&snapshot, request), [format!("{}|99|1.5", numbers.join("|"))], "{name}");
        assert_eq!(world.runtime.block_on(snapshot.count_nulls(name, &[])).unwrap(), 0);
    }
    assert_eq!(world.text("SELECT count(*)::text FROM victim"), "1");
}

fn values_stay_values(world: &World) {
    world.sql("CREATE TABLE victim (id int); INSERT INTO victim VALUES (1); CREATE TABLE t (id int PRIMARY KEY, v text, b bytea)");
    let attacks = [
        "'; DROP TABLE victim; --",
        "\\'; DROP TABLE victim; --",
        "' OR 'a' = 'a",
        "$$",
        "E'\\'",
        "''",
        "\u{2019}; --",
        "%s{}\\u0027",
        "x'::text) OR (1=1",
    ];
    let client = world.client();
    for (id, attack) in attacks.iter().enumerate() {
        world.runtime.block_on(client.execute("INSERT INTO t VALUES ($1, $2, $3)", &[&(id as i32), attack, &attack.as_bytes()])).unwrap();
    }
    let snapshot = world.snapshot("t");
    let read = values(&world.batches(&snapshot, everything(&snapshot, &["id"])).unwrap(), 2);
    for (id, attack) in attacks.iter().enumerate() {
        for (column, value) in [("v", ScalarValue::from(*attack)), ("b", read[id].clone())] {
            for operator in [FilterOperator::Eq, FilterOperator::In] {
                let filters = vec![RowFilter { column: column.into(), operator, values: vec![value.clone()] }];
                let rows = world.rows(&snapshot, ReadRequest { columns: vec!["id".into()], filters, ..everything(&snapshot, &[]) });
                assert_eq!(rows, [id.to_string()], "{attack} {column}");
            }
        }
    }
    let zero = vec![RowFilter { column: "v".into(), operator: FilterOperator::Eq, values: vec![ScalarValue::from("a\0b")] }];
    assert!(world.batches(&snapshot, ReadRequest { filters: zero, ..everything(&snapshot, &[]) }).is_err());
    assert_eq!(world.text("SELECT count(*)::text FROM victim"), "1");
}

fn operators_of_others_are_not_used(world: &World) {
    // Operators that fit a varchar better than PostgreSQL's own, and a path that looks at them first.
    world.sql("CREATE TABLE t (id int PRIMARY KEY, v varchar, n int); INSERT INTO t VALUES (1, 'a', 7), (2, 'b', NULL), (3, NULL, 7)");
    for ty in ["varchar", "oid", "name", "int", "text"] {
        world.sql(&format!("CREATE FUNCTION public.evil({ty}, {ty}) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE ''stolen''; END'"));
        for operator in ["=", "<>", "<", "<=", ">", ">="] {
            world.sql(&format!("CREATE OPERATOR public.{operator} (LEFTARG = {ty}, RIGHTARG = {ty}, FUNCTION = public.evil)"));
        }
    }
    world.sql(&format!("ALTER DATABASE {} SET search_path = public, pg_catalog", world.database));
    let connector = world.connector();
    assert_eq!(world.runtime.block_on(connector.discover(None)).unwrap().len(), 1);
    assert_eq!(world.discover("t").primary_key, ["id"]);
    let snapshot = world.try_snapshot(&connector, "t").unwrap();
    let text = |value: &str| ScalarValue::from(value);
    use FilterOperator::{Eq, Gt, In, LtEq, NotEq, NotIn};
    for (operator, values, ids) in [
        (Eq, vec![text("a")], "1"),
        (In, vec![text("a"), text("x")], "1"),
        (NotEq, vec![text("a")], "2"),
        (NotIn, vec![text("a"), text("x")], "2"),
        (Gt, vec![text("a")], "2"),
        (LtEq, vec![text("a")], "1"),
    ] {
        let filters = vec![RowFilter { column: "v".into(), operator, values }];
        let request = ReadRequest { columns: vec!["id".into()], filters, ..everything(&snapshot, &["id"]) };
        assert_eq!(world.rows(&snapshot, request), [ids], "{operator:?}");
    }
    let scope = ReadScope::Range { column: "v".into(), lower: Some(text("a")), upper: Some(text("b")) };
    let after = Some(vec![text("a"), ScalarValue::Int32(Some(1))]);
    let request = ReadRequest { columns: vec!["id".into()], scope, after, ..everything(&snapshot, &["v", "id"]) };
    assert_eq!(world.rows(&snapshot, request), ["2"]);
    assert_eq!(world.runtime.block_on(snapshot.ceiling("v", &[])).unwrap(), Some(text("b")));
    assert_eq!(world.runtime.block_on(snapshot.count_nulls("v", &[])).unwrap(), 1);
}

fn a_transaction_cannot_write(world: &World) {
    // A source that writes when it is read: the server refuses, whatever the role may do.
    world.sql("CREATE TABLE log (id int); CREATE FUNCTION writing() RETURNS int LANGUAGE sql AS 'INSERT INTO log VALUES (1) RETURNING id'; CREATE VIEW v AS SELECT writing() AS w");
    let snapshot = world.snapshot("v");
    let error = world.batches(&snapshot, everything(&snapshot, &[])).unwrap_err();
    assert!(error.message().contains("read-only transaction"), "{error}");
    assert_eq!(world.text("SELECT count(*)::text FROM log"), "0");
}

fn only_the_address_is_a_secret(_: &World) {
    let secrets: Vec<&str> = PostgresFactory.options().iter().filter(|option| option.is_secret).map(|option| option.name).collect();
    assert_eq!(secrets, ["url"]);
    assert!(PostgresFactory.options().iter().all(|option| option.is_required == (option.name == "url") && !option.doc.is_empty()));
}

fn a_debug_text_shows_nothing(world: &World) {
    world.sql("CREATE TABLE t (id int)");
    let connector = world.connector();
    let snapshot = world.try_snapshot(&connector, "t").unwrap();
    for text in [format!("{connector:#?}"), format!("{snapshot:#?}"), format!("{:#?}", settings(&world.url(), &[]))] {
        assert!(!text.contains(PASSWORD) && !text.contains("127.0.0.1") && !text.contains(&world.server.port.to_string()), "{text}");
    }
}
