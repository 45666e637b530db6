//! One history of a chain.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use arrow::util::display::array_value_to_string;
use datafusion::datasource::MemTable;
use datafusion_incremental::context::IncrementalSession;
use datafusion_incremental::exec::equality::KeyHash;
use datafusion_incremental::run::{RefreshRequest, dry_run, explain_refresh};
use datafusion_incremental::spec::{RunId, RunMode, RunSummary};
use datafusion_incremental::{Error, ErrorCode};
use object_store::memory::InMemory;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::handler::Pass;

/// What was done.
#[derive(Debug, Default)]
pub struct Totals {
    pub steps: u64,
    /// Runs of tables that read a table, with hand-on.
    pub runs: u64,
    /// Those to which changes were handed on.
    pub handed_on: u64,
    pub rows_changed: u64,
    pub compactions: u64,
    pub rollbacks: u64,
    pub vacuums: u64,
    pub revisions: u64,
    pub retries: u64,
}

/// Rows by id: all columns that are no key, as text.
type Rows = BTreeMap<i64, Vec<String>>;

/// A table, or a pair of tables that must be equal: hand-on on and off.
struct Node {
    tables: Vec<&'static str>,
    revision: u64,
    rows: Option<Rows>,
    /// The version numbers in each table, and the rows and the revision.
    versions: Vec<(Vec<u64>, Rows, u64)>,
}

pub struct History {
    rng: SmallRng,
    session: IncrementalSession,
    _folder: tempfile::TempDir,
    store: Arc<InMemory>,
    fails: Arc<AtomicBool>,
    /// Key columns: `k1`, `k2`, or both.
    key: &'static [&'static str],
    s: BTreeMap<i64, (String, i64)>,
    nodes: [Node; 3],
    runs: u64,
    log: Vec<String>,
    verbose: bool,
}

type Step = Result<(), String>;

const KEYS: [&[&str]; 3] = [&["k1"], &["k2"], &["k1", "k2"]];

