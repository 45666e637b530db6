//! The contract of one call, without any plan: rows given, rows returned, verdict.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take};
use arrow_schema::{Field, SchemaRef};

use super::{checked_schema, sample_keys};
use crate::error::{Error, ErrorCode, Result};
use crate::exec::equality::{KeyHash, KeySet};
use crate::exec::handler::{CallResult, CallSpec};
use crate::handler::{check_same_output, conform_batch};

/// Below this many rows per batch on average, a call's batches are put together.
const SMALL_BATCH: usize = 1024;
/// Above this size, batches are never put together: offsets of text columns are 32 bits wide.
const MAX_CONCAT: usize = 1 << 30;

/// What every call of one handler must keep.
pub(crate) struct Contract {
    spec: Arc<CallSpec>,
    key_fields: Vec<Field>,
    /// The positions of the hidden columns among the given ones.
    hidden: Vec<usize>,
    /// For each output column that is a key column: its position among the given ones.
    keys: Vec<Option<usize>>,
    schema: SchemaRef,
}

impl Contract {
    pub(crate) fn try_new(spec: &Arc<CallSpec>, input: &SchemaRef) -> Result<Self> {
        let (given, output) = (&spec.input_schema, &spec.output_schema);
        let absent =
            |name: &String| Error::internal(format!("table {:?}: the key column {name:?} is not handed to the handler", spec.call.table));
        let key_field = |name: &String| given.field_with_name(name).cloned().map_err(|_| absent(name));
        let key_position = |field: &Arc<Field>| if spec.key.contains(field.name()) { input.index_of(field.name()).ok() } else { None };
        Ok(Self {
            key_fields: spec.key.iter().map(key_field).collect::<Result<_>>()?,
            hidden: (0..input.fields().len()).filter(|i| given.field_with_name(input.field(*i).name()).is_err()).collect(),
            keys: output.fields().iter().map(key_position).collect(),
            schema: checked_schema(output, given, input),
            spec: Arc::clone(spec),
        })
    }

    /// The returned batches that have rows, in exactly the declared columns and types.
    pub(crate) fn typed(&self, output: &[RecordBatch]) -> Result<Vec<RecordBatch>> {
        let filled: Vec<&RecordBatch> = output.iter().filter(|batch| batch.num_rows() > 0).collect();
        let typed: Vec<RecordBatch> = filled.iter().map(|batch| self.typed_batch(batch)).collect::<Result<_>>()?;
        let rows: usize = typed.iter().map(RecordBatch::num_rows).sum();
        let bytes: usize = filled.iter().map(|batch| batch.get_array_memory_size()).sum();
        if typed.len() < 2 || rows / typed.len() >= SMALL_BATCH || bytes > MAX_CONCAT {
            return Ok(typed);
        }
        let together =
            concat_batches(&self.spec.output_schema, &typed).map_err(|e| self.failed("its batches cannot be put together", &e))?;
        Ok(vec![together])
    }

    fn typed_batch(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let (table, found, wanted) = (&self.spec.call.table, batch.schema_ref(), &self.spec.output_schema);
        if let Some(absent) = self.spec.key.iter().find(|name| found.field_with_name(name).is_err()) {
            return Err(self.fault(
                ErrorCode::HandlerSchema,
                &format!("the handler's output lacks the key column {absent:?}"),
                "return every key column under its own name",
            ));
        }
        if let Some(twice) = found.fields().iter().enumerate().find(|(i, f)| found.fields().iter().take(*i).any(|e| e.name() == f.name())) {
            return Err(self.fault(
                ErrorCode::HandlerSchema,
                &format!("the handler's output has two columns {:?}", twice.1.name()),
                "return each column once",
            ));
        }
        check_same_output(table, wanted, found)?;
        let columns: Vec<ArrayRef> = wanted.fields().iter().filter_map(|field| batch.column_by_name(field.name()).cloned()).collect();
        conform_batch(wanted, &columns, batch.num_rows()).map_err(|e| self.failed("its values cannot be stored", &e))
    }

    /// The returned rows, checked, with key values and hidden columns of the given rows.
    pub(crate) fn check(&self, call: &CallResult) -> Result<Vec<RecordBatch>> {
        let given = &call.input;
        let mut keys = KeySet::try_new(&self.key_fields, KeyHash::Xxh3, 0)?;
        keys.insert(&self.key_columns(given))?;
        if keys.len() != given.num_rows() {
            return Err(Error::internal(format!("table {:?}: a call was given one key twice", self.spec.call.table)));
        }
        let returned = self.typed(&call.output)?;
        for batch in &returned {
            self.check_nulls(&keys, batch)?;
        }
        let found: Vec<Vec<Option<u32>>> = returned.iter().map(|batch| keys.find(&self.key_columns(batch))).collect::<Result<_>>()?;
        self.verdict(given, &returned, &found)?;
        returned.iter().zip(found).map(|(batch, rows)| self.rejoin(given, batch, rows.into_iter().flatten().collect())).collect()
    }

