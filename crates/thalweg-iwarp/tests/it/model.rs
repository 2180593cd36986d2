//! Random requests of both sides at once, over lower layers that cut and reorder, beside a plain model: what memory is
//! like in the end, which completions and messages there are, and in which order.

use crate::ends::{BASE, End, OPEN, OWN, range, remote, request};
use proptest::prelude::*;
use std::collections::VecDeque;
use thalweg_iwarp::mpa::{FpduDecoder, FpduEncoder};
use thalweg_iwarp::{
    Access, AtomicOperation, Completion, Event, Failure, FirstMessage, MemoryRange, Operation, OperationKind,
    OutgoingSegment, Payload, ReceiveBuffer, ReceiveOutcome, Received, ReceivedKind, RemoteAddress, Stag,
    StreamSettings, WorkRequest,
};

/// Zones of the memory that the peer may access: constant, written by the peer, changed by atomics.
const WRITTEN: u64 = 16 << 10;
const ATOMICS: u64 = 48 << 10;
/// Zones of a side's own memory: sources, results, receives.
const RESULTS: u64 = 16 << 10;
const RECEIVES: u64 = 40 << 10;
const RECEIVE_BYTES: u32 = 700;
const MAX_REQUESTS: usize = 24;
/// Segments that may overtake a missing one.
const WINDOW: usize = 32;

/// A random request, without its places.
#[derive(Debug, Clone)]
struct Draft {
    kind: DraftKind,
    length: u32,
    /// Number of ranges of own memory.
    ranges: u32,
    inline: bool,
    fence: bool,
    solicited: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum DraftKind {
    Write,
    WriteWithImmediate,
    Read,
    /// Read of what the last Write has written.
    ReadBack,
    Send,
    SendWithInvalidate,
    SendWithImmediate,
    Immediate,
    FetchAdd,
    CompareSwap,
    Local,
    /// A Write that the peer refuses.
    Refused,
}

fn draft(kind: impl Strategy<Value = DraftKind>) -> impl Strategy<Value = Draft> {
    let length = prop_oneof![Just(0), 1..700_u32, 100..130_u32];
    (kind, length, 1..4_u32, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(kind, length, ranges, inline, fence, solicited)| Draft { kind, length, ranges, inline, fence, solicited },
    )
}

fn drafts() -> impl Strategy<Value = Vec<Draft>> {
    let kind = proptest::sample::select(vec![
        DraftKind::Write,
        DraftKind::WriteWithImmediate,
        DraftKind::Read,
        DraftKind::ReadBack,
        DraftKind::Send,
        DraftKind::SendWithInvalidate,
        DraftKind::SendWithImmediate,
        DraftKind::Immediate,
        DraftKind::FetchAdd,
        DraftKind::CompareSwap,
        DraftKind::Local,
    ]);
    proptest::collection::vec(draft(kind), 0..MAX_REQUESTS)
}

/// Random numbers for the schedule (splitmix64).
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 31)) >> 16) as usize % limit
    }
}

/// One side with the model of what it will see.
#[derive(Debug)]
struct Side {
    end: End,
    to_post: VecDeque<WorkRequest>,
    receives: VecDeque<ReceiveBuffer>,
    completions: Vec<Completion>,
    messages: Vec<Received>,
    /// Memory in the end: the peer's and the own zones.
    open: Vec<u8>,
    own: Vec<u8>,
    // Places for the next of each kind.
    next_written: u64,
    next_result: u64,
    last_written: Option<(u64, u32)>,
    /// Length of the Write that the next request follows.
    before: Option<u32>,
}

impl Side {
    fn new(settings: &StreamSettings) -> Self {
        let end = End::new(settings.clone());
        let (open, own) = (end.memory.regions[&OPEN].bytes.clone(), end.memory.regions[&OWN].bytes.clone());
        Self {
            end,
            to_post: VecDeque::new(),
            receives: VecDeque::new(),
            completions: Vec::new(),
            messages: Vec::new(),
            open,
            own,
            next_written: WRITTEN,
            next_result: RESULTS,
            last_written: None,
            before: (settings.first_message == FirstMessage::ReadyByWrite).then_some(0),
        }
    }

