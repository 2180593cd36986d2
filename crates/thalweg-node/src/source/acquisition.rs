//! Acquisition from a device that works by itself: its buffers are slots, and come back filled.

use super::{DEVICE, Feed, Phase, SourceNode};
use crate::NodeError;
use crate::slots::Filling;
use std::time::Duration;
use thalweg_device::{Acquired, Buffer, Frame, FrameOrder, InTurn};
use thalweg_link::Interest;
use thalweg_wire::{Disposition, EventId, Message, TaiNanos};

/// Frames taken from the device before others have their turn.
const FAIR_SHARE: usize = 64;

/// State of a device that works by itself.
#[derive(Debug, Default)]
pub(super) struct Acquiring {
    order: FrameOrder,
    /// Number of buffers that the device has.
    posted: u32,
    started: bool,
    over: bool,
    /// True if the device was away when the run was to end.
    gave_up: bool,
    /// True if builder 0 was told when the first frame was taken.
    first_is_said: bool,
    /// True if the time of event 0 is known, for events that are numbered by time.
    events_begin: bool,
    /// True if its descriptor is waited on.
    watched: bool,
    /// Time at which the device needs attention while nothing is taken.
    pub(super) idle: Option<Duration>,
}

impl Acquiring {
    pub(super) fn new(feed: &Feed) -> Self {
        let reorders = if let Feed::Acquisition(device) = feed { device.reorders() } else { 0 };
        Self { order: FrameOrder::new(reorders), ..Self::default() }
    }
}

impl SourceNode {
    /// Gives free slots to the device, and takes what it has filled, in the order of events. Its descriptor is waited
    /// on only while something is taken: otherwise it would report again and again what is left there.
    pub(super) fn acquire(&mut self) -> Result<(), NodeError> {
        self.take_frames()?;
        let Self { settings, acquiring, phase, .. } = self;
        let Feed::Acquisition(device) = &mut settings.feed else { return Ok(()) };
        let takes = *phase == Phase::Running && !acquiring.over;
        let due = acquiring.idle.is_none_or(|at| at <= self.clock.now());
        acquiring.idle = match takes {
            true => None,
            false if due => device.idle(self.clock.now())?,
            false => acquiring.idle,
        };
        let watched = takes && device.has_room();
        if let Some(fd) = device.fd()
            && watched != std::mem::replace(&mut acquiring.watched, watched)
        {
            let poller = self.endpoints.poller();
            match watched {
                true => poller.add(fd, DEVICE, Interest::READ)?,
                // Without an interest the poller would still report errors.
                false => poller.remove(fd),
            }
        }
        Ok(())
    }

    fn take_frames(&mut self) -> Result<(), NodeError> {
        let Self { settings, acquiring, pool, traces, .. } = self;
        let Feed::Acquisition(device) = &mut settings.feed else { return Ok(()) };
        if !matches!(self.phase, Phase::Waiting | Phase::Running) {
            return Ok(());
        }
        while !acquiring.over && acquiring.posted < device.depth() {
            let Some(slot) = pool.take() else { break };
            traces.forget(slot.index());
            device.post(Buffer::new(slot));
            acquiring.posted += 1;
        }
        if self.phase == Phase::Waiting {
            return Ok(());
        }
        if !std::mem::replace(&mut acquiring.started, true) {
            device.start(self.run_began)?;
        }
        for _ in 0..FAIR_SHARE {
            match device.poll(self.clock.now())? {
                Acquired::Frame(frame) => {
                    self.came = true;
                    acquiring.posted = acquiring.posted.saturating_sub(1);
                    if let Some(Frame { buffer, number, .. }) = acquiring.order.came(frame) {
                        tracing::warn!(
                            source = settings.name,
                            number,
                            "the device repeated a frame, or was too late with it"
                        );
                        pool.give_back(buffer.into_slot());
                    }
                }
                Acquired::Lost { first, count } => acquiring.order.lost(first, count),
                Acquired::Missed { first, count } => acquiring.order.missed(first, count),
                Acquired::NotYet => break,
                Acquired::Over => {
                    acquiring.over = true;
                    break;
                }
            }
        }
        self.say_first_frame();
        self.accept_frames()
    }

    /// Sends builder 0 the time of the first frame, if builder 0 decides when event 0 is.
    fn say_first_frame(&mut self) {
        let Feed::Acquisition(device) = &self.settings.feed else { return };
        if self.acquiring.first_is_said || self.builders[0].welcome.is_none() {
            return;
        }
        if let (Some(time), Some(period)) = (device.first_time(), device.event_period()) {
            let period_nanos = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
            self.send_to(0, &Message::FirstFrame { time, period_nanos });
            self.acquiring.first_is_said = true;
        }
    }

    /// Repeats this message after a reconnection, since it may have been lost.
    pub(super) fn say_first_frame_again(&mut self) {
        self.acquiring.first_is_said = false;
        self.say_first_frame();
    }

    /// Handles the time of event 0, as decided by builder 0.
    pub(super) fn begin_events(&mut self, time: TaiNanos) {
        if let Feed::Acquisition(device) = &mut self.settings.feed
            && !std::mem::replace(&mut self.acquiring.events_begin, true)
        {
            device.begin_events(time);
        }
    }

