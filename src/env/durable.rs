//! A stand-in until the store helper lands it.

use object_store::local::LocalFileSystem;

/// placeholder
#[derive(Debug)]
pub struct DurableLocalStore(pub LocalFileSystem);
