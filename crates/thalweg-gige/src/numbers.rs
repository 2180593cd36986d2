//! From the numbers of blocks, which may wrap, to numbers that do not.
//!
//! Blocks of 16 bits are counted from 1 and go from 65535 to 1: 0 is no block (GigE Vision 2.x, section 11.2). Some
//! cameras count 0 too. The first 0 tells.

/// Follows the numbers of blocks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Numbers {
    wide: bool,
    zero: bool,
    last: Option<(u64, u64)>,
}

impl Numbers {
    /// From the first block on: this one has that number.
    pub(crate) fn begin(&mut self, block: u64, wide: bool, number: u64) {
        *self = Self { wide, zero: self.zero && !wide || block == 0, last: Some((block, number)) };
    }

    /// Whether it has begun, with numbers as wide.
    pub(crate) fn has_begun(&self, wide: bool) -> bool {
        self.last.is_some() && self.wide == wide
    }

    /// The number of a block by its distance from the furthest so far. Nothing before the beginning, or below 0.
    pub(crate) fn of(&mut self, block: u64) -> Option<u64> {
        self.zero |= block == 0 && !self.wide;
        let (last, number) = self.last?;
        number.checked_add_signed(self.distance(last, block))
    }

    /// The block of a number near the furthest so far.
    pub(crate) fn block(&self, number: u64) -> Option<u64> {
        let (last, furthest) = self.last?;
        let distance = i128::from(number) - i128::from(furthest);
        if self.wide {
            return u64::try_from(i128::from(last) + distance).ok();
        }
        let (period, first) = self.cycle();
        let place = (i128::from(last) - i128::from(first) + distance).rem_euclid(period.into());
        u64::try_from(place).ok().map(|place| place + first)
    }

    /// A block was believed: numbers are near it from now on, where it is further than those before.
    pub(crate) fn went_on(&mut self, block: u64, number: u64) {
        if self.last.is_some_and(|(_, furthest)| number > furthest) {
            self.last = Some((block, number));
        }
    }

    /// How many there are before one comes again, and the first.
    fn cycle(&self) -> (u64, u64) {
        if self.zero { (1 << 16, 0) } else { ((1 << 16) - 1, 1) }
    }

    fn distance(&self, from: u64, to: u64) -> i64 {
        if self.wide {
            return to.wrapping_sub(from).cast_signed();
        }
        let (period, _) = self.cycle();
        let (period, ahead) = (period.cast_signed(), to.cast_signed() - from.cast_signed());
        let ahead = ahead.rem_euclid(period);
        if ahead > period / 2 { ahead - period } else { ahead }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn begun(block: u64, wide: bool) -> Numbers {
        let mut numbers = Numbers::default();
        numbers.begin(block, wide, 0);
        numbers
    }

    #[test]
    fn narrow_numbers_wrap_with_0_or_without() {
        let mut numbers = begun(65534, false);
        assert_eq!([65534, 65535, 1, 2].map(|block| numbers.of(block)), [Some(0), Some(1), Some(2), Some(3)]);
        assert_eq!(numbers.block(2), Some(1));
        let mut numbers = begun(65534, false);
        assert_eq!([65535, 0, 1].map(|block| numbers.of(block)), [Some(1), Some(2), Some(3)]);
        assert_eq!((numbers.block(2), numbers.block(3)), (Some(0), Some(1)));
        assert_eq!(begun(1, false).of(65535), None, "before the first");
    }

    #[test]
    fn wide_numbers_go_on() {
        let mut numbers = begun(65535, true);
        assert_eq!((numbers.of(65536), numbers.of(65538), numbers.of(65534)), (Some(1), Some(3), None));
        let mut numbers = begun(u64::MAX, true);
        assert_eq!(numbers.of(0), Some(1));
    }

    proptest! {
        #[test]
        fn a_number_s_block_has_that_number(first in 1u64..65536, steps in proptest::collection::vec(1u64..30_000, 1..50)) {
            let mut numbers = begun(first, false);
            let mut number = 0;
            for step in steps {
                number += step;
                let block = numbers.block(number).unwrap();
                prop_assert!((1..65536).contains(&block));
                prop_assert_eq!(numbers.of(block), Some(number));
                numbers.went_on(block, number);
            }
        }

        #[test]
        fn any_blocks_have_numbers_or_none(wide: bool, first: u64, blocks: Vec<u64>) {
            let mut numbers = begun(if wide { first } else { first % 65536 }, wide);
            for block in blocks {
                let block = if wide { block } else { block % 65536 };
                if let Some(number) = numbers.of(block) {
                    numbers.went_on(block, number);
                    let _ = numbers.block(number);
                }
            }
        }
    }
}
