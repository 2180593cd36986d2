//! Trigger levels: where fragments wait while their event is decided on, and the copy of those that are kept.
//!
//! Few events are kept, so what is fetched does not go into the blocks that go to disk: it waits in *places*, one for
//! each slot, or, over shared memory, where the source wrote it. An event that is accepted is copied once into such a
//! block.

use super::SourceState;
use crate::blocks::Blocks;
use crate::topology::{Decision, LevelConfig};
use crate::{BuilderNodeConfig, CheckConfig, Environment, NodeError};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{Arena, PlacePool, Span};
use thalweg_build::{Builder, Closed, Missing, Violation};
use thalweg_filter::{Condition, Decide, Fragment, Program, Undecided};
use thalweg_link::Bytes;
use thalweg_wire::{Announcement, EventId, FragmentHeader, HEADER_LEN, RecordBytes, SourceId, Status};

/// Starts the programs that decide for a builder, waits until each is ready, and ends them.
///
/// # Errors
/// One cannot be started, or is no such program; and which.
pub fn try_programs(builder: &BuilderNodeConfig) -> Result<(), NodeError> {
    Trigger::new(builder, 1, false, &Environment::system()).map(drop)
}

/// The trigger levels of a builder.
#[derive(Debug)]
pub(super) struct Trigger {
    level2: Option<Level>,
    /// The sources that level 2 decides on.
    asked_first: Vec<usize>,
    filter: Option<Level>,
    places: Option<PlacePool>,
    /// Places kept for the oldest event, so that later ones cannot keep it from being decided on: one for each source.
    kept: usize,
    /// Slots that hold records of events that are not decided on.
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    events: HashMap<EventId, Vec<Record>>,
    /// What the event filter has, in the order in which it goes to disk.
    waiting: VecDeque<Waiting>,
    /// Accepted, and not yet all of it copied.
    accepted: VecDeque<Closed>,
    stride: u64,
    record: bool,
    check: CheckConfig,
    copied: u64,
}

/// What decides.
#[derive(Debug)]
enum Level {
    /// It says at once.
    Here(Box<dyn Decide>),
    /// It is a process of its own, and says later.
    Program(Box<Program>),
}

/// An event that the event filter is to decide on.
#[derive(Debug)]
struct Waiting {
    closed: Closed,
    asked: bool,
    accept: Option<bool>,
}

/// A slot as it arrived.
#[derive(Debug)]
struct Slot {
    bytes: Bytes,
    /// How many records of it somebody waits for.
    records: usize,
}

/// A fragment of an event: where its header begins in a slot, how many bytes it has with it, and the header as it was
/// checked.
#[derive(Debug, Clone, Copy)]
struct Record {
    source: usize,
    slot: usize,
    offset: usize,
    len: usize,
    header: FragmentHeader,
}

impl Trigger {
    /// For one of `builders` builders. `record`: whether what is accepted is to be copied at all. Programs that decide
    /// are started.
    pub(super) fn new(
        config: &BuilderNodeConfig,
        builders: u32,
        record: bool,
        environment: &Environment,
    ) -> Result<Self, NodeError> {
        let start = |level: Option<&LevelConfig>, key: &str| match level.map(|level| level.decision(0)) {
            Some(Ok(Decision::Program(program))) => {
                match Program::start(program, Arc::clone(&environment.programs), environment.clock.now()) {
                    Ok(program) => Ok(Some(Level::Program(Box::new(program)))),
                    Err(problem) => Err(wrong(config, &format!("{key}.program"), &problem)),
                }
            }
            _ => Ok(None),
        };
        Ok(Self {
            level2: start(config.level2.as_ref(), "level2")?,
            asked_first: Vec::new(),
            filter: start(config.filter.as_ref(), "filter")?,
            places: None,
            kept: 0,
            slots: Vec::new(),
            free: Vec::new(),
            events: HashMap::new(),
            waiting: VecDeque::new(),
            accepted: VecDeque::new(),
            stride: builders.into(),
            record,
            check: config.check,
            copied: 0,
        })
    }

