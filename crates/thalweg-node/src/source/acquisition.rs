//! Acquisition from a device that works by itself: its buffers are slots, and come back filled.

use super::assignments::Dropped;
use super::course::Phase;
use super::{DEVICE_TOKEN, Feed, SourceNode};
use crate::slots::{Filling, Slots};
use crate::{Clock, NodeError};
use std::time::Duration;
use thalweg_device::{Acquired, Acquisition, Buffer, DeviceError, Frame, FrameOrder, OrderedFrame};
use thalweg_link::{Interest, LinkError, Poller};
use thalweg_wire::{Disposition, Message, TaiNanos};

/// Frames taken from the device before others have their turn.
const MAX_FRAMES_IN_TURN: usize = 64;

/// State of a device that works by itself: its buffers, its frames that are out of order, and how far it is.
#[derive(Debug, Default)]
pub(super) struct Acquiring {
    order: FrameOrder,
    /// Number of buffers that the device has.
    posted: u32,
    has_started: bool,
    is_over: bool,
    /// True if the device was away when the run was to end.
    gave_up: bool,
    /// True if the time of the first frame was sent to builder 0.
    first_is_reported: bool,
    /// True if the time of event 0 is known, for events that are numbered by time.
    events_begin: bool,
    /// True if its descriptor is waited on.
    is_watched: bool,
    /// Time at which the device needs attention while nothing is taken.
    idle_until: Option<Duration>,
}

impl Acquiring {
    /// Returns whether the device was away when the run was to end.
    pub(super) fn has_given_up(&self) -> bool {
        self.gave_up
    }

    /// Creates the state before the device is started.
    pub(super) fn new(feed: &Feed) -> Self {
        let reorders = if let Feed::Acquisition(device) = feed { device.reorder_depth() } else { 0 };
        Self { order: FrameOrder::new(reorders), ..Self::default() }
    }

    /// Gives free slots to the device, as many as it takes.
    fn post_buffers(&mut self, device: &mut dyn Acquisition, slots: &mut Slots) {
        while !self.is_over && self.posted < device.max_posted_buffers() {
            let Some(slot) = slots.take_for_acquisition() else { break };
            device.post_buffer(Buffer::new(slot));
            self.posted += 1;
        }
    }

    /// Starts the device at the beginning of a run, unless it has started.
    fn start_device(&mut self, device: &mut dyn Acquisition, began: TaiNanos) -> Result<(), DeviceError> {
        if std::mem::replace(&mut self.has_started, true) { Ok(()) } else { device.start_acquisition(began) }
    }

    /// Takes what the device has filled. Returns true if there was something.
    fn take_frames(
        &mut self,
        device: &mut dyn Acquisition,
        slots: &mut Slots,
        clock: &dyn Clock,
        source: &str,
    ) -> Result<bool, DeviceError> {
        let mut any = false;
        for _ in 0..MAX_FRAMES_IN_TURN {
            match device.poll_acquired(clock.now())? {
                Acquired::Frame(frame) => {
                    any = true;
                    self.posted = self.posted.saturating_sub(1);
                    if let Some(Frame { buffer, number, .. }) = self.order.insert_frame(frame) {
                        tracing::warn!(source, number, "the device repeated a frame, or delivered it too late");
                        slots.give_back_slot(buffer.into_slot());
                    }
                }
                Acquired::Lost { first, count } => self.order.record_lost(first, count),
                Acquired::Missed { first, count } => self.order.record_missed(first, count),
                Acquired::NotYet => break,
                Acquired::Over => {
                    self.is_over = true;
                    break;
                }
            }
        }
        Ok(any)
    }

    /// Returns the message to builder 0 with the time of the first frame, if builder 0 decides when event 0 is and has
    /// not been sent it.
    fn first_frame_message(&mut self, device: &dyn Acquisition) -> Option<Message> {
        if self.first_is_reported {
            return None;
        }
        let (time, period) = (device.first_frame_time()?, device.event_period()?);
        self.first_is_reported = true;
        Some(Message::FirstFrame { time, period_nanos: u64::try_from(period.as_nanos()).unwrap_or(u64::MAX) })
    }

