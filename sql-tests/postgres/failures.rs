//! What goes wrong, and what is said of it: codes, remedies, no secrets, and nothing left running on the server.

use std::time::{Duration, Instant};

use datafusion_incremental::ErrorCode;
use datafusion_incremental::sync::connector::{ConnectorFactory, ReadRequest};
use datafusion_incremental::sync::postgres::PostgresFactory;
use futures::StreamExt;

use crate::Test;
use crate::proxy::Proxy;
use crate::server::{PASSWORD, Server};
use crate::world::{World, everything, settings};

pub const TESTS: &[Test] = &[
    ("nothing_listens", nothing_listens),
    ("what_the_server_refuses", what_the_server_refuses),
    ("a_server_that_does_not_answer", a_server_that_does_not_answer),
    ("a_server_that_is_starting_is_waited_for", a_server_that_is_starting_is_waited_for),
    ("the_next_host_gets_its_turn", the_next_host_gets_its_turn),
    ("statements_have_no_names", statements_have_no_names),
    ("rows_that_a_policy_hides_are_not_left_out_in_silence", rows_that_a_policy_hides_are_not_left_out_in_silence),
    ("missing_tables_and_columns", missing_tables_and_columns),
    ("permission_is_named", permission_is_named),
    ("a_statement_that_takes_too_long", a_statement_that_takes_too_long),
    ("a_server_killed_in_the_middle_of_a_read", a_server_killed_in_the_middle_of_a_read),
    ("a_network_that_breaks_in_the_middle_of_a_read", a_network_that_breaks_in_the_middle_of_a_read),
    ("a_backend_that_an_administrator_ends", a_backend_that_an_administrator_ends),
    ("a_dropped_stream_cancels_its_statement", a_dropped_stream_cancels_its_statement),
    ("a_dropped_question_cancels_its_statement", a_dropped_question_cancels_its_statement),
    ("sessions_end_with_their_snapshot", sessions_end_with_their_snapshot),
    ("an_error_of_a_row_is_an_error_of_the_read", an_error_of_a_row_is_an_error_of_the_read),
    ("a_view_that_fails_in_the_middle_fails_the_read", a_view_that_fails_in_the_middle_fails_the_read),
];

/// The error of trying a connection.
fn refusal(world: &World, url: &str, options: &[(&str, &str)]) -> datafusion_incremental::Error {
    let connector = world.connector_with(url, options);
    let error = world.runtime.block_on(connector.check()).unwrap_err();
    for text in [error.to_string(), format!("{error:?}"), format!("{connector:?}")] {
        assert!(!text.contains(PASSWORD) && !text.contains("wr0ng") && !text.contains("127.0.0.1"), "{text}");
    }
    assert!(error.message().contains("connection \"pg\"") && error.message().contains("Remedy: "), "{error}");
    error
}

fn nothing_listens(world: &World) {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = refusal(world, &format!("postgres://u:wr0ng@127.0.0.1:{free}/d"), &[]);
    assert_eq!(error.code(), ErrorCode::ConnectionFailed);
    assert!(error.message().contains("nothing listens"), "{error}");
}

fn what_the_server_refuses(world: &World) {
    let port = world.server.port;
    for (url, part, remedy) in [
        (format!("postgres://postgres:wr0ng@127.0.0.1:{port}/postgres"), "password authentication failed", "pg_hba.conf"),
        (format!("postgres://nobody_here:wr0ng@127.0.0.1:{port}/postgres"), "password authentication failed", "user and password"),
        (format!("postgres://postgres:{PASSWORD}@127.0.0.1:{port}/no_such_db"), "no_such_db", "correct the database"),
        (format!("postgres://postgres@127.0.0.1:{port}/postgres"), "password", "user, password"),
        (format!("postgres://postgres:{PASSWORD}@127.0.0.1:{port}/postgres?sslmode=require"), "TLS", "sslmode"),
    ] {
        let error = refusal(world, &url, &[]);
        assert_eq!(error.code(), ErrorCode::ConnectionFailed, "{error}");
        assert!(error.message().contains(part) && error.message().contains(remedy), "{part}, {remedy}: {error}");
    }
    let role = world.role("limited");
    world.sql(&format!("ALTER ROLE {role} CONNECTION LIMIT 0"));
    let error = refusal(world, &world.url_of(&role), &[]);
    assert!(error.message().contains("too many connections"), "{error}");
    let bad = world.runtime.block_on(PostgresFactory.open(settings("postgres://u:wr0ng@h:99999999/d", &[]))).unwrap_err();
    assert!(bad.code() == ErrorCode::ConfigInvalid && !bad.message().contains("wr0ng"), "{bad}");
}

