//! A source node: from a device into slots, and from there to the builders that ask.

use crate::push::{PushedFragment, Standing};
use crate::slots::{Filling, Stamp, Traces};
use crate::{NodeError, Policy, Progress, Snapshot, SourceReport, Stop, TaiClock, Urgency, clock, now};
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{Slot, SlotPool};
use thalweg_device::Device;
use thalweg_link::{Address, Interest, LinkError, Outstanding, Poller, SourceGreeting, SourceLink, connect};
use thalweg_wire::{
    Accounts, Announcement, Disposition, EventId, Hello, MAX_RECORDS, Message, RunNumber, SourceId, Welcome, record_len,
};

/// What a source node is made from.
#[derive(Debug)]
pub struct SourceSettings {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: SourceId,
    /// Where its fragments come from.
    pub feed: Feed,
    /// The builders, in their order: event `e` goes to number `e` modulo their count.
    pub builders: Vec<Address>,
    /// Congestion control of TCP links: see [`connect`].
    pub congestion: Option<String>,
    /// Events per second; as fast as they are taken when absent.
    pub rate: Option<f64>,
    /// What happens when all slots are full.
    pub policy: Policy,
    /// How many slots.
    pub slots: u32,
    /// Bytes in each.
    pub slot_bytes: usize,
    /// How long to look for a builder before giving up.
    pub patience: Duration,
    /// The processor to be bound to.
    pub cpu: Option<u32>,
}

/// Where a source's fragments come from.
#[derive(Debug)]
pub enum Feed {
    /// A device, which the node asks.
    Device(Box<dyn Device>),
    /// A program, which pushes them ([`crate::PushSource`]).
    Pushed {
        /// The longest payload it will push.
        max_payload: usize,
        /// What it says of itself, for `run.json`.
        description: serde_json::Value,
    },
}

impl Feed {
    /// The longest payload that will come.
    pub fn max_payload(&self) -> usize {
        match self {
            Self::Device(device) => device.max_payload(),
            Self::Pushed { max_payload, .. } => *max_payload,
        }
    }
}

/// Whether there is a place for the next fragment.
enum Place {
    /// In the slot that is being filled for this builder.
    Slot(usize),
    /// There is none, and by policy it was dropped, counted, and will be announced.
    Dropped,
    /// There is none yet.
    Blocked,
}

/// How long after a failed attempt the next one is made to connect to a builder.
const RETRY: Duration = Duration::from_millis(100);
const STOP: u64 = u64::MAX;

/// A source, ready to connect.
#[derive(Debug)]
pub struct SourceNode {
    settings: SourceSettings,
    pool: SlotPool,
    traces: Traces,
    builders: Vec<Builder>,
    poller: Arc<Poller>,
    clock: TaiClock,
    phase: Phase,
    run: RunNumber,
    next_event: u64,
    end_at: Option<u64>,
    due: Option<Duration>,
    sequence: u32,
    blocked: bool,
    begun: Duration,
    shown: Snapshot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Running,
    Paused,
    Ending,
}

/// One builder, as this source sees it.
#[derive(Debug)]
struct Builder {
    address: Address,
    greeting: SourceGreeting,
    link: Option<(Box<dyn SourceLink>, Interest)>,
    welcome: Option<Welcome>,
    started: bool,
    done: bool,
    /// Since when there is no connection, and when to try next.
    away: Option<(Duration, Duration)>,
    last_error: Option<LinkError>,
    /// What broke the link while it was sent to: [`SourceNode::flush`] deals with it.
    broken: Option<LinkError>,
    book: Outstanding<Option<Slot>>,
    filling: Option<Filling>,
    /// A run of fragments that were dropped and not yet announced.
    dropping: Option<(u64, u32)>,
    accounts: Accounts,
    copied_before: u64,
    eager: u32,
    most_records: u32,
}

