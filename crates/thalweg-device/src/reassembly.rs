//! Reassembly of frames from packets, in the order of the frames' numbers. Without IO.
//!
//! A [`Reassembly`] holds the frames of which packets are still waited for. Its caller reads the packets, finds the
//! numbers of their frames (see [`FrameCounter`](crate::FrameCounter)), records which parts have come
//! ([`IntervalMap`](thalweg_wire::IntervalMap)), and decides when the oldest frame is waited for no more. Each number
//! is then handed on as a frame or reported as lost, once and in order.

use crate::{Acquired, Frame};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use thalweg_wire::Status;

/// Maximum number of remembered runs of lost numbers.
const MAX_LOST_RUNS: usize = 64;

/// Frames under way, and the number of the next one to be handed on. `F` is the caller's record of a frame.
#[derive(Debug)]
pub struct Reassembly<F> {
    frames: BTreeMap<u64, F>,
    next: u64,
    /// The last runs of lost numbers, oldest first.
    lost: VecDeque<Range<u64>>,
}

impl<F> Default for Reassembly<F> {
    fn default() -> Self {
        Self { frames: BTreeMap::new(), next: 0, lost: VecDeque::new() }
    }
}

impl<F> Reassembly<F> {
    /// Returns the first number that has neither been handed on nor lost.
    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// Returns the frames under way, oldest first.
    pub fn frames(&self) -> impl DoubleEndedIterator<Item = (&u64, &F)> + ExactSizeIterator {
        self.frames.iter()
    }

    /// Returns the frames under way, oldest first, to be changed.
    pub fn frames_mut(&mut self) -> impl DoubleEndedIterator<Item = (&u64, &mut F)> {
        self.frames.iter_mut()
    }

    /// Returns the oldest frame under way, with its number.
    pub fn oldest(&self) -> Option<(u64, &F)> {
        self.frames.first_key_value().map(|(number, frame)| (*number, frame))
    }

    /// Returns whether the frame with this number is under way.
    pub fn contains(&self, number: u64) -> bool {
        self.frames.contains_key(&number)
    }

    /// Returns the frame with this number, if it is under way.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut F> {
        self.frames.get_mut(&number)
    }

    /// Returns the frame with this number, which must not be before the [next](Self::next_number). It begins as
    /// `begin` returns it if it is not under way yet.
    pub fn get_or_begin(&mut self, number: u64, begin: impl FnOnce() -> F) -> &mut F {
        debug_assert!(number >= self.next, "frame {number} is over: the next is {}", self.next);
        self.frames.entry(number).or_insert_with(begin)
    }

    /// Removes the oldest frame, which the caller then hands on or loses. Numbers before it must have been lost.
    pub fn take_oldest(&mut self) -> Option<(u64, F)> {
        self.frames.pop_first()
    }

    /// Hands on the next frame: the missing bytes, of which there may be none, are zeros, and mark it as corrupt.
    pub fn hand_on(&mut self, mut frame: Frame, missing: &[Range<u64>]) -> Frame {
        for gap in missing {
            frame.buffer.payload_mut()[gap.start as usize..gap.end as usize].fill(0);
            frame.filled.status |= Status::CORRUPT;
        }
        self.next = frame.number.saturating_add(1);
        frame
    }

    /// Gives up the numbers from the next one up to `end`, exclusive.
    pub fn lose_until(&mut self, end: u64) -> Acquired {
        let first = std::mem::replace(&mut self.next, end);
        if self.lost.len() == MAX_LOST_RUNS {
            self.lost.pop_front();
        }
        self.lost.push_back(first..end);
        Acquired::Lost { first, count: end - first }
    }

    /// Returns whether a number is among those that were lost last: its packets are late, and no duplicates.
    pub fn was_lost(&self, number: u64) -> bool {
        self.lost.iter().any(|run| run.contains(&number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, HeaderValues};
    use thalweg_arena::SlotPool;
    use thalweg_wire::PayloadType;

    fn frame(buffer: Buffer, number: u64) -> Frame {
        let filled =
            HeaderValues { payload_type: PayloadType::RAW, status: Status::empty(), window: 0, timestamp: None };
        Frame { buffer, number, len: 4, filled, crc: None, copied: 0 }
    }

    #[test]
    fn each_number_is_handed_on_or_lost_once() {
        let mut pool = SlotPool::new("slots", 1, 128).unwrap();
        let mut buffer = Buffer::new(pool.take_slot().unwrap());
        buffer.payload_mut().fill(7);
        let mut frames = Reassembly::default();
        (0..200).step_by(2).for_each(|number| *frames.get_or_begin(number, || 0) += number);
        for number in (0..200).step_by(2) {
            assert_eq!((frames.oldest(), frames.contains(number + 1)), (Some((number, &number)), false));
            assert_eq!(frames.take_oldest(), Some((number, number)));
            let damaged = frames.hand_on(frame(buffer, number), &[1..2, 3..4]);
            assert_eq!((damaged.filled.status, frames.next_number()), (Status::CORRUPT, number + 1));
            buffer = damaged.buffer;
            assert_eq!(buffer.payload_mut()[..4], [7, 0, 7, 0]);
            buffer.payload_mut().fill(7);
            let whole = frames.hand_on(frame(buffer, number), &[]);
            assert_eq!(whole.filled.status, Status::empty());
            buffer = whole.buffer;
            let lost = frames.lose_until(number + 2);
            assert!(matches!(lost, Acquired::Lost { first, count: 1 } if first == number + 1), "{lost:?}");
        }
        // The last 64 losses are remembered.
        assert_eq!(
            (0..200).filter(|number| frames.was_lost(*number)).collect::<Vec<_>>(),
            Vec::from_iter((73..200).step_by(2))
        );
    }
}
