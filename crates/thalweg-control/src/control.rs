//! The state machine.

use crate::time::Pace;
use crate::{Cause, Command, Config, Order, Refused, State, Tell};
use std::collections::VecDeque;
use std::time::Duration;
use thalweg_wire::EventId;

/// What run control asks of the events.
pub trait Facts {
    /// The first event that a source has not mentioned.
    fn offered_until(&self, source: usize) -> EventId;
    /// Where events are assigned to builders, the first that is not: no source can have accepted it.
    fn assigned_until(&self) -> Option<EventId> {
        None
    }
    /// One past the highest event that is closed: no end may lie in front of it.
    fn closed_until(&self) -> EventId;
    /// The first event that is not closed.
    fn oldest_event(&self) -> EventId {
        self.closed_until()
    }
    /// Whether a source has ended and all it had is delivered, or it was given up.
    fn is_settled(&self, source: usize) -> bool;
    /// Whether a source was asked for bytes that have not come.
    fn owes(&self, source: usize) -> bool;
    /// Whether every source is settled, and every event closed and taken.
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
    /// The run ends in front of this event, as far as that is known.
    pub(crate) end: Option<EventId>,
    pub(crate) began: Duration,
    pub(crate) cause: Option<Cause>,
    /// It was asked to stop: asked again, it ends at once.
    pub(crate) asked_to_stop: bool,
    /// What was asked for while the run was being opened.
    pub(crate) when_begun: Vec<Command>,
    pub(crate) orders: VecDeque<Order>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Idle,
    /// Sources are waited for.
    Configured {
        waited: Duration,
    },
    Armed,
    Starting,
    Running,
    Pausing {
        waited: Duration,
    },
    Paused,
    /// Stopping: sources are asked how far they are.
    Asking {
        waited: Duration,
    },
    /// Stopping: the end is known, and sources go on up to there. `last`: it will not be moved any more; else `lap` is
    /// how long it has been since it was last looked at who is behind.
    Ending {
        last: bool,
        lap: Duration,
    },
    Closing,
    Error,
}

/// What is known of a source.
#[derive(Debug, Clone, Default)]
pub(crate) struct Source {
    /// It is connected.
    pub(crate) present: bool,
    /// It was connected before.
    pub(crate) known: bool,
    /// It was given up for this run.
    pub(crate) out: bool,
    /// It has sent its final counters.
    pub(crate) ended: bool,
    /// How many events it can have accepted and not offered: what its slots hold.
    pub(crate) room: u64,
    /// Another builder has told it that the run is to end.
    pub(crate) told_to_end: bool,
    /// The first event that it has not accepted, as it said when it was paused.
    pub(crate) next: Option<EventId>,
    /// The builder that leads had paused the run, and has it go on, as this source passes on.
    pub(crate) resumed: bool,
    /// The builder that leads has begun the run, as this source passes on.
    pub(crate) runs_elsewhere: bool,
    /// Where the builder that leads has the run end, as this source passes on.
    pub(crate) end_elsewhere: Option<EventId>,
    /// Where it ends, since it does not get to the end of the run and nobody waits for what it has not.
    pub(crate) own_end: Option<EventId>,
    /// The first event that it had not offered when the present lap began.
    pub(crate) lap_began: EventId,
    /// For how long it has kept the run from ending.
    pub(crate) waited: Duration,
    /// The first event that it had not offered when it was looked at last.
    pub(crate) reached: EventId,
}

impl Source {
    /// Whether it may yet accept events.
    pub(crate) fn is_live(&self) -> bool {
        !self.out && !self.ended
    }
}

/// Commands that are kept until the run is open.
const MAX_WHEN_BEGUN: usize = 8;

impl RunControl {
    /// Nothing is prepared.
    pub fn new(config: Config) -> Self {
        Self {
            sources: vec![Source::default(); config.sources],
            phase: Phase::Idle,
            pace: Pace::default(),
            end: config.end,
            began: Duration::ZERO,
            cause: None,
            asked_to_stop: false,
            when_begun: Vec::new(),
            orders: VecDeque::new(),
            config,
        }
    }

