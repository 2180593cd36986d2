//! Behaviour of a link with a peer that breaks the rules, over real sockets: the link ends with an error that names the
//! peer's action, and never panics, hangs, or keeps more than the bounds allow.
//!
//! The peer is played by hand, with plain sockets and messages made one by one.

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tempfile::TempDir;
use thalweg_arena::{
    Arena, Block, BlockPool, Ring, RingReceiver, RingSender, Span, WAKE_BYTE, recv_fds, send_fds, wake_over_socket,
};
use thalweg_link::{Address, Bytes, Eager, Interest, LinkError, LinkKind, Poller, Received, SourceGreeting};
use thalweg_link_conformance::{BuilderEnd, Listening, SourceEnd};
use thalweg_wire::{
    Announcement, Capabilities, Disposition, EventId, Hello, MESSAGE_LEN, MESSAGE_MAGIC, Message, PROTOCOL_VERSION,
    Refusal, RunNumber, SourceId, Welcome, crc32c,
};

const EAGER: Eager = Eager { credit: 16 << 10, limit: 8 << 10 };
/// Size of the arena of sources, and of places, in bytes.
const ARENA: usize = 2 << 20;
/// Bound on waiting, for tests that would otherwise hang.
const TIMEOUT: Duration = Duration::from_secs(60);

// ---- hostile to a builder, over TCP --------------------------------------------------------------------------------

#[test]
fn what_is_no_message_is_named() {
    let mut other_version = hello(0).encode();
    other_version[4] = 1;
    let mut damaged = hello(0).encode();
    damaged[10] ^= 1;
    let too_long = hello(Message::MAX_DESCRIPTION + 1).encode();
    let cases: [(&[u8], &str); 5] = [
        (
            b"GET / HTTP/1.1\r\nHost: builder\r\nAccept: text/html, image/png;q=0.9, */*;q=0.8\r\n\r\n",
            "does not speak the Thalweg",
        ),
        (&other_version, "the peer speaks protocol version 1"),
        (&damaged, "CRC32C"),
        (&too_long, "`description` holds an impossible value"),
        (&framed(99, &[]), "message kind 99 is not known"),
    ];
    for (bytes, complaint) in cases {
        let (mut source, mut builder) = raw_source();
        source.write_all(bytes).unwrap();
        violates(&mut builder, complaint);
    }
}

#[test]
fn the_conversation_begins_with_one_hello() {
    let cases = [
        (vec![Message::Offer(held(0))], "the first message must be a hello"),
        (vec![Message::Data { ticket: 0, offset: 0, length: u32::MAX }], "the first message must be a hello"),
        (vec![hello(0), hello(0)], "sent a second hello"),
        (vec![hello(0), Message::Fetch { ticket: 0, offset: 0, length: 64 }], "sent a builder's message"),
        (vec![hello(0), Message::Bye], "sent a builder's message"),
    ];
    for (words, complaint) in cases {
        let (mut source, mut builder) = raw_source();
        source.say(&words);
        violates(&mut builder, complaint);
    }
}

#[test]
fn a_description_is_as_long_as_it_was_said_to_be() {
    let (mut source, mut builder) = raw_source();
    source.say(&[hello(10)]);
    source.write_all(&[b'x'; 100_000]).unwrap();
    violates(&mut builder, "does not speak the Thalweg");

    let (mut source, mut builder) = raw_source();
    source.say(&[hello(2)]);
    source.write_all(&[0xff, 0xfe]).unwrap();
    violates(&mut builder, "not UTF-8");
}

#[test]
fn what_is_cut_off_half_way_is_a_closed_connection() {
    let whole = [&hello(5).encode()[..], b"{\"a\""].concat();
    for cut in [0, 1, 63, 64, 66, whole.len()] {
        let (mut source, mut builder) = raw_source();
        source.write_all(&whole[..cut]).unwrap();
        drop(source);
        let (said, error) = fate(&mut builder);
        assert!(matches!(error, LinkError::Closed), "cut at {cut}: {error}");
        assert!(said.is_empty());
    }
    let (mut source, mut builder) = raw_source();
    source.say(&[hello(0), Message::Offer(held(0))]);
    let (block, place) = place();
    builder.fetch_offer(&held(0), Some(place)).unwrap();
    source.say(&[Message::Data { ticket: 0, offset: 0, length: 4096 }]);
    source.write_all(&[7; 4000]).unwrap();
    drop(source);
    assert!(matches!(fate(&mut builder).1, LinkError::Closed));
    returns(builder, &block);
}

#[test]
fn one_byte_at_a_time_is_slow_but_right() {
    let (mut source, mut builder) = raw_source();
    let eager = Announcement { bytes: 128, disposition: Disposition::Eager, ..held(0) };
    let data = Message::Data { ticket: 0, offset: 0, length: 128 };
    let bytes = [
        &hello(2).encode()[..],
        b"{}",
        &Message::Offer(eager).encode(),
        &data.encode(),
        &[9; 128],
        &Message::Paused { next: EventId(3), asked_by: 0 }.encode(),
    ]
    .concat();
    let mut said = Vec::new();
    for byte in bytes {
        source.write_all(&[byte]).unwrap();
        builder_waits(&mut builder);
        listen(&mut builder, &mut said).unwrap();
    }
    let [Received::Hello(_, text), Received::Message(Message::Offer(_)), Received::Message(Message::Paused { .. })] =
        &said[..]
    else {
        panic!("{said:?}");
    };
    assert_eq!(text, "{}");
    let place = place().1.take_front(128);
    let Some(Bytes::Place(bytes)) = builder.fetch_offer(&eager, Some(place)).unwrap() else { panic!("it is here") };
    assert_eq!(bytes[..], [9; 128]);
}