    fn key_columns(&self, batch: &RecordBatch) -> Vec<ArrayRef> {
        self.spec.key.iter().filter_map(|name| batch.column_by_name(name).cloned()).collect()
    }

    fn check_nulls(&self, keys: &KeySet, batch: &RecordBatch) -> Result<()> {
        let nulls = keys.nulls(&self.key_columns(batch))?;
        let Some((_, column)) = nulls.first() else { return Ok(()) };
        let name = self.spec.key.get(*column).map_or("", String::as_str);
        let samples = sample_keys(batch, &self.spec.key, nulls.iter().map(|(row, _)| *row));
        let what = format!("the handler returned {} rows with a null in a key column (column {name:?}): {samples}", nulls.len());
        Err(self.fault(ErrorCode::HandlerNullKey, &what, "return the key values of input unchanged"))
    }

    /// Compares the keys returned with those given; `found` has the given row of each returned row.
    fn verdict(&self, given: &RecordBatch, returned: &[RecordBatch], found: &[Vec<Option<u32>>]) -> Result<()> {
        let mut counts = vec![0_u32; given.num_rows()];
        let mut unknown = 0_usize;
        for row in found.iter().flatten() {
            match row.and_then(|row| counts.get_mut(row as usize)) {
                Some(count) => *count += 1,
                None => unknown += 1,
            }
        }
        let rows_with = |wanted: fn(&u32) -> bool| counts.iter().enumerate().filter(move |(_, count)| wanted(count)).map(|(row, _)| row);
        let (missing, twice) = (rows_with(|count| *count == 0).count(), rows_with(|count| *count > 1).count());
        let samples = |rows: &mut dyn Iterator<Item = usize>| sample_keys(given, &self.spec.key, rows);
        let unknown_samples = || {
            let first = returned.iter().zip(found).find(|(_, rows)| rows.iter().any(Option::is_none));
            let rows =
                |found: &Vec<Option<u32>>| found.iter().enumerate().filter(|(_, row)| row.is_none()).map(|(i, _)| i).collect::<Vec<_>>();
            first.map(|(batch, found)| sample_keys(batch, &self.spec.key, rows(found))).unwrap_or_default()
        };
        if twice > 0 {
            let copies = rows_with(|count| *count > 1).next().and_then(|row| counts.get(row)).copied().unwrap_or_default();
            let keys = samples(&mut rows_with(|count| *count > 1));
            let what = format!("the handler returned {twice} keys more than once (the first {copies} times): {keys}");
            return Err(self.fault(ErrorCode::HandlerDuplicateKey, &what, "return exactly one row for each key of input"));
        }
        if unknown > 0 && unknown == missing {
            let (new, old) = (unknown_samples(), samples(&mut rows_with(|count| *count == 0)));
            let what = format!("the handler altered {missing} keys: it returned {new}, and no row for {old}");
            return Err(self.fault(ErrorCode::HandlerAlteredKey, &what, "return the key values of input unchanged"));
        }
        if unknown > 0 {
            let what = format!("the handler returned {unknown} keys that it was not given: {}", unknown_samples());
            return Err(self.fault(ErrorCode::HandlerUnexpectedKey, &what, "return only rows whose keys are in the call's input"));
        }
        if missing > 0 {
            let what = format!(
                "the handler returned no row for {missing} of {} keys: {}",
                counts.len(),
                samples(&mut rows_with(|count| *count == 0))
            );
            return Err(self.fault(ErrorCode::HandlerMissingKey, &what, "return exactly one row for each key of input"));
        }
        Ok(())
    }

    fn rejoin(&self, given: &RecordBatch, batch: &RecordBatch, rows: Vec<u32>) -> Result<RecordBatch> {
        let rows = UInt32Array::from(rows);
        let in_order = given.num_rows() == rows.len() && rows.values().iter().enumerate().all(|(i, row)| *row as usize == i);
        let pick = |position: usize| {
            let column = given.column(position);
            if in_order { Ok(Arc::clone(column)) } else { take(column, &rows, None) }
        };
        let output = batch.columns().iter().zip(&self.keys).map(|(column, key)| match key {
            Some(position) => pick(*position),
            None => Ok(Arc::clone(column)),
        });
        let columns: Vec<ArrayRef> = output
            .chain(self.hidden.iter().map(|position| pick(*position)))
            .collect::<std::result::Result<_, _>>()
            .map_err(|e| self.failed("its rows cannot be rejoined", &e))?;
        conform_batch(&self.schema, &columns, batch.num_rows()).map_err(|e| self.failed("its rows cannot be rejoined", &e))
    }

    fn fault(&self, code: ErrorCode, what: &str, remedy: &str) -> Error {
        Error::new(code, format!("table {:?}: {what}. Remedy: {remedy}", self.spec.call.table))
    }

    fn failed(&self, what: &str, error: &arrow_schema::ArrowError) -> Error {
        self.fault(
            ErrorCode::HandlerFailed,
            &format!("the handler's output was refused, {what}: {error}"),
            "return values that the declared types hold",
        )
    }
}
