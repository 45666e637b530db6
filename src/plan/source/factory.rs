//! Table factories that keep the whole CREATE EXTERNAL TABLE statement.
//!
//! DataFusion keeps a definition text with every external table, but without its columns and options, so that nobody can
//! tell afterwards whether the columns were declared. The wrapper puts the whole statement there, without secrets:
//!
//! ```text
//! CREATE EXTERNAL TABLE t (id BIGINT) STORED AS CSV LOCATION 'd/'   ─►  the same text, columns and options included
//! CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'd/'           ─►  /* columns inferred */ CREATE EXTERNAL TABLE …
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider, TableProviderFactory};
use datafusion::error::Result;
use datafusion::logical_expr::CreateExternalTable;

use super::statement::{ExternalTable, INFERRED};
use crate::redact::without_credentials;

/// Wraps the factories of a session so that tables know how they were created. A factory that is wrapped already stays,
/// and so does that of incremental tables, which keep their own definition.
pub fn record_definitions(factories: &mut HashMap<String, Arc<dyn TableProviderFactory>>) {
    for (_, factory) in factories.iter_mut().filter(|(file_type, _)| !file_type.eq_ignore_ascii_case("INCREMENTAL")) {
        // Each wrapper says what it is in its Debug text, which is all that the trait lets us see of it.
        if !format!("{factory:?}").starts_with("RecordingFactory") {
            *factory = Arc::new(RecordingFactory { inner: Arc::clone(factory) });
        }
    }
}

#[derive(Debug)]
struct RecordingFactory {
    inner: Arc<dyn TableProviderFactory>,
}

#[async_trait]
impl TableProviderFactory for RecordingFactory {
    async fn create(&self, state: &dyn Session, command: &CreateExternalTable) -> Result<Arc<dyn TableProvider>> {
        let mut command = command.clone();
        command.definition = definition(&command).or(command.definition.map(|text| without_credentials(&text).into_owned()));
        self.inner.create(state, &command).await
    }
}

/// The whole statement; `None` when SQL cannot say it, then DataFusion's own text stays.
fn definition(command: &CreateExternalTable) -> Option<String> {
    let schema = command.schema.inner();
    let declared = !schema.fields().is_empty();
    let table = ExternalTable {
        name: command.name.to_vec(),
        columns: declared.then(|| schema.fields().iter().map(|f| f.as_ref().clone()).collect()),
        file_type: command.file_type.to_uppercase(),
        partitions: command.table_partition_cols.clone(),
        locations: command.locations.clone(),
        options: command.options.clone().into_iter().collect(),
        unbounded: command.unbounded,
    };
    let sql = table.to_sql()?;
    Some(if declared { sql } else { format!("{INFERRED}{sql}") })
}
