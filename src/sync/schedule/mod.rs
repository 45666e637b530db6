//! When runs are due: plain arithmetic on microseconds since 1970, UTC.
//!
//! ```text
//! 6hour, 15:00   1970-01-01T03:00 ─ every 6 h ─► … 03:00  09:00  15:00  21:00 …
//! firings        offset + k * interval          never before the day's 15:00 on which the schedule was set
//! due            the newest firing that no run has answered: however many were missed, one run makes up for them
//! ```
//!
//! UTC has no daylight saving, months do not matter, and 7-day intervals fire on Thursdays, as the epoch did. Without a
//! time of day a table's own place in the interval follows from its id, so that many tables do not start at once. The
//! arithmetic is pure; the clock is the session's.

mod due;
mod runner;

pub use due::next_run;
pub use runner::{Outcome, PARALLEL_RUNS, Ran, Scheduler, Tick};

use crate::spec::sync::{Frequency, TimeOfDay};

const SECOND: i128 = 1_000_000;
const MINUTE: i128 = 60 * SECOND;
const DAY: i128 = 24 * 60 * MINUTE;
/// Intervals from here on have no place of their own in them: they fire at midnight.
const LONG: u32 = 7 * 24 * 60;

/// When a table's runs start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timetable {
    interval: Option<i128>,
    offset: i128,
    /// No firing comes before.
    not_before: i128,
}

impl Timetable {
    /// The firings of a schedule that was set at `since` (microseconds since 1970); `seed` is the table's id.
    pub fn new(frequency: Frequency, time_of_day: Option<TimeOfDay>, (seed, since): (&str, i64)) -> Self {
        let since = i128::from(since);
        let interval = frequency.minutes().map(|minutes| i128::from(minutes) * MINUTE);
        let (offset, not_before) = match (time_of_day, frequency.minutes()) {
            (Some(time), _) => {
                let time = i128::from(time.seconds()) * SECOND;
                (time, since - since.rem_euclid(DAY) + time)
            }
            (None, Some(minutes)) if minutes < LONG => (jitter(seed, i128::from(minutes) * MINUTE), since),
            (None, _) => (0, since),
        };
        Self { interval, offset: interval.map_or(0, |interval| offset.rem_euclid(interval)), not_before }
    }

    /// The newest firing at or before `now`.
    pub fn latest(&self, now: i64) -> Option<i64> {
        let (interval, now) = (self.interval?, i128::from(now));
        let firing = now - (now - self.offset).rem_euclid(interval);
        i64::try_from(firing).ok().filter(|_| firing >= self.not_before)
    }

    /// The first firing after `now`.
    pub fn next(&self, now: i64) -> Option<i64> {
        let interval = self.interval?;
        // The first one that may be, or the one after the newest.
        let after = i128::from(now).max(self.not_before - 1);
        i64::try_from(after - (after - self.offset).rem_euclid(interval) + interval).ok()
    }

    /// The firing that a run now would answer: the newest one after `answered`, which is when the last run started, or when
    /// the schedule was set. `None`: nothing is due.
    pub fn due(&self, answered: i64, now: i64) -> Option<i64> {
        self.latest(now).filter(|firing| *firing > answered)
    }
}

