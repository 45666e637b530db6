//! The SQL test suite: one test per `.slt` file below this folder.
//!
//! ```text
//! define/create.slt ──► a fresh session over a scratch folder ──► every record in order
//!                        └ ${WORK_DIR} in the SQL is that folder; `HARNESS …` statements act on it
//! ```
//!
//! `cargo test --features cli --test sql -- cases/` runs the files whose path contains `cases/`.
//! `SLT_COMPLETE=1` rewrites the expected results of the files that run with what the session answers: read the
//! difference before it is committed, for the files are the specification.

mod harness;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use datafusion_incremental::ErrorCode;
use datafusion_sqllogictest::{df_value_validator, value_normalizer};
use libtest_mimic::{Arguments, Failed, Trial};
use sqllogictest::{Runner, strict_column_validator};

use harness::Db;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql-tests");
    let mut files = Vec::new();
    if let Err(error) = collect(&root, &mut files) {
        eprintln!("cannot list {}: {error}", root.display());
        return ExitCode::FAILURE;
    }
    files.sort();
    let complete = std::env::var("SLT_COMPLETE").is_ok_and(|value| value == "1");
    harness::silence_expected_panics();
    let sources = files.clone();
    let coverage = Trial::test("every error code", move || every_error_code(&sources));
    let trials = files
        .into_iter()
        .map(|file| {
            let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
            Trial::test(name, move || run(&file, complete))
        })
        .chain([coverage])
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Codes that no statement reaches, and where they are tested instead.
const ELSEWHERE: [(&str, &str); 2] = [("INTERNAL", "a defect of the crate"), ("VALUE_TOO_LARGE", "a single value beyond 2 GiB")];

/// Every error code is asked for in some file.
fn every_error_code(files: &[PathBuf]) -> Result<(), Failed> {
    let mut text = String::new();
    for file in files {
        text.push_str(&std::fs::read_to_string(file)?);
    }
    let missing: Vec<&str> = ErrorCode::ALL
        .iter()
        .map(|code| code.as_str())
        .filter(|code| !ELSEWHERE.iter().any(|(elsewhere, _)| elsewhere == code))
        .filter(|code| !text.contains(*code))
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("no file asks for {}", missing.join(", ")).into()) }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "slt") {
            files.push(path);
        }
    }
    Ok(())
}

/// Runs one file on a thread with a deep stack: debug builds plan deep expressions recursively.
fn run(file: &Path, complete: bool) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_stack_size(16 << 20).enable_all().build()?;
    let file = file.to_path_buf();
    runtime.block_on(runtime.spawn(async move { run_file(&file, complete).await }))?.map_err(Failed::from)
}

async fn run_file(file: &Path, complete: bool) -> Result<(), String> {
    let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
    let folder = scratch.path().canonicalize().map_err(|e| e.to_string())?;
    let db = Db::open(&folder).await.map_err(|e| e.to_string())?;
    let mut runner = Runner::new(|| {
        let db = db.clone();
        async move { Ok(db) }
    });
    runner.add_label("datafusion-incremental");
    runner.with_column_validator(strict_column_validator);
    runner.with_normalizer(value_normalizer);
    runner.with_validator(df_value_validator);
    if complete {
        runner
            .update_test_file(file, " ", df_value_validator, value_normalizer, strict_column_validator)
            .await
            .map_err(|e| e.to_string())?;
    } else {
        runner.run_file_async(file).await.map_err(|e| e.display(false).to_string())?;
    }
    db.close().await;
    Ok(())
}
