//! Finds keys by order instead of by hash, where the baseline lies in few ascending stretches.
//!
//! ```text
//! positions   0 ……… 65535 │ 65536 ……… 131071 │ 131072 … 131080      each stretch ascends strictly
//! layer 0     [a ……… f]     [g ………………… p]                           stretches of a layer do not overlap: binary search
//! layer 1                                        [c … n]              rows that later versions wrote
//! ```
//!
//! A snapshot in nearly the same order needs so few look-ups that building a hash table costs far more than it saves.
//! Memory: 8 bytes per stretch, at most 65,536 of them. Never used for keys in no order, nor once look-ups are many.

use crate::exec::equality::KeyStore;

const STRETCHES: usize = 1 << 16;
const LAYERS: usize = 32;

/// The beginnings of the ascending stretches; `None` when there are too many.
#[derive(Debug)]
pub(crate) struct Stretches(Option<Vec<usize>>);

impl Stretches {
    pub(crate) fn new() -> Self {
        Self(Some(Vec::new()))
    }

    /// Notes the key at `position`, one after another. The first key of a batch begins a stretch: batches of
    /// several partitions arrive in any order, and stretches across them would overlap.
    #[inline]
    pub(crate) fn pushed<K: KeyStore>(&mut self, keys: &K, position: usize, is_first: bool) {
        let Some(starts) = &mut self.0 else { return };
        if !is_first && position > 0 && K::ascends(keys.get(position - 1), keys.get(position)) {
            return;
        }
        if starts.len() == STRETCHES {
            self.0 = None;
        } else {
            starts.push(position);
        }
    }

    pub(crate) fn allocated(&self) -> usize {
        self.0.as_ref().map_or(0, |starts| starts.capacity() * size_of::<usize>())
    }

    /// The layers; `None` when there are too many stretches or layers.
    pub(crate) fn layers<K: KeyStore>(&self, keys: &K) -> Option<Layers> {
        let starts = self.0.as_ref()?;
        let ends = starts.iter().skip(1).copied().chain([keys.len()]);
        let mut stretches: Vec<(usize, usize)> = starts.iter().copied().zip(ends).filter(|(start, end)| start < end).collect();
        let ascends = |a: usize, b: usize| K::ascends(keys.get(a), keys.get(b));
        stretches.sort_unstable_by(|(a, _), (b, _)| ascends(*b, *a).cmp(&ascends(*a, *b)));
        let mut layers: Vec<Vec<(usize, usize)>> = Vec::new();
        for (start, end) in stretches {
            let fits = |layer: &Vec<(usize, usize)>| layer.last().is_some_and(|(_, before)| ascends(before - 1, start));
            let at = layers.iter().position(fits).unwrap_or(layers.len());
            if at == LAYERS {
                return None;
            }
            if at == layers.len() {
                layers.push(Vec::new());
            }
            if let Some(layer) = layers.get_mut(at) {
                layer.push((start, end));
            }
        }
        Some(Layers(layers))
    }
}

/// Stretches (start, end) in layers; ascending and apart within each layer.
#[derive(Debug)]
pub(crate) struct Layers(Vec<Vec<(usize, usize)>>);

impl Layers {
    /// How many binary searches a look-up of `key` takes at most.
    pub(crate) fn steps<K: KeyStore>(&self, keys: &K, key: K::Key<'_>) -> usize {
        self.0.iter().filter(|layer| reaches(layer, keys, key)).count()
    }

    /// The position of `key`.
    pub(crate) fn find<K: KeyStore>(&self, keys: &K, key: K::Key<'_>) -> Option<usize> {
        self.0.iter().filter(|layer| reaches(layer, keys, key)).find_map(|layer| {
            let behind = layer.partition_point(|(start, _)| !keys.is_after(*start, key));
            let (start, end) = layer.get(behind.checked_sub(1)?)?;
            let (mut low, mut high) = (*start, *end);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if keys.is_after(middle, key) { high = middle } else { low = middle }
            }
            keys.is(low, key).then_some(low)
        })
    }
}

/// Whether `key` is between the first and the last key of a layer.
fn reaches<K: KeyStore>(layer: &[(usize, usize)], keys: &K, key: K::Key<'_>) -> bool {
    let (Some((first, _)), Some((_, end))) = (layer.first(), layer.last()) else { return false };
    !keys.is_after(*first, key) && (keys.is_after(end - 1, key) || keys.is(end - 1, key))
}
