//! Typed equality through a session: every position of the table of equalities, for keys and for values, from memory
//! (whole, and cut into slices over several partitions) and from Parquet, through SQL and through a Rust handler.

mod typed;
