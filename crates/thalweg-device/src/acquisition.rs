//! Devices that work by themselves: buffers are posted and come back filled, in the device's order and time.
//!
//! Three classes of interface fit. A device that writes our memory (DMA, `recvmsg`, a `read` under way) is given the
//! posted buffer. A device that lends a buffer of its own is copied from, or has its memory posted back. A device that
//! sends messages is copied from. Common to all: many buffers are under way, *not yet* is not *over*, and a counter of
//! the device shows which frames it lost.

use crate::{Description, Device, DeviceError, HeaderValues};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{Arena, DmaBuf, Slot};
use thalweg_wire::{EventId, HEADER_LEN, TaiNanos};

/// A device that fills buffers in its own order and time. Each belongs to one source node's hot thread.
///
/// Frames are numbered by the device, from 0 at [`start_acquisition`](Self::start_acquisition): frame *n* is the fragment of the run's event
/// *first + n*. A missing number is a frame that the device lost.
pub trait Acquisition: Debug + Send {
    /// Returns the description of the data that the device produces, for the run's `run.json`.
    fn description(&self) -> &Description;

    /// Returns the length of the longest payload that the device will ever produce, in bytes.
    fn max_payload_bytes(&self) -> usize;

    /// Returns the number of buffers that the device takes at a time; at least 1.
    fn max_posted_buffers(&self) -> u32;

    /// Returns the number of later frames that may come back before an earlier one that is not lost. 0: frames come in
    /// order.
    fn reorder_depth(&self) -> u32 {
        0
    }

    /// Returns whether the driver writes into DMA buffers, so that buffers should be [some](Slot::dma_buf). The device
    /// is given other buffers where these are not available.
    fn takes_dma_bufs(&self) -> bool {
        false
    }

    /// Registers the memory that all buffers will lie in. Called once, before the first buffer is posted.
    ///
    /// # Errors
    /// The device cannot use it: an IOMMU refuses it, or a limit on locked memory.
    fn register_memory(&mut self, arena: &Arc<Arena>) -> Result<(), DeviceError> {
        let _ = arena;
        Ok(())
    }

    /// Takes a buffer to be filled. The device never holds more than [`max_posted_buffers`](Self::max_posted_buffers) at a time.
    fn post_buffer(&mut self, buffer: Buffer);

    /// Begins to acquire. Buffers are posted before and after. `at` is the time at which the run began, the same for
    /// all its sources.
    ///
    /// # Errors
    /// The device does not answer.
    fn start_acquisition(&mut self, at: TaiNanos) -> Result<(), DeviceError> {
        let _ = at;
        Ok(())
    }

    /// Returns the time from one event to the next if frames are numbered by time and the device must be given the time
    /// of event 0.
    fn event_period(&self) -> Option<Duration> {
        None
    }

    /// Returns the time of the first trustworthy frame, while such a device waits for the time of event 0.
    fn first_frame_time(&self) -> Option<TaiNanos> {
        None
    }

    /// Sets the time of event 0. Frames taken earlier belong to no event.
    fn begin_events(&mut self, origin: TaiNanos) {
        let _ = origin;
    }

    /// Reports that the numbers from `first` on were compared with those of other devices, and are right. Where the
    /// numbers were a guess, and no doubt has come up since, the numbers that follow are not.
    fn confirm_numbers(&mut self, first: u64) {
        let _ = first;
    }

    /// Returns what has happened since the last call, one item at a time.
    ///
    /// # Errors
    /// The device failed and gives no more data.
    fn poll_acquired(&mut self, now: Duration) -> Result<Acquired, DeviceError>;

    /// Called repeatedly while no frames are taken from the device: before the run, in a pause, at the end. For a
    /// device that has to be polled all the same; frames found here are discarded. Returns the time at which the device
    /// wants the next call, if any.
    ///
    /// # Errors
    /// The device failed and gives no more data.
    fn poll_idle(&mut self, now: Duration) -> Result<Option<Duration>, DeviceError> {
        let _ = now;
        Ok(None)
    }

    /// Returns the descriptor to wait on until [`poll_acquired`](Self::poll_acquired) has something to report: always the same. `None`
    /// for a device that only has to be polled at certain times.
    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns whether the device could take the data that its descriptor signals. While it could not, the descriptor
    /// is not waited on.
    fn has_room(&self) -> bool {
        true
    }

    /// Returns whether the device is unplugged or does not answer, and its return is awaited.
    fn is_away(&self) -> bool {
        false
    }

