//! The credit window: the number of bytes that may be requested, and the time at which they may be.
//!
//! The data of all sources meet in one place, the switch port that leads to the builder. Bytes that were requested and
//! have not arrived are on their way through the network or wait in that port's buffer, so a builder that keeps them
//! within
//!
//! ```text
//! W = C·τ + φ·B
//! ```
//!
//! (*C* the port's rate, *τ* the shortest time from a fetch to its data, *B* the port's buffer, φ = ½) keeps the port
//! busy and never overflows it, however many sources there are. The reasoning is in `docs/n-to-one.md`.

use crate::build::search::Search;
use crate::build::{BuilderConfig, LinkCapacity, Path, Window};
use std::collections::VecDeque;
use std::time::Duration;
use thalweg_wire::{MESSAGE_LEN, RECORD_ALIGN};

/// Pacing headroom: requests are paced at (1 + this) × the port's rate. It is large enough that the window, not the
/// clock, limits in the steady state, where each arrival makes room for the next fetch. At a long distance it is
/// reduced, so that the excess of a whole round trip fills no more than a quarter of the buffer.
const PACING_HEADROOM: f64 = 0.05;
/// Number of pieces that the filled part of the buffer holds. With fewer, sources take turns instead of filling the
/// port together, and the data of each come as a burst; with more, the overhead of each piece (a message, a packet that
/// is not full) takes more of the port.
const PIECES_IN_BUFFER: f64 = 3.0;
/// Number of pieces if there are other builders. A source may be busy with their requests: with more pieces the window
/// is spread over more sources, some of which are not busy.
const PIECES_WITH_OTHERS: f64 = 18.0;
/// Part of the buffer that is filled if there are other builders. Requested data wait in the queues of sources' links
/// as well, and TCP takes for lost what waits too long, and probes.
const BUFFER_SHARE_WITH_OTHERS: f64 = 0.4;
/// Start of the ramp if there are other builders, as a fraction of its start with one builder.
const RAMP_START_WITH_OTHERS: f64 = 1.0 / 8.0;
/// Limits of the length of a piece: `LONGEST_PIECE` in bytes, `SHORTEST_PIECE` in segments. Shorter ones cost more
/// messages than they are worth; longer ones let one source fill the port.
pub(crate) const LONGEST_PIECE: u64 = 64 << 10;
const SHORTEST_PIECE: u64 = 4;
/// Initial window of a new TCP connection, in bytes, before anything is acknowledged: Linux offers no larger window at
/// first.
const INITIAL_WINDOW_BYTES: u64 = 64 << 10;
/// Pause after which TCP begins with a small window again (RFC 2861; its shortest retransmission timeout in Linux).
const IDLE_RESTART_TIME: Duration = Duration::from_millis(200);
/// Number of round trips after a loss during which further losses are expected.
const LOSSY_ROUND_TRIPS: u32 = 64;
/// Shortest duration of a round: a handful of segments gives no information.
const SHORTEST_ROUND: Duration = Duration::from_micros(200);
/// Part of the port's rate below which a source counts as slow. Two faster ones fill the port, and the window holds more
/// than two pieces.
const SLOW_RATE_PART: f64 = 0.5;
/// Largest parts by which a source's measured rate falls and rises from fetch to fetch. The queue in the port changes the
/// time between the first and last bytes of a fetch, in both directions; the source is late more often than early.
const RATE_FALL: f64 = 1.0 / 32.0;
const RATE_RISE: f64 = 1.0 / 16.0;
/// Limit of a slow source, relative to its part of the window. A rate that was measured a little too low does not limit
/// the source, so that it can show that it is faster.
const SLOW_SHARE_FACTOR: f64 = 1.25;
/// If a slot does not fit into what links hold, it is requested in pieces of at least that number of bytes divided by
/// this.
const MIN_PIECE_DIVISOR: u64 = 8;
/// Alignment of pieces, in bytes: whole cache lines.
const PIECE_ALIGNMENT_BYTES: u64 = RECORD_ALIGN as u64;

/// Bytes that were requested from all sources, and bytes that may be.
#[derive(Debug)]
pub(crate) struct Credit {
    outstanding: u64,
    /// Bytes that links hold.
    held: u64,
    flows: Vec<Flow>,
    /// Number of sources that do not keep up.
    slow: usize,
    mode: Mode,
}

