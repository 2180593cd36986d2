//! Copies of a device's payloads for an observer that never holds the device up.

use crate::{Acquired, Acquisition, Buffer, Contents, Description, Device, DeviceError, HeaderValues};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;
use thalweg_arena::Arena;
use thalweg_wire::{EventId, TaiNanos};

/// Sending end, at the device.
#[derive(Debug)]
struct Tap {
    copies: Option<SyncSender<Passed>>,
    /// Buffers that the observer has given back.
    back: Receiver<Vec<u8>>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bell: OwnedFd,
    /// Number after the highest that the device has reached.
    next: AtomicU64,
}

#[derive(Debug)]
enum Passed {
    Copied(Copied),
    Missed { first: u64, count: u64 },
    Lost { first: u64, count: u64 },
}

/// Copy of one payload.
#[derive(Debug)]
pub struct Copied {
    /// Number of the frame, from 0 at the start of the run.
    pub number: u64,
    /// Bytes of the payload.
    pub bytes: Vec<u8>,
    /// Header values that the device gave for the payload.
    pub filled: HeaderValues,
}

/// Receiving end, at the observer.
#[derive(Debug)]
pub struct Copies {
    copies: Receiver<Passed>,
    back: SyncSender<Vec<u8>>,
    shared: Arc<Shared>,
}

/// Result of [`Copies::take_next`].
#[derive(Debug)]
pub enum Next {
    /// A copy, to be [given back](Copies::give_back_copy).
    Copied(Copied),
    /// The device has no data for some frames.
    Missed {
        /// Number of the first missed frame.
        first: u64,
        /// Number of missed frames.
        count: u64,
    },
    /// The device lost frames, or frames came while all copies were waiting.
    Lost {
        /// Number of the first lost frame.
        first: u64,
        /// Number of lost frames.
        count: u64,
    },
    /// No copy or report yet.
    NotYet,
    /// No more copies will come.
    Over {
        /// Number after the highest that the device has reached.
        next: u64,
    },
}

fn create_tap(longest: usize, depth: usize) -> Result<(Tap, Copies), DeviceError> {
    let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(|error| DeviceError::Hardware {
        device: "a calibration".into(),
        problem: format!("eventfd: {error}"),
    })?;
    let shared = Arc::new(Shared { bell, next: AtomicU64::new(0) });
    // Besides copies, messages about missed frames may be queued.
    let (copies, taken) = sync_channel(2 * depth);
    let (give_back, back) = sync_channel(depth);
    (0..depth).for_each(|_| drop(give_back.try_send(Vec::with_capacity(longest))));
    let tap = Tap { copies: Some(copies), back, shared: Arc::clone(&shared) };
    Ok((tap, Copies { copies: taken, back: give_back, shared }))
}

/// Returns a device that works by itself, and copies of its payloads. At most `depth` copies wait: meanwhile, further
/// payloads are not copied and are reported as lost. Where there is no room even for that report, the number is
/// missing, as a later one or [`Next::Over`] shows.
///
/// # Errors
/// The system gives no descriptor.
pub fn tap_acquisition(
    device: Box<dyn Acquisition>,
    depth: usize,
) -> Result<(Box<dyn Acquisition>, Copies), DeviceError> {
    let (tap, copies) = create_tap(device.max_payload_bytes(), depth)?;
    Ok((Box::new(TappedAcquisition { device, tap }), copies))
}

/// Returns a device that is asked for its data, and copies of its payloads, as [`tap_acquisition`] does.
///
/// # Errors
/// The system gives no descriptor.
pub fn tap_device(device: Box<dyn Device>, depth: usize) -> Result<(Box<dyn Device>, Copies), DeviceError> {
    let (tap, copies) = create_tap(device.max_payload_bytes(), depth)?;
    Ok((Box::new(TappedDevice { device, tap, first: None }), copies))
}

impl Tap {
    fn copy_payload(&self, number: u64, payload: &[u8], filled: HeaderValues) {
        let Ok(mut bytes) = self.back.try_recv() else {
            return self.report_lost(number, 1);
        };
        bytes.clear();
        bytes.extend_from_slice(payload);
        self.send_passed(number.saturating_add(1), Passed::Copied(Copied { number, bytes, filled }));
    }

