//! One end of a connection.

use crate::answer_wait::AnswerWait;
use crate::counters::ConnectionCounters;
use crate::delay::DelayWindow;
use crate::event::{ConnectionError, ConnectionId, Event};
use crate::frame::{
    CLASS_COUNT, Class, Echo, Ending, Frame, HEADER_BYTES, Handshake, Header, Kind, STATUS_BYTES, Status, write_frame,
};
use crate::receiving::{Fate, ReceivingHalf};
use crate::round_trip::RoundTrip;
use crate::sending::{Sender, SendingHalf};
use crate::{MIN_FRAME_BYTES, Packet};
use std::collections::VecDeque;
use std::time::Duration;

/// Credit that a packet costs beyond its length, in bytes: the header and one status block (104), Ethernet's part on the
/// wire (38: preamble, header, checksum, gap), IPv4's and UDP's headers (28), rounded up.
pub const PACKET_OVERHEAD_BYTES: u32 = 176;
/// Wait before an unanswered handshake is repeated, doubled each time up to a maximum, in nanoseconds.
const FIRST_HANDSHAKE_WAIT_NANOS: u64 = 20_000_000;
const MAX_HANDSHAKE_WAIT_NANOS: u64 = 640_000_000;
/// Number of unanswered probes from which on the oldest packets are sent again.
const PROBES_BEFORE_RESENDING: u32 = 2;
/// Number of times that the wait before a probe is doubled: at most, and while the peer answers without progress.
const MAX_BACKOFF: u32 = 9;
const MAX_ANSWERED_BACKOFF: u32 = 4;
/// Number of packets whose status does not wait for others.
const MAX_UNREPORTED_PACKETS: u32 = 8;
/// Part of the peer's time-out after which an idle end asks for an answer.
const KEEP_ALIVE_PART: u64 = 8;
/// Time after which an echo or a stamp is too old to be compared modulo 2³² ns, in nanoseconds.
const MAX_STAMP_AGE_NANOS: u64 = 1_000_000_000;

/// Settings of a port that its connections use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared {
    pub(crate) max_frame_bytes: usize,
    pub(crate) target_delay: u64,
    pub(crate) peer_timeout: u64,
    pub(crate) status_delay: u64,
    pub(crate) instance: u64,
}

/// Progress of a connection from its first frame to its last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Begun here: `Open` is repeated until it is answered. With the peer's token once there is a challenge.
    Opening { private: Box<[u8]>, is_challenged: bool },
    /// Begun by a peer that has not returned its token yet.
    Challenging,
    /// Begun by a peer, and waits for the upper layer.
    Waiting,
    /// Accepted here: `Accept` is repeated until the peer uses the connection.
    Accepted { private: Box<[u8]> },
    /// In use.
    Open,
    /// Ended here: one frame with this kind, code and data is to be sent.
    Ending { kind: Kind, code: u32, private: Box<[u8]> },
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Connection<A, P> {
    pub(crate) id: ConnectionId,
    pub(crate) address: A,
    pub(crate) token: u64,
    pub(crate) peer: u32,
    pub(crate) peer_token: u64,
    pub(crate) peer_instance: u64,
    pub(crate) stage: Stage,
    shared: Shared,
    /// Maximum length of a frame that this end takes from the peer, and of one in both directions, in bytes.
    own_limit_bytes: usize,
    pub(crate) max_frame_bytes: usize,
    /// Time without a frame from the peer after which the connection has failed, in nanoseconds.
    peer_timeout: u64,
    pub(crate) sending: [SendingHalf<P>; CLASS_COUNT],
    pub(crate) receiving: [ReceivingHalf; CLASS_COUNT],
    pub(crate) round_trip: RoundTrip,
    pub(crate) window: DelayWindow,
    pub(crate) in_flight: u64,
    pub(crate) counters: ConnectionCounters,
    /// Classes whose status is to be sent, and (`owes_answer`) true if a frame is to be sent in any case.
    status_due: [bool; CLASS_COUNT],
    owes_answer: bool,
    /// Number of packets received since the last status, and the time of the first; false if their status may wait for
    /// others.
    unreported_packets: u32,
    unreported_since: u64,
    is_status_urgent: bool,
    answer_wait: AnswerWait,
    /// True if a handshake frame, or a question, is to be sent.
    handshake_due: bool,
    probe_due: bool,
    /// Class that is served first.
    turn: usize,
    /// Newest stamp of the peer, and the time at which it arrived.
    newest_stamp: Option<(u32, u64)>,
    /// Time at which the newest frame was sent that the peer has received.
    echo_sent_at: u64,
    /// Time of the last stamp, which no other frame has.
    stamped_at: u64,
    began_at: u64,
    received_at: u64,
    sent_at: u64,
    /// Time from which the wait for an answer counts, and how often it was doubled.
    waits_since: u64,
    backoff: u32,
    is_awaiting: bool,
    /// Time at which the latest frame was sent that only announces a demand, or asks for an answer.
    asked_at: u64,
    /// States of the two halves.
    finishing: bool,
    finish_announced: bool,
    finish_acknowledged: bool,
    peer_finished: bool,
    finish_answered: bool,
    /// True if the connection is over, and its place may be used again.
    pub(crate) is_over: bool,
}