    /// Makes what decides, once it is known what the sources send.
    pub(super) fn decide_by(
        &mut self,
        config: &BuilderNodeConfig,
        ids: &[(SourceId, String)],
        sources: &[SourceState],
    ) -> Result<(), NodeError> {
        if let Some(level2) = &config.level2 {
            let is_asked = |source: &usize| level2.sources.contains(&ids[*source].1);
            self.asked_first = (0..ids.len()).filter(is_asked).collect();
        }
        let levels = [(&mut self.level2, &config.level2, "level2", 1), (&mut self.filter, &config.filter, "filter", 2)];
        for (level, config_of, name, seed) in levels {
            let Some(level_config) = config_of else { continue };
            if let Some(Level::Program(program)) = level {
                let seen = if name == "level2" { self.asked_first.clone() } else { (0..ids.len()).collect() };
                let bytes = seen.iter().map(|source| sources[*source].slot_bytes as usize).sum();
                let describe = |source: &usize| {
                    let (id, name) = &ids[*source];
                    serde_json::json!({ "id": id.to_string(), "name": name, "description": sources[*source].description })
                };
                let introduction = serde_json::json!({
                    "builder": config.name,
                    "level": name,
                    "sources": seen.iter().map(describe).collect::<Vec<_>>(),
                });
                let begun = program.begin(&introduction, bytes);
                begun.map_err(|problem| wrong(config, &format!("{name}.program"), &problem))?;
                continue;
            }
            let decision = level_config.decision(seed);
            let decision = decision.map_err(|(key, problem)| wrong(config, &format!("{name}.{key}"), &problem))?;
            let here = Self::here(decision, ids, sources);
            *level = here.map_err(|problem| wrong(config, &format!("{name}.accept"), &problem))?.map(Level::Here);
        }
        Ok(())
    }

    /// What decides in this process, if anything does.
    fn here(
        decision: Decision,
        ids: &[(SourceId, String)],
        sources: &[SourceState],
    ) -> Result<Option<Box<dyn Decide>>, String> {
        let mut condition = match decision {
            Decision::Program(_) => return Ok(None),
            Decision::Simulated(simulated) => return Ok(Some(Box::new(simulated))),
            Decision::Condition(condition) => condition,
        };
        for variable in condition.variables() {
            let named = ids.iter().position(|(_, name)| Condition::variable(name) == variable);
            let Some(source) = named else { continue };
            let features = &sources[source].description["metadata"]["features"];
            let features = serde_json::from_value::<Vec<String>>(features.clone())
                .map_err(|_| format!("source '{}' has no features: it is no fit", ids[source].1))?;
            condition.bind(variable, ids[source].0, features);
        }
        condition.check()?;
        Ok(Some(Box::new(condition)))
    }

    fn levels(&self) -> impl Iterator<Item = &Level> {
        self.level2.iter().chain(&self.filter)
    }

    fn programs(&self) -> impl Iterator<Item = &Program> {
        self.levels().filter_map(|level| match level {
            Level::Program(program) => Some(&**program),
            Level::Here(_) => None,
        })
    }

