//! One statement sees one version of a table, however often it names it.
//!
//! ```text
//! analyse ─► every TableScan of t gets a clone of t's provider ─┬─► scan: the pin is filled by one look-up
//!            that shares one empty pin                          └─► scan: the same snapshot
//! ```
//!
//! DataFusion analyses a plan each time it is planned for execution: at every EXECUTE, at every query of a view, at every
//! run of a data frame. So a pin never outlives its statement, whatever the host keeps. Where the rule is not registered,
//! scans of one statement are recognised by the statement's start time, for a short while.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{LogicalPlan, TableScan};
use datafusion::optimizer::AnalyzerRule;
use tokio::sync::OnceCell;

use super::{IncrementalTable, Snapshot, TableHandle};

/// The version that one statement reads, looked up by its first scan.
#[derive(Debug, Default)]
pub(super) struct StatementPin(OnceCell<Option<Arc<Snapshot>>>);

impl StatementPin {
    /// The pinned snapshot; the newest one if this is the statement's first scan of the table.
    pub(super) async fn snapshot(&self, handle: &TableHandle) -> crate::error::Result<Option<Arc<Snapshot>>> {
        Ok(self.0.get_or_try_init(|| handle.newest()).await?.clone())
    }
}

/// Gives every statement one shared pin per table.
#[derive(Debug, Default, Clone, Copy)]
pub struct PinRule;

impl AnalyzerRule for PinRule {
    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        let mut pins: HashMap<String, Arc<StatementPin>> = HashMap::new();
        let pinned = plan.transform_down_with_subqueries(|node| match node {
            LogicalPlan::TableScan(scan) => pin_scan(scan, &mut pins),
            other => Ok(Transformed::no(other)),
        })?;
        Ok(pinned.data)
    }

    fn name(&self) -> &str {
        "incremental_pin"
    }
}

fn pin_scan(mut scan: TableScan, pins: &mut HashMap<String, Arc<StatementPin>>) -> Result<Transformed<LogicalPlan>> {
    // Sources that are no providers, and providers of others, are left alone.
    let provider = source_as_provider(&scan.source).ok();
    let Some(table) = provider.as_ref().and_then(|provider| provider.downcast_ref::<IncrementalTable>()) else {
        return Ok(Transformed::no(LogicalPlan::TableScan(scan)));
    };
    let pin = pins.entry(table.handle().identity()).or_default();
    match table.pinned(Arc::clone(pin), &scan).map_err(DataFusionError::from)? {
        Some(pinned) => {
            scan.source = provider_as_source(Arc::new(pinned));
            Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
        }
        None => Ok(Transformed::no(LogicalPlan::TableScan(scan))), // AS OF: pinned by the user
    }
}

/// How long scans with one start time are taken for one statement. A host that reuses a session state repeats its start
/// time, so this is also how stale such a host may read without the rule.
const RECENT: Duration = Duration::from_secs(1);

/// Pins of statements that are being planned, where the rule is not registered. Memory: those of the last second.
#[derive(Debug, Default)]
pub(super) struct RecentPins(Vec<RecentPin>);

#[derive(Debug)]
struct RecentPin {
    session: String,
    started: DateTime<Utc>,
    made: Duration,
    pin: Arc<StatementPin>,
}

impl RecentPins {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The pin of the statement that `session` started at `started`; `now` is the clock's elapsed time.
    pub(super) fn pin(&mut self, session: &str, started: DateTime<Utc>, now: Duration) -> Arc<StatementPin> {
        self.0.retain(|recent| now.saturating_sub(recent.made) < RECENT);
        if let Some(recent) = self.0.iter().find(|recent| recent.session == session && recent.started == started) {
            return Arc::clone(&recent.pin);
        }
        let pin = Arc::new(StatementPin::default());
        self.0.push(RecentPin { session: session.to_string(), started, made: now, pin: Arc::clone(&pin) });
        pin
    }
}
