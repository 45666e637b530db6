//! Tables that SQL cannot make: bytes under null slots, NaN payloads, encodings, width, and sources that count scans.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, DictionaryArray, Float64Array, Int32Array, Int64Array, LargeStringArray, ListArray, RecordBatch, StringArray,
    StringViewArray, StructArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::Int32Type;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Result, plan_err};
use datafusion::datasource::{MemTable, TableType};
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;

use super::functions::{Probes, count_scan};

/// The table `fixture` at `step`.
pub fn table(fixture: &str, step: &str, probes: &Arc<Probes>) -> Result<Arc<dyn TableProvider>> {
    let batches = match fixture {
        "nan" => nan(step)?,
        "nan_key" => nan_key(step)?,
        "lists" => lists(step)?,
        "encodings" => encodings(step)?,
        "wide" => wide(step)?,
        "moving" => return Ok(Arc::new(Moving { probes: Arc::clone(probes) })),
        _ => return plan_err!("no fixture {fixture:?}"),
    };
    let Some(first) = batches.first() else { return plan_err!("fixture {fixture:?} has no step {step:?}") };
    let schema = first.schema();
    // One batch a partition: duplicates and changes must be found across partitions.
    Ok(Arc::new(MemTable::try_new(schema, batches.into_iter().map(|batch| vec![batch]).collect())?))
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> Result<RecordBatch> {
    Ok(RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))?)
}

/// Two NaNs with different payloads and signs.
fn nans() -> (f64, f64) {
    (f64::from_bits(0x7ff8_0000_0000_0001), f64::from_bits(0xfff8_0000_0000_dead))
}

/// v, s.x, l[0], d: row 1 NaN, row 2 zero, row 3 near 0.3, each in another guise at step 2.
fn nan(step: &str) -> Result<Vec<RecordBatch>> {
    let (first, second) = nans();
    let values = if step == "1" { vec![first, 0.0, 0.1 + 0.2] } else { vec![second, -0.0, 0.3] };
    let v: ArrayRef = Arc::new(Float64Array::from(values));
    let s: ArrayRef = Arc::new(StructArray::from(vec![(Arc::new(Field::new("x", DataType::Float64, true)), Arc::clone(&v))]));
    let item = Arc::new(Field::new("item", DataType::Float64, true));
    let l: ArrayRef = Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([1, 1, 1]), Arc::clone(&v), None));
    let codes = if step == "1" { vec![0, 1, 2] } else { vec![2, 1, 0] };
    let dictionary: ArrayRef = if step == "1" { Arc::clone(&v) } else { Arc::new(Float64Array::from(vec![0.3, -0.0, second])) };
    let d: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::try_new(Int32Array::from(codes), dictionary)?);
    Ok(vec![batch(vec![("id", Arc::new(Int64Array::from(vec![1, 2, 3]))), ("v", v), ("s", s), ("l", l), ("d", d)])?])
}

/// A float key: NaN and zero in other guises; at step 3 both zeros at once.
fn nan_key(step: &str) -> Result<Vec<RecordBatch>> {
    let (first, second) = nans();
    let (keys, values) = match step {
        "1" => (vec![first, 0.0], vec![1, 2]),
        "2" => (vec![second, -0.0], vec![1, 3]),
        _ => (vec![0.0, -0.0], vec![1, 2]),
    };
    let keys: ArrayRef = Arc::new(Float64Array::from(keys));
    let nested: ArrayRef = Arc::new(StructArray::from(vec![(Arc::new(Field::new("x", DataType::Float64, true)), Arc::clone(&keys))]));
    Ok(vec![batch(vec![("f", keys), ("n", nested), ("v", Arc::new(Int64Array::from(values)))])?])
}

/// A list array with chosen bytes under its null elements, behind an offset.
fn list(rows: &[Option<&[Option<i32>]>], filler: i32) -> ArrayRef {
    let mut values = vec![filler; 3];
    let mut valid = vec![true; 3];
    let mut offsets = vec![3_i32];
    for row in rows {
        for value in row.unwrap_or_default() {
            values.push(value.unwrap_or(filler));
            valid.push(value.is_some());
        }
        offsets.push(values.len() as i32);
    }
    let items = Int32Array::new(ScalarBuffer::from(values), Some(NullBuffer::from(valid)));
    let nulls: Vec<bool> = rows.iter().map(Option::is_some).collect();
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    Arc::new(ListArray::new(item, OffsetBuffer::new(ScalarBuffer::from(offsets)), Arc::new(items), Some(NullBuffer::from(nulls))))
}