    fn source(&self, draft: &Draft, from: u64) -> (Payload, Vec<u8>) {
        let ranges = cut(OWN, from, draft.length, draft.ranges);
        let bytes = self.own[from as usize..][..draft.length as usize].to_vec();
        let data = if draft.inline { Payload::Inline(bytes.clone()) } else { Payload::Gathered(ranges) };
        (data, bytes)
    }

    fn result(&mut self, length: u32) -> u64 {
        let at = self.next_result;
        self.next_result += u64::from(length).next_multiple_of(8);
        at
    }
}

/// Cuts a range into several.
fn cut(stag: Stag, from: u64, length: u32, ranges: u32) -> Vec<MemoryRange> {
    let bounds: Vec<u32> = (0..=ranges).map(|i| length * i / ranges).collect();
    bounds.windows(2).map(|pair| range(stag, from + u64::from(pair[0]), pair[1] - pair[0])).collect()
}

/// Plans one request of `side` to `peer`: what is posted, and what comes of it.
fn plan(side: &mut Side, peer: &mut Side, draft: &Draft, id: u64) {
    let mut length = draft.length;
    let immediate = [id as u8; 8];
    let mut message = None;
    let before = side.before;
    side.before = match draft.kind {
        DraftKind::Write => Some(length),
        DraftKind::Local => before,
        _ => None,
    };
    let (kind, operation) = match draft.kind {
        DraftKind::Write | DraftKind::WriteWithImmediate => {
            let with = draft.kind == DraftKind::WriteWithImmediate;
            let (data, bytes) = side.source(draft, id * 10);
            let at = side.next_written;
            side.next_written += u64::from(length);
            side.last_written = Some((at, length));
            peer.open[at as usize..][..bytes.len()].copy_from_slice(&bytes);
            if with {
                message = Some((ReceivedKind::Immediate(immediate, Some(length)), 0, Vec::new()));
            }
            let immediate = with.then_some(immediate);
            (OperationKind::Write, Operation::Write { remote: remote(at), data, immediate })
        }
        DraftKind::Read | DraftKind::ReadBack => {
            let from = match side.last_written {
                Some((at, written)) if draft.kind == DraftKind::ReadBack => {
                    length = length.min(written);
                    at
                }
                _ => 11 * id,
            };
            let at = side.result(length);
            side.own[at as usize..][..length as usize].copy_from_slice(&peer.open[from as usize..][..length as usize]);
            let into = cut(OWN, at, length, draft.ranges);
            (OperationKind::Read, Operation::Read { remote: remote(from), into })
        }
        DraftKind::Send | DraftKind::SendWithInvalidate | DraftKind::SendWithImmediate => {
            let (data, bytes) = side.source(draft, id * 7);
            let stag = Stag(0x7000 + id as u32);
            let (kind, operation) = match draft.kind {
                DraftKind::Send => (ReceivedKind::Send, Operation::Send { data, invalidate: None }),
                DraftKind::SendWithImmediate => {
                    let immediate = [id as u8; 4];
                    (ReceivedKind::SendWithImmediate(immediate), Operation::SendWithImmediate { data, immediate })
                }
                _ => {
                    peer.end.memory.register(stag, 0, vec![0; 8], &[Access::RemoteRead]);
                    (ReceivedKind::SendWithInvalidate(stag), Operation::Send { data, invalidate: Some(stag) })
                }
            };
            message = Some((kind, length, bytes));
            (OperationKind::Send, operation)
        }
        DraftKind::Immediate => {
            length = 0;
            message = Some((ReceivedKind::Immediate(immediate, before), 0, Vec::new()));
            (OperationKind::Immediate, Operation::Immediate(immediate))
        }
        DraftKind::FetchAdd | DraftKind::CompareSwap => {
            length = 8;
            let place = ATOMICS as usize + draft.length as usize % 4 * 8;
            let original: [u8; 8] = peer.open[place..][..8].try_into().unwrap();
            let value = u64::from_ne_bytes(original);
            let (kind, operation) = if draft.kind == DraftKind::FetchAdd {
                let mask = if draft.inline { 0x8080_8080_8080_8080 } else { 0 };
                (OperationKind::FetchAdd, AtomicOperation::FetchAdd { add: value | 3, mask })
            } else {
                let compare = if draft.inline { value } else { value ^ 1 };
                let (compare_mask, swap_mask) = (0xffff, u64::from(draft.ranges) << 20);
                (
                    OperationKind::CompareSwap,
                    AtomicOperation::CompareSwap { compare, compare_mask, swap: !0, swap_mask },
                )
            };
            peer.open[place..][..8].copy_from_slice(&operation.apply(value).to_ne_bytes());
            let at = side.result(8);
            side.own[at as usize..][..8].copy_from_slice(&original);
            (kind, Operation::Atomic { remote: remote(place as u64), operation, into: range(OWN, at, 8) })
        }
        DraftKind::Local => {
            length = 0;
            (OperationKind::Local, Operation::Local)
        }
        DraftKind::Refused => {
            let nowhere = RemoteAddress { stag: Stag(0xbad), offset: BASE };
            let data = Payload::Inline(vec![0; 300]);
            (OperationKind::Write, Operation::Write { remote: nowhere, data, immediate: None })
        }
    };
    if let Some((kind, bytes, data)) = message {
        expect_message(peer, Received { kind, bytes, solicited: draft.solicited }, &data, draft.ranges);
    }
    side.completions.push(Completion { id, kind, bytes: length, result: Ok(()) });
    side.to_post.push_back(WorkRequest { fence: draft.fence, solicited: draft.solicited, ..request(id, operation) });
}

