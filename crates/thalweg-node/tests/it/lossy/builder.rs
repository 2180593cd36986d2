//! A builder node: the real event builder, run control and links, wired as [`thalweg_node::BuilderNode`] wires them, in
//! virtual time and with a disk that is behind or fails when it is told to.

use super::{DEADLINE, Plan, RUN, TIMEOUT, id};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;
use thalweg_arena::{BlockPool, Span};
use thalweg_build::{Builder, BuilderConfig, Check, Fetch, Hold, Ledger, Path, Violation, Window};
use thalweg_control::{Cause, Command, Config, Facts, Order, RunControl, State, Tell};
use thalweg_link::{Address, BuilderEndpoint, Bytes, Eager, Endpoints, LinkError, Received};
use thalweg_store::BlockWriter;
use thalweg_wire::{Capabilities, EventId, Hello, Losses, Message, Refusal, TaiNanos, Welcome};

const ANSWER_TIME: Duration = Duration::from_secs(1);
const OPEN_EVENTS: u32 = 64;
const BLOCKS: u32 = 4;
const BLOCK_BYTES: usize = 32 << 10;
/// How long the disk takes for a block.
const WRITE_TIME: Duration = Duration::from_millis(3);

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) control: RunControl,
    pub(crate) builder: Builder,
    pub(crate) over: bool,
    /// No run began here.
    pub(crate) left: bool,
    pub(crate) aborted: bool,
    pub(crate) failed: bool,
    /// Where the run ends, as far as that is known.
    pub(crate) end: u64,
    pub(crate) states: Vec<State>,
    /// Since when it has been told to end.
    pub(crate) told: Option<Duration>,
    pub(crate) closed: BTreeSet<u64>,
    /// Sources that run control turned out, and that did not come back.
    pub(crate) expelled: Vec<(usize, String)>,
    pub(crate) sources: Vec<SourceState>,
    index: usize,
    endpoints: Endpoints<dyn BuilderEndpoint>,
    connections: Vec<Option<Connection>>,
    disk: Disk,
    stalled: bool,
    eager: Eager,
}

#[derive(Debug, Default)]
pub(crate) struct SourceState {
    pub(crate) connection: Option<usize>,
    session: Option<u64>,
    slots: u32,
    dismissed: bool,
}

#[derive(Debug)]
struct Connection {
    source: Option<usize>,
    fetching: usize,
    delivered: Duration,
    copied: u64,
    received: u64,
    losses: Losses,
}

/// Blocks, and what writes them.
#[derive(Debug)]
struct Disk {
    pool: BlockPool,
    filling: VecDeque<BlockWriter>,
    writing: VecDeque<(Duration, BlockWriter)>,
    stalled_until: Duration,
    failed: bool,
    /// The fragments, by event and source, in blocks that were not written.
    unwritten: Vec<(u64, usize)>,
}

struct Seen<'a>(&'a Builder, &'a [SourceState], &'a [Option<Connection>]);

