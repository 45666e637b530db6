//! The node of a verb: one partition, no statistics; it reads or acts when its stream is first polled.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties};
use futures::{TryStreamExt, stream};

use super::{project, session_state};
use crate::error::Error;
use crate::sql::execute::Action;
use crate::sql::verbs::VerbSpec;

/// The table of a verb's rows.
#[derive(Debug)]
pub struct ActionProvider {
    verb: &'static VerbSpec,
    action: Arc<Action>,
}

impl ActionProvider {
    /// A table whose scan runs `action`.
    pub fn new(verb: &'static VerbSpec, action: Action) -> Self {
        Self { verb, action: Arc::new(action) }
    }
}

#[async_trait]
impl TableProvider for ActionProvider {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.action.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let state = session_state(session)?;
        project(Arc::new(ActionExec::new(self.verb, Arc::clone(&self.action), state)), projection)
    }
}

struct ActionExec {
    verb: &'static VerbSpec,
    action: Arc<Action>,
    state: datafusion::execution::SessionState,
    executed: AtomicBool,
    properties: Arc<PlanProperties>,
}

impl ActionExec {
    fn new(verb: &'static VerbSpec, action: Arc<Action>, state: datafusion::execution::SessionState) -> Self {
        let equivalence = EquivalenceProperties::new(Arc::clone(&action.schema));
        let properties = PlanProperties::new(equivalence, Partitioning::UnknownPartitioning(1), EmissionType::Final, Boundedness::Bounded);
        Self { verb, action, state, executed: AtomicBool::new(false), properties: Arc::new(properties) }
    }
}

impl fmt::Debug for ActionExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActionExec").field("verb", &self.verb.name).finish_non_exhaustive()
    }
}

impl DisplayAs for ActionExec {
    fn fmt_as(&self, _t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "ActionExec: {}{}", self.verb.function(), if self.verb.acts { ", acts" } else { "" })
    }
}

impl ExecutionPlan for ActionExec {
    fn name(&self) -> &'static str {
        "ActionExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(&self, _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>) -> DfResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _children: Vec<Arc<dyn ExecutionPlan>>) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn reset_state(self: Arc<Self>) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(self.verb, Arc::clone(&self.action), self.state.clone())))
    }

    fn execute(&self, _partition: usize, _context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        if self.verb.acts && self.executed.swap(true, Ordering::SeqCst) {
            return Err(Error::internal(format!("the node of {} was executed twice", self.verb.function())).into());
        }
        let (action, state) = (Arc::clone(&self.action), self.state.clone());
        let rows = async move { action.run(&state).await.map(|batches| stream::iter(batches.into_iter().map(Ok))) };
        let stream = stream::once(rows).map_err(DataFusionError::from).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.action.schema), stream)))
    }
}
