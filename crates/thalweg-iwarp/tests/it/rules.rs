//! Broken rules: each ends the stream with the layer, type and code that the RFC has for it, changes no memory, and
//! lets nothing be lost of what was posted.

use crate::ends::{BASE, End, OPEN, OWN, REGION_BYTES, exchange, pair, pattern, range, remote, send_all};
use thalweg_iwarp::header::{AtomicRequest, AtomicResponse, Control, Opcode, ReadRequest, SegmentHeader};
use thalweg_iwarp::plain::PlainRegion;
use thalweg_iwarp::{
    Access, AccessError, AtomicOperation, Completion, ErrorCode, Event, Failure, Fault, FirstMessage, MemoryRange,
    Operation, Payload, ReceiveOutcome, RemoteAddress, Stag, StreamSettings, Terminate,
};

const FOREIGN: Stag = Stag(0x3003);
const READ_ONLY: Stag = Stag(0x4004);
const UNKNOWN: Stag = Stag(0x5005);

fn settings() -> StreamSettings {
    StreamSettings { segment_limit_bytes: 256, inbound_requests: 2, ..StreamSettings::default() }
}

/// A side with memory of each kind, one receive of 100 bytes, and a request that will not be over.
fn victim() -> End {
    let mut end = End::new(settings());
    let bytes = pattern(3);
    let foreign = PlainRegion { bytes, base: BASE, domain: 8, rights: crate::ends::ALL_RIGHTS.to_vec() };
    end.memory.regions.insert(FOREIGN, foreign);
    end.memory.register(READ_ONLY, BASE, pattern(4), &[Access::RemoteRead]);
    end.post_receive(50, vec![range(OWN, 0, 60), range(OWN, 100, 40)]);
    end.post(60, Operation::Read { remote: remote(0), into: vec![range(OWN, 0, 8)] });
    end.post(61, Operation::Write { remote: remote(0), data: Payload::Inline(vec![0; 8]), immediate: None });
    end
}

fn tagged(opcode: Opcode, stag: Stag, offset: u64, payload: &[u8]) -> Vec<u8> {
    let header = SegmentHeader::Tagged { control: Control::new(opcode, true), stag, offset };
    segment(&header, payload)
}

fn segment(header: &SegmentHeader, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.encode_header(&mut bytes);
    bytes.extend(payload);
    bytes
}

fn untagged(opcode: Opcode, message: u32, offset: u32, payload: &[u8]) -> Vec<u8> {
    let queue = opcode.target_queue().unwrap() as u32;
    segment(
        &SegmentHeader::Untagged { control: Control::new(opcode, true), reserved: 0, queue, message, offset },
        payload,
    )
}

fn read_request(message: u32, stag: Stag, offset: u64, length: u32) -> Vec<u8> {
    let request =
        ReadRequest { sink_stag: Stag(0x99), sink_offset: 5000, length, source_stag: stag, source_offset: offset };
    let mut payload = Vec::new();
    request.encode_header(&mut payload);
    untagged(Opcode::ReadRequest, message, 0, &payload)
}

fn atomic_request(stag: Stag, offset: u64) -> Vec<u8> {
    let operation = Some(AtomicOperation::FetchAdd { add: 1, mask: 0 });
    let mut payload = Vec::new();
    AtomicRequest { identifier: 77, stag, offset, operation }.encode_header(&mut payload);
    untagged(Opcode::AtomicRequest, 1, 0, &payload)
}

/// Presents segments, of which the last breaks a rule. Returns the Terminate message and the fault in words, after the
/// checks that all faults have in common.
fn terminated_by(end: &mut End, segments: &[Vec<u8>]) -> (Terminate, String) {
    let before = end.memory.regions.clone();
    segments.iter().for_each(|segment| end.receive(segment));
    let sent = end.segments();
    let (header, payload) = SegmentHeader::parse_segment(sent.last().expect("a Terminate message")).unwrap();
    // RFC 5040 §5.4: on queue 2, the first and only.
    let expected = SegmentHeader::Untagged {
        control: Control::new(Opcode::Terminate, true),
        reserved: 0,
        queue: 2,
        message: 1,
        offset: 0,
    };
    assert_eq!(header, expected);
    let terminate = Terminate::parse_payload(payload).unwrap();
    let fault = end.stream.fault().unwrap().clone();
    assert_eq!(fault.error_code(), terminate.error);
    assert_eq!(end.memory.regions, before, "memory is as it was");
    // RFC 5041 §7.1: what comes later is dropped. §5.4: nothing is sent any more.
    end.receive(&tagged(Opcode::Write, OPEN, BASE, &[0; 100]));
    assert_eq!(end.memory.regions, before);
    assert_eq!(end.segments(), Vec::<Vec<u8>>::new());
    assert!(end.stream.is_over() && end.stream.is_send_closed());
    // Each posted request is over, once; what is posted now is flushed.
    let events = end.events();
    assert!(events.contains(&Event::TerminatedHere(fault.clone())));
    let over: Vec<u64> = events.iter().filter_map(failed_request).map(|(id, _)| id).collect();
    assert_eq!(over, [60, 61]);
    end.post(62, Operation::Immediate([0; 8]));
    assert_eq!(end.events().iter().filter_map(failed_request).collect::<Vec<_>>(), [(62, Failure::Flushed)]);
    (terminate, fault.to_string())
}