/// Plans a message to a side: its receive, and the memory in the end.
fn expect_message(side: &mut Side, message: Received, data: &[u8], ranges: u32) {
    let id = side.messages.len() as u64;
    let at = RECEIVES + id * u64::from(RECEIVE_BYTES);
    side.own[at as usize..][..data.len()].copy_from_slice(data);
    side.receives.push_back(ReceiveBuffer { id, into: cut(OWN, at, RECEIVE_BYTES, ranges) });
    side.messages.push(message);
}

/// Lower layer of one direction.
trait Channel {
    /// Takes a segment to send.
    fn send(&mut self, sequence: u64, segment: &[u8]);
    /// Has a side receive something, and returns the sequence number below which all segments are accepted.
    fn deliver(&mut self, to: &mut End, dice: &mut Dice) -> u64;
    fn is_idle(&self) -> bool;
}

/// MPA over a stream of bytes that arrive in pieces.
struct ByteStream {
    encoder: FpduEncoder,
    decoder: FpduDecoder,
    bytes: VecDeque<u8>,
    sent: u64,
}

impl Channel for ByteStream {
    fn send(&mut self, sequence: u64, segment: &[u8]) {
        let mut fpdu = Vec::new();
        let (head, rest) = segment.split_at(segment.len() / 2);
        self.encoder.append(head, &[rest], &mut fpdu);
        self.bytes.extend(fpdu);
        self.sent = sequence + 1;
    }

    fn deliver(&mut self, to: &mut End, dice: &mut Dice) -> u64 {
        let count = [1, 3, 100, 1000][dice.below(4)];
        let piece: Vec<u8> = self.bytes.drain(..self.bytes.len().min(count)).collect();
        let mut input = piece.as_slice();
        while let Some(ulpdu) = self.decoder.next_ulpdu(&mut input).unwrap() {
            to.receive(ulpdu);
        }
        self.sent
    }

