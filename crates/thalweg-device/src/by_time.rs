//! Events numbered by time: for devices that share a clock, or a trigger, and no counter.
//!
//! A machine's beat sets the times of events: event *n* is at `origin + n · period`. A frame belongs to the beat that
//! is nearest to its time stamp. The device's counter shows what the time stamp alone does not: whether a beat without
//! a frame is one whose frame was lost, one whose trigger was missed, or one whose frame was stamped late.
//!
//! | the counter | the time stamp | what happened |
//! | --- | --- | --- |
//! | goes on by one | by one beat | a frame in its place, early or late by its jitter |
//! | skips *k* | by *k* + 1 beats | *k* frames were lost in the device |
//! | goes on by one | by *k* + 1 beats, and the next frame's by one | *k* triggers were missed |
//! | goes on by one | by two beats, and the next frame has its own place | the frame was stamped a beat late |
//! | goes on by one | stays at its beat | a frame without a trigger |
//!
//! Where a device's clock runs at another rate, or the beat does, frames leave their beats slowly: each device's line
//! is followed (`drift`), and its frames belong to the beats that are nearest to that line. No conclusion rests on one
//! time stamp alone: a first frame waits for a second one a whole number of beats after it, and a step of the clock is
//! accepted only when several frames contradict the earlier ones. Then events go on by the counter, and are uncertain.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;
use thalweg_wire::TaiNanos;

/// Maximum by which a frame may be stamped later, against its arrival, than any frame before it, in nanoseconds. By
/// more, its clock was set.
const MAX_LEAD_NANOS: i128 = 1_000_000_000;
/// Number of consecutive frames that contradict those before, after which they are taken to be right.
const MIN_CONTRADICTIONS: u32 = 4;
/// Maximum relative difference between a device's clock and the beat, where it is not known yet, and where it is.
const UNKNOWN_DRIFT: f64 = 1e-4;
const KNOWN_DRIFT: f64 = 1e-6;
/// Number of frames until a drift is known that well.
const FRAMES_TO_KNOW: f64 = 1000.0;

/// Times of the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beat {
    /// Time from one event to the next.
    #[serde(with = "thalweg_text::duration")]
    pub period: Duration,
    /// Delay of the device's time stamps after whole periods of TAI, where the trigger keeps to absolute time. Less
    /// than a period. Without it events begin with a frame, and all sources are given the time of that frame.
    #[serde(default, with = "thalweg_text::duration::option", skip_serializing_if = "Option::is_none")]
    pub phase: Option<Duration>,
    /// Maximum distance of a time stamp from its expected value at which the frame still belongs to the event; at most
    /// half a period.
    #[serde(with = "thalweg_text::duration")]
    pub tolerance: Duration,
}

impl Beat {
    /// Checks for impossible values.
    ///
    /// # Errors
    /// The key, and the problem with its value.
    pub fn check_values(&self) -> Result<(), (&'static str, String)> {
        let Self { period, phase, tolerance } = *self;
        if !(Duration::from_micros(1)..=Duration::from_secs(3600)).contains(&period) {
            return Err(("period", format!("{period:?}: it must be 1 µs to 1 h")));
        }
        if let Some(phase) = phase.filter(|phase| *phase >= period) {
            return Err(("phase", format!("{phase:?}: it must be less than the period, {period:?}")));
        }
        match tolerance <= period / 2 && !tolerance.is_zero() {
            true => Ok(()),
            false => Err(("tolerance", format!("{tolerance:?}: it must be above 0 and at most half a period"))),
        }
    }

    /// Returns the time of event 0 if events keep to absolute time: the first whole period of TAI at or after the run's
    /// start, plus the phase. The whole period is the same for all sources of a run, whatever their phases.
    pub fn origin_after(&self, start: TaiNanos) -> Option<TaiNanos> {
        let period = u64::try_from(self.period.as_nanos()).unwrap_or(u64::MAX).max(1);
        let first = start.0.div_ceil(period).checked_mul(period)?;
        Some(TaiNanos(first.checked_add(u64::try_from(self.phase?.as_nanos()).ok()?)?))
    }

    fn period_nanos(&self) -> i64 {
        saturating_nanos(self.period).max(1)
    }
}

fn saturating_nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Result of numbering: a frame with its event, or events without a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbered<T> {
    /// A frame with its event.
    Frame {
        /// Number of the event.
        event: u64,
        /// Frame that was given to [`Beats::add_frame`].
        frame: T,
        /// True if the number is more than a guess.
        is_certain: bool,
    },
    /// The device lost the frames of some consecutive events.
    Lost {
        /// Number of the first event.
        event: u64,
        /// Number of events.
        count: u64,
    },
    /// The device was not triggered, or ignored its triggers, for some consecutive events.
    Missed {
        /// Number of the first event.
        event: u64,
        /// Number of events.
        count: u64,
    },
    /// A frame from before event 0.
    Before(T),
    /// A frame of no event.
    Stray(T),
}

