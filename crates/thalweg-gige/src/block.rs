//! A block that is not whole yet: what of it is there, and what is missing.

use std::time::Duration;
use thalweg_device::Buffer;

/// A gap is asked for after this time: packets may overtake each other.
const REORDER: Duration = Duration::from_millis(1);
/// From asking to asking again; twice as long each time.
const AGAIN: Duration = Duration::from_millis(10);
/// The longest time between.
const SELDOM: Duration = Duration::from_secs(1);
/// Where nothing came for so long, what should be behind the last that came is missing.
const TAIL: Duration = Duration::from_millis(20);
/// Gaps that are asked for at a time.
const MOST_GAPS: usize = 32;

/// One block. Packet 0 is its leader, packets 1 to `last` are payload, the one behind is its trailer.
#[derive(Debug)]
pub(crate) struct Block {
    /// Its own number, as the camera counts.
    pub(crate) id: u64,
    pub(crate) buffer: Option<Buffer>,
    /// Bytes of a payload packet, but for the last.
    pub(crate) piece: usize,
    /// When the frame began, in the camera's ticks; nothing until the leader is there.
    pub(crate) ticks: Option<u64>,
    /// Bytes of the frame, as its leader or trailer says.
    pub(crate) bytes: Option<usize>,
    /// Bytes of the frame where nothing better is known.
    pub(crate) guess: Option<usize>,
    /// Bytes of a row of pixels; 0 where it is no image.
    pub(crate) row: u64,
    /// Whether its trailer is there.
    pub(crate) ended: bool,
    /// Whether the camera said that it had more than it could send.
    pub(crate) overrun: bool,
    /// Whether it is of no use: too long, or nothing that there is a place for.
    pub(crate) refused: bool,
    /// Bytes that were copied to where they belong.
    pub(crate) copied: usize,
    /// Nothing of it is waited for any more.
    pub(crate) given_up: bool,
    /// When a packet of it last came.
    pub(crate) latest: Duration,
    /// The last payload packet, as its trailer says.
    last: Option<u32>,
    /// Which payload packets are there, a bit for each.
    have: Vec<u64>,
    count: u32,
    /// The furthest packet that was seen.
    reach: u32,
    /// Where the one packet ends that is shorter than others.
    end: Option<usize>,
    /// Packets that the camera does not have any more.
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

    /// The number of its last payload packet, where that is known or can be guessed.
    fn last(&self) -> Option<u32> {
        let by_bytes = |bytes: usize| u32::try_from(bytes.div_ceil(self.piece)).ok();
        self.bytes.and_then(by_bytes).or(self.last).or_else(|| self.guess.and_then(by_bytes))
    }

    /// The first payload packet that is not there, of those behind the furthest.
    pub(crate) fn next_packet(&self) -> u32 {
        self.reach + 1
    }

    /// Whether a payload packet is there.
    pub(crate) fn has(&self, packet: u32) -> bool {
        let (word, bit) = place(packet);
        self.have.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// How many of its payload packets are there.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// A payload packet is there now, which ends here.
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

    /// Its trailer says which the last payload packet was.
    pub(crate) fn end(&mut self, last: u32) {
        self.ended = true;
        self.last = Some(last);
        self.reach = self.reach.max(last);
    }

    /// The camera does not have a packet any more.
    pub(crate) fn lose(&mut self) {
        self.gone += 1;
    }

    /// Bytes of the frame, where all of what says so is there.
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

    /// Whether all of its payload is there, and it is known how much that is.
    pub(crate) fn is_full(&self) -> bool {
        let all = |bytes: usize| self.count as usize == bytes.div_ceil(self.piece);
        self.length().is_some_and(all)
    }

    /// Whether nothing is missing.
    pub(crate) fn is_whole(&self) -> bool {
        self.ticks.is_some() && self.is_full() && !self.refused
    }

    /// What is missing up to a packet, inclusive, from another on: first and last of each gap.
    fn gaps(&self, from: u32, to: u32, most: usize) -> Vec<(u32, u32)> {
        let mut gaps: Vec<(u32, u32)> = Vec::new();
        let last = self.last().unwrap_or(self.reach);
        // The trailer is missed only where it alone says how long the frame is.
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

    /// The gaps in its payload as bytes, first and one past the last.
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

    /// Up to where packets should be there by now.
    fn due(&self, over: bool, empty: Duration) -> u32 {
        if over || empty >= self.latest + TAIL {
            self.last().map_or(self.reach, |last| last.max(self.reach).saturating_add(1))
        } else {
            self.reach
        }
    }

    /// Decides what to do about what is missing: gaps to be asked for go to `ask`. `behind`: a later block has begun.
    /// `empty`: when it is known that nothing waits to be received.
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
        // Else the camera may only be slow: nothing that it has not sent yet is missing.
        let over = behind || self.ended;
        if !resends {
            // Where nothing waits, it does not come by itself any more.
            self.given_up = over && empty >= *self.fresh_at.get_or_insert(now + REORDER);
            return;
        }
        let due = self.due(over, empty);
        // The usual case: it comes in order and is not over.
        if self.ticks.is_some() && self.count == due && self.count == self.reach {
            return;
        }
        let fresh = self.gaps(self.asked_to, due, MOST_GAPS);
        if fresh.is_empty() {
            self.fresh_at = None;
        } else if now < *self.fresh_at.get_or_insert(now + REORDER) {
            // It may still come by itself.
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
                self.again_at = now + AGAIN;
            }
        }
        if self.tries > 0 && now >= self.again_at {
            self.insist(over, now, ask);
        }
    }

    /// What was asked for did not come in time.
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
            self.again_at = now + (AGAIN * (1 << self.tries.min(10))).min(SELDOM);
            self.tries = self.tries.saturating_add(1);
        }
    }

    /// When to look again although nothing came.
    pub(crate) fn next_time(&self, patience: Duration, empty: Duration) -> Option<Duration> {
        if self.given_up || self.is_whole() {
            return None;
        }
        let again = (self.tries > 0).then_some(self.again_at);
        let tail = Some(self.latest + TAIL).filter(|tail| empty < *tail);
        [Some(self.latest + patience), self.fresh_at, again, tail].into_iter().flatten().min()
    }
}

fn place(packet: u32) -> (usize, u64) {
    (packet as usize / 64, 1 << (packet % 64))
}
