//! A set of byte ranges, for what has arrived of a fragment and what is still missing.

use std::ops::Range;

/// A set of `u64` as disjoint half-open ranges, kept sorted and merged. Meant for few ranges: insertion is linear in
/// their number, and the common case, a range after all others, touches only the last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IntervalMap {
    ranges: Vec<Range<u64>>,
}

impl IntervalMap {
    /// Returns an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `range` and returns how many of its numbers were not in the set before (0 for a pure duplicate).
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let length = range.end - range.start;
        match self.ranges.last_mut() {
            Some(last) if range.start == last.end => last.end = range.end,
            Some(last) if range.start < last.end => return self.merge(range),
            _ => self.ranges.push(range),
        }
        length
    }

    fn merge(&mut self, range: Range<u64>) -> u64 {
        // Every range that overlaps or touches the new one is merged into it.
        let from = self.ranges.partition_point(|r| r.end < range.start);
        let to = self.ranges.partition_point(|r| r.start <= range.end);
        let before: u64 = self.ranges[from..to].iter().map(|r| r.end - r.start).sum();
        let merged = match self.ranges[from..to] {
            [] => range,
            [ref first, ..] => first.start.min(range.start)..self.ranges[to - 1].end.max(range.end),
        };
        let after = merged.end - merged.start;
        self.ranges.splice(from..to, [merged]);
        after - before
    }

    /// Returns whether all of `range` is in the set.
    pub fn contains(&self, range: &Range<u64>) -> bool {
        let at = self.ranges.partition_point(|r| r.end < range.end);
        range.is_empty() || self.ranges.get(at).is_some_and(|r| r.start <= range.start)
    }

    /// Returns whether any number of `range` is in the set.
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        let at = self.ranges.partition_point(|r| r.end <= range.start);
        self.ranges.get(at).is_some_and(|r| r.start < range.end)
    }

    /// Returns the ranges within `0..total` that are not in the set, in order.
    pub fn missing_ranges(&self, total: u64) -> impl Iterator<Item = Range<u64>> {
        let starts = std::iter::once(0).chain(self.ranges.iter().map(|r| r.end));
        let ends = self.ranges.iter().map(|r| r.start).chain(std::iter::once(total));
        starts.zip(ends).map(move |(start, end)| start..end.min(total)).filter(|gap| gap.start < gap.end)
    }

    /// Returns the number of elements of the set.
    pub fn covered_count(&self) -> u64 {
        self.ranges.iter().map(|r| r.end - r.start).sum()
    }

    /// Returns the ranges: sorted, disjoint and not touching.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Comparison with the obvious model, a set of numbers.
        #[test]
        fn behaves_as_a_set_of_numbers(inserts in proptest::collection::vec((0u64..64, 0u64..16), 0..40)) {
            let mut map = IntervalMap::new();
            let mut model = BTreeSet::new();
            for (start, length) in inserts {
                let fresh = (start..start + length).filter(|n| model.insert(*n)).count() as u64;
                prop_assert!(length == 0 || map.overlaps(&(start..start + length)) == (fresh < length));
                prop_assert_eq!(map.contains(&(start..start + length)), fresh == 0);
                prop_assert_eq!(map.insert(start..start + length), fresh);
                prop_assert!(map.contains(&(start..start + length)));
                prop_assert!(map.ranges().windows(2).all(|w| w[0].end < w[1].start));
            }
            prop_assert_eq!(map.covered_count(), model.len() as u64);
            let missing: Vec<u64> = map.missing_ranges(100).flatten().collect();
            let expected: Vec<u64> = (0..100).filter(|n| !model.contains(n)).collect();
            prop_assert_eq!(missing, expected);
        }
    }
}
