//! Reads and atomics of this side that wait for their responses, which come in the order of the requests (RFC 5040 §5.5
//! rule 20, RFC 7306 §5.4).
//!
//! A Read Request names its sink by numbers of this stream's own: the offset has the number of the request in its upper
//! half. A response carries them back without interpretation (RFC 5040 §4.4). So each of its segments, in whatever order
//! they arrive, belongs to one Read, cannot leave its sink, and the sink may be many ranges.

use crate::memory::Stag;
use std::collections::VecDeque;

/// Response that a request waits for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted {
    Read {
        sink_stag: Stag,
        length: u32,
        /// Bytes delivered.
        delivered: u32,
    },
    Atomic,
}

/// A request on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outstanding {
    /// Number of the posted request.
    pub(super) request: u64,
    /// Message sequence number.
    pub(super) message: u32,
    pub(super) wanted: Wanted,
}

#[derive(Debug, Default)]
pub(super) struct OutstandingQueue(VecDeque<Outstanding>);

/// Returns the offset of a Read's sink, as the request states it.
pub(super) fn sink_offset(message: u32) -> u64 {
    u64::from(message) << 32
}

/// Splits the offset of a response's segment: number of the request, and offset in its sink.
pub(super) fn split_offset(offset: u64) -> (u32, u32) {
    ((offset >> 32) as u32, offset as u32)
}

impl OutstandingQueue {
    pub(super) fn push_outstanding(&mut self, outstanding: Outstanding) {
        self.0.push_back(outstanding);
    }

    pub(super) fn pending_count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear_all(&mut self) {
        self.0.clear();
    }

    /// Number of the posted request whose response is next.
    pub(super) fn front_request(&self) -> Option<u64> {
        self.0.front().map(|front| front.request)
    }

    pub(super) fn front_mut(&mut self) -> Option<&mut Outstanding> {
        self.0.front_mut()
    }

    pub(super) fn pop_outstanding(&mut self) -> Option<Outstanding> {
        self.0.pop_front()
    }

    /// Returns the request with a message sequence number.
    pub(super) fn find_request(&self, message: u32) -> Option<&Outstanding> {
        // They are consecutive: all of queue 1's requests are here until they are answered.
        let index = message.wrapping_sub(self.0.front()?.message);
        self.0.get(index as usize)
    }
}
