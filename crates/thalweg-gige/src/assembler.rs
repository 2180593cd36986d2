//! Assembly of packets into frames in order, and of gaps into losses. Without IO.
//!
//! The assembler determines beforehand where the next expected packets belong ([`Plan`]), so that they can be received
//! there. Packets that come otherwise are moved. Missing packets of a block are requested again, and waited for; then
//! the frame is handed on as it is, with zeros in its gaps. Blocks without any packet are lost.

use crate::block::Block;
use crate::gvcp::Status as PacketStatus;
use crate::gvsp::{self, Header, Kind, Leader};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;
use thalweg_device::{
    Absence, Acquired, Buffer, CounterRules, DeviceClock, Filled, Frame, FrameCounter, FrameNumber, Reassembly, Trust,
    describe_gaps,
};
use thalweg_wire::{PayloadType, Status, TaiNanos};

/// Number of consecutive blocks that may be missing altogether and are still requested.
const MAX_UNSEEN_BLOCKS: u64 = 8;
/// Maximum number of frames before the next one for a packet to count as late; one of an earlier frame is stray.
const MAX_LATE_FRAMES: u64 = 64;
/// Highest number with which a stream that has just been opened begins: blocks before it are lost.
const MAX_FIRST_BLOCK: u64 = 8;
/// Highest rate of a camera whose rate is not known, in frames per second.
const MAX_FRAME_RATE_HZ: f64 = 1000.0;

/// Properties of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Stream {
    /// Length of a packet in bytes, with its IP header.
    pub packet: usize,
    /// Length of a frame in bytes, if all frames have the same.
    pub frame: Option<usize>,
    /// True if the camera sends packets again on request.
    pub resends: bool,
    /// Frames per second, if the camera's own clock determines them.
    pub rate: Option<f64>,
    /// Payload type of the frames.
    pub payload: PayloadType,
    /// Relation of the camera's clock to TAI.
    pub clock: DeviceClock,
    /// Status flags of every frame.
    pub status: Status,
}

/// A resend request: packets that the camera is to send again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Number of the block, as the camera counts.
    pub block: u64,
    /// True if block numbers have 64 bits.
    pub wide: bool,
    /// Number of the first packet.
    pub first: u32,
    /// Number of the last packet, inclusive.
    pub last: u32,
}

/// Places for the packets that should come next.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) buffers: Vec<Planned>,
    /// One place for each packet, in the order in which the packets should come.
    pub(crate) spots: Vec<Spot>,
    /// Length of a payload packet's payload, in bytes.
    pub(crate) piece: usize,
}

#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) buffer: Buffer,
    /// The block that the buffer is for; `None` until a packet of a new block has come.
    number: Option<u64>,
}

/// A place for one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spot {
    /// Outside the frames: a leader or a trailer should come.
    Aside,
    /// The payload of this packet, in the plan's buffer with the index `planned`.
    Slot { planned: usize, packet: u32 },
}

/// A packet that came and was admitted.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) header: Header,
    pub(crate) number: u64,
    pub(crate) body: Body,
    pub(crate) length: usize,
}

/// Place of the bytes after a packet's header.
#[derive(Debug)]
pub(crate) enum Body {
    /// Already in the slot.
    InPlace,
    /// In the memory beside the slots, at this range.
    Aside(Range<usize>),
}

/// Assembles frames from packets.
#[derive(Debug)]
pub struct Assembler {
    size: usize,
    patience: Duration,
    stream: Stream,
    /// Length of a payload packet's payload in bytes; the last of a frame may be shorter.
    piece: usize,
    /// True once a packet has confirmed `piece`.
    learned: bool,
    wide: bool,
    free: Vec<Buffer>,
    blocks: Reassembly<Block>,
    counter: FrameCounter,
    /// One past the highest block number seen.
    front: u64,
    /// True once the first block has fixed where the stream's own numbers begin.
    begun: bool,
    /// The frame that is whole but for its trailer, which nothing needs.
    trailer_due: Option<u64>,
    requests: VecDeque<Request>,
    /// Time at which the last packet of a frame came before the stream was opened again.
    before: Option<Duration>,
    latest: Option<Duration>,
    /// The camera's absence, while it is away.
    absent: Option<Absence>,
    /// Time of the first [`request_missing_packets`](Self::request_missing_packets) since the stream was opened.
    opened: Option<Duration>,
    /// True if the camera was away before its first packet.
    was_silent: bool,
    /// Blocks below this number that are not in `blocks` are lost.
    lost_until: u64,
    /// Kind of frame that the camera sends and this crate cannot receive.
    refused_kind: Option<u16>,
    counts: Counts,
}

