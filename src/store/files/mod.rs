//! Writing and reading the Parquet files of a table.
//!
//! ```text
//! batch ─ pieces ─┬─► ArrowWriter (data)  ─ bytes ─► BLAKE3, count ─► multipart upload ─► ObjectRef ┐
//!                 └─► ArrowWriter (index) ─ bytes ─► BLAKE3, count ─► multipart upload ─► ObjectRef ┴─► DataFile
//! ```
//!
//! Memory: one row group of each open file and the upload parts under way, all reserved in the pool. When the pool
//! refuses, the row group ends early and the uploads are waited for; `RESOURCES_EXHAUSTED` only when not even one row
//! fits then. Never creates a file without rows, never a name twice, and never a data file whose index file has other
//! rows or another order. A dropped writer leaves at most unnamed objects below its folder, which vacuum finds.

mod aligned;
mod bounds;
mod changes;
mod pair;
mod parquet_file;
mod properties;
mod read;
mod repeats;
mod spans;
mod upload;

pub(crate) use aligned::share_of;
pub use bounds::{decode_range, encode_range};
pub use changes::ChangesWriter;
pub use pair::{PairSpec, PairWriter, index_schema};
pub use properties::WriterConfig;
pub use read::{Choose, open_groups, open_rows, verify_object};

/// About how many bytes a batch may have: fewer rows are read at once where rows are large.
pub const BATCH_BYTES: usize = 32 << 20;

/// The fingerprint's upper 64 bits, a hidden column.
pub const FP_HI: &str = "__incremental_fp_hi";
/// The fingerprint's lower 64 bits, a hidden column.
pub const FP_LO: &str = "__incremental_fp_lo";
/// The ordinal of the source file, a hidden column; -1 when unknown.
pub const SRC: &str = "__incremental_src";
/// The version that wrote the row, a hidden column of index files.
pub const VERSION: &str = "__incremental_version";

#[cfg(test)]
pub(crate) mod test_support;
#[cfg(test)]
mod tests;