fn a_server_that_does_not_answer(world: &World) {
    let proxy = Proxy::start(&world.runtime, world.server.port);
    proxy.go_silent();
    let start = Instant::now();
    let url = format!("postgres://u:wr0ng@127.0.0.1:{}/d", proxy.port);
    let error = refusal(world, &url, &[("connect_timeout", "500 ms")]);
    assert!(error.message().contains("no answer within 0.5 s"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20));
}

fn a_server_that_is_starting_is_waited_for(world: &World) {
    // The first connections are refused by the network; a later one gets through.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, target) = (listener.local_addr().unwrap().port(), world.server.port);
    drop(listener);
    let url = format!("postgres://postgres:{PASSWORD}@127.0.0.1:{port}/{}", world.database);
    let connector = world.connector_with(&url, &[]);
    world.runtime.block_on(async move {
        let late = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(400)).await;
            let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = tokio::net::TcpStream::connect(("127.0.0.1", target)).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
        connector.check().await.unwrap();
        late.abort();
    });
}

fn the_next_host_gets_its_turn(world: &World) {
    let (silent, second) = (Proxy::start(&world.runtime, world.server.port), Proxy::start(&world.runtime, world.server.port));
    silent.go_silent();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{free},127.0.0.1:{}", silent.port, second.port);
    let url = format!("postgres://postgres:{PASSWORD}@{hosts}/{}", world.database);
    let limit = [("connect_timeout", "700 ms")];
    world.sql("CREATE TABLE t (id int); INSERT INTO t VALUES (1)");
    let snapshot = world.try_snapshot(&world.connector_with(&url, &limit), "t").unwrap();
    assert_eq!(world.rows(&snapshot, everything(&snapshot, &[])), ["1"]);
    assert_eq!((silent.accepted(), second.accepted()), (1, 1));
    // A name with several addresses: nothing listens at one of them.
    let url = format!("postgres://postgres:{PASSWORD}@localhost:{}/{}", second.port, world.database);
    world.runtime.block_on(world.connector_with(&url, &limit).check()).unwrap();
    // Nobody answers: each had its time, and the last one is named.
    let error = refusal(world, &format!("postgres://u:wr0ng@127.0.0.1:{free},127.0.0.1:{}/d", silent.port), &limit);
    assert!(error.message().contains("no answer within 0.7 s (the last of 2 addresses)"), "{error}");
    // Another host would not know another password.
    let accepted = second.accepted();
    let url = format!("postgres://postgres:wr0ng@127.0.0.1:{},127.0.0.1:{}/postgres", world.server.port, second.port);
    assert!(refusal(world, &url, &limit).message().contains("password authentication failed"));
    assert_eq!(second.accepted(), accepted);
}

