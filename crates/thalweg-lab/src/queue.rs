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
use std::time::Duration;

/// State of a queue at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Look {
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
    question: Vec<u8>,
    answer: Vec<u8>,
}

impl Queue {
    /// Opens the queue with this handle (`HANDLE:`) on the device of this index, in the namespace of the calling
    /// thread.
    pub(crate) fn open(device: i32, handle: u16) -> Result<Self, LabError> {
        let opened = || -> Result<OwnedFd, Errno> {
            // Protocol 0 of this family is rtnetlink.
            let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
            rustix::net::connect(&socket, &netlink::SocketAddrNetlink::new(0, 0))?;
            // An answer that does not come is an error, not a reason to wait forever.
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_secs(5)))?;
            Ok(socket)
        };
        let socket = opened().map_err(LabError::os("opening rtnetlink"))?;
        let mut question = TcMessage::with_index(device);
        question.header.handle = TcHandle { major: handle, minor: 0 };
        let mut header = NetlinkHeader::default();
        // Kernels before 6.9 send the answer to subscribers of all changes, and to the requester only if it asks for an
        // echo (qdisc_notify in net/sched/sch_api.c).
        header.flags = NLM_F_REQUEST | NLM_F_ECHO;
        let mut message =
            NetlinkMessage::new(header, NetlinkPayload::from(RouteNetlinkMessage::GetQueueDiscipline(question)));
        message.finalize();
        let mut question = vec![0; message.buffer_len()];
        message.serialize(&mut question);
        Ok(Self { socket, question, answer: vec![0; 8192] })
    }

    /// Returns the state of the queue now.
    pub(crate) fn look(&mut self) -> Result<Look, LabError> {
        let doing = "asking for a queue's length";
        send(&self.socket, &self.question, SendFlags::empty()).map_err(LabError::os(doing))?;
        let (read, _) = recv(&self.socket, &mut self.answer[..], RecvFlags::empty()).map_err(LabError::os(doing))?;
        let wrong = |why: String| LabError::os(doing)(std::io::Error::other(why));
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&self.answer[..read])
            .map_err(|error| wrong(error.to_string()))?;
        match answer.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewQueueDiscipline(said)) => Ok(look(&said.attributes)),
            NetlinkPayload::Error(error) => Err(LabError::os(doing)(error.to_io())),
            other => Err(wrong(format!("an answer of another kind, {}", other.message_type()))),
        }
    }
}

fn look(said: &[TcAttribute]) -> Look {
    let mut look = Look::default();
    let stats = said.iter().filter_map(|attribute| match attribute {
        TcAttribute::Stats2(stats) => Some(stats),
        _ => None,
    });
    for one in stats.flatten() {
        match one {
            TcStats2::Basic(basic) => look.sent = basic.bytes,
            TcStats2::Queue(queue) => (look.backlog, look.drops) = (queue.backlog, queue.drops),
            _ => {}
        }
    }
    look
}
