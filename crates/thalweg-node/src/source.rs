//! Source node: moves fragments from a device into slots, and from there to the builders that fetch them.
//!
//! The node consists of parts, each of which owns its state. The files `production` and `messages` pass fragments and
//! what builders send on to the parts that they concern.

mod acquisition;
mod assignments;
mod builders;
mod course;
mod delivery;
mod messages;
mod pace;
mod production;
mod times;

use crate::drive::{Node, drive_node};
use crate::slots::Slots;
use crate::thread::run_as_node;
use crate::wait::Idle;
use crate::{
    Clock, CommandRefusal, Environment, EventRate, Handle, NodeCommand, NodeError, Policy, Snapshot, SourceReport, Wait,
};
use acquisition::Acquiring;
use assignments::Assignments;
use builders::Builders;
pub(crate) use course::Standing;
use course::{Course, Phase};
use pace::Pace;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{ArenaError, SlotPool};
use thalweg_core::control::Command;
use thalweg_device::{Acquisition, Description, Device, OpenDevice};
use thalweg_link::{Adapter, Address, Endpoints, Interest, Poller, Watch};
use thalweg_wire::{Capabilities, Hello, Message, NotTaken, SourceId, record_bytes};
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
    /// Congestion control of TCP links: see [`SourceEndpoint::connect_to_builder`].
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
    pub fn device_description(&self) -> Option<&Description> {
        match self {
            Self::Device(device) => Some(device.description()),
            Self::Acquisition(device) => Some(device.description()),
            Self::Pushed { .. } => None,
        }
    }

    /// Returns the length in bytes of the longest payload that can come.
    pub fn max_payload(&self) -> usize {
        match self {
            Self::Device(device) => device.max_payload_bytes(),
            Self::Acquisition(device) => device.max_payload_bytes(),
            Self::Pushed { max_payload, .. } => *max_payload,
        }
    }

    /// Returns whether the device's events are numbered by time, from one on that builder 0 names.
    fn is_numbered_by_time(&self) -> bool {
        matches!(self, Self::Acquisition(device) if device.event_period().is_some())
    }
}

/// Token of the node's handle.
const HANDLE_TOKEN: u64 = Watch::FIRST_FREE_TOKEN;
/// Token of a device that works by itself.
const DEVICE_TOKEN: u64 = Watch::FIRST_FREE_TOKEN + 1;

/// Source node that is ready to connect.
#[derive(Debug)]
pub struct SourceNode {
    setup: Setup,
    feed: Feed,
    clock: Arc<dyn Clock>,
    slots: Slots,
    builders: Builders,
    assignments: Assignments,
    course: Course,
    pace: Pace,
    /// State of a device that works by itself, if the feed is one.
    acquiring: Acquiring,
    /// Report of event times to builder 0, while it is under way.
    times: Option<TimesReport>,
    /// Time at which the source began to take fragments; `None` before.
    began_at: Option<Duration>,
    /// Processor time of this process before the first run.
    cpu_created: Duration,
    /// Processor time of this process, and frames of its device that belong to no event, before this run.
    cpu_before: Duration,
    strays_before: u64,
    /// Counts of earlier runs of what the device had and the source did not take.
    earlier_not_taken: NotTaken,
    /// Time at which the thread that serves builders wakes up without an event.
    sleeps_until: Option<Duration>,
}

/// Settings that the node itself needs.
#[derive(Debug)]
struct Setup {
    name: String,
    id: SourceId,
    policy: Policy,
    wait: Wait,
    cpu: Option<u32>,
}

impl Node for SourceNode {
    type Report = SourceReport;

    fn begin(&self, handle: &Handle) -> Result<(), NodeError> {
        Ok(self.poller().add_descriptor(handle.as_fd(), HANDLE_TOKEN, Interest::READ)?)
    }

    fn turn(&mut self, woken: &[u64], handle: &Handle) -> Result<Option<SourceReport>, NodeError> {
        if self.builders.is_leaving() {
            return self.deliver_last_messages(woken, handle);
        }
        if woken.contains(&DEVICE_TOKEN) {
            self.builders.note_arrival();
        }
        if woken.contains(&HANDLE_TOKEN) {
            self.obey_commands(handle)?;
        }
        let mut ready = self.builders.poll(woken, self.clock.now());
        ready.drain(..).try_for_each(|index| self.serve_builder(index))?;
        self.builders.reuse(ready);
        self.relay_news();
        self.connect_absent_builders()?;
        self.produce_fragments()?;
        self.serve_acquisition()?;
        self.flush_messages()?;
        handle.publish_snapshot(|| self.take_snapshot());
        if self.builders.all_are_done() { self.deliver_last_messages(woken, handle) } else { Ok(None) }
    }

    /// Returns how to wait for the next turn. There is nothing to wait for if only memory has to be checked again.
    fn idle(&mut self) -> Idle {
        let now = self.clock.now();
        let timeout = self.time_to_next_turn(now);
        self.sleeps_until = timeout.map(|timeout| now + timeout);
        self.builders.next_idle(timeout, now)
    }

