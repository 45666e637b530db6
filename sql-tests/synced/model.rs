//! What each mode promises, as plainly as possible.

use std::collections::BTreeMap;

/// A row: id, cursor, value.
pub type Row = (i64, Option<i64>, i64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Full,
    Incremental,
    Append,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full_refresh",
            Self::Incremental => "incremental",
            Self::Append => "append",
        }
    }
}

/// A synced table.
#[derive(Debug, Clone)]
pub struct Model {
    pub mode: Mode,
    /// How the rows were made: by which mode, if at all.
    pub made_by: Option<Mode>,
    pub rows: Vec<Row>,
    pub mark: Option<i64>,
}

fn keyed(rows: &[Row]) -> BTreeMap<i64, Row> {
    rows.iter().map(|row| (row.0, *row)).collect()
}

impl Model {
    pub fn new(mode: Mode) -> Self {
        Self { mode, made_by: None, rows: vec![], mark: None }
    }

    /// Whether switching to `mode` replaces the rows.
    pub fn rebuilds(&self, mode: Mode) -> bool {
        match (self.made_by, mode) {
            (None, _) => false,
            (Some(from), to) if from == to => false,
            (Some(Mode::Append), _) => true,
            (Some(Mode::Full), Mode::Append) => true,
            _ => false,
        }
    }

    /// Whether a run fails because of null cursors.
    pub fn refuses(&self, source: &[Row]) -> bool {
        self.mode == Mode::Append && source.iter().any(|row| row.1.is_none())
    }

    pub fn sync(&mut self, source: &[Row]) {
        let ceiling = source.iter().filter_map(|row| row.1).max();
        let starts_over = self.made_by.is_none() || self.rebuilds(self.mode);
        if starts_over {
            self.rows.clear();
            self.mark = None;
        }
        match self.mode {
            Mode::Full => {
                self.rows = source.to_vec();
                self.mark = None;
            }
            Mode::Incremental => {
                let mut rows = keyed(&self.rows);
                let is_read = |row: &&Row| row.1.is_none() || self.mark.is_none_or(|mark| row.1 >= Some(mark));
                rows.extend(source.iter().filter(is_read).map(|row| (row.0, *row)));
                self.rows = rows.into_values().collect();
                self.mark = self.mark.max(ceiling);
            }
            Mode::Append => {
                let mark = self.mark;
                let mut known: Vec<Row> = self.rows.iter().filter(|row| mark.is_some() && row.1 == mark).copied().collect();
                for row in source.iter().filter(|row| mark.is_none_or(|mark| row.1 >= Some(mark))) {
                    match known.iter().position(|old| old == row) {
                        Some(at) => {
                            known.swap_remove(at);
                        }
                        None => self.rows.push(*row),
                    }
                }
                self.mark = self.mark.max(ceiling);
            }
        }
        self.made_by = Some(self.mode);
    }

    /// Rows whose keys the source does not have go.
    pub fn reconcile(&mut self, source: &[Row]) {
        self.rows.retain(|row| source.iter().any(|other| other.0 == row.0));
    }

    pub fn sorted(&self) -> Vec<Row> {
        let mut rows = self.rows.clone();
        rows.sort();
        rows
    }
}
