//! Behaviour of a builder whose source breaks the rules: the link ends with an error that names the source's action, and
//! every place comes back.

use crate::by_hand::*;
use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_arena::{Block, BlockPool};
use thalweg_link::{Address, Bytes, Eager, Interest, LinkError, LinkKind, Poller, Received};
use thalweg_link_conformance::{BuilderEnd, Listening};
use thalweg_rdma::{ConnectError, Connection};
use thalweg_rdma_link::{RECEIVES, register_links};
use thalweg_wire::{Announcement, Capabilities, Disposition, EventId, Hello, Message, Region, SourceId};

const EAGER: Eager = Eager { credit: 0, limit: 0 };

fn listen(kind: LinkKind) -> Listening {
    Listening::open_endpoint(&Address::new(kind, "127.0.0.1:0").unwrap(), EAGER).unwrap()
}

/// A source by hand that is connected to a builder.
fn connected_over(kind: LinkKind) -> (Hand, Connection, BuilderEnd) {
    let listening = listen(kind);
    let hand = Hand::new();
    let mut pending = hand.begin_connect(listening.listen_address(), GREETING);
    let mut builder = listening.accept_peer();
    let connection = loop {
        receive(&mut builder, &mut Vec::new()).unwrap();
        match pending.try_establish(&hand.queue).unwrap() {
            Ok(connection) => break connection,
            Err(again) => pending = again,
        }
    };
    (hand, connection, builder)
}

fn connected() -> (Hand, Connection, BuilderEnd) {
    connected_over(register_links().iwarp)
}

fn hello() -> Hello {
    Hello {
        session: 1,
        source: SourceId::new(1, 1),
        builder: 0,
        builders: 1,
        slots: 8,
        slot_bytes: 1 << 20,
        max_payload: 1 << 20,
        capabilities: Capabilities::empty(),
        description: 0,
    }
}

fn region_of(hand: &Hand) -> Region {
    Region { arena: 0, base: hand.memory.address_at(0), length: MEMORY_BYTES as u64, key: hand.memory.stag().into() }
}

fn held(ticket: u64) -> Announcement {
    let disposition = Disposition::Held;
    Announcement { ticket, first: EventId(ticket), arena_offset: 4096 * ticket, count: 1, bytes: 4096, disposition }
}

fn receive(builder: &mut BuilderEnd, received: &mut Vec<Received>) -> Result<(), LinkError> {
    builder.receive_messages(received)?;
    builder.flush_messages()
}

fn wait(builder: &mut BuilderEnd) {
    let poller = Poller::new().unwrap();
    poller.add_descriptor(builder.poller().as_fd(), 0, Interest::READ).unwrap();
    let timeout = if builder.prepare_wait() { Duration::from_millis(20) } else { Duration::ZERO };
    poller.wait_for_events(Some(timeout), |_| {}).unwrap();
}

/// Returns what the builder received, and the error with which its link ends.
fn fate(builder: &mut BuilderEnd) -> (Vec<Received>, LinkError) {
    let (mut received, end) = (Vec::new(), Instant::now() + PATIENCE);
    loop {
        if let Err(error) = receive(builder, &mut received) {
            return (received, error);
        }
        assert!(Instant::now() < end, "the link does not end");
        wait(builder);
    }
}

fn violates(builder: &mut BuilderEnd, complaint: &str) {
    let error = fate(builder).1;
    assert!(error.is_violation() && error.to_string().contains(complaint), "{error}");
}

fn until(builder: &mut BuilderEnd, received: &mut Vec<Received>, done: impl Fn(&[Received]) -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done(received) {
        receive(builder, received).unwrap();
        assert!(Instant::now() < end, "{received:?}");
        wait(builder);
    }
}

fn block() -> Block {
    BlockPool::new("places", 1, MEMORY_BYTES).unwrap().take_block().unwrap()
}

#[test]
fn a_peer_that_is_no_source_is_rejected_and_the_next_one_accepted() {
    let listening = listen(register_links().iwarp);
    let address = listening.listen_address().clone();
    // Bytes that are not MPA's, a greeting of another version, and none.
    let mut garbage = TcpStream::connect(address.place()).unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\nHost: builder\r\n\r\n").unwrap();
    let strangers = [Hand::new(), Hand::new()];
    let greetings: [&[u8]; 2] = [b"TWRD\x02\0\0\0", b""];
    let pending: Vec<_> =
        strangers.iter().zip(greetings).map(|(hand, greeting)| hand.begin_connect(&address, greeting)).collect();
    std::thread::scope(|scope| {
        // It accepts none of them, and looks for others meanwhile.
        let accepting = scope.spawn(|| listening.accept_peer());
        for (hand, pending) in strangers.iter().zip(pending) {
            let error = pending.wait_until_established(&hand.queue, PATIENCE).unwrap_err();
            assert!(matches!(error, ConnectError::Rejected { private_data } if private_data == GREETING));
        }
        let source = Hand::new();
        let accepted = source.begin_connect(&address, GREETING);
        let _builder = accepting.join().unwrap();
        accepted.wait_until_established(&source.queue, PATIENCE).unwrap();
    });
}

