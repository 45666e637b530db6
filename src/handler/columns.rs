//! KEY and TRACK columns: they exist, once, with usable types.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};

use super::RESERVED_PREFIX;
use crate::error::{Error, ErrorCode, Result};
use crate::spec::{check_same_types, unsupported_type};

/// Checks the names of one clause (`KEY` or `TRACK`) against the source.
///
/// # Errors
/// `DEFINITION_INVALID` for an unknown column (naming the nearest) or one given twice; `TYPE_UNSUPPORTED`.
pub(crate) fn check_clause(table: &str, clause: &str, names: &[String], source: &Schema) -> Result<()> {
    for (position, name) in names.iter().enumerate() {
        if names.iter().take(position).any(|earlier| earlier == name) {
            return Err(invalid(table, &format!("{clause} names column {name:?} twice"), "name it once"));
        }
        let Ok(field) = source.field_with_name(name) else {
            let hint = nearest(name, source.fields().iter().map(|f| f.name().as_str()));
            return Err(invalid(table, &format!("{clause} names column {name:?}, which the source does not have"), &hint));
        };
        if name.starts_with(RESERVED_PREFIX) {
            let what = format!("{clause} names column {name:?}; names that start with {RESERVED_PREFIX} are reserved");
            return Err(invalid(table, &what, "rename the column in a source view"));
        }
        check_type(table, clause, field)?;
    }
    Ok(())
}

/// Refuses a type that the clause cannot use.
pub(crate) fn check_type(table: &str, clause: &str, field: &Field) -> Result<()> {
    match unsupported_type(field.data_type(), clause == "KEY") {
        None => Ok(()),
        Some(reason) => Err(Error::new(
            ErrorCode::TypeUnsupported,
            format!(
                "table {table:?}: {clause} column {:?} has type {}: {reason}. Remedy: change it in a source view",
                field.name(),
                field.data_type()
            ),
        )),
    }
}

/// The schema of `input`: those of `key` that the source has, then `tracked`.
pub(crate) fn input_schema(source: &Schema, key: &[String], tracked: &[String]) -> SchemaRef {
    let fields: Vec<Field> = key.iter().chain(tracked).filter_map(|name| source.field_with_name(name).ok().cloned()).collect();
    Arc::new(Schema::new(fields))
}

/// The tracked columns without the key columns, which are always included.
pub(crate) fn without_keys(tracked: &[String], key: &[String]) -> Vec<String> {
    tracked.iter().filter(|name| !key.contains(name)).cloned().collect()
}

/// Checks what a handler returns against what every table demands of it.
///
/// # Errors
/// `HANDLER_REFUSED` for duplicate or reserved names, columns of type Null or of types that Parquet cannot hold, and
/// key columns that are missing or have another type than in `input` (where `input` has them).
pub(crate) fn check_output(table: &str, key: &[String], input: &Schema, output: &Schema) -> Result<()> {
    for (position, field) in output.fields().iter().enumerate() {
        let name = field.name();
        if output.fields().iter().take(position).any(|earlier| earlier.name() == name) {
            return Err(refused(table, &format!("two output columns are named {name:?}"), "give each its own name with AS"));
        }
        if name.starts_with(RESERVED_PREFIX) {
            let what = format!("the output column {name:?} has a reserved name (they start with {RESERVED_PREFIX})");
            return Err(refused(table, &what, "give it another name with AS"));
        }
        if let Some(reason) = unsupported_type(field.data_type(), key.contains(name)) {
            let what = format!("the output column {name:?} has type {}: {reason}", field.data_type());
            let remedy = "give it a type with CAST, for example CAST(NULL AS VARCHAR)";
            if *field.data_type() == DataType::Null {
                return Err(refused(table, &what, remedy));
            }
            return Err(Error::new(ErrorCode::TypeUnsupported, format!("table {table:?}: {what}. Remedy: {remedy}")));
        }
    }
    if let Some(missing) = key.iter().find(|name| output.field_with_name(name).is_err()) {
        let what = format!("the key column {missing:?} is missing in the output");
        return Err(refused(table, &what, &format!("return {missing:?} under its own name")));
    }
    let shared: Vec<String> = key.iter().filter(|name| input.field_with_name(name).is_ok()).cloned().collect();
    match check_same_types(input, output, &shared).first() {
        None => Ok(()),
        Some(difference) => Err(refused(table, &format!("key {difference} in the output"), "return the key unchanged")),
    }
}

/// `HANDLER_REFUSED` with its remedy.
pub(crate) fn refused(table: &str, what: &str, remedy: &str) -> Error {
    Error::new(ErrorCode::HandlerRefused, format!("table {table:?}: {what}. Remedy: {remedy}"))
}

fn invalid(table: &str, what: &str, remedy: &str) -> Error {
    Error::new(ErrorCode::DefinitionInvalid, format!("table {table:?}: {what}. Remedy: {remedy}"))
}

/// What to do about a name that does not exist: quotes where only the case differs, else the nearest name.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    if let Some(exact) = known.clone().find(|candidate| candidate.eq_ignore_ascii_case(name)) {
        return format!("the column is {exact:?}: names with capitals need double quotes");
    }
    match known.min_by_key(|candidate| strsim::damerau_levenshtein(&candidate.to_lowercase(), &name.to_lowercase())) {
        Some(candidate) => format!("the nearest column is {candidate:?}"),
        None => "there are no columns".into(),
    }
}
