//! From a counter that wraps to numbers that do not.

use std::time::Duration;

/// So far ahead of the newest a number is believed at once (RFC 3550, appendix A.1: `MAX_DROPOUT`).
const AT_ONCE: i128 = 3000;
/// So far ahead it is believed once the next numbers follow it, as there: a single forged one moves nothing.
const JUMP: i128 = 1 << 16;
/// So many of them.
const FEW: u32 = 4;
/// A longer gap than this is a counter that began anew.
const GAP: i128 = 1 << 24;
/// The same of a counter of time: than this nobody was away.
const ABSOLUTE_GAP: i128 = 1 << 31;
/// So many datagrams with numbers that follow each other, none believed in between, are believed however far they are.
const FOLLOWERS: u32 = 16;
/// For so long none was believed before.
const SILENCE: Duration = Duration::from_secs(1);
/// So many counts that follow others, until it is known by how much the counter goes up.
const STEPS: u32 = 32;

/// The numbers of a stream.
#[derive(Debug)]
pub(crate) struct Sequence {
    bits: u32,
    /// By how much the counter goes up from one number to the next.
    step: u64,
    steps: Steps,
    /// It counts time: it goes on while the instrument is away, and does not begin anew.
    is_absolute: bool,
    /// What the instrument calls number 0.
    first: Option<u64>,
    /// The highest so far: the instrument's, and ours.
    newest: Option<(u64, u64)>,
    believed: Duration,
    /// The last that was not believed, and how many followed each other up to there.
    doubted: Option<(u64, u32)>,
    /// Somebody was told that the first number is far from what comes.
    warned: bool,
    pub(crate) restarts: u64,
}

/// What is known of how a counter goes up.
#[derive(Debug, Default)]
struct Steps {
    last: Option<u64>,
    /// What divides all steps so far, and how many there were.
    divisor: u64,
    count: u32,
}

/// What a datagram's number is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Number {
    /// This one.
    At(u64),
    /// One before the first.
    Early,
    /// Far from all others.
    Stray,
}

impl Sequence {
    /// Of a counter with so many bits, up to 64, that goes up by `step` from one number to the next.
    pub(crate) fn new(bits: u32, first: Option<u64>, step: u64, is_absolute: bool) -> Self {
        let (believed, steps) = (Duration::ZERO, Steps::default());
        Self {
            bits,
            step,
            steps,
            is_absolute,
            first,
            newest: None,
            believed,
            doubted: None,
            warned: false,
            restarts: 0,
        }
    }

    /// Where it would be; nothing where it lies between two numbers. Changes nothing.
    fn place(&self, raw: u64) -> Option<i128> {
        match (self.newest, self.first) {
            (Some((newest, number)), _) => Some(i128::from(number) + self.numbers(newest, raw)?),
            (None, Some(first)) => self.numbers(first, raw),
            (None, None) => Some(0),
        }
    }

    /// How many numbers there are from one count to another.
    fn numbers(&self, from: u64, to: u64) -> Option<i128> {
        let (counts, step) = (self.distance(from, to), i128::from(self.step));
        (counts % step == 0).then_some(counts / step)
    }

    /// How far that is ahead of the newest; before the first came, of number 0.
    fn ahead(&self, place: i128) -> i128 {
        place - self.newest.map_or(0, |(_, number)| number.into())
    }

    /// From one count to another. Only the last quarter of what the counter counts is taken for the past: datagrams
    /// overtake few others, and many are lost.
    fn distance(&self, from: u64, to: u64) -> i128 {
        let mask = u64::MAX >> (64 - self.bits);
        let (ahead, counts) = (i128::from(to.wrapping_sub(from) & mask), i128::from(mask) + 1);
        if ahead < counts - counts / 4 { ahead } else { ahead - counts }
    }

    /// The number that would be believed at once, and is none of the past. Changes nothing.
    pub(crate) fn expects(&self, raw: u64, next: u64) -> Option<u64> {
        let place = self.place(raw)?;
        u64::try_from(place).ok().filter(|number| *number >= next && self.ahead(place) <= AT_ONCE)
    }

    /// Takes note of a number. `next` is the first that is still waited for: what is before it is of no use.
    pub(crate) fn came(&mut self, raw: u64, next: u64, now: Duration) -> Number {
        self.look_for_step(raw);
        if let Some(number) = self.expects(raw, next) {
            return self.believe(raw, number, now);
        }
        let row = self.follow(raw);
        let can_begin_anew = self.newest.is_some() && !self.is_absolute;
        let Some(place) = self.place(raw) else {
            let anew = can_begin_anew && self.begins_anew(row, now);
            return if anew { self.begin_anew(raw, next, now) } else { Number::Stray };
        };
        let ahead = self.ahead(place);
        let Ok(number) = u64::try_from(place) else {
            let anew = can_begin_anew && self.begins_anew(row, now);
            return if anew { self.begin_anew(raw, next, now) } else { Number::Early };
        };
        let gap = if self.is_absolute { ABSOLUTE_GAP } else { GAP };
        if (0..=gap).contains(&ahead) {
            let soon = ahead <= JUMP && number >= next && row >= FEW;
            if soon || self.begins_anew(row, now) {
                return self.believe(raw, number, now);
            }
        } else if can_begin_anew && self.begins_anew(row, now) {
            return self.begin_anew(raw, next, now);
        }
        if let (None, Some(first), false) = (self.newest, self.first, self.warned || ahead <= GAP) {
            self.warned = true;
            tracing::warn!(number = raw, first, "the instrument's number is far from `first`: it is not believed");
        }
        let set_back = self.is_absolute && ahead < -JUMP;
        if ahead > AT_ONCE || set_back { Number::Stray } else { Number::At(number) }
    }

