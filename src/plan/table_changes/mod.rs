//! The exact changes of a table between two of its versions, as plans over its own files.
//!
//! ```text
//! version  3 ──run──► 4 ──compaction──► 5 ──run──► 6          between(3, 6): walk the manifests
//!   rows    live rows of 6 that a version after 3 wrote       (files added by 4 and 6; 5's files, row by row)
//!   keys    of those rows, and of rows that died in runs that deleted some; a key that is not among the rows is gone
//! ```
//!
//! A row that is live in the newer version and older than the changes was live all the way, because only a rollback or a
//! rebuild brings rows back: between versions with either, the changes are unknown. A key that was there and is not any
//! more died last in a run that deleted rows; compactions and fences move rows and kill none. So the rows and the keys are
//! all that can differ; a row may still be what it was (changed and changed back), and a key may be new and gone again.
//!
//! Memory: two file lists while walking. It reads manifests and file lists only; never guesses what history does not say.

#[cfg(test)]
mod tests;
mod walk;

use std::fmt;
use std::sync::Arc;

use arrow_schema::{Field, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};

use super::published_scan::{ScanRequest, Snapshot, scan_snapshot};
use crate::error::{Error, Result};
use crate::exec::compact::CompactExec;
use crate::exec::key_scan::{ChosenRows, KeyFile, KeyScanExec};
use crate::spec::VersionNumber;
use crate::store::DataFile;
use crate::store::files::VERSION;

/// Why the exact changes between two versions are not known; a clause that names the version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotKnown(pub String);

impl fmt::Display for NotKnown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What changed after one version of a table, up to and including another one.
#[derive(Debug, Clone)]
pub struct TableChanges {
    to: Arc<Snapshot>,
    from: VersionNumber,
    /// Files of the newer version that runs added: every row is new.
    added: Vec<DataFile>,
    /// Files of the newer version that compactions wrote: each row has its own version.
    compacted: Vec<DataFile>,
    /// Files with rows that died in a run that deleted some.
    died: Vec<KeyFile>,
    /// At most so many keys are new, changed or gone.
    keys: u64,
}

impl TableChanges {
    /// The changes after version `from`, up to and including `to`.
    ///
    /// # Errors
    /// [`NotKnown`] when a version between rebuilt or rolled back the table, or is not retained.
    pub async fn between(from: VersionNumber, to: Arc<Snapshot>) -> std::result::Result<Self, NotKnown> {
        walk::walk(from, to).await
    }

    /// The older version.
    pub fn from(&self) -> VersionNumber {
        self.from
    }

    /// The newer version.
    pub fn to(&self) -> &Arc<Snapshot> {
        &self.to
    }

    /// At most so many keys are new, changed or gone.
    pub fn keys_at_most(&self) -> u64 {
        self.keys
    }

    /// The rows of the newer version that were written since, with exactly `columns`.
    ///
    /// # Errors
    /// `HISTORY_MISSING` or `CORRUPT` for deletion vectors; the files are read when the plan runs.
    pub async fn rows(&self, session: &dyn Session, columns: &[String]) -> DfResult<Arc<dyn ExecutionPlan>> {
        let schema = &self.to.output_schema;
        let projection = columns.iter().map(|name| schema.index_of(name)).collect::<std::result::Result<Vec<usize>, _>>()?;
        let mut parts = vec![];
        if !self.added.is_empty() || self.compacted.is_empty() {
            let added = Snapshot { files: Arc::new(self.added.clone()), cache: Default::default(), ..self.to.as_ref().clone() };
            let request = ScanRequest { projection: Some(&projection), ..ScanRequest::default() };
            parts.push(scan_snapshot(&added, session, request).await?);
        }
        if !self.compacted.is_empty() {
            let partitions = session.config().target_partitions();
            parts.push(self.compacted_rows(Arc::new(schema.project(&projection)?), partitions)?);
        }
        match (parts.len(), parts.pop()) {
            (1, Some(only)) => Ok(only),
            (_, Some(last)) => {
                parts.push(last);
                UnionExec::try_new(parts)
            }
            (_, None) => Err(Error::internal("no files to read changes of").into()),
        }
    }

    /// Rows of compacted files, told apart by their own versions.
    fn compacted_rows(&self, columns: SchemaRef, partitions: usize) -> DfResult<Arc<dyn ExecutionPlan>> {
        let scan = CompactExec::new(self.to.incarnation.clone(), self.compacted.clone(), Arc::clone(&columns));
        let scan: Arc<dyn ExecutionPlan> = Arc::new(scan.with_partitions(partitions));
        let from = i64::try_from(self.from).map_err(|e| DataFusionError::from(Error::internal(format!("version {}: {e}", self.from))))?;
        let version = Arc::new(Column::new_with_schema(VERSION, &scan.schema())?);
        let from = Arc::new(Literal::new(ScalarValue::Int64(Some(from))));
        let is_new = Arc::new(BinaryExpr::new(version, Operator::Gt, from));
        let rows: Arc<dyn ExecutionPlan> = Arc::new(FilterExec::try_new(is_new, scan)?);
        let column =
            |(at, field): (usize, &Arc<Field>)| (Arc::new(Column::new(field.name(), at)) as Arc<dyn PhysicalExpr>, field.name().clone());
        let wanted: Vec<_> = columns.fields().iter().enumerate().map(column).collect();
        Ok(Arc::new(ProjectionExec::try_new(wanted, rows)?))
    }

    /// The keys of everything that is new, changed or gone; a key may come several times.
    ///
    /// # Errors
    /// `INTERNAL` when a key column is not published.
    pub fn keys(&self) -> Result<Arc<dyn ExecutionPlan>> {
        let schema: &Schema = &self.to.output_schema;
        let field = |name: &String| {
            let missing = || Error::internal(format!("table {:?}: key column {name:?} is not published", self.to.table()));
            schema.field_with_name(name).cloned().map_err(|_| missing())
        };
        let key = self.to.key.iter().map(field).collect::<Result<Vec<Field>>>()?;
        let written = self.added.iter().chain(&self.compacted).cloned();
        let written = written.map(|file| KeyFile { file, rows: ChosenRows::WrittenAfter(self.from) });
        let files = written.chain(self.died.iter().cloned()).collect();
        Ok(Arc::new(KeyScanExec::new(self.to.incarnation.clone(), files, &key)))
    }
}
