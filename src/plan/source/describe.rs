//! From a table of the session to what a revision keeps of it: its name, and the statements that bring it back.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow_schema::Field;
use datafusion::catalog::TableProvider;
use datafusion::common::TableReference;
use datafusion::common::config::{ConfigFileType, TableOptions};
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingTable, ListingTableUrl};
use datafusion::error::DataFusionError;
use datafusion::execution::context::SessionState;
use datafusion::logical_expr::TableType;
use datafusion::sql::parser::Statement;
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::{Ident, ObjectName, Query, Statement as SqlStatement, VisitMut, VisitorMut};
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::local::LocalFileSystem;

use super::overlay::{Overlay, TableName, display, find, full_name};
use super::refresh::{file_schema, infer, recorded, same_columns};
use super::session::{capture_state, with_catalogs};
use super::statement::{ExternalTable, build, created, parse};
use crate::error::{Error, ErrorCode, Result};
use crate::redact::without_credentials;
use crate::spec::{SourceSpec, check_same_types};

/// Describes the source `name`: its full name, and for external tables and views the statements that bring it back in
/// another process. Sources that only a host can register, or that SQL cannot say, have no statements.
///
/// # Errors
/// `SOURCE_NOT_FOUND` with the nearest names; `CAPTURE_FAILED` when the source's files cannot be looked at.
pub async fn describe(state: &SessionState, name: &TableReference) -> Result<SourceSpec> {
    let full = full_name(state, name.clone());
    let failed = |e| {
        let context = format!("source \"{}\" cannot be looked at. Remedy: check that it can be read", display(&full));
        Error::from_datafusion(e, ErrorCode::CaptureFailed, context)
    };
    let catalogs = state.catalog_list().as_ref();
    let Some(provider) = find(catalogs, &full).await.map_err(failed)? else { return Err(not_found(state, &full)) };
    let mut writer = Writer { state: capture_state(state)?, seen: BTreeSet::new(), statements: Vec::new() };
    writer.table(full.clone(), Arc::clone(&provider)).await.map_err(failed)?;
    let mut statements = writer.statements;
    if let Err(reason) = check(state, &full, &statements, &provider).await {
        let reason = without_credentials(&reason);
        log::warn!("source {} will not be found by another process without registering it: {reason}", display(&full));
        statements.clear();
    }
    Ok(SourceSpec { name: full, statements })
}