    fn poller(&self) -> &Arc<Poller> {
        self.builders.poller()
    }
}

impl SourceNode {
    /// Creates slots and checks that they suit the device and the builders.
    ///
    /// # Errors
    /// They do not suit, or the system refuses memory or a descriptor.
    pub fn new(settings: SourceSettings) -> Result<Self, NodeError> {
        Self::with_environment(settings, Environment::system())
    }

    /// Does the same as [`new`](Self::new), in a given environment.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn with_environment(mut settings: SourceSettings, environment: Environment) -> Result<Self, NodeError> {
        let Environment { clock, session, .. } = environment;
        let cpu_before = clock.processor_time();
        let longest = settings.feed.max_payload();
        if record_bytes(longest) > settings.slot_bytes {
            return Err(NodeError::Config(format!(
                "source '{}': a slot of {} bytes cannot hold a fragment of {longest} bytes and its header; set slot \
                 to at least {}",
                settings.name,
                settings.slot_bytes,
                record_bytes(longest)
            )));
        }
        let slots = Slots::new(make_slots(&settings)?);
        let description = describe_as_json(&settings)?;
        let mut endpoints =
            Endpoints::new()?.with_adapter(settings.adapter.clone()).with_builders(&settings.builders)?;
        endpoints.register_memory(slots.slot_arena())?;
        if let Feed::Acquisition(device) = &mut settings.feed {
            device.register_memory(slots.slot_arena())?;
        }
        let created_at = clock.now();
        let hello = leading_hello(&settings, session, longest, &description);
        tracing::info!(
            source = settings.name,
            slots = settings.slots,
            slot_bytes = settings.slot_bytes,
            "arena of {} made of {}",
            slots.slot_arena().size_bytes(),
            slots.slot_arena()
        );
        Ok(Self {
            builders: Builders::new(&settings, endpoints, (hello, &description), &slots, created_at),
            assignments: Assignments::new(settings.builders.len()),
            course: Course::new(),
            pace: Pace::new(settings.rate, settings.burst),
            acquiring: Acquiring::new(&settings.feed),
            times: None,
            began_at: None,
            cpu_created: cpu_before,
            cpu_before,
            strays_before: 0,
            earlier_not_taken: NotTaken::default(),
            sleeps_until: None,
            clock,
            slots,
            setup: Setup {
                name: settings.name,
                id: settings.id,
                policy: settings.policy,
                wait: settings.wait,
                cpu: settings.cpu,
            },
            feed: settings.feed,
        })
    }

    /// Makes the node search for its builders without limit until a run begins, instead of failing after
    /// [`SourceSettings::timeout`].
    #[must_use]
    pub fn waiting(mut self) -> Self {
        self.builders.search_without_limit();
        self
    }

    /// Runs the node until the run is over.
    ///
    /// # Errors
    /// No builder was found in time, one refused this source for good, or its device failed.
    pub fn run(mut self, handle: &Handle) -> Result<SourceReport, NodeError> {
        run_as_node(&self.setup.name.clone(), self.setup.cpu, || drive_node(&mut self, handle))
    }

    /// Delivers the last messages, and then returns the report.
    fn deliver_last_messages(&mut self, woken: &[u64], handle: &Handle) -> Result<Option<SourceReport>, NodeError> {
        if !self.builders.deliver_last_messages(woken, self.clock.now()) {
            return Ok(None);
        }
        handle.publish_final_snapshot(self.take_snapshot());
        self.builders.take_failure().map_or_else(|| Ok(Some(self.final_report())), Err)
    }

    /// Carries out commands from outside. A stop makes the source end its own part of the run.
    fn obey_commands(&mut self, handle: &Handle) -> Result<(), NodeError> {
        handle.clear_doorbell();
        while let Some(request) = handle.next_request() {
            let result = match (&request.command, self.course.current_phase()) {
                (NodeCommand::Control(Command::Stop), Phase::Ending) => Ok(()),
                (NodeCommand::Control(Command::Stop), Phase::Running | Phase::Paused) => {
                    self.end_part();
                    Ok(())
                }
                (NodeCommand::Control(command @ (Command::Stop | Command::Abort)), Phase::Waiting)
                    if self.builders.waits_for_run() && !handle.was_end_requested() =>
                {
                    Err(CommandRefusal(format!("cannot {command}: no run has begun; write quit to end the node")))
                }
                (NodeCommand::Control(Command::Stop | Command::Abort), _) => {
                    request.answer(Ok(()));
                    return Err(NodeError::Stopped);
                }
                (command, _) => Err(CommandRefusal(format!("a source cannot {command}: it follows its builders"))),
            };
            if let Some(refusal) = request.answer(result) {
                tracing::warn!("{refusal}");
            }
        }
        Ok(())
    }

    fn time_to_next_turn(&self, now: Duration) -> Option<Duration> {
        if let Some(timeout) = self.builders.leaving_timeout(now) {
            return Some(timeout);
        }
        let due = match (&self.feed, self.course.current_phase(), self.course.is_blocked()) {
            (Feed::Device(_), Phase::Running, false) => Some(self.pace.next_due(now)),
            (Feed::Acquisition(device), Phase::Running, _) => device.next_poll_time(),
            (Feed::Acquisition(_), ..) => self.acquiring.idle_until(),
            _ => None,
        };
        self.builders.next_due_time().into_iter().chain(due).min().map(|at| at.saturating_sub(now))
    }

    fn take_snapshot(&self) -> Snapshot {
        let counts = self.course.taken_counts();
        Snapshot {
            state: self.course.visible_state(),
            at_nanos: u64::try_from(self.clock.now().as_nanos()).unwrap_or(u64::MAX),
            dead_nanos: self.not_taken_counts().dead_nanos,
            bytes: counts.bytes,
            fragments: counts.fragments,
            events: counts.fragments,
            stalls: counts.stalls,
            connected: self.builders.welcome_count() as u64,
            ..Snapshot::default()
        }
    }

    fn device_counters(&self) -> BTreeMap<String, u64> {
        let Feed::Acquisition(device) = &self.feed else { return BTreeMap::new() };
        device
            .report_counters()
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| (name.into(), count))
            .collect()
    }

    /// Returns the number of the device's frames that belong to no event.
    fn stray_frame_count(&self) -> u64 {
        match &self.feed {
            Feed::Acquisition(device) => device.stray_frame_count(),
            _ => 0,
        }
    }

    /// Returns the counts of what the device had in this run and the source did not take.
    fn not_taken_counts(&self) -> NotTaken {
        let of_no_event = self.stray_frame_count() - self.strays_before;
        NotTaken { of_no_event, device_away: self.acquiring.has_given_up(), ..self.pace.not_taken() }
    }

    fn final_report(&self) -> SourceReport {
        let (total, counts, not_taken, earlier) = (
            self.builders.total_accounts(),
            self.course.taken_counts(),
            self.not_taken_counts(),
            self.earlier_not_taken,
        );
        SourceReport {
            name: self.setup.name.clone(),
            source: self.setup.id.to_string(),
            seconds: self.began_at.map_or(0.0, |began_at| (self.clock.now() - began_at).as_secs_f64()),
            bytes: counts.bytes,
            accepted: total.accepted,
            dropped_newest: total.dropped_newest,
            dropped_oldest: total.dropped_oldest,
            lost_in_device: counts.lost_in_device,
            device: self.device_counters(),
            not_taken: earlier.fragments + not_taken.fragments,
            of_no_event: earlier.of_no_event + not_taken.of_no_event,
            dead_seconds: Duration::from_nanos(earlier.dead_nanos + not_taken.dead_nanos).as_secs_f64(),
            blocked: counts.stalls,
            copied_bytes: total.copied_bytes,
            cpu_seconds: (self.clock.processor_time() - self.cpu_created).as_secs_f64(),
            datagrams: self.builders.datagram_arrivals(),
            pages: self.slots.slot_arena().to_string(),
            wait: self.setup.wait,
        }
    }
}

