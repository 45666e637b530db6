//! SQL handlers: one query over `input`, judged before it is saved and planned again for each run.
//!
//! ```text
//! text ─ syntax ─► sandbox session ─ raw plan ─ judge ─► columns read ─► input schema ─► output schema
//!                  input + functions           │
//!                                              └─ only projections, only immutable synchronous functions,
//!                                                 keys passed through: proven
//! ```

mod amplify;
mod expansion;
mod input;
mod judge;
mod nodes;
mod planned;
mod session;
mod syntax;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;

pub(super) use planned::SqlHandler;

use self::judge::{Findings, Rules};
use super::columns::{check_clause, check_output, check_type, input_schema, nearest, refused, without_keys};
use super::{Handler, RESERVED_PREFIX};
use crate::error::{Error, ErrorCode, Result};
use crate::spec::{HostFunction, normalize_schema};

/// A SQL handler that somebody wants to save.
#[derive(Debug)]
pub struct SqlHandlerRequest<'a> {
    /// The incremental table, for messages.
    pub table: &'a str,
    /// The query as it was written.
    pub text: &'a str,
    /// The source's columns.
    pub source_schema: &'a Schema,
    /// KEY.
    pub key: &'a [String],
    /// TRACK, if it was written.
    pub track: Option<&'a [String]>,
    /// `false`: any SELECT is admitted.
    pub incremental: bool,
    /// Whether volatile and stable functions are admitted.
    pub allow_volatile: bool,
    /// The host's session: its functions and its settings.
    pub state: &'a SessionState,
}

/// What a handler was found to be: the parts of a definition that follow from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnalyzedHandler {
    /// The tracked columns that are no key columns.
    pub tracked: Vec<String>,
    /// The schema of `input`: key columns, then tracked columns; normalised types. With `incremental = false` key
    /// columns that only the query makes are not in it.
    pub input_schema: SchemaRef,
    /// The schema of the published table; normalised types.
    pub output_schema: SchemaRef,
    /// Whether the plan shows that the contract holds, so that no row needs a check.
    pub proven: bool,
    /// The functions that the handler calls.
    pub functions: Vec<HostFunction>,
    /// The session settings to pin.
    pub session: BTreeMap<String, String>,
}

/// Judges a SQL handler in the sandbox and finds its columns, types and functions.
///
/// # Errors
/// `DEFINITION_INVALID` and `TYPE_UNSUPPORTED` for KEY and TRACK; `HANDLER_REFUSED` for everything in the query that
/// is not admitted, naming the node and the remedy.
pub async fn analyze_sql(request: SqlHandlerRequest<'_>) -> Result<AnalyzedHandler> {
    let table = request.table;
    let source = normalize_schema(request.source_schema);
    check_declared(&request, &source)?;
    let key = request.key;
    let rules = Rules { strict: request.incremental, allow_volatile: request.allow_volatile };
    let session = session::pinned(request.state);
    let visible = match request.track {
        Some(track) => input_schema(&source, key, &without_keys(track, key)),
        None => Arc::new(source.clone()),
    };
    let query = Query { table, text: request.text, state: request.state, session: &session, rules };
    let mut analysis = query.analyze(&visible).map_err(|fault| fault.explain(table, &visible, &source))?;
    let tracked = match request.track {
        Some(track) => without_keys(track, key),
        None => {
            let read = judge::columns_read(table, &analysis.optimized, &visible)?;
            let (tracked, frozen) = freeze(&query, read, key, &source)?;
            analysis = frozen;
            check_frozen(table, &tracked, &source)?;
            tracked
        }
    };
    let input = input_schema(&source, key, &tracked);
    let output_schema = Arc::new(normalize_schema(analysis.optimized.schema().as_arrow()));
    if rules.strict {
        judge::check_keys(table, &analysis.raw, key)?;
    }
    check_output(table, key, if rules.strict { &input } else { &output_schema }, &output_schema)?;
    check_executable(&analysis).await.map_err(|fault| fault.explain(table, &visible, &source))?;
    let Findings { functions, asynchronous, volatile } = analysis.findings;
    Ok(AnalyzedHandler {
        tracked,
        input_schema: input,
        output_schema,
        proven: rules.strict && !asynchronous && !volatile,
        functions: functions.into_iter().map(|name| HostFunction { name, version: None }).collect(),
        session,
    })
}

/// Queries that DataFusion plans but cannot execute (a lateral column, for example) are refused now, not in the run.
async fn check_executable(analysis: &Analysis) -> std::result::Result<(), PlanFault> {
    let planned = analysis.sandbox.query_planner().create_physical_plan(&analysis.optimized, &analysis.sandbox).await;
    planned.map(drop).map_err(PlanFault::Plan)
}

