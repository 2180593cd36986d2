//! The state machine of run control.

use crate::control::boundary::Boundary;
use crate::control::time::{LONGEST_STEP, Pace};
use crate::control::{Cause, Command, Config, Order, Refused, SourceCommand, State};
use std::collections::VecDeque;
use std::time::Duration;
use thalweg_wire::{EventId, RunNumber};

/// State of the events, as queried by run control.
pub trait Facts {
    /// Returns the first event that a source has not mentioned.
    fn offered_until(&self, source: usize) -> EventId;
    /// Returns the first event that is not assigned, where events are assigned to builders: no source can have accepted
    /// it. `None` otherwise.
    fn assigned_until(&self) -> Option<EventId> {
        None
    }
    /// Returns the number after the highest event that is closed: the run cannot end before this event.
    fn closed_until(&self) -> EventId;
    /// Returns the first event that is not closed.
    fn oldest_event(&self) -> EventId {
        self.closed_until()
    }
    /// Returns whether a source has ended and all its fragments are delivered, or it was given up.
    fn is_settled(&self, source: usize) -> bool;
    /// Returns whether bytes requested from a source have not arrived.
    fn owes_bytes(&self, source: usize) -> bool;
    /// Returns whether every source is settled, and every event closed and taken.
    fn is_finished(&self) -> bool;
}

/// Run control of one builder; see the crate's documentation.
///
/// Times are those of any clock, counted from anywhere. Sources are named by their index.
#[derive(Debug)]
pub struct RunControl {
    pub(crate) config: Config,
    pub(crate) phase: Phase,
    pub(crate) pace: Pace,
    pub(crate) sources: Vec<Source>,
    /// First event beyond the end of the run, as far as the end is known.
    pub(crate) end: Option<EventId>,
    pub(crate) began: Duration,
    pub(crate) cause: Option<Cause>,
    /// True once a stop was requested: a further request ends the run at once.
    pub(crate) stop_requested: bool,
    /// Commands received while a run was being opened.
    pub(crate) kept_commands: Vec<Command>,
    /// First event of the next run, and time at which it was decided on; `None` if no run is under way to the next one.
    pub(crate) boundary: Option<EventId>,
    /// First event of the run, or of the latest step or run that was agreed on.
    pub(crate) last_boundary: EventId,
    pub(crate) next_began: Duration,
    /// True if there is a reason to end the next run as soon as it has begun: slow sources are not waited for.
    pub(crate) must_end_next: bool,
    pub(crate) orders: VecDeque<Order>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Idle,
    /// Waiting for sources to connect.
    Configured {
        waited: Duration,
    },
    /// All sources are connected. The leading builder waits for the command to start; the others wait for the leading one.
    Armed {
        waited: Duration,
        /// Time since which a source has relayed that the leading builder has begun.
        relayed: Duration,
    },
    Starting,
    Running,
    Pausing {
        waited: Duration,
    },
    Paused,
    /// The positions of the sources are requested, to find the boundary for this purpose.
    Agreeing {
        waited: Duration,
        boundary: Boundary,
    },
    /// The next run is agreed on; sources go on up to its first event, and what is before that is built. `is_due`: that
    /// is done.
    Switching {
        is_due: bool,
    },
    /// Stopping: the positions of the sources are requested.
    Asking {
        waited: Duration,
    },
    /// Stopping: the end is known, and sources go on up to it. `last`: the end will not be moved any more. Otherwise
    /// `lap` is the time since sources were last checked for being behind.
    Ending {
        last: bool,
        lap: Duration,
    },
    Closing,
    Error,
}

