//! Links and switch ports of the model, FIFOs of a rate and a buffer; and the calendar of the simulation.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

/// Time since the beginning, in nanoseconds.
pub(super) type Time = u64;

/// Future events, earliest first; those of the same time in the order in which they were added.
#[derive(Debug)]
pub(super) struct Calendar<T> {
    entries: BinaryHeap<Entry<T>>,
    added: u64,
}

#[derive(Debug)]
struct Entry<T> {
    at: Reverse<(Time, u64)>,
    what: T,
}

impl<T> Calendar<T> {
    pub(super) fn new() -> Self {
        Self { entries: BinaryHeap::new(), added: 0 }
    }

    pub(super) fn schedule_event(&mut self, time: Time, what: T) {
        self.added += 1;
        self.entries.push(Entry { at: Reverse((time, self.added)), what });
    }

    pub(super) fn pop_next_event(&mut self) -> Option<(Time, T)> {
        self.entries.pop().map(|Entry { at: Reverse((time, _)), what }| (time, what))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<T> Eq for Entry<T> {}

/// A link with a queue before it.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) name: String,
    /// Nanoseconds for a byte on the wire.
    pub(super) byte_time: f64,
    pub(super) buffer: u64,
    /// Time at which everything that waits will have been sent.
    free: Time,
    /// Frames that wait or are being sent: time at which each will have been sent, and its bytes.
    waiting: VecDeque<(Time, u64)>,
    backlog: u64,
    pub(super) longest: u64,
    pub(super) drops: u64,
}

impl Port {
    pub(super) fn new(name: String, bytes_per_second: f64, buffer: u64) -> Self {
        Self {
            name,
            byte_time: 1e9 / bytes_per_second,
            buffer,
            free: 0,
            waiting: VecDeque::new(),
            backlog: 0,
            longest: 0,
            drops: 0,
        }
    }

    /// Adds a frame of `bytes`, which takes `wire` bytes on the wire, and returns the time at which it will have been
    /// sent; `None` if the buffer is full. The frame that is being sent takes no room.
    pub(super) fn enqueue_frame(&mut self, now: Time, bytes: u64, wire: u64) -> Option<Time> {
        while self.waiting.front().is_some_and(|(gone, _)| *gone <= now) {
            self.waiting.pop_front();
            // The next one is being sent from then on.
            self.backlog -= self.waiting.front().map_or(0, |(_, bytes)| *bytes);
        }
        let takes = (wire as f64 * self.byte_time) as u64;
        if self.waiting.is_empty() {
            self.free = now + takes;
        } else {
            if self.backlog + bytes > self.buffer {
                self.drops += 1;
                return None;
            }
            self.backlog += bytes;
            self.longest = self.longest.max(self.backlog);
            self.free += takes;
        }
        self.waiting.push_back((self.free, bytes));
        Some(self.free)
    }
}