    /// Has this message repeated after a reconnection, since it may have been lost.
    pub(super) fn repeat_first_frame(&mut self) {
        self.first_is_reported = false;
    }

    /// Handles the time of event 0, as decided by builder 0.
    pub(super) fn begin_events(&mut self, device: &mut dyn Acquisition, time: TaiNanos) {
        if !std::mem::replace(&mut self.events_begin, true) {
            device.begin_events(time);
        }
    }

    /// Asks a device of which nothing is taken when it needs attention.
    fn rest_device(&mut self, device: &mut dyn Acquisition, takes: bool, now: Duration) -> Result<(), DeviceError> {
        if takes {
            self.idle_until = None;
        } else if self.idle_until.is_none_or(|at| at <= now) {
            self.idle_until = device.poll_idle(now)?;
        }
        Ok(())
    }

    /// Waits on the device's descriptor only while something is taken: otherwise it would report again and again what
    /// is left there.
    fn watch_descriptor(&mut self, device: &dyn Acquisition, takes: bool, poller: &Poller) -> Result<(), LinkError> {
        let is_watched = takes && device.has_room();
        if let Some(fd) = device.readiness_fd()
            && is_watched != std::mem::replace(&mut self.is_watched, is_watched)
        {
            match is_watched {
                true => poller.add_descriptor(fd, DEVICE_TOKEN, Interest::READ)?,
                // Without an interest the poller would still report errors.
                false => poller.remove_descriptor(fd),
            }
        }
        Ok(())
    }

    /// Returns when the device needs attention while nothing is taken.
    pub(super) fn idle_until(&self) -> Option<Duration> {
        self.idle_until
    }
}

impl SourceNode {
    /// Gives free slots to the device, and takes what it has filled, in the order of events.
    pub(super) fn serve_acquisition(&mut self) -> Result<(), NodeError> {
        let phase = self.course.current_phase();
        if matches!(self.feed, Feed::Acquisition(_)) && matches!(phase, Phase::Waiting | Phase::Running) {
            self.take_device_frames(phase)?;
        }
        let takes = self.course.current_phase() == Phase::Running && !self.acquiring.is_over;
        let Feed::Acquisition(device) = &mut self.feed else { return Ok(()) };
        self.acquiring.rest_device(&mut **device, takes, self.clock.now())?;
        Ok(self.acquiring.watch_descriptor(&**device, takes, self.builders.poller())?)
    }

    fn take_device_frames(&mut self, phase: Phase) -> Result<(), NodeError> {
        let Self { acquiring, slots, setup, clock, .. } = self;
        let Feed::Acquisition(device) = &mut self.feed else { return Ok(()) };
        acquiring.post_buffers(&mut **device, slots);
        if phase == Phase::Waiting {
            return Ok(());
        }
        acquiring.start_device(&mut **device, self.course.began_date())?;
        if acquiring.take_frames(&mut **device, slots, &**clock, &setup.name)? {
            self.builders.note_arrival();
        }
        self.report_first_frame();
        self.accept_frames()
    }

    /// Sends builder 0 the time of the first frame, if builder 0 decides when event 0 is.
    pub(super) fn report_first_frame(&mut self) {
        let Feed::Acquisition(device) = &self.feed else { return };
        if self.builders.is_welcome(0)
            && let Some(message) = self.acquiring.first_frame_message(&**device)
        {
            self.builders.send_to_builder(0, &message);
        }
    }

    /// Accepts frames in order, up to the end of the run.
    fn accept_frames(&mut self) -> Result<(), NodeError> {
        while !self.end_if_complete() {
            let next = self.course.next_event();
            let Some(index) = self.assignments.builder_for_event(next) else {
                // The device goes on as long as it has slots, and counts what it loses then.
                self.request_assignment(next);
                break;
            };
            match self.acquiring.order.next_in_turn(self.acquiring.is_over) {
                Some(OrderedFrame::Frame(frame)) => self.accept_frame(index, frame)?,
                Some(OrderedFrame::Lost(count)) => self.lose_fragments(count)?,
                Some(OrderedFrame::Missed(count)) => self.skip_events(count),
                None if self.acquiring.is_over => {
                    if let Some(end) = self.course.end_event().filter(|_| self.acquiring.gave_up) {
                        self.lose_fragments(end.saturating_sub(next))?;
                    }
                    self.end_part();
                    break;
                }
                None => break,
            }
        }
        Ok(())
    }