/// Returns the hello for the first builder.
#[expect(clippy::cast_possible_truncation, reason = "slots are at most 1 GiB, builders few")]
fn leading_hello(settings: &SourceSettings, session: u64, longest: usize, description: &str) -> Hello {
    let by_time = if settings.feed.is_numbered_by_time() { Capabilities::BY_TIME } else { Capabilities::empty() };
    Hello {
        session,
        source: settings.id,
        builder: 0,
        builders: settings.builders.len() as u32,
        slots: settings.slots,
        slot_bytes: settings.slot_bytes as u32,
        max_payload: longest as u32,
        capabilities: settings.policy.announced_capabilities()
            | Capabilities::ASSIGNED
            | Capabilities::TRIGGER_TIMES
            | Capabilities::NEXT_RUN
            | by_time,
        description: description.len() as u32,
    }
}

/// Creates slots as the device wants them. If it cannot have them so, logs a warning and creates ordinary ones.
fn make_slots(settings: &SourceSettings) -> Result<SlotPool, ArenaError> {
    let SourceSettings { name, slots, slot_bytes, feed, .. } = settings;
    if matches!(feed, Feed::Acquisition(device) if device.takes_dma_bufs()) {
        match SlotPool::with_dma_bufs(name, *slots, *slot_bytes) {
            Err(error @ ArenaError::DmaBuf { .. }) => {
                tracing::warn!(source = name, "slots cannot be DMA buffers: {error}")
            }
            made => return made,
        }
    }
    SlotPool::new(name, *slots, *slot_bytes)
}

fn describe_as_json(settings: &SourceSettings) -> Result<String, NodeError> {
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
            "source '{}': its description has {} bytes of JSON, more than the limit of {}",
            settings.name,
            text.len(),
            Message::MAX_DESCRIPTION
        )));
    }
    Ok(text)
}
