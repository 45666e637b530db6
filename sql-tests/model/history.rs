//! One history: what is done to the table, what the model expects, and the comparison after every step.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::UInt64Type;
use datafusion_incremental::context::IncrementalSession;
use datafusion_incremental::exec::equality::KeyHash;
use object_store::memory::InMemory;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::handler::Pass;
use super::source::{Seen, Snapshot, Source};
use super::values::{canon, fold};

/// What was done, summed over histories.
#[derive(Debug, Default, Clone)]
pub struct Totals(BTreeMap<&'static str, u64>);

impl Totals {
    /// Adds another's numbers.
    pub fn add(&mut self, other: &Self) {
        for (name, number) in &other.0 {
            *self.0.entry(name).or_default() += number;
        }
    }

    fn count(&mut self, name: &'static str, number: u64) {
        *self.0.entry(name).or_default() += number;
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(|(name, number)| format!("{number} {name}")).collect();
        f.write_str(&parts.join(", "))
    }
}

/// The handlers of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Every tracked column as `o<n>`, in SQL.
    All,
    /// The first tracked column, and whether the last is null, in SQL.
    Some,
    /// As `All`, by the registered handler.
    Registered,
}

/// What a version holds.
#[derive(Debug, Clone)]
struct Version {
    number: u64,
    revision: u64,
    form: Form,
    /// The texts of the output columns by the texts of the key.
    rows: BTreeMap<Vec<String>, Vec<String>>,
    baseline: BTreeMap<Vec<String>, Seen>,
}

/// One history.
pub struct History {
    rng: SmallRng,
    hash: KeyHash,
    folder: tempfile::TempDir,
    /// The table's store, unless it is on the local disk.
    memory: Option<Arc<InMemory>>,
    session: IncrementalSession,
    fails: Arc<AtomicBool>,
    source: Source,
    snapshot: Snapshot,
    form: Form,
    revision: u64,
    newest: Option<Version>,
    /// Accepted versions that are still readable.
    older: Vec<Version>,
    runs: u64,
    log: Vec<String>,
    totals: Totals,
    verbose: bool,
}

type Step = Result<(), String>;

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

async fn open(folder: &tempfile::TempDir, hash: KeyHash, memory: Option<&Arc<InMemory>>, pass: Pass) -> Result<IncrementalSession, String> {
    let root = folder.path().display().to_string();
    let session = IncrementalSession::builder().with_root(root).with_key_hash(hash).build().await.map_err(|e| e.to_string())?;
    if let Some(store) = memory {
        let url = url::Url::parse("memory://model").map_err(|e| e.to_string())?;
        session.context().register_object_store(&url, Arc::clone(store) as Arc<dyn object_store::ObjectStore>);
    }
    session.handlers().register("pass", Arc::new(pass)).map_err(|e| e.to_string())?;
    Ok(session)
}

