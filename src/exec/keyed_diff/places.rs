//! Where a partition may find its next rows in the baseline.
//!
//! ```text
//! baseline   version 1: a b · d e · g h      version 2: c'      version 3: f'          (· replaced by a later version)
//! source     a b c d e f g h
//! next       b · · after b, the place is left for c' and kept; after c' it is found again ─► d …
//! ```
//!
//! Rows that later versions wrote lie in files of their own, each in the order of the source again. A partition that leaves
//! one stretch for another therefore keeps the place that it left: the row after it is tried before any look-up.
//! Memory: 8 bytes for each of at most 64 places. Never tries them for long where that finds nothing: a source in no order.

const PLACES: usize = 64;
/// So many rows of a batch try the places that were left, whether or not it helps.
const TRIES: u32 = 64;
/// A step forward within so many rows leaves nothing behind but deleted rows.
const STEP: usize = 1024;

/// The place where a partition is, and those that it left, the latest first.
#[derive(Debug, Default)]
pub(crate) struct Places {
    next: usize,
    left: Vec<usize>,
    tried: u32,
    hit: u32,
}

impl Places {
    /// Begins another batch.
    pub(crate) fn begin(&mut self) {
        (self.tried, self.hit) = (0, 0);
    }

    /// The position of the next row, if `look` finds it at (or soon after) the place where the partition is, or one that it left.
    #[inline]
    pub(crate) fn predict(&mut self, look: impl Fn(usize) -> Option<usize>) -> Option<usize> {
        if let Some(position) = look(self.next) {
            self.next = position + 1;
            return Some(position);
        }
        self.return_to(look)
    }

    fn return_to(&mut self, look: impl Fn(usize) -> Option<usize>) -> Option<usize> {
        if self.left.is_empty() || (self.tried >= TRIES && self.hit < self.tried / 2) {
            return None;
        }
        self.tried += 1;
        let found = self.left.iter().enumerate().find_map(|(at, place)| look(*place).map(|position| (at, position)));
        let (at, position) = found?;
        self.hit += 1;
        self.left.remove(at);
        self.left.insert(0, std::mem::replace(&mut self.next, position + 1));
        Some(position)
    }

    /// Goes on after `position`, which a look-up found.
    pub(crate) fn jump(&mut self, position: usize) {
        let before = std::mem::replace(&mut self.next, position + 1);
        if position < before || position - before > STEP {
            self.left.insert(0, before);
            self.left.truncate(PLACES);
        }
    }

    /// Goes on after `position`; where it was is not worth a try.
    pub(crate) fn move_to(&mut self, position: usize) {
        self.next = position + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows at positions, looked for at a place and the row after it.
    fn look(rows: &[u32], key: u32) -> impl Fn(usize) -> Option<usize> {
        move |place| (place..place + 2).find(|at| rows.get(*at) == Some(&key))
    }

    #[test]
    fn a_place_that_was_left_is_found_again() {
        // Two files: every fourth key was replaced.
        let first: Vec<u32> = (0..8_000).filter(|key| key % 4 != 3).collect();
        let second: Vec<u32> = (0..8_000).filter(|key| key % 4 == 3).collect();
        let rows: Vec<u32> = first.into_iter().chain(second).collect();
        let (mut places, mut lookups) = (Places::default(), 0);
        for key in 0..8_000 {
            if key % 1_000 == 0 {
                places.begin();
            }
            let position = places.predict(look(&rows, key)).unwrap_or_else(|| {
                lookups += 1;
                let position = rows.iter().position(|row| *row == key).unwrap();
                places.jump(position);
                position
            });
            assert_eq!(rows.get(position), Some(&key));
        }
        assert_eq!(lookups, 1, "the first replaced row");
    }

    #[test]
    fn no_order_costs_few_tries() {
        let rows: Vec<u32> = (0..10_000).collect();
        let (mut places, tries) = (Places::default(), std::cell::Cell::new(0));
        for step in 0..10_000_u32 {
            let key = step.wrapping_mul(7_919) % 10_000;
            let counted = |place| {
                tries.set(tries.get() + 1);
                look(&rows, key)(place)
            };
            if places.predict(counted).is_none() {
                places.jump(key as usize);
            }
        }
        assert!(tries.get() < 10_000 + 100 * PLACES, "{}", tries.get());
        assert!(places.left.len() <= PLACES);
    }
}
