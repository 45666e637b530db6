//! Where canonical encodings go: a vector, or a buffer for one short row after another.
//!
//! ```text
//! RowBuffer   [01│len│b y t e s│01│8 bytes│…        ] len ─┘     grown to the longest row, never given back
//! ```
//!
//! Most values are a few bytes long. A call of the system's copy for each of them was an eighth of a whole refresh, so
//! the buffer copies short values as two fixed-size halves that may overlap, which compilers turn into plain moves.
//! Memory: the longest row's encoding. Never keeps a value.

/// Takes the bytes of encodings.
pub(crate) trait Sink {
    /// Appends `bytes`.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// The encoding of one row at a time.
#[derive(Debug, Default)]
pub(crate) struct RowBuffer {
    bytes: Vec<u8>,
    len: usize,
}

impl RowBuffer {
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    #[cold]
    fn grow(&mut self, end: usize) {
        self.bytes.resize(end.max(self.bytes.len() * 2).max(64), 0);
    }
}

impl Sink for RowBuffer {
    #[inline(always)]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if end > self.bytes.len() {
            self.grow(end);
        }
        if let Some(to) = self.bytes.get_mut(self.len..end) {
            copy(bytes, to);
        }
        self.len = end;
    }
}

/// Copies between slices of one length.
#[inline(always)]
pub(super) fn copy(from: &[u8], to: &mut [u8]) {
    match from.len() {
        0 => {}
        1..=3 => to.iter_mut().zip(from).for_each(|(to, from)| *to = *from),
        4..=7 => halves::<4>(from, to),
        8..=15 => halves::<8>(from, to),
        16..=32 => halves::<16>(from, to),
        33..=64 => halves::<32>(from, to),
        _ => to.copy_from_slice(from),
    }
}

/// Copies `N` to `2 N` bytes: the first `N` and the last `N`.
#[inline(always)]
fn halves<const N: usize>(from: &[u8], to: &mut [u8]) {
    if let (Some(from), Some(to)) = (from.first_chunk::<N>(), to.first_chunk_mut::<N>()) {
        *to = *from;
    }
    if let (Some(from), Some(to)) = (from.last_chunk::<N>(), to.last_chunk_mut::<N>()) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_as_a_vector_would() {
        let value: Vec<u8> = (1..=200).collect();
        let (mut buffer, mut expected) = (RowBuffer::default(), Vec::new());
        for round in 0..2 {
            for length in 0..=value.len() {
                buffer.put(&value[value.len() - length..]);
                expected.put(&value[value.len() - length..]);
                assert_eq!(buffer.as_slice(), expected, "{length} in round {round}");
            }
            buffer.clear();
            expected.clear();
        }
    }
}