#[test]
fn bytes_that_nobody_asked_for_are_not_taken() {
    // Nothing is set aside for them, however many are announced.
    for length in [64, u32::MAX] {
        let (mut source, mut builder) = raw_source();
        let data = Message::Data { ticket: 0, offset: 0, length };
        source.say(&[hello(0), Message::Offer(held(0)), data]);
        violates(&mut builder, "received bytes of ticket 0 that were not requested");
    }
}

#[test]
fn bytes_other_than_those_asked_for_are_not_taken() {
    for (offset, length) in [(0, 4160), (0, 4032), (64, 4032), (64, 4096), (u32::MAX - 4096, 4096), (0, u32::MAX)] {
        let (mut source, mut builder) = raw_source();
        source.say(&[hello(0), Message::Offer(held(0))]);
        let (block, place) = place();
        builder.fetch_offer(&held(0), Some(place)).unwrap();
        source.say(&[Message::Data { ticket: 0, offset, length }]);
        violates(
            &mut builder,
            &format!("received bytes {offset}+{length} of ticket 0 instead of the requested 0+4096 of ticket 0"),
        );
        returns(builder, &block);
    }
}

#[test]
fn data_come_in_the_order_of_the_fetches() {
    let (mut source, mut builder) = raw_source();
    source.say(&[hello(0), Message::Offer(held(0)), Message::Offer(held(1))]);
    let ((zero, place_of_0), (one, place_of_1)) = (place(), place());
    builder.fetch_offer(&held(1), Some(place_of_1)).unwrap();
    builder.fetch_offer(&held(0), Some(place_of_0)).unwrap();
    source.say(&[Message::Data { ticket: 0, offset: 0, length: 4096 }]);
    violates(&mut builder, "requested 0+4096 of ticket 1: answer fetches in order, each as a whole");
    returns(builder, &zero);
    assert!(!one.has_spans_out());
}

#[test]
fn what_a_source_said_it_is_it_must_be() {
    let none = Message::Hello(Hello { slots: 0, ..greeting().hello });
    let small = Message::Hello(Hello { slot_bytes: 63, ..greeting().hello });
    let ragged = Message::Offer(Announcement { bytes: 4095, ..held(0) });
    let gone = Message::Offer(Announcement { bytes: 0, disposition: Disposition::DroppedOldest, ..held(0) });
    let cases = [
        (vec![none], "the hello announces 0 slots of 1048576 bytes: a source has at least one slot"),
        (vec![small], "8 slots of 63 bytes: a source has at least one slot, of at least 64 bytes"),
        (vec![hello(0), ragged], "ticket 0 was offered with 4095 bytes, which is not a multiple of 64"),
        (vec![hello(0), gone], "ticket 0 was dropped to make room, but the hello lacks"),
    ];
    for (words, complaint) in &cases {
        let (mut source, mut builder) = raw_source();
        source.say(words);
        violates(&mut builder, complaint);
    }
    for (words, complaint) in &cases {
        let (source, mut builder, _dir) = raw_shm_source();
        let good = Handover::new();
        send_fds(&source, &words[0].encode(), &good.fds()).unwrap();
        let mut sender = good.to_builder.into_sender();
        for word in &words[1..] {
            sender.push(&word.encode()).unwrap();
            let _ = sender.publish();
        }
        violates(&mut builder, complaint);
    }
}

#[test]
fn a_dropped_offer_brings_no_bytes() {
    let (mut source, mut builder) = raw_source();
    let (block, place) = place();
    builder.fetch_offer(&held(0), Some(place)).unwrap();
    let gone = Announcement { bytes: 0, disposition: Disposition::DroppedOldest, ..held(0) };
    let hello = Message::Hello(Hello { capabilities: Capabilities::WITHDRAWS, ..greeting().hello });
    source.say(&[hello, Message::Offer(held(0)), Message::Offer(gone)]);
    source.say(&[Message::Data { ticket: 0, offset: 0, length: 4096 }]);
    violates(&mut builder, "that were not requested");
    returns(builder, &block);
}

/// Requested bytes, and an offence, in one segment: the order decides whether the bytes count.
#[test]
fn what_came_before_an_offence_counts_and_what_came_behind_it_does_not() {
    let data = [&Message::Data { ticket: 0, offset: 0, length: 4096 }.encode()[..], &[7; 4096]].concat();
    let offence = Message::Bye.encode();
    for (segment, counts) in [([&data[..], &offence].concat(), true), ([&offence[..], &data].concat(), false)] {
        let (mut source, mut builder) = raw_source();
        source.say(&[hello(0), Message::Offer(held(0))]);
        until(&mut builder, |said| said.len() == 2);
        let (block, place) = place();
        builder.fetch_offer(&held(0), Some(place)).unwrap();
        source.write_all(&segment).unwrap();
        let (said, error) = fate(&mut builder);
        assert!(error.to_string().contains("the source sent a builder's message"), "{error}");
        let arrived = matches!(&said[..], [Received::Arrived { ticket: 0, bytes: Bytes::Place(place) }] if place.iter().all(|byte| *byte == 7));
        assert_eq!((arrived, said.len()), (counts, counts.into()));
        // The received messages are not needed any more.
        drop(said);
        returns(builder, &block);
    }
}