impl SourceNode {
    /// Makes slots and checks that they suit the device and the builders.
    pub fn new(settings: SourceSettings) -> Result<Self, NodeError> {
        let longest = settings.feed.max_payload();
        if record_len(longest) > settings.slot_bytes {
            return Err(NodeError::Config(format!(
                "source '{}': a slot of {} bytes cannot hold a fragment of {longest} bytes and its header; set slot to at least {}",
                settings.name,
                settings.slot_bytes,
                record_len(longest)
            )));
        }
        let pool = SlotPool::new(&settings.name, settings.slots, settings.slot_bytes)?;
        let description = describe(&settings)?;
        let session = session();
        let poller = Arc::new(Poller::new()?);
        let begun = now();
        let builders = settings.builders.iter().enumerate().map(|(index, address)| {
            #[expect(clippy::cast_possible_truncation, reason = "slots are at most 1 GiB, builders few")]
            let hello = Hello {
                session,
                source: settings.id,
                builder: index as u32,
                builders: settings.builders.len() as u32,
                slots: settings.slots,
                slot_bytes: settings.slot_bytes as u32,
                max_payload: longest as u32,
                withdraws: settings.policy == Policy::DropOldest,
                description: description.len() as u32,
            };
            let greeting = SourceGreeting { hello, description: description.clone(), arena: Arc::clone(pool.arena()) };
            Builder {
                address: address.clone(),
                greeting,
                link: None,
                welcome: None,
                started: false,
                done: false,
                away: Some((begun, begun)),
                last_error: None,
                broken: None,
                book: Outstanding::default(),
                filling: None,
                dropping: None,
                accounts: Accounts::default(),
                copied_before: 0,
                eager: 0,
                most_records: MAX_RECORDS,
            }
        });
        let builders: Vec<Builder> = builders.collect();
        tracing::info!(
            source = settings.name,
            slots = settings.slots,
            slot_bytes = settings.slot_bytes,
            "arena of {} made of {}",
            pool.arena().size(),
            pool.arena().pages()
        );
        Ok(Self {
            traces: Traces::new(settings.slots),
            clock: TaiClock::probe(),
            phase: Phase::Waiting,
            run: RunNumber(0),
            next_event: 0,
            end_at: None,
            due: None,
            sequence: 0,
            blocked: false,
            begun,
            shown: Snapshot::default(),
            settings,
            pool,
            builders,
            poller,
        })
    }

    /// Runs until the run is over.
    pub fn run(mut self, stop: &Stop, progress: &Progress) -> Result<SourceReport, NodeError> {
        bind(self.settings.cpu)?;
        let poller = self.begin(stop)?;
        let mut tokens = Vec::new();
        while !self.turn(&tokens, stop, progress)? {
            tokens.clear();
            poller.wait(self.timeout(now()), |token| tokens.push(token))?;
        }
        Ok(self.report())
    }

    /// What its thread is to wait on between two turns.
    pub(crate) fn begin(&self, stop: &Stop) -> Result<Arc<Poller>, NodeError> {
        self.poller.add(std::os::fd::AsFd::as_fd(stop), STOP, Interest::READ)?;
        Ok(Arc::clone(&self.poller))
    }

    /// Does what can be done now. True when the run is over.
    pub(crate) fn turn(&mut self, tokens: &[u64], stop: &Stop, progress: &Progress) -> Result<bool, NodeError> {
        for token in tokens {
            match usize::try_from(*token) {
                Ok(index) if index < self.builders.len() => self.serve(index)?,
                _ => self.heed(stop)?,
            }
        }
        self.reconnect()?;
        self.produce()?;
        self.flush()?;
        self.show(progress);
        Ok(self.builders.iter().all(|builder| builder.done))
    }

    fn heed(&mut self, stop: &Stop) -> Result<(), NodeError> {
        stop.clear();
        match stop.urgency() {
            Urgency::None => Ok(()),
            Urgency::Clean if self.phase == Phase::Waiting => Err(NodeError::Stopped),
            Urgency::Clean => {
                self.end_at = Some(self.next_event);
                Ok(())
            }
            Urgency::AtOnce => Err(NodeError::Stopped),
        }
    }

    /// How long there is nothing to do unless something comes.
    pub(crate) fn timeout(&self, now: Duration) -> Option<Duration> {
        let retry = self.builders.iter().filter_map(|builder| builder.away.map(|(_, at)| at)).min();
        let due = match (&self.settings.feed, self.phase, self.blocked) {
            (Feed::Device(_), Phase::Running, false) => Some(self.due.unwrap_or(now)),
            _ => None,
        };
        retry.into_iter().chain(due).min().map(|at| at.saturating_sub(now))
    }