    fn report_missed(&self, first: u64, count: u64) {
        self.send_passed(first.saturating_add(count), Passed::Missed { first, count });
    }

    fn report_lost(&self, first: u64, count: u64) {
        self.send_passed(first.saturating_add(count), Passed::Lost { first, count });
    }

    fn send_passed(&self, next: u64, passed: Passed) {
        self.shared.next.fetch_max(next, Ordering::Relaxed);
        if self.copies.as_ref().is_some_and(|copies| copies.try_send(passed).is_ok()) {
            ring_bell(&self.shared.bell);
        }
    }

    /// Reports to the observer that nothing more will come.
    fn close_channel(&mut self) {
        self.copies = None;
        ring_bell(&self.shared.bell);
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.close_channel();
    }
}

fn ring_bell(bell: &OwnedFd) {
    // A write fails only where the counter is at its maximum; the descriptor is then readable all the same.
    let _ = write(bell, &1u64.to_ne_bytes());
}

impl Copies {
    /// Returns the oldest copy. If there is none, the descriptor is not readable until there is one.
    pub fn take_next(&mut self) -> Next {
        // Reset the descriptor first: a copy made after this makes it readable again.
        let _ = read(&self.shared.bell, &mut [0u8; 8]);
        match self.copies.try_recv() {
            Ok(passed) => {
                // More copies may be waiting.
                ring_bell(&self.shared.bell);
                match passed {
                    Passed::Copied(copied) => Next::Copied(copied),
                    Passed::Missed { first, count } => Next::Missed { first, count },
                    Passed::Lost { first, count } => Next::Lost { first, count },
                }
            }
            Err(TryRecvError::Empty) => Next::NotYet,
            // Whatever the device did before it dropped its end is visible here.
            Err(TryRecvError::Disconnected) => Next::Over { next: self.shared.next.load(Ordering::Relaxed) },
        }
    }

    /// Returns the buffer of a copy for reuse.
    pub fn give_back_copy(&mut self, copied: Copied) {
        let _ = self.back.try_send(copied.bytes);
    }

    /// Returns a descriptor that is readable while there may be a copy.
    pub fn readiness_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}

#[derive(Debug)]
struct TappedAcquisition {
    device: Box<dyn Acquisition>,
    tap: Tap,
}

impl Acquisition for TappedAcquisition {
    fn description(&self) -> &Description {
        self.device.description()
    }

    fn max_payload_bytes(&self) -> usize {
        self.device.max_payload_bytes()
    }

    fn max_posted_buffers(&self) -> u32 {
        self.device.max_posted_buffers()
    }

    fn reorder_depth(&self) -> u32 {
        self.device.reorder_depth()
    }

    fn takes_dma_bufs(&self) -> bool {
        self.device.takes_dma_bufs()
    }

    fn register_memory(&mut self, arena: &Arc<Arena>) -> Result<(), DeviceError> {
        self.device.register_memory(arena)
    }

    fn post_buffer(&mut self, buffer: Buffer) {
        self.device.post_buffer(buffer);
    }

    fn start_acquisition(&mut self, at: TaiNanos) -> Result<(), DeviceError> {
        self.device.start_acquisition(at)
    }

    fn poll_acquired(&mut self, now: Duration) -> Result<Acquired, DeviceError> {
        let mut acquired = self.device.poll_acquired(now)?;
        match &mut acquired {
            Acquired::Frame(frame) => {
                let payload = frame.buffer.payload_mut();
                self.tap.copy_payload(frame.number, &payload[..frame.len.min(payload.len())], frame.filled);
            }
            Acquired::Missed { first, count } => self.tap.report_missed(*first, *count),
            Acquired::Lost { first, count } => self.tap.report_lost(*first, *count),
            Acquired::Over => self.tap.close_channel(),
            Acquired::NotYet => {}
        }
        Ok(acquired)
    }

    fn poll_idle(&mut self, now: Duration) -> Result<Option<Duration>, DeviceError> {
        self.device.poll_idle(now)
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.readiness_fd()
    }

    fn has_room(&self) -> bool {
        self.device.has_room()
    }