#[test]
fn an_offence_over_a_ring_is_judged_in_its_turn_too() {
    let grant = Message::Data { ticket: 0, offset: 0, length: 4096 };
    for (words, counts) in [([grant, hello(0)], 1), ([hello(0), grant], 0)] {
        for in_place in [true, false] {
            let (mut source, mut builder) = greeted_shm_source(true);
            let (block, place) = place();
            builder.fetch_offer(&held(0), Some(place).filter(|_| !in_place)).unwrap();
            // Both are there before the builder looks.
            for word in &words {
                source.sender.push(&word.encode()).unwrap();
            }
            let _ = source.sender.publish();
            wake_over_socket(&source.socket).unwrap();
            let (said, error) = fate(&mut builder);
            assert!(error.to_string().contains("unexpected from a source over a ring"), "{error}");
            assert_eq!(said.len(), counts);
            assert!(said.iter().all(|said| match said {
                Received::Arrived { bytes, .. } => matches!(bytes, Bytes::View(_)) == in_place,
                _ => false,
            }));
            drop(said);
            returns(builder, &block);
        }
    }
}

#[test]
fn eager_offers_keep_to_their_bounds() {
    let eager =
        |ticket, bytes| Message::Offer(Announcement { ticket, bytes, disposition: Disposition::Eager, ..held(ticket) });
    let cases = [
        (vec![eager(0, 8256)], "8256 bytes sent without a request"),
        (vec![eager(0, u32::MAX - 63)], "4294967232 bytes sent without a request"),
        (vec![eager(0, 64), Message::Offer(held(1))], "the bytes of ticket 0 must follow its eager offer"),
        (vec![eager(0, 64), Message::Data { ticket: 1, offset: 0, length: 64 }], "after the eager offer of ticket 0"),
        (vec![eager(0, 64), Message::Data { ticket: 0, offset: 0, length: u32::MAX }], "after the eager offer"),
    ];
    for (words, complaint) in cases {
        let (mut source, mut builder) = raw_source();
        source.say(&[hello(0)]);
        source.say(&words);
        violates(&mut builder, complaint);
    }
}

#[test]
fn an_eager_flood_ends_at_the_credit() {
    for (ticket_step, complaint) in [(1, "20480 in all; the limits are 8192 and 16384"), (0, "offered eagerly twice")] {
        let (mut source, mut builder) = raw_source();
        source.say(&[hello(0)]);
        let (said, error) = std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..u64::MAX {
                    let ticket = number * ticket_step;
                    let offer = Announcement { disposition: Disposition::Eager, ..held(ticket) };
                    let data = Message::Data { ticket, offset: 0, length: 4096 };
                    let bytes = [&Message::Offer(offer).encode()[..], &data.encode(), &[1; 4096]].concat();
                    if source.write_all(&bytes).is_err() {
                        return;
                    }
                }
            });
            let end = fate(&mut builder);
            drop(builder);
            end
        });
        assert!(error.is_violation() && error.to_string().contains(complaint), "{error}");
        assert!(said.len() <= 1 + 4);
    }
}

#[test]
fn a_source_that_never_listens_is_given_up() {
    let (mut source, mut builder) = raw_source();
    source.say(&[hello(0)]);
    let error = (0..u64::MAX).find_map(|below| {
        builder.release_tickets(below);
        builder.flush_messages().err()
    });
    let error = error.unwrap();
    assert!(error.is_violation() && error.to_string().contains("does not read"), "{error}");
}

// ---- hostile to a source, over TCP ---------------------------------------------------------------------------------

#[test]
fn a_source_names_what_a_builder_did_wrong() {
    let mut other_version = Message::Bye.encode();
    other_version[4] = 9;
    let fetch = |ticket, offset, length| Message::Fetch { ticket, offset, length }.encode().to_vec();
    let cases = [
        (
            b"HTTP/1.1 400 Bad Request\r\nServer: something else\r\nConnection: close\r\n\r\n".to_vec(),
            "does not speak the Thalweg",
        ),
        (other_version.to_vec(), "the peer speaks protocol version 9"),
        (Message::Offer(held(0)).encode().to_vec(), "the builder sent a source's message"),
        (Message::Data { ticket: 0, offset: 0, length: 64 }.encode().to_vec(), "the builder sent a source's message"),
        (fetch(0, 0, 4097), "requested bytes 0+4097 of ticket 0, which has 4096"),
        (fetch(0, 4096, 1), "requested bytes 4096+1 of ticket 0, which has 4096"),
        (fetch(0, 64, u32::MAX - 64), "of ticket 0, which has 4096"),
        (fetch(0, 64, u32::MAX), "`length` holds an impossible value"),
        (fetch(0, 0, 0), "`length` holds an impossible value"),
    ];
    for (bytes, complaint) in cases {
        let (mut source, mut builder) = raw_builder();
        source.announce_offer(&held(0));
        builder.write_all(&bytes).unwrap();
        let error = fate_of_source(&mut source);
        assert!(error.is_violation() && error.to_string().contains(complaint), "{error}, not {complaint}");
    }
}