#[test]
fn the_conversation_begins_with_one_hello() {
    let hello = Message::Hello(hello());
    let cases = [
        (vec![Message::Offer(held(0))], "the first message must be a hello"),
        (vec![Message::Region(Region::default())], "the first message must be a hello"),
        (vec![hello, hello], "sent a second hello"),
        (vec![hello, Message::Bye], "sent a builder's message"),
        (vec![hello, Message::Data { ticket: 0, offset: 0, length: 64 }], "was granted without a request"),
        (vec![hello, Message::Offer(Announcement { bytes: 65, ..held(0) })], "not a multiple of 64"),
        (vec![hello, Message::Offer(Announcement { disposition: Disposition::Eager, ..held(0) })], "offered eagerly"),
    ];
    for (messages, complaint) in cases {
        let (hand, _connection, mut builder) = connected();
        hand.say(&messages);
        violates(&mut builder, complaint);
    }
    let (hand, _connection, mut builder) = connected();
    hand.say_with(&[], &[7; 64]);
    violates(&mut builder, "does not speak the Thalweg");
}

#[test]
fn a_source_announces_one_arena_that_can_be_read() {
    let region = Region { arena: 0, base: 0, length: 1 << 20, key: 5 };
    let cases = [
        vec![Region { arena: 1, ..region }],
        vec![Region { key: 1 << 32, ..region }],
        vec![Region { base: u64::MAX, ..region }],
        vec![region, region],
    ];
    for regions in cases {
        let (hand, _connection, mut builder) = connected();
        hand.say(&[Message::Hello(hello())]);
        hand.say(&regions.into_iter().map(Message::Region).collect::<Vec<_>>());
        violates(&mut builder, "is none that can be read");
    }
}

#[test]
fn offers_outside_the_arena_are_not_read() {
    for arena_offset in [MEMORY_BYTES as u64 - 4095, MEMORY_BYTES as u64, u64::MAX] {
        let (hand, _connection, mut builder) = connected();
        hand.say(&[Message::Hello(hello()), Message::Region(region_of(&hand))]);
        let mut block = block();
        let offer = Announcement { arena_offset, ..held(0) };
        assert!(builder.fetch_offer(&offer, block.carve_span(4096)).unwrap().is_none());
        violates(&mut builder, &format!("offered bytes {arena_offset}+4096 of an arena of {MEMORY_BYTES} bytes"));
        drop(builder);
        assert!(!block.has_spans_out());
    }
}

#[test]
fn memory_that_the_source_has_not_registered_ends_the_link() {
    for wrong in [1, 1 << 20] {
        let (hand, _connection, mut builder) = connected();
        let region = region_of(&hand);
        hand.say(&[Message::Hello(hello()), Message::Region(Region { key: region.key ^ wrong, ..region })]);
        let mut block = block();
        builder.fetch_offer(&held(0), block.carve_span(4096)).unwrap();
        builder.fetch_offer(&held(1), block.carve_span(4096)).unwrap();
        violates(&mut builder, "RDMA read");
        drop(builder);
        assert!(!block.has_spans_out());
    }
}

#[test]
fn flow_control_is_kept() {
    for (head, complaint) in
        [(RECEIVES + 9, "receives posted"), (RECEIVES - 1, "receives posted"), (u32::MAX, "receives posted")]
    {
        let (hand, _connection, mut builder) = connected();
        hand.send_buffer(&head.to_le_bytes());
        violates(&mut builder, complaint);
    }
    let (hand, _connection, mut builder) = connected();
    hand.send_buffer(&[1, 2, 3]);
    violates(&mut builder, "a buffer of 3 bytes");
}

/// More buffers than there are receives: RFC 5041 section 7.1 ends the stream over TCP. Over EFE they wait.
#[test]
fn buffers_that_find_no_receive_end_the_link_without_harm() {
    let (hand, _connection, mut builder) = connected();
    let flood = std::thread::spawn(move || {
        hand.say(&[Message::Hello(hello())]);
        for _ in 0..200 {
            hand.say(&[Message::Ignored { kind: 200 }]);
        }
        hand
    });
    // The builder does not look meanwhile.
    let hand = flood.join().unwrap();
    let (received, error) = fate(&mut builder);
    assert!(matches!(&received[..], [Received::Hello(..)]), "{received:?}");
    assert!(matches!(error, LinkError::Closed), "{error}");
    drop(hand);
}

