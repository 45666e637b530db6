//! Run ids, version numbers and names that are safe in paths.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorCode, Result};

/// A number in a table's accepted sequence; the first accepted version is 1.
pub type VersionNumber = u64;

/// The id of one refresh: 1 to 128 characters of `A-Z a-z 0-9 _ - .`, not starting with a dot.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunId(String);

impl RunId {
    /// Checks and takes `text`.
    ///
    /// # Errors
    /// `STATEMENT_INVALID` when it is empty, too long, or has other characters; it becomes part of object names.
    pub fn new(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if text.is_empty() || text.len() > 128 || text.starts_with('.') || !text.chars().all(legal) {
            return Err(Error::new(
                ErrorCode::StatementInvalid,
                format!("run id {text:?} is not legal. Remedy: use 1 to 128 letters, digits, '_', '-' or '.', not starting with '.'"),
            ));
        }
        Ok(Self(text))
    }

    /// The id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for RunId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::new(text)
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> Self {
        id.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name as one path segment that is unique also on disks that fold case: lower-case letters, digits, `-` and `_`
/// stay, every other byte becomes `=` and two hexadecimal digits, and an over-long name keeps a prefix and a digest.
pub fn encode_name(name: &str) -> String {
    let mut encoded = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => encoded.push(char::from(byte)),
            other => encoded.push_str(&format!("={other:02x}")),
        }
    }
    if encoded.len() > 150 {
        let digest = blake3::hash(name.as_bytes()).to_hex();
        encoded.truncate(100);
        encoded.push_str("=~");
        encoded.push_str(&digest[..32]);
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ids_cannot_leave_their_folder() {
        for bad in ["", ".", "..", ".hidden", "a/b", "a\\b", "a b", "é", "a%2e", &"x".repeat(129)] {
            assert_eq!(RunId::new(bad).map_err(|e| e.code()), Err(ErrorCode::StatementInvalid), "{bad}");
        }
        assert!(RunId::new("2026-11-29_r.1").is_ok());
    }

    #[test]
    fn names_stay_apart_when_case_is_folded() {
        assert_ne!(encode_name("Ab").to_lowercase(), encode_name("ab").to_lowercase());
        assert_eq!(encode_name("../x"), "=2e=2e=2fx");
        assert!(encode_name(&"ä".repeat(500)).len() < 200);
    }
}
