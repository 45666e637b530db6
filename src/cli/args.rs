//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::output::{Format, PrintOptions};

/// SQL over files, with incremental tables.
#[derive(Debug, Parser)]
#[command(name = "incremental-cli", version, about, long_about = None)]
pub struct Args {
    /// What to do instead of running statements
    #[command(subcommand)]
    pub action: Option<Action>,

    /// Runs the statements and exits; may be given several times
    #[arg(short = 'c', long, value_name = "SQL")]
    pub command: Vec<String>,

    /// Runs the statements of a file and exits; may be given several times
    #[arg(short = 'f', long, value_name = "FILE")]
    pub file: Vec<PathBuf>,

    /// Runs a file first; without it the interactive shell runs ~/.incrementalrc if there is one
    #[arg(short = 'r', long, value_name = "FILE")]
    pub rc: Option<Vec<PathBuf>>,

    /// The format of results
    #[arg(long, value_enum, default_value_t = Format::Automatic)]
    pub format: Format,

    /// Prints results only: no row counts, no times, no progress
    #[arg(short = 'q', long)]
    pub quiet: bool,

    /// The memory that queries and refreshes may use together, for example 256M or 1G; larger work spills to disk
    #[arg(short = 'm', long, value_name = "SIZE", value_parser = parse_size)]
    pub memory_limit: Option<usize>,

    /// The folder of tables without a LOCATION; the next process finds them there again
    #[arg(long, value_name = "DIR", default_value = "./warehouse")]
    pub root: PathBuf,

    /// The rows that the interactive shell shows of a table, or `unlimited`
    #[arg(long, value_name = "N", default_value = "40", value_parser = parse_max_rows)]
    pub maxrows: MaxRows,
}

/// What the shell does beside running statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum Action {
    /// Runs what the schedules of the tables under --root say is due, until it is interrupted
    RunSchedules {
        /// Runs what is due now and ends; the exit status says whether a run failed
        #[arg(long)]
        once: bool,
    },
}

/// How many rows are shown; `None`: all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxRows(pub Option<usize>);

impl Args {
    /// How results are printed. A script's output is never shortened.
    pub fn print_options(&self, interactive: bool) -> PrintOptions {
        let max_rows = if interactive && self.format == Format::Automatic { self.maxrows.0 } else { None };
        PrintOptions { format: self.format, quiet: self.quiet, max_rows }
    }

    /// The files to run first.
    pub fn rc_files(&self, interactive: bool) -> Vec<PathBuf> {
        match &self.rc {
            Some(files) => files.clone(),
            None if interactive => home_file(".incrementalrc").into_iter().filter(|file| file.exists()).collect(),
            None => Vec::new(),
        }
    }
}

/// A file in the user's home folder.
pub fn home_file(name: &str) -> Option<PathBuf> {
    let home = std::env::var_os("HOME").or_else(|| std::env::var_os("USERPROFILE"))?;
    Some(PathBuf::from(home).join(name))
}

/// `256M`, `1G`, `1024` (bytes).
pub fn parse_size(text: &str) -> Result<usize, String> {
    let refused = || format!("{text:?} is not a size: write a whole number and K, M, G or T, for example 256M or 1G");
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(refused()),
    };
    let bytes = number.parse::<usize>().ok().and_then(|n| n.checked_mul(1usize.checked_shl(shift)?));
    bytes.filter(|n| *n > 0).ok_or_else(refused)
}

fn parse_max_rows(text: &str) -> Result<MaxRows, String> {
    if ["unlimited", "inf", "none"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return Ok(MaxRows(None));
    }
    text.parse().map(|n| MaxRows(Some(n))).map_err(|_| format!("{text:?} is neither a number of rows nor `unlimited`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("256M"), Ok(256 << 20));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        assert_eq!(parse_size("1024"), Ok(1024));
        for bad in ["", "M", "-1G", "1.5G", "0", "1X", "99999999999999999999T"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_flags_are_those_of_the_documentation() {
        let args = Args::parse_from([
            "x", "-c", "SELECT 1", "-c", "SELECT 2", "-f", "a.sql", "--rc", "b.sql", "-q", "-m", "1G", "--root", "w", "--format", "nd-json",
        ]);
        assert_eq!((args.command.len(), args.file.len(), args.quiet, args.memory_limit), (2, 1, true, Some(1 << 30)));
        assert_eq!((args.format, args.root, args.maxrows), (Format::NdJson, PathBuf::from("w"), MaxRows(Some(40))));
        for format in ["table", "csv", "tsv", "json", "nd-json", "automatic"] {
            assert!(Args::try_parse_from(["x", "--format", format]).is_ok(), "{format}");
        }
        assert!(Args::try_parse_from(["x", "--maxrows", "few"]).is_err());
    }
}
