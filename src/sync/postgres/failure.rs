//! What PostgreSQL's failures mean: a stable code, the cause in words, and what to do.
//!
//! ```text
//! SQLSTATE, I/O error, TLS error ──► ErrorCode + "connection "pg", table "public.orders": <what>: <server's words>. Remedy: …"
//! ```
//!
//! Of the server's report only its first line is repeated: details and queries may hold values of rows. Where it refuses a
//! connection, that line names the user, the database and this client as the server sees it, which is what whoever mends it
//! has to know; it never holds the password. Errors of the transport are told in our own words, since the library's may name
//! the host.

use std::error::Error as _;
use std::fmt;
use std::io;

use tokio_postgres::error::SqlState;

use crate::error::{Error, ErrorCode};

/// What the verifier says of a certificate that TLS here cannot read.
pub(super) const VERSION_1: &str = "the server's certificate is of X.509 version 1";

/// What was asked for when something failed.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    connection: String,
    table: Option<String>,
}

impl Subject {
    pub(super) fn connection(name: &str) -> Self {
        Self { connection: name.to_string(), table: None }
    }

    pub(super) fn table(&self, table: &[String]) -> Self {
        Self { connection: self.connection.clone(), table: Some(table.join(".")) }
    }

    /// An error about this subject.
    pub(super) fn error(&self, code: ErrorCode, what: impl fmt::Display, remedy: impl fmt::Display) -> Error {
        Error::new(code, format!("{self}: {what}. Remedy: {remedy}"))
    }

    /// Connecting failed; `among` says which of several addresses it was.
    pub(super) fn connect_failed(&self, error: &tokio_postgres::Error, among: &str) -> Error {
        let (what, remedy) = connect_cause(error);
        self.error(ErrorCode::ConnectionFailed, format!("{what}{among}"), remedy)
    }

    /// A statement failed, or the connection did in the middle of one.
    pub(super) fn statement_failed(&self, error: &tokio_postgres::Error) -> Error {
        let Some(report) = error.as_db_error() else {
            return self.error(
                ErrorCode::ConnectionFailed,
                format!("the connection was lost: {}", transport_cause(error)),
                "see that the server runs and the network holds, then run again; nothing was published",
            );
        };
        let (code, remedy) = statement_cause(report.code(), report.message());
        self.error(code, report.message(), remedy)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {:?}", self.connection)?;
        match &self.table {
            Some(table) => write!(f, ", table {table:?}"),
            None => Ok(()),
        }
    }
}

/// Whether connecting again shortly may succeed: nothing of a snapshot is lost by it, since there is none yet.
pub(super) fn is_transient(error: &tokio_postgres::Error) -> bool {
    match error.code() {
        Some(code) => [SqlState::CANNOT_CONNECT_NOW, SqlState::TOO_MANY_CONNECTIONS, SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN]
            .contains(code),
        None => error.is_closed() || (io_error(error).is_some() && tls_error(error).is_none()),
    }
}

/// Whether another host would refuse as well: it is the user, the password or the database that is wrong.
pub(super) fn is_final(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("28") || *code == SqlState::UNDEFINED_DATABASE)
}

fn io_error(error: &tokio_postgres::Error) -> Option<&io::Error> {
    error.source()?.downcast_ref::<io::Error>()
}

fn tls_error(error: &tokio_postgres::Error) -> Option<&rustls::Error> {
    io_error(error)?.get_ref()?.downcast_ref::<rustls::Error>()
}

fn connect_cause(error: &tokio_postgres::Error) -> (String, &'static str) {
    if let Some(report) = error.as_db_error() {
        let code = report.code();
        let remedy = if [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION].contains(code) {
            "correct the user and password of the address, and see that the server's pg_hba.conf admits this client"
        } else if *code == SqlState::UNDEFINED_DATABASE {
            "correct the database of the address"
        } else if *code == SqlState::TOO_MANY_CONNECTIONS {
            "close other connections, or raise max_connections of the server or the role's limit"
        } else {
            "see that the server accepts connections, then run again"
        };
        return (format!("the server refuses the connection: {}", report.message()), remedy);
    }
    if let Some(tls) = tls_error(error) {
        let remedy = match is_version_1(tls) {
            true => "reissue the server's certificate as version 3 (with openssl x509: an -extfile), or set sslmode = 'disable'",
            false => "correct sslmode and sslrootcert, or the server's certificate",
        };
        return (format!("TLS fails: {}", tls_cause(tls)), remedy);
    }
    match io_error(error).map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused) => {
            ("nothing listens at the address".into(), "start the server, or correct the host and port of the address")
        }
        Some(_) => (
            format!("the server cannot be reached: {}", transport_cause(error)),
            "correct the host and port of the address, and see that the network lets them through",
        ),
        None => (
            format!("the connection cannot be made: {}", error_chain(error)),
            "correct the address (user, password, sslmode), and see what the server's log says",
        ),
    }
}