#[test]
fn a_source_that_dies_while_it_is_read_returns_every_place() {
    for kind in [register_links().iwarp, register_links().efe] {
        let (hand, connection, mut builder) = connected_over(kind);
        hand.say(&[Message::Hello(hello()), Message::Region(region_of(&hand))]);
        until(&mut builder, &mut Vec::new(), |received| received.len() == 1);
        let mut block = block();
        for ticket in 0..100 {
            builder.fetch_offer(&held(ticket % 100), block.carve_span(4096)).unwrap();
        }
        builder.flush_messages().unwrap();
        drop((connection, hand));
        let (received, error) = fate(&mut builder);
        assert!(matches!(error, LinkError::Closed), "{error}");
        drop((received, builder));
        assert!(!block.has_spans_out());
    }
}

#[test]
fn bytes_of_a_source_that_may_withdraw_are_read_after_its_grant() {
    let (hand, _connection, mut builder) = connected();
    let hello = Hello { capabilities: Capabilities::WITHDRAWS, ..hello() };
    hand.say(&[Message::Hello(hello), Message::Region(region_of(&hand)), Message::Offer(held(0))]);
    let mut received = Vec::new();
    until(&mut builder, &mut received, |received| received.len() == 2);
    let mut block = block();
    builder.fetch_offer(&held(0), block.carve_span(4096)).unwrap();
    builder.flush_messages().unwrap();
    let request = hand.next_completion(|done| done.operation() == thalweg_rdma::CompletedOperation::Receive);
    assert_eq!(request.transferred_bytes(), 4 + 64);
    hand.memory.shared_memory().store_bytes(0, &[7; 4096]);
    hand.say(&[Message::Data { ticket: 0, offset: 0, length: 4096 }]);
    until(&mut builder, &mut received, |received| received.len() == 3);
    let Some(Received::Arrived { ticket: 0, bytes: Bytes::Place(place) }) = received.pop() else { panic!() };
    assert_eq!(place[..], [7; 4096]);

    // Another one than was requested.
    builder.fetch_offer(&held(1), block.carve_span(4096)).unwrap();
    builder.flush_messages().unwrap();
    hand.say(&[Message::Data { ticket: 2, offset: 0, length: 4096 }]);
    violates(&mut builder, "received bytes 0+4096 of ticket 2 instead of the requested 0+4096 of ticket 1");
    drop((received, place, builder));
    assert!(!block.has_spans_out());
}

#[test]
fn a_fetch_that_is_called_off_keeps_its_place_until_its_read_is_over() {
    let (hand, _connection, mut builder) = connected();
    hand.say(&[Message::Hello(hello()), Message::Region(region_of(&hand))]);
    let mut received = Vec::new();
    until(&mut builder, &mut received, |received| received.len() == 1);
    let mut block = block();
    builder
        .fetch_offer(&Announcement { bytes: MEMORY_BYTES as u32 / 2, ..held(0) }, block.carve_span(MEMORY_BYTES / 2))
        .unwrap();
    builder.flush_messages().unwrap();
    builder.cancel_fetch(0);
    assert!(block.has_spans_out(), "the RNIC may still write there");
    let end = Instant::now() + PATIENCE;
    while block.has_spans_out() {
        receive(&mut builder, &mut received).unwrap();
        assert!(Instant::now() < end, "the place does not come back");
    }
    assert_eq!(received.len(), 1, "no arrival of a fetch that was called off");
    // The link goes on.
    builder.fetch_offer(&held(3), block.carve_span(4096)).unwrap();
    until(&mut builder, &mut received, |received| received.len() == 2);
}

/// A source by hand that never posts its receives again.
#[test]
fn a_source_that_never_listens_is_given_up() {
    let (hand, _connection, mut builder) = connected();
    hand.say(&[Message::Hello(hello())]);
    until(&mut builder, &mut Vec::new(), |received| received.len() == 1);
    let error = (0..u64::MAX).find_map(|below| {
        builder.release_tickets(below);
        builder.flush_messages().err()
    });
    let error = error.unwrap();
    assert!(error.is_violation() && error.to_string().contains("does not read"), "{error}");
}

/// Registered once, however many sources there are.
#[test]
fn an_arena_is_registered_once() {
    let pool = BlockPool::new("blocks", 2, 4096).unwrap();
    let listening = listen(register_links().iwarp);
    let hand = Hand::new();
    let _pending = hand.begin_connect(listening.listen_address(), GREETING);
    let mut builder = listening.accept_peer();
    let (mut one, mut other) = (block(), block());
    for (ticket, place) in (0..).zip([one.carve_span(4096), one.carve_span(4096), other.carve_span(4096)]) {
        builder.fetch_offer(&held(ticket), place).unwrap();
    }
    let names = |block: &mut Block| block.carve_span(64).unwrap().arena().registration_names();
    assert_eq!((names(&mut one), names(&mut other)), (vec!["an RNIC"], vec!["an RNIC"]));
    assert!(Arc::clone(pool.arena()).registration_names().is_empty());
}
