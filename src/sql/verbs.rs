//! The one table of verbs: what `CALL incremental.<verb>(…)` and the table functions `incremental_<verb>(…)` take, and
//! those of `sync.`, which are in `sync::verbs`.
//!
//! ```text
//! VERBS ─┬─ CALL incremental.vacuum(t, dry_run => false)      names allowed
//!        └─ SELECT * FROM incremental_vacuum('t', false)      same parameters in the same order, literals by position
//!                └──► bind_arguments ──► BoundArguments       names and kinds checked; defaults are the executor's
//! ```

use std::collections::BTreeMap;

use arrow::datatypes::DataType;
use datafusion::common::TableReference;
use datafusion::scalar::ScalarValue;

use super::names::parse_table_name;
use super::sync::verbs::SYNC_VERBS;
use crate::error::{Error, ErrorCode, Result};

/// What a parameter takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    /// The name of a table, as text.
    Table,
    /// A text.
    Text,
    /// A whole number from 0.
    Number,
    /// TRUE or FALSE.
    Boolean,
    /// A duration such as `'7 days'`.
    Duration,
    /// A timestamp, as text.
    Timestamp,
    /// One or more values of any type; always the last parameter.
    Values,
}

impl ParamKind {
    fn example(self) -> &'static str {
        match self {
            Self::Table => "the name of a table: 'orders' or '\"My Table\"'",
            Self::Text => "a text in single quotes",
            Self::Number => "a whole number from 0",
            Self::Boolean => "TRUE or FALSE",
            Self::Duration => "a duration such as '7 days'",
            Self::Timestamp => "a timestamp such as '2026-01-31T12:00:00Z'",
            Self::Values => "literals",
        }
    }
}

/// One parameter of a verb.
#[derive(Debug)]
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub kind: ParamKind,
    /// Whether it must be given.
    pub required: bool,
}

/// What verbs are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Incremental tables: `CALL incremental.<verb>`.
    Incremental,
    /// Synced tables: `CALL sync.<verb>`.
    Sync,
}

impl Family {
    /// Every family.
    pub const ALL: [Self; 2] = [Self::Incremental, Self::Sync];

    /// What stands before the verb.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Incremental => "incremental",
            Self::Sync => "sync",
        }
    }

    /// Its verbs.
    pub fn verbs(self) -> &'static [VerbSpec] {
        match self {
            Self::Incremental => VERBS,
            Self::Sync => SYNC_VERBS,
        }
    }
}

/// One verb.
#[derive(Debug)]
pub struct VerbSpec {
    /// What it is about.
    pub family: Family,
    /// Its name; the table function is `<family>_<name>`.
    pub name: &'static str,
    /// Its parameters, in order.
    pub params: &'static [Param],
    /// Whether it changes anything that is stored, and so needs the host's leave.
    pub acts: bool,
    /// What it does, one line.
    pub doc: &'static str,
}

impl VerbSpec {
    /// `refresh(table [, mode] [, run])`.
    pub fn signature(&self) -> String {
        let mut text = format!("{}(", self.name);
        for (n, param) in self.params.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            let name = if param.kind == ParamKind::Values { format!("{}, …", param.name) } else { param.name.to_string() };
            text.push_str(&if param.required { format!("{comma}{name}") } else { format!("[{comma}{name}]") });
        }
        text.push(')');
        text
    }

    /// The name of the table function: `<family>_<name>`.
    pub fn function(&self) -> String {
        format!("{}_{}", self.family.as_str(), self.name)
    }

    fn refuse(&self, what: &str, remedy: &str) -> Error {
        Error::new(
            ErrorCode::StatementInvalid,
            format!("{} verb {:?}: {what}. Remedy: {remedy}; the form is {}", self.family.as_str(), self.name, self.signature()),
        )
    }
}

const fn required(name: &'static str, kind: ParamKind) -> Param {
    Param { name, kind, required: true }
}

const fn optional(name: &'static str, kind: ParamKind) -> Param {
    Param { name, kind, required: false }
}

