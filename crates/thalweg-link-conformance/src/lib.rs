//! Conformance tests for links: written once, and instantiated for each kind of link.
//!
//! ```text
//! use thalweg_link_conformance::{Over, link_conformance};
//!
//! link_conformance!(mine, Over::new(LinkKind::register(&Mine)));
//! ```
//!
//! makes a module of tests, `mine`, one for each story below. A kind of link with a clock of its own brings a
//! [`Medium`] of its own. Nothing sleeps: if both ends have nothing to do, the test waits for their descriptors (or
//! lets virtual time pass), and a wait in vain fails it.
//!
//! A link of frames is also tested over a [`Foul`] port. [`SourceEnd`], [`BuilderEnd`] and [`Listening`] serve tests in
//! which one end is driven by the test itself.
//!
//! The crate is for `[dev-dependencies]` only.
#![forbid(unsafe_code)]
#![expect(
    missing_docs,
    clippy::missing_panics_doc,
    reason = "a story's name describes it; it panics where the link behaves otherwise"
)]

mod foul;

pub use foul::Foul;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use thalweg_arena::{Arena, Block, BlockPool, Span};
use thalweg_link::{
    Address, BuilderEndpoint, BuilderLink, Bytes, Eager, Endpoint, Endpoints, Interest, LinkError, LinkKind, Poller,
    Received, SourceEndpoint, SourceGreeting, SourceLink,
};
use thalweg_wire::{
    Announcement, Capabilities, Disposition, EventId, FinalCounters, Hello, Message, RecordBytes, Refusal, RunNumber,
    SourceId, TaiNanos, Welcome, crc32c,
};

/// Size of the sources' arena in bytes.
const ARENA: usize = 8 << 20;
/// Bytes of destinations that a builder reserves at a time, or more if one fetch needs more.
const PLACES: usize = 2 << 20;
/// Limit on waiting, for tests that would otherwise hang.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Connection between the two ends in a test.
pub trait Medium {
    /// Returns true if messages sent just before the sender died are always received.
    fn is_faithful(&self) -> bool;

    /// Returns the kind of link.
    fn link_kind(&self) -> LinkKind;

    /// Returns true if the source's bytes are sent from where they lie. On a faithful medium of which this is true, the
    /// builder's side copies each byte once.
    fn gathers_pieces(&self) -> bool {
        self.is_faithful()
    }

    /// Returns true if the builder's side copies the bytes that it receives. The copies of an adapter are its own.
    fn copies_received_bytes(&self) -> bool {
        true
    }

    /// Returns the directory in which builders listen.
    fn listen_directory(&self) -> &Path;

    /// Waits until one of the ends has something to do.
    fn wait_for_ends(&mut self, source: Option<&mut SourceEnd>, builder: Option<&mut BuilderEnd>) {
        let poller = Poller::new().unwrap();
        let (mut woken, mut next) = (0, None);
        if let Some(source) = source {
            woken += u32::from(!source.all.prepare_wait());
            next = source.time_until_poll();
            poller.add_descriptor(source.all.poller().as_fd(), 0, Interest::READ).unwrap();
        }
        if let Some(builder) = builder {
            woken += u32::from(!builder.all.prepare_wait());
            next = next.into_iter().chain(builder.time_until_poll()).min();
            poller.add_descriptor(builder.all.poller().as_fd(), 1, Interest::READ).unwrap();
        }
        let timeout = if woken > 0 { Duration::ZERO } else { next.unwrap_or(TIMEOUT) };
        poller.wait_for_events(Some(timeout), |_| woken += 1).unwrap();
        assert!(woken > 0 || next.is_some(), "neither end has anything to do");
    }
}

/// Medium for a registered kind of link.
#[derive(Debug)]
pub struct Over {
    kind: LinkKind,
    directory: tempfile::TempDir,
}

impl Over {
    /// Creates a medium with a directory of its own, for kinds that listen in one.
    ///
    /// # Panics
    /// A directory for temporary files cannot be made.
    pub fn new(kind: LinkKind) -> Self {
        Self { kind, directory: tempfile::tempdir().unwrap() }
    }
}

impl Medium for Over {
    fn is_faithful(&self) -> bool {
        !self.kind.frames
    }

    fn link_kind(&self) -> LinkKind {
        self.kind
    }

    fn listen_directory(&self) -> &Path {
        self.directory.path()
    }
}

/// An endpoint with exactly one peer: its methods are those of the link to this peer.
#[derive(Debug)]
pub struct End<E: ?Sized> {
    all: Endpoints<E>,
    begun: Instant,
    /// True if the last poll reported that data can be received.
    has_data: bool,
}

/// A source's end.
pub type SourceEnd = End<dyn SourceEndpoint>;
/// A builder's end.
pub type BuilderEnd = End<dyn BuilderEndpoint>;

impl<E: Endpoint + ?Sized> End<E> {
    fn from_endpoints(all: Endpoints<E>) -> Self {
        Self { all, begun: Instant::now(), has_data: false }
    }

    /// Returns the poller of the endpoint's descriptors.
    pub fn poller(&self) -> &Poller {
        self.all.poller()
    }

