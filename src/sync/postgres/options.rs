//! The options of a PostgreSQL connection, checked and in the form that connecting needs.
//!
//! ```text
//! url = 'postgres://user:password@host:5432/db?sslmode=verify-full&sslrootcert=/etc/ca.pem'
//!        └ tokio-postgres reads the rest          └─────────── ours ───────────┘
//! ```
//!
//! tokio-postgres knows three TLS modes and refuses the other two, so `sslmode` and `sslrootcert` are taken out of the address
//! first. No message here repeats a value of the address, nor a name that may be one: a password that was not percent-encoded
//! ends up in the wrong part.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::config::{Config, SslMode};

use crate::error::{Error, ErrorCode, Result};
use crate::spec::parse_duration;
use crate::sync::connector::ConnectionOption;

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
        "PEM file of the certificates that `verify-ca` and `verify-full` trust; `system` (default): those of the machine. With it \
         `require` means `verify-ca`",
    ),
    option(
        "connect_timeout",
        false,
        "How long connecting may take for each host and address, `30 s` by default; `0` for as long as it takes",
    ),
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
    option(
        "row_security",
        false,
        "What becomes of a table whose policies hide rows from the role: `error` (default: it is not read) or `allow` (only the rows that \
         the role sees are synced; one that it sees no longer counts as deleted)",
    ),
];

const fn option(name: &'static str, is_secret: bool, doc: &'static str) -> ConnectionOption {
    ConnectionOption { name, is_secret, is_required: is_secret, doc }
}

const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest `statement_timeout` that a server takes.
const LONGEST_STATEMENT: Duration = Duration::from_millis(i32::MAX as u64);

/// What becomes of a value that has no counterpart in Arrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutOfRange {
    /// The read fails.
    Error,
    /// The value is read as null.
    Null,
}

/// What becomes of a table whose policies hide rows from the role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowSecurity {
    /// The read fails.
    Error,
    /// What the role sees is read.
    Allow,
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
    /// For each address; `None` does not limit.
    pub connect_timeout: Option<Duration>,
    /// Zero does not limit; `None` leaves it to the server.
    pub statement_timeout: Option<Duration>,
    pub schema: String,
    pub out_of_range: OutOfRange,
    pub row_security: RowSecurity,
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
    pub(super) fn parse(name: &str, options: &BTreeMap<String, String>) -> Result<Self> {
        let given = Given { name, options };
        let address = Address::split(given.option("url").unwrap_or_default()).map_err(|fault| given.bad_address(&fault))?;
        let mut config = address.config().map_err(|fault| given.bad_address(&fault))?;
        let root = given.option("sslrootcert").or(address.root_certificates.as_deref());
        let tls = given.tls(&address, root.is_some())?;
        let out_of_range = match given.option("out_of_range") {
            None | Some("error") => OutOfRange::Error,
            Some("null") => OutOfRange::Null,
            Some(_) => return Err(given.invalid("out_of_range", "'error' or 'null'")),
        };
        let row_security = match given.option("row_security") {
            None | Some("error") => RowSecurity::Error,
            Some("allow") => RowSecurity::Allow,
            Some(_) => return Err(given.invalid("row_security", "'error' or 'allow'")),
        };
        let statement_timeout = given.duration("statement_timeout")?;
        if statement_timeout.is_some_and(|limit| limit > LONGEST_STATEMENT) {
            return Err(given.invalid("statement_timeout", "at most 2147483647 ms, or 0 for no limit"));
        }
        let connect_timeout = match (given.duration("connect_timeout")?, address.has("connect_timeout")) {
            (Some(limit), _) => Some(limit).filter(|limit| !limit.is_zero()),
            (None, true) => config.get_connect_timeout().copied(),
            (None, false) => Some(DEFAULT_CONNECT_TIMEOUT),
        };
        prepare(&mut config, tls, &address);
        Ok(Self {
            name: name.to_string(),
            config,
            tls,
            root_certificates: root.filter(|path| *path != "system").map(PathBuf::from),
            connect_timeout,
            statement_timeout,
            schema: given.option("schema").unwrap_or("public").to_string(),
            out_of_range,
            row_security,
        })
    }
}

