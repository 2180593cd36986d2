//! Two streams and their memories, and what they exchange.

use thalweg_iwarp::plain::PlainMemory;
use thalweg_iwarp::{
    Access, Event, MemoryRange, Operation, OutgoingSegment, ReceiveBuffer, ReceiveOutcome, RemoteAddress, Stag, Stream,
    StreamSettings, WorkRequest,
};

/// Memory that every test has on both sides: at base 4096, with all rights.
pub(crate) const OPEN: Stag = Stag(0x1001);
/// Memory for receives and for results, which the peer has no right to.
pub(crate) const OWN: Stag = Stag(0x2002);
/// Tagged offset of the first byte of both.
pub(crate) const BASE: u64 = 4096;
/// Length of both in bytes.
pub(crate) const REGION_BYTES: usize = 1 << 16;

pub(crate) const ALL_RIGHTS: [Access; 4] =
    [Access::LocalWrite, Access::RemoteRead, Access::RemoteWrite, Access::RemoteAtomic];

pub(crate) fn range(stag: Stag, offset: u64, length: u32) -> MemoryRange {
    MemoryRange { stag, offset: BASE + offset, length }
}

pub(crate) fn remote(offset: u64) -> RemoteAddress {
    RemoteAddress { stag: OPEN, offset: BASE + offset }
}

pub(crate) fn request(id: u64, operation: Operation) -> WorkRequest {
    WorkRequest { id, operation, fence: false, solicited: false }
}

/// One side.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) stream: Stream,
    pub(crate) memory: PlainMemory,
}

impl End {
    pub(crate) fn new(settings: StreamSettings) -> Self {
        let mut memory = PlainMemory { domain: 7, ..PlainMemory::default() };
        memory.register(OPEN, BASE, pattern(1), &ALL_RIGHTS);
        memory.register(OWN, BASE, pattern(2), &[Access::LocalWrite]);
        Self { stream: Stream::new(settings).unwrap(), memory }
    }

    pub(crate) fn post(&mut self, id: u64, operation: Operation) {
        self.stream.post(request(id, operation)).unwrap();
    }

    pub(crate) fn post_receive(&mut self, id: u64, into: Vec<MemoryRange>) {
        self.memory.receives.push_back(ReceiveBuffer { id, into });
    }

    /// Returns the next segment as its bytes. The lower layer accepts it at once.
    pub(crate) fn next_segment(&mut self) -> Option<(u64, Vec<u8>)> {
        let mut segment = OutgoingSegment::default();
        if !self.stream.next_segment(&mut self.memory, &mut segment) {
            return None;
        }
        self.stream.accept_segments(segment.sequence + 1);
        Some((segment.sequence, self.memory.segment_bytes(&segment)))
    }

    /// Returns the segments that can be sent now.
    pub(crate) fn segments(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.next_segment()).map(|(_, bytes)| bytes).collect()
    }

    pub(crate) fn receive(&mut self, segment: &[u8]) {
        assert_eq!(self.stream.receive_next(segment, &mut self.memory), ReceiveOutcome::Taken);
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.stream.next_event()).collect()
    }

    pub(crate) fn bytes(&self, stag: Stag, offset: u64, length: u32) -> &[u8] {
        self.memory.bytes(range(stag, offset, length)).unwrap()
    }
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(seed: u32) -> Vec<u8> {
    (0..REGION_BYTES as u32).map(|i| (i.wrapping_mul(2_654_435_761).rotate_left(seed) >> 24) as u8).collect()
}

/// Exchanges segments, in order, until neither side has one.
pub(crate) fn exchange(a: &mut End, b: &mut End) {
    while send_all(a, b) | send_all(b, a) {}
}

/// Has the second side receive what the first can send, and returns whether it was anything.
pub(crate) fn send_all(from: &mut End, to: &mut End) -> bool {
    let segments = from.segments();
    segments.iter().for_each(|segment| to.receive(segment));
    !segments.is_empty()
}

/// Two sides with the same settings.
pub(crate) fn pair(settings: &StreamSettings) -> (End, End) {
    (End::new(settings.clone()), End::new(settings.clone()))
}
