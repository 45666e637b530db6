//! A planted secret is found nowhere: errors, logs, SHOW, EXPLAIN, system tables, and every object in the store.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider, TableProviderFactory};
use datafusion::datasource::listing_table_factory::ListingTableFactory;
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::CreateExternalTable;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_incremental::Error as CrateError;
use datafusion_incremental::context::{IncrementalExt, IncrementalOptions, IncrementalSqlExt};
use futures::TryStreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result,
};

use super::world::{cells, short};

const CANARY: &str = "C4N4RYsecretC4N4RY";

/// Everything that was logged by this crate, at any level.
struct Collector(Mutex<Vec<String>>);

impl log::Log for Collector {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.target().starts_with("datafusion_incremental") {
            self.0.lock().unwrap().push(format!("{} {}", record.target(), record.args()));
        }
    }

    fn flush(&self) {}
}

fn collector() -> &'static Collector {
    static COLLECTOR: OnceLock<&'static Collector> = OnceLock::new();
    COLLECTOR.get_or_init(|| {
        let collector: &'static Collector = Box::leak(Box::new(Collector(Mutex::default())));
        log::set_logger(collector).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
        collector
    })
}

/// A store whose errors name the signed URL that it asked, as those of HTTP clients do.
#[derive(Debug)]
struct Telltale {
    inner: InMemory,
    /// Paths that hold this fail.
    fails: Mutex<Option<String>>,
}

impl Telltale {
    fn fail(&self, part: Option<&str>) {
        *self.fails.lock().unwrap() = part.map(String::from);
    }

