//! `HARNESS …`: what a test file does to the world around the session.
//!
//! | statement | effect |
//! | --- | --- |
//! | `HARNESS RESTART [VERSION v] [READ ONLY]` | a new session over the same folder; handlers get version `v` |
//! | `HARNESS ROWS <statement>` | the rows of a statement whose runs may have failed |
//! | `HARNESS BACKGROUND <name> <statement>`, `HARNESS JOIN <name>` | starts a statement; waits for it and answers what it answered |
//! | `HARNESS ENTERED`, `HARNESS OPEN`, `HARNESS SHUT` | waits until the handler `gate` is called; lets it go on; holds it back again |
//! | `HARNESS TABLE <name> <fixture> <step>` | registers a table that SQL cannot make (fixtures.rs) |
//! | `HARNESS COUNTS` | rows seen by `counted(x)`, scans of the counting table; both start again at 0 |
//! | `HARNESS WRITE <path>` and the text on the next lines | writes a file |
//! | `HARNESS RM <path>`, `HARNESS TRUNCATE <path>`, `HARNESS COPYFILE <from> <to>` | on files (RM also on folders) |
//! | `HARNESS DAMAGE <folder> <suffix>`, `HARNESS LOSE <folder> <suffix>` | flips a byte of every file below, or removes it |
//! | `HARNESS FILES <folder> <suffix>` | how many files below a folder end so |
//! | `HARNESS FAULT <fault>` | what the store `faulty://store/` does wrong from now on (store.rs) |
//! | `HARNESS OUTSIDE <table> [KEY a,b] [FAIL n] [DOWN] [HOLD]`, `HARNESS HELD` | what the outside system `TYPE outside` says of a table (`*` is the system); waits until a read is held back |
//! | `HARNESS SLEEP <ms>` | waits |

use std::path::{Path, PathBuf};
use std::time::Duration;

use datafusion_sqllogictest::DFColumnType;
use sqllogictest::DBOutput;

use super::host::{Host, Settings};
use super::outside::Declared;
use super::store::Fault;
use super::{Db, HarnessError, Outcome, fixtures, query};

/// One `HARNESS` statement: its words, and the lines below the first.
pub struct Command {
    verb: String,
    rest: String,
    body: String,
}

/// The command in `sql`, if it is one.
pub fn parse(sql: &str) -> Option<Command> {
    let text = sql.trim();
    let rest = text.strip_prefix("HARNESS ")?;
    let (verb, rest) = rest.split_once([' ', '\n']).map_or((rest, ""), |(verb, rest)| (verb, rest));
    let (line, body) = rest.split_once('\n').unwrap_or((rest, ""));
    let whole = matches!(verb, "ROWS" | "BACKGROUND");
    Some(Command {
        verb: verb.trim_end_matches(';').to_string(),
        rest: if whole { rest } else { line }.trim().trim_end_matches(';').to_string(),
        body: body.to_string(),
    })
}

const DONE: Outcome = Ok(DBOutput::StatementComplete(0));

impl Command {
    /// Does it.
    pub async fn run(&self, db: &Db) -> Outcome {
        match self.verb.as_str() {
            "RESTART" => self.restart(db).await,
            "ROWS" => {
                let host = db.state.lock().await.host.clone();
                query(&host, &self.rest, true).await
            }
            "BACKGROUND" => self.background(db).await,
            "JOIN" => self.join(db).await,
            "ENTERED" => {
                let gate = db.state.lock().await.host.gate.clone();
                gate.entered().await.map_err(HarnessError)?;
                DONE
            }
            "OPEN" => {
                db.state.lock().await.host.gate.open();
                DONE
            }
            "SHUT" => {
                db.state.lock().await.host.gate.shut();
                DONE
            }
            "FAULT" => {
                let fault = Fault::parse(&self.rest).ok_or_else(|| HarnessError(format!("the store has no fault {:?}", self.rest)))?;
                db.state.lock().await.store.set(fault);
                DONE
            }
            "TABLE" => self.table(db).await,
            "OUTSIDE" => self.outside(db).await,
            "HELD" => {
                let outside = db.state.lock().await.host.outside.clone();
                if outside.held().await { DONE } else { Err(HarnessError::new("no read was held back within a minute")) }
            }
            "COUNTS" => {
                let (rows, scans) = db.state.lock().await.host.probes.take();
                numbers(&[rows, scans])
            }
            "SLEEP" => {
                let millis = self.rest.parse().map_err(|_| HarnessError::new("SLEEP takes milliseconds"))?;
                tokio::time::sleep(Duration::from_millis(millis)).await;
                DONE
            }
            _ => self.on_files(),
        }
    }

    fn words(&self) -> Vec<&str> {
        self.rest.split_whitespace().collect()
    }

    async fn restart(&self, db: &Db) -> Outcome {
        let words = self.words();
        let mut settings = Settings::default();
        if let Some(at) = words.iter().position(|word| *word == "VERSION") {
            settings.handler_version = words.get(at + 1).map_or_else(String::new, |word| (*word).to_string());
        }
        settings.read_only = words.contains(&"READ");
        let mut state = db.state.lock().await;
        settings.outside = state.host.outside.clone();
        state.host = Host::open(&db.folder, &settings, &state.store.clone()).await?;
        DONE
    }

