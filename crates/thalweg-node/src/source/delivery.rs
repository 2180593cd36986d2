//! Delivery of fragments to one builder: the slot that is filled, tickets, drops, and the final counters.

use crate::slots::{Filling, Slots};
use std::collections::BTreeSet;
use std::time::Duration;
use thalweg_arena::Slot;
use thalweg_core::control::HEARTBEAT_INTERVAL;
use thalweg_link::{Outstanding, SourceLink};
use thalweg_wire::{
    Announcement, Disposition, EventId, FinalCounters, FragmentHeader, Left, Message, NotTaken, RunCounters, RunNumber,
    Welcome,
};

/// Maximum number of tickets that a builder has not released, for a source that drops the oldest. With a builder that
/// releases none, later fragments are dropped as they come, which takes one ticket however many they are.
pub(super) const MAX_TICKETS: usize = 1 << 16;

/// Fragments for one builder: the slot that is being filled, tickets that it has not released, fragments that it will
/// not get, and the counters of all of them.
#[derive(Debug)]
pub(super) struct Delivery {
    /// Distance from one event of this builder to its next one.
    stride: u64,
    filling: Option<Filling>,
    book: Outstanding<Option<Slot>>,
    /// All slots of tickets below this one are dropped, or were fetched over this connection.
    kept_from: u64,
    /// Fragments that will not come and are not yet announced: the first event, their number, and the reason.
    drops: Option<(u64, u32, Disposition)>,
    /// Tickets fetched over shared memory that is no longer connected. The builder may still read them where they lie,
    /// so they are not withdrawn.
    granted: BTreeSet<u64>,
    /// Bytes sent eagerly over this connection, and not released.
    eager_bytes: u32,
    /// One past the last event for which it received an offer or a message that there is nothing, if events are
    /// assigned; `passed` is one past the last event of such a message.
    mentioned: u64,
    passed: u64,
    /// Time of the last message to it that this source goes on.
    passed_at: Duration,
    /// Counters of the run under way. Tickets are those of all runs.
    final_counters: FinalCounters,
    /// Sum of the counters of earlier runs.
    earlier_counters: FinalCounters,
    /// End of the run before, if the one under way followed another.
    run_end: Option<RunEnd>,
    /// Bytes copied by its device, and by connections that are closed.
    copied_bytes: u64,
    /// Fragments for it that the device lost.
    lost_in_device: u64,
    /// True if it takes no further part: fragments for it are lost, and `lost` counts them.
    is_over: bool,
    lost: u64,
}

/// End of a run that another one has followed, as it is sent to a builder.
#[derive(Debug, Clone, Copy)]
struct RunEnd {
    counters: RunCounters,
    /// Counts for builder 0 of what the device had and the source did not take.
    not_taken: Option<NotTaken>,
}

impl RunEnd {
    fn send_over(&self, link: &mut (dyn SourceLink + 'static)) {
        if let Some(not_taken) = self.not_taken {
            link.send_message(&Message::NotTaken(not_taken));
        }
        link.send_message(&Message::RunEnded(self.counters));
    }
}

/// Connection to a builder that has welcomed this source.
pub(super) struct Connected<'a> {
    pub(super) welcome: Welcome,
    pub(super) link: &'a mut (dyn SourceLink + 'static),
}

impl Delivery {
    /// Creates the delivery to one of `stride` builders, from `now` on.
    pub(super) fn new(stride: u64, now: Duration) -> Self {
        Self {
            stride,
            filling: None,
            book: Outstanding::default(),
            kept_from: 0,
            drops: None,
            granted: BTreeSet::new(),
            eager_bytes: 0,
            mentioned: 0,
            passed: 0,
            passed_at: now,
            final_counters: FinalCounters::default(),
            earlier_counters: FinalCounters::default(),
            run_end: None,
            copied_bytes: 0,
            lost_in_device: 0,
            is_over: false,
            lost: 0,
        }
    }

    /// Makes the events of this builder consecutive ones, as they are if builder 0 assigns them.
    pub(super) fn assign_by_room(&mut self) {
        self.stride = 1;
    }

    /// Returns whether the builder takes no further part.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the number of accepted fragments that the builder has not released.
    pub(super) fn held_fragments(&self) -> u64 {
        let filling = self.filling.as_ref().map_or(0, |filling| u64::from(filling.count));
        let offers = self.book.iter().filter(|(offer, _)| !offer.disposition.is_dropped());
        filling + offers.map(|(offer, _)| u64::from(offer.count)).sum::<u64>()
    }

