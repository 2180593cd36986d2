//! A port: the connections to all peers, in turn, and the credit that they share.

use crate::connection::{Connection, Shared, Stage, packet_cost};
use crate::counters::{ConnectionState, PortCounters};
use crate::credit::CreditPool;
use crate::event::{ConnectError, ConnectionError, ConnectionId, Event, SendError, SendRefusal};
use crate::frame::{
    Class, Ending, Frame, FrameError, HEADER_BYTES, Handshake, Header, Kind, MAX_PRIVATE_BYTES, write_frame,
};
use crate::options::{MIN_FRAME_BYTES, Options};
use crate::packet::Packet;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Maximum number of attempts of peers that have not returned their tokens.
const MAX_ATTEMPTS: usize = 256;
/// Maximum number of resets that wait to be sent: more are not sent.
const MAX_RESETS: usize = 64;
/// Number of frames of a connection that are sent before others have their turn.
const FRAMES_PER_TURN: u32 = 16;
/// Maximum length of a frame, in bytes.
const MAX_FRAME_BYTES: usize = 65_535;
/// Time after which credit that is not used is not counted any more, if others wait: at least, in nanoseconds, and in
/// round trips.
const MIN_UNUSED_NANOS: u64 = 20_000_000;
const UNUSED_ROUND_TRIPS: u64 = 8;

/// A port with connections to many peers, which have addresses of the type `A`, for packets of the type `P`.
pub struct Port<A, P> {
    options: Options,
    shared: Shared,
    random: Box<dyn FnMut() -> u64 + Send>,
    places: Vec<ConnectionPlace<A, P>>,
    free: Vec<u32>,
    /// Attempts of peers that have not returned their tokens, the oldest first.
    attempts: VecDeque<ConnectionId>,
    /// Connections that may have something to send.
    ready: VecDeque<u32>,
    turn_frames: u32,
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    pool: CreditPool,
    next_write_off: u64,
    events: VecDeque<Event<P>>,
    resets: VecDeque<(A, Header)>,
    counters: PortCounters,
}

/// Place of a connection, used again with a new generation.
#[derive(Debug)]
struct ConnectionPlace<A, P> {
    generation: u32,
    connection: Option<Box<Connection<A, P>>>,
    is_ready: bool,
    /// Earliest time for which there is a timer.
    timer: u64,
}

/// A packet that has arrived for the first time. It is to be accepted or refused, now or later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival<'a> {
    /// The connection.
    pub connection: ConnectionId,
    /// Class of the packet.
    pub class: Class,
    /// Sequence number of the packet: 0, 1, 2, … modulo 2³² in each class.
    pub sequence: u32,
    /// The packet.
    pub packet: &'a [u8],
}

/// A frame to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outgoing<A> {
    /// Address of the receiver.
    pub to: A,
    /// Length of the frame, in bytes.
    pub bytes: usize,
}

/// Room for packets of one class of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendRoom {
    /// Number of packets that [`Port::send`] takes.
    pub packets: u32,
    /// Length of a packet that would leave at once, in bytes; 0 if none would.
    pub bytes_at_once: usize,
}

impl<A: fmt::Debug, P: fmt::Debug> fmt::Debug for Port<A, P> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = formatter.debug_struct("Port");
        fields.field("options", &self.options).field("counters", &self.counters).field("pool", &self.pool);
        fields.field("connections", &(self.places.len() - self.free.len())).finish_non_exhaustive()
    }
}

impl<A: Copy + Eq, P: Packet> Port<A, P> {
    /// Creates a port. `random` draws numbers that a stranger cannot guess ([`secret_numbers`]); a test may give repeatable
    /// ones.
    pub fn new(options: Options, mut random: impl FnMut() -> u64 + Send + 'static) -> Self {
        let max_frame_bytes = options.max_frame_bytes.clamp(MIN_FRAME_BYTES, MAX_FRAME_BYTES);
        let shared = Shared {
            max_frame_bytes,
            target_delay: nanos(options.target_delay),
            peer_timeout: nanos(options.peer_timeout).max(1),
            status_delay: nanos(options.status_delay),
            instance: random(),
        };
        Self {
            shared,
            pool: CreditPool::new(&options, packet_cost(max_frame_bytes - HEADER_BYTES).into()),
            options,
            random: Box::new(random),
            places: Vec::new(),
            free: Vec::new(),
            attempts: VecDeque::new(),
            ready: VecDeque::new(),
            turn_frames: 0,
            timers: BinaryHeap::new(),
            next_write_off: 0,
            events: VecDeque::new(),
            resets: VecDeque::new(),
            counters: PortCounters::default(),
        }
    }