/// Finds the columns and types of a registered handler.
///
/// # Errors
/// `DEFINITION_INVALID` without TRACK (nothing else says what a Rust handler reads) and for unknown or repeated
/// columns; `TYPE_UNSUPPORTED`; `HANDLER_REFUSED` when the declared output is not admitted.
pub fn analyze_registered(
    table: &str,
    handler: &dyn Handler,
    source_schema: &Schema,
    key: &[String],
    track: Option<&[String]>,
) -> Result<AnalyzedHandler> {
    let source = normalize_schema(source_schema);
    let Some(track) = track else {
        let message = format!("table {table:?}: a registered handler needs TRACK. Remedy: name every column that the handler reads");
        return Err(Error::new(ErrorCode::DefinitionInvalid, message));
    };
    check_key(table, key)?;
    check_clause(table, "KEY", key, &source)?;
    check_clause(table, "TRACK", track, &source)?;
    let tracked = without_keys(track, key);
    let input = input_schema(&source, key, &tracked);
    let output_schema = Arc::new(normalize_schema(&*handler.output_schema(&input)?));
    check_output(table, key, &input, &output_schema)?;
    Ok(AnalyzedHandler { tracked, input_schema: input, output_schema, proven: false, functions: Vec::new(), session: BTreeMap::new() })
}

fn check_key(table: &str, key: &[String]) -> Result<()> {
    if key.is_empty() {
        let message = format!("table {table:?}: KEY names no column. Remedy: name the columns that identify a row");
        return Err(Error::new(ErrorCode::DefinitionInvalid, message));
    }
    Ok(())
}

fn check_declared(request: &SqlHandlerRequest<'_>, source: &Schema) -> Result<()> {
    check_key(request.table, request.key)?;
    if request.incremental {
        check_clause(request.table, "KEY", request.key, source)?;
    } else {
        // The key is the output's; columns that only the query makes are checked with the output.
        let known: Vec<String> = request.key.iter().filter(|name| source.field_with_name(name).is_ok()).cloned().collect();
        check_clause(request.table, "KEY", &known, source)?;
        if let Some(twice) = request.key.iter().enumerate().find(|(i, name)| request.key.iter().take(*i).any(|earlier| earlier == *name)) {
            let message = format!("table {:?}: KEY names column {:?} twice. Remedy: name it once", request.table, twice.1);
            return Err(Error::new(ErrorCode::DefinitionInvalid, message));
        }
    }
    match request.track {
        Some(track) => check_clause(request.table, "TRACK", track, source),
        None => Ok(()),
    }
}

/// The tracked columns of a query without TRACK: those that the optimised plan reads. Plans again over exactly these,
/// so that `*` is expanded here as in every run. Where the query then does not plan the same way, the columns that it
/// names without reading them are tracked too.
fn freeze(query: &Query<'_>, mut read: Vec<String>, key: &[String], source: &Schema) -> Result<(Vec<String>, Analysis)> {
    let in_source = |name: &str| source.field_with_name(name).is_ok();
    let mut phantoms = true;
    loop {
        let in_order = source.fields().iter().map(|field| field.name()).filter(|name| read.contains(name));
        let tracked = without_keys(&in_order.cloned().collect::<Vec<_>>(), key);
        let input = input_schema(source, key, &tracked);
        let analysis = if phantoms { query.analyze_with_phantoms(&input, in_source) } else { query.analyze(&input) };
        match analysis {
            Ok(analysis) => return Ok((tracked, analysis)),
            Err(_) if phantoms => phantoms = false,
            Err(fault) => match fault.missing() {
                // Each turn adds a column of the source, so this ends.
                Some(name) if in_source(&name) && !read.contains(&name) => read.push(name),
                _ => return Err(fault.explain(query.table, &input, source)),
            },
        }
    }
}

/// Columns that nobody wrote into TRACK, but the query reads.
fn check_frozen(table: &str, tracked: &[String], source: &Schema) -> Result<()> {
    for field in tracked.iter().filter_map(|name| source.field_with_name(name).ok()) {
        if field.name().starts_with(RESERVED_PREFIX) {
            let what = format!("the handler reads {:?}; names that start with {RESERVED_PREFIX} are reserved", field.name());
            return Err(refused(table, &what, "rename the column in a source view"));
        }
        check_type(table, "TRACK", field)?;
    }
    Ok(())
}

/// A query, and everything that decides how it is planned but the columns of `input`.
struct Query<'a> {
    table: &'a str,
    text: &'a str,
    state: &'a SessionState,
    session: &'a BTreeMap<String, String>,
    rules: Rules,
}

/// A query planned against one shape of `input`.
#[derive(Debug)]
struct Analysis {
    sandbox: SessionState,
    /// What the query was planned against: `input`, and columns that it names without reading them.
    planned: SchemaRef,
    raw: LogicalPlan,
    optimized: LogicalPlan,
    findings: Findings,
}