/// The key columns of a row.
fn key_of(id: i64, key: &[&str]) -> (i64, String) {
    if key.len() == 2 { (id % 5, format!("key {}", id / 5)) } else { (id, format!("key {id}")) }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl History {
    pub async fn new(seed: u64, verbose: bool) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let folder = tempfile::tempdir().unwrap();
        let hash = if rng.random_bool(0.2) { KeyHash::Constant } else { KeyHash::Xxh3 };
        let root = folder.path().display().to_string();
        let session = IncrementalSession::builder().with_root(root).with_key_hash(hash).build().await.unwrap();
        let store = Arc::new(InMemory::new());
        let key = *KEYS.choose(&mut rng).unwrap();
        let node = |tables: &[&'static str]| Node { tables: tables.to_vec(), revision: 1, rows: None, versions: vec![] };
        let s = (0..40).map(|id| (id, (format!("v{id}"), id))).collect();
        let nodes = [node(&["a"]), node(&["b", "b0"]), node(&["c", "c0"])];
        let (fails, log) = (Arc::default(), vec![]);
        Self { rng, session, _folder: folder, store, fails, key, s, nodes, runs: 0, log, verbose }
    }

    pub async fn run(mut self, totals: &mut Totals) -> Step {
        let outcome = self.steps(totals).await;
        outcome.map_err(|failure| format!("{failure}\nkey {:?}, steps:\n  {}", self.key, self.log.join("\n  ")))
    }

    async fn steps(&mut self, totals: &mut Totals) -> Step {
        let url = url::Url::parse("memory://chain").map_err(text)?;
        self.session.context().register_object_store(&url, Arc::clone(&self.store) as Arc<dyn object_store::ObjectStore>);
        let pass = Pass { keys: self.key.len(), fails: Arc::clone(&self.fails) };
        self.session.handlers().register("pass", Arc::new(pass)).map_err(text)?;
        self.register();
        self.create().await?;
        for node in 0..3 {
            self.refresh(node, false, totals).await?;
        }
        for _ in 0..16 {
            totals.steps += 1;
            self.step(totals).await?;
            self.check().await?;
        }
        Ok(())
    }

    fn note(&mut self, what: impl Into<String>) {
        let what = what.into();
        if self.verbose {
            println!("{what}");
        }
        self.log.push(what);
    }

    async fn sql(&self, sql: &str) -> Result<Vec<RecordBatch>, String> {
        let mut results = self.session.sql(sql).await.map_err(|e| format!("{sql}: {e}"))?;
        let last = results.pop().ok_or("no statement")?;
        if last.failed { Err(format!("a run of {sql:?} failed")) } else { Ok(last.batches) }
    }

    /// The source as it is now.
    fn register(&self) {
        let keys: Vec<(i64, String)> = self.s.keys().map(|id| key_of(*id, self.key)).collect();
        let columns: [(&str, ArrayRef, bool); 4] = [
            ("k1", Arc::new(keys.iter().map(|(k1, _)| *k1).collect::<Int64Array>()), true),
            ("k2", Arc::new(keys.iter().map(|(_, k2)| Some(k2)).collect::<StringArray>()), true),
            ("v", Arc::new(self.s.values().map(|(v, _)| Some(v)).collect::<StringArray>()), true),
            ("w", Arc::new(self.s.values().map(|(_, w)| *w).collect::<Int64Array>()), true),
        ];
        let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let table = MemTable::try_new(batch.schema(), vec![vec![batch]]).unwrap();
        self.session.context().deregister_table("s").unwrap();
        self.session.context().register_table("s", Arc::new(table)).unwrap();
    }

    fn handler(&self, node: usize, revision: u64) -> String {
        let key = self.key.join(", ");
        match node {
            0 => format!("AS SELECT {key}, concat(v, '!{revision}') AS o, w AS x FROM input"),
            1 => format!("AS SELECT concat(o, '?{revision}') AS p, {key} FROM input"),
            _ => "HANDLER 'pass'".to_string(),
        }
    }

    async fn create(&mut self) -> Step {
        let backwards: Vec<&str> = self.key.iter().rev().copied().collect();
        let (key, backwards) = (self.key.join(", "), backwards.join(", "));
        for (node, source, key, track) in [(0, "s", &key, "v, w"), (1, "a", &backwards, "o"), (2, "b", &key, "p")] {
            for table in self.nodes[node].tables.clone() {
                let options = format!(
                    "compaction = '{}', compaction_max_files = 3, target_file_rows = {}, row_group_rows = {}, hand_on = {}, max_deleted_fraction = NULL",
                    ["off", "auto"][self.rng.random_range(0..2)],
                    self.rng.random_range(3..60),
                    self.rng.random_range(2..40),
                    !table.ends_with('0'),
                );
                let sql = format!(
                    "CREATE INCREMENTAL TABLE {table} FROM {source} KEY ({key}) TRACK ({track}) LOCATION 'memory://chain/{table}/' WITH ({options}) {}",
                    self.handler(node, 1)
                );
                self.note(sql.clone());
                self.sql(&sql).await?;
            }
        }
        Ok(())
    }

    async fn step(&mut self, totals: &mut Totals) -> Step {
        match self.rng.random_range(0..100) {
            0..=39 => {
                self.edit();
                self.refresh(0, false, totals).await
            }
            40..=64 => self.refresh(1, false, totals).await,
            65..=76 => self.refresh(2, false, totals).await,
            77..=82 => self.compact(totals).await,
            83..=86 => self.rollback(totals).await,
            87..=89 => self.vacuum(totals).await,
            90..=92 => self.revise(totals).await,
            93..=94 => {
                let node = self.rng.random_range(0..3);
                self.refresh(node, true, totals).await
            }
            _ => self.broken_handler(totals).await,
        }
    }

    /// A few rows of the source change, come and go; some are changed back.
    fn edit(&mut self) {
        for _ in 0..self.rng.random_range(0..6) {
            let id = self.rng.random_range(0..60);
            match self.rng.random_range(0..4) {
                0 => drop(self.s.remove(&id)),
                1 => drop(self.s.insert(id, (format!("v{id}"), id))),
                2 => drop(self.s.insert(id, (format!("v{id} {}", self.rng.random_range(0..3)), id))),
                // A column that the second table does not track.
                _ => {
                    let w = self.rng.random_range(0..3);
                    self.s.entry(id).and_modify(|(_, known)| *known = w);
                }
            }
        }
        if self.rng.random_bool(0.02) {
            self.s.clear();
        }
        self.register();
    }

    /// What a full recompute of a table would publish.
    fn recomputed(&self, node: usize) -> Rows {
        let revision = self.nodes[node].revision;
        match node {
            0 => self.s.iter().map(|(id, (v, w))| (*id, vec![format!("{v}!{revision}"), w.to_string()])).collect(),
            1 => self.source(1).iter().map(|(id, row)| (*id, vec![format!("{}?{revision}", row[0])])).collect(),
            _ => self.source(2).clone(),
        }
    }

    fn source(&self, node: usize) -> &Rows {
        self.nodes[node - 1].rows.as_ref().expect("refreshed in order")
    }

    async fn refresh(&mut self, node: usize, full: bool, totals: &mut Totals) -> Step {
        self.runs += 1;
        let run = format!("r{}", self.runs);
        let rows = self.recomputed(node);
        self.publish(node, RefreshRequest { full, run: Some(RunId::new(&run).map_err(text)?), ..RefreshRequest::default() }, rows, totals)
            .await
    }

    /// Runs `request` on the table or on both; they must say the same.
    async fn publish(&mut self, node: usize, request: RefreshRequest, rows: Rows, totals: &mut Totals) -> Step {
        let mut said = vec![];
        for table in self.nodes[node].tables.clone() {
            let dry = if request.full || self.rng.random_bool(0.6) { None } else { Some(self.dry(table).await?) };
            if node > 0 && !table.ends_with('0') {
                totals.runs += 1;
                let decision = self.decision(table).await?;
                totals.handed_on += u64::from(!request.full && decision.contains("hands on"));
                self.note(format!("{table}: {}", decision.lines().last().unwrap_or_default()));
            }
            let summary = self.session.refresh(table, request.clone()).await.map_err(|e| format!("refresh of {table}: {e}"))?;
            self.note(format!("refresh {table} {:?} full {} → {:?}", request.run.as_ref().map(text), request.full, figures(&summary)));
            if let Some(dry) = dry.filter(|_| !self.is_sealed(&summary)) {
                same(&format!("{table}, dry and wet"), &figures(&dry)[..5], &figures(&summary)[..5])?;
            }
            said.push((summary.version.ok_or("no version")?, figures(&summary)));
            totals.rows_changed += summary.rows_created.unwrap_or(0) + summary.rows_updated.unwrap_or(0);
        }
        if let [(_, with), (_, without)] = said.as_slice() {
            same(&format!("{:?}", self.nodes[node].tables), with, without)?;
        }
        let node = &mut self.nodes[node];
        node.versions.push((said.into_iter().map(|(version, _)| version).collect(), rows.clone(), node.revision));
        node.rows = Some(rows);
        Ok(())
    }

    /// Whether the run was captured before the step.
    fn is_sealed(&self, summary: &RunSummary) -> bool {
        summary.run_id.starts_with('x')
    }

    async fn dry(&self, table: &str) -> Result<RunSummary, String> {
        let handle = self.session.incremental_table(table).await.map_err(text)?;
        dry_run(&self.session.host(), &handle, RefreshRequest::default()).await.map_err(|e| format!("dry run of {table}: {e}"))
    }

    async fn decision(&self, table: &str) -> Result<String, String> {
        let handle = self.session.incremental_table(table).await.map_err(text)?;
        let rows = explain_refresh(&self.session.host(), &handle).await.map_err(text)?;
        Ok(rows.into_iter().next().map(|(_, text)| text).unwrap_or_default())
    }

    async fn compact(&mut self, totals: &mut Totals) -> Step {
        let node = self.rng.random_range(0..3);
        for table in self.nodes[node].tables.clone() {
            self.note(format!("compact {table}"));
            self.sql(&format!("CALL incremental.compact('{table}')")).await?;
            totals.compactions += 1;
        }
        Ok(())
    }

    /// Both tables of a pair go back to the same run's rows.
    async fn rollback(&mut self, totals: &mut Totals) -> Step {
        let node = self.rng.random_range(0..3);
        let Some((versions, rows, revision)) = self.nodes[node].versions.choose(&mut self.rng).cloned() else { return Ok(()) };
        // The next run of another revision rebuilds; here only one revision's history is gone through.
        if revision != self.nodes[node].revision {
            return Ok(());
        }
        for (table, version) in self.nodes[node].tables.clone().iter().zip(&versions) {
            self.note(format!("rollback {table} to {version}"));
            self.sql(&format!("CALL incremental.rollback('{table}', version => {version})")).await?;
        }
        totals.rollbacks += 1;
        self.nodes[node].rows = Some(rows);
        Ok(())
    }

    async fn vacuum(&mut self, totals: &mut Totals) -> Step {
        let node = self.rng.random_range(0..3);
        for table in self.nodes[node].tables.clone() {
            self.note(format!("vacuum {table}"));
            self.sql(&format!("CALL incremental.vacuum('{table}', dry_run => false, older_than => '0 s')")).await?;
        }
        totals.vacuums += 1;
        self.nodes[node].versions.clear();
        Ok(())
    }

    async fn revise(&mut self, totals: &mut Totals) -> Step {
        let node = self.rng.random_range(0..2);
        self.nodes[node].revision += 1;
        let handler = self.handler(node, self.nodes[node].revision);
        for table in self.nodes[node].tables.clone() {
            self.note(format!("ALTER {table} {handler}"));
            self.sql(&format!("ALTER INCREMENTAL TABLE {table} {handler}")).await?;
        }
        totals.revisions += 1;
        self.refresh(node, false, totals).await
    }

    /// A run of the third table fails after its seal; the second one moves on, then the run is tried again.
    async fn broken_handler(&mut self, totals: &mut Totals) -> Step {
        self.runs += 1;
        let captured = self.recomputed(2);
        let request = |runs: u64| -> Result<RefreshRequest, String> {
            Ok(RefreshRequest { run: Some(RunId::new(format!("x{runs}")).map_err(text)?), ..RefreshRequest::default() })
        };
        self.fails.store(true, Ordering::SeqCst);
        let mut outcomes = vec![];
        for table in ["c", "c0"] {
            outcomes.push(self.session.refresh(table, request(self.runs)?).await.map_err(|e: Error| e.code()).map(|s| figures(&s)));
        }
        self.fails.store(false, Ordering::SeqCst);
        if outcomes[0] != outcomes[1] {
            return Err(format!("a handler that fails: {outcomes:?}"));
        }
        let run = self.runs;
        self.note(format!("x{run} of c with a handler that fails: {:?}", outcomes[0]));
        if outcomes[0] == Err(ErrorCode::HandlerFailed) {
            totals.retries += 1;
            self.edit();
            self.refresh(0, false, totals).await?;
            self.refresh(1, false, totals).await?;
        }
        self.publish(2, request(run)?, captured, totals).await
    }

    /// Every table has the model's rows.
    async fn check(&mut self) -> Step {
        for node in 0..3 {
            for table in self.nodes[node].tables.clone() {
                let found = self.read(table, node).await?;
                let wanted = self.nodes[node].rows.clone().unwrap_or_default();
                if found != wanted {
                    let odd: Vec<i64> = (0..100).filter(|id| found.get(id) != wanted.get(id)).collect();
                    return Err(format!(
                        "{table}: rows {odd:?} are {:?}, the model says {:?}",
                        odd.iter().map(|id| found.get(id)).collect::<Vec<_>>(),
                        odd.iter().map(|id| wanted.get(id)).collect::<Vec<_>>()
                    ));
                }
            }
        }
        Ok(())
    }

    async fn read(&self, table: &str, node: usize) -> Result<Rows, String> {
        let columns: &[&str] = [&["o", "x"][..], &["p"], &["o0"]][node];
        let batches = self.sql(&format!("SELECT * FROM {table}")).await?;
        let mut rows = Rows::new();
        for batch in &batches {
            for row in 0..batch.num_rows() {
                let column = |name: &str| batch.column_by_name(name).expect("a column");
                let id = match self.key {
                    ["k1"] => column("k1").as_primitive::<Int64Type>().value(row),
                    key => {
                        let k2 = array_value_to_string(column("k2"), row).map_err(text)?;
                        let number: i64 = k2.trim_start_matches("key ").parse().map_err(text)?;
                        if key.len() == 2 { number * 5 + column("k1").as_primitive::<Int64Type>().value(row) } else { number }
                    }
                };
                let values = columns.iter().map(|name| array_value_to_string(column(name), row).map_err(text));
                if rows.insert(id, values.collect::<Result<_, _>>()?).is_some() {
                    return Err(format!("{table}: key of {id} is there twice"));
                }
            }
        }
        Ok(rows)
    }
}

/// Reason, created, updated, deleted, unchanged, total, handled, source files read and skipped.
fn figures(summary: &RunSummary) -> Vec<String> {
    assert_ne!(summary.mode, RunMode::Draft);
    let counts = [
        summary.rows_created,
        summary.rows_updated,
        summary.rows_deleted,
        summary.rows_unchanged,
        summary.rows_total,
        summary.handler_rows,
        summary.files_read,
        summary.files_skipped,
    ];
    [format!("{:?}", summary.reason)].into_iter().chain(counts.map(|count| format!("{count:?}"))).collect()
}

fn same(what: &str, a: &[String], b: &[String]) -> Step {
    if a == b { Ok(()) } else { Err(format!("{what}: {a:?} against {b:?}")) }
}
