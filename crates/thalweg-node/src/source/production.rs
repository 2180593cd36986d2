//! Production: takes fragments, from the device or from the program that pushes them, into slots, and offers these.

use super::{Feed, Phase, SourceNode, Standing};
use crate::slots::{Filling, PushedFragment, Stamp};
use crate::{NodeError, Policy};
use std::time::Duration;
use thalweg_arena::Slot;
use thalweg_wire::{Announcement, Disposition, EventId, MAX_RECORDS, Message};

/// Maximum number of tickets that a builder has not released, for a source that drops the oldest. With a builder that
/// releases none, later fragments are dropped as they come, which takes one ticket however many they are.
const MOST_TICKETS: usize = 1 << 16;

/// Result of the search for a place for the next fragment.
enum Place {
    /// The place is in the slot that is being filled for this builder.
    Slot(usize),
    /// There is no place. The fragment was dropped and counted: by policy, and will be announced, or since its builder
    /// left the run.
    Dropped,
    /// There is no place yet.
    Blocked,
}

impl SourceNode {
    /// Takes fragments from the device, at most a slot full, so that the builders do not wait for long.
    pub(super) fn produce(&mut self) -> Result<(), NodeError> {
        if self.phase != Phase::Running {
            return Ok(());
        }
        if self.dead.since.is_some() {
            self.count_dead_time();
            self.dead.since = None;
        }
        if self.is_beyond_end(self.next_event) {
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
            if self.due.is_some_and(|due| due > self.clock.now()) {
                break;
            }
            let event = EventId(self.next_event);
            let key = device.content_key(event);
            match self.place(len, key)? {
                Place::Slot(index) => {
                    let (stamp, sequence) = (self.stamp(), self.sequence);
                    // Without a rate the fragments of a slot are taken in one go, within microseconds, and share one
                    // date.
                    let date = match date {
                        Some(date) if self.due.is_none() => date,
                        _ => *date.insert(self.clock.date()),
                    };
                    let Self { builders, settings, traces, .. } = self;
                    let (Some(filling), Feed::Device(device)) = (&mut builders[index].filling, &mut settings.feed)
                    else {
                        break;
                    };
                    if filling.take(&mut **device, traces, stamp, event, sequence, len, date)? {
                        self.note_time(index, len);
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
                    self.count_dead_time();
                    break;
                }
            }
            if self.is_beyond_end(self.next_event) {
                self.end();
                return Ok(());
            }
        }
        if !offered {
            self.offer_partial();
        }
        Ok(())
    }

    /// Takes one fragment from the program that pushes, for event `event` or else the next. Returns `None` if there is
    /// no place for it yet. May be called from another thread than the one that takes [turns](Self::turn).
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
        // The event after the last fragment in a slot is another event of the same builder.
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
        if self.is_beyond_end(event.0) {
            self.end();
            self.send();
            return Err(NodeError::Over);
        }
        let before = self.next_event;
        if event.0 > self.next_event {
            self.offer_all();
            self.next_event = event.0;
        }
        match self.place(len, None)? {
            Place::Slot(index) => {
                let (stamp, date, sequence) = (self.stamp(), self.clock.date(), self.sequence);
                if let Some(filling) = &mut self.builders[index].filling {
                    filling.put(&mut self.traces, stamp, event, sequence, fragment, date);
                }
                self.note_time(index, len);
                self.taken(index, len);
            }
            Place::Dropped => self.step(len),
            Place::Blocked => {
                // No event is skipped before a later one is accepted.
                self.next_event = before;
                self.send();
                return Ok(None);
            }
        }
        if self.is_beyond_end(self.next_event) {
            self.end();
        }
        self.offer_partial();
        self.send();
        Ok(Some(event))
    }

    /// Records that the device lost the next `count` fragments, as reported by the program that pushes.
    ///
    /// # Errors
    /// `count` is more than can have been lost.
    pub(crate) fn push_lost(&mut self, count: u64) -> Result<(), NodeError> {
        self.offer_all();
        self.lose(count)?;
        if self.is_beyond_end(self.next_event) {
            self.end();
        }
        self.offer_partial();
        self.send();
        Ok(())
    }

    /// Offers all partly filled slots. A slot holds consecutive events, and the next one leaves some out.
    fn offer_all(&mut self) {
        for index in 0..self.builders.len() {
            self.offer(index);
        }
    }

