//! How large a query becomes when every name in it is replaced by what it stands for.
//!
//! ```text
//! c1 AS (SELECT x || x AS x FROM input), c2 AS (SELECT x || x AS x FROM c1), …    columns: 2, 4, 8, … times x
//! c1 AS (SELECT … FROM input a JOIN input b), c2 AS (… c1 a JOIN c1 b), …          tables:  2, 4, 8, … times input
//! ```
//!
//! Planning does replace them: forty short lines would take for ever, and so would the type of `struct(x, x)`. The syntax
//! tree is measured instead, before it is planned. Memory: one number per column of each subquery.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, ObjectName, Query, Select, SelectItem, SetExpr, TableFactor, Value, Visitor, visit_expressions,
};

/// Parts that one output column may be made of.
const MAX_PARTS: u64 = 100_000;
/// Tables that a query may read, each as often as it is named.
const MAX_TABLES: u64 = 256;
/// A literal counts once for every so many bytes.
const LITERAL_UNIT: usize = 16;

/// Measures every query of a statement, the inner ones first.
#[derive(Default)]
pub(super) struct Expansion {
    /// The queries that are being visited: how many tables they read so far.
    open: Vec<u64>,
    /// The bodies of common table expressions, by address, with their names and whether they rename columns.
    bodies: HashMap<usize, (String, bool)>,
    tables: HashMap<String, u64>,
    named: HashMap<String, Columns>,
    derived: HashMap<usize, Columns>,
}

/// How many parts each column is made of.
#[derive(Debug, Clone, Default)]
struct Columns {
    named: HashMap<String, u64>,
    /// Of every other column.
    other: u64,
}

impl Columns {
    fn largest(&self) -> u64 {
        self.named.values().copied().max().unwrap_or(0).max(self.other)
    }

    fn of(&self, name: &str) -> u64 {
        self.named.get(name).copied().unwrap_or(self.other)
    }

    /// Each column as large as the larger of both.
    fn widen(&mut self, other: &Columns) {
        for (name, parts) in &other.named {
            let known = self.named.entry(name.clone()).or_insert(self.other);
            *known = (*known).max(*parts);
        }
        self.other = self.other.max(other.other);
    }
}

fn address(query: &Query) -> usize {
    std::ptr::from_ref(query) as usize
}

fn lower(ident: &Ident) -> String {
    ident.value.to_lowercase()
}

impl Expansion {
    fn columns(&self, body: &SetExpr) -> Columns {
        match body {
            SetExpr::Select(select) => self.select(select),
            SetExpr::Query(query) => self.derived.get(&address(query)).cloned().unwrap_or_default(),
            SetExpr::SetOperation { left, right, .. } => {
                let (left, right) = (self.columns(left), self.columns(right));
                // Columns go by position there.
                Columns { named: HashMap::new(), other: left.largest().max(right.largest()) }
            }
            _ => Columns { named: HashMap::new(), other: 1 },
        }
    }

    fn select(&self, select: &Select) -> Columns {
        let mut scope = Columns { named: HashMap::new(), other: 1 };
        for from in &select.from {
            for factor in std::iter::once(&from.relation).chain(from.joins.iter().map(|join| &join.relation)) {
                scope.widen(&self.factor(factor));
            }
        }
        let mut out = Columns { named: HashMap::new(), other: 1 };
        for item in &select.projection {
            match item {
                SelectItem::UnnamedExpr(expr) => {
                    let parts = self.parts(expr, &scope);
                    match expr {
                        Expr::Identifier(ident) => drop(out.named.insert(lower(ident), parts)),
                        Expr::CompoundIdentifier(idents) => drop(idents.last().map(|ident| out.named.insert(lower(ident), parts))),
                        _ => out.other = out.other.max(parts),
                    }
                }
                SelectItem::ExprWithAlias { expr, alias } => {
                    let parts = self.parts(expr, &scope);
                    let known = out.named.entry(lower(alias)).or_insert(0);
                    *known = (*known).max(parts);
                }
                // A wildcard, with whatever it leaves out or replaces.
                _ => {
                    let replaced = visit_largest(item, |expr| self.parts(expr, &scope));
                    out.widen(&scope);
                    out.other = out.other.max(replaced);
                }
            }
        }
        out
    }

