//! The session extension: one call makes a DataFusion session know incremental tables.
//!
//! ```text
//! SessionStateBuilder ─ with_incremental(options) ─► table factory, table functions, pin rule, version planner, settings
//! SessionContext      ─ incremental_sql(text)     ─► our statements and DataFusion's
//! IncrementalSession  ─ both, with a root folder whose tables are found again by the next process
//! ```
//!
//! ```no_run
//! # async fn example() -> datafusion_incremental::Result<()> {
//! use datafusion_incremental::context::IncrementalSession;
//!
//! let session = IncrementalSession::builder().with_root("warehouse").build().await?;
//! session.sql("CREATE EXTERNAL TABLE customers STORED AS PARQUET LOCATION 'customers/'").await?;
//! session
//!     .sql("CREATE INCREMENTAL TABLE enriched FROM customers KEY (id) AS SELECT id, upper(name) AS name FROM input")
//!     .await?;
//! session.sql("REFRESH enriched").await?;
//! let rows = session.context().sql("SELECT * FROM enriched").await;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::TableReference;
use datafusion::execution::memory_pool::{FairSpillPool, TrackConsumersPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::define::IncrementalTableBuilder;
use crate::env::Env;
use crate::error::{Error, ErrorCode, Result};
use crate::exec::equality::KeyHash;
use crate::handler::HandlerRegistry;
use crate::plan::source::record_definitions;
use crate::run::{Host, RefreshRequest, refresh};
use crate::spec::RunSummary;
use crate::sql::{
    ApartRule, CreateSynced, Extension, IncrementalConfig, IncrementalTableFactory, ParsedStatement, ProgressListener, StatementResult,
    VerbFunction, VersionPlanner, check_schema, execute, follow_root, incremental_table, look_at_schedules, new_synced, parse,
    sync_context,
};
use crate::sync::config::FieldValue;
use crate::sync::connector::ConnectorFactory;
use crate::sync::schedule::{Scheduler, Tick};
use crate::sync::{ConnectorRegistry, SyncContext};
use crate::table::{IncrementalTable, PinRule, TableHandle};

/// How many of the largest memory consumers an exhausted pool names.
const TOP_CONSUMERS: std::num::NonZeroUsize = std::num::NonZeroUsize::MIN.saturating_add(4);

/// What a host fixes when it builds a session.
#[derive(Clone)]
pub struct IncrementalOptions {
    extension: Extension,
}

impl Default for IncrementalOptions {
    /// May read; may not act, has no root folder and no handlers.
    fn default() -> Self {
        Self {
            extension: Extension {
                env: Env::default(),
                handlers: HandlerRegistry::default(),
                root: None,
                may_act: false,
                key_hash: KeyHash::default(),
                progress: None,
                connectors: ConnectorRegistry::built_in(),
                segment_rows: None,
            },
        }
    }
}

impl IncrementalOptions {
    /// Gives the leave to act: create, alter, refresh, roll back, compact, vacuum, drop. Without it every one of these is
    /// `READ_ONLY`. Table functions that act are not seen by read-only checks of gateways, so only give it where every
    /// statement of the session may write.
    pub fn with_leave_to_act(mut self) -> Self {
        self.extension.may_act = true;
        self
    }

    /// The folder, or URL, of tables without a LOCATION.
    pub fn with_root(mut self, root: impl Into<String>) -> Self {
        self.extension.root = Some(root.into());
        self
    }

    /// The Rust handlers that tables may name.
    pub fn with_handlers(mut self, handlers: HandlerRegistry) -> Self {
        self.extension.handlers = handlers;
        self
    }

    /// Clock and ids.
    pub fn with_env(mut self, env: Env) -> Self {
        self.extension.env = env;
        self
    }

    /// Replaces the hash of keys; a constant one proves that no hash decides equality. For tests.
    pub fn with_key_hash(mut self, hash: KeyHash) -> Self {
        self.extension.key_hash = hash;
        self
    }

    /// Is told about each phase of each run.
    pub fn with_progress(mut self, listener: ProgressListener) -> Self {
        self.extension.progress = Some(listener);
        self
    }

    /// Adds a connector type for synced tables; it replaces one of the same name.
    pub fn with_connector(mut self, factory: Arc<dyn ConnectorFactory>) -> Self {
        self.extension.connectors = self.extension.connectors.with(factory);
        self
    }

    /// Rows after which the load of a synced table notes how far it got, so that the next run goes on from there.
    pub fn with_load_segments(mut self, rows: u64) -> Self {
        self.extension.segment_rows = Some(rows);
        self
    }

    fn config(&self, config: SessionConfig) -> SessionConfig {
        let mut config = config.with_extension(Arc::new(self.extension.clone()));
        config.options_mut().extensions.insert(IncrementalConfig::default());
        config
    }
}

/// Makes a session know incremental tables.
pub trait IncrementalExt: Sized {
    /// Registers everything: the table factory, the table functions, the rule that pins one version per statement, the
    /// planner of version clauses, and the settings.
    fn with_incremental(self, options: IncrementalOptions) -> Self;
}

impl IncrementalExt for SessionStateBuilder {
    fn with_incremental(mut self, options: IncrementalOptions) -> Self {
        let config = self.config().take().unwrap_or_default();
        *self.config() = Some(options.config(config));
        let mut functions = self.table_functions().take().unwrap_or_default();
        for (name, function) in VerbFunction::all() {
            functions.insert(name.clone(), Arc::new(datafusion::catalog::TableFunction::new(name, function)));
        }
        let mut planners = self.relation_planners().take().unwrap_or_default();
        planners.insert(0, Arc::new(VersionPlanner));
        let mut factories = self.table_factories().take().unwrap_or_default();
        record_definitions(&mut factories);
        self.with_table_factories(factories)
            .with_table_functions(functions)
            .with_relation_planners(planners)
            .with_table_factory("INCREMENTAL".to_string(), Arc::new(IncrementalTableFactory))
            .with_analyzer_rule(Arc::new(ApartRule))
            .with_analyzer_rule(Arc::new(PinRule))
    }
}

/// Our statements on a DataFusion session.
#[async_trait]
pub trait IncrementalSqlExt {
    /// Executes the statements of `sql` in order and stops at the first that fails.
    ///
    /// # Errors
    /// The failing statement's error; what came before it is done.
    async fn incremental_sql(&self, sql: &str) -> Result<Vec<StatementResult>>;
}

#[async_trait]
impl IncrementalSqlExt for SessionContext {
    async fn incremental_sql(&self, sql: &str) -> Result<Vec<StatementResult>> {
        let mut results = vec![];
        for statement in parse(sql, &self.state().config_options().sql_parser)? {
            results.push(Box::pin(execute(self, statement)).await?);
        }
        Ok(results)
    }
}

/// A session with incremental tables, ready to act: what the shell and most programs want.
#[derive(Clone)]
pub struct IncrementalSession {
    context: SessionContext,
    extension: Arc<Extension>,
    unavailable: Arc<Vec<(String, Error)>>,
}

impl std::fmt::Debug for IncrementalSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IncrementalSession").field("extension", &self.extension).finish_non_exhaustive()
    }
}