fn failed_request(event: &Event) -> Option<(u64, Failure)> {
    match event {
        Event::Completed(Completion { id, result: Err(failure), .. }) => Some((*id, failure.clone())),
        _ => None,
    }
}

fn code_of(segment: Vec<u8>) -> ErrorCode {
    let bytes = segment.len();
    let (header, _) = SegmentHeader::parse_segment(&segment).unwrap();
    let (terminate, _) = terminated_by(&mut victim(), &[segment]);
    // RFC 5040 figure 10: all of these errors include the segment's DDP header and its length.
    let included = terminate.segment.expect("a DDP header");
    assert_eq!((included.header, usize::from(included.length)), (header, bytes));
    terminate.error
}

/// RFC 5041 §7.1, tagged; rights are RDMAP's (RFC 5040 §4.8).
#[test]
fn a_write_to_the_wrong_memory() {
    let write = |stag, offset| code_of(tagged(Opcode::Write, stag, offset, &[9; 100]));
    let end = BASE + REGION_BYTES as u64;
    assert_eq!(write(UNKNOWN, BASE), ErrorCode::DDP_INVALID_STAG);
    assert_eq!(write(FOREIGN, BASE), ErrorCode::DDP_NOT_ASSOCIATED);
    assert_eq!(write(READ_ONLY, BASE), ErrorCode::RDMAP_ACCESS_RIGHTS);
    assert_eq!(write(OPEN, BASE - 1), ErrorCode::DDP_BOUNDS);
    assert_eq!(write(OPEN, end - 99), ErrorCode::DDP_BOUNDS);
    assert_eq!(write(OPEN, 0), ErrorCode::DDP_BOUNDS);
    assert_eq!(write(OPEN, u64::MAX - 98), ErrorCode::DDP_WRAP);
    assert_eq!(write(OPEN, u64::MAX - 100), ErrorCode::DDP_BOUNDS);
}

/// RFC 5040 §7.2, and figure 10: both headers are included.
#[test]
fn a_read_of_the_wrong_memory() {
    let read = |stag, offset, length| {
        let (terminate, _) = terminated_by(&mut victim(), &[read_request(1, stag, offset, length)]);
        let request = terminate.segment.unwrap().read_request.expect("an RDMA header");
        assert_eq!((request.source_stag, request.source_offset, request.length), (stag, offset, length));
        terminate.error
    };
    let end = BASE + REGION_BYTES as u64;
    assert_eq!(read(UNKNOWN, BASE, 1), ErrorCode::RDMAP_INVALID_STAG);
    assert_eq!(read(FOREIGN, BASE, 1), ErrorCode::RDMAP_NOT_ASSOCIATED);
    assert_eq!(read(OWN, BASE, 1), ErrorCode::RDMAP_ACCESS_RIGHTS);
    assert_eq!(read(OPEN, BASE - 1, 1), ErrorCode::RDMAP_BOUNDS);
    assert_eq!(read(OPEN, end - 1000, 1001), ErrorCode::RDMAP_BOUNDS);
    assert_eq!(read(OPEN, u64::MAX, 1), ErrorCode::RDMAP_WRAP);
}