    /// Sends what can be sent now.
    ///
    /// # Errors
    /// The link is over, with the reason.
    pub fn flush_messages(&mut self) -> Result<(), LinkError> {
        let mut broken = Vec::new();
        self.all.flush_messages(self.begun.elapsed(), &mut broken);
        broken.pop().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Receives all data that has come.
    ///
    /// # Errors
    /// The link is over, with the reason.
    pub fn receive_messages(&mut self, received: &mut Vec<E::Received>) -> Result<(), LinkError> {
        let mut tokens = Vec::new();
        self.all.poller().wait_for_events(Some(Duration::ZERO), |token| tokens.push(token))?;
        let mut ready = Vec::new();
        self.all.poll_peers(self.begun.elapsed(), &tokens, &mut ready);
        self.has_data = !ready.is_empty();
        while self.all.receive_messages(0, received)? {}
        Ok(())
    }

    /// Prepares for waiting on its [`poller`](Self::poller). Returns false if data has come already.
    pub fn prepare_wait(&mut self) -> bool {
        self.all.prepare_wait()
    }

    /// Ends the link.
    pub fn close_link(&mut self) {
        self.all.close_link(0);
    }

    /// Returns the time left until the next poll that is needed without incoming data.
    fn time_until_poll(&self) -> Option<Duration> {
        self.all.next_timeout().map(|at| at.saturating_sub(self.begun.elapsed()))
    }

    /// Returns the time of the next poll that is needed without incoming data.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.all.next_timeout()
    }
}

impl SourceEnd {
    /// Begins to connect.
    ///
    /// # Errors
    /// Errors of [`SourceEndpoint::connect_to_builder`].
    pub fn connect_to_builder(to: &Address, greeting: &SourceGreeting) -> Result<Self, LinkError> {
        let mut all = Endpoints::new()?.with_builders(std::slice::from_ref(to))?;
        all.register_memory(&greeting.arena)?;
        all.connect_to_builder(0, to, None, greeting)?;
        Ok(Self::from_endpoints(all))
    }
}

impl Deref for SourceEnd {
    type Target = dyn SourceLink;

    fn deref(&self) -> &Self::Target {
        self.all.source_link(0).expect("it is connected")
    }
}

impl DerefMut for SourceEnd {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.all.source_link_mut(0).expect("it is connected")
    }
}

/// A builder's endpoint without a peer yet.
#[derive(Debug)]
pub struct Listening {
    all: Endpoints<dyn BuilderEndpoint>,
    address: Address,
}

impl Listening {
    /// Opens the endpoint.
    ///
    /// # Errors
    /// Errors of [`Transport::open_builder_endpoint`](thalweg_link::Transport::open_builder_endpoint).
    pub fn open_endpoint(address: &Address, eager: Eager) -> Result<Self, LinkError> {
        let mut all = Endpoints::<dyn BuilderEndpoint>::new()?;
        let address = all.add_listener(address, eager)?;
        Ok(Self { all, address })
    }

    /// Returns the address at which peers reach it.
    pub fn listen_address(&self) -> &Address {
        &self.address
    }

    /// Waits for the peer. Returns the builder's end of the link.
    ///
    /// # Panics
    /// No peer comes.
    pub fn accept_peer(self) -> BuilderEnd {
        let mut end = End::from_endpoints(self.all);
        end.accept_peer();
        end
    }
}

impl BuilderEnd {
    fn accept_peer(&mut self) {
        let poller = Poller::new().unwrap();
        poller.add_descriptor(self.all.poller().as_fd(), 0, Interest::READ).unwrap();
        let begun = Instant::now();
        while !self.try_accept_peer() {
            let timeout = if self.prepare_wait() { self.time_until_poll().unwrap_or(TIMEOUT) } else { Duration::ZERO };
            poller.wait_for_events(Some(timeout), |_| {}).unwrap();
            assert!(begun.elapsed() < TIMEOUT, "no peer comes");
        }
    }

    /// Accepts a waiting peer. Returns true if there was one.
    fn try_accept_peer(&mut self) -> bool {
        let mut tokens = Vec::new();
        self.all.poller().wait_for_events(Some(Duration::ZERO), |token| tokens.push(token)).unwrap();
        self.all.poll_peers(self.begun.elapsed(), &tokens, &mut Vec::new());
        self.all.accept_peer(0, 0).unwrap().is_some()
    }
}

impl Deref for BuilderEnd {
    type Target = dyn BuilderLink;

    fn deref(&self) -> &Self::Target {
        self.all.builder_link(0).expect("it is connected")
    }
}

impl DerefMut for BuilderEnd {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.all.builder_link_mut(0).expect("it is connected")
    }
}

/// Connects a source and a builder.
fn connect_ends(medium: &mut impl Medium, greeting: &SourceGreeting, eager: Eager) -> (SourceEnd, BuilderEnd, Address) {
    let address = Address::on_this_host(medium.link_kind(), medium.listen_directory(), "builder").unwrap();
    let Listening { all, address } = Listening::open_endpoint(&address, eager).unwrap();
    let (mut source, mut builder) =
        (SourceEnd::connect_to_builder(&address, greeting).unwrap(), End::from_endpoints(all));
    wait_until_accepted(medium, &mut source, &mut builder);
    (source, builder, address)
}

