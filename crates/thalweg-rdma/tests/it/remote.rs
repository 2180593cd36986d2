//! Two RNICs, connected by MPA over TCP, or by EFE over UDP.

use crate::setup::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use thalweg_rdma::*;
use thalweg_testing::wait::wait_until;

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

struct Joined {
    near: Party,
    far: Party,
    near_connection: Connection,
    far_connection: Connection,
}

/// Connects a queue pair of each of two RNICs.
fn join_over(transport: Transport, near: Party, far: Party, parameters: ConnectionParameters) -> Joined {
    let listener = far.device.listen_over(transport, anywhere(), 4).unwrap();
    let address = listener.local_address();
    let answer = parameters.clone();
    let accepting = std::thread::spawn(move || {
        let request = listener.wait_for_request(PATIENCE).unwrap().unwrap();
        assert!(request.peer_address().is_some_and(|address| address.ip().is_loopback()));
        let connection = request.accept(&far.queue, answer, PATIENCE).unwrap();
        (far, connection)
    });
    let near_connection = near.queue.connect_over(transport, address, parameters, PATIENCE).unwrap();
    let (far, far_connection) = accepting.join().unwrap();
    Joined { near, far, near_connection, far_connection }
}

const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Efe];

fn joined_with(transport: Transport, options: &Options, parameters: ConnectionParameters) -> Joined {
    let open = || Device::open_thread(Limits::default()).unwrap();
    join_over(transport, party(&open(), options), party(&open(), options), parameters)
}

fn joined(transport: Transport) -> Joined {
    joined_with(transport, &Options::default(), ConnectionParameters::default())
}

impl Party {
    /// Waits until memory has bytes: a write completes before the peer has it (RFC 5040 section 5.5 rule 9).
    fn wait_for_bytes(&self, at: usize, bytes: &[u8]) {
        wait_until("the bytes", || self.bytes(at, bytes.len()) == bytes);
    }
}

#[test]
fn a_peer_that_comes_between_two_listeners_at_an_address_is_served_by_the_second() {
    // Its time stands still, but in the calls that drive it.
    let far = party(&Device::open_embedded(Limits::default()).unwrap(), &Options::default());
    let near = party(&Device::open_thread(Limits::default()).unwrap(), &Options::default());
    let first = far.device.listen(anywhere(), 4).unwrap();
    let address = first.local_address();
    drop(first);
    let connecting = near.queue.begin_connect(Transport::Tcp, address, ConnectionParameters::default()).unwrap();
    let second = far.device.listen(address, 4).unwrap();
    let request = second.wait_for_request(PATIENCE).unwrap().unwrap();
    let _far = request.accept(&far.queue, ConnectionParameters::default(), PATIENCE).unwrap();
    let _near = connecting.wait_until_established(&near.queue, PATIENCE).unwrap();
}

#[test]
fn fpdus_have_a_crc_unless_neither_side_needs_one() {
    for (initiator, responder) in [(true, true), (true, false), (false, true), (false, false)] {
        let open = || party(&Device::open_thread(Limits::default()).unwrap(), &Options::default());
        let (near, far) = (open(), open());
        let needing = |needs_crc| ConnectionParameters { needs_crc, ..ConnectionParameters::default() };
        let listener = far.device.listen(anywhere(), 4).unwrap();
        let address = listener.local_address();
        let connecting = near.queue.begin_connect(Transport::Tcp, address, needing(initiator)).unwrap();
        let request = listener.wait_for_request(PATIENCE).unwrap().unwrap();
        far.queue.post_receive(1, &[far.buffer.sge(0, 8)]).unwrap();
        let their_connection = request.accept(&far.queue, needing(responder), PATIENCE).unwrap();
        let connection = connecting.wait_until_established(&near.queue, PATIENCE).unwrap();
        let agreed = [connection.peer_parameters().needs_crc, their_connection.peer_parameters().needs_crc];
        assert_eq!(agreed, [initiator || responder; 2]);
        near.send(2, Work::Send { data: Data::Inline(b"checked"), immediate: None });
        near.succeed(2);
        assert_eq!(far.succeed(1).transferred_bytes(), 7);
    }
}

