//! The frame of `COPY … (FORMAT binary)`: finds whole rows in whatever pieces the network delivers.
//!
//! ```text
//! "PGCOPY\n\377\r\n\0" │ flags i32 │ extension length i32, bytes │ row … row │ -1 i16
//!                                                    row = field count i16 │ (length i32, -1 is null │ bytes) …
//! ```
//!
//! The server sends one row a message, so pieces are usually whole rows and nothing is copied. Memory: one incomplete row.

use super::value::{BadValue, array};

const SIGNATURE: &[u8; 11] = b"PGCOPY\n\xff\r\n\0";
/// The lower half of the flags may be ignored; the upper half changes the format.
const CRITICAL_FLAGS: u32 = 0xFFFF_0000;

/// The length of a null; no other is below zero.
pub(super) const NULL_LENGTH: i32 = -1;

/// Reads the frame of one COPY.
#[derive(Debug)]
pub(super) struct Frames {
    fields: usize,
    state: State,
    /// The beginning of a row whose end is still to come.
    rest: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Header,
    Rows,
    Ended,
}

/// Why reading a piece ended.
#[derive(Debug)]
pub(super) enum FrameError<E> {
    /// The bytes are not the format's.
    Protocol,
    /// The taker of rows failed.
    Row(E),
}

impl<E> From<BadValue> for FrameError<E> {
    fn from(_: BadValue) -> Self {
        Self::Protocol
    }
}

impl Frames {
    /// For rows of this many fields.
    pub(super) fn new(fields: usize) -> Self {
        Self { fields, state: State::Header, rest: vec![] }
    }

    /// Bytes that wait for the end of their row.
    pub(super) fn buffered(&self) -> usize {
        self.rest.capacity()
    }

    /// Whether the end was read: a stream that stops before it is not complete.
    pub(super) fn is_complete(&self) -> bool {
        self.state == State::Ended && self.rest.is_empty()
    }

    /// Takes the next piece and hands on every row that it completes, without the field count.
    pub(super) fn feed<E>(&mut self, piece: &[u8], mut row: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), FrameError<E>> {
        if self.rest.is_empty() {
            let used = self.consume(piece, &mut row)?;
            self.rest.extend_from_slice(&piece[used..]);
            return Ok(());
        }
        let mut all = std::mem::take(&mut self.rest);
        all.extend_from_slice(piece);
        let used = self.consume(&all, &mut row)?;
        if used < all.len() {
            all.drain(..used);
            self.rest = all;
        }
        Ok(())
    }

