//! From packets to frames in order, and what is lost. Without IO.
//!
//! It says beforehand where the packets that should come next belong ([`Plan`]), so that they can be received there.
//! Those that come otherwise are moved. A block of which something is missing is asked for again, and waited for; then
//! it is given as it is, with zeros where nothing came. Blocks of which nothing came are lost.

use crate::block::Block;
use crate::clock::Clock;
use crate::gvcp::Status as Said;
use crate::gvsp::{self, Header, Kind, Leader};
use crate::numbers::Numbers;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;
use thalweg_device::{Acquired, Buffer, Filled, Frame};
use thalweg_wire::{PayloadType, Status, TaiNanos};

/// Blocks that may be missing altogether and are still asked for.
const GHOSTS: u64 = 8;
/// A number further ahead is believed only when others follow it.
const FAR: u64 = 64;
/// So many others.
const BELIEVED: u32 = 3;
/// A stream that has just been opened begins with one of these numbers: those before are lost.
const FIRST: u64 = 8;
/// Gaps of a frame that are named.
const NAMED: usize = 8;

/// How a stream comes.
#[derive(Debug, Clone, PartialEq)]
pub struct Stream {
    /// Bytes of a packet, with its IP header.
    pub packet: usize,
    /// Bytes of a frame, where all have as many.
    pub frame: Option<usize>,
    /// Whether packets that are asked for come again.
    pub resends: bool,
    /// Frames per second, where they come by the camera's own clock.
    pub rate: Option<f64>,
    /// What frames are made of.
    pub payload: PayloadType,
    /// How the camera's clock goes.
    pub clock: Clock,
    /// What is to be known of every frame.
    pub status: Status,
}

/// Packets that are wanted again: to be sent to the camera.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The block, as the camera counts.
    pub block: u64,
    /// Whether block numbers have 64 bits.
    pub wide: bool,
    /// The first packet.
    pub first: u32,
    /// The last.
    pub last: u32,
}

/// Where the packets that should come next belong.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) buffers: Vec<Planned>,
    /// For each packet, in the order in which they should come.
    pub(crate) spots: Vec<Spot>,
    /// Bytes of a payload packet.
    pub(crate) piece: usize,
}

#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) buffer: Buffer,
    /// The block that it is for; nothing until there is one.
    number: Option<u64>,
}

/// A place for one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spot {
    /// Not in a frame: a leader or a trailer should come.
    Aside,
    /// The payload of this packet, in this one of the plan's buffers.
    Slot { planned: usize, packet: u32 },
}

/// A packet that came.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) header: Header,
    pub(crate) number: u64,
    pub(crate) body: Body,
    pub(crate) length: usize,
}

/// Where the bytes behind a packet's header are.
#[derive(Debug)]
pub(crate) enum Body {
    /// Where they belong.
    InPlace,
    /// In memory beside.
    Aside(Range<usize>),
}

/// Puts frames together.
#[derive(Debug)]
pub struct Assembler {
    size: usize,
    patience: Duration,
    stream: Stream,
    /// Bytes of a payload packet, but for the last of a frame.
    piece: usize,
    /// Whether a packet has said so.
    learned: bool,
    wide: bool,
    free: Vec<Buffer>,
    blocks: BTreeMap<u64, Block>,
    numbers: Numbers,
    /// The number of the next frame to be handed on.
    next: u64,
    /// One past the furthest number of a block that was seen.
    front: u64,
    /// Where the stream's own numbers begin.
    begun: bool,
    stray: Option<(u64, u32)>,
    /// The frame that is whole but for its trailer, which nothing needs.
    trailer_due: Option<u64>,
    requests: VecDeque<Request>,
    /// When the last packet came that belonged to a frame, before the stream was opened again.
    before: Option<Duration>,
    latest: Option<Duration>,
    /// While the camera is away: since when, and one past the furthest number then.
    absent: Option<(Duration, u64)>,
    /// Those below that are not here are lost.
    lost_until: u64,
    counts: Counts,
}

impl Assembler {
    /// For frames of at most so many bytes.
    pub fn new(size: usize, patience: Duration) -> Self {
        let stream = Stream {
            packet: 1500,
            frame: None,
            resends: false,
            rate: None,
            payload: PayloadType::RAW,
            clock: Clock::NONE,
            status: Status::empty(),
        };
        Self {
            size,
            patience,
            piece: piece(&stream, false),
            stream,
            learned: false,
            wide: false,
            free: Vec::new(),
            blocks: BTreeMap::new(),
            numbers: Numbers::default(),
            next: 0,
            front: 0,
            begun: false,
            stray: None,
            trailer_due: None,
            requests: VecDeque::new(),
            before: None,
            latest: None,
            absent: None,
            lost_until: 0,
            counts: Counts::default(),
        }
    }

    /// Takes a buffer for a frame.
    pub fn post(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }

    /// The camera begins to send, for the first time or again. What is not whole by now will never be.
    pub fn begin(&mut self, stream: Stream) {
        for block in self.blocks.values_mut() {
            block.given_up |= !block.is_whole();
        }
        self.counts.streams += 1;
        self.piece = piece(&stream, self.wide);
        self.stream = stream;
        self.learned = false;
        self.begun = false;
        self.stray = None;
        self.trailer_due = None;
        self.requests.clear();
        self.before = self.latest;
    }

    /// Whether what comes finds a place, or something is waited for.
    pub fn has_room(&self) -> bool {
        let waits = |block: &Block| !block.given_up && !block.is_whole();
        !self.free.is_empty() || self.blocks.values().any(waits)
    }

    /// Whether a packet's header has its long form.
    pub fn is_wide(&self) -> bool {
        self.wide
    }

    /// Bytes of a payload packet.
    pub fn piece(&self) -> usize {
        self.piece
    }

