//! Discovery of cameras (GigE Vision 2.x, section 5.1): on all interfaces at once.

use crate::channel::camera_address;
use crate::gvcp::{Acknowledge, Command, GVCP_PORT};
use crate::registers::CameraInfo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Number of cameras listed at most: more answers do not come from cameras.
const MAX_CAMERAS: usize = 4096;
/// Interval at which the command is repeated: commands may get lost.
const REPEAT_INTERVAL: Duration = Duration::from_millis(250);
/// Number of the discovery command, which no command that waits for its answer has (section 5.1 wants any but 0).
const DISCOVERY_NUMBER: u16 = 0xffff;

/// Returns the cameras that answer on any interface within this time, sorted by address.
///
/// # Errors
/// The interfaces cannot be listed, or none can be used.
pub fn discover_cameras(timeout: Duration) -> io::Result<Vec<CameraInfo>> {
    search_cameras(None, None, timeout, |_| false)
}

/// Returns the camera of this name as soon as it answers: by its serial number, user-defined name, or one of its
/// addresses. `None` if no such camera answers.
///
/// # Errors
/// As [`discover_cameras`]; or there is no such interface.
pub fn find_camera(name: &str, interface: Option<&str>, timeout: Duration) -> io::Result<Option<CameraInfo>> {
    let to = name.parse().ok();
    let found = search_cameras(interface, to, timeout, |found| found.is_called(name))?;
    Ok(found.into_iter().find(|found| found.is_called(name)))
}

/// Returns the address of an interface that is given by its name or address.
///
/// # Errors
/// There is no such interface.
pub(crate) fn interface_address(interface: &str) -> io::Result<Ipv4Addr> {
    let all = list_interfaces(Some(interface))?;
    all.first().map(|interface| interface.address).ok_or_else(|| no_interface_error(interface))
}

fn no_interface_error(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("there is no interface {name} with an IPv4 address"))
}

struct Interface {
    name: String,
    address: Ipv4Addr,
    broadcast: Option<Ipv4Addr>,
    is_loopback: bool,
}

fn list_interfaces(only: Option<&str>) -> io::Result<Vec<Interface>> {
    let all = if_addrs::get_if_addrs()?.into_iter().filter_map(|found| {
        let is_loopback = found.is_loopback();
        let if_addrs::IfAddr::V4(own) = found.addr else { return None };
        let broadcast = own
            .broadcast
            .or_else(|| (own.prefixlen < 31).then(|| Ipv4Addr::from(u32::from(own.ip) | !u32::from(own.netmask))));
        Some(Interface { name: found.name, address: own.ip, broadcast, is_loopback })
    });
    Ok(all.filter(|own| only.is_none_or(|only| own.name == only || own.address.to_string() == only)).collect())
}

/// Broadcasts the command, and collects answers until the time is over or one is `enough`. If `to` is given, the
/// command goes only to this address.
fn search_cameras(
    interface: Option<&str>,
    to: Option<Ipv4Addr>,
    timeout: Duration,
    enough: impl Fn(&CameraInfo) -> bool,
) -> io::Result<Vec<CameraInfo>> {
    let begun = Instant::now();
    let interfaces = list_interfaces(interface)?;
    if let (Some(name), true) = (interface, interfaces.is_empty()) {
        return Err(no_interface_error(name));
    }
    let mut ports = Vec::new();
    let mut problem = None;
    for interface in interfaces {
        match open_socket(&interface) {
            Ok(socket) => ports.push((interface, socket)),
            Err(error) => problem = Some(error),
        }
    }
    if let (true, Some(error)) = (ports.is_empty(), problem) {
        return Err(error);
    }
    let command = Command::Discover.to_datagram(DISCOVERY_NUMBER);
    let mut all: Vec<CameraInfo> = Vec::new();
    let mut asked = None;
    loop {
        let now = begun.elapsed();
        if now >= timeout {
            break;
        }
        if asked.is_none_or(|asked| now >= asked + REPEAT_INTERVAL) {
            asked = Some(now);
            ports.iter().for_each(|(interface, socket)| send_discovery(interface, socket, to, &command));
        }
        let next = asked.map_or(timeout, |asked| asked + REPEAT_INTERVAL).min(timeout).saturating_sub(now);
        wait_readable(ports.iter().map(|(_, socket)| socket), next)?;
        for (interface, socket) in &ports {
            let mut room = [0; 1024];
            while let Ok((length, from)) = socket.recv_from(&mut room) {
                let Some(found) = parse_answer(&room[..length], from, &interface.name) else { continue };
                let known = all.iter().any(|known| known.mac == found.mac && known.address == found.address);
                if known || all.len() == MAX_CAMERAS || now >= timeout {
                    continue;
                }
                let is_enough = enough(&found);
                all.push(found);
                if is_enough {
                    return Ok(all);
                }
                if begun.elapsed() >= timeout {
                    break;
                }
            }
        }
    }
    all.sort_by_key(|found| found.address);
    Ok(all)
}

