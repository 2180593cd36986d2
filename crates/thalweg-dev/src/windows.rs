//! Which samples of a board are which fragment. A board counts nothing: fragment *n* is what is sampled while the *n*th
//! stretch of time passes. Where the board stood still, the clock says which is next. Without IO.

use std::time::Duration;
use thalweg_wire::TaiNanos;

/// A board's clock and this machine's differ by no more.
const MOST_DRIFT: f64 = 1e-4;

/// Fragments of a board that samples.
#[derive(Debug)]
pub(crate) struct Windows {
    /// Nanoseconds from one round of all channels to the next, and that a fragment covers.
    round: u64,
    length: u64,
    /// A time, and how many nanoseconds of samples there were by then.
    seen: Option<(Duration, u64)>,
    /// Fewest nanoseconds of samples that came at once: so many may have been taken by a time, and come later.
    grain: Option<u64>,
    /// When the first sample was taken since the board was begun anew, and which fragment that began.
    begun: Option<(TaiNanos, u64)>,
    next: u64,
    /// By so many nanoseconds fragments may begin later than they should.
    late: u64,
}

impl Windows {
    /// A fragment has so many rounds of all channels, and so many nanoseconds pass from one to the next.
    pub(crate) fn new(rounds: u32, nanos: u32) -> Self {
        let round = u64::from(nanos).max(1);
        Self { round, length: round * u64::from(rounds.max(1)), seen: None, grain: None, begun: None, next: 0, late: 0 }
    }

    /// Returns how many nanoseconds a fragment covers.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Fragment 0 begins now, though the board does not, unless it has begun already.
    pub(crate) fn start(&mut self, now: Duration) {
        self.seen.get_or_insert((now, 0));
    }

    /// The board begins now, which is this date. Returns the first fragment that is lost by that and how many are, if
    /// any, and how many rounds come in front of the next one's.
    pub(crate) fn begin(&mut self, now: Duration, date: TaiNanos) -> (Option<(u64, u64)>, u64) {
        let first = self.next;
        let mut skipped = 0;
        if let Some((at, samples)) = self.seen {
            let stood = u64::try_from(now.saturating_sub(at).as_nanos()).unwrap_or(u64::MAX);
            let passed = samples.saturating_add(stood);
            self.next = passed.div_ceil(self.length).max(first);
            skipped = self.next.saturating_mul(self.length).saturating_sub(passed).min(self.length) / self.round;
            if self.begun.is_some() {
                let late = self.grain.unwrap_or(stood).saturating_add((stood as f64 * MOST_DRIFT) as u64);
                let before = self.late;
                self.late = before.saturating_add(late);
                if before < self.length / 2 && self.late >= self.length / 2 {
                    tracing::warn!(
                        fragment = self.next,
                        "it is not known how many samples the board has lost: numbers are uncertain"
                    );
                }
            }
        }
        let in_front = skipped * self.round;
        self.begun = Some((TaiNanos(date.0.saturating_add(in_front)), self.next));
        self.seen = Some((now, self.next.saturating_mul(self.length).saturating_sub(in_front)));
        (Some((first, self.next - first)).filter(|(_, count)| *count > 0), skipped)
    }

    /// All samples that the board has handed on by now are here: so many rounds of the next fragment, or, below zero, so
    /// many fewer than come in front of it.
    pub(crate) fn none_is_left(&mut self, now: Duration, rounds: i64) {
        let has = rounds.saturating_mul(self.round.cast_signed());
        let samples = self.next.saturating_mul(self.length).saturating_add_signed(has);
        if let Some((_, before)) = self.seen.filter(|(_, before)| samples > *before) {
            let came = samples - before;
            self.grain = Some(self.grain.map_or(came, |grain| grain.min(came)));
        }
        self.seen = Some((now, samples));
    }

