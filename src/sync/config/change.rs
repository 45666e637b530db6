//! What a change of the configuration costs: a pure function, one arm per row of the matrix.

use crate::spec::sync::{FieldType, SyncConfig, SyncType};

/// What a change does to the rows that are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// The next run goes on.
    Keep,
    /// Rows stay; the mark is forgotten, and the next run reads everything and merges it.
    Reseed,
    /// The next run makes a new generation beside the old one and swaps it in.
    Rebuild,
    /// The change is not possible now.
    Refuse,
}

impl Effect {
    /// The word as it is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Reseed => "reseed",
            Self::Rebuild => "rebuild",
            Self::Refuse => "refuse",
        }
    }
}

/// What a plan depends on beside the two configurations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Whether a generation is stored.
    pub has_data: bool,
    /// The run that is at work.
    pub active_run: Option<String>,
}

/// What one field's change does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldEffect {
    /// The field.
    pub field: &'static str,
    /// What its change does.
    pub effect: Effect,
    /// Why.
    pub reason: String,
}

/// What a change does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangePlan {
    /// The strongest effect of any field.
    pub effect: Effect,
    /// Whether the pass that a reseed makes also removes rows that it does not find.
    pub removes_rows: bool,
    /// The changed fields.
    pub fields: Vec<FieldEffect>,
}

/// The strongest effect of several.
pub fn strongest(fields: &[FieldEffect]) -> Effect {
    fields.iter().map(|field| field.effect).max().unwrap_or(Effect::Keep)
}

/// Why nothing but the schedule changes now.
pub fn refused_by(run: &str) -> String {
    format!("run {run} is active; wait for it, or cancel it")
}

impl ChangePlan {
    fn of(&self, field: &str) -> Option<&FieldEffect> {
        self.fields.iter().find(|effect| effect.field == field)
    }

    /// What `change` costs rows that another configuration made: `self` is the plan from that one to the new one, `pending`
    /// from that one to the present one. A change that takes another back costs nothing; one that makes an earlier change
    /// matter costs what that one does.
    pub fn seen_from(&self, change: &Self, pending: &Self) -> Vec<FieldEffect> {
        let back = |field: &FieldEffect| FieldEffect {
            effect: Effect::Keep,
            reason: "it takes back what no run has seen: the stored rows fit".into(),
            ..field.clone()
        };
        let anyway = |field: FieldEffect| match (field.effect, pending.effect) {
            (Effect::Reseed, Effect::Rebuild) => {
                FieldEffect { effect: Effect::Keep, reason: "the next run makes a new generation anyway".into(), ..field }
            }
            _ => field,
        };
        let changed = change.fields.iter().map(|field| self.of(field.field).cloned().map_or_else(|| back(field), anyway));
        let matters = self
            .fields
            .iter()
            .filter(|field| change.of(field.field).is_none() && pending.of(field.field).is_none_or(|before| before.effect < field.effect));
        changed.chain(matters.cloned()).collect()
    }

    /// What is said about the change.
    pub fn message(fields: &[FieldEffect]) -> String {
        if fields.is_empty() {
            return "nothing changes".into();
        }
        fields.iter().map(|field| format!("{}: {}", field.field, field.reason)).collect::<Vec<_>>().join("; ")
    }
}

/// Fields that only decide when runs start, or nothing at all: they may change while a run is active.
const SCHEDULING: [&str; 5] = ["should_sync", "sync_frequency", "sync_time_of_day", "reconcile_frequency", "description"];

/// Whether two configurations differ in nothing but the schedule, so that a load goes on under either.
pub fn reads_alike(old: &SyncConfig, new: &SyncConfig) -> bool {
    let plan = plan_change(old, new, &Facts { has_data: true, active_run: None });
    plan.fields.iter().all(|field| SCHEDULING.contains(&field.field))
}

