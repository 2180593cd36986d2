//! Trigger levels: hold fragments while their event is decided on, and copy those that are kept.
//!
//! Few events are kept, so fetched data do not go into the blocks that go to disk: they wait in *places*, one for each
//! slot, or, over shared memory, where the source wrote them. An accepted event is copied once into such a block.

use super::peers::Peers;
use super::setup::Setup;
use crate::blocks::Blocks;
use crate::topology::Decision;
use crate::{BuilderNodeConfig, CheckConfig, Environment, NodeError};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{Arena, PlacePool, Span};
use thalweg_core::build::{Builder, Closed, Missing, Violation};
use thalweg_core::filter::{Condition, Decide, Fragment, Program, Undecided};
use thalweg_link::Bytes;
use thalweg_wire::{Announcement, EventId, FragmentHeader, HEADER_LEN, RecordBytes, SourceId, Status};

/// Starts the programs that decide for a builder, waits until each is ready, and ends them.
///
/// # Errors
/// A program cannot be started, or is not a program for trigger levels; the error names it.
pub fn try_programs(builder: &BuilderNodeConfig) -> Result<(), NodeError> {
    Trigger::new(builder, 1, false, &Environment::system()).map(drop)
}

/// Trigger levels of a builder.
#[derive(Debug)]
pub(super) struct Trigger {
    level2: Option<Level>,
    /// Sources that level 2 decides on.
    asked_first: Vec<usize>,
    filter: Option<Level>,
    places: Option<PlacePool>,
    /// Number of places kept for the oldest event, so that later ones cannot keep it from being decided on: one for
    /// each source.
    kept: usize,
    /// Slots that hold records of undecided events.
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    events: HashMap<EventId, Vec<Record>>,
    /// Closed events at the event filter, in the order in which they go to disk.
    waiting: VecDeque<Waiting>,
    /// Accepted events that are not yet copied completely.
    accepted: VecDeque<Closed>,
    stride: u64,
    record: bool,
    check: CheckConfig,
    copied: u64,
    /// Events that could not be decided in earlier runs: of all levels, and of programs.
    undecided_before: (Undecided, Undecided),
}

/// Decider of a level.
#[derive(Debug)]
enum Level {
    /// Decides at once, in this process.
    Here(Box<dyn Decide>),
    /// Decides later, in a process of its own.
    Program(Box<Program>),
}

/// Closed event that the event filter must decide on.
#[derive(Debug)]
struct Waiting {
    closed: Closed,
    asked: bool,
    accept: Option<bool>,
}

/// Slot as it arrived.
#[derive(Debug)]
struct Slot {
    bytes: Bytes,
    /// Number of its records that are still needed.
    records: usize,
}

/// Fragment of an event: offset of its header in a slot, length including the header, and the header as it was checked.
#[derive(Debug, Clone, Copy)]
struct Record {
    source: usize,
    slot: usize,
    offset: usize,
    len: usize,
    header: FragmentHeader,
}

impl Trigger {
    /// Creates the levels of one of `builders` builders, and starts the programs that decide. `record`: whether
    /// accepted events are copied at all.
    pub(super) fn new(
        config: &BuilderNodeConfig,
        builders: u32,
        record: bool,
        environment: &Environment,
    ) -> Result<Self, NodeError> {
        let mut levels = [None, None];
        for (level, (key, level_config)) in
            levels.iter_mut().zip([("level2", &config.level2), ("filter", &config.filter)])
        {
            if let Some(Ok(Decision::Program(program))) = level_config.as_ref().map(|level| level.level_decision(0)) {
                let started = Program::start(program, Arc::clone(&environment.programs), environment.clock.now());
                let program = started.map_err(|problem| key_error(config, &format!("{key}.program"), &problem))?;
                *level = Some(Level::Program(Box::new(program)));
            }
        }
        let [level2, filter] = levels;
        Ok(Self {
            level2,
            asked_first: Vec::new(),
            filter,
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
            undecided_before: Default::default(),
        })
    }