/// The limit of the requested bytes.
#[derive(Debug)]
enum Mode {
    Constant(u64),
    Port(Box<Port>),
    Search(Box<Search>),
}

impl Mode {
    fn as_port(&self) -> Option<&Port> {
        match self {
            Self::Port(port) => Some(port),
            _ => None,
        }
    }

    fn as_port_mut(&mut self) -> Option<&mut Port> {
        match self {
            Self::Port(port) => Some(port),
            _ => None,
        }
    }
}

/// State of one source.
#[derive(Debug, Default)]
struct Flow {
    /// Bytes requested and received so far, and of the received ones, bytes of slots that have arrived completely.
    asked: u64,
    received: u64,
    whole: u64,
    /// Fetches that have not arrived.
    fetches: VecDeque<Request>,
    /// True if nothing was under way when the first of these was requested: its data then give the round trip.
    alone: bool,
    /// Rate at which it sends what was requested, in bytes per second; `None` before it was measured.
    rate: Option<f64>,
    /// Arrival of the first bytes of the fetch that is arriving, and the value of `received` after them.
    begun: Option<(Duration, u64)>,
    /// Bytes that it may have sent over the port since its last report of losses.
    sent: u64,
    /// True if the source shares memory with this builder: its bytes cross no port.
    near: bool,
}

/// Limits of a source that does not keep up with the port.
#[derive(Debug, Clone, Copy)]
struct Share {
    /// Limit of the bytes requested from it at a time, and length in bytes of the pieces they are requested in.
    most: u64,
    piece: u64,
}

/// A fetch, for flow control.
#[derive(Debug, Clone, Copy)]
struct Request {
    /// End of the fetch, counted in all bytes ever requested from the source.
    to: u64,
    at: Duration,
}

/// State of the switch port, as far as it is known.
#[derive(Debug)]
struct Port {
    path: Path,
    /// True if there is no other builder that sources could be busy with.
    alone: bool,
    /// Shortest time from a fetch to its first data.
    round_trip: Option<Duration>,
    /// Bytes by which losses have reduced the window.
    taken: f64,
    /// Time at which a loss was last reported.
    lost: Option<Duration>,
    /// Window at the beginning, in bytes, which grows by what arrives: TCP's own windows have to grow with it. Data
    /// that they cannot take yet would wait in the sources, and come in bursts as soon as they can.
    ramp: f64,
    /// Time at which bytes last arrived.
    last_arrival: Duration,
    /// Bytes that may be requested now without exceeding the port's rate, and the time for which that was computed.
    tokens: f64,
    at: Duration,
    round: Round,
    /// Highest rate at which bytes have arrived lately, in bytes per second.
    rate: f64,
    /// Time at which pacing allows more requests; `None` if pacing is not what delays them.
    next: Option<Duration>,
}

/// Counters of the round that began at `began`.
#[derive(Debug, Default)]
struct Round {
    began: Duration,
    received: u64,
    sent: u64,
    lost: u64,
}

/// State of the credit window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CreditState {
    /// Bytes that may be requested and not received: the present value of W.
    pub window: u64,
    /// Length of a piece, in bytes.
    pub piece: u64,
    /// Shortest time from a fetch to its data: τ.
    pub round_trip: Duration,
}

impl Credit {
    pub(crate) fn new(config: &BuilderConfig, sources: usize) -> Self {
        Self {
            outstanding: 0,
            held: config.held,
            slow: 0,
            flows: std::iter::repeat_with(Flow::default).take(sources).collect(),
            mode: match config.window {
                Window::Constant(bytes) => Mode::Constant(bytes),
                Window::Credit(path) => Mode::Port(Box::new(Port::new(path, config.rank.1))),
                Window::Search { segment, most } => Mode::Search(Box::new(Search::new(segment, most))),
            },
        }
    }

    pub(crate) fn outstanding_bytes(&self) -> u64 {
        self.outstanding
    }

    /// Returns the number of bytes requested from one source and not received.
    pub(crate) fn outstanding_bytes_of(&self, source: usize) -> u64 {
        self.flows[source].outstanding_bytes()
    }

    pub(crate) fn credit_state(&self) -> Option<CreditState> {
        self.mode.as_port().map(Port::credit_state)
    }

    pub(crate) fn found_capacity(&self) -> Option<LinkCapacity> {
        match &self.mode {
            Mode::Search(search) => search.found_capacity(),
            _ => None,
        }
    }