/// Builds an [`IncrementalSession`].
#[derive(Clone)]
pub struct IncrementalSessionBuilder {
    options: IncrementalOptions,
    config: SessionConfig,
    memory_limit: Option<usize>,
}

impl IncrementalSessionBuilder {
    /// The folder, or URL, of tables without a LOCATION; tables that are there already are registered.
    pub fn with_root(mut self, root: impl Into<String>) -> Self {
        self.options = self.options.with_root(root);
        self
    }

    /// The memory pool's size in bytes; operators beyond it spill or fail with `RESOURCES_EXHAUSTED`.
    pub fn with_memory_limit(mut self, bytes: usize) -> Self {
        self.memory_limit = Some(bytes);
        self
    }

    /// DataFusion's configuration.
    pub fn with_config(mut self, config: SessionConfig) -> Self {
        self.config = config;
        self
    }

    /// Further options; they replace those that were set before.
    pub fn with_options(mut self, options: IncrementalOptions) -> Self {
        self.options = options;
        self
    }

    /// Replaces the hash of keys. For tests.
    pub fn with_key_hash(mut self, hash: KeyHash) -> Self {
        self.options = self.options.with_key_hash(hash);
        self
    }

    /// Is told about each phase of each run.
    pub fn with_progress(mut self, listener: ProgressListener) -> Self {
        self.options = self.options.with_progress(listener);
        self
    }

    /// Clock and ids.
    pub fn with_env(mut self, env: Env) -> Self {
        self.options = self.options.with_env(env);
        self
    }

