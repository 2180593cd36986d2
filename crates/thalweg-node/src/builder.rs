//! Builder node: accepts sources, fetches what they offer, builds events and hands them to the recorder.

mod assigning;
mod connections;
mod ending;
mod opening;
mod origin;
mod run;
mod shifts;
mod snapshot;
mod trace;
mod trigger;

use crate::blocks::Blocks;
use crate::drive::{Leaving, Node, drive};
use crate::thread::as_node;
use crate::wait::{Idle, Waiter};
use crate::{BuilderNodeConfig, BuilderReport, Clock, Handle, NodeError, RunConfig, Steady};
use assigning::Assigning;
use ending::{Built, DiskAnswers, Ending};
use shifts::ShiftSearch;
use snapshot::Shown;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::Arena;
use thalweg_core::build::{Builder, Fetch};
use thalweg_core::control::{RunControl, State};
use thalweg_link::{Address, BuilderEndpoint, Eager, Endpoints, Interest, LinkError, Peer, Poller, Watch};
use thalweg_store::Disk;
use thalweg_wire::{Accounts, EventId, Losses, Message, RunNumber, SourceId, TaiNanos};
use trace::Trace;
use trigger::Trigger;
pub use trigger::try_programs;

/// Time after which a connection without a hello is closed.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// Time after which a source that owes bytes and makes no progress is disconnected, unless the deadline is longer.
/// Three losses in a row make TCP wait for nearly as long.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Bytes that count as progress of a source; so does the answer to a whole fetch.
const LEAST_PROGRESS: u64 = 16 << 10;
/// Number of disconnections without progress in between after which a source is given up.
const MOST_CUTS: u32 = 3;
/// Longest time that a source's final counters wait until it is known where the run ends.
const END_KNOWN_TIME: Duration = Duration::from_secs(2);
/// Connections accepted at an address before others have their turn.
const LET_IN_AT_ONCE: usize = 32;
/// Time for which no connection is accepted after a failure to do so: a small part of the time for which a source
/// tries.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// Interval between checks for connections without a hello.
const TICK: Duration = Duration::from_millis(100);

const BELL: u64 = Watch::FIRST_FREE_TOKEN;
const RECORDER: u64 = Watch::FIRST_FREE_TOKEN + 1;
/// Token of a program that decides.
const PROGRAM: u64 = Watch::FIRST_FREE_TOKEN + 2;

/// Builder node that is ready to accept sources.
#[derive(Debug)]
pub struct BuilderNode {
    config: BuilderNodeConfig,
    run_config: RunConfig,
    /// File of `thalweg calibrate` from which the window was derived.
    calibrated: Option<String>,
    configuration: serde_json::Value,
    index: u32,
    count: u32,
    ids: Vec<(SourceId, String)>,
    builder: Builder,
    blocks: Blocks,
    /// Trigger levels, where fragments wait for a decision; `None` if there are none.
    trigger: Option<Trigger>,
    /// Arena in which the blocks lie.
    memory: Arc<Arena>,
    addresses: Vec<Address>,
    /// Buffer that is kept for reuse.
    ready: Vec<usize>,
    /// Endpoints, one for each address. Peers have the numbers of their connections.
    endpoints: Endpoints<dyn BuilderEndpoint>,
    /// Endpoints at which no connection is accepted, and until when.
    accept_backoff: Vec<(usize, Duration)>,
    connections: Vec<Option<Connection>>,
    /// First number that no connection has.
    vacant: usize,
    /// Limit of connections without a hello: [`MOST_UNIDENTIFIED`], or fewer if files are few.
    most_unidentified: usize,
    sources: Vec<SourceState>,
    clock: Arc<dyn Clock>,
    /// Disk on which runs are recorded.
    files: Disk,
    control: RunControl,
    /// Assignment of events by room, if the run uses it.
    assigning: Option<Assigning>,
    /// State at the last check, to detect changes.
    state: State,
    /// True once everything is built and only has to be written to disk.
    over: bool,
    /// Delivery of the last messages to sources.
    leaving: Leaving,
    /// Reason why the run did not begin, if it did not.
    left: Option<NodeError>,
    run: RunNumber,
    first: EventId,
    began: TaiNanos,
    began_at: Duration,
    /// True if no block was free when one was last needed; `stalled_at` is the time since which the disk has them.
    stalled: bool,
    stalled_at: Option<Duration>,
    /// True if the event filter has no room: no source counts as late while the filter is slow.
    undecided: bool,
    answers: DiskAnswers,
    shown: Shown,
    eager: Eager,
    /// Processor time of this process before this run.
    cpu_before: Duration,
    waiter: Waiter,
    /// True if something arrived in this turn.
    came: bool,
    tally: Tally,
    origin: origin::Origin,
    shifts: ShiftSearch,
    trace: Option<Trace>,
    /// End of the run: everything is built, and on its way to the disk.
    ending: Option<Ending>,
}