/// RFC 7306 §8.1: without the RDMA header. §8.2, §5.1: a misaligned one leaves memory alone.
#[test]
fn an_atomic_on_the_wrong_memory() {
    let atomic = |stag, offset| {
        let (terminate, _) = terminated_by(&mut victim(), &[atomic_request(stag, offset)]);
        assert_eq!(terminate.segment.unwrap().read_request, None);
        terminate.error
    };
    assert_eq!(atomic(OPEN, BASE + 4), ErrorCode::RDMAP_STREAM_CATASTROPHIC);
    assert_eq!(atomic(OPEN, BASE + 1), ErrorCode::RDMAP_STREAM_CATASTROPHIC);
    assert_eq!(atomic(UNKNOWN, BASE), ErrorCode::RDMAP_INVALID_STAG);
    assert_eq!(atomic(FOREIGN, BASE), ErrorCode::RDMAP_NOT_ASSOCIATED);
    assert_eq!(atomic(READ_ONLY, BASE), ErrorCode::RDMAP_ACCESS_RIGHTS);
    assert_eq!(atomic(OPEN, BASE + REGION_BYTES as u64), ErrorCode::RDMAP_BOUNDS);
    assert_eq!(atomic(OPEN, u64::MAX - 7), ErrorCode::RDMAP_WRAP);
}

/// RFC 7306 §5.2.1 rule 4.
#[test]
fn an_atomic_operation_that_is_not_defined() {
    let mut request = atomic_request(OPEN, BASE);
    request[21] = 1;
    assert_eq!(code_of(request), ErrorCode::RDMAP_OPCODE);
}

/// RFC 5041 §7.1, untagged.
#[test]
fn a_send_that_its_receive_cannot_hold() {
    let send = |message, offset, bytes: usize| code_of(untagged(Opcode::Send, message, offset, &vec![1; bytes]));
    assert_eq!(send(1, 0, 101), ErrorCode::DDP_TOO_LONG);
    assert_eq!(send(1, 101, 1), ErrorCode::DDP_MESSAGE_OFFSET);
    assert_eq!(send(1, 100, 1), ErrorCode::DDP_TOO_LONG);
    assert_eq!(send(1, u32::MAX, 2), ErrorCode::DDP_MESSAGE_OFFSET);
    assert_eq!(send(0, 0, 1), ErrorCode::DDP_MESSAGE_NUMBER);
    assert_eq!(send(2, 0, 1), ErrorCode::DDP_MESSAGE_NUMBER);
    assert_eq!(send(1 << 31, 0, 1), ErrorCode::DDP_MESSAGE_NUMBER);
}

/// Bytes of the message that were never sent are not passed off as received.
#[test]
fn a_send_with_a_hole() {
    let mut end = victim();
    let before = end.memory.clone();
    end.receive(&untagged(Opcode::Send, 1, 50, &[9; 10]));
    assert_eq!(end.stream.fault().unwrap().error_code(), ErrorCode::DDP_MESSAGE_OFFSET);
    let text = "byte 50 of message 1, where 0 is next";
    assert_eq!(end.stream.fault().unwrap().to_string(), text);
    assert_ne!(end.memory, before, "the bytes are in a receive that is not delivered");
    let failed = |event: &Event| matches!(event, Event::Received { id: 50, result: Err(Failure::Message(_)) });
    assert_eq!(end.events().iter().filter(|event| failed(event)).count(), 1);
}

/// RFC 5041 §7.1 check 2; RFC 5040 §5.3: a Send of no bytes consumes a receive, too. RFC 7306 §6.3: so does Immediate
/// Data.
#[test]
fn a_message_without_a_receive() {
    let first = untagged(Opcode::Send, 1, 0, &[]);
    for second in [untagged(Opcode::Send, 2, 0, &[]), untagged(Opcode::Immediate, 2, 0, &[0; 8])] {
        let (terminate, text) = terminated_by(&mut victim(), &[first.clone(), second]);
        assert_eq!(terminate.error, ErrorCode::DDP_NO_BUFFER);
        assert_eq!(text, "no receive is posted for message 2: post receives before the peer sends");
    }
}

/// RFC 7306 §6.3: exactly 8 bytes.
#[test]
fn immediate_data_of_another_length() {
    for bytes in [0, 4, 7, 9] {
        let segment = untagged(Opcode::Immediate, 1, 0, &vec![0; bytes]);
        assert_eq!(code_of(segment), ErrorCode::RDMAP_OPERATION_UNSPECIFIED);
    }
}

/// RFC 5040 §5.3: a tag of another domain, or none, is not invalidated.
#[test]
fn a_send_that_invalidates_what_it_must_not() {
    for stag in [UNKNOWN, FOREIGN, OWN] {
        let control = Control::new(Opcode::SendInvalidate, true);
        let header = SegmentHeader::Untagged { control, reserved: stag.0, queue: 0, message: 1, offset: 0 };
        assert_eq!(code_of(segment(&header, &[])), ErrorCode::RDMAP_CANNOT_INVALIDATE);
    }
}

