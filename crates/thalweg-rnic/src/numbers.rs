//! Queue pairs by number: their programs exchange numbers and addresses by themselves, and bring them into the states RTR
//! and RTS, as programs do with RoCE adapters.
//!
//! A number has 24 bits: the UDP port of its RNIC's port of EFE, and an index. So it is all that is needed, beside the
//! RNIC's address, to find the queue pair. Of two queue pairs that name each other, the one with the smaller address and
//! number calls, and the other waits for that. What is posted meanwhile waits, too.
//!
//! The private data of a call are the numbers of the called and of the calling queue pair, 32 bits each in network order.
//!
//! As over RoCE, a queue pair is not informed that its peer has left, but finds out when it sends: after a while, that
//! request fails with [`Status::RetryExceeded`]. A request completes once the peer's RNIC has all of it, so that a program
//! may end then.

use crate::attributes::{Fault, FaultKind, QueueState, Status};
use crate::command::{CommandError, ConnectionParameters, Reply, Transport};
use crate::efe::{EfeCarrier, EfePort, User, decode_private, encode_private};
use crate::engine::{Clock, Engine};
use crate::queue_pair::{Path, Transfer};
use crate::stream::{Carrier, StreamPath};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use thalweg_efe::{ConnectionError, ConnectionId, WINDOW_PACKETS};
use thalweg_iwarp::{FirstMessage, StreamSettings};

/// Bits of a number that are its index.
const INDEX_BITS: u32 = 8;

/// Queue pairs with numbers of one port.
const PORT_QUEUES: u32 = 1 << INDEX_BITS;

/// Callers that wait for a queue pair whose program has not named its peer.
const MAX_CALLERS: usize = 8;

/// Time for which a request waits for the two queue pairs to meet, at least: programs start one after the other.
const MEETING_TIMEOUT: Duration = Duration::from_secs(10);

/// Time after which a request to a peer that has left fails. An adapter sends it again meanwhile, and programs rely on that:
/// `ibv_srq_pingpong` posts more than it waits for, and ends once the others have completed.
const ABSENCE_TIMEOUT: Duration = Duration::from_millis(500);

/// Numbers of a port of EFE.
#[derive(Debug)]
pub(crate) struct PortNumbers {
    address: SocketAddr,
    next: u32,
    pub(crate) used: u32,
}

/// Number of a queue pair, and its way to the peer.
#[derive(Debug)]
pub(crate) struct Numbered {
    number: u32,
    address: IpAddr,
    peer: Option<Peer>,
    meeting: Meeting,
    callers: Vec<Caller>,
}

/// Address and number of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Peer {
    address: IpAddr,
    number: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Meeting {
    /// The program has not named the peer, or a peer of this RNIC.
    None,
    /// This queue pair or its peer calls.
    Due,
    /// There is a stream.
    Met,
    /// The peer has left, for this reason.
    Over(String),
}

/// A call that waits for its queue pair's program.
#[derive(Debug)]
struct Caller {
    place: (u32, ConnectionId),
    peer: Peer,
    theirs: ConnectionParameters,
}

impl Peer {
    fn port_address(&self) -> SocketAddr {
        SocketAddr::new(self.address, (self.number >> INDEX_BITS) as u16)
    }
}

impl Engine {
    /// Gives a queue pair a number at an address of this machine.
    pub(crate) fn number_queue(&mut self, client: u32, queue: u32, address: IpAddr) -> Result<Reply, CommandError> {
        let pair = self.own_queue(client, queue)?;
        if pair.state != QueueState::Reset {
            return Err(CommandError::WrongState { is: pair.state, needs: QueueState::Reset });
        }
        if pair.numbered.is_some() {
            return Err(CommandError::Argument("the queue pair has a number already".into()));
        }
        let number = self.draw_number(address)?;
        self.numbers.insert(number, queue);
        let numbered = Numbered { number, address, peer: None, meeting: Meeting::None, callers: Vec::new() };
        self.own_queue(client, queue)?.numbered = Some(Box::new(numbered));
        Ok(Reply::Handle(number))
    }