    /// Returns the slot that is being filled.
    pub(super) fn filling_mut(&mut self) -> Option<&mut Filling> {
        self.filling.as_mut()
    }

    /// Begins to fill a slot.
    pub(super) fn start_filling(&mut self, filling: Filling) {
        self.filling = Some(filling);
    }

    /// Returns whether a slot is being filled that has no room for a payload of `len` bytes.
    pub(super) fn is_full_for(&self, len: usize, max_records: u32) -> bool {
        self.filling.as_ref().is_some_and(|filling| !filling.has_room_for(len, max_records))
    }

    /// Returns whether a slot is being filled.
    pub(super) fn is_filling(&self) -> bool {
        self.filling.is_some()
    }

    /// Stops filling a slot in which nothing is. Returns true if there is something in it, which is to be offered.
    pub(super) fn stop_filling_empty(&mut self, slots: &mut Slots) -> bool {
        if let Some(empty) = self.filling.take_if(|filling| filling.count == 0) {
            slots.give_back_slot(empty.slot);
        }
        self.filling.is_some()
    }

    /// Returns the header of the last fragment in the slot that is being filled, whose payload has `len` bytes.
    pub(super) fn last_header(&self, len: usize) -> Option<FragmentHeader> {
        self.filling.as_ref()?.last_header(len)
    }

    /// Counts a fragment that was accepted.
    pub(super) fn count_accepted(&mut self) {
        self.final_counters.accepted += 1;
    }

    /// Counts a fragment that is lost, since the builder takes no further part.
    pub(super) fn count_lost(&mut self) {
        self.final_counters.accepted += 1;
        self.lost += 1;
    }

    /// Counts bytes that the device, or a connection that is closed, has copied.
    pub(super) fn count_copied(&mut self, bytes: u64) {
        self.copied_bytes += bytes;
    }

    /// Returns the number of tickets that are not released.
    pub(super) fn open_tickets(&self) -> usize {
        self.book.len()
    }

    /// Offers the content of the slot that is being filled.
    pub(super) fn offer(&mut self, mut connected: Option<Connected<'_>>) {
        let Some(filling) = self.filling.take() else { return };
        self.mentioned = filling.first.0 + u64::from(filling.count) * self.stride;
        if self.drops.is_some_and(|(first, ..)| first < filling.first.0) {
            self.announce_drops(connected.as_mut());
        }
        #[expect(clippy::cast_possible_truncation, reason = "a slot has at most 1 GiB")]
        let bytes = filling.used_bytes() as u32;
        let is_eager = connected.as_ref().is_some_and(|Connected { welcome, .. }| {
            let unasked = self.eager_bytes.checked_add(bytes);
            bytes <= welcome.eager_limit && unasked.is_some_and(|unasked| unasked <= welcome.eager_credit)
        });
        self.eager_bytes += if is_eager { bytes } else { 0 };
        let offer = Announcement {
            ticket: self.book.next_ticket(),
            first: filling.first,
            arena_offset: filling.slot.arena_offset() as u64,
            count: filling.count,
            bytes,
            disposition: if is_eager { Disposition::Eager } else { Disposition::Held },
        };
        self.send_announcement(offer, Some(filling.slot), connected.as_mut());
    }

    /// Announces the fragments that will not come.
    pub(super) fn announce_drops(&mut self, connected: Option<&mut Connected<'_>>) {
        let Some((first, count, disposition)) = self.drops.take() else { return };
        self.mentioned = first + u64::from(count) * self.stride;
        let ticket = self.book.next_ticket();
        let offer = Announcement { ticket, first: EventId(first), arena_offset: 0, count, bytes: 0, disposition };
        self.send_announcement(offer, None, connected);
    }

    fn send_announcement(&mut self, offer: Announcement, slot: Option<Slot>, connected: Option<&mut Connected<'_>>) {
        self.book.push_offer(offer, slot);
        self.final_counters.tickets = self.book.next_ticket();
        if let Some(Connected { link, .. }) = connected {
            link.announce_offer(&offer);
        }
    }