/// Counters of one device's frames and events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BeatCounts {
    /// Events whose trigger was missed.
    pub missed: u64,
    /// Frames that were stamped a beat late, and have their own number.
    pub stamped_late: u64,
    /// Frames further from their beat than the tolerance, that have a number by the counter.
    pub off_beat: u64,
    /// Frames that are of no event.
    pub stray: u64,
    /// Times that the device began to count anew.
    pub restarts: u64,
    /// Times that the device's clock was set.
    pub clock_steps: u64,
    /// Frames without a time stamp, that have a number by the counter.
    pub undated: u64,
}

/// Numbers the frames of one device by time. Without IO.
#[derive(Debug)]
pub struct Beats<T> {
    beat: Beat,
    /// Time of event 0.
    origin: Option<TaiNanos>,
    /// Frame that came last, before any was confirmed by the next.
    first: Option<Seen<T>>,
    /// Time of the first frame that was confirmed.
    confirmed: Option<TaiNanos>,
    /// Counter and event of the frame that was numbered last.
    last: Option<Last>,
    /// Frame whose time stamp is ahead of its counter: the next frame shows which is right.
    held: Option<Held<T>>,
    /// Counter and time of the last frame that contradicts those before, and the number of such frames in a row.
    contradicts: Option<(u64, TaiNanos, u32)>,
    /// Largest time from a frame's arrival to its time stamp, in nanoseconds.
    ahead: Option<i128>,
    is_uncertain: bool,
    ready: VecDeque<Numbered<T>>,
    counts: BeatCounts,
    drift: Drift,
}

/// A frame that has come.
#[derive(Debug)]
struct Seen<T> {
    counter: u64,
    time: TaiNanos,
    arrived: Duration,
    frame: T,
}

/// Counter and event of the frame that was numbered last.
#[derive(Debug, Clone, Copy)]
struct Last {
    counter: u64,
    event: i64,
}

#[derive(Debug)]
struct Held<T> {
    seen: Seen<T>,
    by_time: i64,
    by_counter: i64,
    off: i64,
}

impl<T> Beats<T> {
    /// Creates the numbering with event 0 at `origin`. If that is not known yet, no frame has a number until
    /// [`begin_events`](Self::begin_events).
    pub fn new(beat: Beat, origin: Option<TaiNanos>) -> Self {
        Self {
            beat,
            origin,
            first: None,
            confirmed: None,
            last: None,
            held: None,
            contradicts: None,
            ahead: None,
            is_uncertain: false,
            ready: VecDeque::new(),
            counts: BeatCounts::default(),
            drift: Drift::default(),
        }
    }

    /// Sets the time of event 0. Called once.
    pub fn begin_events(&mut self, origin: TaiNanos) {
        self.origin.get_or_insert(origin);
    }

    /// Returns the time of the first trustworthy frame, while the time of event 0 is not known.
    pub fn first_frame_time(&self) -> Option<TaiNanos> {
        self.confirmed.filter(|_| self.origin.is_none())
    }

    /// Adds a frame, with the device's number, and its time stamp if it has one.
    pub fn add_frame(&mut self, counter: u64, time: Option<TaiNanos>, arrived: Duration, frame: T) {
        match (time, self.last) {
            (Some(time), None) => self.confirm_first_frame(Seen { counter, time, arrived, frame }),
            (Some(time), Some(last)) => self.follow_frame(Seen { counter, time, arrived, frame }, last),
            (None, Some(last)) if counter > last.counter => self.number_undated(counter, last, frame),
            (None, _) => self.push_stray(frame),
        }
    }

    /// Returns whether a frame waits for the next one for a limited time only. The first frame, not yet confirmed,
    /// waits without limit and does not count.
    pub fn is_frame_waiting(&self) -> bool {
        self.held.is_some()
    }

    /// Assumes that the next frame does not come: a waiting frame is numbered by its time stamp.
    pub fn settle_waiting(&mut self) {
        if let Some(held) = self.held.take() {
            self.number_by_time(held);
        }
    }

    /// Ends the numbering: no more frames will come. A first frame that no other has confirmed belongs to no event.
    pub fn finish_numbering(&mut self) {
        self.settle_waiting();
        if let Some(seen) = self.first.take() {
            self.push_stray(seen.frame);
        }
    }

    /// Returns the next result known so far, in the order of events.
    pub fn next_numbered(&mut self) -> Option<Numbered<T>> {
        self.ready.pop_front()
    }

    /// Returns the counters.
    pub fn beat_counts(&self) -> BeatCounts {
        self.counts
    }

