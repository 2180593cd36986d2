//! Source node: moves fragments from a device into slots, and from there to the builders that fetch them.

mod acquisition;
mod assignments;
mod builders;
mod production;
mod times;

use crate::drive::{Leaving, Node, drive};
use crate::slots::Traces;
use crate::thread::as_node;
use crate::wait::{Idle, Waiter};
use crate::{Clock, Environment, EventRate, Handle, NodeError, Policy, Snapshot, SourceReport, State, Wait};
use acquisition::Acquiring;
use assignments::Assignments;
use builders::Builder;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{ArenaError, SlotPool};
use thalweg_core::control::Command;
use thalweg_device::{Acquisition, Description, Device, OpenDevice};
use thalweg_link::{Adapter, Address, Endpoints, Interest, Poller, SourceEndpoint, SourceGreeting, Watch};
use thalweg_wire::{Accounts, Capabilities, Hello, Message, NotTaken, RunNumber, SourceId, TaiNanos, record_len};
use times::TimesReport;

/// Settings from which a source node is created.
#[derive(Debug)]
pub struct SourceSettings {
    /// Name of the source.
    pub name: String,
    /// Id of the source.
    pub id: SourceId,
    /// Origin of its fragments.
    pub feed: Feed,
    /// Builders in their order: event `e` goes to the builder with number `e` modulo their count, unless builder 0
    /// assigns it to another.
    pub builders: Vec<Address>,
    /// Network adapter that the source drives itself, for links that do that.
    pub adapter: Option<Adapter>,
    /// Congestion control of TCP links: see [`SourceEndpoint::connect`].
    pub congestion: Option<String>,
    /// Number of events per second; as fast as they are taken when absent.
    pub rate: Option<EventRate>,
    /// Number of events that come at once, at the same mean rate; used with a rate.
    pub burst: u32,
    /// Behaviour while all slots are full.
    pub policy: Policy,
    /// Number of slots.
    pub slots: u32,
    /// Bytes in each slot.
    pub slot_bytes: usize,
    /// Time after which the search for a builder is given up.
    pub timeout: Duration,
    /// Way in which the hot thread waits for work.
    pub wait: Wait,
    /// Processor to which the thread is bound.
    pub cpu: Option<u32>,
}

/// Origin of a source's fragments.
#[derive(Debug)]
pub enum Feed {
    /// A device that the node asks for each fragment.
    Device(Box<dyn Device>),
    /// A device that works by itself. It is given as many slots as it takes, each for one fragment. It counts its own
    /// losses, whether for lack of a slot or for another reason.
    Acquisition(Box<dyn Acquisition>),
    /// A program that pushes fragments ([`crate::PushSource`]).
    Pushed {
        /// Longest payload that will be pushed, in bytes.
        max_payload: usize,
        /// Description of the program's data, for `run.json`.
        description: serde_json::Value,
    },
}

impl From<OpenDevice> for Feed {
    fn from(device: OpenDevice) -> Self {
        match device {
            OpenDevice::Device(device) => Self::Device(device),
            OpenDevice::Acquisition(device) => Self::Acquisition(device),
        }
    }
}

impl Feed {
    /// Returns the device's description; `None` for a program that pushes.
    pub fn description(&self) -> Option<&Description> {
        match self {
            Self::Device(device) => Some(device.description()),
            Self::Acquisition(device) => Some(device.description()),
            Self::Pushed { .. } => None,
        }
    }

    /// Returns the length in bytes of the longest payload that can come.
    pub fn max_payload(&self) -> usize {
        match self {
            Self::Device(device) => device.max_payload(),
            Self::Acquisition(device) => device.max_payload(),
            Self::Pushed { max_payload, .. } => *max_payload,
        }
    }
}

/// State of a source with respect to taking fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Before,
    Open,
    Paused,
    Over,
}

const BELL: u64 = Watch::FIRST_FREE_TOKEN;
const DEVICE: u64 = Watch::FIRST_FREE_TOKEN + 1;