/// Waits until the builder accepts the source. The messages for that may have to be repeated; and the builder may have
/// to end an earlier connection.
fn wait_until_accepted(medium: &mut impl Medium, source: &mut SourceEnd, builder: &mut BuilderEnd) {
    loop {
        source.receive_messages(&mut Vec::new()).unwrap();
        source.flush_messages().unwrap();
        if builder.try_accept_peer() {
            return;
        }
        builder.flush_messages().unwrap();
        medium.wait_for_ends(Some(source), Some(builder));
    }
}

/// A source and a builder that are connected, with the messages that each has received.
struct Link<M> {
    medium: M,
    greeting: SourceGreeting,
    address: Address,
    eager: Eager,
    /// Memory for the builder's destinations, taken from the front and used once.
    places: Block,
    source: SourceEnd,
    builder: BuilderEnd,
    /// Messages received by the source.
    source_received: Vec<Message>,
    /// Messages received by the builder, except arrived bytes.
    builder_received: Vec<Message>,
    arrived: BTreeMap<u64, Bytes>,
    /// Number of bytes that were reported to the builder.
    reported_bytes: u64,
    hello: Option<(Hello, String)>,
}

const EAGER: Eager = Eager { credit: 64 << 10, limit: 8 << 10 };

impl<M: Medium> Link<M> {
    /// Connects, and has the source welcomed.
    fn new(medium: M) -> Self {
        Self::with_hello(medium, |_| {})
    }

    fn with_hello(mut medium: M, change: impl FnOnce(&mut Hello)) -> Self {
        let mut hello = Hello {
            session: 7,
            source: SourceId::new(1, 2),
            builder: 0,
            builders: 1,
            slots: 4096,
            slot_bytes: 4 << 20,
            max_payload: 4 << 20,
            capabilities: Capabilities::empty(),
            description: 0,
        };
        change(&mut hello);
        let description = format!("{{\"name\": \"{}\"}}", "detector ".repeat(600));
        hello.description = description.len() as u32;
        let greeting = SourceGreeting { hello, description, arena: Arc::clone(arena_of_sources().arena()) };
        let (source, mut builder, address) = connect_ends(&mut medium, &greeting, EAGER);
        let places = reserve_block(&mut builder, PLACES);
        let mut link = Self {
            medium,
            greeting,
            address,
            eager: EAGER,
            places,
            source,
            builder,
            source_received: Vec::new(),
            builder_received: Vec::new(),
            arrived: BTreeMap::new(),
            reported_bytes: 0,
            hello: None,
        };
        link.send_welcome(0);
        link
    }

    fn send_welcome(&mut self, released_below: u64) {
        self.run_until("the hello", |link| link.hello.is_some());
        let Eager { credit, limit } = self.eager;
        let welcome = Message::Welcome(Welcome {
            run: RunNumber(42),
            eager_credit: credit,
            eager_limit: limit,
            most_records: 4096,
            running: released_below > 0,
            released_below,
            capabilities: Capabilities::empty(),
        });
        self.builder.send_message(&welcome);
        self.run_until("the welcome", |link| link.source_received.contains(&welcome));
    }

    /// Breaks the connection, and has the source connect anew.
    fn reconnect(&mut self, released_below: u64) {
        self.source.close_link();
        self.builder.close_link();
        self.source.all.connect_to_builder(0, &self.address, None, &self.greeting).unwrap();
        wait_until_accepted(&mut self.medium, &mut self.source, &mut self.builder);
        self.hello = None;
        self.source_received.clear();
        self.builder_received.clear();
        self.arrived.clear();
        self.send_welcome(released_below);
    }

    /// Lets each end do what it can.
    fn turn_both_ends(&mut self) -> (Result<(), LinkError>, Result<(), LinkError>) {
        (self.source_turn(), self.builder_turn())
    }

    fn source_turn(&mut self) -> Result<(), LinkError> {
        self.source.receive_messages(&mut self.source_received)?;
        self.source.flush_messages()
    }

    fn builder_turn(&mut self) -> Result<(), LinkError> {
        let mut received = Vec::new();
        let outcome = self.builder.receive_messages(&mut received);
        if self.builder.has_data {
            self.reported_bytes = self.builder.received_bytes();
        }
        for received in received {
            match received {
                Received::Hello(hello, text) => {
                    assert!(self.hello.replace((hello, text)).is_none(), "a second hello was received");
                }
                Received::Message(message) => self.builder_received.push(message),
                Received::Arrived { ticket, bytes } => {
                    assert!(self.arrived.insert(ticket, bytes).is_none(), "ticket {ticket} arrived twice");
                }
            }
        }
        outcome?;
        self.builder.flush_messages()
    }

    fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        loop {
            let (source, builder) = self.turn_both_ends();
            source.unwrap_or_else(|error| panic!("the source, waiting for {what}: {error}"));
            builder.unwrap_or_else(|error| panic!("the builder, waiting for {what}: {error}"));
            if done(self) {
                return;
            }
            self.medium.wait_for_ends(Some(&mut self.source), Some(&mut self.builder));
        }
    }

    /// Returns the error with which the builder's end fails.
    fn until_builder_fails(&mut self) -> LinkError {
        loop {
            let _ = self.source_turn();
            if let Err(error) = self.builder_turn() {
                return error;
            }
            self.medium.wait_for_ends(Some(&mut self.source), Some(&mut self.builder));
        }
    }

    /// Returns a held slot of the arena; its place there depends on its ticket and length.
    fn held_slot(&self, ticket: u64, bytes: u32) -> Announcement {
        let room = ARENA as u64 - u64::from(bytes) + 1;
        Announcement {
            ticket,
            first: EventId(ticket * 3),
            arena_offset: ticket.wrapping_mul(0x9e37_79b9) % room,
            count: 3,
            bytes,
            disposition: Disposition::Held,
        }
    }

    fn make_offers(&mut self, offers: &[Announcement]) {
        offers.iter().for_each(|offer| self.source.announce_offer(offer));
    }

    fn received_offers(&self) -> Vec<Announcement> {
        let offers = self.builder_received.iter().filter_map(|message| match message {
            Message::Offer(offer) => Some(*offer),
            _ => None,
        });
        offers.collect()
    }

    /// Fetches into a destination of its own.
    fn fetch_offer(&mut self, offer: &Announcement) {
        self.begin_fetch(offer, offer.bytes);
    }

    fn begin_fetch(&mut self, offer: &Announcement, upto: u32) {
        let bytes = offer.bytes as usize;
        let place = self.places.carve_span(bytes).unwrap_or_else(|| {
            self.places = reserve_block(&mut self.builder, bytes.max(PLACES));
            self.places.carve_span(bytes).unwrap()
        });
        if let Some(bytes) = self.builder.begin_fetch(offer, Some(place), upto).unwrap() {
            assert!(self.arrived.insert(offer.ticket, bytes).is_none());
        }
    }

    /// Checks the bytes that arrived for an offer, and removes them.
    fn check_arrived(&mut self, offer: &Announcement) {
        let start = offer.arena_offset as usize;
        let expected = &arena_of_sources()[start..start + offer.bytes as usize];
        let bytes = self.arrived.remove(&offer.ticket).expect("it arrived");
        assert_eq!(bytes.byte_count(), expected.len());
        assert_eq!(
            bytes.crc32c_of_range(0..bytes.byte_count()),
            crc32c(expected),
            "content of ticket {}",
            offer.ticket
        );
    }
}

/// Returns a block of at least `bytes` bytes, which the builder's endpoint has registered.
fn reserve_block(builder: &mut BuilderEnd, bytes: usize) -> Block {
    let mut pool = BlockPool::new("builder", 1, bytes).unwrap();
    builder.all.register_memory(pool.arena()).unwrap();
    pool.take_block().unwrap()
}

/// Returns the arena of the sources of all tests, which only read it: bytes drawn at random.
pub fn arena_of_sources() -> &'static Span {
    static ARENA_OF_ALL: OnceLock<Span> = OnceLock::new();
    ARENA_OF_ALL.get_or_init(|| {
        let mut arena = Arena::create("source", ARENA).unwrap();
        let mut random = 0x2545_f491_4f6c_dd1du64;
        for word in arena.chunks_exact_mut(8) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            word.copy_from_slice(&random.to_le_bytes());
        }
        arena
    })
}

/// Returns an announcement of dropped fragments.
fn dropped_announcement(ticket: u64) -> Announcement {
    Announcement {
        ticket,
        first: EventId(ticket * 3),
        arena_offset: 0,
        count: 3,
        bytes: 0,
        disposition: Disposition::DroppedNewest,
    }
}

pub fn greeting_and_run_control<M: Medium>(medium: M) {
    let mut link = Link::new(medium);
    let (hello, text) = link.hello.clone().unwrap();
    assert_eq!(hello, link.greeting.hello);
    assert_eq!(text, link.greeting.description);

    link.source_received.clear();
    let start = Message::Start { run: RunNumber(42), first: EventId(5), at: TaiNanos(99) };
    let stop = Message::StopAt { end: EventId(105), end_here: false };
    link.builder.send_message(&start);
    link.builder.send_message(&Message::Pause);
    link.run_until("start and pause", |link| link.source_received == [start, Message::Pause]);
    let paused = Message::Paused { next: EventId(100), asked_by: 0 };
    link.source.send_message(&paused);
    link.run_until("paused", |link| link.builder_received == [paused]);
    link.builder.send_message(&stop);
    link.run_until("stop", |link| link.source_received.contains(&stop));
    let end = Message::End(FinalCounters { accepted: 100, tickets: 0, next_sequence: 100, ..FinalCounters::default() });
    link.source.send_message(&end);
    link.run_until("end", |link| link.builder_received == [paused, end]);
    link.builder.send_message(&Message::Bye);
    link.run_until("bye", |link| link.source_received == [start, Message::Pause, stop, Message::Bye]);
}

