//! Events numbered by time: for devices that share a clock, or a trigger, and no counter.
//!
//! A machine's beat says when events are: number *n* at `start + phase + n · period`. A frame belongs to the beat that
//! is nearest to its time stamp. Its device's counter says what the time stamp alone does not: whether a beat without a
//! frame is one whose frame was lost, one whose trigger was missed, or one whose frame was stamped late.
//!
//! | the counter | the time stamp | what happened |
//! | --- | --- | --- |
//! | goes on by one | by one beat | a frame in its place, early or late by its jitter |
//! | skips *k* | by *k* + 1 beats | *k* frames were lost in the device |
//! | goes on by one | by *k* + 1 beats, and the next frame's by one | *k* triggers were missed |
//! | goes on by one | by two beats, and the next frame has its own place | the frame was stamped a beat late |
//! | goes on by one | stays at its beat | a frame that nobody asked for |
//!
//! A device whose clock runs at another rate leaves its beats slowly. That is measured (`drift`), and its frames go to
//! the beats that they are nearest to.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;
use thalweg_wire::TaiNanos;

/// When events are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beat {
    /// From one event to the next.
    #[serde(with = "crate::duration")]
    pub period: Duration,
    /// How much later than the beat the device stamps its frames: exposure, delay, cables. Less than a period.
    #[serde(default, with = "crate::duration", skip_serializing_if = "Duration::is_zero")]
    pub phase: Duration,
    /// How far a time stamp may be from that and still be of the event; at most half a period.
    #[serde(with = "crate::duration")]
    pub tolerance: Duration,
}

impl Beat {
    /// Looks for what cannot be.
    ///
    /// # Errors
    /// Which key, and what is wrong with it.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let Self { period, phase, tolerance } = *self;
        if !(Duration::from_micros(1)..=Duration::from_secs(3600)).contains(&period) {
            return Err(("period", format!("{period:?}; it is 1 µs to 1 h")));
        }
        if phase >= period {
            return Err(("phase", format!("{phase:?}; it is less than a period, {period:?}")));
        }
        match tolerance <= period / 2 && !tolerance.is_zero() {
            true => Ok(()),
            false => Err(("tolerance", format!("{tolerance:?}; it is more than nothing and at most half a period"))),
        }
    }

    /// The event that is nearest to a time, counted from the run's start, and how far away it is in nanoseconds.
    fn nearest(&self, start: TaiNanos, time: TaiNanos) -> (i64, i64) {
        let period = nanos(self.period);
        let since = i128::from(time.0) - i128::from(start.0) - i128::from(nanos(self.phase));
        let number = (since + i128::from(period / 2)).div_euclid(i128::from(period));
        let off = since - number * i128::from(period);
        (i64::try_from(number).unwrap_or(i64::MAX), i64::try_from(off).unwrap_or(i64::MAX))
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// What is known of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbered<T> {
    /// This is its frame.
    Frame {
        /// Which event.
        event: u64,
        /// What [`Beats::came`] was given.
        frame: T,
    },
    /// The device lost the frames of so many events, from this one on.
    Lost {
        /// The first.
        event: u64,
        /// How many.
        count: u64,
    },
    /// The device was not triggered, or did not heed it, for so many events from this one on.
    Missed {
        /// The first.
        event: u64,
        /// How many.
        count: u64,
    },
    /// A frame of no event.
    Stray(T),
}

/// What was counted beside.
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
}

/// Numbers the frames of one device by time. Without IO.
#[derive(Debug)]
pub struct Beats<T> {
    beat: Beat,
    start: TaiNanos,
    /// Counter and event of the frame that was numbered last.
    last: Option<(u64, i64)>,
    /// A frame whose time stamp is ahead of its counter: the next one tells which is right.
    held: Option<Held<T>>,
    ready: VecDeque<Numbered<T>>,
    counts: BeatCounts,
    drift: Drift,
}

#[derive(Debug)]
struct Held<T> {
    counter: u64,
    by_time: i64,
    by_counter: i64,
    off: i64,
    frame: T,
}

impl<T> Beats<T> {
    /// From the start of a run, which all devices are told alike.
    pub fn new(beat: Beat, start: TaiNanos) -> Self {
        let (last, held) = (None, None);
        Self { beat, start, last, held, ready: VecDeque::new(), counts: BeatCounts::default(), drift: Drift::default() }
    }

