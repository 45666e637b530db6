//! Errors: one public type with a stable code, a kind that says what to do, and a message that names the remedy.
//!
//! ```text
//! Error { code: KEY_DUPLICATE, kind: Source, message: "table \"t\": …  Remedy: …", source: Option<…> }
//!    └─ crosses DataFusion as DataFusionError::External, and is found again with `Error::find`
//! ```
//!
//! Messages are for people and may change; codes are an interface and do not.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use datafusion::error::DataFusionError;

use crate::redact::without_credentials;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// What a user should do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Mend the source data or its definition.
    Source,
    /// Mend the handler.
    Handler,
    /// Mend the statement, the definition or an option.
    Definition,
    /// Somebody else was first: look at the state, then start a new run.
    Conflict,
    /// Try again later, or give the process more resources.
    Unavailable,
    /// Stored data is damaged or missing: restore it or rebuild.
    Data,
    /// Confirm the act, or ask the host for leave.
    Permission,
    /// A defect of this crate: report it.
    Internal,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal : $kind:ident),+ $(,)?) => {
        /// The stable code of an error, printed in front of every message.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode { $($(#[$doc])* $variant),+ }

        impl ErrorCode {
            /// Every code, in the order of the documentation.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$variant),+];

            /// The code as it is printed and stored, for example `KEY_NULL`.
            pub fn as_str(self) -> &'static str {
                match self { $(ErrorCode::$variant => $text),+ }
            }

            /// What a user should do about errors of this code.
            pub fn kind(self) -> ErrorKind {
                match self { $(ErrorCode::$variant => ErrorKind::$kind),+ }
            }
        }
    };
}

