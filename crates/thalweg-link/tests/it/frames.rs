//! Hostile frames to a builder and to a source that listen on UDP: written by hand, from an ordinary socket.

use proptest::prelude::*;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use thalweg_arena::{Arena, BlockPool};
use thalweg_link::{
    Address, BuilderEndpoint, Eager, Endpoints, LinkError, LinkKind, Received, SourceEndpoint, SourceGreeting,
};
use thalweg_link_conformance::SourceEnd;
use thalweg_wire::{
    Announcement, Capabilities, Content, Disposition, EventId, HEAD_LEN, Head, Hello, MESSAGE_LEN, Message, Refusal,
    RunNumber, SourceId, Welcome,
};

const NOTHING: Eager = Eager { credit: 0, limit: 0 };
const HELLO: Hello = Hello {
    session: 1,
    source: SourceId::new(1, 0),
    builder: 0,
    builders: 1,
    slots: 4,
    slot_bytes: 1 << 20,
    max_payload: 1 << 20,
    capabilities: Capabilities::empty(),
    description: 2,
};

/// A builder, and a socket that plays sources.
struct Builder {
    all: Endpoints<dyn BuilderEndpoint>,
    begun: Instant,
    socket: UdpSocket,
    said: Vec<Received>,
}

impl Builder {
    fn new() -> Self {
        let mut all = Endpoints::<dyn BuilderEndpoint>::new().unwrap();
        let address = all.add_listener(&"udp:127.0.0.1:0".parse().unwrap(), NOTHING).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(address.place()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { all, begun: Instant::now(), socket, said: Vec::new() }
    }

    /// Receives and answers what comes.
    fn hear(&mut self) -> Result<(), LinkError> {
        self.turn(Duration::from_secs(60))
    }

    /// Does the same within `patience`, even if nothing comes.
    fn turn(&mut self, patience: Duration) -> Result<(), LinkError> {
        let mut tokens = Vec::new();
        self.all.poller().wait_for_events(Some(patience), |token| tokens.push(token)).unwrap();
        self.all.poll_peers(self.begun.elapsed(), &tokens, &mut Vec::new());
        let outcome = self.all.receive_messages(0, &mut self.said).map(drop);
        self.all.flush_messages(self.begun.elapsed(), &mut Vec::new());
        outcome
    }

    fn accept(&mut self) -> bool {
        self.all.accept_peer(0, 0).unwrap().is_some()
    }

    /// Greets, as a source that returns the token it is sent.
    fn greet(&mut self, connection: u64) {
        // Drops answers to earlier greetings: the challenge needs room.
        self.socket.set_nonblocking(true).unwrap();
        while self.socket.recv(&mut [0; 2000]).is_ok() {}
        self.socket.set_nonblocking(false).unwrap();
        self.socket.send(&greeting(connection, 0)).unwrap();
        self.hear().unwrap();
        let token = loop {
            // Answers to earlier greetings come meanwhile.
            if let Content::Challenge { token } = self.answer().content {
                break token;
            }
        };
        self.socket.send(&greeting(connection, token)).unwrap();
        self.hear().unwrap();
    }

    /// Accepts a source that greets as connection 7.
    fn greeted() -> Self {
        let mut builder = Self::new();
        builder.greet(7);
        assert!(builder.accept());
        builder.turn(Duration::ZERO).unwrap();
        assert!(matches!(&builder.said[..], [Received::Hello(HELLO, text)] if text == "{}"), "{:?}", builder.said);
        builder.said.clear();
        builder
    }

    fn answer(&self) -> Head {
        let mut room = [0; 2000];
        let length = self.socket.recv(&mut room).unwrap();
        Head::decode(&room[..length]).unwrap().0
    }
}

fn head(connection: u64, content: Content) -> Head {
    Head { content, length: 0, connection, answer: false, received: 0, also: 0, served: 0, stamp: 0, echo: None }
}

fn frame(head: Head, content: &[u8]) -> Vec<u8> {
    [&Head { length: content.len() as u16, ..head }.encode(content)[..], content].concat()
}

fn words(connection: u64, first: u32, messages: &[Message]) -> Vec<u8> {
    let content = messages.iter().flat_map(Message::encode).collect::<Vec<u8>>();
    frame(head(connection, Content::Words { first, token: 0 }), &content)
}

fn greeting(connection: u64, token: u64) -> Vec<u8> {
    let mut text = [0; MESSAGE_LEN];
    text[..2].copy_from_slice(b"{}");
    let content = [Message::Hello(HELLO).encode(), text].concat();
    frame(head(connection, Content::Words { first: 0, token }), &content)
}

fn held(ticket: u64) -> Announcement {
    Announcement {
        ticket,
        first: EventId(ticket),
        arena_offset: 0,
        count: 1,
        bytes: 6400,
        disposition: Disposition::Held,
    }
}

#[test]
fn a_connection_begins_with_a_hello_and_nothing_else() {
    let mut builder = Builder::new();
    let no_hello = words(7, 0, &[Message::Pause]);
    let late = words(7, 3, &[Message::Hello(HELLO)]);
    let damaged = greeting(7, 0).iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == 40)).collect::<Vec<u8>>();
    for nonsense in [b"".to_vec(), b"hello".to_vec(), vec![0; 1400], damaged, no_hello, late] {
        builder.socket.send(&nonsense).unwrap();
        builder.hear().unwrap();
        assert!(!builder.accept());
    }
    // None was answered: these may have overtaken a hello. A sender that has received something before is answered, in
    // as many bytes.
    builder.socket.send(&frame(Head { received: 1, ..head(7, Content::Words { first: 3, token: 0 }) }, &[])).unwrap();
    builder.hear().unwrap();
    assert_eq!((builder.answer(), builder.said.len()), (head(7, Content::Over), 0));
}

