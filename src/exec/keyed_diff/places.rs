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

/// The place where a partition is, and those that it left.
#[derive(Debug)]
pub(crate) struct Places {
    next: usize,
    left: [usize; PLACES],
    /// Hashes of the keys at the places that were left: all of them are compared at once.
    hashes: [u64; PLACES],
    count: usize,
    /// The entry that the next one replaces when all are taken.
    oldest: usize,
    tried: u32,
    hit: u32,
}

impl Default for Places {
    fn default() -> Self {
        Self { next: 0, left: [0; PLACES], hashes: [0; PLACES], count: 0, oldest: 0, tried: 0, hit: 0 }
    }
}

impl Places {
    /// Begins another batch.
    pub(crate) fn begin(&mut self) {
        (self.tried, self.hit) = (0, 0);
    }

    /// The place where the partition is.
    #[inline]
    pub(crate) fn next(&self) -> usize {
        self.next
    }

    /// Goes on after `position`, at or soon after the place where the partition is.
    #[inline]
    pub(crate) fn move_to(&mut self, position: usize) {
        self.next = position + 1;
    }

    /// Whether the places that were left are worth a try.
    pub(crate) fn is_worth_a_try(&self) -> bool {
        self.count > 0 && (self.tried < TRIES || self.hit >= self.tried / 2)
    }

    /// Goes back to a place that was left and whose row `is_it`, with the hash of its key. `hash_at` gives that of the row at
    /// a place.
    pub(crate) fn return_to(&mut self, hash: u64, is_it: impl Fn(usize) -> bool, hash_at: impl Fn(usize) -> Option<u64>) -> Option<usize> {
        self.tried += 1;
        let places = self.hashes.iter().zip(self.left).take(self.count).enumerate();
        let (at, position) =
            places.filter(|(_, (left, _))| **left == hash).find(|(_, (_, place))| is_it(*place)).map(|(at, (_, place))| (at, place))?;
        self.hit += 1;
        self.leave(at, hash_at);
        self.next = position + 1;
        Some(position)
    }

    /// Goes on after `position`, which a look-up found.
    pub(crate) fn jump(&mut self, position: usize, hash_at: impl Fn(usize) -> Option<u64>) {
        if position < self.next || position - self.next > STEP {
            let at = if self.count < PLACES { self.count } else { self.oldest };
            self.count = PLACES.min(self.count + 1);
            self.oldest = (at + 1) % PLACES;
            self.leave(at, hash_at);
        }
        self.next = position + 1;
    }

    /// Keeps the place where the partition is as entry `at`.
    fn leave(&mut self, at: usize, hash_at: impl Fn(usize) -> Option<u64>) {
        if let (Some(left), Some(hash)) = (self.left.get_mut(at), self.hashes.get_mut(at)) {
            *left = self.next;
            // Behind the last row there is nothing to find: any hash does, as the row is compared too.
            *hash = hash_at(self.next).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(places: &mut Places, rows: &[u32], key: u32) -> Option<usize> {
        let is_it = |place: usize| rows.get(place) == Some(&key);
        if is_it(places.next()) {
            places.move_to(places.next());
            return Some(places.next() - 1);
        }
        if places.is_worth_a_try() { places.return_to(u64::from(key % 7), is_it, |place| hash(rows, place)) } else { None }
    }

    /// A poor one: the rows are compared too.
    fn hash(rows: &[u32], place: usize) -> Option<u64> {
        rows.get(place).map(|key| u64::from(key % 7))
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
            let position = find(&mut places, &rows, key).unwrap_or_else(|| {
                lookups += 1;
                let position = rows.iter().position(|row| *row == key).unwrap();
                places.jump(position, |place| hash(&rows, place));
                position
            });
            assert_eq!(rows.get(position), Some(&key));
        }
        assert_eq!(lookups, 1, "the first replaced row");
    }

    #[test]
    fn no_order_costs_few_tries() {
        let rows: Vec<u32> = (0..10_000).collect();
        let (mut places, mut tries) = (Places::default(), 0);
        for step in 0..10_000_u32 {
            let key = step.wrapping_mul(7_919) % 10_000;
            tries += u32::from(places.is_worth_a_try());
            let found = find(&mut places, &rows, key);
            assert!(found.is_none_or(|position| rows[position] == key));
            if found.is_none() {
                places.jump(key as usize, |place| hash(&rows, place));
            }
        }
        assert!(tries <= TRIES + 1, "{tries}");
    }
}