codes! {
    /// A key column of the source holds a null.
    KeyNull = "KEY_NULL": Source,
    /// Two source rows have the same key.
    KeyDuplicate = "KEY_DUPLICATE": Source,
    /// The handler returned no row for a key.
    HandlerMissingKey = "HANDLER_MISSING_KEY": Handler,
    /// The handler returned more than one row for a key.
    HandlerDuplicateKey = "HANDLER_DUPLICATE_KEY": Handler,
    /// The handler returned a key that it was not given.
    HandlerUnexpectedKey = "HANDLER_UNEXPECTED_KEY": Handler,
    /// The handler changed key values: as many are unexpected as are missing.
    HandlerAlteredKey = "HANDLER_ALTERED_KEY": Handler,
    /// The handler returned a null in a key column.
    HandlerNullKey = "HANDLER_NULL_KEY": Handler,
    /// The handler's output does not have the revision's schema.
    HandlerSchema = "HANDLER_SCHEMA": Handler,
    /// The handler failed or panicked.
    HandlerFailed = "HANDLER_FAILED": Handler,
    /// The handler's SQL is not admitted.
    HandlerRefused = "HANDLER_REFUSED": Handler,
    /// The registered handler is missing or not of the revision's version.
    HandlerVersion = "HANDLER_VERSION": Handler,
    /// The source's schema is not the one of the revision.
    SchemaChanged = "SCHEMA_CHANGED": Source,
    /// Reading the source failed.
    CaptureFailed = "CAPTURE_FAILED": Source,
    /// The source changed while it was read.
    SourceChanged = "SOURCE_CHANGED": Source,
    /// The source table is not known.
    SourceNotFound = "SOURCE_NOT_FOUND": Source,
    /// The source exists but was never published.
    SourceNotReady = "SOURCE_NOT_READY": Source,
    /// The source is a stream without an end.
    SourceUnbounded = "SOURCE_UNBOUNDED": Source,
    /// Another run of the table is active.
    RunActive = "RUN_ACTIVE": Conflict,
    /// Another run published first.
    RunConflict = "RUN_CONFLICT": Conflict,
    /// The run's sealed capture is older than the newest version.
    RunStale = "RUN_STALE": Conflict,
    /// The run id was used with another mode.
    RunMismatch = "RUN_MISMATCH": Conflict,
    /// No run has this id.
    RunNotFound = "RUN_NOT_FOUND": Definition,
    /// The definition changed since it was read.
    RevisionConflict = "REVISION_CONFLICT": Conflict,
    /// The location holds another definition.
    DefinitionMismatch = "DEFINITION_MISMATCH": Definition,
    /// The definition is not valid.
    DefinitionInvalid = "DEFINITION_INVALID": Definition,
    /// No incremental table has this name.
    TableNotFound = "TABLE_NOT_FOUND": Definition,
    /// A table of this name exists.
    TableExists = "TABLE_EXISTS": Definition,
    /// The table is the source of others.
    TableInUse = "TABLE_IN_USE": Definition,
    /// The table has no accepted version.
    NotPublished = "NOT_PUBLISHED": Unavailable,
    /// The table has no version of this number or time.
    VersionNotFound = "VERSION_NOT_FOUND": Definition,
    /// Files of a version are gone.
    HistoryMissing = "HISTORY_MISSING": Data,
    /// The store did not say whether the version was created.
    CommitUnknown = "COMMIT_UNKNOWN": Unavailable,
    /// Stored data does not match its checksum.
    Corrupt = "CORRUPT": Data,
    /// The store does not keep the create-only promise.
    StoreUnsafe = "STORE_UNSAFE": Permission,
    /// The store failed.
    StoreFailed = "STORE_FAILED": Unavailable,
    /// No option has this name, or its value is not admitted.
    OptionUnknown = "OPTION_UNKNOWN": Definition,
    /// A type cannot be used here.
    TypeUnsupported = "TYPE_UNSUPPORTED": Definition,
    /// A value does not fit its type.
    ValueOutOfRange = "VALUE_OUT_OF_RANGE": Source,
    /// A single value is too large.
    ValueTooLarge = "VALUE_TOO_LARGE": Source,
    /// The statement would write and the host gave no leave.
    ReadOnly = "READ_ONLY": Permission,
    /// The act must be confirmed.
    ConfirmRequired = "CONFIRM_REQUIRED": Permission,
    /// More rows would be deleted than the guard allows.
    DeleteGuard = "DELETE_GUARD": Permission,
    /// Memory or disk is exhausted.
    ResourcesExhausted = "RESOURCES_EXHAUSTED": Unavailable,
    /// The run was cancelled.
    Cancelled = "CANCELLED": Conflict,
    /// No connection has this name.
    ConnectionNotFound = "CONNECTION_NOT_FOUND": Definition,
    /// A connection of this name exists, or tables use it.
    ConnectionInUse = "CONNECTION_IN_USE": Definition,
    /// The outside system cannot be reached, or refuses the connection.
    ConnectionFailed = "CONNECTION_FAILED": Unavailable,
    /// A reference to a secret leads to nothing, or a secret was written where a reference belongs.
    SecretMissing = "SECRET_MISSING": Definition,
    /// A setting of a synced table is unknown, misspelt, or does not go with the others.
    ConfigInvalid = "CONFIG_INVALID": Definition,
    /// The source has no such column.
    FieldNotFound = "FIELD_NOT_FOUND": Definition,
    /// The mode needs a key and there is none.
    KeyRequired = "KEY_REQUIRED": Definition,
    /// The column's type cannot be a cursor.
    CursorUnusable = "CURSOR_UNUSABLE": Definition,
    /// The cursor column holds nulls where the policy forbids them.
    NullCursor = "NULL_CURSOR": Source,
    /// Too many rows share one cursor value to be told apart.
    CursorTies = "CURSOR_TIES": Source,
    /// The source's key is not the one that the table was synced by.
    PkChanged = "PK_CHANGED": Source,
    /// DataFusion refused or failed a statement that is not ours.
    QueryFailed = "QUERY_FAILED": Definition,
    /// The statement cannot be understood or is not supported.
    StatementInvalid = "STATEMENT_INVALID": Definition,
    /// A defect of this crate.
    Internal = "INTERNAL": Internal,
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ErrorCode {
    /// The code with this text, if there is one.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}

/// An error of this crate. Cheap to clone.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Debug, thiserror::Error)]
#[error("{code}: {message}")]
struct Inner {
    code: ErrorCode,
    message: String,
    #[source]
    source: Option<Cause>,
}

impl Error {
    /// An error whose `message` names the table, what is wrong and the remedy. Credentials in URLs are hidden.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let message: String = message.into();
        let message = match without_credentials(&message) {
            Cow::Owned(hidden) => hidden,
            Cow::Borrowed(_) => message,
        };
        Self(Arc::new(Inner { code, message, source: None }))
    }

    /// The same error with its cause attached; the cause's text becomes part of the error chain.
    pub fn with_source(self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let mut source: Box<dyn std::error::Error + Send + Sync> = source.into();
        // A store's error may name the URL that it asked, signature included; the text is all that is kept of it then.
        let hidden = match without_credentials(&format!("{source} {source:?}")) {
            Cow::Owned(_) => Some(without_credentials(&source.to_string()).into_owned()),
            Cow::Borrowed(_) => None,
        };
        if let Some(hidden) = hidden {
            source = hidden.into();
        }
        Self(Arc::new(Inner { code: self.0.code, message: self.0.message.clone(), source: Some(Arc::from(source)) }))
    }

    /// A defect of this crate, with the remedy to report it.
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(ErrorCode::Internal, format!("{message}. Remedy: this is a defect of datafusion-incremental; please report it"))
    }

    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// What a user should do.
    pub fn kind(&self) -> ErrorKind {
        self.0.code.kind()
    }

    /// The message, without the code.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// This crate's error inside `error`, wherever DataFusion, Arrow or Parquet wrapped it.
    pub fn find(error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        let mut current = Some(error);
        while let Some(e) = current {
            if let Some(found) = e.downcast_ref::<Error>() {
                return Some(found.clone());
            }
            if let Some(found) = e.downcast_ref::<DataFusionError>().and_then(Self::find_in_datafusion) {
                return Some(found);
            }
            current = e.source();
        }
        None
    }

    fn find_in_datafusion(error: &DataFusionError) -> Option<Self> {
        match error {
            DataFusionError::External(inner) => Self::find(inner.as_ref()),
            DataFusionError::Shared(inner) => Self::find_in_datafusion(inner),
            DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => Self::find_in_datafusion(inner),
            DataFusionError::ArrowError(inner, _) => match inner.as_ref() {
                arrow::error::ArrowError::ExternalError(inner) => Self::find(inner.as_ref()),
                _ => None,
            },
            DataFusionError::ParquetError(inner) => match inner.as_ref() {
                parquet::errors::ParquetError::External(inner) => Self::find(inner.as_ref()),
                _ => None,
            },
            DataFusionError::Collection(errors) => errors.iter().find_map(Self::find_in_datafusion),
            _ => None,
        }
    }

    /// Wraps an error of DataFusion: this crate's own error inside it is kept, exhausted resources are
    /// `RESOURCES_EXHAUSTED`, everything else gets `code` and `context` (which names the table and the remedy).
    pub fn from_datafusion(error: DataFusionError, code: ErrorCode, context: impl fmt::Display) -> Self {
        if let Some(found) = Self::find_in_datafusion(&error) {
            return found;
        }
        if matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)) {
            return Self::new(
                ErrorCode::ResourcesExhausted,
                format!("{context}: {}. Remedy: raise the memory limit or the disk limit of the session", plain_text(&error)),
            );
        }
        Self::caused(code, &context.to_string(), &plain_text(&error)).with_source(error)
    }

    /// An error whose message is `context` with `cause` before the remedy: that is what a reader acts on, so it stands last.
    pub(crate) fn caused(code: ErrorCode, context: &str, cause: &str) -> Self {
        let message = match context.split_once(". Remedy: ") {
            Some((what, remedy)) => format!("{what}: {}. Remedy: {remedy}", cause.trim_end_matches('.')),
            None => format!("{context}: {cause}"),
        };
        Self::new(code, message)
    }
}