    /// Creates the deciders, once the sources' descriptions are known.
    pub(super) fn prepare_levels(&mut self, setup: &Setup, peers: &Peers) -> Result<(), NodeError> {
        let Setup { config, ids, .. } = setup;
        if let Some(level2) = &config.level2 {
            self.asked_first = (0..ids.len()).filter(|source| level2.sources.contains(&ids[*source].1)).collect();
        }
        let levels = [(&mut self.level2, &config.level2, "level2", 1), (&mut self.filter, &config.filter, "filter", 2)];
        for (level, config_of, name, seed) in levels {
            let Some(level_config) = config_of else { continue };
            if let Some(Level::Program(program)) = level {
                let seen: Vec<usize> =
                    if name == "level2" { self.asked_first.clone() } else { (0..ids.len()).collect() };
                let bytes = seen.iter().map(|source| peers.source_greeting(*source).slot_bytes as usize).sum();
                let mut descriptions = Vec::new();
                for source in seen {
                    let ((id, name), description) = (&ids[source], &peers.source_greeting(source).description);
                    let id = id.to_string();
                    descriptions.push(serde_json::json!({ "id": id, "name": name, "description": description }));
                }
                let introduction =
                    serde_json::json!({ "builder": config.name, "level": name, "sources": descriptions });
                let begun = program.begin_run(&introduction, bytes);
                begun.map_err(|problem| key_error(config, &format!("{name}.program"), &problem))?;
                continue;
            }
            let decision = level_config.level_decision(seed);
            let decision = decision.map_err(|(key, problem)| key_error(config, &format!("{name}.{key}"), &problem))?;
            let here = Self::in_process_decider(decision, ids, peers);
            *level = here.map_err(|problem| key_error(config, &format!("{name}.accept"), &problem))?.map(Level::Here);
        }
        Ok(())
    }

    /// Returns the decider that runs in this process; `None` for a program.
    fn in_process_decider(
        decision: Decision,
        ids: &[(SourceId, String)],
        peers: &Peers,
    ) -> Result<Option<Box<dyn Decide>>, String> {
        let mut condition = match decision {
            Decision::Program(_) => return Ok(None),
            Decision::Simulated(simulated) => return Ok(Some(Box::new(simulated))),
            Decision::Condition(condition) => condition,
        };
        for variable in condition.variable_names() {
            let named = ids.iter().position(|(_, name)| Condition::variable_name(name) == variable);
            let Some(source) = named else { continue };
            let features = &peers.source_greeting(source).description["metadata"]["features"];
            let features = serde_json::from_value::<Vec<String>>(features.clone())
                .map_err(|_| format!("source '{}' has no features, since it is not a fit", ids[source].1))?;
            condition.bind_source(variable, ids[source].0, features);
        }
        condition.check_features()?;
        Ok(Some(Box::new(condition)))
    }

    fn existing_levels(&self) -> impl Iterator<Item = &Level> {
        self.level2.iter().chain(&self.filter)
    }

    fn running_programs(&self) -> impl Iterator<Item = &Program> {
        self.existing_levels().filter_map(|level| match level {
            Level::Program(program) => Some(&**program),
            Level::Here(_) => None,
        })
    }

