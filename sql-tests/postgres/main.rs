//! The `postgres` connector against a real server, which is started here on a port of its own and torn down at the end.
//!
//! ```text
//! main ─ Server (initdb, postgres, a folder of its own) ─► trials, each in a fresh database ─► stopped, also after a panic
//! ```
//!
//! Needs PostgreSQL's server programs (`apt-get install postgresql`); `sql-tests/run.sh` installs them. As root the server
//! runs as the user `postgres`, since PostgreSQL refuses root.
#![allow(clippy::disallowed_methods)] // times are measured, sessions run beside each other

mod arrays;
mod catalog;
mod crashes;
mod failures;
mod hostile;
mod lock;
mod memory;
mod proxy;
mod reading;
mod server;
mod tables;
mod tls;
mod types;
mod world;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};

use server::Server;
use world::World;

/// A test: what it is called, and what it does with a database of its own.
pub type Test = (&'static str, fn(&World));

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let groups: [(&str, &[Test]); 10] = [
        ("types", types::TESTS),
        ("arrays", arrays::TESTS),
        ("catalog", catalog::TESTS),
        ("reading", reading::TESTS),
        ("lock", lock::TESTS),
        ("failures", failures::TESTS),
        ("hostile", hostile::TESTS),
        ("memory", memory::TESTS),
        ("tables", tables::TESTS),
        ("crashes", crashes::TESTS),
    ];
    // A listing starts no server.
    let server = (!arguments.list).then(|| Arc::new(Server::start(&[])));
    let mut trials = vec![];
    for (group, tests) in groups.into_iter().chain([("tls", tls::TESTS)]) {
        for &(name, test) in tests {
            let server = server.clone();
            trials.push(Trial::test(format!("{group}::{name}"), move || {
                if let Some(server) = server {
                    test(&World::new(&server));
                }
                Ok(())
            }));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(server); // before exiting, which runs no destructor
    conclusion.exit_code()
}