    /// What is readable when a program has something to say.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.programs().map(AsFd::as_fd)
    }

    /// When to look at the programs, though they say nothing.
    pub(super) fn next_look(&self) -> Option<Duration> {
        self.programs().filter_map(Program::next_look).min()
    }

    /// Events that could not be decided on.
    pub(super) fn undecided(&self) -> Undecided {
        let mut report = Undecided::default();
        for level in self.levels() {
            match level {
                Level::Here(level) => report.unsure += level.undecided(),
                Level::Program(program) => report = report.and(program.undecided()),
            }
        }
        report
    }

    /// Events that a program should have decided on and did not. What a condition leaves undecided is as it was meant.
    pub(super) fn undecided_by_programs(&self) -> Undecided {
        self.programs().fold(Undecided::default(), |sum, program| sum.and(program.undecided()))
    }

    /// Whether any decision is drawn.
    pub(super) fn is_simulated(&self) -> bool {
        self.levels().any(|level| matches!(level, Level::Here(level) if level.is_simulated()))
    }

    /// Sets memory aside, once it is known how long the sources' slots are: as much as the blocks have, and two places
    /// for each source at least.
    pub(super) fn set_aside(&mut self, config: &BuilderNodeConfig, sources: &[SourceState]) -> Result<(), NodeError> {
        if config.listen.iter().all(|address| address.kind().maps) {
            return Ok(());
        }
        let longest = sources.iter().map(|source| source.slot_bytes).max().unwrap_or(0).max(1);
        let bytes = config.block.0.saturating_mul(config.blocks.into());
        let least = u64::try_from(2 * sources.len()).unwrap_or(u64::MAX);
        let count =
            u32::try_from((bytes / u64::from(longest)).clamp(least, MOST_PLACES.max(least))).unwrap_or(u32::MAX);
        let places = PlacePool::new(&format!("{} places", config.name), count, longest as usize)?;
        tracing::info!(
            builder = config.name,
            count,
            bytes = longest,
            "places for what is decided on, of {}",
            places.arena()
        );
        self.places = Some(places);
        self.kept = sources.len();
        Ok(())
    }

    /// Where its places lie, once they are set aside.
    pub(super) fn memory(&self) -> Option<&Arc<Arena>> {
        self.places.as_ref().map(PlacePool::arena)
    }

    /// A place for a slot. Nothing where none is free; the last ones are for the `oldest` event.
    pub(super) fn reserve(&mut self, offer: &Announcement, oldest: bool) -> Option<Span> {
        let places = self.places.as_mut().filter(|places| oldest || places.free() > self.kept)?;
        places.take(offer.bytes as usize)
    }

    /// The bytes of a ticket are here. True where some of its fragments were in pieces: those wait for nothing, and no
    /// level sees them. And whether the source may send what it sent.
    pub(super) fn arrived(
        &mut self,
        builder: &mut Builder,
        source: usize,
        ticket: u64,
        bytes: Bytes,
    ) -> (bool, Result<(), Violation>) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let (mut records, mut in_pieces) = (0, false);
        let events = &mut self.events;
        let result = builder.arrived(source, ticket, &bytes, |offset, header| {
            let offset = offset as usize;
            if !header.is_whole() {
                in_pieces = true;
                return;
            }
            let len = HEADER_LEN + header.piece_length as usize;
            events.entry(header.event).or_default().push(Record { source, slot, offset, len, header: *header });
            records += 1;
        });
        self.slots[slot] = Some(Slot { bytes, records });
        if records == 0 {
            self.clear(slot);
        }
        (in_pieces, result)
    }

    /// Hears what programs say, and lets time pass for them.
    pub(super) fn look(&mut self, now: Duration) {
        for level in self.level2.iter_mut().chain(&mut self.filter) {
            if let Level::Program(program) = level {
                program.look(now);
            }
        }
    }

    /// Whether the event filter has no room for more, so that nothing behind it goes on.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.back().is_some_and(|waiting| !waiting.asked)
    }

    /// Level 2 decides on whatever it can.
    pub(super) fn decide(&mut self, builder: &mut Builder, now: Duration) {
        while let Some((event, accept)) = self.next_decision(builder, now) {
            builder.decide(event, accept);
            if !accept {
                self.let_go(event);
            }
        }
    }

    fn next_decision(&mut self, builder: &mut Builder, now: Duration) -> Option<(EventId, bool)> {
        loop {
            let program = match self.level2.as_mut()? {
                Level::Here(level) => {
                    let event = builder.next_decision()?;
                    let fragments = &mut fragments(&self.events, &self.slots, event, &self.asked_first);
                    return Some((event, level.accept(event, fragments)));
                }
                Level::Program(program) => program,
            };
            if let Some(answer) = program.next_answer() {
                return Some(answer);
            }
            if !program.has_room() {
                return None;
            }
            let event = builder.next_decision()?;
            let fragments = &mut fragments(&self.events, &self.slots, event, &self.asked_first);
            if let Some(accept) = program.ask(event, fragments, now) {
                return Some((event, accept));
            }
        }
    }

    /// The event filter is to decide on events that are closed.
    pub(super) fn filter(&mut self, closed: Closed) {
        let Closed { first, count, missing } = closed;
        for step in 0..u64::from(count) {
            let first = EventId(first.0 + step * self.stride);
            let closed = Closed { first, count: 1, missing: missing.clone() };
            self.waiting.push_back(Waiting { closed, asked: false, accept: None });
        }
    }

    /// The event filter decides on whatever it can. True where it takes more events.
    pub(super) fn pass_filter(&mut self, builder: &mut Builder, now: Duration) -> bool {
        if let Some(Level::Program(program)) = &mut self.filter {
            while let Some((event, accept)) = program.next_answer() {
                let asked = self.waiting.iter_mut().find(|waiting| waiting.closed.first == event);
                asked.into_iter().for_each(|waiting| waiting.accept = Some(accept));
            }
        }
        let mut takes_more = true;
        let first = self.waiting.partition_point(|waiting| waiting.asked);
        for waiting in self.waiting.range_mut(first..) {
            let event = waiting.closed.first;
            let fragments = &mut fragments(&self.events, &self.slots, event, &[]);
            waiting.accept = match &mut self.filter {
                None => Some(true),
                Some(Level::Here(level)) => Some(level.accept(event, fragments)),
                Some(Level::Program(program)) if program.has_room() => program.ask(event, fragments, now),
                Some(Level::Program(_)) => {
                    takes_more = false;
                    break;
                }
            };
            waiting.asked = true;
        }
        while let Some(accept) = self.waiting.front().and_then(|waiting| waiting.accept)
            && let Some(Waiting { closed, .. }) = self.waiting.pop_front()
        {
            if !accept {
                builder.reject(&closed.missing);
            }
            if accept && self.record {
                self.accepted.push_back(closed);
            } else {
                self.let_go(closed.first);
            }
        }
        takes_more
    }

    /// The lowest number of an event that is closed and whose fragments are still needed.
    pub(super) fn oldest_held(&self) -> Option<EventId> {
        let waiting = self.waiting.iter().map(|waiting| waiting.closed.first);
        waiting.chain(self.accepted.iter().map(|closed| closed.first)).min()
    }

    /// Whether nothing waits for the event filter, or to be copied.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.accepted.is_empty()
    }

    /// Whether accepted events wait to be copied.
    pub(super) fn has_accepted(&self) -> bool {
        !self.accepted.is_empty()
    }

    /// Payload bytes copied so far.
    pub(super) fn copied(&self) -> u64 {
        self.copied
    }

    /// Copies the oldest accepted event into the blocks that go to disk. False where no block was free before all of it
    /// was: what is left is left for the next time.
    pub(super) fn copy(&mut self, blocks: &mut Blocks, ids: &[(SourceId, String)], now: Duration) -> bool {
        let Some(event) = self.accepted.front().map(|closed| closed.first) else { return true };
        while let Some(record) = self.events.get(&event).and_then(|records| records.last()).copied() {
            let Some(mut place) = blocks.reserve(record.len, 1, now) else { return false };
            let (id, name) = &ids[record.source];
            let mut good = true;
            if let Some(slot) = &self.slots[record.slot] {
                slot.bytes.copy_to(record.offset, &mut place);
                self.copied += (record.len - HEADER_LEN) as u64;
                // What was checked as it arrived was where another process can write. What counts is the copy.
                good = matches!(slot.bytes, Bytes::Place(_)) || self.is_unchanged(&place, &record.header);
            }
            if good {
                blocks.filled(place, |_, enter| enter(event, *id, 0));
            } else {
                tracing::warn!(source = name, event = event.0, "a fragment was changed after it had been offered");
                blocks.count_lost(record.source);
                let status = Status::MISSING | Status::CORRUPT;
                let closed = self.accepted.front_mut();
                closed.into_iter().for_each(|closed| closed.missing.push(Missing { source: record.source, status }));
            }
            self.events.get_mut(&event).and_then(Vec::pop);
            self.done(record.slot);
        }
        self.events.remove(&event);
        if let Some(closed) = self.accepted.pop_front() {
            blocks.close(closed);
        }
        true
    }

    /// Whether a copied record has the header that was checked, and its payload, where that is checked.
    fn is_unchanged(&self, record: &[u8], checked: &FragmentHeader) -> bool {
        FragmentHeader::decode(record).is_ok_and(|header| header == *checked)
            && (self.check == CheckConfig::Header || checked.payload_matches(&record[HEADER_LEN..]))
    }

    /// The run ends in front of this event: what waits for the decision on later ones makes room.
    pub(super) fn end_at(&mut self, end: EventId) {
        let beyond: Vec<EventId> = self.events.keys().copied().filter(|event| *event >= end).collect();
        beyond.into_iter().for_each(|event| self.let_go(event));
    }

    /// Nobody needs the fragments of an event any more.
    fn let_go(&mut self, event: EventId) {
        for record in self.events.remove(&event).unwrap_or_default() {
            self.done(record.slot);
        }
    }

    /// A record of a slot is done with.
    fn done(&mut self, slot: usize) {
        let Some(held) = &mut self.slots[slot] else { return };
        held.records -= 1;
        if held.records == 0 {
            self.clear(slot);
        }
    }

    fn clear(&mut self, slot: usize) {
        self.slots[slot] = None;
        self.free.push(slot);
    }
}