    async fn background(&self, db: &Db) -> Outcome {
        let (name, sql) =
            self.rest.split_once(char::is_whitespace).ok_or_else(|| HarnessError::new("BACKGROUND takes a name and a statement"))?;
        let mut state = db.state.lock().await;
        let (host, sql) = (state.host.clone(), sql.to_string());
        let task = tokio::runtime::Handle::current().spawn(async move { query(&host, &sql, false).await });
        state.background.push((name.to_string(), task));
        DONE
    }

    async fn join(&self, db: &Db) -> Outcome {
        let task = {
            let mut state = db.state.lock().await;
            let at = state.background.iter().position(|(name, _)| *name == self.rest);
            let at = at.ok_or_else(|| HarnessError(format!("nothing runs in the background as {:?}", self.rest)))?;
            state.background.swap_remove(at).1
        };
        match tokio::time::timeout(Duration::from_secs(90), task).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => Err(HarnessError(format!("the background statement ended: {error}"))),
            Err(_) => Err(HarnessError::new("the background statement did not end within 90 s")),
        }
    }

    async fn table(&self, db: &Db) -> Outcome {
        let words = self.words();
        let [name, fixture, step] = words[..] else { return Err(HarnessError::new("TABLE takes a name, a fixture and a step")) };
        let host = db.state.lock().await.host.clone();
        let provider = fixtures::table(fixture, step, &host.probes).map_err(|e| HarnessError::of(&e))?;
        host.context().deregister_table(name).map_err(|e| HarnessError::of(&e))?;
        host.context().register_table(name, provider).map_err(|e| HarnessError::of(&e))?;
        DONE
    }

    async fn outside(&self, db: &Db) -> Outcome {
        let words = self.words();
        let after = |word: &str| words.iter().position(|found| *found == word).and_then(|at| words.get(at + 1));
        let declared = Declared {
            key: after("KEY").map_or(vec![], |key| key.split(',').map(str::to_string).collect()),
            fail_after: after("FAIL").and_then(|rows| rows.parse().ok()),
            is_down: words.contains(&"DOWN"),
            is_held: words.contains(&"HOLD"),
        };
        let table = words.first().copied().ok_or_else(|| HarnessError::new("OUTSIDE takes the name of a table"))?;
        db.state.lock().await.host.outside.declare(table, declared);
        DONE
    }

    fn on_files(&self) -> Outcome {
        let words = self.words();
        match (self.verb.as_str(), &words[..]) {
            ("WRITE", [path]) => {
                if let Some(folder) = Path::new(path).parent() {
                    std::fs::create_dir_all(folder)?;
                }
                std::fs::write(path, if self.body.is_empty() { String::new() } else { format!("{}\n", self.body.trim_end()) })?;
            }
            ("RM", [path]) if Path::new(path).is_dir() => std::fs::remove_dir_all(path)?,
            ("RM", [path]) => std::fs::remove_file(path)?,
            ("TRUNCATE", [path]) => std::fs::write(path, b"")?,
            ("COPYFILE", [from, to]) => {
                if let Some(folder) = Path::new(to).parent() {
                    std::fs::create_dir_all(folder)?;
                }
                std::fs::copy(from, to)?;
            }
            ("FILES", [folder, suffix]) => return numbers(&[below(Path::new(folder), suffix)?.len() as u64]),
            ("DAMAGE" | "LOSE", [folder, suffix]) => {
                let files = below(Path::new(folder), suffix)?;
                if files.is_empty() {
                    return Err(HarnessError(format!("no file below {folder} ends with {suffix}")));
                }
                for file in files {
                    if self.verb == "LOSE" { std::fs::remove_file(file)? } else { damage(&file)? }
                }
            }
            _ => return Err(HarnessError(format!("the harness has no {} with {} words", self.verb, words.len()))),
        }
        DONE
    }
}

/// Every file below `folder` whose name ends with `suffix`; `data.parquet` stands for Parquet files that are no index.
fn below(folder: &Path, suffix: &str) -> Result<Vec<PathBuf>, HarnessError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(below(&path, suffix)?);
            continue;
        }
        let name = path.file_name().map(|name| name.to_string_lossy().to_string()).unwrap_or_default();
        let matches = match suffix {
            "data.parquet" => name.ends_with(".parquet") && !name.ends_with(".index.parquet"),
            _ => name.ends_with(suffix),
        };
        if matches {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Flips one bit in the middle of a file: its length and its ends stay.
fn damage(file: &Path) -> Result<(), HarnessError> {
    let mut bytes = std::fs::read(file)?;
    let middle = bytes.len() / 2;
    if let Some(byte) = bytes.get_mut(middle) {
        *byte ^= 0x10;
    }
    std::fs::remove_file(file)?;
    std::fs::write(file, bytes)?;
    Ok(())
}

fn numbers(values: &[u64]) -> Outcome {
    Ok(DBOutput::Rows { types: vec![DFColumnType::Integer; values.len()], rows: vec![values.iter().map(u64::to_string).collect()] })
}
