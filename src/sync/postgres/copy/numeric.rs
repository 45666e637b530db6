//! PostgreSQL's `numeric` on the wire, as the unscaled integer of a decimal.
//!
//! ```text
//! digit count │ weight │ sign │ display scale │ digits, base 10,000
//!     i16        i16      u16        u16        u16 …           value = ± Σ digit[i] · 10000^(weight − i)
//! ```
//!
//! Exact or refused: a fraction that the target's scale cannot hold is an error, never rounded.

use arrow::datatypes::i256;

use super::value::{BadValue, array};

const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xC000;
const INFINITY: u16 = 0xD000;
const NEGATIVE_INFINITY: u16 = 0xF000;

/// An integer that is wide enough for some decimal type.
pub(super) trait Unscaled: Copy + PartialOrd {
    /// Nothing.
    const ZERO: Self;
    /// `self * factor + digit`, or `None` when that does not fit.
    fn shifted(self, factor: u16, digit: u16) -> Option<Self>;
    /// `-self`.
    fn negated(self) -> Self;
    /// 10 to the `precision`, the least number that has more digits.
    fn limit(precision: u8) -> Self;
}

impl Unscaled for i128 {
    const ZERO: Self = 0;

    fn shifted(self, factor: u16, digit: u16) -> Option<Self> {
        self.checked_mul(Self::from(factor))?.checked_add(Self::from(digit))
    }

    fn negated(self) -> Self {
        -self
    }

    fn limit(precision: u8) -> Self {
        10_i128.saturating_pow(u32::from(precision))
    }
}

impl Unscaled for i256 {
    const ZERO: Self = i256::ZERO;

    fn shifted(self, factor: u16, digit: u16) -> Option<Self> {
        self.checked_mul(i256::from_i128(i128::from(factor)))?.checked_add(i256::from_i128(i128::from(digit)))
    }

    fn negated(self) -> Self {
        self.wrapping_neg() // of a magnitude below 10^76: never the least value
    }

    fn limit(precision: u8) -> Self {
        i256::from_i128(10).checked_pow(u32::from(precision)).unwrap_or(i256::MAX)
    }
}

/// A decimal type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decimal<T> {
    precision: u8,
    scale: u8,
    limit: T,
}

impl<T: Unscaled> Decimal<T> {
    pub(super) fn new(precision: u8, scale: u8) -> Self {
        Self { precision, scale, limit: T::limit(precision) }
    }

    /// The unscaled value of a `numeric`.
    pub(super) fn read(&self, bytes: &[u8]) -> Result<T, BadValue> {
        let short = |at: usize| array(bytes, at).map(u16::from_be_bytes);
        let (count, weight, sign) = (short(0)?, short(2)? as i16, short(4)?);
        match sign {
            0 | NEGATIVE => {}
            NAN => return Err(BadValue::Special("NaN")),
            INFINITY => return Err(BadValue::Special("Infinity")),
            NEGATIVE_INFINITY => return Err(BadValue::Special("-Infinity")),
            _ => return Err(BadValue::Protocol),
        }
        let digits = bytes.get(8..8 + usize::from(count) * 2).ok_or(BadValue::Protocol)?;
        let value = self.join(digits, i32::from(weight))?;
        Ok(if sign == NEGATIVE { value.negated() } else { value })
    }

    /// The groups of digits as one integer; the first stands at 10000^`place`.
    fn join(&self, digits: &[u8], mut place: i32) -> Result<T, BadValue> {
        let too_long = || BadValue::DoesNotFit(format!("a number of more than {} digits", self.precision));
        let mut value = T::ZERO;
        for digit in digits.chunks_exact(2) {
            let digit = u16::from_be_bytes([digit[0], digit[1]]);
            value = append_group(value, digit, place, self.scale)?.ok_or_else(too_long)?;
            place -= 1;
        }
        if !digits.is_empty() {
            // Groups that are zero at the end are not sent: those down to the last that the scale reaches into are missing.
            while i32::from(self.scale) > -4 * (place + 1) {
                value = append_group(value, 0, place, self.scale)?.ok_or_else(too_long)?;
                place -= 1;
            }
        }
        if value < self.limit { Ok(value) } else { Err(too_long()) }
    }
}

