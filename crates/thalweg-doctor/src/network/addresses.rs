//! Addresses of a topology: whether builders can listen on theirs, and sources find them.

use crate::{Finding, Needs, read};
use rustix::fs::{Access, access};
use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::BTreeSet;
use std::io::{Error, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use thalweg_ibverbs::IbverbsError;
use thalweg_link::Address;

pub(super) fn probe_addresses(needs: &Needs) -> Vec<Finding> {
    let listen: BTreeSet<String> = needs.nodes.iter().flat_map(|node| &node.listen).map(Address::to_string).collect();
    let connect: BTreeSet<String> = needs.nodes.iter().flat_map(|node| &node.connect).map(Address::to_string).collect();
    // An address that is listened on here will be found here.
    let elsewhere = connect.difference(&listen);
    listen
        .iter()
        .map(|address| probe_listening(address))
        .chain(elsewhere.map(|address| probe_connecting(address)))
        .collect()
}

/// Checks an address that a builder listens on.
fn probe_listening(text: &str) -> Finding {
    let title = format!("listening on {text}");
    let address: Address = match text.parse() {
        Ok(address) => address,
        Err(problem) => return Finding::new(title, problem).with_missing_level("it is not an address"),
    };
    match (address.host_port(), address.socket_path()) {
        (Some(_), _) if address.link_kind().adapter => Finding::new(
            title,
            "on an adapter that the node drives itself; whether that works is known only when it \
                runs",
        ),
        (Some(host), _) => match resolve_host(host) {
            Ok(found) if address.link_kind().rdma_device => {
                device_finding(title, found, thalweg_ibverbs::device_of_address(found.ip()))
            }
            Ok(address) => probe_port(title, address),
            Err(error) => unresolved_finding(title, &error),
        },
        (_, Some(path)) => probe_socket_path(title, path, &read::read_text("/proc/net/unix").unwrap_or_default()),
        (None, None) => Finding::new(title, "whether it is free is known only when it runs"),
    }
}

/// Checks an address that a source connects to, on this host or another.
fn probe_connecting(text: &str) -> Finding {
    let title = format!("connecting to {text}");
    let address: Address = match text.parse() {
        Ok(address) => address,
        Err(problem) => return Finding::new(title, problem).with_missing_level("it is not an address"),
    };
    match (address.host_port().map(resolve_host), address.socket_path()) {
        (Some(Ok(found)), _) if address.link_kind().rdma_device => {
            device_finding(title, found, thalweg_ibverbs::device_towards(found).map(|(device, _)| device))
        }
        (Some(Ok(address)), _) => Finding::new(
            title,
            format!(
                "resolves to {address}; whether a builder listens there is known only when it \
                runs"
            ),
        ),
        (Some(Err(error)), _) => unresolved_finding(title, &error),
        (None, Some(path)) => Finding::new(title, format!("on this host, at {}", path.display())),
        (None, None) => Finding::new(title, "whether a builder listens there is known only when it runs"),
    }
}

/// Reports by which RDMA device an address is used.
fn device_finding(title: String, address: SocketAddr, device: Result<Option<String>, IbverbsError>) -> Finding {
    match device {
        Ok(Some(name)) => Finding::new(title, format!("by the RDMA device {name}")),
        Ok(None) => Finding::new(title, format!("no RDMA device has, or reaches, {} (see `rdma link`)", address.ip()))
            .with_missing_level("the node cannot use the link without an RDMA device; `rdma` needs none"),
        Err(error) => Finding::new(title, error.to_string())
            .with_missing_level("the node cannot use an RDMA device; `rdma` needs none"),
    }
}

fn resolve_host(host: &str) -> std::io::Result<SocketAddr> {
    host.to_socket_addrs().and_then(|mut all| all.next().ok_or_else(no_address_error))
}

fn probe_port(title: String, address: SocketAddr) -> Finding {
    let Err(error) = try_bind(address) else {
        return Finding::new(title, format!("free: a socket could be bound to {address}"));
    };
    let finding = Finding::new(title, format!("a socket cannot be bound to {address}: {error}"));
    match error.kind() {
        ErrorKind::AddrInUse => finding
            .with_missing_level("another program listens there: stop it, or choose another port")
            .with_remedy(format!("ss -lntp 'sport = :{}'", address.port())),
        ErrorKind::AddrNotAvailable => finding
            .with_missing_level("it is not an address of this machine: examine each host with --node")
            .with_remedy("ip -brief address"),
        _ => finding.with_missing_level(
            "a builder cannot listen there: choose another address or port; those below 1024 are for root",
        ),
    }
}

fn no_address_error() -> Error {
    Error::new(ErrorKind::NotFound, "the name has no address")
}

fn unresolved_finding(title: String, error: &Error) -> Finding {
    Finding::new(title, format!("cannot be resolved: {error}"))
        .with_missing_level("sources cannot find the builder: correct the name, or write a numeric address")
}

/// Binds as a builder does, without listening: no one can connect, and nothing is left.
fn try_bind(address: SocketAddr) -> std::io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.cloexec(), None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(address))
}