    fn is_idle(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// Segments that overtake each other, and are acknowledged when they are there.
#[derive(Default)]
struct Reordering {
    flying: Vec<(u64, Vec<u8>)>,
    /// Segments below were received, all of them.
    received: u64,
    /// Later ones that were received.
    early: Vec<u64>,
    /// Segments below were delivered to the receiver.
    delivered: u64,
}

impl Channel for Reordering {
    fn send(&mut self, sequence: u64, segment: &[u8]) {
        // The numbers of the lower layer have gaps: another stream may share it.
        self.flying.push((sequence, segment.to_vec()));
    }

    fn deliver(&mut self, to: &mut End, dice: &mut Dice) -> u64 {
        if !self.flying.is_empty() {
            let window = self.flying.iter().filter(|(sequence, _)| *sequence < self.delivered + WINDOW as u64).count();
            let index = dice.below(window.max(1));
            let (sequence, segment) = &self.flying[index];
            if to.stream.receive_segment(*sequence, segment, &mut to.memory) == ReceiveOutcome::Taken {
                self.early.push(*sequence);
                self.flying.remove(index);
            }
            while let Some(next) = self.early.iter().position(|sequence| *sequence == self.received) {
                self.early.swap_remove(next);
                self.received += 1;
            }
        }
        if dice.below(3) == 0 {
            self.delivered = self.received;
            to.stream.deliver_segments(self.delivered, &mut to.memory);
        }
        self.received
    }

    fn is_idle(&self) -> bool {
        self.flying.is_empty() && self.delivered == self.received
    }
}

/// Does something random at one side: posts, receives, sends, or accepts.
fn step(side: &mut Side, out: &mut dyn Channel, into: &mut dyn Channel, accepted: &mut u64, dice: &mut Dice) -> bool {
    match dice.below(5) {
        0 => match side.to_post.pop_front() {
            Some(request) => side.end.stream.post(request).unwrap(),
            None => return false,
        },
        1 => match side.receives.pop_front() {
            Some(receive) => side.end.memory.receives.push_back(receive),
            None => return false,
        },
        2 => {
            let mut segment = OutgoingSegment::default();
            if !side.end.stream.next_segment(&mut side.end.memory, &mut segment) {
                return false;
            }
            out.send(segment.sequence, &side.end.memory.segment_bytes(&segment));
        }
        3 if into.is_idle() => return false,
        3 => {
            let below = into.deliver(&mut side.end, dice);
            *accepted = (*accepted).max(below);
        }
        _ => return false,
    }
    true
}

/// Runs both sides until nothing moves any more.
fn run(sides: &mut [Side; 2], channels: &mut [Box<dyn Channel>; 2], dice: &mut Dice) {
    let (mut idle, mut steps) = (0, 0);
    let mut accepted = [0, 0];
    // Long enough that each of the ten things that can happen has had its chance.
    while idle < 300 {
        let [first, second] = sides;
        let [forth, back] = channels;
        // A channel's count of accepted segments is for the side that sent them.
        let moved = if dice.below(2) == 0 {
            step(first, forth.as_mut(), back.as_mut(), &mut accepted[1], dice)
        } else {
            step(second, back.as_mut(), forth.as_mut(), &mut accepted[0], dice)
        };
        for (side, below) in sides.iter_mut().zip(accepted) {
            side.end.stream.accept_segments(below);
        }
        idle = if moved { 0 } else { idle + 1 };
        steps += 1;
        assert!(steps < 1_000_000, "no end");
    }
}

fn settings(segment_limit_bytes: usize, depth: u16) -> StreamSettings {
    StreamSettings {
        segment_limit_bytes,
        inbound_requests: depth,
        outbound_requests: depth,
        send_with_immediate: true,
        ..StreamSettings::default()
    }
}

fn byte_streams(crc: bool, markers: bool) -> [Box<dyn Channel>; 2] {
    [(); 2].map(|()| {
        let (encoder, decoder) = (FpduEncoder::new(crc, markers), FpduDecoder::new(crc, markers));
        Box::new(ByteStream { encoder, decoder, bytes: VecDeque::new(), sent: 0 }) as Box<dyn Channel>
    })
}

fn reordering() -> [Box<dyn Channel>; 2] {
    [(); 2].map(|()| Box::new(Reordering::default()) as Box<dyn Channel>)
}

fn plan_all(sides: &mut [Side; 2], drafts: &[Vec<Draft>; 2]) {
    let [first, second] = sides;
    for (id, draft) in drafts[0].iter().enumerate() {
        plan(first, second, draft, id as u64);
    }
    for (id, draft) in drafts[1].iter().enumerate() {
        plan(second, first, draft, id as u64);
    }
}

/// Checks that all came as planned.
fn check_success(side: &mut Side) {
    let (mut completions, mut messages) = (Vec::new(), Vec::new());
    for event in side.end.events() {
        match event {
            Event::Completed(completion) => completions.push(completion),
            Event::Received { id, result } => {
                assert_eq!(id, messages.len() as u64);
                messages.push(result.unwrap());
            }
            event => panic!("{event:?}"),
        }
    }
    assert_eq!(completions, side.completions);
    assert_eq!(messages, side.messages);
    assert!(side.end.memory.regions[&OPEN].bytes == side.open);
    assert!(side.end.memory.regions[&OWN].bytes == side.own);
    assert_eq!(side.end.stream.fault(), None);
    assert!(side.end.memory.regions.keys().all(|stag| [OPEN, OWN].contains(stag)), "all others are invalidated");
}

/// Checks a side of a stream that failed: each request and each receive is over once, in order, flushed after a failure.
fn check_failure(side: &mut Side) {
    let events = side.end.events();
    let mut failed = false;
    let (mut completions, mut messages) = (0, 0);
    for event in &events {
        match event {
            Event::Completed(Completion { id, result, .. }) => {
                assert_eq!((*id, failed && result.is_ok()), (completions, false));
                completions += 1;
            }
            Event::Received { id, result } => {
                assert_eq!((*id, failed && result.is_ok()), (messages, false));
                assert!(result.is_ok() || *result == Err(Failure::Flushed));
                messages += 1;
            }
            Event::TerminatedHere(_) | Event::TerminatedByPeer(_) => failed = true,
            event => panic!("{event:?}"),
        }
    }
    assert!(failed && side.end.stream.is_over());
    assert_eq!(completions, side.completions.len() as u64);
    assert_eq!(messages + side.end.memory.receives.len() as u64, side.messages.len() as u64);
    assert_eq!(side.end.segments(), Vec::<Vec<u8>>::new());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn requests_over_a_byte_stream(
        drafts in [drafts(), drafts()],
        (limit, depth, crc, markers) in (128..400_usize, 1..4_u16, any::<bool>(), any::<bool>()),
        first in proptest::sample::select(vec![FirstMessage::ReadyByRead, FirstMessage::ReadyByWrite]),
        seed: u64,
    ) {
        let waiting = StreamSettings { first_message: FirstMessage::AwaitPeer, ..settings(limit, depth) };
        let mut sides = [
            Side::new(&StreamSettings { first_message: first, ..settings(limit, depth) }),
            Side::new(&waiting),
        ];
        plan_all(&mut sides, &drafts);
        // A stream of bytes cannot wait for receives in this test: they are there from the beginning.
        for side in &mut sides {
            side.end.memory.receives.append(&mut side.receives);
        }
        run(&mut sides, &mut byte_streams(crc, markers), &mut Dice(seed));
        sides.iter_mut().for_each(check_success);
    }

    #[test]
    fn requests_over_segments_that_overtake_each_other(
        drafts in [drafts(), drafts()],
        limit in 128..400_usize,
        depth in 1..4_u16,
        seed: u64,
    ) {
        let settings = StreamSettings {
            segments_ahead: WINDOW,
            wait_for_receives: true,
            ..settings(limit, depth)
        };
        let mut sides = [Side::new(&settings), Side::new(&settings)];
        plan_all(&mut sides, &drafts);
        run(&mut sides, &mut reordering(), &mut Dice(seed));
        sides.iter_mut().for_each(check_success);
    }

    #[test]
    fn a_refused_request_ends_all_others(
        mut drafts in [drafts(), drafts()],
        refused in draft(Just(DraftKind::Refused)),
        at: proptest::sample::Index,
        depth in 1..4_u16,
        overtaking: bool,
        seed: u64,
    ) {
        let at = at.index(drafts[0].len() + 1);
        drafts[0].insert(at, refused);
        let settings = StreamSettings { segments_ahead: WINDOW, ..settings(128, depth) };
        let mut sides = [Side::new(&settings), Side::new(&settings)];
        plan_all(&mut sides, &drafts);
        for side in &mut sides {
            side.end.memory.receives.append(&mut side.receives);
        }
        let mut channels = if overtaking { reordering() } else { byte_streams(true, false) };
        run(&mut sides, &mut channels, &mut Dice(seed));
        sides.iter_mut().for_each(check_failure);
    }
}