    /// Resets a source that has connected; `near` if its bytes cross no network.
    pub(crate) fn source_connected(&mut self, source: usize, near: bool) {
        self.forget_requests(source);
        self.flows[source].near = near;
    }

    /// Forgets all requests to a source: none of them will be answered.
    pub(crate) fn forget_requests(&mut self, source: usize) {
        let flow = &mut self.flows[source];
        self.outstanding -= flow.outstanding_bytes();
        let was_slow = self.mode.as_port().is_some_and(|port| flow.is_slow(port));
        self.slow -= usize::from(was_slow);
        *flow = Flow { near: flow.near, ..Flow::default() };
    }

    /// Returns the bytes requested from a source before the next one's turn: a piece, or a slot where slots are
    /// requested as a whole.
    pub(crate) fn turn_bytes(&self) -> u64 {
        match &self.mode {
            Mode::Constant(_) => 1,
            Mode::Port(port) => port.piece_bytes(),
            Mode::Search(search) => search.piece_bytes(),
        }
    }

    /// Returns whether a source has its share of the window, or more. Where sources serve several builders, a source
    /// may be busy with the others' requests: bytes requested from it beyond its share would wait there, and be lacking
    /// elsewhere.
    pub(crate) fn has_its_share(&self, source: usize) -> bool {
        let Some(port) = self.mode.as_port().filter(|port| !port.alone) else { return false };
        let share = (port.window_bytes() / self.flows.len().max(1) as u64).max(port.piece_bytes());
        self.flows[source].outstanding_bytes() >= share
    }

    /// Returns whether so much of the window is left that a source may have more than its share. With other builders,
    /// false on the ramp: all of it would be requested from the first source to connect, by all of them.
    pub(crate) fn has_spare_window(&self) -> bool {
        let port = self.mode.as_port();
        port.is_none_or(|port| port.alone || !port.is_on_ramp() && 2 * self.outstanding <= port.window_bytes())
    }

    /// Returns whether any source does not keep up.
    pub(crate) fn has_slow_source(&self) -> bool {
        self.slow > 0
    }

    /// Returns whether a source does not keep up.
    pub(crate) fn is_slow_source(&self, source: usize) -> bool {
        self.slow > 0 && self.mode.as_port().is_some_and(|port| self.flows[source].is_slow(port))
    }

    /// Returns whether a source has as many requests as it can use: it is slow, or new. A connection's windows grow
    /// with what it has carried; data that do not fit them would come late, together with data requested from others by
    /// then.
    pub(crate) fn holds_back_source(&self, source: usize) -> bool {
        let flow = &self.flows[source];
        let Some(port) = self.mode.as_port() else { return false };
        let new = INITIAL_WINDOW_BYTES.saturating_add(flow.received);
        let (piece, most) = match self.share_of(source) {
            Some(share) => (share.piece, share.most.min(new)),
            None => (port.piece_bytes(), new),
        };
        flow.outstanding_bytes() > 0 && flow.outstanding_bytes() + piece > most
    }

    /// Returns the limits of a source that does not keep up with the port; `None` for others.
    ///
    /// The source has the part of the window that is its part of the port's rate: that keeps it busy even if the port
    /// has as long a queue as the window allows. Its pieces are shorter by the same part, and two of them more may be
    /// requested, so that one is there when another has gone.
    fn share_of(&self, source: usize) -> Option<Share> {
        let port = self.mode.as_port()?;
        let part = self.flows[source].part_of_port(port).filter(|part| *part < SLOW_RATE_PART)?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of the window")]
        let [piece, most] = [
            part * Path::BUFFER_SHARE * port.path.buffer as f64 / PIECES_IN_BUFFER,
            part * SLOW_SHARE_FACTOR * port.window_bytes() as f64,
        ]
        .map(|bytes| bytes as u64);
        // Each source has to have something in the window, however many there are.
        let least = port.window_bytes() / (2 * self.flows.len().max(1) as u64);
        let least = least.clamp(port.segment_bytes(), SHORTEST_PIECE * port.segment_bytes());
        let piece = port.whole_segments(piece.max(least)).min(port.piece_bytes());
        Some(Share { most: most.saturating_add(2 * piece), piece })
    }

