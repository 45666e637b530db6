//! `CREATE EXTERNAL TABLE … STORED AS INCREMENTAL`: the same definition in DataFusion's own statement.
//!
//! ```text
//! OPTIONS ('incremental.source' 'customers', 'incremental.key' 'id', 'incremental.track' 'name',
//!          'incremental.handler' 'SELECT …' (or the name of a registered handler), 'incremental.<option>' '…')
//! without options: attaches to what LOCATION holds
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider, TableProviderFactory};
use datafusion::common::Constraint;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::CreateExternalTable;

use super::extension::Extension;
use super::functions::session_state;
use super::names::{parse_name_list, parse_table_name};
use super::resolve::check_schema;
use crate::define::{Existing, HandlerChoice, TableSpec, attach, check_columns, create};
use crate::env::Location;
use crate::error::{Error, ErrorCode, Result};
use crate::spec::Options;
use crate::table::IncrementalTable;

/// Registered for `STORED AS INCREMENTAL`.
#[derive(Debug, Default)]
pub struct IncrementalTableFactory;

#[async_trait]
impl TableProviderFactory for IncrementalTableFactory {
    async fn create(&self, session: &dyn Session, cmd: &CreateExternalTable) -> DfResult<Arc<dyn TableProvider>> {
        let state = session_state(session)?;
        let extension = Extension::of(&state)?;
        let host = extension.host(&state);
        let [location] = cmd.locations.as_slice() else {
            return Err(invalid(cmd, "it has several locations", "give one folder").into());
        };
        check_clauses(cmd)?;
        let location = Location::resolve(location, state.runtime_env())?;
        let mut options = own_options(cmd);
        if options.is_empty() {
            let handle = attach(&host, &cmd.name, location).await?;
            check_columns(handle.name(), cmd.schema.as_arrow(), &handle.cached_schema())?;
            return Ok(Arc::new(IncrementalTable::new(handle)));
        }
        extension.check_may_act(&state, "CREATE EXTERNAL TABLE … STORED AS INCREMENTAL")?;
        check_schema(&state, &cmd.name)?;
        let spec = spec(cmd, &mut options)?;
        let existing = if cmd.or_replace { Existing::Alter } else { Existing::Attach };
        let created = create(&host, &spec, location, existing).await?;
        Ok(Arc::new(IncrementalTable::new(created.handle)))
    }
}

/// Clauses that would be dropped without a word.
fn check_clauses(cmd: &CreateExternalTable) -> Result<()> {
    let clauses = [
        (!cmd.table_partition_cols.is_empty(), "PARTITIONED BY"),
        (!cmd.order_exprs.is_empty(), "WITH ORDER"),
        (cmd.unbounded, "UNBOUNDED"),
    ];
    match clauses.iter().find(|(given, _)| *given) {
        Some((_, clause)) => Err(invalid(cmd, &format!("an incremental table has no {clause}"), "leave it out")),
        None => Ok(()),
    }
}

/// Options without the prefixes that the grammar adds or asks for.
fn own_options(cmd: &CreateExternalTable) -> HashMap<String, String> {
    let strip = |name: &str| name.strip_prefix("format.").unwrap_or(name).trim_start_matches("incremental.").to_string();
    cmd.options.iter().map(|(name, value)| (strip(name), value.clone())).collect()
}

fn spec(cmd: &CreateExternalTable, options: &mut HashMap<String, String>) -> Result<TableSpec> {
    let mut take = |name: &str| options.remove(name);
    let (source, key, track, handler) = (take("source"), take("key"), take("track"), take("handler"));
    // An option with a wrong name is more likely the mistake than one that is left out.
    let options = Options::parse(&cmd.name.to_string(), options.drain())?;
    let source = source.ok_or_else(|| invalid(cmd, "it has no source", "set the option 'incremental.source'"))?;
    let key = match key {
        Some(list) => parse_name_list(&list)?,
        None => primary_key(cmd)?,
    };
    let track = track.map(|list| parse_name_list(&list)).transpose()?;
    let handler = handler.ok_or_else(|| invalid(cmd, "it has no handler", "set the option 'incremental.handler'"))?;
    Ok(TableSpec {
        name: cmd.name.clone(),
        source: parse_table_name(&source)?,
        key,
        track,
        handler: if is_query(&handler) { HandlerChoice::Sql(handler) } else { HandlerChoice::Registered(handler) },
        options,
        columns: (!cmd.schema.fields().is_empty()).then(|| Arc::new(cmd.schema.as_arrow().clone())),
    })
}

/// The name of a registered handler is one word; a query never is.
fn is_query(text: &str) -> bool {
    text.split_whitespace().nth(1).is_some()
}

fn primary_key(cmd: &CreateExternalTable) -> Result<Vec<String>> {
    for constraint in cmd.constraints.iter() {
        if let Constraint::PrimaryKey(columns) = constraint {
            return Ok(columns.iter().filter_map(|i| cmd.schema.fields().get(*i)).map(|f| f.name().clone()).collect());
        }
    }
    Err(invalid(cmd, "it has no key", "set the option 'incremental.key'"))
}

fn invalid(cmd: &CreateExternalTable, what: &str, remedy: &str) -> Error {
    Error::new(ErrorCode::DefinitionInvalid, format!("table {}: {what}. Remedy: {remedy}", cmd.name))
}