    /// Hears what a builder has to say.
    fn serve(&mut self, index: usize) -> Result<(), NodeError> {
        let mut said = Vec::new();
        let Some((link, _)) = &mut self.builders[index].link else { return Ok(()) };
        let result = link.ready(&mut said);
        for message in said {
            self.hear(index, message)?;
        }
        match result {
            Ok(()) => Ok(()),
            Err(error) => self.lost(index, error),
        }
    }

    fn hear(&mut self, index: usize, message: Message) -> Result<(), NodeError> {
        let builder = &mut self.builders[index];
        match message {
            Message::Welcome(welcome) => {
                builder.away = None;
                builder.most_records = welcome.most_records;
                builder.welcome = Some(welcome);
                self.release(index, welcome.released_below);
                let builder = &mut self.builders[index];
                if let Some((link, _)) = &mut builder.link {
                    // After a reconnection: whatever has not been released is offered again, under the same tickets.
                    for (offer, _) in builder.book.iter() {
                        let held =
                            if offer.disposition == Disposition::Eager { Disposition::Held } else { offer.disposition };
                        link.offer(&Announcement { disposition: held, ..*offer });
                    }
                    if self.phase == Phase::Ending && builder.started {
                        link.say(&Message::End(builder.accounts));
                    }
                }
                self.blocked = false;
            }
            Message::Start { run, first, .. } => {
                if std::mem::replace(&mut builder.started, true) {
                    // Said again after a reconnection.
                    return Ok(());
                }
                if index == 0 {
                    self.next_event = first.0;
                }
                self.run = run;
                if self.phase == Phase::Waiting && self.builders.iter().all(|builder| builder.started) {
                    self.phase = Phase::Running;
                    self.due = self.settings.rate.map(|_| now());
                }
            }
            Message::Release { below } => {
                self.release(index, below);
                self.blocked = false;
            }
            Message::Pause => {
                if self.phase == Phase::Running {
                    self.phase = Phase::Paused;
                }
                self.say(index, &Message::Paused { next: EventId(self.next_event) });
            }
            Message::StopAt { end } => {
                self.end_at = Some(end.0);
                self.blocked = false;
                if self.phase == Phase::Paused {
                    self.phase = Phase::Running;
                }
            }
            Message::Bye => {
                builder.done = true;
                builder.link = None;
                self.release(index, u64::MAX);
            }
            _ => {}
        }
        Ok(())
    }

    fn say(&mut self, index: usize, message: &Message) {
        if let Some((link, _)) = &mut self.builders[index].link {
            link.say(message);
        }
    }

    fn release(&mut self, index: usize, below: u64) {
        let Self { builders, pool, .. } = self;
        let builder = &mut builders[index];
        for (offer, slot) in builder.book.release(below) {
            if offer.disposition == Disposition::Eager {
                builder.eager -= offer.bytes;
            }
            if let Some(slot) = slot {
                pool.give_back(slot);
            }
        }
    }

    /// A connection came to its end.
    fn lost(&mut self, index: usize, error: LinkError) -> Result<(), NodeError> {
        let builder = &mut self.builders[index];
        let who = builder.address.to_string();
        if let Some((link, _)) = builder.link.take() {
            builder.copied_before += link.copied();
            self.poller.remove(link.fd());
        }
        builder.welcome = None;
        builder.broken = None;
        if matches!(error, LinkError::Refused { .. }) || error.is_violation() {
            return Err(NodeError::Link { who, error });
        }
        if self.phase == Phase::Ending && builder.book.is_empty() {
            // Everything was taken; only the good-bye is missing.
            builder.done = true;
            return Ok(());
        }
        let now = now();
        let since = builder.away.map_or(now, |(since, _)| since);
        builder.away = Some((since, now + RETRY));
        tracing::debug!(builder = who, %error, "no connection");
        builder.last_error = Some(error);
        Ok(())
    }

