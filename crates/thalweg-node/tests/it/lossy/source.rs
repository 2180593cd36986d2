//! A source: the real link, book and slots, and a device that makes records up. It does what `docs/wire.md` says, and
//! tells the builders of each other as [`thalweg_node::SourceNode`] does, in virtual time.

use super::{RUN, TIMEOUT, id};
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{Slot, SlotPool};
use thalweg_control::RunControl;
use thalweg_link::{Address, Endpoints, LinkError, Outstanding, SourceEndpoint, SourceGreeting};
use thalweg_node::Policy;
use thalweg_wire::{
    Accounts, Announcement, Disposition, EventId, FragmentHeader, HEADER_LEN, Hello, Message, Refusal, Status, Welcome,
    crc32c, record_len,
};

const RETRY: Duration = Duration::from_millis(100);
/// Slots that it fills before others have their turn.
const FAIR_SHARE: usize = 8;

#[derive(Debug, Clone)]
pub(crate) struct SourcePlan {
    /// From one event to the next; as fast as they are taken where there is none.
    pub(crate) interval: Option<Duration>,
    /// Its device has so many events.
    pub(crate) events: u64,
    pub(crate) slots: u32,
    /// Records that fit a slot, and payload bytes of the longest.
    pub(crate) records: u32,
    pub(crate) longest: usize,
    pub(crate) policy: Policy,
    pub(crate) nature: Nature,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nature {
    Honest,
    /// It does nothing from one time to the other.
    Hangs(Duration, Duration),
    /// It is gone from then on.
    Dies(Duration),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Running,
    Paused,
    Ending,
}

#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) index: usize,
    pub(crate) plan: SourcePlan,
    pub(crate) builders: Vec<Peer>,
    /// It has come to its end, well or not.
    pub(crate) over: bool,
    addresses: Vec<Address>,
    endpoints: Endpoints<dyn SourceEndpoint>,
    pool: SlotPool,
    phase: Phase,
    next_event: u64,
    end_at: Option<u64>,
    due: Option<Duration>,
    sequence: u32,
    blocked: bool,
}

/// One builder, as this source sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) welcome: Option<Welcome>,
    pub(crate) started: bool,
    pub(crate) done: bool,
    pub(crate) accounts: Accounts,
    greeting: SourceGreeting,
    away: Option<(Duration, Duration)>,
    book: Outstanding<Option<Slot>>,
    filling: Option<Filling>,
    dropping: Option<(u64, u32)>,
    eager: u32,
}

#[derive(Debug)]
struct Filling {
    slot: Slot,
    first: u64,
    count: u32,
    used: usize,
}

impl Source {
    pub(crate) fn new(index: usize, plan: &SourcePlan, addresses: &[Address]) -> Self {
        let builders = addresses.len();
        let slot_bytes = plan.records as usize * record_len(plan.longest);
        let pool = SlotPool::new("lossy", plan.slots, slot_bytes).unwrap();
        let description = format!("{{\"name\": \"{}\"}}", "detector ".repeat(10 * index));
        let peer = |builder: usize| Peer {
            welcome: None,
            started: false,
            done: false,
            accounts: Accounts::default(),
            greeting: SourceGreeting {
                hello: Hello {
                    session: index as u64,
                    source: id(index),
                    builder: builder as u32,
                    builders: builders as u32,
                    slots: plan.slots,
                    slot_bytes: slot_bytes as u32,
                    max_payload: plan.longest as u32,
                    capabilities: plan.policy.capabilities(),
                    description: description.len() as u32,
                },
                description: description.clone(),
                arena: Arc::clone(pool.arena()),
            },
            away: Some((Duration::ZERO, Duration::ZERO)),
            book: Outstanding::default(),
            filling: None,
            dropping: None,
            eager: 0,
        };
        Self {
            index,
            plan: plan.clone(),
            builders: (0..builders).map(peer).collect(),
            endpoints: Endpoints::new().unwrap().towards(addresses).unwrap(),
            addresses: addresses.to_vec(),
            over: false,
            pool,
            phase: Phase::Waiting,
            next_event: 0,
            end_at: None,
            due: None,
            sequence: 0,
            blocked: false,
        }
    }

    pub(crate) fn is_connected(&self, builder: usize) -> bool {
        self.endpoints.link(builder).is_some()
    }

    pub(crate) fn is_hung(&self, now: Duration) -> bool {
        matches!(self.plan.nature, Nature::Hangs(from, until) if (from..until).contains(&now))
    }

