//! Follows a source's 32-bit sequence numbers and says which are new, repeated or missing.

/// What a sequence number is, seen after those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The next one, or one ahead of it: `skipped` numbers lie between.
    Ahead {
        /// Numbers between the highest so far and this one.
        skipped: u32,
    },
    /// One that lies behind the highest so far: it fills a gap or repeats.
    Behind,
}

/// Tracks one source. Numbers wrap; a number is ahead when it is less than 2³¹ steps in front (RFC 1982 arithmetic).
#[derive(Debug, Clone, Copy, Default)]
pub struct SequenceTracker {
    next: Option<u32>,
    seen: u64,
    skipped: u64,
    behind: u64,
}

impl SequenceTracker {
    /// Takes the next number and says what it is.
    #[inline]
    pub fn observe(&mut self, sequence: u32) -> Arrival {
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

    /// Numbers seen in all.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Numbers jumped over and, so far, not seen to come later; never negative.
    pub fn gaps(&self) -> u64 {
        self.skipped.saturating_sub(self.behind)
    }

    /// Numbers that came behind a higher one.
    pub fn behind(&self) -> u64 {
        self.behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_late_comers_across_the_wrap() {
        let mut tracker = SequenceTracker::default();
        assert_eq!(tracker.observe(u32::MAX - 1), Arrival::Ahead { skipped: 0 });
        assert_eq!(tracker.observe(u32::MAX), Arrival::Ahead { skipped: 0 });
        assert_eq!(tracker.observe(2), Arrival::Ahead { skipped: 2 });
        assert_eq!(tracker.gaps(), 2);
        assert_eq!(tracker.observe(0), Arrival::Behind);
        assert_eq!(tracker.gaps(), 1);
        assert_eq!((tracker.seen(), tracker.behind()), (4, 1));
    }
}
