//! Operations that succeed: their segments, their effects on memory, their completions.

use crate::ends::{BASE, End, OPEN, OWN, exchange, pair, pattern, range, remote, request, send_all};
use thalweg_iwarp::header::{Opcode, Queue, ReadRequest, SegmentHeader};
use thalweg_iwarp::{
    Access, AtomicOperation, Completion, Event, FirstMessage, MemoryRange, Operation, OperationKind, OutgoingSegment,
    Payload, PostError, ReceiveOutcome, Received, ReceivedKind, RemoteAddress, SettingsError, Stag, Stream,
    StreamSettings, WorkRequest,
};

fn settings(segment_limit_bytes: usize) -> StreamSettings {
    StreamSettings { segment_limit_bytes, send_with_immediate: true, ..StreamSettings::default() }
}

fn completed(id: u64, kind: OperationKind, bytes: u32) -> Event {
    Event::Completed(Completion { id, kind, bytes, result: Ok(()) })
}

fn received(id: u64, kind: ReceivedKind, bytes: u32) -> Event {
    Event::Received { id, result: Ok(Received { kind, bytes, solicited: false }) }
}

fn write(offset: u64, length: u32) -> Operation {
    Operation::Write { remote: remote(offset), data: gathered(length), immediate: None }
}

fn read(offset: u64, length: u32) -> Operation {
    Operation::Read { remote: remote(offset), into: vec![range(OWN, 0, length)] }
}

fn send(length: u32) -> Operation {
    Operation::Send { data: gathered(length), invalidate: None }
}

fn gathered(length: u32) -> Payload {
    Payload::Gathered(vec![range(OWN, 0, length)])
}

fn fetch_add(offset: u64) -> Operation {
    let operation = AtomicOperation::FetchAdd { add: 5, mask: 0 };
    Operation::Atomic { remote: remote(offset), operation, into: range(OWN, 8, 8) }
}

/// Sends what is posted, and returns for each segment: last or not, offset, length of its payload.
fn shapes(end: &mut End) -> Vec<(bool, u64, usize)> {
    let shape = |bytes: Vec<u8>| {
        let (header, payload) = SegmentHeader::parse_segment(&bytes).unwrap();
        match header {
            SegmentHeader::Tagged { control, offset, .. } => (control.last, offset, payload.len()),
            SegmentHeader::Untagged { control, offset, .. } => (control.last, offset.into(), payload.len()),
        }
    };
    end.segments().into_iter().map(shape).collect()
}

/// The two examples of RFC 5041 §5.2: 2048 bytes, a MULPDU of 1500.
#[test]
fn messages_are_cut_as_in_the_rfc() {
    let mut end = End::new(settings(1500));
    end.post(1, send(2048));
    assert_eq!(shapes(&mut end), [(false, 0, 1482), (true, 1482, 566)]);
    let into = RemoteAddress { stag: OPEN, offset: 16384 };
    end.post(2, Operation::Write { remote: into, data: gathered(2048), immediate: None });
    assert_eq!(shapes(&mut end), [(false, 16384, 1486), (true, 17870, 562)]);
}

/// RFC 5041 §5.2: exactly one segment. No other segment is empty, least of all the first of several, which siw's
/// receiver does not survive.
#[test]
fn only_messages_of_no_bytes_have_segments_of_none() {
    for length in [0, 1, 113, 114, 115, 110, 111, 228, 229] {
        let mut end = End::new(settings(128));
        end.post(1, write(0, length));
        end.post(2, send(length));
        let shapes = shapes(&mut end);
        assert!(length > 0 || shapes == [(true, BASE, 0), (true, 0, 0)], "{shapes:?}");
        assert!(length == 0 || shapes.iter().all(|(_, _, bytes)| *bytes > 0), "{shapes:?}");
    }
}

/// Lengths around those at which another segment is needed.
const LENGTHS: [u32; 9] = [0, 1, 109, 110, 111, 114, 115, 1000, 40_000];