    /// A frame came, with its device's number and its time stamp.
    pub fn came(&mut self, counter: u64, time: TaiNanos, frame: T) {
        let (by_time, off) = self.beat.nearest(self.start, time);
        if let Some(held) = self.held.take() {
            // Had the one before been stamped late, this one would be where the counter has it.
            let steps = i64::try_from(counter.saturating_sub(held.counter)).unwrap_or(i64::MAX);
            match counter > held.counter && by_time == held.by_counter.saturating_add(steps) {
                true => {
                    self.counts.stamped_late += 1;
                    self.number(held.counter, held.by_counter, held.frame);
                }
                false => self.take_at_its_time(held),
            }
        }
        let Some((before, event)) = self.last else {
            if by_time < 0 || off.abs() > nanos(self.beat.tolerance) {
                return self.stray(frame);
            }
            if by_time > 0 {
                // Nobody knows what was there before the first.
                self.miss(0, by_time);
            }
            self.drift.add(by_time, off);
            self.last = Some((counter, by_time));
            return self.ready.push_back(Numbered::Frame { event: by_time as u64, frame });
        };
        if counter <= before {
            self.counts.restarts += 1;
            return match by_time > event && off.abs() <= nanos(self.beat.tolerance) {
                true => {
                    self.lose(event + 1, by_time);
                    self.last = Some((counter, by_time));
                    self.ready.push_back(Numbered::Frame { event: by_time as u64, frame });
                }
                false => self.stray(frame),
            };
        }
        let by_counter = event.saturating_add(i64::try_from(counter - before).unwrap_or(i64::MAX));
        if by_time == by_counter {
            self.counts.off_beat += u64::from(off.abs() > nanos(self.beat.tolerance));
            self.drift.add(by_time, off);
            return self.number(counter, by_time, frame);
        }
        if by_time > by_counter {
            self.held = Some(Held { counter, by_time, by_counter, off, frame });
        } else if by_time > event && off.abs() <= nanos(self.beat.tolerance) {
            // The counter has skipped more than time has.
            self.number(counter, by_time, frame);
        } else {
            self.stray(frame);
        }
    }

    /// Until when a held frame is held, as a time stamp: then the next one should be there.
    pub fn waits(&self) -> bool {
        self.held.is_some()
    }

    /// The next frame does not come: what is held is taken at its time.
    pub fn settle(&mut self) {
        if let Some(held) = self.held.take() {
            self.take_at_its_time(held);
        }
    }

    /// What is known by now, in the order of events.
    pub fn take(&mut self) -> Option<Numbered<T>> {
        self.ready.pop_front()
    }

    /// What was counted.
    pub fn counts(&self) -> BeatCounts {
        self.counts
    }

    /// How much slower the device's clock is than the beat, in parts of a thousand million; negative where it is faster.
    /// Nothing before there are enough frames to tell.
    pub fn drift(&self) -> Option<f64> {
        self.drift.per_beat().map(|off| off / self.beat.period.as_nanos() as f64 * 1e9)
    }

    /// The time stamp was right: triggers were missed.
    fn take_at_its_time(&mut self, held: Held<T>) {
        if held.off.abs() > nanos(self.beat.tolerance) {
            return self.stray(held.frame);
        }
        if let Some((_, event)) = self.last {
            self.lose(event + 1, held.by_counter);
        }
        self.miss(held.by_counter, held.by_time);
        self.last = Some((held.counter, held.by_time));
        self.drift.add(held.by_time, held.off);
        self.ready.push_back(Numbered::Frame { event: held.by_time as u64, frame: held.frame });
    }

    /// This is the event's frame; those in between were lost.
    fn number(&mut self, counter: u64, event: i64, frame: T) {
        if let Some((_, before)) = self.last {
            self.lose(before + 1, event);
        }
        self.last = Some((counter, event));
        self.ready.push_back(Numbered::Frame { event: event as u64, frame });
    }

    fn lose(&mut self, from: i64, to: i64) {
        if to > from {
            self.ready.push_back(Numbered::Lost { event: from as u64, count: (to - from) as u64 });
        }
    }

    fn miss(&mut self, from: i64, to: i64) {
        if to > from {
            self.counts.missed += (to - from) as u64;
            self.ready.push_back(Numbered::Missed { event: from as u64, count: (to - from) as u64 });
        }
    }

    fn stray(&mut self, frame: T) {
        self.counts.stray += 1;
        self.ready.push_back(Numbered::Stray(frame));
    }
}

/// How far frames are from their beats, as a line over the beats: least squares, of which what is old counts less.
#[derive(Debug, Default)]
struct Drift {
    count: f64,
    /// Sums of x, y, x², x y, with x in beats back from the last one.
    sums: [f64; 4],
    last: Option<i64>,
}

impl Drift {
    /// What is so many frames old counts a third.
    const MEMORY: f64 = 10_000.0;
    const ENOUGH: f64 = 50.0;

    fn add(&mut self, event: i64, off: i64) {
        let step = self.last.replace(event).map_or(0.0, |last| (event - last) as f64);
        let [x, y, xx, xy] = self.sums;
        // The origin goes along with the newest, so that sums stay small.
        let moved = [x - step * self.count, y, xx - 2.0 * step * x + step * step * self.count, xy - step * y];
        let keep = 1.0 - 1.0 / Self::MEMORY;
        self.sums = moved.map(|sum| sum * keep);
        self.sums[1] += off as f64;
        self.count = self.count * keep + 1.0;
    }

