//! Reads of a card that are under way, and the numbers of their frames, by the card's counter. Without IO.
//!
//! A frame may have waited: in a read that completed while the source stood still, or in the card, which has a little
//! memory. So the time at which a frame arrives is not the time at which it was taken. But when the card was seen to
//! have no frame, the next one had not been taken yet.

use std::ops::Range;
use std::time::Duration;
use thalweg_device::{CounterRules, FrameCounter, FrameNumber, Trust};

/// Maximum number of reads that begin while one read is under way, as a multiple of those that may be under way
/// together: the frame of a read comes after at most this many later ones, however long the read takes.
const MAX_OVERTAKING_ROUNDS: u32 = 4;
/// Minimum time for which a card that restarts its count is silent.
const MIN_RESTART_SILENCE: Duration = Duration::from_millis(100);
/// Time for which a card is observed before its pace is taken as known.
const PACE_WINDOW: Duration = Duration::from_secs(1);
/// Maximum pace of a card whose pace is not known, in frames per second.
const MAX_FRAMES_PER_SECOND: f64 = 1e6;
/// Time between two looks up to which a source does not count as standing still.
const MAX_LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Reads that are under way, and the numbers of their frames.
#[derive(Debug)]
pub(crate) struct Transfers {
    /// Maximum number of reads that may be under way together.
    most: u32,
    /// Longest time of a transfer: a read that is under way for longer waits for the card.
    longest: Duration,
    /// Reads that are under way: the number of each, and the time at which it began.
    under_way: Vec<(u64, Duration)>,
    /// Number of the next read.
    reads: u64,
    /// Number of bits of the card's counter.
    bits: u32,
    /// Counter of the frames; `None` if the card has no counter, so that frames are numbered as they arrive.
    counter: Option<FrameCounter>,
    /// First number that no frame has had.
    next: u64,
    /// Numbers before `next` that have not arrived.
    missing: Vec<Missing>,
    /// True if the position of the counter is known.
    begun: bool,
    /// True if the card was away, and no frame has arrived since.
    was_away: bool,
    /// Number from which on an unknown number of frames may be missing.
    uncertain_from: Option<u64>,
    /// Time at which the first frame arrived.
    first: Duration,
    newest: Option<Counted>,
    /// Time at which the card last had no data, and the newest frame that had arrived by then.
    empty: (Duration, Option<Counted>),
    /// Time of the source's last look, and time from which on no frame waits that was taken while the source stood
    /// still.
    looked: Duration,
    caught_up: Duration,
    /// A time before the newest frame arrived, and the newest frame by then; the next silence is measured from it.
    known: Option<(Duration, Counted)>,
}

/// A frame: the card's count of it, and its number.
#[derive(Debug, Clone, Copy)]
struct Counted {
    count: u64,
    number: u64,
}

/// Numbers that only reads which began before read `before` may still bring.
#[derive(Debug)]
struct Missing {
    numbers: Range<u64>,
    before: u64,
    /// Time at which the numbers were seen to be missing.
    seen: Duration,
}

impl Transfers {
    /// Creates the state for `most` reads under way together, none of which takes longer than `longest` if the card has
    /// data. `bits` is the width of the card's counter.
    pub(crate) fn new(most: u32, longest: Duration, bits: Option<u32>) -> Self {
        // Another program may reset a card while this one stands still.
        let trust = Trust { restarts_unseen: true, ..Trust::DRIVER };
        Self {
            most,
            longest,
            under_way: Vec::new(),
            reads: 0,
            bits: bits.unwrap_or(64),
            counter: bits.map(|bits| FrameCounter::new(CounterRules::new(bits, trust))),
            next: 0,
            missing: Vec::new(),
            begun: false,
            was_away: false,
            uncertain_from: None,
            first: Duration::ZERO,
            newest: None,
            empty: (Duration::ZERO, None),
            looked: Duration::ZERO,
            caught_up: Duration::ZERO,
            known: None,
        }
    }

