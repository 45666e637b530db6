//! The form of every metadata object: a JSON document that carries its writer and a checksum of itself.
//!
//! ```text
//! {"checksum":"<BLAKE3 of everything after the next comma>","writer":"<id>","body":{…}}
//! ```
//!
//! The layout in front is fixed, so every flipped bit and every truncation is found. Memory: one copy of the object.
//! Never repairs, never guesses.

use bytes::Bytes;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

const HEAD: &[u8] = b"{\"checksum\":\"";
const SEPARATOR: &[u8] = b"\",";

#[derive(Serialize)]
struct Rest<'a, T> {
    writer: &'a str,
    body: &'a T,
}

#[derive(Deserialize)]
struct Whole<T> {
    #[serde(rename = "checksum")]
    _checksum: IgnoredAny,
    writer: String,
    body: T,
}

/// The object's bytes.
pub(super) fn encode<T: Serialize>(writer: &str, body: &T) -> Result<Bytes> {
    let rest =
        serde_json::to_vec(&Rest { writer, body }).map_err(|e| Error::internal(format!("a metadata object cannot be encoded: {e}")))?;
    let rest = rest.strip_prefix(b"{").ok_or_else(|| Error::internal("a metadata object is no JSON object"))?;
    let mut bytes = Vec::with_capacity(rest.len() + 80);
    bytes.extend_from_slice(HEAD);
    bytes.extend_from_slice(blake3::hash(rest).to_hex().as_bytes());
    bytes.extend_from_slice(SEPARATOR);
    bytes.extend_from_slice(rest);
    Ok(bytes.into())
}

/// The writer and the body, or what is wrong with the bytes.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> std::result::Result<(String, T), String> {
    let rest = bytes
        .strip_prefix(HEAD)
        .and_then(|b| b.split_at_checked(64))
        .and_then(|(checksum, b)| Some((checksum, b.strip_prefix(SEPARATOR)?)))
        .and_then(|(checksum, rest)| (blake3::hash(rest).to_hex().as_bytes() == checksum).then_some(rest));
    if rest.is_none() {
        return Err(format!("its {} bytes do not match its checksum", bytes.len()));
    }
    let whole: Whole<T> = serde_json::from_slice(bytes).map_err(|e| format!("its content is not understood: {e}"))?;
    Ok((whole.writer, whole.body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_truncation_is_found() {
        let bytes = encode("w", &vec!["a".to_string(), "ü".to_string()]).unwrap();
        assert_eq!(decode::<Vec<String>>(&bytes), Ok(("w".into(), vec!["a".into(), "ü".into()])));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode::<Vec<String>>(&damaged).is_err(), "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert!(decode::<Vec<String>>(&bytes[..cut]).is_err());
        }
    }
}