/// Checks everything but the address, which is a reference to a secret.
///
/// # Errors
/// `CONFIG_INVALID`, naming the option.
pub(super) fn check(name: &str, options: &BTreeMap<String, String>) -> Result<()> {
    // Which mode the address asks for is not known: one that every certificate goes with.
    let address = if options.contains_key("sslmode") { "postgres://host" } else { "postgres://host?sslmode=verify-full" };
    let mut options = options.clone();
    options.insert("url".into(), address.into());
    PostgresOptions::parse(name, &options).map(drop)
}

/// The settings as they were given.
struct Given<'a> {
    name: &'a str,
    options: &'a BTreeMap<String, String>,
}

impl Given<'_> {
    fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(|value| value.trim())
    }

    fn invalid(&self, option: &str, wanted: &str) -> Error {
        let name = self.name;
        Error::new(ErrorCode::ConfigInvalid, format!("connection {name:?}: option \"{option}\" is not admitted. Remedy: give {wanted}"))
    }

    fn duration(&self, name: &str) -> Result<Option<Duration>> {
        let parse = |text| parse_duration(text).ok_or_else(|| self.invalid(name, "a duration, for example '30 s'"));
        self.option(name).map(parse).transpose()
    }

    /// The mode, as libpq reads it: certificates that are named are certificates that count.
    fn tls(&self, address: &Address, has_root: bool) -> Result<TlsMode> {
        let modes = "one of disable, prefer, require, verify-ca, verify-full";
        let mode = match self.option("sslmode").or(address.ssl_mode.as_deref()) {
            None => TlsMode::Prefer,
            Some(text) => text.parse().map_err(|()| self.invalid("sslmode", modes))?,
        };
        match mode {
            TlsMode::Require if has_root => Ok(TlsMode::VerifyCa),
            TlsMode::Disable | TlsMode::Prefer if has_root => {
                Err(self
                    .invalid("sslrootcert", "sslmode 'verify-full' or 'verify-ca' beside it, or leave it out: nothing would be verified"))
            }
            mode => Ok(mode),
        }
    }

    fn bad_address(&self, fault: &AddressFault) -> Error {
        let AddressFault::Parameter(parameter) = fault else { return self.invalid("url", ADDRESS_REMEDY) };
        let name = self.name;
        Error::new(
            ErrorCode::ConfigInvalid,
            format!(
                "connection {name:?}: option \"url\" has a parameter {parameter:?} that is not supported, or not with this value. Remedy: correct it \
                 or leave it out; there are {}",
                PARAMETERS.join(", ")
            ),
        )
    }
}

const ADDRESS_REMEDY: &str =
    "a reference to an address such as postgres://user:password@host:5432/database, special characters of the password percent-encoded";

/// The parameters of an address.
const PARAMETERS: [&str; 20] = [
    "application_name",
    "channel_binding",
    "connect_timeout",
    "dbname",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "load_balance_hosts",
    "options",
    "password",
    "port",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "target_session_attrs",
    "tcp_user_timeout",
    "user",
];

/// A peer that vanished without a word is noticed within two minutes, however long its query runs, unless the address says
/// otherwise. How long connecting takes is limited from outside (`connect`).
fn prepare(config: &mut Config, tls: TlsMode, address: &Address) {
    config.ssl_mode(match tls {
        TlsMode::Disable => SslMode::Disable,
        TlsMode::Prefer => SslMode::Prefer,
        TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
    });
    if !address.has("keepalives_idle") {
        config.keepalives_idle(Duration::from_secs(30));
    }
    if !address.has("keepalives_interval") {
        config.keepalives_interval(Duration::from_secs(15));
    }
    if !address.has("keepalives_retries") {
        config.keepalives_retries(4);
    }
    if !address.has("tcp_user_timeout") {
        config.tcp_user_timeout(Duration::from_secs(90));
    }
    if config.get_application_name().is_none() {
        config.application_name("datafusion-incremental");
    }
}