    fn reconnect(&mut self) -> Result<(), NodeError> {
        let now = now();
        for index in 0..self.builders.len() {
            let builder = &mut self.builders[index];
            let Some((since, at)) = builder.away else { continue };
            if at > now {
                continue;
            }
            if now > since + self.settings.patience {
                let who = builder.address.to_string();
                let error = builder.last_error.take().unwrap_or(LinkError::Closed);
                return Err(NodeError::Absent(format!(
                    "no builder at {who} for {}: {error}",
                    humantime::format_duration(self.settings.patience)
                )));
            }
            if builder.link.is_some() {
                // Connected, but not yet welcomed: give it until patience ends.
                builder.away = Some((since, now + self.settings.patience));
                continue;
            }
            match connect(&builder.address, self.settings.congestion.as_deref(), &builder.greeting) {
                Ok(link) => {
                    let interest = link.interest();
                    self.poller.add(link.fd(), index as u64, interest)?;
                    builder.link = Some((link, interest));
                    builder.away = Some((since, now + self.settings.patience));
                }
                Err(error @ LinkError::Io { .. }) if is_configuration(&error) => return Err(NodeError::Wait(error)),
                Err(error) => self.lost(index, error)?,
            }
        }
        Ok(())
    }

    /// Takes fragments from the device, at most a slot full, so that the builders do not wait for long.
    fn produce(&mut self) -> Result<(), NodeError> {
        if self.phase != Phase::Running {
            return Ok(());
        }
        if self.end_at.is_some_and(|end| self.next_event >= end) {
            self.end();
            return Ok(());
        }
        let mut offered = false;
        let mut date = None;
        while !offered {
            let Feed::Device(device) = &mut self.settings.feed else { break };
            let Some(len) = device.next_len() else {
                self.end();
                return Ok(());
            };
            if self.due.is_some_and(|due| due > now()) {
                break;
            }
            let event = EventId(self.next_event);
            let key = device.content_key(event);
            match self.place(len, key)? {
                Place::Slot(index) => {
                    let (stamp, sequence) = (self.stamp(), self.sequence);
                    // Without a rate the fragments of a slot are taken in one go, within microseconds: one date for all.
                    let date = match date {
                        Some(date) if self.due.is_none() => date,
                        _ => *date.insert(self.clock.now()),
                    };
                    let Self { builders, settings, traces, .. } = self;
                    let (Some(filling), Feed::Device(device)) = (&mut builders[index].filling, &mut settings.feed)
                    else {
                        break;
                    };
                    if filling.take(&mut **device, traces, stamp, event, sequence, len, date)? {
                        offered = self.taken(index, len);
                    } else {
                        offered = self.passed_over(index);
                    }
                }
                Place::Dropped => {
                    let Feed::Device(device) = &mut self.settings.feed else { break };
                    device.skip(event);
                    self.step(len);
                }
                Place::Blocked => {
                    // The device waits: what it would have produced meanwhile does not come in a burst afterwards.
                    self.due = self.due.map(|due| due.max(now()));
                    break;
                }
            }
            if self.end_at.is_some_and(|end| self.next_event >= end) {
                self.end();
                return Ok(());
            }
        }
        if !offered {
            self.offer_partial();
        }
        Ok(())
    }

