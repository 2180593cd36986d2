//! Conversion of a publisher's counts to event numbers.

use pyo3::prelude::*;
use std::time::Instant;
use thalweg_device::{CounterRules, FrameCounter, FrameNumber, Trust};

/// Converter from a publisher's counter of `bits` bits to event numbers, for thalweg.epics and thalweg.dectris.
#[pyclass]
pub(crate) struct _FrameCounter {
    counter: FrameCounter,
    began: Instant,
}

#[pymethods]
impl _FrameCounter {
    #[new]
    fn new(bits: u32) -> Self {
        Self { counter: FrameCounter::new(CounterRules::new(bits.clamp(1, 64), Trust::DRIVER)), began: Instant::now() }
    }

    /// Returns the event number for a count that was received now, or None if that number is before `next`, the first
    /// number that is still expected.
    fn accept_count(&mut self, count: u64, next: u64) -> Option<u64> {
        match self.counter.accept_count(count, next, self.began.elapsed()) {
            FrameNumber::At(number) if number >= next => Some(number),
            _ => None,
        }
    }

    /// Assigns an event number to a count, independently of the counts before.
    fn begin_at_count(&mut self, count: u64, number: u64, certain: bool) {
        self.counter.begin_at_count(count, number, certain, self.began.elapsed());
    }

    /// Restarts the counter at this count. Returns its event number, which is `next` or later.
    fn restart_at_count(&mut self, count: u64, next: u64) -> u64 {
        self.counter.restart_at_count(count, next, self.began.elapsed())
    }

    /// Returns whether an event number is certain: the counter has not been restarted, or reset, before it.
    fn is_certain(&self, number: u64) -> bool {
        self.counter.is_certain(number)
    }
}