    /// Returns the maximum length of a frame, in bytes: the room that [`next_frame`](Self::next_frame) needs.
    pub fn max_frame_bytes(&self) -> usize {
        self.shared.max_frame_bytes
    }

    /// Begins a connection to a peer.
    ///
    /// # Errors
    /// The private data is too long, or there are too many connections.
    pub fn connect(&mut self, to: A, private: &[u8], now: Duration) -> Result<ConnectionId, ConnectError> {
        check_private(private)?;
        let stage = Stage::Opening { private: private.into(), is_challenged: false };
        self.add_connection(to, stage, nanos(now)).map(|connection| connection.id)
    }

    /// Accepts a connection that a peer has begun. [`Event::Connected`] follows.
    ///
    /// # Errors
    /// The private data is too long, or the connection does not wait for an answer.
    pub fn accept_connection(&mut self, id: ConnectionId, private: &[u8], now: Duration) -> Result<(), ConnectError> {
        check_private(private)?;
        let connection = self.waiting_connection(id)?;
        connection.stage = Stage::Accepted { private: private.into() };
        connection.restart_timeout(nanos(now));
        connection.request_handshake();
        self.mark_ready(id.index);
        Ok(())
    }

    /// Rejects a connection that a peer has begun.
    ///
    /// # Errors
    /// The private data is too long, or the connection does not wait for an answer.
    pub fn reject_connection(&mut self, id: ConnectionId, private: &[u8]) -> Result<(), ConnectError> {
        check_private(private)?;
        self.waiting_connection(id)?.stage = Stage::Ending { kind: Kind::Reject, code: 0, private: private.into() };
        self.mark_ready(id.index);
        Ok(())
    }

    /// Returns the address of a connection's peer; `None` if the connection is over.
    pub fn peer_address(&self, id: ConnectionId) -> Option<A> {
        self.connection(id).map(|connection| connection.address)
    }

    /// Lowers the maximum length of frames to and from a peer to what the path carries, in bytes: right after
    /// [`connect`](Self::connect), or before [`accept_connection`](Self::accept_connection). At least
    /// [`MIN_FRAME_BYTES`].
    pub fn limit_frame_bytes(&mut self, id: ConnectionId, bytes: usize) {
        let connection = self.connection_mut(id);
        let connection =
            connection.filter(|connection| matches!(connection.stage, Stage::Opening { .. } | Stage::Waiting));
        if let Some(connection) = connection {
            connection.limit_frame_bytes(bytes);
        }
    }

    /// Processes the news that the path to an address carries frames of no more than this, in bytes. Connections to it whose
    /// frames may be longer have failed: their packets would be sent again without end.
    pub fn note_path(&mut self, address: A, path_bytes: usize) {
        for place in &mut self.places {
            let Some(connection) = place.connection.as_deref_mut() else { continue };
            let frame_bytes = connection.max_frame_bytes;
            if connection.address != address || frame_bytes <= path_bytes {
                continue;
            }
            match connection.stage {
                Stage::Opening { .. } | Stage::Waiting => connection.limit_frame_bytes(path_bytes),
                Stage::Accepted { .. } | Stage::Open => {
                    connection.is_over = true;
                    let error = ConnectionError::PathTooNarrow { path_bytes, frame_bytes };
                    self.events.push_back(Event::Failed { connection: connection.id, error });
                }
                Stage::Challenging | Stage::Ending { .. } => {}
            }
        }
        self.remove_ended();
    }

    /// Sets the time without a frame from the peer after which a connection has failed, in place of
    /// [`Options::peer_timeout`].
    pub fn set_peer_timeout(&mut self, id: ConnectionId, timeout: Duration) {
        if let Some(connection) = self.connection_mut(id) {
            connection.set_peer_timeout(nanos(timeout));
            // Its timer may be later than the new time-out.
            self.mark_ready(id.index);
        }
    }

