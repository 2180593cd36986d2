//! The end of a conversation: both ends leave when the other has all that was sent.

use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_arena::Arena;
use thalweg_link::{
    Address, BuilderEndpoint, Eager, Endpoint, Endpoints, LinkKind, Received, SourceEndpoint, SourceGreeting,
};
use thalweg_rdma_link::register_links;
use thalweg_wire::{Capabilities, Hello, Message, SourceId};

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
    let arena = Arena::create("slots", 1 << 20).unwrap();
    SourceGreeting { hello, description: "{}".into(), arena: Arc::clone(arena.arena()) }
}

/// An end with its clock, driven as a node does.
struct End<E: ?Sized> {
    all: Endpoints<E>,
    begun: Instant,
}

impl<E: Endpoint + ?Sized> End<E> {
    fn turn(&mut self, received: &mut Vec<E::Received>) {
        let (mut tokens, mut ready) = (Vec::new(), Vec::new());
        let wait = if self.all.prepare_wait() { Duration::from_millis(5) } else { Duration::ZERO };
        self.all.poller().wait_for_events(Some(wait), |token| tokens.push(token)).unwrap();
        self.all.poll_peers(self.begun.elapsed(), &tokens, &mut ready);
        // The peer may have gone: what it sent before counts.
        ready.into_iter().for_each(|peer| _ = self.all.receive_messages(peer, received));
        self.all.flush_messages(self.begun.elapsed(), &mut Vec::new());
    }
}

fn leave_over(kind: LinkKind) {
    let begun = Instant::now();
    let mut builder = End { all: Endpoints::<dyn BuilderEndpoint>::new().unwrap(), begun };
    let at = Address::new(kind, "127.0.0.1:0").unwrap();
    let at = builder.all.add_listener(&at, Eager { credit: 0, limit: 0 }).unwrap();
    let all = Endpoints::<dyn SourceEndpoint>::new().unwrap().with_builders(std::slice::from_ref(&at)).unwrap();
    let mut source = End { all, begun };
    source.all.connect_to_builder(0, &at, None, &greeting()).unwrap();
    let (mut words, mut orders) = (Vec::new(), Vec::new());
    while !words.iter().any(|word| matches!(word, Received::Hello(..))) {
        source.turn(&mut orders);
        builder.turn(&mut words);
        let _ = builder.all.accept_peer(0, 0).unwrap();
    }
    // The builder has sent its last message, and leaves; the source closes its link when it has that, and is gone.
    builder.all.builder_link_mut(0).unwrap().send_message(&Message::Bye);
    builder.all.prepare_to_leave();
    while !orders.contains(&Message::Bye) {
        source.turn(&mut orders);
        builder.turn(&mut words);
    }
    source.all.close_link(0);
    source.all.prepare_to_leave();
    while !source.all.has_left() {
        source.turn(&mut orders);
        // No end receives this.
        builder.all.builder_link_mut(0).unwrap().send_message(&Message::Pause);
        builder.turn(&mut words);
    }
    drop(source);
    while !builder.all.has_left() {
        builder.turn(&mut words);
    }
}

#[test]
fn both_ends_leave_when_the_last_message_has_come() {
    leave_over(register_links().iwarp);
    leave_over(register_links().efe);
}