    /// Returns how many of the next `bytes` bytes may be requested from a source now; 0 if it has to wait.
    pub(crate) fn requestable_bytes(&mut self, source: usize, bytes: u64, now: Duration) -> u64 {
        if self.flows[source].near {
            return bytes;
        }
        if self.holds_back_source(source) {
            return 0;
        }
        let left = self.held.saturating_sub(self.outstanding) / PIECE_ALIGNMENT_BYTES * PIECE_ALIGNMENT_BYTES;
        // Smaller pieces would be many. One is always allowed.
        if left < bytes.min(self.held / MIN_PIECE_DIVISOR) && self.outstanding > 0 {
            return 0;
        }
        self.requestable_by_mode(source, bytes, now).min(left.max(PIECE_ALIGNMENT_BYTES))
    }

    fn requestable_by_mode(&mut self, source: usize, bytes: u64, now: Duration) -> u64 {
        let share = self.share_of(source);
        match &mut self.mode {
            Mode::Constant(window) => {
                let fits = self.outstanding == 0 || self.outstanding.saturating_add(bytes) <= *window;
                if fits { bytes } else { 0 }
            }
            Mode::Port(port) => {
                if self.outstanding == 0 && now > port.last_arrival.saturating_add(IDLE_RESTART_TIME) {
                    port.ramp = port.ramp_start();
                }
                let piece = share.map_or_else(|| port.piece_bytes(), |share| share.piece);
                // A remainder that is not worth a piece of its own is requested with the last piece.
                let piece = if bytes <= piece + piece / 2 { bytes } else { piece };
                if port.is_exceeded_by(self.outstanding, piece) {
                    let behind_gaps = Flow::bytes_behind_gaps(&self.flows, port, now);
                    if port.is_exceeded_by(self.outstanding.saturating_sub(behind_gaps), piece) {
                        return 0;
                    }
                }
                if port.may_request(now) { piece } else { 0 }
            }
            Mode::Search(search) => {
                let piece = bytes.min(search.piece_bytes());
                let fits = self.outstanding == 0 || self.outstanding + piece <= search.window_bytes();
                if fits { piece } else { 0 }
            }
        }
    }

    /// Counts a request to a source.
    pub(crate) fn count_request(&mut self, source: usize, bytes: u64, now: Duration) {
        let flow = &mut self.flows[source];
        if flow.near {
            return;
        }
        // Also when more is requested before the first data have come: the first data still give the round trip.
        flow.alone |= flow.outstanding_bytes() == 0;
        flow.asked += bytes;
        flow.sent = flow.sent.saturating_add(bytes);
        self.outstanding += bytes;
        flow.fetches.push_back(Request { to: flow.asked, at: now });
        if let Some(port) = self.mode.as_port_mut() {
            port.tokens -= bytes as f64;
        }
    }

    /// Counts requested bytes of a source that have arrived.
    pub(crate) fn count_received(&mut self, source: usize, bytes: u64, now: Duration) {
        let flow = &mut self.flows[source];
        let bytes = bytes.min(flow.outstanding_bytes());
        if bytes == 0 {
            return;
        }
        self.outstanding -= bytes;
        if let Some(port) = self.mode.as_port() {
            self.slow -= usize::from(flow.is_slow(port));
            flow.measure_rate(port, bytes, now);
            self.slow += usize::from(flow.is_slow(port));
        }
        flow.received += bytes;
        let first = std::mem::take(&mut flow.alone).then(|| flow.fetches.front()).flatten();
        let round_trip = first.map(|first| now.saturating_sub(first.at));
        // The time until all of a fetch has arrived is at least the round trip. If there is always a fetch under way,
        // and TCP had not opened its windows when the first was made, this is the only measure.
        let mut shortest = round_trip.unwrap_or(Duration::MAX);
        while let Some(fetch) = flow.fetches.front().copied()
            && fetch.to <= flow.received
        {
            flow.fetches.pop_front();
            shortest = shortest.min(now.saturating_sub(fetch.at));
        }
        match &mut self.mode {
            Mode::Constant(_) => {}
            Mode::Port(port) => {
                if shortest < Duration::MAX {
                    port.round_trip = Some(port.round_trip.map_or(shortest, |known| known.min(shortest)));
                }
                port.count_arrival(bytes, now);
                port.end_round(now);
            }
            Mode::Search(search) => {
                round_trip.into_iter().for_each(|took| search.record_round_trip(took));
                search.count_received(bytes, now);
            }
        }
    }