fn open_socket(interface: &Interface) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
    socket.set_broadcast(true)?;
    // Without it, broadcasts leave by one interface only. If it is not permitted, that has to do.
    let _ = socket.bind_device(Some(interface.name.as_bytes()));
    socket.bind(&SocketAddr::from((interface.address, 0)).into())?;
    Ok(socket.into())
}

fn send_discovery(interface: &Interface, socket: &UdpSocket, to: Option<Ipv4Addr>, command: &[u8]) {
    let broadcasts =
        [Some(Ipv4Addr::BROADCAST), interface.broadcast, interface.is_loopback.then_some(interface.address)];
    let to: Vec<Ipv4Addr> = match to {
        Some(to) => vec![to],
        None => broadcasts.into_iter().flatten().collect(),
    };
    for to in to {
        // An interface without a route there returns an error, which does not matter.
        let _ = socket.send_to(command, (to, GVCP_PORT));
    }
}

fn parse_answer(datagram: &[u8], from: SocketAddr, interface: &str) -> Option<CameraInfo> {
    let answer = Acknowledge::parse_datagram(datagram)?;
    if answer.answer != Command::Discover.acknowledge_code()
        || answer.number != DISCOVERY_NUMBER
        || answer.status.is_error()
    {
        return None;
    }
    let mut found = CameraInfo::from_registers(answer.payload, interface)?;
    // An unset address is replaced by the one at which the camera is reached.
    if found.address.is_unspecified() {
        found.address = camera_address(from)?;
    }
    Some(found)
}

fn wait_readable<'a>(sockets: impl Iterator<Item = &'a UdpSocket>, time: Duration) -> io::Result<()> {
    let mut fds: Vec<PollFd<'_>> =
        sockets.map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)).collect();
    let time = Timespec::try_from(time).ok();
    match poll(&mut fds, time.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_camera_answers_where_there_is_none() {
        let begun = Instant::now();
        assert!(find_camera("no camera has this name", Some("lo"), Duration::from_millis(20)).unwrap().is_none());
        assert!(begun.elapsed() < Duration::from_secs(60));
        let error = find_camera("x", Some("no such interface"), Duration::from_millis(20)).unwrap_err();
        assert!(error.to_string().contains("no such interface"), "{error}");
        assert_eq!(interface_address("lo").unwrap(), Ipv4Addr::LOCALHOST);
    }

    proptest! {
        #[test]
        fn any_answer_is_a_camera_or_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 3956));
            let _ = parse_answer(&bytes, from, "lo");
            // A datagram that claims to be an acknowledge.
            let whole = [&[0, 0, 0, 3][..], &(bytes.len() as u16).to_be_bytes(), &[0xff, 0xff], &bytes].concat();
            prop_assert_eq!(parse_answer(&whole, from, "lo").is_some(), bytes.len() >= 0xf8);
        }
    }
}