/// State of a source, as far as it is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Source {
    /// True if it is connected.
    pub(crate) present: bool,
    /// True if it has connected before.
    pub(crate) known: bool,
    /// True if it was given up for this run.
    pub(crate) out: bool,
    /// True if it has sent its final counters.
    pub(crate) ended: bool,
    /// Number of events that it can have accepted and not offered: the capacity of its slots.
    pub(crate) room: u64,
    /// True if another builder has sent it a request to end the run.
    pub(crate) end_requested: bool,
    /// First event that it has not accepted, as reported when it was paused.
    pub(crate) next: Option<EventId>,
    /// True if it has relayed that the leading builder had paused the run and has resumed it.
    pub(crate) resumed: bool,
    /// True if it has relayed that the leading builder has begun the run.
    pub(crate) runs_elsewhere: bool,
    /// End of the run set by the leading builder, as relayed by this source.
    pub(crate) end_elsewhere: Option<EventId>,
    /// True if this source ends where it is: it does not reach the end of the run, and the events that it lacks are not
    /// waited for.
    pub(crate) ends_here: bool,
    /// First event and number of the next run that the leading builder has set, as relayed by this source.
    pub(crate) next_elsewhere: Option<(EventId, RunNumber)>,
    /// Latest run that all other builders have begun, as this source reports.
    pub(crate) begun_elsewhere: RunNumber,
    /// True if it has sent its counters of the run under way, and all it sends is of the next one.
    pub(crate) has_crossed: bool,
    /// True if the next run begins at this source where it is.
    pub(crate) crosses_here: bool,
    /// First event that it had not offered when the present lap began.
    pub(crate) lap_began: EventId,
    /// Time for which it has kept the run from ending.
    pub(crate) waited: Duration,
    /// First event that it had not offered at the last check.
    pub(crate) reached: EventId,
}

impl Source {
    /// Returns whether it may yet accept events.
    pub(crate) fn may_accept_events(&self) -> bool {
        !self.out && !self.ended
    }
}

/// Maximum number of commands kept until a run is open.
const MAX_KEPT_COMMANDS: usize = 8;

impl RunControl {
    /// Returns run control with no run prepared.
    pub fn new(config: Config) -> Self {
        Self {
            sources: vec![Source::default(); config.sources],
            phase: Phase::Idle,
            pace: Pace::default(),
            end: config.end,
            began: Duration::ZERO,
            cause: None,
            stop_requested: false,
            kept_commands: Vec::new(),
            boundary: None,
            last_boundary: config.first,
            next_began: Duration::ZERO,
            must_end_next: false,
            orders: VecDeque::new(),
            config,
        }
    }

    /// Returns the state, as shown to users.
    pub fn run_state(&self) -> State {
        match self.phase {
            Phase::Idle => State::Idle,
            Phase::Configured { .. } => State::Configured,
            Phase::Armed { .. } => State::Armed,
            Phase::Starting => State::Starting,
            Phase::Running => State::Running,
            Phase::Pausing { .. } | Phase::Agreeing { boundary: Boundary::Step, .. } => State::Pausing,
            Phase::Agreeing { boundary: Boundary::NextRun, .. } | Phase::Switching { .. } => State::Switching,
            Phase::Paused => State::Paused,
            Phase::Asking { .. } | Phase::Ending { .. } => State::Stopping,
            Phase::Closing => State::Closing,
            Phase::Error => State::Error,
        }
    }

    /// Returns whether sources are to accept nothing now. No deadline passes meanwhile.
    pub fn holds_sources(&self) -> bool {
        matches!(self.phase, Phase::Pausing { .. } | Phase::Paused | Phase::Agreeing { .. } | Phase::Asking { .. })
    }

    /// Returns the reason why the run ends; `None` while it does not.
    pub fn end_cause(&self) -> Option<&Cause> {
        self.cause.as_ref()
    }

    /// Returns the event before which the run ends, as far as that is known.
    pub fn known_end(&self) -> Option<EventId> {
        self.end
    }

    /// Returns whether the run was to end at once.
    pub fn is_aborted(&self) -> bool {
        self.cause == Some(Cause::Abort)
    }

