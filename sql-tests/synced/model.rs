//! What each mode promises, as plainly as possible.

use std::collections::BTreeMap;

/// A row: id, cursor, value, another cursor.
pub type Row = (i64, Option<i64>, i64, i64);

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

/// A column that a table is followed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cursor {
    At,
    Other,
}

impl Cursor {
    pub fn name(self) -> &'static str {
        match self {
            Self::At => "at",
            Self::Other => "other",
        }
    }

    fn of(self, row: &Row) -> Option<i64> {
        match self {
            Self::At => row.1,
            Self::Other => Some(row.3),
        }
    }
}

/// What a table is told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    pub mode: Mode,
    pub cursor: Cursor,
    /// Only rows with a smaller value.
    pub below: Option<i64>,
}

impl Config {
    pub fn passes(&self, row: &Row) -> bool {
        self.below.is_none_or(|below| row.2 < below)
    }
}

/// A synced table.
#[derive(Debug, Clone)]
pub struct Model {
    pub config: Config,
    /// How the rows were made, if there are any.
    pub made_by: Option<Config>,
    pub rows: Vec<Row>,
    pub mark: Option<i64>,
}

fn keyed(rows: &[Row]) -> BTreeMap<i64, Row> {
    rows.iter().map(|row| (row.0, *row)).collect()
}

impl Model {
    pub fn new(mode: Mode) -> Self {
        Self { config: Config { mode, cursor: Cursor::At, below: None }, made_by: None, rows: vec![], mark: None }
    }

    /// Whether what `config` makes replaces the rows.
    pub fn rebuilds(&self, config: Config) -> bool {
        let Some(from) = self.made_by else { return false };
        let same_rows = from.cursor == config.cursor && from.below == config.below;
        match (from.mode, config.mode) {
            (Mode::Append | Mode::Incremental, Mode::Append) => !same_rows,
            (Mode::Append, _) | (Mode::Full, Mode::Append) => true,
            _ => false,
        }
    }

    /// Whether a run fails because of null cursors.
    pub fn refuses(&self, source: &[Row]) -> bool {
        let config = self.config;
        config.mode == Mode::Append && source.iter().any(|row| config.passes(row) && config.cursor.of(row).is_none())
    }

    pub fn sync(&mut self, source: &[Row]) {
        let config = self.config;
        let source: Vec<Row> = source.iter().filter(|row| config.passes(row)).copied().collect();
        if self.rebuilds(config) || self.made_by.is_none() {
            (self.rows, self.mark) = (vec![], None);
        }
        match (config.mode, self.made_by) {
            (Mode::Full, _) => self.rows = source.clone(),
            (Mode::Incremental, from) => {
                let reads_all =
                    from.is_none_or(|from| from.mode != Mode::Incremental || from.cursor != config.cursor || from.below != config.below);
                // Rows that other conditions let in go, unless the conditions only became weaker.
                if from.is_some_and(|from| from.below != config.below && config.below.is_some()) {
                    self.rows.retain(|row| source.iter().any(|other| other.0 == row.0));
                }
                self.mark = self.mark.filter(|_| !reads_all);
                let mut rows = keyed(&self.rows);
                rows.extend(source.iter().filter(|row| self.reads(row)).map(|row| (row.0, *row)));
                self.rows = rows.into_values().collect();
            }
            (Mode::Append, _) => self.append(&source),
        }
        let ceiling = source.iter().filter_map(|row| config.cursor.of(row)).max();
        self.mark = if config.mode == Mode::Full { None } else { self.mark.max(ceiling) };
        self.made_by = Some(config);
    }

    fn reads(&self, row: &Row) -> bool {
        let cursor = self.config.cursor.of(row);
        cursor.is_none() || self.mark.is_none() || cursor >= self.mark
    }

    fn append(&mut self, source: &[Row]) {
        let (mark, cursor) = (self.mark, self.config.cursor);
        let mut known: Vec<Row> = self.rows.iter().filter(|row| mark.is_some() && cursor.of(row) == mark).copied().collect();
        for row in source.iter().filter(|row| self.mark.is_none() || cursor.of(row) >= mark) {
            match known.iter().position(|old| old == row) {
                Some(at) => {
                    known.swap_remove(at);
                }
                None => self.rows.push(*row),
            }
        }
    }

    /// Rows whose keys the source does not have go.
    pub fn reconcile(&mut self, source: &[Row]) {
        let config = self.config;
        self.rows.retain(|row| source.iter().any(|other| other.0 == row.0 && config.passes(other)));
    }

    pub fn sorted(&self) -> Vec<Row> {
        let mut rows = self.rows.clone();
        rows.sort();
        rows
    }
}