    /// Returns by how much the device's clock is slower than the beat, in parts per billion; negative if it is faster.
    /// `None` before there are enough frames to determine it.
    pub fn drift_ppb(&self) -> Option<f64> {
        self.drift.nanos_per_beat().map(|off| off / self.beat.period_nanos() as f64 * 1e9)
    }

    /// Handles a frame before any has a number: a frame is believed when the next is a whole number of beats after it.
    fn confirm_first_frame(&mut self, seen: Seen<T>) {
        let Some(before) = self.first.take() else {
            self.first = Some(seen);
            return;
        };
        let is_confirmed = self.frames_agree((before.counter, before.time), (seen.counter, seen.time));
        if is_confirmed {
            self.confirmed.get_or_insert(before.time);
        }
        match self.origin {
            Some(origin) if is_confirmed && self.nearest_event(origin, before.time).0 >= 0 => {
                self.number_first_frame(before, origin);
                match self.last {
                    Some(last) => self.follow_frame(seen, last),
                    None => self.first = Some(seen),
                }
            }
            Some(origin) if self.nearest_event(origin, before.time).0 >= 0 => {
                self.push_stray(before.frame);
                self.first = Some(seen);
            }
            _ => {
                self.ready.push_back(Numbered::Before(before.frame));
                self.first = Some(seen);
            }
        }
    }

    /// Returns the event that is nearest to a time by the origin alone, and the distance from it in nanoseconds.
    fn nearest_event(&self, origin: TaiNanos, time: TaiNanos) -> (i64, i64) {
        let period = i128::from(self.beat.period_nanos());
        let since = i128::from(time.0) - i128::from(origin.0);
        let number = (since + period / 2).div_euclid(period);
        (i64::try_from(number).unwrap_or(i64::MAX), i64::try_from(since - number * period).unwrap_or(i64::MAX))
    }

    /// Returns whether two frames can be of the same device and beat: a whole number of beats apart, and no fewer than
    /// the counter's difference.
    fn frames_agree(&self, before: (u64, TaiNanos), after: (u64, TaiNanos)) -> bool {
        let between = i128::from(after.1.0) - i128::from(before.1.0);
        let period = i128::from(self.beat.period_nanos());
        let beats = (between + period / 2).div_euclid(period);
        let off = (between - beats * period).abs();
        after.0 > before.0
            && beats >= i128::from(after.0 - before.0)
            && off <= i128::from(saturating_nanos(self.beat.tolerance))
    }

    /// Numbers the first frame.
    fn number_first_frame(&mut self, seen: Seen<T>, origin: TaiNanos) {
        let (event, off) = self.nearest_event(origin, seen.time);
        if event < 0 {
            return self.ready.push_back(Numbered::Before(seen.frame));
        }
        if off.abs() > saturating_nanos(self.beat.tolerance) {
            return self.push_stray(seen.frame);
        }
        if event > 0 {
            // Frames before the first one are not known.
            self.push_missed(0, event);
        }
        self.accept_frame(seen, event);
    }

    /// Returns the deviation of a frame of this event, with this time stamp, from whole periods after the origin, in
    /// nanoseconds.
    fn deviation_nanos(&self, event: i64, time: TaiNanos) -> i64 {
        let origin = self.origin.map_or(0, |origin| origin.0);
        let off = i128::from(time.0) - i128::from(origin) - i128::from(event) * i128::from(self.beat.period_nanos());
        i64::try_from(off).unwrap_or(if off > 0 { i64::MAX } else { i64::MIN })
    }

    /// Returns the event whose frame is expected nearest to a time, and the deviation of that time in nanoseconds.
    fn expected_event(&self, last: Last, time: TaiNanos) -> (i64, i64) {
        let beat = self.beat.period_nanos() as f64 + self.drift.nanos_per_beat().unwrap_or(0.0);
        let since = self.deviation_nanos(last.event, time) as f64 - self.drift.expected_deviation(last.event);
        let beats = (since / beat).round();
        (last.event.saturating_add(beats as i64), (since - beats * beat) as i64)
    }

    /// Returns whether the device's clock was set: time stamps cannot run ahead of the frames' arrival.
    fn is_clock_ahead(&self, time: TaiNanos, arrived: Duration) -> bool {
        self.ahead.is_some_and(|most| stamp_lead_nanos(time, arrived) > most + MAX_LEAD_NANOS)
    }

