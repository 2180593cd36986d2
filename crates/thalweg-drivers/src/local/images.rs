//! Numbers of a camera's images: by its driver's count, and where that restarts, by time. Without IO.

use std::time::Duration;
use thalweg_device::{Absence, CounterRules, FrameCounter, FrameNumber, Trust};

/// Age after which an image that was taken is no longer expected to arrive.
const LATE: Duration = Duration::from_secs(1);
/// Maximum difference of a correct rate from the observed one, as a fraction.
const MAX_DRIFT: f64 = 1e-4;

/// Numbering of a camera's images.
#[derive(Debug)]
pub(crate) struct Images {
    counter: FrameCounter,
    /// Number after the newest image.
    next: u64,
    /// Rate that the driver states, in images per second, and number of images for which it was seen to hold; `None` if
    /// it did not hold, or has changed.
    rate: Option<f64>,
    rate_seen: Option<u64>,
    /// Time at which the driver began to capture; `None` if it does not.
    begun: Option<Duration>,
    /// First and newest image of the present capture.
    stream: Option<(Taken, Taken)>,
    /// Last image before the camera went away, until there is an image again.
    away: Option<Taken>,
    /// True if the camera was away before any image arrived.
    was_away_before_first: bool,
    /// Time at which the driver last had no image, its buffers then, and the number of images that have come since.
    empty: Duration,
    buffers: usize,
    came: usize,
    /// True if the driver may have had no buffer before the next image.
    was_full: bool,
    /// Number of buffers that came back without an image since the last one.
    unfilled: u64,
}

/// Time at which an image was taken.
#[derive(Debug, Clone, Copy)]
struct Taken {
    number: u64,
    /// Time that the driver states, if any.
    dated: Option<Duration>,
    /// Earliest and latest time at which the image arrived.
    came: (Duration, Duration),
}

impl Images {
    /// Creates the numbering for a camera of which no image has arrived. `rate`: images per second, if its driver
    /// states it.
    pub(crate) fn new(rate: Option<f64>) -> Self {
        Self {
            counter: FrameCounter::new(CounterRules::new(32, Trust::DRIVER)),
            next: 0,
            rate,
            rate_seen: Some(0),
            begun: None,
            stream: None,
            away: None,
            was_away_before_first: false,
            empty: Duration::ZERO,
            buffers: 0,
            came: 0,
            was_full: false,
            unfilled: 0,
        }
    }

    /// Notes that the driver begins to capture into `buffers` buffers; its count restarts.
    pub(crate) fn begin_capture(&mut self, now: Duration, buffers: usize) {
        self.begun = Some(now);
        (self.empty, self.buffers, self.came, self.was_full, self.unfilled) = (now, buffers, 0, false, 0);
    }

    /// Returns true if the driver captures.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Notes that the driver no longer captures.
    pub(crate) fn end_capture(&mut self) {
        if let Some((first, newest)) = self.stream.take() {
            self.rate_seen = self.rate_seen.and_then(|seen| Some(seen.max(self.images_at_rate(first, newest)?)));
            self.away = Some(newest);
        }
        let has_none = self.away.is_none() && self.begun.is_some() && self.buffers > 0;
        (self.begun, self.was_away_before_first) = (None, self.was_away_before_first || has_none);
    }

    /// Sets the rate from now on, in images per second.
    pub(crate) fn set_frame_rate(&mut self, rate: Option<f64>) {
        if rate != self.rate {
            (self.rate, self.rate_seen) = (rate, None);
        }
    }

    /// Notes that the driver has no image by now, and `buffers` buffers.
    pub(crate) fn record_empty(&mut self, now: Duration, buffers: usize) {
        self.was_full |= self.came >= self.buffers;
        (self.empty, self.buffers, self.came) = (now, buffers, 0);
    }

    /// Notes that a buffer came back without an image. Its count is not valid.
    pub(crate) fn record_unfilled(&mut self) {
        (self.came, self.unfilled) = (self.came + 1, self.unfilled + 1);
    }

