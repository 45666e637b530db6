//! One random history.

use std::sync::Arc;

use arrow::array::{AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use datafusion::datasource::MemTable;
use datafusion_incremental::context::{IncrementalOptions, IncrementalSession};
use datafusion_incremental::{Error, ErrorCode};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::model::{Config, Cursor, Mode, Model, Row};
use super::outside::{Declared, Outside};

const STEPS: usize = 14;

pub struct History {
    random: SmallRng,
    verbose: bool,
    session: IncrementalSession,
    outside: Outside,
    source: Vec<Row>,
    clock: i64,
    model: Model,
    folder: tempfile::TempDir,
}

async fn open(folder: &std::path::Path, outside: &Outside) -> IncrementalSession {
    let options = IncrementalOptions::default().with_connector(Arc::new(outside.clone())).with_load_segments(3);
    let root = folder.display().to_string();
    IncrementalSession::builder().with_options(options).with_root(root).build().await.unwrap()
}

impl History {
    pub async fn new(seed: u64, verbose: bool) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let (folder, outside) = (tempfile::tempdir().unwrap(), Outside::default());
        let session = open(folder.path(), &outside).await;
        let mode = [Mode::Full, Mode::Incremental, Mode::Append][random.random_range(0..3)];
        Self { random, verbose, session, outside, source: vec![], clock: 0, model: Model::new(mode), folder }
    }

    pub async fn run(mut self) -> Result<(), String> {
        self.change();
        self.publish(None);
        let text = |e: Error| e.to_string();
        self.session.sql("CREATE CONNECTION x TYPE outside WITH (token = 'env:PATH')").await.map_err(text)?;
        let mode = self.model.config.mode;
        let cursor = if mode == Mode::Full { "" } else { ", incremental_field = 'at'" };
        let create = format!(
            "CREATE SYNCED TABLE t FROM x.public.s WITH (sync_type = '{}'{cursor}, capture_retries = 0, max_deleted_fraction = NULL)",
            mode.name()
        );
        self.session.sql(&create).await.map_err(text)?;
        for step in 0..STEPS {
            let what = self.random.random_range(0..10);
            let done = match what {
                0 => self.switch().await,
                1 => self.restart().await,
                2 if self.model.config.mode == Mode::Incremental && self.model.made_by == Some(self.model.config) => self.reconcile().await,
                3 => self.sync(true).await,
                _ => self.sync(false).await,
            };
            done.map_err(|e| format!("step {step} ({what}): {e}"))?;
            self.check().await.map_err(|e| format!("step {step} ({what}): {e}"))?;
        }
        Ok(())
    }

    fn say(&self, text: &str) {
        if self.verbose {
            println!("{text}");
        }
    }

    /// Changes a few rows of the source; cursors never fall below what was given out.
    fn change(&mut self) {
        for _ in 0..self.random.random_range(0..6) {
            self.clock += self.random.random_range(0..2);
            let has_nulls = self.model.config.mode != Mode::Append || self.random.random_range(0..12) == 0;
            let at = if has_nulls && self.random.random_range(0..6) == 0 { None } else { Some(self.clock) };
            let value = self.random.random_range(0..5);
            let id = self.random.random_range(0..12);
            let other = self.clock - self.random.random_range(0..3);
            match self.source.iter().position(|row| row.0 == id) {
                Some(place) if self.random.random_range(0..5) == 0 => {
                    self.source.remove(place);
                }
                Some(place) => self.source[place] = (id, at, value, other),
                None => self.source.push((id, at, value, other)),
            }
        }
        if self.model.config.mode == Mode::Append && self.random.random_range(0..4) > 0 {
            let clock = self.clock;
            for row in &mut self.source {
                row.1 = row.1.or(Some(clock));
            }
        }
    }

    fn publish(&self, fail_after: Option<usize>) {
        let ids: Int64Array = self.source.iter().map(|row| Some(row.0)).collect();
        let cursors: Int64Array = self.source.iter().map(|row| row.1).collect();
        let values: Int64Array = self.source.iter().map(|row| Some(row.2)).collect();
        let others: Int64Array = self.source.iter().map(|row| Some(row.3)).collect();
        let columns: Vec<(&str, arrow::array::ArrayRef, bool)> = vec![
            ("id", Arc::new(ids), false),
            ("at", Arc::new(cursors), true),
            ("v", Arc::new(values), true),
            ("other", Arc::new(others), true),
        ];
        let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let table = MemTable::try_new(batch.schema(), vec![vec![batch]]).unwrap();
        let _ = self.session.context().deregister_table("s");
        self.session.context().register_table("s", Arc::new(table)).unwrap();
        self.outside.declare("s", Declared { key: vec!["id".into()], fail_after, ..Declared::default() });
        self.say(&format!("  source {:?}, fails after {fail_after:?}", self.source));
    }

    async fn sync(&mut self, fails: bool) -> Result<(), String> {
        self.change();
        let fail_after = fails.then(|| self.random.random_range(0..6));
        self.publish(fail_after);
        let refuses = self.model.refuses(&self.source);
        let outcome = self.session.sql("CALL sync.reload('t')").await;
        self.say(&format!("reload: {:?}", outcome.as_ref().err().map(Error::code)));
        match outcome {
            Ok(_) if refuses => Err("a run with null cursors ended well".into()),
            Ok(_) => {
                self.model.sync(&self.source);
                Ok(())
            }
            Err(error) if error.code() == ErrorCode::NullCursor && refuses => Ok(()),
            Err(error) if error.code() == ErrorCode::ConnectionFailed && fails => self.after_failure().await,
            Err(error) => Err(error.to_string()),
        }
    }

    /// The next run completes what a failed one began. Where the source stood still it is as if nothing had failed; where it
    /// moved, which versions of a row were seen is a matter of when they were read: what must hold all the same is checked.
    async fn after_failure(&mut self) -> Result<(), String> {
        let moves = self.model.config.cursor == Cursor::At && self.random.random_range(0..2) == 0;
        if moves {
            self.move_on();
        }
        self.publish(None);
        if self.model.refuses(&self.source) {
            return Ok(());
        }
        self.check().await?;
        self.session.sql("CALL sync.reload('t')").await.map_err(|e| format!("after a failure: {e}"))?;
        self.model.sync(&self.source);
        if !moves {
            return Ok(());
        }
        let mut found = self.rows().await?;
        found.sort();
        let source = || self.source.iter().filter(|row| self.model.config.passes(row));
        if let Some(lost) = source().find(|row| !found.contains(row)) {
            return Err(format!("{lost:?} was lost:\n  table {found:?}\n  source {:?}", self.source));
        }
        let is_double = |pair: &[Row]| match self.model.config.mode {
            Mode::Append => pair[0] == pair[1],
            _ => pair[0].0 == pair[1].0,
        };
        if let Some(double) = found.windows(2).find(|pair| is_double(pair)) {
            return Err(format!("{double:?} is there twice:\n  table {found:?}\n  source {:?}", self.source));
        }
        self.model.rows = found;
        Ok(())
    }

    /// Rows are added and changed, each with a cursor of its own above all others.
    fn move_on(&mut self) {
        for _ in 0..self.random.random_range(1..6) {
            self.clock += 1;
            let row = (self.random.random_range(0..12), Some(self.clock), self.random.random_range(0..5), self.clock);
            match self.source.iter().position(|old| old.0 == row.0) {
                Some(place) => self.source[place] = row,
                None => self.source.push(row),
            }
        }
    }

    async fn switch(&mut self) -> Result<(), String> {
        let old = self.model.config;
        let config = Config {
            mode: [Mode::Full, Mode::Incremental, Mode::Append][self.random.random_range(0..3)],
            cursor: if self.random.random_range(0..3) == 0 { Cursor::Other } else { Cursor::At },
            below: [None, old.below, Some(3), Some(4)][self.random.random_range(0..4)],
        };
        if config == old {
            return Ok(());
        }
        let (was, rebuilds) = (self.model.rebuilds(old), self.model.rebuilds(config));
        let below = config.below.map(|below| format!(r#"{{"column": "v", "operator": "<", "value": {below}}}"#));
        // A full refresh has no use for a cursor, and says so.
        let cursor = match config.mode {
            Mode::Full => String::new(),
            _ => format!(", incremental_field = '{}'", config.cursor.name()),
        };
        let filters = below.unwrap_or_default();
        let set = format!("sync_type = '{}'{cursor}, row_filters = '[{filters}]'", config.mode.name());
        let statement = format!("ALTER SYNCED TABLE t SET ({set})");
        self.say(&statement);
        let outcome = self.session.sql(&statement).await;
        match outcome {
            Err(error) if error.code() == ErrorCode::ConfirmRequired && rebuilds => {
                self.session.sql(&format!("{statement} CONFIRM")).await.map_err(|e| e.to_string())?;
            }
            Err(error) => return Err(error.to_string()),
            Ok(_) if rebuilds && !was => return Err(format!("{statement} asked for no confirmation")),
            Ok(_) => {}
        }
        self.model.config = config;
        Ok(())
    }

    async fn restart(&mut self) -> Result<(), String> {
        self.say("restart");
        self.session = open(self.folder.path(), &self.outside).await;
        self.publish(None);
        Ok(())
    }

    async fn reconcile(&mut self) -> Result<(), String> {
        self.change();
        self.publish(None);
        self.say("reconcile");
        self.session.sql("CALL sync.reconcile('t')").await.map_err(|e| e.to_string())?;
        self.model.reconcile(&self.source);
        Ok(())
    }

    async fn check(&self) -> Result<(), String> {
        if self.model.made_by.is_none() {
            let code = self.session.sql("SELECT * FROM t").await.map(|_| ()).map_err(|e| e.code());
            return if code == Err(ErrorCode::SourceNotReady) { Ok(()) } else { Err(format!("a table without rows answers {code:?}")) };
        }
        let mut found = self.rows().await?;
        found.sort();
        let expected = self.model.sorted();
        if found == expected { Ok(()) } else { Err(format!("\n  table {found:?}\n  model {expected:?}")) }
    }

    async fn rows(&self) -> Result<Vec<Row>, String> {
        let results = self.session.sql("SELECT id, at, v, other FROM t").await.map_err(|e| e.to_string())?;
        let mut found: Vec<Row> = vec![];
        for batch in results.iter().flat_map(|result| &result.batches) {
            let column = |at: usize| batch.column(at).as_primitive::<Int64Type>();
            found.extend((0..batch.num_rows()).map(|row| {
                let at = column(1);
                let at = (!arrow::array::Array::is_null(at, row)).then(|| at.value(row));
                (column(0).value(row), at, column(2).value(row), column(3).value(row))
            }));
        }
        Ok(found)
    }
}
