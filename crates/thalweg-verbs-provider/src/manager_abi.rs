//! Commands of librdmacm to the connection manager of the kernel, and its answers (`rdma/rdma_user_cm.h`, version 4).
//!
//! A command is a head (number, bytes that follow, room for the answer) and a body of the command's own. Any bytes may come:
//! a command that is too short, or has a number or an address that does not exist, is refused.

use libc::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Length in bytes of a command's head.
const HEAD_BYTES: usize = 8;

/// Longest private data in bytes.
pub(crate) const MAX_PRIVATE_BYTES: usize = 256;

/// Length in bytes of `struct rdma_ucm_conn_param`.
const PARAMETER_BYTES: usize = 16 + MAX_PRIVATE_BYTES;

/// Length in bytes of the answer with an event: its parameters are those of a connection, or longer ones.
const EVENT_BYTES: usize = 336;

/// Offset of the device's index in the answer with a route: libibverbs may not know it, and then the caller's value stays.
const ROUTE_BYTES: usize = 200;

/// A command. `answer` is where its answer is written, `room` how many bytes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) answer: u64,
    pub(crate) room: usize,
}

/// What a command asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    CreateId {
        uid: u64,
    },
    DestroyId {
        id: u32,
    },
    Bind {
        id: u32,
        address: SocketAddr,
    },
    ResolveAddress {
        id: u32,
        source: Option<SocketAddr>,
        destination: SocketAddr,
    },
    ResolveRoute {
        id: u32,
    },
    QueryRoute {
        id: u32,
    },
    Connect {
        id: u32,
        parameters: Parameters,
    },
    Listen {
        id: u32,
        backlog: u32,
    },
    Accept {
        id: u32,
        uid: u64,
        parameters: Parameters,
    },
    Reject {
        id: u32,
        private_data: Vec<u8>,
    },
    Disconnect {
        id: u32,
    },
    InitAttributes {
        id: u32,
        state: c_int,
    },
    GetEvent,
    /// Options and notices, which change nothing here.
    Ignored {
        id: u32,
    },
    Migrate {
        id: u32,
    },
}

/// Parameters of a connection (`struct rdma_ucm_conn_param`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Parameters {
    pub(crate) queue_number: u32,
    pub(crate) private_data: Vec<u8>,
    /// Reads that this side serves at a time (IRD), and has outstanding (ORD).
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) receiver_retries: u8,
    /// Whether there are parameters at all.
    pub(crate) valid: bool,
}

/// Numbers of events (`enum rdma_cm_event_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventKind {
    AddressResolved = 0,
    AddressError = 1,
    RouteResolved = 2,
    ConnectRequest = 4,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// What librdmacm knows the id of the event by; for a request, that of the listener.
    pub(crate) uid: u64,
    pub(crate) id: u32,
    pub(crate) kind: EventKind,
    pub(crate) status: c_int,
    pub(crate) parameters: Parameters,
}

impl Request {
    /// Reads a command.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, c_int> {
        let (head, body) = bytes.split_at_checked(HEAD_BYTES).ok_or(libc::EINVAL)?;
        let body = Body(body);
        let (number, room) = (Body(head).word(0)?, usize::from(Body(head).half(6)?));
        let (mut answer, command) = match number {
            0 => (body.long(8)?, Command::CreateId { uid: body.long(0)? }),
            1 => (body.long(0)?, Command::DestroyId { id: body.word(8)? }),
            2 => (0, Command::Bind { id: body.word(36)?, address: body.address(8)?.ok_or(libc::EAFNOSUPPORT)? }),
            3 => {
                let (source, destination) = (body.address(0)?, body.address(28)?.ok_or(libc::EAFNOSUPPORT)?);
                (0, Command::ResolveAddress { id: body.word(56)?, source, destination })
            }
            4 => (0, Command::ResolveRoute { id: body.word(0)? }),
            5 => (body.long(0)?, Command::QueryRoute { id: body.word(8)? }),
            6 => (0, Command::Connect { id: body.word(PARAMETER_BYTES)?, parameters: body.parameters(0)? }),
            7 => (0, Command::Listen { id: body.word(0)?, backlog: body.word(4)? }),
            8 => {
                let (uid, parameters) = (body.long(0)?, body.parameters(8)?);
                (0, Command::Accept { id: body.word(8 + PARAMETER_BYTES)?, uid, parameters })
            }
            9 => {
                let length = usize::from(body.byte(4)?);
                (0, Command::Reject { id: body.word(0)?, private_data: body.range(8, length)?.to_vec() })
            }
            10 => (0, Command::Disconnect { id: body.word(0)? }),
            11 => {
                let state = c_int::try_from(body.word(12)?).map_err(|_| libc::EINVAL)?;
                (body.long(0)?, Command::InitAttributes { id: body.word(8)?, state })
            }
            12 => (body.long(0)?, Command::GetEvent),
            // Options: type of service, reuse of addresses, time-outs. Paths of InfiniBand are of no use.
            14 => (0, Command::Ignored { id: body.word(8)? }),
            15 => (0, Command::Ignored { id: body.word(0)? }),
            18 => (body.long(0)?, Command::Migrate { id: body.word(8)? }),
            // Multicast, and addresses of InfiniBand, by which librdmacm finds out whether there are any.
            _ => return Err(libc::ENOSYS),
        };
        if room == 0 {
            answer = 0;
        }
        Ok(Self { command, answer, room })
    }
}