impl<A: Copy, P: Packet> Connection<A, P> {
    pub(crate) fn new(id: ConnectionId, address: A, token: u64, stage: Stage, shared: Shared, now: u64) -> Self {
        Self {
            id,
            address,
            token,
            peer: 0,
            peer_token: 0,
            peer_instance: 0,
            stage,
            shared,
            own_limit_bytes: shared.max_frame_bytes,
            max_frame_bytes: shared.max_frame_bytes,
            peer_timeout: shared.peer_timeout,
            sending: std::array::from_fn(|_| SendingHalf::new()),
            receiving: std::array::from_fn(|_| ReceivingHalf::new()),
            round_trip: RoundTrip::new(),
            window: DelayWindow::new(packet_cost(shared.max_frame_bytes).into(), shared.target_delay),
            in_flight: 0,
            counters: ConnectionCounters::default(),
            status_due: [false; CLASS_COUNT],
            owes_answer: false,
            unreported_packets: 0,
            unreported_since: 0,
            is_status_urgent: false,
            answer_wait: AnswerWait::new(shared.status_delay),
            handshake_due: true,
            probe_due: false,
            turn: 0,
            newest_stamp: None,
            echo_sent_at: 0,
            stamped_at: 0,
            began_at: now,
            received_at: now,
            sent_at: now,
            waits_since: now,
            backoff: 0,
            is_awaiting: false,
            asked_at: 0,
            finishing: false,
            finish_announced: false,
            finish_acknowledged: false,
            peer_finished: false,
            finish_answered: false,
            is_over: false,
        }
    }

    /// Returns the maximum length of a packet, in bytes.
    pub(crate) fn max_packet_bytes(&self) -> usize {
        self.max_frame_bytes - HEADER_BYTES
    }

    /// Returns the most credit that a packet of this connection costs, in bytes.
    pub(crate) fn max_packet_cost(&self) -> u64 {
        packet_cost(self.max_packet_bytes()).into()
    }

    /// Adopts the peer's number, token, instance and limit.
    pub(crate) fn adopt_peer(&mut self, header: &Header, handshake: &Handshake<'_>) {
        (self.peer, self.peer_token, self.peer_instance) = (header.from, handshake.token, handshake.instance);
        self.adopt_limit(handshake);
    }

    /// Adopts the peer's limit of a frame's length.
    pub(crate) fn adopt_limit(&mut self, handshake: &Handshake<'_>) {
        let peer_limit = usize::try_from(handshake.max_frame_bytes).unwrap_or(usize::MAX);
        self.max_frame_bytes = self.own_limit_bytes.min(peer_limit.max(MIN_FRAME_BYTES));
        self.window.set_packet_bytes(packet_cost(self.max_frame_bytes).into());
    }

    /// Lowers the limit of this end, before the connection is in use.
    pub(crate) fn limit_frame_bytes(&mut self, bytes: usize) {
        self.own_limit_bytes = self.own_limit_bytes.min(bytes.max(MIN_FRAME_BYTES));
        self.max_frame_bytes = self.max_frame_bytes.min(self.own_limit_bytes);
        self.window.set_packet_bytes(packet_cost(self.max_frame_bytes).into());
    }