#[test]
fn any_range_of_an_offer_is_served_in_the_order_of_the_fetches() {
    let (mut source, mut builder) = raw_builder();
    source.announce_offer(&held(0));
    source.announce_offer(&held(1));
    let ranges = [(1, 64, 128), (0, 4032, 64), (1, 0, 4096), (0, 1, 1), (0, 0, 4096)];
    for (ticket, offset, length) in ranges {
        builder.say(&[Message::Fetch { ticket, offset, length }]);
    }
    let mut answers = Vec::new();
    let whole = 2 * MESSAGE_LEN + ranges.iter().map(|(_, _, length)| MESSAGE_LEN + *length as usize).sum::<usize>();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut bytes = vec![0; whole];
            builder.read_exact(&mut bytes).unwrap();
            bytes
        });
        let mut said = Vec::new();
        while !reader.is_finished() {
            source.receive_messages(&mut said).unwrap();
            source.flush_messages().unwrap();
            std::thread::yield_now();
        }
        let bytes = reader.join().unwrap();
        let mut at = 2 * MESSAGE_LEN;
        for _ in ranges {
            let Message::Data { ticket, offset, length } = Message::decode(bytes[at..].first_chunk().unwrap()).unwrap()
            else {
                panic!("no data at byte {at}");
            };
            answers.push((ticket, offset, length));
            at += MESSAGE_LEN + length as usize;
        }
    });
    assert_eq!(answers, ranges);
}

#[test]
fn a_fetch_of_what_is_not_there_waits_only_so_long() {
    let (mut source, mut builder) = raw_builder();
    source.announce_offer(&held(0));
    // 8 slots of 1 MiB: 2144 fetches.
    (1..3000).for_each(|ticket| builder.say(&[Message::Fetch { ticket, offset: 0, length: 64 }]));
    let error = fate_of_source(&mut source);
    assert_eq!(error.to_string(), "protocol error: the builder has more than 2144 fetches open");
}

#[test]
fn a_fetch_flood_ends_at_what_an_honest_builder_may_have_open() {
    let (mut source, mut builder) = raw_builder();
    source.announce_offer(&held(0));
    let error = std::thread::scope(|scope| {
        scope.spawn(move || {
            let fetches = Message::Fetch { ticket: 0, offset: 0, length: 4096 }.encode().repeat(64);
            while builder.write_all(&fetches).is_ok() {}
        });
        let error = fate_of_source(&mut source);
        drop(source);
        error
    });
    assert_eq!(error.to_string(), "protocol error: the builder has more than 2144 fetches open");
}

#[test]
fn a_builder_that_never_listens_is_given_up() {
    let (mut source, _builder) = raw_builder();
    let error = (0..u64::MAX).find_map(|next| {
        source.send_message(&Message::Paused { next: EventId(next), asked_by: 0 });
        source.flush_messages().err()
    });
    let error = error.unwrap();
    assert!(error.is_violation() && error.to_string().contains("does not read"), "{error}");
}

#[test]
fn releasing_what_was_never_offered_releases_what_was() {
    let (mut source, mut builder) = raw_builder();
    source.announce_offer(&held(0));
    let release = Message::Release { below: u64::MAX };
    builder.say(&[release, Message::Fetch { ticket: 0, offset: 0, length: 4096 }]);
    drop(builder);
    let mut said = Vec::new();
    while source.receive_messages(&mut said).is_ok() {
        source_waits(&mut source);
    }
    assert_eq!(said, [release]);
}

#[test]
fn a_refusal_is_heard_whatever_it_says() {
    let refuse = Message::Refuse { reason: Refusal::Mismatch, text: 4 }.encode();
    let (mut source, mut builder) = raw_builder();
    builder.write_all(&[&refuse[..], &[b'n', b'o', 0xff, b'!']].concat()).unwrap();
    let error = fate_of_source(&mut source);
    assert!(
        matches!(&error, LinkError::Refused { reason: Refusal::Mismatch, text } if text == "no\u{fffd}!"),
        "{error}"
    );

    let (mut source, mut builder) = raw_builder();
    builder.write_all(&[&refuse[..], b"no"].concat()).unwrap();
    drop(builder);
    assert!(matches!(fate_of_source(&mut source), LinkError::Closed));

    let (mut source, mut builder) = raw_builder();
    builder.write_all(&framed(3, &[3, 0, 0, 0, 0xff, 0xff, 0xff, 0xff])).unwrap();
    assert!(fate_of_source(&mut source).to_string().contains("`text` holds an impossible value"));
}

// ---- anything at all -----------------------------------------------------------------------------------------------

/// Messages that are well formed and make no sense, followed by some bytes.
fn nonsense() -> impl Strategy<Value = Vec<u8>> {
    let word = (0u8..15, proptest::collection::vec(prop_oneof![3 => 0u8..4, 1 => any::<u8>()], 52), 0usize..300);
    let bytes = word.prop_map(|(kind, fields, behind)| [&framed(kind, &fields)[..], &vec![kind; behind]].concat());
    proptest::collection::vec(prop_oneof![4 => bytes.boxed(), 1 => Just(hello(0).encode().to_vec()).boxed()], 0..8)
        .prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nonsense_ends_in_an_error(to_builder in nonsense(), to_source in nonsense()) {
        let (mut source, mut builder) = raw_source();
        let (block, place) = place();
        builder.fetch_offer(&held(0), Some(place)).unwrap();
        source.say(&[hello(0)]);
        source.write_all(&to_builder).unwrap();
        drop(source);
        fate(&mut builder);
        returns(builder, &block);

        let (mut source, mut builder) = raw_builder();
        source.announce_offer(&held(0));
        builder.write_all(&to_source).unwrap();
        drop(builder);
        fate_of_source(&mut source);
    }
}