    /// Stops waiting for a device that is away when the run is to end. Events of the run's other sources until its end
    /// count as lost in this one's device.
    pub(super) fn end_without_device(&mut self) {
        let Feed::Acquisition(device) = &self.feed else { return };
        if self.course.current_phase() == Phase::Running && self.acquiring.has_started && device.is_away() {
            (self.acquiring.is_over, self.acquiring.gave_up) = (true, true);
        }
    }

    /// Accepts a frame as the next fragment, for this builder, and offers its slot.
    fn accept_frame(&mut self, index: usize, frame: Frame) -> Result<(), NodeError> {
        let (len, copied) = (frame.len, frame.copied as u64);
        let filling = Filling::from_frame(frame, self.next_stamp(self.clock.date())).map_err(|room| {
            NodeError::Config(format!("the device reports {len} bytes written into a buffer of {room}"))
        })?;
        let delivery = self.builders.delivery_mut(index);
        delivery.count_copied(copied);
        if delivery.is_over() {
            delivery.count_lost();
            self.slots.give_back_slot(filling.slot);
            self.count_fragment(len);
            return Ok(());
        }
        delivery.count_accepted();
        delivery.start_filling(filling);
        self.note_event_time(index, len);
        self.count_fragment(len);
        self.builders.offer(index);
        Ok(())
    }

    /// Announces that the device lost `count` frames from the next event on, to each builder those of its own events.
    ///
    /// # Errors
    /// `count` is more than can have been lost.
    pub(super) fn lose_fragments(&mut self, count: u64) -> Result<(), NodeError> {
        if count > u64::from(u32::MAX) {
            let name = &self.setup.name;
            return Err(NodeError::Config(format!("source '{name}': {count} lost fragments are impossible")));
        }
        let first = self.course.next_event();
        // Losses beyond the end are of no interest.
        let last_end = self.course.end_event().unwrap_or(u64::MAX - self.builders.len() as u64 - 1);
        let end = first.saturating_add(count).min(last_end);
        match self.course.next_run_event().filter(|next| (first + 1..end).contains(next)) {
            Some(next) => {
                self.lose_events(first, next);
                self.enter_next_run(next);
                self.lose_events(next, end);
            }
            None => self.lose_events(first, end),
        }
        Ok(())
    }

    /// Announces that the device lost the frames of these events, the next ones, which are all of one run.
    fn lose_events(&mut self, first: u64, end: u64) {
        if self.assignments.is_by_room() {
            self.lose_by_room(first, end);
        } else {
            self.lose_by_number(first, end);
        }
        self.course.count_lost_until(end);
        self.end_passed_ranges();
    }

    /// Skips `count` events that the device has nothing for. Nothing is announced: the builders see this source go on.
    fn skip_events(&mut self, count: u64) {
        let next = self.course.next_event();
        let end = next.saturating_add(count).min(self.course.end_event().unwrap_or(u64::MAX));
        self.course.go_to_event(end.max(next));
        self.end_passed_ranges();
    }

    /// Records that the fragments of the events from `first` to `end` are lost, whichever builders they are for.
    fn lose_by_room(&mut self, first: u64, end: u64) {
        let mut from = first;
        while from < end {
            let dropped = Dropped { first: from, count: end - from, how: Disposition::LostInDevice };
            let Some((index, part)) = self.assignments.split_dropped(dropped) else {
                self.assignments.keep_dropped(dropped);
                return self.request_assignment(end);
            };
            self.builders.drop_range(index, part.first, part.count, 1, part.how);
            from += part.count;
        }
    }

