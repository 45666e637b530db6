//! Discovery: kinds of relations, columns, keys, what leads an index, and what a role may not see.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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
    ("not_null_that_is_not_enforced_is_not_believed", not_null_that_is_not_enforced_is_not_believed),
    ("a_key_that_children_need_not_keep_is_no_key", a_key_that_children_need_not_keep_is_no_key),
    ("tables_that_are_dropped_meanwhile_are_left_out", tables_that_are_dropped_meanwhile_are_left_out),
    ("a_locked_partition_holds_up_no_listing", a_locked_partition_holds_up_no_listing),
    ("an_index_counts_where_it_has_the_order_of_reads", an_index_counts_where_it_has_the_order_of_reads),
    ("one_table_is_measured_and_all_are_not", one_table_is_measured_and_all_are_not),
    ("a_table_without_columns_is_refused", a_table_without_columns_is_refused),
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

fn nullable(world: &World, table: &str) -> Vec<bool> {
    world.discover(table).columns.iter().map(|column| column.is_nullable).collect()
}

fn not_null_that_is_not_enforced_is_not_believed(world: &World) {
    world.sql(
        "CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
         CREATE FOREIGN TABLE far (at int NOT NULL) SERVER files OPTIONS (filename '/dev/null');
         CREATE TABLE parent (at int); CREATE TABLE child () INHERITS (parent); ALTER TABLE ONLY parent ALTER at SET NOT NULL;
         CREATE TABLE parts (at int NOT NULL) PARTITION BY RANGE (at); CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (9);
         CREATE TABLE mixed (at int NOT NULL, n int) PARTITION BY RANGE (n); CREATE TABLE mixed_1 PARTITION OF mixed
           FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (n);
         CREATE FOREIGN TABLE mixed_1_far PARTITION OF mixed_1 DEFAULT SERVER files OPTIONS (filename '/dev/null');
         INSERT INTO child VALUES (NULL)",
    );
    assert_eq!(nullable(world, "far"), [true]);
    assert_eq!(nullable(world, "parent"), [true]);
    assert_eq!(nullable(world, "mixed"), [true, true]);
    assert_eq!(nullable(world, "parts"), [false]);
    assert_eq!(nullable(world, "parts_1"), [false]);
}

fn a_key_that_children_need_not_keep_is_no_key(world: &World) {
    world.sql(
        "CREATE TABLE parent (id int PRIMARY KEY, n int NOT NULL UNIQUE); CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
         INSERT INTO parent VALUES (1, 1); INSERT INTO child VALUES (1, 1)",
    );
    let parent = world.discover("parent");
    assert!(parent.primary_key.is_empty() && parent.unique_keys.is_empty(), "{parent:?}");
    assert!(parent.columns.iter().all(|column| !column.leads_index && column.is_nullable), "{parent:?}");
    assert_eq!(world.table("parent", &[]), ["1|1", "1|1"]);
    let child = world.discover("child");
    assert_eq!(child.primary_key, ["id"]);
    assert!(!child.columns[0].is_nullable && child.columns[0].leads_index);
}

fn tables_that_are_dropped_meanwhile_are_left_out(world: &World) {
    world.sql("CREATE TABLE stays (id int)");
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let (client, stop) = (world.client(), Arc::clone(&stop));
            world.runtime.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let tables = (0..20).map(|n| format!("goes_{writer}_{n}")).collect::<Vec<_>>();
                    let made: String = tables.iter().map(|table| format!("CREATE TABLE {table} (id int PRIMARY KEY, v text);")).collect();
                    client.batch_execute(&made).await.unwrap();
                    client.batch_execute(&format!("DROP TABLE {}", tables.join(", "))).await.unwrap();
                }
            })
        })
        .collect();
    let results: Vec<_> = (0..40).map(|_| world.runtime.block_on(world.connector().discover(None))).collect();
    stop.store(true, Ordering::SeqCst);
    for writer in writers {
        world.runtime.block_on(writer).unwrap();
    }
    for result in results {
        let tables = result.unwrap();
        assert!(tables.iter().any(|table| table.display_name() == "public.stays"));
        assert!(tables.iter().all(|table| !table.columns.is_empty()), "{tables:?}");
    }
}

