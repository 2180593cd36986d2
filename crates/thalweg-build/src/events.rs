//! The open events: which sources have answered for each, and which events are closed.

use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::time::Duration;
use thalweg_wire::{EventId, Status};

/// A closed event, or several consecutive ones that are complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// The first event.
    pub first: EventId,
    /// How many events: `first`, `first + builders`, … More than one only where complete.
    pub count: u32,
    /// The sources without a fragment; empty where complete.
    pub missing: Vec<Missing>,
}

/// A source without a fragment in an event that was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// Its index in the builder's list of sources.
    pub source: usize,
    /// [`Status::MISSING`], with what is known of the reason.
    pub status: Status,
}

/// What is known of one source's fragment in one event. Kept in two bits per source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing yet.
    None,
    /// The fragment is here.
    Present,
    /// It will not come.
    Missing,
    /// Nothing yet, and nothing is wanted: level 2 has rejected the event.
    Rejected,
    /// The event is closed and forgotten.
    Forgotten,
}

/// Why a fragment will not come. Where all sources were silent about an event or dropped it, there is nothing to
/// record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The source went on to later events without a word about this one.
    Skipped,
    /// The source said nothing about the event, and will not.
    Silent(Status),
    /// The source has no fragment any more, for this reason: it dropped it, or its device lost it.
    Dropped(Status),
    /// The source delivered a fragment, or was about to, and it cannot be used.
    Spoilt(Status),
}

impl Why {
    fn status(self) -> Status {
        match self {
            Self::Skipped => Status::empty(),
            Self::Dropped(reason) | Self::Silent(reason) | Self::Spoilt(reason) => reason,
        }
    }
}

/// What level 2 says of an event. Without a level 2 every event is accepted as it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Pending,
    Accepted,
    Rejected,
}

/// An hour, in nanoseconds: events that were open for longer count as this long.
const HOUR: u64 = 3_600_000_000_000;
/// Events for which memory is set aside at the beginning: 64 bytes each, and 16 for each 64 sources.
const TOUCHED: u32 = 1 << 16;

/// A window of consecutive events, by their *index* (event number divided by the number of builders).
#[derive(Debug)]
pub(crate) struct OpenEvents {
    base: u64,
    most: u32,
    /// The run ends in front of this event.
    stop: u64,
    /// One past the highest event that was closed.
    closed_until: u64,
    sources: usize,
    words: usize,
    events: VecDeque<Event>,
    /// Per event `words` words of "answered" and then `words` words of "present".
    bits: VecDeque<u64>,
    closed: VecDeque<(u64, u32, Vec<Missing>)>,
    /// The sources that level 2 decides on, a bit each; nothing where there is no level 2.
    level2: Vec<u64>,
    /// Events of which all these have answered.
    decidable: VecDeque<u64>,
    incomplete: u64,
    built: u64,
    rejected: u64,
    /// Per source, events without its fragment that others had, and that it went past.
    skipped: Vec<u64>,
    /// How long events were open, in nanoseconds, to two digits.
    completion: Histogram<u64>,
    /// The time now.
    now: Duration,
}

#[derive(Debug, Clone)]
struct Event {
    /// When it was opened: as its deadline sees it, and by the clock.
    opened: Duration,
    begun: Duration,
    waiting: u32,
    /// A fragment of it was delivered, even if it cannot be used.
    delivered: bool,
    verdict: Verdict,
    missing: Vec<(usize, Why)>,
}

impl Event {
    fn is_over(&self) -> bool {
        self.waiting == 0 && self.verdict != Verdict::Pending
    }
}

impl OpenEvents {
    /// `level2`: the sources that an event is decided on before the others are asked; none where it is not.
    pub(crate) fn new(first: u64, most: u32, sources: usize, level2: &[usize]) -> Self {
        // Made and touched now, up to the default bound: a run then ends with the memory it began with.
        let (ahead, words) = (most.min(TOUCHED) as usize, sources.div_ceil(64));
        let idle = Event {
            opened: Duration::ZERO,
            begun: Duration::ZERO,
            waiting: 0,
            delivered: false,
            verdict: Verdict::Accepted,
            missing: Vec::new(),
        };
        let mut events = VecDeque::from(vec![idle; ahead]);
        let mut bits = VecDeque::from(vec![u64::MAX; 2 * words * ahead]);
        events.clear();
        bits.clear();
        let mut mask = vec![0; if level2.is_empty() { 0 } else { words }];
        for source in level2 {
            mask[source / 64] |= 1u64 << (source % 64);
        }
        Self {
            base: first,
            most: most.max(1),
            stop: u64::MAX,
            closed_until: first,
            sources,
            words,
            events,
            bits,
            closed: VecDeque::new(),
            level2: mask,
            decidable: VecDeque::new(),
            incomplete: 0,
            built: 0,
            rejected: 0,
            skipped: vec![0; sources],
            completion: Histogram::new_with_bounds(1, HOUR, 2).unwrap_or_else(|_| unreachable!("within its bounds")),
            now: Duration::ZERO,
        }
    }

