//! How deep SQL text may nest: everything behind the parser recurses, and a stack that overflows ends the process.
//!
//! ```text
//! tokens ── joined: how deep the tree of a statement could get, from brackets and operators ──► refused unparsed
//! parser ── at most MAX_RECURSION, whatever the session's setting says
//! tree   ── is_deeper: how deep its expressions are ──► refused unplanned
//! ```
//!
//! `a + b + c + …` is parsed in a loop, but into a tree as deep as the chain is long: no limit of the parser sees it.
//! Memory: one number per open bracket.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{ArrayElemTypeDef, DataType, Expr, Visit, Visitor};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::Token;

/// The parser's recursion limit; the session's setting may lower it. DataFusion's default.
pub(crate) const MAX_RECURSION: usize = 50;
/// A statement whose tree could be deeper is not parsed.
const MAX_JOINED: usize = 10_000;
/// A statement with more set operations is not parsed: their operands have commas, and make the tree deeper all the same.
const MAX_SET_OPERATIONS: usize = 2_500;
/// A statement with fewer tokens cannot overflow any stack.
const SMALL: usize = 200;
/// A type may be nested so deep.
const MAX_TYPE_DEPTH: usize = 32;

/// Words that can stand next to each other any number of times without making the tree deeper.
const FLAT: &[Keyword] = &[
    Keyword::ALL,
    Keyword::AS,
    Keyword::ELSE,
    Keyword::END,
    Keyword::FALSE,
    Keyword::FROM,
    Keyword::NULL,
    Keyword::SELECT,
    Keyword::THEN,
    Keyword::TRUE,
    Keyword::VALUES,
    Keyword::WHEN,
];

const SET_OPERATIONS: &[Keyword] = &[Keyword::UNION, Keyword::EXCEPT, Keyword::INTERSECT, Keyword::MINUS];

/// Whether so many tokens are worth a deep stack.
pub(crate) fn is_large(tokens: usize) -> bool {
    tokens > SMALL
}

/// Whether the tree of these tokens could be deeper than any statement needs: all that is open at one place, and what
/// was joined there since the last comma. Commas separate; a bracket that closes takes what was inside it away.
pub(crate) fn is_over_long<'a>(tokens: impl IntoIterator<Item = &'a Token>) -> bool {
    let (mut open, mut here, mut total, mut set_operations) = (Vec::new(), 0_usize, 0_usize, 0_usize);
    for token in tokens {
        let set_operation = matches!(token, Token::Word(w) if SET_OPERATIONS.contains(&w.keyword));
        set_operations += usize::from(set_operation);
        match token {
            Token::Whitespace(_) | Token::Number(..) | Token::EOF => {}
            Token::Comma | Token::SemiColon => {
                total -= here;
                here = 0;
            }
            Token::LParen | Token::LBracket | Token::LBrace => {
                open.push(here + 1);
                total += 1;
                here = 0;
            }
            Token::RParen | Token::RBracket | Token::RBrace => {
                total -= here;
                // What was in the brackets is one operand now; a subscript or a call after a call nests once more.
                here = open.pop().unwrap_or(0);
            }
            Token::Word(word) if word.keyword == Keyword::NoKeyword || FLAT.contains(&word.keyword) => {}
            other if is_text(other) => {}
            _ => {
                here += 1;
                total += 1;
            }
        }
        if total > MAX_JOINED || set_operations > MAX_SET_OPERATIONS {
            return true;
        }
    }
    false
}

fn is_text(token: &Token) -> bool {
    matches!(token, Token::SingleQuotedString(_) | Token::DoubleQuotedString(_) | Token::DollarQuotedString(_) | Token::HexStringLiteral(_))
}

/// Whether an expression of `tree` is nested more than `limit` deep. Stops there, so its own recursion is bounded.
pub(crate) fn is_deeper<T: Visit>(tree: &T, limit: usize) -> bool {
    tree.visit(&mut Depth { now: 0, limit }).is_break()
}

struct Depth {
    now: usize,
    limit: usize,
}

impl Visitor for Depth {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        self.now += 1;
        let over_deep = match expr {
            Expr::Cast { data_type, .. } => type_depth(data_type) > MAX_TYPE_DEPTH,
            _ => false,
        };
        if self.now > self.limit || over_deep { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn post_visit_expr(&mut self, _expr: &Expr) -> ControlFlow<()> {
        self.now -= 1;
        ControlFlow::Continue(())
    }
}

/// How deep a type nests, without recursion. Only arrays are followed: everything else is written in brackets, which the
/// parser counts.
fn type_depth(data_type: &DataType) -> usize {
    let (mut depth, mut inner) = (0, Some(data_type));
    while let Some(data_type) = inner {
        depth += 1;
        inner = match data_type {
            DataType::Array(
                ArrayElemTypeDef::AngleBracket(item) | ArrayElemTypeDef::SquareBracket(item, _) | ArrayElemTypeDef::Parenthesis(item),
            ) => Some(item),
            _ => None,
        };
    }
    depth
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::tokenizer::Tokenizer;

    use super::*;

    fn over_long(sql: &str) -> bool {
        is_over_long(&Tokenizer::new(&GenericDialect {}, sql).tokenize().unwrap())
    }

    #[test]
    fn what_could_be_deep_is_told_from_what_is_wide() {
        let many = 20_000;
        for deep in [
            vec!["1"; many].join("+"),
            vec!["a"; many].join(" AND "),
            format!("a{}", "::int".repeat(many)),
            format!("a{}", "[1]".repeat(many)),
            format!("{}1", "- ".repeat(many)),
            format!("{}1{}", "(".repeat(many), ")".repeat(many)),
            format!("CAST(x AS {}INT)", "STRUCT<a ".repeat(many)),
            vec!["SELECT 1"; many].join(" UNION ALL "),
            vec!["SELECT 1, 2"; many].join(" UNION "),
            vec!["f(1, 2)"; many].join("+"),
            "EXPLAIN ".repeat(many),
        ] {
            assert!(over_long(&deep), "{}", &deep[..40]);
        }
        for wide in [
            format!("SELECT {}", vec!["a + 1 AS b"; many].join(", ")),
            format!("INSERT INTO t VALUES {}", vec!["(1, -2)"; many].join(", ")),
            format!("CASE a {} END", "WHEN 1 THEN 'x' ".repeat(many)),
            format!("a IN ({})", vec!["f(1)"; many].join(",")),
        ] {
            assert!(!over_long(&wide), "{}", &wide[..40]);
        }
    }
}
