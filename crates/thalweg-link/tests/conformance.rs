//! The stories of [`thalweg_link::conformance`], on each kind of link here, and on one that exists to be tried.

mod packets;

use std::time::Duration;
use thalweg_link::conformance::{Medium, Over};
use thalweg_link::memory::{Impairments, Network};
use thalweg_link::{BuilderLink, Eager, LinkKind, SourceGreeting, SourceLink};

struct Memory(Network);

impl Medium for Memory {
    fn is_faithful(&self) -> bool {
        false
    }

    fn is_eager(&self) -> bool {
        true
    }

    fn connect(&mut self, greeting: &SourceGreeting, eager: Eager) -> (Box<dyn SourceLink>, Box<dyn BuilderLink>) {
        self.0.connect(greeting, eager).unwrap()
    }

    fn wait(&mut self, _: Option<&mut dyn SourceLink>, _: Option<&mut dyn BuilderLink>) {
        self.0.advance_to_next();
        assert!(self.0.now() < Duration::from_secs(600), "ten minutes have passed, and nothing came of it");
    }
}

/// Each story under a few kinds of impairments.
macro_rules! with_impairments {
    ($($story:ident)*) => {
        proptest::proptest! {
            #![proptest_config(proptest::test_runner::Config::with_cases(8))]
            $(#[test] fn $story(seed: u64, lost in 0u32..250, doubled in 0u32..250, jitter in 0u64..30_000) {
                let jitter = Duration::from_micros(jitter);
                let impairments = Impairments { lost, doubled, jitter, ..Impairments::FOUL };
                thalweg_link::conformance::$story(Memory(Network::new(impairments, seed)));
            })*
        }
    };
}

thalweg_link::link_conformance!(tcp, Over::new(LinkKind::TCP));
thalweg_link::link_conformance!(shm, Over::new(LinkKind::SHM));
thalweg_link::link_conformance!(unix_packets, Over::new(LinkKind::register(&packets::PACKETS)));
thalweg_link::link_conformance!(memory, Memory(Network::new(Impairments::PERFECT, 0)));
thalweg_link::link_conformance! { mod lossy_memory; with_impairments }
