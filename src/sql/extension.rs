//! What a session knows of us: the environment, the handlers, and the leave to act.
//!
//! ```text
//! Extension (fixed when the session is built)   env, handlers, root folder, leave to act
//! incremental.read_only (SET)                   takes the leave away, never gives it
//! ```

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::TableReference;
use datafusion::common::config::{ConfigEntry, ConfigExtension, ExtensionOptions};
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use datafusion::execution::runtime_env::RuntimeEnv;

use crate::env::{Env, Location};
use crate::error::{Error, ErrorCode, Result};
use crate::exec::equality::KeyHash;
use crate::handler::HandlerRegistry;
use crate::run::{Host, Progress};
use crate::spec::encode_name;
use crate::sync::ConnectorRegistry;

/// Told about each phase of a run.
pub type ProgressListener = Arc<dyn Fn(Progress) + Send + Sync>;

/// The session's extension. Everything in it is fixed when the session is built.
#[derive(Clone)]
pub struct Extension {
    /// Clock and ids.
    pub env: Env,
    /// Rust handlers by name.
    pub handlers: HandlerRegistry,
    /// Where tables without a LOCATION live: a folder or a URL.
    pub root: Option<String>,
    /// Whether verbs that act are admitted.
    pub may_act: bool,
    /// How keys are hashed; constant only in tests.
    pub key_hash: KeyHash,
    /// Told about each phase of a run.
    pub progress: Option<ProgressListener>,
    /// The connector types of synced tables.
    pub connectors: ConnectorRegistry,
    /// Rows after which the load of a synced table notes how far it got; `None`: as usual.
    pub segment_rows: Option<u64>,
}

impl fmt::Debug for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extension").field("root", &self.root).field("may_act", &self.may_act).finish_non_exhaustive()
    }
}

impl Extension {
    /// The extension of a session.
    ///
    /// # Errors
    /// `STATEMENT_INVALID` when the session was built without it.
    pub fn of(session: &dyn Session) -> Result<Arc<Self>> {
        session.config().get_extension::<Self>().ok_or_else(|| {
            Error::new(
                ErrorCode::StatementInvalid,
                "this session was built without incremental tables. Remedy: call with_incremental on its builder",
            )
        })
    }

    /// What runs need of the session.
    pub fn host(&self, state: &SessionState) -> Host {
        Host {
            state: state.clone(),
            handlers: self.handlers.clone(),
            env: self.env.clone(),
            key_hash: self.key_hash,
            progress: self.progress.clone(),
        }
    }

    /// Fails unless verbs that act are admitted now.
    ///
    /// # Errors
    /// `READ_ONLY`, naming who took the leave.
    pub fn check_may_act(&self, session: &dyn Session, what: &str) -> Result<()> {
        let read_only = session.config_options().extensions.get::<IncrementalConfig>().is_some_and(|config| config.read_only);
        if self.may_act && !read_only {
            return Ok(());
        }
        let who = if self.may_act { "incremental.read_only is set" } else { "the host gave no leave to act" };
        Err(Error::new(ErrorCode::ReadOnly, format!("{what} would write, and {who}. Remedy: run it in a session that may act")))
    }

    /// The location that was given, else the table's folder under the root.
    ///
    /// # Errors
    /// `DEFINITION_INVALID` when there is neither, or the location cannot be used.
    pub fn location(&self, name: &TableReference, given: Option<&str>, runtime: &RuntimeEnv) -> Result<Location> {
        if let Some(given) = given {
            return Location::resolve(given, runtime);
        }
        let Some(root) = &self.root else {
            return Err(Error::new(
                ErrorCode::DefinitionInvalid,
                format!("table {name} has no LOCATION and the session has no root folder. Remedy: give the table a LOCATION"),
            ));
        };
        let folder = encode_name(&name.to_quoted_string());
        Location::resolve(&format!("{}/{folder}/", root.trim_end_matches('/')), runtime)
    }
}

/// The session's own settings, `SET incremental.…`.
#[derive(Debug, Clone, Default)]
pub struct IncrementalConfig {
    /// Whether the leave to act was taken away. Once true it stays true.
    pub read_only: bool,
}

impl ConfigExtension for IncrementalConfig {
    const PREFIX: &'static str = "incremental";
}

impl ExtensionOptions for IncrementalConfig {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), DataFusionError> {
        match (key, value.to_ascii_lowercase().as_str()) {
            ("read_only", "true") => self.read_only = true,
            ("read_only", "false") if !self.read_only => {}
            ("read_only", "false") => {
                let message = "incremental.read_only was set and SET cannot give the leave back. Remedy: open another session";
                return Err(Error::new(ErrorCode::ReadOnly, message).into());
            }
            ("read_only", _) => {
                let message = format!("incremental.read_only cannot be {value:?}. Remedy: true or false");
                return Err(Error::new(ErrorCode::OptionUnknown, message).into());
            }
            _ => {
                let message = format!("the setting incremental.{key} does not exist. Remedy: the only one is incremental.read_only");
                return Err(Error::new(ErrorCode::OptionUnknown, message).into());
            }
        }
        Ok(())
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        vec![ConfigEntry {
            key: "incremental.read_only".to_string(),
            value: Some(self.read_only.to_string()),
            description: "true: verbs that act are refused; cannot be taken back",
        }]
    }
}