    /// Records that `count` fragments are dropped or lost, from `event` on. They are announced together with those that
    /// follow them.
    pub(super) fn drop_fragments(
        &mut self,
        event: EventId,
        count: u32,
        how: Disposition,
        connected: Option<&mut Connected<'_>>,
    ) {
        self.final_counters.accepted += u64::from(count);
        match how {
            Disposition::LostInDevice => self.lost_in_device += u64::from(count),
            _ => self.final_counters.dropped_newest += u64::from(count),
        }
        if self.is_over {
            return;
        }
        match &mut self.drops {
            Some((first, run, known))
                if *known == how && *first + u64::from(*run) * self.stride == event.0 && u32::MAX - *run >= count =>
            {
                *run += count;
            }
            _ => {
                self.announce_drops(connected);
                self.drops = Some((event.0, count, how));
            }
        }
    }

    /// Drops the oldest slot that the builder has not asked for, and returns it.
    pub(super) fn drop_oldest(&mut self, mut connected: Option<Connected<'_>>) -> Option<Slot> {
        if self.book.len() >= MAX_TICKETS {
            return None;
        }
        self.kept_from = self.kept_from.max(self.book.first_ticket());
        while let Some((offer, slot)) = self.book.get_mut(self.kept_from) {
            self.kept_from += 1;
            // Before the welcome nothing was offered over this connection, and everything will be.
            let is_asked = slot.is_none()
                || connected.as_mut().is_some_and(|connected| !connected.link.withdraw_offer(offer.ticket));
            if is_asked || self.granted.contains(&offer.ticket) {
                continue;
            }
            if offer.disposition == Disposition::Eager {
                self.eager_bytes -= offer.bytes;
            }
            offer.disposition = Disposition::DroppedOldest;
            offer.bytes = 0;
            match &mut self.run_end {
                Some(end) if offer.ticket < end.counters.tickets => {
                    end.counters.dropped_oldest += u64::from(offer.count);
                }
                _ => self.final_counters.dropped_oldest += u64::from(offer.count),
            }
            if let Some(Connected { link, .. }) = connected {
                link.announce_offer(offer);
            }
            return slot.take();
        }
        None
    }

    /// Frees the slots of tickets below `below`, which the builder has released.
    pub(super) fn release(&mut self, below: u64, slots: &mut Slots) {
        self.granted = self.granted.split_off(&below);
        for (offer, slot) in self.book.release_tickets(below) {
            if offer.disposition == Disposition::Eager {
                self.eager_bytes -= offer.bytes;
            }
            slot.into_iter().for_each(|slot| slots.give_back_slot(slot));
        }
    }

