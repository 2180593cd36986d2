//! Devices that work by themselves: buffers are posted and come back filled, in the device's order and time.
//!
//! Three classes of interface fit. A device that writes our memory (DMA, `recvmsg`, a `read` under way) is given the
//! posted buffer. One that lends a buffer of its own is copied from, or has its memory posted back. One that sends
//! messages is copied from. What they have in common: many buffers are under way, *not yet* is not *over*, and the
//! device has a counter of its own that says what it lost.

use crate::{Description, Device, DeviceError, Filled};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{Arena, DmaBuf, Slot};
use thalweg_wire::{EventId, HEADER_LEN, TaiNanos};

/// A device that fills buffers in its own order and time. It belongs to one source node's hot thread.
///
/// Frames are numbered by the device, from 0 at [`start`](Self::start): frame *n* is the fragment of the run's event
/// *first + n*. A number that is left out is a frame that the device lost.
pub trait Acquisition: Debug + Send {
    /// What it produces: goes into the run's `run.json`.
    fn description(&self) -> &Description;

    /// The longest payload it will ever produce, in bytes.
    fn max_payload(&self) -> usize;

    /// How many buffers it takes at a time; at least 1.
    fn depth(&self) -> u32;

    /// How many later frames may come back before an earlier one that is not lost. 0: they come in order.
    fn reorders(&self) -> u32 {
        0
    }

    /// Whether its driver writes into DMA buffers, so that buffers should be [some](Slot::dma_buf). Where they cannot be, it
    /// is given others.
    fn takes_dma_bufs(&self) -> bool {
        false
    }

    /// The memory that all buffers will lie in. Said once, before the first is posted.
    ///
    /// # Errors
    /// The device cannot use it: an IOMMU refuses it, or a limit on locked memory.
    fn register(&mut self, arena: &Arc<Arena>) -> Result<(), DeviceError> {
        let _ = arena;
        Ok(())
    }

    /// Takes a buffer to be filled. Never more than [`depth`](Self::depth) at a time.
    fn post(&mut self, buffer: Buffer);

    /// Begins to acquire. Buffers are posted before and after. `at` is when the run began, as all its sources are told.
    ///
    /// # Errors
    /// The device does not answer.
    fn start(&mut self, at: TaiNanos) -> Result<(), DeviceError> {
        let _ = at;
        Ok(())
    }

    /// Returns the time from one event to the next, where frames are numbered by time and it is to be told when event 0 is.
    fn event_period(&self) -> Option<Duration> {
        None
    }

    /// Returns when the first frame was taken that can be believed, while such a device waits to be told.
    fn first_time(&self) -> Option<TaiNanos> {
        None
    }

    /// Event 0 is then: what was taken before belongs to no event.
    fn begin_events(&mut self, origin: TaiNanos) {
        let _ = origin;
    }

    /// The numbers from `first` on were compared with those of other devices, and are right: as far as they were a guess, and
    /// no doubt has come up since, those that follow are none.
    fn numbers_agree(&mut self, first: u64) {
        let _ = first;
    }

    /// What has come about since it was last asked, one thing at a time.
    ///
    /// # Errors
    /// The device failed, and nothing more can be had from it.
    fn poll(&mut self, now: Duration) -> Result<Acquired, DeviceError>;

    /// Called again and again while nothing is taken from it: before the run, in a pause, at the end. For a device that
    /// has to be looked at all the same; what it finds is nobody's. When it wants to be called again, if at all.
    ///
    /// # Errors
    /// The device failed, and nothing more can be had from it.
    fn idle(&mut self, now: Duration) -> Result<Option<Duration>, DeviceError> {
        let _ = now;
        Ok(None)
    }

    /// What to wait on until [`poll`](Self::poll) has something to say: always the same. Nothing where only time tells.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether it could take what its descriptor tells of. While it could not, nobody waits on that.
    fn has_room(&self) -> bool {
        true
    }

    /// Whether it is unplugged, or does not answer, and is waited for.
    fn is_away(&self) -> bool {
        false
    }

    /// When to poll although nothing told of it.
    fn next_time(&self) -> Option<Duration> {
        None
    }

    /// Returns how many frames, or packets of frames, have come since [`start`](Self::start) that belong to no event, as far
    /// as their numbers or times tell. A run with any is INCOMPLETE.
    fn of_no_event(&self) -> u64 {
        0
    }

    /// What it has counted that a person should know of, by name: for the node's report. What is lost is in the ledger
    /// beside.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// The place of a payload in a slot: the device's alone from [`Acquisition::post`] until it comes back in a [`Frame`].
#[derive(Debug)]
pub struct Buffer {
    slot: Slot,
}

impl Buffer {
    /// The part of a slot that is behind the header of its first fragment, which begins a page.
    ///
    /// # Panics
    /// The slot has no room for a header.
    pub fn new(slot: Slot) -> Self {
        assert!(slot.len() >= HEADER_LEN, "a slot of {} bytes has no room for a header", slot.len());
        Self { slot }
    }