    fn follow_frame(&mut self, seen: Seen<T>, last: Last) {
        if self.is_clock_ahead(seen.time, seen.arrived) {
            return self.handle_contradiction(seen, last);
        }
        let (by_time, off) = self.expected_event(last, seen.time);
        if let Some(held) = self.held.take() {
            // If the frame before was stamped late, this one is where the counter has it.
            let steps = i64::try_from(seen.counter.saturating_sub(held.seen.counter)).unwrap_or(i64::MAX);
            match seen.counter > held.seen.counter && by_time == held.by_counter.saturating_add(steps) {
                true => {
                    self.counts.stamped_late += 1;
                    self.number_frame(held.seen.counter, held.by_counter, held.seen.frame, true);
                }
                false => self.number_by_time(held),
            }
        }
        let Some(last) = self.last else { return self.confirm_first_frame(seen) };
        let is_near = off.abs() <= saturating_nanos(self.beat.tolerance);
        if seen.counter <= last.counter {
            self.counts.restarts += 1;
            return match by_time > last.event && is_near {
                true => self.accept_frame(seen, by_time),
                false => self.handle_contradiction(seen, last),
            };
        }
        let by_counter = last.event.saturating_add(i64::try_from(seen.counter - last.counter).unwrap_or(i64::MAX));
        if by_time == by_counter {
            self.counts.off_beat += u64::from(!is_near);
            self.accept_frame(seen, by_time);
        } else if by_time > by_counter {
            self.held = Some(Held { seen, by_time, by_counter, off });
        } else if by_time > last.event && is_near {
            // The counter has skipped more than time has.
            self.accept_frame(seen, by_time);
        } else {
            self.handle_contradiction(seen, last);
        }
    }

    /// Numbers a held frame by its time stamp, which was right: triggers were missed.
    fn number_by_time(&mut self, held: Held<T>) {
        if held.off.abs() > saturating_nanos(self.beat.tolerance) {
            return self.push_stray(held.seen.frame);
        }
        if let Some(last) = self.last {
            self.push_lost(last.event + 1, held.by_counter);
        }
        self.push_missed(held.by_counter, held.by_time);
        self.accept_frame(held.seen, held.by_time);
    }

    /// Handles a frame whose time stamp contradicts those before. It belongs to no event, unless others like it have
    /// come: then its clock was set, and events go on by the counter.
    fn handle_contradiction(&mut self, seen: Seen<T>, last: Last) {
        let (counter, time) = (seen.counter, seen.time);
        let before = self.contradicts.filter(|(before, at, _)| self.frames_agree((*before, *at), (counter, time)));
        let row = before.map_or(1, |(.., row)| row + 1);
        self.contradicts = Some((counter, time, row));
        let steps = i64::try_from(counter.saturating_sub(last.counter)).unwrap_or(i64::MAX).max(1);
        let event = last.event.saturating_add(steps);
        let origin = i128::from(time.0) - i128::from(event) * i128::from(self.beat.period_nanos());
        match u64::try_from(origin) {
            Ok(origin) if row >= MIN_CONTRADICTIONS => {
                self.counts.clock_steps += 1;
                (self.origin, self.ahead, self.is_uncertain) = (Some(TaiNanos(origin)), None, true);
                self.drift = Drift::default();
                if let Some(held) = self.held.take() {
                    self.push_stray(held.seen.frame);
                }
                self.accept_frame(seen, event);
            }
            _ => self.push_stray(seen.frame),
        }
    }

    /// Numbers a frame without a time stamp, by the counter alone.
    fn number_undated(&mut self, counter: u64, last: Last, frame: T) {
        if let Some(held) = self.held.take() {
            self.number_by_time(held);
        }
        let last = self.last.unwrap_or(last);
        let steps = i64::try_from(counter.saturating_sub(last.counter)).unwrap_or(i64::MAX);
        if steps < 1 {
            return self.push_stray(frame);
        }
        self.counts.undated += 1;
        self.number_frame(counter, last.event.saturating_add(steps), frame, false);
    }

    /// Gives the event this frame, whose time stamp is right.
    fn accept_frame(&mut self, seen: Seen<T>, event: i64) {
        let Seen { counter, time, arrived, frame } = seen;
        // After an absence in which clocks may have drifted apart by a part of a beat, the frame may belong to another
        // beat.
        let absence = self.last.map_or(0, |last| event.saturating_sub(last.event)) as f64;
        let most = if self.drift.count >= FRAMES_TO_KNOW { KNOWN_DRIFT } else { UNKNOWN_DRIFT };
        self.is_uncertain |= absence * most > 0.25;
        self.drift.add_deviation(event, self.deviation_nanos(event, time));
        self.ahead = Some(self.ahead.map_or(i128::MIN, |most| most).max(stamp_lead_nanos(time, arrived)));
        self.number_frame(counter, event, frame, true);
    }

    /// Gives the event this frame; the frames of the events in between were lost.
    fn number_frame(&mut self, counter: u64, event: i64, frame: T, is_certain: bool) {
        if let Some(last) = self.last {
            self.push_lost(last.event + 1, event);
        }
        self.contradicts = None;
        self.last = Some(Last { counter, event });
        let is_certain = is_certain && !self.is_uncertain;
        self.ready.push_back(Numbered::Frame { event: event as u64, frame, is_certain });
    }