/// Whether the statements bring back a table of the same columns.
async fn check(state: &SessionState, name: &TableName, statements: &[String], provider: &Arc<dyn TableProvider>) -> Result<(), String> {
    if statements.is_empty() {
        return Ok(());
    }
    let overlay = Overlay::over(state.catalog_list());
    let state = with_catalogs(state, Arc::new(overlay.clone())).map_err(|e| e.to_string())?;
    for text in statements {
        let statement = parse(&state, text).map_err(|e| e.strip_backtrace())?;
        let (created, _) = created(&state, &statement).ok_or("no CREATE statement")?;
        let table = build(&state, statement).await.map_err(|e| e.strip_backtrace())?;
        overlay.insert(created, table);
    }
    let again = overlay.get(name).ok_or("the source itself cannot be written as SQL")?.schema();
    let was = provider.schema();
    let columns: Vec<String> = was.fields().iter().map(|f| f.name().clone()).collect();
    let differences = check_same_types(&was, &again, &columns);
    if differences.is_empty() && again.fields().len() == columns.len() {
        return Ok(());
    }
    Err(differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

struct Writer {
    state: SessionState,
    seen: BTreeSet<TableName>,
    statements: Vec<String>,
}

impl Writer {
    /// Writes `provider`'s statement after those of the tables that it reads.
    fn table(&mut self, name: TableName, provider: Arc<dyn TableProvider>) -> BoxFuture<'_, Result<(), DataFusionError>> {
        async move {
            if !self.seen.insert(name.clone()) {
                return Ok(());
            }
            if let Some(listing) = provider.downcast_ref::<ListingTable>() {
                let table = self.external(name, listing).await?;
                self.statements.extend(table.and_then(|t| t.to_sql()));
            } else if provider.table_type() == TableType::View
                && let Some(definition) = provider.get_table_definition()
            {
                self.view(name, definition).await?;
            }
            Ok(())
        }
        .boxed()
    }

    async fn view(&mut self, name: TableName, definition: &str) -> Result<(), DataFusionError> {
        let Statement::Statement(statement) = parse(&self.state, definition)? else { return Ok(()) };
        let SqlStatement::CreateView(mut view) = *statement else { return Ok(()) };
        let reads = self.state.resolve_table_references(&Statement::Statement(Box::new(SqlStatement::Query(view.query.clone()))))?;
        for reference in reads {
            let reference = full_name(&self.state, reference);
            if let Some(table) = find(self.state.catalog_list().as_ref(), &reference).await? {
                self.table(reference, table).await?;
            }
        }
        let mut qualify = Qualify { state: &self.state, ctes: Vec::new() };
        let _ = VisitMut::visit(&mut view.query, &mut qualify);
        view.or_replace = false;
        view.if_not_exists = false;
        view.name = object_name(&name);
        self.statements.push(SqlStatement::CreateView(view).to_string());
        Ok(())
    }

    async fn external(&self, name: TableName, listing: &ListingTable) -> Result<Option<ExternalTable>, DataFusionError> {
        let declared = match recorded(&self.state, listing) {
            Some(declared) => declared,
            None => self.looks_declared(listing).await,
        };
        let columns = declared.then(|| listing.schema().fields().iter().map(|f| f.as_ref().clone()).collect::<Vec<Field>>());
        let locations = listing.table_paths().iter().map(location).collect::<Option<Vec<_>>>();
        let (file_type, options) = self.format(listing);
        let partitions = listing.options().table_partition_cols.iter().map(|(name, _)| name.clone()).collect();
        let name = name.to_vec();
        Ok(locations.map(|locations| ExternalTable { name, columns, file_type, partitions, locations, options, unbounded: false }))
    }

    /// A guess for tables that were created without our factories: columns that are what the files say were inferred.
    async fn looks_declared(&self, listing: &ListingTable) -> bool {
        // Where it infers the columns of a local folder, CREATE EXTERNAL TABLE narrows the folder to a pattern.
        if listing.get_table_definition().is_some() && listing.table_paths().iter().any(|url| url.is_folder() && url.get_glob().is_none()) {
            return true;
        }
        match infer(&self.state, listing).await {
            Ok(Some(now)) => !same_columns(&file_schema(listing), &now.schema),
            // Files that cannot say anything: keep what the table says.
            Ok(None) | Err(_) => true,
        }
    }

    /// The format's name and its options that are not the defaults.
    fn format(&self, listing: &ListingTable) -> (String, BTreeMap<String, String>) {
        let definition = listing.get_table_definition().and_then(|text| parse(&self.state, text).ok());
        let Some(Statement::CreateExternalTable(create)) = definition else { return format_options(listing) };
        let (_, mut options) = format_options(listing);
        for (key, value) in &create.options {
            if let Some(text) = value.clone().into_string() {
                options.entry(key.clone()).or_insert(text);
            }
        }
        (create.file_type, options)
    }
}

/// The format's name and those of its options that are not the defaults.
pub(super) fn format_options(listing: &ListingTable) -> (String, BTreeMap<String, String>) {
    let format = listing.options().format.as_ref();
    let (mut all, mut default) = (TableOptions::default(), TableOptions::default());
    let kind = if let Some(csv) = format.downcast_ref::<CsvFormat>() {
        all.csv = csv.options().clone();
        ConfigFileType::CSV
    } else if let Some(json) = format.downcast_ref::<JsonFormat>() {
        all.json = json.options().clone();
        ConfigFileType::JSON
    } else if let Some(parquet) = format.downcast_ref::<ParquetFormat>() {
        all.parquet = parquet.options().clone();
        ConfigFileType::PARQUET
    } else {
        return (format.get_ext().to_uppercase(), BTreeMap::new());
    };
    all.set_config_format(kind.clone());
    default.set_config_format(kind);
    let usual: BTreeMap<String, Option<String>> = default.entries().into_iter().map(|e| (e.key, e.value)).collect();
    let special = all.entries().into_iter().filter(|e| usual.get(&e.key) != Some(&e.value));
    let options = special.filter_map(|e| Some((e.key, e.value?))).collect();
    (format.get_ext().to_uppercase(), options)
}

/// The absolute location; `None` when it cannot be written so that it is read back the same.
fn location(url: &ListingTableUrl) -> Option<String> {
    if url.scheme() != "file" {
        return url.get_glob().is_none().then(|| url.as_str().to_string());
    }
    let mut path = LocalFileSystem::new().path_to_filesystem(url.prefix()).ok()?.to_str()?.to_string();
    let special = path.contains(['*', '?', '[']);
    if special {
        // A path would be read as a pattern; a URL is not.
        return url.get_glob().is_none().then(|| url.as_str().to_string());
    }
    if url.is_collection() && !path.ends_with('/') {
        path.push('/');
    }
    if let Some(glob) = url.get_glob() {
        path.push_str(glob.as_str());
    }
    Some(path)
}

/// Gives every table in a query its full name, so that it does not depend on a session's default schema. Names of common
/// table expressions stay.
struct Qualify<'a> {
    state: &'a SessionState,
    ctes: Vec<TableReference>,
}

