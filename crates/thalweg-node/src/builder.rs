//! A builder node: it listens for sources, asks for what they offer, builds events, and hands them to the recorder.

mod connections;
mod trigger;

use crate::blocks::{Blocks, Sent};
use crate::source::settle;
use crate::{
    BuilderNodeConfig, BuilderReport, Calibration, CheckConfig, Completion, CreditReport, NodeError, Progress,
    RunConfig, Snapshot, Steady, Stop, TaiClock, Topology, TriggerReport, Urgency, calibration, clock, now,
};
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::Duration;
use thalweg_arena::{BlockPool, Pages};
use thalweg_build::{Builder, BuilderConfig, Check, Fetch, Found, Hold, Window};
use thalweg_link::{Address, BuilderLink, Eager, Interest, LinkError, Listener, Poller};
use thalweg_store::{EventCounts, Recorder, RecorderConfig, RunBegin, RunEnd, RunState, SourceInfo};
use thalweg_wire::{EventId, Losses, Message, Refusal, RunNumber, SourceId, TaiNanos};
use trigger::Trigger;

/// A connection that has not said who it is after this time is closed.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// A source that owes bytes and sends none for this time, or for the deadline where that is longer, is cut off. Three
/// losses in a row make TCP wait for nearly as long.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Connections that have not said who they are.
const MOST_STRANGERS: usize = 64;
/// For how long nobody is let in after that failed.
const DEAF: Duration = Duration::from_secs(1);
/// How often to look at what only time can change.
const TICK: Duration = Duration::from_millis(100);

/// A receive buffer is so many times the window: what comes behind a gap stays in it until the gap is filled, a round trip later, or two where
/// it is lost once more, and meanwhile as much again is asked for.
const GAPS: u64 = 4;
const STOP: u64 = u64::MAX;
const RECORDER: u64 = u64::MAX - 1;
const LISTENER: u64 = 1 << 32;

/// A builder that listens.
#[derive(Debug)]
pub struct BuilderNode {
    config: BuilderNodeConfig,
    run_config: RunConfig,
    configuration: serde_json::Value,
    index: u32,
    count: u32,
    ids: Vec<(SourceId, String)>,
    builder: Builder,
    blocks: Blocks,
    /// Where fragments wait for a decision; nothing where none is made.
    trigger: Option<Trigger>,
    pages: Pages,
    listeners: Vec<Listener>,
    /// Listeners that are not listened to, and until when.
    deaf: Vec<(usize, Duration)>,
    poller: Poller,
    connections: Vec<Option<Connection>>,
    sources: Vec<SourceState>,
    clock: TaiClock,
    phase: Phase,
    run: RunNumber,
    first: EventId,
    /// The event the run ends in front of, once that is known.
    end: Option<EventId>,
    began: TaiNanos,
    began_at: Duration,
    unknown_sources: u64,
    copied_before: u64,
    /// No block was free when one was last needed; and since when it is the disk that has them.
    stalled: bool,
    stalled_at: Option<Duration>,
    shown: Snapshot,
    reasons: Vec<String>,
    recorder_rung: Option<String>,
    eager: Eager,
    /// What was built when the warm-up was over, and when that was.
    warm: Option<Built>,
    steady: Option<Steady>,
    /// What sources said of losses, over connections that are no more.
    losses_before: Losses,
}

/// What was built so far.
#[derive(Debug, Clone, Copy)]
struct Built {
    at: Duration,
    events: u64,
    bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Until all sources are there.
    Gathering {
        since: Duration,
    },
    Running,
    /// Sources have been asked how far they are.
    Pausing {
        since: Duration,
    },
    /// Every source knows where to end.
    Ending {
        since: Duration,
    },
}

#[derive(Debug)]
struct Connection {
    link: Box<dyn BuilderLink>,
    interest: Interest,
    peer: String,
    source: Option<usize>,
    since: Duration,
    /// When something was last said.
    heard: Duration,
    /// Fetches under way, when a part of what they ask for last came, and how much had come by then.
    fetching: usize,
    delivered: Duration,
    copied: u64,
    /// What it had brought, and what was known of losses, when we last looked.
    received: u64,
    losses: Losses,
    more: bool,
}