    /// Returns the descriptors that become readable when a program has sent something.
    pub(super) fn program_descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.running_programs().map(AsFd::as_fd)
    }

    /// Returns when to check the programs even if they send nothing.
    pub(super) fn next_program_check_time(&self) -> Option<Duration> {
        self.running_programs().filter_map(Program::next_poll_time).min()
    }

    /// Returns the counts of events that could not be decided.
    pub(super) fn undecided_counts(&self) -> Undecided {
        self.all_undecided().without_earlier(self.undecided_before.0)
    }

    fn all_undecided(&self) -> Undecided {
        let mut report = Undecided::default();
        for level in self.existing_levels() {
            match level {
                Level::Here(level) => report.unsure += level.undecided_events(),
                Level::Program(program) => report = report.merged_with(program.undecided_counts()),
            }
        }
        report
    }

    fn all_undecided_by_programs(&self) -> Undecided {
        self.running_programs().fold(Undecided::default(), |sum, program| sum.merged_with(program.undecided_counts()))
    }

    /// Begins the counts of the next run. No event is open.
    pub(super) fn begin_next_run(&mut self) {
        self.copied = 0;
        self.undecided_before = (self.all_undecided(), self.all_undecided_by_programs());
    }

    /// Returns the counts of events that a program should have decided on and did not. Events that a condition leaves
    /// undecided are as intended.
    pub(super) fn undecided_by_programs(&self) -> Undecided {
        self.all_undecided_by_programs().without_earlier(self.undecided_before.1)
    }

    /// Returns whether any decision is drawn at random.
    pub(super) fn is_simulated(&self) -> bool {
        self.existing_levels().any(|level| matches!(level, Level::Here(level) if level.is_simulated()))
    }

    /// Allocates places, once the lengths of the sources' slots are known: as much memory as the blocks have, and at
    /// least two places for each source.
    pub(super) fn allocate_places(&mut self, config: &BuilderNodeConfig, peers: &Peers) -> Result<(), NodeError> {
        if config.listen.iter().all(|address| address.link_kind().maps) {
            return Ok(());
        }
        let sources = peers.source_greetings().count();
        let longest = peers.source_greetings().map(|greeting| greeting.slot_bytes).max().unwrap_or(0).max(1);
        let bytes = config.block.0.saturating_mul(config.blocks.into());
        let least = u64::try_from(2 * sources).unwrap_or(u64::MAX);
        let count = u32::try_from((bytes / u64::from(longest)).clamp(least, MAX_PLACES.max(least))).unwrap_or(u32::MAX);
        let places = PlacePool::new(&format!("{} places", config.name), count, longest as usize)?;
        tracing::info!(
            builder = config.name,
            count,
            bytes = longest,
            "memory for events to be decided, of {}",
            places.arena()
        );
        self.places = Some(places);
        self.kept = sources;
        Ok(())
    }

    /// Returns the arena of the places, once they are allocated.
    pub(super) fn places_arena(&self) -> Option<&Arc<Arena>> {
        self.places.as_ref().map(PlacePool::arena)
    }

    /// Takes a place for a slot. Returns `None` if none is free; the last ones are reserved for the `oldest` event.
    pub(super) fn reserve_place(&mut self, offer: &Announcement, oldest: bool) -> Option<Span> {
        let places = self.places.as_mut().filter(|places| oldest || places.free_count() > self.kept)?;
        places.take_place(offer.bytes as usize)
    }

    /// Takes the bytes of a ticket. Returns true if some of its fragments were in pieces, which wait for nothing and
    /// are seen by no level; and whether the source was allowed to send these bytes.
    pub(super) fn take_slot(
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
        let mut arrival = builder.arrived(source, ticket, &bytes);
        for (offset, header) in &mut arrival {
            if !header.is_whole_fragment() {
                in_pieces = true;
                continue;
            }
            let (offset, len) = (offset as usize, HEADER_LEN + header.piece_length as usize);
            self.events.entry(header.event).or_default().push(Record { source, slot, offset, len, header });
            records += 1;
        }
        let result = arrival.finish();
        self.slots[slot] = Some(Slot { bytes, records });
        if records == 0 {
            self.free_slot(slot);
        }
        (in_pieces, result)
    }

    /// Receives answers of programs, and applies their deadlines.
    pub(super) fn check_programs(&mut self, now: Duration) {
        for level in self.level2.iter_mut().chain(&mut self.filter) {
            if let Level::Program(program) = level {
                program.poll_answers(now);
            }
        }
    }

    /// Returns whether the event filter has no room for more, so that nothing before it can go on.
    pub(super) fn is_filter_full(&self) -> bool {
        self.waiting.back().is_some_and(|waiting| !waiting.asked)
    }

    /// Applies the decisions of level 2 that can be made now.
    pub(super) fn apply_decisions(&mut self, builder: &mut Builder, now: Duration) {
        while let Some((event, accept)) = self.next_decision(builder, now) {
            builder.decide_event(event, accept);
            if !accept {
                self.drop_event(event);
            }
        }
    }

    fn next_decision(&mut self, builder: &mut Builder, now: Duration) -> Option<(EventId, bool)> {
        loop {
            let program = match self.level2.as_mut()? {
                Level::Here(level) => {
                    let event = builder.next_decision()?;
                    let fragments = &mut event_fragments(&self.events, &self.slots, event, &self.asked_first);
                    return Some((event, level.accept_event(event, fragments)));
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
            let fragments = &mut event_fragments(&self.events, &self.slots, event, &self.asked_first);
            if let Some(accept) = program.send_question(event, fragments, now) {
                return Some((event, accept));
            }
        }
    }

    /// Hands closed events to the event filter.
    pub(super) fn queue_for_filter(&mut self, closed: Closed) {
        let Closed { first, count, missing } = closed;
        for step in 0..u64::from(count) {
            let first = EventId(first.0 + step * self.stride);
            let closed = Closed { first, count: 1, missing: missing.clone() };
            self.waiting.push_back(Waiting { closed, asked: false, accept: None });
        }
    }

    /// Applies the decisions of the event filter that can be made now. Returns true if it takes more events.
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
            let fragments = &mut event_fragments(&self.events, &self.slots, event, &[]);
            waiting.accept = match &mut self.filter {
                None => Some(true),
                Some(Level::Here(level)) => Some(level.accept_event(event, fragments)),
                Some(Level::Program(program)) if program.has_room() => program.send_question(event, fragments, now),
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
                builder.reject_closed(&closed.missing);
            }
            if accept && self.record {
                self.accepted.push_back(closed);
            } else {
                self.drop_event(closed.first);
            }
        }
        takes_more
    }

    /// Returns the lowest number of a closed event whose fragments are still needed.
    pub(super) fn oldest_held(&self) -> Option<EventId> {
        let waiting = self.waiting.iter().map(|waiting| waiting.closed.first);
        waiting.chain(self.accepted.iter().map(|closed| closed.first)).min()
    }

    /// Returns whether no event waits for the event filter, or to be copied.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.accepted.is_empty()
    }

    /// Returns whether accepted events wait to be copied.
    pub(super) fn has_accepted(&self) -> bool {
        !self.accepted.is_empty()
    }

    /// Returns the payload bytes copied so far.
    pub(super) fn copied_bytes(&self) -> u64 {
        self.copied
    }

    /// Copies the oldest accepted event into the blocks that go to disk. Returns false if there were not enough free
    /// blocks; the next call copies the rest.
    pub(super) fn copy_accepted_event(
        &mut self,
        blocks: &mut Blocks,
        ids: &[(SourceId, String)],
        now: Duration,
    ) -> bool {
        let Some(event) = self.accepted.front().map(|closed| closed.first) else { return true };
        while let Some(record) = self.events.get(&event).and_then(|records| records.last()).copied() {
            let Some(mut place) = blocks.reserve(record.len, 1, now) else { return false };
            let (id, name) = &ids[record.source];
            let mut good = true;
            if let Some(slot) = &self.slots[record.slot] {
                slot.bytes.copy_bytes_to(record.offset, &mut place);
                self.copied += (record.len - HEADER_LEN) as u64;
                // The bytes were checked on arrival in memory that another process can write. Only the copy counts.
                good = matches!(slot.bytes, Bytes::Place(_)) || self.is_unchanged(&place, &record.header);
            }
            if good {
                if let Some(mut place) = blocks.filled_place_for(&place) {
                    place.enter_record(event, *id, 0);
                }
            } else {
                tracing::warn!(source = name, event = event.0, "a fragment was changed after it was offered");
                blocks.count_lost_fragment(record.source);
                let status = Status::MISSING | Status::CORRUPT;
                let closed = self.accepted.front_mut();
                closed.into_iter().for_each(|closed| closed.missing.push(Missing { source: record.source, status }));
            }
            self.events.get_mut(&event).and_then(Vec::pop);
            self.end_record(record.slot);
        }
        self.events.remove(&event);
        if let Some(closed) = self.accepted.pop_front() {
            blocks.queue_closings(closed);
        }
        true
    }

    /// Returns whether a copied record has the header that was checked, and a matching payload, if payloads are
    /// checked.
    fn is_unchanged(&self, record: &[u8], checked: &FragmentHeader) -> bool {
        FragmentHeader::decode(record).is_ok_and(|header| header == *checked)
            && (self.check == CheckConfig::Header || checked.payload_matches(&record[HEADER_LEN..]))
    }

    /// Ends the run before the event `end`: fragments of later events that wait for a decision make room.
    pub(super) fn drop_beyond_end(&mut self, end: EventId) {
        let beyond: Vec<EventId> = self.events.keys().copied().filter(|event| *event >= end).collect();
        beyond.into_iter().for_each(|event| self.drop_event(event));
    }

    /// Drops the fragments of an event, which are no longer needed.
    fn drop_event(&mut self, event: EventId) {
        for record in self.events.remove(&event).unwrap_or_default() {
            self.end_record(record.slot);
        }
    }

    /// Counts a record of a slot as done with, and frees the slot after its last one.
    fn end_record(&mut self, slot: usize) {
        let Some(held) = &mut self.slots[slot] else { return };
        held.records -= 1;
        if held.records == 0 {
            self.free_slot(slot);
        }
    }

    fn free_slot(&mut self, slot: usize) {
        self.slots[slot] = None;
        self.free.push(slot);
    }
}