fn wrong(config: &BuilderNodeConfig, key: &str, problem: &str) -> NodeError {
    NodeError::Config(format!("builder '{}': {key}: {problem}", config.name))
}

/// The fragments of an event that are here and of these sources; of all, where none are named. What others packed into one
/// slot with an earlier event may have come, too.
fn fragments<'a>(
    events: &'a HashMap<EventId, Vec<Record>>,
    slots: &'a [Option<Slot>],
    event: EventId,
    sources: &'a [usize],
) -> impl Iterator<Item = Fragment<'a>> {
    let seen = move |record: &&Record| sources.is_empty() || sources.contains(&record.source);
    events.get(&event).into_iter().flatten().filter(seen).filter_map(move |record| {
        let bytes = &slots[record.slot].as_ref()?.bytes;
        let is_ours =
            |header: &FragmentHeader| header.event == event && header.piece_length as usize == record.len - HEADER_LEN;
        let header = header(bytes, record.offset).filter(is_ours)?;
        Some(Fragment::new(header, bytes, record.offset + HEADER_LEN))
    })
}

/// The header of a record.
fn header(bytes: &Bytes, offset: usize) -> Option<FragmentHeader> {
    let mut header = [0; HEADER_LEN];
    bytes.copy_to(offset, &mut header);
    FragmentHeader::decode(&header).ok()
}

/// More places than this are of no use.
const MOST_PLACES: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_the_decision_on_events_beyond_the_end_makes_room() {
        let config = BuilderNodeConfig::new("b", Vec::new());
        let mut trigger = Trigger::new(&config, 1, true, &Environment::system()).unwrap();
        let mut places = PlacePool::new("test", 2, 4096).unwrap();
        let slot = |records| Some(Slot { bytes: Bytes::Place(places.take(64).unwrap()), records });
        trigger.slots = [2, 1].map(slot).into();
        trigger.places = Some(places);
        let record = |slot| Record { source: 0, slot, offset: 0, len: 64, header: FragmentHeader::default() };
        trigger.events = [(4, 0), (5, 0), (6, 1)].map(|(event, slot)| (EventId(event), vec![record(slot)])).into();
        let free = |trigger: &Trigger| trigger.places.as_ref().map(PlacePool::free);

        trigger.end_at(EventId(7));
        assert_eq!(free(&trigger), Some(0));
        trigger.end_at(EventId(5));
        assert_eq!((free(&trigger), &trigger.free[..]), (Some(1), &[1][..]), "event 4 shares its slot with event 5");
        trigger.let_go(EventId(4));
        assert_eq!(free(&trigger), Some(2));
    }
}