/// Appends the group at 10000^`place`, as much of it as the scale holds; `Ok(None)` when the integer is too narrow.
fn append_group<T: Unscaled>(value: T, digit: u16, place: i32, scale: u8) -> Result<Option<T>, BadValue> {
    if place >= 0 {
        return Ok(value.shifted(10_000, digit));
    }
    // The group's first fraction digit is number 4 * (-place - 1) + 1.
    let factors = [1_u16, 10, 100, 1_000, 10_000];
    let held = (i32::from(scale) - 4 * (-place - 1)).clamp(0, 4) as usize;
    let cut = factors[4 - held];
    if !digit.is_multiple_of(cut) {
        return Err(BadValue::DoesNotFit(format!("a number of more than {scale} fraction digits")));
    }
    Ok(value.shifted(factors[held], digit / cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal<T: Unscaled>(bytes: &[u8], precision: u8, scale: u8) -> Result<T, BadValue> {
        Decimal::new(precision, scale).read(bytes)
    }

    fn wire(weight: i16, sign: u16, digits: &[u16]) -> Vec<u8> {
        let mut bytes = vec![];
        for short in [digits.len() as u16, weight as u16, sign, 0].iter().chain(digits) {
            bytes.extend(short.to_be_bytes());
        }
        bytes
    }

    #[test]
    fn values_are_exact_at_every_scale() {
        // 12345.678 = 1 2345 . 6780
        let value = wire(1, 0, &[1, 2345, 6780]);
        assert_eq!(decimal::<i128>(&value, 38, 3), Ok(12_345_678));
        assert_eq!(decimal::<i128>(&value, 38, 4), Ok(123_456_780));
        assert_eq!(decimal::<i128>(&value, 38, 9), Ok(12_345_678_000_000));
        assert!(decimal::<i128>(&value, 38, 2).is_err());
        // 0.00000001 = [0 .] 0001 at place -2
        let small = wire(-2, NEGATIVE, &[1]);
        assert_eq!(decimal::<i128>(&small, 38, 8), Ok(-1));
        assert_eq!(decimal::<i128>(&small, 38, 10), Ok(-100));
        assert!(decimal::<i128>(&small, 38, 7).is_err());
        // 100000000 = 1 at place 2
        assert_eq!(decimal::<i128>(&wire(2, 0, &[1]), 38, 0), Ok(100_000_000));
        assert_eq!(decimal::<i128>(&wire(2, 0, &[1]), 38, 1), Ok(1_000_000_000));
        assert_eq!(decimal::<i128>(&wire(0, 0, &[]), 38, 5), Ok(0));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(decimal::<i128>(&wire(0, 0, &[1000]), 3, 0).is_err());
        assert_eq!(decimal::<i128>(&wire(0, 0, &[999]), 3, 0), Ok(999));
        assert!(decimal::<i128>(&wire(9, 0, &[9999; 10]), 38, 0).is_err());
        assert!(decimal::<i256>(&wire(9, 0, &[9999; 10]), 76, 0).is_ok());
        assert!(decimal::<i256>(&wire(i16::MAX, 0, &[1]), 76, 0).is_err());
        for special in [NAN, INFINITY, NEGATIVE_INFINITY] {
            assert!(matches!(decimal::<i128>(&wire(0, special, &[]), 38, 0), Err(BadValue::Special(_))));
        }
        assert_eq!(decimal::<i128>(&[0, 1], 38, 0), Err(BadValue::Protocol));
        assert_eq!(decimal::<i128>(&wire(0, 0, &[1, 2])[..10], 38, 0), Err(BadValue::Protocol));
    }
}