/// A run may be paused and continued any number of times: repeated messages must all arrive.
pub fn the_same_words_are_heard_as_often_as_they_are_said<M: Medium>(medium: M) {
    let mut link = Link::new(medium);
    link.source_received.clear();
    let orders = [Message::Pause, Message::StopAt { end: EventId(u64::MAX), end_here: false }].repeat(3);
    orders.iter().for_each(|order| link.builder.send_message(order));
    let answers = [Message::Paused { next: EventId(7), asked_by: 0 }; 3];
    answers.iter().for_each(|answer| link.source.send_message(answer));
    link.run_until("all words", |link| {
        link.source_received.len() >= orders.len() && link.builder_received.len() >= answers.len()
    });
    assert_eq!((&link.source_received, &link.builder_received[..]), (&orders, &answers[..]));
}

pub fn offers_arrive_in_order_and_intact<M: Medium>(medium: M) {
    let mut link = Link::new(medium);
    let offers: Vec<Announcement> = (0..300)
        .map(|ticket| {
            if ticket % 7 == 3 {
                dropped_announcement(ticket)
            } else {
                link.held_slot(ticket, 64 * (1 + ticket as u32))
            }
        })
        .collect();
    for some in offers.chunks(70) {
        link.make_offers(some);
        let _ = link.turn_both_ends();
    }
    link.run_until("all offers", |link| link.builder_received.len() == offers.len());
    assert_eq!(link.received_offers(), offers);
    // The final counters arrive after the offers that they count.
    let end = Message::End(FinalCounters { tickets: 301, ..FinalCounters::default() });
    link.make_offers(&[dropped_announcement(300)]);
    link.source.send_message(&end);
    link.run_until("the books", |link| link.builder_received.len() == offers.len() + 2);
    assert_eq!(link.builder_received[300..], [Message::Offer(dropped_announcement(300)), end]);
}

pub fn a_fetch_brings_exactly_the_bytes<M: Medium>(medium: M) {
    let mut link = Link::new(medium);
    let sizes = [64, 128, 1280, 1344, 4096, 65536, 1 << 20, 100_032, 192, (3 << 20) + 64, 64];
    let offers: Vec<Announcement> =
        sizes.iter().zip(0..).map(|(bytes, ticket)| link.held_slot(ticket, *bytes)).collect();
    link.make_offers(&offers);
    link.run_until("offers", |link| link.builder_received.len() == offers.len());
    // All at once, and not in the order in which they were offered.
    for offer in offers.iter().rev() {
        link.fetch_offer(offer);
    }
    link.run_until("all bytes", |link| link.arrived.len() == offers.len());
    offers.iter().for_each(|offer| link.check_arrived(offer));
    assert!(!link.places.has_spans_out());
}

pub fn a_fetch_may_be_made_in_pieces<M: Medium>(medium: M) {
    let mut link = Link::new(medium);
    let sizes = [100_032, 64, 200_000, 65_600];
    let offers: Vec<Announcement> =
        sizes.iter().zip(0..).map(|(bytes, ticket)| link.held_slot(ticket, *bytes)).collect();
    link.make_offers(&offers);
    link.run_until("offers", |link| link.builder_received.len() == offers.len());
    // In turn; one requests its next piece while the one before is on its way, another after it has arrived.
    let mut upto = [0; 4];
    let mut asked = 0;
    while upto != sizes {
        for (offer, upto) in offers.iter().zip(&mut upto).filter(|(offer, upto)| **upto < offer.bytes) {
            let before = *upto;
            *upto = offer.bytes.min(before + 16_320);
            asked += u64::from(*upto - before);
            match before {
                0 => link.begin_fetch(offer, *upto),
                _ => link.builder.extend_fetch(offer.ticket, *upto),
            }
        }
        if asked % 3 != 0 && !link.builder.maps_source_memory() {
            link.run_until("all that was asked for", |link| link.reported_bytes == asked);
        }
    }
    link.run_until("all bytes", |link| link.arrived.len() == offers.len());
    offers.iter().for_each(|offer| link.check_arrived(offer));
    assert!(!link.places.has_spans_out());
}

pub fn many_small_ones<M: Medium>(medium: M) {
    let mut link = Link::new(medium);
    let offers: Vec<Announcement> =
        (0..1000).map(|ticket| link.held_slot(ticket, 64 + 64 * (ticket as u32 % 5))).collect();
    link.make_offers(&offers);
    link.run_until("offers", |link| link.builder_received.len() == offers.len());
    for (some, done) in offers.chunks(128).zip(1..) {
        some.iter().for_each(|offer| link.fetch_offer(offer));
        link.run_until("some bytes", |link| link.arrived.len() == some.len());
        some.iter().for_each(|offer| link.check_arrived(offer));
        link.builder.release_tickets((done * 128).min(1000));
    }
    link.run_until("the releases", |link| link.source_received.last() == Some(&Message::Release { below: 1000 }));
}

