//! Numbers of a device's frames, from the device's counter.
//!
//! A counter has a limited number of bits and wraps, goes up by a step, and begins anew where the device does. Frames
//! are lost, overtake each other and come twice, and where anyone can send, some are forged. So a count is believed at
//! once if it is near those before it; further ahead, when the next counts follow it; and if it cannot be reached in
//! the time that has passed, the counter is taken to have begun anew.
//!
//! Where the numbers that follow are a guess, because the counter began anew or the device was silent for longer than
//! the counter counts, [`FrameCounter::is_certain`] returns false.

use std::time::Duration;
use thalweg_wire::TaiNanos;

/// Maximum by which one frame of a device is ahead of another, in frames, unless the device began anew.
const LARGEST_GAP: i128 = 1 << 24;
/// Maximum by which one frame is ahead of another for a counter of time, in frames.
const LARGEST_GAP_IN_TIME: i128 = 1 << 31;
/// Maximum by which a count is ahead and is still believed once the next few follow it (RFC 3550, appendix A.1).
const MAX_JUMP_FRAMES: i128 = 1 << 16;
/// Maximum by which a frame is ahead that is accepted at any pace of the device.
const MAX_NEAR_FRAMES: i128 = 64;
/// Number of frames, at a device's pace, from which on those after a silence may have waited in it.
const MIN_WAITED_FRAMES: f64 = 16.0;
/// Time over which the rate of a device is measured before it is known.
const PACE_WINDOW: Duration = Duration::from_secs(1);
/// Number of frames over which the rate is measured by the device's own clock.
const DEVICE_WINDOW: u64 = 16;
/// Number of windows that are remembered: no frame is delayed for longer on its way.
const WINDOW_COUNT: usize = 8;
/// Maximum number of frames per second of a device whose pace is not known yet.
const MAX_FRAMES_PER_SECOND: f64 = 1e6;
/// Factor by which a device may be faster than it ever was.
const MAX_SPEEDUP_FACTOR: f64 = 1.1;
/// Minimum silence of a device that begins to count anew.
const MIN_RESTART_SILENCE: Duration = Duration::from_millis(100);
/// Maximum by which the first count after a pause is ahead of the last one before it.
const PAUSE_STEP: u64 = 1;
/// Number of frames received since a drop, after which the dropped frames cannot have preceded the next one.
const DROP_MEMORY: u32 = 128;
/// Number of dropped frames that may be another sender's, or duplicates, where none is missing.
const MAX_STRAY_FRAMES: u64 = 16;
/// Length of a counter's round, in frames, up to which it may well have wrapped in a silence.
const SMALL_ROUND_FRAMES: i128 = 1 << 12;
/// Number of counts that follow others, until the step of the counter is known.
const MIN_STEP_COUNTS: u32 = 32;

/// Conditions under which a count that is not near the others is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trust {
    /// Maximum by which a count is ahead of the newest and is believed at once.
    pub at_once: u32,
    /// Number of counts that must follow each other, none believed in between, for one a little further ahead to be
    /// believed.
    pub few: u32,
    /// Number of counts that must follow each other for any other count to be believed.
    pub followers: u32,
    /// Time for which no count was believed, also needed for any other count.
    pub silence: Duration,
    /// Maximum by which a late count is behind the newest. A late count gives no information on the counter's position.
    pub late: u32,
    /// True if only the counts show when the device begins to count anew.
    pub restarts_unseen: bool,
}

impl Trust {
    /// Rules for counts that anyone on the network can send: a single forged one has no effect.
    pub const DATAGRAMS: Self =
        Self { at_once: 3000, few: 4, followers: 16, silence: Duration::from_secs(1), late: 0, restarts_unseen: true };
    /// Rules for the counts of a camera whose address and port are known.
    pub const CAMERA: Self = Self {
        at_once: 64,
        few: 3,
        followers: 3,
        silence: Duration::from_millis(100),
        late: 64,
        restarts_unseen: false,
    };
    /// Rules for the counts of a device of this machine.
    pub const DRIVER: Self = Self {
        at_once: LARGEST_GAP as u32,
        few: 1,
        followers: 1,
        silence: Duration::ZERO,
        late: 0,
        restarts_unseen: false,
    };
}

/// Properties of a device's counter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CounterRules {
    /// Bits of the counter, 1 to 64.
    pub bits: u32,
    /// Lowest count, the one that follows the highest.
    pub lowest: u64,
    /// Increment from one frame to the next.
    pub step: u64,
    /// True if the counter counts time: it goes on while the device is away, and does not begin anew.
    pub is_absolute: bool,
    /// Count of frame 0; without one, frame 0 is the frame that comes first.
    pub first: Option<u64>,
    /// Frames per second, if the device keeps to a clock.
    pub rate: Option<f64>,
    /// Conditions under which a count is believed.
    pub trust: Trust,
}

impl CounterRules {
    /// Creates the rules of a counter with `bits` bits that goes up by one.
    pub const fn new(bits: u32, trust: Trust) -> Self {
        Self { bits, lowest: 0, step: 1, is_absolute: false, first: None, rate: None, trust }
    }
}

/// Converter from a device's counts to the numbers of its frames.
#[derive(Debug, Clone)]
pub struct FrameCounter {
    rules: CounterRules,
    /// Count and number of the highest frame so far.
    newest: Option<(u64, u64)>,
    /// Time at which a count was last believed.
    believed: Duration,
    pace: Pace,
    /// Times by the device's clock at which the newest frame and the frame being examined were taken.
    taken: (Option<TaiNanos>, Option<TaiNanos>),
    doubted: Option<Doubted>,
    steps: Steps,
    /// Number of frames that were dropped on the way about when the newest came, and number of frames since.
    dropped: u64,
    went_on: u32,
    guess: Option<Guess>,
    warned: bool,
    restarts: u64,
}

/// Counts that follow each other, none believed in between.
#[derive(Debug, Clone, Copy)]
struct Doubted {
    last: u64,
    /// Number of counts, and number of different ones.
    row: u32,
    different: u32,
}

/// Range of numbers that are a guess.
#[derive(Debug, Clone, Copy)]
struct Guess {
    /// First number that is a guess.
    from: u64,
    /// Newest number when a doubt last came up.
    doubted_at: u64,
    /// First number from which on they were found to be right.
    right_from: Option<u64>,
}

/// Speed of a device.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    /// Times of the last measurements with the frame's number then: the newest last. Frames that waited at a port come
    /// late and all at once, so one measurement alone does not show the device's position.
    looks: [Option<(Duration, u64)>; WINDOW_COUNT],
    /// Frames per second: the most in one window.
    fastest: Option<f64>,
    /// Frames per second that the device can have had at most, as long as the frame that ended each window may have
    /// waited; and whether one window ended with a frame that did not wait.
    upper_bound: f64,
    is_measured: bool,
    /// Time of the last frame, and the longest time between two frames of this window.
    last: Duration,
    longest_silence: Duration,
    /// Frames per second by the device's clock, over some frames; and the frames since the last measurement, with their
    /// nanoseconds.
    by_device: Option<f64>,
    since: (u64, u64),
}