    /// Says where the next packets belong, at most so many.
    pub(crate) fn plan(&mut self, most: usize, plan: &mut Plan) {
        plan.piece = self.piece;
        plan.spots.clear();
        let last = self.stream.frame.unwrap_or(self.size).min(self.size).div_ceil(self.piece);
        let last = u32::try_from(last).unwrap_or(u32::MAX);
        if self.trailer_due.is_some() {
            plan.spots.push(Spot::Aside);
        }
        // The newest block goes on; then others begin.
        let newest = self.blocks.last_entry().filter(|entry| {
            let block = entry.get();
            block.buffer.is_some() && !block.ended && !block.given_up && !block.is_whole()
        });
        if let Some(mut entry) = newest {
            let number = *entry.key();
            let block = entry.get_mut();
            if let Some(buffer) = block.buffer.take() {
                plan.buffers.push(Planned { buffer, number: Some(number) });
                let first = if block.ticks.is_none() && block.count() == 0 { 0 } else { block.next_packet() };
                plan.lay(first, last, most, |packet| !block.has(packet));
            }
        }
        while plan.spots.len() < most {
            let Some(buffer) = self.free.pop() else { break };
            plan.buffers.push(Planned { buffer, number: None });
            plan.lay(0, last, most, |_| true);
        }
        // There is no buffer for what comes: it is looked at all the same, since it may be what is waited for.
        plan.spots.resize(most, Spot::Aside);
    }

    /// The number of a packet's block, where it belongs to one that is waited for. Else it is counted. Where the block is
    /// new, it gets the plan's next buffer.
    pub(crate) fn admit(&mut self, header: &Header, length: usize, plan: &mut Plan, now: Duration) -> Option<u64> {
        let body = length.checked_sub(Header::len(header.wide))?;
        self.counts.packets += 1;
        let without = header.status.is_error() && header.status != Said::OVERRUN;
        self.counts.unavailable += u64::from(without);
        let number = self.locate(header, now)?;
        if number >= self.front {
            self.trailer_due = None;
            self.reach(number, header.block, now);
        }
        let (guess, piece) = (self.stream.frame, self.piece);
        let block = self.blocks.entry(number).or_insert_with(|| Block::new(header.block, piece, guess, now));
        if block.is_whole() || block.given_up {
            self.counts.late += u64::from(header.kind != Kind::Trailer);
            return None;
        }
        if without {
            if header.status.is_gone() {
                block.lose();
            }
            return None;
        }
        self.learn(header, body);
        if self.blocks.get(&number).is_some_and(|block| block.buffer.is_none()) && !plan.has(number) {
            match plan.buffers.iter_mut().find(|planned| planned.number.is_none()) {
                Some(planned) => planned.number = Some(number),
                None => match self.free.pop() {
                    Some(buffer) => plan.buffers.push(Planned { buffer, number: Some(number) }),
                    None => {
                        self.counts.unbuffered += 1;
                        return None;
                    }
                },
            }
        }
        Some(number)
    }

    /// All packets of a plan have been admitted: its buffers go back.
    pub(crate) fn settle(&mut self, plan: &mut Plan) {
        // What was taken last lies on top again.
        for Planned { buffer, number } in plan.buffers.drain(..).rev() {
            let owner = number.and_then(|number| self.blocks.get_mut(&number)).filter(|block| block.buffer.is_none());
            match owner {
                Some(block) => block.buffer = Some(buffer),
                None => self.free.push(buffer),
            }
        }
    }

    /// Takes what an admitted packet says or has.
    pub(crate) fn take(&mut self, arrived: &Arrived, aside: &[u8], now: Duration, date: TaiNanos) {
        let Arrived { header, number, body, length } = arrived;
        if header.kind == Kind::Trailer || self.trailer_due.is_some_and(|due| *number > due) {
            self.trailer_due = None;
        }
        let size = self.size;
        let Some(block) = self.blocks.get_mut(number) else { return };
        if block.given_up || block.is_whole() {
            self.counts.late += u64::from(header.kind != Kind::Trailer);
            return;
        }
        self.counts.resent += u64::from(header.status == Said::RESENT);
        block.overrun |= header.status == Said::OVERRUN;
        let bytes = match body {
            Body::InPlace => &[][..],
            Body::Aside(range) => &aside[range.clone()],
        };
        let taken = match header.kind {
            Kind::Leader => take_leader(block, bytes, size),
            Kind::Trailer => take_trailer(block, header.packet, bytes, size),
            Kind::Payload => take_payload(block, header.packet, body, bytes, *length, size),
            Kind::Other(_) => {
                block.refused = true;
                Err(Bad::Unknown)
            }
        };
        match taken {
            Ok(copied) => {
                block.latest = now;
                if header.kind == Kind::Payload && !block.ended && block.is_whole() {
                    self.trailer_due = Some(*number);
                }
                self.latest = Some(now);
                self.stray = None;
                self.counts.copied += u64::from(copied);
                if header.kind == Kind::Leader
                    && self.stream.clock.offset.is_none()
                    && let Some(ticks) = block.ticks
                {
                    self.stream.clock.set(ticks, date);
                }
            }
            Err(Bad::There) => self.counts.duplicate += 1,
            Err(Bad::Malformed) => self.counts.malformed += 1,
            Err(Bad::Oversize) => self.counts.oversize += 1,
            Err(Bad::Unknown) => self.counts.unknown += 1,
        }
    }

    /// Counts what came from somebody else.
    pub(crate) fn stranger(&mut self) {
        self.counts.stranger += 1;
    }

    /// Counts what is no packet.
    pub(crate) fn malformed(&mut self) {
        self.counts.malformed += 1;
    }

    /// Where a block's number is among the others, if it is believed.
    fn locate(&mut self, header: &Header, now: Duration) -> Option<u64> {
        let number = self.find(header, now);
        if header.kind == Kind::Trailer {
            self.trailer_due = None;
        }
        number
    }

    fn find(&mut self, header: &Header, now: Duration) -> Option<u64> {
        // What is of no kind that there is says nothing of numbers, neither the first nor that they begin anew.
        let is_known = !matches!(header.kind, Kind::Other(_));
        if !self.begun && is_known {
            return self.first(header, now);
        }
        let number = if self.numbers.has_begun(header.wide) { self.numbers.of(header.block) } else { None };
        match number {
            Some(number) if number >= self.next && number < self.front.saturating_add(FAR) => {
                self.numbers.went_on(header.block, number);
                Some(number)
            }
            Some(number) if number < self.next && self.next - number <= FAR => {
                self.counts.late += u64::from(header.kind != Kind::Trailer);
                None
            }
            other if is_known => self.doubt(header, other),
            _ => {
                self.counts.stray += 1;
                None
            }
        }
    }