#[test]
fn requests_are_posted_as_soon_as_a_connection_is_accepted() {
    // Their time stands still, but in the calls that drive them.
    let open = || Device::open_embedded(Limits::default()).unwrap();
    let (near, far) = (party(&open(), &Options::default()), party(&open(), &Options::default()));
    let listener = far.device.listen_over(Transport::Efe, anywhere(), 4).unwrap();
    let (address, parameters) = (listener.local_address(), ConnectionParameters::default());
    let connecting = near.queue.begin_connect(Transport::Efe, address, parameters.clone()).unwrap();
    near.queue.post_receive(1, &[near.buffer.sge(0, 8)]).unwrap();
    let mut request = None;
    wait_until("the request", || {
        near.device.make_progress();
        far.device.make_progress();
        request = listener.wait_for_request(Duration::ZERO).unwrap();
        request.is_some()
    });
    let accepting = request.unwrap().begin_accept(&far.queue, parameters).unwrap();
    // perftest sets the rights of its queue pair only now.
    let attributes = QueueAttributes { access: Access::REMOTE, ..QueueAttributes::default() };
    far.queue.modify_state(QueueState::Init, Some(attributes)).unwrap();
    far.send(2, Work::Send { data: Data::Inline(b"early"), immediate: None });
    let mut arrived = None;
    wait_until("the message", || {
        far.device.make_progress();
        arrived = near.completions.poll_one().unwrap();
        arrived.is_some()
    });
    assert_eq!(arrived.unwrap().transferred_bytes(), 5);
    assert!(matches!(accepting.next_event().unwrap(), Some(ConnectionEvent::Established { .. })));
    assert!(matches!(connecting.next_event().unwrap(), Some(ConnectionEvent::Established { .. })));
}

#[test]
fn every_operation_goes_to_another_rnic() {
    TRANSPORTS.into_iter().for_each(every_operation_goes_to_another_rnic_over);
}

