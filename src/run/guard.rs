//! The delete guard: a run that would remove an unlikely part of the table is held, sealed, before anything is published.

use crate::error::{Error, ErrorCode, Result};
use crate::spec::{OperationalOptions, RunReason};
use crate::store::Seal;

use super::attempt::Attempt;

/// Rows that publishing `seal` would remove. A rebuild has no deletions of its own; what it would lose at least is
/// the shrinkage of the table.
fn removed(seal: &Seal, base_rows: u64) -> u64 {
    match seal.reason {
        RunReason::RebuildRevision | RunReason::RebuildRequested => base_rows.saturating_sub(seal.created),
        RunReason::Full => 0,
        _ => seal.deleted,
    }
}

fn exceeds(options: &OperationalOptions, removed: u64, base_rows: u64) -> bool {
    let Some(limit) = options.max_deleted_fraction else { return false };
    #[allow(clippy::cast_precision_loss)] // a fraction of row counts below 2^53
    let fraction = removed as f64 / base_rows.max(1) as f64;
    removed >= options.guard_min_rows.max(1) && fraction > limit
}

/// Holds the run when it would delete too much and nobody allowed it.
pub(super) fn check(attempt: &Attempt, seal: &Seal) -> Result<()> {
    let base_rows = attempt.base.as_ref().map_or(0, |base| base.manifest.rows);
    let removed = removed(seal, base_rows);
    if attempt.allow_deletes || !exceeds(&attempt.options, removed, base_rows) {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::DeleteGuard,
        format!(
            "table {table:?}: run {run:?} would delete {removed} of {base_rows} rows, more than max_deleted_fraction allows; \
             nothing is published. Remedy: check that the source is complete; to publish exactly this capture run {again}",
            table = attempt.name(),
            run = attempt.run.as_str(),
            again = match attempt.outside {
                Some(_) => format!("CALL sync.reload({}, run => '{}', allow_deletes => true)", attempt.table.sql_literal(), attempt.run),
                None => format!("REFRESH {} RUN '{}' ALLOW DELETES", attempt.table.sql_name(), attempt.run),
            },
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Options;

    fn options(pairs: &[(&str, &str)]) -> OperationalOptions {
        Options::parse("t", pairs.iter().copied()).unwrap().operational("t").unwrap()
    }

    #[test]
    fn small_deletions_and_small_fractions_pass() {
        let defaults = options(&[]);
        assert!(!exceeds(&defaults, 999, 1_000));
        assert!(exceeds(&defaults, 1_000, 1_999));
        assert!(!exceeds(&defaults, 1_000, 2_000));
    }

    #[test]
    fn null_turns_the_guard_off() {
        assert!(!exceeds(&options(&[("max_deleted_fraction", "NULL")]), 5_000, 5_000));
    }
}