/// RFC 5041 §4.1, RFC 5040 §4.1: versions, operations, queues.
#[test]
fn headers_that_are_not_valid() {
    let write = tagged(Opcode::Write, OPEN, BASE, &[1]);
    let send = untagged(Opcode::Send, 1, 0, &[1]);
    let changed = |segment: &[u8], at: usize, value: u8| {
        let mut segment = segment.to_vec();
        segment[at] = value;
        code_of(segment)
    };
    for version in [0, 2, 3] {
        assert_eq!(changed(&write, 0, 0xc0 | version), ErrorCode::DDP_TAGGED_VERSION);
        assert_eq!(changed(&send, 0, 0x40 | version), ErrorCode::DDP_UNTAGGED_VERSION);
    }
    assert_eq!(changed(&write, 1, 0x80), ErrorCode::RDMAP_VERSION);
    assert_eq!(changed(&send, 1, 0xc3), ErrorCode::RDMAP_VERSION);
    // RFC 7306 §4.1: its operations are of version 1.
    assert_eq!(changed(&untagged(Opcode::Immediate, 1, 0, &[0; 8]), 1, 0x08), ErrorCode::RDMAP_VERSION);
    for code in [0xc, 0xd, 0xe, 0xf] {
        assert_eq!(changed(&send, 1, 0x40 | code), ErrorCode::RDMAP_OPCODE);
    }
    assert_eq!(changed(&send, 9, 4), ErrorCode::DDP_QUEUE);
    assert_eq!(changed(&send, 6, 1), ErrorCode::DDP_QUEUE);
    // Each operation has its own queue, or none (RFC 5040 figure 4).
    assert_eq!(changed(&send, 9, 1), ErrorCode::RDMAP_OPCODE);
    assert_eq!(changed(&send, 1, 0x40), ErrorCode::RDMAP_OPCODE);
    assert_eq!(changed(&write, 1, 0x43), ErrorCode::RDMAP_OPCODE);
}

/// RFC 5040 §4.1: version 0 is valid, too. The reserved bits are not looked at (RFC 5041 §4.1).
#[test]
fn headers_that_are_odd_and_valid() {
    let mut end = victim();
    let mut write = tagged(Opcode::Write, OPEN, BASE, &[0xee]);
    (write[0], write[1]) = (0xfd, 0x30);
    end.receive(&write);
    assert_eq!(end.stream.fault(), None);
    assert_eq!(end.bytes(OPEN, 0, 1), [0xee]);
}

#[test]
fn segments_that_are_cut_short() {
    for whole in [tagged(Opcode::Write, OPEN, BASE, &[]), untagged(Opcode::Send, 1, 0, &[])] {
        for length in 0..whole.len() {
            let (terminate, _) = terminated_by(&mut victim(), &[whole[..length].to_vec()]);
            assert_eq!(terminate.error, ErrorCode::RDMAP_OPERATION_UNSPECIFIED);
            assert_eq!(terminate.segment, None);
        }
    }
    let request = read_request(1, OPEN, BASE, 1);
    assert_eq!(code_of(request[..45].to_vec()), ErrorCode::RDMAP_OPERATION_UNSPECIFIED);
    assert_eq!(code_of([&request[..], &[0]].concat()), ErrorCode::DDP_TOO_LONG);
    assert_eq!(code_of(read_request(2, OPEN, BASE, 1)), ErrorCode::DDP_MESSAGE_NUMBER);
}

/// RFC 5040 §6.1, §5.2.2: queue 1 has as many buffers as was agreed.
#[test]
fn more_reads_than_agreed() {
    let requests: Vec<_> = (1..=3).map(|message| read_request(message, OPEN, BASE, 4)).collect();
    let (terminate, text) = terminated_by(&mut victim(), &requests);
    assert_eq!(terminate.error, ErrorCode::DDP_NO_BUFFER);
    assert_eq!(text, "more than 2 Reads and atomics at a time, the IRD of this side");
    // Answered ones do not count.
    let mut end = victim();
    for request in &requests {
        end.receive(request);
        assert!(!end.segments().is_empty());
    }
    assert_eq!(end.stream.fault(), None);
}

/// RFC 5040 §4.8: the header of a Read Request is moved on to the byte that could not be sent.
#[test]
fn a_read_whose_memory_goes_away_meanwhile() {
    let mut end = victim();
    end.receive(&read_request(1, OPEN, BASE + 7, 1000));
    assert!(end.next_segment().is_some_and(|(_, segment)| segment.len() == 256), "242 bytes of the response");
    end.memory.regions.remove(&OPEN);
    let (terminate, _) = terminated_by(&mut end, &[]);
    assert_eq!(terminate.error, ErrorCode::RDMAP_INVALID_STAG);
    let expected = ReadRequest {
        sink_stag: Stag(0x99),
        sink_offset: 5242,
        length: 758,
        source_stag: OPEN,
        source_offset: BASE + 7 + 242,
    };
    assert_eq!(terminate.segment.unwrap().read_request, Some(expected));
}

