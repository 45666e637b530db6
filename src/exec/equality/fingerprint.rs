//! The fingerprint of a row: 128 bits over the canonical encoding of its tracked columns, keyed by the table's secret.
//!
//! ```text
//! tracked columns in name order ─► canonical bytes ─► XXH3-128 (192-byte secret from the table's secret)  or  keyed BLAKE3
//! ```
//!
//! Memory: the encodings of 256 rows. Two unequal rows of one key share a fingerprint with probability 2^-128 under XXH3 for
//! input that does not depend on the secret; BLAKE3 holds against an adversary who chooses the input.

use std::fmt;

use arrow::array::ArrayRef;
use arrow_schema::Field;
use xxhash_rust::xxh3::xxh3_128_with_secret;

use super::block::Block;
use super::encoder::{EncodeError, append_row, bind, check_types};
use super::sink::RowBuffer;
use crate::error::{Error, Result};
use crate::spec::FingerprintKind;

const XXH3_SECRET: usize = 192;
/// Rows encoded at once: so few that their encodings stay in the nearest cache.
const BLOCK_ROWS: usize = 256;

/// Computes the fingerprints of rows.
pub struct Fingerprinter {
    /// Fields in name order, with their position in the order that the caller gives columns in.
    fields: Vec<Field>,
    order: Vec<usize>,
    hasher: Hasher,
    seed: u64,
}

enum Hasher {
    Xxh3(Box<[u8; XXH3_SECRET]>),
    Blake3([u8; 32]),
}

impl fmt::Debug for Fingerprinter {
    // The secret stays out of logs and plans.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.fields.iter().map(|f| f.name().as_str()).collect();
        f.debug_struct("Fingerprinter").field("columns", &names).finish_non_exhaustive()
    }
}

impl Fingerprinter {
    /// A fingerprinter for the tracked columns, in any order; `secret` is the table's.
    pub fn try_new(kind: FingerprintKind, secret: &[u8; 32], tracked: &[Field]) -> Result<Self> {
        check_types(tracked, false)?;
        let mut order: Vec<usize> = (0..tracked.len()).collect();
        order.sort_by_key(|i| tracked.get(*i).map(|f| f.name()));
        let fields = order.iter().filter_map(|i| tracked.get(*i).cloned()).collect();
        let hasher = match kind {
            FingerprintKind::Xxh3 => {
                let mut bytes = Box::new([0; XXH3_SECRET]);
                derive(secret, "datafusion-incremental 2026 fingerprint v1 xxh3 secret", bytes.as_mut_slice());
                Hasher::Xxh3(bytes)
            }
            FingerprintKind::Blake3 => Hasher::Blake3(blake3::derive_key("datafusion-incremental 2026 fingerprint v1 blake3 key", secret)),
        };
        let mut seed = [0; 8];
        derive(secret, "datafusion-incremental 2026 key hash seed", &mut seed);
        Ok(Self { fields, order, hasher, seed: u64::from_le_bytes(seed) })
    }

    /// Appends one fingerprint per row to `out`; `columns` in the order given to [`Self::try_new`], in any encoding.
    /// Without tracked columns every row has the same fingerprint, and `columns` cannot say how many rows there are:
    /// use [`Self::fingerprint_rows`].
    pub fn fingerprint(&self, columns: &[ArrayRef], out: &mut Vec<u128>) -> Result<()> {
        let rows = columns.first().map_or(0, |c| c.len());
        self.fingerprint_rows(columns, rows, out)
    }

    /// Like [`Self::fingerprint`] for `rows` rows.
    pub fn fingerprint_rows(&self, columns: &[ArrayRef], rows: usize, out: &mut Vec<u128>) -> Result<()> {
        self.try_fingerprint(columns, rows, out).map_err(|error| error.into_error(|row| format!("row {row} of a batch")))
    }

    pub(crate) fn try_fingerprint(&self, columns: &[ArrayRef], rows: usize, out: &mut Vec<u128>) -> Result<(), EncodeError> {
        let ordered: Vec<ArrayRef> = self.order.iter().filter_map(|i| columns.get(*i).cloned()).collect();
        if columns.len() != self.order.len() || columns.iter().any(|c| c.len() != rows) {
            return Err(Error::internal("the columns to fingerprint are not the tracked columns").into());
        }
        let bound = bind(&self.fields, &ordered)?;
        if Block::knows(&bound) {
            let mut block = Block::default();
            for start in (0..rows).step_by(BLOCK_ROWS) {
                block.encode(&bound, start..rows.min(start + BLOCK_ROWS));
                out.extend(block.rows().map(|bytes| self.digest(bytes)));
            }
            return Ok(());
        }
        let mut buffer = RowBuffer::default();
        out.reserve(rows);
        for row in 0..rows {
            buffer.clear();
            append_row(&bound, self.fields.iter(), row, &mut buffer)?;
            out.push(self.digest(buffer.as_slice()));
        }
        Ok(())
    }

    #[inline]
    fn digest(&self, bytes: &[u8]) -> u128 {
        match &self.hasher {
            Hasher::Xxh3(secret) => xxh3_128_with_secret(bytes, secret.as_slice()),
            Hasher::Blake3(key) => {
                let mut half = [0; 16];
                half.iter_mut().zip(blake3::keyed_hash(key, bytes).as_bytes()).for_each(|(to, from)| *to = *from);
                u128::from_le_bytes(half)
            }
        }
    }

    /// A seed for hash tables in memory, unknown to whoever chooses the keys.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }
}

fn derive(secret: &[u8; 32], context: &str, out: &mut [u8]) {
    blake3::Hasher::new_derive_key(context).update(secret).finalize_xof().fill(out);
}
