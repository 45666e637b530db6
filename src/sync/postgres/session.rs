//! One connection with its driver, and the promise that nothing goes on running on the server when nobody waits for it.
//!
//! ```text
//! Session ─ client ──► requests        a statement that is dropped before its end ──► a cancel request, then the rest is read off
//!         └ driver     a SpawnedTask   the session dropped ──► the connection says goodbye, or is cut after two seconds
//! ```
//!
//! A transaction block is never rolled back by statement: leaving the connection does it. Queries have no name on the server,
//! and settings end with their transaction, so that a pool which lends out connections by transaction is no obstacle.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::runtime::{JoinSet, SpawnedTask};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{CancelToken, Client, Row, SimpleQueryMessage};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::connect::connect;
use super::failure::Subject;
use super::options::PostgresOptions;
use super::tls;
use crate::error::{ErrorCode, Result};

/// How long a cancel request and a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(2);
/// The oldest server whose catalogue the queries here know.
const OLDEST_SERVER: i32 = 120_000;

/// An open connection.
pub(super) struct Session {
    client: Option<Client>,
    driver: Option<SpawnedTask<()>>,
    cancel: CancelToken,
    tls: MakeRustlsConnect,
    subject: Subject,
    /// `server_version_num`.
    version: i32,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("subject", &self.subject).finish_non_exhaustive()
    }
}

impl Session {
    /// Connects.
    ///
    /// # Errors
    /// `CONNECTION_FAILED`, `CONFIG_INVALID` for certificates that cannot be read.
    pub(super) async fn connect(options: &PostgresOptions) -> Result<Arc<Self>> {
        let subject = Subject::connection(&options.name);
        let tls = tls::connector(options)?;
        let (client, connection) = connect(options, &tls, &subject).await?;
        let cancel = client.cancel_token();
        // What ends the connection is reported by the statement that it interrupts.
        let driver = SpawnedTask::spawn(async move { drop(connection.await) });
        let mut session = Self { client: Some(client), driver: Some(driver), cancel, tls, subject, version: 0 };
        session.version = session.read_version().await?;
        Ok(Arc::new(session))
    }

    async fn read_version(&self) -> Result<i32> {
        let sql = "SELECT pg_catalog.current_setting('server_version_num')";
        let answer = self.client(&self.subject)?.simple_query(sql).await.map_err(|error| self.subject.statement_failed(&error))?;
        let number = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0)?.parse::<i32>().ok(),
            _ => None,
        });
        let version = number.unwrap_or_default();
        if version >= OLDEST_SERVER {
            return Ok(version);
        }
        let what = format!("the server's version {version} is not supported");
        Err(self.subject.error(ErrorCode::ConnectionFailed, what, "use PostgreSQL 12 or later"))
    }

    /// `server_version_num`, for example 150018.
    pub(super) fn version(&self) -> i32 {
        self.version
    }

    /// The connection, for messages.
    pub(super) fn subject(&self) -> &Subject {
        &self.subject
    }

    pub(super) fn client(&self, subject: &Subject) -> Result<&Client> {
        // Only `drop` takes it.
        self.client.as_ref().ok_or_else(|| subject.error(ErrorCode::ConnectionFailed, "the connection is closed", "run again"))
    }

    /// Runs statements without a result.
    pub(super) async fn execute(self: &Arc<Self>, sql: &str, subject: &Subject) -> Result<()> {
        self.try_execute(sql, subject).await?.map_err(|error| subject.statement_failed(&error))
    }

    /// Runs statements without a result; what the server says of them is left to the caller.
    pub(super) async fn try_execute(self: &Arc<Self>, sql: &str, subject: &Subject) -> Result<Result<(), tokio_postgres::Error>> {
        let mut running = Running::new(self);
        let result = self.client(subject)?.batch_execute(sql).await;
        running.ended();
        Ok(result)
    }

    /// The rows of a query. All of its types must be PostgreSQL's own: others are looked up by statements with a name.
    pub(super) async fn query(
        self: &Arc<Self>,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
        subject: &Subject,
    ) -> Result<Vec<Row>> {
        let mut running = Running::new(self);
        let result = self.client(subject)?.query_typed(sql, parameters).await;
        running.ended();
        result.map_err(|error| subject.statement_failed(&error))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let (client, driver) = (self.client.take(), self.driver.take());
        detached(async move {
            // Without a client the driver says goodbye and ends; one that cannot is cut when its task is dropped.
            drop(client);
            if let Some(driver) = driver {
                let _ = timeout(GOODBYE, driver).await;
            }
        });
    }
}

/// A statement that runs on the server. Dropped before its end, it is cancelled there.
pub(super) struct Running {
    session: Option<Arc<Session>>,
}

impl Running {
    pub(super) fn new(session: &Arc<Session>) -> Self {
        Self { session: Some(Arc::clone(session)) }
    }

    /// The statement is over: there is nothing to cancel.
    pub(super) fn ended(&mut self) {
        self.session = None;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        detached(async move {
            // The session is held until the request is out: its end would leave the server working for nobody.
            let _ = timeout(GOODBYE, session.cancel.cancel_query(session.tls.clone())).await;
            drop(session);
        });
    }
}

/// Lets a short task outlive its owner. Without a runtime (the process is ending) the connection just closes.
fn detached(task: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        let mut tasks = JoinSet::new();
        tasks.spawn_on(task, &runtime);
        tasks.detach_all();
    }
}