    /// Time passes.
    pub(crate) fn advance(&mut self, now: Duration) {
        self.now = now;
    }

    pub(crate) fn completion(&self) -> &Histogram<u64> {
        &self.completion
    }

    pub(crate) fn forget_completions(&mut self) {
        self.completion.reset();
    }

    /// The oldest event that is still open, or the next to be opened.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// One past the youngest event that was opened.
    pub(crate) fn end(&self) -> u64 {
        self.base + self.events.len() as u64
    }

    /// How many events may be open.
    pub(crate) fn most(&self) -> u32 {
        self.most
    }

    /// One past the youngest event that may be opened.
    pub(crate) fn limit(&self) -> u64 {
        if self.is_backed_up() {
            return self.end();
        }
        self.base.saturating_add(u64::from(self.most)).min(self.stop).max(self.end())
    }

    /// The run ends in front of this event.
    pub(crate) fn stop(&self) -> u64 {
        self.stop
    }

    /// One past the highest event that was closed.
    pub(crate) fn closed_until(&self) -> u64 {
        self.closed_until
    }

    /// The run ends in front of event `stop`. Open events from there on vanish; tells the source of each fragment that
    /// is in one of them. Those of events that were closed or rejected are accounted for already.
    pub(crate) fn end_at(&mut self, stop: u64, mut vanishes: impl FnMut(usize)) {
        self.stop = self.stop.min(stop);
        while self.end() > stop
            && let Some(event) = self.events.pop_back()
        {
            let bits = self.bits.split_off(self.bits.len() - 2 * self.words);
            if event.is_over() || event.verdict == Verdict::Rejected {
                continue;
            }
            let present = |source: &usize| bits[self.words + source / 64] & 1u64 << (source % 64) != 0;
            (0..self.sources).filter(present).for_each(&mut vanishes);
        }
        self.decidable.retain(|index| *index < stop);
    }

