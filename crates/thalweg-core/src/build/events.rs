//! The open events: which sources have answered for each, and which events are closed.

use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::time::Duration;
use thalweg_wire::{EventId, Status};

/// A closed event, or several consecutive ones that are complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// Number of the first event.
    pub first: EventId,
    /// Number of events: `first`, `first + builders`, … More than one only if they are complete.
    pub count: u32,
    /// Sources without a fragment; empty if complete.
    pub missing: Vec<Missing>,
}

/// A source without a fragment in an event that was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// Index of the source in the builder's list of sources.
    pub source: usize,
    /// [`Status::MISSING`], with the reason as far as it is known.
    pub status: Status,
}

/// State of one source's fragment in one event. Kept in two bits per source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// No answer yet.
    None,
    /// The fragment has arrived.
    Present,
    /// The fragment will not come.
    Missing,
    /// No answer yet, and none is wanted: level 2 has rejected the event.
    Rejected,
    /// The event is closed and no longer stored.
    Forgotten,
}

/// Reason why a fragment will not come. If all sources were silent about an event or dropped it, nothing is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The source went on to later events without mentioning this one.
    Skipped,
    /// The source has not mentioned the event, and will not.
    Silent(Status),
    /// The source no longer has the fragment, for this reason: it dropped it, or its device lost it.
    Dropped(Status),
    /// The source delivered a fragment, or was about to, and it cannot be used.
    Spoilt(Status),
}

impl Reason {
    fn missing_status(self) -> Status {
        match self {
            Self::Skipped => Status::empty(),
            Self::Dropped(reason) | Self::Silent(reason) | Self::Spoilt(reason) => reason,
        }
    }
}

/// Level 2's decision on an event. Without a level 2 every event is accepted as it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Pending,
    Accepted,
    Rejected,
}

/// One hour, in nanoseconds: upper limit of the recorded time for which an event was open.
const MAX_OPEN_NANOS: u64 = 3_600_000_000_000;
/// Number of events for which memory is allocated at the beginning: 64 bytes each, and 16 for each 64 sources.
const PREALLOCATED_EVENTS: u32 = 1 << 16;

/// A window of consecutive events, by their *index* (event number divided by the number of builders).
#[derive(Debug)]
pub(crate) struct OpenEvents {
    base: u64,
    most: u32,
    /// Index of the first event beyond the end of the run.
    stop: u64,
    /// Index after the highest event that was closed.
    closed_until: u64,
    sources: usize,
    words: usize,
    events: VecDeque<Event>,
    /// Per event `words` words of "answered" and then `words` words of "present".
    bits: VecDeque<u64>,
    closed: VecDeque<(u64, u32, Vec<Missing>)>,
    /// Bit mask of the sources that level 2 decides on; empty without a level 2.
    level2: Vec<u64>,
    /// Events for which all sources of level 2 have answered.
    decidable: VecDeque<u64>,
    incomplete: u64,
    built: u64,
    rejected: u64,
    /// Per source, number of events without its fragment that others had, and that the source went past.
    skipped: Vec<u64>,
    /// Per source, number of events without its fragment that others had, and that the source did not mention.
    absent: Vec<u64>,
    /// Times for which events were open, in nanoseconds, to two digits.
    completion: Histogram<u64>,
    /// Current time.
    now: Duration,
}

#[derive(Debug, Clone)]
struct Event {
    /// Time at which it was opened: in the time of deadlines, and by the clock.
    opened: Duration,
    begun: Duration,
    waiting: u32,
    /// True if a fragment of it was delivered, even one that cannot be used.
    delivered: bool,
    verdict: Verdict,
    missing: Vec<(usize, Reason)>,
}

impl Event {
    fn is_finished(&self) -> bool {
        self.waiting == 0 && self.verdict != Verdict::Pending
    }
}

