//! A store whose bodies are whole: a body of another length than was announced is a failure of the store.
//!
//! ```text
//! get ─► the store ─► body, counted ─┬ as long as announced ─► the caller
//!                                    └ shorter or longer ────► an error, which may be tried again
//! ```
//!
//! Otherwise a transfer that broke off would read as damage, whose remedies are others, or panic where a reader relies on
//! the length. Tables read and write through it, and runs read their sources through it. Memory: none of its own. Never holds
//! a body back, never changes one.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::error::Result as DfResult;
use datafusion::execution::object_store::ObjectStoreRegistry;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use url::Url;

/// Another store, whose bodies are counted.
#[derive(Debug)]
pub(super) struct WholeBodies(pub(super) Arc<dyn ObjectStore>);

impl fmt::Display for WholeBodies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The stores of another registry, whose bodies are counted.
#[derive(Debug)]
pub(crate) struct WholeStores(pub(crate) Arc<dyn ObjectStoreRegistry>);

impl ObjectStoreRegistry for WholeStores {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.0.register_store(url, store)
    }

    fn deregister_store(&self, url: &Url) -> DfResult<Arc<dyn ObjectStore>> {
        self.0.deregister_store(url)
    }

    fn get_store(&self, url: &Url) -> DfResult<Arc<dyn ObjectStore>> {
        Ok(Arc::new(WholeBodies(self.0.get_store(url)?)))
    }
}

fn broken(path: &Path, announced: u64, found: &str) -> Error {
    let source = format!("the body of {path} has {found} than the {announced} bytes that were announced").into();
    Error::Generic { store: "WholeBodies", source }
}

fn counted(path: Path, announced: u64, body: BoxStream<'static, Result<Bytes>>) -> BoxStream<'static, Result<Bytes>> {
    let next = move |(mut body, left): (BoxStream<'static, Result<Bytes>>, u64)| {
        let path = path.clone();
        async move {
            let Some(chunk) = body.next().await.transpose()? else {
                return if left == 0 { Ok(None) } else { Err(broken(&path, announced, "fewer")) };
            };
            let left = left.checked_sub(chunk.len() as u64).ok_or_else(|| broken(&path, announced, "more"))?;
            Ok(Some((chunk, (body, left))))
        }
    };
    stream::try_unfold((body, announced), next).boxed()
}

#[async_trait]
impl ObjectStore for WholeBodies {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.0.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let head = options.head;
        let mut found = self.0.get_opts(location, options).await?;
        let announced = found.range.end.saturating_sub(found.range.start);
        found.payload = match found.payload {
            GetResultPayload::Stream(body) if !head => GetResultPayload::Stream(counted(location.clone(), announced, body)),
            other => other,
        };
        Ok(found)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let parts = self.0.get_ranges(location, ranges).await?;
        let lengths = ranges.iter().map(|range| range.end.saturating_sub(range.start));
        match lengths.zip(&parts).find(|(announced, part)| part.len() as u64 != *announced) {
            Some((announced, _)) => Err(broken(location, announced, "another length")),
            None => Ok(parts),
        }
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.0.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;

    use super::*;

    async fn read(announced: u64, chunks: &[&'static str]) -> Result<Vec<Bytes>> {
        let chunks: Vec<Result<Bytes>> = chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect();
        counted(Path::from("o"), announced, stream::iter(chunks).boxed()).try_collect().await
    }

    #[tokio::test]
    async fn a_body_of_another_length_is_an_error() {
        assert_eq!(read(4, &["ab", "", "cd"]).await.unwrap().concat(), b"abcd");
        assert!(read(0, &[]).await.unwrap().is_empty());
        for chunks in [&["ab"][..], &[], &["ab", "cde"]] {
            let error = read(4, chunks).await.unwrap_err().to_string();
            assert!(error.contains("the 4 bytes that were announced"), "{error}");
        }
    }
}
