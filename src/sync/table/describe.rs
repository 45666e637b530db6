//! What a table of the session is: its columns, and the keys that its provider declares.

use datafusion::common::Constraint;
use datafusion::execution::SessionState;
use datafusion::logical_expr::TableType;

use super::super::connector::{RelationKind, SourceColumn, SourceTable};
use crate::error::{Error, ErrorCode, Result};
use crate::plan::source::ResolvedSource;
use crate::spec::unsupported_type;

/// A name with the session's default catalog and schema filled in.
pub(super) fn full_name(state: &SessionState, parts: &[String]) -> Result<Vec<String>> {
    let defaults = &state.config_options().catalog;
    let (catalog, schema) = (defaults.default_catalog.clone(), defaults.default_schema.clone());
    match parts {
        [table] => Ok(vec![catalog, schema, table.clone()]),
        [schema, table] => Ok(vec![catalog, schema.clone(), table.clone()]),
        [_, _, _] => Ok(parts.to_vec()),
        other => Err(Error::new(
            ErrorCode::SourceNotFound,
            format!(
                "no table of the session is called {:?}. Remedy: write catalog.schema.table, or create the connection",
                other.join(".")
            ),
        )),
    }
}

/// Every table of the session but those of the information schema, in name order.
pub(super) fn all_names(state: &SessionState) -> Vec<Vec<String>> {
    let mut names = vec![];
    for catalog_name in state.catalog_list().catalog_names() {
        let Some(catalog) = state.catalog_list().catalog(&catalog_name) else { continue };
        for schema_name in catalog.schema_names().into_iter().filter(|name| name != "information_schema") {
            let Some(schema) = catalog.schema(&schema_name) else { continue };
            names.extend(schema.table_names().into_iter().map(|table| vec![catalog_name.clone(), schema_name.clone(), table]));
        }
    }
    names.sort();
    names
}

pub(super) fn describe(name: &[String], source: &ResolvedSource) -> SourceTable {
    let fields = source.schema.fields();
    let columns = fields.iter().map(|field| SourceColumn {
        name: field.name().clone(),
        data_type: field.data_type().clone(),
        source_type: field.data_type().to_string(),
        is_nullable: field.is_nullable(),
        leads_index: false,
        unsupported: unsupported_type(field.data_type(), false),
    });
    let column_names = |positions: &Vec<usize>| -> Vec<String> {
        positions.iter().filter_map(|at| fields.get(*at)).map(|field| field.name().clone()).collect()
    };
    let (mut primary_key, mut unique_keys) = (vec![], vec![]);
    for constraint in source.provider.constraints().into_iter().flat_map(|constraints| constraints.iter()) {
        match constraint {
            Constraint::PrimaryKey(positions) => primary_key = column_names(positions),
            Constraint::Unique(positions) => {
                // A unique column that may be null does not identify its rows.
                let is_total = positions.iter().all(|at| fields.get(*at).is_some_and(|field| !field.is_nullable()));
                unique_keys.extend(is_total.then(|| column_names(positions)));
            }
        }
    }
    let kind = match source.provider.table_type() {
        TableType::View => RelationKind::View,
        TableType::Base | TableType::Temporary => RelationKind::Table,
    };
    SourceTable { name: name.to_vec(), kind, columns: columns.collect(), primary_key, unique_keys }
}