impl Query<'_> {
    /// Parses, judges the syntax tree, plans, and judges the raw plan.
    fn analyze(&self, input: &SchemaRef) -> std::result::Result<Analysis, PlanFault> {
        let Query { table, text, state, session, rules } = *self;
        let sandbox = session::sandbox(table, state, session, Arc::clone(input)).map_err(PlanFault::Refused)?;
        let statement = syntax::parse(table, text, &sandbox, rules.strict).map_err(PlanFault::Refused)?;
        let raw = session::raw_plan(&sandbox, statement).map_err(PlanFault::Plan)?;
        let findings = judge::judge(table, &raw, rules).map_err(PlanFault::Refused)?;
        let optimized = sandbox.optimize(&raw).map_err(PlanFault::Plan)?;
        Ok(Analysis { sandbox, planned: Arc::clone(input), raw, optimized, findings })
    }

    /// The same, where the query may name columns that `input` does not have, for example in `* EXCEPT (…)`, as long as
    /// the optimised plan reads none of them. They stand in the plan without a type of their own.
    fn analyze_with_phantoms(&self, input: &SchemaRef, may_name: impl Fn(&str) -> bool) -> std::result::Result<Analysis, PlanFault> {
        let mut planned = Arc::clone(input);
        let analysis = loop {
            match self.analyze(&planned) {
                Ok(analysis) => break analysis,
                Err(fault) => match fault.missing() {
                    // Each turn adds a name that the text holds, so this ends.
                    Some(name) if may_name(&name) && planned.field_with_name(&name).is_err() => {
                        let phantom = Field::new(name, DataType::Null, true);
                        planned =
                            Arc::new(Schema::new(planned.fields().iter().map(|f| f.as_ref().clone()).chain([phantom]).collect::<Vec<_>>()));
                    }
                    _ => return Err(fault),
                },
            }
        };
        let read = judge::columns_read(self.table, &analysis.optimized, &planned).map_err(PlanFault::Refused)?;
        match read.iter().find(|name| input.field_with_name(name).is_err()) {
            None => Ok(analysis),
            Some(name) => {
                let what = format!("the handler reads column {name:?}, which input does not have");
                Err(PlanFault::Refused(refused(self.table, &what, "save a new revision that tracks it")))
            }
        }
    }
}

#[derive(Debug)]
enum PlanFault {
    Refused(Error),
    Plan(DataFusionError),
}

impl PlanFault {
    /// The column that was not found.
    fn missing(&self) -> Option<String> {
        match self {
            PlanFault::Plan(error) => match schema_error(error)? {
                SchemaError::FieldNotFound { field, .. } => Some(field.name.clone()),
                _ => None,
            },
            PlanFault::Refused(_) => None,
        }
    }

    /// The refusal, with a remedy that fits what was not found.
    fn explain(self, table: &str, input: &Schema, source: &Schema) -> Error {
        let error = match self {
            PlanFault::Refused(error) => return error,
            PlanFault::Plan(error) => error,
        };
        let text = without_context(&error).strip_backtrace();
        let text = text.lines().next().unwrap_or_default().trim_end_matches('.');
        let Some(SchemaError::FieldNotFound { field, .. }) = schema_error(&error) else {
            let remedy = "mend the query; a handler reads only the relation input and calls only functions of the session";
            return refused(table, &format!("the handler does not plan: {text}"), remedy);
        };
        let (name, flat) = (field.name.as_str(), field.flat_name());
        let has = |schema: &Schema, wanted: &str| schema.fields().iter().any(|f| f.name() == wanted);
        if !has(input, name) && has(source, name) {
            let what = format!("the handler reads column {name:?}, which is not in TRACK");
            return refused(table, &what, &format!("add {name:?} to TRACK, or do not read it"));
        }
        let spaced = source.fields().iter().find(|f| f.name().strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '-'])));
        let hint = if has(source, &flat.replace('"', "")) {
            format!("the column is {:?}: names with dots need double quotes", flat.replace('"', ""))
        } else if let Some(spaced) = spaced {
            format!("the column is {:?}: names with spaces or signs need double quotes", spaced.name())
        } else {
            nearest(name, source.fields().iter().map(|f| f.name().as_str()))
        };
        refused(table, &format!("the handler reads column {flat:?}, which input does not have"), &hint)
    }
}

/// The error itself: the name of the optimizer rule that found it says nothing to the author of a query.
fn without_context(error: &DataFusionError) -> &DataFusionError {
    match error {
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => without_context(inner),
        DataFusionError::Shared(inner) => without_context(inner),
        other => other,
    }
}

fn schema_error(error: &DataFusionError) -> Option<&SchemaError> {
    match error {
        DataFusionError::SchemaError(inner, _) => Some(inner),
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => schema_error(inner),
        DataFusionError::Shared(inner) => schema_error(inner),
        DataFusionError::Collection(errors) => errors.iter().find_map(schema_error),
        _ => None,
    }
}