impl Facts for Seen<'_> {
    fn offered_until(&self, source: usize) -> EventId {
        self.0.offered_until(source)
    }

    fn closed_until(&self) -> EventId {
        self.0.closed_until()
    }

    fn is_settled(&self, source: usize) -> bool {
        self.0.is_settled(source)
    }

    fn owes(&self, source: usize) -> bool {
        let connection = self.1[source].connection.and_then(|at| self.2[at].as_ref());
        connection.is_some_and(|connection| connection.fetching > 0 && self.0.in_flight_of(source) > 0)
    }

    fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl Node {
    pub(crate) fn new(index: usize, address: &Address, plan: &Plan) -> Self {
        let mut endpoints = Endpoints::<dyn BuilderEndpoint>::new().unwrap();
        endpoints.add(address, plan.eager).unwrap();
        let (sources, builders) = (plan.sources.len(), plan.builders as u32);
        let mut control = RunControl::new(Config {
            sources,
            builders,
            leads: index == 0,
            // Only the builder that leads is told to start.
            starts_alone: plan.starts_alone || index > 0,
            first: EventId(0),
            end: plan.events.map(EventId),
            duration: plan.duration,
            timeout: TIMEOUT,
        });
        control.configured();
        let path =
            Path { rate: 1e6, round_trip: 2 * plan.impairments.delay, buffer: 64 << 10, segment: 1280, unasked: 0 };
        let builder = Builder::new(BuilderConfig {
            run: RUN,
            builder: index as u32,
            builders,
            rank: (index as u32, builders),
            sources: (0..sources).map(|source| (id(source), format!("s{source}"))).collect(),
            level2: Vec::new(),
            first: EventId(0),
            window: if plan.credit { Window::Credit(path) } else { Window::Constant(32 << 10) },
            held: u64::MAX,
            deadline: DEADLINE,
            open_events: OPEN_EVENTS,
            max_payload: u32::MAX,
            check: Check::Payloads,
            hold: Hold::UntilArrived,
        });
        Self {
            control,
            builder,
            over: false,
            left: false,
            aborted: false,
            failed: false,
            end: plan.events.unwrap_or(u64::MAX),
            states: Vec::new(),
            told: None,
            closed: BTreeSet::new(),
            expelled: Vec::new(),
            sources: (0..sources).map(|_| SourceState::default()).collect(),
            index,
            endpoints,
            connections: Vec::new(),
            disk: Disk {
                pool: BlockPool::new("lossy", BLOCKS, BLOCK_BYTES).unwrap(),
                filling: VecDeque::new(),
                writing: VecDeque::new(),
                stalled_until: Duration::ZERO,
                failed: false,
                unwritten: Vec::new(),
            },
            stalled: false,
            eager: plan.eager,
        }
    }

    pub(crate) fn command(&mut self, command: Command, now: Duration) {
        let begun = self.control.state().has_begun();
        if self.control.command(command).is_ok() {
            self.aborted |= self.control.is_aborted();
            if begun && matches!(command, Command::Stop | Command::Abort) {
                self.told.get_or_insert(now);
            }
        }
    }

    pub(crate) fn disk_fails(&mut self, now: Duration) {
        if self.control.state().has_begun() && !self.over {
            self.told.get_or_insert(now);
            self.failed = true;
            self.disk.failed = true;
        }
    }

    pub(crate) fn disk_stalls(&mut self, until: Duration) {
        self.disk.stalled_until = self.disk.stalled_until.max(until);
    }

    pub(crate) fn ledger(&self) -> Ledger {
        // What was not closed is in another bucket.
        let mut unwritten = vec![0; self.sources.len()];
        self.disk
            .unwritten
            .iter()
            .filter(|(event, _)| self.closed.contains(event))
            .for_each(|(_, source)| unwritten[*source] += 1);
        self.builder.ledger(true, &unwritten, 0)
    }

    fn accept(&mut self, now: Duration) {
        while self.endpoints.accept(0, self.connections.len()).unwrap().is_some() {
            let (fetching, copied, received, losses) = (0, 0, 0, Losses::default());
            let connection = Connection { source: None, fetching, delivered: now, copied, received, losses };
            self.connections.push(Some(connection));
        }
    }

    pub(crate) fn turn(&mut self, now: Duration) {
        if self.over {
            return;
        }
        self.accept(now);
        let mut ready = Vec::new();
        self.endpoints.poll(now, &[], &mut ready);
        ready.iter().for_each(|index| self.serve(*index, now));
        self.disk.reap(now);
        self.pass_time(now);
        self.build(now);
        self.flush(now);
        if self.over {
            self.finish(now);
        }
    }

    pub(crate) fn next_time(&self, now: Duration) -> Option<Duration> {
        if self.over {
            return None;
        }
        let silence = self.control.state().has_begun().then(|| now + ANSWER_TIME / 4);
        let disk = self.disk.writing.front().map(|(at, _)| (*at).max(self.disk.stalled_until));
        let times =
            [self.builder.next_deadline(now), self.builder.next_ask(), self.endpoints.next_timeout(), silence, disk];
        times.into_iter().flatten().chain(self.control.next_time()).min()
    }

    fn pass_time(&mut self, now: Duration) {
        for index in 0..self.connections.len() {
            let Some(connection) = &self.connections[index] else { continue };
            let silent = now > connection.delivered + DEADLINE.max(ANSWER_TIME);
            if silent && connection.source.is_some_and(|source| self.owes(source)) {
                self.close(index, &LinkError::Closed, now);
            }
        }
        for source in self.builder.time(now) {
            self.give_up(source, now);
        }
        self.keep_in_control(now);
    }

    fn owes(&self, source: usize) -> bool {
        Seen(&self.builder, &self.sources, &self.connections).owes(source)
    }

    fn keep_in_control(&mut self, now: Duration) {
        if self.disk.failed {
            self.control.stop(Cause::Failure("the disk is full".into()));
        }
        self.control.time(now, &Seen(&self.builder, &self.sources, &self.connections));
        while let Some(order) = self.control.next_order() {
            self.obey(order, now);
        }
        self.hold_clock(now);
        self.note_state();
    }

    fn note_state(&mut self) {
        if self.states.last() != Some(&self.control.state()) {
            self.states.push(self.control.state());
        }
    }

    fn obey(&mut self, order: Order, now: Duration) {
        match order {
            Order::Begin => {
                self.builder = Builder::new(self.builder.config().clone());
                for (source, state) in self.sources.iter().enumerate().filter(|(_, s)| s.connection.is_some()) {
                    self.builder.connected(source, state.slots, false);
                }
                self.control.begun(now);
            }
            Order::Tell(source, tell) => self.tell(source, tell),
            Order::EndAt(end) => self.end = self.builder.end_at(end, now).0,
            Order::Expel(source, why) => {
                self.expelled.push((
                    source,
                    format!("{now:?}: {why}; {:?} {:?}", self.builder.progress_of(source), self.control),
                ));
                self.sources[source].session = None;
                self.give_up(source, now);
            }
            Order::Abandon => {
                self.builder.abandon(now);
                self.refuse_all(now);
            }
            Order::Close => self.over = true,
            Order::Leave(_) => {
                self.refuse_all(now);
                (self.over, self.left) = (true, true);
            }
        }
    }

    fn refuse_all(&mut self, now: Duration) {
        for index in 0..self.connections.len() {
            self.close(index, &LinkError::Refused { reason: Refusal::Ended, text: "over".into() }, now);
        }
    }

    fn tell(&mut self, source: usize, tell: Tell) {
        let message = match tell {
            Tell::Start => Message::Start { run: RUN, first: EventId(0), at: TaiNanos(0) },
            Tell::Pause => Message::Pause,
            Tell::StopAt(end) => Message::StopAt { end },
        };
        if let Some(link) = self.sources[source].connection.and_then(|at| self.endpoints.link_mut(at)) {
            link.send(&message);
        }
    }

    fn build(&mut self, now: Duration) {
        if !self.control.state().has_begun() {
            return;
        }
        loop {
            self.write_down();
            self.disk.send_on(now, false);
            let Some(fetch) = self.builder.next_fetch(now) else {
                self.go_on(now);
                break;
            };
            if !self.fetch(fetch, now) {
                break;
            }
        }
    }

    fn write_down(&mut self) {
        while self.disk.has_block() {
            let Some(closed) = self.builder.next_closed() else { return };
            let stride = u64::from(self.builder.config().builders);
            for event in (0..u64::from(closed.count)).map(|i| closed.first.0 + i * stride) {
                assert!(self.closed.insert(event), "event {event} was closed twice");
            }
        }
    }

    fn fetch(&mut self, fetch: Fetch, now: Duration) -> bool {
        if fetch.range.start > 0 {
            return self.extend_fetch(Some(fetch), now);
        }
        let Fetch { source, offer, range } = fetch;
        let begins_to_owe = self.begins_to_owe(source, &range);
        let Some(index) = self.sources[source].connection else {
            self.builder.unfetch(source, offer.ticket);
            return false;
        };
        let Some(place) = self.disk.reserve(offer.bytes as usize, offer.count) else {
            self.builder.unfetch(source, offer.ticket);
            self.stalled = true;
            self.hold_clock(now);
            let more = self.builder.next_piece(now);
            return self.extend_fetch(more, now);
        };
        self.go_on(now);
        let (Some(connection), Some(link)) = (&mut self.connections[index], self.endpoints.link_mut(index)) else {
            return false;
        };
        if begins_to_owe || connection.fetching == 0 {
            connection.delivered = now;
        }
        let result = match link.begin_fetch(&offer, Some(place), range.end) {
            Ok(Some(bytes)) => self.arrived(source, offer.ticket, bytes),
            Ok(None) => {
                connection.fetching += 1;
                Ok(())
            }
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            self.close(index, &error, now);
        }
        true
    }

    fn go_on(&mut self, now: Duration) {
        if std::mem::take(&mut self.stalled) {
            self.hold_clock(now);
        }
    }

    fn extend_fetch(&mut self, more: Option<Fetch>, now: Duration) -> bool {
        let Some(Fetch { source, offer, range }) = more else { return false };
        let begins_to_owe = self.begins_to_owe(source, &range);
        if let Some(index) = self.sources[source].connection
            && let (Some(connection), Some(link)) = (&mut self.connections[index], self.endpoints.link_mut(index))
        {
            link.extend_fetch(offer.ticket, range.end);
            connection.delivered = if begins_to_owe { now } else { connection.delivered };
        }
        true
    }

    fn begins_to_owe(&self, source: usize, range: &Range<u32>) -> bool {
        self.builder.in_flight_of(source) <= u64::from(range.end - range.start)
    }

    fn hold_clock(&mut self, now: Duration) {
        self.builder.stalled(self.stalled || self.control.holds_sources(), now);
        self.control.held_up(self.stalled && !self.disk.failed);
    }

    fn flush(&mut self, now: Duration) {
        for (index, connection) in self.connections.iter().enumerate() {
            let Some(source) = connection.as_ref().and_then(|connection| connection.source) else { continue };
            let Some(link) = self.endpoints.link_mut(index) else { continue };
            if let Some(below) = self.builder.release(source) {
                link.release(below);
            }
            let state = &mut self.sources[source];
            let begun = self.control.state().has_begun();
            if begun && !state.dismissed && self.builder.has_ended(source) && self.builder.is_settled(source) {
                state.dismissed = true;
                link.send(&Message::Bye);
            }
        }
        let mut broken = Vec::new();
        self.endpoints.flush(now, &mut broken);
        broken.iter().for_each(|(index, error)| self.close(*index, error, now));
    }

    /// What is built goes to disk, and the process ends.
    fn finish(&mut self, now: Duration) {
        self.disk.reap(Duration::MAX);
        self.write_down();
        assert!(self.disk.filling.iter().all(|block| !block.is_busy()), "a place is still waited for");
        self.disk.send_on(now, true);
        self.disk.reap(Duration::MAX);
        self.sources.iter_mut().for_each(|source| source.connection = None);
        self.connections.clear();
        self.endpoints = Endpoints::new().unwrap();
        self.control.closed();
        self.note_state();
    }

    fn serve(&mut self, index: usize, now: Duration) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        let mut said = Vec::new();
        let result = self.endpoints.receive(index, &mut said);
        let Some(link) = self.endpoints.link(index) else { return };
        let copied = link.copied();
        if copied != connection.copied {
            (connection.copied, connection.delivered) = (copied, now);
        }
        if let Some(source) = connection.source {
            let (received, losses) = (link.received(), link.losses());
            if received != connection.received {
                self.builder.received(source, received - connection.received, now);
                connection.received = received;
            }
            let before = std::mem::replace(&mut connection.losses, losses);
            if losses != before {
                self.builder.losses(source, losses.sent - before.sent, losses.again - before.again);
            }
        }
        for said in said {
            if let Err(error) = self.on_message(index, said, now) {
                self.close(index, &error, now);
                return;
            }
        }
        if let Err(error) = result {
            self.close(index, &error, now);
        }
    }

    fn on_message(&mut self, index: usize, said: Received, now: Duration) -> Result<(), LinkError> {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return Ok(()) };
        let Some(source) = connection.source else {
            return match said {
                Received::Hello(hello, _) => self.greet(index, hello, now),
                other => panic!("before the hello: {other:?}"),
            };
        };
        match said {
            Received::Arrived { ticket, bytes } => {
                connection.fetching = connection.fetching.saturating_sub(1);
                self.arrived(source, ticket, bytes)?;
            }
            Received::Message(Message::Offer(offer)) => {
                if !self.control.state().has_begun() {
                    return Err(LinkError::Protocol("an offer before the start of the run".into()));
                }
                if self.builder.offered(source, offer, now).map_err(violation)? {
                    connection.fetching = connection.fetching.saturating_sub(1);
                    self.endpoints.link_mut(index).unwrap().cancel(offer.ticket);
                }
            }
            Received::Message(Message::Paused { next, asked_by }) => self.control.paused(source, next, asked_by),
            Received::Message(Message::Told { end }) => self.control.relayed(source, end),
            Received::Message(Message::End(accounts)) => {
                self.builder.ended(source, accounts).map_err(violation)?;
                self.control.ended(source);
            }
            other => panic!("a source said {other:?}"),
        }
        Ok(())
    }

    fn arrived(&mut self, source: usize, ticket: u64, bytes: Bytes) -> Result<(), LinkError> {
        let Bytes::Place(span) = bytes else { panic!("a link of datagrams maps nothing") };
        let builder = &mut self.builder;
        let mut result = Ok(());
        self.disk.filled(span, |bytes, enter| {
            result = builder.arrived(source, ticket, bytes, |offset, header| enter(header.event, id(source), offset));
        });
        result.map_err(violation)
    }

    fn greet(&mut self, index: usize, hello: Hello, now: Duration) -> Result<(), LinkError> {
        let source = self.builder.source_index(hello.source).unwrap();
        let running = self.control.state().has_begun();
        if running && self.sources[source].session != Some(hello.session) {
            return Err(LinkError::Refused { reason: Refusal::Ended, text: "the run is under way".into() });
        }
        if let Some(old) = self.sources[source].connection {
            self.close(old, &LinkError::Closed, now);
        }
        let released_below = self.builder.connected(source, hello.slots, false);
        let state = &mut self.sources[source];
        (state.connection, state.session, state.slots) = (Some(index), Some(hello.session), hello.slots);
        let records = u64::from(OPEN_EVENTS) * u64::from(self.builder.config().builders);
        self.control.greeted(source, u64::from(hello.slots) * records);
        let (Some(connection), Some(link)) = (&mut self.connections[index], self.endpoints.link_mut(index)) else {
            return Ok(());
        };
        connection.source = Some(source);
        link.send(&Message::Welcome(Welcome {
            run: RUN,
            eager_credit: self.eager.credit,
            eager_limit: self.eager.limit,
            most_records: OPEN_EVENTS,
            running,
            released_below,
            capabilities: hello.capabilities & Capabilities::KNOWN,
        }));
        for tell in self.control.told(source) {
            self.tell(source, tell);
        }
        Ok(())
    }

    fn give_up(&mut self, source: usize, now: Duration) {
        self.builder.give_up(source, now);
        self.control.given_up(source);
        if let Some(index) = self.sources[source].connection {
            self.close(index, &LinkError::Refused { reason: Refusal::Ended, text: "given up".into() }, now);
        }
    }

    pub(crate) fn close(&mut self, index: usize, error: &LinkError, now: Duration) {
        let Some(connection) = self.connections[index].take() else { return };
        assert!(
            !error.is_violation(),
            "source {:?} broke the rules at builder {}: {error}",
            connection.source,
            self.index
        );
        if let LinkError::Refused { reason, text } = error {
            self.endpoints.link_mut(index).unwrap().refuse(*reason, text);
        }
        self.endpoints.close(index);
        let Some(source) = connection.source else { return };
        self.sources[source].connection = None;
        self.control.left(source);
        if !self.sources[source].dismissed && self.control.state().has_begun() {
            self.builder.gone(source, now);
        }
    }
}

