//! A constant shift between the numbers that two sources give the same triggers, found by their fragments' times.
//!
//! Triggers are never spaced quite evenly. Where two sources saw the same triggers, the time between an event and the
//! next is the same for both, whatever their clocks are set to and however they drift. Where one of them missed some
//! triggers at the start, the times agree only when its events are moved by that number.

use crate::{EventId, FragmentHeader, Status, TaiNanos};

/// Number of events in a window.
pub const SHIFT_WINDOW: u64 = 128;
/// Largest shift that is searched, in triggers, in either direction.
pub const MOST_SHIFT: i32 = 16;
/// Minimum number of intervals that both sources must have for a comparison.
const FEWEST_INTERVALS: usize = 64;
/// Length of the longest pattern of intervals that is searched, in triggers.
const LONGEST_PATTERN: i32 = 40;
/// Number of the last intervals that are compared one by one. `MOST_OF_LAST` of them have to agree, not all, since some
/// times are wrong.
const LAST_INTERVAL_COUNT: usize = 16;
const MOST_OF_LAST: usize = 12;
/// Factor by which the right shift must agree better than any other.
const AGREEMENT_FACTOR: u64 = 6;
/// Statuses with which a fragment's time is not that of its trigger. (The time of an uncertain fragment is: the error
/// of its number is found by it.)
const NOT_OF_THE_TRIGGER: Status =
    Status::MISSING.union(Status::SIMULATED).union(Status::REPLAYED).union(Status::ARRIVAL_TIME);

/// Returns the trigger time of a fragment's event; `None` if its device did not give that time.
pub fn trigger_time(header: &FragmentHeader) -> Option<TaiNanos> {
    (!header.status.intersects(NOT_OF_THE_TRIGGER)).then_some(header.timestamp)
}

/// Trigger times of [`SHIFT_WINDOW`] consecutive events by one source's fragments.
#[derive(Debug, Clone)]
pub struct EventTimes {
    first: u64,
    /// Time of each event in nanoseconds; 0 where there is none.
    times: Box<[u64; WINDOW_EVENTS]>,
}

#[expect(clippy::cast_possible_truncation, reason = "it is 128")]
const WINDOW_EVENTS: usize = SHIFT_WINDOW as usize;

impl EventTimes {
    /// Returns a window that begins at event `first`, without times.
    pub fn new(first: u64) -> Self {
        Self { first, times: Box::new([0; WINDOW_EVENTS]) }
    }

    /// Returns the number of the first event.
    pub fn first_event(&self) -> u64 {
        self.first
    }

    /// Returns the number one past the last event.
    pub fn end_event(&self) -> u64 {
        self.first.saturating_add(SHIFT_WINDOW)
    }

    /// Returns whether nearly all of the last intervals that both sources have agree, with the events of this source
    /// moved by `shift`. [`triggers_behind`](Self::triggers_behind), in contrast, is decided by most of the window's intervals.
    pub fn last_intervals_agree(&self, reference: &Self, shift: i32) -> bool {
        let (reference, source) = (&reference.times[..], &self.times[..]);
        let Some(spread) = interval_spread(reference) else { return false };
        let (found, count) = collect_window(interval_differences(reference, source, shift));
        let last = &found[count.saturating_sub(LAST_INTERVAL_COUNT)..count];
        last.len() == LAST_INTERVAL_COUNT
            && last.iter().filter(|difference| difference.unsigned_abs() <= spread / AGREEMENT_FACTOR).count()
                >= MOST_OF_LAST
    }

    /// Returns whether the intervals between these events may repeat, so that a shift by such a pattern cannot be
    /// distinguished from none.
    pub fn may_repeat_pattern(&self) -> bool {
        let times = &self.times[..];
        let Some(spread) = interval_spread(times) else { return true };
        (1..=LONGEST_PATTERN)
            .any(|shift| median_disagreement(times, times, shift).is_none_or(|found| found <= spread / 2))
    }

    /// Removes all times, and moves the window to begin at another event.
    pub fn restart_at_event(&mut self, first: u64) {
        self.first = first;
        self.times.fill(0);
    }