/// Whether the verifier met a certificate of the first version of X.509.
fn is_version_1(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::General(what) if what == VERSION_1)
}

fn tls_cause(error: &rustls::Error) -> String {
    use rustls::CertificateError as Bad;
    match error {
        rustls::Error::InvalidCertificate(Bad::UnknownIssuer) => "the server's certificate is not signed by one that is trusted".into(),
        rustls::Error::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            "the server's certificate is made out to other names than the host of the address".into()
        }
        rustls::Error::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => "the server's certificate has expired".into(),
        rustls::Error::General(what) if what == VERSION_1 => what.clone(),
        other => other.to_string(),
    }
}

/// Why the transport failed. Errors of the operating system and of name resolution name no address; those of TLS may.
fn transport_cause(error: &tokio_postgres::Error) -> String {
    match (tls_error(error), io_error(error)) {
        (Some(tls), _) => tls_cause(tls),
        (None, Some(io)) => io.to_string(),
        (None, None) => error_chain(error),
    }
}

/// The library's own words: of its kinds that remain here, none names a part of the address.
fn error_chain(error: &tokio_postgres::Error) -> String {
    match error.source() {
        Some(cause) if io_error(error).is_none() => format!("{error}: {cause}"),
        _ => error.to_string(),
    }
}

fn statement_cause(code: &SqlState, message: &str) -> (ErrorCode, &'static str) {
    match code.code() {
        "42P01" | "3F000" => (ErrorCode::SourceNotFound, "see sync_discover for the tables there are"),
        "42703" => (ErrorCode::FieldNotFound, "see sync_incremental_fields for the columns there are, and change the table's settings"),
        "42501" if message.contains("row-level security") => (
            ErrorCode::CaptureFailed,
            "let the role see every row (BYPASSRLS), or set row_security = 'allow' on the connection to sync only those that it sees",
        ),
        "42501" => {
            (ErrorCode::CaptureFailed, "let an owner GRANT USAGE on the schema and SELECT on the table to the role of this connection")
        }
        "57014" if message.contains("timeout") => (ErrorCode::CaptureFailed, "raise statement_timeout of the connection or of the role"),
        "57014" => (ErrorCode::CaptureFailed, "somebody cancelled the statement on the server; run again"),
        "55P03" => (ErrorCode::CaptureFailed, "another session keeps the table locked; run again when it is done"),
        "40001" => {
            (ErrorCode::CaptureFailed, "run again; on a standby, hot_standby_feedback or a longer max_standby_streaming_delay helps")
        }
        "42P05" | "26000" => (
            ErrorCode::ConnectionFailed,
            "a pool that lends out connections by transaction mixes up statements: use the server's own port, session pooling, or \
             pgbouncer 1.21 or later with max_prepared_statements",
        ),
        "22021" | "22P05" => (ErrorCode::ValueOutOfRange, "a text cannot be converted to UTF-8; correct it in the source"),
        code if code.starts_with("08") || code.starts_with("57P") => {
            (ErrorCode::ConnectionFailed, "see that the server runs, then run again; nothing was published")
        }
        code if code.starts_with("53") => (ErrorCode::CaptureFailed, "the server has no memory, disk or slots left; run again when it has"),
        _ => (ErrorCode::CaptureFailed, "see whether the same query works in psql as this role, then run again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_by_transaction_and_row_level_security_have_remedies_of_their_own() {
        for (code, message, expected, part) in [
            ("42P05", "prepared statement \"s0\" already exists", ErrorCode::ConnectionFailed, "session pooling"),
            ("26000", "prepared statement \"s0\" does not exist", ErrorCode::ConnectionFailed, "max_prepared_statements"),
            ("42501", "query would be affected by row-level security policy for table \"t\"", ErrorCode::CaptureFailed, "row_security"),
            ("42501", "permission denied for table t", ErrorCode::CaptureFailed, "GRANT"),
        ] {
            let (found, remedy) = statement_cause(&SqlState::from_code(code), message);
            assert_eq!(found, expected, "{code}");
            assert!(remedy.contains(part), "{code}: {remedy}");
        }
    }
}