    /// Returns the time at which to poll even without a signal.
    fn next_poll_time(&self) -> Option<Duration> {
        None
    }

    /// Returns the number of frames, or packets of frames, that have come since [`start_acquisition`](Self::start_acquisition) and belong to no
    /// event, as far as their numbers or times tell. A run with any is INCOMPLETE.
    fn stray_frame_count(&self) -> u64 {
        0
    }

    /// Returns counters that the user should see, by name, for the node's report. Losses are in the ledger besides.
    fn report_counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// The place of a payload in a slot. Only the device uses it from [`Acquisition::post_buffer`] until it comes back in a
/// [`Frame`].
#[derive(Debug)]
pub struct Buffer {
    slot: Slot,
}

impl Buffer {
    /// Creates a buffer from the part of a slot after the header of its first fragment. That part begins at a page
    /// boundary.
    ///
    /// # Panics
    /// The slot has no room for a header.
    pub fn new(slot: Slot) -> Self {
        assert!(slot.len() >= HEADER_LEN, "a slot of {} bytes has no room for a header", slot.len());
        Self { slot }
    }

    /// Returns the memory for the payload.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.slot[HEADER_LEN..]
    }

    /// Returns the offset of the payload's first byte in the registered arena, in bytes.
    pub fn arena_offset(&self) -> usize {
        self.slot.arena_offset() + HEADER_LEN
    }

    /// Returns the slot's DMA buffer, for a driver of the kernel. `None` if the slot is not one.
    pub fn dma_buf_mut(&mut self) -> Option<&mut DmaBuf> {
        self.slot.dma_buf()
    }

    /// Returns the maximum length of the payload, in bytes.
    pub fn payload_capacity(&self) -> usize {
        self.slot.len() - HEADER_LEN
    }

    /// Returns the arena that contains the buffer.
    pub fn arena(&self) -> &Arc<Arena> {
        self.slot.arena()
    }

    /// Returns the slot that the buffer is part of.
    pub fn into_slot(self) -> Slot {
        self.slot
    }
}

/// Result of [`Acquisition::poll_acquired`].
#[derive(Debug)]
pub enum Acquired {
    /// A buffer came back filled.
    Frame(Frame),
    /// The device reports that it lost frames.
    Lost {
        /// Number of the first lost frame.
        first: u64,
        /// Number of lost frames.
        count: u64,
    },
    /// The device was not triggered, or ignored its triggers: it has no frames for these numbers, and has lost none.
    Missed {
        /// Number of the first missed frame.
        first: u64,
        /// Number of missed frames.
        count: u64,
    },
    /// No frame yet.
    NotYet,
    /// No more frames will come.
    Over,
}

/// A filled buffer, returned by the device.
#[derive(Debug)]
pub struct Frame {
    /// Buffer with the payload at its beginning.
    pub buffer: Buffer,
    /// Number of the frame, assigned by the device.
    pub number: u64,
    /// Length of the payload, in bytes.
    pub len: usize,
    /// Values for the fragment's header. The status contains `truncated` if the device reports an overrun within this
    /// frame.
    pub filled: HeaderValues,
    /// CRC32C of the payload, if the device has computed it.
    pub crc: Option<u32>,
    /// Number of payload bytes that were copied into place: by a device that lends memory of its own, or from messages
    /// that were not received directly into their place.
    pub copied: usize,
}

/// Next item in the order of frames.
#[derive(Debug)]
pub enum OrderedFrame {
    /// A frame.
    Frame(Frame),
    /// Number of frames that were lost.
    Lost(u64),
    /// Number of frames that the device has no data for.
    Missed(u64),
}

/// Puts frames into the order of their numbers, and finds lost frames: those that the device reports as lost, and those
/// that its counter skips and that cannot come any more.
#[derive(Debug, Default)]
pub struct FrameOrder {
    reorders: usize,
    next: u64,
    early: BTreeMap<u64, Frame>,
    /// Numbers that the device reported as lost or missed, by the first number of each gap.
    gaps: BTreeMap<u64, Gap>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Gap {
    /// Number after the last one of the gap.
    end: u64,
    missed: bool,
}

impl FrameOrder {
    /// Creates the order for a device of which up to `reorders` later frames may come before an earlier one.
    pub fn new(reorders: u32) -> Self {
        Self { reorders: reorders as usize, ..Self::default() }
    }

