//! The interactive shell.

use clap::ValueEnum;
use datafusion_incremental::error::{Error, ErrorCode, Result};
use datafusion_incremental::redact::holds_secret;
use datafusion_incremental::sql::quote_identifier;
use datafusion_incremental::sql::verbs::{Family, VerbSpec};
use rustyline::config::Config;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Editor};

use crate::args::home_file;
use crate::complete::LineHelper;
use crate::engine::Engine;
use crate::input::is_exit;
use crate::output::Format;
use crate::script::Shell;

const HELP: &str = "\
Statements end with ';'. Ctrl-C cancels the running statement, Ctrl-D or \\q leaves.

  \\d            the tables                  \\d NAME       the columns of a table
  \\h            the verbs of CALL           \\pset FORMAT  table, csv, tsv, json, nd-json, automatic
  \\quiet        counts and times on or off  \\?            this help

  CREATE INCREMENTAL TABLE t FROM source KEY (id) AS SELECT id, upper(name) AS name FROM input;
  REFRESH t;    EXPLAIN REFRESH t;    SELECT * FROM t VERSION AS OF 1;    SHOW CREATE TABLE t;
  CREATE SYNCED TABLE s FROM source WITH (sync_type = 'full_refresh');    CALL sync.reload('s');    SELECT * FROM sync_tables();";

/// Reads entries until the user leaves. A failing statement does not end the shell.
pub async fn run<E: Engine>(shell: &mut Shell<E>) -> Result<()> {
    let config = Config::builder().completion_type(CompletionType::List).history_ignore_space(true).build();
    let mut editor: Editor<LineHelper, FileHistory> = Editor::with_config(config).map_err(terminal)?;
    editor.set_helper(Some(LineHelper::default()));
    let history = home_file(".incremental_history");
    if let Some(file) = &history {
        // The first session has no history yet.
        let _ = editor.load_history(file);
    }
    if !shell.options.quiet {
        println!("datafusion-incremental {}; \\? for help", env!("CARGO_PKG_VERSION"));
    }
    loop {
        if let Some(helper) = editor.helper_mut() {
            helper.set_tables(shell.engine.tables());
        }
        match editor.readline("> ") {
            Ok(entry) if is_exit(&entry) => break,
            Ok(entry) => {
                // Before it runs: an entry that ends the process is the one to look up. Secrets are not for looking up.
                let kept = !holds_secret(&entry) && editor.add_history_entry(entry.as_str()).unwrap_or(false);
                if kept
                    && let Some(file) = &history
                    && let Err(error) = editor.append_history(file)
                {
                    eprintln!("the history was not saved to {}: {error}", file.display());
                }
                run_entry(shell, entry.trim()).await;
            }
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(terminal(error)),
        }
    }
    Ok(())
}

fn terminal(error: ReadlineError) -> Error {
    Error::new(ErrorCode::StatementInvalid, format!("the terminal cannot be used: {error}. Remedy: run statements with -c or -f"))
}

async fn run_entry<E: Engine>(shell: &mut Shell<E>, entry: &str) {
    match Command::parse(entry) {
        None => {
            shell.run(entry).await;
        }
        Some(Command::Sql(sql)) => {
            shell.run(&sql).await;
        }
        Some(Command::Quiet) => shell.options.quiet = !shell.options.quiet,
        Some(Command::Format(format)) => shell.options.format = format,
        Some(Command::Print(text)) => println!("{text}"),
        Some(Command::Refused(text)) => eprintln!("{text}"),
    }
}

/// A command that starts with a backslash.
#[derive(Debug, PartialEq)]
enum Command {
    Sql(String),
    Quiet,
    Format(Format),
    Print(String),
    Refused(String),
}

impl Command {
    fn parse(entry: &str) -> Option<Self> {
        let line = entry.strip_prefix('\\')?.trim().trim_end_matches(';').trim_end();
        let (word, argument) = line.split_once(char::is_whitespace).map_or((line, ""), |(word, rest)| (word, rest.trim()));
        Some(match (word, argument) {
            ("?", _) => Self::Print(HELP.into()),
            ("h", _) => Self::Print(verbs()),
            ("d", "") => Self::Sql("SHOW TABLES".into()),
            ("d", name) => {
                Self::Sql(format!("DESCRIBE {}", if name.contains(['"', '.']) { name.to_string() } else { quote_identifier(name) }))
            }
            ("quiet", "") => Self::Quiet,
            ("pset", name) => match Format::from_str(name.trim_start_matches("format").trim(), true) {
                Ok(format) => Self::Format(format),
                Err(_) => Self::Refused(format!("{name:?} is no format: use table, csv, tsv, json, nd-json or automatic")),
            },
            _ => Self::Refused(format!("\\{line} is no command: \\? lists them")),
        })
    }
}

fn verbs() -> String {
    let verbs = Family::ALL.into_iter().flat_map(Family::verbs);
    let line = |verb: &VerbSpec| format!("  CALL {:<57} {}", format!("{}.{}", verb.family.as_str(), verb.signature()), verb.doc);
    verbs.map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_start_with_a_backslash() {
        assert_eq!(Command::parse("SELECT 1;"), None);
        assert_eq!(Command::parse("\\d;"), Some(Command::Sql("SHOW TABLES".into())));
        assert_eq!(Command::parse("\\d My"), Some(Command::Sql("DESCRIBE \"My\"".into())));
        assert_eq!(Command::parse("\\pset format csv"), Some(Command::Format(Format::Csv)));
        assert_eq!(Command::parse("\\quiet"), Some(Command::Quiet));
        assert!(matches!(Command::parse("\\pset x"), Some(Command::Refused(_))));
        assert!(matches!(Command::parse("\\nothing"), Some(Command::Refused(_))));
        assert!(matches!(Command::parse("\\?"), Some(Command::Print(_))));
    }
}