    /// Sets the time of an event's trigger, if the event is in the window.
    pub fn record_time(&mut self, event: EventId, time: TaiNanos) {
        let place = usize::try_from(event.0.wrapping_sub(self.first));
        if let Some(known) = place.ok().and_then(|place| self.times.get_mut(place)) {
            *known = time.0;
        }
    }

    /// Copies the times of `other`, which begins at the same event, where this window has none.
    pub fn fill_missing_from(&mut self, other: &Self) {
        for (ours, theirs) in self.times.iter_mut().zip(&*other.times).filter(|(ours, _)| **ours == 0) {
            *ours = *theirs;
        }
    }

    /// Returns the index of the best reference for comparisons: the first of those with the most intervals between
    /// consecutive events. `None` if none has enough of them.
    pub fn best_reference<'a>(all: impl IntoIterator<Item = &'a Self>) -> Option<usize> {
        let mut best = None;
        for (at, times) in all.into_iter().enumerate() {
            let count = consecutive_intervals(&times.times[..]).count();
            if count >= FEWEST_INTERVALS && best.is_none_or(|(_, most)| count > most) {
                best = Some((at, count));
            }
        }
        best.map(|(at, _)| at)
    }

    /// Returns the number of triggers by which this source is behind `reference`: its event *n* is the trigger that
    /// `reference` calls *n* + shift. `None` where the times are inconclusive: too few of them, triggers that are
    /// spaced too evenly, or times that do not agree at any shift.
    pub fn triggers_behind(&self, reference: &Self) -> Option<i32> {
        let (reference, source) = (&reference.times[..], &self.times[..]);
        let resolution = clock_resolution(reference)?.max(clock_resolution(source)?);
        // Aligned, as nearly all are: another shift could not agree as well, since the intervals differ by more.
        let spread = interval_spread(reference)?;
        let aligned = median_disagreement(reference, source, 0)?;
        if spread >= aligned.max(resolution).saturating_mul(AGREEMENT_FACTOR) {
            return Some(0);
        }
        let mut best = (aligned, 0);
        let mut second = u64::MAX;
        for shift in (-MOST_SHIFT..=MOST_SHIFT).filter(|shift| *shift != 0) {
            let Some(found) = median_disagreement(reference, source, shift) else { continue };
            if found < best.0 {
                second = best.0;
                best = (found, shift);
            } else {
                second = second.min(found);
            }
        }
        let needed = best.0.max(resolution).saturating_mul(AGREEMENT_FACTOR);
        (second != u64::MAX && second >= needed && spread >= needed).then_some(best.1)
    }
}

/// Returns the time from one event to the next, for each pair of consecutive events that have times.
fn consecutive_intervals(times: &[u64]) -> impl Iterator<Item = i64> {
    times.windows(2).filter(|pair| pair[0] != 0 && pair[1] != 0).map(interval_nanos)
}

fn interval_nanos(pair: &[u64]) -> i64 {
    pair[1].wrapping_sub(pair[0]).cast_signed()
}

/// Returns the variation of a source's intervals: the median distance from their median. `None` where there are too
/// few.
fn interval_spread(times: &[u64]) -> Option<u64> {
    let (mut found, count) = collect_window(consecutive_intervals(times));
    let found = &mut found[..count];
    let middle = median_value(found)?;
    found.iter_mut().for_each(|interval| *interval = saturating_magnitude(interval.wrapping_sub(middle)));
    median_value(found).map(i64::unsigned_abs)
}

/// Returns the smallest difference between two unequal intervals, below which the clock does not distinguish times.
/// `None` where there are too few intervals, or all are equal.
fn clock_resolution(times: &[u64]) -> Option<u64> {
    let (mut found, count) = collect_window(consecutive_intervals(times));
    let found = &mut found[..count];
    found.sort_unstable();
    found.windows(2).map(|pair| pair[1].abs_diff(pair[0])).filter(|difference| *difference > 0).min()
}

/// Returns the median difference between the intervals of two sources, with those of `source` moved. `None` where there
/// are too few in common.
fn median_disagreement(reference: &[u64], source: &[u64], shift: i32) -> Option<u64> {
    let (mut found, count) = collect_window(interval_differences(reference, source, shift));
    median_value(&mut found[..count]).map(i64::unsigned_abs)
}