/// A table's place in its interval, in whole minutes.
fn jitter(seed: &str, interval: i128) -> i128 {
    let digest = blake3::hash(seed.as_bytes());
    let number = digest.as_bytes().iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    i128::from(number).rem_euclid(interval.min(DAY) / MINUTE) * MINUTE
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn micros(text: &str) -> i64 {
        chrono::DateTime::parse_from_rfc3339(text).unwrap().timestamp_micros()
    }

    fn text(micros: i64) -> String {
        chrono::DateTime::from_timestamp_micros(micros).unwrap().format("%Y-%m-%dT%H:%M:%S").to_string()
    }

    fn table(frequency: &str, time: Option<&str>, since: &str) -> Timetable {
        Timetable::new(Frequency::parse(frequency).unwrap(), time.map(|t| TimeOfDay::parse(t).unwrap()), ("id", micros(since)))
    }

    fn firings(table: &Timetable, from: &str, count: usize) -> Vec<String> {
        let mut at = micros(from);
        std::iter::from_fn(|| {
            at = table.next(at)?;
            Some(text(at))
        })
        .take(count)
        .collect()
    }

    #[test]
    fn firings_are_anchored_at_the_epoch() {
        let six = table("6hour", Some("15:00"), "2026-01-01T00:00:00Z");
        let expected = ["2026-01-02T03:00:00", "2026-01-02T09:00:00", "2026-01-02T15:00:00", "2026-01-02T21:00:00", "2026-01-03T03:00:00"];
        assert_eq!(firings(&six, "2026-01-02T00:00:00Z", 5), expected);
        let hour = table("1hour", Some("00:07:59"), "2026-01-01T00:00:00Z");
        assert_eq!(firings(&hour, "2026-01-01T10:07:59Z", 2), ["2026-01-01T11:07:59", "2026-01-01T12:07:59"]);
        // 1970-01-01 was a Thursday.
        let week = table("7day", Some("03:00"), "2026-01-01T00:00:00Z");
        assert_eq!(firings(&week, "2026-02-26T03:00:00Z", 2), ["2026-03-05T03:00:00", "2026-03-12T03:00:00"]);
        let month = table("30day", None, "2026-01-01T00:00:00Z");
        let found = firings(&month, "2026-01-15T00:00:00Z", 3);
        assert!(found.iter().all(|at| at.ends_with("T00:00:00")), "{found:?}");
    }

    #[test]
    fn months_leap_days_and_clock_changes_elsewhere_do_not_matter() {
        let day = table("24hour", Some("02:30"), "2024-01-01T00:00:00Z");
        let leap = ["2024-02-28T02:30:00", "2024-02-29T02:30:00", "2024-03-01T02:30:00"];
        assert_eq!(firings(&day, "2024-02-27T12:00:00Z", 3), leap);
        // Europe and America change their clocks on these days.
        assert_eq!(firings(&day, "2026-03-28T12:00:00Z", 2), ["2026-03-29T02:30:00", "2026-03-30T02:30:00"]);
        assert_eq!(firings(&day, "2026-10-31T12:00:00Z", 2), ["2026-11-01T02:30:00", "2026-11-02T02:30:00"]);
        assert_eq!(firings(&day, "2026-12-31T12:00:00Z", 1), ["2027-01-01T02:30:00"]);
    }

    #[test]
    fn nothing_fires_before_the_time_of_the_day_it_was_set_on() {
        let six = table("6hour", Some("15:00"), "2026-01-02T08:00:00Z");
        assert_eq!(firings(&six, "2026-01-02T08:00:00Z", 2), ["2026-01-02T15:00:00", "2026-01-02T21:00:00"]);
        assert_eq!(six.due(micros("2026-01-02T08:00:00Z"), micros("2026-01-02T14:59:59Z")), None);
    }

    #[test]
    fn missed_runs_run_once() {
        let hour = table("1hour", Some("00:00"), "2026-01-01T00:00:00Z");
        let last = micros("2026-01-01T05:00:30Z");
        let now = micros("2026-01-03T09:20:00Z");
        let due = hour.due(last, now).unwrap();
        assert_eq!(text(due), "2026-01-03T09:00:00");
        assert_eq!(hour.due(now, now), None);
        assert_eq!(text(hour.next(now).unwrap()), "2026-01-03T10:00:00");
    }

    #[test]
    fn never_is_never() {
        let never = table("never", Some("03:00"), "2026-01-01T00:00:00Z");
        assert_eq!((never.latest(0), never.next(0), never.due(i64::MIN, i64::MAX)), (None, None, None));
    }

    #[test]
    fn tables_without_a_time_of_day_have_places_of_their_own() {
        let at = |seed: &str| Timetable::new(Frequency::parse("1hour").unwrap(), None, (seed, 0)).offset;
        let places: std::collections::BTreeSet<i128> = (0..50).map(|n| at(&format!("table {n}"))).collect();
        assert!(places.len() > 20 && places.iter().all(|place| (0..60 * MINUTE).contains(place)));
        assert_eq!(at("a"), at("a"));
    }

    proptest! {
        #[test]
        fn firings_are_an_interval_apart_and_never_both_due_and_to_come(
            which in 1_usize..Frequency::ALL.len(),
            minutes in proptest::option::of(0_u32..1440),
            since in -4_000_000_000_000_000_i64..4_000_000_000_000_000,
            later in 0_i64..4_000_000_000_000_000,
        ) {
            let (frequency, _) = Frequency::ALL[which];
            let time = minutes.map(|m| TimeOfDay::parse(&format!("{:02}:{:02}", m / 60, m % 60)).unwrap());
            let table = Timetable::new(frequency, time, ("seed", since));
            let now = since + later;
            let next = table.next(now).unwrap();
            prop_assert!(next > now);
            let interval = i64::from(frequency.minutes().unwrap()) * 60_000_000;
            prop_assert_eq!(table.next(next), Some(next + interval));
            if let Some(latest) = table.latest(now) {
                prop_assert!(latest <= now && latest + interval == next);
                prop_assert_eq!(table.due(latest, now), None);
                prop_assert_eq!(table.due(latest - 1, now), Some(latest));
            }
        }

        #[test]
        fn the_ends_of_time_do_not_panic(now in any::<i64>(), since in any::<i64>()) {
            for (frequency, _) in Frequency::ALL {
                let table = Timetable::new(frequency, TimeOfDay::parse("23:59"), ("s", since));
                let _ = (table.latest(now), table.next(now), table.due(since, now));
            }
        }
    }
}