fn every_operation_goes_to_another_rnic_over(transport: Transport) {
    let Joined { near, far, .. } = joined(transport);
    near.fill(0, &pattern(1000, 1));
    near.send(1, Work::Write { data: Data::Memory(&[near.buffer.sge(0, 1000)]), to: far.at(5), immediate: None });
    assert_eq!(near.succeed(1).operation(), CompletedOperation::Write);
    far.wait_for_bytes(5, &pattern(1000, 1));
    near.send(2, Work::Read { into: &[near.buffer.sge(2000, 500)], from: far.at(5) });
    assert_eq!(near.succeed(2).transferred_bytes(), 500);
    assert_eq!(near.bytes(2000, 500), pattern(1000, 1)[..500]);

    (10..14).for_each(|id| far.queue.post_receive(id, &[far.buffer.sge(4000, 100)]).unwrap());
    near.send(3, Work::Send { data: Data::Inline(b"hello"), immediate: None });
    near.succeed(3);
    let received = far.succeed(10);
    assert_eq!((received.transferred_bytes(), received.immediate_data()), (5, None));
    assert_eq!(far.bytes(4000, 5), *b"hello");
    near.send(4, Work::Send { data: Data::Memory(&[]), immediate: Some(77) });
    near.succeed(4);
    assert_eq!(far.succeed(11).immediate_data(), Some(77));
    near.send(5, Work::Write { data: Data::Inline(b"and now"), to: far.at(9000), immediate: Some(78) });
    near.succeed(5);
    let received = far.succeed(12);
    assert_eq!(
        (received.operation(), received.transferred_bytes()),
        (CompletedOperation::ReceiveWriteWithImmediate, 7)
    );
    assert_eq!((received.immediate_data(), far.bytes(9000, 7)), (Some(78), b"and now".to_vec()));

    far.fill(8, &40u64.to_ne_bytes());
    let into = near.buffer.sge(16, 8);
    near.send(6, Work::FetchAdd { into, at: far.at(8), add: 2 });
    near.succeed(6);
    assert_eq!((near.bytes(16, 8), far.bytes(8, 8)), (40u64.to_ne_bytes().into(), 42u64.to_ne_bytes().into()));
    near.send(7, Work::CompareSwap { into, at: far.at(8), compare: 42, swap: 7 });
    near.succeed(7);
    assert_eq!((near.bytes(16, 8), far.bytes(8, 8)), (42u64.to_ne_bytes().into(), 7u64.to_ne_bytes().into()));

    let window = far.domain.allocate_window(WindowKind::Queue).unwrap();
    let stag = next_window_stag(window.first_stag());
    far.send(
        20,
        Work::BindWindow {
            new_stag: stag,
            region_stag: far.buffer.stag(),
            address: far.buffer.address_at(100),
            bytes: 50,
            access: Access::REMOTE_READ,
        },
    );
    far.succeed(20);
    let from = RemoteAddress { address: far.buffer.address_at(100), stag };
    near.send(8, Work::Read { into: &[near.buffer.sge(0, 50)], from });
    near.succeed(8);
    near.send(9, Work::SendWithInvalidate { data: Data::Inline(b"x"), stag });
    near.succeed(9);
    assert_eq!(far.succeed(13).invalidated_stag(), Some(stag));

    // The responder's side sends, too.
    near.queue.post_receive(30, &[near.buffer.sge(0, 8)]).unwrap();
    far.send(31, Work::Send { data: Data::Inline(b"back"), immediate: None });
    far.succeed(31);
    assert_eq!(near.succeed(30).transferred_bytes(), 4);
    near.quiet();
    far.quiet();
}

#[test]
fn no_bytes_and_many_elements_and_long_messages_go_to_another_rnic() {
    TRANSPORTS.into_iter().for_each(no_bytes_and_many_elements_and_long_messages_go_to_another_rnic_over);
}

fn no_bytes_and_many_elements_and_long_messages_go_to_another_rnic_over(transport: Transport) {
    let Joined { near, far, .. } = joined(transport);
    let nowhere = RemoteAddress { address: u64::MAX, stag: 0x1234_5678 };
    near.send(1, Work::Write { data: Data::Memory(&[]), to: nowhere, immediate: None });
    near.send(2, Work::Read { into: &[], from: nowhere });
    far.queue.post_receive(10, &[]).unwrap();
    near.send(3, Work::Send { data: Data::Memory(&[]), immediate: None });
    (1..=3).for_each(|id| _ = near.succeed(id));
    assert_eq!(far.succeed(10).transferred_bytes(), 0);

    const LONG: usize = 5 << 20;
    let from = near.domain.create_buffer(LONG, ALL_ACCESS).unwrap();
    let to = far.domain.create_buffer(LONG, ALL_ACCESS).unwrap();
    from.shared_memory().store_bytes(0, &pattern(LONG, 9));
    let elements: Vec<Sge> = (0..16).map(|at| from.sge(at * LONG as u64 / 16, LONG as u32 / 16)).collect();
    let place = RemoteAddress { address: to.address_at(0), stag: to.stag() };
    let sinks: Vec<Sge> = (0..5).map(|at| to.sge(at * (1 << 20), 1 << 20)).collect();
    far.queue.post_receive(11, &sinks).unwrap();
    near.send(4, Work::Send { data: Data::Memory(&elements), immediate: None });
    near.succeed(4);
    assert_eq!(far.succeed(11).transferred_bytes(), LONG as u32);
    from.shared_memory().store_bytes(0, &vec![0; LONG]);
    near.send(5, Work::Read { into: &elements, from: place });
    near.succeed(5);
    let mut bytes = vec![0; LONG];
    from.shared_memory().load_bytes(0, &mut bytes);
    assert!(bytes == pattern(LONG, 9));
    // More reads than may be outstanding.
    for id in 0..100 {
        near.send(100 + id, Work::Read { into: &[from.sge(id * 8, 8)], from: place });
    }
    (0..100).for_each(|id| _ = near.succeed(100 + id));
}