    /// Takes one fragment from the program that pushes, for event `event` or else the next. Nothing where there is no
    /// place for it yet. May be called from another thread than the one that takes [turns](Self::turn).
    pub(crate) fn push(
        &mut self,
        event: Option<EventId>,
        fragment: &PushedFragment<'_>,
    ) -> Result<Option<EventId>, NodeError> {
        let event = event.unwrap_or(EventId(self.next_event));
        if event.0 < self.next_event {
            return Err(NodeError::Config(format!(
                "event {} was pushed after event {}: events must come in order",
                event.0,
                self.next_event - 1
            )));
        }
        // Behind the last fragment in a slot there is another event of the same builder.
        if event.0.checked_add(self.builders.len() as u64 + 1).is_none() {
            return Err(NodeError::Config(format!("event {} was pushed: event numbers do not go so far", event.0)));
        }
        let len = fragment.payload.len();
        if len > self.settings.feed.max_payload() {
            return Err(NodeError::Config(format!(
                "a payload of {len} bytes was pushed; this source said it would push at most {}",
                self.settings.feed.max_payload()
            )));
        }
        if self.end_at.is_some_and(|end| event.0 >= end) {
            self.end();
            self.send()?;
            return Err(NodeError::Over);
        }
        let before = self.next_event;
        if event.0 > self.next_event {
            // A slot holds consecutive events.
            for index in 0..self.builders.len() {
                self.offer(index);
            }
            self.next_event = event.0;
        }
        match self.place(len, None)? {
            Place::Slot(index) => {
                let (stamp, clock, sequence) = (self.stamp(), self.clock, self.sequence);
                if let Some(filling) = &mut self.builders[index].filling {
                    filling.put(&mut self.traces, stamp, event, sequence, fragment, clock.now());
                }
                self.taken(index, len);
            }
            Place::Dropped => self.step(len),
            Place::Blocked => {
                // Nothing is skipped before something is accepted behind it.
                self.next_event = before;
                return Ok(None);
            }
        }
        if self.end_at.is_some_and(|end| self.next_event >= end) {
            self.end();
        }
        self.offer_partial();
        self.send()?;
        Ok(Some(event))
    }

    /// The program that pushes has nothing more to say.
    pub(crate) fn push_end(&mut self) -> Result<(), NodeError> {
        if matches!(self.phase, Phase::Running | Phase::Paused) {
            self.end();
        }
        self.send()
    }

    /// Whether there is something that only a [turn](Self::turn) puts right.
    pub(crate) fn needs_turn(&self) -> bool {
        self.builders.iter().any(|builder| builder.broken.is_some())
    }

    /// Whether fragments can be pushed: not before the run has begun, nor while it is about to stop.
    pub(crate) fn standing(&self) -> Standing {
        match self.phase {
            Phase::Waiting => Standing::Before,
            Phase::Running if self.end_at.is_none_or(|end| self.next_event < end) => Standing::Open,
            Phase::Paused => Standing::Paused,
            Phase::Running | Phase::Ending => Standing::Over,
        }
    }

    /// How many records may share a slot: what every builder takes. A builder that is away for the moment said so before.
    fn most_records(&self) -> u32 {
        self.builders.iter().map(|builder| builder.most_records).min().unwrap_or(MAX_RECORDS).max(1)
    }

    fn stamp(&self) -> Stamp {
        Stamp { run: self.run, source: self.settings.id }
    }

    /// Finds a place for the next fragment, of `len` bytes. `key` is the content it will have.
    fn place(&mut self, len: usize, key: Option<u64>) -> Result<Place, NodeError> {
        let event = EventId(self.next_event);
        let count = self.builders.len() as u64;
        let index = usize::try_from(event.0 % count).unwrap_or(0);
        let most = self.most_records();
        if self.builders[index].filling.as_ref().is_some_and(|filling| !filling.has_room(len, most)) {
            self.offer(index);
        }
        if self.builders[index].filling.is_none() {
            match self.slot(index, key) {
                Some(slot) => self.builders[index].filling = Some(Filling::new(slot, event)),
                None if self.settings.policy == Policy::Block => {
                    self.shown.stalls += u64::from(!self.blocked);
                    self.blocked = true;
                    return Ok(Place::Blocked);
                }
                None => {
                    self.drop_newest(index, event);
                    return Ok(Place::Dropped);
                }
            }
        }
        Ok(Place::Slot(index))
    }

    /// A fragment was laid into the slot for a builder. True where the slot is full and was offered.
    fn taken(&mut self, index: usize, len: usize) -> bool {
        self.builders[index].accounts.accepted += 1;
        self.step(len);
        // A slot that cannot take another such fragment need not wait for it.
        let most = self.most_records();
        let full = self.builders[index].filling.as_ref().is_some_and(|filling| !filling.has_room(len, most));
        if full {
            self.offer(index);
        }
        full
    }