/// Judges the change from `old` to `new`. Without data nothing is at stake.
pub fn plan_change(old: &SyncConfig, new: &SyncConfig, facts: &Facts) -> ChangePlan {
    let mut plan = Plan { old, new, fields: vec![], removes_rows: false };
    plan.scheduling();
    plan.sync_type();
    plan.cursor();
    plan.key();
    plan.columns();
    plan.filters();
    let Plan { mut fields, removes_rows, .. } = plan;
    if !facts.has_data {
        for field in &mut fields {
            field.effect = Effect::Keep;
            field.reason = "nothing is loaded yet".into();
        }
    }
    if let Some(run) = &facts.active_run {
        for field in fields.iter_mut().filter(|field| !SCHEDULING.contains(&field.field)) {
            field.effect = Effect::Refuse;
            field.reason = refused_by(run);
        }
    }
    let effect = strongest(&fields);
    ChangePlan { effect, removes_rows: removes_rows && effect == Effect::Reseed, fields }
}

struct Plan<'a> {
    old: &'a SyncConfig,
    new: &'a SyncConfig,
    fields: Vec<FieldEffect>,
    removes_rows: bool,
}

impl Plan<'_> {
    fn add(&mut self, field: &'static str, effect: Effect, reason: impl Into<String>) {
        self.fields.push(FieldEffect { field, effect, reason: reason.into() });
    }

    /// Whether stored rows stay and are merged with by key.
    fn merges(&self) -> bool {
        use SyncType::{FullRefresh, Incremental};
        self.new.sync_type == Some(Incremental) && matches!(self.old.sync_type, Some(Incremental | FullRefresh))
    }

    /// Whether stored rows stay and are added to.
    fn appends(&self) -> bool {
        use SyncType::{Append, Incremental};
        self.new.sync_type == Some(Append) && matches!(self.old.sync_type, Some(Append | Incremental))
    }

    fn scheduling(&mut self) {
        let (old, new) = (self.old, self.new);
        if old.should_sync() != new.should_sync() {
            let reason =
                if new.should_sync() { "the schedule runs it again" } else { "the schedule leaves it alone; a reload still runs it" };
            self.add("should_sync", Effect::Keep, reason);
        }
        let later = "it decides when runs start, not what they do";
        if old.sync_frequency != new.sync_frequency {
            self.add("sync_frequency", Effect::Keep, later);
        }
        if old.sync_time_of_day != new.sync_time_of_day {
            self.add("sync_time_of_day", Effect::Keep, later);
        }
        if old.reconcile_frequency != new.reconcile_frequency {
            self.add("reconcile_frequency", Effect::Keep, later);
        }
        if old.description != new.description {
            self.add("description", Effect::Keep, "it is only text");
        }
    }

    fn sync_type(&mut self) {
        use SyncType::{Append, FullRefresh, Incremental};
        if self.old.sync_type == self.new.sync_type {
            return;
        }
        let (effect, reason) = match (self.old.sync_type, self.new.sync_type) {
            (Some(FullRefresh), Some(Incremental)) => {
                (Effect::Reseed, "rows stay; the next run reads everything once, merges it by key and sets the mark")
            }
            (Some(Incremental), Some(FullRefresh)) => (Effect::Keep, "rows stay until the next run replaces them"),
            (Some(FullRefresh), Some(Append)) => (Effect::Rebuild, "the stored rows are one version of each row, not a history"),
            (Some(Append), Some(FullRefresh)) => (Effect::Rebuild, "the stored rows hold several versions of a row"),
            (Some(Append), Some(Incremental)) => (Effect::Rebuild, "the stored rows hold several versions of a row, and merging needs one"),
            (Some(Incremental), Some(Append)) => {
                (Effect::Keep, "rows stay; versions before this change are not there, only the newest of each row")
            }
            (_, None) => (Effect::Keep, "rows stay; nothing is synced until a type is chosen"),
            _ => (Effect::Rebuild, "the stored rows have another shape"),
        };
        self.add("sync_type", effect, reason);
    }

    fn cursor(&mut self) {
        let (old, new) = (self.old, self.new);
        if old.incremental_field != new.incremental_field {
            let (effect, reason) = if self.merges() && self.has_mark() {
                (Effect::Reseed, "the mark is of the old column; the next run reads everything once and merges it by key")
            } else if self.appends() {
                (Effect::Rebuild, "the mark is of the old column, and appending everything once more would double the rows")
            } else {
                (Effect::Keep, "the stored rows do not depend on it")
            };
            self.add("incremental_field", effect, reason);
        } else if old.incremental_field_type != new.incremental_field_type {
            let kind = |field_type: Option<FieldType>| field_type.map(same_values);
            let (effect, reason) = if kind(old.incremental_field_type) == kind(new.incremental_field_type) || !self.has_mark() {
                (Effect::Keep, "the mark keeps its value")
            } else if self.appends() {
                (Effect::Rebuild, "the mark is of other values, and appending everything once more would double the rows")
            } else {
                (Effect::Reseed, "the mark is of other values; the next run reads everything once and merges it by key")
            };
            self.add("incremental_field_type", effect, reason);
        }
        if old.incremental_field_lookback_seconds != new.incremental_field_lookback_seconds {
            self.add("incremental_field_lookback_seconds", Effect::Keep, "it moves where runs begin to read, not the mark");
        }
        if old.incremental_field_null_policy != new.incremental_field_null_policy {
            self.add("incremental_field_null_policy", Effect::Keep, "it counts from the next run on");
        }
    }

    fn has_mark(&self) -> bool {
        self.old.sync_type.is_some_and(SyncType::has_cursor) && (self.merges() || self.appends())
    }

    fn key(&mut self) {
        if self.old.primary_key_columns == self.new.primary_key_columns {
            return;
        }
        let (effect, reason) = if self.merges() && self.has_mark() {
            (Effect::Rebuild, "the stored rows were merged by the old key")
        } else {
            (Effect::Keep, "it is used when rows are merged next")
        };
        self.add("primary_key_columns", effect, reason);
    }

    fn columns(&mut self) {
        let (old, new) = (&self.old.enabled_columns, &self.new.enabled_columns);
        if old == new {
            return;
        }
        let adds = match (old, new) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(old), Some(new)) => new.iter().any(|column| !old.contains(column)),
        };
        let (effect, reason) = if !adds {
            (Effect::Keep, "columns that are left out disappear with the next run")
        } else if self.merges() {
            (Effect::Reseed, "rows that are stored lack the new columns; the next run reads everything once")
        } else if self.appends() {
            (Effect::Keep, "rows that are stored hold nulls in the new columns; a resync fills those that the source still has")
        } else {
            (Effect::Keep, "the next run reads everything anyway")
        };
        self.add("enabled_columns", effect, reason);
    }

    fn filters(&mut self) {
        let (old, new) = (&self.old.row_filters, &self.new.row_filters);
        if old == new {
            return;
        }
        let is_tighter = old.iter().all(|filter| new.contains(filter));
        let is_looser = new.iter().all(|filter| old.contains(filter));
        let (effect, reason) = if self.merges() {
            self.removes_rows = !is_looser;
            match (is_tighter, is_looser) {
                (true, _) => (Effect::Reseed, "the next run reads everything once and removes rows that do not pass any more"),
                (_, true) => (Effect::Reseed, "the next run reads everything once to find rows that pass now"),
                _ => (Effect::Reseed, "the next run reads everything once, adds rows that pass now and removes those that do not"),
            }
        } else if self.appends() {
            (Effect::Rebuild, "rows that were added under the other conditions cannot be told apart")
        } else {
            (Effect::Keep, "the next run reads everything anyway")
        };
        self.add("row_filters", effect, reason);
    }
}

/// Kinds of cursor values that are the same values under another name.
fn same_values(field_type: FieldType) -> FieldType {
    match field_type {
        FieldType::Numeric => FieldType::Integer,
        FieldType::Timestamp | FieldType::Date => FieldType::Datetime,
        other => other,
    }
}