    /// Counts a slot, of which this number of bytes was requested, as completely received.
    pub(crate) fn count_completed(&mut self, source: usize, bytes: u64) {
        let flow = &mut self.flows[source];
        flow.whole = flow.whole.saturating_add(bytes).min(flow.received);
    }

    /// Returns the bytes received of slots that have not arrived completely.
    pub(crate) fn partial_slot_bytes(&self) -> u64 {
        self.flows.iter().map(|flow| flow.received - flow.whole).sum()
    }

    /// Counts bytes that a source sends without a fetch.
    pub(crate) fn count_unrequested(&mut self, source: usize, bytes: u64) {
        let flow = &mut self.flows[source];
        flow.sent = flow.sent.saturating_add(if flow.near { 0 } else { bytes });
    }

    /// Takes back requested bytes that a source will not send after all.
    pub(crate) fn cancel_request(&mut self, source: usize, bytes: u64) {
        let flow = &mut self.flows[source];
        let bytes = bytes.min(flow.outstanding_bytes());
        flow.asked -= bytes;
        while flow.fetches.back().is_some_and(|last| last.to > flow.asked.max(flow.received)) {
            flow.fetches.pop_back();
        }
        self.outstanding -= bytes;
        if let Some(port) = self.mode.as_port_mut() {
            port.tokens += bytes as f64;
        }
    }

    /// Takes a source's report of bytes sent, and of bytes repeated because they were lost, since its last report.
    /// Numbers are limited to what is possible: each byte that the source was to send since then was lost once at most.
    pub(crate) fn report_losses(&mut self, source: usize, sent: u64, lost: u64) {
        let flow = &mut self.flows[source];
        let under_way = flow.outstanding_bytes();
        let limit = std::mem::replace(&mut flow.sent, under_way);
        let (sent, lost) = (sent.min(limit.saturating_mul(2)), lost.min(limit));
        match &mut self.mode {
            Mode::Constant(_) => {}
            Mode::Port(port) => {
                port.round.sent = port.round.sent.saturating_add(sent);
                port.round.lost = port.round.lost.saturating_add(lost);
                if lost > 0 {
                    port.lost = Some(port.last_arrival);
                }
            }
            Mode::Search(search) => search.count_lost(lost),
        }
    }

    /// Returns when more may be requested; `None` if pacing is not what delays requests.
    pub(crate) fn next_request_time(&self) -> Option<Duration> {
        self.mode.as_port()?.next
    }

    /// Clears the time at which pacing allows more, before requests are tried again.
    pub(crate) fn clear_pacing_time(&mut self) {
        if let Some(port) = self.mode.as_port_mut() {
            port.next = None;
        }
    }
}

impl Flow {
    fn outstanding_bytes(&self) -> u64 {
        self.asked - self.received
    }

    /// Returns the number of bytes that should have arrived by now, if losses occur: they wait at this host, after a
    /// gap left by a lost byte. The sources' own reports of the loss come after the same gap, too late. Sets
    /// `port.next` to the time at which more bytes will be late.
    fn bytes_behind_gaps(flows: &[Self], port: &mut Port, now: Duration) -> u64 {
        if !port.has_recent_losses() {
            return 0;
        }
        let due = port.max_piece_time();
        let mut late = 0;
        for flow in flows {
            let on_time = flow.fetches.partition_point(|fetch| fetch.at.saturating_add(due) <= now);
            late += on_time.checked_sub(1).map_or(0, |last| flow.fetches[last].to - flow.received);
            let next = flow.fetches.get(on_time).map(|fetch| fetch.at.saturating_add(due));
            port.next = port.next.into_iter().chain(next).min();
        }
        late
    }

    /// Returns the source's part of the port's rate; `None` before it was measured.
    fn part_of_port(&self, port: &Port) -> Option<f64> {
        self.rate.map(|rate| rate / port.path.rate)
    }

    /// Returns whether the source does not keep up with the port.
    fn is_slow(&self, port: &Port) -> bool {
        self.part_of_port(port).is_some_and(|part| part < SLOW_RATE_PART)
    }

