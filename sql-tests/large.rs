//! Wide rows, large cells, many files, many refreshes: the shell as a process of its own, under limits that it may not pass.
//!
//! ```text
//! Parquet files ─► sh: ulimit -v (address space), ulimit -n (open files) ─► incremental-cli ─► counts
//! ```
//!
//! The sizes here suit a debug build; with INCREMENTAL_LARGE=1 they are those of the issue: 48 cells of 64 MiB and 20,000
//! strings of 120 KiB (2.3 GiB), as much memory as for the small ones.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, LargeStringArray, RecordBatch};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

const COUNTS: &str = "SELECT state, rows_created, rows_updated, rows_deleted, rows_unchanged FROM incremental_refresh('t')";

fn is_large() -> bool {
    std::env::var_os("INCREMENTAL_LARGE").is_some_and(|value| value == "1")
}

/// Writes batches as one file with one row group.
fn write(path: &Path, batches: impl IntoIterator<Item = RecordBatch>) {
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_compression(Compression::SNAPPY)
        .set_write_batch_size(64)
        .set_max_row_group_row_count(Some(1 << 20));
    let mut batches = batches.into_iter().peekable();
    let schema = batches.peek().unwrap().schema();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), schema, Some(properties.build())).unwrap();
    batches.for_each(|batch| writer.write(&batch).unwrap());
    writer.close().unwrap();
}

fn ids(ids: std::ops::Range<i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(ids))
}

struct Shell<'a> {
    folder: &'a Path,
    mebibytes: usize,
}

impl Shell<'_> {
    /// The lines that the statements print.
    fn lines(&self, statements: &[&str]) -> Vec<String> {
        let limits = format!("ulimit -n 256 && ulimit -v {} && exec \"$0\" \"$@\"", self.mebibytes << 10);
        let mut command = Command::new("sh");
        command.current_dir(self.folder).args(["-c", &limits, env!("CARGO_BIN_EXE_incremental-cli")]);
        command.args(["-q", "--format", "csv", "--root", "warehouse"]);
        for statement in statements {
            command.args(["-c", statement]);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_string).collect()
    }

    fn last_line(&self, statements: &[&str]) -> String {
        self.lines(statements).pop().unwrap_or_default()
    }

    /// A run over the source `s`.
    fn refresh(&self, create: Option<&str>) -> String {
        let source = "CREATE EXTERNAL TABLE s STORED AS PARQUET LOCATION 's/'";
        let statements: Vec<&str> = [source].into_iter().chain(create).chain([COUNTS]).collect();
        self.last_line(&statements)
    }
}

/// Two runs of a table over large strings, of which the second finds one changed, then a compaction.
fn large_strings(count: i64, bytes: usize, mebibytes: usize) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("s")).unwrap();
    let snapshot = |changed: Option<i64>| {
        let row = |id: i64| {
            let head = format!("{}-{}-", id, changed == Some(id));
            let text = format!("{head}{}", "x".repeat(bytes - head.len()));
            RecordBatch::try_from_iter([("id", ids(id..id + 1)), ("v", Arc::new(LargeStringArray::from(vec![text])) as ArrayRef)]).unwrap()
        };
        write(&folder.path().join("s/s.parquet"), (0..count).map(row));
    };
    let shell = Shell { folder: folder.path(), mebibytes };
    snapshot(None);
    let create = "CREATE INCREMENTAL TABLE t FROM s KEY (id) TRACK (v) WITH (compression = 'snappy') AS SELECT id, v, octet_length(v) AS n FROM input";
    assert_eq!(shell.refresh(Some(create)), format!("published,{count},0,0,0"));
    snapshot(Some(count / 2));
    assert_eq!(shell.refresh(None), format!("published,0,1,0,{}", count - 1));
    shell.last_line(&["CALL incremental.compact('t')"]);
    assert_eq!(shell.refresh(None), format!("published,0,0,0,{count}"));
    let (files, rows) = ("SELECT count(*) FROM incremental_files('t')", "SELECT count(*), sum(n) FROM t");
    assert_eq!(shell.last_line(&[files]), "1");
    assert_eq!(shell.last_line(&[rows]), format!("{count},{}", count as usize * bytes));
}

#[test]
fn cells_of_64_mebibytes() {
    large_strings(if is_large() { 48 } else { 5 }, 64 << 20, 3 << 10);
}