/// Values for the report that are kept nowhere else.
#[derive(Debug, Default)]
struct Tally {
    unknown_sources: u64,
    copied_before: u64,
    reasons: Vec<String>,
    recorder_method: Option<String>,
    /// Counts at the end of the warm-up, with its time.
    warm: Option<Built>,
    steady: Option<Steady>,
    /// Losses that sources reported over connections that are closed.
    losses_before: Losses,
}

#[derive(Debug)]
struct Connection {
    peer: Peer,
    /// True if the link [maps](thalweg_link::BuilderLink::maps).
    maps: bool,
    source: Option<usize>,
    since: Duration,
    /// True if something was requested in this turn.
    asked: bool,
    /// Fetches under way, the time of the source's last progress, and the bytes received by then.
    fetching: usize,
    delivered: Duration,
    progress_at: u64,
    /// Bytes received and losses known at the last check.
    received: u64,
    losses: Losses,
}

/// State of a source beside its final counters.
#[derive(Debug, Default)]
struct SourceState {
    connection: Option<usize>,
    session: Option<u64>,
    slots: u32,
    slot_bytes: u32,
    description: serde_json::Value,
    /// True if the device waits for a slot: nothing is lost if it learns a little later that one is free.
    patient: bool,
    /// True if events are numbered by time, and the source must be told when event 0 is.
    by_time: bool,
    /// True if the source reports when its events' triggers were.
    reports_times: bool,
    dismissed: bool,
    /// Number of disconnections since its last progress.
    cuts: u32,
    /// Final counters, and the time since which they wait for the run to begin, or until it is known where it ends.
    early_end: Option<(Accounts, Duration)>,
}

impl Node for BuilderNode {
    type Report = BuilderReport;

    fn begin(&self, handle: &Handle) -> Result<(), NodeError> {
        Ok(self.endpoints.poller().add(handle.as_fd(), BELL, Interest::READ)?)
    }

    fn turn(&mut self, woken: &[u64], handle: &Handle) -> Result<Option<BuilderReport>, NodeError> {
        if self.ending.is_some() {
            return self.end(handle);
        }
        if woken.contains(&BELL) {
            self.obey_commands(handle);
        }
        if !self.over {
            self.take_turn(woken, handle)?;
        }
        if !self.over || !self.leaving.turn(&mut self.endpoints, woken, self.clock.now()) {
            return Ok(None);
        }
        self.trace.take().map_or(Ok(()), Trace::close)?;
        if let Some(error) = self.left.take() {
            return Err(error);
        }
        self.begin_to_end(handle)?;
        self.end(handle)
    }

    fn idle(&mut self) -> Idle {
        let now = self.clock.now();
        if let Some(idle) = self.idle_at_end(now) {
            return idle;
        }
        let hurries = self.blocks.in_flight() > 0 || !self.has_begun();
        let timeout = self.timeout(now);
        self.waiter.idle(&mut self.endpoints, std::mem::take(&mut self.came), hurries, timeout, now)
    }

    fn poller(&self) -> &Arc<Poller> {
        self.ending.as_ref().map_or(self.endpoints.poller(), Ending::poller)
    }
}

impl BuilderNode {
    /// Returns the addresses it listens on, with the ports the system chose.
    pub fn addresses(&self) -> Vec<Address> {
        self.addresses.clone()
    }