impl Qualify<'_> {
    fn reference(&self, name: &ObjectName) -> Option<TableReference> {
        let normalize = self.state.config_options().sql_parser.enable_ident_normalization;
        object_name_to_table_reference(name.clone(), normalize).ok()
    }
}

impl VisitorMut for Qualify<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let Some(with) = &mut query.with else { return ControlFlow::Continue(()) };
        for cte in &mut with.cte_tables {
            if !with.recursive {
                // A name is not in scope in its own definition; visiting it again later changes nothing.
                VisitMut::visit(cte, self)?;
            }
            let name = ObjectName::from(vec![cte.alias.name.clone()]);
            // A name that cannot be read still takes its place, since it will be taken off again.
            self.ctes.push(self.reference(&name).unwrap_or_else(|| TableReference::bare("")));
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let names = query.with.as_ref().map_or(0, |with| with.cte_tables.len());
        self.ctes.truncate(self.ctes.len().saturating_sub(names));
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &mut ObjectName) -> ControlFlow<()> {
        if let Some(reference) = self.reference(relation) {
            // A table function also comes by here; it has no table of its name.
            let name = full_name(self.state, reference.clone());
            let schema = self.state.catalog_list().catalog(&name[0]).and_then(|c| c.schema(&name[1]));
            if !self.ctes.contains(&reference) && schema.is_some_and(|s| s.table_exist(&name[2])) {
                *relation = object_name(&name);
            }
        }
        ControlFlow::Continue(())
    }
}

fn object_name(name: &TableName) -> ObjectName {
    ObjectName::from(name.iter().map(|part| Ident::with_quote('"', part)).collect::<Vec<_>>())
}

/// `SOURCE_NOT_FOUND` with the names that come nearest.
pub(super) fn not_found(state: &SessionState, name: &TableName) -> Error {
    let mut near: Vec<(f64, String)> = Vec::new();
    for catalog in state.catalog_list().catalog_names() {
        let Some(provider) = state.catalog_list().catalog(&catalog) else { continue };
        for schema in provider.schema_names().into_iter().filter(|s| s != "information_schema") {
            let tables = provider.schema(&schema).map(|s| s.table_names()).unwrap_or_default();
            let score = |table: &str| strsim::jaro_winkler(&name[2].to_lowercase(), &table.to_lowercase());
            near.extend(tables.into_iter().map(|t| (score(&t), display(&[catalog.clone(), schema.clone(), t]))));
        }
    }
    near.retain(|(score, _)| *score > 0.75);
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let names: Vec<String> = near.into_iter().take(3).map(|(_, name)| format!("\"{name}\"")).collect();
    let hint = if names.is_empty() { String::new() } else { format!(" Did you mean {}?", names.join(" or ")) };
    Error::new(
        ErrorCode::SourceNotFound,
        format!("source \"{}\" does not exist in this session.{hint} Remedy: create or register the source first", display(name)),
    )
}
