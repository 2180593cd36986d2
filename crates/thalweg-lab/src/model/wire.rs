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

/// Use of a port over equal steps of time.
#[derive(Debug)]
pub(super) struct StepRecorder {
    from: Time,
    step: Time,
    /// Nanoseconds in which it sent, in each step.
    pub(super) busy: Vec<Time>,
    /// Largest number of bytes that waited, in each step.
    pub(super) waiting: Vec<u64>,
    /// Sum over all bytes of the nanoseconds for which they waited.
    waited: f64,
}

impl StepRecorder {
    pub(super) fn new(from: Time, length: Time, steps: usize) -> Self {
        let step = (length / steps as Time).max(1);
        Self { from, step, busy: vec![0; steps], waiting: vec![0; steps], waited: 0.0 }
    }

    /// Returns the end of a step.
    pub(super) fn step_end(&self, step: usize) -> Time {
        self.from + (step as Time + 1) * self.step
    }

    fn end(&self) -> Time {
        self.step_end(self.busy.len() - 1)
    }

    /// Returns the mean number of bytes that waited.
    pub(super) fn mean_waiting_bytes(&self) -> u64 {
        (self.waited / (self.end() - self.from) as f64) as u64
    }

    /// Returns the fraction of the time in which it sent.
    pub(super) fn busy_fraction(&self) -> f64 {
        self.busy.iter().sum::<Time>() as f64 / (self.end() - self.from) as f64
    }

    /// Returns the fraction of each step in which it sent.
    pub(super) fn busy_fractions(&self) -> Vec<f32> {
        self.busy.iter().map(|busy| *busy as f32 / self.step as f32).collect()
    }

    /// Records a frame that waits from `now` until `starts` and is sent until `gone`, with `backlog` bytes in the queue.
    fn record_frame(&mut self, now: Time, starts: Time, gone: Time, bytes: u64, backlog: u64) {
        let [arrived, begins, ends] = [now, starts, gone].map(|time| time.clamp(self.from, self.end()));
        self.waited += (begins - arrived) as f64 * bytes as f64;
        let mut at = begins;
        while at < ends {
            let step = ((at - self.from) / self.step) as usize;
            let until = self.step_end(step).min(ends);
            self.busy[step] += until - at;
            at = until;
        }
        if (self.from..self.end()).contains(&now) {
            let waiting = &mut self.waiting[((now - self.from) / self.step) as usize];
            *waiting = (*waiting).max(backlog);
        }
    }
}

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
    /// Use in the measured time.
    pub(super) measured: StepRecorder,
    /// Use from the first frame on.
    pub(super) history: StepRecorder,
}

impl Port {
    pub(super) fn new(
        name: String,
        bytes_per_second: f64,
        buffer: u64,
        measured: StepRecorder,
        history: StepRecorder,
    ) -> Self {
        Self {
            measured,
            history,
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

    /// Returns the part of the buffer that was filled at most.
    pub(super) fn fill_fraction(&self) -> f64 {
        self.longest as f64 / self.buffer as f64
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
        let starts = self.free - takes;
        for recorder in [&mut self.measured, &mut self.history] {
            recorder.record_frame(now, starts, self.free, bytes, self.backlog);
        }
        self.waiting.push_back((self.free, bytes));
        Some(self.free)
    }
}