/// Bytes of a command, any number of them.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn range(&self, at: usize, length: usize) -> Result<&'a [u8], c_int> {
        self.0.get(at..).and_then(|rest| rest.get(..length)).ok_or(libc::EINVAL)
    }

    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], c_int> {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(libc::EINVAL)
    }

    fn byte(&self, at: usize) -> Result<u8, c_int> {
        self.array(at).map(|[byte]| byte)
    }

    fn half(&self, at: usize) -> Result<u16, c_int> {
        self.array(at).map(u16::from_ne_bytes)
    }

    fn word(&self, at: usize) -> Result<u32, c_int> {
        self.array(at).map(u32::from_ne_bytes)
    }

    fn long(&self, at: usize) -> Result<u64, c_int> {
        self.array(at).map(u64::from_ne_bytes)
    }

    /// Reads an address in the room of `struct sockaddr_in6`; `None` without a family.
    fn address(&self, at: usize) -> Result<Option<SocketAddr>, c_int> {
        let bytes: [u8; 28] = self.array(at)?;
        let family = c_int::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        match family {
            libc::AF_UNSPEC => Ok(None),
            libc::AF_INET => {
                let [a, b, c, d] = Body(&bytes).array(4)?;
                Ok(Some(SocketAddr::new(Ipv4Addr::new(a, b, c, d).into(), port)))
            }
            libc::AF_INET6 => {
                let octets: [u8; 16] = Body(&bytes).array(8)?;
                Ok(Some(SocketAddr::new(Ipv6Addr::from(octets).into(), port)))
            }
            _ => Err(libc::EAFNOSUPPORT),
        }
    }

    fn parameters(&self, at: usize) -> Result<Parameters, c_int> {
        let tail = at + 8 + MAX_PRIVATE_BYTES;
        let length = usize::from(self.byte(tail)?).min(MAX_PRIVATE_BYTES);
        Ok(Parameters {
            queue_number: self.word(at)?,
            private_data: self.range(at + 8, length)?.to_vec(),
            responder_resources: self.byte(tail + 2)?,
            initiator_depth: self.byte(tail + 3)?,
            receiver_retries: self.byte(tail + 6)?,
            valid: self.byte(tail + 7)? != 0,
        })
    }
}

impl Event {
    /// Returns `struct rdma_ucm_event_resp`.
    pub(crate) fn to_bytes(&self) -> [u8; EVENT_BYTES] {
        let mut bytes = [0; EVENT_BYTES];
        bytes[..8].copy_from_slice(&self.uid.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.id.to_ne_bytes());
        bytes[12..16].copy_from_slice(&(self.kind as u32).to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.status.to_ne_bytes());
        let parameters = &mut bytes[20..20 + PARAMETER_BYTES];
        let data = &self.parameters.private_data;
        // Its length is one byte.
        let length = data.len().min(usize::from(u8::MAX));
        parameters[..4].copy_from_slice(&self.parameters.queue_number.to_ne_bytes());
        parameters[8..8 + length].copy_from_slice(&data[..length]);
        let tail = &mut parameters[8 + MAX_PRIVATE_BYTES..];
        tail[0] = length as u8;
        tail[2] = self.parameters.responder_resources;
        tail[3] = self.parameters.initiator_depth;
        tail[6] = self.parameters.receiver_retries;
        tail[7] = 1;
        bytes
    }
}