/// The error's text without a backtrace and without DataFusion's request to report a bug of its own: what failed was
/// asked for by a user of this crate.
pub(crate) fn plain_text(error: &DataFusionError) -> String {
    let text = error.strip_backtrace();
    let text = text.split("\nThis issue was likely caused by").next().unwrap_or_default();
    text.trim_end().to_string()
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error").field("code", &self.0.code).field("message", &self.0.message).field("source", &self.0.source).finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|s| s.as_ref() as _)
    }
}

impl From<Error> for DataFusionError {
    fn from(error: Error) -> Self {
        DataFusionError::External(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_parse_back() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::parse(code.as_str()), Some(*code));
        }
    }

    #[test]
    fn an_error_is_found_inside_datafusion_wrappers() {
        let error = Error::new(ErrorCode::KeyNull, "m");
        let wrapped = DataFusionError::from(error).context("while scanning");
        let shared = DataFusionError::Shared(Arc::new(wrapped));
        assert_eq!(Error::find(&shared).map(|e| e.code()), Some(ErrorCode::KeyNull));
    }

    #[test]
    fn the_cause_stands_before_the_remedy_and_without_boilerplate() {
        let cause = DataFusionError::Internal("no store".into());
        let error = Error::from_datafusion(cause, ErrorCode::CaptureFailed, "table \"t\": cannot read. Remedy: check the files");
        assert_eq!(error.message(), "table \"t\": cannot read: Internal error: no store. Remedy: check the files");
    }

    #[test]
    fn exhausted_resources_keep_their_code() {
        let error = DataFusionError::ResourcesExhausted("pool".into());
        assert_eq!(Error::from_datafusion(error, ErrorCode::CaptureFailed, "table t").code(), ErrorCode::ResourcesExhausted);
    }
}