/// Source node that is ready to connect.
#[derive(Debug)]
pub struct SourceNode {
    settings: SourceSettings,
    pool: SlotPool,
    traces: Traces,
    builders: Vec<Builder>,
    /// Events assigned by builder 0, if it assigns them.
    assignments: Option<Assignments>,
    /// Connections to the builders; peers have the numbers of the builders.
    endpoints: Endpoints<dyn SourceEndpoint>,
    /// Buffer that is kept for reuse.
    ready: Vec<usize>,
    clock: Arc<dyn Clock>,
    phase: Phase,
    /// The leading builder asked for a pause before the other builders had begun.
    begins_paused: bool,
    run: RunNumber,
    /// Time at which the run began, as announced by builder 0.
    run_began: TaiNanos,
    next_event: u64,
    /// First event of the run.
    first_event: u64,
    end_at: Option<u64>,
    /// True if this source does not continue to the end of the run, but ends at its present event.
    ends_here: bool,
    due: Option<Duration>,
    dead: Dead,
    sequence: u32,
    blocked: bool,
    begun: Duration,
    /// Processor time of this process before this run.
    cpu_before: Duration,
    shown: Shown,
    /// State of a device that works by itself, if the feed is one.
    acquiring: Acquiring,
    /// Report of event times to builder 0, while it is under way.
    times: Option<TimesReport>,
    waiter: Waiter,
    /// Time at which the thread that serves builders wakes up without an event.
    sleeps_until: Option<Duration>,
    /// True if something arrived in this turn.
    came: bool,
    /// Delivery of the last messages to builders.
    leaving: Leaving,
    /// Reason why a builder that had begun the run takes no further part.
    failure: Option<NodeError>,
}

/// Dead time: periods in which nothing could be taken, if the device has a rate and waits.
#[derive(Debug, Default)]
struct Dead {
    time: NotTaken,
    /// Time up to which dead time has been counted, while it lasts.
    since: Option<Duration>,
}

/// Counts of what was taken from the device.
#[derive(Debug, Default)]
struct Shown {
    bytes: u64,
    fragments: u64,
    /// Number of times that the device had to wait.
    stalls: u64,
    /// Fragments that the device lost.
    lost_in_device: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Running,
    Paused,
    Ending,
}

impl Node for SourceNode {
    type Report = SourceReport;

    fn begin(&self, handle: &Handle) -> Result<(), NodeError> {
        Ok(self.poller().add(handle.as_fd(), BELL, Interest::READ)?)
    }

    fn turn(&mut self, woken: &[u64], handle: &Handle) -> Result<Option<SourceReport>, NodeError> {
        if self.leaving.has_begun() {
            return self.leave(woken);
        }
        self.came |= woken.contains(&DEVICE);
        if woken.contains(&BELL) {
            self.obey_commands(handle)?;
        }
        let mut ready = std::mem::take(&mut self.ready);
        self.endpoints.poll(self.clock.now(), woken, &mut ready);
        ready.drain(..).try_for_each(|index| self.serve(index))?;
        self.ready = ready;
        self.pass_on_news();
        self.reconnect()?;
        self.produce()?;
        self.acquire()?;
        self.flush()?;
        handle.show(|| self.snapshot());
        let done = self.builders.iter().all(|builder| builder.done);
        if done { self.leave(woken) } else { Ok(None) }
    }

    /// Returns how to wait for the next turn. There is nothing to wait for if only memory has to be checked again.
    fn idle(&mut self) -> Idle {
        let now = self.clock.now();
        let timeout = self.timeout(now);
        self.sleeps_until = timeout.map(|timeout| now + timeout);
        self.waiter.idle(&mut self.endpoints, std::mem::take(&mut self.came), false, timeout, now)
    }

    fn poller(&self) -> &Arc<Poller> {
        self.endpoints.poller()
    }
}

impl SourceNode {
    /// Creates slots and checks that they suit the device and the builders.
    ///
    /// # Errors
    /// They do not suit, or the system refuses memory or a descriptor.
    pub fn new(settings: SourceSettings) -> Result<Self, NodeError> {
        Self::within(settings, Environment::system())
    }