const fn reads(name: &'static str, params: &'static [Param], doc: &'static str) -> VerbSpec {
    VerbSpec { family: Family::Incremental, name, params, acts: false, doc }
}

const fn acts(name: &'static str, params: &'static [Param], doc: &'static str) -> VerbSpec {
    VerbSpec { family: Family::Incremental, name, params, acts: true, doc }
}

use ParamKind::{Boolean, Duration, Number, Table, Text, Timestamp, Values};

const TABLE: Param = required("table", Table);

/// Every verb.
pub const VERBS: &[VerbSpec] = &[
    acts("refresh", &[TABLE, optional("mode", Text), optional("run", Text)], "runs a refresh: mode is published, draft or full"),
    reads("explain_refresh", &[TABLE], "the plans of the next refresh and what it would skip; reads no source data"),
    reads("test", &[TABLE, required("handler", Text)], "tries an unsaved handler on all current rows and leaves no trace"),
    reads("at", &[TABLE, required("version", Number)], "the table at a version"),
    reads("at_timestamp", &[TABLE, required("timestamp", Timestamp)], "the table as it was at a time"),
    reads("output", &[TABLE, required("run", Text)], "the complete output of a draft or an earlier run"),
    reads("row", &[TABLE, required("key", Values)], "why a row is as it is"),
    reads("tables", &[], "every incremental table"),
    reads("runs", &[optional("table", Table)], "the runs of a table, or of all"),
    reads("versions", &[optional("table", Table)], "the versions of a table, or of all"),
    reads("revisions", &[optional("table", Table)], "the revisions of a table, or of all"),
    reads("files", &[optional("table", Table)], "the data files of the newest version of a table, or of all"),
    acts("rollback", &[TABLE, required("version", Number)], "publishes the rows of an earlier version as a new version"),
    acts("activate", &[TABLE, optional("revision", Number)], "makes a revision the active one; without a number the newest"),
    acts("cancel", &[TABLE, required("run", Text)], "asks a run to stop"),
    acts("compact", &[TABLE], "rewrites many small files as few, without changing a row"),
    acts(
        "vacuum",
        &[TABLE, optional("dry_run", Boolean), optional("older_than", Duration)],
        "deletes what no retained version needs; a dry run unless dry_run is FALSE",
    ),
    acts("drop", &[TABLE, optional("purge", Boolean)], "drops a table; purge deletes its data too"),
];

/// The verb of this name (lower case).
///
/// # Errors
/// `STATEMENT_INVALID` when there is none; the message names the nearest.
pub fn find_verb(family: Family, name: &str) -> Result<&'static VerbSpec> {
    let verbs = family.verbs();
    verbs.iter().find(|verb| verb.name == name).ok_or_else(|| {
        let near = nearest(name, verbs.iter().map(|verb| verb.name));
        let all = verbs.iter().map(|verb| verb.name).collect::<Vec<_>>().join(", ");
        Error::new(
            ErrorCode::StatementInvalid,
            format!("{} verb {name:?} does not exist. Remedy: the nearest is {near:?}; all are {all}", family.as_str()),
        )
    })
}

/// The verb of the table function of this name, in any case.
pub fn find_function(name: &str) -> Option<&'static VerbSpec> {
    let lower = name.to_ascii_lowercase();
    Family::ALL.into_iter().find_map(|family| {
        let verb = lower.strip_prefix(family.as_str())?.strip_prefix('_')?;
        family.verbs().iter().find(|spec| spec.name == verb)
    })
}

fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> &'a str {
    known.min_by_key(|k| strsim::damerau_levenshtein(k, name)).unwrap_or_default()
}

/// Arguments by parameter; what was not given, or given as NULL, is absent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BoundArguments {
    values: BTreeMap<&'static str, ScalarValue>,
    rest: Vec<ScalarValue>,
}