    /// Adds a frame. Returns the frame again if its number came before or was counted as lost.
    pub fn insert_frame(&mut self, frame: Frame) -> Option<Frame> {
        if frame.number < self.next || self.early.contains_key(&frame.number) {
            return Some(frame);
        }
        self.early.insert(frame.number, frame);
        None
    }

    /// Records `count` frames from `first` on as lost, as reported by the device.
    pub fn record_lost(&mut self, first: u64, count: u64) {
        self.record_gap(first, count, false);
    }

    /// Records that the device has no data for `count` frames from `first` on.
    pub fn record_missed(&mut self, first: u64, count: u64) {
        self.record_gap(first, count, true);
    }

    fn record_gap(&mut self, first: u64, count: u64, missed: bool) {
        let gap = self.gaps.entry(first).or_insert(Gap { end: first, missed });
        gap.end = gap.end.max(first.saturating_add(count));
        // Of what is reported as both, the loss counts.
        gap.missed &= missed;
    }

    /// Returns the next item, or `None` if the next frame may still come. `over`: no more frames will come.
    pub fn next_in_turn(&mut self, over: bool) -> Option<OrderedFrame> {
        if let Some(frame) = self.early.remove(&self.next) {
            self.next = self.next.saturating_add(1);
            return Some(OrderedFrame::Frame(frame));
        }
        while let Some((first, Gap { end, missed })) = self.gaps.first_key_value().map(|(first, gap)| (*first, *gap)) {
            if first > self.next {
                break;
            }
            self.gaps.remove(&first);
            // A frame that came after all is not lost.
            let end = end.min(self.early.first_key_value().map_or(u64::MAX, |(number, _)| *number));
            if end > self.next {
                return Some(self.skip_to_number(end, missed));
            }
        }
        // Frames before a gap may still come, unless the device has ended.
        let early = self.early.first_key_value().map(|(number, _)| *number);
        let gap = self.gaps.first_key_value().map(|(first, _)| *first).filter(|_| over);
        let number = early.into_iter().chain(gap).min()?;
        (over || self.early.len() > self.reorders).then(|| self.skip_to_number(number, false))
    }

    fn skip_to_number(&mut self, number: u64, missed: bool) -> OrderedFrame {
        let count = number - std::mem::replace(&mut self.next, number);
        if missed { OrderedFrame::Missed(count) } else { OrderedFrame::Lost(count) }
    }

    /// Returns the frames that wait for earlier ones.
    pub fn into_waiting_frames(self) -> impl Iterator<Item = Frame> {
        self.early.into_values()
    }
}

/// Adapter from a [`Device`], which is asked, to an [`Acquisition`]. Fills each buffer at once.
#[derive(Debug)]
pub struct AsAcquisition {
    device: Box<dyn Device>,
    posted: Option<Buffer>,
    next: u64,
}

impl AsAcquisition {
    /// Creates the adapter, at the beginning of the device's data.
    pub fn new(device: Box<dyn Device>) -> Self {
        Self { device, posted: None, next: 0 }
    }
}

impl Acquisition for AsAcquisition {
    fn description(&self) -> &Description {
        self.device.description()
    }

    fn max_payload_bytes(&self) -> usize {
        self.device.max_payload_bytes()
    }

    fn max_posted_buffers(&self) -> u32 {
        1
    }

    fn post_buffer(&mut self, buffer: Buffer) {
        self.posted = Some(buffer);
    }

