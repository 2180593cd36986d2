//! Production: takes fragments, from the device or from the program that pushes them, into slots, and offers these.

use super::assignments::Dropped;
use super::course::{Phase, Standing};
use super::{Feed, SourceNode};
use crate::slots::{Filling, PushedFragment, Stamp};
use crate::{NodeError, Policy, log_context};
use thalweg_arena::Slot;
use thalweg_wire::{Disposition, EventId, Message, TaiNanos};

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
    pub(super) fn produce_fragments(&mut self) -> Result<(), NodeError> {
        if self.course.current_phase() != Phase::Running {
            return Ok(());
        }
        self.pace.end_dead_time(self.clock.now());
        if self.end_if_complete() {
            return Ok(());
        }
        let mut date = None;
        while let Feed::Device(device) = &mut self.feed {
            let Some(len) = device.next_payload_bytes() else {
                self.end_part();
                return Ok(());
            };
            if !self.pace.is_due(self.clock.now()) {
                break;
            }
            let key = device.content_key(EventId(self.course.next_event()));
            let mut offered = false;
            match self.find_place(len, key) {
                Place::Slot(index) => {
                    // Without a rate the fragments of a slot are taken in one go, within microseconds, and share one
                    // date.
                    let date = match date {
                        Some(date) if !self.pace.has_due_times() => date,
                        _ => *date.insert(self.clock.date()),
                    };
                    offered = self.take_from_device(index, len, date)?;
                }
                Place::Dropped => {
                    let Feed::Device(device) = &mut self.feed else { break };
                    device.skip_fragment(EventId(self.course.next_event()));
                    self.count_fragment(len);
                }
                Place::Blocked => {
                    self.pace.count_dead_time(self.clock.now());
                    break;
                }
            }
            if self.end_if_complete() || offered {
                return Ok(());
            }
        }
        self.builders.offer_partial();
        Ok(())
    }

    /// Takes the next fragment, of `len` bytes, from the device into the slot for a builder. Returns true if a slot was
    /// offered.
    fn take_from_device(&mut self, index: usize, len: usize, date: TaiNanos) -> Result<bool, NodeError> {
        let stamp = self.next_stamp(date);
        let (Some(filling), Feed::Device(device)) = (self.builders.delivery_mut(index).filling_mut(), &mut self.feed)
        else {
            return Ok(false);
        };
        if !filling.take_from_device(&mut **device, &mut self.slots, stamp, len)? {
            return Ok(self.pass_over(index));
        }
        self.note_event_time(index, len);
        Ok(self.count_taken(index, len))
    }

    /// Takes one fragment from the program that pushes, for event `event` or else the next. Returns `None` if there is
    /// no place for it yet. May be called from another thread than the one that takes [turns](Self::take_turn).
    pub(crate) fn push_fragment(
        &mut self,
        event: Option<EventId>,
        fragment: &PushedFragment<'_>,
    ) -> Result<Option<EventId>, NodeError> {
        let next = self.course.next_event();
        let event = event.unwrap_or(EventId(next));
        let len = fragment.payload.len();
        self.check_pushed(event, len)?;
        if self.course.is_beyond_end(event.0) {
            self.push_end();
            return Err(NodeError::Over);
        }
        if event.0 > next {
            self.builders.offer_all();
            self.course.go_to_event(event.0);
            self.enter_next_run(event.0);
        }
        match self.find_place(len, None) {
            Place::Slot(index) => {
                self.pace.end_dead_time(self.clock.now());
                let stamp = self.next_stamp(self.clock.date());
                if let Some(filling) = self.builders.delivery_mut(index).filling_mut() {
                    filling.put(&mut self.slots, stamp, fragment);
                }
                self.note_event_time(index, len);
                self.count_taken(index, len);
            }
            Place::Dropped => self.count_fragment(len),
            Place::Blocked => {
                self.pace.count_dead_time(self.clock.now());
                // No event is skipped before a later one is accepted, but for those before a run that has begun.
                self.course.go_to_event(next.max(self.course.entered_at()));
                self.builders.flush_messages(self.clock.now());
                return Ok(None);
            }
        }
        self.finish_push();
        Ok(Some(event))
    }

    /// Checks that a fragment for this event, of `len` bytes, may be pushed.
    fn check_pushed(&self, event: EventId, len: usize) -> Result<(), NodeError> {
        let next = self.course.next_event();
        if event.0 < next {
            return Err(NodeError::Config(format!(
                "event {} was pushed after event {}: events must come in order",
                event.0,
                next - 1
            )));
        }
        // The event after the last fragment in a slot is another event of the same builder.
        if event.0.checked_add(self.builders.len() as u64 + 1).is_none() {
            return Err(NodeError::Config(format!(
                "event {} was pushed, which is more than the largest event number",
                event.0
            )));
        }
        let max_payload = self.feed.max_payload();
        if len > max_payload {
            return Err(NodeError::Config(format!(
                "a payload of {len} bytes was pushed; this source announced at most {max_payload}"
            )));
        }
        Ok(())
    }

    /// Records that the device lost the next `count` fragments, as reported by the program that pushes.
    ///
    /// # Errors
    /// `count` is more than can have been lost.
    pub(crate) fn push_lost(&mut self, count: u64) -> Result<(), NodeError> {
        self.builders.offer_all();
        self.lose_fragments(count)?;
        self.finish_push();
        Ok(())
    }

    /// Offers and sends what can be after something was pushed, and ends this source's part if the run ends here.
    fn finish_push(&mut self) {
        self.end_if_complete();
        self.builders.offer_partial();
        self.builders.flush_messages(self.clock.now());
    }

    /// Ends this source's part of the run, when the program that pushes has no more fragments.
    pub(crate) fn push_end(&mut self) {
        if matches!(self.course.current_phase(), Phase::Running | Phase::Paused) {
            self.end_part();
        }
        self.builders.flush_messages(self.clock.now());
    }

    /// Returns whether there is work that only a [turn](Self::take_turn) can do.
    pub(crate) fn needs_turn(&self) -> bool {
        self.builders.needs_turn(self.sleeps_until)
    }

    /// Returns whether fragments can be pushed: not before the run has begun, nor while it is about to stop.
    pub(crate) fn push_standing(&self) -> Standing {
        self.course.push_standing()
    }

    /// Returns the values of the next fragment's header that do not depend on its payload.
    pub(super) fn next_stamp(&self, received: TaiNanos) -> Stamp {
        Stamp {
            run: self.course.run_number(),
            source: self.setup.id,
            event: EventId(self.course.next_event()),
            sequence: self.course.next_sequence(),
            received,
        }
    }

    /// Finds a place for the next fragment, of `len` bytes. `key` identifies its content.
    fn find_place(&mut self, len: usize, key: Option<u64>) -> Place {
        let event = EventId(self.course.next_event());
        let Some(index) = self.assignments.builder_for_event(event.0) else {
            if self.drop_unassigned() {
                return Place::Dropped;
            }
            self.course.mark_blocked();
            return Place::Blocked;
        };
        if self.builders.delivery(index).is_over() {
            self.builders.delivery_mut(index).count_lost();
            return Place::Dropped;
        }
        if self.builders.delivery(index).is_full_for(len, self.builders.max_records()) {
            self.builders.offer(index);
        }
        if self.builders.delivery(index).is_filling() {
            return Place::Slot(index);
        }
        match self.free_slot(index, key) {
            Some(slot) => self.builders.delivery_mut(index).start_filling(Filling::new(slot, event)),
            None if self.setup.policy == Policy::Block => {
                self.course.mark_blocked();
                return Place::Blocked;
            }
            None => {
                self.builders.drop_fragments(index, event, 1, Disposition::DroppedNewest);
                return Place::Dropped;
            }
        }
        Place::Slot(index)
    }

    /// Returns a free slot, preferably one that already has the right content; with policy `drop-oldest` also one that
    /// is in use.
    fn free_slot(&mut self, index: usize, key: Option<u64>) -> Option<Slot> {
        match self.slots.take_free(key) {
            None if self.setup.policy == Policy::DropOldest => self.builders.drop_oldest(index),
            slot => slot,
        }
    }

    /// Handles the case that the next event has no builder yet. Returns true if its fragment must be dropped: it cannot
    /// wait, and it is unknown whose slot to take instead.
    fn drop_unassigned(&mut self) -> bool {
        let (next, drops) = (self.course.next_event(), self.setup.policy != Policy::Block);
        if drops {
            self.assignments.keep_dropped(Dropped { first: next, count: 1, how: Disposition::DroppedNewest });
        }
        self.request_assignment(next + u64::from(drops));
        drops
    }

    /// Tells builder 0 that this source needs events below `wanted`, if those are not assigned.
    pub(super) fn request_assignment(&mut self, wanted: u64) {
        if self.assignments.want_events(wanted) {
            self.relay_room(0);
        }
    }

    /// Accounts for a fragment put into the slot for a builder. Returns true if the slot is full and was offered.
    fn count_taken(&mut self, index: usize, len: usize) -> bool {
        self.builders.delivery_mut(index).count_accepted();
        self.count_fragment(len);
        // A slot that cannot take another such fragment need not wait for it; neither need one whose builder gets no
        // later events.
        let delivery = self.builders.delivery(index);
        let is_full = !delivery.is_filling() || delivery.is_full_for(len, self.builders.max_records());
        if is_full {
            self.builders.offer(index);
        }
        is_full
    }

    /// Goes to the next event, after a fragment with a payload of `len` bytes.
    pub(super) fn count_fragment(&mut self, len: usize) {
        self.course.count_fragment(len);
        self.pace.go_to_event(self.course.next_event());
        self.end_passed_ranges();
    }

    /// Skips an event that the device has nothing for, because its recording has a gap. Nothing was accepted, so
    /// nothing is announced: the builder sees this source go on to the next event. A slot holds consecutive events, so
    /// this one ends here. Returns true if a slot was offered.
    fn pass_over(&mut self, index: usize) -> bool {
        self.course.go_to_event(self.course.next_event() + 1);
        self.pace.go_to_event(self.course.next_event());
        let offers = self.builders.delivery_mut(index).stop_filling_empty(&mut self.slots);
        self.builders.offer(index);
        self.end_passed_ranges();
        offers
    }

    /// Offers the fragments of assigned ranges that are over, now that the next event is a later one.
    pub(super) fn end_passed_ranges(&mut self) {
        while let Some(range) = self.assignments.pop_passed_range(self.course.next_event()) {
            let index = range.builder as usize;
            if self.builders.delivery(index).is_over() {
                continue;
            }
            self.builders.offer_and_announce(index);
            // This source may have nothing for these events, nor for this builder for a long time.
            if let Some(message) = self.builders.delivery_mut(index).passed_message(range.end_event()) {
                self.builders.send_if_welcome(index, &message);
            }
        }
    }

    /// Notes the time of the last fragment in the slot for a builder, which was just put there with `len` bytes of
    /// payload, if times are to be reported.
    pub(super) fn note_event_time(&mut self, index: usize, len: usize) {
        let Some(first) = self.times.as_ref().map(|times| times.first_event()) else { return };
        if first > self.course.next_event() {
            return;
        }
        let Some(header) = self.builders.delivery(index).last_header(len) else { return };
        if header.event.0 >= first {
            self.report_times(header.event.0);
            self.times.iter_mut().for_each(|times| times.note_event_time(&header));
            self.report_times(header.event.0 + 1);
        }
    }

    /// Sends the known times of events below `next`.
    fn report_times(&mut self, next: u64) {
        while let Some(message) = self.times.as_mut().and_then(|times| times.next_complete_message(next)) {
            self.builders.send_to_builder(0, &Message::TriggerTimes(message));
        }
        self.times.take_if(|times| times.is_complete());
    }

    /// Begins the next run if event `event`, the next one to be accepted, belongs to it: everything before is offered or
    /// announced, and the counters of the run that ends are sent.
    pub(super) fn enter_next_run(&mut self, event: u64) {
        let Some(run) = self.course.enter_next_run(event) else { return };
        let (not_taken, cpu) = (self.not_taken_counts(), self.clock.processor_time());
        // All builders receive the same value: it is one process.
        let cpu_nanos = u64::try_from((cpu - self.cpu_before).as_nanos()).unwrap_or(u64::MAX);
        for index in self.builders.all_numbers() {
            self.builders.offer_and_announce(index);
            self.builders.end_run(index, run, not_taken, (self.course.next_sequence(), cpu_nanos));
        }
        self.cpu_before = cpu;
        self.strays_before = self.stray_frame_count();
        self.earlier_not_taken.dead_nanos += not_taken.dead_nanos;
        self.earlier_not_taken.fragments += not_taken.fragments;
        self.earlier_not_taken.of_no_event += not_taken.of_no_event;
        self.pace.begin_next_run(self.clock.now());
        log_context::set_run(self.course.run_number().0);
        tracing::info!(source = self.setup.name, run = self.course.run_number().0, first = event, "next run");
    }

    /// Begins the next run if that is due, and ends this source's part of the run if the run ends before the next
    /// event. Returns true if the part has ended.
    pub(super) fn end_if_complete(&mut self) -> bool {
        self.enter_next_run(self.course.next_event());
        let is_at_end = self.course.is_at_end();
        if is_at_end {
            self.end_part();
        }
        is_at_end
    }

    /// Ends this source's part of the run: everything is offered or announced, and the final counters are sent.
    pub(super) fn end_part(&mut self) {
        self.course.end_part();
        self.report_times(u64::MAX);
        self.builders.send_to_builder(0, &Message::NotTaken(self.not_taken_counts()));
        // Fragments that remain without a builder are attributed to builder 0.
        for dropped in self.assignments.take_unassigned() {
            self.builders.drop_range(0, dropped.first, dropped.count, 1, dropped.how);
        }
        self.builders.following_numbers().for_each(|index| self.send_left_counts(index));
        for index in self.builders.following_numbers() {
            if self.builders.delivery(index).is_over() {
                self.relay_room(index);
            }
        }
        // All builders receive the same value: it is one process.
        let cpu_nanos = u64::try_from((self.clock.processor_time() - self.cpu_before).as_nanos()).unwrap_or(u64::MAX);
        for index in self.builders.all_numbers() {
            self.builders.offer_and_announce(index);
            self.builders.send_final_counters(index, self.course.next_sequence(), cpu_nanos);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::delivery::MAX_TICKETS;
    use crate::wait::Idle;
    use crate::{Handle, Node, SourceReport, SourceSettings, Wait};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::time::Duration;
    use thalweg_core::control::Command;
    use thalweg_link::{Address, Eager, LinkKind, Poller};
    use thalweg_link_conformance::Listening;
    use thalweg_wire::{
        Capabilities, FinalCounters, MESSAGE_LEN, PayloadType, Refusal, RunNumber, SourceId, Status, Welcome,
    };

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

        /// Returns a node with two builders, to which it is connected.
        fn with_two_builders() -> (Self, [TcpStream; 2]) {
            let doors = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
            let builders = doors.each_ref().map(|door| format!("tcp:{}", door.local_addr().unwrap()).parse().unwrap());
            let settings =
                SourceSettings { builders: builders.into(), ..Self::settings("tcp:127.0.0.1:1".parse().unwrap()) };
            let mut source = Self::of(SourceNode::new(settings).unwrap());
            let peers = doors.map(|door| {
                source.until(|node| node.builders.is_linked(1));
                door.accept().unwrap().0
            });
            (source, peers)
        }

        fn until(&mut self, done: impl Fn(&SourceNode) -> bool) {
            let mut tokens = Vec::new();
            while !done(&self.node) {
                self.node.turn(&tokens, &self.handle).unwrap();
                if !done(&self.node) {
                    self.node.idle().wait_for_work(&self.poller, &mut tokens).unwrap();
                }
            }
        }

        /// Takes turns until a builder has received a message, and returns the messages before it.
        fn until_received(&mut self, builder: &mut TcpStream, expected: impl Fn(&Message) -> bool) -> Vec<Message> {
            builder.set_nonblocking(true).unwrap();
            let (mut received, mut messages, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
            loop {
                Idle::Ask(Some(Duration::ZERO)).wait_for_work(&self.poller, &mut tokens).unwrap();
                assert!(self.node.turn(&tokens, &self.handle).unwrap().is_none(), "the node has ended");
                let mut bytes = [0; 4096];
                received.extend_from_slice(match builder.read(&mut bytes) {
                    Ok(len) => &bytes[..len],
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => &[],
                    Err(error) => panic!("{error}"),
                });
                while let Some(cell) = received.first_chunk::<MESSAGE_LEN>() {
                    let message = Message::decode(cell).unwrap();
                    let len = MESSAGE_LEN + message.body_bytes();
                    if received.len() < len {
                        break;
                    }
                    received.drain(..len);
                    if expected(&message) {
                        return messages;
                    }
                    messages.push(message);
                }
            }
        }

        /// Takes turns to the end of the node.
        fn end(mut self) -> Result<SourceReport, NodeError> {
            let mut tokens = Vec::new();
            loop {
                if let Some(report) = self.node.turn(&tokens, &self.handle)? {
                    return Ok(report);
                }
                self.node.idle().wait_for_work(&self.poller, &mut tokens).unwrap();
            }
        }

        /// Pushes one more fragment and returns the dispositions of all tickets.
        fn push(&mut self) -> Vec<Disposition> {
            let fragment = PushedFragment { payload: &[7; 64], ..FRAGMENT };
            assert!(self.node.push_fragment(None, &fragment).unwrap().is_some());
            self.dispositions()
        }

        fn dispositions(&self) -> Vec<Disposition> {
            self.node.builders.delivery(0).offers().map(|offer| offer.disposition).collect()
        }

        /// Returns the first messages of a builder, with credit for both slots and no earlier ticket open.
        fn welcome(&self) -> [Message; 2] {
            let welcome = Welcome {
                run: RunNumber(1),
                eager_credit: 2 * SLOT,
                eager_limit: SLOT,
                most_records: 1,
                running: true,
                released_below: self.node.builders.delivery(0).final_counters().tickets,
                capabilities: Capabilities::WITHDRAWS,
            };
            let start = Message::Start { run: RunNumber(1), first: EventId(0), at: TaiNanos(0) };
            [Message::Welcome(welcome), start]
        }
    }

    fn is_welcome(node: &SourceNode) -> bool {
        node.builders.is_welcome(0) && node.course.current_phase() == Phase::Running
    }

    fn is_away(node: &SourceNode) -> bool {
        !node.builders.is_linked(0)
    }

    #[test]
    fn a_source_that_is_told_to_stop_in_a_pause_ends_and_does_not_go_on_with_the_others() {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut source = Driven::new(format!("tcp:{}", door.local_addr().unwrap()).parse().unwrap());
        source.until(|node| node.builders.is_linked(0));
        let (mut builder, _) = door.accept().unwrap();
        builder.write_all(&source.welcome().map(|message| message.encode()).concat()).unwrap();
        source.until(is_welcome);
        builder.write_all(&Message::Pause.encode()).unwrap();
        source.until(|node| node.course.current_phase() == Phase::Paused);
        source.handle.send_command(Command::Stop);
        source.until(|node| node.course.current_phase() == Phase::Ending);
        builder.write_all(&Message::Resume.encode()).unwrap();
        builder.write_all(&Message::Bye.encode()).unwrap();
        source.until(|node| node.builders.is_done(0));
        assert_eq!(source.node.course.current_phase(), Phase::Ending);
    }

    #[test]
    fn a_source_goes_on_with_the_other_builders_where_one_leaves_a_run_that_had_begun() {
        let (mut source, mut peers) = Driven::with_two_builders();
        let begin = source.welcome().map(|message| message.encode()).concat();
        peers.iter_mut().for_each(|peer| peer.write_all(&begin).unwrap());
        source.until(|node| node.course.current_phase() == Phase::Running);
        let refusal = Message::Refuse { reason: Refusal::Ended, text: 0 };
        peers[1].write_all(&refusal.encode()).unwrap();
        source.until(|node| node.builders.is_done(1));
        assert_eq!(source.node.course.current_phase(), Phase::Running);
        let lost = Message::BuilderLost { builder: 1, refusal: Some(Refusal::Ended) };
        source.until_received(&mut peers[0], |message| *message == lost);
        // Fragments of the other builder are lost, and occupy no slot.
        source.push();
        source.push();
        source.push();
        let builders = &source.node.builders;
        assert_eq!(
            (builders.delivery(1).left_out_counts(1).lost, builders.delivery(0).final_counters().accepted),
            (1, 2)
        );
        source.handle.send_command(Command::Stop);
        source.until(|node| node.course.current_phase() == Phase::Ending);
        peers[0].write_all(&Message::Bye.encode()).unwrap();
        let ended = source.end();
        assert!(matches!(ended, Err(NodeError::Link { .. })), "it says that a builder left: {ended:?}");
    }

    /// The other builder took the end of this source's part for an orderly one.
    #[test]
    fn where_the_leading_builder_leaves_a_run_the_others_learn_that_before_the_end() {
        let (mut source, mut peers) = Driven::with_two_builders();
        let begin = source.welcome().map(|message| message.encode()).concat();
        peers.iter_mut().for_each(|peer| peer.write_all(&begin).unwrap());
        source.until(|node| node.course.current_phase() == Phase::Running);
        let refusal = Message::Refuse { reason: Refusal::Ended, text: 0 };
        peers[0].write_all(&refusal.encode()).unwrap();
        let before = source.until_received(&mut peers[1], |message| matches!(message, Message::End(_)));
        let lost = Message::BuilderLost { builder: 0, refusal: Some(Refusal::Ended) };
        assert!(before.contains(&lost), "{before:?}");
        peers[1].write_all(&Message::Bye.encode()).unwrap();
        assert!(matches!(source.end(), Err(NodeError::Link { .. })));
    }

    /// The run of the builder that had begun was recorded without a fragment, as if its sources had died.
    #[test]
    fn where_a_builder_does_not_begin_a_run_the_others_learn_that() {
        let (mut source, mut peers) = Driven::with_two_builders();
        let begin = source.welcome().map(|message| message.encode()).concat();
        peers[0].write_all(&begin).unwrap();
        source.until(|node| node.builders.has_started(0));
        let refusal = Message::Refuse { reason: Refusal::Ended, text: 0 };
        peers[1].write_all(&refusal.encode()).unwrap();
        let before = source.until_received(&mut peers[0], |message| matches!(message, Message::End(_)));
        let lost = Message::BuilderLost { builder: 1, refusal: Some(Refusal::Ended) };
        assert!(before.contains(&lost), "{before:?}");
        peers[0].write_all(&Message::Bye.encode()).unwrap();
        assert!(matches!(source.end(), Err(NodeError::Link { .. })));
    }

    #[test]
    fn a_run_is_over_where_the_only_builder_was_started_anew() {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut source = Driven::new(format!("tcp:{}", door.local_addr().unwrap()).parse().unwrap());
        source.until(|node| node.builders.is_linked(0));
        let (mut builder, _) = door.accept().unwrap();
        builder.write_all(&source.welcome().map(|message| message.encode()).concat()).unwrap();
        source.until(is_welcome);
        drop(builder);
        source.until(is_away);
        source.until(|node| node.builders.is_linked(0));
        let (mut anew, _) = door.accept().unwrap();
        let [Message::Welcome(welcome), _] = source.welcome() else { unreachable!("a welcome comes first") };
        anew.write_all(&Message::Welcome(Welcome { running: false, released_below: 0, ..welcome }).encode()).unwrap();
        let error = source.end().unwrap_err();
        assert!(error.is_consequence() && error.to_string().contains("was started anew"), "{error}");
    }

    /// If the cost of a fragment grew with the number of drops, this would take minutes.
    #[test]
    fn behind_a_builder_that_releases_nothing_drops_take_bounded_time_and_memory() {
        let mut source = Driven::new("tcp:127.0.0.1:1".parse().unwrap());
        source.node.course.set_phase(Phase::Running);
        source.node.builders.set_max_records(1);
        for _ in 0..4 * MAX_TICKETS {
            let fragment = PushedFragment { payload: &[7; 64], ..FRAGMENT };
            assert!(source.node.push_fragment(None, &fragment).unwrap().is_some());
        }
        let delivery = source.node.builders.delivery(0);
        assert_eq!(delivery.open_tickets(), MAX_TICKETS);
        let FinalCounters { accepted, dropped_newest, dropped_oldest, .. } = delivery.final_counters();
        assert_eq!((accepted, dropped_oldest), (4 * MAX_TICKETS as u64, MAX_TICKETS as u64 - 2));
        assert_eq!(dropped_newest, accepted - MAX_TICKETS as u64);
    }

    #[test]
    fn eager_credit_belongs_to_one_connection() {
        use Disposition::{DroppedOldest, Eager, Held};
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut source = Driven::new(format!("tcp:{}", door.local_addr().unwrap()).parse().unwrap());
        for _ in 0..3 {
            source.until(|node| node.builders.is_linked(0));
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
        let address = Address::on_this_host(LinkKind::SHM, folder.path(), "b").unwrap();
        let door = Listening::open_endpoint(&address, Eager { credit: 0, limit: 0 }).unwrap();
        let mut source = Driven::new(door.listen_address().clone());
        source.until(|node| node.builders.is_linked(0));
        let mut builder = door.accept_peer();
        builder.receive_messages(&mut Vec::new()).unwrap();
        source.welcome().iter().for_each(|message| builder.send_message(message));
        builder.flush_messages().unwrap();
        source.until(is_welcome);
        source.push();
        source.push();
        let oldest = *source.node.builders.delivery(0).offers().next().unwrap();
        assert!(builder.begin_fetch(&oldest, None, oldest.bytes).unwrap().is_none(), "it has to be granted");
        builder.flush_messages().unwrap();
        // The builder's last messages are received before its end.
        drop(builder);
        source.until(is_away);
        assert_eq!(source.push()[1..], [DroppedOldest, Held]);
        assert_ne!(source.dispositions()[0], DroppedOldest);
    }
}