    /// Returns a free number, of a new port where those of the others are in use.
    fn draw_number(&mut self, address: IpAddr) -> Result<u32, CommandError> {
        let found = self.efe_ports.iter().find(|(_, port)| {
            port.numbers.as_ref().is_some_and(|numbers| numbers.address.ip() == address && numbers.used < PORT_QUEUES)
        });
        let found = found.map(|(handle, _)| handle);
        let handle = match found {
            Some(handle) => handle,
            None => {
                let (handle, bound) = self.open_efe_port(Transport::Efe, SocketAddr::new(address, 0))?;
                if let Some(port) = self.efe_ports.get_mut(handle) {
                    port.numbers = Some(PortNumbers { address: bound, next: 0, used: 0 });
                }
                handle
            }
        };
        let Some(numbers) = self.efe_ports.get_mut(handle).and_then(|port| port.numbers.as_mut()) else {
            return Err(CommandError::Argument("the port of EFE is closed".into()));
        };
        // A number that was given up is used again late, so that calls for its queue pair find none.
        loop {
            let number = u32::from(numbers.address.port()) << INDEX_BITS | numbers.next;
            numbers.next = (numbers.next + 1) % PORT_QUEUES;
            if !self.numbers.contains_key(&number) {
                numbers.used += 1;
                return Ok(number);
            }
        }
    }

    /// Takes back the number of a queue pair that is removed.
    pub(crate) fn release_number(&mut self, queue: u32) {
        self.end_meeting(queue);
        let Some(numbered) = self.queues.get_mut(queue).and_then(|pair| pair.numbered.take()) else { return };
        self.numbers.remove(&numbered.number);
        let port = numbered.number >> INDEX_BITS;
        let numbers = self.efe_ports.iter_mut().filter_map(|(_, found)| found.numbers.as_mut());
        for numbers in numbers.filter(|numbers| u32::from(numbers.address.port()) == port) {
            numbers.used -= 1;
        }
    }

    /// Notes the peer that the program has named, and begins to meet it.
    pub(crate) fn seek_peer(&mut self, queue: u32, address: IpAddr, number: u32) -> Result<(), CommandError> {
        let peer = Peer { address, number };
        let port = peer.port_address();
        // The port of the number is one of this RNIC: so is the queue pair, as long as there is one.
        let is_here = self
            .efe_ports
            .iter()
            .filter_map(|(_, found)| found.numbers.as_ref())
            .any(|numbers| numbers.address == port);
        let here = self.numbers.get(&number).copied();
        let Some(pair) = self.queues.get_mut(queue) else { return Ok(()) };
        let Some(numbered) = &mut pair.numbered else {
            return Err(CommandError::Argument("the queue pair has no number: its peer cannot find it".into()));
        };
        numbered.peer = Some(peer);
        (pair.path, numbered.meeting) = match here.filter(|_| is_here) {
            Some(other) => (Path::Local(other), Meeting::None),
            None if is_here => (Path::Numbered, Meeting::Over("the peer has no queue pair of this number".into())),
            None => (Path::Numbered, Meeting::Due),
        };
        let callers = std::mem::take(&mut numbered.callers);
        let is_due = numbered.meeting == Meeting::Due;
        let calls = Peer { address: numbered.address, number: numbered.number } < peer;
        let mut is_met = false;
        for caller in callers {
            if is_due && !is_met && caller.peer == peer {
                is_met = self.accept_caller(queue, caller.place, caller.theirs);
            } else {
                self.reject_efe(caller.place, &[]);
            }
        }
        if is_due && !is_met && calls {
            self.call_peer(queue);
        }
        Ok(())
    }

    /// Calls the peer of a queue pair, from the port of its number.
    fn call_peer(&mut self, queue: u32) {
        let Some(pair) = self.queues.get(queue) else { return };
        let Some((numbered, peer)) = pair.numbered.as_ref().and_then(|numbered| Some((numbered, numbered.peer?)))
        else {
            return;
        };
        let own = Peer { address: numbered.address, number: numbered.number };
        let private = encode_call(own.number, peer.number, pair.attributes.inbound_reads);
        let now = self.last_socket_time();
        let found = self
            .efe_ports
            .iter_mut()
            .find(|(_, port)| port.numbers.as_ref().is_some_and(|numbers| numbers.address == own.port_address()));
        let called = found.map(|(_, port)| {
            let connection =
                port.port.connect(peer.port_address(), &private, now).map_err(|error| error.to_string())?;
            port.limit_to_path(connection);
            port.note_begin();
            port.users.insert(connection, User::Meeting { queue, theirs: None });
            Ok(())
        });
        if let Err(reason) = called.unwrap_or_else(|| Err("the port of EFE is closed".into())) {
            self.note_meeting(queue, Meeting::Over(reason));
        }
    }

    /// Accepts a call. Returns false if the caller has gone.
    fn accept_caller(
        &mut self,
        queue: u32,
        (port, connection): (u32, ConnectionId),
        theirs: ConnectionParameters,
    ) -> bool {
        let now = self.last_socket_time();
        let inbound = self.queues.get(queue).map_or(0, |pair| pair.attributes.inbound_reads);
        let Some(port) = self.efe_ports.get_mut(port) else { return false };
        accept_call(port, queue, connection, theirs, (inbound, now))
    }