/// An address without the parameters that are not tokio-postgres's.
struct Address {
    /// Everything before the parameters.
    base: String,
    /// The parameters that are the library's, as they were written.
    kept: Vec<String>,
    names: BTreeSet<String>,
    ssl_mode: Option<String>,
    root_certificates: Option<String>,
}

/// What is wrong with an address.
#[derive(Debug)]
enum AddressFault {
    /// It is none.
    Form,
    /// This parameter is unknown, or its value is.
    Parameter(String),
}

impl Address {
    fn split(url: &str) -> Result<Self, AddressFault> {
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(AddressFault::Form);
        }
        // A `?` before the last `@` belongs to a password that was not encoded; tokio-postgres splits at the first one too.
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        if query.contains('@') {
            return Err(AddressFault::Form);
        }
        let (base, names) = (base.to_string(), BTreeSet::new());
        let mut address = Self { base, kept: vec![], names, ssl_mode: None, root_certificates: None };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or(AddressFault::Form)?;
            if !PARAMETERS.contains(&name) {
                return Err(fault(name));
            }
            let value = || url::form_urlencoded::parse(format!("v={value}").as_bytes()).next().map(|(_, value)| value.into_owned());
            match name {
                "sslmode" => address.ssl_mode = value(),
                "sslrootcert" => address.root_certificates = value(),
                _ => address.kept.push(pair.to_string()),
            }
            address.names.insert(name.to_string());
        }
        Ok(address)
    }

    fn has(&self, parameter: &str) -> bool {
        self.names.contains(parameter)
    }

    /// What tokio-postgres makes of it.
    fn config(&self) -> Result<Config, AddressFault> {
        let Ok(mut config) = Config::from_str(&self.base) else { return Err(AddressFault::Form) };
        if !self.kept.is_empty() {
            let all = format!("{}?{}", self.base, self.kept.join("&"));
            config = Config::from_str(&all).map_err(|_| self.bad_parameter().unwrap_or(AddressFault::Form))?;
        }
        if config.get_hosts().is_empty() { Err(AddressFault::Form) } else { Ok(config) }
    }

    /// The parameter whose value the library does not take.
    fn bad_parameter(&self) -> Option<AddressFault> {
        let bad = self.kept.iter().find(|pair| Config::from_str(&format!("postgres://h?{pair}")).is_err())?;
        Some(fault(bad.split('=').next()?))
    }
}