    /// Ends this source's part of the run, when the program that pushes has no more fragments.
    pub(crate) fn push_end(&mut self) {
        if matches!(self.phase, Phase::Running | Phase::Paused) {
            self.end();
        }
        self.send();
    }

    /// Returns whether there is work that only a [turn](Self::turn) can do.
    pub(crate) fn needs_turn(&self) -> bool {
        let earlier = |at: Duration| self.sleeps_until.is_none_or(|until| at < until);
        self.builders.iter().any(|builder| builder.broken.is_some())
            || self.endpoints.next_timeout().is_some_and(earlier)
    }

    /// Returns whether fragments can be pushed: not before the run has begun, nor while it is about to stop.
    pub(crate) fn standing(&self) -> Standing {
        match self.phase {
            Phase::Waiting => Standing::Before,
            Phase::Running if !self.is_beyond_end(self.next_event) => Standing::Open,
            Phase::Paused => Standing::Paused,
            Phase::Running | Phase::Ending => Standing::Over,
        }
    }

    /// Returns the number of records that may share a slot: the number that every builder accepts. For a builder that
    /// is away, the number in its last welcome counts.
    fn most_records(&self) -> u32 {
        self.builders.iter().map(|builder| builder.most_records).min().unwrap_or(MAX_RECORDS).max(1)
    }

    pub(super) fn stamp(&self) -> Stamp {
        Stamp { run: self.run, source: self.settings.id }
    }

    /// Finds a place for the next fragment, of `len` bytes. `key` identifies its content.
    fn place(&mut self, len: usize, key: Option<u64>) -> Result<Place, NodeError> {
        let event = EventId(self.next_event);
        let Some(index) = self.builder_of(event.0) else {
            if self.wants_builder() {
                return Ok(Place::Dropped);
            }
            return Ok(self.block());
        };
        if self.builders[index].left {
            self.builders[index].accounts.accepted += 1;
            self.builders[index].lost += 1;
            return Ok(Place::Dropped);
        }
        let most = self.most_records();
        if self.builders[index].filling.as_ref().is_some_and(|filling| !filling.has_room(len, most)) {
            self.offer(index);
        }
        if self.builders[index].filling.is_none() {
            match self.slot(index, key) {
                Some(slot) => self.builders[index].filling = Some(Filling::new(slot, event)),
                None if self.settings.policy == Policy::Block => return Ok(self.block()),
                None => {
                    self.leave_out(index, event, 1, Disposition::DroppedNewest);
                    return Ok(Place::Dropped);
                }
            }
        }
        Ok(Place::Slot(index))
    }

    fn block(&mut self) -> Place {
        self.shown.stalls += u64::from(!self.blocked);
        self.blocked = true;
        Place::Blocked
    }

    /// Counts dead time while the device waits. Fragments that were due meanwhile do not come in a burst afterwards,
    /// nor at all: the fragment that waits is the one that was due first.
    pub(super) fn count_dead_time(&mut self) {
        let (Some(due), Some(rate)) = (&mut self.due, self.settings.rate) else { return };
        let now = self.clock.now();
        let passed = now.saturating_sub(self.dead.since.replace(now).unwrap_or(now));
        self.dead.time.dead_nanos += u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
        let interval = rate.interval().as_nanos().max(1);
        let missed = u64::try_from(now.saturating_sub(*due).as_nanos() / interval).unwrap_or(u64::MAX);
        self.dead.time.fragments += missed;
        *due += Duration::from_nanos(u64::try_from(interval * u128::from(missed)).unwrap_or(u64::MAX));
    }

    /// Accounts for a fragment put into the slot for a builder. Returns true if the slot is full and was offered.
    fn taken(&mut self, index: usize, len: usize) -> bool {
        self.builders[index].accounts.accepted += 1;
        self.step(len);
        // A slot that cannot take another such fragment need not wait for it; neither need one whose builder gets no
        // later events.
        let most = self.most_records();
        let full = self.builders[index].filling.as_ref().is_none_or(|filling| !filling.has_room(len, most));
        if full {
            self.offer(index);
        }
        full
    }