    /// Builds the session and registers the tables under its root folder; those that are damaged are left out, see
    /// [`IncrementalSession::unavailable`].
    ///
    /// # Errors
    /// `DEFINITION_INVALID` for an unusable root; `STORE_FAILED` when it cannot be listed.
    pub async fn build(self) -> Result<IncrementalSession> {
        let options = self.options.with_leave_to_act();
        let mut runtime = RuntimeEnvBuilder::new();
        if let Some(bytes) = self.memory_limit {
            let pool = TrackConsumersPool::new(FairSpillPool::new(bytes), TOP_CONSUMERS);
            runtime = runtime.with_memory_pool(Arc::new(pool));
        }
        let runtime = runtime.build_arc().map_err(|e| Error::from_datafusion(e, ErrorCode::DefinitionInvalid, "building the session"))?;
        let extension = Arc::new(options.extension.clone());
        let config = self.config.with_information_schema(true);
        let state = SessionStateBuilder::new()
            .with_default_features()
            .with_config(config)
            .with_runtime_env(runtime)
            .with_incremental(options)
            .build();
        let mut session = IncrementalSession { context: SessionContext::new_with_state(state), extension, unavailable: Arc::default() };
        session.unavailable = Arc::new(follow_root(&session.state(), None).await?);
        Ok(session)
    }
}

impl IncrementalSession {
    /// A builder with DataFusion's defaults, the leave to act, and no root folder.
    pub fn builder() -> IncrementalSessionBuilder {
        IncrementalSessionBuilder { options: IncrementalOptions::default(), config: SessionConfig::new(), memory_limit: None }
    }

    /// DataFusion's session: register sources, run queries.
    pub fn context(&self) -> &SessionContext {
        &self.context
    }

    /// The Rust handlers that tables may name.
    pub fn handlers(&self) -> &HandlerRegistry {
        &self.extension.handlers
    }

    /// Parses a script. Nothing is executed.
    ///
    /// # Errors
    /// `STATEMENT_INVALID` with the place.
    pub fn parse(&self, sql: &str) -> Result<Vec<ParsedStatement>> {
        parse(sql, &self.context.state().config_options().sql_parser)
    }

    /// Executes one statement.
    ///
    /// # Errors
    /// The statement's error.
    pub async fn execute(&self, statement: ParsedStatement) -> Result<StatementResult> {
        Box::pin(execute(&self.context, statement)).await
    }

    /// Executes the statements of a script in order and stops at the first that fails.
    ///
    /// # Errors
    /// The failing statement's error; what came before it is done.
    pub async fn sql(&self, sql: &str) -> Result<Vec<StatementResult>> {
        self.context.incremental_sql(sql).await
    }