fn key_error(config: &BuilderNodeConfig, key: &str, problem: &str) -> NodeError {
    NodeError::Config(format!("builder '{}': {key}: {problem}", config.name))
}

/// Returns the fragments of an event that have arrived from these sources; from all, if none are named. Fragments that
/// other sources packed into one slot with an earlier event may have arrived, too.
fn event_fragments<'a>(
    events: &'a HashMap<EventId, Vec<Record>>,
    slots: &'a [Option<Slot>],
    event: EventId,
    sources: &'a [usize],
) -> impl Iterator<Item = Fragment<'a>> {
    events.get(&event).into_iter().flatten().filter_map(move |record| {
        if !sources.is_empty() && !sources.contains(&record.source) {
            return None;
        }
        let bytes = &slots[record.slot].as_ref()?.bytes;
        let header = valid_header(bytes, record.offset)?;
        let is_unchanged = header.event == event && header.piece_length as usize == record.len - HEADER_LEN;
        is_unchanged.then(|| Fragment::new(header, bytes, record.offset + HEADER_LEN))
    })
}

/// Returns the header of a record; `None` if it is not valid.
fn valid_header(bytes: &Bytes, offset: usize) -> Option<FragmentHeader> {
    let mut header = [0; HEADER_LEN];
    bytes.copy_bytes_to(offset, &mut header);
    FragmentHeader::decode(&header).ok()
}