    fn poll_acquired(&mut self, _now: Duration) -> Result<Acquired, DeviceError> {
        let Some(len) = self.device.next_payload_bytes() else { return Ok(Acquired::Over) };
        let Some(mut buffer) = self.posted.take() else { return Ok(Acquired::NotYet) };
        let number = self.next;
        let filled = self.device.fill_payload(EventId(number), &mut buffer.payload_mut()[..len])?;
        self.next += 1;
        Ok(Acquired::Frame(Frame { buffer, number, len, filled, crc: None, copied: 0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_arena::SlotPool;
    use thalweg_wire::{PayloadType, Status};

    fn frame(pool: &mut SlotPool, number: u64) -> Frame {
        let filled =
            HeaderValues { payload_type: PayloadType::RAW, status: Status::SIMULATED, window: 0, timestamp: None };
        Frame { buffer: Buffer::new(pool.take_slot().unwrap()), number, len: 0, filled, crc: None, copied: 0 }
    }

    /// Returns the numbers of frames in the order they come out, and the number of lost or missed ones in between.
    fn out(order: &mut FrameOrder, over: bool) -> Vec<Result<u64, u64>> {
        std::iter::from_fn(|| order.next_in_turn(over))
            .map(|next| match next {
                OrderedFrame::Frame(frame) => Ok(frame.number),
                OrderedFrame::Lost(count) | OrderedFrame::Missed(count) => Err(count),
            })
            .collect()
    }

    #[test]
    fn what_is_missed_and_lost_is_lost() {
        for lost_first in [true, false] {
            let mut order = FrameOrder::new(0);
            match lost_first {
                true => (order.record_lost(0, 2), order.record_missed(0, 3)),
                false => (order.record_missed(0, 3), order.record_lost(0, 2)),
            };
            assert!(matches!(order.next_in_turn(true), Some(OrderedFrame::Lost(3))));
        }
    }

    #[test]
    fn a_number_that_is_skipped_is_lost_at_once_where_frames_come_in_order() {
        let mut pool = SlotPool::new("slots", 8, 64).unwrap();
        let mut order = FrameOrder::new(0);
        for number in [0, 1, 4] {
            assert!(order.insert_frame(frame(&mut pool, number)).is_none());
        }
        assert_eq!(out(&mut order, false), [Ok(0), Ok(1), Err(2), Ok(4)]);
        assert_eq!(order.insert_frame(frame(&mut pool, 3)).unwrap().number, 3, "it was taken for lost");
    }

    #[test]
    fn what_is_missing_in_front_of_a_gap_is_lost_where_nothing_comes_any_more() {
        let mut order = FrameOrder::new(0);
        order.record_lost(5, 3);
        assert_eq!(out(&mut order, false), [], "frames 0 to 4 may still come");
        assert_eq!(out(&mut order, true), [Err(5), Err(3)]);
    }

    #[test]
    fn an_earlier_frame_is_waited_for_as_long_as_it_may_come() {
        let mut pool = SlotPool::new("slots", 8, 64).unwrap();
        let mut order = FrameOrder::new(2);
        for number in [1, 2] {
            order.insert_frame(frame(&mut pool, number));
        }
        assert_eq!(out(&mut order, false), [], "frame 0 may still come");
        order.insert_frame(frame(&mut pool, 3));
        assert_eq!(out(&mut order, false), [Err(1), Ok(1), Ok(2), Ok(3)]);
        order.insert_frame(frame(&mut pool, 6));
        assert_eq!(out(&mut order, true), [Err(2), Ok(6)], "nothing comes any more");
    }

    #[test]
    fn what_the_device_says_it_lost_is_not_waited_for() {
        let mut pool = SlotPool::new("slots", 8, 64).unwrap();
        let mut order = FrameOrder::new(5);
        order.record_lost(0, 3);
        order.insert_frame(frame(&mut pool, 4));
        order.record_lost(3, 1);
        assert_eq!(out(&mut order, false), [Err(3), Err(1), Ok(4)]);
        order.record_lost(5, u64::MAX);
        assert_eq!(out(&mut order, false), [Err(u64::MAX - 5)]);
    }

    proptest! {
        /// For any losses, repetitions and reordering within the device's bound: each number comes out once, in order,
        /// as a frame if it came in time and else as lost.
        #[test]
        fn every_number_comes_out_once(
            numbers in proptest::collection::vec(0u64..40, 0..40),
            reported in proptest::collection::vec((0u64..40, 0u64..5), 0..4),
            reorders in 0u32..6,
        ) {
            let mut pool = SlotPool::new("slots", 64, 64).unwrap();
            let mut order = FrameOrder::new(reorders);
            reported.iter().for_each(|(first, count)| order.record_lost(*first, *count));
            let (mut next, mut seen) = (0, Vec::new());
            for (at, number) in numbers.iter().enumerate() {
                if let Some(back) = order.insert_frame(frame(&mut pool, *number)) {
                    prop_assert!(*number < next || numbers[..at].contains(number));
                    pool.return_slot(back.buffer.into_slot());
                }
                seen.extend(out(&mut order, at + 1 == numbers.len()));
                next = seen.iter().map(|one| one.map_or_else(|lost| lost, |_| 1)).sum();
            }
            let mut expected = 0;
            for one in seen {
                match one {
                    Ok(number) => {
                        prop_assert_eq!(number, expected);
                        prop_assert!(numbers.contains(&number));
                        expected += 1;
                    }
                    Err(lost) => expected += lost,
                }
            }
        }
    }
}
