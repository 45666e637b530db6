//! Line editing: completion of keywords and table names, and the rule for when an entry is complete.

use datafusion::sql::sqlparser::keywords::ALL_KEYWORDS;
use datafusion_incremental::sql::quote_identifier;
use datafusion_incremental::sql::verbs::Family;
use rustyline::completion::{Completer, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};

use crate::input::is_complete;

/// Words of our statements that DataFusion's parser does not know as keywords.
const OUR_KEYWORDS: &[&str] =
    &["ACCEPT", "ACTIVATE", "CONFIRM", "CONNECTION", "DELETES", "DRAFT", "DRY", "INCREMENTAL", "REFRESH", "REVISION", "SYNCED", "TRACK"];

/// What the line editor asks.
#[derive(Default)]
pub struct LineHelper {
    tables: Vec<String>,
}

impl LineHelper {
    /// The tables that exist now.
    pub fn set_tables(&mut self, mut tables: Vec<String>) {
        tables.sort();
        tables.dedup();
        self.tables = tables;
    }

    /// Where the word before the cursor starts, and what it may become: tables first, then verbs, then keywords.
    fn candidates(&self, line: &str, cursor: usize) -> (usize, Vec<Pair>) {
        let before = line.get(..cursor).unwrap_or(line);
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '"');
        let start = before.char_indices().rev().take_while(|(_, c)| is_part(*c)).last().map_or(before.len(), |(at, _)| at);
        let word = before.get(start..).unwrap_or("");
        let plain = word.trim_matches('"').to_lowercase();
        if plain.is_empty() {
            return (start, Vec::new());
        }
        let matches = |name: &str| name.to_lowercase().starts_with(&plain);
        let mut found: Vec<Pair> = Vec::new();
        found.extend(self.tables.iter().filter(|t| matches(t)).map(|t| Pair { display: t.clone(), replacement: quote_identifier(t) }));
        if word.contains('"') {
            return (start, found);
        }
        found.extend(
            Family::ALL
                .into_iter()
                .flat_map(Family::verbs)
                .map(|verb| verb.function())
                .filter(|f| matches(f))
                .map(|f| Pair { display: f.clone(), replacement: format!("{f}(") }),
        );
        let lower = word.chars().any(char::is_lowercase);
        let keywords = ALL_KEYWORDS.iter().chain(OUR_KEYWORDS).filter(|k| matches(k));
        let mut keywords: Vec<String> = keywords.map(|k| if lower { k.to_lowercase() } else { k.to_string() }).collect();
        keywords.sort();
        keywords.dedup();
        found.extend(keywords.into_iter().map(|k| Pair { display: k.clone(), replacement: k }));
        (start, found)
    }
}

impl Completer for LineHelper {
    type Candidate = Pair;

    fn complete(&self, line: &str, cursor: usize, _context: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        Ok(self.candidates(line, cursor))
    }
}

impl Validator for LineHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_complete(context.input()) { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Hinter for LineHelper {
    type Hint = String;
}

impl Highlighter for LineHelper {}

impl Helper for LineHelper {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::testing::FakeEngine;

    fn completed(line: &str) -> (usize, Vec<String>) {
        let mut helper = LineHelper::default();
        helper.set_tables(FakeEngine::default().tables());
        let (start, found) = helper.candidates(line, line.len());
        (start, found.into_iter().map(|pair| pair.replacement).collect())
    }

    #[test]
    fn tables_verbs_and_keywords_are_completed() {
        assert_eq!(completed("SELECT * FROM custo"), (14, vec!["customers".into()]));
        assert_eq!(completed("SELECT 'ä' FROM \"my"), (17, vec!["\"My Table\"".into()]));
        assert_eq!(completed("REFR").1.first().map(String::as_str), Some("REFRESH"));
        assert_eq!(completed("create incr").1.last().map(String::as_str), Some("incremental"));
        assert!(completed("SELECT * FROM incremental_ver").1.contains(&"incremental_versions(".to_string()));
        assert_eq!(completed("SELECT ").1, Vec::<String>::new());
    }
}