impl BoundArguments {
    /// The parameter `table`.
    ///
    /// # Errors
    /// `STATEMENT_INVALID` when its text is not a name.
    pub fn table(&self) -> Result<Option<TableReference>> {
        self.text("table").map(parse_table_name).transpose()
    }

    /// A text, duration or timestamp.
    pub fn text(&self, param: &str) -> Option<&str> {
        match self.values.get(param) {
            Some(ScalarValue::Utf8(Some(text))) => Some(text),
            _ => None,
        }
    }

    /// A number.
    pub fn number(&self, param: &str) -> Option<u64> {
        match self.values.get(param) {
            Some(ScalarValue::UInt64(n)) => *n,
            _ => None,
        }
    }

    /// A boolean.
    pub fn boolean(&self, param: &str) -> Option<bool> {
        match self.values.get(param) {
            Some(ScalarValue::Boolean(b)) => *b,
            _ => None,
        }
    }

    /// The values of the last parameter, when it takes several.
    pub fn values(&self) -> &[ScalarValue] {
        &self.rest
    }
}

/// Binds arguments to the verb's parameters: first those by position, then those by name.
///
/// # Errors
/// `STATEMENT_INVALID` for too many arguments, an unknown name (the message names the nearest), a parameter given
/// twice or not at all, or a value of another kind.
pub fn bind_arguments(verb: &VerbSpec, positional: Vec<ScalarValue>, named: Vec<(String, ScalarValue)>) -> Result<BoundArguments> {
    let mut bound = BoundArguments::default();
    let given = positional.len();
    for (n, value) in positional.into_iter().enumerate() {
        // A parameter of several values is the last one and takes everything from its place on.
        let several = verb.params.last().filter(|p| p.kind == Values && n + 1 >= verb.params.len());
        match verb.params.get(n).or(several) {
            Some(param) => set(verb, &mut bound, param, value)?,
            None => {
                let what = format!("{given} arguments are given, it takes at most {}", verb.params.len());
                return Err(verb.refuse(&what, "leave the others out"));
            }
        }
    }
    for (name, value) in named {
        let Some(param) = verb.params.iter().find(|p| p.name.eq_ignore_ascii_case(&name)) else {
            let near = nearest(&name, verb.params.iter().map(|p| p.name));
            let remedy = if near.is_empty() { "it takes no arguments".to_string() } else { format!("the nearest is {near:?}") };
            return Err(verb.refuse(&format!("parameter {name:?} does not exist"), &remedy));
        };
        if bound.values.contains_key(param.name) || (param.kind == Values && !bound.rest.is_empty()) {
            return Err(verb.refuse(&format!("parameter {:?} is given twice", param.name), "give it once"));
        }
        set(verb, &mut bound, param, value)?;
    }
    let missing = |p: &&Param| p.required && if p.kind == Values { bound.rest.is_empty() } else { !bound.values.contains_key(p.name) };
    match verb.params.iter().find(missing) {
        Some(param) => Err(verb.refuse(&format!("parameter {:?} is missing", param.name), &format!("it is {}", param.kind.example()))),
        None => Ok(bound),
    }
}

fn set(verb: &VerbSpec, bound: &mut BoundArguments, param: &Param, value: ScalarValue) -> Result<()> {
    if param.kind == Values {
        bound.rest.push(value);
        return Ok(());
    }
    if value.is_null() {
        return Ok(());
    }
    let shown = value.to_string();
    let value = convert(param.kind, value)
        .ok_or_else(|| verb.refuse(&format!("parameter {:?} cannot be {shown}", param.name), &format!("it is {}", param.kind.example())))?;
    bound.values.insert(param.name, value);
    Ok(())
}

fn convert(kind: ParamKind, value: ScalarValue) -> Option<ScalarValue> {
    let text = value.try_as_str().flatten().map(ScalarValue::from);
    match kind {
        Table | Text => text,
        Duration => text.or_else(|| interval_text(&value)),
        Timestamp => text.or_else(|| {
            let temporal = matches!(value.data_type(), DataType::Timestamp(_, _) | DataType::Date32 | DataType::Date64);
            temporal.then(|| value.cast_to(&DataType::Utf8).ok()).flatten()
        }),
        Boolean => matches!(value, ScalarValue::Boolean(_)).then_some(value),
        Number => value.data_type().is_integer().then(|| value.cast_to(&DataType::UInt64).ok().filter(|n| !n.is_null())).flatten(),
        Values => Some(value),
    }
}

