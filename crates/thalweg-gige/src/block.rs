//! A block that is not whole yet: which packets are there, and when the others are requested or given up.

use std::ops::Range;
use std::time::Duration;
use thalweg_device::Buffer;
use thalweg_wire::IntervalMap;

/// Time after which a gap is requested: packets may overtake each other.
const REORDER_TIMEOUT: Duration = Duration::from_millis(1);
/// Time between the first two requests for a gap; doubled each time.
const MIN_RESEND_INTERVAL: Duration = Duration::from_millis(10);
/// Longest time between two requests.
const MAX_RESEND_INTERVAL: Duration = Duration::from_secs(1);
/// Time without packets after which those following the last one are considered missing.
const TAIL_TIMEOUT: Duration = Duration::from_millis(20);
/// Number of gaps requested at a time.
const MAX_GAPS: usize = 32;

/// One block. Packet 0 is its leader, packets 1 to `last` are payload, the one after is its trailer.
#[derive(Debug, Default)]
pub(crate) struct Block {
    /// Number of the block, as the camera counts.
    pub(crate) id: u64,
    pub(crate) buffer: Option<Buffer>,
    /// Length of a payload packet's payload in bytes; the last may be shorter.
    pub(crate) piece: usize,
    /// Time at which the frame began, in the camera's ticks; `None` until the leader is there.
    pub(crate) ticks: Option<u64>,
    /// Length of the frame in bytes, from its leader or trailer.
    pub(crate) bytes: Option<usize>,
    /// Presumed length of the frame in bytes, until it is known.
    pub(crate) guess: Option<usize>,
    /// Length of a row of pixels in bytes; 0 if the block is no image.
    pub(crate) row: u64,
    /// True if the trailer is there.
    pub(crate) ended: bool,
    /// True if the camera reported more data than it could send.
    pub(crate) overrun: bool,
    /// True if the block is useless: too long, or of a kind that cannot be received.
    pub(crate) refused: bool,
    /// Number of bytes that were copied to their place.
    pub(crate) copied: usize,
    /// True if no packet of the block is waited for any more.
    pub(crate) given_up: bool,
    /// Time at which a packet of the block last came.
    pub(crate) latest: Duration,
    /// Number of the last payload packet, from the trailer.
    last: Option<u32>,
    /// Numbers of the packets that are there: the leader and payload.
    received: IntervalMap,
    /// Number of payload packets that are there.
    count: u32,
    /// Highest packet number seen.
    reach: u32,
    /// End in bytes of the one packet that is shorter than the others.
    end: Option<usize>,
    /// Number of packets that the camera does not have any more.
    gone: u32,
    asked_to: u32,
    fresh_at: Option<Duration>,
    again_at: Duration,
    tries: u32,
}

impl Block {
    pub(crate) fn new(id: u64, piece: usize, guess: Option<usize>, now: Duration) -> Self {
        Self { id, piece, guess, latest: now, again_at: now, ..Self::default() }
    }

    /// Returns the number of the last payload packet, if it is known or can be guessed.
    fn last_packet(&self) -> Option<u32> {
        match (self.bytes, self.last) {
            (None, Some(last)) => Some(last),
            (bytes, _) => u32::try_from(bytes.or(self.guess)?.div_ceil(self.piece)).ok(),
        }
    }

    /// Returns the number of the packet after the highest one seen.
    pub(crate) fn next_packet(&self) -> u32 {
        self.reach + 1
    }

    /// Returns true if a payload packet is there.
    pub(crate) fn has_packet(&self, packet: u32) -> bool {
        self.received.contains(&packet_range(packet))
    }

    /// Returns the number of payload packets that are there.
    pub(crate) fn packet_count(&self) -> u32 {
        self.count
    }

    /// Records the leader, which states the time at which the frame began.
    pub(crate) fn add_leader(&mut self, ticks: u64) {
        self.ticks = Some(ticks);
        self.received.insert(packet_range(0));
    }

    /// Records a payload packet, which ends at this byte.
    pub(crate) fn add_payload_packet(&mut self, packet: u32, end: usize, shorter: bool) {
        self.received.insert(packet_range(packet));
        self.count += 1;
        self.reach = self.reach.max(packet);
        if shorter {
            self.end = Some(end);
        }
    }

    /// Records the trailer, which gives the number of the last payload packet.
    pub(crate) fn add_trailer(&mut self, last: u32) {
        self.ended = true;
        self.last = Some(last);
        self.reach = self.reach.max(last);
    }

    /// Records that the camera does not have a packet any more.
    pub(crate) fn count_unavailable(&mut self) {
        self.gone += 1;
    }

    /// Returns the length of the frame in bytes, if all packets that determine it are there.
    pub(crate) fn frame_length_bytes(&self) -> Option<usize> {
        match (self.bytes, self.last) {
            (Some(bytes), _) => Some(bytes),
            (None, Some(0)) => Some(0),
            (None, last) => {
                last.filter(|last| self.has_packet(*last)).map(|last| self.end.unwrap_or(last as usize * self.piece))
            }
        }
    }

    /// Returns true if all of the payload is there, and its length is known.
    pub(crate) fn is_full(&self) -> bool {
        self.frame_length_bytes().is_some_and(|bytes| self.count as usize == bytes.div_ceil(self.piece))
    }

