//! `HandlerExec`: calls the handler with bounded batches of `input`.
//!
//! ```text
//! change rows ─► cut to batch_rows ─► call ─┐
//!                                   ─► call ─┼─► (the call's rows, what it returned)   ContractExec checks each pair
//!                                   ─► call ─┘   in the order in which calls end
//!                at most `concurrency` calls at work, over all partitions
//! ```
//!
//! Each partition keeps to itself: one output partition per input partition. The number of rows of a call is exactly
//! `batch_rows`, but for the last of a partition and for rows of more than 256 MiB together.
//!
//! Memory: per partition the input batch that is being cut, and at most `concurrency` calls that wait or are at
//! work, each with its rows and what it returned; reserved in the session's pool. Dropping a stream aborts its calls.
//! A panic in a handler fails the run with its text. Without rows there is no call. A second execution of a
//! partition is an error: it would call the handler again.

mod call;
mod cut;

pub(crate) use call::panic_text;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow::array::RecordBatch;
use arrow_schema::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{exec_err, internal_datafusion_err, internal_err, plan_datafusion_err};
use datafusion::error::Result;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use tokio::sync::Semaphore;

pub(crate) use self::call::CallResult;
use self::call::{Caller, Counters};
use crate::exec::contract::Contract;
use crate::handler::{BoundHandler, Handler, HandlerCall};

/// How a handler is called and what it must return.
#[derive(Debug, Clone)]
pub struct CallSpec {
    /// What every call is told; its number is counted by the operator.
    pub call: HandlerCall,
    /// The most rows of one call, at least 1.
    pub batch_rows: usize,
    /// The most calls at work at once, at least 1.
    pub concurrency: usize,
    /// The columns that the handler is given: key columns, then tracked columns.
    pub input_schema: SchemaRef,
    /// The columns that it must return.
    pub output_schema: SchemaRef,
    /// The key columns.
    pub key: Vec<String>,
}

/// State that belongs to one instance of the plan.
#[derive(Debug)]
struct Shared {
    started: Vec<AtomicBool>,
    permits: Arc<Semaphore>,
    calls: Arc<AtomicU64>,
}

impl Shared {
    fn new(partitions: usize, concurrency: usize) -> Self {
        Self {
            started: (0..partitions).map(|_| AtomicBool::new(false)).collect(),
            permits: Arc::new(Semaphore::new(concurrency.max(1))),
            calls: Arc::default(),
        }
    }
}

/// Calls the handler; see the module's documentation.
pub struct HandlerExec {
    input: Arc<dyn ExecutionPlan>,
    handler: Arc<dyn Handler>,
    spec: Arc<CallSpec>,
    shared: Shared,
    metrics: ExecutionPlanMetricsSet,
    properties: Arc<PlanProperties>,
}

impl fmt::Debug for HandlerExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerExec").field("spec", &self.spec).field("handler", &self.handler).finish_non_exhaustive()
    }
}

impl HandlerExec {
    /// Calls `handler` with the rows of `input`, whose columns are those of `spec.input_schema` and hidden ones.
    pub fn new(input: Arc<dyn ExecutionPlan>, handler: BoundHandler, spec: CallSpec) -> Self {
        Self::over(input, handler.handler(), Arc::new(spec))
    }

    fn over(input: Arc<dyn ExecutionPlan>, handler: Arc<dyn Handler>, spec: Arc<CallSpec>) -> Self {
        let partitions = input.output_partitioning().partition_count();
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&spec.output_schema)),
            Partitioning::UnknownPartitioning(partitions),
            input.pipeline_behavior(),
            input.boundedness(),
        );
        Self {
            shared: Shared::new(partitions, spec.concurrency),
            input,
            handler,
            spec,
            metrics: ExecutionPlanMetricsSet::new(),
            properties: Arc::new(properties),
        }
    }

    /// How the handler is called.
    pub fn spec(&self) -> &Arc<CallSpec> {
        &self.spec
    }

    /// The schema of the rows that come in.
    pub(crate) fn input_schema(&self) -> SchemaRef {
        self.input.schema()
    }

    /// One item per call: the rows it was given, with their hidden columns, and what it returned.
    pub(crate) fn calls(&self, partition: usize, context: Arc<TaskContext>) -> Result<BoxStream<'static, Result<CallResult>>> {
        let Some(started) = self.shared.started.get(partition) else {
            return internal_err!("HandlerExec has no partition {partition}");
        };
        if started.swap(true, Ordering::AcqRel) {
            return exec_err!("HandlerExec was executed twice: it would call the handler again");
        }
        let found = self.input.schema();
        let visible = self.spec.input_schema.fields().iter().map(|field| {
            found.index_of(field.name()).map_err(|_| plan_datafusion_err!("the handler's input has no column {:?}", field.name()))
        });
        let caller = Arc::new(Caller {
            handler: Arc::clone(&self.handler),
            spec: Arc::clone(&self.spec),
            visible: visible.collect::<Result<Vec<_>>>()?,
            permits: Arc::clone(&self.shared.permits),
            calls: Arc::clone(&self.shared.calls),
            counters: Counters {
                rows: MetricBuilder::new(&self.metrics).counter("handler_rows", partition),
                calls: MetricBuilder::new(&self.metrics).counter("handler_calls", partition),
                time: MetricBuilder::new(&self.metrics).subset_time("handler_time", partition),
            },
            reservation: MemoryConsumer::new(format!("HandlerExec[{partition}]")).register(context.memory_pool()),
        });
        let rows = self.input.execute(partition, context)?;
        let concurrency = self.spec.concurrency.max(1);
        let calls = cut::cut(rows, found, self.spec.batch_rows)
            .map_ok(move |batch| Arc::clone(&caller).start(batch))
            .try_buffer_unordered(concurrency);
        Ok(calls.boxed())
    }
}

impl DisplayAs for HandlerExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallSpec { call, batch_rows, concurrency, .. } = self.spec.as_ref();
        write!(
            f,
            "HandlerExec: table={}, version={}, batch_rows={batch_rows}, concurrency={concurrency}",
            call.table,
            self.handler.version()
        )
    }
}

impl ExecutionPlan for HandlerExec {
    fn name(&self) -> &str {
        "HandlerExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(&self, _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let input = children.pop().ok_or_else(|| internal_datafusion_err!("HandlerExec has one child"))?;
        Ok(Arc::new(Self::over(input, Arc::clone(&self.handler), Arc::clone(&self.spec))))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::over(Arc::clone(&self.input), Arc::clone(&self.handler), Arc::clone(&self.spec))))
    }

    /// What the handler returned, in the declared types; the keys are not checked here, `ContractExec` does that.
    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let contract = Arc::new(Contract::try_new(&self.spec, &self.input.schema())?);
        let rows = self.calls(partition, context)?.map(move |result| -> Result<Vec<Result<RecordBatch>>> {
            let call = result?;
            Ok(contract.typed(&call.output)?.into_iter().map(Ok).collect())
        });
        let rows = rows.map_ok(futures::stream::iter).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