    /// Returns the number of later frames that may come before an earlier one.
    pub(crate) fn reorder_depth(&self) -> u32 {
        MAX_OVERTAKING_ROUNDS * self.most
    }

    /// Returns true if another read may begin. The first read is alone: it shows the position of the counter.
    pub(crate) fn may_begin_read(&self) -> bool {
        let most = if self.begun { self.most } else { 1 };
        self.under_way.len() < most as usize && self.reads - self.oldest_read() < u64::from(self.reorder_depth())
    }

    /// Begins a read, and returns its number.
    pub(crate) fn begin_read(&mut self, now: Duration) -> u64 {
        if !self.begun {
            self.empty = (now, None);
        }
        self.under_way.push((self.reads, now));
        self.reads += 1;
        self.reads - 1
    }

    /// Notes that a read has ended.
    pub(crate) fn end_read(&mut self, read: u64) {
        self.under_way.retain(|(other, _)| *other != read);
    }

    /// Returns true if no read is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Notes that no other read has ended by now. If one has waited for longer than a transfer takes, the card has no
    /// data.
    pub(crate) fn record_none_ended(&mut self, now: Duration) {
        // A card without pending reads cannot show that it has no data.
        if !self.is_idle() {
            self.record_look(now);
        }
        if self.under_way.first().is_some_and(|(_, began)| now >= *began + self.longest) {
            self.empty = (now, self.newest);
        }
    }

    /// Returns the number of frames that have had a number, or could have had one.
    pub(crate) fn next_number(&self) -> u64 {
        self.next
    }

    /// Returns the number of times that the counter restarted.
    pub(crate) fn restart_count(&self) -> u64 {
        self.counter.as_ref().map_or(0, FrameCounter::restart_count)
    }

    /// Notes that the card was away: without a counter it is not known what was lost.
    pub(crate) fn restart_after_absence(&mut self) {
        (self.begun, self.was_away) = (false, self.next > 0);
        if self.counter.is_none() {
            self.doubt_from(self.next);
        }
    }

    /// Takes a frame with this count. Returns its number, and true if the number is certain.
    pub(crate) fn number_frame(&mut self, count: Option<u64>, now: Duration) -> (u64, bool) {
        self.begun = true;
        self.record_look(now);
        let number = self.assign_number(count, now);
        let is_certain = self.counter.as_ref().is_none_or(|counter| counter.is_certain(number))
            && self.uncertain_from.is_none_or(|from| number < from);
        (number, is_certain)
    }