    /// Measures the rate of the source by the time from the first bytes of a fetch to its last ones, before `bytes` are
    /// counted as received. The time before the first bytes shows nothing: data of other sources were before them in the
    /// port. With other builders, the time between bytes of a fetch shows nothing either: the source's link carries
    /// those of the others.
    fn measure_rate(&mut self, port: &Port, bytes: u64, now: Duration) {
        if !port.alone || port.is_on_ramp() {
            return;
        }
        let received = self.received + bytes;
        let Some(fetch) = self.fetches.front().copied() else { return };
        if received < fetch.to {
            self.begun.get_or_insert((now, received));
            return;
        }
        let sample = self
            .begun
            .take()
            .map(|(began, before)| (fetch.to - before) as f64 / now.saturating_sub(began).as_secs_f64().max(1e-9));
        // The next fetch may have begun to arrive with the end of this one.
        if received > fetch.to {
            self.begun = Some((now, received));
        }
        let rate = match (sample, self.rate) {
            // After a loss, data wait for a repetition.
            (Some(sample), known) if port.has_recent_losses() => known.unwrap_or(port.path.rate).max(sample),
            (Some(sample), Some(known)) => sample.clamp(known * (1.0 - RATE_FALL), known * (1.0 + RATE_RISE)),
            (Some(sample), None) => sample,
            // Everything came at once.
            (None, known) => known.map_or(port.path.rate, |known| known * (1.0 + RATE_RISE)),
        };
        self.rate = Some(rate.min(port.path.rate));
    }
}

impl Port {
    fn new(path: Path, builders: u32) -> Self {
        let mut port = Self {
            path,
            alone: builders <= 1,
            round_trip: None,
            taken: 0.0,
            lost: None,
            ramp: 0.0,
            last_arrival: Duration::ZERO,
            tokens: 0.0,
            at: Duration::ZERO,
            round: Round::default(),
            rate: 0.0,
            next: None,
        };
        port.tokens = port.burst_bytes();
        port.ramp = port.ramp_start();
        port
    }

    /// Returns the start of the ramp: the bytes that the buffer takes at once. With other builders, a part of that: all
    /// begin at the same time, and not all sources are connected yet.
    fn ramp_start(&self) -> f64 {
        let part = if self.alone { 1.0 } else { RAMP_START_WITH_OTHERS };
        (part * Path::BUFFER_SHARE * self.path.buffer as f64).max(10.0 * self.segment_bytes() as f64)
    }

    fn is_on_ramp(&self) -> bool {
        self.ramp < self.widest_window()
    }

    /// Counts bytes that have arrived.
    fn count_arrival(&mut self, bytes: u64, now: Duration) {
        self.ramp = (self.ramp + bytes as f64).min(self.widest_window().max(self.ramp_start()));
        self.last_arrival = now;
        self.round.received += bytes;
    }

    fn credit_state(&self) -> CreditState {
        CreditState { window: self.window_bytes(), piece: self.piece_bytes(), round_trip: self.round_trip_time() }
    }

    fn segment_bytes(&self) -> u64 {
        u64::from(self.path.segment.max(1))
    }

    /// Returns τ: the measured value, or the configured one.
    fn round_trip_time(&self) -> Duration {
        self.round_trip.unwrap_or(self.path.round_trip)
    }

    /// Returns the longest time that the port can make a piece take.
    fn max_piece_time(&self) -> Duration {
        let queue = Path::BUFFER_SHARE * self.path.buffer as f64 + 2.0 * self.piece_bytes() as f64;
        self.round_trip_time().saturating_add(self.transfer_time_of(queue))
    }

    /// Returns whether losses were reported lately.
    fn has_recent_losses(&self) -> bool {
        self.lost.is_some_and(|at| self.last_arrival <= at.saturating_add(LOSSY_ROUND_TRIPS * self.round_trip_time()))
    }

    fn transfer_time_of(&self, bytes: f64) -> Duration {
        Duration::try_from_secs_f64(bytes / self.path.rate).unwrap_or(Duration::MAX)
    }

    /// Returns W while nothing is lost, in bytes.
    fn widest_window(&self) -> f64 {
        let widest = Path { round_trip: self.round_trip_time(), ..self.path }.widest_window_bytes() as f64;
        let less =
            if self.alone { 0.0 } else { (Path::BUFFER_SHARE - BUFFER_SHARE_WITH_OTHERS) * self.path.buffer as f64 };
        (widest - less).max(2.0 * self.piece_bytes() as f64)
    }

    /// Returns the narrowest useful window: less than two segments would be a stop-and-wait protocol.
    fn narrowest_window(&self) -> f64 {
        2.0 * self.segment_bytes() as f64
    }