/// Returns the differences between the intervals that both sources have, with those of `source` moved.
fn interval_differences<'a>(reference: &'a [u64], source: &'a [u64], shift: i32) -> impl Iterator<Item = i64> + 'a {
    let skipped = shift.unsigned_abs() as usize;
    let (reference, source) = match shift {
        0.. => (&reference[skipped..], source),
        _ => (reference, &source[skipped..]),
    };
    let pairs = reference.windows(2).zip(source.windows(2));
    let common = pairs.filter(|(ours, theirs)| ours.iter().chain(*theirs).all(|time| *time != 0));
    common.map(|(ours, theirs)| saturating_magnitude(interval_nanos(ours).wrapping_sub(interval_nanos(theirs))))
}

fn saturating_magnitude(value: i64) -> i64 {
    value.saturating_abs()
}

fn collect_window(values: impl Iterator<Item = i64>) -> ([i64; WINDOW_EVENTS], usize) {
    let mut found = [0; WINDOW_EVENTS];
    let mut count = 0;
    for (place, value) in found.iter_mut().zip(values) {
        *place = value;
        count += 1;
    }
    (found, count)
}

fn median_value(values: &mut [i64]) -> Option<i64> {
    (values.len() >= FEWEST_INTERVALS).then(|| *values.select_nth_unstable(values.len() / 2).1)
}

/// A source whose event numbers are shifted relative to another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shift {
    /// Index of the source.
    pub source: usize,
    /// Number of triggers by which the source is behind `other`; negative where it is ahead. Never 0.
    pub behind: i32,
    /// Index of the first of the sources whose numbers most sources have.
    pub other: usize,
}

impl Shift {
    /// Returns the sources that are shifted relative to the majority, given the shift of each relative to the same
    /// reference (`None` where it is not known). Where several shifts are equally frequent, that of the first source is
    /// the usual one.
    pub fn against_majority(shifts: &[Option<i32>]) -> Vec<Self> {
        let mut usual: Option<(usize, i32)> = None;
        for (source, shift) in shifts.iter().enumerate() {
            if let Some(shift) = *shift
                && usual.is_none_or(|(_, usual)| shift_frequency(shifts, shift) > shift_frequency(shifts, usual))
            {
                usual = Some((source, shift));
            }
        }
        let Some((other, usual)) = usual else { return Vec::new() };
        let known = shifts.iter().enumerate().filter_map(|(source, shift)| Some((source, (*shift)? - usual)));
        known.filter(|(_, behind)| *behind != 0).map(|(source, behind)| Self { source, behind, other }).collect()
    }

    /// Returns a sentence that describes the shift, with the sources' names and an event for which it was found.
    pub fn describe_shift(self, source: &str, other: &str, event: u64) -> String {
        let Self { behind, .. } = self;
        let count = behind.unsigned_abs();
        let triggers = if count == 1 { "trigger" } else { "triggers" };
        let side = if behind > 0 { "behind" } else { "ahead of" };
        // The event of the source is chosen such that the other source has a number for it, too.
        let (its, others) = if behind > 0 {
            (event, event.saturating_add(count.into()))
        } else {
            (event.saturating_add(count.into()), event)
        };
        format!(
            "source {source} is {count} {triggers} {side} source {other}: by their times, its event {its} is event {others} of the other"
        )
    }
}

