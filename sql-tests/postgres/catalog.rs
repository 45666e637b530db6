//! Discovery: kinds of relations, columns, keys, what leads an index, and what a role may not see.

use datafusion_incremental::ErrorCode;
use datafusion_incremental::sync::connector::{RelationKind, SourceTable};

use crate::Test;
use crate::world::{World, everything};

pub const TESTS: &[Test] = &[
    ("every_kind_of_relation_is_found", every_kind_of_relation_is_found),
    ("keys_come_in_key_order", keys_come_in_key_order),
    ("unique_keys_that_can_be_null_or_partial_are_no_keys", unique_keys_that_can_be_null_or_partial_are_no_keys),
    ("columns_say_what_they_are", columns_say_what_they_are),
    ("a_partitioned_table_is_read_as_one", a_partitioned_table_is_read_as_one),
    ("views_are_read", views_are_read),
    ("what_a_role_may_not_read_says_so", what_a_role_may_not_read_says_so),
    ("a_role_with_select_only_sees_keys", a_role_with_select_only_sees_keys),
    ("names_are_found_as_they_are_written", names_are_found_as_they_are_written),
    ("the_default_schema_is_an_option", the_default_schema_is_an_option),
];

fn found(world: &World) -> Vec<SourceTable> {
    world.runtime.block_on(world.connector().discover(None)).unwrap()
}

fn every_kind_of_relation_is_found(world: &World) {
    world.sql(
        "CREATE TABLE plain (id int); CREATE UNLOGGED TABLE unlogged (id int); CREATE TEMP TABLE temporary (id int);
         CREATE VIEW looking AS SELECT 1 AS one; CREATE MATERIALIZED VIEW stored AS SELECT 2 AS two;
         CREATE TABLE parts (id int) PARTITION BY RANGE (id); CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (9);
         CREATE SCHEMA other; CREATE TABLE other.plain (id int); CREATE SEQUENCE counting; CREATE INDEX ON plain (id);
         CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
         CREATE FOREIGN TABLE far (line text) SERVER files OPTIONS (filename '/dev/null')",
    );
    let shown: Vec<String> = found(world).iter().map(|table| format!("{} {}", table.display_name(), table.kind.as_str())).collect();
    let expected = [
        "other.plain table",
        "public.far foreign table",
        "public.looking view",
        "public.parts partitioned table",
        "public.plain table",
        "public.stored materialized view",
        "public.unlogged table",
    ];
    assert_eq!(shown, expected);
    // A partition is not offered, and can still be asked for.
    assert_eq!(world.discover("parts_1").kind, RelationKind::Table);
    assert_eq!(world.table("stored", &[]), ["2"]);
    assert_eq!(world.table("far", &[]), Vec::<String>::new());
}

fn keys_come_in_key_order(world: &World) {
    world.sql(
        "CREATE TABLE parent (a int PRIMARY KEY);
         CREATE TABLE t (c int NOT NULL, b text, a int REFERENCES parent, d int NOT NULL, e int, PRIMARY KEY (b, c) DEFERRABLE,
                         UNIQUE (d, c));
         CREATE UNIQUE INDEX ON t (d) INCLUDE (e); ALTER TABLE t DROP COLUMN e",
    );
    let table = world.discover("t");
    assert_eq!(table.primary_key, ["b", "c"]);
    assert_eq!(table.unique_keys, [vec!["d".to_string(), "c".to_string()]]);
    assert_eq!(table.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>(), ["c", "b", "a", "d"]);
    world.sql("CREATE UNIQUE INDEX again ON t (d) INCLUDE (a)");
    assert_eq!(world.discover("t").unique_keys[0], ["d"]);
}

fn unique_keys_that_can_be_null_or_partial_are_no_keys(world: &World) {
    world.sql(
        "CREATE TABLE t (a int UNIQUE, b int NOT NULL, c text NOT NULL);
         CREATE UNIQUE INDEX ON t (b) WHERE b > 0; CREATE UNIQUE INDEX ON t (lower(c)); CREATE INDEX ON t (b, a)",
    );
    let table = world.discover("t");
    assert!(table.primary_key.is_empty() && table.unique_keys.is_empty(), "{table:?}");
}

fn columns_say_what_they_are(world: &World) {
    world.sql(
        "CREATE TABLE t (id int PRIMARY KEY, at timestamptz NOT NULL, v varchar(7), g int GENERATED ALWAYS AS (id + 1) STORED, h int, p int, e int);
         CREATE INDEX ON t (at, v); CREATE INDEX ON t USING hash (h); CREATE INDEX ON t (p) WHERE p > 0; CREATE INDEX ON t ((e + 1), e)",
    );
    let table = world.discover("t");
    let shown: Vec<String> = table
        .columns
        .iter()
        .map(|c| format!("{} {} {} {}", c.name, c.source_type, if c.is_nullable { "null" } else { "not null" }, c.leads_index))
        .collect();
    let expected = [
        "id integer not null true",
        "at timestamp with time zone not null true",
        "v character varying(7) null false",
        "g integer null false",
        "h integer null false",
        "p integer null false",
        "e integer null false",
    ];
    assert_eq!(shown, expected);
}