    /// Nanoseconds in a beat.
    fn per_beat(&self) -> Option<f64> {
        let [x, y, xx, xy] = self.sums;
        let spread = xx * self.count - x * x;
        (self.count >= Self::ENOUGH && spread > 0.0).then(|| (xy * self.count - x * y) / spread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_wire::{GAMMA, mix};

    const PERIOD: u64 = 16_666_667;
    const START: u64 = 1_800_000_000_000_000_000;

    fn beat() -> Beat {
        Beat {
            period: Duration::from_nanos(PERIOD),
            phase: Duration::from_millis(3),
            tolerance: Duration::from_millis(5),
        }
    }

    fn numbered(frames: impl IntoIterator<Item = (u64, i64)>) -> (Vec<Numbered<u64>>, BeatCounts) {
        let mut beats = Beats::new(beat(), TaiNanos(START));
        for (counter, since) in frames {
            beats.came(counter, TaiNanos(START.checked_add_signed(since).unwrap()), counter);
        }
        beats.settle();
        (std::iter::from_fn(|| beats.take()).collect(), beats.counts())
    }

    fn at(event: i64) -> i64 {
        3_000_000 + event * PERIOD as i64
    }

    fn frame(event: u64, frame: u64) -> Numbered<u64> {
        Numbered::Frame { event, frame }
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

        let (stray, counts) = numbered([(100, at(0)), (101, at(0) + 4_000_000), (102, at(1))]);
        assert_eq!((stray[1], counts.stray), (Numbered::Stray(101), 1));
    }

    #[test]
    fn what_is_from_before_the_run_or_between_beats_is_of_no_event() {
        let (seen, counts) = numbered([(1, at(-2)), (2, at(-1)), (3, at(0) + 7_000_000), (4, at(2))]);
        assert_eq!(seen[3..], [Numbered::Missed { event: 0, count: 2 }, frame(2, 4)]);
        assert_eq!(counts, BeatCounts { stray: 3, missed: 2, ..Default::default() });
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
            ("phase", Beat { phase: Duration::from_millis(17), ..beat() }),
            ("tolerance", Beat { tolerance: Duration::from_millis(9), ..beat() }),
            ("tolerance", Beat { tolerance: Duration::ZERO, ..beat() }),
        ] {
            assert_eq!(beat.check().unwrap_err().0, key);
        }
        assert_eq!(beat().check(), Ok(()));
    }

    /// A clock of a camera, and what happens to its frames: all drawn from a seed.
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
            mix(mix(self.seed.wrapping_mul(GAMMA) ^ event).wrapping_add(what))
        }

        /// Two of them never come one after the other: nobody could tell then.
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

    #[test]
    fn of_six_clocks_every_frame_gets_its_event_and_every_other_its_reason() {
        for camera in 0..6_u64 {
            let clock = Clock { seed: 40 + camera, drift_ppm: camera as f64 - 2.5, jitter: 500_000 * camera };
            let events = 20_000;
            let mut beats = Beats::new(beat(), TaiNanos(START));
            for (counter, time, event) in clock.frames(events) {
                beats.came(counter, time, event);
            }
            beats.settle();
            let (mut next, mut lost, mut missed) = (0, 0, 0);
            while let Some(one) = beats.take() {
                let (from, count) = match one {
                    Numbered::Frame { event, frame } => {
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
                    Numbered::Stray(frame) => panic!("frame {frame} of camera {camera} is of an event"),
                };
                assert_eq!(from, next, "every event once, in order");
                next += count;
            }
            let fates = |fate| (0..next).filter(|event| clock.fate(*event) == fate).count() as u64;
            assert!(next >= events - 1 && lost > 50 && missed > 50);
            assert_eq!((lost, missed), (fates(Fate::Lost), fates(Fate::Missed)));
            assert_eq!(beats.counts().stamped_late, fates(Fate::StampedLate));
            let measured = beats.drift().unwrap() / 1e3;
            assert!((measured - clock.drift_ppm).abs() < 0.2, "camera {camera}: {measured} ppm, {}", clock.drift_ppm);
        }
    }

    proptest! {
        /// Whatever counters and time stamps say: events come in order, each once, and every frame comes back.
        #[test]
        fn events_come_in_order_and_every_frame_comes_back(
            frames in proptest::collection::vec((0u64..60, -3i64..60, -8_000_000i64..8_000_000), 0..60),
        ) {
            let mut beats = Beats::new(beat(), TaiNanos(START));
            for (at_, (counter, event, off)) in frames.iter().enumerate() {
                beats.came(*counter, TaiNanos(START.checked_add_signed(at(*event) + off).unwrap()), at_);
            }
            beats.settle();
            let (mut next, mut back) = (0, 0);
            while let Some(one) = beats.take() {
                let (event, count) = match one {
                    Numbered::Frame { event, .. } => { back += 1; (event, 1) }
                    Numbered::Lost { event, count } | Numbered::Missed { event, count } => (event, count),
                    Numbered::Stray(_) => { back += 1; continue }
                };
                prop_assert_eq!(event, next);
                next = event + count;
            }
            prop_assert_eq!(back, frames.len());
        }

        /// Times from anybody: nothing overflows.
        #[test]
        fn no_time_is_too_far_away(frames in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..20), start: u64) {
            let mut beats = Beats::new(beat(), TaiNanos(start));
            for (counter, time) in frames {
                beats.came(counter, TaiNanos(time), ());
            }
            beats.settle();
            while beats.take().is_some() {}
            beats.drift();
        }
    }
}