    /// Does the same as [`new`](Self::new), in a given environment.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn within(mut settings: SourceSettings, environment: Environment) -> Result<Self, NodeError> {
        let Environment { clock, session, .. } = environment;
        let cpu_before = clock.cpu();
        let longest = settings.feed.max_payload();
        if record_len(longest) > settings.slot_bytes {
            return Err(NodeError::Config(format!(
                "source '{}': a slot of {} bytes cannot hold a fragment of {longest} bytes and its header; set slot to at least {}",
                settings.name,
                settings.slot_bytes,
                record_len(longest)
            )));
        }
        let pool = make_slots(&settings)?;
        let description = describe(&settings)?;
        let mut endpoints = Endpoints::new()?.by(settings.adapter.clone()).towards(&settings.builders)?;
        endpoints.register(pool.arena())?;
        if let Feed::Acquisition(device) = &mut settings.feed {
            device.register(pool.arena())?;
        }
        let begun = clock.now();
        let hello = hello(&settings, session, longest, &description);
        let builders = settings.builders.iter().zip(0..).map(|(address, builder)| {
            let (hello, description) = (Hello { builder, ..hello }, description.clone());
            Builder::new(address, SourceGreeting { hello, description, arena: Arc::clone(pool.arena()) }, begun)
        });
        let builders: Vec<Builder> = builders.collect();
        tracing::info!(
            source = settings.name,
            slots = settings.slots,
            slot_bytes = settings.slot_bytes,
            "arena of {} made of {}",
            pool.arena().size(),
            pool.arena()
        );
        Ok(Self {
            traces: Traces::new(settings.slots),
            clock,
            phase: Phase::Waiting,
            begins_paused: false,
            run: RunNumber(0),
            run_began: TaiNanos(0),
            next_event: 0,
            first_event: 0,
            end_at: None,
            ends_here: false,
            due: None,
            dead: Dead::default(),
            sequence: 0,
            blocked: false,
            begun,
            cpu_before,
            shown: Shown::default(),
            acquiring: Acquiring::new(&settings.feed),
            times: None,
            waiter: Waiter::new(settings.wait),
            sleeps_until: None,
            came: false,
            leaving: Leaving::default(),
            failure: None,
            settings,
            pool,
            builders,
            assignments: None,
            endpoints,
            ready: Vec::new(),
        })
    }

    /// Runs the node until the run is over.
    ///
    /// # Errors
    /// No builder was found in time, one refused this source for good, or its device failed.
    pub fn run(mut self, handle: &Handle) -> Result<SourceReport, NodeError> {
        as_node(self.settings.cpu, || drive(&mut self, handle))
    }

    /// Delivers the last messages, and then returns the report.
    fn leave(&mut self, woken: &[u64]) -> Result<Option<SourceReport>, NodeError> {
        if !self.leaving.turn(&mut self.endpoints, woken, self.clock.now()) {
            return Ok(None);
        }
        self.failure.take().map_or_else(|| Ok(Some(self.report())), Err)
    }

    /// Carries out commands from outside. A stop makes the source end its own part of the run.
    fn obey_commands(&mut self, handle: &Handle) -> Result<(), NodeError> {
        handle.clear();
        while let Some(command) = handle.next_command() {
            match command {
                Command::Stop if self.phase == Phase::Ending => {}
                Command::Stop if self.phase != Phase::Waiting => self.end(),
                Command::Stop | Command::Abort => return Err(NodeError::Stopped),
                Command::Start | Command::Pause | Command::Resume => {
                    tracing::warn!("a source cannot {command}: it does what its builders say");
                }
            }
        }
        Ok(())
    }

    fn timeout(&self, now: Duration) -> Option<Duration> {
        if let Some(timeout) = self.leaving.timeout(&self.endpoints, now) {
            return Some(timeout);
        }
        let retry = self.builders.iter().filter_map(|builder| builder.away.map(|(_, at)| at)).min();
        let due = match (&self.settings.feed, self.phase, self.blocked) {
            (Feed::Device(_), Phase::Running, false) => Some(self.due.unwrap_or(now)),
            (Feed::Acquisition(device), Phase::Running, _) => device.next_time(),
            (Feed::Acquisition(_), ..) => self.acquiring.idle,
            _ => None,
        };
        retry.into_iter().chain(due).chain(self.endpoints.next_timeout()).min().map(|at| at.saturating_sub(now))
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            state: match self.phase {
                Phase::Waiting => State::Configured,
                Phase::Running => State::Running,
                Phase::Paused => State::Paused,
                Phase::Ending => State::Stopping,
            },
            bytes: self.shown.bytes,
            fragments: self.shown.fragments,
            events: self.shown.fragments,
            stalls: self.shown.stalls,
            connected: self.builders.iter().filter(|builder| builder.welcome.is_some()).count() as u64,
            ..Snapshot::default()
        }
    }

    fn device_counters(&self) -> BTreeMap<String, u64> {
        let Feed::Acquisition(device) = &self.settings.feed else { return BTreeMap::new() };
        device
            .counters()
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| (name.into(), count))
            .collect()
    }

    /// Returns the counts of what the device had so far and the source did not take.
    fn not_taken(&self) -> NotTaken {
        let of_no_event = match &self.settings.feed {
            Feed::Acquisition(device) => device.of_no_event(),
            _ => 0,
        };
        NotTaken { of_no_event, ..self.dead.time }
    }

    fn report(&self) -> SourceReport {
        let accounts = self.builders.iter().map(|builder| builder.accounts);
        let total = accounts.fold(Accounts::default(), |sum, a| Accounts {
            accepted: sum.accepted + a.accepted,
            dropped_newest: sum.dropped_newest + a.dropped_newest,
            dropped_oldest: sum.dropped_oldest + a.dropped_oldest,
            copied_bytes: sum.copied_bytes + a.copied_bytes,
            ..sum
        });
        SourceReport {
            name: self.settings.name.clone(),
            source: self.settings.id.to_string(),
            seconds: (self.clock.now() - self.begun).as_secs_f64(),
            bytes: self.shown.bytes,
            accepted: total.accepted,
            dropped_newest: total.dropped_newest,
            dropped_oldest: total.dropped_oldest,
            lost_in_device: self.shown.lost_in_device,
            device: self.device_counters(),
            not_taken: self.dead.time.fragments,
            of_no_event: self.not_taken().of_no_event,
            dead_seconds: Duration::from_nanos(self.dead.time.dead_nanos).as_secs_f64(),
            blocked: self.shown.stalls,
            copied_bytes: total.copied_bytes,
            cpu_seconds: (self.clock.cpu() - self.cpu_before).as_secs_f64(),
            datagrams: self.endpoints.arrivals(),
            pages: self.pool.arena().to_string(),
            wait: self.settings.wait,
        }
    }
}

