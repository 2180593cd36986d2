//! Whatever segments a peer sends, in whatever order: nothing else than what it has a right to is written, nothing else
//! is read, and each posted request and receive is over exactly once.

use thalweg_iwarp::plain::PlainMemory;
use thalweg_iwarp::{
    Access, AtomicOperation, Event, MemoryRange, Operation, OutgoingSegment, Payload, ReceiveBuffer, ReceiveOutcome,
    RemoteAddress, Stag, Stream, StreamSettings, WorkRequest,
};

/// Memory of each kind. Their tags are such that a fuzzer finds them.
const OPEN: Stag = Stag(1);
const SECRET: Stag = Stag(2);
const SINKS: Stag = Stag(3);
const FOREIGN: Stag = Stag(4);
const REGION_BYTES: usize = 64;
const RECEIVES: u64 = 4;
const SEGMENT_LIMIT_BYTES: usize = 128;

/// Tries one input.
pub fn run(bytes: &[u8]) {
    let Some((choice, mut rest)) = bytes.split_first() else { return };
    let settings = StreamSettings {
        segment_limit_bytes: SEGMENT_LIMIT_BYTES,
        inbound_requests: 2,
        outbound_requests: 2,
        wait_for_receives: choice & 1 != 0,
        send_with_immediate: choice & 2 != 0,
        segments_ahead: usize::from(choice >> 4),
        ..StreamSettings::default()
    };
    let mut stream = Stream::new(settings).expect("valid settings");
    let (mut memory, untouched) = memories();
    let posted = post_requests(&mut stream);
    let (mut below, mut terminated) = (0, false);
    // Each segment follows a byte with its length and one with the order.
    while let Some((&[length, order], after)) = rest.split_first_chunk::<2>() {
        let (segment, after) = after.split_at(after.len().min(usize::from(length)));
        rest = after;
        let sequence = below + u64::from(order & 7);
        let outcome = stream.receive_segment(sequence, segment, &mut memory);
        assert!(outcome == ReceiveOutcome::Taken || choice & 1 != 0);
        if order & 8 != 0 {
            below = sequence + 1;
            stream.deliver_segments(below, &mut memory);
        }
        if order & 16 != 0 {
            terminated |= send_segments(&mut stream, &mut memory, terminated);
        }
    }
    if choice & 4 != 0 {
        stream.close_by_peer();
    }
    send_segments(&mut stream, &mut memory, terminated);
    stream.lose_connection();
    assert!(stream.is_over() && stream.is_send_closed());
    assert_eq!(memory.regions[&SECRET], untouched.regions[&SECRET]);
    assert_eq!(memory.regions[&FOREIGN], untouched.regions[&FOREIGN]);
    check_events(&mut stream, posted, memory.receives.len() as u64);
}

fn memories() -> (PlainMemory, PlainMemory) {
    let mut memory = PlainMemory { domain: 1, ..PlainMemory::default() };
    let rights = [Access::RemoteRead, Access::RemoteWrite, Access::RemoteAtomic];
    memory.register(FOREIGN, 0, vec![0xa5; REGION_BYTES], &rights);
    memory.regions.entry(FOREIGN).and_modify(|region| region.domain = 2);
    memory.register(OPEN, 0, vec![0; REGION_BYTES], &rights);
    memory.register(SECRET, 0, vec![0xa5; REGION_BYTES], &[]);
    memory.register(SINKS, 0, vec![0; REGION_BYTES], &[Access::LocalWrite]);
    for id in 0..RECEIVES {
        let into = vec![MemoryRange { stag: SINKS, offset: id * 8, length: 8 }];
        memory.receives.push_back(ReceiveBuffer { id, into });
    }
    (memory.clone(), memory)
}

/// Posts a request of each kind that waits for the peer, and returns how many.
fn post_requests(stream: &mut Stream) -> u64 {
    let remote = RemoteAddress { stag: OPEN, offset: 0 };
    let sink = |offset, length| MemoryRange { stag: SINKS, offset, length };
    let operation = AtomicOperation::FetchAdd { add: 1, mask: 0 };
    let operations = [
        Operation::Read { remote, into: vec![sink(32, 3), sink(40, 5)] },
        Operation::Atomic { remote, operation, into: sink(48, 8) },
        Operation::Send { data: Payload::Inline(vec![1; 300]), invalidate: None },
    ];
    let posted = operations.len() as u64;
    for (id, operation) in (0..).zip(operations) {
        stream.post(WorkRequest { id, operation, fence: false, solicited: false }).expect("a valid request");
    }
    posted
}

/// Takes all segments there are, and returns whether a Terminate message was among them.
fn send_segments(stream: &mut Stream, memory: &mut PlainMemory, terminated: bool) -> bool {
    let (mut segment, mut found) = (OutgoingSegment::default(), false);
    while stream.next_segment(memory, &mut segment) {
        assert!(!terminated && !found, "a segment after the Terminate message");
        assert_eq!(memory.segment_bytes(&segment).len(), segment.head.len() + segment.payload_bytes);
        assert!(segment.head.len() + segment.payload_bytes <= SEGMENT_LIMIT_BYTES);
        assert!(segment.places.iter().all(|place| place.stag == OPEN));
        found = stream.is_send_closed();
        stream.accept_segments(segment.sequence + 1);
    }
    found
}

/// Checks that requests and receives are over, each once.
fn check_events(stream: &mut Stream, posted: u64, receives_left: u64) {
    let (mut completions, mut receives) = (0, 0);
    while let Some(event) = stream.next_event() {
        match event {
            Event::Completed(completion) => {
                assert_eq!(completion.id, completions);
                completions += 1;
            }
            Event::Received { id, .. } => {
                assert_eq!(id, receives);
                receives += 1;
            }
            _ => {}
        }
    }
    assert_eq!((completions, receives + receives_left), (posted, RECEIVES));
}