fn a_partitioned_table_is_read_as_one(world: &World) {
    world.sql(
        "CREATE TABLE t (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at); CREATE INDEX ON t (at);
         CREATE TABLE t_a PARTITION OF t FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
         CREATE TABLE t_b (at date NOT NULL, id int NOT NULL); ALTER TABLE t ATTACH PARTITION t_b DEFAULT;
         INSERT INTO t VALUES (1, '2024-05-05'), (2, '2020-01-01'), (3, '2030-01-01')",
    );
    let table = world.discover("t");
    assert_eq!((table.kind, table.primary_key.len()), (RelationKind::PartitionedTable, 2));
    assert!(table.column("at").unwrap().leads_index);
    // Partitions may keep their columns in another order.
    assert_eq!(world.table("t", &["at", "id"]), ["2|2020-01-01", "1|2024-05-05", "3|2030-01-01"]);
}

fn views_are_read(world: &World) {
    world.sql(
        "CREATE TABLE base (id int PRIMARY KEY, v text); INSERT INTO base VALUES (1, 'a'), (2, 'b');
         CREATE VIEW looking AS SELECT id, upper(v) AS up, count(*) OVER () AS n FROM base;
         CREATE MATERIALIZED VIEW stored AS SELECT * FROM base; CREATE UNIQUE INDEX ON stored (id)",
    );
    assert_eq!(world.table("looking", &["id"]), ["1|A|2", "2|B|2"]);
    assert_eq!(world.table("stored", &["id"]), ["1|a", "2|b"]);
    assert!(world.discover("looking").primary_key.is_empty());
}

fn what_a_role_may_not_read_says_so(world: &World) {
    let role = world.role("reader");
    world.sql(&format!(
        "CREATE SCHEMA closed; CREATE TABLE closed.t (id int); GRANT SELECT ON closed.t TO {role};
         CREATE TABLE hidden (id int); CREATE TABLE partly (id int PRIMARY KEY, v text, secret text); GRANT SELECT (id, v) ON partly TO {role};
         INSERT INTO partly VALUES (1, 'a', 'x')"
    ));
    let connector = world.connector_with(&world.url_of(&role), &[]);
    let tables = world.runtime.block_on(connector.discover(None)).unwrap();
    let unreadable: Vec<String> = tables
        .iter()
        .flat_map(|table| table.columns.iter().filter(|c| c.unsupported.is_some()).map(|c| format!("{}.{}", table.display_name(), c.name)))
        .collect();
    assert_eq!(unreadable, ["closed.t.id", "public.hidden.id", "public.partly.secret"]);
    assert!(tables[0].columns[0].unsupported.as_ref().unwrap().contains("GRANT"));
    let snapshot = world.try_snapshot(&connector, "partly").unwrap();
    assert_eq!(world.rows(&snapshot, everything(&snapshot, &["id"])), ["1|a"]);
    let mut request = everything(&snapshot, &[]);
    request.columns.push("secret".into());
    let error = world.batches(&snapshot, request).unwrap_err();
    assert_eq!(error.code(), ErrorCode::TypeUnsupported);
    assert!(error.message().contains("column \"secret\"") && error.message().contains("GRANT"), "{error}");
}

fn a_role_with_select_only_sees_keys(world: &World) {
    let role = world.role("reader");
    world.sql(&format!("CREATE TABLE t (id int, v text, PRIMARY KEY (v, id)); GRANT SELECT ON t TO {role}"));
    let connector = world.connector_with(&world.url_of(&role), &[]);
    let tables = world.runtime.block_on(connector.discover(None)).unwrap();
    assert_eq!(tables[0].primary_key, ["v", "id"]);
}

fn names_are_found_as_they_are_written(world: &World) {
    world.sql("CREATE SCHEMA \"Sales Dept\"; CREATE TABLE \"Sales Dept\".\"Order.Lines\" (id int); CREATE TABLE customers (id int)");
    let connector = world.connector();
    let discover = |parts: &[&str]| {
        let parts: Vec<String> = parts.iter().map(|part| part.to_string()).collect();
        world.runtime.block_on(connector.discover(Some(&parts))).unwrap().len()
    };
    assert_eq!(discover(&["Sales Dept", "Order.Lines"]), 1);
    assert_eq!(discover(&["sales dept", "Order.Lines"]), 0);
    assert_eq!(discover(&["customers"]) + discover(&["public", "customers"]), 2);
    assert_eq!(discover(&["pg_catalog", "pg_class"]) + discover(&["a", "public", "customers"]) + discover(&[]), 0);
    let error = world.try_snapshot(&connector, "custmers").unwrap_err();
    assert_eq!(error.code(), ErrorCode::SourceNotFound);
    assert!(error.message().contains("public.customers"), "{error}");
}

fn the_default_schema_is_an_option(world: &World) {
    world.sql("CREATE SCHEMA sales; CREATE TABLE sales.t (id int); INSERT INTO sales.t VALUES (1)");
    let connector = world.connector_with(&world.url(), &[("schema", "sales")]);
    let snapshot = world.try_snapshot(&connector, "t").unwrap();
    assert_eq!(snapshot.table().name, ["sales", "t"]);
    assert_eq!(world.rows(&snapshot, everything(&snapshot, &[])), ["1"]);
}
