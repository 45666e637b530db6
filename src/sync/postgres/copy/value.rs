//! Single values on the wire: fixed widths, and dates and times, whose zero is 2000-01-01 there and 1970-01-01 here.
//!
//! ```text
//! date       days since 2000-01-01          i32::MIN, i32::MAX: -infinity, infinity
//! timestamp  microseconds since 2000-01-01  i64::MIN, i64::MAX: -infinity, infinity
//! ```

use std::fmt::Write;

/// Days from 1970-01-01 to 2000-01-01.
const EPOCH_DAYS: i32 = 10_957;
const DAY_MICROS: i64 = 86_400_000_000;
const EPOCH_MICROS: i64 = EPOCH_DAYS as i64 * DAY_MICROS;

/// Why a value cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BadValue {
    /// One of PostgreSQL's special values, which Arrow does not have. Null where the connection says so.
    Special(&'static str),
    /// A value beyond what the column's type holds: never read as null.
    DoesNotFit(String),
    /// The bytes are not what the type sends.
    Protocol,
}

/// The `N` bytes at `at`.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], BadValue> {
    bytes.get(at..at + N).and_then(|slice| slice.try_into().ok()).ok_or(BadValue::Protocol)
}

/// A value of exactly `N` bytes.
pub(super) fn exactly<const N: usize>(bytes: &[u8]) -> Result<[u8; N], BadValue> {
    bytes.try_into().map_err(|_| BadValue::Protocol)
}

/// Days since 1970-01-01.
pub(super) fn date(bytes: &[u8]) -> Result<i32, BadValue> {
    match i32::from_be_bytes(exactly(bytes)?) {
        i32::MAX => Err(BadValue::Special("infinity")),
        i32::MIN => Err(BadValue::Special("-infinity")),
        days => days.checked_add(EPOCH_DAYS).ok_or_else(|| BadValue::DoesNotFit("a date beyond the year 5881580".into())),
    }
}

/// Microseconds since 1970-01-01T00:00:00.
pub(super) fn timestamp(bytes: &[u8]) -> Result<i64, BadValue> {
    match i64::from_be_bytes(exactly(bytes)?) {
        i64::MAX => Err(BadValue::Special("infinity")),
        i64::MIN => Err(BadValue::Special("-infinity")),
        micros => micros.checked_add(EPOCH_MICROS).ok_or_else(|| BadValue::DoesNotFit("a time beyond the year 294246".into())),
    }
}

/// Microseconds since midnight. PostgreSQL also knows the end of a day.
pub(super) fn time(bytes: &[u8]) -> Result<i64, BadValue> {
    match i64::from_be_bytes(exactly(bytes)?) {
        DAY_MICROS => Err(BadValue::Special("24:00:00")),
        micros => Ok(micros),
    }
}

/// The text of a UUID.
pub(super) fn uuid(bytes: &[u8], text: &mut String) -> Result<(), BadValue> {
    let bytes: [u8; 16] = exactly(bytes)?;
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for (index, byte) in bytes.into_iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push(char::from(HEX[usize::from(byte >> 4)]));
        text.push(char::from(HEX[usize::from(byte & 15)]));
    }
    Ok(())
}

/// The text that PostgreSQL reads as the date of this day: ISO, with `BC` where it applies.
pub(in crate::sync::postgres) fn date_text(days: i64) -> String {
    let (year, month, day) = civil(days);
    if year > 0 { format!("{year:04}-{month:02}-{day:02}") } else { format!("{:04}-{month:02}-{day:02} BC", 1 - year) }
}

/// The text that PostgreSQL reads as this time of day.
pub(in crate::sync::postgres) fn time_text(micros: i64) -> String {
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    format!("{:02}:{:02}:{:02}.{fraction:06}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

/// The text that PostgreSQL reads as this timestamp, with `zone` behind the time.
pub(in crate::sync::postgres) fn timestamp_text(micros: i64, zone: &str) -> String {
    let mut text = date_text(micros.div_euclid(DAY_MICROS));
    let era = text.split_off(text.find(" BC").unwrap_or(text.len()));
    let _ = write!(text, " {}{zone}{era}", time_text(micros.rem_euclid(DAY_MICROS))); // a String takes every text
    text
}

/// Year, month and day of a day since 1970-01-01, in the proleptic Gregorian calendar; the year before 1 is 0.
fn civil(days: i64) -> (i64, i64, i64) {
    // Years are counted from March, so that the day that comes and goes is a year's last; eras are 400 years.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_epochs_differ_by_thirty_years() {
        assert_eq!(date(&0_i32.to_be_bytes()), Ok(10_957));
        assert_eq!(timestamp(&0_i64.to_be_bytes()), Ok(946_684_800_000_000));
        assert_eq!(date(&(-2_451_545_i32).to_be_bytes()), Ok(-2_440_588)); // 4714-11-24 BC
        assert!(date(&i32::MAX.to_be_bytes()).is_err() && timestamp(&i64::MIN.to_be_bytes()).is_err());
        assert!(timestamp(&(i64::MAX - 1).to_be_bytes()).is_err());
        assert_eq!(date(&[0; 3]), Err(BadValue::Protocol));
    }

    #[test]
    fn texts_are_what_postgresql_reads() {
        assert_eq!(date_text(0), "1970-01-01");
        assert_eq!(date_text(11_016), "2000-02-29");
        assert_eq!(date_text(-719_162), "0001-01-01");
        assert_eq!(date_text(-719_163), "0001-12-31 BC");
        assert_eq!(date_text(-2_440_588), "4714-11-24 BC");
        assert_eq!(timestamp_text(-1, ""), "1969-12-31 23:59:59.999999");
        assert_eq!(timestamp_text(-62_135_596_800_000_001, "+00"), "0001-12-31 23:59:59.999999+00 BC");
        assert_eq!(time_text(86_399_999_999), "23:59:59.999999");
    }

    #[test]
    fn a_uuid_is_written_in_groups() {
        let mut text = String::new();
        uuid(&(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128).to_be_bytes(), &mut text).unwrap();
        assert_eq!(text, "00112233-4455-6677-8899-aabbccddeeff");
    }
}