    /// Returns the sources that the present state waits for.
    pub fn awaited_sources(&self) -> impl Iterator<Item = usize> + Clone {
        let waited_for = self.sources.iter().enumerate().filter(|(_, source)| match self.phase {
            Phase::Configured { .. } => !source.present,
            Phase::Pausing { .. } | Phase::Agreeing { .. } | Phase::Asking { .. } => {
                source.present && source.may_accept_events() && source.next.is_none()
            }
            Phase::Switching { .. } => source.may_accept_events() && !source.has_crossed,
            Phase::Ending { .. } => source.may_accept_events(),
            _ => false,
        });
        waited_for.map(|(index, _)| index)
    }

    /// Returns whether a source may yet accept events.
    pub fn may_accept_events(&self, source: usize) -> bool {
        self.sources[source].may_accept_events()
    }

    /// Notes that memory, addresses and the directory are ready.
    pub fn handle_configured(&mut self) {
        self.phase = Phase::Configured { waited: Duration::ZERO };
    }

    /// Executes a command. [`Command::Stop`], given a second time, ends the run at once.
    ///
    /// # Errors
    /// The command has no meaning in the present state.
    pub fn execute_command(&mut self, command: Command) -> Result<(), Refused> {
        let refused = Refused { command, state: self.run_state() };
        match (command, self.phase) {
            (Command::Start, Phase::Armed { .. }) => self.begin_run(),
            (Command::Pause, Phase::Running) if self.config.leads => {
                self.phase = Phase::Pausing { waited: Duration::ZERO };
                self.send_to_live(|_| SourceCommand::Pause);
            }
            (Command::Resume, Phase::Pausing { .. } | Phase::Paused) if self.config.leads => {
                self.resume_sources();
            }
            (Command::Stop | Command::Abort, Phase::Configured { .. } | Phase::Armed { .. }) => {
                self.leave_run(Cause::Command)
            }
            // The run is being opened: commands received meanwhile are executed afterwards.
            (Command::Pause | Command::Resume | Command::Stop | Command::Abort, Phase::Starting)
                if self.kept_commands.len() < MAX_KEPT_COMMANDS =>
            {
                self.kept_commands.push(command);
            }
            (Command::Pause | Command::Resume, Phase::Switching { .. })
                if self.kept_commands.len() >= MAX_KEPT_COMMANDS =>
            {
                return Err(refused);
            }
            (Command::Pause | Command::Resume | Command::Stop | Command::Abort, Phase::Switching { .. }) => {
                self.keep_command(command);
            }
            (Command::Stop, Phase::Running | Phase::Pausing { .. } | Phase::Paused | Phase::Agreeing { .. }) => {
                self.stop_requested = true;
                self.stop_run(Cause::Command);
            }
            (Command::Stop, Phase::Asking { .. } | Phase::Ending { .. } | Phase::Closing) => {
                // A first command while the run is ending for another reason is not a repeated one.
                match std::mem::replace(&mut self.stop_requested, true) {
                    true => self.abort_run(),
                    false => self.stop_run(Cause::Command),
                }
            }
            (Command::Abort, _) if self.run_state().has_begun() => self.abort_run(),
            _ => return Err(refused),
        }
        Ok(())
    }

    /// Notes that a source has connected and identified itself; its slots hold at most `room` events.
    pub fn source_connected(&mut self, source: usize, room: u64) {
        let source = &mut self.sources[source];
        source.present = true;
        source.out = false;
        source.room = room;
        let is_new = !std::mem::replace(&mut source.known, true);
        if let Phase::Configured { waited } = &mut self.phase
            && is_new
        {
            // As long as new sources connect, the others are waited for.
            *waited = Duration::ZERO;
        }
    }

    /// Returns the messages that bring a source up to date with the run. Repeating them does no harm.
    pub fn messages_for(&self, source: usize) -> Vec<SourceCommand> {
        if !self.run_state().has_begun() {
            return Vec::new();
        }
        let end = self.end.filter(|_| self.config.leads).map(|end| self.stop_request_for(source, end));
        let held = match self.holds_sources() {
            true => Some(SourceCommand::Pause),
            false => self.config.leads.then_some(SourceCommand::Resume),
        };
        let boundary = self.boundary_messages_for(source);
        let end = if boundary.is_empty() { end } else { None };
        let begin = std::iter::once(SourceCommand::Start).chain(boundary);
        begin.chain([end, held].into_iter().flatten()).collect()
    }