/// Checks the property of the parser for any bytes: they are a command or are refused, and the parameters of a connection come
/// out of an event as they came in with the command.
///
/// # Panics
/// The property does not hold.
pub fn check_command(bytes: &[u8]) {
    let Ok(Request { command, answer, room }) = Request::parse(bytes) else { return };
    assert!(answer == 0 || room > 0);
    let (Command::Connect { parameters, .. } | Command::Accept { parameters, .. }) = command else { return };
    let length = parameters.private_data.len().min(usize::from(u8::MAX));
    let event = Event { uid: 1, id: 2, kind: EventKind::Established, status: -1, parameters: parameters.clone() };
    let again = Body(&event.to_bytes()).parameters(20);
    assert!(again.is_ok_and(|again| again.private_data == parameters.private_data[..length]
        && again.queue_number == parameters.queue_number
        && again.initiator_depth == parameters.initiator_depth
        && again.responder_resources == parameters.responder_resources));
}

/// Way of an id to its peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    pub(crate) source: Option<SocketAddr>,
    pub(crate) destination: Option<SocketAddr>,
    /// GUID of the device in network order, if the id belongs to it.
    pub(crate) guid: Option<u64>,
    /// Whether there is a path, as InfiniBand has them.
    pub(crate) has_path: bool,
}

impl Route {
    /// Returns `struct rdma_ucm_query_route_resp` up to the index of the device.
    pub(crate) fn to_bytes(self) -> [u8; ROUTE_BYTES] {
        let mut bytes = [0; ROUTE_BYTES];
        bytes[..8].copy_from_slice(&self.guid.unwrap_or(0).to_ne_bytes());
        if let Some(destination) = self.destination {
            bytes[8..24].copy_from_slice(&gid_of(destination));
        }
        if let Some(source) = self.source {
            bytes[24..40].copy_from_slice(&gid_of(source));
        }
        // The partition, as the first of the port; reversible; MTU 1024, rate and life exactly so.
        let path = &mut bytes[8..72];
        path[40..44].copy_from_slice(&1u32.to_ne_bytes());
        path[48..52].copy_from_slice(&3u32.to_ne_bytes());
        path[52..54].copy_from_slice(&0xffffu16.to_be_bytes());
        (path[54], path[57], path[59], path[60], path[61], path[62]) = (64, 1, 2, 2, 3, 2);
        write_address(&mut bytes[136..164], self.source);
        write_address(&mut bytes[164..192], self.destination);
        bytes[192..196].copy_from_slice(&u32::from(self.has_path).to_ne_bytes());
        bytes[196] = u8::from(self.guid.is_some());
        bytes
    }
}

fn gid_of(address: SocketAddr) -> [u8; 16] {
    match address.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn write_address(to: &mut [u8], address: Option<SocketAddr>) {
    let Some(address) = address else { return };
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u16;
    to[..2].copy_from_slice(&family.to_ne_bytes());
    to[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(address) => to[4..8].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => to[8..24].copy_from_slice(&address.octets()),
    }
}

/// Length in bytes of `struct ib_uverbs_qp_attr`.
const ATTRIBUTES_BYTES: usize = 144;

/// Returns the attributes of a queue pair (`struct ib_uverbs_qp_attr`) with which librdmacm is to bring it into a state. As of
/// an iWARP adapter: the manager does what follows after INIT.
pub(crate) fn initial_attributes(state: c_int, access: u32) -> [u8; ATTRIBUTES_BYTES] {
    use crate::abi::{attr_mask, qp_state};
    let mut bytes = [0; ATTRIBUTES_BYTES];
    // librdmacm does not take the state from here, but sets the one that it has asked for.
    let mask = match state {
        qp_state::INIT => attr_mask::STATE | attr_mask::ACCESS_FLAGS | attr_mask::PKEY_INDEX | attr_mask::PORT,
        _ => 0,
    };
    bytes[..4].copy_from_slice(&mask.to_ne_bytes());
    bytes[4..8].copy_from_slice(&state.to_ne_bytes());
    bytes[36..40].copy_from_slice(&access.to_ne_bytes());
    // Port.
    bytes[133] = 1;
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn command(number: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = number.to_ne_bytes().to_vec();
        bytes.extend((body.len() as u16).to_ne_bytes());
        bytes.extend(8u16.to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn an_address_is_bound_as_librdmacm_writes_it() {
        let mut body = [0; 40];
        write_address(&mut body[8..36], Some("10.0.0.7:7174".parse().unwrap()));
        body[36] = 3;
        let request = Request::parse(&command(2, &body)).unwrap();
        assert_eq!(request.command, Command::Bind { id: 3, address: "10.0.0.7:7174".parse().unwrap() });
        assert_eq!(Request::parse(&command(2, &body[..39])), Err(libc::EINVAL));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_command_or_are_refused(
            number in 0..24u32,
            body in proptest::collection::vec(any::<u8>(), 0..320),
            cut in 0..12usize,
        ) {
            let bytes = command(number, &body);
            check_command(&bytes[..bytes.len() - cut.min(bytes.len())]);
        }
    }
}