    /// Returns true if nothing is missing.
    pub(crate) fn is_whole(&self) -> bool {
        self.ticks.is_some() && self.is_full() && !self.refused
    }

    /// Returns true if no packet of the block is waited for.
    pub(crate) fn is_over(&self) -> bool {
        self.given_up || self.is_whole()
    }

    /// Returns the gaps from packet `from` to packet `to`, inclusive, [`MAX_GAPS`] at most: first and last packet of
    /// each.
    fn packet_gaps(&self, from: u32, to: u32) -> Vec<(u32, u32)> {
        let last = self.last_packet().unwrap_or(self.reach);
        // The trailer counts as missing only if it alone determines the length of the frame.
        let needs_trailer = self.bytes.is_none() && !self.ended;
        let end = last.saturating_add(needs_trailer.into()).min(to);
        let gaps = self.received.missing_ranges(u64::from(end) + 1).filter(|gap| gap.end > from.into());
        #[expect(clippy::cast_possible_truncation, reason = "packet numbers have 32 bits")]
        gaps.take(MAX_GAPS).map(|gap| (from.max(gap.start as u32), (gap.end - 1) as u32)).collect()
    }

    /// Returns the ranges of bytes that are missing of a frame of `length` bytes.
    pub(crate) fn missing_byte_ranges(&self, length: usize) -> Vec<Range<u64>> {
        let (piece, length) = (self.piece as u64, length as u64);
        let gaps = self.received.missing_ranges(length.div_ceil(piece) + 1).filter(|gap| gap.end > 1);
        gaps.map(|gap| (gap.start.max(1) - 1) * piece..((gap.end - 1) * piece).min(length)).collect()
    }

    /// Returns the highest packet that should be there by now.
    fn last_due_packet(&self, over: bool, empty: Duration) -> u32 {
        if over || empty >= self.latest + TAIL_TIMEOUT {
            self.last_packet().map_or(self.reach, |last| last.max(self.reach).saturating_add(1))
        } else {
            self.reach
        }
    }

    /// Decides about missing packets: gaps to be requested go to `ask`. `is_overtaken`: a later block has begun. `empty`:
    /// time until which all packets that came have been received.
    pub(crate) fn request_missing(
        &mut self,
        is_overtaken: bool,
        resends: bool,
        patience: Duration,
        (now, empty): (Duration, Duration),
        mut ask: impl FnMut(u32, u32),
    ) {
        if self.is_over() {
            return;
        }
        if self.refused || empty >= self.latest + patience {
            self.given_up = true;
            return;
        }
        // Otherwise the camera may only be slow: packets that it has not sent yet are not missing.
        let over = is_overtaken || self.ended;
        if !resends {
            // If no packet waits, it will not come by itself any more.
            self.given_up = over && empty >= *self.fresh_at.get_or_insert(now + REORDER_TIMEOUT);
            return;
        }
        let due = self.last_due_packet(over, empty);
        // The usual case: packets come in order, and the block is not over.
        if self.ticks.is_some() && self.count == due && self.count == self.reach {
            return;
        }
        let fresh = self.packet_gaps(self.asked_to, due);
        if fresh.is_empty() {
            self.fresh_at = None;
        } else if now < *self.fresh_at.get_or_insert(now + REORDER_TIMEOUT) {
            // The packets may still come by themselves.
        } else {
            fresh.iter().for_each(|(first, last)| ask(*first, *last));
            self.gone = 0;
            self.fresh_at = None;
            self.asked_to = match fresh.last() {
                Some((_, last)) if fresh.len() == MAX_GAPS => last.saturating_add(1),
                _ => due.saturating_add(1),
            };
            if self.tries == 0 {
                self.tries = 1;
                self.again_at = now + MIN_RESEND_INTERVAL;
            }
        }
        if self.tries > 0 && now >= self.again_at {
            self.repeat_requests(over, now, ask);
        }
    }

    /// Repeats the request for packets that did not come in time, or gives the block up.
    fn repeat_requests(&mut self, over: bool, now: Duration, mut ask: impl FnMut(u32, u32)) {
        let gaps = self.packet_gaps(0, self.asked_to.saturating_sub(1));
        let packets = gaps.iter().map(|(first, last)| last - first + 1).fold(0, u32::saturating_add);
        if gaps.is_empty() {
            self.tries = 0;
        } else if over && packets <= self.gone {
            self.given_up = true;
        } else {
            gaps.iter().for_each(|(first, last)| ask(*first, *last));
            self.gone = 0;
            self.again_at = now + (MIN_RESEND_INTERVAL * (1 << self.tries.min(10))).min(MAX_RESEND_INTERVAL);
            self.tries = self.tries.saturating_add(1);
        }
    }

    /// Returns the time of the next necessary look if no packet comes.
    pub(crate) fn next_deadline(&self, patience: Duration, empty: Duration) -> Option<Duration> {
        if self.is_over() {
            return None;
        }
        let again = (self.tries > 0).then_some(self.again_at);
        let tail = Some(self.latest + TAIL_TIMEOUT).filter(|tail| empty < *tail);
        [Some(self.latest + patience), self.fresh_at, again, tail].into_iter().flatten().min()
    }
}

/// Returns the range that holds only this packet.
fn packet_range(packet: u32) -> Range<u64> {
    packet.into()..u64::from(packet) + 1
}
