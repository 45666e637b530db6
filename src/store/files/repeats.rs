//! Which columns repeat their values so little that a dictionary would only cost time.
//!
//! ```text
//! first rows of a file ─ hash each value ─ nearly all distinct? ─► no dictionary
//! ```
//!
//! Parquet's writer looks every value up in a dictionary until that has outgrown its page, which in the small files of a
//! refresh is never: a fifth of the writing for columns in which hardly a value occurs twice.
//! Memory: the hashes of 4,096 rows. Never changes what is stored, only how; a wrong guess costs bytes.

use arrow::array::{Array, RecordBatch};
use arrow_schema::DataType;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use hashbrown::HashSet;

use crate::error::{Error, Result};

const SAMPLE: usize = 4096;
/// Fewer rows say nothing.
const LEAST: usize = 1024;
/// Values that occurred before, out of so many, for which a dictionary pays. Of 100,000 different values in no order, a sample
/// repeats one in 50; a dictionary of those has outgrown its page.
const PAYS: usize = 50;

/// The names of the columns, in the first rows of `batch`, that hardly repeat a value.
pub(super) fn distinct_columns(batch: &RecordBatch) -> Result<Vec<String>> {
    let rows = batch.num_rows().min(SAMPLE);
    if rows < LEAST {
        return Ok(Vec::new());
    }
    let (state, mut distinct) = (RandomState::default(), Vec::new());
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()).filter(|(field, _)| is_flat(field.data_type())) {
        let (sample, mut hashes) = (column.slice(0, rows), vec![0; rows]);
        let failed = |error| Error::internal("the values of a column cannot be hashed").with_source(error);
        create_hashes([&sample], &state, &mut hashes).map_err(failed)?;
        let is_value = |row: &usize| !sample.is_null(*row);
        let values = (0..rows).filter(is_value).count();
        let different = (0..rows).filter(is_value).filter_map(|row| hashes.get(row)).collect::<HashSet<_>>().len();
        if values >= LEAST && (values - different) * PAYS <= values {
            distinct.push(field.name().clone());
        }
    }
    Ok(distinct)
}

fn is_flat(data_type: &DataType) -> bool {
    data_type.is_primitive() || data_type.is_string() || data_type.is_binary()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, StringArray};

    use super::*;

    #[test]
    fn columns_that_repeat_keep_their_dictionary() {
        let ids: ArrayRef = Arc::new((0..5_000_i64).map(Some).collect::<Int64Array>());
        let cities: ArrayRef = Arc::new((0..5_000).map(|i| Some(format!("city {}", i % 300))).collect::<StringArray>());
        let names: ArrayRef = Arc::new((0..5_000).map(|i| (i % 10 != 0).then(|| format!("name {i}"))).collect::<StringArray>());
        let nulls: ArrayRef = Arc::new((0..5_000_i64).map(|i| (i < 100).then_some(i)).collect::<Int64Array>());
        let columns = [("id", ids), ("city", cities), ("name", names), ("mostly_null", nulls)];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        assert_eq!(distinct_columns(&batch).unwrap(), ["id", "name"]);
        assert!(distinct_columns(&batch.slice(0, LEAST - 1)).unwrap().is_empty(), "too few rows to tell");
    }
}