/// RFC 5040 §5.2.1: a Read of no bytes must not be validated.
#[test]
fn a_read_of_no_bytes_of_the_wrong_memory() {
    let mut end = End::new(settings());
    end.receive(&read_request(1, UNKNOWN, u64::MAX, 0));
    let response = end.segments().remove(0);
    assert_eq!(response, tagged(Opcode::ReadResponse, Stag(0x99), 5000, &[]));
}

/// A side that has sent its Read of 8 bytes and waits.
fn reader() -> End {
    let mut end = victim();
    assert_eq!(end.segments().len(), 2);
    end
}

/// Responses must be those of the Reads there are (RFC 5040 §5.2.2: "MAY validate").
#[test]
fn responses_that_answer_nothing() {
    let response = |offset: u64, bytes: usize| tagged(Opcode::ReadResponse, OWN, offset, &vec![9; bytes]);
    let code = |segment| terminated_by(&mut reader(), &[segment]).0.error;
    let sink = 1 << 32;
    assert_eq!(code_of(response(sink, 8)), ErrorCode::RDMAP_OPCODE, "the Read has not been sent");
    assert_eq!(code(response(sink, 9)), ErrorCode::DDP_BOUNDS);
    assert_eq!(code(response(sink + 1, 8)), ErrorCode::DDP_BOUNDS);
    assert_eq!(code(response(2 << 32, 8)), ErrorCode::DDP_INVALID_STAG);
    assert_eq!(code(response(BASE, 8)), ErrorCode::DDP_INVALID_STAG);
    assert_eq!(code(response(u64::MAX, 8)), ErrorCode::DDP_WRAP);
    assert_eq!(code(tagged(Opcode::ReadResponse, OPEN, sink, &[9; 8])), ErrorCode::DDP_INVALID_STAG);
    assert_eq!(code(response(sink, 0)), ErrorCode::RDMAP_OPERATION_UNSPECIFIED);
    let mut payload = Vec::new();
    AtomicResponse { identifier: 1, original: 0 }.encode_header(&mut payload);
    assert_eq!(code(untagged(Opcode::AtomicResponse, 1, 0, &payload)), ErrorCode::RDMAP_OPCODE);
}

/// The Read fails by name, the Write after it is flushed.
#[test]
fn a_response_that_is_too_short() {
    let mut end = reader();
    end.receive(&tagged(Opcode::ReadResponse, OWN, 1 << 32, &[9; 7]));
    let failures: Vec<_> = end.events().iter().filter_map(failed_request).collect();
    assert!(matches!(failures[0], (60, Failure::Message(Fault::ResponseMismatch { found: 7, expected: 8, .. }))));
    assert_eq!(failures[1], (61, Failure::Flushed));
}

/// An atomic's response must carry the request's number (RFC 7306 §5.2.2).
#[test]
fn an_atomic_response_of_another_request() {
    for (identifier, message, code) in
        [(2, 1, ErrorCode::RDMAP_OPERATION_UNSPECIFIED), (1, 2, ErrorCode::DDP_MESSAGE_NUMBER)]
    {
        let mut end = End::new(settings());
        let operation = AtomicOperation::FetchAdd { add: 1, mask: 0 };
        end.post(1, Operation::Atomic { remote: remote(0), operation, into: range(OWN, 0, 8) });
        assert_eq!(end.segments().len(), 1);
        let mut payload = Vec::new();
        AtomicResponse { identifier, original: 0 }.encode_header(&mut payload);
        end.receive(&untagged(Opcode::AtomicResponse, message, 0, &payload));
        assert_eq!(end.stream.fault().unwrap().error_code(), code);
        assert_eq!(end.bytes(OWN, 0, 8), &pattern(2)[..8]);
    }
}