    /// The device has nothing for this event, because its recording has a gap. Nothing was accepted, so nothing is said: the
    /// builder sees this source go on to the next event. A slot holds consecutive events, so this one ends here.
    fn passed_over(&mut self, index: usize) -> bool {
        self.next_event += 1;
        self.wait_for_next();
        let Some(filling) = self.builders[index].filling.take() else { return false };
        if filling.count == 0 {
            self.pool.give_back(filling.slot);
            return false;
        }
        self.builders[index].filling = Some(filling);
        self.offer(index);
        true
    }

    /// Where little is under way, what is there need not wait for company.
    fn offer_partial(&mut self) {
        for index in 0..self.builders.len() {
            if self.builders[index].book.len() < 2 {
                self.offer(index);
                if self.builders[index].book.is_empty() {
                    self.announce_drops(index);
                }
            }
        }
    }

    fn step(&mut self, len: usize) {
        self.next_event += 1;
        self.sequence = self.sequence.wrapping_add(1);
        self.shown.bytes += len as u64;
        self.shown.fragments += 1;
        self.wait_for_next();
    }

    fn wait_for_next(&mut self) {
        if let (Some(due), Some(rate)) = (&mut self.due, self.settings.rate) {
            *due += Duration::from_secs_f64(1.0 / rate);
        }
    }

    /// A free slot, one with the right content already in it if there is one; by policy also one that is not free.
    fn slot(&mut self, index: usize, key: Option<u64>) -> Option<Slot> {
        let Self { pool, traces, builders, .. } = self;
        if let Some(slot) = pool.take_preferred(|slot| traces.begins_with(slot, key)) {
            return Some(slot);
        }
        if self.settings.policy != Policy::DropOldest {
            return None;
        }
        let builder = &mut builders[index];
        let oldest = builder.book.iter().find(|(offer, slot)| {
            slot.is_some() && builder.link.as_ref().is_none_or(|_| offer.disposition == Disposition::Held)
        });
        let mut candidate = oldest.map(|(offer, _)| offer.ticket);
        while let Some(ticket) = candidate {
            let withdrawn = builder.link.as_mut().is_none_or(|(link, _)| link.withdraw(ticket));
            match builder.book.get_mut(ticket) {
                Some((offer, slot)) if withdrawn && slot.is_some() => {
                    offer.disposition = Disposition::DroppedOldest;
                    offer.bytes = 0;
                    builder.accounts.dropped_oldest += u64::from(offer.count);
                    if let Some((link, _)) = &mut builder.link {
                        link.offer(offer);
                    }
                    return slot.take();
                }
                // Asked for already, or no slot of its own: the next one.
                Some(_) => candidate = Some(ticket + 1),
                None => candidate = None,
            }
        }
        None
    }

    fn drop_newest(&mut self, index: usize, event: EventId) {
        let count = self.builders.len() as u64;
        let builder = &mut self.builders[index];
        builder.accounts.accepted += 1;
        builder.accounts.dropped_newest += 1;
        match &mut builder.dropping {
            Some((first, run)) if *first + u64::from(*run) * count == event.0 && *run < u32::MAX => *run += 1,
            _ => {
                self.announce_drops(index);
                self.builders[index].dropping = Some((event.0, 1));
            }
        }
    }

    fn announce_drops(&mut self, index: usize) {
        let builder = &mut self.builders[index];
        let Some((first, count)) = builder.dropping.take() else { return };
        let offer = Announcement {
            ticket: builder.book.next_ticket(),
            first: EventId(first),
            arena_offset: 0,
            count,
            bytes: 0,
            disposition: Disposition::DroppedNewest,
        };
        builder.book.push(offer, None);
        builder.accounts.tickets = builder.book.next_ticket();
        if let Some((link, _)) = &mut builder.link
            && builder.welcome.is_some()
        {
            link.offer(&offer);
        }
    }