    fn waiting_connection(&mut self, id: ConnectionId) -> Result<&mut Connection<A, P>, ConnectError> {
        let connection = self.connection_mut(id).filter(|connection| connection.stage == Stage::Waiting);
        connection.ok_or(ConnectError::NotWaiting)
    }

    /// Queues a packet, and returns its sequence number. It leaves with [`next_frame`](Self::next_frame), and comes back
    /// with [`Event::Acknowledged`].
    ///
    /// # Errors
    /// The window is full, the packet is too long, or the connection is not open.
    pub fn send(&mut self, id: ConnectionId, class: Class, packet: P) -> Result<u32, SendError<P>> {
        let Some(connection) = self.connection_mut(id).filter(|connection| connection.can_send()) else {
            return Err(SendError { packet, reason: SendRefusal::NotOpen });
        };
        let (bytes, max) = (packet.packet_bytes(), connection.max_packet_bytes());
        if bytes > max {
            return Err(SendError { packet, reason: SendRefusal::TooLong { bytes, max } });
        }
        match connection.sending[class.index()].push_packet(packet, packet_cost(bytes)) {
            Ok(sequence) => {
                self.mark_ready(id.index);
                Ok(sequence)
            }
            Err(packet) => Err(SendError { packet, reason: SendRefusal::WindowFull }),
        }
    }

    /// Returns the room for packets of a class. Zero for a connection that is not open.
    pub fn send_room(&self, id: ConnectionId, class: Class) -> SendRoom {
        let Some(connection) = self.connection(id).filter(|connection| connection.can_send()) else {
            return SendRoom::default();
        };
        let half = &connection.sending[class.index()];
        let window_left = match connection.in_flight {
            0 => u64::MAX,
            in_flight => connection.window.window_bytes().saturating_sub(in_flight),
        };
        let packets = half.free_places();
        let credit = if packets == 0 { 0 } else { half.credit_left().min(window_left) };
        let bytes = usize::try_from(credit.saturating_sub(packet_cost(0).into())).unwrap_or(usize::MAX);
        SendRoom { packets, bytes_at_once: bytes.min(connection.max_packet_bytes()) }
    }

    /// Returns whether a peer has not acknowledged all packets that were queued for it, or the end of a half that was
    /// closed.
    pub fn has_unacknowledged(&self) -> bool {
        let mut connections = self.places.iter().filter_map(|place| place.connection.as_deref());
        connections.any(|connection| !connection.is_over && connection.awaits_answer())
    }

    /// Closes this half of a connection once all packets were acknowledged: no more are taken. The other half stays open
    /// until the peer closes it.
    pub fn finish_sending(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connection_mut(id) {
            connection.finish_sending();
            self.mark_ready(id.index);
        }
    }

    /// Ends a connection at once: the peer is informed by one frame, and packets on the way are lost. No event follows.
    /// At most [`MAX_PRIVATE_BYTES`] of the private data are sent.
    pub fn abort(&mut self, id: ConnectionId, code: u32, private: &[u8]) {
        let private = &private[..private.len().min(MAX_PRIVATE_BYTES)];
        if let Some(connection) = self.connection_mut(id) {
            connection.stage = Stage::Ending { kind: Kind::Abort, code, private: private.into() };
            self.mark_ready(id.index);
        }
    }

    /// Accepts a packet: it is placed, and is not needed again. Returns the number below which all packets of the class
    /// were accepted; `None` if the connection is over.
    pub fn accept(&mut self, id: ConnectionId, class: Class, sequence: u32) -> Option<u32> {
        let half = &mut self.connection_mut(id)?.receiving[class.index()];
        let (returned, below) = (half.accept_packet(sequence), half.accepted_below());
        self.pool.return_bytes(class, returned);
        self.note_status(id, class);
        Some(below)
    }