#[test]
fn a_connection_is_one_host_and_port() {
    let mut builder = Builder::greeted();
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    other.connect(builder.socket.peer_addr().unwrap()).unwrap();
    other.send(&words(7, 2, &[Message::Offer(held(0))])).unwrap();
    builder.hear().unwrap();
    other.send(&frame(head(7, Content::Over), &[])).unwrap();
    builder.hear().unwrap();
    assert!(builder.said.is_empty(), "{:?}", builder.said);
    builder.socket.send(&words(7, 2, &[Message::Offer(held(0))])).unwrap();
    builder.hear().unwrap();
    assert!(matches!(builder.said[..], [Received::Message(Message::Offer(_))]));
}

#[test]
fn what_was_closed_does_not_begin_again_with_what_comes_late() {
    let mut builder = Builder::greeted();
    builder.all.close_link(0);
    // Skips to the last frame that was sent to it.
    while builder.answer().content != Content::Over {}
    for _ in 0..3 {
        builder.greet(7);
        assert!(!builder.accept());
    }
    // A new connection does.
    builder.greet(8);
    assert!(builder.accept());
}

#[test]
fn bytes_that_nobody_asked_for_end_the_connection() {
    let block = BlockPool::new("builder", 1, 1 << 20).unwrap().take_block().unwrap();
    for (offset, length, asked) in [(3200, 64, 3200), (0, 3264, 3200), (u32::MAX, 64, 6400)] {
        let mut block = BlockPool::new("builder", 1, 1 << 20).unwrap().take_block().unwrap();
        let mut builder = Builder::greeted();
        builder.socket.send(&words(7, 2, &[Message::Offer(held(0))])).unwrap();
        builder.hear().unwrap();
        let place = block.carve_span(6400);
        builder.all.builder_link_mut(0).unwrap().begin_fetch(&held(0), place, asked).unwrap();
        builder.turn(Duration::ZERO).unwrap();
        let piece = frame(head(7, Content::Piece { ticket: 0, offset }), &vec![1; length]);
        builder.socket.send(&piece).unwrap();
        let error = builder.hear().unwrap_err();
        assert!(error.is_violation() && error.to_string().contains("were requested"), "{error}");
        builder.all.close_link(0);
        assert!(!block.has_spans_out());
    }
    // A piece of a ticket that was not fetched at all: it may have come twice.
    let mut builder = Builder::greeted();
    builder.socket.send(&frame(head(7, Content::Piece { ticket: 9, offset: 0 }), &[1; 64])).unwrap();
    builder.hear().unwrap();
    drop(block);
}

#[test]
fn who_broke_a_rule_is_told_why_it_ends() {
    let mut builder = Builder::greeted();
    builder.socket.send(&words(7, 2, &[Message::Pause])).unwrap();
    let error = builder.hear().unwrap_err();
    builder.all.builder_link_mut(0).unwrap().refuse_source(Refusal::Protocol, &error.to_string());
    builder.all.close_link(0);
    let mut room = [0; 2000];
    let told = loop {
        let length = builder.socket.recv(&mut room).unwrap();
        let (head, content) = Head::decode(&room[..length]).unwrap();
        assert_ne!(head.content, Content::Over, "it is told before it ends");
        if let Some((word, text)) = content.split_first_chunk::<MESSAGE_LEN>() {
            assert!(matches!(Message::decode(word), Ok(Message::Refuse { reason: Refusal::Protocol, .. })));
            break String::from_utf8_lossy(text).into_owned();
        }
    };
    assert!(told.contains("the source sent a builder's message"), "{told}");
}