impl Assembler {
    /// Creates an assembler of frames of at most `size` bytes. `patience`: time after which missing packets are given
    /// up.
    pub fn new(size: usize, patience: Duration) -> Self {
        let stream = Stream {
            packet: 1500,
            frame: None,
            resends: false,
            rate: None,
            payload: PayloadType::RAW,
            clock: DeviceClock::NONE,
            status: Status::empty(),
        };
        Self {
            size,
            patience,
            piece: payload_capacity_bytes(&stream, false),
            stream,
            learned: false,
            wide: false,
            free: Vec::new(),
            blocks: Reassembly::default(),
            counter: FrameCounter::new(CounterRules::new(64, Trust::CAMERA)),
            front: 0,
            begun: false,
            trailer_due: None,
            requests: VecDeque::new(),
            before: None,
            latest: None,
            absent: None,
            opened: None,
            was_silent: false,
            lost_until: 0,
            refused_kind: None,
            counts: Counts::default(),
        }
    }

    /// Takes a buffer for a frame.
    pub fn post_buffer(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }

    /// Begins a stream, for the first time or again. Blocks that are not whole by now are given up.
    pub fn begin_stream(&mut self, stream: Stream) {
        for (_, block) in self.blocks.frames_mut() {
            block.given_up |= !block.is_whole();
        }
        self.counts.streams += 1;
        self.piece = payload_capacity_bytes(&stream, self.wide);
        self.counter.set_frame_rate(stream.rate);
        self.stream = stream;
        self.learned = false;
        self.begun = false;
        self.opened = None;
        self.trailer_due = None;
        self.requests.clear();
        self.before = self.latest;
    }

    /// Sets the camera's clock and its status from now on.
    pub fn set_clock(&mut self, clock: DeviceClock, status: Status) {
        (self.stream.clock, self.stream.status) = (clock, status);
    }

    /// Confirms the numbers from `first` on: see [`FrameCounter::confirm_numbers`].
    pub fn numbers_agree(&mut self, first: u64) {
        self.counter.confirm_numbers(first);
    }