pub fn eager_offers_come_unasked<M: Medium>(medium: M) {
    let mut link = Link::new(medium);
    let mut ticket = 0;
    // Several times the credit: it comes back with each release.
    for round in 0..20 {
        let offers: Vec<Announcement> = (ticket..ticket + 8)
            .map(|ticket| Announcement { disposition: Disposition::Eager, ..link.held_slot(ticket, 8 << 10) })
            .collect();
        ticket += 8;
        link.make_offers(&offers);
        let before = link.builder_received.len();
        link.run_until("eager offers", |link| link.builder_received.len() == before + 8);
        // Not all of them are fetched, and some are fetched before they have arrived.
        for offer in link.received_offers().into_iter().rev().take(8).filter(|offer| offer.ticket % 3 != round % 3) {
            link.fetch_offer(&offer);
        }
        let wanted = offers.iter().filter(|offer| offer.ticket % 3 != round % 3);
        let count = wanted.clone().count();
        link.run_until("eager bytes", |link| link.arrived.len() == count);
        wanted.for_each(|offer| link.check_arrived(offer));
        link.builder.release_tickets(ticket);
        link.run_until("the release", |link| link.source_received.last() == Some(&Message::Release { below: ticket }));
    }
    // Afterwards an ordinary fetch works as before.
    let offer = link.held_slot(ticket, 100_032);
    link.make_offers(&[offer]);
    link.run_until("one more", |link| link.received_offers().contains(&offer));
    link.fetch_offer(&offer);
    link.run_until("its bytes", |link| !link.arrived.is_empty());
    link.check_arrived(&offer);
}

pub fn more_eager_than_the_credit_is_an_error<M: Medium>(medium: M) {
    let mut link = Link::new(medium);
    for ticket in 0..9 {
        let offer = Announcement { disposition: Disposition::Eager, ..link.held_slot(ticket, 8 << 10) };
        link.source.announce_offer(&offer);
    }
    if !link.medium.link_kind().eager {
        // Nothing is sent eagerly.
        link.run_until("offers", |link| link.received_offers().len() == 9);
        assert!(link.received_offers().iter().all(|offer| offer.disposition == Disposition::Held));
        return;
    }
    let error = link.until_builder_fails();
    assert!(error.is_violation(), "{error}");
    assert!(error.to_string().contains("73728 in all"), "{error}");
}

pub fn an_eager_offer_over_the_limit_is_an_error<M: Medium>(medium: M) {
    let mut link = Link::new(medium);
    if !link.medium.link_kind().eager {
        return;
    }
    let offer = Announcement { disposition: Disposition::Eager, ..link.held_slot(0, (8 << 10) + 64) };
    link.source.announce_offer(&offer);
    let error = link.until_builder_fails();
    assert!(error.is_violation(), "{error}");
}

pub fn releases_are_cumulative<M: Medium>(medium: M) {
    let mut link = Link::new(medium);
    let offers: Vec<Announcement> = (0..10).map(|ticket| link.held_slot(ticket, 640)).collect();
    link.make_offers(&offers);
    link.run_until("offers", |link| link.builder_received.len() == 10);
    link.source_received.clear();
    for below in [3, 3, 3, 7] {
        link.builder.release_tickets(below);
    }
    link.run_until("releases", |link| link.source_received.last() == Some(&Message::Release { below: 7 }));
    assert!(link.source_received.is_sorted_by_key(|message| match message {
        Message::Release { below } => *below,
        other => panic!("{other:?}"),
    }));
    link.fetch_offer(&offers[8]);
    link.run_until("what is left", |link| link.arrived.len() == 1);
    link.check_arrived(&offers[8]);
}

pub fn an_offer_is_withdrawn_before_it_is_asked_for<M: Medium>(medium: M) {
    let mut link = Link::with_hello(medium, |hello| hello.capabilities = Capabilities::WITHDRAWS);
    let offers: Vec<Announcement> = (0..4).map(|ticket| link.held_slot(ticket, 6400)).collect();
    link.make_offers(&offers);
    link.run_until("offers", |link| link.builder_received.len() == 4);
    assert!(link.source.withdraw_offer(1));
    let gone = Announcement { bytes: 0, disposition: Disposition::DroppedOldest, ..offers[1] };
    link.source.announce_offer(&gone);
    // The builder has not received the withdrawal, and fetches.
    link.fetch_offer(&offers[1]);
    link.fetch_offer(&offers[2]);
    link.run_until("the drop", |link| link.builder_received.len() == 5);
    assert_eq!(link.received_offers()[4], gone);
    link.builder.cancel_fetch(1);
    link.builder.cancel_fetch(1);
    link.run_until("what was not dropped", |link| link.arrived.contains_key(&2));
    assert!(link.places.has_spans_out());
    link.check_arrived(&offers[2]);
    assert!(link.arrived.is_empty());
    assert!(!link.places.has_spans_out(), "both places are back");
}

pub fn an_offer_that_was_asked_for_is_not_withdrawn<M: Medium>(medium: M) {
    let mut link = Link::with_hello(medium, |hello| hello.capabilities = Capabilities::WITHDRAWS);
    let offer = link.held_slot(0, 1 << 20);
    link.make_offers(&[offer]);
    link.run_until("the offer", |link| link.builder_received.len() == 1);
    link.fetch_offer(&offer);
    link.run_until("the bytes", |link| !link.arrived.is_empty());
    assert!(!link.source.withdraw_offer(0));
    link.check_arrived(&offer);
    link.builder.release_tickets(1);
    link.run_until("the release", |link| link.source_received.contains(&Message::Release { below: 1 }));
    assert!(link.source.withdraw_offer(0), "no fetch of it is open any more");
}