    pub(crate) fn set_peer_timeout(&mut self, timeout: u64) {
        self.peer_timeout = timeout.max(1);
    }

    /// True if the connection takes packets to be sent.
    pub(crate) fn can_send(&self) -> bool {
        matches!(self.stage, Stage::Open) && !self.finishing && !self.is_over
    }

    /// Notes that a frame is to be sent, so that the peer sees that its own has come.
    pub(crate) fn request_answer(&mut self) {
        (self.owes_answer, self.is_status_urgent) = (true, true);
    }

    pub(crate) fn request_handshake(&mut self) {
        self.handshake_due = true;
    }

    /// Begins to use the connection.
    pub(crate) fn begin_use(&mut self, now: u64) {
        self.stage = Stage::Open;
        self.handshake_due = false;
        self.request_answer();
        (self.waits_since, self.backoff) = (now, 0);
    }

    /// Closes this half after all packets were acknowledged.
    pub(crate) fn finish_sending(&mut self) {
        self.finishing = true;
        self.request_answer();
    }

    /// Notes that the status of a class is to be sent.
    pub(crate) fn request_status(&mut self, class: Class) {
        self.status_due[class.index()] = true;
    }

    /// Notes that the status is not to wait for other packets.
    pub(crate) fn hurry_status(&mut self) {
        self.is_status_urgent = true;
    }

    /// Returns the time until which the status waits for other packets, or for a frame that is sent anyway; `None` if it
    /// does not.
    fn held_until(&self) -> Option<u64> {
        let may_wait = !self.is_status_urgent && (1..MAX_UNREPORTED_PACKETS).contains(&self.unreported_packets);
        may_wait.then(|| self.unreported_since + self.answer_wait.wait_nanos())
    }

    /// True if this half is closed, as far as this end is concerned.
    fn has_finished(&self) -> bool {
        self.finishing && self.sending.iter().all(SendingHalf::is_empty)
    }

    /// Returns the end of a connection of which the peer knows nothing any more.
    pub(crate) fn end_by_reset(&mut self) -> Event<P> {
        self.is_over = true;
        if self.has_finished() && self.peer_finished {
            Event::Closed { connection: self.id }
        } else {
            Event::Failed { connection: self.id, error: ConnectionError::Forgotten }
        }
    }

    /// Processes what any frame of the peer carries: it is alive, and shows how long a round trip takes. Returns true if
    /// no frame that was sent later has arrived yet, and the time at which the newest frame was sent that the peer had
    /// received then, if that is known.
    pub(crate) fn note_arrival(&mut self, header: &Header, now: u64) -> (bool, Option<u64>) {
        self.received_at = now;
        self.counters.frames_received += 1;
        let is_newest = self.newest_stamp.is_none_or(|(stamp, at)| {
            now.saturating_sub(at) > MAX_STAMP_AGE_NANOS || header.stamp.wrapping_sub(stamp).cast_signed() > 0
        });
        if is_newest {
            self.newest_stamp = Some((header.stamp, now));
        }
        (is_newest, header.echo.map(|echo| self.on_echo(echo, now)))
    }

    /// Restarts the peer's time-out: the upper layer has answered.
    pub(crate) fn restart_timeout(&mut self, now: u64) {
        self.received_at = now;
    }

    /// Processes what any frame of an open connection carries: acknowledgements, credit, demand.
    pub(crate) fn on_frame(&mut self, frame: &Frame<'_>, now: u64, events: &mut VecDeque<Event<P>>) {
        let header = &frame.header;
        let (is_newest, echo_sent_at) = self.note_arrival(header, now);
        if header.answer {
            self.request_answer();
            for (due, half) in self.status_due.iter_mut().zip(&self.receiving) {
                *due |= half.is_used();
            }
        }
        self.receiving[header.class.index()].set_wanted(header.wanted, is_newest);
        let mut is_progress = false;
        for status in frame.statuses() {
            let mut sender = Sender {
                in_flight: &mut self.in_flight,
                round_trip: &mut self.round_trip,
                counters: &mut self.counters,
                now,
            };
            let half = &mut self.sending[status.class.index()];
            let progress = half.on_status(status, echo_sent_at, is_newest, &mut sender);
            half.release_packets(self.id, status.class, events);
            // Of other classes this frame does not show what has arrived, and of this one not what has arrived since.
            half.mark_overtaken(progress.newest_sent_at.max(echo_sent_at.unwrap_or(0)), now);
            is_progress |= progress.is_progress;
        }
        self.mark_lost_packets(now);
        if is_progress {
            (self.waits_since, self.backoff) = (now, 0);
        } else {
            self.backoff = self.backoff.min(MAX_ANSWERED_BACKOFF);
        }
        self.on_finish_flags(header, events);
    }