/// A builder that is slow, and is left out by its source meanwhile: the slot may be another fragment's by then, and the
/// kernel would read the bytes it has not sent yet from there. (The bytes in the builder's socket are still the arena's
/// pages, too, as long as both are on one host; a network adapter has read those it has sent.)
#[test]
fn a_link_that_is_closed_sends_no_more_of_a_slot() {
    let arena = Arena::create("source", 16 << 20).unwrap();
    let (mut source, mut builder) = raw_builder_of(&SourceGreeting { arena: Arc::clone(arena.arena()), ..greeting() });
    source.announce_offer(&Announcement { bytes: 16 << 20, ..held(0) });
    builder.say(&[Message::Fetch { ticket: 0, offset: 0, length: 16 << 20 }]);
    let mut begun = [0; 2 * MESSAGE_LEN];
    source.receive_messages(&mut Vec::new()).unwrap();
    source_waits(&mut source);
    source.receive_messages(&mut Vec::new()).unwrap();
    source.flush_messages().unwrap();
    builder.read_exact(&mut begun).unwrap();

    source.close_link();
    let (mut bytes, mut received) = (vec![0; 1 << 20], 0);
    let error = loop {
        match builder.read(&mut bytes) {
            Ok(0) => panic!("the rest came"),
            Ok(read) => received += read,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(received < 16 << 20);
}

// ---- hostile over shared memory ------------------------------------------------------------------------------------

#[test]
fn what_is_handed_over_is_what_was_agreed() {
    let good = Handover::new();
    let loose = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&loose, 1 << 20).unwrap();
    let file: OwnedFd = tempfile::tempfile().unwrap().into();
    let [arena, to_builder, to_source] = good.fds();
    let huge = rustix::fs::memfd_create("huge", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&huge, 1 << 34).unwrap();
    rustix::fs::fcntl_add_seals(&huge, SealFlags::SHRINK).unwrap();
    let (loose, file, huge) = (loose.as_fd(), file.as_fd(), huge.as_fd());
    let cases: [(&[BorrowedFd<'_>], &str); 9] = [
        (&[huge, to_builder, to_source], "received an arena of 17179869184 bytes"),
        (&[], "received 0 descriptors instead of 3"),
        (&[arena, to_builder], "received 2 descriptors instead of 3"),
        (&[arena, to_builder, to_source, arena], "received more file descriptors than the 3 expected"),
        (&[arena; 100], "received more file descriptors than the 3 expected"),
        (&[loose, to_builder, to_source], "the received arena is not sealed"),
        (&[file, to_builder, to_source], "the received arena is not sealed"),
        (&[arena, loose, to_source], "the received ring is not sealed"),
        (&[arena, to_builder, arena], "not a ring"),
    ];
    for (fds, complaint) in cases {
        let (source, mut builder, _dir) = raw_shm_source();
        assert_eq!(send_fds(&source, &hello(0).encode(), fds).unwrap(), MESSAGE_LEN);
        violates(&mut builder, complaint);
    }
    // In two parts, too.
    let (source, mut builder, _dir) = raw_shm_source();
    let hello = hello(0).encode();
    send_fds(&source, &hello[..10], &good.fds()[..2]).unwrap();
    builder_waits(&mut builder);
    listen(&mut builder, &mut Vec::new()).unwrap();
    send_fds(&source, &hello[10..], &good.fds()[..2]).unwrap();
    violates(&mut builder, "received more than 3 descriptors");
}

#[test]
fn what_comes_with_it_is_a_hello() {
    let good = Handover::new();
    let mut other_version = hello(0).encode();
    other_version[4] = 1;
    let cases = [
        (vec![b'x'; 200], "does not speak the Thalweg"),
        (other_version.to_vec(), "the peer speaks protocol version 1"),
        (Message::Bye.encode().to_vec(), "the first message must be a hello"),
        ([&hello(3).encode()[..], &[b'{'; 50_000]].concat(), "received more than a hello over the socket"),
        ([&hello(2).encode()[..], &[0xff, 0xff]].concat(), "not UTF-8"),
    ];
    for (bytes, complaint) in cases {
        let (source, mut builder, _dir) = raw_shm_source();
        let sent = send_fds(&source, &bytes, &good.fds()).unwrap();
        (&source).write_all(&bytes[sent..]).unwrap();
        violates(&mut builder, complaint);
    }
    for cut in [1, 63, 64, 70] {
        let (source, mut builder, _dir) = raw_shm_source();
        let bytes = [&hello(10).encode()[..], b"{\"name\""].concat();
        send_fds(&source, &bytes[..cut], &good.fds()).unwrap();
        drop(source);
        assert!(matches!(fate(&mut builder).1, LinkError::Closed));
    }
}

#[test]
fn an_offer_lies_within_the_arena() {
    for (arena_offset, bytes) in [(ARENA as u64, 64), (ARENA as u64 - 63, 64), (u64::MAX, 64), (0, u32::MAX - 63)] {
        let (mut source, mut builder) = greeted_shm_source(false);
        let offer = Announcement { arena_offset, bytes, ..held(0) };
        source.say(&[Message::Offer(offer)]);
        until(&mut builder, |said| said.iter().any(|said| matches!(said, Received::Message(Message::Offer(_)))));
        let error = builder.fetch_offer(&offer, None).unwrap_err();
        assert!(error.is_violation(), "{error}");
        assert!(error.to_string().contains(&format!("offered bytes {arena_offset}+{bytes} of an arena of {ARENA}")));
    }
}

#[test]
fn a_place_survives_an_offer_that_was_a_lie() {
    let lie = Announcement { arena_offset: u64::MAX - 4096, ..held(0) };
    let (_source, mut builder) = greeted_shm_source(false);
    let (block, to_place) = place();
    builder.fetch_offer(&lie, Some(to_place)).unwrap_err();
    assert!(!block.has_spans_out());

    let (mut source, mut builder) = greeted_shm_source(true);
    let (block, place) = place();
    builder.fetch_offer(&lie, Some(place)).unwrap();
    source.say(&[Message::Data { ticket: 0, offset: 0, length: 4096 }]);
    violates(&mut builder, "of an arena of");
    returns(builder, &block);
}

#[test]
fn what_a_source_says_over_a_ring_is_judged_as_over_a_socket() {
    let cases = [
        (
            Message::Data { ticket: 0, offset: 64, length: 64 },
            "received bytes 64+64 of ticket 0 instead of the requested 0+4096 of ticket 0",
        ),
        (Message::Data { ticket: 1, offset: 0, length: 64 }, "instead of the requested 0+4096 of ticket 0"),
        (Message::Welcome(welcome()), "unexpected from a source over a ring"),
        (hello(0), "unexpected from a source over a ring"),
    ];
    for (message, complaint) in cases {
        let (mut source, mut builder) = greeted_shm_source(true);
        builder.fetch_offer(&held(0), None).unwrap();
        source.say(&[message]);
        violates(&mut builder, complaint);
    }
    let (mut source, mut builder) = greeted_shm_source(true);
    source.push(&[0xa5; MESSAGE_LEN]);
    violates(&mut builder, "does not speak the Thalweg");

    let (source, mut builder) = greeted_shm_source(true);
    (&source.socket).write_all(b"by the way").unwrap();
    violates(&mut builder, "10 bytes over the socket that are not a message");
}

/// Thousands of wake-up bytes are permitted; a reason to leave is received after them.
#[test]
fn a_peer_may_wake_as_often_as_it_likes() {
    let (source, mut builder) = greeted_shm_source(false);
    for _ in 0..10 {
        (&source.socket).write_all(&[WAKE_BYTE; 10_000]).unwrap();
        builder_waits(&mut builder);
        listen(&mut builder, &mut Vec::new()).unwrap();
    }
    let (mut source, builder, _dir) = raw_shm_builder();
    let refusal = Message::Refuse { reason: Refusal::Ended, text: 3 }.encode();
    (&builder.socket).write_all(&[&[WAKE_BYTE; 3000][..], &refusal, b"bye"].concat()).unwrap();
    assert!(matches!(fate_of_source(&mut source), LinkError::Refused { text, .. } if text == "bye"));
}

#[test]
fn an_index_that_cannot_be_ends_the_link() {
    // The sender's index lies at byte 128 of a ring, the receiver's at 256.
    let (source, mut builder) = greeted_shm_source(false);
    rustix::io::pwrite(&source.to_builder, &1_000_000u32.to_le_bytes(), 128).unwrap();
    wake_over_socket(&source.socket).unwrap();
    violates(&mut builder, "index of a shared-memory ring to 1000000");

    let (source, mut builder) = greeted_shm_source(false);
    rustix::io::pwrite(&source.to_source, &77u32.to_le_bytes(), 256).unwrap();
    (0..100).for_each(|below| builder.release_tickets(below));
    let error = builder.flush_messages().unwrap_err();
    assert!(error.is_violation() && error.to_string().contains("index of a shared-memory ring to 77"), "{error}");
}

#[test]
fn a_source_that_never_looks_into_its_ring_is_given_up() {
    let (_source, mut builder) = greeted_shm_source(false);
    let error = (0..u64::MAX).find_map(|below| {
        builder.release_tickets(below);
        builder.flush_messages().err()
    });
    let error = error.unwrap();
    assert!(error.is_violation() && error.to_string().contains("does not read"), "{error}");
}

#[test]
fn a_ring_can_be_filled_many_times() {
    let (mut source, mut builder) = greeted_shm_source(false);
    let gone = |ticket| Announcement { bytes: 0, disposition: Disposition::DroppedNewest, ..held(ticket) };
    let mut said = Vec::new();
    for round in 0..10 {
        (0..64).for_each(|ticket| source.say(&[Message::Offer(gone(round * 64 + ticket))]));
        builder_waits(&mut builder);
        listen(&mut builder, &mut said).unwrap();
    }
    assert_eq!(said.len(), 640);
}

#[test]
fn a_builder_that_breaks_the_rules_over_a_ring_is_named() {
    let cases = [
        (Message::Fetch { ticket: 0, offset: 0, length: 4097 }, "requested bytes 0+4097 of ticket 0, which has 4096"),
        (Message::Offer(held(0)), "unexpected from a builder over a ring"),
        (Message::Data { ticket: 0, offset: 0, length: 4096 }, "unexpected from a builder over a ring"),
        (Message::Refuse { reason: Refusal::Ended, text: 0 }, "unexpected from a builder over a ring"),
    ];
    for (message, complaint) in cases {
        let (mut source, mut builder, _dir) = raw_shm_builder();
        source.announce_offer(&held(0));
        source.flush_messages().unwrap();
        builder.say(&[message]);
        let error = fate_of_source(&mut source);
        assert!(error.is_violation() && error.to_string().contains(complaint), "{error}, not {complaint}");
    }
    let (mut source, builder, _dir) = raw_shm_builder();
    (&builder.socket).write_all(&[b'?'; 64]).unwrap();
    assert!(fate_of_source(&mut source).to_string().contains("does not speak the Thalweg"));

    let (mut source, mut builder, _dir) = raw_shm_builder();
    (1..=97).for_each(|ticket| builder.push(&Message::Fetch { ticket, offset: 0, length: 64 }.encode()));
    let error = fate_of_source(&mut source);
    assert_eq!(error.to_string(), "protocol error: the builder has more than 96 fetches open");

    let (mut source, builder, _dir) = raw_shm_builder();
    rustix::io::pwrite(&builder.to_source, &5_000u32.to_le_bytes(), 128).unwrap();
    wake_over_socket(&builder.socket).unwrap();
    assert!(fate_of_source(&mut source).to_string().contains("index of a shared-memory ring to 5000"));
}

// ---- not hostile: of a later version -------------------------------------------------------------------------------

#[test]
fn a_kind_that_may_be_ignored_is_ignored() {
    let more = Message::Ignored { kind: 200 };
    let offer = Message::Offer(held(0));
    let (mut source, mut builder) = raw_source();
    source.say(&[hello(0), more, offer]);
    until(&mut builder, |said| matches!(said, [Received::Hello(..), Received::Message(Message::Offer(_))]));
    let (mut source, mut builder) = greeted_shm_source(false);
    source.say(&[more, offer]);
    until(&mut builder, |said| matches!(said, [Received::Message(Message::Offer(_))]));

    let (mut source, mut builder) = raw_builder();
    builder.say(&[more, Message::Pause]);
    assert_eq!(first_words(&mut source), [Message::Pause]);
    let (mut source, mut builder, _dir) = raw_shm_builder();
    builder.say(&[more, Message::Pause]);
    assert_eq!(first_words(&mut source), [Message::Pause]);
}

// ---- the pieces ----------------------------------------------------------------------------------------------------

fn hello(description: u32) -> Message {
    Message::Hello(Hello { description, ..greeting().hello })
}

fn greeting() -> SourceGreeting {
    let hello = Hello {
        session: 7,
        source: SourceId::new(1, 2),
        builder: 0,
        builders: 1,
        slots: 8,
        slot_bytes: 1 << 20,
        max_payload: 1 << 20,
        capabilities: Capabilities::empty(),
        description: 0,
    };
    SourceGreeting { hello, description: String::new(), arena: Arc::clone(arena().arena()) }
}

/// The arena of all sources, which only read it.
fn arena() -> &'static Span {
    static ARENA_OF_ALL: OnceLock<Span> = OnceLock::new();
    ARENA_OF_ALL.get_or_init(|| Arena::create("source", ARENA).unwrap())
}

fn welcome() -> Welcome {
    Welcome {
        run: RunNumber(1),
        eager_credit: 0,
        eager_limit: 0,
        most_records: 1,
        running: false,
        released_below: 0,
        capabilities: Capabilities::empty(),
    }
}

/// An offer of 4096 bytes.
fn held(ticket: u64) -> Announcement {
    Announcement {
        ticket,
        first: EventId(ticket),
        arena_offset: 0,
        count: 1,
        bytes: 4096,
        disposition: Disposition::Held,
    }
}

/// A block, and the place in it for the offer that `held` makes.
fn place() -> (Block, Span) {
    let mut block = BlockPool::new("places", 1, 4096).unwrap().take_block().unwrap();
    let place = block.carve_span(4096).unwrap();
    (block, place)
}

/// The place has returned with the link.
fn returns(builder: BuilderEnd, block: &Block) {
    drop(builder);
    assert!(!block.has_spans_out(), "a place is missing");
}

/// Generates 64 bytes with everything that makes a message, of any kind and content.
fn framed(kind: u8, fields: &[u8]) -> [u8; MESSAGE_LEN] {
    let mut cell = [0; MESSAGE_LEN];
    cell[0..4].copy_from_slice(&MESSAGE_MAGIC.to_le_bytes());
    cell[4] = PROTOCOL_VERSION;
    cell[5] = kind;
    cell[8..8 + fields.len()].copy_from_slice(fields);
    let crc = crc32c(&cell[..60]);
    cell[60..].copy_from_slice(&crc.to_le_bytes());
    cell
}

trait Say {
    fn say(&mut self, messages: &[Message]);
}

impl Say for TcpStream {
    fn say(&mut self, messages: &[Message]) {
        self.write_all(&messages.iter().flat_map(Message::encode).collect::<Vec<u8>>()).unwrap();
    }
}

/// A connection to a builder, from an untrusted peer.
fn raw_source() -> (TcpStream, BuilderEnd) {
    let door = Listening::open_endpoint(&"tcp:127.0.0.1:0".parse().unwrap(), EAGER).unwrap();
    let source = TcpStream::connect(door.listen_address().place()).unwrap();
    (source, door.accept_peer())
}

/// A source that has connected to an untrusted peer, and has sent its hello.
fn raw_builder() -> (SourceEnd, TcpStream) {
    raw_builder_of(&greeting())
}

fn raw_builder_of(greeting: &SourceGreeting) -> (SourceEnd, TcpStream) {
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", door.local_addr().unwrap()).parse().unwrap();
    let mut source = SourceEnd::connect_to_builder(&address, greeting).unwrap();
    let (mut builder, _) = door.accept().unwrap();
    source.flush_messages().unwrap();
    builder.read_exact(&mut [0; MESSAGE_LEN]).unwrap();
    (source, builder)
}

/// The descriptors that a source hands over.
struct Handover {
    arena: Span,
    to_builder: Ring,
    to_source: Ring,
}

impl Handover {
    fn new() -> Self {
        Self {
            arena: Arena::create("source", ARENA).unwrap(),
            to_builder: Ring::create("to-builder", 64).unwrap(),
            to_source: Ring::create("to-source", 64).unwrap(),
        }
    }

    fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.arena.arena().fd(), self.to_builder.fd(), self.to_source.fd()]
    }
}