/// Maximum number of places; more are of no use.
const MAX_PLACES: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_the_decision_on_events_beyond_the_end_makes_room() {
        let config = BuilderNodeConfig::new("b", Vec::new());
        let mut trigger = Trigger::new(&config, 1, true, &Environment::system()).unwrap();
        let mut places = PlacePool::new("test", 2, 4096).unwrap();
        let slot = |records| Some(Slot { bytes: Bytes::Place(places.take_place(64).unwrap()), records });
        trigger.slots = [2, 1].map(slot).into();
        trigger.places = Some(places);
        let record = |slot| Record { source: 0, slot, offset: 0, len: 64, header: FragmentHeader::default() };
        trigger.events = [(4, 0), (5, 0), (6, 1)].map(|(event, slot)| (EventId(event), vec![record(slot)])).into();
        let free = |trigger: &Trigger| trigger.places.as_ref().map(PlacePool::free_count);

        trigger.drop_beyond_end(EventId(7));
        assert_eq!(free(&trigger), Some(0));
        trigger.drop_beyond_end(EventId(5));
        assert_eq!((free(&trigger), &trigger.free[..]), (Some(1), &[1][..]), "event 4 shares its slot with event 5");
        trigger.drop_event(EventId(4));
        assert_eq!(free(&trigger), Some(2));
    }
}