/// The codes of RFC 5040 section 4.8 and RFC 5041 section 7.2, as the requester's completion has them.
#[test]
fn what_the_peer_refuses_comes_back_as_a_terminate_code() {
    TRANSPORTS.into_iter().for_each(what_the_peer_refuses_comes_back_as_a_terminate_code_over);
}

fn what_the_peer_refuses_comes_back_as_a_terminate_code_over(transport: Transport) {
    type Place = fn(&Party, &Party) -> RemoteAddress;
    type Code = (u64, u64, u64);
    let cases: [(Place, [Code; 2]); 4] = [
        (|_, far| RemoteAddress { stag: next_window_stag(far.at(0).stag), ..far.at(0) }, [(1, 1, 0), (0, 1, 0)]),
        (|_, far| far.at(BUFFER_BYTES as u64 - 7), [(1, 1, 1), (0, 1, 1)]),
        (|_, far| RemoteAddress { address: u64::MAX - 6, ..far.at(0) }, [(1, 1, 3), (0, 1, 4)]),
        (
            |_, far| RemoteAddress { address: far.buffer.address_at(0), stag: far.buffer.stag() ^ 0x5500_0000 },
            [(1, 1, 0), (0, 1, 0)],
        ),
    ];
    for (place, codes) in cases {
        for read in [false, true] {
            let Joined { near, far, near_connection, far_connection } = joined(transport);
            let (own, place) = ([near.buffer.sge(0, 8)], place(&near, &far));
            far.queue.post_receive(50, &[]).unwrap();
            near.queue.post_receive(2, &[]).unwrap();
            near.send(
                1,
                match read {
                    false => Work::Write { data: Data::Memory(&own), to: place, immediate: None },
                    true => Work::Read { into: &own, from: place },
                },
            );
            let (layer, kind, code) = codes[usize::from(read)];
            let completion = near.next();
            // A write may have completed before the peer saw it (RFC 5040 section 5.5 rule 9).
            if read {
                assert_eq!(completion.status(), Status::RemoteAccessError, "{completion}");
                let fault = completion.fault().unwrap();
                assert_eq!((fault.kind, fault.side), (FaultKind::Terminated, Side::Remote));
                assert_eq!(fault.value, layer << 16 | kind << 8 | code, "{completion}");
            }
            near.fail(2, Status::Flushed);
            far.fail(50, Status::Flushed);
            let reason = near_connection.wait_for_end(PATIENCE).unwrap().unwrap();
            assert!(reason.contains(&format!("layer {layer}, type {kind}, code {code:#04x}")), "{reason}");
            assert!(matches!(far.event(), AsyncEvent::QueueAccessError { .. }));
            assert!(far_connection.wait_for_end(PATIENCE).unwrap().is_some());
            near.send(3, Work::Send { data: Data::Inline(&[]), immediate: None });
            near.fail(3, Status::Flushed);
        }
    }
}

#[test]
fn messages_without_receives_or_too_long_for_them_end_the_stream() {
    let Joined { near, far, near_connection, .. } = joined(Transport::Tcp);
    near.queue.post_receive(2, &[]).unwrap();
    near.send(1, Work::Send { data: Data::Inline(b"x"), immediate: None });
    let _ = near.next();
    near.fail(2, Status::Flushed);
    let reason = near_connection.wait_for_end(PATIENCE).unwrap().unwrap();
    assert!(reason.contains("layer 1, type 2, code 0x02"), "{reason}");
    drop(far);
    let Joined { near, far, near_connection, .. } = joined(Transport::Tcp);
    far.queue.post_receive(3, &[far.buffer.sge(0, 10)]).unwrap();
    near.queue.post_receive(2, &[]).unwrap();
    near.send(1, Work::Send { data: Data::Memory(&[near.buffer.sge(0, 11)]), immediate: None });
    let fault = far.fail(3, Status::LocalLengthError);
    assert_eq!((fault.value, fault.limit), (11, 10));
    near.fail_or_pass(1);
    near.fail(2, Status::Flushed);
    let reason = near_connection.wait_for_end(PATIENCE).unwrap().unwrap();
    assert!(reason.contains("layer 1, type 2, code 0x05"), "{reason}");
}