    /// Returns true if a new packet would find a place, or a packet is waited for.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty() || self.blocks.frames().any(|(_, block)| !block.is_over())
    }

    /// Returns true if the stream's packets have the long header.
    pub fn has_wide_header(&self) -> bool {
        self.wide
    }

    /// Returns the length of a payload packet's payload, in bytes.
    pub fn piece_bytes(&self) -> usize {
        self.piece
    }

    /// Lays out where the next packets belong, `most` at most.
    pub(crate) fn plan_next_packets(&mut self, most: usize, plan: &mut Plan) {
        plan.piece = self.piece;
        plan.spots.clear();
        let last = self.stream.frame.unwrap_or(self.size).min(self.size).div_ceil(self.piece);
        let last = u32::try_from(last).unwrap_or(u32::MAX);
        if self.trailer_due.is_some() {
            plan.spots.push(Spot::Aside);
        }
        // The newest block is continued; then new ones begin.
        if let Some((number, block)) = self.blocks.frames_mut().next_back()
            && !block.ended
            && !block.is_over()
            && let Some(buffer) = block.buffer.take()
        {
            plan.buffers.push(Planned { buffer, number: Some(*number) });
            let first = if block.ticks.is_none() && block.packet_count() == 0 { 0 } else { block.next_packet() };
            plan.lay_out_packets(first, last, most);
        }
        while plan.spots.len() < most {
            let Some(buffer) = self.free.pop() else { break };
            plan.buffers.push(Planned { buffer, number: None });
            plan.lay_out_packets(0, last, most);
        }
        // No buffer is left: further packets are received all the same, since they may be ones that are waited for.
        plan.spots.resize(most, Spot::Aside);
    }

    /// Returns the number of a packet's block if the packet is waited for; else counts it and returns `None`. A new
    /// block gets the plan's next buffer.
    pub(crate) fn admit_packet(
        &mut self,
        header: &Header,
        length: usize,
        plan: &mut Plan,
        now: Duration,
    ) -> Option<u64> {
        let body = length.checked_sub(Header::header_bytes(header.wide))?;
        self.counts.packets += 1;
        let without = header.status.is_error() && header.status != PacketStatus::OVERRUN;
        self.counts.unavailable += u64::from(without);
        if header.kind == Kind::Trailer {
            self.trailer_due = None;
        }
        let number = self.find_frame_number(header, now)?;
        if number >= self.front {
            self.trailer_due = None;
            self.extend_front(number, now);
        }
        let block = self.get_or_begin_block(number, header.block, now);
        if block.is_over() {
            self.counts.late += u64::from(header.kind != Kind::Trailer);
            return None;
        }
        if without {
            if header.status.is_gone() {
                block.count_unavailable();
            }
            return None;
        }
        self.learn_piece_length(header, body);
        if self.blocks.get_mut(number).is_some_and(|block| block.buffer.is_none()) && !plan.has_buffer_for(number) {
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

    /// Gives back the buffers of a plan whose packets have all been admitted: to their blocks, or to the free ones.
    pub(crate) fn return_buffers(&mut self, plan: &mut Plan) {
        // In reverse, so that the buffer taken last is on top again.
        for Planned { buffer, number } in plan.buffers.drain(..).rev() {
            let owner = number.and_then(|number| self.blocks.get_mut(number)).filter(|block| block.buffer.is_none());
            match owner {
                Some(block) => block.buffer = Some(buffer),
                None => self.free.push(buffer),
            }
        }
    }

    /// Stores the content of an admitted packet.
    pub(crate) fn store_packet(&mut self, arrived: &Arrived, aside: &[u8], now: Duration, date: TaiNanos) {
        let Arrived { header, number, body, length } = arrived;
        if header.kind == Kind::Trailer || self.trailer_due.is_some_and(|due| *number > due) {
            self.trailer_due = None;
        }
        let size = self.size;
        let Some(block) = self.blocks.get_mut(*number) else { return };
        if block.is_over() {
            self.counts.late += u64::from(header.kind != Kind::Trailer);
            return;
        }
        self.counts.resent += u64::from(header.status == PacketStatus::RESENT);
        block.overrun |= header.status == PacketStatus::OVERRUN;
        let bytes = match body {
            Body::InPlace => &[][..],
            Body::Aside(range) => &aside[range.clone()],
        };
        let taken = match header.kind {
            Kind::Leader => store_leader(block, bytes, size, &mut self.refused_kind),
            Kind::Trailer => store_trailer(block, header.packet, bytes, size),
            Kind::Payload => store_payload(block, header.packet, body, bytes, *length, size),
            Kind::Other(_) => {
                block.refused = true;
                Err(PacketError::Unknown)
            }
        };
        match taken {
            Ok(copied) => {
                block.latest = now;
                if header.kind == Kind::Payload && !block.ended && block.is_whole() {
                    self.trailer_due = Some(*number);
                }
                self.latest = Some(now);
                self.counts.copied += u64::from(copied);
                if header.kind == Kind::Leader
                    && self.stream.clock.offset.is_none()
                    && let Some(ticks) = block.ticks
                {
                    self.stream.clock.set_offset(ticks, date);
                }
            }
            Err(PacketError::Duplicate) => self.counts.duplicate += 1,
            Err(PacketError::Malformed) => self.counts.malformed += 1,
            Err(PacketError::Oversize) => self.counts.oversize += 1,
            Err(PacketError::Unknown) => self.counts.unknown += 1,
        }
    }

    /// Counts a packet of another sender.
    pub(crate) fn count_stranger(&mut self) {
        self.counts.stranger += 1;
    }

    /// Counts a datagram that is no packet.
    pub(crate) fn count_malformed(&mut self) {
        self.counts.malformed += 1;
    }

    /// Returns the frame number of a packet's block; `None` if the number is not credible.
    fn find_frame_number(&mut self, header: &Header, now: Duration) -> Option<u64> {
        // A packet of unknown kind determines no numbers: neither the first one nor a restart.
        let is_known = !matches!(header.kind, Kind::Other(_));
        if !self.begun && is_known {
            return self.first_frame_number(header, now);
        }
        if header.wide != self.wide || !self.counter.has_begun() {
            self.counts.stray += 1;
            return None;
        }
        let (restarts, next) = (self.counter.restart_count(), self.blocks.next_number());
        let number = match is_known {
            true => self.counter.accept_count(header.block, next, now),
            false => self.counter.expected_number(header.block, next).map_or(FrameNumber::Stray, FrameNumber::At),
        };
        if self.counter.restart_count() > restarts {
            self.counts.restarts += 1;
            tracing::warn!(block = header.block, "the camera restarted its counter: losses in between are unknown");
        }
        match number {
            FrameNumber::At(number) if number >= next => Some(number),
            FrameNumber::At(number) if next - number <= MAX_LATE_FRAMES => {
                self.counts.late += u64::from(header.kind != Kind::Trailer);
                None
            }
            _ => {
                self.counts.stray += 1;
                None
            }
        }
    }

    /// Returns true if a stream begins with this block, rather than with earlier ones that were lost: it is among the
    /// first, which are counted, or the camera cannot have reached it since its start. False if the camera was away
    /// before its first packet: how many blocks it sent before it restarted is unknown.
    fn may_be_first_block(&self, block: u64, now: Duration) -> bool {
        let since = self.opened.map_or(Duration::ZERO, |opened| now.saturating_sub(opened));
        let most = self.stream.rate.unwrap_or(MAX_FRAME_RATE_HZ) * since.as_secs_f64() * 1.1;
        let may = !self.was_silent && (block <= MAX_FIRST_BLOCK || block as f64 > MAX_FIRST_BLOCK as f64 + most);
        if !may {
            tracing::warn!(
                block,
                "earlier frames of the camera may have been lost before the first received one: \
                event numbers are uncertain"
            );
        }
        may
    }

    /// Returns the frame number of the first block of a stream.
    fn first_frame_number(&mut self, header: &Header, now: Duration) -> Option<u64> {
        if header.kind == Kind::Payload && header.block == 0 && !header.wide {
            // A test packet has no block.
            self.counts.stray += 1;
            return None;
        }
        let early = if (1..=MAX_FIRST_BLOCK).contains(&header.block) { header.block - 1 } else { 0 };
        let absent = self.absent.take().or(self.before.map(|since| Absence { since, next: self.front }));
        let front = absent.map_or(self.front, |absent| absent.next);
        let due = absent.map_or(front, |absent| absent.expected_number(self.stream.rate, now));
        let is_certain = match absent {
            Some(absent) => absent.is_certain(self.stream.rate, now),
            None => self.may_be_first_block(header.block, now),
        };
        self.counts.lost_while_away += due.saturating_sub(self.front);
        self.wide = header.wide;
        if !self.learned {
            self.piece = payload_capacity_bytes(&self.stream, self.wide);
        }
        let number = front.saturating_add(early).max(due).max(self.front);
        // Block numbers of 16 bits begin at 1 and go from 65535 to 1: 0 is no block (GigE Vision 2.x, section 11.2).
        let (bits, lowest) = if header.wide { (64, 0) } else { (16, 1) };
        self.counter.set_counter_width(bits, lowest);
        self.counter.begin_at_count(header.block, number, is_certain, now);
        self.begun = true;
        if due > front.saturating_add(early) {
            // The frames before it are not available any more.
            self.front = number;
        }
        Some(number)
    }

    /// Marks the camera as away with no packets coming: the frames that it would have sent by now, by its rate, are
    /// lost.
    pub fn note_absence(&mut self, now: Duration) {
        let Some(latest) = self.latest else {
            self.was_silent = true;
            return;
        };
        let absent = *self.absent.get_or_insert(Absence { since: latest, next: self.front });
        let until = absent.expected_number(self.stream.rate, now);
        self.counts.lost_while_away += until.saturating_sub(self.front);
        self.front = self.front.max(until);
        self.lost_until = self.front;
    }

    /// Extends the range up to a block with the highest number so far: the blocks between may still come.
    fn extend_front(&mut self, number: u64, now: Duration) {
        let from = std::mem::replace(&mut self.front, number.saturating_add(1));
        if number - from > MAX_UNSEEN_BLOCKS {
            return;
        }
        for missing in from..number {
            if let Some(id) = self.counter.count_of_number(missing) {
                self.get_or_begin_block(missing, id, now);
            }
        }
    }

    /// Returns the block with this frame number, which begins if it has not.
    fn get_or_begin_block(&mut self, number: u64, id: u64, now: Duration) -> &mut Block {
        let (guess, piece) = (self.stream.frame, self.piece);
        self.blocks.get_or_begin(number, || Block::new(id, piece, guess, now))
    }

    /// Learns the camera's packet length: a camera may send fewer bytes in a packet than it was allowed to, but always
    /// equally many.
    fn learn_piece_length(&mut self, header: &Header, body: usize) {
        if self.learned || header.kind != Kind::Payload || header.packet == 0 || body == 0 {
            return;
        }
        let all = self.stream.frame.unwrap_or(self.size);
        let is_last = (header.packet as usize).checked_mul(body).is_none_or(|end| end >= all);
        if body == self.piece {
            self.learned = true;
        } else if (self.piece / 2..self.piece).contains(&body) && !is_last {
            tracing::info!(bytes = body, "the camera's packets have fewer bytes of payload than {}", self.piece);
            self.learned = true;
            self.piece = body;
            for (_, block) in self.blocks.frames_mut().filter(|(_, block)| block.packet_count() == 0) {
                block.piece = body;
            }
        }
    }

    /// Gives up packets that cannot come any more, and requests those that can. `empty`: time until which all packets
    /// that came have been received.
    pub fn request_missing_packets(&mut self, now: Duration, empty: Duration) {
        self.opened.get_or_insert(now);
        let Self { blocks, requests, stream, patience, wide, counts, .. } = self;
        let count = blocks.frames().len();
        for (at, (_, block)) in blocks.frames_mut().enumerate() {
            let (id, is_overtaken) = (block.id, at + 1 < count);
            block.request_missing(is_overtaken, stream.resends, *patience, (now, empty), |first, last| {
                counts.requests += 1;
                counts.requested += u64::from(last - first) + 1;
                requests.push_back(Request { block: id, wide: *wide, first, last });
            });
        }
    }

    /// Returns the next resend request for the camera.
    pub fn next_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// Returns the next frame or loss in order; `None` if it is not decided yet.
    pub fn next_acquired(&mut self) -> Option<Acquired> {
        let oldest = self.blocks.oldest();
        let number = oldest.map_or(self.lost_until, |(number, _)| number);
        if number > self.blocks.next_number() {
            // The frames between are not waited for.
            self.counts.lost += number - self.blocks.next_number();
            return Some(self.blocks.lose_until(number));
        }
        oldest.filter(|(_, block)| block.is_over())?;
        let (number, block) = self.blocks.take_oldest()?;
        Some(self.finish_block(number, block))
    }

    /// Returns a block as a frame, whole or with gaps; or as a loss.
    fn finish_block(&mut self, number: u64, block: Block) -> Acquired {
        let whole = block.is_whole();
        let Block { ticks, overrun, id, piece, copied, .. } = block;
        let count = block.packet_count();
        let length = block.frame_length_bytes().or(block.guess).filter(|length| *length <= self.size);
        let gaps = length.filter(|_| !whole).map(|length| block.missing_byte_ranges(length)).unwrap_or_default();
        let some = whole || count > 0 && !block.refused;
        let (buffer, len) = match (block.buffer, length) {
            (Some(buffer), Some(len)) if some => (buffer, len),
            (buffer, _) => {
                self.free.extend(buffer);
                self.counts.lost += 1;
                return self.blocks.lose_until(number.saturating_add(1));
            }
        };
        let mut status = self.stream.status;
        status.set(Status::UNCERTAIN, !self.counter.is_certain(number));
        if whole {
            self.counts.frames += 1;
        } else if gaps.is_empty() {
            self.counts.without_leader += 1;
        } else {
            self.counts.incomplete += 1;
            self.counts.missing += gaps.iter().map(|gap| (gap.end - gap.start).div_ceil(piece as u64)).sum::<u64>();
            tracing::warn!(
                frame = number,
                block = id,
                "incomplete: {} did not arrive and are zero",
                describe_gaps(&gaps, len)
            );
        }
        if overrun {
            self.counts.overruns += 1;
            status |= Status::TRUNCATED;
        }
        let timestamp = ticks.and_then(|ticks| self.stream.clock.time_of_ticks(ticks));
        let filled = Filled { payload_type: self.stream.payload, status, window: 0, timestamp };
        let frame = Frame { buffer, number, len, filled, crc: None, copied };
        Acquired::Frame(self.blocks.hand_on(frame, &gaps))
    }

    /// Returns the time of the next necessary look if no packet comes.
    pub fn next_deadline(&self, empty: Duration) -> Option<Duration> {
        if self.blocks.oldest().is_some_and(|(number, first)| number > self.blocks.next_number() || first.is_over()) {
            return Some(Duration::ZERO);
        }
        self.blocks.frames().filter_map(|(_, block)| block.next_deadline(self.patience, empty)).min()
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

impl Plan {
    /// Lays out places in the last buffer for the packets of one block from `first` on: its leader, payload up to
    /// `last`, its trailer.
    fn lay_out_packets(&mut self, first: u32, last: u32, most: usize) {
        let planned = self.buffers.len() - 1;
        for packet in first..=last.saturating_add(1) {
            if self.spots.len() == most {
                return;
            }
            let is_payload = (1..=last).contains(&packet);
            self.spots.push(if is_payload { Spot::Slot { planned, packet } } else { Spot::Aside });
        }
    }

    fn has_buffer_for(&self, number: u64) -> bool {
        self.buffers.iter().any(|planned| planned.number == Some(number))
    }

    /// Returns true if the payload of a packet was received in its place: `body` bytes, of `piece` in a full payload
    /// packet.
    pub(crate) fn is_received_in_place(
        &self,
        spot: Spot,
        number: u64,
        header: &Header,
        body: usize,
        piece: usize,
    ) -> bool {
        let Spot::Slot { planned, packet } = spot else { return false };
        header.kind == Kind::Payload
            && packet == header.packet
            && self.buffers.get(planned).is_some_and(|planned| planned.number == Some(number))
            && (packet == 1 || piece == self.piece)
            && body <= piece
    }
}

/// Reason for not taking a packet.
enum PacketError {
    Duplicate,
    Malformed,
    Oversize,
    Unknown,
}

fn store_leader(block: &mut Block, bytes: &[u8], size: usize, refused: &mut Option<u16>) -> Result<bool, PacketError> {
    if block.ticks.is_some() {
        return Err(PacketError::Duplicate);
    }
    let leader = Leader::parse_leader_body(bytes).ok_or(PacketError::Malformed)?;
    if !leader.known {
        block.refused = true;
        if refused.replace(leader.kind) != Some(leader.kind) {
            tracing::warn!(
                "the camera sends {}, which is not supported: set it to send single images (see its features)",
                gvsp::frame_kind_name(leader.kind)
            );
        }
        return Err(PacketError::Unknown);
    }
    let length = leader.bytes.map(usize::try_from);
    match length {
        Some(Ok(length)) if length <= size => block.bytes = Some(length),
        // The trailer determines the length.
        None => {}
        Some(_) => {
            block.refused = true;
            return Err(PacketError::Oversize);
        }
    }
    block.add_leader(leader.ticks);
    block.row = leader.row;
    Ok(false)
}

fn store_trailer(block: &mut Block, packet: u32, bytes: &[u8], size: usize) -> Result<bool, PacketError> {
    if block.ended {
        return Err(PacketError::Duplicate);
    }
    let last = packet.checked_sub(1).ok_or(PacketError::Malformed)?;
    if last as usize > size.div_ceil(block.piece) {
        return Err(PacketError::Malformed);
    }
    // Fewer rows than were announced, if a line camera stopped.
    if let (Some(rows), Some(length), true) = (gvsp::trailer_height(bytes), block.bytes, block.row > 0) {
        let fewer = block.row.checked_mul(rows.into()).and_then(|fewer| usize::try_from(fewer).ok());
        block.bytes = Some(fewer.map_or(length, |fewer| if rows > 0 { fewer.min(length) } else { length }));
    }
    block.add_trailer(last);
    Ok(false)
}

fn store_payload(
    block: &mut Block,
    packet: u32,
    body: &Body,
    bytes: &[u8],
    length: usize,
    size: usize,
) -> Result<bool, PacketError> {
    let piece = block.piece;
    let begin =
        (packet as usize).checked_sub(1).and_then(|before| before.checked_mul(piece)).ok_or(PacketError::Malformed)?;
    let limit = block.bytes.unwrap_or(size);
    if length == 0 || begin >= limit || length > piece {
        return Err(PacketError::Malformed);
    }
    if block.has_packet(packet) {
        return Err(PacketError::Duplicate);
    }
    // Bytes after the frame's end are padding.
    let end = begin.saturating_add(length).min(limit);
    let shorter = length < piece;
    if shorter && block.bytes.is_some_and(|all| end < all) {
        return Err(PacketError::Malformed);
    }
    let Some(buffer) = &mut block.buffer else { return Err(PacketError::Malformed) };
    let copied = matches!(body, Body::Aside(_));
    if copied {
        let place = buffer.payload_mut().get_mut(begin..end).ok_or(PacketError::Oversize)?;
        place.copy_from_slice(bytes.get(..end - begin).ok_or(PacketError::Malformed)?);
        block.copied += end - begin;
    }
    block.add_payload_packet(packet, end, shorter);
    Ok(copied)
}

/// Returns the number of payload bytes that a packet has room for.
fn payload_capacity_bytes(stream: &Stream, wide: bool) -> usize {
    stream.packet.saturating_sub(gvsp::IP_UDP_HEADER_BYTES + Header::header_bytes(wide)).max(1)
}

/// Counters of packets and frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that came from the camera.
    pub packets: u64,
    /// Frames that were whole.
    pub frames: u64,
    /// Packets that were sent again on request.
    pub resent: u64,
    /// Resend requests sent.
    pub requests: u64,
    /// Packets that were requested again, each time counted.
    pub requested: u64,
    /// Packets that the camera reported as not available.
    pub unavailable: u64,
    /// Frames with zeros where packets did not come.
    pub incomplete: u64,
    /// Packets missing in incomplete frames.
    pub missing: u64,
    /// Frames whose leader did not come: only their time is missing.
    pub without_leader: u64,
    /// Frames of which no packet came, or no useful one.
    pub lost: u64,
    /// Frames that the camera should have sent while it was away, by its rate.
    pub lost_while_away: u64,
    /// Frames for which the camera reported more data than it could send.
    pub overruns: u64,
    /// Packets that were copied to their place.
    pub copied: u64,
    /// Packets that had come before.
    pub duplicate: u64,
    /// Packets of frames that were already handed on or given up.
    pub late: u64,
    /// Packets with a number far from all others.
    pub stray: u64,
    /// Packets that did not have the expected form.
    pub malformed: u64,
    /// Leaders of frames longer than `size`.
    pub oversize: u64,
    /// Packets of a kind that cannot be received.
    pub unknown: u64,
    /// Packets for which there was no buffer.
    pub unbuffered: u64,
    /// Packets of another sender.
    pub stranger: u64,
    /// Number of times that the camera restarted its count.
    pub restarts: u64,
    /// Number of times that the stream was opened.
    pub streams: u64,
}

impl Counts {
    /// Returns the counters with their names.
    pub fn named_counts(&self) -> [(&'static str, u64); 23] {
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
mod tests;
