//! CREATE statements as text: written without secrets, read back and planned in a derived state only.
//!
//! ```text
//! ExternalTable { name, columns?, … } ── to_sql ──► CREATE EXTERNAL TABLE "c"."s"."t" (…) STORED AS CSV LOCATION '…' OPTIONS (…)
//!        columns = Some: declared, they win over what the files say        columns = None: inferred at every capture
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, TimeUnit};
use datafusion::catalog::TableProvider;
use datafusion::common::{DFSchema, DataFusionError, plan_datafusion_err};
use datafusion::datasource::ViewTable;
use datafusion::datasource::listing::ListingTable;
use datafusion::error::Result;
use datafusion::execution::context::SessionState;
use datafusion::logical_expr::{CreateView, DdlStatement, LogicalPlan};
use datafusion::optimizer::analyzer::AnalyzerRule;
use datafusion::optimizer::analyzer::type_coercion::TypeCoercion;
use datafusion::sql::parser::Statement;

use super::overlay::{TableName, full_name};
use super::refresh::is_disagreement;
use crate::redact::{is_secret_name, location_without_credentials, without_credentials};

/// Begins a recorded definition whose columns were not declared.
pub(super) const INFERRED: &str = "/* columns inferred */ ";

/// The only column of a table whose columns are still to be inferred.
const PLACEHOLDER: &str = "__incremental_inferred";

/// What a CREATE EXTERNAL TABLE statement says.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ExternalTable {
    pub(super) name: Vec<String>,
    /// Declared columns, partition columns included; `None` when they are inferred from the files.
    pub(super) columns: Option<Vec<Field>>,
    pub(super) file_type: String,
    pub(super) partitions: Vec<String>,
    pub(super) locations: Vec<String>,
    pub(super) options: BTreeMap<String, String>,
    pub(super) unbounded: bool,
}

impl ExternalTable {
    /// The statement, without secrets; `None` when SQL cannot say it (a type or a partition column without a spelling).
    pub(super) fn to_sql(&self) -> Option<String> {
        let mut sql = String::from("CREATE ");
        if self.unbounded {
            sql.push_str("UNBOUNDED ");
        }
        let name: Vec<String> = self.name.iter().map(|part| ident(part)).collect();
        write!(sql, "EXTERNAL TABLE {}", name.join(".")).ok()?;
        if let Some(columns) = &self.columns {
            let columns: Option<Vec<String>> = columns.iter().map(column).collect();
            write!(sql, " ({})", columns?.join(", ")).ok()?;
        }
        write!(sql, " STORED AS {}", self.file_type).ok()?;
        if !self.partitions.is_empty() {
            // DataFusion takes these names as they are written, quotes included.
            if !self.partitions.iter().all(|p| is_plain(p)) {
                return None;
            }
            write!(sql, " PARTITIONED BY ({})", self.partitions.join(", ")).ok()?;
        }
        let locations: Vec<String> = self.locations.iter().map(|l| text(&location_without_credentials(l))).collect();
        match locations.as_slice() {
            [] => return None,
            [one] => write!(sql, " LOCATION {one}").ok()?,
            many => write!(sql, " LOCATION ({})", many.join(", ")).ok()?,
        }
        let kept = self.options.iter().filter(|(key, _)| !is_secret_name(key));
        let options: Vec<String> = kept.map(|(key, value)| format!("{} {}", text(key), text(&without_credentials(value)))).collect();
        if !options.is_empty() {
            write!(sql, " OPTIONS ({})", options.join(", ")).ok()?;
        }
        Some(sql)
    }
}

fn column(field: &Field) -> Option<String> {
    let null = if field.is_nullable() { "" } else { " NOT NULL" };
    Some(format!("{} {}{null}", ident(field.name()), sql_type(field.data_type())?))
}