    fn check(&self, path: &Path) -> Result<()> {
        match self.fails.lock().unwrap().as_ref() {
            Some(part) if path.as_ref().contains(part.as_str()) => Err(Error::Generic {
                store: "Telltale",
                source: format!(
                    "GET https://user:{CANARY}@host/{path}?X-Amz-Signature={CANARY}&part=1&sig={CANARY} failed with status 503"
                )
                .into(),
            }),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Telltale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Telltale")
    }
}

#[async_trait]
impl ObjectStore for Telltale {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.check(location)?;
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(&self, location: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.check(location)?;
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.check(location)?;
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// `STORED AS VAULT`: CSV behind options that a host's own reader would take, credentials among them.
#[derive(Debug)]
struct Vault;

#[async_trait]
impl TableProviderFactory for Vault {
    async fn create(&self, state: &dyn Session, command: &CreateExternalTable) -> datafusion::error::Result<Arc<dyn TableProvider>> {
        let mut command = command.clone();
        command.options = HashMap::from([("format.has_header".to_string(), "true".to_string())]);
        command.file_type = "CSV".to_string();
        ListingTableFactory::new().create(state, &command).await
    }
}

fn context(store: &Arc<Telltale>) -> SessionContext {
    let options = IncrementalOptions::default().with_leave_to_act().with_root(format!("mem://user:{CANARY}@bucket/warehouse"));
    let config = SessionConfig::new().with_information_schema(true);
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .with_table_factory("VAULT".to_string(), Arc::new(Vault))
        .with_incremental(options)
        .build();
    let ctx = SessionContext::new_with_state(state);
    ctx.register_object_store(&url::Url::parse("mem://bucket").unwrap(), Arc::clone(store) as Arc<dyn ObjectStore>);
    ctx
}

/// What a statement shows, whether it works or not: cells, the error and everything behind it.
async fn shown(ctx: &SessionContext, sql: &str) -> String {
    match ctx.incremental_sql(sql).await {
        Ok(results) => results.iter().map(|result| format!("{:?} {:?}\n", cells(&result.batches), result.schema)).collect(),
        Err(error) => everything(&error),
    }
}

fn everything(error: &CrateError) -> String {
    let mut text = format!("{error}\n{error:?}\n");
    let mut cause = std::error::Error::source(error);
    while let Some(e) = cause {
        text.push_str(&format!("{e}\n{e:?}\n"));
        cause = e.source();
    }
    text
}

fn source(name: &str) -> String {
    format!(
        "CREATE EXTERNAL TABLE {name} (id BIGINT NOT NULL, v VARCHAR) STORED AS VAULT LOCATION 'mem://user:{CANARY}@bucket/source/{name}.csv' OPTIONS \
         ('vault.secret_access_key' '{CANARY}', 'vault.session_token' '{CANARY}', 'vault.dsn' 'host=x password={CANARY}', \
         'vault.endpoint' 'https://user:{CANARY}@host:9000/?sig={CANARY}', 'vault.region' 'north', 'format.has_header' 'true')"
    )
}

const LOOKS: &[&str] = &[
    "SHOW CREATE TABLE s",
    "SHOW CREATE TABLE t",
    "SHOW CREATE TABLE v",
    "SHOW ALL",
    "EXPLAIN REFRESH t",
    "EXPLAIN VERBOSE SELECT * FROM t",
    "EXPLAIN ANALYZE VERBOSE SELECT * FROM t",
    "EXPLAIN VERBOSE SELECT * FROM incremental_refresh('t')",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM information_schema.views",
    "SELECT * FROM information_schema.columns",
    "SELECT * FROM information_schema.df_settings",
    "SELECT * FROM incremental_tables()",
    "SELECT * FROM incremental_runs()",
    "SELECT * FROM incremental_versions()",
    "SELECT * FROM incremental_revisions()",
    "SELECT * FROM incremental_files()",
    "SELECT * FROM incremental_row('t', 1)",
    "CALL incremental.vacuum(t)",
    "DESCRIBE t",
];

#[tokio::test]
async fn a_planted_secret_is_found_nowhere() {
    let logged = collector();
    let store = Arc::new(Telltale { inner: InMemory::new(), fails: Mutex::default() });
    let ctx = context(&store);
    store.inner.put(&Path::from("source/s.csv"), "id,v\n1,a\n2,b\n".into()).await.unwrap();
    let mut texts: Vec<(String, String)> = vec![];
    let look = |what: String, text: String, texts: &mut Vec<(String, String)>| texts.push((what, text));
    for sql in [
        source("s"),
        "CREATE VIEW v AS SELECT * FROM s".to_string(),
        "CREATE INCREMENTAL TABLE t FROM v KEY (id) WITH (capture_retries = 0) AS SELECT id, upper(v) AS u FROM input".to_string(),
        format!(
            "CREATE INCREMENTAL TABLE located FROM s KEY (id) LOCATION 'mem://user:{CANARY}@bucket/located/?sig={CANARY}' AS SELECT id, v FROM input"
        ),
        "REFRESH t".to_string(),
        "REFRESH located".to_string(),
        "REFRESH t DRAFT".to_string(),
    ] {
        ctx.incremental_sql(&sql).await.unwrap_or_else(|e| panic!("{}: {e}", short(&sql)));
    }
    for sql in LOOKS {
        look(sql.to_string(), shown(&ctx, sql).await, &mut texts);
    }
    // Errors of the store, of every kind of object, name its URL.
    for part in ["source/", "versions/", "manifests/", "runs/", "lease/", "data/", "table/", "revisions/"] {
        store.fail(Some(part));
        for sql in [
            "REFRESH t",
            "REFRESH t FULL",
            "SELECT * FROM t",
            "REFRESH t DRY RUN",
            "SELECT * FROM incremental_runs('t')",
            "ALTER INCREMENTAL TABLE t SET (verify = 'always')",
        ] {
            let fresh = context(&store);
            look(format!("{sql} while {part} fails"), shown(&ctx, sql).await, &mut texts);
            look(format!("{sql} while {part} fails, fresh"), shown(&fresh, sql).await, &mut texts);
        }
        store.fail(None);
        look(format!("runs after {part}"), shown(&ctx, "SELECT * FROM incremental_runs()").await, &mut texts);
    }
    // Places and options that cannot be used.
    for sql in [
        format!(
            "CREATE INCREMENTAL TABLE bad FROM s KEY (id) LOCATION 'nosuch://user:{CANARY}@host/x?sig={CANARY}' AS SELECT id FROM input"
        ),
        format!(
            "CREATE EXTERNAL TABLE bad STORED AS INCREMENTAL LOCATION 'nosuch://user:{CANARY}@host/x' OPTIONS ('incremental.source' 's')"
        ),
        format!("CREATE EXTERNAL TABLE bad STORED AS PARQUET LOCATION 'nosuch://user:{CANARY}@host/x?X-Amz-Signature={CANARY}'"),
        format!("CREATE INCREMENTAL TABLE bad FROM s KEY (id) WITH (verify = 'https://user:{CANARY}@host') AS SELECT id FROM input"),
        source("gone"),
        "CREATE INCREMENTAL TABLE g FROM gone KEY (id) AS SELECT id FROM input; REFRESH g".to_string(),
    ] {
        look(short(&sql), shown(&ctx, &sql).await, &mut texts);
    }
    // Another process finds the source by what was stored, which has no secrets.
    let fresh = context(&store);
    look("another process".into(), shown(&fresh, "REFRESH t; SHOW CREATE TABLE t; SELECT * FROM t").await, &mut texts);
    for (what, text) in &texts {
        assert!(!text.contains(CANARY), "{what} shows it: {}", around(text));
    }
    let records = logged.0.lock().unwrap().clone();
    assert!(records.iter().all(|record| !record.contains(CANARY)), "a log shows it: {:?}", records.iter().find(|r| r.contains(CANARY)));
    let objects: Vec<ObjectMeta> = store.inner.list(None).try_collect().await.unwrap();
    let mut looked_at = 0;
    for object in objects.iter().filter(|object| !object.location.as_ref().starts_with("source/")) {
        let bytes = store.inner.get(&object.location).await.unwrap().bytes().await.unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains(CANARY), "{} holds it", object.location);
        assert!(!object.location.as_ref().contains(CANARY));
        looked_at += 1;
    }
    assert!(looked_at > 20 && records.len() > 3, "{looked_at} objects, {} log records", records.len());
    println!("{} answers, {} log records and {looked_at} objects without the secret", texts.len(), records.len());
}

fn around(text: &str) -> String {
    let at = text.find(CANARY).unwrap_or(0);
    let from = text.char_indices().map(|(n, _)| n).take_while(|n| *n + 200 < at).last().unwrap_or(0);
    text[from..].chars().take(400).collect()
}
