//! The headers of CSV files. DataFusion reads CSV by position and skips the header, so a file whose columns moved would
//! give every row the values of other columns.
//!
//! ```text
//! table   id, a, b        file   id,b,a   ─► SCHEMA_CHANGED: "a" is column 3 of the file
//! ```
//!
//! Memory: one header. Reads the beginning of each file, never its rows.

use std::sync::Arc;

use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::listing::ListingTable;
use datafusion::error::DataFusionError;
use object_store::ObjectMeta;

use super::listing::{list, listing_tables, object_text};
use super::refresh::{file_schema, recorded};
use super::resolve::ResolvedSource;
use crate::error::{Error, ErrorCode, Result};

impl ResolvedSource {
    /// Checks that each CSV file with a header has `columns` where the table has them. Columns that the user declared
    /// under names of their own are taken as declared. `is_read` says which files (store and path) are looked at.
    ///
    /// # Errors
    /// `SCHEMA_CHANGED`, naming the file and the column; `CAPTURE_FAILED` when a place cannot be listed.
    pub async fn check_headers(&self, columns: &[String], is_read: impl Fn(&str) -> bool) -> Result<()> {
        let direct = self.provider.downcast_ref::<ListingTable>().is_some();
        let failed = |e| {
            let context =
                format!("table \"{}\": the source's files cannot be looked at. Remedy: check the store and its rights", self.table);
            Error::from_datafusion(e, ErrorCode::CaptureFailed, context)
        };
        for table in listing_tables(&self.provider).map_err(failed)? {
            let Some(csv) = self.with_header(&table) else { continue };
            let names: Vec<String> = file_schema(&table).fields().iter().map(|field| field.name().clone()).collect();
            // Through a view any column of the file may matter.
            let matters = |name: &String| !direct || columns.contains(name);
            let wanted: Vec<(usize, &String)> = names.iter().enumerate().filter(|(_, name)| matters(name)).collect();
            let inferred = recorded(&self.state, &table) == Some(false);
            for url in table.table_paths() {
                let store = self.state.runtime_env().object_store(url).map_err(failed)?;
                for (path, meta) in list(&self.state, &table, url).await.map_err(failed)? {
                    let file = object_text(url, &path);
                    if !is_read(&file) {
                        continue;
                    }
                    // What cannot be read here is reported by the scan, with the row.
                    let Ok(header) = self.header(&csv, &store, meta).await else { continue };
                    if let Some((place, name)) = wanted.iter().find(|(place, name)| moved(&header, *place, name, inferred)) {
                        return Err(self.moved(&file, name, *place, &header));
                    }
                }
            }
        }
        Ok(())
    }

    fn with_header(&self, table: &ListingTable) -> Option<CsvFormat> {
        let csv = table.options().format.downcast_ref::<CsvFormat>()?;
        let header = csv.has_header().unwrap_or(self.state.config_options().catalog.has_header);
        header.then(|| CsvFormat::default().with_options(csv.options().clone()).with_schema_infer_max_rec(1))
    }

    async fn header(
        &self,
        csv: &CsvFormat,
        store: &Arc<dyn object_store::ObjectStore>,
        meta: ObjectMeta,
    ) -> std::result::Result<Vec<String>, DataFusionError> {
        let schema = csv.infer_schema(&self.state, store, &[meta]).await?;
        Ok(schema.fields().iter().map(|field| field.name().clone()).collect())
    }

    fn moved(&self, file: &str, name: &str, place: usize, header: &[String]) -> Error {
        let found = match header.iter().position(|h| h == name) {
            Some(at) => format!("column {}", at + 1),
            None => "not in it".to_string(),
        };
        Error::new(
            ErrorCode::SchemaChanged,
            format!(
                "table \"{}\": column {name:?} is column {} of the source, but the header of {file} says that it is {found}; CSV is read by \
                 position, so its rows would get the values of other columns. Remedy: write the file with the source's columns in their \
                 order, or create the source again with the columns of the file",
                self.table,
                place + 1
            ),
        )
    }
}

/// Whether the header contradicts that column `name` is at `place`. An empty header says nothing.
fn moved(header: &[String], place: usize, name: &str, inferred: bool) -> bool {
    let there = header.get(place).is_some_and(|h| h == name);
    !header.is_empty() && !there && (inferred || header.iter().any(|h| h == name))
}
