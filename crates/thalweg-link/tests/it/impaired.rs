//! Links of frames over a network in memory that impairs them as real networks do now and then.

use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{Arena, BlockPool, Span};
use thalweg_link::memory::{Impairments, Network};
use thalweg_link::{Address, BuilderEndpoint, Bytes, Eager, Endpoints, Received, SourceEndpoint, SourceGreeting};
use thalweg_wire::{Announcement, Capabilities, Disposition, EventId, Hello, Message, SourceId};

const NOTHING: Eager = Eager { credit: 0, limit: 0 };
const BYTES: u32 = 1 << 20;

/// A source and a builder on a network of their own, and its current time.
struct Pair {
    network: Network,
    source: Endpoints<dyn SourceEndpoint>,
    builder: Endpoints<dyn BuilderEndpoint>,
    said: Vec<Received>,
    memory: Span,
    is_accepted: bool,
}

impl Pair {
    /// Connects the two; `prepare` is called with the source's address and the builder's.
    fn new(
        impairments: Impairments,
        prepare: impl FnOnce(&Network, std::net::SocketAddr, std::net::SocketAddr),
    ) -> Self {
        let network = Network::new(impairments, 5);
        let address = Address::new(network.link_kind(), "/builder").unwrap();
        let mut builder = Endpoints::<dyn BuilderEndpoint>::new().unwrap();
        builder.add_listener(&address, NOTHING).unwrap();
        let builder_port = network.last_port();
        let mut memory = Arena::create("slots", 2 * BYTES as usize).unwrap();
        for (at, byte) in memory.iter_mut().enumerate() {
            *byte = (at % 251) as u8;
        }
        let hello = Hello {
            session: 1,
            source: SourceId::new(1, 0),
            builder: 0,
            builders: 1,
            slots: 4,
            slot_bytes: BYTES,
            max_payload: BYTES,
            capabilities: Capabilities::empty(),
            description: 2,
        };
        let greeting = SourceGreeting { hello, description: "{}".into(), arena: Arc::clone(memory.arena()) };
        let to = std::slice::from_ref(&address);
        let mut source = Endpoints::<dyn SourceEndpoint>::new().unwrap().with_builders(to).unwrap();
        prepare(&network, network.last_port(), builder_port);
        source.connect_to_builder(0, &address, None, &greeting).unwrap();
        Self { network, source, builder, said: Vec::new(), memory, is_accepted: false }
    }

    /// Runs until `done`, or until the time is over.
    fn run(&mut self, how_long: Duration, done: impl Fn(&[Received]) -> bool) {
        let end = self.network.current_time() + how_long;
        loop {
            let now = self.network.current_time();
            self.source.poll_peers(now, &[], &mut Vec::new());
            self.source.receive_messages(0, &mut Vec::new()).unwrap();
            self.source.flush_messages(now, &mut Vec::new());
            self.builder.poll_peers(now, &[], &mut Vec::new());
            self.is_accepted = self.is_accepted || self.builder.accept_peer(0, 0).unwrap().is_some();
            self.builder.receive_messages(0, &mut self.said).unwrap();
            self.builder.flush_messages(now, &mut Vec::new());
            if done(&self.said) || now >= end {
                return;
            }
            let next = self.source.next_timeout().into_iter().chain(self.builder.next_timeout()).min();
            self.network.advance_to(next.unwrap_or(end).min(end));
        }
    }

    /// Fetches a slot, and returns the number of datagrams that took.
    fn fetch(&mut self, ticket: u64) -> u64 {
        let offer = Announcement {
            ticket,
            first: EventId(ticket),
            arena_offset: 0,
            count: 1,
            bytes: BYTES,
            disposition: Disposition::Held,
        };
        self.source.source_link_mut(0).unwrap().announce_offer(&offer);
        let offered = |said: &[Received]| {
            said.iter().any(|said| matches!(said, Received::Message(Message::Offer(offer)) if offer.ticket == ticket))
        };
        self.run(Duration::from_secs(60), offered);
        let before = self.network.transported_datagrams();
        let mut block = BlockPool::new("places", 1, 2 * BYTES as usize).unwrap().take_block().unwrap();
        let place = block.carve_span(BYTES as usize);
        self.builder.builder_link_mut(0).unwrap().begin_fetch(&offer, place, BYTES).unwrap();
        let arrived =
            |said: &[Received]| matches!(said.last(), Some(Received::Arrived { ticket: at, .. }) if *at == ticket);
        self.run(Duration::from_secs(60), arrived);
        let Some(Received::Arrived { bytes: Bytes::Place(place), .. }) = self.said.pop() else {
            panic!("ticket {ticket} does not arrive: {:?}", self.said);
        };
        assert!(place[..] == self.memory[..BYTES as usize]);
        self.network.transported_datagrams() - before
    }

