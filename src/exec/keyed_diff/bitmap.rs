//! A fixed-size bitmap that several partitions set at once.

use std::sync::atomic::{AtomicU64, Ordering};

/// One bit per baseline row.
#[derive(Debug)]
pub(crate) struct Bitmap(Vec<AtomicU64>);

impl Bitmap {
    pub(crate) fn new(bits: usize) -> Self {
        Self((0..bits.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Sets a bit; whether it was clear before. Exactly one of several setters is told so.
    #[inline]
    pub(crate) fn set(&self, bit: usize) -> bool {
        let mask = 1 << (bit % 64);
        // Relaxed: the bit itself is all that is exchanged; the end of the partitions orders everything else.
        self.0.get(bit / 64).is_some_and(|word| word.fetch_or(mask, Ordering::Relaxed) & mask == 0)
    }

    #[inline]
    pub(crate) fn get(&self, bit: usize) -> bool {
        self.0.get(bit / 64).is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (bit % 64)) != 0)
    }

    pub(crate) fn allocated(&self) -> usize {
        self.0.len() * size_of::<u64>()
    }
}
