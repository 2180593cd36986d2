//! Hosts of a test's own: network namespaces with virtual cables between them, which nobody else sees.

use super::{Node, TIMEOUT};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;
use thalweg_sys::netns::{NetnsError, Network};

/// They vanish with this, and with all that was started on them.
pub(crate) struct Hosts(Network);

impl Hosts {
    /// Nothing where this process may not make them: then the test is skipped, with the reason.
    pub(crate) fn new(count: u16) -> Option<Self> {
        Self::of(Network::new(count, 1500))
    }

    /// The same, with packets of so many bytes.
    pub(crate) fn with_mtu(count: u16, mtu: u32) -> Option<Self> {
        Self::of(Network::new(count, mtu))
    }

    /// Does something on a host, in a thread of its own.
    pub(crate) fn on<T: Send>(&self, host: u16, act: impl FnOnce() -> T + Send) -> T {
        self.0.run_on_host(host, act).unwrap()
    }

    /// The same, and the kernel has no part in their network.
    pub(crate) fn without_addresses(count: u16) -> Option<Self> {
        Self::of(Network::without_addresses(count, 1500))
    }

    fn of(network: Result<Network, NetnsError>) -> Option<Self> {
        match network {
            Ok(network) => Some(Self(network)),
            Err(why) => {
                thalweg_testing::skip::skipped(format!("no hosts can be made: {why}"));
                None
            }
        }
    }

    /// Runs a command on a host, to its end.
    pub(crate) fn run(&self, host: u16, command: &mut Command) -> Output {
        self.0.run_on_host(host, || command.output()).unwrap().unwrap()
    }

    pub(crate) fn start(&self, host: u16, name: &str, command: Command) -> Node {
        self.0.run_on_host(host, || Node::start(name, command)).unwrap()
    }

    /// Starts a node of a topology on a host.
    pub(crate) fn node(&self, host: u16, name: &str, topology: &Path) -> Node {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        command.args(["--json", "-v", "node", name]).arg(topology).current_dir(topology.parent().unwrap());
        self.start(host, name, command)
    }

    /// What the kernel says of a host's interface.
    pub(crate) fn interface(&self, host: u16) -> String {
        let output = self.run(host, Command::new("ip").args(["link", "show", Network::INTERFACE]));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Waits until no program is attached to any interface: the kernel takes it off when its process is gone.
    pub(crate) fn are_bare(&self, count: u16) {
        let deadline = Instant::now() + TIMEOUT;
        while let Some(said) = (0..count).map(|host| self.interface(host)).find(|said| said.contains("xdp")) {
            assert!(Instant::now() < deadline, "{said}");
        }
    }
}
