//! Costs of a connection that the table of abilities states.

use std::sync::Arc;
use thalweg_link::{Address, Eager, SourceGreeting};
use thalweg_link_conformance::{Listening, SourceEnd, arena_of_sources};
use thalweg_rdma_link::register_links;
use thalweg_wire::{Capabilities, Hello, SourceId};

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_connection_has_no_more_files_open_than_the_table_states() {
    let greeting = SourceGreeting {
        hello: Hello {
            session: 1,
            source: SourceId::new(1, 1),
            builder: 0,
            builders: 1,
            slots: 4,
            slot_bytes: 1 << 20,
            max_payload: 1 << 20,
            capabilities: Capabilities::empty(),
            description: 2,
        },
        description: "{}".into(),
        arena: Arc::clone(arena_of_sources().arena()),
    };
    for kind in [register_links().iwarp, register_links().efe] {
        let at = Address::new(kind, "127.0.0.1:0").unwrap();
        let listening = Listening::open_endpoint(&at, Eager { credit: 0, limit: 0 }).unwrap();
        let address = listening.listen_address().clone();
        let (before, mut source) = (open_files(), SourceEnd::connect_to_builder(&address, &greeting).unwrap());
        // The source's endpoint: its poller, the events, the doorbell and the poller of its RNIC.
        let of_endpoint = 6;
        assert!(open_files() - before <= of_endpoint + kind.files as usize);
        let before = open_files();
        let accepting = std::thread::spawn(move || listening.accept_peer());
        while !accepting.is_finished() {
            source.receive_messages(&mut Vec::new()).unwrap();
            source.flush_messages().unwrap();
        }
        let _builder = accepting.join().unwrap();
        assert!(open_files() - before <= kind.files as usize + 1);
    }
}
