//! The open events: which sources have answered for each, and which events are closed.

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

/// What is known of one source's fragment in one open event. Kept in two bits per source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing yet.
    None,
    /// The fragment is here.
    Present,
    /// It will not come.
    Missing,
    /// The event is closed and forgotten.
    Forgotten,
}

/// A window of consecutive events, by their *index* (event number divided by the number of builders).
#[derive(Debug)]
pub(crate) struct OpenEvents {
    base: u64,
    sources: usize,
    words: usize,
    events: VecDeque<Event>,
    /// Per event `words` words of "answered" and then `words` words of "present".
    bits: VecDeque<u64>,
    closed: VecDeque<(u64, u32, Vec<Missing>)>,
    reasons: Vec<(u64, usize, Status)>,
    incomplete: u64,
    built: u64,
}

#[derive(Debug, Clone, Copy)]
struct Event {
    opened: Duration,
    waiting: u32,
    missing: u32,
}

impl OpenEvents {
    pub(crate) fn new(first: u64, sources: usize) -> Self {
        Self {
            base: first,
            sources,
            words: sources.div_ceil(64),
            events: VecDeque::new(),
            bits: VecDeque::new(),
            closed: VecDeque::new(),
            reasons: Vec::new(),
            incomplete: 0,
            built: 0,
        }
    }

    /// The oldest event that is still open, or the next to be opened.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// One past the youngest event that was opened.
    pub(crate) fn end(&self) -> u64 {
        self.base + self.events.len() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub(crate) fn built(&self) -> u64 {
        self.built
    }

    pub(crate) fn incomplete(&self) -> u64 {
        self.incomplete
    }

    /// Opens all events below `end`. Their ages never decrease with their index, since they are opened in order.
    pub(crate) fn open_until(&mut self, end: u64, now: Duration) {
        #[expect(clippy::cast_possible_truncation, reason = "a topology has far fewer than 2^32 sources")]
        let waiting = self.sources as u32;
        while self.end() < end {
            self.events.push_back(Event { opened: now, waiting, missing: 0 });
            self.bits.extend(std::iter::repeat_n(0, 2 * self.words));
        }
    }

    /// When the oldest open event was opened.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.events.front().map(|event| event.opened)
    }

    /// When event `index` was opened.
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
            (false, _) => Answer::None,
            (true, true) => Answer::Present,
            (true, false) => Answer::Missing,
        }
    }

    /// Notes that the fragment of `source` is here. The event is open and had no answer from this source.
    #[inline]
    pub(crate) fn present(&mut self, index: u64, source: usize) {
        self.settle(index, source, true);
    }

    /// Notes that the fragment of `source` will not come.
    pub(crate) fn missing(&mut self, index: u64, source: usize, reason: Status) {
        self.reasons.push((index, source, reason | Status::MISSING));
        self.settle(index, source, false);
    }

    #[inline]
    fn settle(&mut self, index: u64, source: usize, present: bool) {
        let Some(at) = self.slot(index) else { return };
        let (word, bit) = (at * 2 * self.words + source / 64, 1u64 << (source % 64));
        debug_assert_eq!(self.bits[word] & bit, 0, "a source answers once");
        self.bits[word] |= bit;
        if present {
            self.bits[word + self.words] |= bit;
        }
        let event = &mut self.events[at];
        event.waiting -= 1;
        event.missing += u32::from(!present);
        if event.waiting == 0 {
            let missing = event.missing;
            self.close(index, missing);
        }
        while self.events.front().is_some_and(|event| event.waiting == 0) {
            self.events.pop_front();
            self.bits.drain(..2 * self.words);
            self.base += 1;
        }
    }

    fn close(&mut self, index: u64, missing: u32) {
        self.built += 1;
        if missing == 0 {
            if let Some((first, count, last_missing)) = self.closed.back_mut()
                && last_missing.is_empty()
                && *first + u64::from(*count) == index
                && *count < u32::MAX
            {
                *count += 1;
                return;
            }
            self.closed.push_back((index, 1, Vec::new()));
            return;
        }
        self.incomplete += 1;
        let mut list = Vec::with_capacity(missing as usize);
        self.reasons.retain(|&(event, source, status)| {
            let here = event == index;
            if here {
                list.push(Missing { source, status });
            }
            !here
        });
        list.sort_by_key(|missing| missing.source);
        self.closed.push_back((index, 1, list));
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
