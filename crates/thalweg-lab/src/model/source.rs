//! A source of the model: it always has more, as long as it has free slots, and serves fetches in the order in which
//! they arrive.

use super::wire::Time;
use std::collections::VecDeque;
use thalweg_device::model_payload_bytes;
use thalweg_wire::{Announcement, Disposition, EventId, SourceId, record_bytes};

/// A message or data for a builder.
#[derive(Debug)]
pub(super) enum Out {
    /// A message of 64 bytes that announces a slot.
    Offer(Announcement),
    /// Data of slots as it was fetched: bytes left, and bytes of the message before them.
    Data { left: u64, head: u64 },
}

/// A slot and the payload lengths of the fragments in it.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) offer: Announcement,
    pub(super) lengths: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct Source {
    pub(super) id: SourceId,
    sizes: (u64, u64),
    slot_bytes: u64,
    /// Largest number of fragments in a slot.
    most: u32,
    /// Number of free slots.
    free: u64,
    next_event: u64,
    /// Time between bursts of events, and the number of events in each.
    bursts: Option<(Time, u64)>,
    /// Payload length of the next fragment, if it has no place yet.
    pending: Option<u32>,
    /// For each builder: the slot being filled, the slots that are offered, and the next ticket.
    filling: Vec<Option<Slot>>,
    pub(super) out: Vec<VecDeque<Slot>>,
    tickets: Vec<u64>,
    /// For each builder: number of frames sent, without those sent again.
    pub(super) sent_frames: Vec<u64>,
    /// Messages and data to be sent, in order, each with its builder.
    pub(super) queue: VecDeque<(usize, Out)>,
    pub(super) sending: bool,
    /// Bytes that were fetched and wait for the source's link, now and at most.
    pub(super) waiting: u64,
    pub(super) most_waiting: u64,
    /// Bytes in its slots, now and at most.
    pub(super) held: u64,
    pub(super) most_held: u64,
}

impl Source {
    pub(super) fn new(
        number: u16,
        builders: usize,
        sizes: (u64, u64),
        slot_bytes: u64,
        slots: u64,
        most: u32,
        bursts: Option<(Time, u64)>,
    ) -> Self {
        Self {
            id: SourceId::new(1, number),
            sizes,
            slot_bytes,
            most,
            free: slots,
            next_event: 0,
            bursts,
            pending: None,
            filling: std::iter::repeat_with(|| None).take(builders).collect(),
            out: std::iter::repeat_with(VecDeque::new).take(builders).collect(),
            tickets: vec![0; builders],
            sent_frames: vec![0; builders],
            queue: VecDeque::new(),
            sending: false,
            waiting: 0,
            most_waiting: 0,
            held: 0,
            most_held: 0,
        }
    }

    /// Fills slots as long as there are free ones, and offers those that are full.
    pub(super) fn fill_slots(&mut self, now: Time) {
        let builders = self.filling.len() as u64;
        loop {
            if self.next_event_time().is_some_and(|next| next > now) {
                break;
            }
            let event = self.next_event;
            let builder = (event % builders) as usize;
            let length = *self.pending.get_or_insert_with(|| match self.sizes {
                (from, to) if from == to => to as u32,
                (from, to) => model_payload_bytes(1, self.id, event, from, to) as u32,
            });
            let record = record_bytes(length as usize) as u64;
            if self.filling[builder].as_ref().is_some_and(|slot| {
                u64::from(slot.offer.bytes) + record > self.slot_bytes || slot.offer.count >= self.most
            }) {
                self.offer_filled_slot(builder);
            }
            if self.filling[builder].is_none() {
                if self.free == 0 {
                    break;
                }
                self.free -= 1;
                let offer = Announcement {
                    ticket: self.tickets[builder],
                    first: EventId(event),
                    arena_offset: 0,
                    count: 0,
                    bytes: 0,
                    disposition: Disposition::Held,
                };
                self.tickets[builder] += 1;
                self.filling[builder] = Some(Slot { offer, lengths: Vec::new() });
            }
            if let Some(slot) = &mut self.filling[builder] {
                slot.offer.count += 1;
                slot.offer.bytes += record as u32;
                slot.lengths.push(length);
                let full = u64::from(slot.offer.bytes) + record > self.slot_bytes || slot.offer.count >= self.most;
                self.held += record;
                if full {
                    self.offer_filled_slot(builder);
                }
            }
            self.pending = None;
            self.next_event += 1;
        }
        self.most_held = self.most_held.max(self.held);
        // If little is under way, a slot that is not full need not wait for more fragments.
        for builder in 0..self.filling.len() {
            if self.out[builder].len() < 2 {
                self.offer_filled_slot(builder);
            }
        }
    }

    /// Returns the time of the next event, if events come at intervals.
    pub(super) fn next_event_time(&self) -> Option<Time> {
        self.bursts.map(|(period, events)| self.next_event / events * period)
    }

    fn offer_filled_slot(&mut self, builder: usize) {
        if let Some(slot) = self.filling[builder].take() {
            self.queue.push_back((builder, Out::Offer(slot.offer)));
            self.out[builder].push_back(slot);
        }
    }

    /// Releases the slots of all tickets below this one.
    pub(super) fn release_slots(&mut self, builder: usize, below: u64) {
        while self.out[builder].front().is_some_and(|slot| slot.offer.ticket < below) {
            if let Some(slot) = self.out[builder].pop_front() {
                self.free += 1;
                self.held -= u64::from(slot.offer.bytes);
            }
        }
    }

    /// Returns the lengths of the fragments in a slot that is offered.
    pub(super) fn fragment_lengths(&self, builder: usize, ticket: u64) -> &[u32] {
        let slot = self.out[builder].iter().find(|slot| slot.offer.ticket == ticket);
        slot.map_or(&[], |slot| &slot.lengths)
    }
}
