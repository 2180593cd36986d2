//! A kind of device in one file: a digitizer with a clock of its own, in a topology as `device = { kind =
//! "my-digitizer", channels = 4, samples = 1000, rate = 100.0 }`.
//!
//! The hardware is *simulated* here by `read_out`, which takes the place of the maker's library.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;
use thalweg_device::{
    Acquired, Acquisition, Adapter, Buffer, Description, DeviceError, DeviceKind, DeviceOptions, Frame, HeaderValues,
    OpenDevice,
};
use thalweg_wire::{PayloadType, Status, TaiNanos};

/// Number of records that the digitizer's own memory holds.
const MEMORY_RECORDS: u64 = 16;

/// Options of a digitizer, as its table in a topology has them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MyDigitizer {
    /// Number of channels.
    pub channels: u16,
    /// Number of samples of each channel in a record.
    pub samples: u32,
    /// Records per second.
    pub rate: f64,
}

impl DeviceKind for MyDigitizer {
    const NAME: &'static str = "my-digitizer";
}

impl DeviceOptions for MyDigitizer {
    fn open_device(&self, _adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        self.check_options()?;
        Ok(OpenDevice::Acquisition(Box::new(Digitizer::new(self))))
    }

    fn check_options(&self) -> Result<(), DeviceError> {
        let wrong = |option, problem: &str| Err(DeviceError::Option { option, problem: problem.into() });
        match self {
            Self { channels: 1..=64, samples: 1..=100_000, rate } if (0.1..=1e5).contains(rate) => Ok(()),
            Self { channels: 1..=64, samples: 1..=100_000, .. } => wrong("rate", "0.1 to 100000 records a second"),
            Self { channels: 1..=64, .. } => wrong("samples", "1 to 100000 are possible"),
            _ => wrong("channels", "1 to 64 are possible"),
        }
    }

    fn is_acquisition(&self) -> bool {
        true
    }

    fn longest_payload_bytes(&self) -> Option<u64> {
        Some(u64::from(self.channels) * u64::from(self.samples) * 2)
    }
}

/// An open digitizer.
#[derive(Debug)]
struct Digitizer {
    /// Length of a record, in bytes.
    record_bytes: usize,
    /// Time from one record to the next.
    period: Duration,
    description: Description,
    /// Slots that are to be filled.
    posted: VecDeque<Buffer>,
    /// Time at which record 0 was taken, by the node's clock; `None` before the first look.
    began: Option<Duration>,
    /// Time of record 0 as TAI.
    origin: TaiNanos,
    /// Number of the record that is read next.
    next: u64,
}

impl Digitizer {
    fn new(options: &MyDigitizer) -> Self {
        let record_bytes = usize::from(options.channels) * options.samples as usize * 2;
        let description = Description {
            kind: MyDigitizer::NAME.into(),
            payload_type: PayloadType::SAMPLES_I16.type_name().into(),
            simulated: true,
            channels: Some(options.channels.into()),
            record_bytes: Some(record_bytes as u64),
            ..Description::default()
        };
        let period = Duration::from_secs_f64(1.0 / options.rate);
        let (posted, began, origin, next) = (VecDeque::new(), None, TaiNanos(0), 0);
        Self { record_bytes, period, description, posted, began, origin, next }
    }

    /// Returns the time from record 0 to a record.
    fn offset(&self, record: u64) -> Duration {
        Duration::from_nanos((self.period.as_nanos() as u64).saturating_mul(record))
    }
}

impl Acquisition for Digitizer {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload_bytes(&self) -> usize {
        self.record_bytes
    }

    fn max_posted_buffers(&self) -> u32 {
        8
    }

    fn post_buffer(&mut self, buffer: Buffer) {
        self.posted.push_back(buffer);
    }

    fn start_acquisition(&mut self, at: TaiNanos) -> Result<(), DeviceError> {
        self.origin = at;
        Ok(())
    }

    fn poll_acquired(&mut self, now: Duration) -> Result<Acquired, DeviceError> {
        let began = *self.began.get_or_insert(now);
        let taken = ((now - began).as_nanos() / self.period.as_nanos().max(1)) as u64 + 1;
        // The digitizer's memory holds the newest records: older ones are lost, and it counts them.
        let oldest = taken.saturating_sub(MEMORY_RECORDS);
        if self.next < oldest {
            let (first, count) = (self.next, oldest - self.next);
            self.next = oldest;
            return Ok(Acquired::Lost { first, count });
        }
        if self.next >= taken {
            return Ok(Acquired::NotYet);
        }
        let Some(mut buffer) = self.posted.pop_front() else { return Ok(Acquired::NotYet) };
        let number = self.next;
        read_out(number, &mut buffer.payload_mut()[..self.record_bytes]);
        let timestamp = TaiNanos(self.origin.0 + self.offset(number).as_nanos() as u64);
        let filled = HeaderValues {
            payload_type: PayloadType::SAMPLES_I16,
            status: Status::SIMULATED,
            window: 0,
            timestamp: Some(timestamp),
        };
        self.next += 1;
        Ok(Acquired::Frame(Frame {
            buffer,
            number,
            len: self.record_bytes,
            filled,
            crc: None,
            copied: self.record_bytes,
        }))
    }

    fn next_poll_time(&self) -> Option<Duration> {
        self.began.map(|began| began + self.offset(self.next))
    }
}

/// Writes a record: sample *n* of record *r* is *r* + *n*. *Simulated*: here the maker's library would be called.
fn read_out(record: u64, into: &mut [u8]) {
    for (sample, bytes) in (0..).zip(into.chunks_exact_mut(2)) {
        bytes.copy_from_slice(&((record + sample) as i16).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thalweg_device::device_conformance!(
        MyDigitizer,
        ["channels = 4\nsamples = 1000\nrate = 100.0"],
        opens: "channels = 2\nsamples = 10\nrate = 1e4"
    );
}