    /// Offers everything again that has not been released, under the same tickets, over a new connection. The end of the
    /// run before comes after its own tickets.
    pub(super) fn repeat_offers(&self, link: &mut (dyn SourceLink + 'static)) {
        let mut run_end = self.run_end.as_ref();
        for (offer, _) in self.book.iter() {
            if let Some(end) = run_end.take_if(|end| offer.ticket >= end.counters.tickets) {
                end.send_over(link);
            }
            link.announce_offer(offer);
        }
        if let Some(end) = run_end {
            end.send_over(link);
        }
        if self.passed > 0 {
            let (below, tickets) = (EventId(self.passed), self.book.next_ticket());
            link.send_message(&Message::Passed { below, tickets });
        }
    }

    /// Handles the end of the connection. `maps`: the builder reads slots where they lie.
    pub(super) fn handle_disconnection(&mut self, link: Option<&mut (dyn SourceLink + 'static)>, maps: bool) {
        if let Some(link) = link {
            if maps {
                let offered = self.book.iter().map(|(offer, _)| offer.ticket);
                self.granted.extend(offered.filter(|ticket| !link.withdraw_offer(*ticket)));
            }
            self.copied_bytes += link.copied_bytes();
        }
        self.kept_from = 0;
        // Nothing has been sent eagerly over the next connection yet: what is offered again waits to be fetched.
        self.eager_bytes = 0;
        for (offer, _) in self.book.iter_mut().filter(|(offer, _)| offer.disposition == Disposition::Eager) {
            offer.disposition = Disposition::Held;
        }
    }

    /// Gives the builder up for good: fragments that wait for it are lost, and its slots are free.
    pub(super) fn give_up_builder(&mut self, slots: &mut Slots) {
        self.is_over = true;
        if let Some(filling) = self.filling.take() {
            self.lost += u64::from(filling.count);
            slots.give_back_slot(filling.slot);
        }
        self.drops = None;
        for (offer, slot) in self.book.release_tickets(u64::MAX) {
            self.lost += if offer.disposition.is_dropped() { 0 } else { u64::from(offer.count) };
            slot.into_iter().for_each(|slot| slots.give_back_slot(slot));
        }
    }

    /// Returns the message that there is nothing for the events below `below`, which were assigned to this builder, if
    /// it does not know that.
    pub(super) fn passed_message(&mut self, below: EventId) -> Option<Message> {
        if self.mentioned >= below.0 {
            return None;
        }
        (self.mentioned, self.passed) = (below.0, below.0);
        Some(Message::Passed { below, tickets: self.book.next_ticket() })
    }

    /// Returns the message that this source goes on, though its fragments are for others: it is then neither silent,
    /// nor has it missed what the builder waits for. `None` if it does not go on, or the message is not due. Events from
    /// `below` on are not passed.
    pub(super) fn progress_message(&mut self, below: u64, now: Duration) -> Option<Message> {
        if now < self.passed_at + HEARTBEAT_INTERVAL / 2 {
            return None;
        }
        // Events that it has not offered yet do not count as passed.
        let filling = self.filling.as_ref().map(|filling| filling.first.0);
        let drops = self.drops.map(|(first, ..)| first);
        let below = filling.into_iter().chain(drops).fold(below, u64::min);
        let message = self.passed_message(EventId(below));
        if message.is_some() {
            self.passed_at = now;
        }
        message
    }

    /// Ends the run: everything accepted in it was offered or announced. Its counters are sent, and those of the next run
    /// begin. `not_taken`: counts for builder 0; the others as in [`close_accounts`](Self::close_accounts).
    pub(super) fn end_run(
        &mut self,
        run: RunNumber,
        not_taken: Option<NotTaken>,
        (copied, sequence, cpu_nanos): (u64, u32, u64),
        connected: Option<Connected<'_>>,
    ) {
        self.close_accounts(copied, sequence, cpu_nanos);
        let FinalCounters { accepted, dropped_newest, dropped_oldest, tickets, cpu_nanos, copied_bytes, .. } =
            self.final_counters;
        let counters = RunCounters { run, accepted, dropped_newest, dropped_oldest, tickets, cpu_nanos, copied_bytes };
        self.earlier_counters = sum_counters(self.earlier_counters, self.final_counters);
        self.final_counters = FinalCounters { tickets, ..FinalCounters::default() };
        let end = RunEnd { counters, not_taken };
        if let Some(Connected { link, .. }) = connected {
            end.send_over(link);
        }
        self.run_end = Some(end);
    }

    /// Returns the sum of the counters of all runs.
    pub(super) fn total_counters(&self) -> FinalCounters {
        sum_counters(self.earlier_counters, self.final_counters)
    }

    /// Closes the final counters of this builder. `copied`: bytes that its link has copied; `sequence`: number of the
    /// next fragment.
    pub(super) fn close_accounts(&mut self, copied: u64, sequence: u32, cpu_nanos: u64) {
        let total = self.copied_bytes + copied;
        self.final_counters.copied_bytes = total.saturating_sub(self.earlier_counters.copied_bytes);
        self.final_counters.next_sequence = sequence;
        self.final_counters.cpu_nanos = cpu_nanos;
    }

    /// Returns the final counters.
    pub(super) fn final_counters(&self) -> FinalCounters {
        self.final_counters
    }

    /// Returns the counts of fragments for builder 0, if the builder with this number was left out.
    pub(super) fn left_out_counts(&self, builder: u32) -> Left {
        Left {
            builder,
            accepted: self.final_counters.accepted,
            dropped_newest: self.final_counters.dropped_newest,
            dropped_oldest: self.final_counters.dropped_oldest,
            lost_in_device: self.lost_in_device,
            lost: self.lost,
        }
    }

    /// Returns the offers that are not released, oldest first.
    #[cfg(test)]
    pub(super) fn offers(&self) -> impl Iterator<Item = &Announcement> {
        self.book.iter().map(|(offer, _)| offer)
    }
}

/// Returns the sum of two counters, with the tickets and the sequence of the second.
pub(super) fn sum_counters(one: FinalCounters, other: FinalCounters) -> FinalCounters {
    FinalCounters {
        accepted: one.accepted + other.accepted,
        dropped_newest: one.dropped_newest + other.dropped_newest,
        dropped_oldest: one.dropped_oldest + other.dropped_oldest,
        copied_bytes: one.copied_bytes + other.copied_bytes,
        cpu_nanos: one.cpu_nanos + other.cpu_nanos,
        ..other
    }
}