    /// Skips an event that the device has nothing for, because its recording has a gap. Nothing was accepted, so
    /// nothing is announced: the builder sees this source go on to the next event. A slot holds consecutive events, so
    /// this one ends here. Returns true if a slot was offered.
    fn passed_over(&mut self, index: usize) -> bool {
        self.next_event += 1;
        self.wait_for_next();
        let filling = self.builders[index].filling.take();
        let offers = filling.as_ref().is_some_and(|filling| filling.count > 0);
        match filling {
            Some(filling) if offers => {
                self.builders[index].filling = Some(filling);
                self.offer(index);
            }
            Some(filling) => self.pool.give_back(filling.slot),
            None => {}
        }
        self.went_on();
        offers
    }

    /// Offers partly filled slots where little is under way: those need not wait for more fragments.
    pub(super) fn offer_partial(&mut self) {
        for index in 0..self.builders.len() {
            if self.builders[index].book.len() < 2 {
                self.offer(index);
                if self.builders[index].book.is_empty() {
                    self.announce_drops(index);
                }
            }
        }
    }

    pub(super) fn step(&mut self, len: usize) {
        self.next_event += 1;
        self.sequence = self.sequence.wrapping_add(1);
        self.shown.bytes += len as u64;
        self.shown.fragments += 1;
        self.wait_for_next();
        self.went_on();
    }

    /// Sets the time at which the next event is due. Bursts begin at multiples of their length, at all sources alike.
    fn wait_for_next(&mut self) {
        let burst = self.settings.burst.max(1);
        if let (Some(due), Some(rate)) = (&mut self.due, self.settings.rate)
            && self.next_event.is_multiple_of(burst.into())
        {
            *due += rate.interval() * burst;
        }
    }

