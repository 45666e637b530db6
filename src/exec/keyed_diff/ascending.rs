//! New keys that arrive in order: kept as they come, and compared with one another when all are there.
//!
//! ```text
//! keys of one partition   3 5 9 12 | 40 41 57 …           strictly ascending runs, no hash, no lock
//! at the end              runs apart ─► no duplicate      runs that overlap ─► merged, equal keys are duplicates
//! ```
//!
//! A first load of a table in key order has nothing but new keys; putting each into a hash table took a fifth of it.
//! Memory: the keys, 8 bytes or their bytes and 8 more, granted as they grow; the merge takes 16 bytes per run.
//! Keys in no order are refused, for whoever keeps them otherwise.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::exec::equality::KeyStore;

/// Runs that are always allowed, and how many keys earn one more: keys in no order soon earn none.
const FREE_RUNS: usize = 16;
const KEYS_PER_RUN: usize = 4096;

/// The ascending runs of one partition.
#[derive(Debug)]
pub(crate) struct Ascending<K> {
    keys: K,
    starts: Vec<usize>,
}

impl<K: KeyStore> Ascending<K> {
    pub(crate) fn new() -> Self {
        Self { keys: K::default(), starts: Vec::new() }
    }

    /// Whether `key` may be pushed: it goes on where the last run is, or may begin another.
    #[inline]
    pub(crate) fn takes(&self, key: K::Key<'_>) -> bool {
        match self.keys.len().checked_sub(1) {
            Some(last) if !K::ascends(self.keys.get(last), key) => self.starts.len() < FREE_RUNS + self.keys.len() / KEYS_PER_RUN,
            _ => true,
        }
    }

    /// Pushes a key that [`Self::takes`].
    #[inline]
    pub(crate) fn push(&mut self, key: K::Key<'_>) {
        let is_next = self.keys.len().checked_sub(1).is_some_and(|last| K::ascends(self.keys.get(last), key));
        if !is_next {
            self.starts.push(self.keys.len());
        }
        self.keys.push(key);
    }

    /// The most bytes that pushing `key` allocates.
    #[inline]
    pub(crate) fn growth(&self, key: K::Key<'_>) -> usize {
        let starts = if self.starts.len() < self.starts.capacity() { 0 } else { self.starts.capacity().max(4) * size_of::<usize>() };
        self.keys.growth(key) + starts
    }

    pub(crate) fn keys(&self) -> &K {
        &self.keys
    }

    /// Whether `key` is one of the keys.
    pub(crate) fn has(&self, key: K::Key<'_>) -> bool {
        self.runs().any(|Range { start: mut low, end: mut high }| {
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if self.keys.is_after(middle, key) { high = middle } else { low = middle }
            }
            self.keys.is(low, key)
        })
    }

    fn runs(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let ends = self.starts.iter().skip(1).copied().chain([self.keys.len()]);
        self.starts.iter().copied().zip(ends).map(|(start, end)| start..end)
    }
}

/// Where a key is: (which of the lists, position in it).
pub(crate) type Place = (usize, usize);

/// Calls `found` for every key of `lists` that another place before it in the merge has too.
pub(crate) fn equal_keys<K: KeyStore>(lists: &[&Ascending<K>], mut found: impl FnMut(Place)) {
    let key = |(list, position): Place| lists.get(list).map(|list| list.keys.get(position));
    let compare = |a: Place, b: Place| match (key(a), key(b)) {
        (Some(a), Some(b)) if K::ascends(a, b) => Ordering::Less,
        (Some(a), Some(b)) if K::ascends(b, a) => Ordering::Greater,
        _ => Ordering::Equal,
    };
    let runs = lists.iter().enumerate().flat_map(|(list, ascending)| ascending.runs().map(move |run| (list, run)));
    let mut runs: Vec<(usize, Range<usize>)> = runs.filter(|(_, run)| !run.is_empty()).collect();
    runs.sort_by(|(a, run_a), (b, run_b)| compare((*a, run_a.start), (*b, run_b.start)));
    // Runs that no other overlaps need no merge: groups of overlapping ones are merged one by one.
    let mut group: Vec<(usize, Range<usize>)> = Vec::new();
    let mut end: Option<Place> = None;
    for (list, run) in runs {
        let last = (list, run.end - 1);
        if end.is_some_and(|end| compare(end, (list, run.start)) == Ordering::Less) {
            merge(std::mem::take(&mut group), &compare, &mut found);
            end = None;
        }
        end = Some(end.filter(|end| compare(*end, last) != Ordering::Less).unwrap_or(last));
        group.push((list, run));
    }
    merge(group, &compare, &mut found);
}