    /// Where the payload goes.
    pub fn payload(&mut self) -> &mut [u8] {
        &mut self.slot[HEADER_LEN..]
    }

    /// Where its first byte lies in the arena that was registered.
    pub fn offset(&self) -> usize {
        self.slot.offset() + HEADER_LEN
    }

    /// The payload's place for a driver of the kernel's.
    pub fn dma_buf(&mut self) -> Option<&mut DmaBuf> {
        self.slot.dma_buf()
    }

    /// Bytes that the longest payload here may have.
    pub fn room(&self) -> usize {
        self.slot.len() - HEADER_LEN
    }

    /// The arena that it lies in.
    pub fn arena(&self) -> &Arc<Arena> {
        self.slot.arena()
    }

    /// The slot it is a part of.
    pub fn into_slot(self) -> Slot {
        self.slot
    }
}

/// What [`Acquisition::poll`] found.
#[derive(Debug)]
pub enum Acquired {
    /// A buffer came back filled.
    Frame(Frame),
    /// The device says that it lost so many frames, from this number on.
    Lost {
        /// The number of the first.
        first: u64,
        /// How many.
        count: u64,
    },
    /// The device was not triggered, or did not heed it, so many times, from this number on: it has nothing for these,
    /// and has lost nothing.
    Missed {
        /// The number of the first.
        first: u64,
        /// How many.
        count: u64,
    },
    /// Nothing yet.
    NotYet,
    /// There will be nothing more.
    Over,
}

/// A buffer that came back.
#[derive(Debug)]
pub struct Frame {
    /// With the payload at its beginning.
    pub buffer: Buffer,
    /// The device's number of it.
    pub number: u64,
    /// Bytes of payload.
    pub len: usize,
    /// What goes into the fragment's header. Where the device says that data ran over within this frame, its status
    /// says `truncated`.
    pub filled: Filled,
    /// The CRC32C of the payload, where the device has computed it.
    pub crc: Option<u32>,
    /// Bytes of it that were copied to where they are: by a device that lends memory of its own, or of messages that did not
    /// come in their place.
    pub copied: usize,
}

/// What comes next in the order of frames.
#[derive(Debug)]
pub enum InTurn {
    /// A frame.
    Frame(Frame),
    /// So many that were lost.
    Lost(u64),
    /// So many that the device has nothing for.
    Missed(u64),
}

/// Puts frames into the order of their numbers, and finds those that are lost: the device says so, or its counter skips
/// them and they cannot come any more.
#[derive(Debug, Default)]
pub struct FrameOrder {
    reorders: usize,
    next: u64,
    early: BTreeMap<u64, Frame>,
    /// Numbers that the device says it lost or missed, by the first.
    gaps: BTreeMap<u64, Gap>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Gap {
    /// One past the last.
    end: u64,
    missed: bool,
}

impl FrameOrder {
    /// For a device of which so many later frames may come before an earlier one.
    pub fn new(reorders: u32) -> Self {
        Self { reorders: reorders as usize, ..Self::default() }
    }

    /// A frame came. Where its number was there before, or was taken for lost, it comes back.
    pub fn came(&mut self, frame: Frame) -> Option<Frame> {
        if frame.number < self.next || self.early.contains_key(&frame.number) {
            return Some(frame);
        }
        self.early.insert(frame.number, frame);
        None
    }

    /// The device says that it lost these.
    pub fn lost(&mut self, first: u64, count: u64) {
        self.gap(first, count, false);
    }

    /// The device has nothing for these.
    pub fn missed(&mut self, first: u64, count: u64) {
        self.gap(first, count, true);
    }

    fn gap(&mut self, first: u64, count: u64, missed: bool) {
        let gap = self.gaps.entry(first).or_insert(Gap { end: first, missed });
        gap.end = gap.end.max(first.saturating_add(count));
    }

    /// What comes next; nothing where that may still come. `over`: nothing comes any more.
    pub fn next(&mut self, over: bool) -> Option<InTurn> {
        if let Some(frame) = self.early.remove(&self.next) {
            self.next = self.next.saturating_add(1);
            return Some(InTurn::Frame(frame));
        }
        while let Some((first, Gap { end, missed })) = self.gaps.first_key_value().map(|(first, gap)| (*first, *gap)) {
            if first > self.next {
                break;
            }
            self.gaps.remove(&first);
            // A frame that came after all is not lost.
            let end = end.min(self.early.first_key_value().map_or(u64::MAX, |(number, _)| *number));
            if end > self.next {
                return Some(self.skip_to(end, missed));
            }
        }
        // What is in front of a gap may still come, unless it is over.
        let early = self.early.first_key_value().map(|(number, _)| *number);
        let gap = self.gaps.first_key_value().map(|(first, _)| *first).filter(|_| over);
        let number = early.into_iter().chain(gap).min()?;
        (over || self.early.len() > self.reorders).then(|| self.skip_to(number, false))
    }

    fn skip_to(&mut self, number: u64, missed: bool) -> InTurn {
        let count = number - std::mem::replace(&mut self.next, number);
        if missed { InTurn::Missed(count) } else { InTurn::Lost(count) }
    }