    fn believe(&mut self, raw: u64, number: u64, now: Duration) -> Number {
        self.believed = now;
        self.doubted = None;
        if self.newest.is_none_or(|(_, newest)| number > newest) {
            self.newest = Some((raw, number));
        }
        Number::At(number)
    }

    fn begin_anew(&mut self, raw: u64, next: u64, now: Duration) -> Number {
        self.restarts += 1;
        let number = self.newest.map_or(0, |(_, newest)| newest.saturating_add(1));
        self.believe(raw, number.max(next), now)
    }

    /// How many have come in a row, none believed in between, each a little behind the one before.
    fn follow(&mut self, raw: u64) -> u32 {
        let near = i128::from(FOLLOWERS) * i128::from(self.step);
        let before = self.doubted.filter(|(last, _)| (0..=near).contains(&self.distance(*last, raw)));
        let count = before.map_or(1, |(_, count)| count.saturating_add(1));
        self.doubted = Some((raw, count));
        count
    }

    /// Finds out whether the counter goes up by more than it was thought to, once.
    fn look_for_step(&mut self, raw: u64) {
        if self.steps.count >= STEPS {
            return;
        }
        let last = self.steps.last.replace(raw);
        let Some(step) = last.and_then(|last| u64::try_from(self.distance(last, raw)).ok()).filter(|step| *step > 0)
        else {
            return;
        };
        self.steps.divisor = greatest_common_divisor(self.steps.divisor, step);
        self.steps.count += 1;
        let (found, step) = (self.steps.divisor, self.step);
        if self.steps.count == STEPS && found != step {
            tracing::warn!("the instrument's counter goes up by {found}, and not by {step}: set the device's `step`");
        }
    }

    /// By how much the counter goes up, as far as that is known by now.
    #[cfg(test)]
    fn step_found(&self) -> Option<u64> {
        (self.steps.count >= STEPS).then_some(self.steps.divisor)
    }

    /// Whether so many in a row, after such a silence, are the instrument's.
    fn begins_anew(&self, row: u32, now: Duration) -> bool {
        row >= FOLLOWERS && now.saturating_sub(self.believed) >= SILENCE
    }
}

fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Duration = Duration::from_secs(10);

    #[test]
    fn a_counter_of_four_bits_goes_on_beyond_sixteen() {
        let mut sequence = Sequence::new(4, None, 1, false);
        for number in 0..100u64 {
            assert_eq!(sequence.came((number + 9) % 16, number, NOW), Number::At(number));
        }
        assert_eq!(sequence.came((104 + 9) % 16, 100, NOW), Number::At(104), "four were left out");
        assert_eq!(sequence.came((101 + 9) % 16, 100, NOW), Number::At(101), "one of them came after all");
    }

    #[test]
    fn of_a_counter_of_four_bits_ten_may_be_lost_in_a_row_and_one_may_be_overtaken_by_four() {
        for lost in 0..=10u64 {
            let mut sequence = Sequence::new(4, None, 1, false);
            sequence.came(0, 0, NOW);
            assert_eq!(sequence.came((lost + 1) % 16, 1, NOW), Number::At(lost + 1));
        }
        let mut sequence = Sequence::new(4, None, 1, false);
        for number in 0..30 {
            sequence.came(number % 16, 0, NOW);
        }
        assert_eq!(sequence.came(25 % 16, 20, NOW), Number::At(25));
    }

    #[test]
    fn a_counter_that_goes_up_by_more_has_a_step() {
        for (bits, step) in [(64, 4), (64, 4096), (16, 4)] {
            let mut sequence = Sequence::new(bits, None, step, false);
            for number in (0..70_000u64).filter(|number| number % 10 != 3) {
                let raw = (9 + number * step) & (u64::MAX >> (64 - bits));
                assert_eq!(sequence.came(raw, number, NOW), Number::At(number));
            }
            assert_eq!(sequence.came(9 + 70_000 * step + 1, 70_000, NOW), Number::Stray, "it lies between two");
            assert_eq!(sequence.step_found(), Some(step));
        }
        // What was thought to go up by one.
        let mut sequence = Sequence::new(64, None, 1, false);
        for number in 0..40u64 {
            sequence.came(7 + 4096 * number, 0, NOW);
        }
        assert_eq!(sequence.step_found(), Some(4096));
    }

    #[test]
    fn a_counter_of_time_goes_on_however_long_it_was_away_and_never_begins_anew() {
        let mut sequence = Sequence::new(64, None, 1, true);
        (0..10).for_each(|number| assert_eq!(sequence.came(1_000_000 + number, number, NOW), Number::At(number)));
        // 40 million frames later.
        let (away, later) = (40_000_000, NOW + SILENCE);
        let came: Vec<_> = (0..20).map(|number| sequence.came(1_000_000 + away + number, 10, later)).collect();
        assert_eq!(came[14..16], [Number::Stray, Number::At(away + 15)]);
        // Somebody sets it back.
        let later = later + SILENCE;
        let came: Vec<_> = (0..40).map(|number| sequence.came(1_000_000 + number, away + 20, later)).collect();
        assert!(came.iter().all(|number| *number == Number::Stray), "{came:?}");
        assert_eq!(sequence.restarts, 0);
    }

    #[test]
    fn the_first_is_the_one_that_was_named() {
        let mut sequence = Sequence::new(48, Some(1000), 1, false);
        assert_eq!(sequence.came(998, 0, NOW), Number::Early);
        assert_eq!(sequence.came(1003, 0, NOW), Number::At(3));
    }

    #[test]
    fn a_first_datagram_far_from_the_first_number_is_not_believed() {
        let mut sequence = Sequence::new(64, Some(0), 1, false);
        let heard: Vec<_> = (0..100).map(|number| sequence.came((1 << 62) + number, 0, NOW)).collect();
        assert!(heard.iter().all(|number| *number == Number::Stray), "{heard:?}");
        assert!(sequence.warned);
        // One that is nearer is, when others follow it.
        let heard: Vec<_> = (0..20).map(|number| sequence.came(1_000_000 + number, 0, NOW)).collect();
        assert_eq!(heard[14..16], [Number::Stray, Number::At(1_000_015)]);
        assert_eq!(sequence.restarts, 0);
    }

    #[test]
    fn a_jump_is_believed_when_the_next_numbers_follow_it() {
        let mut sequence = Sequence::new(64, None, 1, false);
        sequence.came(5, 0, NOW);
        assert_eq!(sequence.came(40_000, 1, NOW), Number::Stray, "a single one");
        assert_eq!(sequence.came(6, 1, NOW), Number::At(1));
        let heard: Vec<_> = (0..4).map(|number| sequence.came(50_000 + number, 2, NOW)).collect();
        assert_eq!(heard[2..], [Number::Stray, Number::At(49_998)]);
        assert_eq!(sequence.came(50_000 + 3000, 2, NOW), Number::At(52_995), "what is near is at once");
    }

    #[test]
    fn one_forged_number_moves_nothing() {
        let mut sequence = Sequence::new(64, None, 1, false);
        sequence.came(5, 0, NOW);
        assert_eq!(sequence.came(1 << 60, 1, NOW + SILENCE), Number::Stray);
        assert_eq!(sequence.came(6, 1, NOW + SILENCE), Number::At(1));
    }

    #[test]
    fn an_instrument_that_begins_anew_is_followed_after_a_while() {
        let mut sequence = Sequence::new(64, None, 1, false);
        for number in 0..5000 {
            sequence.came(number, number, NOW);
        }
        let later = NOW + SILENCE;
        let heard: Vec<_> = (0..20).map(|raw| sequence.came(raw, 5000, later)).collect();
        assert_eq!(heard[14], Number::At(14), "it is taken for late");
        assert_eq!(heard[15..17], [Number::At(5000), Number::At(5001)]);
        assert_eq!(sequence.restarts, 1);
        // A real gap that long is one.
        let heard: Vec<_> = (0..17).map(|raw| sequence.came(100_000 + raw, 5005, later + SILENCE)).collect();
        assert_eq!(heard[14], Number::Stray);
        assert!(matches!(heard[16], Number::At(number) if number > 100_000));
        assert_eq!(sequence.restarts, 1);
    }

    proptest! {
        /// Whatever comes, nothing overflows; and what is believed is at or behind what is waited for, and no further
        /// ahead than a gap can be.
        #[test]
        fn any_numbers(raws in proptest::collection::vec(any::<u64>(), 0..50), bits in 1u32..=64, first: Option<u64>, step in 1u64..9, is_absolute: bool) {
            let mut sequence = Sequence::new(bits, first, step, is_absolute);
            let gap = if is_absolute { ABSOLUTE_GAP } else { GAP };
            for (at, raw) in raws.into_iter().enumerate() {
                let (next, before) = (at as u64, sequence.newest.map_or(0, |(_, number)| number));
                let expected = sequence.expects(raw, next);
                let number = sequence.came(raw, next, NOW * at as u32);
                if let Some(expected) = expected {
                    prop_assert!(expected >= next && number == Number::At(expected));
                }
                if let Number::At(number) = number && number >= next {
                    prop_assert!(number <= before.max(next) + gap as u64 + 1);
                    prop_assert!(sequence.newest.is_some_and(|(_, newest)| newest >= number));
                }
            }
        }
    }
}
