//! One batch in the making: a builder a column, and the words for a value that cannot be read.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{Field, Schema, SchemaRef};

use super::column::{ColumnBuilder, ValueKind};
use super::frame::fields;
use super::unreadable;
use super::value::BadValue;
use crate::error::{Error, ErrorCode, Result};
use crate::sync::postgres::failure::Subject;
use crate::sync::postgres::options::OutOfRange;

/// The largest capacity that is made before rows come.
const ROWS_AHEAD: usize = 8_192;

/// What a COPY's rows are made of.
#[derive(Debug, Clone)]
pub(in crate::sync::postgres) struct RowShape {
    /// The columns, in order.
    columns: Vec<(String, ValueKind)>,
    /// The columns among them that make up the key, to name a row by.
    key: Vec<usize>,
    pub(super) batch_rows: usize,
    out_of_range: OutOfRange,
    schema: SchemaRef,
}

impl RowShape {
    pub(in crate::sync::postgres) fn new(columns: Vec<(String, ValueKind)>, out_of_range: OutOfRange) -> Self {
        let fields: Vec<Field> = columns.iter().map(|(name, kind)| Field::new(name, kind.data_type(), true)).collect();
        Self { columns, key: vec![], batch_rows: ROWS_AHEAD, out_of_range, schema: Arc::new(Schema::new(fields)) }
    }

    /// The same rows, named by these columns, in batches of at most this many.
    pub(in crate::sync::postgres) fn with_batches(self, key: Vec<usize>, batch_rows: usize) -> Self {
        Self { key, batch_rows: batch_rows.max(1), ..self }
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }
}

/// Collects rows.
#[derive(Debug)]
pub(super) struct BatchBuilder {
    shape: RowShape,
    columns: Vec<ColumnBuilder>,
    rows: usize,
    bytes: usize,
}

impl BatchBuilder {
    pub(super) fn new(shape: RowShape) -> Self {
        let capacity = shape.batch_rows.min(ROWS_AHEAD);
        let columns = shape.columns.iter().map(|(_, kind)| ColumnBuilder::new(kind, capacity, shape.out_of_range)).collect();
        Self { shape, columns, rows: 0, bytes: 0 }
    }