impl History {
    /// A table of random columns, defined and never run.
    pub async fn new(seed: u64, hash: KeyHash, verbose: bool) -> Result<Self, String> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let rows = rng.random_range(30..45);
        let source = Source::random(&mut rng, rows);
        let snapshot = source.snapshot(&mut rng);
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        // Most histories spare the disk its many syncs.
        let memory = rng.random_bool(0.8).then(|| Arc::new(InMemory::new()));
        let fails = Arc::new(AtomicBool::new(false));
        let pass = Pass { keys: source.keys.len(), fails: Arc::clone(&fails) };
        let session = open(&folder, hash, memory.as_ref(), pass).await?;
        let form = *[Form::All, Form::Some, Form::Registered].choose(&mut rng).unwrap_or(&Form::All);
        let (log, totals) = (vec![format!("seed {seed}")], Totals::default());
        let mut history = Self {
            rng,
            hash,
            folder,
            memory,
            session,
            fails,
            source,
            snapshot,
            form,
            revision: 1,
            newest: None,
            older: Vec::new(),
            runs: 0,
            log,
            totals,
            verbose,
        };
        history.create().await.map_err(|e| history.explain(e))?;
        Ok(history)
    }

    fn explain(&self, error: String) -> String {
        let columns: Vec<String> =
            self.source.keys.iter().chain(&self.source.tracked).map(|column| format!("{} {:?}", column.name, column.ty)).collect();
        format!("{error}\ncolumns: {}\nsteps:\n  {}", columns.join("; "), self.log.join("\n  "))
    }

    fn note(&mut self, what: impl Into<String>) {
        let what = what.into();
        if self.verbose {
            println!("{what}");
        }
        self.log.push(what);
    }

    async fn create(&mut self) -> Step {
        self.register_source();
        let keys: Vec<String> = self.source.keys.iter().map(|column| quote(&column.name)).collect();
        let tracked: Vec<String> = self.source.tracked.iter().map(|column| quote(&column.name)).collect();
        let location = if self.memory.is_some() { "LOCATION 'memory://model/t/'" } else { "" };
        let compaction = if self.rng.random_bool(0.5) { "compaction = 'off'" } else { "compaction_max_files = 3" };
        let options = format!(
            "{compaction}, row_group_rows = {}, target_file_rows = {}, handler_batch_rows = {}, compression = '{}', fingerprint = '{}', verify = '{}'",
            self.rng.random_range(3..50),
            self.rng.random_range(5..80),
            self.rng.random_range(1..20),
            ["snappy", "uncompressed", "zstd(1)"][self.rng.random_range(0..3)],
            ["xxh3", "blake3"][self.rng.random_range(0..2)],
            ["always", "metadata"][self.rng.random_range(0..2)],
        );
        let sql = format!(
            "CREATE INCREMENTAL TABLE t FROM s KEY ({}) TRACK ({}) {location} WITH ({options}) {}",
            keys.join(", "),
            tracked.join(", "),
            self.handler_sql()
        );
        self.note(sql.clone());
        self.sql(&sql).await.map(drop)
    }

    fn handler_sql(&self) -> String {
        let columns = &self.source.tracked;
        let mut parts: Vec<String> = self.source.keys.iter().map(|column| quote(&column.name)).collect();
        match self.form {
            Form::Registered => return "HANDLER 'pass'".to_string(),
            Form::All => parts.extend(columns.iter().enumerate().map(|(place, column)| format!("{} AS o{place}", quote(&column.name)))),
            Form::Some => {
                let (first, last) = (quote(&columns[0].name), quote(&columns[columns.len() - 1].name));
                parts.push(format!("{first} AS o0"));
                parts.push(format!("CASE WHEN {last} IS NULL THEN 'none' ELSE 'some' END AS said"));
            }
        }
        format!("AS SELECT {} FROM input", parts.join(", "))
    }

    fn register_source(&self) {
        let context = self.session.context();
        context.deregister_table("s").unwrap();
        context.register_table("s", Arc::new(self.snapshot.table())).unwrap();
    }

    async fn sql(&self, sql: &str) -> Result<Vec<RecordBatch>, String> {
        let mut results = self.session.sql(sql).await.map_err(|e| e.to_string())?;
        let last = results.pop().ok_or("no statement")?;
        if last.failed { Err(format!("a run of {sql:?} failed")) } else { Ok(last.batches) }
    }

    /// `sql` must fail with `code`.
    async fn fails_with(&self, sql: &str, code: &str) -> Step {
        match self.session.sql(sql).await {
            Err(error) if error.code().as_str() == code => Ok(()),
            Err(error) => Err(format!("{sql:?} must fail with {code}, it failed with {error}")),
            Ok(_) => Err(format!("{sql:?} must fail with {code}, it did not fail")),
        }
    }

    /// All steps; what was done, or what went wrong.
    pub async fn run(mut self) -> Result<Totals, String> {
        self.totals.count("histories", 1);
        for _ in 0..self.rng.random_range(8..14) {
            self.totals.count("steps", 1);
            if let Err(error) = self.step().await {
                return Err(self.explain(error));
            }
        }
        Ok(self.totals)
    }

    async fn step(&mut self) -> Step {
        if self.rng.random_bool(0.9) {
            self.source.change(&mut self.rng);
        }
        self.snapshot = self.source.snapshot(&mut self.rng);
        self.register_source();
        match self.rng.random_range(0..100) {
            0..=39 => self.refresh(false).await?,
            40..=46 => self.refresh(true).await?,
            47..=56 => self.broken_source().await?,
            57..=63 => self.broken_handler().await?,
            64..=73 => self.revise().await?,
            74..=80 => self.compact().await?,
            81..=85 => self.draft().await?,
            86..=89 => self.rollback().await?,
            90..=92 => self.vacuum().await?,
            93..=95 => self.lost_column().await?,
            _ => self.restart().await?,
        }
        self.check().await
    }

    fn outputs(&self, seen: &Seen) -> Vec<String> {
        match self.form {
            Form::All | Form::Registered => seen.tracked.clone(),
            Form::Some => {
                let last = seen.tracked.last().map_or("null", String::as_str);
                let said = if last == "null" { "\"none\"" } else { "\"some\"" };
                vec![seen.tracked.first().cloned().unwrap_or_default(), said.to_string()]
            }
        }
    }

    fn output_names(&self, form: Form) -> Vec<String> {
        let keys = self.source.keys.iter().map(|column| column.name.clone());
        match form {
            Form::All | Form::Registered => keys.chain((0..self.source.tracked.len()).map(|place| format!("o{place}"))).collect(),
            Form::Some => keys.chain(["o0".to_string(), "said".to_string()]).collect(),
        }
    }

    /// The counts and the reason of a published run over `snapshot`: reason, created, updated, deleted, unchanged.
    fn expected(&self, snapshot: &Snapshot, full: bool) -> (&'static str, [u64; 4]) {
        let all = snapshot.rows.len() as u64;
        let Some(newest) = &self.newest else { return ("initial", [all, 0, 0, 0]) };
        if newest.revision != self.revision {
            return ("rebuild_revision", [all, 0, 0, 0]);
        }
        if full {
            return ("rebuild_requested", [all, 0, 0, 0]);
        }
        let mut counts = [0; 4];
        for (key, seen) in &snapshot.rows {
            match newest.baseline.get(key) {
                None => counts[0] += 1,
                Some(before) if before != seen => counts[1] += 1,
                Some(_) => counts[3] += 1,
            }
        }
        counts[2] = newest.baseline.keys().filter(|key| !snapshot.rows.contains_key(*key)).count() as u64;
        let reason = match counts {
            [0, 0, 0, _] => "no_change",
            [0, 0, _, _] => "delete_only",
            _ => "incremental",
        };
        (reason, counts)
    }

    fn next_run(&mut self) -> String {
        self.runs += 1;
        format!("run-{}", self.runs)
    }

    async fn refresh(&mut self, again_or_full: bool) -> Step {
        let (snapshot, run) = (self.snapshot.clone(), self.next_run());
        let full =
            again_or_full && self.rng.random_bool(0.5) && self.newest.as_ref().is_some_and(|newest| newest.revision == self.revision);
        self.publish(&run, &snapshot, full).await?;
        if again_or_full && !full {
            self.totals.count("repeated runs", 1);
            let row = self.summary(&run, "published").await?;
            let accepted = self.newest.as_ref().map(|version| version.number);
            if Some(row.version) != accepted {
                return Err(format!("{run} asked again answers version {}, it had published {accepted:?}", row.version));
            }
        }
        Ok(())
    }

    /// Runs `run` and compares what it says with the model; `snapshot` is what it must have captured.
    async fn publish(&mut self, run: &str, snapshot: &Snapshot, full: bool) -> Step {
        let (reason, counts) = self.expected(snapshot, full);
        self.note(format!("{run}: {reason} {counts:?} full={full} rows={}", snapshot.count));
        let row = self.summary(run, if full { "full" } else { "published" }).await?;
        let handled = counts[0] + counts[1];
        let wanted = (reason.to_string(), counts, snapshot.rows.len() as u64, handled);
        let found = (row.reason.clone(), row.counts, row.total, row.handled);
        if found != wanted {
            return Err(format!("{run}: reason, counts, total, handler rows are {found:?}, the model says {wanted:?}"));
        }
        self.totals.count("published runs", 1);
        for (name, number) in ["rows created", "rows updated", "rows deleted", "rows unchanged"].into_iter().zip(counts) {
            self.totals.count(name, number);
        }
        let rows = snapshot.rows.iter().map(|(key, seen)| (key.clone(), self.outputs(seen))).collect();
        let version = Version { number: row.version, revision: self.revision, form: self.form, rows, baseline: snapshot.rows.clone() };
        if let Some(before) = self.newest.take() {
            if version.number <= before.number {
                return Err(format!("{run}: version {} after version {}", version.number, before.number));
            }
            self.older.push(before);
        }
        self.newest = Some(version);
        Ok(())
    }

    async fn summary(&self, run: &str, mode: &str) -> Result<Summary, String> {
        let sql = format!(
            "SELECT coalesce(version, arrow_cast(0, 'UInt64')) AS version, reason, rows_created, rows_updated, rows_deleted, rows_unchanged, rows_total, handler_rows, state \
             FROM incremental_refresh('t', '{mode}', '{run}')"
        );
        let batches = self.sql(&sql).await?;
        let batch = batches.iter().find(|batch| batch.num_rows() == 1).ok_or("a run has no summary row")?;
        let number = |column: usize| batch.column(column).as_primitive::<UInt64Type>().value(0);
        let state = canon(batch.column(8), 0);
        if state != "\"published\"" && state != "\"completed\"" {
            return Err(format!("{run} is {state}"));
        }
        let reason = canon(batch.column(1), 0).trim_matches('"').to_string();
        let counts = [number(2), number(3), number(4), number(5)];
        Ok(Summary { version: number(0), reason, counts, total: number(6), handled: number(7) })
    }

    /// A snapshot with a null or repeated key fails and moves nothing.
    async fn broken_source(&mut self) -> Step {
        let Some((broken, code)) = self.source.broken(&mut self.rng) else { return Ok(()) };
        self.snapshot = broken;
        self.register_source();
        let run = self.next_run();
        self.note(format!("{run}: must fail with {code}"));
        self.fails_with(&format!("SELECT * FROM incremental_refresh('t', 'published', '{run}')"), code).await?;
        self.totals.count("failed runs", 1);
        self.snapshot = self.source.snapshot(&mut self.rng);
        self.register_source();
        Ok(())
    }

    /// A handler that fails leaves a sealed capture; the same run id publishes it although the source moved on.
    async fn broken_handler(&mut self) -> Step {
        let captured = self.snapshot.clone();
        let (_, counts) = self.expected(&captured, false);
        if self.form != Form::Registered || counts[0] + counts[1] == 0 {
            return self.refresh(false).await;
        }
        let run = self.next_run();
        self.note(format!("{run}: the handler fails"));
        self.fails.store(true, Ordering::SeqCst);
        let failed = self.fails_with(&format!("SELECT * FROM incremental_refresh('t', 'published', '{run}')"), "HANDLER_FAILED").await;
        self.fails.store(false, Ordering::SeqCst);
        failed?;
        self.totals.count("failed runs", 1);
        self.check().await?;
        self.source.change(&mut self.rng);
        self.snapshot = self.source.snapshot(&mut self.rng);
        self.register_source();
        self.totals.count("retried runs", 1);
        self.publish(&run, &captured, false).await
    }

    /// Another handler: a new revision, whose first run rebuilds.
    async fn revise(&mut self) -> Step {
        let form = *[Form::All, Form::Some, Form::Registered].choose(&mut self.rng).unwrap_or(&Form::All);
        if form != self.form {
            self.revision += 1;
            self.form = form;
            self.totals.count("revisions", 1);
        }
        let sql = format!("ALTER INCREMENTAL TABLE t {}", self.handler_sql());
        self.note(format!("{sql} (revision {})", self.revision));
        self.sql(&sql).await?;
        self.check().await?;
        if self.rng.random_bool(0.8) { self.refresh(false).await } else { Ok(()) }
    }

    async fn compact(&mut self) -> Step {
        if self.newest.is_none() {
            return self.refresh(false).await;
        }
        self.note("compaction");
        self.sql("CALL incremental.compact('t')").await?;
        self.totals.count("compactions", 1);
        self.check().await?;
        self.refresh(false).await
    }

    async fn draft(&mut self) -> Step {
        let run = self.next_run();
        self.note(format!("{run}: draft"));
        let row = self.summary(&run, "draft").await?;
        let wanted = [self.snapshot.rows.len() as u64, 0, 0, 0];
        if row.reason != "draft" || row.counts != wanted {
            return Err(format!("the draft {run} has reason {} and counts {:?}, the model says {wanted:?}", row.reason, row.counts));
        }
        self.totals.count("drafts", 1);
        let rows: BTreeMap<_, _> = self.snapshot.rows.iter().map(|(key, seen)| (key.clone(), self.outputs(seen))).collect();
        self.compare(&format!("SELECT * FROM incremental_output('t', '{run}')"), self.form, &rows).await
    }

    /// An older version's rows and baseline as a new version.
    async fn rollback(&mut self) -> Step {
        let Some(older) = self.older.choose(&mut self.rng).cloned() else { return self.refresh(false).await };
        self.note(format!("rollback to version {}", older.number));
        self.sql(&format!("CALL incremental.rollback('t', version => {})", older.number)).await?;
        self.totals.count("rollbacks", 1);
        let number = self.newest_number().await?;
        if let Some(before) = self.newest.replace(Version { number, ..older }) {
            self.older.push(before);
        }
        self.check().await?;
        if self.rng.random_bool(0.5) { self.refresh(false).await } else { Ok(()) }
    }

    async fn newest_number(&self) -> Result<u64, String> {
        let batches = self.sql("SELECT max(version) AS version FROM incremental_versions('t')").await?;
        let batch = batches.iter().find(|batch| batch.num_rows() == 1).ok_or("no version")?;
        Ok(batch.column(0).as_primitive::<UInt64Type>().value(0))
    }

    async fn vacuum(&mut self) -> Step {
        if self.newest.is_none() {
            return self.refresh(false).await;
        }
        self.note("vacuum");
        self.sql("CALL incremental.vacuum('t', dry_run => false, older_than => '0 s')").await?;
        self.totals.count("vacuums", 1);
        // A compaction or the fence may have taken the place of the run's own version, whose files are then gone.
        let number = self.newest_number().await?;
        if let Some(newest) = &mut self.newest {
            newest.number = number;
        }
        self.older.clear();
        self.check().await?;
        self.refresh(false).await
    }

    /// A tracked column that is gone is a schema change.
    async fn lost_column(&mut self) -> Step {
        let lost = self.source.tracked.choose(&mut self.rng).map(|column| column.name.clone()).unwrap_or_default();
        let whole = self.snapshot.clone();
        let keep: Vec<usize> = (0..whole.schema.fields().len()).filter(|place| *whole.schema.field(*place).name() != lost).collect();
        let project = |batch: &RecordBatch| batch.project(&keep).unwrap();
        self.snapshot.schema = Arc::new(whole.schema.project(&keep).unwrap());
        self.snapshot.partitions = whole.partitions.iter().map(|batches| batches.iter().map(project).collect()).collect();
        self.register_source();
        self.note(format!("column {lost:?} is gone"));
        self.fails_with("SELECT * FROM incremental_refresh('t')", "SCHEMA_CHANGED").await?;
        self.totals.count("failed runs", 1);
        self.snapshot = whole;
        self.register_source();
        Ok(())
    }

    /// Another session over the same storage.
    async fn restart(&mut self) -> Step {
        self.note("restart");
        let pass = Pass { keys: self.source.keys.len(), fails: Arc::clone(&self.fails) };
        self.session = open(&self.folder, self.hash, self.memory.as_ref(), pass).await?;
        self.register_source();
        if self.memory.is_some() {
            self.sql("CREATE EXTERNAL TABLE t STORED AS INCREMENTAL LOCATION 'memory://model/t/'").await?;
        }
        self.totals.count("restarts", 1);
        self.check().await?;
        self.refresh(false).await
    }

    /// The published table, and one older version, are what the model says.
    async fn check(&mut self) -> Step {
        let Some(newest) = self.newest.clone() else { return self.fails_with("SELECT * FROM t", "NOT_PUBLISHED").await };
        self.compare("SELECT * FROM t", newest.form, &newest.rows).await?;
        let batches = self.sql("SELECT count(*) FROM t").await?;
        let counted = batches.iter().find(|batch| batch.num_rows() == 1).map(|batch| canon(batch.column(0), 0));
        if counted != Some(newest.rows.len().to_string()) {
            return Err(format!("count(*) is {counted:?}, the model says {}", newest.rows.len()));
        }
        if let Some(older) = self.older.choose(&mut self.rng).cloned() {
            self.compare(&format!("SELECT * FROM t FOR VERSION AS OF {}", older.number), older.form, &older.rows).await?;
        }
        self.totals.count("comparisons", 1);
        Ok(())
    }

    async fn compare(&self, sql: &str, form: Form, wanted: &BTreeMap<Vec<String>, Vec<String>>) -> Step {
        let batches = self.sql(sql).await?;
        let mut found = BTreeMap::new();
        let keys = self.source.keys.len();
        for batch in &batches {
            self.check_schema(sql, form, batch)?;
            for row in 0..batch.num_rows() {
                let mut key: Vec<String> = batch.columns().iter().map(|column| canon(column, row)).collect();
                let outputs = key.split_off(keys);
                if found.insert(key.clone(), outputs).is_some() {
                    return Err(format!("{sql}: key {key:?} is there twice"));
                }
            }
        }
        for (key, outputs) in wanted {
            match found.remove(key) {
                None => return Err(format!("{sql}: key {key:?} is missing")),
                Some(other) if other != *outputs => return Err(format!("{sql}: key {key:?} has {other:?}, the model says {outputs:?}")),
                Some(_) => {}
            }
        }
        match found.pop_first() {
            Some((key, _)) => Err(format!("{sql}: key {key:?} must not be there")),
            None => Ok(()),
        }
    }

    fn check_schema(&self, sql: &str, form: Form, batch: &RecordBatch) -> Step {
        let schema = batch.schema();
        let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
        if names != self.output_names(form) {
            return Err(format!("{sql}: the columns are {names:?}, the model says {:?}", self.output_names(form)));
        }
        let sources = self.source.keys.iter().chain(self.source.tracked.iter().take(if form == Form::Some { 1 } else { usize::MAX }));
        for (field, column) in schema.fields().iter().zip(sources) {
            let (published, source) = (fold(field.data_type()), fold(&column.ty.data_type()));
            if published != source {
                return Err(format!("{sql}: column {:?} has type {published}, the source has {source}", field.name()));
            }
        }
        Ok(())
    }
}

/// What a run says of itself.
struct Summary {
    version: u64,
    reason: String,
    counts: [u64; 4],
    total: u64,
    handled: u64,
}