/// Knowledge of a counter's step.
#[derive(Debug, Clone, Copy, Default)]
struct Steps {
    last: Option<u64>,
    /// Greatest common divisor of all steps so far, and the number of steps.
    divisor: u64,
    count: u32,
}

/// Number of a frame, as far as its count determines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameNumber {
    /// The frame has this number.
    At(u64),
    /// The frame is before the first.
    Early,
    /// The frame's count is far from all others.
    Stray,
}

impl FrameCounter {
    /// Creates a counter before the first frame.
    pub fn new(rules: CounterRules) -> Self {
        Self {
            rules,
            newest: None,
            believed: Duration::ZERO,
            pace: Pace::default(),
            taken: (None, None),
            doubted: None,
            steps: Steps::default(),
            dropped: 0,
            went_on: 0,
            guess: None,
            warned: false,
            restarts: 0,
        }
    }

    /// Returns whether a frame's number is more than a guess.
    pub fn is_certain(&self, number: u64) -> bool {
        self.guess.is_none_or(|guess| number < guess.from || guess.right_from.is_some_and(|right| number >= right))
    }

    /// Reports that the numbers from `first` on were compared with those of other devices, and are right: those that
    /// follow are no guess, unless a doubt has come up since `first` was the newest.
    pub fn confirm_numbers(&mut self, first: u64) {
        if let Some(guess) = self.guess.as_mut().filter(|guess| first > guess.doubted_at) {
            guess.right_from = Some(first);
        }
    }

    /// Sets the number of bits with which the device counts from now on, and the lowest count.
    pub fn set_counter_width(&mut self, bits: u32, lowest: u64) {
        let lowest = if bits == self.rules.bits { lowest.min(self.rules.lowest) } else { lowest };
        (self.rules.bits, self.rules.lowest) = (bits, lowest);
    }

    /// Sets the device's frames per second from now on, if it keeps to a clock.
    pub fn set_frame_rate(&mut self, rate: Option<f64>) {
        self.rules.rate = rate;
    }

    /// Returns whether the counter may wrap unnoticed while frames are [`dropped`](Self::dropped) within a second or
    /// so.
    pub fn is_narrow_counter(&self) -> bool {
        self.rules.bits <= 16 && !self.rules.is_absolute
    }

    /// Records frames that were dropped on the way, before those that come next or among those since number `from`.
    /// Where the counter may have wrapped meanwhile, numbers from `from` on are a guess.
    pub fn record_dropped(&mut self, frames: u64, from: u64) {
        if frames == 0 || self.rules.is_absolute {
            return;
        }
        if std::mem::take(&mut self.went_on) > 0 {
            self.dropped = 0;
        }
        self.dropped = self.dropped.saturating_add(frames);
        // As many again may have been lost unnoticed.
        if i128::from(self.dropped) >= self.frames_per_round() / 2 {
            if self.is_certain(from) {
                tracing::warn!(
                    from,
                    dropped = self.dropped,
                    "about one full cycle of the device's counter was dropped: event numbers are uncertain"
                );
            }
            self.doubt_from(from);
        }
    }

    /// Returns the number of times that the counter began anew.
    pub fn restart_count(&self) -> u64 {
        self.restarts
    }

    /// Returns whether a count has come.
    pub fn has_begun(&self) -> bool {
        self.newest.is_some()
    }

    /// Returns the count of a number near the newest; `None` if no frame has come.
    pub fn count_of_number(&self, number: u64) -> Option<u64> {
        let (count, newest) = self.newest?;
        let steps = (i128::from(number) - i128::from(newest)) * i128::from(self.rules.step);
        let place = i128::from(count) - i128::from(self.rules.lowest) + steps;
        u64::try_from(place.rem_euclid(self.counts_per_round())).ok().map(|place| place + self.rules.lowest)
    }

    /// Sets the number of the frame with this count, whatever came before, for a device that has returned.
    /// `is_certain`: the number is more than a guess.
    pub fn begin_at_count(&mut self, count: u64, number: u64, is_certain: bool, now: Duration) {
        if !is_certain {
            self.doubt_from(number);
        }
        self.rules.lowest = self.rules.lowest.min(count);
        self.newest = None;
        self.accept_number(count, number, now);
    }

    /// Begins anew with this count. Returns the frame's number: the one after the newest, or `next`.
    pub fn restart_at_count(&mut self, count: u64, next: u64, now: Duration) -> u64 {
        self.restarts += 1;
        let number = self.newest.map_or(0, |(_, newest)| newest.saturating_add(1)).max(next);
        // A frame counted anew and overtaken may take the number of one that is still missing.
        self.doubt_from(next.min(number));
        self.begin_at_count(count, number, false, now);
        number
    }

    /// Returns the number that would be believed at once and is not in the past. Changes no state.
    pub fn expected_number(&self, count: u64, next: u64) -> Option<u64> {
        self.near_number(self.place_of_count(count)?, next)
    }

    fn near_number(&self, place: i128, next: u64) -> Option<u64> {
        let is_near = self.frames_ahead(place) <= self.rules.trust.at_once.into();
        u64::try_from(place).ok().filter(|number| *number >= next && is_near)
    }

    /// Takes a count, and returns the frame's number. `next` is the first number that is still waited for: earlier
    /// frames are of no use.
    pub fn accept_count(&mut self, count: u64, next: u64, now: Duration) -> FrameNumber {
        self.accept_dated_count(count, next, now, None)
    }