#[test]
fn every_kind_of_message_crosses_segments() {
    for length in LENGTHS {
        let (mut a, mut b) = pair(&settings(128));
        b.post_receive(70, vec![range(OWN, 0, length / 2), range(OWN, 30_000, length - length / 2)]);
        a.post(1, write(100, length));
        exchange(&mut a, &mut b);
        assert_eq!(b.bytes(OPEN, 100, length), &pattern(2)[..length as usize]);
        assert_eq!(a.events(), [completed(1, OperationKind::Write, length)]);
        assert_eq!(b.events(), [], "a Write is not delivered (RFC 5040 §5.1)");

        a.post(2, send(length));
        exchange(&mut a, &mut b);
        assert_eq!(a.events(), [completed(2, OperationKind::Send, length)]);
        assert_eq!(b.events(), [received(70, ReceivedKind::Send, length)]);
        let half = length / 2;
        let sent = [b.bytes(OWN, 0, half), b.bytes(OWN, 30_000, length - half)].concat();
        assert_eq!(sent, &pattern(2)[..length as usize]);

        let mut source = End::new(settings(128));
        let into = vec![range(OWN, 50, half), range(OPEN, 3, 0), range(OWN, 20_050, length - half)];
        a.post(3, Operation::Read { remote: remote(9), into });
        exchange(&mut a, &mut source);
        assert_eq!(a.events(), [completed(3, OperationKind::Read, length)]);
        let got = [a.bytes(OWN, 50, half), a.bytes(OWN, 20_050, length - half)].concat();
        assert_eq!(got, &pattern(1)[9..9 + length as usize]);
    }
}

#[test]
fn data_may_be_many_ranges_or_inline() {
    let (mut a, mut b) = pair(&settings(128));
    let ranges: Vec<_> = (0..40).map(|i| range(OWN, i * 100, i as u32 % 7)).collect();
    let expected: Vec<u8> = ranges.iter().flat_map(|range| a.memory.bytes(*range).unwrap().to_vec()).collect();
    a.post(1, Operation::Write { remote: remote(0), data: Payload::Gathered(ranges), immediate: None });
    let inline: Vec<u8> = (0..=255).collect();
    a.post(2, Operation::Write { remote: remote(5000), data: Payload::Inline(inline.clone()), immediate: None });
    exchange(&mut a, &mut b);
    assert_eq!(b.bytes(OPEN, 0, expected.len() as u32), expected);
    assert_eq!(b.bytes(OPEN, 5000, 256), inline);
}

/// RFC 5040 §5.3, §4.1: the kinds of Sends, and the events they ask for.
#[test]
fn sends_carry_invalidation_and_solicitation() {
    let (mut a, mut b) = pair(&settings(128));
    let victims = [Stag(1), Stag(2)];
    for stag in victims {
        b.memory.register(stag, 0, vec![0; 8], &[Access::RemoteWrite]);
    }
    let mut post = |id, invalidate, solicited| {
        let operation = Operation::Send { data: gathered(200), invalidate };
        a.stream.post(WorkRequest { solicited, ..request(id, operation) }).unwrap();
        b.memory.receives.push_back(thalweg_iwarp::ReceiveBuffer { id, into: vec![range(OWN, 0, 200)] });
    };
    post(1, None, true);
    post(2, Some(victims[0]), false);
    post(3, Some(victims[1]), true);
    exchange(&mut a, &mut b);
    let event = |id, kind, solicited| Event::Received { id, result: Ok(Received { kind, bytes: 200, solicited }) };
    let expected = [
        event(1, ReceivedKind::Send, true),
        event(2, ReceivedKind::SendWithInvalidate(victims[0]), false),
        event(3, ReceivedKind::SendWithInvalidate(victims[1]), true),
    ];
    assert_eq!(b.events(), expected);
    assert!(victims.iter().all(|stag| !b.memory.regions.contains_key(stag)));
}

