//! A block that is not whole yet: which packets are there, and when the others are requested or given up.

use std::time::Duration;
use thalweg_device::Buffer;

/// Time after which a gap is requested: packets may overtake each other.
const REORDER_TIMEOUT: Duration = Duration::from_millis(1);
/// Time between the first two requests for a gap; doubled each time.
const MIN_RESEND_INTERVAL: Duration = Duration::from_millis(10);
/// Longest time between two requests.
const MAX_RESEND_INTERVAL: Duration = Duration::from_secs(1);
/// Time without packets after which those following the last one are considered missing.
const TAIL_TIMEOUT: Duration = Duration::from_millis(20);
/// Number of gaps requested at a time.
const MOST_GAPS: usize = 32;

/// One block. Packet 0 is its leader, packets 1 to `last` are payload, the one after is its trailer.
#[derive(Debug)]
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
    /// Set of the payload packets that are there, one bit for each.
    have: Vec<u64>,
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
        Self {
            id,
            buffer: None,
            piece,
            ticks: None,
            bytes: None,
            guess,
            row: 0,
            ended: false,
            overrun: false,
            refused: false,
            copied: 0,
            given_up: false,
            latest: now,
            last: None,
            have: Vec::new(),
            count: 0,
            reach: 0,
            end: None,
            gone: 0,
            asked_to: 0,
            fresh_at: None,
            again_at: now,
            tries: 0,
        }
    }

    /// Returns the number of the last payload packet, if it is known or can be guessed.
    fn last(&self) -> Option<u32> {
        let by_bytes = |bytes: usize| u32::try_from(bytes.div_ceil(self.piece)).ok();
        self.bytes.and_then(by_bytes).or(self.last).or_else(|| self.guess.and_then(by_bytes))
    }

    /// Returns the number of the packet after the highest one seen.
    pub(crate) fn next_packet(&self) -> u32 {
        self.reach + 1
    }

    /// Returns true if a payload packet is there.
    pub(crate) fn has(&self, packet: u32) -> bool {
        let (word, bit) = place(packet);
        self.have.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// Returns the number of payload packets that are there.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Records a payload packet, which ends at this byte.
    pub(crate) fn add(&mut self, packet: u32, end: usize, shorter: bool) {
        let (word, bit) = place(packet);
        if self.have.len() <= word {
            self.have.resize(word + 1, 0);
        }
        self.have[word] |= bit;
        self.count += 1;
        self.reach = self.reach.max(packet);
        if shorter {
            self.end = Some(end);
        }
    }

    /// Records the trailer, which gives the number of the last payload packet.
    pub(crate) fn end(&mut self, last: u32) {
        self.ended = true;
        self.last = Some(last);
        self.reach = self.reach.max(last);
    }

    /// Records that the camera does not have a packet any more.
    pub(crate) fn lose(&mut self) {
        self.gone += 1;
    }

    /// Returns the length of the frame in bytes, if all packets that determine it are there.
    pub(crate) fn length(&self) -> Option<usize> {
        let ended = || {
            let last = self.last?;
            if last == 0 {
                return Some(0);
            }
            self.has(last).then(|| self.end.unwrap_or(last as usize * self.piece))
        };
        self.bytes.or_else(ended)
    }

    /// Returns true if all of the payload is there, and its length is known.
    pub(crate) fn is_full(&self) -> bool {
        let all = |bytes: usize| self.count as usize == bytes.div_ceil(self.piece);
        self.length().is_some_and(all)
    }

    /// Returns true if nothing is missing.
    pub(crate) fn is_whole(&self) -> bool {
        self.ticks.is_some() && self.is_full() && !self.refused
    }

    /// Returns the gaps from packet `from` to packet `to`, inclusive, `most` at most: first and last packet of each.
    fn gaps(&self, from: u32, to: u32, most: usize) -> Vec<(u32, u32)> {
        let mut gaps: Vec<(u32, u32)> = Vec::new();
        let last = self.last().unwrap_or(self.reach);
        // The trailer counts as missing only if it alone determines the length of the frame.
        let trailer = self.bytes.is_none() && !self.ended;
        for packet in from..=to.min(last.saturating_add(1)) {
            let missing = match packet {
                0 => self.ticks.is_none(),
                packet if packet > last => trailer,
                packet => !self.has(packet),
            };
            if !missing {
                continue;
            }
            let full = gaps.len() == most;
            match gaps.last_mut() {
                Some((_, end)) if *end + 1 == packet => *end = packet,
                _ if full => break,
                _ => gaps.push((packet, packet)),
            }
        }
        gaps
    }

    /// Returns the gaps in the payload in bytes, first and one past the last of each.
    pub(crate) fn missing(&self, length: usize) -> Vec<(usize, usize)> {
        let piece = self.piece;
        let last = u32::try_from(length.div_ceil(piece)).unwrap_or(u32::MAX);
        let bytes = |(first, last): (u32, u32)| ((first as usize - 1) * piece, (last as usize * piece).min(length));
        let mut gaps: Vec<(u32, u32)> = Vec::new();
        for packet in (1..=last).filter(|packet| !self.has(*packet)) {
            match gaps.last_mut() {
                Some((_, end)) if *end + 1 == packet => *end = packet,
                _ => gaps.push((packet, packet)),
            }
        }
        gaps.into_iter().map(bytes).collect()
    }

    /// Returns the highest packet that should be there by now.
    fn due(&self, over: bool, empty: Duration) -> u32 {
        if over || empty >= self.latest + TAIL_TIMEOUT {
            self.last().map_or(self.reach, |last| last.max(self.reach).saturating_add(1))
        } else {
            self.reach
        }
    }

    /// Decides about missing packets: gaps to be requested go to `ask`. `behind`: a later block has begun. `empty`:
    /// time until which all packets that came have been received.
    pub(crate) fn look(
        &mut self,
        behind: bool,
        resends: bool,
        patience: Duration,
        (now, empty): (Duration, Duration),
        mut ask: impl FnMut(u32, u32),
    ) {
        if self.given_up || self.is_whole() {
            return;
        }
        if self.refused || empty >= self.latest + patience {
            self.given_up = true;
            return;
        }
        // Otherwise the camera may only be slow: packets that it has not sent yet are not missing.
        let over = behind || self.ended;
        if !resends {
            // If no packet waits, it will not come by itself any more.
            self.given_up = over && empty >= *self.fresh_at.get_or_insert(now + REORDER_TIMEOUT);
            return;
        }
        let due = self.due(over, empty);
        // The usual case: packets come in order, and the block is not over.
        if self.ticks.is_some() && self.count == due && self.count == self.reach {
            return;
        }
        let fresh = self.gaps(self.asked_to, due, MOST_GAPS);
        if fresh.is_empty() {
            self.fresh_at = None;
        } else if now < *self.fresh_at.get_or_insert(now + REORDER_TIMEOUT) {
            // The packets may still come by themselves.
        } else {
            fresh.iter().for_each(|(first, last)| ask(*first, *last));
            self.gone = 0;
            self.fresh_at = None;
            self.asked_to = match fresh.last() {
                Some((_, last)) if fresh.len() == MOST_GAPS => last.saturating_add(1),
                _ => due.saturating_add(1),
            };
            if self.tries == 0 {
                self.tries = 1;
                self.again_at = now + MIN_RESEND_INTERVAL;
            }
        }
        if self.tries > 0 && now >= self.again_at {
            self.insist(over, now, ask);
        }
    }

    /// Repeats the request for packets that did not come in time, or gives the block up.
    fn insist(&mut self, over: bool, now: Duration, mut ask: impl FnMut(u32, u32)) {
        let gaps = self.gaps(0, self.asked_to.saturating_sub(1), MOST_GAPS);
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
    pub(crate) fn next_time(&self, patience: Duration, empty: Duration) -> Option<Duration> {
        if self.given_up || self.is_whole() {
            return None;
        }
        let again = (self.tries > 0).then_some(self.again_at);
        let tail = Some(self.latest + TAIL_TIMEOUT).filter(|tail| empty < *tail);
        [Some(self.latest + patience), self.fresh_at, again, tail].into_iter().flatten().min()
    }
}

fn place(packet: u32) -> (usize, u64) {
    (packet as usize / 64, 1 << (packet % 64))
}