    /// Whether so many closed events wait to be taken that no more are opened.
    pub(crate) fn is_backed_up(&self) -> bool {
        self.closed.len() >= self.most as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether closed events wait to be taken.
    pub(crate) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Events that were closed and not rejected.
    pub(crate) fn built(&self) -> u64 {
        self.built
    }

    /// Events that level 2 has rejected and that are closed.
    pub(crate) fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Events without a fragment of `source` that others had, and that it went past.
    pub(crate) fn skipped(&self, source: usize) -> u64 {
        self.skipped[source]
    }

    /// An event that was closed, complete or not, is rejected after all.
    pub(crate) fn unbuild(&mut self, complete: bool) {
        self.built -= 1;
        self.incomplete -= u64::from(!complete);
    }

    pub(crate) fn incomplete(&self) -> u64 {
        self.incomplete
    }

    /// Opens all events below `end`, which is at most [`limit`](Self::limit). Their ages never decrease with their
    /// index, since they are opened in order.
    pub(crate) fn open_until(&mut self, end: u64, now: Duration) {
        debug_assert!(end <= self.limit().max(self.end()));
        #[expect(clippy::cast_possible_truncation, reason = "a topology has far fewer than 2^32 sources")]
        let waiting = self.sources as u32;
        while self.end() < end {
            let begun = self.now;
            let verdict = if self.level2.is_empty() { Verdict::Accepted } else { Verdict::Pending };
            let missing = Vec::new();
            self.events.push_back(Event { opened: now, begun, waiting, delivered: false, verdict, missing });
            self.bits.extend(std::iter::repeat_n(0, 2 * self.words));
        }
    }

    /// Passes over events that nobody mentions. No event is open.
    pub(crate) fn skip_to(&mut self, base: u64) {
        debug_assert!(self.events.is_empty() && base >= self.base);
        self.base = base;
    }

    /// When event `index` was opened, if it is open.
    pub(crate) fn opened(&self, index: u64) -> Option<Duration> {
        self.slot(index).map(|at| self.events[at].opened)
    }

    #[inline]
    pub(crate) fn answer(&self, index: u64, source: usize) -> Answer {
        let Some(at) = self.slot(index) else {
            return if index < self.base { Answer::Forgotten } else { Answer::None };
        };
        let (word, bit) = (at * 2 * self.words + source / 64, 1u64 << (source % 64));
        match (self.bits[word] & bit != 0, self.bits[word + self.words] & bit != 0) {
            (false, _) if self.level2.is_empty() => Answer::None,
            (false, _) => self.unanswered(at),
            (true, true) => Answer::Present,
            (true, false) => Answer::Missing,
        }
    }

    #[cold]
    fn unanswered(&self, at: usize) -> Answer {
        if self.events[at].verdict == Verdict::Rejected { Answer::Rejected } else { Answer::None }
    }

    /// Whether event `index` waits for something from `source`.
    pub(crate) fn waits_for(&self, index: u64, source: usize) -> bool {
        matches!(self.answer(index, source), Answer::None | Answer::Rejected)
    }

    /// Whether the fragment of `source` is to be asked for only when level 2 has accepted the event, which it has not
    /// decided on.
    pub(crate) fn is_pending(&self, index: u64, source: usize) -> bool {
        !self.level2.is_empty() && !self.is_asked_first(source) && self.is_undecided(index)
    }

    fn is_asked_first(&self, source: usize) -> bool {
        self.level2[source / 64] & 1u64 << (source % 64) != 0
    }

    /// Whether level 2 has yet to decide on an event that is open.
    pub(crate) fn is_undecided(&self, index: u64) -> bool {
        self.slot(index).is_some_and(|at| self.events[at].verdict == Verdict::Pending)
    }

    /// The next event of which all sources that level 2 asks have answered.
    pub(crate) fn next_decision(&mut self) -> Option<u64> {
        self.decidable.pop_front()
    }

    /// Level 2 has decided on an event that is [undecided](Self::is_undecided).
    pub(crate) fn decide(&mut self, index: u64, accept: bool) {
        let Some(at) = self.slot(index) else { return };
        self.events[at].verdict = if accept { Verdict::Accepted } else { Verdict::Rejected };
        if self.events[at].waiting == 0 {
            self.close(at);
        }
    }

    /// Notes that the fragment of `source` is here. The event is open and had no answer from this source.
    #[inline]
    pub(crate) fn present(&mut self, index: u64, source: usize) {
        let Some(at) = self.slot(index) else { return };
        let word = at * 2 * self.words + self.words + source / 64;
        self.bits[word] |= 1u64 << (source % 64);
        self.events[at].delivered = true;
        self.settle(at, source);
    }

    /// Notes that the fragment of `source` will not come, if the event is open and has no answer from this source.
    pub(crate) fn missing(&mut self, index: u64, source: usize, why: Why) {
        if !self.waits_for(index, source) {
            return;
        }
        let Some(at) = self.slot(index) else { return };
        let event = &mut self.events[at];
        event.missing.push((source, why));
        event.delivered |= matches!(why, Why::Spoilt(_));
        self.settle(at, source);
    }

    #[inline]
    fn settle(&mut self, at: usize, source: usize) {
        let (word, bit) = (at * 2 * self.words + source / 64, 1u64 << (source % 64));
        debug_assert_eq!(self.bits[word] & bit, 0, "a source answers once");
        self.bits[word] |= bit;
        let event = &mut self.events[at];
        event.waiting -= 1;
        if event.verdict == Verdict::Pending {
            self.look_for_decision(at, source);
        } else if event.waiting == 0 {
            self.close(at);
        }
    }

    /// A source has answered for an event that is not decided on: now it may be.
    #[cold]
    fn look_for_decision(&mut self, at: usize, source: usize) {
        let mut answered = self.bits.range(at * 2 * self.words..).zip(&self.level2);
        if self.is_asked_first(source) && answered.all(|(bits, mask)| bits & mask == *mask) {
            self.decidable.push_back(self.base + at as u64);
        }
    }

    fn close(&mut self, at: usize) {
        let index = self.base + at as u64;
        let event = &mut self.events[at];
        let missing = std::mem::take(&mut event.missing);
        if event.verdict == Verdict::Rejected {
            self.closed_until = self.closed_until.max(index + 1);
            self.rejected += u64::from(event.delivered);
        } else if event.delivered {
            let open = self.now.saturating_sub(event.begun).as_nanos();
            self.completion.saturating_record(u64::try_from(open).unwrap_or(u64::MAX));
            self.hand_over(index, missing);
        }
        while self.events.front().is_some_and(Event::is_over) {
            self.events.pop_front();
            for _ in 0..2 * self.words {
                self.bits.pop_front();
            }
            self.base += 1;
        }
    }

    /// An event is closed, and waits to be taken.
    fn hand_over(&mut self, index: u64, mut missing: Vec<(usize, Why)>) {
        self.closed_until = self.closed_until.max(index + 1);
        self.built += 1;
        self.incomplete += u64::from(!missing.is_empty());
        if missing.is_empty()
            && let Some((first, count, last_missing)) = self.closed.back_mut()
            && last_missing.is_empty()
            && *first + u64::from(*count) == index
            && *count < u32::MAX
        {
            *count += 1;
            return;
        }
        missing.sort_unstable_by_key(|(source, _)| *source);
        for (source, _) in missing.iter().filter(|(_, why)| *why == Why::Skipped) {
            self.skipped[*source] += 1;
        }
        let missing = missing.into_iter();
        let missing = missing.map(|(source, why)| Missing { source, status: why.status() | Status::MISSING });
        self.closed.push_back((index, 1, missing.collect()));
    }

    /// The lowest index that is closed and was not taken.
    pub(crate) fn oldest_closed(&self) -> u64 {
        self.closed.iter().map(|(first, ..)| *first).min().unwrap_or(u64::MAX)
    }

    /// The next closed events: first index, count, missing sources.
    pub(crate) fn next_closed(&mut self) -> Option<(u64, u32, Vec<Missing>)> {
        self.closed.pop_front()
    }

    #[inline]
    fn slot(&self, index: u64) -> Option<usize> {
        let at = usize::try_from(index.checked_sub(self.base)?).ok()?;
        (at < self.events.len()).then_some(at)
    }
}
