//! Trigger levels: where fragments wait while their event is decided on, and the copy of those that are kept.
//!
//! Few events are kept, so what is fetched does not go into the blocks that go to disk: it waits in *places*, one for
//! each slot, or, over shared memory, where the source wrote it. An event that is accepted is copied once into such a
//! block.

use super::SourceState;
use crate::blocks::Blocks;
use crate::topology::Decision;
use crate::{BuilderNodeConfig, CheckConfig, NodeError};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{Arena, PlacePool, Span};
use thalweg_build::{Builder, Closed, Missing, Violation};
use thalweg_filter::{Condition, Decide, Fragment};
use thalweg_link::Bytes;
use thalweg_wire::{Announcement, EventId, FragmentHeader, HEADER_LEN, RecordBytes, SourceId, Status};

/// The trigger levels of a builder.
#[derive(Debug)]
pub(super) struct Trigger {
    level2: Option<Box<dyn Decide>>,
    filter: Option<Box<dyn Decide>>,
    places: Option<PlacePool>,
    /// Places kept for the oldest event, so that later ones cannot keep it from being decided on: one for each source.
    kept: usize,
    /// Slots that hold records of events that are not decided on.
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    events: HashMap<EventId, Vec<Record>>,
    /// Accepted, and not yet all of it copied.
    accepted: VecDeque<Closed>,
    stride: u64,
    record: bool,
    check: CheckConfig,
    copied: u64,
}

/// A slot as it arrived.
#[derive(Debug)]
struct Slot {
    bytes: Bytes,
    /// How many records of it somebody waits for.
    records: usize,
}

/// A fragment of an event: where its header begins in a slot, and how many bytes it has with it.
#[derive(Debug, Clone, Copy)]
struct Record {
    source: usize,
    slot: usize,
    offset: usize,
    len: usize,
}

impl Trigger {
    /// For one of `builders` builders. `record`: whether what is accepted is to be copied at all.
    pub(super) fn new(config: &BuilderNodeConfig, builders: u32, record: bool) -> Self {
        Self {
            level2: None,
            filter: None,
            places: None,
            kept: 0,
            slots: Vec::new(),
            free: Vec::new(),
            events: HashMap::new(),
            accepted: VecDeque::new(),
            stride: builders.into(),
            record,
            check: config.check,
            copied: 0,
        }
    }

    /// Makes what decides, once it is known what the sources send.
    pub(super) fn decide_by(
        &mut self,
        config: &BuilderNodeConfig,
        ids: &[(SourceId, String)],
        sources: &[SourceState],
    ) -> Result<(), NodeError> {
        let wrong =
            |(key, problem): (&str, String)| NodeError::Config(format!("builder '{}': {key}: {problem}", config.name));
        let made = |key: &'static str, decision: Decision| -> Result<Box<dyn Decide>, NodeError> {
            let mut condition = match decision {
                Decision::Simulated(simulated) => return Ok(Box::new(simulated)),
                Decision::Condition(condition) => condition,
            };
            for variable in condition.variables() {
                let named = ids.iter().position(|(_, name)| Condition::variable(name) == variable);
                let Some(source) = named else { continue };
                let features = &sources[source].description["metadata"]["features"];
                let Ok(features) = serde_json::from_value::<Vec<String>>(features.clone()) else {
                    let problem = format!("source '{}' has no features: it is no fit", ids[source].1);
                    return Err(wrong((key, problem)));
                };
                condition.bind(variable, ids[source].0, features);
            }
            condition.check().map_err(|problem| wrong((key, problem)))?;
            Ok(Box::new(condition))
        };
        if let Some(level2) = &config.level2 {
            self.level2 = Some(made("level2.accept", level2.decision().map_err(wrong)?)?);
        }
        if let Some(filter) = &config.filter {
            self.filter = Some(made("filter.accept", filter.decision().map_err(wrong)?)?);
        }
        Ok(())
    }

    /// Events that could not be decided on, and whether any decision is drawn.
    pub(super) fn certainty(&self) -> (u64, bool) {
        let levels = || self.level2.iter().chain(&self.filter);
        (levels().map(|level| level.undecided()).sum(), levels().any(|level| level.is_simulated()))
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
            events.entry(header.event).or_default().push(Record { source, slot, offset, len });
            records += 1;
        });
        self.slots[slot] = Some(Slot { bytes, records });
        if records == 0 {
            self.clear(slot);
        }
        (in_pieces, result)
    }

    /// Level 2 decides on whatever it can.
    pub(super) fn decide(&mut self, builder: &mut Builder) {
        while let Some(event) = builder.next_decision() {
            let Some(level2) = &mut self.level2 else { return };
            let accept = level2.accept(event, &mut fragments(&self.events, &self.slots, event));
            builder.decide(event, accept);
            if !accept {
                self.let_go(event);
            }
        }
    }

    /// The event filter decides on events that are closed.
    pub(super) fn filter(&mut self, builder: &mut Builder, closed: Closed) {
        let Closed { first, count, missing } = closed;
        for step in 0..u64::from(count) {
            let event = EventId(first.0 + step * self.stride);
            let accept = match &mut self.filter {
                Some(filter) => filter.accept(event, &mut fragments(&self.events, &self.slots, event)),
                None => true,
            };
            if !accept {
                builder.reject(&missing);
            }
            if accept && self.record {
                self.accepted.push_back(Closed { first: event, count: 1, missing: missing.clone() });
            } else {
                self.let_go(event);
            }
        }
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
                good = matches!(slot.bytes, Bytes::Place(_)) || self.is_good(&place, event, *id);
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

    /// Whether a record is whole, and the one that was asked for.
    fn is_good(&self, record: &[u8], event: EventId, source: SourceId) -> bool {
        FragmentHeader::decode(record).is_ok_and(|header| {
            let payload = &record[HEADER_LEN..];
            (header.event, header.source, header.is_whole()) == (event, source, true)
                && header.piece_length as usize == payload.len()
                && (self.check == CheckConfig::Header || header.payload_matches(payload))
        })
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

/// The fragments of an event that are here.
fn fragments<'a>(
    events: &'a HashMap<EventId, Vec<Record>>,
    slots: &'a [Option<Slot>],
    event: EventId,
) -> impl Iterator<Item = Fragment<'a>> {
    events.get(&event).into_iter().flatten().filter_map(|record| {
        let bytes = &slots[record.slot].as_ref()?.bytes;
        let header = header(bytes, record.offset).filter(|h| h.piece_length as usize == record.len - HEADER_LEN)?;
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
        let mut trigger = Trigger::new(&config, 1, true);
        let mut places = PlacePool::new("test", 2, 4096).unwrap();
        let slot = |records| Some(Slot { bytes: Bytes::Place(places.take(64).unwrap()), records });
        trigger.slots = [2, 1].map(slot).into();
        trigger.places = Some(places);
        let record = |slot| Record { source: 0, slot, offset: 0, len: 64 };
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
