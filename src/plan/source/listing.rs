//! The listing tables behind a table: found through views and subqueries, and listed afresh.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::listing::{ListingTable, ListingTableUrl};
use datafusion::datasource::source_as_provider;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::context::SessionState;
use datafusion::logical_expr::{LogicalPlan, TableScan};
use futures::TryStreamExt;
use object_store::ObjectMeta;
use object_store::path::Path;

/// Every scan of `plan`, those inside subqueries included.
pub(super) fn scans(plan: &LogicalPlan) -> Result<Vec<TableScan>> {
    let mut found = Vec::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            found.push(scan.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

/// Every listing table that reading `provider` reads.
pub(super) fn listing_tables(provider: &Arc<dyn TableProvider>) -> Result<Vec<ListingTable>> {
    let mut found = Vec::new();
    let mut open = vec![Arc::clone(provider)];
    while let Some(provider) = open.pop() {
        if let Some(table) = provider.downcast_ref::<ListingTable>() {
            found.push(table.clone());
        } else if let Some(plan) = provider.get_logical_plan() {
            for scan in scans(&plan)? {
                // A source that is not DataFusion's wrapper of a provider is opaque: it has no files that we know of.
                open.extend(source_as_provider(&scan.source));
            }
        }
    }
    Ok(found)
}

/// The objects that `table` reads below `url`, zero-byte ones included, by path.
pub(super) async fn list(state: &SessionState, table: &ListingTable, url: &ListingTableUrl) -> Result<BTreeMap<Path, ObjectMeta>> {
    let store = state.runtime_env().object_store(url)?;
    let files = url.list_all_files(state, store.as_ref(), &table.options().file_extension).await;
    let files = match files {
        Ok(files) => files.try_collect::<Vec<_>>().await,
        Err(e) => Err(e),
    };
    match files {
        Ok(files) => Ok(files.into_iter().map(|meta| (meta.location.clone(), meta)).collect()),
        // A local folder that is gone lists as an error or as nothing, depending on the store.
        Err(DataFusionError::ObjectStore(e)) if matches!(*e, object_store::Error::NotFound { .. }) => Ok(BTreeMap::new()),
        Err(e) => Err(e),
    }
}

/// The folder or file of `url` as it is written in identities and messages.
pub(super) fn url_text(url: &ListingTableUrl) -> String {
    object_text(url, url.prefix())
}

/// An object of `url`'s store as it is written in identities and messages. Holds no credentials.
pub(super) fn object_text(url: &ListingTableUrl, path: &Path) -> String {
    format!("{}{path}", store_text(url))
}

fn store_text(url: &ListingTableUrl) -> String {
    let url = url.get_url();
    match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{}://{host}:{port}/", url.scheme()),
        (host, _) => format!("{}://{}/", url.scheme(), host.unwrap_or_default()),
    }
}