fn raw_shm_source() -> (UnixStream, BuilderEnd, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("builder");
    let door = Listening::open_endpoint(&shm(&path), EAGER).unwrap();
    let source = UnixStream::connect(path).unwrap();
    let builder = door.accept_peer();
    (source, builder, dir)
}

/// A source that has handed everything over correctly, and will now break the rules.
struct ShmSource {
    socket: UnixStream,
    sender: RingSender,
    to_builder: OwnedFd,
    to_source: OwnedFd,
    _receiver: RingReceiver,
}

fn greeted_shm_source(withdraws: bool) -> (ShmSource, BuilderEnd) {
    let (socket, mut builder, _dir) = raw_shm_source();
    let good = Handover::new();
    let hello = Message::Hello(Hello { capabilities: withdrawing(withdraws), ..greeting().hello });
    send_fds(&socket, &hello.encode(), &good.fds()).unwrap();
    until(&mut builder, |said| matches!(said, [Received::Hello(..)]));
    let own = |ring: &Ring| ring.fd().try_clone_to_owned().unwrap();
    let source = ShmSource {
        socket,
        to_builder: own(&good.to_builder),
        to_source: own(&good.to_source),
        sender: good.to_builder.into_sender(),
        _receiver: good.to_source.into_receiver(),
    };
    (source, builder)
}

