//! Behaviour of a source whose builder breaks the rules.

use crate::by_hand::*;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_link::{Address, Interest, LinkError, Poller, SourceGreeting};
use thalweg_link_conformance::{SourceEnd, arena_of_sources};
use thalweg_rdma::*;
use thalweg_rdma_link::register_links;
use thalweg_wire::{
    Announcement, Capabilities, Disposition, EventId, Hello, MESSAGE_LEN, Message, Refusal, Region, SourceId, crc32c,
};

fn greeting() -> SourceGreeting {
    let hello = Hello {
        session: 1,
        source: SourceId::new(1, 1),
        builder: 0,
        builders: 1,
        slots: 4,
        slot_bytes: 1 << 20,
        max_payload: 1 << 20,
        capabilities: Capabilities::empty(),
        description: 2,
    };
    SourceGreeting { hello, description: "{}".into(), arena: Arc::clone(arena_of_sources().arena()) }
}

fn turn(source: &mut SourceEnd, received: &mut Vec<Message>) -> Result<(), LinkError> {
    source.receive_messages(received)?;
    source.flush_messages()
}

fn wait(source: &mut SourceEnd) {
    let poller = Poller::new().unwrap();
    poller.add_descriptor(source.poller().as_fd(), 0, Interest::READ).unwrap();
    let timeout = if source.prepare_wait() { Duration::from_millis(20) } else { Duration::ZERO };
    poller.wait_for_events(Some(timeout), |_| {}).unwrap();
}

fn fate(source: &mut SourceEnd) -> LinkError {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Err(error) = turn(source, &mut Vec::new()) {
            return error;
        }
        assert!(Instant::now() < end, "the link does not end");
        wait(source);
    }
}

/// A builder by hand with a source, whose greeting it has received: with the region that the source announced.
fn connected() -> (Hand, Connection, SourceEnd, Region) {
    let hand = Hand::new();
    let listener = hand.device.listen("127.0.0.1:0".parse().unwrap(), 1).unwrap();
    let address = Address::new(register_links().iwarp, &listener.local_address().to_string()).unwrap();
    let mut source = SourceEnd::connect_to_builder(&address, &greeting()).unwrap();
    let request = loop {
        turn(&mut source, &mut Vec::new()).unwrap();
        if let Some(request) = listener.wait_for_request(Duration::ZERO).unwrap() {
            break request;
        }
        wait(&mut source);
    };
    assert_eq!(request.peer_parameters().private_data, GREETING);
    let connection = request.accept(&hand.queue, parameters(GREETING), PATIENCE).unwrap();
    let receipt = loop {
        turn(&mut source, &mut Vec::new()).unwrap();
        if let Some(done) = hand.completions.poll_one().unwrap() {
            break done;
        }
        wait(&mut source);
    };
    let bytes = hand.received(&receipt);
    let messages = &bytes[4..];
    let hello = Message::decode(messages.first_chunk().unwrap()).unwrap();
    assert_eq!(hello, Message::Hello(greeting().hello));
    let Message::Region(region) = Message::decode(messages[MESSAGE_LEN + 2..].first_chunk().unwrap()).unwrap() else {
        panic!("the region follows the greeting");
    };
    assert_eq!(region.length, arena_of_sources().arena().size_bytes() as u64);
    (hand, connection, source, region)
}

#[test]
fn what_is_no_message_of_a_builder_is_named() {
    let cases = [
        (Message::End(Default::default()), "sent a source's message"),
        (Message::Region(Region::default()), "sent a source's message"),
    ];
    for (message, complaint) in cases {
        let (hand, _connection, mut source, _) = connected();
        hand.say(&[message]);
        let error = fate(&mut source);
        assert!(error.is_violation() && error.to_string().contains(complaint), "{error}");
    }
    let (hand, _connection, mut source, _) = connected();
    hand.say_with(&[], &[0xff; 64]);
    assert!(fate(&mut source).is_violation());
}

#[test]
fn a_refusal_comes_with_its_text() {
    let (hand, _connection, mut source, _) = connected();
    hand.say_with(&[Message::Refuse { reason: Refusal::Ended, text: 5 }], b"later");
    let error = fate(&mut source);
    assert!(matches!(&error, LinkError::Refused { reason: Refusal::Ended, text } if text == "later"), "{error}");
}

#[test]
fn a_fetch_of_bytes_that_do_not_exist_is_an_error() {
    let (hand, _connection, mut source, _) = connected();
    let offer = Announcement {
        ticket: 0,
        first: EventId(0),
        arena_offset: 0,
        count: 1,
        bytes: 4096,
        disposition: Disposition::Held,
    };
    source.announce_offer(&offer);
    hand.say(&[Message::Fetch { ticket: 0, offset: 64, length: 4096 }]);
    let error = fate(&mut source);
    assert!(error.to_string().contains("requested bytes 64+4096 of ticket 0, which has 4096"), "{error}");
}

#[test]
fn more_fetches_than_an_honest_builder_makes_are_an_error() {
    let (hand, _connection, mut source, _) = connected();
    let fetches: Vec<Message> = (0..60).map(|ticket| Message::Fetch { ticket, offset: 0, length: 64 }).collect();
    let flood = std::thread::spawn(move || {
        for _ in 0..2 {
            hand.say(&fetches);
        }
        hand
    });
    let error = fate(&mut source);
    assert!(error.to_string().contains("fetches open"), "{error}");
    drop(flood.join().unwrap());
}

/// A builder has the right to read the arena, and no other.
#[test]
fn a_builder_cannot_write_to_the_arena_nor_read_beyond_it() {
    let before = crc32c(arena_of_sources());
    let from = |region: &Region, at| RemoteAddress { address: region.base + at, stag: region.key as u32 };
    for (beyond, writes) in [(false, true), (true, false)] {
        let (hand, _connection, mut source, region) = connected();
        let at = if beyond { region.length - 10 } else { 0 };
        let own = [hand.memory.sge(0, 64)];
        let work = match writes {
            true => Work::Write { data: Data::Memory(&own), to: from(&region, at), immediate: None },
            false => Work::Read { into: &own, from: from(&region, at) },
        };
        hand.queue.post_send(&SendRequest::signaled(7, work)).unwrap();
        // The source's node is not to blame: its RNIC ends the stream.
        let error = fate(&mut source);
        assert!(matches!(error, LinkError::Closed), "{error}");
    }
    assert_eq!(crc32c(arena_of_sources()), before);
}

#[test]
fn a_port_at_which_no_builder_over_rdma_listens_is_an_error() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = Address::new(register_links().iwarp, &port.to_string()).unwrap();
    let mut source = SourceEnd::connect_to_builder(&address, &greeting()).unwrap();
    let error = fate(&mut source);
    assert!(!error.is_violation() && error.to_string().contains(&format!("connecting to {address}")), "{error}");
    // One that speaks RDMA, and is no builder.
    let hand = Hand::new();
    let listener = hand.device.listen("127.0.0.1:0".parse().unwrap(), 1).unwrap();
    let address = Address::new(register_links().iwarp, &listener.local_address().to_string()).unwrap();
    let mut source = SourceEnd::connect_to_builder(&address, &greeting()).unwrap();
    let request = loop {
        turn(&mut source, &mut Vec::new()).unwrap();
        if let Some(request) = listener.wait_for_request(Duration::ZERO).unwrap() {
            break request;
        }
        wait(&mut source);
    };
    let _connection = request.accept(&hand.queue, parameters(b"other"), PATIENCE).unwrap();
    let error = fate(&mut source);
    assert!(error.is_violation() && error.to_string().contains("is no builder over RDMA"), "{error}");
}
