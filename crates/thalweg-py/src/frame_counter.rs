//! Conversion of a publisher's counts to event numbers.

use pyo3::prelude::*;
use std::time::Instant;
use thalweg_device::{CounterRules, FrameCounter, FrameNumber, Trust};

/// The numbers of what is published, from the publisher's counter of `bits` bits. For thalweg.epics and thalweg.dectris.
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

    /// Returns the number of what has come now, where `next` is the first number that is still waited for; None where it
    /// is before that.
    fn came(&mut self, count: u64, next: u64) -> Option<u64> {
        match self.counter.accept_count(count, next, self.began.elapsed()) {
            FrameNumber::At(number) if number >= next => Some(number),
            _ => None,
        }
    }

    /// Assigns this number to this count, whatever came before.
    fn begin(&mut self, count: u64, number: u64, certain: bool) {
        self.counter.begin_at_count(count, number, certain, self.began.elapsed());
    }

    /// The counter has begun anew with this count. Returns the number, `next` or a later one.
    fn begin_anew(&mut self, count: u64, next: u64) -> u64 {
        self.counter.restart_at_count(count, next, self.began.elapsed())
    }

    /// Whether a number is more than a guess.
    fn is_certain(&self, number: u64) -> bool {
        self.counter.is_certain(number)
    }
}