impl Party {
    /// Takes the completion of a send whose refusal may have come after it was sent.
    fn fail_or_pass(&self, id: u64) {
        assert_eq!(self.next().request_id(), id);
    }
}

#[test]
fn own_faults_are_found_before_anything_is_sent_and_everything_behind_is_flushed() {
    TRANSPORTS.into_iter().for_each(own_faults_are_found_before_anything_is_sent_and_everything_behind_is_flushed_over);
}

fn own_faults_are_found_before_anything_is_sent_and_everything_behind_is_flushed_over(transport: Transport) {
    let Joined { near, far, far_connection, .. } = joined(transport);
    far.queue.post_receive(50, &[far.buffer.sge(0, 8)]).unwrap();
    near.send(1, Work::Write { data: Data::Inline(b"good"), to: far.at(100), immediate: None });
    let wrong = Sge { stag: 0x7700, ..near.buffer.sge(0, 8) };
    near.queue
        .post_sends(&[
            SendRequest::signaled(2, Work::Send { data: Data::Memory(&[wrong]), immediate: None }),
            SendRequest::signaled(3, Work::Send { data: Data::Inline(b"never"), immediate: None }),
        ])
        .unwrap();
    near.succeed(1);
    let fault = near.fail(2, Status::LocalProtectionError);
    assert_eq!((fault.kind, fault.stag, fault.side), (FaultKind::StagUnknown, 0x7700, Side::Local));
    near.fail(3, Status::Flushed);
    far.fail(50, Status::Flushed);
    assert_eq!(far.bytes(100, 4), *b"good");
    let reason = far_connection.wait_for_end(PATIENCE).unwrap().unwrap();
    assert!(reason.contains("local catastrophic error"), "{reason}");
    // Reads without an ORD, behind another request.
    let none = ConnectionParameters { outbound_reads: 0, ..ConnectionParameters::default() };
    let Joined { near, far, .. } = joined_with(transport, &Options::default(), none);
    near.send(1, Work::Write { data: Data::Inline(b"first"), to: far.at(0), immediate: None });
    near.send(2, Work::Read { into: &[near.buffer.sge(0, 8)], from: far.at(0) });
    near.succeed(1);
    assert_eq!(near.fail(2, Status::LocalOperationError).kind, FaultKind::ReadLimit);
}

#[test]
fn a_connection_ends_for_both_however_it_ends() {
    TRANSPORTS.into_iter().for_each(a_connection_ends_for_both_however_it_ends_over);
}

fn a_connection_ends_for_both_however_it_ends_over(transport: Transport) {
    for way in 0..4 {
        let Joined { near, far, near_connection, far_connection } = joined(transport);
        far.queue.post_receive(1, &[]).unwrap();
        near.queue.post_receive(2, &[]).unwrap();
        let expected = match way {
            0 => {
                near.queue.disconnect().unwrap();
                near.fail(2, Status::Flushed);
                assert_eq!(near_connection.wait_for_end(PATIENCE).unwrap().as_deref(), Some("disconnected"));
                "the peer has closed the connection"
            }
            1 => {
                near.queue.modify_state(QueueState::Error, None).unwrap();
                near.fail(2, Status::Flushed);
                "local catastrophic error"
            }
            2 => {
                drop(near.queue);
                "local catastrophic error"
            }
            _ => {
                // The whole program, with its RNIC.
                drop((near, near_connection));
                "catastrophic"
            }
        };
        far.fail(1, Status::Flushed);
        let reason = far_connection.wait_for_end(PATIENCE).unwrap().unwrap();
        assert!(reason.contains(expected), "{way}: {reason}");
        assert_eq!(far.state(), QueueState::Error);
    }
}