/// A message begins when the last is over, except for a Terminate message.
#[test]
fn a_message_within_another() {
    let header = SegmentHeader::Tagged { control: Control::new(Opcode::Write, false), stag: OPEN, offset: BASE };
    let begun = segment(&header, &pattern(1)[..10]);
    let (terminate, text) = terminated_by(&mut victim(), &[begun.clone(), untagged(Opcode::Send, 1, 0, &[])]);
    assert_eq!(terminate.error, ErrorCode::RDMAP_OPCODE);
    assert_eq!(text, "Send is not expected within another message");
    let mut end = victim();
    end.receive(&begun);
    let mut payload = Vec::new();
    Terminate { error: ErrorCode::RDMAP_GLOBAL_CATASTROPHIC, segment: None }.encode_payload(&mut payload);
    end.receive(&untagged(Opcode::Terminate, 1, 0, &payload));
    assert!(matches!(end.events()[0], Event::TerminatedByPeer(_)));
}

/// What came before the fault is delivered, and what came after it is not, in whatever order they arrive.
#[test]
fn faults_are_found_in_the_order_of_the_peer() {
    let mut end = End::new(StreamSettings { segments_ahead: 8, ..settings() });
    for id in 1..=3 {
        end.post_receive(id, vec![range(OWN, 0, 10)]);
    }
    let segments = [
        untagged(Opcode::Send, 1, 0, &[1; 10]),
        tagged(Opcode::Write, UNKNOWN, BASE, &[1]),
        untagged(Opcode::Send, 2, 0, &[2; 11]),
        untagged(Opcode::Send, 3, 0, &[]),
    ];
    for (sequence, segment) in segments.iter().enumerate().rev() {
        let outcome = end.stream.receive_segment(sequence as u64, segment, &mut end.memory);
        assert_eq!(outcome, ReceiveOutcome::Taken);
        assert_eq!(end.events(), []);
    }
    end.stream.deliver_segments(4, &mut end.memory);
    assert_eq!(end.stream.fault().unwrap().error_code(), ErrorCode::DDP_INVALID_STAG);
    let events = end.events();
    assert!(matches!(events[0], Event::Received { id: 1, result: Ok(_) }));
    assert!(matches!(events[1], Event::TerminatedHere(_)));
    let flushed = |id| Event::Received { id, result: Err(Failure::Flushed) };
    assert_eq!(events[2..], [flushed(2), flushed(3)]);
}

/// A message can be ahead of its turn by as many as there are segments missing, not by more: else a peer could take all
/// receives of a queue that others share.
#[test]
fn a_message_that_is_further_ahead_than_possible() {
    let mut end = End::new(StreamSettings { segments_ahead: 8, ..settings() });
    for id in 0..20 {
        end.post_receive(id, vec![range(OWN, 0, 10)]);
    }
    let outcome = end.stream.receive_segment(3, &untagged(Opcode::Send, 4, 0, &[1]), &mut end.memory);
    assert_eq!(outcome, ReceiveOutcome::Taken);
    assert_eq!(end.memory.receives.len(), 16);
    let outcome = end.stream.receive_segment(2, &untagged(Opcode::Send, 12, 0, &[1]), &mut end.memory);
    assert_eq!(outcome, ReceiveOutcome::Taken);
    assert_eq!(end.memory.receives.len(), 16);
    end.receive(&untagged(Opcode::Send, 1, 0, &[1]));
    let outcome = end.stream.receive_segment(1, &untagged(Opcode::Send, 2, 0, &[1]), &mut end.memory);
    assert_eq!(outcome, ReceiveOutcome::Taken);
    end.stream.deliver_segments(3, &mut end.memory);
    assert_eq!(end.stream.fault().unwrap().error_code(), ErrorCode::DDP_MESSAGE_NUMBER);
}

#[test]
fn more_segments_ahead_than_agreed() {
    let mut end = End::new(StreamSettings { segments_ahead: 8, ..settings() });
    for sequence in 1..=10 {
        let outcome = end.stream.receive_segment(sequence, &tagged(Opcode::Write, OPEN, BASE, &[1]), &mut end.memory);
        assert_eq!(outcome, ReceiveOutcome::Taken);
        assert_eq!(end.stream.fault().is_some(), sequence == 10);
    }
}

/// RFC 5044 §8, RFC 5040 figure 10: errors of the lower layer include no header. The Terminate message goes out on the
/// other half.
#[test]
fn an_error_of_the_lower_layer() {
    let mut end = victim();
    end.stream.terminate(ErrorCode::MPA_CRC);
    let (terminate, text) = terminated_by(&mut end, &[]);
    assert_eq!(terminate, Terminate { error: ErrorCode::MPA_CRC, segment: None });
    assert_eq!(text, "MPA error, CRC does not match (layer 2, type 0, code 0x02; RFC 5044 §8)");
}

