//! How often, and where in the day.

use std::fmt;

use serde::{Deserialize, Serialize};

const MINUTE: u32 = 1;
const HOUR: u32 = 60 * MINUTE;
const DAY: u32 = 24 * HOUR;

/// An interval between runs, or never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Frequency(Option<u32>);

impl Frequency {
    /// No run of its own accord.
    pub const NEVER: Self = Self(None);
    /// Every six hours.
    pub const DEFAULT: Self = Self(Some(6 * HOUR));
    /// Every interval with its word.
    pub const ALL: [(Self, &'static str); 10] = [
        (Self::NEVER, "never"),
        (Self(Some(5 * MINUTE)), "5min"),
        (Self(Some(15 * MINUTE)), "15min"),
        (Self(Some(30 * MINUTE)), "30min"),
        (Self(Some(HOUR)), "1hour"),
        (Self(Some(6 * HOUR)), "6hour"),
        (Self(Some(12 * HOUR)), "12hour"),
        (Self(Some(DAY)), "24hour"),
        (Self(Some(7 * DAY)), "7day"),
        (Self(Some(30 * DAY)), "30day"),
    ];

    /// The frequency of a word, in any case.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, word)| word.eq_ignore_ascii_case(text.trim())).map(|(frequency, _)| *frequency)
    }

    /// The minutes between runs; `None`: never.
    pub fn minutes(self) -> Option<u32> {
        self.0
    }

    /// The word.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(frequency, _)| *frequency == self).map_or("never", |(_, word)| word)
    }
}

impl TryFrom<String> for Frequency {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is no frequency"))
    }
}

impl From<Frequency> for String {
    fn from(frequency: Frequency) -> Self {
        frequency.as_str().to_string()
    }
}

/// When an incremental table is refreshed of its own accord.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshSchedule {
    /// At an interval, or never.
    Every(Frequency),
    /// Whenever a table that it reads has a newer version.
    AfterSource,
}

impl RefreshSchedule {
    /// `never`, an interval, or `after_source`.
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim().eq_ignore_ascii_case("after_source") {
            true => Some(Self::AfterSource),
            false => Frequency::parse(text).map(Self::Every),
        }
    }
}

/// A time of day in UTC, to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TimeOfDay(u32);

impl TimeOfDay {
    /// `HH:MM` or `HH:MM:SS`.
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.trim().split(':').collect();
        let number = |text: &str, limit: u32| {
            let legal = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
            text.parse::<u32>().ok().filter(|n| legal && *n < limit)
        };
        let (hours, minutes, seconds) = match parts.as_slice() {
            [hours, minutes] => (*hours, *minutes, "00"),
            [hours, minutes, seconds] => (*hours, *minutes, *seconds),
            _ => return None,
        };
        Some(Self(number(hours, 24)? * 3600 + number(minutes, 60)? * 60 + number(seconds, 60)?))
    }

    /// Seconds since midnight.
    pub fn seconds(self) -> u32 {
        self.0
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}:{:02}", self.0 / 3600, self.0 / 60 % 60, self.0 % 60)
    }
}

impl TryFrom<String> for TimeOfDay {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is no time of day"))
    }
}

impl From<TimeOfDay> for String {
    fn from(time: TimeOfDay) -> Self {
        time.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back() {
        for (frequency, word) in Frequency::ALL {
            assert_eq!((Frequency::parse(word), frequency.as_str()), (Some(frequency), word));
        }
        assert_eq!(Frequency::parse("1HOUR").and_then(Frequency::minutes), Some(60));
        assert_eq!(Frequency::parse("1min"), None);
    }

    #[test]
    fn a_time_of_day_has_two_digits_each() {
        assert_eq!(TimeOfDay::parse("03:00").map(|t| t.to_string()).as_deref(), Some("03:00:00"));
        assert_eq!(TimeOfDay::parse("23:59:59").map(TimeOfDay::seconds), Some(86_399));
        for bad in ["3:00", "24:00", "12:60", "12:00:60", "12", "12:00:00:00", "+1:00", ""] {
            assert_eq!(TimeOfDay::parse(bad), None, "{bad}");
        }
    }
}
