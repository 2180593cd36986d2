//! Assignment of a board's samples to fragments. A board counts nothing: fragment *n* is what is sampled during the
//! *n*th stretch of time. Where the board stood still, the clock determines the next fragment. Without IO.

use std::time::Duration;
use thalweg_wire::TaiNanos;

/// Maximum difference of a board's clock from this machine's, as a fraction.
const MAX_DRIFT: f64 = 1e-4;

/// Fragments of a board that samples.
#[derive(Debug)]
pub(crate) struct Windows {
    /// Time from one round of all channels to the next, and time that a fragment covers, in nanoseconds.
    round: u64,
    length: u64,
    /// A time, and the nanoseconds of samples that there were by then.
    seen: Option<(Duration, u64)>,
    /// Smallest amount of samples that arrived at once, in nanoseconds: as much may have been sampled by a time, and
    /// arrive later.
    grain: Option<u64>,
    /// Time of the first sample since the board was last started, and the fragment that it began.
    begun: Option<(TaiNanos, u64)>,
    next: u64,
    /// Nanoseconds by which fragments may begin later than they should.
    late: u64,
}

impl Windows {
    /// Creates the windows of fragments with `rounds` rounds of all channels, `nanos` nanoseconds apart.
    pub(crate) fn new(rounds: u32, nanos: u32) -> Self {
        let round = u64::from(nanos).max(1);
        Self { round, length: round * u64::from(rounds.max(1)), seen: None, grain: None, begun: None, next: 0, late: 0 }
    }

    /// Returns the time that a fragment covers, in nanoseconds.
    pub(crate) fn window_nanos(&self) -> u64 {
        self.length
    }

    /// Begins fragment 0 at `now` although the board has not started, unless the board has started already.
    pub(crate) fn start_events(&mut self, now: Duration) {
        self.seen.get_or_insert((now, 0));
    }

    /// Notes that the board starts at `now`, which is `date`. Returns the first lost fragment and the number of lost
    /// ones, if any, and the number of rounds before the next fragment begins.
    pub(crate) fn begin_sampling(&mut self, now: Duration, date: TaiNanos) -> (Option<(u64, u64)>, u64) {
        let first = self.next;
        let mut skipped = 0;
        if let Some((at, samples)) = self.seen {
            let stood = u64::try_from(now.saturating_sub(at).as_nanos()).unwrap_or(u64::MAX);
            let passed = samples.saturating_add(stood);
            self.next = passed.div_ceil(self.length).max(first);
            skipped = self.next.saturating_mul(self.length).saturating_sub(passed).min(self.length) / self.round;
            if self.begun.is_some() {
                let late = self.grain.unwrap_or(stood).saturating_add((stood as f64 * MAX_DRIFT) as u64);
                let before = self.late;
                self.late = before.saturating_add(late);
                if before < self.length / 2 && self.late >= self.length / 2 {
                    tracing::warn!(
                        fragment = self.next,
                        "the number of samples that the board lost is unknown: event numbers are uncertain"
                    );
                }
            }
        }
        let in_front = skipped * self.round;
        self.begun = Some((TaiNanos(date.0.saturating_add(in_front)), self.next));
        self.seen = Some((now, self.next.saturating_mul(self.length).saturating_sub(in_front)));
        (Some((first, self.next - first)).filter(|(_, count)| *count > 0), skipped)
    }

    /// Notes that all samples which the board has handed on by now have been read: `rounds` rounds of the next
    /// fragment, or, if negative, as many fewer than precede it.
    pub(crate) fn record_all_read(&mut self, now: Duration, rounds: i64) {
        let has = rounds.saturating_mul(self.round.cast_signed());
        let samples = self.next.saturating_mul(self.length).saturating_add_signed(has);
        if let Some((_, before)) = self.seen.filter(|(_, before)| samples > *before) {
            let came = samples - before;
            self.grain = Some(self.grain.map_or(came, |grain| grain.min(came)));
        }
        self.seen = Some((now, samples));
    }