    /// Starts the definition of a table.
    pub fn table(&self, name: impl Into<TableReference>) -> SessionTableBuilder<'_> {
        SessionTableBuilder { session: self, builder: IncrementalTableBuilder::new(name), location: None }
    }

    /// The incremental table of this name.
    ///
    /// # Errors
    /// `TABLE_NOT_FOUND`.
    pub async fn incremental_table(&self, name: impl Into<TableReference>) -> Result<Arc<TableHandle>> {
        incremental_table(&self.context.state(), &name.into()).await
    }

    /// Refreshes one table.
    ///
    /// # Errors
    /// The run's error; nothing published has changed then.
    pub async fn refresh(&self, name: impl Into<TableReference>, request: RefreshRequest) -> Result<RunSummary> {
        let table = self.incremental_table(name).await?;
        refresh(&self.host(), &table, request).await.into_result()
    }

    /// What runs need of this session.
    pub fn host(&self) -> Host {
        self.extension.host(&self.context.state())
    }

    /// What the operations of [`crate::sync::ops`] need of this session.
    ///
    /// # Errors
    /// `DEFINITION_INVALID` where the session's root folder cannot be resolved.
    pub fn sync(&self) -> Result<SyncContext> {
        sync_context(&self.context.state())
    }

    /// Creates a synced table below the session's root, as CREATE SYNCED TABLE does, and registers it. `source`: the parts of the
    /// source's name, the first of them a connection unless the source is a table of the session.
    ///
    /// ```no_run
    /// # async fn example(session: &datafusion_incremental::context::IncrementalSession) -> datafusion_incremental::error::Result<()> {
    /// use datafusion_incremental::sync::config::FieldValue;
    /// use datafusion_incremental::sync::ops::{SyncRequest, reload};
    ///
    /// let table = session.create_synced_table("orders", &["pg", "public", "orders"], &[("sync_type", FieldValue::Text("full_refresh".into()))]).await?;
    /// let run = reload(&session.sync()?, &table, SyncRequest::default()).await.into_result()?;
    /// println!("{:?} rows", run.rows_total);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `TABLE_EXISTS`, `SOURCE_NOT_FOUND`, the refusals of a configuration.
    pub async fn create_synced_table(
        &self,
        name: impl Into<TableReference>,
        source: &[&str],
        fields: &[(&str, FieldValue)],
    ) -> Result<Arc<TableHandle>> {
        let (name, source) = (name.into(), source.iter().map(ToString::to_string).collect());
        let fields = fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
        new_synced(
            &self.context,
            &self.context.state(),
            CreateSynced { name: name.clone(), if_not_exists: false, source, location: None, fields },
        )
        .await?;
        self.incremental_table(name).await
    }

    /// Runs what the schedules of synced and incremental tables say is due now, sources first, and waits for the end.
    ///
    /// # Errors
    /// The store's errors when the tables are listed; errors of runs are in their results.
    pub async fn run_due(&self) -> Result<Tick> {
        let (mut scheduler, mut ran) = (Scheduler::default(), vec![]);
        loop {
            let tick = self.look(&mut scheduler).await?;
            ran.extend(tick.ran);
            match scheduler.ended().await {
                Some(ended) => ran.push(ended),
                None => return Ok(Tick { ran, next: tick.next }),
            }
        }
    }

    /// Starts what is due now, as far as `scheduler` has room; its runs end in [`Scheduler::ended`]. For programs that keep
    /// schedules going: look, wait for an end or for the next firing, look again.
    ///
    /// # Errors
    /// The store's errors when the tables are listed; a table that cannot be looked at is in the answer.
    pub async fn look(&self, scheduler: &mut Scheduler) -> Result<Tick> {
        look_at_schedules(&self.context.state(), scheduler).await
    }

    fn state(&self) -> SessionState {
        self.context.state()
    }

    /// The tables under the root folder that could not be registered when the session was built: where they are, and why.
    pub fn unavailable(&self) -> &[(String, Error)] {
        &self.unavailable
    }
}

/// A table under definition in a session.
#[derive(Debug)]
pub struct SessionTableBuilder<'a> {
    session: &'a IncrementalSession,
    builder: IncrementalTableBuilder,
    location: Option<String>,
}

impl SessionTableBuilder<'_> {
    /// The table that the rows come from.
    pub fn source(mut self, source: impl Into<TableReference>) -> Self {
        self.builder = self.builder.source(source);
        self
    }

    /// The key columns, by exact name.
    pub fn key<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.builder = self.builder.key(columns);
        self
    }

    /// The tracked columns, by exact name.
    pub fn track<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.builder = self.builder.track(columns);
        self
    }

    /// A query over `input` as the handler.
    pub fn sql(mut self, query: impl Into<String>) -> Self {
        self.builder = self.builder.sql(query);
        self
    }

    /// A registered Rust handler.
    pub fn handler(mut self, name: impl Into<String>) -> Self {
        self.builder = self.builder.handler(name);
        self
    }

    /// Sets an option, semantic or operational.
    pub fn option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.builder = self.builder.option(name, value);
        self
    }

    /// The table's folder, or URL; without it the table lives under the session's root.
    pub fn location(mut self, location: impl Into<String>) -> Self {
        self.location = Some(location.into());
        self
    }

    /// Saves a revision where an existing table's definition differs, instead of refusing.
    pub fn or_alter(mut self) -> Self {
        self.builder = self.builder.or_alter();
        self
    }

    /// Creates the table, or attaches to it, and registers it in the session.
    ///
    /// # Errors
    /// As `CREATE INCREMENTAL TABLE`.
    pub async fn create(self) -> Result<Arc<TableHandle>> {
        let state = self.session.state();
        let name = self.builder.name().clone();
        check_schema(&state, &name)?;
        let location = self.session.extension.location(&name, self.location.as_deref(), state.runtime_env())?;
        let handle = self.builder.create_at(&self.session.host(), location).await?;
        let registered = self.session.context.register_table(name.clone(), Arc::new(IncrementalTable::new(Arc::clone(&handle))));
        registered.map_err(|e| Error::from_datafusion(e, ErrorCode::DefinitionInvalid, format!("registering table {name}")))?;
        Ok(handle)
    }
}