    /// Notes that the source looks. After it has looked often for as long as it stood still before, and no shorter than
    /// a restart takes, it has taken all frames that had gathered.
    fn record_look(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.looked);
        if passed > MAX_LOOK_INTERVAL {
            self.caught_up = self.caught_up.max(now + passed.max(MIN_RESTART_SILENCE));
        } else if now >= self.caught_up {
            self.empty = (now, self.newest);
        }
        self.looked = now;
    }

    fn assign_number(&mut self, count: Option<u64>, now: Duration) -> u64 {
        let next = self.next;
        let (Some(counter), Some(count)) = (&mut self.counter, count) else {
            self.next += 1;
            return next;
        };
        let first_missing = self.missing.iter().map(|missing| missing.numbers.start).min().unwrap_or(next);
        let before = counter.clone();
        let number = match counter.accept_count(count, first_missing, now) {
            FrameNumber::At(number) if number >= next => number,
            FrameNumber::At(number) if self.missing.iter().any(|missing| missing.numbers.contains(&number)) => {
                self.accept_late_frame(number, now);
                return number;
            }
            _ => counter.restart_at_count(count, next, now),
        };
        if counter.restart_count() > before.restart_count() {
            // The missing numbers were known by the position of the counter.
            self.doubt_from(first_missing);
        }
        let counted = Counted { count, number };
        let (round, was_away) = (1_u128 << self.bits, std::mem::take(&mut self.was_away));
        if was_away && self.can_have_counted(count, now) {
            self.doubt_from(next);
        }
        if number > next {
            // With a counter of a few bits, it may also be a late frame.
            let is_far = u128::from(number - next) >= round / 2;
            let is_certain = self.uncertain_from.is_none();
            if is_far || is_certain && self.known.is_some_and(|known| !counter_agrees(before, known, counted, now)) {
                self.doubt_from(next);
            }
            self.missing.push(Missing { numbers: next..number, before: self.reads, seen: now });
        }
        let known = self.empty.1.filter(|_| number == next).unwrap_or(counted);
        if self.newest.is_none() {
            self.first = now;
        }
        (self.newest, self.known) = (Some(counted), Some((self.empty.0, known)));
        self.next = number + 1;
        number
    }

    /// Takes a frame whose number was missing.
    fn accept_late_frame(&mut self, number: u64, now: Duration) {
        let Some(at) = self.missing.iter().position(|missing| missing.numbers.contains(&number)) else { return };
        let Missing { numbers, before, seen } = self.missing.remove(at);
        // A missing frame would have come long ago. Frames of a card that restarts its count get here, too.
        if now >= seen + MIN_RESTART_SILENCE {
            self.doubt_from(number);
        }
        let parts = [numbers.start..number, number + 1..numbers.end];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        self.missing.splice(at..at, parts.map(|numbers| Missing { numbers, before, seen }));
    }

    /// Returns true if a card that restarted its count while it was away can have counted up to `count` since: at twice
    /// its mean pace before.
    fn can_have_counted(&self, count: u64, now: Duration) -> bool {
        let Some((since, newest)) = self.known else { return true };
        let seen = since.saturating_sub(self.first);
        let pace =
            if seen >= PACE_WINDOW { 2.0 * newest.number as f64 / seen.as_secs_f64() } else { MAX_FRAMES_PER_SECOND };
        count as f64 <= 2.0 + pace * now.saturating_sub(since).as_secs_f64()
    }

    fn doubt_from(&mut self, number: u64) {
        if self.uncertain_from.is_none() {
            tracing::warn!(number, "the number of frames that the card lost is unknown: event numbers are uncertain");
        }
        self.uncertain_from = Some(self.uncertain_from.map_or(number, |from| from.min(number)));
    }

    /// Returns the first run of numbers that no read can bring any more, and its length.
    pub(crate) fn next_lost_run(&mut self) -> Option<(u64, u64)> {
        let oldest = self.oldest_read();
        let at = self.missing.iter().position(|missing| missing.before <= oldest)?;
        let Range { start, end } = self.missing.remove(at).numbers;
        Some((start, end - start))
    }

    /// Returns the number of the oldest read under way, or of the next read if there is none.
    fn oldest_read(&self) -> u64 {
        self.under_way.first().map_or(self.reads, |(read, _)| *read)
    }
}