    fn has_greeted(said: &[Received]) -> bool {
        said.iter().any(|said| matches!(said, Received::Hello(..)))
    }
}

/// Number of datagrams for pieces of 1344 bytes, and a few of words; with pieces of 1152 bytes it is 910.
const AT_FULL_LENGTH: std::ops::Range<u64> = 780..860;

#[test]
fn a_builder_that_is_silent_for_two_seconds_does_not_make_datagrams_shorter() {
    let silent = |network: &Network, source, builder| network.separate_ports(source, builder, Duration::from_secs(2));
    let mut pair = Pair::new(Impairments::PERFECT, silent);
    pair.run(Duration::from_secs(3), |_| false);
    assert!(Pair::has_greeted(&pair.said));
    let datagrams = pair.fetch(0);
    assert!(AT_FULL_LENGTH.contains(&datagrams), "{datagrams}");
}

#[test]
fn an_acknowledgement_needs_no_datagram_of_its_own_where_pieces_carry_it() {
    let mut pair = Pair::new(Impairments::PERFECT, |_, _, _| {});
    pair.run(Duration::from_secs(3), Pair::has_greeted);
    pair.fetch(0);
    // The fetch and its pieces; the length in use is probed now and then.
    let pieces = u64::from(BYTES.div_ceil(1344));
    assert_eq!(pair.fetch(1), 1 + pieces);
}

#[test]
fn a_path_that_shrinks_and_grows_in_a_run_is_followed() {
    let delay = Duration::from_micros(50);
    let mut pair = Pair::new(Impairments { delay, ..Impairments::PERFECT }, |_, _, _| {});
    pair.run(Duration::from_secs(3), Pair::has_greeted);
    pair.fetch(0);
    pair.network.set_mtu(1300);
    pair.fetch(1);
    let datagrams = pair.fetch(2);
    assert!((820..940).contains(&datagrams), "pieces of 1216 bytes: {datagrams}");
    pair.network.set_mtu(1408);
    pair.run(Duration::from_secs(11), |_| false);
    pair.fetch(3);
    let datagrams = pair.fetch(4);
    assert!(AT_FULL_LENGTH.contains(&datagrams), "{datagrams}");
}

#[test]
fn words_get_through_a_path_that_takes_no_more_than_ipv6_asks_for() {
    let delay = Duration::from_micros(50);
    let mut pair = Pair::new(Impairments { delay, ..Impairments::PERFECT }, |network, _, _| network.set_mtu(1232));
    pair.run(Duration::from_secs(3), Pair::has_greeted);
    let before = pair.network.current_time();
    for _ in 0..1000 {
        pair.source.source_link_mut(0).unwrap().send_message(&Message::Paused { next: EventId(0), asked_by: 0 });
    }
    let all = |said: &[Received]| {
        said.iter().filter(|said| matches!(said, Received::Message(Message::Paused { .. }))).count() == 1000
    };
    pair.run(Duration::from_secs(60), all);
    assert!(
        pair.network.current_time() - before < Duration::from_millis(5),
        "{:?}",
        pair.network.current_time() - before
    );
}

#[test]
fn damage_costs_time_and_nothing_else() {
    let damaged = Impairments { damaged_ppm: 50_000, delay: Duration::from_micros(50), ..Impairments::PERFECT };
    let mut pair = Pair::new(damaged, |_, _, _| {});
    pair.run(Duration::from_secs(3), Pair::has_greeted);
    for ticket in 0..4 {
        pair.fetch(ticket);
    }
}