/// A run's next key in the merge; the heap gives the least first.
struct Head<'a, F> {
    list: usize,
    rest: Range<usize>,
    compare: &'a F,
}

impl<F: Fn(Place, Place) -> Ordering> Head<'_, F> {
    fn place(&self) -> Place {
        (self.list, self.rest.start)
    }
}

impl<F: Fn(Place, Place) -> Ordering> PartialEq for Head<'_, F> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<F: Fn(Place, Place) -> Ordering> Eq for Head<'_, F> {}

impl<F: Fn(Place, Place) -> Ordering> PartialOrd for Head<'_, F> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<F: Fn(Place, Place) -> Ordering> Ord for Head<'_, F> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.compare)(other.place(), self.place())
    }
}

fn merge<F: Fn(Place, Place) -> Ordering>(runs: Vec<(usize, Range<usize>)>, compare: &F, found: &mut impl FnMut(Place)) {
    if runs.len() < 2 {
        return;
    }
    let mut heads: BinaryHeap<Head<'_, F>> = runs.into_iter().map(|(list, rest)| Head { list, rest, compare }).collect();
    let mut before: Option<Place> = None;
    while let Some(mut head) = heads.peek_mut() {
        let place = head.place();
        if before.is_some_and(|before| compare(before, place) == Ordering::Equal) {
            found(place);
        }
        before = Some(place);
        head.rest.start += 1;
        if head.rest.is_empty() {
            std::collections::binary_heap::PeekMut::pop(head);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array};
    use arrow_schema::{DataType, Field};
    use proptest::prelude::*;

    use super::*;
    use crate::exec::equality::{KeyBatch, KeyReader, SmallKeys};

    /// The keys that are taken, and the rows of those that are not.
    fn of_batch<K: KeyStore>(batch: &KeyBatch, rows: usize) -> (Ascending<K>, Vec<usize>) {
        let (mut ascending, mut refused) = (Ascending::new(), Vec::new());
        for row in 0..rows {
            let key = K::key(batch, row);
            if ascending.takes(key) { ascending.push(key) } else { refused.push(row) }
        }
        (ascending, refused)
    }

    fn lists(parts: &[Vec<i64>]) -> Vec<(Ascending<SmallKeys>, Vec<usize>)> {
        let reader = KeyReader::try_new(&[Field::new("id", DataType::Int64, false)]).unwrap();
        let read = |part: &Vec<i64>| reader.read(&[Arc::new(Int64Array::from(part.clone())) as ArrayRef]).unwrap();
        parts.iter().map(|part| of_batch(&read(part), part.len())).collect()
    }

    proptest! {
        #[test]
        fn exactly_the_repeated_keys_are_found(parts in prop::collection::vec(prop::collection::vec(-20_i64..60, 0..60), 1..6), sorted in any::<bool>()) {
            let parts: Vec<Vec<i64>> = parts.into_iter().map(|mut part| {
                if sorted { part.sort_unstable(); }
                part
            }).collect();
            let lists = lists(&parts);
            let mut kept: Vec<i64> = Vec::new();
            for (part, (_, refused)) in parts.iter().zip(&lists) {
                kept.extend(part.iter().enumerate().filter(|(row, _)| !refused.contains(row)).map(|(_, key)| *key));
            }
            let mut found: Vec<i64> = Vec::new();
            let of: Vec<&Ascending<SmallKeys>> = lists.iter().map(|(list, _)| list).collect();
            equal_keys(&of, |(list, position)| found.push(of[list].keys().get(position) as i64));
            kept.sort_unstable();
            found.sort_unstable();
            let repeated: Vec<i64> = kept.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
            prop_assert_eq!(found, repeated);
        }
    }

    #[test]
    fn keys_in_no_order_are_soon_refused() {
        let part: Vec<i64> = (0..10_000).map(|i| (i * 7_919) % 10_007).collect();
        let lists = lists(&[part]);
        let (list, refused) = &lists[0];
        assert!(refused.len() > 5_000, "{} refused, {} runs", refused.len(), list.starts.len());
    }
}