    /// Takes an image with this count, taken at time `dated` by the driver. Returns its number, and true if the number
    /// is certain.
    pub(crate) fn number_image(&mut self, sequence: u32, dated: Option<Duration>, now: Duration) -> (u64, bool) {
        let taken = Taken { number: 0, dated: dated.filter(|dated| *dated <= now), came: (self.empty.min(now), now) };
        let (number, is_certain) = match self.stream {
            Some((_, newest)) => self.continue_count(sequence.into(), newest, taken, now),
            None => self.first_number(sequence.into(), taken),
        };
        if !is_certain && self.counter.is_certain(number) {
            tracing::warn!(number, "the number of images that the camera lost is unknown: event numbers are uncertain");
        }
        if !is_certain || self.stream.is_none() {
            self.counter.begin_at_count(sequence.into(), number, is_certain, now);
        }
        let taken = Taken { number, ..taken };
        self.stream = Some((self.stream.map_or(taken, |(first, _)| first), taken));
        (self.away, self.was_away_before_first, self.was_full, self.unfilled) = (None, false, false, 0);
        (self.next, self.came) = (number + 1, self.came + 1);
        (number, self.counter.is_certain(number))
    }

    /// Reports that the numbers from `first` on are right: see [`FrameCounter::confirm_numbers`].
    pub(crate) fn confirm_numbers(&mut self, first: u64) {
        self.counter.confirm_numbers(first);
    }

    fn continue_count(&mut self, count: u64, newest: Taken, taken: Taken, now: Duration) -> (u64, bool) {
        let number = match self.counter.accept_count(count, self.next, now) {
            FrameNumber::At(number) if number >= self.next => number,
            // The driver does not count, or restarts its count.
            _ => self.counter.restart_at_count(count, self.next, now),
        };
        // A driver that counts only the images that it hands on skips no number when it has no buffer.
        let was_full = self.was_full || self.came >= self.buffers;
        let may_lack = was_full
            && number == self.next
            && self.rate.is_none_or(|rate| elapsed_bounds(newest, taken).1.as_secs_f64() * rate > 1.75);
        (number, self.unfilled <= number - self.next && !may_lack)
    }

    /// Returns the number of the first image since the driver began to capture, and true if it is certain.
    fn first_number(&self, count: u64, taken: Taken) -> (u64, bool) {
        let (Some(away), Some(_)) = (self.away, self.rate) else {
            // Images that the driver skips at its beginning are lost, too.
            let is_certain = self.away.is_none() && !self.was_away_before_first && self.unfilled <= count;
            return (self.next.saturating_add(count), is_certain);
        };
        let absence = Absence { since: Duration::ZERO, next: away.number + 1 };
        let (least, most) = elapsed_bounds(away, taken);
        let [from, due] = [least, most].map(|passed| absence.expected_number(self.rate, passed));
        let is_on_time = [least, most].iter().all(|passed| absence.is_certain(self.rate, *passed));
        // The rate must have been seen to hold for half as long.
        let is_seen = self.rate_seen.is_some_and(|seen| due - away.number <= 2 * seen);
        (due.max(self.next), from == due && is_on_time && is_seen && due >= self.next)
    }

    /// Returns the first number and the count of the images that the camera would have sent by now while it was away:
    /// they are lost.
    pub(crate) fn lost_while_away(&mut self, now: Duration) -> Option<(u64, u64)> {
        let away = self.away?;
        let until = self.begun.map_or(now, |begun| begun.max(now.saturating_sub(LATE)));
        let absence = Absence { since: away.dated.unwrap_or(away.came.1), next: away.number + 1 };
        let (first, due) = (self.next, absence.expected_number(self.rate, until));
        self.next = due.max(first);
        (due > first).then(|| (first, due - first))
    }

    /// Returns the number of images that came at the stated rate; `None` if they came faster or slower.
    fn images_at_rate(&self, first: Taken, newest: Taken) -> Option<u64> {
        let (rate, images) = (self.rate?, newest.number - first.number);
        let (least, most) = elapsed_bounds(first, newest);
        let slack = 0.25 + images as f64 * MAX_DRIFT;
        let may_be = least.as_secs_f64() * rate - slack..=most.as_secs_f64() * rate + slack;
        may_be.contains(&(images as f64)).then_some(images)
    }
}