/// Returns whether the device's events are numbered by time, from one on that builder 0 names.
fn waits_for_events(settings: &SourceSettings) -> bool {
    matches!(&settings.feed, Feed::Acquisition(device) if device.event_period().is_some())
}

/// Returns the hello for the first builder.
#[expect(clippy::cast_possible_truncation, reason = "slots are at most 1 GiB, builders few")]
fn hello(settings: &SourceSettings, session: u64, longest: usize, description: &str) -> Hello {
    let by_time = if waits_for_events(settings) { Capabilities::BY_TIME } else { Capabilities::empty() };
    Hello {
        session,
        source: settings.id,
        builder: 0,
        builders: settings.builders.len() as u32,
        slots: settings.slots,
        slot_bytes: settings.slot_bytes as u32,
        max_payload: longest as u32,
        capabilities: settings.policy.capabilities() | Capabilities::ASSIGNED | Capabilities::TRIGGER_TIMES | by_time,
        description: description.len() as u32,
    }
}

/// Creates slots as the device wants them. If it cannot have them so, logs a warning and creates ordinary ones.
fn make_slots(settings: &SourceSettings) -> Result<SlotPool, ArenaError> {
    let SourceSettings { name, slots, slot_bytes, feed, .. } = settings;
    if matches!(feed, Feed::Acquisition(device) if device.takes_dma_bufs()) {
        match SlotPool::for_drivers(name, *slots, *slot_bytes) {
            Err(error @ ArenaError::DmaBuf { .. }) => {
                tracing::warn!(source = name, "slots are no DMA buffers: {error}")
            }
            made => return made,
        }
    }
    SlotPool::new(name, *slots, *slot_bytes)
}

fn describe(settings: &SourceSettings) -> Result<String, NodeError> {
    let device = match &settings.feed {
        Feed::Device(device) => serde_json::to_value(device.description())
            .map_err(|error| NodeError::Config(format!("source '{}': its description: {error}", settings.name)))?,
        Feed::Acquisition(device) => serde_json::to_value(device.description())
            .map_err(|error| NodeError::Config(format!("source '{}': its description: {error}", settings.name)))?,
        Feed::Pushed { description, .. } => description.clone(),
    };
    let mut description =
        serde_json::json!({ "name": settings.name, "rate": settings.rate, "policy": settings.policy });
    if let (Some(all), serde_json::Value::Object(device)) = (description.as_object_mut(), device) {
        all.extend(device);
    }
    let text = description.to_string();
    if text.len() > Message::MAX_DESCRIPTION as usize {
        return Err(NodeError::Config(format!(
            "source '{}': its description has {} bytes of JSON, at most {} are possible",
            settings.name,
            text.len(),
            Message::MAX_DESCRIPTION
        )));
    }
    Ok(text)
}
