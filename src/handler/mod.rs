//! The transformation: SQL in a sandbox, or Rust code.