    /// Measures the round trip by a stamp that comes back for the first time. Returns the time of the stamp.
    fn on_echo(&mut self, echo: Echo, now: u64) -> u64 {
        // Stamps are ahead of the clock if more than one frame is sent in a nanosecond.
        let latest = now.max(self.stamped_at);
        let sent_at = latest.saturating_sub(u64::from(wrapped_nanos(latest).wrapping_sub(echo.stamp)));
        if sent_at > self.echo_sent_at {
            self.echo_sent_at = sent_at;
            self.window.end_silence(sent_at);
            let took = now.saturating_sub(sent_at).saturating_sub(echo.held_nanos.into()).max(1);
            self.round_trip.record_round_trip(took);
            self.window.record_round_trip(took, self.round_trip.variation_nanos(), sent_at, now);
        }
        sent_at
    }

    fn on_finish_flags(&mut self, header: &Header, events: &mut VecDeque<Event<P>>) {
        self.finish_acknowledged |= header.peer_finished && self.has_finished();
        if header.finished && !std::mem::replace(&mut self.peer_finished, true) {
            self.request_answer();
            events.push_back(Event::PeerFinished { connection: self.id });
        }
        self.check_closed(events);
    }

    /// Ends the connection if both halves are closed and the peer knows it.
    pub(crate) fn check_closed(&mut self, events: &mut VecDeque<Event<P>>) {
        if self.finish_acknowledged && self.finish_answered && !self.is_over {
            self.is_over = true;
            events.push_back(Event::Closed { connection: self.id });
        }
    }

    /// Processes a packet of the peer. Returns true if it is new.
    pub(crate) fn on_packet(&mut self, frame: &Frame<'_>, now: u64) -> bool {
        let class = frame.header.class;
        self.status_due[class.index()] = true;
        self.owes_answer = true;
        let half = &mut self.receiving[class.index()];
        let fate = half.on_packet(frame.header.sequence, packet_cost(frame.body.len()), now);
        // What the peer sends again, or will, it is to know at once.
        self.is_status_urgent |= fate != Fate::New || half.has_gap();
        if self.unreported_packets == 0 {
            self.unreported_since = now;
        }
        self.unreported_packets += 1;
        match fate {
            Fate::New => self.counters.packets_received += 1,
            Fate::Repeated => self.counters.repeated += 1,
            Fate::BeyondWindow => self.counters.beyond_window += 1,
            Fate::BeyondCredit => self.counters.beyond_credit += 1,
        }
        fate == Fate::New
    }

    fn mark_lost_packets(&mut self, now: u64) {
        for half in &mut self.sending {
            half.mark_lost(&mut Sender {
                in_flight: &mut self.in_flight,
                round_trip: &mut self.round_trip,
                counters: &mut self.counters,
                now,
            });
        }
    }

    /// True if the peer is to answer something.
    pub(crate) fn awaits_answer(&self) -> bool {
        self.sending.iter().any(|half| !half.is_empty()) || self.has_finished() && !self.finish_acknowledged
    }

    /// Begins the wait for an answer if something new is to be answered.
    fn note_awaiting(&mut self, now: u64) {
        let awaits = self.awaits_answer();
        if awaits && !self.is_awaiting {
            (self.waits_since, self.backoff) = (now, 0);
        }
        self.is_awaiting = awaits;
    }