/// Returns the number of sources with this shift.
fn shift_frequency(shifts: &[Option<i32>], wanted: i32) -> usize {
    shifts.iter().filter(|shift| **shift == Some(wanted)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EventId, TaiNanos};
    use proptest::prelude::*;

    const MILLISECOND: u64 = 1_000_000;

    /// Triggers whose intervals are `period` and up to `jitter` nanoseconds more.
    fn triggers(seed: u64, count: u64, period: u64, jitter: u64) -> Vec<u64> {
        let mut at = 1_700_000_000_000_000_000;
        let intervals = (0..count).map(|trigger| period + crate::mix_bits(seed.wrapping_add(trigger)) % (jitter + 1));
        intervals
            .map(|interval| {
                at += interval;
                at
            })
            .collect()
    }

    /// Returns the reading of a clock that is off by `offset` and by `ppm`, and counts in steps of `tick`.
    fn clock(at: u64, offset: u64, ppm: i64, tick: u64) -> u64 {
        let drift = (at.cast_signed() / 1_000_000 * ppm).cast_unsigned();
        (at + offset).wrapping_add(drift) / tick * tick
    }

    fn note(times: &mut EventTimes, event: u64, time: u64) {
        times.record_time(EventId(event), TaiNanos(time));
    }

    #[test]
    fn a_source_that_missed_three_triggers_is_three_behind() {
        let triggers = triggers(1, 200, 10 * MILLISECOND, 10 * MILLISECOND);
        let mut window = [0; 3].map(EventTimes::new);
        for event in 0..SHIFT_WINDOW {
            let at = |trigger: u64| triggers[trigger as usize];
            note(&mut window[0], event, at(event));
            note(&mut window[1], event, clock(at(event), 5_000, 50, 1000));
            note(&mut window[2], event, clock(at(event + 3), 777_777, -30, 1000));
        }
        assert_eq!(EventTimes::best_reference(&window), Some(0));
        let shifts = [0, 1, 2].map(|source| window[source].triggers_behind(&window[0]));
        assert_eq!(shifts, [Some(0), Some(0), Some(3)]);
        let found = Shift::against_majority(&shifts);
        assert_eq!(found, [Shift { source: 2, behind: 3, other: 0 }]);
        assert_eq!(
            found[0].describe_shift("3.0 (c)", "1.0 (a)", 0),
            "source 3.0 (c) is 3 triggers behind source 1.0 (a): by their times, its event 0 is event 3 of the other"
        );
    }

    #[test]
    fn most_sources_decide_which_one_is_odd() {
        let shift = |source, behind, other| Shift { source, behind, other };
        assert_eq!(Shift::against_majority(&[Some(0), Some(-2), Some(-2)]), [shift(0, 2, 1)]);
        assert_eq!(Shift::against_majority(&[Some(0), Some(1)]), [shift(1, 1, 0)]);
        assert_eq!(Shift::against_majority(&[None, Some(1), None]), []);
        assert_eq!(Shift::against_majority(&[]), []);
        assert_eq!(
            shift(0, -1, 1).describe_shift("a", "b", 7),
            "source a is 1 trigger ahead of source b: by their times, its event 8 is event 7 of the other"
        );
    }

    #[test]
    fn a_time_that_is_not_the_triggers_is_none() {
        let time = |status| trigger_time(&FragmentHeader { timestamp: TaiNanos(7), status, ..Default::default() });
        for status in [Status::SIMULATED, Status::REPLAYED, Status::MISSING, Status::ARRIVAL_TIME] {
            assert_eq!(time(status), None, "{status:?}");
        }
        assert_eq!([Status::empty(), Status::UNCERTAIN].map(time), [Some(TaiNanos(7)); 2]);
    }

    #[test]
    fn a_source_that_misses_a_trigger_late_in_the_window_does_not_end_like_another() {
        let triggers = triggers(5, 200, MILLISECOND, MILLISECOND);
        for (missed, ends_like) in [(40, false), (80, false), (118, false), (u64::MAX, true)] {
            let mut window = [0; 2].map(EventTimes::new);
            for event in 0..SHIFT_WINDOW {
                note(&mut window[0], event, triggers[event as usize]);
                let trigger = event + u64::from(event >= missed);
                // One stamp in fifty is wild.
                let wild = if event % 50 == 49 { 12_345_678_901 } else { 0 };
                note(&mut window[1], event, clock(triggers[trigger as usize], 777, 40, 100) + wild);
            }
            assert_eq!(window[1].last_intervals_agree(&window[0], 0), ends_like, "{missed}");
        }
    }

    #[test]
    fn triggers_that_repeat_are_told_from_those_that_do_not() {
        let may_repeat = |intervals: &dyn Fn(u64) -> u64| {
            let mut times = EventTimes::new(0);
            (0..SHIFT_WINDOW).for_each(|event| note(&mut times, event, 1 + (0..event).map(intervals).sum::<u64>()));
            times.may_repeat_pattern()
        };
        let irregular = |event: u64| MILLISECOND + crate::mix_bits(event) % MILLISECOND;
        assert!(!may_repeat(&irregular));
        assert!(may_repeat(&|_| MILLISECOND), "evenly spaced");
        for pattern in [2, 3, 17, 40] {
            assert!(may_repeat(&|event| irregular(event % pattern)), "{pattern}");
        }
        assert!(EventTimes::new(0).may_repeat_pattern());
    }

    #[test]
    fn other_events_are_not_in_the_window() {
        let mut times = EventTimes::new(1000);
        for event in [0, 999, 1000 + SHIFT_WINDOW, u64::MAX] {
            note(&mut times, event, 1);
        }
        assert_eq!((times.times.iter().sum::<u64>(), times.end_event()), (0, 1000 + SHIFT_WINDOW));
        times.restart_at_event(u64::MAX);
        note(&mut times, u64::MAX, 1);
        assert_eq!((times.times[0], times.end_event()), (1, u64::MAX));
    }

    proptest! {
        /// For triggers of any rate and irregularity, clocks of any offset, drift and resolution, and missing
        /// fragments, the shift found is the right one, or none.
        #[test]
        fn no_other_shift_is_found(
            seed: u64, period in 1_000..1_000_000_000_u64, jitter in 0..200_u64, behind in -20..=20_i64,
            offset in 0..10_000_000_000_u64, ppm in -200..=200_i64, tick in 0..7_u32, noise in 0..100_u64,
            lost in 0..40_u64, first in 0..u64::MAX - 1000,
        ) {
            let triggers = triggers(seed, 200, period, period * jitter / 100);
            let random = |salt: u64, event: u64| crate::mix_bits(seed ^ salt.wrapping_mul(0x9E37) ^ event << 8);
            let mut window = [first; 2].map(EventTimes::new);
            for event in 0..SHIFT_WINDOW {
                let noise = |salt| random(salt, event) % (period * noise / 100 + 1);
                let at = |trigger: i64| triggers[trigger as usize];
                if random(3, event) % 100 >= lost {
                    note(&mut window[0], first + event, clock(at(event as i64 + 30), 0, 0, 1000) + noise(1));
                }
                if random(4, event) % 100 >= lost {
                    let at = at(event as i64 + 30 + behind);
                    note(&mut window[1], first + event, clock(at, offset, ppm, 10_u64.pow(tick)) + noise(2));
                }
            }
            let found = window[1].triggers_behind(&window[0]);
            prop_assert!(found.is_none() || found == i32::try_from(behind).ok(), "{found:?}, not {behind}");
        }

        /// For irregular triggers and clocks as they are in a laboratory, the shift is found.
        #[test]
        fn the_shift_is_found(
            seed: u64, period in 100_000..100_000_000_u64, behind in -16..=16_i32,
            offset in 0..10_000_000_000_u64, ppm in -100..=100_i64,
        ) {
            let triggers = triggers(seed, 200, period, period);
            let mut window = [0; 2].map(EventTimes::new);
            for event in 0..SHIFT_WINDOW {
                let at = |trigger: i64| triggers[trigger as usize];
                note(&mut window[0], event, at(event as i64 + 20));
                note(&mut window[1], event, clock(at(event as i64 + 20 + i64::from(behind)), offset, ppm, 1000));
            }
            prop_assert_eq!(window[1].triggers_behind(&window[0]), Some(behind));
        }

        /// Independent triggers of two unrelated sources.
        #[test]
        fn strangers_have_no_shift(seed: u64, period in 1_000..100_000_000_u64, jitter in 0..500_u64) {
            let mut window = [0; 2].map(EventTimes::new);
            for source in 0..2 {
                let triggers = triggers(seed.wrapping_mul(3 + source), 200, period, period * jitter / 100);
                for event in 0..SHIFT_WINDOW {
                    note(&mut window[source as usize], event, clock(triggers[event as usize], 0, 0, 1000));
                }
            }
            prop_assert_eq!(window[1].triggers_behind(&window[0]), None);
        }
    }
}