#[test]
fn a_false_sender_takes_no_place_and_is_answered_with_less_than_came() {
    let mut builder = Builder::new();
    let mut room = [0; 2000];
    for connection in 0..100 {
        let hello = greeting(connection, 5);
        builder.socket.send(&hello).unwrap();
        builder.hear().unwrap();
        let length = builder.socket.recv(&mut room).unwrap();
        assert!(length < hello.len(), "{length} bytes for {}", hello.len());
        assert!(!builder.accept());
    }
    // Nothing more comes of this connection.
    builder.all.poll_peers(builder.begun.elapsed() + Duration::from_secs(5), &[], &mut Vec::new());
    builder.all.flush_messages(builder.begun.elapsed() + Duration::from_secs(5), &mut Vec::new());
    builder.socket.set_nonblocking(true).unwrap();
    assert!(builder.socket.recv(&mut room).is_err());
}

#[test]
fn a_token_is_for_one_address_and_one_connection() {
    let mut builder = Builder::new();
    builder.socket.send(&greeting(7, 0)).unwrap();
    builder.hear().unwrap();
    let Content::Challenge { token } = builder.answer().content else { panic!("no challenge") };
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    other.connect(builder.socket.peer_addr().unwrap()).unwrap();
    other.send(&greeting(7, token)).unwrap();
    builder.hear().unwrap();
    builder.socket.send(&greeting(8, token)).unwrap();
    builder.hear().unwrap();
    assert!(!builder.accept());
}

#[test]
fn damaged_words_are_lost_words() {
    let mut builder = Builder::greeted();
    let offer = words(7, 2, &[Message::Offer(held(0))]);
    for at in 64..offer.len() {
        let mut damaged = offer.clone();
        damaged[at] ^= 1;
        builder.socket.send(&damaged).unwrap();
        builder.hear().unwrap();
    }
    assert!(builder.said.is_empty());
    builder.socket.send(&offer).unwrap();
    builder.hear().unwrap();
    assert!(matches!(builder.said[..], [Received::Message(Message::Offer(_))]));
}

#[test]
fn what_came_and_was_not_taken_is_counted_by_its_cause() {
    let mut builder = Builder::greeted();
    let before = builder.all.arrival_counts();
    let mut damaged = words(7, 2, &[Message::Offer(held(0))]);
    damaged[80] ^= 1;
    let mut old = words(7, 2, &[Message::Offer(held(0))]);
    old[4] = 1;
    for nonsense in [damaged, old, b"hello".to_vec()] {
        builder.socket.send(&nonsense).unwrap();
        builder.hear().unwrap();
    }
    let after = builder.all.arrival_counts();
    assert_eq!((after.damaged - before.damaged, after.foreign - before.foreign, after.dropped), (1, 2, 0));
    // More than the socket's buffer holds. The kernel reports drops with the next datagram that it takes.
    for _ in 0..1000 {
        builder.socket.send(&[0; 8000]).unwrap();
    }
    for _ in 0..100 {
        builder.turn(Duration::ZERO).unwrap();
    }
    builder.socket.send(b"hello").unwrap();
    builder.hear().unwrap();
    assert!(builder.all.arrival_counts().dropped > 0, "{:?}", builder.all.arrival_counts());
}

#[test]
fn an_over_ends_it_and_frames_of_no_connection_get_one() {
    let mut builder = Builder::greeted();
    builder.socket.send(&frame(head(7, Content::Over), &[])).unwrap();
    assert!(matches!(builder.hear(), Err(LinkError::Closed)));
}

#[test]
fn strangers_who_only_greet_are_no_more_than_so_many() {
    let mut builder = Builder::new();
    for connection in 0..1100 {
        builder.greet(connection);
    }
    let mut let_in = 0;
    while builder.all.accept_peer(0, let_in).unwrap().is_some() {
        let_in += 1;
    }
    assert!((250..=1024).contains(&let_in), "{let_in}");
}

/// A source, and a socket that plays its builder.
struct Source {
    all: Endpoints<dyn SourceEndpoint>,
    begun: Instant,
    socket: UdpSocket,
    /// Address of the source, and number of the connection it drew.
    from: SocketAddr,
    connection: u64,
    _memory: thalweg_arena::Span,
}