    /// Takes a count as [`accept_count`](Self::accept_count) does, of a frame taken at time `taken` by the device's
    /// clock: frames that were lost together may have been sent long after each other, and come at once.
    pub fn accept_dated_count(&mut self, count: u64, next: u64, now: Duration, taken: Option<TaiNanos>) -> FrameNumber {
        self.taken.1 = taken;
        // Some cameras count 0, which others leave out: the first 0 shows it.
        self.rules.lowest = self.rules.lowest.min(count);
        self.measure_step(count);
        let place =
            self.place_of_count(count).map(|place| place + self.rounds_by_date(place) * self.frames_per_round());
        let near = place.and_then(|place| self.near_number(place, next));
        if let Some(number) = near.filter(|number| self.is_reachable(*number, now)) {
            // Old counts have come again, one after the other, up to this one: they came twice, or the counter began
            // anew.
            if self
                .doubted
                .is_some_and(|doubted| self.is_follower(doubted, count) && doubted.different >= self.rules.trust.few)
            {
                self.doubt_from(number);
            }
            // A missing frame comes late; or the counter began anew among many dropped frames.
            if self.dropped > MAX_STRAY_FRAMES && self.frames_ahead(number.into()) < 0 {
                self.doubt_from(number);
            }
            return self.accept_after_silence(count, number, now);
        }
        if let Some(place) = place
            && self.rules.trust.late > 0
            && (-i128::from(self.rules.trust.late)..=0).contains(&self.frames_ahead(place))
        {
            return u64::try_from(place).map_or(FrameNumber::Early, FrameNumber::At);
        }
        let row = self.count_followers(count);
        let can_begin_anew = self.newest.is_some() && !self.rules.is_absolute;
        let begins_anew = can_begin_anew && self.is_restart(row, now) && self.can_follow_restart(count, now);
        let Some(place) = place else {
            return self.restart_or(begins_anew, FrameNumber::Stray, (count, next, now));
        };
        let ahead = self.frames_ahead(place);
        let Ok(number) = u64::try_from(place) else {
            return self.restart_or(begins_anew, FrameNumber::Early, (count, next, now));
        };
        let gap = if self.rules.is_absolute { LARGEST_GAP_IN_TIME } else { LARGEST_GAP };
        if (0..=gap).contains(&ahead) && self.is_reachable(number, now) {
            let soon = ahead <= MAX_JUMP_FRAMES && number >= next && row >= self.rules.trust.few;
            if soon || self.is_restart(row, now) {
                return self.accept_after_silence(count, number, now);
            }
        } else if begins_anew {
            return FrameNumber::At(self.restart_at_count(count, next, now));
        }
        if let (None, Some(first), false) = (self.newest, self.rules.first, self.warned || ahead <= LARGEST_GAP) {
            self.warned = true;
            tracing::warn!(count, first, "the device's counter is far from `first` and is ignored");
        }
        let set_back = self.rules.is_absolute && ahead < -MAX_JUMP_FRAMES;
        if number >= next || set_back { FrameNumber::Stray } else { FrameNumber::At(number) }
    }

    fn restart_or(
        &mut self,
        begins_anew: bool,
        other: FrameNumber,
        (count, next, now): (u64, u64, Duration),
    ) -> FrameNumber {
        if begins_anew { FrameNumber::At(self.restart_at_count(count, next, now)) } else { other }
    }

    /// Returns by how many rounds a narrow counter's place is another one, where the device's clock shows it: a frame
    /// that seems to be behind the newest was taken after it, or the other way round.
    fn rounds_by_date(&self, place: i128) -> i128 {
        let (Some(newest), Some(taken), true) = (self.taken.0, self.taken.1, self.is_narrow_counter()) else {
            return 0;
        };
        match self.frames_ahead(place) {
            ..=0 if taken > newest => 1,
            1.. if taken < newest => -1,
            _ => 0,
        }
    }

    /// Returns the number of frames until a count comes again.
    fn frames_per_round(&self) -> i128 {
        match self.rules.step {
            // Nearly all counters: no division for each frame.
            1 => self.counts_per_round(),
            step => self.counts_per_round() / i128::from(step),
        }
    }

    /// Returns the number of counts until one comes again.
    fn counts_per_round(&self) -> i128 {
        (1_i128 << self.rules.bits) - i128::from(self.rules.lowest)
    }

    /// Returns the number that a count would have; `None` if it lies between two numbers. Changes no state.
    fn place_of_count(&self, count: u64) -> Option<i128> {
        match (self.newest, self.rules.first) {
            (Some((newest, number)), _) => Some(i128::from(number) + self.number_difference(newest, count)?),
            (None, Some(first)) => self.number_difference(first, count),
            (None, None) => Some(0),
        }
    }

    /// Returns the difference in numbers from one count to another, or `None` if it is not a whole number of steps.
    fn number_difference(&self, from: u64, to: u64) -> Option<i128> {
        let (counts, step) = (self.count_distance(from, to), i128::from(self.rules.step));
        (counts % step == 0).then_some(counts / step)
    }

    /// Returns by how much a number is ahead of the newest, or of number 0 before the first frame.
    fn frames_ahead(&self, place: i128) -> i128 {
        place - self.newest.map_or(0, |(_, number)| number.into())
    }

    /// Returns the distance from one count to another. Only the last quarter of the counter's range is taken for the
    /// past: frames overtake few others, and many are lost.
    fn count_distance(&self, from: u64, to: u64) -> i128 {
        let period = self.counts_per_round();
        let ahead = match self.rules.lowest {
            // Nearly all counters: no division for each packet.
            0 => i128::from(to.wrapping_sub(from) & (u64::MAX >> (64 - self.rules.bits))),
            _ => (i128::from(to) - i128::from(from)).rem_euclid(period),
        };
        if ahead < period - period / 4 { ahead } else { ahead - period }
    }

    /// Returns whether a device can have reached a number by now, at the fastest it ever was.
    fn is_reachable(&self, number: u64, now: Duration) -> bool {
        if self.frames_ahead(number.into()) <= MAX_NEAR_FRAMES {
            return true;
        }
        let (Some(most), false) = (self.pace.max_reachable_number(now), self.rules.is_absolute) else { return true };
        let most = self.newest.map_or(most, |(_, newest)| most.max(newest)).saturating_add(self.dropped);
        i128::from(number) <= MAX_NEAR_FRAMES + i128::from(most)
    }

