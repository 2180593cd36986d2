//! A tracker for a source's 32-bit sequence numbers, which distinguishes new, repeated and missing ones.

/// Classification of a sequence number by those received before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The next number, or a later one: `skipped` numbers lie between.
    Ahead {
        /// Count of numbers between the highest so far and this one.
        skipped: u32,
    },
    /// A number not above the highest so far: it fills a gap or is a repetition.
    Behind,
}

/// Tracker of one source. Numbers wrap; a number is ahead if it is less than 2³¹ steps after the expected one (RFC 1982
/// arithmetic).
#[derive(Debug, Clone, Copy, Default)]
pub struct SequenceTracker {
    next: Option<u32>,
    seen: u64,
    skipped: u64,
    behind: u64,
}

impl SequenceTracker {
    /// Records the next number and returns its classification.
    #[inline]
    pub fn observe_sequence(&mut self, sequence: u32) -> Arrival {
        self.seen += 1;
        let expected = self.next.unwrap_or(sequence);
        let distance = sequence.wrapping_sub(expected);
        if distance < 1 << 31 {
            self.next = Some(sequence.wrapping_add(1));
            self.skipped += u64::from(distance);
            Arrival::Ahead { skipped: distance }
        } else {
            self.behind += 1;
            Arrival::Behind
        }
    }

    /// Returns the count of numbers observed.
    pub fn observed_count(&self) -> u64 {
        self.seen
    }

    /// Returns the count of numbers that were skipped and have not arrived later so far; never negative.
    pub fn missing_count(&self) -> u64 {
        self.skipped.saturating_sub(self.behind)
    }

    /// Returns the count of numbers that arrived after a higher one.
    pub fn late_count(&self) -> u64 {
        self.behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_late_comers_across_the_wrap() {
        let mut tracker = SequenceTracker::default();
        assert_eq!(tracker.observe_sequence(u32::MAX - 1), Arrival::Ahead { skipped: 0 });
        assert_eq!(tracker.observe_sequence(u32::MAX), Arrival::Ahead { skipped: 0 });
        assert_eq!(tracker.observe_sequence(2), Arrival::Ahead { skipped: 2 });
        assert_eq!(tracker.missing_count(), 2);
        assert_eq!(tracker.observe_sequence(0), Arrival::Behind);
        assert_eq!(tracker.missing_count(), 1);
        assert_eq!((tracker.observed_count(), tracker.late_count()), (4, 1));
    }
}