fn statements_have_no_names(_: &World) {
    let server = Server::start(&["log_statement = 'all'"]);
    let world = World::new(&server);
    world.sql("CREATE TABLE t (id int PRIMARY KEY, n numeric); INSERT INTO t VALUES (1, 1.5)");
    let connector = world.connector();
    world.runtime.block_on(connector.discover(None)).unwrap();
    let snapshot = world.try_snapshot(&connector, "t").unwrap();
    assert_eq!(world.runtime.block_on(snapshot.count_nulls("n", &[])).unwrap(), 0);
    assert_eq!(world.rows(&snapshot, everything(&snapshot, &[])), ["1|1.5"]);
    let log = server.log();
    assert!(log.contains("execute <unnamed>: "), "{log}");
    // COPY has no other way here; a pool by transaction keeps it on one connection.
    let named = log.lines().filter(|line| line.contains("execute s") && !line.contains("COPY"));
    assert_eq!(named.collect::<Vec<_>>(), Vec::<&str>::new());
}

fn rows_that_a_policy_hides_are_not_left_out_in_silence(world: &World) {
    let role = world.role("reader");
    world.sql(&format!(
        "CREATE TABLE t (id int PRIMARY KEY, owner text); INSERT INTO t VALUES (1, 'a'), (2, 'b'); GRANT SELECT ON t TO {role};
         ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON t USING (owner = 'a')"
    ));
    let snapshot = world.try_snapshot(&world.connector_with(&world.url_of(&role), &[]), "t").unwrap();
    let error = world.batches(&snapshot, everything(&snapshot, &[])).unwrap_err();
    assert_eq!(error.code(), ErrorCode::CaptureFailed);
    for part in ["table \"public.t\"", "row-level security", "row_security = 'allow'"] {
        assert!(error.message().contains(part), "{part}: {error}");
    }
    let snapshot = world.try_snapshot(&world.connector_with(&world.url_of(&role), &[("row_security", "allow")]), "t").unwrap();
    assert_eq!(world.rows(&snapshot, everything(&snapshot, &[])), ["1|a"]);
    // Whom no policy binds notices nothing.
    assert_eq!(world.table("t", &[]).len(), 2);
}

fn missing_tables_and_columns(world: &World) {
    world.sql("CREATE TABLE t (id int, v int)");
    let error = world.try_snapshot(&world.connector(), "absent.t").unwrap_err();
    assert_eq!(error.code(), ErrorCode::SourceNotFound);
    let snapshot = world.snapshot("t");
    let request = ReadRequest { columns: vec!["w".into()], ..everything(&snapshot, &[]) };
    let error = world.batches(&snapshot, request).unwrap_err();
    assert_eq!(error.code(), ErrorCode::FieldNotFound);
    let error = world.try_snapshot(&world.connector_with(&world.url(), &[]), "a.b.c").unwrap_err();
    assert_eq!(error.code(), ErrorCode::SourceNotFound);
}

fn permission_is_named(world: &World) {
    let role = world.role("reader");
    world.sql("CREATE TABLE base (id int); CREATE VIEW v AS SELECT * FROM base; CREATE TABLE closed (id int)");
    world.sql(&format!(
        "CREATE ROLE other_{0}; ALTER VIEW v OWNER TO other_{0}; GRANT USAGE ON SCHEMA public TO other_{0}; GRANT SELECT ON v TO {role}",
        world.database
    ));
    let connector = world.connector_with(&world.url_of(&role), &[]);
    // The view may be read, but its owner may not read what is behind it.
    let snapshot = world.try_snapshot(&connector, "v").unwrap();
    let error = world.batches(&snapshot, everything(&snapshot, &[])).unwrap_err();
    assert_eq!(error.code(), ErrorCode::CaptureFailed);
    for part in ["table \"public.v\"", "permission denied for table base", "GRANT"] {
        assert!(error.message().contains(part), "{part}: {error}");
    }
    let snapshot = world.try_snapshot(&connector, "closed").unwrap();
    assert!(snapshot.table().columns[0].unsupported.as_ref().unwrap().contains("GRANT"));
}

fn a_statement_that_takes_too_long(world: &World) {
    world.sql("CREATE VIEW slow AS SELECT 1 AS id, pg_sleep(60)::text AS s");
    let connector = world.connector_with(&world.url(), &[("statement_timeout", "300 ms")]);
    let snapshot = world.try_snapshot(&connector, "slow").unwrap();
    let error = world.batches(&snapshot, everything(&snapshot, &[])).unwrap_err();
    assert_eq!(error.code(), ErrorCode::CaptureFailed);
    assert!(error.message().contains("statement timeout") && error.message().contains("raise statement_timeout"), "{error}");
}