    /// Handles timeouts. The connection may end.
    pub(crate) fn handle_timeouts(&mut self, now: u64, events: &mut VecDeque<Event<P>>) {
        if self.is_over {
            return;
        }
        if now >= self.received_at + self.peer_timeout {
            self.is_over = true;
            let error = match self.stage {
                Stage::Challenging | Stage::Ending { .. } => return,
                Stage::Open => ConnectionError::Silent {
                    waited: elapsed(self.received_at, now),
                    timeout: Duration::from_nanos(self.peer_timeout),
                },
                _ => ConnectionError::NotOpened {
                    waited: elapsed(self.began_at, now),
                    max_frame_bytes: self.max_frame_bytes,
                },
            };
            return events.push_back(Event::Failed { connection: self.id, error });
        }
        match self.stage {
            Stage::Opening { .. } | Stage::Accepted { .. } => {
                if now >= self.handshake_deadline() {
                    (self.handshake_due, self.waits_since) = (true, now);
                    self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
                }
            }
            Stage::Open => {
                self.note_awaiting(now);
                self.mark_lost_packets(now);
                self.probe_due |= now >= self.sent_at + self.peer_timeout / KEEP_ALIVE_PART;
                if self.awaits_answer() && now >= self.probe_deadline() {
                    self.on_unanswered(now);
                }
                self.repeat_unused_grants(now);
            }
            Stage::Challenging | Stage::Waiting | Stage::Ending { .. } => {}
        }
    }

    /// Asks for an answer that did not come, and after that sends the oldest packets again.
    fn on_unanswered(&mut self, now: u64) {
        (self.probe_due, self.waits_since) = (true, now);
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
        let is_silent = now.saturating_sub(self.received_at) >= self.round_trip.answer_timeout();
        if self.backoff >= PROBES_BEFORE_RESENDING && is_silent {
            self.window.shrink_to_least(now);
            for half in &mut self.sending {
                half.mark_oldest_lost(&mut Sender {
                    in_flight: &mut self.in_flight,
                    round_trip: &mut self.round_trip,
                    counters: &mut self.counters,
                    now,
                });
            }
        }
    }

    fn repeat_unused_grants(&mut self, now: u64) {
        let timeout = self.round_trip.answer_timeout();
        for (half, due) in self.receiving.iter_mut().zip(&mut self.status_due) {
            if half.repeat_deadline(timeout).is_some_and(|deadline| deadline <= now) {
                half.note_repeat(now);
                (*due, self.is_status_urgent) = (true, true);
            }
        }
    }

    fn handshake_deadline(&self) -> u64 {
        self.waits_since + (FIRST_HANDSHAKE_WAIT_NANOS << self.backoff).min(MAX_HANDSHAKE_WAIT_NANOS)
    }

    fn probe_deadline(&self) -> u64 {
        // An end that waits only for credit, and whose peer knows it, waits for its turn. A grant that was lost is repeated.
        let has_asked = !self.has_finished() && self.echo_sent_at >= self.asked_at;
        let is_idle = !self.sending.iter().any(SendingHalf::has_unacknowledged);
        let backoff = if has_asked && is_idle { self.backoff.max(MAX_ANSWERED_BACKOFF) } else { self.backoff };
        self.waits_since + (self.round_trip.answer_timeout() << backoff).min(MAX_HANDSHAKE_WAIT_NANOS)
    }

    /// Returns the time at which [`handle_timeouts`](Self::handle_timeouts) has something to do.
    pub(crate) fn next_deadline(&self, now: u64) -> u64 {
        let end = self.received_at + self.peer_timeout;
        match self.stage {
            Stage::Opening { .. } | Stage::Accepted { .. } => end.min(self.handshake_deadline()),
            Stage::Challenging | Stage::Waiting | Stage::Ending { .. } => end,
            Stage::Open => {
                let mut deadline = end.min(self.sent_at + self.peer_timeout / KEEP_ALIVE_PART);
                if self.awaits_answer() {
                    deadline = deadline.min(self.probe_deadline());
                }
                let timeout = self.round_trip.answer_timeout();
                let sending = self.sending.iter().filter_map(|half| half.next_deadline(&self.round_trip, now));
                let receiving = self.receiving.iter().filter_map(|half| half.repeat_deadline(timeout));
                let held = self.held_until().filter(|_| self.status_due.contains(&true));
                sending.chain(receiving).chain(held).fold(deadline, u64::min)
            }
        }
    }