    fn factor(&self, factor: &TableFactor) -> Columns {
        let (columns, alias) = match factor {
            TableFactor::Table { name, alias, .. } => (self.named.get(&single(name)).cloned(), alias),
            TableFactor::Derived { subquery, alias, .. } => (self.derived.get(&address(subquery)).cloned(), alias),
            TableFactor::NestedJoin { table_with_joins, alias } => {
                let mut all = self.factor(&table_with_joins.relation);
                table_with_joins.joins.iter().for_each(|join| all.widen(&self.factor(&join.relation)));
                (Some(all), alias)
            }
            _ => (None, &None),
        };
        let columns = columns.unwrap_or(Columns { named: HashMap::new(), other: 1 });
        match alias {
            Some(alias) if !alias.columns.is_empty() => Columns { named: HashMap::new(), other: columns.largest() },
            _ => columns,
        }
    }

    /// How many parts an expression is made of.
    fn parts(&self, expr: &Expr, scope: &Columns) -> u64 {
        let mut parts = 0_u64;
        let _ = visit_expressions(expr, |part| {
            let here = match part {
                Expr::Identifier(ident) => scope.of(&lower(ident)),
                Expr::CompoundIdentifier(idents) => idents.iter().map(|ident| scope.of(&lower(ident))).max().unwrap_or(1),
                Expr::Value(value) => 1 + literal_bytes(&value.value) as u64 / LITERAL_UNIT as u64,
                Expr::Subquery(query) | Expr::InSubquery { subquery: query, .. } | Expr::Exists { subquery: query, .. } => {
                    self.derived.get(&address(query)).map_or(1, Columns::largest)
                }
                _ => 1,
            };
            parts = parts.saturating_add(here);
            ControlFlow::<()>::Continue(())
        });
        parts
    }
}

fn visit_largest(item: &SelectItem, parts: impl Fn(&Expr) -> u64) -> u64 {
    let mut largest = 0;
    let _ = visit_expressions(item, |expr| {
        largest = largest.max(parts(expr));
        ControlFlow::<()>::Continue(())
    });
    largest
}

fn literal_bytes(value: &Value) -> usize {
    match value {
        Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) | Value::EscapedStringLiteral(text) => text.len(),
        Value::DollarQuotedString(text) => text.value.len(),
        _ => 0,
    }
}

fn single(name: &ObjectName) -> String {
    name.0.last().and_then(|part| part.as_ident()).map(lower).unwrap_or_default()
}

impl Visitor for Expansion {
    type Break = String;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<String> {
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            self.bodies.insert(address(&cte.query), (lower(&cte.alias.name), !cte.alias.columns.is_empty()));
        }
        self.open.push(0);
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<String> {
        let tables = self.tables.get(&single(relation)).copied().unwrap_or(1);
        if let Some(open) = self.open.last_mut() {
            *open = open.saturating_add(tables);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<String> {
        let tables = self.open.pop().unwrap_or(0);
        if tables > MAX_TABLES {
            return ControlFlow::Break(format!("{tables} tables, counted as often as they are named; at most {MAX_TABLES} are admitted"));
        }
        let mut columns = self.columns(&query.body);
        let parts = columns.largest();
        if parts > MAX_PARTS {
            return ControlFlow::Break(format!("a column of {parts} parts once names are replaced; at most {MAX_PARTS} are admitted"));
        }
        match self.bodies.remove(&address(query)) {
            Some((name, renames)) => {
                if renames {
                    columns = Columns { named: HashMap::new(), other: parts };
                }
                // Scopes are the planner's business: of two that share a name, the larger counts.
                self.named.entry(name.clone()).or_default().widen(&columns);
                let known = self.tables.entry(name).or_insert(0);
                *known = (*known).max(tables);
            }
            None => {
                if let Some(outer) = self.open.last_mut() {
                    *outer = outer.saturating_add(tables);
                }
            }
        }
        self.derived.insert(address(query), columns);
        ControlFlow::Continue(())
    }
}
