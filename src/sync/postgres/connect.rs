//! Connecting: one host and one address after the other, each with a limit of its own, as libpq does.
//!
//! ```text
//! hosts of the address ─ each name resolved ─► addresses ─ first that admits us ─► connection
//!        └ refused by name, password or database: final        └ all failed, and it may pass: again, twice
//! ```
//!
//! The library limits only how long TCP takes, and the whole list shares what is put around it; a host that accepts and then
//! says nothing would keep the next one from its turn.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;
use tokio::time::{sleep, timeout};
use tokio_postgres::config::{Config, Host, LoadBalanceHosts, SslMode};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::failure::{Subject, is_final, is_transient};
use super::options::PostgresOptions;
use crate::error::{Error, ErrorCode, Result};

/// Waits before connecting again after a failure that may pass.
const CONNECT_AGAIN: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(800)];
const DEFAULT_PORT: u16 = 5432;

/// A client and what drives it.
pub(super) type Connected = (Client, Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>);

/// Connects; a refusal that may pass (a server that is just starting) is met by trying all hosts again, twice.
///
/// # Errors
/// `CONNECTION_FAILED`, as the last address failed.
pub(super) async fn connect(options: &PostgresOptions, tls: &MakeRustlsConnect, subject: &Subject) -> Result<Connected> {
    let mut waits = CONNECT_AGAIN.iter();
    loop {
        let mut round = Round { options, tls, tried: 0, may_pass: true };
        let failure = match round.run().await {
            Ok(connected) => return Ok(connected),
            Err(failure) => failure,
        };
        match waits.next().filter(|_| round.may_pass) {
            Some(wait) => sleep(*wait).await,
            None => return Err(failure.report(subject, (round.tried, options.connect_timeout))),
        }
    }
}

/// Why an address does not serve.
enum Failure {
    Refused(tokio_postgres::Error),
    Unresolved(io::Error),
    Silent,
}

impl Failure {
    fn may_pass(&self) -> bool {
        match self {
            Self::Refused(error) => is_transient(error),
            Self::Unresolved(_) => true,
            Self::Silent => false,
        }
    }

    fn is_final(&self) -> bool {
        matches!(self, Self::Refused(error) if is_final(error))
    }

    fn report(&self, subject: &Subject, (tried, limit): (usize, Option<Duration>)) -> Error {
        let among = if tried > 1 { format!(" (the last of {tried} addresses)") } else { String::new() };
        match self {
            Self::Refused(error) => subject.connect_failed(error, &among),
            Self::Unresolved(error) => subject.error(
                ErrorCode::ConnectionFailed,
                format!("the server cannot be reached: {error}{among}"),
                "correct the host of the address, and see that its name can be resolved here",
            ),
            Self::Silent => subject.error(
                ErrorCode::ConnectionFailed,
                format!("no answer within {} s{among}", limit.unwrap_or_default().as_secs_f32()),
                "see that the server runs and the network lets the address through, or raise connect_timeout",
            ),
        }
    }
}

/// One pass over all hosts.
struct Round<'a> {
    options: &'a PostgresOptions,
    tls: &'a MakeRustlsConnect,
    /// Addresses so far.
    tried: usize,
    /// Whether everything that failed may succeed shortly.
    may_pass: bool,
}

impl Round<'_> {
    async fn run(&mut self) -> Result<Connected, Failure> {
        let mut last = Failure::Unresolved(io::Error::other("the address has no host"));
        for host in self.hosts() {
            match self.host(host).await {
                Ok(connected) => return Ok(connected),
                Err(failure) => last = failure,
            }
            if last.is_final() {
                break;
            }
        }
        Err(last)
    }

    /// The hosts' places in the order of their turns.
    fn hosts(&self) -> Vec<usize> {
        let config = &self.options.config;
        let mut places: Vec<usize> = (0..config.get_hosts().len().max(config.get_hostaddrs().len())).collect();
        if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
            let random = RandomState::new();
            places.sort_by_key(|place| random.hash_one(place));
        }
        places
    }

    async fn host(&mut self, place: usize) -> Result<Connected, Failure> {
        let config = &self.options.config;
        let port = config.get_ports().get(place).or(config.get_ports().first()).copied().unwrap_or(DEFAULT_PORT);
        let addresses = match (config.get_hostaddrs().get(place), config.get_hosts().get(place)) {
            (Some(address), _) => vec![Some(*address)],
            (None, Some(Host::Tcp(name))) => self.resolve(name, port).await?,
            (None, _) => vec![None],
        };
        let mut last = Failure::Unresolved(io::Error::other("its name has no address"));
        for address in addresses {
            let config = single(config, (config.get_hosts().get(place), address, port));
            self.tried += 1;
            match self.limited(config.connect(self.tls.clone())).await {
                Some(Ok(connected)) => return Ok(connected),
                Some(Err(error)) => last = Failure::Refused(error),
                None => last = Failure::Silent,
            }
            self.may_pass &= last.may_pass();
            if last.is_final() {
                break;
            }
        }
        Err(last)
    }

    /// The addresses of a name, which may be of both families.
    async fn resolve(&mut self, name: &str, port: u16) -> Result<Vec<Option<IpAddr>>, Failure> {
        if let Ok(address) = name.parse::<IpAddr>() {
            return Ok(vec![Some(address)]);
        }
        let name = name.to_string();
        let resolving = SpawnedTask::spawn_blocking(move || (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>));
        let failure = match self.limited(resolving).await {
            Some(Ok(Ok(found))) => return Ok(found.into_iter().map(|address| Some(address.ip())).collect()),
            Some(Ok(Err(error))) => Failure::Unresolved(error),
            Some(Err(error)) => Failure::Unresolved(io::Error::other(error)),
            None => Failure::Silent,
        };
        self.tried += 1;
        self.may_pass &= failure.may_pass();
        Err(failure)
    }

    async fn limited<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        match self.options.connect_timeout {
            Some(limit) => timeout(limit, work).await.ok(),
            None => Some(work.await),
        }
    }
}

/// The same for one host at one address. The library has no way to leave hosts out, only to add them. The limit of connecting is
/// ours: the library's counts for a part of it only.
fn single(all: &Config, (host, address, port): (Option<&Host>, Option<IpAddr>, u16)) -> Config {
    let mut one = Config::new();
    one.port(port).ssl_mode(all.get_ssl_mode()).ssl_negotiation(all.get_ssl_negotiation());
    one.channel_binding(all.get_channel_binding()).target_session_attrs(all.get_target_session_attrs());
    match host {
        Some(Host::Tcp(name)) => {
            one.host(name);
        }
        // Nobody listens in on a socket of this machine; libpq leaves TLS out as well.
        #[cfg(unix)]
        Some(Host::Unix(path)) => {
            one.host_path(path).ssl_mode(SslMode::Disable);
        }
        None => {}
    }
    address.map(|address| one.hostaddr(address));
    all.get_user().map(|user| one.user(user));
    all.get_password().map(|password| one.password(password));
    all.get_dbname().map(|name| one.dbname(name));
    all.get_options().map(|options| one.options(options));
    all.get_application_name().map(|name| one.application_name(name));
    all.get_tcp_user_timeout().map(|limit| one.tcp_user_timeout(*limit));
    one.keepalives(all.get_keepalives()).keepalives_idle(all.get_keepalives_idle());
    all.get_keepalives_interval().map(|interval| one.keepalives_interval(interval));
    all.get_keepalives_retries().map(|retries| one.keepalives_retries(retries));
    one
}