    fn consume<E>(&mut self, data: &[u8], row: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<usize, FrameError<E>> {
        let mut at = 0;
        while let Some(used) = self.step(&data[at..], row)? {
            at += used;
        }
        Ok(at)
    }

    /// One element at the front of `data`; `None` when it is not complete, or there is none.
    fn step<E>(&mut self, data: &[u8], row: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<Option<usize>, FrameError<E>> {
        match self.state {
            State::Header => {
                if data.len() < SIGNATURE.len() + 8 {
                    return Ok(None);
                }
                let flags = u32::from_be_bytes(array(data, SIGNATURE.len())?);
                let extension = u32::from_be_bytes(array(data, SIGNATURE.len() + 4)?) as usize;
                if !data.starts_with(SIGNATURE) || flags & CRITICAL_FLAGS != 0 {
                    return Err(FrameError::Protocol);
                }
                let end = SIGNATURE.len() + 8 + extension;
                Ok((data.len() >= end).then(|| {
                    self.state = State::Rows;
                    end
                }))
            }
            State::Rows => {
                if data.len() < 2 {
                    return Ok(None);
                }
                match i16::from_be_bytes(array(data, 0)?) {
                    -1 => self.state = State::Ended,
                    fields if usize::try_from(fields) == Ok(self.fields) => {
                        let Some(length) = row_length(&data[2..], self.fields)? else { return Ok(None) };
                        row(&data[2..2 + length]).map_err(FrameError::Row)?;
                        return Ok(Some(2 + length));
                    }
                    _ => return Err(FrameError::Protocol),
                }
                Ok(Some(2))
            }
            State::Ended if data.is_empty() => Ok(None),
            State::Ended => Err(FrameError::Protocol),
        }
    }
}

/// The length of a row of `fields` fields at the front of `data`, if all of it is there.
fn row_length(data: &[u8], fields: usize) -> Result<Option<usize>, BadValue> {
    let mut at = 0;
    for _ in 0..fields {
        let Ok(length) = array(data, at).map(i32::from_be_bytes) else { return Ok(None) };
        let length = if length == NULL_LENGTH { 0 } else { usize::try_from(length).map_err(|_| BadValue::Protocol)? };
        at += 4 + length;
        if at > data.len() {
            return Ok(None);
        }
    }
    Ok(Some(at))
}

/// The fields of a row, `None` for null. The lengths were looked at before.
pub(super) fn fields(row: &[u8]) -> impl Iterator<Item = Option<&[u8]>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let length = i32::from_be_bytes(array(row, at).ok()?);
        at += 4;
        let Ok(length) = usize::try_from(length) else { return Some(None) };
        let bytes = row.get(at..at + length)?;
        at += length;
        Some(Some(bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(rows: &[&[Option<&str>]]) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 3, 9, 9, 9]); // a flag that may be ignored, an extension of three bytes
        for row in rows {
            bytes.extend((row.len() as i16).to_be_bytes());
            for field in *row {
                bytes.extend(field.map_or(-1, |f| f.len() as i32).to_be_bytes());
                bytes.extend(field.unwrap_or_default().as_bytes());
            }
        }
        bytes.extend((-1_i16).to_be_bytes());
        bytes
    }

    type Rows = Vec<Vec<Option<String>>>;

    fn read(bytes: &[u8], piece: usize) -> Result<(Rows, bool), FrameError<()>> {
        let (mut frames, mut rows) = (Frames::new(2), vec![]);
        for piece in bytes.chunks(piece) {
            frames.feed(piece, |row| {
                rows.push(fields(row).map(|f| f.map(|f| String::from_utf8(f.to_vec()).unwrap())).collect::<Vec<_>>());
                Ok(())
            })?;
        }
        Ok((rows, frames.is_complete()))
    }

    #[test]
    fn rows_are_found_in_pieces_of_every_size() {
        let bytes = copy(&[&[Some("a"), None], &[Some(""), Some("long enough")], &[None, None]]);
        let expected = read(&bytes, bytes.len()).unwrap();
        assert_eq!(expected.0.len(), 3);
        assert_eq!(expected.0[1], [Some(String::new()), Some("long enough".into())]);
        for piece in 1..bytes.len() {
            assert_eq!(read(&bytes, piece).unwrap(), expected);
        }
    }

    #[test]
    fn a_stream_that_stops_early_is_not_complete() {
        let bytes = copy(&[&[Some("a"), Some("b")]]);
        for end in 0..bytes.len() {
            assert!(!read(&bytes[..end], 7).unwrap().1, "cut at {end}");
        }
    }

    #[test]
    fn what_is_not_the_format_is_refused() {
        let good = copy(&[&[Some("a"), Some("b")]]);
        let mut other = good.clone();
        other[3] ^= 1;
        assert!(read(&other, 100).is_err(), "signature");
        let mut other = good.clone();
        other[12] = 1;
        assert!(read(&other, 100).is_err(), "a critical flag");
        assert!(read(&copy(&[&[Some("a")]]), 100).is_err(), "another field count");
        let mut other = good.clone();
        other[24..28].copy_from_slice(&(-2_i32).to_be_bytes());
        assert!(read(&other, 100).is_err(), "a length that is none");
        let mut other = good;
        other.push(0);
        assert!(read(&other, 100).is_err(), "bytes behind the end");
    }
}
