//! Local disk (the durable store replaces this alias).

/// The local disk.
pub type DurableLocalStore = object_store::local::LocalFileSystem;