    /// Offers what is in the slot that is being filled.
    fn offer(&mut self, index: usize) {
        let Some(filling) = self.builders[index].filling.take() else { return };
        if self.builders[index].dropping.is_some_and(|(first, _)| first < filling.first.0) {
            self.announce_drops(index);
        }
        let builder = &mut self.builders[index];
        #[expect(clippy::cast_possible_truncation, reason = "a slot has at most 1 GiB")]
        let bytes = filling.used() as u32;
        let eager = builder.welcome.is_some_and(|welcome| {
            bytes <= welcome.eager_limit && builder.eager + bytes <= welcome.eager_credit && builder.link.is_some()
        });
        let offer = Announcement {
            ticket: builder.book.next_ticket(),
            first: filling.first,
            arena_offset: filling.slot.offset() as u64,
            count: filling.count,
            bytes,
            disposition: if eager { Disposition::Eager } else { Disposition::Held },
        };
        builder.eager += if eager { bytes } else { 0 };
        builder.book.push(offer, Some(filling.slot));
        builder.accounts.tickets = builder.book.next_ticket();
        if let Some((link, _)) = &mut builder.link
            && builder.welcome.is_some()
        {
            link.offer(&offer);
        }
    }

    fn end(&mut self) {
        self.phase = Phase::Ending;
        for index in 0..self.builders.len() {
            self.offer(index);
            self.announce_drops(index);
            let builder = &mut self.builders[index];
            let copied = builder.copied_before + builder.link.as_ref().map_or(0, |(link, _)| link.copied());
            builder.accounts.copied_bytes = copied;
            builder.accounts.next_sequence = self.sequence;
            // All builders are told the same: it is one process.
            builder.accounts.cpu_nanos = u64::try_from(clock::cpu().as_nanos()).unwrap_or(u64::MAX);
            let accounts = builder.accounts;
            if builder.welcome.is_some() {
                self.say(index, &Message::End(accounts));
            }
        }
    }

    fn flush(&mut self) -> Result<(), NodeError> {
        self.send()?;
        for index in 0..self.builders.len() {
            if let Some(error) = self.builders[index].broken.take() {
                self.lost(index, error)?;
            }
        }
        Ok(())
    }

    /// Sends what can be sent now. A link that breaks is left for the next turn, since only the thread that takes turns
    /// can wait for the time to connect again.
    fn send(&mut self) -> Result<(), NodeError> {
        for index in 0..self.builders.len() {
            let Builder { link: Some((link, known)), broken: broken @ None, .. } = &mut self.builders[index] else {
                continue;
            };
            match link.flush() {
                Ok(()) => {
                    let interest = link.interest();
                    if interest != *known {
                        *known = interest;
                        self.poller.change(link.fd(), index as u64, interest)?;
                    }
                }
                Err(error) => *broken = Some(error),
            }
        }
        Ok(())
    }

    fn show(&mut self, progress: &Progress) {
        self.shown.phase = match self.phase {
            Phase::Waiting => 0,
            Phase::Running | Phase::Paused => 1,
            Phase::Ending => 2,
        };
        self.shown.events = self.shown.fragments;
        progress.show(&self.shown);
    }

    pub(crate) fn report(&self) -> SourceReport {
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
            seconds: (now() - self.begun).as_secs_f64(),
            bytes: self.shown.bytes,
            accepted: total.accepted,
            dropped_newest: total.dropped_newest,
            dropped_oldest: total.dropped_oldest,
            blocked: self.shown.stalls,
            copied_bytes: total.copied_bytes,
            cpu_seconds: clock::cpu().as_secs_f64(),
            pages: self.pool.arena().pages().to_string(),
        }
    }
}

/// A mistake in the configuration is not cured by trying again.
fn is_configuration(error: &LinkError) -> bool {
    matches!(error, LinkError::Io { doing, .. } if doing.starts_with("selecting") || doing.starts_with("resolving"))
}

fn describe(settings: &SourceSettings) -> Result<String, NodeError> {
    let device = match &settings.feed {
        Feed::Device(device) => serde_json::to_value(device.description())
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

/// A number that no other source has: the standard library draws such keys for its hash maps from the kernel.
fn session() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// Binds this thread to a processor.
pub(crate) fn bind(cpu: Option<u32>) -> Result<(), NodeError> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = rustix::thread::CpuSet::new();
    let possible = (cpu as usize) < rustix::thread::CpuSet::MAX_CPU;
    if possible {
        set.set(cpu as usize);
    }
    if !possible || rustix::thread::sched_setaffinity(None, &set).is_err() {
        return Err(NodeError::Config(format!("cpu = {cpu}: this process may not run on processor {cpu}")));
    }
    Ok(())
}