    /// Does what can be done now.
    pub(crate) fn turn(&mut self, now: Duration) {
        if matches!(self.plan.nature, Nature::Dies(at) if at <= now) {
            self.leave();
        }
        if self.over || self.is_hung(now) {
            return;
        }
        let mut ready = Vec::new();
        self.endpoints.poll(now, &[], &mut ready);
        ready.iter().for_each(|index| self.serve(*index, now));
        self.reconnect(now);
        if !self.over {
            (0..FAIR_SHARE).find(|_| !self.produce(now));
            self.flush(now);
        }
        if self.builders.iter().all(|builder| builder.done) {
            self.leave();
        }
    }

    /// It ends, and with it its connections.
    fn leave(&mut self) {
        self.over = true;
        self.endpoints = Endpoints::new().unwrap();
    }

    /// When there is something to do even if nothing comes.
    pub(crate) fn next_time(&self, now: Duration) -> Option<Duration> {
        if self.over {
            return None;
        }
        let change = match self.plan.nature {
            Nature::Hangs(from, until) => [from, until].into_iter().find(|at| *at > now),
            Nature::Dies(at) => Some(at),
            Nature::Honest => None,
        };
        if self.is_hung(now) {
            return change;
        }
        let retry = self.builders.iter().filter_map(|builder| builder.away.map(|(_, at)| at)).min();
        let due = (self.phase == Phase::Running && !self.blocked).then(|| self.due.unwrap_or(now));
        retry.into_iter().chain(due).chain(change).chain(self.endpoints.next_timeout()).min()
    }

    fn serve(&mut self, index: usize, now: Duration) {
        let mut said = Vec::new();
        let result = self.endpoints.receive(index, &mut said);
        for message in said {
            self.on_message(index, message, now);
        }
        if let Err(error) = result {
            self.lost(index, &error, now);
        }
    }

    fn on_message(&mut self, index: usize, message: Message, now: Duration) {
        let builder = &mut self.builders[index];
        match message {
            Message::Welcome(welcome) => {
                builder.away = None;
                builder.welcome = Some(welcome);
                self.release(index, welcome.released_below);
                let builder = &mut self.builders[index];
                if let Some(link) = self.endpoints.link_mut(index) {
                    builder.book.iter().for_each(|(offer, _)| link.offer(offer));
                    if self.phase == Phase::Ending && builder.started {
                        link.send(&Message::End(builder.accounts));
                    }
                    if let Some(end) = self.end_at.filter(|_| index > 0) {
                        link.send(&Message::Told { end: EventId(end) });
                    }
                }
                self.blocked = false;
            }
            Message::Start { first, .. } => {
                if std::mem::replace(&mut builder.started, true) {
                    return;
                }
                if index == 0 {
                    self.next_event = first.0;
                    self.pass_on(&Message::Told { end: RunControl::NO_END });
                }
                if self.phase == Phase::Waiting && self.builders.iter().all(|builder| builder.started) {
                    self.phase = Phase::Running;
                    self.due = self.plan.interval.map(|_| now);
                }
            }
            Message::Release { below } => {
                self.release(index, below);
                self.blocked = false;
            }
            Message::Pause => self.pause(index),
            Message::StopAt { end } if index == 0 => {
                self.end_at = Some(end.0);
                self.blocked = false;
                if self.phase == Phase::Paused {
                    self.phase = Phase::Running;
                }
                self.pass_on(&Message::Told { end });
            }
            Message::Bye => {
                assert!(builder.book.is_empty(), "good-bye, and {} tickets are open", builder.book.len());
                builder.done = true;
                self.endpoints.close(index);
            }
            other => panic!("a builder said {other:?}"),
        }
    }

    fn pause(&mut self, index: usize) {
        if index == 0 && self.phase == Phase::Running {
            self.phase = Phase::Paused;
        }
        for builder in 0..self.builders.len() {
            self.offer(builder);
            self.announce_drops(builder);
        }
        let paused = Message::Paused { next: EventId(self.next_event), asked_by: index as u32 };
        self.say(0, &paused);
        if index > 0 {
            self.say(index, &paused);
        } else {
            self.pass_on(&paused);
        }
    }

    fn pass_on(&mut self, message: &Message) {
        for index in 1..self.builders.len() {
            if self.builders[index].welcome.is_some() {
                self.say(index, message);
            }
        }
    }