    /// Accepts frames in order, up to the end of the run.
    fn accept_frames(&mut self) -> Result<(), NodeError> {
        loop {
            if self.is_beyond_end(self.next_event) {
                self.end();
                return Ok(());
            }
            if self.builder_of(self.next_event).is_none() {
                // The device goes on as long as it has slots, and counts what it loses then.
                self.ask(self.next_event);
                return Ok(());
            }
            match self.acquiring.order.next(self.acquiring.over) {
                Some(InTurn::Frame(frame)) => self.accept(frame)?,
                Some(InTurn::Lost(count)) => self.lose(count)?,
                Some(InTurn::Missed(count)) => self.miss(count),
                None => {
                    if self.acquiring.over {
                        if let Some(end) = self.end_at.filter(|_| self.acquiring.gave_up) {
                            self.lose(end.saturating_sub(self.next_event))?;
                        }
                        self.end();
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Stops waiting for a device that is away when the run is to end. Events of the run's other sources until its end
    /// count as lost in this one's device.
    pub(super) fn end_without_device(&mut self) {
        let Feed::Acquisition(device) = &self.settings.feed else { return };
        if self.phase == Phase::Running && self.acquiring.started && device.is_away() {
            (self.acquiring.over, self.acquiring.gave_up) = (true, true);
        }
    }

    /// Accepts a frame as the next fragment, and offers its slot.
    fn accept(&mut self, frame: Frame) -> Result<(), NodeError> {
        let (event, stamp, sequence, date) = (EventId(self.next_event), self.stamp(), self.sequence, self.clock.date());
        let Some(index) = self.builder_of(event.0) else { return Ok(()) };
        let (len, copied) = (frame.len, frame.copied as u64);
        let filling = Filling::acquired(frame, stamp, event, sequence, date).map_err(|room| {
            NodeError::Config(format!("the device says that it wrote {len} bytes into a buffer of {room}"))
        })?;
        let builder = &mut self.builders[index];
        builder.accounts.accepted += 1;
        builder.copied += copied;
        if builder.left {
            builder.lost += 1;
            self.pool.give_back(filling.slot);
            self.step(len);
            return Ok(());
        }
        builder.filling = Some(filling);
        self.note_time(index, len);
        self.step(len);
        self.offer(index);
        Ok(())
    }

    /// Announces that the device lost `count` frames from the next event on, to each builder those of its own events.
    ///
    /// # Errors
    /// `count` is more than can have been lost.
    pub(super) fn lose(&mut self, count: u64) -> Result<(), NodeError> {
        if count > u64::from(u32::MAX) {
            let name = &self.settings.name;
            return Err(NodeError::Config(format!("source '{name}': {count} lost fragments are more than can be")));
        }
        let (first, builders) = (self.next_event, self.builders.len() as u64);
        // Losses beyond the end are of no interest.
        let end = first.saturating_add(count).min(self.end_at.unwrap_or(u64::MAX - builders - 1));
        if self.assignments.is_some() {
            self.leave_out_all(first, end, Disposition::LostInDevice);
        } else {
            self.lose_by_number(first, end);
        }
        let lost = end.saturating_sub(first);
        self.next_event += lost;
        self.shown.lost_in_device += lost;
        #[expect(clippy::cast_possible_truncation, reason = "modulo 2³², as it is counted")]
        let skipped = lost as u32;
        self.sequence = self.sequence.wrapping_add(skipped);
        self.went_on();
        Ok(())
    }

    /// Skips `count` events that the device has nothing for. Nothing is announced: the builders see this source go on.
    fn miss(&mut self, count: u64) {
        let end = self.next_event.saturating_add(count).min(self.end_at.unwrap_or(u64::MAX));
        self.next_event = end.max(self.next_event);
        self.went_on();
    }

    fn lose_by_number(&mut self, first: u64, end: u64) {
        let builders = self.builders.len() as u64;
        for index in 0..self.builders.len() {
            let own = (first..end.min(first.saturating_add(builders))).find(|event| event % builders == index as u64);
            let Some(own) = own else { continue };
            let mut left = (end - 1 - own) / builders + 1;
            let mut from = own;
            while left > 0 {
                let run = u32::try_from(left).unwrap_or(u32::MAX);
                self.leave_out(index, EventId(from), run, Disposition::LostInDevice);
                from += u64::from(run) * builders;
                left -= u64::from(run);
            }
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
    use thalweg_device::{Acquired, Acquisition, Description, DeviceError};
    use thalweg_wire::{Message, SourceId};

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

        fn max_payload(&self) -> usize {
            64
        }

        fn depth(&self) -> u32 {
            1
        }

        fn post(&mut self, _buffer: Buffer) {
            self.full = false;
        }

        fn poll(&mut self, _now: Duration) -> Result<Acquired, DeviceError> {
            self.full = true;
            Ok(Acquired::NotYet)
        }

        fn idle(&mut self, now: Duration) -> Result<Option<Duration>, DeviceError> {
            self.idle += 1;
            Ok(Some(now + Duration::from_secs(3600)))
        }

        fn fd(&self) -> Option<BorrowedFd<'_>> {
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
        node.on_message(0, Message::StopAt { end: EventId(100), end_here: false }).unwrap();
        (node.phase, node.acquiring.started) = (Phase::Running, true);
        for message in [Message::Resume, Message::StopAt { end: EventId(100), end_here: false }] {
            node.on_message(0, message).unwrap();
            assert!(!node.acquiring.over, "{message:?}");
        }
        node.on_message(0, Message::StopAt { end: EventId(10), end_here: false }).unwrap();
        assert!(node.acquiring.over);
    }

    #[test]
    fn a_device_wakes_its_node_only_while_the_node_takes_something() {
        let mut node = node(false);
        let poller = Arc::clone(node.poller());
        let mut wakes = |phase, over| {
            node.phase = phase;
            node.acquiring.over = over;
            node.acquire().unwrap();
            let mut woken = false;
            poller.wait(Some(Duration::ZERO), |token| woken |= token == DEVICE).unwrap();
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
