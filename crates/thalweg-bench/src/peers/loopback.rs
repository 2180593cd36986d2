//! A network of one's own: a loopback that nobody else uses, and that nobody else can reach.
//!
//! Some peers listen on all addresses and cannot be told otherwise. In a network namespace of our own
//! (network_namespaces(7)) there is nothing but loopback, all ports are free, and no firewall's rules are run through.
//! What is measured beside a peer is measured in there too.

use crate::BenchError;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd;

/// What helps where there is none.
pub(crate) const REMEDY: &str = "run as root, or with `unshare --map-root-user` in front";

/// Gives the calling thread, and every process and thread that it starts from now on, a network with only a loopback.
/// There is no way back: the thread should be one made for this.
pub(crate) fn separate() -> Result<(), BenchError> {
    // SAFETY: unshare(2) with CLONE_NEWNET alone leaves this thread's files, memory and file system as they are.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|error| BenchError::Unavailable {
        what: "a network of its own".to_owned(),
        why: format!("{error}; {REMEDY}"),
    })?;
    raise()
}

/// Switches loopback on: it is off in a new network.
fn raise() -> Result<(), BenchError> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(BenchError::os("socket"))?;
    // SAFETY: `ifreq` is a struct of numbers and a union of such, for which zeroes are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    #[expect(clippy::cast_possible_truncation, reason = "both are below 2^7")]
    let up = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    request.ifr_ifru.ifru_flags = up;
    // SAFETY: SIOCSIFFLAGS reads an `ifreq` (netdevice(7)); the pointer is to a live one and is not kept.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } < 0 {
        return Err(BenchError::os("switching loopback on")(io::Error::last_os_error()));
    }
    Ok(())
}

/// Two different ports of loopback that nobody uses.
pub(crate) fn free_ports() -> Result<[u16; 2], BenchError> {
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(BenchError::os("looking for a free port"));
    let port = |listener: &TcpListener| Ok(listener.local_addr().map_err(BenchError::os("getsockname"))?.port());
    let both = [listen()?, listen()?];
    Ok([port(&both[0])?, port(&both[1])?])
}

/// The congestion control that connections get here which do not ask for one.
pub(super) fn congestion_control() -> String {
    let control = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    control.map_or_else(|_| "unknown".to_owned(), |control| control.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use thalweg_skip::skipped;

    #[test]
    fn ports_in_use_outside_are_free_inside_and_loopback_works() {
        let outside = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = outside.local_addr().unwrap();
        let inside = thread::spawn(move || {
            separate()?;
            let inside = TcpListener::bind(address).unwrap();
            std::net::TcpStream::connect(address).unwrap();
            inside.accept().unwrap();
            Ok::<(), BenchError>(())
        });
        match inside.join().unwrap() {
            Ok(()) => {}
            Err(error @ BenchError::Unavailable { .. }) => skipped(error),
            Err(error) => panic!("{error}"),
        }
        // This thread has stayed where it was.
        assert!(TcpListener::bind(address).is_err());
    }

    #[test]
    fn two_ports_differ() {
        let [one, other] = free_ports().unwrap();
        assert_ne!(one, other);
    }
}