pub fn a_source_that_comes_back_offers_again<M: Medium>(medium: M) {
    let mut link = Link::new(medium);
    let offers: Vec<Announcement> = (0..40).map(|ticket| link.held_slot(ticket, 10_048)).collect();
    link.make_offers(&offers[..30]);
    link.run_until("offers", |link| link.builder_received.len() == 30);
    offers[..20].iter().for_each(|offer| link.fetch_offer(offer));
    link.run_until("the first", |link| link.arrived.len() == 20);
    link.builder.release_tickets(17);
    offers[20..25].iter().for_each(|offer| link.fetch_offer(offer));
    let _ = link.turn_both_ends();

    // The release may not have been received; the welcome repeats it.
    link.reconnect(17);
    link.make_offers(&offers[17..30]);
    link.make_offers(&offers[30..]);
    link.run_until("offers again", |link| link.builder_received.len() == 23);
    assert_eq!(link.received_offers(), offers[17..]);
    offers[20..].iter().for_each(|offer| link.fetch_offer(offer));
    link.run_until("the rest", |link| link.arrived.len() == 20);
    offers[20..].iter().for_each(|offer| link.check_arrived(offer));
    link.builder.release_tickets(40);
    link.run_until("the release", |link| link.source_received.last() == Some(&Message::Release { below: 40 }));
}

pub fn a_builder_may_ask_before_the_offer_is_repeated<M: Medium>(medium: M) {
    let mut link = Link::with_hello(medium, |hello| hello.capabilities = Capabilities::WITHDRAWS);
    let offers: Vec<Announcement> = (0..6).map(|ticket| link.held_slot(ticket, 4096)).collect();
    link.make_offers(&offers);
    link.run_until("offers", |link| link.builder_received.len() == 6);
    link.reconnect(2);
    // The builder knows these offers from before.
    offers[2..].iter().for_each(|offer| link.fetch_offer(offer));
    for _ in 0..3 {
        let _ = link.turn_both_ends();
    }
    let eager = Announcement { disposition: Disposition::Eager, ..offers[3] };
    let gone = Announcement { bytes: 0, disposition: Disposition::DroppedOldest, ..offers[5] };
    link.make_offers(&[offers[2], eager, offers[4], gone]);
    link.run_until("the bytes", |link| link.arrived.len() == 3 && link.builder_received.len() == 4);
    link.builder.cancel_fetch(5);
    offers[2..5].iter().for_each(|offer| link.check_arrived(offer));
    assert!(!link.places.has_spans_out());
}

pub fn a_link_that_ends_returns_every_place<M: Medium>(medium: M) {
    let mut link = Link::with_hello(medium, |hello| hello.capabilities = Capabilities::WITHDRAWS);
    let offers: Vec<Announcement> = (0..8).map(|ticket| link.held_slot(ticket, 256 << 10)).collect();
    link.make_offers(&offers);
    link.run_until("offers", |link| link.builder_received.len() == 8);
    offers.iter().for_each(|offer| link.fetch_offer(offer));
    // Some have arrived, one may be on its way, and others have not been requested yet.
    link.run_until("the first", |link| !link.arrived.is_empty());
    let Link { builder, arrived, places, .. } = link;
    drop(builder);
    assert!(places.has_spans_out(), "what arrived is still here");
    drop(arrived);
    assert!(!places.has_spans_out());
}

pub fn a_refusal_says_why<M: Medium>(medium: M) {
    let mut link = Link::new(medium);
    // Also while many offers are on their way.
    let offers: Vec<Announcement> = (0..100).map(|ticket| link.held_slot(ticket, 64)).collect();
    link.make_offers(&offers);
    link.builder.refuse_source(Refusal::Mismatch, "slots of 3 bytes hold nothing – größer, bitte");
    loop {
        if let Err(error) = link.source_turn() {
            assert!(
                matches!(&error, LinkError::Refused { reason: Refusal::Mismatch, text } if text.ends_with("größer, bitte")),
                "{error}"
            );
            return;
        }
        let _ = link.builder_turn();
        link.medium.wait_for_ends(Some(&mut link.source), Some(&mut link.builder));
    }
}

pub fn what_a_source_said_is_heard_after_its_death<M: Medium>(medium: M) {
    let mut link = Link::new(medium);
    // As many offers as have reached the builder's kernel: TCP's first window is 64 KiB.
    let offers: Vec<Announcement> = (0..500).map(|ticket| link.held_slot(ticket, 64)).collect();
    link.make_offers(&offers);
    link.source_turn().unwrap();
    // A message that it will never read, so that a strict kernel sends a reset.
    link.builder.release_tickets(0);
    link.builder.flush_messages().unwrap();
    let Link { mut medium, source, mut builder, .. } = link;
    drop(source);
    let mut received = Vec::new();
    let error = loop {
        builder.send_message(&Message::Pause);
        if let Err(error) = builder.flush_messages().and_then(|()| builder.receive_messages(&mut received)) {
            break error;
        }
        medium.wait_for_ends(None, Some(&mut builder));
    };
    assert!(matches!(error, LinkError::Closed), "{error}");
    assert!(!error.is_violation());
    if medium.is_faithful() {
        assert_eq!(received.len(), 500);
    }
}