/// More than an array with 32-bit offsets holds, in one row group.
#[test]
fn strings_of_more_than_two_gibibytes() {
    large_strings(if is_large() { 20_000 } else { 2_000 }, 120 << 10, 3 << 10);
}

#[test]
fn two_thousand_tracked_columns() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("s")).unwrap();
    let rows = 1_000;
    let snapshot = |changed: i32| {
        let column = |c: i32| -> ArrayRef {
            Arc::new(Int32Array::from_iter_values((0..rows).map(|row| if (row, c) == (1, 1999) { changed } else { c + row })))
        };
        let columns = (0..2000).map(|c| (format!("c{c}"), column(c)));
        let batch = RecordBatch::try_from_iter([("id".to_string(), ids(0..i64::from(rows)))].into_iter().chain(columns)).unwrap();
        write(&folder.path().join("s/s.parquet"), [batch]);
    };
    let shell = Shell { folder: folder.path(), mebibytes: 3 << 10 };
    snapshot(0);
    let create = "CREATE INCREMENTAL TABLE t FROM s KEY (id) TRACK (*) AS SELECT id, c0, c1999 FROM input";
    assert_eq!(shell.refresh(Some(create)), format!("published,{rows},0,0,0"));
    snapshot(-1);
    assert_eq!(shell.refresh(None), format!("published,0,1,0,{}", rows - 1));
    assert_eq!(shell.last_line(&["SELECT * FROM t WHERE c1999 < 0"]), "1,1,-1");
}

#[test]
fn ten_thousand_files_and_256_open_at_most() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("s")).unwrap();
    let files = 10_000;
    let file = |number: i64, value: i64| {
        let batch = RecordBatch::try_from_iter([("id", ids(number..number + 1)), ("v", ids(value..value + 1))]).unwrap();
        write(&folder.path().join(format!("s/{number:05}.parquet")), [batch]);
    };
    (0..files).for_each(|number| file(number, 0));
    let shell = Shell { folder: folder.path(), mebibytes: 3 << 10 };
    let create = "CREATE INCREMENTAL TABLE t FROM s KEY (id) TRACK (v) AS SELECT id, v FROM input";
    assert_eq!(shell.refresh(Some(create)), format!("published,{files},0,0,0"));
    file(77, 5);
    assert_eq!(shell.refresh(None), format!("published,0,1,0,{}", files - 1));
    assert_eq!(shell.last_line(&["SELECT * FROM t WHERE v > 0"]), "77,5");
}

/// Every refresh rewrites some rows and adds a file or more; automatic compaction keeps them few.
#[test]
fn many_refreshes_leave_few_files() {
    let folder = tempfile::tempdir().unwrap();
    let shell = Shell { folder: folder.path(), mebibytes: 3 << 10 };
    let (rows, refreshes, limit) = (30_000, 60, 8);
    let source = |step: usize| {
        format!(
            "CREATE OR REPLACE TABLE s AS SELECT value AS id, CASE WHEN value % {refreshes} < {step} THEN 1 ELSE 0 END AS v \
             FROM generate_series({step}, {rows})"
        )
    };
    let create = format!(
        "CREATE INCREMENTAL TABLE t FROM s KEY (id) TRACK (v) WITH (compaction_max_files = {limit}) AS SELECT id, v AS o FROM input"
    );
    let files = "SELECT concat('files ', CAST(count(*) AS VARCHAR)) AS n FROM incremental_files('t')".to_string();
    let mut statements = vec![source(0), create];
    statements.extend((1..=refreshes).flat_map(|step| [source(step), COUNTS.to_string(), files.clone()]));
    statements.push("SELECT count(*), sum(o), min(id) FROM t".to_string());
    let lines = shell.lines(&statements.iter().map(String::as_str).collect::<Vec<_>>());
    let counts: Vec<usize> = lines.iter().filter_map(|line| line.strip_prefix("files ")?.parse().ok()).collect();
    assert_eq!(counts.len(), refreshes);
    assert!(counts.iter().all(|count| *count <= limit), "{counts:?}");
    assert!(counts.iter().any(|count| *count > 2), "a compaction after every run: {counts:?}");
    let rows = rows - refreshes + 1;
    assert_eq!(lines.last(), Some(&format!("{rows},{rows},{refreshes}")));
}
