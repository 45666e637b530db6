//! What a table is: one definition, saved as immutable revisions.

use std::collections::BTreeMap;

use arrow_schema::{Field, Schema, SchemaRef};
use serde::{Deserialize, Serialize};

use super::SemanticOptions;

/// Where the rows come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceSpec {
    /// The source's resolved name: catalog, schema, table.
    pub name: [String; 3],
    /// CREATE statements that bring the source (and what it reads) back in another process, in order;
    /// empty for sources that only a host can register.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statements: Vec<String>,
}

/// The transformation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandlerSpec {
    /// A query over the relation `input`.
    Sql {
        /// The query as the user wrote it.
        text: String,
    },
    /// A registered Rust handler.
    Registered {
        /// The name it is registered under.
        name: String,
        /// The version it had when the revision was saved.
        version: String,
    },
    /// None: the rows are the source's own. The table is a synced one, and its key may be empty.
    Synced,
}

/// How tracked columns are fingerprinted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FingerprintKind {
    /// 128-bit XXH3 under the table's random secret.
    #[default]
    Xxh3,
    /// BLAKE3 under the table's random key, cut to 128 bits: for input that an adversary controls.
    Blake3,
}

/// A function of the host that the handler calls.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostFunction {
    /// Its name.
    pub name: String,
    /// The version the host declared for it, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// Everything that decides a table's results. Two equal definitions give equal results for equal input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// Where the rows come from.
    pub source: SourceSpec,
    /// The key columns, in declared order.
    pub key: Vec<String>,
    /// The tracked columns that are not key columns, in declared order.
    pub tracked: Vec<String>,
    /// Whether TRACK was written (or the columns follow from the handler's query).
    pub tracked_declared: bool,
    /// The transformation.
    pub handler: HandlerSpec,
    /// `false`: every run hands all rows to the handler, and any SELECT is admitted.
    pub incremental: bool,
    /// Options that decide results.
    pub options: SemanticOptions,
    /// The schema of `input`: key columns, then tracked columns, with normalised types.
    pub input_schema: SchemaRef,
    /// The schema of the published table, with normalised types.
    pub output_schema: SchemaRef,
    /// The session settings that change the meaning of SQL, pinned when the revision was saved.
    pub session: BTreeMap<String, String>,
    /// The host's functions that the handler calls.
    #[serde(default)]
    pub functions: Vec<HostFunction>,
    /// The version of the fingerprint's encoding.
    pub fingerprint_version: u32,
}

impl Definition {
    /// The version of the canonical encoding that this crate writes.
    pub const FINGERPRINT_VERSION: u32 = 1;

    /// A digest over everything that decides results; 64 hexadecimal digits.
    pub fn digest(&self) -> String {
        // Serialising to memory fails for no value of this type: every map key is a string.
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        blake3::hash(&bytes).to_hex().to_string()
    }

    /// The key fields of `input`, in key order.
    pub fn key_fields(&self) -> Vec<&Field> {
        self.key.iter().filter_map(|name| self.input_schema.field_with_name(name).ok()).collect()
    }

    /// The tracked fields of `input` (keys not included), in declared order.
    pub fn tracked_fields(&self) -> Vec<&Field> {
        self.tracked.iter().filter_map(|name| self.input_schema.field_with_name(name).ok()).collect()
    }

    /// The schema of the key columns alone, in key order, all non-null.
    pub fn key_schema(&self) -> SchemaRef {
        let fields: Vec<Field> = self.key_fields().into_iter().map(|f| f.clone().with_nullable(false)).collect();
        std::sync::Arc::new(Schema::new(fields))
    }
}

/// A saved definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// 1, 2, 3, …
    pub number: u64,
    /// [`Definition::digest`].
    pub digest: String,
    /// Microseconds since 1970.
    pub saved_at: i64,
    /// What was saved.
    pub definition: Definition,
}