    /// Refuses a packet, for want of a place: the peer sends it again after this time, and until then nothing else of the
    /// class. At most 655 ms.
    pub fn refuse(&mut self, id: ConnectionId, class: Class, sequence: u32, wait: Duration) {
        let Some(connection) = self.connection_mut(id) else { return };
        let wait_10us = u16::try_from(wait.as_micros() / 10).unwrap_or(u16::MAX);
        if connection.receiving[class.index()].refuse_packet(sequence, wait_10us) {
            connection.hurry_status();
            self.note_status(id, class);
        }
    }

    fn note_status(&mut self, id: ConnectionId, class: Class) {
        if let Some(connection) = self.connection_mut(id) {
            connection.request_status(class);
        }
        self.mark_ready(id.index);
        self.queue_for_credit(id.index);
    }

    /// Returns whether there is an event: a timeout that [`next_frame`](Self::next_frame) has found is one, too.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the next event.
    pub fn next_event(&mut self) -> Option<Event<P>> {
        self.events.pop_front()
    }

    /// Returns the state of a connection; `None` if it is over.
    pub fn connection_state(&self, id: ConnectionId) -> Option<ConnectionState> {
        let connection = self.connection(id)?;
        Some(ConnectionState {
            round_trip: connection.round_trip.smoothed_nanos().map(Duration::from_nanos),
            window_bytes: connection.window.window_bytes(),
            in_flight_bytes: connection.in_flight,
            counters: connection.counters,
        })
    }

    /// Returns the counters of the port.
    pub fn port_counters(&self) -> PortCounters {
        self.counters
    }

    /// Returns the sum of the credit granted to all peers and not used yet, in bytes, and its bound.
    pub fn granted_credit(&self) -> (u64, u64) {
        (self.pool.granted_bytes(), self.pool.bound_bytes())
    }

    /// Returns the credit that peers have but is not counted any more, since they did not use it for long, in bytes.
    pub fn written_off_credit(&self) -> u64 {
        let connections = self.places.iter().filter_map(|place| place.connection.as_deref());
        connections.flat_map(|connection| &connection.receiving).map(|half| half.written_off_bytes()).sum()
    }

