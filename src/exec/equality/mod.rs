//! Typed equality: the one definition of "equal" for keys, fingerprints and output checks.
//!
//! ```text
//! column (any encoding) ─ bind ─► canonical bytes ─┬─► keys         exact, in memory: KeySet, the diff's index
//!                                                  ├─► fingerprint  128 bits, keyed, stored in index files
//!                                                  └─► output check
//! ```
//!
//! Same declared type and SQL's `IS NOT DISTINCT FROM`, at every depth; every NaN equals every NaN, -0.0 equals 0.0; text
//! is compared by bytes; dictionaries, views, runs and large offsets are encodings and never matter; struct fields match by
//! name; maps are sets of entries. Bound in memory by the batch at hand. It never compares by hash alone, never coerces types.

mod block;
mod column;
mod encoder;
mod fingerprint;
mod key_array;
mod key_set;
mod key_store;
mod keys;
mod normalize;
mod render;
mod sink;
#[cfg(test)]
mod tests;

pub use encoder::{CanonicalEncoder, EncodedRows};
pub use fingerprint::Fingerprinter;
pub use key_set::KeySet;
pub(crate) use key_set::{KeyTable, too_many_keys};
pub use key_store::KeyHash;
pub(crate) use key_store::{ByteKeys, Hashing, KeyStore, SmallKeys};
pub(crate) use keys::{KeyBatch, KeyReader, KeyShape};
pub use normalize::normalize_array;
pub(crate) use normalize::{Piece, pieces};
pub(crate) use render::render_distinct_key;
pub use render::render_key;