/// A table whose read takes long enough to be interrupted: more than all the buffers between the server and here.
fn long_table(world: &World) {
    world.sql(
        "CREATE TABLE long (id int PRIMARY KEY, v text); INSERT INTO long SELECT i, repeat('x', 1000) FROM generate_series(1, 60000) i",
    );
}

fn a_server_killed_in_the_middle_of_a_read(_: &World) {
    let server = Server::start(&[]);
    let world = World::new(&server);
    long_table(&world);
    let snapshot = world.snapshot("long");
    let mut stream = world.runtime.block_on(snapshot.read(everything(&snapshot, &["id"]))).unwrap();
    assert!(world.runtime.block_on(stream.next()).unwrap().is_ok());
    server.kill();
    let rest: Vec<_> = world.runtime.block_on(stream.collect());
    let error = rest.iter().find_map(|item| item.as_ref().err()).expect("a stream that is cut ends with an error");
    let error = datafusion_incremental::Error::find(error).unwrap();
    assert_eq!(error.code(), ErrorCode::ConnectionFailed, "{error}");
    assert!(error.message().contains("public.long"), "{error}");
    // The server is back: the next snapshot reads everything.
    server.launch();
    let world = World::on(&server, world.database);
    assert_eq!(world.table("long", &[]).len(), 60_000);
}

fn a_network_that_breaks_in_the_middle_of_a_read(world: &World) {
    long_table(world);
    let proxy = Proxy::start(&world.runtime, world.server.port);
    let url = format!("postgres://postgres:{PASSWORD}@127.0.0.1:{}/{}", proxy.port, world.database);
    for bytes in [0, 1, 19, 1_000, 1_000_000, 59_000_000] {
        let connector = world.connector_with(&url, &[]);
        let snapshot = world.try_snapshot(&connector, "long").unwrap();
        let connections = proxy.accepted();
        proxy.cut_after(bytes);
        let error = world.batches(&snapshot, everything(&snapshot, &["id"])).unwrap_err();
        assert_eq!(error.code(), ErrorCode::ConnectionFailed, "after {bytes}: {error}");
        // A read is never taken up on another connection: that would see another moment.
        assert!(proxy.accepted() <= connections + 1, "one more connection at most, and only to cancel");
        proxy.mend();
        // What the snapshot is asked afterwards fails too, and does not hang.
        assert_eq!(world.runtime.block_on(snapshot.ceiling("id", &[])).unwrap_err().code(), ErrorCode::ConnectionFailed);
    }
    let snapshot = world.try_snapshot(&world.connector_with(&url, &[]), "long").unwrap();
    assert_eq!(world.rows(&snapshot, everything(&snapshot, &[])).len(), 60_000);
}

fn a_backend_that_an_administrator_ends(world: &World) {
    world.sql("CREATE TABLE t (id int)");
    let snapshot = world.snapshot("t");
    world.text("SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE application_name = 'datafusion-incremental' AND datname = current_database()");
    let error = world.batches(&snapshot, everything(&snapshot, &[])).unwrap_err();
    assert_eq!(error.code(), ErrorCode::ConnectionFailed, "{error}");
}

const SESSIONS: &str =
    "SELECT count(*)::text FROM pg_stat_activity WHERE application_name = 'datafusion-incremental' AND datname = current_database()";