pub fn what_a_builder_said_is_heard_after_its_death<M: Medium>(medium: M) {
    let mut link = Link::new(medium);
    link.source_received.clear();
    for below in 1..500 {
        link.builder.release_tickets(below);
    }
    link.builder.flush_messages().unwrap();
    let Link { mut medium, mut source, builder, .. } = link;
    drop(builder);
    let mut received = Vec::new();
    let error = loop {
        source.send_message(&Message::Paused { next: EventId(0), asked_by: 0 });
        if let Err(error) = source.flush_messages().and_then(|()| source.receive_messages(&mut received)) {
            break error;
        }
        medium.wait_for_ends(Some(&mut source), None);
    };
    assert!(matches!(error, LinkError::Closed), "{error}");
    if medium.is_faithful() {
        assert_eq!(received.last(), Some(&Message::Release { below: 499 }));
    }
}

pub fn more_is_said_than_there_is_room_for<M: Medium>(medium: M) {
    let mut link = Link::with_hello(medium, |hello| (hello.slots, hello.slot_bytes) = (1, 1 << 30));
    let words: Vec<Message> = (0..2000).map(|next| Message::Paused { next: EventId(next), asked_by: 0 }).collect();
    let orders: Vec<Message> = (0..2000).map(|end| Message::StopAt { end: EventId(end), end_here: false }).collect();
    link.source_received.clear();
    for (word, order) in words.iter().zip(&orders) {
        link.source.send_message(word);
        link.builder.send_message(order);
    }
    link.run_until("every word", |link| link.builder_received.len() == 2000 && link.source_received.len() == 2000);
    assert!(link.builder_received == words && link.source_received == orders);
}

pub fn copies_are_counted<M: Medium>(medium: M) {
    let mut link = Link::new(medium);
    let offers: Vec<Announcement> = (0..4).map(|ticket| link.held_slot(ticket, 1 << 20)).collect();
    link.make_offers(&offers);
    link.run_until("offers", |link| link.builder_received.len() == 4);
    if link.builder.maps_source_memory() {
        for offer in &offers {
            let bytes = link.builder.fetch_offer(offer, None).unwrap().expect("it can be seen where it lies");
            assert!(matches!(bytes, Bytes::View(_)));
            link.arrived.insert(offer.ticket, bytes);
            link.check_arrived(offer);
        }
        assert_eq!((link.source.copied_bytes(), link.builder.copied_bytes()), (0, 0));
    }
    offers.iter().for_each(|offer| link.fetch_offer(offer));
    link.run_until("the bytes", |link| link.arrived.len() == 4);
    assert!(link.arrived.values().all(|bytes| matches!(bytes, Bytes::Place(_))));
    if link.medium.is_faithful() && link.medium.gathers_pieces() {
        assert_eq!((link.source.copied_bytes(), link.builder.copied_bytes()), (0, 4 << 20));
    } else {
        let copied = link.source.copied_bytes();
        assert!(if link.medium.gathers_pieces() { copied == 0 } else { copied >= 4 << 20 }, "{copied}");
        let received = link.builder.copied_bytes();
        assert!(if link.medium.copies_received_bytes() { received >= 4 << 20 } else { received == 0 }, "{received}");
    }
}

/// Makes a module of tests for a kind of link: see [the crate's documentation](crate).
///
/// `link_conformance!(NAME, MEDIUM)` makes one test of each story, with a new `MEDIUM`. `link_conformance! { mod NAME;
/// MACRO }` passes the names of the stories to a macro instead.
#[macro_export]
macro_rules! link_conformance {
    ($name:ident, $medium:expr) => {
        $crate::link_conformance! { mod $name; tests { $medium } }
    };
    (mod $name:ident; $($each:tt)*) => {
        mod $name {
            use super::*;
            $crate::link_conformance! { @each [$($each)*]
                greeting_and_run_control
                the_same_words_are_heard_as_often_as_they_are_said
                offers_arrive_in_order_and_intact
                a_fetch_brings_exactly_the_bytes
                a_fetch_may_be_made_in_pieces
                many_small_ones
                eager_offers_come_unasked
                more_eager_than_the_credit_is_an_error
                an_eager_offer_over_the_limit_is_an_error
                releases_are_cumulative
                an_offer_is_withdrawn_before_it_is_asked_for
                an_offer_that_was_asked_for_is_not_withdrawn
                a_source_that_comes_back_offers_again
                a_builder_may_ask_before_the_offer_is_repeated
                a_link_that_ends_returns_every_place
                a_refusal_says_why
                what_a_source_said_is_heard_after_its_death
                what_a_builder_said_is_heard_after_its_death
                more_is_said_than_there_is_room_for
                copies_are_counted
            }
        }
    };
    (@each [tests { $medium:expr }] $($story:ident)*) => {
        $(#[test]
        fn $story() {
            $crate::$story($medium);
        })*
    };
    (@each [$macro:ident] $($story:ident)*) => {
        $macro! { $($story)* }
    };
}