    fn lose_by_number(&mut self, first: u64, end: u64) {
        let builders = self.builders.len() as u64;
        for index in self.builders.all_numbers() {
            let own = (first..end.min(first.saturating_add(builders))).find(|event| event % builders == index as u64);
            let Some(own) = own else { continue };
            let count = (end - 1 - own) / builders + 1;
            self.builders.drop_range(index, own, count, builders, Disposition::LostInDevice);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Node, Policy, SourceSettings, Wait};
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use thalweg_device::Description;
    use thalweg_wire::{EventId, SourceId};

    /// Device that is always readable.
    #[derive(Debug)]
    struct Talker {
        description: Description,
        says: UnixStream,
        _other: UnixStream,
        full: bool,
        idle: u32,
        away: bool,
    }

    impl Acquisition for Talker {
        fn description(&self) -> &Description {
            &self.description
        }

        fn max_payload_bytes(&self) -> usize {
            64
        }

        fn max_posted_buffers(&self) -> u32 {
            1
        }

        fn post_buffer(&mut self, _buffer: Buffer) {
            self.full = false;
        }

        fn poll_acquired(&mut self, _now: Duration) -> Result<Acquired, DeviceError> {
            self.full = true;
            Ok(Acquired::NotYet)
        }

        fn poll_idle(&mut self, now: Duration) -> Result<Option<Duration>, DeviceError> {
            self.idle += 1;
            Ok(Some(now + Duration::from_secs(3600)))
        }

        fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
            Some(self.says.as_fd())
        }

        fn has_room(&self) -> bool {
            !self.full || self.idle > 2
        }

        fn is_away(&self) -> bool {
            self.away
        }
    }

    fn node(away: bool) -> SourceNode {
        use std::io::Write;
        let (says, mut other) = UnixStream::pair().unwrap();
        other.write_all(&[1]).unwrap();
        let device = Talker { description: Description::default(), says, _other: other, full: false, idle: 0, away };
        let settings = SourceSettings {
            name: "s".into(),
            id: SourceId::new(1, 0),
            feed: Feed::Acquisition(Box::new(device)),
            builders: vec!["tcp:127.0.0.1:1".parse().unwrap()],
            adapter: None,
            congestion: None,
            rate: None,
            burst: 1,
            policy: Policy::Block,
            slots: 2,
            slot_bytes: 128,
            timeout: Duration::from_secs(60),
            wait: Wait::default(),
            cpu: None,
        };
        SourceNode::new(settings).unwrap()
    }

    #[test]
    fn a_source_whose_device_is_away_waits_for_it_until_the_run_is_to_end_sooner() {
        let mut node = node(true);
        // The run has an end from the beginning, which is repeated over each connection.
        node.handle_message(0, Message::StopAt { end: EventId(100), end_here: false }).unwrap();
        node.course.set_phase(Phase::Running);
        node.acquiring.has_started = true;
        for message in [Message::Resume, Message::StopAt { end: EventId(100), end_here: false }] {
            node.handle_message(0, message).unwrap();
            assert!(!node.acquiring.is_over, "{message:?}");
        }
        node.handle_message(0, Message::StopAt { end: EventId(10), end_here: false }).unwrap();
        assert!(node.acquiring.is_over);
    }

    #[test]
    fn a_device_wakes_its_node_only_while_the_node_takes_something() {
        let mut node = node(false);
        let poller = Arc::clone(node.poller());
        let mut wakes = |phase, over| {
            node.course.set_phase(phase);
            node.acquiring.is_over = over;
            node.serve_acquisition().unwrap();
            let mut woken = false;
            poller.wait_for_events(Some(Duration::ZERO), |token| woken |= token == DEVICE_TOKEN).unwrap();
            woken
        };
        assert!(!wakes(Phase::Waiting, false) && !wakes(Phase::Waiting, false));
        assert!(!wakes(Phase::Running, false), "it has no room");
        assert!(!wakes(Phase::Paused, false));
        assert!(!wakes(Phase::Running, false));
        // By now it was asked three times when it needs attention: once for each rest.
        assert!(!wakes(Phase::Paused, false));
        assert!(wakes(Phase::Running, false), "it has room");
        assert!(!wakes(Phase::Running, true), "nothing more comes");
        assert!(wakes(Phase::Running, false) && !wakes(Phase::Ending, false));
    }
}