    /// Notes that the connection of a source is down; it may come back.
    pub fn source_disconnected(&mut self, source: usize) {
        self.sources[source].present = false;
    }

    /// Notes that a source was given up for the rest of the run.
    pub fn source_given_up(&mut self, source: usize) {
        self.sources[source].out = true;
    }

    /// Takes a source's report of the first event it has not accepted, requested by builder `asked_by`. If that is the
    /// leading builder, which is number 0, the source accepts nothing more. If it is another one, that builder wants
    /// the run to end, and the source goes on.
    pub fn source_paused(&mut self, source: usize, next: EventId, asked_by: u32) {
        let source = &mut self.sources[source];
        match self.config.leads && asked_by > 0 {
            true => source.end_requested = true,
            false => (source.next, source.resumed) = (Some(next), false),
        }
    }

    /// Takes a source's relay that the leading builder has begun the run or has resumed it. The source accepts events
    /// again, and time counts for sources that do not: a source that is gone must not keep this builder from believing
    /// the others.
    pub fn handle_relayed_run(&mut self, source: usize) {
        let source = &mut self.sources[source];
        source.runs_elsewhere = true;
        source.resumed |= source.next.take().is_some();
    }

    /// Takes a source's relay that the leading builder ends the run before this event; the source goes on up to there.
    pub fn handle_relayed_end(&mut self, source: usize, end: EventId) {
        self.handle_relayed_run(source);
        self.sources[source].end_elsewhere = Some(end);
    }

    /// Notes that a source has sent its final counters.
    pub fn source_ended(&mut self, source: usize) {
        self.sources[source].ended = true;
    }

    /// Sets whether the builder itself holds its sources up, because what is downstream of it takes no more data.
    pub fn set_held_up(&mut self, held_up: bool) {
        self.pace.set_held_up(held_up);
    }

    /// Notes that the run is open: [`Order::Begin`] was carried out. Returns the commands received meanwhile that now
    /// have no meaning.
    pub fn run_opened(&mut self, now: Duration) -> Vec<Refused> {
        if self.phase != Phase::Starting {
            return Vec::new();
        }
        self.pace.advance_to(now);
        self.phase = Phase::Running;
        self.began = self.pace.elapsed();
        self.orders.extend(self.end.map(Order::EndAt));
        for source in 0..self.sources.len() {
            let messages = self.messages_for(source);
            self.orders.extend(messages.into_iter().map(|message| Order::SourceCommand(source, message)));
        }
        let kept = std::mem::take(&mut self.kept_commands);
        kept.into_iter().filter_map(|command| self.execute_command(command).err()).collect()
    }

    /// Notes that the run could not be opened.
    pub fn run_failed(&mut self) {
        self.phase = Phase::Error;
    }

    /// Notes that everything is on disk: [`Order::Close`] was carried out.
    pub fn run_closed(&mut self) {
        self.phase = Phase::Idle;
    }

    /// Ends the run for this cause, unless it is ending already. A run that waits for its last sources, however slow
    /// they are, ends within its timeout from now on. On the way to the next run, slow sources are not waited for; call
    /// this again once that run has begun, to end it.
    pub fn stop_run(&mut self, cause: Cause) {
        self.must_end_next |= matches!(self.phase, Phase::Switching { .. });
        let is_under_way =
            matches!(self.phase, Phase::Running | Phase::Pausing { .. } | Phase::Paused | Phase::Agreeing { .. });
        if !is_under_way && !self.is_patient() {
            return;
        }
        self.cause = Some(cause);
        if matches!(self.phase, Phase::Running | Phase::Ending { .. }) {
            // Reports received while the run was being resumed are not answers to this request.
            self.sources.iter_mut().for_each(|source| source.next = None);
        }
        self.phase = Phase::Asking { waited: Duration::ZERO };
        // A builder that does not lead sends the request to all sources: that is how the leading builder is informed.
        let leads = self.config.leads;
        self.send_to_live(|source| (!leads || source.next.is_none()).then_some(SourceCommand::Pause));
    }