fn lists(step: &str) -> Result<Vec<RecordBatch>> {
    let (v, x_null) = if step == "1" {
        let rows: [Option<&[Option<i32>]>; 5] =
            [Some(&[Some(1), None]), Some(&[]), Some(&[None]), Some(&[Some(1), Some(2)]), Some(&[Some(1), None])];
        (list(&rows, 7), false)
    } else {
        let rows: [Option<&[Option<i32>]>; 5] = [Some(&[Some(1), None]), None, Some(&[]), Some(&[Some(2), Some(1)]), Some(&[Some(1)])];
        (list(&rows, -9), true)
    };
    // Row 1 of `s` is a null struct at step 1 and a struct of nulls at step 2.
    let x: ArrayRef = Arc::new(Int32Array::from(vec![None, Some(2), Some(3), Some(4), Some(5)]));
    let nulls = NullBuffer::from(vec![x_null, true, true, true, true]);
    let s: ArrayRef = Arc::new(StructArray::new(vec![Field::new("x", DataType::Int32, true)].into(), vec![x], Some(nulls)));
    Ok(vec![batch(vec![("id", Arc::new(Int64Array::from(vec![1, 2, 3, 4, 5]))), ("v", v), ("s", s)])?])
}

/// The same rows in other encodings: `1` plain, `2` views and other dictionary codes in two batches, `3` large strings.
fn encodings(step: &str) -> Result<Vec<RecordBatch>> {
    let part = |ids: Vec<i64>, text: Vec<&str>, codes: Vec<i32>, dictionary: Vec<&str>| {
        let plain: ArrayRef = Arc::new(StringArray::from(text.clone()));
        let v: ArrayRef = match step {
            "1" => Arc::clone(&plain),
            "2" => Arc::new(StringViewArray::from(text)),
            _ => Arc::new(LargeStringArray::from(text)),
        };
        let n: ArrayRef = Arc::new(StructArray::from(vec![(Arc::new(Field::new("a", v.data_type().clone(), true)), Arc::clone(&v))]));
        let c = DictionaryArray::<Int32Type>::try_new(Int32Array::from(codes), Arc::new(StringArray::from(dictionary)))?;
        batch(vec![("id", Arc::new(Int64Array::from(ids))), ("v", v), ("n", n), ("c", Arc::new(c))])
    };
    if step == "2" {
        return Ok(vec![part(vec![1], vec!["a"], vec![1], vec!["y", "x"])?, part(vec![2, 3], vec!["b", "c"], vec![0, 1], vec!["y", "x"])?]);
    }
    Ok(vec![part(vec![1, 2, 3], vec!["a", "b", "c"], vec![0, 1, 0], vec!["x", "y"])?])
}

/// 2,000 tracked columns; at step 2 column 1999 of row 2 differs.
fn wide(step: &str) -> Result<Vec<RecordBatch>> {
    let mut fields = vec![Field::new("id", DataType::Int64, true)];
    let mut columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(vec![1, 2]))];
    for column in 1..=2000 {
        fields.push(Field::new(format!("c{column}"), DataType::Int32, true));
        let second = if column == 1999 && step != "1" { -1 } else { column };
        columns.push(Arc::new(Int32Array::from(vec![column, second])));
    }
    Ok(vec![RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?])
}

/// A source that says something else at every scan, and counts them.
#[derive(Debug)]
struct Moving {
    probes: Arc<Probes>,
}

#[async_trait]
impl TableProvider for Moving {
    fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true), Field::new("v", DataType::Utf8, true)]))
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let scan = count_scan(&self.probes);
        let text = format!("scan {scan}");
        let rows = RecordBatch::try_new(self.schema(), vec![Arc::new(Int64Array::from(vec![1])), Arc::new(StringArray::from(vec![text]))])?;
        MemTable::try_new(self.schema(), vec![vec![rows]])?.scan(session, projection, filters, limit).await
    }
}
