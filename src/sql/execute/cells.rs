//! Rows of a listing, cell by cell.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, ListBuilder, RecordBatch, StringArray, StringBuilder, UInt64Array};
use arrow::datatypes::TimestampMicrosecondType;
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};

use crate::error::{Error, ErrorCode, Result};

/// A column under construction.
enum Cells {
    Text(Vec<Option<String>>),
    Number(Vec<Option<u64>>),
    Time(Vec<Option<i64>>),
    Flag(Vec<Option<bool>>),
    List(Vec<Option<Vec<String>>>),
}

/// The rows of one listing, column by column.
pub(in crate::sql) struct Rows {
    names: &'static [(&'static str, Kind)],
    columns: Vec<Cells>,
    /// The column of the next cell.
    at: usize,
}

/// What a column holds.
#[derive(Clone, Copy)]
pub(in crate::sql) enum Kind {
    /// Text.
    Text,
    /// A count.
    Number,
    /// Microseconds since 1970, UTC.
    Time,
    /// True or false.
    Flag,
    /// Texts.
    List,
}

use Kind::{Flag, List, Number, Text, Time};

/// The schema of a listing; every column may be null.
pub(in crate::sql) fn schema(names: &[(&str, Kind)]) -> SchemaRef {
    let field = |(name, kind): &(&str, Kind)| {
        let data_type = match kind {
            Text => DataType::Utf8,
            Number => DataType::UInt64,
            Time => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Flag => DataType::Boolean,
            List => DataType::new_list(DataType::Utf8, true),
        };
        Field::new(*name, data_type, true)
    };
    Arc::new(Schema::new(names.iter().map(field).collect::<Vec<_>>()))
}

impl Rows {
    /// No row yet.
    pub(in crate::sql) fn new(names: &'static [(&'static str, Kind)]) -> Self {
        let column = |(_, kind): &(&str, Kind)| match kind {
            Text => Cells::Text(vec![]),
            Number => Cells::Number(vec![]),
            Time => Cells::Time(vec![]),
            Flag => Cells::Flag(vec![]),
            List => Cells::List(vec![]),
        };
        Self { names, columns: names.iter().map(column).collect(), at: 0 }
    }

    /// The next cell of the row.
    pub(in crate::sql) fn text(&mut self, value: Option<String>) {
        if let Some(Cells::Text(cells)) = self.columns.get_mut(self.at) {
            cells.push(value);
        }
        self.at += 1;
    }

    /// The next cell of the row.
    pub(in crate::sql) fn number(&mut self, value: Option<u64>) {
        if let Some(Cells::Number(cells)) = self.columns.get_mut(self.at) {
            cells.push(value);
        }
        self.at += 1;
    }

    /// The next cell of the row.
    pub(in crate::sql) fn time(&mut self, value: Option<i64>) {
        if let Some(Cells::Time(cells)) = self.columns.get_mut(self.at) {
            cells.push(value);
        }
        self.at += 1;
    }

    /// The next cell of the row.
    pub(in crate::sql) fn flag(&mut self, value: Option<bool>) {
        if let Some(Cells::Flag(cells)) = self.columns.get_mut(self.at) {
            cells.push(value);
        }
        self.at += 1;
    }

    /// The next cell of the row.
    pub(in crate::sql) fn list(&mut self, value: Option<Vec<String>>) {
        if let Some(Cells::List(cells)) = self.columns.get_mut(self.at) {
            cells.push(value);
        }
        self.at += 1;
    }

    /// The next cell is the first of a new row.
    pub(in crate::sql) fn next(&mut self) {
        self.at = 0;
    }

    /// The rows as one batch.
    pub(in crate::sql) fn finish(self) -> Result<Vec<RecordBatch>> {
        let array = |cells: Cells| -> ArrayRef {
            match cells {
                Cells::Text(cells) => Arc::new(StringArray::from(cells)),
                Cells::Number(cells) => Arc::new(UInt64Array::from(cells)),
                Cells::Time(cells) => Arc::new(Int64Array::from(cells).reinterpret_cast::<TimestampMicrosecondType>().with_timezone("UTC")),
                Cells::Flag(cells) => Arc::new(BooleanArray::from(cells)),
                Cells::List(cells) => lists(cells),
            }
        };
        let batch = RecordBatch::try_new(schema(self.names), self.columns.into_iter().map(array).collect());
        Ok(vec![batch.map_err(|e| Error::from_datafusion(e.into(), ErrorCode::Internal, "the rows of a listing"))?])
    }
}

fn lists(cells: Vec<Option<Vec<String>>>) -> ArrayRef {
    let mut builder = ListBuilder::new(StringBuilder::new());
    for cell in cells {
        let is_valid = cell.is_some();
        cell.into_iter().flatten().for_each(|text| builder.values().append_value(text));
        builder.append(is_valid);
    }
    Arc::new(builder.finish())
}