    /// Advances the time; to be called whenever something has happened, and at [`next_check_time`](Self::next_check_time).
    pub fn advance_time(&mut self, now: Duration, facts: &impl Facts) {
        let (passed, free) = self.pace.advance_to(now);
        match &mut self.phase {
            Phase::Configured { waited } => {
                *waited += passed;
                let waited = *waited;
                self.gather_sources(waited);
            }
            Phase::Armed { waited, relayed } => {
                *waited += passed;
                if self.sources.iter().any(|source| source.runs_elsewhere) {
                    *relayed += passed;
                }
                let (waited, relayed) = (*waited, *relayed);
                self.wait_armed(waited, relayed);
            }
            Phase::Pausing { waited } => {
                *waited += passed;
                if *waited >= self.config.time_to_answer() || self.awaited_sources().next().is_none() {
                    self.phase = Phase::Paused;
                }
                self.check_end_conditions(facts);
            }
            Phase::Running | Phase::Paused => self.check_end_conditions(facts),
            Phase::Agreeing { waited, boundary } => {
                *waited += passed;
                let (waited, boundary) = (*waited, *boundary);
                self.await_boundary(waited, boundary, facts);
            }
            Phase::Switching { .. } => self.wait_for_crossing(free, facts),
            Phase::Asking { waited } => {
                *waited += passed;
                let waited = *waited;
                self.await_positions(waited, facts);
            }
            Phase::Ending { .. } => self.wait_for_end(free, facts),
            Phase::Idle | Phase::Starting | Phase::Closing | Phase::Error => {}
        }
        if let Phase::Switching { is_due } = &mut self.phase {
            if facts.is_finished() && !std::mem::replace(is_due, true) {
                self.orders.push_back(Order::BeginNext);
            }
        } else if self.run_state().has_begun() && self.phase != Phase::Closing && facts.is_finished() {
            self.cause.get_or_insert(Cause::Sources);
            self.phase = Phase::Closing;
            self.orders.push_back(Order::Close);
        }
    }

    /// Returns when [`advance_time`](Self::advance_time) is to be called again even if nothing happens; `None` if never.
    pub fn next_check_time(&self) -> Option<Duration> {
        let now = self.pace.last_reading();
        match self.phase {
            Phase::Running | Phase::Paused => {
                let left = self.config.duration.map(|duration| duration.saturating_sub(self.run_duration()));
                Some(now + left.unwrap_or(Duration::MAX).min(LONGEST_STEP / 2))
            }
            Phase::Armed { .. } if !self.awaits_leader() => None,
            Phase::Configured { .. }
            | Phase::Armed { .. }
            | Phase::Pausing { .. }
            | Phase::Agreeing { .. }
            | Phase::Switching { .. }
            | Phase::Asking { .. }
            | Phase::Ending { .. } => Some(now + LONGEST_STEP / 4),
            Phase::Idle | Phase::Starting | Phase::Closing | Phase::Error => None,
        }
    }

    /// Returns the next order for the node; `None` if there is none.
    pub fn next_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// Returns the time for which the run has lasted.
    pub(crate) fn run_duration(&self) -> Duration {
        self.pace.elapsed() - self.began
    }

    fn begin_run(&mut self) {
        self.phase = Phase::Starting;
        self.orders.push_back(Order::Begin);
    }

    fn leave_run(&mut self, cause: Cause) {
        self.phase = Phase::Idle;
        self.cause = Some(cause.clone());
        self.orders.push_back(Order::Leave(cause));
    }