    /// Returns the number of the fragment that is whole now, the time of its first sample, and true if the number is
    /// certain.
    pub(crate) fn finish_fragment(&mut self) -> (u64, TaiNanos, bool) {
        let number = self.next;
        self.next += 1;
        let (begun, first) = self.begun.unwrap_or((TaiNanos(0), number));
        let time = TaiNanos(begun.0.saturating_add((number - first).saturating_mul(self.length)));
        (number, time, self.late < self.length / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::trials::{Book, Draw, play_calm_trials, play_trials};

    fn at(nanos: u64) -> Duration {
        Duration::from_nanos(nanos)
    }

    #[test]
    fn a_board_that_stood_still_has_lost_what_it_would_have_sampled() {
        let mut windows = Windows::new(100, 1);
        assert_eq!(windows.begin_sampling(at(1000), TaiNanos(5000)), (None, 0));
        windows.start_events(at(990));
        assert_eq!([(); 2].map(|()| windows.finish_fragment()), [(0, TaiNanos(5000), true), (1, TaiNanos(5100), true)]);
        windows.record_all_read(at(1200), 10);
        assert_eq!(windows.grain, Some(210), "all of it came at once");
        windows.record_all_read(at(1230), 30);
        // The board stops in the middle of fragment 2, and restarts in the middle of fragment 5: the next one is 6.
        assert_eq!(windows.begin_sampling(at(1550), TaiNanos(5550)), (Some((2, 4)), 50));
        assert_eq!([(); 2].map(|()| windows.finish_fragment()), [(6, TaiNanos(5600), true), (7, TaiNanos(5700), true)]);
        // A board whose clock is a tenth faster than this machine's has lost no less for that reason.
        windows.record_all_read(at(1740), 50);
        assert_eq!(windows.begin_sampling(at(1940), TaiNanos(5940)), (Some((8, 3)), 50));
        // It may be anywhere between two by now.
        assert_eq!(windows.finish_fragment(), (11, TaiNanos(5990), true));
        windows.begin_sampling(at(2100), TaiNanos(6100));
        assert!(!windows.finish_fragment().2, "a fifth of a fragment three times");
    }

    #[test]
    fn a_board_that_is_not_there_at_the_start_has_lost_what_it_would_have_sampled() {
        let mut windows = Windows::new(100, 1);
        windows.start_events(at(1000));
        assert_eq!(windows.begin_sampling(at(1420), TaiNanos(5420)), (Some((0, 5)), 80));
        assert_eq!(windows.finish_fragment(), (5, TaiNanos(5500), true));
    }

    /// A board and its driver, which ends its work when the ring overflows.
    struct Model {
        /// Time from sample to sample in nanoseconds by this machine's clock, and number of samples in a fragment.
        nanos: f64,
        per_fragment: u64,
        /// Time of the first sample of the run, and of the first sample since the last start.
        origin: f64,
        begun: f64,
        /// Number of samples in a block, in which they are handed on, and number of samples that the ring holds.
        block: u64,
        ring: u64,
        /// Number of samples read since the last start.
        read: u64,
        ended: Option<u64>,
    }

    impl Model {
        /// Returns the number of samples that are in the ring by then.
        fn has(&mut self, now: f64) -> u64 {
            let taken = ((now - self.begun) / self.nanos).max(0.0) as u64 / self.block * self.block;
            if taken - self.read > self.ring {
                self.ended.get_or_insert(self.read + self.ring);
            }
            self.ended.unwrap_or(taken) - self.read
        }

        /// Returns the fragment in which the middle of a fragment with this first sample lies.
        fn trigger(&self, first: u64) -> u64 {
            let middle = self.begun + (first as f64 + self.per_fragment as f64 / 2.0) * self.nanos;
            ((middle - self.origin) / self.nanos / self.per_fragment as f64) as u64
        }
    }

    /// Starts the board. Returns the number of samples that are skipped, and the number of those of the next fragment.
    fn begin(board: &mut Model, windows: &mut Windows, book: &mut Book, now: f64) -> (u64, u64) {
        let (lost, skipped) = windows.begin_sampling(Duration::from_nanos(now as u64), TaiNanos(now as u64));
        // The board starts a little before the driver's answer arrives.
        (board.begun, board.read, board.ended) = (now - 1000.0, 0, None);
        if let Some((first, count)) = lost {
            book.record_lost(first, count);
        }
        (skipped, 0)
    }

    /// A board that is not read for a while, or is unplugged and comes back.
    fn trial(seed: u64, is_calm: bool) -> Book {
        let mut draw = Draw::new(seed);
        let nanos = draw.number_in(1000..1_000_000);
        let per_fragment = draw.number_in(10..2000);
        let drift = draw.number_in(0..100) as f64 * 1e-6 - 5e-5;
        // Blocks are a part of a fragment, or as long as several.
        let block =
            if draw.once_in(4) { draw.number_in(1..2 * per_fragment) } else { draw.number_in(1..per_fragment / 5 + 2) };
        let mut now = 1e9;
        let mut board = Model {
            nanos: nanos as f64 * (1.0 + drift),
            per_fragment,
            origin: now,
            begun: now,
            block,
            ring: 20 * per_fragment + 2 * block,
            read: 0,
            ended: None,
        };
        let length = (nanos * per_fragment) as f64;
        let mut windows = Windows::new(per_fragment as u32, nanos as u32);
        let mut book = Book::new(0);
        let time = |now: f64| Duration::from_nanos(now as u64);
        // The board may be away when the run begins.
        let mut back = None;
        if !is_calm && draw.once_in(6) {
            back = Some(now + length * draw.number_in(1..500) as f64 / 10.0);
            windows.start_events(time(now));
        } else {
            begin(&mut board, &mut windows, &mut book, now);
        }
        let (mut skips, mut has) = (0, 0);
        for _ in 0..1000 {
            if back.is_some_and(|back| now >= back) {
                back = None;
                (skips, has) = begin(&mut board, &mut windows, &mut book, now);
            }
            if back.is_none() {
                let came = board.has(now);
                for _ in 0..came {
                    board.read += 1;
                    if skips > 0 {
                        skips -= 1;
                        continue;
                    }
                    has += 1;
                    if has == per_fragment {
                        has = 0;
                        let (number, _, is_certain) = windows.finish_fragment();
                        book.record_fragment(number, board.trigger(board.read - per_fragment), is_certain);
                    }
                }
                if board.ended.is_some() {
                    now += draw.number_in(0..3) as f64 * length;
                    (skips, has) = begin(&mut board, &mut windows, &mut book, now);
                } else {
                    windows.record_all_read(time(now), has as i64 - skips as i64);
                }
            }
            now += length * draw.number_in(0..1000) as f64 / 1000.0;
            match draw.number_in(0..200) {
                _ if is_calm => {}
                0 => now += length * draw.number_in(10..1000) as f64 / 10.0,
                1 if back.is_none() => back = Some(now + length * draw.number_in(1..1000) as f64 / 10.0),
                _ => {}
            }
        }
        book
    }

    /// `THALWEG_TRIALS` states the number of new ones.
    #[test]
    fn no_fragment_whose_status_is_good_is_another_triggers() {
        let (fragments, uncertain) = play_trials("comedi", 30, |seed| trial(seed, false));
        assert!(uncertain > 0 && fragments > uncertain);
    }

    #[test]
    fn no_number_is_uncertain_where_nothing_goes_wrong() {
        play_calm_trials("comedi", 4, |seed| trial(seed, true));
    }
}