    /// Believes a count that is ahead, or one of the past. After a silence in which the counter may have wrapped, the
    /// number is the one that the rate leads to, or a guess if that does not fit. The number is also a guess if the
    /// device may have begun anew in that silence and counted up to there.
    fn accept_after_silence(&mut self, count: u64, number: u64, now: Duration) -> FrameNumber {
        let (Some((_, newest)), false) = (self.newest.filter(|(_, newest)| number > *newest), self.rules.is_absolute)
        else {
            return self.accept_number(count, number, now);
        };
        let by_device = self.taken.0.zip(self.taken.1).map(|(before, taken)| taken.0.saturating_sub(before.0));
        let by_device = by_device.filter(|nanos| *nanos > 0).map(Duration::from_nanos);
        let silence = by_device.unwrap_or_else(|| now.saturating_sub(self.believed)).as_secs_f64();
        let pace = if by_device.is_some() { self.pace.by_device } else { self.pace.fastest };
        let fastest = self.rules.rate.or(pace).or(self.pace.fastest);
        let ahead = (number - newest) as f64;
        let (period, due) = (self.frames_per_round() as f64, silence * fastest.unwrap_or(MAX_FRAMES_PER_SECOND));
        if fastest.is_none() || due < 0.75 * period {
            // A pause, or as many frames as the rate predicts: the counter goes on. Any other count may come from a
            // counter that began anew meanwhile, or wrapped.
            let is_small = self.frames_per_round() <= SMALL_ROUND_FRAMES;
            let expected = fastest.or_else(|| self.pace.rate_so_far(newest, self.believed)).map(|pace| silence * pace);
            let goes_on = ahead <= PAUSE_STEP as f64
                || expected.is_some_and(|expected| (ahead - expected).abs() <= (0.01 * expected).max(2.0));
            // Frames that waited at a port come all at once: the device may have been silent among them.
            let waited = ahead > MAX_NEAR_FRAMES as f64 && by_device.is_none();
            let silent = if waited { self.pace.max_waited_seconds(newest, now).max(silence) } else { silence };
            if silent >= MIN_RESTART_SILENCE.as_secs_f64()
                && !goes_on
                && (is_small || self.can_have_restarted(count, silent, fastest))
            {
                tracing::warn!(
                    number,
                    "the device was silent for up to {silent:.1} s and may have restarted its counter: event numbers \
                     are uncertain"
                );
                // A frame that is overtaken is in doubt as well.
                self.doubt_from(newest.saturating_add(1));
            }
            return self.accept_number(count, number, now);
        }
        let rounds = ((due - ahead) / period).round().max(0.0);
        let by_rate = ahead + rounds * period;
        // If the uncertainty covers several rounds, none of them is known.
        let most = (0.01 * due).max(2.0);
        let fits = (by_rate - due).abs() <= most && most <= 0.25 * period && by_rate < LARGEST_GAP as f64;
        let number = if fits { newest.saturating_add(by_rate as u64) } else { number };
        if !(fits && self.rules.rate.is_some()) {
            tracing::warn!(
                number,
                "the device was silent for {silence:.1} s, longer than a cycle of its counter: event numbers are \
                 uncertain"
            );
            self.doubt_from(newest.saturating_add(1));
        }
        self.accept_number(count, number, now)
    }

    /// Returns whether a device that began anew, in a silence of `silent` seconds or among dropped frames, can have
    /// counted up to there, at `fastest` frames per second.
    fn can_have_restarted(&self, count: u64, silent: f64, fastest: Option<f64>) -> bool {
        let newest = self.newest.map_or(0, |(_, newest)| newest);
        let fastest = fastest.unwrap_or(MAX_FRAMES_PER_SECOND).max(self.pace.average_rate(newest, self.believed));
        self.rules.trust.restarts_unseen
            && self.frames_since_lowest(count) as f64 <= (silent * fastest + self.dropped as f64) * MAX_SPEEDUP_FACTOR
    }

    /// Returns the number of frames in which the counter goes from its lowest count to this one.
    fn frames_since_lowest(&self, count: u64) -> u64 {
        count.saturating_sub(self.rules.lowest) / self.rules.step
    }

    fn accept_number(&mut self, count: u64, number: u64, now: Duration) -> FrameNumber {
        self.believed = now;
        self.doubted = None;
        if self.newest.is_none_or(|(_, newest)| number > newest) {
            let newest = self.newest.map_or(number, |(_, newest)| newest);
            let gap = number - newest;
            if let (Some(before), Some(taken)) = self.taken {
                self.pace.record_device_time(gap, taken.0.saturating_sub(before.0));
            }
            // All that are missing were dropped, and no others: the counter goes on.
            let is_accounted = self.dropped.saturating_add(PAUSE_STEP) == gap;
            let more_than_missing = self.dropped > 2 * gap && (gap > PAUSE_STEP || self.dropped > MAX_STRAY_FRAMES);
            let far_ahead = self.dropped > 0 && i128::from(gap) > MAX_NEAR_FRAMES;
            if (more_than_missing || far_ahead && !is_accounted)
                && self.frames_since_lowest(count) <= self.dropped.saturating_mul(2)
            {
                if self.is_certain(number) {
                    tracing::warn!(
                        number,
                        dropped = self.dropped,
                        missing = gap.saturating_sub(PAUSE_STEP),
                        "the dropped frames do not match the missing ones, and the device may have restarted its \
                         counter: event numbers are uncertain"
                    );
                }
                self.doubt_from(newest.saturating_add(1));
            }
            self.taken.0 = self.taken.1.or(self.taken.0);
            self.newest = Some((count, number));
            self.went_on = self.went_on.saturating_add(1);
            if self.went_on > DROP_MEMORY {
                self.dropped = 0;
            }
            self.pace.record_frame(number, now);
        }
        FrameNumber::At(number)
    }

    fn doubt_from(&mut self, number: u64) {
        let newest = self.newest.map_or(number, |(_, newest)| newest.max(number));
        // A frame that comes late, numbered in an earlier guess that was confirmed, is a guess again.
        let from = self.guess.map_or(number, |guess| guess.from.min(number));
        self.guess = Some(Guess { from, doubted_at: newest, right_from: None });
    }

    /// Returns how many counts have come in a row, none believed in between, each a little ahead of the one before or
    /// equal to it.
    fn count_followers(&mut self, count: u64) -> u32 {
        let (mut row, mut different) = (1, 1);
        if let Some(before) = self.doubted.filter(|before| self.is_follower(*before, count)) {
            row = before.row.saturating_add(1);
            different = before.different.saturating_add(u32::from(before.last != count));
        }
        self.doubted = Some(Doubted { last: count, row, different });
        row
    }

    fn is_follower(&self, doubted: Doubted, count: u64) -> bool {
        let near = i128::from(self.rules.trust.followers) * i128::from(self.rules.step);
        (0..=near).contains(&self.count_distance(doubted.last, count))
    }

    /// Finds out, once, whether the counter goes up by more than configured.
    fn measure_step(&mut self, count: u64) {
        if self.steps.count >= MIN_STEP_COUNTS {
            return;
        }
        let last = self.steps.last.replace(count);
        let Some(step) =
            last.and_then(|last| u64::try_from(self.count_distance(last, count)).ok()).filter(|step| *step > 0)
        else {
            return;
        };
        self.steps.divisor = greatest_common_divisor(self.steps.divisor, step);
        self.steps.count += 1;
        let (found, step) = (self.steps.divisor, self.rules.step);
        if self.steps.count == MIN_STEP_COUNTS && found != step {
            tracing::warn!("the device's counter increases by {found} instead of {step}: set `step` to {found}");
        }
    }

    /// Returns the step of the counter, as far as it is known by now.
    #[cfg(test)]
    fn measured_step(&self) -> Option<u64> {
        (self.steps.count >= MIN_STEP_COUNTS).then_some(self.steps.divisor)
    }

    /// Returns whether a device that counts from the lowest count after a restart can have counted up to there since a
    /// count was last believed. Packets of earlier frames that arrive late, after a silence, are no restart.
    fn can_follow_restart(&self, count: u64, now: Duration) -> bool {
        let Some(fastest) = self.rules.rate.or(self.pace.fastest).filter(|_| self.rules.trust.late > 0) else {
            return true;
        };
        let silence = now.saturating_sub(self.believed).as_secs_f64();
        self.frames_since_lowest(count) as f64 <= silence * fastest * MAX_SPEEDUP_FACTOR + MAX_NEAR_FRAMES as f64
    }

