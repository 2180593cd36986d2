//! The stories of [`thalweg_link_conformance`] over ports that lose a tenth, duplicate a tenth and delay a tenth of the
//! datagrams they are given: UDP sockets; and AF_XDP, which needs hosts of its own, also without losses.

use thalweg_frames::UdpPort;
use thalweg_link::parts::{DATAGRAMS, builder_endpoint_over, source_endpoint_over};
use thalweg_link::{Abilities, Adapter, Address, BuilderEndpoint, Eager, LinkError, LinkKind};
use thalweg_link::{SourceEndpoint, Transport, Watch};
use thalweg_link_conformance::{Foul, Over, link_conformance};

const SEED: u64 = 0x7468_616c_7765_6721;

type Source = Result<Box<dyn SourceEndpoint>, LinkError>;
type Builder = Result<Box<dyn BuilderEndpoint>, LinkError>;

#[derive(Debug)]
struct FoulUdp;

impl Transport for FoulUdp {
    fn abilities(&self) -> &'static Abilities {
        &Abilities { name: "foul-udp", title: "UDP, and foul", form: "foul-udp:HOST:PORT", ..DATAGRAMS }
    }

    fn open_source_endpoint(&self, _to: &Address, _by: Option<&Adapter>, watch: Watch) -> Source {
        source_endpoint_over(Foul::new(UdpPort::bind_anywhere().unwrap(), SEED), watch)
    }

    fn open_builder_endpoint(&self, at: &Address, _by: Option<&Adapter>, _eager: Eager, watch: Watch) -> Builder {
        builder_endpoint_over(Foul::new(UdpPort::bind(at.place().parse().unwrap()).unwrap(), !SEED), watch)
    }
}

link_conformance!(foul_udp, Over::new(LinkKind::register_transport(&FoulUdp)));

#[cfg(feature = "af-xdp")]
mod past_the_kernel {
    use super::*;
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicU16, Ordering};
    use std::sync::{Arc, LazyLock, Mutex, PoisonError};
    use thalweg_frames::{AfXdpPort, DatagramIo};
    use thalweg_link_conformance::arena_of_sources;
    use thalweg_sys::netns::Network;
    use thalweg_testing::skip::skipped;

    /// Number of sources of a builder, one after the other or at the same time: each has a host.
    const SOURCES: u16 = 3;

    /// Hosts of a builder, and number of sources that have come.
    type Hosts = Arc<(Network, AtomicU16)>;

    /// Hosts by the builder's port.
    static HOSTS: LazyLock<Mutex<HashMap<u16, Hosts>>> = LazyLock::new(Mutex::default);
    static PORT: AtomicU16 = AtomicU16::new(20_000);

    #[derive(Debug)]
    struct Cabled {
        foul: bool,
    }

    fn port(address: &Address) -> u16 {
        address.place().rsplit_once(':').unwrap().1.parse().unwrap()
    }

    fn hosts(port: u16) -> Hosts {
        let mut all = HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
        let made = || Arc::new((Network::new(1 + SOURCES, 1500).unwrap(), AtomicU16::new(0)));
        Arc::clone(all.entry(port).or_insert_with(made))
    }

    impl Transport for Cabled {
        fn abilities(&self) -> &'static Abilities {
            const FORM: &str = "HOST:PORT";
            match self.foul {
                true => &Abilities { name: "foul-xdp", title: "AF_XDP, and foul", form: FORM, ..DATAGRAMS },
                false => &Abilities { name: "xdp", title: "AF_XDP", form: FORM, ..DATAGRAMS },
            }
        }

        fn open_source_endpoint(&self, to: &Address, _by: Option<&Adapter>, watch: Watch) -> Source {
            let hosts = hosts(port(to));
            let host = 1 + hosts.1.fetch_add(1, Ordering::Relaxed) % SOURCES;
            let to = to.place().parse().unwrap();
            // Its sockets are opened anew for memory that is registered later, and would then be on the host of this
            // thread.
            let open = || {
                let mut port = AfXdpPort::open_towards(to).unwrap();
                port.register_memory(arena_of_sources().arena()).unwrap();
                port
            };
            let port = hosts.0.run_on_host(host, open).unwrap();
            if self.foul {
                source_endpoint_over(Foul::new(port, SEED), watch)
            } else {
                source_endpoint_over(port, watch)
            }
        }

        fn open_builder_endpoint(&self, at: &Address, _by: Option<&Adapter>, _eager: Eager, watch: Watch) -> Builder {
            let number = match port(at) {
                0 => PORT.fetch_add(1, Ordering::Relaxed),
                again => again,
            };
            let at = (Network::host_address(0), number).into();
            let port = hosts(number).0.run_on_host(0, || AfXdpPort::open_at_address(at)).unwrap().unwrap();
            if self.foul {
                builder_endpoint_over(Foul::new(port, !SEED), watch)
            } else {
                builder_endpoint_over(port, watch)
            }
        }
    }

    macro_rules! on_hosts_of_their_own {
        ($kind:expr => $($story:ident)*) => {
            $(#[test]
            fn $story() {
                match Network::new(2, 1500) {
                    Ok(_) => thalweg_link_conformance::$story(Over::new(LinkKind::register_transport($kind))),
                    Err(reason) => skipped(reason),
                }
            })*
        };
    }

    macro_rules! af_xdp {
        ($($story:ident)*) => { on_hosts_of_their_own! { &Cabled { foul: false } => $($story)* } };
    }

    macro_rules! foul_af_xdp {
        ($($story:ident)*) => { on_hosts_of_their_own! { &Cabled { foul: true } => $($story)* } };
    }

    link_conformance! { mod as_it_is; af_xdp }
    link_conformance! { mod foul; foul_af_xdp }
}