#[test]
fn peers_that_reject_or_speak_no_mpa_or_nothing_are_reported() {
    let options = Options::default();
    let open = || Device::open_thread(Limits::default()).unwrap();
    let (near, other) = (party(&open(), &options), open());
    let listener = other.listen(anywhere(), 4).unwrap();
    let address = listener.local_address();
    let rejecting = std::thread::spawn(move || {
        listener.wait_for_request(PATIENCE).unwrap().unwrap().reject(b"no".to_vec()).unwrap();
        listener
    });
    let rejected = near.queue.connect(address, ConnectionParameters::default(), PATIENCE).unwrap_err();
    assert!(matches!(rejected, ConnectError::Rejected { private_data } if private_data == b"no"));
    drop(rejecting.join().unwrap());
    let refused = near.queue.connect(address, ConnectionParameters::default(), PATIENCE).unwrap_err();
    assert!(refused.to_string().contains("refused"), "{refused}");
    for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b""] {
        let stranger = TcpListener::bind(anywhere()).unwrap();
        let address = stranger.local_addr().unwrap();
        let answering = std::thread::spawn(move || {
            let (mut socket, _) = stranger.accept().unwrap();
            socket.read_exact(&mut [0; 20]).unwrap();
            socket.write_all(answer).unwrap();
        });
        let failed = near.queue.connect(address, ConnectionParameters::default(), PATIENCE).unwrap_err();
        assert!(matches!(failed, ConnectError::Failed(_)), "{failed}");
        answering.join().unwrap();
    }
    let silent = TcpListener::bind(anywhere()).unwrap();
    let address = silent.local_addr().unwrap();
    let late = near.queue.connect(address, ConnectionParameters::default(), Duration::from_millis(5)).unwrap_err();
    assert!(matches!(late, ConnectError::TimedOut(_)), "{late}");
}

#[test]
fn strangers_that_connect_to_a_listener_do_no_harm() {
    let options = Options::default();
    let open = || Device::open_thread(Limits::default()).unwrap();
    let (near, far) = (party(&open(), &options), party(&open(), &options));
    let listener = far.device.listen(anywhere(), 4).unwrap();
    let address = listener.local_address();
    let mut strangers: Vec<_> = (0..3).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    strangers[0].write_all(&[0xff; 100]).unwrap();
    strangers[1].write_all(b"MPA ID Req Frame").unwrap();
    assert_eq!(strangers[0].read(&mut [0; 1]).unwrap_or(0), 0, "closed");
    let accepting = std::thread::spawn(move || {
        let request = listener.wait_for_request(PATIENCE).unwrap().unwrap();
        let connection = request.accept(&far.queue, ConnectionParameters::default(), PATIENCE).unwrap();
        (far, connection)
    });
    let _connection = near.queue.connect(address, ConnectionParameters::default(), PATIENCE).unwrap();
    let (far, _their) = accepting.join().unwrap();
    near.send(1, Work::Write { data: Data::Inline(b"x"), to: far.at(0), immediate: None });
    near.succeed(1);
    far.wait_for_bytes(0, b"x");
}