    /// Takes a call for a queue pair of a port, which is out of its table.
    pub(crate) fn take_call(
        &mut self,
        handle: u32,
        port: &mut EfePort,
        connection: ConnectionId,
        private: &[u8],
        now: Duration,
    ) {
        port.note_begin();
        port.limit_to_path(connection);
        let from = port.port.peer_address(connection);
        let call = decode_private(private).zip(from).and_then(|(theirs, from)| {
            let (called, calling) = decode_call(&theirs.private_data)?;
            let peer = Peer { address: from.ip(), number: calling };
            // The caller's port is that of its number: what it claims to be can be reached there.
            (peer.port_address().port() == from.port()).then_some((called, peer, theirs))
        });
        let found = call.and_then(|(called, peer, theirs)| {
            let queue = *self.numbers.get(&called)?;
            Some((queue, self.queues.get_mut(queue)?, peer, theirs))
        });
        let Some((queue, pair, peer, theirs)) = found else { return reject_call(port, connection) };
        let (state, inbound) = (pair.state, pair.attributes.inbound_reads);
        let Some(numbered) = &mut pair.numbered else { return reject_call(port, connection) };
        match (&numbered.meeting, numbered.peer) {
            (Meeting::Due, Some(expected)) if expected == peer => {
                accept_call(port, queue, connection, theirs, (inbound, now));
            }
            (Meeting::None, None) if matches!(state, QueueState::Reset | QueueState::Init) => {
                if numbered.callers.len() >= MAX_CALLERS {
                    let oldest = numbered.callers.remove(0);
                    if oldest.place.0 == handle {
                        reject_call(port, oldest.place.1);
                    }
                }
                port.users.insert(connection, User::Waiting);
                numbered.callers.push(Caller { place: (handle, connection), peer, theirs });
            }
            _ => reject_call(port, connection),
        }
    }

    /// Makes the stream of two queue pairs that have met.
    pub(crate) fn start_numbered_stream(&mut self, queue: u32, mut carrier: EfeCarrier, theirs: &ConnectionParameters) {
        carrier.completes_when_placed = true;
        let Some(pair) = self.queues.get_mut(queue) else { return self.finish_efe_connection(carrier) };
        let settings = StreamSettings {
            segment_limit_bytes: carrier.segment_limit_bytes,
            // At most the RNIC's limit. The program says when it goes to RTS how many it will have outstanding; the peer's
            // limit is the one in force.
            inbound_requests: pair.attributes.inbound_reads as u16,
            outbound_requests: theirs.inbound_reads as u16,
            first_message: FirstMessage::Either,
            wait_for_receives: true,
            send_with_immediate: true,
            segments_ahead: WINDOW_PACKETS as usize,
        };
        if let Some(transfer) = &mut pair.current {
            transfer.deadline = None;
        }
        match StreamPath::new(settings, Carrier::Efe(carrier)) {
            Ok(path) => {
                pair.stream = Some(Box::new(path));
                self.note_meeting(queue, Meeting::Met);
            }
            Err(error) => self.note_meeting(queue, Meeting::Over(error.to_string())),
        }
    }

    /// Takes note that a call has failed: it is repeated where the peer may not have been there.
    pub(crate) fn end_call(&mut self, queue: u32, error: &ConnectionError) {
        match error {
            ConnectionError::NotOpened { .. } | ConnectionError::Silent { .. } => self.repeat_call(queue),
            error => self.note_meeting(queue, Meeting::Over(error.to_string())),
        }
    }

    fn repeat_call(&mut self, queue: u32) {
        let Some(numbered) = self.queues.get(queue).and_then(|pair| pair.numbered.as_ref()) else { return };
        let own = Peer { address: numbered.address, number: numbered.number };
        if numbered.meeting == Meeting::Due && numbered.peer.is_some_and(|peer| own < peer) {
            self.due_calls.push(queue);
        }
    }

    /// Repeats calls that have failed. (When they do, their port is out of its table.)
    pub(crate) fn repeat_due_calls(&mut self) {
        for queue in std::mem::take(&mut self.due_calls) {
            self.call_peer(queue);
        }
    }