/// RFC 5040 §7.1 rule 1: instead of the request, without headers.
#[test]
fn own_memory_that_cannot_be_read() {
    let mut end = End::new(settings());
    let bad = MemoryRange { stag: UNKNOWN, offset: 0, length: 4 };
    let data = Payload::Gathered(vec![range(OWN, 0, 1000), bad]);
    end.post(60, Operation::Write { remote: remote(0), data, immediate: None });
    end.post(61, Operation::Immediate([0; 8]));
    let segments = end.segments();
    assert_eq!(segments.len(), 1, "a message that cannot be sent to its end is not begun");
    let (_, payload) = SegmentHeader::parse_segment(&segments[0]).unwrap();
    let expected = Terminate { error: ErrorCode::RDMAP_LOCAL_CATASTROPHIC, segment: None };
    assert_eq!(Terminate::parse_payload(payload), Some(expected));
    let failures: Vec<_> = end.events().iter().filter_map(failed_request).collect();
    let expected = Failure::LocalAccess { range: bad, reason: AccessError::UnknownStag };
    assert_eq!(failures, [(60, expected), (61, Failure::Flushed)]);
}

#[test]
fn own_memory_that_cannot_be_written() {
    let mut end = End::new(settings());
    end.memory.register(READ_ONLY, BASE, vec![0; 100], &[]);
    end.post(1, Operation::Read { remote: remote(0), into: vec![range(READ_ONLY, 0, 8)] });
    assert_eq!(end.segments().len(), 1);
    let [(1, Failure::LocalAccess { reason: AccessError::MissingRight, .. })] =
        &*end.events().iter().filter_map(failed_request).collect::<Vec<_>>()
    else {
        panic!("a Read without a sink is not sent");
    };
    let mut end = End::new(settings());
    end.post_receive(2, vec![range(READ_ONLY, 0, 8)]);
    end.receive(&untagged(Opcode::Send, 1, 0, &[0; 8]));
    let failed = Event::Received {
        id: 2,
        result: Err(Failure::LocalAccess { range: range(READ_ONLY, 0, 8), reason: AccessError::UnknownStag }),
    };
    assert!(end.events().contains(&failed));
    assert_eq!(end.stream.fault().unwrap().error_code(), ErrorCode::RDMAP_LOCAL_CATASTROPHIC);
}

/// The peer's Terminate message names the request that it is about; the others are flushed. Nothing is sent after it.
#[test]
fn a_terminate_message_ends_the_request_it_names() {
    let (mut a, mut b) = pair(&settings());
    let nowhere = RemoteAddress { stag: UNKNOWN, offset: 0 };
    a.post(1, Operation::Read { remote: remote(0), into: vec![range(OWN, 0, 8)] });
    a.post(2, Operation::Read { remote: nowhere, into: vec![range(OWN, 0, 8)] });
    a.post(3, Operation::Immediate([0; 8]));
    a.post_receive(4, Vec::new());
    b.post(5, Operation::Local);
    b.post_receive(6, Vec::new());
    exchange(&mut a, &mut b);
    let events = a.events();
    let completions = events.iter().filter_map(|event| match event {
        Event::Completed(Completion { id, result, .. }) => Some((*id, result.clone())),
        _ => None,
    });
    let completions: Vec<_> = completions.collect();
    assert_eq!(completions[0], (1, Ok(())), "answered before");
    let (2, Err(Failure::Remote(terminate))) = &completions[1] else { panic!("{completions:?}") };
    assert_eq!(terminate.error, ErrorCode::RDMAP_INVALID_STAG);
    assert_eq!(completions[2], (3, Err(Failure::Flushed)));
    assert!(events.contains(&Event::TerminatedByPeer(*terminate)));
    a.post(7, Operation::Immediate([0; 8]));
    assert_eq!(a.segments(), Vec::<Vec<u8>>::new());
    assert!(a.stream.is_over() && a.stream.is_send_closed());
}

/// A Write that is not complete when the peer refuses it fails by name.
#[test]
fn a_terminate_message_ends_the_write_it_names() {
    let (mut a, mut b) = pair(&settings());
    b.memory.register(READ_ONLY, BASE, vec![0; 100], &[Access::RemoteRead]);
    let to = RemoteAddress { stag: READ_ONLY, offset: BASE + 10 };
    a.post(1, Operation::Read { remote: remote(0), into: vec![range(OWN, 0, 8)] });
    a.post(2, Operation::Write { remote: to, data: Payload::Inline(vec![0; 20]), immediate: None });
    assert!(send_all(&mut a, &mut b) && send_all(&mut b, &mut a));
    let failures: Vec<_> = a.events().iter().filter_map(failed_request).collect();
    assert_eq!(failures[0], (1, Failure::Flushed));
    let (2, Failure::Remote(terminate)) = failures[1].clone() else { panic!("{failures:?}") };
    assert_eq!(terminate.error, ErrorCode::RDMAP_ACCESS_RIGHTS);
    let text = terminate.to_string();
    assert!(
        text.starts_with("remote protection error, access rights violation (layer 0, type 1, code 0x02;"),
        "{text}"
    );
    assert!(text.ends_with("in the segment for STag 0x00004004 offset 0x100a"), "{text}");
}