    fn say(&mut self, index: usize, message: &Message) {
        if let Some(link) = self.endpoints.link_mut(index) {
            link.send(message);
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
    pub(crate) fn lost(&mut self, index: usize, error: &LinkError, now: Duration) {
        assert!(!error.is_violation(), "a builder broke the rules: {error}");
        let builder = &mut self.builders[index];
        self.endpoints.close(index);
        builder.welcome = None;
        builder.eager = 0;
        for (offer, _) in builder.book.iter_mut().filter(|(offer, _)| offer.disposition == Disposition::Eager) {
            offer.disposition = Disposition::Held;
        }
        if let LinkError::Refused { reason, text } = error {
            assert_ne!(*reason, Refusal::Protocol, "source {} was refused: {text}", self.index);
            self.leave();
        } else if self.phase == Phase::Ending && builder.book.is_empty() {
            builder.done = true;
        } else {
            let since = builder.away.map_or(now, |(since, _)| since);
            builder.away = Some((since, now + RETRY));
        }
    }

    fn reconnect(&mut self, now: Duration) {
        for (index, builder) in self.builders.iter_mut().enumerate() {
            let Some((since, _)) = builder.away.filter(|(_, at)| *at <= now && !builder.done) else { continue };
            if now > since + TIMEOUT {
                self.leave();
                return;
            }
            // Or not yet welcomed.
            let connected = self.endpoints.link(index).is_some()
                || self.endpoints.connect(index, &self.addresses[index], None, &builder.greeting).is_ok();
            let again = if connected { TIMEOUT } else { RETRY };
            builder.away = Some((since, now + again));
        }
    }

    fn flush(&mut self, now: Duration) {
        let mut broken = Vec::new();
        self.endpoints.flush(now, &mut broken);
        broken.iter().for_each(|(index, error)| self.lost(*index, error, now));
    }

    /// Takes what the device has, at most a slot full. True where there may be more.
    fn produce(&mut self, now: Duration) -> bool {
        let mut offered = false;
        while !offered && self.phase == Phase::Running {
            if self.next_event >= self.plan.events || self.end_at.is_some_and(|end| self.next_event >= end) {
                self.end();
                return false;
            }
            if self.due.is_some_and(|due| due > now) {
                break;
            }
            let index = (self.next_event % self.builders.len() as u64) as usize;
            let payload = payload(self.index, self.next_event, self.plan.longest);
            let Some(dropped) = self.place(index, payload.len()) else {
                self.due = self.due.map(|due| due.max(now));
                break;
            };
            if !dropped {
                self.put(index, &payload);
                if !self.has_room(index, payload.len()) {
                    self.offer(index);
                    offered = true;
                }
            }
            self.next_event += 1;
            self.sequence = self.sequence.wrapping_add(1);
            self.due = self.due.zip(self.plan.interval).map(|(due, interval)| due + interval);
        }
        if !offered && self.phase == Phase::Running {
            for index in 0..self.builders.len() {
                if self.builders[index].book.len() < 2 {
                    self.offer(index);
                    if self.builders[index].book.is_empty() {
                        self.announce_drops(index);
                    }
                }
            }
        }
        offered
    }

    fn has_room(&self, index: usize, len: usize) -> bool {
        let most = self.builders.iter().filter_map(|b| b.welcome.map(|w| w.most_records)).min().unwrap_or(1);
        let fits = |filling: &Filling| filling.count < most && filling.used + record_len(len) <= filling.slot.len();
        self.builders[index].filling.as_ref().is_none_or(fits)
    }

    /// Finds a place for the next fragment; true where it was dropped instead, nothing where it has to wait.
    fn place(&mut self, index: usize, len: usize) -> Option<bool> {
        if !self.has_room(index, len) {
            self.offer(index);
        }
        if self.builders[index].filling.is_none() {
            match self.slot(index) {
                Some(slot) => {
                    let first = self.next_event;
                    self.builders[index].filling = Some(Filling { slot, first, count: 0, used: 0 });
                }
                None if self.plan.policy == Policy::Block => {
                    self.blocked = true;
                    return None;
                }
                None => {
                    self.drop_newest(index);
                    return Some(true);
                }
            }
        }
        Some(false)
    }

    fn put(&mut self, index: usize, payload: &[u8]) {
        let header = FragmentHeader {
            status: Status::SIMULATED,
            run: RUN,
            event: EventId(self.next_event),
            source: id(self.index),
            sequence: self.sequence,
            total_length: payload.len() as u32,
            piece_length: payload.len() as u32,
            payload_crc: crc32c(payload),
            ..FragmentHeader::default()
        };
        let builder = &mut self.builders[index];
        let filling = builder.filling.as_mut().unwrap();
        let record = &mut filling.slot[filling.used..];
        record[..HEADER_LEN].copy_from_slice(&header.encode());
        record[HEADER_LEN..HEADER_LEN + payload.len()].copy_from_slice(payload);
        filling.used += record_len(payload.len());
        filling.count += 1;
        builder.accounts.accepted += 1;
    }

    fn slot(&mut self, index: usize) -> Option<Slot> {
        let builder = &mut self.builders[index];
        if let Some(slot) = self.pool.take() {
            return Some(slot);
        }
        if self.plan.policy != Policy::DropOldest {
            return None;
        }
        let mut link = self.endpoints.link_mut(index).filter(|_| builder.welcome.is_some());
        for (offer, slot) in builder.book.iter_mut().filter(|(_, slot)| slot.is_some()) {
            if link.as_mut().is_none_or(|link| link.withdraw(offer.ticket)) {
                if offer.disposition == Disposition::Eager {
                    builder.eager -= offer.bytes;
                }
                offer.disposition = Disposition::DroppedOldest;
                offer.bytes = 0;
                builder.accounts.dropped_oldest += u64::from(offer.count);
                if let Some(link) = link {
                    link.offer(offer);
                }
                return slot.take();
            }
        }
        None
    }

    fn drop_newest(&mut self, index: usize) {
        let (event, count) = (self.next_event, self.builders.len() as u64);
        let builder = &mut self.builders[index];
        builder.accounts.accepted += 1;
        builder.accounts.dropped_newest += 1;
        match &mut builder.dropping {
            Some((first, run)) if *first + u64::from(*run) * count == event => *run += 1,
            _ => {
                self.announce_drops(index);
                self.builders[index].dropping = Some((event, 1));
            }
        }
    }

    fn announce_drops(&mut self, index: usize) {
        if let Some((first, count)) = self.builders[index].dropping.take() {
            self.announce(index, first, count, 0, Disposition::DroppedNewest, None);
        }
    }

    /// Offers what is in the slot that is being filled.
    fn offer(&mut self, index: usize) {
        let Some(filling) = self.builders[index].filling.take() else { return };
        if self.builders[index].dropping.is_some_and(|(first, _)| first < filling.first) {
            self.announce_drops(index);
        }
        let (builder, bytes) = (&mut self.builders[index], filling.used as u32);
        let fits = |welcome: &Welcome| bytes <= welcome.eager_limit && builder.eager + bytes <= welcome.eager_credit;
        let eager = self.endpoints.link(index).is_some() && builder.welcome.as_ref().is_some_and(fits);
        builder.eager += if eager { bytes } else { 0 };
        let how = if eager { Disposition::Eager } else { Disposition::Held };
        self.announce(index, filling.first, filling.count, bytes, how, Some(filling.slot));
    }

    fn announce(&mut self, index: usize, first: u64, count: u32, bytes: u32, how: Disposition, slot: Option<Slot>) {
        let builder = &mut self.builders[index];
        let offer = Announcement {
            ticket: builder.book.next_ticket(),
            first: EventId(first),
            arena_offset: slot.as_ref().map_or(0, |slot| slot.offset() as u64),
            count,
            bytes,
            disposition: how,
        };
        builder.book.push(offer, slot);
        builder.accounts.tickets = builder.book.next_ticket();
        if let Some(link) = self.endpoints.link_mut(index).filter(|_| builder.welcome.is_some()) {
            link.offer(&offer);
        }
    }

    fn end(&mut self) {
        self.phase = Phase::Ending;
        for index in 0..self.builders.len() {
            self.offer(index);
            self.announce_drops(index);
            if self.builders[index].welcome.is_some() {
                self.say(index, &Message::End(self.builders[index].accounts));
            }
        }
    }
}

/// Bytes that belong to this fragment alone, as many as befall it.
fn payload(source: usize, event: u64, longest: usize) -> Vec<u8> {
    let mixed = (source as u64 * 1_000_003 + event * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    (0..mixed as usize % (longest + 1)).map(|i| (i as u64 + 7 * source as u64 + 13 * event) as u8).collect()
}