/// Waits until no session of the connector is left on the database.
pub fn assert_nothing_is_left(world: &World) {
    let start = Instant::now();
    while world.text(SESSIONS) != "0" {
        assert!(
            start.elapsed() < Duration::from_secs(15),
            "{}",
            world.text(
                "SELECT string_agg(state || ': ' || query, E'\\n') FROM pg_stat_activity WHERE application_name = 'datafusion-incremental'"
            )
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn a_dropped_stream_cancels_its_statement(world: &World) {
    // One row, then a sleep: the server would notice a closed connection only at the next row.
    world.sql("CREATE VIEW slow AS SELECT i, CASE WHEN i = 2 THEN pg_sleep(120)::text ELSE repeat('x', 9000000) END AS s FROM generate_series(1, 2) i");
    let snapshot = world.snapshot("slow");
    let mut stream = world.runtime.block_on(snapshot.read(everything(&snapshot, &[]))).unwrap();
    assert!(world.runtime.block_on(stream.next()).unwrap().is_ok());
    drop((stream, snapshot));
    assert_nothing_is_left(world);
}

fn a_dropped_question_cancels_its_statement(world: &World) {
    world.sql("CREATE FUNCTION slow(int) RETURNS boolean LANGUAGE sql VOLATILE AS 'SELECT pg_sleep(120) IS NULL'; CREATE TABLE t (id int); INSERT INTO t VALUES (NULL); CREATE VIEW v AS SELECT id FROM t WHERE slow(id)");
    let snapshot = world.snapshot("v");
    let question =
        world.runtime.block_on(async { tokio::time::timeout(Duration::from_millis(300), snapshot.count_nulls("id", &[])).await });
    assert!(question.is_err(), "still asking");
    drop(snapshot);
    assert_nothing_is_left(world);
}

fn sessions_end_with_their_snapshot(_: &World) {
    let server = Server::start(&[]); // its log is looked at, and others cut connections
    let world = World::new(&server);
    world.sql("CREATE TABLE t (id int); INSERT INTO t VALUES (1)");
    let connector = world.connector();
    for _ in 0..3 {
        let snapshot = world.try_snapshot(&connector, "t").unwrap();
        assert_eq!(world.text(SESSIONS), "1");
        let stream = world.runtime.block_on(snapshot.read(everything(&snapshot, &[]))).unwrap();
        drop(snapshot);
        // The stream holds what it needs.
        assert_eq!(world.runtime.block_on(stream.count()), 1);
        world.runtime.block_on(connector.discover(None)).unwrap();
        world.runtime.block_on(connector.check()).unwrap();
        assert_nothing_is_left(&world);
    }
    assert!(!world.server.log().contains("unexpected EOF"), "every session says goodbye: {}", world.server.log());
}

fn an_error_of_a_row_is_an_error_of_the_read(world: &World) {
    world.sql("CREATE TABLE t (id int PRIMARY KEY, at timestamp); INSERT INTO t SELECT i, CASE WHEN i = 9000 THEN timestamp 'infinity' ELSE now() END FROM generate_series(1, 9999) i");
    let snapshot = world.snapshot("t");
    let mut stream = world.runtime.block_on(snapshot.read(everything(&snapshot, &["id"]))).unwrap();
    assert_eq!(world.runtime.block_on(stream.next()).unwrap().unwrap().num_rows(), 8192);
    let error = datafusion_incremental::Error::find(&world.runtime.block_on(stream.next()).unwrap().unwrap_err()).unwrap();
    assert!(error.code() == ErrorCode::ValueOutOfRange && error.message().contains("id = 9000"), "{error}");
    assert!(world.runtime.block_on(stream.next()).is_none(), "nothing behind an error");
    drop((stream, snapshot));
    assert_nothing_is_left(world);
}

fn a_view_that_fails_in_the_middle_fails_the_read(world: &World) {
    world.sql("CREATE VIEW v AS SELECT i, 1 / (i - 9000) AS q FROM generate_series(1, 20000) i");
    let snapshot = world.snapshot("v");
    let error = world.batches(&snapshot, everything(&snapshot, &[])).unwrap_err();
    assert_eq!(error.code(), ErrorCode::CaptureFailed);
    assert!(error.message().contains("division by zero"), "{error}");
}