/// RFC 5041 §6.2.1: the peer closes within a message, before its answers, or sends on. RFC 5044 §8 code 1.
#[test]
fn a_peer_that_closes_too_early() {
    let header = SegmentHeader::Tagged { control: Control::new(Opcode::Write, false), stag: OPEN, offset: BASE };
    let mut within = End::new(settings());
    within.receive(&segment(&header, &[1]));
    let mut unanswered = reader();
    let mut sends_on = End::new(settings());
    sends_on.stream.close_by_peer();
    sends_on.receive(&tagged(Opcode::Write, OPEN, BASE, &[1]));
    within.stream.close_by_peer();
    unanswered.stream.close_by_peer();
    let failures: Vec<_> = unanswered.events().iter().filter_map(failed_request).collect();
    assert!(matches!(failures[..], [(60, Failure::Message(Fault::Closed { .. })), (61, Failure::Flushed)]));
    for end in [&mut within, &mut unanswered, &mut sends_on] {
        assert_eq!(end.stream.fault().unwrap().error_code(), ErrorCode::MPA_CLOSED);
        let (_, payload) = SegmentHeader::parse_segment(&end.segments()[0]).map(|(a, b)| (a, b.to_vec())).unwrap();
        assert_eq!(Terminate::parse_payload(&payload), Some(Terminate { error: ErrorCode::MPA_CLOSED, segment: None }));
    }
    // After the closing, a Read cannot be answered; a Write can still go out.
    let mut end = End::new(settings());
    end.stream.close_by_peer();
    end.post(1, Operation::Write { remote: remote(0), data: Payload::Inline(vec![1]), immediate: None });
    end.post(2, Operation::Read { remote: remote(0), into: Vec::new() });
    let segments = end.segments();
    assert_eq!(segments.len(), 2);
    let failures: Vec<_> = end.events().iter().filter_map(failed_request).collect();
    assert!(matches!(failures[..], [(2, Failure::Message(Fault::Closed { .. }))]));
}

/// A side that has closed its own half cannot be made to send a Terminate message.
#[test]
fn a_fault_after_the_own_closing() {
    let mut end = End::new(settings());
    end.stream.close();
    assert_eq!(end.events(), [Event::SendClosed]);
    end.receive(&tagged(Opcode::Write, UNKNOWN, BASE, &[1]));
    assert_eq!(end.segments(), Vec::<Vec<u8>>::new());
    assert!(end.stream.is_over());
}

/// RFC 5044 §7.1.2 rule 4 goes before RFC 5040 §7.1: the responder sends nothing at all before the initiator has.
#[test]
fn a_responder_that_ends_before_it_may_send() {
    let mut end = End::new(StreamSettings { first_message: FirstMessage::AwaitPeer, ..settings() });
    end.stream.terminate(ErrorCode::RDMAP_GLOBAL_CATASTROPHIC);
    assert_eq!(end.segments(), Vec::<Vec<u8>>::new());
    assert!(end.stream.is_send_closed());
    // A first segment that is wrong may be answered: it was a valid FPDU.
    let mut end = End::new(StreamSettings { first_message: FirstMessage::AwaitPeer, ..settings() });
    end.receive(&[1, 2, 3]);
    assert_eq!(end.segments().len(), 1);
}

/// The connection is lost in each state: all that is posted is over, once, and nothing more is sent.
#[test]
fn a_connection_that_is_lost() {
    for steps in 0..4 {
        let mut end = victim();
        for _ in 0..steps {
            let _ = end.next_segment();
        }
        if steps == 3 {
            end.stream.close();
        }
        end.receive(&untagged(Opcode::Send, 1, 0, &[1]));
        end.stream.lose_connection();
        let events = end.events();
        let ids: Vec<u64> = events.iter().filter_map(failed_request).map(|(id, _)| id).collect();
        assert_eq!(ids, [60, 61], "{events:?}");
        assert_eq!(end.segments(), Vec::<Vec<u8>>::new());
        assert!(end.stream.is_over());
    }
}
