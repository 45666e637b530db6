//! Bars on a terminal while statements run: one line for each table that is being refreshed.

use std::collections::HashMap;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::engine::Progress;

/// How often the lines are renewed.
pub const TICK: Duration = Duration::from_millis(120);

/// The lines on the screen.
pub struct Bars {
    screen: MultiProgress,
    bars: HashMap<String, ProgressBar>,
}

impl Bars {
    /// No line yet. Drawn on standard error, and only when that is a terminal.
    pub fn new() -> Self {
        Self { screen: MultiProgress::new(), bars: HashMap::new() }
    }

    /// Shows exactly the tables in `running`.
    pub fn show(&mut self, running: &[Progress]) {
        self.bars.retain(|table, bar| {
            let keep = running.iter().any(|p| p.table == *table);
            if !keep {
                bar.finish_and_clear();
            }
            keep
        });
        for progress in running {
            let screen = &self.screen;
            let bar = self.bars.entry(progress.table.clone()).or_insert_with(|| line(screen, &progress.table));
            bar.set_message(progress.phase);
            bar.tick();
        }
    }

    /// Takes every line off the screen.
    pub fn clear(&mut self) {
        self.show(&[]);
    }
}

fn line(screen: &MultiProgress, table: &str) -> ProgressBar {
    let bar = screen.add(ProgressBar::new_spinner());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix}  {msg}  {elapsed}") {
        bar.set_style(style);
    }
    bar.set_prefix(table.to_string());
    bar
}
