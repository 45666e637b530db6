//! Appending from a closed bound: rows at the mark that are stored already are left out.
//!
//! ```text
//! stored rows with cursor = mark ─► fingerprints, each as often as it is stored
//! source rows with cursor = mark ─► fingerprint known? taken off, row left out : row added
//! ```
//!
//! The whole typed row counts, so a changed row at the mark is a new version. Columns that only one side has do not count.
//! Memory: 24 bytes per stored row at the mark, at most [`BOUNDARY_ROWS`]; nothing of it is stored.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::compute::{cast, filter_record_batch};
use arrow_schema::{Field, SchemaRef};
use datafusion::common::{Column, TableReference};
use datafusion::datasource::provider_as_source;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder, lit};
use datafusion::physical_plan::execute_stream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::TryStreamExt;

use crate::error::{Error, ErrorCode, Result};
use crate::exec::equality::Fingerprinter;
use crate::run::Attempt;
use crate::spec::sync::TypedValue;
use crate::table::IncrementalTable;

/// More stored rows with one cursor value cannot be told from those that are read again.
pub const BOUNDARY_ROWS: usize = 100_000;

/// The stored rows at a mark.
#[derive(Debug)]
pub(super) struct Boundary {
    cursor: String,
    mark: TypedValue,
    fields: Vec<Field>,
    fingerprinter: Fingerprinter,
    known: HashMap<u128, u64>,
    /// How many stored rows are not found again yet.
    left: usize,
}

impl Boundary {
    /// Reads the base's rows at `mark` as far as they have `columns`, which the source has too.
    pub async fn read(attempt: &Attempt, cursor: &str, mark: &TypedValue, columns: Vec<String>) -> Result<Self> {
        let definition = attempt.definition();
        let fields: Vec<Field> = columns.iter().filter_map(|name| definition.output_schema.field_with_name(name).ok().cloned()).collect();
        let fingerprinter = Fingerprinter::try_new(definition.options.fingerprint, attempt.incarnation.secret(), &fields)?;
        let mut boundary = Self { cursor: cursor.to_string(), mark: mark.clone(), fields, fingerprinter, known: HashMap::new(), left: 0 };
        let mut rows = boundary.stored(attempt).await?;
        let mut count = 0;
        while let Some(batch) = rows.try_next().await.map_err(|e| unreadable(attempt, e))? {
            count += batch.num_rows();
            if count > BOUNDARY_ROWS {
                return Err(boundary.too_many(attempt));
            }
            for fingerprint in boundary.fingerprints(&batch)? {
                *boundary.known.entry(fingerprint).or_default() += 1;
            }
        }
        boundary.left = count;
        Ok(boundary)
    }

    async fn stored(&self, attempt: &Attempt) -> Result<SendableRecordBatchStream> {
        let failed = |e| unreadable(attempt, e);
        let snapshot = attempt.table.newest().await?.ok_or_else(|| attempt.table.not_published())?;
        let provider = Arc::new(IncrementalTable::at(Arc::clone(&attempt.table), snapshot));
        let relation = TableReference::bare("stored");
        let column = |name: &String| Expr::Column(Column::new(Some(relation.clone()), name));
        let plan = LogicalPlanBuilder::scan(relation.clone(), provider_as_source(provider), None)
            .and_then(|scan| scan.filter(column(&self.cursor).gt_eq(lit(self.mark.value().clone()))))
            .and_then(|rows| rows.project(self.fields.iter().map(|field| column(field.name()))))
            .and_then(|rows| rows.build())
            .map_err(failed)?;
        let plan = attempt.host.state.create_physical_plan(&plan).await.map_err(failed)?;
        execute_stream(plan, attempt.task_context()).map_err(failed)
    }

    fn too_many(&self, attempt: &Attempt) -> Error {
        Error::new(
            ErrorCode::CursorTies,
            format!(
                "synced table {:?}: more than {BOUNDARY_ROWS} stored rows have {:?} = {}, so that rows that are read again cannot be told from \
                 new ones. Nothing was published. Remedy: choose a cursor of finer values, or, with a key, ALTER SYNCED TABLE {} SET (sync_type = \
                 'incremental') CONFIRM, which merges rows by it",
                attempt.name(),
                self.cursor,
                self.mark,
                attempt.table.sql_name()
            ),
        )
    }

    fn fingerprints(&self, batch: &RecordBatch) -> Result<Vec<u128>> {
        let column = |field: &Field| {
            let missing = || Error::internal(format!("rows at the mark have no column {:?}", field.name()));
            let column = batch.column_by_name(field.name()).ok_or_else(missing)?;
            // Stored rows may be of a narrower type than the source has now.
            cast(column, field.data_type()).map_err(|e| Error::internal(format!("rows at the mark: {e}")))
        };
        let columns = self.fields.iter().map(column).collect::<Result<Vec<ArrayRef>>>()?;
        let mut fingerprints = Vec::with_capacity(batch.num_rows());
        self.fingerprinter.fingerprint_rows(&columns, batch.num_rows(), &mut fingerprints)?;
        Ok(fingerprints)
    }

    /// The rows of `source` without those that are stored; counts what is left.
    pub fn filter(mut self, source: SendableRecordBatchStream, left: Arc<AtomicU64>) -> SendableRecordBatchStream {
        let schema: SchemaRef = source.schema();
        let rows = source.and_then(move |batch| {
            let kept = self.unknown(&batch);
            if let Ok(kept) = &kept {
                left.fetch_add(kept.num_rows() as u64, Ordering::AcqRel);
            }
            std::future::ready(kept)
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, rows))
    }

    fn unknown(&mut self, batch: &RecordBatch) -> DfResult<RecordBatch> {
        if self.left == 0 || batch.num_rows() == 0 {
            return Ok(batch.clone());
        }
        let fingerprints = self.fingerprints(batch)?;
        let (known, left) = (&mut self.known, &mut self.left);
        let is_new = |fingerprint| match known.get_mut(&fingerprint) {
            Some(count) if *count > 0 => {
                *count -= 1;
                *left -= 1;
                Some(false)
            }
            _ => Some(true),
        };
        let keep: BooleanArray = fingerprints.into_iter().map(is_new).collect();
        Ok(filter_record_batch(batch, &keep)?)
    }
}

fn unreadable(attempt: &Attempt, error: DataFusionError) -> Error {
    let what = format!("table {:?}: its own rows at the mark cannot be read. Remedy: restore the table's files", attempt.name());
    Error::from_datafusion(error, ErrorCode::Corrupt, what)
}
