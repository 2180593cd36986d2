//! Where client and server meet: this host's loopback, or two virtual Ethernet cards with a network of its own behind
//! each.

use super::command::run;
use crate::BenchError;
use crate::drive::Stop;
use crate::peers::loopback::{REMEDY, free_ports};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::thread;

/// What lies between client and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum On {
    Loopback,
    /// A pair of virtual Ethernet cards, each in a network namespace of its own
    Veth,
}

impl On {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Veth => "veth",
        }
    }
}

/// One that can be used. Its cards are gone when this and the programs in it are.
#[derive(Debug)]
pub(super) enum Network {
    Loopback,
    /// The network namespaces at both ends.
    Veth {
        server: File,
        client: File,
    },
}

/// One of its ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Server,
    Client,
}

impl Network {
    pub(super) fn new(on: On, stop: &Stop) -> Result<Self, BenchError> {
        match on {
            On::Loopback => Ok(Self::Loopback),
            // There is no way back out of a namespace for who is not root outside: a thread of its own.
            On::Veth => thread::scope(|scope| {
                scope.spawn(|| veth(stop)).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }),
        }
    }

    /// Puts the calling thread, and what it starts from now on, at one of the ends: for threads made for this.
    pub(super) fn enter(&self, end: End) -> Result<(), BenchError> {
        let space = match (self, end) {
            (Self::Loopback, _) => return Ok(()),
            (Self::Veth { server, .. }, End::Server) => server,
            (Self::Veth { client, .. }, End::Client) => client,
        };
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(BenchError::os("entering a network namespace"))
    }

    /// Where a server can listen.
    pub(super) fn address(&self) -> Result<SocketAddr, BenchError> {
        match self {
            Self::Loopback => Ok(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), free_ports()?[0])),
            Self::Veth { .. } => Ok(SocketAddr::new(SERVER.into(), 8042)),
        }
    }
}

/// From the network that is set aside for measurements of this kind (RFC 2544, section C.2.2).
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

fn veth(stop: &Stop) -> Result<Network, BenchError> {
    let network = Network::Veth { server: own_network()?, client: own_network()? };
    if let Network::Veth { server, .. } = &network {
        let theirs = format!("/proc/{}/fd/{}", std::process::id(), server.as_raw_fd());
        run("ip", &["link", "add", "client", "type", "veth", "peer", "name", "server", "netns", &theirs], stop)?;
    }
    for (end, name, address) in [(End::Client, "client", CLIENT), (End::Server, "server", SERVER)] {
        network.enter(end)?;
        run("ip", &["address", "add", &format!("{address}/30"), "dev", name], stop)?;
        run("ip", &["link", "set", name, "up"], stop)?;
    }
    Ok(network)
}

/// A network for the calling thread that has nothing yet.
fn own_network() -> Result<File, BenchError> {
    // SAFETY: unshare(2) with CLONE_NEWNET alone leaves this thread's files, memory and file system as they are.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|error| BenchError::Unavailable {
        what: "a network of its own".to_owned(),
        why: format!("{error}; {REMEDY}"),
    })?;
    let path = "/proc/thread-self/ns/net";
    File::open(path).map_err(|error| BenchError::File { path: path.into(), error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use thalweg_skip::skipped;

    #[test]
    fn what_listens_at_one_end_is_reached_from_the_other_and_from_nowhere_else() {
        let network = match Network::new(On::Veth, &Stop::default()) {
            Ok(network) => network,
            Err(error @ (BenchError::Unavailable { .. } | BenchError::Program { .. })) => {
                return skipped(error);
            }
            Err(error) => panic!("{error}"),
        };
        let address = network.address().unwrap();
        let both = thread::scope(|scope| {
            let inside = scope.spawn(|| {
                network.enter(End::Server).unwrap();
                let listener = TcpListener::bind(address).unwrap();
                network.enter(End::Client).unwrap();
                let client = TcpStream::connect(address).unwrap();
                let (_, from) = listener.accept().unwrap();
                (client.local_addr().unwrap().ip(), from.ip())
            });
            inside.join().unwrap()
        });
        assert_eq!(both, (CLIENT.into(), CLIENT.into()));
        assert!(TcpListener::bind(address).is_err(), "this thread has stayed where it was");
    }
}