fn a_locked_partition_holds_up_no_listing(world: &World) {
    world.sql(
        "CREATE TABLE parts (id int) PARTITION BY RANGE (id); CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (9);
         CREATE TABLE other (id int); INSERT INTO other VALUES (1)",
    );
    let writer = world.client();
    world.runtime.block_on(writer.batch_execute("BEGIN; LOCK TABLE parts_1 IN ACCESS EXCLUSIVE MODE")).unwrap();
    let start = Instant::now();
    assert_eq!(found(world).len(), 2);
    assert_eq!(world.discover("parts").columns.len(), 1);
    assert_eq!(world.table("other", &[]), ["1"]);
    assert_eq!(world.try_snapshot(&world.connector(), "absent").unwrap_err().code(), ErrorCode::SourceNotFound);
    assert!(start.elapsed() < Duration::from_secs(20), "nothing waited for a lock");
    world.runtime.block_on(writer.batch_execute("COMMIT")).unwrap();
}

fn an_index_counts_where_it_has_the_order_of_reads(world: &World) {
    let table = "CREATE EXTENSION citext; CREATE TABLE t (bytes text COLLATE \"C\", own text, posix text COLLATE \"POSIX\", folded citext,
         pattern text COLLATE \"C\", twice varchar, n int);
         CREATE INDEX ON t (bytes); CREATE INDEX ON t (own); CREATE INDEX ON t (posix); CREATE INDEX ON t (folded);
         CREATE INDEX ON t (pattern text_pattern_ops); CREATE INDEX ON t (twice); CREATE INDEX ON t (twice COLLATE \"C\"); CREATE INDEX ON t (n)";
    let leaders = |world: &World| {
        let leads = |c: &datafusion_incremental::sync::connector::SourceColumn| c.leads_index.then(|| c.name.clone());
        world.discover("t").columns.iter().filter_map(leads).collect::<Vec<_>>()
    };
    world.sql(table);
    assert_eq!(leaders(world), ["bytes", "posix", "twice", "n"], "the database's own collation is another than the bytes'");
    let database = format!("{}_c", world.database);
    world.sql(&format!("CREATE DATABASE {database} LOCALE 'C' TEMPLATE template0"));
    let world = World::on(world.server, database);
    world.sql(table);
    assert_eq!(leaders(&world), ["bytes", "own", "posix", "twice", "n"]);
    world.sql("INSERT INTO t (own) VALUES ('b'), ('B'), ('a'), ('é')");
    let snapshot = world.snapshot("t");
    let request = datafusion_incremental::sync::connector::ReadRequest {
        columns: vec!["own".into()],
        after: Some(vec![datafusion::common::ScalarValue::from("B")]),
        ..everything(&snapshot, &["own"])
    };
    assert_eq!(world.rows(&snapshot, request), ["a", "b", "é"]);
}

fn one_table_is_measured_and_all_are_not(world: &World) {
    world.sql(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric); INSERT INTO t VALUES (1, 1.25); CREATE VIEW failing AS SELECT n / 0 AS n FROM t",
    );
    assert_eq!(world.discover("t").column("n").unwrap().data_type.to_string(), "Decimal128(38, 2)");
    assert_eq!(found(world)[1].column("n").unwrap().data_type.to_string(), "Utf8");
    // What cannot be measured is described all the same.
    assert_eq!(world.discover("failing").column("n").unwrap().data_type.to_string(), "Utf8");
}

fn a_table_without_columns_is_refused(world: &World) {
    world.sql("CREATE TABLE t ()");
    let error = world.try_snapshot(&world.connector(), "t").unwrap_err();
    assert_eq!(error.code(), ErrorCode::TypeUnsupported);
    assert!(error.message().contains("public.t") && error.message().contains("no columns"), "{error}");
}