    /// Takes note of the end of a stream which is no fault of this side. Returns false if the queue pair has to fail.
    pub(crate) fn part_from_peer(&mut self, queue: u32, path: &mut StreamPath, cause: &str) -> bool {
        let Some(pair) = self.queues.get_mut(queue) else { return false };
        let Some(numbered) = &mut pair.numbered else { return false };
        // Connected by number, or by connection management.
        numbered.meeting = Meeting::Over(cause.into());
        if path.stream.fault().is_some() || path.is_terminated_by_peer {
            return false;
        }
        if let Some(transfer) = path.take_first_posted() {
            self.fail_for_absence(queue, &transfer, FaultKind::PeerGone, 0);
            return false;
        }
        pair.path = Path::Numbered;
        self.report_disconnected(queue, cause);
        true
    }

    /// Does what a queue pair in state RTS has to do that has not met its peer: requests wait. Returns whether one failed.
    pub(crate) fn wait_for_meeting(&mut self, queue: u32, clock: Clock<'_>) -> bool {
        let current = self.queues.get_mut(queue).and_then(|pair| pair.current.take());
        let Some(mut transfer) = current.or_else(|| self.begin_request(queue)) else { return false };
        let Some(pair) = self.queues.get_mut(queue) else { return false };
        let is_over = pair.numbered.as_ref().is_none_or(|numbered| matches!(numbered.meeting, Meeting::Over(_)));
        let timeout = if is_over { ABSENCE_TIMEOUT } else { pair.attributes.peer_timeout.max(MEETING_TIMEOUT) };
        let now = clock();
        let deadline = transfer.deadline.unwrap_or(now + timeout).min(now + timeout);
        if now < deadline {
            transfer.deadline = Some(deadline);
            pair.current = Some(transfer);
            return false;
        }
        if is_over {
            self.fail_for_absence(queue, &transfer, FaultKind::PeerGone, 0);
        } else {
            self.fail_for_absence(queue, &transfer, FaultKind::PeerNotReady, timeout.as_millis() as u64);
        }
        self.fail_queue(queue, "the peer cannot be reached");
        true
    }

    fn fail_for_absence(&mut self, queue: u32, transfer: &Transfer, kind: FaultKind, limit: u64) {
        let fault = Fault::new(kind, 0, 0, limit).seen_by_peer();
        self.complete_send(queue, transfer, Status::RetryExceeded, fault);
    }

    /// Ends the calls of a queue pair that enters the state RESET or ERR, or is removed.
    pub(crate) fn end_meeting(&mut self, queue: u32) {
        let Some(numbered) = self.queues.get_mut(queue).and_then(|pair| pair.numbered.as_mut()) else { return };
        numbered.peer = None;
        numbered.meeting = Meeting::None;
        let callers = std::mem::take(&mut numbered.callers);
        callers.into_iter().for_each(|caller| self.reject_efe(caller.place, &[]));
        self.abandon_efe_connections_of(queue);
    }

    pub(crate) fn is_numbered(&self, queue: u32) -> bool {
        self.queues.get(queue).is_some_and(|pair| pair.numbered.is_some())
    }

    fn note_meeting(&mut self, queue: u32, meeting: Meeting) {
        if let Some(numbered) = self.queues.get_mut(queue).and_then(|pair| pair.numbered.as_mut()) {
            numbered.meeting = meeting;
        }
    }
}

fn accept_call(
    port: &mut EfePort,
    queue: u32,
    connection: ConnectionId,
    theirs: ConnectionParameters,
    (inbound_reads, now): (u32, Duration),
) -> bool {
    let accepted = port.port.accept_connection(connection, &encode_call(0, 0, inbound_reads), now).is_ok();
    if accepted {
        port.users.insert(connection, User::Meeting { queue, theirs: Some(theirs) });
    }
    accepted
}

fn reject_call(port: &mut EfePort, connection: ConnectionId) {
    // It may have ended meanwhile.
    let _ = port.port.reject_connection(connection, &[]);
    port.users.remove(&connection);
    port.note_end();
}

fn encode_call(own: u32, called: u32, inbound_reads: u32) -> Vec<u8> {
    let private_data = [called.to_be_bytes(), own.to_be_bytes()].concat();
    encode_private(&ConnectionParameters {
        private_data,
        inbound_reads,
        outbound_reads: inbound_reads,
        receiver_retries: 0,
        ..ConnectionParameters::default()
    })
}

/// Returns the numbers of the called and of the calling queue pair.
fn decode_call(data: &[u8]) -> Option<(u32, u32)> {
    let (called, rest) = data.split_first_chunk()?;
    let (calling, rest) = rest.split_first_chunk()?;
    rest.is_empty().then(|| (u32::from_be_bytes(*called), u32::from_be_bytes(*calling)))
}
