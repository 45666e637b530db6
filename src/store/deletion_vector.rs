//! Deletion vectors: the positions of a data file's dead rows, as Roaring portable 64-bit bitmaps (`.dv`).
//!
//! ```text
//! RoaringTreemap ── encode ──► bytes of a .dv object ── decode ──► the same RoaringTreemap
//! ```
//!
//! The bytes are the format that Roaring's C, Java and Go libraries read. Memory: the bitmap and its bytes. Never
//! decodes bytes that do not hold exactly one bitmap; whether they are the right bytes is the reader's hash check.

use bytes::Bytes;
use roaring::RoaringTreemap;

use crate::error::{Error, ErrorCode, Result};

/// The bytes of a deletion vector.
///
/// # Errors
/// Never for memory; the encoder is fallible.
pub fn encode(rows: &RoaringTreemap) -> Result<Bytes> {
    let mut bytes = Vec::with_capacity(rows.serialized_size());
    rows.serialize_into(&mut bytes).map_err(|e| Error::internal(format!("a deletion vector cannot be encoded: {e}")))?;
    Ok(bytes.into())
}

/// The deletion vector in `bytes`.
///
/// # Errors
/// `CORRUPT` when the bytes are not exactly one bitmap.
pub fn decode(bytes: &[u8]) -> Result<RoaringTreemap> {
    let corrupt = |what: &dyn std::fmt::Display| {
        Error::new(
            ErrorCode::Corrupt,
            format!("a deletion vector is not readable: {what}. Remedy: restore the table's files, or REFRESH the table FULL"),
        )
    };
    let mut rest = bytes;
    let rows = RoaringTreemap::deserialize_from(&mut rest).map_err(|e| corrupt(&e))?;
    if !rest.is_empty() {
        return Err(corrupt(&format!("{} bytes follow the bitmap", rest.len())));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_come_back_and_damage_does_not_panic() {
        let rows: RoaringTreemap = (0..5000).chain([1 << 40, u64::MAX]).collect();
        let bytes = encode(&rows).unwrap();
        assert_eq!(decode(&bytes).unwrap(), rows);
        for cut in 0..bytes.len().min(200) {
            assert!(decode(&bytes[..cut]).is_err());
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert_eq!(decode(&longer).map_err(|e| e.code()), Err(ErrorCode::Corrupt));
    }
}