/// A quoted identifier.
pub(super) fn ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn text(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

fn is_plain(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The SQL spelling of a type, for those that DataFusion's CREATE EXTERNAL TABLE can declare.
fn sql_type(data_type: &DataType) -> Option<String> {
    let name = match data_type {
        DataType::Boolean => "BOOLEAN",
        DataType::Int8 => "TINYINT",
        DataType::Int16 => "SMALLINT",
        DataType::Int32 => "INT",
        DataType::Int64 => "BIGINT",
        DataType::UInt8 => "TINYINT UNSIGNED",
        DataType::UInt16 => "SMALLINT UNSIGNED",
        DataType::UInt32 => "INT UNSIGNED",
        DataType::UInt64 => "BIGINT UNSIGNED",
        DataType::Float32 => "REAL",
        DataType::Float64 => "DOUBLE",
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "VARCHAR",
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "BYTEA",
        DataType::Date32 => "DATE",
        DataType::Time64(TimeUnit::Nanosecond) => "TIME",
        DataType::Timestamp(unit, zone) => return Some(timestamp(unit, zone.is_some())),
        DataType::Decimal128(p, s) | DataType::Decimal256(p, s) if *s >= 0 => return Some(format!("DECIMAL({p}, {s})")),
        DataType::Dictionary(_, value) => return sql_type(value),
        DataType::List(item) => return Some(format!("{}[]", sql_type(item.data_type())?)),
        DataType::FixedSizeList(item, n) => return Some(format!("{}[{n}]", sql_type(item.data_type())?)),
        DataType::Struct(fields) => {
            let fields = fields.iter().map(|f| Some(format!("{} {}", ident(f.name()), sql_type(f.data_type())?)));
            return Some(format!("STRUCT<{}>", fields.collect::<Option<Vec<_>>>()?.join(", ")));
        }
        _ => return None,
    };
    Some(name.to_string())
}

fn timestamp(unit: &TimeUnit, zoned: bool) -> String {
    let precision = match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    };
    format!("TIMESTAMP({precision}){}", if zoned { " WITH TIME ZONE" } else { "" })
}

/// Parses one statement in `state`'s dialect.
pub(super) fn parse(state: &SessionState, sql: &str) -> Result<Statement> {
    state.sql_to_statement(sql, &state.config_options().sql_parser.dialect)
}

/// The table that a CREATE statement creates, and whether it declares its columns.
pub(super) fn created(state: &SessionState, statement: &Statement) -> Option<(TableName, bool)> {
    let normalize = state.config_options().sql_parser.enable_ident_normalization;
    let (name, declared) = match statement {
        Statement::CreateExternalTable(create) => (&create.name, !create.columns.is_empty()),
        Statement::Statement(inner) => match inner.as_ref() {
            datafusion::sql::sqlparser::ast::Statement::CreateView(view) => (&view.name, false),
            _ => return None,
        },
        _ => return None,
    };
    let reference = datafusion::sql::planner::object_name_to_table_reference(name.clone(), normalize).ok()?;
    Some((full_name(state, reference), declared))
}

/// Plans a CREATE EXTERNAL TABLE or CREATE VIEW statement and builds its table, registering it nowhere.
pub(super) async fn build(state: &SessionState, statement: Statement) -> Result<Arc<dyn TableProvider>> {
    match state.statement_to_plan(statement).await? {
        LogicalPlan::Ddl(DdlStatement::CreateExternalTable(create)) => {
            let file_type = create.file_type.to_uppercase();
            let factory = state
                .table_factories()
                .get(&file_type)
                .ok_or_else(|| plan_datafusion_err!("this session cannot read tables STORED AS {file_type}"))?;
            factory.create(state, &create).await
        }
        LogicalPlan::Ddl(DdlStatement::CreateView(view)) => view_table(state, view),
        _ => Err(DataFusionError::Plan("the statement is neither CREATE EXTERNAL TABLE nor CREATE VIEW".into())),
    }
}

/// As [`build`], also where the files of an external table without declared columns do not agree on them. The table then
/// has no columns of its own; they are inferred again when it is refreshed.
/// (then `false` comes with it).
pub(super) async fn build_any(state: &SessionState, statement: Statement) -> Result<(Arc<dyn TableProvider>, bool)> {
    let error = match build(state, statement.clone()).await {
        Err(error) if is_disagreement(&error) => error,
        other => return other.map(|table| (table, true)),
    };
    let LogicalPlan::Ddl(DdlStatement::CreateExternalTable(mut create)) = state.statement_to_plan(statement).await? else {
        return Err(error);
    };
    // The factory does not infer where it finds a column; those of the folders it looks up by name.
    let names = create.table_partition_cols.iter().map(String::as_str).chain([PLACEHOLDER]);
    let fields: Vec<Field> = names.map(|name| Field::new(name, DataType::Utf8, true)).collect();
    create.schema = Arc::new(DFSchema::try_from(Schema::new(fields))?);
    let Some(factory) = state.table_factories().get(&create.file_type.to_uppercase()) else { return Err(error) };
    let built = factory.create(state, &create).await?;
    let Some(listing) = built.downcast_ref::<ListingTable>() else { return Err(error) };
    let inferred = listing.get_table_definition().map(|text| format!("{INFERRED}{text}"));
    Ok((Arc::new(listing.clone().with_definition(inferred)), false))
}

fn view_table(state: &SessionState, view: CreateView) -> Result<Arc<dyn TableProvider>> {
    // As SessionContext does when it executes CREATE VIEW.
    let plan = TypeCoercion::new().analyze(Arc::unwrap_or_clone(view.input), state.config_options())?;
    Ok(Arc::new(ViewTable::new(plan, view.definition)))
}