/// A fault of a parameter. What does not look like a name of one is not repeated: it may be the rest of a password.
fn fault(name: &str) -> AddressFault {
    let is_name = name.len() <= 32 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if is_name { AddressFault::Parameter(name.to_string()) } else { AddressFault::Form }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn parse(options: &[(&str, &str)]) -> Result<PostgresOptions> {
        let options: BTreeMap<String, String> = options.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        PostgresOptions::parse("pg", &options)
    }

    #[test]
    fn options_are_checked_before_they_are_stored() {
        let check = |option: (&str, &str)| {
            let all = [("url", "env:PG_URL"), option];
            super::check("pg", &all.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect())
        };
        for bad in [("sslmode", "MyPassw0rd"), ("out_of_range", "foo"), ("connect_timeout", "abc"), ("statement_timeout", "-5")] {
            let error = check(bad).unwrap_err();
            assert_eq!(error.code(), ErrorCode::ConfigInvalid);
            assert!(error.message().contains(bad.0) && !error.message().contains(bad.1), "{error}");
        }
        for good in [("sslmode", "require"), ("sslrootcert", "/ca.pem"), ("schema", "x"), ("connect_timeout", "5 s")] {
            check(good).unwrap();
        }
    }

    #[test]
    fn the_address_gives_the_tls_mode_and_an_option_overrides_it() {
        let url = "postgres://u:p@h:5433/d?sslmode=verify-full&connect_timeout=7&sslrootcert=%2Fca.pem";
        let options = parse(&[("url", url)]).unwrap();
        assert_eq!(options.tls, TlsMode::VerifyFull);
        assert_eq!(options.root_certificates, Some("/ca.pem".into()));
        assert_eq!(options.connect_timeout, Some(Duration::from_secs(7)));
        assert_eq!(options.config.get_ports(), [5433]);
        let options = parse(&[("url", url), ("sslmode", "verify-ca"), ("sslrootcert", "system")]).unwrap();
        assert_eq!((options.tls, options.root_certificates), (TlsMode::VerifyCa, None));
    }

    #[test]
    fn certificates_that_are_named_are_verified_with() {
        let url = "postgres://u:p@h/d";
        for root in ["/ca.pem", "system"] {
            assert_eq!(parse(&[("url", url), ("sslmode", "require"), ("sslrootcert", root)]).unwrap().tls, TlsMode::VerifyCa);
            for mode in ["disable", "prefer"] {
                let error = parse(&[("url", url), ("sslmode", mode), ("sslrootcert", root)]).unwrap_err();
                assert!(error.message().contains("option \"sslrootcert\"") && error.message().contains("verify-full"), "{error}");
            }
        }
        assert!(parse(&[("url", url), ("sslrootcert", "/ca.pem")]).is_err(), "prefer is the default");
        assert_eq!(parse(&[("url", "postgres://u:p@h/d?sslmode=require")]).unwrap().tls, TlsMode::Require);
    }

    #[test]
    fn zero_is_no_limit_of_connecting_and_what_no_server_takes_is_refused() {
        let limit = |options: &[(&str, &str)]| parse(options).unwrap().connect_timeout;
        assert_eq!(limit(&[("url", "postgres://h/d")]), Some(DEFAULT_CONNECT_TIMEOUT));
        assert_eq!(limit(&[("url", "postgres://h/d?connect_timeout=0")]), None);
        assert_eq!(limit(&[("url", "postgres://h/d?connect_timeout=3"), ("connect_timeout", "0")]), None);
        assert_eq!(limit(&[("url", "postgres://h/d?connect_timeout=0"), ("connect_timeout", "2 s")]), Some(Duration::from_secs(2)));
        let statement = |limit: &str| parse(&[("url", "postgres://h/d"), ("statement_timeout", limit)]);
        assert!(statement("2147483647 ms").is_ok() && statement("0").is_ok());
        let error = statement("25 d").unwrap_err();
        assert!(error.message().contains("option \"statement_timeout\""), "{error}");
    }

    #[test]
    fn a_parameter_that_is_not_supported_is_named() {
        for (parameters, name) in [("channel_bindnig=require", "channel_bindnig"), ("sslmode=require&keepalives=x", "keepalives")] {
            let error = parse(&[("url", &format!("postgres://u:hunter2@h/d?{parameters}"))]).unwrap_err();
            assert!(error.message().contains(&format!("{name:?}")) && error.message().contains("target_session_attrs"), "{error}");
            assert!(!error.message().contains("hunter2"), "{error}");
        }
        // What is behind an unencoded question mark of a password is not a name.
        let error = parse(&[("url", "postgres://u:pass?phrase=secret@h/d")]).unwrap_err();
        assert!(!error.message().contains("phrase"), "{error}");
    }

    #[test]
    fn what_the_address_says_of_keepalives_stays() {
        let config = parse(&[("url", "postgres://h/d?keepalives=0&keepalives_idle=7200&tcp_user_timeout=5")]).unwrap().config;
        assert!(!config.get_keepalives());
        assert_eq!(config.get_keepalives_idle(), Duration::from_secs(7200));
        assert_eq!(config.get_tcp_user_timeout(), Some(&Duration::from_secs(5)));
        assert_eq!(config.get_keepalives_retries(), Some(4));
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
