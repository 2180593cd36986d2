//! Queries a queue of the kernel for its backlog, its drops and the bytes it sent. One request and one answer of
//! rtnetlink(7), cheap enough to be repeated every few packets.

use crate::LabError;
use netlink_packet_core::{NLM_F_ECHO, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcStats2};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with, sockopt,
};
use std::io;
use std::time::Duration;

/// State of a queue at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct QueueState {
    /// Number of bytes that wait.
    pub(crate) backlog: u32,
    /// Number of packets dropped since it was created.
    pub(crate) drops: u32,
    /// Number of bytes sent since it was created.
    pub(crate) sent: u64,
}

/// A queue of the kernel that can be queried.
#[derive(Debug)]
pub(crate) struct Queue {
    socket: OwnedFd,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Queue {
    /// Opens the queue with this handle (`HANDLE:`) on the device of this index, in the namespace of the calling
    /// thread.
    pub(crate) fn open(device: i32, handle: u16) -> Result<Self, LabError> {
        let socket = open_rtnetlink().map_err(LabError::system_error("opening rtnetlink"))?;
        let mut request = TcMessage::with_index(device);
        request.header.handle = TcHandle { major: handle, minor: 0 };
        let mut header = NetlinkHeader::default();
        // Kernels before 6.9 send the answer to subscribers of all changes, and to the requester only if it asks for an
        // echo (qdisc_notify in net/sched/sch_api.c).
        header.flags = NLM_F_REQUEST | NLM_F_ECHO;
        let mut message =
            NetlinkMessage::new(header, NetlinkPayload::from(RouteNetlinkMessage::GetQueueDiscipline(request)));
        message.finalize();
        let mut request = vec![0; message.buffer_len()];
        message.serialize(&mut request);
        Ok(Self { socket, request, answer: vec![0; 8192] })
    }

    /// Returns the state of the queue now.
    pub(crate) fn query_state(&mut self) -> Result<QueueState, LabError> {
        let doing = "querying a queue's length";
        send(&self.socket, &self.request, SendFlags::empty()).map_err(LabError::system_error(doing))?;
        let (read, _) =
            recv(&self.socket, &mut self.answer[..], RecvFlags::empty()).map_err(LabError::system_error(doing))?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&self.answer[..read])
            .map_err(|error| LabError::system_error(doing)(io::Error::other(error.to_string())))?;
        match answer.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewQueueDiscipline(queue)) => {
                Ok(parse_queue_state(&queue.attributes))
            }
            NetlinkPayload::Error(error) => Err(LabError::system_error(doing)(error.to_io())),
            other => {
                let problem = format!("an unexpected reply, {}", other.message_type());
                Err(LabError::system_error(doing)(io::Error::other(problem)))
            }
        }
    }
}

fn open_rtnetlink() -> Result<OwnedFd, Errno> {
    // Protocol 0 of this family is rtnetlink.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &netlink::SocketAddrNetlink::new(0, 0))?;
    // An answer that does not come is an error, not a reason to wait forever.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_secs(5)))?;
    Ok(socket)
}

fn parse_queue_state(attributes: &[TcAttribute]) -> QueueState {
    let mut state = QueueState::default();
    let stats = attributes.iter().filter_map(|attribute| match attribute {
        TcAttribute::Stats2(stats) => Some(stats),
        _ => None,
    });
    for one in stats.flatten() {
        match one {
            TcStats2::Basic(basic) => state.sent = basic.bytes,
            TcStats2::Queue(queue) => (state.backlog, state.drops) = (queue.backlog, queue.drops),
            _ => {}
        }
    }
    state
}