    /// The first block of a stream.
    fn first(&mut self, header: &Header, now: Duration) -> Option<u64> {
        if header.kind == Kind::Payload && header.block == 0 && !header.wide {
            // A test packet has no block.
            self.counts.stray += 1;
            return None;
        }
        let early = if (1..=FIRST).contains(&header.block) { header.block - 1 } else { 0 };
        let absent = self.absent.take().or(self.before.map(|before| (before, self.front)));
        let away = absent.map_or(0, |(since, _)| self.missed(since, now));
        let front = absent.map_or(self.front, |(_, front)| front);
        self.counts.lost_while_away += (front + away).saturating_sub(self.front);
        self.wide = header.wide;
        if !self.learned {
            self.piece = piece(&self.stream, self.wide);
        }
        let number = front.saturating_add(early.max(away)).max(self.front);
        self.numbers.begin(header.block, header.wide, number);
        self.begun = true;
        if away > early {
            // Nobody has them any more.
            self.front = number;
        }
        Some(number)
    }

    /// Frames that a camera without a trigger takes in this time, but for the one that came at its beginning.
    fn missed(&self, since: Duration, now: Duration) -> u64 {
        let frames =
            self.stream.rate.map_or(0.0, |rate| (now.saturating_sub(since).as_secs_f64() * rate).round() - 1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is limited")]
        let frames = frames.clamp(0.0, 1e9) as u64;
        frames
    }

    /// The camera is away, and nothing comes: what it would have sent by now is lost, by its rate.
    pub fn away(&mut self, now: Duration) {
        let Some(latest) = self.latest else { return };
        let (since, front) = *self.absent.get_or_insert((latest, self.front));
        let until = front.saturating_add(self.missed(since, now));
        self.counts.lost_while_away += until.saturating_sub(self.front);
        self.front = self.front.max(until);
        self.lost_until = self.front;
    }

    /// A number far from all others: it is believed when more like it come, and nothing else.
    fn doubt(&mut self, header: &Header, number: Option<u64>) -> Option<u64> {
        let seen = match self.stray {
            Some((block, seen)) if header.block.wrapping_sub(block) <= 1 => seen + 1,
            _ => 1,
        };
        self.stray = Some((header.block, seen));
        if seen < BELIEVED {
            self.counts.stray += 1;
            return None;
        }
        self.stray = None;
        let number = match number.filter(|number| *number >= self.front) {
            Some(number) => number,
            None => {
                self.counts.restarts += 1;
                tracing::warn!(block = header.block, "the camera counts anew: what was lost meanwhile is not known");
                self.wide = header.wide;
                self.front
            }
        };
        self.numbers.begin(header.block, header.wide, number);
        Some(number)
    }

    /// A block came that is further than all others: those between may still come.
    fn reach(&mut self, number: u64, id: u64, now: Duration) {
        let (from, guess, piece) = (self.front, self.stream.frame, self.piece);
        self.front = number.saturating_add(1);
        if number - from > GHOSTS {
            return;
        }
        for missing in from..number {
            let Some(id) = self.numbers.block(missing) else { continue };
            self.blocks.entry(missing).or_insert_with(|| Block::new(id, piece, guess, now));
        }
        self.blocks.entry(number).or_insert_with(|| Block::new(id, piece, guess, now));
    }

    /// A camera may send fewer bytes in a packet than it was allowed to: always as many.
    fn learn(&mut self, header: &Header, body: usize) {
        if self.learned || header.kind != Kind::Payload || header.packet == 0 || body == 0 {
            return;
        }
        let all = self.stream.frame.unwrap_or(self.size);
        let is_last = (header.packet as usize).checked_mul(body).is_none_or(|end| end >= all);
        if body == self.piece {
            self.learned = true;
        } else if (self.piece / 2..self.piece).contains(&body) && !is_last {
            tracing::info!(bytes = body, "the camera's packets have so many bytes of payload, not {}", self.piece);
            self.learned = true;
            self.piece = body;
            for block in self.blocks.values_mut().filter(|block| block.count() == 0) {
                block.piece = body;
            }
        }
    }

    /// Gives up what cannot come any more, and asks for what can. `empty`: when it is known that nothing waits to be
    /// received.
    pub fn look(&mut self, now: Duration, empty: Duration) {
        let Self { blocks, requests, stream, patience, wide, counts, .. } = self;
        let newest = blocks.last_key_value().map(|(number, _)| *number);
        for (number, block) in blocks.iter_mut() {
            let (id, behind) = (block.id, newest.is_some_and(|newest| *number < newest));
            block.look(behind, stream.resends, *patience, (now, empty), |first, last| {
                counts.requests += 1;
                counts.requested += u64::from(last - first) + 1;
                requests.push_back(Request { block: id, wide: *wide, first, last });
            });
        }
    }

    /// What is to be asked of the camera.
    pub fn next_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// What comes next in order, where that is known.
    pub fn next_acquired(&mut self) -> Option<Acquired> {
        let first = self.blocks.first_key_value().map(|(number, block)| (*number, block));
        let number = first.map_or(self.lost_until, |(number, _)| number);
        if number > self.next {
            // Those between are not waited for.
            let (first, count) = (self.next, number - self.next);
            self.next = number;
            self.counts.lost += count;
            return Some(Acquired::Lost { first, count });
        }
        let (_, block) = first?;
        if !block.given_up && !block.is_whole() {
            return None;
        }
        let block = self.blocks.remove(&number)?;
        self.next = number.saturating_add(1);
        Some(self.hand_on(number, block))
    }

    /// A block as a frame, whole or not; or it is lost.
    fn hand_on(&mut self, number: u64, block: Block) -> Acquired {
        let whole = block.is_whole();
        let Block { ticks, overrun, id, piece, copied, .. } = block;
        let count = block.count();
        let length = block.length().or(block.guess).filter(|length| *length <= self.size);
        let gaps = length.filter(|_| !whole).map(|length| block.missing(length)).unwrap_or_default();
        let some = whole || count > 0 && !block.refused;
        let (mut buffer, len) = match (block.buffer, length) {
            (Some(buffer), Some(len)) if some => (buffer, len),
            (buffer, _) => {
                self.free.extend(buffer);
                self.counts.lost += 1;
                return Acquired::Lost { first: number, count: 1 };
            }
        };
        let mut status = self.stream.status;
        if whole {
            self.counts.frames += 1;
        } else if gaps.is_empty() {
            self.counts.without_leader += 1;
        } else {
            self.counts.incomplete += 1;
            self.counts.missing += gaps.iter().map(|(begin, end)| (end - begin).div_ceil(piece) as u64).sum::<u64>();
            status |= Status::CORRUPT;
            for (begin, end) in &gaps {
                buffer.payload()[*begin..*end].fill(0);
            }
            tracing::warn!(frame = number, block = id, "incomplete: {} did not come, and are zeros", named(&gaps, len));
        }
        if overrun {
            self.counts.overruns += 1;
            status |= Status::TRUNCATED;
        }
        let timestamp = ticks.and_then(|ticks| self.stream.clock.at(ticks));
        let filled = Filled { payload_type: self.stream.payload, status, window: 0, timestamp };
        Acquired::Frame(Frame { buffer, number, len, filled, crc: None, copied })
    }

    /// When to look although nothing came.
    pub fn next_time(&self, empty: Duration) -> Option<Duration> {
        if let Some((number, first)) = self.blocks.first_key_value()
            && (*number > self.next || first.given_up || first.is_whole())
        {
            return Some(Duration::ZERO);
        }
        self.blocks.values().filter_map(|block| block.next_time(self.patience, empty)).min()
    }

    /// What it has counted.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

impl Plan {
    /// Places for the packets of one block in the last buffer, from this one on: its leader, payload up to `last`, its
    /// trailer.
    fn lay(&mut self, first: u32, last: u32, most: usize, wanted: impl Fn(u32) -> bool) {
        let planned = self.buffers.len() - 1;
        for packet in first..=last.saturating_add(1) {
            if self.spots.len() == most {
                return;
            }
            if packet == 0 || packet > last {
                self.spots.push(Spot::Aside);
            } else if wanted(packet) {
                self.spots.push(Spot::Slot { planned, packet });
            }
        }
    }

    fn has(&self, number: u64) -> bool {
        self.buffers.iter().any(|planned| planned.number == Some(number))
    }

    /// Whether the payload of a packet was received where it belongs: so many bytes, where a payload packet has `piece`.
    pub(crate) fn is_in_place(&self, spot: Spot, number: u64, header: &Header, body: usize, piece: usize) -> bool {
        let Spot::Slot { planned, packet } = spot else { return false };
        header.kind == Kind::Payload
            && packet == header.packet
            && self.buffers.get(planned).is_some_and(|planned| planned.number == Some(number))
            && (packet == 1 || piece == self.piece)
            && body <= piece
    }
}

/// Why a packet is not taken.
enum Bad {
    There,
    Malformed,
    Oversize,
    Unknown,
}

fn take_leader(block: &mut Block, bytes: &[u8], size: usize) -> Result<bool, Bad> {
    if block.ticks.is_some() {
        return Err(Bad::There);
    }
    let leader = Leader::read(bytes).ok_or(Bad::Malformed)?;
    if !leader.known {
        block.refused = true;
        return Err(Bad::Unknown);
    }
    let length = leader.bytes.map(usize::try_from);
    match length {
        Some(Ok(length)) if length <= size => block.bytes = Some(length),
        // Its trailer tells.
        None => {}
        Some(_) => {
            block.refused = true;
            return Err(Bad::Oversize);
        }
    }
    block.ticks = Some(leader.ticks);
    block.row = leader.row;
    Ok(false)
}

fn take_trailer(block: &mut Block, packet: u32, bytes: &[u8], size: usize) -> Result<bool, Bad> {
    if block.ended {
        return Err(Bad::There);
    }
    let last = packet.checked_sub(1).ok_or(Bad::Malformed)?;
    if last as usize > size.div_ceil(block.piece) {
        return Err(Bad::Malformed);
    }
    // Fewer rows than were announced, where a line camera stopped.
    if let (Some(rows), Some(length), true) = (gvsp::height(bytes), block.bytes, block.row > 0) {
        let fewer = block.row.checked_mul(rows.into()).and_then(|fewer| usize::try_from(fewer).ok());
        block.bytes = Some(fewer.map_or(length, |fewer| if rows > 0 { fewer.min(length) } else { length }));
    }
    block.end(last);
    Ok(false)
}

fn take_payload(
    block: &mut Block,
    packet: u32,
    body: &Body,
    bytes: &[u8],
    length: usize,
    size: usize,
) -> Result<bool, Bad> {
    let piece = block.piece;
    let begin = (packet as usize).checked_sub(1).and_then(|before| before.checked_mul(piece)).ok_or(Bad::Malformed)?;
    let limit = block.bytes.unwrap_or(size);
    if length == 0 || begin >= limit || length > piece {
        return Err(Bad::Malformed);
    }
    if block.has(packet) {
        return Err(Bad::There);
    }
    // What is behind the frame's end is padding.
    let end = begin.saturating_add(length).min(limit);
    let shorter = length < piece;
    if shorter && block.bytes.is_some_and(|all| end < all) {
        return Err(Bad::Malformed);
    }
    let Some(buffer) = &mut block.buffer else { return Err(Bad::Malformed) };
    let copied = matches!(body, Body::Aside(_));
    if copied {
        let place = buffer.payload().get_mut(begin..end).ok_or(Bad::Oversize)?;
        place.copy_from_slice(bytes.get(..end - begin).ok_or(Bad::Malformed)?);
        block.copied += end - begin;
    }
    block.add(packet, end, shorter);
    Ok(copied)
}

/// Bytes of payload that a packet has room for.
fn piece(stream: &Stream, wide: bool) -> usize {
    stream.packet.saturating_sub(gvsp::OUTSIDE + Header::len(wide)).max(1)
}

/// Gaps in words.
fn named(gaps: &[(usize, usize)], length: usize) -> String {
    let mut text = String::from("bytes ");
    for (at, (begin, end)) in gaps.iter().take(NAMED).enumerate() {
        let _ = write!(text, "{}{begin} to {end}", if at == 0 { "" } else { ", " });
    }
    if gaps.len() > NAMED {
        let _ = write!(text, " and {} more ranges", gaps.len() - NAMED);
    }
    let _ = write!(text, " of {length}");
    text
}

/// What became of packets and frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that came from the camera.
    pub packets: u64,
    /// Frames that were whole.
    pub frames: u64,
    /// Packets that were sent again.
    pub resent: u64,
    /// Commands that asked for some.
    pub requests: u64,
    /// Packets that were asked for, as often as they were.
    pub requested: u64,
    /// Packets that the camera did not have any more.
    pub unavailable: u64,
    /// Frames with zeros where packets did not come.
    pub incomplete: u64,
    /// Packets that such frames lack.
    pub missing: u64,
    /// Frames whose leader did not come: all is there but their time.
    pub without_leader: u64,
    /// Frames of which nothing came, or nothing that is of use.
    pub lost: u64,
    /// Frames that the camera will not have sent while it was away, by its rate.
    pub lost_while_away: u64,
    /// Frames of which the camera said that it had more than it could send.
    pub overruns: u64,
    /// Packets that were copied to where they belong.
    pub copied: u64,
    /// Packets that were there before.
    pub duplicate: u64,
    /// Packets of frames that were handed on, or given up.
    pub late: u64,
    /// Packets with a number far from all others.
    pub stray: u64,
    /// Packets that were not what they should be.
    pub malformed: u64,
    /// Leaders of frames longer than `size`.
    pub oversize: u64,
    /// Packets of a kind that there is no place for.
    pub unknown: u64,
    /// Packets for which there was no buffer.
    pub unbuffered: u64,
    /// Packets from somebody else.
    pub stranger: u64,
    /// How often the camera began to count anew.
    pub restarts: u64,
    /// How often its stream was opened.
    pub streams: u64,
}

impl Counts {
    /// By name.
    pub fn list(&self) -> [(&'static str, u64); 23] {
        [
            ("packets", self.packets),
            ("frames", self.frames),
            ("resent", self.resent),
            ("requests", self.requests),
            ("requested", self.requested),
            ("unavailable", self.unavailable),
            ("incomplete", self.incomplete),
            ("missing_packets", self.missing),
            ("without_leader", self.without_leader),
            ("lost", self.lost),
            ("lost_while_away", self.lost_while_away),
            ("overruns", self.overruns),
            ("copied", self.copied),
            ("duplicate", self.duplicate),
            ("late", self.late),
            ("stray", self.stray),
            ("malformed", self.malformed),
            ("oversize", self.oversize),
            ("unknown", self.unknown),
            ("unbuffered", self.unbuffered),
            ("stranger", self.stranger),
            ("restarts", self.restarts),
            ("streams", self.streams),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::Intake;
    use proptest::prelude::*;
    use std::convert::Infallible;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use thalweg_arena::SlotPool;

    const SIZE: usize = 1000;
    const PIECE: usize = 100;
    const CAMERA: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 5));

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A camera with images of 40 by 25 pixels, that may count blocks with 64 bits.
    #[derive(Debug, Clone, Copy)]
    struct Model {
        wide: bool,
        resends: bool,
    }

    impl Model {
        fn stream(self) -> Stream {
            Stream {
                packet: PIECE + gvsp::OUTSIDE + Header::len(self.wide),
                frame: Some(SIZE),
                resends: self.resends,
                rate: None,
                payload: PayloadType::IMAGE_U8,
                clock: Clock { hertz: 1_000_000_000, offset: Some(0) },
                status: Status::empty(),
            }
        }

        fn header(self, block: u64, kind: u8, packet: u32) -> Vec<u8> {
            if self.wide {
                let mut bytes = vec![0, 0, 0, 0, 0x80 | kind, 0, 0, 0];
                bytes.extend_from_slice(&block.to_be_bytes());
                bytes.extend_from_slice(&packet.to_be_bytes());
                return bytes;
            }
            let word = u32::from(kind) << 24 | packet;
            [&[0, 0][..], &(block as u16).to_be_bytes(), &word.to_be_bytes()].concat()
        }

        fn content(block: u64) -> Vec<u8> {
            (0..SIZE as u64).map(|at| (at * 7 + block * 13 + at / 256) as u8).collect()
        }

        /// All packets of a block: its leader, ten of payload, its trailer.
        fn block(self, block: u64) -> Vec<Vec<u8>> {
            let mut leader = self.header(block, 1, 0);
            leader.extend_from_slice(&[0, 0, 0, 1]);
            leader.extend_from_slice(&(1000 + block).to_be_bytes());
            for long in [0x0108_0001u32, 40, 25, 0, 0, 0] {
                leader.extend_from_slice(&long.to_be_bytes());
            }
            let content = Self::content(block);
            let mut packets = vec![leader];
            for (part, packet) in content.chunks(PIECE).zip(1..) {
                packets.push([self.header(block, 3, packet), part.to_vec()].concat());
            }
            let last = packets.len() as u32;
            packets.push([self.header(block, 2, last), vec![0, 0, 0, 1, 0, 0, 0, 25]].concat());
            packets
        }
    }

    /// A frame: its number, its bytes, its status; or how many were lost.
    type Out = Result<(u64, Vec<u8>, Status), u64>;

    /// An assembler, what it is fed by, and what came out.
    struct Rig {
        assembler: Assembler,
        intake: Intake,
        _pool: SlotPool,
        out: Vec<Out>,
        asked: Vec<Request>,
    }

    impl Rig {
        fn new(model: Model, slots: u32) -> Self {
            let mut assembler = Assembler::new(SIZE, ms(200));
            let mut pool = SlotPool::new("slots", slots, 4096).unwrap();
            while let Some(slot) = pool.take() {
                let mut buffer = Buffer::new(slot);
                buffer.payload().fill(0xee);
                assembler.post(buffer);
            }
            assembler.begin(model.stream());
            Self { assembler, intake: Intake::default(), _pool: pool, out: Vec::new(), asked: Vec::new() }
        }

        /// As a kernel does: each packet goes into the next place, so many at a time.
        fn give(&mut self, packets: &[Vec<u8>], at_a_time: usize, now: Duration) {
            for burst in packets.chunks(at_a_time.max(1)) {
                let fill = |places: &mut [thalweg_frames::Place<'_>]| {
                    for (place, packet) in places.iter_mut().zip(burst) {
                        let (mut from, parts) = (0, [&mut *place.front, &mut *place.rest, &mut *place.more]);
                        for part in parts {
                            let count = part.len().min(packet.len() - from);
                            part[..count].copy_from_slice(&packet[from..from + count]);
                            from += count;
                        }
                        (place.length, place.from) = (packet.len(), Some(SocketAddr::new(CAMERA, 5000)));
                    }
                    Ok::<_, Infallible>(burst.len().min(places.len()))
                };
                let _ = self.intake.receive(&mut self.assembler, Some(CAMERA), (now, TaiNanos(5)), fill);
                self.look(now);
            }
        }

        fn look(&mut self, now: Duration) {
            self.assembler.look(now, now);
            self.asked.extend(std::iter::from_fn(|| self.assembler.next_request()));
            while let Some(acquired) = self.assembler.next_acquired() {
                match acquired {
                    Acquired::Frame(mut frame) => {
                        let bytes = frame.buffer.payload()[..frame.len].to_vec();
                        self.out.push(Ok((frame.number, bytes, frame.filled.status)));
                        frame.buffer.payload().fill(0xee);
                        self.assembler.post(frame.buffer);
                    }
                    Acquired::Lost { count, .. } | Acquired::Missed { count, .. } => self.out.push(Err(count)),
                    Acquired::NotYet | Acquired::Over => {}
                }
            }
        }

        /// Time goes by until nothing is waited for.
        fn wait(&mut self, mut now: Duration) -> Duration {
            let end = now + Duration::from_secs(2);
            self.look(now);
            while let Some(next) = self.assembler.next_time(now) {
                assert!(next > now || next.is_zero(), "nobody is asked to look again at once: {next:?} {now:?}");
                now = next.max(now);
                assert!(now < end, "it waits for ever");
                self.look(now);
            }
            now
        }

        /// Whether a frame came out with all bytes of this block.
        fn whole(&self, number: u64, block: u64) -> bool {
            self.out.iter().any(|out| {
                matches!(out, Ok((n, bytes, status))
                if *n == number && *bytes == Model::content(block) && status.is_empty())
            })
        }
    }

    const NARROW: Model = Model { wide: false, resends: true };
    const WIDE: Model = Model { wide: true, resends: true };

    #[test]
    fn packets_in_order_are_received_where_they_belong() {
        for (model, at_a_time) in [(NARROW, 64), (NARROW, 5), (NARROW, 1), (WIDE, 64), (WIDE, 7)] {
            let mut rig = Rig::new(model, 8);
            let packets: Vec<_> = (1..=20).flat_map(|block| model.block(block)).collect();
            // A wide stream is known by its first packet.
            let (first, others) = packets.split_at(1);
            rig.give(first, 1, ms(1));
            rig.give(others, at_a_time, ms(1));
            assert!((0..20).all(|number| rig.whole(number, number + 1)), "{model:?} {at_a_time}");
            let counts = rig.assembler.counts();
            assert_eq!(
                (counts.frames, counts.copied, counts.packets),
                (20, 0, 240),
                "{model:?} {at_a_time} {counts:?}"
            );
            assert!(rig.asked.is_empty() && counts.late + counts.duplicate + counts.malformed == 0, "{counts:?}");
        }
    }

    #[test]
    fn what_is_missing_is_asked_for_and_taken() {
        for model in [NARROW, WIDE] {
            for lost in [0, 1, 5, 10, 11] {
                let mut rig = Rig::new(model, 4);
                let mut packets: Vec<_> = (1..=3).flat_map(|block| model.block(block)).collect();
                let gone = packets.remove(12 + lost);
                rig.give(&packets, 64, ms(1));
                rig.look(ms(3));
                // Nothing needs a trailer.
                let wanted = (lost < 11).then_some(Request {
                    block: 2,
                    wide: model.wide,
                    first: lost as u32,
                    last: lost as u32,
                });
                assert_eq!(rig.asked, Vec::from_iter(wanted), "{model:?} {lost}");
                if lost < 11 {
                    assert_eq!(rig.out.len(), 1, "the third waits for the second");
                    let mut again = gone;
                    again[0] = 1;
                    rig.give(&[again], 64, ms(4));
                    assert_eq!(rig.assembler.counts().resent, 1);
                }
                assert!((0..3).all(|number| rig.whole(number, number + 1)), "{model:?} {lost}");
                assert_eq!(rig.assembler.next_time(ms(5)), None);
            }
        }
    }

    #[test]
    fn what_does_not_come_is_asked_for_again_and_then_is_zeros() {
        let mut rig = Rig::new(NARROW, 4);
        let mut packets: Vec<_> = (1..=2).flat_map(|block| NARROW.block(block)).collect();
        packets.drain(3..5);
        rig.give(&packets, 64, ms(1));
        let end = rig.wait(ms(1));
        assert!((ms(50)..ms(260)).contains(&end), "{end:?}");
        assert!(
            rig.asked.len() >= 5 && rig.asked.iter().all(|asked| (asked.first, asked.last) == (3, 4)),
            "{:?}",
            rig.asked
        );
        let mut expected = Model::content(1);
        expected[200..400].fill(0);
        assert!(rig.out[0] == Ok((0, expected, Status::CORRUPT)) && rig.whole(1, 2), "{:?}", rig.assembler.counts());
        let counts = rig.assembler.counts();
        assert_eq!((counts.incomplete, counts.missing, counts.frames), (1, 2, 1));
    }

    #[test]
    fn where_nothing_is_sent_again_nothing_is_asked_for() {
        let model = Model { resends: false, ..NARROW };
        let mut rig = Rig::new(model, 4);
        let mut packets: Vec<_> = (1..=3).flat_map(|block| model.block(block)).collect();
        packets.remove(24);
        packets.remove(5);
        rig.give(&packets, 64, ms(1));
        let end = rig.wait(ms(1));
        assert!(end < ms(60) && rig.asked.is_empty(), "{end:?} {:?}", rig.asked);
        let counts = rig.assembler.counts();
        // The third has no leader: all is there but its time.
        assert_eq!((counts.incomplete, counts.without_leader, counts.frames), (1, 1, 1), "{counts:?}");
        assert!(rig.whole(1, 2) && rig.whole(2, 3));
    }

    #[test]
    fn a_camera_that_has_them_no_more_is_not_waited_for() {
        let mut rig = Rig::new(NARROW, 4);
        let mut packets = NARROW.block(1);
        packets.remove(4);
        rig.give(&packets, 64, ms(1));
        rig.look(ms(3));
        let mut gone = NARROW.header(1, 3, 4);
        gone[..2].copy_from_slice(&0x800cu16.to_be_bytes());
        rig.give(&[gone], 64, ms(4));
        let end = rig.wait(ms(4));
        assert!(end < ms(30), "{end:?}");
        assert_eq!((rig.assembler.counts().incomplete, rig.assembler.counts().unavailable), (1, 1));
    }

    #[test]
    fn blocks_that_are_missing_altogether_are_asked_for_and_else_lost() {
        let mut rig = Rig::new(NARROW, 8);
        rig.give(&NARROW.block(1), 64, ms(1));
        rig.give(&NARROW.block(4), 64, ms(2));
        rig.look(ms(4));
        assert_eq!(rig.asked.iter().map(|asked| asked.block).collect::<Vec<_>>(), [2, 3]);
        rig.give(&NARROW.block(2), 64, ms(5));
        rig.wait(ms(5));
        assert!(rig.whole(0, 1) && rig.whole(1, 2) && rig.whole(3, 4));
        assert_eq!(rig.out[2], Err(1));
        // More of them than can be asked for.
        rig.give(&NARROW.block(40), 64, ms(900));
        assert_eq!(rig.out[4], Err(35));
        assert!(rig.whole(39, 40));
    }

    #[test]
    fn the_first_frames_of_a_stream_are_missed_and_others_begin_anywhere() {
        let mut rig = Rig::new(Model { resends: false, ..NARROW }, 4);
        rig.give(&NARROW.block(3), 64, ms(1));
        rig.wait(ms(1));
        assert!(rig.out[..2] == [Err(1), Err(1)] && rig.whole(2, 3));
        let mut rig = Rig::new(NARROW, 4);
        let blocks: Vec<_> = [65534, 65535, 0, 1].into_iter().flat_map(|block| NARROW.block(block)).collect();
        rig.give(&blocks, 64, ms(1));
        assert!([65534, 65535, 0, 1].into_iter().zip(0..).all(|(block, number)| rig.whole(number, block)));
    }

    #[test]
    fn a_camera_that_restarts_goes_on_with_the_next_number_and_what_its_rate_says_is_lost() {
        let mut rig = Rig::new(NARROW, 4);
        rig.give(&NARROW.block(1), 64, ms(1000));
        let mut cut = NARROW.block(2);
        cut.truncate(6);
        rig.give(&cut, 64, ms(1100));
        rig.assembler.begin(Stream { rate: Some(10.0), ..NARROW.stream() });
        rig.look(ms(1200));
        assert_eq!(rig.assembler.counts().incomplete, 1);
        rig.give(&NARROW.block(1), 64, ms(2100));
        assert_eq!(rig.out[2], Err(9), "ten tenths of a second");
        assert!(rig.whole(11, 1));
        assert_eq!(rig.assembler.counts().lost_while_away, 9);
    }

    #[test]
    fn a_number_far_from_all_others_is_believed_when_others_follow() {
        let mut rig = Rig::new(NARROW, 4);
        rig.give(&NARROW.block(1), 64, ms(1));
        rig.give(&NARROW.block(500)[..1], 64, ms(2));
        rig.give(&NARROW.block(2), 64, ms(2));
        assert!(rig.whole(1, 2));
        let packets = NARROW.block(600);
        rig.give(&packets, 64, ms(3));
        rig.look(ms(5));
        rig.give(&packets[..2], 64, ms(6));
        assert!(rig.out[2] == Err(597) && rig.whole(599, 600), "{:?}", rig.asked);
        // Back to the beginning, without a word.
        rig.give(&NARROW.block(1), 64, ms(7));
        rig.look(ms(9));
        rig.give(&NARROW.block(1)[..2], 64, ms(10));
        assert!(rig.whole(600, 1));
        assert_eq!(rig.assembler.counts().restarts, 1);
    }

    #[test]
    fn strangers_and_nonsense_are_counted() {
        let mut rig = Rig::new(NARROW, 4);
        let block = NARROW.block(1);
        rig.give(&block[..6], 64, ms(1));
        let long = [NARROW.header(1, 3, 7), vec![1; 101]].concat();
        let longer = [NARROW.header(1, 3, 7), vec![1; 5000]].concat();
        let beyond = [NARROW.header(1, 3, 11), vec![1; 100]].concat();
        let short = [NARROW.header(1, 3, 7), vec![1; 3]].concat();
        rig.give(&[long, longer, beyond, short, vec![], vec![0; 7], block[3].clone(), block[0].clone()], 64, ms(1));
        let stranger = |places: &mut [thalweg_frames::Place<'_>]| {
            places[0].front.copy_from_slice(&block[6][..8]);
            (places[0].length, places[0].from) = (108, Some(SocketAddr::from((Ipv4Addr::new(10, 0, 0, 6), 5000))));
            Ok::<_, Infallible>(1)
        };
        rig.intake.receive(&mut rig.assembler, Some(CAMERA), (ms(1), TaiNanos(0)), stranger).unwrap();
        rig.give(&block[6..], 64, ms(1));
        assert!(rig.whole(0, 1));
        let counts = rig.assembler.counts();
        assert_eq!((counts.malformed, counts.duplicate, counts.stranger), (6, 2, 1), "{counts:?}");
    }

    #[test]
    fn frames_that_are_too_long_or_of_another_kind_are_refused() {
        let mut rig = Rig::new(NARROW, 4);
        let mut packets = NARROW.block(1);
        packets[0][8 + 20..8 + 24].copy_from_slice(&26u32.to_be_bytes());
        rig.give(&packets, 64, ms(1));
        let mut packets = NARROW.block(2);
        packets[0][8 + 2..8 + 4].copy_from_slice(&6u16.to_be_bytes());
        rig.give(&packets, 64, ms(2));
        rig.wait(ms(2));
        assert_eq!(rig.out, [Err(1), Err(1)]);
        assert_eq!((rig.assembler.counts().oversize, rig.assembler.counts().unknown), (1, 1));
        rig.give(&NARROW.block(3), 64, ms(3));
        assert!(rig.whole(2, 3), "the buffers came back");
    }

    #[test]
    fn packets_may_be_shorter_than_was_asked_for() {
        let mut rig = Rig::new(NARROW, 4);
        rig.assembler.begin(Stream { packet: 160, ..NARROW.stream() });
        let packets: Vec<_> = (1..=3).flat_map(|block| NARROW.block(block)).collect();
        rig.give(&packets, 64, ms(1));
        assert!((0..3).all(|number| rig.whole(number, number + 1)), "{:?}", rig.assembler.counts());
    }

    #[test]
    fn without_a_buffer_frames_are_lost_and_later_ones_are_not() {
        let mut rig = Rig::new(NARROW, 1);
        let held = rig.assembler.free.pop().unwrap();
        assert!(!rig.assembler.has_room());
        rig.give(&NARROW.block(1), 64, ms(1));
        rig.wait(ms(1));
        assert_eq!(rig.out, [Err(1)]);
        assert!(rig.assembler.counts().unbuffered > 0);
        rig.assembler.post(held);
        rig.give(&NARROW.block(2), 64, ms(300));
        assert!(rig.whole(1, 2));
    }

    proptest! {
        /// Whatever is lost, repeated, reordered and sent again: each number comes out once, in order; what is said to be
        /// whole is; where all that is asked for comes, all is whole.
        #[test]
        fn every_number_comes_out_once(
            wide: bool,
            answers: bool,
            at_a_time in 1usize..70,
            chances in proptest::collection::vec((0u8..100, 0usize..12), 10 * 12),
        ) {
            let model = Model { wide, resends: true };
            let mut rig = Rig::new(model, 16);
            let all: Vec<_> = (1..=10).flat_map(|block| model.block(block)).collect();
            let mut sent: Vec<(usize, Vec<u8>)> = Vec::new();
            for (at, (packet, (chance, way))) in all.iter().zip(&chances).enumerate() {
                match chance {
                    0..20 => {}
                    20..30 => sent.extend([(at, packet.clone()), (at + way, packet.clone())]),
                    30..40 => sent.push((at + way, packet.clone())),
                    _ => sent.push((at, packet.clone())),
                }
            }
            sent.sort_by_key(|(at, _)| *at);
            let packets: Vec<_> = sent.into_iter().map(|(_, packet)| packet).collect();
            rig.give(&packets, at_a_time, ms(1));
            // The last block's end is known by the next one.
            rig.give(&model.block(11), at_a_time, ms(1));
            let (mut now, mut answered) = (ms(1), 0);
            while let Some(next) = rig.assembler.next_time(now) {
                now = next.max(now);
                prop_assert!(now < Duration::from_secs(3));
                rig.look(now);
                let asked: Vec<_> = rig.asked[answered..].to_vec();
                answered = rig.asked.len();
                for request in asked.iter().filter(|_| answers) {
                    let block = model.block(request.block);
                    let last = (request.last as usize).min(block.len() - 1);
                    rig.give(&block[request.first as usize..=last], at_a_time, now);
                }
            }
            let mut expected = 0;
            for out in &rig.out {
                match out {
                    Ok((number, bytes, status)) => {
                        prop_assert_eq!(*number, expected);
                        let content = Model::content(number + 1);
                        prop_assert!(*bytes == content || status.contains(Status::CORRUPT));
                        prop_assert!(bytes.iter().zip(&content).all(|(own, right)| own == right || *own == 0));
                        expected += 1;
                    }
                    Err(lost) => expected += lost,
                }
            }
            prop_assert_eq!(expected, 11);
            if answers {
                prop_assert!((0..11).all(|number| rig.whole(number, number + 1)), "{:?}", rig.assembler.counts());
            }
        }

        /// Any bytes from the camera itself: nothing panics, numbers go up, and buffers come back.
        #[test]
        fn any_packets_end_in_frames_or_losses(packets in proptest::collection::vec(
            (any::<bool>(), 0u64..70_000, 0u8..6, 0u32..20, proptest::collection::vec(any::<u8>(), 0..150)), 0..80)) {
            let mut rig = Rig::new(NARROW, 3);
            let mut now = ms(1);
            for (wide, block, kind, packet, body) in packets {
                let model = Model { wide, resends: true };
                rig.give(&[[model.header(block, kind, packet), body].concat()], 1, now);
                now += ms(1);
            }
            rig.wait(now + ms(500));
            let mut next = 0;
            for out in &rig.out {
                if let Ok((number, ..)) = out {
                    prop_assert_eq!(*number, next);
                }
                next += out.as_ref().map_or_else(|lost| *lost, |_| 1);
            }
            prop_assert_eq!(rig.assembler.free.len(), 3);
        }
    }
}