fn probe_socket_path(title: String, path: &Path, sockets: &str) -> Finding {
    let length = path.as_os_str().len();
    if length > Address::LONGEST_PATH {
        return Finding::new(title, format!("{length} bytes long")).with_missing_level(format!(
            "a socket's path has at most {} bytes: choose a shorter one",
            Address::LONGEST_PATH
        ));
    }
    if is_listened_on(sockets, path) {
        return Finding::new(title, "another program listens there (/proc/net/unix)")
            .with_missing_level("a builder cannot listen there: stop that program, or choose another path")
            .with_remedy(format!("ss -lxp src {}", path.display()));
    }
    // A socket that no one listens on is replaced.
    if std::fs::symlink_metadata(path).is_ok_and(|file| !file.file_type().is_socket()) {
        return Finding::new(title, "a file of that name exists and is not a socket")
            .with_missing_level("a builder cannot listen there: choose another path");
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match access(directory, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Finding::new(title, format!("free: {} is writable", directory.display())),
        Err(error) => Finding::new(title, format!("{} is not writable: {error}", directory.display()))
            .with_missing_level("a builder cannot listen there: create the directory, or choose another path"),
    }
}

/// Returns true if a process listens on the path. Columns of `/proc/net/unix`: Num RefCount Protocol Flags Type St
/// Inode Path; the flag `__SO_ACCEPTCON` marks listening sockets (proc_net(5)).
fn is_listened_on(sockets: &str, path: &Path) -> bool {
    const SO_ACCEPTCON: u32 = 1 << 16;
    sockets.lines().any(|line| {
        let fields: Vec<&str> = line.splitn(8, ' ').collect();
        // Columns are separated by one space, except that the inode is padded.
        let Some(flags) = fields.get(3).and_then(|flags| u32::from_str_radix(flags, 16).ok()) else { return false };
        flags & SO_ACCEPTCON != 0 && line.ends_with(&format!(" {}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;
    use proptest::prelude::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_port_is_free_until_somebody_listens() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp:{}", listener.local_addr().unwrap());
        let taken = probe_listening(&address);
        assert_eq!(taken.level, Level::Missing);
        assert!(taken.remedy.unwrap().starts_with("ss -lntp 'sport = :"));
        drop(listener);
        assert_eq!(probe_listening(&address).level, Level::Ok);
        assert_eq!(probe_listening("tcp:127.0.0.1:0").level, Level::Ok);
    }

    #[test]
    fn addresses_of_others_are_distinguished_from_our_own() {
        // An address of TEST-NET-1 (RFC 5737), which no machine has.
        let foreign = probe_listening("tcp:192.0.2.1:4000");
        assert_eq!(foreign.level, Level::Missing);
        assert!(foreign.cost.unwrap().contains("not an address of this machine"));
        assert_eq!(probe_connecting("tcp:192.0.2.1:4000").level, Level::Ok);
    }

    #[test]
    fn a_socket_path_is_looked_at_without_touching_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("thalweg.sock");
        let text = format!("shm:{}", path.display());
        assert_eq!(probe_listening(&text).level, Level::Ok);
        assert!(!path.exists());
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        assert_eq!(probe_listening(&text).level, Level::Missing);
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "no connection was made");
        assert_eq!(probe_listening("shm:/no/such/directory/x").level, Level::Missing);
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(probe_listening(&format!("shm:{}", file.display())).level, Level::Missing);
        let long = Path::new("/tmp").join("x".repeat(120));
        assert_eq!(probe_socket_path(String::new(), &long, "").level, Level::Missing);
    }

    #[test]
    fn an_address_of_this_topology_is_examined_once() {
        let address: Address = "shm:/tmp/thalweg-doctor-test.sock".parse().unwrap();
        let node = |listen: &[&Address], connect: &[&Address]| crate::NodeNeeds {
            listen: listen.iter().copied().cloned().collect(),
            connect: connect.iter().copied().cloned().collect(),
            ..crate::NodeNeeds::default()
        };
        let nodes = vec![node(&[&address], &[]), node(&[], &[&address]), node(&[], &[&address])];
        assert_eq!(probe_addresses(&Needs { nodes, ..Needs::default() }).len(), 1);
    }

    proptest! {
        #[test]
        fn any_table_is_read_without_harm(text in "\\PC*|[0-9a-f: \\n/]*") {
            is_listened_on(&text, Path::new("/run/x"));
        }
    }
}