impl Source {
    fn new() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let address = Address::new(LinkKind::UDP, &socket.local_addr().unwrap().to_string()).unwrap();
        let memory = Arena::create("slots", 1 << 20).unwrap();
        let greeting =
            SourceGreeting { hello: HELLO, description: "{}".into(), arena: std::sync::Arc::clone(memory.arena()) };
        let mut all =
            Endpoints::<dyn SourceEndpoint>::new().unwrap().with_builders(std::slice::from_ref(&address)).unwrap();
        all.connect_to_builder(0, &address, None, &greeting).unwrap();
        let mut room = vec![0; 1 << 16];
        let (length, from) = socket.recv_from(&mut room).unwrap();
        let (head, content) = Head::decode(&room[..length]).unwrap();
        // As long as the answer of the builder may be.
        assert_eq!((length, content.len()), (1232, 2 * MESSAGE_LEN));
        Self { all, begun: Instant::now(), socket, from, connection: head.connection, _memory: memory }
    }

    fn say(&self, datagram: &[u8]) {
        self.socket.send_to(datagram, self.from).unwrap();
    }

    /// Receives and answers what comes.
    fn hear(&mut self, heard: &mut Vec<Message>) -> Result<(), LinkError> {
        self.turn(heard, Duration::from_secs(60))
    }

    /// Does the same, even if nothing comes.
    fn turn(&mut self, heard: &mut Vec<Message>, patience: Duration) -> Result<(), LinkError> {
        let mut tokens = Vec::new();
        self.all.poller().wait_for_events(Some(patience), |token| tokens.push(token)).unwrap();
        self.all.poll_peers(self.begun.elapsed(), &tokens, &mut Vec::new());
        let outcome = self.all.receive_messages(0, heard).map(drop);
        self.all.flush_messages(self.begun.elapsed(), &mut Vec::new());
        outcome
    }
}

fn welcome() -> Message {
    Message::Welcome(Welcome {
        run: RunNumber(1),
        eager_credit: 0,
        eager_limit: 0,
        most_records: 4096,
        running: true,
        released_below: 0,
        capabilities: Capabilities::empty(),
    })
}

#[test]
fn a_builder_that_is_not_there_any_more_is_believed_once_it_was_there() {
    let (mut source, mut heard) = (Source::new(), Vec::new());
    let over = frame(head(source.connection, Content::Over), &[]);
    // A hello may have come twice, and late: to a builder that does not remember the connection.
    source.say(&over);
    source.hear(&mut heard).unwrap();
    source.say(&words(source.connection, 0, &[welcome()]));
    source.hear(&mut heard).unwrap();
    assert_eq!(heard, [welcome()]);
    source.say(&over);
    assert!(matches!(source.hear(&mut heard), Err(LinkError::Closed)));
}

#[test]
fn a_builder_may_answer_from_another_address_than_it_was_called_at() {
    let (mut source, mut heard) = (Source::new(), Vec::new());
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    // A frame with another number is dropped.
    other.send_to(&words(source.connection + 1, 0, &[welcome()]), source.from).unwrap();
    source.turn(&mut heard, Duration::from_secs(60)).unwrap();
    other.send_to(&words(source.connection, 0, &[welcome()]), source.from).unwrap();
    source.hear(&mut heard).unwrap();
    assert_eq!(heard, [welcome()]);
    // The builder is at the address of `other`, and nowhere else.
    let mut room = [0; 2000];
    other.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    other.recv_from(&mut room).unwrap();
    source.say(&words(source.connection, 1, &[Message::Pause]));
    source.hear(&mut heard).unwrap();
    assert_eq!(heard, [welcome()]);
}

#[test]
fn a_builder_may_listen_at_any_address() {
    let mut builder = Builder::new();
    builder.all = Endpoints::<dyn BuilderEndpoint>::new().unwrap();
    let address = builder.all.add_listener(&"udp:0.0.0.0:0".parse().unwrap(), NOTHING).unwrap();
    let memory = Arena::create("slots", 1 << 20).unwrap();
    let greeting =
        SourceGreeting { hello: HELLO, description: "{}".into(), arena: std::sync::Arc::clone(memory.arena()) };
    let mut source = SourceEnd::connect_to_builder(&address, &greeting).unwrap();
    let (mut heard, begun) = (Vec::new(), Instant::now());
    while heard.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no welcome comes");
        builder.turn(Duration::from_millis(1)).unwrap();
        if builder.accept() {
            builder.all.builder_link_mut(0).unwrap().send_message(&welcome());
        }
        source.receive_messages(&mut heard).unwrap();
        source.flush_messages().unwrap();
    }
    assert_eq!(heard, [welcome()]);
}