    /// Returns whether `row` counts in a row, after this silence, are the device's.
    fn is_restart(&self, row: u32, now: Duration) -> bool {
        let Trust { followers, silence, .. } = self.rules.trust;
        row >= followers && now.saturating_sub(self.believed) >= silence
    }
}

impl Pace {
    /// Records that the frame with this number came.
    fn record_frame(&mut self, number: u64, now: Duration) {
        if let Some((since, first)) = self.looks[WINDOW_COUNT - 1] {
            self.longest_silence = self.longest_silence.max(now.saturating_sub(self.last));
            self.last = now;
            if now < since + PACE_WINDOW {
                return;
            }
            let (frames, time) = (number.saturating_sub(first) as f64, now - since);
            let pace = frames / time.as_secs_f64();
            self.fastest = Some(self.fastest.map_or(pace, |fastest| fastest.max(pace)));
            // After a silence that is long for this device, the frame may have waited since the silence began.
            let waited = self.longest_silence.as_secs_f64() * pace >= MIN_WAITED_FRAMES;
            self.is_measured |= !waited;
            let shortest = time.saturating_sub(self.longest_silence).as_secs_f64();
            self.upper_bound = if self.is_measured { 0.0 } else { self.upper_bound.max(frames / shortest) };
        }
        (self.last, self.longest_silence) = (now, Duration::ZERO);
        self.looks.rotate_left(1);
        self.looks[WINDOW_COUNT - 1] = Some((now, number));
    }

    /// Returns the highest number that the device can have reached by now, or `None` if that is not known.
    fn max_reachable_number(&self, now: Duration) -> Option<u64> {
        let fastest = self.fastest?.max(self.upper_bound.min(MAX_FRAMES_PER_SECOND)) * MAX_SPEEDUP_FACTOR;
        let reachable =
            self.looks.iter().flatten().map(|(since, number)| {
                number.saturating_add((fastest * now.saturating_sub(*since).as_secs_f64()) as u64)
            });
        reachable.max()
    }

    /// Returns the seconds for which a frame with this number has waited since it was sent, at most, at the fastest
    /// pace so far; 0 while that is not known.
    fn max_waited_seconds(&self, number: u64, now: Duration) -> f64 {
        let Some(fastest) = self.fastest.filter(|fastest| *fastest > 0.0) else { return 0.0 };
        let waited = self.looks.iter().flatten().map(|(since, first)| {
            now.saturating_sub(*since).as_secs_f64() - number.saturating_sub(*first) as f64 / fastest
        });
        waited.fold(0.0, f64::max)
    }

    /// Returns the highest number of frames per second up to this frame, over a window or more: a window that ended
    /// with the first of the frames that waited at a port is too slow.
    fn average_rate(&self, number: u64, now: Duration) -> f64 {
        let windows = self.looks.iter().flatten().filter(|(since, _)| now >= *since + PACE_WINDOW);
        let paces = windows.map(|(since, first)| number.saturating_sub(*first) as f64 / (now - *since).as_secs_f64());
        paces.fold(0.0, f64::max)
    }

    /// Records that `frames` frames were taken in `nanos` nanoseconds.
    fn record_device_time(&mut self, frames: u64, nanos: u64) {
        let (before, time) = self.since;
        self.since = (before.saturating_add(frames), time.saturating_add(nanos));
        if self.since.0 >= DEVICE_WINDOW && self.since.1 > 0 {
            let pace = self.since.0 as f64 / self.since.1 as f64 * 1e9;
            self.by_device = Some(self.by_device.map_or(pace, |fastest| fastest.max(pace)));
            self.since = (0, 0);
        }
    }