    /// Writes the state of its credit to `file`, once every `every` while it runs. Each line is a JSON object: `at`,
    /// nanoseconds of `CLOCK_MONOTONIC`; `window`, bytes that may be requested and not yet received, or `null` if the
    /// window is constant; `asked`, bytes requested of each source, in the topology's order, and not yet received.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn trace(&mut self, file: &Path, every: Duration) -> Result<(), NodeError> {
        self.trace = Some(Trace::open(file, every)?);
        Ok(())
    }

    /// Runs the node until the run is over and on disk.
    ///
    /// # Errors
    /// No run began, or something essential failed.
    pub fn run(mut self, handle: &Handle) -> Result<BuilderReport, NodeError> {
        as_node(self.config.cpu, || drive(&mut self, handle))
    }

    fn take_turn(&mut self, woken: &[u64], handle: &Handle) -> Result<(), NodeError> {
        let mut ready = std::mem::take(&mut self.ready);
        self.endpoints.poll(self.clock.now(), woken, &mut ready);
        ready.drain(..).for_each(|index| self.serve(index));
        self.ready = ready;
        self.accept()?;
        self.pass_time()?;
        self.build();
        self.assign();
        self.decide_origin();
        self.search_for_shifts();
        self.flush();
        if let Some(trace) = &mut self.trace {
            trace.look(&self.builder, self.ids.len(), self.clock.now())?;
        }
        handle.show(|| self.snapshot());
        Ok(())
    }

    fn timeout(&self, now: Duration) -> Option<Duration> {
        if let Some(timeout) = self.leaving.timeout(&self.endpoints, now) {
            return Some(timeout);
        }
        let deadline = self.builder.next_deadline(now);
        let pace = self.builder.next_ask();
        let flush = self.blocks.next_flush(self.config.flush);
        let running = self.control.state() == State::Running;
        let warm = (running && self.tally.warm.is_none()).then(|| self.began_at + self.run_config.warm_up);
        // Conditions that depend on time alone: silence, and connections without a hello.
        let unidentified = self.connections.iter().flatten().any(|c| c.source.is_none()).then(|| now + TICK);
        let silence = self.has_begun().then(|| now + self.answer_time() / 4);
        let accept_backoff = self.accept_backoff.iter().map(|(_, until)| *until).min();
        [
            deadline,
            pace,
            flush,
            warm,
            self.steady_end().filter(|_| self.tally.steady.is_none()),
            unidentified,
            silence,
            accept_backoff,
            self.control.next_time(),
            self.next_early_end(),
            self.endpoints.next_timeout(),
            self.next_word(),
            self.origin.next_time(),
            self.answers.next_look(now),
            self.blocks.next_keep(self.config.flush),
            self.trace.as_ref().map(Trace::next),
            self.trigger.as_ref().and_then(Trigger::next_look),
        ]
        .into_iter()
        .flatten()
        .min()
        .map(|at| at.saturating_sub(now))
    }

    fn pass_time(&mut self) -> Result<(), NodeError> {
        let now = self.clock.now();
        if let Some(trigger) = &mut self.trigger {
            trigger.look(now);
        }
        while let Some(position) = self.accept_backoff.iter().position(|(_, until)| *until <= now) {
            let (at, _) = self.accept_backoff.swap_remove(position);
            self.endpoints.listen(at, true)?;
        }
        self.cut_off_the_silent(now);
        if self.tally.warm.is_none()
            && self.control.state() == State::Running
            && now >= self.began_at + self.run_config.warm_up
        {
            self.tally.warm = Some(self.built(now));
            self.builder.forget_completions();
        }
        // Only the leading builder ends the run. The others learn of it after the data that are under way.
        if self.tally.steady.is_none() && self.steady_end().is_some_and(|end| now >= end) {
            self.tally.steady = Some(self.steady());
        }
        for source in self.builder.time(now) {
            let why = match self.sources[source].connection {
                Some(_) => "its final counters count tickets that it did not offer",
                None => "it did not come back",
            };
            self.give_up(source, why);
        }
        self.look_at_disk(now);
        self.keep_in_control(now)?;
        self.take_early_ends(now);
        Ok(())
    }

    /// Returns when the steady state ends, if that is a matter of time.
    fn steady_end(&self) -> Option<Duration> {
        let RunConfig { warm_up, steady, duration, .. } = self.run_config;
        let length = steady.map(|steady| warm_up + steady).or(duration)?;
        (self.control.state() == State::Running).then(|| self.began_at + length)
    }

    /// Closes connections without a hello, and those of sources that owe data and send none.
    fn cut_off_the_silent(&mut self, now: Duration) {
        for index in 0..self.connections.len() {
            let Some(connection) = &self.connections[index] else { continue };
            match connection.source {
                None if now > connection.since + GREETING_TIME => {
                    self.close(index, &LinkError::Protocol("it did not say who it is".into()));
                }
                Some(source) if self.owes(source) && now > connection.delivered + self.answer_time() => {
                    let (name, peer) = (&self.ids[source].1, &connection.peer);
                    tracing::warn!(source = name, %peer, "connection cut: the source owes data and does not get on");
                    self.sources[source].cuts += 1;
                    // A hung source may recover: that is not a breach of the rules.
                    self.close(index, &LinkError::Closed);
                    if self.sources[source].cuts >= MOST_CUTS {
                        let time = humantime::format_duration(self.answer_time());
                        self.expel(source, &format!("{MOST_CUTS} times it owed data and did not get on for {time}"));
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns how long a source may owe bytes without sending any.
    fn answer_time(&self) -> Duration {
        self.config.deadline.max(ANSWER_TIME)
    }

    /// Returns whether a source was asked for data that have not arrived.
    fn owes(&self, source: usize) -> bool {
        run::owes(&self.builder, &self.sources, &self.connections, source)
    }

    /// Returns whether sources have been told that the run has begun.
    fn has_begun(&self) -> bool {
        self.control.state().has_begun()
    }

    /// Returns whether a source shares this host's memory.
    fn is_near(&self, source: usize) -> bool {
        let connection = self.sources[source].connection.and_then(|at| self.connections[at].as_ref());
        connection.is_some_and(|connection| connection.maps)
    }

    /// Fetches as much as there is room for, writes closed events down, and sends full blocks on.
    fn build(&mut self) {
        if !self.has_begun() {
            return;
        }
        let mono = self.clock.now();
        let tai = self.clock.date();
        loop {
            if let Some(trigger) = &mut self.trigger {
                trigger.decide(&mut self.builder, mono);
            }
            let copied = self.write_down(tai, mono);
            self.blocks.send_on(tai, mono, self.config.flush, false);
            let Some(fetch) = self.builder.next_fetch(mono) else {
                // No block is waited for any more: the source that was to be asked may be gone.
                if copied {
                    self.go_on(mono);
                }
                break;
            };
            if !self.fetch(fetch, mono) {
                break;
            }
        }
        let undecided = self.trigger.as_ref().is_some_and(Trigger::is_full);
        if std::mem::replace(&mut self.undecided, undecided) != undecided {
            self.hold_clock(mono);
        }
    }

    /// Writes closed events down, as far as there are blocks for them. The rest stays with the event builder, which
    /// opens no more events while too many closed ones wait. Returns false if no block was free for events that a level
    /// accepted.
    fn write_down(&mut self, tai: TaiNanos, mono: Duration) -> bool {
        loop {
            self.blocks.write_closings(&self.ids, tai, mono);
            if self.blocks.has_closings() {
                return true;
            }
            let Some(trigger) = &mut self.trigger else {
                let Some(closed) = self.builder.next_closed() else { return true };
                self.blocks.close(closed);
                continue;
            };
            let takes_more = trigger.pass_filter(&mut self.builder, mono);
            if trigger.has_accepted() {
                if !trigger.copy(&mut self.blocks, &self.ids, mono) {
                    self.stall(mono);
                    return false;
                }
                self.go_on(mono);
                continue;
            }
            let Some(closed) = takes_more.then(|| self.builder.next_closed()).flatten() else { return true };
            trigger.filter(closed);
        }
    }

    /// Starts a fetch. Returns false if there is no room for it.
    fn fetch(&mut self, fetch: Fetch, now: Duration) -> bool {
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
        let maps = self.connections[index].as_ref().is_some_and(|connection| connection.maps);
        let oldest = offer.first <= self.builder.oldest_event();
        let place = if maps && (self.trigger.is_some() || !self.run_config.record) {
            None
        } else if let Some(trigger) = &mut self.trigger {
            let place = trigger.reserve(&offer, oldest);
            if place.is_none() {
                // The fetch waits for decisions, which may have to wait for a deadline.
                if self.builder.unfetch(source, offer.ticket) {
                    return true;
                }
                let more = self.builder.next_piece(now);
                return self.extend_fetch(more, now);
            }
            place
        } else {
            let place = self.blocks.reserve(offer.bytes as usize, offer.count, now);
            if place.is_none() {
                if self.builder.unfetch(source, offer.ticket) {
                    return true;
                }
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
        let (Some(connection), Some(link)) = (&mut self.connections[index], self.endpoints.link_mut(index)) else {
            return false;
        };
        if begins_to_owe || connection.fetching == 0 {
            connection.delivered = now;
        }
        connection.asked = true;
        let result = match link.begin_fetch(&offer, place, range.end) {
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

    /// Stops deadlines while this builder is what keeps sources from going on.
    fn hold_clock(&mut self, now: Duration) {
        self.builder.stalled(self.stalled || self.undecided || self.control.holds_sources(), now);
        // While blocks wait for sources, no source may make a run last longer than `run.timeout`.
        self.control.held_up(self.stalled && self.disk_has_blocks() && self.blocks.failure.is_none());
    }

    /// Requests more of a slot that is being fetched. Returns false if there is nothing to request.
    fn extend_fetch(&mut self, more: Option<Fetch>, now: Duration) -> bool {
        let Some(Fetch { source, offer, range }) = more else { return false };
        let begins_to_owe = self.begins_to_owe(source, &range);
        if let Some(index) = self.sources[source].connection
            && let (Some(connection), Some(link)) = (&mut self.connections[index], self.endpoints.link_mut(index))
        {
            link.extend_fetch(offer.ticket, range.end);
            connection.asked = true;
            connection.delivered = if begins_to_owe { now } else { connection.delivered };
        }
        true
    }

    /// Returns whether this range is all that is requested of a source.
    fn begins_to_owe(&self, source: usize, range: &Range<u32>) -> bool {
        self.builder.in_flight_of(source) <= u64::from(range.end - range.start)
    }

    /// Ends a stall, once there is room.
    fn go_on(&mut self, now: Duration) {
        if std::mem::take(&mut self.stalled) {
            self.hold_clock(now);
        }
        if let Some(since) = self.stalled_at.take() {
            self.shown.stalled_nanos += u64::try_from((now - since).as_nanos()).unwrap_or(0);
        }
    }

    /// Records that no block is free. Whatever the reason, a source whose slots are full for lack of fetches must not
    /// count as silent. While places are only waiting to be filled, the pipeline is merely full; it is back-pressure if
    /// the disk has the blocks.
    fn stall(&mut self, now: Duration) {
        self.stalled = true;
        self.hold_clock(now);
        if self.disk_has_blocks() && self.stalled_at.is_none() {
            self.stalled_at = Some(now);
            self.shown.stalls += 1;
        }
    }

    fn disk_has_blocks(&self) -> bool {
        self.blocks.recorder().is_some_and(|recorder| recorder.in_flight() > 0)
    }

    fn flush(&mut self) {
        // Fragments of events being decided on, or accepted, may lie in the source's own memory until they are copied.
        if let Some(trigger) = &self.trigger {
            self.builder.hold(trigger.oldest_held());
        }
        for index in 0..self.connections.len() {
            let Some(source) = self.connections[index].as_ref().and_then(|connection| connection.source) else {
                continue;
            };
            let over = self.is_done_elsewhere(source);
            let Some(Connection { maps, asked, .. }) = &mut self.connections[index] else { continue };
            let Some(link) = self.endpoints.link_mut(index) else { continue };
            let asked = std::mem::take(asked);
            let state = &mut self.sources[source];
            // Over a socket each separate message costs a packet, a wake-up of the source, and as much again for the
            // offer that it answers with. With hundreds of sources each is fetched from rarely, so it receives both
            // together.
            let waits = !asked && !*maps && state.patient && self.trigger.is_none();
            if !(waits && self.builder.may_release_later(source))
                && let Some(below) = self.builder.release(source)
            {
                link.release(below);
            }
            let begun = self.control.state().has_begun();
            if begun && over && !state.dismissed && self.builder.has_ended(source) && self.builder.is_settled(source) {
                state.dismissed = true;
                link.send(&Message::Bye);
            }
        }
        let mut broken = Vec::new();
        self.endpoints.flush(self.clock.now(), &mut broken);
        broken.iter().for_each(|(index, error)| self.close(*index, error));
    }
}

/// Returns the sum of the losses of two connections.
fn add(one: Losses, other: Losses) -> Losses {
    Losses { sent: one.sent.saturating_add(other.sent), again: one.again.saturating_add(other.again) }
}