impl ShmSource {
    fn push(&mut self, cell: &[u8; MESSAGE_LEN]) {
        self.sender.push(cell).unwrap();
        if self.sender.publish() {
            wake_over_socket(&self.socket).unwrap();
        }
    }
}

impl Say for ShmSource {
    fn say(&mut self, messages: &[Message]) {
        messages.iter().for_each(|message| self.push(&message.encode()));
    }
}

/// A builder to which a source has handed everything over.
struct ShmBuilder {
    socket: UnixStream,
    sender: RingSender,
    to_source: OwnedFd,
}

fn raw_shm_builder() -> (SourceEnd, ShmBuilder, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("builder");
    let door = UnixListener::bind(&path).unwrap();
    let source = SourceEnd::connect_to_builder(&shm(&path), &greeting()).unwrap();
    let (socket, _) = door.accept().unwrap();
    let (_, fds) = recv_fds(&socket, &mut [0; MESSAGE_LEN], 3).unwrap();
    let [_arena, _to_builder, to_source] = <[OwnedFd; 3]>::try_from(fds).unwrap();
    let builder =
        ShmBuilder { socket, sender: Ring::import(to_source.try_clone().unwrap()).unwrap().into_sender(), to_source };
    (source, builder, dir)
}

impl ShmBuilder {
    fn push(&mut self, cell: &[u8; MESSAGE_LEN]) {
        self.sender.push(cell).unwrap();
        if self.sender.publish() {
            wake_over_socket(&self.socket).unwrap();
        }
    }
}

