//! Real processes: the shell on a folder of the local disk, and what a process that comes later finds there.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use datafusion_incremental::context::{IncrementalOptions, IncrementalSession};
use datafusion_incremental::{Error, Result};
use tempfile::TempDir;

use super::case::{is_record, named_objects};
use super::world::{Process, Rows, Seen};

/// A folder with a source `s.csv` and a table `t`.
pub struct Folder {
    folder: TempDir,
}

impl Folder {
    /// A table `t` of `definition`, over the source's rows.
    pub fn with_table(rows: &Rows, definition: &str) -> Self {
        let this = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        this.set_source(rows);
        let source = format!(
            "CREATE EXTERNAL TABLE s (id BIGINT, v VARCHAR) STORED AS CSV OPTIONS ('format.has_header' 'false') LOCATION '{}'",
            this.path().join("s.csv").display()
        );
        let created = this.shell(&format!("{source}; CREATE INCREMENTAL TABLE t FROM s {definition}; REFRESH t")).output();
        assert_done(&created.expect("the shell runs"));
        this
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn warehouse(&self) -> PathBuf {
        self.path().join("warehouse")
    }

    /// The source's rows from now on.
    pub fn set_source(&self, rows: &Rows) {
        let lines: String = rows.iter().map(|(id, v)| format!("{id},{v}\n")).collect();
        std::fs::write(self.path().join("s.csv"), lines).expect("the source is written");
    }

    /// The shell, about to do `sql`; its results come as CSV.
    pub fn shell(&self, sql: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_incremental-cli"));
        command.arg("--root").arg(self.warehouse()).args(["--format", "csv", "-q", "-c", sql]);
        command.current_dir(self.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A session of this process that has seen nothing.
    pub async fn session(&self) -> IncrementalSession {
        let options = IncrementalOptions::default().with_root(self.warehouse().to_string_lossy());
        IncrementalSession::builder().with_options(options).build().await.expect("a session")
    }

    /// What somebody sees who has seen nothing: every version, read whole.
    pub async fn look(&self) -> Result<Seen> {
        Process { session: self.session().await, store: super::store::FaultStore::nowhere() }.look("t").await
    }

    /// What leases, probes, marks of the clock, and writers that died left behind looks this much older.
    pub fn age(&self, seconds: u64) {
        let then = now() - Duration::from_secs(seconds);
        for path in files(&self.warehouse()).iter().filter(|path| is_passing(path) || is_unnamed(path)) {
            let file = std::fs::File::options().append(true).open(path).expect("a file");
            file.set_modified(then).expect("its time is set");
        }
    }

    /// Files without a name.
    pub fn unnamed(&self) -> usize {
        files(&self.warehouse()).iter().filter(|path| is_unnamed(path)).count()
    }

    /// What is there and neither a record nor named by a version.
    pub async fn orphans(&self) -> Result<Vec<PathBuf>, Error> {
        let session = self.session().await;
        let handle = session.incremental_table("t").await?;
        let named = named_objects(handle.incarnation()).await?;
        let roots = [handle.incarnation().path("").to_string()];
        let relative = |path: &Path| path.to_string_lossy().trim_start_matches('/').to_string();
        let is_orphan = |path: &PathBuf| {
            let path = relative(path);
            !named.contains(&path) && !is_record(&roots, &path)
        };
        Ok(files(&self.warehouse()).into_iter().filter(is_orphan).collect())
    }
}

fn is_passing(path: &Path) -> bool {
    path.parent().is_some_and(|folder| ["lease", "probe", "clock"].iter().any(|name| folder.ends_with(name)))
}

fn is_unnamed(path: &Path) -> bool {
    path.to_string_lossy().contains('#')
}

/// Every file below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

pub fn assert_done(output: &Output) {
    assert!(output.status.success(), "{}", told(output));
}

/// Everything that a process said.
pub fn told(output: &Output) -> String {
    format!("{}\n{}{}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[allow(clippy::disallowed_methods)] // the times of files are the machine's
fn now() -> SystemTime {
    SystemTime::now()
}