/// An interval without months as a duration's text.
fn interval_text(value: &ScalarValue) -> Option<ScalarValue> {
    let ScalarValue::IntervalMonthDayNano(Some(interval)) = value else { return None };
    let millis = i128::from(interval.days) * 86_400_000 + i128::from(interval.nanoseconds) / 1_000_000;
    (interval.months == 0 && millis >= 0).then(|| ScalarValue::from(format!("{millis} ms")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(s: &str) -> ScalarValue {
        ScalarValue::from(s)
    }

    #[test]
    fn positions_names_and_defaults() {
        let vacuum = find_verb(Family::Incremental, "vacuum").unwrap();
        let bound = bind_arguments(vacuum, vec![text("\"My T\"")], vec![("OLDER_THAN".into(), text("7 days"))]).unwrap();
        assert_eq!(bound.table().unwrap(), Some(TableReference::bare("My T")));
        assert_eq!((bound.boolean("dry_run"), bound.text("older_than")), (None, Some("7 days")));
        let at = bind_arguments(find_verb(Family::Incremental, "at").unwrap(), vec![text("t"), ScalarValue::from(3_i64)], vec![]).unwrap();
        assert_eq!(at.number("version"), Some(3));
        let none = bind_arguments(find_verb(Family::Incremental, "runs").unwrap(), vec![ScalarValue::Null], vec![]).unwrap();
        assert_eq!(none.table().unwrap(), None);
    }

    #[test]
    fn a_key_takes_several_values() {
        let row = find_verb(Family::Incremental, "row").unwrap();
        let bound = bind_arguments(row, vec![text("t"), ScalarValue::from(1_i64), text("x")], vec![]).unwrap();
        assert_eq!(bound.values(), &[ScalarValue::from(1_i64), text("x")]);
        assert!(bind_arguments(row, vec![text("t")], vec![]).unwrap_err().message().contains("\"key\" is missing"));
    }

    #[test]
    fn bad_arguments_name_what_would_be_right() {
        let error = |verb: &str, positional, named| {
            bind_arguments(find_verb(Family::Incremental, verb).unwrap(), positional, named).unwrap_err().message().to_string()
        };
        assert!(find_verb(Family::Incremental, "refesh").unwrap_err().message().contains("the nearest is \"refresh\""));
        assert!(error("vacuum", vec![text("t")], vec![("dryrun".into(), true.into())]).contains("the nearest is \"dry_run\""));
        assert!(error("at", vec![text("t")], vec![]).contains("\"version\" is missing"));
        assert!(error("at", vec![text("t"), text("3")], vec![]).contains("a whole number"));
        assert!(error("at", vec![text("t"), ScalarValue::from(-3_i64)], vec![]).contains("a whole number"));
        assert!(error("at", vec![ScalarValue::Null, ScalarValue::from(3_i64)], vec![]).contains("\"table\" is missing"));
        assert!(error("compact", vec![text("t"), text("u")], vec![]).contains("at most 1"));
        assert!(error("compact", vec![text("t")], vec![("table".into(), text("u"))]).contains("given twice"));
        assert!(error("drop", vec![text("t"), text("yes")], vec![]).contains("TRUE or FALSE"));
    }

    #[test]
    fn functions_are_found_in_any_case() {
        assert_eq!(find_function("INCREMENTAL_AT").map(VerbSpec::signature).as_deref(), Some("at(table, version)"));
        assert!(find_function("incremental_nothing").is_none() && find_function("at").is_none());
        assert_eq!(find_verb(Family::Incremental, "refresh").unwrap().signature(), "refresh(table[, mode][, run])");
    }
}
