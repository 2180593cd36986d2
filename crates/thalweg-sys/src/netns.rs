//! Private networks of this process: network namespaces (network_namespaces(7)) with virtual cables between them.
//!
//! In such a network all ports are free, no firewall rules apply, and it is isolated from all others. Its namespaces
//! have no names, and belong to this process and those that it starts in them: when the last of these has ended, for
//! whatever reason, the kernel removes the network.
//!
//! Making a network requires `CAP_SYS_ADMIN`: [`REMEDY`] is the advice for users. Only threads enter a namespace, and a
//! thread that is not root outside cannot return: use threads made for this. Threads and processes that a thread starts
//! are in its namespace.

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Output, Stdio};
use std::thread;
use thiserror::Error;

/// Advice for a process that has no permission to make a network.
pub const REMEDY: &str = "run as root, or under `unshare --map-root-user`";

/// Error from making or entering a network.
#[derive(Debug, Error)]
pub enum NetnsError {
    /// This process has no permission, or the kernel has no namespaces.
    #[error("{0}; {REMEDY}")]
    Refused(io::Error),
    /// The program `ip` failed, or is not installed.
    #[error("ip (iproute2): {0}")]
    Ip(String),
    /// A system call failed.
    #[error("{doing}: {error}")]
    Os {
        /// Action that failed.
        doing: &'static str,
        /// Error from the kernel.
        error: io::Error,
    },
}

impl NetnsError {
    fn from_system_call<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Os { doing, error: error.into() }
    }
}

/// Gives the calling thread, and everything that it starts from now on, a network with only a loopback.
///
/// # Errors
/// The process has no permission.
pub fn enter_private_network() -> Result<(), NetnsError> {
    unshare_network()?;
    raise_loopback()
}

/// Hosts that reach each other: two by a cable, more through a switch.
///
/// Each has an interface [`INTERFACE`](Self::INTERFACE) with an [`host_address`](Self::host_address), and a loopback. A
/// cable is a pair of `veth` interfaces (veth(4)); the switch is a bridge in a namespace of its own, which lives as
/// long as the hosts' cables do.
#[derive(Debug)]
pub struct Network {
    hosts: Vec<File>,
    /// Namespace of the switch. No thread is in it: this descriptor keeps it alive.
    _switch: Option<File>,
}

impl Network {
    /// Name of each host's interface.
    pub const INTERFACE: &str = "eth0";

    /// Number of leading bits that all addresses share.
    pub const PREFIX_BITS: u8 = 16;

    /// Creates a network of `hosts` hosts whose interfaces carry IP packets of up to `mtu` bytes.
    ///
    /// # Errors
    /// The process has no permission, or `ip` is not installed.
    pub fn new(hosts: u16, mtu: u32) -> Result<Self, NetnsError> {
        run_in_thread(|| Self::lay_cables(hosts, mtu, true))
    }

    /// Creates a network like [`new`](Self::new), in which the kernel has no addresses: for programs that drive the
    /// interfaces. Otherwise the kernel would answer for them, and report that there is no receiver.
    ///
    /// # Errors
    /// The same as for [`new`](Self::new).
    pub fn without_addresses(hosts: u16, mtu: u32) -> Result<Self, NetnsError> {
        run_in_thread(|| Self::lay_cables(hosts, mtu, false))
    }

    fn lay_cables(count: u16, mtu: u32, addresses: bool) -> Result<Self, NetnsError> {
        let hosts = (0..count).map(|_| create_namespace()).collect::<Result<Vec<_>, _>>()?;
        let (mut cables, mut switch) = (String::new(), None);
        if let [near, far] = &hosts[..] {
            let (near, far) = (namespace_path(near), namespace_path(far));
            let cable =
                format!("link add {0} mtu {mtu} netns {near} type veth peer name {0} netns {far}", Self::INTERFACE);
            let _ = writeln!(cables, "{cable} mtu {mtu}");
        } else {
            switch = Some(create_namespace()?);
            cables.push_str("link add switch type bridge\n");
            for (host, namespace) in hosts.iter().enumerate() {
                let port = format!("port{host}");
                let far = namespace_path(namespace);
                let interface = Self::INTERFACE;
                let _ =
                    writeln!(cables, "link add {port} mtu {mtu} type veth peer name {interface} netns {far} mtu {mtu}");
                let _ = writeln!(cables, "link set {port} master switch up");
            }
            let _ = writeln!(cables, "link set switch mtu {mtu} up");
        }
        run_ip_batch(&cables)?;
        let network = Self { hosts, _switch: switch };
        for host in 0..count {
            network.enter_host(host)?;
            let (address, bits, interface) = (Self::host_address(host), Self::PREFIX_BITS, Self::INTERFACE);
            if addresses {
                run_ip_batch(&format!("address add {address}/{bits} dev {interface}\n"))?;
            }
            run_ip_batch(&format!("link set {interface} up\nlink set lo up\n"))?;
        }
        for host in 0..count {
            // The kernel answers once it has seen that the other end is up. Before, it drops what is sent.
            network.enter_host(host)?;
            run_ip_batch(&format!("link show dev {}\n", Self::INTERFACE))?;
        }
        Ok(network)
    }