/// RFC 7306 §6: 8 bytes, which consume a receive. After a Write the two complete as one.
#[test]
fn immediate_data_consumes_a_receive() {
    let (mut a, mut b) = pair(&settings(128));
    for id in 1..=4 {
        b.post_receive(id, vec![range(OWN, 0, 100)]);
    }
    a.post(10, Operation::Immediate(*b"immediat"));
    a.post(11, Operation::Write { remote: remote(0), data: gathered(300), immediate: Some(*b"written!") });
    a.stream.post(WorkRequest { solicited: true, ..request(12, Operation::Immediate([1; 8])) }).unwrap();
    a.post(13, Operation::SendWithImmediate { data: gathered(100), immediate: *b"four" });
    exchange(&mut a, &mut b);
    let expected = [
        received(1, ReceivedKind::Immediate(*b"immediat", None), 0),
        received(2, ReceivedKind::Immediate(*b"written!", Some(300)), 0),
        Event::Received {
            id: 3,
            result: Ok(Received { kind: ReceivedKind::Immediate([1; 8], None), bytes: 0, solicited: true }),
        },
        received(4, ReceivedKind::SendWithImmediate(*b"four"), 100),
    ];
    assert_eq!(b.events(), expected);
    let expected = [
        completed(10, OperationKind::Immediate, 0),
        completed(11, OperationKind::Write, 300),
        completed(12, OperationKind::Immediate, 0),
        completed(13, OperationKind::Send, 100),
    ];
    assert_eq!(a.events(), expected);
}

/// RFC 7306 §5.1: the original value comes back, the new one is in memory.
#[test]
fn atomics_return_the_original_value() {
    let (mut a, mut b) = pair(&settings(128));
    b.memory.register(OPEN, BASE, 40_u64.to_ne_bytes().repeat(2), &crate::ends::ALL_RIGHTS);
    a.post(1, fetch_add(8));
    let swap = AtomicOperation::CompareSwap { compare: 45, compare_mask: u64::MAX, swap: 0xff07, swap_mask: 0xff };
    a.post(2, Operation::Atomic { remote: remote(8), operation: swap, into: range(OWN, 16, 8) });
    a.post(3, Operation::Atomic { remote: remote(8), operation: swap, into: range(OWN, 24, 8) });
    exchange(&mut a, &mut b);
    let value = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
    assert_eq!([8, 16, 24].map(|at| value(a.bytes(OWN, at, 8))), [40, 45, 7]);
    assert_eq!([0, 8].map(|at| value(b.bytes(OPEN, at, 8))), [40, 7]);
    let kinds = [OperationKind::FetchAdd, OperationKind::CompareSwap, OperationKind::CompareSwap];
    let expected: Vec<_> = (1..).zip(kinds).map(|(id, kind)| completed(id, kind, 8)).collect();
    assert_eq!(a.events(), expected);
}

/// RFC 5040 §5.5 rule 15: a Write after a Read is complete only when the Read is.
#[test]
fn completions_come_in_the_order_of_the_requests() {
    let (mut a, mut b) = pair(&settings(128));
    a.post(1, read(0, 10));
    a.post(2, write(0, 10));
    a.post(3, fetch_add(0));
    a.post(4, send(1));
    b.post_receive(9, vec![range(OWN, 0, 1)]);
    assert!(send_all(&mut a, &mut b));
    assert_eq!(a.events(), []);
    // §5.5 rule 18: the Send is complete over there, before the Read is answered.
    assert_eq!(b.events(), [received(9, ReceivedKind::Send, 1)]);
    exchange(&mut a, &mut b);
    let ids: Vec<u64> = a.events().iter().map(id_of).collect();
    assert_eq!(ids, [1, 2, 3, 4]);
}

fn id_of(event: &Event) -> u64 {
    match event {
        Event::Completed(Completion { id, .. }) | Event::Received { id, .. } => *id,
        event => panic!("{event:?}"),
    }
}

/// RFC 5041 §5.4: a message is complete when the lower layer will deliver it, not when it was cut into segments.
#[test]
fn a_write_completes_when_its_segments_are_accepted() {
    let mut end = End::new(settings(128));
    end.post(1, write(0, 300));
    end.post(2, write(0, 0));
    let mut segment = OutgoingSegment::default();
    for sequence in 0..4 {
        assert!(end.stream.next_segment(&mut end.memory, &mut segment));
        assert_eq!(segment.sequence, sequence);
    }
    assert!(!end.stream.next_segment(&mut end.memory, &mut segment));
    end.stream.accept_segments(2);
    assert_eq!(end.events(), []);
    end.stream.accept_segments(3);
    assert_eq!(end.events(), [completed(1, OperationKind::Write, 300)]);
    end.stream.accept_segments(100);
    assert_eq!(end.events(), [completed(2, OperationKind::Write, 0)]);
}