/// Returns the time from one image to a later one, at least and at most.
fn elapsed_bounds(from: Taken, to: Taken) -> (Duration, Duration) {
    match (from.dated, to.dated) {
        (Some(from), Some(to)) => (to.saturating_sub(from), to.saturating_sub(from)),
        _ => (to.came.0.saturating_sub(from.came.1), to.came.1.saturating_sub(from.came.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::trials::{Book, Draw, play_calm_trials, play_trials};
    use std::collections::VecDeque;

    const BUFFERS: usize = 8;

    /// Ways in which a driver counts images.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Counting {
        /// Counts also the images for which it has no buffer.
        All,
        /// Counts only the images that it hands on.
        HandedOn,
        Never,
    }

    /// A buffer that a driver gives back: the trigger of the image in it, if any, its count, and the time at which it
    /// was taken.
    type Done = (Option<u64>, u32, Option<Duration>);

    /// A camera and its driver.
    struct Model {
        counting: Counting,
        is_dated: bool,
        count: u32,
        buffers: usize,
        done: VecDeque<Done>,
    }

    impl Model {
        fn take(&mut self, trigger: u64, at: Duration, fails: bool, is_lost: bool) {
            let (count, is_taken) = (self.count, self.buffers > 0 && !is_lost);
            let counted = match self.counting {
                Counting::All => 1,
                Counting::HandedOn => u32::from(is_taken && !fails),
                Counting::Never => 0,
            };
            self.count = count.wrapping_add(counted);
            if is_taken {
                self.buffers -= 1;
                let dated = Some(at).filter(|_| self.is_dated);
                self.done.push_back(if fails { (None, 0, None) } else { (Some(trigger), count, dated) });
            }
        }
    }

    /// A camera that is unplugged and comes back, and a source that stands still or whose run is paused.
    fn trial(seed: u64, is_calm: bool) -> Book {
        let mut draw = Draw::new(seed);
        let interval = Duration::from_secs_f64(1.0 / draw.number_in(5..200) as f64);
        let true_rate = interval.as_secs_f64().recip();
        // The rate that the driver states is the true one, none, or another.
        let rate = match draw.number_in(0..6) {
            0 => None,
            1 => Some(true_rate * (1.0 + draw.number_in(2..1000) as f64 / 1000.0)),
            _ => Some(true_rate * (1.0 + draw.number_in(0..80) as f64 * 1e-6)),
        };
        let counting = match draw.number_in(0..6) {
            _ if is_calm => Counting::All,
            0 => Counting::Never,
            1 => Counting::HandedOn,
            _ => Counting::All,
        };
        // The driver's count wraps around if the run began long ago.
        let start = if counting == Counting::All && draw.once_in(4) { (1 << 32) - draw.number_in(1..300) } else { 0 };
        let mut camera = Model {
            counting,
            is_dated: !draw.once_in(4),
            count: start as u32,
            buffers: BUFFERS,
            done: VecDeque::new(),
        };
        let (mut images, mut book) = (Images::new(rate), Book::new(0));
        let mut now = Duration::from_secs(1);
        let begun = now + interval.mul_f64(draw.number_in(0..1000) as f64 / 1000.0);
        images.begin_capture(now, BUFFERS);
        // Number of buffers that the source has taken and not given back yet.
        let (mut next, mut held, mut back, mut loses) = (start, 0, None::<Duration>, 0);
        for _ in 0..if is_calm { 600 } else { 1500 } {
            // The source looks.
            if back.is_some_and(|back| now >= back) {
                back = None;
                (camera.count, camera.buffers, held) = (0, BUFFERS, 0);
                loses = if draw.once_in(4) { draw.number_in(1..4) } else { 0 };
                images.begin_capture(now, BUFFERS);
            }
            while let Some((trigger, count, dated)) = camera.done.pop_front() {
                held += 1;
                match trigger {
                    None => images.record_unfilled(),
                    Some(trigger) => {
                        if let Some((first, count)) = images.lost_while_away(now) {
                            book.record_lost(first, count);
                        }
                        let (number, is_certain) = images.number_image(count, dated, now);
                        book.record_fragment(number, trigger, is_certain);
                    }
                }
                // Buffers are mostly given back one by one.
                if !draw.once_in(3) {
                    camera.buffers += std::mem::take(&mut held);
                }
            }
            camera.buffers += std::mem::take(&mut held);
            if back.is_none() {
                images.record_empty(now, camera.buffers);
            }
            if let Some((first, count)) = images.lost_while_away(now) {
                book.record_lost(first, count);
            }
            // Before the source looks again, one of these events happens.
            let mut later = now + draw.micros_in(0..interval.as_micros() as u64 / 2);
            match draw.number_in(0..1200) {
                _ if is_calm => {}
                0 | 1 => later = now + draw.micros_in(1000..5_000_000),
                2 if back.is_none() => {
                    // The camera is unplugged: buffers under way come back empty. The source looks for it now and then.
                    while camera.buffers > 0 {
                        camera.buffers -= 1;
                        camera.done.push_back((None, 0, None));
                    }
                    // Images that are done by then can be taken some time later.
                    now += if draw.once_in(4) { draw.micros_in(0..2_000_000) } else { Duration::ZERO };
                    while let Some((trigger, count, dated)) = camera.done.pop_front() {
                        match trigger {
                            None => images.record_unfilled(),
                            Some(trigger) => {
                                let (number, is_certain) = images.number_image(count, dated, now);
                                book.record_fragment(number, trigger, is_certain);
                            }
                        }
                    }
                    images.end_capture();
                    back = Some(now + draw.micros_in(200_000..6_000_000));
                    later = now;
                }
                _ => {}
            }
            // Triggers until then follow.
            loop {
                let at = begun + interval.mul_f64((next - start) as f64);
                if at > later {
                    break;
                }
                if back.is_none() {
                    let (fails, is_lost) = (!is_calm && draw.once_in(100), !is_calm && draw.once_in(60));
                    // An image that is lost, and neither counted nor given back empty, cannot be noticed.
                    let is_lost = is_lost && counting == Counting::All;
                    camera.take(next, at, fails || loses > 0, is_lost);
                    loses = u64::saturating_sub(loses, 1);
                }
                next += 1;
            }
            now = later;
        }
        book
    }

    #[test]
    fn a_count_of_32_bits_goes_on_and_what_it_skips_is_left_out() {
        let now = Duration::from_secs(1);
        let streams = |sequences: &[u32]| {
            let mut images = Images::new(None);
            images.begin_capture(now, BUFFERS);
            let numbers: Vec<_> = sequences.iter().map(|sequence| images.number_image(*sequence, None, now)).collect();
            (images, numbers)
        };
        let certain = |numbers: &[u64]| numbers.iter().map(|number| (*number, true)).collect::<Vec<_>>();
        assert_eq!(streams(&[2, 3, 7]).1, certain(&[2, 3, 7]));
        assert_eq!(
            streams(&[u32::MAX - 1, u32::MAX, 0, 2]).1,
            certain(&[4_294_967_294, 4_294_967_295, 1 << 32, (1 << 32) + 2])
        );
        let (mut images, numbers) = streams(&[2, 2, 0, 1]);
        let guessed = |number| (number, false);
        assert_eq!(numbers[1..], [3, 4, 5].map(guessed), "a driver that does not count: what it has lost is not known");
        images.end_capture();
        images.begin_capture(now, BUFFERS);
        assert_eq!(
            [0, 1].map(|sequence| images.number_image(sequence, None, now)),
            [6, 7].map(guessed),
            "it is plugged in again"
        );
    }

    /// A camera of fifty images a second whose last image before it went away was number 100, and whose next image, the
    /// driver's first or a later one, comes `millis` milliseconds later.
    #[test]
    fn a_camera_that_was_away_goes_on_by_its_rate() {
        let at = |millis| Duration::from_secs(1) + Duration::from_millis(millis);
        let after = |millis: u64, sequence: u32, is_dated: bool| {
            let mut images = Images::new(Some(50.0));
            images.begin_capture(at(0), BUFFERS);
            for sequence in 0..=100 {
                let now = at(20 * u64::from(sequence));
                images.record_empty(now, BUFFERS);
                images.number_image(sequence, Some(now), now);
            }
            images.end_capture();
            // The camera stands still for a while before it takes that image.
            images.begin_capture(at(2000 + millis), BUFFERS);
            let dated = Some(at(2000 + millis)).filter(|_| is_dated);
            images.number_image(sequence, dated, at(2000 + millis + 200))
        };
        assert_eq!(after(1000, 0, true), (150, true));
        assert_eq!(after(1000, 2, true), (150, true), "what its driver skipped is in that time");
        assert!(!after(1010, 0, true).1, "between two");
        assert!(!after(1000, 0, false).1, "it may have come then or 200 ms later");
        assert_eq!(after(5000, 0, true), (350, false), "it was seen to keep to its rate for two seconds only");
    }

    /// `THALWEG_TRIALS` states the number of new ones.
    #[test]
    fn no_image_whose_status_is_good_is_another_triggers() {
        let (images, uncertain) = play_trials("v4l2", 60, |seed| trial(seed, false));
        assert!(uncertain > 0 && images > uncertain);
    }

    #[test]
    fn no_number_is_uncertain_where_nothing_goes_wrong() {
        play_calm_trials("v4l2", 4, |seed| trial(seed, true));
    }
}
