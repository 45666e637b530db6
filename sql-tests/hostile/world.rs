//! A session over a folder of its own, and what the tests look at afterwards.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::RecordBatch;
use arrow::util::display::array_value_to_string;
use datafusion_incremental::context::IncrementalSession;
use datafusion_incremental::{Error, ErrorCode};
use tempfile::TempDir;

static PANICS: AtomicUsize = AtomicUsize::new(0);
static FOREIGN_PANICS: AtomicUsize = AtomicUsize::new(0);
static HOOK: Once = Once::new();

/// Counts panics from here on, on every thread of the process.
pub fn count_panics() {
    HOOK.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let file = info.location().map(|at| at.file()).unwrap_or_default();
            match file {
                // A failing assertion of a test is no panic of the crate.
                file if file.starts_with("sql-tests") => {}
                file if file.starts_with("src") => drop(PANICS.fetch_add(1, Ordering::SeqCst)),
                _ => drop(FOREIGN_PANICS.fetch_add(1, Ordering::SeqCst)),
            }
            default(info);
        }));
    });
}

/// How many panics there were in this crate.
pub fn panics() -> usize {
    PANICS.load(Ordering::SeqCst)
}

/// How many there were in its dependencies; a run turns them into errors.
pub fn foreign_panics() -> usize {
    FOREIGN_PANICS.load(Ordering::SeqCst)
}

/// The process's peak of resident memory so far, in MiB; 0 where the system does not say.
pub fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.and_then(|line| line.split_whitespace().nth(1)).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// A folder in memory where the system has one: nothing here is about what survives a power failure.
pub fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// A warehouse folder and a session over it.
pub struct World {
    folder: TempDir,
    pub session: IncrementalSession,
}

impl World {
    pub async fn new() -> Self {
        count_panics();
        let folder = scratch();
        let session = IncrementalSession::builder().with_root(folder.path().join("warehouse").display().to_string()).build().await.unwrap();
        Self { folder, session }
    }

    /// With the source `s (id, v, n, arr)` of two rows, and the published tables `base` and `full` (`incremental = false`).
    pub async fn with_tables() -> Self {
        let world = Self::new().await;
        world.ok("CREATE TABLE s (id BIGINT, v VARCHAR, n BIGINT, arr BIGINT[]) AS VALUES (1, 'a', 1, [1, 2]), (2, 'b', 2, [3])").await;
        world.ok("CREATE TABLE other (id BIGINT, w VARCHAR) AS VALUES (1, 'x')").await;
        world.ok("CREATE INCREMENTAL TABLE base FROM s KEY (id) TRACK (v, n, arr) AS SELECT id, v FROM input; REFRESH base").await;
        world.ok("CREATE INCREMENTAL TABLE whole FROM s KEY (id) TRACK (v, n, arr) WITH (incremental = false) AS SELECT id, v FROM input; REFRESH whole").await;
        world
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn warehouse(&self) -> PathBuf {
        self.folder.path().join("warehouse")
    }

    pub async fn sql(&self, sql: &str) -> Result<Vec<RecordBatch>, Error> {
        let mut results = self.session.sql(sql).await?;
        Ok(results.pop().map(|result| result.batches).unwrap_or_default())
    }

    pub async fn ok(&self, sql: &str) -> Vec<RecordBatch> {
        match self.sql(sql).await {
            Ok(batches) => batches,
            Err(e) => panic!("{}: {e}", short(sql)),
        }
    }

    /// The statement's error code and message; a statement that works is the test's failure.
    pub async fn refused(&self, sql: &str) -> (ErrorCode, String) {
        match self.sql(sql).await {
            Ok(_) => panic!("not refused: {}", short(sql)),
            Err(e) => (e.code(), e.to_string()),
        }
    }

    /// Every file below the warehouse, with its bytes' digest.
    pub fn tree(&self) -> BTreeMap<PathBuf, blake3::Hash> {
        tree(&self.warehouse())
    }
}

/// Every file below `folder`, with its bytes' digest.
pub fn tree(folder: &Path) -> BTreeMap<PathBuf, blake3::Hash> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = std::fs::read(&path).unwrap();
                found.insert(path, blake3::hash(&bytes));
            }
        }
    }
    found
}

/// Every cell as text.
pub fn cells(batches: &[RecordBatch]) -> Vec<String> {
    let mut cells = vec![];
    for batch in batches {
        for row in 0..batch.num_rows() {
            cells.extend(batch.columns().iter().map(|column| array_value_to_string(column, row).unwrap()));
        }
    }
    cells
}

/// The beginning of a text that may be very long.
pub fn short(text: &str) -> String {
    text.chars().take(160).collect()
}

/// The text as an SQL literal.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