impl Disk {
    fn has_block(&mut self) -> bool {
        !self.filling.is_empty() || self.open().is_some()
    }

    fn open(&mut self) -> Option<()> {
        self.filling.push_back(BlockWriter::new(self.pool.take()?));
        Some(())
    }

    fn reserve(&mut self, len: usize, fragments: u32) -> Option<Span> {
        if let Some(span) = self.filling.back_mut().and_then(|block| block.reserve(len, fragments)) {
            return Some(span);
        }
        self.open()?;
        self.filling.back_mut().and_then(|block| block.reserve(len, fragments))
    }

    fn filled(&mut self, span: Span, enter: impl FnOnce(&[u8], &mut dyn FnMut(EventId, thalweg_wire::SourceId, u32))) {
        let Some(block) = self.filling.iter_mut().rev().find(|block| block.owns(&span)) else { return };
        let base = block.position(&span);
        enter(&span, &mut |event, source, offset| block.enter(event, source, base + offset));
    }

    fn send_on(&mut self, now: Duration, all: bool) {
        while self.filling.front().is_some_and(|block| !block.is_busy()) && (all || self.filling.len() > 1) {
            let Some(block) = self.filling.pop_front() else { return };
            match self.failed {
                true => self.take_back(block),
                false => self.writing.push_back((now + WRITE_TIME, block)),
            }
        }
    }

    fn reap(&mut self, now: Duration) {
        while self.writing.front().is_some_and(|(at, _)| now >= (*at).max(self.stalled_until)) {
            let Some((_, block)) = self.writing.pop_front() else { return };
            match self.failed {
                true => self.take_back(block),
                false => self.pool.give_back(block.into_block()),
            }
        }
    }

    /// A block that was not written.
    fn take_back(&mut self, block: BlockWriter) {
        let fragments = block.fragments().iter();
        self.unwritten.extend(fragments.map(|fragment| (fragment.event.0, fragment.source.element() as usize)));
        self.pool.give_back(block.into_block());
    }
}

fn violation(violation: Violation) -> LinkError {
    LinkError::Protocol(violation.to_string())
}