    fn window_bytes(&self) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes in flight fit")]
        let window = (self.widest_window() - self.taken).min(self.ramp) as u64;
        window
    }

    /// Returns whether a piece does not fit into the window. With nothing outstanding, one always does.
    fn is_exceeded_by(&self, outstanding: u64, piece: u64) -> bool {
        outstanding > 0 && outstanding + piece > self.window_bytes()
    }

    fn piece_bytes(&self) -> u64 {
        let (shortest, longest) =
            (SHORTEST_PIECE * self.segment_bytes(), LONGEST_PIECE.max(SHORTEST_PIECE * self.segment_bytes()));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a buffer")]
        let piece = (Path::BUFFER_SHARE * self.path.buffer as f64
            / if self.alone { PIECES_IN_BUFFER } else { PIECES_WITH_OTHERS }) as u64;
        let piece = piece.clamp(shortest, longest);
        self.whole_segments(piece).max(shortest)
    }

    /// Returns a length of at least a segment, shortened so that the data and the message before them fill whole
    /// segments.
    fn whole_segments(&self, bytes: u64) -> u64 {
        let whole = bytes - bytes % self.segment_bytes();
        whole.max(self.segment_bytes()).saturating_sub(MESSAGE_LEN as u64).max(1)
    }

    fn burst_bytes(&self) -> f64 {
        (Path::BUFFER_SHARE / 4.0 * self.path.buffer as f64).max(self.segment_bytes() as f64)
    }

    /// Returns whether more may be requested at `now`.
    ///
    /// A token bucket: over any time *t* no more than `burst`, a piece, and (1 + haste)·C·*t* is requested. The window
    /// alone would request a whole C·τ at once at the beginning, and all of it would come back at once.
    fn may_request(&mut self, now: Duration) -> bool {
        // On the ramp, evenly over the round trip: a gap would come back in every round. It grows by 1.76 in each, kτ
        // of kτ = exp(-kτ) being 0.567.
        let ramp = match self.is_on_ramp() {
            true => self.ramp / self.round_trip_time().as_secs_f64().max(1e-9),
            false => f64::INFINITY,
        };
        let product = self.path.rate * self.round_trip_time().as_secs_f64();
        let haste = PACING_HEADROOM.min(Path::BUFFER_SHARE / 2.0 * self.path.buffer as f64 / product.max(1.0));
        let pace = ((1.0 + haste) * self.path.rate).min(ramp.max(1.0));
        self.tokens = (self.tokens + pace * now.saturating_sub(self.at).as_secs_f64()).min(self.burst_bytes());
        self.at = self.at.max(now);
        // The bucket may go into debt: waking up a little late then loses nothing.
        let lacks = -self.tokens;
        // Less than a byte is a rounding error, not worth a wait.
        if lacks < 1.0 {
            return true;
        }
        // One nanosecond more, so that the tokens suffice then.
        let wait = Duration::try_from_secs_f64(lacks / pace).unwrap_or(Duration::MAX);
        self.next = Some(now.saturating_add(wait).saturating_add(Duration::from_nanos(1)));
        false
    }

    /// Ends a round, once per round trip: computes the rate, and adapts the window to losses.
    fn end_round(&mut self, now: Duration) {
        let took = now.saturating_sub(self.round.began);
        if took < self.round_trip_time().max(SHORTEST_ROUND) {
            return;
        }
        let Round { received, sent, lost, .. } = self.round;
        self.rate = (received as f64 / took.as_secs_f64()).max(self.rate * (1.0 - 1.0 / 64.0));
        self.taken = match lost {
            0 => self.taken - self.segment_bytes() as f64,
            // Relative to all bytes that went through the port: the losses of one source reduce only its part of the
            // window.
            _ => self.taken + lost as f64 / sent.max(lost.saturating_add(received)) as f64 * self.window_bytes() as f64,
        };
        // If the window is below the path's capacity without a queue, this builder has no queue to reduce.
        let carries =
            self.rate.min(self.path.rate) * self.round_trip_time().as_secs_f64() + 2.0 * self.piece_bytes() as f64;
        let most = self.widest_window() - carries.max(self.narrowest_window());
        self.taken = self.taken.min(most).max(0.0);
        self.round = Round { began: now, ..Round::default() };
    }
}