impl Say for ShmBuilder {
    fn say(&mut self, messages: &[Message]) {
        messages.iter().for_each(|message| self.push(&message.encode()));
    }
}

fn builder_waits(builder: &mut BuilderEnd) {
    if builder.prepare_wait() {
        wait(builder.poller().as_fd());
    }
}

fn source_waits(source: &mut SourceEnd) {
    if source.prepare_wait() {
        wait(source.poller().as_fd());
    }
}

fn wait(fd: BorrowedFd<'_>) {
    let poller = Poller::new().unwrap();
    poller.add_descriptor(fd, 0, Interest::READ).unwrap();
    let mut woken = false;
    poller.wait_for_events(Some(TIMEOUT), |_| woken = true).unwrap();
    assert!(woken, "nothing came");
}

/// Lets a builder receive everything that has come.
fn listen(builder: &mut BuilderEnd, said: &mut Vec<Received>) -> Result<(), LinkError> {
    builder.receive_messages(said)
}

/// Lets a builder receive until `enough`.
fn until(builder: &mut BuilderEnd, enough: impl Fn(&[Received]) -> bool) {
    let mut said = Vec::new();
    while !enough(&said) {
        builder_waits(builder);
        listen(builder, &mut said).unwrap();
    }
}

/// Lets a builder receive until its link ends. Returns what was received before, and the error.
fn fate(builder: &mut BuilderEnd) -> (Vec<Received>, LinkError) {
    let mut said = Vec::new();
    loop {
        builder_waits(builder);
        if let Err(error) = listen(builder, &mut said) {
            return (said, error);
        }
    }
}

fn violates(builder: &mut BuilderEnd, complaint: &str) {
    let (_, error) = fate(builder);
    assert!(error.is_violation() && error.to_string().contains(complaint), "{error}, not {complaint}");
}

fn fate_of_source(source: &mut SourceEnd) -> LinkError {
    let mut said = Vec::new();
    loop {
        if let Err(error) = source.receive_messages(&mut said) {
            return error;
        }
        source_waits(source);
    }
}

fn withdrawing(withdraws: bool) -> Capabilities {
    if withdraws { Capabilities::WITHDRAWS } else { Capabilities::empty() }
}

/// Returns the first messages that a source receives.
fn first_words(source: &mut SourceEnd) -> Vec<Message> {
    let mut said = Vec::new();
    while said.is_empty() {
        source.receive_messages(&mut said).unwrap();
        if said.is_empty() {
            source_waits(source);
        }
    }
    said
}

fn shm(path: &std::path::Path) -> Address {
    Address::new(LinkKind::SHM, path.to_str().unwrap()).unwrap()
}