    /// The state, as people know it.
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Idle => State::Idle,
            Phase::Configured { .. } => State::Configured,
            Phase::Armed => State::Armed,
            Phase::Starting => State::Starting,
            Phase::Running => State::Running,
            Phase::Pausing { .. } => State::Pausing,
            Phase::Paused => State::Paused,
            Phase::Asking { .. } | Phase::Ending { .. } => State::Stopping,
            Phase::Closing => State::Closing,
            Phase::Error => State::Error,
        }
    }

    /// Whether sources are to accept nothing now. No deadline passes meanwhile.
    pub fn holds_sources(&self) -> bool {
        matches!(self.phase, Phase::Pausing { .. } | Phase::Paused | Phase::Asking { .. })
    }

    /// Why the run ends, once that is so.
    pub fn cause(&self) -> Option<&Cause> {
        self.cause.as_ref()
    }

    /// The event the run ends in front of, as far as that is known.
    pub fn end(&self) -> Option<EventId> {
        self.end
    }

    /// Whether the run was to end at once.
    pub fn is_aborted(&self) -> bool {
        self.cause == Some(Cause::Abort)
    }

    /// The sources that the present state waits for.
    pub fn waits_for(&self) -> impl Iterator<Item = usize> + Clone {
        let waits = |source: &Source| match self.phase {
            Phase::Configured { .. } => !source.present,
            Phase::Pausing { .. } | Phase::Asking { .. } => source.present && source.is_live() && source.next.is_none(),
            Phase::Ending { .. } => source.is_live(),
            _ => false,
        };
        self.sources.iter().enumerate().filter(move |(_, source)| waits(source)).map(|(index, _)| index)
    }

    /// Whether a source may yet accept events.
    pub fn is_live(&self, source: usize) -> bool {
        self.sources[source].is_live()
    }

    /// Memory, addresses and the directory are there.
    pub fn configured(&mut self) {
        self.phase = Phase::Configured { waited: Duration::ZERO };
    }

    /// Someone asks for something. [`Command::Stop`], asked for again, means at once.
    ///
    /// # Errors
    /// The command means nothing in the present state.
    pub fn command(&mut self, command: Command) -> Result<(), Refused> {
        let refused = Refused { command, state: self.state() };
        match (command, self.phase) {
            (Command::Start, Phase::Armed) => self.begin(),
            (Command::Pause, Phase::Running) if self.config.leads => {
                self.phase = Phase::Pausing { waited: Duration::ZERO };
                self.tell_live(|_| Tell::Pause);
            }
            (Command::Resume, Phase::Pausing { .. } | Phase::Paused) if self.config.leads => {
                self.phase = Phase::Running;
                self.sources.iter_mut().for_each(|source| source.next = None);
                self.tell_live(|_| Tell::Resume);
            }
            (Command::Stop | Command::Abort, Phase::Configured { .. } | Phase::Armed) => self.leave(Cause::Command),
            // The run is being opened: what is asked for meanwhile is done when it is.
            (Command::Pause | Command::Resume | Command::Stop | Command::Abort, Phase::Starting)
                if self.when_begun.len() < MAX_WHEN_BEGUN =>
            {
                self.when_begun.push(command);
            }
            (Command::Stop, Phase::Running | Phase::Pausing { .. } | Phase::Paused) => {
                self.asked_to_stop = true;
                self.stop(Cause::Command);
            }
            (Command::Stop, Phase::Asking { .. } | Phase::Ending { .. } | Phase::Closing) => {
                // Whoever asks while the run ends by itself has not asked twice.
                if std::mem::replace(&mut self.asked_to_stop, true) {
                    self.abort();
                }
            }
            (Command::Abort, _) if self.state().has_begun() => self.abort(),
            _ => return Err(refused),
        }
        Ok(())
    }

    /// A source has said who it is; its slots hold at most so many events.
    pub fn greeted(&mut self, source: usize, room: u64) {
        let source = &mut self.sources[source];
        source.present = true;
        source.out = false;
        source.room = room;
        let is_new = !std::mem::replace(&mut source.known, true);
        if let Phase::Configured { waited } = &mut self.phase
            && is_new
        {
            // As long as sources come that were not here before, the others are waited for.
            *waited = Duration::ZERO;
        }
    }

    /// What a source must know of the run so far. Told again, it does no harm.
    pub fn told(&self, source: usize) -> Vec<Tell> {
        if !self.state().has_begun() {
            return Vec::new();
        }
        let end = self.end.filter(|_| self.config.leads).map(|end| Tell::StopAt(self.end_for(source, end)));
        let held = match self.holds_sources() {
            true => Some(Tell::Pause),
            false => self.config.leads.then_some(Tell::Resume),
        };
        [Some(Tell::Start), end, held].into_iter().flatten().collect()
    }

    /// The connection of a source is down; it may come back.
    pub fn left(&mut self, source: usize) {
        self.sources[source].present = false;
    }

    /// A source was given up for the rest of the run.
    pub fn given_up(&mut self, source: usize) {
        self.sources[source].out = true;
    }

    /// A source says that this is the first event it has not accepted, as a builder has asked it. It accepts nothing
    /// more where the builder that leads has asked, which is number 0; where another has, that one wants the run to
    /// end, and the source goes on.
    pub fn paused(&mut self, source: usize, next: EventId, asked_by: u32) {
        let source = &mut self.sources[source];
        match self.config.leads && asked_by > 0 {
            true => source.told_to_end = true,
            false => (source.next, source.resumed) = (Some(next), false),
        }
    }

    /// The builder that leads has begun the run or had it go on, as a source passes on. It accepts events again, and
    /// time counts for those that do not: one that is gone must not keep this builder from believing the others.
    pub fn runs_elsewhere(&mut self, source: usize) {
        let source = &mut self.sources[source];
        source.runs_elsewhere = true;
        source.resumed |= source.next.take().is_some();
    }

    /// The builder that leads ends the run in front of this event, as a source passes on, which goes on up to there.
    pub fn ends_elsewhere(&mut self, source: usize, end: EventId) {
        self.runs_elsewhere(source);
        self.sources[source].end_elsewhere = Some(end);
    }

    /// A source has sent its final counters.
    pub fn ended(&mut self, source: usize) {
        self.sources[source].ended = true;
    }

    /// Whether the builder itself holds its sources up from now on, because what is behind it does not take more.
    pub fn held_up(&mut self, held_up: bool) {
        self.pace.hold_up(held_up);
    }

    /// The run is open: [`Order::Begin`] was carried out. Returns the commands of meanwhile that mean nothing by now.
    pub fn begun(&mut self, now: Duration) -> Vec<Refused> {
        if self.phase != Phase::Starting {
            return Vec::new();
        }
        self.pace.step(now);
        self.phase = Phase::Running;
        self.began = self.pace.elapsed();
        self.orders.extend(self.end.map(Order::EndAt));
        for source in 0..self.sources.len() {
            let told = self.told(source).into_iter().map(|tell| Order::Tell(source, tell));
            self.orders.extend(told.collect::<Vec<_>>());
        }
        let kept = std::mem::take(&mut self.when_begun);
        kept.into_iter().filter_map(|command| self.command(command).err()).collect()
    }

    /// The run could not be opened.
    pub fn failed(&mut self) {
        self.phase = Phase::Error;
    }

    /// Everything is on disk: [`Order::Close`] was carried out.
    pub fn closed(&mut self) {
        self.phase = Phase::Idle;
    }

    /// The run ends for this cause, unless it is ending already.
    pub fn stop(&mut self, cause: Cause) {
        if !matches!(self.phase, Phase::Running | Phase::Pausing { .. } | Phase::Paused) {
            return;
        }
        self.cause = Some(cause);
        if self.phase == Phase::Running {
            // What came when the run went on already is no answer.
            self.sources.iter_mut().for_each(|source| source.next = None);
        }
        self.phase = Phase::Asking { waited: Duration::ZERO };
        // Who does not lead asks all: it is how the one that leads hears of it.
        let leads = self.config.leads;
        self.tell_live(|source| (!leads || source.next.is_none()).then_some(Tell::Pause));
    }

    /// Time passes: to be called whenever something has happened, and at [`next_time`](Self::next_time).
    pub fn time(&mut self, now: Duration, facts: &impl Facts) {
        let (passed, free) = self.pace.step(now);
        match &mut self.phase {
            Phase::Configured { waited } => {
                *waited += passed;
                let waited = *waited;
                self.gather(waited);
            }
            Phase::Armed => self.wait_armed(),
            Phase::Pausing { waited } => {
                *waited += passed;
                if *waited >= self.config.time_to_answer() || self.waits_for().next().is_none() {
                    self.phase = Phase::Paused;
                }
                self.watch(facts);
            }
            Phase::Running | Phase::Paused => self.watch(facts),
            Phase::Asking { waited } => {
                *waited += passed;
                let waited = *waited;
                self.ask(waited, facts);
            }
            Phase::Ending { .. } => self.wait_for_end(free, facts),
            Phase::Idle | Phase::Starting | Phase::Closing | Phase::Error => {}
        }
        if self.state().has_begun() && self.phase != Phase::Closing && facts.is_finished() {
            self.cause.get_or_insert(Cause::Sources);
            self.phase = Phase::Closing;
            self.orders.push_back(Order::Close);
        }
    }

    /// When [`time`](Self::time) is to be called again even if nothing happens.
    pub fn next_time(&self) -> Option<Duration> {
        let now = self.pace.clock();
        match self.phase {
            Phase::Running | Phase::Paused => {
                let left = self.config.duration.map(|duration| duration.saturating_sub(self.lasted()));
                Some(now + left.unwrap_or(Duration::MAX).min(Pace::LONGEST_STEP / 2))
            }
            Phase::Configured { .. } | Phase::Pausing { .. } | Phase::Asking { .. } | Phase::Ending { .. } => {
                Some(now + Pace::LONGEST_STEP / 4)
            }
            Phase::Idle | Phase::Armed | Phase::Starting | Phase::Closing | Phase::Error => None,
        }
    }

    /// What to do next.
    pub fn next_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// How long the run has lasted.
    pub(crate) fn lasted(&self) -> Duration {
        self.pace.elapsed() - self.began
    }

    fn begin(&mut self) {
        self.phase = Phase::Starting;
        self.orders.push_back(Order::Begin);
    }

    fn leave(&mut self, cause: Cause) {
        self.phase = Phase::Idle;
        self.cause = Some(cause.clone());
        self.orders.push_back(Order::Leave(cause));
    }

    fn abort(&mut self) {
        self.cause = Some(Cause::Abort);
        if self.phase != Phase::Closing {
            self.phase = Phase::Closing;
            if self.config.builders > 1 {
                // What the sources pass on ends the run at the other builders too.
                let tell = if self.config.leads { Tell::StopAt(self.config.first) } else { Tell::Pause };
                self.tell_live(|_| tell);
            }
            self.orders.extend([Order::Abandon, Order::Close]);
        }
    }

    fn gather(&mut self, waited: Duration) {
        let absent: Vec<usize> = self.waits_for().collect();
        if absent.is_empty() {
            match self.config.starts_alone {
                true => self.begin(),
                false => self.phase = Phase::Armed,
            }
        } else if self.config.starts_alone && waited >= self.config.timeout {
            self.leave(Cause::Absent(absent, self.config.timeout));
        }
    }

    fn wait_armed(&mut self) {
        if self.sources.iter().any(|source| !source.present) {
            self.configured();
        } else if self.is_started_elsewhere() {
            self.begin();
        }
    }

    /// Looks for what ends a run that is under way.
    fn watch(&mut self, facts: &impl Facts) {
        let lasted = self.lasted();
        // While the builder that leads holds sources, some may have events to come that are other builders', or too late here.
        let holds = self.config.leads && self.holds_sources();
        if !holds && self.end.is_some_and(|end| facts.oldest_event() >= end) {
            // Every event is closed: all that is waited for are the final counters.
            self.cause = Some(Cause::Events);
            self.phase = Phase::Ending { last: true, lap: Duration::ZERO };
        } else if self.config.leads && self.config.duration.is_some_and(|duration| lasted >= duration) {
            self.stop(Cause::Duration);
        } else if self.config.leads && self.most(|source| source.told_to_end) {
            self.stop(Cause::OtherBuilder);
        } else if let Some(end) = self.agreed_end() {
            self.end_elsewhere(end);
        } else if !self.config.leads {
            self.phase = if self.most(|source| source.next.is_some()) { Phase::Paused } else { Phase::Running };
        }
    }

    /// Tells something to every source that may yet accept events and is there.
    fn tell_live<T: Into<Option<Tell>>>(&mut self, tell: impl Fn(&Source) -> T) {
        for (index, source) in self.sources.iter().enumerate().filter(|(_, source)| source.present && source.is_live())
        {
            self.orders.extend(tell(source).into().map(|tell| Order::Tell(index, tell)));
        }
    }
}