    /// Returns a host's address, from the range reserved for measurements (RFC 2544, section C.2.2).
    pub fn host_address(host: u16) -> Ipv4Addr {
        let [high, low] = (host + 1).to_be_bytes();
        Ipv4Addr::new(198, 18, high, low)
    }

    /// Moves the calling thread, and everything that it starts from now on, to a host.
    ///
    /// # Errors
    /// The process has no permission.
    ///
    /// # Panics
    /// There is no such host.
    pub fn enter_host(&self, host: u16) -> Result<(), NetnsError> {
        let host = &self.hosts[usize::from(host)];
        move_into_link_name_space(host.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(NetnsError::from_system_call("entering a network namespace"))
    }

    /// Calls `act` on a host, in a thread of its own: everything that this thread opens and starts is there.
    ///
    /// # Errors
    /// The process has no permission.
    ///
    /// # Panics
    /// There is no such host, or `act` panics.
    pub fn run_on_host<T: Send>(&self, host: u16, act: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        run_in_thread(|| self.enter_host(host).map(|()| act()))
    }
}

fn run_in_thread<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(act).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

fn unshare_network() -> Result<(), NetnsError> {
    // SAFETY: unshare(2) with CLONE_NEWNET alone leaves this thread's files, memory and file system as they are.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|error| NetnsError::Refused(error.into()))
}

/// Creates an empty namespace for the calling thread, and returns its descriptor.
fn create_namespace() -> Result<File, NetnsError> {
    unshare_network()?;
    File::open("/proc/thread-self/ns/net").map_err(NetnsError::from_system_call("opening a network namespace"))
}

/// Returns the path by which another process finds a namespace that this process has open.
fn namespace_path(namespace: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd())
}

/// Switches the loopback on: it is off in a new network.
fn raise_loopback() -> Result<(), NetnsError> {
    let socket =
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(NetnsError::from_system_call("opening a socket"))?;
    // SAFETY: `ifreq` is a struct of numbers and a union of numbers, for which zeroes are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    #[expect(clippy::cast_possible_truncation, reason = "both are below 2^7")]
    let up = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    request.ifr_ifru.ifru_flags = up;
    // SAFETY: SIOCSIFFLAGS reads an `ifreq` (netdevice(7)); the pointer is to a live one and is not kept.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } < 0 {
        return Err(NetnsError::from_system_call("switching loopback on")(io::Error::last_os_error()));
    }
    Ok(())
}

/// Executes these lines with `ip`, in the namespace of the calling thread.
fn run_ip_batch(lines: &str) -> Result<(), NetnsError> {
    let output = spawn_ip_batch(lines).map_err(|error| NetnsError::Ip(error.to_string()))?;
    if !output.status.success() {
        return Err(NetnsError::Ip(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(())
}

fn spawn_ip_batch(lines: &str) -> io::Result<Output> {
    let mut command = Command::new("ip");
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(lines.as_bytes())?;
    }
    child.wait_with_output()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use thalweg_testing::skip::skipped;

    /// Returns a network, or `None` if this process has no permission to make one.
    fn network(hosts: u16) -> Option<Network> {
        match Network::new(hosts, 1500) {
            Ok(network) => Some(network),
            Err(error @ (NetnsError::Refused(_) | NetnsError::Ip(_))) => {
                skipped(error);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn reach_each_other(hosts: u16) {
        let Some(network) = network(hosts) else { return };
        let address = SocketAddr::from((Network::host_address(0), 7400));
        let listener = network.run_on_host(0, || TcpListener::bind(address).unwrap()).unwrap();
        for host in 1..hosts {
            let client = network.run_on_host(host, || TcpStream::connect(address).unwrap()).unwrap();
            let (_, from) = listener.accept().unwrap();
            assert_eq!([client.local_addr().unwrap().ip(), from.ip()], [Network::host_address(host); 2]);
        }
        assert!(TcpListener::bind(address).is_err(), "this thread has stayed where it was");
    }

    #[test]
    fn two_hosts_reach_each_other_and_no_other_host_does() {
        reach_each_other(2);
    }

    #[test]
    fn several_hosts_reach_each_other_and_no_other_host_does() {
        reach_each_other(4);
    }

    #[test]
    fn ports_in_use_outside_are_free_inside_and_loopback_works() {
        let outside = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = outside.local_addr().unwrap();
        let inside = run_in_thread(move || {
            enter_private_network()?;
            let inside = TcpListener::bind(address).unwrap();
            TcpStream::connect(address).unwrap();
            inside.accept().unwrap();
            Ok::<(), NetnsError>(())
        });
        match inside {
            Ok(()) => {}
            Err(error @ NetnsError::Refused(_)) => skipped(error),
            Err(error) => panic!("{error}"),
        }
        // This thread has stayed where it was.
        assert!(TcpListener::bind(address).is_err());
    }
}