/// What is known of a source beside its books.
#[derive(Debug, Default)]
struct SourceState {
    connection: Option<usize>,
    session: Option<u64>,
    slots: u32,
    slot_bytes: u32,
    description: serde_json::Value,
    paused_at: Option<EventId>,
    dismissed: bool,
}

impl BuilderNode {
    /// Opens everything that can be opened before the sources come: memory, addresses, the directory.
    pub fn new(topology: &Topology, name: &str) -> Result<Self, NodeError> {
        let position = topology.builders.iter().position(|builder| builder.name == name);
        let index = position.ok_or_else(|| NodeError::Config(format!("there is no builder '{name}'")))?;
        let config = topology.builders[index].clone();
        let sources: Vec<(SourceId, String)> =
            topology.sources.iter().map(|source| (source.source_id(), source.name.clone())).collect();
        let (window, eager) = match topology.run.calibrate {
            true => (config.search(), 0),
            false => config.credit(sources.len()),
        };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "checked: builders are few, eager credit is at most 64 MiB"
        )]
        let (index, count, eager) = (
            index as u32,
            topology.builders.len() as u32,
            Eager { credit: eager as u32, limit: config.eager_limit.0.min(eager) as u32 },
        );
        let poller = Poller::new()?;
        if count > 1 && topology.run.record && topology.run.number.is_none() {
            return Err(NodeError::Config(
                "run.number: several builders record one run, so it needs a number that all of them know".into(),
            ));
        }
        let mut listeners = Vec::new();
        for address in &config.listen {
            let listener = Listener::open(address, eager).map_err(|error| {
                NodeError::Config(format!("{error}; end what listens there, or choose another address for `listen`"))
            })?;
            if let Window::Credit(path) = window {
                let _ = listener.expect(GAPS * path.widest()).map_err(|what| tracing::info!(%address, "{what}"));
            }
            poller.add(listener.as_fd(), LISTENER + listeners.len() as u64, Interest::READ)?;
            listeners.push(listener);
        }
        if topology.run.record {
            check_directory(&topology.run.directory)?;
        }
        let block_bytes = usize::try_from(config.block.0).unwrap_or(usize::MAX);
        let blocks = config.blocks_for(&window);
        let pool = BlockPool::new(&config.name, blocks, block_bytes)?;
        let pages = pool.pages();
        tracing::info!(builder = name, blocks, block_bytes, "blocks made of {pages}");
        let start = now();
        let builder = Builder::new(Self::builder_config(&config, &topology.run, index, count, sources.clone(), window));
        let trigger = config.has_trigger().then(|| Trigger::new(&config, count, topology.run.record));
        if let Some(credit) = builder.credit() {
            let (window, piece) = (credit.window, credit.piece);
            tracing::info!(builder = name, window, piece, ?eager, "asks by credit");
        }
        Ok(Self {
            blocks: Blocks::new(pool, count),
            trigger,
            pages,
            sources: sources.iter().map(|_| SourceState::default()).collect(),
            configuration: serde_json::to_value(topology).unwrap_or_default(),
            run_config: topology.run.clone(),
            ids: sources,
            connections: Vec::new(),
            clock: TaiClock::probe(),
            phase: Phase::Gathering { since: start },
            run: RunNumber(0),
            first: EventId(0),
            end: None,
            began: TaiNanos(0),
            began_at: start,
            unknown_sources: 0,
            copied_before: 0,
            stalled: false,
            stalled_at: None,
            shown: Snapshot::default(),
            reasons: Vec::new(),
            recorder_rung: None,
            eager,
            warm: None,
            steady: None,
            losses_before: Losses::default(),
            config,
            index,
            count,
            builder,
            listeners,
            deaf: Vec::new(),
            poller,
        })
    }

    fn builder_config(
        config: &BuilderNodeConfig,
        run_config: &RunConfig,
        index: u32,
        count: u32,
        sources: Vec<(SourceId, String)>,
        window: Window,
    ) -> BuilderConfig {
        let is_mapped = |address: &Address| matches!(address, Address::Shm(_));
        let asked_first = |name: &String| config.level2.as_ref().is_some_and(|level2| level2.sources.contains(name));
        // Where nothing is copied, a slot is needed until its event is handed over.
        let in_place = match config.has_trigger() {
            true => config.listen.iter().any(is_mapped),
            false => config.listen.iter().all(is_mapped) && !run_config.record,
        };
        BuilderConfig {
            level2: (0..sources.len()).filter(|source| asked_first(&sources[*source].1)).collect(),
            run: RunNumber(0),
            builder: index,
            builders: count,
            sources,
            first: EventId(0),
            window,
            deadline: config.deadline,
            open_events: config.open_events,
            max_payload: u32::MAX,
            check: match config.check {
                CheckConfig::Header => Check::Headers,
                CheckConfig::Payload => Check::Payloads,
            },
            hold: if in_place { Hold::UntilClosed } else { Hold::UntilArrived },
        }
    }

    /// Where it listens, with the ports the system chose.
    pub fn addresses(&self) -> Vec<Address> {
        self.listeners.iter().map(Listener::address).collect()
    }

    /// Runs until the run is over and on disk.
    pub fn run(mut self, stop: &Stop, progress: &Progress) -> Result<BuilderReport, NodeError> {
        settle(self.config.cpu)?;
        self.poller.add(stop.as_fd(), STOP, Interest::READ)?;
        let mut tokens = Vec::new();
        loop {
            tokens.clear();
            // A link that stopped in the middle goes on, whether or not something new has come.
            let more = self.connections.iter().enumerate();
            tokens.extend(more.filter(|(_, c)| c.as_ref().is_some_and(|c| c.more)).map(|(index, _)| index as u64));
            let busy = tokens.len();
            let timeout = if busy > 0 { Some(Duration::ZERO) } else { self.timeout(now()) };
            self.poller.wait(timeout, |token| {
                if !tokens[..busy].contains(&token) {
                    tokens.push(token);
                }
            })?;
            for token in &tokens {
                match *token {
                    STOP => self.heed(stop)?,
                    RECORDER => {}
                    token if token >= LISTENER => {
                        self.accept(usize::try_from(token - LISTENER).unwrap_or(usize::MAX))?
                    }
                    token => self.serve(usize::try_from(token).unwrap_or(usize::MAX)),
                }
            }
            self.blocks.reap();
            self.pass_time()?;
            self.build()?;
            self.flush()?;
            self.show(progress);
            if self.is_done() {
                return self.finish(progress);
            }
        }
    }

    fn heed(&mut self, stop: &Stop) -> Result<(), NodeError> {
        stop.clear();
        match (stop.urgency(), self.phase) {
            (Urgency::None, _) => Ok(()),
            (Urgency::Clean, Phase::Gathering { .. }) | (Urgency::AtOnce, _) => {
                self.refuse_all(Refusal::Ended, "the builder was stopped");
                Err(NodeError::Stopped)
            }
            (Urgency::Clean, _) => {
                self.begin_to_stop();
                Ok(())
            }
        }
    }

    fn refuse_all(&mut self, reason: Refusal, text: &str) {
        for connection in self.connections.iter_mut().flatten() {
            connection.link.refuse(reason, text);
        }
    }

    fn timeout(&self, now: Duration) -> Option<Duration> {
        let deadline = self.builder.next_deadline(now);
        let pace = self.builder.next_ask();
        let flush = self.blocks.next_flush(self.config.flush);
        let running = self.phase == Phase::Running;
        let duration = self.run_config.duration.filter(|_| running).map(|d| self.began_at + d);
        let warm = (running && self.warm.is_none()).then(|| self.began_at + self.run_config.warm_up);
        // What only time changes: strangers, silence, patience. While a run just runs, there is none of it to watch
        // more closely than the answer time.
        let watch = match self.phase {
            Phase::Running if self.connections.iter().flatten().all(|c| c.source.is_some()) => {
                now + self.answer_time() / 4
            }
            _ => now + TICK,
        };
        let deaf = self.deaf.iter().map(|(_, until)| *until).min();
        [deadline, pace, flush, duration, warm, deaf, Some(watch)]
            .into_iter()
            .flatten()
            .min()
            .map(|at| at.saturating_sub(now))
    }

    fn pass_time(&mut self) -> Result<(), NodeError> {
        let now = now();
        while let Some(position) = self.deaf.iter().position(|(_, until)| *until <= now) {
            let (at, _) = self.deaf.swap_remove(position);
            self.poller.add(self.listeners[at].as_fd(), LISTENER + at as u64, Interest::READ)?;
        }
        for index in 0..self.connections.len() {
            let Some(connection) = &self.connections[index] else { continue };
            match connection.source {
                None if now > connection.since + GREETING_TIME => {
                    self.close(index, &LinkError::Protocol("it did not say who it is".into()));
                }
                Some(source) if self.owes(source, connection) && now > connection.delivered + self.answer_time() => {
                    let (source, peer) = (&self.ids[source].1, &connection.peer);
                    tracing::warn!(source, peer, "connection cut: the source owes data and is silent");
                    // A hung source may come to life again: that is not a breach of the rules.
                    self.close(index, &LinkError::Closed);
                }
                _ => {}
            }
        }
        match self.phase {
            Phase::Gathering { since } => {
                if self.sources.iter().all(|source| source.connection.is_some()) {
                    return self.start();
                }
                if now > since + self.run_config.patience {
                    let absent: Vec<String> = (0..self.ids.len())
                        .filter(|source| self.sources[*source].connection.is_none())
                        .map(|source| format!("{} ({})", self.ids[source].0, self.ids[source].1))
                        .collect();
                    self.refuse_all(Refusal::Ended, "other sources did not come");
                    return Err(NodeError::Absent(format!(
                        "these sources did not connect within {}: {}",
                        humantime::format_duration(self.run_config.patience),
                        absent.join(", ")
                    )));
                }
            }
            Phase::Running => {
                if self.warm.is_none() && now >= self.began_at + self.run_config.warm_up {
                    self.warm = Some(self.built(now));
                    self.builder.forget_completions();
                }
                if self.run_config.duration.is_some_and(|duration| now >= self.began_at + duration)
                    || self.builder.found().is_some()
                    || self.blocks.failure.is_some()
                {
                    self.begin_to_stop();
                }
            }
            Phase::Pausing { since } => {
                // One that is away will be told when it comes back.
                let waits = |source: usize| {
                    let state = &self.sources[source];
                    state.connection.is_some() && state.paused_at.is_none() && !self.is_out(source)
                };
                let patience = self.run_config.patience.min(self.answer_time());
                if !(0..self.sources.len()).any(waits) || now > since + patience {
                    self.stop_at();
                }
            }
            Phase::Ending { since } => {
                for source in 0..self.sources.len() {
                    let heard = self.sources[source]
                        .connection
                        .and_then(|index| self.connections[index].as_ref())
                        .map(|c| c.heard);
                    let silent = heard.is_none_or(|heard| now > heard.max(since) + self.run_config.patience);
                    if silent && now > since + self.run_config.patience && !self.is_out(source) {
                        tracing::warn!(source = self.ids[source].1, "given up: it did not end its books");
                        self.builder.give_up(source, now);
                    }
                }
            }
        }
        for source in self.builder.time(now) {
            tracing::warn!(source = self.ids[source].1, "given up: it did not come back");
        }
        Ok(())
    }

    /// How long a source may owe bytes without sending any.
    fn answer_time(&self) -> Duration {
        self.config.deadline.max(ANSWER_TIME)
    }

    /// Whether a source was asked for something that has not come.
    fn owes(&self, source: usize, connection: &Connection) -> bool {
        connection.fetching > 0 && (connection.link.maps() || self.builder.in_flight_of(source) > 0)
    }

    /// Whether a source has ended or was given up.
    fn is_out(&self, source: usize) -> bool {
        self.builder.has_ended(source) || self.builder.is_given_up(source)
    }

    fn start(&mut self) -> Result<(), NodeError> {
        self.began = self.clock.now();
        let mut run = self.run_config.number;
        if self.run_config.record {
            let sources = self.ids.iter().zip(&self.sources).map(|((id, name), state)| SourceInfo {
                id: *id,
                name: name.clone(),
                description: state.description.clone(),
            });
            let begin = RunBegin {
                began: self.began,
                tai_utc_offset: self.clock.offset(),
                program: "thalweg".into(),
                version: env!("CARGO_PKG_VERSION").into(),
                sources: sources.collect(),
                configuration: self.configuration.clone(),
            };
            let config = RecorderConfig {
                directory: self.run_config.directory.clone(),
                run: run.map(RunNumber),
                builder: self.index,
                builders: self.count,
                segment_bytes: self.config.segment.0,
                begin,
                ..RecorderConfig::default()
            };
            let recorder = match Recorder::create(config, self.blocks.pool_mut()) {
                Ok(recorder) => recorder,
                Err(error) => {
                    self.refuse_all(Refusal::Ended, &format!("the run could not be opened: {error}"));
                    return Err(error.into());
                }
            };
            self.poller.add(recorder.as_fd(), RECORDER, Interest::READ)?;
            run = Some(recorder.run().0);
            self.recorder_rung = Some(recorder.rung().to_string());
            tracing::info!(run, path = %recorder.path().display(), "recording by {}", recorder.rung());
            self.blocks.record_to(recorder.run(), Some(recorder));
        }
        self.run = RunNumber(run.unwrap_or(0));
        if let Some(trigger) = &mut self.trigger {
            trigger.set_aside(&self.config, &self.sources)?;
        }
        let config = BuilderConfig { run: self.run, ..self.builder.config().clone() };
        self.builder = Builder::new(config);
        self.phase = Phase::Running;
        self.began_at = now();
        self.end = self.run_config.events.map(|events| EventId(self.first.0.saturating_add(events)));
        for source in 0..self.sources.len() {
            if self.sources[source].connection.is_some() {
                self.builder.connected(source, self.sources[source].slots, self.is_near(source));
                self.instruct(source);
            }
        }
        Ok(())
    }

    /// Tells a source all that it has to know of the run so far. Said again, it does no harm. Where to end is the first
    /// builder's to say: the others see the sources end.
    fn instruct(&mut self, source: usize) {
        let Some(connection) = self.sources[source].connection.and_then(|at| self.connections[at].as_mut()) else {
            return;
        };
        let started = !matches!(self.phase, Phase::Gathering { .. });
        let pausing = matches!(self.phase, Phase::Pausing { .. });
        let leads = self.index == 0;
        let orders = [
            started.then_some(Message::Start { run: self.run, first: self.first, at: self.began }),
            self.end.filter(|_| leads).map(|end| Message::StopAt { end }),
            (leads && pausing).then_some(Message::Pause),
        ];
        for order in orders.iter().flatten() {
            connection.link.say(order);
        }
    }

    /// Whether a source shares this host's memory.
    fn is_near(&self, source: usize) -> bool {
        let connection = self.sources[source].connection.and_then(|at| self.connections[at].as_ref());
        connection.is_some_and(|connection| connection.link.maps())
    }

    fn built(&self, at: Duration) -> Built {
        Built { at, events: self.builder.counts().0, bytes: self.builder.progress_counts().0 }
    }

    /// What was done since the warm-up.
    fn steady(&self) -> Steady {
        let Some(warm) = self.warm else { return Steady::default() };
        let built = self.built(now());
        let completion = self.builder.completion();
        let micros = |nanos: u64| nanos as f64 / 1e3;
        Steady {
            seconds: (built.at - warm.at).as_secs_f64(),
            // The event filter may have rejected some of the events that were there then.
            events: built.events.saturating_sub(warm.events),
            payload_bytes: built.bytes - warm.bytes,
            completion: Completion {
                p50_us: micros(completion.value_at_quantile(0.5)),
                p99_us: micros(completion.value_at_quantile(0.99)),
                max_us: micros(completion.max()),
            },
        }
    }

    /// Keeps what the link was found to carry.
    fn calibration(&self, found: &Found) -> Result<Calibration, NodeError> {
        let link = calibration::link(found, self.config.link.map_or(1500, |link| link.mtu));
        let config = BuilderNodeConfig { window: None, link: Some(link), ..self.config.clone() };
        let window_bytes = match config.credit(self.ids.len()).0 {
            Window::Credit(path) => path.widest(),
            Window::Constant(bytes) | Window::Search { most: bytes, .. } => bytes,
        };
        let file = calibration::keep(&self.config.listen, &link)?.display().to_string();
        Ok(Calibration { builder: self.config.name.clone(), link, lost: found.lost, window_bytes, file })
    }

    /// Asks every source how far it is. Only the first builder does: the others see the sources end.
    fn begin_to_stop(&mut self) {
        if self.phase != Phase::Running {
            return;
        }
        self.steady = Some(self.steady());
        self.phase = Phase::Pausing { since: now() };
        self.hold_clock(now());
        if self.index == 0 {
            self.say_to_all(&Message::Pause);
        }
    }

    /// Tells every source to go on up to the same event.
    fn stop_at(&mut self) {
        self.phase = Phase::Ending { since: now() };
        self.hold_clock(now());
        let furthest = self.sources.iter().filter_map(|source| source.paused_at).max();
        let end = furthest.unwrap_or_default().max(self.builder.highest_mentioned());
        self.end = Some(end);
        if self.index == 0 {
            self.say_to_all(&Message::StopAt { end });
        }
    }

    fn say_to_all(&mut self, message: &Message) {
        for connection in self.connections.iter_mut().flatten() {
            if connection.source.is_some() {
                connection.link.say(message);
            }
        }
    }

    /// Asks for as much as there is room for, writes down what is closed, and sends on what is full.
    fn build(&mut self) -> Result<(), NodeError> {
        if matches!(self.phase, Phase::Gathering { .. }) {
            return Ok(());
        }
        let mono = now();
        let tai = self.clock.now();
        loop {
            if let Some(trigger) = &mut self.trigger {
                trigger.decide(&mut self.builder);
            }
            self.write_down(tai, mono);
            self.blocks.send_on(tai, mono, self.config.flush, false);
            if !self.fetch(mono) {
                break;
            }
        }
        Ok(())
    }

    /// Writes down what is closed, as far as there are blocks for it. The rest stays with the event builder, which opens
    /// no more events while too many closed ones wait.
    fn write_down(&mut self, tai: TaiNanos, mono: Duration) {
        loop {
            self.blocks.write_closings(&self.ids, tai, mono);
            if self.blocks.has_closings() {
                return;
            }
            let Some(trigger) = &mut self.trigger else {
                let Some(closed) = self.builder.next_closed() else { return };
                self.blocks.close(closed);
                continue;
            };
            if trigger.has_accepted() {
                if !trigger.copy(&mut self.blocks, &self.ids, mono) {
                    self.stall(mono);
                    return;
                }
                self.go_on(mono);
                continue;
            }
            let Some(closed) = self.builder.next_closed() else { return };
            trigger.filter(&mut self.builder, closed);
        }
    }

    /// Makes one fetch. False where there is none to make, or no room.
    fn fetch(&mut self, now: Duration) -> bool {
        let Some(fetch) = self.builder.next_fetch(now) else { return false };
        if fetch.range.start > 0 {
            return self.extend_fetch(Some(fetch), now);
        }
        let Fetch { source, offer, range } = fetch;
        let connection = self.sources[source].connection;
        let begins_to_owe = self.begins_to_owe(source, &range);
        let Some(index) = connection else {
            self.builder.unfetch(source, offer.ticket);
            return false;
        };
        let maps = self.connections[index].as_ref().is_some_and(|connection| connection.link.maps());
        let oldest = offer.first <= self.builder.oldest_event();
        let place = if maps && (self.trigger.is_some() || !self.run_config.record) {
            None
        } else if let Some(trigger) = &mut self.trigger {
            let place = trigger.reserve(source, &offer, oldest);
            if place.is_none() {
                // It is decisions that are waited for, and they may have to wait for a deadline.
                self.builder.unfetch(source, offer.ticket);
                let more = self.builder.next_piece(now);
                return self.extend_fetch(more, now);
            }
            place
        } else {
            let place = self.blocks.reserve(offer.bytes as usize, offer.count, now);
            if place.is_none() {
                self.builder.unfetch(source, offer.ticket);
                self.stall(now);
                // A place that is not full yet may be what keeps its block.
                let more = self.builder.next_piece(now);
                return self.extend_fetch(more, now);
            }
            place
        };
        if self.trigger.is_none() {
            self.go_on(now);
        }
        let Some(connection) = &mut self.connections[index] else { return false };
        if begins_to_owe || connection.fetching == 0 {
            connection.delivered = now;
        }
        let result = match connection.link.begin_fetch(&offer, place, range.end) {
            Ok(Some(bytes)) => self.arrived(source, offer.ticket, bytes),
            Ok(None) => {
                connection.fetching += 1;
                Ok(())
            }
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            self.close(index, &error);
        }
        true
    }

    /// Lets no deadline pass while it is this builder that keeps sources from going on.
    fn hold_clock(&mut self, now: Duration) {
        self.builder.stalled(self.stalled || matches!(self.phase, Phase::Pausing { .. }), now);
    }

    /// Asks for more of a slot that is being fetched. False where there is none.
    fn extend_fetch(&mut self, more: Option<Fetch>, now: Duration) -> bool {
        let Some(Fetch { source, offer, range }) = more else { return false };
        let begins_to_owe = self.begins_to_owe(source, &range);
        let connection = self.sources[source].connection;
        if let Some(connection) = connection.and_then(|index| self.connections[index].as_mut()) {
            connection.link.extend_fetch(offer.ticket, range.end);
            connection.delivered = if begins_to_owe { now } else { connection.delivered };
        }
        true
    }

    /// Whether this is all that is asked of a source.
    fn begins_to_owe(&self, source: usize, range: &Range<u32>) -> bool {
        self.builder.in_flight_of(source) <= u64::from(range.end - range.start)
    }

    /// There was room.
    fn go_on(&mut self, now: Duration) {
        if std::mem::take(&mut self.stalled) {
            self.hold_clock(now);
        }
        if let Some(since) = self.stalled_at.take() {
            self.shown.stalled_nanos += u64::try_from((now - since).as_nanos()).unwrap_or(0);
        }
    }

    /// No block is free. Whatever the reason, a source whose slots are full for lack of fetches must not be found silent.
    /// While places are only waiting to be filled that is the pipeline being full; it is back-pressure when it is the disk
    /// that has the blocks.
    fn stall(&mut self, now: Duration) {
        self.stalled = true;
        self.hold_clock(now);
        let disk = self.blocks.recorder().is_some_and(|recorder| recorder.in_flight() > 0);
        if disk && self.stalled_at.is_none() {
            self.stalled_at = Some(now);
            self.shown.stalls += 1;
        }
    }

    fn flush(&mut self) -> Result<(), NodeError> {
        for index in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[index] else { continue };
            if let Some(source) = connection.source {
                // What is accepted may lie in the source's own memory until it is copied.
                let copied = self.trigger.as_ref().is_none_or(|trigger| !trigger.has_accepted());
                if copied && let Some(below) = self.builder.release(source) {
                    connection.link.release(below);
                }
                let state = &mut self.sources[source];
                let started = !matches!(self.phase, Phase::Gathering { .. });
                if started && !state.dismissed && self.builder.has_ended(source) && self.builder.is_settled(source) {
                    state.dismissed = true;
                    connection.link.say(&Message::Bye);
                }
            }
            if let Err(error) = connection.link.flush() {
                self.close(index, &error);
                continue;
            }
            let interest = connection.link.interest();
            if interest != connection.interest {
                connection.interest = interest;
                self.poller.change(connection.link.fd(), index as u64, interest)?;
            }
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        !matches!(self.phase, Phase::Gathering { .. }) && self.builder.is_finished()
    }

    fn show(&mut self, progress: &Progress) {
        let (bytes, fragments) = self.builder.progress_counts();
        let (events, incomplete) = self.builder.counts();
        self.shown = Snapshot {
            phase: match self.phase {
                Phase::Gathering { .. } => 0,
                Phase::Running => 1,
                Phase::Pausing { .. } | Phase::Ending { .. } => 2,
            },
            bytes,
            fragments,
            events,
            incomplete,
            sources: self.sources.iter().filter(|source| source.connection.is_some()).count() as u64,
            ..self.shown
        };
        progress.show(&self.shown);
    }

    /// Everything is built: gets it onto the disk and closes the books.
    fn finish(mut self, progress: &Progress) -> Result<BuilderReport, NodeError> {
        let ended_at = now();
        loop {
            let (tai, mono) = (self.clock.now(), now());
            self.write_down(tai, mono);
            self.blocks.send_on(tai, mono, Duration::ZERO, true);
            let accepted = self.trigger.as_ref().is_some_and(Trigger::has_accepted);
            if !accepted && !self.blocks.has_closings() && !self.blocks.has_unsent() {
                break;
            }
            self.blocks.wait()?;
        }
        let calibration = self.builder.found().map(|found| self.calibration(&found)).transpose()?;
        let steady = self.steady.unwrap_or_else(|| self.steady());
        let losses = self.connections.iter().flatten().fold(self.losses_before, |sum, c| add(sum, c.losses));
        let credit = self.builder.credit().map(|credit| CreditReport {
            window_bytes: credit.window,
            piece_bytes: credit.piece,
            round_trip_us: credit.round_trip.as_secs_f64() * 1e6,
            sent_bytes: losses.sent,
            sent_again_bytes: losses.again,
        });
        let (events, incomplete) = self.builder.counts();
        let (bytes, fragments) = self.builder.progress_counts();
        let (source_cpu, source_copied) = self.builder.source_costs();
        let copied: u64 = self.connections.iter().flatten().map(|c| c.link.copied()).sum();
        let copied = copied + self.trigger.as_ref().map_or(0, Trigger::copied);
        let seconds = |until: Duration| (until - self.began_at).as_secs_f64();
        let trigger = self.trigger.is_some().then(|| TriggerReport::new(self.builder.triggered(), seconds(ended_at)));
        let Sent { recorder, unwritten, failure } = self.blocks.finish()?;
        let unwritten: Vec<u64> =
            self.ids.iter().map(|(id, _)| unwritten.iter().find(|(at, _)| at == id).map_or(0, |(_, n)| *n)).collect();
        let ledger = self.builder.ledger(recorder.is_some(), &unwritten, self.unknown_sources);
        let mut reasons = self.reasons;
        reasons.extend(failure);
        reasons.extend(ledger.reasons());
        if incomplete > 0 {
            reasons.push(format!("{incomplete} of {events} events are incomplete"));
        }
        let mut state = if reasons.is_empty() { RunState::Complete } else { RunState::Incomplete };
        let mut directory = None;
        if let Some(recorder) = recorder {
            let end = RunEnd {
                ended: self.clock.now(),
                state,
                reasons: reasons.clone(),
                events: EventCounts { built: events, incomplete },
                trigger: trigger.map(|trigger| serde_json::to_value(trigger).unwrap_or_default()).unwrap_or_default(),
                ledger: serde_json::to_value(&ledger.sources).unwrap_or_default(),
            };
            let finished = recorder.finish(end)?;
            state = finished.info.state;
            reasons = finished.info.reasons;
            directory = Some(finished.path.display().to_string());
        }
        self.shown.phase = 2;
        progress.show(&self.shown);
        Ok(BuilderReport {
            name: self.config.name,
            run: self.run.0,
            state: if state == RunState::Complete { "COMPLETE" } else { "INCOMPLETE" }.into(),
            reasons,
            directory,
            // With recording, the run has ended when it is on disk.
            seconds: seconds(if self.run_config.record { now() } else { ended_at }),
            bytes,
            fragments,
            events,
            incomplete,
            stalls: self.shown.stalls,
            stalled_seconds: Duration::from_nanos(self.shown.stalled_nanos).as_secs_f64(),
            copied_bytes: self.copied_before + copied,
            cpu_seconds: clock::cpu().as_secs_f64(),
            source_cpu_seconds: Duration::from_nanos(source_cpu).as_secs_f64(),
            source_copied_bytes: source_copied,
            recorder: self.recorder_rung,
            pages: self.pages.to_string(),
            steady,
            credit,
            calibration,
            trigger,
            ledger,
        })
    }
}

/// What two connections lost.
fn add(one: Losses, other: Losses) -> Losses {
    Losses { sent: one.sent.saturating_add(other.sent), again: one.again.saturating_add(other.again) }
}

/// Whether runs can be written there: found out before any source is kept waiting.
fn check_directory(directory: &std::path::Path) -> Result<(), NodeError> {
    let wrong = |error: std::io::Error| {
        NodeError::Config(format!(
            "run.directory: runs cannot be written to {}: {error}; choose another",
            directory.display()
        ))
    };
    std::fs::create_dir_all(directory).map_err(wrong)?;
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
        .map_err(|error| wrong(error.into()))
}
