//! The options of a PostgreSQL connection, checked and in the form that connecting needs.
//!
//! ```text
//! url = 'postgres://user:password@host:5432/db?sslmode=verify-full&sslrootcert=/etc/ca.pem'
//!        └ tokio-postgres reads the rest          └─────────── ours ───────────┘
//! ```
//!
//! tokio-postgres knows three TLS modes and refuses the other two, so `sslmode` and `sslrootcert` are taken out of the address
//! first. No message here repeats any part of the address: a password that was not percent-encoded ends up in the wrong part.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::config::{Config, SslMode};

use crate::error::{Error, ErrorCode, Result};
use crate::spec::parse_duration;
use crate::sync::connector::{ConnectionOption, ConnectionSettings};

/// Every option of `TYPE postgres`.
pub(super) const OPTIONS: &[ConnectionOption] = &[
    option(
        "url",
        true,
        "Where the database is: `postgres://user:password@host:port/database`, by reference. Parameters of the address that libpq knows \
         too (`sslmode`, `sslrootcert`, `connect_timeout`, `application_name`, `options`, …) work",
    ),
    option(
        "sslmode",
        false,
        "`disable`, `prefer` (default: encrypted where the server can, unverified), `require` (encrypted, unverified), `verify-ca` (the \
         certificate's chain is verified), `verify-full` (its host name too). Overrides the address",
    ),
    option(
        "sslrootcert",
        false,
        "PEM file of the certificates that `verify-ca` and `verify-full` trust; `system` (default): those of the machine",
    ),
    option("connect_timeout", false, "How long connecting may take, `30 s` by default"),
    option(
        "statement_timeout",
        false,
        "How long one statement may take, reading all rows of a table included; `0` for as long as it takes. By default the server's \
         own limit",
    ),
    option("schema", false, "The schema of tables that are named without one, `public` by default"),
    option(
        "out_of_range",
        false,
        "What becomes of values that have no counterpart here (infinite dates and timestamps, NaN and infinity in `numeric`, `24:00`): \
         `error` (default: VALUE_OUT_OF_RANGE) or `null`",
    ),
];

const fn option(name: &'static str, is_secret: bool, doc: &'static str) -> ConnectionOption {
    ConnectionOption { name, is_secret, is_required: is_secret, doc }
}

const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// What becomes of a value that has no counterpart in Arrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutOfRange {
    /// The read fails.
    Error,
    /// The value is read as null.
    Null,
}

/// How far a server is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TlsMode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl FromStr for TlsMode {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "disable" => Ok(Self::Disable),
            "prefer" => Ok(Self::Prefer),
            "require" => Ok(Self::Require),
            "verify-ca" => Ok(Self::VerifyCa),
            "verify-full" => Ok(Self::VerifyFull),
            _ => Err(()),
        }
    }
}

/// A connection's options.
#[derive(Clone)]
pub(super) struct PostgresOptions {
    /// The connection's name, for messages.
    pub name: String,
    /// What tokio-postgres connects with; holds the password.
    pub config: Config,
    pub tls: TlsMode,
    /// The trusted certificates; `None` is the machine's own.
    pub root_certificates: Option<PathBuf>,
    pub connect_timeout: Duration,
    /// Zero does not limit; `None` leaves it to the server.
    pub statement_timeout: Option<Duration>,
    pub schema: String,
    pub out_of_range: OutOfRange,
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions").field("name", &self.name).field("tls", &self.tls).finish_non_exhaustive()
    }
}

impl PostgresOptions {
    /// Reads a connection's settings.
    ///
    /// # Errors
    /// `CONFIG_INVALID`, naming the option.
    pub(super) fn parse(settings: &ConnectionSettings) -> Result<Self> {
        let invalid = |option: &str, wanted: &str| {
            Error::new(
                ErrorCode::ConfigInvalid,
                format!("connection {:?}: option \"{option}\" is not admitted. Remedy: give {wanted}", settings.name),
            )
        };
        let given = |name: &str| settings.options.get(name).map(|value| value.trim());
        let duration = |name: &str| {
            let parse = |text| parse_duration(text).ok_or_else(|| invalid(name, "a duration, for example '30 s'"));
            given(name).map(parse).transpose()
        };
        let url = given("url").unwrap_or_default();
        let address = Address::split(url).ok_or_else(|| invalid("url", ADDRESS_REMEDY))?;
        let mut config = Config::from_str(&address.rest).map_err(|_| invalid("url", ADDRESS_REMEDY))?;
        if config.get_hosts().is_empty() {
            return Err(invalid("url", ADDRESS_REMEDY));
        }
        let modes = "one of disable, prefer, require, verify-ca, verify-full";
        let tls = match given("sslmode").or(address.ssl_mode.as_deref()) {
            None => TlsMode::Prefer,
            Some(text) => text.parse().map_err(|()| invalid("sslmode", modes))?,
        };
        let out_of_range = match given("out_of_range") {
            None | Some("error") => OutOfRange::Error,
            Some("null") => OutOfRange::Null,
            Some(_) => return Err(invalid("out_of_range", "'error' or 'null'")),
        };
        let in_address = config.get_connect_timeout().copied();
        let connect_timeout = duration("connect_timeout")?.or(in_address).unwrap_or(DEFAULT_CONNECT_TIMEOUT);
        prepare(&mut config, tls, connect_timeout);
        Ok(Self {
            name: settings.name.clone(),
            config,
            tls,
            root_certificates: given("sslrootcert").or(address.root_certificates.as_deref()).filter(|p| *p != "system").map(PathBuf::from),
            connect_timeout,
            statement_timeout: duration("statement_timeout")?,
            schema: given("schema").unwrap_or("public").to_string(),
            out_of_range,
        })
    }
}