    pub(super) fn shape(&self) -> &RowShape {
        &self.shape
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// About what the rows take: their bytes on the wire, which nulls and short values exceed in memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends a row of exactly as many fields as there are columns.
    pub(super) fn append(&mut self, row: &[u8], subject: &Subject) -> Result<()> {
        self.rows += 1;
        self.bytes += row.len() + 4 * self.columns.len();
        for (index, (column, field)) in self.columns.iter_mut().zip(fields(row)).enumerate() {
            match field {
                None => column.append_null(),
                Some(bytes) => {
                    if let Err(bad) = column.append(bytes) {
                        return Err(self.refusal(index, &bad, row, subject));
                    }
                }
            }
        }
        Ok(())
    }

    /// The batch of all rows so far; the builder is empty again.
    pub(super) fn finish(&mut self, subject: &Subject) -> Result<RecordBatch> {
        // The next batch has about as many rows.
        let columns: Vec<ArrayRef> = self.columns.iter_mut().map(|column| column.finish(self.rows)).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        (self.rows, self.bytes) = (0, 0);
        RecordBatch::try_new_with_options(Arc::clone(&self.shape.schema), columns, &options)
            .map_err(|error| Error::internal(format!("{subject}: {error}")))
    }

    fn refusal(&self, column: usize, bad: &BadValue, row: &[u8], subject: &Subject) -> Error {
        let (name, kind) = &self.shape.columns[column];
        let place = format!("column {name:?}{}", self.row_name(row));
        match bad {
            BadValue::Protocol => unreadable(subject),
            BadValue::Special(what) => subject.error(
                ErrorCode::ValueOutOfRange,
                format!("{place} holds {what}, which has no counterpart in {}", kind.data_type()),
                "correct the source, or set out_of_range = 'null' on the connection to read such values as null",
            ),
            BadValue::DoesNotFit(what) if matches!(kind, ValueKind::Decimal(..)) => subject.error(
                ErrorCode::ValueOutOfRange,
                format!("{place} holds {what}, which {} does not hold", kind.data_type()),
                "resync the table (CALL sync.resync), which measures a numeric without declared digits anew, or correct the source",
            ),
            BadValue::DoesNotFit(what) => subject.error(
                ErrorCode::ValueOutOfRange,
                format!("{place} holds {what}, which {} does not hold", kind.data_type()),
                "correct the source, resync the table where its type has widened, or leave the column out with enabled_columns",
            ),
        }
    }

    /// Names the row by its key, as far as the key is read and readable.
    fn row_name(&self, row: &[u8]) -> String {
        let values: Vec<String> = self.shape.key.iter().filter_map(|&index| self.key_text(index, row)).collect();
        if values.is_empty() { String::new() } else { format!(" of the row with {}", values.join(", ")) }
    }

    fn key_text(&self, index: usize, row: &[u8]) -> Option<String> {
        let (name, kind) = self.shape.columns.get(index)?;
        let mut column = ColumnBuilder::new(kind, 1, OutOfRange::Error);
        column.append(fields(row).nth(index)??).ok()?;
        let array = column.finish(0);
        let text = ArrayFormatter::try_new(array.as_ref(), &FormatOptions::default()).ok()?.value(0).try_to_string().ok()?;
        Some(format!("{name} = {text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(fields: &[Option<&[u8]>]) -> Vec<u8> {
        let mut bytes = vec![];
        for field in fields {
            bytes.extend(field.map_or(-1, |f| f.len() as i32).to_be_bytes());
            bytes.extend_from_slice(field.unwrap_or_default());
        }
        bytes
    }

    fn shape(out_of_range: OutOfRange) -> RowShape {
        let list = ValueKind::List(Box::new(ValueKind::Date));
        let columns = [("id", ValueKind::Int32), ("t", ValueKind::Timestamp), ("l", list)].map(|(name, kind)| (name.to_string(), kind));
        RowShape::new(columns.to_vec(), out_of_range).with_batches(vec![0], 10)
    }

    #[test]
    fn a_special_value_names_its_column_and_row() {
        let mut batch = BatchBuilder::new(shape(OutOfRange::Error));
        let subject = Subject::connection("pg");
        let bad = row(&[Some(&7_i32.to_be_bytes()), Some(&i64::MAX.to_be_bytes()), None]);
        let error = batch.append(&bad, &subject).unwrap_err();
        assert_eq!(error.code(), ErrorCode::ValueOutOfRange);
        assert!(error.message().contains(r#"column "t" of the row with id = 7 holds infinity"#), "{error}");
    }

    #[test]
    fn special_values_are_nulls_where_the_connection_says_so_elements_too() {
        let mut batch = BatchBuilder::new(shape(OutOfRange::Null));
        let dates = [1_i32, 0, 1082, 2, 1, 4, i32::MAX, 4, 0].map(i32::to_be_bytes).concat();
        let good = row(&[None, Some(&i64::MIN.to_be_bytes()), Some(&dates)]);
        batch.append(&good, &Subject::connection("pg")).unwrap();
        let batch = batch.finish(&Subject::connection("pg")).unwrap();
        assert_eq!(batch.num_rows(), 1);
        assert!(batch.columns()[..2].iter().all(|column| column.is_null(0)));
        let shown = ArrayFormatter::try_new(batch.column(2), &FormatOptions::default().with_null("NULL")).unwrap().value(0).to_string();
        assert_eq!(shown, "[NULL, 2000-01-01]");
    }

    #[test]
    fn an_array_that_is_not_one_is_unreadable() {
        let good = [1_i32, 0, 1082, 2, 1, 4, 7, -1].map(i32::to_be_bytes).concat();
        let subject = Subject::connection("pg");
        let append = |array: &[u8]| BatchBuilder::new(shape(OutOfRange::Null)).append(&row(&[None, None, Some(array)]), &subject);
        assert!(append(&good).is_ok());
        for (at, word) in [(28, -2_i32), (20, -2), (12, -1), (12, 1)] {
            let mut bad = good.clone();
            bad[at..at + 4].copy_from_slice(&word.to_be_bytes());
            assert_eq!(append(&bad).unwrap_err().code(), ErrorCode::CaptureFailed, "{word} at {at}");
        }
        assert!(append(&[0_i32, 0, 1082, 1].map(i32::to_be_bytes).concat()).is_err());
    }

    #[test]
    fn an_array_of_two_dimensions_is_refused_even_where_nulls_are_admitted() {
        let mut batch = BatchBuilder::new(shape(OutOfRange::Null));
        let two = [2_i32, 0, 1082, 1, 1, 1, 1, 4, 0].map(i32::to_be_bytes).concat();
        let error = batch.append(&row(&[None, None, Some(&two)]), &Subject::connection("pg")).unwrap_err();
        assert!(error.message().contains("an array of 2 dimensions"), "{error}");
    }
}
