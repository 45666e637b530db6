//! The connector of the session's own tables: Parquet, CSV, JSON, views, any table provider.
//!
//! ```text
//! name ─ resolve: the session's table, else what its stored statements create ─► TableSnapshot
//!          in a derived session without caches                                     ├ identity before ─┐
//!                                                                                  ├ reads            ├ finish: the same?
//!                                                                                  └ identity after ──┘
//! ```
//!
//! Files that change while they are read fail the run; other providers are read as they answer. Memory: the plans that
//! DataFusion makes of the reads. It needs no dependency and no connection, and never registers anything.

mod describe;
mod read;

use std::sync::Arc;

use arrow_schema::Schema;
use async_trait::async_trait;
use datafusion::common::{ScalarValue, TableReference};
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};

use super::connector::{Connector, ReadRequest, RowFilter, SourceSnapshot, SourceTable};
use crate::error::{Error, ErrorCode, Result};
use crate::plan::source::{ResolvedSource, SourceIdentity, check_identity, resolve, same_identity};
use crate::spec::SourceSpec;
use crate::store::{SourceFile, SourceState};
use crate::table::IncrementalTable;

/// The tables that a session knows.
#[derive(Debug)]
pub struct TableConnector {
    state: SessionState,
    spec: Option<SourceSpec>,
}

impl TableConnector {
    /// The tables of `state`; `spec` brings one of them back where the session does not have it.
    pub fn new(state: SessionState, spec: Option<SourceSpec>) -> Self {
        Self { state, spec }
    }

    async fn resolve(&self, table: &[String]) -> Result<ResolvedSource> {
        let spec = match (&self.spec, table) {
            (Some(spec), _) => spec.clone(),
            (None, [catalog, schema, name]) => SourceSpec { name: [catalog.clone(), schema.clone(), name.clone()], statements: vec![] },
            (None, parts) => {
                return Err(Error::internal(format!("{parts:?} is no full name of a table of the session")));
            }
        };
        let mut source = resolve(&self.state, &table.join("."), &spec).await?;
        if let Some(table) = source.provider.downcast_ref::<IncrementalTable>() {
            // One version for all reads of the snapshot.
            let handle = Arc::clone(table.handle());
            let snapshot = handle.newest().await?.ok_or_else(|| handle.not_published())?;
            source.schema = Arc::clone(&snapshot.output_schema);
            source.provider = Arc::new(IncrementalTable::at(handle, snapshot));
        }
        Ok(source)
    }
}

#[async_trait]
impl Connector for TableConnector {
    async fn check(&self) -> Result<()> {
        Ok(())
    }

    async fn discover(&self, only: Option<&[String]>) -> Result<Vec<SourceTable>> {
        let names = match only {
            Some(parts) => vec![describe::full_name(&self.state, parts)?],
            None => describe::all_names(&self.state),
        };
        let mut found = vec![];
        for name in names {
            match self.resolve(&name).await {
                Ok(source) => found.push(describe::describe(&name, &source)),
                Err(error) if error.code() == ErrorCode::SourceNotFound => {}
                // One table that cannot be opened must not hide the others.
                Err(error) if only.is_none() => log::warn!("table {:?} is left out: {error}", name.join(".")),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    async fn snapshot(&self, table: &[String], _known: Option<&Schema>, context: Arc<TaskContext>) -> Result<Arc<dyn SourceSnapshot>> {
        let source = self.resolve(table).await?;
        let before = source.identity().await?;
        check_identity(&table.join("."), None, &before)?;
        let table = describe::describe(table, &source);
        Ok(Arc::new(TableSnapshot { source, table, before, context }))
    }
}

/// A table of the session, as it was when its files were listed.
#[derive(Debug)]
pub struct TableSnapshot {
    source: ResolvedSource,
    table: SourceTable,
    before: SourceIdentity,
    context: Arc<TaskContext>,
}

#[async_trait]
impl SourceSnapshot for TableSnapshot {
    fn table(&self) -> &SourceTable {
        &self.table
    }

    fn reads_in_order(&self) -> bool {
        // Files lie in any order: sorting a large table to be able to go on in the middle costs more than reading it twice.
        false
    }

    async fn ceiling(&self, column: &str, filters: &[RowFilter]) -> Result<Option<ScalarValue>> {
        let value = self.value(read::greatest(&self.source, column, filters)).await?;
        let is_finite = match &value {
            ScalarValue::Float16(Some(value)) => value.is_finite(),
            ScalarValue::Float32(Some(value)) => value.is_finite(),
            ScalarValue::Float64(Some(value)) => value.is_finite(),
            _ => true,
        };
        if !is_finite {
            return Err(Error::new(
                ErrorCode::ValueOutOfRange,
                format!(
                    "table {:?}: the greatest value of the cursor column {column:?} is {value}, after which nothing could come. Remedy: \
                     filter such rows out (row_filters), or choose another incremental_field",
                    self.table.display_name()
                ),
            ));
        }
        Ok((!value.is_null()).then_some(value))
    }

    async fn count_nulls(&self, column: &str, filters: &[RowFilter]) -> Result<u64> {
        let value = self.value(read::nulls(&self.source, column, filters)).await?;
        match value {
            ScalarValue::Int64(Some(count)) => Ok(u64::try_from(count).unwrap_or_default()),
            other => Err(Error::internal(format!("a count is {other}"))),
        }
    }

    async fn read(&self, request: ReadRequest) -> Result<SendableRecordBatchStream> {
        let plan = read::rows(&self.source, &request).map_err(|e| self.unreadable(e))?;
        read::stream(&self.source, &self.context, plan).await.map_err(|e| self.unreadable(e))
    }

    fn files(&self) -> SourceState {
        let files = self.before.files.iter().map(|file| SourceFile {
            ordinal: 0,
            path: file.path.clone(),
            bytes: file.bytes,
            e_tag: None,
            modified: file.modified,
            changed: None,
            exact: false,
        });
        SourceState { files: files.collect(), ..SourceState::default() }
    }

    fn check_since(&self, previous: &SourceState) -> Result<()> {
        check_identity(&self.table.display_name(), Some(previous), &self.before)
    }

    async fn finish(&self) -> Result<()> {
        same_identity(&self.table.display_name(), &self.before, &self.source.identity().await?)
    }
}

impl TableSnapshot {
    /// The single value of a plan.
    async fn value(&self, plan: datafusion::error::Result<datafusion::logical_expr::LogicalPlan>) -> Result<ScalarValue> {
        let plan = plan.map_err(|e| self.unreadable(e))?;
        read::single_value(&self.source, &self.context, plan).await.map_err(|e| self.unreadable(e))
    }

    fn unreadable(&self, error: datafusion::error::DataFusionError) -> Error {
        let what = format!("table {:?} cannot be read. Remedy: check its files and its definition", self.table.display_name());
        Error::from_datafusion(error, ErrorCode::CaptureFailed, what)
    }
}

/// The full name of a table of the session, from one that may leave catalog and schema out.
///
/// # Errors
/// `SOURCE_NOT_FOUND` for a name of more than three parts.
pub fn full_name(state: &SessionState, parts: &[String]) -> Result<Vec<String>> {
    describe::full_name(state, parts)
}

/// The reference of a full name.
pub(super) fn reference(parts: &[String]) -> TableReference {
    match parts {
        [catalog, schema, table] => TableReference::full(catalog.as_str(), schema.as_str(), table.as_str()),
        [schema, table] => TableReference::partial(schema.as_str(), table.as_str()),
        other => TableReference::bare(other.join(".")),
    }
}
