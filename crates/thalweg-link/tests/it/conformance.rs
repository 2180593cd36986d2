//! The stories of [`thalweg_link_conformance`], on each kind of link here, and on one that exists only for tests.

use crate::packets;
use std::path::Path;
use std::time::Duration;
use thalweg_link::LinkKind;
use thalweg_link::memory::{Impairments, Network};
use thalweg_link_conformance::{BuilderEnd, Medium, Over, SourceEnd, link_conformance};

struct Memory {
    network: Network,
    /// Number of consecutive waits in which no time passed.
    stalls: u32,
}

impl Memory {
    fn new(network: Network) -> Self {
        Self { network, stalls: 0 }
    }
}

impl Medium for Memory {
    fn is_faithful(&self) -> bool {
        false
    }

    fn link_kind(&self) -> LinkKind {
        self.network.link_kind()
    }

    fn listen_directory(&self) -> &Path {
        Path::new("/")
    }

    fn wait_for_ends(&mut self, source: Option<&mut SourceEnd>, builder: Option<&mut BuilderEnd>) {
        let next = source.map(|end| end.next_timeout()).into_iter().chain(builder.map(|end| end.next_timeout()));
        let next = next.flatten().min().expect("neither end has anything to do");
        self.stalls = if next <= self.network.current_time() { self.stalls + 1 } else { 0 };
        assert!(self.stalls < 10_000, "an end has something to do at {next:?} and does not do it");
        self.network.advance_to(next);
        assert!(
            self.network.current_time() < Duration::from_secs(600),
            "ten minutes have passed, and nothing came of it"
        );
    }
}

/// Runs each story under a few kinds of impairments.
macro_rules! with_impairments {
    ($($story:ident)*) => {
        proptest::proptest! {
            #![proptest_config(proptest::test_runner::Config::with_cases(8))]
            $(#[test] fn $story(
                seed: u64,
                lost in 0u32..250,
                doubled in 0u32..250,
                jitter in 0u64..30_000,
                damaged_ppm in 0u32..50_000,
                mtu in 1232usize..1408,
            ) {
                let jitter = Duration::from_micros(jitter);
                let network =
                    Network::new(Impairments { lost, doubled, jitter, damaged_ppm, ..Impairments::FOUL }, seed);
                network.set_mtu(mtu);
                thalweg_link_conformance::$story(Memory::new(network));
            })*
        }
    };
}

link_conformance!(tcp, Over::new(LinkKind::TCP));
link_conformance!(udp, Over::new(LinkKind::UDP));
link_conformance!(shm, Over::new(LinkKind::SHM));
link_conformance!(unix_packets, Over::new(LinkKind::register_transport(&packets::PACKETS)));
link_conformance!(memory, Memory::new(Network::new(Impairments::PERFECT, 0)));
link_conformance! { mod lossy_memory; with_impairments }