impl OpenEvents {
    /// Creates a window without events. `level2`: the sources whose answers an event is decided on before the others
    /// are fetched from; empty without a level 2.
    pub(crate) fn new(first: u64, most: u32, sources: usize, level2: &[usize]) -> Self {
        // Allocated and touched now, up to the default bound: a run then ends with the memory it began with.
        let (ahead, words) = (most.min(PREALLOCATED_EVENTS) as usize, sources.div_ceil(64));
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
            absent: vec![0; sources],
            completion: Histogram::new_with_bounds(1, MAX_OPEN_NANOS, 2)
                .unwrap_or_else(|_| unreachable!("within its bounds")),
            now: Duration::ZERO,
        }
    }

    /// Sets the current time.
    pub(crate) fn advance_clock(&mut self, now: Duration) {
        self.now = now;
    }

    pub(crate) fn completion_times(&self) -> &Histogram<u64> {
        &self.completion
    }

    pub(crate) fn clear_completion_times(&mut self) {
        self.completion.reset();
    }

    /// Returns the oldest event that is still open, or the next to be opened.
    pub(crate) fn first_open_index(&self) -> u64 {
        self.base
    }

    /// Returns the index after the youngest event that was opened.
    pub(crate) fn end_index(&self) -> u64 {
        self.base + self.events.len() as u64
    }

    /// Returns the maximum number of open events.
    pub(crate) fn max_open_events(&self) -> u32 {
        self.most
    }

    /// Returns the index after the youngest event that may be opened.
    pub(crate) fn open_limit_index(&self) -> u64 {
        if self.is_backed_up() {
            return self.end_index();
        }
        self.base.saturating_add(u64::from(self.most)).min(self.stop).max(self.end_index())
    }

    /// Returns the index of the first event beyond the end of the run.
    pub(crate) fn stop_index(&self) -> u64 {
        self.stop
    }

    /// Returns the index after the highest event that was closed.
    pub(crate) fn closed_until(&self) -> u64 {
        self.closed_until
    }

    /// Ends the run before event `stop`. Open events from there on are removed; `vanishes` is called with the source of
    /// each fragment that has arrived for one of them. Fragments of events that were closed or rejected are accounted
    /// for already.
    pub(crate) fn end_before(&mut self, stop: u64, mut vanishes: impl FnMut(usize)) {
        self.stop = self.stop.min(stop);
        while self.end_index() > stop
            && let Some(event) = self.events.pop_back()
        {
            let bits = self.bits.split_off(self.bits.len() - 2 * self.words);
            if event.is_finished() || event.verdict == Verdict::Rejected {
                continue;
            }
            let present =
                (0..self.sources).filter(|source| bits[self.words + source / 64] & 1u64 << (source % 64) != 0);
            present.for_each(&mut vanishes);
        }
        self.decidable.retain(|index| *index < stop);
    }

    /// Returns whether no more events are opened because too many closed ones wait to be taken.
    pub(crate) fn is_backed_up(&self) -> bool {
        self.closed.len() >= self.most as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Returns whether closed events wait to be taken.
    pub(crate) fn has_closed_events(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Returns the number of events that were closed and not rejected.
    pub(crate) fn built_count(&self) -> u64 {
        self.built
    }

    /// Returns the number of events that level 2 has rejected and that are closed.
    pub(crate) fn rejected_count(&self) -> u64 {
        self.rejected
    }

    /// Returns the number of events without a fragment of `source` that others had, and that the source went past.
    pub(crate) fn skipped_count_of(&self, source: usize) -> u64 {
        self.skipped[source]
    }

    /// Returns the number of events without a fragment of `source` that others had, and that the source did not
    /// mention before it ended or before their deadline.
    pub(crate) fn absent_count_of(&self, source: usize) -> u64 {
        self.absent[source]
    }

    /// Uncounts a closed event, complete or not, that is rejected after all.
    pub(crate) fn uncount_built(&mut self, complete: bool) {
        self.built -= 1;
        self.incomplete -= u64::from(!complete);
    }

    pub(crate) fn incomplete_count(&self) -> u64 {
        self.incomplete
    }

    /// Opens all events below `end`, which is at most [`open_limit_index`](Self::open_limit_index). Their ages never decrease with their
    /// index, since they are opened in order.
    pub(crate) fn open_events_until(&mut self, end: u64, now: Duration) {
        debug_assert!(end <= self.open_limit_index().max(self.end_index()));
        #[expect(clippy::cast_possible_truncation, reason = "a topology has far fewer than 2^32 sources")]
        let waiting = self.sources as u32;
        while self.end_index() < end {
            let begun = self.now;
            let verdict = if self.level2.is_empty() { Verdict::Accepted } else { Verdict::Pending };
            let missing = Vec::new();
            self.events.push_back(Event { opened: now, begun, waiting, delivered: false, verdict, missing });
            self.bits.extend(std::iter::repeat_n(0, 2 * self.words));
        }
    }

    /// Skips events that no source mentions. No event is open.
    pub(crate) fn skip_to_index(&mut self, base: u64) {
        debug_assert!(self.events.is_empty() && base >= self.base);
        self.base = base;
    }

    /// Returns the time at which event `index` was opened; `None` if it is not open.
    pub(crate) fn opening_time(&self, index: u64) -> Option<Duration> {
        self.window_position(index).map(|at| self.events[at].opened)
    }

    #[inline]
    pub(crate) fn answer_of(&self, index: u64, source: usize) -> Answer {
        let Some(at) = self.window_position(index) else {
            return if index < self.base { Answer::Forgotten } else { Answer::None };
        };
        let (word, bit) = (at * 2 * self.words + source / 64, 1u64 << (source % 64));
        match (self.bits[word] & bit != 0, self.bits[word + self.words] & bit != 0) {
            (false, _) if self.level2.is_empty() => Answer::None,
            (false, _) => self.answer_when_open(at),
            (true, true) => Answer::Present,
            (true, false) => Answer::Missing,
        }
    }

    #[cold]
    fn answer_when_open(&self, at: usize) -> Answer {
        if self.events[at].verdict == Verdict::Rejected { Answer::Rejected } else { Answer::None }
    }

    /// Returns whether event `index` waits for an answer from `source`.
    pub(crate) fn waits_for_source(&self, index: u64, source: usize) -> bool {
        matches!(self.answer_of(index, source), Answer::None | Answer::Rejected)
    }

    /// Returns whether the fragment of `source` is to be fetched only after level 2 has accepted the event, on which
    /// level 2 has not decided.
    pub(crate) fn is_fetch_pending(&self, index: u64, source: usize) -> bool {
        !self.level2.is_empty() && !self.is_level2_source(source) && self.is_undecided(index)
    }

    fn is_level2_source(&self, source: usize) -> bool {
        self.level2[source / 64] & 1u64 << (source % 64) != 0
    }

    /// Returns whether level 2 has yet to decide on an event that is open.
    pub(crate) fn is_undecided(&self, index: u64) -> bool {
        self.window_position(index).is_some_and(|at| self.events[at].verdict == Verdict::Pending)
    }

    /// Returns the next event for which all sources of level 2 have answered.
    pub(crate) fn next_decision(&mut self) -> Option<u64> {
        self.decidable.pop_front()
    }

    /// Applies level 2's decision on an event that is [undecided](Self::is_undecided).
    pub(crate) fn decide_event(&mut self, index: u64, accept: bool) {
        let Some(at) = self.window_position(index) else { return };
        self.events[at].verdict = if accept { Verdict::Accepted } else { Verdict::Rejected };
        if self.events[at].waiting == 0 {
            self.close_event(at);
        }
    }

    /// Notes that the fragment of `source` has arrived. The event is open and had no answer from this source.
    #[inline]
    pub(crate) fn mark_present(&mut self, index: u64, source: usize) {
        let Some(at) = self.window_position(index) else { return };
        let word = at * 2 * self.words + self.words + source / 64;
        self.bits[word] |= 1u64 << (source % 64);
        self.events[at].delivered = true;
        self.record_answer(at, source);
    }

    /// Notes that the fragment of `source` will not come, if the event is open and has no answer from this source.
    pub(crate) fn mark_missing(&mut self, index: u64, source: usize, reason: Reason) {
        if !self.waits_for_source(index, source) {
            return;
        }
        let Some(at) = self.window_position(index) else { return };
        let event = &mut self.events[at];
        event.missing.push((source, reason));
        event.delivered |= matches!(reason, Reason::Spoilt(_));
        self.record_answer(at, source);
    }

    #[inline]
    fn record_answer(&mut self, at: usize, source: usize) {
        let (word, bit) = (at * 2 * self.words + source / 64, 1u64 << (source % 64));
        debug_assert_eq!(self.bits[word] & bit, 0, "a source answers once");
        self.bits[word] |= bit;
        let event = &mut self.events[at];
        event.waiting -= 1;
        if event.verdict == Verdict::Pending {
            self.queue_if_decidable(at, source);
        } else if event.waiting == 0 {
            self.close_event(at);
        }
    }

    /// Queues an undecided event for a decision if this source's answer was the last one needed.
    #[cold]
    fn queue_if_decidable(&mut self, at: usize, source: usize) {
        let mut answered = self.bits.range(at * 2 * self.words..).zip(&self.level2);
        if self.is_level2_source(source) && answered.all(|(bits, mask)| bits & mask == *mask) {
            self.decidable.push_back(self.base + at as u64);
        }
    }

    fn close_event(&mut self, at: usize) {
        let index = self.base + at as u64;
        let event = &mut self.events[at];
        let missing = std::mem::take(&mut event.missing);
        if event.verdict == Verdict::Rejected {
            self.closed_until = self.closed_until.max(index + 1);
            self.rejected += u64::from(event.delivered);
        } else if event.delivered {
            let open = self.now.saturating_sub(event.begun).as_nanos();
            self.completion.saturating_record(u64::try_from(open).unwrap_or(u64::MAX));
            self.queue_closed(index, missing);
        }
        while self.events.front().is_some_and(Event::is_finished) {
            self.events.pop_front();
            for _ in 0..2 * self.words {
                self.bits.pop_front();
            }
            self.base += 1;
        }
    }

    /// Queues a closed event, to be taken by the caller.
    fn queue_closed(&mut self, index: u64, mut missing: Vec<(usize, Reason)>) {
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
        for (source, reason) in &missing {
            self.skipped[*source] += u64::from(*reason == Reason::Skipped);
            self.absent[*source] += u64::from(matches!(reason, Reason::Silent(_)));
        }
        let missing = missing.into_iter();
        let missing =
            missing.map(|(source, reason)| Missing { source, status: reason.missing_status() | Status::MISSING });
        self.closed.push_back((index, 1, missing.collect()));
    }

    /// Returns the lowest index that is closed and was not taken.
    pub(crate) fn oldest_closed(&self) -> u64 {
        self.closed.iter().map(|(first, ..)| *first).min().unwrap_or(u64::MAX)
    }

    /// Returns the next closed events: first index, count, missing sources.
    pub(crate) fn next_closed(&mut self) -> Option<(u64, u32, Vec<Missing>)> {
        self.closed.pop_front()
    }

    #[inline]
    fn window_position(&self, index: u64) -> Option<usize> {
        let at = usize::try_from(index.checked_sub(self.base)?).ok()?;
        (at < self.events.len()).then_some(at)
    }
}