/// A peer of revision 1 closes the connection when a request of revision 2 comes (RFC 5044 section 7.1.1); the second
/// connection asks for what it knows (RFC 6581 section 10).
#[test]
fn a_peer_that_knows_revision_1_alone_is_connected_with_it() {
    let near = party(&Device::open_thread(Limits::default()).unwrap(), &Options::default());
    let listener = TcpListener::bind(anywhere()).unwrap();
    let address = listener.local_addr().unwrap();
    let peer = std::thread::spawn(move || {
        let read_request = |private_bytes: usize| {
            let (mut socket, _) = listener.accept().unwrap();
            let mut request = vec![0; 20 + private_bytes];
            socket.read_exact(&mut request).unwrap();
            assert_eq!(request[..16], *b"MPA ID Req Frame");
            assert_eq!(usize::from(u16::from_be_bytes([request[18], request[19]])), private_bytes);
            (socket, request[17], request.split_off(20))
        };
        let (socket, revision, _) = read_request(4 + 5);
        assert_eq!(revision, 2);
        drop(socket);
        let (mut socket, revision, private_data) = read_request(5);
        assert_eq!((revision, &private_data[..]), (1, &b"hello"[..]));
        // CRCs, revision 1, no private data.
        socket.write_all(b"MPA ID Rep Frame\x40\x01\x00\x00").unwrap();
        // Length, DDP header of a Write, three bytes, pad, CRC.
        let mut fpdu = [0; 2 + 14 + 3 + 1 + 4];
        socket.read_exact(&mut fpdu).unwrap();
        assert_eq!((fpdu[1], &fpdu[16..19]), (17, &b"now"[..]));
    });
    let parameters = ConnectionParameters { private_data: b"hello".to_vec(), ..ConnectionParameters::default() };
    let _connection = near.queue.connect(address, parameters, PATIENCE).unwrap();
    let to = RemoteAddress { address: 0, stag: 0x100 };
    near.send(1, Work::Write { data: Data::Inline(b"now"), to, immediate: None });
    near.succeed(1);
    peer.join().unwrap();
}

#[test]
fn a_peer_that_always_closes_is_tried_twice() {
    let near = party(&Device::open_thread(Limits::default()).unwrap(), &Options::default());
    let listener = TcpListener::bind(anywhere()).unwrap();
    let address = listener.local_addr().unwrap();
    let peer = std::thread::spawn(move || (0..2).for_each(|_| drop(listener.accept().unwrap())));
    let error = near.queue.connect(address, ConnectionParameters::default(), PATIENCE).unwrap_err();
    assert!(error.to_string().contains("revision 1 as to one of revision 2"), "{error}");
    peer.join().unwrap();
}

/// An embedded RNIC that nothing drives is as good as gone.
#[test]
fn a_silent_peer_is_noticed_after_the_time_out_of_the_connection() {
    let options = Options::default();
    let near = party(&Device::open_thread(Limits::default()).unwrap(), &options);
    let far = party(&Device::open_embedded(Limits::default()).unwrap(), &options);
    let parameters = ConnectionParameters { peer_timeout: Duration::from_millis(200), ..Default::default() };
    let Joined { near, near_connection, .. } = join_over(Transport::Efe, near, far, parameters);
    let reason = near_connection.wait_for_end(PATIENCE).unwrap().unwrap();
    assert!(reason.contains("time-out 200ms"), "{reason}");
    near.send(1, Work::Send { data: Data::Inline(b"gone"), immediate: None });
    near.fail(1, Status::Flushed);
    for wrong in [Duration::ZERO, Duration::MAX] {
        let parameters = ConnectionParameters { peer_timeout: wrong, ..Default::default() };
        let options = Options::default();
        let other = party(&near.device, &options);
        let error = other.queue.connect(anywhere(), parameters, PATIENCE).unwrap_err();
        assert!(error.to_string().contains("peer_timeout"), "{error}");
    }
}

#[test]
fn embedded_rnics_speak_to_others_too() {
    TRANSPORTS.into_iter().for_each(embedded_rnics_speak_to_others_too_over);
}