    fn is_away(&self) -> bool {
        self.device.is_away()
    }

    fn next_poll_time(&self) -> Option<Duration> {
        self.device.next_poll_time()
    }

    fn event_period(&self) -> Option<Duration> {
        self.device.event_period()
    }

    fn first_frame_time(&self) -> Option<TaiNanos> {
        self.device.first_frame_time()
    }

    fn begin_events(&mut self, origin: TaiNanos) {
        self.device.begin_events(origin);
    }

    fn confirm_numbers(&mut self, first: u64) {
        self.device.confirm_numbers(first);
    }

    fn stray_frame_count(&self) -> u64 {
        self.device.stray_frame_count()
    }

    fn report_counters(&self) -> Vec<(&'static str, u64)> {
        self.device.report_counters()
    }
}

#[derive(Debug)]
struct TappedDevice {
    device: Box<dyn Device>,
    tap: Tap,
    first: Option<u64>,
}

impl Device for TappedDevice {
    fn description(&self) -> &Description {
        self.device.description()
    }

    fn max_payload_bytes(&self) -> usize {
        self.device.max_payload_bytes()
    }

    fn recording_contents(&self) -> Option<Contents> {
        self.device.recording_contents()
    }

    fn next_payload_bytes(&mut self) -> Option<usize> {
        self.device.next_payload_bytes()
    }

    /// Returns `None`: a slot that still holds the payload would not be filled, and the payload would not be copied.
    fn content_key(&self, _event: EventId) -> Option<u64> {
        None
    }

    fn fill_payload(&mut self, event: EventId, payload: &mut [u8]) -> Result<HeaderValues, DeviceError> {
        let first = *self.first.get_or_insert(event.0);
        let filled = self.device.fill_payload(event, payload)?;
        self.tap.copy_payload(event.0.saturating_sub(first), payload, filled);
        Ok(filled)
    }

    fn skip_fragment(&mut self, event: EventId) -> HeaderValues {
        let first = *self.first.get_or_insert(event.0);
        self.tap.report_lost(event.0.saturating_sub(first), 1);
        self.device.skip_fragment(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceConfig, open_device};
    use rustix::event::{PollFd, PollFlags, poll};

    fn is_readable(copies: &Copies) -> bool {
        let nothing = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(copies.readiness_fd(), PollFlags::IN)], Some(&nothing)).unwrap() > 0
    }

    #[test]
    fn who_is_slow_is_told_what_it_misses_and_nobody_waits() {
        let config: DeviceConfig = toml::from_str("kind = \"model-adc\"\nsize = \"1KiB\"").unwrap();
        let (mut device, mut copies) = tap_device(open_device(&config).unwrap(), 2).unwrap();
        assert!(!is_readable(&copies) && matches!(copies.take_next(), Next::NotYet));
        let mut payload = vec![0; 1024];
        let mut fill = |event: u64| {
            device.fill_payload(EventId(event), &mut payload).unwrap();
            payload.clone()
        };
        // The loss of events 9 and 10 is reported; that of 11 and 12 is not even reported.
        let filled: Vec<Vec<u8>> = (7..13).map(&mut fill).collect();
        let (mut seen, mut lost) = (Vec::new(), Vec::new());
        let mut look = |copies: &mut Copies| {
            while is_readable(copies) {
                match copies.take_next() {
                    Next::Copied(copied) => {
                        let expected = filled.get(copied.number as usize);
                        assert!(expected.is_none_or(|bytes| *bytes == copied.bytes));
                        seen.push(copied.number);
                        copies.give_back_copy(copied);
                    }
                    Next::Lost { first, count } => lost.push((first, count)),
                    Next::NotYet => {}
                    other => return Some(other),
                }
            }
            None
        };
        look(&mut copies);
        fill(13);
        look(&mut copies);
        fill(14);
        fill(15);
        device.skip_fragment(EventId(16));
        drop(device);
        assert!(matches!(look(&mut copies), Some(Next::Over { next: 10 })));
        assert_eq!((seen, lost), (vec![0, 1, 6, 7, 8], vec![(2, 1), (3, 1), (9, 1)]));
    }
}
