//! TLS in libpq's modes, against a server with a certificate of an authority made here.

use std::path::{Path, PathBuf};
use std::process::Command;

use datafusion_incremental::ErrorCode;

use crate::Test;
use crate::server::{PASSWORD, Server};
use crate::world::World;

pub const TESTS: &[Test] = &[
    ("modes_believe_what_libpq_believes", modes_believe_what_libpq_believes),
    ("a_certificate_of_version_1_is_named", a_certificate_of_version_1_is_named),
    ("a_socket_of_this_machine_needs_no_tls", a_socket_of_this_machine_needs_no_tls),
];

fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl").current_dir(folder).args(arguments.split(' ')).output().expect("openssl runs");
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An authority, and a certificate by it for `localhost` alone.
fn certificates(folder: &Path) -> PathBuf {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(folder, &format!("req -x509 {key} -days 2 -subj /CN=authority -keyout ca.key -out ca.pem"));
    openssl(folder, &format!("req {key} -subj /CN=localhost -keyout server.key -out server.csr"));
    std::fs::write(folder.join("names"), "subjectAltName = DNS:localhost\nbasicConstraints = CA:FALSE\n").unwrap();
    openssl(folder, "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.crt");
    openssl(folder, &format!("req -x509 {key} -days 2 -subj /CN=stranger -keyout other.key -out other.pem"));
    folder.join("ca.pem")
}

/// A server with the certificate in this folder.
fn server_with_tls(folder: &Path) -> Server {
    let server = Server::start(&[]);
    for file in ["server.key", "server.crt"] {
        server.install(&folder.join(file));
    }
    server.kill();
    server.configure("ssl = on");
    server.launch();
    server
}

fn a_certificate_of_version_1_is_named(_: &World) {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    // Without extensions openssl makes the first version.
    openssl(folder.path(), "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out server.crt");
    let server = server_with_tls(folder.path());
    let world = World::new(&server);
    let root = folder.path().join("ca.pem").display().to_string();
    for (mode, root) in [("prefer", None), ("require", None), ("verify-ca", Some(&root)), ("verify-full", Some(&root))] {
        let url = format!("postgres://postgres:{PASSWORD}@localhost:{}/{}", server.port, world.database);
        let mut options = vec![("sslmode", mode)];
        options.extend(root.map(|root| ("sslrootcert", root.as_str())));
        let error = world.runtime.block_on(world.connector_with(&url, &options).check()).unwrap_err();
        for part in ["X.509 version 1", "version 3", "sslmode = 'disable'"] {
            assert!(error.message().contains(part), "{mode}, {part}: {error}");
        }
    }
}

fn a_socket_of_this_machine_needs_no_tls(world: &World) {
    let folder = world.server.data().parent().unwrap().display().to_string().replace('/', "%2F");
    let url = format!("postgres://postgres:{PASSWORD}@{folder}:{}/{}?sslmode=verify-full", world.server.port, world.database);
    world.runtime.block_on(world.connector_with(&url, &[]).check()).unwrap();
}

fn modes_believe_what_libpq_believes(_: &World) {
    let folder = tempfile::tempdir().unwrap();
    let authority = certificates(folder.path());
    let (authority, stranger) = (authority.display().to_string(), folder.path().join("other.pem").display().to_string());
    let server = server_with_tls(folder.path());
    let world = World::new(&server);
    let try_connect = |host: &str, mode: &str, root: &str| {
        let url = format!("postgres://postgres:{PASSWORD}@{host}:{}/{}", server.port, world.database);
        let mut options = vec![("sslmode", mode)];
        options.extend((!root.is_empty()).then_some(("sslrootcert", root)));
        let connector = world.connector_with(&url, &options);
        let result = world.runtime.block_on(connector.check());
        let encrypted = "SELECT coalesce(bool_or(ssl), false)::text FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
                         WHERE a.application_name = 'datafusion-incremental' AND a.datname = current_database()";
        match result {
            Ok(()) => {
                world.sql("DROP TABLE IF EXISTS t; CREATE TABLE t (id int)");
                let snapshot = world.try_snapshot(&connector, "t").unwrap();
                let answer = world.text(encrypted);
                drop(snapshot);
                answer
            }
            Err(error) => {
                assert_eq!(error.code(), ErrorCode::ConnectionFailed, "{error}");
                assert!(!error.message().contains(PASSWORD) && !error.message().contains(host), "{error}");
                error.message().to_string()
            }
        }
    };
    assert_eq!(try_connect("localhost", "disable", ""), "false");
    assert_eq!(try_connect("localhost", "prefer", ""), "true");
    assert_eq!(try_connect("localhost", "require", ""), "true");
    // With certificates to trust, `require` verifies the chain.
    assert_eq!(try_connect("127.0.0.1", "require", &authority), "true");
    assert!(try_connect("localhost", "require", &stranger).contains("not signed by one that is trusted"));
    assert_eq!(try_connect("localhost", "verify-ca", &authority), "true");
    assert_eq!(try_connect("localhost", "verify-full", &authority), "true");
    // By address: the chain is good, the name is not.
    assert_eq!(try_connect("127.0.0.1", "verify-ca", &authority), "true");
    assert!(try_connect("127.0.0.1", "verify-full", &authority).contains("other names than the host"));
    for (mode, root) in [("verify-ca", stranger.as_str()), ("verify-full", stranger.as_str()), ("verify-ca", "system"), ("verify-full", "")]
    {
        assert!(try_connect("localhost", mode, root).contains("not signed by one that is trusted"), "{mode} {root}");
    }
    let url = format!("postgres://postgres:{PASSWORD}@localhost:{}/{}", server.port, world.database);
    let connector = world.connector_with(&url, &[("sslmode", "verify-full"), ("sslrootcert", "/no/such.pem")]);
    let error = world.runtime.block_on(connector.check()).unwrap_err();
    assert!(error.code() == ErrorCode::ConfigInvalid && error.message().contains("/no/such.pem"), "{error}");
    // Cancelling goes over TLS as well.
    world.sql("CREATE VIEW slow AS SELECT pg_sleep(120)::text AS s");
    let connector = world.connector_with(&url, &[("sslmode", "verify-full"), ("sslrootcert", &authority)]);
    let snapshot = world.try_snapshot(&connector, "slow").unwrap();
    let question = async { tokio::time::timeout(std::time::Duration::from_millis(300), snapshot.count_nulls("s", &[])).await };
    assert!(world.runtime.block_on(question).is_err());
    drop(snapshot);
    crate::failures::assert_nothing_is_left(&world);
}