    /// Returns frames per second so far, while no window has passed.
    fn rate_so_far(&self, newest: u64, now: Duration) -> Option<f64> {
        let (since, first) = self.looks[WINDOW_COUNT - 1]?;
        let (frames, time) = (newest.saturating_sub(first), now.saturating_sub(since));
        (frames >= 4 && !time.is_zero()).then(|| frames as f64 / time.as_secs_f64())
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

    fn counter_of(bits: u32, first: Option<u64>, step: u64, is_absolute: bool) -> FrameCounter {
        FrameCounter::new(CounterRules { first, step, is_absolute, ..CounterRules::new(bits, Trust::DATAGRAMS) })
    }

    #[test]
    fn a_counter_of_four_bits_goes_on_beyond_sixteen() {
        let mut counter = counter_of(4, None, 1, false);
        for number in 0..100u64 {
            assert_eq!(counter.accept_count((number + 9) % 16, number, NOW), FrameNumber::At(number));
        }
        assert_eq!(counter.accept_count((104 + 9) % 16, 100, NOW), FrameNumber::At(104), "four were left out");
        assert_eq!(counter.accept_count((101 + 9) % 16, 100, NOW), FrameNumber::At(101), "one of them came after all");
    }

    #[test]
    fn of_a_counter_of_four_bits_ten_may_be_lost_in_a_row_and_one_may_be_overtaken_by_four() {
        for lost in 0..=10u64 {
            let mut counter = counter_of(4, None, 1, false);
            counter.accept_count(0, 0, NOW);
            assert_eq!(counter.accept_count((lost + 1) % 16, 1, NOW), FrameNumber::At(lost + 1));
        }
        let mut counter = counter_of(4, None, 1, false);
        for number in 0..30 {
            counter.accept_count(number % 16, 0, NOW);
        }
        assert_eq!(counter.accept_count(25 % 16, 20, NOW), FrameNumber::At(25));
    }

    #[test]
    fn a_guess_that_others_confirm_is_none_any_more_until_the_next_doubt() {
        let mut counter = counter_of(64, None, 1, false);
        (0..100).for_each(|count| _ = counter.accept_count(count, count, NOW));
        let restart = |counter: &mut FrameCounter, next, now| {
            (0..100).for_each(|count| _ = counter.accept_count(count, next, now));
        };
        restart(&mut counter, 100, NOW + 2 * Trust::DATAGRAMS.silence);
        let (_, newest) = counter.newest.unwrap();
        assert!(counter.is_certain(99) && !counter.is_certain(newest));
        // Numbers before the restart do not show whether it was numbered right.
        counter.confirm_numbers(99);
        assert!(!counter.is_certain(newest));
        counter.confirm_numbers(newest);
        assert!(counter.is_certain(99) && counter.is_certain(newest) && counter.is_certain(newest + 1000));
        assert!(!counter.is_certain(newest - 1), "one that comes late");
        restart(&mut counter, newest + 1, NOW + 4 * Trust::DATAGRAMS.silence);
        assert!(!counter.is_certain(newest + 20));
        counter.confirm_numbers(newest);
        assert!(!counter.is_certain(newest + 20), "it was found before");
    }

    #[test]
    fn a_counter_that_goes_up_by_more_has_a_step() {
        for (bits, step) in [(64, 4), (64, 4096), (16, 4)] {
            let mut counter = counter_of(bits, None, step, false);
            for number in (0..70_000u64).filter(|number| number % 10 != 3) {
                let raw = (9 + number * step) & (u64::MAX >> (64 - bits));
                assert_eq!(counter.accept_count(raw, number, NOW), FrameNumber::At(number));
            }
            assert_eq!(
                counter.accept_count(9 + 70_000 * step + 1, 70_000, NOW),
                FrameNumber::Stray,
                "it lies between two"
            );
            assert_eq!(counter.measured_step(), Some(step));
        }
        // A counter that was thought to go up by one.
        let mut counter = counter_of(64, None, 1, false);
        for number in 0..40u64 {
            counter.accept_count(7 + 4096 * number, 0, NOW);
        }
        assert_eq!(counter.measured_step(), Some(4096));
    }

    #[test]
    fn packets_of_earlier_frames_after_a_silence_are_no_restart_of_a_camera() {
        let rules =
            CounterRules { lowest: 1, first: Some(1), rate: Some(100.0), ..CounterRules::new(64, Trust::CAMERA) };
        let mut counter = FrameCounter::new(rules);
        for frame in 0..300 {
            let now = NOW + Duration::from_millis(10 * frame);
            assert_eq!(counter.accept_count(frame + 1, frame, now), FrameNumber::At(frame));
        }
        // Packets that were requested again arrive 200 frames late, after 150 ms without others.
        let late = NOW + Duration::from_millis(3150);
        for _ in 0..6 {
            assert_eq!(counter.accept_count(100, 299, late), FrameNumber::At(99));
        }
        assert_eq!(counter.restart_count(), 0);
        assert_eq!(counter.accept_count(316, 299, late), FrameNumber::At(315));
        // A camera that begins anew counts from 1.
        let again = late + Duration::from_millis(200);
        let numbers: Vec<_> = (0..3).map(|_| counter.accept_count(2, 316, again)).collect();
        assert_eq!((counter.restart_count(), numbers[2]), (1, FrameNumber::At(316)));
    }

    #[test]
    fn a_counter_of_time_goes_on_however_long_it_was_away_and_never_begins_anew() {
        let mut counter = counter_of(64, None, 1, true);
        (0..10).for_each(|number| {
            assert_eq!(counter.accept_count(1_000_000 + number, number, NOW), FrameNumber::At(number))
        });
        // 40 million frames later.
        let (away, later) = (40_000_000, NOW + Trust::DATAGRAMS.silence);
        let came: Vec<_> = (0..20).map(|number| counter.accept_count(1_000_000 + away + number, 10, later)).collect();
        assert_eq!(came[14..16], [FrameNumber::Stray, FrameNumber::At(away + 15)]);
        // The clock is set back.
        let later = later + Trust::DATAGRAMS.silence;
        let came: Vec<_> = (0..40).map(|number| counter.accept_count(1_000_000 + number, away + 20, later)).collect();
        assert!(came.iter().all(|number| *number == FrameNumber::Stray), "{came:?}");
        assert_eq!(counter.restart_count(), 0);
    }

    #[test]
    fn the_first_is_the_one_that_was_named() {
        let mut counter = counter_of(48, Some(1000), 1, false);
        assert_eq!(counter.accept_count(998, 0, NOW), FrameNumber::Early);
        assert_eq!(counter.accept_count(1003, 0, NOW), FrameNumber::At(3));
    }

    #[test]
    fn a_first_datagram_far_from_the_first_number_is_not_believed() {
        let mut counter = counter_of(64, Some(0), 1, false);
        let came: Vec<_> = (0..100).map(|number| counter.accept_count((1 << 62) + number, 0, NOW)).collect();
        assert!(came.iter().all(|number| *number == FrameNumber::Stray), "{came:?}");
        assert!(counter.warned);
        // A nearer count is believed, when others follow it.
        let came: Vec<_> = (0..20).map(|number| counter.accept_count(1_000_000 + number, 0, NOW)).collect();
        assert_eq!(came[14..16], [FrameNumber::Stray, FrameNumber::At(1_000_015)]);
        assert_eq!(counter.restart_count(), 0);
    }

    #[test]
    fn a_jump_is_believed_when_the_next_numbers_follow_it() {
        let mut counter = counter_of(64, None, 1, false);
        counter.accept_count(5, 0, NOW);
        assert_eq!(counter.accept_count(40_000, 1, NOW), FrameNumber::Stray, "a single one");
        assert_eq!(counter.accept_count(6, 1, NOW), FrameNumber::At(1));
        let came: Vec<_> = (0..4).map(|number| counter.accept_count(50_000 + number, 2, NOW)).collect();
        assert_eq!(came[2..], [FrameNumber::Stray, FrameNumber::At(49_998)]);
        assert_eq!(counter.accept_count(50_000 + 3000, 2, NOW), FrameNumber::At(52_995), "what is near is at once");
    }

    #[test]
    fn one_forged_number_moves_nothing() {
        let mut counter = counter_of(64, None, 1, false);
        counter.accept_count(5, 0, NOW);
        assert_eq!(counter.accept_count(1 << 60, 1, NOW + Trust::DATAGRAMS.silence), FrameNumber::Stray);
        assert_eq!(counter.accept_count(6, 1, NOW + Trust::DATAGRAMS.silence), FrameNumber::At(1));
    }

    #[test]
    fn an_instrument_that_begins_anew_is_followed_after_a_while() {
        let mut counter = counter_of(64, None, 1, false);
        for number in 0..5000 {
            counter.accept_count(number, number, NOW + Duration::from_micros(400 * number));
        }
        let later = NOW + 2 * PACE_WINDOW + Trust::DATAGRAMS.silence;
        let came: Vec<_> = (0..20).map(|raw| counter.accept_count(raw, 5000, later)).collect();
        assert_eq!(came[14], FrameNumber::At(14), "it is taken for late");
        assert_eq!(came[15..17], [FrameNumber::At(5000), FrameNumber::At(5001)]);
        assert_eq!(counter.restart_count(), 1);
        assert!(counter.is_certain(4999) && !counter.is_certain(5000));
        // A loss that is possible within a second is believed; a larger one is not.
        let later = later + Trust::DATAGRAMS.silence;
        let came: Vec<_> = (0..4).map(|count| counter.accept_count(5000 + count, 5005, later)).collect();
        assert_eq!(came[2..], [FrameNumber::Stray, FrameNumber::At(9988)]);
        let later = later + Trust::DATAGRAMS.silence;
        let came: Vec<_> = (0..17).map(|count| counter.accept_count(60_000 + count, 9989, later)).collect();
        assert_eq!(came[14..16], [FrameNumber::Stray, FrameNumber::At(9989)]);
        assert_eq!(counter.restart_count(), 2);
    }

    #[test]
    fn a_frame_counted_anew_that_comes_late_is_none_that_was_missing_before() {
        let mut counter = FrameCounter::new(CounterRules::new(32, Trust::DRIVER));
        [0, 1, 2, 3, 5].into_iter().for_each(|count| _ = counter.accept_count(count, 0, NOW));
        // Number 4 is still waited for.
        assert_eq!(counter.restart_at_count(2, 4, NOW), 6);
        assert_eq!(counter.accept_count(0, 4, NOW), FrameNumber::At(4));
        assert!(counter.is_certain(3) && !counter.is_certain(4));
    }

    #[test]
    fn a_doubt_that_comes_up_while_numbers_are_a_guess_is_one_more() {
        let mut counter = counter_of(8, None, 1, false);
        (0..10).for_each(|count| _ = counter.accept_count(count, 0, NOW));
        counter.record_dropped(200, 10);
        (10..100).for_each(|count| _ = counter.accept_count(count, 10, NOW));
        counter.record_dropped(200, 100);
        counter.accept_count(100, 100, NOW);
        // A comparison of earlier numbers was under way.
        counter.confirm_numbers(50);
        assert!(!counter.is_certain(101));
        counter.confirm_numbers(101);
        assert!(counter.is_certain(101));
    }

    /// Runs a counter of 16 bits at 50 frames a second that is silent for `seconds`, and then goes on `ahead` of its
    /// last number.
    fn after_silence(rate: Option<f64>, seconds: u64, ahead: u64) -> (u64, bool) {
        let mut counter = FrameCounter::new(CounterRules { rate, ..CounterRules::new(16, Trust::CAMERA) });
        for number in 0..200 {
            counter.accept_count(number, number, Duration::from_millis(20 * number));
        }
        let later = Duration::from_millis(20 * 199) + Duration::from_secs(seconds);
        let came: Vec<_> =
            (0..8).map(|count| counter.accept_count((199 + ahead + count) % (1 << 16), 200, later)).collect();
        let believed = came.iter().zip(0..).find_map(|(number, count)| match number {
            FrameNumber::At(number) => Some((number - count - 199, counter.is_certain(*number))),
            _ => None,
        });
        believed.expect("it is believed")
    }

    #[test]
    fn a_narrow_counter_that_was_silent_for_longer_than_it_counts_goes_by_its_rate_or_is_uncertain() {
        let certain = true;
        assert_eq!(after_silence(Some(50.0), 600, 1), (1, certain), "a pause: fewer than it counts can have passed");
        assert_eq!(after_silence(Some(50.0), 600, 30_000), (30_000, certain), "none of which came");
        assert_eq!(after_silence(Some(50.0), 1400, 70_000), (70_000, certain), "it has come round");
        assert_eq!(after_silence(None, 1400, 70_000), (70_000, !certain), "at the rate that it was seen to have");
        assert_eq!(after_silence(Some(50.0), 1400, 1), (1, !certain), "a pause, or a round");
    }

    #[test]
    fn a_narrow_counter_of_frames_that_are_dated_comes_round_unseen_by_no_burst() {
        let taken = |number: u64| Some(TaiNanos(1_800_000_000_000_000_000 + 1000 * number));
        // After a very long loss the number of rounds is unknown.
        let cases = [(0, 0, true), (10, 10, true), (11, 11, false), (16, 16, false), (1600, 0, false)];
        for (lost, seen, is_certain) in cases {
            let mut counter = counter_of(4, None, 1, false);
            // All frames arrive at once.
            for number in 0..20 {
                assert_eq!(
                    counter.accept_dated_count(number % 16, number, NOW, taken(number)),
                    FrameNumber::At(number)
                );
            }
            let number = 20 + lost;
            let came = counter.accept_dated_count(number % 16, 20, NOW, taken(number));
            assert_eq!((came, counter.is_certain(20 + seen)), (FrameNumber::At(20 + seen), is_certain), "{lost}");
        }
    }

    #[test]
    fn a_counter_may_begin_anew_among_what_is_dropped_or_in_a_silence() {
        // A hundred frames a second.
        let at = |count: u64| NOW + Duration::from_millis(10 * count);
        let counted = |to: u64| {
            let mut counter = counter_of(64, None, 1, false);
            (0..=to).for_each(|count| {
                assert_eq!(counter.accept_count(count, count, at(count)), FrameNumber::At(count));
            });
            counter
        };
        // Fifty came, sixty were dropped, and then the count is 58: either it went on, and most of the dropped ones
        // were another sender's, or it began anew.
        let mut counter = counted(50);
        counter.record_dropped(60, 51);
        counter.accept_count(58, 51, at(51));
        assert!(!counter.is_certain(58) && counter.is_certain(50));
        // The next count, by chance.
        for (dropped, is_certain) in [(10, true), (60, false)] {
            let mut counter = counted(50);
            counter.record_dropped(dropped, 51);
            counter.accept_count(51, 51, at(51));
            assert_eq!(counter.is_certain(51), is_certain);
        }
        let mut counter = counted(50);
        counter.record_dropped(60, 51);
        counter.accept_count(111, 51, at(51));
        assert!(counter.is_certain(111), "it went on");
        // The device is silent for ten seconds.
        for (count, is_certain) in [(1001, true), (1050, false), (2000, true)] {
            let mut counter = counted(1000);
            counter.accept_count(count, 1001, at(2000));
            assert_eq!(counter.is_certain(count), is_certain, "{count}");
        }
    }

    #[test]
    fn a_counter_that_begins_anew_and_is_soon_where_it_was_is_doubted_from_there() {
        let mut counter = counter_of(64, None, 1, false);
        (0..100).for_each(|count| assert_eq!(counter.accept_count(count, count, NOW), FrameNumber::At(count)));
        (0..100).for_each(|count| {
            assert_eq!(counter.accept_count(count, 100, NOW), FrameNumber::At(count), "late, or again")
        });
        assert_eq!(counter.accept_count(100, 100, NOW), FrameNumber::At(100));
        assert!(counter.is_certain(99) && !counter.is_certain(100));
    }

    /// 300 frames a second for six seconds; then the host stands still for three, and what waited comes at once: the
    /// device began anew meanwhile, and 100 frames may have been dropped.
    #[test]
    fn a_counter_may_begin_anew_among_frames_that_waited() {
        for (first, dropped, restarts) in [(62_800, 0, true), (62_800, 100, true), (0, 0, false), (0, 100, false)] {
            let mut counter = counter_of(16, Some(first), 1, false);
            let (mut next, mut now) = (0, NOW);
            let mut come = |counter: &mut FrameCounter, count: u64, now: Duration| {
                let FrameNumber::At(number) = counter.accept_count(count & 0xffff, next, now) else {
                    panic!("no number")
                };
                next = number + 1;
                number
            };
            for frame in 0..1800 {
                now += Duration::from_micros(3333);
                come(&mut counter, first + frame, now);
            }
            now += Duration::from_secs(3);
            for frame in 1800..2000 {
                come(&mut counter, first + frame, now);
            }
            counter.record_dropped(dropped, 2000);
            let count = if restarts { 0 } else { first + 2000 + dropped };
            let number = come(&mut counter, count, now);
            assert_eq!(counter.is_certain(number), !restarts, "{first} {dropped}: {number}");
            assert!(restarts || number == 2000 + dropped);
        }
    }

    /// The device begins anew among 2156 frames that are dropped, shortly before its counter comes round: what comes
    /// next is no further ahead than it would be if it had gone on.
    #[test]
    fn a_counter_may_begin_anew_among_about_as_many_as_were_dropped() {
        for (count, dropped, is_certain) in [(676, 2156, false), (676, 2007, true), (60_000, 2156, true)] {
            let first = if count == 676 { 64_022 } else { 57_810 };
            let mut counter = counter_of(16, Some(first), 1, false);
            for frame in 0..183 {
                counter.accept_count(first + frame, frame, NOW + Duration::from_millis(frame));
            }
            counter.record_dropped(dropped, 183);
            let number = counter.accept_count(count, 183, NOW + Duration::from_millis(200));
            assert_eq!((number, counter.is_certain(2190)), (FrameNumber::At(2190), is_certain), "{count} {dropped}");
        }
    }

    /// 50 frames a second, and the host stands still in the second one, so that the first pace is half of the device's.
    /// Then the device is silent for 3.4 seconds, in which it begins anew, and what comes first is its frame 140.
    #[test]
    fn a_pace_that_was_measured_over_a_standstill_is_no_reason_for_trust() {
        let mut counter = counter_of(32, Some(0), 1, false);
        for frame in 0..100 {
            let at = NOW + Duration::from_millis(20) * frame;
            let at = if frame > 49 { NOW + Duration::from_secs(2) } else { at };
            counter.accept_count(frame.into(), frame.into(), at);
        }
        let number = counter.accept_count(140, 100, NOW + Duration::from_millis(5400));
        assert!(number == FrameNumber::At(140) && !counter.is_certain(140), "{number:?}");
    }

    /// 500 frames a second, and the host stands still from 0.7 to 1 s: the four frames that were under way come first,
    /// and end the first second of the measurement. The others of that time are lost.
    #[test]
    fn a_pace_that_was_measured_over_a_standstill_makes_no_loss_a_restart() {
        for trust in [Trust::DRIVER, Trust::DATAGRAMS, Trust::CAMERA] {
            let mut counter = FrameCounter::new(CounterRules::new(32, Trust { at_once: 1000, ..trust }));
            for frame in (0..354).chain(500..600) {
                let taken = NOW + Duration::from_millis(2) * frame;
                let now = if frame < 350 { taken } else { taken.max(NOW + Duration::from_secs(1)) };
                let number = u64::from(frame);
                assert_eq!(counter.accept_count(number, 0, now), FrameNumber::At(number), "{trust:?}");
            }
            assert_eq!((counter.restart_count(), counter.is_certain(599)), (0, true), "{trust:?}");
        }
    }

    #[test]
    fn what_a_camera_sends_again_is_no_reason_to_doubt() {
        let mut counter = FrameCounter::new(CounterRules::new(16, Trust::CAMERA));
        (0..100).for_each(|count| assert_eq!(counter.accept_count(count, count, NOW), FrameNumber::At(count)));
        // The host stood still for a while.
        let later = NOW + 2 * Trust::CAMERA.silence;
        (50..100).for_each(|count| assert_eq!(counter.accept_count(count, 100, later), FrameNumber::At(count)));
        (0..4).for_each(|_| assert_eq!(counter.accept_count(99, 100, later), FrameNumber::At(99)));
        assert_eq!(counter.accept_count(100, 100, later), FrameNumber::At(100));
        assert!(counter.is_certain(100) && counter.restart_count() == 0);
    }

    #[test]
    fn a_few_that_come_late_are_no_reason_to_doubt() {
        let mut counter = counter_of(64, None, 1, false);
        (0..100).for_each(|count| assert_eq!(counter.accept_count(count, count, NOW), FrameNumber::At(count)));
        [97, 98, 99, 100]
            .into_iter()
            .for_each(|count| assert_eq!(counter.accept_count(count, 100, NOW), FrameNumber::At(count)));
        assert!(counter.is_certain(100));
    }

    #[test]
    fn a_narrow_counter_that_begins_anew_has_not_lost_what_it_would_be_ahead() {
        let mut counter = FrameCounter::new(CounterRules::new(16, Trust::CAMERA));
        (0..30_000).for_each(|number| {
            counter.accept_count(number, number, Duration::from_millis(10 * number));
        });
        let later = Duration::from_millis(10 * 30_000) + Trust::CAMERA.silence;
        let came: Vec<_> = (1..5).map(|count| counter.accept_count(count, 30_000, later)).collect();
        assert_eq!(came[1..3], [FrameNumber::Stray, FrameNumber::At(30_000)]);
        assert!(!counter.is_certain(30_000));
    }

    proptest! {
        /// For any counts: nothing overflows; and a believed number is ahead by no more than the largest gap.
        #[test]
        fn any_numbers(raws in proptest::collection::vec(any::<u64>(), 0..50), bits in 1u32..=64, first: Option<u64>, step in 1u64..9, is_absolute: bool) {
            let mut counter = counter_of(bits, first, step, is_absolute);
            let gap = if is_absolute { LARGEST_GAP_IN_TIME } else { LARGEST_GAP };
            for (at, raw) in raws.into_iter().enumerate() {
                let (next, before) = (at as u64, counter.newest.map_or(0, |(_, number)| number));
                let expected = counter.expected_number(raw, next);
                let number = counter.accept_count(raw, next, NOW * at as u32);
                if let (Some(expected), FrameNumber::At(number)) = (expected, number) {
                    // The number differs where the counter has wrapped, or begun anew.
                    prop_assert!(expected >= next && (number == expected || !counter.is_certain(number)));
                }
                if let FrameNumber::At(number) = number && number >= next {
                    prop_assert!(number <= before.max(next) + gap as u64 + 1);
                    prop_assert!(counter.newest.is_some_and(|(_, newest)| newest >= number));
                }
            }
        }
    }
}