    /// The frames that wait for earlier ones.
    pub fn into_waiting(self) -> impl Iterator<Item = Frame> {
        self.early.into_values()
    }
}

/// A device that is asked, as one that works by itself: it fills each buffer at once.
#[derive(Debug)]
pub struct AsAcquisition {
    device: Box<dyn Device>,
    posted: Option<Buffer>,
    next: u64,
}

impl AsAcquisition {
    /// From its beginning.
    pub fn new(device: Box<dyn Device>) -> Self {
        Self { device, posted: None, next: 0 }
    }
}

impl Acquisition for AsAcquisition {
    fn description(&self) -> &Description {
        self.device.description()
    }

    fn max_payload(&self) -> usize {
        self.device.max_payload()
    }

    fn depth(&self) -> u32 {
        1
    }

    fn post(&mut self, buffer: Buffer) {
        self.posted = Some(buffer);
    }

    fn poll(&mut self, _now: Duration) -> Result<Acquired, DeviceError> {
        let Some(len) = self.device.next_len() else { return Ok(Acquired::Over) };
        let Some(mut buffer) = self.posted.take() else { return Ok(Acquired::NotYet) };
        let number = self.next;
        let filled = self.device.fill(EventId(number), &mut buffer.payload()[..len])?;
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
        let filled = Filled { payload_type: PayloadType::RAW, status: Status::SIMULATED, window: 0, timestamp: None };
        Frame { buffer: Buffer::new(pool.take().unwrap()), number, len: 0, filled, crc: None, copied: 0 }
    }

    /// What comes out: the numbers of frames, and how many were lost in between.
    fn out(order: &mut FrameOrder, over: bool) -> Vec<Result<u64, u64>> {
        std::iter::from_fn(|| order.next(over))
            .map(|next| match next {
                InTurn::Frame(frame) => Ok(frame.number),
                InTurn::Lost(count) | InTurn::Missed(count) => Err(count),
            })
            .collect()
    }

    #[test]
    fn a_number_that_is_skipped_is_lost_at_once_where_frames_come_in_order() {
        let mut pool = SlotPool::new("slots", 8, 64).unwrap();
        let mut order = FrameOrder::new(0);
        for number in [0, 1, 4] {
            assert!(order.came(frame(&mut pool, number)).is_none());
        }
        assert_eq!(out(&mut order, false), [Ok(0), Ok(1), Err(2), Ok(4)]);
        assert_eq!(order.came(frame(&mut pool, 3)).unwrap().number, 3, "it was taken for lost");
    }

    #[test]
    fn what_is_missing_in_front_of_a_gap_is_lost_where_nothing_comes_any_more() {
        let mut order = FrameOrder::new(0);
        order.lost(5, 3);
        assert_eq!(out(&mut order, false), [], "frames 0 to 4 may still come");
        assert_eq!(out(&mut order, true), [Err(5), Err(3)]);
    }

    #[test]
    fn an_earlier_frame_is_waited_for_as_long_as_it_may_come() {
        let mut pool = SlotPool::new("slots", 8, 64).unwrap();
        let mut order = FrameOrder::new(2);
        for number in [1, 2] {
            order.came(frame(&mut pool, number));
        }
        assert_eq!(out(&mut order, false), [], "frame 0 may still come");
        order.came(frame(&mut pool, 3));
        assert_eq!(out(&mut order, false), [Err(1), Ok(1), Ok(2), Ok(3)]);
        order.came(frame(&mut pool, 6));
        assert_eq!(out(&mut order, true), [Err(2), Ok(6)], "nothing comes any more");
    }

    #[test]
    fn what_the_device_says_it_lost_is_not_waited_for() {
        let mut pool = SlotPool::new("slots", 8, 64).unwrap();
        let mut order = FrameOrder::new(5);
        order.lost(0, 3);
        order.came(frame(&mut pool, 4));
        order.lost(3, 1);
        assert_eq!(out(&mut order, false), [Err(3), Err(1), Ok(4)]);
        order.lost(5, u64::MAX);
        assert_eq!(out(&mut order, false), [Err(u64::MAX - 5)]);
    }

    proptest! {
        /// Whatever a device loses, repeats and reorders within its bound: each number comes out once, in order, as a
        /// frame if it came in time and else as lost.
        #[test]
        fn every_number_comes_out_once(
            numbers in proptest::collection::vec(0u64..40, 0..40),
            said in proptest::collection::vec((0u64..40, 0u64..5), 0..4),
            reorders in 0u32..6,
        ) {
            let mut pool = SlotPool::new("slots", 64, 64).unwrap();
            let mut order = FrameOrder::new(reorders);
            said.iter().for_each(|(first, count)| order.lost(*first, *count));
            let (mut next, mut seen) = (0, Vec::new());
            for (at, number) in numbers.iter().enumerate() {
                if let Some(back) = order.came(frame(&mut pool, *number)) {
                    prop_assert!(*number < next || numbers[..at].contains(number));
                    pool.give_back(back.buffer.into_slot());
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
