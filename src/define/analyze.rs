//! From what the user wrote to a definition.

use arrow_schema::Schema;

use crate::error::{Error, ErrorCode, Result};
use crate::handler::{AnalyzedHandler, SqlHandlerRequest, analyze_registered, analyze_sql};
use crate::plan::source::resolve;
use crate::run::Host;
use crate::spec::{Definition, HandlerSpec, OptionKind, Options, SourceSpec, unsupported_type};

/// The transformation as the user named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandlerChoice {
    /// A query over `input`.
    Sql(String),
    /// The name of a registered Rust handler.
    Registered(String),
}

/// What decides a definition, before the source and the handler are looked at.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    pub source: SourceSpec,
    pub key: Vec<String>,
    pub track: Option<Vec<String>>,
    pub handler: HandlerChoice,
    /// Semantic options only.
    pub options: Options,
}

impl Parts {
    /// The parts that lead to `definition` again.
    pub fn of(definition: &Definition, table: &str) -> Result<Self> {
        let mut options = vec![];
        if !definition.incremental {
            options.push(("incremental", "false"));
        }
        if definition.options.allow_volatile {
            options.push(("allow_volatile", "true"));
        }
        if definition.options.fingerprint == crate::spec::FingerprintKind::Blake3 {
            options.push(("fingerprint", "blake3"));
        }
        Ok(Self {
            source: definition.source.clone(),
            key: definition.key.clone(),
            track: definition.tracked_declared.then(|| definition.tracked.clone()),
            handler: match &definition.handler {
                HandlerSpec::Sql { text } => HandlerChoice::Sql(text.clone()),
                HandlerSpec::Registered { name, .. } => HandlerChoice::Registered(name.clone()),
                HandlerSpec::Synced => return Err(not_altered(table)),
            },
            options: Options::parse(table, options)?,
        })
    }
}

fn not_altered(table: &str) -> Error {
    Error::new(ErrorCode::DefinitionMismatch, format!("table {table:?} is a synced table. Remedy: ALTER SYNCED TABLE changes it"))
}

/// Looks at the source's present schema, judges the handler, and pins everything that decides results.
pub(super) async fn definition(host: &Host, table: &str, parts: &Parts) -> Result<Definition> {
    let source = resolve(&host.state, table, &parts.source).await?;
    let parts = &Parts { track: expand(parts.track.as_deref(), &source.schema, &parts.key), ..parts.clone() };
    let incremental = parts.options.incremental(table)?;
    let semantic = parts.options.of_kind(OptionKind::Semantic).semantic(table)?;
    if parts.key.is_empty() {
        return Err(Error::new(
            ErrorCode::DefinitionInvalid,
            format!("table {table:?} has no key. Remedy: name the columns that identify a row, KEY (…)"),
        ));
    }
    let (handler, analyzed) = match &parts.handler {
        HandlerChoice::Sql(text) => {
            let request = SqlHandlerRequest {
                table,
                text,
                source_schema: &source.schema,
                key: &parts.key,
                track: parts.track.as_deref(),
                incremental,
                allow_volatile: semantic.allow_volatile,
                state: &host.state,
            };
            (HandlerSpec::Sql { text: text.clone() }, analyze_sql(request).await?)
        }
        HandlerChoice::Registered(name) => registered(host, table, parts, &source.schema, name)?,
    };
    check_types(table, &parts.key, &analyzed.input_schema, &analyzed.output_schema)?;
    Ok(Definition {
        source: parts.source.clone(),
        key: parts.key.clone(),
        tracked: analyzed.tracked,
        tracked_declared: parts.track.is_some(),
        handler,
        incremental,
        options: semantic,
        input_schema: analyzed.input_schema,
        output_schema: analyzed.output_schema,
        session: analyzed.session,
        functions: analyzed.functions,
        fingerprint_version: Definition::FINGERPRINT_VERSION,
    })
}

/// `*` stands for every column of the source but the key, as they are now.
fn expand(track: Option<&[String]>, source: &Schema, key: &[String]) -> Option<Vec<String>> {
    let track = track?;
    if track != ["*"] || source.field_with_name("*").is_ok() {
        return Some(track.to_vec());
    }
    Some(source.fields().iter().map(|field| field.name().clone()).filter(|name| !key.contains(name)).collect())
}

fn registered(host: &Host, table: &str, parts: &Parts, source: &Schema, name: &str) -> Result<(HandlerSpec, AnalyzedHandler)> {
    let handler = host.handlers.get(name).ok_or_else(|| {
        Error::new(
            ErrorCode::HandlerVersion,
            format!(
                "table {table:?}: no handler {name:?} is registered; known are {:?}. Remedy: register it before the table is defined",
                host.handlers.names()
            ),
        )
    })?;
    let analyzed = analyze_registered(table, handler.as_ref(), source, &parts.key, parts.track.as_deref())?;
    Ok((HandlerSpec::Registered { name: name.to_string(), version: handler.version().to_string() }, analyzed))
}

fn check_types(table: &str, key: &[String], input: &Schema, output: &Schema) -> Result<()> {
    for field in input.fields().iter().chain(output.fields()) {
        if let Some(reason) = unsupported_type(field.data_type(), key.contains(field.name())) {
            return Err(Error::new(
                ErrorCode::TypeUnsupported,
                format!(
                    "table {table:?}: column {:?} has type {}: {reason}. Remedy: cast it, or leave it out",
                    field.name(),
                    field.data_type()
                ),
            ));
        }
    }
    Ok(())
}