#[test]
fn a_source_names_what_a_builder_did_wrong() {
    let fetch = |offset, length| Message::Fetch { ticket: 0, offset, length };
    for (what, expected) in [
        (fetch(0, 6464), "requested bytes 0+6464 of ticket 0, which has 6400"),
        (fetch(u32::MAX, 64), "`length` holds an impossible value"),
        (Message::Paused { next: EventId(0), asked_by: 0 }, "the builder sent a source's message"),
    ] {
        let (mut source, mut heard) = (Source::new(), Vec::new());
        source.say(&words(source.connection, 0, &[welcome()]));
        source.hear(&mut heard).unwrap();
        source.all.source_link_mut(0).unwrap().announce_offer(&held(0));
        source.turn(&mut heard, Duration::ZERO).unwrap();
        source.say(&words(source.connection, 1, &[what]));
        let error = source.hear(&mut heard).unwrap_err();
        assert!(error.is_violation() && error.to_string().contains(expected), "{error}");
    }
    let (mut source, mut heard) = (Source::new(), Vec::new());
    source.say(&words(source.connection, 0, &[welcome()]));
    source.hear(&mut heard).unwrap();
    source.say(&frame(head(source.connection, Content::Piece { ticket: 0, offset: 0 }), &[0; 64]));
    assert!(source.hear(&mut heard).unwrap_err().to_string().contains("the builder sent bytes of ticket 0"));
}

#[test]
fn nobody_at_the_address_is_found_out_at_once() {
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = Address::new(LinkKind::UDP, &gone.to_string()).unwrap();
    let memory = Arena::create("slots", 1 << 20).unwrap();
    let greeting =
        SourceGreeting { hello: HELLO, description: "{}".into(), arena: std::sync::Arc::clone(memory.arena()) };
    let mut all =
        Endpoints::<dyn SourceEndpoint>::new().unwrap().with_builders(std::slice::from_ref(&address)).unwrap();
    all.connect_to_builder(0, &address, None, &greeting).unwrap();
    let mut tokens = Vec::new();
    all.poller().wait_for_events(Some(Duration::from_secs(60)), |token| tokens.push(token)).unwrap();
    all.poll_peers(Duration::ZERO, &tokens, &mut Vec::new());
    assert!(matches!(all.receive_messages(0, &mut Vec::new()), Err(LinkError::Closed)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Well-formed frames with arbitrary content, to both ends: they end in an error, or do nothing.
    #[test]
    fn nonsense_does_no_harm(
        frames in proptest::collection::vec((
            0u8..3, prop_oneof![0u32..6, any::<u32>()], 0u64..3, prop_oneof![0u32..6, any::<u32>()],
            any::<(u64, u32)>(), proptest::collection::vec(0u8..25, 0..4), any::<bool>(),
        ), 0..12),
    ) {
        let (mut builder, mut source, mut heard) = (Builder::greeted(), Source::new(), Vec::new());
        source.say(&words(source.connection, 0, &[welcome()]));
        source.hear(&mut heard).unwrap();
        let mut block = BlockPool::new("builder", 1, 1 << 20).unwrap().take_block().unwrap();
        let place = block.carve_span(6400);
        builder.all.builder_link_mut(0).unwrap().begin_fetch(&held(0), place, 6400).unwrap();
        let _ = builder.turn(Duration::ZERO);
        source.all.source_link_mut(0).unwrap().announce_offer(&held(0));
        for (kind, number, ticket, received, (also, served), cells, answer) in frames {
            let content = match kind {
                0 => Content::Words { first: number, token: 0 },
                1 => Content::Piece { ticket, offset: number },
                _ => Content::Over,
            };
            let mut bytes = Vec::new();
            for kind in cells {
                let mut cell = Message::Pause.encode();
                cell[5] = kind;
                let crc = thalweg_wire::crc32c(&cell[..60]);
                cell[60..].copy_from_slice(&crc.to_le_bytes());
                bytes.extend_from_slice(&cell);
            }
            let of = |connection| Head { received, also, served, answer, ..head(connection, content) };
            builder.socket.send(&frame(of(7), &bytes)).unwrap();
            source.say(&frame(of(source.connection), &bytes));
            let _ = builder.turn(Duration::ZERO);
            let _ = source.turn(&mut heard, Duration::ZERO);
            prop_assert!(bytes.len() + HEAD_LEN < 2000);
        }
        builder.all.close_link(0);
        builder.said.clear();
        prop_assert!(!block.has_spans_out());
        // Otherwise they repeat their last words.
        builder.socket.send(&frame(head(7, Content::Over), &[])).unwrap();
        let _ = builder.turn(Duration::ZERO);
        source.say(&frame(head(source.connection, Content::Over), &[]));
        let _ = source.turn(&mut heard, Duration::ZERO);
    }
}