    /// Processes a received frame, which may consist of any bytes. Returns the packet in it if it is new.
    pub fn receive<'f>(&mut self, from: A, bytes: &'f [u8], now: Duration) -> Option<Arrival<'f>> {
        let now = nanos(now);
        let frame = match Frame::parse_bytes(bytes) {
            Ok(frame) => frame,
            Err(error) => {
                self.count_defect(&error);
                return None;
            }
        };
        let header = &frame.header;
        if header.kind == Kind::Open && header.token == 0 {
            self.on_first_open(from, &frame, now);
            return None;
        }
        let Some(index) = self.find_receiver(from, header) else {
            self.counters.unknown += 1;
            if !matches!(header.kind, Kind::Reset | Kind::Reject | Kind::Abort) && self.resets.len() < MAX_RESETS {
                let header = Header {
                    kind: Kind::Reset,
                    to: header.from,
                    from: header.to,
                    answer: false,
                    finished: false,
                    peer_finished: false,
                    echo: None,
                    class: Class::Posted,
                    sequence: 0,
                    wanted: 0,
                    ..*header
                };
                self.resets.push_back((from, header));
            }
            return None;
        };
        let arrival = self.on_frame(index, &frame, now);
        self.mark_ready(index);
        self.settle(index, now);
        arrival
    }

    fn count_defect(&mut self, error: &FrameError) {
        match error {
            FrameError::Foreign(_) => self.counters.foreign += 1,
            FrameError::Version(_) => self.counters.other_version += 1,
            _ => self.counters.damaged += 1,
        }
    }

    /// Returns the connection that a frame is for: its number, its token and the address must match.
    fn find_receiver(&self, from: A, header: &Header) -> Option<u32> {
        let connection = self.places.get(usize::try_from(header.to).ok()?)?.connection.as_ref()?;
        let token = match header.kind {
            // The sender of a reset has only the token of the frame that it could not assign.
            Kind::Reset => connection.peer_token,
            _ => connection.token,
        };
        (connection.address == from && token == header.token && token != 0).then_some(header.to)
    }

    /// Keeps an attempt to connect, and asks its sender to return a token.
    fn on_first_open(&mut self, from: A, frame: &Frame<'_>, now: u64) {
        let Ok(handshake) = Handshake::parse_body(frame.body) else {
            self.counters.damaged += 1;
            return;
        };
        // Of the same attempt, whatever has become of it: the frame was repeated, duplicated or delayed.
        let known = self.places.iter_mut().filter_map(|place| place.connection.as_deref_mut()).find(|connection| {
            let peer = (connection.address, connection.peer, connection.peer_token);
            peer == (from, frame.header.from, handshake.token)
        });
        if let Some(connection) = known {
            if matches!(connection.stage, Stage::Challenging | Stage::Waiting | Stage::Accepted { .. }) {
                connection.request_handshake();
            }
            let index = connection.id.index;
            self.mark_ready(index);
            return;
        }
        if self.attempts.len() >= MAX_ATTEMPTS
            && let Some(oldest) = self.attempts.pop_front()
        {
            self.counters.evicted_attempts += 1;
            self.remove_connection(oldest.index);
        }
        if let Ok(connection) = self.add_connection(from, Stage::Challenging, now) {
            connection.adopt_peer(&frame.header, &handshake);
            let id = connection.id;
            self.attempts.push_back(id);
        }
    }

    /// Processes a frame for a connection.
    fn on_frame<'f>(&mut self, index: u32, frame: &Frame<'f>, now: u64) -> Option<Arrival<'f>> {
        let connection = self.places[index as usize].connection.as_deref()?;
        let is_peer = connection.peer == frame.header.from;
        let is_known = match (&connection.stage, frame.header.kind) {
            (Stage::Accepted { .. } | Stage::Open, Kind::Packet | Kind::Status) if is_peer => {
                return self.on_open_frame(index, frame, now);
            }
            (_, Kind::Challenge | Kind::Open | Kind::Accept) => self.on_handshake(index, frame, now),
            (_, Kind::Reject | Kind::Abort | Kind::Reset) => self.on_ending(index, frame),
            _ => false,
        };
        self.counters.unknown += u64::from(!is_known);
        None
    }

    /// Processes a frame that opens a connection. Returns false for one that has no place in its stage.
    fn on_handshake(&mut self, index: u32, frame: &Frame<'_>, now: u64) -> bool {
        let Self { places, events, .. } = self;
        let Some(connection) = places[index as usize].connection.as_deref_mut() else { return false };
        let Ok(handshake) = Handshake::parse_body(frame.body) else { return false };
        let header = &frame.header;
        let (id, is_peer) = (connection.id, connection.peer == header.from);
        match (&connection.stage, header.kind) {
            (Stage::Opening { private, .. }, Kind::Challenge) => {
                let private = private.clone();
                connection.note_arrival(header, now);
                if connection.peer_token != handshake.token {
                    connection.adopt_peer(header, &handshake);
                    connection.stage = Stage::Opening { private, is_challenged: true };
                    connection.request_handshake();
                }
            }
            (Stage::Opening { is_challenged: true, .. }, Kind::Accept)
                if is_peer && handshake.token == connection.peer_token =>
            {
                connection.adopt_limit(&handshake);
                connection.begin_use(now);
                let (private, max_packet_bytes) = (handshake.private.into(), connection.max_packet_bytes());
                connection.on_frame(frame, now, events);
                events.push_back(Event::Connected { connection: id, private, max_packet_bytes });
            }
            (Stage::Challenging, Kind::Open) if is_peer => {
                connection.note_arrival(header, now);
                connection.stage = Stage::Waiting;
                events.push_back(Event::Incoming { connection: id, private: handshake.private.into() });
                self.attempts.retain(|attempt| *attempt != id);
                self.end_earlier_instances(id);
            }
            // A sign of life for a peer that waits; or the answer once more.
            (Stage::Waiting | Stage::Accepted { .. }, Kind::Open) if is_peer => {
                connection.note_arrival(header, now);
                connection.request_handshake();
            }
            // The first frame that answered an `Accept` was lost.
            (Stage::Open, Kind::Accept) if is_peer => {
                connection.on_frame(frame, now, events);
                connection.request_answer();
            }
            _ => return false,
        }
        true
    }

    /// Processes a frame that ends a connection. Returns false for one that has no place in its stage.
    fn on_ending(&mut self, index: u32, frame: &Frame<'_>) -> bool {
        let Self { places, events, .. } = self;
        let Some(connection) = places[index as usize].connection.as_deref_mut() else { return false };
        let is_peer = connection.peer == frame.header.from;
        let ending = Ending::parse_body(frame.body).unwrap_or(Ending { code: 0, private: &[] });
        let error = match (&connection.stage, frame.header.kind) {
            (Stage::Opening { .. }, Kind::Reject) => ConnectionError::Rejected { private: ending.private.into() },
            (Stage::Waiting | Stage::Accepted { .. } | Stage::Open, Kind::Abort) if is_peer => {
                ConnectionError::Aborted { code: ending.code, private: ending.private.into() }
            }
            // The peer keeps a limited number of attempts: the next `Open` begins anew.
            (Stage::Opening { private, is_challenged: true }, Kind::Reset) => {
                connection.stage = Stage::Opening { private: private.clone(), is_challenged: false };
                (connection.peer, connection.peer_token) = (0, 0);
                return true;
            }
            (Stage::Accepted { .. } | Stage::Open, Kind::Reset) => {
                events.push_back(connection.end_by_reset());
                return true;
            }
            _ => return false,
        };
        connection.is_over = true;
        events.push_back(Event::Failed { connection: connection.id, error });
        true
    }

    /// Processes a frame of a connection that is in use.
    fn on_open_frame<'f>(&mut self, index: u32, frame: &Frame<'f>, now: u64) -> Option<Arrival<'f>> {
        let connection = self.places[index as usize].connection.as_deref_mut()?;
        let id = connection.id;
        if connection.stage != Stage::Open {
            connection.begin_use(now);
            let max_packet_bytes = connection.max_packet_bytes();
            self.events.push_back(Event::Connected { connection: id, private: Box::default(), max_packet_bytes });
        }
        connection.on_frame(frame, now, &mut self.events);
        let header = &frame.header;
        if header.kind != Kind::Packet || connection.is_over || frame.body.len() > connection.max_packet_bytes() {
            return None;
        }
        connection.on_packet(frame, now).then_some(Arrival {
            connection: id,
            class: header.class,
            sequence: header.sequence,
            packet: frame.body,
        })
    }

    /// Ends connections to an earlier instance of the peer, which has restarted.
    fn end_earlier_instances(&mut self, id: ConnectionId) {
        let Some((address, instance)) =
            self.connection(id).map(|connection| (connection.address, connection.peer_instance))
        else {
            return;
        };
        for place in &mut self.places {
            let Some(connection) = place.connection.as_deref_mut() else { continue };
            let is_known = matches!(connection.stage, Stage::Waiting | Stage::Accepted { .. } | Stage::Open);
            if connection.address == address && is_known && connection.peer_instance != instance {
                connection.is_over = true;
                let error = ConnectionError::Restarted;
                self.events.push_back(Event::Failed { connection: connection.id, error });
            }
        }
        self.remove_ended();
    }

    fn remove_ended(&mut self) {
        for index in 0..self.places.len() {
            if self.places[index].connection.as_ref().is_some_and(|connection| connection.is_over) {
                self.remove_connection(u32::try_from(index).unwrap_or(u32::MAX));
            }
        }
    }

    /// Writes the next frame to be sent into `into`, which has room for [`max_frame_bytes`](Self::max_frame_bytes). Handles
    /// timeouts first. Returns `None` if there is nothing to send at present.
    ///
    /// # Panics
    /// `into` is shorter than that.
    pub fn next_frame(&mut self, now: Duration, into: &mut [u8]) -> Option<Outgoing<A>> {
        assert!(into.len() >= self.shared.max_frame_bytes, "the room for a frame is shorter than `max_frame_bytes`");
        let now = nanos(now);
        self.run_timers(now);
        self.distribute_credit(now);
        if let Some((to, header)) = self.resets.pop_front() {
            return Some(Outgoing { to, bytes: write_frame(into, &header, &[], |_| 0) });
        }
        while let Some(index) = self.ready.front().copied() {
            let Self { places, events, .. } = self;
            let place = &mut places[index as usize];
            let frame = place.connection.as_deref_mut().and_then(|connection| {
                connection.handle_timeouts(now, events);
                let bytes = connection.next_frame(now, into, events)?;
                Some(Outgoing { to: connection.address, bytes })
            });
            let is_over = place.connection.as_ref().is_none_or(|connection| connection.is_over);
            self.turn_frames += 1;
            if frame.is_none() || is_over || self.turn_frames >= FRAMES_PER_TURN {
                self.turn_frames = 0;
                self.ready.pop_front();
                self.places[index as usize].is_ready = false;
                if frame.is_some() && !is_over {
                    self.mark_ready(index);
                } else {
                    self.settle(index, now);
                }
            }
            if frame.is_some() {
                return frame;
            }
        }
        None
    }

    /// Returns the time at which [`next_frame`](Self::next_frame) is to be called even if nothing was received; `None` if
    /// there is no such time. Zero: there may be frames to send, as soon as the port below has room.
    pub fn next_deadline(&self) -> Option<Duration> {
        if !self.ready.is_empty() || !self.resets.is_empty() {
            return Some(Duration::ZERO);
        }
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let write_off = (self.pool.has_waiting()).then_some(self.next_write_off);
        let grant = self.pool.next_grant_time();
        let credit = grant.or(write_off);
        timer.into_iter().chain(credit).min().map(Duration::from_nanos)
    }

    /// Returns whether [`next_frame`](Self::next_frame) may have something to do at this time.
    pub fn is_due(&self, now: Duration) -> bool {
        self.pool.has_waiting() || self.next_deadline().is_some_and(|at| at <= now)
    }

    /// Gives a turn to the connections whose timers are due.
    fn run_timers(&mut self, now: u64) {
        while let Some(Reverse((at, index))) = self.timers.peek().copied() {
            if at > now {
                return;
            }
            self.timers.pop();
            let place = &mut self.places[index as usize];
            if place.timer != at {
                continue;
            }
            place.timer = u64::MAX;
            self.mark_ready(index);
        }
    }

    /// Removes a connection that is over; otherwise queues it for the credit it needs, and sets its timer.
    fn settle(&mut self, index: u32, now: u64) {
        let place = &mut self.places[index as usize];
        let Some(connection) = place.connection.as_deref() else { return };
        if connection.is_over {
            return self.remove_connection(index);
        }
        let deadline = connection.next_deadline(now);
        if deadline < place.timer {
            place.timer = deadline;
            self.timers.push(Reverse((deadline, index)));
        }
        self.queue_for_credit(index);
    }

    fn mark_ready(&mut self, index: u32) {
        if let Some(place) = self.places.get_mut(index as usize)
            && place.connection.is_some()
            && !std::mem::replace(&mut place.is_ready, true)
        {
            self.ready.push_back(index);
        }
    }

    /// Returns the credit that a class of a connection lacks, in bytes.
    fn needed_credit(&self, index: u32, class: Class) -> u64 {
        let place = self.places.get(index as usize);
        let Some(connection) = place.and_then(|place| place.connection.as_deref()) else { return 0 };
        let half = &connection.receiving[class.index()];
        if connection.stage != Stage::Open || !half.is_used() && class != Class::Posted {
            return 0;
        }
        // A peer that left credit unused gets no more than it needs for a packet.
        let packets = if half.has_written_off() { 1 } else { crate::WINDOW_PACKETS };
        let standing = self.pool.standing_share(self.places.len() - self.free.len());
        half.needed_bytes(standing, u64::from(packets) * connection.max_packet_cost())
    }

    fn queue_for_credit(&mut self, index: u32) {
        for class in Class::ALL {
            if self.needed_credit(index, class) == 0 {
                continue;
            }
            if let Some(connection) = self.places[index as usize].connection.as_deref_mut()
                && !std::mem::replace(&mut connection.receiving[class.index()].is_waiting, true)
            {
                self.pool.enqueue_waiting(index, class);
            }
        }
    }

    /// Grants credit in turn, as far as the pool allows.
    fn distribute_credit(&mut self, now: u64) {
        while let Some((index, class)) = self.pool.next_waiting(now) {
            let needed = self.needed_credit(index, class);
            let Some(connection) = self.places[index as usize].connection.as_deref_mut() else { continue };
            let granted = self.pool.take_bytes(class, needed.min(connection.max_packet_cost()));
            let half = &mut connection.receiving[class.index()];
            half.is_waiting = granted < needed;
            if half.is_waiting {
                self.pool.enqueue_waiting(index, class);
            }
            if granted > 0 {
                let is_awaited = half.lacks_grant();
                half.add_grant(granted, now);
                connection.request_status(class);
                if is_awaited {
                    connection.hurry_status();
                }
                self.mark_ready(index);
            }
        }
        if self.pool.has_waiting() && now >= self.next_write_off {
            self.write_off_unused(now);
        }
    }

    /// Stops counting credit that peers do not use, so that one that is hung or hostile keeps nothing from the others.
    fn write_off_unused(&mut self, now: u64) {
        self.next_write_off = now + MIN_UNUSED_NANOS;
        for place in &mut self.places {
            let Some(connection) = place.connection.as_deref_mut() else { continue };
            let round_trip = connection.round_trip.smoothed_nanos().unwrap_or(0);
            let unused = MIN_UNUSED_NANOS.max(round_trip * UNUSED_ROUND_TRIPS);
            for class in Class::ALL {
                let bytes = connection.receiving[class.index()].write_off_unused(now.saturating_sub(unused));
                self.pool.return_bytes(class, bytes);
            }
        }
    }

    fn connection(&self, id: ConnectionId) -> Option<&Connection<A, P>> {
        let place = self.places.get(id.index as usize).filter(|place| place.generation == id.generation)?;
        place.connection.as_deref().filter(|connection| !connection.is_over)
    }

    fn connection_mut(&mut self, id: ConnectionId) -> Option<&mut Connection<A, P>> {
        let place = self.places.get_mut(id.index as usize).filter(|place| place.generation == id.generation)?;
        place.connection.as_deref_mut().filter(|connection| !connection.is_over)
    }

    fn add_connection(&mut self, address: A, stage: Stage, now: u64) -> Result<&mut Connection<A, P>, ConnectError> {
        let used = self.places.len() - self.free.len();
        if used >= self.options.max_connections {
            return Err(ConnectError::TooMany(used));
        }
        let index = self.free.pop().unwrap_or_else(|| {
            let place = ConnectionPlace { generation: 0, connection: None, is_ready: false, timer: u64::MAX };
            self.places.push(place);
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        });
        // 0 stands for a token that is not known.
        let token = (self.random)().max(1);
        let place = &mut self.places[index as usize];
        let id = ConnectionId { index, generation: place.generation };
        let connection = Connection::new(id, address, token, stage, self.shared, now);
        let deadline = connection.next_deadline(now);
        place.timer = deadline;
        self.timers.push(Reverse((deadline, index)));
        if !std::mem::replace(&mut place.is_ready, true) {
            self.ready.push_back(index);
        }
        Ok(place.connection.insert(Box::new(connection)))
    }

    fn remove_connection(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        let Some(connection) = place.connection.take() else { return };
        place.generation = place.generation.wrapping_add(1);
        place.timer = u64::MAX;
        self.free.push(index);
        if self.free.len() == self.places.len() {
            self.timers.clear();
        }
        for class in Class::ALL {
            self.pool.return_bytes(class, connection.receiving[class.index()].pool_bytes());
        }
        self.pool.forget_waiting(index);
        if connection.stage == Stage::Challenging {
            self.attempts.retain(|attempt| *attempt != connection.id);
        }
    }
}

/// Returns numbers that a stranger cannot guess, for [`Port::new`]: hashes by the standard library's keyed hash function
/// (SipHash), whose keys come from the system.
pub fn secret_numbers() -> impl FnMut() -> u64 + Send + 'static {
    let keys = RandomState::new();
    let mut drawn = 0u64;
    move || {
        drawn += 1;
        keys.hash_one(drawn)
    }
}

fn check_private(private: &[u8]) -> Result<(), ConnectError> {
    if private.len() > MAX_PRIVATE_BYTES { Err(ConnectError::PrivateTooLong(private.len())) } else { Ok(()) }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
