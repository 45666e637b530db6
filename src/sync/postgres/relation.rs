//! A table of the source with what reading it needs: the public description, and each column's type resolved.

use super::literal::identifier;
use super::types::ColumnType;
use crate::error::{ErrorCode, Result};
use crate::handler::nearest;
use crate::sync::connector::SourceTable;
use crate::sync::postgres::failure::Subject;

/// A table as a snapshot sees it.
#[derive(Debug, Clone)]
pub(super) struct Relation {
    /// Its number in the catalogue.
    pub oid: u32,
    /// What the core sees. Its columns are in the order of `types`.
    pub table: SourceTable,
    /// `Err` says why a column cannot be read.
    pub types: Vec<Result<ColumnType, String>>,
}

/// A column that can be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column<'a> {
    pub name: &'a str,
    pub ty: &'a ColumnType,
}

impl Relation {
    /// The name as a statement writes it.
    pub(super) fn sql_name(&self) -> String {
        self.table.name.iter().map(|part| identifier(part)).collect::<Vec<_>>().join(".")
    }

    /// A column that can be read.
    ///
    /// # Errors
    /// `FIELD_NOT_FOUND` with the nearest name, `TYPE_UNSUPPORTED` with the reason.
    pub(super) fn column(&self, name: &str, subject: &Subject) -> Result<Column<'_>> {
        let found = self.table.columns.iter().zip(&self.types).find(|(column, _)| column.name == name);
        match found {
            Some((column, Ok(ty))) => Ok(Column { name: &column.name, ty }),
            Some((_, Err(reason))) => Err(subject.error(
                ErrorCode::TypeUnsupported,
                format!("column {name:?} cannot be read: {reason}"),
                "leave it out with enabled_columns, or sync a view that converts it",
            )),
            None => Err(subject.error(
                ErrorCode::FieldNotFound,
                format!(
                    "the source has no column {name:?}; {}",
                    nearest(name, self.table.columns.iter().map(|column| column.name.as_str()))
                ),
                "see sync_incremental_fields for the columns there are, and change the table's settings",
            )),
        }
    }
}