/// Returns true if a counter that was at `then` at time `since`, and has been silent since, derives the same number
/// from a count, and is certain of it.
fn counter_agrees(
    mut counter: FrameCounter,
    (since, then): (Duration, Counted),
    counted: Counted,
    now: Duration,
) -> bool {
    counter.begin_at_count(then.count, then.number, true, since);
    counter.accept_count(counted.count, then.number + 1, now) == FrameNumber::At(counted.number)
        && counter.is_certain(counted.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::trials::{Book, Draw, play_calm_trials, play_trials};
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use thalweg_device::Counter;

    const LONGEST: Duration = Duration::from_micros(200);

    fn of(bits: u32) -> Transfers {
        Transfers::new(4, LONGEST, Some(bits))
    }

    /// A card whose frames contain a count, and its cable.
    struct Model {
        counter: Option<Counter>,
        bits: u32,
        base: u64,
        /// Trigger that the card counted first since it was switched on.
        first: u64,
        off_until: Duration,
        /// Maximum number of frames that the card keeps while no read is under way, and the frames that it keeps.
        room: usize,
        kept: VecDeque<Vec<u8>>,
        /// Reads that wait for a frame, in order; and those that have one, with the end of each and its frame.
        waiting: VecDeque<u64>,
        over: Vec<(Duration, u64, Vec<u8>)>,
        lost: bool,
    }

    impl Model {
        /// Returns a frame of the trigger, with the card's count at its place.
        fn frame(&self, trigger: u64) -> Vec<u8> {
            let mut bytes: Vec<u8> = (0..24).map(|at| mix_of(trigger, at)).collect();
            if let Some(Counter { at, bytes: length, little_endian, .. }) = self.counter {
                let count = (self.base.wrapping_add(trigger - self.first)).to_be_bytes();
                let mut count = count[8 - length as usize..].to_vec();
                if little_endian {
                    count.reverse();
                }
                bytes[at as usize..][..count.len()].copy_from_slice(&count);
            }
            bytes.extend(trigger.to_le_bytes());
            bytes
        }

        fn trigger(&mut self, trigger: u64, at: Duration, draw: &mut Draw) {
            if at < self.off_until || std::mem::take(&mut self.lost) {
                return;
            }
            if self.kept.len() < self.room {
                self.kept.push_back(self.frame(trigger));
            }
            self.serve(at, draw);
        }

        /// Hands the frames that are there to the reads that wait.
        fn serve(&mut self, now: Duration, draw: &mut Draw) {
            while !self.waiting.is_empty() && !self.kept.is_empty() {
                let (read, frame) = (self.waiting.pop_front().unwrap(), self.kept.pop_front().unwrap());
                self.over.push((now + draw.micros_in(10..150), read, frame));
            }
        }
    }

    fn mix_of(trigger: u64, at: u64) -> u8 {
        thalweg_wire::mix_bits(trigger ^ at << 48) as u8
    }

    /// A card that loses frames, is reset, goes away and comes back, and a source that stands still; if `is_calm`, none
    /// of these.
    fn trial(seed: u64, is_calm: bool) -> Book {
        let mut draw = Draw::new(seed);
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8][draw.number_in(0..8) as usize];
        let counter = Counter { at: draw.number_in(0..16) as u32, bytes, little_endian: draw.once_in(2) };
        let counter = Some(counter).filter(|_| !draw.once_in(8));
        let bits = 8 * bytes;
        // Without a counter lost frames cannot be noticed: the card then keeps frames until they are read.
        let room = if counter.is_some() && !is_calm { draw.number_in(1..20) as usize } else { usize::MAX };
        let most = if counter.is_some() { draw.number_in(1..17) as u32 } else { 1 };
        let interval = Duration::from_secs_f64(1.0 / [12, 50, 200, 1000, 5000][draw.number_in(0..5) as usize] as f64);
        // The card counts since it was switched on: at this moment, or long ago.
        let base = [0, 1, draw.number_in(0..1000), draw.number_in(0..u64::MAX)][draw.number_in(0..4) as usize];
        let mut card = Model {
            counter,
            bits,
            base,
            first: 0,
            off_until: Duration::ZERO,
            room,
            kept: VecDeque::new(),
            waiting: VecDeque::new(),
            over: Vec::new(),
            lost: false,
        };
        let mut transfers = Transfers::new(most, LONGEST, counter.map(|counter| 8 * counter.bytes));
        let mut book = Book::new(transfers.reorder_depth());
        let began = Duration::from_secs(1);
        let known = began + Duration::from_millis(2200);
        let (mut now, mut next, mut origin, mut is_gone) = (began, 0, None, None);
        let (mut last, mut was_gone, mut full_until) = (None::<(Option<u64>, u64)>, false, began);
        for _ in 0..if is_calm { 1000 } else { 3000 } {
            // The source looks.
            loop {
                if is_gone.is_some_and(|until| now >= until) && transfers.is_idle() {
                    transfers.restart_after_absence();
                    is_gone = None;
                }
                while is_gone.is_none() && now >= full_until && transfers.may_begin_read() {
                    card.waiting.push_back(transfers.begin_read(now));
                }
                card.serve(now, &mut draw);
                let Some(at) = card.over.iter().position(|(over, ..)| *over <= now) else { break };
                let (_, read, frame) = card.over.swap_remove(at);
                transfers.end_read(read);
                let count = counter.map(|counter| counter.read_count(&frame).unwrap());
                let trigger = u64::from_le_bytes(*frame.last_chunk().unwrap());
                let origin = *origin.get_or_insert(trigger);
                let (number, is_certain) = transfers.number_frame(count, now);
                // A card that is reset unseen, and is by chance at the next count, cannot be distinguished from one
                // that paused.
                let counts_anew = last.is_some_and(|(_, last)| last < card.first && card.first <= trigger);
                let is_next = last.is_some_and(|(last, _)| count == last);
                if counts_anew && is_next && !was_gone {
                    return book;
                }
                last = Some((count.map(|count| count + 1), trigger));
                book.record_fragment(number, trigger - origin, is_certain);
                while let Some((first, count)) = transfers.next_lost_run() {
                    book.record_lost(first, count);
                }
            }
            transfers.record_none_ended(now);
            // Before the source looks again, one of these events happens.
            let mut later = now + draw.micros_in(0..interval.as_micros() as u64 / 2);
            // A counter of a few bits may restart at just the value that it would have had.
            let (is_wide, counted) = (card.bits > 12, next - card.first.min(next));
            match draw.number_in(0..2000) {
                _ if is_calm => {}
                0 => later = now + draw.micros_in(1000..3_000_000),
                1 if counter.is_some() && is_wide && counted >= 64 && now > known && is_gone.is_none() => {
                    // The card is reset while reads wait.
                    let off = draw.micros_in(100_000..3_000_000);
                    (card.off_until, card.base, card.first) = (now + off, draw.number_in(0..2), u64::MAX);
                    was_gone = false;
                    if draw.once_in(2) {
                        card.kept.clear();
                    }
                }
                2 if now > began + Duration::from_millis(10) && transfers.next_number() > 0 && is_gone.is_none() => {
                    // Transfers fail. The card is there again with its counter as it was, or at the beginning.
                    let reads: Vec<u64> =
                        card.waiting.drain(..).chain(card.over.drain(..).map(|over| over.1)).collect();
                    reads.into_iter().for_each(|read| transfers.end_read(read));
                    card.kept.clear();
                    let back = now + draw.micros_in(200_000..4_000_000);
                    is_gone = Some(back);
                    if draw.once_in(2) {
                        let off = draw.micros_in(100_000..back.saturating_sub(now).as_micros() as u64 + 1);
                        (card.off_until, card.base, card.first) = (now + off, draw.number_in(0..2), u64::MAX);
                        was_gone = true;
                    }
                }
                // The source has no buffers.
                3 if counter.is_some() => full_until = now + draw.micros_in(1000..2_000_000),
                4..60 if counter.is_some() => card.lost = true,
                _ => {}
            }
            // Triggers until then follow.
            loop {
                let at = began + interval.mul_f64(next as f64 * (1.0 + 2e-5)) + Duration::from_micros(next % 7 * 3);
                if at > later {
                    break;
                }
                if card.first == u64::MAX && at >= card.off_until {
                    card.first = next;
                }
                card.trigger(next, at, &mut draw);
                if is_gone.is_some() {
                    card.kept.clear();
                }
                next += 1;
            }
            now = later;
        }
        book
    }

    /// `THALWEG_TRIALS` states the number of new ones.
    #[test]
    fn no_fragment_whose_status_is_good_is_another_triggers() {
        let (fragments, uncertain) = play_trials("dma", 40, |seed| trial(seed, false));
        assert!(uncertain > 0 && fragments > uncertain);
    }

    #[test]
    fn no_number_is_uncertain_where_nothing_goes_wrong() {
        play_calm_trials("dma", 4, |seed| trial(seed, true));
    }

    proptest! {
        /// Frames are handed to the reads that wait, in order, and reads end in any order.
        #[test]
        fn every_frame_has_its_number_and_every_other_is_lost_once(
            bits in prop::sample::select(vec![8_u32, 16, 32, 64]),
            start in any::<u64>(),
            gaps in prop::collection::vec(prop_oneof![4 => Just(1_u64), 1 => 1_u64..8], 1..200),
            ends in prop::collection::vec(0_usize..4, 200),
        ) {
            let mask = u64::MAX >> (64 - bits);
            let truth: Vec<u64> = gaps.iter().scan(0, |next, gap| { *next += gap; Some(*next - gaps[0]) }).collect();
            let mut transfers = of(bits);
            // Reads that have a frame and are under way; the first read is alone.
            let mut under_way = vec![transfers.begin_read(Duration::ZERO)];
            let (mut came, mut lost) = (Vec::new(), Vec::new());
            for end in ends {
                if under_way.is_empty() {
                    break;
                }
                let read = under_way.remove(end % under_way.len());
                transfers.end_read(read);
                let number = truth[read as usize];
                let count = start.wrapping_add(number) & mask;
                prop_assert_eq!(transfers.number_frame(Some(count), Duration::ZERO), (number, true));
                came.push(number);
                while transfers.may_begin_read() && transfers.reads < truth.len() as u64 {
                    under_way.push(transfers.begin_read(Duration::ZERO));
                }
                while let Some((first, count)) = transfers.next_lost_run() {
                    lost.extend(first..first + count);
                }
            }
            prop_assert_eq!(transfers.restart_count(), 0);
            let all: std::collections::BTreeSet<u64> = came.iter().chain(&lost).copied().collect();
            prop_assert_eq!(all.len(), came.len() + lost.len(), "none is both, or twice");
            if under_way.is_empty() {
                prop_assert_eq!(all.len() as u64, truth[truth.len() - 1] + 1);
            }
        }

        #[test]
        fn whatever_a_card_counts_no_number_comes_twice(counts in prop::collection::vec(any::<u16>(), 1..20)) {
            let mut transfers = of(16);
            let mut book = Book::new(transfers.reorder_depth());
            for count in counts {
                let read = transfers.begin_read(Duration::ZERO);
                transfers.end_read(read);
                let (number, _) = transfers.number_frame(Some(count.into()), Duration::ZERO);
                book.record_fragment(number, number, true);
                while let Some((first, count)) = transfers.next_lost_run() {
                    book.record_lost(first, count);
                }
            }
            prop_assert!(book.wrong.is_empty(), "{:?}", book.wrong);
        }
    }

    #[test]
    fn a_count_that_begins_anew_or_stands_still_goes_on() {
        let mut transfers = of(32);
        let count = |transfers: &mut Transfers, count| transfers.number_frame(Some(count), Duration::ZERO);
        let reads = [(); 2].map(|()| transfers.begin_read(Duration::ZERO));
        assert_eq!([100, 101, 103].map(|at| count(&mut transfers, at)), [0, 1, 3].map(|number| (number, true)));
        assert_eq!(transfers.next_lost_run(), None, "a read that is under way may bring it");
        reads.into_iter().for_each(|read| transfers.end_read(read));
        assert_eq!([transfers.next_lost_run(), transfers.next_lost_run()], [Some((2, 1)), None]);
        let anew = [102, 103, 103, 1 << 30, 104].map(|at| count(&mut transfers, at));
        assert_eq!(anew, [4, 5, 6, 7, 8].map(|number| (number, false)));
        assert_eq!(transfers.restart_count(), 4);
    }

    #[test]
    fn what_was_missing_and_comes_long_after_it_may_be_a_card_s_that_counts_anew() {
        for (later, is_certain) in [(MIN_RESTART_SILENCE / 2, true), (MIN_RESTART_SILENCE, false)] {
            let mut transfers = of(64);
            transfers.begin_read(Duration::ZERO);
            assert_eq!([0, 1, 3].map(|count| transfers.number_frame(Some(count), Duration::ZERO).0), [0, 1, 3]);
            assert_eq!(transfers.number_frame(Some(2), later), (2, is_certain));
        }
    }
}
