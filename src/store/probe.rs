//! The probe: whether the store keeps the create-only promise that the whole protocol rests on.
//!
//! ```text
//! two creates of one new name at once ─► exactly one wins ─► a third is refused ─► the name holds the winner's bytes
//! ```
//!
//! Memory: three small objects' worth. Never touches a name that existed.

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error as StoreError, PutMode, PutResult};

use super::objects::Objects;
use super::paths;
use crate::error::{Error, ErrorCode, Result};

/// Probes the store below `root`.
pub(super) async fn probe(objects: &Objects, root: &Path) -> Result<()> {
    let path = paths::below(root, &format!("{}/{}.json", paths::PROBE, objects.env.ids.id()?));
    let outcome = attempt(objects, &path).await;
    if let Err(e) = objects.delete(vec![path.clone()]).await {
        log::debug!("the probe {path} stays: {e}");
    }
    outcome
}

async fn attempt(objects: &Objects, path: &Path) -> Result<()> {
    let put = |text: &'static str| objects.store.put_opts(path, Bytes::from_static(text.as_bytes()).into(), PutMode::Create.into());
    let (first, second) = futures::join!(put("first"), put("second"));
    let winner = match (is_won(objects, path, first)?, is_won(objects, path, second)?) {
        (true, false) => "first",
        (false, true) => "second",
        (true, true) => return Err(unsafe_store(objects, "it let two writers create the same object")),
        (false, false) => settle(objects, path).await?,
    };
    if is_won(objects, path, put("third").await)? {
        return Err(unsafe_store(objects, "it let a writer create an object that existed"));
    }
    match objects.get_limited(path, 64).await? {
        Some(found) if found.bytes == winner.as_bytes() => Ok(()),
        _ => Err(unsafe_store(objects, "an object that was created reads back otherwise")),
    }
}

/// Both creators were refused: an answer was lost on the way, or the store turned both away. The object tells.
async fn settle(objects: &Objects, path: &Path) -> Result<&'static str> {
    let found = objects.get_limited(path, 64).await?;
    match found.as_ref().map(|o| o.bytes.as_ref()) {
        Some(b"first") => Ok("first"),
        Some(b"second") => Ok("second"),
        None => {
            let again = objects.store.put_opts(path, Bytes::from_static(b"second").into(), PutMode::Create.into()).await;
            again.map(|_| "second").map_err(|e| objects.failed("writing", path, e))
        }
        Some(_) => Err(unsafe_store(objects, "an object that was created reads back otherwise")),
    }
}

fn is_won(objects: &Objects, path: &Path, result: object_store::Result<PutResult>) -> Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => Ok(false),
        Err(e @ (StoreError::NotImplemented { .. } | StoreError::NotSupported { .. })) => {
            Err(unsafe_store(objects, &e.to_string()).with_source(e))
        }
        Err(e) => Err(objects.failed("writing", path, e)),
    }
}

fn unsafe_store(objects: &Objects, what: &str) -> Error {
    Error::new(
        ErrorCode::StoreUnsafe,
        format!(
            "{}: the store does not keep the create-only promise, so concurrent runs could lose each other's versions: {what}. \
             Remedy: use a local disk with hard links, or an object store with conditional puts (for S3-compatible ones: one that honours If-None-Match)",
            objects.label
        ),
    )
}
