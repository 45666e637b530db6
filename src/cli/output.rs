//! Results as text.

use std::io::{self, Write};
use std::sync::Arc;

use clap::ValueEnum;
use datafusion::arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StringArray};
use datafusion::arrow::csv::WriterBuilder;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::json::writer::{JsonArray, JsonFormat, LineDelimited, WriterBuilder as JsonWriterBuilder};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::arrow::util::pretty::pretty_format_batches_with_options;

use crate::engine::Outcome;

/// The format of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A drawn table.
    Table,
    /// Comma-separated values with a header.
    Csv,
    /// Tab-separated values with a header.
    Tsv,
    /// One JSON array of objects for each result.
    Json,
    /// One JSON object a line.
    NdJson,
    /// A drawn table, shortened in the interactive shell.
    Automatic,
}

impl Format {
    /// Whether standard output must hold nothing but data.
    fn for_machines(self) -> bool {
        !matches!(self, Self::Table | Self::Automatic)
    }
}

/// How results are printed.
#[derive(Debug, Clone, Copy)]
pub struct PrintOptions {
    pub format: Format,
    pub quiet: bool,
    /// The rows of a drawn table that are shown; `None`: all.
    pub max_rows: Option<usize>,
}

/// Prints one result and, unless quiet, its count and time.
pub fn print(outcome: &Outcome, elapsed: std::time::Duration, options: &PrintOptions) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if !outcome.schema.fields().is_empty() {
        write_rows(&mut out, outcome, options)?;
    }
    if !options.quiet {
        let summary = summary(outcome, elapsed);
        if options.format.for_machines() { writeln!(io::stderr(), "{summary}")? } else { writeln!(out, "{summary}\n")? }
    }
    out.flush()
}

fn summary(outcome: &Outcome, elapsed: std::time::Duration) -> String {
    let rows: usize = outcome.batches.iter().map(RecordBatch::num_rows).sum();
    let seconds = format!("Elapsed {:.3} seconds.", elapsed.as_secs_f64());
    match (outcome.schema.fields().is_empty(), rows) {
        (true, _) => seconds,
        (false, 1) => format!("1 row fetched. {seconds}"),
        (false, rows) => format!("{rows} rows fetched. {seconds}"),
    }
}

/// Writes the rows in the chosen format; an empty result still names its columns.
pub fn write_rows(out: &mut impl Write, outcome: &Outcome, options: &PrintOptions) -> io::Result<()> {
    // One empty batch carries the column names of an empty result.
    let empty = [RecordBatch::new_empty(outcome.schema.clone())];
    let batches = if outcome.batches.is_empty() { &empty[..] } else { &outcome.batches };
    let written = match options.format {
        Format::Table | Format::Automatic => write_table(out, batches, options.max_rows),
        Format::Csv => write_separated(out, batches, b','),
        Format::Tsv => write_separated(out, batches, b'\t'),
        Format::Json => write_json::<JsonArray>(out, &outcome.batches).and_then(|()| Ok(writeln!(out)?)),
        Format::NdJson => write_json::<LineDelimited>(out, &outcome.batches),
    };
    written.map_err(|error| match error {
        ArrowError::IoError(_, error) => error,
        other => io::Error::other(other),
    })
}

fn write_table(out: &mut impl Write, batches: &[RecordBatch], max_rows: Option<usize>) -> Result<(), ArrowError> {
    let total: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let mut left = max_rows.unwrap_or(usize::MAX);
    let shown: Vec<RecordBatch> = batches
        .iter()
        .map(|batch| {
            let rows = batch.num_rows().min(left);
            left -= rows;
            batch.slice(0, rows)
        })
        .collect();
    let options = FormatOptions::default().with_display_error(true).with_null("NULL");
    writeln!(out, "{}", pretty_format_batches_with_options(&shown, &options)?)?;
    if let Some(hidden) = max_rows.and_then(|max| total.checked_sub(max)).filter(|hidden| *hidden > 0) {
        writeln!(out, "{hidden} more rows are not shown; start the shell with --maxrows unlimited to see them")?;
    }
    Ok(())
}