    fn push_lost(&mut self, from: i64, to: i64) {
        if to > from {
            self.ready.push_back(Numbered::Lost { event: from as u64, count: (to - from) as u64 });
        }
    }

    fn push_missed(&mut self, from: i64, to: i64) {
        if to > from {
            self.counts.missed += (to - from) as u64;
            self.ready.push_back(Numbered::Missed { event: from as u64, count: (to - from) as u64 });
            if let Some(last) = &mut self.last {
                last.event = to - 1;
            }
        }
    }

    fn push_stray(&mut self, frame: T) {
        self.counts.stray += 1;
        self.ready.push_back(Numbered::Stray(frame));
    }
}

/// Returns how much later a frame was stamped than it arrived, in nanoseconds, by clocks with arbitrary epochs.
fn stamp_lead_nanos(time: TaiNanos, arrived: Duration) -> i128 {
    i128::from(time.0) - i128::try_from(arrived.as_nanos()).unwrap_or(i128::MAX)
}

/// Deviation of frames from their beats, as a line over the beats: least squares with decaying weights.
#[derive(Debug, Default)]
struct Drift {
    count: f64,
    /// Sums of x, y, x², x y, with x in beats back from the last one.
    sums: [f64; 4],
    last: Option<i64>,
}

impl Drift {
    /// Age in frames at which a frame's weight has fallen to about a third (1/e).
    const MEMORY_FRAMES: f64 = 10_000.0;
    const MIN_FRAME_COUNT: f64 = 50.0;

    fn add_deviation(&mut self, event: i64, off: i64) {
        let step = self.last.replace(event).map_or(0.0, |last| (event - last) as f64);
        let [x, y, xx, xy] = self.sums;
        // The origin moves along with the newest frame, so that sums stay small.
        let moved = [x - step * self.count, y, xx - 2.0 * step * x + step * step * self.count, xy - step * y];
        let keep = 1.0 - 1.0 / Self::MEMORY_FRAMES;
        self.sums = moved.map(|sum| sum * keep);
        self.sums[1] += off as f64;
        self.count = self.count * keep + 1.0;
    }

    /// Returns the drift per beat in nanoseconds, or `None` before there are enough frames.
    fn nanos_per_beat(&self) -> Option<f64> {
        let [x, y, xx, xy] = self.sums;
        let spread = xx * self.count - x * x;
        (self.count >= Self::MIN_FRAME_COUNT && spread > 0.0).then(|| (xy * self.count - x * y) / spread)
    }