    /// Returns the number of a fragment that is whole, when its first sample was taken, and whether the number is more
    /// than a guess.
    pub(crate) fn whole(&mut self) -> (u64, TaiNanos, bool) {
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
    use crate::trials::{Book, Draw, play, play_calm};

    fn at(nanos: u64) -> Duration {
        Duration::from_nanos(nanos)
    }

    #[test]
    fn a_board_that_stood_still_has_lost_what_it_would_have_sampled() {
        let mut windows = Windows::new(100, 1);
        assert_eq!(windows.begin(at(1000), TaiNanos(5000)), (None, 0));
        windows.start(at(990));
        assert_eq!([(); 2].map(|()| windows.whole()), [(0, TaiNanos(5000), true), (1, TaiNanos(5100), true)]);
        windows.none_is_left(at(1200), 10);
        assert_eq!(windows.grain, Some(210), "all of it came at once");
        windows.none_is_left(at(1230), 30);
        // It ends in the middle of fragment 2, and begins anew in the middle of fragment 5: the next one is 6.
        assert_eq!(windows.begin(at(1550), TaiNanos(5550)), (Some((2, 4)), 50));
        assert_eq!([(); 2].map(|()| windows.whole()), [(6, TaiNanos(5600), true), (7, TaiNanos(5700), true)]);
        // A board that is a tenth faster than this machine's clock has not lost less for that.
        windows.none_is_left(at(1740), 50);
        assert_eq!(windows.begin(at(1940), TaiNanos(5940)), (Some((8, 3)), 50));
        // It may be anywhere between two by now.
        assert_eq!(windows.whole(), (11, TaiNanos(5990), true));
        windows.begin(at(2100), TaiNanos(6100));
        assert!(!windows.whole().2, "a fifth of a fragment three times");
    }

    #[test]
    fn a_board_that_is_not_there_at_the_start_has_lost_what_it_would_have_sampled() {
        let mut windows = Windows::new(100, 1);
        windows.start(at(1000));
        assert_eq!(windows.begin(at(1420), TaiNanos(5420)), (Some((0, 5)), 80));
        assert_eq!(windows.whole(), (5, TaiNanos(5500), true));
    }

    /// A board and its driver: a ring that runs over ends its work.
    struct Model {
        /// Nanoseconds from sample to sample by this machine's clock, and how many are in a fragment.
        nanos: f64,
        per_fragment: u64,
        /// When the first sample of the run was taken, and of those that it samples now.
        origin: f64,
        begun: f64,
        /// Samples are handed on in blocks of so many, and the ring holds so many.
        block: u64,
        ring: u64,
        /// Samples since it was begun that were read.
        read: u64,
        ended: Option<u64>,
    }

    impl Model {
        /// Samples that are in the ring by then.
        fn has(&mut self, now: f64) -> u64 {
            let taken = ((now - self.begun) / self.nanos).max(0.0) as u64 / self.block * self.block;
            if taken - self.read > self.ring {
                self.ended.get_or_insert(self.read + self.ring);
            }
            self.ended.unwrap_or(taken) - self.read
        }

        /// The fragment that is due where a fragment with this first sample has its middle.
        fn trigger(&self, first: u64) -> u64 {
            let middle = self.begun + (first as f64 + self.per_fragment as f64 / 2.0) * self.nanos;
            ((middle - self.origin) / self.nanos / self.per_fragment as f64) as u64
        }
    }

    /// The board is told to begin. Returns how many samples are skipped, and how many are there of the next fragment.
    fn begin(board: &mut Model, windows: &mut Windows, book: &mut Book, now: f64) -> (u64, u64) {
        let (lost, skipped) = windows.begin(Duration::from_nanos(now as u64), TaiNanos(now as u64));
        // It began a little before that is known.
        (board.begun, board.read, board.ended) = (now - 1000.0, 0, None);
        if let Some((first, count)) = lost {
            book.lost(first, count);
        }
        (skipped, 0)
    }

    /// A board that is not read for a while, or is unplugged and comes back.
    fn trial(seed: u64, is_calm: bool) -> Book {
        let mut draw = Draw::new(seed);
        let nanos = draw.of(1000..1_000_000);
        let per_fragment = draw.of(10..2000);
        let drift = draw.of(0..100) as f64 * 1e-6 - 5e-5;
        // Blocks that are a part of a fragment, or as long as some.
        let block = if draw.once_in(4) { draw.of(1..2 * per_fragment) } else { draw.of(1..per_fragment / 5 + 2) };
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
        // It may be away when the run begins.
        let mut back = None;
        if !is_calm && draw.once_in(6) {
            back = Some(now + length * draw.of(1..500) as f64 / 10.0);
            windows.start(time(now));
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
                        let (number, _, is_certain) = windows.whole();
                        book.fragment(number, board.trigger(board.read - per_fragment), is_certain);
                    }
                }
                if board.ended.is_some() {
                    now += draw.of(0..3) as f64 * length;
                    (skips, has) = begin(&mut board, &mut windows, &mut book, now);
                } else {
                    windows.none_is_left(time(now), has as i64 - skips as i64);
                }
            }
            now += length * draw.of(0..1000) as f64 / 1000.0;
            match draw.of(0..200) {
                _ if is_calm => {}
                0 => now += length * draw.of(10..1000) as f64 / 10.0,
                1 if back.is_none() => back = Some(now + length * draw.of(1..1000) as f64 / 10.0),
                _ => {}
            }
        }
        book
    }

    /// `THALWEG_TRIALS` says how many fresh ones.
    #[test]
    fn no_fragment_whose_status_is_good_is_another_triggers() {
        let (fragments, uncertain) = play("comedi", 30, |seed| trial(seed, false));
        assert!(uncertain > 0 && fragments > uncertain);
    }

    #[test]
    fn no_number_is_uncertain_where_nothing_goes_wrong() {
        play_calm("comedi", 4, |seed| trial(seed, true));
    }
}