    /// Writes the next frame into `into`, and returns its length; `None` if there is nothing to send at present.
    pub(crate) fn next_frame(&mut self, now: u64, into: &mut [u8], events: &mut VecDeque<Event<P>>) -> Option<usize> {
        if self.is_over {
            return None;
        }
        let bytes = match self.stage {
            Stage::Open => {
                self.note_awaiting(now);
                self.next_packet_frame(now, into).or_else(|| self.next_status_frame(now, into))
            }
            Stage::Ending { .. } => Some(self.write_ending(now, into)),
            _ => std::mem::take(&mut self.handshake_due).then(|| self.write_handshake(now, into)),
        }?;
        self.sent_at = now;
        self.counters.frames_sent += 1;
        self.check_closed(events);
        Some(bytes)
    }

    /// Returns a header with the next stamp.
    fn next_header(&mut self, kind: Kind, class: Class, now: u64) -> Header {
        self.stamped_at = now.max(self.stamped_at + 1);
        let is_open = matches!(self.stage, Stage::Open);
        self.finish_answered |= is_open && self.peer_finished;
        let echo = self.newest_stamp.filter(|(_, at)| now.saturating_sub(*at) <= MAX_STAMP_AGE_NANOS);
        // One packet more than the window, for the one that is sent with this header.
        let usable_bytes = self.window.window_bytes() + self.max_packet_cost();
        let wanted = self.sending[class.index()].wanted_bytes(usable_bytes);
        self.sending[class.index()].mark_announced(wanted);
        Header {
            kind,
            to: self.peer,
            token: self.peer_token,
            from: self.id.index,
            answer: false,
            finished: is_open && self.has_finished(),
            peer_finished: is_open && self.peer_finished,
            stamp: wrapped_nanos(self.stamped_at),
            echo: echo.map(|(stamp, at)| Echo { stamp, held_nanos: wrapped_nanos(now.saturating_sub(at)) }),
            class,
            sequence: 0,
            wanted,
        }
    }

    fn write_handshake(&mut self, now: u64, into: &mut [u8]) -> usize {
        let (kind, private, is_padded) = match &self.stage {
            Stage::Opening { private, .. } => (Kind::Open, private.clone(), false),
            Stage::Accepted { private } => (Kind::Accept, private.clone(), true),
            _ => (Kind::Challenge, Box::default(), false),
        };
        let header = self.next_header(kind, Class::Posted, now);
        #[expect(clippy::cast_possible_truncation, reason = "a frame has less than 64 KiB")]
        let limit = self.own_limit_bytes as u32;
        let (instance, token) = (self.shared.instance, self.token);
        let handshake = Handshake { instance, token, max_frame_bytes: limit, private: &private };
        // A path that does not carry frames of the agreed length shows now, not with the first long packet. (Openings are
        // short: those of many senders may meet in the receiver's port.)
        let padded_bytes = if is_padded { self.max_packet_bytes() } else { 0 };
        let bytes = write_frame(into, &header, &[], |body| {
            let written = handshake.write_to(body);
            let length = written.max(padded_bytes);
            body[written..length].fill(0);
            length
        });
        self.waits_since = now;
        bytes
    }

    fn write_ending(&mut self, now: u64, into: &mut [u8]) -> usize {
        let Stage::Ending { kind, code, private } = std::mem::replace(&mut self.stage, Stage::Challenging) else {
            return 0;
        };
        self.is_over = true;
        let header = self.next_header(kind, Class::Posted, now);
        write_frame(into, &header, &[], |body| Ending { code, private: &private }.write_to(body))
    }

    /// Writes the next packet that credit and window allow: of each class in turn.
    fn next_packet_frame(&mut self, now: u64, into: &mut [u8]) -> Option<usize> {
        for offset in 0..CLASS_COUNT {
            let class = Class::ALL[(self.turn + offset) % CLASS_COUNT];
            let Some((sequence, cost)) = self.sending[class.index()].next_packet(now) else { continue };
            if !self.window.has_room(self.in_flight, cost.into()) {
                return None;
            }
            self.turn = (class.index() + 1) % CLASS_COUNT;
            return Some(self.write_packet(class, sequence, cost, now, into));
        }
        None
    }