    /// Returns a free slot, preferably one that already has the right content; with policy `drop-oldest` also one that
    /// is in use.
    fn slot(&mut self, index: usize, key: Option<u64>) -> Option<Slot> {
        let Self { pool, traces, builders, endpoints, .. } = self;
        if let Some(slot) = pool.take_preferred(|slot| traces.begins_with(slot, key)) {
            return Some(slot);
        }
        if self.settings.policy != Policy::DropOldest {
            return None;
        }
        let builder = &mut builders[index];
        if builder.book.len() >= MOST_TICKETS {
            return None;
        }
        // Before the welcome nothing was offered over this connection, and everything will be.
        let mut link = endpoints.link_mut(index).filter(|_| builder.welcome.is_some());
        builder.kept_from = builder.kept_from.max(builder.book.first_ticket());
        while let Some((offer, slot)) = builder.book.get_mut(builder.kept_from) {
            builder.kept_from += 1;
            let asked = slot.is_none() || link.as_mut().is_some_and(|link| !link.withdraw(offer.ticket));
            if asked || builder.granted.contains(&offer.ticket) {
                continue;
            }
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
        None
    }

    /// Records that `count` fragments for a builder are dropped or lost, from `event` on. They are announced together
    /// with those that follow them.
    pub(super) fn leave_out(&mut self, index: usize, event: EventId, count: u32, how: Disposition) {
        let stride = self.stride();
        let builder = &mut self.builders[index];
        builder.accounts.accepted += u64::from(count);
        match how {
            Disposition::LostInDevice => builder.lost_in_device += u64::from(count),
            _ => builder.accounts.dropped_newest += u64::from(count),
        }
        if builder.left {
            return;
        }
        match &mut builder.left_out {
            Some((first, run, known))
                if *known == how && *first + u64::from(*run) * stride == event.0 && u32::MAX - *run >= count =>
            {
                *run += count;
            }
            _ => {
                self.announce_drops(index);
                self.builders[index].left_out = Some((event.0, count, how));
            }
        }
    }

    pub(super) fn announce_drops(&mut self, index: usize) {
        let stride = self.stride();
        let builder = &mut self.builders[index];
        let Some((first, count, disposition)) = builder.left_out.take() else { return };
        builder.mentioned = first + u64::from(count) * stride;
        let offer = Announcement {
            ticket: builder.book.next_ticket(),
            first: EventId(first),
            arena_offset: 0,
            count,
            bytes: 0,
            disposition,
        };
        builder.book.push(offer, None);
        builder.accounts.tickets = builder.book.next_ticket();
        if builder.welcome.is_some()
            && let Some(link) = self.endpoints.link_mut(index)
        {
            link.offer(&offer);
        }
    }

    /// Offers the content of the slot that is being filled.
    pub(super) fn offer(&mut self, index: usize) {
        let stride = self.stride();
        let Some(filling) = self.builders[index].filling.take() else { return };
        self.builders[index].mentioned = filling.first.0 + u64::from(filling.count) * stride;
        if self.builders[index].left_out.is_some_and(|(first, ..)| first < filling.first.0) {
            self.announce_drops(index);
        }
        let builder = &mut self.builders[index];
        #[expect(clippy::cast_possible_truncation, reason = "a slot has at most 1 GiB")]
        let bytes = filling.used() as u32;
        let eager = builder.welcome.is_some_and(|welcome| {
            let unasked = builder.eager.checked_add(bytes);
            let fits = bytes <= welcome.eager_limit && unasked.is_some_and(|unasked| unasked <= welcome.eager_credit);
            fits && self.endpoints.link(index).is_some()
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
        if builder.welcome.is_some()
            && let Some(link) = self.endpoints.link_mut(index)
        {
            link.offer(&offer);
        }
    }

    /// Returns whether the run ends before this event, as far as this source is concerned.
    pub(super) fn is_beyond_end(&self, event: u64) -> bool {
        self.ends_here || self.end_at.is_some_and(|end| event >= end)
    }

    pub(super) fn end(&mut self) {
        self.phase = Phase::Ending;
        self.report_times(u64::MAX);
        self.send_to(0, &Message::NotTaken(self.not_taken()));
        self.settle_unassigned();
        (1..self.builders.len()).for_each(|index| self.tell_left(index));
        let left = (1..self.builders.len()).filter(|index| self.builders[*index].left).collect::<Vec<_>>();
        left.into_iter().for_each(|index| self.pass_on_room(index));
        for index in 0..self.builders.len() {
            self.offer(index);
            self.announce_drops(index);
            let builder = &mut self.builders[index];
            let copied = builder.copied + self.endpoints.link(index).map_or(0, |link| link.copied());
            builder.accounts.copied_bytes = copied;
            builder.accounts.next_sequence = self.sequence;
            // All builders receive the same value: it is one process.
            builder.accounts.cpu_nanos =
                u64::try_from((self.clock.cpu() - self.cpu_before).as_nanos()).unwrap_or(u64::MAX);
            let accounts = builder.accounts;
            if builder.welcome.is_some() {
                self.send_to(index, &Message::End(accounts));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EventRate, Handle, Node, SourceSettings, Wait};
    use std::io::Write;
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::time::Duration;
    use thalweg_core::control::Command;
    use thalweg_link::{Address, Eager, LinkKind, Poller};
    use thalweg_link_conformance::Listening;
    use thalweg_wire::{Accounts, Capabilities, PayloadType, Refusal, RunNumber, SourceId, Status, TaiNanos, Welcome};

    const SLOT: u32 = 128;
    const FRAGMENT: PushedFragment<'_> = PushedFragment {
        payload: &[],
        payload_type: PayloadType::RAW,
        status: Status::SIMULATED,
        timestamp: None,
        window: 0,
    };

    /// Node with two slots, each for one fragment, that drops the oldest, with its handle and poller.
    struct Driven {
        node: SourceNode,
        handle: Handle,
        poller: Arc<Poller>,
    }

    impl Driven {
        fn new(builder: Address) -> Self {
            Self::of(SourceNode::new(Self::settings(builder)).unwrap())
        }

        fn of(node: SourceNode) -> Self {
            let handle = Handle::new().unwrap();
            node.begin(&handle).unwrap();
            let poller = Arc::clone(node.poller());
            Self { node, handle, poller }
        }

        fn settings(builder: Address) -> SourceSettings {
            SourceSettings {
                name: "s".into(),
                id: SourceId::new(1, 0),
                feed: Feed::Pushed { max_payload: 64, description: serde_json::json!({}) },
                builders: vec![builder],
                adapter: None,
                congestion: None,
                rate: None,
                burst: 1,
                policy: Policy::DropOldest,
                slots: 2,
                slot_bytes: SLOT as usize,
                timeout: Duration::from_secs(60),
                wait: Wait::default(),
                cpu: None,
            }
        }

        fn until(&mut self, done: impl Fn(&SourceNode) -> bool) {
            let mut tokens = Vec::new();
            while !done(&self.node) {
                self.node.turn(&tokens, &self.handle).unwrap();
                if !done(&self.node) {
                    self.node.idle().take(&self.poller, &mut tokens).unwrap();
                }
            }
        }

        /// Pushes one more fragment and returns the dispositions of all tickets.
        fn push(&mut self) -> Vec<Disposition> {
            let fragment = PushedFragment { payload: &[7; 64], ..FRAGMENT };
            assert!(self.node.push(None, &fragment).unwrap().is_some());
            self.dispositions()
        }

        fn dispositions(&self) -> Vec<Disposition> {
            self.node.builders[0].book.iter().map(|(offer, _)| offer.disposition).collect()
        }

        /// Returns the first messages of a builder, with credit for both slots and no earlier ticket open.
        fn welcome(&self) -> [Message; 2] {
            let welcome = Welcome {
                run: RunNumber(1),
                eager_credit: 2 * SLOT,
                eager_limit: SLOT,
                most_records: 1,
                running: true,
                released_below: self.node.builders[0].book.next_ticket(),
                capabilities: Capabilities::WITHDRAWS,
            };
            let start = Message::Start { run: RunNumber(1), first: EventId(0), at: TaiNanos(0) };
            [Message::Welcome(welcome), start]
        }
    }

    fn is_welcome(node: &SourceNode) -> bool {
        node.builders[0].welcome.is_some() && node.phase == Phase::Running
    }

    fn is_away(node: &SourceNode) -> bool {
        node.endpoints.link(0).is_none()
    }

    #[test]
    fn the_events_of_a_burst_are_due_at_once_and_the_next_burst_later_by_as_much() {
        let settings = Driven::settings("tcp:127.0.0.1:1".parse().unwrap());
        let rate = Some(EventRate::try_from(1000.0).unwrap());
        let mut node = SourceNode::new(SourceSettings { rate, burst: 4, ..settings }).unwrap();
        node.due = Some(Duration::ZERO);
        let mut due = || {
            let due = node.due.map(|due| due.as_millis());
            node.step(0);
            due.unwrap()
        };
        assert_eq!([(); 9].map(|()| due()), [0, 0, 0, 0, 4, 4, 4, 4, 8]);
    }

    #[test]
    fn what_a_device_was_to_give_while_all_slots_were_full_is_dead_time() {
        let settings = Driven::settings("tcp:127.0.0.1:1".parse().unwrap());
        let rate = Some(EventRate::try_from(10.0).unwrap());
        let mut node = SourceNode::new(SourceSettings { rate, policy: Policy::Block, ..settings }).unwrap();
        // It was due 350 ms ago, and three more have been due since.
        node.due = Some(node.clock.now().saturating_sub(Duration::from_millis(350)));
        let due = node.due.unwrap();
        node.count_dead_time();
        assert_eq!((node.dead.time.fragments, node.due), (3, Some(due + Duration::from_millis(300))));
        let since = node.dead.since.unwrap();
        node.count_dead_time();
        let passed = node.dead.since.unwrap() - since;
        assert_eq!(Duration::from_nanos(node.dead.time.dead_nanos), passed);
        node.end();
        assert_eq!(node.report().not_taken, node.dead.time.fragments);
    }

    #[test]
    fn a_source_that_is_told_to_stop_in_a_pause_ends_and_does_not_go_on_with_the_others() {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut source = Driven::new(format!("tcp:{}", door.local_addr().unwrap()).parse().unwrap());
        source.until(|node| node.endpoints.link(0).is_some());
        let (mut builder, _) = door.accept().unwrap();
        builder.write_all(&source.welcome().map(|message| message.encode()).concat()).unwrap();
        source.until(is_welcome);
        builder.write_all(&Message::Pause.encode()).unwrap();
        source.until(|node| node.phase == Phase::Paused);
        source.handle.send(Command::Stop);
        source.until(|node| node.phase == Phase::Ending);
        builder.write_all(&Message::Resume.encode()).unwrap();
        builder.write_all(&Message::Bye.encode()).unwrap();
        source.until(|node| node.builders[0].done);
        assert_eq!(source.node.phase, Phase::Ending);
    }

    #[test]
    fn a_source_goes_on_with_the_other_builders_where_one_leaves_a_run_that_had_begun() {
        let doors = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let builders = doors.each_ref().map(|door| format!("tcp:{}", door.local_addr().unwrap()).parse().unwrap());
        let settings =
            SourceSettings { builders: builders.into(), ..Driven::settings("tcp:127.0.0.1:1".parse().unwrap()) };
        let mut source = Driven::of(SourceNode::new(settings).unwrap());
        let mut peers = doors.map(|door| {
            source.until(|node| node.endpoints.link(1).is_some());
            door.accept().unwrap().0
        });
        let begin = source.welcome().map(|message| message.encode()).concat();
        peers.iter_mut().for_each(|peer| peer.write_all(&begin).unwrap());
        source.until(|node| node.phase == Phase::Running);
        let refusal = Message::Refuse { reason: Refusal::Ended, text: 0 };
        peers[1].write_all(&refusal.encode()).unwrap();
        source.until(|node| node.builders[1].done);
        assert_eq!(source.node.phase, Phase::Running);
        // Fragments of the other builder are lost, and occupy no slot.
        source.push();
        source.push();
        source.push();
        assert_eq!((source.node.builders[1].lost, source.node.builders[0].accounts.accepted), (1, 2));
        source.handle.send(Command::Stop);
        source.until(|node| node.phase == Phase::Ending);
        peers[0].write_all(&Message::Bye.encode()).unwrap();
        let mut tokens = Vec::new();
        let ended = loop {
            match source.node.turn(&tokens, &source.handle) {
                Ok(None) => source.node.idle().take(&source.poller, &mut tokens).unwrap(),
                Ok(Some(report)) => break Ok(report),
                Err(error) => break Err(error),
            }
        };
        assert!(matches!(ended, Err(NodeError::Link { .. })), "it says that a builder left: {ended:?}");
    }

    /// If the cost of a fragment grew with the number of drops, this would take minutes.
    #[test]
    fn behind_a_builder_that_releases_nothing_drops_take_bounded_time_and_memory() {
        let mut source = Driven::new("tcp:127.0.0.1:1".parse().unwrap());
        source.node.phase = Phase::Running;
        source.node.builders[0].most_records = 1;
        for _ in 0..4 * MOST_TICKETS {
            let fragment = PushedFragment { payload: &[7; 64], ..FRAGMENT };
            assert!(source.node.push(None, &fragment).unwrap().is_some());
        }
        let builder = &source.node.builders[0];
        assert_eq!(builder.book.len(), MOST_TICKETS);
        let Accounts { accepted, dropped_newest, dropped_oldest, .. } = builder.accounts;
        assert_eq!((accepted, dropped_oldest), (4 * MOST_TICKETS as u64, MOST_TICKETS as u64 - 2));
        assert_eq!(dropped_newest, accepted - MOST_TICKETS as u64);
    }

    #[test]
    fn eager_credit_belongs_to_one_connection() {
        use Disposition::{DroppedOldest, Eager, Held};
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut source = Driven::new(format!("tcp:{}", door.local_addr().unwrap()).parse().unwrap());
        for _ in 0..3 {
            source.until(|node| node.endpoints.link(0).is_some());
            let (mut builder, _) = door.accept().unwrap();
            builder.write_all(&source.welcome().map(|message| message.encode()).concat()).unwrap();
            source.until(is_welcome);
            source.push();
            assert_eq!(source.push(), [Eager, Eager]);
            drop(builder);
            source.until(is_away);
            // The new one takes the place of one that was sent.
            assert_eq!(source.push(), [DroppedOldest, Held, Held]);
        }
    }

    #[test]
    fn what_was_granted_in_shared_memory_is_not_withdrawn_from_there() {
        use Disposition::{DroppedOldest, Held};
        let folder = tempfile::tempdir().unwrap();
        let address = Address::here(LinkKind::SHM, folder.path(), "b").unwrap();
        let door = Listening::open(&address, Eager { credit: 0, limit: 0 }).unwrap();
        let mut source = Driven::new(door.address().clone());
        source.until(|node| node.endpoints.link(0).is_some());
        let mut builder = door.accept();
        builder.receive(&mut Vec::new()).unwrap();
        source.welcome().iter().for_each(|message| builder.send(message));
        builder.flush().unwrap();
        source.until(is_welcome);
        source.push();
        source.push();
        let oldest = source.node.builders[0].book.get(0).unwrap().0;
        assert!(builder.begin_fetch(&oldest, None, oldest.bytes).unwrap().is_none(), "it has to be granted");
        builder.flush().unwrap();
        // The builder's last messages are received before its end.
        drop(builder);
        source.until(is_away);
        assert_eq!(source.push()[1..], [DroppedOldest, Held]);
        assert_ne!(source.dispositions()[0], DroppedOldest);
    }
}