const ADDRESS_REMEDY: &str =
    "a reference to an address such as postgres://user:password@host:5432/database, special characters of the password percent-encoded";

/// A peer that vanished without a word is noticed within two minutes, however long its query runs.
fn prepare(config: &mut Config, tls: TlsMode, connect_timeout: Duration) {
    config.ssl_mode(match tls {
        TlsMode::Disable => SslMode::Disable,
        TlsMode::Prefer => SslMode::Prefer,
        TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
    });
    config.connect_timeout(connect_timeout);
    config.keepalives(true);
    config.keepalives_idle(Duration::from_secs(30));
    config.keepalives_interval(Duration::from_secs(15));
    config.keepalives_retries(4);
    config.tcp_user_timeout(Duration::from_secs(90));
    if config.get_application_name().is_none() {
        config.application_name("datafusion-incremental");
    }
}

/// An address without the parameters that are not tokio-postgres's.
struct Address {
    rest: String,
    ssl_mode: Option<String>,
    root_certificates: Option<String>,
}

impl Address {
    /// `None` for text that is no PostgreSQL address.
    fn split(url: &str) -> Option<Self> {
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return None;
        }
        let mut address = Self { rest: url.to_string(), ssl_mode: None, root_certificates: None };
        // A `?` before the last `@` belongs to a password that was not encoded; tokio-postgres splits at the first one too.
        let Some((before, query)) = url.split_once('?') else { return Some(address) };
        let mut kept = vec![];
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=')?;
            let value = || url::form_urlencoded::parse(format!("v={value}").as_bytes()).next().map(|(_, value)| value.into_owned());
            match name {
                "sslmode" => address.ssl_mode = value(),
                "sslrootcert" => address.root_certificates = value(),
                _ => kept.push(pair),
            }
        }
        address.rest = if kept.is_empty() { before.to_string() } else { format!("{before}?{}", kept.join("&")) };
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use datafusion::prelude::SessionContext;

    use super::*;

    fn parse(options: &[(&str, &str)]) -> Result<PostgresOptions> {
        let options: BTreeMap<String, String> = options.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        PostgresOptions::parse(&ConnectionSettings { name: "pg".into(), options, state: SessionContext::new().state() })
    }

    #[test]
    fn the_address_gives_the_tls_mode_and_an_option_overrides_it() {
        let url = "postgres://u:p@h:5433/d?sslmode=verify-full&connect_timeout=7&sslrootcert=%2Fca.pem";
        let options = parse(&[("url", url)]).unwrap();
        assert_eq!(options.tls, TlsMode::VerifyFull);
        assert_eq!(options.root_certificates, Some("/ca.pem".into()));
        assert_eq!(options.connect_timeout, Duration::from_secs(7));
        assert_eq!(options.config.get_ports(), [5433]);
        let options = parse(&[("url", url), ("sslmode", "disable"), ("sslrootcert", "system")]).unwrap();
        assert_eq!((options.tls, options.root_certificates), (TlsMode::Disable, None));
    }

    #[test]
    fn what_is_refused_names_the_option_and_nothing_of_the_address() {
        for (option, options) in [
            ("url", vec![("url", "host=h password=hunter2")]),
            ("url", vec![("url", "postgres://u:hunter2@h:notaport/d")]),
            ("url", vec![("url", "postgres://u:hunter2@h/d?hunter2=1")]),
            ("url", vec![("url", "postgres:///hunter2")]),
            ("url", vec![]),
            ("sslmode", vec![("url", "postgres://u:hunter2@h/d?sslmode=hunter2")]),
            ("out_of_range", vec![("url", "postgres://u:hunter2@h/d"), ("out_of_range", "hunter2")]),
            ("connect_timeout", vec![("url", "postgres://u:hunter2@h/d"), ("connect_timeout", "soon")]),
        ] {
            let error = parse(&options).unwrap_err();
            assert_eq!(error.code(), ErrorCode::ConfigInvalid);
            assert!(error.message().contains(&format!("option \"{option}\"")), "{error}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn debug_text_holds_no_secret() {
        let options = parse(&[("url", "postgres://joe:hunter2@example.org/d")]).unwrap();
        let text = format!("{options:?}");
        assert!(!text.contains("hunter2") && !text.contains("example.org"), "{text}");
    }
}