fn embedded_rnics_speak_to_others_too_over(transport: Transport) {
    let options = Options::default();
    let open = || Device::open_embedded(Limits::default()).unwrap();
    let Joined { near, far, .. } =
        join_over(transport, party(&open(), &options), party(&open(), &options), ConnectionParameters::default());
    (0..100).for_each(|id| far.queue.post_receive(id, &[far.buffer.sge(0, 64)]).unwrap());
    let echo = std::thread::spawn(move || {
        for id in 0..200 {
            let received = far.succeed(id);
            far.queue.post_receive(id + 100, &[far.buffer.sge(0, 64)]).unwrap();
            far.send(
                500 + id,
                Work::Send { data: Data::Memory(&[far.buffer.sge(0, received.transferred_bytes())]), immediate: None },
            );
            far.succeed(500 + id);
        }
        far
    });
    for id in 0..200 {
        near.queue.post_receive(id, &[near.buffer.sge(1000, 64)]).unwrap();
        let message = pattern(id as usize % 64, id as u8);
        near.fill(0, &message);
        near.send(
            500 + id,
            Work::Send { data: Data::Memory(&[near.buffer.sge(0, message.len() as u32)]), immediate: None },
        );
        let mut ids = [near.next(), near.next()].map(|completion| {
            assert!(completion.is_success(), "{completion}");
            completion.request_id()
        });
        ids.sort_unstable();
        assert_eq!(ids, [id, 500 + id]);
        assert_eq!(near.bytes(1000, message.len()), message);
    }
    echo.join().unwrap();
}

/// Over EFE, a message waits for its receive, and one that is too long ends the stream.
#[test]
fn messages_over_efe_wait_for_receives() {
    let Joined { near, far, near_connection, .. } = joined(Transport::Efe);
    for id in 0..10 {
        near.send(id, Work::Send { data: Data::Inline(&[id as u8; 5]), immediate: None });
    }
    far.quiet();
    for id in 0..10 {
        far.queue.post_receive(id, &[far.buffer.sge(id * 64, 64)]).unwrap();
        assert_eq!(far.succeed(id).transferred_bytes(), 5);
        assert_eq!(far.bytes(id as usize * 64, 5), [id as u8; 5]);
    }
    (0..10).for_each(|id| _ = near.succeed(id));
    far.queue.post_receive(11, &[far.buffer.sge(0, 10)]).unwrap();
    near.send(12, Work::Send { data: Data::Memory(&[near.buffer.sge(0, 11)]), immediate: None });
    let fault = far.fail(11, Status::LocalLengthError);
    assert_eq!((fault.value, fault.limit), (11, 10));
    let reason = near_connection.wait_for_end(PATIENCE).unwrap().unwrap();
    assert!(reason.contains("layer 1, type 2, code 0x05"), "{reason}");
}

#[test]
fn connections_over_efe_are_rejected_and_not_answered() {
    let options = Options::default();
    let open = || Device::open_thread(Limits::default()).unwrap();
    let (near, other) = (party(&open(), &options), open());
    let listener = other.listen_over(Transport::Efe, anywhere(), 4).unwrap();
    let address = listener.local_address();
    let rejecting = std::thread::spawn(move || {
        let request = listener.wait_for_request(PATIENCE).unwrap().unwrap();
        assert_eq!(request.peer_parameters().private_data, b"please");
        request.reject(b"no".to_vec()).unwrap();
        listener
    });
    let please = ConnectionParameters { private_data: b"please".to_vec(), ..ConnectionParameters::default() };
    let rejected = near.queue.connect_over(Transport::Efe, address, please, PATIENCE).unwrap_err();
    assert!(matches!(rejected, ConnectError::Rejected { private_data } if private_data == b"no"));
    drop(rejecting.join().unwrap());
    let silent = std::net::UdpSocket::bind(anywhere()).unwrap();
    let (address, timeout) = (silent.local_addr().unwrap(), Duration::from_millis(20));
    let parameters = ConnectionParameters::default();
    let late = near.queue.connect_over(Transport::Efe, address, parameters, timeout).unwrap_err();
    assert!(matches!(late, ConnectError::TimedOut(_)), "{late}");
}
