//! `incremental-cli`: a shell for DataFusion SQL with the statements of incremental tables.
//!
//! ```text
//! -c, -f, stdin, or lines of a terminal ─parse─► statements ─one at a time─► engine ─► rows in the chosen format
//!                                                    Ctrl-C cancels ─┘  └─ progress bars on a terminal
//! ```
//!
//! Results are collected before they are printed: a result larger than memory belongs into `COPY`. Standard output
//! holds results only when the format is for machines; times go to standard error then.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::todo, clippy::unimplemented))]

mod args;
mod complete;
mod engine;
mod input;
mod output;
mod progress;
mod repl;
mod schedules;
mod script;
#[cfg(test)]
mod testing;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use datafusion_incremental::error::{Error, ErrorCode, Result};

use args::{Action, Args};
use engine::Session;
use script::Shell;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    match run(args).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every statement succeeded.
async fn run(args: Args) -> Result<bool> {
    let session = Session::open(&args.root, args.memory_limit).await?;
    for warning in session.warnings() {
        eprintln!("{warning}");
    }
    if let Some(Action::RunSchedules { once }) = args.action {
        return schedules::run(&session, once, args.quiet).await;
    }
    let interactive = args.command.is_empty() && args.file.is_empty() && std::io::stdin().is_terminal();
    let mut shell = Shell::new(session, args.print_options(interactive));
    for file in args.rc_files(interactive) {
        if !shell.run_file(&file).await? {
            return Ok(false);
        }
    }
    if interactive {
        return repl::run(&mut shell).await.map(|()| true);
    }
    for file in &args.file {
        if !shell.run_file(file).await? {
            return Ok(false);
        }
    }
    for command in &args.command {
        if !shell.run(command).await {
            return Ok(false);
        }
    }
    if args.command.is_empty() && args.file.is_empty() {
        let text = std::io::read_to_string(std::io::stdin());
        let text = text.map_err(|e| {
            Error::new(ErrorCode::StatementInvalid, format!("standard input cannot be read: {e}. Remedy: give UTF-8 text, or use -c or -f"))
        })?;
        return Ok(shell.run(&text).await);
    }
    Ok(true)
}