fn write_separated(out: &mut impl Write, batches: &[RecordBatch], delimiter: u8) -> Result<(), ArrowError> {
    let mut writer = WriterBuilder::new().with_header(true).with_delimiter(delimiter).build(out);
    batches.iter().try_for_each(|batch| writer.write(&flattened(batch)?))
}

/// Nested values as text: the format has no other place for them.
fn flattened(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let options = FormatOptions::default();
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        if !field.data_type().is_nested() {
            fields.push(Arc::clone(field));
            columns.push(Arc::clone(column));
            continue;
        }
        let formatter = ArrayFormatter::try_new(column.as_ref(), &options)?;
        let text = |row: usize| column.is_valid(row).then(|| formatter.value(row).try_to_string()).transpose();
        let texts: StringArray = (0..column.len()).map(text).collect::<Result<Vec<_>, _>>()?.into_iter().collect();
        fields.push(Arc::new(Field::new(field.name(), DataType::Utf8, true)));
        columns.push(Arc::new(texts) as ArrayRef);
    }
    RecordBatch::try_new_with_options(
        Arc::new(Schema::new(fields)),
        columns,
        &RecordBatchOptions::new().with_row_count(Some(batch.num_rows())),
    )
}

fn write_json<F: JsonFormat>(out: &mut impl Write, batches: &[RecordBatch]) -> Result<(), ArrowError> {
    let mut writer = JsonWriterBuilder::new().with_explicit_nulls(true).build::<_, F>(out);
    batches.iter().try_for_each(|batch| writer.write(batch))?;
    writer.finish()
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Int64Array, StructArray};

    use super::*;

    fn outcome() -> Outcome {
        let columns: [(&str, ArrayRef); 2] =
            [("id", Arc::new(Int64Array::from(vec![1, i64::MAX]))), ("x", Arc::new(StringArray::from(vec![Some("a,\"b"), None])))];
        let batch = RecordBatch::try_from_iter_with_nullable(columns.map(|(n, c)| (n, c, true))).unwrap();
        Outcome { schema: batch.schema(), batches: vec![batch], failed: false }
    }

    fn text(outcome: &Outcome, format: Format, max_rows: Option<usize>) -> String {
        let mut out = Vec::new();
        write_rows(&mut out, outcome, &PrintOptions { format, quiet: true, max_rows }).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_format_holds_the_values() {
        let rows = outcome();
        assert_eq!(text(&rows, Format::Csv, None), "id,x\n1,\"a,\"\"b\"\n9223372036854775807,\n");
        assert_eq!(text(&rows, Format::Tsv, None), "id\tx\n1\t\"a,\"\"b\"\n9223372036854775807\t\n");
        assert_eq!(text(&rows, Format::Json, None), "[{\"id\":1,\"x\":\"a,\\\"b\"},{\"id\":9223372036854775807,\"x\":null}]\n");
        assert_eq!(text(&rows, Format::NdJson, None), "{\"id\":1,\"x\":\"a,\\\"b\"}\n{\"id\":9223372036854775807,\"x\":null}\n");
        assert!(text(&rows, Format::Table, None).contains("| 9223372036854775807 | NULL "));
    }

    #[test]
    fn nested_values_are_text_where_the_format_has_no_place_for_them() {
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let fields = vec![Arc::new(Field::new("id", DataType::Int64, false))];
        let row: ArrayRef = Arc::new(StructArray::new(fields.into(), vec![ids], Some(vec![true, false].into())));
        let batch = RecordBatch::try_from_iter_with_nullable([("row", row, true)]).unwrap();
        let rows = Outcome { schema: batch.schema(), batches: vec![batch], failed: false };
        assert_eq!(text(&rows, Format::Csv, None), "row\n{id: 1}\n\"\"\n");
    }

    #[test]
    fn a_shortened_table_says_so() {
        let shown = text(&outcome(), Format::Automatic, Some(1));
        assert!(!shown.contains("NULL") && shown.contains("1 more rows are not shown"), "{shown}");
    }

    #[test]
    fn an_empty_result_names_its_columns() {
        let empty = Outcome { batches: vec![], ..outcome() };
        assert_eq!(text(&empty, Format::Csv, None), "id,x\n");
        assert_eq!(text(&empty, Format::Json, None), "[]\n");
        assert!(text(&empty, Format::Table, None).contains("| id | x |"));
    }
}