    fn write_packet(&mut self, class: Class, sequence: u32, cost: u32, now: u64, into: &mut [u8]) -> usize {
        let mut header = self.next_header(Kind::Packet, class, now);
        header.sequence = sequence;
        let stamped_at = self.stamped_at;
        if self.in_flight == 0 {
            self.waits_since = now;
        }
        let mut blocks = [Status::EMPTY; CLASS_COUNT];
        let packet_bytes = (cost - PACKET_OVERHEAD_BYTES) as usize;
        let room = (self.max_frame_bytes - HEADER_BYTES).saturating_sub(packet_bytes) / STATUS_BYTES;
        self.answer_wait.on_packet_sent((self.unreported_packets > 0).then_some(self.unreported_since), now);
        let block_count = self.take_due_blocks(&mut blocks, room, now);
        let mut sender = Sender {
            in_flight: &mut self.in_flight,
            round_trip: &mut self.round_trip,
            counters: &mut self.counters,
            now,
        };
        let packet = self.sending[class.index()].mark_sent(sequence, stamped_at, &mut sender);
        let bytes = write_frame(into, &header, &blocks[..block_count], |body| {
            if let Some(packet) = packet {
                packet.write_packet(&mut body[..packet_bytes]);
            }
            packet_bytes
        });
        // The new demand that goes with it.
        self.owes_answer &= self.status_due.contains(&true);
        bytes
    }

    /// Moves up to `room` blocks that are due into `blocks`, and returns their number.
    fn take_due_blocks(&mut self, blocks: &mut [Status; CLASS_COUNT], room: usize, now: u64) -> usize {
        let mut count = 0;
        for class in Class::ALL {
            if count < room && std::mem::take(&mut self.status_due[class.index()]) {
                blocks[count] = self.receiving[class.index()].status_block(class, now);
                count += 1;
            }
        }
        if !self.status_due.contains(&true) {
            (self.unreported_packets, self.is_status_urgent) = (0, false);
        }
        count
    }

    /// Writes a frame without a packet, if there is a reason for one.
    fn next_status_frame(&mut self, now: u64, into: &mut [u8]) -> Option<usize> {
        let demand = Class::ALL.into_iter().find(|class| self.sending[class.index()].has_unannounced_demand());
        let must_finish = self.has_finished() && !self.finish_acknowledged && !self.finish_announced;
        if !self.owes_answer && !self.probe_due && !must_finish && demand.is_none() && !self.status_due.contains(&true)
        {
            return None;
        }
        let is_needed = self.probe_due || must_finish || demand.is_some();
        if !is_needed && self.held_until().is_some_and(|until| now < until) {
            return None;
        }
        // The announcement of a demand may have been lost.
        let in_turn = Class::ALL.into_iter().cycle().skip(self.turn).take(CLASS_COUNT);
        let demand = demand.or_else(|| in_turn.into_iter().find(|class| self.sending[class.index()].lacks_credit()));
        self.turn = (self.turn + 1) % CLASS_COUNT;
        let mut header = self.next_header(Kind::Status, demand.unwrap_or(Class::Posted), now);
        header.answer = std::mem::take(&mut self.probe_due) || must_finish || demand.is_some();
        if header.answer {
            (self.asked_at, self.waits_since) = (self.stamped_at, now);
        }
        self.counters.probes_sent += u64::from(header.answer);
        self.finish_announced |= must_finish;
        self.owes_answer = false;
        if self.unreported_packets > 0 {
            self.answer_wait.on_status_sent(self.unreported_since);
        }
        let mut blocks = [Status::EMPTY; CLASS_COUNT];
        let count = self.take_due_blocks(&mut blocks, CLASS_COUNT, now);
        Some(write_frame(into, &header, &blocks[..count], |_| 0))
    }
}

/// Returns the credit that a packet of this length costs, in bytes.
pub(crate) fn packet_cost(packet_bytes: usize) -> u32 {
    u32::try_from(packet_bytes).unwrap_or(u32::MAX / 2) + PACKET_OVERHEAD_BYTES
}

fn elapsed(since: u64, now: u64) -> Duration {
    Duration::from_nanos(now.saturating_sub(since))
}

/// Returns a time or duration modulo 2³² ns.
fn wrapped_nanos(nanos: u64) -> u32 {
    nanos as u32
}