/// RFC 5040 §6.1: no more Reads on their way than agreed; atomics count (RFC 7306 §5.2). §5.5 rule 13: what was posted
/// after them waits.
#[test]
fn reads_and_atomics_keep_to_the_ord() {
    let limits = StreamSettings { outbound_requests: 2, ..settings(128) };
    let (mut a, mut b) = pair(&limits);
    for id in [1, 2, 3] {
        a.post(id, if id == 2 { fetch_add(0) } else { read(0, 4) });
    }
    a.post(4, write(0, 1));
    assert_eq!(a.segments().iter().map(|segment| b.receive(segment)).count(), 2);
    let mut responses = b.segments().into_iter();
    a.receive(&responses.next().unwrap());
    assert_eq!(a.segments().len(), 2, "the third Read, then the Write");
    responses.for_each(|response| a.receive(&response));
}

/// RFC 5040 §5.5 rule 12: the Write waits for the Read.
#[test]
fn a_fence_waits_for_reads() {
    let (mut a, mut b) = pair(&settings(128));
    a.post(1, read(0, 4));
    a.stream.post(WorkRequest { fence: true, ..request(2, write(0, 4)) }).unwrap();
    a.post(3, Operation::Local);
    assert!(send_all(&mut a, &mut b));
    assert_eq!(a.segments(), Vec::<Vec<u8>>::new());
    assert_eq!(a.memory.local_operations, []);
    exchange(&mut a, &mut b);
    assert_eq!(a.events().iter().map(id_of).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(a.bytes(OWN, 0, 4), &pattern(1)[..4], "the Read came before the Write");
    assert_eq!(a.memory.local_operations, [3]);
}

/// RFC 5040 §5.5 rule 20, RFC 7306 §7: responses in the order of the requests; none starves the other direction.
#[test]
fn responses_keep_their_order_and_take_turns_with_requests() {
    let (mut a, mut b) = pair(&settings(128));
    for id in 1..=3 {
        a.post(id, if id == 2 { fetch_add(0) } else { read(0, 200) });
        b.post(id, write(40_000, 200));
    }
    assert!(send_all(&mut a, &mut b));
    let opcodes: Vec<_> = b
        .segments()
        .iter()
        .map(|bytes| Opcode::from_code(SegmentHeader::parse_segment(bytes).unwrap().0.control_fields().code).unwrap())
        .collect();
    let (response, write) = ([Opcode::ReadResponse; 2].as_slice(), [Opcode::Write; 2].as_slice());
    let expected = [response, write, &[Opcode::AtomicResponse], write, response, write].concat();
    assert_eq!(opcodes, expected);
}

/// RFC 5040 §4.4: whatever the sink's numbers mean, they come back as they were.
#[test]
fn the_sink_of_a_read_is_named_by_the_stream() {
    let (mut a, mut b) = pair(&settings(128));
    a.post(1, read(0, 4));
    let request = a.segments().remove(0);
    let (header, payload) = SegmentHeader::parse_segment(&request).unwrap();
    assert!(matches!(header, SegmentHeader::Untagged { queue, message: 1, .. } if queue == Queue::Request as u32));
    let request_fields = ReadRequest::parse_header(payload).unwrap();
    assert_eq!(request_fields.sink_offset, 1 << 32);
    b.receive(&request);
    let response = b.segments().remove(0);
    let (header, _) = SegmentHeader::parse_segment(&response).unwrap();
    let expected = (request_fields.sink_stag, request_fields.sink_offset);
    assert!(matches!(header, SegmentHeader::Tagged { stag, offset, .. } if (stag, offset) == expected));
}

/// RFC 5040 §5.2.1: a Read of no bytes is not validated, and answered by a response of none.
#[test]
fn a_read_of_no_bytes_needs_no_memory() {
    let (mut a, mut b) = pair(&settings(128));
    let nowhere = RemoteAddress { stag: Stag(0xdead), offset: u64::MAX };
    a.post(1, Operation::Read { remote: nowhere, into: Vec::new() });
    a.post(2, Operation::Write { remote: nowhere, data: Payload::Inline(Vec::new()), immediate: None });
    exchange(&mut a, &mut b);
    assert_eq!(a.events(), [completed(1, OperationKind::Read, 0), completed(2, OperationKind::Write, 0)]);
    assert!(!b.stream.is_over());
}

/// RFC 5044 §7.1.2 rule 4: the responder is silent until the initiator has sent something. RFC 6581 §9.2: the initiator
/// sends something by itself, ahead of all that is posted, and neither program sees anything of it.
#[test]
fn a_ready_to_receive_message_opens_the_responder() {
    for first_message in [FirstMessage::ReadyByWrite, FirstMessage::ReadyByRead] {
        let mut a = End::new(StreamSettings { first_message, ..settings(128) });
        let mut b = End::new(StreamSettings { first_message: FirstMessage::AwaitPeer, ..settings(128) });
        b.post(1, write(0, 4));
        a.post(2, write(0, 4));
        assert_eq!(b.segments(), Vec::<Vec<u8>>::new());
        let segments = a.segments();
        let (header, payload) = SegmentHeader::parse_segment(&segments[0]).unwrap();
        let expected = match first_message {
            FirstMessage::ReadyByWrite => (Opcode::Write, 0),
            _ => (Opcode::ReadRequest, 28),
        };
        assert_eq!((Opcode::from_code(header.control_fields().code).unwrap(), payload.len()), expected);
        segments.iter().for_each(|segment| b.receive(segment));
        exchange(&mut a, &mut b);
        assert_eq!(a.events(), [completed(2, OperationKind::Write, 4)]);
        assert_eq!(b.events(), [completed(1, OperationKind::Write, 4)]);
    }
    let settings =
        StreamSettings { first_message: FirstMessage::ReadyByRead, outbound_requests: 0, ..StreamSettings::default() };
    assert_eq!(Stream::new(settings).unwrap_err(), SettingsError::ReadyByRead);
}

/// RFC 5041 §5.3: placement in any order, delivery in the order of the peer.
#[test]
fn segments_are_placed_as_they_come_and_delivered_in_order() {
    let ahead = StreamSettings { segments_ahead: 64, ..settings(128) };
    let (mut a, mut b) = pair(&ahead);
    b.post_receive(8, vec![range(OWN, 0, 500)]);
    b.post_receive(9, vec![range(OWN, 1000, 500)]);
    a.post(1, write(0, 300));
    a.post(2, send(300));
    a.post(3, send(400));
    let segments: Vec<_> = std::iter::from_fn(|| a.next_segment()).collect();
    for (sequence, bytes) in segments.iter().rev() {
        assert_eq!(b.stream.receive_segment(*sequence, bytes, &mut b.memory), ReceiveOutcome::Taken);
        // Again: it is dropped.
        assert_eq!(b.stream.receive_segment(*sequence, bytes, &mut b.memory), ReceiveOutcome::Taken);
    }
    assert_eq!(b.bytes(OPEN, 0, 300), &pattern(2)[..300]);
    assert_eq!(b.bytes(OWN, 1000, 400), &pattern(2)[..400]);
    assert_eq!(b.events(), []);
    b.stream.deliver_segments(6, &mut b.memory);
    assert_eq!(b.events(), [received(8, ReceivedKind::Send, 300)]);
    b.stream.deliver_segments(segments.len() as u64, &mut b.memory);
    assert_eq!(b.events(), [received(9, ReceivedKind::Send, 400)]);
}

/// The numbers of the lower layer may have gaps, where it carries other streams as well.
#[test]
fn sequence_numbers_need_not_be_consecutive() {
    let (mut a, mut b) = pair(&StreamSettings { segments_ahead: 8, ..settings(128) });
    b.post_receive(8, vec![range(OWN, 0, 500)]);
    a.post(1, write(0, 300));
    a.post(2, send(150));
    for (index, segment) in a.segments().iter().enumerate() {
        let sequence = 1000 + 7 * index as u64;
        assert_eq!(b.stream.receive_segment(sequence, segment, &mut b.memory), ReceiveOutcome::Taken);
        b.stream.deliver_segments(sequence + 3, &mut b.memory);
    }
    assert_eq!(b.events(), [received(8, ReceivedKind::Send, 150)]);
}

/// RFC 5041 §7.1: the lower layer may hold a message until there is a receive for it.
#[test]
fn a_message_can_wait_for_its_receive() {
    let (mut a, mut b) = pair(&StreamSettings { wait_for_receives: true, ..settings(128) });
    a.post(1, send(4));
    let segment = a.segments().remove(0);
    for _ in 0..2 {
        assert_eq!(b.stream.receive_next(&segment, &mut b.memory), ReceiveOutcome::NoReceive);
        assert_eq!(b.events(), []);
    }
    b.post_receive(5, vec![range(OWN, 0, 4)]);
    b.receive(&segment);
    assert_eq!(b.events(), [received(5, ReceivedKind::Send, 4)]);
}

#[test]
fn requests_that_no_stream_can_carry_out_are_refused() {
    let settings = StreamSettings { outbound_requests: 0, send_with_immediate: false, ..settings(128) };
    let mut end = End::new(settings);
    let mut refused = |operation| end.stream.post(request(1, operation)).unwrap_err();
    assert_eq!(refused(read(0, 0)), PostError::NoOutboundRequests);
    assert_eq!(refused(fetch_add(0)), PostError::NoOutboundRequests);
    let data = Payload::Inline(Vec::new());
    assert_eq!(refused(Operation::SendWithImmediate { data, immediate: [0; 4] }), PostError::SendWithImmediate);
    let half = MemoryRange { stag: OWN, offset: 0, length: 1 << 31 };
    let data = Payload::Gathered(vec![half; 2]);
    assert_eq!(refused(Operation::Send { data, invalidate: None }), PostError::TooLong { bytes: 1 << 32 });
    let mut end = End::new(self::settings(128));
    let operation = AtomicOperation::FetchAdd { add: 0, mask: 0 };
    let atomic = Operation::Atomic { remote: remote(0), operation, into: range(OWN, 0, 4) };
    assert_eq!(end.stream.post(request(1, atomic)).unwrap_err(), PostError::AtomicResult { bytes: 4 });
    for bytes in [127, 65_536] {
        assert_eq!(end.stream.set_segment_limit(bytes), Err(SettingsError::SegmentLimit { bytes }));
    }
}

/// RFC 5041 §6.2.1: each half closes by itself, and what is posted still goes out.
#[test]
fn halves_close_by_themselves() {
    let (mut a, mut b) = pair(&settings(128));
    b.post_receive(7, vec![range(OWN, 0, 300)]);
    a.post(1, read(0, 300));
    a.post(2, send(300));
    a.stream.close();
    assert_eq!(a.stream.post(request(3, write(0, 1))), Err(PostError::Closed));
    assert!(!a.stream.is_send_closed());
    exchange(&mut a, &mut b);
    assert!(a.stream.is_send_closed() && !a.stream.is_over());
    let events = a.events();
    assert_eq!(events.last(), Some(&Event::SendClosed));
    assert_eq!(events[..2].iter().map(id_of).collect::<Vec<_>>(), [1, 2]);

    b.stream.close_by_peer();
    assert_eq!(b.events(), [received(7, ReceivedKind::Send, 300), Event::ClosedByPeer]);
    b.post(4, write(0, 300));
    b.stream.close();
    exchange(&mut b, &mut a);
    assert_eq!(b.events(), [completed(4, OperationKind::Write, 300), Event::SendClosed]);
    a.stream.close_by_peer();
    assert!(a.stream.is_over() && b.stream.is_over());
    assert_eq!(a.events(), [Event::ClosedByPeer]);
    assert_eq!((a.stream.fault(), b.stream.fault()), (None, None));
}