    /// Returns the expected deviation of this event's frame from its beat, in nanoseconds.
    fn expected_deviation(&self, event: i64) -> f64 {
        let [x, y, ..] = self.sums;
        let mean = if self.count > 0.0 { y / self.count } else { 0.0 };
        let slope = self.nanos_per_beat().unwrap_or(0.0);
        let since = self.last.map_or(0, |last| event.saturating_sub(last)) as f64;
        mean + slope * (since - x / self.count.max(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_wire::{GOLDEN_GAMMA, mix_bits};

    const PERIOD: u64 = 16_666_667;
    const START: u64 = 1_800_000_000_000_000_000;

    fn beat() -> Beat {
        Beat {
            period: Duration::from_nanos(PERIOD),
            phase: Some(Duration::from_millis(3)),
            tolerance: Duration::from_millis(5),
        }
    }

    fn numbered(frames: impl IntoIterator<Item = (u64, i64)>) -> (Vec<Numbered<u64>>, BeatCounts) {
        let mut beats = Beats::new(beat(), Some(TaiNanos(START + 3_000_000)));
        for (counter, since) in frames {
            let arrived = Duration::from_nanos(1_000_000_000_u64.saturating_add_signed(since));
            beats.add_frame(counter, Some(TaiNanos(START.checked_add_signed(since).unwrap())), arrived, counter);
        }
        beats.finish_numbering();
        (std::iter::from_fn(|| beats.next_numbered()).collect(), beats.beat_counts())
    }

    fn at(event: i64) -> i64 {
        3_000_000 + event * PERIOD as i64
    }

    fn frame(event: u64, frame: u64) -> Numbered<u64> {
        Numbered::Frame { event, frame, is_certain: true }
    }

    #[test]
    fn loss_a_missed_trigger_and_a_late_stamp_are_told_from_each_other() {
        let whole = |count: i64| (0..count).map(|n| (100 + n as u64, at(n)));
        let (all, counts) = numbered(whole(4));
        assert_eq!(all, [frame(0, 100), frame(1, 101), frame(2, 102), frame(3, 103)]);
        assert_eq!(counts, BeatCounts::default());

        let (lost, counts) = numbered(whole(5).filter(|(counter, _)| *counter != 102));
        assert_eq!(lost[2..], [Numbered::Lost { event: 2, count: 1 }, frame(3, 103), frame(4, 104)]);
        assert_eq!(counts, BeatCounts::default());

        let (missed, counts) = numbered([(100, at(0)), (101, at(1)), (102, at(3)), (103, at(4))]);
        assert_eq!(missed[2..], [Numbered::Missed { event: 2, count: 1 }, frame(3, 102), frame(4, 103)]);
        assert_eq!(counts, BeatCounts { missed: 1, ..Default::default() });

        let (late, counts) = numbered([(100, at(0)), (101, at(1)), (102, at(3) - 1000), (103, at(3)), (104, at(4))]);
        assert_eq!(late[2..], [frame(2, 102), frame(3, 103), frame(4, 104)]);
        assert_eq!(counts, BeatCounts { stamped_late: 1, ..Default::default() });

        let (stray, counts) = numbered([(100, at(0)), (101, at(1)), (102, at(1) + 4_000_000), (103, at(2))]);
        assert_eq!((stray[2], counts.stray), (Numbered::Stray(102), 1));
    }

    #[test]
    fn what_is_from_before_the_run_or_between_beats_is_of_no_event() {
        let (seen, counts) = numbered([(1, at(-2)), (2, at(-1)), (3, at(0) + 7_000_000), (4, at(2)), (5, at(3))]);
        assert_eq!(seen[3..], [Numbered::Missed { event: 0, count: 2 }, frame(2, 4), frame(3, 5)]);
        assert_eq!(seen[..3], [Numbered::Before(1), Numbered::Before(2), Numbered::Stray(3)]);
        assert_eq!(counts, BeatCounts { stray: 1, missed: 2, ..Default::default() });
    }

    #[test]
    fn one_wild_time_stamp_is_one_stray_frame_the_first_one_too() {
        let day = 86_400_000_000_000;
        for wild in 0..4_i64 {
            let frames = (0..6).map(|n| (n as u64, at(n) + if n == wild { day } else { 0 }));
            // A frame arrives when it was taken, whatever its time stamp.
            let mut beats = Beats::new(beat(), Some(TaiNanos(START + 3_000_000)));
            for (counter, since) in frames {
                let time = TaiNanos(START.checked_add_signed(since).unwrap());
                beats.add_frame(counter, Some(time), Duration::from_nanos(counter * PERIOD), counter);
            }
            let there: Vec<_> = std::iter::from_fn(|| beats.next_numbered()).collect();
            let good = (0..6).filter(|n| *n != wild as u64);
            let frames: Vec<_> = there.iter().filter(|one| matches!(one, Numbered::Frame { .. })).copied().collect();
            assert_eq!(frames, good.map(|n| frame(n, n)).collect::<Vec<_>>(), "{wild}: {there:?}");
            assert_eq!(beats.beat_counts().stray, 1);
        }
    }

    #[test]
    fn a_clock_that_is_set_leaves_events_to_the_counter_and_in_doubt() {
        for step in [-37_000_000_000, -3_600_000_000_000, 3_600_000_000_000, 5_000_000_000] {
            let mut beats = Beats::new(beat(), Some(TaiNanos(START + 3_000_000)));
            for n in 0..200_u64 {
                let set = if n >= 100 { step } else { 0 };
                let time = TaiNanos(START.checked_add_signed(at(n as i64) + set).unwrap());
                beats.add_frame(n, Some(time), Duration::from_nanos(n * PERIOD), n);
            }
            let mut frames = Vec::new();
            while let Some(one) = beats.next_numbered() {
                if let Numbered::Frame { event, frame, is_certain } = one {
                    assert_eq!(event, frame, "{step}");
                    frames.push((event, is_certain));
                }
            }
            assert!(frames.iter().all(|(event, is_certain)| (*event < 100) == *is_certain), "{step}");
            assert_eq!(
                (frames.len() as u64, beats.beat_counts().clock_steps),
                (200 - u64::from(MIN_CONTRADICTIONS) + 1, 1)
            );
        }
    }

    #[test]
    fn where_no_phase_is_stated_events_begin_where_all_are_told() {
        let beat = Beat { phase: None, ..beat() };
        assert_eq!(beat.origin_after(TaiNanos(START)), None);
        let mut beats = Beats::new(beat, None);
        let time = |n: u64| TaiNanos(START + 777 + n * PERIOD);
        let came =
            |beats: &mut Beats<u64>, n: u64| beats.add_frame(n, Some(time(n)), Duration::from_nanos(n * PERIOD), n);
        came(&mut beats, 0);
        assert_eq!(beats.first_frame_time(), None, "one alone is not believed");
        came(&mut beats, 1);
        assert_eq!(beats.first_frame_time(), Some(time(0)));
        // Another source's clock is two milliseconds off.
        beats.begin_events(TaiNanos(time(4).0 - 2_000_000));
        (2..7).for_each(|n| came(&mut beats, n));
        let there: Vec<_> = std::iter::from_fn(|| beats.next_numbered()).collect();
        let before = (0..4).map(Numbered::Before);
        assert_eq!(there, before.chain((4..7).map(|n| frame(n - 4, n))).collect::<Vec<_>>());
    }

    #[test]
    fn a_frame_without_a_time_has_the_next_number_and_is_in_doubt() {
        let mut beats = Beats::new(beat(), Some(TaiNanos(START + 3_000_000)));
        for n in 0..4_u64 {
            let time = TaiNanos(START.checked_add_signed(at(n as i64)).unwrap());
            beats.add_frame(n, (n != 2).then_some(time), Duration::from_nanos(n * PERIOD), n);
        }
        let there: Vec<_> = std::iter::from_fn(|| beats.next_numbered()).collect();
        let doubted = Numbered::Frame { event: 2, frame: 2, is_certain: false };
        assert_eq!(there, [frame(0, 0), frame(1, 1), doubted, frame(3, 3)]);
    }

    #[test]
    fn events_that_keep_to_absolute_time_begin_with_the_same_period_for_all() {
        let beat =
            |phase| Beat { period: Duration::from_millis(20), phase: Some(Duration::from_millis(phase)), ..beat() };
        for start in [40_000_000, 40_000_001, 59_999_999] {
            let origins = [0, 3, 19].map(|phase| beat(phase).origin_after(TaiNanos(start)).unwrap().0 / 1_000_000);
            let first = if start == 40_000_000 { 40 } else { 60 };
            assert_eq!(origins, [first, first + 3, first + 19]);
        }
    }

    #[test]
    fn a_device_that_counts_anew_goes_on_by_its_clock() {
        let (seen, counts) = numbered([(7, at(0)), (8, at(1)), (0, at(5)), (1, at(6))]);
        assert_eq!(seen[2..], [Numbered::Lost { event: 2, count: 3 }, frame(5, 0), frame(6, 1)]);
        assert_eq!(counts, BeatCounts { restarts: 1, ..Default::default() });
    }

    #[test]
    fn beats_that_cannot_be_are_refused() {
        for (key, beat) in [
            ("period", Beat { period: Duration::ZERO, ..beat() }),
            ("phase", Beat { phase: Some(Duration::from_millis(17)), ..beat() }),
            ("tolerance", Beat { tolerance: Duration::from_millis(9), ..beat() }),
            ("tolerance", Beat { tolerance: Duration::ZERO, ..beat() }),
        ] {
            assert_eq!(beat.check_values().unwrap_err().0, key);
        }
        assert_eq!(beat().check_values(), Ok(()));
    }

    /// Model of a camera's clock and of the fate of its frames, all drawn from a seed.
    struct Clock {
        seed: u64,
        drift_ppm: f64,
        jitter: u64,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Fate {
        Seen,
        Lost,
        Missed,
        StampedLate,
    }

    impl Clock {
        fn draw(&self, event: u64, what: u64) -> u64 {
            mix_bits(mix_bits(self.seed.wrapping_mul(GOLDEN_GAMMA) ^ event).wrapping_add(what))
        }

        /// Draws the fate of an event's frame. Two unusual fates never follow each other directly: they could not be
        /// distinguished.
        fn fate(&self, event: u64) -> Fate {
            match (event % 3, self.draw(event, 0) % 40) {
                (1, 0) => Fate::Lost,
                (1, 1) => Fate::Missed,
                (1, 2) => Fate::StampedLate,
                _ => Fate::Seen,
            }
        }

        /// Counter, time stamp and true event of each frame that comes.
        fn frames(&self, events: u64) -> Vec<(u64, TaiNanos, u64)> {
            let mut counter = self.draw(0, 9) % 1000;
            let mut frames = Vec::new();
            for event in 0..events {
                let fate = self.fate(event);
                let late = if fate == Fate::StampedLate { PERIOD as i64 } else { 0 };
                let jitter = (self.draw(event, 1) % (2 * self.jitter + 1)) as i64 - self.jitter as i64;
                let drift = (event as f64 * PERIOD as f64 * self.drift_ppm / 1e6) as i64;
                let time = START.checked_add_signed(at(event as i64) + drift + jitter + late).unwrap();
                match fate {
                    Fate::Missed => {}
                    Fate::Lost => counter += 1,
                    Fate::Seen | Fate::StampedLate => {
                        frames.push((counter, TaiNanos(time), event));
                        counter += 1;
                    }
                }
            }
            frames
        }
    }

    /// An hour of a trigger of 60 Hz whose exact rate is unknown, and of six clocks that drift at different rates.
    #[test]
    fn of_six_clocks_that_drift_for_an_hour_no_event_is_mixed() {
        let beat = Beat { phase: None, ..beat() };
        for camera in 0..6_u64 {
            let clock = Clock { seed: 90 + camera, drift_ppm: 20.0 * camera as f64, jitter: 1_000_000 };
            let mut beats = Beats::new(beat, Some(TaiNanos(START + 3_000_000 + 2_000_000)));
            for (counter, time, event) in clock.frames(216_000) {
                beats.add_frame(counter, Some(time), Duration::from_nanos(event * PERIOD), event);
            }
            beats.finish_numbering();
            let mut frames = 0;
            while let Some(one) = beats.next_numbered() {
                if let Numbered::Frame { event, frame, is_certain } = one {
                    assert_eq!((event, is_certain), (frame, true), "camera {camera}");
                    frames += 1;
                }
            }
            assert_eq!(beats.beat_counts().stray, 0, "camera {camera}: {:?}", beats.beat_counts());
            assert!(frames > 190_000);
        }
    }

    #[test]
    fn of_six_clocks_every_frame_gets_its_event_and_every_other_its_reason() {
        for camera in 0..6_u64 {
            let clock = Clock { seed: 40 + camera, drift_ppm: camera as f64 - 2.5, jitter: 500_000 * camera };
            let events = 20_000;
            let mut beats = Beats::new(beat(), Some(TaiNanos(START + 3_000_000)));
            for (counter, time, event) in clock.frames(events) {
                beats.add_frame(counter, Some(time), Duration::from_nanos(time.0 - START), event);
            }
            beats.finish_numbering();
            let (mut next, mut lost, mut missed) = (0, 0, 0);
            while let Some(one) = beats.next_numbered() {
                let (from, count) = match one {
                    Numbered::Frame { event, frame, .. } => {
                        assert_eq!(event, frame, "camera {camera}");
                        (event, 1)
                    }
                    Numbered::Lost { event, count } => {
                        assert!((event..event + count).all(|event| clock.fate(event) == Fate::Lost));
                        lost += count;
                        (event, count)
                    }
                    Numbered::Missed { event, count } => {
                        assert!((event..event + count).all(|event| clock.fate(event) == Fate::Missed));
                        missed += count;
                        (event, count)
                    }
                    Numbered::Before(frame) | Numbered::Stray(frame) => {
                        panic!("frame {frame} of camera {camera} is of an event")
                    }
                };
                assert_eq!(from, next, "every event once, in order");
                next += count;
            }
            let fates = |fate| (0..next).filter(|event| clock.fate(*event) == fate).count() as u64;
            assert!(next >= events - 1 && lost > 50 && missed > 50);
            assert_eq!((lost, missed), (fates(Fate::Lost), fates(Fate::Missed)));
            assert_eq!(beats.beat_counts().stamped_late, fates(Fate::StampedLate));
            let measured = beats.drift_ppb().unwrap() / 1e3;
            assert!((measured - clock.drift_ppm).abs() < 0.2, "camera {camera}: {measured} ppm, {}", clock.drift_ppm);
        }
    }

    proptest! {
        /// For any counters and time stamps: events come in order, each once, and every frame comes back.
        #[test]
        fn events_come_in_order_and_every_frame_comes_back(
            frames in proptest::collection::vec((0u64..60, -3i64..60, -8_000_000i64..8_000_000), 0..60),
        ) {
            let mut beats = Beats::new(beat(), Some(TaiNanos(START + 3_000_000)));
            for (at_, (counter, event, off)) in frames.iter().enumerate() {
                beats.add_frame(*counter, Some(TaiNanos(START.checked_add_signed(at(*event) + off).unwrap())), Duration::ZERO, at_);
            }
            beats.finish_numbering();
            let (mut next, mut back) = (0, 0);
            while let Some(one) = beats.next_numbered() {
                let (event, count) = match one {
                    Numbered::Frame { event, .. } => { back += 1; (event, 1) }
                    Numbered::Lost { event, count } | Numbered::Missed { event, count } => (event, count),
                    Numbered::Stray(_) | Numbered::Before(_) => { back += 1; continue }
                };
                prop_assert_eq!(event, next);
                next = event + count;
            }
            prop_assert_eq!(back, frames.len());
        }

        /// For any times: nothing overflows.
        #[test]
        fn no_time_is_too_far_away(frames in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..20), start: u64) {
            let mut beats = Beats::new(beat(), Some(TaiNanos(start)));
            for (counter, time) in frames {
                beats.add_frame(counter, Some(TaiNanos(time)), Duration::ZERO, ());
            }
            beats.finish_numbering();
            while beats.next_numbered().is_some() {}
            beats.drift_ppb();
        }
    }
}