    fn abort_run(&mut self) {
        self.cause = Some(Cause::Abort);
        if self.phase != Phase::Closing {
            self.phase = Phase::Closing;
            if self.config.builders > 1 {
                // The messages that the sources relay end the run at the other builders too.
                let message = if self.config.leads {
                    SourceCommand::StopAt { end: self.config.first, end_here: false }
                } else {
                    SourceCommand::Pause
                };
                self.send_to_live(|_| message);
            }
            self.orders.extend([Order::Abandon, Order::Close]);
        }
    }

    fn gather_sources(&mut self, waited: Duration) {
        let absent: Vec<usize> = self.awaited_sources().collect();
        if absent.is_empty() {
            match self.config.starts_alone && self.config.leads {
                true => self.begin_run(),
                false => self.phase = Phase::Armed { waited: Duration::ZERO, relayed: Duration::ZERO },
            }
        } else if self.is_started_elsewhere() && absent.iter().all(|source| self.sources[*source].known) {
            // Sources that were here before the run began elsewhere may come back.
            self.begin_run();
        } else if self.config.starts_alone && waited >= self.config.timeout {
            let (left, missing) = absent.into_iter().partition(|source| self.sources[*source].known);
            self.leave_run(Cause::Absent { missing, left, timeout: self.config.timeout });
        }
    }

    /// Returns whether this builder begins the run once the leading builder has.
    fn awaits_leader(&self) -> bool {
        self.config.starts_alone && !self.config.leads
    }

    /// Waits for the beginning of the run with all sources connected. `waited`: time for which it has waited; `relayed`:
    /// time for which a source has relayed that the leading builder has begun.
    fn wait_armed(&mut self, waited: Duration, relayed: Duration) {
        // The leading builder waits anew whenever another source connects.
        let limit = self.config.timeout * u32::try_from(self.sources.len()).unwrap_or(u32::MAX).saturating_add(1);
        // A source that hangs does not relay anything.
        if self.is_started_elsewhere() || self.awaits_leader() && relayed >= self.config.time_to_answer() {
            self.begin_run();
        } else if self.sources.iter().any(|source| !source.present) {
            self.handle_configured();
        } else if self.awaits_leader() && waited >= limit {
            self.leave_run(Cause::NotLed(limit));
        }
    }

    /// Checks for conditions that end a run that is under way.
    fn check_end_conditions(&mut self, facts: &impl Facts) {
        // While the leading builder holds sources, some may have events to come that belong to other builders, or come
        // too late here.
        let holds = self.config.leads && self.holds_sources();
        let follows = self.agreed_next_run().is_some();
        if !holds && !follows && self.end.is_some_and(|end| facts.oldest_event() >= end) {
            // Every event is closed: only the final counters are waited for.
            self.cause = Some(Cause::Events);
            self.phase = Phase::Ending { last: true, lap: Duration::ZERO };
        } else if let Some(cause) = self.reason_to_end() {
            self.stop_run(cause);
        } else if let Some((first, run)) = self.agreed_next_run() {
            self.follow_to_next_run(first, run, facts);
        } else if let Some(end) = self.agreed_end() {
            self.end_as_relayed(end);
        } else if !self.config.leads {
            self.phase =
                if self.most_received(|source| source.next.is_some()) { Phase::Paused } else { Phase::Running };
        }
    }

    /// Returns why the leading builder is to end the run now, if it is.
    pub(crate) fn reason_to_end(&self) -> Option<Cause> {
        if !self.config.leads {
            return None;
        }
        if self.config.duration.is_some_and(|duration| self.run_duration() >= duration) {
            return Some(Cause::Duration);
        }
        self.most_received(|source| source.end_requested).then_some(Cause::OtherBuilder)
    }

    /// Sends a message to every source that is connected and may yet accept events.
    pub(crate) fn send_to_live<T: Into<Option<SourceCommand>>>(&mut self, message: impl Fn(&Source) -> T) {
        for (index, source) in
            self.sources.iter().enumerate().filter(|(_, source)| source.present && source.may_accept_events())
        {
            self.orders.extend(message(source).into().map(|message| Order::SourceCommand(index, message)));
        }
    }
}
